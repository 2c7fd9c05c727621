//! Below which root directory a target's separate debug files are looked for.
//!
//! Everybody who maps a file gets the names that one load of it gives (but not who maps a copy: a file with a debug file of
//! its own root is nobody's copy), so that the root must be nobody's who could have put
//! up others' files in it: whoever may make user namespaces may have a root of his own, and show any file of this machine in
//! it. jitprof's own root is looked into in any case.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use jitprof_common::units::Pid;

use crate::process::open::TargetRoot;

/// What is known of the root of a process that maps a file.
#[derive(Clone, Copy, Debug)]
struct Root {
    /// It is in the mount namespace of jitprof or of the first process.
    of_host: bool,
    /// It is in jitprof's user namespace, so that root alone can have made it.
    of_same_users: bool,
    /// Its device.
    device: u64,
}

impl Root {
    /// Whether a file on this device can be nobody's but those who have this root, which has none but what root, or the
    /// file's owner, has put there.
    fn holds(self, file_device: u64, own_device: u64) -> bool {
        // A container has a file system of its own; what it shares with others lies on another one.
        let is_its_own = self.device == file_device && (self.device != own_device || self.of_same_users);
        self.of_host || is_its_own
    }
}

/// The root of the process, if debug files of a file on this device may be looked for there, and not only in jitprof's own.
pub(super) fn debug_root(via: Pid, file_device: u64) -> Option<Arc<TargetRoot>> {
    let open = TargetRoot::of(via).ok()?;
    let (metadata, own) = (open.directory().metadata().ok()?, std::fs::metadata("/").ok()?);
    if (metadata.dev(), metadata.ino()) == (own.dev(), own.ino()) {
        return None;
    }
    let mounts = namespace(&via.to_string(), "mnt");
    let root = Root {
        of_host: mounts.is_some() && ["self", "1"].iter().any(|host| namespace(host, "mnt") == mounts),
        of_same_users: namespace(&via.to_string(), "user")
            .is_some_and(|users| Some(users) == namespace("self", "user")),
        device: metadata.dev(),
    };
    root.holds(file_device, own.dev()).then(|| Arc::new(open))
}

fn namespace(pid: &str, kind: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_files_are_looked_for_in_no_root_that_a_tenant_has_made_around_others_files() {
        let (host, container, shared) = (1, 2, 3);
        let tenant = Root { of_host: false, of_same_users: false, device: host };
        assert!(!tenant.holds(host, host), "the host's libc, mapped behind a bind mount");
        assert!(!Root { device: shared, ..tenant }.holds(host, host), "the same, with a root of his own");
        let contained = Root { of_host: false, of_same_users: true, device: container };
        assert!(contained.holds(container, host), "a container's own file");
        assert!(!contained.holds(shared, host) && !contained.holds(host, host), "what is shared with it");
        let rootless = Root { of_same_users: false, ..contained };
        assert!(rootless.holds(container, host));
        assert!(Root { of_host: true, ..tenant }.holds(shared, host));
    }

    #[test]
    fn the_own_root_is_looked_in_for_everybody_and_is_nobody_s() {
        let device = std::fs::metadata("/").unwrap().dev();
        assert!(debug_root(Pid(std::process::id()), device).is_none());
    }
}
