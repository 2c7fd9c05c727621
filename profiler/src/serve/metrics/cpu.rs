//! CPU time of processes as counters: bounded in number, whatever runs on the host.

use std::collections::BTreeMap;

use crate::profile::printable;
use crate::profile::{Profile, label_of};

/// The value of every label of the rest.
pub(super) const OTHER: &str = "other";

/// CPU time by the values of some labels.
#[derive(Debug)]
pub(super) struct CpuByLabels {
    names: Vec<String>,
    max: usize,
    /// Nanoseconds since the start, and in the newest window that had the values.
    known: BTreeMap<Vec<String>, Sum>,
    other_ns: u64,
    windows: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    total_ns: u64,
    last_ns: u64,
    last_window: u64,
}

impl CpuByLabels {
    pub(super) fn new(names: Vec<String>, max: usize) -> Self {
        Self { names, max, known: BTreeMap::new(), other_ns: 0, windows: 0 }
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Adds a window. Values that are beyond the bound go into the rest: those that have been idle longest first, then
    /// those with the least in the newest window. What comes back later starts at zero, which readers of counters know
    /// as a restart; the sum over all series never falls.
    pub(super) fn add(&mut self, profile: &Profile) {
        self.windows += 1;
        for (task, cpu_ns) in profile.cpu_by_task() {
            let task = profile.task_of(task);
            let value =
                |name: &String| label_of(task, name).map_or_else(String::new, |has| printable(&has).into_owned());
            let values: Vec<String> = self.names.iter().map(value).collect();
            if values.iter().all(|value| value == OTHER) {
                // A process that calls itself so must not become a second series of that name.
                self.other_ns = self.other_ns.saturating_add(cpu_ns);
                continue;
            }
            let sum = self.known.entry(values).or_default();
            if sum.last_window != self.windows {
                sum.last_ns = 0;
                sum.last_window = self.windows;
            }
            sum.total_ns = sum.total_ns.saturating_add(cpu_ns);
            sum.last_ns = sum.last_ns.saturating_add(cpu_ns);
        }
        if self.known.len() <= self.max {
            return;
        }
        let mut order: Vec<_> =
            self.known.iter().map(|(values, sum)| (sum.last_window, sum.last_ns, values.clone())).collect();
        order.sort();
        for (_, _, values) in order.into_iter().take(self.known.len() - self.max) {
            let sum = self.known.remove(&values).unwrap_or_default();
            self.other_ns = self.other_ns.saturating_add(sum.total_ns);
        }
    }

    /// Values with their CPU time in nanoseconds.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[String], u64)> {
        self.known.iter().map(|(values, sum)| (&**values, sum.total_ns))
    }

    /// CPU time of all values that have no entry of their own.
    pub(super) fn other_ns(&self) -> u64 {
        self.other_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::push::test_profile as profile;

    #[test]
    fn the_number_of_series_is_bounded_and_the_sum_never_falls() {
        let period = profile(&[]).meta().period_ns();
        let mut cpu = CpuByLabels::new(vec!["comm".to_owned()], 2);
        let sum = |cpu: &CpuByLabels| cpu.iter().map(|(_, ns)| ns).sum::<u64>() + cpu.other_ns();
        cpu.add(&profile(&[("a", "", 3), ("b", "", 2), ("a", "", 1)]));
        assert_eq!(
            cpu.iter().map(|(values, ns)| (values[0].clone(), ns)).collect::<Vec<_>>(),
            [("a".to_owned(), 4 * period), ("b".to_owned(), 2 * period)]
        );
        cpu.add(&profile(&[("b", "", 1), ("c", "", 9), ("other", "", 5)]));
        assert_eq!(cpu.iter().map(|(values, _)| values[0].as_str()).collect::<Vec<_>>(), ["b", "c"], "a was idle");
        assert_eq!(cpu.other_ns(), 9 * period);
        assert_eq!(sum(&cpu), 21 * period);
        let flood: Vec<String> = (0..1000).map(|number| format!("n{number}")).collect();
        cpu.add(&profile(&flood.iter().map(|name| (&**name, "", 1)).collect::<Vec<_>>()));
        assert_eq!(cpu.iter().count(), 2);
        assert_eq!(sum(&cpu), 1021 * period);
    }
}
