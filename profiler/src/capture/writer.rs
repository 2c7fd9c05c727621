//! Writes captures.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jitprof_common::table::{Region, Span};
use jitprof_common::units::MonoNs;
use serde::Serialize;

use super::matching::Names;
use super::{FORMAT, FoundRow, Header, MAGIC, MAX_FILE_BYTES, MAX_RECORD_BYTES, RequestName, Trailer, machine_name};
use crate::engine::border::RequestId;
use crate::engine::tables::TableMemory;
use crate::engine::{Engine, EngineOptions, Input, Output};
use crate::process::open::FileId;

/// How much of a capture a crash can cost.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// zstd's own default.
const LEVEL: i32 = 3;
/// Rows that are remembered as written; with more, some are written twice.
const MAX_FOUND: usize = 1 << 20;

/// What was found in the rows of files.
#[derive(Debug, Default)]
struct Found {
    known: HashSet<(FileId, u64)>,
    new: Vec<FoundRow>,
    /// Nothing is written any more.
    is_over: bool,
}

/// Counts what is written.
struct Counted {
    file: BufWriter<File>,
    bytes: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes a capture, and goes on without if that fails.
pub struct CaptureWriter {
    stream: Option<zstd::Encoder<'static, Counted>>,
    scratch: Vec<u8>,
    found: Arc<Mutex<Found>>,
    names: Names,
    asked: HashMap<RequestId, (RequestName, Option<FileId>)>,
    flushed: Instant,
    max_bytes: u64,
    error: Option<io::Error>,
}

impl CaptureWriter {
    /// Into a new file that only its owner may read. A file that is there is replaced; a link, a device or a directory is
    /// left as it is.
    ///
    /// # Errors
    /// Something else than a file is there, or it cannot be made or written.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::bounded(path, MAX_FILE_BYTES)
    }

    /// Like [`Self::create`], with another bound: no record is begun behind so many bytes.
    pub(super) fn bounded(path: &Path, max_bytes: u64) -> io::Result<Self> {
        let mut file = create_anew(path)?;
        let start = format!("{MAGIC}{FORMAT}\n");
        file.write_all(start.as_bytes())?;
        let counted = Counted { file: BufWriter::new(file), bytes: start.len() as u64 };
        let mut stream = zstd::Encoder::new(counted, LEVEL)?;
        stream.include_checksum(true)?;
        Ok(Self {
            stream: Some(stream),
            scratch: Vec::new(),
            found: Arc::default(),
            names: Names::default(),
            asked: HashMap::new(),
            flushed: Instant::now(),
            max_bytes,
            error: None,
        })
    }

    /// The recording begins, with these options, at this time.
    pub fn begin(&mut self, options: &EngineOptions, now: MonoNs) {
        self.write_record(&Header {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: machine_name().to_owned(),
            options: options.clone(),
            now,
        });
    }

    /// Hands an input in, and writes it down with what belongs to it.
    pub fn hand_in(&mut self, engine: &mut Engine, input: Input<'_>) {
        if self.stream.is_none() {
            return engine.handle(input);
        }
        let answers = match &input {
            Input::Answer(answer) => self.asked.remove(&answer.request),
            _ => None,
        };
        // Encoded before it is taken up, written after: what was looked up meanwhile belongs to it.
        let encoded = encode(&input);
        engine.handle(input);
        let found = std::mem::take(&mut self.found.lock().unwrap_or_else(PoisonError::into_inner).new);
        match encoded {
            Ok(input) => self.write_entry(&input, answers, &found),
            Err(error) => self.give_up(error),
        }
    }

    /// Something has come out of the engine.
    pub fn look_at(&mut self, output: &Output) {
        if self.stream.is_some()
            && let Output::Request(id, request) = output
        {
            self.asked.insert(*id, self.names.of(request));
        }
    }

    /// As [`Entry`](super::Entry) is encoded, with an input that has been encoded before.
    fn write_entry(&mut self, input: &[u8], answers: Option<(RequestName, Option<FileId>)>, found: &[FoundRow]) {
        let (answers, found) = match (encode(&answers), encode(&found)) {
            (Ok(answers), Ok(found)) => (answers, found),
            (Err(error), _) | (_, Err(error)) => return self.give_up(error),
        };
        let mut record = std::mem::take(&mut self.scratch);
        record.clear();
        // A map of three: the names of its fields, and their values.
        record.push(0x83);
        for (name, value) in [("input", input), ("answers", &answers), ("found", &found)] {
            record.push(0xa0 | u8::try_from(name.len()).unwrap_or_default());
            record.extend_from_slice(name.as_bytes());
            record.extend_from_slice(value);
        }
        self.write_bytes(&record);
        self.scratch = record;
    }

    fn write_record(&mut self, record: &impl Serialize) {
        match encode(record) {
            Ok(record) => self.write_bytes(&record),
            Err(error) => self.give_up(error),
        }
    }

    fn write_bytes(&mut self, record: &[u8]) {
        if let Err(error) = self.write(record) {
            self.give_up(error);
        }
    }

    fn write(&mut self, record: &[u8]) -> io::Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        if record.len() > MAX_RECORD_BYTES {
            return Err(io::Error::other("a record is too large"));
        }
        if stream.get_ref().bytes >= self.max_bytes {
            return Err(io::Error::other(format!("it has reached its bound of {} MiB", self.max_bytes >> 20)));
        }
        let length = u32::try_from(record.len()).map_err(io::Error::other)?;
        stream.write_all(&length.to_le_bytes())?;
        stream.write_all(record)?;
        if self.flushed.elapsed() >= FLUSH_EVERY {
            self.flushed = Instant::now();
            stream.flush()?;
        }
        Ok(())
    }

    /// What has been written stays, and nothing is kept for what will not be.
    fn give_up(&mut self, error: io::Error) {
        tracing::warn!("the capture ends early: {error}");
        let ended = self.stream.take().map_or(Ok(()), |stream| stream.finish()?.flush());
        self.error = Some(ended.err().unwrap_or(error));
        (self.names, self.asked, self.scratch) = Default::default();
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Found { is_over: true, ..Found::default() };
    }

    /// Whether it keeps nothing, as after its end.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        self.stream.is_none() && self.asked.is_empty() && found.known.is_empty() && found.new.is_empty()
    }

    /// Ends it.
    ///
    /// # Errors
    /// It could not be written to its end.
    pub fn finish(mut self) -> io::Result<()> {
        let unanswered = std::mem::take(&mut self.asked).into_values().map(|(name, _)| name).collect();
        self.write_record(&Trailer { unanswered });
        match (self.stream.take(), self.error.take()) {
            (_, Some(error)) => Err(error),
            (Some(stream), None) => stream.finish()?.flush(),
            (None, None) => Ok(()),
        }
    }
}

/// A file that is in nobody else's hands: neither what a link leads to, nor what somebody has opened before.
fn create_anew(path: &Path) -> io::Result<File> {
    match fs::symlink_metadata(path) {
        Ok(there) if there.is_file() => fs::remove_file(path)?,
        Ok(_) => return Err(io::Error::other("there is something that is no regular file; name another one")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn encode(what: &impl Serialize) -> io::Result<Vec<u8>> {
    rmp_serde::to_vec_named(what).map_err(io::Error::other)
}

/// The tables' memory, whose every look-up is noted.
pub struct Witness<Memory> {
    memory: Memory,
    found: Arc<Mutex<Found>>,
}

impl<Memory: TableMemory> Witness<Memory> {
    /// For the capture that is told of them.
    pub fn new(memory: Memory, capture: &CaptureWriter) -> Self {
        Self { memory, found: Arc::clone(&capture.found) }
    }
}

impl<Memory: TableMemory> TableMemory for Witness<Memory> {
    fn write_rows(&mut self, first: u32, rows: &[u64]) {
        self.memory.write_rows(first, rows);
    }

    fn write_regions(&mut self, first: u32, regions: &[Region]) {
        self.memory.write_regions(first, regions);
    }

    fn find_row(&self, file: FileId, address: u64, span: Span) -> Option<u64> {
        let row = self.memory.find_row(file, address, span);
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_over {
            return row;
        }
        if found.known.len() >= MAX_FOUND {
            found.known.clear();
        }
        if found.known.insert((file, address)) {
            found.new.push(FoundRow { file, address, row });
        }
        row
    }
}
