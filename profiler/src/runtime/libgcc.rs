//! Unwinding data that is registered with libgcc: rows of code, and no names.

use jitprof_runtimes::libgcc::{Function, Registry, Update};
use jitprof_runtimes::{Memory, Reader};

use super::modules::Modules;
use super::{CodeChange, FoundRows};

/// Registries of one process: Python's packages bring copies of libgcc.
const MAX_REGISTRIES: usize = 4;

/// Those of one process, used or not.
#[derive(Default)]
pub(super) struct Libgcc {
    registries: Vec<Registry>,
}

impl Libgcc {
    /// Takes up those of modules that were loaded since.
    pub(super) fn look_again(&mut self, modules: &Modules) {
        for found in modules.iter().filter_map(|module| Registry::find(module, module.data())) {
            let is_new = self.registries.iter().all(|known| known.data() != found.data());
            if is_new && self.registries.len() < MAX_REGISTRIES {
                self.registries.push(found);
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

    /// What has changed since the last reading. One that does not come to its end says nothing of what it has not come to.
    pub(super) fn read<M: Memory>(&mut self, reader: &Reader<M>) -> Vec<CodeChange> {
        changes(self.registries.iter_mut().map(|registry| registry.update(reader)).collect())
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
    use jitprof_common::units::Avma;
    use jitprof_runtimes::Frame;

    use super::*;

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
