//! The file behind a mapping, as far as it is known.
//!
//! One link belongs to each time that something was mapped, so that what is known of a range of addresses ends with its
//! mapping, whatever is mapped there next. A file is in use as long as a link leads to it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::process::open::FileId;

/// Where a link leads.
#[derive(Clone, Debug)]
pub(super) enum Linked {
    /// To this file.
    File(FileUse),
    /// To this file, which is held for nobody: the process has ended.
    Closed(FileId),
    /// Nowhere: the file is not to be had.
    Nothing,
    /// Nowhere: what lies there by now is not what was mapped.
    Replaced,
}

impl Linked {
    /// The file, if there is one.
    pub(super) fn file(&self) -> Option<FileId> {
        match self {
            Self::File(file) => Some(file.file()),
            Self::Closed(file) => Some(*file),
            Self::Nothing | Self::Replaced => None,
        }
    }
}

/// A use of a file; the file is closed when all of its uses are gone.
#[derive(Clone, Debug)]
pub(super) struct FileUse(Arc<FileId>);

impl FileUse {
    /// The first use of a file, which is the table's own.
    pub(super) fn new(file: FileId) -> Self {
        Self(Arc::new(file))
    }

    /// Which file.
    pub(super) fn file(&self) -> FileId {
        *self.0
    }

    /// Whether the table's own use is the only one.
    pub(super) fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// The link of one mapping.
#[derive(Debug, Default)]
pub(super) struct Link {
    leads: OnceLock<Linked>,
    asked: AtomicBool,
    /// How often it was asked for in vain before this link, because there was no answer.
    tries: u32,
}

impl Link {
    /// Where it leads, if that is known.
    pub(super) fn get(&self) -> Option<&Linked> {
        self.leads.get()
    }

    /// The file, if it is known and there is one.
    pub(super) fn file(&self) -> Option<FileId> {
        self.leads.get()?.file()
    }

    /// One that leads to the same file and does not hold it, if this one does.
    pub(super) fn released(&self) -> Option<Self> {
        let Linked::File(file) = self.get()? else { return None };
        Some(Self { leads: OnceLock::from(Linked::Closed(file.file())), asked: AtomicBool::new(true), tries: 0 })
    }

    /// One for the same mapping, to be asked for again: this one led nowhere because there was no answer.
    pub(super) fn again(&self) -> Self {
        Self { tries: self.tries.saturating_add(1), ..Self::default() }
    }

    /// How often it was asked for in vain before.
    pub(super) fn tries(&self) -> u32 {
        self.tries
    }

    /// From now on it leads there; what it led to before stays.
    pub(super) fn set(&self, linked: Linked) {
        self.leads.get_or_init(|| linked);
    }

    /// Whether somebody has asked for it.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// It is asked for.
    pub(super) fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }
}
