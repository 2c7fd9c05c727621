//! The documents, held against the source: what can be read from both says the same in both.
//!
//! A document cannot be wrong for long where it names a file, a test, a function, an option, a constant, a default, a
//! field or a reason: each of these is looked up here. What was measured stands in `docs/measurements/` alone, where
//! `cargo xtask bench --write` puts it.

mod constants;
mod markdown;
mod measured;
mod names;
mod options;
mod settings;
mod source;
mod words;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use markdown::Document;

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the repository").to_owned()
}

#[test]
fn every_crate_has_the_licences_themselves() {
    // What is published; the BPF program goes along in the profiler's.
    let is_crate = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("profiler") && name != "profiler-ebpf" && path.join("Cargo.toml").is_file()
    };
    let entries = std::fs::read_dir(root()).expect("the repository can be read").flatten();
    let crates: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_crate).collect();
    assert!(crates.len() >= 6, "{crates:?}");
    let text = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let lacking = crates.iter().flat_map(|path| {
        let names = ["LICENSE-APACHE", "LICENSE-MIT"];
        names.into_iter().filter(|name| text(&path.join(name)) != text(&root().join(name))).map(|name| path.join(name))
    });
    assert_none("no licence", lacking.map(|path| path.display().to_string()).collect());
}

/// Fails with everything that is wrong, not only with the first.
fn assert_none(what: &str, wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{what}:\n  {}", wrong.join("\n  "));
}

#[test]
fn every_link_leads_somewhere() {
    let documents = markdown::all();
    let mut wrong = Vec::new();
    for document in &documents {
        for link in document.links() {
            let (path, anchor) = link.target.split_once('#').unwrap_or((&link.target, ""));
            let target = document.resolve(path);
            if !root().join(&target).exists() {
                wrong.push(format!("{}:{}: there is no {target}", document.path, link.line));
            } else if !anchor.is_empty() {
                let found = documents.iter().find(|other| other.path == target);
                if !found.is_some_and(|found| found.anchors().contains(anchor)) {
                    wrong.push(format!("{}:{}: {target} has no heading #{anchor}", document.path, link.line));
                }
            }
        }
    }
    assert_none("links", wrong);
}

#[test]
fn the_readme_lists_every_document() {
    let documents = markdown::all();
    let readme = documents.iter().find(|document| document.path == "README.md").expect("there is a README.md");
    let listed: BTreeSet<String> =
        readme.links().into_iter().map(|link| link.target.split('#').next().unwrap_or_default().to_owned()).collect();
    let missing = documents.iter().map(|document| &document.path);
    let missing = missing.filter(|path| path.starts_with("docs/") && !listed.contains(*path));
    assert_none("not in README.md", missing.cloned().collect());
}

#[test]
fn every_document_that_the_source_names_exists() {
    let mut wrong = Vec::new();
    for source in source::ALL.iter() {
        for (index, line) in source.text.lines().enumerate() {
            for rest in line.split("docs/").skip(1) {
                let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '.' | '_')));
                let path = format!("docs/{}", rest[..end.unwrap_or(rest.len())].trim_end_matches('.'));
                if path.ends_with(".md") && !root().join(&path).exists() {
                    wrong.push(format!("{}:{}: there is no {path}", source.path, index + 1));
                }
            }
        }
    }
    assert_none("documents", wrong);
}

/// The documents that are not written by the benchmarks.
fn written_by_hand(documents: &[Document]) -> impl Iterator<Item = &Document> {
    documents.iter().filter(|document| !document.path.starts_with("docs/measurements/"))
}
