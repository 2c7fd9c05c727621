//! pprof files, as far as tests need them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use prost::Message;

/// `perftools.profiles.Profile`; fields that are left out here are skipped.
#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
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
    #[prost(int64, tag = "2")]
    str: i64,
    #[prost(int64, tag = "3")]
    num: i64,
}

/// What a pprof file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pprof {
    /// Sum of all samples' first values, which count samples.
    pub total: i64,
    /// Keys of labels that every sample has.
    pub labels: BTreeSet<String>,
    /// The samples' labels, each set with the number of its samples. Numbers are in decimal.
    pub sets: Vec<(BTreeMap<String, String>, u64)>,
    /// All strings, names of functions among them.
    pub strings: BTreeSet<String>,
    /// Function, file and line of each frame that has a line.
    pub lines: BTreeSet<(String, String, i64)>,
    /// The greatest address of a location.
    pub highest_address: u64,
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
        let mut sets: BTreeMap<BTreeMap<String, String>, u64> = BTreeMap::new();
        for sample in &profile.sample {
            let count = *sample.value.first().context("a sample without a value")?;
            total += count;
            let set = sample.label.iter().map(|label| named(&profile, label)).collect::<Result<BTreeMap<_, _>>>()?;
            let keys = set.keys().cloned().collect();
            labels = Some(labels.map_or_else(|| BTreeSet::clone(&keys), |known| &known & &keys));
            *sets.entry(set).or_default() += u64::try_from(count)?;
        }
        let (labels, sets) = (labels.unwrap_or_default(), sets.into_iter().collect());
        let highest_address = profile.location.iter().map(|location| location.address).max().unwrap_or(0);
        let lines = lines_of(&profile)?;
        Ok(Self { total, labels, sets, lines, strings: profile.string_table.into_iter().collect(), highest_address })
    }

    /// Samples that have all of these labels.
    pub fn count(&self, labels: &[(&str, &str)]) -> u64 {
        let has = |set: &BTreeMap<String, String>| {
            labels.iter().all(|(name, value)| set.get(*name).is_some_and(|known| known == value))
        };
        self.sets.iter().filter(|(set, _)| has(set)).map(|(_, count)| count).sum()
    }
}

fn lines_of(profile: &Profile) -> Result<BTreeSet<(String, String, i64)>> {
    let functions: BTreeMap<u64, &Function> = profile.function.iter().map(|function| (function.id, function)).collect();
    let lines = profile.location.iter().flat_map(|location| &location.line).filter(|line| line.line != 0);
    lines
        .map(|line| {
            let function = functions.get(&line.function_id).context("a line of no function")?;
            Ok((text(profile, function.name)?, text(profile, function.filename)?, line.line))
        })
        .collect()
}

fn named(profile: &Profile, label: &Label) -> Result<(String, String)> {
    let value = if label.str == 0 { label.num.to_string() } else { text(profile, label.str)? };
    Ok((text(profile, label.key)?, value))
}

fn text(profile: &Profile, index: i64) -> Result<String> {
    let string = usize::try_from(index).ok().and_then(|index| profile.string_table.get(index));
    string.cloned().context("an index is beyond the strings")
}
