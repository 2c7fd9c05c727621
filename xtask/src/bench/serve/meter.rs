//! What the service uses, from outside of it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::bench::watcher::Watcher;

/// The kernel counts the run time of BPF programs while this is 1.
const BPF_STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// What was used in one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Since the start.
    pub(crate) at: Duration,
    /// User and system time of its threads, and of the processes that it has waited for, in percent of one CPU.
    pub(crate) own_percent: f64,
    /// Time in its BPF programs, which the kernel puts on the account of whom they interrupt.
    pub(crate) kernel_percent: f64,
    /// Resident memory.
    pub(crate) resident_mib: f64,
    /// Open descriptors.
    pub(crate) descriptors: usize,
    /// CPU time of the whole machine.
    pub(crate) busy_percent: f64,
}

impl Usage {
    /// Its own and the BPF program's.
    pub(crate) fn cpu_percent(&self) -> f64 {
        self.own_percent + self.kernel_percent
    }
}

/// Sums since the start of everything.
struct Sums {
    at: Instant,
    /// By thread.
    own_ns: HashMap<OsString, u64>,
    /// Of processes that it has waited for: what may never end it has done by such.
    waited_ns: u64,
    kernel_ns: u64,
    busy_ticks: u64,
}

/// Measures one process.
pub(crate) struct Meter {
    pid: u32,
    start: Instant,
    last: Sums,
}

/// While this lives the kernel counts the run time of BPF programs. In the end, however this program ends, that is as
/// it was before.
pub(crate) struct Statistics {
    _before: Watcher,
}

impl Meter {
    /// Begins to measure.
    pub(crate) fn start(pid: u32) -> Result<Self> {
        Ok(Self { pid, start: Instant::now(), last: Sums::read(pid)? })
    }

    /// What was used since the last call.
    pub(crate) fn step(&mut self) -> Result<Usage> {
        let now = Sums::read(self.pid)?;
        let before = std::mem::replace(&mut self.last, now);
        let now = &self.last;
        let passed = (now.at - before.at).as_secs_f64();
        // Of a thread that has ended since, what it used in the step is not counted.
        let own_ns: u64 = now
            .own_ns
            .iter()
            .map(|(thread, ns)| ns.saturating_sub(before.own_ns.get(thread).copied().unwrap_or(0)))
            .sum();
        let percent = |ns: u64| ns as f64 / 1e7 / passed;
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).context("the service has ended")?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        Ok(Usage {
            at: now.at - self.start,
            own_percent: percent(own_ns + now.waited_ns.saturating_sub(before.waited_ns)),
            kernel_percent: percent(now.kernel_ns.saturating_sub(before.kernel_ns)),
            resident_mib: resident.unwrap_or(f64::NAN) / 1024.0,
            descriptors: fs::read_dir(format!("/proc/{}/fd", self.pid)).map_or(0, Iterator::count),
            busy_percent: (now.busy_ticks - before.busy_ticks) as f64 / passed,
        })
    }
}

impl Statistics {
    /// Begins to count. One for all meters: a second one would take the first one's 1 for what was before.
    pub(crate) fn start() -> Result<Self> {
        let before = fs::read_to_string(BPF_STATISTICS).with_context(|| format!("cannot read {BPF_STATISTICS}"))?;
        let before = Watcher::start(&format!("echo {} > {BPF_STATISTICS}", before.trim()))?;
        fs::write(BPF_STATISTICS, "1").with_context(|| format!("cannot write {BPF_STATISTICS}"))?;
        Ok(Self { _before: before })
    }
}

impl Sums {
    fn read(pid: u32) -> Result<Self> {
        // User and system time in nanoseconds; /proc/PID/stat has hundredths of a second.
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).context("the service has ended")?;
        let own_ns = tasks
            .flatten()
            .filter_map(|task| Some((task.file_name(), fs::read_to_string(task.path().join("schedstat")).ok()?)))
            .filter_map(|(thread, text)| Some((thread, text.split_whitespace().next()?.parse::<u64>().ok()?)))
            .collect();
        let descriptors = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
        let kernel_ns = descriptors
            .filter_map(|descriptor| fs::read_to_string(descriptor.path()).ok())
            .filter_map(|text| run_time(&text))
            .sum();
        let own_stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("the service has ended")?;
        let stat = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        Ok(Self {
            at: Instant::now(),
            own_ns,
            waited_ns: waited(&own_stat).context("/proc/PID/stat has another form")?,
            kernel_ns,
            busy_ticks: busy(&stat).context("/proc/stat has another form")?,
        })
    }
}

fn run_time(fdinfo: &str) -> Option<u64> {
    fdinfo.lines().find_map(|line| line.strip_prefix("run_time_ns:"))?.trim().parse().ok()
}

/// `pid (name) state …`: user and system time of children that were waited for are the 16th and 17th word, in hundredths of a
/// second.
fn waited(stat: &str) -> Option<u64> {
    let mut words = stat.rsplit_once(") ")?.1.split_whitespace().skip(13);
    let mut word = || words.next()?.parse::<u64>().ok();
    Some((word()? + word()?) * 10_000_000)
}

/// `cpu user nice system idle iowait irq softirq …` in hundredths of a second.
fn busy(stat: &str) -> Option<u64> {
    let words = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let ticks: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some(ticks.iter().take(8).sum::<u64>() - idle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_is_all_but_idle_and_waiting() {
        assert_eq!(busy("cpu  100 1 10 5000 7 2 3 4 50 60\ncpu0 1"), Some(120));
    }

    #[test]
    fn the_time_of_children_that_were_waited_for_is_in_hundredths_of_a_second() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 5 6 0 0 11 12 13 14 20 0 9 0 333 1 2";
        assert_eq!(waited(stat), Some(270_000_000));
        assert_eq!(waited("7 (a) S 1"), None);
    }

    #[test]
    fn the_run_time_of_a_program_is_in_its_descriptor() {
        assert_eq!(run_time("pos:\t0\nprog_type:\t7\nrun_time_ns:\t1234\nrun_cnt:\t5\n"), Some(1234));
        assert_eq!(run_time("pos:\t0\nflags:\t02\n"), None);
    }
}
