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
    /// The source file, where the line table names one.
    pub file: Option<String>,
    /// The line in it: of the instruction, or of the call of what was inlined; 0: unknown.
    pub line: u32,
    /// Whether it was inlined into the next one.
    pub inlined: bool,
}

/// What lies at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The function's number in the file.
    pub index: u32,
    /// The address of the function's first byte.
    pub start: u64,
    /// The function's length in bytes; 0: unknown.
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

impl Lookup {
    pub(super) fn of(gsym: &Gsym, address: u64) -> Result<Option<Self>, GsymError> {
        let Some(index) = gsym.find(address)? else {
            return Ok(None);
        };
        let start = gsym.address(index)?;
        let string_width = gsym.header().tables.string_width;
        let found = gsym.with_info(index, |cursor| Found::read(cursor, start, string_width, address))?;
        let places = found.places(gsym, address)?;
        Ok(Some(Self { index, start, size: found.size, places }))
    }
}

impl Found {
    fn read(mut cursor: Cursor<'_>, start: u64, string_width: u8, address: u64) -> Result<Self, GsymError> {
        let (size, name) = function::read_head(&mut cursor, start, string_width)?;
        let mut found = Self { size, name, row: None, inline: None };
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

    /// The function and what was inlined into it at the address, innermost first.
    fn places(&self, gsym: &Gsym, address: u64) -> Result<Vec<Place>, GsymError> {
        let mut chain: Vec<&InlineNode> = Vec::new();
        let mut next = self.inline.as_ref().filter(|root| root.covers(address));
        while let Some(node) = next {
            chain.push(node);
            next = node.children.iter().find(|child| child.covers(address));
        }
        let mut line = self.row.map(|row| (row.file, row.line));
        let mut places = Vec::new();
        for (depth, node) in chain.iter().enumerate().rev() {
            if depth > 0 {
                places.push(Place::read(gsym, node.name, line, true)?);
                line = Some((node.call_file, node.call_line));
            }
        }
        places.push(Place::read(gsym, self.name, line, false)?);
        Ok(places)
    }
}

impl Place {
    /// Reads the strings of a place. `line` is the file's number, and the line in it.
    fn read(gsym: &Gsym, name: u64, line: Option<(u32, u32)>, inlined: bool) -> Result<Self, GsymError> {
        let file = line.map(|(file, _)| gsym.file(file)).transpose()?.flatten();
        Ok(Self { name: gsym.string(name)?, file, line: line.map_or(0, |(_, line)| line), inlined })
    }
}
