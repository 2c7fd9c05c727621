//! Compares a frame's name with what a second source says of the same address.

use std::sync::Arc;

use jitprof_common::units::{Avma, MonoNs};
use jitprof_jitdump::code::{CodeHit, CodeOrigin};

use crate::account::{NameDisagreement, VerifiedNames};
use crate::engine::frames::Known;
use crate::engine::process::Process;
use crate::profile::Holder;
use crate::symbol::names::{JitName, classify};
use crate::symbol::{Frame, FrameKind, SourceLine};

/// Disagreements that are told; further ones are counted.
const MAX_EXAMPLES: usize = 16;
/// The name of code that V8 has made of a regular expression. A dump has the pattern behind it.
const PATTERN: &str = "RegExp:";

/// A frame of generated code has been named: is it named so by the perf map, too?
pub(super) fn verify(process: &Process, hit: &CodeHit<'_>, (addr, time): (Avma, MonoNs), into: &mut VerifiedNames) {
    if hit.origin() == CodeOrigin::PerfMap {
        into.only_perf_map += 1;
        return;
    }
    // A perf map has no times: what came after it was read it knows nothing of, and names what was there before.
    let is_of_its_time = process.announcements.lines_at().is_some_and(|read| hit.since() <= read);
    let listed = process.code.map.listed(addr, time).filter(|_| is_of_its_time);
    let Some(listed) = listed else {
        into.only_announced += 1;
        return;
    };
    let is_same = comparable(process, hit) == comparable(process, &listed);
    note(is_same, (process, addr), [hit.name(), listed.name()], into);
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
    let is_same = is_pattern || is_same_code(&dumped, own);
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
    note(is_same, (process, addr), [own, hit.name()], into);
}

/// Counts a frame that two sources name.
fn note(is_same: bool, (process, addr): (&Process, Avma), names: [&str; 2], into: &mut VerifiedNames) {
    if is_same {
        into.agreed += 1;
        return;
    }
    into.disagreed += 1;
    let [announced, listed] = names.map(str::to_owned);
    let example = NameDisagreement { pid: process.id.pid.0, address: format!("{:#x}", addr.0), announced, listed };
    let is_known =
        |known: &NameDisagreement| (&known.announced, &known.listed) == (&example.announced, &example.listed);
    if into.examples.len() < MAX_EXAMPLES && !into.examples.iter().any(is_known) {
        into.examples.push(example);
    }
}

/// What is left of a name in all notations of one runtime. HotSpot's perf map has `int Shop.rule(int)` for what its tables,
/// and perf's agent, call `LShop;rule(I)I`: class and method are compared.
fn comparable(process: &Process, hit: &CodeHit<'_>) -> String {
    comparable_name(hit.name(), hit.origin(), Some(process.holder()))
}

fn comparable_name(name: &str, origin: CodeOrigin, holder: Option<Holder>) -> String {
    let shown = classify(name, origin, holder).display;
    let name = match shown.split_once('(') {
        Some((head, _)) if !head.trim().is_empty() => head.trim_end().rsplit(' ').next().unwrap_or(head),
        _ => &shown,
    };
    name.replace('/', ".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_method_is_one_name_in_both_notations() {
        let [tables, map] = [CodeOrigin::Runtime, CodeOrigin::PerfMap];
        let agree = |one, other| comparable_name(one, tables, None) == comparable_name(other, map, None);
        assert!(agree("Lshop/Cart;total(I[Ljava/lang/String;)I [C2]", "int shop.Cart.total(int, java.lang.String[])"));
        assert!(agree("LShop;<init>()V [C1]", "void Shop.<init>()"));
        assert!(agree("Interpreter", "Interpreter") && agree("vtable stub", "vtable stub"));
        assert!(!agree("vtable stub", "itable stub"));
        assert!(!agree("LShop;rule(I)I", "int Shop.other(int)"));
        assert!(!agree("LShop;rule(I)I", "int Cart.rule(int)"));
    }
}
