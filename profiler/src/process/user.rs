//! Whose a process is, where it takes of what others need, too.
//!
//! A user may have 65,536 subordinate ids in user namespaces of his own, as rootless containers do: all of them are he who has
//! made the outermost of these. One that root has made says nothing of whose it is: there each process is its own user's.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use jitprof_common::units::Pid;
use rustix::fs::{Mode, OFlags, openat};

use crate::process::procfs::{self, Namespace, Status};

/// User namespaces that lie in one another at most: the kernel makes no more than 32.
const MAX_LEVELS: usize = 64;

/// Whose a process is, if it is there: his who has started it, whatever its effective user is, who is root while anybody runs
/// `su`, and whatever the owner of its directory in `/proc`, who is root as soon as it must not be dumped. Asks nobody but
/// procfs, which never waits for this.
pub fn user_of(pid: Pid) -> Option<u32> {
    status_and_user(pid).map(|(_, user)| user)
}

/// The same, and the process' ids.
pub fn status_and_user(pid: Pid) -> Option<(Status, u32)> {
    // What lies below it is gone with the process, whoever has its number by then.
    let directory = File::open(procfs::proc_path(pid, "")).ok()?;
    let status = procfs::status_in(&directory)?;
    let user = user(&status, || namespace_owner(&directory));
    Some((status, user))
}

/// Root is nobody else, wherever he has gone.
fn user(status: &Status, namespace_owner: impl FnOnce() -> Option<u32>) -> u32 {
    if status.real_uid == 0 { 0 } else { namespace_owner().unwrap_or(status.real_uid) }
}

/// Who has made the outermost user namespace that a process is in and jitprof is not, of those that root has not made. `None` if
/// there is none, or it may not be looked at.
fn namespace_owner(directory: &File) -> Option<u32> {
    let own = own_namespace()?;
    let opened = openat(directory, "ns/user", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    outermost_owner(File::from(opened), own)
}

fn own_namespace() -> Option<Namespace> {
    static OWN: OnceLock<Option<Namespace>> = OnceLock::new();
    *OWN.get_or_init(|| File::open("/proc/self/ns/user").ok()?.id())
}

/// A user namespace.
trait Level: Sized {
    fn id(&self) -> Option<Namespace>;
    fn owner(&self) -> Option<u32>;
    fn parent(&self) -> Option<Self>;
}

impl Level for File {
    fn id(&self) -> Option<Namespace> {
        let metadata = self.metadata().ok()?;
        Some(Namespace { device: metadata.dev(), inode: metadata.ino() })
    }

    fn owner(&self) -> Option<u32> {
        let mut uid: libc::uid_t = 0;
        // SAFETY: of a user namespace the kernel writes a number where there is room for one; of anything else, nothing.
        let done = unsafe { libc::ioctl(self.as_raw_fd(), libc::NS_GET_OWNER_UID, &raw mut uid) };
        (done == 0).then_some(uid)
    }

    fn parent(&self) -> Option<Self> {
        // SAFETY: a plain number.
        let parent = unsafe { libc::ioctl(self.as_raw_fd(), libc::NS_GET_PARENT) };
        // SAFETY: the kernel has made this descriptor by that, and nobody else has it.
        (parent >= 0).then(|| unsafe { Self::from_raw_fd(parent) })
    }
}

fn outermost_owner<N: Level>(innermost: N, own: Namespace) -> Option<u32> {
    let (mut at, mut owner) = (innermost, None);
    for _ in 0..MAX_LEVELS {
        if at.id()? == own {
            return owner;
        }
        owner = Some(at.owner()?).filter(|uid| *uid != 0).or(owner);
        at = at.parent()?;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    /// The owners of namespaces in one another, the outermost first, which is jitprof's; what is not known is nobody's.
    struct Made(Vec<Option<u32>>);

    fn number(level: u64) -> Namespace {
        Namespace { device: 4, inode: level }
    }

    impl Level for Made {
        fn id(&self) -> Option<Namespace> {
            Some(number(self.0.len() as u64))
        }

        fn owner(&self) -> Option<u32> {
            *self.0.last()?
        }

        fn parent(&self) -> Option<Self> {
            self.0.get(..self.0.len().checked_sub(1)?).map(|outer| Self(outer.to_vec()))
        }
    }

    #[test]
    fn all_that_a_user_makes_in_his_own_namespace_are_he() {
        let owner = |levels: &[u32]| outermost_owner(Made(levels.iter().copied().map(Some).collect()), number(1));
        assert_eq!(owner(&[0]), None, "it is in jitprof's");
        assert_eq!(owner(&[0, 1000]), Some(1000));
        assert_eq!(owner(&[0, 1000, 100_005, 100_006]), Some(1000), "of one of his own he is no other");
        assert_eq!(owner(&[0, 0]), None, "an engine of root's has made it");
        assert_eq!(owner(&[0, 0, 231_072, 231_073]), Some(231_072), "what is made in it is his who has");
        assert_eq!(outermost_owner(Made(vec![Some(0), None, Some(1000)]), number(1)), None, "it cannot be looked at");
        assert_eq!(outermost_owner(Made(vec![Some(1000)]), number(7)), None, "it is not below jitprof's");
    }

    #[test]
    fn a_process_is_his_who_has_started_it_whatever_program_it_is() {
        let status = |text: &str| Status::parse(text.as_bytes()).unwrap();
        let su = status("Tgid:\t900\nUid:\t1000\t0\t0\t0\n");
        assert_eq!(user(&su, || None), 1000);
        let subordinate = status("Tgid:\t900\nUid:\t100005\t100005\t100005\t100005\n");
        assert_eq!(user(&subordinate, || Some(1000)), 1000);
        let root = status("Tgid:\t900\nUid:\t0\t0\t0\t0\n");
        assert_eq!(user(&root, || Some(1000)), 0, "he has gone into a container");
        assert_eq!(user_of(Pid(std::process::id())), Some(rustix::process::getuid().as_raw()));
        assert_eq!(user_of(Pid(u32::MAX >> 2)), None);
    }

    fn end(mut child: Child) {
        drop(child.kill());
        drop(child.wait());
    }

    #[test]
    fn who_has_made_a_namespace_is_asked_of_the_kernel() {
        let is_root = rustix::process::geteuid().is_root();
        let mut command = Command::new(if is_root { "setpriv" } else { "unshare" });
        if is_root {
            command.args(["--reuid=12345", "--regid=12345", "--clear-groups", "unshare"]);
        }
        let started = command.args(["--user", "sleep", "60"]).stderr(Stdio::null()).spawn();
        let Ok(mut child) = started else { return };
        let wanted = if is_root { 12345 } else { rustix::process::getuid().as_raw() };
        let directory = File::open(procfs::proc_path(Pid(child.id()), "")).unwrap();
        let is_made = || {
            let id = openat(&directory, "ns/user", OFlags::RDONLY, Mode::empty()).ok().map(File::from)?.id();
            (id != own_namespace()).then_some(())
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while is_made().is_none() && Instant::now() < deadline {
            // Not every machine lets a user make one.
            if child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let found = namespace_owner(&directory);
        end(child);
        assert_eq!(found, Some(wanted));
        assert!(own_namespace().is_some());
    }
}
