//! Names of files, tests, functions and constants, and the table of unsafe code.

use std::collections::BTreeSet;

use jitprof_common::stop::StopReason;

use crate::markdown::code_in;
use crate::source::{ALL, FUNCTIONS, WORDS, code_of, rust};
use crate::{assert_none, markdown, root};

/// Folders of the repository besides the packages.
const FOLDERS: [&str; 5] = ["tests", "xtask", "contrib", "docs", ".ci"];

#[test]
fn every_file_that_is_named_exists() {
    let mut wrong = Vec::new();
    for document in &markdown::all() {
        for span in document.spans() {
            let text = span.text.as_str();
            let is_path = text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '/' | '-'));
            let first = text.split('/').next().unwrap_or_default();
            let is_folder = first.starts_with("profiler") || FOLDERS.contains(&first);
            let is_ours = text.ends_with(".rs") || (text.contains('/') && is_folder);
            // In a table of one folder's files, and in a package's own document, a name is enough.
            let ends = format!("/{text}");
            let exists = root().join(text).exists()
                || root().join(document.resolve(text)).exists()
                || (!text.contains('/') && rust().any(|source| source.path.ends_with(&ends)));
            if is_path && is_ours && !exists {
                wrong.push(format!("{}:{}: there is no {text}", document.path, span.line));
            }
        }
    }
    assert_none("files", wrong);
}

/// Tests, functions, fields and metrics; short words may be anything.
#[test]
fn every_name_is_in_the_source() {
    let mut wrong = Vec::new();
    for document in &markdown::all() {
        for span in document.spans() {
            let name = span.text.rsplit("::").next().unwrap_or_default().trim_end_matches("()");
            let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let parts = name.split('_').filter(|part| !part.is_empty()).count();
            let is_sentence = parts > 5 && !name.contains(|c: char| c.is_ascii_uppercase());
            let is_metric = name.starts_with("jitprof_");
            // Capitals are variables and constants of others, but for our bounds.
            let is_bound = name.starts_with("MAX_");
            let is_foreign = name.starts_with(|c: char| c.is_ascii_uppercase()) && !is_bound;
            let is_missing = if is_foreign {
                false
            } else if is_bound {
                !WORDS.contains(name)
            } else if is_sentence && !is_metric {
                !FUNCTIONS.contains(name)
            } else {
                parts > 3 && !WORDS.contains(name) && !is_part(name)
            };
            if is_name && is_missing {
                wrong.push(format!("{}:{}: nothing is called {name}", document.path, span.line));
            }
        }
    }
    assert_none("names", wrong);
}

/// Metrics are put together of a prefix and a name.
fn is_part(name: &str) -> bool {
    name.strip_prefix("jitprof_").is_some_and(|rest| WORDS.contains(rest))
}

/// `Type::name` and `name()` are what the source calls so.
#[test]
fn every_function_and_type_that_is_named_exists() {
    let mut wrong = Vec::new();
    for document in markdown::all().iter().filter(|document| document.path.starts_with("docs/")) {
        for span in document.spans() {
            let text = span.text.trim_end_matches("()");
            let Some((kind, name)) = text.rsplit_once("::") else {
                let is_call = span.text.ends_with("()") && !text.contains('.');
                if is_call && !FUNCTIONS.contains(text) && !WORDS.contains(text) {
                    wrong.push(format!("{}:{}: there is no fn {text}", document.path, span.line));
                }
                continue;
            };
            let kind = kind.rsplit("::").next().unwrap_or_default();
            let is_word = |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !is_word(kind) || !is_word(name) || FOREIGN.contains(&kind) {
                continue;
            }
            let is_function = name.starts_with(|c: char| c.is_ascii_lowercase());
            // A field may be named so, too.
            let is_known = WORDS.contains(name) || (is_function && FUNCTIONS.contains(name));
            if !is_known || !WORDS.contains(kind) {
                wrong.push(format!("{}:{}: there is no {text}", document.path, span.line));
            }
        }
    }
    assert_none("functions", wrong);
}

/// Types of others, and parts of names that profilers show.
const FOREIGN: [&str; 4] = ["Config", "ProfilingStrategy", "internal", "py"];

#[test]
fn the_table_of_unsafe_code_names_each_file_that_has_some() {
    let documents = markdown::all();
    let document = documents.iter().find(|document| document.path == "docs/design/architecture.md");
    let document = document.expect("there is a document on the architecture");
    let tables = document.tables();
    let table = tables.iter().find(|table| table.header.first().is_some_and(|cell| cell == "unsafe in"));
    let table = table.expect("it has a table of unsafe code");
    let named: BTreeSet<String> = table.rows.iter().flat_map(|(_, cells)| code_in(&cells[0])).collect();
    let has_unsafe = |text: &str| {
        let code = code_of(text);
        code.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == "unsafe")
    };
    let with: BTreeSet<String> = rust()
        .filter(|source| !source.path.contains("/documents/") && has_unsafe(&source.text))
        .map(|source| source.path.clone())
        .collect();
    let covers =
        |named: &String, file: &String| named == file || (named.ends_with('/') && file.starts_with(named.as_str()));
    let mut wrong: Vec<String> = Vec::new();
    wrong.extend(
        with.iter()
            .filter(|file| !named.iter().any(|row| covers(row, file)))
            .map(|file| format!("{file} is not in the table")),
    );
    wrong.extend(
        named.iter().filter(|row| !with.iter().any(|file| covers(row, file))).map(|row| format!("{row} has none")),
    );
    wrong.extend(
        named
            .iter()
            .filter(|row| row.ends_with('/') && !row.starts_with("tests/"))
            .map(|row| format!("{row} is no file")),
    );
    assert_none("unsafe code", wrong);
}

#[test]
fn every_reason_why_a_stack_ends_is_explained() {
    let documents = markdown::all();
    let document = documents.iter().find(|document| document.path == "docs/guide/accuracy.md");
    let text = &document.expect("there is a document on accuracy").text;
    let missing = StopReason::ALL.into_iter().map(StopReason::describe).filter(|reason| !text.contains(reason));
    assert_none("reasons", missing.map(str::to_owned).collect());
}

/// The words before the lines of the account, as the source writes them: padded to the column where the text begins.
fn keys_of_the_account() -> BTreeSet<String> {
    const COLUMN: usize = 11;
    let source = ALL.iter().find(|source| source.path == "profiler/src/account/account_text.rs");
    let literals = source.expect("the account is written there").text.split('"').skip(1).step_by(2);
    let key = |literal: &str| {
        let head = literal.get(..COLUMN).filter(|head| head.ends_with("  ") && !head.starts_with(' '))?;
        (!literal[COLUMN..].starts_with(' ')).then(|| head.trim_end().to_owned())
    };
    literals.filter_map(key).collect()
}

#[test]
fn every_line_of_the_account_is_explained() {
    let keys = keys_of_the_account();
    assert!(keys.len() >= 12 && keys.contains("samples") && keys.contains("perf map"), "{keys:?}");
    let documents = markdown::all();
    let document = documents.iter().find(|document| document.path == "docs/guide/troubleshooting.md");
    let tables = document.expect("there is a document on troubles").tables();
    let table = tables.iter().find(|table| table.header.first().is_some_and(|cell| cell == "line"));
    let rows = &table.expect("it has a table of the account's lines").rows;
    let shown: Vec<String> = rows.iter().flat_map(|(_, cells)| code_in(&cells[0])).collect();
    let is_missing = |key: &&String| !shown.iter().any(|line| line.starts_with(&format!("{key} ")));
    assert_none("lines of the account", keys.iter().filter(is_missing).cloned().collect());
}

#[test]
fn every_path_of_the_api_exists() {
    let mut wrong = Vec::new();
    for document in &markdown::all() {
        for span in document.spans().into_iter().filter(|span| span.text.starts_with("/api/")) {
            let path = span.text.split(['?', ' ']).next().unwrap_or_default();
            let literal = format!("\"{}\"", path.trim_start_matches("/api"));
            let whole = format!("\"{path}\"");
            let is_known = path == "/api/"
                || ALL.iter().any(|source| source.text.contains(&literal) || source.text.contains(&whole));
            if !is_known {
                wrong.push(format!("{}:{}: there is no {path}", document.path, span.line));
            }
        }
    }
    assert_none("paths", wrong);
}

/// The modules of the library in the order of `lib.rs`; each uses types of earlier ones only.
#[test]
fn modules_use_types_of_earlier_modules_only() {
    let lib = ALL.iter().find(|source| source.path == "profiler/src/lib.rs").expect("there is a library");
    let listed = lib.text.lines().filter_map(|line| line.strip_prefix("//! "));
    let listed = listed.skip_while(|line| *line != "```text").skip(1).take_while(|line| *line != "```");
    let order: Vec<&str> = listed.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(order.len() > 10 && order.contains(&"engine"), "the order is in lib.rs: {order:?}");
    let place = |module: &str| order.iter().position(|known| *known == module);
    let mut wrong = Vec::new();
    for source in rust() {
        let Some(rest) = source.path.strip_prefix("profiler/src/") else { continue };
        let module = rest.split(['/', '.']).next().unwrap_or_default();
        let Some(own) = place(module).filter(|_| !rest.contains("test")) else { continue };
        let text = source.text.split("#[cfg(test)]").next().unwrap_or_default();
        for used in code_of(text).split("crate::").skip(1) {
            let used = used.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default();
            if place(used).is_some_and(|used| used > own) {
                wrong.push(format!("{} uses {used}", source.path));
            }
        }
    }
    assert_none("modules", wrong);
}
