//! Flags that runtimes take from their environment.

use super::asked;
use super::runtime::Runtime;

/// What a variable is for.
enum Use {
    /// Its words are options.
    Options,
    /// It is itself the flag, unless it is empty or 0.
    Switch,
}

/// Variables by which runtimes are asked to announce their code.
const VARIABLES: &[(&str, Use, &[Runtime])] = &[
    ("NODE_OPTIONS", Use::Options, &[Runtime::Node, Runtime::V8]),
    ("DENO_V8_FLAGS", Use::Options, &[Runtime::Deno]),
    ("BUN_JSC_useJITDump", Use::Switch, &[Runtime::Bun]),
    ("PYTHONPERFSUPPORT", Use::Switch, &[Runtime::CPython]),
    ("PYTHON_PERF_JIT_SUPPORT", Use::Switch, &[Runtime::CPython]),
    ("INTEL_JIT_PROFILER64", Use::Switch, &[Runtime::Numba, Runtime::Wasmtime]),
    ("INTEL_LIBITTNOTIFY64", Use::Switch, &[Runtime::Numba]),
    ("JAVA_TOOL_OPTIONS", Use::Options, &[Runtime::Jvm, Runtime::OpenJ9]),
    ("JDK_JAVA_OPTIONS", Use::Options, &[Runtime::Jvm, Runtime::OpenJ9]),
    ("_JAVA_OPTIONS", Use::Options, &[Runtime::Jvm]),
    ("OPENJ9_JAVA_OPTIONS", Use::Options, &[Runtime::OpenJ9]),
    ("DOTNET_PerfMapEnabled", Use::Switch, &[Runtime::DotNet]),
    ("COMPlus_PerfMapEnabled", Use::Switch, &[Runtime::DotNet]),
    ("ERL_FLAGS", Use::Options, &[Runtime::Erlang]),
    ("ERL_AFLAGS", Use::Options, &[Runtime::Erlang]),
    ("ERL_ZFLAGS", Use::Options, &[Runtime::Erlang]),
    ("RUBYOPT", Use::Options, &[Runtime::Ruby]),
    ("MONO_ENV_OPTIONS", Use::Options, &[Runtime::Mono]),
    ("QEMU_PERFMAP", Use::Switch, &[Runtime::Qemu]),
    ("QEMU_JITDUMP", Use::Switch, &[Runtime::Qemu]),
];

/// The variables of an environment that ask for announcements, as `NAME` or `NAME=FLAG …`. Of what else is in it, secrets
/// perhaps, nothing is kept, of the same variables neither.
pub fn flags_in_environment(environment: &[u8]) -> Vec<String> {
    let entries =
        environment.split(|byte| *byte == 0).filter_map(|entry| std::str::from_utf8(entry).ok()?.split_once('='));
    entries.filter_map(|(name, value)| flags_in(name, value)).collect()
}

fn flags_in(name: &str, value: &str) -> Option<String> {
    let (_, kind, runtimes) = VARIABLES.iter().find(|(known, ..)| *known == name)?;
    match kind {
        Use::Switch => (!matches!(value, "" | "0" | "false")).then(|| name.to_owned()),
        Use::Options => {
            let option = runtimes.iter().find_map(|runtime| asked::in_variable(*runtime, value));
            option.map(|option| format!("{name}={option}"))
        }
    }
}

/// Whether a variable that [`flags_in_environment`] has found is for this runtime.
pub(super) fn asks(runtime: Runtime, found: &str) -> bool {
    let name = found.split('=').next().unwrap_or(found);
    VARIABLES.iter().any(|(known, _, runtimes)| *known == name && runtimes.contains(&runtime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_environment_only_flags_are_kept() {
        let environment = b"PATH=/bin\0NODE_OPTIONS=--require ./secret.js --perf-basic-prof\0PYTHONPERFSUPPORT=0\0\
            JAVA_TOOL_OPTIONS=-Dpassword=x\0ERL_ZFLAGS=+JPperf true\0DOTNET_PerfMapEnabled=1\0XERL_FLAGS=JPperf\0\xff=1";
        let found = flags_in_environment(environment);
        assert_eq!(found, ["NODE_OPTIONS=--perf-basic-prof", "ERL_ZFLAGS=JPperf", "DOTNET_PerfMapEnabled"]);
        assert!(asks(Runtime::Node, &found[0]) && asks(Runtime::Erlang, &found[1]) && asks(Runtime::DotNet, &found[2]));
        assert!(!asks(Runtime::Deno, &found[0]));
    }
}
