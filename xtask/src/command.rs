//! Running other programs: shown before they run, and an error that says which one failed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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

/// Runs the command unseen and returns what it wrote to stdout.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let line = shown(command);
    let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output().with_context(|| cannot_start(command))?;
    if !output.status.success() {
        bail!("`{line}` failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
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
    fn a_missing_program_is_named_in_the_error() {
        let error = run(&mut Command::new("no-such-program-anywhere")).unwrap_err();
        assert!(format!("{error:#}").contains("no-such-program-anywhere"), "{error:#}");
    }
}
