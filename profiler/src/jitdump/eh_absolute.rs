//! `.eh_frame` sections of many functions as one, which can stand anywhere.
//!
//! The addresses in recorded sections are relative to their own places. Here they become absolute: an FDE grows by 8
//! bytes where it had 4-byte addresses. Pointers to personalities and language data are left as they are, and mean nothing
//! any more; unwinding does not use them.

use std::collections::HashMap;

use super::byte_order::ByteOrder;
use super::eh_frame::{Fde, cie_encoding_at, fdes_of};
use crate::code::EhFrame;

/// `DW_EH_PE_absptr`.
const ABSOLUTE: u8 = 0;
/// Bytes of sections that are joined.
const MAX_BYTES: usize = 64 << 20;

/// The section that is made. 64-bit addresses only.
#[derive(Debug)]
pub(crate) struct AbsoluteFrames {
    order: ByteOrder,
    bytes: Vec<u8>,
    /// Where each CIE begins that was written.
    cies: HashMap<Vec<u8>, usize>,
}

impl AbsoluteFrames {
    pub(crate) fn new(order: ByteOrder) -> Self {
        Self { order, bytes: Vec::new(), cies: HashMap::new() }
    }

    /// Adds the FDEs that begin within `size` bytes from `start` on. Returns how many.
    pub(crate) fn add(&mut self, frame: &EhFrame, start: u64, size: u64) -> usize {
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
        let encoding_at = cie_encoding_at(old_cie)?;
        // A pointer is as long in both, or half as long in the old one.
        let wide = old_cie.get(encoding_at)? & 0x0f == 0x0c;
        let rest = section.get(fde.fde.0 + if wide { 24 } else { 16 }..fde.fde.1)?;
        let mut cie = old_cie.to_vec();
        *cie.get_mut(encoding_at)? = ABSOLUTE;
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
        // DW_CFA_nop.
        self.bytes.resize(at + 4 + length, 0);
        Some(())
    }

    /// The section with its terminator; empty if there are no FDEs.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        if !self.bytes.is_empty() {
            self.bytes.extend([0; 4]);
        }
        self.bytes
    }
}
