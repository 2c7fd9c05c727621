//! The functions inlined into a function: a tree whose root is the function itself.

use std::ops::Range;

use super::cursor::Cursor;
use super::error::GsymError;
use super::function::Budget;

/// Levels of inlining that are read. clang's deepest seen are some 40.
pub const MAX_INLINE_DEPTH: u32 = 256;

/// An inlined function, or at the root the function itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlineNode {
    /// What belongs to it.
    pub ranges: Vec<Range<u64>>,
    /// The name's offset in the string table; 0: none.
    pub name: u64,
    /// Where it was called, in the function around it: in the file table.
    pub call_file: u32,
    /// The line of the call; 0 at the root.
    pub call_line: u32,
    /// What was inlined into it.
    pub children: Vec<InlineNode>,
}

/// Reads a tree. `string_width` is that of string offsets.
pub(super) fn read(
    cursor: &mut Cursor<'_>,
    base: u64,
    string_width: u8,
    budget: &mut Budget,
) -> Result<Option<InlineNode>, GsymError> {
    node(cursor, base, string_width, 0, budget)
}

fn node(
    cursor: &mut Cursor<'_>,
    base: u64,
    string_width: u8,
    depth: u32,
    budget: &mut Budget,
) -> Result<Option<InlineNode>, GsymError> {
    let at = cursor.offset();
    let count = cursor.uleb("inline info, range count")?;
    if count == 0 {
        return Ok(None);
    }
    if depth > MAX_INLINE_DEPTH {
        return Err(GsymError::value(at, "inline info", depth.into(), "levels are more than are read"));
    }
    // Two bytes a range at least.
    if count > cursor.left() / 2 {
        return Err(GsymError::value(at, "inline info, range count", count, "ranges are more than fit"));
    }
    let mut ranges = Vec::new();
    for _ in 0..count {
        budget.take(cursor.offset())?;
        ranges.push(range(cursor, base)?);
    }
    let has_children = cursor.u8("inline info, has_children")? != 0;
    let mut node = InlineNode {
        name: cursor.uint(string_width, "inline info, name")?,
        call_file: cursor.uleb32("inline info, call_file")?,
        call_line: cursor.uleb32("inline info, call_line")?,
        children: Vec::new(),
        ranges,
    };
    budget.take(cursor.offset())?;
    let base = node.ranges.first().map_or(base, |range| range.start);
    while has_children && let Some(child) = self::node(cursor, base, string_width, depth + 1, budget)? {
        node.children.push(child);
    }
    Ok(Some(node))
}

fn range(cursor: &mut Cursor<'_>, base: u64) -> Result<Range<u64>, GsymError> {
    let at = cursor.offset();
    let start = cursor.uleb("inline info, range start")?;
    let size = cursor.uleb("inline info, range size")?;
    let sum = base.checked_add(start).and_then(|start| Some(start..start.checked_add(size)?));
    sum.ok_or(GsymError::value(at, "inline info, range start", start, "leads beyond the last address"))
}

impl InlineNode {
    /// Whether an address belongs to it.
    pub fn covers(&self, address: u64) -> bool {
        self.ranges.iter().any(|range| range.contains(&address))
    }
}
