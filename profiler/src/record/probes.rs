//! Which processes have a breakpoint where they register code with a debugger, if that is asked for.
//!
//! A place is probed when a reading of the process' runtime has found it, and until the process has ended, runs another program,
//! or has it no more. Setting a breakpoint waits for the process' address space: that is done apart.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jitprof_common::units::{MonoNs, Pid};

use crate::kernel::{Probe, ProbeAt, Prober};
use crate::process::apart::{Waits, apart};
use crate::process::open::handle_of_mapping;
use crate::process::{ProcessId, monotonic_now, user_of};
use crate::runtime::CallSite;

/// Breakpoints of all processes, each with a descriptor.
const MAX_PROBES: usize = 512;
/// One part of so many is left to others by a user's processes; root's may have all.
const LEFT_TO_OTHERS: usize = 4;

/// Why there is none where others may go.
const NO_ROOM: &str = "there is no room for so many breakpoints";

/// All of them.
#[derive(Default)]
pub(super) struct Probes {
    /// Nothing if none are wanted.
    prober: Option<Arc<Prober>>,
    known: Mutex<HashMap<ProcessId, Probed>>,
}

/// The places of one process.
#[derive(Default)]
struct Probed {
    /// The thread that its events are of. When it ends, so do they.
    via: Option<Pid>,
    user: u32,
    attached: Vec<(CallSite, Probe)>,
    /// Each with the reason.
    refused: Vec<(CallSite, String)>,
    /// When the last one was set.
    since: Option<MonoNs>,
}

/// Since when calls are told, if they are; and why some are not.
pub(super) type Told = (Option<MonoNs>, Option<String>);

impl Probes {
    /// Sets breakpoints, or none.
    pub(super) fn new(prober: Option<Arc<Prober>>) -> Self {
        Self { prober, ..Self::default() }
    }

    /// A process is about to be read.
    pub(super) fn expect(&self, process: ProcessId) {
        if self.prober.is_some() {
            self.known().entry(process).or_default();
        }
    }

    /// A process was read, through a thread, and registers code at these places; none if it has ended meanwhile.
    pub(super) fn watch(&self, (process, via): (ProcessId, Pid), sites: &[CallSite], waits: &Waits) -> Told {
        let Some(prober) = &self.prober else { return (None, None) };
        let user = user_of(via).unwrap_or(u32::MAX);
        let (new, gone) = self.begin(process, (via, user), sites);
        drop(gone);
        for site in new {
            let at = Wanted { process, via, user, site: &site };
            let attached = match self.room_for(user) {
                Ok(()) => apart(|| at.attach(prober, waits)),
                Err(why) => Err(why),
            };
            // One that came too late is dropped here.
            drop(self.finish(process, site, attached));
        }
        let known = self.known();
        let Some(probed) = known.get(&process) else { return (None, None) };
        (probed.since.filter(|_| !probed.attached.is_empty()), probed.refused.first().map(|(_, why)| why.clone()))
    }

    /// Nothing has come of reading a process.
    pub(super) fn give_up(&self, process: ProcessId) {
        let mut known = self.known();
        if known.get(&process).is_some_and(|probed| probed.attached.is_empty() && probed.refused.is_empty()) {
            known.remove(&process);
        }
    }

    /// A process has ended, or runs another program.
    pub(super) fn evict(&self, process: ProcessId) {
        let gone = self.known().remove(&process);
        drop(gone);
    }

    /// All of them go.
    pub(super) fn clear(&self) {
        let gone = std::mem::take(&mut *self.known());
        drop(gone);
    }

    /// The places that are new, and the probes of those that are no more.
    fn begin(&self, process: ProcessId, (via, user): (Pid, u32), sites: &[CallSite]) -> (Vec<CallSite>, Vec<Probe>) {
        let mut known = self.known();
        let Some(probed) = known.get_mut(&process) else { return (Vec::new(), Vec::new()) };
        let is_other = probed.via.replace(via) != Some(via);
        probed.user = user;
        probed.refused.retain(|(site, why)| !is_other && sites.contains(site) && why != NO_ROOM);
        let gone = probed.attached.extract_if(.., |(site, _)| is_other || !sites.contains(site));
        let gone = gone.map(|(_, probe)| probe).collect();
        let is_known = |site: &&CallSite| {
            let attached = probed.attached.iter().map(|(known, _)| known);
            attached.chain(probed.refused.iter().map(|(known, _)| known)).any(|known| known == *site)
        };
        let new = sites.iter().filter(|site| !is_known(site)).cloned().collect();
        if sites.is_empty() {
            known.remove(&process);
        }
        (new, gone)
    }

    /// Notes what came of a place. Gives the probe back if the process has ended meanwhile.
    fn finish(&self, process: ProcessId, site: CallSite, attached: Result<Probe, String>) -> Option<Probe> {
        let mut known = self.known();
        let Some(probed) = known.get_mut(&process) else { return attached.ok() };
        match attached {
            Ok(probe) => {
                probed.attached.push((site, probe));
                probed.since = Some(monotonic_now());
            }
            Err(why) => {
                tracing::debug!("process {}: its calls that register code are not told: {why}", process.pid);
                probed.refused.push((site, why));
            }
        }
        None
    }

    /// Whether a user's processes may have one more.
    fn room_for(&self, user: u32) -> Result<(), String> {
        let known = self.known();
        let count = |is_meant: &dyn Fn(u32) -> bool| -> usize {
            known.values().filter(|probed| is_meant(probed.user)).map(|probed| probed.attached.len()).sum()
        };
        match has_room(count(&|_| true), count(&|other| other == user), user) {
            true => Ok(()),
            false => Err(NO_ROOM.to_owned()),
        }
    }

    /// Nothing panics while the lock is held.
    fn known(&self) -> MutexGuard<'_, HashMap<ProcessId, Probed>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether there may be one more breakpoint, beside all and those of a user's processes.
fn has_room(all: usize, his: usize, user: u32) -> bool {
    let most = if user == 0 { MAX_PROBES } else { MAX_PROBES - MAX_PROBES / LEFT_TO_OTHERS };
    all < MAX_PROBES && his < most
}

/// A place that is to be probed.
struct Wanted<'a> {
    process: ProcessId,
    via: Pid,
    user: u32,
    site: &'a CallSite,
}

impl Wanted<'_> {
    fn attach(&self, prober: &Arc<Prober>, waits: &Waits) -> Result<Probe, String> {
        let Self { process, via, user, site } = *self;
        let CallSite { ref place, ref identity, offset, function, descriptor } = *site;
        // The kernel reads the page of the file that the breakpoint comes into. An overlay hands that on.
        if waits.closing_may_hold(via, place.device) {
            return Err(format!("the file system of {} may not answer", place.path));
        }
        let file = handle_of_mapping(via, place, identity).map_err(|error| error.to_string())?;
        let at = ProbeAt { pid: process.pid, via, user, file: &file, offset, function, descriptor };
        prober.attach(&at).map_err(|error| format!("a breakpoint in {}: {error}", place.path))
    }
}

#[cfg(test)]
mod tests {
    use jitprof_common::units::Avma;

    use super::*;
    use crate::process::open::{FileIdentity, MapPlace};
    use crate::process::procfs;

    #[test]
    fn one_user_does_not_take_the_room_of_all() {
        let most = MAX_PROBES - MAX_PROBES / LEFT_TO_OTHERS;
        assert!(has_room(most - 1, most - 1, 1000) && !has_room(most, most, 1000));
        assert!(has_room(most, 0, 1001) && has_room(most, most, 0));
        assert!(!has_room(MAX_PROBES, 0, 0));
    }

    fn site(function: u64) -> CallSite {
        let exe = std::fs::metadata("/proc/self/exe").unwrap();
        let mapping = procfs::maps(Pid(std::process::id())).unwrap().mappings.remove(0);
        let (place, identity) = (MapPlace::of(&mapping), FileIdentity::of(&exe));
        CallSite { place, identity, offset: 0, function: Avma(function), descriptor: Avma(1) }
    }

    #[test]
    fn what_found_no_room_is_tried_again_and_what_was_refused_is_not() {
        let (probes, process) = (Probes::new(None), ProcessId { pid: Pid(7), start: MonoNs(1) });
        let sites = [site(0x1000), site(0x2000)];
        let begin = |via| probes.begin(process, (Pid(via), 0), &sites).0.len();
        assert_eq!(begin(7), 0, "nobody reads it");
        probes.known().entry(process).or_default();
        assert_eq!(begin(7), 2);
        for (site, why) in sites.iter().zip([NO_ROOM, "no"]) {
            assert!(probes.finish(process, site.clone(), Err(why.to_owned())).is_none());
        }
        assert_eq!((begin(7), begin(8)), (1, 2), "another thread may be let");
        probes.give_up(process);
        assert!(probes.known().is_empty());
    }

    #[test]
    fn without_the_option_nothing_is_kept_of_a_process() {
        let probes = Probes::new(None);
        let process = ProcessId { pid: Pid(7), start: MonoNs(1) };
        probes.expect(process);
        assert_eq!(probes.watch((process, Pid(7)), &[], &Waits::default()), (None, None));
        assert!(probes.known().is_empty());
    }
}
