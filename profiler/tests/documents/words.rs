//! One word for each thing, the one that the field uses.

use crate::source::rust;
use crate::{assert_none, markdown};

/// Words that were used for a thing that has a better known name, and that name.
const RETIRED: [(&str, &str); 15] = [
    ("kernel part", "BPF program"),
    ("side band", "sideband"),
    ("homeless", "pending"),
    ("late rows", "deferred unwinding"),
    ("late unwind", "deferred unwinding"),
    ("endless recording", "continuous recording"),
    ("recording without end", "continuous recording"),
    ("that stays on", "continuous"),
    ("memo of rows", "row cache"),
    ("piece of the stack", "stack snapshot"),
    ("pieces of stack", "stack snapshots"),
    ("forget", "evict, remove or drop"),
    ("forgotten", "evicted, removed or dropped"),
    ("births", "fork log"),
    ("shelf", "index or block"),
];

/// Words of README.md, CONTRIBUTING.md and docs/ at most, without the figures that commands print. Who adds a sentence looks
/// for one that can go.
const MAX_WORDS: usize = 30_000;
/// A stranger reads README.md in some minutes, or not at all.
const MAX_README_WORDS: usize = 1_000;

#[test]
fn the_documents_are_short_enough_to_be_read() {
    // The bars of tables and other signs are no words.
    let words = |text: &str| {
        let words = without_blocks(text);
        words.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).count()
    };
    let is_ours = |path: &str| path.starts_with("docs/") || matches!(path, "README.md" | "CONTRIBUTING.md");
    let documents = markdown::all();
    let counts: Vec<(&str, usize)> = documents
        .iter()
        .filter(|document| is_ours(&document.path))
        .map(|document| (document.path.as_str(), words(&document.text)))
        .collect();
    let total: usize = counts.iter().map(|(_, count)| count).sum();
    assert!(total <= MAX_WORDS, "{total} words, at most {MAX_WORDS}: {counts:?}");
    let readme = counts.iter().find(|(path, _)| *path == "README.md").expect("there is a README.md").1;
    assert!(readme <= MAX_README_WORDS, "{readme} words in README.md, at most {MAX_README_WORDS}");
}

/// A text without what stands between the markers of figures.
fn without_blocks(text: &str) -> String {
    let mut parts = text.split("<!-- bench:");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once("<!-- /bench:").map_or("", |(_, behind)| behind))
}

#[test]
fn things_have_the_names_that_the_field_gives_them() {
    let documents = markdown::all();
    let texts = documents.iter().map(|document| (&document.path, &document.text));
    let sources =
        rust().filter(|source| !source.path.ends_with("documents/words.rs")).map(|source| (&source.path, &source.text));
    let mut wrong = Vec::new();
    for (path, text) in texts.chain(sources) {
        for (index, line) in text.lines().enumerate() {
            let lower = line.to_lowercase();
            for (old, new) in RETIRED.iter().filter(|(old, _)| lower.contains(old)) {
                wrong.push(format!("{path}:{}: \"{old}\" is called {new}", index + 1));
            }
        }
    }
    assert_none("words", wrong);
}
