//! The `jitprof` command.

fn main() -> std::process::ExitCode {
    jitprof::cli::run()
}
