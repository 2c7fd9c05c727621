//! Which processes a selection means at the beginning, and how the BPF program is told. How it goes on from there is the
//! engine's.

use jitprof_common::units::Pid;

use crate::engine::Selector;
use crate::kernel::Selection;
use crate::process::hierarchy::{Group, Hierarchies};
use crate::process::labels::Users;
use crate::process::procfs;
use crate::record::machine::{is_called, running_pids};
use crate::record::options::Targets;
use crate::record::recorder::RecordError;

/// A selection, with what of it is a number to the kernel.
#[derive(Debug, Default)]
pub(super) struct Members {
    selector: Option<Selector>,
    users: Vec<u32>,
    groups: Vec<Group>,
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
        Ok(Self { selector: Some(selector.clone()), users, groups })
    }

    /// What the BPF program has to ask.
    pub(super) fn selection(&self) -> Selection {
        let members = self.selector.as_ref().is_some_and(|asked| asked.names_processes() || !asked.groups.is_empty());
        Selection::Matching { users: self.users.clone(), members }
    }

    /// The selection, if there is one.
    pub(super) fn selector(&self) -> Option<&Selector> {
        self.selector.as_ref()
    }

    /// Whether groups decide, which a child may leave.
    pub(super) fn asks_for_groups(&self) -> bool {
        self.selector.as_ref().is_some_and(|asked| !asked.groups.is_empty())
    }

    /// The processes that match now.
    pub(super) fn pids(&self) -> Vec<Pid> {
        let Some(selector) = &self.selector else { return Vec::new() };
        let own = std::process::id();
        let mut candidates = Vec::new();
        if selector.groups.is_empty() {
            candidates = running_pids();
        } else {
            self.groups.iter().for_each(|group| group.add_pids(&mut candidates));
        }
        candidates.retain(|pid| pid.0 != own && self.has_user(*pid) && is_named(selector, *pid));
        candidates
    }

    /// The groups that it means.
    pub(super) fn into_groups(self) -> Vec<Group> {
        self.groups
    }

    fn has_user(&self, pid: Pid) -> bool {
        self.users.is_empty() || procfs::status(pid).is_ok_and(|status| self.users.contains(&status.real_uid))
    }
}

/// Whether a process is asked for by number and name, as far as that is asked.
fn is_named(selector: &Selector, pid: Pid) -> bool {
    (selector.pids.is_empty() || selector.pids.contains(&pid))
        && (selector.comms.is_empty() || selector.comms.iter().any(|name| is_called(pid, name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::hierarchy::GroupQuery;

    fn members(selector: Selector) -> Result<Members, RecordError> {
        Members::of(&Targets::Matching(selector))
    }

    #[test]
    fn the_bpf_program_is_asked_for_what_it_can_tell() {
        let by_user = members(Selector { users: vec!["0".to_owned()], ..Selector::default() }).unwrap();
        assert_eq!(by_user.selection(), Selection::Matching { users: vec![0], members: false });
        let by_name = members(Selector { comms: vec!["x".to_owned()], ..Selector::default() }).unwrap();
        assert_eq!(by_name.selection(), Selection::Matching { users: Vec::new(), members: true });
        let groups = GroupQuery { paths: vec!["/a".to_owned()], ..GroupQuery::default() };
        let by_group = members(Selector { groups, ..Selector::default() }).unwrap();
        assert_eq!([&by_user, &by_name, &by_group].map(Members::asks_for_groups), [false, false, true]);
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
        let all = members(Selector { users: vec!["0".to_owned()], ..Selector::default() }).unwrap();
        assert!(!all.pids().contains(&own));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid(child.id());
        let asked = |comm: &str| Selector { pids: vec![pid], comms: vec![comm.to_owned()], ..Selector::default() };
        assert_eq!(members(asked("sleep")).unwrap().pids(), [pid]);
        assert_eq!(members(asked("other")).unwrap().pids(), [] as [Pid; 0]);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
