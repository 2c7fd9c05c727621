//! Paths as real installations have them, and the flags they must lead to.

use super::*;

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

type Numbers = Option<(u32, u32)>;

fn detected(exe: &str, mapped: &[&str]) -> Vec<(Runtime, Numbers)> {
    let mapped_files = strings(mapped);
    let found = detect(&Clues { exe, mapped_files: &mapped_files, cmdline: &[] });
    found.iter().map(|one| (one.runtime, one.version.map(|version| (version.major, version.minor)))).collect()
}

fn advice_for(exe: &str, mapped: &[&str], cmdline: &[&str]) -> String {
    let (mapped_files, cmdline) = (strings(mapped), strings(cmdline));
    let clues = Clues { exe, mapped_files: &mapped_files, cmdline: &cmdline };
    let found = detect(&clues);
    let first = found.first().unwrap_or_else(|| panic!("{exe} is no runtime"));
    advise(first, &clues).to_string()
}

#[test]
fn programs_are_known_by_their_names() {
    let cases: &[(&str, Runtime, Numbers)] = &[
        ("/usr/bin/node", Runtime::Node, None),
        ("/usr/bin/nodejs (deleted)", Runtime::Node, None),
        ("/home/u/.deno/bin/deno", Runtime::Deno, None),
        ("/opt/app/electron", Runtime::V8, None),
        ("/usr/local/bin/bun", Runtime::Bun, None),
        ("/usr/bin/python3.13", Runtime::CPython, Some((3, 13))),
        ("/usr/bin/python3", Runtime::CPython, Some((3, 0))),
        ("/usr/lib/jvm/java-17-openjdk-amd64/bin/java", Runtime::Jvm, Some((17, 0))),
        ("/opt/jdk-21.0.2/bin/java", Runtime::Jvm, Some((21, 0))),
        ("/usr/bin/dotnet", Runtime::DotNet, None),
        ("/usr/bin/php8.2", Runtime::Php, Some((8, 2))),
        ("/usr/sbin/php-fpm8.2", Runtime::Php, Some((8, 2))),
        ("/usr/lib/erlang/erts-13.1.5/bin/beam.smp", Runtime::Erlang, Some((25, 0))),
        ("/usr/bin/wasmtime", Runtime::Wasmtime, None),
        ("/usr/bin/luajit-2.1.0", Runtime::LuaJit, None),
        ("/opt/rubies/ruby-3.3.1/bin/ruby", Runtime::Ruby, Some((3, 3))),
    ];
    for &(exe, runtime, version) in cases {
        assert_eq!(detected(exe, &[]), [(runtime, version)], "{exe}");
    }
}

#[test]
fn other_programs_are_none() {
    for exe in ["/usr/bin/nodered", "/usr/bin/pypy3", "/usr/bin/pythonw-wrapper", "/usr/bin/javac", "/usr/bin/bash", ""]
    {
        assert_eq!(detected(exe, &["/usr/lib/x86_64-linux-gnu/libc.so.6"]), [], "{exe}");
    }
}

#[test]
fn embedded_runtimes_are_known_by_their_libraries_and_come_first() {
    assert_eq!(
        detected("/usr/bin/python3.13", &["/venv/wasmtime/linux-x86_64/_libwasmtime.so"]),
        [(Runtime::Wasmtime, None), (Runtime::CPython, Some((3, 13))),]
    );
    assert_eq!(
        detected("/usr/sbin/nginx", &["/usr/local/openresty/luajit/lib/libluajit-5.1.so.2.1.0"]),
        [(Runtime::LuaJit, None)]
    );
    assert_eq!(
        detected("/opt/idea/bin/idea", &["/usr/lib/jvm/java-21-openjdk-amd64/lib/server/libjvm.so"]),
        [(Runtime::Jvm, Some((21, 0)))]
    );
    assert_eq!(
        detected("/app/server", &["/usr/share/dotnet/shared/Microsoft.NETCore.App/8.0.4/libcoreclr.so"]),
        [(Runtime::DotNet, Some((8, 0)))]
    );
    assert_eq!(
        detected("/usr/bin/uwsgi", &["/usr/lib/x86_64-linux-gnu/libpython3.12.so.1.0"]),
        [(Runtime::CPython, Some((3, 12)))]
    );
}

#[test]
fn openj9_is_not_taken_for_hotspot() {
    let mapped = ["/opt/java/lib/default/libj9vm29.so", "/opt/java/lib/server/libjvm.so"];
    assert_eq!(detected("/opt/java/bin/java", &mapped), [(Runtime::OpenJ9, None)]);
}

#[test]
fn the_version_may_stand_in_another_mapped_file() {
    let mapped = ["/usr/lib/python3.12/lib-dynload/_json.cpython-312-x86_64-linux-gnu.so"];
    assert_eq!(detected("/usr/bin/python", &mapped), [(Runtime::CPython, Some((3, 12)))]);
}

#[test]
fn every_runtime_gets_its_exact_flag() {
    let cases = [
        ("/usr/bin/node", "node --perf-prof --perf-prof-unwinding-info --interpreted-frames-native-stack app.js"),
        ("/usr/bin/deno", "--v8-flags=--perf-prof,--perf-prof-unwinding-info,--interpreted-frames-native-stack"),
        ("/usr/bin/electron", "--js-flags=\"--perf-prof"),
        ("/usr/bin/bun", "BUN_JSC_useJITDump=1"),
        ("/usr/bin/python3.13", "python3 -X perf_jit app.py"),
        ("/usr/bin/python3.12", "python3.12 -X perf app.py"),
        ("/usr/bin/python3.11", "cannot announce"),
        ("/usr/bin/python", "3.12: `-X perf`"),
        ("/opt/jdk-21.0.2/bin/java", "jcmd PID Compiler.perfmap"),
        ("/opt/jdk-11.0.2/bin/java", "-agentpath:/usr/lib/libperf-jvmti.so -XX:+PreserveFramePointer"),
        ("/usr/bin/dotnet", "DOTNET_PerfMapEnabled=1"),
        (
            "/usr/bin/php8.2",
            "php -d opcache.enable_cli=1 -d opcache.jit_buffer_size=64M -d opcache.jit=1205 -d opcache.jit_debug=0x20",
        ),
        ("/usr/lib/erlang/erts-13.1.5/bin/beam.smp", "erl +JPperf true"),
        ("/usr/lib/erlang/erts-11.2/bin/beam.smp", "no JIT"),
        ("/usr/bin/wasmtime", "--profile=jitdump"),
        ("/usr/bin/luajit", "XCFLAGS=-DLUAJIT_USE_PERFTOOLS"),
        ("/opt/rubies/ruby-3.3.1/bin/ruby", "--yjit-perf"),
        ("/opt/rubies/ruby-3.2.1/bin/ruby", "cannot announce"),
    ];
    for (exe, flag) in cases {
        let advice = advice_for(exe, &[], &[]);
        assert!(advice.contains(flag), "{exe}: {advice}");
        assert!(!advice.contains("  ") && !advice.contains('\n'), "{advice:?}");
    }
}

#[test]
fn a_flag_already_given_is_not_asked_for_again() {
    let cases: [(&str, &[&str]); 4] = [
        ("/usr/bin/node", &["node", "--perf_prof", "app.js"]),
        ("/usr/bin/python3.13", &["python3.13", "-X", "perf_jit", "app.py"]),
        ("/usr/bin/python3.13", &["python3.13", "-Xperf", "app.py"]),
        ("/usr/lib/erlang/erts-13.1.5/bin/beam.smp", &["beam.smp", "-JPperf", "true"]),
    ];
    for (exe, cmdline) in cases {
        let advice = advice_for(exe, &[], cmdline);
        assert!(advice.contains("was started with a flag"), "{advice}");
    }
    let advice = advice_for("/usr/bin/python3.13", &[], &["python3.13", "perform.py", "/srv/perf/app.py"]);
    assert!(advice.contains("-X perf_jit"), "{advice}");
}

#[test]
fn each_runtime_of_a_process_gets_a_sentence_and_an_unknown_one_the_general_advice() {
    let files = strings(&["/venv/wasmtime/linux-x86_64/_libwasmtime.so"]);
    let advice = for_process(Some(std::path::Path::new("/usr/bin/python3.13")), &[], &files);
    assert!(advice.contains("--profile=jitdump") && advice.contains("-X perf_jit"), "{advice}");
    let general = for_process(None, &[], &[]);
    assert!(general.contains("/tmp/perf-PID.map"), "{general}");
}
