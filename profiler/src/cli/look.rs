//! How a written profile looks: the options that recording, report and replay have in common.

use clap::Args;

use crate::output::{ColorScheme, OutputError, OutputOptions};

/// The options as typed.
#[derive(Clone, Debug, Args)]
pub struct LookArgs {
    /// What frames there are.
    #[command(flatten)]
    pub shape: ShapeArgs,

    /// Title of the flamegraph
    #[arg(long, value_name = "TEXT", help_heading = "Output")]
    pub title: Option<String>,

    /// Colours of the flamegraph: kind (kernel, native, JIT, …) or one of inferno's palettes
    #[arg(long, value_name = "PALETTE", default_value = "kind", help_heading = "Output")]
    pub color: String,
}

/// Those that a service is asked with, too.
#[derive(Clone, Debug, Args)]
pub struct ShapeArgs {
    /// A frame for each thread at the root of the stacks
    #[arg(long, help_heading = "Output")]
    pub per_thread: bool,

    /// A frame for each process at the root of the stacks; always on when several processes are chosen
    #[arg(long, help_heading = "Output")]
    pub per_process: bool,

    /// Source lines in the frames
    #[arg(long, help_heading = "Output")]
    pub lines: bool,

    /// One frame for a function, whatever tier its code is of
    #[arg(long, help_heading = "Output")]
    pub merge_tiers: bool,

    /// Leave out frames narrower than this many percent of the picture
    #[arg(long, value_name = "PERCENT", default_value_t = 0.01, value_parser = percent, help_heading = "Output")]
    #[arg(allow_negative_numbers = true)]
    pub min_width: f64,

    /// Merge stacks from the leaf instead of the root: who calls the hot functions
    #[arg(long, help_heading = "Output")]
    pub reverse: bool,

    /// Root at the bottom, instead of the top, where a picture opens
    #[arg(long, help_heading = "Output")]
    pub flame: bool,
}

impl LookArgs {
    /// What they mean; `several`: for a recording of several processes.
    ///
    /// # Errors
    /// The palette is unknown.
    pub(super) fn options(&self, several: bool) -> Result<OutputOptions, OutputError> {
        Ok(OutputOptions {
            title: self.title.clone(),
            subtitle: None,
            min_width_percent: self.shape.min_width,
            reverse: self.shape.reverse,
            upwards: self.shape.flame,
            colors: self.color.parse::<ColorScheme>()?,
            lines: self.shape.lines,
            per_thread: self.shape.per_thread,
            per_process: several || self.shape.per_process,
            merge_tiers: self.shape.merge_tiers,
            without_labels: false,
        })
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let value: f64 = text.trim_end_matches('%').parse().map_err(|_| format!("{text} is no number"))?;
    if (0.0..=100.0).contains(&value) { Ok(value) } else { Err(format!("{text} is not between 0 and 100")) }
}
