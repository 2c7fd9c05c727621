//! Folded stacks: `comm;outer;inner 42`, one line for each distinct stack, ordered frame by frame.

use std::io::{self, Write};

use super::color::Class;
use super::options::OutputOptions;
use super::text;
use super::tree::{Look, Tree};
use crate::profile::Profile;

pub(super) fn write(profile: &Profile, options: &OutputOptions, mut writer: impl Write) -> io::Result<()> {
    let tree = Tree::new(profile, options, false, undressed);
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
        match tree.nodes[node].own {
            0 => Ok(()),
            own => writeln!(writer, "{line} {own}"),
        }
    })
}

/// Only names count here: frames of different kinds with equal names make one line.
fn undressed(look: Look) -> Look {
    Look { name: text::folded(&look.name).into_owned(), class: Class::Note }
}
