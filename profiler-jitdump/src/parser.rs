//! From bytes to records: pure, without allocation, one step at a time.

use jitprof_common::units::FileOffset;

use super::body::{Parsed, RawRecord};
use super::byte_order::ByteOrder;
use super::header::{FileHeader, HEADER_SIZE, MAGIC, V8_PAD1};
use super::record::{Body, PREFIX_SIZE, Record, RecordId};
use super::resync::{Scan, TimeTrack, plausible_at, scan};

/// The longest LOAD record. Above it the size is taken as damage: the largest code space of a known runtime (JVM,
/// 240 MiB; V8, 128 MiB) fits into one record.
pub const MAX_LOAD: u32 = 256 << 20;

/// The longest record of another type. These are read whole, so this bounds the window a caller has to hold.
/// A DEBUG_INFO of 100,000 rows with names of 100 bytes has 12 MB.
pub const MAX_BUFFERED_RECORD: u32 = 16 << 20;

/// Unknown types up to this number are believed to be new types; above it the prefix is damaged.
const MAX_UNKNOWN_ID: u32 = 255;

/// A record that contradicts itself is judged by what follows it up to this size; the window must then hold it. A
/// longer one is given up at once, for its size may be what is damaged.
const MAX_LOOK_AHEAD: u32 = 4 << 10;

/// What the parser gives in its records.
#[derive(Clone, Copy, Debug, Default)]
pub struct ParserOptions {
    /// Give the code bytes of LOAD records up to [`MAX_KEPT_CODE`](super::MAX_KEPT_CODE). Without it, a LOAD is given as
    /// soon as its name is there, and its code may lie beyond the window.
    pub want_code: bool,
    /// Give a record only if the window holds it to its last byte.
    pub whole_records: bool,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    /// The file does not begin with the magic.
    Magic,
    /// The header's size is below 40 or above 4096; 40 is assumed.
    HeaderSize,
    /// The record's type is far from any known.
    Id,
    /// The record's size is below the least of its type or above the sanity limit.
    TotalSize,
    /// No end of the name within the record.
    Name,
    /// The name, the code's size and the record's size contradict each other.
    CodeSize,
    /// The code would reach beyond the address space.
    CodeRange,
    /// More or longer entries than could be in the record.
    NrEntry,
    /// The unwinding data does not fit the record.
    UnwindSize,
    /// No record follows where the size says.
    Follower,
}

impl Field {
    /// In words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Magic => "no magic",
            Self::HeaderSize => "the header's size",
            Self::Id => "the type is far from any known",
            Self::TotalSize => "the size is not one of its type",
            Self::Name => "no end of the name",
            Self::CodeSize => "name, code size and record size contradict each other",
            Self::CodeRange => "the code reaches beyond the address space",
            Self::NrEntry => "more or longer entries than fit",
            Self::UnwindSize => "the unwinding data does not fit",
            Self::Follower => "no record follows where the size says",
        }
    }
}

/// The outcome of one step. Every step but `NeedMore` and `Resynced` moves [`Parser::offset`] on.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// A file header: at the start, or in the middle where another producer appended to the file.
    Header(FileHeader),
    /// A record.
    Record(Record<'a>),
    /// One damaged record was skipped by its size; the next record follows it.
    BadRecord {
        /// Where it began.
        offset: FileOffset,
        /// Its length.
        total_size: u32,
        /// What is wrong in it.
        what: Field,
    },
    /// The sequence of records is lost here. The next steps look for its continuation.
    Corrupt {
        /// Where the last intact record ended.
        offset: FileOffset,
        /// What is wrong there.
        what: Field,
    },
    /// No record begins in the bytes that this step moved over.
    Scanned,
    /// The next step continues with a plausible record.
    Resynced {
        /// Bytes lost since `Corrupt`.
        skipped: u64,
    },
    /// The window is too short to go on.
    NeedMore {
        /// How many bytes, from [`Parser::offset`] on, allow the next step.
        at_least: usize,
    },
}

/// Parses a dump step by step. 100 bytes; a clone tries something out.
#[derive(Clone, Debug)]
pub struct Parser {
    options: ParserOptions,
    offset: u64,
    state: State,
    header: Option<FileHeader>,
    times: TimeTrack,
}

#[derive(Clone, Copy, Debug)]
enum State {
    FileStart,
    Records,
    /// Looking for a record since this offset.
    Lost(u64),
}

/// The prefix of a record, and what surrounds it.
#[derive(Clone, Copy)]
struct Prefix {
    id: u32,
    total_size: u32,
    /// `total_size` for indexing.
    total: usize,
    time: u64,
}

impl Parser {
    /// At the start of a file.
    pub fn new(options: ParserOptions) -> Self {
        Self { options, offset: 0, state: State::FileStart, header: None, times: TimeTrack::default() }
    }

    /// Where the next window must begin. It can lie beyond the end of the last window, and even of the file, when
    /// the code of a LOAD is skipped.
    pub fn offset(&self) -> FileOffset {
        FileOffset(self.offset)
    }

    /// The header in force.
    pub fn header(&self) -> Option<&FileHeader> {
        self.header.as_ref()
    }

    /// Whether it is looking for the continuation after damage.
    pub fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost(_))
    }

    /// Skips, by its size, the record that begins at the offset, if not all of its bytes are in `window`. `None` if all are,
    /// if no record begins there, or if it does not say a size that a record may have.
    pub fn skip_torn(&mut self, window: &[u8]) -> Option<u32> {
        let Prefix { total_size, total, .. } = self.prefix(window).filter(|_| matches!(self.state, State::Records))?;
        if total_size > MAX_LOAD || total <= window.len() || total < PREFIX_SIZE {
            return None;
        }
        self.advance(total_size.into());
        Some(total_size)
    }

    /// Sets what the following records carry.
    pub fn set_options(&mut self, options: ParserOptions) {
        self.options = options;
    }

    fn order(&self) -> ByteOrder {
        self.header.map_or(ByteOrder::NATIVE, |header| header.order)
    }

    fn advance(&mut self, bytes: u64) {
        self.offset = self.offset.saturating_add(bytes);
    }

    /// Takes one step in `window`, the bytes of the file from [`Parser::offset`] on, as many as the caller has.
    ///
    /// The work is bounded by the window's length, and the bytes asked for by `NeedMore` by
    /// [`MAX_BUFFERED_RECORD`] and a little.
    pub fn step<'a>(&mut self, window: &'a [u8]) -> Step<'a> {
        match self.state {
            State::FileStart => self.step_header(window),
            State::Records => self.step_record(window),
            State::Lost(since) => self.step_lost(window, since),
        }
    }

    fn step_header<'a>(&mut self, window: &'a [u8]) -> Step<'a> {
        match FileHeader::parse(window) {
            Some(header) => self.accept_header(header, window),
            // Each byte of the magic may say that it is none.
            None if FileHeader::may_begin(window) && window.len() < size_of_val(&MAGIC) => {
                Step::NeedMore { at_least: window.len() + 1 }
            }
            None if FileHeader::may_begin(window) => Step::NeedMore { at_least: HEADER_SIZE },
            None => self.lose(Field::Magic),
        }
    }

    fn accept_header<'a>(&mut self, header: FileHeader, window: &[u8]) -> Step<'a> {
        let size = match self.header_end(&header, window) {
            Ok(size) => size,
            Err(at_least) => return Step::NeedMore { at_least },
        };
        self.state = State::Records;
        self.header = Some(header);
        self.advance(size as u64);
        Step::Header(header)
    }

    /// Where the records begin. A size other than 40 may be one of a later version or damaged: the first record
    /// decides. `Err` has the bytes that the window needs.
    fn header_end(&self, header: &FileHeader, window: &[u8]) -> Result<usize, usize> {
        let claimed = usize::try_from(header.total_size).unwrap_or(usize::MAX);
        if claimed == HEADER_SIZE || !header.size_is_plausible() {
            return Ok(HEADER_SIZE);
        }
        let needed = claimed + PREFIX_SIZE;
        let begins = |at: usize| {
            window.get(at..at + PREFIX_SIZE).is_some_and(|next| plausible_at(next, header.order, &self.times))
        };
        match () {
            () if window.len() < needed => Err(needed),
            () if begins(HEADER_SIZE) => Ok(HEADER_SIZE),
            () => Ok(claimed),
        }
    }

    /// The sequence is lost at the current offset. That byte is not looked at again.
    fn lose<'a>(&mut self, what: Field) -> Step<'a> {
        let offset = self.offset();
        self.state = State::Lost(self.offset);
        self.advance(1);
        Step::Corrupt { offset, what }
    }

    fn step_lost<'a>(&mut self, window: &'a [u8], since: u64) -> Step<'a> {
        let pid = self.header.map(|header| header.pid);
        match scan(window, self.order(), pid, &self.times) {
            Scan::Found(at) => {
                self.advance(at as u64);
                self.state = State::Records;
                Step::Resynced { skipped: self.offset.saturating_sub(since) }
            }
            Scan::Nothing { until: 0, at_least } => Step::NeedMore { at_least },
            Scan::Nothing { until, .. } => {
                self.advance(until as u64);
                Step::Scanned
            }
        }
    }

    fn step_record<'a>(&mut self, window: &'a [u8]) -> Step<'a> {
        let Some(prefix) = self.prefix(window) else {
            return Step::NeedMore { at_least: PREFIX_SIZE };
        };
        let known = RecordId::from_number(prefix.id);
        let Some(id) = known else {
            return self.step_unknown(window, prefix);
        };
        let limit = if id == RecordId::Load { MAX_LOAD } else { MAX_BUFFERED_RECORD };
        if prefix.total_size > limit || prefix.total < id.fixed_size() {
            return self.lose(Field::TotalSize);
        }
        let raw = RawRecord {
            order: self.order(),
            options: self.options,
            window,
            of_v8: self.header.is_some_and(|header| header.pad1 == V8_PAD1),
            total: prefix.total,
        };
        let (body, limit) = match raw.body(id) {
            Parsed::NeedMore(at_least) => return Step::NeedMore { at_least },
            Parsed::Body(body) => return self.accept(prefix, body),
            Parsed::Announcing(body) => (Ok(body), MAX_BUFFERED_RECORD),
            Parsed::Doubtful(_, end) if self.is_followed_at(window, end) => {
                return self.lose(Field::Follower);
            }
            Parsed::Doubtful(body, _) => (Ok(body), MAX_LOOK_AHEAD),
            Parsed::Bad(what) => (Err(what), MAX_LOOK_AHEAD),
        };
        match (self.follower(window, prefix, limit), body) {
            (Follower::Plausible, Ok(body)) => self.accept(prefix, body),
            (Follower::Plausible, Err(what)) => self.skip_bad(prefix, what),
            (Follower::NeedMore(at_least), _) => Step::NeedMore { at_least },
            (Follower::Implausible, Ok(_)) => self.lose(Field::Follower),
            (Follower::Implausible, Err(what)) => self.lose(what),
        }
    }

    fn prefix(&self, window: &[u8]) -> Option<Prefix> {
        let order = self.order();
        let total_size = order.u32(window, 4)?;
        Some(Prefix {
            id: order.u32(window, 0)?,
            total_size,
            total: usize::try_from(total_size).unwrap_or(usize::MAX),
            time: order.u64(window, 8)?,
        })
    }

    /// Another header (the id is the magic), a type of the future, or damage.
    fn step_unknown<'a>(&mut self, window: &'a [u8], prefix: Prefix) -> Step<'a> {
        if prefix.id == MAGIC || prefix.id == MAGIC.swap_bytes() {
            if window.len() < HEADER_SIZE {
                return Step::NeedMore { at_least: HEADER_SIZE };
            }
            return match FileHeader::parse(window) {
                Some(header) if header.is_plausible() => self.accept_header(header, window),
                _ => self.lose(Field::HeaderSize),
            };
        }
        if prefix.id > MAX_UNKNOWN_ID {
            return self.lose(Field::Id);
        }
        if prefix.total < PREFIX_SIZE || prefix.total_size > MAX_BUFFERED_RECORD {
            return self.lose(Field::TotalSize);
        }
        match self.follower(window, prefix, MAX_LOOK_AHEAD) {
            Follower::Plausible => self.accept(prefix, Body::Unknown { id: prefix.id }),
            Follower::NeedMore(at_least) => Step::NeedMore { at_least },
            Follower::Implausible => self.lose(Field::Id),
        }
    }

    fn accept<'a>(&mut self, prefix: Prefix, body: Body<'a>) -> Step<'a> {
        let record = Record { offset: self.offset(), raw_time: prefix.time, total_size: prefix.total_size, body };
        self.times.note(prefix.time);
        self.advance(u64::from(prefix.total_size));
        Step::Record(record)
    }

    fn skip_bad<'a>(&mut self, prefix: Prefix, what: Field) -> Step<'a> {
        let offset = self.offset();
        self.advance(u64::from(prefix.total_size));
        Step::BadRecord { offset, total_size: prefix.total_size, what }
    }

    fn is_followed_at(&self, window: &[u8], at: usize) -> bool {
        let next = window.get(at..).filter(|next| next.len() >= PREFIX_SIZE);
        next.is_some_and(|next| plausible_at(next, self.order(), &self.times))
    }

    /// What stands behind a record whose size is in doubt.
    fn follower(&self, window: &[u8], prefix: Prefix, limit: u32) -> Follower {
        if prefix.total_size > limit {
            return Follower::Implausible;
        }
        let end = prefix.total;
        match window.get(end..) {
            Some(next) if next.len() >= PREFIX_SIZE => {
                if plausible_at(next, self.order(), &self.times) {
                    Follower::Plausible
                } else {
                    Follower::Implausible
                }
            }
            _ => Follower::NeedMore(end + PREFIX_SIZE),
        }
    }
}

enum Follower {
    Plausible,
    Implausible,
    NeedMore(usize),
}
