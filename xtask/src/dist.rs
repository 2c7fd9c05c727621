//! `dist`: what is passed on, for each machine that a compiler is there for: one static program, stripped, in an archive
//! with an installer, in a Debian package and in an RPM, and its debug information in an archive of its own.

mod archive;
mod contents;
mod deb;
#[cfg(test)]
mod installer_tests;
mod rpm;
mod scripts;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::build::{self, Profile};
use crate::command;
use crate::platform::Platform;
use crate::workspace::Workspace;
use contents::Parts;

/// The largest archive or package that is passed on: one that is fetched in a second.
const MAX_BYTES: u64 = 8_000_000;
/// The machines that there are archives for.
const MACHINES: [&str; 2] = ["x86_64", "aarch64"];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only for this machine, x86_64 or aarch64 [default: this one, and the other if a compiler for it is there]
    #[arg(long, value_name = "MACHINE", value_parser = MACHINES)]
    machine: Option<String>,
    /// Pack what earlier builds have left
    #[arg(long)]
    no_build: bool,
}

/// What every file of a release has in common.
struct Release<'a> {
    workspace: &'a Workspace,
    /// Where the archives go.
    folder: PathBuf,
    /// The commit's time, which every file gets: the same commit gives the same archives.
    time: u64,
    no_build: bool,
}

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let mut log = Command::new("git");
    let time = command::output(log.args(["log", "-1", "--format=%ct"]).current_dir(&workspace.root))?;
    let time = time.trim().parse().context("git names no time of the commit")?;
    let release = Release { workspace, folder: workspace.target.join("dist"), time, no_build: arguments.no_build };
    if release.folder.exists() {
        std::fs::remove_dir_all(&release.folder)
            .with_context(|| format!("cannot empty {}", release.folder.display()))?;
    }
    std::fs::create_dir_all(&release.folder).with_context(|| format!("cannot create {}", release.folder.display()))?;

    let mut made = Vec::new();
    for machine in machines(arguments.machine.as_deref())? {
        made.extend(release.machine(&machine)?);
    }
    let names = made.iter().filter_map(|file| file.file_name());
    let sums = command::output(Command::new("sha256sum").args(names).current_dir(&release.folder))?;
    let sum_file = release.folder.join("SHA256SUMS");
    std::fs::write(&sum_file, &sums).with_context(|| format!("cannot write {}", sum_file.display()))?;
    for file in &made {
        println!("{:>10}  {}", size(file)?, file.display());
    }
    println!("{:>10}  {}", size(&sum_file)?, sum_file.display());
    Ok(())
}

/// The machines to build for, as static platforms, this one first.
fn machines(only: Option<&str>) -> Result<Vec<Platform>> {
    let own = std::env::consts::ARCH;
    let mut machines = vec![Platform::of_triple(&format!("{}-unknown-linux-musl", only.unwrap_or(own)))?];
    if only.is_none() {
        for machine in MACHINES.iter().filter(|machine| **machine != own) {
            let platform = Platform::of_triple(&format!("{machine}-unknown-linux-musl"))?;
            if platform.has_compiler() {
                machines.push(platform);
            } else {
                command::progress(&format!("leaving out {machine}: no C compiler for it is there"));
            }
        }
    }
    Ok(machines)
}

impl Release<'_> {
    /// Builds and packs everything for a machine, and returns the files.
    fn machine(&self, platform: &Platform) -> Result<Vec<PathBuf>> {
        let built = self.program(platform)?;
        let built_agent = self.agent(platform)?;
        let runs_here = self.runs_here(platform, &built)?;

        command::progress("packing");
        let name = format!("jitprof-{}-{}-linux", self.workspace.version, platform.arch());
        let stripped = self.folder.join(format!("{name}.parts"));
        create(&stripped)?;
        let (binary, debug) = (stripped.join("jitprof"), stripped.join("jitprof.debug"));
        split(platform, &built, &binary, &debug)?;
        let agent = stripped.join("libjitprof_agent.so");
        command::run(Command::new(platform.tool("objcopy")).arg("--strip-debug").arg(&built_agent).arg(&agent))?;
        let generated = stripped.join("generated");
        generate(&runs_here, &generated)?;

        let parts = Parts { root: &self.workspace.root, binary: &binary, agent: &agent, generated: &generated };
        let mut made = vec![self.tarball(&name, &parts)?];
        let files = contents::installed(&parts)?;
        let package = contents::Package { version: &self.workspace.version, arch: platform.arch(), time: self.time };
        made.push(deb::write(&package, &files, &self.folder)?);
        made.push(rpm::write(&package, &files, &self.folder)?);
        for file in &made {
            let bytes = size(file)?;
            if bytes > MAX_BYTES {
                bail!("{} has {bytes} bytes, at most {MAX_BYTES}", file.display());
            }
        }
        let debug_folder = self.folder.join(format!("{name}-debug"));
        create(&debug_folder)?;
        copy(&[debug], &debug_folder)?;
        made.push(archive::tar(&debug_folder, self.time)?);
        for folder in [stripped, debug_folder, self.folder.join(&name)] {
            std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        Ok(made)
    }

    /// A program of the same sources that this machine can run.
    fn runs_here(&self, platform: &Platform, built: &Path) -> Result<PathBuf> {
        if platform.arch() == std::env::consts::ARCH {
            return Ok(built.to_owned());
        }
        let own = Platform::of_triple(&format!("{}-unknown-linux-musl", std::env::consts::ARCH))?;
        self.program(&own)
    }

    fn program(&self, platform: &Platform) -> Result<PathBuf> {
        if self.no_build {
            return self.left(platform, "jitprof");
        }
        build::jitprof_for(self.workspace, platform, Profile::Shipped)
    }

    /// The library that other programs load: linked to glibc, as a static one cannot be loaded.
    fn agent(&self, platform: &Platform) -> Result<PathBuf> {
        let glibc = if platform.arch() == std::env::consts::ARCH {
            Platform::host()
        } else {
            Platform::of_triple(&format!("{}-unknown-linux-gnu", platform.arch()))?
        };
        if self.no_build {
            return self.left(&glibc, "libjitprof_agent.so");
        }
        build::agent_for(self.workspace, &glibc, Profile::Shipped)
    }

    /// What an earlier build has left.
    fn left(&self, platform: &Platform, name: &str) -> Result<PathBuf> {
        let file = platform.folder(&self.workspace.target).join(Profile::Shipped.folder()).join(name);
        if !file.is_file() {
            bail!("there is no {}; run without --no-build", file.display());
        }
        Ok(file)
    }

    /// The archive that is unpacked anywhere, with an installer.
    fn tarball(&self, name: &str, parts: &Parts) -> Result<PathBuf> {
        let folder = self.folder.join(name);
        create(&folder)?;
        let root = &self.workspace.root;
        copy(&[parts.binary.to_owned(), parts.agent.to_owned(), root.join("contrib/install.sh")], &folder)?;
        copy(&contents::documents(root)?, &folder)?;
        copy(&[root.join("contrib")], &folder)?;
        // It stands beside the program.
        let second = folder.join("contrib/install.sh");
        std::fs::remove_file(&second).with_context(|| format!("cannot remove {}", second.display()))?;
        for part in ["man", "completions"] {
            copy(&[parts.generated.join(part)], &folder)?;
        }
        archive::tar(&folder, self.time)
    }
}

/// Manual pages and completions, as the program makes them.
fn generate(jitprof: &Path, into: &Path) -> Result<()> {
    for (what, folder) in [("man", "man"), ("bash", "completions"), ("zsh", "completions"), ("fish", "completions")] {
        command::run(Command::new(jitprof).args(["generate", what, "--output"]).arg(into.join(folder)))?;
    }
    Ok(())
}

/// Leaves the program without symbols, which a debugger finds in the file apart by its name and checksum.
fn split(platform: &Platform, built: &Path, stripped: &Path, debug: &Path) -> Result<()> {
    let objcopy = platform.tool("objcopy");
    let mut keep = Command::new(&objcopy);
    command::run(keep.args(["--only-keep-debug", "--compress-debug-sections=zlib"]).arg(built).arg(debug))?;
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(debug);
    command::run(Command::new(&objcopy).arg("--strip-all").arg(link).arg(built).arg(stripped))
}

fn create(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}

fn copy(files: &[PathBuf], folder: &Path) -> Result<()> {
    command::run(Command::new("cp").arg("-r").args(files).arg(folder))
}

fn size(file: &Path) -> Result<u64> {
    Ok(std::fs::metadata(file).with_context(|| format!("cannot read {}", file.display()))?.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_machine_is_what_was_asked_for_and_this_one_comes_first() {
        for machine in MACHINES {
            let only = machines(Some(machine)).unwrap();
            assert_eq!(only.iter().map(Platform::arch).collect::<Vec<_>>(), [machine]);
            assert!(only[0].is_static());
        }
        assert_eq!(machines(None).unwrap()[0].arch(), std::env::consts::ARCH);
    }
}
