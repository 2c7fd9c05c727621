//! What to tell the user.

use std::fmt;

use super::runtime::{Clues, Detected, Runtime, Version};

/// How to start a runtime so that its code has names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The runtime it is for.
    pub runtime: Runtime,
    /// What to do, in one sentence with the exact flag.
    pub action: &'static str,
    /// What comes of it, or what else helps.
    pub effect: &'static str,
    /// The flag is already on the command line: what is missing is the file, not the flag.
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
    let (action, effect) = sentence(detected);
    let already_asked = is_asked(detected.runtime, clues.cmdline);
    Advice { runtime: detected.runtime, action, effect, already_asked }
}

/// Whether the command line shows that the runtime was asked already.
///
/// Flags given by environment do not show; then the advice repeats what has been done.
fn is_asked(runtime: Runtime, cmdline: &[String]) -> bool {
    if runtime == Runtime::CPython {
        // `perf` alone may be anything; as a value of -X it is the flag.
        let joined = cmdline.iter().any(|argument| matches!(&**argument, "-Xperf" | "-Xperf_jit"));
        let mut pairs = cmdline.windows(2);
        return joined || pairs.any(|pair| pair[0] == "-X" && matches!(&*pair[1], "perf" | "perf_jit"));
    }
    cmdline.iter().any(|argument| marks(runtime).iter().any(|mark| argument.contains(mark)))
}

fn marks(runtime: Runtime) -> &'static [&'static str] {
    match runtime {
        // V8 takes - and _ alike.
        Runtime::Node | Runtime::Deno | Runtime::V8 => {
            &["--perf-prof", "--perf_prof", "--perf-basic-prof", "--perf_basic_prof"]
        }
        Runtime::Jvm => &["libperf-jvmti", "DumpPerfMapAtExit"],
        Runtime::OpenJ9 => &["+PerfTool"],
        Runtime::Php => &["opcache.jit_debug"],
        Runtime::Erlang => &["JPperf"],
        Runtime::Wasmtime => &["jitdump", "perfmap"],
        Runtime::Ruby => &["--yjit-perf", "--zjit-perf"],
        Runtime::CPython | Runtime::Bun | Runtime::DotNet | Runtime::LuaJit => &[],
    }
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
        // ext/opcache/jit/zend_jit.h: ZEND_JIT_DEBUG_PERF_DUMP is 1<<5; run with PHP 8.2.
        Runtime::Php => (
            "start it with `php -d opcache.enable_cli=1 -d opcache.jit_buffer_size=64M -d opcache.jit=1205 \
             -d opcache.jit_debug=0x20 app.php` (php-fpm: the same settings in its php.ini)",
            "it writes /tmp/jit-PID.dump and /tmp/perf-PID.map",
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
    }
}

/// docs.python.org/3/howto/perf_profiling: `-X perf` since 3.12, `-X perf_jit` since 3.13.
fn cpython(version: Option<Version>) -> (&'static str, &'static str) {
    match version {
        Some(Version { major: 3, minor: ..=11 }) | Some(Version { major: ..=2, .. }) => (
            "this version cannot announce its functions; CPython 3.13 can, with `python3.13 -X perf_jit app.py`",
            "it then writes /tmp/jit-PID.dump",
        ),
        Some(Version { major: 3, minor: 12 }) => (
            "start it with `python3.12 -X perf app.py` or with PYTHONPERFSUPPORT=1 in its environment",
            "it writes /tmp/perf-PID.map; complete stacks need an interpreter with frame pointers, or 3.13",
        ),
        Some(_) => (
            "start it with `python3 -X perf_jit app.py` or with PYTHON_PERF_JIT_SUPPORT=1 in its environment",
            "it writes /tmp/jit-PID.dump",
        ),
        None => (
            "start it with `python3 -X perf_jit app.py` (3.13 and later; 3.12: `-X perf`)",
            "it writes /tmp/jit-PID.dump (3.12: /tmp/perf-PID.map)",
        ),
    }
}

/// The agent is perf's tools/perf/jvmti; `Compiler.perfmap` came with JDK 17 (JDK-8254723) and works on a running one.
fn jvm(version: Option<Version>) -> (&'static str, &'static str) {
    const AGENT: &str = "start it with `java -agentpath:/usr/lib/libperf-jvmti.so -XX:+PreserveFramePointer ...` (the \
                         agent is built from the kernel's tools/perf/jvmti)";
    match version {
        Some(Version { major: ..17, .. }) => (AGENT, "it writes ~/.debug/jit/java-jit-*/jit-PID.dump"),
        _ => (
            AGENT,
            "it writes ~/.debug/jit/java-jit-*/jit-PID.dump. Without a restart, from JDK 17 on: `jcmd PID \
             Compiler.perfmap` lists what is compiled now in /tmp/perf-PID.map",
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
            "it writes /tmp/jit-PID.dump and /tmp/perf-PID.map and keeps frame pointers",
        ),
    }
}

/// Ruby 3.3's NEWS (`--yjit-perf`), Ruby 4.0's options (`--zjit-perf`).
fn ruby(version: Option<Version>) -> (&'static str, &'static str) {
    match version {
        Some(Version { major: 3, minor: ..=2 }) | Some(Version { major: ..=2, .. }) => (
            "this version cannot announce its functions; Ruby 3.3 can, with `ruby --yjit --yjit-perf app.rb`",
            "it then writes /tmp/perf-PID.map",
        ),
        _ => (
            "start it with `ruby --yjit --yjit-perf app.rb` (3.3 and later; ZJIT in 4.0: `--zjit --zjit-perf`)",
            "it writes /tmp/perf-PID.map",
        ),
    }
}
