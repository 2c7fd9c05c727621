//! Which symbols of a table name code, and how far they reach.
//!
//! Elf64_Sym: `{name u32, info u8, other u8, section u16, value u64, size u64}`.
//!
//! | symbol | kept as |
//! |---|---|
//! | FUNC or IFUNC, NOTYPE with a size | it is |
//! | without size, at the start of or within a function that has one (a label in assembly: `_avx2_shortcut` in OpenSSL) | not at all |
//! | without size, elsewhere (a function in assembly, `_init`) | reaching to the end of its section |
//! | more than 64 of one address (functions that a linker has folded, or a table made to keep us busy) | the first 64 of the largest size |
//! | data, undefined, section and file names (a third of node's) | not at all |
//!
//! blazesym takes a symbol without size to reach to the next symbol, labels included, and through the sections behind. Looking
//! up an address, it goes through all symbols of the last one before.

use std::collections::BTreeMap;

use jitprof_unwind::elf::{self, Section};

/// Size of an entry.
pub(super) const SYMBOL_BYTES: usize = 24;

/// Symbols of one address that are kept.
const MAX_AT_ADDRESS: usize = 64;

const NOTYPE: u8 = 0;
const FUNC: u8 = 2;
const IFUNC: u8 = 10;

/// Removes what names no code and fits the sizes, in place.
pub(super) fn keep(symbols: &mut Vec<u8>, sections: &[Section]) {
    let sizeless = Sizeless::of(symbols);
    let mut crowds = Crowds::of(symbols);
    let mut kept = 0;
    for start in (0..symbols.len() / SYMBOL_BYTES).map(|index| index * SYMBOL_BYTES) {
        let bytes = &mut symbols[start..start + SYMBOL_BYTES];
        let Some(symbol) = Symbol::parse(bytes) else {
            continue;
        };
        if !crowds.have_room_for(&symbol) {
            continue;
        }
        if symbol.size == 0 {
            if sizeless.is_label(symbol.value) {
                continue;
            }
            if let Some(section) = sections.get(usize::from(symbol.section)) {
                let end = section.svma.saturating_add(section.size);
                bytes[16..].copy_from_slice(&end.saturating_sub(symbol.value).to_le_bytes());
            }
        }
        symbols.copy_within(start..start + SYMBOL_BYTES, kept);
        kept += SYMBOL_BYTES;
    }
    symbols.truncate(kept);
    symbols.shrink_to_fit();
}

/// A symbol that may name code.
struct Symbol {
    section: u16,
    value: u64,
    size: u64,
}

impl Symbol {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let kind = bytes.get(4)? & 0xf;
        let section = elf::u16_at(bytes, 6).filter(|section| *section != 0)?;
        let (value, size) = (elf::u64_at(bytes, 8)?, elf::u64_at(bytes, 16)?);
        matches!(kind, NOTYPE | FUNC | IFUNC).then_some(Self { section, value, size })
    }
}

/// The addresses of symbols without size, and which of them are inside of another symbol.
struct Sizeless {
    /// Ascending, each once.
    values: Vec<u64>,
    inside: Vec<bool>,
}

impl Sizeless {
    /// Linear in the table, whatever overlaps what: where ranges begin and end is added up first, then summed.
    fn of(table: &[u8]) -> Self {
        let symbols = || table.chunks_exact(SYMBOL_BYTES).filter_map(Symbol::parse);
        let mut values: Vec<u64> = symbols().filter(|symbol| symbol.size == 0).map(|symbol| symbol.value).collect();
        values.sort_unstable();
        values.dedup();
        let mut steps = vec![0i64; values.len().saturating_add(1)];
        for symbol in symbols().filter(|symbol| symbol.size > 0) {
            let end = symbol.value.saturating_add(symbol.size);
            steps[values.partition_point(|value| *value < symbol.value)] += 1;
            steps[values.partition_point(|value| *value < end)] -= 1;
        }
        let mut open = 0;
        let inside = steps.iter().take(values.len()).map(|step| {
            open += step;
            open > 0
        });
        Self { inside: inside.collect(), values }
    }

    fn is_label(&self, value: u64) -> bool {
        self.values.binary_search(&value).is_ok_and(|index| self.inside[index])
    }
}

/// Addresses with more symbols than are kept: the largest size at each, and how many of that are still to be kept.
struct Crowds(BTreeMap<u64, (u64, usize)>);

impl Crowds {
    fn of(table: &[u8]) -> Self {
        let symbols = || table.chunks_exact(SYMBOL_BYTES).filter_map(Symbol::parse);
        let mut values: Vec<u64> = symbols().map(|symbol| symbol.value).collect();
        values.sort_unstable();
        let crowded = values.chunk_by(|one, next| one == next).filter(|alike| alike.len() > MAX_AT_ADDRESS);
        let mut crowds: BTreeMap<_, _> =
            crowded.filter_map(|alike| Some((*alike.first()?, (0, MAX_AT_ADDRESS)))).collect();
        if !crowds.is_empty() {
            for symbol in symbols() {
                if let Some((largest, _)) = crowds.get_mut(&symbol.value) {
                    *largest = symbol.size.max(*largest);
                }
            }
        }
        Self(crowds)
    }

    fn have_room_for(&mut self, symbol: &Symbol) -> bool {
        let Some((largest, left)) = self.0.get_mut(&symbol.value) else { return true };
        if symbol.size < *largest || *left == 0 {
            return false;
        }
        *left -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(kind: u8, section: u16, value: u64, size: u64) -> Vec<u8> {
        let section = section.to_le_bytes();
        [&[0; 4][..], &[kind, 0], &section, &value.to_le_bytes(), &size.to_le_bytes()].concat()
    }

    fn section(svma: u64, size: u64) -> Section {
        Section { name: String::new(), kind: 1, flags: 0, svma, file_offset: 0, size, link: 0 }
    }

    /// Value and size of what remains.
    fn kept(symbols: &[Vec<u8>]) -> Vec<(u64, u64)> {
        let mut table = symbols.concat();
        keep(&mut table, &[section(0, 0), section(0x100, 0x100), section(0x200, 0x100)]);
        let kept = table.chunks_exact(SYMBOL_BYTES).map(|symbol| Symbol::parse(symbol).unwrap());
        kept.map(|symbol| (symbol.value, symbol.size)).collect()
    }

    #[test]
    fn data_and_undefined_symbols_are_removed() {
        let object = symbol(1, 1, 0x100, 8);
        let undefined = symbol(FUNC, 0, 0, 0);
        assert_eq!(kept(&[object, undefined, symbol(IFUNC, 1, 0x110, 8)]), [(0x110, 8)]);
    }

    #[test]
    fn a_symbol_without_size_reaches_to_the_end_of_its_section() {
        assert_eq!(kept(&[symbol(FUNC, 1, 0x120, 0)]), [(0x120, 0xe0)]);
        // No such section, or not in it: as it was.
        assert_eq!(kept(&[symbol(FUNC, 0xfff1, 0x120, 0)]), [(0x120, 0)]);
        assert_eq!(kept(&[symbol(FUNC, 1, 0x400, 0)]), [(0x400, 0)]);
    }

    #[test]
    fn a_label_within_a_function_is_removed() {
        let function = symbol(FUNC, 1, 0x110, 0x20);
        let at_start = symbol(NOTYPE, 1, 0x110, 0);
        let within = symbol(NOTYPE, 1, 0x120, 0);
        let after = symbol(NOTYPE, 1, 0x130, 0);
        let other_section = symbol(NOTYPE, 2, 0x200, 0);
        let expected = [(0x110, 0x20), (0x130, 0xd0), (0x200, 0x100)];
        assert_eq!(kept(&[at_start, function, within, after, other_section]), expected);
    }

    #[test]
    fn of_very_many_symbols_of_one_address_some_of_the_largest_are_kept() {
        let many = |count: usize, value, size| vec![symbol(FUNC, 1, value, size); count];
        let usual = many(MAX_AT_ADDRESS, 0x140, 8);
        assert_eq!(kept(&usual).len(), MAX_AT_ADDRESS);
        let crowd = [many(900, 0x110, 4), many(100, 0x110, 16), many(3, 0x110, 0), usual, many(70, 0x180, 0)].concat();
        let expected = [[(0x110, 16); MAX_AT_ADDRESS], [(0x140, 8); MAX_AT_ADDRESS], [(0x180, 0x80); MAX_AT_ADDRESS]];
        assert_eq!(kept(&crowd), expected.concat());
    }

    #[test]
    fn ranges_that_overflow_or_overlap_change_nothing_else() {
        let everything = symbol(FUNC, 1, 1, u64::MAX);
        let again = symbol(FUNC, 1, 0x100, u64::MAX);
        assert_eq!(kept(&[everything, again, symbol(NOTYPE, 1, 0x180, 0)]), [(1, u64::MAX), (0x100, u64::MAX)]);
        let mut torn = symbol(FUNC, 1, 0x100, 4);
        torn.truncate(20);
        keep(&mut torn, &[]);
        assert!(torn.is_empty());
    }
}
