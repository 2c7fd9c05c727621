//! The engine opens nothing, asks no clock and owns no thread: by what its source names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Names that no path or call of the engine's has.
const FORBIDDEN: [&str; 27] = [
    "Command",
    "File",
    "Instant",
    "JoinHandle",
    "OpenOptions",
    "RandomState",
    "TcpStream",
    "UnixStream",
    "asm",
    "aya",
    "blazesym",
    "env",
    "eprintln",
    "fastrand",
    "fs",
    "io",
    "libc",
    "monotonic_now",
    "net",
    "now_v7",
    "os",
    "println",
    "rustix",
    "spawn",
    "thread",
    "tokio",
    "unsafe",
];
/// Modules of this crate whose types, and whose functions without side effects, it uses.
const MODULES: [&str; 11] =
    ["account", "advice", "cost", "engine", "output", "owners", "peek", "process", "profile", "runtime", "symbol"];

/// The identifiers and punctuation of a source, without comments, strings and characters.
fn tokens(source: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c == '_' || c.is_alphanumeric();
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("'\"'") {
            3
        } else if first == '"' {
            let end = rest.char_indices().skip(1).scan(false, |escaped, (at, c)| {
                let ends = c == '"' && !*escaped;
                *escaped = c == '\\' && !*escaped;
                Some((at, ends))
            });
            end.into_iter().find(|(_, ends)| *ends).map_or(rest.len(), |(at, _)| at + 1)
        } else if is_word(first) {
            let word = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
            tokens.push(word.to_owned());
            word.len()
        } else {
            if !first.is_whitespace() {
                tokens.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    tokens
}

/// What a source names that it must not.
fn misuses(source: &str) -> BTreeSet<String> {
    let tokens = tokens(source);
    let (mut misuses, mut is_import) = (BTreeSet::new(), false);
    for (index, token) in tokens.iter().enumerate() {
        let follows = |at: usize| tokens.get(index + at).map_or("", String::as_str);
        let is_path = follows(1) == ":" && follows(2) == ":";
        is_import = token == "use" || is_import && token != ";";
        let before = index.checked_sub(1).map_or("", |before| tokens[before].as_str());
        // A field, a variable or a variant may have such a name; a module, a call and a type from elsewhere may not.
        let is_used = is_import || is_path || matches!(follows(1), "(" | "!") || matches!(token.as_str(), "unsafe");
        let is_own = before == "." && token != "spawn" || !is_path && token.starts_with(char::is_uppercase);
        if FORBIDDEN.contains(&token.as_str()) && is_used && (is_import || !is_own) {
            misuses.insert(token.clone());
        }
        if token == "SystemTime" && is_path && follows(3) == "now" {
            misuses.insert("SystemTime::now".to_owned());
        }
        if token == "crate" && is_path && !MODULES.contains(&follows(3)) {
            misuses.insert(format!("crate::{}", follows(3)));
        }
    }
    misuses
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            sources(&path, found);
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

#[test]
fn the_engine_opens_nothing_and_asks_no_clock() {
    let mut found = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine"), &mut found);
    assert!(found.len() > 20, "{found:?}");
    for path in found {
        let misuses = misuses(&fs::read_to_string(&path).unwrap());
        assert!(misuses.is_empty(), "{} names {misuses:?}", path.display());
    }
}

#[test]
fn what_must_not_be_named_is_found() {
    for misuse in [
        "use std::fs;",
        "use std::{fs, mem};",
        "use std::io::Read;",
        "let file = File::open(path)?;",
        "let now = std::time::Instant::now();",
        "let t = SystemTime::now();",
        "let pid = libc::getpid();",
        "builder.spawn(|| {})",
        "unsafe { f() }",
        "use crate::kernel::Sampler;",
        "let now = monotonic_now();",
    ] {
        assert_ne!(misuses(misuse), BTreeSet::new(), "{misuse}");
    }
    for fine in [
        "// std::fs",
        "let text = \"a \\\" File::open\";",
        "self.file.env",
        "let c = '\"'; // File::open",
        "SymbolKey::File(file, 1)",
        "enum Place { File(FileId) }",
        "|libc| name.starts_with(libc)",
        "use std::time::{Duration, SystemTime};",
    ] {
        assert_eq!(misuses(fine), BTreeSet::new(), "{fine}");
    }
}
