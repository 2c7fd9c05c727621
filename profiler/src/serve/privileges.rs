//! What the service gives up.
//!
//! Capabilities, and the promise to gain none, belong to threads on Linux, and a new thread has those of the one that
//! starts it. So the service starts its recording first, drops all capabilities of the main thread, and starts the rest
//! from there: archive, HTTP and push can open what their user can, and nothing else.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities, set_no_new_privs};

use crate::process::open::check_open_in_root;

/// Allows as many open files as the system lets this process have: each dump that is followed is one.
pub(super) fn raise_open_files() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return Ok(());
    }
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?)
}

/// No thread of this process, and nothing that it could start, gains privileges from now on. To be called before there
/// is a second thread.
pub(super) fn gain_no_privileges() -> io::Result<()> {
    Ok(set_no_new_privs(true)?)
}

/// Without openat2 a recording works, but names little; nothing else would say why.
pub(super) fn warn_if_files_are_out_of_reach() {
    if let Err(error) = check_open_in_root() {
        tracing::warn!(
            "files of other processes cannot be opened, so most names will be missing: openat2 is refused ({error}); \
             allow it in the seccomp profile; systemd refuses it with RestrictSUIDSGID= and DynamicUser="
        );
    }
}

/// Drops every capability of this thread, and of those that it starts from now on.
pub(super) fn drop_capabilities() -> io::Result<()> {
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a thread of its own, which is what capabilities belong to.
    #[test]
    fn a_thread_without_capabilities_gives_none_to_those_it_starts() {
        let seen = std::thread::spawn(|| {
            drop_capabilities().unwrap();
            std::thread::spawn(|| std::fs::read_to_string("/proc/thread-self/status").unwrap()).join().unwrap()
        });
        let status = seen.join().unwrap();
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            let line = status.lines().find(|line| line.starts_with(set)).unwrap();
            assert!(line.ends_with("\t0000000000000000"), "{line}");
        }
    }
}
