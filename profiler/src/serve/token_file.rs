//! The token of this start, in a file for those who may become the service's user.
//!
//! A loopback address has no owner: without a token each user of the machine could see what only root may.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::http::Token;

/// Where it lies for root.
const OF_ROOT: &str = "/run/jitprof";

/// A token's file. It is removed with the value.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    /// Held open, so that no other file gets its inode.
    file: File,
}

impl TokenFile {
    /// Writes the token of the service at `port`.
    pub(super) fn write(token: &Token, port: u16) -> io::Result<Self> {
        let directory = directories().next().unwrap_or_else(|| OF_ROOT.into());
        Self::write_into(&directory, token, port)
    }

    fn write_into(directory: &Path, token: &Token, port: u16) -> io::Result<Self> {
        match DirBuilder::new().mode(0o755).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let path = directory.join(name(port));
        // A service that was killed has left its own behind. Whatever is made at the path meanwhile is not written to.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        writeln!(file, "{}", token.reveal())?;
        Ok(Self { path, file })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        let inode = |metadata: io::Result<Metadata>| metadata.map(|metadata| (metadata.dev(), metadata.ino())).ok();
        let is_ours = inode(std::fs::symlink_metadata(&self.path)) == inode(self.file.metadata());
        if is_ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// The file of the service at `port` that this user may read, if there is one.
pub fn token_file(port: u16) -> Option<PathBuf> {
    let root = std::iter::once(PathBuf::from(OF_ROOT));
    let mut paths = directories().chain(root).map(|directory| directory.join(name(port)));
    paths.find(|path| File::open(path).is_ok())
}

fn name(port: u16) -> String {
    format!("token-{port}")
}

/// systemd's directory for the unit, that of root, that of another user: nobody else can make files in them.
fn directories() -> impl Iterator<Item = PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // Of several directories of a unit the first.
    let of_unit = std::env::var("RUNTIME_DIRECTORY").ok();
    let of_unit =
        of_unit.and_then(|paths| paths.split(':').next().map(PathBuf::from)).filter(|path| path.is_absolute());
    let of_root = rustix::process::geteuid().is_root().then(|| PathBuf::from(OF_ROOT));
    let of_user = variable("XDG_RUNTIME_DIR").map(|path| path.join("jitprof"));
    of_unit.into_iter().chain(of_root).chain(of_user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_for_its_owner_takes_the_place_of_an_old_one_and_goes_with_the_service() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("jitprof");
        let (one, other) = (Token::random().unwrap(), Token::random().unwrap());
        let left = TokenFile::write_into(&inner, &one, 7).unwrap();
        let file = TokenFile::write_into(&inner, &other, 7).unwrap();
        assert_eq!(std::fs::metadata(file.path()).unwrap().mode() & 0o777, 0o600);
        drop(left);
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), format!("{}\n", other.reveal()));
        drop(file);
        assert!(std::fs::read_dir(&inner).unwrap().next().is_none());
    }

    #[test]
    fn what_somebody_else_has_put_there_is_not_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("target");
        std::fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, directory.path().join(name(7))).unwrap();
        let file = TokenFile::write_into(directory.path(), &Token::random().unwrap(), 7).unwrap();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "kept");
        assert!(std::fs::symlink_metadata(file.path()).unwrap().is_file());
    }
}
