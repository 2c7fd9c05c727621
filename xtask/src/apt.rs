//! apt with sources, lists and downloads of its own: what it fetches is unpacked, not installed. The system's apt is left
//! alone, and no root is needed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command;

/// Debian's own key ring, which the packages of all suites are signed with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A mirror and a suite that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// The mirror's address.
    pub(crate) mirror: String,
    /// The suite by its code name, such as bookworm-security.
    pub(crate) suite: String,
}

/// A configuration in a folder, which goes with [`remove`](Self::remove).
pub(crate) struct Apt {
    folder: PathBuf,
}

impl Apt {
    /// Packages of these sources for an architecture. `installed` is what dpkg's status file would say of packages that
    /// need not be fetched: they count as there.
    pub(crate) fn new(folder: PathBuf, arch: &str, sources: &[Source], installed: &str) -> Result<Self> {
        for part in ["lists/partial", "cache/archives/partial", "sources", "deb", "preferences"] {
            std::fs::create_dir_all(folder.join(part))
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let at = folder.display();
        let line = |source: &Source| {
            format!("deb [arch={arch} signed-by={KEYRING}] {} {} main\n", source.mirror, source.suite)
        };
        let configuration = format!(
            "Dir::Etc::sourcelist \"/dev/null\"; Dir::Etc::sourceparts \"{at}/sources\";\n\
             Dir::Etc::preferencesparts \"{at}/preferences\"; Dir::State::Lists \"{at}/lists\";\n\
             Dir::State::status \"{at}/status\"; Dir::Cache \"{at}/cache\";\n\
             Acquire::Languages \"none\"; APT::Sandbox::User \"root\";\n\
             APT::Architecture \"{arch}\"; APT::Architectures {{ \"{arch}\"; }};\n"
        );
        let files = [
            ("status", installed.to_owned()),
            ("sources/own.list", sources.iter().map(line).collect()),
            ("apt.conf", configuration),
        ];
        for (name, text) in files {
            let file = folder.join(name);
            std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        let apt = Self { folder };
        command::fetch(apt.command("apt-get").args(["update", "-qq"]))?;
        Ok(apt)
    }

    /// A program of apt's that heeds the configuration.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.folder.join("apt.conf"));
        command
    }

    /// Downloads packages, each a name or `name=version`, and unpacks them all into one folder.
    pub(crate) fn unpack(&self, packages: &[String], into: &Path) -> Result<()> {
        std::fs::create_dir_all(into).with_context(|| format!("cannot create {}", into.display()))?;
        let deb = self.folder.join("deb");
        command::fetch(self.command("apt-get").args(["download", "-qq"]).args(packages).current_dir(&deb))?;
        for entry in std::fs::read_dir(&deb).with_context(|| format!("cannot list {}", deb.display()))? {
            command::output(Command::new("dpkg-deb").arg("--extract").arg(entry?.path()).arg(into))?;
        }
        Ok(())
    }

    /// What it would install for these packages: they and what they depend on, each as `name=version`.
    pub(crate) fn plan(&self, packages: &[&str]) -> Result<Vec<String>> {
        let mut plan = self.command("apt-get");
        plan.args(["install", "--simulate", "--no-install-recommends"]).args(packages);
        let planned = planned(&command::output(&mut plan)?);
        if planned.is_empty() {
            bail!("apt-get would install nothing for {}", packages.join(" "));
        }
        Ok(planned)
    }

    /// Takes away all that it has made.
    pub(crate) fn remove(self) -> Result<()> {
        std::fs::remove_dir_all(&self.folder).with_context(|| format!("cannot remove {}", self.folder.display()))
    }
}

/// Where this system's apt has Debian's packages from.
pub(crate) fn sources_of_this_system() -> Result<Vec<Source>> {
    let mut targets = Command::new("apt-get");
    targets.env_remove("APT_CONFIG").args(["indextargets", "--format", "$(ORIGIN)|$(REPO_URI)|$(CODENAME)"]);
    let sources = sources(&command::output(&mut targets)?);
    if sources.is_empty() {
        bail!("this system's apt knows no Debian mirror; run `apt-get update` on a Debian system");
    }
    Ok(sources)
}

/// Packages and versions of lines such as `Inst libfdt1 (1.6.1-4+b1 Debian:12.15/oldstable [amd64])`; behind the name
/// stands the version that is there in brackets, if any is.
fn planned(said: &str) -> Vec<String> {
    let install = |line: &str| {
        let (name, rest) = line.strip_prefix("Inst ")?.split_once(' ')?;
        let version = rest.split_once('(')?.1.split_whitespace().next()?;
        Some(format!("{name}={version}"))
    };
    said.lines().filter_map(install).collect()
}

fn sources(targets: &str) -> Vec<Source> {
    let mut sources: Vec<Source> = Vec::new();
    for line in targets.lines() {
        if let Some((mirror, suite)) = line.strip_prefix("Debian|").and_then(|rest| rest.split_once('|')) {
            let source = Source { mirror: mirror.to_owned(), suite: suite.to_owned() };
            if !sources.contains(&source) {
                sources.push(source);
            }
        }
    }
    sources
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debians_sources_are_taken_once_each() {
        let said = "Debian|http://a/debian/|bookworm\nDebian|http://a/debian/|bookworm\nOther|http://b/|bookworm\n\
                    Debian|http://a/debian-security/|bookworm-security\n";
        let suites: Vec<String> = sources(said).into_iter().map(|source| source.suite).collect();
        assert_eq!(suites, ["bookworm", "bookworm-security"]);
    }

    #[test]
    fn what_apt_would_install_is_taken_with_its_version() {
        let said = "NOTE: This is only a simulation!\nRemv qemu-utils [1:10.0.2~bpo12+1]\n\
                    Inst libfdt1 (1.6.1-4+b1 Debian:12.15/oldstable [amd64])\n\
                    Inst libglib2.0-0 [2.74.6-2] (2.74.6-2+deb12u6 Debian:12.15/oldstable [amd64])\nConf libfdt1 (1.6.1)\n";
        assert_eq!(planned(said), ["libfdt1=1.6.1-4+b1", "libglib2.0-0=2.74.6-2+deb12u6"]);
    }
}
