//! pprof files, as far as tests need them.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use prost::Message;

/// `perftools.profiles.Profile`; fields that are left out here are skipped.
#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
}

/// What a pprof file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pprof {
    /// Sum of all samples' first values, which count samples.
    pub total: i64,
    /// Keys of labels that every sample has.
    pub labels: BTreeSet<String>,
    /// All strings, names of functions among them.
    pub strings: BTreeSet<String>,
}

impl Pprof {
    /// Reads a gzipped file.
    ///
    /// # Errors
    /// It is not gzip, or no profile.
    pub fn read(path: &Path) -> Result<Self> {
        let file = std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).context("not gzip")?;
        let profile = Profile::decode(bytes.as_slice()).context("no pprof profile")?;
        let mut total = 0;
        let mut labels: Option<BTreeSet<String>> = None;
        for sample in &profile.sample {
            total += sample.value.first().context("a sample without a value")?;
            let keys = sample.label.iter().map(|label| text(&profile, label.key)).collect::<Result<BTreeSet<_>>>()?;
            labels = Some(labels.map_or_else(|| keys.clone(), |known| &known & &keys));
        }
        Ok(Self { total, labels: labels.unwrap_or_default(), strings: profile.string_table.into_iter().collect() })
    }
}

fn text(profile: &Profile, index: i64) -> Result<String> {
    let string = usize::try_from(index).ok().and_then(|index| profile.string_table.get(index));
    string.cloned().context("a label's key is beyond the strings")
}
