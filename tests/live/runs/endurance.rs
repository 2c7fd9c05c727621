//! A continuous recording: what comes and goes leaves nothing behind, no process harms it, and its weights stay true.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use jitprof_tests::{
    Continuous, ControlGroup, Ended, Jitprof, Scratch, Share, Target, WeightedShare, assert_at_least_of_few,
    assert_enough, assert_in_time, assert_share, compile, free_address, get, path_from, wait_until,
};
use serde_json::Value;

use crate::{copies, joints};

/// What a storm may leave behind: caches that are filled for the first time, and what the allocator keeps in pieces.
const SLACK_KIB: u64 = 24 << 10;

/// How much larger the storms are in `cargo xtask soak`, which sets the variable, than in each run of all tests.
fn scale() -> u64 {
    if std::env::var_os("JITPROF_SOAK").is_some() { 10 } else { 1 }
}

/// Time between two looks of the governor, and when it decides about the frequency for the first time: at the twelfth.
const LOOK_NS: u64 = 5_000_000_000;
const FIRST_DECISION_NS: u64 = 12 * LOOK_NS;

/// CPU time that a program has used at least that was loud for ten windows, in milliseconds: a fiftieth of it. Some
/// seventeen of them share the machine.
const LOUD_MS: u64 = 200;

/// Most rounds of a churning program until enough functions are through; one is enough on a machine of its own.
const MAX_ROUNDS: u64 = 6;

/// A control group, and what is recorded of it: what else runs on the host is none of these tests' business.
struct Own {
    scratch: Scratch,
    group: ControlGroup,
}

impl Own {
    fn new() -> Result<Self> {
        Ok(Self { scratch: Scratch::new()?, group: ControlGroup::version_2("/endurance")? })
    }

    fn continuous(&self, hz: &str) -> Result<Continuous> {
        Continuous::start(&self.scratch, &["--hz", hz, "--cgroup", self.group.path()])
    }

    fn storm(&self, arguments: &[&str]) -> Result<Target> {
        Target::start(self.group.command(&storm_command(&self.scratch, arguments)?), &self.scratch)
    }
}

fn storm(scratch: &Scratch, arguments: &[&str]) -> Result<Target> {
    Target::start(storm_command(scratch, arguments)?, scratch)
}

fn storm_command(scratch: &Scratch, arguments: &[&str]) -> Result<Command> {
    let program = scratch.file("storm");
    if !program.exists() {
        compile(scratch, "cc", "native/storm.c", &["-O1", "-g", "-fno-omit-frame-pointer"])?;
    }
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

/// A file system that does not answer once six programs run from it, which it has started.
fn silent(scratch: &Scratch) -> Result<Target> {
    let mount = scratch.file("mount");
    std::fs::create_dir(&mount)?;
    let mut command = Command::new(compile(scratch, "cc", "native/silent.c", &["-O1", "-g"])?);
    command.arg(mount).args([".eh_frame", "6", "65534"]);
    Target::start(command, scratch)
}

/// A program that emits and drops so many pairs of functions a second, for so many seconds.
fn churn_command(seconds: &str, pairs: &str) -> Result<Command> {
    let mut command = Command::new(path_from("JITPROF_DEMO")?);
    command.args(["--secs", seconds, "--churn", pairs, "--slots", "512"]);
    Ok(command)
}

/// One that does so until it is ended.
fn churning(scratch: &Scratch) -> Result<Target> {
    Target::start(churn_command("600", "20000")?, scratch)
}

fn done(target: &mut Target) -> Result<u64> {
    let lines = target.finish()?;
    let last = lines.last().context("the storm says how much it did")?;
    Ok(last.rsplit(' ').next().context("a number")?.parse()?)
}

fn number(window: &Value, name: &str) -> u64 {
    window[name].as_u64().unwrap_or_else(|| panic!("no {name} in {window}"))
}

/// The part of a process' CPU time that has this innermost function.
fn leaf_ns(window: &Value, name: &str) -> u64 {
    window["leaves"][name].as_u64().unwrap_or(0)
}

/// A window once it is steady, with the load as it is.
fn steady(continuous: &mut Continuous) -> Result<Value> {
    continuous.skip(8)
}

/// Waits until memory and descriptors are back where they were: it is a leak, and no chance, if they are not.
fn assert_back(continuous: &mut Continuous, before: &Value) -> Result<()> {
    let most = |name: &str, slack: u64| number(before, name) + slack;
    let (kib, descriptors) = (most("resident_kib", SLACK_KIB), most("descriptors", 40));
    for _ in 0..90 {
        let now = continuous.window()?;
        let has = (number(now, "resident_kib"), number(now, "descriptors"));
        println!("{} of {kib} KiB resident, {} of {descriptors} descriptors", has.0, has.1);
        if has.0 <= kib && has.1 <= descriptors {
            return Ok(());
        }
    }
    bail!("memory and descriptors are not back where they were, see above")
}

/// Samples of the storm itself: what is not recorded leaves nothing behind, either.
fn assert_sampled(ended: &Ended) {
    let samples = ended.windows.iter().filter_map(|window| window["comms"]["storm"].as_u64()).sum();
    assert_enough("samples of the storm", samples, 50);
}

fn most(ended: &Ended, name: &str) -> u64 {
    ended.windows.iter().map(|window| number(window, name)).max().unwrap_or(0)
}

#[test]
fn processes_that_come_and_go_leave_nothing_behind() -> Result<()> {
    let own = Own::new()?;
    let mut continuous = own.continuous("99")?;
    let before = steady(&mut continuous)?;
    let mut forked = 0;
    while forked < 1000 * scale() {
        // Two thousand a second, as far as the machine gets.
        let mut target = own.storm(&["forks", "2", "2000"])?;
        forked += done(&mut target)?;
    }
    let after = continuous.window()?.clone();
    println!("{forked} processes; {} KiB at the height", number(&after, "resident_kib"));
    assert_back(&mut continuous, &before)?;
    let now = continuous.window()?;
    assert!(number(now, "processes") < forked / 5, "ended processes are not known as running: {now}");
    let ended = continuous.stop()?;
    println!("{} events lost", ended.number("/processes/events_lost")?);
    assert_sampled(&ended);
    Ok(())
}

#[test]
fn functions_that_are_emitted_and_dropped_leave_nothing_behind() -> Result<()> {
    let own = Own::new()?;
    let mut continuous = own.continuous("99")?;
    let cold = steady(&mut continuous)?;
    // Once for the names, rows and tables that stay, so that what is compared is with and without the others.
    churn(&own, &mut continuous, "4")?;
    let before = steady(&mut continuous)?;
    let (mut announced, mut most) = (0, 0);
    let wanted = 100_000 * scale();
    for _ in 0..MAX_ROUNDS * scale() {
        let (functions, at_a_time) = churn(&own, &mut continuous, "4")?;
        announced += functions;
        most = most.max(at_a_time);
        if announced >= wanted {
            break;
        }
    }
    assert_enough("functions announced", announced, wanted);
    println!(
        "{announced} functions announced; {most} known at a time; {} KiB when cold",
        number(&cold, "resident_kib")
    );
    assert!(most >= 1000, "its living functions are known: {most}");
    assert_back(&mut continuous, &before)?;
    continuous.stop()?;
    Ok(())
}

/// Lets a program emit and drop functions for so many seconds. Returns how many it has announced, by its own count, and
/// how many were known at a time.
fn churn(own: &Own, continuous: &mut Continuous, seconds: &str) -> Result<(u64, u64)> {
    let command = own.group.command(&churn_command(seconds, "20000")?);
    let mut target = Target::start(command, &own.scratch)?;
    let mut most = 0;
    while target.is_running()? {
        most = most.max(number(continuous.window()?, "functions"));
    }
    for file in std::fs::read_dir(own.scratch.path())?.flatten() {
        if file.path().extension().is_some_and(|extension| extension == "dump") {
            std::fs::remove_file(file.path())?;
        }
    }
    let said = target.finish()?;
    let functions = said.iter().find_map(|line| line.strip_prefix("functions emitted: "));
    Ok((functions.context("the demo says how many functions it has emitted")?.parse()?, most))
}

#[test]
fn weights_stay_true_while_the_frequency_changes() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_DEMO")?);
    command.args(["--secs", "120", "--generations", "1"]);
    let target = Target::start(command, &scratch)?;
    let mut continuous = Continuous::start(&scratch, &["--hz", "999", "--pid", target.said("pid")?])?;
    continuous.skip(4)?;
    for hz in ["199", "997", "49", "499", "99", "997"] {
        continuous.tell(&format!("frequency {hz}"))?;
        let wanted = hz.parse::<u64>()?;
        continuous.until("the new frequency", 10, |window| number(window, "frequency_hz") == wanted)?;
        continuous.skip(3)?;
    }
    let ended = continuous.stop()?;
    let mut share = WeightedShare::default();
    for window in &ended.windows {
        let [hot, cold] = ["leaf_hot_g0", "leaf_cold_g0"].map(|name| leaf_ns(window, name) / 1_000_000);
        let hertz = u32::try_from(number(window, "frequency_hz"))?;
        share.add(hot, hot + cold, 1000.0 / f64::from(hertz));
    }
    share.assert("75 % whatever the frequency", 0.75);
    // The demo has one busy thread, so a window's weight is the time that it ran, whatever the frequency was.
    let pairs = ended.windows.windows(2).filter(|pair| pair[0]["frequency_hz"] != pair[1]["frequency_hz"]).count();
    assert!(pairs >= 5, "{pairs} changes");
    for window in &ended.windows {
        let length = number(window, "end_ns") - number(window, "start_ns");
        assert!(
            number(window, "cpu_ns") <= length + length / 5 + 100_000_000,
            "more CPU time than there was: {window}"
        );
    }
    Ok(())
}

#[test]
fn the_governor_samples_less_when_it_costs_too_much() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut command = Command::new(path_from("JITPROF_DEMO")?);
    command.args(["--secs", "300", "--generations", "1"]);
    let target = Target::start(command, &scratch)?;
    let pid = target.said("pid")?;
    // A service beside it, which tells of its frequency over HTTP.
    let config = format!("[selection]\npids = [{pid}]\n[sampling]\nfrequency = 997\n[limits]\nmax_cpu = 0.01\n");
    std::fs::write(scratch.file("jitprof.toml"), config)?;
    let address = free_address()?.to_string();
    let arguments = ["serve", "--config", "jitprof.toml", "--token", "none", "--listen", &address];
    let mut service = Jitprof::new(&scratch, arguments)?.spawn()?;
    let mut continuous = Continuous::start(&scratch, &["--hz", "997", "--pid", pid, "--max-cpu", "0.01"])?;
    let lower = continuous.until("a lower frequency", 110, |window| number(window, "frequency_hz") < 997)?;
    let ended = continuous.stop()?;
    assert!(ended.governor["lowered"].as_u64() >= Some(1), "{}", ended.governor);
    let changes = ended.account["frequencies"].as_array().context("no frequencies in the account")?;
    println!("changes by the account: {changes:?}");
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!(changes[0][1], lower["frequency_hz"], "{changes:?}");
    assert_decided_since(0.0, &changes[0]);

    let address = address.parse()?;
    let changes = service.wait_for("the change in the service's timeline", || {
        let Ok((200, text)) = get(address, "/api/timeline?from=-5m") else { return Ok(None) };
        let timeline: Value = serde_json::from_str(&text)?;
        let changes = timeline["frequencies"].as_array().context("no frequencies in the timeline")?;
        Ok((changes.len() > 1).then(|| changes.clone()))
    })?;
    println!("frequencies of the service: {changes:?}");
    assert_eq!(changes[0][1], 997, "it is what was asked for at first: {changes:?}");
    assert!(changes[1][1].as_u64().is_some_and(|hertz| hertz < 997), "{changes:?}");
    assert_decided_since(changes[0][0].as_f64().context("no time")?, &changes[1]);
    service.signal(libc::SIGTERM)?;
    let finished = service.finish()?;
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    Ok(())
}

/// A change of the frequency, as its second and samples per second, is what a governor decides first that was started
/// in the second `start` or soon after.
#[track_caller]
fn assert_decided_since(start: f64, change: &Value) {
    let after = Duration::try_from_secs_f64(change[0].as_f64().unwrap_or(0.0) - start).unwrap_or_default();
    // The wall clock may be adjusted meanwhile.
    let first = Duration::from_nanos(FIRST_DECISION_NS - LOOK_NS / 5);
    assert!((first..first + Duration::from_secs(30)).contains(&after), "{after:?} after the start: {change}");
}

/// Programs that start processes and churn code are dear, and no sample less makes them cheaper.
#[test]
fn what_no_sample_causes_does_not_lower_the_frequency() -> Result<()> {
    let own = Own::new()?;
    let began = Instant::now();
    let arguments = ["--hz", "19", "--cgroup", own.group.path(), "--max-cpu", "1"];
    let mut continuous = Continuous::start(&own.scratch, &arguments)?;
    // What may be spent at once at the start is to last until the governor decides: then all of it costs most.
    let quiet = continuous.skip(20)?;
    let mut loud = Vec::new();
    for _ in 0..cpus()?.div_ceil(2) {
        loud.push(own.storm(&["forks", "600", "1000"])?);
        loud.push(Target::start(own.group.command(&churn_command("600", "5000")?), &own.scratch)?);
    }
    // And two looks more.
    while began.elapsed() < Duration::from_nanos(FIRST_DECISION_NS + 2 * LOOK_NS) {
        continuous.window()?;
    }
    for program in &mut loud {
        assert!(program.is_running()?, "it has been loud all the time");
    }
    drop(loud);
    let last = continuous.window()?.clone();
    let ended = continuous.stop()?;
    for window in &ended.windows {
        assert_eq!(number(window, "frequency_hz"), 19, "{} {window}", ended.governor);
    }
    assert_eq!(ended.account["frequencies"].as_array().map(Vec::len), Some(0), "{}", ended.account);
    assert_eq!((number(&ended.governor, "frequency_hz"), number(&ended.governor, "lowered")), (19, 0));
    // That proves something if each has taken more than its share, and all together more than there is.
    println!("{}", ended.governor);
    for (kind, share) in [("processes", 200), ("announcements", 100)] {
        let cost = cost_between(&quiet, &last, |window| number(&window["spent_ns"], kind))?;
        println!("{cost} thousandths of a percent of the machine for {kind}");
        assert_enough(&format!("thousandths of a percent of the machine for {kind}"), cost, share);
    }
    let all = cost_at_first_decision(&ended.windows)?;
    println!("{all} for all of it, smoothed, when the governor decided");
    assert_enough("thousandths of a percent of the machine for all of it", all, 1000);
    Ok(())
}

fn cpus() -> Result<u64> {
    Ok(u64::try_from(std::thread::available_parallelism()?.get())?)
}

/// What something has cost from one window to another, in thousandths of a percent of the machine.
fn cost_between(from: &Value, to: &Value, spent_ns: impl Fn(&Value) -> u64) -> Result<u64> {
    let passed_ns = number(to, "end_ns") - number(from, "end_ns");
    Ok(100_000 * (spent_ns(to) - spent_ns(from)) / (passed_ns * cpus()?))
}

/// The same of all work, smoothed as the governor does it, when that decides for the first time.
fn cost_at_first_decision(windows: &[Value]) -> Result<u64> {
    // Windows are a second long, more or less.
    let passed = |from: &Value, to: &Value, ns: u64| number(to, "end_ns") - number(from, "end_ns") + LOOK_NS / 10 >= ns;
    let first = windows.first().context("no window")?;
    let (mut before, mut smoothed) = (first, 0);
    for window in windows.iter().filter(|window| !passed(first, window, FIRST_DECISION_NS + LOOK_NS)) {
        if passed(before, window, LOOK_NS) {
            smoothed = (3 * smoothed + cost_between(before, window, spent_ns)?) / 4;
            before = window;
        }
    }
    Ok(smoothed)
}

/// CPU time of all kinds of work so far.
fn spent_ns(window: &Value) -> u64 {
    window["spent_ns"].as_object().into_iter().flat_map(|kinds| kinds.values()).filter_map(Value::as_u64).sum()
}

#[test]
fn a_flood_of_records_and_noise_is_borne() -> Result<()> {
    let own = Own::new()?;
    let mut continuous = own.continuous("99")?;
    let before = steady(&mut continuous)?;
    let mut target = own.storm(&["flood", &(5 * scale()).to_string(), "100"])?;
    let mut sampled = 0;
    while target.is_running()? {
        sampled += continuous.window()?["comms"]["storm"].as_u64().unwrap_or(0);
    }
    println!("{} blocks of 64 KiB", done(&mut target)?);
    assert!(sampled > 0, "windows close, and it is in them, while it floods");
    assert_back(&mut continuous, &before)?;
    let (most, others) = (most(&continuous.stop()?, "resident_kib"), number(&before, "resident_kib"));
    assert!(most < others + (128 << 10), "{most} KiB, {others} without the flood");
    Ok(())
}

#[test]
fn dumps_and_mappings_that_never_end_are_borne() -> Result<()> {
    let own = Own::new()?;
    let mut continuous = own.continuous("99")?;
    let before = steady(&mut continuous)?;
    let seconds = (10 * scale()).to_string();
    let mut dumps = own.storm(&["dumps", &seconds, "20"])?;
    let mut maps = own.storm(&["maps", &seconds, "2000"])?;
    while dumps.is_running()? || maps.is_running()? {
        continuous.window()?;
    }
    println!("{} dumps, {} rounds of 2000 mappings", done(&mut dumps)?, done(&mut maps)?);
    assert_back(&mut continuous, &before)?;
    let ended = continuous.stop()?;
    assert_sampled(&ended);
    // 16 dumps of a process are followed at a time, each with three descriptors.
    let most_fds = most(&ended, "descriptors");
    assert!(most_fds < number(&before, "descriptors") + 200, "{most_fds} descriptors");
    Ok(())
}

/// Who starts processes, maps, begins dumps, writes nonsense, announces what is not there, churns, has libraries in
/// turns at one address, runs a patched copy, and whose files do not answer, all at once, beside somebody who does
/// nothing of it.
#[test]
fn who_is_quiet_beside_all_of_them_loses_nothing() -> Result<()> {
    let (scratch, patched, own) = (Scratch::new()?, Scratch::new()?, Scratch::new()?);
    let (original, copy) = copies::program_and_copy(&patched)?;
    let mut continuous = Continuous::start(&own, &["--hz", "499"])?;
    let program = own.file("quiet");
    std::fs::copy(path_from("JITPROF_DEMO")?, &program)?;
    let mut command = Command::new(program);
    command.args(["--secs", "6000", "--generations", "1"]);
    let quiet = Target::start(command, &own)?;
    let before = continuous.skip(4)?;
    let rates: [&[&str]; 5] =
        [&["forks", "1000"], &["maps", "2000"], &["dumps", "20"], &["flood", "50"], &["loads", "2000"]];
    let mut loud = vec![
        ("silent", silent(&scratch)?),
        ("turns", joints::turns(&scratch, "plugins", [24, 60])?),
        ("original", copies::start(&patched, &original)?),
        ("copy", copies::start(&patched, &copy)?),
        ("churning", churning(&scratch)?),
    ];
    for rate in rates {
        loud.push((rate[0], storm(&scratch, &[rate[0], "6000", rate[1]])?));
    }
    let (mut longest, mut at) = (Duration::ZERO, Instant::now());
    for _ in 0..10 * scale() {
        continuous.window()?;
        longest = longest.max(at.elapsed());
        at = Instant::now();
    }
    for (name, program) in &mut loud {
        assert!(program.is_running()?, "{name} has been loud all the time");
        let used_ms = program.cpu_ms_with_children()?;
        println!("{used_ms} ms used by {name}");
        assert_enough(&format!("milliseconds that {name} has used"), used_ms, LOUD_MS);
    }
    quiet.signal(libc::SIGSTOP)?;
    let used_ms = quiet.cpu_ms()?;
    continuous.skip(4)?;
    let windows = continuous.stop()?.windows;
    let of_quiet =
        |what: &str| windows.iter().filter_map(|window| window[what]["quiet"].as_u64()).sum::<u64>() / 1_000_000;
    let (sampled_ms, whole_ms) = (of_quiet("comms"), of_quiet("whole"));
    let most = windows.iter().map(|window| number(window, "resident_kib")).max().unwrap_or(0);
    println!(
        "{used_ms} ms used, {sampled_ms} ms sampled, {whole_ms} ms in whole stacks; {longest:?} between two windows"
    );
    println!("{most} KiB resident at the height, {} KiB before", number(&before, "resident_kib"));
    assert_enough("milliseconds of the quiet one", sampled_ms, 1000);
    // At 499 Hz each millisecond is half a sample.
    assert_share("what it used", Share { part: sampled_ms / 2, whole: (sampled_ms + used_ms) / 2 }, 0.5);
    assert_at_least_of_few("whole stacks", Share { part: whole_ms / 2, whole: sampled_ms / 2 }, 0.98);
    assert_in_time("the next window", longest, Duration::from_secs(10));
    assert!(most < number(&before, "resident_kib") + (192 << 10), "{most} KiB");
    Ok(())
}

#[test]
fn a_stopped_target_holds_up_no_window_and_its_samples_are_named() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = storm(&scratch, &["burn", "300"])?;
    let mut continuous = Continuous::start(&scratch, &["--hz", "499", "--pid", target.said("pid")?])?;
    continuous.until("the target's function", 20, |window| leaf_ns(window, "storm_burn") > 0)?;
    target.signal(libc::SIGSTOP)?;
    continuous.until("nothing of it while it is stopped", 20, |window| number(window, "samples") == 0)?;
    let stopped = continuous.skip(3)?;
    assert_eq!(number(&stopped, "samples"), 0);
    target.signal(libc::SIGCONT)?;
    continuous.until("the target's function again", 20, |window| leaf_ns(window, "storm_burn") > 0)?;
    continuous.stop()?;
    Ok(())
}

#[test]
fn a_full_ring_loses_samples_that_are_counted() -> Result<()> {
    let own = Own::new()?;
    let targets = [own.storm(&["burn", "600"])?, own.storm(&["burn", "600"])?];
    let mut continuous = own.continuous("999")?;
    continuous.skip(3)?;
    // The profiler itself is stopped: nobody takes samples out of the ring. It holds 1 MiB, which is some 7000 samples of
    // stacks as short as these; 20 seconds of CPU time make 20,000.
    signal(continuous.pid(), libc::SIGSTOP)?;
    let used = || -> Result<u64> { targets.iter().map(Target::cpu_ms).sum() };
    let start = used()?;
    wait_until("the targets to fill the ring", || Ok((used()? >= start + 20_000).then_some(())))?;
    signal(continuous.pid(), libc::SIGCONT)?;
    continuous.skip(4)?;
    let ended = continuous.stop()?;
    let lost = ended.number("/samples/lost_ring_full")?;
    println!("{lost} of {} samples lost", ended.number("/samples/taken")?);
    assert!(lost > 0, "the ring does not hold 20,000 samples");
    Ok(())
}

fn signal(pid: u32, signal: i32) -> Result<()> {
    // SAFETY: kill only takes numbers; the process is a child that has not been waited for, so the pid is its own.
    let result = unsafe { libc::kill(i32::try_from(pid)?, signal) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()).context("cannot send a signal") }
}

#[test]
fn short_memory_makes_it_smaller_and_samples_stay_named() -> Result<()> {
    let scratch = Scratch::new()?;
    let target = storm(&scratch, &["burn", "300"])?;
    let mut continuous = Continuous::start(&scratch, &["--hz", "199", "--pid", target.said("pid")?])?;
    continuous.skip(4)?;
    continuous.tell("tight on")?;
    let tight = continuous.skip(3)?;
    assert!(leaf_ns(&tight, "storm_burn") > 0, "{tight}");
    continuous.tell("tight off")?;
    let after = continuous.skip(3)?;
    assert!(leaf_ns(&after, "storm_burn") > 0, "{after}");
    continuous.stop()?;
    Ok(())
}
