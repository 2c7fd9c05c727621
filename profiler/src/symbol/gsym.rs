//! The GSYM file of a stripped program.

use std::cell::Cell;

use super::frame::Frame;
use super::native::FrameBuilder;
use super::open_files::OpenFile;
use super::stats::{DebugLoss, SymbolStats};
use crate::gsym::{Gsym, GsymStore};
use jitprof_unwind::elf;

/// Damaged functions after which the file is not asked any more.
const MAX_FAILURES: u8 = 8;

/// An opened GSYM file.
pub(super) struct GsymTable {
    gsym: Gsym,
    failures: Cell<u8>,
}

impl GsymTable {
    /// Opens the file that belongs to the program's build id, if there is one.
    pub(super) fn open(origin: &OpenFile, known: &GsymStore, stats: &mut SymbolStats) -> Option<Self> {
        if known.is_empty() {
            return None;
        }
        match known.open(&elf::build_id(&origin.file)?) {
            Ok(gsym) => {
                let gsym = gsym?;
                stats.gsym_files = stats.gsym_files.saturating_add(1);
                Some(Self { gsym, failures: Cell::new(0) })
            }
            Err(error) => {
                tracing::warn!("not used: {error}");
                stats.count_debug(DebugLoss::Malformed);
                None
            }
        }
    }

    /// Memory that it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.gsym.resident_bytes()
    }

    /// The frames at an address of the program, innermost first.
    pub(super) fn resolve(&self, address: u64, frames: &mut FrameBuilder<'_>) -> Option<Vec<Frame>> {
        if self.failures.get() >= MAX_FAILURES {
            return None;
        }
        match self.gsym.lookup(address) {
            Ok(found) => frames.frames_of_places(&found?.places),
            Err(error) => {
                tracing::debug!("function at {address:#x}: {error}");
                self.failures.set(self.failures.get().saturating_add(1));
                frames.stats.count_debug(DebugLoss::ParserFailed);
                None
            }
        }
    }
}
