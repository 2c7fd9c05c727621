//! Prints the stack of a thread of a running Node, with the names that V8's own memory has for it.
//!
//! ```sh
//! cargo run -p jitprof-runtimes --example v8_stack --features recorded -- PID [OPTIONS]
//! ```
//!
//! * `--tid TID`: another thread than the first.
//! * `--samples N`: so many stacks, 20 ms apart. The thread is held while its frames' words are taken, and runs on
//!   before they are named.
//! * `--until NAME`: stacks are passed over until one has this function in it.
//! * `--dump FILE`: compares each name in generated code with V8's dump (`node --perf-prof`), by address and time.
//! * `--record FILE`: keeps what was read to name the last stack, and its words beside it (`FILE.frames`), for tests.
//! * `--frames N`: so many frames of each stack.

use std::collections::HashMap;
use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use jitprof_common::units::Avma;
use jitprof_runtimes::recorded::Recorder;
use jitprof_runtimes::v8::{CaptureSpec, Chain, Described, FrameWords, Layout, LeafRegisters, Names, Taken, Where};
use jitprof_runtimes::{Budget, Memory, Reader, Symbols};
use nix::sys::{ptrace, wait};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use object::{Object, ObjectSegment, ObjectSymbol};

const BUDGET: Budget = Budget { pages: 1 << 14, steps: 1 << 22 };

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A process: its memory by `/proc`, and the symbols of the program's file, where it is loaded.
struct Target {
    memory: File,
    path: String,
    symbols: HashMap<String, u64>,
}

impl Memory for Target {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        self.memory.read_at(into, address.0)
    }
}

impl Symbols for Target {
    fn address_of(&self, name: &str) -> Option<Avma> {
        self.symbols.get(name).copied().map(Avma)
    }
}

struct Mapping {
    start: u64,
    end: u64,
    executable: bool,
    offset: u64,
    path: String,
}

fn mappings(pid: i32) -> Result<Vec<Mapping>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let parsed = maps.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let permissions = words.next()?;
        let offset = u64::from_str_radix(words.next()?, 16).ok()?;
        Some(Mapping {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            executable: permissions.contains('x'),
            offset,
            path: words.nth(2).unwrap_or_default().to_owned(),
        })
    });
    Ok(parsed.collect())
}

fn target(pid: i32) -> Result<Target> {
    let path = fs::read_link(format!("/proc/{pid}/exe"))?.to_string_lossy().into_owned();
    let bytes = fs::read(format!("/proc/{pid}/exe"))?;
    let file = object::File::parse(bytes.as_slice())?;
    let first = mappings(pid)?.into_iter().find(|mapping| mapping.path == path).ok_or("the program is not mapped")?;
    let segment = file.segments().find(|segment| segment.file_range().0 == first.offset).ok_or("no segment")?;
    let bias = first.start.wrapping_sub(segment.address() & !0xfff);
    let all = file.dynamic_symbols().chain(file.symbols());
    let named = all.filter(|symbol| symbol.is_definition() && symbol.kind() != object::SymbolKind::Tls);
    let symbols = named
        .filter_map(|symbol| Some((symbol.name().ok()?.to_owned(), symbol.address().wrapping_add(bias))))
        .collect();
    Ok(Target { memory: File::open(format!("/proc/{pid}/mem"))?, path, symbols })
}

/// What a sample has: when it was taken, and the frames.
struct Sample {
    at: u64,
    frames: Vec<FrameWords>,
}

fn take(target: &Target, spec: &CaptureSpec, tid: Pid) -> Result<Sample> {
    let maps = mappings(tid.as_raw())?;
    let place = |pc: u64| {
        let mapping = maps.iter().find(|mapping| (mapping.start..mapping.end).contains(&pc) && mapping.executable)?;
        if mapping.path == target.path {
            let offset = pc - mapping.start + mapping.offset;
            let first = maps.iter().find(|first| {
                first.path == target.path && (first.offset..first.offset + (first.end - first.start)).contains(&offset)
            })?;
            Some(Where::Module(Avma(first.start + (offset - first.offset))))
        } else {
            mapping.path.is_empty().then_some(Where::Generated)
        }
    };
    let word = |at: u64| -> Option<u64> {
        let mut bytes = [0; 8];
        (target.memory.read_at(&mut bytes, at).ok()? == 8).then(|| u64::from_le_bytes(bytes))
    };
    let slot = |fp: u64, offset: i16| fp.wrapping_add_signed(i64::from(offset));
    let chain = |fp: u64, chain: &Chain| -> Option<u64> {
        let mut at = word(slot(fp, chain.slot))?;
        for offset in chain.through.iter().copied() {
            at = (at & 3 == 1).then_some(at)?;
            at = word(at - 1 + u64::from(offset))?;
        }
        at = (at & 3 == 1).then_some(at)?;
        let value = word(at - 1 + u64::from(chain.value))?;
        Some(if chain.bytes == 4 { value & 0xffff_ffff } else { value })
    };
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    let registers = ptrace::getregs(tid)?;
    let (mut pc, mut fp, mut is_call) = (registers.rip, registers.rbp, false);
    let mut frames = Vec::new();
    for _ in 0..512 {
        if let Some(place) = place(pc) {
            let [context, function, bytecode_array, bytecode_offset] = spec.slots.map(|offset| word(slot(fp, offset)));
            let taken = || {
                Some(Taken {
                    shared: chain(fp, &spec.shared)?,
                    literal: chain(fp, &spec.literal)? as u32,
                    script: chain(fp, &spec.script)?,
                    source: chain(fp, &spec.source),
                    name: chain(fp, &spec.name),
                })
            };
            frames.push(FrameWords {
                pc: Avma(pc),
                is_call,
                is_left: false,
                place,
                context: context.unwrap_or(0),
                function: function.unwrap_or(0),
                bytecode_array: bytecode_array.unwrap_or(0),
                bytecode_offset: bytecode_offset.unwrap_or(0),
                taken: taken(),
                leaf: (!is_call).then_some(LeafRegisters {
                    function: registers.rdi,
                    bytecode_array: registers.r12,
                    bytecode_offset: registers.r9,
                }),
            });
        }
        let (Some(next_fp), Some(next_pc)) = (word(fp), word(fp.wrapping_add(8))) else { break };
        if next_fp <= fp {
            break;
        }
        (pc, fp, is_call) = (next_pc, next_fp, true);
    }
    let at = u64::try_from(now.tv_sec())? * 1_000_000_000 + u64::try_from(now.tv_nsec())?;
    Ok(Sample { at, frames })
}

/// A record of a dump: when, where, how long, what.
struct Dumped {
    at: u64,
    start: u64,
    size: u64,
    name: String,
}

fn dumped(path: &str) -> Result<Vec<Dumped>> {
    let bytes = fs::read(path)?;
    let u32_at = |at: usize| bytes.get(at..at + 4).and_then(|part| Some(u32::from_le_bytes(part.try_into().ok()?)));
    let u64_at = |at: usize| bytes.get(at..at + 8).and_then(|part| Some(u64::from_le_bytes(part.try_into().ok()?)));
    let mut at = u32_at(8).ok_or("no dump")? as usize;
    let mut all: Vec<Dumped> = Vec::new();
    let mut last = 0;
    while let (Some(kind), Some(size), Some(time)) = (u32_at(at), u32_at(at + 4), u64_at(at + 8)) {
        // Node 26 writes records whose size is wrong: what follows is looked for byte by byte.
        let near = last == 0 || time.abs_diff(last) < 60_000_000_000;
        if kind > 4 || !(16..1 << 24).contains(&size) || !near {
            at += 1;
            continue;
        }
        last = time;
        if kind == 0 {
            let (Some(start), Some(length)) = (u64_at(at + 32), u64_at(at + 40)) else { break };
            let name = bytes.get(at + 56..).unwrap_or_default().split(|byte| *byte == 0).next().unwrap_or_default();
            all.push(Dumped { at: time, start, size: length, name: String::from_utf8_lossy(name).into_owned() });
        }
        at += size as usize;
    }
    Ok(all)
}

/// How names compare with the dump's.
#[derive(Default)]
struct Verdicts {
    agreed: u32,
    disagreed: u32,
    not_named: u32,
    not_dumped: u32,
}

impl Verdicts {
    fn compare(&mut self, dump: &[Dumped], sample: &Sample, frame: &FrameWords, described: &Described) {
        let pc = frame.pc.0 - u64::from(frame.is_call);
        let covers = |record: &&Dumped| record.at <= sample.at && pc.wrapping_sub(record.start) < record.size;
        // V8 13 marks code that is specialised for a context, behind the tier; V8 14.6 code that was entered in a loop,
        // before it.
        let plain = |name: &str| {
            let name = name.replacen("*'", "*", 1).replacen("+'", "+", 1);
            name.replacen("JS:o+", "JS:+", 1).replacen("JS:o*", "JS:*", 1)
        };
        let dumped = dump.iter().rev().find(covers).map(|record| plain(&record.name));
        let ours = match described {
            Described::Functions(frames) => frames.last().map(ToString::to_string),
            Described::RegExp => Some("RegExp".to_owned()),
            _ => None,
        };
        match (ours, dumped) {
            (Some(ours), Some(dumped)) if dumped == ours || (ours == "RegExp" && dumped.starts_with(&ours)) => {
                self.agreed += 1;
            }
            (Some(ours), Some(dumped)) => {
                self.disagreed += 1;
                println!("! {:#x}: {ours}\n      dump: {dumped}", frame.pc.0);
            }
            (None, Some(dumped)) => {
                self.not_named += 1;
                println!("! {:#x}: {described:?}\n      dump: {dumped}", frame.pc.0);
            }
            (_, None) => self.not_dumped += 1,
        }
    }
}

#[derive(Default)]
struct Options {
    tid: Option<i32>,
    samples: Option<u32>,
    until: Option<String>,
    dump: Option<String>,
    record: Option<String>,
    frames: Option<usize>,
    quiet: bool,
}

fn options(mut words: impl Iterator<Item = String>) -> Result<(i32, Options)> {
    let pid = words.next().ok_or("no process")?.parse()?;
    let mut options = Options::default();
    while let Some(word) = words.next() {
        if word == "--quiet" {
            options.quiet = true;
            continue;
        }
        let value = words.next().ok_or("an option without its value")?;
        match word.as_str() {
            "--tid" => options.tid = Some(value.parse()?),
            "--samples" => options.samples = Some(value.parse()?),
            "--until" => options.until = Some(value),
            "--dump" => options.dump = Some(value),
            "--record" => options.record = Some(value),
            "--frames" => options.frames = Some(value.parse()?),
            _ => return Err(format!("no option {word}").into()),
        }
    }
    Ok((pid, options))
}

fn print(frame: &FrameWords, described: &Described) {
    let Described::Functions(frames) = described else {
        println!("  {:#x} {described:?}", frame.pc.0);
        return;
    };
    for function in frames {
        let at = function.at.map_or("?".to_owned(), |at| format!("{}:{}", at.line, at.column));
        let inlined = if function.inlined { " (inlined)" } else { "" };
        println!("  {:#x} {function} at {at}{inlined}", frame.pc.0);
    }
}

fn has(described: &[Described], name: &str) -> bool {
    let functions = described.iter().filter_map(|described| match described {
        Described::Functions(frames) => Some(frames),
        _ => None,
    });
    functions.flatten().any(|frame| frame.function.name() == name)
}

/// The words of frames, one frame a line.
fn frames_file(frames: &[FrameWords]) -> String {
    let option = |value: Option<u64>| value.map_or("-".to_owned(), |value| format!("{value:x}"));
    let line = |frame: &FrameWords| {
        format!(
            "{:x} {} {} {:x} {:x} {:x} {:x} {} {} {} {} {} {}\n",
            frame.pc.0,
            if frame.is_call { "call" } else { "leaf" },
            match frame.place {
                Where::Module(at) => format!("{:x}", at.0),
                Where::Generated => "-".to_owned(),
            },
            frame.context,
            frame.function,
            frame.bytecode_array,
            frame.bytecode_offset,
            option(frame.taken.map(|taken| taken.shared)),
            option(frame.taken.map(|taken| u64::from(taken.literal))),
            option(frame.taken.map(|taken| taken.script)),
            option(frame.leaf.map(|leaf| leaf.function)),
            option(frame.leaf.map(|leaf| leaf.bytecode_array)),
            option(frame.leaf.map(|leaf| leaf.bytecode_offset)),
        )
    };
    frames.iter().map(line).collect()
}

fn main() -> Result<()> {
    let (pid, options) = options(std::env::args().skip(1))?;
    let tid = Pid::from_raw(options.tid.unwrap_or(pid));
    let target = target(pid)?;
    let layout = Layout::read(&target, &Reader::new(&target, BUDGET))?;
    let spec = layout.capture();
    println!("V8 {}, {spec:?}", layout.version());
    let mut names = Names::new(layout);
    ptrace::seize(tid, ptrace::Options::empty())?;
    let mut taken = Vec::new();
    let mut wanted = options.samples.unwrap_or(1);
    let mut patience = 2000;
    let mut spent = Duration::ZERO;
    while wanted > 0 && patience > 0 {
        patience -= 1;
        std::thread::sleep(Duration::from_millis(20));
        ptrace::interrupt(tid)?;
        wait::waitpid(tid, Some(wait::WaitPidFlag::__WALL))?;
        let mut sample = take(&target, &spec, tid)?;
        sample.frames.truncate(options.frames.unwrap_or(usize::MAX));
        let mut describe = || -> Vec<Described> {
            let reader = Reader::new(&target, BUDGET);
            let begun = Instant::now();
            let described = sample.frames.iter().map(|frame| names.describe(&reader, frame)).collect();
            spent += begun.elapsed();
            described
        };
        // What is recorded has to be from one time; else the thread runs on before anything is read.
        let held = options.record.is_some().then(&mut describe);
        let mut fits = true;
        if let (Some(held), Some(file)) = (&held, &options.record) {
            fits = options.until.as_ref().is_none_or(|name| has(held, name));
            if fits {
                let recorder = Recorder::new(&target);
                let layout = Layout::read(&recorder, &Reader::new(&recorder, BUDGET))?;
                let mut again = Names::new(layout);
                let reader = Reader::new(&recorder, BUDGET);
                for frame in &sample.frames {
                    again.describe(&reader, frame);
                    // What the chains lead through is kept as well.
                    again.describe(&reader, &FrameWords { taken: None, ..*frame });
                }
                drop(reader);
                fs::write(file, recorder.into_recorded().to_file()?)?;
                fs::write(format!("{file}.frames"), frames_file(&sample.frames))?;
            }
        }
        ptrace::cont(tid, None)?;
        let described = held.unwrap_or_else(describe);
        if !fits || options.until.as_ref().is_some_and(|name| !has(&described, name)) {
            continue;
        }
        wanted -= 1;
        if !options.quiet {
            println!("sample");
            sample.frames.iter().zip(&described).for_each(|(frame, described)| print(frame, described));
        }
        taken.push((sample, described));
    }
    ptrace::interrupt(tid)?;
    wait::waitpid(tid, Some(wait::WaitPidFlag::__WALL))?;
    ptrace::detach(tid, None)?;
    let mut unknown: HashMap<String, u32> = HashMap::new();
    let mut named = 0;
    for described in taken.iter().flat_map(|(_, described)| described) {
        match described {
            Described::Unknown(why) => *unknown.entry(why.to_string()).or_default() += 1,
            Described::Own => {}
            _ => named += 1,
        }
    }
    for (frame, described) in taken.iter().flat_map(|(sample, described)| sample.frames.iter().zip(described)) {
        if matches!(described, Described::Unknown(_)) {
            println!("? {frame:x?} {described:?}");
        }
    }
    let count = taken.len();
    println!("{count} samples, {named} frames of the program named in {spent:?}, not known: {unknown:?}");
    if let Some(path) = &options.dump {
        let dump = dumped(path)?;
        let mut verdicts = Verdicts::default();
        for (sample, described) in &taken {
            for (frame, described) in sample.frames.iter().zip(described) {
                if frame.place == Where::Generated {
                    verdicts.compare(&dump, sample, frame, described);
                }
            }
        }
        println!(
            "with the dump: {} agreed, {} disagreed, {} only there, {} only here",
            verdicts.agreed, verdicts.disagreed, verdicts.not_named, verdicts.not_dumped
        );
    }
    Ok(())
}
