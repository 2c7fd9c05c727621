//! The name tables. Their encoding is not public, so every likely one is tried; see docs/reference/hqnplog.md.
//!
//! A reading is believed when all names are printable, it accounts for the whole table but for padding, and it has a
//! name for every index that entries use. The readings in the order in which they are tried, on a table of two names:
//!
//! ```text
//! A  counted offsets     u64 2 · u64 24 · u64 27 · "AB\0" "CDE\0"      offsets from the table's or the file's start
//! B  counted strings     u64 2 · "AB\0" "CDE\0"
//! C  length prefixes     u32 or u64 2 "AB" · 3 "CDE"                   each maybe with a NUL, maybe padded to 4 or 8
//! D  offsets             u64 16 · u64 19 · "AB\0" "CDE\0"
//! E  plain strings       "AB\0" "CDE\0"
//! ```

use std::fmt;

use jitprof_jitdump::ByteOrder;

/// Most names of a table.
const MAX_NAMES: usize = 1 << 16;
/// The longest name that is read.
const MAX_NAME_BYTES: usize = 1024;
/// Zero bytes that round a table up to a multiple of 8.
const PADDING: usize = 7;

/// How the names of a table are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// A: a count, then offsets, then strings.
    CountedOffsets,
    /// B: a count, then strings.
    CountedStrings,
    /// C: each string behind its length.
    LengthPrefixed {
        /// Bytes of the length.
        width: usize,
        /// Whether a NUL follows each string.
        nul: bool,
        /// What each string is padded to a multiple of.
        align: usize,
    },
    /// D: offsets, then strings.
    Offsets,
    /// Variant E: the names as strings, one after another.
    Strings,
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CountedOffsets => f.write_str("A, a count, offsets and strings"),
            Self::CountedStrings => f.write_str("B, a count and strings"),
            Self::LengthPrefixed { width, nul, align } => {
                let nul = if *nul { " with NUL" } else { "" };
                write!(f, "C, strings{nul} behind lengths of {width} bytes, padded to {align}")
            }
            Self::Offsets => f.write_str("D, offsets and strings"),
            Self::Strings => f.write_str("E, strings"),
        }
    }
}

/// The names of trace ids or of trace types, by index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameTable {
    what: &'static str,
    names: Vec<String>,
    /// How they were encoded; `None` if no reading made sense.
    pub encoding: Option<Encoding>,
}

impl NameTable {
    /// Reads a table of names of `what` (`trace` or `type`) that lies at `offset` in the file. `largest` is the largest
    /// index that entries use. The warning says why there are no names, or why these are doubtful.
    ///
    /// Cost: each reading passes over the bytes once, 18 times at most.
    pub fn read(
        order: ByteOrder,
        bytes: &[u8],
        offset: u64,
        what: &'static str,
        largest: u32,
    ) -> (Self, Option<String>) {
        let readings = readings(order, bytes, offset);
        let wanted = usize::try_from(largest).unwrap_or(usize::MAX);
        let enough = |reading: &&Reading| reading.names.len() > wanted;
        let padded = |reading: &&Reading| reading.rest <= PADDING;
        // The description has tables rounded up to 8 bytes; a producer may round the entries' start further. Damaged
        // entries use any index.
        let tiers: [&dyn Fn(&&Reading) -> bool; 4] =
            [&|reading| enough(reading) && padded(reading), &enough, &padded, &|_| true];
        // Padding read as a length or a string gives names that are empty, so the reading with fewer of these is right.
        let best_of = |tier: &&dyn Fn(&&Reading) -> bool| {
            readings
                .iter()
                .filter(tier)
                .min_by_key(|reading| reading.names.iter().filter(|name| name.is_empty()).count())
        };
        let Some(best) = tiers.iter().find_map(best_of) else {
            let warning = match bytes.len() {
                0 => format!("empty; names are {what}#0, {what}#1, …"),
                length => {
                    format!("none of the known encodings fits its {length} bytes; names are {what}#0, {what}#1, …")
                }
            };
            return (Self { what, names: Vec::new(), encoding: None }, Some(warning));
        };
        let warning = (!enough(&best)).then(|| format!("{} names, and entries use number {largest}", best.names.len()));
        (Self { what, names: best.names.clone(), encoding: Some(best.encoding) }, warning)
    }

    /// The name of an index; `trace#7` or `type#7` if the table has none.
    pub fn name(&self, index: u32) -> String {
        let known = usize::try_from(index).ok().and_then(|index| self.names.get(index));
        match known {
            Some(name) if !name.is_empty() => name.clone(),
            _ => format!("{}#{index}", self.what),
        }
    }

    /// The table's names in the order of their ids.
    pub fn names(&self) -> &[String] {
        &self.names
    }
}

/// A reading that accounts for a table up to a rest of zeros.
struct Reading {
    encoding: Encoding,
    names: Vec<String>,
    /// Zero bytes behind the last name.
    rest: usize,
}

/// All readings that make sense, in the order of trust.
fn readings(order: ByteOrder, bytes: &[u8], offset: u64) -> Vec<Reading> {
    let mut found = Vec::new();
    let mut add = |encoding, read: Option<(Vec<String>, usize)>| {
        if let Some((names, end)) = read
            && !names.iter().all(String::is_empty)
            && let Some(rest) = bytes.get(end..)
            && rest.iter().all(|byte| *byte == 0)
        {
            found.push(Reading { encoding, names, rest: rest.len() });
        }
    };
    add(Encoding::CountedOffsets, counted_offsets(order, bytes, offset));
    add(Encoding::CountedStrings, counted_strings(order, bytes));
    for width in [4, 8] {
        for nul in [false, true] {
            for align in [1, 4, 8] {
                add(Encoding::LengthPrefixed { width, nul, align }, length_prefixed(order, bytes, width, nul, align));
            }
        }
    }
    add(Encoding::Offsets, offsets(order, bytes, offset));
    add(Encoding::Strings, strings(bytes, None, 0));
    found
}

/// The count in front of a table.
fn table_count(order: ByteOrder, bytes: &[u8]) -> Option<usize> {
    let count = usize::try_from(order.u64(bytes, 0)?).ok()?;
    (1..=MAX_NAMES).contains(&count).then_some(count)
}

fn counted_offsets(order: ByteOrder, bytes: &[u8], offset: u64) -> Option<(Vec<String>, usize)> {
    at_offsets(order, bytes, 8, table_count(order, bytes)?, offset)
}

fn counted_strings(order: ByteOrder, bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    strings(bytes, Some(table_count(order, bytes)?), 8)
}

fn offsets(order: ByteOrder, bytes: &[u8], offset: u64) -> Option<(Vec<String>, usize)> {
    let first = order.u64(bytes, 0)?;
    // The first string begins where the offsets end, so the first offset says how many there are.
    let from_table = (first % 8 == 0).then_some(first / 8);
    let from_file = first.checked_sub(offset).filter(|first| first % 8 == 0).map(|first| first / 8);
    [from_table, from_file].into_iter().flatten().find_map(|count| {
        let count = usize::try_from(count).ok().filter(|count| (1..=MAX_NAMES).contains(count))?;
        at_offsets(order, bytes, 0, count, offset)
    })
}

/// Strings at ascending offsets that stand at `at`; the first string follows the last offset.
fn at_offsets(order: ByteOrder, bytes: &[u8], at: usize, count: usize, base: u64) -> Option<(Vec<String>, usize)> {
    let first = order.u64(bytes, at)?;
    let begin = at + count * 8;
    let base = match usize::try_from(first) {
        Ok(first) if first == begin => 0,
        _ if first.checked_sub(base).is_some_and(|first| usize::try_from(first) == Ok(begin)) => base,
        _ => return None,
    };
    let (mut names, mut end) = (Vec::new(), begin);
    for index in 0..count {
        let start = usize::try_from(order.u64(bytes, at + index * 8)?.checked_sub(base)?).ok()?;
        if start < end || bytes.get(end..start)?.iter().any(|byte| *byte != 0) {
            return None;
        }
        let (name, after) = string(bytes, start)?;
        names.push(name);
        end = after;
    }
    Some((names, end))
}

/// NUL-terminated strings from `at` on: `count` of them, or as many as there are before a rest of zeros.
fn strings(bytes: &[u8], count: Option<usize>, at: usize) -> Option<(Vec<String>, usize)> {
    let last = bytes.iter().rposition(|byte| *byte != 0)?;
    let (mut names, mut end) = (Vec::new(), at);
    while count.map_or(end <= last, |count| names.len() < count) {
        if names.len() >= MAX_NAMES {
            return None;
        }
        let (name, after) = string(bytes, end)?;
        names.push(name);
        end = after;
    }
    Some((names, end))
}

fn length_prefixed(
    order: ByteOrder,
    bytes: &[u8],
    width: usize,
    nul: bool,
    align: usize,
) -> Option<(Vec<String>, usize)> {
    let last = bytes.iter().rposition(|byte| *byte != 0)?;
    let (mut names, mut end) = (Vec::new(), 0_usize);
    while end <= last {
        if names.len() >= MAX_NAMES {
            return None;
        }
        let length = match width {
            4 => usize::try_from(order.u32(bytes, end)?).ok()?,
            _ => usize::try_from(order.u64(bytes, end)?).ok()?,
        };
        let start = end + width;
        let text = bytes.get(start..start.checked_add(length)?)?;
        end = start + length;
        // A length may count the NUL.
        let text = match text.strip_suffix(&[0]) {
            Some(text) if nul => text,
            None if nul => {
                (*bytes.get(end)? == 0).then_some(())?;
                end += 1;
                text
            }
            _ => text,
        };
        names.push(printable(text)?);
        let aligned = end.next_multiple_of(align);
        // The last one's padding may be cut.
        let padding = bytes.get(end..aligned.min(bytes.len()))?;
        padding.iter().all(|byte| *byte == 0).then_some(())?;
        end = aligned.min(bytes.len());
    }
    Some((names, end))
}

/// The NUL-terminated string at `at`, and what follows it.
fn string(bytes: &[u8], at: usize) -> Option<(String, usize)> {
    let rest = bytes.get(at..)?;
    let length = memchr::memchr(0, rest)?;
    Some((printable(&rest[..length])?, at + length + 1))
}

fn printable(text: &[u8]) -> Option<String> {
    let ok = text.len() <= MAX_NAME_BYTES && text.iter().all(|byte| (0x20..=0x7e).contains(byte));
    ok.then(|| String::from_utf8_lossy(text).into_owned())
}
