//! Unwinding data of single functions, from a whole `.eh_frame`.
//!
//! Each function gets the two entries that it needs. What its own entry refers to stays where it was, and so does the entry,
//! if the data is taken to lie so that:
//!
//! ```text
//! section    .. | CIE | .. | FDE | ..
//! data                | CIE | FDE | 0u32
//! ```

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;

use gimli::{
    BaseAddresses, CommonInformationEntry, EhFrame, EhFrameOffset, EndianSlice, LittleEndian, UnwindSection, Vendor,
};
use jitprof_common::units::Avma;

use crate::steps::Steps;

/// Bytes of a function's two entries. Those of a function with a thousand changes of the stack pointer have 4 KiB.
const MAX_FRAME: usize = 64 << 10;
/// Bytes that are looked at in the time of a step.
const BYTES_A_STEP: usize = 16;
/// Bytes of a function's entries that are handed on for a step: who gets them runs up to two instructions for each.
const FRAME_BYTES_A_STEP: usize = 4;
/// What a common entry costs beside its bytes, for two hundred are kept of it. A compiler writes one or two.
const CIE_STEPS: usize = 16;

type Cie<'a> = CommonInformationEntry<EndianSlice<'a, LittleEndian>>;

/// Unwinding data of a function, as in `.eh_frame`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The common entry, the function's, and an end.
    pub bytes: Box<[u8]>,
    /// The address at which what is relative in them was meant to lie.
    pub section_start: Avma,
}

/// The entries of a section.
pub(crate) struct Frames<'a> {
    section: Cow<'a, [u8]>,
    start: Avma,
    /// By the function's address.
    entries: Vec<Entry>,
}

/// Where a function's entries are in the section.
#[derive(Clone, Copy, Debug)]
struct Entry {
    function: u64,
    /// Bytes of its code.
    size: u64,
    cie: usize,
    fde: usize,
}

impl<'a> Frames<'a> {
    /// Finds the entries of a section, and where it lies; those behind a damaged one, or for which there are not enough steps,
    /// are not found. `vendor`: who says what call frame information means.
    pub(crate) fn read((section, start): (Cow<'a, [u8]>, Avma), vendor: Vendor, steps: &mut Steps) -> Self {
        let mut frame = EhFrame::new(&section, LittleEndian);
        frame.set_vendor(vendor);
        let mut entries = entries(&frame, (&*section, start), steps);
        entries.sort_by_key(|entry| entry.function);
        Self { section, start, entries }
    }

    /// The functions that have entries, by address: first byte, and how many.
    pub(crate) fn functions(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.entries.iter().map(|entry| (entry.function, entry.size))
    }

    /// The data of the function at an address.
    pub(crate) fn of(&self, function: u64, steps: &mut Steps) -> Option<Frame> {
        let index = self.entries.binary_search_by_key(&function, |entry| entry.function).ok()?;
        let entry = self.entries.get(index)?;
        let (cie, fde) = (entry_at(&self.section, entry.cie)?, entry_at(&self.section, entry.fde)?);
        let length = cie.len().saturating_add(fde.len());
        steps.take(1 + length / FRAME_BYTES_A_STEP)?;
        if length > MAX_FRAME {
            return None;
        }
        let mut bytes = [cie, fde, &[0; 4][..]].concat();
        // Its distance to the common entry, counted from its own second word.
        let to_cie = u32::try_from(cie.len().saturating_add(4)).ok()?;
        bytes.get_mut(cie.len() + 4..cie.len() + 8)?.copy_from_slice(&to_cie.to_le_bytes());
        let fde_start = self.start.0.wrapping_add(entry.fde as u64);
        Some(Frame { bytes: bytes.into(), section_start: Avma(fde_start.wrapping_sub(cie.len() as u64)) })
    }
}

fn entries(
    frame: &EhFrame<EndianSlice<'_, LittleEndian>>,
    (section, start): (&[u8], Avma),
    steps: &mut Steps,
) -> Vec<Entry> {
    let bases = BaseAddresses::default().set_eh_frame(start.0);
    let (mut found, mut cies, mut at) = (Vec::new(), HashMap::new(), 0_usize);
    while let Some(bytes) = entry_at(section, at) {
        if steps.take(1).is_none() {
            break;
        }
        if let Some(cie) = cie_of(bytes, at)
            && let Some(entry) = entry(frame, &bases, (cie, at), &mut cies, steps)
        {
            found.push(entry);
        }
        at = at.saturating_add(bytes.len());
    }
    found
}

/// The entry of a function at an offset, whose common entry is at another.
fn entry<'s>(
    frame: &EhFrame<EndianSlice<'s, LittleEndian>>,
    bases: &BaseAddresses,
    (cie, fde): (usize, usize),
    cies: &mut HashMap<usize, Option<Cie<'s>>>,
    steps: &mut Steps,
) -> Option<Entry> {
    let known = match cies.entry(cie) {
        Slot::Occupied(known) => known.into_mut(),
        Slot::Vacant(unknown) => {
            // As long as it says; it may be said to overlap all others.
            steps.take(CIE_STEPS + entry_at(gimli::Section::reader(frame).slice(), cie)?.len() / BYTES_A_STEP)?;
            unknown.insert(frame.cie_from_offset(bases, EhFrameOffset(cie)).ok())
        }
    };
    let known = known.as_ref()?;
    let entry = frame.fde_from_offset(bases, EhFrameOffset(fde), |_, _, _| Ok(known.clone())).ok()?;
    Some(Entry { function: entry.initial_address(), size: entry.len(), cie, fde })
}

/// The whole entry that begins at an offset: its length and what follows. Those of the 64-bit form are not written by
/// anybody, and too long here.
fn entry_at(section: &[u8], at: usize) -> Option<&[u8]> {
    let rest = section.get(at..)?;
    let length = usize::try_from(u32::from_le_bytes(*rest.first_chunk()?)).ok()?;
    rest.get(..length.checked_add(4)?)
}

/// Where the common entry of the function's entry at an offset is; none for what is no function's entry.
fn cie_of(entry: &[u8], at: usize) -> Option<usize> {
    let distance = u32::from_le_bytes(*entry.get(4..)?.first_chunk()?);
    at.checked_add(4)?.checked_sub(usize::try_from(distance).ok()?).filter(|_| distance != 0)
}
