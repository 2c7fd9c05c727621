//! What the tests of this module share: ways to read fixtures.

use crate::code::{CodeEvent, CodeLoad};

use super::test_data::{ALL, fixture};
use super::{DumpReader, DumpStats, ReaderOptions};

mod clocks;
mod damage;
mod differential;
mod extension;
mod producers;
mod properties;
mod synthetic;
mod tailing;
mod throughput;

const SMALL: [&str; 5] = ["php-tracing", "wasmtime50", "llvm14-fp", "llvm14-nofp-g", "llvm19-nofp-g"];

fn read(bytes: &[u8]) -> (Vec<CodeEvent>, DumpStats) {
    read_with(bytes, ReaderOptions::default())
}

fn read_with(bytes: &[u8], options: ReaderOptions) -> (Vec<CodeEvent>, DumpStats) {
    read_in_chunks(bytes, &[bytes.len()], options)
}

/// Lets the reader see the file as if it grew by the given sizes, over and over.
fn read_in_chunks(bytes: &[u8], sizes: &[usize], options: ReaderOptions) -> (Vec<CodeEvent>, DumpStats) {
    let mut reader = DumpReader::new(options);
    let mut events = Vec::new();
    let mut len = 0;
    for size in sizes.iter().cycle() {
        len = (len + size.max(&1)).min(bytes.len());
        let start = usize::try_from(reader.offset().0).unwrap();
        if let Some(window) = bytes.get(start..len) {
            reader.read(window, &mut |event| events.push(event));
        }
        if len == bytes.len() {
            break;
        }
    }
    (events, reader.stats().clone())
}

fn loads(events: &[CodeEvent]) -> Vec<&CodeLoad> {
    events
        .iter()
        .filter_map(|event| match event {
            CodeEvent::Load(load) => Some(load),
            _ => None,
        })
        .collect()
}

fn load_named<'a>(events: &'a [CodeEvent], part: &str) -> &'a CodeLoad {
    let all = loads(events);
    let names: Vec<_> = all.iter().map(|load| &load.name).collect();
    all.iter().find(|load| load.name.contains(part)).unwrap_or_else(|| panic!("no {part} among {names:?}"))
}
