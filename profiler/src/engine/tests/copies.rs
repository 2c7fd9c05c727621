//! Copies of generated code for children: who is given one, and what is left to a child that is refused it.

use jitprof_common::row::{CfaKind, Row};
use jitprof_common::units::{Pid, Tid};

use super::stories::*;
use crate::account::Account;
use crate::engine::copies::{COPIED_A_SECOND, COPIED_AT_ONCE, IN_A_RUN};
use crate::engine::process::Process;
use crate::engine::world::machine::memory_mapping;
use crate::engine::world::{BEGIN, MS, World, options};
use crate::engine::{EngineOptions, Who};
use crate::process::event::TaskChange;
use crate::profile::Holder;

const PID: u32 = 100;
const CHILD: u32 = 101;
const UNNAMED: &str = "_start;main;[JIT code without a name]";

fn live(world: &World, pid: u32) -> &Process {
    world.engine.tracking.processes.live_of(Pid(pid)).unwrap()
}

/// Whoever pays for copies of a process' code owes so much that in a run none is made for him for two seconds.
fn overspend(world: &mut World, pid: u32) {
    let payer = live(world, pid).copy_payer();
    let bytes = usize::try_from(IN_A_RUN * (COPIED_AT_ONCE + 2 * COPIED_A_SECOND)).unwrap();
    assert!(world.engine.tracking.copies.take(payer, bytes, world.now));
}

/// A process with a function in a dump that its children do not find: they know of it by a copy alone.
fn announcing(world: &mut World) {
    runtime(world, PID);
    announce(world, PID, (JIT, 64, "inherited"));
    world.run_for(300);
    hide_dump(world);
}

fn hide_dump(world: &mut World) {
    let mut data = memory_mapping(MARKER, 0x1000);
    data.prot.execute = false;
    map(world, PID, data);
    world.run_for(100);
}

/// Samples a process in its generated code. Returns when.
fn sample(world: &mut World, pid: u32, address: u64) -> u64 {
    let at = (world.now.0 - BEGIN.0) / MS;
    world.sample(pid, &[address, MAIN, START]);
    world.run_for(300);
    at
}

/// How often it is said that children go without copies.
fn said(account: &Account) -> usize {
    account.remarks.iter().filter(|remark| remark.contains("inherited code")).count()
}

fn object(world: &World, pid: u32) -> Option<u32> {
    world.kernel.region(pid, JIT).map(|region| region.object)
}

fn cfa(world: &World, pid: u32, address: u64) -> Option<u8> {
    world.kernel.row(pid, address).map(Row::cfa_kind)
}

#[test]
fn a_child_without_a_copy_is_not_walked_by_its_parents_code_and_what_it_announces_itself_has_its_name() {
    let mut world = World::new(options());
    announcing(&mut world);
    for child in [CHILD, CHILD + 1] {
        fork(&mut world, child, PID);
    }
    world.run_for(100);
    assert_eq!((object(&world, CHILD), cfa(&world, CHILD, JIT + 8)), (object(&world, PID), Some(CfaKind::Fp as u8)));
    overspend(&mut world, PID);
    let first = sample(&mut world, CHILD, JIT + 8);
    assert_ne!(object(&world, CHILD), object(&world, PID));
    assert_eq!(cfa(&world, CHILD, JIT + 8), None);
    // It is refused for good, and others are not.
    world.run_for(3000);
    let second = sample(&mut world, CHILD, JIT + 8);
    let of_other = sample(&mut world, CHILD + 1, JIT + 8);
    exit(&mut world, PID);
    world.run_for(1000);
    let third = sample(&mut world, CHILD, JIT + 8);
    begin_dump(&mut world, CHILD);
    world.settle();
    announce(&mut world, CHILD, (JIT + 0x1000, 64, "own"));
    world.run_for(300);
    assert_eq!(cfa(&world, CHILD, JIT + 0x1008), Some(CfaKind::Fp as u8));
    let own = sample(&mut world, CHILD, JIT + 0x1008);
    let account = world.finish().account.clone();
    assert_eq!([first, second, third].map(|at| stack(&world, CHILD, at)), [UNNAMED; 3]);
    assert_eq!(stack(&world, CHILD + 1, of_other), "_start;main;inherited");
    assert_eq!(stack(&world, CHILD, own), "_start;main;own");
    assert_eq!((account.processes.copies_refused, said(&account)), (1, 1));
}

#[test]
fn what_ends_has_its_code_copied_for_its_children_at_the_same_pace() {
    let mut world = World::new(options());
    announcing(&mut world);
    (CHILD..CHILD + 3).for_each(|child| fork(&mut world, child, PID));
    world.run_for(100);
    overspend(&mut world, PID);
    exit(&mut world, PID);
    world.run_for(100);
    let sampled = [CHILD, CHILD + 1, CHILD + 2].map(|child| (child, sample(&mut world, child, JIT + 8)));
    let account = world.finish().account.clone();
    assert_eq!(sampled.map(|(child, at)| stack(&world, child, at)), [UNNAMED; 3]);
    assert_eq!((account.processes.copies_refused, said(&account)), (3, 1));
}

#[test]
fn a_child_that_is_known_before_its_making_is_refused_a_copy_for_good_too() {
    for is_refused in [false, true] {
        let mut world = World::new(options());
        announcing(&mut world);
        let start = world.now;
        let mut made = world.machine.processes[&PID].clone();
        (made.read.via, made.read.start, made.read.parent) = (Pid(CHILD), start, Pid(PID));
        made.read.threads = vec![Tid(CHILD)];
        world.machine.processes.insert(CHILD, made);
        world.run_for(50);
        if is_refused {
            overspend(&mut world, PID);
        }
        world.follow(&[CHILD]);
        // The report of its making comes late, and it is read once more.
        let (pid, parent_pid) = (Pid(CHILD), Pid(PID));
        world.task_at(start, TaskChange::Fork { pid, parent_pid, tid: Tid(CHILD), parent_tid: Tid(PID) });
        world.run_for(3000);
        world.follow(&[CHILD]);
        world.run_for(300);
        let at = sample(&mut world, CHILD, JIT + 8);
        let refused = world.finish().account.processes.copies_refused;
        let told = if is_refused { UNNAMED } else { "_start;main;inherited" };
        assert_eq!((stack(&world, CHILD, at).as_str(), refused), (told, u64::from(is_refused)));
    }
}

#[test]
fn children_of_children_have_copies_for_who_announced_the_code() {
    let mut world = World::new(options());
    announcing(&mut world);
    fork(&mut world, CHILD, PID);
    sample(&mut world, CHILD, JIT + 8);
    overspend(&mut world, PID);
    fork(&mut world, CHILD + 1, CHILD);
    sample(&mut world, CHILD + 1, JIT + 8);
    assert!(live(&world, CHILD).code.is_known() && live(&world, CHILD + 1).lacks_inherited);
    let root = live(&world, PID).holder();
    assert_eq!([CHILD, CHILD + 1].map(|child| live(&world, child).copy_payer()), [root; 2]);
    // Another program is nobody's copy.
    let other = mapped(&world, APP, "/bin/app");
    exec(&mut world, CHILD + 1, "/bin/app", vec![other]);
    world.run_for(300);
    let child = live(&world, CHILD + 1);
    assert!(child.copy_payer() == child.holder() && !child.lacks_inherited);
    // A user pays for whatever his processes have.
    let id = live(&world, CHILD).id;
    world.engine.tracking.processes.get_mut(id).unwrap().payer = Some(1000);
    assert_eq!(live(&world, CHILD).copy_payer(), Holder::User(1000));
    world.finish();
}

#[test]
fn all_workers_of_a_server_that_is_forked_before_it_serves_have_their_copies() {
    const WORKERS: u32 = 32;
    let mut world = World::new(EngineOptions { who: Who::All, ..options() });
    world.continuous(1000, 500);
    runtime(&mut world, PID);
    for number in 0..3_200_u64 {
        announce(&mut world, PID, (JIT + number * 16, 16, &format!("{number:0>1000}")));
    }
    announce(&mut world, PID, (JIT + 0xf_0000, 16, "inherited"));
    world.run_for(2000);
    hide_dump(&mut world);
    assert!(live(&world, PID).code.inherited_bytes() > 3 << 20);
    let workers = CHILD..CHILD + WORKERS;
    workers.clone().for_each(|worker| fork(&mut world, worker, PID));
    world.run_for(100);
    let at = (world.now.0 - BEGIN.0) / MS;
    workers.clone().for_each(|worker| world.sample(worker, &[JIT + 0xf_0008, MAIN, START]));
    world.run_for(500);
    let account = world.finish().account.clone();
    assert!(workers.clone().all(|worker| stack(&world, worker, at) == "_start;main;inherited"));
    assert_eq!((account.processes.copies_refused, said(&account)), (0, 0));
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
