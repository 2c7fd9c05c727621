//! How much slower a program runs while it is profiled.
//!
//! One process all the time, because two runs of a JIT compiler differ by more than a profiler costs; and each profiler
//! in turn within a round, beginning with another one in each, because a shared machine gets faster and slower by the
//! minute. The phase without any profiler is measured twice: what these two differ by is noise, not cost.
//!
//! The goal is held against iterations per second of the target's own CPU time. The sampling interrupt is charged to
//! whom it interrupts, so it is in that figure; what other programs do to the machine meanwhile is not. Iterations by
//! the clock have both, and mean something on an idle machine only.

use std::fmt;

use anyhow::{Context, Result};

use super::Bench;
use super::profilers::{self, Profilers};
use super::report::{Figure, Goal, Report, Spread, ratio};
use super::running::Running;
use super::target::{Pace, Target};
use crate::command;

/// Under what the target runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    Nothing,
    NothingAgain,
    Jitprof(u32),
    Perf(u32),
}

const FREQUENCIES: [u32; 2] = [99, 999];

pub(crate) fn run(bench: &Bench, profilers: &Profilers, report: &mut Report) -> Result<()> {
    let mut arms = vec![Arm::Nothing, Arm::Jitprof(99), Arm::Jitprof(999), Arm::NothingAgain];
    if profilers.perf.is_some() {
        arms.extend([Arm::Perf(99), Arm::Perf(999)]);
    }
    let target = Target::deep(&profilers.node, &bench.targets, &bench.scratch, 0)?;
    let mut paces: Vec<Vec<Pace>> = vec![Vec::new(); arms.len()];
    for round in 0..bench.lengths.slowdown_rounds {
        command::progress(&format!("slow-down, round {} of {}", round + 1, bench.lengths.slowdown_rounds));
        for place in 0..arms.len() {
            let index = (place + round as usize) % arms.len();
            paces[index].push(phase(bench, profilers, &target, arms[index])?);
        }
    }
    let of = |arm: Arm| arms.iter().position(|known| *known == arm).map(|index| paces[index].as_slice());
    let without = of(Arm::Nothing).context("no pace without a profiler")?;
    let again = of(Arm::NothingAgain).context("no pace without a profiler")?;
    let baseline: Vec<Pace> = without.iter().zip(again).map(|(a, b)| mean(*a, *b)).collect();
    let phase_s = bench.lengths.slowdown_phase.as_secs();
    let what = format!("{} phases of {phase_s} s", baseline.len());
    let noise = Slowdown::between(without, again)?;
    report.add(Figure {
        what: format!("noise, {what}"),
        ours: noise.to_string(),
        peer: String::new(),
        ratio: String::new(),
        goal: None,
        commands: vec![target.line.clone()],
    });
    for hz in FREQUENCIES {
        let ours = Slowdown::between(&baseline, of(Arm::Jitprof(hz)).context("no pace")?)?;
        let peer = of(Arm::Perf(hz)).map(|theirs| Slowdown::between(&baseline, theirs)).transpose()?;
        let limit = if hz == 99 { 1.0 } else { 3.0 };
        report.add(Figure {
            what: format!("{hz} Hz, {what}"),
            goal: Goal::at_most(ours.by_cpu.median, limit, " %"),
            ours: ours.to_string(),
            ratio: peer.as_ref().map(|p| ratio(ours.by_cpu.median, p.by_cpu.median)).unwrap_or_default(),
            peer: peer.map(|peer| peer.to_string()).unwrap_or_default(),
            commands: vec![format!("{} --pid PID -F {hz}; PID: {}", bench.jitprof.display(), target.line)],
        });
    }
    Ok(())
}

/// The target's pace while a profiler records it; the profiler's start and end are not in it.
fn phase(bench: &Bench, profilers: &Profilers, target: &Target, arm: Arm) -> Result<Pace> {
    let (account, log) = (bench.scratch.join("account.json"), bench.scratch.join("log"));
    let command = match (arm, &profilers.perf) {
        (Arm::Jitprof(hz), _) => {
            let output = bench.scratch.join("out.svg");
            Some(profilers::jitprof(&bench.jitprof, &target.pid, hz, &account, &output))
        }
        (Arm::Perf(hz), Some(perf)) => {
            Some(profilers::perf_record(perf, &target.pid, hz, &bench.scratch.join("perf.data")))
        }
        _ => None,
    };
    let running = command.map(|mut command| Running::start(&mut command, &log)).transpose()?;
    let running = running.map(|mut running| running.wait_for_events().map(|()| running)).transpose()?;
    // Attaching reads the dump so far and is a cost of its own.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let from = target.notes()?;
    std::thread::sleep(bench.lengths.slowdown_phase);
    let pace = target.pace_since(from)?;
    if let Some(running) = running {
        running.stop()?;
    }
    Ok(pace)
}

fn mean(a: Pace, b: Pace) -> Pace {
    Pace { by_time: f64::midpoint(a.by_time, b.by_time), by_cpu: f64::midpoint(a.by_cpu, b.by_cpu) }
}

/// By how many percent the pace is lower, round by round.
#[derive(Debug)]
struct Slowdown {
    by_time: Spread,
    by_cpu: Spread,
    /// Iterations a second.
    pace: Spread,
}

impl Slowdown {
    fn between(without: &[Pace], with: &[Pace]) -> Result<Self> {
        let spread = |of: fn(&Pace) -> f64| {
            let lost: Vec<f64> = without.iter().zip(with).map(|(a, b)| (1.0 - of(b) / of(a)) * 100.0).collect();
            Spread::of(&lost).context("no rounds")
        };
        let paces: Vec<f64> = with.iter().map(|pace| pace.by_time).collect();
        Ok(Self {
            by_time: spread(|pace| pace.by_time)?,
            by_cpu: spread(|pace| pace.by_cpu)?,
            pace: Spread::of(&paces).context("no rounds")?,
        })
    }
}

impl fmt::Display for Slowdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by_time, by_cpu, pace } = self;
        write!(f, "{:+.2} % by CPU time ({:+.2} to {:+.2}), ", by_cpu.median, by_cpu.least, by_cpu.most)?;
        write!(f, "{:+.2} % by the clock ({:+.2} to {:+.2}), ", by_time.median, by_time.least, by_time.most)?;
        write!(f, "{:.0} iterations/s", pace.median)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slowdown_is_the_median_over_rounds_of_what_each_round_lost() {
        let paces = |values: [f64; 3]| values.map(|value| Pace { by_time: value, by_cpu: value }).to_vec();
        let slowdown = Slowdown::between(&paces([100.0, 200.0, 50.0]), &paces([99.0, 196.0, 50.0])).unwrap();
        assert!((slowdown.by_time.median - 1.0).abs() < 1e-9, "{slowdown:?}");
        assert!((slowdown.by_time.most - 2.0).abs() < 1e-9 && slowdown.by_time.least.abs() < 1e-9, "{slowdown:?}");
    }
}
