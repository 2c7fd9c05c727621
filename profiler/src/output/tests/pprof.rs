use std::io::Read;

use flate2::read::GzDecoder;
use prost::Message;

use super::super::proto::{self, Location, Sample};
use super::*;

/// A decoded file: our own messages have no room for samples, because the writer streams them.
pub(super) struct Decoded {
    pub(super) samples: Vec<Sample>,
    tables: proto::Profile,
}

#[derive(Clone, PartialEq, Message)]
struct SamplesOnly {
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
}

pub(super) fn decode(profile: &Profile) -> Decoded {
    let gzipped = bytes(profile, Format::Pprof, &OutputOptions::default());
    let mut raw = Vec::new();
    GzDecoder::new(&*gzipped).read_to_end(&mut raw).unwrap();
    Decoded { samples: SamplesOnly::decode(&*raw).unwrap().sample, tables: proto::Profile::decode(&*raw).unwrap() }
}

impl Decoded {
    fn string(&self, index: i64) -> &str {
        &self.tables.string_table[usize::try_from(index).unwrap()]
    }

    fn location(&self, id: u64) -> &Location {
        let location = &self.tables.location[usize::try_from(id).unwrap() - 1];
        assert_eq!(location.id, id);
        location
    }

    /// `main`, or `inner < outer` with inlined functions, and the line.
    fn location_text(&self, id: u64) -> String {
        let location = self.location(id);
        let lines = location.line.iter().map(|line| {
            let function = &self.tables.function[usize::try_from(line.function_id).unwrap() - 1];
            assert_eq!(function.id, line.function_id);
            let (name, system) = (self.string(function.name), self.string(function.system_name));
            let file = self.string(function.filename);
            let system = if system == name { String::new() } else { format!(" [{system}]") };
            let at = if file.is_empty() { String::new() } else { format!(" ({file}:{})", line.line) };
            format!("{name}{system}{at}")
        });
        let lines: Vec<_> = lines.collect();
        format!("{} @{:x} m{}", lines.join(" < "), location.address, location.mapping_id)
    }

    fn text(&self) -> String {
        let tables = &self.tables;
        let mut text = String::new();
        for mapping in &tables.mapping {
            text.push_str(&format!(
                "mapping {} {:x}-{:x} {} {:?}\n",
                mapping.id,
                mapping.memory_start,
                mapping.memory_limit,
                self.string(mapping.filename),
                self.string(mapping.build_id)
            ));
        }
        for sample in &self.samples {
            let labels: Vec<_> = sample
                .label
                .iter()
                .map(|label| match label.str {
                    0 => format!("{}={}", self.string(label.key), label.num),
                    text => format!("{}={}", self.string(label.key), self.string(text)),
                })
                .collect();
            text.push_str(&format!("{:?} {}\n", sample.value, labels.join(" ")));
            for &id in &sample.location_id {
                text.push_str(&format!("    {}\n", self.location_text(id)));
            }
        }
        text
    }
}

#[test]
fn samples_locations_and_mappings_are_as_in_the_golden() {
    assert_golden("service.pprof.txt", &decode(&profile(&service())).text());
}

#[test]
fn places_in_a_line_are_one_function_with_their_columns() {
    let frames = [5, 146_721, 0].map(|column| at_column(jit("f", None, 3, 1), column));
    let samples = frames.map(|frame| TestSample { time_ns: 0, task: task(1, "x"), frames: vec![frame], count: 1 });
    let decoded = decode(&profile(&samples));
    assert_eq!(decoded.tables.function.len(), 1);
    let mut columns: Vec<i64> = decoded.tables.location.iter().map(|location| location.line[0].column).collect();
    columns.sort_unstable();
    assert_eq!(columns, [0, 5, 146_721]);
}

#[test]
fn the_header_says_what_the_values_mean() {
    let decoded = decode(&profile(&service()));
    let tables = &decoded.tables;
    let types: Vec<_> = tables
        .sample_type
        .iter()
        .map(|value| format!("{}/{}", decoded.string(value.r#type), decoded.string(value.unit)))
        .collect();
    assert_eq!(types, ["samples/count", "cpu/nanoseconds"]);
    assert_eq!(tables.string_table[0], "");
    assert_eq!(tables.period, 10_000_000);
    assert_eq!(tables.time_nanos, 1_700_000_000_000_000_000);
    assert_eq!(tables.duration_nanos, 10_000_000_000);
    assert_eq!(decoded.string(tables.default_sample_type), "cpu");
    for sample in &decoded.samples {
        assert_eq!(sample.value[1], sample.value[0] * tables.period);
    }
}

#[test]
fn the_busiest_file_is_the_main_binary_and_ranges_hold_their_addresses() {
    let decoded = decode(&profile(&service()));
    assert_eq!(decoded.string(decoded.tables.mapping[0].filename), "/usr/bin/node");
    for location in &decoded.tables.location {
        if location.mapping_id != 0 {
            let mapping = &decoded.tables.mapping[usize::try_from(location.mapping_id).unwrap() - 1];
            assert!((mapping.memory_start..mapping.memory_limit).contains(&location.address));
        }
    }
}

#[test]
fn addresses_at_the_end_of_the_space_do_not_overflow() {
    let sample = TestSample {
        time_ns: u64::MAX - 5_000_000_000,
        task: task(1, "x"),
        frames: vec![kernel("k", u64::MAX), native("n", "/bin/x", u64::MAX)],
        count: u64::MAX,
    };
    let decoded = decode(&profile(&[sample]));
    assert_eq!(decoded.samples[0].value, [i64::MAX, i64::MAX]);
    assert!(decoded.tables.mapping.iter().all(|mapping| mapping.memory_limit == u64::MAX));
}

#[test]
fn the_file_has_no_time_of_its_own() {
    let gzipped = bytes(&profile(&service()), Format::Pprof, &OutputOptions::default());
    assert_eq!(gzipped[..2], [0x1f, 0x8b]);
    assert_eq!(gzipped[4..8], [0, 0, 0, 0], "the gzip header's mtime");
}

/// Runs `go tool pprof` on the service's profile.
fn go_pprof(arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cpu.pb.gz");
    std::fs::write(&path, bytes(&profile(&service()), Format::Pprof, &OutputOptions::default())).unwrap();
    let output = std::process::Command::new("go")
        .args(["tool", "pprof"])
        .args(arguments)
        .arg(&path)
        .output()
        .expect("go must be installed for this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The words of the line that ends in `name`.
fn line_of<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let line = text.lines().find(|line| line.ends_with(name));
    line.unwrap_or_else(|| panic!("no line for {name} in\n{text}")).split_whitespace().collect()
}

#[test]
#[ignore = "needs go: cargo test -p jitprof --lib output::tests::pprof -- --ignored"]
fn go_tool_pprof_reads_totals_lines_inlines_mappings_and_labels() {
    let top = go_pprof(&["-top"]);
    assert!(top.contains("File: node") && top.contains("Type: cpu"), "{top}");
    assert!(top.contains("Duration: 10s, Total samples = 1000ms"), "{top}");
    assert_eq!(line_of(&top, "*leafHot")[..2], ["450ms", "45.00%"]);
    assert_eq!(line_of(&top, "std::copy (inline)")[3..5], ["100ms", "10.00%"]);

    let counts = go_pprof(&["-top", "-sample_index=samples"]);
    assert!(counts.contains("of 100 total"), "{counts}");

    let worker = go_pprof(&["-top", "-tagfocus=V8Worker"]);
    assert_eq!(line_of(&worker, "memcpy")[0], "60ms");
    let tags = go_pprof(&["-tags"]);
    for label in ["comm: Total", "thread: Total", "pid: Total", "tid: Total", "V8Worker-4250"] {
        assert!(tags.contains(label), "{label} in {tags}");
    }

    let raw = go_pprof(&["-raw"]);
    assert!(raw.contains("/usr/bin/node c0ffee00 [FN][FL][LN][IN]"), "{raw}");
    assert!(raw.contains("/app/server.js:40"), "{raw}");
}
