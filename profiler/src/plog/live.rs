//! Learns which kernel threads the threads of a log are, while the program runs that writes it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::error::PlogError;
use super::reader::Log;
use super::threads::{ThreadMap, ThreadSource, tid_of_pthread};
use crate::peek::read_memory;
use crate::process::procfs;
use jitprof_common::units::{Avma, Pid, Tid};
use jitprof_runtimes::pthread::DESCRIPTOR_BYTES;

/// Entries read in one look.
const MAX_ENTRIES: u64 = 64 << 10;
/// Threads looked at in one look.
const MAX_THREADS: usize = 1024;

/// Looks into a growing log now and then, and reads the descriptors of the threads that are new in it.
///
/// The log's owner can make it say anything; all that comes of it is bounded reads of that owner's own process, and a
/// thread id that is believed only if the process has this thread.
#[derive(Debug)]
pub struct LiveThreads {
    path: PathBuf,
    pids: Vec<Pid>,
    /// Number of the first entry that has not been looked at.
    next: u64,
    map: ThreadMap,
}

impl LiveThreads {
    /// For a log that one of these processes writes.
    pub fn new(path: &Path, pids: Vec<Pid>) -> Self {
        Self { path: path.to_owned(), pids, next: 0, map: ThreadMap::default() }
    }

    /// What has been learnt.
    pub fn map(&self) -> &ThreadMap {
        &self.map
    }

    /// Looks at entries that are new since the last time, 65,536 of them at most. A log that is not there yet, or is
    /// none yet, is looked at again the next time.
    pub fn look(&mut self) {
        match self.new_ids() {
            Ok(ids) => {
                for id in ids {
                    for pid in self.pids.clone() {
                        if let Some(tid) = kernel_thread(pid, id) {
                            self.map.add(id, tid, ThreadSource::Descriptor);
                            break;
                        }
                    }
                }
            }
            Err(error) => tracing::debug!("{}: {error}", self.path.display()),
        }
    }

    /// The thread ids of the new entries. A thread that was seen before is looked at again, because descriptors are
    /// used again.
    fn new_ids(&mut self) -> Result<BTreeSet<u64>, PlogError> {
        let mut log = Log::open_path(&self.path)?;
        let mut ids = BTreeSet::new();
        let mut written = 0_u64;
        let (next, blank) = log.entries_from(self.next, MAX_ENTRIES, |entry| {
            written += 1;
            if ids.len() < MAX_THREADS {
                ids.insert(entry.thread);
            }
            Ok::<(), PlogError>(())
        })?;
        // Blank ones may be written later.
        self.next = if blank > 0 { self.next.saturating_add(written) } else { next };
        Ok(ids)
    }
}

/// The thread of a process whose descriptor lies at this address, by the kernel's id in our pid namespace.
fn kernel_thread(pid: Pid, pthread: u64) -> Option<Tid> {
    let mut descriptor = [0; DESCRIPTOR_BYTES];
    let got = read_memory(pid, Avma(pthread), &mut descriptor).ok()?;
    let threads = procfs::threads(pid).ok()?;
    // The descriptor has the id in the process' own pid namespace.
    let own = |tid: &Tid| procfs::status(Pid(tid.0)).ok().map(|status| Tid(status.own_pid()));
    let namespaced = threads.first().is_some_and(|tid| own(tid) != Some(*tid));
    let in_descriptor = |is_thread: &dyn Fn(Tid) -> bool| tid_of_pthread(pthread, descriptor.get(..got)?, is_thread);
    if !namespaced {
        return in_descriptor(&|tid| threads.contains(&tid));
    }
    let pairs: Vec<(Tid, Tid)> = threads.iter().filter_map(|tid| Some((own(tid)?, *tid))).collect();
    let inside = in_descriptor(&|tid| pairs.iter().any(|(own, _)| *own == tid))?;
    pairs.into_iter().find(|(own, _)| *own == inside).map(|(_, tid)| tid)
}
