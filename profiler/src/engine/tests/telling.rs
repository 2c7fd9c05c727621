//! What is said of a process: labels, versions of its runtime, its user.

use std::collections::BTreeMap;
use std::sync::Arc;

use jitprof_common::units::{Pid, Tid};

use super::stories::*;
use crate::account::{Account, AdviceLine, Lack};
use crate::engine::border::{Request, WhyUnread};
use crate::engine::world::machine::file_mapping;
use crate::engine::world::{BEGIN, Fate, MS, World, options};
use crate::engine::{EngineOptions, InterpreterFrames, Who};
use crate::process::event::TaskChange;
use crate::process::labels::Cgroup;

const PID: u32 = 100;

fn recording() -> World {
    let mut world = World::new(EngineOptions { who: Who::All, ..options() });
    world.continuous(1_000_000, 500);
    world
}

/// A label of each of a process' samples, by time in ms.
fn labels(world: &World, pid: u32, name: &str) -> BTreeMap<u64, String> {
    let mut found = BTreeMap::new();
    let profiles = world.windows.iter().map(|window| &window.profile);
    for profile in profiles.chain(world.recorded.iter().map(|recorded| &recorded.profile)) {
        profile.visit_rows(|row| {
            let task = profile.task_of(row.task);
            let value = task.labels.get(name).map(|value| value.to_string()).unwrap_or_default();
            if task.pid == Pid(pid) {
                found.insert((row.time.0 - BEGIN.0) / MS, value);
            }
        });
    }
    found
}

fn sample(world: &mut World, pid: u32) -> u64 {
    world.sample(pid, &[MAIN, START]);
    (world.now.0 - BEGIN.0) / MS
}

#[test]
fn a_sample_has_the_labels_of_its_time_and_a_second_look_finds_what_has_changed() {
    let mut world = recording();
    app(&mut world, PID);
    world.machine.processes.get_mut(&PID).unwrap().read.user = Some("root".to_owned());
    let first = sample(&mut world, PID);
    world.run_for(1000);
    // It sets its user, and is looked at again.
    let made = world.machine.processes.get_mut(&PID).unwrap();
    made.read.user = Some("nobody".to_owned());
    made.read.cgroup = Some(Cgroup { path: "/x".to_owned(), unit: Some("x.service".to_owned()), ..Cgroup::default() });
    let second = sample(&mut world, PID);
    world.run_for(3000);
    let third = sample(&mut world, PID);
    world.run_for(300);
    world.finish();
    let users = labels(&world, PID, "user");
    assert_eq!([first, second, third].map(|at| &*users[&at]), ["root", "root", "nobody"]);
    assert_eq!(labels(&world, PID, "unit")[&third], "x.service");
    assert_eq!(labels(&world, PID, "host")[&first], "host");
}

#[test]
fn a_new_name_and_a_new_program_count_from_their_time_on() {
    let mut world = recording();
    app(&mut world, PID);
    let first = sample(&mut world, PID);
    world.run_for(500);
    world.task(TaskChange::Comm { pid: Pid(PID), tid: Tid(PID), comm: Arc::from("renamed"), exec: false });
    let second = sample(&mut world, PID);
    world.run_for(500);
    exec(&mut world, PID, "/bin/other", vec![]);
    world.run_for(10);
    let third = sample(&mut world, PID);
    world.run_for(500);
    world.finish();
    let names = labels(&world, PID, "comm");
    assert_eq!([first, second, third].map(|at| &*names[&at]), ["app", "renamed", "other"]);
    let exes = labels(&world, PID, "exe");
    assert_eq!([first, second, third].map(|at| &*exes[&at]), ["app", "app", "other"]);
}

#[test]
fn a_look_from_before_an_exec_says_nothing_of_the_program_after_it() {
    let mut world = recording();
    app(&mut world, 99);
    sample(&mut world, 99);
    world.run_for(300);
    fork(&mut world, PID, 99);
    world.decide = Box::new(|request| match request {
        Request::Process { .. } => Fate::HoldAnswer,
        _ => Fate::Answer,
    });
    world.run_for(20);
    let first = sample(&mut world, PID);
    world.run_for(20);
    exec(&mut world, PID, "/bin/other", vec![]);
    world.run_for(20);
    let second = sample(&mut world, PID);
    world.run_for(20);
    assert_eq!(world.held(), 2);
    // The second is answered first.
    world.release_one(1);
    world.settle();
    world.release();
    world.run_for(300);
    let third = sample(&mut world, PID);
    world.run_for(300);
    world.finish();
    let exes = labels(&world, PID, "exe");
    assert_eq!([second, third].map(|at| &*exes[&at]), ["other", "other"]);
    assert!(exes.contains_key(&first));
}

#[test]
fn a_process_that_is_gone_has_its_parents_surroundings() {
    let mut world = recording();
    app(&mut world, 99);
    world.machine.processes.get_mut(&99).unwrap().read.user = Some("builder".to_owned());
    sample(&mut world, 99);
    world.run_for(300);
    fork(&mut world, PID, 99);
    fork(&mut world, 101, PID);
    world.task(TaskChange::Comm { pid: Pid(101), tid: Tid(101), comm: Arc::from("cc1"), exec: true });
    world.machine.processes.remove(&PID);
    world.machine.processes.remove(&101);
    let at = sample(&mut world, 101);
    let stranger = sample(&mut world, 500);
    world.run_for(300);
    let account = world.finish().account.clone();
    assert_eq!((&*labels(&world, 101, "user")[&at], &*labels(&world, 101, "comm")[&at]), ("builder", "cc1"));
    assert_eq!(labels(&world, 500, "user")[&stranger], "");
    assert!(stack(&world, 500, stranger).ends_with("[process gone]"));
    assert_eq!(account.samples.process_gone, 1);
}

#[test]
fn the_version_of_a_runtime_is_asked_once_for_all_processes_of_its_program() {
    let mut world = recording();
    let inode = world.machine.add_program("/usr/bin/node", b"node", &[(0, "_start"), (0x1000, "main")]);
    for pid in [PID, PID + 1, PID + 2] {
        let start = jitprof_common::units::MonoNs(world.now.0 - 1000 * MS);
        let mapping = file_mapping(APP, 0x1_0000, inode, "/usr/bin/node");
        world.machine.add_process(pid, start, "/usr/bin/node", vec![mapping]);
        world.machine.processes.get_mut(&pid).unwrap().version = Some("20.11.0".to_owned());
    }
    let mut times = vec![sample(&mut world, PID), sample(&mut world, PID + 1)];
    world.run_for(300);
    times.push(sample(&mut world, PID + 2));
    world.run_for(300);
    let versions = world.asked.iter().filter(|request| matches!(request, Request::Version { .. })).count();
    assert_eq!(versions, 1);
    world.finish();
    for (index, at) in times.iter().enumerate() {
        let pid = PID + u32::try_from(index).unwrap();
        assert_eq!(labels(&world, pid, "runtime")[at], "node");
        assert_eq!(labels(&world, pid, "runtime_version")[at], "20.11.0");
    }
}

#[test]
fn a_version_that_could_not_be_found_out_is_asked_for_again() {
    let mut world = recording();
    let inode = world.machine.add_program("/usr/bin/node", b"node", &[(0, "_start"), (0x1000, "main")]);
    let start = jitprof_common::units::MonoNs(world.now.0 - 1000 * MS);
    let mapping = file_mapping(APP, 0x1_0000, inode, "/usr/bin/node");
    world.machine.add_process(PID, start, "/usr/bin/node", vec![mapping]);
    world.machine.processes.get_mut(&PID).unwrap().version = Some("20.11.0".to_owned());
    world.decide = Box::new(|request| match request {
        Request::Version { .. } => Fate::Stall,
        _ => Fate::Answer,
    });
    sample(&mut world, PID);
    world.run_for(500);
    world.decide = Box::new(|_| Fate::Answer);
    world.run_for(3000);
    let at = sample(&mut world, PID);
    world.run_for(300);
    world.finish();
    assert_eq!(labels(&world, PID, "runtime_version")[&at], "20.11.0");
}

#[test]
fn a_version_that_was_looked_for_before_an_exec_is_not_the_next_program_s() {
    let mut world = recording();
    let [old, new] = ["/opt/old/bin/node", "/opt/new/bin/node"].map(|path| {
        let inode = world.machine.add_program(path, path.as_bytes(), &[(0, "_start"), (0x1000, "main")]);
        file_mapping(APP, 0x1_0000, inode, path)
    });
    let start = jitprof_common::units::MonoNs(world.now.0 - 1000 * MS);
    world.machine.add_process(PID, start, "/opt/old/bin/node", vec![old]);
    world.machine.processes.get_mut(&PID).unwrap().version = Some("18.0.0".to_owned());
    world.decide = Box::new(|request| match request {
        Request::Version { .. } => Fate::HoldAnswer,
        _ => Fate::Answer,
    });
    sample(&mut world, PID);
    world.run_for(300);
    exec(&mut world, PID, "/opt/new/bin/node", vec![new]);
    world.machine.processes.get_mut(&PID).unwrap().version = Some("22.0.0".to_owned());
    world.run_for(10);
    sample(&mut world, PID);
    world.run_for(300);
    assert_eq!(world.held(), 2, "one question for each program");
    // The second is answered first.
    world.release_one(1);
    world.settle();
    world.release();
    world.run_for(100);
    let at = sample(&mut world, PID);
    world.run_for(300);
    world.finish();
    assert_eq!(labels(&world, PID, "runtime_version")[&at], "22.0.0");
}

#[test]
fn a_process_whose_program_cannot_be_read_keeps_its_samples() {
    let mut world = recording();
    app(&mut world, 99);
    sample(&mut world, 99);
    world.run_for(300);
    fork(&mut world, PID, 99);
    world.decide = Box::new(|request| match request {
        Request::Process { .. } => Fate::Fail(WhyUnread::Failed),
        _ => Fate::Answer,
    });
    let at = sample(&mut world, PID);
    let stranger = sample(&mut world, 101);
    world.run_for(500);
    let account = world.finish().account.clone();
    assert_eq!(stack(&world, PID, at), "_start;main", "its mappings are its parent's");
    assert_eq!(stacks(&world, 101, stranger).len(), 1);
    assert!(account.remarks.iter().any(|remark| remark.contains("it failed")));
}

/// The account of a Node whose code nothing names, and whose memory was read or not.
fn account_of_node(is_read: bool) -> Account {
    let mut world = World::new(options());
    if !is_read {
        world.decide = Box::new(|what| match what {
            Request::ReadRuntime { .. } => Fate::Fail(WhyUnread::Gone),
            _ => Fate::Answer,
        });
    }
    let inode = world.machine.add_program("/usr/bin/node", b"node", &[(0, "_start"), (0x1000, "main")]);
    let start = jitprof_common::units::MonoNs(world.now.0 - 1000 * MS);
    let mappings = vec![
        file_mapping(APP, 0x1_0000, inode, "/usr/bin/node"),
        crate::engine::world::machine::memory_mapping(JIT, 0x1000),
    ];
    world.machine.add_process(PID, start, "/usr/bin/node", mappings);
    world.follow(&[PID]);
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.run_for(300);
    world.finish().account.clone()
}

#[test]
fn advice_is_given_for_a_runtime_whose_code_nothing_names() {
    let account = account_of_node(true);
    assert_eq!((account.advice[0].pid, account.advice[0].unnamed_frames), (PID, 1));
    assert!(account.advice[0].advice.contains("--perf"), "{}", account.advice[0].advice);
    assert_eq!(account.jit.unnamed["no jitdump or perf map"], 1);
}

#[test]
fn of_what_there_was_no_time_to_read_nothing_is_said_to_be_missing() {
    let account = account_of_node(false);
    assert_eq!(account.advice, []);
    assert_eq!(account.jit.unnamed["its runtime was not looked at in time"], 1);
}

#[test]
fn a_jvm_s_perf_map_that_lacks_what_was_compiled_since_is_said_to() {
    let mut world = World::new(options());
    let inode = world.machine.add_program("/opt/jdk-17.0.2/bin/java", b"java", &[(0, "_start"), (0x1000, "main")]);
    let start = jitprof_common::units::MonoNs(world.now.0 - 1000 * MS);
    let mappings = vec![
        file_mapping(APP, 0x1_0000, inode, "/opt/jdk-17.0.2/bin/java"),
        crate::engine::world::machine::memory_mapping(JIT, 0x1000),
    ];
    world.machine.add_process(PID, start, "/opt/jdk-17.0.2/bin/java", mappings);
    world.machine.add_file(&format!("/tmp/perf-{PID}.map"), format!("{JIT:x} 40 Shop.old\n").into_bytes());
    world.follow(&[PID]);
    world.run_for(1000);
    world.sample(PID, &[JIT + 8, MAIN, START]);
    world.sample(PID, &[JIT + 0x808, MAIN, START]);
    world.run_for(1000);
    let account = &world.finish().account;
    assert_eq!((account.jit.named.perf_map, account.jit.unnamed_total()), (1, 1));
    let advice: Vec<&str> = account.advice.iter().map(|line| &*line.advice).collect();
    assert!(matches!(advice[..], [only] if only.contains("nothing since")), "{advice:?}");
    assert_eq!(account.naming[0].lack, Some(Lack::LaterThanMap));
}

/// Samples of a Python of which `inside` are in the interpreter's loop.
fn python(options: EngineOptions, inside: usize, outside: usize) -> World {
    let mut world = World::new(options);
    run_python(&mut world, inside, outside);
    world
}

fn run_python(world: &mut World, inside: usize, outside: usize) {
    let symbols = [(0, "_start"), (0x1000, "main"), (0x2000, "_PyEval_EvalFrameDefault")];
    let inode = world.machine.add_program("/usr/bin/python3.13", b"python", &symbols);
    let start = jitprof_common::units::MonoNs(world.now.0 - 1000 * MS);
    let mappings = vec![file_mapping(APP, 0x1_0000, inode, "/usr/bin/python3.13")];
    world.machine.add_process(PID, start, "/usr/bin/python3.13", mappings);
    world.follow(&[PID]);
    for at in 0..inside + outside {
        if at < inside {
            world.sample(PID, &[APP + 0x2008, MAIN, START]);
        } else {
            world.sample(PID, &[MAIN, START]);
        }
        world.run_for(10);
    }
    world.run_for(300);
}

fn advice_for_python(inside: usize, outside: usize) -> Vec<AdviceLine> {
    python(options(), inside, outside).finish().account.advice.clone()
}

#[test]
fn the_loop_of_an_interpreter_is_left_out_where_it_is_not_wanted() {
    let frames = |native: bool| {
        let interpreter = InterpreterFrames { native, ..InterpreterFrames::default() };
        let mut world = python(EngineOptions { interpreter, ..options() }, 30, 0);
        let recorded = world.finish();
        let mut frames = Vec::new();
        recorded.profile.visit_rows(|row| recorded.profile.frames_of(row.stack, &mut frames));
        let names: Vec<String> = frames.iter().map(|id| recorded.profile.frame(*id).name.to_owned()).collect();
        (names.join(";"), recorded.profile.total(), recorded.account.advice.len())
    };
    assert_eq!(frames(true), ("_start;main;_PyEval_EvalFrameDefault".to_owned(), 30, 1));
    assert_eq!(frames(false), ("_start;main".to_owned(), 30, 1));
}

#[test]
fn an_interpreter_that_runs_most_of_the_time_is_told_how_to_name_what_it_runs() {
    let advice = advice_for_python(30, 5);
    assert_eq!((advice.len(), advice[0].pid, advice[0].unnamed_frames, advice[0].interpreted_samples), (1, PID, 0, 30));
    assert!(advice[0].advice.contains("-X perf_jit"), "{}", advice[0].advice);
    assert_eq!(advice_for_python(10, 30), [], "a program that spends its time elsewhere");
    assert_eq!(advice_for_python(5, 0), [], "too few samples");
}

#[test]
fn an_interpreter_that_may_have_said_what_it_runs_is_not_told_that_it_cannot() {
    let advised = |options: EngineOptions, (is_read, walks_lists): (bool, bool)| {
        let mut world = World::new(EngineOptions { walks_lists, ..options });
        if !is_read {
            world.decide = Box::new(|what| match what {
                Request::ReadRuntime { .. } => Fate::Fail(WhyUnread::Gone),
                _ => Fate::Answer,
            });
        }
        run_python(&mut world, 30, 0);
        world.finish().account.advice.len()
    };
    let unread = EngineOptions { read_runtime: false, ..options() };
    assert_eq!(advised(options(), (true, true)), 1, "its memory says nothing");
    assert_eq!(advised(options(), (false, true)), 0, "it has ended before it was read");
    assert_eq!(advised(unread, (false, true)), 1, "nobody has asked");
    assert_eq!(advised(options(), (false, false)), 1, "what it says cannot be walked");
}

/// Names and modules of a process' frames, in all samples.
fn modules(world: &World, pid: u32) -> BTreeMap<String, String> {
    let profile = &world.recorded.as_ref().unwrap().profile;
    let (mut found, mut frames) = (BTreeMap::new(), Vec::new());
    profile.visit_rows(|row| {
        profile.frames_of(row.stack, &mut frames);
        let of_process = frames.iter().filter(|_| profile.task_of(row.task).pid == Pid(pid));
        for frame in of_process.map(|frame| profile.frame(*frame)) {
            found.insert(frame.name.to_owned(), frame.module.map_or("", |module| module.path).to_owned());
        }
    });
    found
}

#[test]
fn a_file_is_called_what_the_sampled_process_calls_it_whoever_mapped_it_first() {
    const MINER: u32 = 99;
    let mut world = World::new(options());
    let inode = world.machine.add_program("/bin/bash", b"bash", &[(0x1000, "main")]);
    let start = world.now;
    // In a mount namespace of its own.
    let renamed = file_mapping(APP, 0x1_0000, inode, "/x/cryptominer");
    world.machine.add_process(MINER, start, "/x/cryptominer", vec![renamed]);
    world.machine.add_process(PID, start, "/bin/bash", vec![mapped(&world, APP, "/bin/bash")]);
    world.follow(&[MINER]);
    world.sample(MINER, &[MAIN, START]);
    world.run_for(500);
    world.follow(&[PID]);
    world.sample(PID, &[MAIN, START]);
    world.run_for(500);
    world.finish();
    let expected = |path: &str, unnamed: &str| {
        let frames = [("main", path), (unnamed, path)];
        frames.map(|(name, path)| (name.to_owned(), path.to_owned()))
    };
    let named = |pid| modules(&world, pid).into_iter().filter(|(_, path)| !path.is_empty()).collect::<Vec<_>>();
    let mut own = expected("/bin/bash", "[bash+0xf]");
    own.sort();
    assert_eq!(named(PID), own);
    let mut of_miner = expected("/x/cryptominer", "[cryptominer+0xf]");
    of_miner.sort();
    assert_eq!(named(MINER), of_miner);
}
