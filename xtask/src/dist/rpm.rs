//! The RPM.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rpm::{BuildConfig, CompressionWithLevel, FileOptions, PackageBuilder};

use super::contents::{DESCRIPTION, HOMEPAGE, Installed, Kind, Package, SUMMARY};
use super::scripts;

/// Of xz, which every rpm reads and which packs the program 5 % smaller than zstd at its 19th.
const LEVEL: u32 = 6;

/// Writes the package into a folder.
pub(super) fn write(package: &Package, files: &[Installed], folder: &Path) -> Result<PathBuf> {
    let path = folder.join(format!("jitprof-{}-1.{}.rpm", package.version, package.arch));
    build(package, files)
        .and_then(|package| package.write_file(&path))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn build(package: &Package, files: &[Installed]) -> Result<rpm::Package, rpm::Error> {
    let time = u32::try_from(package.time).unwrap_or(u32::MAX);
    let config = BuildConfig::v4().compression(CompressionWithLevel::Xz(LEVEL)).source_date(time);
    let mut builder = PackageBuilder::new("jitprof", package.version, "MIT OR Apache-2.0", package.arch, SUMMARY);
    let [installed, removing, removed] = scripts::rpm();
    builder
        .using_config(config)
        .release("1")
        .url(HOMEPAGE)
        .description(DESCRIPTION)
        .build_host("localhost")
        .post_install_script(installed)
        .pre_uninstall_script(removing)
        .post_uninstall_script(removed);
    for folder in own_folders(files) {
        builder.with_dir_entry(FileOptions::dir(format!("/{}", folder.display())).permissions(0o755))?;
    }
    for file in files {
        let options =
            FileOptions::new(format!("/{}", file.path)).permissions(if file.executable { 0o755 } else { 0o644 });
        let options = match file.kind {
            Kind::Plain => options,
            Kind::Configuration => options.config().noreplace(),
            Kind::Document => options.doc(),
        };
        builder.with_file_contents(file.bytes.clone(), options)?;
    }
    builder.build()
}

/// The folders that are nobody else's: rpm removes those alone that a package has named.
fn own_folders(files: &[Installed]) -> BTreeSet<&Path> {
    let folders = files.iter().flat_map(|file| Path::new(&file.path).ancestors().skip(1));
    folders.filter(|folder| folder.file_name().is_some_and(|name| name == "jitprof")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::contents::some_files;

    #[test]
    fn a_package_is_the_same_twice_and_has_its_files_with_their_rights() {
        let scratch = tempfile::tempdir().unwrap();
        let package = Package { version: "1.2.3", arch: "aarch64", time: 1_700_000_000 };
        let files = some_files();
        let first = write(&package, &files, scratch.path()).unwrap();
        assert_eq!(first.file_name().unwrap(), "jitprof-1.2.3-1.aarch64.rpm");
        let bytes = std::fs::read(&first).unwrap();
        assert_eq!(std::fs::read(write(&package, &files, scratch.path()).unwrap()).unwrap(), bytes);

        let read = rpm::Package::open(&first).unwrap();
        assert_eq!(read.metadata.get_version().unwrap(), "1.2.3");
        assert_eq!(read.metadata.get_arch().unwrap(), "aarch64");
        let entries = read.metadata.get_file_entries().unwrap();
        let mode =
            |path: &str| entries.iter().find(|entry| entry.path() == Path::new(path)).unwrap().mode().permissions();
        assert_eq!(mode("/usr/bin/jitprof"), 0o755);
        assert_eq!(mode("/etc/jitprof/jitprof.toml"), 0o644);
        // Its own folders go with it; others' are not its.
        let own = ["/etc/jitprof", "/usr/share/doc/jitprof"];
        assert_eq!(own.map(mode), [0o755; 2]);
        assert_eq!(entries.len(), files.len() + own.len());
    }
}
