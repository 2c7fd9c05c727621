//! `build`: the BPF programs, then the binary that carries them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::platform::Platform;
use crate::rustc;
use crate::shared_build;
use crate::workspace::Workspace;
use crate::{command, tools};

/// The target of the BPF programs; every machine jitprof runs on is little-endian.
const BPF_TARGET: &str = "bpfel-unknown-none";
/// The binary of the package `profiler-ebpf`.
const BPF_BIN: &str = "jitprof-ebpf";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Build the binary without optimisation (the BPF programs always have it: the verifier's limits need it)
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
    /// What is passed on: smaller and faster, and built in one piece for minutes.
    Shipped,
}

impl Profile {
    /// What it is called for Cargo.
    fn name(self) -> &'static str {
        match self {
            Self::Debug => "dev",
            Self::Release => "release",
            Self::Shipped => "shipped",
        }
    }

    /// Where in the target folder what is built with it lies.
    pub(crate) fn folder(self) -> &'static str {
        if self == Self::Debug { "debug" } else { self.name() }
    }
}

/// Builds `jitprof` with its BPF programs inside and returns the binary's path.
pub(crate) fn jitprof(workspace: &Workspace, profile: Profile) -> Result<PathBuf> {
    jitprof_for(workspace, &Platform::host(), profile)
}

/// Builds the continuous recording whose inside the live tests look at, with its BPF programs inside.
pub(crate) fn continuous(workspace: &Workspace) -> Result<()> {
    command::progress("building the continuous recording");
    tools(workspace, &["--bin", "continuous", "--bin", "fleet"])
}

/// Builds the programs that measure the library.
pub(crate) fn benchmarks(workspace: &Workspace) -> Result<()> {
    command::progress("building the benchmarks");
    tools(workspace, &["--bins"])
}

fn tools(workspace: &Workspace, which: &[&str]) -> Result<()> {
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--release", "--package", "jitprof-tools"]).args(which);
    // The same object as the binary's, or cargo would build the library a second time without it.
    command::run(cargo.env("JITPROF_BPF_OBJECT", workspace.target.join("bpf/jitprof.bpf.o")))
}

/// The same for a platform.
pub(crate) fn jitprof_for(workspace: &Workspace, platform: &Platform, profile: Profile) -> Result<PathBuf> {
    jitprof_with(workspace, platform, profile, &[])
}

/// Builds `jitprof` for the demo and returns the binary's path: without its optional parts, which take long to compile, and
/// kept in `folder` so that nobody takes it for the whole. Where that was built before, it is used.
pub(crate) fn jitprof_for_demo(workspace: &Workspace, folder: &Path) -> Result<PathBuf> {
    if workspace.target.join(Profile::Release.folder()).join("jitprof").is_file() {
        return jitprof(workspace, Profile::Release);
    }
    let built = jitprof_with(workspace, &Platform::host(), Profile::Release, &["--no-default-features"])?;
    let kept = folder.join("jitprof");
    std::fs::rename(&built, &kept)
        .with_context(|| format!("cannot move {} into {}", built.display(), folder.display()))?;
    Ok(kept)
}

fn jitprof_with(workspace: &Workspace, platform: &Platform, profile: Profile, features: &[&str]) -> Result<PathBuf> {
    let object = bpf_programs(workspace, platform)?;
    command::progress("building jitprof");
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--package", "jitprof", "--bin", "jitprof"]).args(features);
    cargo.env("JITPROF_BPF_OBJECT", object);
    binary(workspace, cargo, platform, profile, "jitprof")
}

/// Builds the library that runtimes load and returns its path.
pub(crate) fn agent(workspace: &Workspace, profile: Profile) -> Result<PathBuf> {
    agent_for(workspace, &Platform::host(), profile)
}

pub(crate) fn agent_for(workspace: &Workspace, platform: &Platform, profile: Profile) -> Result<PathBuf> {
    command::progress("building the agent");
    let mut cargo = workspace.cargo();
    cargo.args(["build", "--package", "jitprof-agent", "--lib"]);
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
    cargo.args(["--profile", profile.name()]);
    if profile == Profile::Shipped || platform.is_static() {
        // What is passed on, or runs in other machines, is not cut into pieces that can be built anew one by one.
        cargo.env("CARGO_INCREMENTAL", "0");
    }
    command::run(&mut cargo)?;
    let binary = platform.folder(&workspace.target).join(profile.folder()).join(name);
    if !binary.is_file() {
        // A `build.target` in a cargo configuration moves it.
        bail!("cargo built {name}, but not as {}; unset CARGO_BUILD_TARGET and `build.target`", binary.display());
    }
    Ok(binary)
}

/// Builds the eBPF object for a platform's kernels and returns its path, `<target>/bpf/jitprof.bpf.o` for this
/// machine's.
pub(crate) fn bpf_programs(workspace: &Workspace, platform: &Platform) -> Result<PathBuf> {
    bpf_object(&BpfBuild::here(workspace, platform), workspace, BPF_BIN, "jitprof.bpf.o")
}

/// The same from another copy of the sources, into another folder.
pub(crate) fn bpf_programs_of(
    workspace: &Workspace,
    platform: &Platform,
    sources: &Path,
    folder: &Path,
) -> Result<PathBuf> {
    let build = BpfBuild { platform, sources: sources.to_owned(), folder: folder.to_owned() };
    bpf_object(&build, workspace, BPF_BIN, "jitprof.bpf.o")
}

/// Builds the sampler that jitprof's is compared with and returns its path, `<target>/bpf/getstack.bpf.o`.
pub(crate) fn getstack(workspace: &Workspace) -> Result<PathBuf> {
    bpf_object(&BpfBuild::here(workspace, &Platform::host()), workspace, "getstack", "getstack.bpf.o")
}

/// What BPF programs are built of, for which machine, and where to.
struct BpfBuild<'a> {
    platform: &'a Platform,
    /// The root of the sources.
    sources: PathBuf,
    /// Cargo's target folder for them.
    folder: PathBuf,
}

impl<'a> BpfBuild<'a> {
    /// Of this checkout. A target folder for each machine: cargo would build everything anew whenever it changes.
    fn here(workspace: &Workspace, platform: &'a Platform) -> Self {
        let folder = platform.folder(&workspace.target).join("bpf");
        Self { platform, sources: workspace.root.clone(), folder }
    }
}

fn bpf_object(build: &BpfBuild, workspace: &Workspace, bin: &str, name: &str) -> Result<PathBuf> {
    tools::ensure_component(workspace, "rust-src")?;
    let linker = tools::ensure_bpf_linker(workspace)?;
    command::progress("building the BPF programs");
    command::run(bpf_cargo(build, workspace, &linker)?.args(["build", "--release", "--bin", bin]).args(BPF_BUILD))?;
    let folder = &build.folder;
    let (built, object) = (folder.join(BPF_TARGET).join("release").join(bin), folder.join(name));
    // Left as it is if nothing has changed: by its time cargo would build the library anew.
    let bytes = std::fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
    if std::fs::read(&object).is_ok_and(|there| there == bytes) {
        return Ok(object);
    }
    // Written under a temporary name: a build that is cut short leaves no half object behind.
    let unfinished = folder.join(format!("{name}.tmp"));
    std::fs::write(&unfinished, bytes)
        .and_then(|()| std::fs::rename(&unfinished, &object))
        .with_context(|| format!("cannot copy {} to {}", built.display(), object.display()))?;
    Ok(object)
}

/// Lints the BPF programs; every warning is an error.
pub(crate) fn bpf_clippy(workspace: &Workspace) -> Result<()> {
    tools::ensure_component(workspace, "rust-src")?;
    let linker = tools::ensure_bpf_linker(workspace)?;
    let mut cargo = bpf_cargo(&BpfBuild::here(workspace, &Platform::host()), workspace, &linker)?;
    command::run(cargo.args(["clippy", "--release"]).args(BPF_BUILD).args(["--", "-D", "warnings"]))
}

const BPF_BUILD: [&str; 4] = ["--target", BPF_TARGET, "-Z", "build-std=core"];

/// A cargo command for the BPF programs' workspace. `RUSTC_BOOTSTRAP` opens build-std on the pinned stable toolchain,
/// so that one toolchain builds everything.
///
/// The same sources give the same bytes wherever they stand: paths in the debug information are not this machine's.
fn bpf_cargo(build: &BpfBuild, workspace: &Workspace, linker: &Path) -> Result<Command> {
    let linker =
        linker.to_str().context("the target folder's path is no UTF-8; set CARGO_TARGET_DIR to one that is")?;
    let mut flags = vec![
        format!("--cfg=bpf_target_arch=\"{}\"", build.platform.arch()),
        // BTF is made from debug information; the loader needs it for maps and bpf_loop callbacks.
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        // Instructions of Linux 4.14: each comparison has its own, with the constant as its second operand. Verifiers before
        // 6.8 do not see that a branch is never taken if the constant is the first.
        "-Ctarget-cpu=v2".to_owned(),
    ];
    for (from, to) in [(build.sources.clone(), "/jitprof"), (sysroot(workspace)?, "/rust"), (cargo_home()?, "/cargo")] {
        flags.push(format!("--remap-path-prefix={}={to}", from.display()));
    }
    let mut cargo = workspace.cargo();
    cargo
        .current_dir(build.sources.join("profiler-ebpf"))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTC_WRAPPER", std::env::current_exe().context("where is xtask?")?)
        .env(rustc::MARK, "1")
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", linker)
        .env("CARGO_TARGET_DIR", &build.folder)
        // Compiled here: little is, and one build of it is compared with another.
        .env(shared_build::VARIABLE, &build.folder)
        .env_remove("RUSTFLAGS")
        // Encoded: a path with spaces stays one flag.
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    Ok(cargo)
}

/// Where the toolchain is.
fn sysroot(workspace: &Workspace) -> Result<PathBuf> {
    let mut rustc = Command::new("rustc");
    Ok(command::output(rustc.args(["--print", "sysroot"]).current_dir(&workspace.root))?.trim().into())
}

/// Where cargo keeps the sources of crates.
fn cargo_home() -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    home.context("neither CARGO_HOME nor HOME says where cargo keeps the sources of crates")
}
