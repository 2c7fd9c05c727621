//! The flamegraph, drawn by inferno.
//!
//! inferno takes folded lines and colours frames by name, strips `_[k]` and the like from names, splits them at `;`,
//! trims them, and takes a number at their end for a count. So each name goes to it with marks: control characters,
//! which no printable name contains. They make two frames of different kinds two names, keep inferno from seeing an
//! end of name that the target chose, and are taken out of the SVG on its way to the writer ([`Unmarked`]).

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io::{BufWriter, Write};
use std::time::Duration;

use inferno::flamegraph::color::{BackgroundColor, PaletteMap};
use inferno::flamegraph::{self, Direction, Options};

use super::color::Class;
use super::counted::{CountedTree, Samples};
use super::error::OutputError;
use super::frame_names::svg_name;
use super::look::{Look, Looks};
use super::options::{ColorScheme, OutputOptions};
use crate::profile::printable;
use crate::profile::{Profile, SampledEvent, shorten};

mod label;
mod marks;
mod places;

use marks::{LEGEND, Legend, SUBTITLE, Unmarked, marked};
use places::Places;

/// Most text that inferno is given. Its lines repeat the whole path for each leaf, so deep stacks of long names grow
/// with the square of their depth; beyond this the narrowest frames are left out, and the subtitle says so.
const MAX_LINES_BYTES: usize = 128 << 20;

/// Most frames that are drawn. A browser lays all of them out at every zoom, and inferno's time grows with them: the
/// speed test's 113,000 frames are 20 MB. Beyond this the narrowest frames are left out, and the subtitle says so.
const MAX_DRAWN: usize = if cfg!(test) { 3_000 } else { 30_000 };

/// Stands for outermost frames that were too narrow, so that the shares of the others stay true.
const NARROW: &str = "[narrower than shown]";

pub(super) fn write(profile: &Profile, options: &OutputOptions, writer: impl Write) -> Result<(), OutputError> {
    let tree = CountedTree::new(profile, &Looks::new(&[profile], options, dressed), options.reverse);
    draw(&tree, [Some(profile), None], options, writer)
}

/// Two profiles in one graph: as wide as in the second, red where it has more of its own than the first, blue where it
/// has less. A sample of the first counts `factor` times.
pub(super) fn write_diff(
    profiles: [&Profile; 2],
    factor: f64,
    options: &OutputOptions,
    writer: impl Write,
) -> Result<(), OutputError> {
    let looks = Looks::new(&profiles, options, dressed);
    let tree = CountedTree::of_both(profiles, factor, &looks, options.reverse);
    draw(&tree, profiles.map(Some), options, writer)
}

/// Draws a tree of one profile or two; the later one is what the head of the picture tells of.
fn draw(
    tree: &CountedTree,
    sides: [Option<&Profile>; 2],
    options: &OutputOptions,
    writer: impl Write,
) -> Result<(), OutputError> {
    let Some(profile) = sides[1].or(sides[0]) else { return Ok(()) };
    let percent = options.min_width_percent;
    if !(0.0..=100.0).contains(&percent) {
        return Err(OutputError::MinWidth { percent });
    }
    let places = Places::of(&tree.tree, sides, options);
    let drawing = Drawing::new(tree, &places, percent);
    // A difference has colours of its own.
    let by_kind = options.colors == ColorScheme::ByKind || drawing.is_diff();
    let mut palette = drawing.palette();

    let mut settings = Options::default();
    settings.title = title(profile, options);
    settings.subtitle = Some(format!("{SUBTITLE}{}{LEGEND}", subtitle(profile, options, drawing.raised_percent)));
    settings.direction = if options.upwards { Direction::Straight } else { Direction::Inverted };
    settings.bgcolors = Some(BackgroundColor::Grey);
    settings.deterministic = true;
    // Narrow frames are already left out.
    settings.min_width = 0.0;
    if profile.meta().event == SampledEvent::SpanTime {
        settings.count_name = "ns".to_owned();
    }
    match options.colors {
        _ if drawing.is_diff() => {}
        ColorScheme::ByKind => settings.palette_map = Some(&mut palette),
        ColorScheme::Palette(colors) => settings.colors = colors,
    }

    let lines = drawing.lines(by_kind);
    let legend = if drawing.is_diff() {
        Legend::Change
    } else if by_kind {
        Legend::Kinds(drawing.classes.iter().copied().collect())
    } else {
        Legend::None
    };
    let mut unmarked = BufWriter::with_capacity(1 << 16, Unmarked::new(writer, &legend));
    flamegraph::from_lines(&mut settings, lines.lines(), &mut unmarked)?;
    unmarked.flush()?;
    Ok(())
}

fn dressed(look: Look) -> Look {
    Look { name: svg_name(&look.name).into_owned(), ..look }
}

fn title(profile: &Profile, options: &OutputOptions) -> String {
    let title = options.title.as_deref().unwrap_or(&profile.meta().title);
    shorten(&printable(title), 160).into_owned()
}

fn subtitle(profile: &Profile, options: &OutputOptions, raised_percent: Option<f64>) -> String {
    let meta = profile.meta();
    let mut parts = Vec::new();
    if let Some(subtitle) = &options.subtitle {
        parts.push(shorten(&printable(subtitle), 160).into_owned());
    }
    let seconds = meta.duration.as_secs_f64();
    parts.push(match meta.event {
        SampledEvent::SpanTime => {
            format!("{:.3} s in spans in {seconds:.1} s", Duration::from_nanos(profile.total()).as_secs_f64())
        }
        event => {
            format!("{} samples at {} Hz ({}) in {seconds:.1} s", profile.total(), meta.frequency_hz, event.name())
        }
    });
    if options.reverse {
        parts.push("merged from the leaf".to_owned());
    }
    if let Some(percent) = raised_percent {
        parts.push(format!("too much to draw: frames under {percent:.3} % left out"));
    }
    if !profile.overflow().is_empty() {
        parts.push("profile full: see the notes".to_owned());
    }
    parts.join(" · ")
}

/// What of a tree is drawn.
struct Drawing<'a> {
    tree: &'a CountedTree,
    places: &'a Places,
    /// Nodes with fewer samples are left out, and with them everything below.
    least: f64,
    /// For each node, its own samples and those of the children that are left out.
    own: Vec<u64>,
    /// The same of the earlier profile; empty if there is none.
    before: Vec<u64>,
    /// Classes of the nodes that are drawn.
    classes: BTreeSet<Class>,
    /// The width below which frames were left out, if more than asked for.
    raised_percent: Option<f64>,
}

impl<'a> Drawing<'a> {
    fn new(tree: &'a CountedTree, places: &'a Places, min_width_percent: f64) -> Self {
        let total = float(tree.total());
        let asked = total * min_width_percent / 100.0;
        // In a difference, what the later profile does not have is no frame of the graph.
        let seen = if tree.before.is_empty() { 0.0 } else { 0.5 };
        let mut least = asked.max(least_of_widest(tree)).max(seen);
        let mut drawing = Self::with_least(tree, places, least);
        while drawing.lines_bytes() > MAX_LINES_BYTES {
            least = least.max(0.5) * 2.0;
            drawing = Self::with_least(tree, places, least);
        }
        let left_out = |samples: &Samples| (asked.max(seen)..least).contains(&float(samples.total));
        drawing.raised_percent = tree.samples.iter().any(left_out).then(|| least / total * 100.0);
        drawing
    }

    fn with_least(tree: &'a CountedTree, places: &'a Places, least: f64) -> Self {
        let (own, before) = (vec![0; tree.samples.len()], vec![0; tree.before.len()]);
        let mut drawing = Self { tree, places, least, own, before, classes: BTreeSet::new(), raised_percent: None };
        for (position, samples) in tree.samples.iter().enumerate() {
            drawing.own[position] = drawing.own[position].saturating_add(samples.own);
            let parent = tree.parent(position);
            if position == 0 {
                continue;
            }
            if drawing.shows(position) {
                drawing.classes.insert(tree.look(position).class);
            } else if drawing.shows(parent) {
                drawing.own[parent] = drawing.own[parent].saturating_add(samples.total);
            }
        }
        for (position, earlier) in tree.before.iter().enumerate() {
            let parent = tree.parent(position);
            drawing.before[position] = drawing.before[position].saturating_add(earlier.own);
            if !drawing.shows(position) && drawing.shows(parent) {
                drawing.before[parent] = drawing.before[parent].saturating_add(earlier.total);
            }
        }
        if drawing.own[0] > 0 {
            drawing.classes.insert(Class::Note);
        }
        drawing
    }

    fn is_diff(&self) -> bool {
        !self.before.is_empty()
    }

    /// A node that is shown has a parent that is shown, whose total is at least as large. The root always is.
    fn shows(&self, node: usize) -> bool {
        node == 0 || float(self.tree.samples[node].total) >= self.least
    }

    /// Where the function of a node is.
    fn place(&self, node: usize) -> &'a str {
        self.places.of_frame(self.tree.tree.nodes()[node].frame())
    }

    /// How long [`Self::lines`] will be, nearly.
    fn lines_bytes(&self) -> usize {
        let mut path_bytes = vec![0_usize; self.own.len()];
        let mut sum = 0_usize;
        for position in 1..self.own.len() {
            if self.shows(position) {
                let named = self.tree.look(position).name.len() + self.place(position).len();
                path_bytes[position] = path_bytes[self.tree.parent(position)] + named + 4;
                if self.own[position] > 0 || self.before.get(position).is_some_and(|before| *before > 0) {
                    sum = sum.saturating_add(path_bytes[position] + 42);
                }
            }
        }
        sum
    }

    /// The folded lines for inferno, one for each node with samples of its own.
    fn lines(&self, by_kind: bool) -> String {
        let mut lines = String::with_capacity(self.lines_bytes());
        let mut path = String::new();
        let mut ends: Vec<usize> = Vec::new();
        for (depth, position) in self.tree.tree.preorder().filter(|&(_, position)| self.shows(position)) {
            ends.truncate(depth);
            path.truncate(ends.last().copied().unwrap_or(0));
            if depth > 0 {
                path.push(';');
            }
            marked(&mut path, self.tree.look(position), self.place(position), by_kind);
            ends.push(path.len());
            push_line(&mut lines, &path, self.before.get(position).copied(), self.own[position]);
        }
        let mut narrow = String::new();
        marked(&mut narrow, &narrow_look(), "", by_kind);
        push_line(&mut lines, &narrow, self.before.first().copied(), self.own[0]);
        lines
    }

    /// The colour of every name that inferno will see, and of the frame `all` that it adds.
    fn palette(&self) -> PaletteMap {
        let mut palette = PaletteMap::default();
        palette.insert("", Class::Task.color());
        let mut add = |look: &Look, place: &str| {
            let mut name = String::new();
            marked(&mut name, look, place, true);
            palette.insert(name, look.class.color_of(&look.name));
        };
        for (number, look) in self.tree.tree.frames().enumerate() {
            add(look, self.places.of_frame(number));
        }
        add(&narrow_look(), "");
        palette
    }
}

/// The fewest samples that a frame must have so that no more than [`MAX_DRAWN`] have them.
fn least_of_widest(tree: &CountedTree) -> f64 {
    let mut totals: Vec<_> = tree.samples.iter().skip(1).map(|samples| samples.total).collect();
    if totals.len() <= MAX_DRAWN {
        return 0.0;
    }
    let (_, &mut widest_left_out, _) = totals.select_nth_unstable_by_key(MAX_DRAWN, |&total| Reverse(total));
    float(widest_left_out) + 1.0
}

fn narrow_look() -> Look {
    Look::note(NARROW)
}

fn push_line(lines: &mut String, path: &str, before: Option<u64>, count: u64) {
    if count == 0 && before.unwrap_or(0) == 0 {
        return;
    }
    lines.push_str(path);
    for number in before.into_iter().chain([count]) {
        lines.push(' ');
        lines.push_str(&number.to_string());
    }
    lines.push('\n');
}

#[expect(clippy::cast_precision_loss, reason = "a share of all samples; more than 2^53 samples need 50,000 CPU years")]
fn float(count: u64) -> f64 {
    count as f64
}
