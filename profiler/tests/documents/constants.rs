//! Constants that documents quote: a table with the columns `value` and `constant`, whose last is a link to the file.

use std::fs;

use crate::markdown::{Document, Table, code_in};
use crate::{assert_none, markdown, root, source, written_by_hand};

/// A quantity as it is written: bytes, nanoseconds or a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Quantity {
    Number(f64),
    Nanoseconds(f64),
}

/// The rows of all tables of constants: document, line, value, constant, file.
pub(crate) fn rows(documents: &[Document]) -> Vec<(String, String, String, String)> {
    let mut rows = Vec::new();
    for document in documents {
        let links = document.links();
        for table in document.tables() {
            let (Some(value), Some(constant)) = (table.column("value"), table.column("constant")) else { continue };
            for (line, cells) in &table.rows {
                let place = format!("{}:{line}", document.path);
                let link = links.iter().find(|link| link.line == *line && link.target.ends_with(".rs"));
                let file = link.map(|link| document.resolve(&link.target)).unwrap_or_default();
                let name = code_in(cells.get(constant).map_or("", |cell| cell)).concat();
                rows.push((place, cells.get(value).cloned().unwrap_or_default(), name, file));
            }
            assert!(!table.rows.is_empty(), "{}: a table of constants without a row", document.path);
            let _checked: &Table = &table;
        }
    }
    rows
}

#[test]
fn constants_are_those_of_the_source() {
    let rows = rows(&markdown::all());
    assert!(rows.len() > 100, "the documents quote constants: {}", rows.len());
    let mut wrong = Vec::new();
    for (place, value, name, file) in rows {
        let Ok(text) = fs::read_to_string(root().join(&file)) else {
            wrong.push(format!("{place}: {name} has no file"));
            continue;
        };
        match (quantity(&value), evaluate(&name, &text)) {
            (Some(said), Some(is)) if is_same(said, is) => {}
            (said, is) => wrong.push(format!("{place}: {name} of {file} is {is:?}, not {value:?} ({said:?})")),
        }
    }
    assert_none("constants", wrong);
}

/// Sizes and large numbers in prose are those of a table, so that they are looked at when the constant changes.
#[test]
fn quantities_in_prose_are_those_of_a_table() {
    let documents = markdown::all();
    let known: Vec<Quantity> = rows(&documents).iter().filter_map(|(_, value, ..)| quantity(value)).collect();
    let mut wrong = Vec::new();
    for document in written_by_hand(&documents).filter(|document| document.path.starts_with("docs/")) {
        for (line, text) in document.lines() {
            for said in sizes_in(text) {
                let is_known = quantity(&said).is_some_and(|said| known.contains(&said));
                if !is_known && !FOREIGN.contains(&said.as_str()) {
                    wrong.push(format!("{}:{line}: {said} is the value of no constant in a table", document.path));
                }
            }
        }
    }
    assert_none("quantities", wrong);
}

/// Sizes that others have chosen.
const FOREIGN: [&str; 4] = [
    // Of glibc's buffers, and what their producers ask for in vain.
    "4 KiB", "2 MiB",  // What the kernel lets a value of a per-CPU map have, and its stacks.
    "32 KiB", // musl's buffer.
    "1 KiB",
];

/// `16 KiB`, `4,096`, `2²⁰` and the like in a line.
fn sizes_in(line: &str) -> Vec<String> {
    let words: Vec<&str> =
        line.split(|c: char| c.is_whitespace() || matches!(c, '(' | ')' | '|' | ';' | '/' | '*' | '`')).collect();
    let mut sizes = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let word = word.trim_matches(|c: char| matches!(c, ',' | '.' | ':'));
        let next = words.get(index + 1).map_or("", |next| next.trim_matches(|c: char| !c.is_alphanumeric()));
        let is_number = word.starts_with(|c: char| c.is_ascii_digit());
        let is_grouped = word.len() > 4 && word.contains(',') && word.chars().all(|c| c.is_ascii_digit() || c == ',');
        if is_number && matches!(next, "KiB" | "MiB" | "GiB") {
            sizes.push(format!("{word} {next}"));
        } else if is_grouped {
            sizes.push(word.to_owned());
        }
    }
    sizes
}

/// What a value says. The unit stands behind a blank: `64 KiB`, `100 ms`, `4,096`, `2^20`.
pub(crate) fn quantity(text: &str) -> Option<Quantity> {
    let text = text.trim().trim_matches('`');
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let number: f64 = match number.split_once('^') {
        Some((base, exponent)) => base.parse::<f64>().ok()?.powi(exponent.parse().ok()?),
        None => number.replace(',', "").parse().ok()?,
    };
    let time = |ns: f64| Some(Quantity::Nanoseconds(number * ns));
    match unit {
        "" | "Hz" | "bytes" | "%" | "frames" => Some(Quantity::Number(number)),
        "KiB" => Some(Quantity::Number(number * 1024.0)),
        "MiB" => Some(Quantity::Number(number * 1024.0 * 1024.0)),
        "GiB" => Some(Quantity::Number(number * 1024.0 * 1024.0 * 1024.0)),
        "ms" => time(1e6),
        "s" => time(1e9),
        "min" => time(60e9),
        "h" => time(3600e9),
        _ => None,
    }
}

fn is_same(said: Quantity, is: Quantity) -> bool {
    let (Quantity::Number(a) | Quantity::Nanoseconds(a), Quantity::Number(b) | Quantity::Nanoseconds(b)) = (said, is);
    std::mem::discriminant(&said) == std::mem::discriminant(&is) && (a - b).abs() <= 1e-9 * a.abs()
}

/// The value of a constant: `NAME`, or `NAME.field` where it is a struct's.
fn evaluate(name: &str, text: &str) -> Option<Quantity> {
    let (constant, field) = name.split_once('.').map_or((name, None), |(constant, field)| (constant, Some(field)));
    let expression = match field {
        Some(field) => field_of(field, &definition(constant, text).unwrap_or_else(|| text.to_owned()))?,
        None => definition(constant, text)?,
    };
    let is_time = |suffix: &str, unit: f64| constant.ends_with(suffix).then_some(unit);
    let unit = is_time("_NS", 1.0).or_else(|| is_time("_MS", 1e6)).or_else(|| is_time("_S", 1e9));
    for (call, unit) in [("Duration::from_millis(", 1e6), ("Duration::from_secs(", 1e9)] {
        if let Some(inner) = expression.strip_prefix(call) {
            let number = Reader::new(inner.trim_end_matches(')'), text).sum()?;
            return Some(Quantity::Nanoseconds(number * unit));
        }
    }
    let expression = expression.strip_prefix("Some(").map_or(expression.clone(), |inner| inner.replace(')', ""));
    let number = Reader::new(&expression, text).sum()?;
    Some(unit.map_or(Quantity::Number(number), |unit| Quantity::Nanoseconds(number * unit)))
}

/// What stands behind a field's `:` where it is given a number. Without a constant of the struct that is its default.
fn field_of(field: &str, text: &str) -> Option<String> {
    let name = format!("{field}: ");
    let is_number = |value: &str| value.starts_with("Duration::") || value.starts_with(|c: char| c.is_ascii_digit());
    let found = text.match_indices(&name).find(|(at, _)| {
        let is_whole = !text[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        is_whole && is_number(&text[at + name.len()..])
    });
    Some(text[found?.0 + name.len()..].split([',', '}']).next()?.trim().to_owned())
}

/// What stands behind a constant's `=`.
fn definition(name: &str, text: &str) -> Option<String> {
    let at = text.find(&format!("const {name}: "))?;
    let rest = &text[at..];
    let rest = &rest[rest.find('=')? + 1..];
    let end = rest.find(";\n").or_else(|| rest.find(';'))?;
    let value = rest[..end].trim();
    // Documents tell of what is shipped, not of what tests make do with.
    let shipped = value.strip_prefix("if cfg!(test)").and_then(|value| value.split_once("else {"));
    Some(shipped.map_or(value, |(_, value)| value.trim_end_matches('}').trim()).to_owned())
}

/// Reads an expression of numbers, other constants, `+ - * / <<`, casts and brackets.
struct Reader<'a> {
    tokens: Vec<String>,
    at: usize,
    text: &'a str,
}

impl<'a> Reader<'a> {
    fn new(expression: &str, text: &'a str) -> Self {
        let mut tokens: Vec<String> = Vec::new();
        let mut word = false;
        for character in expression.chars() {
            let is_word = character.is_alphanumeric() || matches!(character, '_' | '.' | ':');
            if character.is_whitespace() {
                word = false;
                continue;
            }
            match tokens.last_mut() {
                Some(last) if is_word && word => last.push(character),
                Some(last) if character == '<' && last == "<" => last.push('<'),
                _ => tokens.push(character.to_string()),
            }
            word = is_word;
        }
        // Casts change nothing here.
        let mut kept: Vec<String> = Vec::new();
        let mut tokens = tokens.into_iter();
        while let Some(token) = tokens.next() {
            if token == "as" {
                tokens.next();
            } else {
                kept.push(token);
            }
        }
        Self { tokens: kept, at: 0, text }
    }

    fn next_is(&mut self, wanted: &[&str]) -> Option<String> {
        let token = self.tokens.get(self.at).filter(|token| wanted.contains(&token.as_str()))?.clone();
        self.at += 1;
        Some(token)
    }

    /// Shifts bind the least, as in Rust.
    fn sum(&mut self) -> Option<f64> {
        let mut value = self.terms()?;
        while self.next_is(&["<<"]).is_some() {
            value *= 2f64.powf(self.terms()?);
        }
        (self.at == self.tokens.len() || self.tokens[self.at] == ")").then_some(value)
    }

    fn terms(&mut self) -> Option<f64> {
        let mut value = self.factors()?;
        while let Some(sign) = self.next_is(&["+", "-"]) {
            let other = self.factors()?;
            value += if sign == "+" { other } else { -other };
        }
        Some(value)
    }

    fn factors(&mut self) -> Option<f64> {
        let mut value = self.value()?;
        while let Some(sign) = self.next_is(&["*", "/"]) {
            let other = self.value()?;
            value = if sign == "*" { value * other } else { value / other };
        }
        Some(value)
    }

    fn value(&mut self) -> Option<f64> {
        let token = self.tokens.get(self.at)?.clone();
        self.at += 1;
        if token == "(" {
            let value = self.sum()?;
            self.next_is(&[")"])?;
            return Some(value);
        }
        if token.starts_with(|c: char| c.is_ascii_digit()) {
            return match token.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(&digits.replace('_', ""), 16).ok().map(|number| number as f64),
                None => token.replace('_', "").parse().ok(),
            };
        }
        let name = token.rsplit("::").next()?;
        let elsewhere =
            || source::rust().find_map(|source| definition(name, &source.text).map(|found| (found, source)));
        match definition(name, self.text) {
            Some(found) => Reader::new(&found, self.text).sum(),
            None => elsewhere().and_then(|(found, source)| Reader::new(&found, &source.text).sum()),
        }
    }
}

#[test]
fn expressions_are_read_as_rust_reads_them() {
    let text = "const A: usize = 4 << 10;\npub const B: u64 = A as u64 * 2;\nconst C: Duration = Duration::from_millis(50);\n\
                const D_NS: u64 = 1_000;\nconst G: u8 = if cfg!(test) { 1 } else { 2 << 3 };\nconst E: Self = Self { rows: 1 << 3, idle: Duration::from_secs(2) };\n";
    let of = |name| evaluate(name, text);
    assert_eq!(of("A"), Some(Quantity::Number(4096.0)));
    assert_eq!(of("B"), Some(Quantity::Number(8192.0)));
    assert_eq!(of("C"), Some(Quantity::Nanoseconds(50e6)));
    assert_eq!(of("D_NS"), Some(Quantity::Nanoseconds(1000.0)));
    assert_eq!(of("E.rows"), Some(Quantity::Number(8.0)));
    assert_eq!(of("F"), None);
    assert_eq!(of("G"), Some(Quantity::Number(16.0)));
    assert_eq!(quantity("64 KiB"), Some(Quantity::Number(65536.0)));
    assert_eq!(quantity("2^20"), Some(Quantity::Number(1_048_576.0)));
    assert_eq!(sizes_in("at most 4,096 of 16 KiB (1,000)"), ["4,096", "16 KiB", "1,000"]);
}
