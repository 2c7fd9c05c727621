//! The account for people.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jitprof_common::stop::StopReason;

use super::{Account, NameDisagreement, ProcessNaming, SourceAccount, TablesAccount};
use crate::profile::printable;

/// Processes of which it is told what named their frames.
const MAX_NAMINGS: usize = 8;
/// Processes of one program with one runtime that have a line each for what was read of it.
const MAX_TABLES_APART: usize = 3;
/// What names frames beside a runtime's own memory, by how the runtime is called.
const SECOND_SOURCES: [(&str, &str); 5] = [
    ("CPython", "its perf map, from 3.12 on: `python3 -X perf app.py`"),
    ("Erlang", "its dump and perf map: `erl +JPperf true`"),
    ("HotSpot", "its perf map: `jcmd PID Compiler.perfmap` while it is recorded"),
    ("PHP", "the perf dump of its JIT: `opcache.jit_debug=0x20` beside the settings that switch the JIT on"),
    ("V8", "its dump: `node --perf-prof app.js`"),
];

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_samples(f)?;
        self.fmt_stacks(f)?;
        self.fmt_unwinding(f)?;
        self.fmt_deferred(f)?;
        self.fmt_jit(f)?;
        self.fmt_verified(f)?;
        for source in &self.sources {
            fmt_source(source, f)?;
        }
        fmt_tables(&self.sources, f)?;
        // Of a single one the sums have said it.
        for naming in self.naming.iter().take(MAX_NAMINGS).filter(|_| self.naming.len() > 1) {
            fmt_naming(naming, f)?;
        }
        for line in &self.advice {
            writeln!(
                f,
                "unnamed    {} ({}){}: {}\n           {}",
                printable(&line.comm),
                line.pid,
                if line.further_processes > 0 {
                    format!(" and {} more", line.further_processes)
                } else {
                    String::new()
                },
                if line.unnamed_frames > 0 {
                    format!("{} frames of generated or interpreted code have no name", line.unnamed_frames)
                } else {
                    format!("{} samples in the interpreter's loop do not say what it ran", line.interpreted_samples)
                },
                printable(&capitalized(&line.advice))
            )?;
        }
        for remark in &self.remarks {
            writeln!(f, "remark     {}", printable(remark))?;
        }
        if self.remarks_dropped > 0 {
            writeln!(f, "remark     … and {} more", self.remarks_dropped)?;
        }
        Ok(())
    }
}

impl Account {
    fn fmt_samples(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let samples = &self.samples;
        write!(f, "samples    {} taken = {} delivered + {} lost", samples.taken, samples.delivered, samples.lost())?;
        if samples.lost_ring_full > 0 {
            write!(f, " ({} ring buffer full)", samples.lost_ring_full)?;
        }
        if samples.lost_malformed > 0 {
            write!(f, " ({} malformed)", samples.lost_malformed)?;
        }
        writeln!(
            f,
            "; {} at {} Hz on {} CPUs for {:.1} s",
            self.event,
            self.frequency_hz,
            self.cpus,
            self.duration.as_secs_f64()
        )?;
        if samples.process_gone > 0 {
            writeln!(
                f,
                "           {} from processes that were gone before they could be looked at",
                samples.process_gone
            )?;
        }
        if samples.resolved_early > 0 {
            writeln!(f, "           {} resolved early because too many waited for names", samples.resolved_early)?;
        }
        if self.processes.events_lost > 0 {
            writeln!(f, "           {} task events lost; mappings were read again", self.processes.events_lost)?;
        }
        Ok(())
    }

    fn fmt_stacks(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut: u64 = self.stacks.cut.values().sum();
        let asked = self.stacks.complete + cut;
        write!(
            f,
            "stacks     {} of {asked} complete ({})",
            self.stacks.complete,
            percent(self.stacks.complete, asked)
        )?;
        let mut reasons: Vec<_> = self.stacks.cut.iter().collect();
        reasons.sort_by_key(|(reason, count)| (std::cmp::Reverse(**count), **reason));
        for (reason, count) in reasons {
            write!(f, ", {count} cut: {reason}")?;
        }
        if self.stacks.without_user_part > 0 {
            write!(f, "; {} without a user part", self.stacks.without_user_part)?;
        }
        if self.stacks.list_apart > 0 {
            let all = self.stacks.with_list + self.stacks.list_apart;
            write!(
                f,
                "; {} of {all} have the interpreter's frames apart from the native ones",
                self.stacks.list_apart
            )?;
        }
        if self.stacks.lists_refused > 0 {
            write!(f, "; {} lack the interpreter's: too many for a ring buffer so full", self.stacks.lists_refused)?;
        }
        writeln!(f)?;
        let too_deep = self.stacks.cut.get(StopReason::DepthLimit.describe()).copied().unwrap_or(0);
        if cut - too_deep > self.stacks.complete {
            writeln!(
                f,
                "           most stacks are cut: where code keeps no frame pointers, its callers are missing; \
                 what ran is counted all the same"
            )?;
        }
        Ok(())
    }

    fn fmt_unwinding(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(unwinding), Some(tables)) = (&self.unwinding, &self.tables) else { return Ok(()) };
        write!(
            f,
            "unwinding  by {} rows of {} files and {} functions of generated code",
            tables.rows, unwinding.files, unwinding.jit_functions
        )?;
        if let Some(copies) = self.learned {
            for (count, what) in [
                (copies.copies, "copies of it without a record"),
                (copies.listed_with_rows, "functions read from memory"),
            ] {
                if count > 0 {
                    write!(f, ", {count} {what}")?;
                }
            }
        }
        for (count, what) in [
            (unwinding.files_refused, "files"),
            (unwinding.regions_refused, "mappings"),
            (unwinding.jit_refused, "functions"),
            (tables.pages_refused, "pages"),
            (tables.processes_refused, "lists of mappings"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what} refused for lack of room")?;
            }
        }
        if unwinding.files_evicted > 0 {
            write!(
                f,
                "; {} rows of {} files dropped that no process used any more",
                unwinding.rows_evicted, unwinding.files_evicted
            )?;
        }
        writeln!(f)
    }

    fn fmt_deferred(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(deferred) = self.deferred.filter(|deferred| deferred.snapshots + deferred.refused_by_rate > 0) else {
            return Ok(());
        };
        write!(
            f,
            "deferred   {} of {} samples met code before its rows: {} finished by rows, {} by frame pointer",
            deferred.snapshots + deferred.refused_by_rate,
            self.samples.delivered,
            deferred.finished_by_rows,
            deferred.finished_by_frame_pointer
        )?;
        for (count, what) in [
            (deferred.refused_by_rate, "left as the kernel walked them, without a copy of the stack: too many at once"),
            (deferred.refused_for_memory, "left as the kernel walked them: the copies of too many stacks waited"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        writeln!(f)
    }

    fn fmt_jit(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (named, unnamed) = (self.jit.named_total(), self.jit.unnamed_total());
        if named + unnamed == 0 {
            return writeln!(f, "code       no frames of generated or interpreted code");
        }
        write!(f, "code       {named} of {} frames named ({})", named + unnamed, percent(named, named + unnamed))?;
        // A program that is only interpreted has none: its innermost code is the interpreter's.
        let leaves = self.jit.leaves_named + self.jit.leaves_unnamed;
        if leaves > 0 {
            write!(f, ", {} of {leaves} leaves", self.jit.leaves_named)?;
        }
        if self.jit.named.peeked > 0 {
            write!(f, "; {} by names still in the runtime's memory", self.jit.named.peeked)?;
        }
        if self.jit.named.perf_map > 0 {
            write!(f, "; {} by a perf map", self.jit.named.perf_map)?;
        }
        if self.jit.named.runtime > 0 {
            write!(f, "; {} by the runtime's own tables", self.jit.named.runtime)?;
        }
        if self.jit.leaves_guessed > 0 {
            let (certain, all) = (self.jit.leaves_certain, self.jit.leaves_certain + self.jit.leaves_guessed);
            write!(f, "; inlined methods are certain in {certain} of {all} leaves ({})", percent(certain, all))?;
            write!(f, ", in the others one more may have run, marked ?")?;
        }
        if self.jit.unconfirmed > 0 {
            write!(f, "; {} by what was not read again after the sample", self.jit.unconfirmed)?;
        }
        for (reason, count) in &self.jit.not_looked_into {
            write!(f, "; {count} without what was inlined there: {reason}")?;
        }
        for (reason, count) in &self.jit.unnamed {
            write!(f, "; {count} unnamed: {reason}")?;
        }
        if self.jit.leaves_guessed > 0 {
            write!(
                f,
                "\n           a JVM started with `-XX:+UnlockDiagnosticVMOptions -XX:+DebugNonSafepoints` knows what is \
                 inlined between safepoints, too"
            )?;
        }
        writeln!(f)
    }
}

impl Account {
    fn fmt_verified(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(verified) = &self.verified else { return Ok(()) };
        let (agreed, disagreed, incomparable) = (verified.agreed, verified.disagreed, verified.incomparable);
        let compared = agreed + disagreed;
        match compared {
            0 => write!(f, "verified   no names could be compared")?,
            _ => write!(f, "verified   {agreed} of {compared} names that two sources have agree, {disagreed} do not")?,
        }
        writeln!(
            f,
            "; {} frames are in dump or tables alone, {} in a perf map alone, {incomparable} cannot be compared",
            verified.only_announced, verified.only_perf_map
        )?;
        if compared + incomparable == 0 {
            self.fmt_second_sources(f)?;
        }
        for NameDisagreement { pid, address, announced, listed } in &verified.examples {
            writeln!(
                f,
                "           {address} of {pid}: {}; the other source: {}",
                printable(announced),
                printable(listed)
            )?;
        }
        Ok(())
    }
}

impl Account {
    /// What the names of runtimes that were read would be compared with.
    fn fmt_second_sources(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tables = self.sources.iter().filter_map(|source| source.tables.as_ref());
        let naming = tables.filter(|tables| tables.frames > 0 || tables.loads > 0);
        let runtimes: BTreeSet<&str> = naming.map(|tables| &*tables.runtime).collect();
        for runtime in runtimes.into_iter().take(MAX_NAMINGS) {
            write!(f, "           for {} there is no second source to compare with; ", printable(runtime))?;
            match SECOND_SOURCES.iter().find(|(name, _)| runtime.starts_with(name)) {
                Some((_, second)) => writeln!(f, "one would be {second}")?,
                None => writeln!(f, "jitprof knows of none")?,
            }
        }
        Ok(())
    }
}

fn fmt_naming(of: &ProcessNaming, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let naming = &of.naming;
    let (named, all) = (naming.named.total(), naming.generated());
    write!(f, "names      {} ({}): {named} of {all} frames named", printable(&of.comm), of.pid)?;
    let tables = of.runtime.as_deref().map_or("a runtime's tables".into(), printable);
    let by = ["a jitdump", "the runtime's memory", "a perf map", &*tables];
    for ((_, count), by) in naming.named.each().into_iter().zip(by).filter(|((_, count), _)| *count > 0) {
        write!(f, "; {count} by {by}")?;
    }
    for (reason, count) in &naming.unnamed {
        write!(f, "; {count} unnamed: {reason}")?;
    }
    writeln!(f)
}

fn fmt_source(source: &SourceAccount, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for dump in &source.dumps {
        let records = &dump.records;
        write!(
            f,
            "jitdump    {} ({}): {} functions, {} bytes read from {}",
            printable(&source.comm),
            source.pid,
            records.functions,
            dump.bytes_read,
            printable(&dump.path)
        )?;
        let skipped = records.skipped;
        for (count, what) in [
            (skipped.stale_time, "records of an earlier process skipped"),
            (skipped.other_pid, "records of another process skipped"),
            (skipped.bad_record, "bad records skipped"),
            (skipped.given_up, "incomplete records given up for want of room"),
            (records.corrupt_bytes, "of these bytes damaged and skipped"),
            (records.restarts, "restarts"),
            (records.records.lost, "announcements that the agent could not take up"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        if let Some(peek) = dump.peek.filter(|peek| peek.verified_records > 0) {
            write!(f, ", {} read ahead from memory", peek.verified_records)?;
        }
        writeln!(f)?;
    }
    if let Some(map) = &source.perf_map {
        writeln!(
            f,
            "perf map   {} ({}): {} lines, {} bad",
            printable(&source.comm),
            source.pid,
            map.lines,
            map.bad_lines
        )?;
    }
    Ok(())
}

/// What was read of runtimes' tables: a line for each process, or one for many of one program.
fn fmt_tables(sources: &[SourceAccount], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut programs: BTreeMap<(&str, &str), Vec<(u32, &TablesAccount)>> = BTreeMap::new();
    for source in sources {
        if let Some(tables) = &source.tables {
            programs.entry((&source.comm, &tables.runtime)).or_default().push((source.pid, tables));
        }
    }
    for ((comm, runtime), tables) in programs {
        if tables.len() <= MAX_TABLES_APART {
            for (pid, tables) in tables {
                fmt_tables_of((comm, &pid.to_string()), tables, f)?;
            }
            continue;
        }
        let mut all = TablesAccount { runtime: runtime.to_owned(), ..TablesAccount::default() };
        for (_, one) in &tables {
            all.readings += one.readings;
            all.unfinished += one.unfinished;
            all.cpu_ns += one.cpu_ns;
            all.loads += one.loads;
            all.left_out += one.left_out;
            all.unread += one.unread;
            all.frames += one.frames;
            all.answers += one.answers;
            all.told = all.told.into_iter().chain(one.told).reduce(|one, other| one + other);
        }
        fmt_tables_of((comm, &format!("{} processes", tables.len())), &all, f)?;
    }
    Ok(())
}

fn fmt_tables_of((comm, who): (&str, &str), tables: &TablesAccount, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let listed = format!("{} pieces of code found in {} readings", tables.loads, tables.readings);
    let what = match (tables.loads, tables.answers) {
        (0, 0) => format!("nothing of it in a sample; {} readings", tables.readings),
        (_, 0) => listed,
        (0, answers) => format!("{} frames named in {answers} looks", tables.frames),
        (_, answers) => format!("{listed}, {} frames looked into in {answers} looks", tables.frames),
    };
    let (comm, runtime, cpu_ms) = (printable(comm), printable(&tables.runtime), tables.cpu_ns / 1_000_000);
    write!(f, "tables     {comm} ({who}): {runtime}, {what} of {cpu_ms} ms")?;
    if tables.left_out > 0 {
        write!(f, ", {} left out", tables.left_out)?;
    }
    if tables.unread > 0 {
        write!(f, ", {} entries not read", tables.unread)?;
    }
    if tables.unfinished > 0 {
        write!(f, ", {} readings not to their end", tables.unfinished)?;
    }
    if let Some(told) = tables.told {
        write!(f, "; a breakpoint in it told of {} calls and missed {}", told.calls, told.missed)?;
    }
    writeln!(f)
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// `99.5 %`; never rounded up to 100.
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    if part == whole {
        return "100 %".to_owned();
    }
    #[expect(clippy::cast_precision_loss, reason = "a percentage for people")]
    let share = part as f64 * 100.0 / whole as f64;
    format!("{:.2} %", (share * 100.0).floor() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::{AdviceLine, VerifiedNames};

    #[test]
    fn a_share_below_one_is_never_shown_as_all() {
        assert_eq!(percent(99_999, 100_000), "99.99 %");
        assert_eq!(percent(999_999, 1_000_000), "99.99 %");
        assert_eq!(percent(5, 5), "100 %");
        assert_eq!(percent(0, 0), "–");
    }

    #[test]
    fn the_sum_is_visible_in_the_first_line() {
        let mut account = Account { event: "cpu-clock".to_owned(), frequency_hz: 99, cpus: 2, ..Account::default() };
        account.samples.taken = 10;
        account.samples.delivered = 7;
        account.samples.lost_ring_full = 3;
        let text = account.to_string();
        assert!(text.starts_with("samples    10 taken = 7 delivered + 3 lost (3 ring buffer full);"), "{text}");
    }

    #[test]
    fn many_processes_of_one_program_have_one_line() {
        let of = |pid: u32, frames| {
            let runtime = "CPython 3.12".to_owned();
            let answers = u64::from(frames > 0);
            let tables =
                TablesAccount { runtime, readings: 1, cpu_ns: 2_000_000, frames, answers, ..Default::default() };
            SourceAccount { comm: "python3".to_owned(), pid, tables: Some(tables), ..Default::default() }
        };
        let lines = |sources: Vec<SourceAccount>| {
            let text = Account { sources, ..Account::default() }.to_string();
            text.lines().filter(|line| line.starts_with("tables")).map(str::to_owned).collect::<Vec<_>>()
        };
        let few = lines(vec![of(7, 5), of(8, 0)]);
        assert_eq!(few[0], "tables     python3 (7): CPython 3.12, 5 frames named in 1 looks of 2 ms");
        assert_eq!(few[1], "tables     python3 (8): CPython 3.12, nothing of it in a sample; 1 readings of 2 ms");
        let many = lines((1..=20).map(|pid| of(pid, 5)).collect());
        assert_eq!(many, ["tables     python3 (20 processes): CPython 3.12, 100 frames named in 20 looks of 40 ms"]);
    }

    #[test]
    fn what_was_not_got_of_lists_is_said_of_one_process_and_of_many() {
        let text = |count: u32| {
            let tables = TablesAccount { readings: 9, unfinished: 2, loads: 5, unread: 3, ..Default::default() };
            let source = |pid| SourceAccount { pid, tables: Some(tables.clone()), ..Default::default() };
            Account { sources: (1..=count).map(source).collect(), ..Account::default() }.to_string()
        };
        let (one, many) = (text(1), text(9));
        assert!(one.contains(" of 0 ms, 3 entries not read, 2 readings not to their end\n"), "{one}");
        assert!(many.contains(" of 0 ms, 27 entries not read, 18 readings not to their end\n"), "{many}");
    }

    #[test]
    fn that_a_breakpoint_was_set_in_a_process_is_said() {
        let told = Some(crate::account::ToldAccount { calls: 12, missed: 3, ..Default::default() });
        let tables =
            |told| TablesAccount { runtime: "LLVM".to_owned(), loads: 1, readings: 1, told, ..Default::default() };
        let text = |tables: &dyn Fn(u32) -> TablesAccount, count: u32| {
            let source = |pid| SourceAccount { pid, tables: Some(tables(pid)), ..Default::default() };
            Account { sources: (1..=count).map(source).collect(), ..Account::default() }.to_string()
        };
        let said = "; a breakpoint in it told of 12 calls and missed 3\n";
        assert!(text(&|_| tables(told), 1).contains(said) && !text(&|_| tables(None), 1).contains("breakpoint"));
        assert!(text(&|pid| tables(told.filter(|_| pid == 2)), 9).contains(said), "of one of nine");
    }

    #[test]
    fn inlined_methods_are_spoken_of_where_some_are_not_certain() {
        let said = |certain, guessed| {
            let mut account = Account::default();
            account.jit.named.runtime = 8;
            (account.jit.leaves_certain, account.jit.leaves_guessed) = (certain, guessed);
            account.to_string()
        };
        let text = said(2, 6);
        assert!(
            text.contains("; inlined methods are certain in 2 of 8 leaves (25.00 %), in the others one more "),
            "{text}"
        );
        assert!(text.contains("-XX:+DebugNonSafepoints"), "{text}");
        assert!(!said(8, 0).contains("inlined"), "{}", said(8, 0));
    }

    #[test]
    fn where_nothing_could_be_compared_it_is_said_what_would_be_a_second_source() {
        let text = |agreed, incomparable| {
            let verified = VerifiedNames { agreed, incomparable, only_announced: 7, ..VerifiedNames::default() };
            let source = |runtime: &str| {
                let tables = TablesAccount { runtime: runtime.to_owned(), frames: 7, ..TablesAccount::default() };
                SourceAccount { tables: Some(tables), ..SourceAccount::default() }
            };
            let sources = ["PHP 8.2.29", "Ruby 3.1.2", "Ruby 3.1.2"].map(source).to_vec();
            Account { verified: Some(verified), sources, ..Account::default() }.to_string()
        };
        let none = text(0, 0);
        assert!(none.contains("verified   no names could be compared; 7 frames are in dump or tables alone"), "{none}");
        assert!(none.contains("for PHP 8.2.29 there is no second source to compare with; one would be "), "{none}");
        assert!(none.contains("opcache.jit_debug=0x20") && !none.contains("0 of 0 names"), "{none}");
        assert_eq!(none.matches("for Ruby 3.1.2 there is no second source").count(), 1, "{none}");
        let some = text(5, 0);
        assert!(some.contains("verified   5 of 5 names that two sources have agree, 0 do not; 7 frames"), "{some}");
        assert!(!some.contains("second source") && !text(0, 3).contains("second source"), "{some}");
    }

    #[test]
    fn what_is_only_interpreted_is_not_called_code_of_a_jit() {
        let mut account = Account::default();
        assert!(account.to_string().contains("code       no frames of generated or interpreted code\n"), "{account}");
        account.jit.named.runtime = 8;
        account.jit.unnamed.insert("the frames of its interpreter were not taken along", 2);
        let process = |pid| ProcessNaming { pid, comm: "php".to_owned(), ..ProcessNaming::default() };
        account.naming = vec![process(7), process(8)];
        let advice = AdviceLine {
            pid: 7,
            comm: "php".to_owned(),
            further_processes: 0,
            unnamed_frames: 2,
            interpreted_samples: 0,
            advice: String::new(),
        };
        account.advice.push(advice);
        let text = account.to_string();
        assert!(text.contains("code       8 of 10 frames named (80.00 %)") && !text.contains("JIT"), "{text}");
        assert!(text.contains("php (7): 2 frames of generated or interpreted code have no name"), "{text}");
    }

    #[test]
    fn leaves_are_said_where_there_are_some() {
        let mut account = Account::default();
        account.jit.named.runtime = 8;
        let text = account.to_string();
        assert!(text.contains("code       8 of 8 frames named (100 %); 8 by the runtime's own tables\n"), "{text}");
        account.jit.leaves_unnamed = 2;
        let text = account.to_string();
        assert!(text.contains("frames named (100 %), 0 of 2 leaves; 8 by"), "{text}");
    }
}
