//! For each deviation a dump that has it, and where.

use super::Deviation as D;
use crate::V8_PAD1;
use crate::writer::{DumpWriter, EntryFields, HeaderFields, LoadFields};

const TIME: u64 = 1_000;
const CODE: &[u8] = &[0x90; 32];
const ADDRESS: u64 = 0x1000;

/// A header without a fault, as the specification has it but for the version, of which perf and everybody write 1.
pub fn sound_header() -> HeaderFields {
    HeaderFields { time: TIME, ..HeaderFields::default() }
}

fn sound() -> DumpWriter {
    DumpWriter::with_header(&sound_header())
}

fn with(change: impl FnOnce(&mut HeaderFields)) -> DumpWriter {
    let mut header = sound_header();
    change(&mut header);
    let mut dump = DumpWriter::with_header(&header);
    load(&mut dump, ADDRESS, 0);
    dump
}

fn load(dump: &mut DumpWriter, code_addr: u64, code_index: u64) {
    dump.load(TIME, &LoadFields { code_addr, code_index, name: b"f", code: CODE });
}

fn entry(addr: u64, line: i32, name: &[u8]) -> EntryFields<'_> {
    EntryFields { addr, line, discrim: 0, name }
}

/// One CIE, one FDE `pc` bytes from the place where the section lies behind the code, and perf's header.
pub fn eh_frame(pc: i32, range: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(20_u32.to_le_bytes());
    bytes.extend([0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0]);
    bytes.extend(20_u32.to_le_bytes());
    bytes.extend(28_u32.to_le_bytes());
    bytes.extend((pc - 32).to_le_bytes());
    bytes.extend(range.to_le_bytes());
    bytes.extend([0; 8]);
    bytes
}

const EH_HDR: [u8; 20] = [1, 0x1b, 3, 0x3b, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn unwinding(frame_pc: i32, hdr_first: bool, mapped: u64) -> DumpWriter {
    let mut dump = with(|header| header.version = 2);
    let (frame, hdr) = (eh_frame(frame_pc, 32), EH_HDR.to_vec());
    let bytes = if hdr_first { [hdr, frame].concat() } else { [frame, hdr].concat() };
    let mapped = if mapped == 1 { bytes.len() as u64 } else { mapped };
    dump.unwinding_info(TIME, &bytes, EH_HDR.len() as u64, mapped);
    load(&mut dump, 0x2000, 1);
    dump
}

fn debug(entries: &[EntryFields<'_>], pad: usize) -> DumpWriter {
    let mut dump = sound();
    dump.debug_info(TIME, ADDRESS, entries, pad);
    load(&mut dump, ADDRESS, 0);
    dump
}

/// A second record of another kind behind a function.
fn behind_a_load(then: impl FnOnce(&mut DumpWriter)) -> DumpWriter {
    let mut dump = with(|_| ());
    then(&mut dump);
    dump
}

/// The dump and the offset of the record that deviates.
pub fn example(deviation: D) -> (Vec<u8>, u64) {
    const FIRST: u64 = 40;
    /// Where the second record begins, behind a function.
    const SECOND: u64 = FIRST + 56 + 2 + 32;
    let good = entry(ADDRESS, 1, b"a.js");
    let (dump, offset) = match deviation {
        D::NoMagic => return ([b"#!/bin/sh, and what else is in such a file".as_slice(), &[0; 40]].concat(), 0),
        D::Version => (with(|header| header.version = 3), 0),
        D::VersionForPerf => (with(|header| header.version = 2), 0),
        D::HeaderSize => (with(|header| header.total_size = 39), 0),
        D::LongHeader => (with(|header| header.total_size = 48), 0),
        D::NoMachine => (with(|header| header.elf_mach = 0), 0),
        D::Padding => (with(|header| header.pad1 = V8_PAD1), 0),
        D::Flags => (with(|header| header.flags = 2), 0),
        D::HeaderTime => (with(|header| header.time = 1_700_000_000_000_000), 0),
        D::FlagOverNanoseconds => (with(|header| header.flags = 1), 0),
        D::AnotherHeader => (behind_a_load(|dump| _ = dump.header(&sound_header())), SECOND),
        D::TornEnd => (behind_a_load(|dump| _ = dump.raw(&[0, 0, 0, 0, 60])), SECOND),
        D::LostSequence => {
            let lost = |dump: &mut DumpWriter| {
                dump.raw(&[0xee; 50]);
                for index in 1..5 {
                    load(dump, 0x2000 * index, index);
                }
            };
            (behind_a_load(lost), SECOND)
        }
        D::DamagedRecord => {
            // As long as a LOAD, and its code would be longer.
            let body = [&[1, 0, 0, 0, 1, 0, 0, 0][..], &[0; 16], &[99, 0, 0, 0, 0, 0, 0, 0], &[0; 8], b"f\0code"];
            let damaged = |dump: &mut DumpWriter| {
                dump.record(0, TIME, &body.concat());
                load(dump, 0x2000, 1);
            };
            (behind_a_load(damaged), SECOND)
        }
        D::UnknownType => {
            let unknown = |dump: &mut DumpWriter| {
                dump.record(99, TIME, b"something");
                load(dump, 0x2000, 1);
            };
            (behind_a_load(unknown), SECOND)
        }
        D::Extension => (behind_a_load(|dump| _ = dump.lost(TIME, 1, 1)), SECOND),
        D::LongRecord => {
            let long = |dump: &mut DumpWriter| {
                dump.record(3, TIME, &[0; 8]);
                dump.header(&sound_header());
            };
            (behind_a_load(long), SECOND)
        }
        D::AfterClose => (behind_a_load(|dump| load(dump.close(TIME), 0x2000, 1)), SECOND + 16),
        D::TimeZero => (behind_a_load(|dump| _ = dump.close(0)), SECOND),
        D::TimeDescends => (behind_a_load(|dump| _ = dump.close(TIME - 1)), SECOND),
        D::OtherPid => (behind_a_load(|dump| load(dump.set_pid(2), 0x2000, 1)), SECOND),
        D::NoThread => {
            let mut dump = sound();
            let mut bytes = {
                load(&mut dump, ADDRESS, 0);
                dump.into_bytes()
            };
            bytes[60..64].copy_from_slice(&0x7f12_3456_u32.to_le_bytes());
            return (bytes, FIRST);
        }
        D::Vma => {
            let mut bytes = with(|_| ()).into_bytes();
            bytes[64..72].fill(0);
            return (bytes, FIRST);
        }
        D::EmptyName => {
            let mut dump = sound();
            dump.load(TIME, &LoadFields { code_addr: ADDRESS, code: CODE, ..LoadFields::default() });
            (dump, FIRST)
        }
        D::NotAscii => {
            let mut dump = sound();
            dump.load(TIME, &LoadFields { code_addr: ADDRESS, name: "größe".as_bytes(), ..LoadFields::default() });
            (dump, FIRST)
        }
        D::WithoutCode => {
            let mut dump = sound();
            dump.load(TIME, &LoadFields { code_addr: ADDRESS, name: b"f", ..LoadFields::default() });
            let mut bytes = dump.into_bytes();
            bytes[80] = 16;
            return (bytes, FIRST);
        }
        D::CodeIndex => (behind_a_load(|dump| load(dump, 0x2000, 0)), SECOND),
        D::MoveOfNothing => (behind_a_load(|dump| _ = dump.moved(TIME, 0x5000, 0x6000, 32, 0)), SECOND),
        D::MoveSize => (behind_a_load(|dump| _ = dump.moved(TIME, ADDRESS, 0x6000, 31, 0)), SECOND),
        D::MoveIndex => (behind_a_load(|dump| _ = dump.moved(TIME, ADDRESS, 0x6000, 32, 5)), SECOND),
        D::DebugUnclaimed => {
            let unclaimed = |dump: &mut DumpWriter| {
                dump.debug_info(TIME, 0x3000, &[good], 0);
                load(dump, 0x2000, 1);
            };
            (behind_a_load(unclaimed), SECOND)
        }
        D::DebugOfAnother => {
            let mut dump = sound();
            dump.debug_info(TIME, ADDRESS, &[good], 0).debug_info(TIME, 0x2000, &[entry(0x2000, 1, b"b.js")], 0);
            let offset = dump.len() as u64;
            load(&mut dump, ADDRESS, 0);
            load(&mut dump, 0x2000, 1);
            (dump, offset)
        }
        D::DebugBias => (debug(&[entry(ADDRESS + 0x40, 1, b"a.js"), entry(ADDRESS + 0x48, 2, b"a.js")], 0), FIRST),
        D::FreedName => {
            let mut dump = DumpWriter::with_header(&HeaderFields { pad1: V8_PAD1, ..sound_header() });
            let freed =
                |addr| EntryFields { addr, line: 1, discrim: 0, name: b"\x1a\0\0\0\0\0\0\x01..eds/w/nodej/f.js" };
            let entries = [freed(ADDRESS + 0x40), freed(ADDRESS + 0x48)];
            dump.debug_info(TIME, ADDRESS, &entries, 0);
            load(&mut dump, ADDRESS, 0);
            (dump, FIRST)
        }
        D::DebugCut => (debug(&[good, entry(1 << 50, 2, b"b.js")], 0), FIRST),
        D::SameFile => (debug(&[good, entry(ADDRESS + 4, 2, b"\xff")], 0), FIRST),
        D::LineBelow1 => (debug(&[good, entry(ADDRESS + 32, 0, b"")], 0), FIRST),
        D::RowBeforeCode => (debug(&[entry(ADDRESS - 1, 1, b"a.js")], 0), FIRST),
        D::RowBehindCode => {
            let dump = debug(&[good, entry(ADDRESS + 32, 2, b"a.js")], 0);
            let offset = FIRST + 32 + 2 * 21;
            (dump, offset)
        }
        D::DebugPadding => (debug(&[good], 3), FIRST),
        D::UnwindingInVersion1 => {
            let plain = |dump: &mut DumpWriter| {
                dump.unwinding_info(TIME, &EH_HDR, 20, 0);
                load(dump, 0x2000, 1);
            };
            (behind_a_load(plain), SECOND)
        }
        D::UnwindingUnclaimed => {
            (behind_a_load(|dump| _ = dump.unwinding_info(TIME, &EH_HDR, 20, 0).close(TIME)), SECOND)
        }
        D::FrameFirst => (unwinding(-32, false, 1), SECOND),
        D::UnwindingOfBatch | D::NotMapped => (unwinding(-32, true, 0), SECOND),
        D::MappedSize => (unwinding(-32, false, 80), SECOND),
        D::UnwindingPadding => (unwinding(-32, false, 1), SECOND),
        D::UnwindingShifted => {
            let dump = unwinding(100, false, 1);
            (dump, SECOND + 112)
        }
        D::UnwindingElsewhere => {
            let dump = unwinding(0, true, 0);
            let mut bytes = dump.into_bytes();
            // The FDE is of another size than the function, so that the section cannot be placed.
            let range = usize::try_from(SECOND).unwrap() + 40 + 20 + 24 + 12;
            bytes[range] = 31;
            return (bytes, SECOND + 112);
        }
        D::UnwindingUnreadable => {
            let mut dump = with(|header| header.version = 2);
            dump.unwinding_info(TIME, &[7; 40], 20, 40);
            load(&mut dump, 0x2000, 1);
            (dump, SECOND)
        }
    };
    (dump.into_bytes(), offset)
}

/// A dump in which nothing deviates.
pub fn sound_dump() -> Vec<u8> {
    let mut dump = sound();
    dump.debug_info(TIME, ADDRESS, &[entry(ADDRESS, 1, b"a.js"), entry(ADDRESS + 4, 2, b"a.js")], 0);
    load(&mut dump, ADDRESS, 0);
    dump.moved(TIME + 1, ADDRESS, 0x2000, 32, 0);
    dump.load(TIME + 2, &LoadFields { code_addr: ADDRESS, code_index: 1, name: b"g", code: CODE });
    dump.close(TIME + 3);
    dump.into_bytes()
}
