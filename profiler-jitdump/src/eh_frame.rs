//! Taking apart the data of an UNWINDING_INFO record: which bytes are the `.eh_frame`, and at which address its
//! pc-relative values resolve.
//!
//! | order | written by | section start |
//! |---|---|---|
//! | `[.eh_frame][.eh_frame_hdr]` | perf's own code, V8, CPython; contradicts the specification | virtual: behind the code, `code_addr + round_up(code_size, 8)` |
//! | `[.eh_frame_hdr][.eh_frame]` | LLVM ORC, one record for a batch of functions | real: in a 12-byte header as an absolute address, else from the FDEs |
//! | header only | V8 for code without recorded rules | none: the code keeps frame pointers |
//!
//! The orders are told apart by where the header's version and encoding bytes are.

use std::borrow::Cow;
use std::sync::Arc;

use gimli::{
    BaseAddresses, DW_EH_PE_pcrel, DW_EH_PE_sdata4, DW_EH_PE_sdata8, DwEhPe, RunTimeEndian, UnwindSection as _,
};

use crate::code::EhFrame;
use jitprof_common::units::Avma;

use super::byte_order::ByteOrder;

/// FDEs looked at in one record; an object of LLVM ORC has one for each function.
const MAX_FDES: usize = 1 << 16;

/// Functions that a batch without an absolute address is tried to be placed by: each goes over every FDE.
const MAX_ATTEMPTS: u32 = 64;

/// The longest common entry that is used. Compilers write 20 to 40 bytes, with a personality routine 60.
const MAX_CIE_BYTES: usize = 256;

/// The only FDE encodings in known producers.
const PCREL_SDATA4: DwEhPe = DwEhPe(DW_EH_PE_pcrel.0 | DW_EH_PE_sdata4.0);
const PCREL_SDATA8: DwEhPe = DwEhPe(DW_EH_PE_pcrel.0 | DW_EH_PE_sdata8.0);

/// Offset of the augmentation from the start of an entry with a length of 4 bytes: length, id, version.
const AUGMENTATION_AT: usize = 9;

/// The data of one record, taken apart.
#[derive(Clone, Debug)]
pub(super) enum EhData {
    /// Nothing but a header: the code keeps frame pointers.
    HeaderOnly,
    /// One function's `.eh_frame`, laid out behind its code in perf's virtual image.
    Single(Arc<[u8]>),
    /// The `.eh_frame` of every function of a batch.
    Batch(Batch),
    /// No header where one has to be.
    Unrecognised,
}

/// Functions linked together share one `.eh_frame`.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    frame: Arc<[u8]>,
    fdes: Arc<[Fde]>,
    /// The section's address, once known.
    start: Option<u64>,
    pub(super) absolute: bool,
    /// How often a function may still be tried to find `start` by.
    attempts_left: u32,
    /// Bytes that may still be cut out: what every function takes once. Records that name one of them again and again
    /// would take its bytes each time.
    bytes_left: usize,
}

/// Where an FDE is and what it covers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fde {
    /// Its CIE's bytes.
    pub(super) cie: (usize, usize),
    /// Its own bytes.
    pub(super) fde: (usize, usize),
    /// The function's start, relative to the section's.
    pub(super) pc_from_section: u64,
    /// The function's size.
    pub(super) range: u64,
}

/// Splits the data by the header's place.
pub(super) fn take_apart(bytes: &[u8], hdr_size: u64, order: ByteOrder) -> EhData {
    let Some(hdr_size) = usize::try_from(hdr_size).ok().filter(|size| *size <= bytes.len()) else {
        return EhData::Unrecognised;
    };
    if hdr_size == bytes.len() {
        return EhData::HeaderOnly;
    }
    let (front, hdr_last) = bytes.split_at(bytes.len() - hdr_size);
    if (hdr_size == 0 || is_hdr(hdr_last)) && is_eh_frame(front, order) {
        return EhData::Single(Arc::from(front));
    }
    let (hdr_first, back) = bytes.split_at(hdr_size);
    if !is_hdr(hdr_first) || !is_eh_frame(back, order) {
        return EhData::Unrecognised;
    }
    // LLVM ORC's own header: version 1, pointer absolute in 8 bytes, no count, no table.
    let start = (hdr_first.starts_with(&[1, 0x0c, 0xff, 0xff])).then(|| order.u64(hdr_first, 4)).flatten();
    let fdes = fdes_of(back, order);
    EhData::Batch(Batch {
        frame: Arc::from(back),
        bytes_left: back.len().saturating_add(fdes.len().saturating_mul(MAX_CIE_BYTES)),
        fdes: fdes.into(),
        start,
        absolute: start.is_some(),
        attempts_left: MAX_ATTEMPTS,
    })
}

/// A header begins with version 1 and three pointer encodings.
fn is_hdr(bytes: &[u8]) -> bool {
    let is_encoding = |byte: u8| byte == 0xff || (byte & 0x0f <= 0x0c && byte & 0x70 <= 0x50);
    match bytes.first_chunk::<4>() {
        Some([1, pointer, count, table]) => [pointer, count, table].into_iter().all(|byte| is_encoding(*byte)),
        _ => false,
    }
}

/// The section begins with a CIE: a length that fits and the id 0.
fn is_eh_frame(bytes: &[u8], order: ByteOrder) -> bool {
    let length = order.u32(bytes, 0).and_then(|length| usize::try_from(length).ok());
    let fits = length.is_some_and(|length| length >= 8 && length <= bytes.len().saturating_sub(4));
    fits && order.u32(bytes, 4) == Some(0)
}

/// One function's unwinding data, and how it came to its address.
pub(super) enum Placed {
    /// The FDE resolves to the function.
    Exact(EhFrame),
    /// The only FDE resolves elsewhere; the section was moved so that it fits.
    Rebased(EhFrame),
    /// No FDE for this function.
    Absent,
}

/// Places a single function's section behind its code, as perf's image has it.
pub(super) fn place_single(bytes: &Arc<[u8]>, code_addr: u64, code_size: u64, order: ByteOrder) -> Placed {
    let behind = code_size.checked_next_multiple_of(8).and_then(|size| code_addr.checked_add(size));
    let Some(section) = behind else {
        return Placed::Absent;
    };
    let frame = |start| EhFrame { bytes: Arc::clone(bytes), section_start: Avma(start) };
    let fdes = fdes_of(bytes, order);
    match fdes.as_slice() {
        [] => Placed::Absent,
        fdes if fdes.iter().any(|fde| section.wrapping_add(fde.pc_from_section) == code_addr) => {
            Placed::Exact(frame(section))
        }
        [only] => Placed::Rebased(frame(code_addr.wrapping_sub(only.pc_from_section))),
        _ => Placed::Absent,
    }
}

impl Batch {
    /// The function's own CIE and FDE, cut out of the batch, so that the work for one function does not grow with
    /// the number of functions linked with it.
    ///
    /// ```text
    /// section_start = batch_start + offset(FDE in batch) - length(CIE)
    /// ```
    ///
    /// keeps the FDE, and with it every pc-relative value in it, at its address. A personality pointer in the CIE
    /// does move; unwinding does not use it.
    pub(super) fn place(&mut self, code_addr: u64, code_size: u64, order: ByteOrder) -> Placed {
        let known = self.start;
        let Some(start) = known.or_else(|| self.derive_start(code_addr, code_size)) else {
            return Placed::Absent;
        };
        let pc = code_addr.wrapping_sub(start);
        let Ok(index) = self.fdes.binary_search_by_key(&pc, |fde| fde.pc_from_section) else {
            return Placed::Absent;
        };
        self.start = Some(start);
        let cut = self.fdes.get(index).and_then(|fde| self.cut_out(fde, start, order));
        let left = cut.as_ref().and_then(|frame| self.bytes_left.checked_sub(frame.bytes.len()));
        self.bytes_left = left.unwrap_or(self.bytes_left);
        cut.filter(|_| left.is_some()).map_or(Placed::Absent, Placed::Exact)
    }

    /// Without an absolute address, the one FDE that is as long as the code says where the section is.
    fn derive_start(&mut self, code_addr: u64, code_size: u64) -> Option<u64> {
        self.attempts_left = self.attempts_left.checked_sub(1)?;
        let mut same_size = self.fdes.iter().filter(|fde| fde.range == code_size);
        let only = same_size.next()?;
        same_size.next().is_none().then(|| code_addr.wrapping_sub(only.pc_from_section))
    }

    fn cut_out(&self, fde: &Fde, start: u64, order: ByteOrder) -> Option<EhFrame> {
        let cie = self.frame.get(fde.cie.0..fde.cie.1)?;
        let own = self.frame.get(fde.fde.0..fde.fde.1)?;
        let mut bytes = Vec::with_capacity(cie.len() + own.len());
        bytes.extend_from_slice(cie);
        bytes.extend_from_slice(own);
        // The FDE's second word is its distance to the CIE, here the CIE's length and the FDE's own first word.
        let distance = u32::try_from(cie.len() + 4).ok()?;
        bytes.get_mut(cie.len() + 4..cie.len() + 8)?.copy_from_slice(&order.u32_bytes(distance));
        let section_start = start.wrapping_add(fde.fde.0 as u64).wrapping_sub(cie.len() as u64);
        Some(EhFrame { bytes: bytes.into(), section_start: Avma(section_start) })
    }
}

/// Every FDE with a pc-relative start, ordered by it. Stops at the terminator and at the first entry that does not fit.
pub(super) fn fdes_of(frame: &[u8], order: ByteOrder) -> Vec<Fde> {
    let mut fdes = Vec::new();
    let mut last_cie = None;
    let mut at = 0;
    while fdes.len() < MAX_FDES {
        let Some(end) = entry_end(frame, at, order) else {
            break;
        };
        let Some(id) = order.u32(frame, at + 4) else {
            break;
        };
        if id != 0 {
            let cie = usize::try_from(id).ok().and_then(|back| (at + 4).checked_sub(back));
            let known = last_cie.filter(|(start, _, _)| Some(*start) == cie);
            last_cie = known.or_else(|| cie.and_then(|start| cie_at(frame, start, order)));
            fdes.extend(last_cie.and_then(|cie| fde_at(frame, (at, end), cie, order)));
        }
        at = end;
    }
    fdes.sort_by_key(|fde| fde.pc_from_section);
    fdes
}

/// The end of the entry that begins at `at`; `None` for the terminator, a 64-bit entry and one that does not fit.
fn entry_end(frame: &[u8], at: usize, order: ByteOrder) -> Option<usize> {
    let length = usize::try_from(order.u32(frame, at)?).ok()?;
    let end = at.checked_add(4)?.checked_add(length)?;
    (length >= 4 && end <= frame.len()).then_some(end)
}

/// A CIE's start, end, and the encoding of its FDEs' addresses, if it is one of the two known.
fn cie_at(frame: &[u8], start: usize, order: ByteOrder) -> Option<(usize, usize, DwEhPe)> {
    let end = entry_end(frame, start, order).filter(|end| end.saturating_sub(start) <= MAX_CIE_BYTES)?;
    let encoding = address_encoding(frame.get(start..end)?, order)?;
    matches!(encoding, PCREL_SDATA4 | PCREL_SDATA8).then_some((start, end, encoding))
}

/// How the addresses in a CIE's FDEs are encoded, if it says so.
pub(super) fn address_encoding(cie: &[u8], order: ByteOrder) -> Option<DwEhPe> {
    let cie = without_flags(cie);
    // A personality routine's pointer is decoded on the way; where it leads does not matter.
    let bases = BaseAddresses::default().set_eh_frame(0).set_text(0).set_got(0);
    let mut section = gimli::EhFrame::new(&cie, RunTimeEndian::from(order));
    section.set_address_size(8);
    section.cie_from_offset(&bases, 0.into()).ok()?.fde_address_encoding()
}

/// A CIE without the letters of AArch64 that gimli refuses and that have no data: `B` (return addresses are signed with
/// the second key) and `G` (tagged frames).
fn without_flags(cie: &[u8]) -> Cow<'_, [u8]> {
    let letters = cie.get(AUGMENTATION_AT..).unwrap_or_default();
    let letters = &letters[..memchr::memchr(0, letters).unwrap_or(0)];
    let is_flag = |letter: &u8| matches!(letter, b'B' | b'G');
    let flags = letters.iter().filter(|letter| is_flag(letter)).count();
    if flags == 0 {
        return Cow::Borrowed(cie);
    }
    let (head, rest) = (&cie[..AUGMENTATION_AT], &cie[AUGMENTATION_AT + letters.len()..]);
    let kept = letters.iter().filter(|letter| !is_flag(letter));
    // Instructions that do nothing, in their place: the length stays.
    Cow::Owned(head.iter().chain(kept).chain(rest).chain(std::iter::repeat_n(&0, flags)).copied().collect())
}

fn fde_at(frame: &[u8], (at, end): (usize, usize), cie: (usize, usize, DwEhPe), order: ByteOrder) -> Option<Fde> {
    let (cie_start, cie_end, encoding) = cie;
    let (relative, range) = if encoding == PCREL_SDATA4 {
        (i64::from(order.i32(frame, at + 8)?), u64::from(order.u32(frame, at + 12)?))
    } else {
        (order.u64(frame, at + 8)?.cast_signed(), order.u64(frame, at + 16)?)
    };
    let field = u64::try_from(at).ok()?.checked_add(8)?;
    Some(Fde { cie: (cie_start, cie_end), fde: (at, end), pc_from_section: field.wrapping_add_signed(relative), range })
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x7000_0000_0000;
    const SECTION: u64 = START + 0x10_0000;

    /// LLVM ORC's record of one function, whose common entry has so many bytes.
    fn batch(cie_bytes: usize) -> Batch {
        let mut cie = vec![0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1];
        cie.resize(cie_bytes - 4, 0);
        let mut frame = u32::try_from(cie.len()).unwrap().to_le_bytes().to_vec();
        frame.extend(cie);
        let fde_at = frame.len();
        let relative = START.wrapping_sub(SECTION + fde_at as u64 + 8) as u32;
        let words = [20, u32::try_from(fde_at + 4).unwrap(), relative, 16, 0, 0];
        frame.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        let header = [&[1, 0x0c, 0xff, 0xff][..], &SECTION.to_le_bytes()].concat();
        match take_apart(&[&header[..], &frame].concat(), 12, ByteOrder::Little) {
            EhData::Batch(batch) => batch,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_record_that_names_a_function_again_does_not_copy_its_entries_again() {
        let mut batch = batch(24);
        let mut copied = 0;
        for load in 0..60_000 {
            match batch.place(START, 16, ByteOrder::Little) {
                Placed::Exact(frame) => copied += frame.bytes.len(),
                Placed::Rebased(_) => panic!(),
                Placed::Absent => assert!(load > 0, "the first one has it"),
            }
        }
        assert!(copied <= 48 + MAX_CIE_BYTES, "{copied}");
    }

    #[test]
    fn a_common_entry_of_megabytes_is_used_by_no_function() {
        assert!(matches!(batch(MAX_CIE_BYTES).place(START, 16, ByteOrder::Little), Placed::Exact(_)));
        assert!(matches!(batch(15 << 20).place(START, 16, ByteOrder::Little), Placed::Absent));
    }
}
