//! Where CPython keeps what, for the version that the process runs.
//!
//! From 3.13 on the runtime's state begins with the offsets that readers need. Those of the versions before are the same in
//! all release builds for 64-bit machines, and stand here. Up to 3.10 frames are objects, and each runs in a native frame of
//! its own.

use jitprof_common::listed::{Field, ListSpec, Step};
use jitprof_common::units::Avma;

use super::threads::{self, Threads};
use super::{MAX_WORDS, UNIT, Version};
use crate::{Memory, ReadError, Reader, Symbols};

/// Where in each object its type is.
pub(super) const TYPE: u64 = 8;
/// Where in an object of variable size that size is; so the length of a string.
pub(super) const SIZE: u64 = 16;
/// What the state of a runtime begins with that says its offsets.
const COOKIE: [u8; 8] = *b"xdebugpy";
/// Bytes before the offsets: the cookie, the version, and whether threads run freely.
const BEFORE_OFFSETS: u64 = 24;
/// Offsets that are read; those of 3.15 that are needed are among the first 70.
const OFFSETS: usize = 96;
/// Bytes that the parts of the interpreter's structures may be apart. The state of an interpreter has 200,000 or so.
const MAX_OFFSET: u64 = 1 << 20;
/// Where a code object has its number, and where its file, from 3.12 on: bytes behind its first line.
const VERSION: u64 = 24;
const FILE: u64 = 44;
/// Functions that came with the versions that have no symbol of their number, the latest first.
const CAME_WITH: [(&str, u8); 3] = [("Py_NewRef", 10), ("PyFrame_GetCode", 9), ("PyCode_NewWithPosOnlyArgs", 8)];
/// The bits of a code object's address that are none, where they are used as tags.
const TAGS: u64 = 3;
/// Which word of a string is its hash.
const HASH_WORD: u8 = 3;
/// What the frame at which a loop begins has as its owner, or more.
const OWNED_BY_LOOP: u8 = 3;

/// Why a process's CPython cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The module does not say which version of CPython it is: it is none, or one before 3.8.
    #[error("no symbol of CPython's version")]
    NoVersion,
    /// How this version keeps its frames is not known.
    #[error("the frames of CPython {0} are not known")]
    UnknownVersion(Version),
    /// Its threads run without a common lock, and its frames have their own copies of code.
    #[error("CPython {0} is built without the global lock")]
    FreeThreaded(Version),
    /// The interpreter has no threads yet, or none any more.
    #[error("CPython {0} has not started yet")]
    NotStarted(Version),
    /// The build lacks something that cannot be made up for.
    #[error("CPython {version} does not say {what}")]
    Missing {
        /// The version.
        version: Version,
        /// The symbol that would have it.
        what: &'static str,
    },
    /// What the build says cannot be.
    #[error("CPython {version} says what cannot be for {what}")]
    Implausible {
        /// The version.
        version: Version,
        /// The symbol or the offset.
        what: &'static str,
    },
    /// The module's data could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// How it is known of a record where a native frame of the interpreter has begun to run Python frames: it is behind the
/// last one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryMark {
    /// The uppermost byte of the second word is at least this.
    pub least: u8,
    /// Whether the record that has it is of a Python function itself; else it is of none.
    pub is_frame: bool,
    /// Whether the outermost record of a thread is of no function, although it has no loop that begins there.
    pub has_base: bool,
}

/// Offsets and addresses of one process' CPython.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    version: Version,
    walk: ListSpec,
    entry: EntryMark,
    runtime: Avma,
    threads: Threads,
    pub(super) types: Types,
    pub(super) code: Code,
    pub(super) strings: Strings,
}

/// The addresses of types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Types {
    pub(super) code: u64,
    pub(super) string: u64,
    pub(super) bytes: Option<u64>,
}

/// Offsets in a code object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) file: u64,
    pub(super) name: u64,
    pub(super) lines: u64,
    pub(super) line_table: LineTable,
    pub(super) first_line: u64,
    pub(super) instructions: Instructions,
    /// Four bytes, a number that no other code object of the process has or has had. Up to 3.11 there is none.
    pub(super) version: Option<u64>,
    /// Bytes that have all of them but the instructions.
    pub(super) span: usize,
}

/// Where the instructions of a code object are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instructions {
    /// In it, from this offset on: a frame has the address of one.
    Within(u64),
    /// In an object of bytes that this offset leads to. A frame has the distance of one from the first, in so many bytes.
    Apart(u64, u64),
}

/// How a table of lines is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineTable {
    /// Places with columns.
    Places,
    /// 3.10: how many bytes of code have which line, relative to the line before.
    Ranges,
    /// Up to 3.9: after how many bytes of code the line changes, and how.
    Steps,
}

/// Where the characters of a string begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Strings {
    /// All of them are ASCII.
    pub(super) ascii: u64,
    pub(super) other: u64,
}

/// Offsets that only the way to the frames needs.
struct Offsets {
    threads: Threads,
    /// From a thread's state to its innermost frame: all but the last lead to an address.
    to_frame: Vec<u64>,
    frame: Frame,
    code: Code,
    strings: Strings,
}

/// Offsets in a frame.
struct Frame {
    code: u64,
    previous: u64,
    instruction: u64,
    /// The byte that says whether a loop begins here; none if one does in each.
    entry: Option<u64>,
}

impl Layout {
    /// Reads what the process's CPython says of itself; once for each process, as none of it changes. `python` has the
    /// symbols of the module with the interpreter, `libc` those of the C library.
    ///
    /// # Errors
    /// The module has no CPython, one whose version is not known, one that has not started yet, or one that was built
    /// without what is needed.
    pub fn read<S: Symbols, M: Memory>(python: &S, libc: Option<&S>, reader: &Reader<M>) -> Result<Self, LayoutError> {
        let version = version(python, reader)?;
        if version.major != 3 || !(8..=15).contains(&version.minor) {
            return Err(LayoutError::UnknownVersion(version));
        }
        let need = |what| python.address_of(what).ok_or(LayoutError::Missing { version, what });
        let runtime = need("_PyRuntime")?;
        let types = Types {
            code: need("PyCode_Type")?.0,
            string: need("PyUnicode_Type")?.0,
            bytes: python.address_of("PyBytes_Type").map(|at| at.0),
        };
        let offsets = match version.minor {
            ..=10 => frames_as_objects(version.minor),
            11 => before_offsets(11),
            12 => before_offsets(12),
            _ => said_offsets(version, runtime, reader)?,
        };
        let bases = threads::bases(version, runtime, &offsets.threads, (python, libc), reader)?;
        let walk = walk(version, &bases, &offsets)?;
        let entry = match version.minor {
            ..=10 => EntryMark { least: 0, is_frame: true, has_base: false },
            11 => EntryMark { least: 1, is_frame: true, has_base: false },
            minor => EntryMark { least: OWNED_BY_LOOP, is_frame: false, has_base: minor >= 15 },
        };
        let Offsets { threads, code, strings, .. } = offsets;
        Ok(Self { version, walk, entry, runtime, threads, types, code, strings })
    }

    /// The version of CPython.
    pub fn version(&self) -> Version {
        self.version
    }

    /// How the frames of a thread are walked. Of each record the first word is the code object, the second has the
    /// [instruction](super::INSTRUCTION) and, in the uppermost byte, what says of an [entry](Self::entry).
    pub fn walk(&self) -> &ListSpec {
        &self.walk
    }

    /// The threads that run Python, as the runtime lists them: the number of each, in the process' own namespace, and its
    /// thread pointer.
    ///
    /// # Errors
    /// The lists cannot be read.
    pub fn thread_pointers<M: Memory>(&self, reader: &Reader<M>) -> Result<Vec<(u32, u64)>, ReadError> {
        threads::pointers(self.runtime, &self.threads, reader)
    }

    /// How entries are known.
    pub fn entry(&self) -> EntryMark {
        self.entry
    }

    /// Whether a thread that calls another interpreter is found by the state that it had before. From 3.12 on the state that
    /// it gets is put in each of the places.
    pub fn keeps_first_state(&self) -> bool {
        self.version.minor < 12
    }
}

fn version<S: Symbols, M: Memory>(python: &S, reader: &Reader<M>) -> Result<Version, LayoutError> {
    if let Some(at) = python.address_of("Py_Version") {
        let [_, micro, minor, major] = reader.u32(at)?.to_le_bytes();
        return Ok(Version { major, minor, micro: Some(micro) });
    }
    // What each of the versions before came with.
    let (_, minor) =
        CAME_WITH.into_iter().find(|(name, _)| python.address_of(name).is_some()).ok_or(LayoutError::NoVersion)?;
    Ok(Version { major: 3, minor, micro: None })
}

/// How frames are walked from what leads to a thread's state.
fn walk(version: Version, bases: &[Vec<Step>], offsets: &Offsets) -> Result<ListSpec, LayoutError> {
    let to_frame = || offsets.to_frame.iter().map(|offset| Step::load(*offset));
    let bases: Vec<Vec<Step>> = bases.iter().map(|base| base.iter().copied().chain(to_frame()).collect()).collect();
    let bases: Vec<&[Step]> = bases.iter().map(Vec::as_slice).collect();
    let Frame { code, previous, instruction, entry } = offsets.frame;
    let implausible = LayoutError::Implausible { version, what: "interpreter_frame" };
    let offset = |offset: u64| u16::try_from(offset).map_err(|_| implausible.clone());
    let tags = if version.minor >= 14 { TAGS } else { 0 };
    let of_instruction = match offsets.code.instructions {
        Instructions::Within(_) => super::CODE,
        Instructions::Apart(..) => u64::from(u32::MAX),
    };
    let mut fields = vec![
        Field::new(offset(code)?, super::CODE & !tags, 0, 0),
        Field::new(offset(instruction)?, of_instruction, 1, 0),
    ];
    if let Some(entry) = entry {
        // The word that has the byte: what is behind it is the function's, and there may be nothing.
        let (within, bits) = (entry - entry % 8, u8::try_from(entry % 8 * 8).unwrap_or(0));
        fields.push(Field::new(offset(within)?, 0xff << bits, 1, 56 - bits));
    }
    let walk = ListSpec::new(&bases, &fields, offset(previous)?).ok_or(implausible.clone())?;
    // Of the word that has them.
    let half = |at: u64, mask: u64, to: u8| {
        let bits = u8::try_from(at % 8 * 8).unwrap_or(0);
        offset(at - at % 8).map(|offset| Field::new(offset, mask << bits, to, super::NUMBER_AT - bits))
    };
    let walk = match offsets.code.version {
        Some(at) => walk.with_first(&[half(at, super::NUMBER, 0)?]),
        None => {
            let name = Field::new(offset(offsets.code.name)?, super::NUMBER, 0, super::NUMBER_AT);
            let shift = super::NUMBER_AT - super::FILE_BITS;
            let file = Field::new(offset(offsets.code.file)?, super::NUMBER << super::FILE_BITS, 0, shift);
            let first_line = half(offsets.code.first_line, super::FIRST_LINE, 1)?;
            walk.with_first(&[name.through(HASH_WORD), file, first_line])
        }
    };
    walk.ok_or(implausible)
}

/// Those of the versions in which a thread's state leads to the object of the innermost frame.
fn frames_as_objects(minor: u8) -> Offsets {
    let (line_table, instruction, unit) =
        if minor == 10 { (LineTable::Ranges, 96, UNIT) } else { (LineTable::Steps, 104, 1) };
    Offsets {
        threads: Threads { interpreters: 32, next_interpreter: 0, first: 8, next: 8, id: 176, number: None },
        to_frame: vec![24],
        frame: Frame { code: 32, previous: 24, instruction, entry: None },
        code: Code {
            file: 104,
            name: 112,
            lines: 120,
            line_table,
            first_line: 40,
            instructions: Instructions::Apart(48, unit),
            version: None,
            span: 128,
        },
        strings: Strings { ascii: 48, other: 72 },
    }
}

fn before_offsets(minor: u8) -> Offsets {
    let is_first = minor == 11;
    let (at, span) = if is_first { (72, 184) } else { (68, 192) };
    Offsets {
        threads: Threads {
            interpreters: 40,
            next_interpreter: 0,
            first: if is_first { 16 } else { 72 },
            next: 8,
            id: if is_first { 152 } else { 136 },
            number: Some(if is_first { 160 } else { 144 }),
        },
        // A thread's state leads to a part of the C stack that leads to the frame.
        to_frame: vec![56, if is_first { 8 } else { 0 }],
        frame: if is_first {
            Frame { code: 32, previous: 48, instruction: 56, entry: Some(68) }
        } else {
            Frame { code: 0, previous: 8, instruction: 56, entry: Some(70) }
        },
        code: Code {
            file: 112,
            name: 128,
            lines: 136,
            line_table: LineTable::Places,
            first_line: at,
            instructions: Instructions::Within(span),
            version: (!is_first).then_some(at + VERSION),
            span: 144,
        },
        strings: if is_first { Strings { ascii: 48, other: 72 } } else { Strings { ascii: 40, other: 56 } },
    }
}

/// The offsets that the runtime says, group by group, each of which begins with the size of what it is about.
fn said_offsets<M: Memory>(version: Version, runtime: Avma, reader: &Reader<M>) -> Result<Offsets, LayoutError> {
    let mut head = [0; BEFORE_OFFSETS as usize];
    reader.bytes(runtime, &mut head)?;
    let [cookie, said, free] = [0, 8, 16].map(|at| head.get(at..).and_then(<[u8]>::first_chunk::<8>).copied());
    let implausible = |what| LayoutError::Implausible { version, what };
    if cookie != Some(COOKIE) {
        return Err(implausible("_PyRuntime"));
    }
    let said = said.map_or(0, u64::from_le_bytes);
    if (said >> 24, said >> 16 & 0xff) != (version.major.into(), version.minor.into()) {
        return Err(implausible("_PyRuntime"));
    }
    if free != Some([0; 8]) {
        return Err(LayoutError::FreeThreaded(version));
    }
    let start = runtime.0.checked_add(BEFORE_OFFSETS).ok_or(implausible("_PyRuntime"))?;
    let mut bytes = [0; OFFSETS * 8];
    reader.bytes(Avma(start), &mut bytes)?;
    let words = bytes.as_chunks::<8>().0;
    let word = |at: usize, what| {
        let word = words.get(at).map(|bytes| u64::from_le_bytes(*bytes));
        word.filter(|word| *word < MAX_OFFSET).ok_or(implausible(what))
    };
    let is_first = version.minor == 13;
    // The sizes of the groups, in words: of the runtime, an interpreter, a thread and a frame.
    let interpreter = 3;
    let thread = interpreter + if is_first { 13 } else { 16 };
    // What came between the frame and the thread's identifier in 3.15, and what at the end and behind it.
    let (more, behind) = if version.minor >= 15 { (3, 5) } else { (0, 0) };
    let frame = thread + 9 + more + behind;
    let code = frame + if is_first { 6 } else { 8 };
    let code = Code {
        file: word(code + 1, "co_filename")?,
        name: word(code + 3, "co_qualname")?,
        lines: word(code + 4, "co_linetable")?,
        line_table: LineTable::Places,
        first_line: word(code + 5, "co_firstlineno")?,
        instructions: Instructions::Within(word(code + 9, "co_code_adaptive")?),
        version: None,
        span: 0,
    };
    // It is not said where the number is, but it has stood in one place between two that are.
    let version = code.first_line.checked_add(VERSION).filter(|_| code.file == code.first_line + FILE);
    let span = [code.file, code.name, code.lines, code.first_line].into_iter().max().unwrap_or(0) + 8;
    let span = usize::try_from(span).ok().filter(|span| *span <= MAX_WORDS * 8);
    let span = span.ok_or(implausible("code_object"))?;
    Ok(Offsets {
        threads: Threads {
            interpreters: word(2, "interpreters_head")?,
            next_interpreter: word(interpreter + 2, "interpreter_state.next")?,
            first: word(interpreter + 3, "threads_head")?,
            next: word(thread + 2, "thread_state.next")?,
            id: word(thread + 5 + more, "thread_id")?,
            number: Some(word(thread + 6 + more, "native_thread_id")?),
        },
        to_frame: vec![word(thread + 4, "current_frame")?],
        frame: Frame {
            previous: word(frame + 1, "previous")?,
            code: word(frame + 2, "executable")?,
            instruction: word(frame + 3, "instr_ptr")?,
            entry: Some(word(frame + 5, "owner")?),
        },
        code: Code { version, span, ..code },
        strings: Strings { ascii: 40, other: 56 },
    })
}
