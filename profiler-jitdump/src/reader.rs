//! Parser and assembler together: from the bytes of a dump to code events.

use crate::code::CodeEvent;
use jitprof_common::units::{FileOffset, MonoNs};

use super::assembler::Assembler;
use super::clock::TscConversion;
use super::options::ReaderOptions;
use super::parser::{Parser, ParserOptions, Step};
use super::stats::DumpStats;

/// Reads a dump from windows of bytes that somebody else provides.
///
/// ```
/// use jitprof_jitdump::{DumpReader, ReaderOptions, writer::{DumpWriter, LoadFields}};
///
/// let mut dump = DumpWriter::new(1);
/// dump.load(5, &LoadFields { code_addr: 0x1000, name: b"f", code: &[0xc3], ..LoadFields::default() });
///
/// let mut events = Vec::new();
/// let mut reader = DumpReader::new(ReaderOptions::default());
/// reader.read(&dump.into_bytes(), &mut |event| events.push(event));
/// assert_eq!(events.len(), 1);
/// ```
#[derive(Debug)]
pub struct DumpReader {
    parser: Parser,
    assembler: Assembler,
}

impl DumpReader {
    /// At the start of a dump.
    pub fn new(options: ReaderOptions) -> Self {
        let parser = Parser::new(ParserOptions { want_code: options.keep_code, whole_records: false });
        Self { parser, assembler: Assembler::new(options) }
    }

    /// Where the next window must begin; it may lie beyond the end of the file, behind code that is skipped.
    pub fn offset(&self) -> FileOffset {
        self.parser.offset()
    }

    /// The account so far.
    pub fn stats(&self) -> &DumpStats {
        self.assembler.stats()
    }

    /// The account of a file that ends at `file_len`: damage at its end, which no record has followed, included.
    pub fn stats_up_to(&self, file_len: u64) -> DumpStats {
        self.assembler.stats_up_to(file_len)
    }

    /// Gives up the record that begins at [`DumpReader::offset`], if not all of it is in `window`, the bytes from there on:
    /// it is counted, and what it announces is not known. Returns whether there was one.
    pub fn give_up_torn(&mut self, window: &[u8]) -> bool {
        let is_torn = self.parser.skip_torn(window).is_some();
        if is_torn {
            self.assembler.note_given_up();
        }
        is_torn
    }

    /// The parser, for its header and state.
    pub fn parser(&self) -> &Parser {
        &self.parser
    }

    /// Sets the present time, which no record's can exceed.
    pub fn set_now(&mut self, now: MonoNs) {
        self.assembler.set_now(now);
    }

    /// Sets how counter ticks become times from now on.
    pub fn set_ticks(&mut self, tsc: TscConversion) {
        self.assembler.set_ticks(tsc);
    }

    /// Reads every complete record of `window`, which begins at [`DumpReader::offset`], and gives the events out in
    /// the file's order. Returns how many bytes the next window must have for any progress; those that were read are
    /// not among them.
    pub fn read(&mut self, window: &[u8], out: &mut impl FnMut(CodeEvent)) -> usize {
        let start = self.parser.offset();
        loop {
            let Some(rest) = behind(window, start, self.parser.offset()) else {
                return 1;
            };
            let step = self.parser.step(rest);
            if let Step::NeedMore { at_least } = step {
                return at_least;
            }
            self.assembler.step(&step, out);
        }
    }

    /// Reads the complete records of `window` without a change to this reader, up to the first damage. Returns how
    /// many bytes of the window they are; code bytes have to be there, too.
    pub fn read_tentatively(&self, options: ReaderOptions, window: &[u8], out: &mut impl FnMut(CodeEvent)) -> usize {
        let mut parser = self.parser.clone();
        if parser.is_lost() {
            return 0;
        }
        parser.set_options(ParserOptions { want_code: options.keep_code, whole_records: true });
        let mut assembler = self.assembler.fork(options);
        let start = parser.offset();
        let mut complete = start;
        while let Some(rest) = behind(window, start, parser.offset()) {
            match parser.step(rest) {
                step @ (Step::Header(_) | Step::Record(_)) => assembler.step(&step, out),
                _ => break,
            }
            complete = parser.offset();
        }
        usize::try_from(complete.0.saturating_sub(start.0)).unwrap_or(usize::MAX).min(window.len())
    }

    pub(super) fn restart(&mut self, options: &ReaderOptions) {
        self.parser = Parser::new(ParserOptions { want_code: options.keep_code, whole_records: false });
        self.assembler.restart();
    }
}

/// The part of a window that begins at `start` from `offset` on; `None` if the window ends before it.
fn behind(window: &[u8], start: FileOffset, offset: FileOffset) -> Option<&[u8]> {
    let skip = usize::try_from(offset.0.checked_sub(start.0)?).ok()?;
    window.get(skip..)
}
