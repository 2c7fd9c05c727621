//! Builds, tests, measures and packages jitprof: `cargo xtask VERB`, one module a verb.

mod apt;
mod bench;
mod build;
mod command;
mod demo;
mod dist;
mod fleet;
mod fuzz;
mod matrix;
mod package;
mod platform;
mod prepare;
mod rustc;
mod shared_build;
mod test;
mod tools;
mod workspace;
mod zoo;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::shared_build::SharedBuild;
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
    /// Builds the BPF programs, embeds them, and leaves the `jitprof` binary and the agent in the target folder
    Build(build::Arguments),
    /// Profiles a small JIT program of our own and writes its flamegraph
    Demo(demo::Arguments),
    /// Formatting, lints, unit tests and live tests, with a table at the end
    Test(test::Arguments),
    /// The endurance tests in their large form, ten times as long as in `test`, and every kernel of the matrix: an hour
    Soak,
    /// Writes how often each live test has passed on this machine into docs/measurements/steadiness.csv
    Steadiness,
    /// Measures jitprof beside linux-perf-data, perf and samply, and prints a table
    Bench(bench::Arguments),
    /// Finds or installs the runtimes that the live tests profile
    Prepare(prepare::Arguments),
    /// Profiles real runtimes that run a known program, and prints how much of it jitprof has seen
    Zoo(zoo::Arguments),
    /// Generates a fleet's dataset and asks it the questions of contrib/queries in each engine
    Fleet(fleet::Arguments),
    /// Runs the fuzz targets of tests/fuzz
    Fuzz(fuzz::Arguments),
    /// Builds the static program and packs it: an archive with an installer, a Debian package, an RPM, their checksums
    Dist(dist::Arguments),
    /// Packs the crates as they are published: with the BPF objects, so that `cargo install` needs no more than stable Rust
    Package(package::Arguments),
}

fn main() -> ExitCode {
    if rustc::is_asked() {
        return rustc::run();
    }
    let arguments = Arguments::parse();
    match Workspace::find().and_then(|workspace| run(workspace, arguments.verb)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(workspace: Workspace, verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Build(arguments) => build::run(&workspace, &arguments),
        Verb::Demo(arguments) => demo::run(&workspace, &arguments),
        Verb::Test(arguments) => {
            let shared = SharedBuild::take(&workspace)?;
            let workspace = shared.iter().fold(workspace, |workspace, shared| workspace.building_in(&shared.folder));
            test::run(&workspace, &arguments)
        }
        Verb::Soak => test::soak(&workspace),
        Verb::Steadiness => test::steadiness(&workspace),
        Verb::Bench(arguments) => bench::run(&workspace, &arguments),
        Verb::Prepare(arguments) => prepare::run(&workspace, &arguments),
        Verb::Zoo(arguments) => zoo::run(&workspace, &arguments),
        Verb::Fleet(arguments) => fleet::run(&workspace, &arguments),
        Verb::Fuzz(arguments) => fuzz::run(&workspace, &arguments),
        Verb::Package(arguments) => package::run(&workspace, &arguments),
        Verb::Dist(arguments) => dist::run(&workspace, &arguments),
    }
}
