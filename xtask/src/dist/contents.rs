//! What a package installs, and where.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// What was built for a machine, and the sources.
pub(super) struct Parts<'a> {
    pub(super) root: &'a Path,
    pub(super) binary: &'a Path,
    pub(super) agent: &'a Path,
    /// `man/` and `completions/`.
    pub(super) generated: &'a Path,
}

/// What a package is called by.
pub(super) struct Package<'a> {
    pub(super) version: &'a str,
    /// The machine, as Rust calls it.
    pub(super) arch: &'a str,
    pub(super) time: u64,
}

/// What a package manager does with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    /// The user's changes outlive an upgrade.
    Configuration,
    Document,
}

/// A file that a package installs.
pub(super) struct Installed {
    /// Where, without the root's slash.
    pub(super) path: String,
    pub(super) bytes: Vec<u8>,
    pub(super) executable: bool,
    pub(super) kind: Kind,
}

/// One sentence for lists of packages, and what they show below it.
pub(super) const SUMMARY: &str = "Live CPU profiler for programs with JITs";
pub(super) const DESCRIPTION: &str = "jitprof attaches to a running Node, CPython, PHP, Erlang, wasmtime or Java process,\n\
samples it in the kernel by eBPF, and writes a flamegraph in which the kernel,\n\
native code and the functions that the JIT made have their names.\n\
The service (jitprof.service) is not started by the installation.";
pub(super) const HOMEPAGE: &str = "https://github.com/jitprof/jitprof";

/// All files, sorted by their paths.
pub(super) fn installed(parts: &Parts) -> Result<Vec<Installed>> {
    let mut files = vec![
        file("usr/bin/jitprof", parts.binary, Kind::Plain)?,
        file("usr/lib/jitprof/libjitprof_agent.so", parts.agent, Kind::Plain)?,
    ];
    let contrib = parts.root.join("contrib");
    let unit = contrib.join("systemd");
    files.push(file("usr/lib/systemd/system/jitprof.service", &unit.join("jitprof.service"), Kind::Plain)?);
    files.push(file("usr/lib/sysusers.d/jitprof.conf", &unit.join("sysusers.conf"), Kind::Plain)?);
    files.push(file("etc/jitprof/jitprof.toml", &contrib.join("jitprof.toml"), Kind::Configuration)?);
    let completions = parts.generated.join("completions");
    for (path, name) in [
        ("usr/share/bash-completion/completions/jitprof", "jitprof"),
        ("usr/share/fish/vendor_completions.d/jitprof.fish", "jitprof.fish"),
        // Where every distribution's zsh looks; Debian's has vendor-completions besides.
        ("usr/share/zsh/site-functions/_jitprof", "_jitprof"),
        ("usr/share/zsh/vendor-completions/_jitprof", "_jitprof"),
    ] {
        files.push(file(path, &completions.join(name), Kind::Plain)?);
    }
    for page in listed(&parts.generated.join("man"))? {
        let mut packed = file(&format!("usr/share/man/man1/{}.gz", name_of(&page)), &page, Kind::Document)?;
        packed.bytes = gzipped(&page)?;
        files.push(packed);
    }
    let doc = "usr/share/doc/jitprof";
    for document in documents(parts.root)?.into_iter().filter(|document| document.is_file()) {
        files.push(file(&format!("{doc}/{}", name_of(&document)), &document, Kind::Document)?);
    }
    files.push(copyright(parts.root, &format!("{doc}/copyright"))?);
    for file in &mut files {
        file.executable = file.path == "usr/bin/jitprof";
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// README, licences, changes and docs/.
pub(super) fn documents(root: &Path) -> Result<Vec<PathBuf>> {
    let is_document = |path: &PathBuf| {
        let name = name_of(path);
        matches!(name.as_str(), "README.md" | "CHANGELOG.md" | "docs")
            || name.starts_with("LICENSE")
            || name.starts_with("THIRD-PARTY")
    };
    Ok(listed(root)?.into_iter().filter(is_document).collect())
}

/// Debian wants one file with the licences.
fn copyright(root: &Path, path: &str) -> Result<Installed> {
    let mut bytes = Vec::new();
    for name in ["THIRD-PARTY.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        bytes.extend(read(&root.join(name))?);
        bytes.push(b'\n');
    }
    Ok(Installed { path: path.to_owned(), bytes, executable: false, kind: Kind::Document })
}

fn file(path: &str, source: &Path, kind: Kind) -> Result<Installed> {
    Ok(Installed { path: path.to_owned(), bytes: read(source)?, executable: false, kind })
}

fn gzipped(path: &Path) -> Result<Vec<u8>> {
    let output = Command::new("gzip").args(["-9nc"]).arg(path).output().context("cannot start gzip")?;
    anyhow::ensure!(output.status.success(), "gzip failed on {}", path.display());
    Ok(output.stdout)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn listed(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.with_context(|| format!("cannot list {}", folder.display()))?.path());
    }
    paths.sort();
    Ok(paths)
}

/// A program and a configuration, for tests.
#[cfg(test)]
pub(super) fn some_files() -> Vec<Installed> {
    let file = |path: &str, executable, kind| Installed {
        path: path.to_owned(),
        bytes: path.as_bytes().to_vec(),
        executable,
        kind,
    };
    vec![
        file("etc/jitprof/jitprof.toml", false, Kind::Configuration),
        file("usr/bin/jitprof", true, Kind::Plain),
        file("usr/share/doc/jitprof/README.md", false, Kind::Document),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_has_the_program_what_describes_it_and_what_the_service_needs() {
        let built = tempfile::tempdir().unwrap();
        let generated = built.path().join("generated");
        for (folder, names) in
            [("man", &["jitprof.1", "jitprof-serve.1"][..]), ("completions", &["jitprof", "_jitprof", "jitprof.fish"])]
        {
            std::fs::create_dir_all(generated.join(folder)).unwrap();
            for name in names {
                std::fs::write(generated.join(folder).join(name), *name).unwrap();
            }
        }
        let binary = built.path().join("jitprof");
        std::fs::write(&binary, "program").unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let parts = Parts { root: &root, binary: &binary, agent: &binary, generated: &generated };
        let files = installed(&parts).unwrap();
        let kind = |path: &str| files.iter().find(|file| file.path == path).map(|file| (file.executable, file.kind));
        assert_eq!(kind("usr/bin/jitprof"), Some((true, Kind::Plain)));
        assert_eq!(kind("etc/jitprof/jitprof.toml"), Some((false, Kind::Configuration)));
        for path in [
            "usr/lib/jitprof/libjitprof_agent.so",
            "usr/lib/systemd/system/jitprof.service",
            "usr/lib/sysusers.d/jitprof.conf",
            "usr/share/bash-completion/completions/jitprof",
            "usr/share/fish/vendor_completions.d/jitprof.fish",
            "usr/share/zsh/site-functions/_jitprof",
        ] {
            assert_eq!(kind(path), Some((false, Kind::Plain)), "{path}");
        }
        for path in [
            "usr/share/man/man1/jitprof.1.gz",
            "usr/share/man/man1/jitprof-serve.1.gz",
            "usr/share/doc/jitprof/README.md",
            "usr/share/doc/jitprof/copyright",
        ] {
            assert_eq!(kind(path), Some((false, Kind::Document)), "{path}");
        }
        // The unit starts the program that the package installs, with the configuration that it installs.
        let unit = files.iter().find(|file| file.path.ends_with("jitprof.service")).unwrap();
        let unit = String::from_utf8(unit.bytes.clone()).unwrap();
        assert!(unit.contains("ExecStart=/usr/bin/jitprof serve --config /etc/jitprof/jitprof.toml\n"), "{unit}");
    }
}
