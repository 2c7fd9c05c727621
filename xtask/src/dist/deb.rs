//! Debian's package: an `ar` of the format's version, what describes the package, and its files.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::archive;
use super::contents::{DESCRIPTION, HOMEPAGE, Installed, Kind, Package, SUMMARY};
use super::{create, scripts};
use crate::platform::debian_architecture;

/// Writes the package into a folder.
pub(super) fn write(package: &Package, files: &[Installed], folder: &Path) -> Result<PathBuf> {
    let arch = debian_architecture(package.arch);
    let path = folder.join(format!("jitprof_{}_{arch}.deb", package.version));
    let scratch = folder.join("deb.parts");
    let (data, control) = (scratch.join("data"), scratch.join("control"));
    for file in files {
        put(&data.join(&file.path), &file.bytes, file.executable)?;
    }
    put(&control.join("control"), description(package, files).as_bytes(), false)?;
    let configuration = files.iter().filter(|file| file.kind == Kind::Configuration);
    put(
        &control.join("conffiles"),
        configuration.map(|file| format!("/{}\n", file.path)).collect::<String>().as_bytes(),
        false,
    )?;
    for (name, script) in scripts::debian() {
        put(&control.join(name), script.as_bytes(), true)?;
    }
    let mut members = vec![("debian-binary".to_owned(), b"2.0\n".to_vec())];
    for (part, folder) in [("control", &control), ("data", &data)] {
        let name = format!("{part}.tar.xz");
        let archive = scratch.join(&name);
        archive::tar_inside(folder, &archive, package.time)?;
        members.push((name, std::fs::read(&archive).with_context(|| format!("cannot read {}", archive.display()))?));
    }
    std::fs::write(&path, ar(&members, package.time)).with_context(|| format!("cannot write {}", path.display()))?;
    std::fs::remove_dir_all(&scratch).with_context(|| format!("cannot remove {}", scratch.display()))?;
    Ok(path)
}

fn description(package: &Package, files: &[Installed]) -> String {
    let kib: usize = files.iter().map(|file| file.bytes.len().div_ceil(1024)).sum();
    let mut text = format!(
        "Package: jitprof\nVersion: {}\nArchitecture: {}\nMaintainer: jitprof <{HOMEPAGE}>\nInstalled-Size: {kib}\n\
         Section: devel\nPriority: optional\nHomepage: {HOMEPAGE}\nSuggests: ca-certificates\nDescription: {SUMMARY}\n",
        package.version,
        debian_architecture(package.arch),
    );
    for line in DESCRIPTION.lines() {
        // To a string: cannot fail.
        writeln!(text, " {line}").ok();
    }
    text
}

/// The old archive format of Unix, with a header of 60 bytes before each member.
fn ar(members: &[(String, Vec<u8>)], time: u64) -> Vec<u8> {
    let mut bytes = b"!<arch>\n".to_vec();
    for (name, content) in members {
        bytes.extend(format!("{name:<16}{time:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, "100644", content.len()).bytes());
        bytes.extend(content);
        if content.len() % 2 == 1 {
            bytes.push(b'\n');
        }
    }
    bytes
}

fn put(path: &Path, bytes: &[u8], executable: bool) -> Result<()> {
    create(path.parent().context("a file of a package stands nowhere")?)?;
    let mode = if executable { 0o755 } else { 0o644 };
    std::fs::write(path, bytes)
        .and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::dist::contents::some_files;

    #[test]
    fn members_start_at_even_places_behind_headers_of_sixty_bytes() {
        let bytes = ar(&[("odd".to_owned(), b"abc".to_vec()), ("even".to_owned(), b"abcd".to_vec())], 7);
        assert_eq!(bytes.len(), 8 + 60 + 4 + 60 + 4);
        assert_eq!(&bytes[8..24], b"odd             ");
        assert_eq!(&bytes[66..68], b"`\n");
        assert_eq!(&bytes[72..76], b"even");
    }

    #[test]
    fn a_package_is_the_same_twice_and_dpkg_reads_it() {
        let scratch = tempfile::tempdir().unwrap();
        let package = Package { version: "1.2.3", arch: "x86_64", time: 1_700_000_000 };
        let files = some_files();
        let first = write(&package, &files, scratch.path()).unwrap();
        assert_eq!(first.file_name().unwrap(), "jitprof_1.2.3_amd64.deb");
        let bytes = std::fs::read(&first).unwrap();
        assert_eq!(std::fs::read(write(&package, &files, scratch.path()).unwrap()).unwrap(), bytes);

        let Ok(listed) = Command::new("dpkg-deb").arg("--contents").arg(&first).output() else {
            // A distribution without dpkg.
            return;
        };
        let listed = String::from_utf8(listed.stdout).unwrap();
        let has = |rights: &str, path: &str| {
            let is_it = |line: &&str| line.starts_with(rights) && line.contains("root/root") && line.ends_with(path);
            listed.lines().any(|line| is_it(&line))
        };
        assert!(has("-rwxr-xr-x", "./usr/bin/jitprof"), "{listed}");
        assert!(has("-rw-r--r--", "./etc/jitprof/jitprof.toml"), "{listed}");
        let field = |name: &str| {
            let output = Command::new("dpkg-deb").arg("--field").arg(&first).arg(name).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        assert_eq!(
            (field("Package"), field("Version"), field("Architecture")),
            ("jitprof".into(), "1.2.3".into(), "amd64".into())
        );
        assert!(field("Description").starts_with(SUMMARY));
        let control = Command::new("dpkg-deb").arg("--info").arg(&first).arg("conffiles").output().unwrap();
        assert_eq!(String::from_utf8(control.stdout).unwrap(), "/etc/jitprof/jitprof.toml\n");
    }
}
