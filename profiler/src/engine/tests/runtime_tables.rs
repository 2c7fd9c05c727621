//! How code gets its names from what its runtime knows itself, and at which times.

use jitprof_common::listed::{ListEnd, ListSpec, Step};
use jitprof_common::registrations::{REGISTER, UNREGISTER};
use jitprof_common::row::{CfaKind, Row};
use jitprof_common::stop::StopReason;
use jitprof_common::units::{Pid, Tid};

use super::frames::lines;
use super::stories::*;
use crate::engine::border::{FrameList, Registration, RegistrationCall, Request};
use crate::engine::world::machine::{file_mapping, memory_mapping};
use crate::engine::world::{Fate, MS, World, options, raw_sample};
use crate::engine::{EngineOptions, Input, Who};
use crate::process::event::TaskChange;
use crate::runtime::{
    Capture, FoundCode, FoundFrame, FoundInline, FoundLines, FoundRows, Missed, ParkedStack, Registered,
};
use crate::symbol::{deep_name, spend_on_names};

const PID: u32 = 100;
const OTHER: u32 = 101;

/// A piece of code whose frames have 32 bytes from the 8th byte on.
fn found(start: u64, name: &str) -> FoundCode {
    let frame = FoundFrame::Sized { bytes: 32, complete_from: 8 };
    FoundCode { start: avma(start), size: 64, name: name.to_owned(), frame, number: 0, lines: None, registered: None }
}

/// A JVM that was started without a flag, and its code.
fn jvm(world: &mut World, pid: u32, code: &[FoundCode]) {
    app(world, pid);
    if !world.machine.paths.contains_key("/lib/libjvm.so") {
        world.machine.add_program("/lib/libjvm.so", b"jvm", &[(0, "JavaMain")]);
    }
    let library = mapped(world, 0x50_0000, "/lib/libjvm.so");
    world.machine.mappings_mut(pid).unwrap().push(library);
    let runtime = &mut world.machine.processes.get_mut(&pid).unwrap().runtime;
    runtime.name = Some("HotSpot 17.0.15".to_owned());
    runtime.code = code.to_vec();
}

fn set_code(world: &mut World, pid: u32, code: &[FoundCode]) {
    world.machine.processes.get_mut(&pid).unwrap().runtime.code = code.to_vec();
}

/// Samples an address of the code now; returns when that was.
fn sample(world: &mut World) -> u64 {
    world.run_for(1);
    world.sample(PID, &[JIT + 8, MAIN, START]);
    (world.now.0 - ms(0).0) / MS
}

#[test]
fn a_jvm_that_announces_nothing_is_named_by_its_own_tables() {
    let mut world = World::new(options());
    jvm(&mut world, PID, &[found(JIT, "LBurn;leafHot(I)I [C2]")]);
    world.follow(&[PID]);
    world.run_for(100);
    let at = sample(&mut world);
    world.run_for(50);
    assert_eq!(world.engine.progress().waiting, 1, "nobody has looked whether it is still there");
    world.run_for(200);
    assert_eq!(world.engine.progress().waiting, 0);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "_start;main;Burn.leafHot(I)I");
    assert_eq!((account.jit.named.runtime, account.jit.unconfirmed, account.jit.unnamed_total()), (1, 0, 0));
    let tables = account.sources[0].tables.clone().unwrap();
    assert_eq!((&*tables.runtime, tables.loads), ("HotSpot 17.0.15", 1));
    let text = account.to_string();
    assert!(text.contains("1 by the runtime's own tables"), "{text}");
    assert!(text.contains("app (100): HotSpot 17.0.15, 1 pieces of code found in"), "{text}");
}

#[test]
fn a_frame_of_a_known_size_leads_to_its_caller() {
    let mut world = World::new(options());
    jvm(&mut world, PID, &[found(JIT, "LBurn;leafHot(I)I")]);
    world.follow(&[PID]);
    world.run_for(100);
    let rows = world.engine.rows_of(PID, &[JIT + 4, JIT + 8]);
    let shapes: Vec<(i64, i64)> = rows.iter().map(|row| (row.cfa_offset_bytes(), row.fp_offset_bytes())).collect();
    assert_eq!(shapes, [(8, 0), (32, -16)]);
    world.finish();
}

#[test]
fn code_with_a_frame_of_one_size_all_along_is_not_read() {
    for (frame, bytes) in
        [(FoundFrame::Sized { bytes: 80, complete_from: 0 }, 8), (FoundFrame::Fixed { bytes: 80 }, 80)]
    {
        let mut world = World::new(options());
        // The byte that what returns to the code is looked up by is of what lies before: a return.
        jvm(&mut world, PID, &[FoundCode { frame, ..found(JIT, "[callers in the heap]") }]);
        put(&mut world, PID, JIT, vec![0xc3; 64]);
        world.follow(&[PID]);
        world.run_for(100);
        assert_eq!(cfa_offsets(&world, &[JIT, JIT + 8]), [80, 80]);
        sample(&mut world);
        world.run_for(400);
        assert_eq!(cfa_offsets(&world, &[JIT]), [bytes]);
        world.finish();
    }
}

/// What is registered with libgcc of 64 bytes of code: the caller's stack pointer is 48 bytes above.
fn rows_at(start: u64) -> FoundRows {
    let common = [16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0x0c, 7, 48, 0x90, 1, 0, 0];
    let entry = [20, 0, 0, 0, 24, 0, 0, 0];
    let bytes: Vec<u8> = [&common[..], &entry, &start.to_le_bytes(), &64_u64.to_le_bytes(), &[0; 4]].concat();
    FoundRows { start: avma(start), size: 64, bytes: bytes.into(), section_start: avma(0x1000) }
}

fn cfa_offsets(world: &World, addresses: &[u64]) -> Vec<i64> {
    world.engine.rows_of(PID, addresses).iter().map(|row| row.cfa_offset_bytes()).collect()
}

#[test]
fn what_is_registered_with_libgcc_has_rows_and_no_name() {
    let mut world = World::new(options());
    app(&mut world, PID);
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    runtime.name = Some("what is registered with libgcc".to_owned());
    runtime.registered = vec![rows_at(JIT), rows_at(JIT + 0x100), rows_at(APP + 0x100)];
    world.follow(&[PID]);
    world.run_for(100);
    assert_eq!(cfa_offsets(&world, &[JIT + 8, JIT + 0x108]), [48, 48]);
    assert!(world.engine.rows_of(PID, &[APP + 0x108]).is_empty(), "a file has rows of its own");
    let at = sample(&mut world);
    world.run_for(300);
    world.machine.processes.get_mut(&PID).unwrap().runtime.registered.remove(0);
    sample(&mut world);
    world.run_for(300);
    assert_eq!(cfa_offsets(&world, &[JIT + 0x108]), [48]);
    assert!(world.engine.rows_of(PID, &[JIT + 8]).iter().all(|row| row.is_gap()), "it is registered no more");
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "_start;main;[JIT code without a name]");
    let reasons: Vec<&str> = account.jit.unnamed.keys().copied().collect();
    assert_eq!(reasons, ["no jitdump or perf map"], "what names nothing takes no advice away");
}

#[test]
fn what_was_not_got_of_what_is_registered_with_libgcc_is_said() {
    let mut world = World::new(options());
    app(&mut world, PID);
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    runtime.name = Some("what is registered with libgcc".to_owned());
    runtime.registered = vec![rows_at(JIT)];
    runtime.unread = Missed { entries: 3, is_cut: true };
    world.follow(&[PID]);
    world.run_for(100);
    world.machine.processes.get_mut(&PID).unwrap().runtime.unread = Missed::default();
    sample(&mut world);
    world.run_for(300);
    let account = world.finish().account.clone();
    let tables = account.sources[0].tables.clone().unwrap();
    assert_eq!((tables.loads, tables.unread), (1, 3), "it stays so, whatever later readings get");
    assert!((1..tables.readings).contains(&tables.unfinished), "{} of {}", tables.unfinished, tables.readings);
    assert!(account.to_string().contains(", 3 entries not read, "), "{account}");
}

#[test]
fn what_is_registered_with_libgcc_says_nothing_of_code_that_has_a_name() {
    let mut world = World::new(options());
    jvm(&mut world, PID, &[found(JIT, "leaf_hot")]);
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    runtime.registered = vec![rows_at(JIT), rows_at(JIT + 0x100)];
    world.follow(&[PID]);
    world.run_for(100);
    assert_eq!(cfa_offsets(&world, &[JIT + 8, JIT + 0x108]), [32, 48]);
    // What comes later takes the place.
    set_code(&mut world, PID, &[found(JIT, "leaf_hot"), found(JIT + 0x100, "leaf_cold")]);
    sample(&mut world);
    world.run_for(300);
    assert_eq!(cfa_offsets(&world, &[JIT + 8, JIT + 0x108]), [32, 32]);
    world.finish();
}

#[test]
fn a_stack_is_complete_at_code_that_its_runtime_begins_stacks_with() {
    let mut world = World::new(options());
    let first = FoundCode { frame: FoundFrame::Outermost, ..found(JIT + 64, "global::process_main") };
    jvm(&mut world, PID, &[found(JIT, "burn:outer/1"), first]);
    world.follow(&[PID]);
    world.run_for(100);
    let kinds = world.engine.rows_of(PID, &[JIT + 63, JIT + 64, JIT + 127]).into_iter().map(Row::cfa_kind);
    assert_eq!(kinds.collect::<Vec<_>>(), [CfaKind::Sp, CfaKind::Outermost, CfaKind::Outermost].map(|kind| kind as u8));
    world.finish();
}

#[test]
fn code_that_is_interrupted_is_read_once_for_where_its_frame_is_made_and_given_up() {
    let mut world = World::new(options());
    // push rbp; sub rsp, 16; 48 times nop; add rsp, 16; pop rbp; ret
    let code = [&[0x55, 0x48, 0x83, 0xec, 16][..], &[0x90; 48], &[0x48, 0x83, 0xc4, 16, 0x5d, 0xc3]].concat();
    jvm(&mut world, PID, &[FoundCode { size: code.len() as u32, ..found(JIT, "LBurn;leafHot(I)I") }]);
    put(&mut world, PID, JIT, code);
    world.follow(&[PID]);
    world.run_for(200);
    let offsets = |world: &World, at: &[u64]| -> Vec<i64> {
        let at: Vec<u64> = at.iter().map(|at| JIT + at).collect();
        world.engine.rows_of(PID, &at).iter().map(|row| row.cfa_offset_bytes()).collect()
    };
    assert_eq!(offsets(&world, &[0, 1, 20, 57, 58]), [8, 8, 32, 32, 32]);
    sample(&mut world);
    world.run_for(300);
    assert_eq!(offsets(&world, &[0, 1, 20, 57, 58]), [8, 16, 32, 16, 8]);
    let reads = |world: &World| world.asked.iter().filter(|what| matches!(what, Request::Memory { .. })).count();
    assert_eq!(reads(&world), 1);
    sample(&mut world);
    world.run_for(300);
    assert_eq!(reads(&world), 1);
    world.finish();
}

/// `.eh_frame` at an address, of 64 bytes of code at `JIT`, whose frame has 32 bytes from the 8th byte on.
fn eh_frame(section_start: u64) -> Vec<u8> {
    // Version 1, `zR`, code by 1, data by -8, return address in 16; signed words from their own place; CFA = rsp + 8.
    let cie = [1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0];
    let to_code = u32::try_from(JIT - (section_start + 32)).unwrap();
    // 8 bytes on, CFA = rsp + 32.
    let words = [20_u32, 0].into_iter().flat_map(u32::to_le_bytes).chain(cie);
    let fde = [16, 28, to_code, 64].into_iter().flat_map(u32::to_le_bytes).chain([0, 0x48, 0x0e, 32]);
    words.chain(fde).chain([0; 4]).collect()
}

#[test]
fn code_is_unwound_by_its_eh_frame_and_read_where_that_is_of_no_use() {
    let mut world = World::new(options());
    let section_start = JIT - 0x10_0000;
    let frame = FoundFrame::Recorded { bytes: eh_frame(section_start).into(), section_start: avma(section_start) };
    let recorded = FoundCode { frame, ..found(JIT, "recorded") };
    let frame = FoundFrame::Recorded { bytes: vec![0xff; 40].into(), section_start: avma(JIT) };
    let damaged = FoundCode { frame, ..found(JIT + 0x1000, "damaged") };
    jvm(&mut world, PID, &[recorded, damaged]);
    put(&mut world, PID, JIT, code(64));
    put(&mut world, PID, JIT + 0x1000, code(64));
    world.follow(&[PID]);
    world.run_for(200);
    let offsets = |world: &World| -> Vec<i64> {
        world.engine.rows_of(PID, &[JIT, JIT + 7, JIT + 8]).iter().map(|row| row.cfa_offset_bytes()).collect()
    };
    assert_eq!(offsets(&world), [8, 8, 32]);
    let reads = |world: &World| world.asked.iter().filter(|what| matches!(what, Request::Memory { .. })).count();
    sample(&mut world);
    world.run_for(300);
    assert_eq!((reads(&world), offsets(&world)), (0, vec![8, 8, 32]), "it is known as well as it can be");
    world.sample(PID, &[JIT + 0x1008, MAIN, START]);
    world.run_for(300);
    assert_eq!(reads(&world), 1);
    world.finish();
}

#[test]
fn functions_that_are_known_to_be_inlined_into_found_code_are_frames_with_lines() {
    let mut world = World::new(options());
    let part = |name: &str, around, rows: &[(u32, u32, u32)]| {
        let files = vec!["lib.c".into(), "other.c".into()];
        FoundInline { start: 8, size: 16, name: name.into(), around, files, rows: rows.to_vec() }
    };
    let inlined = vec![part("outer", None, &[(0, 20, 0)]), part("inner", Some(0), &[(0, 30, 1), (4, 31, 0)])];
    let lines_of = FoundLines { files: vec!["a.c".into()], rows: vec![(0, 10, 0), (8, 12, 0), (24, 13, 0)], inlined };
    jvm(&mut world, PID, &[FoundCode { lines: Some(Box::new(lines_of)), ..found(JIT, "run") }]);
    world.follow(&[PID]);
    world.run_for(100);
    let in_both = sample(&mut world);
    world.run_for(1);
    world.sample(PID, &[JIT + 24, MAIN, START]);
    let behind = (world.now.0 - ms(0).0) / MS;
    world.run_for(300);
    world.finish();
    assert_eq!(lines(&world, in_both), "_start:0;main:0;run:12;outer:20;inner:30");
    assert_eq!(lines(&world, behind), "_start:0;main:0;run:13");
}

#[test]
fn code_in_the_place_of_other_code_is_named_only_when_it_was_seen() {
    for loses_frame_pointers in [false, true] {
        let mut world = World::new(options());
        jvm(&mut world, PID, &[found(JIT, "LA;old()V")]);
        let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
        (runtime.heaps, runtime.loses_frame_pointers) = (vec![(avma(JIT), 0x10_0000)], loses_frame_pointers);
        world.follow(&[PID]);
        world.run_for(100);
        let old = sample(&mut world);
        world.run_for(150);
        // Somewhere between two readings it is replaced.
        let is_reading = |what: &Request| matches!(what, Request::ReadRuntime { .. });
        world.decide = Box::new(move |what| if is_reading(what) { Fate::Hold } else { Fate::Answer });
        world.run_for(300);
        let between = sample(&mut world);
        set_code(&mut world, PID, &[found(JIT, "LA;new()V")]);
        world.run_for(50);
        world.release();
        world.run_for(20);
        let new = sample(&mut world);
        world.run_for(300);
        let account = world.finish().account.clone();
        assert_eq!(stack(&world, PID, old), "_start;main;A.old()V");
        // It was walked by the rows of the old one. A runtime that keeps frame pointers has them in whatever came to its place.
        let callers =
            if loses_frame_pointers { "[cut: generated code too new for its unwind rules]" } else { "_start;main" };
        assert_eq!(stack(&world, PID, between), format!("{callers};[JIT code without a name]"));
        assert_eq!(stack(&world, PID, new), "_start;main;A.new()V");
        assert_eq!(account.jit.unnamed.iter().collect::<Vec<_>>(), [(&"not in the runtime's tables at that time", &1)]);
    }
}

#[test]
fn what_runs_where_code_was_found_gone_is_not_walked_by_a_guess() {
    for loses_frame_pointers in [false, true] {
        let mut world = World::new(options());
        jvm(&mut world, PID, &[found(JIT, "LA;old()V")]);
        let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
        (runtime.heaps, runtime.loses_frame_pointers) = (vec![(avma(JIT), 0x10_0000)], loses_frame_pointers);
        world.follow(&[PID]);
        world.run_for(200);
        set_code(&mut world, PID, &[]);
        world.run_for(500);
        let gone = sample(&mut world);
        world.run_for(300);
        world.finish();
        let callers =
            if loses_frame_pointers { "[cut: generated code too new for its unwind rules]" } else { "_start;main" };
        assert_eq!(stack(&world, PID, gone), format!("{callers};[JIT code without a name]"));
    }
}

#[test]
fn code_where_there_was_none_counts_from_the_reading_before() {
    let mut world = World::new(options());
    jvm(&mut world, PID, &[]);
    world.follow(&[PID]);
    world.run_for(150);
    let at = sample(&mut world);
    set_code(&mut world, PID, &[found(JIT, "LA;compiled()V")]);
    world.run_for(300);
    world.finish();
    // Where its caller is was not known when the sample was taken.
    let stack = stack(&world, PID, at);
    assert!(stack.ends_with(";A.compiled()V"), "{stack}");
}

#[test]
fn code_counts_from_its_own_reading_where_other_code_may_have_come_and_gone_before() {
    let mut world = World::new(options());
    jvm(&mut world, PID, &[found(JIT + 0x1000, "LA;other()V")]);
    world.follow(&[PID]);
    world.run_for(150);
    // Code that is freed before any reading has seen it runs, and other code is there then.
    let passed = sample(&mut world);
    world.run_for(1);
    world.sample(PID, &[JIT + 0x2008, MAIN, START]);
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    runtime.code.extend([found(JIT, "LA;compiled()V"), found(JIT + 0x2000, "LA;elsewhere()V")]);
    // It may have been in a part of the place.
    runtime.may_have_passed = vec![(avma(JIT + 4), 0x40)];
    world.run_for(300);
    let seen = sample(&mut world);
    world.run_for(300);
    let account = world.finish().account.clone();
    let ends_with = |at: u64, name: &str| assert!(stack(&world, PID, at).ends_with(name), "{}", stack(&world, PID, at));
    ends_with(passed, ";[JIT code without a name]");
    ends_with(passed + 1, ";A.elsewhere()V");
    ends_with(seen, ";A.compiled()V");
    assert_eq!((account.jit.named.runtime, account.jit.unnamed_total()), (2, 1));
}

#[test]
fn the_last_samples_of_a_window_are_looked_at_again_before_it_closes() {
    let mut world = World::new(options());
    jvm(&mut world, PID, &[found(JIT, "LBurn;leafHot(I)I")]);
    // After each reading it rests for five seconds, longer than a window waits for what comes late.
    world.machine.processes.get_mut(&PID).unwrap().runtime.reading_ns = 200 * MS;
    world.follow(&[PID]);
    world.continuous(60_000, 3_000);
    for window in 0..3 {
        let left = |world: &World, time: u64| time.saturating_sub((world.now.0 - ms(0).0) / MS);
        let begin = left(&world, window * 60_000 + 59_000);
        world.run_for(begin);
        let first = sample(&mut world);
        world.run_for(900);
        let last = sample(&mut world);
        world.asked.clear();
        let rest = left(&world, window * 60_000 + 63_500);
        world.run_for(rest);
        assert_eq!(world.windows.len() as u64, window + 1);
        assert_eq!([first, last].map(|at| stack(&world, PID, at)), ["_start;main;Burn.leafHot(I)I"; 2]);
        assert_eq!(asked(&world), 1, "it is read once more, and not again and again");
    }
    assert_eq!(world.finish().account.jit.unconfirmed, 0);
}

#[test]
fn code_that_is_gone_names_nothing_that_runs_later() {
    let mut world = World::new(options());
    jvm(&mut world, PID, &[found(JIT, "LA;freed()V")]);
    world.follow(&[PID]);
    world.run_for(100);
    let before = sample(&mut world);
    world.run_for(200);
    set_code(&mut world, PID, &[]);
    sample(&mut world);
    world.run_for(300);
    let after = sample(&mut world);
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID, before), "_start;main;A.freed()V");
    assert_eq!(stack(&world, PID, after), "_start;main;[JIT code without a name]");
}

#[test]
fn what_was_read_before_a_process_was_taken_for_ended_names_nothing_that_runs_later() {
    let is_reading = |what: &Request| matches!(what, Request::ReadRuntime { .. });
    for holds_answer in [false, true] {
        let mut world = World::new(EngineOptions { who: Who::All, ..options() });
        jvm(&mut world, PID, &[found(JIT, "LA;old()V")]);
        world.follow(&[PID]);
        world.run_for(100);
        let old = sample(&mut world);
        world.run_for(200);
        if holds_answer {
            world.decide = Box::new(move |what| if is_reading(what) { Fate::HoldAnswer } else { Fate::Answer });
            sample(&mut world);
            world.run_for(400);
        } else {
            world.decide = Box::new(move |what| if is_reading(what) { Fate::Hold } else { Fate::Answer });
        }
        // Of its threads only the first one is known.
        world.task(TaskChange::Exit { pid: Pid(PID), tid: Tid(PID) });
        world.run_for(300);
        sample(&mut world);
        world.run_for(100);
        set_code(&mut world, PID, &[found(JIT, "LA;new()V"), found(JIT + 64, "LA;other()V")]);
        let between = sample(&mut world);
        world.run_for(50);
        world.release();
        world.run_for(300);
        let new = sample(&mut world);
        world.run_for(300);
        world.finish();
        assert_eq!(stack(&world, PID, old), "_start;main;A.old()V");
        assert_ne!(stack(&world, PID, between), "_start;main;A.old()V", "{holds_answer}");
        assert_eq!(stack(&world, PID, new), "_start;main;A.new()V");
    }
}

/// How often tables were asked for.
fn asked(world: &World) -> usize {
    world.asked.iter().filter(|what| matches!(what, Request::ReadRuntime { .. })).count()
}

#[test]
fn tables_are_read_before_their_rest_is_over_where_they_should_name_what_is_met() {
    for (heaps, is_continuous, readings) in [(1, false, 2), (1, true, 2), (0, false, 1)] {
        let mut world = World::new(options());
        let old = found(JIT, "LA;old()V");
        jvm(&mut world, PID, std::slice::from_ref(&old));
        let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
        // It rests for 490 ms.
        (runtime.reading_ns, runtime.heaps) = (10 * MS, vec![(avma(JIT), 0x10_0000); heaps]);
        world.follow(&[PID]);
        if is_continuous {
            world.continuous(60_000, 3_000);
        }
        world.run_for(50);
        assert_eq!(asked(&world), 1);
        set_code(&mut world, PID, &[old, found(JIT + 0x1000, "LA;new()V")]);
        world.run_for(1);
        world.sample(PID, &[JIT + 0x1008, MAIN, START]);
        let at = (world.now.0 - ms(0).0) / MS;
        world.run_for(200);
        assert_eq!(asked(&world), readings, "{heaps} heaps, continuous: {is_continuous}");
        world.run_for(400);
        world.finish();
        if !is_continuous {
            let stack = stack(&world, PID, at);
            assert!(stack.ends_with(";A.new()V"), "{stack}");
        }
    }
}

#[test]
fn what_runs_after_an_early_reading_has_the_rows_of_its_code() {
    let mut world = World::new(options());
    jvm(&mut world, PID, &[]);
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    (runtime.reading_ns, runtime.heaps) = (10 * MS, vec![(avma(JIT), 0x10_0000)]);
    world.follow(&[PID]);
    world.run_for(50);
    set_code(&mut world, PID, &[found(JIT, "LA;compiled()V")]);
    sample(&mut world);
    world.run_for(200);
    let sizes = world.engine.rows_of(PID, &[JIT + 8]).iter().map(|row| row.cfa_offset_bytes()).collect::<Vec<_>>();
    assert_eq!(sizes, [32]);
    world.finish();
}

#[test]
fn tables_are_looked_for_again_when_code_without_a_name_is_met() {
    let mut world = World::new(options());
    app(&mut world, PID);
    world.follow(&[PID]);
    world.run_for(200);
    assert_eq!(asked(&world), 1, "it has memory for generated code");
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    runtime.name = Some("what is registered for GDB".to_owned());
    runtime.code = vec![found(JIT, "leaf_hot")];
    let first = sample(&mut world);
    world.run_for(3000);
    assert!(asked(&world) > 1);
    let second = sample(&mut world);
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID, first), "_start;main;[JIT code without a name]", "it may have come since");
    assert_eq!(stack(&world, PID, second), "_start;main;leaf_hot");
}

#[test]
fn a_dump_says_more_and_the_option_switches_it_off() {
    for has_dump in [true, false] {
        let mut options = options();
        options.read_runtime = has_dump;
        let mut world = World::new(options);
        if has_dump {
            runtime(&mut world, PID);
            announce(&mut world, PID, (JIT + 0x1000, 64, "announced"));
            world.run_for(100);
        } else {
            jvm(&mut world, PID, &[found(JIT, "LA;read()V")]);
            world.follow(&[PID]);
        }
        let before = asked(&world);
        let at = sample(&mut world);
        world.run_for(3000);
        world.finish();
        assert_eq!(stack(&world, PID, at), "_start;main;[JIT code without a name]");
        assert_eq!(asked(&world), before);
        assert!(has_dump || before == 0);
    }
}

#[test]
fn a_version_that_is_not_known_is_said_once() {
    let mut world = World::new(options());
    for pid in [PID, OTHER] {
        jvm(&mut world, pid, &[]);
        let runtime = &mut world.machine.processes.get_mut(&pid).unwrap().runtime;
        runtime.problem = Some("HotSpot 11.0.2 is older than JDK 17".to_owned());
    }
    world.follow(&[PID, OTHER]);
    world.run_for(100);
    let at = sample(&mut world);
    world.run_for(300);
    assert_eq!(world.engine.progress().waiting, 0, "nothing is waited for that will not come");
    let remarks = world.finish().account.remarks.clone();
    assert_eq!(remarks.iter().filter(|remark| remark.contains("HotSpot 11.0.2")).count(), 1, "{remarks:?}");
    assert_eq!(stack(&world, PID, at), "_start;main;[JIT code without a name]");
}

/// As CPython is, where its library is mapped and the C library is not yet.
#[test]
fn what_a_program_does_not_say_while_it_is_loaded_is_asked_again() {
    for (age_ms, is_problem) in [(10, true), (3000, true), (10, false)] {
        let mut world = World::new(options());
        jvm(&mut world, PID, &[found(JIT, "LA;late()V")]);
        let name = world.machine.processes[&PID].runtime.name.clone();
        let problem = |world: &mut World, problem: Option<&str>| {
            let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
            if is_problem {
                runtime.problem = problem.map(str::to_owned);
            } else {
                // Its library is not mapped yet.
                runtime.name = name.clone().filter(|_| problem.is_none());
            }
        };
        problem(&mut world, Some("CPython 3.13.0 does not say where"));
        world.machine.processes.get_mut(&PID).unwrap().read.start = world.now;
        world.follow(&[PID]);
        world.run_for(age_ms);
        sample(&mut world);
        world.run_for(50);
        problem(&mut world, None);
        world.run_for(if age_ms < 1000 { 250 } else { 5000 });
        sample(&mut world);
        world.run_for(1000);
        let at = sample(&mut world);
        world.run_for(1000);
        let remarks = world.finish().account.remarks.clone();
        assert_eq!(stack(&world, PID, at), "_start;main;A.late()V", "{age_ms}");
        let said = remarks.iter().filter(|remark| remark.contains("does not say")).count();
        assert_eq!(said, usize::from(age_ms > 1000), "{remarks:?}");
    }
}

#[test]
fn the_last_samples_of_a_process_that_has_ended_are_counted_apart() {
    let mut world = World::new(options());
    jvm(&mut world, PID, &[found(JIT, "LA;last()V")]);
    world.follow(&[PID]);
    world.run_for(200);
    let at = sample(&mut world);
    exit(&mut world, PID);
    world.run_for(300);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "_start;main;A.last()V");
    assert_eq!((account.jit.named.runtime, account.jit.unconfirmed), (1, 1));
    assert!(world.noted.contains_key("drop runtime"));
}

#[test]
fn what_is_remembered_of_a_process_goes_with_it_even_if_its_tables_were_never_seen() {
    let mut world = World::new(options());
    jvm(&mut world, PID, &[found(JIT, "LA;short()V")]);
    world.decide =
        Box::new(|what| if matches!(what, Request::ReadRuntime { .. }) { Fate::Stall } else { Fate::Answer });
    world.follow(&[PID]);
    world.run_for(100);
    sample(&mut world);
    exit(&mut world, PID);
    world.run_for(300);
    world.finish();
    assert!(world.noted.contains_key("drop runtime"));
}

#[test]
fn there_is_room_again_when_others_have_ended() {
    let mut world = World::new(options());
    jvm(&mut world, PID, &[found(JIT, "LA;late()V")]);
    let runtime = |world: &mut World, problem: Option<&str>| {
        world.machine.processes.get_mut(&PID).unwrap().runtime.problem = problem.map(str::to_owned);
    };
    runtime(&mut world, Some(crate::runtime::NO_ROOM));
    world.follow(&[PID]);
    world.run_for(100);
    sample(&mut world);
    world.run_for(300);
    runtime(&mut world, None);
    world.run_for(5000);
    sample(&mut world);
    world.run_for(1000);
    let at = sample(&mut world);
    world.run_for(1000);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;A.late()V");
}

/// As of one whose files have more symbols than are read in one look.
#[test]
fn a_runtime_that_the_first_look_did_not_come_to_is_found_by_a_later_one() {
    let mut world = World::new(options());
    jvm(&mut world, PID, &[found(JIT, "LA;late()V")]);
    let runtime = |world: &mut World, name: Option<&str>| {
        let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
        (runtime.name, runtime.incomplete) = (name.map(str::to_owned), name.is_none());
    };
    runtime(&mut world, None);
    world.follow(&[PID]);
    world.run_for(100);
    sample(&mut world);
    world.run_for(300);
    runtime(&mut world, Some("HotSpot 17.0.15"));
    world.run_for(5000);
    let at = sample(&mut world);
    world.run_for(1000);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;A.late()V");
}

#[test]
fn a_process_that_holds_up_whoever_reads_it_is_resolved_without() {
    let mut world = World::new(options());
    jvm(&mut world, PID, &[found(JIT, "LA;held()V")]);
    world.decide =
        Box::new(|what| if matches!(what, Request::ReadRuntime { .. }) { Fate::Stall } else { Fate::Answer });
    world.follow(&[PID]);
    world.run_for(100);
    let at = sample(&mut world);
    world.run_for(300);
    assert_eq!(world.engine.progress().waiting, 0);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;[JIT code without a name]");
}

#[test]
fn a_reading_that_nothing_was_heard_of_is_made_again() {
    let mut world = World::new(options());
    jvm(&mut world, PID, &[found(JIT, "LA;held()V")]);
    world.decide =
        Box::new(|what| if matches!(what, Request::ReadRuntime { .. }) { Fate::Stall } else { Fate::Answer });
    world.follow(&[PID]);
    world.run_for(100);
    world.decide = Box::new(|_| Fate::Answer);
    world.run_for(4000);
    let at = sample(&mut world);
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;A.held()V");
}

#[test]
fn what_nobody_can_look_at_any_more_is_not_believed_for_ever() {
    let mut world = World::new(options());
    jvm(&mut world, PID, &[found(JIT, "LA;once()V")]);
    world.follow(&[PID]);
    world.run_for(100);
    let named = sample(&mut world);
    world.run_for(300);
    world.decide =
        Box::new(|what| if matches!(what, Request::ReadRuntime { .. }) { Fate::Stall } else { Fate::Answer });
    for _ in 0..40 {
        sample(&mut world);
        world.run_for(1000);
    }
    let unknown = sample(&mut world);
    world.run_for(1000);
    world.decide = Box::new(|_| Fate::Answer);
    world.run_for(60_000);
    let again = sample(&mut world);
    world.run_for(1000);
    world.finish();
    assert_eq!(stack(&world, PID, named), "_start;main;A.once()V");
    assert_eq!(stack(&world, PID, unknown), "_start;main;[JIT code without a name]");
    assert_eq!(stack(&world, PID, again), "_start;main;A.once()V", "all of it was read again");
}

#[test]
fn what_a_cut_reading_left_unknown_is_not_filled_with_what_came_later() {
    let mut world = World::new(options());
    jvm(&mut world, PID, &[found(JIT, "LA;old()V")]);
    world.follow(&[PID]);
    world.run_for(100);
    sample(&mut world);
    world.run_for(150);
    world.decide = Box::new(|what| if matches!(what, Request::ReadRuntime { .. }) { Fate::Hold } else { Fate::Answer });
    world.run_for(300);
    let old = sample(&mut world);
    // The reading sees that the old code has gone, and ends before it comes to what is in its place.
    set_code(&mut world, PID, &[]);
    world.machine.processes.get_mut(&PID).unwrap().runtime.incomplete = true;
    world.decide = Box::new(|_| Fate::Answer);
    world.release();
    world.run_for(20);
    set_code(&mut world, PID, &[found(JIT, "LA;new()V")]);
    world.machine.processes.get_mut(&PID).unwrap().runtime.incomplete = false;
    world.run_for(1000);
    let new = sample(&mut world);
    world.run_for(1000);
    world.finish();
    assert_eq!(stack(&world, PID, old), "_start;main;[JIT code without a name]");
    assert_eq!(stack(&world, PID, new), "_start;main;A.new()V");
}

#[test]
fn another_program_is_not_named_by_the_tables_of_the_one_before() {
    let mut world = World::new(options());
    jvm(&mut world, PID, &[found(JIT, "LA;before()V")]);
    world.machine.add_program("/bin/other", b"other", &[(0, "_start"), (0x1000, "main")]);
    world.follow(&[PID]);
    world.run_for(200);
    let inode = world.machine.paths["/bin/other"];
    world.machine.processes.get_mut(&PID).unwrap().runtime = Default::default();
    exec(
        &mut world,
        PID,
        "/bin/other",
        vec![file_mapping(APP, 0x1_0000, inode, "/bin/other"), memory_mapping(JIT, 0x10_0000)],
    );
    world.run_for(100);
    let at = sample(&mut world);
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;[JIT code without a name]");
}

#[test]
fn names_are_compared_with_a_perf_map_if_that_is_asked_for() {
    let mut world = World::new(EngineOptions { verify_names: true, ..options() });
    let code = [("LBurn;leafHot(I)I [C2]", 0), ("LBurn;other()V [C1]", 1), ("LBurn;unlisted()V", 2)];
    let code = code.map(|(name, at)| found(JIT + at * 0x100, name));
    jvm(&mut world, PID, &code);
    world.follow(&[PID]);
    world.run_for(300);
    let lines = [(0, "int Burn.leafHot(int)"), (1, "void Burn.wrong()"), (3, "void Burn.listed()")];
    let lines = lines.map(|(at, name)| format!("{:x} 40 {name}\n", JIT + at * 0x100));
    world.machine.add_file(&format!("/tmp/perf-{PID}.map"), lines.concat().into_bytes());
    world.sample(PID, &[MAIN, START]);
    world.run_for(2000);
    for (place, count) in [(0, 4), (1, 3), (2, 2), (3, 1)] {
        for _ in 0..count {
            world.run_for(1);
            world.sample(PID, &[JIT + place * 0x100 + 8, MAIN, START]);
        }
    }
    world.run_for(500);
    let account = world.finish().account.clone();
    let verified = account.verified.clone().unwrap();
    let counts = (verified.agreed, verified.disagreed, verified.only_announced, verified.only_perf_map);
    assert_eq!(counts, (4, 3, 2, 1));
    let [example] = &verified.examples[..] else { panic!("{:?}", verified.examples) };
    assert_eq!((&*example.announced, &*example.listed), ("LBurn;other()V [C1]", "void Burn.wrong()"));
    let text = account.to_string();
    assert!(text.contains("verified   4 of 7 names that two sources have agree, 3 do not; 2 frames are in"), "{text}");
}

#[test]
fn a_name_that_is_not_demangled_yet_is_not_compared_with_one_that_is() {
    // Nobody else's.
    const DEAR: u32 = 4_343;
    let (mangled, written) = deep_name();
    for (spent_s, expected) in [(3600.0, (0, 0, 1)), (-3600.0, (1, 0, 0))] {
        let mut world = World::new(EngineOptions { verify_names: true, ..options() });
        jvm(&mut world, DEAR, &[found(JIT, &written)]);
        world.follow(&[DEAR]);
        world.run_for(300);
        let line = format!("{JIT:x} 40 {mangled}\n");
        world.machine.add_file(&format!("/tmp/perf-{DEAR}.map"), line.into_bytes());
        world.sample(DEAR, &[MAIN, START]);
        world.run_for(2000);
        let processes = &world.engine.tracking.processes;
        let holder = processes.iter().find(|process| process.id.pid == Pid(DEAR)).unwrap().holder();
        spend_on_names(holder, spent_s);
        world.sample(DEAR, &[JIT + 8, MAIN, START]);
        world.run_for(500);
        let verified = world.finish().account.verified.clone().unwrap();
        assert_eq!((verified.agreed, verified.disagreed, verified.incomparable), expected, "{verified:?}");
    }
}

/// An Erlang, and code of it at places that are 256 bytes apart.
fn erlang(world: &mut World, code: &[(u64, &str)]) {
    app(world, PID);
    let process = world.machine.processes.get_mut(&PID).unwrap();
    process.read.exe = Some("/usr/lib/erlang/erts-15/bin/beam.smp".to_owned());
    process.runtime.name = Some("Erlang/OTP 27".to_owned());
    process.runtime.code = code.iter().map(|(at, name)| found(JIT + at * 0x100, name)).collect();
}

/// Samples each of these places so often.
fn sample_places(world: &mut World, counts: &[(u64, u32)]) {
    for (place, count) in counts {
        for _ in 0..*count {
            world.run_for(1);
            world.sample(PID, &[JIT + place * 0x100 + 8, MAIN, START]);
        }
    }
}

/// Samples a stack now, with words of one that is not the thread's; returns when that was.
fn sample_parked(world: &mut World, stack: &[u64], words: &[u64]) -> u64 {
    world.run_for(1);
    let mut sample = raw_sample(world.now, PID, stack, None);
    let records = words.iter().map(|word| [*word, 0]).collect();
    sample.listed = Some(Box::new(FrameList::new(records, ListEnd::Last, [0; 2])));
    world.give(&sample);
    (world.now.0 - ms(0).0) / MS
}

/// `main` calls what the process has called, on the stack of a thread that `_start` has begun.
#[test]
fn what_a_dirty_scheduler_runs_was_called_on_the_stack_of_its_process() {
    let mut world = World::new(options());
    erlang(&mut world, &[(0, "natives:hot/1"), (1, "natives:loop/2"), (2, "erts_beamasm:normal_exit/0")]);
    let words = ListSpec::of_words(&[&[Step::load(8)]], &[Step::load(16)]).unwrap();
    let parked_stack = Some(ParkedStack { words, calls: vec![(avma(MAIN - 0x10), 0x800)] });
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    runtime.capture = Some(Capture { parked_stack, ..Capture::default() });
    world.follow(&[PID]);
    world.run_for(200);
    let [hot, in_loop, last] = [0, 1, 2].map(|place| JIT + place * 0x100 + 8);
    // An atom, a boxed term, a pointer to data, and what lies behind the end.
    let parked = [hot, 0x8b, JIT + 0x102, 0x9000, in_loop, last, hot];
    let called = [HELPER, MAIN + 8, START];
    let whole = sample_parked(&mut world, &called, &parked);
    let deeper = sample_parked(&mut world, &called, &parked[..5]);
    let scheduling = sample_parked(&mut world, &[HELPER, START], &parked);
    world.run_for(400);
    assert_eq!(world.engine.progress().waiting, 0);
    let account = world.finish().account.clone();
    let of_process = "natives:loop/2;natives:hot/1;main;helper";
    assert_eq!(stack(&world, PID, whole), format!("_start;erts_beamasm:normal_exit/0;{of_process}"));
    let cut = StopReason::DepthLimit.describe();
    assert_eq!(stack(&world, PID, deeper), format!("_start;[cut: {cut}];{of_process}"));
    assert_eq!(stack(&world, PID, scheduling), "_start;helper", "no process has called that");
    let stacks = &account.stacks;
    assert_eq!((stacks.complete, stacks.cut[cut], stacks.with_list, stacks.list_apart), (2, 1, 2, 0));
}

const OF_ERLANG: [(u64, &str); 5] =
    [(0, "burn:leaf_hot/2"), (1, "burn:wrong/1"), (2, "global::shared"), (3, "global::shared"), (4, "burn:unlisted/0")];

#[test]
fn erlangs_names_are_compared_with_a_perf_map_that_was_there_before() {
    let mut world = World::new(EngineOptions { verify_names: true, ..options() });
    let lines =
        [(0, "burn:leaf_hot/2"), (1, "burn:other/1"), (2, "global::call_shared"), (3, "m:f/1"), (5, "burn:gone/0")];
    let lines = lines.map(|(at, name)| format!("{:x} 40 ${name}\n", JIT + at * 0x100));
    world.machine.add_file(&format!("/tmp/perf-{PID}.map"), lines.concat().into_bytes());
    erlang(&mut world, &OF_ERLANG);
    world.follow(&[PID]);
    world.run_for(1200);
    sample_places(&mut world, &[(0, 6), (1, 2), (2, 3), (3, 1), (4, 2), (5, 1)]);
    world.run_for(500);
    let account = world.finish().account.clone();
    let verified = account.verified.clone().unwrap();
    assert_eq!((verified.agreed, verified.disagreed, verified.incomparable), (6, 3, 3), "{verified:?}");
    assert_eq!((verified.only_announced, verified.only_perf_map), (2, 1));
    assert!(account.to_string().contains("1 in a perf map alone, 3 cannot be compared"), "{account}");
}

#[test]
fn a_line_of_erlangs_that_was_not_read_since_its_code_was_found_is_not_compared() {
    let mut world = World::new(EngineOptions { verify_names: true, ..options() });
    let map = format!("/tmp/perf-{PID}.map");
    world.machine.add_file(&map, format!("{JIT:x} 40 $burn:old/0\n").into_bytes());
    erlang(&mut world, &[(0, "burn:old/0")]);
    world.follow(&[PID]);
    world.run_for(1200);
    sample_places(&mut world, &[(0, 1)]);
    world.run_for(500);
    // Another module in its place, of which the map's line is not read yet.
    world.decide = Box::new(|what| if matches!(what, Request::Read { .. }) { Fate::Hold } else { Fate::Answer });
    world.machine.append(&map, format!("{JIT:x} 40 $burn:new/0\n").as_bytes());
    set_code(&mut world, PID, &[found(JIT, "burn:new/0")]);
    sample_places(&mut world, &[(0, 1)]);
    world.run_for(500);
    sample_places(&mut world, &[(0, 1)]);
    world.run_for(500);
    world.decide = Box::new(|_| Fate::Answer);
    world.release();
    world.run_for(300);
    sample_places(&mut world, &[(0, 1)]);
    world.run_for(500);
    let verified = world.finish().account.verified.clone().unwrap();
    assert_eq!((verified.agreed, verified.disagreed, verified.only_announced), (2, 0, 1), "{verified:?}");
}

#[test]
fn what_erlang_lists_is_compared_with_its_dump_which_names_the_code() {
    let mut world = World::new(EngineOptions { verify_names: true, ..options() });
    erlang(&mut world, &OF_ERLANG[..4]);
    begin_dump(&mut world, PID);
    world.follow(&[PID]);
    world.run_for(200);
    for (at, name) in [(0, "burn:leaf_hot/2"), (1, "burn:other/1"), (2, "global::call_shared"), (4, "burn:dumped/0")] {
        announce(&mut world, PID, (JIT + at * 0x100, 64, name));
    }
    world.run_for(300);
    sample_places(&mut world, &[(0, 5), (1, 1), (2, 3), (4, 2)]);
    let at = (world.now.0 - ms(0).0) / MS;
    world.run_for(500);
    let account = world.finish().account.clone();
    let verified = account.verified.clone().unwrap();
    assert_eq!((verified.agreed, verified.disagreed, verified.incomparable), (5, 1, 3), "{verified:?}");
    assert_eq!((verified.only_announced, verified.only_perf_map), (2, 0));
    assert_eq!((&*verified.examples[0].announced, &*verified.examples[0].listed), ("burn:other/1", "burn:wrong/1"));
    assert_eq!((account.jit.named.jitdump, account.jit.named.runtime), (11, 0), "a dump is believed");
    assert_eq!(stack(&world, PID, at), "_start;main;burn:dumped/0");
}

/// Code that an entry of a debugger's list has.
fn registered(start: u64, name: &str, entry: u64) -> FoundCode {
    let registered = Some(Box::new(Registered { entry: avma(entry), image: avma(entry + 0x100), size: 336 }));
    FoundCode { registered, ..found(start, name) }
}

/// A process with code that it has registered, and a breakpoint that tells of it.
fn registering(code: &[FoundCode]) -> World {
    let mut world = World::new(options());
    jvm(&mut world, PID, code);
    world.machine.processes.get_mut(&PID).unwrap().runtime.told_since = Some(ms(0));
    world.follow(&[PID]);
    world.run_for(300);
    world
}

/// The process says now what it does to an entry.
fn tell(world: &mut World, action: u32, entry: u64) {
    let call = RegistrationCall { action, entry: avma(entry), image: avma(entry + 0x100), size: 336 };
    tell_of(world, PID, (0, Some(call)));
}

fn tell_of(world: &mut World, pid: u32, (missed, call): (u64, Option<RegistrationCall>)) {
    let told = Registration { time: world.now, pid: Pid(pid), missed, call };
    world.feed(Input::Registrations(vec![told]));
}

/// Lets time pass until a reading has just been asked for, and answered.
fn run_until_read(world: &mut World) {
    let before = asked(world);
    while asked(world) == before {
        sample(world);
    }
    world.run_for(2);
}

#[test]
fn code_that_takes_the_place_of_other_code_is_named_by_when_it_was_told_to_come() {
    let mut world = registering(&[registered(JIT, "LA;old()V", 0x1000)]);
    run_until_read(&mut world);
    let old = sample(&mut world);
    world.run_for(1);
    tell(&mut world, UNREGISTER, 0x1000);
    set_code(&mut world, PID, &[]);
    world.run_for(20);
    let between = sample(&mut world);
    world.run_for(20);
    tell(&mut world, REGISTER, 0x2000);
    set_code(&mut world, PID, &[registered(JIT, "LA;new()V", 0x2000)]);
    let new = sample(&mut world);
    world.run_for(300);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, old), "_start;main;A.old()V");
    assert_eq!(stack(&world, PID, between), "_start;main;[JIT code without a name]");
    assert_eq!(stack(&world, PID, new), "_start;main;A.new()V");
    let told = account.sources[0].tables.as_ref().and_then(|tables| tables.told).unwrap();
    assert_eq!((told.calls, told.missed, told.begins, told.ends), (2, 0, 1, 1));
}

#[test]
fn where_calls_were_missed_code_ends_when_it_was_seen_last() {
    for (missed, name) in [(0, "A.old()V"), (1, "[JIT code without a name]")] {
        let mut world = registering(&[registered(JIT, "LA;old()V", 0x1000)]);
        let seen = sample(&mut world);
        run_until_read(&mut world);
        let after = sample(&mut world);
        tell_of(&mut world, PID, (missed, None));
        world.run_for(20);
        let call = RegistrationCall { action: UNREGISTER, entry: avma(0x1000), image: avma(0x1100), size: 336 };
        tell_of(&mut world, PID, (missed, Some(call)));
        set_code(&mut world, PID, &[]);
        world.run_for(300);
        world.finish();
        assert_eq!(stack(&world, PID, seen), "_start;main;A.old()V");
        assert_eq!(stack(&world, PID, after), format!("_start;main;{name}"), "{missed} missed");
    }
}

#[test]
fn what_is_registered_again_is_read_again_though_no_reading_has_seen_it_gone() {
    let code = [registered(JIT, "LA;same()V", 0x1000)];
    let mut world = registering(&code);
    run_until_read(&mut world);
    let readings = asked(&world);
    tell(&mut world, UNREGISTER, 0x1000);
    set_code(&mut world, PID, &[]);
    world.run_for(20);
    // Something else may be there.
    let between = sample(&mut world);
    world.run_for(20);
    assert_eq!(asked(&world), readings, "nobody has seen that it was gone");
    set_code(&mut world, PID, &code);
    tell(&mut world, REGISTER, 0x1000);
    let again = sample(&mut world);
    world.run_for(30);
    assert!(asked(&world) > readings, "it is read before its time");
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID, between), "_start;main;[JIT code without a name]");
    assert_eq!(stack(&world, PID, again), "_start;main;A.same()V");
}

#[test]
fn who_lies_about_what_is_registered_spoils_only_names_of_its_own() {
    let mut world = registering(&[registered(JIT, "LA;one()V", 0x1000), registered(JIT + 0x1000, "LA;two()V", 0x2000)]);
    jvm(&mut world, OTHER, &[found(JIT, "LB;other()V")]);
    world.follow(&[OTHER]);
    world.run_for(300);
    let mut others = Vec::new();
    for round in 0..40 {
        for action in [REGISTER, UNREGISTER, UNREGISTER, 0, 7, u32::MAX] {
            tell(&mut world, action, 0x1000 + round % 3 * 0x1000);
        }
        let lies = RegistrationCall { action: REGISTER, entry: avma(u64::MAX), image: avma(u64::MAX), size: u64::MAX };
        tell_of(&mut world, PID, (u64::MAX - round, Some(lies)));
        tell_of(&mut world, 4711, (round, Some(lies)));
        let mut code = vec![registered(JIT, "LA;one()V", 0x1000 + round % 2 * 0x1000)];
        code.push(registered(JIT + round % 5 * 16, "LA;upon()V", 0x3000));
        set_code(&mut world, PID, &code);
        sample(&mut world);
        others.push(sample(&mut world));
        world.sample(OTHER, &[JIT + 8, MAIN, START]);
        world.run_for(15);
    }
    world.run_for(300);
    world.finish();
    for at in others {
        assert_eq!(stack(&world, OTHER, at), "_start;main;B.other()V");
    }
}
