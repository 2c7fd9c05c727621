//! Code that is registered with a debugger.

use std::collections::HashMap;

use jitprof_common::units::Avma;
use jitprof_runtimes::gdb_jit::{Change, Function, Image, Images};
use jitprof_runtimes::{Memory, Reader};

use super::code::Room;
use super::modules::Modules;
use super::{CodeChange, FoundCode, FoundLines, RuntimeRead};

/// Lists of one process: each module with a copy of LLVM has one.
const MAX_LISTS: usize = 8;
/// Bytes of a function whose code is read at once; that of others is read where it is met.
const MAX_CODE_BYTES: usize = 16 << 10;
/// Bytes of code that one reading hands on; that of further functions is read where it is met. Symbols may overlap.
const MAX_ALL_CODE: usize = 32 << 20;

/// The lists of one process.
#[derive(Default)]
pub(super) struct Lists {
    lists: Vec<Images>,
    /// Which list and which object file of it has the function that begins at an address. Another one may have taken
    /// the place before it is found out that the first is gone.
    owners: HashMap<u64, (usize, u64)>,
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
