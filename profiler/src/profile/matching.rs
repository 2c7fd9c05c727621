//! Which functions of two profiles are one.
//!
//! Files say different things of a function: one for the Firefox Profiler has no module and no source file, another
//! program's pprof file no tier and no kind. What one side says of no function at all tells nothing apart: else one
//! recording in two formats would be two programs. What it says of others it would have said of this one, too.

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

/// What both sides say of functions, or neither does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    /// What kind of code it is, and of what tier: a reader that has to guess the one knows nothing of the other.
    kind: bool,
    module: bool,
    file: bool,
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
        let told = Told::by_both(&functions);
        let mut groups: HashMap<(&'p str, World), BySide<'p>> = HashMap::new();
        for (side, known) in functions.iter().enumerate() {
            for &function in known {
                let key = (bare_name(function), World::of(function.kind, told.kind));
                groups.entry(key).or_default()[side].push(function);
            }
        }
        let mut matching = Self::default();
        for (&(name, _), group) in &groups {
            matching.add(name, group, told);
        }
        matching
    }

    fn add(&mut self, name: &'p str, group: &BySide<'p>, told: Told) {
        let left_out = LeftOut::of(group, told);
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

impl Told {
    fn by_both([one, other]: &[IndexSet<FunctionRef<'_>>; 2]) -> Self {
        let is_told = |has: fn(&FunctionRef<'_>) -> bool| one.iter().any(has) == other.iter().any(has);
        Self {
            kind: is_told(has_kind),
            module: is_told(|function| function.module.is_some()),
            file: is_told(|function| function.file.is_some()),
        }
    }
}

impl LeftOut {
    /// What is known of these functions, but not what both sides tell; nothing if one has none.
    fn of(group: &BySide<'_>, told: Told) -> Self {
        let [one, other] = group;
        if one.is_empty() || other.is_empty() {
            return Self::default();
        }
        let any = |has: fn(&FunctionRef<'_>) -> bool| group.iter().flatten().any(has);
        let has_places = !group.iter().any(|side| is_put_together(side));
        let worlds = |side: &[FunctionRef<'_>]| -> HashSet<World> {
            side.iter().map(|function| World::of(function.kind, true)).collect()
        };
        Self {
            kind: worlds(one).is_disjoint(&worlds(other)),
            tier: !told.kind && any(|function| function.tier.is_some() || function.kind == FrameKind::Interpreter),
            module: !(told.module && has_places) && any(|function| function.module.is_some()),
            file: !(told.file && has_places) && any(|function| function.file.is_some()),
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

/// A function as all formats say it: only what a runtime made or runs has a tier, and a name has no mark of it. What an
/// interpreter keeps of a function may be of no tier: generated code runs it, or some of it.
fn told(frame: FrameRef<'_>) -> FunctionRef<'_> {
    let function = FunctionRef::of(frame);
    let tier = match function.kind {
        FrameKind::Jit | FrameKind::Interpreter => function.tier,
        _ => None,
    };
    let kind = if tier == Some(Tier::Interpreted) { FrameKind::Interpreter } else { function.kind };
    let name = function.name.trim();
    let name = tier.map_or(name, |tier| tier.unmarked(name));
    FunctionRef { name, kind, tier, file: function.file.filter(|file| !file.is_empty()), ..function }
}

/// Whether a function is of a kind that no reader guesses by the module.
fn has_kind(function: &FunctionRef<'_>) -> bool {
    let is_guessed = matches!(function.kind, FrameKind::Kernel | FrameKind::Native | FrameKind::Jit);
    function.tier.is_some() || !is_guessed
}

/// Whether functions that are else alike are said with their module and without it: one format has the modules of all
/// code of a kind or of none, so this was put together from several.
fn is_put_together(side: &[FunctionRef<'_>]) -> bool {
    let alike = |has_module: bool| {
        let of_these = side.iter().filter(|function| function.module.is_some() == has_module);
        of_these.map(|function| FunctionRef { module: None, file: None, ..*function }).collect::<HashSet<_>>()
    };
    !alike(true).is_disjoint(&alike(false))
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

    const ALL: Told = Told { kind: true, module: true, file: true };

    fn matched(group: BySide<'static>, told: Told) -> Matching<'static> {
        let mut matching = Matching::default();
        matching.add("f", &group, told);
        matching
    }

    #[test]
    fn what_one_side_does_not_say_is_shown_if_it_is_one_thing_and_summed_up_if_not() {
        let without = FunctionRef { module: None, ..function("f", Some(Tier::Mid), None) };
        let [a, b] = ["a.js", "b.js"].map(|file| function("f", Some(Tier::Mid), Some(file)));
        let no_places = Told { module: false, file: false, ..ALL };
        let one = matched([vec![without], vec![a]], no_places);
        assert_eq!((one.as_one.get(&without), one.sums()), (Some(&a), 0));
        let two = matched([vec![without], vec![a, b]], no_places);
        let sum = FunctionRef { file: None, ..a };
        assert_eq!([without, a, b].map(|function| two.as_one.get(&function)), [Some(&sum); 3]);
        assert_eq!((two.sums(), two.not_told()), (1, vec!["module", "source file"]));
        assert_eq!(matched([vec![a], vec![a, b]], ALL), Matching::default());
        assert_eq!(matched([vec![], vec![a, b]], no_places), Matching::default());
    }

    #[test]
    fn what_both_sides_say_of_others_tells_those_of_a_name_apart() {
        let interpreted =
            FunctionRef { kind: FrameKind::Interpreter, ..function("f", Some(Tier::Interpreted), Some("a.php")) };
        // What generated code runs keeps its file, and what is dumped of such code has a name alone.
        let kept = FunctionRef { tier: None, ..interpreted };
        let compiled = function("f", None, None);
        for after in [compiled, kept] {
            assert_eq!(matched([vec![interpreted], vec![after]], ALL), Matching::default());
        }
        let sides =
            [vec![interpreted], vec![FunctionRef { name: "g", ..interpreted }, compiled]].map(IndexSet::from_iter);
        assert_eq!(Told::by_both(&sides), ALL);
        let of_another_program = [vec![compiled], vec![interpreted]].map(IndexSet::from_iter);
        assert_eq!(Told::by_both(&of_another_program), Told { kind: false, file: false, ..ALL });
    }

    #[test]
    fn tiers_are_summed_up_where_one_side_has_only_their_marks() {
        let marked = function("*f", None, None);
        let optimized = function("f", Some(Tier::Optimized), None);
        let interpreted = FunctionRef { kind: FrameKind::Interpreter, ..function("f", Some(Tier::Interpreted), None) };
        assert_eq!(bare_name(marked), "f");
        let no_kinds = Told { kind: false, ..ALL };
        let matching = matched([vec![marked], vec![optimized, interpreted]], no_kinds);
        let sum = function("f", None, None);
        let as_one = [marked, optimized, interpreted].map(|function| matching.as_one.get(&function));
        assert_eq!((as_one, matching.not_told()), ([Some(&sum); 3], vec!["tier"]));
    }

    #[test]
    fn kinds_that_were_guessed_are_those_of_the_other_side() {
        let native = FunctionRef { kind: FrameKind::Native, ..function("f", None, None) };
        let builtin = FunctionRef { kind: FrameKind::Builtin, module: None, ..native };
        let matching = matched([vec![native], vec![builtin]], Told { kind: false, module: false, ..ALL });
        let both = FunctionRef { module: native.module, ..builtin };
        assert_eq!((matching.as_one.get(&native), matching.as_one.get(&builtin)), (Some(&both), Some(&both)));
    }
}
