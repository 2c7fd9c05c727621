//! The account at the end of a run.

use std::time::Duration;

use super::{Clues, RecordError, Recorder};
use crate::account::{AdviceLine, LateStats};
use crate::advice;
use crate::process::ProcessId;
use crate::record::machine::own_cost;
use crate::record::sources::Sources;
use crate::units::Tid;

/// Processes that advice is given for, those with the most unnamed frames.
const MAX_ADVICE: usize = 8;

impl Recorder {
    pub(super) fn close_account(&mut self, duration: Duration) -> Result<(), RecordError> {
        let counts = self.sampler.counts()?;
        let account = &mut self.account;
        account.event = self.sampler.event().name();
        account.frequency_hz = self.options.frequency_hz;
        account.cpus = self.sampler.cpus().len();
        account.duration = duration;
        account.samples.taken = counts.taken;
        account.samples.lost_ring_full = counts.ring_full;
        account.samples.lost_malformed = self.sampler.malformed();
        account.symbols = self.symbols.stats();
        account.processes = self.processes.stats();
        account.profile_overflow = self.profile.overflow();
        account.own = own_cost();
        account.own.kernel_ns_per_sample = counts.cost_ns.checked_div(counts.taken).unwrap_or(0);
        account.own.walk = self.sampler.variant().describe();
        let verified = self.sampler.verified().iter();
        account.own.verified_instructions = verified.map(|one| (one.program, one.instructions)).collect();
        account.tables = self.sampler.tables().map(|tables| tables.stats());
        account.late =
            self.unwinding.is_some().then(|| LateStats { refused_by_rate: counts.late_refused, ..self.late.stats() });
        account.copies = self.unwinding.is_some().then(|| self.copies.stats());
        account.unwinding = self.unwinding.as_ref().map(|unwinding| {
            let mut stats = unwinding.stats();
            for rows in self.sources.values().filter_map(|sources| sources.code.rows()) {
                stats.jit_functions = stats.jit_functions.saturating_add(rows.with_rows() as u64);
                stats.jit_refused = stats.jit_refused.saturating_add(rows.refused());
            }
            stats
        });
        let mut sources: Vec<&Sources> = self.sources.values().filter(|sources| sources.any()).collect();
        sources.sort_by_key(|sources| sources.id);
        let named = sources.iter().map(|sources| sources.account(self.comm_of(sources.id)));
        self.account.sources = named.collect();
        self.account.advice = self.advice();
        self.remark_on_peeking();
        Ok(())
    }

    /// What to do about processes whose generated code has no names.
    fn advice(&self) -> Vec<AdviceLine> {
        let mut unnamed: Vec<_> = self.resolver.unnamed_by_process.iter().collect();
        unnamed.sort_by_key(|(id, count)| (std::cmp::Reverse(**count), **id));
        let unannounced = unnamed.into_iter().filter(|(id, _)| !self.sources.get(id).is_some_and(Sources::any));
        unannounced
            .take(MAX_ADVICE)
            .map(|(id, count)| AdviceLine {
                pid: id.pid.0,
                comm: self.comm_of(*id),
                unnamed_frames: *count,
                advice: self.advice_for(*id),
            })
            .collect()
    }

    /// The name of a process: that of its first thread, or what it was when it was attached to.
    fn comm_of(&self, id: ProcessId) -> String {
        let leader = self.processes.get(id).and_then(|process| process.comm(Tid(id.pid.0)));
        leader.map_or_else(|| self.clues_of(id).comm, |comm| comm.to_string())
    }

    fn clues_of(&self, id: ProcessId) -> Clues {
        let live = self.endless.is_some() && self.processes.is_live(id);
        self.clues.get(&id).cloned().unwrap_or_else(|| if live { Clues::read(id.pid) } else { Clues::default() })
    }

    fn advice_for(&self, id: ProcessId) -> String {
        let clues = self.clues_of(id);
        let files = self
            .processes
            .get(id)
            .map(|process| process.space.live().map(|mapping| mapping.path.to_string()).collect::<Vec<_>>());
        advice::for_process(clues.exe.as_deref(), &clues.command_line, &files.unwrap_or_default())
    }

    /// Names that stay in the target's memory because it may not be read.
    fn remark_on_peeking(&mut self) {
        let unread: Vec<String> = self
            .account
            .sources
            .iter()
            .filter(|source| {
                source.dumps.iter().filter_map(|dump| dump.peek).any(|peek| peek.found == 0 && peek.read_errors > 0)
            })
            .map(|source| {
                format!(
                    "names that {} ({}) has not written yet could not be read from its memory; \
                     that takes CAP_SYS_PTRACE and, for another user's process, CAP_DAC_READ_SEARCH",
                    source.comm, source.pid
                )
            })
            .collect();
        self.remark_all(unread);
    }
}
