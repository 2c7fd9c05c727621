//! The command line as typed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, ValueEnum};

use super::select::SelectArgs;
use super::subcommand::Subcommand;
use super::trace_log::LogOptions;

/// What the user typed; see [`Config`](super::config::Config) for what it means.
#[derive(Debug, Parser)]
#[command(
    name = "jitprof",
    version,
    about = "Shows where a program with a JIT spends its CPU: live, with every frame named.",
    long_about = "Shows where a program with a JIT spends its CPU: live, with every frame named.\n\n\
        jitprof samples in the kernel, follows the jitdump that the runtime writes, and writes a flamegraph when the \
        recording ends: on Ctrl-C, after --duration, or when the target exits.",
    after_help = "Examples:\n  \
        sudo jitprof --pid 4711                       until Ctrl-C; writes jitprof-<comm>-4711.svg\n  \
        sudo jitprof --pid 4711 -d 10s -o out.pb.gz   ten seconds, for `go tool pprof`\n  \
        sudo jitprof -o - --format folded -- node --perf-prof app.js   the program's own output goes to stderr\n\n\
        Exit status: 0 written, 1 failed, 2 wrong usage, 3 no samples.",
    override_usage = "jitprof [OPTIONS] --pid <PID>\n       jitprof [OPTIONS] -- <COMMAND>...\n       \
        jitprof <SUBCOMMAND> ...",
    subcommand_help_heading = "Subcommands",
    disable_help_subcommand = true,
    args_conflicts_with_subcommands = true
)]
pub struct Args {
    /// What to do instead of recording
    #[command(subcommand)]
    pub subcommand: Option<Subcommand>,

    /// Processes by what is known of them.
    #[command(flatten)]
    pub select: SelectArgs,

    /// Every process of the machine
    #[arg(short, long, help_heading = "What to profile")]
    pub all: bool,

    /// Single threads
    #[arg(long, value_name = "TID", value_delimiter = ',', value_parser = id, help_heading = "What to profile")]
    pub tid: Vec<u32>,

    /// Do not follow child processes
    #[arg(long, help_heading = "What to profile")]
    pub no_inherit: bool,

    /// A command to start and profile until it exits
    #[arg(last = true, value_name = "COMMAND", help_heading = "What to profile")]
    pub command: Vec<OsString>,

    /// Samples per second and busy CPU
    #[arg(short = 'F', long, value_name = "HZ", default_value_t = 99, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Recording")]
    pub freq: u32,

    /// How long to record, such as 10s or 5m; without it until Ctrl-C or the target's exit
    #[arg(short, long, value_name = "TIME", value_parser = duration, help_heading = "Recording")]
    pub duration: Option<Duration>,

    /// What makes the CPU take a sample; auto is cycles where the machine counts them, else cpu-clock
    #[arg(long, value_enum, default_value_t = EventArg::Auto, help_heading = "Recording")]
    pub event: EventArg,

    /// User frames only
    #[arg(short = 'U', long, conflicts_with = "kernel_only", help_heading = "Recording")]
    pub user_only: bool,

    /// Kernel frames only
    #[arg(short = 'K', long, help_heading = "Recording")]
    pub kernel_only: bool,

    /// How user stacks are walked: auto by the unwind data of programs, libraries and dumps, by rules made from the
    /// dumps' code, and by frame pointers where there are neither; eh without rules made from code; fp by frame
    /// pointers alone
    #[arg(long, value_enum, value_name = "MODE", default_value_t = CallGraphArg::Auto, help_heading = "Recording")]
    pub call_graph: CallGraphArg,

    /// Memory of the kernel part for unwind rows, in MiB; rows of what no process uses make room first
    /// [default: 16, with --all and --comm 32]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Recording")]
    pub unwind_memory: Option<u32>,

    /// Do not read names from the target's memory that its runtime has not written yet
    #[arg(long, help_heading = "Recording")]
    pub no_peek: bool,

    /// GSYM files, or directories to search for *.gsym, that name programs without debug information by their build
    /// id; repeatable
    #[arg(long, value_name = "FILE|DIR", help_heading = "Recording")]
    pub gsym: Vec<PathBuf>,

    /// An HQNplog trace log that the target writes: its spans stand around the samples of the same thread and time
    #[arg(long, value_name = "FILE", help_heading = "Trace log")]
    pub trace: Option<PathBuf>,

    /// How the log is meant.
    #[command(flatten)]
    pub trace_options: LogOptions,

    /// Where to write; repeatable; the extension picks the format (.svg .folded .pb.gz .json); - is standard output
    /// [default: jitprof-<comm>-<pid>.svg]
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Vec<PathBuf>,

    /// The format for - and for files of unknown extension
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    pub format: Option<String>,

    /// A frame for each thread at the root of the stacks
    #[arg(long, help_heading = "Output")]
    pub per_thread: bool,

    /// A frame for each process at the root of the stacks; always on when several processes are chosen
    #[arg(long, help_heading = "Output")]
    pub per_process: bool,

    /// Source lines in the frames
    #[arg(long, help_heading = "Output")]
    pub lines: bool,

    /// Title of the flamegraph
    #[arg(long, value_name = "TEXT", help_heading = "Output")]
    pub title: Option<String>,

    /// Leave out frames narrower than this many percent of the picture
    #[arg(long, value_name = "PERCENT", default_value_t = 0.01, value_parser = percent, help_heading = "Output")]
    pub min_width: f64,

    /// Merge stacks from the leaf instead of the root: who calls the hot functions
    #[arg(long, help_heading = "Output")]
    pub reverse: bool,

    /// Root at the top
    #[arg(long, help_heading = "Output")]
    pub icicle: bool,

    /// Colours of the flamegraph: kind (kernel, native, JIT, …) or one of inferno's palettes
    #[arg(long, value_name = "PALETTE", default_value = "kind", help_heading = "Output")]
    pub color: String,

    /// Also write the account (samples taken, lost, unnamed, and why) as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub account: Option<PathBuf>,

    /// Say how this kernel can be used, and the verified size of each program of the kernel part; records nothing
    #[arg(long, conflicts_with_all = ["SelectArgs", "all", "tid", "command"], help_heading = "What to profile")]
    pub check: bool,

    /// Neither status line nor account
    #[arg(short, long, conflicts_with = "verbose", help_heading = "Output")]
    pub quiet: bool,

    /// More diagnostics on stderr; twice for all
    #[arg(short, long, action = ArgAction::Count, help_heading = "Output")]
    pub verbose: u8,
}

/// `--event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EventArg {
    /// Cycles where the machine counts them, else the CPU clock.
    Auto,
    /// Hardware cycles.
    Cycles,
    /// The kernel's per-CPU clock.
    CpuClock,
}

pub(super) fn id(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| "wants a number; a process is chosen by its name with --comm".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("wants more than no time at all".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{error}; write it as 10s or 5m")),
    }
}

/// `--call-graph`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CallGraphArg {
    /// By everything that is known.
    Auto,
    /// By recorded unwind data and frame pointers.
    Eh,
    /// By frame pointers.
    Fp,
}

fn percent(text: &str) -> Result<f64, String> {
    let value: f64 = text.trim_end_matches('%').parse().map_err(|_| format!("{text} is no number"))?;
    if (0.0..=100.0).contains(&value) { Ok(value) } else { Err(format!("{text} is not between 0 and 100")) }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_help_text_is_as_blessed() {
        let help = Args::command().term_width(100).render_help().to_string();
        insta::assert_snapshot!("help", help);
    }

    #[test]
    fn pids_come_as_lists_and_repeated() {
        let args = Args::try_parse_from(["jitprof", "-p", "1,2", "--pid", "3"]).unwrap();
        assert_eq!(args.select.pid, [1, 2, 3]);
    }

    #[test]
    fn durations_have_units() {
        let duration = |text| Args::try_parse_from(["jitprof", "-d", text]).map(|args| args.duration.unwrap());
        assert_eq!(duration("10s").unwrap(), Duration::from_secs(10));
        assert_eq!(duration("5m").unwrap(), Duration::from_secs(300));
        assert!(duration("10").is_err());
        assert!(duration("0s").is_err());
    }
}
