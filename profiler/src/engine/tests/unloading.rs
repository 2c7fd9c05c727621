//! Methods whose classes are unloaded, and others that take their places.

use jitprof_common::units::{MonoNs, Pid};

use super::frames::{asked, hold_answers, sample};
use super::stories::*;
use crate::engine::world::{Fate, World, options};
use crate::runtime::{Capture, FoundCode, FoundFrame, TakeRead};

const PID: u32 = 100;
const INTERPRETER: u64 = JIT + 0x1000;
const STACK: [u64; 3] = [INTERPRETER + 8, MAIN, START];

/// A JVM whose interpreter runs a method, and which has unloaded a class.
fn jvm(method: &str) -> World {
    let mut world = World::new(options());
    app(&mut world, PID);
    let interpreter = FoundCode {
        start: avma(INTERPRETER),
        size: 0x800,
        name: "Interpreter".to_owned(),
        frame: FoundFrame::Interpreter,
        number: 0,
        lines: None,
        registered: None,
    };
    let slots = TakeRead { base: None, offset: -64, words: 8, to: 0, tagged: false };
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    runtime.name = Some("HotSpot 25.0.3".to_owned());
    runtime.code = vec![interpreter];
    let generated = Some((avma(INTERPRETER), 0x800));
    runtime.capture = Some(Capture { reads: vec![slots], key: 5, generated, ..Capture::default() });
    let since = world.now;
    unload(&mut world, 1, method, since);
    world.follow(&[PID]);
    world.run_for(200);
    assert!(world.kernel.takes.contains_key(&Pid(PID)));
    world
}

/// So many classes are unloaded by now, and at the same place is this method, which may have been there since then.
fn unload(world: &mut World, count: u64, method: &str, since: MonoNs) {
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    runtime.functions = [(2, method.to_owned())].into();
    runtime.unloads = Some((count, since));
}

fn run(world: &mut World) -> u64 {
    sample(world, &STACK, &[(0, 2)])
}

fn names(mut world: World, times: &[u64]) -> Vec<String> {
    world.run_for(600);
    assert_eq!(world.engine.progress().waiting, 0);
    world.finish();
    times.iter().map(|at| stack(&world, PID, *at)).collect()
}

#[test]
fn a_method_in_the_place_of_an_unloaded_one_is_looked_at_again_however_new_the_answer_is() {
    let mut world = jvm("old");
    let old = run(&mut world);
    world.run_for(300);
    let since = world.now;
    unload(&mut world, 2, "new", since);
    let new = run(&mut world);
    assert_eq!(names(world, &[old, new]), ["_start;main;old", "_start;main;new"]);
}

#[test]
fn a_method_that_was_unloaded_before_it_was_looked_at_is_not_named_by_the_next_one() {
    let mut world = jvm("old");
    hold_answers(&mut world);
    let old = run(&mut world);
    world.run_for(50);
    let since = world.now;
    unload(&mut world, 2, "new", since);
    let new = run(&mut world);
    world.decide = Box::new(|_| Fate::Answer);
    world.release();
    world.run_for(600);
    world.finish();
    assert_eq!(stack(&world, PID, old), "_start;main;Interpreter");
    assert_eq!(stack(&world, PID, new), "_start;main;new");
}

#[test]
fn an_unloaded_method_that_is_still_there_when_it_is_looked_at_is_not_what_comes_to_its_place() {
    let mut world = jvm("old");
    hold_answers(&mut world);
    let old = run(&mut world);
    world.run_for(50);
    // It is counted as unloaded, and not freed yet.
    let since = world.now;
    unload(&mut world, 2, "old", since);
    world.run_for(5);
    world.decide = Box::new(|_| Fate::Answer);
    world.release();
    world.run_for(60);
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    runtime.functions = [(2, "new".to_owned())].into();
    let new = run(&mut world);
    world.run_for(150);
    let later = run(&mut world);
    world.run_for(600);
    world.finish();
    assert_eq!(stack(&world, PID, old), "_start;main;Interpreter");
    for at in [new, later] {
        assert_eq!(stack(&world, PID, at), "_start;main;new");
    }
}

#[test]
fn a_method_that_stays_is_named_whatever_is_unloaded() {
    let mut world = jvm("stays");
    let since = world.now;
    let mut times = Vec::new();
    for count in 2..6 {
        times.push(run(&mut world));
        world.run_for(40);
        unload(&mut world, count, "stays", since);
        times.push(run(&mut world));
        world.run_for(110);
    }
    assert_eq!(names(world, &times), vec!["_start;main;stays"; times.len()]);
}

#[test]
fn as_long_as_nothing_is_unloaded_an_answer_is_one_for_all() {
    let mut world = jvm("stays");
    let times: Vec<u64> = (0..6)
        .map(|_| {
            world.run_for(110);
            run(&mut world)
        })
        .collect();
    world.run_for(300);
    assert_eq!(asked(&world).iter().map(Vec::len).sum::<usize>(), 1);
    assert_eq!(names(world, &times), vec!["_start;main;stays"; times.len()]);
}
