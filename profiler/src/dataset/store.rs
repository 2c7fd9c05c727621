//! Where a dataset is: a directory, or a bucket.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::DatasetError;
use super::name::SUFFIX;
use super::read::{LocalFile, Source};
#[cfg(feature = "cloud")]
use super::remote::Remote;
use crate::regular_file::open_regular;

/// Files that are looked at for one question.
pub(super) const MAX_FILES: usize = 1 << 20;
/// How deep directories may nest below a table's.
const MAX_DEPTH: usize = 8;

/// A place as it is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A directory.
    Directory(PathBuf),
    /// A bucket's URL.
    Url(String),
}

/// A dataset's files.
pub enum Store {
    /// In a directory.
    Directory(PathBuf),
    /// In a bucket.
    #[cfg(feature = "cloud")]
    Remote(Box<Remote>),
}

/// A file of the dataset.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    /// From the dataset's root.
    pub(super) path: String,
    pub(super) length: u64,
}

impl Location {
    /// A URL if it looks like one, else a directory.
    pub fn parse(text: &str) -> Self {
        match text.split_once("://") {
            Some(("file", path)) => Self::Directory(path.into()),
            Some((scheme, _)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => Self::Url(text.to_owned()),
            _ => Self::Directory(text.into()),
        }
    }
}

impl Store {
    /// Opens it; nothing is asked yet. `options` are those of the bucket's client, over those of the environment.
    ///
    /// # Errors
    /// A URL that cannot be used.
    pub fn open(location: &Location, options: &[(String, String)]) -> Result<Self, DatasetError> {
        match location {
            Location::Directory(path) => Ok(Self::Directory(path.clone())),
            #[cfg(feature = "cloud")]
            Location::Url(url) => Ok(Self::Remote(Box::new(Remote::open(url, options)?))),
            #[cfg(not(feature = "cloud"))]
            Location::Url(url) => {
                let of_it = if options.is_empty() { "" } else { ", whose options are given" };
                let why = format!("this jitprof was built without the feature `cloud`{of_it}");
                Err(DatasetError::Url { url: url.clone(), why })
            }
        }
    }

    /// Writes a file, whole or not at all, over one of the same name.
    ///
    /// # Errors
    /// The system or the store says no.
    pub fn put(&self, path: &str, bytes: Vec<u8>) -> Result<(), DatasetError> {
        match self {
            Self::Directory(root) => put(root, path, &bytes).map_err(|error| DatasetError::file(root.display(), error)),
            #[cfg(feature = "cloud")]
            Self::Remote(remote) => remote.put(path, bytes),
        }
    }

    /// The Parquet files below `table`, without what is below paths that `keep` does not want.
    pub(super) fn list(&self, table: &str, keep: &dyn Fn(&str) -> bool) -> Result<Vec<Entry>, DatasetError> {
        let mut found = Vec::new();
        match self {
            Self::Directory(root) => walk(root, table, keep, (&mut found, 0))?,
            #[cfg(feature = "cloud")]
            Self::Remote(remote) => remote.list(table, keep, &mut found)?,
        }
        found.sort_unstable();
        Ok(found)
    }

    /// A file to be read.
    pub(super) fn source(&self, entry: &Entry) -> Result<Box<dyn Source + '_>, DatasetError> {
        match self {
            Self::Directory(root) => Ok(Box::new(open_local(&root.join(&entry.path))?)),
            #[cfg(feature = "cloud")]
            Self::Remote(remote) => Ok(Box::new(remote.source(entry))),
        }
    }
}

/// A file to be read, if it is a regular one.
pub(super) fn open_local(path: &Path) -> Result<LocalFile, DatasetError> {
    let name = path.display().to_string();
    let failed = |source| DatasetError::file(&name, source);
    let file = open_regular(path).map_err(failed)?;
    let file = file.ok_or_else(|| failed(io::Error::other("it is no regular file")))?;
    let length = file.metadata().map_err(failed)?.len();
    Ok(LocalFile { file, length, name })
}

/// Whether engines, and jitprof, read a file of this name.
pub(super) fn is_data(name: &str) -> bool {
    name.ends_with(SUFFIX) && !name.starts_with(['.', '_'])
}

fn walk(
    root: &Path,
    below: &str,
    keep: &dyn Fn(&str) -> bool,
    (found, depth): (&mut Vec<Entry>, usize),
) -> Result<(), DatasetError> {
    let folder = root.join(below);
    let failed = |source| DatasetError::file(folder.display(), source);
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !name.starts_with(['.', '_'])) else { continue };
        let path = format!("{below}/{name}");
        if !keep(&path) {
            continue;
        }
        // Of a symbolic link it is neither: links could go round in circles.
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() && depth < MAX_DEPTH {
            walk(root, &path, keep, (&mut *found, depth + 1))?;
        } else if kind.is_file() && is_data(name) {
            if found.len() >= MAX_FILES {
                return Err(DatasetError::TooMuch { what: "files", limit: MAX_FILES });
            }
            let length = entry.metadata().map_err(failed)?.len();
            found.push(Entry { path, length });
        }
    }
    Ok(())
}

fn put(root: &Path, path: &str, bytes: &[u8]) -> io::Result<()> {
    let target = root.join(path);
    let folder = target.parent().unwrap_or(root);
    fs::create_dir_all(folder)?;
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    // Engines leave out what begins with a point.
    let temporary = folder.join(format!(".{name}.partial"));
    let written = write_new(&temporary, bytes).and_then(|()| fs::rename(&temporary, &target));
    if written.is_err()
        && let Err(error) = fs::remove_file(&temporary)
    {
        tracing::debug!("{}: {error}", temporary.display());
    }
    written
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // What an earlier try has left goes first; a link in its place goes, too, and is never written through.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o640).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
