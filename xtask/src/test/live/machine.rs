//! How busy the machine is: what a failure is looked at beside.

use std::fmt;
use std::time::{Duration, Instant};

/// How long a calm machine is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// The share of time in which something waited for a CPU, in percent over ten seconds, below which a machine is calm.
const CALM_PERCENT: f64 = 10.0;
const POLL: Duration = Duration::from_millis(500);

/// Counters of the machine at one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// Ticks of all CPUs in all states, and those that a hypervisor gave to others.
    ticks: u64,
    stolen: u64,
    /// Microseconds in which something waited for a CPU.
    waited_us: u64,
    at: Instant,
}

impl Reading {
    /// Now. What the kernel does not tell counts as 0.
    pub(super) fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let (ticks, stolen) = ticks_of(&stat).unwrap_or_default();
        let pressure = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
        let waited_us = some(&pressure, "total=").unwrap_or_default();
        Self { ticks, stolen, waited_us, at: Instant::now() }
    }

    /// How the machine has been since.
    pub(super) fn since(self) -> Machine {
        let now = Self::now();
        let percent = |part: u64, whole: f64| if whole > 0.0 { 100.0 * part as f64 / whole } else { 0.0 };
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Machine {
            steal_percent: percent(
                now.stolen - self.stolen.min(now.stolen),
                (now.ticks - self.ticks.min(now.ticks)) as f64,
            ),
            pressure_percent: percent(
                now.waited_us - self.waited_us.min(now.waited_us),
                now.at.duration_since(self.at).as_secs_f64() * 1e6,
            ),
            load: load.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or_default(),
        }
    }
}

/// How the machine was while a test ran.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Machine {
    /// Of all CPU time, what a hypervisor gave to others.
    pub(super) steal_percent: f64,
    /// Of the time, that in which something waited for a CPU; the test's own threads count.
    pub(super) pressure_percent: f64,
    /// The load average of a minute at its end.
    pub(super) load: f64,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steal_percent, pressure_percent, load } = self;
        write!(f, "steal {steal_percent:.1} %, CPU pressure {pressure_percent:.0} %, load {load:.1}")
    }
}

/// Waits until hardly anything waits for a CPU, for half a minute at most.
pub(super) fn wait_for_calm() {
    let deadline = Instant::now() + PATIENCE;
    let busy = || {
        let pressure = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
        some::<f64>(&pressure, "avg10=").is_some_and(|percent| percent > CALM_PERCENT)
    };
    while busy() && Instant::now() < deadline {
        std::thread::sleep(POLL);
    }
}

/// All ticks and the stolen ones of `/proc/stat`: `cpu user nice system idle iowait irq softirq steal guest guest_nice`, of
/// which the last two are part of the first two.
fn ticks_of(stat: &str) -> Option<(u64, u64)> {
    let words = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let ticks = words.map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>()?;
    Some((ticks.iter().sum(), *ticks.get(7)?))
}

/// A number of the line `some` of a file below `/proc/pressure`.
fn some<T: std::str::FromStr>(pressure: &str, key: &str) -> Option<T> {
    let line = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split(' ').find_map(|word| word.strip_prefix(key))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counters_are_read() {
        assert_eq!(ticks_of("cpu  10 1 5 100 2 0 1 7 9 9\ncpu0 1"), Some((126, 7)));
        assert_eq!(ticks_of("cpu  10 1 5\n"), None);
        let pressure =
            "some avg10=8.08 avg60=5.57 avg300=2.36 total=9974194\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0";
        assert_eq!(some::<f64>(pressure, "avg10="), Some(8.08));
        assert_eq!(some::<u64>(pressure, "total="), Some(9_974_194));
        assert_eq!(some::<u64>("", "total="), None);
    }

    #[test]
    fn the_machine_is_described_in_percent() {
        let machine = Reading::now().since();
        assert!((0.0..=100.0).contains(&machine.steal_percent), "{machine:?}");
        let machine = Machine { steal_percent: 0.04, pressure_percent: 12.6, load: 2.25 };
        assert_eq!(machine.to_string(), "steal 0.0 %, CPU pressure 13 %, load 2.2");
    }
}
