//! Unwind rows: how the tables that the kernel part searches are written.
//!
//! A row holds from its address to that of the next row. It is 8 bytes, because the kernel pads the elements of array
//! maps to 8 bytes anyway:
//!
//! ```text
//! bits  0..16  pc_low      low 16 bits of the first address; the 64 KiB page is the search's own key
//! bits 16..24  cfa kind    a `CfaKind` code
//! bits 24..32  fp kind     an `FpKind` code
//! bits 32..48  cfa offset  in units of 8 bytes, signed
//! bits 48..64  fp offset   in units of 8 bytes, signed
//! ```
//!
//! Offsets that are no multiple of 8, or beyond 256 KiB, are written as `CfaKind::Unsupported`.

/// How the canonical frame address is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum CfaKind {
    /// No rows cover this code: the frame pointer, checked.
    Gap = 0,
    /// `cfa = sp + offset`.
    Sp = 1,
    /// `cfa = fp + offset`.
    Fp = 2,
    /// `cfa = *(fp + offset)`: functions that realign their stack.
    FpDeref = 3,
    /// A slot of the procedure linkage table: `cfa = sp + 8`, and 8 more behind the push at 11 of 16 bytes.
    Plt = 4,
    /// A signal frame: all registers are in the context that the kernel has left at `sp`.
    Signal = 5,
    /// The outermost function: it has no caller.
    Outermost = 6,
    /// A rule that rows cannot express.
    Unsupported = 7,
}

/// Where the caller's frame pointer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum FpKind {
    /// Still in its register.
    Same = 0,
    /// `fp = *(cfa + offset)`.
    AtCfa = 1,
    /// `fp = *(fp + offset)`.
    AtFp = 2,
}

/// One row without its address. The return address is at `cfa - 8` for all kinds that have a CFA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule {
    /// How the CFA is found.
    pub cfa: CfaKind,
    /// Its offset in units of 8 bytes.
    pub cfa_offset: i16,
    /// Where the caller's frame pointer is.
    pub fp: FpKind,
    /// Its offset in units of 8 bytes.
    pub fp_offset: i16,
}

impl Rule {
    /// No rows cover this code.
    pub const GAP: Self = Self::plain(CfaKind::Gap);
    /// Announced code without rows: walked as [`Self::GAP`] is, and no rows will come.
    pub const SETTLED_GAP: Self = Self { cfa_offset: 1, ..Self::GAP };
    /// It has no caller.
    pub const OUTERMOST: Self = Self::plain(CfaKind::Outermost);
    /// It cannot be expressed.
    pub const UNSUPPORTED: Self = Self::plain(CfaKind::Unsupported);
    /// A slot of the procedure linkage table.
    pub const PLT: Self = Self::plain(CfaKind::Plt);
    /// A signal frame.
    pub const SIGNAL: Self = Self::plain(CfaKind::Signal);
    /// `push rbp; mov rbp, rsp` has run: `cfa = fp + 16; fp = *(cfa - 16)`.
    pub const FRAME_POINTER: Self = Self { cfa: CfaKind::Fp, cfa_offset: 2, fp: FpKind::AtCfa, fp_offset: -2 };
    /// The first instruction of any function: `cfa = sp + 8`.
    pub const ENTRY: Self = Self { cfa: CfaKind::Sp, cfa_offset: 1, fp: FpKind::Same, fp_offset: 0 };

    const fn plain(cfa: CfaKind) -> Self {
        Self { cfa, cfa_offset: 0, fp: FpKind::Same, fp_offset: 0 }
    }

    /// A CFA of a register and an offset in bytes.
    pub fn with_cfa(cfa: CfaKind, offset_bytes: i64) -> Self {
        match scaled(offset_bytes) {
            Some(cfa_offset) => Self { cfa_offset, ..Self::plain(cfa) },
            None => Self::UNSUPPORTED,
        }
    }

    /// The same rule with the caller's frame pointer saved in memory, at an offset in bytes.
    #[must_use]
    pub fn with_fp(self, fp: FpKind, offset_bytes: i64) -> Self {
        match scaled(offset_bytes) {
            Some(fp_offset) => Self { fp, fp_offset, ..self },
            None => Self::UNSUPPORTED,
        }
    }

    /// The row for this rule.
    pub fn encode(self, pc_low: u16) -> u64 {
        u64::from(pc_low)
            | u64::from(self.cfa as u8) << 16
            | u64::from(self.fp as u8) << 24
            | u64::from(self.cfa_offset.cast_unsigned()) << 32
            | u64::from(self.fp_offset.cast_unsigned()) << 48
    }
}

fn scaled(offset_bytes: i64) -> Option<i16> {
    if offset_bytes % 8 != 0 { None } else { i16::try_from(offset_bytes / 8).ok() }
}

/// An encoded row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row(pub u64);

impl Row {
    /// No rows cover the code.
    pub const GAP: Self = Self(0);

    /// Whether nothing has been announced about the code.
    #[inline(always)]
    pub fn is_unknown(self) -> bool {
        self.0 >> 16 == 0
    }

    /// Low 16 bits of the first address that the row holds for.
    #[inline(always)]
    pub fn pc_low(self) -> u16 {
        self.0 as u16
    }

    /// A `CfaKind` code.
    #[inline(always)]
    pub fn cfa_kind(self) -> u8 {
        (self.0 >> 16) as u8
    }

    /// An `FpKind` code.
    #[inline(always)]
    pub fn fp_kind(self) -> u8 {
        (self.0 >> 24) as u8
    }

    /// The CFA's offset in bytes.
    #[inline(always)]
    pub fn cfa_offset_bytes(self) -> i64 {
        i64::from((self.0 >> 32) as u16 as i16) * 8
    }

    /// The saved frame pointer's offset in bytes.
    #[inline(always)]
    pub fn fp_offset_bytes(self) -> i64 {
        i64::from((self.0 >> 48) as u16 as i16) * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_survives_its_encoding() {
        for rule in [
            Rule::FRAME_POINTER,
            Rule::ENTRY,
            Rule::with_cfa(CfaKind::Sp, 32_760 * 8).with_fp(FpKind::AtCfa, -16),
            Rule::with_cfa(CfaKind::FpDeref, -8).with_fp(FpKind::AtFp, 0),
        ] {
            let row = Row(rule.encode(0xfedc));
            assert_eq!(row.pc_low(), 0xfedc);
            assert_eq!(row.cfa_kind(), rule.cfa as u8);
            assert_eq!(row.fp_kind(), rule.fp as u8);
            assert_eq!(row.cfa_offset_bytes(), i64::from(rule.cfa_offset) * 8);
            assert_eq!(row.fp_offset_bytes(), i64::from(rule.fp_offset) * 8);
        }
    }

    #[test]
    fn what_does_not_fit_is_unsupported() {
        assert_eq!(Rule::with_cfa(CfaKind::Sp, 12), Rule::UNSUPPORTED);
        assert_eq!(Rule::with_cfa(CfaKind::Sp, 8 << 15), Rule::UNSUPPORTED);
        assert_eq!(Rule::ENTRY.with_fp(FpKind::AtCfa, 4), Rule::UNSUPPORTED);
    }
}
