//! Which functions of a dump are there at a time, by where their records are.

use std::collections::BTreeMap;

use super::parser::Step;
use super::record::Body;

/// Records that are put in order of their times at once, and functions that are followed. 100 MiB at most.
const MAX_EVENTS: usize = 1 << 20;

/// Code that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LivingCode {
    /// Where it lies now.
    pub start: u64,
    /// Behind its last byte.
    pub end: u64,
    /// Where its LOAD record begins.
    pub record: u64,
    /// Where its code is in the file; `None` if the record does not have it.
    pub code: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Load(LivingCode),
    Move { old: u64, new: u64 },
    Unload { start: u64, end: u64 },
}

/// Follows the records of a dump, which need not be in order of their times.
#[derive(Debug)]
pub struct Living {
    until: u64,
    latest: u64,
    events: Vec<(u64, Event)>,
    live: BTreeMap<u64, LivingCode>,
    untracked: u64,
}

impl Living {
    /// What is there at the time `until`, as records have it.
    pub fn at(until: u64) -> Self {
        Self { until, latest: 0, events: Vec::new(), live: BTreeMap::new(), untracked: 0 }
    }

    /// Takes the next step of the parser.
    pub fn step(&mut self, step: &Step<'_>) {
        let Step::Record(record) = step else { return };
        let event = match &record.body {
            Body::Load(load) if load.code_size > 0 => {
                let end = record.offset.0.saturating_add(u64::from(record.total_size));
                let named = record.offset.0.saturating_add(57 + load.name.len() as u64);
                let code = end.checked_sub(load.code_size).filter(|code| *code >= named);
                Event::Load(LivingCode {
                    start: load.code_addr,
                    end: load.code_addr.saturating_add(load.code_size),
                    record: record.offset.0,
                    code,
                })
            }
            Body::Move(moved) => Event::Move { old: moved.old_code_addr, new: moved.new_code_addr },
            Body::Unload(gone) => {
                Event::Unload { start: gone.code_addr, end: gone.code_addr.saturating_add(gone.code_size) }
            }
            _ => return,
        };
        // Without a time it is as old as the one before.
        let time = if record.raw_time == 0 { self.latest } else { record.raw_time };
        self.latest = self.latest.max(time);
        if time > self.until {
            return;
        }
        self.events.push((time, event));
        if self.events.len() >= MAX_EVENTS {
            self.apply();
        }
    }

    fn apply(&mut self) {
        self.events.sort_by_key(|(time, _)| *time);
        for (_, event) in std::mem::take(&mut self.events) {
            match event {
                Event::Load(code) => self.place(code),
                Event::Unload { start, end } => self.clear(start, end),
                Event::Move { old, new } => {
                    if let Some(code) = self.live.remove(&old) {
                        let end = new.saturating_add(code.end - code.start);
                        self.place(LivingCode { start: new, end, ..code });
                    }
                }
            }
        }
    }

    fn place(&mut self, code: LivingCode) {
        self.clear(code.start, code.end);
        if self.live.len() >= MAX_EVENTS {
            self.untracked = self.untracked.saturating_add(1);
        } else {
            self.live.insert(code.start, code);
        }
    }

    fn clear(&mut self, start: u64, end: u64) {
        while let Some((&first, code)) = self.live.range(..end).next_back()
            && code.end > start
        {
            self.live.remove(&first);
        }
    }

    /// The code that is there, by address, without overlaps; and how much more there is than is followed.
    pub fn finish(mut self) -> (Vec<LivingCode>, u64) {
        self.apply();
        (self.live.into_values().collect(), self.untracked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writer::{DumpWriter, LoadFields};
    use crate::{Parser, ParserOptions};

    fn living(bytes: &[u8], until: u64) -> Vec<(u64, u64, bool)> {
        let mut living = Living::at(until);
        let mut parser = Parser::new(ParserOptions::default());
        while let Some(window) = bytes.get(usize::try_from(parser.offset().0).unwrap()..) {
            match parser.step(window) {
                Step::NeedMore { .. } => break,
                step => living.step(&step),
            }
        }
        let (all, untracked) = living.finish();
        assert_eq!(untracked, 0);
        for code in &all {
            let at = usize::try_from(code.code.unwrap_or(code.record)).unwrap();
            let size = usize::try_from(code.end - code.start).unwrap();
            assert!(code.code.is_none() || bytes[at..at + size].iter().all(|byte| *byte == 0xc3));
        }
        all.iter().map(|code| (code.start, code.end, code.code.is_some())).collect()
    }

    #[test]
    fn later_code_replaces_earlier_code_whatever_the_order_of_the_file() {
        let load = |code_addr, code| LoadFields { code_addr, name: b"f", code, code_index: 0 };
        let mut dump = DumpWriter::new(1);
        dump.load(30, &load(0x1000, &[0xc3; 16]));
        dump.load(10, &load(0x1008, &[0xc3; 16]));
        dump.load(20, &load(0x2000, &[0xc3; 8]));
        dump.moved(40, 0x2000, 0x3000, 8, 0);
        dump.unload(50, 0x3004, 1);
        let bytes = dump.into_bytes();
        assert_eq!(living(&bytes, u64::MAX), [(0x1000, 0x1010, true)]);
        assert_eq!(living(&bytes, 45), [(0x1000, 0x1010, true), (0x3000, 0x3008, true)]);
        assert_eq!(living(&bytes, 25), [(0x1008, 0x1018, true), (0x2000, 0x2008, true)]);
    }
}
