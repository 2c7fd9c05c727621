//! `package`: the crates as they are published. That of the program carries the BPF objects of all machines, so that
//! `cargo install` needs neither bpf-linker nor features of a nightly compiler; as no generated file is in the
//! repository, it is packed from a copy.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::build;
use crate::command;
use crate::platform::Platform;
use crate::workspace::Workspace;

/// The machines whose BPF objects are in the crate.
const MACHINES: [&str; 2] = ["x86_64", "aarch64"];
/// The largest crate that the registry takes.
const MAX_BYTES: u64 = 10 << 20;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Also install the program from the packed crates with cargo, rustc and the C compiler alone: no rustup, no
    /// bpf-linker, no nightly features. Some minutes
    #[arg(long)]
    install: bool,
    /// Also build this machine's BPF object once more, at another place, and compare the bytes
    #[arg(long)]
    compare: bool,
}

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let staged = Staged::new(workspace, &MACHINES)?;
    let packed = staged.pack()?;
    for crate_file in &packed {
        println!("{}", crate_file.display());
    }
    if arguments.compare {
        println!("{}", staged.build_again()?);
    }
    if arguments.install {
        println!("{}", install(workspace, &packed)?.display());
    }
    Ok(())
}

/// Packs the crates with this machine's BPF object, and builds that once more from the copy, at another place: the bytes are the same.
pub(crate) fn pack_and_compare(workspace: &Workspace) -> Result<String> {
    let own = MACHINES.iter().position(|machine| *machine == std::env::consts::ARCH);
    let staged = Staged::new(workspace, own.map_or(&MACHINES, |own| &MACHINES[own..=own]))?;
    staged.pack()?;
    staged.build_again()
}

/// A copy of the sources, with the BPF objects.
struct Staged<'a> {
    workspace: &'a Workspace,
    root: PathBuf,
    /// Of each machine.
    objects: Vec<(&'static str, PathBuf)>,
}

impl<'a> Staged<'a> {
    /// Builds the objects and copies the sources, with their changes since the last commit. The copy knows its commit.
    fn new(workspace: &'a Workspace, machines: &[&'static str]) -> Result<Self> {
        let mut objects = Vec::new();
        for machine in machines.iter().copied() {
            objects.push((machine, build::bpf_programs(workspace, &platform(machine)?)?));
        }
        let root = workspace.target.join("package-sources");
        if root.exists() {
            std::fs::remove_dir_all(&root).with_context(|| format!("cannot empty {}", root.display()))?;
        }
        command::progress("copying the sources");
        let mut clone = Command::new("git");
        command::run(clone.args(["clone", "--quiet", "--shared"]).arg(&workspace.root).arg(&root))?;
        let mut changes = Command::new("git");
        let changes = command::output(changes.args(["diff", "HEAD", "--binary"]).current_dir(&workspace.root))?;
        if !changes.is_empty() {
            let patch = workspace.target.join("package-sources.patch");
            std::fs::write(&patch, changes).with_context(|| format!("cannot write {}", patch.display()))?;
            command::run(Command::new("git").arg("apply").arg(&patch).current_dir(&root))?;
        }
        let folder = root.join("profiler/bpf");
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        for (machine, object) in &objects {
            let copy = folder.join(object_name(machine));
            std::fs::copy(object, &copy).with_context(|| format!("cannot write {}", copy.display()))?;
        }
        Ok(Self { workspace, root, objects })
    }

    /// Packs all crates, and looks whether the program's has its objects.
    fn pack(&self) -> Result<Vec<PathBuf>> {
        command::progress("packing the crates");
        let mut cargo = self.workspace.cargo();
        cargo.current_dir(&self.root).env("CARGO_TARGET_DIR", &self.workspace.target);
        // Dirty: the objects are not committed.
        command::run(cargo.args(["package", "--workspace", "--no-verify", "--allow-dirty", "--quiet"]))?;
        let folder = self.workspace.target.join("package");
        let mut crates = Vec::new();
        for name in ["common", "jitdump", "runtimes", "unwind"] {
            crates.push(folder.join(format!("jitprof-{name}-{}.crate", self.workspace.version)));
        }
        let program = folder.join(format!("jitprof-{}.crate", self.workspace.version));
        for (machine, object) in &self.objects {
            let member = format!("jitprof-{}/bpf/{}", self.workspace.version, object_name(machine));
            let mut tar = Command::new("tar");
            let packed = tar.arg("-xOzf").arg(&program).arg(&member).output().context("cannot start tar")?.stdout;
            let built = std::fs::read(object).with_context(|| format!("cannot read {}", object.display()))?;
            ensure!(packed == built, "{} has not the object {member}", program.display());
        }
        crates.push(program);
        for packed in &crates {
            let bytes = std::fs::metadata(packed).with_context(|| format!("there is no {}", packed.display()))?.len();
            ensure!(bytes <= MAX_BYTES, "{} has {bytes} bytes, at most {MAX_BYTES}", packed.display());
        }
        Ok(crates)
    }

    /// Builds this machine's object from the copy and compares it.
    fn build_again(&self) -> Result<String> {
        let own = std::env::consts::ARCH;
        let Some((machine, object)) = self.objects.iter().find(|(machine, _)| *machine == own) else {
            bail!("no BPF object is made for {own}");
        };
        command::progress("building the BPF programs again, elsewhere");
        let again = self.workspace.target.join("package-again");
        let built = build::bpf_programs_of(self.workspace, &platform(machine)?, &self.root, &again)?;
        let read = |path: &Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let (first, second) = (read(object)?, read(&built)?);
        if first != second {
            bail!("two builds differ: {} and {}", object.display(), built.display());
        }
        std::fs::remove_dir_all(&again).with_context(|| format!("cannot remove {}", again.display()))?;
        Ok(format!("BPF object built twice: {} equal bytes", first.len()))
    }
}

/// What a machine's object is called in the crate; build.rs looks for it.
fn object_name(machine: &str) -> String {
    format!("jitprof-{machine}.bpf.o")
}

fn platform(machine: &str) -> Result<Platform> {
    if machine == std::env::consts::ARCH {
        Ok(Platform::host())
    } else {
        Platform::of_triple(&format!("{machine}-unknown-linux-musl"))
    }
}

/// Installs from packed crates, as somebody with cargo and a C compiler would from the registry.
fn install(workspace: &Workspace, packed: &[PathBuf]) -> Result<PathBuf> {
    // Outside of every workspace, or cargo takes it for a part of that.
    let scratch = std::env::temp_dir().join(format!("jitprof-package-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
    let installed = install_in(workspace, packed, &scratch);
    std::fs::remove_dir_all(&scratch).with_context(|| format!("cannot remove {}", scratch.display()))?;
    installed
}

fn install_in(workspace: &Workspace, packed: &[PathBuf], scratch: &Path) -> Result<PathBuf> {
    for crate_file in packed {
        command::run(Command::new("tar").arg("-xzf").arg(crate_file).arg("-C").arg(scratch))?;
    }
    let mut sysroot = Command::new("rustc");
    let sysroot = command::output(sysroot.args(["--print", "sysroot"]).current_dir(&workspace.root))?;
    // The toolchain's own programs, not rustup's: there is no other toolchain for them.
    let tools = Path::new(sysroot.trim()).join("bin");
    let folders = [tools.as_path(), Path::new("/usr/bin"), Path::new("/bin")];
    if let Some(found) = folders.iter().map(|folder| folder.join("bpf-linker")).find(|file| file.exists()) {
        bail!("{} is there, so that its absence is not shown", found.display());
    }
    let path = std::env::join_paths(folders).context("the toolchain's path has a colon")?;
    let root = workspace.target.join("package-installed");
    let mut cargo = Command::new(tools.join("cargo"));
    cargo.env("PATH", path).env("CARGO_TARGET_DIR", workspace.target.join("package-install"));
    for variable in ["JITPROF_BPF_OBJECT", "RUSTC_BOOTSTRAP", "RUSTFLAGS", "RUSTUP_TOOLCHAIN", "RUSTC", "CARGO"] {
        cargo.env_remove(variable);
    }
    let version = &workspace.version;
    cargo
        .current_dir(scratch)
        .args(["install", "--force", "--path", &format!("jitprof-{version}"), "--root"])
        .arg(&root);
    for name in ["common", "jitdump", "runtimes", "unwind"] {
        let folder = scratch.join(format!("jitprof-{name}-{version}"));
        // What the registry would have.
        cargo.arg("--config").arg(format!("patch.crates-io.jitprof-{name}.path=\"{}\"", folder.display()));
    }
    command::run(&mut cargo)?;
    let program = root.join("bin/jitprof");
    let said = command::output(Command::new(&program).arg("--version"))?;
    print!("{said}");
    ensure!(said.contains("BPF object ") && said.contains("commit "), "the program has no BPF object: {said}");
    Ok(program)
}
