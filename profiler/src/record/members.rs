//! Which processes a selection means, and how the kernel part is told.
//!
//! Users, and control groups of version 2, the kernel part compares itself: a process is sampled from its first
//! instruction on. For everything else it has a list of processes. That follows forks and new names at once, and is
//! compared with the control groups twice a second.

use std::collections::HashSet;

use rustc_hash::FxHashSet;

use crate::kernel::{MAX_CGROUPS, Selection};
use crate::process::hierarchy::{Group, Hierarchies};
use crate::process::labels::Users;
use crate::process::procfs;
use crate::record::machine::running_pids;
use crate::record::options::{Selector, Targets};
use crate::record::run::RecordError;
use crate::units::Pid;

/// Looks between two searches of the hierarchies if no process has run a new program meanwhile: ten seconds.
const QUIET_LOOKS: u32 = 20;

/// What has changed since the last look.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Groups that the kernel part is to compare with from now on.
    pub(super) groups: Option<Vec<Group>>,
    /// To follow.
    pub(super) new: Vec<Pid>,
    /// To follow no longer.
    pub(super) gone: Vec<Pid>,
}

/// The processes of a selection.
#[derive(Debug, Default)]
pub(super) struct Members {
    selector: Option<Selector>,
    users: Vec<u32>,
    hierarchies: Hierarchies,
    groups: Vec<Group>,
    /// Processes in the groups that do not match otherwise; they are asked again when they change their name.
    others: HashSet<Pid>,
    /// A process has run a new program: there may be new groups.
    searches: bool,
    quiet: u32,
}

impl Members {
    /// For a recording's targets; of other targets than a selection there are none.
    ///
    /// # Errors
    /// It names a user or a process that there is not.
    pub(super) fn of(targets: &Targets) -> Result<Self, RecordError> {
        let Targets::Matching(selector) = targets else { return Ok(Self::default()) };
        let known = if selector.users.is_empty() { Users::default() } else { Users::read() };
        let uid = |user: &String| known.uid(user).ok_or_else(|| RecordError::NoSuchUser { user: user.clone() });
        let users = selector.users.iter().map(uid).collect::<Result<_, _>>()?;
        for pid in selector.pids.iter().filter(|_| !selector.may_come_later) {
            procfs::stat(*pid)?;
        }
        let hierarchies = if selector.groups.is_empty() { Hierarchies::default() } else { Hierarchies::find() };
        let groups = hierarchies.groups(&selector.groups);
        Ok(Self { selector: Some(selector.clone()), users, hierarchies, groups, ..Self::default() })
    }

    /// What the kernel part has to ask.
    pub(super) fn selection(&self) -> Selection {
        let members = self.selector.as_ref().is_some_and(|asked| asked.names_processes() || !asked.groups.is_empty());
        Selection::Matching { users: self.users.clone(), members }
    }

    pub(super) fn selector(&self) -> Option<&Selector> {
        self.selector.as_ref()
    }

    /// The processes that match now, and the groups for the kernel part.
    pub(super) fn begin(&mut self) -> (Vec<Pid>, Vec<Group>) {
        let Some(selector) = &self.selector else { return Default::default() };
        let own = std::process::id();
        let candidates = if selector.groups.is_empty() { running_pids() } else { pids_of(&self.groups) };
        let matching = candidates.into_iter().filter(|pid| pid.0 != own && self.has_user(*pid) && self.is_named(*pid));
        let groups = if self.is_left_to_kernel() { self.groups.clone() } else { Vec::new() };
        (matching.collect(), groups)
    }

    /// Whether the kernel part decides alone.
    pub(super) fn is_left_to_kernel(&self) -> bool {
        self.selector.as_ref().is_some_and(|asked| !asked.names_processes())
            && self.groups.len() <= MAX_CGROUPS
            && self.groups.iter().all(|group| group.is_v2)
    }

    /// Whether children are members because their parents are.
    pub(super) fn keeps_children(&self) -> bool {
        self.selector.as_ref().is_some_and(|asked| !asked.names_processes() && !asked.groups.is_empty())
    }

    /// A process has a new name or runs a new program; returns whether it matches by that alone.
    pub(super) fn is_renamed(&mut self, pid: Pid, comm: &str, exec: bool) -> bool {
        let Some(selector) = &self.selector else { return false };
        self.others.remove(&pid);
        self.searches |= exec;
        selector.pids.is_empty() && selector.groups.is_empty() && is_one_of(comm, &selector.comms)
    }

    /// A process has ended.
    pub(super) fn forget(&mut self, pid: Pid) {
        self.others.remove(&pid);
    }

    /// Compares those that are followed with what is in the groups now.
    pub(super) fn look(&mut self, followed: &FxHashSet<Pid>) -> Changes {
        let Some(selector) = self.selector.as_ref().filter(|asked| !asked.groups.is_empty()) else {
            return Changes::default();
        };
        self.quiet += 1;
        let mut changes = Changes::default();
        if std::mem::take(&mut self.searches) || self.quiet >= QUIET_LOOKS {
            self.quiet = 0;
            let groups = self.hierarchies.groups(&selector.groups);
            if groups != self.groups {
                self.groups = groups;
                changes.groups = Some(if self.is_left_to_kernel() { self.groups.clone() } else { Vec::new() });
            }
        }
        let members = if self.is_left_to_kernel() { HashSet::new() } else { HashSet::from_iter(pids_of(&self.groups)) };
        changes.gone = followed.iter().filter(|pid| !members.contains(pid)).copied().collect();
        self.others.retain(|pid| members.contains(pid));
        for pid in members {
            if followed.contains(&pid) || self.others.contains(&pid) {
                continue;
            }
            if self.is_named(pid) {
                changes.new.push(pid);
            } else {
                self.others.insert(pid);
            }
        }
        changes
    }

    /// Whether a process is asked for by number and name, as far as that is asked.
    fn is_named(&self, pid: Pid) -> bool {
        let Some(selector) = &self.selector else { return false };
        (selector.pids.is_empty() || selector.pids.contains(&pid))
            && (selector.comms.is_empty() || procfs::comm(pid).is_ok_and(|comm| is_one_of(&comm, &selector.comms)))
    }

    fn has_user(&self, pid: Pid) -> bool {
        self.users.is_empty() || procfs::status(pid).is_ok_and(|status| self.users.contains(&status.real_uid))
    }
}

fn pids_of(groups: &[Group]) -> Vec<Pid> {
    let mut pids = Vec::new();
    groups.iter().for_each(|group| group.add_pids(&mut pids));
    pids
}

fn is_one_of(comm: &str, wanted: &[String]) -> bool {
    wanted.iter().any(|wanted| same_comm(comm, wanted))
}

/// Whether two names are the same to the kernel, which keeps 15 bytes.
pub(super) fn same_comm(comm: &str, wanted: &str) -> bool {
    comm.as_bytes() == &wanted.as_bytes()[..wanted.len().min(15)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::hierarchy::GroupQuery;

    fn members(selector: Selector) -> Result<Members, RecordError> {
        Members::of(&Targets::Matching(selector))
    }

    #[test]
    fn the_kernel_part_is_asked_for_what_it_can_tell() {
        let by_user = members(Selector { users: vec!["0".to_owned()], ..Selector::default() }).unwrap();
        assert_eq!(by_user.selection(), Selection::Matching { users: vec![0], members: false });
        assert!(by_user.is_left_to_kernel());
        let by_name = members(Selector { comms: vec!["x".to_owned()], ..Selector::default() }).unwrap();
        assert_eq!(by_name.selection(), Selection::Matching { users: Vec::new(), members: true });
        assert!(!by_name.is_left_to_kernel());
    }

    #[test]
    fn a_user_or_process_that_is_not_there_is_an_error() {
        let user = members(Selector { users: vec!["nobody at all".to_owned()], ..Selector::default() });
        assert!(matches!(user, Err(RecordError::NoSuchUser { .. })));
        let pids = vec![Pid(u32::MAX)];
        assert!(members(Selector { pids: pids.clone(), ..Selector::default() }).is_err());
        assert!(members(Selector { pids, may_come_later: true, ..Selector::default() }).is_ok());
    }

    #[test]
    fn this_process_is_never_a_member_and_others_match_by_every_kind() {
        let own = Pid(std::process::id());
        let mut all = members(Selector { users: vec!["0".to_owned()], ..Selector::default() }).unwrap();
        assert!(!all.begin().0.contains(&own));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid(child.id());
        let asked = |comm: &str| Selector { pids: vec![pid], comms: vec![comm.to_owned()], ..Selector::default() };
        assert_eq!(members(asked("sleep")).unwrap().begin().0, [pid]);
        assert_eq!(members(asked("other")).unwrap().begin().0, []);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_new_name_counts_where_nothing_else_is_asked() {
        let comms = vec!["a-name-of-more-than-15".to_owned()];
        let mut named = members(Selector { comms: comms.clone(), ..Selector::default() }).unwrap();
        assert!(named.is_renamed(Pid(7), "a-name-of-more-", false) && !named.is_renamed(Pid(7), "a-name", false));
        let groups = GroupQuery { paths: vec!["/no/such/group".to_owned()], ..GroupQuery::default() };
        let mut grouped = members(Selector { comms, groups, ..Selector::default() }).unwrap();
        assert!(!grouped.is_renamed(Pid(7), "a-name-of-more-", false));
        assert_eq!(grouped.look(&FxHashSet::from_iter([Pid(7)])).gone, [Pid(7)]);
    }
}
