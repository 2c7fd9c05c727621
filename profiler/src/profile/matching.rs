//! Which functions of two profiles are one.
//!
//! Files say different things of a function: one for the Firefox Profiler has no module and no source file, another
//! program's pprof file no tier and no kind. What one side never says of a name tells nothing apart: else one recording
//! in two formats would be two programs.

use std::collections::{HashMap, HashSet};

use indexmap::IndexSet;

use super::frames::FrameRef;
use super::function::FunctionRef;
use super::merge::MergeBy;
use super::table::Profile;
use crate::symbol::{FrameKind, Tier};

/// Merges the frames of a function of two profiles, as far as both tell functions apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matching<'p> {
    /// What a function is compared as, where that is not itself.
    as_one: HashMap<FunctionRef<'p>, FunctionRef<'p>>,
    sums: usize,
    left_out: LeftOut,
}

/// Functions of a name, by side.
type BySide<'p> = [Vec<FunctionRef<'p>>; 2];

/// Where functions of one name may be one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum World {
    /// Code of this kind.
    Of(FrameKind),
    /// What a runtime made of the program: compiled or interpreted is a matter of the tier.
    Generated,
    /// Code of programs, where one side has guessed what kinds there are.
    Program,
}

/// What does not tell functions of a name apart, because one side does not say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LeftOut {
    kind: bool,
    tier: bool,
    module: bool,
    file: bool,
}

impl<'p> Matching<'p> {
    /// Finds out what both say of each name. Names that one of them lacks stay as they are.
    pub(super) fn of(sides: [&'p Profile; 2]) -> Self {
        let functions = sides.map(functions_of);
        let [a, b] = functions.each_ref().map(|known| known.iter().any(has_kind));
        let kinds_are_told = a == b;
        let mut groups: HashMap<(&'p str, World), BySide<'p>> = HashMap::new();
        for (side, known) in functions.iter().enumerate() {
            for &function in known {
                let key = (bare_name(function), World::of(function.kind, kinds_are_told));
                groups.entry(key).or_default()[side].push(function);
            }
        }
        let mut matching = Self::default();
        for (&(name, _), group) in &groups {
            matching.add(name, group);
        }
        matching
    }

    fn add(&mut self, name: &'p str, group: &BySide<'p>) {
        let left_out = LeftOut::of(group);
        if left_out == LeftOut::default() {
            return;
        }
        let mut ones: HashMap<FunctionRef<'p>, BySide<'p>> = HashMap::new();
        for (side, functions) in group.iter().enumerate() {
            for &function in functions {
                ones.entry(left_out.rest(function, name)).or_default()[side].push(function);
            }
        }
        for (rest, several) in &ones {
            if several.iter().any(|side| side.len() > 1) {
                self.sums += 1;
                self.left_out.add(left_out);
            }
            let shown = shown(*rest, several);
            self.as_one.extend(several.iter().flatten().map(|&function| (function, shown)));
        }
    }

    /// How many functions are sums of several that one side does not tell apart.
    pub fn sums(&self) -> usize {
        self.sums
    }

    /// By what it does not tell them apart.
    pub fn not_told(&self) -> Vec<&'static str> {
        let LeftOut { kind, tier, module, file } = self.left_out;
        let parts = [(kind, "kind"), (tier, "tier"), (module, "module"), (file, "source file")];
        parts.into_iter().filter(|(is_left_out, _)| *is_left_out).map(|(_, name)| name).collect()
    }
}

impl<'p> MergeBy<'p> for Matching<'p> {
    type Frame = FunctionRef<'p>;

    fn frame(&self, frame: FrameRef<'p>) -> FunctionRef<'p> {
        let function = told(frame);
        self.as_one.get(&function).copied().unwrap_or(function)
    }
}

impl World {
    fn of(kind: FrameKind, kinds_are_told: bool) -> Self {
        match kind {
            FrameKind::Kernel | FrameKind::Span | FrameKind::Note => Self::Of(kind),
            _ if !kinds_are_told => Self::Program,
            FrameKind::Jit | FrameKind::Interpreter => Self::Generated,
            FrameKind::Native | FrameKind::Builtin => Self::Of(kind),
        }
    }
}

impl LeftOut {
    /// What one side says of these functions and the other one does not; nothing if it has none.
    fn of(group: &BySide<'_>) -> Self {
        let [one, other] = group;
        if one.is_empty() || other.is_empty() {
            return Self::default();
        }
        let differs = |has: fn(&FunctionRef<'_>) -> bool| one.iter().any(has) != other.iter().any(has);
        let worlds = |side: &[FunctionRef<'_>]| -> HashSet<World> {
            side.iter().map(|function| World::of(function.kind, true)).collect()
        };
        Self {
            kind: worlds(one).is_disjoint(&worlds(other)),
            tier: differs(|function| function.tier.is_some()),
            module: differs(|function| function.module.is_some()),
            file: differs(|function| function.file.is_some()),
        }
    }

    fn add(&mut self, more: Self) {
        self.kind |= more.kind;
        self.tier |= more.tier;
        self.module |= more.module;
        self.file |= more.file;
    }

    /// What is left of a function that has this name without marks.
    fn rest<'p>(self, function: FunctionRef<'p>, name: &'p str) -> FunctionRef<'p> {
        let is_any = self.kind || self.tier && function.kind == FrameKind::Interpreter;
        FunctionRef {
            name: if self.tier { name } else { function.name },
            kind: if is_any { FrameKind::Jit } else { function.kind },
            tier: function.tier.filter(|_| !self.tier),
            module: function.module.filter(|_| !self.module),
            file: function.file.filter(|_| !self.file),
        }
    }
}

/// The functions of a profile, each once.
fn functions_of(profile: &Profile) -> IndexSet<FunctionRef<'_>> {
    profile.frame_ids().map(|id| told(profile.frame(id))).collect()
}

/// A function as all formats say it: what an interpreter runs is of the interpreters' tier, only what a runtime made has
/// one at all, and a name has no mark of the tier.
fn told(frame: FrameRef<'_>) -> FunctionRef<'_> {
    let function = FunctionRef::of(frame);
    let tier = match function.kind {
        FrameKind::Interpreter => Some(Tier::Interpreted),
        FrameKind::Jit => function.tier,
        _ => None,
    };
    let kind = if tier == Some(Tier::Interpreted) { FrameKind::Interpreter } else { function.kind };
    let name = function.name.trim();
    let name = tier.map_or(name, |tier| tier.unmarked(name));
    FunctionRef { name, kind, tier, file: function.file.filter(|file| !file.is_empty()), ..function }
}

/// Whether a function is of a kind that no reader guesses by the module.
fn has_kind(function: &FunctionRef<'_>) -> bool {
    function.tier.is_some() || matches!(function.kind, FrameKind::Builtin | FrameKind::Span | FrameKind::Note)
}

/// The name without the mark that stands in it where the tier is not said otherwise.
fn bare_name(function: FunctionRef<'_>) -> &str {
    let is_marked = function.kind == FrameKind::Jit && function.tier.is_none();
    let tiers = Tier::ALL.into_iter().filter(|_| is_marked);
    let mut bare = tiers.map(|tier| tier.unmarked(function.name)).filter(|bare| bare.len() < function.name.len());
    bare.next().unwrap_or(function.name)
}

/// What several functions are shown as of which this is left: with all that they have in common.
fn shown<'p>(rest: FunctionRef<'p>, several: &BySide<'p>) -> FunctionRef<'p> {
    let all = || several.iter().flatten();
    let kinds = || all().map(|function| function.kind);
    // A reader that guesses has native code for everything else.
    let guessed = || common(kinds().filter(|kind| *kind != FrameKind::Native));
    FunctionRef {
        name: rest.name,
        kind: common(kinds()).or_else(guessed).unwrap_or(rest.kind),
        tier: common(all().filter_map(|function| function.tier)),
        module: common(all().filter_map(|function| function.module)),
        file: common(all().filter_map(|function| function.file)),
    }
}

/// The value if all are the same.
fn common<T: PartialEq>(mut values: impl Iterator<Item = T>) -> Option<T> {
    let first = values.next()?;
    values.all(|value| value == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &'static str, tier: Option<Tier>, file: Option<&'static str>) -> FunctionRef<'static> {
        FunctionRef { name, kind: FrameKind::Jit, tier, module: Some("[jit]"), file }
    }

    fn matched(group: BySide<'static>) -> Matching<'static> {
        let mut matching = Matching::default();
        matching.add("f", &group);
        matching
    }

    #[test]
    fn what_one_side_does_not_say_is_shown_if_it_is_one_thing_and_summed_up_if_not() {
        let without = FunctionRef { module: None, ..function("f", Some(Tier::Mid), None) };
        let [a, b] = ["a.js", "b.js"].map(|file| function("f", Some(Tier::Mid), Some(file)));
        let one = matched([vec![without], vec![a]]);
        assert_eq!((one.as_one.get(&without), one.sums()), (Some(&a), 0));
        let two = matched([vec![without], vec![a, b]]);
        let sum = FunctionRef { file: None, ..a };
        assert_eq!([without, a, b].map(|function| two.as_one.get(&function)), [Some(&sum); 3]);
        assert_eq!((two.sums(), two.not_told()), (1, vec!["module", "source file"]));
        assert_eq!(matched([vec![a], vec![a, b]]), Matching::default());
        assert_eq!(matched([vec![], vec![a, b]]), Matching::default());
    }

    #[test]
    fn tiers_are_summed_up_where_one_side_has_only_their_marks() {
        let marked = function("*f", None, None);
        let optimized = function("f", Some(Tier::Optimized), None);
        let interpreted = FunctionRef { kind: FrameKind::Interpreter, ..function("f", Some(Tier::Interpreted), None) };
        assert_eq!(bare_name(marked), "f");
        let matching = matched([vec![marked], vec![optimized, interpreted]]);
        let sum = function("f", None, None);
        let as_one = [marked, optimized, interpreted].map(|function| matching.as_one.get(&function));
        assert_eq!((as_one, matching.not_told()), ([Some(&sum); 3], vec!["tier"]));
    }

    #[test]
    fn kinds_that_were_guessed_are_those_of_the_other_side() {
        let native = FunctionRef { kind: FrameKind::Native, ..function("f", None, None) };
        let builtin = FunctionRef { kind: FrameKind::Builtin, module: None, ..native };
        let matching = matched([vec![native], vec![builtin]]);
        let both = FunctionRef { module: native.module, ..builtin };
        assert_eq!((matching.as_one.get(&native), matching.as_one.get(&builtin)), (Some(&both), Some(&both)));
    }
}
