//! Announcing code: jitdump records or perf-map lines.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::assembler::Function;
use crate::eh_frame::HEADER_SIZE;
use crate::functions::SOURCE_FILE;
use crate::output::Output;

const MAGIC: u32 = 0x4A69_5444;
/// What every producer writes and all that perf accepts, although version 2 of the specification exists.
const VERSION: u32 = 1;
/// ELF's number of this machine.
const MACHINE: u32 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// Where xorshift64 begins; anything but zero.
const NOISE_SEED: u64 = 88_172_645_463_325_252;
/// Size of a file of noise.
const NOISE_FILE_BYTES: usize = 1 << 20;
/// Noise between two records: an odd number, so that what follows is not aligned.
const GAP_BYTES: usize = 333;

/// Record ids.
const LOAD: u32 = 0;
const DEBUG_INFO: u32 = 2;
const CLOSE: u32 = 3;
const UNWINDING_INFO: u32 = 4;

/// What is wrong with a jitdump on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Damage {
    /// Noise where the header should be, and no record: a file that only has the right name.
    Noise,
    /// Noise behind every record: nothing that says where the next one begins.
    Gaps,
    /// The first record claims to go on for 4 GiB, and another one's code to be larger than its record.
    Sizes,
}

/// The open file with the announcements of this process.
pub(crate) struct Announcer {
    output: Output,
    format: Format,
    damage: Option<Damage>,
    noise: u64,
    pid: u32,
    next_index: u64,
    path: PathBuf,
    delay_ns: u64,
    /// Records that are not due yet, with the times at which they are.
    held: VecDeque<(u64, Vec<u8>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Jitdump,
    PerfMap,
}

impl Announcer {
    /// Creates the file, writes its header and maps it as the format asks.
    pub(crate) fn create(folder: &Path, format: Format, stdio: bool, damage: Option<Damage>) -> Result<Self> {
        let pid = std::process::id();
        let name = match format {
            Format::Jitdump => format!("jit-{pid}.dump"),
            Format::PerfMap => format!("perf-{pid}.map"),
        };
        let path = std::path::absolute(folder.join(name)).context("the current folder is gone")?;
        let output = Output::create(&path, stdio)?;
        if format == Format::Jitdump {
            output.map_marker()?;
        }
        let mut new = Self {
            output,
            format,
            damage,
            noise: NOISE_SEED,
            pid,
            next_index: 0,
            path,
            delay_ns: 0,
            held: VecDeque::new(),
        };
        match (format, damage) {
            (Format::PerfMap, _) => {}
            (Format::Jitdump, Some(Damage::Noise)) => {
                let noise = new.noise(NOISE_FILE_BYTES);
                new.output.write(&noise)?;
            }
            (Format::Jitdump, Some(Damage::Sizes)) => {
                new.output.write(&header(pid))?;
                new.output.write(&oversized())?;
            }
            (Format::Jitdump, None | Some(Damage::Gaps)) => new.output.write(&header(pid))?,
        }
        Ok(new)
    }

    /// Holds every record back for so long.
    pub(crate) fn hold(&mut self, delay_ms: u32) {
        self.delay_ns = u64::from(delay_ms) * 1_000_000;
    }

    /// When the next record held back is due; `u64::MAX` for none.
    pub(crate) fn next_due_ns(&self) -> u64 {
        self.held.front().map_or(u64::MAX, |(due_ns, _)| *due_ns)
    }

    /// Writes what is due by then.
    pub(crate) fn write_due(&mut self, now_ns: u64) -> Result<()> {
        while self.next_due_ns() <= now_ns
            && let Some((_, record)) = self.held.pop_front()
        {
            self.output.write(&record)?;
        }
        Ok(())
    }

    fn write(&mut self, record: Vec<u8>) -> Result<()> {
        if self.delay_ns == 0 {
            return self.output.write(&record);
        }
        self.held.push_back((now_ns().saturating_add(self.delay_ns), record));
        Ok(())
    }

    /// Bytes that mean nothing, the same in every run.
    fn noise(&mut self, count: usize) -> Vec<u8> {
        let step = |_| {
            self.noise ^= self.noise << 13;
            self.noise ^= self.noise >> 7;
            self.noise ^= self.noise << 17;
            self.noise.to_le_bytes()[0]
        };
        (0..count).map(step).collect()
    }

    /// The file's absolute path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file's name; the file lives on as long as it is mapped.
    pub(crate) fn unlink(&self) -> Result<()> {
        std::fs::remove_file(&self.path).with_context(|| format!("cannot remove {}", self.path.display()))
    }

    /// Announces a function at an address: its lines, its unwinding information, then itself.
    pub(crate) fn announce(&mut self, name: &str, address: usize, function: &Function) -> Result<()> {
        if self.format == Format::PerfMap {
            return self.write(format!("{address:x} {:x} {name}\n", function.code.len()).into_bytes());
        }
        if self.damage == Some(Damage::Noise) {
            return Ok(());
        }
        let address = address as u64;
        let load = self.load(name, address, &function.code);
        for record in [debug_info(address, &function.lines), unwinding_info(function), load] {
            self.write(record)?;
            if self.damage == Some(Damage::Gaps) {
                let noise = self.noise(GAP_BYTES);
                self.write(noise)?;
            }
        }
        self.next_index += 1;
        Ok(())
    }

    /// Says that nothing will follow.
    pub(crate) fn close(mut self) -> Result<()> {
        self.write_due(u64::MAX)?;
        if self.format == Format::Jitdump {
            self.output.write(&record(CLOSE, &[]))?;
        }
        Ok(())
    }

    fn load(&self, name: &str, address: u64, code: &[u8]) -> Vec<u8> {
        // SAFETY: gettid takes nothing and cannot fail.
        let tid = unsafe { libc::gettid() };
        let mut body = Vec::new();
        body.extend(self.pid.to_ne_bytes());
        body.extend(tid.to_ne_bytes());
        body.extend(address.to_ne_bytes()); // vma
        body.extend(address.to_ne_bytes());
        body.extend((code.len() as u64).to_ne_bytes());
        body.extend(self.next_index.to_ne_bytes());
        body.extend(name.as_bytes());
        body.push(0);
        body.extend(code);
        record(LOAD, &body)
    }
}

/// Records whose sizes are lies.
fn oversized() -> Vec<u8> {
    let mut bytes = record(LOAD, &[0; 64]);
    bytes[4..8].fill(0xff);
    let mut second = record(LOAD, &[0; 64]);
    // The code's size: behind the record's header, pid, tid, vma and address.
    second[40..48].fill(0xff);
    bytes.extend(second);
    bytes
}

fn header(pid: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in [MAGIC, VERSION, 40, MACHINE, 0, pid] {
        bytes.extend(field.to_ne_bytes());
    }
    bytes.extend(now_ns().to_ne_bytes());
    bytes.extend(0_u64.to_ne_bytes()); // flags: times are on CLOCK_MONOTONIC
    bytes
}

fn debug_info(address: u64, lines: &[(usize, i32)]) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(address.to_ne_bytes());
    body.extend((lines.len() as u64).to_ne_bytes());
    for (offset, line) in lines {
        body.extend((address + *offset as u64).to_ne_bytes());
        body.extend(line.to_ne_bytes());
        body.extend(0_u32.to_ne_bytes()); // discriminator
        body.extend(SOURCE_FILE.as_bytes());
        body.push(0);
    }
    record(DEBUG_INFO, &body)
}

fn unwinding_info(function: &Function) -> Vec<u8> {
    let section = function.unwinding.section(function.code.len());
    let mut body = Vec::new();
    // Its size, the part of it that is the header, and how much of it is mapped behind the code: all.
    for size in [section.len(), HEADER_SIZE, section.len()] {
        body.extend((size as u64).to_ne_bytes());
    }
    body.extend(section);
    record(UNWINDING_INFO, &body)
}

fn record(id: u32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(body.len() + 16).expect("invariant: functions are small");
    let mut bytes = Vec::with_capacity(body.len() + 16);
    bytes.extend(id.to_ne_bytes());
    bytes.extend(size.to_ne_bytes());
    bytes.extend(now_ns().to_ne_bytes());
    bytes.extend(body);
    bytes
}

/// Nanoseconds on CLOCK_MONOTONIC, the clock of jitdump and of profilers' samples.
pub(crate) fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// CPU time of this process in nanoseconds.
pub(crate) fn cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the timespec that the pointer refers to.
    let result = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(result, 0, "Linux has this clock");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
