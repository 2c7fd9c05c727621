//! What a run took, delivered and lost, and why: the last words of every run.
//!
//! `taken = delivered + lost`, and every delivered sample is in the profile.

mod text;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::code::{CodeMapStats, CodeOrigin};
use crate::jitdump::DumpStats;
use crate::kernel::TableStats;
use crate::peek::PeekStats;
use crate::perfmap::PerfMapStats;
use crate::process::ProcessStats;
use crate::profile::Overflow;
use crate::symbol::SymbolStats;

/// Remarks kept; further ones are counted.
const MAX_REMARKS: usize = 32;

/// The account of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Account {
    /// The event that took the samples: `cycles` or `cpu-clock`.
    pub event: &'static str,
    /// Samples per second and busy CPU that were asked for.
    pub frequency_hz: u32,
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
    /// Frames of native and kernel code without a name.
    pub native_unnamed: u64,
    /// What announced code, by process.
    pub sources: Vec<SourceAccount>,
    /// Processes whose generated code nothing names, and what to do about it.
    pub advice: Vec<AdviceLine>,
    /// Names of native and kernel code.
    pub symbols: SymbolStats,
    /// What the kernel part unwound by; absent if by frame pointers alone.
    pub unwinding: Option<UnwindingStats>,
    /// Use of the kernel part's unwind tables; absent likewise.
    pub tables: Option<TableStats>,
    /// Walks that met generated code before its rows had come; absent likewise.
    pub late: Option<LateStats>,
    /// Code that nothing has recorded and that was read from memory; absent likewise.
    pub copies: Option<CopyStats>,
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
    /// Could not be read: kernel part and userspace are of different builds.
    pub lost_malformed: u64,
    /// Of those delivered, resolved before every record up to their time was known, because too many waited.
    pub resolved_early: u64,
    /// Of those delivered, taken from a process that was gone before it could be looked at.
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
}

/// Frames of generated code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JitFrames {
    /// Named, by what named them.
    pub named: NamedBy,
    /// Of the named: announced only after the sample, by at most a tick.
    pub named_late: u64,
    /// Not named, by reason.
    pub unnamed: BTreeMap<&'static str, u64>,
    /// Samples whose innermost frame is generated code with a name.
    pub leaves_named: u64,
    /// Samples whose innermost frame is generated code without a name.
    pub leaves_unnamed: u64,
    /// Samples whose innermost frame has its function's address, because too many instructions were sampled to keep
    /// each.
    pub leaves_inexact: u64,
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

/// A runtime whose code nothing names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdviceLine {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Frames without a name.
    pub unnamed_frames: u64,
    /// What to do.
    pub advice: String,
}

/// What the kernel part's unwind tables were built from.
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
    /// Rows of these.
    pub rows_evicted: u64,
    /// Mappings left out of the longest list of one process that was cut to what the kernel part can hold.
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

/// Samples that met generated code without rows, and brought along registers and a piece of the stack, so that the walk
/// could be finished when the rows were there. At the end of a run `pieces` is the sum of those finished and those
/// refused for memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LateStats {
    /// Samples with a piece.
    pub pieces: u64,
    /// Bytes of stack in them.
    pub bytes: u64,
    /// Finished by rows that came later.
    pub finished_by_rows: u64,
    /// Of these, walks that led elsewhere than the frame pointers had.
    pub changed: u64,
    /// Left as the frame pointers had it: no rows came.
    pub finished_by_frame_pointer: u64,
    /// Left likewise because too many pieces waited.
    pub refused_for_memory: u64,
    /// Samples that brought no piece along because there were too many, or the ring too full.
    pub refused_by_rate: u64,
    /// Processes that send none any more because hardly any was of use.
    pub processes_given_up: usize,
}

/// Generated code that walks have met and nothing has recorded, read from the target's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CopyStats {
    /// Copies of recorded code, which have its rows.
    pub copies: u64,
    /// Functions of perf maps whose code gave rows.
    pub listed_with_rows: u64,
    /// Functions of perf maps whose code did not.
    pub listed_without_rows: u64,
    /// Of all of these, pieces of code that were other code later, and lost their rows.
    pub changed: u64,
    /// Bytes of code read, those for comparison included.
    pub bytes_read: u64,
    /// Reads that failed.
    pub read_errors: u64,
}

/// What the run cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OwnCost {
    /// CPU seconds of this process so far.
    pub cpu_s: f64,
    /// Largest resident size in bytes.
    pub max_rss_bytes: u64,
    /// Mean nanoseconds of one sample in the kernel.
    pub kernel_ns_per_sample: u64,
    /// How the kernel part walked stacks.
    pub walk: &'static str,
    /// Instructions that the verifier walked through, by program; none where the kernel does not tell.
    pub verified_instructions: BTreeMap<&'static str, Option<u32>>,
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
        self.named.jitdump + self.named.peeked + self.named.perf_map
    }

    /// Frames without a name.
    pub fn unnamed_total(&self) -> u64 {
        self.unnamed.values().sum()
    }

    /// Counts a named frame.
    pub fn count_named(&mut self, origin: CodeOrigin) {
        match origin {
            CodeOrigin::Jitdump => self.named.jitdump += 1,
            CodeOrigin::Peeked => self.named.peeked += 1,
            CodeOrigin::PerfMap => self.named.perf_map += 1,
        }
    }
}

fn as_seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}
