use std::collections::BTreeMap;

use proptest::prelude::*;
use quick_xml::Reader;
use quick_xml::events::Event;

use super::super::color::Class;
use super::*;

/// A frame as the SVG draws it.
#[derive(Clone, Debug, Default)]
struct Drawn {
    /// The first line of the tooltip, without ` (42 samples, 1.00%)`.
    name: String,
    /// The second one, without the same.
    place: String,
    /// What stands on the box.
    label: String,
    fill: String,
    samples: u64,
    x: u64,
    y: u64,
}

/// Parses the whole file as XML, checks every character and entity in it, and returns its frames.
fn frames(svg: &str) -> Vec<Drawn> {
    let mut reader = Reader::from_str(svg);
    let mut frames: Vec<Drawn> = Vec::new();
    let (mut in_frames, mut in_title, mut in_label, mut title) = (false, false, false, String::new());
    loop {
        match reader.read_event().expect("well-formed XML") {
            Event::Eof => break,
            Event::Start(start) | Event::Empty(start) => {
                let attributes: BTreeMap<String, String> = start
                    .attributes()
                    .map(|attribute| {
                        let attribute = attribute.expect("well-formed attribute");
                        let key = String::from_utf8(attribute.key.as_ref().to_vec()).unwrap();
                        (key, String::from_utf8(attribute.value.to_vec()).unwrap())
                    })
                    .collect();
                let name = start.name();
                in_frames |= attributes.get("id").is_some_and(|id| id == "frames");
                in_title = in_frames && name.as_ref() == b"title";
                in_label = in_frames && name.as_ref() == b"text";
                if in_frames && name.as_ref() == b"rect" {
                    let number = |key: &str| attributes[key].parse().unwrap();
                    let (named, _) = title.rsplit_once(" (").expect("a tooltip with a count");
                    let (name, place) = named.split_once(" \n").unwrap_or((named, ""));
                    frames.push(Drawn {
                        name: name.to_owned(),
                        place: place.to_owned(),
                        label: String::new(),
                        fill: attributes["fill"].clone(),
                        samples: number("fg:w"),
                        x: number("fg:x"),
                        y: number("y"),
                    });
                    title.clear();
                }
            }
            Event::End(_) => (in_title, in_label) = (false, false),
            Event::Text(text) if in_title || in_label => {
                let text = text.xml_content(quick_xml::XmlVersion::Implicit1_0).unwrap();
                shown(in_title, &mut title, &mut frames).push_str(&text);
            }
            Event::GeneralRef(entity) if in_title || in_label => {
                let shown = shown(in_title, &mut title, &mut frames);
                match entity.resolve_char_ref().unwrap() {
                    Some(c) => shown.push(c),
                    None => shown.push_str(match &*entity.decode().unwrap() {
                        "lt" => "<",
                        "gt" => ">",
                        "amp" => "&",
                        "quot" => "\"",
                        "apos" => "'",
                        other => panic!("unknown entity {other}"),
                    }),
                }
            }
            _ => {}
        }
    }
    let allowed = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'..);
    assert!(svg.chars().all(allowed), "a character that XML 1.0 does not allow");
    frames
}

/// What is being read: a tooltip, or what stands on the last box.
fn shown<'a>(in_title: bool, title: &'a mut String, frames: &'a mut [Drawn]) -> &'a mut String {
    if in_title { title } else { &mut frames.last_mut().expect("a box has a rectangle before its text").label }
}

/// The samples of the frame `all`.
pub(super) fn total(svg: &str) -> u64 {
    frames(svg).iter().find(|frame| frame.name == "all").expect("a frame called all").samples
}

fn draw(samples: &[TestSample], options: &OutputOptions) -> String {
    string(&profile(samples), Format::Svg, options)
}

fn one(frames: &[Frame]) -> Vec<TestSample> {
    vec![TestSample { time_ns: 0, task: task(1, "x"), frames: frames.to_vec(), count: 3 }]
}

fn find<'f>(frames: &'f [Drawn], name: &str) -> &'f Drawn {
    frames.iter().find(|frame| frame.name == name).unwrap_or_else(|| panic!("no frame {name:?} in {frames:#?}"))
}

fn fill(class: Class, name: &str) -> String {
    let color = class.color_of(name);
    format!("rgb({},{},{})", color.r, color.g, color.b)
}

#[test]
fn the_drawing_is_as_in_the_golden() {
    assert_golden("service.svg", &draw(&service(), &OutputOptions::default()));
}

#[test]
fn a_reversed_graph_with_its_root_at_the_bottom_is_as_in_the_golden() {
    let options = OutputOptions {
        title: Some("by leaf".to_owned()),
        subtitle: Some("the same samples".to_owned()),
        reverse: true,
        upwards: true,
        per_thread: true,
        ..OutputOptions::default()
    };
    assert_golden("service-upwards.svg", &draw(&service(), &options));
}

#[test]
fn the_documentation_has_every_class() {
    let docs = include_str!("../../../../docs/guide/outputs.md");
    for class in Class::ALL {
        let row = format!("\n| {} | ", class.label());
        assert!(docs.contains(&row), "docs/guide/outputs.md lacks: {row}");
    }
}

#[test]
fn every_class_has_its_colour_and_its_place_in_the_legend() {
    let svg = draw(&service(), &OutputOptions::default());
    let frames = frames(&svg);
    for (name, class) in [
        ("node", Class::Task),
        ("vfs_read", Class::Kernel),
        ("memcpy", Class::Native),
        ("std::copy<char>", Class::Inlined),
        ("wasm-function[7]", Class::Jit),
        ("*leafHot", Class::Optimized),
        ("+render", Class::Mid),
        ("^parse", Class::Baseline),
        ("~handle", Class::Interpreted),
        ("JSEntryTrampoline", Class::Builtin),
        ("[stopped: no frame pointer]", Class::Note),
    ] {
        assert_eq!(find(&frames, name).fill, fill(class, name), "{name}");
        assert!(svg.contains(&format!("■</tspan>\u{a0}{}", class.label().replace(' ', "\u{a0}"))), "{name}");
    }
}

#[test]
fn the_legend_has_only_what_is_drawn() {
    let svg = draw(&one(&[kernel("k", 1)]), &OutputOptions::default());
    assert!(svg.contains("■</tspan>\u{a0}kernel") && !svg.contains("■</tspan>\u{a0}native"));
}

#[test]
fn frames_of_one_name_and_two_kinds_keep_their_colours() {
    let mut samples = one(&[native("f", "/bin/x", 1)]);
    samples.extend(one(&[kernel("f", 1)]));
    samples.extend(one(&[inlined(native("f", "/bin/x", 1))]));
    let frames = frames(&draw(&samples, &OutputOptions::default()));
    let mut fills: Vec<_> = frames.iter().filter(|frame| frame.name == "f").map(|frame| &*frame.fill).collect();
    fills.sort_unstable();
    let mut want = [Class::Native, Class::Kernel, Class::Inlined].map(|class| fill(class, "f"));
    want.sort_unstable();
    assert_eq!(fills, want);
}

#[test]
fn a_name_cannot_pose_as_another_kind_or_as_markup() {
    let hostile = [
        "evil_[k]",
        "evil_[j]",
        "-",
        "--",
        "a;b",
        "f 42",
        "f 1 2",
        "<script>alert(1)</script>",
        "&amp;",
        "]]>",
        "--><x>",
        "\" onload=\"alert(1)",
        "# comment",
        "(paren",
        "\u{13}\u{14}\u{2}",
    ];
    for colors in [ColorScheme::ByKind, "java".parse().unwrap()] {
        for name in hostile {
            let options = OutputOptions { colors, ..OutputOptions::default() };
            let svg = draw(&one(&[native(name, "/bin/x", 1), native("leaf", "/bin/x", 2)]), &options);
            let frames = frames(&svg);
            assert_eq!(frames.len(), 4, "all, thread, {name:?}, leaf: {frames:#?}");
            let shown = crate::profile::printable(name);
            let frame = find(&frames, &shown);
            assert_eq!(frame.samples, 3);
            if colors == ColorScheme::ByKind {
                assert_eq!(frame.fill, fill(Class::Native, &shown), "{name:?}");
            }
        }
    }
}

#[test]
fn titles_and_thread_names_are_escaped() {
    let mut samples = one(&[native("f", "/bin/x", 1)]);
    samples[0].task.comm = Arc::from("# <&;\u{0}\u{13}");
    let options = OutputOptions {
        title: Some("</text><script>\u{1}\u{14}".to_owned()),
        subtitle: Some("<&>\n\u{13}".to_owned()),
        ..OutputOptions::default()
    };
    let svg = draw(&samples, &options);
    assert_eq!(find(&frames(&svg), "# <&;\\x00\\x13").samples, 3);
    assert!(svg.contains("&lt;/text&gt;&lt;script&gt;\\x01\\x14"));
    assert!(svg.contains("&lt;&amp;&gt;\\n\\x13 · 3 samples at 100 Hz (cpu-clock) in 10.0 s"));
    assert_eq!(svg.matches("id=\"legend\"").count(), 1);
}

#[test]
fn long_names_are_cut_and_stay_distinct() {
    let long = "n".repeat(3_000);
    let mut samples = one(&[native(&format!("{long}a"), "/bin/x", 1)]);
    samples.extend(one(&[native(&format!("{long}b"), "/bin/x", 1)]));
    let frames = frames(&draw(&samples, &OutputOptions::default()));
    let cut: Vec<_> = frames.iter().filter(|frame| frame.name.starts_with("nnn")).collect();
    assert_eq!(cut.len(), 2);
    assert!(cut.iter().all(|frame| frame.name.len() <= super::super::frame_names::MAX_SVG_NAME_BYTES));
}

#[test]
fn a_leaf_and_a_caller_with_one_name_are_one_frame() {
    // Sorted as plain text, "f b" would come between "f" and "f;leaf" and split the frame f in two.
    let (f, other) = (native("f", "/bin/x", 1), native("f b", "/bin/x", 2));
    let mut samples = one(std::slice::from_ref(&f));
    samples.extend(one(&[f, native("leaf", "/bin/x", 3)]));
    samples.extend(one(&[other]));
    let frames = frames(&draw(&samples, &OutputOptions::default()));
    let widths: Vec<_> = frames.iter().filter(|frame| frame.name == "f").map(|frame| frame.samples).collect();
    assert_eq!(widths, [6]);
}

#[test]
fn reversed_stacks_are_merged_by_leaf() {
    let (a, b) = (native("a", "/bin/x", 1), native("b", "/bin/x", 2));
    let leaf = native("leaf 7", "/bin/x", 3);
    let mut samples = one(&[a, leaf.clone()]);
    samples.extend(one(&[b, leaf]));
    let frames = frames(&draw(&samples, &OutputOptions { reverse: true, ..OutputOptions::default() }));
    let (all, leaf) = (find(&frames, "all"), find(&frames, "leaf 7"));
    assert_eq!((all.samples, leaf.samples), (6, 6));
    assert_eq!(leaf.y - all.y, 16, "directly below the root");
    assert_eq!(frames.iter().filter(|frame| frame.name == "x").count(), 2);
}

/// Frames of one caller, each with as many samples as are said.
fn side_by_side(frames: &[(Frame, u64)]) -> Vec<TestSample> {
    let main = native("main", "/bin/x", 1);
    let sample = |(frame, count): &(Frame, u64)| TestSample {
        time_ns: 0,
        task: task(1, "x"),
        frames: vec![main.clone(), frame.clone()],
        count: *count,
    };
    frames.iter().map(sample).collect()
}

fn in_file(frame: Frame, file: &str, line: u32) -> Frame {
    Frame { source: Some(SourceLine::new(Arc::from(file), line)), ..frame }
}

#[test]
fn a_tooltip_has_the_place_of_the_function_without_being_asked() {
    let (tier, source) = (Some(Tier::Optimized), "/srv/app/a;b.js");
    let samples = side_by_side(&[
        (jit("once", tier, 1, 7), 1),
        (jit("lines", tier, 2, 12), 1),
        (jit("lines", tier, 3, 10), 1),
        (jit("lines", tier, 4, 0), 1),
        (in_file(jit("odd", tier, 5, 0), source, 3), 1),
        (jit("fileOnly", tier, 6, 0), 1),
        (in_file(jit("get", tier, 7, 0), "/srv/one.js", 1), 1),
        (in_file(jit("get", tier, 8, 0), "/srv/two.js", 2), 1),
        (Frame { source: None, ..jit("nowhere", tier, 9, 0) }, 1),
        (kernel("vfs_read", 10), 1),
        (native("memcpy", "/usr/lib/libc.so.6", 11), 1),
    ]);
    for colors in [ColorScheme::ByKind, "java".parse().unwrap()] {
        let frames = frames(&draw(&samples, &OutputOptions { colors, ..OutputOptions::default() }));
        for (name, place) in [
            ("*once", "/app/server.js:7"),
            ("*lines", "/app/server.js:10-12"),
            ("*odd", "/srv/app/a;b.js:3"),
            ("*fileOnly", "/app/server.js"),
            ("*get", "/srv/one.js:1, /srv/two.js:2"),
            ("*nowhere", ""),
            ("vfs_read", ""),
            ("memcpy", "/usr/lib/libc.so.6"),
            ("x", ""),
            ("all", ""),
        ] {
            assert_eq!(find(&frames, name).place, place, "{name}");
        }
        assert_eq!(find(&frames, "*lines").samples, 3, "lines keep a function in one box");
    }
    let with_lines = draw(&samples, &OutputOptions { lines: true, ..OutputOptions::default() });
    assert_eq!(find(&frames(&with_lines), "*once (/app/server.js:7)").place, "", "its name has said it");
}

#[test]
fn a_box_shows_the_end_that_tells_functions_apart() {
    let tier = Some(Tier::Optimized);
    let samples = side_by_side(&[
        (in_file(jit("run", tier, 1, 0), "/srv/shop/node_modules/cart/lib/index.js", 117), 17),
        (jit("(anonymous shopping_cart_of_mine.js:117)", tier, 2, 0), 17),
        (native("v8::internal::Execution::Call<true>(v8::Isolate*)", "/bin/x", 3), 17),
        (native("a\u{e4}<&>", "/bin/x", 4), 49),
    ]);
    let of = |options: OutputOptions, name: &str| find(&frames(&draw(&samples, &options)), name).label.clone();
    let lines = || OutputOptions { lines: true, ..OutputOptions::default() };
    // 1,180 px for 100 samples, and 7 px for a character.
    assert_eq!(of(lines(), "*run (/srv/shop/node_modules/cart/lib/index.js:117)"), "*run (index.js:117)");
    assert_eq!(of(OutputOptions::default(), "*run"), "*run");
    assert_eq!(
        of(OutputOptions::default(), "*(anonymous shopping_cart_of_mine.js:117)"),
        "*(anonymous s.._mine.js:117)"
    );
    let native = "v8::internal::Execution::Call<true>(v8::Isolate*)";
    assert_eq!(of(OutputOptions::default(), native), "Call<true>(v8::Isolate*)");
    assert_eq!(of(OutputOptions::default(), "a\u{e4}<&>"), "a\u{e4}<&>");
}

#[test]
fn a_browser_makes_the_same_labels() {
    let svg = draw(&service(), &OutputOptions::default());
    let ours = svg.find("function label(name, room)").expect("the function that makes them");
    assert!(svg.find("function update_text_for_elements(").is_some_and(|theirs| theirs < ours));
    assert_eq!(svg.matches("function update_text_for_elements(").count(), 2, "inferno's has been taken the place of");
    assert!(
        draw(&service(), &OutputOptions { colors: "java".parse().unwrap(), ..OutputOptions::default() })
            .contains("function label(name, room)")
    );
}

#[test]
fn merged_tiers_of_a_function_are_one_box() {
    let boxes = |merge_tiers, name: &str| {
        let svg = draw(&service(), &OutputOptions { merge_tiers, ..OutputOptions::default() });
        let of_name = |frame: &Drawn| frame.name.trim_start_matches(['~', '^', '+', '*']) == name;
        frames(&svg).into_iter().filter(of_name).map(|frame| (frame.name, frame.samples)).collect::<Vec<_>>()
    };
    assert_eq!(boxes(false, "leafHot"), [("*leafHot".to_owned(), 45), ("~leafHot".to_owned(), 5)]);
    assert_eq!(boxes(true, "leafHot"), [("leafHot".to_owned(), 50)]);
}

#[test]
fn the_root_is_where_a_picture_opens_unless_asked_otherwise() {
    let svg = draw(&service(), &OutputOptions::default());
    let down = frames(&svg);
    assert!(find(&down, "all").y < find(&down, "main").y && find(&down, "all").y < 120);
    assert!(svg.contains("var inverted = true"));
    let up = frames(&draw(&service(), &OutputOptions { upwards: true, ..OutputOptions::default() }));
    assert!(find(&up, "all").y > find(&up, "main").y);
}

#[test]
fn narrow_frames_are_left_out_and_widths_stay_true() {
    let options = OutputOptions { min_width_percent: 10.0, ..OutputOptions::default() };
    let frames = frames(&draw(&service(), &options));
    assert_eq!(find(&frames, "all").samples, 100);
    assert_eq!(find(&frames, "main").samples, 89);
    assert!(frames.iter().all(|frame| frame.samples >= 10 || frame.name == "[narrower than shown]"));
    // The worker thread has 9 of 100 samples.
    assert_eq!(find(&frames, "[narrower than shown]").samples, 9);
}

#[test]
fn too_many_frames_are_thinned_out_and_the_subtitle_says_so() {
    let mut samples = Vec::new();
    for i in 0..4_000_u64 {
        let frames = vec![native("main", "/bin/x", 1), native(&format!("f{i}"), "/bin/x", i)];
        let count = if i < 1_000 { 3 } else { 1 };
        samples.push(TestSample { time_ns: 0, task: task(1, "x"), frames, count });
    }
    let options = OutputOptions { min_width_percent: 0.0, ..OutputOptions::default() };
    let svg = draw(&samples, &options);
    assert_eq!(frames(&svg).len(), 1_003);
    assert!(svg.contains("too much to draw: frames under 0.033 % left out"));
    assert!(!draw(&samples[..2_000], &options).contains("too much to draw"));
}

#[test]
fn a_width_that_is_no_percentage_is_an_error() {
    for percent in [-1.0, 101.0, f64::NAN, f64::INFINITY] {
        let options = OutputOptions { min_width_percent: percent, ..OutputOptions::default() };
        let error = write(&profile(&service()), Format::Svg, &options, Vec::new()).unwrap_err();
        assert!(matches!(error, OutputError::MinWidth { .. }), "{percent}: {error}");
    }
    draw(&service(), &OutputOptions { min_width_percent: 100.0, ..OutputOptions::default() });
    draw(&service(), &OutputOptions { min_width_percent: 0.0, ..OutputOptions::default() });
}

#[test]
fn the_search_can_be_seen_whatever_the_colours_are() {
    for colors in [ColorScheme::ByKind, "hot".parse().unwrap()] {
        let svg = draw(&service(), &OutputOptions { colors, ..OutputOptions::default() });
        // Of two rules of the same weight the last one holds.
        let shown = svg.rfind("#search{opacity:0.7}").unwrap();
        assert!(svg.find("#search { text-anchor:end; opacity:0.1").is_some_and(|hidden| hidden < shown));
        assert!(svg.contains("#search:hover, #search.show { opacity:1; }"));
    }
}

#[test]
fn search_and_zoom_are_in_the_file() {
    let svg = draw(&service(), &OutputOptions::default());
    for part in [
        "function search(",
        "function zoom(",
        "id=\"search\"",
        "id=\"unzoom\"",
        "id=\"details\"",
        "total_samples=\"100\"",
    ] {
        assert!(svg.contains(part), "{part}");
    }
}

/// The light of a channel of sRGB.
fn linear(channel: u8) -> f64 {
    let channel = f64::from(channel) / 255.0;
    if channel <= 0.040_45 { channel / 12.92 } else { ((channel + 0.055) / 1.055).powf(2.4) }
}

/// WCAG 2's relative luminance.
fn luminance(color: inferno::flamegraph::color::Color) -> f64 {
    0.2126 * linear(color.r) + 0.7152 * linear(color.g) + 0.0722 * linear(color.b)
}

#[test]
fn black_text_is_readable_on_every_colour() {
    for class in Class::ALL {
        for i in 0..1_000 {
            let contrast = (luminance(class.color_of(&format!("f{i}"))) + 0.05) / 0.05;
            assert!(contrast >= 7.0, "{class:?}: contrast {contrast:.1}");
        }
    }
}

/// How eyes see linear red, green and blue: with all kinds of cones, and without those for long, middle and short waves
/// (Machado, Oliveira and Fernandes 2009, severity 1).
const EYES: [(&str, [[f64; 3]; 3]); 4] = [
    ("all cones", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    (
        "protanopia",
        [[0.152_286, 1.052_583, -0.204_868], [0.114_503, 0.786_281, 0.099_216], [-0.003_882, -0.048_116, 1.051_998]],
    ),
    (
        "deuteranopia",
        [[0.367_322, 0.860_646, -0.227_968], [0.280_085, 0.672_501, 0.047_413], [-0.011_820, 0.042_940, 0.968_881]],
    ),
    (
        "tritanopia",
        [[1.255_528, -0.076_749, -0.178_779], [-0.078_411, 0.930_809, 0.147_602], [0.004_733, 0.691_367, 0.303_900]],
    ),
];

/// Of 8-bit channels: lightness and two axes of colour in Oklab, in percent, as such eyes see them.
fn seen([r, g, b]: [u8; 3], eyes: &[[f64; 3]; 3]) -> [f64; 3] {
    let times = |matrix: &[[f64; 3]; 3], of: [f64; 3]| {
        matrix.map(|row| row.iter().zip(of).map(|(factor, channel)| factor * channel).sum::<f64>())
    };
    let light = times(eyes, [r, g, b].map(linear)).map(|channel| channel.clamp(0.0, 1.0));
    let cones = times(
        &[
            [0.412_221_470_8, 0.536_332_536_3, 0.051_445_992_9],
            [0.211_903_498_2, 0.680_699_545_1, 0.107_396_956_6],
            [0.088_302_461_9, 0.281_718_837_6, 0.629_978_700_5],
        ],
        light,
    );
    let axes = [
        [0.210_454_255_3, 0.793_617_785_0, -0.004_072_046_8],
        [1.977_998_495_1, -2.428_592_205_0, 0.450_593_709_9],
        [0.025_904_037_1, 0.782_771_766_2, -0.808_675_766_0],
    ];
    times(&axes, cones.map(f64::cbrt)).map(|axis| axis * 100.0)
}

fn distance(one: [u8; 3], other: [u8; 3], eyes: &[[f64; 3]; 3]) -> f64 {
    let (one, other) = (seen(one, eyes), seen(other, eyes));
    one.iter().zip(other).map(|(one, other)| (one - other).powi(2)).sum::<f64>().sqrt()
}

/// 2 is a difference that is just seen between two patches that touch.
#[test]
fn each_class_is_told_from_each_other_without_one_kind_of_cones() {
    for (name, eyes) in &EYES {
        let mut least = (f64::MAX, Class::Task, Class::Task);
        for (index, one) in Class::ALL.iter().enumerate() {
            for other in &Class::ALL[..index] {
                let [this, that] = [one, other].map(|class| class.color()).map(|color| [color.r, color.g, color.b]);
                let apart = distance(this, that, eyes);
                assert!(apart >= 5.5, "{name}: {one:?} and {other:?} are {apart:.1} apart");
                least = if apart < least.0 { (apart, *one, *other) } else { least };
            }
        }
        println!("{name}: {:.1} at least, {:?} and {:?}", least.0, least.1, least.2);
    }
}

/// The page's colours of a difference stand in its script.
#[cfg(feature = "serve")]
#[test]
fn more_and_less_are_told_apart_without_one_kind_of_cones() {
    let script = include_str!("../../serve/page/flame.js");
    let line = script.lines().find(|line| line.contains("change > 0 ? [")).expect("the colours of a difference");
    let channel = |hex: &str| u8::from_str_radix(hex, 16).expect("a colour");
    let colors: Vec<[u8; 3]> = line
        .split('"')
        .filter_map(|part| part.strip_prefix('#'))
        .map(|hex| [&hex[..2], &hex[2..4], &hex[4..]].map(channel))
        .collect();
    let (more, less) = colors.split_at(5);
    assert_eq!((colors.len(), more[0]), (10, less[0]), "the first of both is no change");
    for (name, eyes) in &EYES {
        for level in 1..5 {
            let apart = distance(more[level], less[level], eyes);
            assert!(apart >= 7.0, "{name}: level {level} of more and less are {apart:.1} apart");
            for side in [more, less] {
                let step = distance(side[level], side[level - 1], eyes);
                assert!(step >= 4.5, "{name}: level {level} is {step:.1} from the one before");
            }
        }
    }
}

#[test]
fn colours_of_two_classes_never_meet() {
    let colours =
        Class::ALL.map(|class| (class, (0..300).map(|i| class.color_of(&format!("f{i}"))).collect::<Vec<_>>()));
    for (i, (one, ones)) in colours.iter().enumerate() {
        for (other, others) in &colours[i + 1..] {
            let nearest = ones
                .iter()
                .flat_map(|a| {
                    others.iter().map(move |b| {
                        u32::from(a.r.abs_diff(b.r)) + u32::from(a.g.abs_diff(b.g)) + u32::from(a.b.abs_diff(b.b))
                    })
                })
                .min();
            assert!(nearest >= Some(24), "{one:?} and {other:?} are only {nearest:?} apart");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_name_gives_valid_xml_and_its_own_frame(
        names in prop::collection::vec(prop_oneof![any::<String>(), "[\\x00-\\x20;<>&'\"\\[\\]_kj0-9#-]{0,12}"], 1..5),
        comm in any::<String>(),
        kernel_frame in any::<bool>(),
        upwards in any::<bool>(),
        reverse in any::<bool>(),
    ) {
        let mut samples = one(&names.iter().map(|name| native(name, "/bin/x", 1)).collect::<Vec<_>>());
        samples[0].task.comm = Arc::from(&*comm);
        if kernel_frame {
            samples[0].frames.push(kernel(&names[0], 1));
        }
        let options = OutputOptions {
            title: Some(names[0].clone()),
            subtitle: Some(comm),
            lines: true,
            upwards,
            reverse,
            ..OutputOptions::default()
        };
        let drawn = frames(&draw(&samples, &options));
        prop_assert_eq!(drawn.len(), samples[0].frames.len() + 2);
        prop_assert!(drawn.iter().all(|frame| frame.samples == 3 && frame.x == 0));
        for name in &names {
            let shown = crate::profile::printable(name).into_owned();
            prop_assert!(drawn.iter().any(|frame| frame.name == shown), "{:?} in {:?}", shown, drawn);
        }
    }
}
