//! Whether options ask a runtime to announce its code.
//!
//! Options are read as the runtime reads them, as far as that takes: whole words with their values, up to what it is to
//! run. Arguments of the program itself ask for nothing, and neither does a path that looks like an option.

use super::runtime::Runtime;

/// The option that asks, without its value.
pub(super) fn on_command_line(runtime: Runtime, cmdline: &[String]) -> Option<&'static str> {
    let words: Vec<&str> = cmdline.iter().skip(1).map(String::as_str).collect();
    let end = words.iter().position(|word| ends_options(runtime, word)).unwrap_or(words.len());
    among(runtime, &words[..end])
}

/// The same of a variable's words.
pub(super) fn in_variable(runtime: Runtime, value: &str) -> Option<&'static str> {
    // Deno's has commas.
    let words: Vec<&str> = value.split([' ', '\t', '\n', ',']).filter(|word| !word.is_empty()).collect();
    among(runtime, &words)
}

fn among(runtime: Runtime, words: &[&str]) -> Option<&'static str> {
    let mut places = words.iter().enumerate();
    places.find_map(|(place, word)| asks(runtime, word, words.get(place + 1).copied().unwrap_or_default()))
}

/// Whether a word is what the runtime is to run, or the end of its options.
fn ends_options(runtime: Runtime, word: &str) -> bool {
    let endings: &[&str] = match runtime {
        Runtime::Node | Runtime::Deno | Runtime::V8 => &[".js", ".mjs", ".cjs", ".ts", ".mts", ".cts"],
        Runtime::CPython => &[".py", ".pyc", ".pyz"],
        Runtime::Php => &[".php", ".phar"],
        Runtime::Ruby => &[".rb", ".ru"],
        Runtime::Mono => &[".exe", ".dll"],
        Runtime::Jvm | Runtime::OpenJ9 => &[".jar", ".java"],
        _ => return false,
    };
    let is_command = runtime == Runtime::CPython && matches!(word, "-m" | "-c");
    // A JVM's class path is no option, and ends like what is run; the options that matter begin with a dash, behind it too.
    let is_file = !word.starts_with('-') && endings.iter().any(|ending| word.ends_with(ending)) && !word.contains(':');
    is_command || word == "--" || is_file
}

/// Whether an option, with the word behind it, asks; its name if so.
fn asks(runtime: Runtime, word: &str, next: &str) -> Option<&'static str> {
    let is_one_of = |names: &'static [&'static str]| {
        // V8 takes - and _ alike, and a value behind =.
        let name = word.split('=').next().unwrap_or(word).replace('_', "-");
        names.iter().copied().find(|known| *known == name)
    };
    match runtime {
        Runtime::Node | Runtime::V8 => is_one_of(&["--perf-prof", "--perf-basic-prof"]),
        Runtime::Deno => {
            let flags = word.strip_prefix("--v8-flags=").unwrap_or(word);
            flags.split(',').find_map(|flag| asks(Runtime::V8, flag, ""))
        }
        // As a value of -X; `perf` alone may be anything.
        Runtime::CPython => match (word, next) {
            ("-Xperf", _) | ("-X", "perf") => Some("-X perf"),
            ("-Xperf_jit", _) | ("-X", "perf_jit") => Some("-X perf_jit"),
            _ => None,
        },
        Runtime::Jvm if word.starts_with("-agentpath:") || word.starts_with("-agentlib:") => {
            word.contains("perf-jvmti").then_some("libperf-jvmti")
        }
        Runtime::Jvm => (word == "-XX:+DumpPerfMapAtExit").then_some("DumpPerfMapAtExit"),
        Runtime::OpenJ9 => (word == "-XX:+PerfTool").then_some("+PerfTool"),
        Runtime::Php => {
            const ANNOUNCES: u64 = 0x10 | 0x20;
            let setting = word.strip_prefix("-d").unwrap_or(word).strip_prefix("opcache.jit_debug=")?;
            (number(setting)? & ANNOUNCES != 0).then_some("opcache.jit_debug")
        }
        // `erl +JPperf true`; its emulator is started with a dash instead.
        Runtime::Erlang => (matches!(word, "+JPperf" | "-JPperf") && next != "false").then_some("JPperf"),
        Runtime::Wasmtime => {
            let profiler = if word == "--profile" { next } else { word.strip_prefix("--profile=")? };
            matches!(profiler, "jitdump" | "perfmap").then_some("--profile")
        }
        Runtime::Ruby => is_one_of(&["--yjit-perf", "--zjit-perf"]),
        Runtime::Postgres => {
            let setting = word.strip_prefix("-c").unwrap_or(word).trim_start_matches('-').replace('-', "_");
            let value = setting.strip_prefix("jit_profiling_support")?;
            matches!(value, "" | "=on" | "=true" | "=yes" | "=1").then_some("jit_profiling_support")
        }
        Runtime::Mono => is_one_of(&["--jitmap", "--jitdump"]),
        Runtime::Qemu => is_one_of(&["-perfmap", "-jitdump", "--perfmap", "--jitdump"]),
        Runtime::Bun | Runtime::DotNet | Runtime::LuaJit | Runtime::Numba | Runtime::PyPy => None,
    }
}

/// A number as PHP's settings have them: hexadecimal, octal or decimal.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(&text[1..], 8).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_asked(runtime: Runtime, line: &str) -> bool {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        on_command_line(runtime, &words).is_some()
    }

    #[test]
    fn options_that_ask_are_found() {
        for (runtime, line) in [
            (Runtime::Node, "node --require ./a --perf-prof app.js"),
            (Runtime::V8, "d8 --perf_basic_prof app.js"),
            (Runtime::Deno, "deno run --v8-flags=--perf-prof,--perf-prof-unwinding-info app.ts"),
            (Runtime::CPython, "python3 -B -X perf_jit app.py"),
            (Runtime::CPython, "python3 -Xperf -m http.server"),
            (Runtime::Jvm, "java -cp a.jar:b.jar -agentpath:/usr/lib/libperf-jvmti.so -jar app.jar"),
            (Runtime::Jvm, "java -XX:+DumpPerfMapAtExit Main"),
            (Runtime::OpenJ9, "java -XX:+PerfTool Main"),
            (Runtime::Php, "php -d opcache.jit_debug=0x20 app.php"),
            (Runtime::Php, "php -dopcache.jit_debug=16 app.php"),
            (Runtime::Erlang, "beam.smp -S 1 -JPperf true -- -root /usr/lib/erlang"),
            (Runtime::Wasmtime, "wasmtime run --profile jitdump app.wasm"),
            (Runtime::Wasmtime, "wasmtime run --profile=perfmap app.wasm"),
            (Runtime::Ruby, "ruby --yjit --yjit-perf=map app.rb"),
            (Runtime::Postgres, "postgres -c jit_profiling_support=on"),
            (Runtime::Postgres, "postgres --jit-profiling-support=1"),
            (Runtime::Mono, "mono --jitmap app.exe"),
            (Runtime::Qemu, "qemu-x86_64 -jitdump ./a.out"),
        ] {
            assert!(is_asked(runtime, line), "{line}");
        }
    }

    #[test]
    fn what_only_looks_like_it_asks_for_nothing() {
        for (runtime, line) in [
            (Runtime::Node, "node app.js --perf-prof"),
            (Runtime::Node, "/opt/--perf-prof/node app.js"),
            (Runtime::Deno, "deno run app.ts --v8-flags=--perf-prof"),
            (Runtime::CPython, "python3 app.py -X perf"),
            (Runtime::CPython, "python3 -m bench -X perf"),
            (Runtime::Jvm, "java -XX:-DumpPerfMapAtExit Main"),
            (Runtime::Jvm, "java -jar app.jar -agentpath:/usr/lib/libperf-jvmti.so"),
            (Runtime::OpenJ9, "java -XX:-PerfTool Main"),
            (Runtime::Php, "php -d opcache.jit_debug=0 app.php"),
            (Runtime::Php, "php -d opcache.jit_debug=0x1 app.php"),
            (Runtime::Php, "php app.php opcache.jit_debug=0x20"),
            (Runtime::Erlang, "beam.smp -JPperf false -- -root /usr/lib/erlang"),
            (Runtime::Wasmtime, "wasmtime run /srv/jitdump-test/app.wasm"),
            (Runtime::Wasmtime, "wasmtime run --profile=vtune app.wasm"),
            (Runtime::Ruby, "ruby app.rb --yjit-perf"),
            (Runtime::Postgres, "postgres -c jit_profiling_support=off"),
            (Runtime::Mono, "mono app.exe --jitmap"),
        ] {
            assert!(!is_asked(runtime, line), "{line}");
        }
    }
}
