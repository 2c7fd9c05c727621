//! The steps of the parser over a file, for those who look at records and not at code.

use std::fs::File;
use std::io;

use jitprof_common::units::FileOffset;

use super::parser::{Parser, ParserOptions, Step};
use super::tail::Progress;
use super::window::{FileBytes, FileWindow};

/// Walks through an opened dump, which may still be growing, step by step.
///
/// Memory: the record that is not complete yet and 256 KiB; that is 17 MiB at most without
/// [`ParserOptions::whole_records`], and as much as the longest LOAD with it.
#[derive(Debug)]
pub struct RecordTail {
    file: File,
    window: FileWindow,
    options: ParserOptions,
    parser: Parser,
}

impl RecordTail {
    /// Walks through `file` from its start. Reads nothing yet.
    pub fn new(file: File, options: ParserOptions) -> Self {
        Self { file, window: FileWindow::new(), options, parser: Parser::new(options) }
    }

    /// The parser, for its header and state.
    pub fn parser(&self) -> &Parser {
        &self.parser
    }

    /// The file's length at the last poll.
    pub fn file_len(&self) -> u64 {
        self.window.file_len()
    }

    /// Where the incomplete record at the end begins; beyond the file's end if that is inside of code that was skipped.
    pub fn offset(&self) -> FileOffset {
        self.parser.offset()
    }

    /// Takes every step that the file allows, but ends after `budget` bytes. Each is given out with the offset at which
    /// it began, [`Step::NeedMore`] is not.
    ///
    /// # Errors
    /// The file cannot be read any more.
    pub fn poll(&mut self, budget: u64, out: &mut impl FnMut(FileOffset, &Step<'_>)) -> io::Result<Progress> {
        let mut progress = Progress::default();
        loop {
            let look = FileBytes::read(&self.file, progress.within(self.window.next_read(), budget))?;
            let taken = self.window.take(look.as_look());
            if taken.restarted {
                self.parser = Parser::new(self.options);
            }
            self.take_steps(out);
            if progress.go_on(taken, self.window.is_at_end(), budget) {
                return Ok(progress);
            }
        }
    }

    fn take_steps(&mut self, out: &mut impl FnMut(FileOffset, &Step<'_>)) {
        if !self.window.is_ready() {
            return;
        }
        let start = self.window.start();
        let needed = loop {
            let skip = usize::try_from(self.parser.offset().0.saturating_sub(start)).unwrap_or(usize::MAX);
            let Some(rest) = self.window.bytes().get(skip..) else {
                break 1;
            };
            let at = self.parser.offset();
            match self.parser.step(rest) {
                Step::NeedMore { at_least } => break at_least,
                step => out(at, &step),
            }
        };
        self.window.go_on(self.parser.offset().0, needed);
    }
}
