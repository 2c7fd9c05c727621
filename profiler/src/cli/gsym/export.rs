//! `jitprof gsym export`.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use clap::Args;

use super::GsymCommandError;
use crate::cli::say::say_part;
use crate::output::gsym::{Snapshot, Uuid, WriteError, write};
use crate::output::{Destination, OutputError, check_writable, write_to};
use crate::process::discover::is_jitdump;
use crate::process::monotonic_now;
use crate::record::{Depth, announced};
use crate::times::DumpTime;
use jitprof_common::units::{MonoNs, Pid};
use jitprof_jitdump::code::{CodeEvent, CodeMap};
use jitprof_jitdump::perfmap::PerfMapStream;
use jitprof_jitdump::{DumpTail, FileBytes, HEADER_SIZE, ReaderOptions, bias_of_path};

/// `gsym export` as typed.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// A running process: what it has announced up to now
    #[arg(short, long, value_name = "PID", conflicts_with = "file", required_unless_present = "file")]
    pid: Option<u32>,

    /// A jitdump or a perf map
    #[arg(value_name = "DUMP|PERFMAP")]
    file: Option<PathBuf>,

    /// Where to write; - is standard output
    #[arg(short, long, value_name = "OUT.gsym")]
    output: PathBuf,

    /// The code at this time instead of the last one: +DURATION after the first announcement (+1.5s, +2m), or
    /// CLOCK_MONOTONIC as the dump has it, in nanoseconds (81234567890) or in seconds (81.234567890)
    #[arg(long, value_name = "TIME")]
    at: Option<DumpTime>,
}

/// The code that is exported, and what tells it from other code.
struct Input {
    /// The process or file, as remarks name it.
    what: String,
    map: CodeMap,
    timed: bool,
    /// What makes it different from every other, but for the code of a perf map.
    identity: Vec<Vec<u8>>,
    remarks: Vec<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), GsymCommandError> {
    let destination = Destination::from_argument(&arguments.output);
    check_writable(&destination)?;
    let input = match (&arguments.file, arguments.pid) {
        (Some(path), _) => of_file(path)?,
        (None, pid) => of_process(Pid(pid.unwrap_or_default()))?,
    };
    let at = match arguments.at {
        None => MonoNs(u64::MAX - 1),
        Some(_) if !input.timed => return Err(GsymCommandError::Timeless),
        Some(time) => {
            let first = input.map.functions().map(|function| function.loaded()).min().unwrap_or_default();
            time.on_clock(first)
        }
    };
    let snapshot = Snapshot::of(&input.map, at);
    let uuid = uuid_of(&input, &snapshot);
    let mut failed = None;
    let written = write_to(&destination, |out| {
        write(&snapshot, uuid, out).map_err(|error| match error {
            WriteError::Io(error) => OutputError::Write(error),
            other => {
                failed = Some(other);
                OutputError::NoSamples
            }
        })
    });
    if let Some(source) = failed {
        return Err(GsymCommandError::Write { what: input.what, source });
    }
    written?;
    say_part!("{}", account(&input, &snapshot));
    Ok(())
}

fn of_process(pid: Pid) -> Result<Input, GsymCommandError> {
    let code = announced(pid, Depth::Code)?;
    if !code.is_announced {
        return Err(GsymCommandError::NoCode(pid));
    }
    // The start counts from the boot.
    let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let start = code.process.start.0.to_le_bytes().to_vec();
    Ok(Input {
        what: format!("process {pid}"),
        map: code.map,
        timed: true,
        identity: vec![b"process".to_vec(), boot, pid.0.to_le_bytes().to_vec(), start],
        remarks: code.remarks,
    })
}

fn of_file(path: &Path) -> Result<Input, GsymCommandError> {
    let read = |source| GsymCommandError::Read { path: path.to_owned(), source };
    let file = super::open(path)?;
    if is_jitdump(&file).map_err(read)? { of_dump(path, file) } else { of_perf_map(path, file) }
}

fn of_dump(path: &Path, file: File) -> Result<Input, GsymCommandError> {
    let read = |source| GsymCommandError::Read { path: path.to_owned(), source };
    let mut head = [0; HEADER_SIZE];
    let length = file.read_at(&mut head, 0).map_err(read)?;
    let debug_bias = bias_of_path(&path.to_string_lossy());
    let mut tail = DumpTail::new(file, ReaderOptions { debug_bias, ..ReaderOptions::default() });
    let mut map = CodeMap::new();
    let mut apply = |event: CodeEvent| {
        map.apply(event);
    };
    while tail.poll(monotonic_now, &mut apply).map_err(read)?.more {}
    let damage = tail.stream().stats_so_far().corrupt_bytes;
    let mut remarks = Vec::new();
    if damage > 0 {
        remarks.push(format!("{damage} bytes of the dump are damaged; what they announced is missing"));
    }
    // The header has the pid and the time at which the dump was begun.
    let identity = vec![b"jitdump".to_vec(), head.get(..length).unwrap_or_default().to_vec()];
    Ok(Input { what: path.display().to_string(), map, timed: true, identity, remarks })
}

fn of_perf_map(path: &Path, file: File) -> Result<Input, GsymCommandError> {
    let read = |source| GsymCommandError::Read { path: path.to_owned(), source };
    let mut stream = PerfMapStream::new();
    let (mut map, mut lines) = (CodeMap::new(), Vec::new());
    // Each look is later than the one before: a later line over the same code replaces the earlier one.
    for look in 1.. {
        let bytes = FileBytes::read(&file, stream.next_read()).map_err(read)?;
        let more = stream.take(bytes.as_look(), MonoNs(look), &mut lines).more;
        if !more {
            stream.finish(&mut lines);
        }
        for line in lines.drain(..) {
            map.apply(line);
        }
        if !more {
            break;
        }
    }
    let stats = *stream.stats();
    if stats.lines == 0 {
        return Err(GsymCommandError::NothingKnown { path: path.to_owned() });
    }
    let mut remarks = Vec::new();
    if stats.bad_lines > 0 {
        remarks.push(format!("{} lines of the perf map are none", stats.bad_lines));
    }
    Ok(Input { what: path.display().to_string(), map, timed: false, identity: vec![b"perf map".to_vec()], remarks })
}

/// A process or a dump is told by its start; a perf map by nothing but its code.
fn uuid_of(input: &Input, snapshot: &Snapshot<'_>) -> Uuid {
    let mut parts: Vec<&[u8]> = input.identity.iter().map(Vec::as_slice).collect();
    let numbers: Vec<[u8; 8]> = snapshot.parts.iter().map(|part| part.start.to_le_bytes()).collect();
    if !input.timed {
        for (part, number) in snapshot.parts.iter().zip(&numbers) {
            parts.extend([number.as_slice(), part.function.name().as_bytes()]);
        }
    }
    Uuid::of(&parts)
}

/// What was written and what was not, for stderr.
fn account(input: &Input, snapshot: &Snapshot<'_>) -> String {
    let parts = &snapshot.parts;
    let with_lines = parts.iter().filter(|part| part.function.has_lines()).count();
    let mut text = format!("jitprof: {} functions of {}, {with_lines} with source rows\n", parts.len(), input.what);
    let stats = snapshot.stats;
    let map = input.map.stats();
    let left_out = [
        (stats.other_times, "were there at other times only"),
        (stats.empty.saturating_add(map.dropped_empty), "have no code"),
        (stats.covered, "of the perf map are replaced by the dump's"),
        (stats.cut, "of the perf map are cut where the dump has others"),
        (map.dropped_full, "are missing: the code map is full"),
    ];
    for (count, why) in left_out.into_iter().filter(|(count, _)| *count > 0) {
        // Writing into a String does not fail.
        writeln!(text, "         {count} {why}").expect("invariant: memory is written to");
    }
    for remark in &input.remarks {
        writeln!(text, "         {remark}").expect("invariant: memory is written to");
    }
    text
}
