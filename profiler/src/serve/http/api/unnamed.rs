//! `/api/unnamed`: whose generated code and interpreted functions have no names, and what names them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::SystemTime;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use jitprof_common::units::MonoNs;
use serde_json::{Value, json};

use super::Request;
use crate::account::{Lack, Naming, ProcessNaming};
use crate::advice::{Clues, for_lack, is_worth_a_flag};
use crate::engine::{UNLISTED, UNNAMED_FUNCTION, UNNAMED_JIT};
use crate::process::ProcessId;
use crate::profile::{Profile, TaskId, label_of, printable};
use crate::serve::http::fault::Fault;
use crate::serve::http::params::Params;
use crate::serve::http::work::{Answer, accepts_gzip};
use crate::symbol::FrameKind;

/// Processes at most: those with the most CPU time in such code.
const MAX_PROCESSES: usize = 20;

pub(super) async fn unnamed((State(app), RawQuery(query), headers): Request) -> Result<Response, Fault> {
    let mut params = Params::parse(query.as_deref())?;
    let selection = params.selection("", SystemTime::now())?;
    params.end()?;
    let sources = app.sources(selection).await;
    let gzip = accepts_gzip(&headers);
    let naming = app.state.recording.health().naming;
    app.work.answer(move || Answer::json(&unnamed_json(&sources.profile()?, &naming), gzip)).await
}

/// CPU time of samples whose innermost frame is generated or interpreted code without a name, by process, and what is known
/// of its names.
fn unnamed_json(profile: &Profile, naming: &[ProcessNaming]) -> Value {
    let is_unnamed: Vec<Option<bool>> =
        profile.frame_ids().map(|id| is_unnamed(profile.frame(id).kind, profile.frame(id).name)).collect();
    let mut sums: BTreeMap<ProcessId, (u64, TaskId)> = BTreeMap::new();
    let mut named: BTreeMap<ProcessId, u64> = BTreeMap::new();
    profile.visit_rows(|row| {
        let leaf = profile.pop(row.stack).map(|(_, frame)| frame);
        let Some(is_unnamed) = leaf.and_then(|frame| is_unnamed[frame.index()]) else { return };
        let task = profile.task_of(row.task);
        let id = ProcessId { pid: task.pid, start: MonoNs(task.process_start) };
        if !is_unnamed {
            let sum = named.entry(id).or_default();
            *sum = sum.saturating_add(row.cpu_ns);
            return;
        }
        let sum = sums.entry(id).or_insert((0, row.task));
        *sum = both(profile, *sum, (row.cpu_ns, row.task));
    });
    let mut found = of_one_recording_or_more(profile, sums);
    found.sort_by_key(|&(id, (cpu_ns, _))| (Reverse(cpu_ns), id));
    let more = found.len().saturating_sub(MAX_PROCESSES);
    let processes: Vec<Value> = found
        .into_iter()
        .take(MAX_PROCESSES)
        .map(|(id, (cpu_ns, task))| {
            let task = profile.task_of(task);
            let exe = label_of(task, "exe").unwrap_or_default();
            let comm = label_of(task, "comm").unwrap_or_default();
            // Those of processes that have ended are no longer known, and their number may be another's by now. What has the
            // same number and start may run another program.
            let is_it = |known: &&ProcessNaming| known.pid == id.pid.0 && id.has_start(known.start);
            let known = naming.iter().filter(is_it).find(|known| known.comm == *comm);
            let lack = match known {
                Some(known) => known.lack,
                None => {
                    let of_it = named.iter().filter(|(other, _)| other.pid == id.pid && id.has_start(other.start));
                    let named_ns = of_it.fold(0_u64, |sum, (_, cpu_ns)| sum.saturating_add(*cpu_ns));
                    is_worth_a_flag(cpu_ns, named_ns, false).then_some(Lack::Announcements)
                }
            };
            json!({
                "pid": id.pid.0,
                "comm": printable(&comm),
                "cpu_ns": cpu_ns,
                "runtime": known.and_then(|known| known.runtime.as_deref()).map(printable),
                "why": known.map(|known| reasons(&known.naming)).unwrap_or_default(),
                "advice": lack.and_then(|lack| for_lack(lack, &Clues { exe: &exe, ..Clues::default() })),
            })
        })
        .collect();
    json!({ "processes": processes, "more": more })
}

/// Whether generated or interpreted code has no name; `None` for any other.
fn is_unnamed(kind: FrameKind, name: &str) -> Option<bool> {
    match kind {
        FrameKind::Jit => Some(name == UNNAMED_JIT),
        FrameKind::Interpreter => Some([UNNAMED_FUNCTION, UNLISTED].contains(&name)),
        FrameKind::Builtin => Some(false),
        FrameKind::Kernel | FrameKind::Native | FrameKind::Span | FrameKind::Note => None,
    }
}

/// CPU time of one process in two parts: of tasks, the one that is the first by its value, whatever order rows are in.
fn both(profile: &Profile, one: (u64, TaskId), other: (u64, TaskId)) -> (u64, TaskId) {
    let is_other = profile.task_of(other.1) < profile.task_of(one.1);
    (one.0.saturating_add(other.0), if is_other { other.1 } else { one.1 })
}

/// What two recordings say of one process, put together: one that finds it running has read its start, in steps of 10 ms.
fn of_one_recording_or_more(
    profile: &Profile,
    sums: BTreeMap<ProcessId, (u64, TaskId)>,
) -> Vec<(ProcessId, (u64, TaskId))> {
    let mut found: Vec<(ProcessId, (u64, TaskId))> = Vec::new();
    for (id, sum) in sums {
        match found.last_mut() {
            Some((last, of_last)) if last.pid == id.pid && last.has_start(id.start) => {
                *of_last = both(profile, *of_last, sum);
            }
            _ => found.push((id, sum)),
        }
    }
    found
}

/// Why frames have no name, what most of them lack first.
fn reasons(naming: &Naming) -> Vec<&'static str> {
    let mut reasons: Vec<_> = naming.unnamed.iter().filter(|(_, frames)| **frames > 0).collect();
    reasons.sort_by_key(|(reason, frames)| (Reverse(**frames), **reason));
    reasons.into_iter().map(|(reason, _)| *reason).collect()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Arc;
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::profile::{FrameRef, ProfileMeta, SampledEvent, Task};
    use jitprof_common::units::{Pid, Tid};

    const S: u64 = 1_000_000_000;

    /// Samples of a process, by number and start: its program, its stack from the root, how many.
    type Sampled<'a> = ((u32, u64), &'a str, &'a [&'a str], u64);

    fn sampled(samples: &[Sampled<'_>]) -> Profile {
        let meta = ProfileMeta {
            title: String::new(),
            start_time: UNIX_EPOCH,
            start: MonoNs(0),
            duration: Duration::from_secs(1),
            frequency_hz: NonZeroU32::new(100).unwrap(),
            event: SampledEvent::CpuClock,
        };
        let mut profile = Profile::new(meta, u64::MAX);
        for &((pid, start), exe, names, count) in samples {
            let stack = names.iter().fold(profile.stack_root(), |prefix, name| {
                let kind = match *name {
                    UNNAMED_FUNCTION | UNLISTED => FrameKind::Interpreter,
                    name if name == UNNAMED_JIT || name.starts_with("js:") => FrameKind::Jit,
                    _ => FrameKind::Native,
                };
                let frame = FrameRef { name, kind, tier: None, inlined: false, module: None, source: None, address: 0 };
                let frame = profile.intern_frame_ref(&frame);
                profile.push(prefix, frame)
            });
            let labels = Arc::new([("comm", "app"), ("exe", exe)].into_iter().collect());
            let task = Task { pid: Pid(pid), process_start: start, tid: Tid(pid), comm: Arc::from("t"), labels };
            let task = profile.task(task);
            profile.add(MonoNs(0), stack, task, count);
        }
        profile
    }

    #[test]
    fn interpreted_functions_without_a_name_are_none_that_have_one() {
        // It has ended: what there is to say is known by its samples alone.
        let (id, node) = ((7, 5 * S), "/usr/bin/node");
        let profile = sampled(&[
            (id, node, &[UNNAMED_JIT], 1),
            (id, node, &[UNNAMED_FUNCTION], 5),
            (id, node, &[UNLISTED], 3),
            (id, node, &["js:leaf"], 8),
        ]);
        let json = unnamed_json(&profile, &[]);
        let process = &json["processes"][0];
        assert_eq!(process["cpu_ns"], json!(90_000_000), "{json}");
        assert!(process["advice"].as_str().is_some_and(|advice| advice.contains("--perf-prof")), "{json}");
    }

    #[test]
    fn each_process_has_its_time_and_what_it_needs() {
        let profile = sampled(&[
            // As two recordings know it.
            ((7, 5 * S), "/usr/bin/node", &["main", UNNAMED_JIT][..], 2),
            ((7, 5 * S + 7_000_000), "/usr/bin/node", &["main", UNNAMED_JIT][..], 1),
            ((8, 5 * S), "/opt/secret", &[UNNAMED_JIT], 9),
            // Under such code, and not in it; and a function that is only called so.
            ((9, 5 * S), "/usr/bin/node", &[UNNAMED_JIT, "write"], 50),
            // Its number was the first one's before.
            ((7, 2 * S), "/usr/bin/node", &[UNNAMED_JIT], 1),
            // Nearly all of them is named, of one that runs and of one that has ended.
            ((10, 5 * S), "/usr/bin/node", &[UNNAMED_JIT], 5),
            ((11, 5 * S), "/usr/bin/node", &[UNNAMED_JIT], 4),
            ((11, 5 * S + 7_000_000), "/usr/bin/node", &["js:leaf"], 80),
        ]);
        let naming = |pid, comm: &str, unnamed: &[(&'static str, u64)]| ProcessNaming {
            pid,
            start: MonoNs(5 * S),
            comm: comm.to_owned(),
            runtime: Some("V8 11.3".to_owned()),
            naming: Naming { unnamed: unnamed.iter().copied().collect(), ..Naming::default() },
            lack: (pid == 7).then_some(Lack::Announcements),
        };
        // The second's number was another process'.
        let known = [
            naming(7, "app", &[("few", 1), ("many", 9), ("none", 0)]),
            naming(8, "other", &[("few", 1)]),
            naming(10, "app", &[("few", 1)]),
        ];
        let json = unnamed_json(&profile, &known);
        let processes = json["processes"].as_array().unwrap();
        let found: Vec<_> = processes.iter().map(|one| (one["pid"].as_u64(), one["cpu_ns"].as_u64())).collect();
        let times: [(u64, u64); 5] = [(8, 90), (10, 50), (11, 40), (7, 30), (7, 10)];
        assert_eq!(found, times.map(|(pid, cpu_ms)| (Some(pid), Some(cpu_ms * 1_000_000))));
        assert_eq!((&processes[1]["advice"], &processes[1]["why"]), (&Value::Null, &json!(["few"])), "{json}");
        assert_eq!(processes[2]["advice"], Value::Null, "{json}");
        assert!(processes[0]["advice"].as_str().unwrap().contains("no runtime that jitprof knows"));
        assert!(processes[3]["advice"].as_str().unwrap().contains("--perf-prof"), "{json}");
        assert_eq!((&processes[3]["runtime"], &processes[3]["why"]), (&json!("V8 11.3"), &json!(["many", "few"])));
        for not_known in [&processes[0], &processes[4]] {
            assert_eq!((&not_known["runtime"], &not_known["why"]), (&Value::Null, &json!([])), "{json}");
        }
    }
}
