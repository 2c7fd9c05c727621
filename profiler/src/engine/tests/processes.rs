//! The table of processes: pid reuse, fork, exec, threads, lost events.

use std::collections::HashSet;

use super::{at, comm, exec, exit, fork, lost, mapping, mmap, process_read, thread};
use crate::engine::border::ProcessRead;
use crate::engine::generated::CodeOptions;
use crate::engine::labelling::Labelling;
use crate::engine::processes::Processes;
use crate::engine::requests::Requests;
use crate::process::{Mapping, ProcessId};
use crate::profile::Holder;
use jitprof_common::units::{Avma, MonoNs, Pid, Tid};

const PARENT: u32 = 100;
const CHILD: u32 = 101;

/// With a process that was read at second 1.
fn processes() -> Processes {
    let mut all = Processes::new(CodeOptions::default());
    all.arrive(Pid(PARENT), at(1)).unwrap();
    let (id, _) = all.take(Pid(PARENT), &process_read(PARENT, at(0), vec![]), at(1));
    assert_eq!(id, Some(ProcessId { pid: Pid(PARENT), start: at(0) }));
    all
}

fn inode_at(all: &Processes, pid: u32, time: MonoNs) -> Option<u64> {
    let space = &all.at(Pid(pid), time).unwrap().space;
    space.lookup(Avma(0x1000), time).map(|mapped| mapped.mapping.inode)
}

#[test]
fn a_child_inherits_the_mappings_and_exec_ends_them() {
    let mut all = processes();
    all.apply(&mmap(PARENT, at(10), mapping(0x1000, 0x2000, 1)));
    all.apply(&fork(at(20), CHILD, PARENT));
    all.apply(&mmap(PARENT, at(30), mapping(0x1000, 0x2000, 2)));
    assert_eq!(inode_at(&all, CHILD, at(40)), Some(1), "what the parent maps later is its own");
    let child = all.at(Pid(CHILD), at(40)).unwrap();
    assert_eq!(child.parent.map(|parent| parent.pid), Some(Pid(PARENT)));
    all.apply(&exec(at(50), CHILD, "other"));
    all.apply(&mmap(CHILD, at(60), mapping(0x1000, 0x2000, 3)));
    assert_eq!([45, 55, 65].map(|time| inode_at(&all, CHILD, at(time))), [Some(1), None, Some(3)]);
    assert_eq!(all.at(Pid(CHILD), at(70)).unwrap().name(), "other");
}

#[test]
fn a_child_is_its_parents_users_until_it_is_read_itself() {
    let mut all = Processes::new(CodeOptions::default());
    let of_user = |pid, start, user| ProcessRead { payer: Some(user), ..process_read(pid, start, vec![]) };
    all.arrive(Pid(PARENT), at(1)).unwrap();
    all.take(Pid(PARENT), &of_user(PARENT, at(0), 1000), at(1));
    all.apply(&fork(at(10), CHILD, PARENT));
    all.apply(&fork(at(11), 102, CHILD));
    let holder = |all: &Processes, pid| all.live_of(Pid(pid)).unwrap().holder();
    assert_eq!([CHILD, 102].map(|pid| holder(&all, pid)), [Holder::User(1000); 2]);
    all.apply(&exec(at(20), CHILD, "su"));
    assert_eq!(holder(&all, CHILD), Holder::User(1000), "no process becomes another holder by exec");
    all.take(Pid(CHILD), &of_user(CHILD, at(10), 0), at(30));
    let id = all.live_of(Pid(CHILD)).unwrap().id;
    assert_eq!(holder(&all, CHILD), Holder::Process(id.pid, id.start.0));
    assert_eq!(holder(&all, 102), Holder::User(1000));
}

#[test]
fn a_reused_pid_is_another_process() {
    let mut all = processes();
    all.apply(&fork(at(10), CHILD, PARENT));
    all.apply(&mmap(CHILD, at(20), mapping(0x1000, 0x2000, 1)));
    all.apply(&exit(at(30), CHILD, CHILD));
    all.apply(&fork(at(40), CHILD, PARENT));
    all.apply(&mmap(CHILD, at(50), mapping(0x1000, 0x2000, 2)));
    let id_at = |time| all.at(Pid(CHILD), at(time)).unwrap().id;
    assert_ne!(id_at(25), id_at(60));
    assert_eq!(all.get(id_at(25)).unwrap().exit_time, Some(at(30)));
    assert_eq!([25, 60].map(|time| inode_at(&all, CHILD, at(time))), [Some(1), Some(2)]);
    assert_eq!(id_at(31), id_at(25), "a late sample belongs to the one that just ended");
}

#[test]
fn a_process_ends_with_its_last_thread_not_with_its_leader() {
    let mut all = processes();
    all.apply(&fork(at(10), CHILD, PARENT));
    all.apply(&thread(at(20), CHILD, 102, CHILD));
    all.apply(&comm(at(21), CHILD, CHILD, "leader"));
    assert_eq!(all.apply(&exit(at(30), CHILD, CHILD)), None);
    let process = all.at(Pid(CHILD), at(31)).unwrap();
    assert_eq!((process.thread_count(), process.via), (1, Pid(102)), "its /proc is read through a thread that lives");
    assert_eq!(process.name(), "leader", "the first thread's name is the process' also after its end");
    let ended = all.apply(&exit(at(40), CHILD, 102));
    assert_eq!(ended.map(|id| id.pid), Some(Pid(CHILD)));
    assert_eq!(all.at(Pid(CHILD), at(50)).unwrap().exit_time, Some(at(40)));
}

#[test]
fn losses_and_events_of_strangers_are_counted() {
    let mut all = Processes::new(CodeOptions::default());
    all.apply(&mmap(1, at(5), mapping(0x1000, 0x2000, 1)));
    all.apply(&lost(at(6), 7));
    let stats = all.stats();
    assert_eq!((stats.events, stats.events_lost, stats.events_unknown_process), (2, 7, 1));
    assert!(all.take_stale() && !all.take_stale());
    assert!(!all.concern(&exit(at(6), 1, 1)), "what strangers do need not be handed in");
}

#[test]
fn what_a_process_does_while_it_is_read_is_applied_afterwards() {
    let mut all = Processes::new(CodeOptions::default());
    let (_, asks) = all.arrive(Pid(PARENT), at(1)).unwrap();
    assert!(asks && !all.arrive(Pid(PARENT), at(2)).unwrap().1, "it is asked for once");
    let early = [mmap(PARENT, at(3), mapping(0x1000, 0x2000, 1)), mmap(PARENT, at(5), mapping(0x1000, 0x2000, 2))];
    for event in &early {
        assert!(all.concern(event));
        all.apply(event);
    }
    // It was read between the two: the first is in what was read.
    let read = process_read(PARENT, at(0), vec![mapping(0x1000, 0x2000, 1)]);
    let (id, arriving) = all.take(Pid(PARENT), &read, at(4));
    for event in &arriving.unwrap().events {
        all.apply_early(event);
    }
    assert_eq!([3, 6].map(|time| inode_at(&all, PARENT, at(time))), [Some(1), Some(2)]);
    assert_eq!((all.live_count(), all.arriving()), (1, 0));
    assert!(all.is_live(id.unwrap()));
}

#[test]
fn a_process_that_is_read_again_keeps_its_identity_and_another_start_is_another_process() {
    let mut all = processes();
    let again = process_read(PARENT, at(0), vec![mapping(0x1000, 0x2000, 7)]);
    let (id, _) = all.take(Pid(PARENT), &again, at(5));
    assert_eq!((id.map(|id| id.start), all.live_count()), (Some(at(0)), 1));
    assert_eq!(inode_at(&all, PARENT, at(6)), Some(7));
    let (other, _) = all.take(Pid(PARENT), &process_read(PARENT, at(8), vec![]), at(9));
    assert_eq!((other.map(|id| id.start), all.live_count()), (Some(at(8)), 1), "the end of the first was lost");
}

#[test]
fn a_process_that_was_gone_is_asked_for_again_after_a_while() {
    let mut all = Processes::new(CodeOptions::default());
    all.arrive(Pid(7), at(1)).unwrap();
    assert!(all.take_gone(Pid(7), at(1)).is_some());
    assert!(all.arrive(Pid(7), MonoNs(at(2).0 - 1)).is_none());
    let ghost = all.add_gone(Pid(7), at(1), at(1));
    assert_eq!(all.add_gone(Pid(7), at(2), at(2)), ghost, "one stands for all samples of a pid");
    assert!(!all.is_live(ghost) && all.get(ghost).unwrap().is_gone);
    assert!(all.arrive(Pid(7), at(3)).is_some(), "another process may have its pid");
}

#[test]
fn a_process_whose_first_samples_were_given_up_while_it_is_read_has_the_later_ones() {
    let mut all = processes();
    all.arrive(Pid(7), at(1)).unwrap();
    let ghost = all.add_gone(Pid(7), at(1), at(1));
    let (arriving, asks) = all.arrive(Pid(7), MonoNs(at(1).0 + 1)).expect("it may be there");
    assert!(!asks, "it is being read");
    arriving.samples.push(super::pending(at(1)));
    let (id, arriving) = all.take(Pid(7), &process_read(7, at(0), vec![]), at(1));
    assert_eq!(arriving.map(|arriving| arriving.samples.len()), Some(1));
    assert!(id.is_some_and(|id| id != ghost && all.is_live(id)));
    all.assert_sound();
    // One that is not there in the end is gone.
    all.arrive(Pid(8), at(1)).unwrap();
    all.add_gone(Pid(8), at(1), at(1));
    assert!(all.take_gone(Pid(8), at(1)).is_some() && all.arrive(Pid(8), MonoNs(at(1).0 + 1)).is_none());
}

#[test]
fn what_stands_for_a_process_that_was_gone_leaves_its_samples_to_one_of_the_same_time() {
    let mut all = processes();
    let ghost = all.add_gone(Pid(CHILD), at(10), at(10));
    all.get_mut(ghost).unwrap().queue.samples.push_back(super::pending(at(10)));
    all.apply(&fork(at(10), CHILD, PARENT));
    assert!(all.is_live(ghost));
    assert_eq!(all.get(ghost).unwrap().queue.iter().count(), 1);
    all.assert_sound();
}

#[test]
fn ended_processes_are_evicted_but_for_those_whose_samples_wait() {
    let mut all = processes();
    for (time, pid) in [(10, 201), (20, 202), (30, 203)] {
        all.apply(&fork(at(time), pid, PARENT));
        all.apply(&exit(at(time + 5), pid, pid));
    }
    let waits = all.at(Pid(201), at(100)).unwrap().id;
    let sample = super::pending(at(12));
    all.get_mut(waits).unwrap().queue.samples.push_back(sample);
    for id in all.evictable(at(30)) {
        all.evict(id);
    }
    let left = |all: &Processes| [201, 202, 203].map(|pid| all.at(Pid(pid), at(100)).is_some());
    assert_eq!(left(&all), [true, false, true]);
    assert!(all.get(waits).is_some());
}

#[test]
fn a_process_whose_exit_was_lost_ends_when_it_is_not_among_those_that_run() {
    let mut all = processes();
    all.apply(&fork(at(10), CHILD, PARENT));
    all.apply(&fork(at(50), 102, PARENT));
    let running = HashSet::from([Pid(PARENT)]);
    let missing: Vec<Pid> = all.missing(&running, at(30)).into_iter().map(|id| id.pid).collect();
    assert_eq!(missing, [Pid(CHILD)], "one that is younger is let alone");
    let id = all.live_of(Pid(CHILD)).unwrap().id;
    all.end(id, at(30));
    assert!(!all.is_live(id) && all.live_of(Pid(CHILD)).is_none());
}

#[test]
fn names_of_threads_are_bounded_and_a_new_program_ends_them() {
    let mut all = processes();
    all.apply(&thread(at(10), PARENT, 500, PARENT));
    all.apply(&comm(at(11), PARENT, 500, "worker"));
    let name = |all: &Processes, tid| all.live_of(Pid(PARENT)).unwrap().comm(Tid(tid)).map(ToString::to_string);
    assert_eq!(name(&all, 500).as_deref(), Some("worker"));
    all.apply(&exec(at(12), PARENT, "new"));
    assert_eq!((name(&all, 500), name(&all, PARENT).as_deref()), (None, Some("new")));
}

#[test]
fn a_process_that_renames_itself_all_the_time_has_few_label_sets_made_and_its_last_name() {
    let mut all = processes();
    let (mut labelling, mut requests) = (Labelling::new(Some("host")), Requests::default());
    let id = all.live_of(Pid(PARENT)).unwrap().id;
    labelling.take(all.get_mut(id).unwrap(), &process_read(PARENT, at(0), vec![]), false, &mut requests);
    for number in 0..10_000 {
        let (time, name) = (MonoNs(at(10).0 + number * 9_000), format!("name-{number}"));
        all.apply(&comm(time, PARENT, PARENT, &name));
        labelling.rename(all.get_mut(id).unwrap(), Tid(PARENT), &name, false, time);
    }
    assert_eq!(labelling.set_count(), 2);
    requests.now = at(11);
    labelling.check(&mut all, &mut requests);
    let named = all.get(id).unwrap().labels.latest().get("comm").map(ToString::to_string);
    assert_eq!(named.as_deref(), Some("name-9999"));
}

fn begin_for(all: &mut Processes, (pid, user): (u32, u32), mappings: Vec<Mapping>) {
    all.arrive(Pid(pid), at(1)).unwrap();
    let read = ProcessRead { payer: Some(user), ..process_read(pid, at(0), mappings) };
    all.take(Pid(pid), &read, at(1));
}

const GREEDY: u32 = 200;

/// A user's process that has ended, and one of another user's that has as many mappings as are kept.
fn crowd() -> Processes {
    let mut all = Processes::new(CodeOptions::default());
    begin_for(&mut all, (PARENT, 1001), vec![mapping(0x1000, 0x2000, 1)]);
    let many = (1..=1 << 14).map(|at| mapping(at * 0x1000, (at + 1) * 0x1000, 1)).collect();
    begin_for(&mut all, (GREEDY, 1000), many);
    all.apply(&fork(at(10), CHILD, PARENT));
    all.apply(&exit(at(11), CHILD, CHILD));
    all
}

#[test]
fn whose_ended_processes_have_mapped_the_most_loses_his_own_and_what_they_share_counts_once() {
    let mut all = crowd();
    for pid in 300..312 {
        all.apply(&fork(at(20), pid, GREEDY));
        all.apply(&exit(at(21), pid, pid));
    }
    assert!(!all.is_crowded() && all.evictable(at(5)).is_empty());
    for pid in 400..412 {
        all.apply(&fork(at(30), pid, GREEDY));
        all.apply(&mmap(pid, at(31), mapping(0x1000, 0x2000, 2)));
        all.apply(&exit(at(32), pid, pid));
    }
    assert!(all.is_crowded());
    let gone = all.evictable(at(5));
    assert!(gone.iter().all(|id| (400..412).contains(&id.pid.0)), "{gone:?}");
    gone.into_iter().for_each(|id| all.evict(id));
    assert!(!all.is_crowded());
    all.assert_sound();
}

#[test]
fn who_forks_all_the_time_loses_his_oldest_and_others_keep_theirs() {
    let mut all = crowd();
    for pid in 1000..5200 {
        all.apply(&fork(at(20), pid, GREEDY));
        all.apply(&exit(at(21), pid, pid));
    }
    let gone: Vec<u32> = all.evictable(at(5)).into_iter().map(|id| id.pid.0).collect();
    assert_eq!(gone, (1000..1105).collect::<Vec<u32>>());
}

#[test]
fn what_stands_for_processes_that_were_gone_does_not_take_the_place_of_roots_that_have_ended() {
    let mut all = Processes::new(CodeOptions::default());
    begin_for(&mut all, (PARENT, 0), vec![]);
    for pid in 1000..1100 {
        all.apply(&fork(at(10), pid, PARENT));
        all.apply(&exit(at(11), pid, pid));
    }
    for pid in 10_000..14_100 {
        all.add_gone(Pid(pid), at(12), at(12));
    }
    assert!(all.is_crowded());
    let gone: Vec<u32> = all.evictable(at(5)).into_iter().map(|id| id.pid.0).collect();
    assert_eq!(gone, (10_000..10_104).collect::<Vec<u32>>());
}

#[test]
fn what_has_ended_makes_room_for_the_paths_of_what_is_mapped_now() {
    let long = |number: u64| {
        let path = format!("/{number:04095}").into();
        Mapping { path, ..mapping(number * 0x1000, (number + 1) * 0x1000, number) }
    };
    let some = |from: u64, count: u64| (from..from + count).map(long).collect::<Vec<Mapping>>();
    let mut all = Processes::new(CodeOptions::default());
    begin_for(&mut all, (PARENT, 1000), some(1, 2000));
    assert_eq!(all.stats().mappings_evicted, 0);
    all.apply(&exit(at(10), PARENT, PARENT));
    assert!(!all.is_crowded());
    begin_for(&mut all, (CHILD, 1000), some(3001, 2000));
    begin_for(&mut all, (GREEDY, 1001), some(6001, 50));
    let left_out = all.stats().mappings_evicted;
    assert!((1000..2000).contains(&left_out), "{left_out}");
    assert!(all.is_crowded());
    all.evictable(at(20)).into_iter().for_each(|id| all.evict(id));
    all.sweep_paths();
    assert!(!all.is_crowded());
    begin_for(&mut all, (CHILD + 1, 1000), some(9001, 1500));
    assert_eq!(all.stats().mappings_evicted, left_out);
    all.assert_sound();
}
