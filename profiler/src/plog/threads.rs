//! Which kernel thread a thread of the log is.
//!
//! The log has `pthread_t` pointers. glibc's and musl's are addresses of the thread's descriptor, which holds the
//! kernel's id at a place that no interface promises: see [`pthread`]. What is read there is believed if it is a thread
//! of the process.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use jitprof_common::units::Tid;
use jitprof_runtimes::pthread;

/// Threads of one pointer; descriptors are used again after a thread has ended.
const MAX_TIDS: usize = 64;

/// How it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadSource {
    /// The user said so.
    Told,
    /// Read from the thread's descriptor in the target's memory.
    Descriptor,
    /// The log's id is the kernel's.
    SameNumber,
    /// Log and recording have one thread each.
    Only,
}

impl fmt::Display for ThreadSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Told => "as told",
            Self::Descriptor => "read from its descriptor",
            Self::SameNumber => "the log has the kernel's id",
            Self::Only => "the only thread",
        })
    }
}

/// Kernel threads by the log's ids.
#[derive(Clone, Debug, Default)]
pub struct ThreadMap(BTreeMap<u64, Vec<(Tid, ThreadSource)>>);

impl ThreadMap {
    /// What the user says.
    pub fn told(rules: &[ThreadRule]) -> Self {
        let mut map = Self::default();
        for rule in rules {
            map.add(rule.id, rule.tid, ThreadSource::Told);
        }
        map
    }

    /// Adds a thread. What the user said of an id is not changed by what is found.
    pub fn add(&mut self, id: u64, tid: Tid, source: ThreadSource) {
        let known = self.0.entry(id).or_default();
        let told = known.iter().any(|(_, source)| *source == ThreadSource::Told);
        let repeated = known.iter().any(|(other, _)| *other == tid);
        if (!told || source == ThreadSource::Told) && !repeated && known.len() < MAX_TIDS {
            known.push((tid, source));
        }
    }

    /// Adds what another map knows.
    pub fn merge(&mut self, other: &Self) {
        for (&id, threads) in &other.0 {
            for &(tid, source) in threads {
                self.add(id, tid, source);
            }
        }
    }

    /// The kernel threads that had this id in the log, one after the other.
    pub fn get(&self, id: u64) -> &[(Tid, ThreadSource)] {
        self.0.get(&id).map_or(&[], Vec::as_slice)
    }

    /// For logs and recordings that need no map: ids that are the kernel's, and one thread on both sides.
    pub(super) fn complete(&mut self, ids: &[u64], recorded: &[Tid]) {
        for &id in ids {
            if self.get(id).is_empty()
                && let Some(tid) = recorded.iter().find(|tid| u64::from(tid.0) == id)
            {
                self.add(id, *tid, ThreadSource::SameNumber);
            }
        }
        if let ([id], [tid]) = (ids, recorded)
            && self.get(*id).is_empty()
        {
            self.add(*id, *tid, ThreadSource::Only);
        }
    }
}

/// `0xPTR=TID`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadRule {
    /// The thread's id in the log, a pointer.
    pub id: u64,
    /// The thread's id in the kernel.
    pub tid: Tid,
}

impl FromStr for ThreadRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not ID=TID, such as 0x7f0123456740=4711");
        let (id, tid) = text.split_once('=').ok_or_else(wrong)?;
        let id = match id.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => id.parse(),
        };
        Ok(Self { id: id.map_err(|_| wrong())?, tid: Tid(tid.parse().map_err(|_| wrong())?) })
    }
}

/// The kernel's id in a thread's descriptor, given what is readable of it and how to know a thread of the process.
pub fn tid_of_pthread(pthread: u64, descriptor: &[u8], is_thread: impl Fn(Tid) -> bool) -> Option<Tid> {
    pthread::numbers(pthread, descriptor).map(Tid).find(|tid| is_thread(*tid))
}

#[cfg(test)]
mod tests {
    use jitprof_runtimes::pthread::DESCRIPTOR_BYTES;

    use super::*;

    #[test]
    fn a_descriptor_is_believed_only_if_it_names_a_thread_of_the_process() {
        let pthread = 0x7f00_1234_5740_u64;
        let mut glibc = [0_u8; DESCRIPTOR_BYTES];
        glibc[0..8].copy_from_slice(&pthread.to_ne_bytes());
        glibc[16..24].copy_from_slice(&pthread.to_ne_bytes());
        glibc[720..724].copy_from_slice(&4711_u32.to_ne_bytes());
        assert_eq!(tid_of_pthread(pthread, &glibc, |tid| tid == Tid(4711)), Some(Tid(4711)));
        assert_eq!(tid_of_pthread(pthread, &glibc, |tid| tid == Tid(1)), None);
        assert_eq!(tid_of_pthread(pthread, &glibc[..700], |_| true), None);
        assert_eq!(tid_of_pthread(pthread + 8, &glibc, |_| true).is_some(), cfg!(target_arch = "aarch64"));
        let mut musl = [0_u8; DESCRIPTOR_BYTES];
        musl[0..8].copy_from_slice(&pthread.to_ne_bytes());
        musl[48..52].copy_from_slice(&12_u32.to_ne_bytes());
        assert_eq!(tid_of_pthread(pthread, &musl, |_| true), Some(Tid(12)));
    }

    #[test]
    fn what_the_user_says_stands() {
        let mut map = ThreadMap::told(&["0x10=7".parse().unwrap()]);
        map.add(16, Tid(8), ThreadSource::Descriptor);
        assert_eq!(map.get(16), [(Tid(7), ThreadSource::Told)]);
        map.complete(&[16, 9], &[Tid(9), Tid(7)]);
        assert_eq!(map.get(9), [(Tid(9), ThreadSource::SameNumber)]);
        assert!("0x10".parse::<ThreadRule>().is_err());
        assert!("x=1".parse::<ThreadRule>().is_err());
    }

    #[test]
    fn a_descriptor_used_again_is_several_threads() {
        let mut map = ThreadMap::default();
        map.add(1, Tid(5), ThreadSource::Descriptor);
        map.add(1, Tid(6), ThreadSource::Descriptor);
        map.add(1, Tid(5), ThreadSource::Descriptor);
        assert_eq!(map.get(1).len(), 2);
    }
}
