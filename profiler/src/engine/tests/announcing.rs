//! How generated code gets its names: over dumps, perf maps, the runtime's buffer, fork, exec and reuse of addresses.

use std::time::Duration;

use super::stories::*;
use crate::engine::Input;
use crate::engine::border::{Order, Request, Ticks, WhyUnread};
use crate::engine::generated::CodeBounds;
use crate::engine::maintenance::MAX_TORN_BYTES;
use crate::engine::world::machine::{Age, file_mapping, memory_mapping};
use crate::engine::world::{BEGIN, Fate, MS, World, options};
use crate::symbol::{deep_name, spend_on_names};
use jitprof_common::row::CfaKind;
use jitprof_common::units::{MonoNs, Pid};
use jitprof_jitdump::FLAG_ARCH_TIMESTAMP;
use jitprof_jitdump::writer::{DumpWriter, HeaderFields};

const PID: u32 = 100;
const CHILD: u32 = 101;

#[test]
fn a_function_is_announced_after_its_sample() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    world.run_for(100);
    announce(&mut world, PID, (JIT, 64, "first"));
    world.run_for(10);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(500);
    assert_eq!(world.engine.progress().waiting, 1, "nothing says yet that all up to its time is known");
    announce(&mut world, PID, (JIT + 0x1000, 64, "second"));
    world.run_for(500);
    assert_eq!(world.engine.progress().waiting, 0);
    assert_eq!(world.engine.progress().functions, 2);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "_start;main;first");
    assert_eq!((account.jit.named.jitdump, account.stacks.complete), (1, 1));
    let source = &account.sources[0];
    assert_eq!((source.pid, source.functions, source.dumps.len()), (PID, 2, 1));
}

#[test]
fn a_name_that_its_holder_had_no_time_for_is_demangled_when_he_has_some() {
    // Nobody else's.
    const DEAR: u32 = 4_242;
    let (mangled, written) = deep_name();
    let mut world = World::new(options());
    runtime(&mut world, DEAR);
    let processes = &world.engine.tracking.processes;
    let holder = processes.iter().find(|process| process.id.pid == Pid(DEAR)).unwrap().holder();
    announce(&mut world, DEAR, (JIT, 64, &mangled));
    let mut sampled = Vec::new();
    for (seconds, next) in [(3600.0, JIT + 0x1000), (-3600.0, JIT + 0x2000)] {
        spend_on_names(holder, seconds);
        // It is not asked for with each sample.
        world.run_for(1_000);
        sampled.push((world.now.0 - ms(0).0) / MS);
        world.sample(DEAR, &[JIT + 8, MAIN, START]);
        world.run_for(50);
        announce(&mut world, DEAR, (next, 64, "next"));
        world.run_for(500);
        assert_eq!(world.engine.progress().waiting, 0);
    }
    world.finish();
    let shown: Vec<_> = sampled.into_iter().map(|at| stack(&world, DEAR, at)).collect();
    assert_eq!(shown, [mangled, written].map(|name| format!("_start;main;{name}")));
}

#[test]
fn a_flood_of_functions_does_not_take_the_names_from_samples_that_wait() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    world.engine.tracking.processes.set_bounds(CodeBounds { map_bytes: 64 << 10, functions: 1 << 13 });
    announce(&mut world, PID, (JIT, 64, "old"));
    world.run_for(3000);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(150);
    assert_eq!(world.engine.progress().waiting, 1);
    // All at once: the first is replaced, and then another one more often than there is room for.
    for number in 0..2000 {
        world.now = MonoNs(world.now.0 + 1000);
        let start = if number == 0 { JIT } else { JIT + 0x2_0000 };
        announce(&mut world, PID, (start, 64, &format!("flood {number}")));
    }
    world.run_for(500);
    assert_eq!(world.engine.progress().waiting, 0);
    // There is room again as soon as nobody asks for what has ended.
    world.run_for(2000);
    announce(&mut world, PID, (JIT, 64, "new"));
    world.run_for(10);
    let later = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(50);
    announce(&mut world, PID, (JIT + 0x1000, 64, "last"));
    world.run_for(500);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "_start;main;old");
    assert_eq!(stack(&world, PID, later), "_start;main;new");
    assert_eq!(account.jit.named.jitdump, 2);
    let map = account.sources[0].map;
    assert!(map.dropped_full > 1000 && map.loads + map.dropped_full == 2003, "{map:?}");
}

#[test]
fn records_that_are_not_whole_have_one_bound_and_what_comes_behind_them_is_read() {
    let mut world = World::new(options());
    let held = |world: &World| -> usize {
        world.engine.tracking.processes.iter().map(|process| process.announcements.held_bytes()).sum()
    };
    runtime(&mut world, PID);
    app(&mut world, CHILD);
    world.follow(&[PID, CHILD]);
    begin_dump(&mut world, CHILD);
    world.settle();
    // Three MiB of code, of which not all is written.
    let large = |world: &World, pid| record(pid, world.now, (JIT + 0x1_0000, 3 << 20, "large"));
    let records = [PID, CHILD].map(|pid| large(&world, pid));
    for (pid, (record, written)) in [PID, CHILD].into_iter().zip(records.iter().zip([600 << 10, 1400 << 10])) {
        world.machine.append(&dump_path(pid), &record[..written]);
    }
    world.run_for(3000);
    assert!(held(&world) <= MAX_TORN_BYTES, "{} bytes", held(&world));
    for (pid, (record, written)) in [PID, CHILD].into_iter().zip(records.iter().zip([600 << 10, 1400 << 10])) {
        world.machine.append(&dump_path(pid), &record[written..]);
        announce(&mut world, pid, (JIT, 64, "behind"));
    }
    world.run_for(3000);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.sample(CHILD, &[JIT + 8, MAIN, START]);
    world.run_for(100);
    for pid in [PID, CHILD] {
        announce(&mut world, pid, (JIT + 0x40, 64, "last"));
    }
    world.run_for(500);
    let account = world.finish().account.clone();
    for pid in [PID, CHILD] {
        assert_eq!(stack(&world, pid, at), "_start;main;behind");
    }
    let given_up = |pid: u32| {
        let source = account.sources.iter().find(|source| source.pid == pid);
        source.map(|source| (source.dumps[0].records.skipped.given_up, source.functions))
    };
    assert_eq!((given_up(PID), given_up(CHILD)), (Some((0, 3)), Some((1, 2))), "who has the most gives up");
    assert!(account.to_string().contains("1 incomplete records given up for want of room"), "{account}");
}

/// Announces a function in a dump that is written in blocks: the file ends with one.
fn announce_in_blocks(world: &mut World, (start, name): (u64, &str)) {
    let len = world.machine.file_mut(&dump_path(PID)).unwrap().bytes.len();
    let record = (64..).map(|size| record(PID, world.now, (start, size, name)));
    let whole = record.into_iter().find(|record| (len + record.len()).is_multiple_of(512));
    world.machine.append(&dump_path(PID), &whole.unwrap());
}

/// A sample in code that has been replaced, which the runtime has not written when the run is told to end. When the new
/// code was announced, and when it was sampled.
fn run_that_ends_before_a_block(world: &mut World) -> (MonoNs, u64) {
    runtime(world, PID);
    world.run_for(100);
    announce_in_blocks(world, (JIT, "old"));
    world.run_for(300);
    let announced = world.now;
    world.now = MonoNs(announced.0 + MS);
    world.sample(PID, &[JIT + 8, MAIN, START]);
    let at = (world.now.0 - ms(0).0) / MS;
    let limit = Duration::from_secs(10);
    world.order(Order::Finish { read_limit: limit, names_limit: limit, duration: limit });
    world.run_for(300);
    (announced, at)
}

#[test]
fn what_is_announced_but_not_written_when_a_run_ends_is_waited_for() {
    let mut world = World::new(options());
    let (announced, at) = run_that_ends_before_a_block(&mut world);
    assert!(world.recorded.is_none(), "the block is waited for");
    world.machine.append(&dump_path(PID), &record(PID, announced, (JIT, 64, "new")));
    world.run_for(300);
    let account = world.recorded.as_ref().expect("the run has ended").account.clone();
    assert_eq!(stack(&world, PID, at), "_start;main;new");
    assert_eq!((account.jit.named.jitdump, account.jit.unconfirmed), (1, 0));
}

#[test]
fn what_is_never_written_is_waited_for_a_second_and_what_is_named_otherwise_is_counted() {
    let mut world = World::new(options());
    let (_, at) = run_that_ends_before_a_block(&mut world);
    world.run_for(600);
    assert!(world.recorded.is_none(), "the block is waited for");
    world.run_for(300);
    let account = world.recorded.as_ref().expect("the run has ended").account.clone();
    assert_eq!(stack(&world, PID, at), "_start;main;old");
    assert_eq!((account.jit.named.jitdump, account.jit.unconfirmed), (1, 1));
}

#[test]
fn a_dump_that_is_written_record_by_record_is_not_waited_for() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    world.run_for(100);
    announce(&mut world, PID, (JIT, 64, "old"));
    world.run_for(300);
    world.sample(PID, &[JIT + 8, MAIN, START]);
    let limit = Duration::from_secs(10);
    world.order(Order::Finish { read_limit: limit, names_limit: limit, duration: limit });
    world.run_for(200);
    let account = world.recorded.as_ref().expect("the run has ended").account.clone();
    assert_eq!((account.jit.named.jitdump, account.jit.unconfirmed), (1, 0));
}

#[test]
fn code_replaced_at_the_same_address_is_named_by_the_time_of_the_sample() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    let mut times = Vec::new();
    for name in ["old", "new", "newest"] {
        world.run_for(100);
        announce(&mut world, PID, (JIT, 64, name));
        world.run_for(50);
        times.push((world.now.0 - ms(0).0) / MS);
        world.sample(PID, &[JIT + 8]);
    }
    // One that comes late, from the time of the first.
    world.sample_at(ms(times[0] + 5), PID, &[JIT + 8]);
    world.finish();
    let names: Vec<String> = times.iter().map(|time| stack(&world, PID, *time)).collect();
    assert_eq!(names, ["old", "new", "newest"]);
    assert_eq!(stack(&world, PID, times[0] + 5), "old");
}

#[test]
fn a_counter_s_rate_that_is_known_better_holds_for_dumps_that_are_read_already() {
    let mut world = World::new(options());
    // Ticks are nanoseconds here; at first their times are taken for 50 ms too early.
    let ticks = |zero| Input::Ticks(Ticks { mult: 1, shift: 0, zero });
    world.feed(ticks(0_u64.wrapping_sub(50 * MS)));
    app(&mut world, PID);
    world.follow(&[PID]);
    let fields = HeaderFields { pid: PID, time: BEGIN.0, flags: FLAG_ARCH_TIMESTAMP, ..HeaderFields::default() };
    let inode = world.machine.add_file(&dump_path(PID), DumpWriter::with_header(&fields).into_bytes());
    map(&mut world, PID, file_mapping(0x6000_0000, 0x1000, inode, &dump_path(PID)));
    announce(&mut world, PID, (JIT + 0x1000, 64, "first"));
    world.run_for(300);
    world.feed(ticks(0));
    announce(&mut world, PID, (JIT, 64, "old"));
    world.run_for(80);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(20);
    announce(&mut world, PID, (JIT, 64, "new"));
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;old");
}

#[test]
fn what_a_program_announced_right_before_it_executed_another_one_is_read_to_its_end() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "early"));
    world.run_for(300);
    // Between two reads: announced, run, and gone.
    announce(&mut world, PID, (JIT + 0x1000, 64, "late"));
    world.now = MonoNs(world.now.0 + MS);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 0x1008, MAIN, START]);
    world.now = MonoNs(world.now.0 + MS);
    let again = mapped(&world, APP, "/bin/app");
    exec(&mut world, PID, "/bin/app", vec![again, memory_mapping(JIT, 0x10_0000)]);
    world.run_for(2);
    let then = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 0x1008, MAIN, START]);
    world.run_for(3000);
    assert!(world.machine.open.values().all(|inode| Some(inode) != world.machine.paths.get(&dump_path(PID))));
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;late");
    assert_eq!(stack(&world, PID, then), "_start;main;[JIT code without a name]", "it is no code of the new program");
}

#[test]
fn lines_that_a_program_wrote_right_before_it_executed_another_one_are_its_own() {
    let mut world = World::new(options());
    app(&mut world, PID);
    let path = format!("/tmp/perf-{PID}.map");
    world.machine.add_file(&path, format!("{JIT:x} 40 early\n").into_bytes());
    world.follow(&[PID]);
    world.run_for(300);
    world.machine.append(&path, format!("{:x} 40 late\n", JIT + 0x1000).as_bytes());
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 0x1008, MAIN, START]);
    world.now = MonoNs(world.now.0 + MS);
    let again = mapped(&world, APP, "/bin/app");
    exec(&mut world, PID, "/bin/app", vec![again, memory_mapping(JIT, 0x10_0000)]);
    world.run_for(20);
    // The new program goes on in the same file, as CPython does.
    world.machine.append(&path, format!("{JIT:x} 40 new\n").as_bytes());
    let then = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.sample(PID, &[JIT + 0x1008, MAIN, START]);
    world.run_for(3000);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;late");
    let mut told = stacks(&world, PID, then);
    told.sort();
    assert_eq!(told, ["_start;main;[JIT code without a name]", "_start;main;new"]);
}

#[test]
fn what_another_process_of_that_number_has_left_in_the_perf_map_names_nothing() {
    let mut world = World::new(options());
    app(&mut world, PID);
    let path = format!("/tmp/perf-{PID}.map");
    world.machine.add_file(&path, format!("{JIT:x} 40 stale\n{:x} 40 older\n", JIT + 0x1000).into_bytes());
    world.machine.file_mut(&path).unwrap().age = Age::LeftBehind;
    world.follow(&[PID]);
    world.run_for(1500);
    // The process goes on in it.
    world.machine.append(&path, format!("{JIT:x} 40 new\n").as_bytes());
    world.machine.file_mut(&path).unwrap().age = Age::GoneOnWith;
    world.sample(PID, &[MAIN]);
    world.run_for(1500);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.sample(PID, &[JIT + 0x1008, MAIN, START]);
    world.run_for(1000);
    world.finish();
    let mut told = stacks(&world, PID, at);
    told.sort();
    assert_eq!(told, ["_start;main;[JIT code without a name]", "_start;main;new"]);
}

#[test]
fn lines_before_one_of_what_is_mapped_nowhere_are_another_process_s_in_a_perf_map_that_is_older() {
    for age in [Age::Own, Age::GoneOnWith] {
        let mut world = World::new(options());
        app(&mut world, PID);
        let path = format!("/tmp/perf-{PID}.map");
        // Of two processes, whose memory overlaps by chance; nobody has looked before the second one wrote. It is read
        // in two pieces.
        let filler = format!("{:x} 40 {}\n", JIT + 0x3000, "x".repeat(4000)).repeat(100);
        let (a, b) = (JIT + 0x1000, JIT + 0x2000);
        let lines = format!("{a:x} 40 stale\n{filler}12345000 40 elsewhere\n{JIT:x} 40 first\n{b:x} 40 second\n");
        world.machine.add_file(&path, lines.into_bytes());
        world.machine.file_mut(&path).unwrap().age = age;
        world.follow(&[PID]);
        world.run_for(300);
        let at = (world.now.0 - ms(0).0) / MS;
        [JIT, a, b].into_iter().for_each(|start| world.sample(PID, &[start + 8, MAIN, START]));
        world.run_for(1000);
        world.finish();
        let mut told = stacks(&world, PID, at);
        told.sort();
        let stale = if age == Age::Own { "_start;main;stale" } else { "_start;main;[JIT code without a name]" };
        let mut expected = [stale, "_start;main;first", "_start;main;second"];
        expected.sort_unstable();
        assert_eq!(told, expected, "{age:?}");
    }
}

#[test]
fn the_runtimes_buffer_tells_what_is_not_in_the_file_yet() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.follow(&[PID]);
    let inode = world.machine.add_file(&dump_path(PID), Vec::new());
    map(&mut world, PID, file_mapping(0x6000_0000, 0x1000, inode, &dump_path(PID)));
    let written = [header(PID), record(PID, world.now, (JIT, 64, "buffered"))].concat();
    world.machine.processes.get_mut(&PID).unwrap().unwritten = Some(written.clone());
    world.run_for(20);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(3000);
    assert_eq!(world.engine.progress().waiting, 0, "file and buffer together are everything");
    world.machine.append(&dump_path(PID), &written);
    world.machine.processes.get_mut(&PID).unwrap().unwritten = Some(Vec::new());
    world.run_for(1000);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "_start;main;buffered");
    assert_eq!(account.jit.named.peeked + account.jit.named.jitdump, 1);
    assert_eq!(account.sources[0].dumps[0].peek.unwrap().found, 1);
}

#[test]
fn the_process_is_forked_and_the_child_is_followed_with_its_parents_code() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "inherited"));
    world.run_for(200);
    fork(&mut world, CHILD, PID);
    assert!(world.kernel.followed.contains(&jitprof_common::units::Pid(CHILD)));
    world.run_for(200);
    announce(&mut world, PID, (JIT, 64, "parents"));
    world.run_for(50);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.sample(CHILD, &[JIT + 8, MAIN, START]);
    world.run_for(100);
    // What the child does itself is its own.
    world.run_for(100);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;parents");
    assert_eq!(stack(&world, CHILD, at), "_start;main;inherited");
}

#[test]
fn what_the_parent_announces_right_after_the_fork_is_not_the_childs() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    fork(&mut world, CHILD, PID);
    world.run_for(2);
    announce(&mut world, PID, (JIT, 64, "parents"));
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(CHILD, &[JIT + 8, MAIN, START]);
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, CHILD, at), "_start;main;[JIT code without a name]");
}

#[test]
fn what_a_process_announces_after_its_child_was_made_is_none_of_its_grandchilds() {
    const GRANDCHILD: u32 = CHILD + 1;
    for has_run in [false, true] {
        let mut world = World::new(options());
        runtime(&mut world, PID);
        announce(&mut world, PID, (JIT + 0x1000, 64, "before"));
        world.run_for(200);
        fork(&mut world, CHILD, PID);
        world.run_for(100);
        if has_run {
            world.sample(CHILD, &[JIT + 0x1008, MAIN, START]);
            world.run_for(200);
        }
        announce(&mut world, PID, (JIT, 64, "between"));
        world.run_for(100);
        announce(&mut world, PID, (JIT + 0x2000, 64, "meanwhile"));
        fork(&mut world, GRANDCHILD, CHILD);
        world.run_for(100);
        let at = (world.now.0 - ms(0).0) / MS;
        world.sample(GRANDCHILD, &[JIT + 0x2008, JIT + 8, JIT + 0x1008, START]);
        world.run_for(300);
        world.finish();
        let unnamed = "[JIT code without a name]";
        assert_eq!(stack(&world, GRANDCHILD, at), format!("_start;before;{unnamed};{unnamed}"), "{has_run}");
    }
}

#[test]
fn a_record_from_before_the_fork_that_comes_later_is_the_childs_too() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "known"));
    world.run_for(200);
    let before = world.now;
    world.run_for(10);
    fork(&mut world, CHILD, PID);
    world.run_for(20);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(CHILD, &[JIT + 0x1008, MAIN, START]);
    world.run_for(100);
    let late = record(PID, before, (JIT + 0x1000, 64, "late"));
    world.machine.append(&dump_path(PID), &late);
    world.run_for(200);
    world.finish();
    assert_eq!(stack(&world, CHILD, at), "_start;main;late");
}

#[test]
fn the_parent_ends_before_its_child_is_sampled() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "inherited"));
    world.run_for(200);
    fork(&mut world, CHILD, PID);
    world.run_for(10);
    exit(&mut world, PID);
    world.run_for(6000);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(CHILD, &[JIT + 8, MAIN, START]);
    world.run_for(100);
    assert!(!world.have_targets_ended || world.machine.processes.contains_key(&CHILD));
    world.finish();
    assert_eq!(stack(&world, CHILD, at), "_start;main;inherited");
}

#[test]
fn a_child_that_lives_on_gets_its_copy_without_a_sample() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "inherited"));
    world.run_for(200);
    for child in 0..70 {
        fork(&mut world, CHILD + child, PID);
    }
    for child in 1..70 {
        exit(&mut world, CHILD + child);
    }
    world.run_for(7000);
    announce(&mut world, PID, (JIT, 64, "parents"));
    world.run_for(200);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(CHILD, &[JIT + 8, MAIN, START]);
    world.finish();
    assert_eq!(stack(&world, CHILD, at), "_start;main;inherited");
}

#[test]
fn an_exec_ends_all_code_and_all_mappings() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "before"));
    world.run_for(200);
    let first = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(50);
    world.machine.add_program("/bin/other", b"other", &[(0, "_start"), (0x1000, "entry")]);
    let other = mapped(&world, APP, "/bin/other");
    exec(&mut world, PID, "/bin/other", vec![other, memory_mapping(JIT, 0x1000)]);
    world.run_for(50);
    let second = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[MAIN, START]);
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(200);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, first), "_start;main;before");
    assert_eq!(stacks(&world, PID, second), ["_start;entry", "_start;entry;[JIT code without a name]"]);
    assert_eq!(account.advice.len(), 0, "what was announced once has its account");
}

#[test]
fn a_perf_map_appears_later_and_is_read_by_its_owner_only() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.follow(&[PID]);
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(1500);
    let path = format!("/tmp/perf-{PID}.map");
    world.machine.add_file(&path, format!("{JIT:x} 40 listed\n").into_bytes());
    world.machine.file_mut(&path).unwrap().identity.uid = 7;
    world.run_for(2500);
    assert_eq!(world.engine.progress().functions, 0, "it is somebody else's");
    world.machine.file_mut(&path).unwrap().identity.uid = 0;
    world.run_for(2500);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.machine.append(&path, format!("{:x} 40 torn", JIT + 0x40).as_bytes());
    world.run_for(300);
    world.sample(PID, &[JIT + 0x48, MAIN, START]);
    let later = (world.now.0 - ms(0).0) / MS;
    world.run_for(1000);
    exit(&mut world, PID);
    world.run_for(200);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "_start;main;listed");
    assert_eq!(stack(&world, PID, later), "_start;main;torn", "its last line is taken without its end");
    assert_eq!(account.sources[0].perf_map.unwrap().lines, 2);
}

#[test]
fn a_perf_map_that_is_replaced_is_read_from_its_beginning() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.follow(&[PID]);
    let path = format!("/tmp/perf-{PID}.map");
    world.machine.add_file(&path, format!("{JIT:x} 40 first\n").into_bytes());
    world.sample(PID, &[MAIN, START]);
    world.run_for(1500);
    assert_eq!(world.engine.progress().functions, 1);
    // What is read of the old one arrives when the new one is open.
    world.decide = Box::new(|request| match request {
        Request::Read { .. } => Fate::HoldAnswer,
        _ => Fate::Answer,
    });
    world.run_for(200);
    world.machine.append(&path, format!("{:x} 40 stale\n", JIT + 0x80).as_bytes());
    world.machine.add_file(&path, format!("{JIT:x} 40 second\n").into_bytes());
    world.run_for(1500);
    world.release();
    world.run_for(500);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;second");
}

#[test]
fn what_is_read_of_one_perf_map_is_not_taken_for_the_next_ones() {
    let mut world = World::new(options());
    app(&mut world, PID);
    let path = format!("/tmp/perf-{PID}.map");
    world.machine.add_file(&path, format!("{JIT:x} 40 stale\n").into_bytes());
    world.decide = Box::new(|request| match request {
        Request::Read { .. } => Fate::HoldAnswer,
        _ => Fate::Answer,
    });
    world.follow(&[PID]);
    world.sample(PID, &[MAIN, START]);
    world.run_for(100);
    assert_eq!(world.held(), 1);
    world.machine.add_file(&path, format!("{:x} 40 fresh\n", JIT + 0x1000).into_bytes());
    world.run_for(2500);
    assert_eq!(world.held(), 2);
    world.release_one(0);
    world.settle();
    world.release();
    world.run_for(300);
    assert_eq!(world.engine.progress().functions, 1, "the file that said it is there no more");
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.sample(PID, &[JIT + 0x1008, MAIN, START]);
    world.finish();
    assert_eq!(stacks(&world, PID, at), ["_start;main;[JIT code without a name]", "_start;main;fresh"]);
}

#[test]
fn a_perf_map_that_cannot_be_read_any_more_is_given_up() {
    let mut world = World::new(options());
    app(&mut world, PID);
    let path = format!("/tmp/perf-{PID}.map");
    world.machine.add_file(&path, format!("{JIT:x} 40 listed\n").into_bytes());
    world.follow(&[PID]);
    world.sample(PID, &[JIT + 8]);
    world.run_for(300);
    world.decide = Box::new(|request| match request {
        Request::Read { .. } => Fate::Fail(WhyUnread::Failed),
        _ => Fate::Answer,
    });
    world.run_for(300);
    let account = &world.finish().account;
    assert!(account.remarks.iter().any(|remark| remark.contains("perf map of 100 cannot be read")));
}

#[test]
fn a_perf_map_that_could_not_be_read_in_time_is_read_later() {
    let mut world = World::new(options());
    app(&mut world, PID);
    let path = format!("/tmp/perf-{PID}.map");
    world.machine.add_file(&path, format!("{JIT:x} 40 listed\n").into_bytes());
    world.decide = Box::new(|request| match request {
        Request::Read { .. } => Fate::Stall,
        _ => Fate::Answer,
    });
    world.follow(&[PID]);
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(1500);
    assert_eq!(world.engine.progress().functions, 0);
    world.decide = Box::new(|_| Fate::Answer);
    world.run_for(1500);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(300);
    let account = world.finish().account.clone();
    assert!(!account.remarks.iter().any(|remark| remark.contains("cannot be read")), "{:?}", account.remarks);
    assert_eq!(stack(&world, PID, at), "_start;main;listed");
}

#[test]
fn a_process_execs_while_its_dump_is_opened() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.follow(&[PID]);
    let mut opened = 0;
    world.decide = Box::new(move |request| match request {
        Request::Open { place, .. } if place.path.ends_with(".dump") => {
            opened += 1;
            if opened == 1 { Fate::HoldAnswer } else { Fate::Answer }
        }
        _ => Fate::Answer,
    });
    begin_dump(&mut world, PID);
    world.run_for(10);
    assert_eq!(world.held(), 1);
    let app = mapped(&world, APP, "/bin/app");
    exec(&mut world, PID, "/bin/app", vec![app, memory_mapping(JIT, 0x1000)]);
    world.settle();
    // The new program's dump is opened while the old one's is still on its way.
    world.decide = Box::new(|request| match request {
        Request::Open { place, .. } if place.path.ends_with(".dump") => Fate::HoldAnswer,
        _ => Fate::Answer,
    });
    begin_dump(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "new"));
    world.run_for(10);
    assert_eq!(world.held(), 2);
    world.release_one(0);
    world.settle();
    world.release();
    world.run_for(100);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(100);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "_start;main;new");
    assert_eq!(account.sources[0].dumps.len(), 1);
}

#[test]
fn a_process_execs_while_its_dump_is_read() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    world.decide = Box::new(|request| match request {
        Request::Read { .. } => Fate::HoldAnswer,
        _ => Fate::Answer,
    });
    announce(&mut world, PID, (JIT, 64, "old"));
    world.run_for(300);
    assert_eq!(world.held(), 1);
    let app = mapped(&world, APP, "/bin/app");
    exec(&mut world, PID, "/bin/app", vec![app, memory_mapping(JIT, 0x1000)]);
    world.run_for(10);
    world.release();
    world.run_for(300);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;[JIT code without a name]");
}

#[test]
fn what_is_mapped_like_a_dump_and_is_none_is_said() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.follow(&[PID]);
    let path = dump_path(PID);
    let inode = world.machine.add_file(&path, b"no dump at all, but much longer than a header is".to_vec());
    map(&mut world, PID, file_mapping(0x6000_0000, 0x1000, inode, &path));
    world.settle();
    let account = &world.finish().account;
    assert!(account.remarks.iter().any(|remark| remark.contains("is mapped like a jitdump and is none")));
    assert_eq!(account.sources.len(), 0);
}

#[test]
fn a_dump_that_cannot_be_opened_or_read_is_a_remark_and_costs_no_sample() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.follow(&[PID]);
    world.decide = Box::new(|request| match request {
        Request::Open { .. } => Fate::Stall,
        _ => Fate::Answer,
    });
    begin_dump(&mut world, PID);
    world.settle();
    world.decide = Box::new(|_| Fate::Answer);
    begin_dump(&mut world, PID);
    world.settle();
    world.decide = Box::new(|request| match request {
        Request::Read { .. } => Fate::Fail(WhyUnread::Failed),
        _ => Fate::Answer,
    });
    world.run_for(300);
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(300);
    let account = &world.finish().account;
    assert!(account.remarks.iter().any(|remark| remark.contains("dump of process 100 not read")), "{account:?}");
    assert!(account.remarks.iter().any(|remark| remark.contains("cannot be read any more")), "{account:?}");
}

#[test]
fn a_process_that_maps_dump_after_dump_is_bounded_and_an_idle_one_goes_for_a_new_one() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.follow(&[PID]);
    for number in 0..20 {
        let path = format!("/tmp/jit-{PID}-{number}.dump");
        let inode = world.machine.add_file(&path, header(PID));
        let marker = file_mapping(0x6000_0000 + number * 0x1000, 0x1000, inode, &path);
        map(&mut world, PID, marker);
    }
    world.run_for(100);
    let remarks = world.engine.remarks().join("\n");
    assert_eq!(remarks.matches("maps too many dumps at once").count(), 4, "{remarks}");
    world.run_for(12_000);
    begin_dump(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "newest"));
    world.run_for(300);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "_start;main;newest");
    assert_eq!(account.sources[0].dumps.len(), 16);
}

#[test]
fn an_inherited_dump_counts_up_to_the_fork() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "before"));
    world.run_for(100);
    // The child is not known to be one: it is followed by its number, and its mappings are read.
    let start = world.now;
    let mut made = world.machine.processes[&PID].clone();
    made.read.start = start;
    made.read.via = jitprof_common::units::Pid(CHILD);
    made.read.threads = vec![jitprof_common::units::Tid(CHILD)];
    world.machine.processes.insert(CHILD, made);
    world.run_for(50);
    announce(&mut world, PID, (JIT, 64, "after"));
    world.run_for(50);
    world.follow(&[CHILD]);
    world.run_for(100);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(CHILD, &[JIT + 8, MAIN, START]);
    world.run_for(200);
    assert_eq!(world.engine.progress().waiting, 0, "it waits for nothing that comes after the fork");
    world.finish();
    assert_eq!(stack(&world, CHILD, at), "_start;main;before");
}

#[test]
fn what_a_process_has_announced_can_be_taken_without_a_recording() {
    let mut world = World::new(options());
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "function"));
    world.run_for(300);
    let until = world.engine.knows_until(jitprof_common::units::Pid(PID));
    assert!(until.is_some_and(|until| until > MonoNs(0) && until <= world.now));
    let announced = world.engine.take_announced(jitprof_common::units::Pid(PID)).unwrap();
    assert!(announced.is_announced && announced.files.len() == 1);
    let hit = announced.map.lookup(avma(JIT + 8), world.now).unwrap();
    assert_eq!(hit.name(), "function");
    assert!(world.engine.take_announced(jitprof_common::units::Pid(7)).is_none());
    assert!(world.engine.began_at() == ms(0) && world.engine.is_prepared());
}

#[test]
fn code_that_moves_or_is_unloaded_takes_its_name_and_its_rows_along() {
    use jitprof_jitdump::writer::DumpWriter;
    let mut world = World::new(options());
    runtime(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "mover"));
    announce(&mut world, PID, (JIT + 0x2000, 64, "goer"));
    world.run_for(300);
    let before = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(10);
    let mut records = DumpWriter::new(PID);
    records.moved(world.now.0, JIT, JIT + 0x1000, 64, 0).unload(world.now.0, JIT + 0x2000, 64);
    world.machine.append(&dump_path(PID), &records.into_bytes()[40..]);
    world.run_for(300);
    let after = (world.now.0 - ms(0).0) / MS;
    for at in [JIT + 0x1008, JIT + 8, JIT + 0x2008] {
        world.sample(PID, &[at, MAIN, START]);
    }
    world.run_for(300);
    let has_rule = |at| world.kernel.row(PID, at).is_some_and(|row| row.cfa_kind() == CfaKind::Fp as u8);
    assert!(has_rule(JIT + 0x1008) && !has_rule(JIT + 8) && !has_rule(JIT + 0x2008));
    world.finish();
    assert_eq!(stack(&world, PID, before), "_start;main;mover");
    let mut told = stacks(&world, PID, after);
    told.sort();
    let unnamed = "_start;main;[JIT code without a name]";
    assert_eq!(told, [unnamed, unnamed, "_start;main;mover"]);
}

#[test]
fn the_code_of_erlang_begins_with_its_return_address_wherever_it_is_entered() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.machine.processes.get_mut(&PID).unwrap().read.exe = Some("/usr/lib/erlang/erts-15/bin/beam.smp".to_owned());
    world.follow(&[PID]);
    begin_dump(&mut world, PID);
    world.settle();
    // Ends with a jump and returns nowhere: of another runtime nothing could be said.
    let code = [0x90, 0x90, 0x90, 0xff, 0xe0];
    let mut writer = jitprof_jitdump::writer::DumpWriter::new(PID);
    let load = jitprof_jitdump::writer::LoadFields { code_addr: JIT, code_index: 0, name: b"$loop", code: &code };
    writer.load(world.now.0, &load);
    world.machine.append(&dump_path(PID), &writer.into_bytes()[40..]);
    world.run_for(300);
    let row = world.kernel.row(PID, JIT + 1).unwrap();
    assert_eq!(row.cfa_kind(), CfaKind::Sp as u8);
    world.finish();
}

#[test]
fn inlined_functions_and_lines_are_told_with_their_function() {
    use jitprof_jitdump::writer::{DumpWriter, EntryFields};
    let mut world = World::new(options());
    runtime(&mut world, PID);
    world.run_for(10);
    let mut writer = DumpWriter::new(PID);
    let lines = [EntryFields { addr: JIT, line: 7, discrim: 0, name: b"file.js" }];
    writer.debug_info(world.now.0, JIT, &lines, 0);
    world.machine.append(&dump_path(PID), &writer.into_bytes()[40..]);
    announce(&mut world, PID, (JIT, 64, "lined"));
    world.run_for(200);
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(200);
    let profile = &world.finish().profile;
    let mut sources = Vec::new();
    profile.visit_rows(|row| {
        let leaf = profile.pop(row.stack).map(|(_, leaf)| profile.frame(leaf));
        sources.push(leaf.and_then(|leaf| leaf.source).map(|source| (source.file.to_owned(), source.line)));
    });
    assert_eq!(sources, [Some(("file.js".to_owned(), 7))]);
}

const PYTHON: &str = "/usr/bin/python3.13";

/// Makes a process that runs `exe` and can be a child of another one.
fn program(world: &mut World, pid: u32, exe: &str, parent: u32) {
    let known = world.machine.paths.get(exe).copied();
    let symbols = [(0, "_start"), (0x1000, "main")];
    let inode = known.unwrap_or_else(|| world.machine.add_program(exe, exe.as_bytes(), &symbols));
    let mappings = vec![file_mapping(APP, 0x1_0000, inode, exe), memory_mapping(JIT, 0x10_0000)];
    let now = world.now;
    world.machine.add_process(pid, now, exe, mappings);
    world.machine.processes.get_mut(&pid).unwrap().read.parent = Pid(parent);
}

/// A worker that was forked before the recording, as CPython's are: it has a dump of its own, and of its parent's only what
/// still runs. `exe` is what it runs.
fn forked_before(exe: &str) -> World {
    let mut world = World::new(options());
    let begin = |world: &mut World, pid: u32| {
        let inode = world.machine.add_file(&dump_path(pid), header(pid));
        let marker = file_mapping(0x6000_0000, 0x1000, inode, &dump_path(pid));
        world.machine.mappings_mut(pid).unwrap().push(marker);
    };
    program(&mut world, PID, PYTHON, 1);
    begin(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "serve"));
    world.run_for(100);
    program(&mut world, CHILD, exe, PID);
    begin(&mut world, CHILD);
    world.run_for(100);
    announce(&mut world, CHILD, (JIT + 0x1000, 64, "work"));
    announce(&mut world, PID, (JIT + 0x2000, 64, "of the parent"));
    world.run_for(100);
    world
}

/// The stack of a sample of the worker through all three functions.
fn stack_of_worker(mut world: World, follow: &[u32]) -> String {
    world.follow(follow);
    world.run_for(200);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(CHILD, &[JIT + 0x2008, JIT + 0x1008, JIT + 8, MAIN, START]);
    world.run_for(300);
    world.finish();
    stack(&world, CHILD, at)
}

#[test]
fn a_worker_that_was_forked_before_has_its_parents_frames_and_no_later_ones() {
    let expected = "_start;main;serve;work;[JIT code without a name]";
    assert_eq!(stack_of_worker(forked_before(PYTHON), &[PID, CHILD]), expected, "the parent is read first");
    assert_eq!(stack_of_worker(forked_before(PYTHON), &[CHILD, PID]), expected, "the child is read first");
    assert_eq!(stack_of_worker(forked_before(PYTHON), &[CHILD]), expected, "the parent is no target");
}

#[test]
fn a_child_that_runs_another_program_has_none_of_its_parents_code() {
    let expected = "_start;main;[JIT code without a name];work;[JIT code without a name]";
    assert_eq!(stack_of_worker(forked_before("/bin/other"), &[PID, CHILD]), expected);
}

#[test]
fn a_line_of_the_parents_perf_map_does_not_replace_what_the_worker_says() {
    let mut world = World::new(options());
    program(&mut world, PID, PYTHON, 1);
    world
        .machine
        .add_file(&format!("/tmp/perf-{PID}.map"), format!("{JIT:x} 40 serve\n{:x} 40 later\n", JIT + 0x1000).into());
    program(&mut world, CHILD, PYTHON, PID);
    world.machine.add_file(&format!("/tmp/perf-{CHILD}.map"), format!("{:x} 40 work\n", JIT + 0x1000).into());
    world.follow(&[CHILD]);
    world.run_for(2000);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(CHILD, &[JIT + 0x1008, JIT + 8, MAIN, START]);
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, CHILD, at), "_start;main;serve;work");
}

#[test]
fn lines_of_a_perf_map_that_are_not_written_are_read_from_the_buffer() {
    let mut world = World::new(options());
    app(&mut world, PID);
    let path = format!("/tmp/perf-{PID}.map");
    world.machine.add_file(&path, Vec::new());
    let line = |at: u64, name: &str| format!("{at:x} 40 {name}\n").into_bytes();
    let written = [line(JIT, "written"), line(JIT + 0x1000, "hot"), b"7000".to_vec()].concat();
    world.machine.processes.get_mut(&PID).unwrap().unwritten_lines = Some(written);
    world.follow(&[PID]);
    world.run_for(2000);
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(PID, &[JIT + 0x1008, JIT + 8, MAIN, START]);
    world.run_for(300);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "_start;main;written;hot");
    assert_eq!((account.jit.named.perf_map, account.jit.unnamed_total()), (2, 0));
}

#[test]
fn a_dump_whose_file_system_did_not_answer_is_opened_when_it_does() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.follow(&[PID]);
    world.decide = Box::new(|request| match request {
        Request::Open { place, .. } if place.path.ends_with(".dump") => Fate::Stall,
        _ => Fate::Answer,
    });
    begin_dump(&mut world, PID);
    announce(&mut world, PID, (JIT, 64, "late"));
    world.run_for(1000);
    world.decide = Box::new(|_| Fate::Answer);
    world.run_for(6000);
    let at = (world.now.0 - BEGIN.0) / MS;
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(1000);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;late");
}
