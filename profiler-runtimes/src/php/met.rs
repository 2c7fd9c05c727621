//! Functions that were read, for samples of those that have been freed since.
//!
//! Without a cache of compiled scripts the functions of a request are freed at its end, and a short request is over before its
//! samples are looked at. The next one of the same script has them at the same places. So what was read is remembered by all that
//! a sample has of it: where the function lies, parts of its hashes and its first line; and the sample's instruction has to be
//! one of those that it had. Where two functions have all that in common, neither is believed.

use std::collections::{BTreeMap, HashMap};

use super::{Described, Function, INSTRUCTION_BYTES, Own, Print};

/// Bytes that are remembered before all of it is dropped.
const MAX_REMEMBERED: usize = 4 << 20;
/// Bytes that a function takes besides its texts, one more place of its instructions, and the line of an instruction.
const ENTRY: usize = 384;
const PLACE: usize = 208;
const LINE: usize = 32;
/// Places where the instructions of one function were, of which the oldest is left out for another, and lines of each.
const MAX_PLACES: usize = 4;
const MAX_LINES: usize = 256;

/// Where a function's instructions were once, and the lines of those that were met.
#[derive(Debug)]
struct Instructions {
    start: u64,
    count: u64,
    lines: BTreeMap<u64, u32>,
}

/// What is known of one.
#[derive(Debug)]
struct Known {
    function: Function,
    /// The last one that was met at the end.
    places: Vec<Instructions>,
}

/// Those of one process, by where they lay and what samples had of them; nothing where it was more than one.
#[derive(Debug, Default)]
pub(super) struct Met {
    known: HashMap<(u64, Print), Option<Known>>,
    bytes: usize,
}

impl Met {
    /// Bytes that are remembered, nearly.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Remembers a function of which a sample had this, and the line of one of its instructions, if it tells.
    pub(super) fn note(&mut self, (at, print): (u64, Print), own: &Own, (instruction, line): (u64, u32)) {
        // What stays can be read later as well; of what no hash was read too little is known.
        if own.is_lasting || !print.has_path {
            return;
        }
        if self.bytes > MAX_REMEMBERED {
            *self = Self::default();
        }
        let function = &own.function;
        let known = self.known.entry((at, print)).or_insert_with(|| {
            self.bytes += ENTRY + function.name.len() + function.file.len();
            Some(Known { function: function.clone(), places: Vec::new() })
        });
        match known {
            Some(one) if one.function == *function => {
                self.bytes = self.bytes.saturating_sub(one.bytes());
                one.note(own.instructions, (instruction, line));
                self.bytes += one.bytes();
            }
            known => self.bytes = self.bytes.saturating_sub(known.take().map_or(0, |one| one.bytes())),
        }
    }

    /// The function of which a sample had this.
    pub(super) fn find(&self, of: (u64, Print), instruction: u64) -> Option<Described> {
        let known = self.known.get(&of)?.as_ref()?;
        let its = known.places.iter().rev().find(|its| its.has(instruction))?;
        let line = its.lines.get(&instruction).copied().unwrap_or(0);
        Some(Described { function: known.function.clone(), line })
    }
}

impl Known {
    /// What its instructions take.
    fn bytes(&self) -> usize {
        self.places.iter().map(|its| PLACE + LINE * its.lines.len()).sum()
    }

    fn note(&mut self, (start, count): (u64, u64), (instruction, line): (u64, u32)) {
        let is_same = |its: &Instructions| (its.start, its.count) == (start, count);
        if let Some(at) = self.places.iter().position(is_same) {
            self.places[at..].rotate_left(1);
        } else {
            if self.places.len() == MAX_PLACES {
                self.places.remove(0);
            }
            self.places.push(Instructions { start, count, lines: BTreeMap::new() });
        }
        let has_room = |its: &&mut Instructions| line != 0 && its.lines.len() < MAX_LINES && its.has(instruction);
        if let Some(its) = self.places.last_mut().filter(has_room) {
            its.lines.insert(instruction, line);
        }
    }
}

impl Instructions {
    fn has(&self, instruction: u64) -> bool {
        let offset = instruction.checked_sub(self.start);
        offset.is_some_and(|offset| offset < self.count * INSTRUCTION_BYTES && offset.is_multiple_of(INSTRUCTION_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Printed;
    use super::*;

    const PRINT: Print = Print { has_path: true, hashes: 7, first_line: 3 };

    fn own(name: &str, start: u64) -> Own {
        Own {
            function: Function { name: name.into(), file: "/srv/a.php".into(), first_line: 3 },
            instructions: (start, 4),
            lines: (3, 9),
            is_lasting: false,
            closures: (0, 0),
            printed: Printed { path: 1 << 63, name: 0, first_line: 3 },
        }
    }

    #[test]
    fn of_two_functions_that_look_the_same_to_a_sample_neither_is_believed() {
        let mut met = Met::default();
        let names = |met: &Met| met.find((64, PRINT), 4096).map(|described| described.function.name.to_string());
        met.note((64, PRINT), &own("one", 4096), (4096, 5));
        assert_eq!(names(&met).as_deref(), Some("one"));
        for name in ["other", "one", "other"] {
            met.note((64, PRINT), &own(name, 4096), (4096, 5));
            assert_eq!(names(&met), None, "{name}");
        }
    }

    #[test]
    fn the_last_places_of_its_instructions_are_known() {
        let mut met = Met::default();
        let place = |at: u64| 4096 * (1 + at);
        (0..6).for_each(|at| met.note((64, PRINT), &own("one", place(at)), (place(at), 4)));
        // It is met again where it was before.
        met.note((64, PRINT), &own("one", place(2)), (place(2) + 32, 0));
        met.note((64, PRINT), &own("one", place(6)), (place(6), 4));
        let known = (0..7).filter(|at| met.find((64, PRINT), place(*at)).is_some());
        assert_eq!(known.collect::<Vec<_>>(), [2, 4, 5, 6]);
        let line = |instruction| met.find((64, PRINT), instruction).map(|described| described.line);
        assert_eq!([line(place(2)), line(place(2) + 32), line(place(2) + 128)], [Some(4), Some(0), None]);
    }

    #[test]
    fn a_function_whose_instructions_lie_elsewhere_each_time_takes_no_more_and_more() {
        let mut met = Met::default();
        let mut note = |at: u64| {
            met.note((64, PRINT), &own("one", 4096 * at), (4096 * at, 5));
            met.bytes()
        };
        let full = (1..=4).map(&mut note).last();
        assert_eq!((5..10).map(&mut note).last(), full);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut met = Met::default();
        for at in 0..100_000 {
            met.note((64 * at, PRINT), &own("one", 4096), (4096, 5));
            assert!(met.bytes() < MAX_REMEMBERED + 4096);
        }
        assert!(met.known.len() < MAX_REMEMBERED / ENTRY + 2 && met.find((64 * 99_999, PRINT), 4096).is_some());
    }
}
