//! Files that were looked at a moment ago: a build starts the same few programs many times a second, and a look at a
//! mapping's file through `/proc` is the dearest part of making a new process known.
//!
//! The kernel's event tells device, inode and generation. What it does not tell is whether the file was written over in
//! its place since. So a look holds for two seconds, and only if the file had not changed for a minute before: what is
//! replaced in the usual way has another inode, or the same with another generation.
//!
//! On btrfs and overlayfs the event's device is not that of stat(2): subvolumes and snapshots share device, inodes and
//! generations there, so that such a file is looked at each time.

use std::collections::HashMap;

use crate::process::open::FileIdentity;
use crate::process::{Device, Mapping};
use jitprof_common::units::MonoNs;

/// How long a look holds.
const HOLDS_NS: u64 = 2_000_000_000;
/// Looks remembered at most; then all are dropped.
const MAX_RECENT: usize = 1024;

/// What is behind device, inode and generation.
#[derive(Debug, Default)]
pub(super) struct Recent(HashMap<(Device, u64, u64), (FileIdentity, MonoNs)>);

impl Recent {
    /// The file of a mapping, if it was looked at a moment ago.
    pub(super) fn get(&self, mapping: &Mapping, now: MonoNs) -> Option<FileIdentity> {
        let (identity, looked_at) = self.0.get(&key(mapping)?)?;
        (now.0.saturating_sub(looked_at.0) < HOLDS_NS).then_some(*identity)
    }

    /// A mapping's file was looked at, and had not been changed for long.
    pub(super) fn add(&mut self, mapping: &Mapping, identity: FileIdentity, now: MonoNs) {
        let Some(key) = key(mapping).filter(|_| mapping.device == identity.device) else { return };
        if self.0.len() >= MAX_RECENT {
            self.0.clear();
        }
        self.0.insert(key, (identity, now));
    }
}

/// Mappings that were read from `/proc` come without a generation.
fn key(mapping: &Mapping) -> Option<(Device, u64, u64)> {
    (mapping.inode != 0).then_some((mapping.device, mapping.inode, mapping.generation?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::procfs;

    fn mapping(inode: u64, generation: Option<u64>) -> Mapping {
        let line = format!("7f0000000000-7f0000001000 r-xp 00000000 08:01 {inode} /lib/x.so\n");
        let read = procfs::parse_maps(line.as_bytes()).mappings.pop().unwrap();
        Mapping { generation, ..read }
    }

    fn identity() -> FileIdentity {
        FileIdentity {
            device: Device { major: 8, minor: 1 },
            st_dev: 0x801,
            inode: 7,
            uid: 0,
            len: 4096,
            changed: (0, 0),
            modified: (0, 0),
            block_size: 4096,
        }
    }

    #[test]
    fn a_look_holds_for_the_same_inode_and_generation_and_not_for_long() {
        let mut recent = Recent::default();
        recent.add(&mapping(7, Some(1)), identity(), MonoNs(10));
        assert_eq!(recent.get(&mapping(7, Some(1)), MonoNs(10 + HOLDS_NS - 1)), Some(identity()));
        assert_eq!(recent.get(&mapping(7, Some(1)), MonoNs(10 + HOLDS_NS)), None);
        assert_eq!(recent.get(&mapping(7, Some(2)), MonoNs(10)), None, "the inode was used again");
        assert_eq!(recent.get(&mapping(8, Some(1)), MonoNs(10)), None);
        assert_eq!(recent.get(&mapping(7, None), MonoNs(10)), None);
    }

    #[test]
    fn a_look_at_a_file_that_other_subvolumes_have_under_its_numbers_does_not_hold() {
        let mut recent = Recent::default();
        let of_subvolume = Device { major: 0, minor: 42 };
        recent.add(&mapping(7, Some(1)), FileIdentity { device: of_subvolume, ..identity() }, MonoNs(10));
        assert_eq!(recent.get(&mapping(7, Some(1)), MonoNs(10)), None);
    }

    #[test]
    fn many_files_are_evicted_and_not_kept() {
        let mut recent = Recent::default();
        for inode in 1..=MAX_RECENT as u64 + 1 {
            recent.add(&mapping(inode, Some(1)), identity(), MonoNs(10));
        }
        assert_eq!(recent.0.len(), 1);
    }
}
