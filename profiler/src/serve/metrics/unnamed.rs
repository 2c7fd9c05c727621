//! Frames without a name as counters: by process and by why, bounded in number.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::cpu::OTHER;
use crate::profile::{FrameRef, Profile, label_of, printable};
use crate::symbol::FrameKind;

/// Why a frame has no name: what the profile writes in the name's place, and what kind of frame has it.
const REASONS: [&str; 6] = ["jit code", "file replaced", "no symbols", "unmapped", "process gone", "mapping not known"];

/// Counts of frames by reason.
type Counts = [u64; REASONS.len()];

/// Unnamed frames by the process' name.
#[derive(Debug)]
pub(super) struct UnnamedFrames {
    max: usize,
    known: BTreeMap<String, Counts>,
    other: Counts,
}

impl UnnamedFrames {
    pub(super) fn new(max: usize) -> Self {
        Self { max, known: BTreeMap::new(), other: Counts::default() }
    }

    /// Adds a window. Of names beyond the bound those with the fewest frames go into the rest; what comes back later starts
    /// at zero, which readers of counters know as a restart.
    pub(super) fn add(&mut self, profile: &Profile) {
        let reasons: Vec<Option<usize>> = profile.frame_ids().map(|id| reason(&profile.frame(id))).collect();
        if reasons.iter().all(Option::is_none) {
            return;
        }
        // Of each stack, the empty one first: a prefix comes before what was pushed onto it.
        let mut of_stack: Vec<[u32; REASONS.len()]> = vec![Default::default()];
        for stack in profile.stack_ids() {
            let Some((prefix, frame)) = profile.pop(stack) else { continue };
            let mut counts = of_stack.get(prefix.index()).copied().unwrap_or_default();
            if let Some(reason) = reasons.get(frame.index()).copied().flatten() {
                counts[reason] = counts[reason].saturating_add(1);
            }
            of_stack.push(counts);
        }
        let mut of_task: FxHashMap<_, Counts> = FxHashMap::default();
        profile.visit_rows(|row| {
            let Some(counts) = of_stack.get(row.stack.index()).filter(|counts| **counts != [0; REASONS.len()]) else {
                return;
            };
            let sums = of_task.entry(row.task).or_default();
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum = sum.saturating_add(u64::from(*count).saturating_mul(row.count));
            }
        });
        for (task, counts) in of_task {
            let comm =
                label_of(profile.task_of(task), "comm").map_or_else(String::new, |comm| printable(&comm).into_owned());
            let sums = if comm == OTHER { &mut self.other } else { self.known.entry(comm).or_default() };
            add(sums, &counts);
        }
        if self.known.len() > self.max {
            let mut order: Vec<_> =
                self.known.iter().map(|(comm, counts)| (counts.iter().sum::<u64>(), comm.clone())).collect();
            order.sort();
            for (_, comm) in order.into_iter().take(self.known.len() - self.max) {
                add(&mut self.other, &self.known.remove(&comm).unwrap_or_default());
            }
        }
    }

    /// Process, reason and number of frames; those that are none are left out.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &'static str, u64)> {
        let all = self.known.iter().map(|(comm, counts)| (&**comm, counts)).chain([(OTHER, &self.other)]);
        all.flat_map(|(comm, counts)| {
            REASONS
                .into_iter()
                .zip(counts)
                .filter(|(_, count)| **count > 0)
                .map(move |(reason, count)| (comm, reason, *count))
        })
    }
}

fn add(sums: &mut Counts, counts: &Counts) {
    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(*count));
}

/// Position of the reason; `None` for a frame that has a name. A program may call a function what it likes, so of generated
/// code only the words themselves count.
fn reason(frame: &FrameRef<'_>) -> Option<usize> {
    let reason = match (frame.kind, frame.name) {
        (FrameKind::Jit, "[JIT code without a name]") => "jit code",
        (FrameKind::Native, "[replaced]") => "file replaced",
        (FrameKind::Native, "[unmapped]") => "unmapped",
        (FrameKind::Native, "[process gone]") => "process gone",
        (FrameKind::Native, "[mapping not known]") => "mapping not known",
        (FrameKind::Native, name) if name.starts_with('[') && name.ends_with(']') && name != "[inlined]" => {
            "no symbols"
        }
        _ => return None,
    };
    REASONS.iter().position(|known| *known == reason)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Arc;
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::profile::{ProfileMeta, SampledEvent, Task};
    use jitprof_common::units::{MonoNs, Pid, Tid};

    /// One sample of a stack for each process' name.
    fn profile(comms: &[String], names: &[(FrameKind, &str)]) -> Profile {
        let meta = ProfileMeta {
            title: String::new(),
            start_time: UNIX_EPOCH,
            start: MonoNs(0),
            duration: Duration::from_secs(10),
            frequency_hz: NonZeroU32::MIN,
            event: SampledEvent::CpuClock,
        };
        let mut profile = Profile::new(meta, u64::MAX);
        let mut stack = profile.stack_root();
        for (kind, name) in names {
            let frame = profile.intern_frame_ref(&FrameRef {
                name,
                kind: *kind,
                tier: None,
                inlined: false,
                module: None,
                source: None,
                address: 0,
            });
            stack = profile.push(stack, frame);
        }
        for (pid, comm) in (1..).zip(comms) {
            let comm = Arc::from(&**comm);
            let task =
                profile.task(Task { pid: Pid(pid), process_start: 0, tid: Tid(pid), comm, labels: Arc::default() });
            profile.add(MonoNs(0), stack, task, 3);
        }
        profile
    }

    #[test]
    fn unnamed_frames_are_counted_by_process_and_reason_and_names_are_not() {
        let mut frames = UnnamedFrames::new(5);
        let (jit, native) = (FrameKind::Jit, FrameKind::Native);
        let names = [
            (native, "main"),
            (native, "[libx.so+0x12]"),
            (native, "[mapping not known]"),
            (jit, "[JIT code without a name]"),
            (jit, "[JIT code without a name]"),
            (jit, "[Symbol.iterator]"),
            (FrameKind::Note, "[cut: no rule]"),
        ];
        frames.add(&profile(&["node".to_owned()], &names));
        frames.add(&profile(&["node".to_owned()], &names));
        let found = [("node", "jit code", 12), ("node", "no symbols", 6), ("node", "mapping not known", 6)];
        assert_eq!(frames.iter().collect::<Vec<_>>(), found);
        frames.add(&profile(&["php".to_owned()], &[(native, "main")]));
        assert_eq!(frames.iter().count(), 3);
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let mut frames = UnnamedFrames::new(5);
        frames.add(&profile(&["node".to_owned()], &[(FrameKind::Native, "[replaced]"); 9]));
        let comms: Vec<String> = (0..1000).map(|number| format!("n{number}")).collect();
        frames.add(&profile(&comms, &[(FrameKind::Native, "[unmapped]")]));
        let found: Vec<_> = frames.iter().collect();
        assert_eq!(found.len(), 6);
        assert!(found.contains(&("node", "file replaced", 27)));
        assert_eq!(found.iter().map(|(_, _, count)| count).sum::<u64>(), 27 + 3000);
        assert_eq!(found[5], ("other", "unmapped", 996 * 3));
    }
}
