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

    /// The machine's name, as Rust and the BPF programs have it.
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
        let gcc = self.tool("gcc");
        let key = triple.replace('-', "_");
        let linker = format!("CARGO_TARGET_{}_LINKER", key.to_uppercase());
        let compiler = format!("CC_{key}");
        let is_set = |name: &str| std::env::var_os(name).is_some();
        if !is_set(&compiler) && !is_set("TARGET_CC") {
            if !compiles(&gcc) {
                let (machine, package) = (self.arch.replace('_', "-"), debian_architecture(self.arch));
                bail!(
                    "no C compiler with headers for {triple}: install {gcc} and its C library (Debian: \
                     gcc-{machine}-linux-gnu libc6-dev-{package}-cross), or set {compiler}"
                );
            }
            cargo.env(&compiler, &gcc);
        }
        if !is_set(&linker) {
            cargo.env(&linker, if self.is_static() { "rust-lld" } else { &gcc });
            let flags = format!("CARGO_TARGET_{}_RUSTFLAGS", key.to_uppercase());
            if self.is_static() && !is_set(&flags) && !is_set("RUSTFLAGS") {
                // What .cargo/config.toml says for all, and what gcc tells the linker unasked: a build id, by which
                // debug information that stands apart is found.
                cargo.env(&flags, "-Cforce-frame-pointers=yes -Clink-arg=--build-id");
            }
        }
        Ok(())
    }

    /// Whether C can be compiled for it.
    pub(crate) fn has_compiler(&self) -> bool {
        compiles(&self.tool("gcc"))
    }

    /// A program of the GNU tools for the machine: `gcc`, `objcopy`.
    pub(crate) fn tool(&self, name: &str) -> String {
        format!("{}-linux-gnu-{name}", self.arch)
    }
}

/// Whether a C compiler is there, and finds the headers of its C library: Debian's comes without them where recommended
/// packages are not installed, and then `ring` fails in the middle of the build.
fn compiles(compiler: &str) -> bool {
    let source = std::env::temp_dir().join(format!("jitprof-headers-{}.c", std::process::id()));
    if std::fs::write(&source, "#include <stdint.h>\n").is_err() {
        return false;
    }
    let found = command::succeeds(Command::new(compiler).arg("-fsyntax-only").arg(&source));
    // It is a few bytes in a temporary folder; that it stays is no reason to fail.
    std::fs::remove_file(&source).ok();
    found
}

/// What Debian calls a machine.
pub(crate) fn debian_architecture(arch: &str) -> &str {
    match arch {
        "aarch64" => "arm64",
        "x86_64" => "amd64",
        other => other,
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
