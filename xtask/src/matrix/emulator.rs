//! The emulator: the one in `PATH`, or Debian's package, unpacked beside the kernels.
//!
//! It is not installed. All packages of qemu's must be of one version: installing the emulator of a release on a machine
//! whose qemu-utils are from backports takes these away. Unpacked it finds its firmware and modules from where it lies, and
//! the libraries that the system does not have lie beside it (a download of 17 MB).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::Arch;
use crate::apt::{Apt, sources_of_this_system};
use crate::command;

/// What dpkg says is installed.
const STATUS: &str = "/var/lib/dpkg/status";

/// Where an emulator is.
pub(super) struct Emulator {
    program: PathBuf,
    /// Folders with libraries that the system may not have.
    libraries: Vec<PathBuf>,
}

impl Emulator {
    /// The one in `PATH`, or the one that was unpacked.
    pub(super) fn find(arch: &Arch, folder: &Path) -> Option<Self> {
        if let Some(program) = command::in_path(arch.qemu) {
            return Some(Self { program, libraries: Vec::new() });
        }
        let root = unpacked(arch, folder);
        let program = root.join("usr/bin").join(arch.qemu);
        let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
        let libraries = ["usr/lib", "lib"].map(|folder| root.join(folder).join(&triple)).into();
        program.is_file().then_some(Self { program, libraries })
    }

    /// Makes sure that there is one.
    pub(super) fn prepare(arch: &Arch, folder: &Path) -> Result<()> {
        if Self::find(arch, folder).is_some() {
            return Ok(());
        }
        fetch(arch, folder).with_context(|| {
            format!(
                "there is no `{}`; install {}, or leave the virtual machines out with --skip kernels=REASON",
                arch.qemu, arch.package
            )
        })
    }

    /// A command that starts it.
    pub(super) fn command(&self) -> Result<Command> {
        let mut command = Command::new(&self.program);
        if !self.libraries.is_empty() {
            let paths = std::env::join_paths(&self.libraries).context("a folder with a colon in its name")?;
            command.env("LD_LIBRARY_PATH", paths);
        }
        Ok(command)
    }
}

fn unpacked(arch: &Arch, folder: &Path) -> PathBuf {
    folder.join(arch.package)
}

/// Downloads the package and all that the system does not have of what it depends on.
fn fetch(arch: &Arch, folder: &Path) -> Result<()> {
    command::progress(&format!("fetching {}", arch.package));
    let installed = std::fs::read_to_string(STATUS).with_context(|| format!("cannot read {STATUS}"))?;
    let debian = command::output(Command::new("dpkg").arg("--print-architecture"))?;
    let sources = sources_of_this_system()?;
    let apt = Apt::new(folder.join("apt-qemu"), debian.trim(), &sources, &without_qemu(&installed))?;
    let packages = apt.plan(&[arch.package])?;
    let unfinished = folder.join("qemu-unfinished");
    if unfinished.exists() {
        std::fs::remove_dir_all(&unfinished).with_context(|| format!("cannot remove {}", unfinished.display()))?;
    }
    apt.unpack(&packages, &unfinished)?;
    std::fs::rename(&unfinished, unpacked(arch, folder))
        .with_context(|| format!("cannot rename {}", unfinished.display()))?;
    apt.remove()
}

/// dpkg's status file without qemu's own packages, whose versions would have to agree.
fn without_qemu(status: &str) -> String {
    let of_qemu = |paragraph: &str| {
        paragraph.lines().any(|line| {
            let source = line.strip_prefix("Source: ").or_else(|| line.strip_prefix("Package: "));
            source.is_some_and(|source| source == "qemu" || source.starts_with("qemu ") || source.starts_with("qemu-"))
        })
    };
    status.split("\n\n").filter(|paragraph| !of_qemu(paragraph)).collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qemus_own_packages_count_as_not_installed() {
        let status = "Package: libc6\nStatus: install ok installed\n\nPackage: qemu-utils\nSource: qemu\nVersion: 1:10.0\n\n\
                      Package: vim\n\nPackage: ivshmem-tools\nSource: qemu (1:10.0.2)\n";
        assert_eq!(without_qemu(status), "Package: libc6\nStatus: install ok installed\n\nPackage: vim");
    }
}
