//! Where Ruby keeps what, for the version that the process runs.
//!
//! It says none of its offsets; those of each version's builds for 64-bit machines stand here.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind};
use jitprof_common::listed::{ASIDE, Array, Field, ListSpec, Step};
use jitprof_common::units::Avma;

use super::collector::{Collector, CollectorOffsets};
use super::{INSTRUCTION, OLD_TO, Version};
use crate::cpython::variable_of;
use crate::{Memory, ReadError, Reader, Symbols};

/// Bytes of the text that says the version.
const MAX_TEXT: usize = 16;
/// Of a thread's state: where its frames end and begin, their size in words, and the innermost frame.
const INNERMOST: u64 = 16;
const WORD_BYTES: u64 = 8;
/// Of what is the process' own: its first thread.
const FIRST_THREAD: u64 = 40;
/// Of a frame: its instruction, the code that it runs, and the place up to which its environment has its head: the method,
/// what it was called with, and what kind of frame it is.
const FRAME_INSTRUCTION: u16 = 0;
const FRAME_CODE: u16 = 16;
const FRAME_ENVIRONMENT: u16 = 32;
const METHOD: u16 = ASIDE;
const FLAGS: u16 = ASIDE + 16;
/// Of a frame's flags: that a loop over instructions has begun at it, and the kind of frame.
const FINISH: u32 = 5;
const KIND: u32 = 16;
const KIND_BITS: u64 = 15;
/// The kinds that are no function's frames: a block that is written in C, and what lies below the outermost function.
const NO_FUNCTIONS: [u8; 2] = [6, 9];
/// Where in a record's second word the kind begins, and where what says of an entry is.
const KIND_AT: u32 = 56;
const ENTRY_AT: u32 = 63;
/// Bytes of functions that are looked at for where the table of symbols is.
const MAX_CODE: usize = 128;
/// From the begin of the table of symbols to where the symbols are.
const SYMBOLS: u64 = 16;

/// Why a process' Ruby cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The module does not say which version of Ruby it is.
    #[error("no symbols of Ruby's")]
    NoVersion,
    /// How this version keeps its frames is not known.
    #[error("the frames of Ruby {0} are not known")]
    UnknownVersion(Version),
    /// Where its threads have their frames could not be found.
    #[error("Ruby {0} does not show where its threads' frames are")]
    NoThreads(Version),
    /// How far its collector is could not be found: what has replaced other code would be taken for it.
    #[error("Ruby {0} does not show what its collector does")]
    NoCollector(Version),
    /// The module's data could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// How it is known of a record what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryMark {
    /// If the uppermost byte of the second word is at least this, a native frame of the interpreter has begun to run functions
    /// at this one: it is the last one of them.
    pub least: u8,
    /// If this bit is set of the number in that byte's lower half, it is no function's frame.
    pub no_frames: u16,
}

/// Offsets and addresses of one process' Ruby.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    version: Version,
    walk: ListSpec,
    walk_of_first_thread: Option<ListSpec>,
    /// Where the array of symbols is found.
    pub(super) symbols: Option<u64>,
    pub(super) collector: Collector,
    pub(super) offsets: Offsets,
}

/// Offsets that versions have differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offsets {
    /// From a frame to its caller's.
    frame_bytes: u16,
    /// Of a thread, its state.
    thread_state: u64,
    /// The bits of an object's flags that are set once it is old.
    pub(super) old: u64,
    collector: CollectorOffsets,
    /// Of a function's body: where the lines of its instructions are, how many there are, and which instruction has which.
    pub(super) lines: usize,
    pub(super) line_count: usize,
    pub(super) line_index: usize,
    /// Of the same, where it says where the code begins that was generated for it: micro versions have it at one of these.
    pub(super) entries: &'static [u64],
    /// Where a string has a short text, and whether its length stands in its flags then.
    pub(super) text: u64,
    pub(super) is_length_in_flags: bool,
    /// The bits of an array's flags, from bit 15 on, that say how many elements lie in it.
    pub(super) array_bits: u64,
    /// The last of the symbols whose numbers are what they are called by.
    pub(super) last_operator: u64,
}

impl Layout {
    /// Reads what the process' Ruby says of itself; once for each process, as none of it changes. `ruby` has the symbols of
    /// the module with the interpreter.
    ///
    /// # Errors
    /// The module has no Ruby, or one whose version or whose threads are not known.
    pub fn read<S: Symbols, M: Memory>(ruby: &S, reader: &Reader<M>) -> Result<Self, LayoutError> {
        let text = ruby.address_of("ruby_version").ok_or(LayoutError::NoVersion)?;
        let version = version(&reader.c_string(text, MAX_TEXT)?)?;
        let offsets = Offsets::of(version).ok_or(LayoutError::UnknownVersion(version))?;
        let no_threads = LayoutError::NoThreads(version);
        let state = state(ruby, reader).ok_or(no_threads.clone())?;
        let no_collector = LayoutError::NoCollector(version);
        let (process, to_collector, count) = process(ruby, reader).ok_or(no_collector.clone())?;
        let to_collector = [&process[..], &[to_collector]].concat();
        let collector = Collector::new(reader, (to_collector, count), offsets.collector).ok_or(no_collector)?;
        let walk_of = |state: &[Step]| {
            let walk =
                walk(state, offsets.frame_bytes)?.with_first(&[Field::new(0, offsets.old, 1, shift(0, OLD_TO))])?;
            walk.with_state(collector.way(), &collector.fields())
        };
        let walk = walk_of(&state).ok_or(no_threads)?;
        let to_first_thread = [Step::load(FIRST_THREAD), Step::load(offsets.thread_state)];
        let walk_of_first_thread = walk_of(&[&process[..], &to_first_thread].concat());
        let symbols = ruby.address_of("rb_id2str").and_then(|function| symbols(reader, function));
        Ok(Self { version, walk, walk_of_first_thread, symbols, collector, offsets })
    }

    /// The version of Ruby.
    pub fn version(&self) -> Version {
        self.version
    }

    /// How the frames are walked. Of each record the first word is the function's code, or the method if it is written in C;
    /// the second has the [instruction](super::INSTRUCTION), 0 of those, and in the uppermost byte what says of an
    /// [entry](Self::entry), and whether what the first word is was old.
    pub fn walk(&self) -> &ListSpec {
        &self.walk
    }

    /// The same of the process' first thread alone, whatever a thread pointer is.
    pub fn walk_of_first_thread(&self) -> Option<&ListSpec> {
        self.walk_of_first_thread.as_ref()
    }

    /// The bits of a record's second word that are set if its code was old.
    pub fn was_old(&self) -> u64 {
        self.offsets.old << OLD_TO
    }

    /// How entries are known.
    pub fn entry(&self) -> EntryMark {
        let no_frames = NO_FUNCTIONS.iter().fold(0, |bits, kind| bits | 1 << kind);
        EntryMark { least: 1 << (ENTRY_AT - KIND_AT), no_frames }
    }
}

impl Offsets {
    fn of(version: Version) -> Option<Self> {
        let of_31 = Self {
            frame_bytes: 64,
            thread_state: 40,
            old: 3 << 5,
            collector: CollectorOffsets::OF_31,
            lines: 120,
            line_count: 136,
            line_index: 144,
            entries: &[280],
            text: 16,
            is_length_in_flags: true,
            array_bits: 3,
            last_operator: 169,
        };
        let of_33 = Self {
            frame_bytes: 56,
            thread_state: 48,
            old: 1 << 5,
            collector: CollectorOffsets::OF_33,
            lines: 112,
            line_count: 128,
            line_index: 136,
            entries: &[288, 296],
            text: 24,
            is_length_in_flags: false,
            array_bits: 127,
            ..of_31
        };
        match (version.major, version.minor) {
            (3, 1) => Some(of_31),
            (3, 3) => Some(of_33),
            _ => None,
        }
    }
}

fn version(text: &[u8]) -> Result<Version, LayoutError> {
    let text = String::from_utf8_lossy(text);
    let mut numbers = text.split('.').map(str::parse::<u8>);
    let mut number = || numbers.next().and_then(Result::ok).ok_or(LayoutError::NoVersion);
    Ok(Version { major: number()?, minor: number()?, micro: Some(number()?) })
}

/// The steps to a thread's state: `rb_errinfo` returns a word of it.
fn state<S: Symbols, M: Memory>(ruby: &S, reader: &Reader<M>) -> Option<Vec<Step>> {
    let mut steps = variable_of(reader, ruby.address_of("rb_errinfo")?)?;
    steps.pop_if(|step| step.op == Step::LOAD)?;
    steps.last().is_some_and(|step| step.op == Step::LOAD).then_some(steps)
}

/// The steps to what is the process' own, and to the collector from there, with where that has the number of collections, as
/// `rb_gc_count` goes them.
fn process<S: Symbols, M: Memory>(ruby: &S, reader: &Reader<M>) -> Option<(Vec<Step>, Step, u16)> {
    let function = ruby.address_of("rb_gc_count")?;
    let mut code = [0; MAX_CODE];
    reader.bytes(function, &mut code).ok()?;
    let (mut variable, mut loads) = (None, Vec::new());
    for instruction in &mut Decoder::with_ip(64, &code, function.0, DecoderOptions::NONE) {
        match instruction.flow_control() {
            FlowControl::Return => break,
            FlowControl::Next => {}
            _ => return None,
        }
        let is_of_memory = instruction.op_count() > 1 && instruction.op1_kind() == OpKind::Memory;
        match instruction.mnemonic() {
            Mnemonic::Mov | Mnemonic::Lea if is_of_memory && instruction.is_ip_rel_memory_operand() => {
                variable = Some((instruction.mnemonic(), instruction.ip_rel_memory_address()));
            }
            Mnemonic::Mov if is_of_memory => loads.push(instruction.memory_displacement64()),
            _ => {}
        }
    }
    // The address of the variable is known when a library is linked, or when it is loaded, or it is the instruction's.
    let (variable, of_process, count) = match (variable?, &loads[..]) {
        ((Mnemonic::Lea, at), [0, of_process, count]) => (at, of_process, count),
        ((Mnemonic::Mov, at), [0, of_process, count]) => (reader.u64(Avma(at)).ok()?, of_process, count),
        ((Mnemonic::Mov, at), [of_process, count]) => (at, of_process, count),
        _ => return None,
    };
    let way = vec![Step::add(variable), Step::load(0)];
    Some((way, Step::load(*of_process), u16::try_from(*count).ok()?))
}

/// Frames are an array, the innermost first; the last one of them is below the outermost function.
fn walk(state: &[Step], frame_bytes: u16) -> Option<ListSpec> {
    let first = [state, &[Step::load(INNERMOST)]].concat();
    let end = [state, &[Step::extent(WORD_BYTES), Step::add(u64::from(frame_bytes).wrapping_neg())]].concat();
    let fields = [
        Field::new(FRAME_CODE, u64::MAX, 0, 0),
        Field::new(METHOD, u64::MAX, 0, 0).unless(FRAME_CODE),
        Field::new(FRAME_INSTRUCTION, INSTRUCTION, 1, 0),
        Field::new(FLAGS, KIND_BITS << KIND, 1, shift(KIND, KIND_AT)),
        Field::new(FLAGS, 1 << FINISH, 1, shift(FINISH, ENTRY_AT)),
    ];
    ListSpec::of_array(&[&first], &fields, Array { stride: frame_bytes, end: &end, aside: FRAME_ENVIRONMENT })
}

fn shift(from: u32, to: u32) -> u8 {
    u8::try_from(to - from).unwrap_or(0)
}

/// Where the array of symbols is found: `rb_id2str`, or where that goes on, looks at how many symbols there are, and at it.
fn symbols<M: Memory>(reader: &Reader<M>, function: Avma) -> Option<u64> {
    let (mut looked_at, goes_on) = variables(reader, function)?;
    if let Some(further) = goes_on {
        looked_at.extend(variables(reader, Avma(further))?.0);
    }
    let array_of = |table: &u64| table.checked_add(SYMBOLS).filter(|array| looked_at.contains(array));
    looked_at.iter().find_map(array_of)
}

/// The variables that a function looks at, and where its first jump or call leads that is not to itself.
fn variables<M: Memory>(reader: &Reader<M>, function: Avma) -> Option<(Vec<u64>, Option<u64>)> {
    let mut code = [0; MAX_CODE];
    reader.bytes(function, &mut code).ok()?;
    let mut looked_at = Vec::new();
    for instruction in &mut Decoder::with_ip(64, &code, function.0, DecoderOptions::NONE) {
        if (0..instruction.op_count()).any(|at| instruction.op_kind(at) == OpKind::Memory)
            && instruction.is_ip_rel_memory_operand()
        {
            looked_at.push(instruction.ip_rel_memory_address());
        }
        match instruction.flow_control() {
            FlowControl::UnconditionalBranch => return Some((looked_at, Some(instruction.near_branch_target()))),
            FlowControl::Return => break,
            _ => {}
        }
    }
    Some((looked_at, None))
}
