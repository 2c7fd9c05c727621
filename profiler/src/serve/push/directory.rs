//! A pprof file for each window in a directory from which somebody else takes it away.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::queue::Payload;

/// Writes the window under a temporary name and renames it when it is complete, so whoever watches the directory for
/// `*.pb.gz` sees whole files only.
pub(super) fn write(directory: &Path, host: &str, payload: &Payload) -> io::Result<()> {
    let name = format!("jitprof-{}-{}.pb.gz", file_name(host), payload.start_ms);
    let temporary = directory.join(format!(".{name}.partial"));
    let result = write_new(&temporary, &payload.body).and_then(|()| fs::rename(&temporary, directory.join(&name)));
    if result.is_err()
        && let Err(error) = fs::remove_file(&temporary)
    {
        tracing::debug!("{}: {error}", temporary.display());
    }
    result
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // What an earlier try has left goes first; a link in its place goes, too, and is never written through.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o640).open(path)?;
    file.write_all(bytes)
}

/// A host's name as part of a file's name.
fn file_name(host: &str) -> String {
    let kept = |letter: char| if letter.is_ascii_alphanumeric() || ".-_".contains(letter) { letter } else { '_' };
    host.chars().take(64).map(kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_whole_or_not_there_and_a_link_is_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let payload = Payload { body: b"abc".as_slice().into(), start_ms: 7, tries: 0 };
        let victim = folder.path().join("victim");
        fs::write(&victim, "keep").unwrap();
        std::os::unix::fs::symlink(&victim, folder.path().join(".jitprof-a_b-7.pb.gz.partial")).unwrap();
        write(folder.path(), "a/b", &payload).unwrap();
        assert_eq!(fs::read(folder.path().join("jitprof-a_b-7.pb.gz")).unwrap(), b"abc");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "keep");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        assert!(write(&folder.path().join("gone"), "h", &payload).is_err());
    }
}
