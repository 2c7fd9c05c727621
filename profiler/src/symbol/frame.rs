//! What one frame of a stack says, once it has been resolved.

use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;
use std::sync::Arc;

/// Which world a frame's code belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FrameKind {
    /// The kernel.
    Kernel,
    /// Code of an ELF file (or the vDSO).
    Native,
    /// Code that a runtime generated from the user's program.
    Jit,
    /// The user's program run by an interpreter, one frame per function (V8 with native interpreter stacks).
    Interpreter,
    /// Code that a runtime generated for itself: builtins, stubs, bytecode handlers.
    Builtin,
    /// No code: a span of a trace log, within which the frames further in ran.
    Span,
    /// No frame of the program: a word of jitprof's own, such as why the stack ends here.
    Note,
}

/// How far a runtime had optimised the code, where the name tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Tier {
    /// Run by an interpreter (V8 `~`).
    Interpreted,
    /// Compiled without optimisation (V8 `^`, Sparkplug).
    Baseline,
    /// Compiled by a fast optimiser (V8 `+`, Maglev).
    Mid,
    /// Compiled by the full optimiser (V8 `*`, TurboFan).
    Optimized,
}

impl Tier {
    /// All of them, the slowest first.
    pub const ALL: [Self; 4] = [Self::Interpreted, Self::Baseline, Self::Mid, Self::Optimized];

    /// V8's mark of a tier, as its users know it from `--prof` and `perf`.
    pub fn mark(self) -> char {
        match self {
            Self::Interpreted => '~',
            Self::Baseline => '^',
            Self::Mid => '+',
            Self::Optimized => '*',
        }
    }

    /// A name without the mark, if it has it in front of something.
    pub fn unmarked(self, name: &str) -> &str {
        name.strip_prefix(self.mark()).filter(|rest| !rest.is_empty()).unwrap_or(name)
    }
}

/// A place in source code.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SourceLine {
    /// The file as the debug information or the runtime names it.
    pub file: Arc<str>,
    /// Line from 1; 0 when only the file is known.
    pub line: u32,
    /// Column in it, from 1 and in UTF-16 code units as V8's own stack traces have it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<NonZeroU32>,
}

impl SourceLine {
    /// A line of a file, without a column.
    pub fn new(file: Arc<str>, line: u32) -> Self {
        Self { file, line, column: None }
    }

    /// The file alone.
    pub fn without_line(&self) -> Self {
        Self::new(Arc::clone(&self.file), 0)
    }
}

/// The file that a frame's code was loaded from, as profiles record it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Module {
    /// Path in the target's own mount namespace, or a bracketed name such as `[kernel.kallsyms]`, `[vdso]`, `[jit]`.
    pub path: Arc<str>,
    /// GNU build id in lower-case hex, when the file has one.
    pub build_id: Option<Arc<str>>,
}

/// Stands in front of the name of a function that is a guess, where others have the mark of their tier.
const GUESS: char = '?';

/// One frame. An inlined function is a frame of its own with `inlined` set, below (towards the leaf) the function it
/// was inlined into.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Frame {
    /// Demangled function name; for unresolved code a bracketed reason such as `[unknown]`, never empty. Unsanitized.
    pub name: Arc<str>,
    /// Which world the code belongs to.
    pub kind: FrameKind,
    /// The runtime's optimisation tier, where known.
    pub tier: Option<Tier>,
    /// Set for a function inlined into the next frame towards the root.
    pub inlined: bool,
    /// Where the code came from.
    pub module: Option<Arc<Module>>,
    /// Source line of the sampled or calling instruction, where known.
    pub source: Option<SourceLine>,
    /// For an ELF file: the file offset of the looked-up instruction; for generated code: the virtual address of the
    /// sampled instruction, or of a caller's first byte, 0 in a service's profiles; 0 for the kernel and for notes.
    pub address: u64,
}

impl Frame {
    /// The same as a guess: it may have been inlined where the code was interrupted, or not. Its tier is that of the function
    /// that it would have been inlined into.
    pub fn as_guess(self) -> Self {
        Self { name: format!("{GUESS}{}", self.name).into(), tier: None, ..self }
    }
}

/// Whether a frame is a guess, by its name and what else it is.
pub fn is_guess(name: &str, kind: FrameKind, inlined: bool) -> bool {
    inlined && kind == FrameKind::Jit && name.starts_with(GUESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_has_its_own_mark_and_stays_one() {
        let frame = |name: &str, kind, inlined| {
            let (name, tier) = (name.into(), Some(Tier::Optimized));
            Frame { name, kind, tier, inlined, module: None, source: None, address: 1 }
        };
        let guess = frame("A.f()V", FrameKind::Jit, true).as_guess();
        assert_eq!((&*guess.name, guess.tier, guess.inlined), ("?A.f()V", None, true));
        let is_guess = |frame: &Frame| is_guess(&frame.name, frame.kind, frame.inlined);
        assert!(is_guess(&guess) && !is_guess(&frame("A.f()V", FrameKind::Jit, true)));
        // Names of C++ on Windows begin so, and other code is nothing that is guessed.
        assert!(!is_guess(&frame("?f@@YAXXZ", FrameKind::Native, true)));
        assert!(!is_guess(&frame("?f", FrameKind::Jit, false)));
    }
}
