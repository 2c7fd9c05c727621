//! DWARF expressions in call frame information: the few forms that compilers and linkers write.
//!
//! | form | written by | meaning |
//! |---|---|---|
//! | `breg7 8, breg16 0, lit15, and, litN, ge, lit3, shl, plus` | ld and lld for `.plt`, N = 11 (9 and 5 for slots with `endbr64` and `bnd`) | `sp + 8 + 8·(pc & 15 ≥ N)` |
//! | `bregR n` | gcc for `rbp` in functions that realign their stack | `R + n` |
//! | `bregR n, deref` | gcc for the CFA in those functions | `*(R + n)` |
//! | `bregR n, deref, plus_uconst 8` | OpenSSL for the CFA in its ciphers, R = `rsp` | `*(R + n) + 8` |

use gimli::Register;

/// What an expression computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// `register + offset`.
    Sum(Register, i64),
    /// `*(register + offset)`.
    Deref(Register, i64),
    /// `*(register + offset) + 8`: the place behind a return address.
    DerefBehind(Register, i64),
    /// A slot of the procedure linkage table whose push ends at this byte of 16.
    Plt(u8),
    /// Anything else.
    Other,
}

const DW_OP_DEREF: u8 = gimli::DW_OP_deref.0;
const DW_OP_PLUS_UCONST: u8 = gimli::DW_OP_plus_uconst.0;
const DW_OP_BREG0: u8 = gimli::DW_OP_breg0.0;
const DW_OP_LIT0: u8 = gimli::DW_OP_lit0.0;

/// What the bytes of an expression compute. Reads at most 12 of them.
pub(super) fn classify(bytes: &[u8]) -> Known {
    if let [0x77, 8, 0x80, 0, 0x3f, 0x1a, literal, 0x2a, 0x33, 0x24, 0x22] = bytes
        && let Some(push_end @ 0..=15) = literal.checked_sub(DW_OP_LIT0)
    {
        return Known::Plt(push_end);
    }
    let Some((operation, rest)) = bytes.split_first() else {
        return Known::Other;
    };
    let Some(number @ 0..=31) = operation.checked_sub(DW_OP_BREG0) else {
        return Known::Other;
    };
    let register = Register(u16::from(number));
    match signed_leb128(rest) {
        Some((offset, [])) => Known::Sum(register, offset),
        Some((offset, [DW_OP_DEREF])) => Known::Deref(register, offset),
        Some((offset, [DW_OP_DEREF, DW_OP_PLUS_UCONST, 8])) => Known::DerefBehind(register, offset),
        _ => Known::Other,
    }
}

/// A value of at most 63 bits, and what follows it.
fn signed_leb128(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let mut value = 0_i64;
    for (index, byte) in bytes.iter().enumerate().take(9) {
        let shift = 7 * u32::try_from(index).ok()?;
        value |= i64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            // The sign is the last group's highest bit.
            let unused = 64 - (shift + 7);
            return Some((value << unused >> unused, bytes.get(index + 1..)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const RBP: Register = Register(6);
    const PLT: [u8; 11] = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];

    #[test]
    fn the_forms_that_compilers_write_are_known() {
        assert_eq!(classify(&PLT), Known::Plt(11));
        assert_eq!(classify(&[0x76, 0]), Known::Sum(RBP, 0));
        assert_eq!(classify(&[0x76, 0x78, 0x06]), Known::Deref(RBP, -8));
        assert_eq!(classify(&[0x76, 0xf8, 0x7e]), Known::Sum(RBP, -136));
        assert_eq!(classify(&[0x77, 0x80, 0x01, 0x06]), Known::Deref(Register(7), 128));
        assert_eq!(classify(&[0x77, 0xf8, 0x00, 0x06, 0x23, 0x08]), Known::DerefBehind(Register(7), 120));
    }

    #[test]
    fn anything_else_is_not() {
        for other in [
            &[][..],
            &[0x06],
            &[0x76],
            &[0x76, 0x80],
            &[0x76, 0, 0x06, 0x06],
            &[0x70 - 1, 0],
            &[0x77, 0, 0x06, 0x23, 0x10],
            &[0x90, 0],
        ] {
            assert_eq!(classify(other), Known::Other, "{other:02x?}");
        }
        assert_eq!(classify(&PLT[..2]), Known::Sum(Register(7), 8));
        for at in 3..PLT.len() {
            assert_eq!(classify(&PLT[..at]), Known::Other);
        }
        assert_eq!(classify(&[[0x76].as_slice(), &[0x80; 12], &[0]].concat()), Known::Other);
    }
}
