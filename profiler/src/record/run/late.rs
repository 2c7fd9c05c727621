//! Finishes walks that wait for the rows of late code, before their samples are resolved.

use std::cell::Cell;

use super::Recorder;
use super::settle::settled_until;
use crate::kernel::code_mask;
use crate::process::{ProcessId, Processes};
use crate::record::files::Files;
use crate::record::late::{Finished, LateSamples, RowsThen};
use crate::record::resolve::Resolver;
use crate::record::sources::Sources;
use crate::record::unwinding::Unwinding;
use crate::record::waiting::{Stacks, Waiting};
use crate::symbol::Symbolizer;
use crate::units::MonoNs;

/// Most records arrive within two ticks; code whose record has not come by then is read.
const USUAL_DELAY_NS: u64 = 300_000_000;
/// Turns of walking on and reading the code that is met next. A chain of CPython's trampolines takes one for each.
const TURNS: usize = 64;

impl Recorder {
    /// Reads code that walks have met and nothing has recorded, and walks on, as long as it leads further.
    pub(super) fn learn_copies(&mut self, now: MonoNs) {
        if !self.options.peek {
            return;
        }
        self.look_for_maps_of_new_code(now);
        let mut learned = false;
        for _ in 0..TURNS {
            let mut more = false;
            for (id, wanted) in self.late.take_wanted() {
                let process = self.processes.get(id).filter(|process| process.exit_time.is_none());
                if let (Some(process), Some(sources)) = (process, self.sources.get_mut(&id)) {
                    more |= self.copies.learn(process, sources, &wanted, now);
                }
            }
            if !more {
                break;
            }
            learned = true;
            self.finish_late(now, false);
        }
        if learned {
            self.publish_rows(now);
        }
    }

    /// A perf map is made when the first code is: it is looked for when such code is met, not a second later.
    fn look_for_maps_of_new_code(&mut self, now: MonoNs) {
        let (mut remarks, mut found) = (Vec::new(), Vec::new());
        for id in self.late.wanting() {
            if let Some(sources) = self.sources.get_mut(&id).filter(|sources| !sources.has_perf_map())
                && sources.look_for_perf_map(&mut remarks)
            {
                self.late.hope_anew(id);
                found.push(sources.poll(now, true));
            }
        }
        self.remark_all(remarks);
        for polled in found {
            self.take_up(polled);
        }
    }

    /// Compares code that was read with what is there now.
    pub(super) fn check_copies(&mut self) {
        for (id, sources) in &mut self.sources {
            self.copies.check(*id, sources);
        }
    }

    /// Walks on from every sample all of whose code is known; with `last`, from all.
    pub(super) fn finish_late(&mut self, now: MonoNs, last: bool) {
        if self.late.is_empty() {
            return;
        }
        let mut remarks = Vec::new();
        let tables = self.sampler.tables();
        let (Some(unwinding), Some(tables)) = (&self.unwinding, tables) else { return };
        let mut finisher = Finisher {
            processes: &self.processes,
            unwinding,
            tables,
            symbols: &self.symbols,
            late: &mut self.late,
            stacks: &mut self.stacks,
            files: &mut self.files,
            remarks: &mut remarks,
        };
        for (id, queue) in &mut self.queues {
            let sources = self.sources.get(id);
            let limit = settled_until(sources, now);
            let asked = limit.max(MonoNs(now.0.saturating_sub(USUAL_DELAY_NS)));
            for sample in queue.iter_mut().take_while(|sample| last || sample.time < asked) {
                if last || sample.time < limit {
                    finisher.finish(*id, sample, sources, last);
                } else {
                    finisher.ask(*id, sample, sources);
                }
            }
        }
        if last {
            for sample in &mut self.unnamed {
                finisher.finish(sample.process, sample, self.sources.get(&sample.process), last);
            }
        }
        self.remark_all(remarks);
    }
}

/// What finishing takes.
struct Finisher<'a> {
    processes: &'a Processes,
    unwinding: &'a Unwinding,
    tables: &'a crate::kernel::Tables,
    symbols: &'a Symbolizer,
    late: &'a mut LateSamples,
    stacks: &'a mut Stacks,
    files: &'a mut Files,
    remarks: &'a mut Vec<String>,
}

impl<'a> Finisher<'a> {
    fn rows_then<'b>(&self, id: ProcessId, time: MonoNs, sources: Option<&'b Sources>) -> Option<RowsThen<'b>>
    where
        'a: 'b,
    {
        Some(RowsThen {
            process: self.processes.get(id)?,
            code: &sources?.code,
            unwinding: self.unwinding,
            tables: self.tables,
            time,
            code_mask: code_mask(),
            loading: Cell::new(false),
            unknown: Cell::new(None),
        })
    }

    fn finish(&mut self, id: ProcessId, sample: &mut Waiting, sources: Option<&Sources>, last: bool) {
        if sample.late.is_none() {
            return;
        }
        let process = self.processes.get(id);
        let rows = self.rows_then(id, sample.time, sources);
        match self.late.finish(sample, self.stacks.frames(sample.user), rows.as_ref(), last) {
            Finished::NotYet => return,
            Finished::AsWalked => {}
            Finished::ByRows(index, chain) => {
                sample.true_from = index;
                if let Some((frames, stop)) = chain {
                    (sample.user, sample.stop) = (self.stacks.intern(&frames).0, stop);
                    if let Some(process) = process {
                        let (time, unwinding) = (sample.time, Some(self.unwinding));
                        Resolver::prefetch(process, &frames, time, self.files, self.symbols, unwinding, self.remarks);
                    }
                }
            }
        }
        sample.late = None;
    }

    fn ask(&mut self, id: ProcessId, sample: &Waiting, sources: Option<&Sources>) {
        if sample.late.is_some()
            && let Some(rows) = self.rows_then(id, sample.time, sources)
        {
            self.late.ask(sample, &rows);
        }
    }
}
