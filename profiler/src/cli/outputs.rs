//! `--output` and `--format`: where outputs go, and in which format.

use std::path::{Path, PathBuf};

use crate::output::{Destination, Format, OutputError};

/// Outputs that cannot be written as they are named.
#[derive(Debug, thiserror::Error)]
pub enum OutputsError {
    /// Standard output has no ending that would tell the format.
    #[error("standard output needs --format ({formats})")]
    NoFormat {
        /// The formats that there are, as a list in words.
        formats: &'static str,
    },
    /// Two outputs would go to standard output.
    #[error("only one output can go to standard output")]
    SeveralStdout,
    /// The format is unknown.
    #[error(transparent)]
    Format(#[from] OutputError),
}

/// The formats of a subcommand.
pub(super) struct Formats<F> {
    /// What they are called, for messages.
    pub(super) names: &'static str,
    /// The format that a file's ending tells.
    pub(super) of_path: fn(&Path) -> Result<F, OutputError>,
    /// The value of `--format`, for what has no ending that tells it.
    pub(super) named: Option<F>,
}

impl Formats<Format> {
    /// The formats of a profile; `named` is the value of `--format`.
    ///
    /// # Errors
    /// There is no format of that name.
    pub(super) fn of_profile(named: Option<&str>) -> Result<Self, OutputsError> {
        let named = named.map(str::parse).transpose()?;
        Ok(Self { names: "svg, folded, pprof or firefox", of_path: Format::from_path, named })
    }
}

impl<F: Copy> Formats<F> {
    /// Where one `--output` goes, and in which format.
    pub(super) fn output(&self, path: &Path) -> Result<(Destination, F), OutputsError> {
        let destination = Destination::from_argument(path);
        let format = match ((self.of_path)(path), self.named) {
            (_, named) if destination == Destination::Stdout => {
                named.ok_or(OutputsError::NoFormat { formats: self.names })?
            }
            (Ok(format), _) => format,
            (Err(_), Some(named)) => named,
            (Err(error), None) => return Err(error.into()),
        };
        Ok((destination, format))
    }

    /// The same for several, of which standard output may be one.
    pub(super) fn outputs(&self, paths: &[PathBuf]) -> Result<Vec<(Destination, F)>, OutputsError> {
        let outputs = paths.iter().map(|path| self.output(path)).collect::<Result<Vec<_>, _>>()?;
        if stdout_count(outputs.iter().map(|(destination, _)| destination)) > 1 {
            return Err(OutputsError::SeveralStdout);
        }
        Ok(outputs)
    }
}

/// How many of these go to standard output.
pub(super) fn stdout_count<'a>(destinations: impl IntoIterator<Item = &'a Destination>) -> usize {
    destinations.into_iter().filter(|destination| **destination == Destination::Stdout).count()
}
