//! Frames that an interpreter keeps in a list, and their place in the native stack.

use std::time::Duration;

use jitprof_common::listed::{Field, ListEnd, ListSpec, MAX_LISTED, Step};
use jitprof_common::snapshot::SnapshotHeader;
use jitprof_common::stop::StopReason;
use jitprof_common::table::Region;
use jitprof_common::units::{Avma, Pid, Tid};
use jitprof_common::unwind::PcKind;

use super::frames::lines;
use super::stories::*;
use crate::account::Lack;
use crate::engine::Who;
use crate::engine::border::{FrameList, Order, Request, StackSnapshot, WhyUnread};
use crate::engine::options::{EngineOptions, InterpreterFrames};
use crate::engine::world::machine::memory_mapping;
use crate::engine::world::{Fate, MS, World, options, raw_sample};
use crate::process::event::TaskChange;

use crate::runtime::{Capture, EntryMark, ListCapture, LoopCode, Making};

const PID: u32 = 100;
const CHILD: u32 = 101;
/// The interpreter's loop: `helper`, from which `main` is called here.
const LOOP: u64 = HELPER - 0x10;
const LOOP_SIZE: u64 = 0x800;
/// What is behind it.
const WORK: u64 = LOOP + LOOP_SIZE;
/// A code object with a part of its number.
const PRINTED: u64 = 1 << 48 | 16;
/// In the upper byte of a record that marks where a loop has begun.
const MARK: u64 = 3 << 56;
/// What stands for the functions of a loop whose list samples do not have.
const UNLISTED: &str = "[interpreted functions that were not looked at]";

/// A process whose interpreter keeps a list of frames.
fn python(world: &mut World, functions: &[(u64, &str)]) {
    interpreter(world, functions, EntryMark { least: 3, ..EntryMark::default() }, Vec::new());
}

/// The same, with marks of a kind; those that are frames are PHP's. `within` is what the loop calls to run instructions.
fn interpreter(world: &mut World, functions: &[(u64, &str)], mark: EntryMark, within: Vec<(Avma, u64)>) {
    interpreter_with(world, functions, mark, (within, None));
}

/// The same, with what it generates.
fn interpreter_with(
    world: &mut World,
    functions: &[(u64, &str)],
    mark: EntryMark,
    more: (Vec<(Avma, u64)>, Option<LoopCode>),
) {
    interpreter_of(world, functions, list_of(mark, more));
}

fn list_of(mark: EntryMark, (within, generated): (Vec<(Avma, u64)>, Option<LoopCode>)) -> ListCapture {
    let fields = [Field::new(0, u64::MAX, 0, 0), Field::new(56, u64::MAX, 1, 0)];
    let walk = ListSpec::new(&[&[Step::add_thread_pointer(8), Step::load(0)]], &fields, 8).unwrap();
    ListCapture {
        walk,
        mark,
        loops: vec![(avma(LOOP), LOOP_SIZE)],
        within,
        lasting: 0,
        tells_innermost: mark.is_frame,
        of_first_thread: mark.is_frame,
        keeps_first: false,
        generated,
    }
}

/// The same, with this list.
fn interpreter_of(world: &mut World, functions: &[(u64, &str)], list: ListCapture) {
    add_interpreter(world, functions, list);
    world.follow(&[PID]);
    world.run_for(200);
}

/// Such a process, which nobody follows yet.
fn add_interpreter(world: &mut World, functions: &[(u64, &str)], list: ListCapture) {
    app(world, PID);
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    runtime.name = Some("CPython 3.13.0".to_owned());
    runtime.capture = Some(Capture { list: Some(list), ..Capture::default() });
    runtime.functions = functions.iter().map(|(code, name)| (*code, (*name).to_owned())).collect();
}

/// A sample now, with a list of so many code objects; returns when that was. 0 marks where a loop has begun.
fn sample(world: &mut World, stack: &[u64], code: &[u64], is_whole: bool) -> u64 {
    sample_of(world, PID, stack, (code, is_whole))
}

fn sample_of(world: &mut World, pid: u32, stack: &[u64], (code, is_whole): (&[u64], bool)) -> u64 {
    world.run_for(1);
    let mut sample = raw_sample(world.now, pid, stack, None);
    let records = code.iter().map(|code| if *code == 0 { [0x9000, MARK | 0x70] } else { [*code, 0x70] });
    let records: Vec<_> = records.collect();
    let end = match is_whole {
        true => ListEnd::Last,
        false if records.len() >= MAX_LISTED => ListEnd::TooLong,
        false => ListEnd::Unreadable,
    };
    sample.listed = Some(Box::new(FrameList::new(records, end, [0; 2])));
    world.give(&sample);
    (world.now.0 - ms(0).0) / MS
}

#[test]
fn what_an_interpreter_runs_stands_below_the_loop_that_runs_it() {
    let mut world = World::new(options());
    python(&mut world, &[(16, "py::outer:/a.py"), (32, "py::call:/a.py"), (48, "py::leaf:/a.py")]);
    let spec = &world.kernel.specs[&world.kernel.takes[&Pid(PID)]];
    assert!(spec.list.is_some() && spec.reads[0].words == 0);
    let takes = |at| world.kernel.region(PID, at).unwrap().flags & Region::TAKE != 0;
    assert_eq!([JIT, LOOP, MAIN].map(takes), [false; 3], "no words of frames are read");
    let nested = [MAIN + 4, LOOP + 0x20, MAIN + 8, LOOP + 0x30, MAIN, START];
    let inner = sample(&mut world, &nested, &[48, 32, 0, 16, 0], true);
    let leaf = sample(&mut world, &nested[3..], &[32, 16, 0], true);
    let begins = sample(&mut world, &nested[1..], &[16, 0], true);
    world.run_for(400);
    assert_eq!(world.engine.progress().waiting, 0);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, inner), "_start;main;helper;outer;main;helper;call;leaf;main");
    assert_eq!(stack(&world, PID, leaf), "_start;main;helper;outer;call");
    assert_eq!(stack(&world, PID, begins), "_start;main;helper;outer;main;helper", "it has no frame yet");
    assert_eq!((account.stacks.with_list, account.stacks.list_apart, account.jit.named.runtime), (3, 0, 6));
    assert!(account.advice.is_empty(), "{:?}", account.advice);
    let text = account.to_string();
    assert!(text.contains("app (100): CPython 3.13.0, 6 frames named in 1 looks"), "{text}");
}

#[test]
fn one_frame_without_a_name_among_hundreds_asks_for_no_flag_and_many_do() {
    let advice_beside = |unnamed: usize| {
        let mut world = World::new(options());
        python(&mut world, &[(16, "py::outer:/a.py")]);
        for _ in 0..150 {
            sample(&mut world, &[LOOP + 0x20, MAIN, START], &[16, 0], true);
        }
        for _ in 0..unnamed {
            sample(&mut world, &[JIT + 0x800, LOOP + 0x20, MAIN, START], &[16, 0], true);
        }
        world.run_for(400);
        let account = world.finish().account.clone();
        assert_eq!(account.jit.unnamed_total(), unnamed as u64);
        (account.advice.len(), account.naming[0].lack)
    };
    assert_eq!(advice_beside(1), (0, None));
    assert_eq!(advice_beside(3), (1, Some(Lack::Announcements)), "a service is told the same");
}

#[test]
fn a_child_brings_its_frames_from_the_first_sample_on_and_what_it_lacks_is_said() {
    let mut world = World::new(options());
    python(&mut world, &[(16, "py::outer:/a.py")]);
    let symbols = &mut world.machine.file_mut("/bin/app").unwrap().symbols;
    symbols.insert(LOOP - APP, "_PyEval_EvalFrameDefault".to_owned());
    // It calls the loop, and is none.
    symbols.insert(0x1000, "PyEval_EvalCode".to_owned());
    let nested = [LOOP + 0x20, MAIN, START];
    let of_parent = sample(&mut world, &nested, &[16, 0], true);
    world.run_for(300);
    world.decide = Box::new(|what| match what {
        Request::ReadRuntime { .. } => Fate::Hold,
        _ => Fate::Answer,
    });
    fork(&mut world, CHILD, PID);
    world.run_for(10);
    let has_list = world.kernel.takes.get(&Pid(CHILD)).is_some_and(|spec| world.kernel.specs[spec].list.is_some());
    assert!(has_list, "as its parent");
    world.sample(CHILD, &nested);
    let lacking = (world.now.0 - ms(0).0) / MS;
    world.run_for(10);
    exit(&mut world, CHILD);
    world.release();
    world.run_for(400);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, of_parent), "_start;PyEval_EvalCode;_PyEval_EvalFrameDefault;outer");
    let unlisted = "_start;PyEval_EvalCode;_PyEval_EvalFrameDefault;[interpreted functions that were not looked at]";
    assert_eq!(stack(&world, CHILD, lacking), unlisted);
    let unnamed: Vec<_> = account.jit.unnamed.iter().map(|(why, count)| (&**why, *count)).collect();
    assert_eq!(unnamed, [("the frames of its interpreter were not taken along", 1)]);
    assert!(account.advice.is_empty(), "{:?}", account.advice);
}

#[test]
fn a_child_is_looked_at_while_it_is_there() {
    let mut world = World::new(options());
    python(&mut world, &[(16, "py::outer:/a.py"), (32, "py::leaf:/a.py")]);
    fork(&mut world, CHILD, PID);
    world.run_for(1);
    let next_look = world.engine.wake_at().0 - world.now.0;
    assert!(next_look <= 10 * MS, "{next_look}");
    let nested = [LOOP + 0x20, MAIN, START];
    let first = sample_of(&mut world, CHILD, &nested, (&[16, 0], true));
    world.run_for(10);
    let second = sample_of(&mut world, CHILD, &nested, (&[32, 0], true));
    world.run_for(10);
    exit(&mut world, CHILD);
    world.run_for(400);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, CHILD, first), "_start;main;helper;outer");
    assert_eq!(stack(&world, CHILD, second), "_start;main;helper;leaf");
    assert_eq!(account.jit.unnamed_total(), 0, "{account}");
}

#[test]
fn the_reader_drops_a_child_that_was_asked_about_by_what_its_parent_has() {
    let mut world = World::new(options());
    python(&mut world, &[(16, "py::outer:/a.py")]);
    world.decide = Box::new(|what| match what {
        Request::Process { pid, .. } if pid.0 == CHILD => Fate::Hold,
        _ => Fate::Answer,
    });
    fork(&mut world, CHILD, PID);
    let at = sample_of(&mut world, CHILD, &[LOOP + 0x20, MAIN, START], (&[16, 0], true));
    world.run_for(15);
    assert!(!world.noted.contains_key("drop runtime"));
    exit(&mut world, CHILD);
    world.run_for(5);
    assert_eq!(world.noted["drop runtime"], 1);
    world.release();
    world.finish();
    assert_eq!(stack(&world, CHILD, at), "_start;main;helper;outer");
}

#[test]
fn a_continuous_recording_that_begins_while_a_child_is_new_waits() {
    let mut world = World::new(options());
    python(&mut world, &[(16, "py::outer:/a.py")]);
    fork(&mut world, CHILD, PID);
    world.run_for(1);
    let second = Duration::from_secs(1);
    world.order(Order::Continuous { length: second, grace: second });
    world.run_for(50);
    assert!(world.engine.wake_at() > world.now);
}

#[test]
fn the_runtime_of_a_process_that_has_not_ended_after_all_is_read_again() {
    let mut world = World::new(EngineOptions { who: Who::All, ..options() });
    python(&mut world, &[(16, "py::outer:/a.py")]);
    // Of its threads only the first one is known.
    world.task(TaskChange::Exit { pid: Pid(PID), tid: Tid(PID) });
    world.run_for(300);
    let nested = [LOOP + 0x20, MAIN, START];
    sample(&mut world, &nested, &[16, 0], true);
    world.run_for(300);
    let at = sample(&mut world, &nested, &[16, 0], true);
    world.run_for(400);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;helper;outer");
}

/// A sample in the function [`PRINTED`], at a place of it.
fn elsewhere(world: &mut World, place: u64) -> u64 {
    world.run_for(1);
    let mut sample = raw_sample(world.now, PID, &[LOOP + 0x20, MAIN, START], None);
    let list = FrameList::new(vec![[PRINTED, place], [0x9000, MARK | 0x70]], ListEnd::Last, [0; 2]);
    sample.listed = Some(Box::new(list));
    world.give(&sample);
    (world.now.0 - ms(0).0) / MS
}

#[test]
fn an_answer_that_comes_after_the_end_names_other_places_of_the_function_too() {
    let mut world = World::new(options());
    python(&mut world, &[(PRINTED, "py::outer:/a.py")]);
    let asks = |what: &Request| matches!(what, Request::DescribeFrames { .. });
    world.decide = Box::new(move |what| if asks(what) { Fate::HoldAnswer } else { Fate::Answer });
    let first = elsewhere(&mut world, 0x70);
    world.run_for(50);
    let second = elsewhere(&mut world, 0x90);
    exit(&mut world, PID);
    world.run_for(2);
    world.release();
    world.run_for(300);
    world.finish();
    for at in [first, second] {
        assert_eq!(stack(&world, PID, at), "_start;main;helper;outer");
    }
}

#[test]
fn what_nobody_could_say_at_the_end_is_known_by_other_places_of_the_function() {
    let mut world = World::new(options());
    python(&mut world, &[(PRINTED, "py::outer:/a.py")]);
    elsewhere(&mut world, 0x70);
    world.run_for(300);
    let asks = |what: &Request| matches!(what, Request::DescribeFrames { .. });
    world.decide = Box::new(move |what| if asks(what) { Fate::Fail(WhyUnread::Gone) } else { Fate::Answer });
    let at = elsewhere(&mut world, 0x90);
    exit(&mut world, PID);
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;helper;outer");
}

#[test]
fn what_was_to_be_asked_about_a_process_that_has_not_ended_after_all_is() {
    let mut world = World::new(EngineOptions { who: Who::All, ..options() });
    python(&mut world, &[(16, "py::outer:/a.py"), (24, "py::leaf:/a.py")]);
    let nested = [LOOP + 0x20, MAIN, START];
    sample(&mut world, &nested, &[16, 0], true);
    world.run_for(12);
    sample(&mut world, &nested, &[24, 0], true);
    // Of its threads only the first one is known.
    world.task(TaskChange::Exit { pid: Pid(PID), tid: Tid(PID) });
    world.run_for(300);
    sample(&mut world, &nested, &[16, 0], true);
    world.run_for(300);
    let at = sample(&mut world, &nested, &[24, 0], true);
    world.run_for(600);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;helper;leaf");
}

#[test]
fn samples_that_come_after_the_end_of_their_process_have_their_frames() {
    let mut world = World::new(options());
    python(&mut world, &[(PRINTED, "py::outer:/a.py")]);
    let nested = [LOOP + 0x20, MAIN, START];
    sample(&mut world, &nested, &[PRINTED, 0], true);
    world.run_for(300);
    let (known, unknown) =
        (sample(&mut world, &nested, &[PRINTED, 0], true), sample(&mut world, &nested, &[32, 0], true));
    let (other, same) = (elsewhere(&mut world, 1 << 48 | 0x90), elsewhere(&mut world, 0x90));
    exit(&mut world, PID);
    world.run_for(300);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, known), "_start;main;helper;outer");
    assert_eq!(stack(&world, PID, same), "_start;main;helper;outer", "another place of it");
    assert_eq!(stack(&world, PID, other), "_start;main;helper;[interpreted function without a name]", "another one's");
    assert_eq!(stack(&world, PID, unknown), "_start;main;helper;[interpreted function without a name]");
    assert_eq!(account.jit.unnamed_total(), 2, "{account}");
}

#[test]
fn a_loop_whose_list_is_another_interpreters_is_said_where_lists_are_walked() {
    for walks_lists in [true, false] {
        let mut world = World::new(EngineOptions { walks_lists, ..options() });
        python(&mut world, &[(16, "py::outer:/a.py")]);
        world.sample(PID, &[LOOP + 0x20, MAIN, START]);
        let lacking = (world.now.0 - ms(0).0) / MS;
        world.run_for(300);
        let account = world.finish().account.clone();
        let note = if walks_lists { ";[interpreted functions that were not looked at]" } else { "" };
        assert_eq!(stack(&world, PID, lacking), format!("_start;main;helper{note}"));
        assert_eq!(account.jit.unnamed.values().sum::<u64>(), u64::from(walks_lists));
    }
}

#[test]
fn what_a_loop_has_called_to_run_instructions_is_a_part_of_it() {
    let mut world = World::new(options());
    let mark = EntryMark { least: 3, ..EntryMark::default() };
    interpreter(&mut world, &[(16, "ruby::outer"), (32, "ruby::leaf")], mark, vec![(avma(WORK), 0x100)]);
    world.machine.file_mut("/bin/app").unwrap().symbols.insert(WORK - APP, "work".to_owned());
    // `work` runs instructions for `helper`, and calls `main` for the inner function.
    let nested = [WORK + 4, LOOP + 0x20, MAIN + 8, WORK + 4, LOOP + 0x30, MAIN, START];
    let inner = sample(&mut world, &nested, &[32, 0, 16, 0], true);
    let about_to_end = sample(&mut world, &nested, &[16, 0], true);
    world.run_for(400);
    world.finish();
    assert_eq!(stack(&world, PID, inner), "_start;main;helper;work;outer;main;helper;work;leaf");
    assert_eq!(stack(&world, PID, about_to_end), "_start;main;helper;work;outer;main;helper;work");
}

/// Generated code may be what the loop calls to run instructions, or have the loop's own frame.
#[test]
fn generated_code_that_runs_within_the_loop_is_a_part_of_it() {
    for (pushes, outer) in [(vec![vec![0x53].into()], "helper;"), (Vec::new(), "")] {
        let mut world = World::new(options());
        let mark = EntryMark { least: 3, ..EntryMark::default() };
        let (name, bytes) = ("[code of the loop]".to_owned(), 16);
        let (pushes_of, making) = (pushes.clone(), Vec::new());
        let code =
            LoopCode { name, bytes, fp_below: None, pushes: pushes_of, making, is_shared: false, is_shown: false };
        let functions = [(16, "py::outer:/a.py"), (32, "py::leaf:/a.py")];
        interpreter_with(&mut world, &functions, mark, (Vec::new(), Some(code)));
        let around: &[u64] = if pushes.is_empty() { &[MAIN, START] } else { &[LOOP + 0x20, MAIN, START] };
        let innermost = sample(&mut world, &[&[JIT + 4], around].concat(), &[32, 16, 0], true);
        let called = sample(&mut world, &[&[WORK, JIT + 4], around].concat(), &[32, 16, 0], true);
        world.run_for(400);
        let account = world.finish().account.clone();
        let within = format!("_start;main;{outer}[code of the loop];outer;leaf");
        assert_eq!(stack(&world, PID, innermost), within);
        assert!(stack(&world, PID, called).starts_with(&within), "{}", stack(&world, PID, called));
        assert_eq!((account.stacks.with_list, account.stacks.list_apart), (2, 0));
        assert!(account.jit.unnamed.is_empty() && account.advice.is_empty(), "{:?}", account.jit.unnamed);
    }
}

/// Whatever else generates code within the process is none of it, however much.
#[test]
fn code_is_the_interpreters_only_where_it_says_that_a_functions_code_begins() {
    for (entries, is_its) in [(vec![], false), (vec![avma(MAIN)], false), (vec![avma(JIT + 0x40)], true)] {
        let mut world = World::new(options());
        let mark = EntryMark { least: 3, ..EntryMark::default() };
        let (name, pushes, making) = ("[code of the loop]".to_owned(), vec![vec![0x53].into()], Vec::new());
        let code = LoopCode { name, bytes: 16, fp_below: None, pushes, making, is_shared: false, is_shown: true };
        interpreter_with(&mut world, &[(16, "py::outer:/a.py")], mark, (Vec::new(), Some(code)));
        world.machine.processes.get_mut(&PID).unwrap().runtime.entries = entries;
        let at = sample(&mut world, &[JIT + 4, LOOP + 0x20, MAIN, START], &[16, 0], true);
        world.run_for(400);
        world.finish();
        let stack = stack(&world, PID, at);
        assert_eq!(stack == "_start;main;helper;[code of the loop];outer", is_its, "{stack}");
        assert_eq!(stack.contains("[code of the loop]"), is_its, "{stack}");
    }
}

/// It is read once a walk has met it, and a sample waits for that.
#[test]
fn a_frame_that_generated_code_is_making_is_left_out() {
    const SP: u64 = 0x7f00_0000;
    let mut world = World::new(options());
    let mark = EntryMark { least: 3, ..EntryMark::default() };
    let (name, pushes) = ("[code of the loop]".to_owned(), vec![vec![0x53].into()]);
    // sub r13, 0x40; nop ...; mov [r13 + 0x10], rax
    let (begins, ends) = ([0x49, 0x83, 0xed, 0x40], [0x49, 0x89, 0x45, 0x10]);
    let making = vec![Making { begins: begins.to_vec().into(), ends: ends.to_vec().into() }];
    let code = LoopCode { name, bytes: 16, fp_below: None, pushes, making, is_shared: false, is_shown: false };
    let functions = [(16, "py::outer:/a.py"), (32, "py::leaf:/a.py")];
    interpreter_with(&mut world, &functions, mark, (Vec::new(), Some(code)));
    let mut bytes = vec![0x90; 0x2000];
    bytes[0x10..0x14].copy_from_slice(&begins);
    bytes[0x20..0x24].copy_from_slice(&ends);
    world.machine.processes.get_mut(&PID).unwrap().memory.insert(JIT, bytes);
    let words = [7, LOOP + 0x20, 7, MAIN, 7, START, 7, 0];
    let sampled = [0x10, 0x18, 0x20, 0x24].map(|at| {
        world.run_for(1);
        let snapshot = StackSnapshot {
            registers: [JIT + at, SP, 0, 0],
            kind: SnapshotHeader::code_of(PcKind::Instruction),
            index: 0,
            base: SP,
            bytes: words.iter().flat_map(|word: &u64| word.to_ne_bytes()).collect(),
        };
        let mut sample = raw_sample(world.now, PID, &[JIT + at], Some(snapshot));
        let records = vec![[32, 0x70], [16, 0x70], [0x9000, MARK | 0x70]];
        sample.listed = Some(Box::new(FrameList::new(records, ListEnd::Last, [0; 2])));
        world.give(&sample);
        (world.now.0 - ms(0).0) / MS
    });
    world.run_for(600);
    world.finish();
    let (made, making) =
        ("_start;main;helper;[code of the loop];outer;leaf", "_start;main;helper;[code of the loop];outer");
    assert_eq!(sampled.map(|at| stack(&world, PID, at)), [made, making, making, made]);
}

/// By the frame pointer a walk may come to a caller of the loop, which then is missing.
#[test]
fn a_stack_ends_at_generated_code_whose_caller_was_missed() {
    let outside = 0x1234_5670;
    let cases: [(&[u64], &str); 3] = [
        (&[JIT + 4, MAIN + 8, MAIN, START], "return address is no code address"),
        (&[JIT + 4, outside, LOOP + 0x20, MAIN, START], "return address outside executable mappings"),
        (&[JIT + 4, JIT + 0x2000, LOOP + 0x20, MAIN, START], "return address outside executable mappings"),
    ];
    for (frames, why) in cases {
        let mut world = World::new(options());
        let mark = EntryMark { least: 3, ..EntryMark::default() };
        let (name, pushes, making) = ("[code of the loop]".to_owned(), vec![vec![0x53].into()], Vec::new());
        let code = LoopCode { name, bytes: 16, fp_below: None, pushes, making, is_shared: false, is_shown: false };
        interpreter_with(&mut world, &[(16, "py::outer:/a.py")], mark, (Vec::new(), Some(code)));
        let at = sample(&mut world, frames, &[16, 0], true);
        world.run_for(400);
        let account = world.finish().account.clone();
        let apart = "outer;[how these two parts go together is not known]";
        assert_eq!(stack(&world, PID, at), format!("{apart};[cut: {why}];[code of the loop]"));
        assert_eq!((account.stacks.with_list, account.stacks.list_apart, account.stacks.cut[why]), (0, 1, 1));
    }
}

/// Of such code a perf map may name some and leave out some.
#[test]
fn a_stack_goes_on_from_generated_code_to_such_as_is_announced() {
    for pushes in [Vec::new(), vec![vec![0x53].into()]] {
        let mut world = World::new(options());
        let map = format!("{:x} 40 caller\n", JIT + 0x1000);
        world.machine.add_file(&format!("/tmp/perf-{PID}.map"), map.into_bytes());
        let mark = EntryMark { least: 3, ..EntryMark::default() };
        let (name, making) = ("[code of the loop]".to_owned(), Vec::new());
        let code = LoopCode { name, bytes: 16, fp_below: None, pushes, making, is_shared: false, is_shown: false };
        interpreter_with(&mut world, &[(16, "py::outer:/a.py")], mark, (Vec::new(), Some(code)));
        world.sample(PID, &[MAIN, START]);
        world.run_for(1200);
        let at = sample(&mut world, &[JIT + 4, JIT + 0x1008, LOOP + 0x20, MAIN, START], &[16, 0], true);
        world.run_for(400);
        let account = world.finish().account.clone();
        assert!(stack(&world, PID, at).contains("caller"), "{}", stack(&world, PID, at));
        assert!(!account.stacks.cut.contains_key("return address outside executable mappings"));
    }
}

/// What PHP's JIT has made, in its dump or map: of functions, a trace, and what all functions share.
const OF_PHP: [(u64, &str); 4] = [
    (JIT, "JIT$A::leaf"),
    (JIT + 0x1000, "JIT$outer"),
    (JIT + 0x2000, "TRACE-3$other$7"),
    (JIT + 0x3000, "JIT$$leave"),
];

/// A PHP that runs this program, whose JIT makes code in the loop's own frame.
fn add_php(world: &mut World, exe: &str) {
    let mark = EntryMark { least: 1, is_frame: true, ..EntryMark::default() };
    let (name, pushes, making) = ("[code of the loop]".to_owned(), Vec::new(), Vec::new());
    let code = LoopCode { name, bytes: 16, fp_below: None, pushes, making, is_shared: false, is_shown: false };
    let functions = [(16, "php::outer"), (32, "php::A::leaf"), (48, "php.internal::usort")];
    add_interpreter(world, &functions, list_of(mark, (Vec::new(), Some(code))));
    let made = world.machine.processes.get_mut(&PID).unwrap();
    made.read.exe = Some(exe.to_owned());
    // It has a place where code is registered with a debugger, and nothing there.
    made.runtime.has_lists = true;
}

/// A sample of PHP, with a list of so many functions of one loop.
fn sample_php(world: &mut World, stack: &[u64], functions: &[u64]) -> u64 {
    world.run_for(1);
    let mut sample = raw_sample(world.now, PID, stack, None);
    let mut records: Vec<_> = functions.iter().map(|function| [*function, 0x70]).collect();
    records.last_mut().unwrap()[1] |= 1 << 56;
    sample.listed = Some(Box::new(FrameList::new(records, ListEnd::Last, [0; 2])));
    world.give(&sample);
    (world.now.0 - ms(0).0) / MS
}

/// Samples in each of its pieces of code, with what they are expected to be.
fn assert_callers_of_php(world: &mut World) {
    let at = |code: u64| [JIT + code + 8, MAIN, START];
    let cases: [(&[u64], &[u64], &str); 8] = [
        (&at(0), &[32, 16], "_start;main;outer;A::leaf"),
        // It is about to call, or was just returned to.
        (&at(0x1000), &[32, 16], "_start;main;outer;A::leaf"),
        // It returns, and the list has it no more.
        (&at(0), &[16], "_start;main;outer;A::leaf"),
        // Another call of the same function is another frame.
        (&at(0x1000), &[16, 16], "_start;main;outer;outer"),
        // The list says what runs.
        (&at(0x2000), &[32, 16], "_start;main;other;outer;A::leaf"),
        (&at(0x3000), &[32, 16], "_start;main;leave;outer;A::leaf"),
        // What it calls of its own kind returns to it.
        (&[JIT + 0x3008, JIT + 8, MAIN, START], &[32, 16], "_start;main;outer;A::leaf;leave"),
        // One of PHP's own functions is none that code is generated of.
        (&at(0x1000), &[48, 16], "_start;main;outer;usort"),
    ];
    let times = cases.map(|(stack, functions, _)| sample_php(world, stack, functions));
    world.run_for(600);
    let account = world.finish().account.clone();
    for (at, (_, functions, expected)) in times.into_iter().zip(cases) {
        assert_eq!(stack(world, PID, at), expected, "{functions:?}");
    }
    assert_eq!((account.stacks.with_list, account.stacks.list_apart), (8, 0));
    let named = (account.jit.named.jitdump + account.jit.named.perf_map, account.jit.named.runtime);
    assert_eq!(named, (9, 10), "a function counts once");
    assert!(account.jit.unnamed.is_empty(), "{:?}", account.jit.unnamed);
}

/// Its dump may be there before anybody looks at the process, or begin later than its tables were read.
#[test]
fn functions_that_phps_dump_announces_have_their_callers_and_one_frame_each() {
    for (is_there_first, after_ms) in [(true, 0), (false, 0), (false, 400)] {
        let mut world = World::new(options());
        add_php(&mut world, "/usr/bin/php8.2");
        if is_there_first {
            begin_dump(&mut world, PID);
        }
        world.follow(&[PID]);
        if !is_there_first {
            world.run_for(after_ms);
            begin_dump(&mut world, PID);
        }
        world.run_for(200);
        for (start, name) in OF_PHP {
            announce(&mut world, PID, (start, 64, name));
        }
        world.run_for(300);
        assert!(world.engine.keeps_lists(Pid(PID)), "{is_there_first}, {after_ms}");
        let spec = &world.kernel.specs[&world.kernel.takes[&Pid(PID)]];
        assert!(spec.list.is_some(), "{is_there_first}, {after_ms}");
        assert_callers_of_php(&mut world);
    }
}

/// What is registered with a debugger may have been found before PHP was.
#[test]
fn a_list_that_a_dump_lacks_is_looked_for_where_there_are_other_lists_already() {
    let mut world = World::new(options());
    add_php(&mut world, "/usr/bin/php8.2");
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    let found_later = runtime.capture.take();
    begin_dump(&mut world, PID);
    world.follow(&[PID]);
    world.run_for(200);
    world.machine.processes.get_mut(&PID).unwrap().runtime.capture = found_later;
    assert!(!world.engine.keeps_lists(Pid(PID)));
    for _ in 0..5 {
        world.sample(PID, &[MAIN, START]);
        world.run_for(300);
    }
    assert!(world.engine.keeps_lists(Pid(PID)));
    let account = world.finish().account.clone();
    let readings = account.sources[0].tables.as_ref().map(|tables| tables.readings);
    assert_eq!(readings, Some(2), "where the list is known, the dump has the rest");
}

/// Jitted code does not note where in its function it is.
#[test]
fn the_innermost_function_of_phps_jit_has_no_line_and_its_callers_have_those_of_their_calls() {
    for is_announced in [false, true] {
        let mut world = World::new(options());
        add_php(&mut world, "/usr/bin/php8.2");
        let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
        let functions = [(16, "php::outer@7"), (32, "php::A::leaf@9")];
        runtime.functions = functions.map(|(at, name)| (at, name.to_owned())).into();
        world.follow(&[PID]);
        if is_announced {
            begin_dump(&mut world, PID);
            world.run_for(200);
            for (start, name) in OF_PHP {
                announce(&mut world, PID, (start, 64, name));
            }
        }
        world.run_for(300);
        let (leaf, caller) = ([JIT + 8, MAIN, START], [JIT + 0x1008, MAIN, START]);
        let runs = sample_php(&mut world, &leaf, &[32, 16]);
        // The list has what it calls already.
        let calls = sample_php(&mut world, &caller, &[32, 16]);
        let alone = sample_php(&mut world, &caller, &[16]);
        world.run_for(600);
        world.finish();
        let begin = if is_announced { "_start:0;main:0" } else { "_start:0;main:0;[code of the loop]:0" };
        for at in [runs, calls] {
            assert_eq!(lines(&world, at), format!("{begin};outer:7;A::leaf:0"));
        }
        assert_eq!(lines(&world, alone), format!("{begin};outer:0"));
    }
}

#[test]
fn functions_that_phps_map_announces_have_their_callers_and_one_frame_each() {
    let mut world = World::new(options());
    add_php(&mut world, "/usr/bin/php8.2");
    let lines = OF_PHP.map(|(start, name)| format!("{start:x} 40 {name}\n"));
    world.machine.add_file(&format!("/tmp/perf-{PID}.map"), lines.concat().into_bytes());
    world.follow(&[PID]);
    world.sample(PID, &[MAIN, START]);
    world.run_for(1200);
    assert_callers_of_php(&mut world);
}

#[test]
fn a_child_of_php_has_its_list_walked_before_anybody_looks_though_there_are_other_lists() {
    let mut world = World::new(options());
    add_php(&mut world, "/usr/bin/php8.2");
    world.follow(&[PID]);
    world.run_for(200);
    world.decide = Box::new(|what| if matches!(what, Request::ReadRuntime { .. }) { Fate::Hold } else { Fate::Answer });
    fork(&mut world, CHILD, PID);
    world.run_for(10);
    assert!(world.engine.keeps_lists(Pid(CHILD)));
    assert!(world.kernel.specs[&world.kernel.takes[&Pid(CHILD)]].list.is_some());
}

/// A web server has it for a module, which it loads after its program was read.
#[test]
fn the_list_of_a_php_that_is_loaded_later_is_read_beside_its_dump() {
    const MODULE: u64 = 0x50_0000;
    let mut world = World::new(options());
    add_php(&mut world, "/usr/sbin/apache2");
    world.machine.add_program("/usr/lib/apache2/modules/libphp8.2.so", b"php", &[(0, "php_module_startup")]);
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    let loaded_later = (runtime.name.take(), runtime.capture.take());
    world.follow(&[PID]);
    world.sample(PID, &[MAIN, START]);
    world.run_for(200);
    let module = mapped(&world, MODULE, "/usr/lib/apache2/modules/libphp8.2.so");
    map(&mut world, PID, module);
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    (runtime.name, runtime.capture) = loaded_later;
    begin_dump(&mut world, PID);
    // There was nothing when it was looked at first: it is not looked at again at once.
    world.run_for(3000);
    for (start, name) in OF_PHP {
        announce(&mut world, PID, (start, 64, name));
    }
    world.run_for(300);
    assert_callers_of_php(&mut world);
}

/// Other generated code of such a process has frames of its own, and the rows that its announcement has.
#[test]
fn announced_code_has_the_rows_of_the_loops_frame_only_where_phps_jit_makes_it() {
    const OTHER: u64 = 0x7800_0000;
    let mut world = World::new(options());
    add_php(&mut world, "/usr/bin/php8.2");
    // What PHP's is lies in memory that processes share.
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    let capture = runtime.capture.as_mut().unwrap();
    capture.list.as_mut().unwrap().generated.as_mut().unwrap().is_shared = true;
    let mappings = world.machine.mappings_mut(PID).unwrap();
    for mapping in mappings.iter_mut().filter(|mapping| mapping.start == avma(JIT)) {
        mapping.prot.shared = true;
    }
    // Nothing is known of its list at first.
    world.decide = Box::new(|what| if matches!(what, Request::ReadRuntime { .. }) { Fate::Hold } else { Fate::Answer });
    world.follow(&[PID]);
    map(&mut world, PID, memory_mapping(OTHER, 0x10_0000));
    begin_dump(&mut world, PID);
    world.run_for(200);
    announce(&mut world, PID, (JIT, 64, "JIT$A::leaf"));
    announce(&mut world, PID, (OTHER, 64, "pattern"));
    world.run_for(300);
    let rows = |world: &World, at: u64| world.engine.rows_of(PID, &[at]).len();
    assert_eq!([JIT, OTHER].map(|at| rows(&world, at)), [1, 1]);
    world.decide = Box::new(|_| Fate::Answer);
    world.release();
    world.run_for(300);
    announce(&mut world, PID, (JIT + 0x1000, 64, "JIT$outer"));
    announce(&mut world, PID, (OTHER + 0x1000, 64, "pattern"));
    world.run_for(300);
    assert_eq!([JIT, JIT + 0x1000].map(|at| rows(&world, at)), [0, 0], "made for functions with frames of their own");
    assert_eq!([OTHER, OTHER + 0x1000].map(|at| rows(&world, at)), [1, 1]);
}

#[test]
fn a_list_is_not_put_to_the_loops_of_who_has_started_its_greenlet() {
    const GREENLET: u64 = 0x50_0000;
    let mut world = World::new(options());
    let mark = EntryMark { least: 1, is_frame: true, ..EntryMark::default() };
    interpreter(&mut world, &[(16, "py::outer:/a.py"), (32, "py::leaf:/a.py")], mark, Vec::new());
    world.machine.add_program("/lib/_greenlet.so", b"greenlet", &[(0, "g_initialstub")]);
    let library = mapped(&world, GREENLET, "/lib/_greenlet.so");
    map(&mut world, PID, library);
    world.run_for(100);
    let runs = |world: &mut World, caller: u64, code: u64| {
        world.run_for(1);
        let mut sample = raw_sample(world.now, PID, &[LOOP + 0x420, caller, LOOP + 0x30, MAIN, START], None);
        sample.listed = Some(Box::new(FrameList::new(vec![[code, 1 << 56 | 0x70]], ListEnd::Last, [0; 2])));
        world.give(&sample);
        (world.now.0 - ms(0).0) / MS
    };
    let about_to_end = runs(&mut world, MAIN + 8, 16);
    let switched = runs(&mut world, GREENLET + 8, 32);
    world.run_for(400);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, about_to_end), "_start;main;helper;outer;main;helper");
    let apart = "[how these two parts go together is not known]";
    assert_eq!(stack(&world, PID, switched), format!("leaf;{apart};_start;main;helper;g_initialstub;helper"));
    assert_eq!((account.stacks.with_list, account.stacks.list_apart), (1, 1));
}

/// The library may be a file of its own, or a part of the interpreter's; the list is of the state that runs, or of the first.
#[test]
fn a_list_is_put_to_the_loops_of_the_interpreter_that_it_is_of() {
    const LIBRARY: u64 = 0x50_0000;
    for (keeps_first, caller) in [(false, LIBRARY + 8), (false, MAIN + 0x110), (true, LIBRARY + 8)] {
        let mut world = World::new(options());
        let mark = EntryMark { least: 3, ..EntryMark::default() };
        let list = ListCapture { keeps_first, ..list_of(mark, (Vec::new(), None)) };
        interpreter_of(&mut world, &[(16, "py::outer:/a.py"), (32, "py::leaf:/a.py")], list);
        world.machine.file_mut("/bin/app").unwrap().symbols.insert(MAIN - APP + 0x100, "interp_exec".to_owned());
        world.machine.add_program("/lib/_interpreters.so", b"interpreters", &[(0, "interp_exec")]);
        let library = mapped(&world, LIBRARY, "/lib/_interpreters.so");
        map(&mut world, PID, library);
        world.run_for(100);
        let nested = [LOOP + 0x420, caller, LOOP + 0x30, MAIN, START];
        let own = if keeps_first { 16 } else { 32 };
        let at = sample(&mut world, &nested, &[own, 0], true);
        world.run_for(400);
        let account = world.finish().account.clone();
        let (outer, inner) = if keeps_first { ("outer", UNLISTED) } else { (UNLISTED, "leaf") };
        assert_eq!(stack(&world, PID, at), format!("_start;main;helper;{outer};interp_exec;helper;{inner}"));
        assert_eq!((account.stacks.with_list, account.stacks.list_apart), (1, 0));
        let unnamed: Vec<_> = account.jit.unnamed.iter().map(|(why, count)| (&**why, *count)).collect();
        assert_eq!(unnamed, [("the frames of its interpreter were not taken along", 1)], "{keeps_first}");
    }
}

#[test]
fn a_greenlets_list_is_put_to_its_own_loops_unless_it_is_being_exchanged() {
    const GREENLET: u64 = 0x50_0000;
    let mut world = World::new(options());
    python(&mut world, &[(32, "py::leaf:/a.py")]);
    world.machine.add_program("/lib/_greenlet.so", b"greenlet", &[(0, "g_initialstub")]);
    let library = mapped(&world, GREENLET, "/lib/_greenlet.so");
    map(&mut world, PID, library);
    world.run_for(100);
    let nested = [GREENLET + 8, LOOP + 0x420, GREENLET + 8, LOOP + 0x30, MAIN, START];
    let runs = sample(&mut world, &nested[1..], &[32, 0], true);
    let switches = sample(&mut world, &nested, &[32, 0], true);
    world.run_for(400);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, runs), format!("_start;main;helper;{UNLISTED};g_initialstub;helper;leaf"));
    let apart = "[how these two parts go together is not known]";
    let native = "_start;main;helper;g_initialstub;helper;g_initialstub";
    assert_eq!(stack(&world, PID, switches), format!("leaf;{apart};{native}"));
    assert_eq!((account.stacks.with_list, account.stacks.list_apart), (1, 1));
}

/// A greenlet that gives way to who has started it: the stack is exchanged before the list, and each has one loop.
#[test]
fn as_many_loops_are_no_proof_while_a_greenlet_gives_way() {
    const GREENLET: u64 = 0x50_0000;
    let mut world = World::new(options());
    python(&mut world, &[(32, "py::leaf:/a.py")]);
    world.machine.add_program("/lib/_greenlet.so", b"greenlet", &[(0, "g_switch")]);
    let library = mapped(&world, GREENLET, "/lib/_greenlet.so");
    map(&mut world, PID, library);
    world.run_for(100);
    let nested = [GREENLET + 8, LOOP + 0x420, MAIN, START];
    let switches = sample(&mut world, &nested, &[32, 0], true);
    let runs = sample(&mut world, &nested[1..], &[32, 0], true);
    world.run_for(400);
    let account = world.finish().account.clone();
    let apart = "[how these two parts go together is not known]";
    assert_eq!(stack(&world, PID, switches), format!("leaf;{apart};_start;main;helper;g_switch"));
    assert_eq!(stack(&world, PID, runs), "_start;main;helper;leaf");
    assert_eq!((account.stacks.with_list, account.stacks.list_apart), (1, 1));
}

#[test]
fn what_was_inlined_into_the_loop_stands_below_what_it_runs() {
    let mut world = World::new(options());
    python(&mut world, &[(16, "py::outer:/a.py"), (32, "py::leaf:/a.py")]);
    let symbols = &mut world.machine.file_mut("/bin/app").unwrap().symbols;
    symbols.insert(LOOP - APP + 0x100, "helper > step > count".to_owned());
    symbols.insert(LOOP - APP + 0x200, "run > _PyEval_EvalFrameDefault > count".to_owned());
    let inlined = sample(&mut world, &[LOOP + 0x120, MAIN, START], &[32, 16, 0], true);
    let nested = sample(&mut world, &[LOOP + 0x220, MAIN + 8, LOOP + 0x120, MAIN, START], &[32, 0, 16, 0], true);
    let apart = sample(&mut world, &[LOOP + 0x120, MAIN, START], &[32, 16, 0], false);
    world.run_for(400);
    world.finish();
    assert_eq!(stack(&world, PID, inlined), "_start;main;helper;outer;leaf;step;count");
    let called = "_start;main;helper;outer;step;count;main;run;_PyEval_EvalFrameDefault;leaf;count";
    assert_eq!(stack(&world, PID, nested), called);
    let apart = stack(&world, PID, apart);
    assert!(apart.ends_with("_start;main;helper;step;count"), "{apart}");
}

#[test]
fn what_runs_first_at_the_end_of_a_process_is_asked_about_before_the_next_tick() {
    let mut world = World::new(options());
    python(&mut world, &[(16, "py::outer:/a.py")]);
    let at = sample(&mut world, &[LOOP + 0x30, MAIN, START], &[16, 0], true);
    world.run_for(25);
    exit(&mut world, PID);
    world.run_for(300);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "_start;main;helper;outer");
    assert_eq!(account.jit.unnamed_total(), 0, "{account}");
}

#[test]
fn frames_that_are_not_wanted_are_neither_taken_nor_shown() {
    let without = InterpreterFrames { listed: false, ..InterpreterFrames::default() };
    let mut world = World::new(EngineOptions { interpreter: without, ..options() });
    python(&mut world, &[(16, "py::outer:/a.py")]);
    assert!(!world.kernel.takes.contains_key(&Pid(PID)), "samples take nothing along");
    // One that was on its way.
    let at = sample(&mut world, &[LOOP + 0x30, MAIN, START], &[16, 0], true);
    world.run_for(400);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "_start;main;helper");
    assert_eq!((account.stacks.with_list, account.stacks.list_apart, account.jit.named.runtime), (0, 0, 0));
    assert!(account.sources.iter().all(|source| source.tables.is_none()), "{account}");
}

#[test]
fn a_function_that_its_trampoline_names_too_is_one_frame() {
    let mut world = World::new(EngineOptions { verify_names: true, ..options() });
    let map = format!("{JIT:x} 20 py::leaf:/a.py\n{:x} 20 py::other:/a.py\n", JIT + 0x20);
    world.machine.add_file(&format!("/tmp/perf-{PID}.map"), map.into_bytes());
    python(&mut world, &[(16, "py::outer:/a.py"), (32, "py::leaf:/a.py")]);
    world.run_for(1200);
    let nested = [LOOP + 0x20, JIT + 8, LOOP + 0x30, JIT + 0x28, MAIN, START];
    let at = sample(&mut world, &nested, &[32, 0, 16, 0], true);
    world.run_for(400);
    let verified = world.finish().account.verified.clone().unwrap();
    assert_eq!(stack(&world, PID, at), "_start;main;other;helper;outer;helper;leaf");
    let counts = (verified.agreed, verified.disagreed, verified.only_announced, verified.only_perf_map);
    assert_eq!(counts, (1, 1, 0, 0));
}

#[test]
fn what_php_announces_is_compared_with_the_innermost_function_of_its_list() {
    let mut world = World::new(EngineOptions { verify_names: true, ..options() });
    let names = ["JIT$leaf", "TRACE-1$leaf$3", "JIT$$leave_function", "JIT$other"];
    let line = |(at, name): (u64, &&str)| format!("{:x} 40 {name}\n", JIT + at * 0x40);
    let map: String = (0..).zip(&names).map(line).collect();
    world.machine.add_file(&format!("/tmp/perf-{PID}.map"), map.into_bytes());
    let functions = [(16, "php::outer"), (32, "php::leaf"), (48, "php.internal::strlen")];
    interpreter(&mut world, &functions, EntryMark { least: 1, is_frame: true, ..EntryMark::default() }, Vec::new());
    world.run_for(1200);
    // The function itself; one that it is about to call; of several functions; another function; one without a name.
    let samples: [(u64, &[u64]); 6] =
        [(0, &[32, 16]), (0, &[48, 32, 16]), (1, &[32, 16]), (2, &[16]), (3, &[32, 16]), (0, &[64, 16])];
    for (at, list) in samples {
        sample(&mut world, &[JIT + at * 0x40 + 8, MAIN, START], list, true);
    }
    world.run_for(400);
    let verified = world.finish().account.verified.clone().unwrap();
    assert_eq!((verified.agreed, verified.disagreed, verified.incomparable), (1, 1, 3), "{verified:?}");
    assert_eq!((verified.only_announced, verified.only_perf_map), (1, 0));
    let [example] = &verified.examples[..] else { panic!("{:?}", verified.examples) };
    assert_eq!((&*example.announced, &*example.listed), ("leaf", "JIT$other"));
}

#[test]
fn lists_that_are_too_long_are_resolved_early_and_bounded() {
    let mut world = World::new(options());
    python(&mut world, &[(16, "py::f:/a.py")]);
    world.decide =
        Box::new(|what| if matches!(what, Request::DescribeFrames { .. }) { Fate::Hold } else { Fate::Answer });
    let code = [vec![16; 1000], vec![0]].concat();
    for _ in 0..20 {
        sample(&mut world, &[LOOP + 8, MAIN, START], &code, true);
    }
    world.run_for(200);
    assert!(world.engine.progress().waiting < 10, "{}", world.engine.progress().waiting);
    let account = world.finish().account.clone();
    assert!(account.samples.resolved_early >= 10, "{}", account.samples.resolved_early);
    assert_eq!(account.samples.delivered, 20);
}

#[test]
fn lists_that_are_too_long_cost_who_has_them_and_nobody_else() {
    let mut world = World::new(options());
    python(&mut world, &[(16, "py::f:/a.py")]);
    app(&mut world, CHILD);
    world.follow(&[CHILD]);
    world.run_for(300);
    world.holds_names = true;
    let at = (world.now.0 - ms(0).0) / MS;
    world.sample(CHILD, &[MAIN, START]);
    world.run_for(50);
    world.decide =
        Box::new(|what| if matches!(what, Request::DescribeFrames { .. }) { Fate::Hold } else { Fate::Answer });
    let code = [vec![16; 1000], vec![0]].concat();
    for _ in 0..20 {
        sample(&mut world, &[LOOP + 8, MAIN, START], &code, true);
    }
    world.run_for(200);
    let queued = |world: &World, pid| {
        let process = world.engine.tracking.processes.live_of(Pid(pid));
        process.map_or(0, |process| process.queue.iter().count())
    };
    assert!(queued(&world, PID) < 10 && queued(&world, CHILD) == 1);
    world.engine.assert_sound();
    world.holds_names = false;
    world.finish();
    assert_eq!(stack(&world, CHILD, at), "_start;main");
}

#[test]
fn what_cannot_be_placed_is_shown_apart_and_counted() {
    let mut world = World::new(options());
    python(&mut world, &[(16, "py::outer:/a.py"), (48, "py::leaf:/a.py")]);
    let user = [LOOP + 0x20, MAIN + 8, LOOP + 0x30, MAIN, START];
    let more = sample(&mut world, &user, &[48, 0, 16, 0, 16, 0], true);
    let fewer = sample(&mut world, &user[1..], &[], true);
    let torn = sample(&mut world, &user[2..], &[48, 0], false);
    let unknown = sample(&mut world, &user[2..], &[64, 16, 0], true);
    world.run_for(400);
    let account = world.finish().account.clone();
    let apart = "[how these two parts go together is not known]";
    let native = "_start;main;helper;main;helper";
    assert_eq!(stack(&world, PID, more), format!("outer;outer;leaf;{apart};{native}"));
    assert_eq!(stack(&world, PID, fewer), "_start;main;helper;main");
    assert_eq!(stack(&world, PID, torn), format!("leaf;{apart};_start;main;helper"));
    assert_eq!(stack(&world, PID, unknown), "_start;main;helper;outer;[interpreted function without a name]");
    assert_eq!((account.stacks.with_list, account.stacks.list_apart), (1, 3));
    assert_eq!((account.jit.named.runtime, account.jit.unnamed_total()), (5, 1));
}

#[test]
fn as_many_parts_as_loops_prove_nothing_where_stacks_were_cut_amid_loops() {
    let mut world = World::new(options());
    python(&mut world, &[(16, "py::outer:/a.py"), (48, "py::leaf:/a.py")]);
    // Of a list with two parts.
    let cut = |world: &mut World, stack: &[u64], stop: StopReason| {
        world.run_for(1);
        let mut sample = raw_sample(world.now, PID, stack, None);
        let mark = [0x9000, MARK | 0x70];
        let records = vec![[48, 0x70], mark, [16, 0x70], mark];
        (sample.stop, sample.listed) = (stop as u8, Some(Box::new(FrameList::new(records, ListEnd::Last, [0; 2]))));
        world.give(&sample);
        (world.now.0 - ms(0).0) / MS
    };
    let nested = [LOOP + 0x20, MAIN + 8, LOOP + 0x30, MAIN + 8];
    let unsuspected = cut(&mut world, &nested, StopReason::NoFramePointer);
    let amid_loops = cut(&mut world, &nested[1..], StopReason::NoFramePointer);
    // It may have been called by a loop that is not seen, and have no frame yet.
    let late = cut(&mut world, &nested, StopReason::NoFramePointer);
    let ends = cut(&mut world, &nested, StopReason::ZeroReturnAddress);
    world.run_for(400);
    let account = world.finish().account.clone();
    let (cut, placed) = ("[cut: no frame pointer]", "main;helper;outer;main;helper;leaf");
    let apart = format!("outer;leaf;[how these two parts go together is not known];{cut}");
    assert_eq!(stack(&world, PID, unsuspected), format!("{cut};{placed}"));
    assert_eq!(stack(&world, PID, amid_loops), format!("{apart};main;helper;main"));
    assert_eq!(stack(&world, PID, late), format!("{apart};main;helper;main;helper"));
    assert_eq!(stack(&world, PID, ends), format!("[cut: return address is zero];{placed}"));
    assert_eq!((account.stacks.with_list, account.stacks.list_apart), (2, 2));
}

#[test]
fn no_room_names_an_interpreter_that_has_ended() {
    let mut world = World::new(options());
    world.continuous(1000, 500);
    python(&mut world, &[(16, "py::outer:/a.py"), (48, "py::leaf:/a.py")]);
    let mut sample = raw_sample(world.now, PID, &[MAIN + 8, LOOP + 0x30, MAIN + 8], None);
    let mark = [0x9000, MARK | 0x70];
    let list = FrameList::new(vec![[48, 0x70], mark, [16, 0x70], mark], ListEnd::Last, [0; 2]);
    (sample.stop, sample.listed) = (StopReason::NoFramePointer as u8, Some(Box::new(list)));
    world.give(&sample);
    world.run_for(2000);
    let used = world.engine.rooms();
    assert!(used.contains(&("takes", 1)) && used.contains(&("cut amid loops", 1)), "{used:?}");
    exit(&mut world, PID);
    world.run_for(10_000);
    assert_eq!(world.engine.rooms(), [("awaited", 1)]);
    world.finish();
}

#[test]
fn a_list_of_more_than_a_sample_holds_is_cut_where_its_frames_end() {
    let mut world = World::new(options());
    python(&mut world, &[(16, "py::deep:/a.py"), (48, "py::leaf:/a.py")]);
    let deep = |marks: usize| {
        let mut code = vec![16; MAX_LISTED];
        code[0] = 48;
        (0..marks).for_each(|mark| code[5 + 2 * mark] = 0);
        code
    };
    let user = [LOOP + 0x20, MAIN + 8, LOOP + 0x30, MAIN, START];
    let one = sample(&mut world, &user[2..], &deep(0), false);
    let two = sample(&mut world, &user, &deep(1), false);
    let any = sample(&mut world, &user, &deep(0), false);
    let called = sample(&mut world, &[&[MAIN + 8][..], &user].concat(), &deep(0), false);
    world.run_for(400);
    let account = world.finish().account.clone();
    let (cut, times) = ("[cut: deeper than a sample holds]", |count: usize| "deep;".repeat(count));
    assert_eq!(stack(&world, PID, one), format!("_start;main;helper;{cut};{}leaf", times(MAX_LISTED - 1)));
    let (outer, inner) = (times(MAX_LISTED - 6), times(4));
    assert_eq!(stack(&world, PID, two), format!("_start;main;helper;{cut};{outer}main;helper;{inner}leaf"));
    let apart = "[how these two parts go together is not known]";
    let native = "_start;main;helper;main;helper";
    assert_eq!(stack(&world, PID, any), format!("{cut};{}leaf;{apart};{native}", times(MAX_LISTED - 1)));
    let inner = times(MAX_LISTED - 1);
    assert_eq!(stack(&world, PID, called), format!("_start;main;helper;main;helper;{cut};{inner}leaf;main"));
    assert_eq!((account.stacks.complete, account.stacks.with_list, account.stacks.list_apart), (0, 3, 1));
    assert_eq!(account.stacks.cut["deeper than a sample holds"], 4);
}

#[test]
fn functions_of_the_runtimes_own_begin_no_loop_and_are_shown_once() {
    let mut world = World::new(options());
    let functions =
        [(16, "php::index.php"), (32, "php.internal::array_map"), (48, "php::A::leaf"), (64, "php.internal::md5")];
    interpreter(&mut world, &functions, EntryMark { least: 1, is_frame: true, ..EntryMark::default() }, Vec::new());
    let symbols = &mut world.machine.file_mut("/bin/app").unwrap().symbols;
    symbols.insert(MAIN - APP + 0x100, "zif_array_map".to_owned());
    symbols.insert(MAIN - APP + 0x200, "zif_md5".to_owned());
    let (map, md5) = (MAIN + 0x110, MAIN + 0x210);
    let of_thread = |world: &mut World, stack: &[u64], records: &[[u64; 2]], tid: u32| {
        world.run_for(1);
        let mut sample = raw_sample(world.now, PID, stack, None);
        sample.tid = Tid(tid);
        sample.listed = Some(Box::new(FrameList::new(records.to_vec(), ListEnd::Last, [0; 2])));
        world.give(&sample);
        (world.now.0 - ms(0).0) / MS
    };
    let top = |code: u64| [code, 1 << 56 | 0x70];
    let called = |code: u64| [code, 0x70];
    // What PHP puts before a magic method has no function.
    let nested = [LOOP + 0x20, map, LOOP + 0x30, MAIN, START];
    let inner = of_thread(&mut world, &nested, &[top(48), top(0), called(32), top(16)], PID);
    let unnamed =
        of_thread(&mut world, &[LOOP + 0x20, MAIN + 8, LOOP + 0x30, START], &[top(48), called(32), top(16)], PID);
    let own = of_thread(&mut world, &[md5, map, LOOP + 0x30, START], &[top(64), called(32), top(16)], PID);
    let other = of_thread(&mut world, &[MAIN + 8, START], &[top(48), top(16)], PID + 1);
    world.run_for(400);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, inner), "_start;main;helper;index.php;array_map;helper;A::leaf");
    assert_eq!(stack(&world, PID, unnamed), "_start;helper;index.php;array_map;main;helper;A::leaf");
    assert_eq!(stack(&world, PID, own), "_start;helper;index.php;array_map;md5;zif_array_map;zif_md5");
    assert_eq!(stack(&world, PID, other), "_start;main", "another thread has no part in it");
    assert_eq!((account.stacks.with_list, account.stacks.list_apart), (3, 0));
}
