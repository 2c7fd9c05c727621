//! Follows the processes of a selection.

use std::fs::File;

use super::{RecordError, Recorder};
use crate::process::hierarchy::Group;
use crate::units::Pid;

impl Recorder {
    /// Follows the running processes that a selection means.
    pub(super) fn follow_matching(&mut self) -> Result<(), RecordError> {
        let (pids, groups) = self.members.begin();
        let Some(selector) = self.members.selector() else { return Ok(()) };
        if pids.is_empty() && !selector.may_come_later {
            return Err(RecordError::NothingMatches { what: selector.to_string() });
        }
        self.compare_with(&groups)?;
        for pid in pids {
            self.follow_member(pid);
        }
        Ok(())
    }

    /// Looks for processes that have come into or left the groups of a selection.
    pub(super) fn refresh_members(&mut self) -> Result<(), RecordError> {
        let changes = self.members.look(&self.followed);
        if let Some(groups) = changes.groups {
            self.compare_with(&groups)?;
        }
        for pid in changes.gone {
            self.sampler.unfollow(pid);
            self.followed.remove(&pid);
        }
        for pid in changes.new {
            self.follow_member(pid);
        }
        Ok(())
    }

    fn follow_member(&mut self, pid: Pid) {
        if !self.members.is_left_to_kernel() {
            self.follow_child(pid);
        }
        self.attach_chosen(pid);
    }

    /// Has the kernel part compare with these groups. One that has gone meanwhile is left out.
    fn compare_with(&mut self, groups: &[Group]) -> Result<(), RecordError> {
        let directories: Vec<File> = groups.iter().filter_map(|group| File::open(&group.directory).ok()).collect();
        Ok(self.sampler.set_cgroups(&directories)?)
    }
}
