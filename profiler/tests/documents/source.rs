//! The source's text.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use crate::root;

/// A file of source.
pub(crate) struct Source {
    /// From the repository's root.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Everything that is written in a language.
pub(crate) static ALL: LazyLock<Vec<Source>> = LazyLock::new(|| {
    let mut all = Vec::new();
    collect(&root(), &mut all);
    all
});

/// Every word of it, but for those of this test.
pub(crate) static WORDS: LazyLock<HashSet<&'static str>> = LazyLock::new(|| {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let others = ALL.iter().filter(|source| !source.path.contains("/documents/"));
    others.flat_map(|source| source.text.split(move |c| !is_part(c))).filter(|word| !word.is_empty()).collect()
});

/// Names of functions.
pub(crate) static FUNCTIONS: LazyLock<HashSet<&'static str>> = LazyLock::new(|| {
    let end = |rest: &'static str| rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next();
    rust().flat_map(|source| source.text.split("fn ").skip(1)).filter_map(end).collect()
});

/// The Rust files.
pub(crate) fn rust() -> impl Iterator<Item = &'static Source> {
    ALL.iter().filter(|source| source.path.ends_with(".rs"))
}

fn collect(folder: &Path, all: &mut Vec<Source>) {
    const KINDS: [&str; 14] =
        ["rs", "toml", "c", "cpp", "js", "html", "css", "sh", "py", "erl", "go", "yaml", "service", "conf"];
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("its entries can be read").path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() {
            let is_source = !name.starts_with('.') && !matches!(name.as_str(), "target" | "docs");
            if is_source && !path.is_symlink() {
                collect(&path, all);
            }
        } else if path.extension().is_some_and(|kind| KINDS.iter().any(|known| kind == *known))
            && let Ok(text) = fs::read_to_string(&path)
        {
            let path = path.strip_prefix(root()).expect("it lies in the repository").display().to_string();
            all.push(Source { path, text });
        }
    }
}

/// A file's text without comments and strings, whose words say nothing about the code.
pub(crate) fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    for line in text.lines() {
        let mut quoted = false;
        let mut characters = line.chars().peekable();
        while let Some(character) = characters.next() {
            match character {
                '\\' if quoted => {
                    characters.next();
                }
                '"' => quoted = !quoted,
                '/' if !quoted && characters.peek() == Some(&'/') => break,
                _ if quoted => {}
                other => code.push(other),
            }
        }
        code.push('\n');
    }
    code
}
