//! Dumps in the shape of real ones: the records, their order and their sizes are those of a runtime's file, at any
//! number of functions.

use jitprof_jitdump::V8_PAD1;
use jitprof_jitdump::writer::{DumpWriter, EntryFields, HeaderFields, LoadFields};

/// Any process id.
const PID: u32 = 4711;
/// Where generated code begins.
const BASE: u64 = 0x7f00_0000_0000;
/// V8 writes addresses of source rows this much too high.
const V8_BIAS: u64 = 0x40;
/// V8's `.eh_frame_hdr` for code without recorded rules: a table of no entries.
const EH_HEADER_ONLY: [u8; 20] = [1, 0x1b, 3, 0x3b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Node 20 with a collecting heap (4746 functions in 4.4 MB: up to 74 bytes of name, 556 of code in the mean, 14 source
/// rows for 54 % of them, with file names of 10 bytes): DEBUG_INFO if there are rows, UNWINDING_INFO of a header alone,
/// LOAD.
pub(crate) fn node(functions: u64) -> Vec<u8> {
    let mut dump = DumpWriter::with_header(&HeaderFields { pid: PID, pad1: V8_PAD1, ..HeaderFields::default() });
    let code = vec![0x90; 2048];
    for index in 0..functions {
        let (time, start) = (1_000 + index * 1_000, BASE + index * 4096);
        // Each function has baseline code, and then better code with the same source positions.
        let number = index / 4;
        let name = match index % 4 {
            0 => format!("Builtin:CallHandler_{index}"),
            tier => format!(
                "JS:{}handler{number} /srv/app/lib/module{}.js:{}:17",
                ["^", "+", "*"][usize::try_from(tier - 1).unwrap_or(0)],
                number % 499,
                number % 3000
            ),
        };
        if index % 4 != 0 && number % 100 < 72 {
            let file = format!("/srv/app/{}.js", number % 499);
            let rows = rows(start + V8_BIAS, 14, number, file.as_bytes());
            // V8 pads these records to 8 bytes; their fixed part is 32 bytes long, an entry's is 17 with its NUL.
            let len: usize = 32 + rows.iter().map(|row| 17 + row.name.len()).sum::<usize>();
            dump.debug_info(time, start, &rows, len.next_multiple_of(8) - len);
        }
        dump.unwinding_info(time, &EH_HEADER_ONLY, 20, 0);
        load(&mut dump, time, index, start, &name, piece(&code, index, 556));
    }
    dump.into_bytes()
}

/// Erlang/OTP 25 at start (15,821 functions in 6.3 MB: 33 bytes of name, 245 of code in the mean, source rows for
/// 39 %, 5 each with the terminator, with file names of 9 bytes): DEBUG_INFO if there are rows, LOAD.
pub(crate) fn erlang(functions: u64) -> Vec<u8> {
    let mut dump = DumpWriter::with_header(&HeaderFields { pid: PID, ..HeaderFields::default() });
    let code = vec![0x90; 2048];
    for index in 0..functions {
        let (time, start) = (1_000 + index * 1_000, BASE + index * 4096);
        let name = format!("$module_{:03}:handle_request_{index}/{}", index % 997, index % 7);
        if index % 100 < 39 {
            let file = format!("mod{:02}.erl", index % 97);
            let mut rows = rows(start, 4, index, file.as_bytes());
            rows.push(EntryFields { addr: start + 40, ..EntryFields::default() });
            dump.debug_info(time, start, &rows, 0);
        }
        load(&mut dump, time, index, start, &name, piece(&code, index, 245));
    }
    dump.into_bytes()
}

fn load(dump: &mut DumpWriter, time: u64, index: u64, start: u64, name: &str, code: &[u8]) {
    dump.load(time, &LoadFields { code_addr: start, code_index: index, name: name.as_bytes(), code });
}

/// Code of half to one and a half of the mean length, in an order without a pattern.
fn piece(code: &[u8], index: u64, mean: u64) -> &[u8] {
    let len = mean / 2 + index * 7919 % (mean + 1);
    &code[..usize::try_from(len).unwrap_or(usize::MAX).min(code.len())]
}

/// Rows within the shortest piece of code, of ascending addresses and mixed lines.
fn rows(first: u64, count: u64, index: u64, file: &[u8]) -> Vec<EntryFields<'_>> {
    (0..count)
        .map(|row| EntryFields {
            addr: first + row * 8,
            line: i32::try_from(1 + (index + row * 3) % 3000).unwrap_or(1),
            discrim: 5,
            name: file,
        })
        .collect()
}
