//! A small JIT compiler with a known truth, for the demo and the live tests.
//!
//! It generates machine code at run time, for x86-64 or AArch64, and announces it in a jitdump or a perf map:
//!
//! ```text
//! outer(n) ─┬─▶ middle(n) ──▶ leaf_hot_gK(3n)   75 % of the time
//!           └─▶ side(n) ────▶ leaf_cold_gK(n)   25 %
//! ```
//!
//! Both leaves are replaced by "generation K" at the same addresses on a known schedule, which goes to stdout as JSON
//! lines, so that a test can hold each sample's time against the code that ran then. One thread runs them, so the
//! borders between generations are exact.
//!
//! On stdout: `ready pid=N dump=PATH [child=N]` when the hot loop starts, then a line for each leaf of each generation,
//! then a line of totals. Times are nanoseconds on CLOCK_MONOTONIC.

mod announce;
mod assembler;
mod churn;
mod eh_frame;
mod functions;
mod memory;
mod output;
mod run;
mod trace_log;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Generates code at run time, announces it, and runs it.
#[derive(Parser)]
#[command(args_override_self = true)]
pub(crate) struct Arguments {
    /// How long to run
    #[arg(long, default_value_t = 5.0)]
    secs: f64,
    /// Run on until that much CPU time has been used, too, by a child as well
    #[arg(long)]
    cpu: bool,
    /// Folder of the dump [default: the current one; /tmp for a perf map]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Append the schedule to this file instead of stdout
    #[arg(long, value_name = "FILE")]
    schedule: Option<PathBuf>,
    /// How many generations of the leaves there are; the last one runs until the end
    #[arg(long, default_value_t = u32::MAX, value_parser = clap::value_parser!(u32).range(1..))]
    generations: u32,
    /// How long a generation runs
    #[arg(long, default_value_t = 250, value_name = "MS")]
    generation_ms: u32,
    /// Loop iterations of the cold leaf in one call of outer, on average; the hot leaf does three times as many
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: u32,
    /// Use the frame pointer (rbp, x29) as an ordinary register: only the recorded unwinding information leads to the callers
    #[arg(long)]
    no_frame_pointer: bool,
    /// Announce this many further functions before the loop starts, each called once
    #[arg(long, default_value_t = 0, value_name = "N")]
    functions: u32,
    /// Write /tmp/perf-PID.map instead of a jitdump
    #[arg(long)]
    perf_map: bool,
    /// Write through a stdio buffer that is not flushed before the end, as CPython and Node do
    #[arg(long)]
    stdio: bool,
    /// Write each record so much later than its code can run, under its true time
    #[arg(long, default_value_t = 0, value_name = "MS")]
    delay_ms: u32,
    /// Run copies of the leaves that nothing announces; the announced ones never run
    #[arg(long)]
    copies: bool,
    /// Unlink the file once it is open and mapped
    #[arg(long)]
    delete: bool,
    /// Damage the jitdump on purpose
    #[arg(long, value_enum, conflicts_with = "perf_map")]
    damage: Option<announce::Damage>,
    /// Fork before the loop; the child runs the first generation until the end and announces nothing
    #[arg(long)]
    fork: bool,
    /// Further threads; they run worker_outer with leaves of their own, which are never replaced
    #[arg(long, default_value_t = 0, value_name = "N")]
    threads: u32,
    /// Execute this program again after half of the time; its functions' names then begin with `again_`
    #[arg(long)]
    exec_again: bool,
    /// Emit this many pairs of functions a second, each at the addresses of an older one and with other frame sizes,
    /// and call them instead of outer
    #[arg(long, value_name = "PAIRS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    churn: Option<u32>,
    /// How many pairs live at a time
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    slots: u32,
    /// Log in HQNplog format what runs when: generations and calls
    #[arg(long, value_name = "FILE", conflicts_with_all = ["fork", "exec_again"])]
    trace_log: Option<PathBuf>,
    /// Write the log's integers with the most significant byte first
    #[arg(long, requires = "trace_log")]
    trace_big_endian: bool,
    /// What all functions' names begin with
    #[arg(long, default_value = "", value_name = "TEXT")]
    name_prefix: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("jitdemo: {error:#}");
            ExitCode::FAILURE
        }
    }
}
