//! Code of which so much is found at once that its rows are made elsewhere, in parts.
#![cfg(target_arch = "x86_64")]

use std::time::Duration;

use jitprof_common::row::{CfaKind, Row};
use jitprof_common::units::{MonoNs, Pid};

use super::stories::*;
use crate::engine::border::{CodePieces, Order, Request};
use crate::engine::generated::{CodeBounds, CodeOptions, GeneratedCode};
use crate::engine::options::CallGraph;
use crate::engine::runtime_tables::Change;
use crate::engine::unmade::Piece;
use crate::engine::world::{BEGIN, Fate, MS, World, options};
use crate::process::ProcessId;
use crate::runtime::{FoundCode, FoundFrame};

const PID: u32 = 100;
/// Bytes of a function: eight of them have rows at once, and 64 are a part.
const SIZE: usize = 0x1000;
const AT_ONCE: usize = 8;
const PART: usize = 64;
/// As many as there is memory for.
const COUNT: u64 = 256;

fn place(number: u64) -> u64 {
    JIT + number * SIZE as u64
}

fn found(number: u64, code: Vec<u8>) -> FoundCode {
    let (name, size) = (format!("burn:f{number}/1"), code.len() as u32);
    let (start, frame) = (avma(place(number)), FoundFrame::Code(code.into()));
    FoundCode { start, size, name, frame, number: 0, lines: None, registered: None }
}

/// Samples an Erlang with so many functions, and has its tables read. What becomes of orders of rows is said.
fn erlang(mut world: World, count: u64, fate: fn() -> Fate) -> World {
    world.decide = Box::new(move |request| match request {
        Request::CodeRows(_) => fate(),
        _ => Fate::Answer,
    });
    app(&mut world, PID);
    let process = world.machine.processes.get_mut(&PID).unwrap();
    process.read.exe = Some("/usr/lib/erlang/erts-15/bin/beam.smp".to_owned());
    process.runtime.name = Some("Erlang/OTP 27".to_owned());
    process.runtime.code = (0..count).map(|number| found(number, code(SIZE))).collect();
    world.follow(&[PID]);
    world.sample(PID, &[place(0) + 8, MAIN, START]);
    world.run_for(1500);
    world
}

fn service() -> World {
    let mut world = World::new(options());
    world.continuous(60_000, 3000);
    world
}

/// How many of the first functions have rows.
fn made(world: &World) -> usize {
    let places: Vec<u64> = (0..COUNT).map(|number| place(number) + 8).collect();
    world.engine.rows_of(PID, &places).len()
}

/// What the BPF program has for a function.
fn cfa(world: &World, number: u64) -> Option<u8> {
    world.kernel.row(PID, place(number) + 8).map(Row::cfa_kind)
}

fn count(world: &World, is_meant: impl Fn(&Request) -> bool) -> usize {
    world.asked.iter().filter(|what| is_meant(what)).count()
}

fn ordered(world: &World) -> usize {
    count(world, |what| matches!(what, Request::CodeRows(_)))
}

/// Samples the first instruction of a function that `main` has called; returns when that was.
fn sample(world: &mut World, number: u64) -> u64 {
    world.run_for(1);
    world.sample_with_stack(PID, &[place(number)], &[MAIN, 7, START, 0, 0]);
    (world.now.0 - BEGIN.0) / MS
}

#[test]
fn rows_of_many_functions_come_in_parts_and_each_is_published() {
    let mut world = erlang(service(), COUNT, || Fate::Hold);
    assert_eq!((made(&world), world.held()), (AT_ONCE, 4));
    world.settle();
    let requests = &world.engine.requests;
    assert!(requests.is_making() && !requests.is_reading(), "no other process' samples wait for them");
    world.release_one(0);
    world.run_for(300);
    assert_eq!(made(&world), AT_ONCE + PART);
    assert_eq!(cfa(&world, (AT_ONCE + PART) as u64 - 1), Some(CfaKind::Fp as u8), "as they were found");
    assert_ne!(cfa(&world, (AT_ONCE + PART) as u64), Some(CfaKind::Fp as u8));
    world.release();
    world.run_for(300);
    assert_eq!((made(&world), cfa(&world, COUNT - 1)), (COUNT as usize, Some(CfaKind::Fp as u8)));
    assert_eq!(ordered(&world), 4);
    world.finish();
}

#[test]
fn what_meets_code_that_awaits_its_rows_waits_for_them() {
    let mut world = erlang(service(), COUNT, || Fate::Hold);
    let at = sample(&mut world, COUNT - 1);
    world.run_for(2000);
    assert_eq!(world.engine.progress().waiting, 1);
    assert_eq!(count(&world, |what| matches!(what, Request::Memory { .. })), 0, "it has been read");
    world.release();
    world.run_for(1000);
    assert_eq!(world.engine.progress().waiting, 0);
    world.finish();
    assert!(stack(&world, PID, at).ends_with("main;burn:f255/1"), "{}", stack(&world, PID, at));
}

#[test]
fn the_end_of_a_run_waits_for_rows_that_are_being_made() {
    let mut world = erlang(World::new(options()), COUNT, || Fate::Hold);
    let (at, limit) = (sample(&mut world, COUNT - 1), Duration::from_secs(10));
    world.order(Order::Finish { read_limit: limit, names_limit: limit, duration: Duration::from_secs(1) });
    world.run_for(3000);
    assert!(world.recorded.is_none());
    world.release();
    world.run_for(3000);
    assert!(world.recorded.is_some());
    world.assert_whole();
    assert!(stack(&world, PID, at).ends_with("main;burn:f255/1"), "{}", stack(&world, PID, at));
}

#[test]
fn an_end_that_waits_no_longer_says_that_rows_were_not_made_and_blames_no_dump() {
    let mut world = erlang(World::new(options()), COUNT, || Fate::Hold);
    let limit = Duration::from_millis(500);
    world.order(Order::Finish { read_limit: limit, names_limit: limit, duration: Duration::from_secs(1) });
    world.run_for(3000);
    world.assert_whole();
    let remarks = &world.recorded.as_ref().unwrap().account.remarks;
    let says = |what: &str| remarks.iter().any(|remark| remark.contains(what));
    assert!(says("rows of generated code were not made") && !says("dump"), "{remarks:?}");
}

#[test]
fn code_of_which_nobody_makes_rows_is_read_where_it_is_met() {
    let mut world = erlang(service(), COUNT, || Fate::Stall);
    assert_eq!(made(&world), COUNT as usize, "it is known to be there");
    put(&mut world, PID, place(COUNT - 1), code(SIZE));
    assert_ne!(cfa(&world, COUNT - 1), Some(CfaKind::Fp as u8));
    sample(&mut world, COUNT - 1);
    world.run_for(2000);
    assert_eq!(count(&world, |what| matches!(what, Request::Memory { .. })), 1);
    assert_eq!(cfa(&world, COUNT - 1), Some(CfaKind::Fp as u8));
    let learned = world.finish().account.learned.unwrap();
    assert_eq!(learned.given_up, COUNT - AT_ONCE as u64);
}

fn id(world: &World) -> ProcessId {
    world.engine.tracking.processes.live_of(Pid(PID)).unwrap().id
}

fn bound(world: &mut World, functions: usize) {
    let id = id(world);
    let process = world.engine.tracking.processes.get_mut(id).unwrap();
    process.code.set_bounds(CodeBounds { functions, ..CodeBounds::CONTINUOUS });
}

#[test]
fn nothing_waits_for_code_that_finds_no_room_and_it_is_read_when_there_is_some() {
    let mut world = erlang(service(), COUNT, || Fate::Hold);
    put(&mut world, PID, place(COUNT - 1), code(SIZE));
    bound(&mut world, 0);
    world.release();
    world.run_for(300);
    assert_eq!(made(&world), AT_ONCE);
    let read = |world: &World| count(world, |what| matches!(what, Request::Memory { .. }));
    sample(&mut world, COUNT - 1);
    world.run_for(3000);
    assert_eq!((world.engine.progress().waiting, read(&world)), (0, 0));
    bound(&mut world, 1000);
    sample(&mut world, COUNT - 1);
    world.run_for(3000);
    assert_eq!((world.engine.progress().waiting, read(&world)), (0, 1));
    assert_eq!((made(&world), cfa(&world, COUNT - 1)), (AT_ONCE + 1, Some(CfaKind::Fp as u8)));
    world.finish();
}

#[test]
fn what_is_ordered_takes_room_until_it_is_made_also_when_its_program_has_ended() {
    let mut world = erlang(service(), COUNT, || Fate::Hold);
    let room = |world: &World| world.engine.tracking.room_for_code(id(world));
    let awaiting = room(&world);
    world.machine.processes.get_mut(&PID).unwrap().runtime.code.clear();
    let app = mapped(&world, APP, "/bin/app");
    exec(&mut world, PID, "/bin/app", vec![app]);
    world.run_for(20_000);
    let ordered = room(&world);
    world.release();
    world.run_for(300);
    let all = room(&world);
    assert!(awaiting < ordered, "{awaiting} {ordered}");
    assert_eq!(all - ordered, 4 * (256 << 10), "{all} {ordered}");
    world.finish();
}

#[test]
fn nothing_more_is_ordered_for_a_process_that_has_ended() {
    let mut world = erlang(service(), 2 * COUNT, || Fate::Hold);
    world.release_one(0);
    world.run_for(300);
    assert_eq!((ordered(&world), world.held()), (5, 4), "one after the other");
    exit(&mut world, PID);
    world.run_for(2000);
    world.release();
    world.run_for(300);
    assert_eq!(ordered(&world), 5);
    world.finish();
}

/// A function that is too large to have rows at once, since 100; and the order of its rows.
fn generated() -> (GeneratedCode, Vec<Piece>, CodePieces) {
    let mut generated = GeneratedCode::new(CodeOptions::of(CallGraph::Auto));
    generated.apply_found(Change::Load(found(0, code(0x9000)), MonoNs(100)));
    let order = generated.next_order().unwrap();
    let pieces = order.iter().map(|(piece, _)| *piece).collect();
    let code = order.into_iter().map(|(piece, code)| (avma(piece.start), code)).collect();
    let process = ProcessId { pid: Pid(PID), start: MonoNs(1) };
    (generated, pieces, CodePieces { process, user: None, is_called: false, pieces: code })
}

fn is_known(code: &GeneratedCode, time: u64) -> bool {
    code.rows().unwrap().row_at(JIT + 8, MonoNs(time)).is_some()
}

#[test]
fn until_its_rows_are_there_nothing_is_known_of_code_and_it_was_not_walked_right() {
    let (mut generated, pieces, code) = generated();
    assert!(generated.will_have_rows(JIT, MonoNs(100)) && generated.awaits_rows(JIT + 8, MonoNs(100)));
    assert!(!is_known(&generated, 100) && !generated.was_true(JIT + 8, MonoNs(100)));
    assert!(generated.was_true(JIT + 8, MonoNs(99)), "nothing is known to have been there");
    assert!(!generated.load_unrecorded(JIT, 8, None), "what is known of it comes first");
    assert!(!generated.fork(MonoNs(150)).awaits_rows(JIT, MonoNs(150)), "a child's tables are read anew");
    generated.take_made(&pieces, code.rows());
    assert!(is_known(&generated, 100) && !is_known(&generated, 99) && !generated.awaits_rows(JIT, MonoNs(100)));
    assert!(!generated.was_true(JIT, MonoNs(100)), "they are not published");
}

#[test]
fn what_awaits_its_rows_counts_apart_from_code_that_stays() {
    let (generated, ..) = generated();
    let sizes = (generated.bytes(), generated.awaiting_bytes());
    assert!(sizes.0 < 0x9000 && sizes.1 > 0x9000, "{sizes:?}");
}

#[test]
fn code_that_finds_no_room_is_taken_up_when_it_is_read_later() {
    let (mut generated, pieces, made) = generated();
    let has_place = |generated: &GeneratedCode| {
        let hit = generated.map.lookup(avma(JIT), MonoNs(100)).unwrap();
        generated.has_place_for(&hit)
    };
    let shown = |generated: &mut GeneratedCode, since| {
        generated.take_shown((JIT, 0x9000), MonoNs(since), made.rows().swap_remove(0))
    };
    generated.set_bounds(CodeBounds { functions: 0, ..CodeBounds::CONTINUOUS });
    assert_eq!(generated.take_made(&pieces, made.rows()), [JIT]);
    assert!(!has_place(&generated) && !shown(&mut generated, 100) && !is_known(&generated, 100));
    generated.set_bounds(CodeBounds::CONTINUOUS);
    assert!(has_place(&generated) && shown(&mut generated, 100) && is_known(&generated, 100));
    assert!(shown(&mut generated, 100), "more exactly");
    assert!(!shown(&mut generated, 99) && generated.will_have_rows(JIT, MonoNs(100)), "there is newer code");
}

#[test]
fn whoever_gets_no_rows_of_some_code_waits_for_none_of_what_is_not_ordered() {
    let at = |number: u64| place(9 * number);
    let mut generated = GeneratedCode::new(CodeOptions::of(CallGraph::Auto));
    (0..40).for_each(|number| generated.apply_found(Change::Load(found(9 * number, code(0x9000)), MonoNs(100))));
    let mut orders: Vec<Vec<Piece>> = Vec::new();
    while let Some(order) = generated.next_order() {
        orders.push(order.into_iter().map(|(piece, _)| piece).collect());
    }
    assert_eq!(orders.iter().map(Vec::len).collect::<Vec<_>>(), [8; 4]);
    let given_up = generated.take_made(&orders[0], Vec::new());
    assert_eq!(given_up, (0..8).chain(32..40).map(at).collect::<Vec<_>>());
    assert!(generated.next_order().is_none());
    let is_there = |start: &u64| generated.rows().unwrap().row_at(*start, MonoNs(100)).is_some();
    assert!(given_up.iter().all(is_there), "it is walked by frame pointer until it is read");
    assert!((8..32).all(|number| generated.awaits_rows(at(number), MonoNs(100))), "it is under way");
    assert_eq!(generated.take_made(&orders[1], Vec::new()).len(), 8);
}

#[test]
fn an_answer_to_the_program_before_leaves_the_orders_of_the_new_one() {
    let (mut generated, pieces, made) = generated();
    generated.end_all(MonoNs(200));
    let ordered = generated.awaiting_bytes();
    generated.apply_found(Change::Load(found(0, code(0x9000)), MonoNs(300)));
    let order = generated.next_order().unwrap();
    let both = generated.awaiting_bytes();
    assert!(ordered > 0x9000 && both > 2 * ordered, "{ordered} {both}");
    assert!(generated.take_made(&pieces, Vec::new()).is_empty(), "nothing of its own was refused");
    assert!(generated.awaits_rows(JIT, MonoNs(300)) && generated.awaiting_bytes() == both - ordered);
    let own: Vec<Piece> = order.into_iter().map(|(piece, _)| piece).collect();
    assert!(generated.take_made(&own, made.rows()).is_empty());
    assert!(is_known(&generated, 300) && generated.awaiting_bytes() == 0);
}

#[test]
fn rows_of_code_that_was_replaced_meanwhile_are_not_taken() {
    let (mut unloaded, pieces, made) = generated();
    unloaded.apply_found(Change::Unload { time: MonoNs(200), start: avma(JIT), size: 0x9000 });
    unloaded.take_made(&pieces, made.rows());
    assert!(!unloaded.will_have_rows(JIT, MonoNs(100)) && !is_known(&unloaded, 150));
    let (mut replaced, pieces, made) = generated();
    replaced.apply_found(Change::Load(found(0, code(0x9000)), MonoNs(300)));
    replaced.take_made(&pieces, made.rows());
    assert!(!is_known(&replaced, 300) && replaced.awaits_rows(JIT, MonoNs(300)));
    let (mut other, pieces, made) = generated();
    other.end_all(MonoNs(200));
    other.take_made(&pieces, made.rows());
    assert!(!is_known(&other, 300), "it has become another program");
}
