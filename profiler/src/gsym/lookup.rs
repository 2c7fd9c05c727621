//! The frames at an address.

use super::cursor::Cursor;
use super::error::GsymError;
use super::function::{self, Budget, Info};
use super::inline::{self, InlineNode};
use super::lines::{self, LineEntry};
use super::reader::Gsym;

/// A function at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// As the file has it: of C++ and Rust normally the mangled name.
    pub name: String,
    /// The source file.
    pub file: Option<String>,
    /// The line in it: of the instruction, or of the call of what was inlined; 0: unknown.
    pub line: u32,
    /// Whether it was inlined into the next one.
    pub inlined: bool,
}

/// What lies at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The function's number.
    pub index: u32,
    /// Its first byte.
    pub start: u64,
    /// Its length in bytes; 0: unknown.
    pub size: u32,
    /// Innermost first, never empty; the last one is the function, the others were inlined.
    pub places: Vec<Place>,
}

/// What the file says about an address, before its strings are read.
struct Found {
    size: u32,
    name: u64,
    row: Option<LineEntry>,
    inline: Option<InlineNode>,
}

impl Gsym {
    /// What lies at an address; `None` if no function covers it.
    ///
    /// Costs some 25 reads of the file, if it is not kept in memory. A line table that begins behind the address
    /// gives no line. Merged functions are not looked at: they are other names of the same code.
    ///
    /// # Errors
    /// What is known about the function is damaged.
    pub fn lookup(&self, address: u64) -> Result<Option<Lookup>, GsymError> {
        let Some(index) = self.find(address)? else {
            return Ok(None);
        };
        let start = self.address(index)?;
        let found = self.with_info(index, |cursor| self.at(cursor, start, address))?;
        let places = self.places(&found, address)?;
        Ok(Some(Lookup { index, start, size: found.size, places }))
    }

    fn at(&self, mut cursor: Cursor<'_>, start: u64, address: u64) -> Result<Found, GsymError> {
        let string_width = self.header().tables.string_width;
        let (size, name) = function::read_head(&mut cursor, start, string_width)?;
        let mut found = Found { size, name, row: None, inline: None };
        while let Some(Info { kind, mut data }) = function::next_info(&mut cursor)? {
            match kind {
                Info::LINES => {
                    let row = &mut found.row;
                    lines::run(&mut data, start, |next| {
                        let reached = next.address <= address;
                        if reached {
                            *row = Some(next);
                        }
                        Ok(reached)
                    })?;
                }
                Info::INLINES => found.inline = inline::read(&mut data, start, string_width, &mut Budget::new())?,
                _ => {}
            }
        }
        Ok(found)
    }

    fn places(&self, found: &Found, address: u64) -> Result<Vec<Place>, GsymError> {
        let mut chain: Vec<&InlineNode> = Vec::new();
        let mut next = found.inline.as_ref().filter(|root| root.covers(address));
        while let Some(node) = next {
            chain.push(node);
            next = node.children.iter().find(|child| child.covers(address));
        }
        let mut place = found.row.map(|row| (row.file, row.line));
        let mut places = Vec::new();
        for (depth, node) in chain.iter().enumerate().rev() {
            if depth > 0 {
                places.push(self.place(node.name, place, true)?);
                place = Some((node.call_file, node.call_line));
            }
        }
        places.push(self.place(found.name, place, false)?);
        Ok(places)
    }

    fn place(&self, name: u64, place: Option<(u32, u32)>, inlined: bool) -> Result<Place, GsymError> {
        let file = place.map(|(file, _)| self.file(file)).transpose()?.flatten();
        let line = place.map_or(0, |(_, line)| line);
        Ok(Place { name: self.string(name)?, file, line, inlined })
    }
}
