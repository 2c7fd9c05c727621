//! Finishes walks that wait for the rows of late code, before their samples are resolved.

use std::cell::Cell;

use super::Recorder;
use super::settle::settled_until;
use crate::process::{ProcessId, Processes};
use crate::record::files::Files;
use crate::record::late::{Finished, LateSamples, RowsThen};
use crate::record::resolve::Resolver;
use crate::record::sources::Sources;
use crate::record::unwinding::Unwinding;
use crate::record::waiting::{Stacks, Waiting};
use crate::symbol::Symbolizer;
use crate::units::MonoNs;

impl Recorder {
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
            for sample in queue.iter_mut().take_while(|sample| last || sample.time < limit) {
                finisher.finish(*id, sample, sources, last);
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

impl Finisher<'_> {
    fn finish(&mut self, id: ProcessId, sample: &mut Waiting, sources: Option<&Sources>, last: bool) {
        if sample.late.is_none() {
            return;
        }
        let process = self.processes.get(id);
        let rows = process.zip(sources).map(|(process, sources)| RowsThen {
            process,
            code: &sources.code,
            unwinding: self.unwinding,
            tables: self.tables,
            time: sample.time,
            loading: Cell::new(false),
        });
        match self.late.finish(sample, self.stacks.frames(sample.user), rows.as_ref(), last) {
            Finished::NotYet => return,
            Finished::AsWalked => {}
            Finished::Anew(frames, stop) => {
                (sample.user, sample.stop) = (self.stacks.intern(&frames).0, stop);
                if let Some(process) = process {
                    Resolver::prefetch(process, &frames, sample.time, self.files, self.symbols, self.remarks);
                }
            }
        }
        sample.late = None;
    }
}
