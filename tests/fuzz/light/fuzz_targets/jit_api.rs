//! Events of Intel's JIT profiling API with any structures, as a runtime with errors could send them: no crash, and the
//! dump that they leave has no damage in it.
//!
//! The input is a sequence of events: a number, 72 bytes of structure, and a byte whose bits say which of its pointers
//! are replaced by good ones.
#![no_main]

use std::ffi::c_void;
use std::os::unix::fs::FileExt;

use jitprof_jitdump::{DumpReader, HEADER_SIZE, ReaderOptions};
use libfuzzer_sys::fuzz_target;

const EVENT: usize = 1 + 72 + 1;
const NUMBERS: [u32; 10] = [2, 13, 14, 15, 16, 17, 19, 21, 22, 23];

static MEMORY: [u8; 4096] = [b'x'; 4096];

fuzz_target!(
    init: {
        let directory = std::env::temp_dir().join(format!("jitprof-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for the dump");
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("JITPROF_AGENT_DIR", &directory) };
        assert_eq!(jitprof_agent::Initialize(), 1);
    },
    |input: &[u8]| {
        let path = std::path::PathBuf::from(std::env::var_os("JITPROF_AGENT_DIR").expect("set above"))
            .join(format!("jit-{}.dump", std::process::id()));
        let before = std::fs::metadata(&path).expect("the dump").len();
        for event in input.chunks_exact(EVENT) {
            let (number, rest) = event.split_first().expect("not empty");
            let (structure, good) = rest.split_at(72);
            let mut structure = structure.to_vec();
            for (field, place) in structure.chunks_exact_mut(8).enumerate().skip(1) {
                if good[0] >> (field % 8) & 1 == 1 {
                    let inside = MEMORY.as_ptr() as u64 + u64::from(place[0]);
                    place.copy_from_slice(&inside.to_ne_bytes());
                }
            }
            let number = NUMBERS[usize::from(*number) % NUMBERS.len()];
            assert_eq!(jitprof_agent::NotifyEvent(number, structure.as_mut_ptr().cast::<c_void>()), 1);
        }
        // The dump grows with each input: only what this one has added is read, behind the header.
        let file = std::fs::File::open(&path).expect("the dump");
        let added = usize::try_from(file.metadata().expect("the dump").len() - before).expect("a length");
        let mut bytes = vec![0; HEADER_SIZE + added];
        let (header, written) = bytes.split_at_mut(HEADER_SIZE);
        file.read_exact_at(header, 0).expect("the header");
        file.read_exact_at(written, before).expect("what was added");
        let mut reader = DumpReader::new(ReaderOptions::default());
        reader.read(&bytes, &mut |_| {});
        assert_eq!(reader.offset().0, bytes.len() as u64);
        let stats = reader.stats();
        assert_eq!(stats.corrupt_bytes + stats.skipped.bad_record + stats.records.unknown, 0);
    }
);
