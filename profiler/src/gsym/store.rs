//! GSYM files by build id: those named on the command line, and those in directories named there.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::error::GsymError;
use super::header::Header;
use super::reader::Gsym;
use crate::regular_file::open_regular;

/// Levels of directories below the one that was named.
pub const MAX_DEPTH: u32 = 8;
/// Directory entries that are looked at, in all.
pub const MAX_ENTRIES: u32 = 100_000;
/// Files named `*.gsym` whose headers are read, in all.
pub const MAX_FILES: u32 = 10_000;

/// Which GSYM file belongs to which build id. Holds no file open and nothing of their contents.
#[derive(Debug, Default)]
pub struct GsymStore {
    by_uuid: HashMap<Vec<u8>, PathBuf>,
    skipped: Vec<StoreError>,
    entries: u32,
    files: u32,
}

/// A GSYM file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file or directory cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A device, FIFO or socket.
    #[error("{} is neither a regular file nor a directory", path.display())]
    WrongKind {
        /// The path that was named.
        path: PathBuf,
    },
    /// A file's contents make no sense.
    #[error("{}: {source}", path.display())]
    Damaged {
        /// The file that is damaged.
        path: PathBuf,
        /// Where in the file, and what is wrong there.
        source: GsymError,
    },
    /// The file has no build id to find the program by.
    #[error("{} has no uuid, so it belongs to no program; link with --build-id and convert again", path.display())]
    NoUuid {
        /// The file without a uuid.
        path: PathBuf,
    },
    /// A directory too large.
    #[error(
        "{}: more than {MAX_ENTRIES} entries, {MAX_FILES} files or {MAX_DEPTH} levels; the rest is not looked at. Name \
         the files, or a smaller directory",
        path.display()
    )]
    TooMany {
        /// Where the search ended.
        path: PathBuf,
    },
}

impl GsymStore {
    /// Reads the headers of these files, and of every `*.gsym` in these directories and below. Of several for the same
    /// build id the first one holds, in the order of `paths` and then by name. Links to directories are not followed.
    ///
    /// # Errors
    /// A file or directory that was named cannot be read, or is no GSYM file. What is wrong with files found in
    /// directories is in [`skipped`](Self::skipped).
    pub fn find(paths: &[PathBuf]) -> Result<Self, StoreError> {
        let mut store = Self::default();
        for path in paths {
            let kind = fs::metadata(path).map_err(|source| StoreError::Io { path: path.clone(), source })?;
            if kind.is_dir() {
                store.search(path)?;
            } else if kind.is_file() {
                store.add(path)?;
            } else {
                return Err(StoreError::WrongKind { path: path.clone() });
            }
        }
        Ok(store)
    }

    /// Opens the file of a build id, if there is one.
    ///
    /// # Errors
    /// The file is not what it was any more.
    pub fn open(&self, build_id: &[u8]) -> Result<Option<Gsym>, StoreError> {
        let Some(path) = self.by_uuid.get(build_id) else {
            return Ok(None);
        };
        let gsym = Gsym::open(open(path)?);
        let gsym = gsym.map_err(|source| StoreError::Damaged { path: path.clone(), source })?;
        Ok(Some(gsym).filter(|gsym| gsym.header().uuid == build_id))
    }

    /// How many build ids are known.
    pub fn len(&self) -> usize {
        self.by_uuid.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.by_uuid.is_empty()
    }

    /// What was found in directories and cannot be used.
    pub fn skipped(&self) -> &[StoreError] {
        &self.skipped
    }

    fn add(&mut self, path: &Path) -> Result<(), StoreError> {
        let header = Header::of(open(path)?).map_err(|source| StoreError::Damaged { path: path.to_owned(), source })?;
        if header.uuid.is_empty() {
            return Err(StoreError::NoUuid { path: path.to_owned() });
        }
        self.by_uuid.entry(header.uuid).or_insert_with(|| path.to_owned());
        Ok(())
    }

    fn search(&mut self, root: &Path) -> Result<(), StoreError> {
        let mut directories = vec![(root.to_owned(), 0)];
        while let Some((directory, depth)) = directories.pop() {
            let (entries, mut full) = match self.entries_of(&directory) {
                Ok(found) => found,
                // The one that was named has to be readable.
                Err(error) if depth == 0 => return Err(error),
                Err(error) => {
                    self.skipped.push(error);
                    continue;
                }
            };
            let mut below = Vec::new();
            for entry in entries {
                let path = entry.path();
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    below.push((path, depth + 1));
                } else if path.extension().is_some_and(|extension| extension == "gsym") && path.is_file() {
                    self.files = self.files.saturating_add(1);
                    if self.files > MAX_FILES {
                        full = true;
                        break;
                    }
                    let added = self.add(&path);
                    self.skipped.extend(added.err());
                }
            }
            let too_deep = depth >= MAX_DEPTH && !below.is_empty();
            if too_deep || full {
                self.skipped.push(StoreError::TooMany { path: directory });
            }
            if full {
                return Ok(());
            }
            if !too_deep {
                // Taken from the end: the first by name comes next.
                directories.extend(below.into_iter().rev());
            }
        }
        Ok(())
    }

    /// A directory's entries by name, and whether there were more of them than are still looked at.
    fn entries_of(&mut self, directory: &Path) -> Result<(Vec<fs::DirEntry>, bool), StoreError> {
        let found = fs::read_dir(directory).map_err(|source| StoreError::Io { path: directory.to_owned(), source })?;
        let room = usize::try_from(MAX_ENTRIES.saturating_sub(self.entries)).unwrap_or(usize::MAX);
        let mut entries: Vec<fs::DirEntry> = found.filter_map(Result::ok).take(room.saturating_add(1)).collect();
        let more = entries.len() > room;
        entries.truncate(room);
        self.entries = self.entries.saturating_add(u32::try_from(entries.len()).unwrap_or(u32::MAX));
        entries.sort_by_key(fs::DirEntry::file_name);
        Ok((entries, more))
    }
}

fn open(path: &Path) -> Result<File, StoreError> {
    let opened = open_regular(path).map_err(|source| StoreError::Io { path: path.to_owned(), source })?;
    opened.ok_or_else(|| StoreError::WrongKind { path: path.to_owned() })
}
