//! `jitprof dump`: the stacks of threads that wait, and of those that run.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use jitprof_tests::{Jitprof, Scratch, Target, compile, path_from, target_file, wait_until};

/// The frames of a thread, innermost first, and what it does.
fn thread_of(dump: &str, tid: u32) -> Result<(String, Vec<String>)> {
    let is_it = |block: &&str| {
        let head = block.lines().next().unwrap_or_default();
        head.trim_start_matches("thread ").split(", ").any(|one| one.split(' ').next() == Some(&tid.to_string()))
    };
    let block = dump.split("\n\n").find(is_it).with_context(|| format!("no thread {tid}: {dump}"))?;
    let mut lines = block.lines().skip(1);
    let what = lines.next().unwrap_or_default().trim().to_owned();
    // The name stands behind the kind, before the place.
    let name = |line: &str| line.get(20..).unwrap_or_default().split("  ").next().unwrap_or_default().to_owned();
    Ok((what, lines.map(name).collect()))
}

fn dump(scratch: &Scratch, pid: u32) -> Result<String> {
    let finished = Jitprof::new(scratch, ["dump", &pid.to_string()])?.run()?;
    ensure!(finished.status.success(), "{}", finished.stderr);
    Ok(finished.stdout)
}

fn switches(pid: u32) -> Result<Vec<String>> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/status"))?;
    Ok(status.lines().filter(|line| line.contains("ctxt_switches")).map(str::to_owned).collect())
}

/// Until a thread waits and stays so.
fn wait_until_it_waits(pid: u32) -> Result<()> {
    wait_until("the program to wait", || {
        let call = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/syscall"))?;
        let before = switches(pid)?;
        std::thread::sleep(std::time::Duration::from_millis(100));
        Ok((!call.starts_with("running") && switches(pid)? == before).then_some(()))
    })
}

/// Asserts that these are among the frames, from the innermost on, and that the last of them is the outermost.
fn assert_calls(frames: &[String], calls: &[&str], shown: &str) -> Result<()> {
    let mut places = Vec::new();
    for name in calls {
        let found = frames.iter().position(|frame| frame.trim_start_matches(['~', '^', '*', '+']) == *name);
        places.push(found.with_context(|| format!("no {name}: {shown}"))?);
    }
    ensure!(places.is_sorted() && places.last() == Some(&(frames.len() - 1)), "{calls:?} are at {places:?}: {shown}");
    Ok(())
}

/// A Node that waits below three functions, started with these flags.
fn dump_of_node(flags: &[&str]) -> Result<(String, Vec<String>)> {
    let scratch = Scratch::new()?;
    let mut node = Command::new(path_from("JITPROF_NODE")?);
    node.args(flags).arg(target_file("node/waits.js")?);
    let target = Target::start(node, &scratch)?;
    let pid = target.pid()?;
    wait_until_it_waits(pid)?;
    let before = switches(pid)?;
    let shown = dump(&scratch, pid)?;
    ensure!(switches(pid)? == before, "it has run");
    let (what, frames) = thread_of(&shown, pid)?;
    ensure!(what == "waits", "{what}");
    assert_calls(&frames, &["waits", "holds", "begins", "_start"], &shown)?;
    ensure!(frames[0].contains("futex") || frames[0].contains("schedule"), "no frame of the kernel: {shown}");
    // Its other threads wait, too, and none is without a stack.
    ensure!(!shown.contains("has no user code") && shown.matches("\nthread ").count() >= 2, "{shown}");
    Ok((shown, frames))
}

#[test]
fn a_thread_that_waits_below_javascript_is_shown_and_does_not_notice() -> Result<()> {
    dump_of_node(&["--perf-prof", "--interpreted-frames-native-stack"]).map(drop)
}

#[test]
fn functions_of_a_node_without_flags_that_waits_have_names_and_lines() -> Result<()> {
    let (shown, frames) = dump_of_node(&[])?;
    ensure!(!frames.iter().any(|frame| frame.contains("InterpreterEntryTrampoline")), "one has no name: {shown}");
    let text = std::fs::read_to_string(target_file("node/waits.js")?)?;
    let place = |(before, line): (usize, &str)| Some((before + 1, line.find("waits(cell)}")? + 1));
    let (line, column) = text.lines().enumerate().find_map(place).context("no such call")?;
    ensure!(shown.contains(&format!("/waits.js:{line}:{column}\n")), "not where `holds` calls: {shown}");
    Ok(())
}

#[test]
fn functions_of_a_cpython_without_flags_have_names_in_all_threads_that_wait() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut python = Command::new(path_from("JITPROF_PYTHON")?);
    python.arg(target_file("python/waits.py")?);
    let target = Target::start(python, &scratch)?;
    let pid = target.pid()?;
    wait_until_it_waits(pid)?;
    let shown = dump(&scratch, pid)?;
    let threads: [(u32, &[&str]); 3] = [
        (pid, &["Event.wait", "holds", "begins", "<module>", "_start"]),
        (target.said("taker")?.parse()?, &["Taker.takes", "Thread.run", "Thread._bootstrap", "clone3"]),
        // A C function between two runs of the interpreter's loop.
        (
            target.said("sorter")?.parse()?,
            &["Event.wait", "compares", "list_sort", "sorts", "Thread.run", "Thread._bootstrap", "clone3"],
        ),
    ];
    for (tid, calls) in threads {
        let (what, frames) = thread_of(&shown, tid)?;
        ensure!(what == "waits", "{what}");
        assert_calls(&frames, calls, &shown)?;
    }
    Ok(())
}

#[test]
fn functions_of_a_php_without_flags_that_waits_have_names() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut php = Command::new(path_from("JITPROF_PHP")?);
    php.arg(target_file("php/waits.php")?);
    let target = Target::start(php, &scratch)?;
    let pid = target.pid()?;
    wait_until_it_waits(pid)?;
    let shown = dump(&scratch, pid)?;
    let (what, frames) = thread_of(&shown, pid)?;
    ensure!(what == "waits", "{what}");
    assert_calls(&frames, &["holds", "Keeper::keeps", "waits.php", "_start"], &shown)
}

#[test]
fn functions_of_a_ruby_that_waits_have_names() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut ruby = Command::new(path_from("JITPROF_RUBY")?);
    ruby.arg(target_file("ruby/waits.rb")?);
    let target = Target::start(ruby, &scratch)?;
    let pid = target.pid()?;
    wait_until_it_waits(pid)?;
    let shown = dump(&scratch, pid)?;
    let (what, frames) = thread_of(&shown, pid)?;
    ensure!(what == "waits", "{what}");
    assert_calls(&frames, &["sleep", "holds", "block in keeps", "each", "keeps", "<main>", "_start"], &shown)
}

#[test]
fn a_thread_that_runs_is_sampled() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut demo = Command::new(path_from("JITPROF_DEMO")?);
    demo.args(["--secs", "600", "--generations", "1"]);
    let target = Target::start(demo, &scratch)?;
    let pid = target.pid()?;
    // On a busy machine it may get no CPU in the time that it is sampled; then it says so.
    let (shown, frames) = wait_until("a sample", || {
        let shown = dump(&scratch, pid)?;
        let (what, frames) = thread_of(&shown, pid)?;
        ensure!(what == "runs" || what == "waits", "{shown}");
        let has_one = frames.iter().any(|frame| frame.starts_with("outer"));
        ensure!(
            has_one || what == "waits" || frames == ["[it was on no CPU while it was sampled, or too shortly]"],
            "{shown}"
        );
        Ok(has_one.then_some((shown, frames)))
    })?;
    ensure!(frames[0].starts_with("leaf_") || frames.iter().any(|frame| frame.starts_with("leaf_")), "{shown}");
    Ok(())
}

#[test]
fn a_dump_as_json_has_the_threads_of_a_name_each_with_its_frames() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut demo = Command::new(path_from("JITPROF_DEMO")?);
    demo.args(["--secs", "600", "--generations", "1"]);
    let target = Target::start(demo, &scratch)?;
    let pid = u64::from(target.pid()?);
    wait_until("a sample", || {
        let finished = Jitprof::new(&scratch, ["dump", "--comm", "jitdemo", "--json"])?.run()?;
        ensure!(finished.status.success(), "{}", finished.stderr);
        let threads: serde_json::Value = serde_json::from_str(&finished.stdout)?;
        let threads = threads.as_array().context("no list")?;
        let its: Vec<_> = threads.iter().filter(|thread| thread["tid"].as_u64() == Some(pid)).collect();
        ensure!(its.len() == 1 && its[0]["comm"] == "jitdemo" && its[0]["pid"].as_u64() == Some(pid), "{threads:?}");
        let frames = its[0]["frames"].as_array().context("no frames")?;
        let is =
            |name: &str| frames.iter().any(|frame| frame["name"].as_str().is_some_and(|known| known.starts_with(name)));
        Ok((is("leaf_") && is("outer")).then_some(()))
    })?;
    let nobody = Jitprof::new(&scratch, ["dump", "--comm", "no-such-program"])?.run()?;
    ensure!(nobody.status.code() == Some(1) && nobody.stderr.contains("no process is called"), "{}", nobody.stderr);
    Ok(())
}

/// How many times longer a dump would take is a matter of what else runs; that it goes before that is not.
#[test]
fn a_dump_is_taken_before_what_keeps_the_machine_busy() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut demo = Command::new(path_from("JITPROF_DEMO")?);
    demo.args(["--secs", "600", "--generations", "1"]);
    let target = Target::start(demo, &scratch)?;
    let mut running = Jitprof::new(&scratch, ["dump", &target.pid()?.to_string()])?.spawn()?;
    // While it samples it has all its threads.
    let stat = format!("/proc/{}/stat", running.pid());
    running.wait_for("its priority to be raised", || {
        let stat = std::fs::read_to_string(&stat)?;
        let behind_name = stat.rsplit_once(')').context("no name")?.1;
        let nice: i32 = behind_name.split_whitespace().nth(16).context("no niceness")?.parse()?;
        Ok((nice < 0).then_some(()))
    })?;
    let finished = running.finish()?;
    ensure!(finished.status.success(), "{}", finished.stderr);
    Ok(())
}

#[test]
fn memory_that_does_not_answer_costs_the_stacks_of_its_own_process_only() -> Result<()> {
    let scratch = Scratch::new()?;
    let program = compile(&scratch, "cc", "native/unanswered.c", &["-O1", "-g", "-pthread"])?;
    let silent = Target::start(Command::new(program), &scratch)?;
    let mut php = Command::new(path_from("JITPROF_PHP")?);
    php.arg(target_file("php/waits.php")?);
    let other = Target::start(php, &scratch)?;
    let (pid, other) = (silent.pid()?, other.pid()?);
    wait_until_it_waits(pid)?;
    wait_until_it_waits(other)?;
    let finished = Jitprof::new(&scratch, ["dump", &pid.to_string(), &other.to_string()])?.run()?;
    ensure!(finished.status.success(), "{}", finished.stderr);
    let shown = finished.stdout;
    let mut tids = std::fs::read_dir(format!("/proc/{pid}/task"))?.map(|entry| Ok(entry?.file_name()));
    let tid = tids.find_map(|name: Result<_>| name.ok()?.to_str()?.parse().ok().filter(|tid| *tid != pid));
    let (what, frames) = thread_of(&shown, tid.context("one thread")?)?;
    ensure!(what == "waits, and the memory of its process does not answer", "{what}: {shown}");
    ensure!(!frames.iter().any(|frame| frame == "waits_within"), "{shown}");
    let (what, frames) = thread_of(&shown, other)?;
    ensure!(what == "waits", "{what}: {shown}");
    assert_calls(&frames, &["holds", "Keeper::keeps", "waits.php", "_start"], &shown)
}
