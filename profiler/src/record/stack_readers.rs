//! Reads stacks of threads that wait from their processes' memory, some of which may never answer: a page that a file system in
//! userspace has to bring, or a page fault that the process handles itself.
//!
//! So each process' memory is read on a thread of its own, and apart, so that jitprof can end nevertheless. What takes too long
//! is left to itself, with all that is left of that process; of its user's other processes less time is wasted.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use jitprof_common::units::{Avma, Pid, Tid};
use jitprof_runtimes::Walked;

use crate::peek::read_memory;
use crate::process::apart::apart_without_files;
use crate::process::user_of;
use crate::runtime::ThreadLists;

/// Longest time of a read before it is given up.
const STALL_LIMIT: Duration = Duration::from_secs(3);
/// The same of processes whose user has another one that did not answer. A stack is read within a millisecond, and a runtime
/// is found within some 100.
const DOUBTFUL_LIMIT: Duration = Duration::from_secs(1);
/// A list of frames is walked without recursion.
const STACK_BYTES: usize = 512 << 10;

/// What is to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) tid: Tid,
    pub(super) sp: u64,
    /// Bytes of the stack at most.
    pub(super) limit: usize,
    /// The process' runtime keeps a list of each thread's frames.
    pub(super) lists: bool,
}

/// The bytes of a stack from its pointer on, as far as they can be read, and the thread's list.
pub(super) type Read = (Vec<u8>, Option<Walked>);

/// Times that tests shorten.
#[derive(Clone, Copy, Debug)]
struct Limits {
    stall: Duration,
    doubtful: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { stall: STALL_LIMIT, doubtful: DOUBTFUL_LIMIT }
    }
}

/// One process after the other.
#[derive(Debug, Default)]
pub(super) struct StackReaders {
    limits: Limits,
    current: Option<(Pid, StackReader)>,
    silent: HashSet<Pid>,
    /// Whose processes they are.
    doubtful: HashSet<Option<u32>>,
}

/// A thread that reads one process' memory.
#[derive(Debug)]
struct StackReader {
    wanted: Sender<Wanted>,
    read: Receiver<Read>,
}

impl StackReaders {
    /// Reads a thread's stack. Nothing if the memory of its process does not answer.
    pub(super) fn read(&mut self, pid: Pid, wanted: Wanted) -> Option<Read> {
        if self.silent.contains(&pid) {
            return None;
        }
        let read = self.ask(pid, wanted);
        if read.is_none() {
            self.current = None;
            self.silent.insert(pid);
            self.doubtful.insert(user_of(pid));
        }
        read
    }

    fn ask(&mut self, pid: Pid, wanted: Wanted) -> Option<Read> {
        if self.current.as_ref().is_none_or(|(current, _)| *current != pid) {
            let reader = StackReader::start(move || memory_of(pid)).ok()?;
            self.current = Some((pid, reader));
        }
        let (_, reader) = self.current.as_ref()?;
        let is_doubtful = !self.doubtful.is_empty() && self.doubtful.contains(&user_of(pid));
        reader.read(wanted, if is_doubtful { self.limits.doubtful } else { self.limits.stall })
    }
}

impl StackReader {
    fn start<R: FnMut(Wanted) -> Read>(memory: impl FnOnce() -> R + Send + 'static) -> std::io::Result<Self> {
        let (wanted, asked) = channel::<Wanted>();
        let (answers, read) = channel();
        thread::Builder::new().name("stacks".into()).stack_size(STACK_BYTES).spawn(move || {
            let mut memory = memory();
            // Ends when nobody asks or waits any more.
            while let Ok(wanted) = asked.recv()
                && answers.send(memory(wanted)).is_ok()
            {}
        })?;
        Ok(Self { wanted, read })
    }

    fn read(&self, wanted: Wanted, limit: Duration) -> Option<Read> {
        self.wanted.send(wanted).ok()?;
        self.read.recv_timeout(limit).ok()
    }
}

/// Reads what is wanted of a process, apart.
fn memory_of(pid: Pid) -> impl FnMut(Wanted) -> Read {
    let mut lists = None;
    move |wanted| {
        apart_without_files(|| {
            let lists = wanted.lists.then(|| lists.get_or_insert_with(|| ThreadLists::of(pid)));
            (stack(pid, wanted), lists.and_then(|lists| lists.as_ref()?.of_thread(wanted.tid)))
        })
    }
}

/// What can be read of a stack from its pointer on.
fn stack(pid: Pid, Wanted { sp, limit, .. }: Wanted) -> Vec<u8> {
    let mut bytes = vec![0; limit];
    let mut read = 0;
    while read < limit {
        let at = Avma(sp.saturating_add(u64::try_from(read).unwrap_or(u64::MAX)));
        match read_memory(pid, at, &mut bytes[read..]) {
            Ok(more @ 1..) => read += more,
            _ => break,
        }
    }
    bytes.truncate(read);
    bytes
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn wanted(limit: usize) -> Wanted {
        Wanted { tid: Tid(1), sp: 0, limit, lists: false }
    }

    #[test]
    fn who_does_not_answer_is_left_alone_and_the_next_one_is_asked() {
        let answers = |wanted: Wanted| (vec![7; wanted.limit], None);
        let quick = StackReader::start(move || answers).unwrap();
        assert_eq!(quick.read(wanted(3), STALL_LIMIT).unwrap().0, [7, 7, 7]);
        let never = StackReader::start(|| {
            |_: Wanted| -> Read {
                loop {
                    thread::park()
                }
            }
        })
        .unwrap();
        assert!(never.read(wanted(3), Duration::from_millis(10)).is_none());
        let limits = Limits { doubtful: Duration::from_millis(50), ..Limits::default() };
        let mut readers = StackReaders { limits, current: Some((Pid(1), never)), ..StackReaders::default() };
        readers.doubtful.insert(user_of(Pid(1)));
        let begun = Instant::now();
        assert!((0..100).all(|_| readers.read(Pid(1), wanted(3)).is_none()));
        assert!(begun.elapsed() < STALL_LIMIT, "asked once, and no longer than its user's other processes");
        readers.current = Some((Pid(2), quick));
        assert_eq!(readers.read(Pid(2), wanted(2)).unwrap().0, [7, 7]);
    }

    #[test]
    fn the_own_stack_is_read() {
        let value = [1_u64, 2, 3];
        let here = Wanted { sp: value.as_ptr() as u64, ..wanted(24) };
        let (bytes, listed) = StackReaders::default().read(Pid(std::process::id()), here).unwrap();
        assert_eq!(bytes, value.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<_>>());
        assert!(listed.is_none());
    }
}
