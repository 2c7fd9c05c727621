//! What an object file says of its functions beside their names: lines, what was inlined, and how they are unwound.

use std::sync::Arc;

use super::Function;
use super::debug::Source;
use super::object_file::ObjectFile;
use crate::frames::{Frame, Frames};
use crate::steps::Steps;

/// What is said of one function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Its lines. Where a function is inlined, the line of the call.
    pub lines: Lines,
    /// What was inlined into it: each part behind the one around it.
    pub inlined: Vec<Inlined>,
    /// How it is unwound, if that is said.
    pub frame: Option<Frame>,
}

/// Lines of a piece of code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// Files that have any.
    pub files: Vec<Arc<str>>,
    /// By ascending offset: bytes from the first one on, the line that holds from there on (0: none), and which of the files.
    pub rows: Vec<(u32, u32, u32)>,
}

/// A part of a function that was inlined from another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inlined {
    /// Bytes from the function's first one to the part's.
    pub start: u32,
    /// Its length in bytes.
    pub size: u32,
    /// The function that it comes from, named as functions are.
    pub name: Arc<str>,
    /// Which of the parts before is around it; none if that is the function.
    pub around: Option<u32>,
    /// Its lines; offsets are from its own first byte.
    pub lines: Lines,
}

/// What is said of each of an object file's functions, as far as the steps suffice; what is damaged, or dearer, is not said.
pub(super) fn of_functions(bytes: &[u8], functions: &[Function], steps: &mut Steps) -> Vec<Details> {
    let mut all = vec![Details::default(); functions.len()];
    let Some(file) = ObjectFile::parse(bytes, steps).filter(|_| !functions.is_empty()) else { return all };
    if let Some(section) = file.frames(steps) {
        let frames = Frames::read(section, file.vendor(), steps);
        for (details, function) in all.iter_mut().zip(functions) {
            details.frame = frames.of(function.address.0, steps);
        }
    }
    let source = steps.with_half(|steps| Source::read(&file, steps));
    for (details, function) in all.iter_mut().zip(functions) {
        let Some((lines, inlined)) = source.levels(function, steps) else { break };
        (details.lines, details.inlined) = (lines, inlined);
    }
    all
}

#[cfg(test)]
mod tests;
