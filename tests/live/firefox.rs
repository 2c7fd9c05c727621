//! The Firefox Profiler's format, as far as tests need it: samples with their times.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// A sample and when it was taken.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedSample {
    /// Milliseconds since 1970. jitprof keeps whole milliseconds since its start, rounded down.
    pub unix_ms: f64,
    /// Frames, innermost first.
    pub frames: Vec<String>,
    /// How many samples this is.
    pub weight: u64,
}

/// Reads all samples of all threads, in the order of time within each thread.
///
/// # Errors
/// The file is not in this format.
pub fn timed_samples(path: &Path) -> Result<Vec<TimedSample>> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let json: Value = serde_json::from_slice(&text)?;
    let start = json["meta"]["startTime"].as_f64().context("no start time")?;
    let mut samples = Vec::new();
    for thread in json["threads"].as_array().context("no threads")? {
        read_thread(thread, start, &mut samples).context("no thread of the Firefox Profiler")?;
    }
    Ok(samples)
}

fn read_thread(thread: &Value, start: f64, samples: &mut Vec<TimedSample>) -> Option<()> {
    let columns = &thread["samples"];
    let stacks = columns["stack"].as_array()?;
    let weights = columns["weight"].as_array()?;
    let mut unix_ms = start;
    for (index, delta) in columns["timeDeltas"].as_array()?.iter().enumerate() {
        unix_ms += delta.as_f64()?;
        samples.push(TimedSample {
            unix_ms,
            frames: frames(thread, stacks.get(index)?)?,
            weight: weights.get(index)?.as_u64()?,
        });
    }
    Some(())
}

fn frames(thread: &Value, stack: &Value) -> Option<Vec<String>> {
    let mut frames = Vec::new();
    let mut rest = stack.as_u64();
    while let Some(index) = rest {
        let frame = cell(&thread["stackTable"]["frame"], index)?.as_u64()?;
        let function = cell(&thread["frameTable"]["func"], frame)?.as_u64()?;
        let name = cell(&thread["funcTable"]["name"], function)?.as_u64()?;
        frames.push(cell(&thread["stringArray"], name)?.as_str()?.to_owned());
        rest = cell(&thread["stackTable"]["prefix"], index)?.as_u64();
    }
    Some(frames)
}

fn cell(column: &Value, index: u64) -> Option<&Value> {
    column.get(usize::try_from(index).ok()?)
}
