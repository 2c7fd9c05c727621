//! The entries of a DEBUG_INFO record, and the repair of the ones that V8 writes broken.

use memchr::memchr;
use std::borrow::Cow;

use super::byte_order::ByteOrder;

/// Bytes of an entry before its name.
const ENTRY_FIXED: usize = 16;

/// The shortest entry: an empty name is its NUL.
pub(super) const ENTRY_MIN: usize = ENTRY_FIXED + 1;

/// V8 pads its record to 8 bytes; more than that behind the last entry means that the walk went astray.
const MAX_PAD: usize = 7;

/// An entry farther from its function than this was not read from the start of an entry.
const MAX_DISTANCE: u64 = 1 << 30;

/// V8 frees the name's buffer before it writes it; the allocator's links then overwrite 16 bytes.
const V8_OVERWRITTEN: usize = 16;

/// The source lines of one function.
#[derive(Clone, Copy, Debug)]
pub struct DebugInfo<'a> {
    /// The function's first byte, as its LOAD record has it.
    pub code_addr: u64,
    /// The entries that are said to follow. Not more than could be there.
    pub nr_entry: usize,
    /// Entries and padding.
    pub(super) bytes: &'a [u8],
    pub(super) order: ByteOrder,
}

/// From this address on, the code belongs to this line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DebugEntry<'a> {
    /// The address, with the producer's bias.
    pub addr: u64,
    /// From 1; 0 or less means that the code belongs to no line.
    pub line: i32,
    /// V8: the column. LLVM: DWARF's discriminator. Others: 0.
    pub discrim: i32,
    /// The file without its NUL. The marker `FF 00` is already replaced by the name before.
    pub name: &'a [u8],
}

impl<'a> DebugInfo<'a> {
    /// The entries in the file's order, walked name by name as the format says. It ends early at an entry that does
    /// not fit, see [`DebugEntries::is_sound`].
    pub fn entries(&self) -> DebugEntries<'a> {
        DebugEntries {
            bytes: self.bytes,
            order: self.order,
            code_addr: self.code_addr,
            left: self.nr_entry,
            stride: None,
            last_name: &[],
            same_file: 0,
            sound: true,
        }
    }

    /// The bytes of the entries, if the bytes at hand hold all of them.
    pub(super) fn walked_len(&self) -> Option<usize> {
        let mut entries = self.entries();
        let complete = entries.by_ref().count() == self.nr_entry;
        complete.then(|| self.bytes.len() - entries.bytes.len())
    }

    /// The entries of a record whose names contain NULs, if it can be told where each begins.
    ///
    /// V8 (seen in 11.3, Node 20.20.2) writes the names of user scripts from freed memory: 16 bytes of each are
    /// garbage with NULs in it. The names of one record have the same length, so the entries have one stride; the
    /// right one makes every address ascend within the function's reach.
    pub fn repaired(&self) -> Option<DebugEntries<'a>> {
        if self.nr_entry == 0 {
            return None;
        }
        (0..=MAX_PAD).find_map(|pad| {
            let len = self.bytes.len().checked_sub(pad)?;
            let stride = len / self.nr_entry;
            let fits = len % self.nr_entry == 0 && stride >= ENTRY_MIN && self.stride_is_right(stride);
            fits.then(|| DebugEntries { stride: Some(stride), ..self.entries() })
        })
    }

    fn stride_is_right(&self, stride: usize) -> bool {
        let mut last = self.code_addr;
        self.bytes.chunks_exact(stride).take(self.nr_entry).all(|entry| {
            let Some(addr) = self.order.u64(entry, 0) else {
                return false;
            };
            let ends_in_name = entry.last() == Some(&0) && entry.get(stride - 2) != Some(&0);
            let right = ends_in_name && addr >= last && addr - self.code_addr < MAX_DISTANCE;
            last = addr;
            right
        })
    }
}

/// The entries of one record.
#[derive(Clone, Debug)]
pub struct DebugEntries<'a> {
    bytes: &'a [u8],
    order: ByteOrder,
    code_addr: u64,
    left: usize,
    /// The length of every entry, in a repaired record.
    stride: Option<usize>,
    /// Has no NUL in it, unless the entries are found by their stride.
    last_name: &'a [u8],
    /// Markers of the same file met so far.
    same_file: u64,
    sound: bool,
}

impl<'a> DebugEntries<'a> {
    /// After the last entry: whether all entries were there and nothing but padding follows.
    pub fn is_sound(&self) -> bool {
        self.sound && self.left == 0 && (self.stride.is_some() || self.bytes.len() <= MAX_PAD)
    }

    /// How many names so far were the marker `FF 00`.
    pub(super) fn same_file(&self) -> u64 {
        self.same_file
    }

    /// The bytes behind the entries read so far.
    pub(super) fn bytes_left(&self) -> usize {
        self.bytes.len()
    }

    #[inline]
    fn read(&mut self) -> Option<DebugEntry<'a>> {
        let (fixed, name_area) = self.bytes.split_first_chunk::<ENTRY_FIXED>()?;
        let name = self.name(name_area)?;
        let entry = DebugEntry {
            addr: self.order.u64(fixed, 0)?,
            line: self.order.i32(fixed, 8)?,
            discrim: self.order.i32(fixed, 12)?,
            name,
        };
        if entry.addr.abs_diff(self.code_addr) > MAX_DISTANCE {
            return None;
        }
        self.bytes = name_area.get(name.len() + 1..)?;
        Some(entry)
    }

    /// The name that `area` begins with. One that repeats is the slice of the entry before, so that nobody has to look
    /// at its bytes again: the rows of a function mostly name one file, and this is half of the cost of reading them.
    #[inline]
    fn name(&self, area: &'a [u8]) -> Option<&'a [u8]> {
        if let Some(stride) = self.stride {
            return area.get(..stride.checked_sub(ENTRY_MIN)?);
        }
        if area.get(self.last_name.len()) == Some(&0) && area.starts_with(self.last_name) {
            return Some(self.last_name);
        }
        area.get(..memchr(0, area)?)
    }
}

impl<'a> Iterator for DebugEntries<'a> {
    type Item = DebugEntry<'a>;

    #[inline]
    fn next(&mut self) -> Option<DebugEntry<'a>> {
        if self.left == 0 || !self.sound {
            return None;
        }
        let Some(mut entry) = self.read() else {
            self.sound = false;
            return None;
        };
        self.left -= 1;
        if entry.name == [0xff] {
            entry.name = self.last_name;
            self.same_file += 1;
        }
        self.last_name = entry.name;
        Some(entry)
    }
}

/// Whether V8 wrote the name from freed memory: no path has control characters.
pub(super) fn name_is_overwritten(name: &[u8]) -> bool {
    name.get(..name.len().min(V8_OVERWRITTEN))
        .is_some_and(|start| start.iter().any(|byte| *byte < 0x20) || std::str::from_utf8(start).is_err())
        && !name_is_cut_utf8(name)
}

/// A multi-byte character across the 16th byte is no damage.
fn name_is_cut_utf8(name: &[u8]) -> bool {
    std::str::from_utf8(name).is_ok() && name.iter().all(|byte| *byte >= 0x20)
}

/// Stands before the end of a name whose beginning is lost.
pub(super) const LOST: char = '…';

/// What is left of an overwritten name: the last component of the path, behind the overwritten bytes, or its end.
pub(super) fn intact_part(name: &[u8]) -> Cow<'_, [u8]> {
    let tail = name.get(V8_OVERWRITTEN..).unwrap_or(&[]);
    let start = tail.iter().rposition(|byte| *byte == b'/' || *byte == 0).map(|at| at + 1);
    let rest = tail.get(start.unwrap_or(0)..).unwrap_or(&[]);
    match start {
        None if !rest.is_empty() => Cow::Owned([LOST.to_string().as_bytes(), rest].concat()),
        _ => Cow::Borrowed(rest),
    }
}
