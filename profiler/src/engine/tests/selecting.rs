//! Whose samples are taken: groups, names, forks, limits.

use jitprof_common::units::{Pid, Tid};
use std::sync::Arc;

use super::stories::*;
use crate::engine::border::{Order, Request};
use crate::engine::options::Selector;
use crate::engine::world::{Fate, World, options};
use crate::engine::{EngineOptions, Who};
use crate::process::event::TaskChange;
use crate::process::hierarchy::{Group, GroupQuery};

fn group(path: &str, is_v2: bool) -> Group {
    Group { directory: format!("/sys/fs/cgroup{path}").into(), path: path.to_owned(), is_v2, inode: 7 }
}

fn matching(comms: &[&str], is_v2: bool) -> World {
    let selector = Selector {
        comms: comms.iter().map(|comm| (*comm).to_owned()).collect(),
        groups: GroupQuery { paths: vec!["/web".to_owned()], ..GroupQuery::default() },
        ..Selector::default()
    };
    let mut world = World::new(EngineOptions { who: Who::Matching(selector), ..options() });
    world.machine.groups = vec![group("/web", is_v2)];
    world.order(Order::Members { pids: Vec::new(), groups: vec![group("/web", is_v2)] });
    world
}

fn followed(world: &World) -> Vec<u32> {
    world.kernel.followed.iter().map(|pid| pid.0).collect()
}

fn member(world: &mut World, pid: u32, comm: &str) {
    world.machine.members.push((Pid(pid), Some(comm.to_owned())));
}

#[test]
fn members_of_a_group_are_followed_as_they_come_and_go() {
    let mut world = matching(&[], false);
    app(&mut world, 100);
    app(&mut world, 101);
    member(&mut world, 100, "app");
    world.run_for(700);
    assert_eq!(followed(&world), [100]);
    member(&mut world, 101, "app");
    world.run_for(700);
    assert_eq!(followed(&world), [100, 101]);
    world.machine.members.remove(0);
    world.run_for(700);
    assert_eq!(followed(&world), [101]);
    // A child is a member from its first instruction on.
    fork(&mut world, 102, 101);
    assert_eq!(followed(&world), [101, 102]);
    world.finish();
}

#[test]
fn a_child_that_is_made_while_the_members_are_listed_stays_followed() {
    let mut world = matching(&[], false);
    app(&mut world, 100);
    member(&mut world, 100, "app");
    world.run_for(700);
    world.decide = Box::new(|request| match request {
        Request::Members { .. } => Fate::HoldAnswer,
        _ => Fate::Answer,
    });
    world.run_for(700);
    assert_eq!(world.held(), 1);
    fork(&mut world, 101, 100);
    member(&mut world, 101, "app");
    world.run_for(10);
    world.release();
    world.settle();
    assert_eq!(followed(&world), [100, 101], "it was not there when they were listed");
    world.run_for(1000);
    assert_eq!(followed(&world), [100, 101]);
    world.finish();
}

#[test]
fn a_list_of_members_that_takes_too_long_is_not_the_last_one() {
    let mut world = matching(&[], false);
    app(&mut world, 100);
    world.decide = Box::new(|_| Fate::Stall);
    world.run_for(1500);
    world.decide = Box::new(|_| Fate::Answer);
    member(&mut world, 100, "app");
    world.run_for(1500);
    assert_eq!(followed(&world), [100]);
    world.finish();
}

#[test]
fn only_members_of_the_name_are_followed_and_a_new_name_is_looked_at() {
    let mut world = matching(&["wanted"], false);
    app(&mut world, 100);
    app(&mut world, 101);
    member(&mut world, 100, "wanted");
    member(&mut world, 101, "other");
    world.run_for(700);
    assert_eq!(followed(&world), [100]);
    let asked = world.asked.iter().rev().find_map(|request| match request {
        Request::Members { names, pids, .. } => Some((*names, *pids)),
        _ => None,
    });
    assert_eq!(asked, Some((true, true)));
    world.machine.members[1].1 = Some("wanted".to_owned());
    world.run_for(700);
    assert_eq!(followed(&world), [100], "it is not asked again and again");
    world.sample(101, &[MAIN, START]);
    world.settle();
    world.task(TaskChange::Comm { pid: Pid(101), tid: Tid(101), comm: Arc::from("wanted"), exec: true });
    world.run_for(700);
    assert_eq!(followed(&world), [100, 101]);
    world.finish();
}

#[test]
fn who_takes_the_name_later_is_followed_with_its_children_whatever_it_calls_itself_then() {
    let matching = Selector { comms: vec!["wrk".to_owned()], ..Selector::default() };
    for who in [Who::Comm("wrk".to_owned()), Who::Matching(matching)] {
        let mut world = World::new(EngineOptions { who, inherit: true, ..options() });
        world.run_for(100);
        let named = |pid: u32, comm: &str, exec: bool| TaskChange::Comm {
            pid: Pid(pid),
            tid: Tid(pid),
            comm: comm.into(),
            exec,
        };
        // Of none of them anything is known: no sample has come.
        world.task(named(100, "wrk", true));
        world.task(named(100, "MainThread", false));
        world.task(named(200, "other", true));
        world.run_for(100);
        assert_eq!(followed(&world), [100]);
        fork(&mut world, 101, 100);
        fork(&mut world, 201, 200);
        assert_eq!(followed(&world), [100, 101]);
        // Nothing has ever come of it: its number may be another one's soon.
        world.task(TaskChange::Exit { pid: Pid(100), tid: Tid(100) });
        assert_eq!(followed(&world), [101]);
        world.finish();
    }
}

#[test]
fn groups_of_version_2_are_left_to_the_kernel_until_another_one_is_found() {
    let mut world = matching(&[], true);
    assert_eq!(world.noted["groups"], 1);
    app(&mut world, 100);
    world.run_for(700);
    assert!(followed(&world).is_empty());
    world.machine.groups.push(group("/web/old", false));
    member(&mut world, 100, "app");
    world.run_for(12_000);
    assert_eq!(world.noted["groups"], 2);
    assert_eq!(followed(&world), [100]);
    // What it is told of is read before its first sample.
    assert!(world.engine.tracking.processes.live_of(Pid(100)).is_some());
    world.finish();
}

#[test]
fn the_first_members_are_attached_to_at_once() {
    let mut world = matching(&[], false);
    app(&mut world, 100);
    member(&mut world, 100, "app");
    world.order(Order::Members { pids: vec![Pid(100)], groups: vec![group("/web", false)] });
    world.settle();
    assert_eq!(followed(&world), [100]);
    assert!(world.kernel.region(100, MAIN).is_some(), "its mappings are in the tables");
    world.finish();
}

#[test]
fn a_name_is_compared_as_the_kernel_keeps_it() {
    let who = Who::Comm("a-name-of-more-than-15-bytes".to_owned());
    let mut world = World::new(EngineOptions { who, inherit: false, ..options() });
    app(&mut world, 100);
    world.sample(100, &[MAIN, START]);
    world.settle();
    for (name, is_it) in [("a-name-of-more", false), ("a-name-of-more-", true)] {
        let comm = Arc::from(name);
        world.task(TaskChange::Comm { pid: Pid(100), tid: Tid(100), comm, exec: false });
        assert_eq!(followed(&world) == [100], is_it, "{name}");
    }
    fork(&mut world, 101, 100);
    assert_eq!(followed(&world), [100], "children have been left out");
    exit(&mut world, 100);
    assert!(followed(&world).is_empty());
    world.finish();
}

#[test]
fn a_selection_says_what_it_asks() {
    let selector = Selector {
        pids: vec![Pid(1), Pid(2)],
        comms: vec!["node".to_owned()],
        users: vec!["u".to_owned()],
        groups: GroupQuery {
            paths: vec!["/a".to_owned()],
            containers: vec!["c".to_owned()],
            units: vec!["s".to_owned()],
        },
        may_come_later: false,
    };
    assert_eq!(selector.to_string(), "pid 1 or 2 and comm node and user u and cgroup /a and container c and unit s");
    assert_eq!(Selector::default().to_string(), "");
}

#[test]
fn the_run_ends_with_the_last_process_that_it_is_of() {
    let mut world = World::new(options());
    app(&mut world, 100);
    app(&mut world, 101);
    world.follow(&[100, 101, 999]);
    world.run_for(300);
    exit(&mut world, 100);
    world.run_for(300);
    assert!(!world.have_targets_ended);
    // Its exit is lost, and somebody else has its number by now.
    let start = world.now;
    world.machine.processes.get_mut(&101).unwrap().read.start = start;
    world.run_for(1500);
    assert!(world.have_targets_ended);
    world.finish();
}

#[test]
fn a_dead_process_ends_and_threads_of_the_kernel_have_no_user_part() {
    let mut world = World::new(EngineOptions { who: Who::All, ..options() });
    app(&mut world, 100);
    app(&mut world, 101);
    world.machine.processes.get_mut(&100).unwrap().read.is_dead = true;
    world.machine.processes.get_mut(&101).unwrap().read.is_kernel_thread = true;
    world.sample(100, &[MAIN, START]);
    world.sample(101, &[]);
    world.run_for(300);
    assert!(world.engine.tracking.processes.live_of(Pid(100)).is_none());
    let account = world.finish().account.clone();
    assert_eq!((account.samples.process_gone, account.stacks.without_user_part), (1, 1));
    assert_eq!(stack(&world, 100, 0), "_start;main");
}
