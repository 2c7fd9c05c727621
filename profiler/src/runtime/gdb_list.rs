//! Code that is registered with a debugger.

use std::collections::HashMap;

use jitprof_common::units::Avma;
use jitprof_runtimes::gdb_jit::{Change, Function, Image, Images};
use jitprof_runtimes::{Memory, Reader};

use super::code::Room;
use super::modules::Modules;
use super::{CodeChange, EVERYWHERE, FoundCode, FoundLines, RuntimeRead};

/// Lists of one process: each module with a copy of LLVM has one.
const MAX_LISTS: usize = 8;
/// Bytes of a function whose code is read at once; that of others is read where it is met.
const MAX_CODE_BYTES: usize = 16 << 10;
/// Bytes of code that one reading hands on; that of further functions is read where it is met. Symbols may overlap.
const MAX_ALL_CODE: usize = 32 << 20;
/// Readings, from one on in which something was gone, in which what comes may lie where something else has come and gone since
/// the reading before: who frees code frees more, as a rule soon and some of it unseen. The list counts nothing that would tell.
const UNSTEADY: u32 = 64;

/// The lists of one process.
#[derive(Default)]
pub(super) struct Lists {
    lists: Vec<Images>,
    /// Which list and which object file of it has the function that begins at an address. Another one may have taken
    /// the place before it is found out that the first is gone.
    owners: HashMap<u64, (usize, u64)>,
    /// Readings in which what comes is known from then on only.
    unsteady: u32,
}

impl Lists {
    pub(super) fn find(modules: &Modules) -> Option<Self> {
        let mut lists = Self::default();
        lists.look_again(modules);
        (!lists.lists.is_empty()).then_some(lists)
    }

    /// Takes up the lists of modules that were loaded since.
    pub(super) fn look_again(&mut self, modules: &Modules) {
        for found in modules.iter().filter_map(Images::find) {
            let is_new = self.lists.iter().all(|known| known.descriptor() != found.descriptor());
            if is_new && self.lists.len() < MAX_LISTS {
                self.lists.push(found);
            }
        }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Bytes that are kept, nearly.
    pub(super) fn bytes(&self) -> usize {
        self.lists.iter().map(Images::bytes).sum::<usize>() + self.owners.len() * 48
    }

    pub(super) fn read<M: Memory>(&mut self, reader: &Reader<M>) -> RuntimeRead {
        let mut read = RuntimeRead { runtime: Some("what is registered for GDB".to_owned()), ..RuntimeRead::default() };
        let mut room = Room::new(MAX_CODE_BYTES, MAX_ALL_CODE);
        self.unsteady = self.unsteady.saturating_sub(1);
        for (list, images) in self.lists.iter_mut().enumerate() {
            let update = images.update(reader);
            read.incomplete |= update.incomplete.is_some();
            for change in &update.changes {
                match change {
                    Change::Loaded(image) => {
                        for found in functions(image, reader, &mut room) {
                            if self.owners.insert(found.start.0, (list, image.id)).is_some() {
                                read.changes.push(CodeChange::Unloaded(found.start));
                            }
                            read.changes.push(CodeChange::Loaded(found));
                        }
                    }
                    Change::Unloaded(image) => {
                        self.unsteady = UNSTEADY;
                        for Function { address, .. } in image.functions() {
                            if self.owners.get(&address.0) == Some(&(list, image.id)) {
                                self.owners.remove(&address.0);
                                read.changes.push(CodeChange::Unloaded(Avma(address.0)));
                            }
                        }
                    }
                }
            }
        }
        if self.unsteady > 0 {
            read.may_have_passed.push(EVERYWHERE);
        }
        read
    }
}

fn functions<M: Memory>(image: &Image, reader: &Reader<M>, room: &mut Room) -> Vec<FoundCode> {
    let functions = image.functions().iter().filter_map(|function| {
        let size = u32::try_from(function.size).ok().filter(|size| *size > 0)?;
        let frame = room.frame((function.address, function.size), reader);
        Some(FoundCode {
            start: function.address,
            size,
            name: function.name.to_string(),
            frame,
            number: 0,
            lines: FoundLines::default(),
        })
    });
    functions.collect()
}

#[cfg(test)]
mod tests {
    use std::io;

    use jitprof_runtimes::{Budget, Symbols};

    use super::*;

    /// Where the list's head is, and where its entries are, each so many bytes behind the one before.
    const HEAD: u64 = 0x1_0000;
    const ENTRIES: u64 = 0x2_0000;
    const ENTRY: u64 = 0x100;

    /// A list of these entries, each with an object file behind it that has no functions.
    struct Listed(Vec<u64>);

    impl Listed {
        fn word(&self, at: u64) -> u64 {
            let place = |entry: &u64| ENTRIES + entry * ENTRY;
            if at == HEAD {
                return 1;
            }
            if at == HEAD + 16 {
                return self.0.first().map_or(0, place);
            }
            let Some(index) = self.0.iter().position(|entry| (place(entry)..place(entry) + ENTRY).contains(&at)) else {
                return 0;
            };
            match at % ENTRY {
                0 => self.0.get(index + 1).map_or(0, place),
                16 => place(&self.0[index]) + 64,
                24 => 64,
                _ => 0,
            }
        }
    }

    impl Memory for Listed {
        fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
            for (at, byte) in (address.0..).zip(into.iter_mut()) {
                *byte = self.word(at - at % 8).to_le_bytes()[usize::try_from(at % 8).unwrap()];
            }
            Ok(into.len())
        }
    }

    impl Symbols for Listed {
        fn address_of(&self, _name: &str) -> Option<Avma> {
            Some(Avma(HEAD))
        }
    }

    fn read(lists: &mut Lists, entries: &[u64]) -> Vec<(Avma, u64)> {
        let reader = Reader::new(Listed(entries.to_vec()), Budget { pages: 1000, steps: 10_000 });
        let read = lists.read(&reader);
        assert!(!read.incomplete);
        read.may_have_passed
    }

    #[test]
    fn what_comes_after_something_was_gone_may_lie_where_something_else_has_passed() {
        let lists = vec![Images::find(Listed(Vec::new())).unwrap()];
        let mut lists = Lists { lists, ..Lists::default() };
        for entries in [&[][..], &[1], &[2, 1], &[3, 2, 1]] {
            assert!(read(&mut lists, entries).is_empty(), "only more: {entries:?}");
        }
        assert_eq!(read(&mut lists, &[3, 1]), [EVERYWHERE], "something is gone");
        for _ in 1..UNSTEADY {
            assert_eq!(read(&mut lists, &[4, 3, 1]), [EVERYWHERE]);
        }
        assert!(read(&mut lists, &[5, 4, 3, 1]).is_empty(), "for long nothing was");
    }
}
