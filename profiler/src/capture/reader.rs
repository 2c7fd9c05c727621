//! Reads captures.

use std::io::{self, BufRead, BufReader, Read};

use serde::Deserialize;

use super::{CaptureError, Entry, FORMAT, Header, MAGIC, MAX_RECORD_BYTES, RequestName, Trailer, machine_name};

/// Bits of the window that a stream may ask for: 128 MiB.
const MAX_WINDOW_LOG: u32 = 27;
/// Bytes of a format's number that are shown.
const MAX_FORMAT_BYTES: usize = 10;

/// Reads a capture from its start to its end.
pub struct CaptureReader<'a> {
    stream: Box<dyn BufRead + 'a>,
    record: Vec<u8>,
    index: u64,
    is_truncated: bool,
    unanswered: Vec<RequestName>,
    version: String,
}

/// What MessagePack calls a map of one field, as only the trailer is one.
const MAP_OF_ONE: u8 = 0x81;

/// The part of a header that every version has.
#[derive(Deserialize)]
struct AnyHeader {
    version: String,
}

impl<'a> CaptureReader<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// It is no capture, or one of another kind of machine.
    pub fn new(mut file: impl Read + 'a) -> Result<(Header, Self), CaptureError> {
        let format = read_format(&mut file)?.ok_or(CaptureError::NotACapture)?;
        if format != FORMAT.to_string() {
            return Err(CaptureError::OtherFormat { format });
        }
        let mut stream = zstd::Decoder::new(file)?;
        stream.window_log_max(MAX_WINDOW_LOG)?;
        let stream = Box::new(BufReader::new(stream));
        let version = "an unknown version".to_owned();
        let mut reader =
            Self { stream, record: Vec::new(), index: 0, is_truncated: false, unanswered: Vec::new(), version };
        let Some(record) = reader.next_record()? else { return Err(CaptureError::Empty) };
        let version = rmp_serde::from_slice(record).map(|AnyHeader { version }| version);
        let header = rmp_serde::from_slice(record).map_err(|error| error.to_string());
        reader.version = version.unwrap_or(reader.version);
        let header: Header = header.map_err(|reason| reader.damaged(0, reason))?;
        if header.machine != machine_name() {
            return Err(CaptureError::OtherMachine { machine: header.machine });
        }
        Ok((header, reader))
    }

    /// The next input; `None` at the end, also one that is in the middle of a record.
    ///
    /// # Errors
    /// A record is damaged.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'_>>, CaptureError> {
        let index = loop {
            let index = self.index;
            match self.next_record()? {
                None => return Ok(None),
                Some([MAP_OF_ONE, ..]) => {
                    let trailer = rmp_serde::from_slice(&self.record);
                    let Trailer { unanswered } = trailer.map_err(|error| self.damaged(index, error.to_string()))?;
                    self.unanswered = unanswered;
                }
                Some(_) => break index,
            }
        };
        let entry = rmp_serde::from_slice(&self.record);
        entry.map(Some).map_err(|error| self.damaged(index, error.to_string()))
    }

    /// Whether it ended in the middle of a record: it was not written to its end.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// What nobody had answered when the run ended; known at the end.
    pub(super) fn unanswered(&self) -> &[RequestName] {
        &self.unanswered
    }

    fn next_record(&mut self) -> Result<Option<&[u8]>, CaptureError> {
        let mut is_over = false;
        let is_readable = self.fill(|stream| {
            is_over = stream.fill_buf()?.is_empty();
            Ok(())
        })?;
        let mut length = [0; 4];
        if !is_readable || is_over || !self.fill(|stream| stream.read_exact(&mut length))? {
            return Ok(None);
        }
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_RECORD_BYTES {
            return Err(self.damaged(self.index, format!("{length} bytes")));
        }
        let mut record = std::mem::take(&mut self.record);
        record.clear();
        // No more memory than there are bytes.
        let is_whole = self.fill(|stream| match stream.take(length as u64).read_to_end(&mut record)? {
            read if read == length => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        });
        self.record = record;
        if !is_whole? {
            return Ok(None);
        }
        self.index += 1;
        Ok(Some(&self.record))
    }

    /// Reads; false at the end of the file.
    fn fill(&mut self, read: impl FnOnce(&mut dyn BufRead) -> io::Result<()>) -> Result<bool, CaptureError> {
        match read(&mut *self.stream) {
            Ok(()) => Ok(true),
            // zstd's decoder says so of a stream without an end, as one has that was not closed.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.is_truncated = true;
                Ok(false)
            }
            Err(error) if error.raw_os_error().is_none() => Err(self.damaged(self.index, error.to_string())),
            Err(error) => Err(error.into()),
        }
    }

    fn damaged(&self, index: u64, reason: String) -> CaptureError {
        CaptureError::Damaged { index, reason, version: self.version.clone() }
    }
}

/// What follows the magic on its line; nothing if it is not there.
fn read_format(file: &mut impl Read) -> io::Result<Option<String>> {
    let mut magic = vec![0; MAGIC.len()];
    let mut format = Vec::new();
    let read = file.read_exact(&mut magic).and_then(|()| {
        let mut byte = [0];
        file.read_exact(&mut byte)?;
        while byte != *b"\n" && format.len() < MAX_FORMAT_BYTES {
            format.push(byte[0]);
            file.read_exact(&mut byte)?;
        }
        Ok(())
    });
    match read {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
        read if read.is_err() || magic != MAGIC.as_bytes() || !format.iter().all(u8::is_ascii_digit) => Ok(None),
        _ => Ok(Some(String::from_utf8_lossy(&format).into_owned())),
    }
}
