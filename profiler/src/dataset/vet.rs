//! What a file claims is looked at before the decoder believes it: how large a page will be when it is unpacked, how many
//! values it has, how many elements a list of the footer. The decoder makes room for what a header says; a few bytes must
//! not take gigabytes.
//!
//! Footer and page headers are Thrift's compact protocol, of which only the shape is walked here.

/// Largest footer.
pub(super) const MAX_FOOTER: u64 = 16 << 20;
/// Largest page, unpacked; DuckDB writes pages of up to 100 MB.
const MAX_PAGE: u64 = 128 << 20;
/// Largest dictionary, which takes several times as much memory as it is long.
const MAX_DICTIONARY: u64 = 32 << 20;
/// Values of a page at most: each takes up to 12 bytes of levels and value.
const MAX_VALUES: u64 = 1 << 24;
/// Values of a column in one row group at most.
pub(super) const MAX_CHUNK_VALUES: u64 = 1 << 27;
/// How deep structures may nest; the footer's are six deep.
const MAX_DEPTH: usize = 16;

/// Walks over Thrift's bytes.
struct Walker<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The numbers of a page's header that matter.
#[derive(Default)]
struct PageHeader {
    kind: u64,
    unpacked: u64,
    packed: u64,
    values: u64,
}

type Walked<T> = Result<T, &'static str>;

impl Walker<'_> {
    fn byte(&mut self) -> Walked<u8> {
        let byte = self.bytes.get(self.at).copied().ok_or("it ends too early")?;
        self.at += 1;
        Ok(byte)
    }

    fn number(&mut self) -> Walked<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err("it has a number of more than 64 bits")
    }

    /// A signed number that must not be negative.
    fn positive(&mut self) -> Walked<u64> {
        let number = self.number()?;
        if number & 1 == 0 { Ok(number >> 1) } else { Err("it has a negative size") }
    }

    fn pass(&mut self, bytes: u64) -> Walked<()> {
        let end = usize::try_from(bytes).ok().and_then(|bytes| self.at.checked_add(bytes));
        self.at = end.filter(|&end| end <= self.bytes.len()).ok_or("it ends too early")?;
        Ok(())
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Walked<()> {
        match kind {
            1 | 2 => Ok(()),
            3 => self.pass(1),
            4..=6 => self.number().map(drop),
            7 => self.pass(8),
            8 => {
                let length = self.number()?;
                self.pass(length)
            }
            9 | 10 => {
                let head = self.byte()?;
                let length = if head >> 4 == 15 { self.number()? } else { u64::from(head >> 4) };
                self.elements(length)?;
                (0..length).try_for_each(|_| self.element(head & 15, depth))
            }
            11 => {
                let length = self.number()?;
                let kinds = if length == 0 { 0 } else { self.byte()? };
                self.elements(length)?;
                (0..length).try_for_each(|_| {
                    self.element(kinds >> 4, depth)?;
                    self.element(kinds & 15, depth)
                })
            }
            12 => self.fields(depth + 1, |walker, _, kind, depth| walker.skip(kind, depth)),
            _ => Err("it has a field of no known kind"),
        }
    }

    /// Every element takes a byte at least, so there are no more than bytes.
    fn elements(&self, length: u64) -> Walked<()> {
        let left = self.bytes.len().saturating_sub(self.at) as u64;
        if length <= left { Ok(()) } else { Err("it has a list that is longer than the file") }
    }

    fn element(&mut self, kind: u8, depth: usize) -> Walked<()> {
        // In a list a truth value has a byte of its own.
        if matches!(kind, 1 | 2) { self.pass(1) } else { self.skip(kind, depth + 1) }
    }

    fn fields(&mut self, depth: usize, mut field: impl FnMut(&mut Self, u64, u8, usize) -> Walked<()>) -> Walked<()> {
        if depth > MAX_DEPTH {
            return Err("its structures nest too deep");
        }
        let mut id = 0_u64;
        loop {
            let head = self.byte()?;
            let kind = head & 15;
            if kind == 0 {
                return Ok(());
            }
            id = match head >> 4 {
                0 => self.positive()?,
                more => id.saturating_add(u64::from(more)),
            };
            field(self, id, kind, depth)?;
        }
    }

    fn page_header(&mut self) -> Walked<PageHeader> {
        let mut page = PageHeader::default();
        self.fields(0, |walker, id, kind, depth| {
            match (id, kind) {
                (1, 5) => page.kind = walker.positive()?,
                (2, 5) => page.unpacked = walker.positive()?,
                (3, 5) => page.packed = walker.positive()?,
                // Of a data page, a dictionary and a data page of version 2.
                (5 | 7 | 8, 12) => walker.fields(depth + 1, |walker, id, kind, depth| match (id, kind) {
                    (1, 5) => {
                        page.values = walker.positive()?;
                        Ok(())
                    }
                    _ => walker.skip(kind, depth),
                })?,
                _ => walker.skip(kind, depth)?,
            }
            Ok(())
        })?;
        Ok(page)
    }
}

/// Whether a footer's lists and texts are within its bytes.
pub(super) fn check_footer(bytes: &[u8]) -> Walked<()> {
    Walker { bytes, at: 0 }.skip(12, 0)
}

/// Whether every page of a column's bytes may be unpacked.
pub(super) fn check_pages(bytes: &[u8]) -> Walked<()> {
    const DICTIONARY: u64 = 2;
    let mut walker = Walker { bytes, at: 0 };
    let mut values = 0_u64;
    while walker.at < bytes.len() {
        let page = walker.page_header()?;
        walker.pass(page.packed)?;
        let (most, least_bytes) = if page.kind == DICTIONARY { (MAX_DICTIONARY, page.values) } else { (MAX_PAGE, 0) };
        if page.unpacked > most || page.values > MAX_VALUES {
            return Err("it has a page that is too large");
        }
        // The shortest entry of a dictionary that anybody writes, a text, has four bytes; numbers have more.
        if least_bytes.saturating_mul(4) > page.unpacked {
            return Err("it has a dictionary of more entries than bytes");
        }
        values = values.saturating_add(page.values);
        if values > MAX_CHUNK_VALUES {
            return Err("it has a column of too many values");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A data page's header: type, unpacked and packed size, number of values.
    fn header(kind: u64, unpacked: u64, packed: u64, values: u64) -> Vec<u8> {
        let number = |mut value: u64| {
            let mut bytes = Vec::new();
            value <<= 1;
            while value >= 0x80 {
                bytes.push((value & 0x7f) as u8 | 0x80);
                value >>= 7;
            }
            bytes.push(value as u8);
            bytes
        };
        let of_kind = if kind == 2 { 4 } else { 2 };
        let mut bytes = vec![0x15];
        bytes.extend(number(kind));
        bytes.push(0x15);
        bytes.extend(number(unpacked));
        bytes.push(0x15);
        bytes.extend(number(packed));
        bytes.push(of_kind << 4 | 12);
        bytes.push(0x15);
        bytes.extend(number(values));
        bytes.extend([0, 0]);
        bytes
    }

    #[test]
    fn a_page_is_refused_for_what_its_header_claims() {
        let page = |kind, unpacked, values| {
            let mut bytes = header(kind, unpacked, 3, values);
            bytes.extend([1, 2, 3]);
            check_pages(&bytes)
        };
        assert_eq!(page(0, 100, 10), Ok(()));
        assert_eq!(page(2, 100, 25), Ok(()));
        assert!(page(0, MAX_PAGE + 1, 10).is_err());
        assert!(page(0, 100, MAX_VALUES + 1).is_err());
        assert!(page(2, 100, 26).is_err());
        assert!(page(2, MAX_DICTIONARY + 1, 26).is_err());
        assert_eq!(check_pages(&header(0, 10, 3, 1)), Err("it ends too early"));
        let many = [header(0, 10, 0, MAX_VALUES)].concat().repeat(9);
        assert_eq!(check_pages(&many), Err("it has a column of too many values"));
    }

    #[test]
    fn a_footer_is_refused_for_a_list_that_it_has_no_room_for_and_for_its_depth() {
        // Field 1: a list of 2^31 structures.
        assert!(check_footer(&[0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x07, 0]).is_err());
        assert_eq!(check_footer(&[0x19, 0x2c, 0, 0, 0]), Ok(()));
        assert!(check_footer(&[0x1c; 100]).is_err());
        assert!(check_footer(&[0x18, 0xff]).is_err());
        for length in 0..40 {
            // Whatever comes: an answer, and no panic.
            let bytes: Vec<u8> = (0..length).map(|at: u8| at.wrapping_mul(37) ^ length).collect();
            std::hint::black_box((check_footer(&bytes), check_pages(&bytes))).0.unwrap_or(());
        }
    }
}
