//! Control groups for targets.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// A control group of its own for a test, removed when the value is dropped.
#[derive(Debug)]
pub struct ControlGroup {
    directory: PathBuf,
    path: String,
    /// How many of the directories are ours.
    depth: usize,
}

impl ControlGroup {
    /// Makes one in a hierarchy of version 2.
    ///
    /// # Errors
    /// It cannot be made, or the machine has no such hierarchy.
    pub fn version_2(path: &str) -> Result<Self> {
        Self::of("cgroup2", "", path)
    }

    /// Makes one in a hierarchy of version 1, that of the freezer, which does nothing to what is in it.
    ///
    /// # Errors
    /// Like [`Self::version_2`].
    pub fn version_1(path: &str) -> Result<Self> {
        Self::of("cgroup", "freezer", path)
    }

    fn of(kind: &str, option: &str, path: &str) -> Result<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        let mount = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (mount, found, options) = (words.next()?, words.next()?, words.next()?);
            (found == kind && (option.is_empty() || options.split(',').any(|one| one == option))).then_some(mount)
        });
        let mount = mount.with_context(|| {
            format!("no {kind} {option} is mounted here; `--skip NAME=REASON` leaves out the tests that need it")
        })?;
        // Below the test's own, where it has one: what it leaves there is found and ended with it. Tests run side by side.
        let groups = std::fs::read_to_string("/proc/self/cgroup")?;
        let around = groups.lines().find_map(|line| line.strip_prefix("0::")).filter(|_| kind == "cgroup2");
        let around = around.unwrap_or_default().trim_end_matches('/');
        let own = format!("/jitprof-test-{}{path}", std::process::id());
        let (path, depth) = (format!("{around}{own}"), own.matches('/').count());
        let directory = Path::new(mount).join(&path[1..]);
        std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        Ok(Self { directory, path, depth })
    }

    /// Its path in its hierarchy.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A command that runs `inner`, its program and arguments, in this control group.
    #[must_use]
    pub fn command(&self, inner: &Command) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$1/cgroup.procs\" && shift && exec \"$@\"", "sh"]).arg(&self.directory);
        command.arg(inner.get_program()).args(inner.get_args());
        command
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Refused while a process that was killed just now is still in it, and where another test's lies beside it.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.directory).is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let above = self.directory.ancestors().skip(1).take(self.depth - 1);
        if above.into_iter().any(|directory| std::fs::remove_dir(directory).is_err()) {
            eprintln!("{} is left to another test", self.path);
        }
    }
}
