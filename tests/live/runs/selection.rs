//! Processes chosen by what is known of them, and the labels that say it.

use std::process::Command;

use anyhow::Result;
use jitprof_tests::{
    ControlGroup, Jitprof, Recording, Scratch, Share, Stack, Target, assert_at_least, assert_share, compile, container,
    path_from, target_file, wait_until,
};

const FLAGS: &str = "--perf-prof --perf-prof-unwinding-info --interpreted-frames-native-stack --no-turbo-inlining";

/// Digits of which containers' ids are made.
fn id(digits: &str) -> String {
    digits.repeat(32)
}

/// Runs Node in a container of its own.
fn node_in_container(group: &ControlGroup, scratch: &Scratch, flags: &str) -> Result<Target> {
    let (node, script) = (path_from("JITPROF_NODE")?, target_file("node/burn.js")?);
    let files = [(node.as_path(), "node"), (script.as_path(), "burn.js")];
    let command = container(scratch, files, &format!("/app/node {flags} /app/burn.js 600"))?;
    Target::start(group.command(&command), scratch)
}

/// Runs Node in a control group.
fn grouped(group: &ControlGroup, scratch: &Scratch, seconds: &str) -> Result<Target> {
    let mut command = Command::new(path_from("JITPROF_NODE")?);
    command.args(FLAGS.split(' ')).arg(target_file("node/burn.js")?).arg(seconds);
    Target::start(group.command(&command), scratch)
}

#[track_caller]
fn assert_all_have(recording: &Recording, labels: &[(&str, &str)]) {
    let all = u64::try_from(recording.pprof.total).unwrap_or(0);
    assert!(all > 0, "there are samples");
    assert_eq!(recording.pprof.count(labels), all, "all samples have {labels:?}: {:?}", recording.pprof.sets);
}

/// A container, and beside it one that nobody asked for.
fn record_one_of_two(group: &ControlGroup, other: &ControlGroup, choice: [&str; 2]) -> Result<Recording> {
    let (scratch, beside) = (Scratch::new()?, Scratch::new()?);
    let target = node_in_container(group, &scratch, FLAGS)?;
    assert_eq!(target.pid()?, 1, "it has a pid namespace of its own");
    let _other = node_in_container(other, &beside, FLAGS)?;
    Jitprof::recording(&scratch, choice)?.record_cpu(target.only_child()?, 3)
}

#[track_caller]
fn assert_is_container(recording: &Recording, id: &str) {
    assert_all_have(recording, &[("container", id), ("comm", "node"), ("exe", "node")]);
    assert_all_have(recording, &[("runtime", "node"), ("user", "root")]);
    recording.assert_named();
    assert!(recording.pprof.strings.contains("/app/node"), "native frames are of the container's own file");
    assert!(recording.folded.count(|stack| stack.has_prefix("leafHot")) > 0, "its dump is found: leafHot has a name");
}

#[test]
fn a_container_of_version_2_is_chosen_alone_and_its_code_named_from_its_own_files() -> Result<()> {
    let (chosen, left) = (id("a2"), id("b2"));
    let group = ControlGroup::version_2(&format!("/v2/docker-{chosen}.scope"))?;
    let other = ControlGroup::version_2(&format!("/v2/docker-{left}.scope"))?;
    let recording = record_one_of_two(&group, &other, ["--container", "a2a2a2"])?;
    assert_is_container(&recording, &chosen);
    let recording = record_one_of_two(&group, &other, ["--cgroup", group.path()])?;
    assert_is_container(&recording, &chosen);
    assert_all_have(&recording, &[("cgroup", group.path())]);
    Ok(())
}

#[test]
fn a_container_of_version_1_is_chosen_alone_and_its_code_named_from_its_own_files() -> Result<()> {
    let (chosen, left) = (id("a1"), id("b1"));
    let group = ControlGroup::version_1(&format!("/v1/docker/{chosen}"))?;
    let other = ControlGroup::version_1(&format!("/v1/docker/{left}"))?;
    let recording = record_one_of_two(&group, &other, ["--container", "a1a1a1"])?;
    assert_is_container(&recording, &chosen);
    Ok(())
}

/// Records a group in which at first only a sleeping process is. Then a program starts in it, works and ends, long
/// before the recording does.
fn record_a_later_process(group: &ControlGroup, choice: [&str; 2]) -> Result<Recording> {
    let scratch = Scratch::new()?;
    let mut idle = Command::new("sh");
    idle.args(["-c", "echo $$ > \"$1/cgroup.procs\"; echo ready pid=$$; exec sleep 600", "sh"]).arg(group.directory());
    let idle = Target::start(idle, &scratch)?;
    let mut jitprof = Jitprof::recording(&scratch, choice)?.spawn()?;
    jitprof.wait_for_samples(idle.started_pid(), 0)?;
    let mut target = grouped(group, &scratch, "2")?;
    let pid = target.pid()?;
    target.wait()?;
    wait_until("the process to be gone", || {
        Ok((!std::path::Path::new(&format!("/proc/{pid}")).exists()).then_some(()))
    })?;
    jitprof.signal(libc::SIGINT)?;
    let recording = jitprof.record()?;
    let of = |pid: u32| recording.pprof.count(&[("pid", &pid.to_string())]);
    assert_eq!(i64::try_from(of(pid) + of(idle.started_pid()))?, recording.pprof.total, "nobody else was");
    assert!(recording.pprof.count(&[("comm", "node"), ("pid", &pid.to_string())]) > 0, "it was seen");
    assert!(recording.folded.count(|stack| stack.has_prefix("leafHot")) > 0, "leafHot has its name after its end");
    Ok(recording)
}

#[test]
fn a_process_that_begins_later_is_seen_and_named_after_its_end() -> Result<()> {
    let group = ControlGroup::version_2("/later/web.service")?;
    let recording = record_a_later_process(&group, ["--cgroup", group.path()])?;
    assert_all_have(&recording, &[("unit", "web.service"), ("cgroup", group.path())]);
    Ok(())
}

#[test]
fn a_process_that_begins_later_in_a_group_of_version_1_is_seen_and_named_after_its_end() -> Result<()> {
    let group = ControlGroup::version_1("/later-v1")?;
    record_a_later_process(&group, ["--cgroup", group.path()])?;
    Ok(())
}

#[test]
fn several_questions_must_all_be_answered() -> Result<()> {
    let group = ControlGroup::version_2("/several/shop.service")?;
    let scratch = Scratch::new()?;
    let target = grouped(&group, &scratch, "600")?;
    let pid = target.pid()?.to_string();
    let recorded = Jitprof::recording(&scratch, ["--user", "root", "--unit", "shop"])?.record_cpu(target.pid()?, 2)?;
    assert_all_have(&recorded, &[("pid", &pid), ("unit", "shop.service"), ("user", "root")]);
    let recorded = Jitprof::recording(&scratch, ["--comm", "node", "--unit", "shop"])?.record_cpu(target.pid()?, 2)?;
    assert_all_have(&recorded, &[("pid", &pid), ("comm", "node")]);
    for nobody in [["--comm", "other"], ["--user", "65533"], ["--container", "ffff"]] {
        let finished = Jitprof::new(&scratch, [&["--unit", "shop"][..], &nobody, &["-d", "1s"]].concat())?.run()?;
        assert_eq!(finished.status.code(), Some(1), "{nobody:?}: {}", finished.stderr);
        assert!(finished.stderr.contains("no running process matches"), "{}", finished.stderr);
    }
    Ok(())
}

#[test]
fn children_that_live_for_milliseconds_are_sampled_from_their_first_instruction() -> Result<()> {
    let scratch = Scratch::new()?;
    let program = compile(&scratch, "cc", "native/children.c", &["-O1", "-g"])?;
    let target = Target::start(Command::new(program), &scratch)?;
    let recording = Jitprof::recording(&scratch, ["--pid", target.said("pid")?])?.record_cpu(target.pid()?, 6)?;
    let of = |name: &str| recording.folded.count(|stack| stack.has(name));
    let parts = [of("parent_burn"), of("child_burn"), of("started_burn")];
    for (who, part) in ["the parent", "children", "started programs"].into_iter().zip(parts) {
        assert_share(&format!("samples of {who}"), Share { part, whole: parts.iter().sum() }, 1.0 / 3.0);
    }
    // Of one that has begun to end, or to run another program, the stack cannot be read any more.
    let burnt = |stack: &Stack| stack.frames.iter().any(|frame| frame.ends_with("_burn"));
    let whole = Share {
        part: recording.folded.count(|stack| burnt(stack) && !stack.is_cut() && stack.has("_start")),
        whole: recording.folded.count(burnt),
    };
    assert_at_least("stacks down to the start", whole, 0.995);
    Ok(())
}
