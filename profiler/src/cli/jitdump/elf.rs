//! `--write-elf`: the functions at one time.
//!
//! The dump is gone through three times: for what is there at that time, for names, lines and unwinding data of that,
//! and for its code, so that no code is held in memory.

use std::fmt::Write as _;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustc_hash::FxHashMap;

use super::JitdumpError;
use super::dump_summary::machine as machine_name;
use super::source::Source;
use crate::cli::say::say_part;
use crate::output::{
    Destination, ElfAccount, ElfError, ElfFunction, ElfKind, OutputError, check_writable, write_elf, write_to,
};
use crate::times::DumpTime;
use jitprof_common::units::{Avma, MonoNs};
use jitprof_jitdump::code::{CodeEvent, CodeLoad, SourceRows};
use jitprof_jitdump::{Assembler, FileHeader, Living, LivingCode, ParserOptions, ReaderOptions, Step};

/// Bytes of code read at once.
const CHUNK: usize = 64 << 10;
/// Rows that are kept: some 100 MiB until they are written.
const MAX_ROWS: usize = 1 << 21;
/// Bytes of names and of unwinding data that are kept.
const MAX_TEXT: usize = 64 << 20;
/// Machines of 32 bits.
const NARROW: [u32; 4] = [2, 3, 8, 40];

/// What is written, and what is not.
#[derive(Default)]
struct Collected {
    functions: Vec<ElfFunction>,
    /// Where the code of each is in the dump.
    code: FxHashMap<u64, u64>,
    rows: usize,
    text: usize,
    without_code: u64,
    untracked: u64,
    rows_left_out: u64,
    names_left_out: u64,
}

/// Writes the ELF file.
pub(super) fn run(source: &Source, output: &Path, at: Option<DumpTime>) -> Result<(), JitdumpError> {
    let destination = Destination::from_argument(output);
    check_writable(&destination)?;
    let (header, collected) = collect(source, at)?;
    let kind = kind_of(&header)?;
    if collected.functions.is_empty() {
        return Err(JitdumpError::NothingThere);
    }
    let mut account = ElfAccount::default();
    let mut failed = None;
    let mut buffer = vec![0; CHUNK];
    let written = write_to(&destination, |out| {
        let mut code = |function: &ElfFunction, give: &mut dyn FnMut(&[u8])| {
            copy_code(source, &collected, function, &mut buffer, give)
        };
        match write_elf(kind, &collected.functions, &mut code, out) {
            Ok(done) => account = done,
            Err(ElfError::Write(error)) => return Err(OutputError::Write(error)),
            Err(error) => {
                failed = Some(error);
                return Err(OutputError::NoSamples);
            }
        }
        Ok(())
    });
    if let Some(source) = failed {
        return Err(JitdumpError::Elf(source));
    }
    written?;
    say_part!("{}", text(&account, &collected));
    Ok(())
}

fn kind_of(header: &FileHeader) -> Result<ElfKind, JitdumpError> {
    let machine = match header.elf_mach {
        // CPython writes none; perf then takes its own.
        0 if cfg!(target_arch = "aarch64") => 183,
        0 => 62,
        other => other,
    };
    let narrow = NARROW.contains(&machine);
    match u16::try_from(machine) {
        Ok(machine) if !narrow => Ok(ElfKind { machine, order: header.order }),
        _ => Err(JitdumpError::NoElf { machine: machine_name(machine) }),
    }
}

fn collect(source: &Source, at: Option<DumpTime>) -> Result<(FileHeader, Collected), JitdumpError> {
    let mut collected = Collected::default();
    let (living, header) = living(source, at, &mut collected)?;
    // By the record: the one that is there now, wherever it was moved.
    let mut wanted: FxHashMap<u64, LivingCode> = living.into_iter().map(|code| (code.record, code)).collect();
    let mut assembler = Assembler::new(ReaderOptions { clock: None, ..source.options.clone() });
    source.walk(ParserOptions::default(), &mut |at, step| {
        assembler.step(step, &mut |event| {
            if let CodeEvent::Load(load) = event
                && let Some(code) = wanted.remove(&at.0)
            {
                collected.add(load, &code);
            }
        });
    })?;
    collected.functions.sort_by_key(|function| function.start);
    Ok((header, collected))
}

/// The first way: what is there, with its code in the file.
fn living(
    source: &Source,
    at: Option<DumpTime>,
    collected: &mut Collected,
) -> Result<(Vec<LivingCode>, FileHeader), JitdumpError> {
    let mut first = None;
    let mut living = None;
    let mut header = None;
    let tail = source.walk(ParserOptions::default(), &mut |_, step| {
        match step {
            Step::Header(new) => _ = header.get_or_insert(*new),
            Step::Record(record) => _ = first.get_or_insert(MonoNs(record.raw_time)),
            _ => {}
        }
        if let Some(first) = first {
            let until = at.map_or(u64::MAX, |at| at.on_clock(first).0);
            living.get_or_insert_with(|| Living::at(until)).step(step);
        }
    })?;
    let header = header.ok_or_else(|| JitdumpError::NoDump { path: source.path.clone() })?;
    let (mut all, untracked) = living.map(Living::finish).unwrap_or_default();
    collected.untracked = untracked;
    let before = all.len();
    let size = |code: &LivingCode| code.end.saturating_sub(code.start);
    // The last record's code may be torn, and an address can be too high for any section.
    all.retain(|code| {
        let there = code.code.is_some_and(|at| at.saturating_add(size(code)) <= tail.file_len());
        there && code.end < 1 << 63
    });
    collected.without_code = (before - all.len()) as u64;
    Ok((all, header))
}

impl Collected {
    fn add(&mut self, load: CodeLoad, code: &LivingCode) {
        let Some(at) = code.code else { return };
        let moved = code.start.wrapping_sub(load.start.0);
        let mut eh_frame = load.eh_frame;
        if let Some(frame) = &mut eh_frame {
            // Relative addresses go along.
            frame.section_start = Avma(frame.section_start.0.wrapping_add(moved));
        }
        let eh_bytes = eh_frame.as_ref().map_or(0, |frame| frame.bytes.len());
        let mut name = load.name;
        if self.text.saturating_add(name.len()).saturating_add(eh_bytes) > MAX_TEXT {
            self.names_left_out += 1;
            name = format!("{:#x}", code.start);
            eh_frame = None;
        }
        self.text = self.text.saturating_add(name.len()).saturating_add(eh_bytes);
        let mut lines = load.lines;
        if self.rows.saturating_add(lines.len()) > MAX_ROWS {
            self.rows_left_out = self.rows_left_out.saturating_add(lines.len() as u64);
            lines = SourceRows::default();
        }
        self.rows = self.rows.saturating_add(lines.len());
        self.code.insert(code.start, at);
        self.functions.push(ElfFunction { start: code.start, size: code.end - code.start, name, lines, eh_frame });
    }
}

fn copy_code(
    source: &Source,
    collected: &Collected,
    function: &ElfFunction,
    buffer: &mut [u8],
    give: &mut dyn FnMut(&[u8]),
) -> io::Result<()> {
    let mut at = *collected.code.get(&function.start).ok_or(io::ErrorKind::NotFound)?;
    let mut left = function.size;
    while left > 0 {
        let want = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let part = buffer.get_mut(..want).unwrap_or_default();
        source.file.read_exact_at(part, at)?;
        give(part);
        at = at.saturating_add(want as u64);
        left -= want as u64;
    }
    Ok(())
}

fn text(account: &ElfAccount, collected: &Collected) -> String {
    let mut text = format!(
        "jitprof: {} functions in {} sections, {} source rows, {} functions with unwinding data\n",
        account.functions, account.sections, account.rows, account.frames
    );
    let left_out = [
        (account.left_out as u64, "functions left out: they lie in too many places"),
        (collected.untracked, "functions left out: there are too many"),
        (collected.without_code, "functions left out: the dump does not have their code"),
        (collected.names_left_out, "functions without name and unwinding data: there are too many"),
        (collected.rows_left_out, "source rows left out: there are too many"),
    ];
    for (count, what) in left_out.into_iter().filter(|(count, _)| *count > 0) {
        // Writing into a String does not fail.
        writeln!(text, "         {count} {what}").expect("invariant: memory is written to");
    }
    text
}
