//! `--disasm`: recorded code with lines and samples beside it.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use super::super::address::parse_address;
use super::super::subcommand::SubcommandError;
use super::JitdumpError;
use super::dump_summary::machine as machine_name;
use super::item::seconds;
use super::listing::{Decoded, Machine, Syntax, decode};
use super::source::Source;
use crate::output::{InstructionSamples, function_name, function_source};
use crate::process::monotonic_now;
use crate::profile::printable;
use crate::regular_file::open_regular;
use jitprof_jitdump::code::{CodeEvent, CodeInline, CodeLoad};
use jitprof_jitdump::{DumpTail, MAX_KEPT_CODE, ReaderOptions};

/// Functions that are shown of those that fit; with a profile the most sampled ones, else the last ones.
const MAX_SHOWN: usize = 16;
/// Inlined parts that are kept of a function.
const MAX_INLINES: usize = 1 << 12;
/// Columns of the instruction's bytes in hexadecimal.
const BYTES_WIDTH: usize = 20;

/// Which functions are meant.
enum Wanted<'a> {
    At(u64),
    Named(&'a str),
}

impl Wanted<'_> {
    fn is(&self, load: &CodeLoad) -> bool {
        match self {
            Self::At(address) => address.checked_sub(load.start.0).is_some_and(|offset| offset < load.size),
            Self::Named(part) => load.name.contains(part),
        }
    }
}

/// A function that fits.
struct Chosen {
    load: CodeLoad,
    inlines: Vec<CodeInline>,
    /// Samples at each address, ascending.
    samples: Vec<(u64, u64)>,
    sum: u64,
}

/// The one JSON document.
#[derive(Serialize)]
struct Reports {
    dumps: Vec<Report>,
}

/// What is shown of one dump.
#[derive(Serialize)]
struct Report {
    path: String,
    machine: String,
    /// Functions that fit, those that are not shown included.
    matching: usize,
    /// All samples of the profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    profile_samples: Option<u64>,
    functions: Vec<FunctionReport>,
}

#[derive(Serialize)]
struct FunctionReport {
    name: String,
    function: String,
    time: u64,
    code_addr: u64,
    code_size: u64,
    code_index: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    samples: Option<u64>,
    /// `None` if the dump does not have the code.
    instructions: Option<Vec<Line>>,
}

#[derive(Serialize)]
struct Line {
    address: u64,
    offset: u64,
    bytes: String,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inlined: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    samples: Option<u64>,
}

/// How to show it.
pub(super) struct Options<'a> {
    pub(super) wanted: &'a str,
    pub(super) profile: Option<&'a Path>,
    pub(super) syntax: Syntax,
    pub(super) json: bool,
}

/// Shows the functions of all dumps that fit.
pub(super) fn run(sources: &[Source], options: &Options<'_>, out: &mut impl Write) -> Result<(), SubcommandError> {
    let samples = options.profile.map(read_profile).transpose()?;
    // Names may begin with digits, and addresses of code are long.
    let wanted = match options.wanted.strip_prefix("0x").map(parse_address) {
        Some(Ok(address)) => Wanted::At(address),
        _ => Wanted::Named(options.wanted),
    };
    let mut reports = Vec::new();
    for source in sources {
        reports.push(report(source, &wanted, samples.as_ref(), options.syntax)?);
    }
    if reports.iter().all(|report| report.matching == 0) {
        return Err(JitdumpError::NoFunction { wanted: options.wanted.to_owned() }.into());
    }
    let reports = Reports { dumps: reports };
    if options.json {
        serde_json::to_writer_pretty(&mut *out, &reports).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        reports.dumps.iter().try_for_each(|report| show(report, out))?;
    }
    Ok(())
}

fn read_profile(path: &Path) -> Result<InstructionSamples, JitdumpError> {
    let read = |source| JitdumpError::Read { path: path.display().to_string(), source };
    let no_file = || JitdumpError::NotRegular { path: path.display().to_string() };
    let file = open_regular(path).map_err(read)?.ok_or_else(no_file)?;
    InstructionSamples::read(file)
        .map_err(|source| JitdumpError::Profile { path: path.display().to_string(), source: Box::new(source) })
}

fn report(
    source: &Source,
    wanted: &Wanted<'_>,
    samples: Option<&InstructionSamples>,
    syntax: Syntax,
) -> Result<Report, JitdumpError> {
    let options = ReaderOptions { keep_code: true, ..source.options.clone() };
    let file = source.file.try_clone().map_err(|error| source.failed(error))?;
    let end = file.metadata().map_err(|error| source.failed(error))?.len();
    let mut tail = DumpTail::new(file, options);
    let (mut chosen, mut matching) = (Vec::new(), 0_usize);
    let mut read = 0_u64;
    loop {
        let progress =
            tail.poll(monotonic_now, &mut |event| choose(event, wanted, samples, &mut chosen, &mut matching));
        let progress = progress.map_err(|error| source.failed(error))?;
        read = read.saturating_add(progress.bytes_read);
        if !progress.more || read >= end {
            break;
        }
    }
    let elf_mach = tail.stream().reader().parser().header().map_or(0, |header| header.elf_mach);
    let machine = Machine::of(elf_mach).ok_or_else(|| JitdumpError::Machine { machine: machine_name(elf_mach) })?;
    let profiled = samples.is_some();
    if profiled {
        chosen.sort_by_key(|function: &Chosen| std::cmp::Reverse(function.sum));
    }
    let functions = chosen.iter().map(|function| function_report(function, machine, syntax, profiled)).collect();
    Ok(Report {
        path: source.path.clone(),
        machine: machine_name(elf_mach),
        matching,
        profile_samples: samples.map(InstructionSamples::total),
        functions,
    })
}

fn choose(
    event: CodeEvent,
    wanted: &Wanted<'_>,
    samples: Option<&InstructionSamples>,
    chosen: &mut Vec<Chosen>,
    matching: &mut usize,
) {
    match event {
        CodeEvent::Load(load) if wanted.is(&load) => {
            *matching += 1;
            let samples = samples.map(|all| all.of_function(load.start.0, load.size, &load.name)).unwrap_or_default();
            let sum = samples.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
            chosen.push(Chosen { load, inlines: Vec::new(), samples, sum });
            if chosen.len() > MAX_SHOWN
                && let Some(least) = (0..chosen.len()).min_by_key(|index| chosen[*index].sum)
            {
                chosen.remove(least);
            }
        }
        CodeEvent::Inline(inline) => {
            let within = |function: &&mut Chosen| {
                let start = function.load.start.0;
                inline.start.0.checked_sub(start).is_some_and(|offset| offset < function.load.size)
            };
            if let Some(function) = chosen.iter_mut().rev().find(within)
                && function.inlines.len() < MAX_INLINES
            {
                function.inlines.push(inline);
            }
        }
        _ => {}
    }
}

fn function_report(function: &Chosen, machine: Machine, syntax: Syntax, profiled: bool) -> FunctionReport {
    let load = &function.load;
    let instructions = load.code.as_deref().map(|code| {
        let decoded = decode(code, load.start.0, machine, syntax);
        decoded.iter().map(|instruction| line(function, code, instruction, profiled)).collect()
    });
    FunctionReport {
        name: load.name.clone(),
        function: function_name(&load.name),
        time: load.time.0,
        code_addr: load.start.0,
        code_size: load.size,
        code_index: load.code_index,
        samples: profiled.then_some(function.sum),
        instructions,
    }
}

fn line(function: &Chosen, code: &[u8], instruction: &Decoded, profiled: bool) -> Line {
    let offset = instruction.address.wrapping_sub(function.load.start.0);
    let end = instruction.address.wrapping_add(instruction.len as u64);
    let from = usize::try_from(offset).unwrap_or(usize::MAX);
    let bytes = code.get(from..from.saturating_add(instruction.len)).unwrap_or(&[]);
    let first = function.samples.partition_point(|(address, _)| *address < instruction.address);
    let of_it = function.samples.iter().skip(first).take_while(|(address, _)| *address < end);
    let samples = of_it.fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
    // Of those that cover an address, the innermost counts.
    let covers =
        |inline: &&CodeInline| instruction.address.checked_sub(inline.start.0).is_some_and(|inner| inner < inline.size);
    let inlined = function.inlines.iter().filter(covers).min_by_key(|inline| inline.size);
    let place = match inlined {
        Some(inline) => inline.lines.at(instruction.address - inline.start.0),
        None => function.load.lines.at(offset),
    };
    Line {
        address: instruction.address,
        offset,
        bytes: bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        text: instruction.text.clone(),
        target: instruction.target,
        file: place.map(|(file, _)| match &**file {
            // V8 loses the names of some files; then it is the function's own.
            "" => function_source(&function.load.name).unwrap_or_default(),
            file => file.to_owned(),
        }),
        line: place.map(|(_, line)| line),
        inlined: inlined.map(|inline| inline.name.clone()),
        samples: profiled.then_some(samples),
    }
}

fn show(report: &Report, out: &mut impl Write) -> io::Result<()> {
    for (index, function) in report.functions.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        show_function(function, report.profile_samples, out)?;
    }
    let hidden = report.matching.saturating_sub(report.functions.len());
    if hidden > 0 {
        writeln!(out, "\n{hidden} more functions fit; an address (0x...) names one place")?;
    }
    Ok(())
}

fn show_function(function: &FunctionReport, total: Option<u64>, out: &mut impl Write) -> io::Result<()> {
    let end = function.code_addr.saturating_add(function.code_size);
    writeln!(out, "{}", printable(&function.name))?;
    write!(out, "{:#x}..{end:#x}, {} bytes, ", function.code_addr, function.code_size)?;
    write!(out, "#{}, loaded at {}", function.code_index, seconds(function.time))?;
    if let (Some(samples), Some(total)) = (function.samples, total) {
        write!(out, "; {samples} of {total} samples")?;
    }
    writeln!(out)?;
    let Some(instructions) = &function.instructions else {
        return writeln!(out, "the dump does not have its code, or it is longer than {} MiB", MAX_KEPT_CODE >> 20);
    };
    let mut last = String::new();
    for line in instructions {
        show_line(line, function.samples, &mut last, out)?;
    }
    Ok(())
}

fn show_line(line: &Line, of_function: Option<u64>, last: &mut String, out: &mut impl Write) -> io::Result<()> {
    if let Some(of_function) = of_function {
        match line.samples {
            Some(samples) if samples > 0 => {
                let tenths = u128::from(samples) * 1000 / u128::from(of_function.max(1));
                write!(out, "{samples:>7} {:>3}.{}% ", tenths / 10, tenths % 10)?;
            }
            _ => write!(out, "{:15}", "")?,
        }
    }
    let target = line.target.map_or(String::new(), |target| format!(" <+{target:#x}>"));
    let text = format!("{}{target}", line.text);
    write!(out, "{:#x} {:>7}  {:BYTES_WIDTH$}  ", line.address, format!("+{:#x}", line.offset), line.bytes)?;
    let place = place(line);
    // Beside the first instruction of a line only.
    if place == *last || place.is_empty() {
        writeln!(out, "{text}")?;
    } else {
        writeln!(out, "{text:44}  ; {place}")?;
    }
    *last = place;
    Ok(())
}

fn place(line: &Line) -> String {
    let mut place = match (&line.file, line.line) {
        (Some(file), Some(line)) => format!("{}:{line}", printable(file)),
        _ => String::new(),
    };
    if let Some(inlined) = &line.inlined {
        place.push_str(&format!(" in {}", printable(inlined)));
    }
    place
}
