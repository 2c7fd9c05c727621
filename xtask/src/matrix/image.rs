//! The initramfs: three programs and the libraries that they are linked to.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use cpio::newc::Builder;

use super::Programs;
use crate::command;

/// Folders that the init mounts something on, besides those of the files.
const MOUNT_POINTS: [&str; 4] = ["proc", "sys", "dev", "tmp"];
const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// Writes the archive, not compressed: that would cost an emulated machine more time than it saves.
pub(super) fn make(programs: &Programs, archive: &Path) -> Result<()> {
    let stripped = archive.with_extension("jitprof");
    let mut files = vec![
        ("init".to_owned(), programs.guest.clone()),
        ("bin/jitprof".to_owned(), without_debug_information(&programs.jitprof, &stripped)?),
        ("bin/jitdemo".to_owned(), programs.jitdemo.clone()),
    ];
    let mut libraries = BTreeSet::new();
    for (_, program) in &files {
        libraries.extend(linked_to(program)?);
    }
    files.extend(libraries.into_iter().map(|path| (path.to_string_lossy().trim_start_matches('/').to_owned(), path)));

    let mut folders: BTreeSet<PathBuf> = MOUNT_POINTS.iter().map(PathBuf::from).collect();
    for (name, _) in &files {
        // Sorted, so that each follows the one that it is in.
        folders.extend(Path::new(name).ancestors().skip(1).filter(|a| !a.as_os_str().is_empty()).map(Path::to_owned));
    }
    let file = File::create(archive).with_context(|| format!("cannot create {}", archive.display()))?;
    let mut out = BufWriter::new(file);
    for (number, folder) in (1..).zip(&folders) {
        let entry = Builder::new(&folder.to_string_lossy()).mode(FOLDER).ino(number);
        entry.write(&mut out, 0).finish()?;
    }
    for (number, (name, path)) in (1000..).zip(&files) {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let size = u32::try_from(bytes.len()).with_context(|| format!("{} is too large", path.display()))?;
        let mut entry = Builder::new(name).mode(PROGRAM).ino(number).write(&mut out, size);
        entry.write_all(&bytes)?;
        entry.finish()?;
    }
    cpio::newc::trailer(&mut out)?.flush().with_context(|| format!("cannot write {}", archive.display()))
}

/// A copy that is a fifth of the size, if there is a strip that can: what a machine does not have to hold it need not
/// be given, and nobody looks at jitprof's own symbols there.
fn without_debug_information(program: &Path, copy: &Path) -> Result<PathBuf> {
    if command::succeeds(Command::new("strip").arg("-o").arg(copy).arg(program)) {
        return Ok(copy.to_owned());
    }
    Ok(program.to_owned())
}

/// The libraries that a program loads, as absolute paths; none for one that is linked statically.
fn linked_to(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("cannot start ldd")?;
    // ldd fails for a program without libraries, and for one of another architecture, which is such a program here.
    Ok(libraries(&String::from_utf8_lossy(&output.stdout)))
}

fn libraries(said: &str) -> Vec<PathBuf> {
    let words = said.lines().flat_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    words.map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_their_loader_are_read_from_what_ldd_says() {
        let said =
            "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)\n\t/lib64/ld.so.2 (0x7f)\n";
        assert_eq!(libraries(said), [PathBuf::from("/lib/x/libc.so.6"), PathBuf::from("/lib64/ld.so.2")]);
        assert!(libraries("\tstatically linked\n").is_empty());
    }
}
