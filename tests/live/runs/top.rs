//! `jitprof top` in a terminal: tmux is one whose screen can be read.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};
use jitprof_tests::{Jitprof, Scratch, Target, free_address, get, path_from, wait_until};

/// Seconds that tmux may take for an answer: a server that hangs is said.
const TMUX_LIMIT: &str = "20";

/// A terminal of 80 columns and 24 lines in which a shell runs.
struct Terminal {
    tmux: PathBuf,
    socket: PathBuf,
    folder: PathBuf,
}

impl Terminal {
    fn start(scratch: &Scratch) -> Result<Self> {
        let folder = scratch.path().to_owned();
        let terminal = Self { tmux: path_from("JITPROF_TMUX")?, socket: scratch.file("tmux"), folder };
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "env PS1='ready> ' sh"])?;
        terminal.find("the shell", |screen| screen.contains("ready>").then_some(()))?;
        Ok(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("timeout");
        command.arg(TMUX_LIMIT).arg(&self.tmux).arg("-S").arg(&self.socket).args(arguments);
        command.current_dir(&self.folder).env("TERM", "xterm-256color");
        let output = command.output().context("cannot start tmux")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "tmux {arguments:?}: {}, {said}", output.status);
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn screen(&self) -> Result<String> {
        self.tmux(&["capture-pane", "-p"])
    }

    fn press(&self, keys: &[&str]) -> Result<()> {
        self.tmux(&[&["send-keys"], keys].concat()).map(drop)
    }

    /// Waits until something is found on the screen.
    fn find<T>(&self, what: &str, find: impl Fn(&str) -> Option<T>) -> Result<T> {
        // The last words of a test that its limit has ended are shown.
        eprintln!("waiting for {what}");
        let found = wait_until(what, || Ok(find(&self.screen()?)));
        found.map_err(|error| anyhow!("{error:#}; on the screen:\n{}", self.screen().unwrap_or_default()))
    }

    /// Waits until the screen has all of these words, and returns it.
    fn wait_for(&self, words: &[&str]) -> Result<String> {
        let has = |screen: &str| words.iter().all(|word| screen.contains(word));
        self.find(&format!("{words:?}"), |screen| has(screen).then(|| screen.to_owned()))
    }

    /// What the shell runs.
    fn child(&self) -> Result<String> {
        let shell = self.tmux(&["display-message", "-p", "#{pane_pid}"])?;
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", shell.trim()))?;
        children.split_whitespace().next().map(str::to_owned).context("the shell has no child")
    }

    /// What was typed before is shown again and what is typed is a line: nothing of `top` is left.
    fn assert_is_given_back(&self) -> Result<()> {
        let of_line = |line: &str| line.strip_prefix("status ")?.trim().parse::<i32>().ok();
        let status = self.find("the end of top", |screen| screen.lines().find_map(of_line))?;
        let screen = self.screen()?;
        ensure!(status == 0 && !screen.contains("jitprof top  last"), "status {status}: {screen}");
        self.press(&["stty -a | tr ' ' '\\n' | grep -c '^icanon\\|^echo$'", "Enter"])?;
        self.wait_for(&["\n2\n"])?;
        self.press(&["clear", "Enter"])?;
        self.find("an empty screen", |screen| (!screen.contains("status")).then_some(()))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Err(error) = self.tmux(&["kill-server"]) {
            eprintln!("{error:#}");
        }
    }
}

fn written(folder: &Path) -> Result<Option<String>> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("jitprof-top-")) {
            return Ok(Some(std::fs::read_to_string(path)?));
        }
    }
    Ok(None)
}

/// Whether a process has ended. Whoever is its parent when the shell has gone need not wait for it.
fn has_ended(process: &Path) -> bool {
    let stat = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['Z', 'X']))
}

/// The part of the time in the line that has a word, in percent.
fn percent(screen: &str, word: &str) -> Result<f64> {
    let line = screen.lines().find(|line| line.contains(word)).context("no such line")?;
    let number = line.split_whitespace().next().and_then(|first| first.strip_suffix('%'));
    Ok(number.context("no percentage")?.parse()?)
}

#[test]
fn top_shows_a_jit_program_and_gives_the_terminal_back() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut demo = Command::new(path_from("JITPROF_DEMO")?);
    demo.args(["--secs", "600", "--generations", "1"]);
    let target = Target::start(demo, &scratch)?;
    let terminal = Terminal::start(&scratch)?;
    let line = format!("{} top {}; echo status $?", path_from("JITPROF_BIN")?.display(), target.pid()?);

    terminal.press(&[&line, "Enter"])?;
    let functions = terminal.wait_for(&["jitprof top", "leaf_hot", "leaf_cold", "JIT"])?;
    let hot = percent(&functions, "leaf_hot")?;
    // Of at least a second: 75 % ± 4.4 for each standard deviation, as its lowest count is 99 samples.
    ensure!((50.0..=97.0).contains(&hot), "{functions}");
    ensure!(functions.lines().next().is_some_and(|title| title.contains("jitdemo")), "{functions}");
    terminal.press(&["t"])?;
    terminal.wait_for(&["outer", "middle", "leaf_hot"])?;
    terminal.press(&["/", "cold", "Enter"])?;
    terminal.wait_for(&["/ cold", "leaf_cold"])?;
    terminal.press(&["o"])?;
    terminal.wait_for(&["written jitprof-top-"])?;
    let svg = written(scratch.path())?.context("no file")?;
    ensure!(svg.contains("leaf_cold") && !svg.contains("leaf_hot"), "the picture is not of what is shown");
    terminal.press(&["q"])?;
    terminal.assert_is_given_back()?;

    // A signal from elsewhere, and Ctrl-C.
    terminal.press(&[&line, "Enter"])?;
    terminal.wait_for(&["jitprof top", "leaf_hot"])?;
    ensure!(Command::new("kill").args(["-TERM", &terminal.child()?]).status()?.success(), "no signal");
    terminal.assert_is_given_back()?;
    terminal.press(&[&line, "Enter"])?;
    terminal.wait_for(&["jitprof top", "leaf_hot"])?;
    terminal.press(&["C-c"])?;
    terminal.assert_is_given_back()?;

    // The terminal goes, as it does with a connection: nothing stays.
    terminal.press(&[&line, "Enter"])?;
    terminal.wait_for(&["jitprof top", "leaf_hot"])?;
    let top = PathBuf::from("/proc").join(terminal.child()?);
    drop(terminal);
    wait_until("the end of top without a terminal", || Ok(has_ended(&top).then_some(())))
}

#[test]
fn top_shows_what_a_service_samples_and_records_nothing() -> Result<()> {
    let scratch = Scratch::new()?;
    let start = |number: &str| -> Result<Target> {
        let mut demo = Command::new(path_from("JITPROF_DEMO")?);
        demo.args(["--secs", "600", "--generations", number]);
        Target::start(demo, &scratch)
    };
    let (target, other) = (start("1")?, start("1")?);
    let address = free_address()?;
    std::fs::write(
        scratch.file("jitprof.toml"),
        "[window]\nlength = \"1s\"\ngrace = \"1s\"\n[sampling]\nfrequency = 97\n",
    )?;
    let listen = address.to_string();
    let words = ["serve", "--config", "jitprof.toml", "--token", "none", "--listen", &listen];
    let mut service = Jitprof::new(&scratch, words)?.spawn()?;
    for pid in [target.pid()?, other.pid()?] {
        service.wait_for("samples of both", || {
            let folded = get(address, &format!("/profile?format=folded&from=-60s&pid={pid}"));
            Ok(folded.is_ok_and(|(_, folded)| folded.contains("leaf_hot")).then_some(()))
        })?;
    }
    let terminal = Terminal::start(&scratch)?;
    let jitprof = path_from("JITPROF_BIN")?;
    let line = format!("{} top --service --listen {listen} {}; echo status $?", jitprof.display(), target.pid()?);
    terminal.press(&[&line, "Enter"])?;
    let functions =
        terminal.wait_for(&["jitprof top", &format!("service at {listen}"), "leaf_hot", "leaf_cold", "JIT"])?;
    let hot = percent(&functions, "leaf_hot")?;
    ensure!((50.0..=97.0).contains(&hot), "{functions}");
    // It has opened no event and loaded no program.
    let own = PathBuf::from("/proc").join(terminal.child()?).join("fd");
    for entry in std::fs::read_dir(own)? {
        let file = std::fs::read_link(entry?.path()).unwrap_or_default();
        ensure!(!file.to_string_lossy().contains("perf_event") && !file.to_string_lossy().contains("bpf"), "{file:?}");
    }
    // Of that process alone.
    terminal.press(&["h"])?;
    let threads = terminal.wait_for(&[&target.pid()?.to_string()])?;
    let other = other.pid()?.to_string();
    ensure!(!threads.split_whitespace().any(|word| word == other), "{threads}");
    terminal.press(&["q"])?;
    terminal.assert_is_given_back()?;

    // The service goes: that is said, and what is known stays.
    terminal.press(&[&line, "Enter"])?;
    terminal.wait_for(&["leaf_hot"])?;
    service.signal(libc::SIGTERM)?;
    ensure!(service.finish()?.status.success(), "the service has failed");
    terminal.wait_for(&["leaf_hot", "no service answers"])?;
    terminal.press(&["q"])?;
    terminal.assert_is_given_back()
}
