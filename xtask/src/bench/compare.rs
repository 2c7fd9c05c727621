//! The stacks of jitprof beside those of `perf record --call-graph dwarf`, of the same run of the same program.
//!
//! Both record at once, and sample at different times, so that stacks are compared as sets: a sample agrees if
//! its chain of functions occurs among the other's. The folded stacks of both stay in `<target>/compare`.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Bench;
use super::profilers::{self, Profilers};
use super::report::{Figure, Report};
use super::running::Running;
use super::target::Target;
use crate::command;

const FREQUENCY: u32 = 499;
const LENGTH: Duration = Duration::from_secs(4);
/// Lowest address of the kernel; perf's kernel frames are left out, and jitprof is told to take none.
const KERNEL: u64 = 1 << 63;
/// Chains that only one of the two has, shown of each.
const SHOWN: usize = 2;

/// Folded stacks: functions from the outermost one on, and samples.
type Stacks = BTreeMap<Vec<String>, u64>;

pub(super) fn run(bench: &Bench, profilers: &Profilers, kept: &Path, report: &mut Report) -> Result<()> {
    let Some(perf) = &profilers.perf else {
        report.skip("agreement with perf", "needs perf");
        return Ok(());
    };
    fs::create_dir_all(kept).with_context(|| format!("cannot create {}", kept.display()))?;
    for (name, start) in targets(bench, profilers) {
        match start() {
            Ok(mut start) => compare(bench, perf, name, &mut start, kept, report)?,
            Err(error) => {
                report.skip(&format!("agreement with perf of {name}"), &format!("could not start: {error:#}"))
            }
        }
    }
    Ok(())
}

type Start<'a> = Box<dyn Fn() -> Result<Command> + 'a>;

/// Programs that perf can unwind.
fn targets<'a>(bench: &'a Bench, profilers: &'a Profilers) -> Vec<(&'static str, Start<'a>)> {
    let native = move |compiler: &'static str, source: &'static str| -> Start<'a> {
        Box::new(move || {
            let source = bench.targets.join(source);
            let program = bench.scratch.join(source.file_stem().context("a source has a name")?);
            let mut compile = Command::new(compiler);
            command::output(compile.args(["-O2", "-fomit-frame-pointer", "-o"]).arg(&program).arg(&source))?;
            let mut start = Command::new(program);
            start.arg("60");
            Ok(start)
        })
    };
    let node = move || {
        let mut start = Command::new(&profilers.node);
        start.args(["--perf-prof", "--perf-prof-unwinding-info", "--interpreted-frames-native-stack"]);
        start.arg("--no-turbo-inlining").arg(bench.targets.join("node/burn.js")).arg("20");
        Ok(start)
    };
    let demo = move || {
        // Without debug information: jitprof shows the functions that it says were inlined, of which there are many
        // between `main` and the generated code, and perf is told not to, as it takes minutes to find them.
        let (whole, program) = (bench.jitprof.with_file_name("jitdemo"), bench.scratch.join("jitdemo"));
        command::output(Command::new("strip").args(["--strip-debug", "-o"]).arg(&program).arg(whole))?;
        let mut start = Command::new(program);
        start.args(["--secs", "60", "--no-frame-pointer", "--generations", "1"]);
        Ok(start)
    };
    vec![
        ("C through qsort", native("cc", "native/deepnofp.c")),
        ("C++ with exceptions and signals", native("c++", "native/unwinder.cpp")),
        ("system calls", native("cc", "native/calls.c")),
        ("jitdemo without frame pointers", Box::new(demo)),
        ("Node, burn.js", Box::new(node)),
    ]
}

fn compare(
    bench: &Bench,
    perf: &Path,
    name: &str,
    start: &mut Command,
    kept: &Path,
    report: &mut Report,
) -> Result<()> {
    let target = Target::start(start, &bench.scratch)?;
    let (account, folded) = (bench.scratch.join("account.json"), bench.scratch.join("out.folded"));
    let (data, injected) = (bench.scratch.join("perf.data"), bench.scratch.join("perf.jit.data"));
    let mut jitprof = profilers::jitprof(&bench.jitprof, &target.pid, FREQUENCY, &account, &folded);
    jitprof.arg("-U");
    let mut record = Command::new(perf);
    record.args(["record", "--call-graph", "dwarf,16384", "-k", "1", "-e", "cpu-clock", "-N"]);
    record.args(["-F", &FREQUENCY.to_string(), "-p", &target.pid, "-o"]).arg(&data);
    let mut ours = Running::start(&mut jitprof, &bench.scratch.join("log"))?;
    let mut theirs = Running::start(&mut record, &bench.scratch.join("perf.log"))?;
    ours.wait_for_events()?;
    theirs.wait_for_events()?;
    std::thread::sleep(LENGTH);
    ours.stop()?;
    theirs.stop()?;
    let log = bench.scratch.join("log");
    let mut inject = profilers::perf_inject(perf, &data, &injected, &bench.scratch);
    Running::complete(&mut inject, &log)?;
    let mut script = Command::new(perf);
    script.env("HOME", &bench.scratch);
    script.args(["script", "--no-inline", "-F", "comm,ip,sym", "-i"]).arg(&injected);
    let theirs = from_script(&command::output(&mut script)?);
    let ours = from_folded(&fs::read_to_string(&folded).context("cannot read the folded stacks")?);
    for (who, stacks) in [("jitprof", &ours), ("perf", &theirs)] {
        let file = kept.join(format!("{}.{who}.folded", name.replace([' ', ','], "_")));
        let lines: String = stacks.iter().map(|(chain, count)| format!("{} {count}\n", chain.join(";"))).collect();
        fs::write(&file, lines).with_context(|| format!("cannot write {}", file.display()))?;
    }
    for (who, these, others) in [("jitprof", &ours, &theirs), ("perf", &theirs, &ours)] {
        for (chain, count) in only(these, others) {
            command::progress(&format!("only {who}: {count} {}", chain.join(";")));
        }
    }
    if agreeing(&ours, &theirs).0 == 0 && agreeing(&theirs, &ours).0 == 0 {
        report.skip(&format!("agreement with perf of {name}"), "has no chain in common: names are written differently");
        return Ok(());
    }
    let commands = [&jitprof, &record, &inject, &script]
        .map(|command| command::shown(command).replace(&format!(" {}", target.pid), " PID"));
    report.add(Figure {
        what: format!("{name} (`{}`)", target.line),
        ours: shown(&ours, &theirs),
        peer: format!("perf {}", shown(&theirs, &ours)),
        ratio: String::new(),
        goal: None,
        commands: commands.to_vec(),
    });
    Ok(())
}

/// How many samples of these have a chain that occurs among those.
fn agreeing(these: &Stacks, those: &Stacks) -> (u64, u64) {
    let all = these.values().sum();
    let both = these.iter().filter(|(chain, _)| those.contains_key(*chain)).map(|(_, count)| count).sum();
    (both, all)
}

fn shown(these: &Stacks, those: &Stacks) -> String {
    let (both, all) = agreeing(these, those);
    let percent =
        f64::from(u32::try_from(both).unwrap_or(u32::MAX)) * 100.0 / f64::from(u32::try_from(all).unwrap_or(u32::MAX));
    format!("{both} of {all} ({percent:.1} %)")
}

/// The most frequent chains that the other does not have.
fn only<'a>(these: &'a Stacks, those: &Stacks) -> Vec<(&'a Vec<String>, u64)> {
    let mut missing: Vec<_> =
        these.iter().filter(|(chain, _)| !those.contains_key(*chain)).map(|(chain, count)| (chain, *count)).collect();
    missing.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    missing.truncate(SHOWN);
    missing
}

fn from_folded(text: &str) -> Stacks {
    let mut stacks = Stacks::new();
    for line in text.lines() {
        let Some((chain, count)) = line.rsplit_once(' ') else { continue };
        // The first frame is the process.
        let chain = chain.split(';').skip(1).map(plain).collect();
        *stacks.entry(merged(chain)).or_default() += count.parse().unwrap_or(0);
    }
    stacks
}

/// perf's samples: a line for the thread, a line `address name` for each frame from the innermost one on, a blank line.
fn from_script(text: &str) -> Stacks {
    let mut stacks = Stacks::new();
    let mut names = HashMap::new();
    for sample in text.split("\n\n").filter(|sample| !sample.trim().is_empty()) {
        let mut chain = Vec::new();
        for line in sample.lines().skip(1) {
            let Some((address, name)) = line.trim().split_once(' ') else { continue };
            let Ok(address) = u64::from_str_radix(address, 16) else { continue };
            if address < KERNEL {
                chain.push(names.entry(name.to_owned()).or_insert_with(|| plain(name)).clone());
            }
        }
        chain.reverse();
        if !chain.is_empty() {
            *stacks.entry(merged(chain)).or_default() += 1;
        }
    }
    stacks
}

/// Frames without a name are nobody's, and neighbours of one name are one: the two do not find the same functions in
/// stripped libraries, and jitprof shows those that were inlined.
fn merged(mut chain: Vec<String>) -> Vec<String> {
    chain.retain(|name| !name.is_empty());
    chain.dedup();
    chain
}

/// A function's name without what the two write differently: parameters, templates, versions, aliases of libc, V8's marks
/// of tiers, places, and unnamed code altogether.
fn plain(name: &str) -> String {
    let name = name.trim().trim_start_matches("JS:").trim_start_matches(['*', '~', '^', '+']);
    if name.starts_with('[') {
        return String::new();
    }
    let name = name.replace("(anonymous namespace)::", "");
    let end = name.find([' ', '(', '<', '@', '[']).unwrap_or(name.len());
    let name = &name[..end];
    // Parts that a compiler split off.
    let parts = [".part.", ".cold", ".isra.", ".constprop."];
    let end = parts.iter().filter_map(|part| name.find(part)).min().unwrap_or(name.len());
    name[..end]
        .trim_end_matches("_impl")
        .trim_start_matches("__GI_")
        .trim_start_matches("___")
        .trim_start_matches("__libc_")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_stack_is_the_same_from_both() {
        let ours = from_folded("p;_start;main;node::Start;*leafHot /x.js:9;[libc.so.6+0x1];__GI___libc_read 3\n");
        let theirs = from_script(
            "p\n\t7f00 __GI___libc_read.part.0 (inlined)\n\t7f01 [unknown]\n\t7f02 JS:*leafHot /x.js:9:17\n\
             \t41 node::Start(int, char**)\n\t42 main\n\t43 _start\n\n\
             p\n\tffffffff81000000 do_syscall_64\n\t42 main\n\n",
        );
        assert_eq!(agreeing(&ours, &theirs), (3, 3), "{ours:?} {theirs:?}");
        assert_eq!(agreeing(&theirs, &ours), (1, 2), "the kernel's frame is left out, and this stack is another one");
        assert_eq!(only(&theirs, &ours), [(&vec!["main".to_owned()], 1)]);
    }
}
