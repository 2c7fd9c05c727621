//! What a running process' own tables say of its generated code: names, tiers, frames.
//!
//! The tables are those that the runtime keeps for itself or for debuggers ([`jitprof_runtimes`]); nothing is asked of the
//! process, written or stopped. What is read is the target's choice: each reading has a budget, and what it costs is
//! paced by who asks. [`RuntimeReaders`] keeps what the last reading of each process has found, so that an answer says
//! what is different.

mod beam;
mod code;
mod frames;
mod gdb_list;
mod hotspot;
mod known_files;
mod libgcc;
mod modules;
mod php;
mod python;
mod ruby;
mod threads;
mod unloading;
mod v8;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jitprof_common::units::{Avma, MonoNs, Pid};
use jitprof_runtimes::{Budget, Memory, Reader};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use self::beam::Beam;
pub use self::frames::{
    Capture, DependsOn, DescribedFrame, DescribedFrames, DescribedFunction, EntryMark, FrameAsk, ListCapture,
    ListedCode, LoopCode, Making, ParkedStack, TakeRead, WhyUnnamed,
};
use self::gdb_list::Lists;
use self::hotspot::HotSpot;
use self::known_files::KnownFiles;
use self::modules::Modules;
use self::php::Php;
use self::python::Python;
use self::ruby::Ruby;
pub use self::threads::ThreadLists;
use self::v8::V8;
use crate::cost::thread_cpu_time;
use crate::peek::{read_memory, read_memory_of_each};
use crate::process::ProcessId;
use crate::process::apart::Waits;
use crate::process::open::{FileIdentity, MapPlace};

/// What one reading may cost: half a gigabyte, and a tenth of a second or so. A JVM with 20,000 methods takes a quarter.
const BUDGET: Budget = Budget { pages: 1 << 17, steps: 1 << 22 };
/// The same of a look at some frames: 128 MB, some 50 ms.
const DESCRIBE_BUDGET: Budget = Budget { pages: 1 << 15, steps: 1 << 21 };
/// A symbol by which V8's module is known.
const V8_TABLES: &str = "v8dbg_class_Map__instance_type__uint16_t";
/// Processes of which a reading is kept; those that are kept stay.
const MAX_READERS: usize = 256;
/// Bytes of all that is kept: some MiB for each large JVM.
const MAX_KEPT_BYTES: usize = 256 << 20;
/// How long what registers code with a debugger is not looked for in further modules of a process.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// One part of so many of both is left to others by a user's processes; root's may take all.
const LEFT_TO_OTHERS: usize = 4;
/// All addresses: the first, and how many.
const EVERYWHERE: (Avma, u64) = (Avma(0), u64::MAX);
/// Said of processes that there is no room for.
pub(crate) const NO_ROOM: &str = "there is no room for the tables of so many or so large runtimes";

/// What a reading has found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeRead {
    /// The runtime, as in `HotSpot 17.0.15+6`; none if the process has none whose tables can be read.
    pub runtime: Option<String>,
    /// Why its tables cannot be read although it is known.
    pub problem: Option<String>,
    /// Nothing is known from before: what was found earlier and is not among the changes is not there.
    pub anew: bool,
    /// What is different from the reading before, in order.
    pub changes: Vec<CodeChange>,
    /// Not everything was looked at.
    pub incomplete: bool,
    /// What else was not got of lists, which is no reason to doubt what was.
    #[serde(default)]
    pub unread: Missed,
    /// What it has cost, in nanoseconds of CPU time.
    pub cpu_ns: u64,
    /// Frames are asked about, with what samples take along of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capture: Option<Capture>,
    /// There are lists to be read again although frames are asked about.
    #[serde(default)]
    pub lists: bool,
    /// What the lists have is unwinding data alone: they name nothing.
    #[serde(default)]
    pub rows_alone: bool,
    /// Where code may have come since the reading before and gone again: first byte, length. Where nothing was at that time,
    /// there may have been other code than what is there now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub may_have_passed: Vec<(Avma, u64)>,
    /// Where the runtime puts all code that the lists have, and says of each piece whether it was there before: first byte,
    /// length. What is met there without a name is worth a reading soon.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub heaps: Vec<(Avma, u64)>,
    /// Code there uses the frame pointer for something else, but for its interpreter's: where nothing is known of it, it does not
    /// lead to the caller.
    #[serde(default)]
    pub loses_frame_pointers: bool,
    /// How many classes the runtime has unloaded, if it says so. An answer about frames is of what was there as long as it
    /// has unloaded no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unloads: Option<u64>,
    /// See [`DescribedFrames::entries`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<Avma>,
    /// Where the process calls when it registers code with a debugger. For whoever sets breakpoints there, and nobody else.
    #[serde(skip)]
    pub sites: Vec<CallSite>,
    /// Since when such calls are told, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_since: Option<MonoNs>,
    /// Why some of them are not, though that is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untold: Option<String>,
}

/// A function that a process calls when it registers code with a debugger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallSite {
    /// Where the file with it is mapped.
    pub place: MapPlace,
    /// Which file that is.
    pub identity: FileIdentity,
    /// Where in the file it begins, in bytes.
    pub offset: u64,
    /// Where it is in the process.
    pub function: Avma,
    /// Where the descriptor is that it is called for.
    pub descriptor: Avma,
}

/// The entry of a debugger's list that a piece of code is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// Where the entry is.
    pub entry: Avma,
    /// Where its object file is.
    pub image: Avma,
    /// Bytes of that.
    pub size: u64,
}

impl RuntimeRead {
    /// A runtime that is there and cannot be read: of this version, or of none that is known, so that it is looked at again.
    fn refused(version: Option<String>, error: &impl ToString) -> Self {
        let incomplete = version.is_none();
        let problem = (!incomplete).then(|| error.to_string());
        Self { runtime: version, problem, incomplete, anew: true, ..Self::default() }
    }
}

/// What a reading of lists has not got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missed {
    /// Entries that could not be read, or found no room.
    pub entries: u32,
    /// It has not come to the end of all lists.
    pub is_cut: bool,
}

impl Missed {
    /// Adds what was not got of another list.
    fn note(&mut self, entries: u32, is_cut: bool) {
        self.entries = self.entries.saturating_add(entries);
        self.is_cut |= is_cut;
    }
}

/// A difference between two readings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CodeChange {
    /// Code that was not there.
    Loaded(FoundCode),
    /// Code that is there no more, by its first byte.
    Unloaded(Avma),
    /// How code is unwound that nothing else may describe.
    Registered(FoundRows),
    /// That is said no more of the code that begins there.
    Unregistered(Avma),
}

/// How a piece of code is unwound, of which nothing else is said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundRows {
    /// First byte.
    pub start: Avma,
    /// Length in bytes.
    pub size: u32,
    /// Its entries, as in `.eh_frame`.
    pub bytes: ByteBuf,
    /// The address at which what is relative in them resolves.
    pub section_start: Avma,
}

/// A piece of code that a runtime's tables have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundCode {
    /// First byte.
    pub start: Avma,
    /// Length in bytes.
    pub size: u32,
    /// As the runtime's announcements have it.
    pub name: String,
    /// How to come to its caller.
    pub frame: FoundFrame,
    /// Which compilation it is, if functions may have been inlined into it: what is at an address of it can be asked.
    /// The runtime gives the number to no other one. 0: there is nothing to be asked.
    #[serde(default)]
    pub number: u32,
    /// From which lines of source it is, if that is known at once. In a box, as what follows: of 50,000 pieces a large
    /// JVM has neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<Box<FoundLines>>,
    /// If it is registered with a debugger: by what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered: Option<Box<Registered>>,
}

/// Lines of source of a piece of code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundLines {
    /// The files.
    pub files: Vec<Arc<str>>,
    /// By ascending offset: bytes from the first one on, the line, and which of the files.
    pub rows: Vec<(u32, u32, u32)>,
    /// What was inlined there: each part behind the one around it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inlined: Vec<FoundInline>,
}

impl FoundLines {
    /// As a piece of code has them; nothing if there are none.
    fn kept(self) -> Option<Box<Self>> {
        let is_empty = self.rows.is_empty() && self.inlined.is_empty();
        (!is_empty).then(|| Box::new(self))
    }
}

/// A part of a piece of code that was inlined from another function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundInline {
    /// Bytes from the code's first one to the part's.
    pub start: u32,
    /// Length in bytes.
    pub size: u32,
    /// The function that it comes from, as the runtime names functions.
    pub name: Arc<str>,
    /// Which of the parts before is around it; none if that is the function that the code is of.
    pub around: Option<u32>,
    /// The files of its lines.
    pub files: Vec<Arc<str>>,
    /// Its lines, as the code's; offsets are from the part's first byte.
    pub rows: Vec<(u32, u32, u32)>,
}

/// What is known of the frames of a piece of code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FoundFrame {
    /// Nothing.
    Unknown,
    /// It has none: the return address is at the stack pointer.
    None,
    /// Nobody's who is of interest: it never returns.
    Outermost,
    /// HotSpot's interpreter's: it keeps a frame pointer, and its caller's stack pointer below.
    Interpreter,
    /// Who enters it has a frame with a frame pointer, which it keeps whatever it does with the stack pointer.
    OfCaller,
    /// From `complete_from` on, the caller's stack pointer is so many bytes above the own one; right below it is the
    /// return address, and below that the caller's frame pointer. Before, there is only the return address.
    Sized {
        /// Bytes of the frame.
        bytes: u32,
        /// Distance from the first byte of code.
        complete_from: u32,
    },
    /// As `Sized`, wherever it is interrupted, whatever its instructions seem to do.
    Fixed {
        /// Bytes of the frame.
        bytes: u32,
    },
    /// What the code shows.
    Code(ByteBuf),
    /// What an EH frame says.
    Recorded {
        /// Its entries, as in `.eh_frame`.
        bytes: ByteBuf,
        /// The address at which what is relative in them resolves.
        section_start: Avma,
    },
}

/// Reads; keeps what was found last, of each process.
#[derive(Default)]
pub struct RuntimeReaders {
    known: Mutex<HashMap<Program, Known>>,
    files: KnownFiles,
}

/// A process since it runs its program.
type Program = (ProcessId, MonoNs);

#[derive(Default)]
struct Known {
    /// Who has started it.
    user: u32,
    state: Arc<Mutex<State>>,
    /// Bytes that are kept of it, nearly.
    bytes: usize,
}

/// What is known of one program.
#[derive(Default)]
struct State {
    runtime: Option<Runtime>,
    /// When its modules were looked at last.
    looked_at: Option<Instant>,
}

/// A runtime that was found, with what was read last.
enum Runtime {
    HotSpot(Box<HotSpot>),
    V8(Box<V8>),
    Beam(Box<Beam>),
    /// What it has loaded may generate code.
    Python(Box<Python>, Lists),
    /// So may this.
    Php(Box<Php>, Lists),
    /// And this.
    Ruby(Box<Ruby>, Lists),
    Lists(Lists),
}

impl Runtime {
    /// The first one of which something can be read, or what is to be said.
    fn find<M: Memory>(modules: &Modules, reader: &Reader<M>) -> Result<Self, Box<RuntimeRead>> {
        if let Some(hotspot) = HotSpot::find(modules, reader) {
            return Ok(Self::HotSpot(Box::new(hotspot.map_err(Box::new)?)));
        }
        if let Some(v8) = V8::find(modules, reader) {
            return Ok(Self::V8(Box::new(v8.map_err(Box::new)?)));
        }
        if let Some(beam) = Beam::find(modules, reader) {
            return Ok(Self::Beam(Box::new(beam.map_err(Box::new)?)));
        }
        if let Some(python) = Python::find(modules, reader) {
            let lists = Lists::of(modules);
            return Ok(Self::Python(Box::new(python.map_err(Box::new)?), lists));
        }
        if let Some(php) = Php::find(modules, reader) {
            let lists = Lists::of(modules);
            return Ok(Self::Php(Box::new(php.map_err(Box::new)?), lists));
        }
        if let Some(ruby) = Ruby::find(modules, reader) {
            let lists = Lists::of(modules);
            return Ok(Self::Ruby(Box::new(ruby.map_err(Box::new)?), lists));
        }
        // What was read is remembered: the next look comes further.
        let incomplete = modules.is_partial();
        let none = || Box::new(RuntimeRead { anew: true, incomplete, ..RuntimeRead::default() });
        Lists::find(modules, reader).map(Self::Lists).ok_or_else(none)
    }
}

impl Runtime {
    fn read<M: Memory>(&mut self, reader: &Reader<M>) -> RuntimeRead {
        match self {
            Self::HotSpot(hotspot) => hotspot.read(reader),
            Self::V8(v8) => v8.read(),
            Self::Beam(beam) => beam.read(reader),
            Self::Python(python, lists) => Self::read_beside(lists, (python.name(), python.capture()), reader),
            Self::Php(php, lists) => Self::read_beside(lists, (php.name(), php.capture()), reader),
            Self::Ruby(ruby, lists) => {
                let entries = ruby.first_entries(reader);
                RuntimeRead { entries, ..Self::read_beside(lists, (ruby.name(), ruby.capture()), reader) }
            }
            Self::Lists(lists) => lists.read(reader),
        }
    }

    /// What a runtime says whose frames are asked about, with what the lists say of what it has loaded.
    fn read_beside<M: Memory>(
        lists: &mut Lists,
        (name, capture): (String, Capture),
        reader: &Reader<M>,
    ) -> RuntimeRead {
        let read = lists.read(reader);
        RuntimeRead { runtime: Some(name), capture: Some(capture), lists: !lists.is_empty(), ..read }
    }

    /// What it has registered with a debugger, if that is looked at.
    fn lists_mut(&mut self) -> Option<&mut Lists> {
        match self {
            Self::HotSpot(_) | Self::V8(_) | Self::Beam(_) => None,
            Self::Python(_, lists) | Self::Php(_, lists) | Self::Ruby(_, lists) | Self::Lists(lists) => Some(lists),
        }
    }

    /// Bytes that are kept, nearly.
    fn bytes(&self) -> usize {
        match self {
            Self::HotSpot(hotspot) => hotspot.bytes(),
            Self::V8(v8) => v8.bytes(),
            Self::Beam(beam) => beam.bytes(),
            Self::Python(python, lists) => python.bytes() + lists.bytes(),
            Self::Php(php, lists) => php.bytes() + lists.bytes(),
            Self::Ruby(ruby, lists) => ruby.bytes() + lists.bytes(),
            Self::Lists(lists) => lists.bytes(),
        }
    }
}

/// The memory of a process that runs.
struct Live(Pid);

impl Memory for Live {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        read_memory(self.0, address, into)
    }

    fn read_each(&self, reads: &mut [(Avma, &mut [u8])]) -> Vec<usize> {
        read_memory_of_each(self.0, reads)
    }
}

impl RuntimeReaders {
    /// Reads the tables of a process that runs its program since a time; these entries of a debugger's list have been registered
    /// since they were read. `None` if somebody is stuck at it.
    pub fn read(&self, via: Pid, program: Program, again: &[Avma], waits: &Waits) -> Option<RuntimeRead> {
        let begun = thread_cpu_time();
        let spent = || u64::try_from(thread_cpu_time().saturating_sub(begun).as_nanos()).unwrap_or(u64::MAX);
        let state = self.state_via(program, via);
        let mut state = state.try_lock().ok()?;
        let reader = Reader::new(Live(via), BUDGET);
        let anew = match state.look(|| Modules::of(via, &self.files, waits), &reader) {
            Ok(anew) => anew,
            Err(said) => {
                self.keep(program, None);
                return Some(RuntimeRead { cpu_ns: spent(), ..*said });
            }
        };
        let runtime = state.runtime.as_mut()?;
        if let Some(lists) = runtime.lists_mut() {
            lists.read_anew(again);
        }
        let read = runtime.read(&reader);
        if !self.keep(program, Some(runtime.bytes())) {
            state.runtime = None;
            let problem = Some(NO_ROOM.to_owned());
            let said = RuntimeRead { runtime: read.runtime, problem, anew: true, ..RuntimeRead::default() };
            return Some(RuntimeRead { cpu_ns: spent(), ..said });
        }
        Some(RuntimeRead { anew, cpu_ns: spent(), ..read })
    }

    /// Says of frames of a process that runs its program since a time what they are. `None` if somebody is stuck at it.
    pub fn describe(&self, via: Pid, program: Program, frames: &[FrameAsk], waits: &Waits) -> Option<DescribedFrames> {
        let begun = thread_cpu_time();
        let state = self.state_via(program, via);
        let mut state = state.try_lock().ok()?;
        let reader = Reader::new(Live(via), DESCRIBE_BUDGET);
        if state.look(|| Modules::of(via, &self.files, waits), &reader).is_err() {
            self.keep(program, None);
        }
        let answers = match state.runtime.as_mut()? {
            Runtime::V8(v8) => {
                let answers = v8.describe(&reader, frames);
                if !self.keep(program, Some(v8.bytes())) {
                    v8.clear();
                    self.keep(program, Some(v8.bytes()));
                }
                answers
            }
            Runtime::HotSpot(hotspot) => hotspot.describe(&reader, frames),
            Runtime::Python(python, lists) => {
                let answers = python.describe(&reader, frames);
                if !self.keep(program, Some(python.bytes() + lists.bytes())) {
                    python.clear();
                    self.keep(program, Some(python.bytes() + lists.bytes()));
                }
                answers
            }
            Runtime::Php(php, lists) => {
                let answers = php.describe(&reader, frames);
                if !self.keep(program, Some(php.bytes() + lists.bytes())) {
                    php.clear();
                    self.keep(program, Some(php.bytes() + lists.bytes()));
                }
                answers
            }
            Runtime::Ruby(ruby, _) => ruby.describe(&reader, frames),
            Runtime::Beam(_) | Runtime::Lists(_) => return None,
        };
        let spent = thread_cpu_time().saturating_sub(begun);
        Some(answers.finish(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// A process has ended, or runs another program.
    pub fn evict(&self, process: ProcessId) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(id, _), _| *id != process);
    }

    /// What is known of a program. Who has started it is looked up only if it is new.
    fn state_via(&self, program: Program, via: Pid) -> Arc<Mutex<State>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let state = known.get(&program).map(|known| Arc::clone(&known.state));
        drop(known);
        state.unwrap_or_else(|| self.state_of(program, user_of(via)))
    }

    fn state_of(&self, program: Program, user: u32) -> Arc<Mutex<State>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Known { user, ..Known::default() };
        Arc::clone(&known.entry(program).or_insert_with(new).state)
    }

    /// Notes how much is kept of a program, nothing if it has no tables; returns whether there is room for it. Who is
    /// known already is not driven out by others, and no user but root takes all that there is.
    fn keep(&self, program: Program, bytes: Option<usize>) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let user = known.get(&program).map_or(0, |known| known.user);
        let others = |is_meant: &dyn Fn(u32) -> bool| {
            let meant = known.iter().filter(|(other, known)| **other != program && is_meant(known.user));
            meant.fold((0, 0_usize), |(count, all), (_, known)| (count + 1, all.saturating_add(known.bytes)))
        };
        let (all, his) = (others(&|_| true), others(&|other| other == user));
        let (readers, kept) = match user {
            0 => (MAX_READERS, MAX_KEPT_BYTES),
            _ => (MAX_READERS - MAX_READERS / LEFT_TO_OTHERS, MAX_KEPT_BYTES - MAX_KEPT_BYTES / LEFT_TO_OTHERS),
        };
        let has_room = |bytes: &usize| {
            let fits = |(count, taken): (usize, usize), most: (usize, usize)| {
                count < most.0 && taken.saturating_add(*bytes) <= most.1
            };
            fits(all, (MAX_READERS, MAX_KEPT_BYTES)) && fits(his, (readers, kept))
        };
        let Some(bytes) = bytes.filter(has_room) else {
            known.remove(&program);
            return false;
        };
        // Who was evicted while somebody read his tables has ended, and is not to be remembered by it.
        if let Some(known) = known.get_mut(&program) {
            known.bytes = bytes;
        }
        true
    }
}

/// Who has started a process; those of which that is not known are one user's.
fn user_of(pid: Pid) -> u32 {
    crate::process::user_of(pid).unwrap_or(u32::MAX)
}

impl State {
    /// Finds what there is among the modules, or has come to them; returns whether nothing is known from before.
    fn look<M: Memory>(&mut self, modules: impl Fn() -> Modules, reader: &Reader<M>) -> Result<bool, Box<RuntimeRead>> {
        let is_due = self.looked_at.is_none_or(|at| at.elapsed() >= LOOK_AGAIN);
        let may_load_more =
            !matches!(self.runtime, None | Some(Runtime::HotSpot(_) | Runtime::V8(_) | Runtime::Beam(_)));
        if self.runtime.is_some() && !(is_due && may_load_more) {
            return Ok(false);
        }
        self.looked_at = Some(Instant::now());
        let modules = modules();
        if let Some(Runtime::Python(_, lists) | Runtime::Php(_, lists) | Runtime::Ruby(_, lists)) = &mut self.runtime {
            lists.look_again(&modules);
            return Ok(false);
        }
        match (Runtime::find(&modules, reader), &mut self.runtime) {
            // What is loaded later is as a rule one more library with a list, not a runtime that says more.
            (Ok(Runtime::Lists(_)) | Err(_), Some(Runtime::Lists(lists))) => {
                lists.look_again(&modules);
                Ok(false)
            }
            (found, runtime) => {
                *runtime = Some(found?);
                Ok(true)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::monotonic_now;

    #[test]
    fn a_process_without_such_tables_is_said_to_have_none_and_so_is_one_that_is_not_there() {
        let readers = RuntimeReaders::default();
        for pid in [Pid(std::process::id()), Pid(u32::MAX)] {
            let program = (ProcessId { pid, start: MonoNs(1) }, monotonic_now());
            let read = readers.read(pid, program, &[], &Waits::default()).unwrap();
            assert!(read.cpu_ns > 0, "the search has its price, too");
            assert_eq!(read, RuntimeRead { anew: true, cpu_ns: read.cpu_ns, ..RuntimeRead::default() });
        }
    }

    #[test]
    fn a_piece_of_code_takes_no_room_for_what_is_not_known_of_it() {
        assert!(size_of::<CodeChange>() <= 104, "{}", size_of::<CodeChange>());
        assert_eq!(FoundLines { files: vec!["a.c".into()], ..FoundLines::default() }.kept(), None);
        let lines = FoundLines { files: vec!["a.c".into()], rows: vec![(0, 5, 0)], inlined: Vec::new() };
        assert_eq!(lines.clone().kept().as_deref(), Some(&lines));
    }

    #[test]
    fn what_is_known_of_a_piece_of_code_is_recorded_and_what_is_not_is_left_out() {
        let bare = FoundCode {
            start: Avma(0x1000),
            size: 8,
            name: "run".to_owned(),
            frame: FoundFrame::Unknown,
            number: 0,
            lines: None,
            registered: None,
        };
        let lines = FoundLines { files: vec!["a.c".into()], rows: vec![(0, 5, 0)], inlined: Vec::new() };
        let registered = Some(Box::new(Registered { entry: Avma(1), image: Avma(2), size: 3 }));
        let whole = FoundCode { lines: lines.kept(), registered, ..bare.clone() };
        let recorded = |found: &FoundCode| rmp_serde::to_vec_named(found).unwrap();
        let has = |bytes: &[u8], field: &str| bytes.windows(field.len()).any(|part| part == field.as_bytes());
        for (found, is_there) in [(&bare, false), (&whole, true)] {
            let bytes = recorded(found);
            assert_eq!(rmp_serde::from_slice::<FoundCode>(&bytes).unwrap(), *found);
            assert_eq!(["lines", "registered"].map(|field| has(&bytes, field)), [is_there; 2]);
        }
    }

    #[test]
    fn who_is_known_stays_and_who_has_no_tables_takes_no_place() {
        let readers = RuntimeReaders::default();
        let program = |pid: usize| (ProcessId { pid: Pid(pid as u32), start: MonoNs(1) }, MonoNs(0));
        let keep = |pid: usize, bytes: Option<usize>| {
            drop(readers.state_of(program(pid), 0));
            readers.keep(program(pid), bytes)
        };
        let known = || readers.known.lock().unwrap().len();
        assert!((0..MAX_READERS).all(|pid| keep(pid, Some(100))));
        assert!((0..MAX_READERS).all(|pid| !keep(MAX_READERS + pid, Some(100))));
        assert!(keep(0, Some(200)), "it may grow");
        assert_eq!(known(), MAX_READERS);
        readers.evict(program(0).0);
        assert!(!keep(0, None) && !keep(0, Some(MAX_KEPT_BYTES)) && keep(0, Some(100)));
        assert_eq!(known(), MAX_READERS);
    }

    #[test]
    fn one_user_does_not_take_the_room_of_all() {
        let readers = RuntimeReaders::default();
        let keep = |pid: usize, user: u32, bytes: usize| {
            let program = (ProcessId { pid: Pid(pid as u32), start: MonoNs(1) }, MonoNs(0));
            drop(readers.state_of(program, user));
            readers.keep(program, Some(bytes))
        };
        let most = MAX_READERS - MAX_READERS / LEFT_TO_OTHERS;
        assert!((0..most).all(|pid| keep(pid, 1000, 100)));
        assert!(!keep(most, 1000, 100), "one more of his");
        assert!(keep(most, 1001, 100) && keep(most + 1, 0, 100), "another one's, and root's");
        assert!(!keep(0, 1000, MAX_KEPT_BYTES - (1 << 20)) && keep(most + 1, 0, MAX_KEPT_BYTES - (1 << 20)));
    }

    #[test]
    fn who_was_evicted_while_he_was_read_is_not_remembered_by_that() {
        let readers = RuntimeReaders::default();
        let program = (ProcessId { pid: Pid(7), start: MonoNs(1) }, MonoNs(0));
        let reading = readers.state_of(program, 0);
        readers.evict(program.0);
        assert!(readers.keep(program, Some(100)));
        drop(reading);
        assert!(readers.known.lock().unwrap().is_empty());
    }

    #[test]
    fn a_reading_that_somebody_is_stuck_at_is_not_waited_for() {
        let readers = RuntimeReaders::default();
        let pid = Pid(std::process::id());
        let program = (ProcessId { pid, start: MonoNs(1) }, MonoNs(0));
        let state = readers.state_of(program, 0);
        let _held = state.lock().unwrap();
        assert_eq!(readers.read(pid, program, &[], &Waits::default()), None);
    }
}
