//! The account at the end of a run.

use std::time::Duration;

use crate::account::{Account, AdviceLine, Lack, LearnStats, ProcessNaming, SourceAccount, TablesAccount};
use crate::advice::{self, Clues};
use crate::engine::border::Counters;
use crate::engine::files::Files;
use crate::engine::labelling::executable_files;
use crate::engine::process::Process;
use crate::engine::processes::Processes;
use crate::engine::resolving::Resolving;
use crate::engine::unwinding::Unwinding;
use crate::symbol::SymbolStats;

/// Processes that advice is looked for, those with the most unnamed frames.
const MAX_ADVISED: usize = 256;
/// Processes of which it is told what named their frames.
const MAX_NAMINGS: usize = 32;
/// With fewer samples in an interpreter's loop nobody looks for what it ran.
const FEWEST_INTERPRETED: u64 = 10;
/// Pieces of advice: what is the same for several processes is said once.
const MAX_ADVICE: usize = 8;

/// What the account is made of.
pub(super) struct Closing<'a> {
    pub(super) processes: &'a Processes,
    pub(super) unwinding: Option<&'a Unwinding>,
    pub(super) files: &'a Files,
    pub(super) counters: &'a Counters,
    /// Whether runtimes are read.
    pub(super) reads_runtimes: bool,
    /// Samples take along the frames that they keep in lists.
    pub(super) walks_lists: bool,
    pub(super) frequency_hz: u32,
    pub(super) duration: Duration,
    /// Of evicted processes.
    pub(super) learned: LearnStats,
}

/// Closes the account.
pub(super) fn close(resolving: &mut Resolving, of: &Closing<'_>) -> Account {
    let counters = of.counters;
    let own = counters.own.clone().unwrap_or_default();
    let mut account = std::mem::take(&mut resolving.account);
    account.own = own.cost(counters);
    account.event = own.event;
    account.cpus = own.cpus;
    account.frequency_hz = of.frequency_hz;
    account.duration = of.duration;
    account.samples.taken = counters.taken;
    account.samples.lost_ring_full = counters.ring_full;
    account.samples.lost_malformed = counters.malformed;
    account.stacks.lists_refused = counters.lists_refused;
    account.symbols = counters.symbols.as_ref().map_or_else(SymbolStats::default, |worker| (**worker).clone());
    account.symbols.absorb(resolving.names.stats());
    account.files = of.files.stats();
    account.processes = of.processes.stats();
    account.profile_overflow = resolving.profile.overflow();
    account.tables = of.unwinding.map(Unwinding::table_stats);
    account.unwinding = of.unwinding.map(|unwinding| unwinding.stats(of.processes.iter()));
    account.deferred = of.unwinding.map(|_| {
        let mut stats = resolving.deferred_stats(of.processes);
        stats.refused_by_rate = counters.snapshots_refused;
        stats
    });
    let learned = of.processes.iter().fold(of.learned, |sum, process| sum + process.learned.stats());
    account.learned = of.unwinding.map(|_| learned);
    let says = |process: &&Process| {
        let by_tables = process.tables.are_found() || process.tables.list().is_some();
        process.announcements.any() || process.code.is_known() || by_tables || process.tables.has_lost()
    };
    let announcing = of.processes.iter().filter(says);
    account.sources = announcing.map(source).collect();
    account.naming = naming(of.processes, of.reads_runtimes);
    let advice = Advice { reads_runtimes: of.reads_runtimes, walks_lists: of.walks_lists };
    account.advice = advice.lines(of.processes);
    remark_on_peeking(&mut account);
    account
}

/// What named the frames of which process: of those with the most frames without a name, then with the most frames of
/// generated code.
pub(super) fn naming(processes: &Processes, reads_runtimes: bool) -> Vec<ProcessNaming> {
    let generating = processes.iter().filter(|process| process.naming.generated() > 0);
    let mut generating: Vec<&Process> = generating.collect();
    let weight = |process: &&Process| (process.naming.unnamed_total(), process.naming.generated());
    generating.sort_by_key(|process| (std::cmp::Reverse(weight(process)), process.id));
    let naming = |process: &Process| {
        let lack = lack(process, reads_runtimes).filter(|_| process.unnamed > 0);
        ProcessNaming { lack, ..process.naming() }
    };
    generating.into_iter().take(MAX_NAMINGS).map(naming).collect()
}

fn source(process: &Process) -> SourceAccount {
    let of_announcements = process.announcements.account(process.id.pid, process.name(), &process.code);
    let tables = process.tables.account().map(|tables| TablesAccount {
        frames: process.frames.named,
        answers: process.frames.answers,
        cpu_ns: tables.cpu_ns.saturating_add(process.frames.cpu_ns),
        ..tables
    });
    SourceAccount { tables, ..of_announcements }
}

/// What advice depends on, besides the process.
#[derive(Clone, Copy)]
struct Advice {
    /// Runtimes are read.
    reads_runtimes: bool,
    /// The BPF program walks the lists that runtimes keep their frames in.
    walks_lists: bool,
}

impl Advice {
    /// What to do about processes whose generated code has no names, or whose interpreter does not say what it runs.
    fn lines(self, processes: &Processes) -> Vec<AdviceLine> {
        let lacking = processes.iter().filter_map(|process| Some((process, lack(process, self.reads_runtimes)?)));
        let unannounced = lacking.map(|(process, lack)| (process, lack, self.interpreted(process)));
        let mut unannounced: Vec<(&Process, Lack, u64)> =
            unannounced.filter(|(process, _, interpreted)| process.unnamed > 0 || *interpreted > 0).collect();
        let weight = |(process, _, interpreted): &(&Process, Lack, u64)| process.unnamed.saturating_add(*interpreted);
        unannounced.sort_by_key(|found| (std::cmp::Reverse(weight(found)), found.0.id));
        let mut lines: Vec<AdviceLine> = Vec::new();
        for (process, lack, interpreted_samples) in unannounced.into_iter().take(MAX_ADVISED) {
            let Some(advice) = advice_for(process, lack) else { continue };
            match lines.iter_mut().find(|line| line.advice == advice) {
                Some(line) => {
                    line.further_processes += 1;
                    line.unnamed_frames += process.unnamed;
                    line.interpreted_samples += interpreted_samples;
                }
                None => lines.push(AdviceLine {
                    pid: process.id.pid.0,
                    comm: process.name(),
                    further_processes: 0,
                    unnamed_frames: process.unnamed,
                    interpreted_samples,
                    advice,
                }),
            }
        }
        lines.truncate(MAX_ADVICE);
        lines
    }

    /// Samples in an interpreter's loop, if they are most of those of a process without generated code, what it runs is not
    /// left out on purpose, and it is known that its memory does not say it: one that ends before it is read might have.
    fn interpreted(self, process: &Process) -> u64 {
        let tables = &process.tables;
        let may_be_said = self.walks_lists && (tables.has_list() || (self.reads_runtimes && !tables.is_answered()));
        if may_be_said || tables.leaves_list() {
            return 0;
        }
        let is_most = process.interpreted >= FEWEST_INTERPRETED && process.interpreted > process.resolved / 2;
        if process.unnamed == 0 && is_most { process.interpreted } else { 0 }
    }
}

/// What a process lacks: it announces nothing, or what was compiled once, and its runtime's own memory does not make up for it.
fn lack(process: &Process, reads_runtimes: bool) -> Option<Lack> {
    let says_nothing = !process.announcements.any() && !process.code.is_known();
    let lack = match has_map_alone(process) {
        true => Some(Lack::LaterThanMap),
        false => says_nothing.then_some(Lack::Announcements),
    };
    // Nobody knows what it would have said: the machine had no time for it.
    let is_unheard = reads_runtimes && process.unnamed > 0 && process.tables.is_unheard();
    let is_worth = advice::is_worth_a_flag(process.unnamed, process.frames.named, !process.tables.ask_frames());
    lack.filter(|_| is_worth && !is_unheard)
}

fn has_map_alone(process: &Process) -> bool {
    process.announcements.has_perf_map() && !process.announcements.has_dump() && !process.tables.are_found()
}

fn advice_for(process: &Process, lack: Lack) -> Option<String> {
    let program = process.known_program();
    let clues = Clues {
        exe: program.and_then(|program| program.exe.as_deref()).unwrap_or_default(),
        mapped_files: &executable_files(process),
        cmdline: program.and_then(|program| program.command_line.as_deref()).unwrap_or_default(),
        environment: program.map(|program| &*program.environment).unwrap_or_default(),
    };
    match (lack, process.unnamed) {
        (Lack::Announcements, 0) => advice::for_interpreter(&clues),
        (Lack::LaterThanMap, 0) => None,
        _ => advice::for_lack(lack, &clues),
    }
}

/// Names that stay in the target's memory because it may not be read.
fn remark_on_peeking(account: &mut Account) {
    let unread = account.sources.iter().filter(|source| {
        source.dumps.iter().filter_map(|dump| dump.peek).any(|peek| peek.found == 0 && peek.read_errors > 0)
    });
    let unread: Vec<String> = unread
        .map(|source| {
            format!(
                "names that {} ({}) has not written yet could not be read from its memory; \
                 that takes CAP_SYS_PTRACE and, for another user's process, CAP_DAC_READ_SEARCH",
                source.comm, source.pid
            )
        })
        .collect();
    unread.into_iter().for_each(|remark| account.remark(remark));
}
