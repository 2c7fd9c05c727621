//! Unwinding data that is registered with libgcc: rows of code, and no names.

use jitprof_runtimes::libgcc::{Function, Registry, Update};
use jitprof_runtimes::{Memory, Reader};

use super::modules::Modules;
use super::{CodeChange, FoundRows, Missed};

/// Copies of libgcc of one process that are looked at: Python's packages bring some, and most of them are not used.
const MAX_COPIES: usize = 64;
/// Of them, those of which is kept what is registered there.
const MAX_USED: usize = 4;

/// Those of one process, used or not.
#[derive(Default)]
pub(super) struct Libgcc {
    registries: Vec<Registry>,
    /// There are more copies, which nobody looks at.
    is_full: bool,
}

impl Libgcc {
    /// Takes up those of modules that were loaded since.
    pub(super) fn look_again(&mut self, modules: &Modules) {
        self.take_up(modules.iter().filter_map(|module| Registry::find(module, module.data())).collect());
    }

    /// One whose module is loaded no more leaves its place to another one as soon as it is known that nothing is
    /// registered there.
    fn take_up(&mut self, found: Vec<Registry>) {
        self.registries.retain(|known| !known.is_empty() || found.iter().any(|found| found.data() == known.data()));
        self.is_full = false;
        for found in found {
            if self.registries.iter().any(|known| known.data() == found.data()) {
                continue;
            }
            if self.registries.len() < MAX_COPIES {
                self.registries.push(found);
            } else {
                self.is_full = true;
            }
        }
    }

    /// Whether any has something registered now.
    pub(super) fn is_used<M: Memory>(&self, reader: &Reader<M>) -> bool {
        self.registries.iter().any(|registry| registry.is_used(reader))
    }

    /// Whether nothing was registered at the last reading.
    pub(super) fn is_empty(&self) -> bool {
        self.registries.iter().all(Registry::is_empty)
    }

    /// Bytes that are kept, nearly.
    pub(super) fn bytes(&self) -> usize {
        self.registries.iter().map(Registry::bytes).sum()
    }

    /// What has changed since the last reading, and what was not got. One that does not come to its end says nothing of
    /// what it has not come to.
    pub(super) fn read<M: Memory>(&mut self, reader: &Reader<M>) -> (Vec<CodeChange>, Missed) {
        let mut unread = Missed { is_cut: self.is_full, ..Missed::default() };
        let updates = self.updates(reader, &mut unread);
        updates.iter().for_each(|update| unread.note(update.damaged, update.incomplete.is_some()));
        (changes(updates), unread)
    }

    /// What each says. Those that have something come first: one that has nothing any more leaves its place to the
    /// others. Where there is no place, what is left out is what may have something.
    fn updates<M: Memory>(&mut self, reader: &Reader<M>, unread: &mut Missed) -> Vec<Update> {
        self.registries.sort_by_key(Registry::is_empty);
        let (mut updates, mut used) = (Vec::new(), 0);
        for registry in &mut self.registries {
            if used < MAX_USED {
                updates.push(registry.update(reader));
                used += usize::from(!registry.is_empty());
            } else {
                unread.is_cut |= registry.is_used(reader);
            }
        }
        updates
    }
}

/// What is different in all of them. What is gone from one may have come into another.
fn changes(updates: Vec<Update>) -> Vec<CodeChange> {
    let (mut gone, mut come) = (Vec::new(), Vec::new());
    for update in updates {
        gone.extend(update.gone.into_iter().map(CodeChange::Unregistered));
        come.extend(update.come.into_iter().map(rows).map(CodeChange::Registered));
    }
    gone.append(&mut come);
    gone
}

fn rows(function: Function) -> FoundRows {
    let Function { start, size, frame } = function;
    FoundRows { start, size, bytes: frame.bytes.into_vec().into(), section_start: frame.section_start }
}

#[cfg(test)]
mod tests {
    use std::io;

    use jitprof_common::units::Avma;
    use jitprof_runtimes::{Budget, Frame, Symbols};

    use super::*;

    struct Module;

    impl Symbols for Module {
        fn address_of(&self, name: &str) -> Option<Avma> {
            (name == "__register_frame_info_bases").then_some(Avma(0x1000))
        }
    }

    /// How far it is from one copy to the next, and from one function to the next; where behind its beginning a copy
    /// has an object and a section.
    const COPY: u64 = 0x10_0000;
    const OBJECT: u64 = 0x1000;
    const SECTION: u64 = 0x2000;
    const CODE: u64 = 0x7f00_0000_0000;
    const BUDGET: Budget = Budget { pages: 1000, steps: 10_000 };

    /// A process in which a function is registered with each of the copies with these numbers, and nothing with others.
    struct Process<'u>(&'u [u64]);

    impl Memory for Process<'_> {
        fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
            into.fill(0);
            for (start, bytes) in self.0.iter().flat_map(|copy| parts_of(*copy)) {
                for (at, byte) in (start..).zip(bytes) {
                    let place = at.checked_sub(address.0).and_then(|place| usize::try_from(place).ok());
                    if let Some(room) = place.and_then(|place| into.get_mut(place)) {
                        *room = byte;
                    }
                }
            }
            Ok(into.len())
        }
    }

    /// What is in memory of a copy that is used: its variables, an object that nobody has looked up, and a section.
    fn parts_of(copy: u64) -> [(u64, Vec<u8>); 3] {
        let start = copy * COPY;
        let bytes_of = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let object = [u64::MAX, 0, 0, start + SECTION, 0x7f8, 0];
        let common = [16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1, 0, 0];
        let entry = [20, 0, 0, 0, 24, 0, 0, 0];
        let section = [&common[..], &entry, bytes_of(&[CODE + start, 0x40]).as_slice(), &[0; 4]].concat();
        [(start, bytes_of(&[start + OBJECT])), (start + OBJECT, bytes_of(&object)), (start + SECTION, section)]
    }

    /// The registries of the copies with these numbers.
    fn copies(numbers: impl IntoIterator<Item = u64>) -> Vec<Registry> {
        let data = |number: u64| Avma(number * COPY)..Avma(number * COPY + 0x100);
        numbers.into_iter().map(|number| Registry::find(Module, data(number)).unwrap()).collect()
    }

    /// What a reading of a process says in which these copies are used: which of them have something more or no more.
    fn read(libgcc: &mut Libgcc, used: &[u64]) -> (Vec<u64>, Vec<u64>, Missed) {
        let (changes, missed) = libgcc.read(&Reader::new(Process(used), BUDGET));
        let copy = |start: Avma| (start.0 - CODE) / COPY;
        let (mut come, mut gone) = (Vec::new(), Vec::new());
        for change in changes {
            match change {
                CodeChange::Registered(found) => come.push(copy(found.start)),
                CodeChange::Unregistered(start) => gone.push(copy(start)),
                CodeChange::Loaded(_) | CodeChange::Unloaded(_) => panic!("{change:?}"),
            }
        }
        come.sort_unstable();
        gone.sort_unstable();
        (come, gone, missed)
    }

    fn known(libgcc: &Libgcc) -> Vec<u64> {
        let mut known: Vec<u64> = libgcc.registries.iter().map(|registry| registry.data().start.0 / COPY).collect();
        known.sort_unstable();
        known
    }

    #[test]
    fn copies_that_are_not_used_take_no_place_from_those_that_are() {
        let (mut libgcc, cut) = (Libgcc::default(), Missed { entries: 0, is_cut: true });
        libgcc.take_up(copies(1..=40));
        assert_eq!(read(&mut libgcc, &[]), (vec![], vec![], Missed::default()));
        assert_eq!(read(&mut libgcc, &[37, 38, 39, 40]), (vec![37, 38, 39, 40], vec![], Missed::default()));
        let fifth = read(&mut libgcc, &[1, 37, 38, 39, 40]);
        assert_eq!(fifth, (vec![], vec![], cut), "there is no place for what the first has");
        assert_eq!(read(&mut libgcc, &[1, 38, 39, 40]), (vec![1], vec![37], Missed::default()));
    }

    #[test]
    fn no_more_copies_than_some_are_looked_at_whatever_a_process_maps() {
        let mut libgcc = Libgcc::default();
        libgcc.take_up(copies(1..=1000));
        assert_eq!(libgcc.registries.len(), MAX_COPIES);
        assert_eq!(read(&mut libgcc, &[1000]), (vec![], vec![], Missed { entries: 0, is_cut: true }));
        // Those that are loaded no more leave their places to others.
        libgcc.take_up(copies([1000, 2]));
        assert_eq!(known(&libgcc), [2, 1000]);
        assert_eq!(read(&mut libgcc, &[1000]), (vec![1000], vec![], Missed::default()));
    }

    #[test]
    fn a_copy_that_has_something_is_known_until_that_was_taken_back() {
        let mut libgcc = Libgcc::default();
        libgcc.take_up(copies([1, 2]));
        assert_eq!(read(&mut libgcc, &[1, 2]), (vec![1, 2], vec![], Missed::default()));
        // The first is loaded no more: what it had is still to be taken back.
        libgcc.take_up(copies([2]));
        assert_eq!((known(&libgcc), libgcc.is_empty()), (vec![1, 2], false));
        assert_eq!(read(&mut libgcc, &[2]), (vec![], vec![1], Missed::default()));
        assert_eq!(known(&libgcc), [1, 2], "nobody has looked at the modules since");
        libgcc.take_up(copies([2]));
        assert_eq!((known(&libgcc), libgcc.is_empty()), (vec![2], false));
        assert_eq!(read(&mut libgcc, &[2]), (vec![], vec![], Missed::default()), "the other has what it had");
        // One that is loaded stays, whatever it has.
        assert_eq!(read(&mut libgcc, &[]), (vec![], vec![2], Missed::default()));
        libgcc.take_up(copies([2]));
        assert_eq!((known(&libgcc), libgcc.is_empty()), (vec![2], true));
    }

    #[test]
    fn what_is_gone_from_one_registry_and_has_come_into_another_is_there() {
        let frame = Frame { bytes: [1, 2].into(), section_start: Avma(3) };
        let come = vec![Function { start: Avma(0x1000), size: 4, frame }];
        let one = Update { come, ..Update::default() };
        let other = Update { gone: vec![Avma(0x1000)], ..Update::default() };
        let changes = changes(vec![one, other]);
        let [CodeChange::Unregistered(gone), CodeChange::Registered(come)] = changes.as_slice() else {
            panic!("{changes:?}")
        };
        assert_eq!((*gone, come.start, come.size), (Avma(0x1000), Avma(0x1000), 4));
    }
}
