//! Folded stacks.

use std::fmt::Display;

use anyhow::{Context, Result};

use crate::share::Share;

/// Characters of a stack that are shown.
const SHOWN_CHARACTERS: usize = 300;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// The thread's frames first, the innermost frame last.
    pub frames: Vec<String>,
    /// Samples.
    pub count: u64,
}

impl Stack {
    /// Whether a frame has this name, whatever its tier's mark.
    pub fn has(&self, name: &str) -> bool {
        self.frames.iter().any(|frame| base(frame) == name)
    }

    /// Whether a frame is written just so. Of several stubs of one JVM [`Self::has`] compares what they have in common.
    pub fn has_written(&self, frame: &str) -> bool {
        self.frames.iter().any(|written| written == frame)
    }

    /// Whether it is of the process with this number, where processes are kept apart.
    pub fn is_of(&self, pid: impl Display) -> bool {
        self.frames.first().is_some_and(|root| base(root) == format!("pid-{pid}"))
    }

    /// How many frames have this name, whatever their tiers' marks.
    pub fn number_of(&self, name: &str) -> usize {
        self.frames.iter().filter(|frame| base(frame) == name).count()
    }

    /// Whether these frames follow each other directly, outermost first.
    pub fn has_chain(&self, names: &[&str]) -> bool {
        self.frames.windows(names.len()).any(|window| window.iter().map(|frame| base(frame)).eq(names.iter().copied()))
    }

    /// Whether it ends before its outermost frame, and says so.
    pub fn is_cut(&self) -> bool {
        self.has_prefix("[cut: ")
    }

    /// Whether a frame's name begins so.
    pub fn has_prefix(&self, prefix: &str) -> bool {
        self.frames.iter().any(|frame| base(frame).starts_with(prefix))
    }
}

/// A frame without V8's marks of tiers, and without the place that V8 puts behind the name.
pub(crate) fn base(frame: &str) -> &str {
    let name = frame.trim_start_matches(['*', '~', '^', '+']);
    name.split(" (").next().unwrap_or(name).split(" /").next().unwrap_or(name)
}

/// A folded file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folded {
    /// Its lines.
    pub stacks: Vec<Stack>,
}

impl Folded {
    /// Reads all lines.
    ///
    /// # Errors
    /// A line is no folded stack.
    pub fn parse(text: &str) -> Result<Self> {
        let stack = |line: &str| {
            let (frames, count) = line.rsplit_once(' ')?;
            Some(Stack { frames: frames.split(';').map(str::to_owned).collect(), count: count.parse().ok()? })
        };
        let stacks = text
            .lines()
            .map(|line| stack(line).with_context(|| format!("no folded stack: {line:?}")))
            .collect::<Result<_>>()?;
        Ok(Self { stacks })
    }

    /// The stacks that are meant, and the others.
    pub fn part(&self, meant: impl FnMut(&Stack) -> bool) -> (Self, Self) {
        let (meant, others) = self.stacks.iter().cloned().partition(meant);
        (Self { stacks: meant }, Self { stacks: others })
    }

    /// Samples in all.
    pub fn total(&self) -> u64 {
        self.stacks.iter().map(|stack| stack.count).sum()
    }

    /// Samples whose stack is meant.
    pub fn count(&self, mut meant: impl FnMut(&Stack) -> bool) -> u64 {
        self.stacks.iter().filter(|stack| meant(stack)).map(|stack| stack.count).sum()
    }

    /// Samples in `part`, of those in either.
    pub fn share(&self, part: &str, rest: &str) -> Share {
        let part = self.count(|stack| stack.has(part));
        Share { part, whole: part + self.count(|stack| stack.has(rest)) }
    }

    /// Samples in `leaf` that came there through this chain, of all in `leaf`.
    pub fn through(&self, chain: &[&str]) -> Share {
        let leaf = chain.last().copied().unwrap_or_default();
        Share { part: self.count(|stack| stack.has_chain(chain)), whole: self.count(|stack| stack.has(leaf)) }
    }

    /// Complete stacks, of all with this frame.
    pub fn complete_with(&self, name: &str) -> Share {
        Share {
            part: self.count(|stack| stack.has(name) && !stack.is_cut()),
            whole: self.count(|stack| stack.has(name)),
        }
    }

    /// The largest stacks, for people.
    pub fn largest(&self, number: usize) -> String {
        let mut stacks: Vec<&Stack> = self.stacks.iter().collect();
        stacks.sort_by_key(|stack| std::cmp::Reverse(stack.count));
        let line = |stack: &&Stack| {
            let frames = stack.frames.join(";");
            // The innermost frames tell most, and a stack may have hundreds.
            let shown = frames.char_indices().nth_back(SHOWN_CHARACTERS).map_or(0, |(index, _)| index);
            format!("{:6} {}\n", stack.count, &frames[shown..])
        };
        stacks.iter().take(number).map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_and_places_are_no_part_of_a_name() {
        let folded =
            Folded::parse("node;main;*leafHot file:///x.js:8 (x.js:8) 3\nnode;main;~leafHot /x.js:8 4\n").unwrap();
        assert_eq!(folded.total(), 7);
        assert_eq!(folded.count(|stack| stack.has("leafHot")), 4);
        assert_eq!(folded.through(&["main", "leafHot"]), Share { part: 4, whole: 4 });
    }

    #[test]
    fn a_process_is_found_by_its_number_with_a_name_and_without() {
        let folded = Folded::parse("pid-78 (node);node;main 3\npid-78;main 4\npid-7 (pid-78);x 5\n").unwrap();
        assert_eq!([folded.count(|stack| stack.is_of(78)), folded.count(|stack| stack.is_of("7"))], [7, 5]);
    }

    #[test]
    fn what_is_no_stack_is_an_error() {
        assert!(Folded::parse("a;b\n").is_err());
        assert!(Folded::parse("a;b x\n").is_err());
    }
}
