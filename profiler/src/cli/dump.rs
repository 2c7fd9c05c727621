//! `jitprof dump`: what every thread of a process does now.

use std::borrow::Cow;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::time::Duration;

use clap::Args as ClapArgs;
use serde::Serialize;

use super::args::id;
use super::config::default_title;
use super::say::say;
use crate::output::color::Class;
use crate::output::frame_names::{self, frame_name, short_path};
use crate::profile::{FrameRef, Profile, Row, StackId, printable, shorten};
use crate::record::{
    CallGraph, Doing, InterpreterFrames, RecordError, RecordOptions, Recorder, Stacks, Targets, ThreadStack,
    processes_called,
};
use jitprof_common::units::Pid;

/// Often enough that a thread that runs has been sampled after some milliseconds.
const FREQUENCY_HZ: u32 = 499;
/// A dump is less than a second of CPU time for which somebody waits, mostly where too much runs. Among eleven busy threads
/// on two CPUs, 8 MB of a Node's jitdump were read in 30 steps between threads that each waited for their turn: it took 18
/// seconds, and the names were not there in time.
const NICENESS: i32 = -20;
/// Longest name of a frame, in bytes.
const MAX_NAME_BYTES: usize = 300;

/// What `dump` takes.
#[derive(Debug, ClapArgs)]
pub struct Arguments {
    /// Processes, as with --pid
    #[arg(value_name = "PID", value_parser = id, conflicts_with = "pid", required_unless_present_any = ["pid", "comm"])]
    pids: Vec<u32>,

    /// Processes whose threads are shown
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = id)]
    pid: Vec<u32>,

    /// Processes that have this name now, or whose program has it; repeatable
    #[arg(long, value_name = "NAME")]
    comm: Vec<String>,

    /// Write a list of threads as JSON, each with its frames from the innermost on
    #[arg(long, conflicts_with = "each")]
    json: bool,

    /// Each thread on its own, also where several do the same
    #[arg(long)]
    each: bool,

    /// Do not read from the target's memory what its runtime has not written yet
    #[arg(long)]
    no_peek: bool,

    /// Do not read what the target's runtime knows of its own code
    #[arg(long)]
    no_read_runtime: bool,
}

/// Why there is no dump.
#[derive(Debug, thiserror::Error)]
pub(super) enum DumpError {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("no process is called {name} now")]
    NobodyCalled { name: String },
    #[error("cannot write JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("cannot write to standard output: {0}")]
    Stdout(#[from] io::Error),
}

/// Writes the stacks.
///
/// # Errors
/// [`DumpError`].
pub(super) fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), DumpError> {
    // Of this thread, and of those that it starts. Without the right to it a dump takes longer.
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!("the usual priority stays: {error}");
    }
    let mut pids: Vec<Pid> = arguments.pids.iter().chain(&arguments.pid).copied().map(Pid).collect();
    for name in &arguments.comm {
        let called = processes_called(name);
        if called.is_empty() {
            return Err(DumpError::NobodyCalled { name: printable(name).into_owned() });
        }
        pids.extend(called);
    }
    pids.sort_unstable();
    pids.dedup();
    let recorder = Recorder::start(options(arguments, Targets::Processes(pids.clone())))?;
    let stacks = recorder.stacks(&pids)?;
    let shown = if arguments.json { as_json(&stacks)? } else { print(&stacks, arguments.each) };
    out.write_all(shown.as_bytes())?;
    for remark in &stacks.recorded.account.remarks {
        say!("jitprof: {}", printable(remark));
    }
    let without = stacks.threads.iter().filter(|thread| stack_of(&stacks, thread).is_none()).count();
    if without > 0 {
        say!("jitprof: {without} of {} threads have no stack here; each says why", stacks.threads.len());
    }
    Ok(())
}

fn options(arguments: &Arguments, targets: Targets) -> RecordOptions {
    RecordOptions {
        title: default_title(&targets, &[]),
        targets,
        inherit: false,
        frequency_hz: FREQUENCY_HZ,
        event: None,
        kernel_stack: true,
        user_stack: true,
        call_graph: CallGraph::Auto,
        unwind_mib: None,
        peek: !arguments.no_peek,
        read_runtime: !arguments.no_read_runtime,
        probe_registrations: false,
        interpreter: InterpreterFrames::default(),
        verify_names: false,
        gsym: Vec::new(),
        bucket: Duration::ZERO,
        labels: None,
        continuous: false,
        log_kernel: false,
        capture: None,
    }
}

/// A thread's stack in the profile: as it waited, or of the first sample.
fn stack_of(stacks: &Stacks, thread: &ThreadStack) -> Option<StackId> {
    let profile = &stacks.recorded.profile;
    let is_it = |row: &Row| {
        let task = profile.task_of(row.task);
        (task.pid, task.tid) == (thread.pid, thread.tid)
    };
    let mut found: Option<Row> = None;
    profile.visit_rows(|row| {
        let is_wanted = match thread.doing {
            Doing::Waiting(time) => row.time == time && is_it(&row),
            Doing::Running => is_it(&row),
            Doing::Unreadable | Doing::NoAnswer => false,
        };
        if is_wanted && found.is_none_or(|known| row.time < known.time) {
            found = Some(row);
        }
    });
    found.map(|row| row.stack)
}

/// Threads that do the same stand together, those with most first.
fn print(stacks: &Stacks, each: bool) -> String {
    let mut groups: Vec<(String, Vec<&ThreadStack>)> = Vec::new();
    for thread in &stacks.threads {
        let text = stack_text(stacks, thread);
        match groups.iter_mut().find(|(known, with)| !each && *known == text && with[0].pid == thread.pid) {
            Some((_, with)) => with.push(thread),
            None => groups.push((text, vec![thread])),
        }
    }
    let mut shown = String::new();
    let mut process = None;
    for (text, threads) in &groups {
        let first = threads[0];
        if process.replace(first.pid) != Some(first.pid) {
            let count = stacks.threads.iter().filter(|thread| thread.pid == first.pid).count();
            shown.push_str(&format!("process {}, {count} threads\n", first.pid));
        }
        let names: Vec<String> =
            threads.iter().map(|thread| format!("{} {}", thread.tid, printable(&thread.comm))).collect();
        shown.push_str(&format!("\nthread {}\n{text}", names.join(", ")));
    }
    shown
}

/// A thread in JSON.
#[derive(Serialize)]
struct ThreadInJson<'a> {
    pid: u32,
    tid: u32,
    comm: &'a str,
    /// As `ps` has it.
    state: char,
    doing: &'static str,
    /// From the innermost on; empty if there is no stack.
    frames: Vec<FrameInJson<'a>>,
}

/// A frame in JSON.
#[derive(Serialize)]
struct FrameInJson<'a> {
    kind: &'static str,
    name: Cow<'a, str>,
    /// The program or library.
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<&'a str>,
    /// The source file, and the line and the column, from 1, if they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<NonZeroU32>,
}

/// Names are whole and as the target has them: JSON has an escape for each character that a terminal would obey.
fn as_json(stacks: &Stacks) -> Result<String, DumpError> {
    let threads: Vec<_> = stacks.threads.iter().map(|thread| in_json(stacks, thread)).collect();
    let mut text = serde_json::to_string_pretty(&threads)?;
    text.push('\n');
    Ok(text)
}

fn in_json<'a>(stacks: &'a Stacks, thread: &'a ThreadStack) -> ThreadInJson<'a> {
    let profile: &Profile = &stacks.recorded.profile;
    let of_kernel = |name: &'a String| FrameInJson {
        kind: Class::Kernel.label(),
        name: Cow::Borrowed(name),
        module: None,
        file: None,
        line: None,
        column: None,
    };
    let mut frames: Vec<FrameInJson<'_>> = thread.kernel.iter().map(of_kernel).collect();
    let mut ids = Vec::new();
    if let Some(stack) = stack_of(stacks, thread) {
        profile.frames_of(stack, &mut ids);
    }
    frames.extend(ids.into_iter().rev().map(|id| profile.frame(id)).map(|frame| FrameInJson {
        kind: Class::of(frame).label(),
        name: Cow::Owned(frame_name(frame, false)),
        module: frame.module.map(|module| module.path),
        file: frame.source.map(|source| source.file),
        line: frame.source.map(|source| source.line).filter(|line| *line > 0),
        column: frame.source.and_then(|source| source.column),
    }));
    let ThreadStack { pid, tid, comm, state, .. } = thread;
    ThreadInJson { pid: pid.0, tid: tid.0, comm, state: *state, doing: doing_of(thread), frames }
}

fn doing_of(thread: &ThreadStack) -> &'static str {
    match (thread.doing, thread.state) {
        (Doing::Waiting(_), 'D') => "waits, and cannot be interrupted",
        (Doing::Waiting(_), 'T' | 't') => "is stopped",
        (Doing::Waiting(_), _) => "waits",
        (Doing::Running, _) => "runs",
        (Doing::NoAnswer, _) => "waits, and the memory of its process does not answer",
        (Doing::Unreadable, 'Z' | 'X') => "has ended",
        (Doing::Unreadable, _) => "has no user code",
    }
}

fn stack_text(stacks: &Stacks, thread: &ThreadStack) -> String {
    let mut text = format!("  {}\n", doing_of(thread));
    let mut put = |kind: &str, name: &str, place: &str| {
        text.push_str(format!("    {kind:<15} {name}  {place}").trim_end());
        text.push('\n');
    };
    thread.kernel.iter().for_each(|name| put(Class::Kernel.label(), &printable(name), ""));
    let Some(stack) = stack_of(stacks, thread) else {
        if thread.doing == Doing::Running {
            put(Class::Note.label(), "[it was on no CPU while it was sampled, or too shortly]", "");
        }
        return text;
    };
    let profile: &Profile = &stacks.recorded.profile;
    let mut frames = Vec::new();
    profile.frames_of(stack, &mut frames);
    for frame in frames.into_iter().rev().map(|id| profile.frame(id)) {
        put(Class::of(frame).label(), &shorten(&frame_name(frame, false), MAX_NAME_BYTES), &place(frame));
    }
    text
}

/// The place in the source, or the file of the code.
fn place(frame: FrameRef<'_>) -> String {
    match (frame.source, frame.module) {
        (Some(source), _) => frame_names::place(source),
        // A bracketed module, such as [jit], says no more than the kind.
        (None, Some(module)) if !module.path.starts_with('[') => short_path(&printable(module.path)).into_owned(),
        (None, _) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn what_is_not_to_be_read_is_not_read() {
        let options = |words: &[&str]| {
            let words = ["x", "1"].into_iter().chain(words.iter().copied());
            options(&Command::try_parse_from(words).unwrap().arguments, Targets::Processes(vec![Pid(1)]))
        };
        let reads = |words: &[&str]| (options(words).peek, options(words).read_runtime);
        assert_eq!(reads(&[]), (true, true));
        assert_eq!(reads(&["--no-read-runtime"]), (true, false));
        assert_eq!(reads(&["--no-peek"]), (false, true));
    }
}
