//! The same records as linux-perf-data's reader, where that one is right.
//!
//! It is not asked about DEBUG_INFO of V8 (it fails at overwritten names) nor UNWINDING_INFO (it splits the data in the
//! specification's order, which V8 and CPython do not write).

use linux_perf_data::jitdump::{JitDumpReader, JitDumpRecord};

use crate::ReaderOptions;
use crate::code::CodeEvent;

use super::{ALL, fixture, read_with};

/// What both readers say of a LOAD.
#[derive(Debug, PartialEq)]
struct PlainLoad {
    time: u64,
    start: u64,
    index: u64,
    name: String,
    code: Vec<u8>,
}

fn theirs(bytes: &[u8]) -> (Vec<PlainLoad>, usize) {
    let mut reader = JitDumpReader::new(std::io::Cursor::new(bytes)).unwrap();
    let mut functions = Vec::new();
    let mut records = 0;
    while let Ok(Some(raw)) = reader.next_record() {
        records += 1;
        let time = raw.timestamp;
        if let Ok(JitDumpRecord::CodeLoad(load)) = raw.parse() {
            functions.push(PlainLoad {
                time,
                start: load.code_addr,
                index: load.code_index,
                name: String::from_utf8_lossy(&load.function_name.as_slice()).into_owned(),
                code: load.code_bytes.as_slice().to_vec(),
            });
        }
    }
    (functions, records)
}

#[test]
fn functions_are_the_ones_that_linux_perf_data_reads() {
    for name in ALL {
        let bytes = fixture(name);
        let (events, stats) = read_with(&bytes, ReaderOptions { keep_code: true, ..ReaderOptions::default() });
        let ours: Vec<_> = events
            .into_iter()
            .filter_map(|event| match event {
                CodeEvent::Load(load) => Some(PlainLoad {
                    time: load.time.0,
                    start: load.start.0,
                    index: load.code_index,
                    name: load.name,
                    code: load.code.unwrap().into_vec(),
                }),
                _ => None,
            })
            .collect();
        let (theirs, records) = theirs(&bytes);
        assert!(!theirs.is_empty(), "{name}");
        assert_eq!(ours, theirs, "{name}");
        let counts = stats.records;
        let all = counts.load + counts.moved + counts.debug_info + counts.close + counts.unwinding_info;
        assert_eq!(all, records as u64, "{name}");
    }
}
