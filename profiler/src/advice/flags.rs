//! The flag that makes each runtime announce its code, as a sentence for the user.

use std::fmt;

use super::runtime::{Clues, Detected, Runtime, Version};
use super::{asked, environment};

/// How to start a runtime so that its code has names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The runtime it is for.
    pub runtime: Runtime,
    /// What to do, in one sentence with the exact flag.
    pub action: &'static str,
    /// What comes of it, or what else helps.
    pub effect: &'static str,
    /// The flag is already on the command line or in the environment: what is missing is the file, not the flag.
    pub already_asked: bool,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.already_asked {
            write!(
                f,
                "{} was started with a flag that announces its code, but no file of it was found or readable: {}.",
                self.runtime, self.effect
            )
        } else {
            write!(f, "the code of {} is not announced: {}; {}.", self.runtime, self.action, self.effect)
        }
    }
}

/// The flag for a runtime found by [`detect`](super::detect).
///
/// Where the version is unknown the advice names the versions it is for.
pub fn advise(detected: &Detected, clues: &Clues<'_>) -> Advice {
    let (action, effect) = match (detected.runtime, detected.version) {
        (Runtime::CPython, Some(Version { major: 3, minor: 1..=11 } | Version { major: ..=2, .. })) => {
            sentence(detected)
        }
        (Runtime::CPython, Some(Version { major: 3, minor: 12 })) if is_spawned(clues) => (
            "multiprocessing has started it, which does not hand on -X perf: start the first process with \
             PYTHONPERFSUPPORT=1 in its environment, which all inherit",
            "each writes its /tmp/perf-PID.map",
        ),
        (Runtime::CPython, _) if is_spawned(clues) => (
            "multiprocessing has started it, which does not hand on -X perf_jit: start the first process with \
             PYTHON_PERF_JIT_SUPPORT=1 (3.12: PYTHONPERFSUPPORT=1) in its environment, which all inherit",
            "each writes its /tmp/jit-PID.dump",
        ),
        _ => sentence(detected),
    };
    let asks = |found: &String| environment::asks(detected.runtime, found);
    let already_asked =
        asked::on_command_line(detected.runtime, clues.cmdline).is_some() || clues.environment.iter().any(asks);
    Advice { runtime: detected.runtime, action, effect, already_asked }
}

/// What a JVM's perf map lacks.
pub(super) fn advise_jvm_with_map(jvm: &Detected) -> String {
    let action = match jvm.version {
        Some(Version { major: ..17, .. }) => "start it with an agent that announces all the time, libperf-jvmti.so",
        _ => {
            "leave out `--no-read-runtime`, so that jitprof reads the JVM's own tables (JDK 17 and later; that takes \
             CAP_SYS_PTRACE), or run `jcmd PID Compiler.perfmap` as its user again, with the recording already running"
        }
    };
    format!("the perf map of {} lists what was compiled when it was written, and nothing since: {action}.", jvm.runtime)
}

/// What makes an interpreter name the functions that its loop runs.
pub(super) fn advise_interpreter(found: &Detected, clues: &Clues<'_>) -> String {
    let advice = advise(found, clues);
    if found.runtime == Runtime::Php {
        let missing = if advice.already_asked { "only its JIT announces code, and it is off: " } else { "" };
        return format!(
            "the functions of {} have no names of their own: it interprets them in one loop; {missing}start it with `php \
             -d opcache.enable_cli=1 -d opcache.jit_buffer_size=64M -d opcache.jit=1205 -d opcache.jit_debug=0x20 app.php` \
             (php-fpm, Apache: the same in its php.ini); what its JIT compiles then has names.",
            found.runtime
        );
    }
    if advice.already_asked {
        return advice.to_string();
    }
    if found.runtime == Runtime::Ruby {
        return format!(
            "the functions of {} have no names of their own: {}; {}.",
            found.runtime, advice.action, advice.effect
        );
    }
    let (action, effect) = match found.version {
        Some(Version { major: 3, minor: 8..=11 }) => (
            "jitprof reads its frames without a flag, unless `--no-read-runtime` is given or it may not (that takes \
             CAP_SYS_PTRACE)",
            "this version has no flag for it; 3.13 and later have one: `python3 -X perf_jit app.py`",
        ),
        Some(Version { major: 3, minor: 1..=7 }) | Some(Version { major: ..=2, .. }) => (
            "CPython 3.8 and later need no flag, as jitprof reads their frames by itself, and this version has none",
            "3.13 and later have one, too: `python3 -X perf_jit app.py`",
        ),
        Some(Version { major: 3, minor: 12 }) if !is_spawned(clues) => (
            "start it with `python3.12 -X perf app.py`, or with PYTHONPERFSUPPORT=1 in its environment",
            "it writes /tmp/perf-PID.map",
        ),
        _ => (advice.action, advice.effect),
    };
    format!("the functions of {} have no names of their own: {action}; {effect}.", found.runtime)
}

/// Whether CPython's multiprocessing has started it, which hands `-X perf_jit` on to nobody (`_args_from_interpreter_flags`
/// of its subprocess.py).
fn is_spawned(clues: &Clues<'_>) -> bool {
    clues.cmdline.iter().any(|argument| argument.contains("multiprocessing."))
}

fn sentence(detected: &Detected) -> (&'static str, &'static str) {
    match detected.runtime {
        // V8 src/flags/flag-definitions.h; run with Node 20.20 and 24. Without the third flag all interpreted
        // functions share one frame name, InterpreterEntryTrampoline.
        Runtime::Node => (
            "start it with `node --perf-prof --perf-prof-unwinding-info --interpreted-frames-native-stack app.js`",
            "it writes jit-PID.dump into its working directory",
        ),
        // Deno takes V8's flags after a comma each, also from DENO_V8_FLAGS (cli/util/v8.rs of 2.7).
        Runtime::Deno => (
            "start it with `deno run --v8-flags=--perf-prof,--perf-prof-unwinding-info,\
             --interpreted-frames-native-stack app.ts`",
            "it writes jit-PID.dump into its working directory",
        ),
        Runtime::V8 => (
            "pass V8 the flags `--perf-prof --perf-prof-unwinding-info --interpreted-frames-native-stack` \
             (Electron: `--js-flags=\"--perf-prof --perf-prof-unwinding-info --interpreted-frames-native-stack\"`)",
            "it writes jit-PID.dump into its working directory, which a sandboxed process may not write to",
        ),
        // JavaScriptCore's OptionsList.h (useJITDump, jitDumpDirectory); Bun reads them with the prefix BUN_JSC_.
        Runtime::Bun => (
            "start it with `BUN_JSC_useJITDump=1 BUN_JSC_jitDumpDirectory=/tmp bun app.js`",
            "it writes /tmp/jit-THREAD-PID.dump",
        ),
        Runtime::CPython => cpython(detected.version),
        Runtime::Jvm => jvm(detected.version),
        // eclipse.dev/openj9/docs/xxperftool
        Runtime::OpenJ9 => ("start it with `java -XX:+PerfTool ...`", "it writes /tmp/perf-PID.map"),
        // learn.microsoft.com/dotnet/core/runtime-config/debugging-profiling: 1 is perf map and jitdump, 2 the jitdump,
        // 3 the perf map; 1 is the value that every version knows.
        Runtime::DotNet => (
            "start it with `DOTNET_PerfMapEnabled=1 dotnet app.dll` (before .NET 6: `COMPlus_PerfMapEnabled=1`)",
            "it writes /tmp/jit-PID.dump and /tmp/perf-PID.map",
        ),
        // ext/opcache/jit/zend_jit.h: ZEND_JIT_DEBUG_PERF_DUMP is 1<<5; run with PHP 8.2. Code was generated, so the JIT
        // is on, and how is the user's choice.
        Runtime::Php => (
            "start it with `php -d opcache.jit_debug=0x20 app.php` (php-fpm, Apache: the same in its php.ini)",
            "it writes /tmp/jit-PID.dump and /tmp/perf-PID.map; what PCRE generates stays without names",
        ),
        Runtime::Erlang => erlang(detected.version),
        // docs.wasmtime.dev, examples-profiling-perf; run with wasmtime 50.
        Runtime::Wasmtime => (
            "start it with `wasmtime run --profile=jitdump app.wasm`, or where it is embedded set \
             `Config::profiler(ProfilingStrategy::JitDump)` (Python: `config.profiler = \"jitdump\"`)",
            "it writes jit-PID.dump into its working directory",
        ),
        // lj_trace.c writes the map only when it is compiled in.
        Runtime::LuaJit => (
            "build LuaJIT with `make XCFLAGS=-DLUAJIT_USE_PERFTOOLS`; it has no flag for it at run time",
            "it then writes /tmp/perf-PID.map",
        ),
        Runtime::Ruby => ruby(detected.version),
        // docs/reference/jit-api.md; run with numba 0.68.
        Runtime::Numba => (
            "jitprof reads the functions that numba registers for debuggers from its memory, unless `--no-read-runtime` is \
             given or it may not (that takes CAP_SYS_PTRACE)",
            "else start it with `NUMBA_ENABLE_PROFILING=1 INTEL_LIBITTNOTIFY64=/path/to/libjitprof_agent.so` in its \
             environment, whose agent writes jit-PID.dump below /tmp; the interpreter's own flags name none of it",
        ),
        // postgresql.org/docs/current/runtime-config-developer: for superusers, when a session starts.
        Runtime::Postgres => (
            "set `jit_profiling_support = on` in postgresql.conf, reload, and connect anew; it takes an LLVM that was built \
             with LLVM_USE_PERF",
            "each session writes ~/.debug/jit/llvm-IR-jit-*/jit-PID.dump",
        ),
        // mono(1).
        Runtime::Mono => (
            "start it with `mono --jitmap app.exe` or with MONO_ENV_OPTIONS=--jitmap in its environment",
            "it writes /tmp/perf-PID.map",
        ),
        // qemu's docs/devel/tcg.rst, since 8.0.
        Runtime::Qemu => (
            "start it with `-jitdump`, or a program's with QEMU_JITDUMP=1 in its environment (QEMU 8.0 and later)",
            "it writes jit-PID.dump into its working directory, with the guest's addresses for names",
        ),
        Runtime::PyPy => (
            "no version of it can announce its code, and jitprof cannot name it",
            "CPython 3.8 and later need no flag, as jitprof reads their frames by itself",
        ),
    }
}

/// docs.python.org/3/howto/perf_profiling: `-X perf` since 3.12, `-X perf_jit` since 3.13. Before 3.13 it has no JIT, and
/// with its JIT on it refuses the flag.
fn cpython(version: Option<Version>) -> (&'static str, &'static str) {
    match version {
        Some(Version { major: 3, minor: 1..=11 }) | Some(Version { major: ..=2, .. }) => (
            "this version generates none itself, so a library that it has loaded does, which has to announce it",
            "of CPython 3.8 and later jitprof reads Python's functions without a flag; 3.13 and later announce them, too, \
             with `python3 -X perf_jit app.py`",
        ),
        Some(Version { major: 3, minor: 12 }) => (
            "this version generates none itself, so a library that it has loaded does, which has to announce it; Python's \
             functions have names with `python3.12 -X perf app.py` or with PYTHONPERFSUPPORT=1 in its environment",
            "it writes /tmp/perf-PID.map; complete stacks need an interpreter with frame pointers, or 3.13",
        ),
        // `python` and `python3` say no second number.
        Some(Version { major: 3, minor: 1.. }) => (
            "start it with `PYTHON_JIT=0 python3 -X perf_jit app.py`, or with PYTHON_PERF_JIT_SUPPORT=1 in its environment, \
             which the processes that it starts inherit (ProcessPoolExecutor; with its own JIT on it refuses it)",
            "it writes /tmp/jit-PID.dump",
        ),
        _ => (
            "of CPython 3.8 and later jitprof reads Python's functions without a flag, unless `--no-read-runtime` is given or it \
             may not (that takes CAP_SYS_PTRACE); else start it with `PYTHON_JIT=0 python3 -X perf_jit app.py` (3.13 and \
             later; 3.12: `-X perf`); what libraries generate they have to announce themselves",
            "it writes /tmp/jit-PID.dump (3.12: /tmp/perf-PID.map)",
        ),
    }
}

/// From JDK 17 on its tables are read (docs/design/runtime-tables.md). `Compiler.perfmap` came with JDK 17 (JDK-8254723) and
/// works on a running one. perf's agent is its tools/perf/jvmti;
/// most distributions ship none.
fn jvm(version: Option<Version>) -> (&'static str, &'static str) {
    match version {
        Some(Version { major: ..17, .. }) => (
            "start it with `java -agentpath:/path/to/libperf-jvmti.so -XX:+PreserveFramePointer ...`, an agent that is \
             built from the kernel's tools/perf/jvmti",
            "it writes ~/.debug/jit/java-jit-*/jit-PID.dump. From JDK 17 on neither flag nor restart is needed",
        ),
        _ => (
            "from JDK 17 on jitprof reads the names from the JVM's own tables, unless `--no-read-runtime` is given or it may \
             not (that takes CAP_SYS_PTRACE)",
            "else `jcmd PID Compiler.perfmap` as its user, just before recording, lists what is compiled then in \
             /tmp/perf-PID.map; whole stacks then take a start with `java -XX:+PreserveFramePointer ...`",
        ),
    }
}

/// erts' erl_cmd, `+JPperf`; the JIT came with OTP 24. `true` is `dump`, `map` and frame pointers together.
fn erlang(version: Option<Version>) -> (&'static str, &'static str) {
    match version {
        Some(Version { major: ..24, .. }) => {
            ("this release has no JIT; OTP 24 and later announce theirs with `erl +JPperf true`", "they write to /tmp")
        }
        _ => (
            "start it with `erl +JPperf true` or with `ERL_FLAGS=\"+JPperf true\"` in its environment",
            "it writes /tmp/jit-PID.dump and /tmp/perf-PID.map and keeps frame pointers. Of OTP 25, 27 and 29 the emulator's own \
             tables are read without a flag, unless `--no-read-runtime` is given",
        ),
    }
}

/// Ruby 3.3's NEWS (`--yjit-perf`), Ruby 4.0's options (`--zjit-perf`).
fn ruby(version: Option<Version>) -> (&'static str, &'static str) {
    match version {
        Some(Version { major: 3, minor: ..=2 }) | Some(Version { major: ..=2, .. }) => (
            "this version cannot announce its functions; Ruby 3.3 can, with `ruby --yjit --yjit-perf app.rb`",
            "it then writes /tmp/perf-PID.map. Of Ruby 3.1 and 3.3 the frames are read without a flag, unless \
             `--no-read-runtime` is given",
        ),
        _ => (
            "start it with `ruby --yjit --yjit-perf app.rb` (3.3 and later; ZJIT in 4.0: `--zjit --zjit-perf`)",
            "it writes /tmp/perf-PID.map. Of Ruby 3.1 and 3.3 the frames are read without a flag, unless `--no-read-runtime` is \
             given",
        ),
    }
}
