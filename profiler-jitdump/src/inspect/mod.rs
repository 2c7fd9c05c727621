//! A look at a dump as a thing of its own: what is in it, and what in it is not as the specification says.

mod check;
mod deviation;
#[cfg(any(test, feature = "test-data"))]
pub(crate) mod examples;
mod extents;
mod findings;
mod survey;
#[cfg(test)]
mod tests;

pub use deviation::{Deviation, Severity};
pub use findings::{Findings, Found, Place};
pub use survey::Survey;

use super::assembler::Assembler;
use super::header::FileHeader;
use super::options::ReaderOptions;
use super::parser::Step;
use super::stats::DumpStats;
use crate::code::CodeEvent;
use check::{Checker, Counted};
use jitprof_common::units::FileOffset;
use survey::Surveyed;

/// Looks at a dump step by step.
///
/// Memory: what the assembler holds, and the addresses of a million functions at most (some 60 MiB), whatever the
/// dump's length.
#[derive(Debug)]
pub struct Inspector {
    options: ReaderOptions,
    places: usize,
    assembler: Assembler,
    survey: Survey,
    checker: Checker,
    header: Option<FileHeader>,
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The first file header.
    pub header: Option<FileHeader>,
    /// The reader's account.
    pub stats: DumpStats,
    /// More figures.
    pub survey: Survey,
    /// What is not as the specification says.
    pub findings: Findings,
    /// The file's length.
    pub file_len: u64,
}

impl Inspector {
    /// At the start of a dump. Of each deviation, `places` places are listed.
    pub fn new(options: ReaderOptions, places: usize) -> Self {
        Self {
            assembler: Assembler::new(options.clone()),
            options,
            places,
            survey: Survey::default(),
            checker: Checker::new(places),
            header: None,
        }
    }

    /// The file began anew.
    pub fn restart(&mut self) {
        *self = Self::new(self.options.clone(), self.places);
    }

    /// Takes the next step of the parser, which began at `at`, into account, and gives out the code events that it
    /// completes.
    pub fn step(&mut self, at: FileOffset, step: &Step<'_>, out: &mut impl FnMut(CodeEvent)) {
        if let Step::Header(header) = step {
            self.header.get_or_insert(*header);
        }
        let surveyed = match step {
            Step::Record(record) => self.survey.record(record),
            _ => Surveyed::default(),
        };
        let before = Counted::of(self.assembler.stats());
        self.assembler.step(step, out);
        let after = Counted::of(self.assembler.stats());
        self.checker.step(at, step, before, after, surveyed);
    }

    /// The parser stands at `reached`, and the file has `file_len` bytes for now; whether it still `grows` decides
    /// whether what a function is missing may come.
    pub fn finish(mut self, reached: FileOffset, file_len: u64, grows: bool) -> Inspection {
        let stats = self.assembler.stats_up_to(file_len);
        self.checker.finish(reached, file_len, grows, stats.clock, self.assembler.has_unclaimed_unwinding());
        self.survey.finish();
        Inspection { header: self.header, stats, survey: self.survey, findings: self.checker.findings, file_len }
    }
}
