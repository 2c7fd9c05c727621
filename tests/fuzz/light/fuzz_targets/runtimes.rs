//! The memory of real processes of CPython, PHP, Ruby and Erlang, of which any words are others: no panic, no standstill, no more
//! is read than may be, and what is said of it is bounded.
//!
//! The first byte says which process it is. Each eleven that follow change a word: which one of those that are read, how its
//! value is made, and of what.
#![no_main]

use std::fs::{self, File};
use std::ops::Range;
use std::sync::LazyLock;

use jitprof_common::listed::{ListSpec, MAX_LISTED, Record};
use jitprof_common::units::Avma;
use jitprof_runtimes::recorded::{Counting, Recorded};
use jitprof_runtimes::{Budget, Described, Memory, Reader, Unknown, beam, cpython, php, ruby, walk};
use libfuzzer_sys::fuzz_target;

/// More than any of them needs.
const BUDGET: Budget = Budget { pages: 1 << 12, steps: 1 << 19 };
const PAGE: u64 = 4096;
/// Bytes of a change.
const CHANGE: usize = 2 + 1 + 8;
/// Words that are changed of one process.
const MOST_CHANGES: usize = 64;
/// Bytes of a name with a class and a file, and of the file: 1,024 each, badly decoded.
const MOST_TEXT: usize = 4 * 3 * 1024 + 64;
/// Bytes that are kept of a process, and functions of Erlang's.
const MOST_BYTES: usize = 80 << 20;
const MOST_FUNCTIONS: usize = 1 << 17;
/// The recordings of `profiler-runtimes/recorded`.
const RECORDINGS: [&str; 4] = ["php/debian-8.2", "ruby/debian-3.1", "beam/debian-25", "cpython/pyenv-3.13"];

struct Process {
    memory: Recorded,
    runtime: Runtime,
    /// The words that are read of it.
    taken: Vec<u64>,
}

/// With what is needed besides memory: thread pointers, or where the emulator's variables are.
enum Runtime {
    Python(Vec<u64>),
    Php,
    Ruby(Vec<u64>),
    Beam(Range<Avma>),
}

static PROCESSES: LazyLock<Vec<Process>> = LazyLock::new(|| RECORDINGS.iter().map(|name| Process::of(name)).collect());

fuzz_target!(|input: &[u8]| {
    let Some((number, changes)) = input.split_first() else {
        return;
    };
    let process = &PROCESSES[usize::from(*number) % PROCESSES.len()];
    let mut memory = process.memory.clone();
    for change in changes.chunks_exact(CHANGE).take(MOST_CHANGES) {
        process.change(&mut memory, change);
    }
    let counting = Counting::new(&memory);
    process.runtime.read(&memory, &Reader::new(&counting, BUDGET));
    assert!(counting.bytes() <= u64::from(BUDGET.pages) * PAGE);
});

impl Process {
    fn of(name: &str) -> Self {
        let path = format!("{}/../../../profiler-runtimes/recorded/{name}.mem", env!("CARGO_MANIFEST_DIR"));
        let memory = Recorded::read(File::open(&path).expect("a recording")).expect("a whole one");
        let beside = |extension: &str| fs::read_to_string(format!("{path}.{extension}")).expect("what is beside it");
        let address = |text: &str| u64::from_str_radix(text, 16).expect("an address");
        let threads = || {
            let pointer = |line: &str| address(line.split_once(' ').expect("a thread").1);
            beside("threads").lines().map(pointer).collect()
        };
        let runtime = match name.split_once('/') {
            Some(("php", _)) => Runtime::Php,
            Some(("ruby", _)) => Runtime::Ruby(threads()),
            Some(("beam", _)) => {
                let data = beside("data");
                let (start, end) = data.trim_end().split_once(' ').expect("two addresses");
                Runtime::Beam(Avma(address(start))..Avma(address(end)))
            }
            _ => Runtime::Python(threads()),
        };
        let reader = Reader::new(&memory, BUDGET);
        reader.note_words();
        runtime.read(&memory, &reader);
        let taken: Vec<u64> = reader.used_words().into_iter().collect();
        drop(reader);
        assert!(taken.len() > 100, "{name} is not read");
        Self { memory, runtime, taken }
    }

    fn change(&self, memory: &mut Recorded, change: &[u8]) {
        let Some(([low, high, way], value)) = change.split_first_chunk::<3>() else { return };
        let value = value.first_chunk().copied().map_or(0, u64::from_le_bytes);
        let of = |number: u64| self.taken[usize::try_from(number).unwrap_or(0) % self.taken.len()];
        let (at, other) = (of(u16::from_le_bytes([*low, *high]).into()), of(value & u64::from(u32::MAX)));
        let word = |memory: &Recorded, at: u64| Reader::new(memory, BUDGET).u64(Avma(at)).unwrap_or(0);
        let with = match way % 7 {
            0 => value,
            // A pointer to another place, to itself, and to another thing.
            1 => other,
            2 => at,
            3 => word(memory, other),
            // A length, and a number that is near to one that is there.
            4 => value & 0xf_ffff,
            5 => word(memory, at).wrapping_add_signed(i64::from(value.to_le_bytes()[0].cast_signed())),
            _ => word(memory, at) ^ 1 << (value % 64),
        };
        memory.overwrite(Avma(at), &with.to_le_bytes());
    }
}

impl Runtime {
    fn read<M: Memory>(&self, symbols: &Recorded, reader: &Reader<M>) {
        match self {
            Self::Python(threads) => python(threads, symbols, reader),
            Self::Php => php(symbols, reader),
            Self::Ruby(threads) => ruby(threads, symbols, reader),
            Self::Beam(data) => beam(data.clone(), symbols, reader),
        }
    }
}

fn python<M: Memory>(threads: &[u64], symbols: &Recorded, reader: &Reader<M>) {
    let Ok(layout) = cpython::Layout::read(symbols, Some(symbols), reader) else { return };
    let mut functions = cpython::Functions::new(layout);
    for thread in threads {
        for [code, instruction] in records(functions.layout().walk(), *thread, reader) {
            check(functions.describe(reader, code, instruction));
        }
    }
    assert!(functions.bytes() <= MOST_BYTES);
}

fn php<M: Memory>(symbols: &Recorded, reader: &Reader<M>) {
    let Ok(layout) = php::Layout::read(symbols, reader) else { return };
    let mut functions = php::Functions::new(layout);
    for (at, [function, instruction]) in records(functions.layout().walk(), 0, reader).into_iter().enumerate() {
        check(functions.describe(reader, (function, instruction), at == 0));
    }
    assert!(functions.bytes() <= MOST_BYTES);
}

fn ruby<M: Memory>(threads: &[u64], symbols: &Recorded, reader: &Reader<M>) {
    let Ok(layout) = ruby::Layout::read(symbols, reader) else { return };
    let functions = ruby::Functions::new(layout);
    for thread in threads {
        for [code, instruction] in records(functions.layout().walk(), *thread, reader) {
            check(functions.describe(reader, (code, instruction)).map(|looked| looked.described));
        }
    }
    if let Some(first) = functions.layout().walk_of_first_thread() {
        records(first, 0, reader);
    }
    drop((functions.progress(reader), functions.first_handler(reader), functions.first_entries(reader)));
}

fn beam<M: Memory>(data: Range<Avma>, symbols: &Recorded, reader: &Reader<M>) {
    let Ok(layout) = beam::Layout::find(symbols, data, reader) else { return };
    let mut modules = beam::Modules::default();
    modules.update(&layout, reader);
    assert!(modules.iter().map(|module| module.functions.len()).sum::<usize>() <= MOST_FUNCTIONS);
    assert!(modules.bytes() <= MOST_BYTES);
}

fn records<M: Memory>(spec: &ListSpec, thread: u64, reader: &Reader<M>) -> Vec<Record> {
    let records = walk(spec, thread, reader).records;
    assert!(records.len() <= MAX_LISTED);
    records
}

fn check(described: Result<Described, Unknown>) {
    let text = described.map_or(0, |is| is.function.name.len() + is.function.file.len());
    assert!(text <= MOST_TEXT, "{text} bytes");
}
