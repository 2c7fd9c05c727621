//! The kernels, and where they come from: Debian's packages for virtual machines, which have all that is needed built
//! in, so that no modules are.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{AARCH64, Arch, X86_64};
use crate::apt::{Apt, Source, sources_of_this_system};
use crate::command;

/// A kernel of the matrix.
pub(crate) struct Kernel {
    /// What it is chosen by: the version that the suite keeps, or the suite where versions come and go. The machine
    /// itself says which kernel it is.
    pub(crate) name: &'static str,
    /// The Debian suite that has it.
    suite: &'static str,
    /// Its architecture.
    pub(super) arch: &'static Arch,
    /// Memory of the machine in MiB.
    pub(super) memory_mib: u32,
    /// Whether it is tried by each `cargo xtask test`: the oldest, the one that Debian 12 runs, the newest.
    pub(super) in_short_form: bool,
}

const fn x86_64(name: &'static str, suite: &'static str, memory_mib: u32, in_short_form: bool) -> Kernel {
    Kernel { name, suite, arch: &X86_64, memory_mib, in_short_form }
}

const fn arm64(name: &'static str, suite: &'static str) -> Kernel {
    Kernel { name, suite, arch: &AARCH64, memory_mib: 1024, in_short_form: false }
}

/// All of them. No package of Debian has 5.15.
pub(crate) static KERNELS: [Kernel; 6] = [
    x86_64("5.10", "bullseye-security", 1024, true),
    x86_64("6.1", "bookworm-security", 1024, true),
    x86_64("6.12", "trixie-security", 1024, false),
    x86_64("backports", "trixie-backports", 1536, true),
    arm64("arm64-6.1", "bookworm-security"),
    arm64("arm64-6.12", "trixie-security"),
];

impl Kernel {
    /// Where its image is in the folder.
    pub(super) fn image(&self, folder: &Path) -> PathBuf {
        folder.join(format!("vmlinuz-{}-{}", self.suite, self.arch.debian))
    }

    /// Downloads and unpacks the newest package of the suite, unless there is an image from an earlier run.
    pub(super) fn fetch(&self, folder: &Path) -> Result<()> {
        let image = self.image(folder);
        if image.is_file() {
            return Ok(());
        }
        command::progress(&format!("fetching kernel {}", self.name));
        let own = folder.join(format!("apt-{}-{}", self.suite, self.arch.debian));
        let source = Source { mirror: mirror(self.suite.ends_with("-security"))?, suite: self.suite.to_owned() };
        let unpacked = own.join("unpacked");
        let apt = Apt::new(own, self.arch.debian, &[source], "")?;
        let package = newest(&apt, self.arch.debian)?;
        apt.unpack(std::slice::from_ref(&package), &unpacked)?;
        let found = find(&unpacked, "vmlinuz")?.with_context(|| format!("{package} has no vmlinuz"))?;
        std::fs::rename(&found, &image).with_context(|| format!("cannot move {}", found.display()))?;
        apt.remove()
    }
}

/// The package with the suite's newest kernel image.
fn newest(apt: &Apt, arch: &str) -> Result<String> {
    let image = dependency(apt, &format!("linux-image-cloud-{arch}"), "linux-image-")?;
    let image = image.with_context(|| format!("the suite has no linux-image-cloud-{arch}"))?;
    // From 7.x on the image is in a package of its own, beside one with modules.
    Ok(dependency(apt, &image, "linux-binary-")?.unwrap_or(image))
}

fn dependency(apt: &Apt, package: &str, prefix: &str) -> Result<Option<String>> {
    let said = command::output(apt.command("apt-cache").args(["depends", package]))?;
    let names = said.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    Ok(names.filter(|name| name.starts_with(prefix)).map(str::to_owned).next())
}

/// The mirror that this system's apt uses, for security updates or for the rest.
fn mirror(security: bool) -> Result<String> {
    let mut sources = sources_of_this_system()?.into_iter();
    let found = sources.find(|source| source.suite.ends_with("-security") == security);
    found.map(|source| source.mirror).context("this system's apt has no mirror of Debian's security updates")
}

/// A file below the folder whose name begins so.
fn find(folder: &Path, prefix: &str) -> Result<Option<PathBuf>> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        let (kind, name) = (entry.file_type()?, entry.file_name());
        if kind.is_dir() {
            if let Some(found) = find(&entry.path(), prefix)? {
                return Ok(Some(found));
            }
        } else if kind.is_file() && name.to_string_lossy().starts_with(prefix) {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}
