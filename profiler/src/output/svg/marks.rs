//! Marks: control characters in what inferno is given, taken out again of what it writes.
//!
//! They are one byte long, so that inferno's estimate of a name's width is right, and no white space, so that it does
//! not trim them. Printable names contain none of them.
//!
//! | bytes | meaning | in the SVG |
//! |---|---|---|
//! | 01-08, 0e-10, 15 | ends a name and says its class | nothing |
//! | 11 | begins a line: nothing is trimmed, and no line is a comment | nothing |
//! | 12 | a `;` in a name | `;` |
//! | 13 | before the subtitle | markup |
//! | 14 | after the subtitle | markup and the legend |

use std::io::{self, Write};

use super::super::color::Class;
use super::super::look::Look;

pub(super) const LINE_START: char = '\x11';
const SEMICOLON: char = '\x12';
pub(super) const SUBTITLE: char = '\x13';
pub(super) const LEGEND: char = '\x14';

/// The mark that ends a name of this class.
fn mark_of(class: Class) -> char {
    match class {
        Class::Task => '\x01',
        Class::Kernel => '\x02',
        Class::Native => '\x03',
        Class::Inlined => '\x04',
        Class::Jit => '\x05',
        Class::Optimized => '\x06',
        Class::Mid => '\x07',
        Class::Baseline => '\x08',
        Class::Interpreted => '\x0e',
        Class::Builtin => '\x0f',
        Class::Span => '\x15',
        Class::Note => '\x10',
    }
}

/// Appends a name with its marks. For inferno's own palettes, the annotation that they know follows the mark: from our
/// knowledge of the frame, and not to be mistaken for one that the target put into the name.
pub(super) fn marked(line: &mut String, look: &Look, by_kind: bool) {
    let mut parts = look.name.split(';');
    line.push_str(parts.next().unwrap_or_default());
    for part in parts {
        line.push(SEMICOLON);
        line.push_str(part);
    }
    line.push(mark_of(look.class));
    if !by_kind {
        line.push_str(match look.class {
            Class::Kernel => "_[k]",
            Class::Inlined => "_[i]",
            Class::Jit | Class::Optimized | Class::Mid | Class::Baseline => "_[j]",
            Class::Task | Class::Native | Class::Interpreted | Class::Builtin | Class::Span | Class::Note => "",
        });
    }
}

/// What the colours mean.
pub(super) enum Legend {
    /// Colours that say nothing of the frames: there is no legend.
    None,
    /// Each class has a colour; these are in the picture, in order.
    Kinds(Vec<Class>),
    /// What changed; inferno's colours of a difference.
    Change,
}

/// Takes the marks out of an SVG and puts the legend in.
pub(super) struct Unmarked<W> {
    inner: W,
    legend: String,
}

impl<W: Write> Unmarked<W> {
    pub(super) fn new(inner: W, legend: &Legend) -> Self {
        let legend = match legend {
            Legend::None => String::new(),
            Legend::Kinds(classes) => legend_markup(classes.iter().map(|class| (class.hex(), class.label()))),
            Legend::Change => {
                let colors = [("#ff6464", "more than before"), ("#fafafa", "as before"), ("#6464ff", "less")];
                legend_markup(colors.into_iter().map(|(color, label)| (color.to_owned(), label)))
            }
        };
        Self { inner, legend }
    }

    fn write_mark(&mut self, mark: u8) -> io::Result<()> {
        match char::from(mark) {
            SEMICOLON => self.inner.write_all(b";"),
            // inferno leaves room for one line between title and frames, from y = 24 to 60 (or 64 in an icicle, where
            // the details begin); two lines of 12 px fit.
            SUBTITLE => self.inner.write_all(br#"<tspan x="50%" y="38">"#),
            LEGEND => {
                self.inner.write_all(b"</tspan>")?;
                self.inner.write_all(self.legend.as_bytes())
            }
            _ => Ok(()),
        }
    }
}

impl<W: Write> Write for Unmarked<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while let Some(at) = rest.iter().position(|&byte| is_mark(byte)) {
            self.inner.write_all(&rest[..at])?;
            self.write_mark(rest[at])?;
            rest = &rest[at + 1..];
        }
        self.inner.write_all(rest)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Control characters but tab, line feed and carriage return, which inferno's own text may have. No byte of a longer
/// UTF-8 sequence is in this range.
fn is_mark(byte: u8) -> bool {
    matches!(byte, 0x00..=0x08 | 0x0b | 0x0c | 0x0e..=0x1f)
}

/// How the head of the picture fits a narrow window: smaller, and with the legend in two lines.
const STYLE: &str = "<style>.narrow{display:none}@media(max-width:620px){#title{font-size:13px}#subtitle{font-size:10px}\
.legend{font-size:8px}.wide{display:none}.narrow{display:inline}}</style>";

/// Colours with what they mean, behind the subtitle: inferno's element for that is ended, and ends the legend's.
fn legend_markup(entries: impl Iterator<Item = (String, &'static str)>) -> String {
    let entries: Vec<String> = entries
        .map(|(color, label)| {
            format!(
                "<tspan fill=\"{color}\" stroke=\"#777\" stroke-width=\"0.5\">\u{25a0}</tspan>\u{a0}{}",
                label.replace(' ', "\u{a0}"),
            )
        })
        .collect();
    if entries.is_empty() {
        return String::new();
    }
    // Each line is centred: nothing but the blanks between two entries.
    let line = |entries: &[String]| entries.join("\u{a0} ");
    let (first, second) = entries.split_at(entries.len().div_ceil(2));
    format!(
        r#"</text>{STYLE}<text class="legend" text-anchor="middle"><tspan id="legend" class="wide" x="50%" y="52">{}</tspan><tspan class="narrow" x="50%" y="49">{}</tspan><tspan class="narrow" x="50%" y="59">{}</tspan>"#,
        line(&entries),
        line(first),
        line(second)
    )
}
