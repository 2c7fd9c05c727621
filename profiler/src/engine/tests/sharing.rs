//! What processes share, and what each may have of it.

use jitprof_common::units::Pid;

use super::stories::*;
use crate::engine::world::machine::file_mapping;
use crate::engine::world::{World, options};
use crate::engine::{EngineOptions, Who};

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
