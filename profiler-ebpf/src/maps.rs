//! Maps and read-only globals. Their names are the interface to the loader.

use aya_ebpf::{
    Global,
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_RING_SIZE},
    macros::map,
    maps::{Array, CgroupArray, HashMap, PerCpuArray, RingBuf},
};
use jitprof_common::{
    limits::{COMM_LEN, MAX_CGROUPS},
    registrations::{CallCount, ProbeKey},
    sample::{COUNTERS as COUNTER_COUNT, Counter, SampleBuffer},
    table::{CachedRow, EPOCH_SLOTS, MAX_PAGES, MAX_PROCESSES, PageKey, Region},
    taken::{FrameSpec, MAX_SPECS, MAX_TAKEN, MAX_TAKES, TakenHeader},
    unwind::Frame,
};

use crate::list::List;
use crate::snapshot::Snapshot;
use crate::tables::Cache;
use crate::take::{Kept, Noted};

/// The state of one walk. It lives in a per-CPU map because a BPF stack has 512 bytes.
#[repr(C)]
pub struct Walk {
    /// The frame that the walk is at.
    pub frame: Frame,
    /// User frames noted so far.
    pub user_frames: u32,
    /// Why the walk ended, a `StopReason` code.
    pub stop: u8,
    reserved: [u8; 3],
    /// The process whose tables hold for it.
    pub tables_of: u32,
    /// Where unknown generated code was met.
    pub snapshot: Snapshot,
    /// What is taken along with frames: the index of a description and 1, or 0.
    pub take: u32,
    /// User frames of which words are to be taken, and how many have some.
    pub noted: u32,
    pub taken: u32,
    /// Bytes before the words.
    pub take_from: u32,
    /// Registers of the innermost frame.
    pub leaf: TakenHeader,
    /// A list of frames.
    pub list: List,
    /// What is handed over in the end.
    pub sample: SampleBuffer,
}

/// A value of a per-CPU map has 32 KiB at most.
const _: () = assert!(size_of::<Walk>() <= 32 << 10);

/// What the walk in progress on a CPU has looked up last.
#[map]
pub static CACHE: PerCpuArray<Cache> = PerCpuArray::with_max_entries(1, 0);

/// Samples for userspace. The loader sets the size.
#[map]
pub static SAMPLES: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// Followed processes by tgid. Preallocated: kernel 5.10 refuses other hash maps in perf_event programs.
#[map]
pub static PROCESSES: HashMap<u32, u32> = HashMap::with_max_entries(16384, 0);

/// Followed threads by tid.
#[map]
pub static THREADS: HashMap<u32, u32> = HashMap::with_max_entries(1024, 0);

/// Followed users by uid.
#[map]
pub static USERS: HashMap<u32, u32> = HashMap::with_max_entries(1024, 0);

/// Followed control groups of version 2, without gaps from the front.
#[map]
pub static CGROUPS: CgroupArray = CgroupArray::with_max_entries(MAX_CGROUPS, 0);

/// Array maps that userspace writes through a memory mapping.
const MMAPABLE: u32 = 1 << 10;

/// Where each process' regions are; values are spans of REGIONS.
#[map]
pub static PROCESS_REGIONS: HashMap<u32, u64> = HashMap::with_max_entries(MAX_PROCESSES, 0);

/// Executable mappings, sorted within each process' span. The loader sets the size.
#[map]
pub static REGIONS: Array<Region> = Array::with_max_entries(1, MMAPABLE);

/// Where the rows of each page are; values are spans of ROWS.
#[map]
pub static PAGES: HashMap<PageKey, u64> = HashMap::with_max_entries(MAX_PAGES, 0);

/// Encoded unwind rows, sorted within each page's span. The loader sets the size.
#[map]
pub static ROWS: Array<u64> = Array::with_max_entries(1, MMAPABLE);

/// How often the tables of processes have changed, as `Epochs` decodes it.
#[map]
pub static EPOCHS: Array<u64> = Array::with_max_entries(EPOCH_SLOTS, MMAPABLE);

/// Rows that walks on a CPU have found. Where in it follows from process and address; a newer one takes the place.
#[map]
pub static ROW_CACHE: PerCpuArray<[CachedRow; CACHED_ROWS_OF_A_BLOCK]> =
    PerCpuArray::with_max_entries(1 << ROW_CACHE_BLOCK_BITS, 0);

/// A value of a per-CPU map has 32 KiB at most.
pub const CACHED_ROWS_OF_A_BLOCK: usize = 32768 / size_of::<CachedRow>();
/// Blocks of the row cache: 64 KiB a CPU, 2730 addresses.
pub const ROW_CACHE_BLOCK_BITS: u32 = 1;

/// What is taken along with the frames of a process: the index of a description and 1.
#[map]
pub static TAKES: HashMap<u32, u32> = HashMap::with_max_entries(MAX_TAKES, 0);

/// Descriptions of what is taken along.
#[map]
pub static SPECS: Array<FrameSpec> = Array::with_max_entries(MAX_SPECS, 0);

/// Frames of the walk in progress of which words are to be taken.
#[map]
pub static NOTED: PerCpuArray<[Noted; MAX_TAKEN]> = PerCpuArray::with_max_entries(1, 0);

/// Words of frames that were taken lately.
#[map]
pub static KEPT: PerCpuArray<[Kept; KEPT_FRAMES]> = PerCpuArray::with_max_entries(1, 0);

/// Frames whose words are kept on a CPU: 24 KiB; a power of two.
pub const KEPT_FRAMES: usize = 256;

/// Calls that register code, for userspace. The loader sets the size of this one and of the next two.
#[map]
pub static REGISTRATIONS: RingBuf = RingBuf::with_byte_size(1 << 16, 0);

/// Where processes are probed, and their descriptors' addresses.
#[map]
pub static PROBED: HashMap<ProbeKey, u64> = HashMap::with_max_entries(1, 0);

/// How often they have registered code, by tgid.
#[map]
pub static CALLS: HashMap<u32, CallCount> = HashMap::with_max_entries(1, 0);

/// One `u64` per `Counter`.
#[map]
pub static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(COUNTER_COUNT, 0);

/// The walk in progress on this CPU.
#[map]
pub static STATE: PerCpuArray<Walk> = PerCpuArray::with_max_entries(1, 0);

#[unsafe(no_mangle)]
pub static SELECT: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
pub static SELECT_COMM: Global<[u8; COMM_LEN]> = Global::new([0; COMM_LEN]);
#[unsafe(no_mangle)]
pub static SELECT_USERS: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
pub static SELECT_MEMBERS: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
pub static SELECT_CHILDREN: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
pub static KERNEL_STACK: Global<u32> = Global::new(1);
#[unsafe(no_mangle)]
pub static USER_STACK: Global<u32> = Global::new(1);
#[unsafe(no_mangle)]
pub static SELF_PID: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
pub static USE_ROWS: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
pub static CODE_MASK: Global<u64> = Global::new(u64::MAX);
#[unsafe(no_mangle)]
pub static LOG_RARE: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
pub static TASK_STACK: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static ENTRY_REGISTERS: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static TASK_THREAD_POINTER: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static TASK_REAL_PARENT: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static TASK_TGID: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static TASK_FLAGS: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static TASK_GROUP_LEADER: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static TASK_START_TIME: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static TASK_MM: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
pub static MM_START_STACK: Global<u64> = Global::new(0);

/// Whether the ring buffer has so much room that a long record does not cost another sample its place.
#[inline(always)]
pub fn is_roomy() -> bool {
    SAMPLES.query(u64::from(BPF_RB_AVAIL_DATA)) < SAMPLES.query(u64::from(BPF_RB_RING_SIZE)) / 4
}

/// Makes words 0, one by one: LLVM would make a call of it that goes byte by byte, and the verifier through all its turns.
///
/// # Safety
/// The words can be written.
#[inline(always)]
pub unsafe fn clear<const WORDS: usize>(words: *mut [u64; WORDS]) {
    for at in 0..WORDS {
        // SAFETY: there are so many words.
        unsafe { words.cast::<u64>().add(at).write_volatile(0) }
    }
}

/// Adds to a counter of this CPU.
#[inline(always)]
pub fn count(counter: Counter, amount: u64) {
    if let Some(value) = COUNTERS.get_ptr_mut(counter as u32) {
        // SAFETY: a per-CPU slot, written by this program only.
        unsafe { *value += amount }
    }
}
