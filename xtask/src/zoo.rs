//! `zoo`: real runtimes, each running the program whose shares are known, and what jitprof has seen of it.
//!
//! ```text
//! runtimes.rs (the table) ─▶ get.rs: npm, pip, apt, chroots in <target>/zoo
//!   ─▶ start, wait for `ready pid=N`, jitprof --pid N ─▶ folded stacks and account
//!   ─▶ measure.rs ─▶ table.rs ─▶ the terminal, docs/measurements/runtimes.md ─▶ readme.rs ─▶ README.md
//! ```
//!
//! It fails if a row falls short and the table does not know why, or if the advice is not the right one.

mod get;
mod measure;
mod readme;
mod runtimes;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::bench::report;
use crate::bench::target::Target;
use crate::build::{self, Profile};
use crate::command::{self, Root};
use crate::workspace::Workspace;
use get::Home;
use measure::Figures;
use runtimes::{Mode, RUNTIMES, Runtime};
use table::Row;

/// A prime, so that no target's own rhythm falls into step with it.
const FREQUENCY: &str = "997";
/// A target that is attached to lives until it is killed, or for so many seconds.
const LIFE_S: u64 = 600;
/// How long one lives that is to end by itself.
const BRIEF_LIFE_S: u64 = 2;
/// How many times as long as its warm-up a process gets for it.
const PATIENCE: u64 = 5;
/// How many times as long a second recording is where a first one had too few samples.
const ONCE_MORE: u64 = 4;
/// The block's name among the measurements.
const BLOCK: &str = "zoo";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only these runtimes
    #[arg(value_name = "NAME", value_parser = names())]
    names: Vec<String>,
    /// Seconds of each recording
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Use the jitprof of an earlier build
    #[arg(long)]
    no_build: bool,
    /// Use this jitprof
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Write the rows into docs/measurements, and what they say into README.md
    #[arg(long)]
    write: bool,
}

fn names() -> clap::builder::PossibleValuesParser {
    RUNTIMES.iter().map(|runtime| runtime.name).collect::<Vec<_>>().into()
}

/// What all recordings share.
struct Zoo<'a> {
    workspace: &'a Workspace,
    jitprof: PathBuf,
    agent: PathBuf,
    root: Root,
    /// What was fetched, and dumps and recordings while they are made.
    cache: PathBuf,
    seconds: u64,
}

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let jitprof = match &arguments.binary {
        Some(given) => fs::canonicalize(given).with_context(|| format!("there is no {}", given.display()))?,
        None if arguments.no_build => workspace.target.join("release/jitprof"),
        None => {
            build::agent(workspace, Profile::Release)?;
            build::jitprof(workspace, Profile::Release)?
        }
    };
    let agent = jitprof.with_file_name("libjitprof_agent.so");
    let root = Root::detect();
    if root == Root::Unavailable {
        bail!("jitprof needs root, and sudo asks for a password here; run `sudo -v` and try again");
    }
    let zoo = Zoo { workspace, jitprof, agent, root, cache: workspace.target.join("zoo"), seconds: arguments.seconds };
    let machine = report::machine();
    let mut rows = Vec::new();
    let wanted = |runtime: &&Runtime| arguments.names.is_empty() || arguments.names.iter().any(|n| n == runtime.name);
    for runtime in RUNTIMES.iter().filter(wanted) {
        for row in zoo.rows(runtime) {
            command::progress(&row.to_string());
            rows.push(row);
        }
    }
    let text = table::text(&rows);
    println!("\n{machine}\n\n{text}");
    if arguments.write {
        write(&workspace.root, &machine, &rows)?;
    }
    match rows.iter().filter(|row| !row.is_explained()).count() {
        0 => Ok(()),
        count => bail!("{count} of {} rows fall short and nobody has said why, or have the wrong advice", rows.len()),
    }
}

/// Puts the rows among the measurements, in place of older ones of the same runtimes, and README's table into README.
fn write(root: &Path, machine: &str, rows: &[Row]) -> Result<()> {
    let known: Vec<&str> = RUNTIMES.iter().map(|runtime| runtime.name).collect();
    let command = "jitprof --pid PID -F 997 -d 5s -o out.folded --account out.json\ncargo xtask zoo --write";
    let block = |old: &str| {
        let table = table::merged(old, rows, &known);
        let machines = machines(old, &format!("{machine}; {FREQUENCY} Hz"), &table);
        Ok(format!("{machines}{table}\n```text\n{command}\n```\n"))
    };
    let measured = report::write_block(&root.join("docs/measurements"), BLOCK, block)?;
    let readme = readme::table(&read(&measured)?)?;
    let written = report::write_block(root, readme::BLOCK, |_| Ok(readme.clone()))?;
    command::progress(&format!("written into {} and {}", measured.display(), written.display()));
    Ok(())
}

/// The machines of a table's rows, a paragraph for each day: this one's, and of older ones those of days that still have rows.
fn machines(old: &str, new: &str, table: &str) -> String {
    let day = |line: &str| line.split_once(':').map(|(day, _)| day.to_owned());
    let rows: Vec<&str> = table.lines().filter_map(|line| table::cells(line).get(2).copied()).collect();
    let is_needed = |line: &&str| day(line) != day(new) && day(line).is_some_and(|day| rows.contains(&&*day));
    let kept = old.lines().filter(|line| !line.starts_with('|')).filter(is_needed);
    kept.chain([new]).map(|line| format!("{line}\n\n")).collect()
}

impl Zoo<'_> {
    fn rows(&self, runtime: &'static Runtime) -> Vec<Row> {
        command::progress(&format!("{}: {}", runtime.name, runtime.guide.join("; ")));
        let home = self.home(runtime);
        let day = report::today();
        let row = |mode: &Mode, version: &str, seen| Row {
            runtime: runtime.name,
            version: version.to_owned(),
            day: day.clone(),
            how: mode.how,
            seen,
            due: mode.advice,
            because: mode.because,
        };
        match home {
            Ok((home, version)) => {
                // A machine that is busy with other things gives a target too few samples to tell anything.
                let record = |mode: &Mode| match self.record(runtime, &home, mode, self.seconds) {
                    Ok(few) if few.are_too_few() => self.record(runtime, &home, mode, self.seconds * ONCE_MORE),
                    enough => enough,
                };
                let seen = |mode: &Mode| record(mode).map_err(|error| format!("{error:#}"));
                runtime.modes.iter().map(|mode| row(mode, &version, seen(mode))).collect()
            }
            Err(error) => runtime.modes.iter().take(1).map(|mode| row(mode, "", Err(format!("{error:#}")))).collect(),
        }
    }

    /// The runtime, ready to start the known program, and its version.
    fn home(&self, runtime: &Runtime) -> Result<(Home, String)> {
        let home = get::get(self.workspace, runtime, &self.cache, &self.agent)?;
        let said = home.command(runtime.version, 0, "")?.output().context("it does not start")?;
        let said = [said.stdout, said.stderr].concat();
        let version = version_in(&String::from_utf8_lossy(&said)).context("it says no version")?;
        for line in runtime.prepare {
            command::run(&mut home.command(line, 0, "")?)?;
        }
        Ok((home, version))
    }

    fn record(&self, runtime: &Runtime, home: &Home, mode: &Mode, seconds: u64) -> Result<Figures> {
        let (folded, account) = (self.cache.join("out.folded"), self.cache.join("out.json"));
        let mut jitprof = self.root.command(&self.jitprof).context("jitprof needs root")?;
        jitprof.args(["-F", FREQUENCY, "-o"]).arg(&folded).arg("--account").arg(&account);
        jitprof.stderr(std::process::Stdio::null());
        let finished = if mode.launch {
            let life = if mode.brief { BRIEF_LIFE_S } else { seconds };
            let target = home.command(mode.command, life, "")?;
            jitprof.current_dir(&home.work).arg("--").arg(target.get_program()).args(target.get_args());
            jitprof.envs(target.get_envs().filter_map(|(name, value)| Some((name, value?))));
            command::output(&mut jitprof)
        } else {
            let life = if mode.brief { BRIEF_LIFE_S } else { LIFE_S };
            let target = Target::start_in(&mut home.command(mode.command, life, "")?, &home.work)?;
            if !mode.brief {
                warm_up(&target.pid, runtime.warm_up);
            }
            if let Some(line) = mode.before {
                command::output(&mut home.command(line, 0, &target.pid)?)?;
            }
            jitprof.args(["--pid", &target.pid, "-d", &format!("{seconds}s")]);
            command::output(&mut jitprof)
        };
        home.end_all();
        finished?;
        let account: Value = serde_json::from_str(&read(&account)?).context("the account is no JSON")?;
        sweep(home, &account);
        Ok(Figures::of(&read(&folded)?, &account, runtime.truth))
    }
}

/// Waits until a process has used so many seconds of CPU time: a busy machine takes longer to it. One whose workers use it
/// is waited for a few times as long.
fn warm_up(pid: &str, seconds: u64) {
    let begun = Instant::now();
    let used = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        cpu_s(&stat).unwrap_or_default()
    };
    while used() < seconds && begun.elapsed() < Duration::from_secs(seconds * PATIENCE) {
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The whole seconds of CPU time in a process' stat: behind the name, utime and stime are the 12th and 13th, in hundredths.
fn cpu_s(stat: &str) -> Option<u64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(2).collect();
    let ticks: Vec<u64> = fields.iter().filter_map(|field| field.parse().ok()).collect();
    (ticks.len() == 2).then(|| ticks.iter().sum::<u64>() / 100)
}

/// Takes away the dumps and maps that were read.
fn sweep(home: &Home, account: &Value) {
    let sources = account["sources"].as_array().into_iter().flatten();
    for source in sources {
        let dumps = source["dumps"].as_array().into_iter().flatten();
        let dumps = dumps.filter_map(|dump| dump["path"].as_str().and_then(|path| path.rsplit('/').next()));
        let map = format!("perf-{}.map", source["pid"]);
        for name in dumps.chain([&*map]) {
            for folder in [&home.tmp(), &home.work] {
                let path = folder.join(name);
                if path.is_file() && fs::remove_file(&path).is_err() {
                    command::progress(&format!("{} stays behind", path.display()));
                }
            }
        }
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The first number with a point in it, or the first number.
fn version_in(said: &str) -> Option<String> {
    let numbers = |text: &str| text.trim_matches(|c: char| !c.is_ascii_digit()).to_owned();
    let is_version = |word: &String| word.chars().all(|c| c.is_ascii_digit() || c == '.') && !word.is_empty();
    let words: Vec<String> =
        said.split(|c: char| c.is_whitespace() || "+-_~\"v".contains(c)).map(numbers).filter(is_version).collect();
    words.iter().find(|word| word.contains('.')).or(words.first()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_runtimes_say() {
        for (said, version) in [
            ("v24.11.1\n", "24.11.1"),
            ("Python 3.13.0\n", "3.13.0"),
            ("PHP 8.2.29 (cli) (built: Jul  3 2025 16:16:05) (NTS)\n", "8.2.29"),
            ("openjdk version \"17.0.15\" 2025-04-15\n", "17.0.15"),
            ("25", "25"),
            ("LuaJIT 2.1.1720049189 -- Copyright (C) 2005-2023 Mike Pall.\n", "2.1.1720049189"),
        ] {
            assert_eq!(version_in(said).as_deref(), Some(version), "{said}");
        }
        assert_eq!(version_in("no number"), None);
    }

    #[test]
    fn cpu_time_is_read_behind_a_name_that_may_hold_anything() {
        assert_eq!(cpu_s("7 (a) 1 (b) S 1 2 3 4 5 6 7 8 9 10 250 170 0 0 20 0 1"), Some(4));
        assert_eq!(cpu_s(""), None);
    }

    #[test]
    fn a_table_keeps_the_machines_of_its_older_rows() {
        let row = |day: &str| format!("| x-1 | 1.2 | {day} | no flag | 900 |\n");
        let old =
            "2026-11-22: gone\n\n2026-11-23: a 7:30\n\n2026-11-25: b\n\n| 2026-11-23: | x |\n\n```text\nrun: x\n```\n";
        let table = row("2026-11-23") + &row("2026-11-25");
        assert_eq!(machines(old, "2026-11-25: c", &table), "2026-11-23: a 7:30\n\n2026-11-25: c\n\n");
    }

    #[test]
    fn names_are_given_once() {
        let mut names: Vec<&str> = RUNTIMES.iter().map(|runtime| runtime.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), RUNTIMES.len());
    }

    fn document(path: &str) -> String {
        fs::read_to_string(format!("{}/../docs/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    }

    #[test]
    fn what_is_recorded_is_a_start_that_there_is() {
        let document = document("measurements/runtimes.md");
        let mut rows = 0;
        for cells in document.lines().map(table::cells) {
            let [name, _, _, how, ..] = cells[..] else { continue };
            let Some(runtime) = RUNTIMES.iter().find(|runtime| runtime.name == name) else { continue };
            rows += 1;
            let is_known = runtime.modes.iter().any(|mode| mode.how == how);
            assert!(is_known, "{name} is not started with {how} any more: take the row away");
        }
        assert!(rows > 0, "no row is read");
    }

    #[test]
    fn what_the_guide_starts_with_nothing_the_zoo_starts_so_too() {
        let guide = document("guide/runtimes.md");
        let starts = guide.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
        let names: Vec<&str> = starts.filter(|(_, start)| start.starts_with("nothing")).map(|(name, _)| name).collect();
        let is_bare = |name: &&str| {
            let mut runtimes = RUNTIMES.iter().filter(|runtime| runtime.guide.contains(name));
            runtimes.any(|runtime| runtime.modes.iter().any(Mode::is_bare))
        };
        let others: Vec<&&str> = names.iter().filter(|name| !is_bare(name)).collect();
        assert!(!names.is_empty() && others.is_empty(), "started with a flag only: {others:?}");
    }

    #[test]
    fn what_the_guide_says_was_run_is_in_the_zoo() {
        let guide = document("guide/runtimes.md");
        let rows = guide.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
        let mut missing = Vec::new();
        for cells in rows.map(|row| row.split(" | ").collect::<Vec<_>>()).skip(1) {
            let [name, _, _, stacks] = &cells[..] else { continue };
            let is_in_zoo = RUNTIMES.iter().any(|runtime| runtime.guide.contains(name));
            if !stacks.contains("not tried") && !is_in_zoo {
                missing.push((*name).to_owned());
            }
        }
        assert!(missing.is_empty(), "neither `not tried` nor in the zoo: {missing:?}");
        let rows = RUNTIMES.iter().flat_map(|runtime| runtime.guide);
        let unknown: Vec<&&str> = rows.filter(|row| !guide.contains(&format!("\n| {row} |"))).collect();
        assert!(unknown.is_empty(), "in no row of the guide: {unknown:?}");
    }
}
