//! Unwind rows: how the tables that the BPF program searches are written.
//!
//! A row holds from its address to that of the next row. It is 8 bytes, because the kernel pads the elements of array
//! maps to 8 bytes anyway:
//!
//! ```text
//! bits  0..16  pc_low      low 16 bits of the first address; the 64 KiB page is the search's own key
//! bits 16..24  cfa kind    a `CfaKind` code
//! bits 24..26  fp kind     an `FpKind` code
//! bits 26..32  return      a `ReturnAddress` code: 0 at `cfa - 8`, 1 in the link register, n at
//!                          `cfa + fp offset + 8 * (n - 33)`
//! bits 32..48  cfa offset  in units of 8 bytes, signed; of a saved stack pointer two of 8 bits, of a far one 16, unsigned
//! bits 48..64  fp offset   in units of 8 bytes, signed; without a saved frame pointer, what the return address is near
//! ```
//!
//! On x86-64 a call pushes the return address right below the CFA: the code is 0 and is not looked at. AArch64 code
//! keeps it in the link register until it is saved, mostly beside the frame pointer and anywhere in the frame: a
//! distance from the frame pointer's place says where in 6 bits.
//!
//! Offsets that are no multiple of 8, or beyond 256 KiB, of `sp` on x86-64 768 KiB, are written as `CfaKind::Unsupported`.

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
    /// `cfa = *(sp + offset) + 8`: hand-written code that keeps the caller's stack pointer on its own stack (OpenSSL).
    SpDeref = 8,
    /// `cfa = *(sp + a) + b`: generated code that has moved to another stack, or aligned its own, and keeps the stack
    /// pointer that it came with where it is now. The offset is both: see [`Row::saved_sp_bytes`].
    SpSaved = 9,
    /// `cfa = fp + offset`, and `sp` is on another stack, which may lie above: BEAM's calls on the C stack.
    FpAway = 10,
    /// The caller's frame pointer and the return address are at `fp` as usual, but its stack pointer was saved:
    /// `cfa = *(fp + offset)`, with an offset of -8 and no other: so all three are one read. Interpreters that move arguments
    /// away from where their caller has put them (HotSpot).
    FpSender = 11,
    /// `cfa = parked sp + offset`: `sp` is on another stack, and that of the thread's own one is parked in memory that only its
    /// runtime leads to ([`StackMemory::parked_sp`](crate::unwind::StackMemory::parked_sp)): BEAM's calls on the C stack
    /// from code that keeps no frame pointer.
    Parked = 12,
    /// `cfa = sp + 256 KiB + offset`, which is unsigned: frames that are larger than an offset of [`CfaKind::Sp`] can say. x86-64
    /// only.
    SpFar = 13,
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
    /// Nowhere that is known: the caller's rows must do without it.
    Lost = 3,
}

/// Where the return address is. x86-64 knows only the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReturnAddress {
    /// `ra = *(cfa - 8)`.
    BelowCfa,
    /// `ra = lr`: nothing has been called yet, or everything has been restored.
    LinkRegister,
    /// `ra = *(cfa + fp_offset + 8 * n)`, n from -31 to 30: n slots above the frame pointer's, also where that is not
    /// saved.
    NearFp(i8),
}

/// One row without its address.
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
    /// Where the return address is.
    pub return_address: ReturnAddress,
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
    /// HotSpot's interpreter: `ra = *(fp + 8); fp = *fp`, and the caller's stack pointer at `fp - 8`.
    pub const INTERPRETER: Self = Self { cfa_offset: -1, ..Self::plain(CfaKind::FpSender) };
    /// `push rbp; mov rbp, rsp` or `stp x29, x30, [sp, #-16]!; mov x29, sp` has run: `cfa = fp + 16; fp = *(cfa - 16)`.
    pub const FRAME_POINTER: Self =
        Self { cfa_offset: 2, fp: FpKind::AtCfa, fp_offset: -2, ..Self::plain(CfaKind::Fp) };
    /// The first instruction of any x86-64 function: `cfa = sp + 8`.
    pub const ENTRY: Self = Self { cfa_offset: 1, ..Self::plain(CfaKind::Sp) };
    /// The first instruction of any AArch64 function: `cfa = sp; ra = lr`.
    pub const LINK_ENTRY: Self = Self { return_address: ReturnAddress::LinkRegister, ..Self::plain(CfaKind::Sp) };

    const fn plain(cfa: CfaKind) -> Self {
        Self { cfa, cfa_offset: 0, fp: FpKind::Same, fp_offset: 0, return_address: ReturnAddress::BelowCfa }
    }

    /// A CFA of a register and an offset in bytes.
    pub fn with_cfa(cfa: CfaKind, offset_bytes: i64) -> Self {
        match (scaled(offset_bytes), cfa) {
            (Some(cfa_offset), _) => Self { cfa_offset, ..Self::plain(cfa) },
            (None, CfaKind::Sp) => far(offset_bytes).unwrap_or(Self::UNSUPPORTED),
            (None, _) => Self::UNSUPPORTED,
        }
    }

    /// A CFA of a stack pointer that was saved `slot_bytes` from the present one, and how far the CFA is from it.
    pub fn with_saved_sp(slot_bytes: i64, beyond_bytes: i64) -> Self {
        let low = |bytes| scaled(bytes).and_then(|words| u8::try_from(words).ok());
        match (low(slot_bytes), low(beyond_bytes)) {
            (Some(slot), Some(beyond)) => {
                Self { cfa_offset: i16::from_be_bytes([beyond, slot]), ..Self::plain(CfaKind::SpSaved) }
            }
            _ => Self::UNSUPPORTED,
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

    /// The same rule with the return address in the link register.
    #[must_use]
    pub fn with_link_register(self) -> Self {
        if self.cfa == CfaKind::Unsupported {
            return self;
        }
        Self { return_address: ReturnAddress::LinkRegister, ..self }
    }

    /// The same rule with the return address in memory, at an offset in bytes from the CFA. To be called behind
    /// [`with_fp`](Self::with_fp): rows say how far it is from the frame pointer's place.
    #[must_use]
    pub fn with_return_address(self, offset_bytes: i64) -> Self {
        if self.cfa == CfaKind::Unsupported || offset_bytes == RETURN_BELOW_CFA {
            return self;
        }
        let anchored = match self.fp {
            FpKind::AtCfa => Some(self),
            FpKind::Same | FpKind::Lost => scaled(offset_bytes).map(|fp_offset| Self { fp_offset, ..self }),
            FpKind::AtFp => None,
        };
        anchored.and_then(|rule| rule.with_return_near_fp(offset_bytes)).unwrap_or(Self::UNSUPPORTED)
    }

    fn with_return_near_fp(self, offset_bytes: i64) -> Option<Self> {
        let slots = i64::from(scaled(offset_bytes)?).checked_sub(i64::from(self.fp_offset))?;
        let slots = i8::try_from(slots).ok().filter(|slots| NEAR_FP.contains(slots))?;
        Some(Self { return_address: ReturnAddress::NearFp(slots), ..self })
    }

    /// The row for this rule.
    pub fn encode(self, pc_low: u16) -> u64 {
        let return_address = match self.return_address {
            ReturnAddress::BelowCfa => RETURN_CODE_BELOW_CFA,
            ReturnAddress::LinkRegister => RETURN_CODE_LINK_REGISTER,
            ReturnAddress::NearFp(slots) => slots.wrapping_add(RETURN_CODE_AT_FP).cast_unsigned() & 0x3f,
        };
        u64::from(pc_low)
            | u64::from(self.cfa as u8) << 16
            | u64::from(self.fp as u8 | return_address << 2) << 24
            | u64::from(self.cfa_offset.cast_unsigned()) << 32
            | u64::from(self.fp_offset.cast_unsigned()) << 48
    }
}

/// The only offset of [`CfaKind::FpSender`], in bytes.
pub const SENDER_FROM_FP: i64 = -8;
/// Where a call of x86-64 leaves the return address, in bytes from the CFA.
const RETURN_BELOW_CFA: i64 = -8;
/// Distances from the frame pointer's slot that rows can say.
const NEAR_FP: core::ops::RangeInclusive<i8> = -31..=30;

/// [`Row::return_code`] for [`ReturnAddress::BelowCfa`].
pub const RETURN_CODE_BELOW_CFA: u8 = 0;
/// [`Row::return_code`] for [`ReturnAddress::LinkRegister`].
pub const RETURN_CODE_LINK_REGISTER: u8 = 1;
/// [`Row::return_code`] for [`ReturnAddress::NearFp`] with a distance of 0.
const RETURN_CODE_AT_FP: i8 = 33;

/// Bytes from which on [`CfaKind::SpFar`] counts.
pub const FAR_BYTES: u64 = 1 << 18;

fn far(offset_bytes: i64) -> Option<Rule> {
    let beyond = u64::try_from(offset_bytes).ok()?.checked_sub(FAR_BYTES).filter(|beyond| beyond.is_multiple_of(8))?;
    let cfa_offset = u16::try_from(beyond / 8).ok()?.cast_signed();
    Some(Rule { cfa_offset, ..Rule::plain(CfaKind::SpFar) })
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

    /// Whether there is no rule, so that the frame pointer is tried.
    #[inline(always)]
    pub fn is_gap(self) -> bool {
        self.cfa_kind() == CfaKind::Gap as u8
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
        (self.0 >> 24) as u8 & 3
    }

    /// A `ReturnAddress` code: [`RETURN_CODE_BELOW_CFA`], [`RETURN_CODE_LINK_REGISTER`], or another for a place whose
    /// offset is [`return_offset_bytes`](Self::return_offset_bytes).
    #[inline(always)]
    pub fn return_code(self) -> u8 {
        (self.0 >> 26) as u8 & 0x3f
    }

    /// The return address' offset from the CFA in bytes, for codes of [`ReturnAddress::NearFp`].
    #[inline(always)]
    pub fn return_offset_bytes(self) -> i64 {
        self.fp_offset_bytes() + (i64::from(self.return_code()) - i64::from(RETURN_CODE_AT_FP)) * 8
    }

    /// Where the return address is.
    pub fn return_address(self) -> ReturnAddress {
        match self.return_code() {
            RETURN_CODE_BELOW_CFA => ReturnAddress::BelowCfa,
            RETURN_CODE_LINK_REGISTER => ReturnAddress::LinkRegister,
            code => ReturnAddress::NearFp(code.cast_signed() - RETURN_CODE_AT_FP),
        }
    }

    /// The CFA's offset in bytes.
    #[inline(always)]
    pub fn cfa_offset_bytes(self) -> i64 {
        i64::from((self.0 >> 32) as u16 as i16) * 8
    }

    /// The same for [`CfaKind::SpFar`].
    #[inline(always)]
    pub fn far_offset_bytes(self) -> u64 {
        FAR_BYTES + u64::from((self.0 >> 32) as u16) * 8
    }

    /// For [`CfaKind::SpSaved`]: the saved stack pointer's offset from the present one, and the CFA's from what was saved.
    #[inline(always)]
    pub fn saved_sp_bytes(self) -> (u64, u64) {
        (u64::from((self.0 >> 32) as u8) * 8, u64::from((self.0 >> 40) as u8) * 8)
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
            Rule { fp: FpKind::Lost, ..Rule::with_cfa(CfaKind::FpAway, 16) },
            Rule::INTERPRETER,
            Rule::with_cfa(CfaKind::Sp, 32_760 * 8).with_fp(FpKind::AtCfa, -16),
            Rule::with_cfa(CfaKind::FpDeref, -8).with_fp(FpKind::AtFp, 0),
            Rule::LINK_ENTRY,
            Rule::with_cfa(CfaKind::Sp, 0x1000).with_fp(FpKind::AtCfa, -0x1000).with_return_address(-0xff8),
            Rule::with_cfa(CfaKind::Sp, 64).with_fp(FpKind::AtCfa, -8).with_return_address(-256),
            Rule::with_cfa(CfaKind::Sp, 512).with_fp(FpKind::AtCfa, -256).with_return_address(-16),
            Rule::with_cfa(CfaKind::Sp, 32).with_return_address(-32),
            Rule::with_cfa(CfaKind::Sp, 32).with_fp(FpKind::AtCfa, -24).with_link_register(),
        ] {
            assert_ne!(rule, Rule::UNSUPPORTED);
            let row = Row(rule.encode(0xfedc));
            assert_eq!(row.pc_low(), 0xfedc);
            assert_eq!(row.cfa_kind(), rule.cfa as u8);
            assert_eq!(row.fp_kind(), rule.fp as u8);
            assert_eq!(row.cfa_offset_bytes(), i64::from(rule.cfa_offset) * 8);
            assert_eq!(row.fp_offset_bytes(), i64::from(rule.fp_offset) * 8);
            assert_eq!(row.return_address(), rule.return_address);
        }
    }

    #[test]
    fn a_frame_of_half_a_megabyte_has_a_rule() {
        // The largest that an offset of `sp` says, that of a function of rustc 1.95, and the largest of all.
        for (bytes, kind) in [(32_767 * 8, 1), (8 << 15, 13), (540_080, 13), ((24 << 15) - 8, 13)] {
            let rule = Rule::with_cfa(CfaKind::Sp, bytes).with_fp(FpKind::AtCfa, -16);
            let row = Row(rule.encode(0xfedc));
            let said = if kind == 13 { row.far_offset_bytes().cast_signed() } else { row.cfa_offset_bytes() };
            assert_eq!((row.cfa_kind(), said, row.fp_offset_bytes()), (kind, bytes, -16));
        }
    }

    #[test]
    fn a_saved_stack_pointer_has_two_offsets() {
        let rule = Rule::with_saved_sp(0x98, 2040).with_fp(FpKind::AtCfa, -24);
        let row = Row(rule.encode(7));
        assert_eq!((row.cfa_kind(), row.saved_sp_bytes(), row.fp_offset_bytes()), (9, (0x98, 2040), -24));
        for (slot, beyond) in [(-8, 8), (8, -8), (2048, 8), (8, 2048), (4, 8), (8, 12)] {
            assert_eq!(Rule::with_saved_sp(slot, beyond), Rule::UNSUPPORTED);
        }
    }

    #[test]
    fn the_return_addresss_offset_is_found_in_the_row() {
        for (rule, expected) in [
            (Rule::with_cfa(CfaKind::Sp, 0x1000).with_fp(FpKind::AtCfa, -0x1000).with_return_address(-0xff8), -0xff8),
            (Rule::with_cfa(CfaKind::Sp, 64).with_fp(FpKind::AtCfa, -8).with_return_address(-256), -256),
            (Rule::with_cfa(CfaKind::Sp, 64).with_fp(FpKind::AtCfa, -256).with_return_address(-16), -16),
            (Rule::with_cfa(CfaKind::Sp, 32).with_return_address(-32), -32),
        ] {
            assert_eq!(Row(rule.encode(0)).return_offset_bytes(), expected);
        }
    }

    #[test]
    fn rows_of_x86_have_no_return_code() {
        for rule in
            [Rule::FRAME_POINTER, Rule::ENTRY, Rule::PLT, Rule::with_cfa(CfaKind::Sp, 24).with_return_address(-8)]
        {
            assert_eq!(Row(rule.encode(0)).return_code(), RETURN_CODE_BELOW_CFA);
        }
    }

    #[test]
    fn what_does_not_fit_is_unsupported() {
        assert_eq!(Rule::with_cfa(CfaKind::Sp, 12), Rule::UNSUPPORTED);
        for kind in [CfaKind::Fp, CfaKind::FpDeref, CfaKind::SpDeref] {
            assert_eq!(Rule::with_cfa(kind, 8 << 15), Rule::UNSUPPORTED);
        }
        for wrong in [(8 << 15) + 4, 24 << 15, i64::MAX - 7, -(8 << 15) - 8] {
            assert_eq!(Rule::with_cfa(CfaKind::Sp, wrong), Rule::UNSUPPORTED, "{wrong}");
        }
        assert_eq!(Rule::ENTRY.with_fp(FpKind::AtCfa, 4), Rule::UNSUPPORTED);
        let saved = Rule::with_cfa(CfaKind::Sp, 0x1000).with_fp(FpKind::AtCfa, -0x1000);
        assert_eq!(saved.with_return_address(-0x1000 + 31 * 8), Rule::UNSUPPORTED);
        assert_eq!(saved.with_return_address(-0x1000 - 32 * 8), Rule::UNSUPPORTED);
        assert_eq!(Rule::UNSUPPORTED.with_link_register(), Rule::UNSUPPORTED);
        assert_eq!(Rule::UNSUPPORTED.with_return_address(-16), Rule::UNSUPPORTED);
    }
}
