//! Whether a process may read a file, or search a directory, as the kernel would answer it.
//!
//! jitprof, which may do either nearly everywhere, asks this of what it finds on a path that a target has laid. It does not
//! become the target for it, as a process of its own could: a service without root has no capability for that; and whoever
//! changes its user shares the memory with jitprof, which would not be dumpable any more, and would outlive jitprof.

use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::getxattr;
use rustix::io::Errno;

use crate::process::procfs::Credentials;

/// The extended attribute with a file's access control list, and its largest value: some 500 entries.
const LIST: &str = "system.posix_acl_access";
const MAX_LIST_BYTES: usize = 4096;
/// Its beginning: the only version that there is.
const VERSION: [u8; 4] = [2, 0, 0, 0];
/// Kinds of entries, of `linux/posix_acl.h`; the owner's is not asked.
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// What is to be done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Search,
}

impl Access {
    /// Among what others may do.
    fn bit(self) -> u32 {
        match self {
            Self::Read => 4,
            Self::Search => 1,
        }
    }
}

/// What one, or all of a kind, may do: `{u16 kind, u16 permissions, u32 id}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    kind: u16,
    permissions: u32,
    id: u32,
}

impl Credentials {
    /// It is the owner of what is this user's.
    pub(super) fn owns(&self, uid: u32) -> bool {
        self.uids.contains(&uid)
    }

    /// Whether it may do this with the file that a handle is on. Its owner can give himself what he has not.
    pub(super) fn may(&self, access: Access, handle: &File, meta: &Metadata) -> bool {
        self.is_above(meta.uid(), meta.gid()) || self.owns(meta.uid()) || self.is_let(access, handle, meta)
    }

    /// Whether it has a capability for which the permissions of a file do not count.
    fn is_above(&self, owner: u32, group: u32) -> bool {
        self.reads_all || self.reads_mapped.as_ref().is_some_and(|mapped| mapped.has(owner, group))
    }

    fn is_let(&self, access: Access, handle: &File, meta: &Metadata) -> bool {
        let (group, mode) = (meta.gid(), meta.mode());
        match list_of(handle) {
            Ok(Some(list)) => self.may_by_list(access, &list, (group, mode)),
            Ok(None) => self.may_by_mode(access, (group, mode)),
            // It may say anything.
            Err(_) => false,
        }
    }

    fn may_by_mode(&self, access: Access, (group, mode): (u32, u32)) -> bool {
        let permissions = if self.gids.contains(&group) { mode >> 3 } else { mode };
        permissions & access.bit() != 0
    }

    fn may_by_list(&self, access: Access, list: &[Entry], (group, mode): (u32, u32)) -> bool {
        // The mode has the mask in place of the group's permissions: the kernel looks at no list whose mask allows nothing.
        if mode & 0o070 == 0 {
            return self.may_by_mode(access, (group, mode));
        }
        let of_kind = |kind| list.iter().find(|entry| entry.kind == kind).map(|entry| entry.permissions);
        let wanted = access.bit() & of_kind(MASK).unwrap_or(access.bit());
        let allows = |entry: &Entry| entry.permissions & wanted != 0;
        let users = list.iter().filter(|entry| entry.kind == USER && self.owns(entry.id)).map(allows);
        let groups = list.iter().filter(|entry| match entry.kind {
            OWNING_GROUP => self.gids.contains(&group),
            GROUP => self.gids.contains(&entry.id),
            _ => false,
        });
        let any = |one: bool, other: bool| one || other;
        let others = || of_kind(OTHERS).is_some_and(|permissions| permissions & access.bit() != 0);
        users.reduce(any).or_else(|| groups.map(allows).reduce(any)).unwrap_or_else(others)
    }
}

/// The list of the file that a handle is on, if it has one.
fn list_of(handle: &File) -> rustix::io::Result<Option<Vec<Entry>>> {
    let mut bytes = vec![0; MAX_LIST_BYTES];
    // Of a handle that is not open for reading the kernel tells it only by a path.
    let own = format!("/proc/self/fd/{}", handle.as_raw_fd());
    match getxattr(&*own, LIST, bytes.as_mut_slice()) {
        Ok(len) => parse(bytes.get(..len).unwrap_or_default()).map(Some).ok_or(Errno::INVAL),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error),
    }
}

fn parse(bytes: &[u8]) -> Option<Vec<Entry>> {
    let entries = bytes.strip_prefix(&VERSION)?.chunks(8);
    let entry = |bytes: &[u8]| match *bytes {
        [a, b, c, d, e, f, g, h] => Some(Entry {
            kind: u16::from_le_bytes([a, b]),
            permissions: u32::from(u16::from_le_bytes([c, d])),
            id: u32::from_le_bytes([e, f, g, h]),
        }),
        _ => None,
    };
    entries.map(entry).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::fs::{XattrFlags, setxattr};

    use super::*;

    fn credentials(text: &str) -> Credentials {
        Credentials::parse(text.as_bytes()).unwrap()
    }

    fn one() -> Credentials {
        credentials("Uid:\t1000\t1001\t1002\t1003\nGid:\t50\t51\t51\t51\nFDSize:\t64\nGroups:\t60 61 \n")
    }

    fn entry(kind: u16, permissions: u32, id: u32) -> Entry {
        Entry { kind, permissions, id }
    }

    fn bytes_of(list: &[Entry]) -> Vec<u8> {
        let mut bytes = VERSION.to_vec();
        for Entry { kind, permissions, id } in list {
            let permissions = u16::try_from(*permissions).unwrap();
            bytes.extend([kind.to_le_bytes(), permissions.to_le_bytes()].concat());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    /// `user` and `group`: what a named user and a named group may.
    fn list(user: (u32, u32), group: (u32, u32), mask: u32, others: u32) -> Vec<Entry> {
        let [none, owner] = [u32::MAX, 6];
        vec![
            entry(1, owner, none),
            entry(USER, user.1, user.0),
            entry(OWNING_GROUP, 0, none),
            entry(GROUP, group.1, group.0),
            entry(MASK, mask, none),
            entry(OTHERS, others, none),
        ]
    }

    #[test]
    fn a_process_may_read_what_is_for_all_or_for_one_of_its_groups() {
        let one = one();
        let may_read = |group, mode| one.may_by_mode(Access::Read, (group, mode));
        assert!(may_read(7, 0o604) && !may_read(7, 0o660) && !may_read(7, 0o601));
        assert!([50, 51, 60, 61].iter().all(|group| may_read(*group, 0o640)));
        assert!(!may_read(60, 0o604), "as the kernel has it, what others may is not for its group");
        assert!(one.may_by_mode(Access::Search, (7, 0o701)) && !one.may_by_mode(Access::Search, (7, 0o776)));
    }

    #[test]
    fn a_list_gives_and_denies_as_the_kernel_has_it() {
        let one = one();
        let may_read = |list: Vec<Entry>, group| one.may_by_list(Access::Read, &list, (group, 0o070));
        // A user in a list of his own; the group's bits of the mode are the mask then, and give the group nothing.
        assert!(may_read(list((1000, 4), (9, 0), 4, 0), 7) && may_read(list((1003, 4), (9, 0), 4, 0), 7));
        assert!(!may_read(list((9, 4), (9, 4), 4, 0), 60), "the owning group itself has nothing");
        assert!(!may_read(list((1000, 0), (60, 4), 4, 4), 7), "he is denied what all others may");
        assert!(!may_read(list((1000, 4), (60, 4), 1, 4), 7), "the mask denies it");
        assert!(may_read(list((9, 0), (60, 4), 4, 0), 60) && !may_read(list((9, 0), (60, 0), 4, 4), 7));
        assert!(may_read(list((9, 0), (9, 0), 4, 4), 7) && !may_read(list((9, 4), (9, 4), 4, 0), 7));
        let unmasked = vec![entry(OWNING_GROUP, 4, 0), entry(OTHERS, 0, 0)];
        assert!(may_read(unmasked, 60));
        // A mask of nothing is no list.
        let masked = list((1000, 4), (9, 0), 0, 4);
        assert!(
            one.may_by_list(Access::Read, &masked, (7, 0o604)) && !one.may_by_list(Access::Read, &masked, (60, 0o604))
        );
    }

    #[test]
    fn what_is_no_list_is_none() {
        let whole = bytes_of(&list((1000, 4), (60, 4), 4, 0));
        assert_eq!(parse(&whole).unwrap(), list((1000, 4), (60, 4), 4, 0));
        for cut in (0..whole.len()).filter(|cut| *cut < 4 || !(cut - 4).is_multiple_of(8)) {
            assert_eq!(parse(&whole[..cut]), None, "{cut}");
        }
        assert_eq!(parse(&[&[3, 0, 0, 0], &whole[4..]].concat()), None);
    }

    #[test]
    fn a_file_s_list_is_looked_at() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"x").unwrap();
        let may = |who: &str| {
            let meta = file.as_file().metadata().unwrap();
            credentials(who).may(Access::Read, file.as_file(), &meta)
        };
        let bob = "Uid:\t4000001\t4000001\t4000001\t4000001\nGid:\t4000002\t4000002\t4000002\t4000002\n";
        let owner = file.as_file().metadata().unwrap().uid();
        assert!(!may(bob) && may(&format!("Uid:\t{owner}\t4\t4\t4\nGid:\t7\t7\t7\t7\n")));
        let put = |list: &[Entry]| setxattr(file.path(), LIST, &bytes_of(list), XattrFlags::empty());
        match put(&list((4_000_001, 4), (4_000_003, 0), 4, 0)) {
            Err(Errno::OPNOTSUPP) => return,
            done => done.unwrap(),
        }
        // Both have mode 0640.
        assert!(may(bob));
        put(&list((4_000_009, 4), (4_000_003, 0), 4, 0)).unwrap();
        let group = file.as_file().metadata().unwrap().gid();
        let member = format!("Uid:\t4000001\t4000001\t4000001\t4000001\nGid:\t{group}\t{group}\t{group}\t{group}\n");
        assert!(!may(bob) && !may(&member));
        assert!(may(&format!("{bob}CapPrm:\t0000000000000004\nCapEff:\t0\n")));
    }
}
