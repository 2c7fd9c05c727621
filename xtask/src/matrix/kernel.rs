//! The kernels, and where they come from: Debian's packages for virtual machines, which have all that is needed built
//! in, so that no modules are.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{AARCH64, Arch, X86_64};
use crate::command;

/// A kernel of the matrix.
pub(crate) struct Kernel {
    /// Its version, as one says it.
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
    x86_64("7.2", "trixie-backports", 1536, true),
    arm64("arm64-6.1", "bookworm-security"),
    arm64("arm64-6.12", "trixie-security"),
];

/// Debian's own key ring, which the packages of all suites are signed with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

impl Kernel {
    /// Where its image is in the folder.
    pub(super) fn image(&self, folder: &Path) -> PathBuf {
        folder.join(format!("vmlinuz-{}-{}", self.suite, self.arch.debian))
    }

    /// Downloads and unpacks the newest package of the suite, unless there is an image from an earlier run. With a
    /// configuration of apt's own in the folder: the system's is left alone, and no root is needed.
    pub(super) fn fetch(&self, folder: &Path) -> Result<()> {
        let image = self.image(folder);
        if image.is_file() {
            return Ok(());
        }
        command::progress(&format!("fetching kernel {}", self.name));
        let apt = Apt::new(folder.join(format!("apt-{}-{}", self.suite, self.arch.debian)), self)?;
        let package = apt.package(self.arch.debian)?;
        let deb = apt.download(&package)?;
        let unpacked = apt.folder.join("unpacked");
        std::fs::create_dir_all(&unpacked)?;
        let mut unpack = Command::new("dpkg-deb");
        command::run(unpack.arg("--extract").arg(&deb).arg(&unpacked))?;
        let found = find(&unpacked, "vmlinuz")?.with_context(|| format!("{package} has no vmlinuz"))?;
        std::fs::rename(&found, &image).with_context(|| format!("cannot move {}", found.display()))?;
        std::fs::remove_dir_all(&apt.folder).with_context(|| format!("cannot remove {}", apt.folder.display()))
    }
}

/// apt with lists, sources and downloads of its own.
struct Apt {
    folder: PathBuf,
}

impl Apt {
    fn new(folder: PathBuf, kernel: &Kernel) -> Result<Self> {
        for part in ["lists/partial", "cache/archives/partial", "sources", "deb", "preferences"] {
            std::fs::create_dir_all(folder.join(part))
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let (suite, arch, at) = (kernel.suite, kernel.arch.debian, folder.display());
        let mirror = mirror(suite.ends_with("-security"))?;
        std::fs::write(folder.join("status"), "")?;
        std::fs::write(
            folder.join("sources/kernel.list"),
            format!("deb [arch={arch} signed-by={KEYRING}] {mirror} {suite} main\n"),
        )?;
        let configuration = format!(
            "Dir::Etc::sourcelist \"/dev/null\"; Dir::Etc::sourceparts \"{at}/sources\";\n\
             Dir::Etc::preferencesparts \"{at}/preferences\"; Dir::State::Lists \"{at}/lists\";\n\
             Dir::State::status \"{at}/status\"; Dir::Cache \"{at}/cache\";\n\
             Acquire::Languages \"none\"; APT::Sandbox::User \"root\";\n\
             APT::Architecture \"{arch}\"; APT::Architectures {{ \"{arch}\"; }};\n"
        );
        std::fs::write(folder.join("apt.conf"), configuration)?;
        let apt = Self { folder };
        command::run(apt.command("apt-get").args(["update", "-qq"]))?;
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.folder.join("apt.conf"));
        command
    }

    /// The package with the newest kernel's image.
    fn package(&self, arch: &str) -> Result<String> {
        let image = self.dependency(&format!("linux-image-cloud-{arch}"), "linux-image-")?;
        let image = image.with_context(|| format!("the suite has no linux-image-cloud-{arch}"))?;
        // From 7.x on the image is in a package of its own, beside one with modules.
        Ok(self.dependency(&image, "linux-binary-")?.unwrap_or(image))
    }

    fn dependency(&self, package: &str, prefix: &str) -> Result<Option<String>> {
        let said = command::output(self.command("apt-cache").args(["depends", package]))?;
        let names = said.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        Ok(names.filter(|name| name.starts_with(prefix)).map(str::to_owned).next())
    }

    fn download(&self, package: &str) -> Result<PathBuf> {
        let deb = self.folder.join("deb");
        command::run(self.command("apt-get").args(["download", "-qq", package]).current_dir(&deb))?;
        find(&deb, "")?.with_context(|| format!("apt-get downloaded nothing for {package}"))
    }
}

/// The mirror that this system's apt uses, for security updates or for the rest.
fn mirror(security: bool) -> Result<String> {
    let mut targets = Command::new("apt-get");
    targets.env_remove("APT_CONFIG").args(["indextargets", "--format", "$(ORIGIN)|$(REPO_URI)|$(SUITE)"]);
    let said = command::output(&mut targets)?;
    let mut lines = said.lines().filter_map(|line| line.strip_prefix("Debian|")?.split_once('|'));
    let found = lines.find(|(_, suite)| suite.ends_with("-security") == security);
    let Some((mirror, _)) = found else {
        bail!("this system's apt knows no Debian mirror; run `apt-get update` on a Debian system");
    };
    Ok(mirror.to_owned())
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
