//! Writes seeds for the fuzz targets: pieces of what real runtimes have written, and of this system's programs.
//!
//! ```text
//! cargo run --example seeds -- FOLDER        makes FOLDER/TARGET/NAME
//! ```

use std::error::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use jitprof_jitdump::code::CodeEvent;
use jitprof_jitdump::test_data::{ALL, fixture, perf_map};
use jitprof_jitdump::{DumpReader, HEADER_SIZE, ReaderOptions};
use jitprof_unwind::elf::{Layout, Source};

/// What a fuzzer changes in many ways a second.
const MOST_BYTES: usize = 4 << 10;
/// Pieces of one file.
const PIECES: usize = 8;
/// Programs, the smallest that there are.
const PROGRAMS: usize = 16;
const PROGRAM_BYTES: u64 = 64 << 10;

/// Dumps of functions whose rows were wrong once, or of many forms.
const PICKED: [&str; 7] = [
    "hotspot17-paths",
    "hotspot17-gaps",
    "otp25-gaps",
    "otp25fp-paths",
    "node24-paths",
    "node26-paths",
    "ryujit10-paths",
];

/// Processes whose memory is changed, and in how many ways a word is.
const PROCESSES: u8 = 4;
const WAYS: u8 = 7;

const PERF_MAPS: [&str; 3] = ["cpython3.13.0-perf", "node20-perf", "otp25-head"];

/// `stp x29, x30, [sp, #-32]!; mov x29, sp; str x19, [sp, #16]; bl; cbz x0, 8; ldr x19, [sp, #16]; ldp x29, x30, [sp], #32; ret`
const ARM_CODE: [u32; 8] =
    [0xa9be_7bfd, 0x9100_03fd, 0xf900_0bf3, 0x9400_0010, 0xb400_0040, 0xf940_0bf3, 0xa8c2_7bfd, 0xd65f_03c0];

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("usage: seeds FOLDER")?);
    let write = |target: &str, name: &str, parts: &[&[u8]]| -> std::io::Result<()> {
        let folder = folder.join(target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), parts.concat())
    };
    for name in PERF_MAPS {
        for (index, piece) in perf_map(name).chunks(MOST_BYTES).take(PIECES).enumerate() {
            write("perf_map", &format!("{name}-{index}"), &[&[3, 60, 61, 200], piece])?;
        }
    }
    for name in ALL {
        let dump = fixture(name);
        let (header, records) = dump.split_at(HEADER_SIZE);
        for (index, piece) in records.chunks(MOST_BYTES).take(PIECES).enumerate() {
            // What is told by the first byte: which options there are, and where the dump ends at first.
            for (target, control) in [("jitdump", 0x83), ("jitdump_inspect", 1)] {
                write(target, &format!("{name}-{index}"), &[&[control], header, piece])?;
            }
        }
    }
    for name in ALL.into_iter().chain(PICKED) {
        let dump = fixture(name);
        let mut reader = DumpReader::new(ReaderOptions { keep_code: true, ..ReaderOptions::default() });
        let mut codes = Vec::new();
        reader.read(&dump, &mut |event| {
            if let CodeEvent::Load(load) = event {
                codes.extend(load.code.map(|code| code.to_vec()));
            }
        });
        let step = codes.len().div_ceil(PIECES).max(1);
        for (index, code) in codes.iter().step_by(step).enumerate() {
            let place = u8::try_from(index * 2 % 16)?;
            write("code_rows", &format!("{name}-{index}"), &[&[place], &code[..code.len().min(MOST_BYTES)]])?;
        }
    }
    write("code_rows", "arm", &[&[1], ARM_CODE.map(u32::to_le_bytes).as_flattened()])?;
    for process in 0..PROCESSES {
        write("runtimes", &format!("{process}-whole"), &[&[process]])?;
        for way in 0..WAYS {
            // Which word is changed, how, and what its value is made of.
            let change = [&[13 * way, 1, way][..], &0x0123_4567_89ab_cdef_u64.to_le_bytes()].concat();
            write("runtimes", &format!("{process}-{way}"), &[&[process], &change])?;
        }
    }
    // What has cost gigabytes, or hours: rules of slots without end, common entries within one another, records that name one
    // function again and again or share a large common entry, and functions of many megabytes.
    for (name, frames) in [("slots", slots()?), ("overlapping", overlapping()?)] {
        write("elf_rows", name, &[&[1], &DISTANCE.to_le_bytes(), &frames])?;
    }
    let dump = fixture(ALL[0]);
    let header = &dump[..HEADER_SIZE];
    let unwinding = [&words(&[1_u64 << 20, 12, 1 << 20])[..], &HDR, &slots()?].concat();
    let again: Vec<u8> =
        (0..20).flat_map(|_| [record(4, &unwinding), record(0, &load(0x7000, 16, &[0xc3; 16]))].concat()).collect();
    let frames = large_common_entry()?;
    let unwinding = [&words(&[frames.len() as u64, 12, frames.len() as u64])[..], &HDR, &frames].concat();
    let common: Vec<u8> = (0..20)
        .flat_map(|at| [record(4, &unwinding), record(0, &load(0x7000 + at * 64, 16, &[0xc3; 16]))].concat())
        .collect();
    let huge: Vec<u8> = (0..20).flat_map(|at| record(0, &load(0x7000 + at * HUGE, HUGE, &[0xc3; 16]))).collect();
    for (target, control) in [("jitdump", 0x83), ("jitdump_inspect", 1)] {
        for (name, records) in [("again", &again), ("common", &common), ("huge", &huge)] {
            write(target, name, &[&[control], header, records])?;
        }
    }
    for path in programs()? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        write("elf_rows", &name, &[&[0], &fs::read(&path)?])?;
        let file = File::open(&path)?;
        let source = Source::File(&file);
        let layout = Layout::read(&source)?;
        let Some(frames) = layout.section(".eh_frame") else { continue };
        let (Ok(bytes), Some(code)) = (source.contents(frames, PROGRAM_BYTES), layout.code().first().copied()) else {
            continue;
        };
        let Ok(distance) = u16::try_from(frames.svma.wrapping_sub(code.svma)) else { continue };
        for (kind, claims) in [(1, 0), (1, 20)] {
            let head = [kind | claims << 3, distance.to_le_bytes()[0], distance.to_le_bytes()[1]];
            let frames = &bytes[..bytes.len().min(MOST_BYTES)];
            write("elf_rows", &format!("{name}-frames-{claims}"), &[&head, frames])?;
        }
    }
    Ok(())
}

/// Bytes of a function that is too large.
const HUGE: u64 = 16 << 20;
/// From the first byte of code to a section.
const DISTANCE: u16 = 0x1000;
/// `.eh_frame_hdr` without a table.
const HDR: [u8; 12] = [1, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
/// A common entry without its length: `zR`, addresses relative to themselves; the CFA is `rsp + 8`.
const CIE: [u8; 18] = [0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1];

/// A function's entry for a common entry that begins at `cie`.
fn fde(section: &mut Vec<u8>, cie: usize, bytes: u32, instructions: &[u8]) -> Result<(), Box<dyn Error>> {
    section.extend(u32::try_from(13 + instructions.len())?.to_le_bytes());
    section.extend(u32::try_from(section.len() - cie)?.to_le_bytes());
    let start = 0_i32.wrapping_sub(i32::from(DISTANCE)).wrapping_sub(i32::try_from(section.len())?);
    section.extend([&start.to_le_bytes()[..], &bytes.to_le_bytes(), &[0], instructions].concat());
    Ok(())
}

/// A slot's expression, advanced over a megabyte again and again.
fn slots() -> Result<Vec<u8>, Box<dyn Error>> {
    let expression = [0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x39, 0x2a, 0x33, 0x24, 0x22];
    let mut section = [&u32::try_from(CIE.len())?.to_le_bytes()[..], &CIE].concat();
    fde(&mut section, 0, u32::MAX, &[&expression[..], &[0x04, 0, 0, 0x10, 0].repeat(200)].concat())?;
    Ok(section)
}

/// Common entries, each in the operand of an instruction of the one before.
fn overlapping() -> Result<Vec<u8>, Box<dyn Error>> {
    let header = [&2000_u32.to_le_bytes()[..], &CIE[..12], &[0]].concat();
    let entry = [&header[..], &[0x10, 3, u8::try_from(header.len())?]].concat();
    let mut section = entry.repeat(40);
    section.resize(section.len() + 1000, 0);
    (0..40).try_for_each(|at| fde(&mut section, at * entry.len(), 1, &[]))?;
    Ok(section)
}

/// A common entry of some kilobytes, and a function's entry for it.
fn large_common_entry() -> Result<Vec<u8>, Box<dyn Error>> {
    let nothing = vec![0; MOST_BYTES];
    let mut section = [&u32::try_from(CIE.len() + nothing.len())?.to_le_bytes()[..], &CIE, &nothing].concat();
    fde(&mut section, 0, 16, &[])?;
    Ok(section)
}

/// A jitdump's record.
fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
    [&kind.to_le_bytes()[..], &size.to_le_bytes(), &1_u64.to_le_bytes(), body].concat()
}

/// The body of the record of a function.
fn load(address: u64, size: u64, code: &[u8]) -> Vec<u8> {
    [&[1, 0, 0, 0, 1, 0, 0, 0][..], &words(&[address, address, size, 1]), b"f\0", code].concat()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The smallest of this system.
fn programs() -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for folder in ["/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"].map(Path::new) {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry?.path();
            let Ok(file) = File::open(&path) else { continue };
            let length = file.metadata()?.len();
            if length <= PROGRAM_BYTES && Layout::read(&Source::File(&file)).is_ok_and(|elf| !elf.code().is_empty()) {
                found.push((length, path));
            }
        }
    }
    found.sort();
    found.dedup_by_key(|(length, _)| *length);
    Ok(found.into_iter().take(PROGRAMS).map(|(_, path)| path).collect())
}
