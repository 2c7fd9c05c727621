//! Recognising a runtime by its files.

use std::fmt;

/// A runtime with a JIT that can announce its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Runtime {
    /// Node.js.
    Node,
    /// Deno.
    Deno,
    /// Another program around V8 (Electron).
    V8,
    /// Bun, with JavaScriptCore.
    Bun,
    /// CPython.
    CPython,
    /// HotSpot: OpenJDK and its builds.
    Jvm,
    /// Eclipse OpenJ9.
    OpenJ9,
    /// .NET (CoreCLR).
    DotNet,
    /// PHP.
    Php,
    /// Erlang and Elixir (BeamAsm).
    Erlang,
    /// wasmtime, the command or embedded.
    Wasmtime,
    /// LuaJIT, the command or embedded (OpenResty).
    LuaJit,
    /// CRuby.
    Ruby,
    /// numba and what else generates code by llvmlite.
    Numba,
    /// PostgreSQL, with LLVM.
    Postgres,
    /// Mono.
    Mono,
    /// QEMU's translator, of programs and of machines.
    Qemu,
    /// PyPy.
    PyPy,
}

/// A version as far as a path tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version {
    /// First number. For Erlang the OTP release.
    pub major: u32,
    /// Second number; 0 where there is none.
    pub minor: u32,
}

/// A runtime found in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detected {
    /// The runtime that was found.
    pub runtime: Runtime,
    /// Its version, if a path says it.
    pub version: Option<Version>,
}

/// What is known of a process; paths as in the target's own mount namespace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clues<'a> {
    /// Target of `/proc/PID/exe`.
    pub exe: &'a str,
    /// Files mapped into the process, from `/proc/PID/maps`; duplicates do no harm.
    pub mapped_files: &'a [String],
    /// Arguments from `/proc/PID/cmdline`.
    pub cmdline: &'a [String],
    /// What [`flags_in_environment`](super::flags_in_environment) has found.
    pub environment: &'a [String],
}

impl Runtime {
    /// A short name, for labels.
    pub fn label(self) -> &'static str {
        match self {
            Runtime::Node => "node",
            Runtime::Deno => "deno",
            Runtime::V8 => "v8",
            Runtime::Bun => "bun",
            Runtime::CPython => "cpython",
            Runtime::Jvm => "jvm",
            Runtime::OpenJ9 => "openj9",
            Runtime::DotNet => "dotnet",
            Runtime::Php => "php",
            Runtime::Erlang => "erlang",
            Runtime::Wasmtime => "wasmtime",
            Runtime::LuaJit => "luajit",
            Runtime::Ruby => "ruby",
            Runtime::Numba => "numba",
            Runtime::Postgres => "postgresql",
            Runtime::Mono => "mono",
            Runtime::Qemu => "qemu",
            Runtime::PyPy => "pypy",
        }
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Runtime::Node => "Node.js",
            Runtime::Deno => "Deno",
            Runtime::V8 => "V8",
            Runtime::Bun => "Bun",
            Runtime::CPython => "CPython",
            Runtime::Jvm => "the JVM",
            Runtime::OpenJ9 => "OpenJ9",
            Runtime::DotNet => ".NET",
            Runtime::Php => "PHP",
            Runtime::Erlang => "Erlang/OTP",
            Runtime::Wasmtime => "wasmtime",
            Runtime::LuaJit => "LuaJIT",
            Runtime::Ruby => "Ruby",
            Runtime::Numba => "numba",
            Runtime::Postgres => "PostgreSQL",
            Runtime::Mono => "Mono",
            Runtime::Qemu => "QEMU",
            Runtime::PyPy => "PyPy",
        })
    }
}

/// Programs by their file name, which may be followed by a version (`python3.13`, `php-fpm8.2`, `luajit-2.1`).
const PROGRAMS: &[(&str, Runtime)] = &[
    ("node", Runtime::Node),
    ("nodejs", Runtime::Node),
    ("deno", Runtime::Deno),
    ("electron", Runtime::V8),
    ("bun", Runtime::Bun),
    // What npm installs, also on Linux.
    ("bun.exe", Runtime::Bun),
    ("python", Runtime::CPython),
    ("java", Runtime::Jvm),
    ("dotnet", Runtime::DotNet),
    ("php", Runtime::Php),
    ("php-fpm", Runtime::Php),
    ("php-cgi", Runtime::Php),
    ("beam.smp", Runtime::Erlang),
    ("wasmtime", Runtime::Wasmtime),
    ("luajit", Runtime::LuaJit),
    ("ruby", Runtime::Ruby),
    ("mono", Runtime::Mono),
    ("mono-sgen", Runtime::Mono),
    ("pypy", Runtime::PyPy),
];

/// What QEMU's programs that translate code end in, after `qemu-` or `qemu-system-`; its tools are called so, too.
const QEMU_MACHINES: &[&str] = &[
    "x86_64",
    "i386",
    "aarch64",
    "arm",
    "riscv",
    "ppc",
    "s390x",
    "mips",
    "loongarch",
    "sparc",
    "m68k",
    "alpha",
    "hppa",
    "microblaze",
    "sh4",
    "xtensa",
    "or1k",
    "hexagon",
];

/// Libraries by how their file name begins.
const LIBRARIES: &[(&str, Runtime)] = &[
    // The Python wheel of wasmtime maps `_libwasmtime.so`.
    ("libwasmtime.so", Runtime::Wasmtime),
    ("_libwasmtime.so", Runtime::Wasmtime),
    ("libluajit-", Runtime::LuaJit),
    ("libnode.so", Runtime::Node),
    ("libv8.so", Runtime::V8),
    ("libj9vm", Runtime::OpenJ9),
    ("libjvm.so", Runtime::Jvm),
    ("libcoreclr.so", Runtime::DotNet),
    // Programs in a single file have no library, but .NET 7 and later map what they generate twice.
    ("memfd:doublemapper", Runtime::DotNet),
    ("libllvmlite.so", Runtime::Numba),
    ("llvmjit.so", Runtime::Postgres),
    ("libmonosgen-2", Runtime::Mono),
    ("libpypy", Runtime::PyPy),
    ("libphp", Runtime::Php),
    ("libruby", Runtime::Ruby),
    ("libpython3", Runtime::CPython),
];

/// The runtimes of a process, the innermost first: a runtime loaded as a library (wasmtime in Python) comes before the
/// one that is the program.
pub fn detect(clues: &Clues<'_>) -> Vec<Detected> {
    let mut found: Vec<Detected> = Vec::new();
    for (prefix, runtime) in LIBRARIES {
        let mut libraries = clues.mapped_files.iter().filter(|path| file_name(path).starts_with(prefix));
        if let Some(path) = libraries.next() {
            add(&mut found, *runtime, version_in(*runtime, path));
        }
    }
    if let Some(runtime) = program(file_name(clues.exe)) {
        add(&mut found, runtime, version_in(runtime, clues.exe));
    }
    // OpenJ9 brings a libjvm.so of its own and is called java.
    if found.iter().any(|detected| detected.runtime == Runtime::OpenJ9) {
        found.retain(|detected| detected.runtime != Runtime::Jvm);
    }
    for detected in found.iter_mut().filter(|detected| detected.version.is_none()) {
        detected.version = clues.mapped_files.iter().find_map(|path| version_in(detected.runtime, path));
    }
    found
}

fn add(found: &mut Vec<Detected>, runtime: Runtime, version: Option<Version>) {
    match found.iter_mut().find(|detected| detected.runtime == runtime) {
        Some(known) => known.version = known.version.or(version),
        None => found.push(Detected { runtime, version }),
    }
}

pub(super) fn file_name(path: &str) -> &str {
    // What /proc appends when the file was replaced by an upgrade.
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.rsplit('/').next().unwrap_or(path)
}

pub(super) fn program(name: &str) -> Option<Runtime> {
    if let Some(machine) = name.strip_prefix("qemu-") {
        let machine = machine.strip_prefix("system-").unwrap_or(machine);
        return QEMU_MACHINES.iter().any(|known| machine.starts_with(known)).then_some(Runtime::Qemu);
    }
    PROGRAMS.iter().find_map(|(program, runtime)| {
        let rest = name.strip_prefix(program)?;
        let version = rest.trim_start_matches('-');
        version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.').then_some(*runtime)
    })
}

/// The version that a path says, where this runtime's paths say it.
fn version_in(runtime: Runtime, path: &str) -> Option<Version> {
    match runtime {
        Runtime::CPython => after(path, "/python").or_else(|| after(path, "libpython")),
        Runtime::Jvm | Runtime::OpenJ9 => {
            after(path, "/java-").or_else(|| after(path, "/jdk-")).or_else(|| after(path, "-openjdk-"))
        }
        Runtime::Php => ["/php-fpm", "/php-cgi", "/php", "libphp"].iter().find_map(|marker| after(path, marker)),
        Runtime::Ruby => ["/libruby.so.", "/libruby-", "/ruby-", "/ruby"].iter().find_map(|marker| after(path, marker)),
        Runtime::DotNet => after(path, "/Microsoft.NETCore.App/"),
        // The emulator has its own numbers: erts 12 came with OTP 24, 13 with 25, and so on.
        Runtime::Erlang => {
            let erts = after(path, "/erts-")?;
            Some(Version { major: erts.major.checked_add(12)?, minor: 0 })
        }
        Runtime::PyPy => after(path, "/pypy").or_else(|| after(path, "libpypy")),
        Runtime::Node | Runtime::Deno | Runtime::V8 | Runtime::Bun | Runtime::Wasmtime | Runtime::LuaJit => None,
        Runtime::Numba | Runtime::Postgres | Runtime::Mono | Runtime::Qemu => None,
    }
}

/// `MAJOR[.MINOR]` right after the first `marker` that such a number follows.
fn after(path: &str, marker: &str) -> Option<Version> {
    let mut numbers = numbers_after(path, marker)?.split('.').map(str::parse);
    let major = numbers.next()?.ok()?;
    let minor = numbers.next().and_then(Result::ok).unwrap_or(0);
    Some(Version { major, minor })
}

/// The numbers with points between them right after the first `marker` that any follow.
pub(super) fn numbers_after<'a>(path: &'a str, marker: &str) -> Option<&'a str> {
    path.match_indices(marker).find_map(|(at, _)| {
        let text = &path[at + marker.len()..];
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let numbers = text[..end].trim_end_matches('.');
        let major = numbers.split('.').next()?;
        major.parse::<u32>().is_ok().then_some(numbers)
    })
}
