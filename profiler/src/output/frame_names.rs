//! Names of frames and threads as the outputs show them; what the target chose is made [`printable`] first.

use std::borrow::Cow;

use crate::profile::{FrameRef, SourceRef, Task, printable, shorten};
use crate::symbol::FrameKind;

use super::options::OutputOptions;
use super::process_names::ProcessNames;

/// A frame as all outputs show it: the tier's mark, the printable name, and with `lines` the place in the source.
pub(crate) fn frame_name(frame: FrameRef<'_>, lines: bool) -> String {
    let mut shown = String::new();
    if let Some(mark) = tier_mark(frame) {
        shown.push(mark);
    }
    shown.push_str(&printable(frame.name));
    if let (true, Some(source)) = (lines, frame.source) {
        shown.push_str(&format!(" ({})", place(source)));
    }
    shown
}

/// `FILE`, `FILE:LINE` or `FILE:LINE:COLUMN`: as much as is known.
pub(crate) fn place(source: SourceRef<'_>) -> String {
    let file = printable(source.file);
    let file = short_path(&file);
    match (source.line, source.column) {
        (0, _) => file.into_owned(),
        (line, None) => format!("{file}:{line}"),
        (line, Some(column)) => format!("{file}:{line}:{column}"),
    }
}

/// The mark of a frame's tier, whatever runtime the code comes from. None when the name still has it.
fn tier_mark(frame: FrameRef<'_>) -> Option<char> {
    if !matches!(frame.kind, FrameKind::Jit | FrameKind::Interpreter) {
        return None;
    }
    let mark = frame.tier?.mark();
    (!frame.name.trim_start().starts_with(mark)).then_some(mark)
}

/// A frame of a function whatever its tier: without the tier, and without its mark where the name has it.
pub(crate) fn merge_tiers(frame: FrameRef<'_>) -> FrameRef<'_> {
    let kind = match frame.kind {
        FrameKind::Interpreter => FrameKind::Jit,
        kind => kind,
    };
    let Some(tier) = frame.tier.filter(|_| kind == FrameKind::Jit) else { return FrameRef { kind, ..frame } };
    FrameRef { name: tier.unmarked(frame.name.trim_start()), kind, tier: None, ..frame }
}

/// The frames that stand for a task in front of its stack: its process, by number if asked for, the thread's name, and
/// `comm-tid` if asked for.
pub(super) fn task_frames(task: &Task, options: &OutputOptions, processes: &ProcessNames) -> Vec<String> {
    let comm = printable(&task.comm);
    let mut frames = Vec::with_capacity(3);
    if options.per_process {
        frames.push(processes.root(task));
    } else {
        frames.extend(processes.in_front(task).map(Cow::into_owned));
    }
    frames.push(comm.clone().into_owned());
    if options.per_thread {
        frames.push(format!("{comm}-{}", task.tid));
    }
    frames
}

/// A frame of a folded line: `;` becomes `:`, as perf's own scripts do it, because the format has no escape for it. A
/// name that ends in a blank and a number gets `_` for that blank, or readers would take the number for a count.
pub(super) fn folded_name(name: &str) -> Cow<'_, str> {
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

/// A frame's name for the SVG: at most [`MAX_SVG_NAME_BYTES`] long. Of a longer one the end stays, where its place stands.
pub(super) fn svg_name(name: &str) -> Cow<'_, str> {
    if name.len() <= MAX_SVG_NAME_BYTES {
        return Cow::Borrowed(name);
    }
    let end = name.ceil_char_boundary(name.len() - MAX_SVG_NAME_BYTES / 4);
    let begin = shorten(name, MAX_SVG_NAME_BYTES - (name.len() - end));
    Cow::Owned(format!("{begin}{}", &name[end..]))
}

/// Longest path that is shown with a line, in bytes.
const MAX_PATH_BYTES: usize = 120;

/// A path whose middle is left out if it is long: its end says which file it is.
pub(crate) fn short_path(path: &str) -> Cow<'_, str> {
    if path.len() <= MAX_PATH_BYTES {
        return Cow::Borrowed(path);
    }
    let begin = path.floor_char_boundary(MAX_PATH_BYTES / 4);
    let rest = path.ceil_char_boundary(path.len() - MAX_PATH_BYTES / 2);
    // From a directory on, if one begins there.
    let end = path[rest..].find('/').map_or(rest, |slash| rest + slash);
    Cow::Owned(format!("{}…{}", &path[..begin], &path[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_long_paths_and_names_the_end_stays() {
        let path = format!("/srv/{}/lib/cart.js", "deep/".repeat(60));
        let short = short_path(&path);
        assert!(short.starts_with("/srv/deep/") && short.ends_with("/lib/cart.js") && short.len() <= 120, "{short}");
        assert_eq!(short_path("/srv/lib/cart.js"), "/srv/lib/cart.js");
        let name = format!("{} (cart.js:7)", "ä".repeat(600));
        let shown = svg_name(&name);
        assert!(shown.ends_with(" (cart.js:7)") && shown.contains("…#") && shown.len() <= 512, "{shown}");
    }
}
