//! Where PHP keeps what, for the version that the process runs.
//!
//! It says none of its offsets; those of each version's builds for 64-bit machines without threads stand here.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind, Register};
use jitprof_common::listed::{Detour, Field, ListSpec, Step};
use jitprof_common::units::Avma;

use super::{ADDRESS, FIRST_LINE, HASHED, HASHES, NAME, PRINT_AT, Version};
use crate::{Memory, ReadError, Reader, Symbols};

/// Where in the interpreter's variables the innermost frame is.
const CURRENT: u64 = 488;
/// What the text that says the version begins with.
const ENGINE: &str = "Zend Engine v";
/// Bytes of it that are looked at.
const MAX_TEXT: usize = 64;
/// Bytes of the function that are looked at which returns it.
const MAX_CODE: usize = 32;
/// Of a frame: where its instruction is, its function, its object, what is said of the call, and its caller's frame.
const FRAME_INSTRUCTION: u16 = 0;
const FRAME_FUNCTION: u16 = 24;
const FRAME_OBJECT: u16 = 32;
const FRAME_CALL: u16 = 40;
const FRAME_CALLER: u16 = 48;
/// Where a generator has others run in its place, the frame that it has called them from stands in its object, without a
/// function; the generators between it and the one that runs hang on it. From 8.0 on. In a version whose objects are otherwise,
/// that frame is in another place, and they are left out.
const DELEGATES: Detour =
    Detour { object: FRAME_OBJECT, unless: FRAME_FUNCTION, own: 184, element: 56, next: 152, reserved: 0 };
/// Which word of a string its hash is.
const STRING_HASH: u8 = 1;
/// The bit of a call by which a loop was begun, and which bit it becomes: the lowest one above the instruction.
const TOP: u32 = 17;
const TOP_SHIFT: u8 = 56 - TOP as u8;

/// Why a process's PHP cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The module does not say which version of PHP it is, or it is one with threads, whose variables are each thread's own.
    #[error("no symbols of PHP's")]
    NoVersion,
    /// Nothing was started yet, or all is over.
    #[error("PHP has not started yet")]
    NotStarted,
    /// How this version keeps its frames is not known.
    #[error("the frames of PHP {0} are not known")]
    UnknownVersion(Version),
    /// The module's data could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// How it is known of a record where a native frame of the interpreter has begun to run functions: it is the last one of
/// them. Of PHP's own functions it says nothing, which are called in the same way and run nowhere but on the native stack; and
/// a record without a function is none at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryMark {
    /// The uppermost byte of the second word is at least this.
    pub least: u8,
}

/// Offsets and addresses of one process' PHP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    version: Version,
    walk: ListSpec,
    /// Where the interpreter's variables are.
    pub(super) variables: u64,
    pub(super) function: Offsets,
}

/// Offsets in a function of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offsets {
    /// How many instructions it has.
    pub(super) count: usize,
    pub(super) instructions: usize,
    pub(super) file: usize,
    /// Its first line, and its last one.
    pub(super) lines: usize,
    /// How many closures stand in it, and where they are listed: from 8.1 on.
    pub(super) closures: Option<(usize, usize)>,
}

impl Layout {
    /// Reads what the process's PHP says of itself; once for each process, as none of it changes. `php` has the symbols of
    /// the module with the interpreter.
    ///
    /// # Errors
    /// The module has no PHP, or one whose version is not known, or which has not started yet.
    pub fn read<S: Symbols, M: Memory>(php: &S, reader: &Reader<M>) -> Result<Self, LayoutError> {
        let need = |what| php.address_of(what).ok_or(LayoutError::NoVersion);
        let variables = need("executor_globals")?.0;
        let version = version(need("get_zend_version")?, reader)?;
        let unknown = LayoutError::UnknownVersion(version);
        let function = Offsets::of(version).ok_or(unknown.clone())?;
        let fields = [
            Field::new(FRAME_FUNCTION, ADDRESS, 0, 0),
            Field::new(FRAME_INSTRUCTION, ADDRESS, 1, 0),
            Field::new(FRAME_CALL, 1 << TOP, 1, TOP_SHIFT),
        ];
        let first = [Step::add(variables), Step::load(CURRENT)];
        let offset = |offset: usize| u16::try_from(offset).map_err(|_| unknown.clone());
        let of_function = [
            Field::new(offset(function.file)?, HASHED | HASHES, 0, PRINT_AT).through(STRING_HASH),
            Field::new(offset(NAME)?, HASHES, 0, PRINT_AT).through(STRING_HASH),
            Field::new(offset(function.lines)?, FIRST_LINE, 1, PRINT_AT),
        ];
        let walk = ListSpec::new(&[&first], &fields, FRAME_CALLER).and_then(|walk| walk.with_first(&of_function));
        let walk = if version.major < 8 { walk } else { walk.and_then(|walk| walk.with_detour(DELEGATES)) };
        let walk = walk.ok_or(unknown)?;
        Ok(Self { version, walk, variables, function })
    }

    /// The version of PHP.
    pub fn version(&self) -> Version {
        self.version
    }

    /// How the frames are walked. Of each record the first word is the function, with whether its path's hash was read and parts of
    /// that and of its name's above; the second has the instruction, a part of the first line, and in the uppermost byte what says
    /// of an [entry](Self::entry).
    pub fn walk(&self) -> &ListSpec {
        &self.walk
    }

    /// How entries are known.
    pub fn entry(&self) -> EntryMark {
        EntryMark { least: 1 }
    }
}

impl Offsets {
    fn of(version: Version) -> Option<Self> {
        let (count, instructions, file, closures) = match (version.major, version.minor) {
            (7, 4) => (60, 64, 136, None),
            (8, 0) => (68, 72, 144, None),
            (8, 1) => (68, 72, 144, Some((172, 184))),
            (8, 2) => (80, 88, 152, Some((180, 192))),
            (8, 3) => (76, 80, 144, Some((172, 184))),
            (8, 4) => (96, 104, 168, Some((188, 200))),
            _ => return None,
        };
        Some(Self { count, instructions, file, lines: file + 8, closures })
    }
}

/// The version, by the text that a function returns: the engine's, whose numbers go with those of PHP.
fn version<M: Memory>(function: Avma, reader: &Reader<M>) -> Result<Version, LayoutError> {
    let text = match text_of(reader, function)? {
        0 => return Err(LayoutError::NotStarted),
        text => reader.c_string(Avma(text), MAX_TEXT)?,
    };
    let text = String::from_utf8_lossy(&text);
    let rest = text.strip_prefix(ENGINE).ok_or(LayoutError::NoVersion)?;
    let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u8>);
    let mut number = || numbers.next().and_then(Result::ok).ok_or(LayoutError::NoVersion);
    let (engine, minor, micro) = (number()?, number()?, number()?);
    let major = engine.checked_add(4).ok_or(LayoutError::NoVersion)?;
    Ok(Version { major, minor, micro: Some(micro) })
}

/// What a function returns that does nothing but load the address of a text.
fn text_of<M: Memory>(reader: &Reader<M>, function: Avma) -> Result<u64, LayoutError> {
    let mut bytes = [0; MAX_CODE];
    reader.bytes(function, &mut bytes)?;
    let mut variable = None;
    for instruction in Decoder::with_ip(64, &bytes, function.0, DecoderOptions::NONE) {
        match instruction.mnemonic() {
            Mnemonic::Endbr64 | Mnemonic::Push | Mnemonic::Pop => {}
            Mnemonic::Mov if instruction.op0_register() == Register::RBP => {}
            Mnemonic::Mov
                if instruction.op0_register() == Register::RAX
                    && instruction.op1_kind() == OpKind::Memory
                    && instruction.is_ip_rel_memory_operand() =>
            {
                variable = Some(instruction.ip_rel_memory_address());
            }
            _ if instruction.flow_control() == FlowControl::Return => break,
            _ => return Err(LayoutError::NoVersion),
        }
    }
    Ok(reader.u64(Avma(variable.ok_or(LayoutError::NoVersion)?))?)
}
