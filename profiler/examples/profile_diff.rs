//! Compares two recordings: a flamegraph of the second one, coloured by what changed since the first.
//!
//! ```text
//! jitprof --pid 4711 -d 30s -o before.pb.gz               and after.pb.gz, some change later
//! cargo run --example profile_diff -- before.pb.gz after.pb.gz diff.svg
//! ```
//!
//! Any program's pprof files will do. The functions that changed most are printed.

use std::error::Error;
use std::fs::File;
use std::path::Path;

use jitprof::output::{Destination, Format, OutputOptions, read_pprof, write_changes, write_diff, write_to};
use jitprof::profile::{Diff, Normalize, Profile};

/// Functions in the table.
const SHOWN: usize = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [before, after, svg] = arguments.as_slice() else {
        return Err("usage: profile_diff BEFORE.pb.gz AFTER.pb.gz DIFF.svg".into());
    };
    let [before, after] = [read(before)?, read(after)?];
    // Parts of all CPU time: two recordings of different length can be compared.
    let diff = Diff::new(&before, &after, Normalize::Total);
    write_changes(&diff, SHOWN, &mut std::io::stdout().lock())?;
    let options = OutputOptions { title: Some("after, compared with before".to_owned()), ..OutputOptions::default() };
    write_to(&Destination::File(svg.into()), |writer| {
        write_diff([&before, &after], &diff, Format::Svg, &options, writer)
    })?;
    Ok(())
}

fn read(path: &str) -> Result<Profile, Box<dyn Error>> {
    let file = File::open(Path::new(path)).map_err(|error| format!("{path}: {error}"))?;
    Ok(read_pprof(file)?)
}
