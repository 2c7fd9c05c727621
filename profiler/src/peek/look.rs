//! Looks at a process' memory for the unwritten end of a dump. May take long; the process can make it wait.

use std::fs::File;

use jitprof_common::units::{Avma, MonoNs, Pid};
use serde::{Deserialize, Serialize};

use crate::peek::chain::Expect;
use crate::peek::remote::Remote;
use crate::peek::search::{Progress, Search};
use crate::peek::snapshot::{self, DumpEnd, Refusal, Seen, Source};
use crate::peek::stdio::Memory;
use crate::process::open::FileId;
use crate::process::{monotonic_now, procfs};

/// Refusals of one search that are told.
const MAX_REFUSALS: usize = 64;

/// What to look at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Look {
    /// Through whose /proc and memory.
    pub via: Pid,
    /// The process' id in its own namespace.
    pub own_pid: u32,
    /// When it started.
    pub start: MonoNs,
    /// The dump.
    pub file: FileId,
    /// Its `st_dev` and inode.
    pub identity: (u64, u64),
    /// What is known of its end.
    pub end: DumpEnd,
    /// What to do.
    pub what: What,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum What {
    /// Look for the dump's FILE.
    Search,
    /// Look at the FILE; no further if it is as it was seen.
    Read {
        /// Where it is.
        address: Avma,
        /// How it was.
        seen: Option<Seen>,
    },
}

/// What was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Sight {
    /// The dump's FILE is here.
    Found {
        /// Where.
        address: Avma,
        /// Bytes read to find it.
        scanned: u64,
        /// What a look at it shows.
        then: Box<Sight>,
    },
    /// There is no FILE of the dump.
    Nothing {
        /// Bytes read.
        scanned: u64,
        /// Why those were refused that looked like one.
        refusals: Vec<Refusal>,
    },
    /// The process has no descriptor that is open on the dump.
    NoDescriptor,
    /// Its descriptors or mappings cannot be read.
    Unreadable,
    /// The FILE is as it was.
    Unchanged,
    /// Its bytes are not used.
    Refused {
        /// Why.
        refusal: Refusal,
        /// How the FILE was.
        seen: Option<Seen>,
    },
    /// Bytes that continue the file.
    Pending {
        /// How the FILE was.
        seen: Seen,
        /// The bytes, up to the end of the last whole record.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
}

/// Looks.
pub fn look(look: &Look, file: &File) -> Sight {
    let memory = Remote(look.via);
    match look.what {
        What::Search => match search(look, file, &memory) {
            // What has ended has nothing open; it is not that it may not be read.
            Sight::Unreadable if procfs::stat(look.via).map_or(true, |stat| stat.is_dead()) => Sight::NoDescriptor,
            sight => sight,
        },
        What::Read { address, seen } => read(look, file, &memory, address, seen),
    }
}

fn search(look: &Look, file: &File, memory: &impl Memory) -> Sight {
    let (st_dev, inode) = look.identity;
    let fds = procfs::fds_of_file(look.via, st_dev, inode);
    let maps = procfs::maps(look.via);
    let (Ok(fds), Ok(maps)) = (fds, maps) else { return Sight::Unreadable };
    if fds.is_empty() {
        return Sight::NoDescriptor;
    }
    let mut search = Search::new(&maps.mappings, fds);
    let (mut scanned, mut refusals) = (0, Vec::new());
    loop {
        let progress = search.advance(memory);
        scanned += search.take_scanned();
        for candidate in search.take_candidates() {
            match take(look, file, memory, candidate) {
                // The buffer may be empty just now; the old bytes behind it were right all the same.
                Ok(_) => {
                    let then = Box::new(read(look, file, memory, candidate, None));
                    return Sight::Found { address: candidate, scanned, then };
                }
                Err(refusal) if refusals.len() < MAX_REFUSALS => refusals.push(refusal),
                Err(_) => {}
            }
        }
        if progress == Progress::Done {
            return Sight::Nothing { scanned, refusals };
        }
    }
}

fn read(look: &Look, file: &File, memory: &impl Memory, address: Avma, before: Option<Seen>) -> Sight {
    let seen = snapshot::seen(memory, address, look.end.file_len).ok();
    // The file's length is part of what was seen, and has to be still the same.
    let same_length = file.metadata().is_ok_and(|meta| meta.len() == look.end.file_len);
    if seen.is_some() && seen == before && same_length {
        return Sight::Unchanged;
    }
    match take(look, file, memory, address) {
        Ok(snapshot) => Sight::Pending { seen: snapshot.seen, bytes: snapshot.whole().to_vec() },
        Err(refusal) => Sight::Refused { refusal, seen },
    }
}

fn take(look: &Look, file: &File, memory: &impl Memory, address: Avma) -> Result<snapshot::Snapshot, Refusal> {
    let times = look.end.monotonic.then(|| (look.start.0, monotonic_now().0));
    let expect = Expect { own_pid: look.own_pid, times };
    let source = Source { pid: look.via, identity: look.identity, memory, file };
    snapshot::take(&source, address, &look.end, &expect)
}
