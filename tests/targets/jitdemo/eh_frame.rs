//! `.eh_frame` and `.eh_frame_hdr` for one function, laid out as V8, CPython and perf do.
//!
//! ```text
//! code │ pad to 8 │ CIE │ FDE │ .eh_frame_hdr
//!      └──────────┴─────┴─────┴───────────────── pc-relative fields count on this distance
//! ```
//!
//! The jitdump specification says that the header comes first; every producer but LLVM's ORC puts it last.

use dwarf::*;

/// The DWARF names of what is used here.
#[rustfmt::skip]
mod dwarf {
    pub(super) const DW_CFA_ADVANCE_LOC: u8 = 0x40;      // | delta
    pub(super) const DW_CFA_OFFSET: u8 = 0x80;           // | register
    pub(super) const DW_CFA_RESTORE: u8 = 0xc0;          // | register
    pub(super) const DW_CFA_NOP: u8 = 0x00;
    pub(super) const DW_CFA_ADVANCE_LOC1: u8 = 0x02;
    pub(super) const DW_CFA_DEF_CFA: u8 = 0x0c;
    pub(super) const DW_CFA_DEF_CFA_REGISTER: u8 = 0x0d;
    pub(super) const DW_CFA_DEF_CFA_OFFSET: u8 = 0x0e;
    pub(super) const PCREL_SDATA4: u8 = 0x1b;
    pub(super) const UDATA4: u8 = 0x03;
    pub(super) const DATAREL_SDATA4: u8 = 0x3b;
}

/// DWARF's number of a register.
pub(crate) type Register = u8;

#[cfg(target_arch = "x86_64")]
mod machine {
    use super::{DW_CFA_DEF_CFA, DW_CFA_OFFSET, Register};

    pub(crate) const RBX: Register = 3;
    pub(crate) const RBP: Register = 6;
    pub(crate) const RSP: Register = 7;
    pub(super) const RETURN_ADDRESS: Register = 16;
    /// On entry CFA = rsp + 8, and the return address is at CFA - 8.
    pub(super) const ON_ENTRY: &[u8] = &[DW_CFA_DEF_CFA, RSP, 8, DW_CFA_OFFSET | RETURN_ADDRESS, 1];
}

#[cfg(target_arch = "aarch64")]
mod machine {
    use super::{DW_CFA_DEF_CFA, Register};

    pub(crate) const X19: Register = 19;
    pub(crate) const X29: Register = 29;
    pub(crate) const X30: Register = 30;
    pub(crate) const SP: Register = 31;
    pub(super) const RETURN_ADDRESS: Register = X30;
    /// On entry CFA = sp, and the return address is in its register.
    pub(super) const ON_ENTRY: &[u8] = &[DW_CFA_DEF_CFA, SP, 0];
}

pub(crate) use machine::*;

/// Size of the `.eh_frame_hdr` with its one entry.
pub(crate) const HEADER_SIZE: usize = 20;
/// Stack slots are 8 bytes and grow down: the data alignment factor is -8.
const SLOT: u8 = 8;

/// What changes along a function. Offsets are the first byte for which the change holds, and must not descend.
#[derive(Default)]
pub(crate) struct Unwinding {
    instructions: Vec<u8>,
    at: usize,
}

impl Unwinding {
    /// CFA = register + offset
    pub(crate) fn cfa(&mut self, at: usize, register: Register, offset: u32) {
        self.advance(at);
        self.instructions.extend([DW_CFA_DEF_CFA, register]);
        self.unsigned(offset);
    }

    /// CFA = register + the offset that holds so far
    pub(crate) fn cfa_register(&mut self, at: usize, register: Register) {
        self.advance(at);
        self.instructions.extend([DW_CFA_DEF_CFA_REGISTER, register]);
    }

    /// CFA = the register that holds so far + offset
    pub(crate) fn cfa_offset(&mut self, at: usize, offset: u32) {
        self.advance(at);
        self.instructions.push(DW_CFA_DEF_CFA_OFFSET);
        self.unsigned(offset);
    }

    /// The caller's register = *(CFA - below)
    pub(crate) fn saved_only(&mut self, at: usize, register: Register, below: u8) {
        self.advance(at);
        self.instructions.extend([DW_CFA_OFFSET | register, below / SLOT]);
    }

    /// A push: (CFA, the caller's register) = (sp + below, *(CFA - below))
    pub(crate) fn saved(&mut self, at: usize, register: Register, below: u8) {
        self.cfa_offset(at, below.into());
        self.saved_only(at, register, below);
    }

    /// The register holds the caller's value again.
    pub(crate) fn restored(&mut self, at: usize, register: Register) {
        self.advance(at);
        self.instructions.push(DW_CFA_RESTORE | register);
    }

    /// ULEB128
    fn unsigned(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.instructions.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.instructions.push(value.to_le_bytes()[0]);
    }

    fn advance(&mut self, at: usize) {
        let mut delta = at.checked_sub(self.at).expect("invariant: offsets do not descend");
        self.at = at;
        while delta > 0 {
            let step = u8::try_from(delta.min(255)).expect("invariant: at most 255");
            match step {
                1..=63 => self.instructions.push(DW_CFA_ADVANCE_LOC | step),
                _ => self.instructions.extend([DW_CFA_ADVANCE_LOC1, step]),
            }
            delta -= usize::from(step);
        }
    }

    /// The bytes that follow code of `code_size` bytes, padded to 8: `.eh_frame`, then `.eh_frame_hdr`.
    pub(crate) fn section(&self, code_size: usize) -> Vec<u8> {
        let mut bytes = common_information();
        let common_size = bytes.len();
        let start = code_size.next_multiple_of(8);

        let mut body = Vec::new();
        body.extend(field(common_size + 4).to_le_bytes()); // from this field back to the CIE
        body.extend((-field(start + common_size + 8)).to_le_bytes()); // from this field back to the code
        body.extend(field(code_size).to_le_bytes());
        body.push(0); // no augmentation data
        body.extend(&self.instructions);
        push_entry(&mut bytes, &body);

        let frame_size = bytes.len();
        bytes.extend([1, PCREL_SDATA4, UDATA4, DATAREL_SDATA4]);
        bytes.extend((-field(frame_size + 4)).to_le_bytes()); // .eh_frame, from this field
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend((-field(start + frame_size)).to_le_bytes()); // the code, from the header
        bytes.extend((-field(frame_size - common_size)).to_le_bytes()); // its FDE, from the header
        bytes
    }
}

/// The CIE, which says where things are on entry.
fn common_information() -> Vec<u8> {
    let mut body = 0_u32.to_le_bytes().to_vec();
    body.push(1); // version
    body.extend(b"zR\0");
    body.extend([1, 0x78, RETURN_ADDRESS]); // code alignment 1, data alignment -8 as SLEB128
    body.extend([1, PCREL_SDATA4]);
    body.extend(ON_ENTRY);
    let mut bytes = Vec::new();
    push_entry(&mut bytes, &body);
    bytes
}

/// Appends a CIE or FDE with its length, padded so that the next one is aligned to 8.
fn push_entry(bytes: &mut Vec<u8>, body: &[u8]) {
    let length = (body.len() + 4).next_multiple_of(8) - 4;
    bytes.extend(field(length).to_le_bytes());
    bytes.extend(body);
    bytes.resize(bytes.len() + length - body.len(), DW_CFA_NOP);
}

fn field(value: usize) -> i32 {
    i32::try_from(value).expect("invariant: functions are far below 2 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn i32_at(bytes: &[u8], at: usize) -> i32 {
        i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn pc_relative_fields_lead_to_the_code_and_the_section() {
        for code_size in [1, 8, 61, 64] {
            let bytes = Unwinding::default().section(code_size);
            let section = code_size.next_multiple_of(8) as i32;
            let header = (bytes.len() - HEADER_SIZE) as i32;
            let fde = i32_at(&bytes, 0) + 4;
            let pc_begin = fde + 8;
            assert_eq!(section + pc_begin + i32_at(&bytes, pc_begin as usize), 0, "the FDE starts at the code");
            assert_eq!(i32_at(&bytes, pc_begin as usize + 4) as usize, code_size);
            assert_eq!(header + 4 + i32_at(&bytes, header as usize + 4), 0, "the header points at .eh_frame");
            assert_eq!(section + header + i32_at(&bytes, header as usize + 12), 0, "its entry starts at the code");
            assert_eq!(header + i32_at(&bytes, header as usize + 16), fde, "and points at the FDE");
        }
    }

    #[test]
    fn entries_keep_the_section_aligned_to_8() {
        let mut unwinding = Unwinding::default();
        for at in [1, 5, 300, 301] {
            unwinding.cfa_offset(at, 16);
            assert_eq!((unwinding.section(400).len() - HEADER_SIZE) % 8, 0);
        }
    }

    #[test]
    fn a_long_way_is_advanced_in_steps_that_add_up() {
        let mut unwinding = Unwinding::default();
        unwinding.cfa_offset(300, 16);
        assert_eq!(
            unwinding.instructions,
            [DW_CFA_ADVANCE_LOC1, 255, DW_CFA_ADVANCE_LOC | 45, DW_CFA_DEF_CFA_OFFSET, 16]
        );
    }
}
