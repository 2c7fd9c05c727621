//! xtask as cargo's `RUSTC_WRAPPER`: the same BPF programs wherever they are built.
//!
//! Cargo tells the compiler a hash that goes into the names of all symbols, and is made of absolute paths: those of the
//! toolchain, of the sources and of the linker. The optimiser's order follows these names, so that a checkout in another
//! folder had other instructions, and one of two of them was refused by the verifier of Linux 6.1. Here the hash is made of
//! what the crate is.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

/// The variable by which xtask knows that it is to be the compiler.
pub(crate) const MARK: &str = "JITPROF_XTASK_IS_RUSTC";

/// Whether cargo has started this process in the place of the compiler.
pub(crate) fn is_asked() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Runs the compiler that the first argument names.
pub(crate) fn run() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Some(rustc) = arguments.next() else {
        eprintln!("error: {MARK} is set, but no compiler is named");
        return ExitCode::FAILURE;
    };
    let identity =
        ["CARGO_PKG_NAME", "CARGO_PKG_VERSION"].map(|name| std::env::var(name).unwrap_or_default()).join("-");
    let status = Command::new(&rustc).args(steady(arguments.collect(), &identity)).env_remove(MARK).status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: cannot start {}: {error}", rustc.display());
            ExitCode::FAILURE
        }
    }
}

/// The arguments with `-C metadata` of the crate's identity alone.
fn steady(arguments: Vec<OsString>, identity: &str) -> Vec<OsString> {
    let is_hash = |argument: &OsString| argument.to_str().is_some_and(|text| text.starts_with("metadata="));
    let steady = |argument| if is_hash(&argument) { format!("metadata={identity}").into() } else { argument };
    arguments.into_iter().map(steady).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_hash_of_paths_is_replaced() {
        let given = ["--crate-name", "core", "-C", "metadata=5d41", "-C", "extra-filename=-5d41", "a metadata=b"];
        let made = steady(given.map(OsString::from).to_vec(), "core-0.0.0");
        let expected =
            ["--crate-name", "core", "-C", "metadata=core-0.0.0", "-C", "extra-filename=-5d41", "a metadata=b"];
        assert_eq!(made, expected.map(OsString::from));
    }
}
