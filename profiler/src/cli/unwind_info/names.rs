//! Names for the addresses that a report speaks of.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::time::Duration;

use crate::gsym::GsymStore;
use crate::process::open::FileId;
use crate::profile::printable;
use crate::symbol::{Naming, SymbolKey};
use jitprof_common::units::FileOffset;

/// How long names are waited for: opening a 500 MB debug build takes 4 s.
const LIMIT: Duration = Duration::from_secs(20);

/// Asks for names, and gives them out once all have been asked for.
pub(super) struct Names {
    naming: Naming,
    asked: HashMap<(FileId, u64), SymbolKey>,
}

impl Names {
    /// Starts a worker.
    pub(super) fn spawn() -> io::Result<Self> {
        Ok(Self { naming: Naming::spawn(GsymStore::default())?, asked: HashMap::new() })
    }

    /// Adds a file that names come from.
    pub(super) fn add(&mut self, file: File, path: &str) -> FileId {
        self.naming.add(file, path, None)
    }

    /// Asks for the name of the function at a file offset.
    pub(super) fn ask(&mut self, file: FileId, file_offset: u64) {
        let key = SymbolKey::File(file, FileOffset(file_offset));
        self.asked.insert((file, file_offset), key);
        self.naming.request(key);
    }

    /// Waits for what was asked for.
    pub(super) fn wait(&mut self) {
        let unanswered = self.naming.wait(LIMIT);
        if unanswered > 0 {
            tracing::warn!("{unanswered} addresses were not named in time");
        }
    }

    /// The function there, fit to be shown; `None` if nothing names it.
    pub(super) fn get(&self, file: FileId, file_offset: u64) -> Option<String> {
        let frames = self.naming.frames(*self.asked.get(&(file, file_offset))?);
        // The outermost of inlined functions is the one whose code it is. A bracketed name is none.
        let name = &frames.last()?.name;
        (!name.starts_with('[')).then(|| printable(name).into_owned())
    }
}
