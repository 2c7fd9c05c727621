//! Who may hold threads that read, and whose processes are.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use jitprof_common::units::Pid;

use crate::engine::border::Request;
use crate::process::Device;
use crate::record::usage::Subject;
use crate::symbol::OpenFiles;

/// Threads that are stuck at the files of one user on one file system; with more, none of these is read until one comes back.
pub(super) const MAX_STUCK_OF_DEVICE: usize = 4;
/// The same at one user's processes, or at his files on whatever file systems; fewer where others hold many.
pub(super) const MAX_STUCK_OF_USER: usize = 16;
/// Longest time of a read beside which another one of the same party is begun; most take less than a millisecond.
pub(super) const QUICK: Duration = Duration::from_millis(50);
/// The same of reads of processes: a search of memory takes 270 ms.
const QUICK_PROCESS: Duration = Duration::from_millis(500);
/// How long it is remembered whose processes are, and of how many.
const USERS_HOLD: Duration = Duration::from_secs(1);
const MAX_USERS: usize = 4096;
/// Whose processes are that are not there.
pub(super) const NOBODY: u32 = u32::MAX;

impl Subject {
    pub(super) fn of(request: &Request) -> Self {
        match request {
            Request::Process { pid, .. } => Self::Process(*pid),
            Request::Identify { via, .. }
            | Request::Open { via, .. }
            | Request::OpenPerfMap { via, .. }
            | Request::Memory { via, .. }
            | Request::Digests { via, .. }
            | Request::ReadRuntime { via, .. }
            | Request::DescribeFrames { via, .. }
            | Request::Version { via, .. } => Self::Process(*via),
            Request::CodeRows(code) => Self::Process(code.process.pid),
            Request::Peek(look) => Self::Process(look.via),
            Request::Read { file, .. } | Request::Contents { file } => Self::File(*file),
            Request::Running | Request::Members { .. } => Self::Host,
        }
    }
}

/// Who may answer for ever: a user's processes, or what he has opened on one file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Party {
    pub(super) device: Option<Device>,
    pub(super) user: u32,
}

impl Party {
    /// Nobody's is what only the host can hold up.
    pub(super) fn of(request: &Request, files: &OpenFiles, user_of: impl FnOnce(Pid) -> u32) -> Option<Self> {
        let device = match request {
            Request::Identify { place, .. } | Request::Open { place, .. } => Some(place.device),
            _ => None,
        };
        match (Subject::of(request), device) {
            (Subject::Process(pid), device) => Some(Self { device, user: user_of(pid) }),
            (Subject::File(file), _) => {
                let open = files.get(file)?;
                let identity = open.identity()?;
                Some(Self { device: Some(identity.device), user: open.file.payer(identity.uid) })
            }
            (Subject::Host, _) => None,
        }
    }

    /// Whether one user may be behind both: he may mount as many file systems as he likes. Root's are of many containers.
    pub(super) fn may_be_of_one_user(self, other: Self) -> bool {
        self == other || (self.user == other.user && self.user != 0)
    }

    /// Whether both are root's, or neither is.
    pub(super) fn is_of_kind(self, other: Self) -> bool {
        (self.user == 0) == (other.user == 0)
    }

    /// How many threads it may hold.
    pub(super) fn most(self) -> usize {
        if self.device.is_some() { MAX_STUCK_OF_DEVICE } else { MAX_STUCK_OF_USER }
    }

    /// How long one of its reads may take before it gets no other thread beside it.
    pub(super) fn quick(self) -> Duration {
        if self.device.is_some() { QUICK } else { QUICK_PROCESS }
    }
}

/// Whose processes are, as it was found within the last second: of one process much is asked, again and again. It may be
/// another user's by now, or another process have its number: that decides no more than who is charged for a read and who
/// may hold threads, for a second. Who does hold one is looked up anew.
#[derive(Debug, Default)]
pub(super) struct Users {
    found: HashMap<Pid, u32>,
    /// When the first of them was.
    since: Option<Instant>,
}

impl Users {
    pub(super) fn of(&mut self, pid: Pid, now: Instant, look: impl FnOnce(Pid) -> Option<u32>) -> u32 {
        let is_old = self.since.is_some_and(|since| now.saturating_duration_since(since) >= USERS_HOLD);
        if is_old || self.found.len() >= MAX_USERS {
            *self = Self::default();
        }
        if let Some(user) = self.found.get(&pid) {
            return *user;
        }
        // Who is not there now may have been started by the next time.
        let Some(user) = look(pid) else { return NOBODY };
        self.since.get_or_insert(now);
        self.found.insert(pid, user);
        user
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use jitprof_jitdump::NextRead;

    use super::*;
    use crate::process::apart::HeldFile;
    use crate::process::open::FileId;
    use crate::symbol::OpenFile;

    #[test]
    fn a_file_that_may_never_answer_is_his_for_whom_it_was_opened() {
        let files = OpenFiles::default();
        let own = std::fs::metadata("/dev/null").unwrap().uid();
        for (number, may_hold) in [(1, false), (2, true)] {
            let held = HeldFile::new(File::open("/dev/null").unwrap(), may_hold).opened_for(own, || Some(1000));
            files.insert(FileId(number), OpenFile::with_build_id(held, "", None, None));
        }
        let user = |number| {
            let read = Request::Read { file: FileId(number), next: NextRead { offset: 0, len: 1 } };
            Party::of(&read, &files, |_| NOBODY).unwrap().user
        };
        assert_eq!(user(2), 1000, "whomever its file system says that it belongs to");
        assert_eq!(user(1), if own == 0 { 0 } else { 1000 }, "root's own is everybody's");
    }

    #[test]
    fn whose_a_process_is_is_looked_up_once_a_second() {
        let (mut users, mut looks, begin) = (Users::default(), Vec::new(), Instant::now());
        let mut user_of = |(pid, after): (u32, Duration)| {
            users.of(Pid(pid), begin + after, |pid| {
                looks.push(pid.0);
                (pid.0 != 9).then_some(pid.0 + 1000)
            })
        };
        let late = USERS_HOLD / 2;
        let asked = [(7, Duration::ZERO), (8, late), (7, late), (9, late), (9, late), (7, USERS_HOLD), (8, USERS_HOLD)];
        assert_eq!(asked.map(&mut user_of), [1007, 1008, 1007, NOBODY, NOBODY, 1007, 1008]);
        assert_eq!(looks, [7, 8, 9, 9, 7, 8], "who is not there is looked for again");
    }

    #[test]
    fn whose_processes_are_is_remembered_of_so_many() {
        let (mut users, now) = (Users::default(), Instant::now());
        for pid in 0..2 * MAX_USERS as u32 {
            assert_eq!(users.of(Pid(pid), now, |pid| Some(pid.0)), pid);
            assert!(users.found.len() <= MAX_USERS);
        }
    }
}
