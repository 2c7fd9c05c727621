//! What call frame information means on a machine.

use gimli::{Register, Vendor};
use jitprof_common::machine::Machine;

/// The DWARF numbers of the registers that rows speak of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers {
    pub(super) machine: Machine,
    pub(super) stack_pointer: Register,
    pub(super) frame_pointer: Register,
    pub(super) return_address: Register,
}

impl Registers {
    pub(super) fn of(machine: Machine) -> Self {
        match machine {
            // System V ABI, AMD64 supplement, figure 3.36.
            Machine::X86_64 => Self {
                machine,
                stack_pointer: gimli::X86_64::RSP,
                frame_pointer: gimli::X86_64::RBP,
                return_address: gimli::X86_64::RA,
            },
            // DWARF for the Arm 64-bit architecture, 4.1. The return address' column is the link register.
            Machine::Aarch64 => Self {
                machine,
                stack_pointer: gimli::AArch64::SP,
                frame_pointer: gimli::AArch64::X29,
                return_address: gimli::AArch64::X30,
            },
        }
    }
}

/// Whose own instructions gimli is to decode: AArch64 has one that says that the return address is signed, which rows
/// need not say, since the mask of signatures does no harm to what has none.
pub(super) fn vendor(machine: Machine) -> Vendor {
    match machine {
        Machine::X86_64 => Vendor::Default,
        Machine::Aarch64 => Vendor::AArch64,
    }
}
