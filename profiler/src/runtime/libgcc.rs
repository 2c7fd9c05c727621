//! Unwinding data that is registered with libgcc: rows of code, and no names.

use jitprof_runtimes::libgcc::{Function, Registry, Update};
use jitprof_runtimes::{Memory, Reader};

use super::modules::Modules;
use super::{CodeChange, FoundRows, Missed};

/// Registries of one process: Python's packages bring copies of libgcc.
const MAX_REGISTRIES: usize = 4;

/// Those of one process, used or not.
#[derive(Default)]
pub(super) struct Libgcc {
    registries: Vec<Registry>,
    /// There are more, which found no room.
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
            if self.registries.len() < MAX_REGISTRIES {
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
        let updates: Vec<Update> = self.registries.iter_mut().map(|registry| registry.update(reader)).collect();
        let mut unread = Missed { is_cut: self.is_full, ..Missed::default() };
        updates.iter().for_each(|update| unread.note(update.damaged, update.incomplete.is_some()));
        (changes(updates), unread)
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

    /// A process of which nothing can be read.
    struct Unreadable;

    impl Memory for Unreadable {
        fn read(&self, _address: Avma, _into: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    /// The registries of the copies with these numbers.
    fn copies(numbers: impl IntoIterator<Item = u64>) -> Vec<Registry> {
        let data = |number: u64| Avma(number * 0x1000)..Avma(number * 0x1000 + 0x100);
        numbers.into_iter().map(|number| Registry::find(Module, data(number)).unwrap()).collect()
    }

    #[test]
    fn a_copy_that_is_loaded_no_more_leaves_its_place_to_one_that_had_none() {
        let (mut libgcc, reader) = (Libgcc::default(), Reader::new(Unreadable, Budget { pages: 100, steps: 10_000 }));
        libgcc.take_up(copies(1..=5));
        assert_eq!(libgcc.registries.len(), MAX_REGISTRIES);
        let read = libgcc.read(&reader);
        assert_eq!(read, (Vec::new(), Missed { entries: 0, is_cut: true }), "the fifth is not read");
        libgcc.take_up(copies([5, 2]));
        let kept: Vec<u64> = libgcc.registries.iter().map(|registry| registry.data().start.0).collect();
        assert_eq!((kept, libgcc.read(&reader)), (vec![0x2000, 0x5000], (Vec::new(), Missed::default())));
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
