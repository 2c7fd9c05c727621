//! The way to what a path in a root names, for one who may not search every directory: jitprof may, and would find what the
//! process whose root it is could not.
//!
//! As with openat2's RESOLVE_IN_ROOT neither `..` nor an absolute symbolic link leads out of the root, and no link of /proc is
//! followed: each name is looked up by itself, without following what it leads to, in a directory that is held open.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags, fstatfs, openat, readlinkat};
use rustix::io::Errno;

use crate::process::access::Access;
use crate::process::procfs::Credentials;
use crate::regular_file::is_found_kernels_own;

/// Symbolic links that are followed on one way: as many as the kernel follows.
const MAX_LINKS: u32 = 40;
/// Directories in one another, each of which is held open.
const MAX_DEPTH: usize = 64;
/// Names that are still to be looked up.
const MAX_NAMES: usize = 4096;

/// Why nothing was found.
#[derive(Debug)]
pub(super) enum Obstacle {
    /// A directory that may not be searched, or a link that may not be followed.
    Refused,
    /// What the kernel says.
    Failed(io::Error),
}

impl From<io::Error> for Obstacle {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Errno> for Obstacle {
    fn from(error: Errno) -> Self {
        Self::Failed(error.into())
    }
}

/// A handle on what a path names; of its last name, if that is a symbolic link, on the link unless it `follows` that too.
pub(super) fn walk(root: &File, path: &Path, follows: bool, who: &Credentials) -> Result<File, Obstacle> {
    let mut walk = Walk { root, who, below: Vec::new(), names: Vec::new(), links: 0 };
    walk.add(path)?;
    while let Some(name) = walk.names.pop() {
        walk.step(&name, follows)?;
    }
    let found = walk.below.pop();
    Ok(found.map_or_else(|| root.try_clone(), Ok)?)
}

struct Walk<'a> {
    root: &'a File,
    who: &'a Credentials,
    /// What has led here below the root, the last being where it is.
    below: Vec<File>,
    /// What is still to come, the last being the next.
    names: Vec<OsString>,
    links: u32,
}

impl Walk<'_> {
    fn here(&self) -> &File {
        self.below.last().unwrap_or(self.root)
    }

    /// What a path names is next.
    fn add(&mut self, path: &Path) -> Result<(), Obstacle> {
        if path.has_root() {
            self.below.clear();
        }
        self.names.extend(path.components().rev().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            _ => None,
        }));
        if self.names.len() > MAX_NAMES { Err(Errno::NAMETOOLONG.into()) } else { Ok(()) }
    }

    fn step(&mut self, name: &OsStr, follows: bool) -> Result<(), Obstacle> {
        self.check_search()?;
        if name == ".." {
            self.below.pop();
            return Ok(());
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = File::from(openat(self.here(), name, flags, Mode::empty())?);
        if found.metadata()?.is_symlink() && (follows || !self.names.is_empty()) {
            return self.follow(&found);
        }
        if self.below.len() >= MAX_DEPTH {
            return Err(Errno::NAMETOOLONG.into());
        }
        self.below.push(found);
        Ok(())
    }

    fn check_search(&self) -> Result<(), Obstacle> {
        let meta = self.here().metadata()?;
        if !meta.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        if self.who.may(Access::Search, self.here(), &meta) { Ok(()) } else { Err(Obstacle::Refused) }
    }

    fn follow(&mut self, link: &File) -> Result<(), Obstacle> {
        self.links = self.links.saturating_add(1);
        // Where a link of /proc leads no path may say.
        if self.links > MAX_LINKS || is_found_kernels_own(fstatfs(link)) {
            return Err(Errno::LOOP.into());
        }
        if self.is_planted(link)? {
            return Err(Obstacle::Refused);
        }
        let to = readlinkat(link, c"", Vec::<u8>::new())?;
        self.add(Path::new(OsStr::from_bytes(to.to_bytes())))
    }

    /// Whether somebody has put a link where all may put something, as the kernel has it with `fs.protected_symlinks`.
    fn is_planted(&self, link: &File) -> io::Result<bool> {
        const ALL_MAY_ADD: u32 = 0o1002;
        let (directory, owner) = (self.here().metadata()?, link.metadata()?.uid());
        let is_open = directory.mode() & ALL_MAY_ADD == ALL_MAY_ADD;
        Ok(is_open && owner != directory.uid() && !self.who.owns(owner))
    }
}
