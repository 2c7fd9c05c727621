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
/// ...and so many at least. Else a program of long names, nested deeply, has megabytes written for each sample.
const LEAST_NAME_BYTES: usize = 32;

pub(super) fn write(profile: &Profile, options: &OutputOptions, writer: impl Write) -> io::Result<()> {
    write_tree(&CountedTree::new(profile, &looks(options), false), writer)
}

/// Two counts a line, of the earlier and of the later profile, as `difffolded.pl` writes them. A sample of the earlier
/// one counts `factor` times.
pub(super) fn write_diff(
    profiles: [&Profile; 2],
    factor: f64,
    options: &OutputOptions,
    writer: impl Write,
) -> io::Result<()> {
    write_tree(&CountedTree::of_both(profiles, factor, &looks(options), false), writer)
}

fn write_tree(tree: &CountedTree, mut writer: impl Write) -> io::Result<()> {
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
        push_name(&mut line, name);
        ends.push(line.len());
        match (tree.before.get(node).map(|before| before.own), tree.samples[node].own) {
            (None | Some(0), 0) => {}
            (None, own) => writeln!(writer, "{line} {own}")?,
            (Some(before), own) => writeln!(writer, "{line} {before} {own}")?,
        }
    }
    Ok(())
}

/// Appends a name, or as much of it as there is room for. What is left depends on the callers alone, so that a frame that two
/// lines have in common has one name.
fn push_name(line: &mut String, name: &str) {
    let most = (MAX_LINE_BYTES.saturating_sub(line.len()) / PART).max(LEAST_NAME_BYTES);
    let is_cut = name.len() > most;
    line.push_str(name.get(..name.floor_char_boundary(most)).unwrap_or_default());
    line.push_str(if is_cut { "…" } else { "" });
}

fn looks(options: &OutputOptions) -> Looks<'_> {
    Looks { options, dress: undressed }
}

/// Only names count here: frames of different kinds with equal names make one line.
fn undressed(look: Look) -> Look {
    Look { name: folded_name(&look.name).into_owned(), class: Class::Note }
}
