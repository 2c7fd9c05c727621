//! Profile to files: flamegraph SVG, folded stacks, pprof, Firefox Profiler JSON.
//!
//! Every output is a function of the profile's values alone: the same samples give the same bytes, in whatever order
//! they were added. Names come from the target and are hostile until they went through `printable`. Nothing is written
//! without samples ([`OutputError::NoSamples`]). Each format is described for users in `docs/guide/outputs.md`.

#[cfg(feature = "plog")]
mod chrome;
pub(crate) mod color;
mod counted;
mod elf;
mod error;
mod file;
mod firefox;
#[cfg(feature = "plog")]
mod firefox_spans;
mod folded;
mod format;
pub(crate) mod frame_names;
#[cfg(feature = "gsym")]
pub mod gsym;
pub(crate) mod look;
mod options;
pub(crate) mod pprof;
mod process_names;
mod proto;
mod samples;
mod saved;
mod sheet;
mod svg;
mod table;
#[cfg(test)]
mod tests;

use std::io::Write;

#[cfg(feature = "plog")]
pub use chrome::write_chrome;
#[cfg(test)]
pub(crate) use elf::tests as elf_tests;
pub use elf::{CodeSource, ElfAccount, ElfError, ElfFunction, ElfKind, write_elf};
pub use error::OutputError;
pub use file::{Destination, check_writable, write_aside, write_to};
#[cfg(feature = "plog")]
pub use firefox_spans::write_firefox_spans;
pub use format::Format;
pub use options::{ColorScheme, OutputOptions};
pub use pprof::{PprofError, read_pprof};
pub use samples::{InstructionSamples, SamplesError, function_name, function_source};
pub use saved::{SavedError, read_saved};
pub use sheet::{Sheet, SheetFormat};
pub use table::{summed_up, write_changes, write_diff, write_top};

use crate::profile::Profile;

/// Writes a profile in one format.
///
/// # Errors
/// [`OutputError::NoSamples`] for an empty profile, before anything is written; else what the writer reported. A
/// broken pipe comes through as such.
pub fn write(
    profile: &Profile,
    format: Format,
    options: &OutputOptions,
    writer: impl Write,
) -> Result<(), OutputError> {
    if profile.total() == 0 {
        return Err(OutputError::NoSamples);
    }
    match format {
        Format::Svg => svg::write(profile, options, writer)?,
        Format::Folded => folded::write(profile, options, writer)?,
        Format::Pprof => pprof::write(profile, options, writer)?,
        Format::Firefox => firefox::write(profile, options, writer)?,
    }
    Ok(())
}

/// Writes pprof even if there are no samples: a scraper wants a profile of an idle process too.
///
/// # Errors
/// What the writer reported.
pub fn write_pprof(profile: &Profile, options: &OutputOptions, writer: impl Write) -> Result<(), OutputError> {
    Ok(pprof::write(profile, options, writer)?)
}

/// Writes a profile to a file or to stdout, the file whole or not at all; see [`write_to`].
///
/// # Errors
/// As [`write`](fn@write) and [`write_to`].
pub fn write_file(
    profile: &Profile,
    format: Format,
    options: &OutputOptions,
    destination: &Destination,
) -> Result<(), OutputError> {
    write_to(destination, |writer| write(profile, format, options, writer))
}
