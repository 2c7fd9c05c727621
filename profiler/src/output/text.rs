//! Names of the target, made fit to be shown.
//!
//! The target chooses the names of its functions, files and threads. Shown as they are, they could break a line-based
//! format, make XML invalid, send escape sequences to a terminal or turn the direction of the text that follows.

use std::borrow::Cow;

use crate::profile::{FrameRef, Task, shorten};
use crate::symbol::{FrameKind, Tier};

use super::options::OutputOptions;

/// Escapes what must not be shown as it is, and trims white space at both ends; a name of which nothing is left becomes
/// `[empty]`. Afterwards the text has no control character and is valid in XML 1.0 apart from markup.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let text = text.trim();
    if text.is_empty() {
        return Cow::Borrowed("[empty]");
    }
    if !text.contains(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            c if u32::from(c) < 0x100 && is_unprintable(c) => shown.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if is_unprintable(c) => shown.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
            c => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Line and paragraph separators, which some readers split lines at.
            '\u{2028}' | '\u{2029}'
            // Marks, embeddings, overrides and isolates of text direction.
            | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // The byte order mark, and what XML 1.0 does not allow.
            | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// A frame as all outputs show it: the tier's mark, the printable name, and with `lines` the source line.
pub(crate) fn frame_name(frame: FrameRef<'_>, lines: bool) -> String {
    let mut shown = String::new();
    if let Some(mark) = tier_mark(frame) {
        shown.push(mark);
    }
    shown.push_str(&printable(frame.name));
    if let (true, Some((file, line))) = (lines, frame.source) {
        match line {
            0 => shown.push_str(&format!(" ({})", printable(file))),
            line => shown.push_str(&format!(" ({}:{line})", printable(file))),
        }
    }
    shown
}

/// V8's mark of a tier, as its users know it from `--prof` and `perf`, whatever runtime the code comes from. None when
/// the name still has it.
fn tier_mark(frame: FrameRef<'_>) -> Option<char> {
    if !matches!(frame.kind, FrameKind::Jit | FrameKind::Interpreter) {
        return None;
    }
    let mark = mark_of(frame.tier?);
    (!frame.name.trim_start().starts_with(mark)).then_some(mark)
}

/// The mark of a tier.
pub(super) fn mark_of(tier: Tier) -> char {
    match tier {
        Tier::Interpreted => '~',
        Tier::Baseline => '^',
        Tier::Mid => '+',
        Tier::Optimized => '*',
    }
}

/// The frames that stand for a task in front of its stack: `pid-N` if asked for, the thread's name, and `comm-tid` if
/// asked for.
pub(super) fn task_frames(task: &Task, options: &OutputOptions) -> Vec<String> {
    let comm = printable(&task.comm);
    let mut frames = Vec::with_capacity(3);
    if options.per_process {
        frames.push(format!("pid-{}", task.pid));
    }
    frames.push(comm.clone().into_owned());
    if options.per_thread {
        frames.push(format!("{comm}-{}", task.tid));
    }
    frames
}

/// A frame of a folded line: `;` becomes `:`, as perf's own scripts do it, because the format has no escape for it. A
/// name that ends in a blank and a number gets `_` for that blank, or readers would take the number for a count.
pub(super) fn folded(name: &str) -> Cow<'_, str> {
    let name = if name.contains(';') { Cow::Owned(name.replace(';', ":")) } else { Cow::Borrowed(name) };
    let Some((before, last)) = name.rsplit_once(' ') else {
        return name;
    };
    if last.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Cow::Owned(format!("{before}_{last}"));
    }
    name
}

/// Longest name in an SVG, in bytes. A browser lays out every name, and nobody reads more in a tooltip.
pub(super) const MAX_SVG_NAME_BYTES: usize = 512;

/// A frame's name for the SVG: at most [`MAX_SVG_NAME_BYTES`] long.
pub(super) fn svg(name: &str) -> Cow<'_, str> {
    shorten(name, MAX_SVG_NAME_BYTES)
}
