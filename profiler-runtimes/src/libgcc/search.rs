//! Where libgcc keeps what is registered: found by its shape, as its variables have no symbols.
//!
//! ```text
//! object     pc_begin | tbase | dbase | data | bits | next           words of 8 bytes
//! bits       sorted:1 from_array:1 mixed:1 encoding:8 count:21       and 32 bits that are 0
//! data       .eh_frame; from_array: a list of them that null ends; sorted: of what that points to, the first word
//!            is that, and the second one the count
//! up to 12   two variables point to the first object of a list each
//! from 13    one variable or two point to the root of a tree; objects have no next one there
//! node       lock u64 | count u32 | kind u32 (0: inner, 1: leaf) | entries
//! inner      up to 15 of  separator (the last address there) | child
//! leaf       up to 10 of  base | size | object
//! ```
//!
//! Source: `unwind-dw2-fde.{c,h}` and `unwind-dw2-btree.h` of GCC's libgcc. What nobody has looked up yet has the bits
//! `0x7f8`, of an encoding that is not said. A word is believed if all that it leads to is like this: bits and count, order and
//! bounds of a tree's entries, and an `.eh_frame` that begins with a common entry of a version that there is.

use std::collections::{BTreeSet, HashSet};
use std::ops::{Range, RangeInclusive};

use jitprof_common::units::Avma;

use super::MAX_SECTION;
use crate::{Memory, ReadError, Reader};

/// Objects of one registry, and nodes of one tree.
const MAX_OBJECTS: usize = 1 << 16;
const MAX_NODES: usize = 1 << 14;
/// Sections of one object.
const MAX_OF_ARRAY: u64 = 256;
/// Where in an object its parts are.
const DATA: u64 = 24;
const BITS: u64 = 32;
const NEXT: u64 = 40;
/// The bits of an object that nobody has looked up.
const UNSORTED: u64 = 0xff << 3;
const SORTED: u64 = 1;
const FROM_ARRAY: u64 = 2;
/// Where among the bits the count is, and the most that it can be; of more, it is 0.
const COUNT_FROM: u32 = 11;
const MAX_COUNT: u64 = (1 << 21) - 1;
/// Bytes of a node, and its kinds.
const NODE: usize = 256;
const INNER: u64 = 0;
const LEAF: u64 = 1;
/// Nothing lies below: the kernel's `mmap_min_addr`; and nothing of a process beyond.
const MIN_ADDRESS: u64 = 0x10000;
const MAX_ADDRESS: u64 = 1 << 56;

/// A look through what a libgcc has registered.
pub(super) struct Search<'r, M> {
    reader: &'r Reader<M>,
    objects: HashSet<u64>,
    /// Where each `.eh_frame` is that is registered.
    pub(super) sections: BTreeSet<u64>,
    /// Objects that are none, and those that found no room, of a list one.
    pub(super) damaged: u32,
    /// A part of a tree that contradicts another one: it is being changed.
    torn: Option<u64>,
}

/// A node of a tree.
enum Node {
    /// The last address, and where the child is that has it.
    Inner(Vec<(u64, u64)>),
    /// The first address, and where the object is.
    Leaf(Vec<(u64, u64)>),
}

impl<'r, M: Memory> Search<'r, M> {
    pub(super) fn new(reader: &'r Reader<M>) -> Self {
        Self { reader, objects: HashSet::new(), sections: BTreeSet::new(), damaged: 0, torn: None }
    }

    /// Looks wherever a module's variables lead to.
    ///
    /// # Errors
    /// Too much was to be read, or something was being changed: what was found until then is there.
    pub(super) fn all(&mut self, data: &Range<Avma>) -> Result<(), ReadError> {
        let Some(start) = data.start.0.checked_next_multiple_of(8) else { return Ok(()) };
        let size = usize::try_from(data.end.0.saturating_sub(start)).unwrap_or(0);
        let mut words = vec![0; size];
        if tried(self.reader.bytes(Avma(start), &mut words))?.is_none() {
            return Ok(());
        }
        for at in words_of(&words) {
            if is_pointer(at) && !data.contains(&Avma(at)) {
                tried(self.root(at))?;
            }
        }
        match self.torn {
            Some(address) => Err(ReadError::Malformed { what: "tree of what is registered with libgcc", address }),
            None => Ok(()),
        }
    }

    fn root(&mut self, at: u64) -> Result<(), ReadError> {
        match tried(self.object(at))?.flatten() {
            Some(_) => self.list(at),
            None => self.tree(at),
        }
    }

    /// Takes up a list from an object on.
    fn list(&mut self, mut at: u64) -> Result<(), ReadError> {
        while is_pointer(at) && self.is_new(at) {
            self.take(at)?;
            at = self.reader.u64(Avma(at + NEXT))?;
        }
        Ok(())
    }

    /// Whether an object was not met yet and finds room; what finds none is counted.
    fn is_new(&mut self, object: u64) -> bool {
        if self.objects.contains(&object) {
            return false;
        }
        let has_room = self.objects.len() < MAX_OBJECTS;
        self.damaged += u32::from(!has_room);
        has_room && self.objects.insert(object)
    }

    /// Takes up what an object has registered.
    fn take(&mut self, at: u64) -> Result<(), ReadError> {
        match tried(self.object(at))?.flatten() {
            Some(sections) => self.sections.extend(sections),
            None => self.damaged += 1,
        }
        Ok(())
    }

    /// Takes up a tree, if it is one: of which any object is as objects are.
    fn tree(&mut self, root: u64) -> Result<(), ReadError> {
        let (mut objects, mut torn) = (Vec::new(), None);
        let (mut open, mut seen) = (vec![(root, 0..=u64::MAX)], HashSet::new());
        while let Some((at, of)) = open.pop() {
            let is_new = seen.len() < MAX_NODES && seen.insert(at);
            let node = if is_new { tried(self.node(at, &of))?.flatten() } else { None };
            match node {
                Some(Node::Inner(children)) => {
                    let behind = children.iter().map(|(last, _)| last.saturating_add(1));
                    let firsts = [*of.start()].into_iter().chain(behind);
                    open.extend(children.iter().zip(firsts).map(|((last, child), first)| (*child, first..=*last)));
                }
                Some(Node::Leaf(entries)) => objects.extend(entries.into_iter().map(|(_, object)| object)),
                None if at == root && seen.len() == 1 => return Ok(()),
                None => torn = Some(at),
            }
        }
        if self.has_object(&objects)? {
            self.torn = self.torn.or(torn);
            for object in objects {
                if self.is_new(object) {
                    self.take(object)?;
                }
            }
        }
        Ok(())
    }

    /// Whether any of these is an object.
    fn has_object(&self, any: &[u64]) -> Result<bool, ReadError> {
        for at in any {
            if tried(self.object(*at))?.flatten().is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The node at an address, if it is one of these addresses.
    fn node(&self, at: u64, of: &RangeInclusive<u64>) -> Result<Option<Node>, ReadError> {
        let mut bytes = [0; NODE];
        self.reader.bytes(Avma(at), &mut bytes)?;
        let words: Vec<u64> = words_of(&bytes).collect();
        let [_, header, entries @ ..] = words.as_slice() else { return Ok(None) };
        Ok(node_of(*header, entries, of))
    }

    /// What the object at an address has registered; none if there is no object.
    fn object(&self, at: u64) -> Result<Option<Vec<u64>>, ReadError> {
        let word = |offset: u64| self.reader.u64(Avma(at.saturating_add(offset)));
        let bits = word(BITS)?;
        let (is_sorted, is_array) = (bits & SORTED != 0, bits & FROM_ARRAY != 0);
        let is_one = if is_sorted { bits >> 32 == 0 } else { bits & !FROM_ARRAY == UNSORTED };
        if !is_one {
            return Ok(None);
        }
        let mut data = word(DATA)?;
        if is_sorted {
            let vector = Avma(data);
            data = self.reader.u64(vector)?;
            let (entries, count) = (self.reader.u64(Avma(vector.0.saturating_add(8)))?, bits >> COUNT_FROM);
            if entries == 0 || count != (if entries > MAX_COUNT { 0 } else { entries }) {
                return Ok(None);
            }
        }
        let sections = if is_array { self.array(data)? } else { vec![data] };
        let mut filled = Vec::with_capacity(sections.len());
        for section in sections {
            match self.is_filled(section)? {
                Some(true) => filled.push(section),
                Some(false) => {}
                None => return Ok(None),
            }
        }
        Ok(Some(filled))
    }

    /// The sections of a list of such.
    fn array(&self, at: u64) -> Result<Vec<u64>, ReadError> {
        let mut sections = Vec::new();
        for index in 0..MAX_OF_ARRAY {
            let section = self.reader.u64(Avma(at.saturating_add(8 * index)))?;
            if section == 0 {
                return Ok(sections);
            }
            sections.push(section);
        }
        Err(ReadError::Malformed { what: "end of a list of unwinding data", address: at })
    }

    /// Whether a section has anything in it; nothing if it is no section: it begins with a common entry, or ends at once.
    fn is_filled(&self, at: u64) -> Result<Option<bool>, ReadError> {
        if !is_address(at) {
            return Ok(None);
        }
        let length = self.reader.u32(Avma(at))?;
        if length == 0 {
            return Ok(Some(false));
        }
        let (id, version) = (self.reader.u32(Avma(at + 4))?, self.reader.u8(Avma(at + 8))?);
        let is_common = u64::from(length) < MAX_SECTION && id == 0 && matches!(version, 1 | 3 | 4);
        Ok(is_common.then_some(true))
    }
}

/// Nothing where something is not there, or not what it should be.
fn tried<T>(read: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(ReadError::OverBudget) => Err(ReadError::OverBudget),
        Err(ReadError::Unreadable(_) | ReadError::Malformed { .. }) => Ok(None),
    }
}

/// A node of these addresses from the word with its count and kind on, if all of it agrees.
fn node_of(header: u64, entries: &[u64], of: &RangeInclusive<u64>) -> Option<Node> {
    let (count, kind) = (usize::try_from(header & u64::from(u32::MAX)).ok()?, header >> 32);
    let width = match kind {
        INNER => 2,
        LEAF => 3,
        _ => return None,
    };
    if count > entries.len() / width || (kind == INNER && count == 0) {
        return None;
    }
    let pair = |entry: &[u64]| match *entry {
        [last, child] => Some((last, child)),
        [first, size, object] => first.checked_add(size).filter(|_| size > 0).map(|_| (first, object)),
        _ => None,
    };
    let pairs: Vec<(u64, u64)> = entries.chunks_exact(width).take(count).map(pair).collect::<Option<_>>()?;
    let is_ordered = pairs.is_sorted_by(|(one, _), (other, _)| one < other);
    let is_within = pairs.iter().all(|(key, to)| of.contains(key) && is_pointer(*to));
    (is_ordered && is_within).then_some(if kind == INNER { Node::Inner(pairs) } else { Node::Leaf(pairs) })
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(8).filter_map(|word| word.first_chunk().copied()).map(u64::from_le_bytes)
}

/// Whether there may be code or data at an address.
pub(super) fn is_address(at: u64) -> bool {
    (MIN_ADDRESS..MAX_ADDRESS).contains(&at)
}

/// Whether there may be an object or a node.
fn is_pointer(at: u64) -> bool {
    is_address(at) && at.is_multiple_of(8)
}
