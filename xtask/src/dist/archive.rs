//! Archives that are the same, byte for byte, whenever they are made of the same files.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;

/// In one thread: with several the result depends on their number. gzip's archives would be larger by two fifths.
const COMPRESS: &str = "xz -6 --threads=1";

/// Packs a folder under its own name, beside it.
pub(super) fn tar(folder: &Path, time: u64) -> Result<PathBuf> {
    let name = folder.file_name().context("the folder has no name")?;
    let mut archive = folder.as_os_str().to_owned();
    archive.push(".tar.xz");
    let archive = PathBuf::from(archive);
    let parent = folder.parent().context("the folder stands nowhere")?;
    pack(parent, name.as_ref(), &archive, time)?;
    Ok(archive)
}

/// Packs what is in a folder, as `./NAME`, into `archive`.
pub(super) fn tar_inside(folder: &Path, archive: &Path, time: u64) -> Result<()> {
    pack(folder, ".".as_ref(), archive, time)
}

/// One time for all files, all files root's, sorted.
fn pack(folder: &Path, what: &Path, archive: &Path, time: u64) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.current_dir(folder).args(["--sort=name", "--owner=root:0", "--group=root:0", "--format=gnu"]);
    tar.arg("--mode=go-w").arg(format!("--mtime=@{time}"));
    tar.args(["--use-compress-program", COMPRESS, "-cf"]).arg(archive).arg(what);
    command::run(&mut tar)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_files_give_the_same_archive_whenever_they_were_written() {
        let scratch = tempfile::tempdir().unwrap();
        let archives: Vec<Vec<u8>> = ["first", "second"]
            .iter()
            .map(|run| {
                let folder = scratch.path().join(run).join("thing-1");
                std::fs::create_dir_all(&folder).unwrap();
                // The other way round, and with other rights for the group.
                let mut names = ["b", "a"];
                if *run == "second" {
                    names.reverse();
                }
                for name in names {
                    std::fs::write(folder.join(name), name).unwrap();
                    let mode = if *run == "second" { 0o664 } else { 0o644 };
                    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
                    std::fs::set_permissions(folder.join(name), mode).unwrap();
                    std::fs::File::options()
                        .write(true)
                        .open(folder.join(name))
                        .unwrap()
                        .set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(run.len() as u64))
                        .unwrap();
                }
                std::fs::read(tar(&folder, 1_700_000_000).unwrap()).unwrap()
            })
            .collect();
        assert_eq!(archives[0], archives[1]);
        let listed = Command::new("tar").arg("-tf").arg(scratch.path().join("first/thing-1.tar.xz")).output().unwrap();
        assert_eq!(String::from_utf8(listed.stdout).unwrap(), "thing-1/\nthing-1/a\nthing-1/b\n");
    }
}
