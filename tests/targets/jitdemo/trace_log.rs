//! A trace log in HQNplog format, written here from its description alone: jitprof's own writer is not used, so that its
//! reader meets another one.
//!
//! ```text
//! first thread  GENERATION_EVEN | GENERATION_ODD     by ENTER and EXIT
//!                 RENDER                             75 % of the calls of outer, by duration
//!                 INTERPRET                          25 %
//! other threads WORKER                               each call of worker_outer, by duration
//! ```
//!
//! Entries reach the file after each generation and at least once in 256 entries; the header counts those that are there.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

use crate::announce::now_ns;

pub(crate) const GENERATION_EVEN: u32 = 1;
pub(crate) const GENERATION_ODD: u32 = 2;
pub(crate) const RENDER: u32 = 3;
pub(crate) const INTERPRET: u32 = 4;
pub(crate) const WORKER: u32 = 5;
const NAMES: [&str; 6] = ["INVALID", "GENERATION_EVEN", "GENERATION_ODD", "RENDER", "INTERPRET", "WORKER"];

pub(crate) const ENTER: u32 = 1;
pub(crate) const EXIT: u32 = 2;
pub(crate) const ACQUIRE: u32 = 3;
const TYPES: [&str; 4] = ["INVALID", "ENTER", "EXIT", "ACQUIRE"];

/// Where the header has the number of entries.
const COUNT_AT: u64 = 72;
const ENTRIES_A_WRITE: usize = 256;

pub(crate) struct TraceLog {
    start_ns: u64,
    big_endian: bool,
    inner: Mutex<Inner>,
}

struct Inner {
    file: File,
    /// Entries in the file.
    count: u64,
    waiting: Vec<u8>,
    waiting_count: usize,
}

impl TraceLog {
    pub(crate) fn create(path: &Path, big_endian: bool) -> Result<Self> {
        let mut file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        let start_ns = now_ns();
        let (names, types) = (table(&NAMES), table(&TYPES));
        let names_at = 80_u64;
        let types_at = names_at + names.len() as u64;
        let entries_at = types_at + types.len() as u64;
        let mut head = b"HQNplog\n".to_vec();
        let fields = [0x0807_0605_0403_0201, 80, 1_000_000_000, start_ns, names_at, types_at, entries_at, 40, 0];
        head.extend(fields.into_iter().flat_map(|field: u64| in_order(field, big_endian)));
        head.extend(names);
        head.extend(types);
        file.write_all(&head).context("cannot write the trace log")?;
        let inner = Inner { file, count: 0, waiting: Vec::new(), waiting_count: 0 };
        Ok(Self { start_ns, big_endian, inner: Mutex::new(inner) })
    }

    /// Logs something of the calling thread that began at `begin_ns`.
    pub(crate) fn log(&self, trace_id: u32, type_id: u32, begin_ns: u64, duration_ns: u64, designator: u64) {
        // SAFETY: pthread_self takes and changes nothing.
        let thread = unsafe { libc::pthread_self() };
        // A number in glibc, a pointer in musl.
        let thread = thread as usize as u64;
        let mut entry = Vec::with_capacity(40);
        for field in [begin_ns - self.start_ns, duration_ns, thread] {
            entry.extend(in_order(field, self.big_endian));
        }
        for field in [trace_id, type_id] {
            entry.extend(if self.big_endian { field.to_be_bytes() } else { field.to_le_bytes() });
        }
        entry.extend(in_order(designator, self.big_endian));
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.waiting.extend(entry);
        inner.waiting_count += 1;
        if inner.waiting_count >= ENTRIES_A_WRITE || type_id == EXIT {
            inner.write(self.big_endian);
        }
    }

    /// Calls `work` and logs for how long.
    pub(crate) fn timed<T>(&self, trace_id: u32, designator: u64, work: impl FnOnce() -> T) -> T {
        let begin = now_ns();
        let result = work();
        self.log(trace_id, ACQUIRE, begin, now_ns() - begin, designator);
        result
    }
}

impl Inner {
    fn write(&mut self, big_endian: bool) {
        self.count += self.waiting_count as u64;
        let count = in_order(self.count, big_endian);
        let written = self.file.write_all(&self.waiting).and_then(|()| self.file.write_all_at(&count, COUNT_AT));
        written.expect("the trace log cannot be written");
        self.waiting.clear();
        self.waiting_count = 0;
    }
}

fn in_order(field: u64, big_endian: bool) -> [u8; 8] {
    if big_endian { field.to_be_bytes() } else { field.to_le_bytes() }
}

/// NUL-terminated names, rounded up to 8 bytes.
fn table(names: &[&str]) -> Vec<u8> {
    let mut table: Vec<u8> = names.iter().flat_map(|name| name.bytes().chain([0])).collect();
    table.resize(table.len().next_multiple_of(8), 0);
    table
}
