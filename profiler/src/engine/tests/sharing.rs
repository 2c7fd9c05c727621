//! What processes share, and what each may have of it.

use jitprof_common::units::{MonoNs, Pid};

use super::stories::*;
use super::{at, pending, process_read};
use crate::engine::border::{ProcessRead, Request};
use crate::engine::generated::CodeOptions;
use crate::engine::pending::{MAX_PENDING, MAX_STACK_WORDS};
use crate::engine::processes::Processes;
use crate::engine::surplus::Surplus;
use crate::engine::world::machine::file_mapping;
use crate::engine::world::{BEGIN, Fate, MS, World, options};
use crate::engine::{EngineOptions, Who};
use crate::process::ProcessId;

const PID: u32 = 100;

fn all() -> World {
    World::new(EngineOptions { who: Who::All, ..options() })
}

/// Which list of mappings each of some processes has, alive or ended.
fn lists(world: &World, pids: impl Iterator<Item = u32>) -> Vec<usize> {
    let list = |pid| {
        let mut all = world.engine.tracking.processes.iter();
        all.find(|process| process.id.pid == Pid(pid)).map(|process| process.space.shared().1)
    };
    pids.filter_map(list).collect()
}

#[test]
fn children_that_end_have_their_parents_mappings_without_a_copy_and_the_last_one_lets_go_of_the_files() {
    let mut world = all();
    app(&mut world, PID);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    let children = PID + 1..PID + 4;
    children.clone().for_each(|child| fork(&mut world, child, PID));
    world.run_for(100);
    children.clone().for_each(|child| exit(&mut world, child));
    world.run_for(4000);
    let file = {
        let process = world.engine.tracking.processes.live_of(Pid(PID)).unwrap();
        process.space.live().find_map(|mapped| mapped.link.file()).unwrap()
    };
    let are_one = |lists: &[usize]| lists.len() == 4 && lists.iter().all(|list| *list == lists[0]);
    assert!(are_one(&lists(&world, PID..PID + 4)), "nothing was copied");
    assert!(world.engine.files.is_open(file));
    exit(&mut world, PID);
    world.run_for(4000);
    assert!(!world.engine.files.is_open(file), "its file system can be unmounted");
    assert!(are_one(&lists(&world, PID..PID + 4)), "it is copied once, and not for each");
    world.engine.assert_sound();
    world.finish();
}

#[test]
fn what_children_have_that_have_ended_is_released_when_their_parent_has_mapped_something_else() {
    let mut world = all();
    app(&mut world, PID);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    fork(&mut world, PID + 1, PID);
    world.run_for(100);
    exit(&mut world, PID + 1);
    world.run_for(2000);
    let list = lists(&world, PID + 1..PID + 2);
    let has_released = |world: &World| {
        let mut all = world.engine.tracking.processes.iter();
        all.find(|process| process.id.pid == Pid(PID + 1)).map(|process| process.has_released)
    };
    assert_eq!(has_released(&world), Some(false), "its parent holds the files");
    let inode = world.machine.add_program("/lib/other", b"other", &[(0, "other")]);
    map(&mut world, PID, file_mapping(APP, 0x1_0000, inode, "/lib/other"));
    world.run_for(2000);
    assert_eq!((has_released(&world), lists(&world, PID + 1..PID + 2)), (Some(true), list), "in its place");
    world.finish();
}

/// Each user's processes, and those that are root's, with so many samples each, a second apart.
fn waiting(of: &[(u32, u32, u64)]) -> Processes {
    let mut all = Processes::new(CodeOptions::default());
    for (pid, user, count) in of {
        all.arrive(Pid(*pid), at(1)).unwrap();
        let read = ProcessRead { payer: Some(*user), ..process_read(*pid, at(0), vec![]) };
        let (id, _) = all.take(Pid(*pid), &read, at(1));
        let samples = (0..*count).map(|number| pending(at(100 + number)));
        all.get_mut(id.unwrap()).unwrap().queue.samples.extend(samples);
    }
    all
}

/// How many samples of each process give way, and those of processes that are not known.
fn surplus(all: &Processes, most: usize) -> (Vec<(u32, usize)>, usize) {
    let surplus = Surplus::of_samples(all, most);
    let before = |(id, until): &(ProcessId, MonoNs)| {
        (id.pid.0, all.get(*id).unwrap().queue.iter().filter(|sample| sample.time < *until).count())
    };
    let queued = surplus.queued.iter().map(before);
    (queued.collect(), all.arriving_samples().filter(|sample| sample.time < surplus.arriving).count())
}

#[test]
fn samples_give_way_by_users_then_by_roots_processes_and_those_of_nobody_known_together() {
    // A user with many processes, one with one, and root's.
    let mut users: Vec<(u32, u32, u64)> = (0..50).map(|number| (1000 + number, 1000, 20)).collect();
    users.extend([(200, 1001, 100), (300, 0, 30), (301, 0, 70)]);
    let mut all = waiting(&users);
    let (queued, arriving) = surplus(&all, 1000);
    assert_eq!((queued.len(), arriving), (50, 0), "{queued:?}");
    assert!(queued.iter().all(|(pid, count)| *pid >= 1000 && *count == 4), "{queued:?}");
    // Root's largest goes before root's others.
    let (queued, _) = surplus(&all, 240);
    let of = |pid| queued.iter().find(|(known, _)| *known == pid).map_or(0, |(_, count)| *count);
    assert_eq!([300, 301, 200].map(of), [0, 20, 20], "{queued:?}");
    // Processes that nothing is known of yet have a few each, and much together.
    for pid in 5000..6000 {
        let (arriving, _) = all.arrive(Pid(pid), at(2)).unwrap();
        arriving.samples.extend([pending(at(100)), pending(at(101))]);
    }
    let (queued, arriving) = surplus(&all, 2200);
    assert_eq!((queued, arriving), (vec![], 1000));
    assert!(Surplus::of_samples(&all, 3200).is_empty());
}

#[test]
fn what_samples_keep_gives_way_by_users_and_of_each_his_largest_processes_go() {
    // Root has more in all, by processes that have less than the user together.
    let mut all: Vec<(u32, u32, u64)> = (0..50).map(|number| (1000 + number, 0, 60)).collect();
    all.extend((0..20).map(|number| (2000 + number, 1000, 60)));
    all.push((300, 1001, 100));
    let mut all = waiting(&all);
    let gone = |all: &Processes, most| {
        let surplus = Surplus::of_greediest(all, most, |_| 1);
        let of = |pids: std::ops::Range<u32>| surplus.queued.iter().filter(|(id, _)| pids.contains(&id.pid.0)).count();
        ([of(1000..1050), of(2000..2020), of(300..301)], surplus.arriving > MonoNs(0))
    };
    assert_eq!(gone(&all, 4300), ([0, 0, 0], false));
    assert_eq!(gone(&all, 3000), ([22, 0, 0], false), "the user has less than his part");
    assert_eq!(gone(&all, 2100), ([34, 4, 0], false), "both have a thousand");
    // Those of processes that nothing is known of yet go at once.
    for pid in 5000..7000 {
        let (arriving, _) = all.arrive(Pid(pid), at(2)).unwrap();
        arriving.samples.extend([pending(at(100)), pending(at(101))]);
    }
    assert_eq!(gone(&all, 6000), ([11, 0, 0], true));
}

/// A process whose sample waits for a name, and when that was taken.
fn waits(world: &mut World) -> u64 {
    app(world, PID);
    world.sample(PID, &[START]);
    world.run_for(300);
    world.holds_names = true;
    let at = world.now;
    world.sample(PID, &[HELPER, MAIN]);
    world.run_for(50);
    // Whoever is sampled first from now on is not known.
    world.decide = Box::new(|request| match request {
        Request::Process { .. } => Fate::Hold,
        _ => Fate::Answer,
    });
    (at.0 - BEGIN.0) / MS
}

fn queued(world: &World) -> usize {
    world.engine.tracking.processes.live_of(Pid(PID)).map_or(0, |process| process.queue.len())
}

#[test]
fn a_storm_of_processes_that_are_not_known_yet_costs_nobody_else_the_wait_for_names() {
    let mut world = all();
    let at = waits(&mut world);
    for pid in 0..MAX_PENDING as u32 {
        world.sample_at(MonoNs(world.now.0 + u64::from(pid)), 1000 + pid, &[MAIN, START]);
    }
    world.run_for(200);
    assert_eq!((queued(&world), world.engine.progress().waiting), (1, MAX_PENDING - MAX_PENDING / 4));
    world.engine.assert_sound();
    world.holds_names = false;
    world.release();
    let account = world.finish().account.clone();
    assert_eq!(account.samples.resolved_early, MAX_PENDING as u64 / 4 + 1);
    assert_eq!(stack(&world, PID, at), "main;helper");
}

#[test]
fn deep_stacks_of_processes_that_are_not_known_yet_cost_nobody_else_the_wait_for_names() {
    let mut world = all();
    let at = waits(&mut world);
    let storm = MAX_STACK_WORDS as u64 / 1000 + 8;
    for number in 0..storm {
        let stack: Vec<u64> = (0..1000).map(|frame| APP + number * 1000 + frame).collect();
        world.sample(1000 + number as u32, &stack);
    }
    world.run_for(200);
    assert_eq!((queued(&world), world.engine.progress().waiting), (1, 1));
    world.engine.assert_sound();
    world.holds_names = false;
    world.release();
    let account = world.finish().account.clone();
    assert_eq!((account.samples.resolved_early, account.samples.process_gone), (storm, storm));
    assert_eq!(stack(&world, PID, at), "main;helper");
}
