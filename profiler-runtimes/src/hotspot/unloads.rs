//! How many classes the runtime has unloaded. What it has of an unloaded class is freed, and given to another one.
//!
//! It is counted for the runtime's tools, in `PerfMemory`: a prologue, then entries of a name and a value, in a form that
//! is the same in all versions (2.0). `-XX:-UsePerfData` switches it off. The count rises before anything is freed.

use jitprof_common::units::Avma;

use super::layout::{Layout, plus};
use crate::{Memory, ReadError, Reader};

/// What the prologue begins with.
const MAGIC: u32 = u32::from_le_bytes([0xca, 0xfe, 0xc0, 0xc0]);
/// Where the prologue says at which distance the entries begin, and how many there are.
const FIRST_ENTRY: u64 = 24;
const ENTRIES: u64 = 28;
/// Where an entry says how long it is, and at which distances its name and its value are.
const LENGTH: u64 = 0;
const NAME: u64 = 4;
const VALUE: u64 = 16;
/// Bytes of an entry at least.
const LEAST_LENGTH: u32 = 20;
/// Entries that are looked at; there are some 250.
const MAX_ENTRIES: u32 = 4096;
/// Bytes of a name that are read.
const MAX_NAME: usize = 64;
/// Classes of the archive that a runtime comes with are counted apart.
const NAMES: [&[u8]; 2] = [b"java.cls.unloadedClasses", b"java.cls.sharedUnloadedClasses"];
/// Bytes between both counters at most, so that one look sees them; they are made one after another.
const MAX_DISTANCE: u64 = 1024;

/// Where the values of these counters are, as far as the runtime counts.
pub(super) fn find_counters<M: Memory, const N: usize>(
    layout: &Layout,
    reader: &Reader<M>,
    names: [&[u8]; N],
) -> Result<[Option<Avma>; N], ReadError> {
    let mut found = [None; N];
    let start = match layout.counters {
        Some(at) => reader.pointer(at)?,
        None => return Ok(found),
    };
    if start.0 == 0 || reader.u32(start)? != MAGIC {
        return Ok(found);
    }
    let count = reader.u32(plus(start, ENTRIES)?)?.min(MAX_ENTRIES);
    let mut entry = plus(start, reader.u32(plus(start, FIRST_ENTRY)?)?.into())?;
    for _ in 0..count {
        let length = reader.u32(plus(entry, LENGTH)?)?;
        if length < LEAST_LENGTH {
            break;
        }
        let name = plus(entry, reader.u32(plus(entry, NAME)?)?.into())?;
        let name = reader.c_string(name, MAX_NAME)?;
        if let Some(at) = names.iter().position(|wanted| *wanted == name) {
            found[at] = Some(plus(entry, reader.u32(plus(entry, VALUE)?)?.into())?);
        }
        entry = plus(entry, length.into())?;
    }
    Ok(found)
}

/// Where the runtime counts the classes that it has unloaded. It stays there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unloads {
    first: Avma,
    second: Avma,
}

impl Unloads {
    /// Looks for it. Nothing if the runtime does not count, or has not begun to.
    ///
    /// # Errors
    /// It could not be read.
    pub fn find<M: Memory>(layout: &Layout, reader: &Reader<M>) -> Result<Option<Self>, ReadError> {
        let [Some(one), Some(other)] = find_counters(layout, reader, NAMES)? else { return Ok(None) };
        let (first, second) = (one.min(other), one.max(other));
        Ok((second.0 - first.0 <= MAX_DISTANCE).then_some(Self { first, second }))
    }

    /// How many it has unloaded by now.
    ///
    /// # Errors
    /// It could not be read.
    pub fn count<M: Memory>(&self, reader: &Reader<M>) -> Result<u64, ReadError> {
        let distance = usize::try_from(self.second.0 - self.first.0).unwrap_or(0);
        let mut bytes = vec![0; distance + size_of::<u64>()];
        if reader.now(self.first, &mut bytes)? < bytes.len() {
            return Err(ReadError::Unreadable(self.second.0));
        }
        let word = |at: usize| {
            bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
        };
        Ok(word(0).wrapping_add(word(distance)))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io;

    use super::*;
    use crate::Budget;
    use crate::hotspot::tests::layout_with_counters;

    /// Where the memory of these tests begins, with the pointer to the counters.
    pub(in crate::hotspot) const AT: u64 = 0x10_000;
    pub(in crate::hotspot) const ENOUGH: Budget = Budget { pages: 1000, steps: 100_000 };

    pub(in crate::hotspot) struct Bytes(pub(in crate::hotspot) Vec<u8>);

    impl Memory for Bytes {
        fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
            let from = address.0.checked_sub(AT).and_then(|from| usize::try_from(from).ok());
            let part = from.and_then(|from| self.0.get(from..)).filter(|part| !part.is_empty());
            let part = part.ok_or(io::ErrorKind::NotFound)?;
            let count = part.len().min(into.len());
            into[..count].copy_from_slice(&part[..count]);
            Ok(count)
        }
    }

    /// Counters as the runtime lays them out: a pointer, then the prologue, then entries with names and values.
    pub(in crate::hotspot) fn counters(entries: &[(&str, u64)]) -> Vec<u8> {
        let mut bytes = (AT + 8).to_le_bytes().to_vec();
        bytes.extend([0xca, 0xfe, 0xc0, 0xc0, 1, 2, 0, 1]);
        bytes.extend([0; 16]);
        bytes.extend([32_u32, entries.len() as u32].map(u32::to_le_bytes).concat());
        for (name, value) in entries {
            let value_at = (20 + name.len() + 1).next_multiple_of(8);
            let header = [value_at as u32 + 8, 20, 0, 0, value_at as u32];
            let begin = bytes.len();
            bytes.extend(header.map(u32::to_le_bytes).concat());
            bytes.extend(name.bytes());
            bytes.resize(begin + value_at, 0);
            bytes.extend(value.to_le_bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        bytes
    }

    fn found(bytes: Vec<u8>) -> Result<Option<u64>, ReadError> {
        found_by(&layout_with_counters(Some(Avma(AT))), bytes)
    }

    fn found_by(layout: &Layout, bytes: Vec<u8>) -> Result<Option<u64>, ReadError> {
        let reader = Reader::new(Bytes(bytes), ENOUGH);
        let unloads = Unloads::find(layout, &reader)?;
        unloads.map(|unloads| unloads.count(&reader)).transpose()
    }

    const BOTH: [(&str, u64); 4] = [
        ("java.cls.loadedClasses", 900),
        ("java.cls.sharedUnloadedClasses", 5),
        ("sun.cls.bytes", 77),
        ("java.cls.unloadedClasses", 40),
    ];

    #[test]
    fn classes_of_the_archive_are_counted_with_the_others() {
        assert_eq!(found(counters(&BOTH)), Ok(Some(45)));
        assert_eq!(found(counters(&BOTH[..3])), Ok(None), "an older form, or none");
    }

    #[test]
    fn a_runtime_that_does_not_count_says_nothing() {
        assert_eq!(found(vec![0; 64]), Ok(None));
        let reader = Reader::new(Bytes(counters(&BOTH)), ENOUGH);
        assert_eq!(Unloads::find(&layout_with_counters(None), &reader), Ok(None));
    }

    #[test]
    fn whatever_stands_there_is_read_within_the_budget() {
        let (whole, layout) = (counters(&BOTH), layout_with_counters(Some(Avma(AT))));
        for at in 0..300 {
            let _ = found_by(&layout, whole[..at].to_vec());
            for byte in [0, 1, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = byte;
                let _ = found_by(&layout, changed);
            }
        }
    }
}
