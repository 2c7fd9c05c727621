//! Makes a recorded state for `profiler-common/tests/states`: takes what `record.py` there has written of a stopped
//! process, adds the unwind rows that jitprof makes of its files and of its jitdump, and what walking them gives.
//!
//! ```text
//! record_state RAW [DUMP] > NAME.state
//! ```
//!
//! Only rows that a look-up found are kept, with the range that each holds for. On stderr stands whether the result is
//! gdb's, frame by frame.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::process::ExitCode;

use jitprof_common::machine::Machine;
use jitprof_common::row::Row;
use jitprof_common::units::MonoNs;
use jitprof_common::unwind::{Frame, ReadFault, Registers, StackMemory, UnwindRules, lookup_pc, step};
use jitprof_jitdump::code::{CodeEvent, CodeLoad};
use jitprof_jitdump::{DumpTail, ReaderOptions};
use jitprof_unwind::{ElfRows, RecordedFrames, RowTable, rows_of_code, rows_of_elf, rows_of_elf_bytes, rows_of_jit};

type Failure = Box<dyn Error>;

/// An executable mapping and the rows of its file.
struct Mapped {
    start: u64,
    end: u64,
    bias: u64,
    file: String,
    rows: Option<RowTable>,
}

/// What `record.py` wrote.
#[derive(Default)]
struct Process {
    registers: Option<Registers>,
    mapped: Vec<Mapped>,
    code: Vec<(CodeLoad, RowTable)>,
    words: BTreeMap<u64, u64>,
    gdb: Vec<(u64, String)>,
    /// Rows found: start, end, row.
    found: RefCell<BTreeMap<u64, (u64, u64)>>,
}

impl StackMemory for Process {
    fn read_u64(&self, address: u64) -> Result<u64, ReadFault> {
        self.words.get(&address).copied().ok_or(ReadFault)
    }
}

impl UnwindRules for Process {
    fn row(&self, lookup_pc: u64) -> Row {
        let announced = self
            .code
            .iter()
            .rfind(|(load, _)| (load.start.0..load.start.0.saturating_add(load.size)).contains(&lookup_pc));
        let found = match announced {
            Some((_, rows)) => holding(rows, lookup_pc, 0),
            None => self
                .mapped
                .iter()
                .find(|mapped| (mapped.start..mapped.end).contains(&lookup_pc))
                .and_then(|mapped| holding(mapped.rows.as_ref()?, lookup_pc, mapped.bias)),
        };
        let Some((start, end, row)) = found else { return Row::GAP };
        self.found.borrow_mut().insert(start, (end, row));
        Row(row)
    }

    fn is_code(&self, lookup_pc: u64) -> bool {
        self.mapped.iter().any(|mapped| (mapped.start..mapped.end).contains(&lookup_pc))
    }

    fn machine(&self) -> Machine {
        Machine::X86_64
    }

    fn code_mask(&self) -> u64 {
        u64::MAX
    }
}

/// The row that holds at an address, and from where to where it does.
fn holding(table: &RowTable, address: u64, bias: u64) -> Option<(u64, u64, u64)> {
    let inside = address.wrapping_sub(bias);
    let rule = table.rule_at(inside);
    let (mut start, mut end) = (inside, inside.checked_add(1)?);
    // Functions are small; a walk byte by byte needs no knowledge of how tables are laid out.
    while start > 0 && inside - start < 4096 && table.rule_at(start - 1) == rule {
        start -= 1;
    }
    while end - inside < 4096 && table.rule_at(end) == rule {
        end += 1;
    }
    Some((start.wrapping_add(bias), end.wrapping_add(bias), rule.encode(0)))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("record_state: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Failure> {
    let raw = std::fs::read_to_string(arguments.first().ok_or("usage: record_state RAW [DUMP]")?)?;
    let mut process = Process::default();
    for line in raw.lines() {
        read_line(&mut process, line)?;
    }
    if let Some(dump) = arguments.get(1) {
        read_dump(&mut process, dump)?;
    }
    let registers = process.registers.ok_or("no line `state`")?;
    println!("registers {:x} {:x} {:x}", registers.pc, registers.sp, registers.fp);
    let mut frame = Frame::sampled(registers);
    let mut chain = vec![frame];
    let stop = loop {
        match step(frame, &process, &process) {
            Ok(caller) if chain.len() < 1024 => {
                chain.push(caller);
                frame = caller;
            }
            Ok(_) => return Err("deeper than 1024 frames".into()),
            Err(reason) => break reason,
        }
    };
    for (index, frame) in chain.iter().enumerate() {
        let same = process.gdb.get(index).is_some_and(|(pc, _)| *pc == frame.registers.pc);
        eprintln!("{} {:x} {}", if same { "=" } else { "?" }, frame.registers.pc, name(&process, index, frame));
        println!("frame {:x} {}", frame.registers.pc, name(&process, index, frame));
    }
    println!("stop {stop:?}");
    for mapped in &process.mapped {
        println!("code {:x} {:x}", mapped.start, mapped.end);
    }
    for (start, (end, row)) in process.found.borrow().iter() {
        println!("row {start:x} {end:x} {row:x}");
    }
    let mut line = None;
    // A little more than each frame's own, on whichever stack it is.
    let near = |address: u64| {
        chain.windows(2).any(|pair| (pair[0].registers.sp..pair[1].registers.sp.saturating_add(64)).contains(&address))
            || chain
                .iter()
                .any(|frame| (frame.registers.sp..frame.registers.sp.saturating_add(1024)).contains(&address))
    };
    for (address, word) in process.words.iter().filter(|(address, _)| near(**address)) {
        if line.is_none_or(|next| next != *address) {
            print!("\nstack {address:x}");
        }
        print!(" {word:x}");
        line = address.checked_add(8);
    }
    println!();
    Ok(())
}

fn name(process: &Process, index: usize, frame: &Frame) -> String {
    let at = lookup_pc(frame.registers.pc, frame.kind);
    let load =
        process.code.iter().rfind(|(load, _)| (load.start.0..load.start.0.saturating_add(load.size)).contains(&at));
    let gdbs = process.gdb.get(index).filter(|(pc, _)| *pc == frame.registers.pc).map(|(_, name)| name.clone());
    let place = || {
        let mapped = process.mapped.iter().find(|mapped| (mapped.start..mapped.end).contains(&at));
        mapped.map(|mapped| format!("[{}+{:#x}]", mapped.file, at.wrapping_sub(mapped.bias)))
    };
    // The place of a script is this machine's business.
    let base = |load: &CodeLoad| {
        load.name.rsplit_once('/').map_or(load.name.to_string(), |(before, file)| {
            format!("{} {file}", before.split([' ', '/']).next().unwrap_or_default())
        })
    };
    load.map(|(load, _)| base(load)).or(gdbs).or_else(place).unwrap_or_else(|| "?".to_owned())
}

fn read_line(process: &mut Process, line: &str) -> Result<(), Failure> {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |index: usize| u64::from_str_radix(words.get(index).copied().unwrap_or_default(), 16);
    match words.first().copied() {
        Some("state") => process.registers = Some(Registers { pc: number(1)?, sp: number(2)?, fp: number(3)?, lr: 0 }),
        Some("word") => drop(process.words.insert(number(1)?, number(2)?)),
        Some("gdb") => process.gdb.push((number(1)?, words.get(2..).unwrap_or_default().join(" "))),
        Some("map") => {
            let (start, end, offset) = (number(1)?, number(2)?, number(3)?);
            let path = words.get(4).copied().unwrap_or_default();
            let file = path.rsplit('/').next().unwrap_or_default().to_owned();
            let made = rows_of_path(path);
            let (bias, rows) = made.and_then(|made| placed(made, start, offset)).unzip();
            process.mapped.push(Mapped { start, end, bias: bias.unwrap_or(start), file, rows });
        }
        _ => {}
    }
    Ok(())
}

fn rows_of_path(path: &str) -> Option<ElfRows> {
    if path == "[vdso]" {
        return rows_of_elf_bytes(&jitprof::process::own_vdso().ok()?).ok();
    }
    rows_of_elf(&File::open(path).ok()?).ok()
}

fn placed(made: ElfRows, start: u64, offset: u64) -> Option<(u64, RowTable)> {
    let segment = made.segments.iter().rfind(|segment| {
        (segment.file_offset & !0xfff..segment.file_offset.saturating_add(segment.file_size)).contains(&offset)
    })?;
    let svma = segment.svma.wrapping_sub(segment.file_offset).wrapping_add(offset);
    Some((start.wrapping_sub(svma), made.table))
}

fn read_dump(process: &mut Process, dump: &str) -> Result<(), Failure> {
    let options = ReaderOptions { keep_code: true, ..ReaderOptions::default() };
    let mut tail = DumpTail::new(File::open(dump)?, options);
    let code = &mut process.code;
    let mut take = |event| {
        if let CodeEvent::Load(load) = event {
            let recorded = load.eh_frame.as_ref().and_then(|eh| {
                rows_of_jit(
                    Machine::X86_64,
                    load.start.0,
                    load.size,
                    RecordedFrames { bytes: &eh.bytes, section_start: eh.section_start },
                )
            });
            let rows = recorded.or_else(|| rows_of_code(Machine::X86_64, load.start.0, load.code.as_deref()?));
            code.extend(rows.map(|rows| (load, rows)));
        }
    };
    while tail.poll(|| MonoNs(u64::MAX), &mut take)?.more {}
    Ok(())
}
