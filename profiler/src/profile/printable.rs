//! Text that a target chose, made fit to be shown.
//!
//! The target chooses the names of its functions, files and threads. Shown as they are, they could break a line-based
//! format, make XML invalid, send escape sequences to a terminal or turn the direction of the text that follows.

use std::borrow::Cow;

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
