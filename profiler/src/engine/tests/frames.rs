//! Frames that a runtime is asked about one by one, with words that samples bring along.

use std::num::NonZeroU32;
use std::time::Duration;

use jitprof_common::snapshot::SnapshotHeader;
use jitprof_common::table::Region;
use jitprof_common::taken::{MAX_SPECS, MAX_TAKEN, MAX_TAKES, MAX_WORDS};
use jitprof_common::units::{FileOffset, Pid};
use jitprof_common::unwind::PcKind;

use super::stories::*;
use crate::engine::border::{FrameWords, Order, Request, StackSnapshot, TakenWords};
use crate::engine::frames::{Asked, KEPT_FRAMES, MAX_FRAMES};
use crate::engine::world::machine::{file_mapping, memory_mapping};
use crate::engine::world::{Fate, MS, World, options, raw_sample};
use crate::engine::{EngineOptions, Input};
use crate::profile::{FrameId, Profile};
use crate::runtime::{Capture, DependsOn, FoundCode, FoundFrame, FrameAsk, TakeRead};

const PID: u32 = 100;
const OTHER: u32 = 101;
/// The runtime's own code that runs functions: `helper`, from which `main` is called here.
const OWN: u64 = HELPER - 0x10;
const OWN_SIZE: u64 = 0x800;

/// A process whose runtime has functions by a word of their frames, and lists none of them.
fn v8(world: &mut World, pid: u32, functions: &[(u64, &str)]) {
    app(world, pid);
    let runtime = &mut world.machine.processes.get_mut(&pid).unwrap().runtime;
    runtime.name = Some("V8 11.3.244".to_owned());
    let slots = TakeRead { base: None, offset: -40, words: 5, to: 0, tagged: false };
    let code = vec![(avma(OWN), OWN_SIZE)];
    runtime.capture = Some(Capture { reads: vec![slots], key: 1, code, ..Capture::default() });
    runtime.functions = functions.iter().map(|(word, name)| (*word, (*name).to_owned())).collect();
}

/// A sample now, with these words of its frames; returns when that was.
pub(super) fn sample(world: &mut World, stack: &[u64], words: &[(u16, u64)]) -> u64 {
    world.run_for(1);
    let mut sample = raw_sample(world.now, PID, stack, None);
    let frame = |(index, word): &(u16, u64)| {
        let mut words = [0; MAX_WORDS];
        words[3] = *word;
        FrameWords { index: *index, reads: 1, words }
    };
    sample.taken = Some(Box::new(TakenWords { registers: None, frames: words.iter().map(frame).collect() }));
    world.give(&sample);
    (world.now.0 - ms(0).0) / MS
}

/// What was asked about frames, request by request.
pub(super) fn asked(world: &World) -> Vec<Vec<FrameAsk>> {
    let of =
        |what: &Request| if let Request::DescribeFrames { frames, .. } = what { Some(frames.clone()) } else { None };
    world.asked.iter().filter_map(of).collect()
}

pub(super) fn hold_answers(world: &mut World) {
    let held = |what: &Request| matches!(what, Request::DescribeFrames { .. });
    world.decide = Box::new(move |what| if held(what) { Fate::Hold } else { Fate::Answer });
}

#[test]
fn frames_are_named_by_words_of_theirs_and_asked_about_once() {
    let mut world = World::new(options());
    v8(&mut world, PID, &[(1, "JS:*outer a.js:1:1;JS:*inlined a.js:2:2"), (2, "JS:~run a.js:9:1")]);
    world.follow(&[PID]);
    let takes = |world: &World, at| world.kernel.region(PID, at).unwrap().flags & Region::TAKE != 0;
    let around = [JIT, OWN - 1, OWN, OWN + OWN_SIZE - 1, OWN + OWN_SIZE, MAIN].map(|at| takes(&world, at));
    assert_eq!(around, [true, false, true, true, false, false]);
    let spec = world.kernel.specs[&world.kernel.takes[&Pid(PID)]];
    assert_eq!((spec.reads[0].offset, spec.reads[0].words, spec.reads[1].words), (-40, 5, 0));
    let stack_of = [JIT + 8, HELPER + 8, MAIN, START];
    let times = [(); 3].map(|()| sample(&mut world, &stack_of, &[(0, 1), (1, 2)]));
    world.run_for(300);
    assert_eq!(world.engine.progress().waiting, 0);
    let account = world.finish().account.clone();
    for time in times {
        assert_eq!(stack(&world, PID, time), "_start;main;run;outer;inlined");
    }
    let asked = asked(&world);
    assert_eq!(asked.iter().map(Vec::len).collect::<Vec<_>>(), [2]);
    assert_eq!((asked[0][0].in_module, asked[0][1].in_module), (None, Some(avma(HELPER + 8))));
    assert_eq!((account.jit.named.runtime, account.jit.leaves_named, account.jit.unnamed_total()), (6, 3, 0));
    let text = account.to_string();
    assert!(text.contains("app (100): V8 11.3.244, 6 frames named in 1 looks of 2 ms"), "{text}");
}

#[test]
fn the_caller_of_what_generated_code_is_left_by_is_asked_about_as_that() {
    let mut world = World::new(options());
    v8(&mut world, PID, &[(2, "JS:*run a.js:9:1")]);
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    runtime.capture.as_mut().unwrap().left_by = vec![(avma(OWN), 0x10)];
    world.follow(&[PID]);
    // Behind what it is, and a caller's caller: both are asked about once.
    sample(&mut world, &[OWN + 4, JIT + 8, MAIN, START], &[(1, 2)]);
    sample(&mut world, &[OWN + 0x14, JIT + 8, MAIN, START], &[(1, 2)]);
    sample(&mut world, &[OWN + 4, JIT + 0x20, JIT + 8, MAIN, START], &[(2, 2)]);
    world.run_for(300);
    let is_left: Vec<bool> = asked(&world).concat().iter().map(|ask| ask.is_left).collect();
    assert_eq!(is_left, [true, false]);
}

#[test]
fn of_more_frames_than_words_are_taken_of_those_in_compiled_code_are_known_by_others_at_the_same_place() {
    let mut world = World::new(options());
    v8(&mut world, PID, &[(1, "JS:*walk a.js:1:1"), (2, "JS:~entry a.js:9:1")]);
    world.follow(&[PID]);
    // A hundred calls of itself in compiled code, and forty in one that the interpreter has made for all functions.
    let compiled = [JIT + 8; MAX_TAKEN + 8];
    let stack_of = |place: u64| [&compiled[..], &[place; 10], &[MAIN, START]].concat();
    let outermost = u16::try_from(compiled.len() + 9).unwrap();
    let words: Vec<(u16, u64)> = (0..u16::try_from(MAX_TAKEN).unwrap() - 1).map(|at| (at, 1)).collect();
    let with = |last: u64| [&words[..], &[(outermost, last)]].concat();
    let nested = sample(&mut world, &stack_of(JIT + 0x40), &with(2));
    // The same, in the runtime's own code; and the words of one frame are none, as it has another place by now.
    let in_module = sample(&mut world, &stack_of(OWN + 0x18), &with(2));
    let misplaced = sample(&mut world, &stack_of(JIT + 0x40), &[&words[..], &[(outermost + 1, 2)]].concat());
    // Fewer had words: of the others there is another reason.
    let few = sample(&mut world, &stack_of(JIT + 0x40), &words[..8]);
    world.run_for(300);
    let account = world.finish().account.clone();
    let count = |at: u64, name: &str| stack(&world, PID, at).split(';').filter(|frame| *frame == name).count();
    assert_eq!((count(nested, "walk"), count(nested, "entry")), (compiled.len(), 1));
    assert_eq!(count(nested, "[JIT code without a name]"), 9, "an interpreter's place is no function's");
    assert_eq!(
        (count(in_module, "walk"), count(in_module, "entry"), count(in_module, "helper")),
        (compiled.len(), 1, 9)
    );
    assert_eq!((count(misplaced, "walk"), count(misplaced, "entry")), (compiled.len(), 0));
    assert_eq!((count(few, "walk"), count(few, "entry")), (8, 0));
    let unnamed = u64::try_from(9 + 9 + 10 + compiled.len() + 10 - 8).unwrap();
    let reasons: Vec<_> = account.jit.unnamed.into_iter().collect();
    assert_eq!(reasons, [("no words of the frame were taken", unnamed)]);
}

#[test]
fn a_copy_of_the_runtime_s_own_code_is_looked_at_as_the_first() {
    let mut world = World::new(options());
    v8(&mut world, PID, &[(2, "JS:~run a.js:9:1")]);
    let mut copy = mapped(&world, 0x5000_0000, "/bin/app");
    (copy.end, copy.file_offset) = (avma(0x5000_2000), FileOffset(0x2000));
    world.machine.mappings_mut(PID).unwrap().push(copy);
    world.follow(&[PID]);
    let takes = |at| world.kernel.region(PID, at).unwrap().flags & Region::TAKE != 0;
    assert_eq!([0x5000_0000, 0x5000_0000 + OWN_SIZE].map(takes), [true, false]);
    let at = sample(&mut world, &[JIT + 8, 0x5000_0018, MAIN, START], &[(0, 0), (1, 2)]);
    world.run_for(300);
    let account = world.finish().account.clone();
    assert_eq!(asked(&world)[0][1].in_module, Some(avma(OWN + 0x18)));
    // What the runtime has made for itself, in memory, has no name.
    assert_eq!(stack(&world, PID, at), "_start;main;run;[JIT code without a name]");
    let reasons: Vec<_> = account.jit.unnamed.into_iter().collect();
    assert_eq!(reasons, [("code that the runtime made for itself", 1)]);
}

#[test]
fn a_sample_waits_for_what_its_frames_are_and_asks_again_when_that_is_old() {
    let mut world = World::new(options());
    v8(&mut world, PID, &[(2, "JS:*first a.js:9:1")]);
    world.follow(&[PID]);
    hold_answers(&mut world);
    let first = sample(&mut world, &[JIT + 8, MAIN, START], &[(0, 2)]);
    world.run_for(500);
    assert_eq!(world.engine.progress().waiting, 1);
    world.release();
    world.run_for(200);
    assert_eq!(world.engine.progress().waiting, 0);
    let soon = sample(&mut world, &[JIT + 8, MAIN, START], &[(0, 2)]);
    world.run_for(1500);
    assert_eq!(asked(&world).len(), 1);
    // The code has been replaced since, and its function has the same words.
    world.machine.processes.get_mut(&PID).unwrap().runtime.functions.clear();
    let late = sample(&mut world, &[JIT + 8, MAIN, START], &[(0, 2)]);
    world.run_for(150);
    world.release();
    world.run_for(200);
    let account = world.finish().account.clone();
    assert_eq!(asked(&world).len(), 2);
    assert_eq!([first, soon].map(|at| stack(&world, PID, at)), ["_start;main;first", "_start;main;first"]);
    assert_eq!(stack(&world, PID, late), "_start;main;[JIT code without a name]");
    assert_eq!(account.jit.unnamed.into_iter().collect::<Vec<_>>(), [("replaced before it was looked at", 1)]);
}

#[test]
fn a_frame_without_a_name_is_asked_about_again_soon() {
    let mut world = World::new(options());
    v8(&mut world, PID, &[]);
    world.follow(&[PID]);
    let first = sample(&mut world, &[JIT + 8, MAIN, START], &[(0, 2)]);
    world.run_for(300);
    // What made the function known was looked at with it for the first time.
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    runtime.functions.insert(2, "JS:*late a.js:9:1".to_owned());
    let second = sample(&mut world, &[JIT + 8, MAIN, START], &[(0, 2)]);
    world.run_for(300);
    world.finish();
    let stacks = [first, second].map(|at| stack(&world, PID, at));
    assert_eq!(stacks, ["_start;main;[JIT code without a name]", "_start;main;late"]);
}

#[test]
fn what_may_be_in_the_making_is_asked_about_again_before_it_is_believed() {
    let mut world = World::new(options());
    v8(&mut world, PID, &[(2, "py::made:/a.py"), (4, "py::before:/a.py")]);
    world.machine.processes.get_mut(&PID).unwrap().runtime.unfinished = [2, 4].into();
    world.follow(&[PID]);
    hold_answers(&mut world);
    let first = sample(&mut world, &[JIT + 8, JIT + 0x20, MAIN, START], &[(0, 2), (1, 4)]);
    world.run_for(100);
    assert_eq!(asked(&world).len(), 1);
    world.release_one(0);
    world.run_for(100);
    assert_eq!((asked(&world).len(), world.engine.progress().waiting), (2, 1), "it is not believed at once");
    // What was being made is what it is to be now, and has the memory of what was there before.
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    runtime.functions.insert(4, "py::after:/a.py".to_owned());
    world.release();
    world.run_for(200);
    assert_eq!((asked(&world).len(), world.engine.progress().waiting), (2, 0), "once more is enough");
    let last = sample(&mut world, &[JIT + 0x20, MAIN, START], &[(0, 2)]);
    let account = world.finish().account.clone();
    let stacks = [first, last].map(|at| stack(&world, PID, at));
    assert_eq!(stacks, ["_start;main;[JIT code without a name];made", "_start;main;made"]);
    assert_eq!(account.jit.unnamed.into_iter().collect::<Vec<_>>(), [("replaced before it was looked at", 1)]);
}

#[test]
fn an_answer_is_found_again_whatever_the_words_are_that_it_does_not_depend_on() {
    let mut world = World::new(options());
    v8(&mut world, PID, &[(2, "JS:*first a.js:9:1"), (6, "JS:*second a.js:10:1")]);
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    runtime.depends_on = Some(DependsOn { words: 1 << 3, tags: 1 << 4, registers: 0 });
    world.follow(&[PID]);
    let sample = |world: &mut World, [spilled, context, function]: [u64; 3]| {
        world.run_for(1);
        let mut sample = raw_sample(world.now, PID, &[JIT + 8, MAIN, START], None);
        let mut words = [0; MAX_WORDS];
        (words[0], words[4], words[3]) = (spilled, context, function);
        let frames = vec![FrameWords { index: 0, reads: 1, words }];
        sample.taken = Some(Box::new(TakenWords { registers: Some([spilled; 3]), frames }));
        world.give(&sample);
        (world.now.0 - ms(0).0) / MS
    };
    let first = sample(&mut world, [0x77, 0x1001, 2]);
    world.run_for(200);
    hold_answers(&mut world);
    let again = [0x78, 0x79].map(|spilled| sample(&mut world, [spilled, 0x2001, 2]));
    world.run_for(200);
    assert_eq!((asked(&world).len(), world.engine.progress().waiting), (1, 0), "nothing is to be asked");
    // Another function, and a word of another kind.
    let other = sample(&mut world, [0x77, 0x1001, 6]);
    let tagged = sample(&mut world, [0x77, 0x1002, 2]);
    world.run_for(50);
    assert_eq!(world.engine.progress().waiting, 2);
    world.release();
    world.run_for(1200);
    let late = sample(&mut world, [0x80, 0x1001, 2]);
    world.run_for(100);
    world.release();
    world.run_for(200);
    world.finish();
    let asked: Vec<u64> = asked(&world).iter().flatten().map(|ask| ask.words[0]).collect();
    assert_eq!(asked, [0x77, 0x77, 0x77, 0x80], "an old answer is asked for anew, with all words");
    for (at, name) in [(first, "first"), (again[0], "first"), (again[1], "first"), (other, "second"), (tagged, "first")]
    {
        assert_eq!(stack(&world, PID, at), format!("_start;main;{name}"));
    }
    assert_eq!(stack(&world, PID, late), "_start;main;first");
}

#[test]
fn a_dump_is_believed_and_no_words_are_taken() {
    let mut world = World::new(options());
    v8(&mut world, PID, &[(2, "JS:*read a.js:9:1")]);
    world.follow(&[PID]);
    assert!(world.kernel.takes.contains_key(&Pid(PID)));
    begin_dump(&mut world, PID);
    world.run_for(200);
    assert!(world.kernel.takes.is_empty());
    assert_eq!(world.kernel.region(PID, JIT).unwrap().flags & Region::TAKE, 0);
    announce(&mut world, PID, (JIT, 64, "JS:*announced a.js:9:1"));
    world.run_for(200);
    let at = sample(&mut world, &[JIT + 8, MAIN, START], &[(0, 2)]);
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;announced");
    assert!(asked(&world).is_empty());
}

#[test]
fn what_a_dump_names_is_compared_with_what_the_runtime_says_if_that_is_asked_for() {
    let mut world = World::new(EngineOptions { verify_names: true, ..options() });
    v8(
        &mut world,
        PID,
        &[(2, "JS:*same a.js:9:1;JS:*inlined a.js:1:1"), (4, "JS:^same a.js:9:1"), (6, "JS:*other a.js:3:1")],
    );
    world.follow(&[PID]);
    begin_dump(&mut world, PID);
    world.run_for(200);
    announce(&mut world, PID, (JIT, 64, "JS:*same a.js:9:1"));
    world.run_for(300);
    // The same, of another tier, another function; one that was replaced, and one that is in no dump.
    for (word, count) in [(2, 4), (4, 1), (6, 2), (8, 1)] {
        for _ in 0..count {
            sample(&mut world, &[JIT + 8, MAIN, START], &[(0, word)]);
        }
    }
    let at = sample(&mut world, &[JIT + 0x1000, MAIN, START], &[(0, 6)]);
    world.run_for(500);
    let account = world.finish().account.clone();
    let verified = account.verified.clone().unwrap();
    assert_eq!((verified.agreed, verified.disagreed, verified.only_announced), (4, 3, 2));
    assert_eq!(verified.examples.len(), 2, "{:?}", verified.examples);
    assert_eq!(verified.examples[0].listed, "same (Baseline)");
    // A dump is believed, and what is in none is named by the runtime.
    assert_eq!((account.jit.named.jitdump, account.jit.named.runtime), (8, 1));
    assert_eq!(stack(&world, PID, at), "_start;main;other");
}

/// A Node whose dump has announced `outer` at the begin of its code.
fn dumping_node(world: &mut World, functions: &[(u64, &str)]) {
    v8(world, PID, functions);
    world.machine.processes.get_mut(&PID).unwrap().read.exe = Some("/usr/bin/node".to_owned());
    world.follow(&[PID]);
    begin_dump(world, PID);
    world.run_for(200);
    announce(world, PID, (JIT, 64, "JS:*outer a.js:1:1"));
    world.run_for(300);
}

const INLINED: &str = "JS:*outer a.js:1:1@4;JS:*inlined a.js:20:2@22";

#[test]
fn functions_that_were_inlined_into_code_that_a_dump_names_are_frames_with_lines() {
    let mut world = World::new(options());
    dumping_node(&mut world, &[(3, INLINED), (2, "JS:*outer a.js:1:1@5"), (4, "JS:*outer a.js:1:1")]);
    let takes = |at| world.kernel.region(PID, at).unwrap().flags & Region::TAKE != 0;
    assert_eq!([JIT, OWN].map(takes), [true, false], "nothing is inlined into the runtime's own code");
    let times = [3, 2, 4, 3].map(|word| sample(&mut world, &[JIT + 8, MAIN, START], &[(0, word)]));
    world.run_for(300);
    let account = world.finish().account.clone();
    let inlined = "_start:0;main:0;outer:4;inlined:22";
    // Where the runtime knows no line, it is the one that the dump says.
    let expected = [inlined, "_start:0;main:0;outer:5", "_start:0;main:0;outer:1", inlined];
    assert_eq!(times.map(|at| lines(&world, at)), expected);
    assert_eq!(asked(&world).concat().len(), 3, "each is asked about once");
    assert_eq!((account.jit.named.jitdump, account.jit.named.runtime, account.jit.leaves_named), (4, 0, 4));
    assert!(account.jit.not_looked_into.is_empty() && account.jit.unnamed.is_empty());
}

#[test]
fn where_the_dump_has_the_line_already_the_runtime_has_the_column() {
    let mut world = World::new(options());
    dumping_node(&mut world, &[(3, "JS:*outer a.js:1:1@1:40"), (2, "JS:*outer a.js:1:1")]);
    let times = [3, 2].map(|word| sample(&mut world, &[JIT + 8, MAIN, START], &[(0, word)]));
    world.run_for(300);
    let profile = &world.finish().profile;
    let place = |at| {
        let row = profile.rows().into_iter().find(|row| row.time == ms(at)).unwrap();
        let (_, frame) = profile.pop(row.stack).unwrap();
        profile.frame(frame).source.map(|source| (source.line, source.column.map(NonZeroU32::get)))
    };
    assert_eq!(times.map(place), [Some((1, Some(40))), Some((1, None))]);
}

#[test]
fn who_has_made_code_since_his_program_was_read_is_asked_beside_his_dump_too() {
    let mut world = World::new(options());
    v8(&mut world, PID, &[(3, INLINED)]);
    world.machine.processes.get_mut(&PID).unwrap().read.exe = Some("/opt/app/electron".to_owned());
    world.machine.mappings_mut(PID).unwrap().retain(|mapping| mapping.start != avma(JIT));
    world.follow(&[PID]);
    world.run_for(200);
    map(&mut world, PID, memory_mapping(JIT, 0x10_0000));
    begin_dump(&mut world, PID);
    world.run_for(200);
    announce(&mut world, PID, (JIT, 64, "JS:*outer a.js:1:1"));
    world.sample(PID, &[JIT + 0x1008, MAIN, START]);
    world.run_for(500);
    let at = sample(&mut world, &[JIT + 8, MAIN, START], &[(0, 3)]);
    world.run_for(300);
    world.finish();
    assert_eq!(lines(&world, at), "_start:0;main:0;outer:4;inlined:22");
}

#[test]
fn a_dump_stands_alone_where_the_runtime_means_other_code_or_says_nothing() {
    let mut world = World::new(options());
    let other = "JS:*other a.js:3:1@4;JS:*inlined a.js:20:2@22";
    dumping_node(&mut world, &[(4, "JS:^outer a.js:1:1@4"), (5, "JS:*outer b.js:1:1@4"), (7, other)]);
    // Of another tier, of another script, another function, and one that is there no more.
    let times = [4, 5, 7, 9].map(|word| sample(&mut world, &[JIT + 8, MAIN, START], &[(0, word)]));
    world.run_for(300);
    let account = world.finish().account.clone();
    for at in times {
        assert_eq!(lines(&world, at), "_start:0;main:0;outer:1");
    }
    assert_eq!((account.jit.named.jitdump, account.jit.named.runtime), (4, 0));
    let reasons: Vec<_> = account.jit.not_looked_into.clone().into_iter().collect();
    assert_eq!(reasons, [("replaced before it was looked at", 4)]);
    let said = "; 4 without what was inlined there: replaced before it was looked at";
    assert!(account.to_string().contains(said), "{account}");
}

#[test]
fn nothing_is_asked_beside_a_dump_where_runtimes_are_not_read_or_do_not_answer() {
    for reads in [false, true] {
        let mut world = World::new(EngineOptions { read_runtime: reads, ..options() });
        // Whoever looks waits.
        world.decide = Box::new(|what| match what {
            Request::ReadRuntime { .. } => Fate::Stall,
            _ => Fate::Answer,
        });
        dumping_node(&mut world, &[(3, INLINED)]);
        assert!(world.kernel.takes.is_empty());
        let at = sample(&mut world, &[JIT + 8, MAIN, START], &[(0, 3)]);
        world.run_for(300);
        let account = world.finish().account.clone();
        assert_eq!(lines(&world, at), "_start:0;main:0;outer:1");
        assert!(asked(&world).is_empty() && account.jit.not_looked_into.is_empty());
    }
}

#[test]
fn of_frames_that_a_dump_names_those_in_optimised_code_alone_are_asked_about() {
    let mut world = World::new(options());
    dumping_node(&mut world, &[(2, "JS:+mid a.js:4:1"), (4, "JS:~new a.js:5:1")]);
    for (at, name) in [(0x100, "JS:^base a.js:2:1"), (0x200, "JS:~run a.js:3:1"), (0x300, "JS:+mid a.js:4:1")] {
        announce(&mut world, PID, (JIT + at, 64, name));
    }
    world.run_for(300);
    let stack_of = [JIT + 0x108, JIT + 0x208, JIT + 0x308, OWN + 0x18, JIT + 0x1008, MAIN, START];
    let at = sample(&mut world, &stack_of, &[(0, 2), (1, 2), (2, 2), (3, 2), (4, 4)]);
    world.run_for(300);
    world.finish();
    let asked: Vec<u64> = asked(&world).concat().iter().map(|ask| ask.pc.pc()).collect();
    assert_eq!(asked, [JIT + 0x308, JIT + 0x1008], "and what no dump names yet");
    assert_eq!(stack(&world, PID, at), "_start;main;new;helper;mid;run;base");
}

#[test]
fn what_a_dump_may_name_still_is_not_given_up_because_the_runtime_cannot_say_it() {
    let mut world = World::new(options());
    dumping_node(&mut world, &[]);
    let written_at = world.now;
    let at = sample(&mut world, &[JIT + 0x1008, MAIN, START], &[(0, 8)]);
    // As long as anybody waits for records that have names.
    world.run_for(31_000);
    assert_eq!(asked(&world).concat().len(), 1);
    let late = record(PID, written_at, (JIT + 0x1000, 64, "JS:*late a.js:9:1"));
    world.machine.append(&dump_path(PID), &late);
    world.run_for(300);
    world.finish();
    // Its callers were looked for without its rows.
    let stack = stack(&world, PID, at);
    assert!(stack.ends_with(";late"), "{stack}");
}

#[test]
fn of_more_frames_than_words_are_taken_of_in_code_that_a_dump_names_inlined_functions_are_known_by_others() {
    let mut world = World::new(options());
    dumping_node(&mut world, &[(3, INLINED)]);
    let recursive = [JIT + 8; MAX_TAKEN + 8];
    let words: Vec<(u16, u64)> = (1..=u16::try_from(MAX_TAKEN).unwrap()).map(|at| (at, 3)).collect();
    let at = sample(&mut world, &[&[HELPER + 8][..], &recursive, &[MAIN, START]].concat(), &words);
    world.run_for(300);
    world.finish();
    let stack = stack(&world, PID, at);
    assert_eq!(stack.matches(";outer;inlined").count(), recursive.len(), "{stack}");
}

#[test]
fn another_program_and_an_end_leave_nothing_behind() {
    let mut world = World::new(options());
    v8(&mut world, PID, &[(2, "JS:*before a.js:9:1")]);
    v8(&mut world, OTHER, &[]);
    world.follow(&[PID, OTHER]);
    // The same build takes the same words.
    assert_eq!((world.kernel.takes.len(), world.kernel.specs.len()), (2, 1));
    exit(&mut world, OTHER);
    world.machine.add_program("/bin/other", b"other", &[(0, "_start"), (0x1000, "main")]);
    let inode = world.machine.paths["/bin/other"];
    world.machine.processes.get_mut(&PID).unwrap().runtime = Default::default();
    let before = sample(&mut world, &[JIT + 8, MAIN, START], &[(0, 2)]);
    world.run_for(1);
    let mappings = vec![file_mapping(APP, 0x1_0000, inode, "/bin/other"), memory_mapping(JIT, 0x10_0000)];
    exec(&mut world, PID, "/bin/other", mappings);
    let behind = sample(&mut world, &[JIT + 8, MAIN, START], &[(0, 2)]);
    world.run_for(300);
    assert!(world.kernel.takes.is_empty());
    assert_eq!(world.engine.progress().waiting, 0);
    world.finish();
    // Nobody has answered in time, or it is another program's.
    for at in [before, behind] {
        assert_eq!(stack(&world, PID, at), "_start;main;[JIT code without a name]");
    }
}

#[test]
fn a_process_that_ends_or_holds_up_its_reader_is_resolved_without() {
    let (ended, silent) = ("the process ended before it was looked at", "there was no answer in time");
    for (fate, ends, why) in [(Fate::Stall, true, silent), (Fate::Hold, true, ended), (Fate::Stall, false, silent)] {
        let mut world = World::new(options());
        v8(&mut world, PID, &[(2, "JS:*held a.js:9:1")]);
        world.follow(&[PID]);
        let mut fate = Some(fate);
        world.decide = Box::new(move |what| match what {
            Request::DescribeFrames { .. } => fate.take().unwrap_or(Fate::Stall),
            _ => Fate::Answer,
        });
        let at = sample(&mut world, &[JIT + 8, MAIN, START], &[(0, 2)]);
        world.run_for(150);
        if ends {
            exit(&mut world, PID);
        }
        world.run_for(300);
        assert_eq!(world.engine.progress().waiting, 0);
        let account = world.finish().account.clone();
        assert_eq!(stack(&world, PID, at), "_start;main;[JIT code without a name]");
        let reasons: Vec<_> = account.jit.unnamed.into_iter().collect();
        assert_eq!(reasons, [(why, 1)], "{fate:?} {ends}");
    }
}

#[test]
fn a_frame_that_was_sampled_before_its_words_were_taken_says_so() {
    let mut world = World::new(options());
    v8(&mut world, PID, &[(2, "JS:*run a.js:9:1")]);
    world.decide = Box::new(|what| if matches!(what, Request::ReadRuntime { .. }) { Fate::Hold } else { Fate::Answer });
    world.follow(&[PID]);
    let early = sample(&mut world, &[JIT + 8, MAIN, START], &[]);
    world.release();
    world.run_for(100);
    let without = sample(&mut world, &[JIT + 8, MAIN, START], &[]);
    world.run_for(300);
    let account = world.finish().account.clone();
    for at in [early, without] {
        assert_eq!(stack(&world, PID, at), "_start;main;[JIT code without a name]");
    }
    let reasons: Vec<_> = account.jit.unnamed.into_iter().collect();
    assert_eq!(reasons, [("no words of the frame were taken", 1), ("sampled before its runtime was looked at", 1)]);
}

#[test]
fn a_frame_that_was_sampled_before_its_words_were_asked_for_says_so_where_there_was_no_room_either() {
    let mut world = World::new(options());
    world.kernel.refuses = usize::MAX;
    v8(&mut world, PID, &[(2, "JS:*run a.js:9:1")]);
    world.decide = Box::new(|what| if matches!(what, Request::ReadRuntime { .. }) { Fate::Hold } else { Fate::Answer });
    world.follow(&[PID]);
    assert!(world.kernel.lists.is_empty() && world.kernel.refuses < usize::MAX);
    sample(&mut world, &[JIT + 8, MAIN, START], &[]);
    world.kernel.refuses = 0;
    world.release();
    world.run_for(300);
    assert!(world.kernel.lists.contains_key(&Pid(PID)) && world.kernel.takes.contains_key(&Pid(PID)));
    sample(&mut world, &[JIT + 8, MAIN, START], &[]);
    world.run_for(300);
    let reasons: Vec<_> = world.finish().account.clone().jit.unnamed.into_iter().collect();
    assert_eq!(reasons, [("no words of the frame were taken", 1), ("sampled before its runtime was looked at", 1)]);
}

#[test]
fn words_that_others_take_the_place_of_before_they_are_in_force_begin_with_the_first() {
    let mut world = World::new(options());
    v8(&mut world, PID, &[(2, "JS:*run a.js:9:1")]);
    world.machine.processes.get_mut(&PID).unwrap().runtime.has_lists = true;
    world.holds_publications = true;
    world.follow(&[PID]);
    world.run_for(100);
    let offset = |world: &World| world.kernel.specs[&world.kernel.takes[&Pid(PID)]].reads[0].offset;
    let first = *world.unconfirmed.last().unwrap();
    assert_eq!(offset(&world), -40);
    // The next reading says something else of the same code.
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    runtime.has_lists = false;
    runtime.capture.as_mut().unwrap().reads[0].offset = -48;
    sample(&mut world, &[JIT + 8, MAIN, START], &[]);
    world.run_for(300);
    assert_eq!(offset(&world), -48);
    world.feed(Input::Published { publication: first, at: world.now });
    sample(&mut world, &[JIT + 8, MAIN, START], &[]);
    world.run_for(300);
    world.holds_publications = false;
    let reasons: Vec<_> = world.finish().account.clone().jit.unnamed.into_iter().collect();
    assert_eq!(reasons, [("no words of the frame were taken", 1), ("sampled before its runtime was looked at", 1)]);
}

#[test]
fn a_kernel_that_does_not_take_it_takes_no_words() {
    let mut world = World::new(options());
    world.kernel.refuses = 8;
    v8(&mut world, PID, &[]);
    world.follow(&[PID]);
    assert!(world.kernel.takes.is_empty());
    let at = sample(&mut world, &[JIT + 8, MAIN, START], &[]);
    world.run_for(300);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "_start;main;[JIT code without a name]");
    let reasons: Vec<_> = account.jit.unnamed.into_iter().collect();
    assert_eq!(reasons, [("no words of the frame were taken", 1)]);
}

#[test]
fn what_the_kernel_has_not_taken_is_tried_again_a_while_later() {
    let mut world = World::new(options());
    world.kernel.refuses = 8;
    v8(&mut world, PID, &[(2, "JS:~run a.js:9:1")]);
    world.follow(&[PID]);
    world.run_for(4000);
    assert!((world.kernel.takes.is_empty(), world.kernel.refuses) == (true, 0), "it is left alone for a while");
    world.run_for(4000);
    assert!(world.kernel.takes.contains_key(&Pid(PID)));
    let at = sample(&mut world, &[JIT + 8, MAIN, START], &[(0, 2)]);
    world.run_for(300);
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;run");
}

#[test]
fn no_user_takes_the_room_for_words_from_the_others() {
    let mut world = World::new(options());
    let pids: Vec<u32> = (0..MAX_SPECS + 50).map(|at| 1000 + at).collect();
    for pid in &pids {
        v8(&mut world, *pid, &[]);
        let made = world.machine.processes.get_mut(pid).unwrap();
        made.read.payer = Some(1000);
        // Each says that its frames are other ones.
        made.runtime.capture.as_mut().unwrap().reads[0].offset = -(*pid as i32);
    }
    world.follow(&pids);
    world.run_for(200);
    let greedy = world.kernel.specs.len() as u32;
    assert!((MAX_SPECS / 2..MAX_SPECS * 3 / 4).contains(&greedy), "{greedy}");
    v8(&mut world, PID, &[]);
    world.follow(&[PID]);
    world.run_for(200);
    assert!(world.kernel.takes.contains_key(&Pid(PID)));
    // What nobody uses any more makes room for the next ones.
    pids.iter().for_each(|pid| exit(&mut world, *pid));
    world.run_for(8000);
    assert_eq!(world.kernel.takes.len(), 1);
    world.finish();
}

#[test]
fn no_more_frames_are_kept_than_may_be_and_few_when_nothing_waits() {
    let mut world = World::new(options());
    v8(&mut world, PID, &[]);
    world.follow(&[PID]);
    hold_answers(&mut world);
    for round in 0..MAX_FRAMES as u64 / 64 + 2 {
        let words: Vec<(u16, u64)> = (0..64).map(|index| (index, 2 + round * 64 + u64::from(index))).collect();
        sample(&mut world, &[JIT + 8; 64], &words);
    }
    world.run_for(200);
    assert_eq!(world.engine.frames_of(PID), MAX_FRAMES);
    assert!(asked(&world).iter().all(|frames| frames.len() <= 1024));
    world.decide = Box::new(|_| Fate::Answer);
    world.release();
    world.run_for(3000);
    assert_eq!(world.engine.progress().waiting, 0);
    let last = sample(&mut world, &[JIT + 8, MAIN, START], &[(0, 2)]);
    world.run_for(300);
    assert!(world.engine.frames_of(PID) <= KEPT_FRAMES);
    assert!(world.finish().account.jit.unnamed.contains_key("replaced before it was looked at"));
    assert!(stack(&world, PID, last).ends_with("[JIT code without a name]"));
}

#[test]
fn an_answer_that_is_always_on_its_way_keeps_no_frames_of_samples_that_are_named() {
    let mut world = World::new(options());
    let words = |from: u64| (0..64).map(move |index: u16| (index, from + u64::from(index)));
    let rounds = MAX_FRAMES as u64 / 64 + 8;
    let functions: Vec<(u64, &str)> = (0..rounds * 64).map(|word| (2 + word, "JS:*moved a.js:9:1")).collect();
    v8(&mut world, PID, &functions);
    world.follow(&[PID]);
    hold_answers(&mut world);
    world.run_for(50);
    let samples: Vec<u64> = (0..rounds)
        .map(|round| {
            let words: Vec<(u16, u64)> = words(2 + round * 64).collect();
            let at = sample(&mut world, &[JIT + 8; 64], &words);
            world.run_for(99);
            // Half way between two ticks: what was asked before the last one is answered after it.
            world.release();
            at
        })
        .collect();
    assert!(world.engine.frames_of(PID) < MAX_FRAMES, "{}", world.engine.frames_of(PID));
    world.run_for(300);
    world.release();
    world.run_for(300);
    let account = world.finish().account.clone();
    let frames = samples.len() as u64 * 64;
    assert_eq!((account.jit.named.runtime, account.jit.unnamed_total()), (frames, 0), "{:?}", account.jit.unnamed);
}

#[test]
fn all_processes_of_a_user_together_have_as_much_looked_at_as_one_may() {
    // Looks at frames in ten seconds in which there is something new all the time; each takes a millisecond.
    let looks = |count: u32| {
        let mut world = World::new(options());
        world.continuous(1000, 300);
        let pids: Vec<u32> = (0..count).map(|at| 1000 + at).collect();
        for pid in &pids {
            v8(&mut world, *pid, &[]);
            world.machine.processes.get_mut(pid).unwrap().read.payer = Some(1000);
        }
        world.follow(&pids);
        for round in 0..500 {
            for pid in &pids {
                let mut sample = raw_sample(world.now, *pid, &[JIT + 8, MAIN, START], None);
                let mut words = [0; MAX_WORDS];
                words[3] = 2 + round;
                let frames = vec![FrameWords { index: 0, reads: 1, words }];
                sample.taken = Some(Box::new(TakenWords { registers: None, frames }));
                world.give(&sample);
            }
            world.run_for(20);
        }
        let looks = asked(&world).len();
        world.finish();
        looks
    };
    let (one, sixteen) = (looks(1), looks(16));
    assert!(one >= 20 && (16..=500).contains(&sixteen), "{one} {sixteen}");
}

#[test]
fn words_of_more_processes_than_the_kernel_has_room_for_are_not_taken() {
    let mut world = World::new(options());
    let pids: Vec<u32> = (0..MAX_TAKES + 1).map(|at| 1000 + at).collect();
    pids.iter().for_each(|pid| v8(&mut world, *pid, &[]));
    world.follow(&pids);
    world.run_for(200);
    assert_eq!(world.kernel.takes.len(), MAX_TAKES as usize);
    let remarks = world.finish().account.remarks.clone();
    assert_eq!(remarks.iter().filter(|remark| remark.contains("too many processes")).count(), 1, "{remarks:?}");
}

#[test]
fn frames_of_a_walk_that_was_finished_anew_keep_their_words() {
    let follow = |before: &[u64], after: &[u64], until: usize| {
        let numbered = (0..before.len()).map(|at| (at as u16, at as u32 + 100)).collect();
        let mut asked = Asked::of(numbered);
        asked.follow((before, after), until);
        asked.frames.to_vec()
    };
    // A caller was left out: it has no words.
    assert_eq!(follow(&[9, 7, 7, 5], &[9, 7, 7, 7, 5], 0), [(0, 100), (2, 101), (3, 102), (4, 103)]);
    assert_eq!(follow(&[9, 7, 5], &[9, 6, 5], 0), [(0, 100), (2, 102)]);
    assert_eq!(follow(&[9, 7, 5], &[9, 7], 0), [(0, 100)]);
    assert_eq!(follow(&[9, 7, 5], &[9, 7, 5, 4], 1), [(0, 100), (1, 101)]);
}

#[test]
fn code_that_frames_are_in_is_read_for_how_to_come_to_its_caller() {
    let mut world = World::new(options());
    v8(&mut world, PID, &[(2, "JS:*leaf a.js:9:1")]);
    put(&mut world, PID, JIT, code(64));
    put(&mut world, PID, JIT + 0x1000, code(64));
    let places = |world: &mut World, places: &[(u64, u32)]| {
        let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
        runtime.places = places.iter().map(|(start, size)| (avma(*start), *size)).collect();
    };
    places(&mut world, &[(JIT, 64)]);
    world.follow(&[PID]);
    // Interrupted before it has made its frame: the word at the stack pointer leads to its caller, of which the walk by
    // frame pointer knows nothing.
    let interrupted = |world: &mut World, pc: u64| {
        world.run_for(1);
        let words: Vec<u8> = [MAIN, 0, START, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let snapshot = StackSnapshot {
            registers: [pc, 0x7f00_0000, 0x7f00_0008, 0],
            kind: SnapshotHeader::code_of(PcKind::Instruction),
            index: 0,
            base: 0x7f00_0000,
            bytes: words.into(),
        };
        let mut sample = raw_sample(world.now, PID, &[pc, START], Some(snapshot));
        let mut words = [0; MAX_WORDS];
        words[3] = 2;
        let frames = vec![FrameWords { index: 0, reads: 1, words }];
        sample.taken = Some(Box::new(TakenWords { registers: None, frames }));
        world.give(&sample);
        (world.now.0 - ms(0).0) / MS
    };
    let at = interrupted(&mut world, JIT);
    world.run_for(400);
    let cfa = |world: &World| -> Vec<i64> {
        world.engine.rows_of(PID, &[JIT, JIT + 1]).iter().map(|row| row.cfa_offset_bytes()).collect()
    };
    assert_eq!(cfa(&world), [8, 16]);
    assert_eq!(world.engine.progress().waiting, 0);
    // Other code is there now.
    places(&mut world, &[(JIT + 32, 64)]);
    world.run_for(1500);
    interrupted(&mut world, JIT);
    world.run_for(150);
    assert!(cfa(&world).is_empty());
    world.finish();
    assert_eq!(stack(&world, PID, at), "_start;main;leaf");
}

/// The number of the piece of code at `JIT`.
const NUMBER: u32 = 7;

/// A JVM with one piece of code, into which another method was inlined at one of its addresses.
fn jvm(world: &mut World, listed: &[(u64, &str)]) {
    app(world, PID);
    let library = world.machine.add_program("/lib/libjvm.so", b"jvm", &[(0, "JavaMain")]);
    world.machine.mappings_mut(PID).unwrap().push(file_mapping(0x50_0000, 0x1_0000, library, "/lib/libjvm.so"));
    let frame = FoundFrame::Sized { bytes: 32, complete_from: 8 };
    let name = "LA;outer()V [C2]".to_owned();
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    runtime.name = Some("HotSpot 17.0.15".to_owned());
    runtime.code =
        vec![FoundCode { start: avma(JIT), size: 64, name, frame, number: NUMBER, lines: None, registered: None }];
    runtime.listed = listed.iter().map(|(offset, names)| ((NUMBER, *offset), (*names).to_owned())).collect();
}

/// The frames of a sample with their lines, the outermost first.
pub(super) fn lines(world: &World, at: u64) -> String {
    lines_in(&world.recorded.as_ref().unwrap().profile, at)
}

fn lines_in(profile: &Profile, at: u64) -> String {
    let row = profile.rows().into_iter().find(|row| row.time == ms(at)).unwrap();
    let mut frames = Vec::new();
    profile.frames_of(row.stack, &mut frames);
    let frame = |id: &FrameId| {
        let frame = profile.frame(*id);
        format!("{}:{}", frame.name, frame.source.map_or(0, |source| source.line))
    };
    frames.iter().map(frame).collect::<Vec<_>>().join(";")
}

#[test]
fn functions_that_were_inlined_into_listed_code_are_frames_with_lines_and_asked_about_once() {
    let mut world = World::new(options());
    jvm(&mut world, &[(8, "LA;outer()V [C2]@5 > LA;inner()I [C2]@9"), (16, "LA;outer()V [C2]@6")]);
    world.follow(&[PID]);
    world.run_for(100);
    let inlined = sample(&mut world, &[JIT + 8, MAIN, START], &[]);
    let own = sample(&mut world, &[JIT + 16, MAIN, START], &[]);
    world.run_for(400);
    assert_eq!(world.engine.progress().waiting, 0);
    // Long after, the same answer holds: it is of this compilation.
    world.run_for(3000);
    let later = sample(&mut world, &[JIT + 8, MAIN, START], &[]);
    world.run_for(400);
    let account = world.finish().account.clone();
    for at in [inlined, later] {
        assert_eq!(lines(&world, at), "_start:0;main:0;A.outer()V:5;A.inner()I:9");
    }
    assert_eq!(lines(&world, own), "_start:0;main:0;A.outer()V:6");
    assert_eq!(asked(&world).iter().map(Vec::len).sum::<usize>(), 2);
    assert_eq!((account.jit.named.runtime, account.jit.not_looked_into.len(), account.jit.unnamed_total()), (3, 0, 0));
}

/// A JVM in a continuous recording, with windows of so long, into whose code a method was inlined at each address.
fn long_running_jvm(length_ms: u64, grace_ms: u64) -> World {
    let mut world = World::new(options());
    world.continuous(length_ms, grace_ms);
    let listed: Vec<(u64, &str)> = (0..0x1000).map(|offset| (offset, "LA;outer()V [C2]@5")).collect();
    jvm(&mut world, &listed);
    world.machine.processes.get_mut(&PID).unwrap().runtime.code[0].size = 0x1000;
    world.follow(&[PID]);
    world.run_for(100);
    world
}

/// Samples it ten times a second for so many of them, each time elsewhere in its code; returns when.
fn sample_elsewhere(world: &mut World, offsets: std::ops::Range<u64>) -> Vec<u64> {
    let one = |offset| {
        let at = sample(world, &[JIT + offset, MAIN, START], &[]);
        world.run_for(99);
        at
    };
    offsets.map(one).collect()
}

#[test]
fn a_continuous_recording_asks_about_listed_code_once_a_second_and_before_a_window_closes() {
    let mut world = long_running_jvm(5000, 900);
    let times = sample_elsewhere(&mut world, 8..298);
    // With each tick it would be 72 times.
    let looks = asked(&world).len();
    assert!((18..=48).contains(&looks), "{looks}");
    world.run_for(5000);
    assert_eq!(asked(&world).concat().len(), 290, "each address is asked about once");
    world.finish();
    for at in times {
        let window = &world.windows[usize::try_from(at / 5000).unwrap()];
        assert_eq!(lines_in(&window.profile, at), "_start:0;main:0;A.outer()V:5", "at {at} ms");
    }
}

#[test]
fn while_a_copy_is_waited_for_listed_code_is_asked_about_with_each_tick() {
    let mut world = long_running_jvm(60_000, 3000);
    sample_elsewhere(&mut world, 8..28);
    let calm = asked(&world).len();
    let (from, to) = (ms(0), ms(50_000));
    world.order(Order::Snapshot { token: 1, from, to, patience: Duration::ZERO });
    sample_elsewhere(&mut world, 28..48);
    let looks = asked(&world).len() - calm;
    assert!(calm <= 3 && looks >= 8, "{calm}, {looks}");
    world.finish();
}

#[test]
fn what_was_inlined_for_sure_and_what_only_maybe_are_told_apart_and_counted() {
    let mut world = World::new(options());
    let guess = "LA;outer()V [C2]@5 > LA;inner()I [C2]@0 > ?LA;deep()I [C2]@9";
    jvm(&mut world, &[(8, guess), (16, "LA;outer()V [C2]@6 > LA;inner()I [C2]@7")]);
    world.follow(&[PID]);
    world.run_for(100);
    let guessed = sample(&mut world, &[JIT + 8, MAIN, START], &[]);
    let sure = sample(&mut world, &[JIT + 16, MAIN, START], &[]);
    // Of a caller nobody asks whether it is a leaf.
    let called = sample(&mut world, &[MAIN, JIT + 8, START], &[]);
    world.run_for(400);
    let account = world.finish().account.clone();
    assert_eq!(lines(&world, guessed), "_start:0;main:0;A.outer()V:5;A.inner()I:0;?A.deep()I:9");
    assert_eq!(lines(&world, sure), "_start:0;main:0;A.outer()V:6;A.inner()I:7");
    assert_eq!(lines(&world, called), "_start:0;A.outer()V:5;A.inner()I:0;?A.deep()I:9;main:0");
    assert_eq!((account.jit.leaves_certain, account.jit.leaves_guessed), (1, 1));
    let text = account.to_string();
    assert!(
        text.contains(
            "; inlined methods are certain in 1 of 2 leaves (50.00 %), in the others one more may have run, marked ?"
        ),
        "{text}"
    );
}

#[test]
fn a_deoptimised_caller_is_named_without_a_line_and_what_may_have_been_inlined_is_marked_and_counted() {
    let mut world = World::new(options());
    jvm(&mut world, &[(8, "!"), (16, "LA;outer()V [C2]@6")]);
    world.follow(&[PID]);
    world.run_for(100);
    let deoptimised = sample(&mut world, &[MAIN, JIT + 8, START], &[]);
    let valid = sample(&mut world, &[MAIN, JIT + 16, START], &[]);
    world.run_for(400);
    // Long after, it is known without another question.
    world.run_for(3000);
    let later = sample(&mut world, &[MAIN, JIT + 8, START], &[]);
    world.run_for(400);
    let account = world.finish().account.clone();
    for at in [deoptimised, later] {
        assert_eq!(lines(&world, at), "_start:0;A.outer()V:0;?A.outer()V:0;main:0");
    }
    assert_eq!(lines(&world, valid), "_start:0;A.outer()V:6;main:0");
    assert_eq!(asked(&world).iter().map(Vec::len).sum::<usize>(), 2);
    assert_eq!((account.jit.named.runtime, account.jit.unnamed_total()), (3, 0));
    let said = "; 2 without what was inlined there: deoptimised, where it goes on is in the frame";
    assert!(account.to_string().contains(said), "{account}");
}

#[test]
fn what_is_known_of_older_code_is_not_said_of_a_sample_that_came_after_it() {
    let mut world = World::new(options());
    jvm(&mut world, &[(8, "LA;outer()V [C2]@5 > LA;inner()I [C2]@9")]);
    world.follow(&[PID]);
    world.run_for(100);
    let known = sample(&mut world, &[JIT + 8, MAIN, START], &[]);
    world.run_for(400);
    // Other code has taken its place, which is found out after the next sample has come.
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    runtime.code[0].number += 1;
    runtime.code[0].name = "LB;other()V [C2]".to_owned();
    runtime.listed.insert((NUMBER + 1, 8), "LB;other()V [C2]@70".to_owned());
    let between = sample(&mut world, &[JIT + 8, MAIN, START], &[]);
    world.run_for(3000);
    let later = sample(&mut world, &[JIT + 8, MAIN, START], &[]);
    world.run_for(400);
    let account = world.finish().account.clone();
    assert_eq!(lines(&world, known), "_start:0;main:0;A.outer()V:5;A.inner()I:9");
    assert_eq!(lines(&world, later), "_start:0;main:0;B.other()V:70");
    assert_eq!(lines(&world, between), "_start:0;main:0;[JIT code without a name]:0");
    assert_eq!((account.jit.named.runtime, account.jit.unnamed_total()), (2, 1));
}

#[test]
fn code_that_is_gone_before_it_is_looked_into_has_its_own_name_and_no_line() {
    let mut world = World::new(options());
    jvm(&mut world, &[(8, "LA;outer()V [C2]@5 > LA;inner()I [C2]@9")]);
    world.follow(&[PID]);
    world.run_for(100);
    hold_answers(&mut world);
    let known = sample(&mut world, &[JIT + 8, MAIN, START], &[]);
    world.run_for(150);
    // Other code takes its place: the answer of the first is not that of the second.
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    runtime.code[0].number += 1;
    runtime.code[0].name = "LA;other()V [C2]".to_owned();
    runtime.listed.insert((NUMBER + 1, 8), "LA;other()V [C2]@70".to_owned());
    world.run_for(50);
    world.decide = Box::new(|_| Fate::Answer);
    world.release();
    world.run_for(300);
    sample(&mut world, &[MAIN, START], &[]);
    world.run_for(300);
    let other = sample(&mut world, &[JIT + 8, MAIN, START], &[]);
    world.run_for(400);
    let account = world.finish().account.clone();
    assert_eq!(lines(&world, known), "_start:0;main:0;A.outer()V:0");
    assert_eq!(lines(&world, other), "_start:0;main:0;A.other()V:70");
    assert_eq!(account.jit.named.runtime, 2);
    let reasons: Vec<_> = account.jit.not_looked_into.into_iter().collect();
    assert_eq!(reasons, [("replaced before it was looked at", 1)]);
}

#[test]
fn the_last_samples_of_a_run_are_looked_into_before_it_ends() {
    let mut world = World::new(options());
    jvm(&mut world, &[(8, "LA;outer()V [C2]@5 > LA;inner()I [C2]@9")]);
    world.follow(&[PID]);
    world.run_for(100);
    let at = sample(&mut world, &[JIT + 8, MAIN, START], &[]);
    let account = world.finish().account.clone();
    assert_eq!(lines(&world, at), "_start:0;main:0;A.outer()V:5;A.inner()I:9");
    assert!(account.jit.not_looked_into.is_empty());
}

#[test]
fn words_of_the_interpreter_s_frames_are_taken_where_it_lies_and_code_is_listed_besides() {
    let mut world = World::new(options());
    jvm(&mut world, &[(8, "LA;outer()V [C2]@5")]);
    let interpreter = JIT + 0x1000;
    let runtime = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    let found = FoundCode { frame: FoundFrame::Interpreter, number: 0, ..runtime.code[0].clone() };
    let found = FoundCode { start: avma(interpreter), size: 0x800, name: "Interpreter".to_owned(), ..found };
    runtime.code.push(found);
    let slots = TakeRead { base: None, offset: -64, words: 8, to: 0, tagged: false };
    let generated = Some((avma(interpreter), 0x800));
    runtime.capture = Some(Capture { reads: vec![slots], key: 5, generated, ..Capture::default() });
    runtime.functions = [(2, "JS:~run a.js:9:1".to_owned())].into();
    world.follow(&[PID]);
    world.run_for(200);
    let takes = |at| world.kernel.region(PID, at).unwrap().flags & Region::TAKE != 0;
    let around = [JIT, interpreter - 1, interpreter, interpreter + 0x7ff, interpreter + 0x800].map(takes);
    assert_eq!(around, [false, false, true, true, false]);
    let stack_of = [JIT + 8, interpreter + 8, interpreter + 16, MAIN, START];
    let at = sample(&mut world, &stack_of, &[(1, 2), (2, 4)]);
    world.run_for(400);
    assert_eq!(world.engine.progress().waiting, 0);
    let account = world.finish().account.clone();
    // What runs in the outer one is not known: it is the interpreter.
    assert_eq!(lines(&world, at), "_start:0;main:0;Interpreter:0;run:9;A.outer()V:5");
    assert_eq!((account.jit.named.runtime, account.jit.unnamed_total()), (2, 1));
    assert!(account.sources[0].tables.as_ref().is_some_and(|tables| tables.readings > 1), "lists are read again");
}

#[test]
fn what_runs_first_at_the_end_of_a_process_is_asked_about_before_the_next_tick() {
    let mut world = World::new(options());
    v8(&mut world, PID, &[(2, "JS:*run a.js:9:1"), (4, "JS:~last a.js:1:1")]);
    world.follow(&[PID]);
    let first = sample(&mut world, &[JIT + 8, MAIN, START], &[(0, 2)]);
    world.run_for(100);
    // It ends long before a tick, and has nothing in it that was seen before.
    let last = sample(&mut world, &[JIT + 0x1000, MAIN, START], &[(0, 4)]);
    world.run_for(25);
    exit(&mut world, PID);
    world.run_for(300);
    let account = world.finish().account.clone();
    assert_eq!([first, last].map(|at| stack(&world, PID, at)), ["_start;main;run", "_start;main;last"]);
    assert_eq!(account.jit.unnamed_total(), 0);
}

#[test]
fn an_interpreted_function_whose_frame_was_not_taken_along_is_counted() {
    let mut world = World::new(options());
    v8(&mut world, PID, &[(2, "JS:~run a.js:9:1")]);
    let symbols = &mut world.machine.file_mut("/bin/app").unwrap().symbols;
    symbols.insert(OWN - APP, "Builtin:InterpreterEntryTrampoline".to_owned());
    world.follow(&[PID]);
    let taken = sample(&mut world, &[OWN + 8, MAIN, START], &[(0, 2)]);
    let lacking = sample(&mut world, &[OWN + 8, MAIN, START], &[]);
    world.run_for(300);
    let account = world.finish().account.clone();
    let shared = "_start;main;Builtin:InterpreterEntryTrampoline";
    assert_eq!([taken, lacking].map(|at| stack(&world, PID, at)), ["_start;main;run", shared]);
    assert_eq!((account.jit.named.runtime, account.jit.unnamed_total()), (1, 1));
}

#[test]
fn what_is_replaced_before_it_is_looked_at_is_looked_at_sooner_from_then_on() {
    const SOON: u64 = 10 * MS;
    let mut world = World::new(options());
    v8(&mut world, PID, &[(2, "JS:*run a.js:9:1")]);
    world.follow(&[PID]);
    // How long it takes until the engine looks again, at most.
    let waits = |world: &mut World| {
        let wait = |world: &mut World| {
            world.run_for(7);
            world.engine.wake_at().0.saturating_sub(world.now.0)
        };
        (0..20).map(|_| wait(world)).max()
    };
    sample(&mut world, &[JIT + 8, MAIN, START], &[(0, 2)]);
    assert!(waits(&mut world) > Some(4 * SOON), "there is no hurry");
    sample(&mut world, &[JIT + 8, MAIN, START], &[(0, 9)]);
    world.run_for(200);
    assert!(waits(&mut world) <= Some(SOON), "what was sampled was gone");
    sample(&mut world, &[JIT + 8, MAIN, START], &[(0, 2)]);
    assert!(waits(&mut world) <= Some(SOON), "one that is there does not end the hurry");
    world.run_for(1500);
    assert!(waits(&mut world) > Some(4 * SOON));
    // What a dump names keeps its name.
    let mut world = World::new(options());
    dumping_node(&mut world, &[]);
    sample(&mut world, &[JIT + 8, MAIN, START], &[(0, 9)]);
    world.run_for(200);
    assert!(waits(&mut world) > Some(4 * SOON), "nothing is lost");
}

#[test]
fn what_a_runtime_is_asked_about_is_gathered_for_a_while() {
    let mut world = World::new(options());
    v8(&mut world, PID, &[(2, "JS:*run a.js:9:1")]);
    world.follow(&[PID]);
    (0..60).for_each(|at| {
        sample(&mut world, &[JIT + 8 + at, MAIN, START], &[(0, 2)]);
    });
    world.run_for(300);
    let asked = asked(&world);
    assert_eq!(asked.iter().map(Vec::len).sum::<usize>(), 60);
    assert!(asked.len() <= 5, "{}", asked.len());
}

#[test]
fn an_interpreted_caller_is_asked_about_by_what_a_snapshot_has_of_it_whoever_has_found_it() {
    // By its frame pointer the leaf was walked past its caller, or not.
    for walked in [&[JIT + 16, START][..], &[JIT + 16, JIT + 0x1008, START]] {
        assert_named_by_its_snapshot(walked);
    }
}

fn assert_named_by_its_snapshot(walked: &[u64]) {
    const INTERPRETER: u64 = JIT + 0x1000;
    let mut world = World::new(options());
    v8(&mut world, PID, &[(2, "middle")]);
    let interpreter = FoundCode {
        start: avma(INTERPRETER),
        size: 0x1000,
        name: "Interpreter".to_owned(),
        frame: FoundFrame::Interpreter,
        number: 0,
        lines: None,
        registered: None,
    };
    let leaf = FoundCode {
        start: avma(JIT),
        size: 64,
        name: "LBurn;leafHot(I)I [C1]".to_owned(),
        frame: FoundFrame::Sized { bytes: 32, complete_from: 8 },
        number: 0,
        lines: None,
        registered: None,
    };
    let made = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    made.code = vec![interpreter.clone()];
    let capture = made.capture.as_mut().unwrap();
    (capture.code, capture.generated) = (Vec::new(), Some((avma(INTERPRETER), 0x1000)));
    world.follow(&[PID]);
    world.run_for(100);
    // The leaf is new.
    let made = &mut world.machine.processes.get_mut(&PID).unwrap().runtime;
    made.code = vec![interpreter, leaf];
    world.run_for(1);
    const SP: u64 = 0x7f00_0000;
    let mut words = [0_u64; 32];
    // 32 bytes of the leaf's frame, with its caller's frame pointer; then the interpreter's frame around that.
    (words[2], words[3]) = (SP + 16 * 8, INTERPRETER + 8);
    (words[14], words[15]) = (2, SP + 18 * 8);
    (words[16], words[17]) = (0, START);
    let snapshot = StackSnapshot {
        registers: [JIT + 16, SP, SP + 16 * 8, 0],
        kind: SnapshotHeader::code_of(PcKind::Instruction),
        index: 0,
        base: SP,
        bytes: words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>().into(),
    };
    world.give(&raw_sample(world.now, PID, walked, Some(snapshot)));
    let at = (world.now.0 - ms(0).0) / MS;
    world.run_for(600);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "_start;middle;Burn.leafHot(I)I");
    assert_eq!(
        asked(&world).iter().flatten().map(|ask| (ask.pc.pc(), ask.reads, ask.words[3])).collect::<Vec<_>>(),
        [(INTERPRETER + 8, 1, 2)]
    );
    assert_eq!(account.jit.unnamed_total(), 0);
}
