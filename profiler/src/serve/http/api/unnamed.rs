//! `/api/unnamed`: whose generated code has no names, and what names it.

use std::cmp::Reverse;
use std::time::SystemTime;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use super::Request;
use crate::account::{Naming, ProcessNaming};
use crate::advice::{Clues, for_process};
use crate::engine::UNNAMED_JIT;
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

/// CPU time of samples whose innermost frame is generated code without a name, by process, and what is known of its names.
fn unnamed_json(profile: &Profile, naming: &[ProcessNaming]) -> Value {
    let is_unnamed: Vec<bool> = profile
        .frame_ids()
        .map(|id| profile.frame(id))
        .map(|frame| frame.kind == FrameKind::Jit && frame.name == UNNAMED_JIT)
        .collect();
    let mut sums: FxHashMap<u32, (u64, TaskId)> = FxHashMap::default();
    profile.visit_rows(|row| {
        let leaf = profile.pop(row.stack).map(|(_, frame)| frame);
        if !leaf.is_some_and(|frame| is_unnamed[frame.index()]) {
            return;
        }
        let (sum, first) = sums.entry(profile.task_of(row.task).pid.0).or_insert((0, row.task));
        *sum = sum.saturating_add(row.cpu_ns);
        // Of several, the one that is the first by its value, whatever order rows are in.
        if profile.task_of(row.task) < profile.task_of(*first) {
            *first = row.task;
        }
    });
    let mut found: Vec<_> = sums.into_iter().map(|(pid, (cpu_ns, task))| (Reverse(cpu_ns), pid, task)).collect();
    found.sort_by_key(|&(cpu_ns, pid, _)| (cpu_ns, pid));
    let more = found.len().saturating_sub(MAX_PROCESSES);
    let processes: Vec<Value> = found
        .into_iter()
        .take(MAX_PROCESSES)
        .map(|(Reverse(cpu_ns), pid, task)| {
            let task = profile.task_of(task);
            let exe = label_of(task, "exe").unwrap_or_default();
            let comm = label_of(task, "comm").unwrap_or_default();
            // Those of processes that have ended are no longer known, and their number may be another's by now.
            let known = naming.iter().find(|known| known.pid == pid && known.comm == *comm);
            json!({
                "pid": pid,
                "comm": printable(&comm),
                "cpu_ns": cpu_ns,
                "runtime": known.and_then(|known| known.runtime.as_deref()).map(printable),
                "why": known.map(|known| reasons(&known.naming)).unwrap_or_default(),
                "advice": for_process(&Clues { exe: &exe, ..Clues::default() }),
            })
        })
        .collect();
    json!({ "processes": processes, "more": more })
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
    use jitprof_common::units::{MonoNs, Pid, Tid};

    #[test]
    fn each_process_has_its_time_and_what_it_needs() {
        let meta = ProfileMeta {
            title: String::new(),
            start_time: UNIX_EPOCH,
            start: MonoNs(0),
            duration: Duration::from_secs(1),
            frequency_hz: NonZeroU32::new(100).unwrap(),
            event: SampledEvent::CpuClock,
        };
        let mut profile = Profile::new(meta, u64::MAX);
        for (pid, exe, names, count) in [
            (7, "/usr/bin/node", &["main", UNNAMED_JIT][..], 3),
            (8, "/opt/secret", &[UNNAMED_JIT], 9),
            // Under such code, and not in it; and a function that is only called so.
            (9, "/usr/bin/node", &[UNNAMED_JIT, "write"], 50),
        ] {
            let stack = names.iter().fold(profile.stack_root(), |prefix, name| {
                let kind = if *name == UNNAMED_JIT { FrameKind::Jit } else { FrameKind::Native };
                let frame = FrameRef { name, kind, tier: None, inlined: false, module: None, source: None, address: 0 };
                let frame = profile.intern_frame_ref(&frame);
                profile.push(prefix, frame)
            });
            let labels = Arc::new([("comm", "app"), ("exe", exe)].into_iter().collect());
            let task = Task { pid: Pid(pid), process_start: 0, tid: Tid(pid), comm: Arc::from("t"), labels };
            let task = profile.task(task);
            profile.add(MonoNs(0), stack, task, count);
        }
        let naming = |pid, comm: &str, unnamed: &[(&'static str, u64)]| ProcessNaming {
            pid,
            comm: comm.to_owned(),
            runtime: Some("V8 11.3".to_owned()),
            naming: Naming { unnamed: unnamed.iter().copied().collect(), ..Naming::default() },
        };
        // The second's number was another process'.
        let known = [naming(7, "app", &[("few", 1), ("many", 9), ("none", 0)]), naming(8, "other", &[("few", 1)])];
        let json = unnamed_json(&profile, &known);
        let processes = json["processes"].as_array().unwrap();
        let found: Vec<_> = processes.iter().map(|one| (one["pid"].as_u64(), one["cpu_ns"].as_u64())).collect();
        assert_eq!(found, [(Some(8), Some(90_000_000)), (Some(7), Some(30_000_000))]);
        assert!(processes[0]["advice"].as_str().unwrap().contains("no runtime that jitprof knows"));
        assert!(processes[1]["advice"].as_str().unwrap().contains("--perf-prof"), "{json}");
        assert_eq!((&processes[1]["runtime"], &processes[1]["why"]), (&json!("V8 11.3"), &json!(["many", "few"])));
        assert_eq!((&processes[0]["runtime"], &processes[0]["why"]), (&Value::Null, &json!([])));
    }
}
