//! Which runtime a process is shown under, and its version.

use super::runtime::{Clues, Detected, Runtime, detect, file_name, numbers_after, program};
use serde::{Deserialize, Serialize};

/// Longest version that is believed.
const MAX_BYTES: usize = 32;

/// Where an installation says its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Notation {
    /// `#define NODE_MAJOR_VERSION 20` and its like, in C.
    NodeHeader,
    /// `JAVA_VERSION="17.0.2"`.
    JavaRelease,
    /// `25.2.3` and nothing else.
    Plain,
}

/// A small file of an installation that says its version.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VersionFile {
    /// Where it is, in the target's view.
    pub path: String,
    notation: Notation,
}

impl VersionFile {
    /// The version that the file's bytes say.
    pub fn version(&self, text: &[u8]) -> Option<String> {
        let text = String::from_utf8_lossy(text);
        match self.notation {
            Notation::NodeHeader => {
                let part = |name: &str| -> Option<u32> {
                    let line = text.lines().find_map(|line| line.strip_prefix("#define ")?.strip_prefix(name))?;
                    line.trim().parse().ok()
                };
                let [major, minor, patch] = ["MAJOR", "MINOR", "PATCH"].map(|part| format!("NODE_{part}_VERSION "));
                Some(format!("{}.{}.{}", part(&major)?, part(&minor)?, part(&patch)?))
            }
            Notation::JavaRelease => {
                let value = text.lines().find_map(|line| line.strip_prefix("JAVA_VERSION="))?;
                plausible(value.trim().trim_matches('"'))
            }
            Notation::Plain => plausible(text.trim()),
        }
    }
}

/// The runtime that a process is shown under: the program if it is one, else the one that it has loaded.
pub fn main_runtime(clues: &Clues<'_>) -> Option<Detected> {
    let found = detect(clues);
    let of_program = program(file_name(clues.exe));
    found.iter().find(|detected| Some(detected.runtime) == of_program).or(found.first()).copied()
}

/// The version that paths say, with as many numbers as they have.
pub fn version_in_paths(runtime: Runtime, clues: &Clues<'_>) -> Option<String> {
    if runtime == Runtime::Erlang {
        // Paths have the emulator's numbers only.
        return None;
    }
    let files = clues.mapped_files.iter().map(String::as_str);
    let versions = std::iter::once(clues.exe).chain(files).flat_map(|path| {
        markers(runtime).iter().filter_map(move |marker| numbers_after(path, marker)).map(str::to_owned)
    });
    // The first of those with the most numbers.
    let longest = versions.reduce(|kept, other| if numbers(&other) > numbers(&kept) { other } else { kept });
    longest.filter(|version| version.len() <= MAX_BYTES)
}

fn numbers(version: &str) -> usize {
    version.split('.').count()
}

/// What stands before the version in paths of this runtime.
fn markers(runtime: Runtime) -> &'static [&'static str] {
    match runtime {
        Runtime::Node => &["/node/v", "/node/", "/node-v"],
        Runtime::CPython => &["/python", "libpython", "/cpython-", "/python/", "/.pyenv/versions/"],
        Runtime::Jvm | Runtime::OpenJ9 => &["/java-", "/jdk-", "-openjdk-"],
        Runtime::DotNet => &["/Microsoft.NETCore.App/"],
        Runtime::Php => &["/php-fpm", "/php-cgi", "/php", "libphp"],
        Runtime::Ruby => &["/libruby.so.", "/libruby-", "/ruby-", "/ruby"],
        Runtime::Wasmtime => &["/wasmtime-v"],
        Runtime::LuaJit => &["/luajit-"],
        Runtime::PyPy => &["/pypy", "libpypy"],
        Runtime::Deno | Runtime::V8 | Runtime::Bun | Runtime::Erlang => &[],
        Runtime::Numba | Runtime::Postgres | Runtime::Mono | Runtime::Qemu => &[],
    }
}

/// Files that say more exactly than paths which version it is, the best one first.
pub fn version_files(runtime: Runtime, clues: &Clues<'_>) -> Vec<VersionFile> {
    let file = |root: &str, name: &str, notation| VersionFile { path: format!("{root}/{name}"), notation };
    match runtime {
        Runtime::Node => {
            let root = above(clues.exe, 2);
            root.map(|root| file(root, "include/node/node_version.h", Notation::NodeHeader)).into_iter().collect()
        }
        Runtime::Jvm | Runtime::OpenJ9 => {
            let library = clues.mapped_files.iter().find(|path| file_name(path) == "libjvm.so");
            let roots = [above(clues.exe, 2)].into_iter();
            // lib/server/libjvm.so, in Java 8 lib/amd64/server/libjvm.so below jre.
            let roots = roots.chain([3, 4, 5].map(|levels| above(library?, levels)));
            roots.flatten().map(|root| file(root, "release", Notation::JavaRelease)).collect()
        }
        Runtime::Erlang => {
            let mut paths = std::iter::once(clues.exe).chain(clues.mapped_files.iter().map(String::as_str));
            let found = paths.find_map(|path| {
                let emulator: u32 = numbers_after(path, "/erts-")?.split('.').next()?.parse().ok()?;
                Some((path.split_once("/erts-")?.0, emulator.checked_add(12)?))
            });
            let found =
                found.map(|(root, release)| file(root, &format!("releases/{release}/OTP_VERSION"), Notation::Plain));
            found.into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// The path without its last components.
fn above(path: &str, levels: usize) -> Option<&str> {
    (0..levels).try_fold(path, |path, _| Some(path.rsplit_once('/')?.0))
}

/// The variable by which the official container image of a runtime says its version.
pub fn version_variable(runtime: Runtime) -> Option<&'static str> {
    match runtime {
        Runtime::Node => Some("NODE_VERSION"),
        Runtime::Deno => Some("DENO_VERSION"),
        Runtime::Bun => Some("BUN_VERSION"),
        Runtime::CPython => Some("PYTHON_VERSION"),
        Runtime::Jvm | Runtime::OpenJ9 => Some("JAVA_VERSION"),
        Runtime::DotNet => Some("DOTNET_VERSION"),
        Runtime::Php => Some("PHP_VERSION"),
        Runtime::Erlang => Some("OTP_VERSION"),
        Runtime::Ruby => Some("RUBY_VERSION"),
        Runtime::V8 | Runtime::Wasmtime | Runtime::LuaJit => None,
        Runtime::Numba | Runtime::Postgres | Runtime::Mono | Runtime::Qemu | Runtime::PyPy => None,
    }
}

/// The version that a variable of the environment says. Nothing else of the environment is looked at.
pub fn version_in_environment(environment: &[u8], variable: &str) -> Option<String> {
    let value = environment.split(|byte| *byte == 0).find_map(|entry| {
        let (name, value) = entry.split_at_checked(variable.len())?;
        (name == variable.as_bytes()).then_some(value)?.strip_prefix(b"=")
    })?;
    plausible(std::str::from_utf8(value).ok()?)
}

/// Digits first, then what versions are made of.
fn plausible(version: &str) -> Option<String> {
    let version = version.strip_prefix('v').unwrap_or(version);
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".+-_~".contains(&byte);
    let is_version =
        version.len() <= MAX_BYTES && version.starts_with(|c: char| c.is_ascii_digit()) && version.bytes().all(allowed);
    is_version.then(|| version.to_owned())
}
