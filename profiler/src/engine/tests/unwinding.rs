//! What the BPF program unwinds by, and walks that are finished by rows that come later.

use jitprof_common::row::{CfaKind, Row, Rule};
use jitprof_common::sample::FramePc;
use jitprof_common::table::Region;
use jitprof_common::units::{MonoNs, Pid, Tid};

use super::stories::*;
use crate::engine::border::{FilePage, FileRows, Output, Refused, Request};
use crate::engine::pending::MAX_PENDING;
use crate::engine::tables::TableSizes;
use crate::engine::world::machine::{file_mapping, memory_mapping, plain_rows};
use crate::engine::world::{BEGIN, Fate, MS, World, options};
use crate::engine::{CallGraph, EngineOptions, Input, Who};
use crate::process::event::TaskChange;

const PID: u32 = 100;
const CHILD: u32 = 101;

/// What the BPF program finds the caller's frame by at an address.
fn cfa(world: &World, pid: u32, address: u64) -> Option<u8> {
    world.kernel.row(pid, address).map(Row::cfa_kind)
}

fn flags(world: &World, pid: u32, address: u64) -> Option<u32> {
    world.kernel.region(pid, address).map(|region| region.flags)
}

#[test]
fn rows_of_files_and_of_generated_code_are_in_the_tables_of_who_has_them_mapped() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    assert_eq!(cfa(&world, PID, MAIN), Some(CfaKind::Sp as u8));
    assert_eq!(cfa(&world, PID, JIT), None);
    assert_eq!(flags(&world, PID, JIT), Some(Region::GENERATED | Region::SNAPSHOT));
    announce(&mut world, PID, (JIT, 64, "function"));
    world.run_for(300);
    assert_eq!(cfa(&world, PID, JIT + 8), Some(CfaKind::Fp as u8));
    assert_eq!(cfa(&world, PID, 0x1000), None);
    assert_eq!(cfa(&world, CHILD, MAIN), None);
    exit(&mut world, PID);
    world.run_for(300);
    assert!(world.kernel.lists.is_empty(), "what has ended has nothing in the tables");
    let unwinding = world.finish().account.unwinding.unwrap();
    assert_eq!((unwinding.files, unwinding.jit_functions, unwinding.jit_delays), (1, 1, 1));
    assert!(unwinding.jit_delay_longest_ms >= unwinding.jit_delay_median_ms);
}

#[test]
fn a_child_is_walked_by_its_parents_code_until_it_has_its_own() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "function"));
    world.run_for(300);
    fork(&mut world, CHILD, PID);
    world.run_for(300);
    let object = |world: &World, pid| world.kernel.region(pid, JIT).map(|region| region.object);
    assert_eq!(object(&world, CHILD), object(&world, PID));
    announce(&mut world, PID, (JIT + 0x1000, 64, "parents"));
    world.run_for(300);
    world.sample(CHILD, &[JIT + 8, MAIN, START]);
    world.run_for(300);
    assert_ne!(object(&world, CHILD), object(&world, PID));
    assert_eq!(cfa(&world, CHILD, JIT + 8), Some(CfaKind::Fp as u8));
    // A child that execs before it has its own gives back what it borrowed.
    fork(&mut world, CHILD + 1, PID);
    let other = file_mapping(APP, 0x1_0000, world.machine.paths["/bin/app"], "/bin/app");
    exec(&mut world, CHILD + 1, "/bin/app", vec![other]);
    world.run_for(300);
    map(&mut world, CHILD + 1, memory_mapping(JIT, 0x10_0000));
    world.run_for(300);
    assert_ne!(object(&world, CHILD + 1), object(&world, PID));
    assert_eq!(cfa(&world, CHILD + 1, JIT + 8), None);
    world.finish();
}

#[test]
fn a_walk_that_met_new_code_is_finished_when_its_rows_have_come() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    world.run_for(100);
    announce(&mut world, PID, (JIT, 64, "function"));
    world.run_for(10);
    let at = (world.now.0 - BEGIN.0) / MS;
    // At the first instruction the return address is at the stack pointer.
    world.sample_with_stack(PID, &[JIT], &[MAIN, 7, START, 7, 0]);
    world.run_for(100);
    announce(&mut world, PID, (JIT + 0x1000, 64, "later"));
    world.run_for(500);
    assert_eq!(world.engine.progress().waiting, 0);
    let account = world.finish().account.clone();
    let deferred = account.deferred.unwrap();
    assert_eq!((deferred.snapshots, deferred.finished_by_rows, deferred.changed), (1, 1, 1));
    assert!(stack(&world, PID, at).ends_with("main;function"), "{}", stack(&world, PID, at));
}

#[test]
fn a_walk_is_finished_by_rows_that_come_after_older_samples_of_its_process_had_to_be_resolved() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    let begun = world.now;
    for number in 0..MAX_PENDING as u64 {
        world.sample_at(MonoNs(begun.0 + number), PID, &[JIT + 8, MAIN, START]);
    }
    world.run_for(10);
    let at = (world.now.0 - BEGIN.0) / MS;
    world.sample_with_stack(PID, &[JIT], &[MAIN, 7, START, 7, 0]);
    world.run_for(200);
    assert_eq!(world.engine.progress().waiting, MAX_PENDING - MAX_PENDING / 4);
    world.machine.append(&dump_path(PID), &record(PID, begun, (JIT, 64, "function")));
    announce(&mut world, PID, (JIT + 0x1000, 64, "later"));
    world.run_for(500);
    let account = world.finish().account.clone();
    let deferred = account.deferred.unwrap();
    assert_eq!((deferred.snapshots, deferred.finished_by_rows), (1, 1));
    assert!(stack(&world, PID, at).ends_with("main;function"), "{}", stack(&world, PID, at));
}

/// A process replaces a function by one with another frame, and samples meet the new one before its rows are in the
/// tables. Returns what the stacks say that did not and did bring a snapshot, and one that brought half of one.
fn replaced_code() -> (World, [String; 3]) {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "first"));
    world.run_for(300);
    assert_eq!(flags(&world, PID, JIT), Some(Region::GENERATED | Region::SNAPSHOT));
    // sub rsp, 24; nop ...; add rsp, 24; ret
    let mut code = vec![0x90; 64];
    code[..4].copy_from_slice(&[0x48, 0x83, 0xec, 24]);
    code[59..].copy_from_slice(&[0x48, 0x83, 0xc4, 24, 0xc3]);
    let second = record_of_code(PID, world.now, (JIT, &code, "second"));
    world.machine.append(&dump_path(PID), &second);
    let mut times = Vec::new();
    let frame = [0, 0, 0, MAIN, 7, START, 7, 0];
    for words in [0, frame.len(), 4] {
        world.run_for(2);
        times.push((world.now.0 - BEGIN.0) / MS);
        // By the frame pointer, as the first function's rows say, the caller is another one.
        match words {
            0 => world.sample(PID, &[JIT + 8, HELPER, START]),
            _ => world.sample_with_stack(PID, &[JIT + 8, HELPER, START], &frame[..words]),
        }
    }
    world.run_for(300);
    let replaced = Region::GENERATED | Region::SNAPSHOT | Region::REPLACED;
    assert_eq!(flags(&world, PID, JIT), Some(replaced), "all of its samples bring a snapshot from now on");
    world.run_for(11_000);
    assert_eq!(flags(&world, PID, JIT), Some(Region::GENERATED | Region::SNAPSHOT), "it has replaced nothing for long");
    world.finish();
    let told = [0, 1, 2].map(|at| stack(&world, PID, times[at]));
    (world, told)
}

#[test]
fn a_walk_by_the_rows_of_code_that_was_replaced_is_made_anew_from_its_snapshot() {
    let (_, [without, with, with_half]) = replaced_code();
    assert_eq!(without, "[cut: generated code too new for its unwind rules];second");
    assert_eq!(with, "_start;main;second");
    assert_eq!(with_half, "[cut: deeper than the stack snapshot];main;second");
}

/// Rows of what was there before may be in force for long on a machine that has other work.
#[test]
fn samples_bring_their_stacks_from_the_first_replacement_on_whether_its_rows_can_be_published_or_not() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "first"));
    world.run_for(300);
    world.holds_publications = true;
    announce(&mut world, PID, (JIT + 0x100, 64, "beside it"));
    world.run_for(300);
    assert_eq!(flags(&world, PID, JIT), Some(Region::GENERATED | Region::SNAPSHOT));
    let second = record_of_code(PID, world.now, (JIT, &[0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3], "second"));
    world.machine.append(&dump_path(PID), &second);
    world.run_for(300);
    assert_eq!(flags(&world, PID, JIT), Some(Region::GENERATED | Region::SNAPSHOT | Region::REPLACED));
    world.holds_publications = false;
    world.finish();
}

#[test]
fn a_walk_by_the_rows_of_what_was_mapped_there_before_ends_where_it_begins() {
    const LIBRARY: u64 = 0x5000_0000;
    let mut world = World::new(options());
    for (path, name) in [("/lib/first", "first"), ("/lib/second", "second")] {
        world.machine.add_program(path, path.as_bytes(), &[(0x1000, name)]);
    }
    app(&mut world, PID);
    world.follow(&[PID]);
    let mut times = Vec::new();
    let sampled = |world: &mut World| {
        world.run_for(2);
        world.sample(PID, &[LIBRARY + 0x1010, MAIN, START]);
        (world.now.0 - BEGIN.0) / MS
    };
    for path in ["/lib/first", "/lib/second", "/lib/second"] {
        let library = mapped(&world, LIBRARY, path);
        // The event is there with the sample, as it is where both come out of the kernel's rings.
        world.now = MonoNs(world.now.0 + MS);
        map(&mut world, PID, library);
        world.sample(PID, &[LIBRARY + 0x1010, MAIN, START]);
        times.push((world.now.0 - BEGIN.0) / MS);
        world.run_for(300);
        times.push(sampled(&mut world));
    }
    world.finish();
    let told: Vec<String> = times.into_iter().map(|time| stack(&world, PID, time)).collect();
    let (first, second) = ("_start;main;first", "_start;main;second");
    assert_eq!(told[..2], [first, first], "nothing was known of the place, so that nothing led astray");
    assert_eq!(told[2..4], ["[cut: mapped too lately for its unwind rules];second", second]);
    assert_eq!(told[4..], [second, second], "the same file has the same rows");
}

#[test]
fn a_frame_that_was_doubted_counts_where_memory_had_been_mapped_by_then() {
    const FRESH: u64 = 0x5000_0000;
    let mut world = World::new(options());
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "function"));
    world.run_for(300);
    let doubted = FramePc::doubted(FRESH + 16).0;
    let sampled = |world: &mut World| {
        world.sample(PID, &[JIT + 8, doubted, MAIN, START]);
        let at = (world.now.0 - BEGIN.0) / MS;
        world.run_for(2);
        at
    };
    let before = sampled(&mut world);
    map(&mut world, PID, memory_mapping(FRESH, 0x1000));
    let after = sampled(&mut world);
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID, before), "_start;main;function", "the word was no return address");
    assert_eq!(stack(&world, PID, after), "_start;main;[JIT code without a name];function");
}

#[test]
fn announced_code_in_a_file_has_the_rows_of_the_file_and_is_never_too_new() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    announce(&mut world, PID, (APP + 0x1000, 64, "builtin"));
    world.run_for(2);
    let at = (world.now.0 - BEGIN.0) / MS;
    // Behind the push of the frame pointer, where the announced code's own rules are others than the file's.
    world.sample(PID, &[APP + 0x1001, START]);
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;builtin");
}

#[test]
fn a_walk_waits_for_the_rows_of_a_file_that_are_being_built_and_hurries_them() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.holds_rows = true;
    world.follow(&[PID]);
    world.settle();
    assert_eq!(flags(&world, PID, MAIN), Some(Region::SNAPSHOT), "its rows may come");
    let at = (world.now.0 - BEGIN.0) / MS;
    world.sample_with_stack(PID, &[MAIN], &[7, APP + 0x2010, 7, START, 0, 0]);
    world.run_for(500);
    assert_eq!((world.engine.progress().waiting, world.noted.get("hurry rows")), (1, Some(&1)));
    assert!(!world.engine.is_prepared());
    world.holds_rows = false;
    world.run_for(300);
    assert_eq!(world.engine.progress().waiting, 0);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;helper;main");
}

#[test]
fn who_maps_faster_than_anybody_can_look_waits_for_his_turn() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.follow(&[PID]);
    world.settle();
    let inode = world.machine.add_program("/lib/plugin", b"plugin", &[(0, "plugin")]);
    world.decide = Box::new(|request| match request {
        Request::Identify { .. } => Fate::Hold,
        _ => Fate::Answer,
    });
    let place = |number: u64| 0x5000_0000 + number * 0x2000;
    for number in 0..1000 {
        map(&mut world, PID, file_mapping(place(number), 0x1000, inode, "/lib/plugin"));
    }
    world.run_for(300);
    assert_eq!(world.held(), 256, "the others' turn comes before the rest of them");
    world.engine.assert_sound();
    world.decide = Box::new(|_| Fate::Answer);
    world.release();
    let at = (world.now.0 - BEGIN.0) / MS;
    world.sample(PID, &[place(999) + 8, MAIN, START]);
    world.run_for(300);
    let process = world.engine.tracking.processes.live_of(Pid(PID)).unwrap();
    let looked_at = process.space.live().filter(|mapped| mapped.link.file().is_some()).count();
    assert_eq!(looked_at, 1001, "all of its files have been");
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;plugin");
}

#[test]
fn who_maps_thousands_of_his_own_files_leaves_room_for_the_others() {
    let mut world = World::new(options());
    app(&mut world, PID);
    app(&mut world, CHILD);
    world.follow(&[PID, CHILD]);
    world.settle();
    for number in 0..2100 {
        let path = format!("/home/greedy/{number}");
        let inode = world.machine.add_program(&path, b"", &[(0, "own")]);
        world.machine.file_mut(&path).unwrap().identity.uid = 1000;
        map(&mut world, PID, file_mapping(0x5000_0000 + number * 0x2000, 0x1000, inode, &path));
        if number % 100 == 0 {
            world.run_for(100);
        }
    }
    world.run_for(1000);
    world.engine.assert_sound();
    let linked = |world: &World, pid| {
        let process = world.engine.tracking.processes.live_of(Pid(pid)).unwrap();
        process.space.live().filter(|mapped| mapped.link.file().is_some()).count()
    };
    // The fixture's own program is his, too, or somebody else's.
    assert!((2048..=2049).contains(&linked(&world, PID)), "{}", linked(&world, PID));
    let (refused, looks) = (world.engine.files.stats().refused, world.engine.files.looks);
    assert!(refused > 40 && looks == 1, "{refused} were refused, for which all files were looked at {looks} times");
    let inode = world.machine.add_program("/lib/other", b"other", &[(0, "others")]);
    world.machine.file_mut("/lib/other").unwrap().identity.uid = 1001;
    map(&mut world, CHILD, file_mapping(0x5000_0000, 0x1000, inode, "/lib/other"));
    world.run_for(300);
    assert_eq!(linked(&world, CHILD), 2);
}

#[test]
fn without_rows_a_walk_stays_as_it_is() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.machine.file_mut("/bin/app").unwrap().rows = Err("damaged".to_owned());
    world.follow(&[PID]);
    let at = (world.now.0 - BEGIN.0) / MS;
    world.sample_with_stack(PID, &[MAIN, START], &[7, APP + 0x2010]);
    world.run_for(300);
    assert_eq!(flags(&world, PID, MAIN), Some(0), "no rows will come");
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "_start;main");
    assert_eq!(account.unwinding.unwrap().files_without_rows, 1);
    assert_eq!(account.deferred.unwrap().finished_by_frame_pointer, 1);
}

#[test]
fn code_of_a_perf_map_is_learned_from_memory_and_dropped_when_it_changes() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.follow(&[PID]);
    world.machine.add_file(&format!("/tmp/perf-{PID}.map"), format!("{JIT:x} 40 listed\n").into_bytes());
    put(&mut world, PID, JIT, code(64));
    world.sample_with_stack(PID, &[JIT], &[MAIN, 7, START, 7, 0]);
    world.run_for(1500);
    assert_eq!(cfa(&world, PID, JIT + 8), Some(CfaKind::Fp as u8));
    world.sample_with_stack(PID, &[JIT], &[MAIN, 7, START, 7, 0]);
    world.run_for(1500);
    put(&mut world, PID, JIT, vec![0x90; 64]);
    world.run_for(2500);
    assert_ne!(cfa(&world, PID, JIT + 8), Some(CfaKind::Fp as u8), "it is other code now");
    let account = world.finish().account.clone();
    let learned = account.learned.unwrap();
    assert_eq!((learned.listed_with_rows, learned.changed), (1, 1));
    assert!(learned.bytes_read >= 128 && learned.read_errors == 0);
}

#[test]
fn a_childs_copy_of_learned_code_is_dropped_when_the_child_changes_it() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.follow(&[PID]);
    world.machine.add_file(&format!("/tmp/perf-{PID}.map"), format!("{JIT:x} 40 listed\n").into_bytes());
    put(&mut world, PID, JIT, code(64));
    world.sample_with_stack(PID, &[JIT], &[MAIN, 7, START, 7, 0]);
    world.run_for(1500);
    fork(&mut world, CHILD, PID);
    world.sample(CHILD, &[JIT + 8, MAIN, START]);
    world.run_for(300);
    assert_eq!(cfa(&world, CHILD, JIT + 8), Some(CfaKind::Fp as u8));
    put(&mut world, CHILD, JIT, vec![0x90; 64]);
    world.run_for(2500);
    assert_ne!(cfa(&world, CHILD, JIT + 8), Some(CfaKind::Fp as u8), "it is other code now");
    assert_eq!(cfa(&world, PID, JIT + 8), Some(CfaKind::Fp as u8), "its parent's is as it was");
    world.finish();
}

#[test]
fn copies_of_recorded_code_are_found_in_memory() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "template"));
    world.run_for(300);
    let mut memory = vec![0xcc; 0x1000];
    memory[0x400..0x440].copy_from_slice(&code(64));
    put(&mut world, PID, JIT, memory);
    // Unannounced code: a piece of it is read when nothing has come of it for a while.
    world.sample_with_stack(PID, &[JIT + 0x408], &[7, MAIN, 7, START, 7, 0]);
    world.run_for(1500);
    assert_eq!(cfa(&world, PID, JIT + 0x408), Some(CfaKind::Fp as u8));
    assert_eq!(world.finish().account.learned.unwrap().copies, 1);
}

#[test]
fn code_that_was_read_for_another_function_gives_no_rows() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.follow(&[PID]);
    let path = format!("/tmp/perf-{PID}.map");
    world.machine.add_file(&path, format!("{JIT:x} 40 first\n").into_bytes());
    put(&mut world, PID, JIT, [code(64), vec![0xcc; 64]].concat());
    world.decide = Box::new(|request| match request {
        Request::Memory { .. } => Fate::HoldAnswer,
        _ => Fate::Answer,
    });
    world.sample(PID, &[MAIN]);
    world.run_for(1500);
    world.sample_with_stack(PID, &[JIT + 0x20], &[MAIN]);
    world.run_for(1000);
    assert_eq!(world.held(), 1);
    // Another function of the same length over the same address.
    world.machine.append(&path, format!("{:x} 40 second\n", JIT + 0x10).as_bytes());
    world.run_for(500);
    world.release();
    world.turn(jitprof_common::units::MonoNs(world.now.0 + MS));
    assert_eq!(cfa(&world, PID, JIT + 0x40), None);
    world.finish();
}

#[test]
fn code_that_was_read_of_who_has_ended_since_takes_no_room() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.follow(&[PID]);
    world.machine.add_file(&format!("/tmp/perf-{PID}.map"), format!("{JIT:x} 40 listed\n").into_bytes());
    put(&mut world, PID, JIT, code(64));
    world.decide = Box::new(|request| match request {
        Request::Memory { .. } => Fate::HoldAnswer,
        _ => Fate::Answer,
    });
    world.sample(PID, &[MAIN]);
    world.run_for(1500);
    world.sample_with_stack(PID, &[JIT + 0x20], &[MAIN]);
    world.run_for(1000);
    assert_eq!(world.held(), 1);
    exit(&mut world, PID);
    world.run_for(300);
    let of_files = world.kernel.pages.len();
    world.release();
    world.run_for(300);
    assert_eq!(world.kernel.pages.len(), of_files);
    world.finish();
}

#[test]
fn memory_that_cannot_be_read_is_counted() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.follow(&[PID]);
    world.machine.add_file(&format!("/tmp/perf-{PID}.map"), format!("{JIT:x} 40 listed\n").into_bytes());
    world.sample(PID, &[MAIN]);
    world.run_for(1500);
    world.sample_with_stack(PID, &[JIT], &[MAIN]);
    world.run_for(1500);
    let learned = world.finish().account.learned.unwrap();
    assert_eq!((learned.read_errors, learned.listed_with_rows), (1, 0));
}

#[test]
fn a_refused_page_and_a_refused_list_are_walked_by_frame_pointer_and_tried_again() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    world.run_for(2000);
    world.kernel.refuses = 1;
    announce(&mut world, PID, (JIT, 64, "function"));
    let mut was_refused = false;
    for _ in 0..300 {
        world.run_for(1);
        was_refused |= world.kernel.refuses == 0 && cfa(&world, PID, JIT + 8).is_none();
    }
    assert!(was_refused);
    world.run_for(1500);
    assert_eq!(cfa(&world, PID, JIT + 8), Some(CfaKind::Fp as u8), "a second later it is tried again");
    world.kernel.refuses = 1;
    map(&mut world, PID, memory_mapping(0x9000_0000, 0x1000));
    world.turn(jitprof_common::units::MonoNs(world.now.0 + MS));
    assert!(!world.kernel.lists.contains_key(&Pid(PID)));
    world.run_for(300);
    assert!(world.kernel.region(PID, 0x9000_0000).is_some(), "with the next tick it is tried again");
    let tables = world.finish().account.tables.unwrap();
    assert_eq!((tables.pages_refused, tables.processes_refused), (1, 1));
}

#[test]
fn lists_without_room_are_tried_again_some_at_a_time_those_that_samples_meet_first() {
    const PROCESSES: u32 = 150;
    // For the lists of 32 processes, beside what is left to who has less.
    let mut world = World::new(EngineOptions { tables: Some(TableSizes { rows: 4096, regions: 73 }), ..options() });
    let pids: Vec<u32> = (PID..PID + PROCESSES).collect();
    pids.iter().for_each(|pid| app(&mut world, *pid));
    world.follow(&pids);
    world.run_for(5000);
    let has_list = |world: &World, pid: &u32| world.kernel.lists.contains_key(&Pid(*pid));
    let (with, without): (Vec<u32>, Vec<u32>) = pids.into_iter().partition(|pid| has_list(&world, pid));
    assert_eq!(with.len(), 32);
    for (left, met) in with.iter().zip(without.iter().rev()).take(8) {
        exit(&mut world, *left);
        // What it leaves is free a second later.
        for _ in 0..30 {
            world.sample(*met, &[MAIN, START]);
            world.run_for(50);
        }
        assert!(has_list(&world, met), "{left} has left room, and a sample has met {met}");
    }
    let refused = world.finish().account.tables.unwrap().processes_refused;
    let ticks = (5000 + 8 * 1500) / 100;
    assert!((50 * ticks..66 * ticks + 1000).contains(&refused), "{refused} in {ticks} ticks");
}

#[test]
fn code_of_a_refused_page_that_keeps_no_frame_pointer_has_no_caller() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    world.run_for(2000);
    // sub rsp, 24; nop ...; add rsp, 24; ret
    let mut code = vec![0x90; 64];
    code[..4].copy_from_slice(&[0x48, 0x83, 0xec, 24]);
    code[59..].copy_from_slice(&[0x48, 0x83, 0xc4, 24, 0xc3]);
    world.kernel.refuses = 1;
    let function = record_of_code(PID, world.now, (JIT, &code, "function"));
    world.machine.append(&dump_path(PID), &function);
    let sample = |world: &mut World| {
        world.run_for(1);
        world.sample(PID, &[JIT + 8, HELPER, START]);
        (world.now.0 - BEGIN.0) / MS
    };
    while world.kernel.refuses > 0 {
        world.run_for(1);
    }
    let missing = sample(&mut world);
    assert_eq!(cfa(&world, PID, JIT + 8), None);
    world.run_for(1500);
    assert_eq!(cfa(&world, PID, JIT + 8), Some(CfaKind::Sp as u8));
    let there = sample(&mut world);
    world.finish();
    assert_eq!(stack(&world, PID, missing), "[cut: generated code too new for its unwind rules];function");
    assert_eq!(stack(&world, PID, there), "_start;helper;function");
}

#[test]
fn a_page_of_a_file_that_was_refused_is_tried_again() {
    let mut world = World::new(options());
    world.holds_rows = true;
    app(&mut world, PID);
    world.follow(&[PID]);
    world.run_for(100);
    (world.holds_rows, world.kernel.refuses) = (false, 1);
    world.settle();
    assert_eq!((cfa(&world, PID, MAIN), world.kernel.refuses), (None, 0));
    // As often as it is refused, once a second.
    world.kernel.refuses = 1;
    world.run_for(500);
    assert_eq!((cfa(&world, PID, MAIN), world.kernel.refuses), (None, 0));
    world.run_for(1200);
    assert_eq!(cfa(&world, PID, MAIN), Some(CfaKind::Sp as u8));
    let tables = world.finish().account.tables.unwrap();
    assert_eq!((tables.pages, tables.pages_refused), (1, 2));
}

#[test]
fn tables_that_are_full_give_up_what_nobody_uses() {
    let tables = Some(TableSizes { rows: 4, regions: 64 });
    let mut world = World::new(EngineOptions { tables, ..options() });
    // Three files of two pages each; there is room for two of them.
    for (index, pid) in [PID, PID + 1, PID + 2].into_iter().enumerate() {
        let path = format!("/bin/big{index}");
        let inode = world.machine.add_program(&path, &[index as u8], &[(0, "_start")]);
        world.machine.file_mut(&path).unwrap().rows = Ok(plain_rows(0x2_0000));
        let start = jitprof_common::units::MonoNs(world.now.0 - 1000 * MS);
        world.machine.add_process(pid, start, &path, vec![file_mapping(APP, 0x2_0000, inode, &path)]);
        world.follow(&[pid]);
    }
    world.run_for(100);
    let has_rows = |world: &World, pid| cfa(world, pid, APP).is_some();
    assert!(has_rows(&world, PID) && has_rows(&world, PID + 1) && !has_rows(&world, PID + 2));
    // Nobody uses the first one's any more.
    exit(&mut world, PID);
    world.run_for(8000);
    assert!(has_rows(&world, PID + 1));
    fork(&mut world, CHILD + 10, PID + 2);
    world.run_for(8000);
    let account = world.finish().account.clone();
    let unwinding = account.unwinding.unwrap();
    assert!(unwinding.files_evicted >= 1 || unwinding.files_cut >= 1, "{unwinding:?}");
    assert!(account.tables.unwrap().rows <= 4);
}

#[test]
fn no_file_and_no_user_takes_the_tables_from_the_others() {
    const TENANT: u32 = 1000;
    let tables = Some(TableSizes { rows: 1 << 17, regions: 64 });
    let mut world = World::new(EngineOptions { tables, ..options() });
    // Six files that say they have code everywhere, and whoever comes after them.
    let made = |world: &mut World, pid: u32, uid: u32, pages: u64| {
        let (path, len) = (format!("/bin/of{pid}"), pages << 16);
        let inode = world.machine.add_program(&path, &pid.to_le_bytes(), &[(0, "_start")]);
        let file = world.machine.file_mut(&path).unwrap();
        (file.rows, file.identity.uid) = (Ok(plain_rows(len)), uid);
        let start = jitprof_common::units::MonoNs(world.now.0 - 1000 * MS);
        world.machine.add_process(pid, start, &path, vec![file_mapping(APP, len, inode, &path)]);
        world.follow(&[pid]);
        world.run_for(100);
    };
    (0..6).for_each(|index| made(&mut world, PID + index, TENANT, 63_255));
    made(&mut world, PID + 10, 0, 2000);
    let has_rows = |pid, page: u64| cfa(&world, pid, APP + (page << 16)).is_some();
    // An eighth of all pages is what a file may have, and half of them what a user may have.
    assert!((PID..PID + 4).all(|pid| has_rows(pid, 8191) && !has_rows(pid, 8192)));
    assert!(!has_rows(PID + 4, 0) && !has_rows(PID + 5, 0), "he has had his share");
    assert!(has_rows(PID + 10, 0) && has_rows(PID + 10, 1999));
    let account = world.finish().account.clone();
    assert_eq!(account.tables.unwrap().pages, 32 * 1024 + 2000);
    assert_eq!(account.unwinding.unwrap().files_cut, 6);
}

#[test]
fn a_user_s_rows_leave_room_for_the_others() {
    let tables = Some(TableSizes { rows: 64, regions: 64 });
    let mut world = World::new(EngineOptions { tables, ..options() });
    for (pid, uid, pages) in [(PID, 1000, 64), (PID + 1, 0, 12)] {
        let (path, len) = (format!("/bin/of{pid}"), pages << 16);
        let inode = world.machine.add_program(&path, &pid.to_le_bytes(), &[(0, "_start")]);
        let file = world.machine.file_mut(&path).unwrap();
        (file.rows, file.identity.uid) = (Ok(plain_rows(len)), uid);
        let start = jitprof_common::units::MonoNs(world.now.0 - 1000 * MS);
        world.machine.add_process(pid, start, &path, vec![file_mapping(APP, len, inode, &path)]);
        world.follow(&[pid]);
        world.run_for(100);
    }
    let has_rows = |pid, page: u64| cfa(&world, pid, APP + (page << 16)).is_some();
    assert!(has_rows(PID, 47) && !has_rows(PID, 48));
    assert!(has_rows(PID + 1, 11));
}

#[test]
fn the_index_of_a_file_s_page_counts_for_its_owner() {
    let tables = Some(TableSizes { rows: 64, regions: 64 });
    // He may have 48 elements, 16 of which are the index.
    for (count, fits) in [(32, true), (33, false)] {
        let mut world = World::new(EngineOptions { tables, ..options() });
        let inode = world.machine.add_program("/bin/his", &[1], &[(0, "_start")]);
        let rule = |number: u16| Rule::with_cfa(CfaKind::Sp, 8 + 8 * i64::from(number));
        let rows = (0..count).map(|number| rule(number).encode(number * 64)).collect();
        let file = world.machine.file_mut("/bin/his").unwrap();
        let page = FilePage { page: 0, count: count.into(), rows };
        file.rows = Ok(FileRows { pages: vec![page], ..plain_rows(0x1_0000) });
        file.identity.uid = 1000;
        let start = MonoNs(world.now.0 - 1000 * MS);
        world.machine.add_process(PID, start, "/bin/his", vec![file_mapping(APP, 0x1_0000, inode, "/bin/his")]);
        world.follow(&[PID]);
        world.run_for(100);
        let found = |at: u64| world.kernel.row(PID, APP + at).map(|row| row.cfa_offset_bytes());
        assert_eq!([0, 65, 31 * 64, 0xffff].map(found), [8, 16, 256, 256].map(|offset| fits.then_some(offset)));
    }
}

#[test]
fn a_file_that_found_no_room_has_rows_when_there_is_some() {
    let tables = Some(TableSizes { rows: 4, regions: 64 });
    let mut world = World::new(EngineOptions { tables, ..options() });
    for pid in [PID, PID + 1, PID + 2] {
        let path = format!("/bin/big{pid}");
        let inode = world.machine.add_program(&path, &pid.to_le_bytes(), &[(0, "_start")]);
        world.machine.file_mut(&path).unwrap().rows = Ok(plain_rows(0x2_0000));
        let start = MonoNs(world.now.0 - 1000 * MS);
        world.machine.add_process(pid, start, &path, vec![file_mapping(APP, 0x2_0000, inode, &path)]);
        world.follow(&[pid]);
    }
    world.run_for(5000);
    let has_rows = |world: &World, pid| [APP, APP + 0x1_0000].map(|at| cfa(world, pid, at).is_some());
    assert_eq!(has_rows(&world, PID + 2), [false; 2]);
    exit(&mut world, PID);
    world.run_for(30_000);
    assert_eq!([PID + 1, PID + 2].map(|pid| has_rows(&world, pid)), [[true; 2]; 2]);
    assert_eq!(world.finish().account.unwinding.unwrap().files_evicted, 1);
}

/// One small function in each page is all it takes.
#[test]
fn generated_code_that_is_everywhere_leaves_room_for_the_others() {
    let tables = Some(TableSizes { rows: 1024, regions: 64 });
    let mut world = World::new(EngineOptions { tables, ..options() });
    let pages_of = |world: &World, pid| {
        (0..400_u64).filter(|page| cfa(world, pid, JIT + (page << 16) + 8) == Some(CfaKind::Fp as u8)).count()
    };
    for (pid, pages) in [(PID, 400_u64), (PID + 1, 3), (PID + 2, 60)] {
        runtime(&mut world, pid);
        map(&mut world, pid, memory_mapping(JIT, pages << 16));
        (0..pages).for_each(|page| announce(&mut world, pid, (JIT + (page << 16), 64, "function")));
        world.run_for(500);
    }
    let [greedy, modest, late] = [PID, PID + 1, PID + 2].map(|pid| pages_of(&world, pid));
    assert!(greedy > 100 && modest == 3 && (1..60).contains(&late), "{greedy} {modest} {late}");
    // What found no room is published when there is some.
    exit(&mut world, PID);
    world.run_for(6000);
    assert_eq!([PID + 1, PID + 2].map(|pid| pages_of(&world, pid)), [3, 60]);
    let at = (world.now.0 - BEGIN.0) / MS;
    world.sample(PID + 2, &[JIT + (59 << 16) + 8, MAIN, START]);
    world.run_for(500);
    world.finish();
    assert_eq!(stack(&world, PID + 2, at), "_start;main;function");
}

#[test]
fn without_tables_everything_is_walked_by_frame_pointer_and_named_all_the_same() {
    let call_graph = CallGraph::FramePointers;
    let mut world = World::new(EngineOptions { tables: None, call_graph, peek: false, ..options() });
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "function"));
    world.run_for(300);
    let at = (world.now.0 - BEGIN.0) / MS;
    world.sample_with_stack(PID, &[JIT + 8, MAIN, START], &[1, 2, 3]);
    world.feed(Input::Refused(Refused::Regions(Pid(PID))));
    world.run_for(300);
    exit(&mut world, PID);
    world.run_for(5000);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "_start;main;function");
    assert!(account.unwinding.is_none() && account.tables.is_none() && world.kernel.lists.is_empty());
}

#[test]
fn a_list_that_is_too_long_loses_its_smallest_mappings_and_says_so() {
    let mut world = World::new(EngineOptions { tables: Some(TableSizes { rows: 64, regions: 32 << 10 }), ..options() });
    app(&mut world, PID);
    let mappings = world.machine.mappings_mut(PID).unwrap();
    // Of two kinds in turn, so that they cannot be joined.
    for at in 0..8300_u64 {
        let start = 0x1_0000_0000 + at * 0x2000;
        let kind = memory_mapping(start, 0x1000);
        mappings.push(match at % 2 {
            0 => kind,
            _ => crate::process::Mapping { kind: crate::process::MappingKind::Special, ..kind },
        });
    }
    world.follow(&[PID]);
    world.run_for(300);
    assert!(cfa(&world, PID, MAIN).is_some(), "those with rows stay");
    map(&mut world, PID, memory_mapping(0x10_0000_0000, 0x10_0000));
    world.run_for(500);
    assert!(world.kernel.region(PID, 0x10_0000_0000).is_some());
    let account = world.finish().account.clone();
    assert!(account.unwinding.unwrap().regions_refused > 0);
    assert!(account.remarks.iter().any(|remark| remark.contains("more executable mappings than")));
}

#[test]
fn snapshots_in_vain_are_given_up() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    for _ in 0..6 {
        for _ in 0..60 {
            world.sample_with_stack(PID, &[JIT + 8], &[MAIN]);
        }
        world.run_for(200);
        announce(&mut world, PID, (JIT + 0x8000, 64, "other"));
        world.run_for(200);
    }
    assert_eq!(flags(&world, PID, JIT), Some(Region::GENERATED), "it is asked for no more of them");
    let deferred = world.finish().account.deferred.unwrap();
    assert_eq!((deferred.processes_given_up, deferred.finished_by_rows), (1, 0));
}

#[test]
fn outputs_come_in_the_order_in_which_they_are_to_be_done() {
    let mut world = World::new(EngineOptions { who: Who::All, ..options() });
    app(&mut world, PID);
    world.sample(PID, &[MAIN, START]);
    world.engine.handle(Input::Turn(jitprof_common::units::MonoNs(world.now.0 + MS)));
    let outputs: Vec<Output> = std::iter::from_fn(|| world.engine.poll_output()).collect();
    assert!(matches!(&outputs[..], [Output::Request(_, Request::Process { maps: true, .. })]), "{outputs:?}");
    world.task(TaskChange::Exit { pid: Pid(1), tid: jitprof_common::units::Tid(1) });
}

/// Go's scheduler switches to the thread's own stack, where the word that `mcall` would return to is an older call's.
#[test]
fn nothing_called_the_outermost_function_of_a_stack() {
    let mut world = World::new(options());
    let symbols = [(0, "_start"), (0x1000, "runtime.newproc"), (0x2000, "runtime.mcall"), (0x3000, "runtime.park_m")];
    let inode = world.machine.add_program("/bin/go", b"go", &symbols);
    let start = MonoNs(world.now.0 - 1000 * MS);
    world.machine.add_process(PID, start, "/bin/go", vec![file_mapping(APP, 0x1_0000, inode, "/bin/go")]);
    world.follow(&[PID]);
    world.run_for(100);
    let at = (world.now.0 - BEGIN.0) / MS;
    world.sample(PID, &[APP + 0x3010, HELPER, MAIN, 0x1234_5678]);
    world.run_for(100);
    // Before it has switched, it has a caller.
    world.sample(PID, &[HELPER, MAIN, START]);
    world.run_for(300);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "runtime.mcall;runtime.park_m");
    assert_eq!(stack(&world, PID, at + 100), "_start;runtime.newproc;runtime.mcall");
    assert_eq!(account.stacks.complete, 2);
}

#[test]
fn whose_exit_was_lost_leaves_nothing_in_the_tables_when_his_number_is_used_again() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    app(&mut world, CHILD);
    world.follow(&[CHILD]);
    announce(&mut world, PID, (JIT, 64, "generated"));
    world.run_for(300);
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(300);
    let object = world.kernel.region(PID, JIT).unwrap().object;
    let has_pages = |world: &World| world.kernel.pages.keys().any(|key| key.object == object);
    assert!(has_pages(&world), "its generated code has rows");
    // Its exit was lost.
    fork(&mut world, PID, CHILD);
    world.run_for(100);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    assert!(!has_pages(&world), "they are nobody's any more");
    assert!(world.kernel.region(PID, MAIN).is_some(), "the next one is walked by rows");
    world.finish();
}

#[test]
fn generated_code_of_a_process_that_has_not_ended_after_all_has_rows_again() {
    let mut world = World::new(EngineOptions { who: Who::All, ..options() });
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "generated"));
    let calls = |world: &mut World| {
        world.sample(PID, &[JIT + 8, MAIN, START]);
        world.run_for(300);
        cfa(world, PID, JIT + 8)
    };
    assert_eq!(calls(&mut world), Some(CfaKind::Fp as u8));
    // Of its threads only the first one is known.
    world.task(TaskChange::Exit { pid: Pid(PID), tid: Tid(PID) });
    world.run_for(300);
    assert_eq!(cfa(&world, PID, JIT + 8), None);
    calls(&mut world);
    assert_eq!(calls(&mut world), Some(CfaKind::Fp as u8));
    world.finish();
}
