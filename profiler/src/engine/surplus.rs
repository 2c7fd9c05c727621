//! Which samples are resolved with what is known, where more wait than there is room for: those of who has the most.

use std::collections::BTreeMap;

use jitprof_common::units::MonoNs;

use crate::engine::pending::Pending;
use crate::engine::process::{Process, Whose};
use crate::engine::processes::Processes;
use crate::process::ProcessId;

/// What samples somebody has.
#[derive(Default)]
struct Group<'a> {
    processes: Vec<&'a Process>,
    /// When those were taken whose process is not known yet.
    arriving: Vec<MonoNs>,
}

impl Group<'_> {
    fn len(&self) -> usize {
        self.arriving.len() + self.processes.iter().map(|process| process.queue.len()).sum::<usize>()
    }

    /// Before which time so many of them were taken, at least.
    fn oldest(&self, count: usize) -> MonoNs {
        let Some(last) = count.checked_sub(1) else { return MonoNs(0) };
        let queued = self.processes.iter().flat_map(|process| process.queue.iter().map(|sample| sample.time));
        let mut times: Vec<MonoNs> = queued.chain(self.arriving.iter().copied()).collect();
        if last >= times.len() {
            return MonoNs(u64::MAX);
        }
        MonoNs(times.select_nth_unstable(last).1.0.saturating_add(1))
    }
}

/// Samples that give way.
#[derive(Debug, Default)]
pub(super) struct Surplus {
    /// Of these processes, those from before a time.
    pub(super) queued: Vec<(ProcessId, MonoNs)>,
    /// Of processes that are not known yet, those from before this time.
    pub(super) arriving: MonoNs,
}

impl Surplus {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.queued.is_empty() && self.arriving == MonoNs(0)
    }

    /// The oldest samples of who has the most, without which there are no more than `most`. What each user has is held against
    /// what all others have, with root as one of them; then root's processes, which are of many containers, against each other.
    pub(super) fn of_samples(processes: &Processes, most: usize) -> Self {
        let mut groups: BTreeMap<Whose, Group<'_>> = BTreeMap::new();
        for process in waiting(processes) {
            groups.entry(process.whose()).or_default().processes.push(process);
        }
        let arriving = processes.arriving_samples().map(|sample| sample.time);
        groups.entry(Whose::NotKnown).or_default().arriving.extend(arriving);
        let part = fair_part(groups.values().map(Group::len).collect(), most);
        let mut surplus = Self::default();
        for (whose, group) in &groups {
            match whose {
                Whose::NotKnown => surplus.arriving = surplus.add(group, part),
                Whose::Root => surplus.add_each(group, part),
                Whose::User(_) => {
                    surplus.add(group, part);
                }
            }
        }
        surplus
    }

    /// Adds what is more than a part. Returns before which time that was taken.
    fn add(&mut self, group: &Group<'_>, part: usize) -> MonoNs {
        let until = group.oldest(group.len().saturating_sub(part));
        if until > MonoNs(0) {
            self.queued.extend(group.processes.iter().map(|process| (process.id, until)));
        }
        until
    }

    /// The same for processes of which each has its own part of this.
    fn add_each(&mut self, group: &Group<'_>, most: usize) {
        let part = fair_part(group.processes.iter().map(|process| process.queue.len()).collect(), most);
        for process in &group.processes {
            self.add(&Group { processes: vec![*process], arriving: Vec::new() }, part);
        }
    }

    /// All samples of the processes that keep the most of something by them, without which there is no more than `most` of it.
    /// As above, what each user has is held against what all others have; of what is too much, his largest processes go.
    /// Those of processes that are not known yet go together.
    pub(super) fn of_greediest(processes: &Processes, most: usize, mut kept_by: impl FnMut(&Pending) -> usize) -> Self {
        let mut held: BTreeMap<Whose, Vec<(usize, Option<ProcessId>)>> = BTreeMap::new();
        for process in waiting(processes) {
            let kept = process.queue.iter().map(&mut kept_by).sum();
            held.entry(process.whose()).or_default().push((kept, Some(process.id)));
        }
        let arriving = processes.arriving_samples().map(&mut kept_by).sum();
        held.entry(Whose::NotKnown).or_default().push((arriving, None));
        let sum = |own: &Vec<(usize, Option<ProcessId>)>| own.iter().map(|(kept, _)| *kept).sum::<usize>();
        let part = fair_part(held.values().map(sum).collect(), most);
        let mut surplus = Self::default();
        for mut own in held.into_values() {
            let mut left = sum(&own);
            own.sort_unstable();
            while left > part
                && let Some((kept, id)) = own.pop()
            {
                left = left.saturating_sub(kept);
                match id {
                    Some(id) => surplus.queued.push((id, MonoNs(u64::MAX))),
                    None => surplus.arriving = MonoNs(u64::MAX),
                }
            }
        }
        surplus
    }
}

fn waiting(processes: &Processes) -> impl Iterator<Item = &Process> {
    processes.iter().filter(|process| !process.queue.is_empty())
}

/// How much each may have, so that all together have no more than `most`: what one has less the others may have more.
fn fair_part(mut held: Vec<usize>, most: usize) -> usize {
    held.sort_unstable();
    let mut left = most;
    for (index, own) in held.iter().enumerate() {
        let part = left / (held.len() - index);
        if *own > part {
            return part;
        }
        left -= own;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_little_keeps_it_and_the_others_have_equal_parts_of_the_rest() {
        let left = |held: &[usize], most| {
            let part = fair_part(held.to_vec(), most);
            held.iter().map(|own| *own.min(&part)).collect::<Vec<usize>>()
        };
        assert_eq!(left(&[10, 20], 30), [10, 20]);
        assert_eq!(left(&[1000], 30), [30]);
        assert_eq!(left(&[1000, 2, 0, 50], 30), [14, 2, 0, 14]);
        assert_eq!(left(&[5, 1000, 6], 30), [5, 19, 6]);
        assert_eq!(left(&[9, 9], 0), [0, 0]);
        assert!(left(&[], 30).is_empty());
    }
}
