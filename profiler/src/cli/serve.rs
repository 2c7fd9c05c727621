//! `jitprof serve`: the service.

use std::io::Write;
use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::args::{NativeFramesArg, id};
use super::select::SelectArgs;
use crate::serve::config::{Bytes, ListenAt, LogFormat, LogLevel, SelectionSettings, Settings, TokenSetting};
use crate::serve::{self, ServeError, log};
use crate::times::Period;

/// What `serve` takes. Each option goes over the file's.
#[derive(Debug, ClapArgs)]
pub struct Arguments {
    /// The configuration; options given here go over it. SIGHUP reads it again
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration, show all of it, and end
    #[arg(long)]
    check_config: bool,

    /// Processes to profile, as with --pid
    #[arg(value_name = "PID", value_parser = id, conflicts_with = "pid", help_heading = "What to profile")]
    pids: Vec<u32>,

    /// Only some processes; takes the place of the file's whole selection.
    #[command(flatten)]
    select: SelectArgs,

    /// Samples per second and busy CPU [default: 19]
    #[arg(short = 'F', long = "freq", value_name = "HZ", allow_negative_numbers = true, help_heading = "Recording")]
    frequency_hz: Option<u32>,
    /// Length of a window [default: 10s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = "Recording")]
    window: Option<Period>,
    /// How long a window waits for names that come late [default: 3s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = "Recording")]
    grace: Option<Period>,
    /// Do not read what targets' runtimes know of their own code
    #[arg(long, help_heading = "Recording")]
    no_read_runtime: bool,
    /// Set a breakpoint in each target where it registers code for GDB, to know when its code comes and goes
    #[arg(long, conflicts_with = "no_read_runtime", help_heading = "Recording")]
    probe_registrations: bool,
    /// Whether the native frames of interpreters' evaluation loops are shown [default: show]
    #[arg(long, value_enum, value_name = "WHICH", help_heading = "Recording")]
    native_frames: Option<NativeFramesArg>,
    /// Leave out the frames that interpreters keep in a list of their own
    #[arg(long, help_heading = "Recording")]
    no_vm_frames: bool,

    /// Address to listen at, or unix:/PATH [default: 127.0.0.1:7878]
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "HTTP")]
    listen: Option<ListenAt>,
    /// Who may ask at a loopback address: who knows the token of this start, or every user of this machine
    /// [default: random]
    #[arg(long, value_enum, value_name = "TOKEN", help_heading = "HTTP", conflicts_with = "token_file")]
    token: Option<TokenSetting>,
    /// File with a secret that whoever asks must know; needed for addresses that other machines reach
    #[arg(long, value_name = "FILE", help_heading = "HTTP")]
    token_file: Option<PathBuf>,

    /// CPU time of jitprof and its BPF programs, in percent of the whole machine (1 is 8 % of one CPU where there are 8);
    /// when sampling exceeds its part, it samples less often; other work waits [default: 1]
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, help_heading = "Limits")]
    max_cpu: Option<f64>,
    /// Resident memory; near it, caches are evicted [default: 256MiB]
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true, help_heading = "Limits")]
    max_memory: Option<Bytes>,

    /// Keep windows here as files; without it in memory only
    #[arg(long, value_name = "DIR", help_heading = "What is kept")]
    directory: Option<PathBuf>,
    /// Remove older files [default: 24h]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = "What is kept")]
    max_age: Option<Period>,
    /// Remove the oldest files when all together are larger [default: 1GiB]
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true, help_heading = "What is kept")]
    max_bytes: Option<Bytes>,
    /// Memory for windows [default: 16MiB]
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true, help_heading = "What is kept")]
    memory: Option<Bytes>,

    /// Lines of text, or of JSON [default: text]
    #[arg(long, value_enum, value_name = "FORMAT", help_heading = "Log")]
    log_format: Option<LogFormat>,
    /// What is worth a line [default: info]
    #[arg(long, value_enum, value_name = "LEVEL", help_heading = "Log")]
    log_level: Option<LogLevel>,
}

impl Arguments {
    fn settings(&self) -> Result<Settings, serve::config::ConfigError> {
        Settings::load(self.config.as_deref(), |settings| self.change(settings))
    }

    /// Puts the command line over the file.
    fn change(&self, settings: &mut Settings) {
        let SelectArgs { mut pid, comm, user, cgroup, container, unit } = self.select.clone();
        pid.extend(&self.pids);
        let chosen = [&comm, &user, &cgroup, &container, &unit];
        if !pid.is_empty() || chosen.iter().any(|values| !values.is_empty()) {
            let children = settings.selection.children;
            settings.selection = SelectionSettings { pids: pid, comm, user, cgroup, container, unit, children };
        }
        set(&mut settings.sampling.frequency, self.frequency_hz);
        set(&mut settings.window.length, self.window);
        set(&mut settings.window.grace, self.grace);
        settings.sampling.read_runtime &= !self.no_read_runtime;
        settings.sampling.probe_registrations |= self.probe_registrations;
        set(&mut settings.sampling.native_frames, self.native_frames.map(|which| which == NativeFramesArg::Show));
        settings.sampling.vm_frames &= !self.no_vm_frames;
        set(&mut settings.http.listen, self.listen.clone());
        set(&mut settings.http.token, self.token);
        if self.token_file.is_some() {
            settings.http.token_file.clone_from(&self.token_file);
        }
        set(&mut settings.limits.max_cpu, self.max_cpu);
        set(&mut settings.limits.max_memory, self.max_memory);
        if self.directory.is_some() {
            // A path on the command line is meant from where it was typed.
            let absolute =
                self.directory.as_ref().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
            settings.storage.directory = absolute;
        }
        set(&mut settings.storage.max_age, self.max_age);
        set(&mut settings.storage.max_bytes, self.max_bytes);
        set(&mut settings.storage.memory, self.memory);
        set(&mut settings.log.format, self.log_format);
        set(&mut settings.log.level, self.log_level);
    }
}

fn set<T>(setting: &mut T, argument: Option<T>) {
    if let Some(value) = argument {
        *setting = value;
    }
}

/// Serves until a signal ends it, or shows the configuration.
///
/// # Errors
/// [`ServeError`].
pub(super) fn run(arguments: Arguments, out: &mut impl Write) -> Result<(), ServeError> {
    let settings = arguments.settings()?;
    if arguments.check_config {
        return out
            .write_all(settings.to_toml().as_bytes())
            .map_err(|source| ServeError::System { what: "cannot write to standard output", source });
    }
    let log = log::init(settings.log);
    let source = || arguments.settings();
    serve::run(settings, arguments.config.is_some().then_some(&source), &log)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn every_option_goes_over_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[sampling]\nfrequency = 49\nkernel = false\n[window]\nlength = \"20s\"\n")
            .unwrap();
        let path = file.path().display().to_string();
        let settings = |more: &[&str]| {
            let line = ["x", "--config", &path].into_iter().chain(more.iter().copied());
            Command::try_parse_from(line).unwrap().arguments.settings()
        };
        assert_eq!(settings(&[]).unwrap().sampling.frequency, 49);
        let changed = settings(&["-F", "99", "--max-bytes", "2GiB", "-p", "1,2", "--directory", "a"]).unwrap();
        assert_eq!(changed.sampling.frequency, 99);
        assert!(!changed.sampling.kernel);
        assert_eq!(changed.window.length.to_string(), "20s");
        assert_eq!(changed.storage.max_bytes, Bytes(2 << 30));
        assert_eq!(changed.selection.pids, [1, 2]);
        assert!(changed.storage.directory.is_some_and(|path| path.is_absolute()));
        assert_eq!(settings(&["1", "2"]).unwrap().selection.pids, [1, 2]);
        assert_eq!(settings(&[]).unwrap().http.token, TokenSetting::Random);
        assert_eq!(settings(&["--token", "none"]).unwrap().http.token, TokenSetting::None);
        let reads = |more: &[&str]| settings(more).unwrap().record_options().read_runtime;
        assert!(reads(&[]) && !reads(&["--no-read-runtime"]));
        let probes = |more: &[&str]| settings(more).unwrap().record_options().probe_registrations;
        assert!(!probes(&[]) && probes(&["--probe-registrations"]));
        let shows = |more: &[&str]| {
            let interpreter = settings(more).unwrap().record_options().interpreter;
            (interpreter.native, interpreter.listed)
        };
        assert_eq!(shows(&[]), (true, true));
        assert_eq!(shows(&["--native-frames", "hide"]), (false, true));
        assert_eq!(shows(&["--no-vm-frames"]), (true, false));
        let off = "[sampling]\nread_runtime = false\nnative_frames = false\nvm_frames = false\n";
        std::fs::write(file.path(), off).unwrap();
        assert!(!reads(&[]) && shows(&[]) == (false, false), "what the file switches off stays so");
        assert_eq!(shows(&["--native-frames", "show"]), (true, false));
        assert!(settings(&["-F", "0"]).unwrap_err().to_string().starts_with("the command line: sampling.frequency"));
        assert!(settings(&["--max-cpu", "-1"]).unwrap_err().to_string().contains("must be from 0.01 to 100"));
    }

    #[test]
    fn a_negative_number_is_answered_with_what_the_option_wants() {
        for (words, wanted) in [
            (["--window", "-10s"], "wants more than no time at all, such as 10s"),
            (["--max-age", "-1"], "`-1` is no duration; write it as 10s"),
            (["--max-memory", "-1MiB"], "`-1MiB` is no number of bytes; write it as 64MiB or 2GiB"),
            (["-F", "-5"], "-5 is not in 0..="),
        ] {
            let error = Command::try_parse_from([&["x"], &words[..]].concat()).err().unwrap().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
