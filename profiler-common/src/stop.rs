//! Why the walk of a user stack ended.

/// Why a user stack ends where it does. Every sample carries one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum StopReason {
    /// The tables mark the outermost function: the whole stack.
    EndOfStack = 0,
    /// The sampled task has no user registers: a kernel thread, or an exiting task.
    NoUserRegisters = 1,
    /// The user stack was not asked for.
    NotAsked = 2,
    /// The frame pointer lies below the stack pointer, too far above it, or is not aligned: the code keeps none.
    NoFramePointer = 3,
    /// A stack word could not be read (the page is not resident, or the pointer was none).
    ReadFault = 4,
    /// The return address is zero.
    ZeroReturnAddress = 5,
    /// The return address cannot be code.
    BadReturnAddress = 6,
    /// More frames than a sample holds.
    DepthLimit = 7,
    /// Found by userspace: the return address lies in no executable mapping.
    NotExecutable = 8,
    /// The code's unwind rule is one that rows cannot express.
    UnsupportedRule = 9,
    /// A rule gave a caller's frame that is not above its callee's.
    BadFrame = 10,
    /// Found by userspace: generated code was unwound before its own rules were in the tables.
    StaleRules = 11,
    /// Found by userspace: the part of the stack that the sample brought along ends before the stack does.
    SnapshotEnd = 12,
    /// The frame pointer is zero: the end of a chain, or a register that is used for something else. Where the chain has
    /// reached an entry point, userspace knows that it is the end.
    ZeroFramePointer = 13,
    /// Found by userspace: code in a mapping was unwound by the rules of what had been mapped there before.
    StaleMapping = 14,
    /// Found by userspace: not all is known that was mapped then, and nothing that was at the return address.
    UnknownMapping = 15,
}

impl StopReason {
    /// All reasons, in the order of their codes.
    pub const ALL: [Self; 16] = [
        Self::EndOfStack,
        Self::NoUserRegisters,
        Self::NotAsked,
        Self::NoFramePointer,
        Self::ReadFault,
        Self::ZeroReturnAddress,
        Self::BadReturnAddress,
        Self::DepthLimit,
        Self::NotExecutable,
        Self::UnsupportedRule,
        Self::BadFrame,
        Self::StaleRules,
        Self::SnapshotEnd,
        Self::ZeroFramePointer,
        Self::StaleMapping,
        Self::UnknownMapping,
    ];

    /// The reason with this code, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// A few words for people, as they stand in the account.
    pub fn describe(self) -> &'static str {
        match self {
            Self::EndOfStack => "end of stack",
            Self::NoUserRegisters => "no user registers",
            Self::NotAsked => "user stack not asked for",
            Self::NoFramePointer => "no frame pointer",
            Self::ReadFault => "stack word unreadable",
            Self::ZeroReturnAddress => "return address is zero",
            Self::BadReturnAddress => "return address is no code address",
            Self::DepthLimit => "deeper than a sample holds",
            Self::NotExecutable => "return address outside executable mappings",
            Self::UnsupportedRule => "unwind rule not supported",
            Self::BadFrame => "unwind rule gives no caller above",
            Self::SnapshotEnd => "deeper than the stack snapshot",
            Self::ZeroFramePointer => "frame pointer is zero, behind no known entry point",
            Self::StaleRules => "generated code too new for its unwind rules",
            Self::StaleMapping => "mapped too lately for its unwind rules",
            Self::UnknownMapping => "return address where mappings are not known",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_reasons_are_one_to_one() {
        for (code, reason) in StopReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, code);
            assert_eq!(StopReason::from_code(code as u8), Some(*reason));
        }
        assert_eq!(StopReason::from_code(StopReason::ALL.len() as u8), None);
    }
}
