//! The functions inlined into a piece of code, as GSYM has them: a tree, and one line table for all of it.
//!
//! The runtime announces parts that lie in each other, each with rows of its own. GSYM has the lines of the innermost
//! function at each address, and for each inlined function the one line from which it was called: that of the function
//! around it at the part's first byte.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use gsym_rs::{AddressRange, FileIndex, InlineNode, LineEntry};

use super::snapshot::Part;
use super::write::{Writer, name_of};
use jitprof_jitdump::code::InlinedCode;

/// Deeper parts are taken for the one around them; readers refuse more than 256 levels.
const MAX_DEPTH: usize = 250;

/// A part, cut to the one around it.
struct Span<'a> {
    /// Bytes from the object's start.
    range: Range<u64>,
    code: &'a InlinedCode,
    /// The span around it.
    parent: Option<usize>,
}

/// A place in the source: file and line.
type Place<'a> = (&'a Arc<str>, u32);

/// The tree and the rows of a part of an object that has inlined parts.
pub(super) fn build(part: &Part<'_>, writer: &mut Writer) -> gsym_rs::Result<(InlineNode, Vec<LineEntry>)> {
    let spans = spans_of(part);
    let mut lines = Vec::new();
    let mut next = 0;
    let mut open: Vec<usize> = Vec::new();
    for at in bounds_of(part, &spans) {
        while open.last().and_then(|last| spans.get(*last)).is_some_and(|span| span.range.end <= at) {
            open.pop();
        }
        while spans.get(next).is_some_and(|span| span.range.start == at) {
            open.push(next);
            next += 1;
        }
        let innermost = open.last().and_then(|last| spans.get(*last));
        let (file, line) = writer.place(place(part, innermost, at))?;
        lines.push(LineEntry::new(address(part, at), file, line));
    }
    let mut nodes: Vec<InlineNode> = Vec::new();
    for span in &spans {
        let around = span.parent.and_then(|parent| spans.get(parent));
        let (call_file, call_line) = writer.place(place(part, around, span.range.start))?;
        nodes.push(InlineNode {
            ranges: vec![AddressRange::new(address(part, span.range.start), address(part, span.range.end))],
            name: name_of(span.code.name(), part.function.origin()),
            call_file,
            call_line,
            children: Vec::new(),
        });
    }
    let mut root = InlineNode {
        ranges: vec![AddressRange::new(part.start, part.start.saturating_add(part.size.into()))],
        name: name_of(part.function.name(), part.function.origin()),
        call_file: FileIndex::ZERO,
        ..InlineNode::default()
    };
    // A span follows the one around it: from the last on, each is complete when it is put into its parent.
    for span in spans.iter().rev() {
        let Some(node) = nodes.pop() else { break };
        let parent = span.parent.and_then(|parent| nodes.get_mut(parent)).unwrap_or(&mut root);
        parent.children.insert(0, node);
    }
    Ok((root, lines))
}

/// What of the object the part is.
fn window(part: &Part<'_>) -> Range<u64> {
    let start = part.start.saturating_sub(part.function.start().0);
    start..start.saturating_add(part.size.into())
}

fn address(part: &Part<'_>, offset: u64) -> u64 {
    part.function.start().0.saturating_add(offset)
}

/// The inlined parts, each behind the one around it.
fn spans_of<'a>(part: &Part<'a>) -> Vec<Span<'a>> {
    let window = window(part);
    let mut spans: Vec<Span<'a>> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    for code in part.function.inlines() {
        let start = u64::from(code.start()).max(window.start);
        let end = u64::from(code.start()).saturating_add(code.size().into()).min(window.end);
        while open.last().and_then(|last| spans.get(*last)).is_some_and(|span| span.range.end <= start) {
            open.pop();
        }
        let parent = open.last().copied();
        let end = parent.and_then(|parent| spans.get(parent)).map_or(end, |parent| end.min(parent.range.end));
        if start < end && open.len() < MAX_DEPTH {
            open.push(spans.len());
            spans.push(Span { range: start..end, code, parent });
        }
    }
    spans
}

/// Where the innermost function or its line may change.
fn bounds_of(part: &Part<'_>, spans: &[Span<'_>]) -> BTreeSet<u64> {
    let window = window(part);
    let mut bounds = BTreeSet::from([window.start]);
    bounds.extend(part.function.rows().into_iter().flat_map(|rows| rows.iter()).map(|row| u64::from(row.offset)));
    for span in spans {
        bounds.extend([span.range.start, span.range.end]);
        let start = u64::from(span.code.start());
        let rows = span.code.rows().iter().map(|row| start.saturating_add(row.offset.into()));
        bounds.extend(rows.filter(|row| span.range.contains(row)));
    }
    bounds.retain(|bound| window.contains(bound));
    bounds
}

/// The place of a byte in one of the functions around it; `None` stands for the object itself.
fn place<'a>(part: &Part<'a>, span: Option<&Span<'a>>, offset: u64) -> Option<Place<'a>> {
    match span {
        Some(span) => span.code.line(offset).or_else(|| span.code.source().map(|file| (file, 0))),
        None => part.function.line(offset),
    }
}
