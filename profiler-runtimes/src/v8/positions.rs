//! V8's tables of source positions: numbers of variable length, each the difference to the one before.

/// No position before the first entry: an entry can lie at the function's very start.
const BEFORE_THE_FIRST: i64 = -1;

/// A place in a script, possibly within a function that was inlined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawPosition(pub(super) u64);

impl RawPosition {
    /// The character of the script; none for V8's own code, and where nothing is known.
    pub(super) fn character(self) -> Option<u32> {
        let external = self.0 & 1 == 1;
        let plus_one = u32::try_from((self.0 >> 1) & 0x3fff_ffff).unwrap_or(0);
        if external { None } else { plus_one.checked_sub(1) }
    }

    /// Which of the inlining positions says where the function was inlined.
    pub(super) fn inlining(self) -> Option<usize> {
        usize::from(u16::try_from((self.0 >> 31) & 0xffff).unwrap_or(0)).checked_sub(1)
    }
}

/// The entry that holds for an offset within the code: the last that does not lie behind it.
///
/// A damaged table ends where it is damaged.
pub(super) fn position_at(table: &[u8], steps: Steps, offset: i64) -> Option<RawPosition> {
    entries(table, steps).take_while(|(at, _)| *at <= offset).last().map(|(_, position)| position)
}

/// How a table has the step from one offset within the code to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steps {
    /// As it is where a statement begins, else as its complement.
    Signed,
    /// Above two bits, of which one says whether a statement begins.
    Shifted,
}

impl Steps {
    fn read(self, rest: &mut &[u8]) -> Option<i64> {
        match self {
            Self::Signed => {
                let step = signed(rest)?;
                Some(if step >= 0 { step } else { !step })
            }
            Self::Shifted => i64::try_from(unsigned(rest)? >> 2).ok(),
        }
    }
}

/// Offsets within the code and their positions.
pub(super) fn entries(table: &[u8], steps: Steps) -> impl Iterator<Item = (i64, RawPosition)> + '_ {
    let mut rest = table;
    let (mut at, mut position) = (BEFORE_THE_FIRST, 0_i64);
    std::iter::from_fn(move || {
        at = at.checked_add(steps.read(&mut rest)?)?;
        position = position.wrapping_add(signed(&mut rest)?);
        Some((at, RawPosition(position.cast_unsigned())))
    })
}

/// A number without a sign, seven bits a byte.
pub(super) fn unsigned(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// A number whose lowest bit is its sign.
fn signed(rest: &mut &[u8]) -> Option<i64> {
    let value = unsigned(rest)?;
    Some((value >> 1).cast_signed() ^ -((value & 1).cast_signed()))
}

/// The bytecode that an offset within baseline code belongs to: `None` for the code before the first.
///
/// The table has the length of each bytecode's code, after that of the code before them. `call` says that the offset is
/// where a call returns to: it belongs to the bytecode that ends there.
pub(super) fn bytecode_at(
    table: &[u8],
    bytecodes: &[u8],
    sizes: &[Vec<u8>; 3],
    offset: u64,
    call: bool,
) -> Result<Option<usize>, super::Unknown> {
    const WHAT: super::Unknown = super::Unknown::No("place in the baseline code");
    let mut rest = table;
    let within = |end: u64| if call { offset <= end } else { offset < end };
    let mut end = unsigned(&mut rest).ok_or(WHAT)?;
    if within(end) {
        return Ok(None);
    }
    let mut bytecode = 0;
    while bytecode < bytecodes.len() {
        end = end.checked_add(unsigned(&mut rest).ok_or(WHAT)?).ok_or(WHAT)?;
        if within(end) {
            return Ok(Some(bytecode));
        }
        bytecode += bytecode_size(bytecodes, bytecode, sizes).ok_or(WHAT)?;
    }
    Err(WHAT)
}

/// Bytes of a bytecode with its operands and the prefix that scales them.
fn bytecode_size(bytecodes: &[u8], at: usize, sizes: &[Vec<u8>; 3]) -> Option<usize> {
    // The four prefixes have had the lowest numbers ever since: double, quadruple, and the same for the debugger.
    let (prefix, scale) = match bytecodes.get(at)? {
        0 | 2 => (1, 1),
        1 | 3 => (1, 2),
        _ => (0, 0),
    };
    let bytecode = bytecodes.get(at + prefix)?;
    let size = sizes.get(scale)?.get(usize::from(*bytecode))?;
    Some(prefix + usize::from(*size).max(1))
}

/// Whether a bytecode begins at an offset.
pub(super) fn begins_bytecode(bytecodes: &[u8], sizes: &[Vec<u8>; 3], offset: usize) -> bool {
    let mut at = 0;
    while at < offset {
        let Some(size) = bytecode_size(bytecodes, at, sizes) else { return false };
        at += size;
    }
    at == offset && offset < bytecodes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_add_up_and_the_last_before_an_offset_holds() {
        // The same function in Node 20 and in Node 26, as the tables were found in memory.
        let old = [0x01, 0xb0, 0x01, 0x02, 0x40, 0x04, 0x48, 0x04, 0x14, 0x05, 0x00, 0x0a, 0x40];
        let new = [0x02, 0xb0, 0x01, 0x07, 0x40, 0x0b, 0x48, 0x0b, 0x14, 0x0a, 0x00, 0x1b, 0x40];
        let entries = |table: &[u8], steps| {
            entries(table, steps).map(|(at, position)| (at, position.character().unwrap())).collect::<Vec<_>>()
        };
        assert_eq!(entries(&old, Steps::Signed), [(-1, 43), (0, 59), (2, 77), (4, 82), (6, 82), (11, 98)]);
        assert_eq!(entries(&new, Steps::Shifted), [(-1, 43), (0, 59), (2, 77), (4, 82), (6, 82), (12, 98)]);
        assert_eq!(position_at(&old, Steps::Signed, -2), None);
        assert_eq!(position_at(&old, Steps::Signed, 3).and_then(RawPosition::character), Some(77));
    }

    #[test]
    fn a_position_says_where_its_function_was_inlined() {
        let position = RawPosition((2 << 31) | (8 << 1));
        assert_eq!((position.character(), position.inlining()), (Some(7), Some(1)));
        assert_eq!((RawPosition(0).character(), RawPosition(0).inlining()), (None, None));
        assert_eq!(RawPosition(0x0401).character(), None);
    }

    #[test]
    fn a_table_without_an_end_ends() {
        assert_eq!(entries(&[0xff; 64], Steps::Signed).count(), 0);
        assert_eq!(entries(&[0xff; 64], Steps::Shifted).count(), 0);
        assert_eq!(unsigned(&mut &[0x80, 0x01][..]), Some(128));
        assert_eq!(unsigned(&mut &[0x80; 20][..]), None);
    }

    #[test]
    fn baseline_code_belongs_to_the_bytecode_whose_length_it_is_within() {
        let sizes = [vec![1, 1, 1, 1, 2, 3], vec![1, 1, 1, 1, 3, 5], vec![1, 1, 1, 1, 5, 9]];
        // One of two bytes, one of three with doubled operands (prefix and five bytes), one of three.
        let bytecodes = [4, 0, 0, 5, 0, 0, 0, 0, 5, 0, 0];
        let table = [10, 4, 20, 8];
        let at = |offset, call| bytecode_at(&table, &bytecodes, &sizes, offset, call);
        assert_eq!((at(9, false), at(10, true)), (Ok(None), Ok(None)));
        assert_eq!((at(10, false), at(14, true)), (Ok(Some(0)), Ok(Some(0))));
        assert_eq!((at(14, false), at(34, true)), (Ok(Some(2)), Ok(Some(2))));
        assert_eq!((at(34, false), at(42, true)), (Ok(Some(8)), Ok(Some(8))));
        assert!(at(42, false).is_err());
        assert!(begins_bytecode(&bytecodes, &sizes, 8));
        assert!(!begins_bytecode(&bytecodes, &sizes, 3) && !begins_bytecode(&bytecodes, &sizes, 11));
    }
}
