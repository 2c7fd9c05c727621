//! Builds, tests, measures and packages jitprof: `cargo xtask VERB`, one module a verb.

mod bench;
mod build;
mod command;
mod demo;
mod dist;
mod fuzz;
mod matrix;
mod platform;
mod prepare;
mod test;
mod tools;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Builds, tests, measures and packages jitprof.
#[derive(Parser)]
#[command(name = "cargo xtask", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Builds the kernel part, embeds it, and leaves the `jitprof` binary and the agent in the target folder
    Build(build::Arguments),
    /// Profiles a small JIT program of our own and writes its flamegraph
    Demo(demo::Arguments),
    /// Formatting, lints, unit tests and live tests, with a table at the end
    Test(test::Arguments),
    /// Measures jitprof beside linux-perf-data, perf and samply, and prints a table
    Bench(bench::Arguments),
    /// Finds or installs the runtimes that the live tests profile
    Prepare(prepare::Arguments),
    /// Runs the fuzz targets of tests/fuzz
    Fuzz(fuzz::Arguments),
    /// Packs binary, agent, documents and licences into a tar.gz with its checksum
    Dist,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match Workspace::find().and_then(|workspace| run(&workspace, arguments.verb)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(workspace: &Workspace, verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Build(arguments) => build::run(workspace, &arguments),
        Verb::Demo(arguments) => demo::run(workspace, &arguments),
        Verb::Test(arguments) => test::run(workspace, &arguments),
        Verb::Bench(arguments) => bench::run(workspace, &arguments),
        Verb::Prepare(arguments) => prepare::run(workspace, &arguments),
        Verb::Fuzz(arguments) => fuzz::run(workspace, &arguments),
        Verb::Dist => dist::run(workspace),
    }
}
