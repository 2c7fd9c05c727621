//! Whose a process is, where it takes of what others need, too.
//!
//! A user may have 65,536 subordinate ids in user namespaces of his own, as rootless containers do: all of them are he who has
//! made the outermost of these. Of one that root has made, as container engines do, all are whoever is root in it; where ids are
//! the same inside and outside, each process is its own user's.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use jitprof_common::units::Pid;
use rustix::fs::{Mode, OFlags, openat};

use crate::process::procfs::{self, IdMap, Namespace, Status};

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
    Ids::of(pid).map(|ids| (ids.status, ids.user))
}

/// A process' ids as they were found, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids {
    /// Its ids.
    pub status: Status,
    /// Whose it is.
    pub user: u32,
    /// The inode of its directory in `/proc`: whichever process has its number next has another one.
    directory: u64,
}

impl Ids {
    /// Those of a process, if it is there.
    pub fn of(pid: Pid) -> Option<Self> {
        // What lies below it is gone with the process, whoever has its number by then.
        let directory = File::open(procfs::proc_path(pid, "")).ok()?;
        let status = procfs::status_in(&directory)?;
        let user = user(&status, || namespace_owner(&directory));
        Some(Self { status, user, directory: directory.metadata().ok()?.ino() })
    }

    /// Whether they are of the process that has this number now. The kernel may have made its directory anew meanwhile, and then
    /// they are read again.
    pub fn are_of(&self, pid: Pid) -> bool {
        std::fs::metadata(procfs::proc_path(pid, "")).is_ok_and(|found| found.ino() == self.directory)
    }
}

/// Root is nobody else, wherever he has gone.
fn user(status: &Status, namespace_owner: impl FnOnce() -> Option<u32>) -> u32 {
    if status.real_uid == 0 { 0 } else { namespace_owner().unwrap_or(status.real_uid) }
}

/// Who has made the outermost user namespace that a process is in and jitprof is not, of those that root has not made; if root has
/// made all, who is root in the process' own. `None` if there is none, or it may not be looked at.
fn namespace_owner(directory: &File) -> Option<u32> {
    let own = own_namespace()?;
    let opened = openat(directory, "ns/user", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    outermost_owner(File::from(opened), own, || root_inside(&IdMap::read(directory, "uid_map")?))
}

/// The id that root has outside, or the first one that is another there. None is jitprof's root.
fn root_inside(map: &IdMap) -> Option<u32> {
    let others = map.ranges().map(|range| (range.inside, range.outside));
    let others = others.filter(|(inside, outside)| inside != outside && ![0, u32::MAX].contains(outside));
    others.min().map(|(_, outside)| outside)
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

fn outermost_owner<N: Level>(innermost: N, own: Namespace, root_inside: impl FnOnce() -> Option<u32>) -> Option<u32> {
    let (mut at, mut owner) = (innermost, None);
    for level in 0..MAX_LEVELS {
        if at.id()? == own {
            return if level == 0 { None } else { owner.or_else(root_inside) };
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
        let of = |levels: Vec<Option<u32>>, own| outermost_owner(Made(levels), number(own), || Some(231_072));
        let owner = |levels: &[u32]| of(levels.iter().copied().map(Some).collect(), 1);
        assert_eq!(owner(&[0]), None, "it is in jitprof's");
        assert_eq!(owner(&[0, 1000]), Some(1000));
        assert_eq!(owner(&[0, 1000, 100_005, 100_006]), Some(1000), "of one of his own he is no other");
        assert_eq!(owner(&[0, 0]), Some(231_072), "an engine of root's has made it");
        assert_eq!(owner(&[0, 0, 231_075, 231_076]), Some(231_075), "what is made in it is his who has");
        assert_eq!(of(vec![Some(0), None, Some(1000)], 1), None, "it cannot be looked at");
        assert_eq!(of(vec![Some(1000)], 7), None, "it is not below jitprof's");
    }

    #[test]
    fn all_that_are_in_a_namespace_of_root_s_are_who_is_root_in_it() {
        let root = |map: &str| root_inside(&IdMap::parse(map.as_bytes()));
        assert_eq!(root("         0     231072      65536\n"), Some(231_072));
        assert_eq!(root("1000 1000 1\n0 1000000 1000\n1001 1001001 64535\n"), Some(1_000_000), "one id is let through");
        assert_eq!(root("0 0 1\n1 100000 65535\n"), Some(100_000), "root is nobody else");
        for same in ["0 0 4294967295\n", "0 0 1\n1000 1000 1\n", "", "0 4294967295 1\n", "x y\n5 0 1\n", "0\n"] {
            assert_eq!(root(same), None, "{same}");
        }
        assert_eq!(root_inside(&IdMap::parse(b"0 \xff 1\n")), None);
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

    /// What waits in a user namespace of its own, and its directory in `/proc`. Not every machine lets anybody make one.
    fn in_own_namespace(mut command: Command) -> Option<(Child, File)> {
        let mut child = command.args(["--user", "sleep", "60"]).stderr(Stdio::null()).spawn().ok()?;
        let directory = File::open(procfs::proc_path(Pid(child.id()), "")).unwrap();
        let is_made = || {
            let id = openat(&directory, "ns/user", OFlags::RDONLY, Mode::empty()).ok().map(File::from)?.id();
            (id != own_namespace()).then_some(())
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while is_made().is_none() && Instant::now() < deadline {
            if let Ok(Some(ended)) = child.try_wait() {
                assert!(!ended.success(), "it was refused");
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Some((child, directory))
    }

    #[test]
    fn who_has_made_a_namespace_is_asked_of_the_kernel() {
        // Where no namespace can be made there is this one at least.
        let own = File::open("/proc/self").unwrap();
        assert!(own_namespace().is_some() && namespace_owner(&own).is_none());
        assert!(IdMap::read(&own, "uid_map").unwrap().ranges().next().is_some());
        let is_root = rustix::process::geteuid().is_root();
        let mut command = Command::new(if is_root { "setpriv" } else { "unshare" });
        if is_root {
            command.args(["--reuid=12345", "--regid=12345", "--clear-groups", "unshare"]);
        }
        let wanted = if is_root { 12345 } else { rustix::process::getuid().as_raw() };
        if let Some((child, directory)) = in_own_namespace(command) {
            let found = namespace_owner(&directory);
            end(child);
            assert_eq!(found, Some(wanted));
        }
    }

    #[test]
    fn who_is_root_in_a_namespace_of_root_s_is_asked_of_the_kernel() {
        let has_all = std::fs::read("/proc/self/uid_map").is_ok_and(|map| map.ends_with(b" 0 4294967295\n"));
        if !rustix::process::geteuid().is_root() || !has_all {
            return;
        }
        let Some((child, directory)) = in_own_namespace(Command::new("unshare")) else { return };
        let before = namespace_owner(&directory);
        let written = std::fs::write(procfs::proc_path(Pid(child.id()), "uid_map"), "0 231072 65536\n");
        let found = namespace_owner(&directory);
        end(child);
        assert_eq!((before, found), (None, written.ok().map(|()| 231_072)));
    }
}
