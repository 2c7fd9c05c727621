//! The stacks of all threads at one moment: of those that wait as they stand, of those that run by sampling them.
//!
//! A thread that waits does not move: the kernel says where its stack begins, and what lies there is read and walked by
//! the rows that the engine has, as a sample's stack that was snapshot. Nothing is stopped. The frame pointer is not to
//! be had so; most functions keep it on the stack, where rows find it. Memory that does not answer costs its own process the
//! rest of its stacks, and nobody else's ([`StackReaders`]).
//!
//! What samples bring along of a runtime's frames is had likewise: the engine takes words of frames from what was read of the
//! stack, and a list of them is walked here.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use jitprof_common::limits::COMM_LEN;
use jitprof_common::stop::StopReason;
use jitprof_common::units::{MonoNs, Pid, Tid};
use jitprof_common::unwind::LOST_FP;
use jitprof_runtimes::Walked;

use super::recorder::{RecordError, Recorder};
use super::stack_readers::{StackReaders, Wanted};
use crate::engine::border::{FrameList, Recorded, Sample, StackSnapshot};
use crate::process::monotonic_now;
use crate::process::procfs::{self, ProcError, Standing};

/// Bytes of all stacks together that are read at most, within what the engine keeps.
const MAX_BYTES: usize = 12 << 20;
/// Bytes of one stack that are read at most, and at least.
const MAX_STACK_BYTES: usize = 256 << 10;
const LEAST_STACK_BYTES: usize = 8 << 10;
/// Looks at a thread that runs meanwhile, again and again.
const MAX_LOOKS: usize = 3;
/// How long threads that run are sampled.
const SAMPLED: Duration = Duration::from_millis(300);
/// What `SnapshotHeader` calls the next instruction.
const INSTRUCTION: u8 = 1;

/// What a thread did when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It waited, and its stack was read. In the profile it is at this time.
    Waiting(MonoNs),
    /// It ran, or waited for a CPU: its stack is that of a sample, if one was taken.
    Running,
    /// It has no user code, or its stack cannot be read.
    Unreadable,
    /// It waited, and its process' memory did not answer in time.
    NoAnswer,
}

/// A thread.
#[derive(Clone, Debug)]
pub struct ThreadStack {
    /// Its process.
    pub pid: Pid,
    /// Its number.
    pub tid: Tid,
    /// Its name, unsanitized.
    pub comm: String,
    /// Its state as `ps` has it.
    pub state: char,
    /// What it did.
    pub doing: Doing,
    /// The kernel functions in which it waited, innermost first. Those of a sample are in the profile.
    pub kernel: Vec<String>,
}

/// All threads, and the profile with their stacks.
#[derive(Debug)]
pub struct Stacks {
    /// By process and thread.
    pub threads: Vec<ThreadStack>,
    /// A row for each thread that waited, and for each sample; every time is exact.
    pub recorded: Recorded,
}

impl Recorder {
    /// Looks at all threads of these processes once, and ends the recording. It must keep exact times.
    ///
    /// # Errors
    /// The kernel refuses what it allowed before.
    pub fn stacks(mut self, pids: &[Pid]) -> Result<Stacks, RecordError> {
        let mut found = Vec::new();
        for &pid in pids {
            let mut tids = match procfs::threads(pid) {
                Ok(tids) => tids,
                // It has ended since it was chosen; the others have not.
                Err(ProcError::NoSuchProcess(..)) if pids.len() > 1 => continue,
                Err(error) => return Err(error.into()),
            };
            tids.sort_unstable();
            found.extend(tids.into_iter().map(|tid| (pid, tid)));
        }
        let limit = (MAX_BYTES / found.len().max(1)).clamp(LEAST_STACK_BYTES, MAX_STACK_BYTES);
        let mut threads = Vec::with_capacity(found.len());
        let mut readers = StackReaders::default();
        for (pid, tid) in found {
            match self.look_at(pid, tid, limit, &mut readers) {
                Ok(thread) => threads.push(thread),
                // It has ended meanwhile.
                Err(ProcError::NoSuchProcess(..)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if threads.iter().any(|thread| thread.doing == Doing::Running) {
            self.sample_for(SAMPLED)?;
        }
        Ok(Stacks { threads, recorded: self.finish_now()? })
    }

    fn look_at(
        &mut self,
        pid: Pid,
        tid: Tid,
        limit: usize,
        readers: &mut StackReaders,
    ) -> Result<ThreadStack, ProcError> {
        let lists = self.driver().engine().keeps_lists(pid);
        let comm = procfs::thread_comm(pid, tid)?;
        let mut doing = Doing::Running;
        for _ in 0..MAX_LOOKS {
            let switches = procfs::context_switches(pid, tid)?;
            let (sp, pc) = match procfs::standing(pid, tid)? {
                Standing::Running => break,
                Standing::NoUserCode => {
                    doing = Doing::Unreadable;
                    break;
                }
                Standing::Blocked { sp, pc } => (sp, pc),
            };
            let read = readers.read(pid, Wanted { tid, sp, limit, lists });
            let kernel = procfs::kernel_stack(pid, tid).unwrap_or_default();
            let state = procfs::thread_state(pid, tid)?;
            let has_moved = procfs::context_switches(pid, tid)? != switches
                || procfs::standing(pid, tid)? != (Standing::Blocked { sp, pc });
            if has_moved {
                continue;
            }
            let Some((bytes, listed)) = read else {
                return Ok(ThreadStack { pid, tid, comm, state, doing: Doing::NoAnswer, kernel });
            };
            let time = monotonic_now();
            self.hand_in(Sample {
                time,
                pid,
                tid,
                comm: padded(&comm),
                stop: StopReason::SnapshotEnd as u8,
                kernel: Cow::Borrowed(&[]),
                user: Cow::Borrowed(&[pc]),
                snapshot: Some(StackSnapshot {
                    registers: [pc, sp, LOST_FP, 0],
                    kind: INSTRUCTION,
                    index: 0,
                    base: sp,
                    bytes: Cow::Owned(bytes),
                }),
                taken: None,
                listed: listed.map(|Walked { records, end, state, .. }| Box::new(FrameList::new(records, end, state))),
            });
            return Ok(ThreadStack { pid, tid, comm, state, doing: Doing::Waiting(time), kernel });
        }
        let state = procfs::thread_state(pid, tid)?;
        Ok(ThreadStack { pid, tid, comm, state, doing, kernel: Vec::new() })
    }

    fn sample_for(&mut self, time: Duration) -> Result<(), RecordError> {
        let end = Instant::now() + time;
        self.turn_until(|| Instant::now() >= end)
    }
}

fn padded(comm: &str) -> [u8; COMM_LEN] {
    let mut padded = [0; COMM_LEN];
    // The last byte is the kernel's zero.
    padded.iter_mut().take(COMM_LEN - 1).zip(comm.bytes()).for_each(|(to, from)| *to = from);
    padded
}
