//! Address spaces and the table of processes, over time.

use std::sync::Arc;

use proptest::prelude::*;

use crate::process::discover::find_dumps;
use crate::process::event::{FileKey, MmapEvent, TaskChange, TaskEvent};
use crate::process::procfs::{Maps, parse_maps};
use crate::process::{AddressSpace, Device, Mapping, MappingKind, Processes, Prot};
use crate::units::{Avma, FileOffset, MonoNs, Pid, Tid};

const EXECUTABLE: Prot = Prot { read: true, write: false, execute: true, shared: false };

fn mapping(start: u64, end: u64, inode: u64) -> Mapping {
    Mapping {
        start: Avma(start),
        end: Avma(end),
        file_offset: FileOffset(0x100),
        device: Device::default(),
        inode,
        generation: None,
        path: Arc::from(format!("/file{inode}")),
        deleted: false,
        prot: EXECUTABLE,
        kind: MappingKind::File,
    }
}

fn mmap(pid: u32, time: u64, start: u64, len: u64, inode: u64) -> TaskEvent {
    let file = FileKey::Inode { device: Device::default(), inode, generation: 1 };
    let (pid, tid, path) = (Pid(pid), Tid(pid), Arc::from(format!("/file{inode}")));
    let event =
        MmapEvent { pid, tid, start: Avma(start), len, file_offset: FileOffset(0), file, prot: EXECUTABLE, path };
    TaskEvent { time: MonoNs(time), change: TaskChange::Mmap(event) }
}

fn fork(time: u64, pid: u32, parent: u32, tid: u32, parent_tid: u32) -> TaskEvent {
    let change =
        TaskChange::Fork { pid: Pid(pid), parent_pid: Pid(parent), tid: Tid(tid), parent_tid: Tid(parent_tid) };
    TaskEvent { time: MonoNs(time), change }
}

fn exit(time: u64, pid: u32, tid: u32) -> TaskEvent {
    TaskEvent { time: MonoNs(time), change: TaskChange::Exit { pid: Pid(pid), tid: Tid(tid) } }
}

fn exec(time: u64, pid: u32, name: &str) -> TaskEvent {
    let change = TaskChange::Comm { pid: Pid(pid), tid: Tid(pid), comm: Arc::from(name), exec: true };
    TaskEvent { time: MonoNs(time), change }
}

fn inode_at(space: &AddressSpace, addr: u64, time: u64) -> Option<u64> {
    space.lookup(Avma(addr), MonoNs(time)).map(|mapping| mapping.inode)
}

#[test]
fn a_mapping_over_the_middle_of_another_leaves_both_ends_with_their_offsets() {
    let mut space = AddressSpace::default();
    space.mmap(mapping(0x1000, 0x9000, 1), MonoNs(10));
    space.mmap(mapping(0x3000, 0x5000, 2), MonoNs(20));
    assert_eq!(inode_at(&space, 0x3000, 15), Some(1));
    assert_eq!(inode_at(&space, 0x3000, 20), Some(2));
    assert_eq!(inode_at(&space, 0x2fff, 25), Some(1));
    let tail = space.lookup(Avma(0x5000), MonoNs(25)).unwrap();
    assert_eq!((tail.inode, tail.file_offset), (1, FileOffset(0x100 + 0x4000)));
    assert_eq!(inode_at(&space, 0x9000, 25), None);
    assert_eq!(inode_at(&space, 0x3000, 5), None, "before it was mapped");
}

#[test]
fn events_that_a_snapshot_already_holds_do_not_undo_it() {
    let maps = Maps { mappings: vec![mapping(0x1000, 0x2000, 2)], ..Maps::default() };
    let mut space = AddressSpace::from_maps(&maps, MonoNs(100));
    space.mmap(mapping(0x1000, 0x2000, 1), MonoNs(90));
    space.exec(MonoNs(80));
    assert_eq!(inode_at(&space, 0x1000, 95), Some(2));
    space.mmap(mapping(0x1000, 0x2000, 3), MonoNs(110));
    assert_eq!((inode_at(&space, 0x1000, 105), inode_at(&space, 0x1000, 110)), (Some(2), Some(3)));
}

#[test]
fn reconciling_ends_what_is_gone_and_begins_what_is_new() {
    let before = Maps { mappings: vec![mapping(0x1000, 0x2000, 1), mapping(0x3000, 0x4000, 2)], ..Maps::default() };
    let after = Maps { mappings: vec![mapping(0x1000, 0x2000, 1), mapping(0x5000, 0x6000, 3)], ..Maps::default() };
    let mut space = AddressSpace::from_maps(&before, MonoNs(10));
    space.reconcile(&after, MonoNs(50));
    assert_eq!((inode_at(&space, 0x1000, 20), inode_at(&space, 0x1000, 60)), (Some(1), Some(1)));
    assert_eq!((inode_at(&space, 0x3000, 20), inode_at(&space, 0x3000, 60)), (Some(2), None));
    assert_eq!((inode_at(&space, 0x5000, 20), inode_at(&space, 0x5000, 60)), (None, Some(3)));
}

#[test]
fn history_is_bounded_and_its_loss_is_counted() {
    let mut space = AddressSpace::default();
    for time in 0..5000 {
        space.mmap(mapping(0x1000, 0x2000, time), MonoNs(time));
    }
    assert_eq!(space.forgotten(), 4999 - 4096);
    assert_eq!(inode_at(&space, 0x1000, 4000), Some(4000));
    assert_eq!(inode_at(&space, 0x1000, 100), None);
}

/// What is mapped at each of 64 pages, at each time: the same by brute force.
#[derive(Default)]
struct Naive(Vec<(u64, u64, u64, u64)>);

impl Naive {
    fn at(&self, page: u64, time: u64) -> Option<u64> {
        let seen = self.0.iter().rev().find(|(from, start, end, _)| *from <= time && (*start..*end).contains(&page));
        seen.map(|(_, _, _, inode)| *inode).filter(|inode| *inode != 0)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_address_space_equals_a_list_of_everything_that_happened(
        steps in prop::collection::vec((0..64_u64, 1..20_u64, 0..9_u8), 1..80)
    ) {
        let (mut space, mut naive) = (AddressSpace::default(), Naive::default());
        for (index, (start, len, what)) in steps.iter().enumerate() {
            let (time, inode) = (10 * (index as u64 + 1), index as u64 + 1);
            let (from, to) = (start * 0x1000, (start + len) * 0x1000);
            match what {
                0 => {
                    space.exec(MonoNs(time));
                    naive.0.push((time, 0, 1000, 0));
                }
                1 | 2 => {
                    space.unmap(Avma(from), Avma(to), MonoNs(time));
                    naive.0.push((time, *start, start + len, 0));
                }
                _ => {
                    space.mmap(mapping(from, to, inode), MonoNs(time));
                    naive.0.push((time, *start, start + len, inode));
                }
            }
        }
        for time in (0..=steps.len() as u64).flat_map(|step| [10 * step, 10 * step + 5]) {
            for page in 0..90 {
                let found = space.lookup(Avma(page * 0x1000 + 7), MonoNs(time));
                prop_assert_eq!(found.map(|mapping| mapping.inode), naive.at(page, time), "page {} at {}", page, time);
                if let Some(found) = found {
                    let original = steps[found.inode as usize - 1].0 * 0x1000;
                    prop_assert_eq!(found.file_offset.0, 0x100 + found.start.0 - original);
                }
            }
        }
    }
}

#[test]
fn a_child_inherits_the_mappings_and_exec_ends_them() {
    let mut all = Processes::new();
    let own = Pid(std::process::id());
    let id = all.attach(own).unwrap();
    let now = crate::process::monotonic_now().0;
    all.apply(&mmap(own.0, now + 10, 0x1000, 0x1000, 1));
    all.apply(&fork(now + 20, 9_000_001, own.0, 9_000_001, own.0));
    all.apply(&mmap(own.0, now + 30, 0x1000, 0x1000, 2));
    let child = Pid(9_000_001);
    let child_inode = |all: &Processes, time| inode_at(&all.at(child, MonoNs(time)).unwrap().space, 0x1000, time);
    assert_eq!(child_inode(&all, now + 40), Some(1), "what the parent maps later is its own");
    assert_eq!(all.at(child, MonoNs(now + 40)).unwrap().parent, Some(id));
    all.apply(&exec(now + 50, child.0, "other"));
    all.apply(&mmap(child.0, now + 60, 0x1000, 0x1000, 3));
    let at: Vec<_> = [45, 55, 65].map(|time| child_inode(&all, now + time)).into();
    assert_eq!(at, [Some(1), None, Some(3)]);
    assert_eq!(all.at(child, MonoNs(now + 70)).unwrap().comm(Tid(child.0)).map(|comm| &**comm), Some("other"));
}

#[test]
fn a_reused_pid_is_another_process() {
    let mut all = Processes::new();
    let own = Pid(std::process::id());
    all.attach(own).unwrap();
    let now = crate::process::monotonic_now().0;
    let child = Pid(9_000_001);
    let second = 1_000_000_000;
    all.apply(&fork(now + 10, child.0, own.0, child.0, own.0));
    all.apply(&mmap(child.0, now + 20, 0x1000, 0x1000, 1));
    all.apply(&exit(now + second, child.0, child.0));
    all.apply(&fork(now + 2 * second, child.0, own.0, child.0, own.0));
    all.apply(&mmap(child.0, now + 3 * second, 0x1000, 0x1000, 2));
    let early = all.at(child, MonoNs(now + 50)).unwrap();
    let late = all.at(child, MonoNs(now + 4 * second)).unwrap();
    assert_ne!(early.id, late.id);
    assert_eq!(early.exit_time, Some(MonoNs(now + second)));
    assert_eq!(
        (inode_at(&early.space, 0x1000, now + 50), inode_at(&late.space, 0x1000, now + 4 * second)),
        (Some(1), Some(2))
    );
    assert_eq!(all.get(early.id).unwrap().id, early.id);
    let between = all.at(child, MonoNs(now + second + 5)).unwrap();
    assert_eq!(between.id, early.id, "a late sample belongs to the one that just ended");
}

#[test]
fn a_process_ends_with_its_last_thread_not_with_its_leader() {
    let mut all = Processes::new();
    let own = Pid(std::process::id());
    all.attach(own).unwrap();
    let now = crate::process::monotonic_now().0;
    all.apply(&fork(now + 1, 9_000_001, own.0, 9_000_001, own.0));
    all.apply(&fork(now + 2, 9_000_001, 9_000_001, 9_000_002, 9_000_001));
    all.apply(&exit(now + 3, 9_000_001, 9_000_001));
    let process = all.at(Pid(9_000_001), MonoNs(now + 4)).unwrap();
    assert_eq!((process.exit_time, process.threads().collect::<Vec<_>>()), (None, vec![Tid(9_000_002)]));
    all.apply(&exit(now + 5, 9_000_001, 9_000_002));
    assert_eq!(all.at(Pid(9_000_001), MonoNs(now + 6)).unwrap().exit_time, Some(MonoNs(now + 5)));
}

#[test]
fn losses_and_events_of_strangers_are_counted() {
    let mut all = Processes::new();
    all.apply(&mmap(1, 5, 0x1000, 0x1000, 1));
    all.apply(&TaskEvent { time: MonoNs(6), change: TaskChange::Lost { count: 7 } });
    let stats = all.stats();
    assert_eq!((stats.events, stats.events_lost, stats.events_unknown_process), (2, 7, 1));
    assert!(all.take_stale() && !all.take_stale());
    let own = Pid(std::process::id());
    all.attach(own).unwrap();
    all.apply(&mmap(own.0, u64::MAX, u64::MAX - 5, 100, 1));
    assert_eq!(all.stats().bad_mappings, 1);
}

#[test]
fn attaching_twice_keeps_the_identity() {
    let mut all = Processes::new();
    let own = Pid(std::process::id());
    let first = all.attach(own).unwrap();
    assert_eq!(all.attach(own).unwrap(), first);
    assert_eq!(all.live().count(), 1);
}

#[test]
fn dumps_are_found_by_their_marker_mapping() {
    let maps = parse_maps(
        b"1000-2000 r-xp 00000000 08:01 1 /tmp/jit-77.dump\n\
          2000-3000 r-xp 00000000 08:01 1 /tmp/jit-77.dump\n\
          3000-4000 r-xp 00000000 08:01 2 /home/u/.debug/jit/x/jit-5-1234.dump (deleted)\n\
          4000-5000 r--p 00000000 08:01 3 /tmp/jit-78.dump\n\
          5000-6000 r-xp 00001000 08:01 4 /tmp/jit-79.dump\n\
          6000-7000 r-xs 00000000 08:01 5 /tmp/jit-80.dump\n\
          7000-8000 r-xp 00000000 08:01 6 /usr/lib/libjit.so\n\
          10000-90000 r-xp 00000000 08:01 7 /tmp/jit-81.dump\n\
          a0000-a1000 r-xp 00000000 08:01 8 /tmp/jitter.dump/core\n",
    );
    assert_eq!(maps.bad_lines, 0);
    let found: Vec<_> = find_dumps(&maps.mappings).iter().map(|dump| (dump.mapping.inode, dump.named_pid)).collect();
    assert_eq!(found, [(1, Some(77)), (2, Some(1234))]);
}

#[test]
fn ended_processes_are_forgotten_but_for_those_whose_samples_wait() {
    let mut all = Processes::new();
    let own = Pid(std::process::id());
    all.attach(own).unwrap();
    let now = crate::process::monotonic_now().0;
    for (at, pid) in [(10, 9_000_001), (20, 9_000_002), (30, 9_000_003)] {
        all.apply(&fork(now + at, pid, own.0, pid, own.0));
        all.apply(&exit(now + at + 5, pid, pid));
    }
    let id = |all: &Processes, pid: u32| all.at(Pid(pid), MonoNs(now + 100)).map(|process| process.id);
    let (waits, ended_late) = (id(&all, 9_000_001).unwrap(), id(&all, 9_000_003));
    all.forget_before(MonoNs(now + 30), |id| id == waits);
    assert_eq!([9_000_001, 9_000_002, 9_000_003].map(|pid| id(&all, pid)), [Some(waits), None, ended_late]);
    assert_eq!(all.ids().count(), 3, "this process, and two that ended");
}

#[test]
fn a_process_whose_exit_was_lost_ends_when_it_is_not_among_those_that_run() {
    let mut all = Processes::new();
    let own = Pid(std::process::id());
    let id = all.attach(own).unwrap();
    let now = crate::process::monotonic_now().0;
    all.apply(&fork(now + 10, 9_000_001, own.0, 9_000_001, own.0));
    all.apply(&fork(now + 50, 9_000_002, own.0, 9_000_002, own.0));
    let ended = all.end_missing(&[own].into(), MonoNs(now + 30));
    assert_eq!(ended.iter().map(|id| id.pid.0).collect::<Vec<_>>(), [9_000_001], "one that is younger is let alone");
    let mut left: Vec<u32> = all.live().map(|process| process.id.pid.0).collect();
    left.sort_unstable();
    assert_eq!((left, all.get(id).is_some()), (vec![own.0, 9_000_002], true));
}
