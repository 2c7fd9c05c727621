//! V8: `TAG:` then, for JavaScript, a tier mark, the function and where its source begins.
//!
//! ```text
//! JS:*leafHot /srv/app/burn.js:2:17
//! │  │ │       │               │  └ column
//! │  │ │       └ script        └ line
//! │  │ └ function; empty for an anonymous one, which is told from others by its place: (anonymous burn.js:2:17)
//! │  └ ~ interpreted, ^ Sparkplug, + Maglev, * TurboFan; with ' after it when specialised to a context (V8 13)
//! └ JS since V8 9.5; LazyCompile, Function, Script, Eval before
//! ```
//!
//! Marks: `CodeKindToMarker` in V8's `src/objects/code-kind.cc`. WebAssembly functions have the tag `Function` and end
//! in `-INDEX-liftoff` or `-INDEX-turbofan` (`src/logging/log.cc`).

use std::borrow::Cow;
use std::fmt;

use super::{JitName, builtin, function, source, split_number};
use crate::symbol::{FrameKind, Tier};

/// From this column on nobody has written a function by hand: of a file that a program has made smaller, names are a letter, and
/// many functions have the same one.
const MADE_COLUMN: u32 = 200;

/// Tags of code that runs the user's functions.
const FUNCTION_TAGS: [&str; 6] = ["JS", "LazyCompile", "Function", "Script", "Eval", "InterpretedFunction"];

/// Tags of V8's own code. The tag stays in the display: `Builtin:Add` and `BytecodeHandler:Add` are different things.
const OWN_TAGS: [&str; 5] = ["Builtin", "BytecodeHandler", "Handler", "Stub", "Callback"];

pub(super) fn classify(name: &str) -> Option<JitName> {
    let (tag, rest) = name.split_once(':')?;
    if OWN_TAGS.contains(&tag) {
        return Some(builtin(name));
    }
    if tag == "RegExp" {
        // Compiled from the user's pattern.
        return Some(function(name));
    }
    if !FUNCTION_TAGS.contains(&tag) || rest.starts_with(':') {
        return None;
    }
    let (tier, rest) = split_tier(rest);
    if tier.is_none()
        && let Some(wasm) = wasm(rest)
    {
        return Some(wasm);
    }
    let (name, place) = match split_place(rest) {
        Some((name, place)) => (name.trim_end(), Some(place)),
        None => (rest, None),
    };
    let display = match (name, tag, place) {
        ("", "Script" | "Eval", _) => Cow::Borrowed("(top level)"),
        ("", _, Some(place)) if !place.script.is_empty() => Cow::Owned(format!("(anonymous {place})")),
        ("", ..) => Cow::Borrowed("(anonymous)"),
        (name, _, Some(place)) if place.is_made() => Cow::Owned(format!("{name} ({place})")),
        (name, ..) => Cow::Borrowed(name),
    };
    let source = place.and_then(|place| source(place.script, place.line));
    let kind = if tier == Some(Tier::Interpreted) { FrameKind::Interpreter } else { FrameKind::Jit };
    Some(JitName { kind, tier, source, ..function(display) })
}

pub(super) fn is_optimised(name: &str) -> bool {
    let function = name.split_once(':').filter(|(tag, _)| FUNCTION_TAGS.contains(tag));
    function.is_some_and(|(_, rest)| matches!(split_tier(rest).0, Some(Tier::Mid | Tier::Optimized)))
}

fn split_tier(name: &str) -> (Option<Tier>, &str) {
    // Since V8 13 code that a running loop has gone over to is marked so.
    let entered_by_loop = name.strip_prefix('o').filter(|rest| rest.starts_with(['*', '+']));
    let mut rest = entered_by_loop.unwrap_or(name).chars();
    let tier = match rest.next() {
        Some('~') => Tier::Interpreted,
        Some('^') => Tier::Baseline,
        Some('+') => Tier::Mid,
        Some('*') => Tier::Optimized,
        _ => return (None, name),
    };
    let rest = rest.as_str();
    (Some(tier), rest.strip_prefix('\'').unwrap_or(rest))
}

fn wasm(name: &str) -> Option<JitName> {
    let (head, tier) = match name.strip_suffix("-liftoff") {
        Some(head) => (head, Tier::Baseline),
        None => (name.strip_suffix("-turbofan")?, Tier::Optimized),
    };
    let (wasm_name, _) = split_number(head, '-')?;
    Some(JitName { tier: Some(tier), ..function(wasm_name) })
}

/// Where a function begins.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    script: &'a str,
    line: u32,
    column: Option<u32>,
}

impl Place<'_> {
    /// Whether its line was made by a program.
    fn is_made(&self) -> bool {
        self.column.is_some_and(|column| column >= MADE_COLUMN)
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}:{}", short_script(self.script), self.line)?;
        self.column.map_or(Ok(()), |column| write!(to, ":{column}"))
    }
}

/// Function name and place of `NAME SCRIPT:LINE:COLUMN` or `NAME SCRIPT:LINE`.
///
/// Both can contain blanks (`get size`, `/my app/a.js`): the script begins at the first word that looks like a path or
/// a URL, else at the last word.
fn split_place(text: &str) -> Option<(&str, Place<'_>)> {
    let (head, last) = split_number(text, ':')?;
    let (place, line, column) = match split_number(head, ':') {
        Some((place, line)) => (place, line, Some(last)),
        None => (head, last, None),
    };
    let blanks = || place.match_indices(' ').map(|(at, _)| at);
    let start = blanks().find(|at| begins_script(&place[at + 1..])).or_else(|| blanks().next_back())?;
    Some((&place[..start], Place { script: &place[start + 1..], line, column }))
}

/// What tells a script from others: its file, below its directory where many are called the same; the whole of a module of
/// Node's own.
fn short_script(file: &str) -> &str {
    if file.starts_with("node:") {
        return file;
    }
    let mut slashes = file.rmatch_indices('/').map(|(at, _)| at + 1);
    let base = slashes.next().unwrap_or(0);
    let stem = file[base..].split('.').next().unwrap_or_default();
    let is_common = matches!(stem, "index" | "main" | "mod" | "app" | "server");
    &file[if is_common { slashes.next().unwrap_or(base) } else { base }..]
}

fn begins_script(text: &str) -> bool {
    // Node's own name for text that it was given, such as `[worker eval]`.
    let in_brackets = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    if in_brackets.is_some_and(|inner| !inner.contains(['[', ']'])) {
        return true;
    }
    let word = text.split(' ').next().unwrap_or(text);
    let scheme = word.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    });
    word.starts_with('/') || word.starts_with("./") || scheme
}
