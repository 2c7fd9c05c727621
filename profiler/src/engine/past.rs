//! Which of the processes that have ended go first where they take too much room: those of who has the most.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::engine::process::{Process, Whose};
use crate::process::ProcessId;

/// Ended processes, by whose they are.
pub(super) struct Past<'a>(Vec<Group<'a>>);

#[derive(Default)]
struct Group<'a> {
    /// Who goes first is the last.
    members: Vec<&'a Process>,
    /// What they have mapped; what several have from one fork counts once.
    mappings: usize,
    /// Who has each list of mappings.
    lists: FxHashMap<usize, usize>,
}

impl<'a> Past<'a> {
    /// These.
    pub(super) fn of(ended: impl Iterator<Item = &'a Process>) -> Self {
        let mut groups: BTreeMap<Whose, Group<'a>> = BTreeMap::new();
        for process in ended {
            groups.entry(process.whose()).or_default().add(process);
        }
        Self(groups.into_values().collect())
    }

    /// What they have mapped.
    pub(super) fn mappings(&self) -> usize {
        self.0.iter().map(|group| group.mappings).sum()
    }

    /// Those without which there are no more than `most`, with as many mappings: of the latter the largest go first, then the
    /// oldest.
    pub(super) fn surplus(mut self, most: usize, most_mappings: usize) -> Vec<ProcessId> {
        self.sort_by_key(|process| (process.space.size(), Reverse(process.ended_as)));
        let mut gone = self.take(|group| group.mappings, most_mappings);
        self.sort_by_key(|process| Reverse(process.ended_as));
        gone.extend(self.take(|group| group.members.len(), most));
        gone
    }

    fn sort_by_key<K: Ord>(&mut self, key: impl Fn(&Process) -> K) {
        for group in &mut self.0 {
            group.members.sort_unstable_by_key(|process| key(process));
        }
    }

    /// Takes the last one of who has the most until they have no more than this.
    fn take(&mut self, held_by: impl Fn(&Group<'a>) -> usize, most: usize) -> Vec<ProcessId> {
        let mut gone = Vec::new();
        let mut held: usize = self.0.iter().map(&held_by).sum();
        while held > most {
            let greediest = self.0.iter_mut().max_by_key(|group| held_by(group));
            let Some(greediest) = greediest.filter(|group| !group.members.is_empty()) else { break };
            held = held.saturating_sub(held_by(greediest));
            gone.extend(greediest.remove_last());
            held += held_by(greediest);
        }
        gone
    }
}

impl<'a> Group<'a> {
    fn add(&mut self, process: &'a Process) {
        let (shared, list) = process.space.shared();
        let users = self.lists.entry(list).or_default();
        *users += 1;
        self.mappings += process.space.size() - if *users > 1 { shared } else { 0 };
        self.members.push(process);
    }

    fn remove_last(&mut self) -> Option<ProcessId> {
        let process = self.members.pop()?;
        let (shared, list) = process.space.shared();
        let users = self.lists.entry(list).or_default();
        *users = users.saturating_sub(1);
        let is_shared = *users > 0;
        self.mappings -= process.space.size() - if is_shared { shared } else { 0 };
        Some(process.id)
    }
}
