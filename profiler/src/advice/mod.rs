//! Which runtime a process runs, and the exact flag that makes it announce its code.
//!
//! Pure: the caller reads `/proc/PID/exe`, `/proc/PID/maps` and `/proc/PID/cmdline` and passes their text.

use std::path::Path;

mod runtime;
mod text;
mod version;

pub use runtime::{Clues, Detected, Runtime, Version, detect};
pub use text::{Advice, advise};
pub use version::{
    VersionFile, main_runtime, version_files, version_in_environment, version_in_paths, version_variable,
};

/// What to tell the user about a process whose generated code has no names: a sentence for each runtime found in it.
///
/// `files` are the mapped files. Where no known runtime is found, says what any runtime has to do.
pub fn for_process(exe: Option<&Path>, cmdline: &[String], files: &[String]) -> String {
    let exe = exe.map(Path::to_string_lossy).unwrap_or_default();
    let clues = Clues { exe: &exe, mapped_files: files, cmdline };
    let found = detect(&clues);
    if found.is_empty() {
        return "no runtime that jitprof knows was found in the process: its code is named if it writes a jitdump, or \
                a perf map at /tmp/perf-PID.map."
            .to_owned();
    }
    let sentences: Vec<String> = found.iter().map(|detected| advise(detected, &clues).to_string()).collect();
    sentences.join(" ")
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod version_tests;
