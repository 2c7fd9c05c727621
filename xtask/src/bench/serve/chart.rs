//! Lines over time as SVG.

use std::fmt::Write as _;

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 50.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 30.0;
/// Readable on light and on dark paper, and told apart without colours seen.
const STROKES: [(&str, &str); 4] = [("#1f77b4", ""), ("#d2691e", "6 3"), ("#2ca02c", "2 2"), ("#9467bd", "8 2 2 2")];

/// One line.
pub(crate) struct Line {
    pub(crate) name: String,
    /// Minutes and values.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Lines that share axes.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) lines: Vec<Line>,
    /// Drawn as a line across.
    pub(crate) goal: Option<f64>,
}

/// The panels, one below the other.
pub(crate) fn svg(panels: &[Panel]) -> String {
    let height = HEIGHT * panels.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (index, panel) in panels.iter().enumerate() {
        out.push_str(&format!("<g transform=\"translate(0 {})\">\n", HEIGHT * index as f64));
        draw(&mut out, panel);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

fn draw(out: &mut String, panel: &Panel) {
    let points = || panel.lines.iter().flat_map(|line| &line.points);
    let last = points().map(|(at, _)| *at).fold(1.0, f64::max);
    let top = nice(points().map(|(_, value)| *value).chain(panel.goal).fold(0.0, f64::max));
    let x = |at: f64| LEFT + at / last * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - value.min(top) / top * (HEIGHT - TOP - BOTTOM);
    let text = |out: &mut String, x: f64, y: f64, anchor: &str, text: &str| {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>").ok();
    };
    text(out, LEFT, 16.0, "start", &panel.title);
    for step in 0..=4 {
        let value = top * f64::from(step) / 4.0;
        let at = y(value);
        writeln!(out, "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#ddd\"/>", WIDTH - RIGHT).ok();
        text(out, LEFT - 6.0, at + 4.0, "end", &format!("{value}"));
        let minutes = last * f64::from(step) / 4.0;
        text(out, x(minutes), HEIGHT - 10.0, "middle", &format!("{minutes:.1} min"));
    }
    if let Some(goal) = panel.goal {
        writeln!(out, "<path d=\"M{LEFT} {:.1}H{:.1}\" stroke=\"#b00\"/>", y(goal), WIDTH - RIGHT).ok();
    }
    for (index, (line, (color, dashes))) in panel.lines.iter().zip(STROKES.iter().cycle()).enumerate() {
        let mut path = String::new();
        for (at, value) in &line.points {
            let letter = if path.is_empty() { 'M' } else { 'L' };
            write!(path, "{letter}{:.1} {:.1}", x(*at), y(*value)).ok();
        }
        let style = format!("stroke=\"{color}\" stroke-dasharray=\"{dashes}\" fill=\"none\" stroke-width=\"1.5\"");
        writeln!(out, "<path d=\"{path}\" {style}/>").ok();
        let at = WIDTH - RIGHT - 150.0 * (panel.lines.len() - index) as f64;
        writeln!(out, "<path d=\"M{at:.1} 26h24\" {style}/>").ok();
        text(out, at + 28.0, 30.0, "start", &line.name);
    }
}

/// A round number not below `value`.
fn nice(value: f64) -> f64 {
    let unit = 10_f64.powf(value.max(1e-6).log10().floor());
    [1.0, 2.0, 4.0, 5.0, 8.0, 10.0].into_iter().map(|step| step * unit).find(|nice| *nice >= value).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_ends_at_a_round_number() {
        assert_eq!([0.37, 1.0, 64.0, 128.0].map(nice), [0.4, 1.0, 80.0, 200.0]);
    }

    #[test]
    fn every_line_is_drawn_inside_of_its_panel() {
        let lines = vec![Line { name: "a < b".into(), points: vec![(0.0, 1.0), (5.0, 128.0)] }];
        let svg = svg(&[Panel { title: "x".into(), lines, goal: Some(100.0) }]);
        assert!(svg.contains("a &lt; b") && svg.contains("M50.0 189.2L780.0"), "{svg}");
    }
}
