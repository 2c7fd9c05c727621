//! Continuous recordings: windows, copies, memory that is short, what is evicted.

use std::collections::BTreeSet;
use std::time::Duration;

use jitprof_common::units::{MonoNs, Pid, Tid};

use super::stories::*;
use crate::engine::border::{Order, Request};
use crate::engine::fork_log::MAX_FORKS;
use crate::engine::tables::TableSizes;
use crate::engine::world::machine::memory_mapping;
use crate::engine::world::{BEGIN, Fate, MS, World, options};
use crate::engine::{EngineOptions, Who};
use crate::process::event::TaskChange;

const PID: u32 = 100;

/// Of all processes, in windows of a second that stay open for half of one.
fn recording() -> World {
    let mut world = World::new(EngineOptions { who: Who::All, ..options() });
    world.continuous(1000, 500);
    world
}

fn snapshot(world: &mut World, token: u64, (from, to): (u64, u64), patience: u64) {
    let patience = Duration::from_millis(patience);
    world.order(Order::Snapshot { token, from: ms(from), to: ms(to), patience });
}

#[test]
fn windows_hold_the_samples_of_their_time_and_a_late_one_is_in_the_next() {
    let mut world = recording();
    app(&mut world, PID);
    for time in [100, 700, 1300, 2600] {
        world.run_for(time - (world.now.0 - BEGIN.0) / MS);
        world.sample(PID, &[MAIN, START]);
    }
    // Its window is closed.
    world.sample_at(ms(200), PID, &[HELPER, START]);
    world.run_for(800);
    let windows: Vec<(u64, u64)> =
        world.windows.iter().map(|window| ((window.end.0 - BEGIN.0) / MS, window.profile.total())).collect();
    assert_eq!(windows, [(1000, 2), (2000, 1)]);
    world.run_for(1000);
    let third = &world.windows[2];
    assert_eq!(World::told(&third.profile)[&(2000, PID)], ["_start;helper"], "it counts from its beginning");
    assert_eq!((third.profile.total(), third.health.delivered, third.health.waiting), (2, 5, 0));
    assert_eq!((third.health.processes, third.health.frequency_hz), (1, 99));
    world.finish();
    assert_eq!(world.windows.len(), 4, "the last one is closed with the recording");
}

#[test]
fn a_window_closes_with_its_pending_samples() {
    let mut world = recording();
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "known"));
    world.run_for(300);
    let at = (world.now.0 - BEGIN.0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.sample(PID, &[JIT + 0x1008, MAIN, START]);
    world.run_for(900);
    assert_eq!(world.engine.progress().waiting, 2, "its dump may say more");
    world.run_for(700);
    assert_eq!(world.windows.len(), 1);
    let mut told = stacks(&world, PID, at);
    told.sort();
    assert_eq!(told, ["_start;main;[JIT code without a name]", "_start;main;known"]);
    // The end of a window is not the end of the wait: one that is ordered has what there is.
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.turn(MonoNs(world.now.0 + 2 * MS));
    world.order(Order::CloseWindow);
    assert_eq!((world.windows.len(), world.windows[1].profile.total()), (2, 1));
    world.finish();
}

/// How often something was asked while a process runs for so long, sampled again and again at one place.
fn asked(world: &mut World, stack: &[u64], ms: u64, is_meant: impl Fn(&&Request) -> bool) -> usize {
    world.asked.clear();
    for _ in 0..ms / 50 {
        world.sample(PID, stack);
        world.run_for(50);
    }
    world.asked.iter().filter(is_meant).count()
}

#[test]
fn a_dump_that_brings_nothing_is_read_once_a_second_until_a_sample_meets_what_it_may_announce() {
    let mut world = World::new(EngineOptions { who: Who::All, ..options() });
    world.continuous(60_000, 3000);
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "known"));
    let reads = |world: &mut World, ms: u64| {
        asked(world, &[JIT + 8, MAIN, START], ms, |what| matches!(what, Request::Read { .. }))
    };
    assert!(reads(&mut world, 2000) >= 8, "it has grown");
    reads(&mut world, 1000);
    let few = reads(&mut world, 4000);
    // With each tick it would be ten times.
    assert!((2..=7).contains(&few), "{few}");
    // It has just been read when a sample meets what it announces.
    assert!((0..100).any(|_| reads(&mut world, 50) > 0));
    announce(&mut world, PID, (JIT + 0x1000, 64, "later"));
    world.run_for(1);
    let at = (world.now.0 - BEGIN.0) / MS;
    world.sample(PID, &[JIT + 0x1008, MAIN, START]);
    world.run_for(1);
    assert!(reads(&mut world, 450) >= 1);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;later");
}

#[test]
fn a_tick_leaves_processes_alone_that_there_is_nothing_to_do_for() {
    const OTHER: u32 = 101;
    let mut world = recording();
    [PID, OTHER].into_iter().for_each(|pid| app(&mut world, pid));
    world.machine.mappings_mut(PID).unwrap().retain(|mapping| !mapping.may_hold_generated_code());
    let busy = |world: &World| -> Vec<u32> {
        world.engine.tracking.processes.busy().map(|process| process.id.pid.0).collect()
    };
    [PID, OTHER].into_iter().for_each(|pid| world.sample(pid, &[MAIN, START]));
    world.settle();
    assert_eq!(busy(&world), [PID, OTHER]);
    world.run_for(2000);
    assert_eq!(busy(&world), [OTHER], "one may generate code, and is looked at again and again");
    let at = (world.now.0 - BEGIN.0) / MS;
    world.sample(PID, &[MAIN, START]);
    world.settle();
    assert_eq!(busy(&world), [PID, OTHER]);
    world.run_for(2000);
    world.engine.assert_sound();
    assert_eq!(busy(&world), [OTHER]);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main");
}

#[test]
fn a_perf_map_is_looked_for_seldom_in_a_process_without_memory_for_generated_code() {
    let mut world = recording();
    app(&mut world, PID);
    world.machine.mappings_mut(PID).unwrap().retain(|mapping| !mapping.may_hold_generated_code());
    let looks = |world: &mut World, ms: u64| {
        asked(world, &[MAIN, START], ms, |what| matches!(what, Request::OpenPerfMap { .. }))
    };
    let few = looks(&mut world, 20_000);
    assert!((3..=8).contains(&few), "{few}");
    map(&mut world, PID, memory_mapping(JIT, 0x10_0000));
    let many = looks(&mut world, 5000);
    assert!((3..=6).contains(&many), "{many}");
    world.finish();
}

#[test]
fn a_copy_waits_for_its_samples_and_takes_nothing_away() {
    let mut world = recording();
    runtime(&mut world, PID);
    world.run_for(100);
    snapshot(&mut world, 1, (0, 5000), 0);
    announce(&mut world, PID, (JIT, 64, "known"));
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(100);
    snapshot(&mut world, 2, (0, 300), 400);
    assert!(world.snapshots.is_empty());
    world.run_for(600);
    let (token, copy) = world.snapshots.pop().unwrap();
    assert_eq!((token, copy.total()), (2, 1), "it has waited long enough");
    // With nothing to wait for it comes at once.
    announce(&mut world, PID, (JIT + 0x1000, 64, "other"));
    world.run_for(500);
    snapshot(&mut world, 3, (0, 500), 60_000);
    world.run_for(200);
    assert_eq!(world.snapshots.pop().map(|(token, copy)| (token, copy.total())), Some((3, 1)));
    // Too many are answered with what there is.
    for token in 10..80 {
        snapshot(&mut world, token, (0, 1_000_000), 0);
    }
    assert_eq!(world.snapshots.len(), 70 - 63);
    world.finish();
    assert_eq!(world.snapshots.len(), 71, "in the end all are answered");
}

#[test]
fn a_copy_waits_for_processes_that_are_being_read() {
    let mut world = recording();
    app(&mut world, PID);
    world.decide = Box::new(|request| match request {
        Request::Process { .. } => Fate::Hold,
        _ => Fate::Answer,
    });
    world.run_for(100);
    world.sample(PID, &[MAIN, START]);
    snapshot(&mut world, 1, (0, 150), 10_000);
    world.run_for(300);
    assert!(world.snapshots.is_empty(), "whose sample it is is not known yet");
    world.release();
    world.run_for(300);
    assert_eq!(World::told(&world.snapshots[0].1)[&(100, PID)], ["_start;main"]);
    world.finish();
}

#[test]
fn a_run_that_is_not_continuous_gives_copies_at_once_and_closes_no_window() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.follow(&[PID]);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    world.order(Order::CloseWindow);
    world.order(Order::Tight(true));
    snapshot(&mut world, 1, (0, 1000), 0);
    assert_eq!((world.snapshots[0].1.total(), world.windows.len()), (1, 0));
    world.finish();
}

#[test]
fn tight_memory_evicts_and_learns_again() {
    let mut world = recording();
    app(&mut world, PID);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    let asked = world.engine.resolving.names.stats().requests;
    world.order(Order::Tight(true));
    for noted in ["unload symbols", "give memory back", "symbol budget"] {
        assert!(world.noted.contains_key(noted), "{noted}");
    }
    world.order(Order::Tight(true));
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    assert!(world.engine.resolving.names.stats().requests > asked, "what was evicted is asked for again");
    world.order(Order::Tight(false));
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    world.finish();
    let told: Vec<Vec<String>> =
        world.windows.iter().flat_map(|window| World::told(&window.profile).into_values()).collect();
    assert!(told.iter().flatten().all(|stack| stack == "_start;main"), "{told:?}");
}

#[test]
fn processes_that_have_ended_are_evicted_with_all_that_is_known_of_them() {
    let mut world = recording();
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "known"));
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(500);
    exit(&mut world, PID);
    world.run_for(400);
    let process = world.engine.tracking.processes.at(Pid(PID), world.now).map(|process| process.id);
    assert!(process.is_some_and(|id| id.pid == Pid(PID)), "its last samples may come");
    world.run_for(20_000);
    assert!(world.engine.tracking.processes.at(Pid(PID), world.now).is_none());
    assert!(world.machine.open.is_empty(), "its files are closed");
    assert!(!world.kernel.lists.contains_key(&Pid(PID)) && world.engine.progress().functions == 0);
    // Five minutes later the file of its program is evicted, too.
    world.run_for(310_000);
    world.finish();
    assert!(world.kernel.pages.is_empty());
    assert_eq!(world.recorded.as_ref().unwrap().account.unwinding.unwrap().files_evicted, 1);
}

#[test]
fn no_room_names_processes_that_have_ended() {
    const BURST: u32 = 50;
    // Enough for the lists of some of them.
    let tables = Some(TableSizes { rows: 4096, regions: 256 });
    let mut world = World::new(EngineOptions { who: Who::All, tables, ..options() });
    world.continuous(1000, 500);
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "known"));
    world.run_for(500);
    // What is on its way to the tables is so until its process is evicted.
    world.holds_publications = true;
    let mut used = BTreeSet::new();
    for burst in 1..=16 {
        let children = burst * 1000..burst * 1000 + BURST;
        children.clone().for_each(|child| fork(&mut world, child, PID));
        world.settle();
        // Of some nothing is known but who has made them.
        children.clone().filter(|child| child % 8 > 0).for_each(|child| world.sample(child, &[JIT + 8, MAIN, START]));
        world.settle();
        world.run_for(400);
        used.extend(world.engine.rooms().into_iter().map(|(room, _)| room));
        children.for_each(|child| exit(&mut world, child));
        // Of one nothing is known at all.
        world.sample(burst, &[MAIN, START]);
        world.settle();
        world.run_for(100);
        used.extend(world.engine.rooms().into_iter().map(|(room, _)| room));
    }
    for room in ["ended processes", "children", "ghosts", "asked stacks", "frames of code", "lists on their way"] {
        assert!(used.contains(room), "{room}: {used:?}");
    }
    world.run_for(10_000);
    let named = |world: &World, room: &str| world.engine.rooms().into_iter().find(|(name, _)| *name == room);
    assert_eq!(named(&world, "processes"), Some(("processes", 1)));
    assert_eq!(named(&world, "children"), None, "their parent has dropped them, too");
    assert!(world.engine.tracking.forks.len() <= 2 * MAX_FORKS);
    exit(&mut world, PID);
    world.run_for(10_000);
    assert_eq!(world.engine.rooms(), [("awaited", 1)], "that it was ordered is remembered");
    world.engine.assert_sound();
    world.holds_publications = false;
    world.finish();
}

#[test]
fn a_continuous_recording_sweeps_for_exits_that_were_lost() {
    let mut world = recording();
    app(&mut world, PID);
    app(&mut world, PID + 1);
    world.sample(PID, &[MAIN, START]);
    world.sample(PID + 1, &[MAIN, START]);
    world.run_for(500);
    world.machine.processes.remove(&PID);
    world.run_for(61_000);
    let live = |world: &World, pid| world.engine.tracking.processes.live_of(Pid(pid)).is_some();
    assert!(!live(&world, PID) && live(&world, PID + 1));
    world.finish();
}

#[test]
fn lost_events_make_a_continuous_recording_read_a_few_processes_at_a_time() {
    let mut world = recording();
    for pid in 100..130 {
        app(&mut world, pid);
        world.sample(pid, &[MAIN, START]);
    }
    world.run_for(500);
    world.run_for(5000);
    world.asked.clear();
    world.task(TaskChange::Lost { count: 3 });
    world.turn(world.engine.wake_at());
    let whole = |request: &&Request| matches!(request, Request::Process { maps: true, .. });
    assert_eq!(world.asked.iter().filter(whole).count(), 8);
    world.run_for(3000);
    assert_eq!(world.asked.iter().filter(whole).count(), 30);
    assert!(world.finish().account.processes.events_lost == 3);
}

#[test]
fn a_program_that_runs_another_one_while_it_is_read_is_the_other_one() {
    let mut world = recording();
    app(&mut world, PID);
    world.machine.add_program("/bin/other", b"other", &[(0, "_start"), (0x1000, "entry")]);
    world.decide = Box::new(|request| match request {
        Request::Process { .. } => Fate::HoldAnswer,
        _ => Fate::Answer,
    });
    world.sample(PID, &[MAIN, START]);
    world.run_for(100);
    let other = mapped(&world, APP, "/bin/other");
    exec(&mut world, PID, "/bin/other", vec![other]);
    world.run_for(100);
    let at = (world.now.0 - BEGIN.0) / MS;
    world.sample(PID, &[MAIN, START]);
    world.release();
    world.run_for(400);
    world.finish();
    let profile = &world.windows[0].profile;
    let mut exes = std::collections::BTreeMap::new();
    profile.visit_rows(|row| {
        let labels = &profile.task_of(row.task).labels;
        exes.insert((row.time.0 - BEGIN.0) / MS, labels.get("exe").map(|exe| exe.to_string()));
    });
    assert_eq!(exes[&at].as_deref(), Some("other"));
    assert_eq!(World::told(profile)[&(at, PID)], ["_start;entry"]);
}

#[test]
fn a_thread_whose_leader_is_dead_is_sampled_and_its_process_ends_with_it() {
    let mut world = recording();
    app(&mut world, PID);
    let thread = Tid(PID + 50);
    world.machine.processes.get_mut(&PID).unwrap().read.threads.push(thread);
    world.sample(PID, &[MAIN, START]);
    world.run_for(300);
    let made = world.machine.processes.get_mut(&PID).unwrap();
    (made.read.via, made.read.threads) = (Pid(thread.0), vec![thread]);
    world.task(TaskChange::Exit { pid: Pid(PID), tid: Tid(PID) });
    world.run_for(300);
    let path = dump_path(PID);
    let inode = world.machine.add_file(&path, header(PID));
    map(&mut world, PID, crate::engine::world::machine::file_mapping(0x6000_0000, 0x1000, inode, &path));
    announce(&mut world, PID, (JIT, 64, "late"));
    world.run_for(300);
    let opened = world.asked.iter().rev().find_map(|request| match request {
        Request::Open { via, .. } => Some(*via),
        _ => None,
    });
    assert_eq!(opened, Some(Pid(thread.0)), "its files are opened through a thread that lives");
    let at = (world.now.0 - BEGIN.0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(300);
    world.task(TaskChange::Exit { pid: Pid(PID), tid: thread });
    world.run_for(300);
    assert!(world.engine.tracking.processes.live_of(Pid(PID)).is_none());
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;late");
}

#[test]
fn a_process_that_announces_too_much_is_bounded_and_has_its_remark() {
    use crate::engine::generated::CodeBounds;
    let mut world = recording();
    runtime(&mut world, PID);
    let id = world.engine.tracking.processes.live_of(Pid(PID)).unwrap().id;
    let process = world.engine.tracking.processes.get_mut(id).unwrap();
    process.code.set_bounds(CodeBounds { map_bytes: 4096, functions: 16 });
    let now = world.now;
    let mut records = Vec::new();
    for number in 0..200_u64 {
        records.extend(record(PID, now, (JIT + number * 64, 64, &format!("function{number}"))));
    }
    world.machine.append(&dump_path(PID), &records);
    world.run_for(3000);
    let said = world.engine.remarks().iter().filter(|remark| remark.contains("has announced more code")).count();
    assert_eq!(said, 1, "{:?}", world.engine.remarks());
    assert!(world.engine.progress().functions < 200);
    world.finish();
}

#[test]
fn the_process_with_the_most_code_takes_up_no_more_when_there_is_too_much_of_it() {
    const OTHER: u32 = 101;
    let mut world = recording();
    // Of 5 MiB that are kept of all when memory is short.
    for (pid, count) in [(PID, 3_250_u64), (OTHER, 2_250)] {
        runtime(&mut world, pid);
        for number in 0..count {
            announce(&mut world, pid, (JIT + number * 16, 16, &format!("{number:0>1000}")));
        }
        world.run_for(2000);
    }
    let is_bounded = |world: &World, pid| {
        world.engine.tracking.processes.live_of(Pid(pid)).is_some_and(|process| process.code.is_bounded())
    };
    let bytes = |world: &World, pid| world.engine.tracking.processes.live_of(Pid(pid)).unwrap().code.bytes() >> 18;
    let all = [PID, OTHER].map(|pid| bytes(&world, pid));
    assert!(all[0] > all[1] && (21..=40).contains(&(all[0] + all[1])), "{all:?} quarters of a MiB");
    assert!(![PID, OTHER].iter().any(|pid| is_bounded(&world, *pid)), "there is room for both");
    world.order(Order::Tight(true));
    assert_eq!([PID, OTHER].map(|pid| is_bounded(&world, pid)), [true, false]);
    // So it goes on, second by second, as long as there is too much.
    world.run_for(1100);
    assert_eq!([PID, OTHER].map(|pid| is_bounded(&world, pid)), [true, true]);
    announce(&mut world, PID, (JIT + 0xf_0000, 16, "refused"));
    world.run_for(500);
    let first = (world.now.0 - BEGIN.0) / MS;
    world.sample(PID, &[JIT + 0xf_0008, MAIN, START]);
    world.run_for(1000);
    // When there is room again, it is used.
    world.order(Order::Tight(false));
    exit(&mut world, PID);
    world.run_for(20_000);
    assert!(!is_bounded(&world, OTHER));
    announce(&mut world, OTHER, (JIT + 0xf_0000, 16, "new"));
    world.run_for(1500);
    let second = (world.now.0 - BEGIN.0) / MS;
    world.sample(OTHER, &[JIT + 0xf_0008, MAIN, START]);
    world.run_for(1000);
    let remarks = world.finish().account.remarks.clone();
    assert_eq!(stack(&world, PID, first), "_start;main;[JIT code without a name]");
    assert_eq!(stack(&world, OTHER, second), "_start;main;new");
    assert!(remarks.iter().any(|remark| remark.contains("more code than is kept of one process")), "{remarks:?}");
}
