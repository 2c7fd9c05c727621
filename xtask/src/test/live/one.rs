//! One live test: a process in a control group, with a folder for temporary files, a log and a limit.
//!
//! The control group is what nothing escapes by accident: a child that outlives its test (`setsid`, a killed parent) is
//! still in it, and would take a CPU from every test after it.

use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::machine::{Machine, Reading};
use super::promises::{self, Promise};
use super::{Class, Failure};
use crate::command::{self, Root};
use crate::prepare::Variables;
use crate::workspace::Workspace;

/// The variable by which the harness learns where to say that chance can cause a failure (`tests/live/chance.rs`).
const CHANCE: &str = "JITPROF_CHANCE";
/// The same of the file that it notes promises in.
const PROMISES: &str = "JITPROF_PROMISES";
/// How long what a test has killed may take to be gone.
const GRACE: Duration = Duration::from_secs(2);
/// Tenths of a second that what is killed here may take: a JVM gives back gigabytes, a task may wait for a disk.
const ENDING: &str = "150";
const POLL: Duration = Duration::from_millis(10);
/// The most that is kept of what a test says about its failure.
const LINES: usize = 12;
const CHARACTERS: usize = 1000;

/// Where the tests' logs are, from the target folder.
pub(super) const LOGS: &str = "live/log";

/// The name of a test's log.
pub(super) fn log_of(name: &str) -> String {
    format!("{}.log", name.replace("::", "."))
}

/// What a run of a test came to.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    pub(super) took: Duration,
    /// None if it passed.
    pub(super) failure: Option<Failure>,
    /// How the machine was meanwhile.
    pub(super) machine: Machine,
    /// What was counted of promises.
    pub(super) promises: Vec<Promise>,
}

/// Where tests run.
pub(super) struct Place {
    root: Root,
    /// The harness's package, as for `cargo test`.
    folder: PathBuf,
    /// Of the logs.
    logs: PathBuf,
    /// The control group's directory for a test, if there is a hierarchy of version 2.
    group: Option<PathBuf>,
    /// The folder for temporary files for a test. Short, as sockets lie in it, and open to other users.
    scratch: PathBuf,
}

impl Place {
    /// The `job`-th place in which a test can run while there are others.
    pub(super) fn new(workspace: &Workspace, root: Root, job: usize) -> Result<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").context("what is mounted?")?;
        let own = format!("jitprof-live-{}-{job}", std::process::id());
        Ok(Self {
            root,
            folder: workspace.root.join("tests"),
            logs: workspace.target.join(LOGS),
            group: control_groups(&mounts).map(|mount| mount.join(&own)),
            scratch: std::env::temp_dir().join(own),
        })
    }

    /// Runs one test.
    pub(super) fn run(&self, binary: &Path, name: &str, variables: &Variables, limit: Duration) -> Result<Ran> {
        std::fs::create_dir_all(&self.logs).with_context(|| format!("cannot create {}", self.logs.display()))?;
        let log = self.logs.join(log_of(name));
        std::fs::DirBuilder::new()
            .mode(0o755)
            .create(&self.scratch)
            .with_context(|| format!("cannot create {}", self.scratch.display()))?;
        let notes = [self.scratch.join("chance"), self.scratch.join("promises")];
        let (before, start) = (Reading::now(), Instant::now());
        let mut child = self.start(binary, name, variables, &log, &notes)?;
        let end = wait(&mut child, limit)?;
        let took = start.elapsed();
        let machine = before.since();
        let mut left = self.left_behind(end.is_none())?;
        let status = match end {
            Some(status) => Some(status),
            None => {
                // A test that sudo has started is root's, and has ended with its control group.
                if let Err(error) = child.kill() {
                    command::progress(&format!("the test cannot be killed ({error}): waiting for its end"));
                }
                child.wait().context("cannot wait for a test")?;
                None
            }
        };
        let said = std::fs::read(&log).with_context(|| format!("cannot read {}", log.display()))?;
        let [by_chance, promises] = notes.map(|note| std::fs::read_to_string(note).unwrap_or_default());
        left.extend(self.clean(status.is_none())?);
        let failure = verdict(status, limit, &String::from_utf8_lossy(&said), &by_chance, &left);
        Ok(Ran { took, failure, machine, promises: promises::noted(&promises) })
    }

    fn start(
        &self,
        binary: &Path,
        name: &str,
        variables: &Variables,
        log: &Path,
        notes: &[PathBuf; 2],
    ) -> Result<Child> {
        let out = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
        let mut shell = self.shell(
            "if [ -n \"$1\" ]; then mkdir \"$1\" && echo $$ >\"$1/cgroup.procs\" || exit 125; fi\nshift; exec \"$@\"",
        );
        shell.arg(self.group.as_deref().unwrap_or(Path::new(""))).arg(binary);
        // Its words go to the log as they come: a test that is ended by its limit has said where it was.
        shell.args(["--exact", name, "--nocapture", "--test-threads=1"]);
        shell.envs(variables.iter().map(|(variable, value)| (variable, value)));
        shell.env("TMPDIR", &self.scratch).env(CHANCE, &notes[0]).env(PROMISES, &notes[1]).current_dir(&self.folder);
        shell.stdin(Stdio::null()).stderr(out.try_clone()?).stdout(out);
        shell.spawn().context("cannot start a shell")
    }

    /// A shell of root's that runs a script with what is added as its arguments.
    fn shell(&self, script: &str) -> Command {
        let mut shell = self.root.command(Path::new("sh")).unwrap_or_else(|| Command::new("sh"));
        shell.args(["-c", script, "sh"]);
        shell
    }

    /// Ends everything that is still in the control group and says what it was, or nothing if the test was `stopped`:
    /// it could not tidy up.
    fn left_behind(&self, stopped: bool) -> Result<Vec<String>> {
        let Some(group) = &self.group else { return Ok(Vec::new()) };
        let deadline = Instant::now() + GRACE;
        while !stopped && populated(group) && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
        let mut left = if stopped || !populated(group) { Vec::new() } else { processes(group) };
        // Groups that the test has made in it go with it.
        let script = "[ -d \"$1\" ] || exit 0; echo 1 >\"$1/cgroup.kill\"; round=0; while [ $round -lt \"$2\" ]; do \
                      find \"$1\" -depth -type d -exec rmdir {} + 2>/dev/null; [ -d \"$1\" ] || exit 0; \
                      sleep 0.1; round=$((round + 1)); done; exit 1";
        let status = self.shell(script).arg(group).arg(ENDING).status().context("cannot start a shell")?;
        if !status.success() {
            left.push(format!("a control group that cannot be emptied, {}", group.display()));
        }
        Ok(left)
    }

    /// Removes its temporary files, and says what was still mounted there, or nothing if the test was `stopped`.
    fn clean(&self, stopped: bool) -> Result<Vec<String>> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").context("what is mounted?")?;
        let mut left = Vec::new();
        // The newest first: they may lie in each other.
        for mount in mounts_below(&mounts, &self.scratch).into_iter().rev() {
            left.push(format!("a mount at {mount}"));
            self.shell("umount -l -- \"$1\"").arg(&mount).status().context("cannot start a shell")?;
        }
        let status = self
            .shell("for round in 1 2 3; do rm -rf --one-file-system -- \"$1\" && exit 0; sleep 0.3; done; exit 1")
            .arg(&self.scratch)
            .status()?;
        anyhow::ensure!(status.success(), "a test has left in {} what cannot be removed", self.scratch.display());
        Ok(if stopped { Vec::new() } else { left })
    }
}

/// Waits for a child's end; none if it takes too long.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a test")? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}

/// Why a test has not passed.
fn verdict(status: Option<ExitStatus>, limit: Duration, said: &str, noted: &str, left: &[String]) -> Option<Failure> {
    if !left.is_empty() {
        return Some(Failure { class: Class::Hard, what: format!("left behind: {}", left.join("; ")) });
    }
    let Some(status) = status else {
        // What had failed before it hung is what it has failed by.
        if said.lines().map(without_name).any(|line| is_panic(line) || line.starts_with("Error: ")) {
            return Some(Failure { class: class_of(&reason(said), noted), what: reason(said) });
        }
        let what = format!("not done after {} s; it said last: {}", limit.as_secs(), last_lines(said, 3));
        return Some(Failure { class: Class::Statistical, what });
    };
    // A program that runs no test says `ok` as well.
    let has_passed = status.success() && said.contains("test result: ok. 1 passed; 0 failed; 0 ignored");
    let what = reason(said);
    if has_passed {
        // A thread that panicked, of the test or of what it has started, and nobody noticed.
        let panicked = said.lines().map(without_name).any(is_panic);
        return panicked.then_some(Failure { class: Class::Hard, what });
    }
    Some(Failure { class: class_of(&what, noted), what })
}

/// The words must be those of the failure: what chance did to a test that went on and failed otherwise is no excuse.
fn class_of(what: &str, noted: &str) -> Class {
    let by_chance = noted.lines().any(|words| !words.is_empty() && what.contains(words));
    if by_chance { Class::Statistical } else { Class::Hard }
}

/// What the test said of its failure: the first panic's message, or the error that it returned.
fn reason(said: &str) -> String {
    let mut lines = said.lines().map(without_name).skip_while(|line| !is_panic(line) && !line.starts_with("Error: "));
    let Some(first) = lines.next() else {
        return format!("it ended without saying why: {}", last_lines(said, 5));
    };
    let ends = ["note: ", "stack backtrace:", "Stack backtrace:", "--- ", "FAILED", "failures:", "test result:"];
    let end = |line: &&str| !ends.iter().any(|end| line.starts_with(end));
    let place = first.split_once("panicked at ").map(|(_, place)| place.trim_end_matches(':'));
    let message: Vec<&str> = lines.take_while(end).take(LINES).collect();
    let text = match place {
        Some(place) => format!("{}\nat {place}", message.join("\n").trim_end()),
        None => format!("{first}\n{}", message.join("\n")),
    };
    text.trim().chars().take(CHARACTERS).collect()
}

/// A test's words without its name, which libtest prints before the first of them: `test a::b ... Error: no window`.
fn without_name(line: &str) -> &str {
    let words = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "));
    words.map_or(line, |(_, words)| words)
}

/// `thread 'node::names' (4711) panicked at tests/live/runs/node.rs:20:5:`
fn is_panic(line: &str) -> bool {
    line.starts_with("thread '") && line.contains("panicked at ")
}

fn last_lines(said: &str, count: usize) -> String {
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join(" / ").chars().take(CHARACTERS).collect()
}

/// Where the hierarchy of version 2 is mounted.
fn control_groups(mounts: &str) -> Option<PathBuf> {
    let mut found = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (mount, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(mount))
    });
    found.next()
}

/// Where something is mounted below a folder, in the order in which it was.
fn mounts_below(mounts: &str, folder: &Path) -> Vec<String> {
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    // Blanks are written as octal numbers; folders of tests have none.
    places.filter(|place| Path::new(place).starts_with(folder)).map(str::to_owned).collect()
}

/// Whether a living process is in it or in a group below.
fn populated(group: &Path) -> bool {
    let events = std::fs::read_to_string(group.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "populated 1")
}

/// The processes in it and in the groups below, by pid and command line.
fn processes(group: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let mut found: Vec<String> = text.lines().map(described).collect();
    for entry in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(processes(&entry.path()));
        }
    }
    found
}

fn described(pid: &str) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&line).replace('\0', " ");
    format!("{pid} ({})", words.trim().chars().take(100).collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    const PANIC: &str = "\nrunning 1 test\n\nthread 'a::b' (12) panicked at tests/live/runs/a.rs:7:5:\nshares: 3 of 4\nand more\nstack backtrace:\n   0: begin\ntest a::b ... FAILED\n";

    fn class(status: i32, said: &str, noted: &str, left: &[String]) -> Option<Class> {
        verdict(Some(ExitStatus::from_raw(status << 8)), LIMIT, said, noted, left).map(|failure| failure.class)
    }

    const LIMIT: Duration = Duration::from_secs(90);
    const OK: &str = "test a::b ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 8 filtered out\n";

    #[test]
    fn only_a_test_that_ran_and_left_nothing_has_passed() {
        assert_eq!(class(0, OK, "", &[]), None);
        assert_eq!(class(0, "test result: ok. 0 passed; 0 failed; 0 ignored", "", &[]), Some(Class::Hard));
        assert_eq!(class(0, OK, "", &["12 (dd)".to_owned()]), Some(Class::Hard));
        let beside = "thread 'worker' (12) panicked at profiler/src/a.rs:7:5:\nindex\n";
        assert_eq!(class(0, &format!("{beside}{OK}"), "index\n", &[]), Some(Class::Hard));
        assert_eq!(class(101, PANIC, "", &[]), Some(Class::Hard));
        assert_eq!(class(101, "", "shares: 3 of 4\n", &[]), Some(Class::Hard));
    }

    #[test]
    fn chance_excuses_only_the_failure_that_it_was_noted_of() {
        assert_eq!(class(101, PANIC, "shares: 3 of 4\n", &[]), Some(Class::Statistical));
        assert_eq!(class(101, PANIC, "waited 120 s\n\n", &[]), Some(Class::Hard));
        assert_eq!(class(101, PANIC, "shares: 3 of 4\n", &["12 (dd)".to_owned()]), Some(Class::Hard));
    }

    #[test]
    fn a_failure_is_told_in_its_own_words() {
        assert_eq!(reason(PANIC), "shares: 3 of 4\nand more\nat tests/live/runs/a.rs:7:5");
        let error = "test a ... Error: no window\n\nCaused by:\n    waited 120 s for it\nFAILED\n";
        assert_eq!(reason(error), "Error: no window\n\nCaused by:\n    waited 120 s for it");
        assert!(reason("a\nb\n").ends_with("a / b"));
        let hung = verdict(None, LIMIT, PANIC, "", &[]).unwrap();
        assert_eq!((hung.class, hung.what), (Class::Hard, reason(PANIC)), "it had failed before it hung");
        let late = verdict(None, LIMIT, "one\ntwo\n", "", &[]).unwrap();
        assert_eq!(
            (late.class, late.what.as_str()),
            (Class::Statistical, "not done after 90 s; it said last: one / two")
        );
    }

    #[test]
    fn the_hierarchy_of_version_2_is_found() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(control_groups(mounts), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(control_groups("proc /proc proc rw 0 0"), None);
    }

    #[test]
    fn what_is_mounted_below_a_folder_is_found() {
        let mounts = "tmpfs /t/live-1-0/a tmpfs rw 0 0\nproc /proc proc rw 0 0\ntmpfs /t/live-1-01 tmpfs rw 0 0\n";
        assert_eq!(mounts_below(mounts, Path::new("/t/live-1-0")), ["/t/live-1-0/a"]);
    }
}
