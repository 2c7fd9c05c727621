//! What a user may ask of an output.

use std::str::FromStr;

use inferno::flamegraph::Palette;

use super::error::OutputError;

/// Choices about outputs. Each says which formats heed it; the others ignore it.
#[derive(Clone, Debug)]
pub struct OutputOptions {
    /// Title in place of the profile's own (SVG, Firefox).
    pub title: Option<String>,
    /// A line below the title (SVG).
    pub subtitle: Option<String>,
    /// Frames narrower than this percentage of all samples are left out (SVG). From 0 to 100.
    pub min_width_percent: f64,
    /// Merges stacks by their leaves: the leaf becomes the root (SVG).
    pub reverse: bool,
    /// Draws from the bottom up (SVG); else the root is on top, where a picture opens.
    pub upwards: bool,
    /// How frames are coloured (SVG).
    pub colors: ColorScheme,
    /// Appends ` (file:line:column)`, as far as it is known, to the names of frames, which keeps the places in a
    /// function apart (SVG, folded, Firefox; pprof always has them).
    pub lines: bool,
    /// Keeps threads apart by a `comm-tid` frame below the root (SVG, folded; the others always do).
    pub per_thread: bool,
    /// Keeps processes apart by a `pid-N (name)` root frame (SVG, folded; the others always do).
    pub per_process: bool,
    /// A function is one frame whatever its tier (SVG, folded; the others always keep tiers apart).
    pub merge_tiers: bool,
    /// Leaves out the labels of samples (pprof): whoever sends the file says them beside it.
    pub without_labels: bool,
}

impl Default for OutputOptions {
    /// Nothing special, and a minimal width of 0.01 %: about a tenth of a pixel on a full-width screen.
    fn default() -> Self {
        Self {
            title: None,
            subtitle: None,
            min_width_percent: 0.01,
            reverse: false,
            upwards: false,
            colors: ColorScheme::ByKind,
            lines: false,
            per_thread: false,
            per_process: false,
            merge_tiers: false,
            without_labels: false,
        }
    }
}

/// How a flamegraph is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ColorScheme {
    /// Each kind of frame and each tier has its hue.
    #[default]
    ByKind,
    /// One of inferno's palettes, by a hash of the name.
    Palette(Palette),
}

impl FromStr for ColorScheme {
    type Err = OutputError;

    /// `kind`, or the name of one of inferno's palettes.
    fn from_str(name: &str) -> Result<Self, OutputError> {
        if name == "kind" {
            return Ok(Self::ByKind);
        }
        name.parse().map(Self::Palette).map_err(|_| OutputError::UnknownColors { name: name.to_owned() })
    }
}
