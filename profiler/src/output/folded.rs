//! Folded stacks: `comm;outer;inner 42`, one line for each distinct stack, ordered frame by frame.

use std::io::{self, Write};

use super::color::Class;
use super::counted::CountedTree;
use super::frame_names::folded_name;
use super::look::{Look, Looks};
use super::options::OutputOptions;
use crate::profile::Profile;

/// Bytes of a line, about: each frame may have a part of what is left of them...
const MAX_LINE_BYTES: usize = 128 << 10;
const PART: usize = 16;
/// ...and of all of them at least such a part: 32 bytes. Else a program of long names, nested deeply, has megabytes written for
/// each sample.
const LEAST_PART: usize = 4096;
/// Bytes of all lines, about. Where they would be more, lines have half as many, and half of that...
const MAX_BYTES: u64 = 256 << 20;
/// ...down to these, with which names have a byte.
const LEAST_LINE_BYTES: usize = LEAST_PART;

pub(super) fn write(profile: &Profile, options: &OutputOptions, writer: impl Write) -> io::Result<()> {
    write_tree(&CountedTree::new(profile, &looks(&[profile], options), false), writer)
}

/// Two counts a line, of the earlier and of the later profile, as `difffolded.pl` writes them. A sample of the earlier
/// one counts `factor` times.
pub(super) fn write_diff(
    profiles: [&Profile; 2],
    factor: f64,
    options: &OutputOptions,
    writer: impl Write,
) -> io::Result<()> {
    write_tree(&CountedTree::of_both(profiles, factor, &looks(&profiles, options), false), writer)
}

fn write_tree(tree: &CountedTree, writer: impl Write) -> io::Result<()> {
    write_lines(tree, line_bytes(tree, MAX_BYTES), writer)
}

/// How many bytes a line may have so that all of them have no more than `most`, as far as that can be.
fn line_bytes(tree: &CountedTree, most: u64) -> usize {
    let mut limit = MAX_LINE_BYTES;
    while limit > LEAST_LINE_BYTES && bytes_of_lines(tree, limit) > most {
        limit /= 2;
    }
    limit
}

/// Bytes of all lines without their counts.
fn bytes_of_lines(tree: &CountedTree, limit: usize) -> u64 {
    let (mut ends, mut sum): (Vec<usize>, u64) = (Vec::new(), 0);
    for (depth, node) in tree.tree.preorder() {
        ends.truncate(depth);
        let begin = ends.last().map_or(0, |end| end + 1);
        let end = begin + part_of(&tree.look(node).name, limit, begin).len();
        ends.push(end);
        if is_line(tree, node) {
            sum = sum.saturating_add(end as u64);
        }
    }
    sum
}

/// Whether a stack ends at a node, in one of the profiles.
fn is_line(tree: &CountedTree, node: usize) -> bool {
    tree.samples[node].own > 0 || tree.before.get(node).is_some_and(|before| before.own > 0)
}

fn write_lines(tree: &CountedTree, limit: usize, mut writer: impl Write) -> io::Result<()> {
    let mut line = String::new();
    // Where each frame of the present line ends.
    let mut ends: Vec<usize> = Vec::new();
    for (depth, node) in tree.tree.preorder() {
        let name = &tree.look(node).name;
        ends.truncate(depth);
        line.truncate(ends.last().copied().unwrap_or(0));
        if depth == 0 {
            // Readers take lines that begin with "# " for comments.
            line.push_str(if name.starts_with("# ") { "_" } else { "" });
        } else {
            line.push(';');
        }
        let part = part_of(name, limit, line.len());
        line.push_str(part);
        line.push_str(if part.len() < name.len() { "…" } else { "" });
        ends.push(line.len());
        if !is_line(tree, node) {
            continue;
        }
        let own = tree.samples[node].own;
        match tree.before.get(node) {
            None => writeln!(writer, "{line} {own}")?,
            Some(before) => writeln!(writer, "{line} {} {own}", before.own)?,
        }
    }
    Ok(())
}

/// A name, or as much of it as there is room for behind so much of a line. That depends on the callers alone, so that a frame
/// that two lines have in common has one name.
fn part_of(name: &str, limit: usize, line: usize) -> &str {
    let most = (limit.saturating_sub(line) / PART).max(limit / LEAST_PART);
    name.get(..name.floor_char_boundary(most)).unwrap_or_default()
}

fn looks<'o>(profiles: &[&Profile], options: &'o OutputOptions) -> Looks<'o> {
    Looks::new(profiles, options, undressed)
}

/// Only names count here: frames of different kinds with equal names make one line.
fn undressed(look: Look) -> Look {
    Look { name: folded_name(&look.name).into_owned(), class: Class::Note }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tests::{TestSample, native, profile, task};

    #[test]
    fn all_lines_have_a_bounded_size_and_count_what_they_counted() {
        let frame = |at: usize| native(&format!("{at:04}{}", "n".repeat(2000)), "/bin/x", 1);
        // Twenty-five stacks of three hundred frames, which differ in their leaf.
        let stack = |leaf: usize| (0..300).map(|at| frame(if at == 299 { at + leaf } else { at })).collect();
        let sample = |leaf| TestSample { time_ns: 0, task: task(1, "x"), frames: stack(leaf), count: 3 };
        let profile = profile(&(0..25).map(sample).collect::<Vec<_>>());
        let options = OutputOptions::default();
        let tree = CountedTree::new(&profile, &looks(&[&profile], &options), false);
        let written = |limit| {
            let mut bytes = Vec::new();
            write_lines(&tree, limit, &mut bytes).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(line_bytes(&tree, MAX_BYTES), MAX_LINE_BYTES);
        assert!(written(MAX_LINE_BYTES).len() > 5 << 19);
        for most in [2 << 20, 512 << 10] {
            let limit = line_bytes(&tree, most);
            assert!(LEAST_LINE_BYTES < limit && limit < MAX_LINE_BYTES, "{limit}");
            let text = written(limit);
            // "…" is not counted.
            assert!((text.len() as u64) < most + most / 4, "{limit}: {}", text.len());
            assert_eq!(text.lines().count(), 25);
            assert!(text.lines().all(|line| line.ends_with(" 3") && line.split(';').count() == 301));
        }
        assert_eq!(line_bytes(&tree, 0), LEAST_LINE_BYTES);
    }
}
