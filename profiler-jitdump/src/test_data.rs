//! Dumps for tests, of this crate and of those that use it; with the feature `test-data`, in a checkout only.
//!
//! The fixtures are dumps of real runtimes, some cut: `node20-lines` has the first 20 records and every DEBUG_INFO
//! with its UNWINDING_INFO and LOAD of Node 20.20.2, `node20-inlined` what it writes of
//! `tests/targets/node/lines.js`, `otp25-lines` 320 records of Erlang/OTP 25 around its first lines,
//! the `-paths` and `-gaps` functions of many forms.

use std::io::Read;

pub use crate::inspect::examples::{eh_frame, example, sound_dump, sound_header};

/// Every fixture.
pub const ALL: [&str; 8] = [
    "php-tracing",
    "wasmtime50",
    "llvm14-fp",
    "llvm14-nofp-g",
    "llvm19-nofp-g",
    "cpython3.13.0-burn",
    "node20-lines",
    "otp25-lines",
];

/// The bytes of a fixture.
///
/// # Panics
/// There is no such file.
pub fn fixture(name: &str) -> Vec<u8> {
    let path = format!("{}/fixtures/jitdump/{name}.dump.gz", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::File::open(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap_or_else(|error| panic!("{path}: {error}"));
    bytes
}

/// The bytes of a perf map.
///
/// # Panics
/// There is no such file.
pub fn perf_map(name: &str) -> Vec<u8> {
    let path = format!("{}/fixtures/perfmap/{name}.map.gz", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::File::open(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap_or_else(|error| panic!("{path}: {error}"));
    bytes
}
