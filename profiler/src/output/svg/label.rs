//! What stands on a box: of a name, as much as there is room for, without the part that tells least.
//!
//! `labels.js` does the same in a browser, where boxes change their width.

/// Characters that end a word in which a path may stand.
const ENDS_OF_WORDS: &[char] = &[' ', '(', ')', ':', ';', ',', '<', '>'];

/// Stands for what was left out.
const CUT: &str = "..";

/// At most `room` characters of a name. A name that is too long loses the directories of its files first, and one namespace
/// after the other. If it ends in a place or a member, such as `cart.js:7` or `Cart.sum`, its middle is left out then, else
/// its end.
pub(super) fn label(name: &str, room: usize) -> String {
    if name.chars().count() <= room {
        return name.to_owned();
    }
    let short = without_directories(name);
    let name: Vec<char> = without_namespaces(&short, room).chars().collect();
    if name.len() <= room {
        return name.into_iter().collect();
    }
    let kept = room.saturating_sub(CUT.len());
    let tail = if ends_in_place(&name) { kept / 2 } else { 0 };
    let (head, tail) = (&name[..kept - tail], &name[name.len() - tail..]);
    head.iter().copied().chain(CUT.chars()).chain(tail.iter().copied()).collect()
}

/// A name in which files have no directories: `run (/srv/lib/cart.js:7)` is `run (cart.js:7)`.
fn without_directories(name: &str) -> String {
    let mut short = String::with_capacity(name.len());
    for word in name.split_inclusive(ENDS_OF_WORDS) {
        match word.rsplit_once('/') {
            Some((directories, file)) if is_file(file.trim_end_matches(ENDS_OF_WORDS)) => {
                if directories.starts_with('/') && short.ends_with(':') {
                    // A scheme, as in `file:///srv/cart.js`.
                    let before = short.trim_end_matches(':').trim_end_matches(|c: char| c.is_ascii_lowercase()).len();
                    short.truncate(before);
                }
                short.push_str(file);
            }
            _ => short.push_str(word),
        }
    }
    short
}

/// What is left of a name when it has lost as many of the namespaces that it begins with as it takes to fit.
fn without_namespaces(mut name: &str, room: usize) -> &str {
    while name.chars().count() > room
        && let Some(rest) = behind_namespace(name)
    {
        name = rest;
    }
    name
}

/// What follows the first `::` that is in no brackets.
fn behind_namespace(name: &str) -> Option<&str> {
    let mut depth = 0_u32;
    for (at, c) in name.char_indices() {
        match c {
            '(' | '<' => depth += 1,
            ')' | '>' => depth = depth.saturating_sub(1),
            ':' if depth == 0 => {
                if let Some(rest) = name[at..].strip_prefix("::") {
                    return Some(rest);
                }
            }
            _ => {}
        }
    }
    None
}

/// Whether a word is a name with an extension.
fn is_file(word: &str) -> bool {
    word.rsplit_once('.').is_some_and(|(stem, extension)| !stem.is_empty() && !extension.is_empty())
}

/// Whether a name ends in `.word`, `.word:7` or one of both and `)`.
fn ends_in_place(name: &[char]) -> bool {
    let mut rest = name;
    if let [before @ .., ')'] = rest {
        rest = before;
    }
    let digits = rest.iter().rev().take_while(|c| c.is_ascii_digit()).count();
    if let [before @ .., ':'] = &rest[..rest.len() - digits]
        && digits > 0
    {
        rest = before;
    }
    let word = rest.iter().rev().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '$')).count();
    word > 0 && rest[..rest.len() - word].ends_with(&['.'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tells_functions_apart_stays() {
        for (name, room, shown) in [
            ("main", 4, "main"),
            // No place in it: the beginning of the function's own name tells most.
            ("v8::Execution::Call(v8::Isolate*)", 30, "Execution::Call(v8::Isolate*)"),
            ("v8::Execution::Call(v8::Isolate*)", 18, "Call(v8::Isolate*)"),
            ("v8::Execution::Call(v8::Isolate*)", 16, "Call(v8::Isola.."),
            ("v8::(anonymous namespace)::Invoke<a::b>", 20, "Invoke<a::b>"),
            // Directories go first.
            ("run (/srv/app/lib/cart.js:7)", 28, "run (/srv/app/lib/cart.js:7)"),
            ("run (/srv/app/lib/cart.js:7)", 27, "run (cart.js:7)"),
            ("(anonymous file:///srv/app/cart.mjs:7)", 30, "(anonymous cart.mjs:7)"),
            ("/usr/lib/python3/site-packages/flask/app.py", 10, "app.py"),
            ("a (x/y.c:1) b (z/w.c:2)", 20, "a (y.c:1) b (w.c:2)"),
            // Then the middle.
            ("/srv/app/lib/shopping_cart_of_mine.js:117", 20, "shopping_..ne.js:117"),
            ("com.example.shop.Cart.sumOfAllItems", 20, "com.examp..fAllItems"),
            // No file: a regular expression, an operator, a directory.
            ("RegExp:/ab+c/", 12, "RegExp:/ab.."),
            ("operator/(Big const&)", 12, "operator/(.."),
            ("größer als (/ä/ö.js:1)", 16, "größer ..ö.js:1)"),
            ("main", 3, "m.."),
            ("main", 0, ".."),
        ] {
            assert_eq!(label(name, room), shown, "{name} in {room}");
        }
    }
}
