//! What call frame information means on a machine.

use gimli::Register;

/// The DWARF numbers of the registers that rows speak of, and where a call leaves the return address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) stack_pointer: Register,
    pub(super) frame_pointer: Register,
    pub(super) return_address: Register,
    /// Where rows take the return address to be, relative to the CFA, in bytes.
    pub(super) return_address_at: i64,
}

impl Machine {
    /// System V ABI, AMD64 supplement, figure 3.36; `call` pushes the return address right below the CFA.
    pub(super) const X86_64: Self = Self {
        stack_pointer: gimli::X86_64::RSP,
        frame_pointer: gimli::X86_64::RBP,
        return_address: gimli::X86_64::RA,
        return_address_at: -8,
    };
}
