//! What stands on a box: of a name, as much as there is room for, without the part that tells least.
//!
//! `labels.js` does the same in a browser, where boxes change their width.

/// Characters that end a word in which a path may stand.
const ENDS_OF_WORDS: &[char] = &[' ', '(', ')', ':', ';', ',', '<', '>'];

/// Stands for what was left out.
const CUT: &str = "..";

/// At most `room` characters of a name. A name that is too long loses the directories of its files first, and one namespace
/// after the other. If it ends in a place or a member, such as `cart.js:7` or `Cart.sum`, its middle is left out then; else
/// what stands behind the function's own name, and the middle of this if there is no room for it either.
pub(super) fn label(name: &str, room: usize) -> String {
    if name.chars().count() <= room {
        return name.to_owned();
    }
    let short = without_directories(name);
    let name: Vec<char> = without_namespaces(&short, room).chars().collect();
    let own = own_name(&name);
    let half = room.saturating_sub(CUT.len()) / 2;
    if ends_in_place(&name) || own.len() == name.len() {
        cut(&name, room, half)
    } else if name.len() > room && own.len() + CUT.len() > room {
        cut(own, room, half)
    } else {
        cut(&name, room, 0)
    }
}

/// At most `room` characters, the last `tail` of the name's among them.
fn cut(name: &[char], room: usize, tail: usize) -> String {
    if name.len() <= room {
        return name.iter().collect();
    }
    let kept = room.saturating_sub(CUT.len());
    let (head, tail) = (&name[..kept - tail], &name[name.len() - tail..]);
    head.iter().copied().chain(CUT.chars()).chain(tail.iter().copied()).collect()
}

/// A function's name without its arguments or what else stands behind it.
fn own_name(name: &[char]) -> &[char] {
    let behind = name.iter().skip(1).position(|c| matches!(c, ' ' | '(' | '<' | '['));
    match name {
        ['(' | '<' | '[', ..] => name,
        _ => &name[..behind.map_or(name.len(), |at| at + 1)],
    }
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

/// What is left of a name when it has lost as many of the namespaces that it begins with as it takes to fit. What stands in
/// brackets is no namespace.
fn without_namespaces(name: &str, room: usize) -> &str {
    let (mut depth, mut begin, mut left) = (0_u32, 0, name.chars().count());
    for (at, c) in name.char_indices() {
        if left <= room {
            break;
        }
        match c {
            '(' | '<' => depth += 1,
            ')' | '>' => depth = depth.saturating_sub(1),
            ':' if depth == 0 && at >= begin && name[at..].starts_with("::") && at + 2 < name.len() => {
                left -= name[begin..at + 2].chars().count();
                begin = at + 2;
            }
            _ => {}
        }
    }
    &name[begin..]
}

/// Whether a word is a name with an extension.
fn is_file(word: &str) -> bool {
    word.rsplit_once('.').is_some_and(|(stem, extension)| !stem.is_empty() && !extension.is_empty())
}

/// Whether a name ends in `.word`, `.word:7`, `.word:7:3` or one of these and `)`.
fn ends_in_place(name: &[char]) -> bool {
    let mut rest = name;
    if let [before @ .., ')'] = rest {
        rest = before;
    }
    let rest = without_number(without_number(rest));
    let word = rest.iter().rev().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '$')).count();
    word > 0 && rest[..rest.len() - word].ends_with(&['.'])
}

/// A name without the `:7` at its end.
fn without_number(name: &[char]) -> &[char] {
    let digits = name.iter().rev().take_while(|c| c.is_ascii_digit()).count();
    match &name[..name.len() - digits] {
        [before @ .., ':'] if digits > 0 => before,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names, room and what is shown; the page's test in a browser tries `labels.js` with the same.
    const CASES: &str = include_str!("label_cases.json");

    #[test]
    fn what_tells_functions_apart_stays() {
        let cases: Vec<(String, usize, String)> = serde_json::from_str(CASES).unwrap();
        assert!(cases.len() > 20);
        for (name, room, shown) in cases {
            assert_eq!(label(&name, room), shown, "{name} in {room}");
        }
    }

    #[test]
    fn no_label_is_longer_than_its_room() {
        for name in ["a::b::c(d::e, f)", "::::::::", "x.y:1", "(a b)", "a(", "größer<ä>", "a::", "/a/b.c/d.e f"] {
            for room in 2..20 {
                let shown = label(name, room);
                assert!(!shown.is_empty() && shown.chars().count() <= room, "{name} in {room}: {shown}");
            }
        }
    }
}
