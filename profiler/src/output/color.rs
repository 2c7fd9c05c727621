//! Colours by kind of frame.

use inferno::flamegraph::color::Color;

use crate::profile::{FrameRef, fnv1a};
use crate::symbol::{FrameKind, Tier, is_guess};

/// What a frame's colour tells. In the order of the legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Class {
    /// No code: a process or a thread.
    Task,
    /// Code of the kernel.
    Kernel,
    /// Code of an ELF file.
    Native,
    /// A function inlined into its caller.
    Inlined,
    /// A function that was inlined there, or not.
    Guess,
    /// Jitted code of a runtime without tiers, or of an unknown tier.
    Jit,
    /// Jitted code of the full optimiser.
    Optimized,
    /// Jitted code of a fast optimiser.
    Mid,
    /// Jitted code without optimisation.
    Baseline,
    /// A function run by an interpreter.
    Interpreted,
    /// Code that the runtime generated for itself.
    Builtin,
    /// A span of a trace log.
    Span,
    /// A word of jitprof's own.
    Note,
}

/// A colour as artists give it: hue in degrees, saturation and lightness in percent.
struct Hsl(f64, f64, f64);

impl Class {
    /// All classes in the order of the legend.
    pub(crate) const ALL: [Self; 13] = [
        Self::Task,
        Self::Kernel,
        Self::Native,
        Self::Inlined,
        Self::Guess,
        Self::Jit,
        Self::Optimized,
        Self::Mid,
        Self::Baseline,
        Self::Interpreted,
        Self::Builtin,
        Self::Span,
        Self::Note,
    ];

    /// The class of a frame. Being inlined tells more than where the code lies: it explains why there is no call.
    pub(crate) fn of(frame: FrameRef<'_>) -> Self {
        match (frame.kind, frame.tier) {
            (FrameKind::Note, _) => Self::Note,
            _ if is_guess(frame.name, frame.kind, frame.inlined) => Self::Guess,
            _ if frame.inlined => Self::Inlined,
            (FrameKind::Kernel, _) => Self::Kernel,
            (FrameKind::Native, _) => Self::Native,
            (FrameKind::Builtin, _) => Self::Builtin,
            (FrameKind::Span, _) => Self::Span,
            (FrameKind::Interpreter, _) | (FrameKind::Jit, Some(Tier::Interpreted)) => Self::Interpreted,
            (FrameKind::Jit, Some(Tier::Baseline)) => Self::Baseline,
            (FrameKind::Jit, Some(Tier::Mid)) => Self::Mid,
            (FrameKind::Jit, Some(Tier::Optimized)) => Self::Optimized,
            (FrameKind::Jit, None) => Self::Jit,
        }
    }

    /// The word in the legend.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Task => "thread",
            Self::Kernel => "kernel",
            Self::Native => "native",
            Self::Inlined => "inlined",
            Self::Guess => "maybe inlined ?",
            Self::Jit => "JIT",
            Self::Optimized => "JIT optimised *",
            Self::Mid => "JIT mid +",
            Self::Baseline => "JIT baseline ^",
            Self::Interpreted => "interpreted ~",
            Self::Builtin => "builtin",
            Self::Span => "span",
            Self::Note => "note",
        }
    }

    /// The middle of the class's colours, which the legend shows. Light enough for black text on all of them
    /// (contrast at least 7:1, tested), and apart from each other for eyes that lack one kind of cones, too: what hue does not
    /// tell, lightness does (tested). Found by search; a colour that is moved moves others.
    fn hsl(self) -> Hsl {
        match self {
            Self::Task => Hsl(202.0, 5.0, 82.0),
            Self::Kernel => Hsl(20.0, 100.0, 64.0),
            Self::Native => Hsl(42.0, 89.0, 74.0),
            Self::Inlined => Hsl(318.0, 64.0, 79.0),
            Self::Guess => Hsl(312.0, 100.0, 93.0),
            Self::Jit => Hsl(81.0, 67.0, 54.0),
            Self::Optimized => Hsl(121.0, 40.0, 54.0),
            Self::Mid => Hsl(160.0, 61.0, 54.0),
            Self::Baseline => Hsl(190.0, 100.0, 54.0),
            Self::Interpreted => Hsl(226.0, 100.0, 79.0),
            Self::Builtin => Hsl(286.0, 45.0, 71.0),
            Self::Span => Hsl(74.0, 100.0, 88.0),
            Self::Note => Hsl(0.0, 0.0, 64.0),
        }
    }

    /// The colour in the legend.
    pub(super) fn color(self) -> Color {
        rgb(&self.hsl())
    }

    /// The colour as HTML and SVG write it.
    pub(crate) fn hex(self) -> String {
        let Color { r, g, b } = self.color();
        format!("#{r:02x}{g:02x}{b:02x}")
    }

    /// The colour of a frame with this name: near the legend's, so that neighbours differ, and the same in every run.
    pub(super) fn color_of(self, name: &str) -> Color {
        let Hsl(hue, saturation, lightness) = self.hsl();
        let hash = fnv1a(name.as_bytes());
        let [a, b, ..] = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        // From -1 to 1.
        let (a, b) = (f64::from(a) / 127.5 - 1.0, f64::from(b) / 127.5 - 1.0);
        rgb(&Hsl(hue + 4.0 * a, saturation, lightness + 5.0 * b))
    }
}

/// The usual conversion (CSS Color 4, section 7.1).
fn rgb(&Hsl(hue, saturation, lightness): &Hsl) -> Color {
    let (saturation, lightness) = (saturation / 100.0, lightness / 100.0);
    let amplitude = saturation * lightness.min(1.0 - lightness);
    let channel = |n: f64| {
        let k = (n + hue.rem_euclid(360.0) / 30.0) % 12.0;
        let value = lightness - amplitude * (k - 3.0).min(9.0 - k).clamp(-1.0, 1.0);
        byte(value * 255.0)
    };
    Color { r: channel(0.0), g: channel(8.0), b: channel(4.0) }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to a byte's range; the standard library has no checked cast from f64"
)]
fn byte(value: f64) -> u8 {
    value.round().clamp(0.0, 255.0) as u8
}
