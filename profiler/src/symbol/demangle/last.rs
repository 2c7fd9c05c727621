//! The names that were demangled last.

use std::collections::HashMap;
use std::sync::Arc;

use super::{CUT, MAX_NAME_BYTES};

/// Bytes that a half may take: with the other one half a megabyte, which are the names of some two thousand functions.
const HALF_BYTES: usize = 256 << 10;
/// What a name takes besides its bytes, about.
const OVERHEAD: usize = 96;

/// Names as they were written, by how linkers know them, in two halves: when the newer one is full, the older one goes.
/// What a name is written as depends on nothing else, so it holds in every file, whatever has taken the place of another
/// one.
///
/// A target chooses its names: they are hashed with a secret key, and whoever has those of others go has his own
/// demangled.
#[derive(Debug, Default)]
pub(in crate::symbol) struct LastNames {
    newer: Half,
    older: Half,
}

#[derive(Debug, Default)]
struct Half {
    names: HashMap<Box<str>, (Arc<str>, bool)>,
    bytes: usize,
}

impl LastNames {
    /// What a name was written as, and whether it was cut.
    pub(in crate::symbol) fn get(&self, mangled: &str) -> Option<(Arc<str>, bool)> {
        self.newer.names.get(mangled).or_else(|| self.older.names.get(mangled)).cloned()
    }

    /// Notes what a name is written as. One that stays as it is may have been kept from being demangled: it is tried
    /// again.
    pub(in crate::symbol) fn note(&mut self, mangled: &str, (written, was_cut): (&Arc<str>, bool)) {
        let stays = *mangled == **written || (was_cut && is_beginning(mangled, written));
        if stays || mangled.len() > MAX_NAME_BYTES {
            return;
        }
        let bytes = mangled.len() + written.len() + OVERHEAD;
        if self.newer.bytes + bytes > HALF_BYTES {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.bytes += bytes;
        self.newer.names.insert(mangled.into(), (Arc::clone(written), was_cut));
    }
}

/// Whether a text that was cut is the beginning of another one.
fn is_beginning(text: &str, cut: &str) -> bool {
    cut.strip_suffix(CUT).is_some_and(|beginning| text.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_demangled_is_known_and_what_was_not_is_tried_again() {
        let mut last = LastNames::default();
        let (long, cut) = ("_Z".to_owned() + &"x".repeat(MAX_NAME_BYTES - 2), "_Zxx…");
        let names = [("_Z1fv", "f", false), ("_Z1gv", "g…", true), ("_Z", "_Z", false), (long.as_str(), cut, true)];
        for (mangled, written, was_cut) in names {
            last.note(mangled, (&Arc::from(written), was_cut));
        }
        let known = |mangled: &str| last.get(mangled).map(|(name, was_cut)| (name.to_string(), was_cut));
        assert_eq!(known("_Z1fv"), Some(("f".to_owned(), false)));
        assert_eq!(known("_Z1gv"), Some(("g…".to_owned(), true)));
        assert_eq!([known("_Z"), known(&long), known("_Z1hv")], [None, None, None]);
    }

    #[test]
    fn ever_new_names_take_no_more_than_both_halves() {
        let mut last = LastNames::default();
        for number in 0..20_000 {
            last.note(&format!("_Z{number:0>300}"), (&Arc::from(number.to_string()), false));
            assert!(last.newer.bytes <= HALF_BYTES && last.older.bytes <= HALF_BYTES);
        }
        let all = [&last.newer, &last.older]
            .map(|half| half.names.iter().map(|(mangled, (written, _))| mangled.len() + written.len()).sum::<usize>());
        assert!(all[1] > HALF_BYTES / 2 && all.iter().all(|bytes| *bytes < HALF_BYTES), "{all:?}");
        assert!(last.get(&format!("_Z{:0>300}", 0)).is_none() && last.get(&format!("_Z{:0>300}", 19_999)).is_some());
    }
}
