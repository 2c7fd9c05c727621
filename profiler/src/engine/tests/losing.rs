//! What is not known, not known yet, or known wrongly: lost events, files that are replaced, answers that do not come.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jitprof_common::units::{MonoNs, Pid, Tid};

use super::stories::*;
use crate::engine::border::{Order, Request, Sample, WhyUnread};
use crate::engine::world::machine::{file_mapping, memory_mapping};
use crate::engine::world::{BEGIN, Fate, MS, World, options, raw_sample};
use crate::engine::{EngineOptions, Input, Who};
use crate::process::event::TaskChange;
use crate::process::{Mapping, MappingKind};
use crate::symbol::SymbolKey;

const PID: u32 = 100;

fn all() -> World {
    World::new(EngineOptions { who: Who::All, ..options() })
}

fn now(world: &World) -> u64 {
    (world.now.0 - BEGIN.0) / MS
}

#[test]
fn sideband_events_were_lost_so_mappings_are_read_again() {
    let mut world = all();
    app(&mut world, PID);
    app(&mut world, PID + 1);
    let first = now(&world);
    world.sample(PID, &[MAIN, START]);
    world.sample(PID + 1, &[MAIN, START]);
    world.run_for(300);
    // Another program is mapped there, a process ends, and nothing tells of it.
    let inode = world.machine.add_program("/lib/other", b"other", &[(0, "_init"), (0x1000, "exported")]);
    let mappings = world.machine.mappings_mut(PID).unwrap();
    mappings[0] = file_mapping(APP, 0x1_0000, inode, "/lib/other");
    world.machine.processes.remove(&(PID + 1));
    world.task(TaskChange::Lost { count: 2 });
    world.run_for(300);
    let second = now(&world);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    assert!(world.engine.tracking.processes.live_of(Pid(PID + 1)).is_none());
    let account = world.finish().account.clone();
    assert_eq!([first, second].map(|at| stack(&world, PID, at)), ["_start;main", "_init;exported"]);
    assert_eq!(account.processes.events_lost, 2);
}

#[test]
fn what_there_was_no_time_to_read_again_is_read_later() {
    let mut world = all();
    app(&mut world, PID);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    let inode = world.machine.add_program("/lib/other", b"other", &[(0, "_init"), (0x1000, "exported")]);
    world.machine.mappings_mut(PID).unwrap()[0] = file_mapping(APP, 0x1_0000, inode, "/lib/other");
    world.decide = Box::new(|request| match request {
        Request::Process { .. } => Fate::Stall,
        _ => Fate::Answer,
    });
    world.task(TaskChange::Lost { count: 2 });
    world.run_for(300);
    world.decide = Box::new(|_| Fate::Answer);
    world.run_for(6000);
    let at = now(&world);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_init;exported");
}

#[test]
fn a_file_that_did_not_answer_is_asked_for_again_for_all_who_have_it_from_one_fork() {
    let mut world = all();
    app(&mut world, PID);
    world.decide = Box::new(|request| match request {
        Request::Identify { .. } => Fate::Stall,
        _ => Fate::Answer,
    });
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    fork(&mut world, PID + 1, PID);
    world.run_for(10);
    // Who asked is there no more.
    exit(&mut world, PID);
    world.decide = Box::new(|_| Fate::Answer);
    world.run_for(6000);
    let at = now(&world);
    world.sample(PID + 1, &[MAIN, START]);
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID + 1, at), "_start;main");
}

#[test]
fn a_run_for_a_process_that_cannot_be_read_in_time_goes_on() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.decide = Box::new(|request| match request {
        Request::Process { .. } => Fate::Stall,
        _ => Fate::Answer,
    });
    world.follow(&[PID]);
    world.run_for(300);
    world.decide = Box::new(|_| Fate::Answer);
    world.run_for(6000);
    assert!(!world.have_targets_ended, "it runs");
    let at = now(&world);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main");
}

#[test]
fn a_dump_that_could_not_be_read_in_time_is_read_later() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    world.decide = Box::new(|request| match request {
        Request::Read { .. } => Fate::Stall,
        _ => Fate::Answer,
    });
    announce(&mut world, PID, (JIT, 64, "function"));
    world.run_for(300);
    world.decide = Box::new(|_| Fate::Answer);
    world.run_for(300);
    let at = now(&world);
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;function");
}

#[test]
fn a_file_is_closed_soon_after_its_last_process_has_ended() {
    let mut world = all();
    app(&mut world, PID);
    let at = now(&world);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    let file = {
        let process = world.engine.tracking.processes.live_of(Pid(PID)).unwrap();
        process.space.live().find_map(|mapped| mapped.link.file()).unwrap()
    };
    let is_open = |world: &World| world.engine.files.is_open(file);
    assert!(is_open(&world));
    exit(&mut world, PID);
    world.run_for(4000);
    assert!(!is_open(&world), "its file system can be unmounted");
    world.engine.assert_sound();
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main");
}

#[test]
fn a_program_whose_reading_stalls_is_read_later() {
    let mut world = all();
    app(&mut world, PID);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    let program = |world: &World| {
        let process = world.engine.tracking.processes.live_of(Pid(PID)).unwrap();
        process.known_program().and_then(|program| program.exe.clone())
    };
    let inode = world.machine.add_program("/bin/other", b"other", &[(0, "_start"), (0x1000, "entry")]);
    world.decide = Box::new(|request| match request {
        Request::Process { .. } => Fate::Stall,
        _ => Fate::Answer,
    });
    exec(&mut world, PID, "/bin/other", vec![file_mapping(APP, 0x1_0000, inode, "/bin/other")]);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    world.decide = Box::new(|_| Fate::Answer);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    assert_eq!(program(&world), None, "it is not asked again and again");
    world.run_for(5000);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    assert_eq!(program(&world).as_deref(), Some("/bin/other"));
    world.finish();
}

#[test]
fn who_runs_is_asked_again_if_there_was_no_answer() {
    let mut world = all();
    for pid in [PID, PID + 1] {
        app(&mut world, pid);
        world.sample(pid, &[MAIN, START]);
    }
    world.run_for(300);
    world.machine.processes.remove(&(PID + 1));
    world.decide = Box::new(|request| match request {
        Request::Running => Fate::Stall,
        _ => Fate::Answer,
    });
    world.task(TaskChange::Lost { count: 2 });
    world.run_for(300);
    let lives = |world: &World| world.engine.tracking.processes.live_of(Pid(PID + 1)).is_some();
    assert!(lives(&world), "nobody has told of its end");
    world.decide = Box::new(|_| Fate::Answer);
    world.run_for(6000);
    assert!(!lives(&world));
    world.finish();
}

#[test]
fn a_process_that_is_read_again_while_it_ends_stays_ended() {
    let mut world = all();
    app(&mut world, PID);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    world.decide = Box::new(|request| match request {
        Request::Process { .. } | Request::Running => Fate::HoldAnswer,
        _ => Fate::Answer,
    });
    world.holds_names = true;
    world.task(TaskChange::Lost { count: 1 });
    world.run_for(200);
    let at = now(&world);
    world.sample(PID, &[HELPER, START]);
    world.run_for(10);
    exit(&mut world, PID);
    world.run_for(10);
    world.release();
    world.run_for(300);
    assert!(world.engine.tracking.processes.live_of(Pid(PID)).is_none());
    world.engine.assert_sound();
    world.holds_names = false;
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;helper");
}

#[test]
fn a_process_whose_end_was_seen_too_early_comes_back_with_its_next_sample() {
    let mut world = all();
    app(&mut world, PID);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    // It has a thread that nobody knows of.
    world.machine.processes.get_mut(&PID).unwrap().read.threads = vec![Tid(PID + 7)];
    world.task(TaskChange::Exit { pid: Pid(PID), tid: Tid(PID) });
    world.run_for(500);
    assert!(world.engine.tracking.processes.live_of(Pid(PID)).is_none());
    let at = now(&world);
    world.sample(PID, &[HELPER, START]);
    world.run_for(300);
    assert!(world.engine.tracking.processes.live_of(Pid(PID)).is_some());
    world.engine.assert_sound();
    world.task(TaskChange::Exit { pid: Pid(PID), tid: Tid(PID + 7) });
    world.run_for(300);
    assert!(world.engine.tracking.processes.live_of(Pid(PID)).is_none());
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;helper");
}

#[test]
fn a_stranger_with_the_number_of_a_process_that_has_ended_is_another_process() {
    let mut world = all();
    app(&mut world, PID);
    let first = now(&world);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    exit(&mut world, PID);
    let late = now(&world);
    world.sample_at(MonoNs(world.now.0 + 1), PID, &[HELPER, START]);
    world.run_for(5000);
    // Nobody tells of its birth: its parent is not known.
    let inode = world.machine.add_program("/bin/other", b"other", &[(0, "_start"), (0x1000, "entry")]);
    let start = world.now;
    world.machine.add_process(PID, start, "/bin/other", vec![file_mapping(APP, 0x1_0000, inode, "/bin/other")]);
    world.run_for(200);
    let second = now(&world);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    world.finish();
    let told = [first, late, second].map(|at| stack(&world, PID, at));
    assert_eq!(told, ["_start;main", "_start;helper", "_start;entry"]);
}

#[test]
fn samples_of_a_process_that_is_never_read_are_in_the_profile() {
    let mut world = all();
    app(&mut world, PID);
    world.decide = Box::new(|request| match request {
        Request::Process { .. } => Fate::Hold,
        _ => Fate::Answer,
    });
    world.sample(PID, &[MAIN, START]);
    world.run_for(500);
    let account = &world.finish().account;
    assert_eq!((account.samples.delivered, account.samples.process_gone), (1, 1));
}

#[test]
fn a_process_that_is_gone_is_looked_for_again_when_somebody_has_its_number() {
    let mut world = all();
    world.sample(PID, &[MAIN, START]);
    world.run_for(200);
    world.sample(PID, &[MAIN, START]);
    world.run_for(200);
    let looks = |world: &World| {
        world.asked.iter().filter(|request| matches!(request, Request::Process { maps: true, .. })).count()
    };
    assert_eq!(looks(&world), 1);
    world.run_for(1000);
    app(&mut world, PID);
    let at = now(&world);
    world.sample(PID, &[MAIN, START]);
    world.run_for(200);
    assert_eq!(looks(&world), 2);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main");
}

#[test]
fn a_file_that_was_replaced_before_it_was_opened_gives_no_names() {
    let mut world = all();
    app(&mut world, PID);
    world.decide = Box::new(|request| match request {
        Request::Identify { .. } => Fate::Hold,
        _ => Fate::Answer,
    });
    let at = now(&world);
    world.sample(PID, &[MAIN, START]);
    world.run_for(50);
    // Another file is mapped there by the time somebody looks, and its place has it.
    let inode = world.machine.add_program("/bin/app", b"new", &[(0, "new"), (0x1000, "new")]);
    map(&mut world, PID, file_mapping(APP, 0x1_0000, inode, "/bin/app"));
    world.machine.inodes.remove(&1);
    world.run_for(10);
    world.release();
    world.run_for(500);
    let later = now(&world);
    world.sample(PID, &[MAIN, START]);
    world.run_for(500);
    let account = world.finish().account.clone();
    assert_eq!([at, later].map(|at| stack(&world, PID, at)), ["[replaced];[replaced]", "new;new"]);
    assert_eq!(account.files.replaced, 1);
}

#[test]
fn a_file_whose_place_does_not_answer_is_named_by_its_path() {
    let mut world = all();
    app(&mut world, PID);
    world.decide = Box::new(|request| match request {
        Request::Identify { .. } => Fate::Stall,
        _ => Fate::Answer,
    });
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    let account = world.finish().account.clone();
    assert!(stack(&world, PID, 0).ends_with("[app];[app]"));
    assert_eq!((account.files.unreadable, account.native_unnamed), (1, 2));
    assert!(account.remarks.iter().any(|remark| remark.contains("no names for /bin/app")));
}

#[test]
fn a_file_whose_place_did_not_answer_is_asked_for_again_ever_less_often() {
    let mut world = all();
    app(&mut world, PID);
    world.decide = Box::new(|request| match request {
        Request::Identify { .. } => Fate::Stall,
        _ => Fate::Answer,
    });
    let asked = |world: &World| world.asked.iter().filter(|what| matches!(what, Request::Identify { .. })).count();
    world.sample(PID, &[MAIN, START]);
    world.run_for(1000);
    assert_eq!(asked(&world), 1);
    world.run_for(60_000);
    // After 5 and 20 seconds; then after 80.
    assert_eq!(asked(&world), 3);
    world.decide = Box::new(|_| Fate::Answer);
    world.run_for(80_000);
    assert_eq!(asked(&world), 4);
    let at = now(&world);
    world.sample(PID, &[MAIN, START]);
    world.run_for(1000);
    assert!(world.kernel.row(PID, MAIN).is_some());
    world.run_for(1_000_000);
    assert_eq!(asked(&world), 4);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main");
}

#[test]
fn not_all_mappings_of_a_process_that_did_not_answer_are_asked_for_again() {
    let mut world = all();
    app(&mut world, PID);
    let inode = world.machine.paths["/bin/app"];
    let many = (0..200).map(|at| file_mapping(0x1000_0000 + at * 0x2_0000, 0x1_0000, inode, "/bin/app"));
    world.machine.mappings_mut(PID).unwrap().extend(many);
    world.decide = Box::new(|request| match request {
        Request::Identify { .. } => Fate::Stall,
        _ => Fate::Answer,
    });
    let asked = |world: &World| world.asked.iter().filter(|what| matches!(what, Request::Identify { .. })).count();
    world.sample(PID, &[MAIN, START]);
    world.run_for(1000);
    assert_eq!(asked(&world), 201);
    world.run_for(10_000);
    assert_eq!(asked(&world), 201 + 64);
    world.finish();
}

#[test]
fn a_process_that_maps_ten_thousand_times_a_second_is_not_followed_mapping_by_mapping() {
    const PLUGIN: u64 = 0x2000_0000;
    let mut world = all();
    app(&mut world, PID);
    app(&mut world, PID + 1);
    let inode = world.machine.add_program("/lib/plugin", b"plugin", &[(0, "plugin")]);
    for pid in [PID, PID + 1] {
        world.sample(pid, &[MAIN, START]);
    }
    world.run_for(100);
    let of_process = |world: &World, pid: u32| {
        let is_its =
            |what: &&Request| matches!(what, Request::Process { pid: asked, maps: true, .. } if asked.0 == pid);
        world.asked.iter().filter(is_its).count()
    };
    let before = of_process(&world, PID);
    // As a storm of dlopen and dlclose: two hundred plugins at other addresses again and again, for two seconds.
    for round in 0..100 {
        for at in 0..200_u64 {
            let place = PLUGIN + (round % 7 * 200 + at) * 0x1_0000;
            map(&mut world, PID, file_mapping(place, 0x1_0000, inode, "/lib/plugin"));
        }
        world.run_for(20);
    }
    // What lies where is not known meanwhile: nothing is named by what lay there before.
    let then = now(&world);
    world.sample(PID, &[PLUGIN + 8]);
    world.sample(PID + 1, &[MAIN, START]);
    world.run_for(4000);
    // It was read when it had come to rest.
    let at = now(&world);
    world.sample(PID, &[PLUGIN + 8, MAIN, START]);
    world.run_for(500);
    let reads = of_process(&world, PID) - before;
    assert!((1..=3).contains(&reads), "{reads}");
    world.finish();
    assert_eq!(stack(&world, PID + 1, then), "_start;main");
    assert_eq!(stack(&world, PID, at), "_start;main;plugin");
    assert_eq!(stack(&world, PID, then), "[mapping not known]");
}

#[test]
fn what_was_mapped_when_events_were_lost_is_not_known_until_mappings_are_read_again() {
    const PLUGIN: u64 = 0x2000_0000;
    let mut world = all();
    app(&mut world, PID);
    let inode = world.machine.add_program("/lib/plugin", b"plugin", &[(0, "plugin")]);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    world.machine.mappings_mut(PID).unwrap().push(file_mapping(PLUGIN, 0x1_0000, inode, "/lib/plugin"));
    world.task(TaskChange::Lost { count: 1 });
    let before = now(&world);
    world.sample(PID, &[PLUGIN + 8, MAIN, START]);
    world.run_for(300);
    let after = now(&world);
    world.sample(PID, &[PLUGIN + 8, MAIN, START]);
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID, before), "_start;main;[mapping not known]");
    assert_eq!(stack(&world, PID, after), "_start;main;plugin");
}

#[test]
fn what_a_process_has_mapped_beyond_the_bound_is_not_said_to_be_unmapped() {
    const PIECES: u64 = 16 << 10;
    const MANY: u64 = 0x10_0000_0000;
    // The program's own two mappings come first.
    const LEFT_OUT: u64 = MANY + (PIECES - 1) * 0x2000 + 8;
    let mut world = all();
    for pid in [PID, PID + 1] {
        app(&mut world, pid);
    }
    let pieces = (0..PIECES).map(|at| memory_mapping(MANY + at * 0x2000, 0x1000));
    world.machine.mappings_mut(PID).unwrap().extend(pieces);
    for pid in [PID, PID + 1] {
        world.sample(pid, &[MAIN, START]);
    }
    world.run_for(300);
    let ran = now(&world);
    for pid in [PID, PID + 1] {
        world.sample(pid, &[LEFT_OUT, MAIN, START]);
    }
    world.run_for(100);
    let called = now(&world);
    for pid in [PID, PID + 1] {
        world.sample(pid, &[MAIN, LEFT_OUT, START]);
    }
    world.run_for(300);
    // Most of it goes, which nothing tells of, and what there is is read again.
    world.machine.mappings_mut(PID).unwrap().truncate(2);
    world.task(TaskChange::Lost { count: 1 });
    world.run_for(300);
    let later = now(&world);
    world.sample(PID, &[LEFT_OUT, MAIN, START]);
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID, ran), "_start;main;[mapping not known]");
    assert_eq!(stack(&world, PID + 1, ran), "_start;main;[unmapped]");
    assert_eq!(stack(&world, PID, called), "[cut: return address where mappings are not known];main");
    assert_eq!(stack(&world, PID + 1, called), "[cut: return address outside executable mappings];main");
    assert_eq!(stack(&world, PID, later), "_start;main;[unmapped]");
}

#[test]
fn copies_of_a_file_are_one_and_files_of_one_build_id_are_not() {
    let mut world = all();
    let names = [(0, "_start"), (0x1000, "main")];
    for (pid, path, bytes) in [(100, "/a/app", "same"), (101, "/b/app", "same"), (102, "/c/app", "else")] {
        let inode = world.machine.add_program(path, b"build", &names);
        let file = world.machine.inodes.get_mut(&inode).unwrap();
        file.bytes = bytes.as_bytes().to_vec();
        file.identity.len = 4;
        let start = MonoNs(world.now.0 - 1000 * MS);
        world.machine.add_process(pid, start, path, vec![file_mapping(APP, 0x1_0000, inode, path)]);
        world.sample(pid, &[MAIN, START]);
        world.run_for(300);
    }
    let object = |pid| world.kernel.region(pid, MAIN).map(|region| region.object);
    assert!(object(100).is_some_and(|object| object != 0));
    assert_eq!(object(100), object(101), "a copy has its original's rows");
    assert_ne!(object(100), object(102));
    let digests = world.asked.iter().filter(|request| matches!(request, Request::Contents { .. })).count();
    assert_eq!(digests, 3);
    let account = world.finish().account.clone();
    assert_eq!(account.files.copies, 1);
}

#[test]
fn copies_are_found_out_although_the_first_of_them_is_gone() {
    let mut world = all();
    let names = [(0, "_start"), (0x1000, "main")];
    for (pid, path) in [(100, "/a/app"), (101, "/b/app"), (102, "/c/app")] {
        let inode = world.machine.add_program(path, b"build", &names);
        let file = world.machine.inodes.get_mut(&inode).unwrap();
        (file.bytes, file.identity.len) = (b"same".to_vec(), 4);
        let start = MonoNs(world.now.0 - 1000 * MS);
        world.machine.add_process(pid, start, path, vec![file_mapping(APP, 0x1_0000, inode, path)]);
        world.sample(pid, &[MAIN, START]);
        world.run_for(300);
        if pid == 100 {
            exit(&mut world, pid);
            world.continuous(1_000_000, 0);
            world.run_for(10_000);
            assert!(world.machine.open.is_empty());
        }
    }
    world.run_for(300);
    let again = |with: bool| {
        let is_again = |what: &&Request| matches!(what, Request::Open { debug, .. } if *debug == with);
        world.asked.iter().filter(is_again).count()
    };
    assert!(again(false) > 0 && again(true) == 0, "the root is looked into once, before anybody has its names");
    assert_eq!(world.finish().account.files.copies, 1);
}

#[test]
fn a_file_with_a_debug_file_of_its_own_root_names_no_copy_and_is_none() {
    let mut world = all();
    let names = [(0, "_start"), (0x1000, "main")];
    let made = [(100, "/a/app", true), (101, "/b/app", false), (102, "/c/app", true), (103, "/d/app", false)];
    for (pid, path, own_debug) in made {
        let inode = world.machine.add_program(path, b"build", &names);
        let file = world.machine.inodes.get_mut(&inode).unwrap();
        (file.bytes, file.identity.len, file.own_debug) = (b"same".to_vec(), 4, own_debug);
        let start = MonoNs(world.now.0 - 1000 * MS);
        world.machine.add_process(pid, start, path, vec![file_mapping(APP, 0x1_0000, inode, path)]);
        world.sample(pid, &[MAIN, START]);
        world.run_for(300);
    }
    let object = |pid| world.kernel.region(pid, MAIN).map(|region| region.object);
    assert!(object(101).is_some() && object(101) == object(103));
    assert!([100, 102].iter().all(|pid| object(*pid).is_some() && object(*pid) != object(101)));
    assert_eq!(world.finish().account.files.copies, 1);
}

#[test]
fn a_file_is_closed_when_nobody_maps_it_and_opened_again() {
    let mut world = all();
    app(&mut world, PID);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    assert_eq!(world.machine.open.len(), 1);
    // The last one that maps it maps something else over it.
    map(&mut world, PID, memory_mapping(APP, 0x1_0000));
    exit(&mut world, PID);
    world.continuous(1_000_000, 0);
    world.run_for(10_000);
    assert!(world.machine.open.is_empty());
    app(&mut world, PID + 1);
    let at = now(&world);
    world.sample(PID + 1, &[HELPER, START]);
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID + 1, at), "_start;helper");
}

#[test]
fn a_known_file_that_cannot_be_opened_again_costs_its_new_names_only() {
    let mut world = all();
    app(&mut world, PID);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    exit(&mut world, PID);
    world.continuous(1_000_000, 0);
    world.run_for(10_000);
    world.decide = Box::new(|request| match request {
        Request::Open { .. } => Fate::Fail(WhyUnread::Failed),
        _ => Fate::Answer,
    });
    app(&mut world, PID + 1);
    let at = now(&world);
    world.sample(PID + 1, &[MAIN, HELPER, START]);
    world.run_for(300);
    world.decide = Box::new(|_| Fate::Answer);
    exit(&mut world, PID + 1);
    world.run_for(300);
    // It is not the file's fault.
    app(&mut world, PID + 2);
    let later = now(&world);
    world.sample(PID + 2, &[MAIN, HELPER, START]);
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID + 1, at), "_start;[app+0x200f];main", "what was named stays named");
    assert_eq!(stack(&world, PID + 2, later), "_start;helper;main");
}

#[test]
fn a_file_that_cannot_be_opened_through_one_process_is_opened_through_another_that_maps_it() {
    for why in [Some(WhyUnread::Gone), None] {
        let mut world = all();
        app(&mut world, PID);
        world.sample(PID, &[MAIN, START]);
        world.run_for(300);
        exit(&mut world, PID);
        world.continuous(1_000_000, 0);
        world.run_for(10_000);
        let asked = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&asked);
        // Of those who map it now, the first one alone can be asked.
        world.decide = Box::new(move |request| match request {
            Request::Open { via, .. } => {
                count.fetch_add(1, Ordering::Relaxed);
                if *via == Pid(PID + 1) { Fate::Answer } else { why.map_or(Fate::Stall, Fate::Fail) }
            }
            _ => Fate::Answer,
        });
        let at = now(&world);
        for pid in PID + 1..PID + 9 {
            app(&mut world, pid);
            world.sample(pid, &[MAIN, HELPER, START]);
        }
        world.run_for(300);
        world.finish();
        assert_eq!(stack(&world, PID + 1, at), "_start;helper;main", "{why:?}");
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }
}

#[test]
fn kernel_frames_the_vdso_and_memory_of_the_kernels_making_have_their_names() {
    let mut world = all();
    app(&mut world, PID);
    let special = |start, path: &str, kind| Mapping { kind, inode: 0, ..file_mapping(start, 0x1000, 0, path) };
    let mappings = world.machine.mappings_mut(PID).unwrap();
    mappings.push(special(0x7ff0_0000, "[vdso]", MappingKind::Vdso));
    mappings.push(special(0x7ff1_0000, "[vsyscall]", MappingKind::Vsyscall));
    world.machine.open.insert(crate::process::open::VDSO, 99);
    let mut vdso = world.machine.inodes[&1].clone();
    vdso.symbols = [(0, "__vdso_clock_gettime".to_owned())].into();
    world.machine.inodes.insert(99, vdso);
    let sample = raw_sample(world.now, PID, &[0x7ff0_0010, 0x7ff1_0010, MAIN, START], None);
    world.give(&Sample { kernel: Cow::Borrowed(&[0xffff_ffff_8100_0010, 0xffff_ffff_8100_0021]), ..sample });
    world.run_for(300);
    world.finish();
    let expected = "_start;main;[vsyscall];__vdso_clock_gettime;kernel_ffffffff81000020;kernel_ffffffff81000010";
    assert_eq!(stack(&world, PID, 0), expected);
}

#[test]
fn a_stack_is_cut_at_a_word_that_is_no_code() {
    let mut world = all();
    app(&mut world, PID);
    world.sample(PID, &[MAIN, 0x1234, START]);
    world.run_for(300);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, 0), "[cut: return address outside executable mappings];main");
    assert_eq!(account.stacks.cut["return address outside executable mappings"], 1);
    assert_eq!(account.stacks.complete, 0);
}

#[test]
fn names_that_do_not_come_are_waited_for_and_then_counted() {
    let mut world = all();
    app(&mut world, PID);
    world.holds_names = true;
    world.sample(PID, &[MAIN, START]);
    world.run_for(1000);
    assert_eq!(world.engine.progress().waiting, 1);
    world.run_for(30_000);
    assert_eq!(world.engine.progress().waiting, 0, "no longer than a sample waits at most");
    // They come for the next ones.
    world.holds_names = false;
    world.run_for(300);
    world.holds_names = true;
    let later = now(&world);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    world.sample(PID, &[HELPER, START]);
    world.run_for(100);
    let account = world.finish().account.clone();
    assert!(account.remarks.iter().any(|remark| remark.contains("were not named in time")), "{account:?}");
    assert!(stack(&world, PID, 0).contains("[app+0x1010]"), "{}", stack(&world, PID, 0));
    assert_eq!(stack(&world, PID, later), "_start;main");
}

/// A call that leads nowhere, by a pointer that was never set.
#[test]
fn the_names_of_who_has_called_what_is_not_mapped_are_waited_for() {
    let mut world = all();
    app(&mut world, PID);
    world.run_for(200);
    world.holds_names = true;
    let ran = now(&world);
    world.sample(PID, &[16, MAIN, START]);
    world.run_for(1000);
    assert_eq!(world.engine.progress().waiting, 1);
    world.holds_names = false;
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID, ran), "_start;main;[unmapped]");
}

#[test]
fn a_dump_that_grows_faster_than_it_is_read_does_not_hold_up_the_end() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "function"));
    world.run_for(200);
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.decide = Box::new(|request| match request {
        Request::Read { .. } => Fate::Hold,
        _ => Fate::Answer,
    });
    let account = &world.finish().account;
    assert!(account.remarks.iter().any(|remark| remark.contains("grows faster than it can be read")));
}

#[test]
fn answers_that_nobody_has_asked_for_change_nothing() {
    use crate::engine::border::{Answer, AnswerBody, RequestId, RowsAnswer};
    use crate::process::open::FileId;
    use crate::symbol::{Name, NameAnswer};
    let mut world = all();
    app(&mut world, PID);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    let (begun, done) = (world.now, world.now);
    for number in 0..50 {
        let request = RequestId(number);
        world.feed(Input::Answer(Answer { request, begun, done, body: AnswerBody::Running(Vec::new()) }));
        let rows = Err(String::new());
        let file = FileId(u32::try_from(number).unwrap());
        world.feed(Input::Rows(RowsAnswer { file, took: std::time::Duration::ZERO, rows }));
        let key = SymbolKey::Kernel(avma(number));
        world.feed(Input::Names(vec![NameAnswer { key, name: Name::NotNow }]));
    }
    world.feed(Input::Remark("something went wrong".to_owned()));
    world.engine.assert_sound();
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, 0), "_start;main");
    assert_eq!(account.remarks, ["something went wrong"]);
}

#[test]
fn too_many_waiting_samples_cost_who_has_them_the_wait_of_the_oldest_and_nobody_else() {
    const MOST: usize = crate::engine::pending::MAX_PENDING;
    let mut world = World::new(options());
    runtime(&mut world, 200);
    runtime(&mut world, 100);
    // The oldest sample is another one's.
    let oldest = world.now;
    world.sample(200, &[JIT + 8, MAIN, START]);
    world.run_for(5);
    for at in 0..MOST as u64 {
        world.sample_at(MonoNs(world.now.0 + at), 100, &[JIT + 8, MAIN, START]);
    }
    world.run_for(200);
    let queued = |world: &World, pid| {
        let id = world.engine.tracking.processes.live_of(Pid(pid)).unwrap().id;
        world.engine.tracking.processes.get(id).unwrap().queue.len()
    };
    assert_eq!([200, 100].map(|pid| queued(&world, pid)), [1, MOST - MOST / 4 - 1]);
    // A name that comes late, as it does from a runtime that has a buffer.
    world.machine.append(&dump_path(200), &record(200, oldest, (JIT, 64, "function")));
    world.run_for(300);
    world.engine.assert_sound();
    let account = world.finish().account.clone();
    assert_eq!(account.samples.resolved_early, MOST as u64 / 4 + 1);
    assert_eq!(stack(&world, 200, (oldest.0 - BEGIN.0) / MS), "_start;main;function");
}

#[test]
fn a_change_of_the_frequency_counts_from_its_time_on() {
    let mut world = all();
    app(&mut world, PID);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    world.order(Order::Frequency(std::num::NonZeroU32::new(49).unwrap()));
    world.order(Order::Frequency(std::num::NonZeroU32::new(49).unwrap()));
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    let mut weights = Vec::new();
    let recorded = world.finish();
    recorded.profile.visit_rows(|row| weights.push(row.cpu_ns));
    weights.sort_unstable();
    assert_eq!(weights, [1_000_000_000 / 99, 1_000_000_000 / 49]);
    assert_eq!(recorded.account.frequency_hz, 49);
}

#[test]
fn jitprofs_own_file_in_its_child_is_not_unwound_by_rows() {
    let mut world = World::new(EngineOptions { own: Some((0x801, 1, Pid(7))), ..options() });
    app(&mut world, PID);
    world.machine.processes.get_mut(&PID).unwrap().read.parent = Pid(7);
    world.follow(&[PID]);
    world.run_for(300);
    assert_eq!(world.kernel.region(PID, MAIN).map(|region| region.object), Some(0));
    world.finish();
}

#[test]
fn no_more_files_are_open_than_may_be_and_a_closed_one_is_opened_again() {
    let mut world = all();
    let mut mappings = Vec::new();
    for number in 0..300_u64 {
        let path = format!("/lib/{number}.so");
        let inode = world.machine.add_program(&path, &[], &[(0, "function"), (0x1000, "other")]);
        mappings.push(file_mapping(APP + number * 0x1_0000, 0x1_0000, inode, &path));
    }
    let start = MonoNs(world.now.0 - 1000 * MS);
    world.machine.add_process(PID, start, "/lib/0.so", mappings);
    for number in 0..300 {
        world.sample(PID, &[APP + number * 0x1_0000 + 8]);
        world.run_for(20);
        world.engine.assert_sound();
        assert!(world.machine.open.len() <= 257, "one more for a moment");
    }
    world.run_for(300);
    let at = now(&world);
    world.sample(PID, &[APP + 0x1010]);
    world.run_for(300);
    let account = world.finish().account.clone();
    assert!(stack(&world, PID, at).ends_with("other"), "{}", stack(&world, PID, at));
    assert!(account.files.closed >= 44);
}

#[test]
fn a_name_that_there_was_no_time_for_is_asked_for_again() {
    let mut world = all();
    world.continuous(1_000_000, 0);
    app(&mut world, PID);
    world.holds_names = true;
    world.sample(PID, &[MAIN, START]);
    world.run_for(500);
    // What is loaded goes, and what was asked for with it.
    world.order(Order::Tight(true));
    world.holds_names = false;
    world.run_for(1500);
    assert_eq!(world.engine.progress().waiting, 0);
    world.finish();
    assert_eq!(stack(&world, PID, 0), "_start;main");
}

#[test]
fn what_nobody_waits_for_at_the_end_has_no_name_and_that_is_said() {
    let mut world = all();
    app(&mut world, PID);
    world.holds_names = true;
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    let limit = Duration::from_secs(20);
    world.order(Order::Finish { read_limit: limit, names_limit: limit, duration: limit });
    world.run_for(3000);
    assert!(world.recorded.is_none() && world.engine.progress().is_ending);
    world.order(Order::Hasten);
    world.run_for(1500);
    let account = world.recorded.as_ref().expect("it is over within a second").account.clone();
    assert_eq!(stack(&world, PID, 0), "[app+0xf];[app+0x1010]");
    assert!(account.remarks.iter().any(|remark| remark.contains("were not named in time")), "{account}");
}

#[test]
fn a_file_without_symbols_has_its_path_and_the_reason_is_counted() {
    use crate::symbol::Unresolved;
    let mut world = all();
    app(&mut world, PID);
    world.machine.file_mut("/bin/app").unwrap().symbols.clear();
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, 0), "[app+0xf];[app+0x1010]");
    assert_eq!(account.symbols.unresolved[&Unresolved::NoSymbols], 2);
}

#[test]
fn a_file_that_was_written_after_its_process_was_read_does_not_name_what_that_had_mapped() {
    for (written, expected) in [(5, "_start;main"), (30, "[replaced];[replaced]")] {
        let mut world = World::new(options());
        app(&mut world, 100);
        let inode = world.machine.paths["/bin/app"];
        let held = |what: &Request| matches!(what, Request::Identify { .. });
        world.decide = Box::new(move |what| if held(what) { Fate::Hold } else { Fate::Answer });
        world.follow(&[100]);
        world.run_for(20);
        world.machine.inodes.get_mut(&inode).unwrap().modified_at = ms(written);
        let at = now(&world);
        world.sample(100, &[MAIN, START]);
        world.run_for(20);
        world.release();
        world.run_for(400);
        world.finish();
        assert_eq!(stack(&world, 100, at), expected, "written after {written} ms");
    }
}

/// Return addresses in the program's mapping that no other call has given.
fn unlike(calls: &mut u64, count: u64) -> Vec<u64> {
    let first = APP + 0x4000 + *calls * count;
    *calls += 1;
    (first..first + count).collect()
}

#[test]
fn who_returns_to_addresses_without_end_fills_his_own_room_for_names_only() {
    let mut world = all();
    app(&mut world, PID);
    app(&mut world, PID + 1);
    // Of the hostile one a lot is mapped.
    let inode = world.machine.paths["/bin/app"];
    world.machine.mappings_mut(PID + 1).unwrap()[0] = file_mapping(APP, 0x10_0000, inode, "/bin/app");
    let mut calls = 0;
    for _ in 0..28 {
        let hostile = unlike(&mut calls, 1000);
        world.sample(PID + 1, &hostile);
        world.run_for(50);
    }
    let at = now(&world);
    world.sample(PID, &[HELPER, MAIN, START]);
    world.run_for(300);
    world.engine.assert_sound();
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "_start;main;helper");
    assert!(account.symbols.unresolved[&crate::symbol::Unresolved::TableFull] > 4_000, "{:?}", account.symbols);
}

#[test]
fn who_asks_for_much_does_not_stand_before_those_who_ask_for_little() {
    let mut world = all();
    app(&mut world, PID);
    app(&mut world, PID + 1);
    // Its file is open.
    world.sample(PID, &[START]);
    world.sample(PID + 1, &[START]);
    world.run_for(300);
    world.holds_names = true;
    let mut calls = 0;
    for _ in 0..4 {
        let hostile = unlike(&mut calls, 1000);
        world.sample(PID + 1, &hostile);
    }
    world.run_for(20);
    // The hostile one has asked for one of them, too, and would get to it last.
    world.sample(PID + 1, &[HELPER]);
    world.run_for(20);
    let at = now(&world);
    world.sample(PID, &[HELPER, MAIN]);
    world.run_for(20);
    // What was asked so far is answered, and nothing else.
    world.holds_names = false;
    world.turn(MonoNs(world.now.0 + MS));
    world.holds_names = true;
    world.run_for(300);
    let id = world.engine.tracking.processes.live_of(Pid(PID)).unwrap().id;
    assert!(world.engine.tracking.processes.get(id).unwrap().queue.is_empty(), "it waits for nobody");
    assert!(world.engine.resolving.names.waiting() > 1000, "and the other one waits");
    world.engine.assert_sound();
    world.holds_names = false;
    world.finish();
    assert_eq!(stack(&world, PID, at), "main;helper");
}

#[test]
fn addresses_without_an_answer_are_evicted_too() {
    let mut world = all();
    app(&mut world, PID);
    world.sample(PID, &[START]);
    world.run_for(300);
    world.holds_names = true;
    let at = now(&world);
    world.sample(PID, &[HELPER, MAIN]);
    world.run_for(20);
    let names = &mut world.engine.resolving.names;
    let waiting = names.waiting();
    for _ in 0..3 {
        names.evict_unused(0, 1);
    }
    assert_eq!((names.stats().requests, names.waiting()), (1, waiting), "the symbolizer has them still");
    world.engine.assert_sound();
    // The sample that waits has them asked for again.
    world.holds_names = false;
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID, at), "main;helper");
}

#[test]
fn too_many_stacks_cost_who_has_them_and_nobody_else() {
    let mut world = all();
    for pid in [PID, PID + 1] {
        app(&mut world, pid);
        world.sample(pid, &[START]);
    }
    world.run_for(300);
    world.holds_names = true;
    let at = now(&world);
    world.sample(PID, &[HELPER, MAIN]);
    world.run_for(50);
    let mut calls = 0;
    let samples = crate::engine::pending::MAX_STACK_WORDS / 1000 + 8;
    for _ in 0..samples {
        // Each waits for the name of its innermost frame, and where nothing is mapped it ends.
        let mut hostile = unlike(&mut calls, 1000);
        hostile.splice(0..0, [MAIN + 4, 0x10]);
        world.sample(PID + 1, &hostile);
    }
    world.run_for(300);
    let queued = |world: &World, pid| {
        let id = world.engine.tracking.processes.live_of(Pid(pid)).unwrap().id;
        world.engine.tracking.processes.get(id).unwrap().queue.iter().count()
    };
    assert_eq!((queued(&world, PID), queued(&world, PID + 1)), (1, 0));
    world.engine.assert_sound();
    world.holds_names = false;
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "main;helper");
    assert_eq!(account.samples.resolved_early, samples as u64);
}
