//! Names as real runtimes wrote them.

use super::*;

const JIT: FrameKind = FrameKind::Jit;
const INTERPRETED: FrameKind = FrameKind::Interpreter;
const OWN: FrameKind = FrameKind::Builtin;

type Expected = (&'static str, FrameKind, Option<Tier>, Option<(&'static str, u32)>);

fn check(origin: CodeOrigin, cases: &[(&str, Expected)]) {
    for &(name, (display, kind, tier, place)) in cases {
        let source = place.map(|(file, line)| SourceLine::new(file.into(), line));
        let expected = JitName { display: display.to_owned(), kind, tier, source, is_final: true };
        assert_eq!(classify(name, origin, None), expected, "{name:?}");
    }
}

#[test]
fn functions_may_be_inlined_into_what_v8_s_optimisers_have_made() {
    for name in ["JS:*f /a.js:1:2", "JS:+f /a.js:1:2", "JS:*'f /a.js:1:2", "JS:o*' /a.js:1:2", "LazyCompile:* a.js:1"] {
        assert!(may_inline(name), "{name}");
    }
    let others =
        ["JS:^f /a.js:1:2", "JS:~f /a.js:1:2", "JS:f /a.js:1:2", "Function:f-3-turbofan", "Builtin:Add", "RegExp:*"];
    for name in others.into_iter().chain(["LA;f()V", "*f", ""]) {
        assert!(!may_inline(name), "{name}");
    }
}

#[test]
fn v8_functions_show_name_tier_and_source() {
    check(
        CodeOrigin::Jitdump,
        &[
            (
                "JS:*leafHot /srv/app/jit-workloads/node/burn.js:2:17",
                ("leafHot", JIT, Some(Tier::Optimized), Some(("/srv/app/jit-workloads/node/burn.js", 2))),
            ),
            (
                "JS:^Module._nodeModulePaths node:internal/modules/cjs/loader:836:37",
                ("Module._nodeModulePaths", JIT, Some(Tier::Baseline), Some(("node:internal/modules/cjs/loader", 836))),
            ),
            ("JS:+hot file:///a/b.mjs:10:3", ("hot", JIT, Some(Tier::Mid), Some(("file:///a/b.mjs", 10)))),
            ("JS:+'hot file:///a/b.mjs:10:3", ("hot", JIT, Some(Tier::Mid), Some(("file:///a/b.mjs", 10)))),
            ("JS:o+drive /a/b.js:24:15", ("drive", JIT, Some(Tier::Mid), Some(("/a/b.js", 24)))),
            ("JS:o*'drive /a/b.js:24:15", ("drive", JIT, Some(Tier::Optimized), Some(("/a/b.js", 24)))),
            ("JS:other /a/b.js:24:15", ("other", JIT, None, Some(("/a/b.js", 24)))),
            ("JS:~Socket node:net:359:16", ("Socket", INTERPRETED, Some(Tier::Interpreted), Some(("node:net", 359)))),
            (
                "JS:^ node:internal/validators:161:40",
                (
                    "(anonymous node:internal/validators:161:40)",
                    JIT,
                    Some(Tier::Baseline),
                    Some(("node:internal/validators", 161)),
                ),
            ),
            (
                "JS:* /srv/shop/lib/cart.js:7:3",
                ("(anonymous cart.js:7:3)", JIT, Some(Tier::Optimized), Some(("/srv/shop/lib/cart.js", 7))),
            ),
            (
                "JS:* file:///srv/shop/routes/index.mjs:9:3",
                (
                    "(anonymous routes/index.mjs:9:3)",
                    JIT,
                    Some(Tier::Optimized),
                    Some(("file:///srv/shop/routes/index.mjs", 9)),
                ),
            ),
            ("JS:*", ("(anonymous)", JIT, Some(Tier::Optimized), None)),
            (
                "Eval:~ /srv/app/jit-workloads/node/burn.js:1:1",
                ("(top level)", INTERPRETED, Some(Tier::Interpreted), Some(("/srv/app/jit-workloads/node/burn.js", 1))),
            ),
            ("Script:~ node:net:1:1", ("(top level)", INTERPRETED, Some(Tier::Interpreted), Some(("node:net", 1)))),
            ("LazyCompile:*fib /a/fib.js:1", ("fib", JIT, Some(Tier::Optimized), Some(("/a/fib.js", 1)))),
            (
                "JS:*get size /my app/with blanks.js:7:2",
                ("get size", JIT, Some(Tier::Optimized), Some(("/my app/with blanks.js", 7))),
            ),
            (
                "JS:*get [Symbol.x] [worker eval]:1:21",
                ("get [Symbol.x]", JIT, Some(Tier::Optimized), Some(("[worker eval]", 1))),
            ),
            (
                "JS:~ [worker eval]:1:1",
                ("(anonymous [worker eval]:1:1)", INTERPRETED, Some(Tier::Interpreted), Some(("[worker eval]", 1))),
            ),
            (
                "JS:*f evalmachine.<anonymous>:3:5",
                ("f", JIT, Some(Tier::Optimized), Some(("evalmachine.<anonymous>", 3))),
            ),
            // Of a file that a program has made smaller, many functions have the same name, and all the same line.
            (
                "JS:*t /srv/dist/app.min.js:1:146721",
                ("t (dist/app.min.js:1:146721)", JIT, Some(Tier::Optimized), Some(("/srv/dist/app.min.js", 1))),
            ),
            ("JS:*t /srv/dist/app.min.js:1:20", ("t", JIT, Some(Tier::Optimized), Some(("/srv/dist/app.min.js", 1)))),
            ("JS:* /srv/a.js:7", ("(anonymous a.js:7)", JIT, Some(Tier::Optimized), Some(("/srv/a.js", 7)))),
            ("JS:*f", ("f", JIT, Some(Tier::Optimized), None)),
            ("Function:fib-3-liftoff", ("fib", JIT, Some(Tier::Baseline), None)),
            ("Function:my-fib-12-turbofan", ("my-fib", JIT, Some(Tier::Optimized), None)),
        ],
    );
}

#[test]
fn v8_own_code_is_builtin_and_a_regexp_is_the_users() {
    check(
        CodeOrigin::PerfMap,
        &[
            ("Builtin:DeoptimizationEntry_Eager", ("Builtin:DeoptimizationEntry_Eager", OWN, None, None)),
            ("BytecodeHandler:LdaZero", ("BytecodeHandler:LdaZero", OWN, None, None)),
            ("Stub:CEntryStub", ("Stub:CEntryStub", OWN, None, None)),
            ("RegExp:^(a+)+$", ("RegExp:^(a+)+$", JIT, None, None)),
        ],
    );
}

#[test]
fn cpython_functions_show_their_qualified_name() {
    check(
        CodeOrigin::Jitdump,
        &[
            (
                "py::leaf_hot:/srv/app/burn.py",
                ("leaf_hot", INTERPRETED, Some(Tier::Interpreted), Some(("/srv/app/burn.py", 0))),
            ),
            (
                "py::_WeakValueDictionary.__init__.<locals>.KeyedRef.remove:<frozen importlib._bootstrap>",
                (
                    "_WeakValueDictionary.__init__.<locals>.KeyedRef.remove",
                    INTERPRETED,
                    Some(Tier::Interpreted),
                    Some(("<frozen importlib._bootstrap>", 0)),
                ),
            ),
            ("py::f:c:/odd:name.py", ("f", INTERPRETED, Some(Tier::Interpreted), Some(("c:/odd:name.py", 0)))),
        ],
    );
}

#[test]
fn erlang_functions_lose_their_marks_and_the_emulators_code_is_builtin() {
    check(
        CodeOrigin::PerfMap,
        &[
            ("$burn:leaf_hot/2", ("burn:leaf_hot/2", JIT, None, None)),
            ("$burn:leaf_hot/2-CodeInfoPrologue", ("burn:leaf_hot/2", JIT, None, None)),
            ("$erl_eval:'-expr/6-RF/17-19-'/18", ("erl_eval:'-expr/6-RF/17-19-'/18", JIT, None, None)),
            ("$global::apply_fun_shared", ("global::apply_fun_shared", OWN, None, None)),
            (
                "$erts_beamasm:run_process/3-CodeInfoPrologue",
                ("erts_beamasm:run_process/3-CodeInfoPrologue", OWN, None, None),
            ),
            ("$epp::codeFooter", ("epp::codeFooter", OWN, None, None)),
            ("$global:'-resolved/5-fun-1-'/3", ("global:'-resolved/5-fun-1-'/3", JIT, None, None)),
        ],
    );
    check(
        CodeOrigin::Jitdump,
        &[
            ("lists:reverse/2", ("lists:reverse/2", JIT, None, None)),
            ("global::garbage_collect", ("global::garbage_collect", OWN, None, None)),
            ("'Elixir.Enum':map/2", ("Enum.map/2", JIT, None, None)),
            ("'Elixir.Enum':'-map/2-fun-0-'/3", ("Enum.'-map/2-fun-0-'/3", JIT, None, None)),
            ("$not_erlang", ("$not_erlang", JIT, None, None)),
        ],
    );
}

#[test]
fn php_traces_and_functions_show_the_function() {
    check(
        CodeOrigin::Jitdump,
        &[
            ("TRACE-3$leaf_hot$3", ("leaf_hot", JIT, None, None)),
            ("TRACE-5$/srv/app/burn.php$9", ("{main}", JIT, None, Some(("/srv/app/burn.php", 0)))),
            ("TRACE-12$App\\User::load$40", ("App\\User::load", JIT, None, None)),
            ("JIT$leaf_hot", ("leaf_hot", JIT, None, None)),
            ("JIT$/srv/app/burn.php", ("{main}", JIT, None, Some(("/srv/app/burn.php", 0)))),
            ("JIT$$hybrid_hot_trace", ("hybrid_hot_trace", OWN, None, None)),
            ("jit$$trace_exit_0", ("trace_exit_0", OWN, None, None)),
        ],
    );
}

#[test]
fn wasmtime_functions_show_their_own_name_if_they_have_one() {
    check(
        CodeOrigin::Jitdump,
        &[
            ("leaf_hot", ("leaf_hot", JIT, None, None)),
            ("wasm[0]::function[3]", ("wasm[0]::function[3]", JIT, None, None)),
            ("wasm[0]::function[3]::core::fmt::write", ("core::fmt::write", JIT, None, None)),
            ("wasm[0]::array_to_wasm_trampoline[4]", ("wasm[0]::array_to_wasm_trampoline[4]", OWN, None, None)),
            ("signatures[0]::wasm_to_array_trampoline", ("signatures[0]::wasm_to_array_trampoline", OWN, None, None)),
        ],
    );
}

#[test]
fn jvm_signatures_become_readable() {
    check(
        CodeOrigin::Jitdump,
        &[
            ("LT;fib(I)I", ("T.fib(I)I", JIT, None, None)),
            ("Ljava/lang/String;indexOf(I)I", ("java.lang.String.indexOf(I)I", JIT, None, None)),
            ("Ljava/lang/String;::indexOf", ("java.lang.String.indexOf", JIT, None, None)),
            ("Interpreter", ("Interpreter", OWN, None, None)),
            ("StubRoutines (1)", ("StubRoutines (1)", OWN, None, None)),
            (
                "void java.lang.String.<init>(char[], int)",
                ("void java.lang.String.<init>(char[], int)", JIT, None, None),
            ),
        ],
    );
}

#[test]
fn dotnet_names_lose_assembly_and_tier() {
    check(
        CodeOrigin::PerfMap,
        &[
            (
                "void [System.Private.CoreLib] System.Threading.ThreadPoolWorkQueue::Dispatch()[OptimizedTier1]",
                ("System.Threading.ThreadPoolWorkQueue::Dispatch()", JIT, Some(Tier::Optimized), None),
            ),
            (
                "instance void [app] Cache::Purge(class [System.Private.CoreLib]System.Object[])[Tier0]",
                ("Cache::Purge(class [System.Private.CoreLib]System.Object[])", JIT, Some(Tier::Baseline), None),
            ),
            ("int32 [app] Program::Fib(int32)[PreJIT]", ("Program::Fib(int32)", JIT, None, None)),
            ("int32 [app] Program::Fib(int32)", ("Program::Fib(int32)", JIT, None, None)),
        ],
    );
}

#[test]
fn rubys_frames_show_the_function_and_whether_it_is_in_c() {
    check(
        CodeOrigin::Runtime,
        &[
            (
                "ruby::block (2 levels) in <main>",
                ("block (2 levels) in <main>", INTERPRETED, Some(Tier::Interpreted), None),
            ),
            ("ruby.c::sort_by", ("sort_by", OWN, None, None)),
        ],
    );
}

#[test]
fn luajit_and_ruby_names_show_where_they_come_from() {
    check(
        CodeOrigin::PerfMap,
        &[
            ("TRACE_42::main.lua:123", ("trace main.lua:123", JIT, None, Some(("main.lua", 123)))),
            (
                "[JIT] Integer#times@<internal:numeric>:231",
                ("Integer#times", JIT, None, Some(("<internal:numeric>", 231))),
            ),
            ("ZJIT: fib@/srv/fib.rb:3", ("fib", JIT, None, Some(("/srv/fib.rb", 3)))),
            ("[JIT] gen_send", ("gen_send", JIT, None, None)),
        ],
    );
}

#[test]
fn names_of_no_known_shape_stay_as_they_are() {
    let cases = ["main", "std::vector<int>::push_back(int const&)", "_Zebra", "a:b", "ratio:1/2 x", "L;", "JS::x"];
    for name in cases {
        assert_eq!(classify(name, CodeOrigin::Jitdump, None), function(name), "{name:?}");
    }
}

#[test]
fn mangled_names_are_shown_as_they_were_written() {
    let cases = [
        ("_ZN3foo3barEv", function("foo::bar")),
        (
            "_ZN8__main__8leaf_hotB2v2B54c8tJTC_2fWwGaMLSgd6CjA4xXKR0tsqKIYSQsqDQwVMEsTAA_3d_3dEx",
            function("__main__::leaf_hot"),
        ),
        ("_ZN7cpython8__main__5outerB2v1B3c8tEx", builtin("cpython::__main__::outer")),
        ("cfunc._ZN8__main__5outerB2v1B3c8tEx", builtin("cfunc.__main__::outer")),
    ];
    for (name, expected) in cases {
        assert_eq!(classify(name, CodeOrigin::Jitdump, None), expected, "{name:?}");
    }
}

#[test]
fn what_an_interpreter_runs_is_known_without_demangling_anything() {
    let origin = CodeOrigin::Jitdump;
    assert_eq!(interpreted(" py::f:/x/y.py", origin), Some(classify("py::f:/x/y.py", origin, None)));
    assert_eq!(interpreted("JS:~Socket node:net:359:16", origin).map(|name| name.display), Some("Socket".to_owned()));
    for name in ["JIT$f", "_ZN3foo3barEv", "main", ""] {
        assert_eq!(interpreted(name, origin), None, "{name:?}");
    }
}

#[test]
fn callers_that_are_on_no_stack_are_a_mark_of_jitprofs_own_and_no_function() {
    const IN_HEAP: &str = "[callers in the heap]";
    check(CodeOrigin::Runtime, &[(IN_HEAP, (IN_HEAP, FrameKind::Note, None, None))]);
    check(CodeOrigin::Jitdump, &[(IN_HEAP, (IN_HEAP, JIT, None, None))]);
}

#[test]
fn an_empty_name_is_said_to_be_one() {
    for name in ["", "  ", "py:::x", "JIT$"] {
        assert_eq!(classify(name, CodeOrigin::Jitdump, None).display, UNNAMED, "{name:?}");
    }
}

#[test]
fn every_prefix_of_a_real_name_is_classified() {
    let names = [
        "JS:*get size /my app/with blanks.js:7:2",
        "py::f:/x/y.py",
        "'Elixir.Enum':'-map/2-fun-0-'/3",
        "TRACE-5$/srv/app/burn.php$9",
        "wasm[0]::function[3]::core::fmt::write",
        "instance void [app] Cache::Purge(class [x]Y[])[Tier0]",
        "[JIT] Integer#times@<internal:numeric>:231",
        "Ljava/lang/String;::indexOf",
        "JS:~größe /pfad/ä.js:1:99999999999999999999",
    ];
    for name in names {
        for end in (0..=name.len()).filter(|end| name.is_char_boundary(*end)) {
            for origin in [CodeOrigin::Jitdump, CodeOrigin::PerfMap] {
                assert!(!classify(&name[..end], origin, None).display.is_empty());
                assert!(!classify(&name[end..], origin, None).display.is_empty());
            }
        }
    }
}

#[test]
fn a_real_node_map_is_sorted_into_its_kinds() {
    let text = String::from_utf8(jitprof_jitdump::test_data::perf_map("node20-perf")).expect("text");
    let names: Vec<JitName> = text
        .lines()
        .map(|line| classify(line.splitn(3, ' ').nth(2).expect("a name"), CodeOrigin::PerfMap, None))
        .collect();
    let count = |kind| names.iter().filter(|name| name.kind == kind).count();
    // 1699 builtins and 483 bytecode handlers; 560 functions and 54 scripts.
    assert_eq!(count(OWN), 1699 + 483);
    assert_eq!(count(JIT) + count(INTERPRETED), 560 + 54);
    for name in names.iter().filter(|name| name.kind != OWN) {
        assert!(name.tier.is_some(), "{name:?}");
        let source = name.source.as_ref().unwrap_or_else(|| panic!("{name:?}"));
        let is_unnamed = name.display.starts_with("(anonymous ");
        assert!(source.line > 0 && (is_unnamed || !name.display.contains(&*source.file)), "{name:?}");
        assert_ne!(name.display, "(anonymous)", "it has a place");
    }
}
