//! What a binary is built for: this machine, or another one by cross-building.
//!
//! The C parts (zstd) need a compiler for the machine, `<arch>-linux-gnu-gcc`. Binaries for musl are static and linked
//! with the toolchain's own lld; those for glibc are linked by that compiler.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command;
use crate::workspace::Workspace;

/// A machine that binaries are built for.
pub(crate) struct Platform {
    /// `None` for this machine.
    triple: Option<String>,
    arch: &'static str,
}

impl Platform {
    /// This machine.
    pub(crate) fn host() -> Self {
        Self { triple: None, arch: std::env::consts::ARCH }
    }

    /// A target of rustc's for Linux on a machine that jitprof unwinds.
    pub(crate) fn of_triple(triple: &str) -> Result<Self> {
        let arch = match triple.split_once("-unknown-linux-") {
            Some(("x86_64", "gnu" | "musl")) => "x86_64",
            Some(("aarch64", "gnu" | "musl")) => "aarch64",
            _ => bail!("{triple} is none of {{x86_64,aarch64}}-unknown-linux-{{gnu,musl}}"),
        };
        Ok(Self { triple: Some(triple.to_owned()), arch })
    }

    /// The machine's name, as Rust and the kernel part have it.
    pub(crate) fn arch(&self) -> &'static str {
        self.arch
    }

    /// Whether its programs are static.
    pub(crate) fn is_static(&self) -> bool {
        self.triple.as_ref().is_some_and(|triple| triple.ends_with("musl"))
    }

    /// Where cargo puts what it builds for it, inside of its target folder.
    pub(crate) fn folder(&self, target: &Path) -> PathBuf {
        self.triple.as_ref().map_or_else(|| target.to_owned(), |triple| target.join(triple))
    }

    /// Makes a cargo command build for it; adds rustc's part of the target to the toolchain if it is missing.
    pub(crate) fn prepare(&self, workspace: &Workspace, cargo: &mut Command) -> Result<()> {
        let Some(triple) = &self.triple else { return Ok(()) };
        ensure_std(workspace, triple)?;
        cargo.args(["--target", triple]);
        let gcc = format!("{}-linux-gnu-gcc", self.arch);
        let key = triple.replace('-', "_");
        let linker = format!("CARGO_TARGET_{}_LINKER", key.to_uppercase());
        let compiler = format!("CC_{key}");
        let is_set = |name: &str| std::env::var_os(name).is_some();
        if !is_set(&compiler) && !is_set("TARGET_CC") {
            if !command::succeeds(Command::new(&gcc).arg("--version")) {
                bail!("no C compiler for {triple}: install {gcc} (Debian: gcc-{}-linux-gnu), or set {compiler}", {
                    self.arch.replace('_', "-")
                });
            }
            cargo.env(&compiler, &gcc);
        }
        if !is_set(&linker) {
            cargo.env(&linker, if self.is_static() { "rust-lld" } else { &gcc });
        }
        Ok(())
    }
}

fn ensure_std(workspace: &Workspace, triple: &str) -> Result<()> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", triple]).current_dir(&workspace.root);
    if Path::new(command::output(&mut rustc)?.trim()).is_dir() {
        return Ok(());
    }
    command::progress(&format!("adding {triple} to the toolchain"));
    command::run(Command::new("rustup").args(["target", "add", triple]).current_dir(&workspace.root))
        .with_context(|| format!("the toolchain has no {triple}; run `rustup target add {triple}` in this folder"))
}
