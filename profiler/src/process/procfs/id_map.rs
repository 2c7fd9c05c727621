//! `/proc/PID/uid_map` and `gid_map`: which ids of a user namespace are which of the reader's.

use std::fs::File;
use std::io::Read;

use rustix::fs::{Mode, OFlags, openat};

/// Bytes of a map: the kernel takes 340 lines.
const MAX_MAP_BYTES: u64 = 16 << 10;
/// What stat(2) says of an owner that has no number where it is asked, too.
const OVERFLOW_ID: u32 = 65534;

/// Ids in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::process) struct IdRange {
    /// The first one, as the namespace has it.
    pub(in crate::process) inside: u32,
    /// The same, as the reader has it.
    pub(in crate::process) outside: u32,
    count: u32,
}

/// The users, or the groups, of a user namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::process) struct IdMap(Vec<IdRange>);

impl IdMap {
    /// Of the process whose directory in `/proc` this is; `name` is that of the file.
    pub(in crate::process) fn read(directory: &File, name: &str) -> Option<Self> {
        let opened = openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut text = Vec::new();
        File::from(opened).take(MAX_MAP_BYTES).read_to_end(&mut text).ok()?;
        Some(Self::parse(&text))
    }

    /// Parses the file's text; a line that is none is left out.
    pub(in crate::process) fn parse(text: &[u8]) -> Self {
        Self(String::from_utf8_lossy(text).lines().filter_map(IdRange::parse).collect())
    }

    /// Its ranges, in the order of the file.
    pub(in crate::process) fn ranges(&self) -> impl Iterator<Item = IdRange> {
        self.0.iter().copied()
    }

    /// Whether what the reader has as this id has one in the namespace.
    fn has(&self, id: u32) -> bool {
        id != OVERFLOW_ID && self.0.iter().any(|range| range.has(id))
    }
}

impl IdRange {
    fn parse(line: &str) -> Option<Self> {
        let mut numbers = line.split_ascii_whitespace().map_while(|number| number.parse::<u32>().ok());
        Some(Self { inside: numbers.next()?, outside: numbers.next()?, count: numbers.next()? })
    }

    fn has(self, id: u32) -> bool {
        id.checked_sub(self.outside).is_some_and(|at| at < self.count)
    }
}

/// All of a user namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::process) struct Mapped {
    users: IdMap,
    groups: IdMap,
}

impl Mapped {
    /// Of the process whose directory in `/proc` this is.
    pub(in crate::process) fn read(directory: &File) -> Option<Self> {
        Some(Self { users: IdMap::read(directory, "uid_map")?, groups: IdMap::read(directory, "gid_map")? })
    }

    /// Whether a file's owner and group have ids in it, without which a capability in it is of no account for the file.
    pub(in crate::process) fn has(&self, owner: u32, group: u32) -> bool {
        self.users.has(owner) && self.groups.has(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_in_a_map_where_one_of_its_ranges_has_it() {
        let map = IdMap::parse(b"         0    1000000      65536\n      1000       1000          1\nx y z\n7 7\n");
        assert!([1_000_000, 1_065_535, 1000].iter().all(|id| map.has(*id)));
        assert!([0, 7, 999, 1001, 999_999, 1_065_536, u32::MAX].iter().all(|id| !map.has(*id)));
        let ranges: Vec<_> = map.ranges().map(|range| (range.inside, range.outside)).collect();
        assert_eq!(ranges, [(0, 1_000_000), (1000, 1000)]);
        // Of whom it is said that there is no number for him, it is not known who he is.
        let all = IdMap::parse(b"0 0 4294967295\n");
        assert!(all.has(0) && all.has(4_000_000_000) && !all.has(OVERFLOW_ID));
        assert!(!IdMap::parse(b"0 4294967295 4294967295\n").has(5) && !IdMap::default().has(0));
    }

    #[test]
    fn a_file_is_of_a_namespace_that_has_its_owner_and_its_group() {
        let [users, groups] = [b"0 1000000 10\n", b"0 2000000 10\n"].map(|map| IdMap::parse(map));
        let mapped = Mapped { users, groups };
        assert!(mapped.has(1_000_009, 2_000_000));
        assert!(!mapped.has(1_000_009, 0) && !mapped.has(0, 2_000_000) && !mapped.has(1000, 1000));
        let own = Mapped::read(&File::open("/proc/self").unwrap()).unwrap();
        assert_ne!(own, Mapped::default());
    }
}
