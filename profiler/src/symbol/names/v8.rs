//! V8: `TAG:` then, for JavaScript, a tier mark, the function and where its source begins.
//!
//! ```text
//! JS:*leafHot /srv/app/burn.js:2:17
//! │  │ │       │               │  └ column, not kept
//! │  │ │       └ script        └ line
//! │  │ └ function; empty for an anonymous one
//! │  └ ~ interpreted, ^ Sparkplug, + Maglev, * TurboFan; with ' after it when specialised to a context (V8 13)
//! └ JS since V8 9.5; LazyCompile, Function, Script, Eval before
//! ```
//!
//! Marks: `CodeKindToMarker` in V8's `src/objects/code-kind.cc`. WebAssembly functions have the tag `Function` and end
//! in `-INDEX-liftoff` or `-INDEX-turbofan` (`src/logging/log.cc`).

use super::{JitName, builtin, function, source, split_number};
use crate::symbol::{FrameKind, Tier};

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
    let (name, source) = match split_place(rest) {
        Some((name, file, line)) => (name.trim_end(), source(file, line)),
        None => (rest, None),
    };
    let display = match (name, tag) {
        ("", "Script" | "Eval") => "(top level)",
        ("", _) => "(anonymous)",
        (name, _) => name,
    };
    let kind = if tier == Some(Tier::Interpreted) { FrameKind::Interpreter } else { FrameKind::Jit };
    Some(JitName { kind, tier, source, ..function(display) })
}

fn split_tier(name: &str) -> (Option<Tier>, &str) {
    let mut rest = name.chars();
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

/// Function name, script, line of `NAME SCRIPT:LINE:COLUMN` or `NAME SCRIPT:LINE`.
///
/// Both can contain blanks (`get size`, `/my app/a.js`): the script begins at the first word that looks like a path or
/// a URL, else at the last word.
fn split_place(text: &str) -> Option<(&str, &str, u32)> {
    let (head, last) = split_number(text, ':')?;
    let (place, line) = split_number(head, ':').unwrap_or((head, last));
    let blanks = || place.match_indices(' ').map(|(at, _)| at);
    let start = blanks().find(|at| begins_script(&place[at + 1..])).or_else(|| blanks().next_back())?;
    Some((&place[..start], &place[start + 1..], line))
}

fn begins_script(text: &str) -> bool {
    let word = text.split(' ').next().unwrap_or(text);
    let scheme = word.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    });
    word.starts_with('/') || word.starts_with("./") || scheme
}
