//! Draws the model. Everything that a target chose was made printable before it came into the model.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::figures::{FunctionRow, ThreadRow, TreeRow};
use super::model::{Model, Range, Sort, View};
use crate::output::color::Class;

/// Lines above the list: title, state, views and names of columns.
const HEAD: u16 = 4;
/// Characters of a bar.
const BAR: usize = 8;
/// Characters by which the tree is indented at most.
const MAX_INDENT: usize = 24;

const HELP: [&str; 18] = [
    "f t h, Tab   functions, tree of calls, threads",
    "up down      choose a line (also j k, PgUp PgDn, Home End)",
    "Enter        functions: the tree of the stacks that have it",
    "             tree: open or close (also left right)",
    "             threads: look at this thread alone",
    "/            show what has this text in its name",
    "Esc          all functions of all threads again",
    "s            sort functions by self, total, name",
    "w            of the last 10 s, of the last minute, of all",
    "m            one line for a function, whatever its tier",
    "p, space     pause the screen; the recording goes on",
    "o            write what is shown as a flamegraph (SVG)",
    "q, Ctrl-C    quit",
    "",
    "self: CPU time in the function; total: and in what it calls.",
    "JIT * + ^ interp ~: optimised, mid, baseline, interpreted.",
    "",
    "any key goes back",
];

/// Whether colours are used.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) has_colors: bool,
}

impl Look {
    fn style(self, class: Class) -> Style {
        let style = Style::new();
        if !self.has_colors {
            return style;
        }
        match class {
            Class::Kernel => style.fg(Color::Red),
            Class::Native => style.fg(Color::Yellow),
            Class::Inlined | Class::Guess => style.fg(Color::LightMagenta),
            Class::Jit | Class::Mid => style.fg(Color::Green),
            Class::Optimized => style.fg(Color::LightGreen),
            Class::Baseline => style.fg(Color::Cyan),
            Class::Interpreted => style.fg(Color::LightBlue),
            Class::Builtin => style.fg(Color::Magenta),
            Class::Task | Class::Span | Class::Note => style,
        }
    }
}

/// A class as a word that fits a column.
fn word(class: Class) -> &'static str {
    match class {
        Class::Task => "process",
        Class::Kernel => "kernel",
        Class::Native => "native",
        Class::Inlined => "inlined",
        Class::Guess => "maybe ?",
        Class::Jit => "JIT",
        Class::Optimized => "JIT *",
        Class::Mid => "JIT +",
        Class::Baseline => "JIT ^",
        Class::Interpreted => "interp ~",
        Class::Builtin => "builtin",
        Class::Span => "span",
        Class::Note => "note",
    }
}

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model, look: Look) {
    let area = frame.area();
    let width = usize::from(area.width);
    let mut put = |row: u16, line: Line<'_>| {
        if row < area.height {
            frame.render_widget(line, Rect { x: area.x, y: area.y + row, width: area.width, height: 1 });
        }
    };
    put(0, Line::styled(cut(&title(model), width), Style::new().add_modifier(Modifier::BOLD)));
    put(1, Line::from(cut(&state(model), width)));
    put(2, views(model));
    if model.shows_help {
        (HEAD - 1..).zip(HELP).for_each(|(row, text)| put(row, Line::from(text)));
        return;
    }
    put(3, Line::styled(format!("{:<width$}", cut(&columns(model, width), width)), reversed()));
    let page = usize::from(area.height.saturating_sub(HEAD + 1));
    model.page = page.max(1);
    model.first = model.first.min(model.cursor).max((model.cursor + 1).saturating_sub(model.page));
    for (row, line) in (HEAD..).zip(model.first..).take(page) {
        let text = match model.view {
            View::Functions => model.figures.functions.get(line).map(|it| function(model, it, width, look)),
            View::Tree => model.figures.tree.get(line).map(|it| tree(model, it, width, look)),
            View::Threads => model.figures.threads.get(line).map(|it| thread(model, it, width)),
        };
        let Some(text) = text else { break };
        put(row, if line == model.cursor { text.patch_style(reversed()) } else { text });
    }
    if model.lines() == 0 {
        put(HEAD, Line::from(nothing(model)));
    }
    put(area.height.saturating_sub(1), bottom(model, width));
}

fn reversed() -> Style {
    Style::new().add_modifier(Modifier::REVERSED)
}

fn title(model: &Model) -> String {
    let range = match model.range {
        Range::Seconds(seconds) => format!("last {seconds} s"),
        Range::Whole => "since the start".to_owned(),
        Range::Minute => "last minute".to_owned(),
    };
    let paused = if model.is_paused { "  PAUSED" } else { "" };
    format!("jitprof top  {range}{paused}  {}", model.title)
}

fn state(model: &Model) -> String {
    let figures = &model.figures;
    let seconds = figures.duration.as_secs_f64();
    let cpus = if seconds > 0.0 { nanoseconds(figures.cpu_ns) / 1e9 / seconds } else { 0.0 };
    let mut parts = vec![format!("{cpus:.2} CPUs busy"), format!("{} samples in {seconds:.0} s", figures.samples)];
    if let Some(health) = &model.health {
        parts.push(format!("{} Hz", health.frequency_hz));
        parts.push(format!("lost {}", health.lost));
        let unnamed: u64 = health.jit_frames.unnamed.values().sum();
        if unnamed > 0 {
            parts.push(format!("frames unnamed {unnamed}"));
        }
    }
    parts.join("  ")
}

fn views(model: &Model) -> Line<'static> {
    let mut spans = Vec::new();
    for view in View::ALL {
        let name = match view {
            View::Functions => " f functions ",
            View::Tree => " t tree ",
            View::Threads => " h threads ",
        };
        spans.push(if view == model.view { Span::styled(name, reversed()) } else { Span::from(name) });
    }
    if let Some((_, tid)) = model.question.thread {
        spans.push(Span::from(format!("  thread {tid}")));
    }
    if !model.question.filter.is_empty() && model.typing.is_none() {
        spans.push(Span::from(format!("  / {}", model.question.filter)));
    }
    if model.question.merge_tiers {
        spans.push(Span::from("  tiers merged"));
    }
    Line::from(spans)
}

fn columns(model: &Model, width: usize) -> String {
    let mark = |sort: Sort, name: &str| if model.sort == sort { format!("{name}v") } else { format!("{name} ") };
    match model.view {
        View::Functions => {
            let process = process_column("process", process_width(model, width));
            let [own, total, name] = [(Sort::Own, "self"), (Sort::Total, "total"), (Sort::Name, "function")]
                .map(|(sort, name)| mark(sort, name));
            format!("{own:>7} {total:>7}  {:<8}{process} {name}", "kind")
        }
        View::Tree => format!("{:>6} {:>6}  {:<BAR$} {:<8} function", "total", "self", "", "kind"),
        View::Threads => format!("{:>6} {:>9} {:>8} {:>8}  {:<15}  process", "CPU", "ms", "pid", "tid", "thread"),
    }
}

/// Characters of a process in the table of functions; none where there is but one, which the title names, or no room.
fn process_width(model: &Model, width: usize) -> usize {
    let mut processes = model.figures.functions.iter().map(|row| &row.process);
    let first = processes.next();
    match width {
        _ if processes.all(|process| Some(process) == first) => 0,
        0..60 => 0,
        60..110 => 16,
        _ => 24,
    }
}

fn process_column(text: &str, width: usize) -> String {
    if width > 0 { format!(" {}", padded(text, width)) } else { String::new() }
}

fn function<'m>(model: &Model, row: &'m FunctionRow, width: usize, look: Look) -> Line<'m> {
    let percent = |part: u64| percent(part, model.figures.cpu_ns);
    let mut head = format!("{:>6} {:>7}  ", percent(row.own), percent(row.total));
    head.insert(0, ' ');
    let process = process_column(&row.process, process_width(model, width));
    let kind = format!("{:<8}", word(row.class));
    let used = head.len() + kind.len() + Span::raw(&*process).width() + 1;
    let name = if row.place.is_empty() || row.name.contains(&row.place) {
        row.name.clone()
    } else {
        format!("{}  {}", row.name, row.place)
    };
    let name = cut(&name, width.saturating_sub(used));
    let style = look.style(row.class);
    Line::from(vec![
        Span::from(head),
        Span::styled(kind, style),
        Span::from(process),
        Span::from(" "),
        Span::styled(name, style),
    ])
}

fn tree<'m>(model: &Model, row: &'m TreeRow, width: usize, look: Look) -> Line<'m> {
    let all = model.figures.tree_ns;
    let head = format!("{:>6} {:>6}  ", percent(row.total, all), percent(row.own, all));
    let eighths = (nanoseconds(row.total) / nanoseconds(all.max(1)) * 8.0 * BAR as f64).round();
    let mark = match row.is_open {
        None => "  ",
        Some(true) => "- ",
        Some(false) => "+ ",
    };
    let indent = row.level.min(MAX_INDENT);
    let used = head.len() + BAR + 1 + 8 + 1 + indent + mark.len();
    let mut style = look.style(row.look.class);
    if !model.question.filter.is_empty() && model.question.finds(&row.look.name) {
        style = style.add_modifier(Modifier::BOLD);
    }
    Line::from(vec![
        Span::from(head),
        Span::styled(bar(eighths), style),
        Span::styled(format!(" {:<8} ", word(row.look.class)), style),
        Span::from(format!("{:indent$}{mark}", "")),
        Span::styled(cut(&row.look.name, width.saturating_sub(used)), style),
    ])
}

fn thread<'m>(model: &Model, row: &'m ThreadRow, width: usize) -> Line<'m> {
    let seconds = model.figures.duration.as_secs_f64();
    // Of one CPU, as `top` has it.
    let cpu = if seconds > 0.0 { nanoseconds(row.cpu_ns) / 1e7 / seconds } else { 0.0 };
    let head = format!(
        "{cpu:>5.1}% {:>9.0} {:>8} {:>8}  {}  ",
        nanoseconds(row.cpu_ns) / 1e6,
        row.pid,
        row.tid,
        padded(&row.name, 15)
    );
    let left = width.saturating_sub(Span::raw(&*head).width());
    Line::from(vec![Span::from(head), Span::from(cut(&row.process, left))])
}

fn nothing(model: &Model) -> &'static str {
    match model.view {
        _ if !model.has_figures() && model.is_paused => "  paused before the first samples were shown; p goes on",
        _ if !model.has_figures() => "  attaching: no samples can have come so far",
        _ if model.figures.samples == 0 && model.question.thread.is_none() => {
            "  no samples so far: nothing that is recorded has used a CPU"
        }
        _ if !model.question.filter.is_empty() => "  nothing of this name; Esc shows all again",
        _ => "  no samples of this thread now; Esc shows all again",
    }
}

fn bottom(model: &Model, width: usize) -> Line<'static> {
    let text = match (&model.typing, &model.message) {
        (Some(typing), _) => format!("/{typing}_   Enter keeps it, Esc shows all"),
        (None, Some(message)) => message.clone(),
        (None, None) if width < 70 => "q quit  ? help  f t h view  / filter  o SVG".to_owned(),
        (None, None) => "q quit  ? help  f t h view  / filter  s sort  w range  p pause  o write SVG".to_owned(),
    };
    Line::styled(cut(&text, width), Style::new().add_modifier(Modifier::DIM))
}

/// A bar of so many eighths of a character.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the bar's length")]
fn bar(eighths: f64) -> String {
    const PARTS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let eighths = eighths.clamp(0.0, (8 * BAR) as f64) as usize;
    let mut bar = "█".repeat(eighths / 8);
    if eighths < 8 * BAR {
        bar.push(PARTS[eighths % 8]);
        bar.extend(std::iter::repeat_n(' ', BAR - eighths / 8 - 1));
    }
    bar
}

#[expect(clippy::cast_precision_loss, reason = "for people; more than 2^53 ns are 104 days")]
fn nanoseconds(count: u64) -> f64 {
    count as f64
}

fn percent(part: u64, all: u64) -> String {
    match all {
        0 => "-".to_owned(),
        _ => format!("{:.1}%", nanoseconds(part) / nanoseconds(all) * 100.0),
    }
}

fn padded(text: &str, width: usize) -> String {
    let mut text = cut(text, width);
    let left = width.saturating_sub(Span::raw(&*text).width());
    text.extend(std::iter::repeat_n(' ', left));
    text
}

/// A text that fits the width. What is left out is left out in the middle: its end says where it is.
fn cut(text: &str, width: usize) -> String {
    // No character is wider than two columns; most names need no closer look.
    if text.len() <= width || Span::raw(text).width() <= width {
        return text.to_owned();
    }
    let of = |c: char| Span::raw(c.encode_utf8(&mut [0; 4]).to_owned()).width();
    let room = width.saturating_sub(1);
    let fitting = |chars: &mut dyn Iterator<Item = char>, room: usize| {
        let mut left = room;
        let fits = |c: &char| left.checked_sub(of(*c)).inspect(|rest| left = *rest).is_some();
        chars.take_while(fits).collect::<Vec<char>>()
    };
    let mut end = fitting(&mut text.chars().rev(), room / 2);
    end.reverse();
    let used: usize = end.iter().copied().map(of).sum();
    let begin = fitting(&mut text.chars(), room - used);
    if width == 0 {
        return String::new();
    }
    begin.into_iter().chain(['…']).chain(end).collect()
}
