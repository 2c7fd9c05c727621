//! Where the functions of a picture are, for their tooltips.

use std::collections::BTreeMap;

use super::super::frame_names::short_path;
use super::super::look::Look;
use super::super::options::OutputOptions;
use crate::profile::{CallTree, FrameRef, Profile, SourceRef, printable};
use crate::symbol::FrameKind;

/// Files that are named of functions that look alike; of others their number is.
const MAX_NAMED: usize = 3;

/// The place of each frame of a tree, by its number.
pub(super) struct Places(Vec<String>);

/// The files of frames that look alike, each with the first and the last line of samples; 0 where none is known.
#[derive(Default)]
struct Place<'p> {
    sources: BTreeMap<&'p str, (u32, u32)>,
    /// The file of the code, where there is none of its source.
    module: Option<&'p str>,
}

impl Places {
    /// Of a picture with lines in its names only what those do not say.
    pub(super) fn of(tree: &CallTree<Look>, sides: [Option<&Profile>; 2], options: &OutputOptions) -> Self {
        let mut places: Vec<Place<'_>> = Vec::new();
        places.resize_with(tree.frames().len(), Place::default);
        for (side, profile) in sides.into_iter().enumerate() {
            let Some(profile) = profile else { continue };
            for id in profile.frame_ids() {
                if let Some(number) = tree.number_of(side, id) {
                    places[number].add(profile.frame(id), options.lines);
                }
            }
        }
        Self(places.iter().map(Place::shown).collect())
    }

    /// `FILE:LINE`, the lines of samples as `FILE:FIRST-LAST`; empty where nothing is known.
    pub(super) fn of_frame(&self, number: usize) -> &str {
        &self.0[number]
    }
}

impl<'p> Place<'p> {
    fn add(&mut self, frame: FrameRef<'p>, is_in_name: bool) {
        match frame.source.filter(|source| !source.file.is_empty()) {
            Some(_) if is_in_name => {}
            Some(SourceRef { file, line, .. }) => {
                let lines = self.sources.entry(file).or_insert((line, line));
                *lines = (least_known(lines.0, line), lines.1.max(line));
            }
            // Generated code is in no file, and the kernel in one.
            None if frame.kind == FrameKind::Native => {
                let module = frame.module.map(|module| module.path);
                self.module = self.module.into_iter().chain(module).min();
            }
            None => {}
        }
    }

    fn shown(&self) -> String {
        let sources = self.sources.iter().map(|(file, &lines)| match lines {
            (_, 0) => shown_path(file),
            (first, last) if first == last => format!("{}:{first}", shown_path(file)),
            (first, last) => format!("{}:{first}-{last}", shown_path(file)),
        });
        let mut parts: Vec<String> = sources.take(MAX_NAMED).collect();
        if self.sources.len() > MAX_NAMED {
            parts.push(format!("{} more files", self.sources.len() - MAX_NAMED));
        }
        if parts.is_empty() {
            parts.extend(self.module.map(shown_path));
        }
        parts.join(", ")
    }
}

fn least_known(one: u32, other: u32) -> u32 {
    if one == 0 || other == 0 { one.max(other) } else { one.min(other) }
}

fn shown_path(path: &str) -> String {
    short_path(&printable(path)).into_owned()
}
