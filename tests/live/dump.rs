//! jitdump files, as far as tests need them: what a runtime has announced when all is written.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const HEADER_BYTES: usize = 40;
const LOAD: u32 = 0;
/// From the beginning of a LOAD record to the function's name.
const LOAD_NAME: usize = 56;

/// A LOAD record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Nanoseconds on CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Where the record ends in the file.
    pub end: usize,
    /// The function's name.
    pub name: String,
}

/// A file that a runtime leaves in /tmp, whatever is asked for. It is removed with the value.
#[derive(Debug)]
pub struct Leftover(PathBuf);

impl Leftover {
    /// The dump of a process.
    pub fn dump(pid: u32) -> Self {
        Self(PathBuf::from(format!("/tmp/jit-{pid}.dump")))
    }

    /// The perf map of a process.
    pub fn perf_map(pid: u32) -> Self {
        Self(PathBuf::from(format!("/tmp/perf-{pid}.map")))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            eprintln!("{} not removed: {error}", self.0.display());
        }
    }
}

/// Reads the LOAD records of a file of this machine's byte order.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub fn loads(path: &Path) -> Result<Vec<Load>> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut loads = Vec::new();
    let mut at = HEADER_BYTES;
    while at < bytes.len() {
        let (id, size) = (u32_at(&bytes, at)?, usize::try_from(u32_at(&bytes, at + 4)?)?);
        let record = bytes.get(at..at + size).filter(|record| !record.is_empty()).context("a torn record")?;
        at += size;
        if id == LOAD {
            let name = record.get(LOAD_NAME..).context("a short LOAD record")?;
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            let time: [u8; 8] = record[8..16].try_into()?;
            loads.push(Load {
                time_ns: u64::from_ne_bytes(time),
                end: at,
                name: String::from_utf8_lossy(name).into_owned(),
            });
        }
    }
    Ok(loads)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    let field = bytes.get(at..at + 4).context("a torn record")?;
    Ok(u32::from_ne_bytes(field.try_into()?))
}
