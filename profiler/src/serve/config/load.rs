//! From a file's text to [`Settings`], and errors that say where.

use std::fmt;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::Settings;
use super::check::{Problem, check};

/// Bytes of a configuration file at most.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The configuration file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    File {
        /// The configuration file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file's text, or a value in it, is wrong.
    #[error("{place}: {text}")]
    Wrong {
        /// File, line and key.
        place: Place,
        /// What is wrong, and what to do.
        text: String,
    },
}

/// Where a value stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The file; `None`: the command line, or a default.
    pub file: Option<PathBuf>,
    /// The line, from 1.
    pub line: Option<usize>,
    /// The key, such as `push[0].url`.
    pub key: Option<String>,
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(formatter, "{}:{line}", file.display())?,
            (Some(file), None) => write!(formatter, "{}", file.display())?,
            (None, _) => write!(formatter, "the command line")?,
        }
        match &self.key {
            Some(key) => write!(formatter, ": {key}"),
            None => Ok(()),
        }
    }
}

/// Reads a file, lets `change` put the command line over it, and checks the result.
pub(super) fn load(path: Option<&Path>, change: impl FnOnce(&mut Settings)) -> Result<Settings, ConfigError> {
    let text = path.map(read).transpose()?.unwrap_or_default();
    let mut settings: Settings = toml::from_str(&text).map_err(|error| {
        let offset = error.span().map(|span| span.start);
        let place = Place {
            file: path.map(Path::to_owned),
            line: offset.map(|offset| line_of(&text, offset)),
            key: offset.and_then(|offset| key_at(&text, offset)),
        };
        ConfigError::Wrong { place, text: error.message().to_owned() }
    })?;
    let in_file = settings.clone();
    change(&mut settings);
    check(&settings).map_err(|Problem { key, text: problem }| {
        // A value that only the command line has is not in the file.
        let from_file = check(&in_file).is_err_and(|first| first.key == key);
        let span = from_file.then(|| span_of(&text, &key)).flatten();
        let place = Place {
            file: path.filter(|_| span.is_some()).map(Path::to_owned),
            line: span.map(|span| line_of(&text, span.start)),
            key: Some(key),
        };
        ConfigError::Wrong { place, text: problem }
    })?;
    Ok(settings)
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let file_error = |source| ConfigError::File { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(file_error)?;
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(file_error)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(file_error(io::Error::other("it is larger than 1 MiB")));
    }
    Ok(text)
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count()
}

/// Every value of the text with its key, and where key and value stand.
fn places(text: &str) -> Vec<(String, Range<usize>)> {
    let mut found = Vec::new();
    // A text that is no TOML has no places.
    if let Ok(table) = DeTable::parse(text) {
        places_in("", table.get_ref(), &mut found);
    }
    found
}

fn places_in(prefix: &str, table: &DeTable<'_>, found: &mut Vec<(String, Range<usize>)>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.get_ref().to_string() } else { format!("{prefix}.{}", name.get_ref()) };
        let value_span = value.span();
        found.push((key.clone(), name.span().start.min(value_span.start)..value_span.end));
        match value.get_ref() {
            DeValue::Table(inner) => places_in(&key, inner, found),
            DeValue::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    let key = format!("{key}[{index}]");
                    found.push((key.clone(), item.span()));
                    if let DeValue::Table(inner) = item.get_ref() {
                        places_in(&key, inner, found);
                    }
                }
            }
            _ => {}
        }
    }
}

/// The innermost key around an offset.
fn key_at(text: &str, offset: usize) -> Option<String> {
    let around = places(text).into_iter().filter(|(_, span)| span.contains(&offset));
    around.max_by_key(|(key, _)| key.len()).map(|(key, _)| key)
}

/// Where a key stands, or else the table that it is missing in.
fn span_of(text: &str, key: &str) -> Option<Range<usize>> {
    let places = places(text);
    let mut wanted = key;
    loop {
        if let Some((_, span)) = places.iter().find(|(known, _)| known == wanted) {
            return Some(span.clone());
        }
        wanted = wanted.rsplit_once('.')?.0;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn load(text: &str) -> Result<Settings, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let name = file.path().display().to_string();
        Settings::load(Some(file.path()), |_| {}).map_err(|error| error.to_string().replace(&name, "F"))
    }

    #[test]
    fn an_empty_file_means_the_defaults_and_they_are_written_as_they_are_read() {
        let settings = load("").unwrap();
        assert_eq!(settings, Settings::default());
        assert_eq!(load(&settings.to_toml()).unwrap(), settings);
    }

    #[test]
    fn an_error_names_file_line_and_key_and_what_to_do() {
        for (text, words) in [
            ("[sampling]\nfrequency = 0\n", "F:2: sampling.frequency: must be from 1"),
            ("[sampling]\n\nfrequenzy = 9\n", "F:3: sampling.frequenzy: unknown field `frequenzy`, expected one of"),
            ("[window]\nlength = 10\n", "F:2: window.length: "),
            ("[window]\nlength = \"10\"\n", "F:2: window.length: `10` has no unit; write it as 10s"),
            ("[storage]\nmemory = \"64\"\n", "F:2: storage.memory: `64` is no number of bytes; write it as 64MiB"),
            ("[storage]\ndirectory = \"x\"\n", "F:2: storage.directory: `x` must be an absolute path"),
            ("[http]\nlisten = \"localhost\"\n", "F:2: http.listen: `localhost` is neither an address"),
            ("[http]\nlisten = \"0.0.0.0:1\"\n", "F:2: http.listen: 0.0.0.0:1 can be reached from other machines"),
            ("[limits]\nmax_memory = \"1MiB\"\n", "F:2: limits.max_memory: must be 32MiB"),
            ("[[push]]\nkind = \"otlp\"\nurl = \"http://a\"\n[[push]]\nkind = \"otlp\"\n", "F:4: push[1]: wants `url"),
            ("[[push]]\nkind = \"otlp\"\nurl = \"ftp://a\"\n", "F:3: push[0].url: `ftp://a` is not http"),
            ("[[push]]\nkind = \"otlp\"\nurl = \"https://u:p@a\"\n", "F:3: push[0].url: holds a password"),
            ("[[push]]\nkind = \"zipkin\"\n", "F:2: push[0].kind: unknown variant `zipkin`, expected one of"),
            ("[[push\n", "F:1"),
        ] {
            let error = load(text).unwrap_err();
            assert!(error.starts_with(words), "{text:?} gave {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn the_command_line_goes_over_the_file_and_is_named_when_it_is_wrong() {
        let settings = Settings::load(None, |settings| settings.sampling.frequency = 97).unwrap();
        assert_eq!(settings.sampling.frequency, 97);
        let error = Settings::load(None, |settings| settings.sampling.frequency = 0).unwrap_err().to_string();
        assert!(error.starts_with("the command line: sampling.frequency: must be"), "{error}");
    }

    #[test]
    fn a_file_that_is_not_there_is_one_sentence() {
        let error = Settings::load(Some(Path::new("/no/such.toml")), |_| {}).unwrap_err().to_string();
        assert!(error.contains("/no/such.toml") && error.contains("No such file"), "{error}");
    }
}
