//! Copies of generated code for children.

use jitprof_common::units::Pid;

use super::stories::*;
use crate::engine::process::Process;
use crate::engine::world::{World, options};
use crate::engine::{EngineOptions, Who};

const PID: u32 = 100;

fn live(world: &World, pid: u32) -> &Process {
    world.engine.tracking.processes.live_of(Pid(pid)).unwrap()
}

#[test]
fn children_that_wait_for_code_are_looked_through_when_they_are_twice_as_many() {
    let mut world = World::new(EngineOptions { who: Who::All, ..options() });
    world.continuous(1000, 500);
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "inherited"));
    world.run_for(500);
    let waiting = |world: &World| (live(world, PID).waiting_children.len(), live(world, PID).waiting_until);
    (1000..1200).for_each(|child| fork(&mut world, child, PID));
    world.settle();
    // At 65 of them, and at 131.
    assert_eq!(waiting(&world), (200, 262));
    // Those that have ended go.
    (1000..1200).for_each(|child| exit(&mut world, child));
    (2000..2063).for_each(|child| fork(&mut world, child, PID));
    world.settle();
    assert_eq!(waiting(&world), (63, 126));
    world.finish();
}
