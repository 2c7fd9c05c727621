//! The machines whose code is unwound.

/// A machine, by whose rules stacks are unwound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Machine {
    /// System V ABI, AMD64 supplement: a call pushes the return address.
    X86_64 = 0,
    /// AAPCS64: a call leaves the return address in the link register.
    Aarch64 = 1,
}

impl Machine {
    /// The one that this code runs on; in a BPF program, the one that it was built for.
    pub const NATIVE: Self =
        if cfg!(any(bpf_target_arch = "aarch64", all(not(target_arch = "bpf"), target_arch = "aarch64"))) {
            Self::Aarch64
        } else {
            Self::X86_64
        };

    /// The machine of an ELF file or of a jitdump's header, if it is one of these.
    pub const fn of_elf(number: u32) -> Option<Self> {
        match number {
            62 => Some(Self::X86_64),
            183 => Some(Self::Aarch64),
            _ => None,
        }
    }

    /// The rule for the first instruction of any function.
    pub const fn entry(self) -> crate::row::Rule {
        match self {
            Self::X86_64 => crate::row::Rule::ENTRY,
            Self::Aarch64 => crate::row::Rule::LINK_ENTRY,
        }
    }
}
