//! Samples by instruction, from a pprof file that jitprof wrote.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::GzDecoder;
use prost::Message;
use rustc_hash::FxHashMap;

use super::frame_names::frame_name;
use super::proto::{Location, ProtoFunction, Sample, ValueType};
use crate::profile::FrameRef;
use crate::profile::printable;
use crate::symbol::names::classify;
use jitprof_jitdump::code::CodeOrigin;

/// The longest profile that is read, inflated. It takes some three times as much memory.
const MAX_BYTES: u64 = 256 << 20;

/// A pprof file from which samples cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum SamplesError {
    /// The system says no, or it is not compressed as pprof files are.
    #[error("it is no gzipped pprof file (record with -o FILE.pb.gz): {0}")]
    Read(#[from] std::io::Error),
    /// It is no pprof file.
    #[error("it is no pprof file: {0}")]
    Decode(#[from] prost::DecodeError),
    /// It is larger than [`MAX_BYTES`].
    #[error("it is larger than {} MiB", MAX_BYTES >> 20)]
    TooLarge,
}

/// The fields of a profile that are wanted here.
#[derive(Clone, PartialEq, Message)]
struct Wanted {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<ProtoFunction>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
}

/// How often each instruction was the innermost of a sample.
#[derive(Clone, Debug, Default)]
pub struct InstructionSamples {
    /// By address; functions that were there at different times each have their name.
    by_address: BTreeMap<u64, Vec<(Box<str>, u64)>>,
    total: u64,
}

impl InstructionSamples {
    /// Reads a pprof file.
    ///
    /// # Errors
    /// [`SamplesError`].
    pub fn read(source: impl Read) -> Result<Self, SamplesError> {
        let mut bytes = Vec::new();
        GzDecoder::new(source).take(MAX_BYTES).read_to_end(&mut bytes)?;
        if bytes.len() as u64 == MAX_BYTES {
            return Err(SamplesError::TooLarge);
        }
        let profile = Wanted::decode(bytes.as_slice())?;
        drop(bytes);
        Ok(Self::of(&profile))
    }

    fn of(profile: &Wanted) -> Self {
        let text = |index: i64| usize::try_from(index).ok().and_then(|index| profile.string_table.get(index));
        let counts = |value: &ValueType| text(value.r#type).is_some_and(|name| name == "samples");
        let column = profile.sample_type.iter().position(counts).unwrap_or(0);
        let functions: FxHashMap<u64, i64> =
            profile.function.iter().map(|function| (function.id, function.name)).collect();
        // The function that holds the instruction stands last; those inlined into it before.
        let name = |location: &Location| text(*functions.get(&location.line.last()?.function_id)?);
        let places: FxHashMap<u64, (u64, &str)> = profile
            .location
            .iter()
            .filter_map(|location| Some((location.id, (location.address, name(location)?.as_str()))))
            .collect();
        let mut samples = Self::default();
        for sample in &profile.sample {
            let count = sample.value.get(column).and_then(|count| u64::try_from(*count).ok()).unwrap_or(0);
            samples.total = samples.total.saturating_add(count);
            if let Some((address, name)) = sample.location_id.first().and_then(|leaf| places.get(leaf)) {
                samples.add(*address, name, count);
            }
        }
        samples
    }

    fn add(&mut self, address: u64, name: &str, count: u64) {
        let names = self.by_address.entry(address).or_default();
        match names.iter_mut().find(|(known, _)| **known == *name) {
            Some((_, sum)) => *sum = sum.saturating_add(count),
            None => names.push((name.into(), count)),
        }
    }

    /// All samples of the profile.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Samples in `size` bytes from `start` on, of the function that its runtime gave this name: address and count, by
    /// ascending address.
    pub fn of_function(&self, start: u64, size: u64, name: &str) -> Vec<(u64, u64)> {
        let shown = shown_name(name);
        let of_name =
            |names: &[(Box<str>, u64)]| names.iter().find(|(known, _)| **known == *shown).map(|(_, count)| *count);
        let range = self.by_address.range(start..start.saturating_add(size));
        range.filter_map(|(address, names)| Some((*address, of_name(names)?))).collect()
    }
}

/// A function's name as outputs show it, from what its runtime wrote.
fn shown_name(name: &str) -> String {
    let known = classify(name, CodeOrigin::Jitdump, None);
    let frame = FrameRef {
        name: &known.display,
        kind: known.kind,
        tier: known.tier,
        inlined: false,
        module: None,
        source: None,
        address: 0,
    };
    frame_name(frame, false)
}

/// A function's name without what its runtime says besides (tier, file, line), fit to be shown.
pub fn function_name(name: &str) -> String {
    printable(&classify(name, CodeOrigin::Jitdump, None).display).into_owned()
}

/// The source file, if the runtime wrote it into the function's name.
pub fn function_source(name: &str) -> Option<String> {
    classify(name, CodeOrigin::Jitdump, None).source.map(|source| source.file.to_string())
}
