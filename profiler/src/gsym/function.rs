//! FunctionInfo: a function with everything that the file says about it.

use super::cursor::Cursor;
use super::error::GsymError;
use super::inline::{self, InlineNode};
use super::lines::{self, LineEntry};

/// Rows, ranges, inlined functions and call sites of one function, merged ones included, that are read.
pub const MAX_ITEMS: u32 = 1 << 20;
/// Levels of functions merged into merged functions; LLVM writes one.
pub const MAX_MERGED_DEPTH: u32 = 16;

const END: u32 = 0;
const LINES: u32 = 1;
const INLINES: u32 = 2;
const MERGED: u32 = 3;
const CALL_SITES: u32 = 4;

/// A function. Names are offsets in the string table, files are numbers in the file table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionInfo {
    /// The address of the first byte.
    pub start: u64,
    /// Length in bytes; 0: unknown, up to the next function.
    pub size: u32,
    /// The name's offset in the string table.
    pub name: u64,
    /// Rows in the file's order.
    pub lines: Vec<LineEntry>,
    /// The tree of inlined functions, the function itself at its root.
    pub inline: Option<InlineNode>,
    /// Functions that the linker found to be the same code.
    pub merged: Vec<FunctionInfo>,
    /// The calls that the function makes.
    pub call_sites: Vec<CallSite>,
    /// Type and length of what is none of these.
    pub unknown: Vec<(u32, u32)>,
}

/// A call in a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallSite {
    /// Bytes from the function's start to where the call returns.
    pub return_offset: u64,
    /// Bit 0: the callee is in the same program; bit 1: it may be in another.
    pub flags: u8,
    /// Patterns of the callees' names, in the string table.
    pub patterns: Vec<u64>,
}

/// What is still allowed of [`MAX_ITEMS`].
#[derive(Debug)]
pub(super) struct Budget(u32);

impl Budget {
    pub(super) fn new() -> Self {
        Self(MAX_ITEMS)
    }

    pub(super) fn take(&mut self, offset: u64) -> Result<(), GsymError> {
        let left = self.0.checked_sub(1);
        self.0 = left.ok_or(GsymError::value(
            offset,
            "FunctionInfo",
            MAX_ITEMS.into(),
            "rows, ranges and calls of one function, and more follow",
        ))?;
        Ok(())
    }
}

/// An item of a FunctionInfo.
#[derive(Clone, Copy, Debug)]
pub(super) struct Info<'a> {
    pub(super) kind: u32,
    pub(super) data: Cursor<'a>,
}

impl Info<'_> {
    pub(super) const LINES: u32 = LINES;
    pub(super) const INLINES: u32 = INLINES;
}

/// The next item; `None` at the list's end.
pub(super) fn next_info<'a>(cursor: &mut Cursor<'a>) -> Result<Option<Info<'a>>, GsymError> {
    let kind = cursor.u32("InfoType")?;
    let length = cursor.u32("InfoLength")?;
    if kind == END {
        return Ok(None);
    }
    Ok(Some(Info { kind, data: cursor.take(length.into(), "InfoData")? }))
}

/// Reads a FunctionInfo's head: the function's size, and the offset of its name.
pub(super) fn read_head(cursor: &mut Cursor<'_>, start: u64, string_width: u8) -> Result<(u32, u64), GsymError> {
    let at = cursor.offset();
    let size = cursor.u32("FunctionInfo, size")?;
    if start.checked_add(size.into()).is_none() {
        return Err(GsymError::value(at, "FunctionInfo, size", size.into(), "leads beyond the last address"));
    }
    let name_at = cursor.offset();
    match cursor.uint(string_width, "FunctionInfo, name")? {
        0 => Err(GsymError::value(name_at, "FunctionInfo, name", 0, "is no name")),
        name => Ok((size, name)),
    }
}

/// Reads everything. `string_width` is that of string offsets.
pub(super) fn read(cursor: &mut Cursor<'_>, start: u64, string_width: u8) -> Result<FunctionInfo, GsymError> {
    read_nested(cursor, start, string_width, 0, &mut Budget::new())
}

fn read_nested(
    cursor: &mut Cursor<'_>,
    start: u64,
    string_width: u8,
    depth: u32,
    budget: &mut Budget,
) -> Result<FunctionInfo, GsymError> {
    let (size, name) = read_head(cursor, start, string_width)?;
    let mut function = FunctionInfo { start, size, name, ..FunctionInfo::default() };
    while let Some(Info { kind, mut data }) = next_info(cursor)? {
        budget.take(data.offset())?;
        match kind {
            LINES => lines::run(&mut data, start, |row| {
                budget.take(row.address)?;
                function.lines.push(row);
                Ok(true)
            })?,
            INLINES => {
                function.inline = inline::read(&mut data, start, string_width, budget)?;
                data.finish("inline info")?;
            }
            MERGED => function.merged = merged(&mut data, start, string_width, depth + 1, budget)?,
            CALL_SITES => function.call_sites = call_sites(&mut data, string_width, budget)?,
            _ => function.unknown.push((kind, u32::try_from(data.left()).unwrap_or(u32::MAX))),
        }
    }
    Ok(function)
}

fn merged(
    data: &mut Cursor<'_>,
    start: u64,
    string_width: u8,
    depth: u32,
    budget: &mut Budget,
) -> Result<Vec<FunctionInfo>, GsymError> {
    if depth > MAX_MERGED_DEPTH {
        return Err(GsymError::value(data.offset(), "merged functions", depth.into(), "levels are more than are read"));
    }
    let count = data.u32("merged functions, count")?;
    let mut functions = Vec::new();
    for _ in 0..count {
        budget.take(data.offset())?;
        let length = data.u32("merged functions, length")?;
        let mut part = data.take(length.into(), "merged functions, FunctionInfo")?;
        functions.push(read_nested(&mut part, start, string_width, depth, budget)?);
    }
    data.finish("merged functions")?;
    Ok(functions)
}

fn call_sites(data: &mut Cursor<'_>, string_width: u8, budget: &mut Budget) -> Result<Vec<CallSite>, GsymError> {
    let count = data.u32("call sites, count")?;
    let mut sites = Vec::new();
    for _ in 0..count {
        budget.take(data.offset())?;
        let return_offset = data.u64("call site, return offset")?;
        let flags = data.u8("call site, flags")?;
        let count = data.u32("call site, pattern count")?;
        let mut patterns = Vec::new();
        for _ in 0..count {
            budget.take(data.offset())?;
            patterns.push(data.uint(string_width, "call site, pattern")?);
        }
        sites.push(CallSite { return_offset, flags, patterns });
    }
    data.finish("call sites")?;
    Ok(sites)
}
