//! `jitprof generate`: completions and manual pages, made of the command line's own definition.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, Command, CommandFactory, ValueEnum};
use clap_complete::Shell;

use super::args::Args;

/// `generate` as typed.
#[derive(Debug, ClapArgs)]
pub struct Arguments {
    /// What to write
    #[arg(value_enum, value_name = "WHAT")]
    what: What,

    /// A directory for files under the names that shells and man look for; without it the text, for man that of the
    /// first page, goes to standard output
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// What is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Completions for bash
    Bash,
    /// Completions for zsh
    Zsh,
    /// Completions for fish
    Fish,
    /// Manual pages, one for each subcommand
    Man,
}

/// Why nothing was made.
#[derive(Debug, thiserror::Error)]
pub(super) enum GenerateError {
    #[error("cannot write to {}: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("cannot write to standard output: {0}")]
    Stdout(#[from] io::Error),
}

impl GenerateError {
    /// Whether the reader of standard output has seen enough.
    pub(super) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Stdout(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Writes what was asked for.
///
/// # Errors
/// [`GenerateError`], in one sentence.
pub(super) fn run(arguments: &Arguments, out: &mut impl Write) -> Result<(), GenerateError> {
    let Some(directory) = &arguments.output else {
        return Ok(print(arguments.what, out)?);
    };
    let failed = |source| GenerateError::Directory { path: directory.clone(), source };
    std::fs::create_dir_all(directory).and_then(|()| write_files(arguments.what, directory)).map_err(failed)
}

impl What {
    /// The shell that it is for.
    fn shell(self) -> Option<Shell> {
        match self {
            Self::Bash => Some(Shell::Bash),
            Self::Zsh => Some(Shell::Zsh),
            Self::Fish => Some(Shell::Fish),
            Self::Man => None,
        }
    }

    /// The file in which its shell looks for the completions of a command.
    fn file_name(self) -> &'static str {
        match self {
            Self::Bash | Self::Man => "jitprof",
            Self::Zsh => "_jitprof",
            Self::Fish => "jitprof.fish",
        }
    }
}

fn print(what: What, out: &mut impl Write) -> io::Result<()> {
    match what.shell() {
        Some(shell) => out.write_all(&completions(shell)),
        None => page(command()).render(out),
    }
}

fn write_files(what: What, directory: &Path) -> io::Result<()> {
    if let Some(shell) = what.shell() {
        return std::fs::write(directory.join(what.file_name()), completions(shell));
    }
    let mut command = command();
    // So that each subcommand knows what it is called in full.
    command.build();
    write_pages(&command, directory)
}

/// The page of a command, and those of its subcommands.
fn write_pages(command: &Command, directory: &Path) -> io::Result<()> {
    for subcommand in command.get_subcommands() {
        write_pages(subcommand, directory)?;
    }
    page(command.clone()).generate_to(directory).map(|_| ())
}

fn page(command: Command) -> clap_mangen::Man {
    clap_mangen::Man::new(command).source(concat!("jitprof ", env!("CARGO_PKG_VERSION"))).manual("jitprof")
}

fn completions(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command(), "jitprof", &mut text);
    text
}

fn command() -> Command {
    Args::command().disable_help_subcommand(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(what: What) -> Vec<(String, String)> {
        let scratch = tempfile::tempdir().unwrap();
        write_files(what, scratch.path()).unwrap();
        let entries = std::fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap());
        let file = |entry: std::fs::DirEntry| {
            (entry.file_name().into_string().unwrap(), std::fs::read_to_string(entry.path()).unwrap())
        };
        let mut files: Vec<_> = entries.map(file).collect();
        files.sort();
        files
    }

    #[test]
    fn each_subcommand_has_a_page_with_its_options() {
        let pages = made(What::Man);
        let mut wanted: Vec<String> =
            command().get_subcommands().map(|command| format!("jitprof-{}.1", command.get_name())).collect();
        wanted.push("jitprof.1".to_owned());
        for name in wanted {
            assert!(pages.iter().any(|(page, _)| *page == name), "no {name}");
        }
        let report = &pages.iter().find(|(name, _)| name == "jitprof-report.1").unwrap().1;
        assert!(report.contains(".TH jitprof-report 1") && report.contains(r"\-\-top"), "{report}");
    }

    #[test]
    fn completions_have_the_file_that_their_shell_looks_for_and_every_subcommand() {
        for (what, name) in [(What::Bash, "jitprof"), (What::Zsh, "_jitprof"), (What::Fish, "jitprof.fish")] {
            let files = made(what);
            assert_eq!(files.len(), 1);
            assert_eq!(files[0].0, name);
            for subcommand in command().get_subcommands() {
                assert!(files[0].1.contains(subcommand.get_name()), "{name}: {}", subcommand.get_name());
            }
            assert!(files[0].1.contains("no-inherit"), "{name}");
        }
    }
}
