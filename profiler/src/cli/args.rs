//! The command line as typed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, CommandFactory, Parser, ValueEnum};

use super::look::LookArgs;
use super::select::SelectArgs;
use super::subcommand::Subcommand;
use super::trace_log::TraceArgs;
use crate::times::{Period, TimeError};

/// What the user typed; see [`Config`](super::config::Config) for what it means.
#[derive(Debug, Parser)]
#[command(
    name = "jitprof",
    version = env!("JITPROF_VERSION"),
    about = "Shows where a program with a JIT spends its CPU: live, with every frame named.",
    long_about = "Shows where a program with a JIT spends its CPU: live, with every frame named.\n\n\
        jitprof samples in the kernel, follows the jitdump that the runtime writes, and writes a flamegraph when the \
        recording ends: on Ctrl-C, after --duration, or when the target exits.",
    after_help = "Examples:\n  \
        sudo jitprof --pid 4711                       until Ctrl-C; writes jitprof-<comm>-4711.svg\n  \
        sudo jitprof --pid 4711 -d 10s -o out.pb.gz   ten seconds, for `go tool pprof`\n  \
        sudo jitprof -o - --format folded -- node --perf-prof app.js   the program's own output goes to stderr\n\n\
        Exit status: 0 written, 1 failed, 2 wrong usage, 3 no samples.",
    override_usage = "jitprof [OPTIONS] <PID>...\n       jitprof [OPTIONS] -- <COMMAND>...\n       \
        jitprof <SUBCOMMAND> ...",
    subcommand_help_heading = "Subcommands",
    args_conflicts_with_subcommands = true
)]
pub struct Args {
    /// What to do instead of recording
    #[command(subcommand)]
    pub subcommand: Option<Subcommand>,

    /// Processes to profile, as with --pid
    #[arg(value_name = "PID", value_parser = pid_or_hint, conflicts_with = "pid", help_heading = "What to profile")]
    pub pids: Vec<u32>,

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
    #[arg(allow_negative_numbers = true)]
    pub freq: u32,

    /// How long to record, such as 10s or 5m (a number alone is seconds); without it until Ctrl-C or the target's exit
    #[arg(short, long, value_name = "TIME", value_parser = period, help_heading = "Recording")]
    #[arg(allow_hyphen_values = true)]
    pub duration: Option<Period>,

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

    /// Kernel memory for unwind rows, in MiB; rows of what no process uses make room first
    /// [default: 16, with --all and --comm 32]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1024), help_heading = "Recording")]
    #[arg(allow_negative_numbers = true)]
    pub unwind_memory: Option<u32>,

    /// Write everything that the recording goes by into a file, for `jitprof replay`: it gives the same result without
    /// the target, and is what to attach to a report of a wrong one. In it of every process that was seen: names, paths
    /// and command lines, what is mapped where, addresses of all stacks, up to 16 KiB of stack memory of samples in new
    /// code (the environment may lie there), what runtimes announce (names and code), and their code as it was read from
    /// memory. 1 GiB at most
    #[arg(long, value_name = "FILE", help_heading = "Recording")]
    pub capture: Option<PathBuf>,

    /// Do not read from the target's memory what its runtime has not written yet: names in its buffer, and the code of
    /// functions that are only named or not recorded, whose stacks may end there then
    #[arg(long, help_heading = "Recording")]
    pub no_peek: bool,

    /// Do not read what the target's runtime knows of its own code: the tables of HotSpot, V8 and Erlang, the frames of
    /// CPython, PHP and Ruby, and what is registered for GDB (LLVM, numba). Without them the code of a process that announces
    /// nothing has no names
    #[arg(long, help_heading = "Recording")]
    pub no_read_runtime: bool,

    /// Set a breakpoint in each target where it registers code for GDB (LLVM, numba, CPython's JIT), to know when its code comes
    /// and goes: it writes into the target, and each such call costs that some microseconds
    #[arg(long, conflicts_with = "no_read_runtime", help_heading = "Recording")]
    pub probe_registrations: bool,

    /// Whether the native frames of an interpreter's evaluation loop (CPython's, PHP's, Ruby's) are shown between the functions
    /// that it runs
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = NativeFramesArg::Show, help_heading = "Recording")]
    pub native_frames: NativeFramesArg,

    /// Leave out the frames that an interpreter keeps in a list of its own (those of CPython, PHP and Ruby without a flag):
    /// samples do not take them along
    #[arg(long, help_heading = "Recording")]
    pub no_vm_frames: bool,

    /// Compare the name of each frame of generated code with a second source, if there is one: of jitdump, perf map, and
    /// what HotSpot, V8, CPython, PHP and Erlang have in memory. The account says how many agree, and how others differ
    #[arg(long, help_heading = "Recording")]
    pub verify_names: bool,

    /// GSYM files, or directories to search for *.gsym, that name programs without debug information by their build
    /// id; repeatable
    #[cfg(feature = "gsym")]
    #[arg(long, value_name = "FILE|DIR", help_heading = "Recording")]
    pub gsym: Vec<PathBuf>,

    /// A trace log beside the recording.
    #[command(flatten)]
    pub trace: TraceArgs,

    /// Where to write; repeatable; the extension picks the format (.svg .folded .pb.gz .json); - is standard output
    /// [default: jitprof-<comm>-<pid>.svg]
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Vec<PathBuf>,

    /// The format for - and for files of unknown extension
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    pub format: Option<String>,

    /// How outputs look.
    #[command(flatten)]
    pub look: LookArgs,

    /// Also write the account (samples taken, lost, unnamed, and why) as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub account: Option<PathBuf>,

    /// Say how this kernel can be used, and the verified size of each BPF program; records nothing
    #[arg(long, conflicts_with_all = ["SelectArgs", "pids", "all", "tid", "command"], help_heading = "What to profile")]
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

/// `--native-frames`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NativeFramesArg {
    /// All of them.
    Show,
    /// Not those of interpreters' loops.
    Hide,
}

pub(super) fn id(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| "wants a number; a process is chosen by its name with --comm".to_owned())
}

/// A period on a command line, where a number alone is seconds. What begins with a hyphen is to come here: an unknown
/// option is not answered with what a period is.
pub(super) fn period(text: &str) -> Result<Period, TimeError> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { format!("{text}s").parse() } else { text.parse() }
}

/// A process, where a subcommand may be meant as well.
fn pid_or_hint(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| hint(text))
}

/// What somebody may have meant who typed a word that is neither a process nor a subcommand.
fn hint(word: &str) -> String {
    if ["record", "profile", "run", "attach"].contains(&word) {
        return "is no subcommand: to record needs no word, as in jitprof 4711".to_owned();
    }
    let command = Args::command();
    let names = command.get_subcommands().map(clap::Command::get_name);
    // As near as clap wants an option to be before it names it.
    let near = names.map(|name| (strsim::jaro(word, name), name)).filter(|(nearness, _)| *nearness > 0.7);
    match near.max_by(|one, other| one.0.total_cmp(&other.0)) {
        Some((_, name)) => format!("is no process; a similar subcommand exists: {name}"),
        None => format!("is no process; --comm {word} chooses by name, and -- {word} starts a program"),
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    #[cfg(all(feature = "gsym", feature = "plog", feature = "serve"))]
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
        let duration = |text| Args::try_parse_from(["jitprof", "-d", text]).map(|args| args.duration.unwrap().0);
        assert_eq!(duration("10s").unwrap(), Duration::from_secs(10));
        assert_eq!(duration("5m").unwrap(), Duration::from_secs(300));
        assert_eq!(duration("10").unwrap(), Duration::from_secs(10));
        for refused in ["0", "0s", "", "99999999999999999999"] {
            assert!(duration(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_negative_number_is_answered_with_what_the_option_wants() {
        let said = |words: &[&str]| Args::try_parse_from([&["jitprof"], words].concat()).unwrap_err().to_string();
        for length in ["-1", "-1s", "-1h30m"] {
            let error = said(&["-d", length]);
            let option = format!("invalid value '{length}' for '--duration <TIME>': ");
            assert!(
                error.contains(&option) && error.contains("wants more than no time at all, such as 10s"),
                "{error}"
            );
        }
        assert!(said(&["-d", "-o", "x.svg"]).contains("`-o` is no duration; write it as 10s"));
        assert!(said(&["-F", "-5"]).contains("'-5' for '--freq <HZ>': -5 is not in 1..=1000000"));
        assert!(said(&["--unwind-memory", "-5"]).contains("-5 is not in 1..=1024"));
        assert!(said(&["--min-width", "-0.5"]).contains("-0.5 is not between 0 and 100"));
        assert!(said(&["-F", "-o", "x.svg"]).contains("a value is required for '--freq <HZ>'"));
    }

    #[test]
    fn processes_need_no_option() {
        let args = Args::try_parse_from(["jitprof", "4711", "4712", "-d", "5"]).unwrap();
        assert_eq!((args.pids, args.select.pid), (vec![4711, 4712], vec![]));
        assert!(Args::try_parse_from(["jitprof", "4711", "--pid", "1"]).is_err());
        assert!(
            Args::try_parse_from(["jitprof", "help", "serve"])
                .unwrap_err()
                .to_string()
                .contains("Usage: jitprof serve")
        );
    }

    #[test]
    #[cfg(feature = "serve")]
    fn a_word_that_is_nothing_gets_what_may_have_been_meant() {
        for (words, meant) in [
            (&["servee"][..], "a similar subcommand exists: serve"),
            (&["snapshto", "-o", "x.svg"], "a similar subcommand exists: snapshot"),
            (&["record", "4711"], "to record needs no word, as in jitprof 4711"),
            (&["node"], "--comm node chooses by name, and -- node starts a program"),
            (&["--piid", "1"], "a similar argument exists: '--pid'"),
        ] {
            let said = Args::try_parse_from(["jitprof"].iter().chain(words)).unwrap_err().to_string();
            assert!(said.contains(meant), "{words:?}: {said}");
        }
    }
}
