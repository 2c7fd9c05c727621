//! Marks: control characters in what inferno is given, taken out again of what it writes.
//!
//! They are one byte long, so that inferno's estimate of a name's width is right, and no white space, so that it does
//! not trim them. Printable names contain none of them.
//!
//! | bytes | meaning | in the SVG |
//! |---|---|---|
//! | 01-08, 0e-10, 15, 17 | ends a name with its place and says its class | nothing |
//! | 11 | begins a name: nothing is trimmed, and no line is a comment | nothing |
//! | 12 | a `;` in a name | `;` |
//! | 16 | after a name, before its place | a line of the tooltip, nothing on the box |
//! | 13 | before the subtitle | markup |
//! | 14 | after the subtitle | markup and the legend |

use std::io::{self, Write};

use super::super::color::Class;
use super::super::look::Look;
use super::label::label;

const NAME_START: char = '\x11';
const SEMICOLON: char = '\x12';
pub(super) const SUBTITLE: char = '\x13';
pub(super) const LEGEND: char = '\x14';
const PLACE: char = '\x16';

/// What a browser writes on boxes when their width changes.
const LABELS: &str = include_str!("labels.js");

/// The mark that ends a name of this class.
fn mark_of(class: Class) -> char {
    match class {
        Class::Task => '\x01',
        Class::Kernel => '\x02',
        Class::Native => '\x03',
        Class::Inlined => '\x04',
        Class::Guess => '\x17',
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

/// Appends a name with its marks and its place in the source, which is empty where it is not known. For inferno's own
/// palettes, the annotation that they know follows the mark: from our knowledge of the frame, and not to be mistaken for
/// one that the target put into the name.
pub(super) fn marked(line: &mut String, look: &Look, place: &str, by_kind: bool) {
    line.push(NAME_START);
    push_without_semicolons(line, &look.name);
    if !place.is_empty() {
        line.push(PLACE);
        push_without_semicolons(line, place);
    }
    line.push(mark_of(look.class));
    if !by_kind {
        line.push_str(match look.class {
            Class::Kernel => "_[k]",
            Class::Inlined | Class::Guess => "_[i]",
            Class::Jit | Class::Optimized | Class::Mid | Class::Baseline => "_[j]",
            Class::Task | Class::Native | Class::Interpreted | Class::Builtin | Class::Span | Class::Note => "",
        });
    }
}

fn push_without_semicolons(line: &mut String, text: &str) {
    line.extend(text.chars().map(|c| if c == ';' { SEMICOLON } else { c }));
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

/// Takes the marks out of an SVG, shortens what stands on its boxes, and puts the legend in.
pub(super) struct Unmarked<W> {
    inner: W,
    legend: String,
    /// A name that has begun, up to the element's end: nothing but the target's text, with its marks, and counts.
    text: Option<Vec<u8>>,
    /// The name in the last tooltip, which stands on the box that follows.
    name: String,
}

/// What follows a name in a tooltip, and not on a box: `NAME (42 samples, 1.00%)`.
const COUNTS: &str = " (";

impl<W: Write> Unmarked<W> {
    pub(super) fn new(inner: W, legend: &Legend) -> Self {
        let legend = match legend {
            Legend::None => "<text>".to_owned(),
            Legend::Kinds(classes) => legend_markup(classes.iter().map(|class| (class.hex(), class.label()))),
            Legend::Change => {
                let colors = [("#ff6464", "more than before"), ("#fafafa", "as before"), ("#6464ff", "less")];
                legend_markup(colors.into_iter().map(|(color, label)| (color.to_owned(), label)))
            }
        };
        Self { inner, legend, text: None, name: String::new() }
    }

    fn write_mark(&mut self, mark: u8) -> io::Result<()> {
        match char::from(mark) {
            NAME_START => {
                self.text = Some(Vec::new());
                Ok(())
            }
            // inferno leaves room for one line between title and frames, from y = 24 to 60 (or 64 in an icicle, where
            // the details begin); two lines of 12 px fit.
            SUBTITLE => self.inner.write_all(br#"<tspan x="50%" y="38">"#),
            LEGEND => {
                write!(self.inner, "</tspan></text>{CONTROLS}<script><![CDATA[{LABELS}]]></script>{}", self.legend)
            }
            _ => Ok(()),
        }
    }

    /// A name to the end of its element.
    fn write_text(&mut self, text: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(text).replace(SEMICOLON, ";");
        match text.split_once(is_mark_of_class) {
            Some((named, counts)) if counts.starts_with(COUNTS) => self.write_title(named, counts),
            Some(_) => write!(self.inner, "{}", escape(&self.name)),
            // As many characters as inferno found room for, and the mark before them.
            None => write!(self.inner, "{}", escape(&label(&self.name, unescape(&text).chars().count() + 1))),
        }
    }

    fn write_title(&mut self, named: &str, counts: &str) -> io::Result<()> {
        let (name, place) = named.split_once(PLACE).unwrap_or((named, ""));
        self.name = unescape(name);
        let separator = if place.is_empty() { "" } else { " \n" };
        write!(self.inner, "{name}{separator}{place}{counts}")
    }
}

impl<W: Write> Write for Unmarked<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let is_end = |byte: &u8| if self.text.is_some() { *byte == b'<' } else { is_mark(*byte) };
            let end = rest.iter().position(is_end);
            let (before, after) = rest.split_at(end.unwrap_or(rest.len()));
            match &mut self.text {
                Some(text) => text.extend_from_slice(before),
                None => self.inner.write_all(before)?,
            }
            rest = after;
            if end.is_some() {
                match self.text.take() {
                    Some(text) => self.write_text(&text)?,
                    None => {
                        self.write_mark(rest[0])?;
                        rest = &rest[1..];
                    }
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// What inferno writes for characters that XML needs; `&` is the first to be escaped, and the last to be read.
const ENTITIES: [(&str, &str); 5] = [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&apos;"), ("\"", "&quot;")];

fn escape(text: &str) -> String {
    ENTITIES.iter().fold(text.to_owned(), |text, (character, entity)| text.replace(character, entity))
}

fn unescape(text: &str) -> String {
    ENTITIES.iter().rev().fold(text.to_owned(), |text, (character, entity)| text.replace(entity, character))
}

/// The mark that ends a name and its place.
fn is_mark_of_class(c: char) -> bool {
    matches!(c, '\x01'..='\x08' | '\x0e'..='\x10' | '\x15' | '\x17')
}

/// Control characters but tab, line feed and carriage return, which inferno's own text may have. No byte of a longer
/// UTF-8 sequence is in this range.
fn is_mark(byte: u8) -> bool {
    matches!(byte, 0x00..=0x08 | 0x0b | 0x0c | 0x0e..=0x1f)
}

/// What can be clicked looks so. inferno's own style, which stands before this one, all but hides the search.
const CONTROLS: &str = "<style>#search{opacity:0.7}#search,#unzoom{text-decoration:underline}</style>";

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
    // Each line is centred: nothing but the blanks between two entries.
    let line = |entries: &[String]| entries.join("\u{a0} ");
    let (first, second) = entries.split_at(entries.len().div_ceil(2));
    format!(
        r#"{STYLE}<text class="legend" text-anchor="middle"><tspan id="legend" class="wide" x="50%" y="52">{}</tspan><tspan class="narrow" x="50%" y="49">{}</tspan><tspan class="narrow" x="50%" y="59">{}</tspan>"#,
        line(&entries),
        line(first),
        line(second)
    )
}
