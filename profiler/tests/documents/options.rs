//! Options of the command line, in both directions.

use std::collections::{BTreeMap, BTreeSet};

use clap::CommandFactory;
use jitprof::cli::Args;

use crate::source::rust;
use crate::{assert_none, markdown};

/// The long options of each subcommand by its words, `""` for a recording.
fn defined() -> BTreeMap<String, BTreeSet<String>> {
    let mut defined = BTreeMap::new();
    collect(&Args::command(), "", &mut defined);
    defined
}

fn collect(command: &clap::Command, name: &str, defined: &mut BTreeMap<String, BTreeSet<String>>) {
    let options = command.get_arguments().filter_map(|argument| argument.get_long()).map(|long| format!("--{long}"));
    let mut options: BTreeSet<String> = options.collect();
    options.extend(["--help".to_owned(), "--version".to_owned()]);
    defined.insert(name.to_owned(), options);
    for subcommand in command.get_subcommands() {
        let name = format!("{name} {}", subcommand.get_name()).trim().to_owned();
        collect(subcommand, &name, defined);
    }
}

/// The words that look like a long option.
fn options_in(text: &str) -> impl Iterator<Item = &str> {
    let ends = |c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_');
    text.split(ends).filter(|word| word.starts_with("--") && word.len() > 3 && word.as_bytes()[2].is_ascii_lowercase())
}

#[test]
fn every_option_is_documented() {
    let documents = markdown::all();
    let docs = documents.iter().filter(|document| document.path.starts_with("docs/"));
    let named: BTreeSet<String> = docs.flat_map(|document| options_in(&document.text)).map(str::to_owned).collect();
    let all: BTreeSet<String> = defined().into_values().flatten().collect();
    let missing = all.difference(&named).filter(|option| !["--help", "--version"].contains(&option.as_str()));
    assert_none("not documented", missing.cloned().collect());
}

#[test]
fn every_option_that_is_named_exists() {
    let known: BTreeSet<String> = defined().into_values().flatten().chain(of_tools()).collect();
    let mut wrong = Vec::new();
    for document in &markdown::all() {
        let spans = document.spans();
        let spans = spans.iter().map(|span| (span.line, span.text.as_str()));
        for (line, text) in spans.chain(document.fenced()) {
            for option in options_in(text) {
                if !known.contains(option) && !FOREIGN.contains(&option) {
                    wrong.push(format!("{}:{line}: nothing has {option}", document.path));
                }
            }
        }
    }
    assert_none("options", wrong);
}

/// Where a whole command is shown, it has options that this subcommand takes.
#[test]
fn commands_are_shown_with_options_of_their_own() {
    let defined = defined();
    let mut wrong = Vec::new();
    for document in &markdown::all() {
        let spans = document.spans();
        let spans = spans.iter().map(|span| (span.line, span.text.as_str()));
        for (line, text) in spans.chain(document.fenced()) {
            let words: Vec<&str> = text.split_whitespace().collect();
            let Some(at) = words.iter().position(|word| *word == "jitprof" || word.ends_with("/jitprof")) else {
                continue;
            };
            if at > 0 && !["sudo", "$"].contains(&words[at - 1]) {
                continue;
            }
            let rest = &words[at + 1..];
            let ended = rest.iter().position(|word| matches!(*word, "--" | "#")).unwrap_or(rest.len());
            let two = rest.iter().take(2).copied().collect::<Vec<_>>().join(" ");
            let one = rest.first().copied().unwrap_or_default();
            let name = [two.as_str(), one, ""].into_iter().find(|name| defined.contains_key(*name)).unwrap_or_default();
            for option in options_in(&rest[..ended].join(" ")) {
                if !defined[name].contains(option) {
                    wrong.push(format!("{}:{line}: `jitprof {name}` has no {option}", document.path));
                }
            }
        }
    }
    assert_none("options", wrong);
}

/// Options of `cargo xtask`, and of the programs that tests run.
fn of_tools() -> BTreeSet<String> {
    let mut options = BTreeSet::new();
    for source in rust().filter(|source| source.path.starts_with("xtask/") || source.path.starts_with("tests/")) {
        options.extend(options_in(&source.text).map(str::to_owned));
        // A field behind `#[arg(long`.
        for part in source.text.split("#[arg(").skip(1).filter(|part| part.starts_with("long")) {
            let field = part.split_once(")]").and_then(|(_, rest)| rest.split(':').next());
            let field = field.and_then(|field| field.split_whitespace().last()).unwrap_or_default();
            options.insert(format!("--{}", field.replace('_', "-")));
        }
    }
    options
}

/// Options of other programs.
const FOREIGN: [&str; 44] = [
    // Runtimes.
    "--perf-prof",
    "--perf-prof-unwinding-info",
    "--interpreted-frames-native-stack",
    "--perf-basic-prof",
    "--v8-flags",
    "--profile",
    "--yjit",
    "--yjit-perf",
    "--zjit",
    "--zjit-perf",
    "--no-turbo-inlining",
    "--no-maglev-inlining",
    "--no-opt",
    "--js-flags",
    "--logfile",
    "--jitmap",
    // cargo and its tools.
    "--example",
    "--release",
    "--lib",
    "--test",
    "--nocapture",
    "--ignored",
    "--test-threads",
    "--no-default-features",
    "--features",
    "--bin",
    "--check",
    "--target",
    "--locked",
    // perf, LLVM, containers and the shell.
    "--jit",
    "--call-graph",
    "--no-inline",
    "--convert",
    "--out-file",
    "--pid",
    "--build-id",
    "--reuid",
    "--regid",
    "--clear-groups",
    "--inh-caps",
    "--ambient-caps",
    "--init-groups",
    "--now",
    "--unix-socket",
];
