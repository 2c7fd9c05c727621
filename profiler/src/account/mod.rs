//! What a run took, delivered and lost, and why: the last words of every run.
//!
//! `taken = delivered + lost`, and every delivered sample is in the profile.

mod account_text;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::cost::Costs;
use crate::peek::PeekStats;
use crate::profile::Overflow;
use crate::symbol::SymbolStats;
use jitprof_common::units::MonoNs;
use jitprof_jitdump::DumpStats;
use jitprof_jitdump::code::{CodeMapStats, CodeOrigin};
use jitprof_jitdump::perfmap::PerfMapStats;

/// Remarks kept; further ones are counted.
const MAX_REMARKS: usize = 32;

/// The account of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Account {
    /// The event that took the samples: `cycles` or `cpu-clock`.
    pub event: String,
    /// Samples per second and busy CPU that were asked for.
    pub frequency_hz: u32,
    /// Changes of the frequency: seconds since the start, and samples per second from then on; the first 256.
    pub frequencies: Vec<(f64, u32)>,
    /// CPUs that were sampled.
    pub cpus: usize,
    /// From the first perf event to the last, in seconds.
    #[serde(serialize_with = "as_seconds", rename = "duration_s")]
    pub duration: Duration,
    /// Samples.
    pub samples: Samples,
    /// User stacks.
    pub stacks: Stacks,
    /// Frames of generated code.
    pub jit: JitFrames,
    /// Names of generated code that were compared with a second source, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<VerifiedNames>,
    /// Frames of native and kernel code without a name.
    pub native_unnamed: u64,
    /// What announced code, by process.
    pub sources: Vec<SourceAccount>,
    /// What named the frames of which process, those with the most unnamed ones first.
    pub naming: Vec<ProcessNaming>,
    /// Processes whose generated code nothing names, and what to do about it.
    pub advice: Vec<AdviceLine>,
    /// Names of native and kernel code.
    pub symbols: SymbolStats,
    /// What the BPF program unwound by; absent if by frame pointers alone.
    pub unwinding: Option<UnwindingStats>,
    /// Use of the BPF program's unwind tables; absent likewise.
    pub tables: Option<TableStats>,
    /// Walks that met code before its rows had come; absent likewise.
    pub deferred: Option<DeferredStats>,
    /// Code that nothing has recorded and that was read from memory; absent likewise.
    pub learned: Option<LearnStats>,
    /// Files that are mapped.
    pub files: FileStats,
    /// Processes and their mappings.
    pub processes: ProcessStats,
    /// What the profile had no room for.
    pub profile_overflow: Overflow,
    /// Things that went wrong without ending the run.
    pub remarks: Vec<String>,
    /// Remarks that were left out because there were too many.
    pub remarks_dropped: u64,
    /// jitprof's own use of the machine.
    pub own: OwnCost,
}

/// Where samples went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Samples {
    /// Passed the filter in the kernel.
    pub taken: u64,
    /// Reached userspace; all of these are in the profile.
    pub delivered: u64,
    /// Found the ring buffer full.
    pub lost_ring_full: u64,
    /// Could not be read: BPF program and userspace are of different builds.
    pub lost_malformed: u64,
    /// Of those delivered, resolved before every record up to their time was known, because too many waited.
    pub resolved_early: u64,
    /// Of those delivered, taken from a process that was gone before it could be looked at, or had too many that waited for it.
    pub process_gone: u64,
}

/// How user stacks ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stacks {
    /// Reached the entry point of the thread or process.
    pub complete: u64,
    /// Ended before it, by reason.
    pub cut: BTreeMap<&'static str, u64>,
    /// Have no user part: kernel threads, and runs that asked for none.
    pub without_user_part: u64,
    /// With the frames that an interpreter keeps in a list, each at its place.
    pub with_list: u64,
    /// With such frames, and it is not known where they belong: they are shown apart.
    pub list_apart: u64,
    /// Lists that were left out of these, because they were long and the ring buffer was too full.
    pub lists_refused: u64,
}

/// Frames of generated code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JitFrames {
    /// Named, by what named them.
    pub named: NamedBy,
    /// Of the named: announced only after the sample, by at most a tick.
    pub named_late: u64,
    /// Of the named: what names them, the runtime's own tables or a dump that it writes in blocks, was not read again after
    /// the sample. Other code may have taken the place by then.
    pub unconfirmed: u64,
    /// Of those whose runtime was asked what was inlined there, because its own tables or a dump of V8's name them: without such
    /// functions, and but for the dump's without a line, by reason.
    pub not_looked_into: BTreeMap<&'static str, u64>,
    /// Not named, by reason.
    pub unnamed: BTreeMap<&'static str, u64>,
    /// Samples whose innermost frame is generated code with a name.
    pub leaves_named: u64,
    /// Samples whose innermost frame is generated code without a name.
    pub leaves_unnamed: u64,
    /// Of the named, those whose runtime was asked which functions were inlined there: it has the same at the places before
    /// and behind the address.
    pub leaves_certain: u64,
    /// The same where it has not: what they do not have in common is marked as a guess.
    pub leaves_guessed: u64,
    /// Samples whose innermost frame has its function's address, because too many instructions were sampled to keep
    /// each.
    pub leaves_inexact: u64,
}

/// Names of frames of generated code beside those of a perf map, or of what the runtime says of the frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifiedNames {
    /// Both sources name the same function.
    pub agreed: u64,
    /// They name different ones.
    pub disagreed: u64,
    /// Named by a jitdump or the runtime's tables alone: it is not in the perf map, or came after that was read.
    pub only_announced: u64,
    /// Named by the perf map alone.
    pub only_perf_map: u64,
    /// Named by both, but not so that it can be told whether it is the same function: one of them names code that several
    /// share, or is mangled still.
    pub incomparable: u64,
    /// Some that disagree, each pair of names once.
    pub examples: Vec<NameDisagreement>,
}

/// Two names of one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NameDisagreement {
    /// The process.
    pub pid: u32,
    /// The address that was sampled, or that a caller returned to.
    pub address: String,
    /// As the jitdump or the tables have it.
    pub announced: String,
    /// As the perf map, or the runtime, has it.
    pub listed: String,
}

/// Frames by the input that named them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NamedBy {
    /// A jitdump record.
    pub jitdump: u64,
    /// A record read from the runtime's memory before it was written.
    pub peeked: u64,
    /// A line of a perf map.
    pub perf_map: u64,
    /// The runtime's own tables.
    pub runtime: u64,
}

/// What named the frames of one process, and why some have no name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Naming {
    /// Frames of generated code with a name, by what named them.
    pub named: NamedBy,
    /// Frames of generated code without one, by reason.
    pub unnamed: BTreeMap<&'static str, u64>,
    /// Frames of files, which their symbols name.
    pub in_files: u64,
}

/// What a process lacks that a flag would give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// It announces nothing of what it generates.
    Announcements,
    /// It has announced it once, in a perf map, and nothing since.
    LaterThanMap,
}

/// One process' part of the names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessNaming {
    /// The process.
    pub pid: u32,
    /// When it started, on CLOCK_MONOTONIC: its number may have been another's. Not written.
    #[serde(skip)]
    pub start: MonoNs,
    /// Its name.
    pub comm: String,
    /// The runtime whose tables were read, with its version.
    pub runtime: Option<String>,
    /// What named its frames.
    #[serde(flatten)]
    pub naming: Naming,
    /// What a flag would give it, if enough of its frames have no name. Not written: the account has advice for it.
    #[serde(skip)]
    pub lack: Option<Lack>,
}

/// What one process announced.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SourceAccount {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Functions known, living and ended.
    pub functions: usize,
    /// Memory of its code map, in bytes, estimated.
    pub map_bytes: usize,
    /// The code map's own counts.
    pub map: CodeMapStats,
    /// Its dumps.
    pub dumps: Vec<DumpAccount>,
    /// Its perf map.
    pub perf_map: Option<PerfMapStats>,
    /// Its runtime's own tables.
    pub tables: Option<TablesAccount>,
}

/// What was read of the tables of one runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TablesAccount {
    /// The runtime and its version.
    pub runtime: String,
    /// How often they were read.
    pub readings: u64,
    /// Of these, readings that did not come to the end of all lists.
    pub unfinished: u64,
    /// What the readings have cost, in nanoseconds of CPU time.
    pub cpu_ns: u64,
    /// Pieces of code that were found.
    pub loads: u64,
    /// Besides these, pieces left out because there were too many.
    pub left_out: u64,
    /// Entries of lists that could not be read, or found no room: of the reading with the most.
    pub unread: u64,
    /// Frames of samples that it has named when it was asked about them...
    pub frames: u64,
    /// ...so often.
    pub answers: u64,
    /// Calls by which its code is registered with a debugger, if a breakpoint tells of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub told: Option<ToldAccount>,
}

/// Calls that register code, told by a breakpoint in the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ToldAccount {
    /// Calls that were told.
    pub calls: u64,
    /// Calls that were not: too many at once.
    pub missed: u64,
    /// Of those told, calls that do not say what is done, or could not be read.
    pub unclear: u64,
    /// Pieces of code that begin when a call says so.
    pub begins: u64,
    /// Pieces of code that end when a call says so.
    pub ends: u64,
}

impl std::ops::Add for ToldAccount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            calls: self.calls + other.calls,
            missed: self.missed + other.missed,
            unclear: self.unclear + other.unclear,
            begins: self.begins + other.begins,
            ends: self.ends + other.ends,
        }
    }
}

/// One dump.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DumpAccount {
    /// Path as the target sees it.
    pub path: String,
    /// Bytes read.
    pub bytes_read: u64,
    /// What was in it.
    pub records: DumpStats,
    /// What was read from memory before it was written.
    pub peek: Option<PeekStats>,
}

/// A runtime whose code, or what it interprets, nothing names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdviceLine {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Processes with fewer such frames that it is for as well.
    pub further_processes: usize,
    /// Frames without a name, of all of them.
    pub unnamed_frames: u64,
    /// Samples in an interpreter's loop that do not say what it ran, of all of them.
    pub interpreted_samples: u64,
    /// What to do.
    pub advice: String,
}

/// What the BPF program's unwind tables were built from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UnwindingStats {
    /// Files whose rows were put into the tables.
    pub files: u64,
    /// Files without usable unwind data: their code is walked by frame pointer.
    pub files_without_rows: u64,
    /// Files left out because there were too many.
    pub files_refused: u64,
    /// Files of which not all rows found room.
    pub files_cut: u64,
    /// Files whose rows were dropped for others because no process mapped them any more.
    pub files_evicted: u64,
    /// Rows of these, and what their pages' indices took the place of.
    pub rows_evicted: u64,
    /// Mappings left out of the longest list of one process that was cut to what the BPF program can hold.
    pub regions_refused: u64,
    /// Microseconds spent on building rows of files, on threads of their own.
    pub build_us: u64,
    /// Functions of generated code with rows, of all processes followed to the end.
    pub jit_functions: u64,
    /// Functions of generated code left out because they were too many, or too large to be true.
    pub jit_refused: u64,
    /// Pages of generated code published, each time that one changed.
    pub jit_pages: u64,
    /// Functions of generated code that were announced during the recording and put into the tables.
    pub jit_delays: u64,
    /// The median time from the announcement of one of them to its rows' being in the tables, in milliseconds.
    pub jit_delay_median_ms: u64,
    /// The longest such time, in milliseconds.
    pub jit_delay_longest_ms: u64,
}

/// Samples that met code without rows, and brought along registers and a snapshot of the stack, so that the walk could be
/// finished when the rows were there. At the end of a run `snapshots` is the sum of those finished and those refused for
/// memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeferredStats {
    /// Samples with a stack snapshot.
    pub snapshots: u64,
    /// Bytes of stack in them.
    pub bytes: u64,
    /// Finished by rows that came later.
    pub finished_by_rows: u64,
    /// Of these, walks that led elsewhere than the frame pointers had.
    pub changed: u64,
    /// Left as the frame pointers had it: no rows came.
    pub finished_by_frame_pointer: u64,
    /// Left likewise because too many snapshots waited.
    pub refused_for_memory: u64,
    /// Samples that brought no snapshot along because there were too many, or the ring too full.
    pub refused_by_rate: u64,
    /// Processes that send none any more because hardly any was of use.
    pub processes_given_up: usize,
}

/// Generated code that walks have met and nothing has recorded, read from the target's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LearnStats {
    /// Copies of recorded code, which have its rows.
    pub copies: u64,
    /// Functions of perf maps, or that a runtime was asked about, whose code gave rows.
    pub listed_with_rows: u64,
    /// The same whose code did not.
    pub listed_without_rows: u64,
    /// Pieces of code that runs within an interpreter's loop.
    #[serde(default)]
    pub of_loops: u64,
    /// Of all of these, pieces of code that were other code later, and lost their rows.
    pub changed: u64,
    /// Bytes of code read, those for comparison included.
    pub bytes_read: u64,
    /// Functions of runtimes' tables whose rows nobody made in time, or that found no room: they are read where they are met.
    pub given_up: u64,
    /// Reads that failed.
    pub read_errors: u64,
}

impl std::ops::Add for LearnStats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            copies: self.copies + other.copies,
            listed_with_rows: self.listed_with_rows + other.listed_with_rows,
            listed_without_rows: self.listed_without_rows + other.listed_without_rows,
            of_loops: self.of_loops + other.of_loops,
            changed: self.changed + other.changed,
            bytes_read: self.bytes_read + other.bytes_read,
            given_up: self.given_up + other.given_up,
            read_errors: self.read_errors + other.read_errors,
        }
    }
}

/// Files behind mappings that samples or rows have asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileStats {
    /// Different files.
    pub files: u64,
    /// Of these, copies of another one, byte for byte as far as it matters.
    pub copies: u64,
    /// Mappings whose file could not be looked at or opened.
    pub unreadable: u64,
    /// Mappings that had another file behind them by the time it was looked at, and files that had changed.
    pub replaced: u64,
    /// Mappings whose file was left out because there were too many.
    pub refused: u64,
    /// Files closed because too many were open.
    pub closed: u64,
}

/// Processes and their mappings: what was seen, and what was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessStats {
    /// Sideband events applied.
    pub events: u64,
    /// Sideband events that the kernel could not deliver.
    pub events_lost: u64,
    /// Events about processes that are not known.
    pub events_unknown_process: u64,
    /// Mappings whose range made no sense.
    pub bad_mappings: u64,
    /// Mappings that were evicted because a process had or ended more than are kept, whose frames have no names, and those without
    /// room for their paths.
    pub mappings_evicted: u64,
    /// Processes or threads left out because there were too many.
    pub over_limit: u64,
    /// Children that began without the generated code of their parents, because too much of it had been copied.
    pub copies_refused: u64,
}

/// Use of the BPF program's unwind tables, and what did not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TableStats {
    /// Unwind rows in use, those in their grace included.
    pub rows: u32,
    /// Unwind rows that fit. The index of a page of many takes the place of 16.
    pub rows_capacity: u32,
    /// Pages of rows published.
    pub pages: usize,
    /// Executable mappings published.
    pub regions: u32,
    /// Kernel memory of the row and region arrays, in bytes.
    pub bytes: u64,
    /// Pages that were not published because rows or page entries were used up: their code is walked by frame pointer.
    pub pages_refused: u64,
    /// Lists of a process' mappings that were not published, likewise; each is tried again.
    pub processes_refused: u64,
}

/// What the run cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OwnCost {
    /// CPU seconds of this process so far.
    pub cpu_s: f64,
    /// Largest resident size in bytes.
    pub max_rss_bytes: u64,
    /// CPU time by what it was for, in nanoseconds, that of the BPF program included.
    pub cpu_ns: Costs,
    /// Mean nanoseconds of one sample in the kernel.
    pub kernel_ns_per_sample: u64,
    /// How the BPF program walked stacks.
    pub walk: String,
    /// Instructions that the verifier walked through, by program; none where the kernel does not tell.
    pub verified_instructions: BTreeMap<String, Option<u32>>,
}

impl Account {
    /// Adds a remark about something that went wrong without ending the run.
    pub fn remark(&mut self, text: String) {
        if self.remarks.contains(&text) {
            return;
        }
        if self.remarks.len() < MAX_REMARKS {
            self.remarks.push(text);
        } else {
            self.remarks_dropped += 1;
        }
    }
}

impl Samples {
    /// Taken and not delivered.
    pub fn lost(&self) -> u64 {
        self.lost_ring_full.saturating_add(self.lost_malformed)
    }
}

impl JitFrames {
    /// Named frames of all inputs.
    pub fn named_total(&self) -> u64 {
        self.named.total()
    }

    /// Frames without a name.
    pub fn unnamed_total(&self) -> u64 {
        self.unnamed.values().sum()
    }
}

impl NamedBy {
    /// Of all inputs.
    pub fn total(&self) -> u64 {
        self.jitdump + self.peeked + self.perf_map + self.runtime
    }

    /// Counts a frame.
    pub fn count(&mut self, origin: CodeOrigin) {
        match origin {
            CodeOrigin::Jitdump => self.jitdump += 1,
            CodeOrigin::Peeked => self.peeked += 1,
            CodeOrigin::PerfMap => self.perf_map += 1,
            CodeOrigin::Runtime => self.runtime += 1,
        }
    }

    /// Each, under the word that metrics have for it.
    pub fn each(&self) -> [(&'static str, u64); 4] {
        [("jitdump", self.jitdump), ("peeked", self.peeked), ("perf_map", self.perf_map), ("runtime", self.runtime)]
    }
}

impl Naming {
    /// Frames of generated code, named or not.
    pub fn generated(&self) -> u64 {
        self.named.total() + self.unnamed_total()
    }

    /// Frames of generated code without a name.
    pub fn unnamed_total(&self) -> u64 {
        self.unnamed.values().sum()
    }
}

fn as_seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}
