//! Python's strings.

use std::collections::HashMap;
use std::sync::Arc;

use jitprof_common::units::Avma;

use super::layout::{Layout, SIZE, TYPE};
use super::{Unknown, Words};
use crate::{Memory, Reader};

/// Characters of a string: of a name, or of a path.
const MAX_LENGTH: u64 = 1024;
/// Bytes of text that are remembered before all of it is dropped.
const MAX_REMEMBERED: usize = 16 << 20;
/// Bytes that remembering a string takes besides its text.
const ENTRY: usize = 96;
/// Where in a string its hash is.
pub(super) const HASH: u64 = 24;
/// Where in a string it says what its characters are: of one, two or four bytes, at the string itself, all in ASCII.
const STATE: u64 = 32;
/// Bytes of a string that are read at once.
const SPAN: usize = 40;
/// The hash of a string that nobody has asked for its hash.
const NO_HASH: u64 = u64::MAX;

/// What tells a string from another one that takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    length: u64,
    hash: u64,
    state: u32,
}

/// The text of strings, by their addresses.
#[derive(Debug, Default)]
pub(super) struct Strings {
    known: HashMap<u64, (Identity, Arc<str>)>,
    bytes: usize,
}

impl Strings {
    /// Bytes that are remembered, nearly.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The string at an address, which is `what`.
    pub(super) fn read<M: Memory>(
        &mut self,
        reader: &Reader<M>,
        layout: &Layout,
        address: u64,
        what: &'static str,
    ) -> Result<Arc<str>, Unknown> {
        let object = Words::read(reader, address, SPAN)?;
        if object.word(TYPE) != layout.types.string {
            return Err(Unknown::No(what));
        }
        let state = u32::try_from(object.word(STATE) & u64::from(u32::MAX)).unwrap_or(0);
        let identity = Identity { length: object.word(SIZE), hash: object.word(HASH), state };
        if let Some((known, text)) = self.known.get(&address)
            && *known == identity
        {
            return Ok(Arc::clone(text));
        }
        let text: Arc<str> = characters(reader, layout, address, identity, what)?.into();
        if identity.hash != NO_HASH {
            self.remember(address, identity, &text);
        }
        Ok(text)
    }

    fn remember(&mut self, address: u64, identity: Identity, text: &Arc<str>) {
        let cost = text.len() + ENTRY;
        if self.bytes + cost > MAX_REMEMBERED {
            *self = Self::default();
        }
        self.bytes += cost;
        if let Some((_, before)) = self.known.insert(address, (identity, Arc::clone(text))) {
            self.bytes -= before.len() + ENTRY;
        }
    }
}

/// The characters behind a string's head; those that are none in Unicode, which stand for bytes of a path that is not
/// encoded as the system's paths are, are replaced.
fn characters<M: Memory>(
    reader: &Reader<M>,
    layout: &Layout,
    address: u64,
    string: Identity,
    what: &'static str,
) -> Result<String, Unknown> {
    if string.length > MAX_LENGTH {
        return Err(Unknown::TooLarge(what));
    }
    let (width, is_compact, is_ascii) = (string.state >> 2 & 7, string.state >> 5 & 1 == 1, string.state >> 6 & 1 == 1);
    if !matches!(width, 1 | 2 | 4) || !is_compact || (is_ascii && width != 1) {
        return Err(Unknown::No(what));
    }
    let head = if is_ascii { layout.strings.ascii } else { layout.strings.other };
    let length = usize::try_from(string.length).map_err(|_| Unknown::TooLarge(what))?;
    let mut bytes = vec![0; length * width as usize];
    reader.bytes(Avma(address.checked_add(head).ok_or(Unknown::No(what))?), &mut bytes)?;
    let character = |code: u32| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    Ok(match width {
        1 => bytes.iter().map(|byte| char::from(*byte)).collect(),
        2 => bytes.as_chunks().0.iter().map(|two| character(u16::from_le_bytes(*two).into())).collect(),
        _ => bytes.as_chunks().0.iter().map(|four| character(u32::from_le_bytes(*four))).collect(),
    })
}
