//! Which processes are sampled, as far as the BPF program does not decide it alone.
//!
//! Users, and control groups of version 2, it compares itself: a process is sampled from its first instruction on. For
//! everything else it has a list of processes. That follows forks and new names at once, and is compared with the control
//! groups twice a second.

use std::collections::HashSet;

use jitprof_common::limits::MAX_CGROUPS;
use jitprof_common::units::{MonoNs, Pid};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::engine::border::{Output, Request};
use crate::engine::options::Selector;
use crate::engine::requests::{Purpose, Requests};
use crate::process::event::{TaskChange, TaskEvent};
use crate::process::hierarchy::Group;

/// Between looks for processes that a selection means by now.
const LOOK_NS: u64 = 500_000_000;
/// Looks between two searches of the hierarchies if no process has run a new program meanwhile: ten seconds.
const QUIET_LOOKS: u32 = 20;

/// Whose samples are taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Who {
    /// Everybody's.
    All,
    /// Those of processes that were named, or of threads.
    Chosen,
    /// Those of processes and threads of this name.
    Comm(String),
    /// Those of processes that match.
    Matching(Selector),
}

/// The processes that are sampled.
#[derive(Debug)]
pub(super) struct Selection {
    who: Who,
    /// Follow the children of processes that were chosen by number or name.
    inherit: bool,
    /// Processes whose samples are wanted one by one, and since when.
    followed: FxHashMap<Pid, MonoNs>,
    groups: Vec<Group>,
    /// Processes in the groups that do not match otherwise; they are asked again when they change their name.
    others: HashSet<Pid>,
    /// A process has run a new program: there may be new groups.
    searches: bool,
    quiet: u32,
    looked_at: MonoNs,
    is_looking: bool,
}

impl Selection {
    /// Of nobody yet.
    pub(super) fn new(who: Who, inherit: bool) -> Self {
        Self {
            who,
            inherit,
            followed: FxHashMap::default(),
            groups: Vec::new(),
            others: HashSet::new(),
            searches: false,
            quiet: 0,
            looked_at: MonoNs(0),
            is_looking: false,
        }
    }

    fn selector(&self) -> Option<&Selector> {
        match &self.who {
            Who::Matching(selector) => Some(selector),
            Who::All | Who::Chosen | Who::Comm(_) => None,
        }
    }

    /// Whether samples of a process may come that nobody has named.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.who, Who::All | Who::Matching(_))
    }

    /// Whether a process is sampled because it was named.
    pub(super) fn is_followed(&self, pid: Pid) -> bool {
        self.followed.contains_key(&pid)
    }

    /// Takes samples of a process.
    pub(super) fn follow(&mut self, pid: Pid, requests: &mut Requests) {
        self.follow_since(pid, requests.now, requests);
    }

    fn follow_since(&mut self, pid: Pid, since: MonoNs, requests: &mut Requests) {
        if self.followed.insert(pid, since).is_none() && self.who != Who::All {
            requests.output(Output::Follow(pid));
        }
    }

    /// A process has ended.
    pub(super) fn end(&mut self, pid: Pid, requests: &mut Requests) {
        self.others.remove(&pid);
        if self.followed.remove(&pid).is_some() && self.who != Who::All {
            requests.output(Output::Unfollow(pid));
        }
    }

    /// Whether an event about a process of which nothing else is known may make it a member, or a child of it.
    pub(super) fn is_concerned(&self, event: &TaskEvent) -> bool {
        match (&event.change, &self.who) {
            (TaskChange::Comm { comm, .. }, Who::Comm(name)) => same_comm(comm, name),
            (TaskChange::Comm { pid, comm, exec, .. }, Who::Matching(selector)) => {
                let may_be_in_group = !selector.groups.is_empty() && (*exec || self.others.contains(pid));
                may_be_in_group || is_one_of(comm, &selector.comms)
            }
            (TaskChange::Fork { parent_pid, .. }, Who::Chosen | Who::Comm(_) | Who::Matching(_)) => {
                self.followed.contains_key(parent_pid)
            }
            // Who has its number next is not meant.
            (TaskChange::Exit { pid, tid }, _) => pid.0 == tid.0 && self.followed.contains_key(pid),
            _ => false,
        }
    }

    /// Follows what an event makes a member.
    pub(super) fn apply(&mut self, event: &TaskEvent, requests: &mut Requests) {
        match &event.change {
            TaskChange::Fork { pid, parent_pid, .. } => {
                let inherits = self.inherit || self.keeps_children();
                if pid != parent_pid && inherits && self.followed.contains_key(parent_pid) {
                    self.follow_since(*pid, event.time, requests);
                }
            }
            TaskChange::Comm { pid, comm, exec, .. } => {
                if self.is_renamed(*pid, comm, *exec) {
                    self.follow_since(*pid, event.time, requests);
                }
            }
            TaskChange::Mmap(_) | TaskChange::Exit { .. } | TaskChange::Lost { .. } => {}
        }
    }

    /// A process has a new name or runs a new program; returns whether it matches by that alone.
    fn is_renamed(&mut self, pid: Pid, comm: &str, exec: bool) -> bool {
        match &self.who {
            Who::All | Who::Chosen => false,
            Who::Comm(name) => same_comm(comm, name),
            Who::Matching(selector) => {
                self.others.remove(&pid);
                self.searches |= exec;
                selector.pids.is_empty() && selector.groups.is_empty() && is_one_of(comm, &selector.comms)
            }
        }
    }

    /// The groups that a selection means at the beginning.
    pub(super) fn begin(&mut self, groups: Vec<Group>, requests: &mut Requests) {
        self.groups = groups;
        self.tell_groups(requests);
    }

    fn tell_groups(&self, requests: &mut Requests) {
        if self.selector().is_some_and(|selector| !selector.groups.is_empty()) {
            let groups = if self.is_left_to_kernel() { self.groups.clone() } else { Vec::new() };
            requests.output(Output::Groups(groups));
        }
    }

    /// Whether the BPF program decides alone.
    pub(super) fn is_left_to_kernel(&self) -> bool {
        self.selector().is_some_and(|asked| !asked.names_processes())
            && self.groups.len() <= MAX_CGROUPS as usize
            && self.groups.iter().all(|group| group.is_v2)
    }

    /// Whether children are members because their parents are.
    fn keeps_children(&self) -> bool {
        self.selector().is_some_and(|asked| !asked.names_processes() && !asked.groups.is_empty())
    }

    /// Asks who has come into or left the groups of a selection, if it is time.
    pub(super) fn look(&mut self, requests: &mut Requests) {
        let due = requests.now.0.saturating_sub(self.looked_at.0) >= LOOK_NS;
        let Some(selector) = self.selector().filter(|asked| due && !asked.groups.is_empty() && !self.is_looking) else {
            return;
        };
        let (query, names) = (selector.groups.clone(), !selector.comms.is_empty());
        self.looked_at = requests.now;
        self.is_looking = true;
        self.quiet += 1;
        let searches = std::mem::take(&mut self.searches) || self.quiet >= QUIET_LOOKS;
        if searches {
            self.quiet = 0;
        }
        let request = Request::Members {
            search: searches.then_some(query),
            groups: self.groups.clone(),
            pids: !self.is_left_to_kernel(),
            names,
        };
        requests.ask(Purpose::Members, request);
    }

    /// Who is in the groups could not be found out this time.
    pub(super) fn give_up_looking(&mut self) {
        self.is_looking = false;
    }

    /// Takes up who was in the groups at `begun`. Returns those that are followed from now on.
    pub(super) fn take(
        &mut self,
        groups: Option<Vec<Group>>,
        members: &[(Pid, Option<String>)],
        begun: MonoNs,
        requests: &mut Requests,
    ) -> Vec<Pid> {
        self.is_looking = false;
        if let Some(groups) = groups
            && groups != self.groups
        {
            self.groups = groups;
            self.tell_groups(requests);
        }
        let pids: HashSet<Pid> = members.iter().map(|(pid, _)| *pid).collect();
        self.unfollow_missing(&pids, begun, requests);
        self.others.retain(|pid| pids.contains(pid));
        let mut new = Vec::new();
        for (pid, comm) in members {
            if self.followed.contains_key(pid) || self.others.contains(pid) {
                continue;
            }
            let Some(selector) = self.selector() else { break };
            let named = (selector.pids.is_empty() || selector.pids.contains(pid))
                && (selector.comms.is_empty() || comm.as_ref().is_some_and(|comm| is_one_of(comm, &selector.comms)));
            if named {
                new.push(*pid);
                self.follow(*pid, requests);
            } else {
                self.others.insert(*pid);
            }
        }
        new
    }

    /// Processes that are followed and were not among these, which were read after `begun`. Who is followed since says
    /// nothing by that.
    pub(super) fn unfollow_missing(&mut self, running: &HashSet<Pid>, begun: MonoNs, requests: &mut Requests) {
        let missing = self.followed.iter().filter(|(pid, since)| !running.contains(pid) && **since < begun);
        let mut gone: Vec<Pid> = missing.map(|(pid, _)| *pid).collect();
        gone.sort_unstable();
        gone.into_iter().for_each(|pid| self.end(pid, requests));
    }

    /// What names processes here, and how many.
    #[cfg(test)]
    pub(super) fn rooms(&self) -> [(&'static str, usize); 2] {
        [("followed", self.followed.len()), ("other members", self.others.len())]
    }
}

fn is_one_of(comm: &str, wanted: &[String]) -> bool {
    wanted.iter().any(|wanted| same_comm(comm, wanted))
}

/// Whether two names are the same to the kernel, which keeps 15 bytes.
pub(crate) fn same_comm(comm: &str, wanted: &str) -> bool {
    comm.as_bytes() == &wanted.as_bytes()[..wanted.len().min(15)]
}
