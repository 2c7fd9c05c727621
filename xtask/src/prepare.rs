//! `prepare`: finds the runtimes that the live tests profile, and installs what is missing.
//!
//! Each runtime is handed to the tests as an environment variable with an absolute path, so that the tests look for
//! nothing themselves. A variable that is already set is taken as it is.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::command::{self, Root};
use crate::workspace::Workspace;

/// LLVM's own reader of GSYM, of two versions.
pub(crate) const GSYMUTIL: &str = "gsymutil";
/// Debian 12 has both; together 90 MB to fetch.
const LLVM_VERSIONS: [u32; 2] = [14, 19];

/// The variable that says where `erl_nif.h` is.
const ERLANG_HEADERS: &str = "JITPROF_ERL_INCLUDE";

/// The wheel that the expectations were measured with.
const WASMTIME_WHEEL: &str = "wasmtime==50.0.1";
/// LLVM 22 without frame pointers, announced through both of Intel's interfaces. 305 MB with numpy.
const NUMBA_WHEEL: &str = "numba==0.68.1";
/// Brings the source of the JIT profiling API's static part.
const ITTAPI_CRATE: &str = "ittapi-sys = \"=0.5.0\"";

/// Engines that ask datasets, and a server that speaks S3; the versions that the queries were tested with. 400 MB.
const ENGINE_WHEELS: [(&str, &str); 3] =
    [("duckdb", "duckdb==2.0.0"), ("chdb", "chdb==4.4.0"), ("moto.server", "moto[server]==5.2.5")];

/// Drives Chromium, and finds what is not accessible; the versions that the page was tested with.
const BROWSER_MODULES: [&str; 2] = ["playwright-core@1.65.1", "axe-core@4.14.1"];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only these runtimes
    #[arg(value_parser = RUNTIMES.map(|runtime| runtime.name))]
    runtimes: Vec<String>,
}

/// A runtime that live tests need.
pub(crate) struct Runtime {
    /// What `--skip` and the summary call it.
    pub(crate) name: &'static str,
    find: fn(&Workspace) -> Result<Variables>,
}

/// Environment variables for the live tests.
pub(crate) type Variables = Vec<(&'static str, OsString)>;

/// All of them, in the order in which they are prepared.
pub(crate) const RUNTIMES: [Runtime; 20] = [
    Runtime { name: "node", find: node },
    Runtime { name: "python", find: python },
    Runtime { name: "older_python", find: older_python },
    Runtime { name: "wasmtime", find: wasmtime },
    Runtime { name: "php", find: php },
    Runtime { name: "php_fpm", find: php_fpm },
    Runtime { name: "ruby", find: ruby },
    Runtime { name: "erlang", find: erlang },
    Runtime { name: "java", find: java },
    Runtime { name: "newer_java", find: newer_java },
    Runtime { name: "native", find: native },
    Runtime { name: "golang", find: golang },
    Runtime { name: "llvm", find: llvm },
    Runtime { name: "numba", find: numba },
    Runtime { name: "ittapi", find: ittapi },
    Runtime { name: "onednn", find: onednn },
    Runtime { name: "linux_perf", find: linux_perf },
    Runtime { name: GSYMUTIL, find: gsymutil },
    Runtime { name: "browser", find: browser },
    Runtime { name: "tmux", find: tmux },
];

impl Runtime {
    /// Finds or installs it and returns the variables that lead tests to it.
    ///
    /// # Errors
    /// When it is not there and cannot be installed; the error says what to install.
    pub(crate) fn prepare(&self, workspace: &Workspace) -> Result<Variables> {
        (self.find)(workspace)
    }
}

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let wanted =
        |runtime: &&Runtime| arguments.runtimes.is_empty() || arguments.runtimes.iter().any(|n| n == runtime.name);
    let mut failed = Vec::new();
    for runtime in RUNTIMES.iter().filter(wanted) {
        match runtime.prepare(workspace) {
            Ok(variables) => {
                for (name, value) in variables {
                    println!("{name}={}", value.to_string_lossy());
                }
            }
            Err(error) => {
                eprintln!("error: {}: {error:#}", runtime.name);
                failed.push(runtime.name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("not ready: {}", failed.join(", "));
    }
    Ok(())
}

fn node(_: &Workspace) -> Result<Variables> {
    let node = program("JITPROF_NODE", "node", &["nodejs"])?;
    let mut options = Command::new(&node);
    if !command::output(options.arg("--v8-options"))?.contains("--interpreted-frames-native-stack") {
        bail!("{} is too old; install Node 20 or later, or set JITPROF_NODE", node.display());
    }
    Ok(vec![("JITPROF_NODE", node.into())])
}

fn php(_: &Workspace) -> Result<Variables> {
    let php = program("JITPROF_PHP", "php", &["php-cli"])?;
    let modules = command::output(Command::new(&php).arg("-v"))?;
    if !modules.contains("OPcache") {
        bail!("{} has no opcache, which is PHP's JIT; install php-opcache, or set JITPROF_PHP", php.display());
    }
    Ok(vec![("JITPROF_PHP", php.into())])
}

/// Of the same version as the command line's.
fn php_fpm(_: &Workspace) -> Result<Variables> {
    const VARIABLE: &str = "JITPROF_PHP_FPM";
    if let Some(given) = std::env::var_os(VARIABLE) {
        return Ok(vec![(VARIABLE, given)]);
    }
    let php = program("JITPROF_PHP", "php", &["php-cli"])?;
    let says = "echo PHP_MAJOR_VERSION, '.', PHP_MINOR_VERSION;";
    let version = command::output(Command::new(&php).args(["-r", says]))?;
    let version = version.trim();
    let fpm = program(VARIABLE, &format!("php-fpm{version}"), &[&format!("php{version}-fpm")])?;
    Ok(vec![(VARIABLE, fpm.into())])
}

/// 3.1, whose frames are known.
fn ruby(_: &Workspace) -> Result<Variables> {
    let ruby = program("JITPROF_RUBY", "ruby", &["ruby"])?;
    let version = command::output(Command::new(&ruby).arg("--version"))?;
    if !version.starts_with("ruby 3.1.") {
        bail!("{} is not Ruby 3.1; install that, or set JITPROF_RUBY", ruby.display());
    }
    Ok(vec![("JITPROF_RUBY", ruby.into())])
}

fn erlang(_: &Workspace) -> Result<Variables> {
    let erl = program("JITPROF_ERL", "erl", &["erlang-base"])?;
    let erlc = program("JITPROF_ERLC", "erlc", &["erlang-base"])?;
    let headers = erlang_headers(&erl)?;
    Ok(vec![("JITPROF_ERL", erl.into()), ("JITPROF_ERLC", erlc.into()), (ERLANG_HEADERS, headers.into())])
}

/// Where the header is that functions in C are compiled with that Erlang calls.
fn erlang_headers(erl: &Path) -> Result<PathBuf> {
    if let Some(given) = std::env::var_os(ERLANG_HEADERS) {
        return Ok(given.into());
    }
    let root =
        command::output(Command::new(erl).args(["-noshell", "-eval", "io:put_chars(code:root_dir()), halt()."]))?;
    let headers = Path::new(root.trim()).join("usr/include");
    let header = headers.join("erl_nif.h");
    if !header.is_file() {
        let missing = || format!("there is no {}; set {ERLANG_HEADERS} to where it is", header.display());
        apt_install(&["erlang-dev"]).with_context(missing)?;
        ensure!(header.is_file(), missing());
    }
    Ok(headers)
}

/// JDK 17 or later: older ones do not run a program from its source, or do not say where they keep their code.
fn java(_: &Workspace) -> Result<Variables> {
    Ok(vec![("JITPROF_JAVA", program("JITPROF_JAVA", "java", &["openjdk-17-jdk-headless"])?.into())])
}

/// JDK 21 or later, the first with virtual threads: one of those that are installed.
fn newer_java(_: &Workspace) -> Result<Variables> {
    const VARIABLE: &str = "JITPROF_NEWER_JAVA";
    const VIRTUAL_THREADS: u32 = 21;
    if let Some(given) = std::env::var_os(VARIABLE) {
        return Ok(vec![(VARIABLE, given)]);
    }
    let installed = std::fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = installed.map(|jdk| jdk.path().join("bin/java")).collect();
    found.sort();
    found.extend(command::in_path("java"));
    // `openjdk 21.0.2 2024-01-16`
    let version = |java: &PathBuf| {
        let said = command::output(Command::new(java).arg("--version")).ok()?;
        said.split_whitespace().nth(1)?.split(['.', '-', '+']).next()?.parse::<u32>().ok()
    };
    let is_new = |java: &PathBuf| java.is_file() && version(java).is_some_and(|version| version >= VIRTUAL_THREADS);
    let java = found.into_iter().find(is_new).with_context(|| {
        format!(
            "there is no JDK {VIRTUAL_THREADS} or later in /usr/lib/jvm; install one, or set {VARIABLE} to its java"
        )
    })?;
    Ok(vec![(VARIABLE, java.into())])
}

/// Compilers of C and C++, which tests call by their usual names.
fn native(_: &Workspace) -> Result<Variables> {
    program("CC", "cc", &["gcc", "libc6-dev"])?;
    program("CXX", "c++", &["g++"])?;
    Ok(Vec::new())
}

fn golang(_: &Workspace) -> Result<Variables> {
    Ok(vec![("JITPROF_GO", program("JITPROF_GO", "go", &["golang-go"])?.into())])
}

/// LLVM 14: only MCJIT registers the listener that writes jitdumps, and Debian's library has it.
fn llvm(_: &Workspace) -> Result<Variables> {
    let clang = program("JITPROF_CLANG", "clang-14", &["clang-14"])?;
    let lli = program("JITPROF_LLI", "lli-14", &["llvm-14-runtime"])?;
    Ok(vec![("JITPROF_CLANG", clang.into()), ("JITPROF_LLI", lli.into())])
}

fn gsymutil(_: &Workspace) -> Result<Variables> {
    const VARIABLE: &str = "JITPROF_GSYMUTIL";
    if let Some(given) = std::env::var_os(VARIABLE) {
        return Ok(vec![(VARIABLE, given)]);
    }
    let tools = LLVM_VERSIONS.map(|version| PathBuf::from(format!("/usr/lib/llvm-{version}/bin/llvm-gsymutil")));
    for (version, tool) in LLVM_VERSIONS.iter().zip(&tools) {
        if !tool.is_file() {
            apt_install(&[&format!("llvm-{version}")])
                .with_context(|| format!("there is no {}; set {VARIABLE} to what is there", tool.display()))?;
        }
    }
    Ok(vec![(VARIABLE, tools.map(|tool| tool.display().to_string()).join(":").into())])
}

/// The one that most tests run; and with colons it and pyenv's interpreters of the versions just before, those that are there.
fn python(_: &Workspace) -> Result<Variables> {
    let python = python_with_perf_jit()?;
    let before = ["3.11", "3.12"].iter().flat_map(|version| pyenv_python(version));
    let all = std::env::join_paths(before.chain([python.clone()]))?;
    Ok(vec![("JITPROF_PYTHON", python.into()), ("JITPROF_PYTHONS", all)])
}

/// pyenv's interpreters of the versions in which each function has a native frame, those that are there, with colons.
fn older_python(_: &Workspace) -> Result<Variables> {
    const VARIABLE: &str = "JITPROF_OLDER_PYTHONS";
    if let Some(given) = std::env::var_os(VARIABLE) {
        return Ok(vec![(VARIABLE, given)]);
    }
    let found: Vec<PathBuf> = ["3.8", "3.9", "3.10"].iter().flat_map(|version| pyenv_python(version)).collect();
    if found.is_empty() {
        bail!("pyenv has no Python 3.8 to 3.10; run `pyenv install 3.10`, or set {VARIABLE} to what is there");
    }
    Ok(vec![(VARIABLE, std::env::join_paths(found)?)])
}

/// A CPython of 3.13 or later on Linux that really writes a jitdump.
pub(crate) fn python_with_perf_jit() -> Result<PathBuf> {
    let mut candidates: Vec<PathBuf> =
        ["JITPROF_PYTHON", "PY"].iter().filter_map(std::env::var_os).map(PathBuf::from).collect();
    candidates.extend(pyenv_pythons());
    candidates.extend(["python3.14", "python3.13", "python3"].iter().filter_map(|name| command::in_path(name)));
    // It takes its own dump away again.
    let writes_a_dump = "import os, sys; sys.exit(1) if sys.version_info < (3, 13) else None; \
         os.remove(f'/tmp/jit-{os.getpid()}.dump')";
    candidates
        .into_iter()
        .find(|python| command::succeeds(Command::new(python).args(["-X", "perf_jit", "-c", writes_a_dump])))
        .context(
            "no CPython with `-X perf_jit` was found in PATH or under pyenv; run `pyenv install 3.13`, or set \
             JITPROF_PYTHON to a CPython of 3.13 or later",
        )
}

/// pyenv's interpreter of a version that begins so.
pub(crate) fn pyenv_python(version: &str) -> Result<PathBuf> {
    let is_of = |python: &&PathBuf| {
        let name = python.ancestors().nth(2).and_then(|folder| folder.file_name()).unwrap_or_default();
        name.to_string_lossy().strip_prefix(version).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let pythons = pyenv_pythons();
    let found = pythons.iter().rfind(is_of);
    found.cloned().with_context(|| format!("pyenv has no Python {version}; run `pyenv install {version}`"))
}

/// pyenv's interpreters; its shims answer for one version only.
fn pyenv_pythons() -> Vec<PathBuf> {
    let root = std::env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pyenv")));
    let Some(Ok(versions)) = root.map(|root| std::fs::read_dir(root.join("versions"))) else {
        return Vec::new();
    };
    let mut pythons: Vec<PathBuf> = versions.flatten().map(|version| version.path().join("bin/python3")).collect();
    // The lowest version that will do is the one the expectations were measured with.
    pythons.sort();
    pythons
}

fn wasmtime(workspace: &Workspace) -> Result<Variables> {
    python_with(workspace, "JITPROF_WASMTIME_PYTHON", "wasmtime", WASMTIME_WHEEL)
}

fn numba(workspace: &Workspace) -> Result<Variables> {
    python_with(workspace, "JITPROF_NUMBA_PYTHON", "numba", NUMBA_WHEEL)
}

/// A virtual environment with the wheel: Debian's own Python refuses to install outside of one.
fn python_with(workspace: &Workspace, variable: &'static str, module: &str, wheel: &str) -> Result<Variables> {
    let imports = |python: &Path| command::succeeds(Command::new(python).args(["-c", &format!("import {module}")]));
    if let Some(given) = std::env::var_os(variable) {
        if !imports(Path::new(&given)) {
            bail!("{} cannot import {module}; unset {variable} or correct it", given.to_string_lossy());
        }
        return Ok(vec![(variable, given)]);
    }
    let venv = workspace.target.join("venv");
    let python = venv.join("bin/python");
    if !imports(&python) {
        let advice = || {
            format!(
                "install Python's venv module (Debian: python3-venv), or set {variable} to a Python with the \
                 {module} wheel"
            )
        };
        if !command::succeeds(Command::new(&python).args(["-m", "pip", "--version"])) {
            let base = program("PY", "python3", &["python3"])?;
            if !command::succeeds(Command::new(&base).args(["-c", "import venv, ensurepip"])) {
                apt_install(&["python3-venv"]).with_context(advice)?;
            }
            command::run(Command::new(&base).args(["-m", "venv", "--clear"]).arg(&venv)).with_context(advice)?;
        }
        command::progress(&format!("installing the {module} wheel"));
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel]);
        command::fetch(&mut pip).with_context(advice)?;
    }
    Ok(vec![(variable, python.into())])
}

/// Of `cargo xtask fleet`.
pub(crate) fn engines(workspace: &Workspace) -> Result<Variables> {
    let mut found = Vec::new();
    for (module, wheel) in ENGINE_WHEELS {
        found = python_with(workspace, "JITPROF_FLEET_PYTHON", module, wheel)?;
    }
    Ok(found)
}

/// C programs that announce code, linked with the API's own static parts.
fn ittapi(workspace: &Workspace) -> Result<Variables> {
    const METHODS: &str = "JITPROF_JIT_API";
    const MODULES: &str = "JITPROF_ITT_MODULE";
    let folder = workspace.target.join("ittapi");
    let built = |variable: &'static str, source: &str, part: &str| -> Result<(&'static str, OsString)> {
        if let Some(given) = std::env::var_os(variable) {
            return Ok((variable, given));
        }
        let library = ittapi_sources(workspace, &folder)
            .with_context(|| format!("the crate ittapi-sys cannot be fetched; set {variable} to a built {source}.c"))?;
        let compiler = program("CC", "cc", &["gcc", "libc6-dev"])?;
        let (parts, binary, targets) = (library.join("src/ittnotify"), folder.join(source), workspace.targets());
        let mut build = Command::new(compiler);
        build.current_dir(&targets).arg(command::prefix_map(&targets, "tests/targets"));
        build.arg(command::prefix_map(&library, "ittapi"));
        build.args(["-O1", "-g", "-fno-omit-frame-pointer", "-I"]).arg(library.join("include")).arg("-I").arg(&parts);
        build.arg(targets.join("jit_api").join(source).with_extension("c")).arg(parts.join(part));
        command::run(build.arg("-o").arg(&binary).args(["-ldl", "-lpthread"]))?;
        Ok((variable, binary.into()))
    };
    Ok(vec![built(METHODS, "exercise", "jitprofiling.c")?, built(MODULES, "module", "ittnotify_static.c")?])
}

/// The API's own sources, from the crate that brings them.
fn ittapi_sources(workspace: &Workspace, folder: &Path) -> Result<PathBuf> {
    let library = folder.join("vendor/ittapi-sys/c-library");
    if !library.join("include/jitprofiling.h").is_file() {
        // A package of its own, whose only purpose is to be vendored: the crate's source is what is wanted.
        let manifest = format!(
            "[package]\nname = \"sources\"\nversion = \"0.0.0\"\nedition = \"2021\"\n[lib]\npath = \"lib.rs\"\n\
             [dependencies]\n{ITTAPI_CRATE}\n[workspace]\n"
        );
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(folder.join("lib.rs"), ""))
            .and_then(|()| std::fs::write(folder.join("Cargo.toml"), manifest))
            .with_context(|| format!("cannot write to {}", folder.display()))?;
        let mut cargo = workspace.cargo();
        command::fetch(cargo.current_dir(folder).args(["vendor", "--quiet", "vendor"]))?;
    }
    Ok(library)
}

/// A program with oneDNN's kernels; Debian's package is version 2.
fn onednn(workspace: &Workspace) -> Result<Variables> {
    const VARIABLE: &str = "JITPROF_ONEDNN";
    if let Some(given) = std::env::var_os(VARIABLE) {
        return Ok(vec![(VARIABLE, given)]);
    }
    let compiler = program("CXX", "c++", &["g++"])?;
    if !Path::new("/usr/include/dnnl.hpp").is_file() {
        apt_install(&["libdnnl-dev"])
            .with_context(|| format!("there is no oneDNN; install it, or set {VARIABLE} to a built onednn/burn.cpp"))?;
    }
    let binary = workspace.target.join("onednn-burn");
    let (mut build, targets) = (Command::new(compiler), workspace.targets());
    build.current_dir(&targets).arg(command::prefix_map(&targets, "tests/targets"));
    build.args(["-O1", "-g"]).arg(targets.join("onednn/burn.cpp")).arg("-o").arg(&binary).arg("-ldnnl");
    command::run(&mut build)?;
    Ok(vec![(VARIABLE, binary.into())])
}

/// Chromium, and the modules that drive it.
fn browser(workspace: &Workspace) -> Result<Variables> {
    const VARIABLE: &str = "JITPROF_BROWSER_MODULES";
    // Without a font a page has no text, and pictures of it show nothing.
    let chromium = program("JITPROF_CHROMIUM", "chromium", &["chromium", "fonts-dejavu-core"])?;
    let chromium = ("JITPROF_CHROMIUM", chromium.into());
    if let Some(given) = std::env::var_os(VARIABLE) {
        return Ok(vec![chromium, (VARIABLE, given)]);
    }
    let folder = workspace.target.join("browser");
    let modules = folder.join("node_modules");
    if !modules.join("playwright-core/package.json").is_file() || !modules.join("axe-core/axe.min.js").is_file() {
        let npm = program("JITPROF_NPM", "npm", &["npm"])?;
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        command::progress("installing the modules that drive the browser");
        let mut install = Command::new(npm);
        install.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--prefix"]).arg(&folder);
        command::fetch(install.args(BROWSER_MODULES))
            .with_context(|| format!("npm cannot fetch them; set {VARIABLE} to a node_modules that has them"))?;
    }
    Ok(vec![chromium, (VARIABLE, modules.into())])
}

/// A terminal whose screen can be read.
fn tmux(_: &Workspace) -> Result<Variables> {
    Ok(vec![("JITPROF_TMUX", program("JITPROF_TMUX", "tmux", &["tmux"])?.into())])
}

fn linux_perf(_: &Workspace) -> Result<Variables> {
    Ok(vec![("JITPROF_PERF", program("JITPROF_PERF", "perf", &["linux-perf"])?.into())])
}

/// The program that `variable` names, or the one in `PATH`, or the one that Debian's packages bring.
pub(crate) fn program(variable: &str, name: &str, packages: &[&str]) -> Result<PathBuf> {
    if let Some(given) = std::env::var_os(variable) {
        return Ok(given.into());
    }
    if let Some(found) = command::in_path(name) {
        return Ok(found);
    }
    apt_install(packages)
        .with_context(|| format!("there is no `{name}`; install it, or set {variable} to its path"))?;
    command::in_path(name)
        .with_context(|| format!("{} is installed, but there is no `{name}` in PATH", packages.join(" ")))
}

fn apt_install(packages: &[&str]) -> Result<()> {
    let Some(apt) = command::in_path("apt-get") else {
        bail!("this system has no apt-get to install {} with", packages.join(" "));
    };
    let apt_get = |arguments: &[&str]| -> Result<Command> {
        let root = Root::detect();
        let mut command = root.command(&apt).with_context(|| {
            format!("this needs root: run `sudo apt-get install -y --no-install-recommends {}`", packages.join(" "))
        })?;
        // Its words on stdout would stand among the variables that `prepare` prints.
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdout(std::io::stderr());
        Ok(command)
    };
    command::progress(&format!("installing {}", packages.join(" ")));
    let install = [&["install", "-y", "-qq", "--no-install-recommends"], packages].concat();
    if command::run(&mut apt_get(&install)?).is_ok() {
        return Ok(());
    }
    // A fresh image has no package lists, or old ones.
    command::fetch(&mut apt_get(&["update", "-qq"])?)?;
    command::fetch(&mut apt_get(&install)?)
}
