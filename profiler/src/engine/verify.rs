//! Compares a frame's name with what a second source says of the same address.

use std::sync::Arc;

use jitprof_common::units::{Avma, MonoNs};
use jitprof_jitdump::code::{CodeHit, CodeOrigin};

use crate::account::{NameDisagreement, VerifiedNames};
use crate::engine::frames::Known;
use crate::engine::pending::Pending;
use crate::engine::process::Process;
use crate::symbol::names::{JitName, classify};
use crate::symbol::{Frame, FrameKind, SourceLine};

/// Disagreements that are told; further ones are counted.
const MAX_EXAMPLES: usize = 16;
/// The name of code that V8 has made of a regular expression. A dump has the pattern behind it.
const PATTERN: &str = "RegExp:";
/// How the names end of what lies before a function's code in Erlang, and begin of what all modules use.
const ERLANG_HEAD: &str = "-CodeInfoPrologue";
const ERLANG_SHARED: &str = "global::";
/// What PHP calls closures up to 8.3, and how it begins what it calls them from 8.4 on, and its list always.
const PHP_CLOSURE: &str = "{closure}";
const PHP_CLOSURE_AT: &str = "{closure:";
/// How PHP announces all of a class without a name.
const NAMELESS_CLASS: &str = "@anonymous";

/// A frame of generated code has been named: is it named so by a second source, too?
pub(super) fn verify(
    process: &Process,
    hit: &CodeHit<'_>,
    (addr, index, sample): (Avma, usize, &Pending),
    into: &mut VerifiedNames,
) {
    // What callers return to is of another element of the list, it is not known which.
    let listed = sample.listed.as_deref().filter(|_| index == 0);
    match (PhpCode::of(hit.name()), listed) {
        (Some(PhpCode::Several), Some(_)) => into.incomparable += 1,
        (Some(PhpCode::Function(announced)), Some(listed)) => {
            let known = |record: u16| process.frames.get(&listed.asked, (record.into(), None), sample.time);
            verify_php((process, hit, addr), announced, listed.all().map(|record| function_of(known(record))), into);
        }
        _ => verify_by_address(process, hit, (addr, sample.time), into),
    }
}

/// A sample was taken in code that PHP has announced, of a function. `listed` is what its list had at that moment, from the
/// innermost.
fn verify_php(
    (process, hit, addr): (&Process, &CodeHit<'_>, Avma),
    announced: &str,
    mut listed: impl Iterator<Item = Option<Frame>>,
    into: &mut VerifiedNames,
) {
    let (own, caller) = (listed.next().flatten(), listed.next().flatten());
    let Some(own) = own else {
        into.only_announced += 1;
        return;
    };
    let is_same = is_php_function(announced, &own);
    // What code is about to call, or has just called, stands in the list already, or still.
    let calls =
        is_same == Some(false) && caller.is_some_and(|caller| is_php_function(announced, &caller) == Some(true));
    let names = match hit.origin() {
        CodeOrigin::PerfMap => [&*own.name, hit.name()],
        CodeOrigin::Jitdump | CodeOrigin::Peeked | CodeOrigin::Runtime => [hit.name(), &*own.name],
    };
    note(is_same.filter(|_| !calls), (process, addr), names, into);
}

/// Compares it with what a second source says of the same address and time.
fn verify_by_address(process: &Process, hit: &CodeHit<'_>, (addr, time): (Avma, MonoNs), into: &mut VerifiedNames) {
    if hit.origin() == CodeOrigin::PerfMap {
        into.only_perf_map += 1;
        return;
    }
    let second = match process.code.compared() {
        Some(tables) => tables.lookup(addr, time),
        None => line_at(process, hit, (addr, time)),
    };
    let Some(second) = second else {
        into.only_announced += 1;
        return;
    };
    let names = [hit, &second].map(|hit| classify(hit.name(), hit.origin(), Some(process.holder())));
    let is_one_mangled = names[0].is_final != names[1].is_final;
    let names = names.map(|name| name.display);
    let is_same = match process.code.is_of_beam() {
        // His names have no time left: how this one was written is not known yet.
        _ if is_one_mangled => None,
        true => is_same_of_beam(&names),
        false => Some(comparable(&names[0]) == comparable(&names[1])),
    };
    note(is_same, (process, addr), [hit.name(), second.name()], into);
}

/// What the perf map has for code at an address. It has no times: what came after it was read it knows nothing of, and names
/// what was there before.
fn line_at<'a>(process: &'a Process, hit: &CodeHit<'_>, (addr, time): (Avma, MonoNs)) -> Option<CodeHit<'a>> {
    let line = process.code.map.listed(addr, time)?;
    if !process.code.is_of_beam() {
        // Others write it once, when they are told to.
        let lives = (hit.since(), hit.ended());
        return process.announcements.lines_at().is_some_and(|read| was_there(lives, read)).then_some(line);
    }
    // Erlang adds lines before a module's code can run. Since when one holds that has taken the place of another is only known
    // to within a look at the map.
    let is_only = || process.code.map.listed(addr, MonoNs(u64::MAX)).is_some_and(|last| last.id == line.id);
    process.announcements.map_read_at().is_some_and(|read| hit.since() <= read && is_only()).then_some(line)
}

/// Whether code that came and ended at these times was there when a perf map was read. A map has no times: of what came later it
/// names what was there before, and of what was gone by then what had taken its place.
fn was_there((since, ended): (MonoNs, Option<MonoNs>), read: MonoNs) -> bool {
    since <= read && ended.is_none_or(|ended| read <= ended)
}

/// A frame is named by a dump, and its runtime was asked about it: is the function that the code was made of the same, and how
/// it was compiled?
pub(super) fn verify_asked(
    process: &Process,
    hit: &CodeHit<'_>,
    (addr, known): (Avma, &Known),
    into: &mut VerifiedNames,
) {
    let dumped = classify(hit.name(), hit.origin(), Some(process.holder()));
    let own = match known {
        Known::Functions(functions) => functions.last(),
        Known::Own | Known::Unnamed(_) => None,
    };
    // Of the interpreter's own code a dump has the name, and the runtime says what it runs.
    let Some(own) = own.filter(|_| dumped.kind != FrameKind::Builtin) else {
        into.only_announced += 1;
        return;
    };
    let is_pattern = dumped.display.starts_with(PATTERN) && &*own.name == PATTERN;
    let is_same = Some(is_pattern || is_same_code(&dumped, own));
    let tier = own.tier.map_or_else(String::new, |tier| format!(" ({tier:?})"));
    note(is_same, (process, addr), [hit.name(), &format!("{}{tier}", own.name)], into);
}

/// Whether a frame that its runtime was asked about is in code that a dump has under this name: of the same function,
/// compiled in the same way.
pub(super) fn is_same_code(dumped: &JitName, own: &Frame) -> bool {
    // The runtime has the line that runs, the dump that at which the function begins: the script is the same.
    let script = |source: &Option<SourceLine>| source.as_ref().map(|source| Arc::clone(&source.file));
    let is_function = *dumped.display == *own.name && script(&dumped.source) == script(&own.source);
    is_function && dumped.tier == own.tier
}

/// A frame of an interpreter's list has been named, and stands where something announced has the function that began it.
pub(super) fn verify_listed(
    process: &Process,
    hit: &CodeHit<'_>,
    (addr, own, is_same): (Avma, &str, bool),
    into: &mut VerifiedNames,
) {
    note(Some(is_same), (process, addr), [own, hit.name()], into);
}

/// Counts a frame that two sources name, and whether they name the same function if that can be told.
fn note(is_same: Option<bool>, (process, addr): (&Process, Avma), names: [&str; 2], into: &mut VerifiedNames) {
    match is_same {
        Some(true) => into.agreed += 1,
        None => into.incomparable += 1,
        Some(false) => {
            into.disagreed += 1;
            add_example((process, addr), names, into);
        }
    }
}

fn add_example((process, addr): (&Process, Avma), names: [&str; 2], into: &mut VerifiedNames) {
    let [announced, listed] = names.map(str::to_owned);
    let example = NameDisagreement { pid: process.id.pid.0, address: format!("{:#x}", addr.0), announced, listed };
    let is_known =
        |known: &NameDisagreement| (&known.announced, &known.listed) == (&example.announced, &example.listed);
    if into.examples.len() < MAX_EXAMPLES && !into.examples.iter().any(is_known) {
        into.examples.push(example);
    }
}

/// What is left of a shown name in all notations of one runtime. HotSpot's perf map has `int Shop.rule(int)` for what its
/// tables, and perf's agent, call `LShop;rule(I)I`: class and method are compared.
fn comparable(shown: &str) -> String {
    let name = match shown.split_once('(') {
        Some((head, _)) if !head.trim().is_empty() => head.trim_end().rsplit(' ').next().unwrap_or(head),
        _ => shown,
    };
    name.replace('/', ".")
}

/// Whether Erlang's announcement and its tables name the same function. Of the code that its modules share the tables have
/// neither names nor exact bounds.
fn is_same_of_beam(names: &[String; 2]) -> Option<bool> {
    let [announced, listed] = names.each_ref().map(|name| name.strip_suffix(ERLANG_HEAD).unwrap_or(name));
    let are_shared = [announced, listed].iter().all(|name| name.starts_with(ERLANG_SHARED));
    (announced == listed || !are_shared).then_some(announced == listed)
}

/// What PHP announces code as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PhpCode<'a> {
    /// That of one function, or of what a file has outside of functions.
    Function(&'a str),
    /// That of several: a trace is called after the function in which it begins, and goes on in those that this one calls or
    /// returns to; parts without a function are jumped to from all.
    Several,
}

impl<'a> PhpCode<'a> {
    fn of(name: &'a str) -> Option<Self> {
        let is_of_several = ["JIT$$", "jit$$", "TRACE-"].iter().any(|prefix| name.starts_with(prefix));
        let function = || name.strip_prefix("JIT$").map(Self::Function);
        if is_of_several { Some(Self::Several) } else { function() }
    }
}

/// Which of some functions of PHP's list, from the innermost, PHP has announced code as. Where no more is announced than a class
/// without a name, and several are of such classes, nobody knows.
pub(super) fn announced_first(
    name: &str,
    functions: impl Iterator<Item = (usize, Option<Frame>)>,
) -> Option<(usize, Frame)> {
    let is_same = |function: &Frame| is_announced_as(name, function);
    let mut same = functions.filter_map(|(at, function)| Some((at, function.filter(is_same)?)));
    let first = same.next()?;
    let is_by_class = announced_function(name).is_some_and(|announced| announced.ends_with(NAMELESS_CLASS));
    let may_be_another = is_by_class && same.next().is_some();
    (!may_be_another).then_some(first)
}

/// Whether PHP has announced code under this name that is of the same function as an element of its list: it was compiled from
/// that, or begins there, as a trace does. Of a class without a name no more is announced than that it has none.
fn is_announced_as(name: &str, listed: &Frame) -> bool {
    let is_same = |announced| is_php_function(announced, listed).unwrap_or_else(|| listed.name.starts_with(announced));
    announced_function(name).is_some_and(is_same)
}

/// The function that code was compiled from, or begins in, as PHP announces it.
fn announced_function(name: &str) -> Option<&str> {
    match PhpCode::of(name)? {
        PhpCode::Function(function) => Some(function),
        PhpCode::Several => begin_of_trace(name),
    }
}

/// Whether PHP has announced code under this name that is of one function, whatever runs before or behind it.
pub(super) fn is_of_one_function(name: &str) -> bool {
    matches!(PhpCode::of(name), Some(PhpCode::Function(_)))
}

/// The function of `TRACE-ID$FUNCTION$LINE`.
fn begin_of_trace(name: &str) -> Option<&str> {
    let (_, place) = name.strip_prefix("TRACE-")?.split_once('$')?;
    Some(place.rsplit_once('$').map_or(place, |(function, _)| function))
}

/// Whether PHP's announcement of a function and an element of its list are the same function.
fn is_php_function(announced: &str, listed: &Frame) -> Option<bool> {
    // The name of a class without a name has its file behind a zero byte, at which the announcement ends.
    if announced.ends_with(NAMELESS_CLASS) {
        return None;
    }
    let is_of_program = listed.kind == FrameKind::Interpreter;
    // What is outside of functions has the file for a name.
    let is_same = match (announced.rsplit_once('/'), announced.strip_suffix(PHP_CLOSURE)) {
        (Some((_, base)), _) if announced.starts_with('/') => {
            *listed.name == *base && listed.source.as_ref().is_some_and(|source| *source.file == *announced)
        }
        // Up to PHP 8.3 it calls all closures of a class or namespace alike.
        (_, Some(before)) => {
            listed.name.strip_prefix(before).is_some_and(|closure| closure.starts_with(PHP_CLOSURE_AT))
        }
        _ => *listed.name == *announced,
    };
    Some(is_of_program && is_same)
}

/// The function that a frame of a list is of.
pub(super) fn function_of(known: Option<Known>) -> Option<Frame> {
    match known? {
        Known::Functions(functions) => functions.last().cloned(),
        Known::Own | Known::Unnamed(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_after_a_map_was_read_or_was_gone_by_then_is_not_compared_with_it() {
        let [before, read, after] = [1, 2, 3].map(MonoNs);
        assert!(was_there((before, None), read) && was_there((read, Some(read)), read));
        assert!(was_there((before, Some(after)), read));
        assert!(!was_there((before, Some(before)), read), "something else is in its place");
        assert!(!was_there((after, None), read));
    }

    #[test]
    fn one_method_is_one_name_in_both_notations() {
        let shown = |name, origin| comparable(&classify(name, origin, None).display);
        let agree = |one, other| shown(one, CodeOrigin::Runtime) == shown(other, CodeOrigin::PerfMap);
        assert!(agree("Lshop/Cart;total(I[Ljava/lang/String;)I [C2]", "int shop.Cart.total(int, java.lang.String[])"));
        assert!(agree("LShop;<init>()V [C1]", "void Shop.<init>()"));
        assert!(agree("Interpreter", "Interpreter") && agree("vtable stub", "vtable stub"));
        assert!(!agree("vtable stub", "itable stub"));
        assert!(!agree("LShop;rule(I)I", "int Shop.other(int)"));
        assert!(!agree("LShop;rule(I)I", "int Cart.rule(int)"));
    }

    #[test]
    fn a_function_of_erlangs_is_the_same_with_its_head_and_what_modules_share_is_told_by_nobody() {
        let same = |tables: &str, map: &str| {
            let shown = |name, origin| classify(name, origin, None).display;
            is_same_of_beam(&[shown(tables, CodeOrigin::Runtime), shown(map, CodeOrigin::PerfMap)])
        };
        assert_eq!(same("lists:map/2", "$lists:map/2"), Some(true));
        assert_eq!(same("lists:map/2", "$lists:map/2-CodeInfoPrologue"), Some(true));
        assert_eq!(same("'Elixir.Enum':map/2", "$'Elixir.Enum':map/2"), Some(true));
        assert_eq!(same("erts_beamasm:normal_exit/0-CodeInfoPrologue", "$erts_beamasm:normal_exit/0"), Some(true));
        assert_eq!(same("lists:map/2", "$lists:map/3"), Some(false));
        assert_eq!(same("erlang:'(a'/1", "$erlang:'(b'/1"), Some(false), "no part of an atom is left out");
        assert_eq!(same("global::process_main", "$global::process_main"), Some(true));
        assert_eq!(same("global::shared", "$global::call_bif_shared"), None);
        assert_eq!(same("global::shared", "$lists:map/2"), Some(false));
        assert_eq!(same("lists:map/2", "$global::call_bif_shared"), Some(false));
    }

    #[test]
    fn code_of_phps_is_of_one_function_or_of_several() {
        assert_eq!(PhpCode::of("JIT$A::b"), Some(PhpCode::Function("A::b")));
        assert_eq!(PhpCode::of("JIT$/srv/a.php"), Some(PhpCode::Function("/srv/a.php")));
        for several in ["TRACE-3$leaf$7", "JIT$$leave_function", "jit$$trace_exit_0"] {
            assert_eq!(PhpCode::of(several), Some(PhpCode::Several));
        }
        assert_eq!(PhpCode::of("leaf"), None);
    }

    /// An element of PHP's list.
    fn listed(name: &str, file: &str) -> Frame {
        let name = classify(name, CodeOrigin::Runtime, None);
        Frame {
            name: name.display.into(),
            kind: name.kind,
            tier: name.tier,
            inlined: false,
            module: None,
            source: Some(SourceLine::new(file.into(), 0)),
            address: 0,
        }
    }

    #[test]
    fn code_of_phps_is_of_a_function_of_its_list_by_what_it_was_compiled_from_or_where_it_begins() {
        let is_of = |announced: &str, name: &str, file: &str| is_announced_as(announced, &listed(name, file));
        assert!(is_of("JIT$A::b", "php::A::b", "/a.php") && !is_of("JIT$A::b", "php::B::b", "/a.php"));
        assert!(is_of("TRACE-3$A::b$7", "php::A::b", "/a.php") && !is_of("TRACE-3$A::b$7", "php::A::c", "/a.php"));
        assert!(is_of("TRACE-3$/srv/a.php$7", "php::a.php", "/srv/a.php"));
        assert!(is_of("JIT$A::{closure}", "php::A::{closure:a.php:7}", "/a.php"));
        assert!(is_of("JIT$class@anonymous", "php::class@anonymous::b", "/a.php"));
        assert!(!is_of("JIT$class@anonymous", "php::A::b", "/a.php"));
        assert!(!is_of("JIT$$leave_function", "php::leave_function", "/a.php"), "what all functions share is of none");
        assert!(!is_of("usort", "php::usort", "/a.php"), "somebody else's name");
    }

    #[test]
    fn of_several_methods_of_classes_without_names_none_is_what_code_is_announced_as() {
        let first = |announced: &str, names: [Option<&str>; 2]| {
            let functions = names.into_iter().map(|name| name.map(|name| listed(name, "/a.php")));
            announced_first(announced, functions.enumerate()).map(|(at, _)| at)
        };
        let [one, other] = [Some("php::class@anonymous::b"), Some("php::class@anonymous::c")];
        for announced in ["JIT$class@anonymous", "TRACE-3$class@anonymous"] {
            assert_eq!(first(announced, [one, other]), None);
            assert_eq!(first(announced, [one, Some("php::A::b")]), Some(0));
            assert_eq!(first(announced, [None, other]), Some(1));
            assert_eq!(first(announced, [Some("php::A::b"), other]), Some(1));
        }
        assert_eq!(first("JIT$A::b", [Some("php::A::b"); 2]), Some(0), "it has called itself");
        assert_eq!(first("JIT$A::b", [one, other]), None);
    }

    #[test]
    fn a_function_of_phps_is_the_same_in_both_spellings() {
        let same = |announced: &str, name: &str, file: &str| is_php_function(announced, &listed(name, file));
        assert_eq!(same("A::b", "php::A::b", "/a.php"), Some(true));
        assert_eq!(same("A::b", "php::C::b", "/a.php"), Some(false));
        assert_eq!(same("usort", "php.internal::usort", ""), Some(false), "code is generated of the program's alone");
        assert_eq!(same("/srv/a.php", "php::a.php", "/srv/a.php"), Some(true));
        assert_eq!(same("/srv/a.php", "php::a.php", "/tmp/a.php"), Some(false));
        assert_eq!(same("A::{closure}", "php::A::{closure:a.php:7}", "/a.php"), Some(true));
        assert_eq!(same("A::{closure}", "php::B::{closure:a.php:7}", "/a.php"), Some(false));
        assert_eq!(same("{closure:A::b():7}", "php::{closure:A::b():7}", "/a.php"), Some(true));
        assert_eq!(same("class@anonymous", "php::class@anonymous::b", "/a.php"), None);
    }
}
