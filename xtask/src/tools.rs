//! What the build needs besides the pinned toolchain: its `rust-src`, `clippy` and `rustfmt` components, and a
//! bpf-linker that understands its LLVM bitcode.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;
use crate::workspace::Workspace;

/// The newest bpf-linker that borrows rustc's own LLVM at run time, so that it needs no system LLVM and always reads
/// the bitcode of the toolchain it runs under. Later ones link against one LLVM version when they are built.
const BPF_LINKER_VERSION: &str = "0.10.3";

/// Adds the component to the pinned toolchain, if it is missing.
pub(crate) fn ensure_component(workspace: &Workspace, component: &str) -> Result<()> {
    if has_component(workspace, component)? {
        return Ok(());
    }
    let command_line = format!("rustup component add {component}");
    command::progress(&format!("adding {component} to the toolchain"));
    command::run(Command::new("rustup").args(["component", "add", component]).current_dir(&workspace.root))
        .with_context(|| format!("the toolchain has no {component}; run `{command_line}` in this folder"))
}

/// Looks for the component's files, because that works with toolchains that rustup does not manage.
fn has_component(workspace: &Workspace, component: &str) -> Result<bool> {
    Ok(match component {
        "rust-src" => {
            let mut rustc = Command::new("rustc");
            let sysroot = command::output(rustc.args(["--print", "sysroot"]).current_dir(&workspace.root))?;
            PathBuf::from(sysroot.trim()).join("lib/rustlib/src/rust/library/Cargo.lock").is_file()
        }
        "rustfmt" => command::succeeds(workspace.cargo().args(["fmt", "--version"])),
        other => command::succeeds(workspace.cargo().args([other, "--version"])),
    })
}

/// The path of a bpf-linker of the pinned version, which is kept where cargo keeps what it compiles; installs it if need be.
pub(crate) fn ensure_bpf_linker(workspace: &Workspace) -> Result<PathBuf> {
    let tools = workspace.build_folder().join("tools");
    let linker = tools.join("bin/bpf-linker");
    let wanted = format!("bpf-linker {BPF_LINKER_VERSION}");
    if linker.is_file() && command::output(Command::new(&linker).arg("--version")).is_ok_and(|v| v.trim() == wanted) {
        return Ok(linker);
    }
    command::progress(&format!("installing {wanted} into {} (once; a minute or two)", tools.display()));
    let build = tools.join("build");
    let mut install = workspace.cargo();
    install
        .args(["install", "bpf-linker", "--version", BPF_LINKER_VERSION, "--locked", "--force", "--root"])
        .arg(&tools)
        .arg("--target-dir")
        .arg(&build)
        // It links once a build, and rustc's LLVM does the work: not worth the time to optimise it, and to debug it as its
        // makers do.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    let line = command::shown(&install);
    command::fetch(&mut install).with_context(|| {
        format!("bpf-linker could not be installed; it needs a C compiler and the crate registry. Run `{line}` and try again")
    })?;
    std::fs::remove_dir_all(&build).with_context(|| format!("cannot remove {}", build.display()))?;
    Ok(linker)
}
