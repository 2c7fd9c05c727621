//! A target's known call structure, and whether stacks agree with it frame by frame.

use std::collections::{BTreeMap, BTreeSet};

use crate::folded::{Folded, Stack, base};
use crate::share::Share;

/// Wrong stacks shown for each reason.
const SHOWN: usize = 3;

/// Which function calls which.
///
/// It is written as chains, outermost first: `main > run > sort_a .. compare_a > work_a`. `>` is a direct call; `..` is
/// one through functions of libraries. A function may call itself if a chain says so (`recurse > recurse`). A chain that
/// begins with `..` goes on where another one has led: its first function begins no stack.
///
/// A stack agrees if it is complete, its first function of the target's own begins a chain, each further one is called
/// by the one before as a chain says, and between the two there is nothing, or, with `..`, functions of `via` only. Behind
/// the innermost of its own there may be anything: libraries and the kernel.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    roots: BTreeSet<&'static str>,
    own: BTreeSet<&'static str>,
    direct: BTreeSet<(&'static str, &'static str)>,
    through: BTreeSet<(&'static str, &'static str)>,
    via: &'static [&'static str],
}

/// How far the stacks agree with a [`Truth`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Stacks with a function of the target's own.
    pub own: u64,
    /// Those of them that are complete.
    pub complete: u64,
    /// Those of them that agree frame by frame.
    pub right: u64,
    /// Why the others do not, with the number of samples and some of the stacks.
    pub misses: BTreeMap<String, (u64, Vec<String>)>,
}

impl Truth {
    /// Reads chains. A frame between two of the target's own may begin with any of `via`.
    pub fn new(chains: &[&'static str], via: &'static [&'static str]) -> Self {
        let mut truth = Self { via, ..Self::default() };
        for chain in chains {
            let mut caller: Option<&str> = None;
            let goes_on = chain.strip_prefix(".. ");
            for part in goes_on.unwrap_or(chain).split(" .. ") {
                for (place, name) in part.split(" > ").enumerate() {
                    match caller {
                        None if goes_on.is_some() => false,
                        None => truth.roots.insert(name),
                        Some(caller) if place == 0 => truth.through.insert((caller, name)),
                        Some(caller) => truth.direct.insert((caller, name)),
                    };
                    truth.own.insert(name);
                    caller = Some(name);
                }
            }
        }
        truth
    }

    /// Holds all stacks that have a function of the target's own against the chains.
    pub fn check(&self, folded: &Folded) -> Agreement {
        let mut agreement = Agreement::default();
        for stack in &folded.stacks {
            if !stack.frames.iter().any(|frame| self.own.contains(base(frame))) {
                continue;
            }
            agreement.own += stack.count;
            agreement.complete += if stack.is_cut() { 0 } else { stack.count };
            match self.disagreement(stack) {
                None => agreement.right += stack.count,
                Some(why) => {
                    let (count, shown) = agreement.misses.entry(why).or_default();
                    *count += stack.count;
                    if shown.len() < SHOWN {
                        shown.push(stack.frames.join(";"));
                    }
                }
            }
        }
        agreement
    }

    /// What is wrong with a stack, if anything is.
    fn disagreement(&self, stack: &Stack) -> Option<String> {
        if let Some(note) = stack.frames.iter().find(|frame| frame.starts_with("[cut: ")) {
            return Some(note.clone());
        }
        let mut caller: Option<&str> = None;
        let mut between: Vec<&str> = Vec::new();
        for frame in stack.frames.iter().map(|frame| base(frame)) {
            if !self.own.contains(frame) {
                between.push(frame);
                continue;
            }
            let known = match caller {
                None => self.roots.contains(frame),
                Some(caller) if between.is_empty() => self.direct.contains(&(caller, frame)),
                Some(caller) => {
                    let foreign = |name: &&str| !self.via.iter().any(|via| name.starts_with(via));
                    self.through.contains(&(caller, frame)) && !between.iter().any(foreign)
                }
            };
            if !known {
                let Some(caller) = caller else { return Some(format!("nobody calls {frame}")) };
                let way = if between.is_empty() { String::new() } else { format!(" through {}", between.len()) };
                return Some(format!("{caller} calls {frame}{way}"));
            }
            caller = Some(frame);
            between.clear();
        }
        None
    }
}

impl Agreement {
    /// Complete stacks, of those with a function of the target's own.
    pub fn complete(&self) -> Share {
        Share { part: self.complete, whole: self.own }
    }

    /// Stacks that agree, of those with a function of the target's own.
    pub fn right(&self) -> Share {
        Share { part: self.right, whole: self.own }
    }

    /// The reasons of all misses, with examples, one a line.
    pub fn explanation(&self) -> String {
        let lines = self.misses.iter().flat_map(|(why, (count, stacks))| {
            std::iter::once(format!("{count:6} {why}\n"))
                .chain(stacks.iter().map(|stack| format!("         {stack}\n")))
        });
        lines.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lines: &str) -> Agreement {
        let truth = Truth::new(
            &["main > run > sort .. compare > work", "main > run > down > down > work"],
            &["qsort", "msort"],
        );
        truth.check(&Folded::parse(lines).unwrap())
    }

    #[test]
    fn stacks_along_the_chains_agree() {
        let right = check(
            "p;_start;main;run;sort;qsort_r;msort;msort;compare;work 3\np;main;run;down;down;down;work;memcpy 2\np;main;run 1\np;other 7\n",
        );
        assert_eq!((right.own, right.complete, right.right), (6, 6, 6), "{right:?}");
    }

    #[test]
    fn a_skipped_caller_a_foreign_frame_and_a_lost_root_are_told() {
        for (stack, why) in [
            ("p;main;sort;qsort;compare 1", "main calls sort"),
            ("p;main;run;sort;qsort;garbage;compare 1", "sort calls compare through 2"),
            ("p;main;run;printf;sort 1", "run calls sort through 1"),
            ("p;run;sort 1", "nobody calls run"),
            ("p;[cut: no frame pointer];compare;work 1", "[cut: no frame pointer]"),
        ] {
            let agreement = check(&format!("{stack}\n"));
            assert_eq!(agreement.right, 0, "{stack}");
            assert_eq!(agreement.misses.keys().collect::<Vec<_>>(), [why], "{stack}");
            assert!(agreement.explanation().contains(why));
        }
    }
}
