//! Loads the eBPF sampler, attaches it to a perf event on every CPU, and reads its samples.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use aya::maps::{CgroupArray, HashMap, MapData, MapError, PerCpuArray, RingBuf};
use aya::programs::ProgramError;
use aya::programs::perf_event::{
    HardwareEvent, PerfEvent, PerfEventConfig, PerfEventLinkId, PerfEventScope, SamplePolicy, SoftwareEvent,
};
use aya::sys::SyscallError;
use aya::util::{KernelVersion, online_cpus};
use aya::{Ebpf, EbpfLoader};
use jitprof_common::config::{self, Select};
use jitprof_common::limits::{self, COMM_LEN};
use jitprof_common::listed::{self, LISTED, ListEnd, ListHeader, Record};
use jitprof_common::registrations::RegistrationRecord;
use jitprof_common::sample::{Counter, SampleHeader};
use jitprof_common::snapshot::SnapshotHeader;
use jitprof_common::stop::StopReason;
use jitprof_common::taken::{TakenFrame, TakenHeader};
use zerocopy::FromBytes;

use super::access::Access;
use super::bpf_log::BpfLog;
use super::code_mask::code_mask;
use super::error::KernelError;
use super::probe::Prober;
use super::program::{self, KERNEL_BTF, Structures, Variant, Verified};
use super::shared_memory::page_size;
use super::tables::{self, SharedTables, TableMaps};
use crate::engine::border::{
    FrameList, FrameWords, Refused, Registration, RegistrationCall, Sample, StackSnapshot, TableUpdate, TakenWords,
};
use crate::engine::tables::TableSizes;
use crate::process::{Errno, monotonic_now};
use jitprof_common::units::{Avma, MonoNs, Pid, Tid};

#[cfg(jitprof_bpf)]
static OBJECT: Option<&[u8]> = Some(aya::include_bytes_aligned!(env!("JITPROF_BPF_OBJECT_PATH")));
#[cfg(not(jitprof_bpf))]
static OBJECT: Option<&[u8]> = None;

/// Control groups of version 2 that a task's are compared with at most.
pub const MAX_CGROUPS: usize = limits::MAX_CGROUPS as usize;
/// Followed processes that the kernel's filter holds; the size of the PROCESSES map.
const MAX_PROCESSES: usize = 16384;
/// The oldest kernel that is tried. 5.8 brought the ring buffer and CAP_BPF; nobody has tested 5.8 and 5.9.
const OLDEST_KERNEL: KernelVersion = KernelVersion::new(5, 10, 0);
/// Ring bytes that one sample takes at most in practice: 100 frames and a header.
const TYPICAL_SAMPLE_BYTES: u64 = 1024;
/// Smallest and largest ring. The smallest holds some 1000 samples, ten seconds of one busy CPU at 99 Hz.
const RING_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;
/// Bytes of the ring of calls that register code: those that 18 processes may make in a window.
const REGISTRATION_RING_BYTES: u32 = 256 << 10;
/// Calls that are taken from it at once: more than it has room for, so that all that were there are among them, and not all
/// that come meanwhile.
const MAX_TAKEN_CALLS: usize = REGISTRATION_RING_BYTES as usize / size_of::<RegistrationRecord>();
/// Places that are probed at most; the size of the PROBED map, and of that of their processes.
const MAX_PLACES: u32 = 1024;

/// What makes the CPU take a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Hardware cycles.
    Cycles,
    /// The kernel's per-CPU clock: available everywhere, blind where interrupts are off.
    CpuClock,
}

impl Event {
    /// The name that perf uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cycles => "cycles",
            Self::CpuClock => "cpu-clock",
        }
    }

    fn config(self) -> PerfEventConfig {
        match self {
            Self::Cycles => PerfEventConfig::Hardware(HardwareEvent::CpuCycles),
            Self::CpuClock => PerfEventConfig::Software(SoftwareEvent::CpuClock),
        }
    }
}

/// Which tasks are sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All.
    All,
    /// Processes that [`Sampler::follow`] names.
    Processes,
    /// These threads.
    Threads(Vec<Tid>),
    /// Threads of this name, and processes that [`Sampler::follow`] names.
    Comm(String),
    /// Those that pass each question that is asked.
    Matching {
        /// Real user ids; without any, every user's.
        users: Vec<u32>,
        /// Only processes that [`Sampler::follow`] names, and those in or below the cgroups of
        /// [`Sampler::set_cgroups`].
        members: bool,
    },
}

/// How to sample.
#[derive(Clone, Debug)]
pub struct SamplerOptions {
    /// Samples per second and busy CPU.
    pub frequency_hz: u32,
    /// The event, or `None` for cycles where the machine has them, else the CPU clock.
    pub event: Option<Event>,
    /// Who.
    pub selection: Selection,
    /// Children of processes that [`Sampler::follow`] names as well, from their first instruction on.
    pub children: bool,
    /// Take kernel frames.
    pub kernel_stack: bool,
    /// Take user frames.
    pub user_stack: bool,
    /// Unwind by rows where there are any; else by frame pointers alone.
    pub rows: bool,
    /// Memory for unwind rows in MiB; `None`: as much as the selection may need.
    pub unwind_mib: Option<u32>,
    /// Log rare events of the BPF program.
    pub log: bool,
    /// Be told of calls that register code, where [`Sampler::prober`] sets breakpoints.
    pub registrations: bool,
}

/// Reads a ring-buffer record. `None` if it is not as this build writes it.
fn parse_sample(bytes: &[u8]) -> Option<Sample<'_>> {
    let (header, rest) = SampleHeader::ref_from_prefix(bytes).ok()?;
    let (kernel, rest) = <[u64]>::ref_from_prefix_with_elems(rest, usize::from(header.kernel_frames)).ok()?;
    let (user, rest) = <[u64]>::ref_from_prefix_with_elems(rest, usize::from(header.user_frames)).ok()?;
    StopReason::from_code(header.stop)?;
    let (taken, listed, rest) = match header.taken {
        0 => (None, None, rest),
        LISTED => parse_list(rest).map(|(listed, rest)| (None, Some(listed), rest))?,
        count => parse_taken(rest, count).map(|(taken, rest)| (Some(taken), None, rest))?,
    };
    Some(Sample {
        time: MonoNs(header.time_ns),
        pid: Pid(header.pid),
        tid: Tid(header.tid),
        comm: header.comm,
        stop: header.stop,
        kernel: kernel.into(),
        user: user.into(),
        snapshot: if header.snapshot == 0 { None } else { Some(parse_snapshot(rest)?) },
        taken,
        listed,
    })
}

/// A list of frames, and what lies behind it.
fn parse_list(bytes: &[u8]) -> Option<(Box<FrameList>, &[u8])> {
    let (header, rest) = ListHeader::ref_from_prefix(bytes).ok()?;
    let (records, rest) = <[Record]>::ref_from_prefix_with_elems(rest, usize::try_from(header.count).ok()?).ok()?;
    let (end, mut records) = (ListEnd::from_code(header.end)?, records.to_vec());
    if header.detoured != 0 {
        let count = listed::straighten(&mut records, end);
        records.truncate(count);
    }
    Some((Box::new(FrameList::new(records, end, header.state)), rest))
}

/// The words, and what lies behind them.
fn parse_taken(bytes: &[u8], count: u8) -> Option<(Box<TakenWords>, &[u8])> {
    let (header, rest) = TakenHeader::ref_from_prefix(bytes).ok()?;
    let (frames, rest) = <[TakenFrame]>::ref_from_prefix_with_elems(rest, usize::from(count)).ok()?;
    let frame = |frame: &TakenFrame| FrameWords {
        index: u16::try_from(frame.index).unwrap_or(u16::MAX),
        reads: u8::try_from(frame.reads).unwrap_or(0),
        words: frame.words,
    };
    let registers = (header.has_registers != 0).then_some(header.registers);
    let mut frames: Vec<FrameWords> = frames.iter().map(frame).collect();
    // The outermost ones have taken each other's place.
    frames.sort_by_key(|frame| frame.index);
    Some((Box::new(TakenWords { registers, frames }), rest))
}

fn parse_snapshot(bytes: &[u8]) -> Option<StackSnapshot<'_>> {
    let (header, rest) = SnapshotHeader::ref_from_prefix(bytes).ok()?;
    let bytes = rest.get(..usize::try_from(header.bytes).ok()?)?;
    Some(StackSnapshot {
        registers: [header.pc, header.sp, header.fp, header.lr],
        kind: header.kind,
        index: header.index,
        base: header.base,
        bytes: bytes.into(),
    })
}

/// Sums over CPUs of what the BPF program counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SamplerCounts {
    /// Samples that passed the filter.
    pub taken: u64,
    /// Of these, lost because the ring was full.
    pub ring_full: u64,
    /// Nanoseconds that the BPF program spent on taken samples.
    pub cost_ns: u64,
    /// Stack snapshots that were left out because there were too many, or the ring too full.
    pub snapshots_refused: u64,
    /// Lists of frames that were left out because they were long, and the ring too full.
    pub lists_refused: u64,
}

/// Calls that register code.
struct Registrations {
    ring: RingBuf<MapData>,
    prober: Arc<Prober>,
    /// Of all processes, when that was looked at last.
    missed: u64,
}

/// The loaded and attached sampler. Dropping it detaches.
pub struct Sampler {
    log: Option<BpfLog>,
    // Declared before `ebpf`: the ring's mapping goes before the maps' owner does.
    ring: RingBuf<MapData>,
    processes: HashMap<MapData, u32, u32>,
    cgroups: CgroupArray<MapData>,
    counters: PerCpuArray<MapData, u64>,
    registrations: Option<Registrations>,
    tables: Option<(TableSizes, TableMaps)>,
    shared: Option<SharedTables>,
    ebpf: Ebpf,
    event: Event,
    cpus: Vec<u32>,
    followed: usize,
    malformed: u64,
    variant: Variant,
    verified: Vec<Verified>,
    /// One on each CPU while samples are taken, with this frequency.
    events: BTreeMap<u32, PerfEventLinkId>,
    frequency_hz: u32,
}

impl Sampler {
    /// Turns what would be a bare errno later into a sentence now.
    ///
    /// # Errors
    /// What is missing for a recording: rights, or what the kernel has to offer.
    pub fn check_machine() -> Result<(), KernelError> {
        let access = Access::of_this_process();
        let missing = access.missing();
        if !missing.is_empty() {
            return Err(KernelError::NotPermitted { missing: missing.join(", ") });
        }
        if !access.in_initial_pid_namespace {
            return Err(KernelError::NestedPidNamespace);
        }
        if access.perf_event_paranoid.is_none() {
            return Err(KernelError::NoPerfEvents);
        }
        if KernelVersion::current().is_ok_and(|version| version < OLDEST_KERNEL) {
            let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
            return Err(KernelError::KernelTooOld { release: release.trim().to_owned() });
        }
        if !Path::new(KERNEL_BTF).exists() {
            return Err(KernelError::NoBtf);
        }
        Ok(())
    }

    /// Loads the object; nothing is sampled before [`Sampler::start`].
    ///
    /// # Errors
    /// The kernel is too old, lacks a feature, or does not permit it; each with what to do.
    pub fn load(options: &SamplerOptions) -> Result<Self, KernelError> {
        let object = OBJECT.ok_or(KernelError::NotEmbedded)?;
        Self::check_machine()?;
        let cpus = online_cpus().map_err(|(path, source)| KernelError::Cpus { path: path.to_owned(), source })?;
        let (select, comm) = match &options.selection {
            Selection::All => (Select::All, [0; COMM_LEN]),
            Selection::Processes => (Select::Processes, [0; COMM_LEN]),
            Selection::Threads(_) => (Select::Threads, [0; COMM_LEN]),
            Selection::Comm(name) => (Select::Comm, padded_comm(name)),
            Selection::Matching { .. } => (Select::Matching, [0; COMM_LEN]),
        };
        let asks = match &options.selection {
            Selection::Matching { users, members } => [!users.is_empty(), *members].map(u32::from),
            _ => [0; 2],
        };
        let (select, children, self_pid) = (select as u32, u32::from(options.children), std::process::id());
        let flags = [options.kernel_stack, options.user_stack, options.log, options.rows].map(u32::from);
        let sizes = table_sizes(options);
        let variant = Variant::of_this_kernel()?;
        let structures = Structures::read(variant);
        let mut loader = EbpfLoader::new();
        structures.set(&mut loader);
        let mut ebpf = loader
            .override_global(config::SELECT, &select, true)
            .override_global(config::SELECT_COMM, &comm, true)
            .override_global(config::SELECT_USERS, &asks[0], true)
            .override_global(config::SELECT_MEMBERS, &asks[1], true)
            .override_global(config::SELECT_CHILDREN, &children, true)
            .override_global(config::KERNEL_STACK, &flags[0], true)
            .override_global(config::USER_STACK, &flags[1], true)
            .override_global(config::LOG_RARE, &flags[2], true)
            .override_global(config::USE_ROWS, &flags[3], true)
            .override_global(config::SELF_PID, &self_pid, true)
            .override_global(config::CODE_MASK, &code_mask(), false)
            .map_max_entries("ROWS", sizes.rows)
            .map_max_entries("REGIONS", sizes.regions)
            .map_max_entries("SAMPLES", ring_bytes(cpus.len(), options.frequency_hz))
            .map_max_entries("REGISTRATIONS", registration_ring_bytes(options.registrations))
            .map_max_entries("PROBED", if options.registrations { MAX_PLACES } else { 1 })
            .map_max_entries("CALLS", if options.registrations { MAX_PLACES } else { 1 })
            .load(object)?;
        let log = if options.log { BpfLog::of(&mut ebpf) } else { None };
        let mut verified = program::load(&mut ebpf, variant)?;
        let registrations = match options.registrations {
            true => Some(Registrations::load(&mut ebpf, &mut verified)?),
            false => None,
        };
        match &options.selection {
            Selection::Threads(tids) => fill(&mut ebpf, "THREADS", tids.iter().map(|tid| tid.0))?,
            Selection::Matching { users, .. } => fill(&mut ebpf, "USERS", users.iter().copied())?,
            Selection::All | Selection::Processes | Selection::Comm(_) => {}
        }
        let tables = if options.rows { Some(tables::take(&mut ebpf, sizes)?) } else { None };
        let (shared, tables) = tables.map_or((None, None), |(shared, maps)| (Some(shared), Some((sizes, maps))));
        let take = |ebpf: &mut Ebpf, name| ebpf.take_map(name).ok_or(KernelError::Mismatch { name });
        Ok(Self {
            log,
            ring: RingBuf::try_from(take(&mut ebpf, "SAMPLES")?)?,
            processes: HashMap::try_from(take(&mut ebpf, "PROCESSES")?)?,
            cgroups: CgroupArray::try_from(take(&mut ebpf, "CGROUPS")?)?,
            counters: PerCpuArray::try_from(take(&mut ebpf, "COUNTERS")?)?,
            registrations,
            tables,
            shared,
            ebpf,
            event: Event::CpuClock,
            cpus,
            followed: 0,
            malformed: 0,
            variant,
            verified,
            events: BTreeMap::new(),
            frequency_hz: 0,
        })
    }

    /// Opens the perf events: samples flow from here on.
    ///
    /// # Errors
    /// `perf_event_open` was refused.
    pub fn start(&mut self, options: &SamplerOptions) -> Result<(), KernelError> {
        let policy = SamplePolicy::Frequency(options.frequency_hz.into());
        let mut event = options.event.unwrap_or(Event::Cycles);
        let program = program::program(&mut self.ebpf, self.variant.entry())?;
        let mut gone = None;
        for &cpu in &self.cpus {
            let scope = PerfEventScope::AllProcessesOneCpu { cpu };
            let mut attached = program.attach(event.config(), scope, policy, false);
            if options.event.is_none()
                && event == Event::Cycles
                && attached.as_ref().err().and_then(os_error).is_some_and(is_no_such_counter)
            {
                // Virtual machines mostly have no PMU.
                event = Event::CpuClock;
                attached = program.attach(event.config(), scope, policy, false);
            }
            match attached {
                Ok(link) => drop(self.events.insert(cpu, link)),
                Err(error) if is_gone(&error) => gone = Some(error),
                Err(error) => return Err(attach_error(error, options.frequency_hz)),
            }
        }
        if let Some(error) = gone.filter(|_| self.events.is_empty()) {
            return Err(attach_error(error, options.frequency_hz));
        }
        (self.event, self.frequency_hz) = (event, options.frequency_hz);
        Ok(())
    }

    /// Goes on with these CPUs: on those that were not sampled, and on those whose events have ended because they were
    /// offline meanwhile, new ones are opened.
    ///
    /// # Errors
    /// `perf_event_open` was refused.
    pub fn set_cpus(&mut self, cpus: Vec<u32>, ended: &[u32]) -> Result<(), KernelError> {
        self.cpus = cpus;
        let program = program::program(&mut self.ebpf, self.variant.entry())?;
        let is_over = |cpu: &u32| ended.contains(cpu) || !self.cpus.contains(cpu);
        for (_, link) in self.events.extract_if(.., |cpu, _| is_over(cpu)) {
            program.detach(link)?;
        }
        // Nothing was begun yet, or all is over.
        if self.frequency_hz == 0 {
            return Ok(());
        }
        for &cpu in &self.cpus {
            if !self.events.contains_key(&cpu)
                && let Some(link) = attach(program, self.event, cpu, self.frequency_hz)?
            {
                self.events.insert(cpu, link);
            }
        }
        Ok(())
    }

    /// Goes on at another frequency. On each CPU there is a moment without samples, some ten microseconds.
    ///
    /// # Errors
    /// `perf_event_open` was refused.
    pub fn set_frequency(&mut self, frequency_hz: u32) -> Result<(), KernelError> {
        let program = program::program(&mut self.ebpf, self.variant.entry())?;
        for (cpu, link) in std::mem::take(&mut self.events) {
            program.detach(link)?;
            if let Some(link) = attach(program, self.event, cpu, frequency_hz)? {
                self.events.insert(cpu, link);
            }
        }
        self.frequency_hz = frequency_hz;
        Ok(())
    }

    /// Ends sampling; what waits in the ring can still be drained, and nothing is taken any more.
    ///
    /// # Errors
    /// The kernel refused to detach a link.
    pub fn stop(&mut self) -> Result<(), KernelError> {
        self.frequency_hz = 0;
        let program = program::program(&mut self.ebpf, self.variant.entry())?;
        let id = program.info().ok().map(|info| info.id());
        program.unload()?;
        program::wait_until_gone(id);
        Ok(())
    }

    /// How large the unwind tables are, if rows are used.
    pub fn table_sizes(&self) -> Option<TableSizes> {
        self.tables.as_ref().map(|(sizes, _)| *sizes)
    }

    /// The memory of the unwind tables, if rows are used, for the one who writes them.
    pub fn take_shared_tables(&mut self) -> Option<SharedTables> {
        self.shared.take()
    }

    /// Brings a change of the unwind tables into force.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn apply(&mut self, update: TableUpdate) -> Result<(), Refused> {
        self.tables.as_mut().map_or(Ok(()), |(_, maps)| maps.apply(update))
    }

    /// The event in use.
    pub fn event(&self) -> Event {
        self.event
    }

    /// The CPUs that are sampled.
    pub fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    /// Which of the BPF programs run.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// The loaded programs.
    pub fn verified(&self) -> &[Verified] {
        &self.verified
    }

    /// Loads the programs that this run does not need as well, and returns all that are loaded. For a look at the
    /// kernel; a recording has no use for it.
    ///
    /// # Errors
    /// The verifier refuses one that this kernel should take.
    pub fn verify_all(&mut self) -> Result<&[Verified], KernelError> {
        program::load_others(&mut self.ebpf, &mut self.verified)?;
        if !self.verified.iter().any(|verified| verified.program == program::REGISTRATIONS) {
            self.verified.push(program::load_registrations(&mut self.ebpf)?.0);
        }
        Ok(&self.verified)
    }

    /// Samples this process from now on.
    ///
    /// # Errors
    /// More processes than the filter holds.
    pub fn follow(&mut self, pid: Pid) -> Result<(), KernelError> {
        if self.followed >= MAX_PROCESSES {
            return Err(KernelError::TooManyProcesses { limit: MAX_PROCESSES });
        }
        self.processes.insert(pid.0, 1, 0)?;
        self.followed += 1;
        Ok(())
    }

    /// No longer samples this process. Nothing happens to one that was not followed.
    pub fn unfollow(&mut self, pid: Pid) {
        // Each process of a host ends: where none is chosen, none is worth a system call.
        if self.followed > 0 && self.processes.remove(&pid.0).is_ok() {
            self.followed = self.followed.saturating_sub(1);
        }
    }

    /// Samples the tasks in and below these directories of a cgroup hierarchy of version 2, and no others that were set
    /// before; [`MAX_CGROUPS`] of them at most.
    ///
    /// # Errors
    /// One of them is no such directory.
    pub fn set_cgroups(&mut self, directories: &[File]) -> Result<(), KernelError> {
        // The BPF program stops at the first empty place.
        let mut count = 0;
        for directory in directories.iter().take(MAX_CGROUPS) {
            match self.cgroups.set(count, directory.as_fd(), 0) {
                Ok(()) => count += 1,
                // It was removed since it was opened.
                Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for index in count..limits::MAX_CGROUPS {
            // Most were not set to begin with, which the kernel answers with an error.
            if self.cgroups.unset(index).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// The descriptor that tells when many samples wait.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    /// Hands every waiting sample to `visit`; returns how many there were. Order is per CPU, not by time.
    pub fn drain(&mut self, mut visit: impl FnMut(Sample<'_>)) -> u64 {
        if let Some(log) = &mut self.log {
            log.drain();
        }
        let mut delivered = 0;
        while let Some(item) = self.ring.next() {
            match parse_sample(&item) {
                Some(sample) => {
                    delivered += 1;
                    visit(sample);
                }
                None => self.malformed += 1,
            }
        }
        delivered
    }

    /// What sets breakpoints where processes register code, if that was asked for.
    pub fn prober(&self) -> Option<Arc<Prober>> {
        self.registrations.as_ref().map(|registrations| Arc::clone(&registrations.prober))
    }

    /// The descriptor that tells when processes have registered code, if that was asked for.
    pub fn registrations_fd(&self) -> Option<BorrowedFd<'_>> {
        self.registrations.as_ref().map(|registrations| registrations.ring.as_fd())
    }

    /// The calls since the last time that register code, and of whom some are not told, as is known afterwards.
    ///
    /// # Errors
    /// The map of counts cannot be read.
    pub fn take_registrations(&mut self) -> Result<Vec<Registration>, KernelError> {
        let Some(registrations) = &mut self.registrations else { return Ok(Vec::new()) };
        let mut told = Vec::new();
        while told.len() < MAX_TAKEN_CALLS
            && let Some(item) = registrations.ring.next()
        {
            told.extend(parse_registration(&item));
        }
        let missed: u64 = self.counters.get(&(Counter::RegistrationsMissed as u32), 0)?.iter().sum();
        if std::mem::replace(&mut registrations.missed, missed) != missed {
            let missed = registrations.prober.newly_missed();
            // None of these was made later.
            let time = monotonic_now();
            told.extend(missed.into_iter().map(|(pid, missed)| Registration { time, pid, missed, call: None }));
        }
        Ok(told)
    }

    /// Ring records that did not parse. Always 0 unless loader and object are of different builds.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// What the BPF program counted so far.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn counts(&self) -> Result<SamplerCounts, KernelError> {
        let sum = |counter: Counter| -> Result<u64, KernelError> {
            Ok(self.counters.get(&(counter as u32), 0)?.iter().sum())
        };
        Ok(SamplerCounts {
            taken: sum(Counter::Taken)?,
            ring_full: sum(Counter::RingFull)?,
            cost_ns: sum(Counter::CostNs)?,
            snapshots_refused: sum(Counter::SnapshotsRefused)?,
            lists_refused: sum(Counter::ListsRefused)?,
        })
    }
}

impl Registrations {
    fn load(ebpf: &mut Ebpf, verified: &mut Vec<Verified>) -> Result<Self, KernelError> {
        let (loaded, program) = program::load_registrations(ebpf)?;
        verified.push(loaded);
        let name = "REGISTRATIONS";
        let ring = RingBuf::try_from(ebpf.take_map(name).ok_or(KernelError::Mismatch { name })?)?;
        Ok(Self { ring, prober: Arc::new(Prober::new(ebpf, program)?), missed: 0 })
    }
}

/// `None` if it is not as this build writes it.
fn parse_registration(bytes: &[u8]) -> Option<Registration> {
    let record = RegistrationRecord::read_from_bytes(bytes).ok()?;
    let RegistrationRecord { time_ns, pid, action, missed, entry, image, size } = record;
    let call = Some(RegistrationCall { action, entry: Avma(entry), image: Avma(image), size });
    Some(Registration { time: MonoNs(time_ns), pid: Pid(pid), missed, call })
}

/// As the kernel asks, a power of two and of pages; the map has to be there in any case.
fn registration_ring_bytes(is_wanted: bool) -> u32 {
    let page = u32::try_from(page_size()).unwrap_or(1 << 16);
    if is_wanted { REGISTRATION_RING_BYTES.max(page) } else { page }
}

/// Puts numbers into a map that serves as a set. The map itself stays with the programs.
fn fill(ebpf: &mut Ebpf, name: &'static str, numbers: impl Iterator<Item = u32>) -> Result<(), KernelError> {
    let map = ebpf.map_mut(name).ok_or(KernelError::Mismatch { name })?;
    let mut set: HashMap<_, u32, u32> = HashMap::try_from(map)?;
    for number in numbers {
        set.insert(number, 1, 0)?;
    }
    Ok(())
}

/// Elements of the row and region arrays. Node alone has 374,000 rows; a whole host maps some hundred distinct
/// libraries. Without rows the arrays only have to exist.
fn table_sizes(options: &SamplerOptions) -> TableSizes {
    if !options.rows {
        return TableSizes { rows: 1, regions: 1 };
    }
    let (rows, regions) = match options.selection {
        Selection::All | Selection::Comm(_) | Selection::Matching { .. } => (4 << 20, 128 << 10),
        Selection::Processes | Selection::Threads(_) => (2 << 20, 64 << 10),
    };
    // A row takes 8 bytes. More than a GiB could not be told apart in a span.
    let asked = options.unwind_mib.map(|mib| mib.min(1023).saturating_mul(1 << 17));
    TableSizes { rows: asked.unwrap_or(rows), regions }
}

/// Room for a third of a second of samples on all CPUs: three ticks of the reader. A power of two, as the kernel asks.
fn ring_bytes(cpus: usize, frequency_hz: u32) -> u32 {
    let per_second = (cpus as u64).saturating_mul(frequency_hz.into()).saturating_mul(TYPICAL_SAMPLE_BYTES);
    let bytes = (per_second / 3).clamp(*RING_BYTES.start(), *RING_BYTES.end()).next_power_of_two();
    u32::try_from(bytes).expect("invariant: the largest ring fits 32 bits")
}

fn padded_comm(name: &str) -> [u8; COMM_LEN] {
    let mut comm = [0; COMM_LEN];
    // The kernel truncates names to 15 bytes and a NUL: so does the comparison.
    let len = name.len().min(COMM_LEN - 1);
    comm[..len].copy_from_slice(&name.as_bytes()[..len]);
    comm
}

/// Begins to sample a CPU; nothing if it is offline.
fn attach(
    program: &mut PerfEvent,
    event: Event,
    cpu: u32,
    frequency_hz: u32,
) -> Result<Option<PerfEventLinkId>, KernelError> {
    let (scope, policy) = (PerfEventScope::AllProcessesOneCpu { cpu }, SamplePolicy::Frequency(frequency_hz.into()));
    match program.attach(event.config(), scope, policy, false) {
        Ok(link) => Ok(Some(link)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(attach_error(error, frequency_hz)),
    }
}

/// Whether a CPU is offline, which it may be since it was listed.
fn is_gone(error: &ProgramError) -> bool {
    os_error(error) == Some(libc::ENODEV)
}

fn os_error(error: &ProgramError) -> Option<i32> {
    match error {
        ProgramError::SyscallError(SyscallError { io_error, .. }) => io_error.raw_os_error(),
        _ => None,
    }
}

fn is_no_such_counter(errno: i32) -> bool {
    matches!(errno, libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV)
}

fn attach_error(error: ProgramError, frequency_hz: u32) -> KernelError {
    let Some(errno) = os_error(&error) else { return error.into() };
    let limit = std::fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate")
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok());
    match limit {
        Some(limit) if errno == libc::EINVAL && u64::from(frequency_hz) > limit => {
            KernelError::FrequencyTooHigh { limit, errno: Errno::from_raw(errno) }
        }
        _ => KernelError::perf_event_open(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn record(kernel: &[u64], user: &[u64], stop: u8) -> Vec<u64> {
        let mut comm = [0; COMM_LEN];
        comm[..4].copy_from_slice(b"node");
        let header = SampleHeader {
            time_ns: 5,
            pid: 1,
            tid: 2,
            cpu: 0,
            cost_ns: 0,
            kernel_frames: kernel.len() as u16,
            user_frames: user.len() as u16,
            stop,
            in_kernel: 0,
            snapshot: 0,
            taken: 0,
            comm,
        };
        let mut words = vec![0u64; size_of::<SampleHeader>() / 8];
        words.as_mut_bytes().copy_from_slice(header.as_bytes());
        words.extend(kernel);
        words.extend(user);
        words
    }

    #[test]
    fn a_record_is_split_into_kernel_and_user_frames() {
        let words = record(&[1, 2], &[3, 4, 5], StopReason::ReadFault as u8);
        let sample = parse_sample(words.as_bytes()).unwrap();
        assert_eq!((&*sample.kernel, &*sample.user), ([1, 2].as_slice(), [3, 4, 5].as_slice()));
        assert_eq!(StopReason::from_code(sample.stop), Some(StopReason::ReadFault));
        assert!(sample.comm.starts_with(b"node\0"));
    }

    #[test]
    fn a_record_shorter_than_its_counts_or_with_an_unknown_reason_is_refused() {
        let words = record(&[1, 2], &[3, 4, 5], 0);
        let bytes = words.as_bytes();
        for length in 0..bytes.len() {
            assert!(parse_sample(&bytes[..length]).is_none(), "length {length}");
        }
        assert!(parse_sample(record(&[], &[], 200).as_bytes()).is_none());
    }

    #[test]
    fn a_snapshot_of_the_stack_is_whole_or_the_record_is_refused() {
        let mut words = record(&[1], &[2, 3], 0);
        words.as_mut_bytes()[std::mem::offset_of!(SampleHeader, snapshot)] = 1;
        let header =
            SnapshotHeader { pc: 3, sp: 0x7008, fp: 9, base: 0x7000, bytes: 16, index: 1, ..SnapshotHeader::default() };
        words.extend(<[u64; 6]>::read_from_bytes(header.as_bytes()).unwrap());
        words.extend([10, 11]);
        let bytes = words.as_bytes();
        let snapshot = parse_sample(bytes).unwrap().snapshot.unwrap();
        assert_eq!(snapshot.frame(), header.frame());
        assert_eq!((snapshot.index, snapshot.base, &*snapshot.bytes), (1, 0x7000, &bytes[bytes.len() - 16..]));
        for length in 0..bytes.len() {
            assert!(parse_sample(&bytes[..length]).is_none(), "length {length}");
        }
    }

    #[test]
    fn a_list_of_frames_is_whole_or_the_record_is_refused() {
        let mut words = record(&[1], &[2, 3], 0);
        words.as_mut_bytes()[std::mem::offset_of!(SampleHeader, taken)] = LISTED;
        words.extend([2 | (ListEnd::Last as u64) << 32, 1, 8, 9, 4, 5, 6, 7]);
        let bytes = words.as_bytes();
        let listed = parse_sample(bytes).unwrap().listed.unwrap();
        assert_eq!(*listed, FrameList::new(vec![[4, 5], [6, 7]], ListEnd::Last, [8, 9]));
        for length in 0..bytes.len() {
            assert!(parse_sample(&bytes[..length]).is_none(), "length {length}");
        }
        let header = words.len() - 8;
        words[header] = 2 | (ListEnd::Unreadable as u64) << 32;
        let end = |words: &[u64]| parse_sample(words.as_bytes())?.listed.map(|list| (list.is_whole, list.is_cut));
        assert_eq!(end(&words), Some((false, false)));
        words[header] = 2 | (ListEnd::TooLong as u64) << 32;
        assert_eq!(end(&words), Some((false, true)), "however few of them are left");
        words[header] = 2 | 9 << 32;
        assert!(parse_sample(words.as_bytes()).is_none());
    }

    #[test]
    fn a_call_that_registers_code_is_read_as_it_was_written_or_not_at_all() {
        let record = RegistrationRecord { time_ns: 5, pid: 7, action: 1, missed: 3, entry: 16, image: 32, size: 64 };
        let told = parse_registration(record.as_bytes()).unwrap();
        assert_eq!((told.time, told.pid, told.missed), (MonoNs(5), Pid(7), 3));
        let call = RegistrationCall { action: 1, entry: Avma(16), image: Avma(32), size: 64 };
        assert_eq!(told.call, Some(call));
        assert!((0..48).all(|length| parse_registration(&record.as_bytes()[..length]).is_none()));
        assert!([true, false].map(registration_ring_bytes).iter().all(|bytes| bytes.is_power_of_two()));
    }

    #[test]
    fn the_ring_grows_with_cpus_and_frequency_within_bounds() {
        assert_eq!(ring_bytes(2, 99), 1 << 20);
        assert_eq!(ring_bytes(64, 999), 32 << 20);
        assert_eq!(ring_bytes(4096, 9999), 64 << 20);
    }

    #[test]
    fn a_long_name_is_compared_as_the_kernel_truncates_it() {
        assert_eq!(&padded_comm("a-name-of-twenty-byt"), b"a-name-of-twent\0");
        assert_eq!(&padded_comm("node"), b"node\0\0\0\0\0\0\0\0\0\0\0\0");
    }
}
