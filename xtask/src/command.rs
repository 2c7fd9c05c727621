//! Running other programs: shown before they run, and an error that says which one failed.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Prints what is going on, so that a long step is not a silent one.
pub(crate) fn progress(text: &str) {
    eprintln!("==> {text}");
}

/// Shows the command, runs it with this terminal's streams, and fails if it does.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = shown(command);
    eprintln!("    $ {line}");
    let status = command.stdin(Stdio::null()).status().with_context(|| cannot_start(command))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// How often something is fetched before that is given up, and how long before the second time.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(5);

/// Like [`run`], for what fetches something from a registry: tried three times, and its failure is called what it is.
pub(crate) fn fetch(command: &mut Command) -> Result<()> {
    fetch_with(command, PAUSE)
}

fn fetch_with(command: &mut Command, pause: Duration) -> Result<()> {
    for attempt in 1..ATTEMPTS {
        let Err(error) = run(command) else { return Ok(()) };
        let pause = pause * attempt;
        progress(&format!("{error:#}; again in {} s", pause.as_secs()));
        std::thread::sleep(pause);
    }
    run(command).with_context(|| format!("environment: what it needs could not be fetched, {ATTEMPTS} times"))
}

/// The most that is kept of what a test program says about its failures.
const FAILURES_KEPT: usize = 6000;

/// Like [`run`], for `cargo test`: what the test programs print of their failures is shown and becomes part of the
/// error, so that it stands at the end of a long log, too.
pub(crate) fn run_tests(command: &mut Command) -> Result<()> {
    run_tests_into(command, &mut io::stdout())
}

/// [`run_tests`], and where it shows what the test programs print.
fn run_tests_into(command: &mut Command, to: &mut impl Write) -> Result<()> {
    let line = shown(command);
    eprintln!("    $ {line}");
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().with_context(|| cannot_start(command))?;
    let mut failures = Failures::default();
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = BufReader::new(stdout);
        let mut bytes = Vec::new();
        while stdout.read_until(b'\n', &mut bytes).with_context(|| format!("cannot read what `{line}` prints"))? > 0 {
            to.write_all(&bytes).context("cannot show what the tests print")?;
            failures.read(&String::from_utf8_lossy(&bytes));
            bytes.clear();
        }
    }
    let status = child.wait().with_context(|| format!("cannot wait for `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})\n{}", failures.text.trim_end());
    }
    Ok(())
}

/// The part between `failures:` and the result, of each test program that reports failures.
#[derive(Default)]
struct Failures {
    text: String,
    inside: bool,
}

impl Failures {
    fn read(&mut self, line: &str) {
        if line.starts_with("test result:") {
            self.inside = false;
        } else if line.trim_end() == "failures:" {
            // The second list has the names alone, which the first has said.
            self.inside = !self.inside;
        } else if self.inside && self.text.len() + line.len() <= FAILURES_KEPT {
            self.text.push_str(line);
        }
    }
}

/// Runs the command unseen and returns what it wrote to stdout.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let line = shown(command);
    let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output().with_context(|| cannot_start(command))?;
    if !output.status.success() {
        bail!("`{line}` failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` printed bytes that are no text"))
}

/// For compilers of C and C++: what they build says `to` in place of the folder `from`, which is this machine's business.
pub(crate) fn prefix_map(from: &Path, to: &str) -> String {
    format!("-ffile-prefix-map={}={to}", from.display())
}

/// Like [`output`], for what talks on stderr meanwhile, such as cargo.
pub(crate) fn output_beside_talk(command: &mut Command) -> Result<String> {
    let line = shown(command);
    eprintln!("    $ {line}");
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().with_context(|| cannot_start(command))?;
    if !output.status.success() {
        bail!("`{line}` failed ({})", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` printed bytes that are no text"))
}

/// Whether the command can be started and succeeds; its output is dropped.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

/// The first file of this name in `PATH`.
pub(crate) fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// How to run a program as root from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// This process is root.
    Already,
    /// `sudo` works and asks for no password.
    Sudo,
    /// Neither.
    Unavailable,
}

impl Root {
    /// Looks at the effective user and at sudo.
    pub(crate) fn detect() -> Self {
        if output(Command::new("id").arg("-u")).is_ok_and(|uid| uid.trim() == "0") {
            Self::Already
        } else if succeeds(Command::new("sudo").args(["-n", "true"])) {
            Self::Sudo
        } else {
            Self::Unavailable
        }
    }

    /// A command that runs `program` as root, or none if that is not possible.
    pub(crate) fn command(self, program: &Path) -> Option<Command> {
        match self {
            Self::Already => Some(Command::new(program)),
            Self::Sudo => {
                let mut command = Command::new("sudo");
                command.args(["-n", "-E"]).arg(program);
                Some(command)
            }
            Self::Unavailable => None,
        }
    }
}

/// The command as one would type it, without its environment: cargo by its name, not by the toolchain's path.
pub(crate) fn shown(command: &Command) -> String {
    let program = command.get_program();
    let name = Path::new(program).file_name().filter(|name| *name == "cargo").unwrap_or(program);
    let words = std::iter::once(name).chain(command.get_args());
    words.map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn cannot_start(command: &Command) -> String {
    format!("cannot start `{}`; is it installed and in PATH?", command.get_program().to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_command_can_be_pasted_into_a_shell() {
        let mut command = Command::new("echo");
        command.args(["plain", "two words", "it's", ""]);
        assert_eq!(shown(&command), r"echo plain 'two words' 'it'\''s' ''");
    }

    #[test]
    fn cargo_is_shown_without_the_toolchain_s_path() {
        assert_eq!(shown(Command::new("/a/b/cargo").arg("fmt")), "cargo fmt");
        assert_eq!(shown(Command::new("/a/b/jitprof").arg("-a")), "/a/b/jitprof -a");
    }

    #[test]
    fn a_failing_command_is_named_in_the_error() {
        let error = output(Command::new("sh").args(["-c", "echo reason >&2; exit 3"])).unwrap_err().to_string();
        assert!(error.contains("exit 3") && error.contains("reason"), "{error}");
    }

    #[test]
    fn what_tests_say_of_their_failures_is_part_of_the_error() {
        let printed = r"running 2 tests\ntest a ... FAILED\n\nfailures:\n\n---- a stdout ----\nreason of a\n\n\nfailures:\n    a\n\ntest result: FAILED. 1 failed\n";
        let program = format!("printf '{printed}'; exit 101");
        // Not into this test's own output, where whoever reads the log would take it for a failed test.
        let mut shown = Vec::new();
        let error = run_tests_into(Command::new("sh").args(["-c", &program]), &mut shown).unwrap_err().to_string();
        assert!(String::from_utf8(shown).unwrap().ends_with("test result: FAILED. 1 failed\n"));
        let (command, reasons) = error.split_once('\n').unwrap();
        assert!(command.ends_with("failed (exit status: 101)"), "{error}");
        assert_eq!(reasons, "\n---- a stdout ----\nreason of a");
        run_tests_into(Command::new("sh").args(["-c", "printf 'failures:\n'"]), &mut io::sink()).unwrap();
    }

    #[test]
    fn what_cannot_be_fetched_is_tried_three_times() {
        let folder = tempfile::tempdir().unwrap();
        let tries = folder.path().join("tries");
        let at = |wanted: u32| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo >>\"$0\"; [ $(wc -l <\"$0\") = $1 ]"]).arg(&tries).arg(wanted.to_string());
            command
        };
        fetch_with(&mut at(3), Duration::ZERO).unwrap();
        let error = format!("{:#}", fetch_with(&mut at(7), Duration::ZERO).unwrap_err());
        assert!(error.starts_with("environment: "), "{error}");
        assert_eq!(std::fs::read_to_string(&tries).unwrap().len(), 6);
    }

    #[test]
    fn a_missing_program_is_named_in_the_error() {
        let error = run(&mut Command::new("no-such-program-anywhere")).unwrap_err();
        assert!(format!("{error:#}").contains("no-such-program-anywhere"), "{error:#}");
    }
}
