//! Paths as real installations have them, and the flags they must lead to.

use super::*;

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

type Numbers = Option<(u32, u32)>;

fn detected(exe: &str, mapped: &[&str]) -> Vec<(Runtime, Numbers)> {
    let mapped_files = strings(mapped);
    let found = detect(&Clues { exe, mapped_files: &mapped_files, ..Clues::default() });
    found.iter().map(|one| (one.runtime, one.version.map(|version| (version.major, version.minor)))).collect()
}

fn advice_for(exe: &str, mapped: &[&str], cmdline: &[&str]) -> String {
    let (mapped_files, cmdline) = (strings(mapped), strings(cmdline));
    let clues = Clues { exe, mapped_files: &mapped_files, cmdline: &cmdline, ..Clues::default() };
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
        ("/usr/lib/node_modules/bun/bin/bun.exe", Runtime::Bun, None),
        ("/usr/bin/mono-sgen", Runtime::Mono, None),
        ("/usr/bin/qemu-aarch64-static", Runtime::Qemu, None),
        ("/usr/bin/qemu-system-x86_64", Runtime::Qemu, None),
        ("/usr/bin/pypy3.10", Runtime::PyPy, Some((3, 10))),
    ];
    for &(exe, runtime, version) in cases {
        assert_eq!(detected(exe, &[]), [(runtime, version)], "{exe}");
    }
}

#[test]
fn other_programs_are_none() {
    for exe in [
        "/usr/bin/nodered",
        "/usr/bin/qemu-img",
        "/usr/bin/monodevelop",
        "/usr/lib/postgresql/15/bin/postgres",
        "/usr/bin/pythonw-wrapper",
        "/usr/bin/javac",
        "/usr/bin/bash",
        "",
    ] {
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
    // A program in a single file has no libcoreclr.so.
    assert_eq!(detected("/app/server", &["/memfd:doublemapper"]), [(Runtime::DotNet, None)]);
    assert_eq!(
        detected("/usr/lib/postgresql/15/bin/postgres", &["/usr/lib/postgresql/15/lib/llvmjit.so"]),
        [(Runtime::Postgres, None)]
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
        ("/usr/bin/python3.11", "a library that it has loaded"),
        ("/usr/bin/python3.15", "PYTHON_JIT=0 python3 -X perf_jit app.py"),
        ("/usr/bin/pypy3", "no version of it can"),
        ("/usr/bin/qemu-aarch64", "QEMU_JITDUMP=1"),
        ("/usr/bin/mono", "mono --jitmap"),
        ("/usr/bin/bun.exe", "BUN_JSC_useJITDump=1"),
        ("/usr/bin/python", "3.12: `-X perf`"),
        ("/opt/jdk-21.0.2/bin/java", "jcmd PID Compiler.perfmap"),
        ("/opt/jdk-11.0.2/bin/java", "libperf-jvmti.so -XX:+PreserveFramePointer"),
        ("/usr/bin/dotnet", "DOTNET_PerfMapEnabled=1"),
        ("/usr/bin/php8.2", "php -d opcache.jit_debug=0x20 app.php"),
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
    // An argument of the script is none of the runtime's.
    for cmdline in [["node", "app.js", "--perf-prof"], ["node", "server-perf-prof", "app.js"]] {
        let advice = advice_for("/usr/bin/node", &[], &cmdline);
        assert!(advice.contains("start it with `node --perf-prof"), "{advice}");
    }
    let advice = advice_for("/usr/bin/python3.13", &[], &["python3.13", "perform.py", "/srv/perf/app.py"]);
    assert!(advice.contains("-X perf_jit"), "{advice}");
}

#[test]
fn a_flag_in_the_environment_is_not_asked_for_again() {
    let cases: [(&str, &[u8]); 7] = [
        ("/usr/bin/node", b"NODE_OPTIONS=--perf-prof --interpreted-frames-native-stack"),
        ("/usr/bin/python3.13", b"A=1\0PYTHON_PERF_JIT_SUPPORT=1"),
        ("/opt/jdk-21.0.2/bin/java", b"JDK_JAVA_OPTIONS=-agentpath:/opt/libperf-jvmti.so"),
        ("/usr/bin/dotnet", b"DOTNET_PerfMapEnabled=3"),
        ("/usr/lib/erlang/erts-13.1.5/bin/beam.smp", b"ERL_FLAGS=+JPperf true"),
        ("/usr/bin/bun", b"BUN_JSC_useJITDump=1"),
        ("/usr/bin/qemu-arm", b"QEMU_PERFMAP=1"),
    ];
    for (exe, text) in cases {
        let environment = flags_in_environment(text);
        let advice = for_process(&Clues { exe, environment: &environment, ..Clues::default() });
        assert!(advice.contains("was started with a flag"), "{exe}: {advice}");
    }
    let environment = flags_in_environment(b"NODE_OPTIONS=--max-old-space-size=100");
    let advice = for_process(&Clues { exe: "/usr/bin/node", environment: &environment, ..Clues::default() });
    assert!(advice.contains("start it with `node --perf-prof"), "{advice}");
}

#[test]
fn a_jvm_is_told_first_that_its_tables_are_read_and_then_what_needs_no_restart() {
    for exe in ["/opt/jdk-21.0.2/bin/java", "/usr/bin/java"] {
        let advice = for_process(&Clues { exe, ..Clues::default() });
        let (tables, jcmd) = (advice.find("--no-read-runtime"), advice.find("jcmd PID Compiler.perfmap"));
        assert!(tables.is_some() && tables < jcmd && !advice.contains("libperf-jvmti"), "{advice}");
    }
}

#[test]
fn of_those_that_announce_a_part_only_a_jvm_with_a_perf_map_can_do_more() {
    let of = |exe: &str| for_part(&Clues { exe, ..Clues::default() });
    let advice = of("/opt/jdk-21.0.2/bin/java").unwrap();
    assert!(advice.contains("nothing since") && advice.contains("--no-read-runtime"), "{advice}");
    assert!(of("/opt/jdk-11.0.2/bin/java").unwrap().contains("libperf-jvmti.so"));
    assert_eq!((of("/usr/bin/node"), of("/usr/bin/python3.13")), (None, None));
}

#[test]
fn what_is_nearly_all_named_is_worth_no_flag() {
    assert!(!is_worth_a_flag(18, 366, false) && is_worth_a_flag(366, 18, false) && is_worth_a_flag(1, 0, false));
    assert!(is_worth_a_flag(18, 366, true) && !is_worth_a_flag(1, 150, true));
    let clues = Clues { exe: "/usr/bin/node", ..Clues::default() };
    assert_eq!(for_lack(Lack::Announcements, &clues), Some(for_process(&clues)));
    assert_eq!(for_lack(Lack::LaterThanMap, &clues), None);
}

#[test]
fn children_of_multiprocessing_are_told_what_they_inherit() {
    let spawned = ["python3.13", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)"];
    for (exe, variable) in
        [("/usr/bin/python3.13", "PYTHON_PERF_JIT_SUPPORT=1"), ("/usr/bin/python3.12", "PYTHONPERFSUPPORT=1")]
    {
        let (exe, cmdline) = (exe, strings(&spawned));
        let clues = Clues { exe, cmdline: &cmdline, ..Clues::default() };
        for advice in [for_process(&clues), for_interpreter(&clues).unwrap()] {
            assert!(advice.contains(variable) && advice.contains("inherit"), "{advice}");
            assert!(!advice.contains("start it with"), "{advice}");
        }
    }
    let first = for_interpreter(&Clues { exe: "/usr/bin/python3.13", ..Clues::default() }).unwrap();
    assert!(
        first.contains("PYTHON_PERF_JIT_SUPPORT=1 in its environment, which the processes that it starts"),
        "{first}"
    );
}

#[test]
fn php_without_its_jit_is_told_what_names_its_functions() {
    let advice = for_interpreter(&Clues { exe: "/usr/bin/php8.2", ..Clues::default() }).unwrap();
    assert!(advice.contains("opcache.jit_buffer_size=64M") && !advice.contains("it is off"), "{advice}");
    let cmdline = strings(&["php", "-d", "opcache.jit_debug=0x20"]);
    let asked = for_interpreter(&Clues { exe: "/usr/bin/php8.2", cmdline: &cmdline, ..Clues::default() }).unwrap();
    assert!(asked.contains("only its JIT announces code, and it is off"), "{asked}");
    assert!(is_evaluation_loop("execute_ex"));
}

#[test]
fn an_interpreter_that_names_nothing_is_told_the_flag_of_its_version() {
    let of = |exe: &str, cmdline: &[&str]| {
        for_interpreter(&Clues { exe, cmdline: &strings(cmdline), ..Clues::default() }).unwrap_or_default()
    };
    for (exe, said) in [
        ("/usr/bin/python3.15", "python3 -X perf_jit app.py"),
        ("/usr/bin/python3.13", "python3 -X perf_jit app.py"),
        ("/usr/bin/python3.12", "python3.12 -X perf app.py"),
        ("/usr/bin/python3.11", "jitprof reads its frames without a flag"),
        ("/usr/bin/python3", "3.12: `-X perf`"),
    ] {
        let advice = of(exe, &[]);
        assert!(advice.contains(said) && !advice.contains("a library that it has loaded"), "{exe}: {advice}");
        assert!(!advice.contains("  ") && !advice.contains('\n'), "{advice:?}");
    }
    for (exe, said) in [("/usr/bin/ruby3.1", "this version cannot"), ("/usr/bin/ruby3.3", "ruby --yjit --yjit-perf")] {
        let advice = of(exe, &[]);
        assert!(advice.starts_with("the functions of Ruby have no names") && advice.contains(said), "{exe}: {advice}");
    }
    assert!(is_evaluation_loop("rb_vm_exec") && !is_evaluation_loop("rb_funcallv"));
    assert!(of("/usr/bin/python3.13", &["python3", "-Xperf"]).contains("was started with a flag"));
    assert_eq!(of("/usr/bin/node", &[]), "");
    assert!(is_evaluation_loop("_PyEval_EvalFrameDefault") && is_evaluation_loop("PyEval_EvalCode"));
    assert!(is_evaluation_loop("_TAIL_CALL_BINARY_OP") && !is_evaluation_loop("Py_RunMain"));
}

#[test]
fn a_python_is_told_first_of_the_versions_that_need_no_flag() {
    for exe in ["/usr/bin/python2.7", "/usr/bin/python3.7", "/usr/bin/python3.11", "/usr/bin/python", "/usr/bin/pypy3"]
    {
        let clues = Clues { exe, ..Clues::default() };
        for advice in [Some(for_process(&clues)), for_interpreter(&clues)].into_iter().flatten() {
            let nothing = advice.find("without a flag").or_else(|| advice.find("need no flag"));
            let flag = advice.find("-X perf_jit");
            assert!(nothing.is_some() && (flag.is_none() || nothing < flag), "{exe}: {advice}");
        }
    }
    let spawned = strings(&["python3.7", "-c", "from multiprocessing.spawn import spawn_main"]);
    let cases: [(&str, &[String]); 3] =
        [("/usr/bin/python2.7", &[]), ("/usr/bin/python3.7", &[]), ("/usr/bin/python3.7", &spawned)];
    for (exe, cmdline) in cases {
        let advice = for_interpreter(&Clues { exe, cmdline, ..Clues::default() }).unwrap();
        assert!(advice.contains("names of their own: CPython 3.8 and later need no flag"), "{advice}");
    }
}

#[test]
fn what_a_library_generates_is_not_put_down_to_the_interpreter() {
    let files = strings(&["/venv/llvmlite/binding/libllvmlite.so"]);
    let advice = for_process(&Clues { exe: "/usr/bin/python3.12", mapped_files: &files, ..Clues::default() });
    assert!(advice.contains("NUMBA_ENABLE_PROFILING=1") && !advice.contains("-X perf"), "{advice}");
    let files = strings(&["/venv/wasmtime/linux-x86_64/_libwasmtime.so"]);
    let advice = for_process(&Clues { exe: "/usr/bin/python3.13", mapped_files: &files, ..Clues::default() });
    assert!(advice.contains("--profile=jitdump") && !advice.contains("-X perf"), "{advice}");
    let general = for_process(&Clues::default());
    assert!(general.contains("/tmp/perf-PID.map"), "{general}");
}
