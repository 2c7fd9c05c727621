//! As much of Markdown as the documents use.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::root;

/// A file.
pub(crate) struct Document {
    /// From the repository's root.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// A link to a file of the repository.
pub(crate) struct Link {
    pub(crate) line: usize,
    pub(crate) target: String,
}

/// Code inside of text.
pub(crate) struct Span {
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// A table with its header, cells trimmed.
pub(crate) struct Table {
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<(usize, Vec<String>)>,
}

/// All documents: those of the root, of the packages, and `docs/`.
pub(crate) fn all() -> Vec<Document> {
    let root = root();
    let mut paths = Vec::new();
    collect(&root, 1, &mut paths);
    collect(&root.join("docs"), 3, &mut paths);
    for package in ["profiler-agent", "profiler-common", "profiler-jitdump", "profiler-unwind"] {
        collect(&root.join(package), 1, &mut paths);
    }
    paths.sort();
    let read = |path: PathBuf| Document {
        text: fs::read_to_string(&path).expect("a document can be read"),
        path: path.strip_prefix(&root).expect("it lies in the repository").display().to_string(),
    };
    paths.into_iter().map(read).collect()
}

fn collect(folder: &Path, levels: u32, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("its entries can be read").path();
        if path.is_dir() && levels > 1 {
            collect(&path, levels - 1, paths);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            paths.push(path);
        }
    }
}

impl Document {
    /// A relative link's target, from the root.
    pub(crate) fn resolve(&self, target: &str) -> String {
        if target.is_empty() {
            return self.path.clone();
        }
        let mut resolved = PathBuf::new();
        let base = Path::new(&self.path).parent().unwrap_or(Path::new(""));
        for component in base.join(target).components() {
            match component {
                Component::ParentDir => {
                    resolved.pop();
                }
                Component::CurDir => {}
                other => resolved.push(other),
            }
        }
        resolved.display().to_string()
    }

    /// Lines outside of fences, counted from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut fenced = false;
        self.text.lines().enumerate().filter_map(move |(index, line)| {
            let is_fence = line.trim_start().starts_with("```");
            fenced ^= is_fence;
            (!fenced && !is_fence).then_some((index + 1, line))
        })
    }

    /// Lines inside of fences.
    pub(crate) fn fenced(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut fenced = false;
        self.text.lines().enumerate().filter_map(move |(index, line)| {
            let is_fence = line.trim_start().starts_with("```");
            fenced ^= is_fence;
            (fenced && !is_fence).then_some((index + 1, line))
        })
    }

    /// Links to files, without those to other places.
    pub(crate) fn links(&self) -> Vec<Link> {
        let mut links = Vec::new();
        for (line, text) in self.lines() {
            let mut rest = text;
            while let Some(middle) = rest.find("](") {
                let after = &rest[middle + 2..];
                let Some(end) = after.find(')') else { break };
                let target = after[..end].to_owned();
                if !target.contains("://") && !target.starts_with("mailto:") {
                    links.push(Link { line, target });
                }
                rest = &after[end..];
            }
        }
        links
    }

    /// What headings are linked by, as GitHub makes it.
    pub(crate) fn anchors(&self) -> BTreeSet<String> {
        let mut anchors = BTreeSet::new();
        for (_, line) in self.lines().filter(|(_, line)| line.starts_with('#')) {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
            let mut number = 0;
            let mut candidate = anchor.clone();
            while !anchors.insert(candidate.clone()) {
                number += 1;
                candidate = format!("{anchor}-{number}");
            }
        }
        anchors
    }

    /// Code inside of text, also where a line ends in the middle of it.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let mut spans = Vec::new();
        let mut open: Option<Span> = None;
        for (line, text) in self.lines() {
            if text.trim().is_empty() || text.starts_with('|') {
                open = None;
            }
            for (index, part) in text.split('`').enumerate() {
                if index > 0 {
                    match open.take() {
                        Some(span) => spans.push(span),
                        None => open = Some(Span { line, text: String::new() }),
                    }
                }
                if let Some(span) = &mut open {
                    if index == 0 && !span.text.is_empty() {
                        span.text.push(' ');
                    }
                    span.text.push_str(part);
                }
            }
        }
        spans
    }

    /// Tables.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let mut tables: Vec<Table> = Vec::new();
        let mut last = 0;
        for (line, text) in self.lines().filter(|(_, text)| text.starts_with('|')) {
            let cells = cells(text);
            if last + 1 == line && last > 0 {
                let is_rule = cells.iter().all(|cell| cell.chars().all(|c| matches!(c, '-' | ':')));
                if let Some(table) = tables.last_mut().filter(|_| !is_rule) {
                    table.rows.push((line, cells));
                }
            } else {
                tables.push(Table { header: cells, rows: Vec::new() });
            }
            last = line;
        }
        tables
    }
}

/// The cells of a row; a bar behind a backslash is none between two.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim().trim_start_matches('|').trim_end_matches('|').replace("\\|", "\u{1}");
    line.split('|').map(|cell| cell.trim().replace('\u{1}', "|")).collect()
}

impl Table {
    /// The place of a column.
    pub(crate) fn column(&self, name: &str) -> Option<usize> {
        self.header.iter().position(|cell| cell == name)
    }
}

/// The code in a cell or a line.
pub(crate) fn code_in(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}
