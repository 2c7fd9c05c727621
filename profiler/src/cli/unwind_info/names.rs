//! Names for the addresses that a report speaks of.

use std::collections::HashMap;
use std::time::Duration;

use crate::output::printable;
use crate::symbol::{ObjectId, SymbolKey, Symbolizer};
use crate::units::FileOffset;

/// How long names are waited for: opening a 500 MB debug build takes 4 s.
const LIMIT: Duration = Duration::from_secs(20);

/// Asks for names, and gives them out once all have been asked for.
pub(super) struct Names {
    symbols: Symbolizer,
    asked: HashMap<(ObjectId, u64), SymbolKey>,
}

impl Names {
    pub(super) fn new(symbols: Symbolizer) -> Self {
        Self { symbols, asked: HashMap::new() }
    }

    /// The files that names come from.
    pub(super) fn symbols(&self) -> &Symbolizer {
        &self.symbols
    }

    /// Asks for the name of the function at a file offset.
    pub(super) fn ask(&mut self, object: ObjectId, file_offset: u64) {
        let key = SymbolKey::File(object, FileOffset(file_offset));
        self.asked.insert((object, file_offset), key);
        self.symbols.request(key);
    }

    /// Waits for what was asked for.
    pub(super) fn wait(&self) {
        let unanswered = self.symbols.resolve_all(LIMIT);
        if unanswered > 0 {
            tracing::warn!("{unanswered} addresses were not named in time");
        }
    }

    /// The function there, fit to be shown; `None` if nothing names it.
    pub(super) fn get(&self, object: ObjectId, file_offset: u64) -> Option<String> {
        let frames = self.symbols.get(*self.asked.get(&(object, file_offset))?)?;
        // The outermost of inlined functions is the one whose code it is. A bracketed name is none.
        let name = &frames.last()?.name;
        (!name.starts_with('[')).then(|| printable(name).into_owned())
    }
}
