//! How runtimes are had: where each is, and commands that run in its surroundings.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::runtimes::{Get, Runtime};
use crate::apt::{Apt, Source, sources_of_this_system};
use crate::command::{self, Root};
use crate::prepare;
use crate::workspace::Workspace;

/// Runs a program in the root `$0`, with /proc and /dev there and the folder `$1` as `/targets`. The mounts are of this
/// process' own mount namespace, and end with it; its number stays the same.
const IN_ROOT: &str = "mount -t proc proc \"$0/proc\" && mount --rbind /dev \"$0/dev\" && mount --bind \"$1\" \"$0/targets\" \
     && shift && exec unshare --root=\"$0\" --wd=/work -- \"$@\"";
/// What the root of a Debian has besides the packages' files.
const FOLDERS: [&str; 5] = ["proc", "dev", "targets", "work", "tmp"];
/// The packages that every root has: `base-files` has the links from /bin to /usr/bin.
const BASE: [&str; 2] = ["base-files", "libc-bin"];

/// Where a runtime is.
pub(super) struct Home {
    /// Its program, as it sees itself.
    program: PathBuf,
    /// The root that it runs in, if not in this system's.
    root: Option<PathBuf>,
    /// The current folder of its program, as this system sees it.
    pub(super) work: PathBuf,
    /// The known programs.
    targets: PathBuf,
    /// jitprof's library for Intel's API.
    agent: PathBuf,
}

/// Finds or fetches it; what is fetched is kept in `cache`.
pub(super) fn get(workspace: &Workspace, runtime: &Runtime, cache: &Path, agent: &Path) -> Result<Home> {
    let folder = cache.join(runtime.name);
    let (work, targets) = (folder.join("work"), workspace.targets());
    create(&work)?;
    let agent = agent.to_owned();
    let here = |program: PathBuf| {
        let (work, targets, agent) = (work.clone(), targets.clone(), agent.clone());
        Ok(Home { program, root: None, work, targets, agent })
    };
    match runtime.get {
        Get::Prepared(step, variable) => here(prepared(workspace, step, variable)?),
        Get::Path(name, packages) => here(prepare::program("", name, packages)?),
        Get::Pyenv(version) => here(prepare::pyenv_python(version)?),
        Get::Npm(package) => {
            let program = folder.join(runtime.program);
            if !program.is_file() {
                let npm = prepare::program("JITPROF_NPM", "npm", &["npm"])?;
                let mut install = Command::new(npm);
                install.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--prefix"]);
                command::run(install.arg(&folder).arg(package))?;
            }
            here(program)
        }
        Get::Debian(suite, packages) => {
            let root = rooted(runtime, suite, packages, &folder)?;
            Ok(Home { program: runtime.program.into(), work: root.join("work"), root: Some(root), targets, agent })
        }
        Get::Wheel(wheel, suite, packages) => {
            let root = rooted(runtime, suite, packages, &folder)?;
            if !root.join(runtime.program.trim_start_matches('/')).is_file() {
                let python = prepare::program("JITPROF_ZOO_PYTHON", "python3", &["python3-pip"])?;
                let mut install = Command::new(python);
                install.args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"]);
                command::run(install.arg(root.join("opt")).arg(wheel))?;
            }
            Ok(Home { program: runtime.program.into(), work: root.join("work"), root: Some(root), targets, agent })
        }
    }
}

/// The root of a runtime whose programs run by chroot.
fn rooted(runtime: &Runtime, suite: &str, packages: &[&str], folder: &Path) -> Result<PathBuf> {
    let root = folder.join("root");
    if !root.is_dir() {
        unpack(suite, packages, folder, &root)?;
    }
    if Root::detect() != Root::Already {
        bail!("its programs run by chroot, which takes root; run `sudo -E cargo xtask zoo {}`", runtime.name);
    }
    Ok(root)
}

/// A path that a step of `xtask prepare` has found.
fn prepared(workspace: &Workspace, step: &str, variable: &str) -> Result<PathBuf> {
    let step = prepare::RUNTIMES.iter().find(|known| known.name == step).context("no such step of `xtask prepare`")?;
    let found: Option<OsString> =
        step.prepare(workspace)?.into_iter().find_map(|(name, value)| (name == variable).then_some(value));
    found.map(PathBuf::from).with_context(|| format!("`xtask prepare` has found no {variable}"))
}

/// Makes a root of packages and what they depend on. Nothing of them is run.
fn unpack(suite: &str, packages: &[&str], folder: &Path, root: &Path) -> Result<()> {
    let architecture = command::output(Command::new("dpkg").arg("--print-architecture"))?;
    let mirror = sources_of_this_system()?.into_iter().find(|source| !source.suite.contains('-'));
    let mirror = mirror.context("this system's apt has no mirror of Debian")?.mirror;
    let source = Source { mirror, suite: suite.to_owned() };
    command::progress(&format!("fetching {} from Debian {suite}", packages.join(" ")));
    let apt = Apt::new(folder.join("apt"), architecture.trim(), &[source], "")?;
    let planned = apt.plan(&[packages, &BASE].concat())?;
    let unfinished = folder.join("unfinished");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).with_context(|| format!("cannot remove {}", unfinished.display()))?;
    }
    // The links come first, for the packages' files go through them.
    let (first, rest): (Vec<String>, Vec<String>) =
        planned.into_iter().partition(|package| package.starts_with("base-files="));
    apt.unpack(&first, &unfinished)?;
    apt.unpack(&rest, &unfinished)?;
    for name in FOLDERS {
        create(&unfinished.join(name))?;
    }
    apt.remove()?;
    fs::rename(&unfinished, root).with_context(|| format!("cannot rename {}", unfinished.display()))
}

fn create(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}

impl Home {
    /// A command of the table's, in the runtime's surroundings.
    pub(super) fn command(&self, line: &str, seconds: u64, pid: &str) -> Result<Command> {
        let inside = |path: &Path, name: &str| if self.root.is_some() { format!("/{name}") } else { text(path) };
        let bin = self.program.parent().unwrap_or(Path::new("/"));
        let (seconds, pid) = (seconds.to_string(), pid.to_owned());
        let values = [
            ("{program}", text(&self.program)),
            ("{bin}", text(bin)),
            ("{targets}", inside(&self.targets, "targets")),
            ("{work}", inside(&self.work, "work")),
            ("{seconds}", seconds),
            ("{pid}", pid),
            ("{agent}", text(&self.agent)),
        ];
        let filled = words(line)
            .into_iter()
            .map(|word| values.iter().fold(word, |word, (name, value)| word.replace(name, value)));
        let (environment, arguments) = split(filled.collect());
        let (program, arguments) = arguments.split_first().context("a command without a program")?;
        let mut command = match &self.root {
            None => Command::new(program),
            Some(root) => {
                let mut command = Command::new("unshare");
                command.args(["--mount", "--propagation", "private", "sh", "-c", IN_ROOT]);
                command.arg(root).arg(&self.targets).arg(program);
                // The library path and Python's settings of this system are none of that one's.
                command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
                command.env("HOME", "/work").env("LANG", "C.UTF-8");
                command
            }
        };
        command.args(arguments).envs(environment).current_dir(&self.work);
        Ok(command)
    }

    /// Ends what runs in its root: php-fpm and PostgreSQL lead groups of their own, which outlive who started them.
    pub(super) fn end_all(&self) {
        let Some(root) = &self.root else { return };
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let is_inside = fs::read_link(process.path().join("root")).is_ok_and(|its| its == *root);
            let pid = process.file_name();
            if is_inside && command::output(Command::new("kill").arg("-9").arg(&pid)).is_err() {
                command::progress(&format!("{} stays behind", pid.display()));
            }
        }
    }

    /// The folder in which the runtime finds its /tmp.
    pub(super) fn tmp(&self) -> PathBuf {
        self.root.as_deref().unwrap_or(Path::new("/")).join("tmp")
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Words as a shell takes them, where `'` alone quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quoted, mut begun) = (String::new(), false, false);
    for c in line.chars() {
        match c {
            '\'' => (quoted, begun) = (!quoted, true),
            ' ' if !quoted => {
                if std::mem::take(&mut begun) {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => {
                word.push(c);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    words
}

/// What stands in front of the program as `NAME=value`, and the rest.
fn split(words: Vec<String>) -> (Vec<(String, String)>, Vec<String>) {
    let mut words = words.into_iter().peekable();
    let mut environment = Vec::new();
    while let Some((name, value)) = words.peek().and_then(|word| word.split_once('=')) {
        environment.push((name.to_owned(), value.to_owned()));
        words.next();
    }
    (environment, words.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(root: Option<&str>) -> Home {
        Home {
            program: "/opt/x/bin/x".into(),
            root: root.map(PathBuf::from),
            work: "/cache/x/work".into(),
            targets: "/here/tests/targets".into(),
            agent: "/here/agent.so".into(),
        }
    }

    fn arguments(command: &Command) -> Vec<String> {
        command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_command_has_its_environment_and_its_places_filled_in() {
        let line = "FLAGS='--a --b' {program} -m={bin} {targets}/x.py '{seconds} s' ''";
        let command = home(None).command(line, 7, "").unwrap();
        assert_eq!(command.get_program(), "/opt/x/bin/x");
        assert_eq!(arguments(&command), ["-m=/opt/x/bin", "/here/tests/targets/x.py", "7 s", ""]);
        assert!(command.get_envs().any(|(name, value)| name == "FLAGS" && value.unwrap() == "--a --b"));
    }

    #[test]
    fn in_a_root_paths_are_those_of_the_root() {
        let command = home(Some("/cache/x/root")).command("{program} {targets}/x.py {work} {pid}", 7, "12").unwrap();
        let arguments = arguments(&command);
        assert_eq!(
            arguments[6..],
            ["/cache/x/root", "/here/tests/targets", "/opt/x/bin/x", "/targets/x.py", "/work", "12"]
        );
    }
}
