//! What stands in the place of GSYM files without the feature `gsym`: the same store, in which there is no file.

use std::path::PathBuf;

/// An opened file; nothing makes one.
#[derive(Debug)]
pub struct Gsym(());

/// What is wrong with a file; nothing is.
#[derive(Debug, thiserror::Error)]
pub enum GsymError {}

/// Which file belongs to which build id: none to any.
#[derive(Debug, Default)]
pub struct GsymStore(());

/// Files that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Some were named, and nothing here reads them.
    #[error("{} is not read: this jitprof was built without the feature `gsym`", .0.display())]
    NotBuilt(PathBuf),
}

/// A function at an address.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its name.
    pub name: String,
    /// The source file.
    pub file: Option<String>,
    /// The line in it.
    pub line: u32,
    /// Whether it was inlined into the next one.
    pub inlined: bool,
}

/// What lies at an address.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// Innermost first.
    pub places: Vec<Place>,
}

impl Gsym {
    /// What lies at an address: nothing.
    ///
    /// # Errors
    /// None.
    pub fn lookup(&self, _address: u64) -> Result<Option<Lookup>, GsymError> {
        Ok(None)
    }

    /// Memory that the file takes: none.
    pub fn resident_bytes(&self) -> u64 {
        0
    }
}

impl GsymStore {
    /// A store without files.
    ///
    /// # Errors
    /// Files are named.
    pub fn find(paths: &[PathBuf]) -> Result<Self, StoreError> {
        paths.first().map_or_else(|| Ok(Self::default()), |path| Err(StoreError::NotBuilt(path.clone())))
    }

    /// The file of a build id: none.
    ///
    /// # Errors
    /// None.
    pub fn open(&self, _build_id: &[u8]) -> Result<Option<Gsym>, StoreError> {
        Ok(None)
    }

    /// Whether there is no file, as it is.
    pub fn is_empty(&self) -> bool {
        true
    }

    /// Files that were found and cannot be used: none.
    pub fn skipped(&self) -> &[StoreError] {
        &[]
    }
}
