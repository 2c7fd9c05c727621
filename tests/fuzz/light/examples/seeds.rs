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
