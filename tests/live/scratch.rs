//! A working directory of a test.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// An empty directory that vanishes with its value.
#[derive(Debug)]
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    /// Makes one below the directory for temporary files, that every user may read: tests run as root, some of what
    /// they start does not.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new() -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("jitprof-test-")
            .permissions(Permissions::from_mode(0o755))
            .tempdir()
            .context("cannot make a directory for temporary files; set TMPDIR")?;
        Ok(Self(directory))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}
