//! Which runtime a process runs, and the exact flag that makes it announce its code.
//!
//! Pure: the caller reads `/proc/PID/exe`, `maps`, `cmdline` and `environ` and passes their text.

mod asked;
mod environment;
mod flags;
mod runtime;
mod version;

use crate::account::Lack;
pub use environment::flags_in_environment;
pub use flags::{Advice, advise};
pub use runtime::{Clues, Detected, Runtime, Version, detect};
pub use version::{
    VersionFile, main_runtime, version_files, version_in_environment, version_in_paths, version_variable,
};

/// What to tell the user about a process whose generated code has no names: a sentence for each runtime found in it that
/// may have generated it. Where no known runtime is found, says what any runtime has to do.
pub fn for_process(clues: &Clues<'_>) -> String {
    let mut found = detect(clues);
    if found.is_empty() {
        return "no runtime that jitprof knows was found in the process: its code is named if it writes a jitdump, or \
                a perf map at /tmp/perf-PID.map."
            .to_owned();
    }
    if found.len() > 1 {
        // As a rule it generates no code of its own, but loads what does.
        found.retain(|detected| detected.runtime != Runtime::CPython);
    }
    let sentences: Vec<String> = found.iter().map(|detected| advise(detected, clues).to_string()).collect();
    sentences.join(" ")
}

/// The same for a process that announces some of its code, and not all: of a JVM with a perf map, what was compiled since that
/// was written. Other runtimes announce as they generate, and what is left is what they have no names for.
pub fn for_part(clues: &Clues<'_>) -> Option<String> {
    let found = detect(clues);
    let jvm = found.iter().find(|detected| detected.runtime == Runtime::Jvm)?;
    Some(flags::advise_jvm_with_map(jvm))
}

/// What to tell the user about a process whose frames without a name are worth a flag.
pub fn for_lack(lack: Lack, clues: &Clues<'_>) -> Option<String> {
    match lack {
        Lack::Announcements => Some(for_process(clues)),
        Lack::LaterThanMap => for_part(clues),
    }
}

/// Frames named by a list of frames, among which one without a name asks for nothing.
const FEW_AMONG: u64 = 100;

/// Whether what has no name is worth a flag, beside so much that the runtime's own memory has named. Beside what is listed
/// there may be code of others (`has_others`), whose names a flag gives, as long as it is more than a few.
pub fn is_worth_a_flag(unnamed: u64, named: u64, has_others: bool) -> bool {
    let few = if has_others { FEW_AMONG } else { 1 };
    named <= unnamed.saturating_mul(few)
}

/// Whether a native function is the evaluation loop of an interpreter that can name what it runs, or what calls it.
/// CPython 3.14 may be built with a function for each instruction instead, of which each calls the next; Debian's has no
/// symbol for its loop, but for what runs a module. PHP's is `execute_ex`; Ruby's `vm_exec_core` has no symbol as a rule, and
/// `rb_vm_exec`, which calls it, has.
pub fn is_evaluation_loop(name: &str) -> bool {
    const LOOPS: [&str; 5] =
        ["_PyEval_EvalFrameDefault", "PyEval_EvalCode", "execute_ex", "rb_vm_exec", "vm_exec_core"];
    LOOPS.contains(&name) || name.starts_with("_TAIL_CALL_")
}

/// Whether such a function calls the loop, and runs nothing itself.
pub fn calls_evaluation_loop(name: &str) -> bool {
    matches!(name, "PyEval_EvalCode" | "rb_vm_exec")
}

/// What to tell the user about a process without generated code that spends its time in such a loop.
pub fn for_interpreter(clues: &Clues<'_>) -> Option<String> {
    let found = detect(clues);
    let with_loop = |detected: &&Detected| matches!(detected.runtime, Runtime::CPython | Runtime::Php | Runtime::Ruby);
    found.iter().find(with_loop).map(|detected| flags::advise_interpreter(detected, clues))
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod version_tests;
