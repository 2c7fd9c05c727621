//! Measurements and comparisons with other tools. Run by hand, in a release build:
//! `JITPROF_FILE=/usr/bin/node cargo test --release -p jitprof --lib symbol::measure -- --ignored --nocapture`

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::image::Image;
use super::*;
use crate::gsym::GsymStore;
use jitprof_common::units::{Avma, FileOffset};
use jitprof_unwind::elf::Layout;

const LOOKUPS: usize = 1000;
const WAIT: Duration = Duration::from_secs(300);

fn file() -> PathBuf {
    std::env::var_os("JITPROF_FILE").map_or_else(|| std::env::current_exe().unwrap(), PathBuf::from)
}

/// Offsets spread evenly over the section `.text`.
fn offsets(layout: &Layout) -> Vec<u64> {
    let text = layout.section(".text").expect("the file has a .text section");
    let step = (text.size / LOOKUPS as u64).max(1);
    (0..LOOKUPS as u64).map(|index| text.file_offset + (index * step + step / 2) % text.size).collect()
}

fn resident_kib(what: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
#[ignore = "prints figures; run by hand in a release build"]
fn time_and_memory_of_a_file() {
    let path = file();
    let opened = fs::File::open(&path).unwrap();
    let layout = super::image::layout_of(&opened).unwrap();
    let offsets = offsets(&layout);
    let before = resident_kib("VmRSS");
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let (start, cpu) = (Instant::now(), cpu_time());
    let id = naming.add(opened, path.to_str().unwrap(), None);
    let added = start.elapsed();
    naming.request(SymbolKey::File(id, FileOffset(offsets[0])));
    assert_eq!(naming.wait(WAIT), 0);
    let (first, first_cpu) = (start.elapsed(), cpu_time() - cpu);
    let grown = resident_kib("VmRSS").saturating_sub(before);
    let (start, cpu) = (Instant::now(), cpu_time());
    for offset in &offsets[1..] {
        naming.request(SymbolKey::File(id, FileOffset(*offset)));
    }
    let asked = start.elapsed();
    assert_eq!(naming.wait(WAIT), 0);
    let (others, others_cpu) = (start.elapsed(), cpu_time() - cpu);
    println!("{}: add {added:?}, first {first:?} (CPU {first_cpu:?}, +{grown} KiB)", path.display());
    println!("  {} more: asked in {asked:?}, answered in {others:?} (CPU {others_cpu:?})", LOOKUPS - 1);
    let grown = |what| resident_kib(what).saturating_sub(before);
    println!("  resident +{} KiB, peak +{} KiB", grown("VmRSS"), grown("VmHWM"));
    println!("  {:?}", naming.stats());
}

#[test]
#[ignore = "prints figures; run by hand in a release build"]
fn time_of_the_copy() {
    let opened = fs::File::open(file()).unwrap();
    let layout = super::image::layout_of(&opened).unwrap();
    let info = layout.section(".debug_info").map_or(0, |section| section.size);
    let start = cpu_time();
    let image = Image::copy(&opened, &layout, &SymbolBudget::RUN).unwrap();
    println!("{}: {image:?}, .debug_info {info} bytes: CPU {:?}", file().display(), cpu_time() - start);
}

#[test]
#[ignore = "prints figures; run by hand in a release build"]
fn time_and_memory_of_the_kernel() {
    const KERNEL_TEXT: u64 = 0xffff_ffff_8100_0000;
    let before = resident_kib("VmRSS");
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let (start, cpu) = (Instant::now(), cpu_time());
    naming.request(SymbolKey::Kernel(Avma(KERNEL_TEXT)));
    assert_eq!(naming.wait(WAIT), 0);
    let (first, first_cpu) = (start.elapsed(), cpu_time() - cpu);
    let grown = resident_kib("VmRSS").saturating_sub(before);
    let (start, cpu) = (Instant::now(), cpu_time());
    for index in 1..LOOKUPS as u64 {
        naming.request(SymbolKey::Kernel(Avma(KERNEL_TEXT + index * 4096)));
    }
    assert_eq!(naming.wait(WAIT), 0);
    println!("kernel: first {first:?} (CPU {first_cpu:?}, +{grown} KiB)");
    println!("  {} more: {:?} (CPU {:?})", LOOKUPS - 1, start.elapsed(), cpu_time() - cpu);
    println!("  {:?}", naming.stats());
}

#[test]
#[ignore = "prints figures; run by hand in a release build"]
fn time_and_memory_of_blazesyms_kernel_table() {
    let before = resident_kib("VmRSS");
    let other = blazesym::symbolize::Symbolizer::new();
    let kernel = blazesym::symbolize::source::Source::from(blazesym::symbolize::source::Kernel::default());
    let start = Instant::now();
    let address = blazesym::symbolize::Input::AbsAddr(0xffff_ffff_8100_0000);
    other.symbolize_single(&kernel, address).unwrap();
    println!("blazesym's kernel table: {:?} (+{} KiB)", start.elapsed(), resident_kib("VmRSS").saturating_sub(before));
}

/// CPU time of all threads of this process, from the scheduler.
fn cpu_time() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let times = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("schedstat")).ok());
    times.map(|text| Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())).sum()
}

/// The last word of a name: demanglers differ in templates and parameters, and binutils shows the symbol table's name
/// for some functions of which the debug information has the short one only.
fn last_word(name: &str) -> &str {
    let (mut depth, mut start, mut end) = (0, 0, name.len());
    for (at, letter) in name.char_indices() {
        match letter {
            '<' => depth += 1,
            '>' => depth -= 1,
            '(' | '[' if depth == 0 && at > start => {
                end = at;
                break;
            }
            ':' | ' ' | '(' | '{' if depth == 0 => start = at + 1,
            _ => {}
        }
    }
    let word = &name[start..end];
    word.split('<').next().filter(|word| !word.is_empty()).unwrap_or(word)
}

/// What `addr2line` finds at each address, innermost first.
fn addr2line(path: &Path, addresses: impl Iterator<Item = u64>) -> Vec<Vec<(String, u32)>> {
    let addresses = addresses.map(|address| format!("{address:#x}"));
    let output = Command::new("addr2line").args(["-aCfi", "-e"]).arg(path).args(addresses).output().unwrap();
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut found: Vec<Vec<(String, u32)>> = Vec::new();
    let mut lines = output.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            found.push(Vec::new());
            continue;
        }
        let place = lines.next().unwrap().split(" (").next().unwrap();
        let number = place.rsplit(':').next().and_then(|number| number.parse().ok()).unwrap_or(0);
        found.last_mut().unwrap().push((line.to_owned(), number));
    }
    found
}

/// Not counted as a difference: code between functions, which addr2line gives to the function before.
#[test]
#[ignore = "needs binutils; compares the names of 1000 places with addr2line -Cfi"]
fn names_agree_with_addr2line() {
    let path = file();
    let opened = fs::File::open(&path).unwrap();
    let layout = super::image::layout_of(&opened).unwrap();
    let offsets = offsets(&layout);
    let theirs = addr2line(&path, offsets.iter().map(|offset| layout.svma_of(*offset).unwrap()));
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let id = naming.add(opened, path.to_str().unwrap(), None);
    offsets.iter().for_each(|offset| naming.request(SymbolKey::File(id, FileOffset(*offset))));
    assert_eq!(naming.wait(WAIT), 0);
    let (mut unnamed, mut names, mut chains, mut shown) = (0, 0, 0, 0);
    for (offset, theirs) in offsets.iter().zip(&theirs) {
        let frames = naming.frames(SymbolKey::File(id, FileOffset(*offset)));
        if frames[0].name.starts_with('[') {
            unnamed += 1;
            continue;
        }
        let line_of = |frame: &Frame| frame.source.as_ref().map_or(0, |place| place.line);
        let same_name = last_word(&frames.last().unwrap().name) == last_word(&theirs.last().unwrap().0);
        names += usize::from(same_name);
        let lines = frames.iter().map(line_of).eq(theirs.iter().map(|(_, line)| *line));
        chains += usize::from(lines);
        if !(same_name && lines) && shown < 12 {
            shown += 1;
            let ours: Vec<_> = frames.iter().map(|frame| (&frame.name, line_of(frame))).collect();
            println!("{offset:#x}\n  ours   {ours:?}\n  theirs {theirs:?}");
        }
    }
    let named = offsets.len() - unnamed;
    println!("{}: {unnamed} unnamed; of {named} named: same function {names}, same lines {chains}", path.display());
    assert!(names * 100 >= named * 98, "fewer than 98 % of the functions agree");
}
