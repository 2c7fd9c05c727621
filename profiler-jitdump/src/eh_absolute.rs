//! `.eh_frame` sections of many functions as one, which can stand anywhere.
//!
//! The addresses in recorded sections are relative to their own places. Here they become absolute: an FDE grows by 8
//! bytes where it had 4-byte addresses. Pointers to personalities and language data are left as they are, and mean nothing
//! any more; unwinding does not use them.

use std::collections::HashMap;

use gimli::{DW_EH_PE_absptr, DW_EH_PE_sdata8};

use super::byte_order::ByteOrder;
use super::eh_frame::{Fde, address_encoding, fdes_of};
use crate::code::EhFrame;

/// Bytes of sections that are joined.
const MAX_BYTES: usize = 64 << 20;
/// How far into a CIE its encodings are looked for. They stand behind the augmentation's letters, a few numbers and a
/// pointer: within 40 bytes in anything that a compiler writes.
const MAX_HEAD_BYTES: usize = 128;

/// The section that is made. 64-bit addresses only.
#[derive(Debug)]
pub struct AbsoluteFrames {
    order: ByteOrder,
    bytes: Vec<u8>,
    /// Where each CIE begins that was written.
    cies: HashMap<Vec<u8>, usize>,
}

impl AbsoluteFrames {
    /// Without any entry yet.
    pub fn new(order: ByteOrder) -> Self {
        Self { order, bytes: Vec::new(), cies: HashMap::new() }
    }

    /// Adds the FDEs that begin within `size` bytes from `start` on. Returns how many.
    pub fn add(&mut self, frame: &EhFrame, start: u64, size: u64) -> usize {
        if self.bytes.len() >= MAX_BYTES {
            return 0;
        }
        let mut added = 0;
        for fde in fdes_of(&frame.bytes, self.order) {
            let pc = frame.section_start.0.wrapping_add(fde.pc_from_section);
            if pc.checked_sub(start).is_some_and(|offset| offset < size) {
                added += usize::from(self.add_fde(&frame.bytes, &fde, pc).is_some());
            }
        }
        added
    }

    fn add_fde(&mut self, section: &[u8], fde: &Fde, pc: u64) -> Option<()> {
        let old_cie = section.get(fde.cie.0..fde.cie.1)?;
        // A pointer is as long in both, or half as long in the old one.
        let wide = address_encoding(old_cie, self.order)?.format() == DW_EH_PE_sdata8;
        let rest = section.get(fde.fde.0 + if wide { 24 } else { 16 }..fde.fde.1)?;
        let cie = with_absolute_addresses(old_cie, self.order)?;
        let cie_start = match self.cies.get(&cie) {
            Some(start) => *start,
            None => {
                let start = self.bytes.len();
                self.bytes.extend_from_slice(&cie);
                self.cies.insert(cie, start);
                start
            }
        };
        let at = self.bytes.len();
        let length = (4 + 16 + rest.len()).next_multiple_of(4);
        let order = self.order;
        self.bytes.extend(order.u32_bytes(u32::try_from(length).ok()?));
        self.bytes.extend(order.u32_bytes(u32::try_from(at + 4 - cie_start).ok()?));
        self.bytes.extend(order.u64_bytes(pc));
        self.bytes.extend(order.u64_bytes(fde.range));
        self.bytes.extend_from_slice(rest);
        // Zeros are DW_CFA_nop.
        self.bytes.resize(at + 4 + length, 0);
        Some(())
    }

    /// The section with its terminator; empty if there are no FDEs.
    pub fn finish(mut self) -> Vec<u8> {
        if !self.bytes.is_empty() {
            self.bytes.extend([0; 4]);
        }
        self.bytes
    }
}

/// The same CIE for FDEs with absolute addresses. Which encoding a CIE names is gimli's to say, and not where: it is the
/// byte with which the answer changes.
fn with_absolute_addresses(cie: &[u8], order: ByteOrder) -> Option<Vec<u8>> {
    let encoding = address_encoding(cie, order)?;
    let mut changed = cie.to_vec();
    for at in 0..changed.len().min(MAX_HEAD_BYTES) {
        if changed[at] == encoding.0 {
            changed[at] = DW_EH_PE_absptr.0;
            if address_encoding(&changed, order) == Some(DW_EH_PE_absptr) {
                return Some(changed);
            }
            changed[at] = encoding.0;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A CIE with this augmentation and its data, and where the data begins.
    fn cie(letters: &[u8], data: &[u8]) -> (Vec<u8>, usize) {
        let mut rest = vec![1];
        rest.extend(letters);
        // NUL; alignments of 1 and -8; the return address in column 16; the length of what follows.
        rest.extend([0, 1, 0x78, 16, u8::try_from(data.len()).unwrap()]);
        let data_at = 8 + rest.len();
        rest.extend(data);
        rest.extend([0x0c, 7, 8, 0x90, 1]);
        rest.resize(rest.len().next_multiple_of(4), 0);
        let mut bytes = u32::try_from(4 + rest.len()).unwrap().to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(rest);
        (bytes, data_at)
    }

    /// Letters, their data, and which byte of it is the encoding of addresses.
    const KNOWN: [(&[u8], &[u8], usize); 8] = [
        (b"zR", &[0x1b], 0),
        (b"zRS", &[0x1c], 0),
        (b"zRB", &[0x1b], 0),
        (b"zLR", &[0xff, 0x1b], 1),
        (b"zLR", &[0x1b, 0x1b], 1),
        (b"zPLR", &[0x9b, 1, 2, 3, 4, 0x1b, 0x1b], 6),
        (b"zPLR", &[0x1b, 0x1b, 0x1b, 0x1b, 0x1b, 0x1b, 0x1b], 6),
        (b"zRPL", &[0x1b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0x1b], 0),
    ];

    #[test]
    fn nothing_but_the_encoding_of_addresses_is_changed() {
        for (letters, data, place) in KNOWN {
            let (cie, data_at) = cie(letters, data);
            let shown = String::from_utf8_lossy(letters);
            assert_eq!(address_encoding(&cie, ByteOrder::Little).map(|found| found.0), Some(data[place]), "{shown}");
            let mut expected = cie.clone();
            expected[data_at + place] = 0;
            assert_eq!(with_absolute_addresses(&cie, ByteOrder::Little), Some(expected), "{shown}");
        }
    }

    #[test]
    fn without_an_encoding_there_is_none_to_change() {
        for (letters, data) in [(&b""[..], &[][..]), (b"z", &[]), (b"zX", &[0x1b]), (b"R", &[0x1b]), (b"zR", &[])] {
            let (cie, _) = cie(letters, data);
            assert_eq!(address_encoding(&cie, ByteOrder::Little), None, "{letters:?}");
            assert_eq!(with_absolute_addresses(&cie, ByteOrder::Little), None, "{letters:?}");
        }
    }

    #[test]
    fn a_cie_cut_or_changed_at_any_byte_is_survived() {
        for (letters, data, _) in KNOWN {
            let (cie, _) = cie(letters, data);
            for at in 0..cie.len() {
                with_absolute_addresses(&cie[..at], ByteOrder::Little);
                for flip in 1..=255 {
                    let mut damaged = cie.clone();
                    damaged[at] ^= flip;
                    let absolute = with_absolute_addresses(&damaged, ByteOrder::Little);
                    assert!(absolute.is_none_or(|absolute| absolute.len() == cie.len()));
                }
            }
        }
    }
}
