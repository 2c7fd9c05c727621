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
    #[error("only one output, the account included, can go to standard output")]
    SeveralStdout,
    /// One would overwrite the other.
    #[error("{} is named twice as an output", path.display())]
    Twice {
        /// The file.
        path: PathBuf,
    },
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

    /// The same for several, of which standard output may be one, and each file one.
    pub(super) fn outputs(&self, paths: &[PathBuf]) -> Result<Vec<(Destination, F)>, OutputsError> {
        let outputs = paths.iter().map(|path| self.output(path)).collect::<Result<Vec<_>, _>>()?;
        check_places(&outputs, None)?;
        Ok(outputs)
    }
}

/// Whether no output goes where another one does, nor the account.
pub(super) fn check_places<F>(outputs: &[(Destination, F)], account: Option<&Destination>) -> Result<(), OutputsError> {
    let all: Vec<&Destination> = outputs.iter().map(|(destination, _)| destination).chain(account).collect();
    let twice = all.iter().enumerate().filter(|(at, place)| all.iter().take(*at).any(|before| before == *place));
    for (_, place) in twice {
        match place {
            Destination::Stdout => return Err(OutputsError::SeveralStdout),
            // What goes to a device does not overwrite anything.
            Destination::File(path) if path.starts_with("/dev") => {}
            Destination::File(path) => return Err(OutputsError::Twice { path: path.clone() }),
        }
    }
    Ok(())
}

/// How many of these go to standard output.
pub(super) fn stdout_count<'a>(destinations: impl IntoIterator<Item = &'a Destination>) -> usize {
    destinations.into_iter().filter(|destination| **destination == Destination::Stdout).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_is_an_output_twice() {
        let formats = Formats::of_profile(None).unwrap();
        let refused = |paths: &[&str]| {
            let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
            formats.outputs(&paths).err().map(|error| error.to_string())
        };
        assert_eq!(refused(&["a.svg", "a.pb.gz", "b/a.svg"]), None);
        assert_eq!(refused(&["a.svg", "b.svg", "a.svg"]).as_deref(), Some("a.svg is named twice as an output"));
        let svg = [(Destination::File("a.svg".into()), Format::Svg)];
        let refused =
            |account: &str| check_places(&svg, Some(&Destination::from_argument(Path::new(account)))).is_err();
        assert_eq!(["a.json", "-", "a.svg"].map(refused), [false, false, true]);
    }
}
