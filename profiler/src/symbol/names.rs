//! What a runtime's name for its generated code says: function, kind, tier, source.
//!
//! Jitdump and perf map have one free text for all of it. Each runtime writes its own dialect, and none says which; the
//! dialects are told apart by their shape. A name of no known shape is a JIT function and is shown as it is.
//!
//! | runtime | names seen | version |
//! |---|---|---|
//! | V8 | `JS:*leafHot /srv/burn.js:2:17`, `Builtin:ArrayMap`, `RegExp:^a+$` | Node 20.20 (V8 11.3) |
//! | CPython | `py::leaf_hot:/srv/burn.py` | 3.13.0 |
//! | Erlang | `burn:leaf_hot/2`, `$burn:leaf_hot/2-CodeInfoPrologue`, `$global::garbage_collect` | OTP 25 |
//! | PHP | `JIT$leaf_hot`, `TRACE-3$leaf_hot$3`, `JIT$$trace_exit`; of its list `php::leaf_hot`, `php.internal::usort` | 8.2 |
//! | wasmtime | `leaf_hot`, `wasm[0]::function[3]::f`, `signatures[0]::wasm_to_array_trampoline` | 50.0 |
//! | JVM | `LT;fib(I)I`, `Interpreter` | OpenJDK 17 with perf's agent |
//! | .NET | `int32 [app] Program::Fib(int32)[OptimizedTier1]` | 8 |
//! | numba | `_ZN8__main__8leaf_hotB2v2B54c8tJTC..Ex`, `cfunc._ZN..`, `_ZN7cpython..` | 0.68, LLVM 22 |
//! | LuaJIT | `TRACE_42::main.lua:123` | 2.1, built with `LUAJIT_USE_PERFTOOLS` |
//! | Ruby | `[JIT] Integer#times@<internal:numeric>:231`; of its frames `ruby::block in each`, `ruby.c::sort_by` | 3.3 `--yjit-perf`, 3.1 |

mod managed;
mod v8;

use super::demangle::demangle_promptly;
use super::frame::{FrameKind, SourceLine, Tier};
use crate::owners::Holder;
use jitprof_jitdump::code::CodeOrigin;

/// A name as a frame shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JitName {
    /// The function, without tier marks and source; never empty. Control characters are left to the outputs.
    pub display: String,
    /// The user's code (compiled or interpreted) or the runtime's own.
    pub kind: FrameKind,
    /// How far the runtime had optimised it, where the name tells.
    pub tier: Option<Tier>,
    /// Where the function is defined, where the name tells; the line is 0 when only the file is known.
    pub source: Option<SourceLine>,
    /// It stays so. A mangled name may be had as it was written later, when its holder's names may take time again.
    pub is_final: bool,
}

/// Shown for code that its runtime announced with an empty name.
const UNNAMED: &str = "[unnamed code]";

/// Reads a name as the runtime wrote it. Costs a few comparisons and one allocation or two.
///
/// `origin` matters where a dialect belongs to one kind of file: Erlang marks its functions with `$` in perf maps only.
/// `holder` is whose code it is, if several share the time that names may take.
pub fn classify(name: &str, origin: CodeOrigin, holder: Option<Holder>) -> JitName {
    let name = name.trim();
    let known = spelled(name, origin).or_else(|| mangled(name, holder));
    let mut known = known.unwrap_or_else(|| function(name));
    if known.display.trim().is_empty() {
        known.display = UNNAMED.to_owned();
    }
    known
}

/// The function that an interpreter runs under this name, if it says so. Nothing is demangled for it.
pub fn interpreted(name: &str, origin: CodeOrigin) -> Option<JitName> {
    spelled(name.trim(), origin).filter(|known| known.kind == FrameKind::Interpreter)
}

/// A name of a known shape that can be read as it is.
fn spelled(name: &str, origin: CodeOrigin) -> Option<JitName> {
    v8::classify(name)
        .or_else(|| mark(name, origin))
        .or_else(|| cpython(name))
        .or_else(|| php(name, origin))
        .or_else(|| luajit(name))
        .or_else(|| wasmtime(name))
        .or_else(|| ruby(name, origin))
        .or_else(|| managed::jvm(name))
        .or_else(|| managed::dotnet(name))
        .or_else(|| erlang(name, origin))
}

/// Whether this is the name of code that an optimiser has made of JavaScript, and may have inlined other functions into. Costs
/// some comparisons, and no allocation.
pub fn may_inline(name: &str) -> bool {
    v8::is_optimised(name.trim())
}

/// A C++ name, which LLVM's users give too. numba's has the types and options of its specialisation as ABI tags, and
/// wrappers for calls from Python and C besides (`cpython::`, `cfunc.`).
fn mangled(name: &str, holder: Option<Holder>) -> Option<JitName> {
    let (wrapper, symbol) = name.strip_prefix("cfunc.").map_or(("", name), |symbol| ("cfunc.", symbol));
    if !symbol.starts_with("_Z") {
        return None;
    }
    let Some(text) = demangle_promptly(symbol, holder) else {
        return Some(JitName { is_final: false, ..function(name) });
    };
    if text == symbol {
        return None;
    }
    let mut display = String::from(wrapper);
    let mut rest = text.as_str();
    while let Some((before, tag)) = rest.split_once("[abi:") {
        display.push_str(before);
        rest = tag.split_once(']').map_or("", |(_, behind)| behind);
    }
    display.push_str(rest);
    let own = wrapper.is_empty() && !display.starts_with("cpython::");
    Some(if own { function(display) } else { builtin(display) })
}

fn function(display: impl Into<String>) -> JitName {
    JitName { display: display.into(), kind: FrameKind::Jit, tier: None, source: None, is_final: true }
}

fn builtin(display: impl Into<String>) -> JitName {
    JitName { kind: FrameKind::Builtin, ..function(display) }
}

fn source(file: &str, line: u32) -> Option<SourceLine> {
    (!file.is_empty()).then(|| SourceLine::new(file.into(), line))
}

/// Splits a decimal number off the end: `text`, separator, number.
fn split_number(text: &str, separator: char) -> Option<(&str, u32)> {
    let (head, digits) = text.rsplit_once(separator)?;
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| Some((head, digits.parse().ok()?)))?
}

/// What jitprof itself says of frames that are on no stack: it is in code of the runtime's, and no function of the program's.
fn mark(name: &str, origin: CodeOrigin) -> Option<JitName> {
    let is_mark = origin == CodeOrigin::Runtime && name == "[callers in the heap]";
    is_mark.then(|| JitName { kind: FrameKind::Note, ..function(name) })
}

/// `py::QUALNAME:FILE`. A trampoline for each function, under which the interpreter runs it.
fn cpython(name: &str) -> Option<JitName> {
    // Only a file name can contain a colon.
    let (qualified, file) = name.strip_prefix("py::")?.split_once(':')?;
    Some(JitName {
        kind: FrameKind::Interpreter,
        tier: Some(Tier::Interpreted),
        source: source(file, 0),
        ..function(qualified)
    })
}

/// `JIT$FUNCTION` or `TRACE-ID$FUNCTION$LINE`; a script's top level has the file for its function; `JIT$$STUB`.
///
/// The traces of a function share its name: which of them ran is of no use to the reader of a profile. The line is where the
/// trace begins; it goes on to others, and does not say where it is.
fn php(name: &str, origin: CodeOrigin) -> Option<JitName> {
    // How jitprof itself tells what it has read of the interpreter's frames from what the JIT announces.
    if origin == CodeOrigin::Runtime {
        if let Some(function) = name.strip_prefix("php::") {
            let tier = Some(Tier::Interpreted);
            return Some(JitName { kind: FrameKind::Interpreter, tier, ..self::function(function) });
        }
        if let Some(function) = name.strip_prefix("php.internal::") {
            return Some(builtin(function));
        }
    }
    if let Some(stub) = name.strip_prefix("JIT$$").or_else(|| name.strip_prefix("jit$$")) {
        return Some(builtin(stub));
    }
    let what = match name.strip_prefix("JIT$") {
        Some(what) => what,
        None => {
            let (id, rest) = name.strip_prefix("TRACE-")?.split_once('$')?;
            id.bytes().all(|byte| byte.is_ascii_digit()).then_some(())?;
            split_number(rest, '$').map_or(rest, |(what, _)| what)
        }
    };
    if what.starts_with('/') {
        return Some(JitName { source: source(what, 0), ..function("{main}") });
    }
    Some(function(what))
}

/// `TRACE_ID::FILE:LINE`: a trace has no function, only the place where it starts. Its number says nothing to a reader,
/// and changes with each run.
fn luajit(name: &str) -> Option<JitName> {
    let (id, place) = name.strip_prefix("TRACE_")?.split_once("::")?;
    id.bytes().all(|byte| byte.is_ascii_digit()).then_some(())?;
    let (file, line) = split_number(place, ':')?;
    Some(JitName { source: source(file, line), ..function(format!("trace {place}")) })
}

/// `wasm[M]::function[N]`, followed by `::NAME` where the module has names; trampolines.
fn wasmtime(name: &str) -> Option<JitName> {
    if name.contains("_trampoline") && (name.starts_with("wasm[") || name.starts_with("signatures[")) {
        return Some(builtin(name));
    }
    let (_, rest) = name.strip_prefix("wasm[")?.split_once("]::function[")?;
    let named = rest.split_once("]::").map(|(_, name)| name).filter(|name| !name.is_empty());
    Some(function(named.unwrap_or(name)))
}

/// `[JIT] NAME` (YJIT) or `ZJIT: NAME`, where a method's name ends in `@FILE:LINE`.
fn ruby(name: &str, origin: CodeOrigin) -> Option<JitName> {
    // How jitprof itself says what it has read of the interpreter's frames.
    if origin == CodeOrigin::Runtime {
        if let Some(function) = name.strip_prefix("ruby::") {
            let tier = Some(Tier::Interpreted);
            return Some(JitName { kind: FrameKind::Interpreter, tier, ..self::function(function) });
        }
        if let Some(function) = name.strip_prefix("ruby.c::") {
            return Some(builtin(function));
        }
    }
    let method = name.strip_prefix("[JIT] ").or_else(|| name.strip_prefix("ZJIT: "))?;
    let located = split_number(method, ':').and_then(|(head, line)| Some((head.rsplit_once('@')?, line)));
    Some(match located {
        Some(((method, file), line)) => JitName { source: source(file, line), ..function(method) },
        None => function(method),
    })
}

/// `MODULE:FUNCTION/ARITY`, in perf maps after a `$`, in both for its head again with `-CodeInfoPrologue`.
fn erlang(name: &str, origin: CodeOrigin) -> Option<JitName> {
    let marked = name.strip_prefix('$').filter(|_| origin == CodeOrigin::PerfMap);
    let plain = marked.unwrap_or(name);
    if ["global::", "erts_beamasm:"].iter().any(|prefix| plain.starts_with(prefix))
        || ["::codeHeader", "::codeFooter"].iter().any(|suffix| plain.ends_with(suffix))
    {
        return Some(builtin(plain));
    }
    // The head of a function carries its breakpoint and yield code: time spent there is time spent in the function.
    let entry = plain.strip_suffix("-CodeInfoPrologue").unwrap_or(plain);
    let is_function = || {
        let (head, _) = split_number(entry, '/')?;
        let (module, function) = head.split_once(':')?;
        let fits = !module.is_empty() && !function.is_empty() && !function.starts_with(':') && !module.contains(' ');
        fits.then_some((module, function))
    };
    let (module, _) = is_function().or(marked.map(|_| ("", "")))?;
    // An Elixir module is an atom 'Elixir.Enum'; Elixir's own notation for its function is Enum.map/2.
    let elixir = module.strip_prefix("'Elixir.").and_then(|module| module.strip_suffix('\''));
    Some(match elixir {
        Some(module) => {
            let skipped = "'Elixir.".len() + module.len() + "':".len();
            function(format!("{module}.{}", &entry[skipped..]))
        }
        None => function(entry),
    })
}

#[cfg(test)]
mod tests;
