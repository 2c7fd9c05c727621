//! Options that choose processes by what is known of them; a recording and the service take the same.

use clap::Args as ClapArgs;

use super::args::id;
use crate::process::hierarchy::GroupQuery;
use crate::record::{Selector, Targets};
use jitprof_common::units::Pid;

/// Of several values of one option, one is enough; of several options, all must hold.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct SelectArgs {
    /// Processes to profile, with all their threads and children, those that they start later included
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = id, help_heading = "What to profile")]
    pub pid: Vec<u32>,

    /// Processes and threads of this name (its first 15 bytes), and processes whose program has it, running or starting
    /// later; repeatable
    #[arg(long, value_name = "NAME", help_heading = "What to profile")]
    pub comm: Vec<String>,

    /// Processes of this real user, by name or number
    #[arg(long, value_name = "USER", value_delimiter = ',', help_heading = "What to profile")]
    pub user: Vec<String>,

    /// Processes in this control group or below, such as /system.slice; of version 2 or 1
    #[arg(long, value_name = "PATH", help_heading = "What to profile")]
    pub cgroup: Vec<String>,

    /// Processes of the container whose id begins so
    #[arg(long, value_name = "ID", value_delimiter = ',', help_heading = "What to profile")]
    pub container: Vec<String>,

    /// Processes of this systemd unit, such as nginx or nginx.service
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "What to profile")]
    pub unit: Vec<String>,
}

impl SelectArgs {
    /// What is asked for; `None` if nothing is. `may_come_later`: that there is none at the start is no error.
    pub fn targets(&self, may_come_later: bool) -> Option<Targets> {
        let mut pids: Vec<Pid> = self.pid.iter().copied().map(Pid).collect();
        pids.sort_unstable();
        pids.dedup();
        let given = |values: &[String]| values.iter().filter(|value| !value.is_empty()).cloned().collect::<Vec<_>>();
        let groups =
            GroupQuery { paths: given(&self.cgroup), containers: given(&self.container), units: given(&self.unit) };
        let (comms, users) = (given(&self.comm), given(&self.user));
        let is_plain = users.is_empty() && groups.is_empty() && !may_come_later;
        match (&pids[..], &comms[..]) {
            ([], []) if users.is_empty() && groups.is_empty() => None,
            ([_, ..], []) if is_plain => Some(Targets::Processes(pids)),
            ([], [comm]) if is_plain => Some(Targets::Comm(comm.clone())),
            _ => Some(Targets::Matching(Selector { pids, comms, users, groups, may_come_later })),
        }
    }
}
