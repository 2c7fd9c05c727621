//! Modules that are loaded again and again: what is at a place in two readings may not have been there all the time between,
//! and the emulator counts nothing that would tell.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Change, Module, Update};

/// Further readings in which a module must be as it was before it is believed, once modules are loaded anew. Where ten versions
/// take turns, one in a thousand looks so.
const FURTHER: u32 = 3;
/// Readings after one in which something was gone during which what comes is not believed at once: it may have been gone for a
/// moment.
const UNSTEADY: u32 = 64;

/// Modules that have come while others went, or after that, and are not believed yet.
#[derive(Debug, Default)]
pub struct Reloads {
    /// By their first byte, with in how many readings they are still to be seen.
    held: BTreeMap<u64, (Arc<Module>, u32)>,
    /// Readings in which that is still so.
    unsteady: u32,
}

impl Reloads {
    /// Takes out of a reading what is not believed yet, and adds what is now. Returns whether anything was added: nothing is
    /// known of when that has come.
    pub fn take(&mut self, update: &mut Update) -> bool {
        let is_whole = update.incomplete.is_none();
        let has_gone = update.changes.iter().any(|change| matches!(change, Change::Unloaded(_)));
        self.unsteady = if has_gone { UNSTEADY } else { self.unsteady.saturating_sub(1) };
        update.changes.retain(|change| match change {
            Change::Unloaded(module) => self.held.remove(&module.start.0).is_none(),
            Change::Loaded(_) => true,
        });
        if is_whole {
            self.held.values_mut().for_each(|(_, left)| *left -= 1);
        }
        let believed: Vec<_> = self.held.extract_if(.., |_, (_, left)| *left == 0).collect();
        if self.unsteady > 0 {
            let new = update.changes.extract_if(.., |change| matches!(change, Change::Loaded(_)));
            let new = new.filter_map(|change| match change {
                Change::Loaded(module) => Some((module.start.0, (module, FURTHER))),
                Change::Unloaded(_) => None,
            });
            self.held.extend(new);
        }
        let has_believed = !believed.is_empty();
        update.changes.extend(believed.into_iter().map(|(_, (module, _))| Change::Loaded(module)));
        has_believed
    }
}

#[cfg(test)]
mod tests {
    use jitprof_common::units::Avma;

    use super::*;
    use crate::ReadError;

    fn module(start: u64, digest: u64) -> Arc<Module> {
        let (functions, files) = (Vec::new(), Vec::new());
        Arc::new(Module { start: Avma(start), end: Avma(start + 0x100), functions, files, digest })
    }

    fn read(reloads: &mut Reloads, changes: Vec<Change>, incomplete: Option<ReadError>) -> (Vec<Change>, bool) {
        let mut update = Update { changes, shared: Vec::new(), damaged: 0, incomplete };
        let has_believed = reloads.take(&mut update);
        (update.changes, has_believed)
    }

    #[test]
    fn what_comes_while_others_go_is_believed_once_it_stays() {
        let mut reloads = Reloads::default();
        let (first, second) = (module(0x1000, 1), module(0x2000, 2));
        let loaded = |module: &Arc<Module>| Change::Loaded(Arc::clone(module));
        let unloaded = |module: &Arc<Module>| Change::Unloaded(Arc::clone(module));
        let beginning = read(&mut reloads, vec![loaded(&first)], None);
        assert_eq!(beginning, (vec![loaded(&first)], false), "nothing has gone");
        let replaced = read(&mut reloads, vec![unloaded(&first), loaded(&second)], None);
        assert_eq!(replaced, (vec![unloaded(&first)], false));
        assert_eq!(read(&mut reloads, Vec::new(), None), (Vec::new(), false));
        assert_eq!(read(&mut reloads, Vec::new(), Some(ReadError::OverBudget)), (Vec::new(), false), "it says nothing");
        assert_eq!(read(&mut reloads, Vec::new(), None), (Vec::new(), false));
        assert_eq!(read(&mut reloads, Vec::new(), None), (vec![loaded(&second)], true));
        assert_eq!(read(&mut reloads, Vec::new(), None), (Vec::new(), false), "once");
        assert_eq!(read(&mut reloads, vec![unloaded(&second)], None), (vec![unloaded(&second)], false));
    }

    #[test]
    fn what_was_gone_for_a_moment_is_not_believed_at_once() {
        let mut reloads = Reloads::default();
        let versions = [module(0x1000, 1), module(0x1000, 2)];
        read(&mut reloads, vec![Change::Loaded(Arc::clone(&versions[0]))], None);
        read(&mut reloads, vec![Change::Unloaded(Arc::clone(&versions[0]))], None);
        let come = || vec![Change::Loaded(Arc::clone(&versions[1]))];
        assert_eq!(read(&mut reloads, come(), None), (Vec::new(), false));
        let later: Vec<bool> = (0..FURTHER).map(|_| read(&mut reloads, Vec::new(), None).1).collect();
        assert_eq!(later, [false, false, true]);
        for _ in 0..UNSTEADY {
            read(&mut reloads, Vec::new(), None);
        }
        let other = || vec![Change::Loaded(module(0x2000, 3))];
        assert_eq!(read(&mut reloads, other(), None), (other(), false), "nothing has gone for long");
    }

    #[test]
    fn what_takes_turns_is_never_believed() {
        let mut reloads = Reloads::default();
        let versions = [module(0x1000, 1), module(0x1000, 2)];
        read(&mut reloads, vec![Change::Loaded(Arc::clone(&versions[0]))], None);
        for turn in 1..20 {
            let (gone, come) = (&versions[(turn + 1) % 2], &versions[turn % 2]);
            let changes = vec![Change::Unloaded(Arc::clone(gone)), Change::Loaded(Arc::clone(come))];
            let (said, has_believed) = read(&mut reloads, changes, None);
            assert_eq!((said.len(), has_believed), (usize::from(turn == 1), false), "what was believed goes once");
            read(&mut reloads, Vec::new(), None);
        }
    }
}
