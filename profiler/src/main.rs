//! The `jitprof` command.

#[cfg(target_env = "musl")]
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    jitprof::cli::run()
}
