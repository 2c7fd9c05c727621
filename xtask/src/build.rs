//! `build`: the kernel part, then the binary that carries it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::platform::Platform;
use crate::workspace::Workspace;
use crate::{command, tools};

/// The target of the kernel part; every machine jitprof runs on is little-endian.
const BPF_TARGET: &str = "bpfel-unknown-none";
/// The binary of the package `profiler-ebpf`.
const BPF_BIN: &str = "jitprof-ebpf";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Build the binary without optimisation (the kernel part always has it: the verifier's limits need it)
    #[arg(long)]
    debug: bool,
    /// Build for another machine, e.g. aarch64-unknown-linux-musl [default: this one]
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
}

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let profile = if arguments.debug { Profile::Debug } else { Profile::Release };
    let platform = arguments.target.as_deref().map_or(Ok(Platform::host()), Platform::of_triple)?;
    let binary = jitprof_for(workspace, &platform, profile)?;
    println!("{}", binary.display());
    // A static program cannot load it, and rustc makes no shared library for musl's default.
    if !platform.is_static() {
        println!("{}", agent_for(workspace, &platform, profile)?.display());
    }
    Ok(())
}

/// Cargo's profile for the parts that run on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    Debug,
    Release,
}

/// Builds `jitprof` with its kernel part inside and returns the binary's path.
pub(crate) fn jitprof(workspace: &Workspace, profile: Profile) -> Result<PathBuf> {
    jitprof_for(workspace, &Platform::host(), profile)
}

/// Builds the recording without end whose inside the live tests look at, with its kernel part inside.
pub(crate) fn endless(workspace: &Workspace) -> Result<()> {
    command::progress("building the recording without end");
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--release", "--package", "jitprof", "--example", "endless"]);
    // The same object as the binary's, or cargo would build the library a second time without it.
    command::run(cargo.env("JITPROF_BPF_OBJECT", workspace.target.join("bpf/jitprof.bpf.o")))
}

/// The same for a platform.
pub(crate) fn jitprof_for(workspace: &Workspace, platform: &Platform, profile: Profile) -> Result<PathBuf> {
    let object = kernel_part(workspace, platform)?;
    command::progress("building jitprof");
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--package", "jitprof", "--bin", "jitprof"]).env("JITPROF_BPF_OBJECT", object);
    binary(workspace, cargo, platform, profile, "jitprof")
}

/// Builds the library that runtimes load and returns its path.
pub(crate) fn agent(workspace: &Workspace, profile: Profile) -> Result<PathBuf> {
    agent_for(workspace, &Platform::host(), profile)
}

fn agent_for(workspace: &Workspace, platform: &Platform, profile: Profile) -> Result<PathBuf> {
    command::progress("building the agent");
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--package", "profiler-agent", "--lib"]);
    binary(workspace, cargo, platform, profile, "libjitprof_agent.so")
}

/// Builds the demo JIT, and the other targets in Rust beside it, and returns the demo's path.
pub(crate) fn jitdemo(workspace: &Workspace) -> Result<PathBuf> {
    jitdemo_for(workspace, &Platform::host())
}

/// The same for a platform.
pub(crate) fn jitdemo_for(workspace: &Workspace, platform: &Platform) -> Result<PathBuf> {
    command::progress("building the demo JIT");
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--package", "jitprof-tests", "--bins"]);
    binary(workspace, cargo, platform, Profile::Release, "jitdemo")
}

/// Builds the init of the virtual machines in which other kernels are tried, and returns its path.
pub(crate) fn kernel_guest(workspace: &Workspace, platform: &Platform) -> Result<PathBuf> {
    command::progress("building the virtual machines' init");
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--package", "jitprof-tests", "--bin", "kernel-guest"]);
    binary(workspace, cargo, platform, Profile::Release, "kernel-guest")
}

fn binary(
    workspace: &Workspace,
    mut cargo: Command,
    platform: &Platform,
    profile: Profile,
    name: &str,
) -> Result<PathBuf> {
    platform.prepare(workspace, &mut cargo)?;
    let folder = match profile {
        Profile::Debug => "debug",
        Profile::Release => {
            cargo.arg("--release");
            "release"
        }
    };
    command::run(&mut cargo)?;
    let binary = platform.folder(&workspace.target).join(folder).join(name);
    if !binary.is_file() {
        // A `build.target` in a cargo configuration moves it.
        bail!("cargo built {name}, but not as {}; unset CARGO_BUILD_TARGET and `build.target`", binary.display());
    }
    Ok(binary)
}

/// Builds the eBPF object for a platform's kernels and returns its path, `<target>/bpf/jitprof.bpf.o` for this
/// machine's.
pub(crate) fn kernel_part(workspace: &Workspace, platform: &Platform) -> Result<PathBuf> {
    kernel_object(workspace, platform, BPF_BIN, "jitprof.bpf.o")
}

/// Builds the sampler that jitprof's is compared with and returns its path, `<target>/bpf/getstack.bpf.o`.
pub(crate) fn getstack(workspace: &Workspace) -> Result<PathBuf> {
    kernel_object(workspace, &Platform::host(), "getstack", "getstack.bpf.o")
}

fn kernel_object(workspace: &Workspace, platform: &Platform, bin: &str, name: &str) -> Result<PathBuf> {
    tools::ensure_component(workspace, "rust-src")?;
    let linker = tools::ensure_bpf_linker(workspace)?;
    command::progress("building the kernel part");
    command::run(
        kernel_cargo(workspace, &linker, platform)?.args(["build", "--release", "--bin", bin]).args(KERNEL_TARGET),
    )?;
    let folder = kernel_folder(workspace, platform);
    let (built, object) = (folder.join(BPF_TARGET).join("release").join(bin), folder.join(name));
    // Copied under a temporary name: a build that is cut short leaves no half object behind.
    let unfinished = folder.join(format!("{name}.tmp"));
    std::fs::copy(&built, &unfinished)
        .and_then(|_| std::fs::rename(&unfinished, &object))
        .with_context(|| format!("cannot copy {} to {}", built.display(), object.display()))?;
    Ok(object)
}

/// Lints the kernel part; every warning is an error.
pub(crate) fn kernel_clippy(workspace: &Workspace) -> Result<()> {
    tools::ensure_component(workspace, "rust-src")?;
    let linker = tools::ensure_bpf_linker(workspace)?;
    let mut cargo = kernel_cargo(workspace, &linker, &Platform::host())?;
    command::run(cargo.args(["clippy", "--release"]).args(KERNEL_TARGET).args(["--", "-D", "warnings"]))
}

/// A target folder for each machine: cargo would build everything anew whenever the machine changes.
fn kernel_folder(workspace: &Workspace, platform: &Platform) -> PathBuf {
    platform.folder(&workspace.target).join("bpf")
}

const KERNEL_TARGET: [&str; 4] = ["--target", BPF_TARGET, "-Z", "build-std=core"];

/// A cargo command for the kernel part's workspace. `RUSTC_BOOTSTRAP` opens build-std on the pinned stable toolchain,
/// so that one toolchain builds everything.
fn kernel_cargo(workspace: &Workspace, linker: &Path, platform: &Platform) -> Result<Command> {
    let linker =
        linker.to_str().context("the target folder's path is no UTF-8; set CARGO_TARGET_DIR to one that is")?;
    let flags = [
        format!("--cfg=bpf_target_arch=\"{}\"", platform.arch()),
        // BTF is made from debug information; the loader needs it for maps and bpf_loop callbacks.
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        format!("-Clinker={linker}"),
    ];
    let mut cargo = workspace.cargo();
    cargo
        .current_dir(workspace.ebpf())
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", kernel_folder(workspace, platform))
        .env_remove("RUSTFLAGS")
        // Encoded: a path with spaces stays one flag.
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    Ok(cargo)
}
