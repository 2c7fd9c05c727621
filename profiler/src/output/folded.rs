//! Folded stacks: `comm;outer;inner 42`, one line for each distinct stack, ordered frame by frame.

use std::io::{self, Write};

use super::color::Class;
use super::options::OutputOptions;
use super::text;
use super::tree::{Look, Tree};
use crate::profile::Profile;

pub(super) fn write(profile: &Profile, options: &OutputOptions, writer: impl Write) -> io::Result<()> {
    write_tree(&Tree::new(profile, options, false, undressed), writer)
}

/// Two counts a line, of the earlier and of the later profile, as `difffolded.pl` writes them. A sample of the earlier
/// one counts `factor` times.
pub(super) fn write_diff(
    profiles: [&Profile; 2],
    factor: f64,
    options: &OutputOptions,
    writer: impl Write,
) -> io::Result<()> {
    write_tree(&Tree::of_both(profiles, factor, options, false, undressed), writer)
}

fn write_tree(tree: &Tree, mut writer: impl Write) -> io::Result<()> {
    let mut line = String::new();
    // Where each frame of the present line ends.
    let mut ends: Vec<usize> = Vec::new();
    tree.walk(|depth, node| {
        let name = &tree.look(node).name;
        ends.truncate(depth);
        line.truncate(ends.last().copied().unwrap_or(0));
        if depth == 0 {
            // Readers take lines that begin with "# " for comments.
            line.push_str(if name.starts_with("# ") { "_" } else { "" });
        } else {
            line.push(';');
        }
        line.push_str(name);
        ends.push(line.len());
        match (tree.before.get(node).map(|earlier| earlier.own), tree.nodes[node].own) {
            (None | Some(0), 0) => Ok(()),
            (None, own) => writeln!(writer, "{line} {own}"),
            (Some(before), own) => writeln!(writer, "{line} {before} {own}"),
        }
    })
}

/// Only names count here: frames of different kinds with equal names make one line.
fn undressed(look: Look) -> Look {
    Look { name: text::folded(&look.name).into_owned(), class: Class::Note }
}
