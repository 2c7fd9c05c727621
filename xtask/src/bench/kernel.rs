//! What a sample costs in the kernel by depth, beside the same sample with `bpf_get_stack`, and what rows cost.
//!
//! The two samplers run in turns over the same program with the same depth of recursion, each for a second at a time,
//! so that a busy machine is as busy for both.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::report::{Figure, Goal, Report, Spread, ratio};
use super::running::Running;
use super::target::Target;
use super::{Bench, json, profilers};
use crate::command;

/// Frames of recursion. The kernel's own unwinding ends at 127 frames (`kernel.perf_event_max_stack`); the program's
/// other frames are some six.
const DEPTHS: [u32; 3] = [8, 32, 120];
const FREQUENCY: u32 = 999;
const LENGTH: Duration = Duration::from_secs(1);

/// A way to unwind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Rows,
    FramePointers,
    GetStack,
}

impl Way {
    const ALL: [Self; 3] = [Self::Rows, Self::FramePointers, Self::GetStack];
}

/// What it needs besides jitprof.
pub(super) struct Peers {
    /// The object of the sampler with `bpf_get_stack`.
    pub(super) getstack: PathBuf,
    /// `bench_kernel`, which loads it.
    pub(super) loader: PathBuf,
}

pub(super) fn run(bench: &Bench, peers: &Peers, report: &mut Report) -> Result<()> {
    let source = bench.targets.join("native/depth.c");
    let compile = |flag: &str| -> Result<PathBuf> {
        let program = bench.scratch.join(format!("depth{flag}"));
        let mut cc = Command::new("cc");
        cc.args(["-O2", flag, "-o"]).arg(&program).arg(&source);
        command::output(&mut cc).context("this part needs a C compiler")?;
        Ok(program)
    };
    let (without, with) = (compile("-fomit-frame-pointer")?, compile("-fno-omit-frame-pointer")?);
    for depth in DEPTHS {
        let mut costs: Vec<Vec<f64>> = vec![Vec::new(); Way::ALL.len()];
        let mut frames = 0.0;
        for _ in 0..bench.lengths.kernel_rounds {
            for (way, costs) in Way::ALL.iter().zip(&mut costs) {
                let program = if *way == Way::Rows { &without } else { &with };
                let (ns, deep) = sample(bench, peers, *way, program, depth)?;
                costs.push(ns);
                frames = if *way == Way::GetStack { deep } else { frames };
            }
        }
        add(report, depth, frames, &costs)?;
    }
    files(bench, peers, report)
}

fn add(report: &mut Report, depth: u32, frames: f64, costs: &[Vec<f64>]) -> Result<()> {
    let spread = |way: Way| -> Result<Spread> { Spread::of(&costs[way as usize]).context("no rounds") };
    let peer = spread(Way::GetStack)?;
    for (way, name) in [(Way::Rows, "by rows, no frame pointers"), (Way::FramePointers, "by frame pointers")] {
        let ours = spread(way)?;
        let text = |spread: Spread| {
            format!("{:.2} µs ({:.2} to {:.2})", spread.median / 1e3, spread.least / 1e3, spread.most / 1e3)
        };
        report.add(Figure {
            what: format!("depth {depth} ({frames:.0} frames in all), {name}"),
            ours: text(ours),
            peer: text(peer),
            ratio: ratio(ours.median, peer.median),
            goal: Goal::at_most(ours.median / peer.median, 2.0, " ×"),
            commands: Vec::new(),
        });
    }
    Ok(())
}

/// Nanoseconds of a sample and its user frames.
fn sample(bench: &Bench, peers: &Peers, way: Way, program: &Path, depth: u32) -> Result<(f64, f64)> {
    let mut start = Command::new(program);
    start.args([&depth.to_string(), "1200"]);
    let target = Target::start(&mut start, &bench.scratch)?;
    if way == Way::GetStack {
        let mut loader = Command::new(&peers.loader);
        loader.arg("getstack").arg(&peers.getstack).args([&target.pid, &FREQUENCY.to_string(), "1"]);
        let figures = json(&mut loader)?;
        return Ok((number(&figures, "ns_per_sample")?, number(&figures, "frames")?));
    }
    let account = bench.scratch.join("account.json");
    let output = bench.scratch.join("out.folded");
    let mut jitprof = profilers::jitprof(&bench.jitprof, &target.pid, FREQUENCY, &account, &output);
    if way == Way::FramePointers {
        jitprof.args(["--call-graph", "fp"]);
    }
    let mut running = Running::start(&mut jitprof, &bench.scratch.join("log"))?;
    running.wait_for_events()?;
    std::thread::sleep(LENGTH);
    running.stop()?;
    let text = fs::read_to_string(&account).with_context(|| format!("cannot read {}", account.display()))?;
    let account: Value = serde_json::from_str(&text).context("the account is no JSON")?;
    Ok((number(&account["own"], "kernel_ns_per_sample")?, f64::NAN))
}

/// Making rows: of files, and of generated functions.
fn files(bench: &Bench, peers: &Peers, report: &mut Report) -> Result<()> {
    let mut made = Command::new(&peers.loader);
    made.arg("rows").args(&bench.files);
    for file in json(&mut made)?.as_array().context("no list of files")? {
        let name = file["file"].as_str().and_then(|path| path.rsplit('/').next()).unwrap_or("?");
        report.add(Figure {
            what: format!(
                "making the unwind rows of {name}, {} rows, {} kB",
                file["rows"],
                number(file, "bytes")? / 1e3
            ),
            ours: format!("{:.1} ms", number(file, "ms")?),
            peer: String::new(),
            ratio: String::new(),
            goal: None,
            commands: vec![command::shown(&made)],
        });
    }
    for shape in ["node", "erlang"] {
        let dump = bench.scratch.join(format!("{shape}.rows.dump"));
        command::run(Command::new(&bench.ingest).args(["make", shape, "20000"]).arg(&dump))?;
        let mut jit = Command::new(&peers.loader);
        jit.arg("jit").arg(&dump);
        let figures = json(&mut jit)?;
        report.add(Figure {
            what: format!(
                "unwind rows of {} generated functions as {shape}'s ({} with rows), each made, then placed",
                figures["functions"], figures["with_rows"]
            ),
            ours: format!(
                "{:.2} µs + {:.2} µs",
                number(&figures, "us_to_make_one")?,
                number(&figures, "us_to_place_one")?
            ),
            peer: String::new(),
            ratio: String::new(),
            goal: None,
            commands: vec![command::shown(&jit)],
        });
    }
    Ok(())
}

fn number(value: &Value, name: &str) -> Result<f64> {
    value[name].as_f64().with_context(|| format!("no {name}"))
}
