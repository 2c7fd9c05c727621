//! The programs that are profiled.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::watcher::Group;
use crate::command;

/// What Node writes a jitdump with.
const NODE_FLAGS: [&str; 3] = ["--perf-prof", "--perf-prof-unwinding-info", "--interpreted-frames-native-stack"];
/// Until V8 has optimised what is hot.
const WARM_UP: Duration = Duration::from_millis(1500);
/// Nothing here runs so long; it ends a target that nobody ends.
const LIFE_S: &str = "1200";

/// A running program that has said that it is ready; ended when it goes out of scope, and its folder with it.
pub(crate) struct Target {
    child: Child,
    /// What it prints once it is ready goes unread; without this it would end by an error instead.
    stdout: Option<BufReader<ChildStdout>>,
    folder: PathBuf,
    /// The folder goes with it.
    is_own: bool,
    /// Ends it in any case.
    _group: Group,
    /// Its process id.
    pub(crate) pid: String,
    /// The command, as one would type it.
    pub(crate) line: String,
}

/// Iterations of the target between two of its own notes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    /// A second of time.
    pub(crate) by_time: f64,
    /// A second of its own CPU time.
    pub(crate) by_cpu: f64,
}

impl Target {
    /// deep.js with `recursion` frames between main and driver.
    pub(crate) fn deep(node: &Path, targets: &Path, scratch: &Path, recursion: u32) -> Result<Self> {
        let mut command = Command::new(node);
        command.args(NODE_FLAGS).arg(targets.join("node/deep.js")).arg(LIFE_S);
        command.env("TIMELINE", "timeline").env("DEEP", recursion.to_string());
        let mut target = Self::start(&mut command, scratch)?;
        if recursion > 0 {
            target.line = format!("DEEP={recursion} {}", target.line);
        }
        std::thread::sleep(WARM_UP);
        Ok(target)
    }

    /// Starts it in a folder of its own, for it writes its dump into the current one, and waits for its ready line.
    pub(crate) fn start(command: &mut Command, scratch: &Path) -> Result<Self> {
        let folder = scratch.join("target");
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let mut target = Self::start_in(command, &folder)?;
        target.is_own = true;
        Ok(target)
    }

    /// Starts it in a folder that stays, and waits for its ready line.
    pub(crate) fn start_in(command: &mut Command, folder: &Path) -> Result<Self> {
        let line = command::shown(command);
        command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let group = Group::start()?;
        let child = group.spawn(command).with_context(|| format!("cannot start `{line}`"))?;
        let mut target = Self {
            child,
            stdout: None,
            folder: folder.to_owned(),
            is_own: false,
            _group: group,
            pid: String::new(),
            line,
        };
        let stdout = BufReader::new(target.child.stdout.take().context("the target has no stdout")?);
        for line in target.stdout.insert(stdout).lines() {
            let line = line.context("cannot read what the target prints")?;
            if let Some(pid) = line.strip_prefix("ready pid=") {
                // Some say more behind it.
                target.pid = pid.split_whitespace().next().unwrap_or_default().to_owned();
                return Ok(target);
            }
        }
        bail!("`{}` ended before it was ready; run it by hand to see why", target.line)
    }

    /// How many notes of its progress deep.js has written; it writes two a second.
    pub(crate) fn notes(&self) -> Result<usize> {
        Ok(self.timeline()?.lines().count())
    }

    /// Its pace from the first note behind `from` notes to the last that there is.
    pub(crate) fn pace_since(&self, from: usize) -> Result<Pace> {
        pace(&self.timeline()?, from).context("the target noted no progress")
    }

    fn timeline(&self) -> Result<String> {
        let path = self.folder.join("timeline");
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Both fail only if the program has ended by itself.
        if self.child.kill().is_ok() && self.child.wait().is_err() {
            command::progress("the target could not be waited for");
        }
        if self.is_own
            && let Err(error) = fs::remove_dir_all(&self.folder)
        {
            command::progress(&format!("cannot remove {}: {error}", self.folder.display()));
        }
    }
}

/// Of lines `time_s iterations cpu_s`.
fn pace(timeline: &str, from: usize) -> Option<Pace> {
    let notes: Vec<[f64; 3]> = timeline
        .lines()
        .skip(from)
        .filter_map(|line| {
            let mut words = line.split(' ').map(|word| word.parse().ok());
            Some([words.next()??, words.next()??, words.next()??])
        })
        .collect();
    let (first, last) = (notes.first()?, notes.last()?);
    let [time, iterations, cpu] = [last[0] - first[0], last[1] - first[1], last[2] - first[2]];
    (time > 0.0 && cpu > 0.0).then(|| Pace { by_time: iterations / time, by_cpu: iterations / cpu })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_taken_between_whole_notes() {
        let timeline = "10 0 1\n11 100 2\n12 200 2.5\n13 300 3\n14 4";
        assert_eq!(pace(timeline, 1), Some(Pace { by_time: 100.0, by_cpu: 200.0 }));
        assert_eq!(pace(timeline, 3), None);
    }
}
