//! The command over generated dumps and those of real runtimes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use serde_json::Value;

use super::{Arguments, JitdumpError, run};
use crate::cli::subcommand::SubcommandError;
use crate::output::{Format, OutputOptions, write};
use crate::profile::{Profile, ProfileMeta, SampledEvent, Task};
use crate::symbol::{Frame, FrameKind, Module};
use jitprof_common::units::{MonoNs, Pid, Tid};
use jitprof_jitdump::test_data::{ALL, example, fixture, sound_dump};
use jitprof_jitdump::writer::{DumpWriter, EntryFields, HeaderFields, LoadFields};
use jitprof_jitdump::{Deviation, Severity};

#[derive(Debug, Parser)]
struct CommandLine {
    #[command(flatten)]
    arguments: Arguments,
}

/// A folder with a dump in it.
struct Dump {
    folder: tempfile::TempDir,
    path: PathBuf,
}

impl Dump {
    fn of(bytes: &[u8]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jit-1.dump");
        fs::write(&path, bytes).unwrap();
        Self { folder, path }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> (String, Result<(), SubcommandError>) {
        let all = ["jitdump", self.path.to_str().unwrap()].into_iter().chain(arguments.iter().copied());
        let line = CommandLine::try_parse_from(all).unwrap();
        let mut out = Vec::new();
        let result = run(&line.arguments, &mut out);
        (String::from_utf8(out).unwrap(), result)
    }

    fn text(&self, arguments: &[&str]) -> String {
        let (text, result) = self.run(arguments);
        result.unwrap();
        text
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.text(arguments)).unwrap()
    }

    fn lines(&self, arguments: &[&str]) -> Vec<Value> {
        self.text(arguments).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn load<'a>(code_addr: u64, code_index: u64, name: &'a str, code: &'a [u8]) -> LoadFields<'a> {
    LoadFields { code_addr, code_index, name: name.as_bytes(), code }
}

/// The names of the errors that a check finds.
fn errors(path: &Path) -> BTreeSet<String> {
    let dump = Dump::of(&fs::read(path).unwrap());
    let (text, _) = dump.run(&["--check", "--json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    let found = report["dumps"][0]["findings"].as_array().unwrap().clone();
    let errors = found.iter().filter(|found| found["severity"] == "error");
    errors.map(|found| found["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_deviation_is_named_with_its_offset_and_errors_fail() {
    for &deviation in Deviation::ALL {
        if deviation == Deviation::FlagOverNanoseconds {
            // Only of a running process it is known when it started.
            continue;
        }
        let (bytes, offset) = example(deviation);
        let dump = Dump::of(&bytes);
        let (text, result) = dump.run(&["--check"]);
        let name = deviation.name();
        let severity = if deviation.severity() == Severity::Error { "error" } else { "quirk" };
        let title = text.lines().find(|line| line.starts_with(&format!("{severity}  {name}  ")));
        assert!(title.is_some_and(|line| line.ends_with(deviation.meaning())), "{name}: {text}");
        assert!(text.contains(&format!("       at {offset:#x}")), "{name} at {offset:#x}: {text}");
        assert!(deviation.producers().is_none_or(|producers| text.contains(producers)), "{name}: {text}");
        let status = result.as_ref().err().map(SubcommandError::status);
        let expected = text.contains("\nerror  ").then_some(Some(4));
        assert_eq!(status, expected, "{name}: {text}");
        assert!(deviation.severity() == Severity::Quirk || result.is_err(), "{name}");
        let (_, strict) = dump.run(&["--check", "--strict"]);
        assert_eq!(strict.err().map(|error| error.status()), Some(Some(4)), "{name}");
        let (json, _) = dump.run(&["--check", "--json", "--places", "1"]);
        let json: Value = serde_json::from_str(&json).unwrap();
        let found = json["dumps"][0]["findings"].as_array().unwrap();
        let found = found.iter().find(|found| found["name"] == name).unwrap();
        assert_eq!(found["places"][0]["offset"], offset, "{name}");
    }
}

#[test]
fn the_document_names_every_deviation_and_its_severity() {
    let document = include_str!("../../../../docs/reference/jitdump-check.md");
    let (_, catalogue) = document.split_once("### Errors").expect("errors are listed");
    let (errors, quirks) = catalogue.split_once("### Quirks").expect("quirks are listed behind them");
    for deviation in Deviation::ALL {
        let listed = if deviation.severity() == Severity::Error { errors } else { quirks };
        let row = format!("| `{}` | {} |", deviation.name(), deviation.meaning());
        assert!(listed.contains(&row), "{row}");
    }
}

#[test]
fn a_sound_dump_passes_the_strict_check() {
    let dump = Dump::of(&sound_dump());
    let text = dump.text(&["--check", "--strict"]);
    assert!(text.ends_with("0 errors, 0 quirks of known producers\n"), "{text}");
}

#[test]
fn garbage_is_no_dump_however_short() {
    for bytes in [b"no such dump".as_slice(), &[0x55; 64]] {
        let (text, result) = Dump::of(bytes).run(&["--check"]);
        assert!(text.contains("no-magic") && text.contains(&format!("{} bytes lost", bytes.len())), "{text}");
        assert!(matches!(result, Err(SubcommandError::Jitdump(JitdumpError::Outside { errors: 1, quirks: 0 }))));
    }
    let text = Dump::of(b"DTi").text(&["--check"]);
    assert!(text.contains("torn-end"), "{text}");
}

#[test]
fn one_error_is_not_called_errors() {
    let texts = Deviation::ALL.iter().map(|deviation| Dump::of(&example(*deviation).0).run(&["--check"]).0);
    let texts: Vec<String> = texts.collect();
    assert!(texts.iter().any(|text| text.contains(": 1 error, ")), "{texts:?}");
    assert!(texts.iter().any(|text| text.contains(", 1 quirk of ")), "{texts:?}");
    assert!(!texts.iter().any(|text| text.contains(": 1 errors") || text.contains(", 1 quirks")), "{texts:?}");
}

#[test]
fn the_summary_says_what_the_reader_counts() {
    let dump = Dump::of(&fixture("node20-lines"));
    let text = dump.text(&[]);
    assert!(text.contains("version 1, x86-64, little endian, pid "), "{text}");
    assert!(text.contains("written by V8"), "{text}");
    let json = dump.json(&["--json"]);
    let json = &json["dumps"][0];
    let functions = json["statistics"]["functions"].as_u64().unwrap();
    assert!(functions > 20 && text.contains(&format!("functions   {functions} with ")), "{text}");
    assert_eq!(json["statistics"]["records"]["load"], functions);
    assert_eq!(json["header"]["pad1"], 0xdead_beef_u32);
    assert_eq!(json["survey"]["late_records"], 0);
}

#[test]
fn reused_addresses_lateness_and_unknown_types_are_counted() {
    let mut dump = DumpWriter::new(1);
    dump.load(1000, &load(0x1000, 0, "a", &[0x90; 16]));
    dump.load(3000, &load(0x1000, 1, "b", &[0x90; 16]));
    dump.load(2000, &load(0x1008, 2, "c", &[0x90; 16]));
    dump.record(77, 3000, &[0; 8]).load(3000, &load(0x5000, 3, "d", &[]));
    let text = Dump::of(&dump.into_bytes()).text(&[]);
    assert!(text.contains("1 functions took the place of one at the same address, 1 of others"), "{text}");
    assert!(text.contains("1 records late in the file, by 1000 at most"), "{text}");
    assert!(text.contains("unknown     1 of type 77"), "{text}");
    assert!(text.contains("1 are empty"), "{text}");
}

#[test]
fn records_are_listed_and_filtered() {
    let mut dump = DumpWriter::new(7);
    dump.load(1_000_000_000, &load(0x1000, 0, "first", &[0x90; 16]));
    dump.debug_info(2_000_000_000, 0x2000, &[EntryFields { addr: 0x2000, line: 5, discrim: 1, name: b"b.js" }], 0);
    dump.load(2_000_000_000, &load(0x2000, 1, "second", &[0x90; 16]));
    dump.set_pid(8).moved(3_000_000_000, 0x1000, 0x3000, 16, 0);
    dump.set_pid(7).close(4_000_000_000);
    let dump = Dump::of(&dump.into_bytes());
    let kinds = |arguments: &[&str]| -> Vec<String> {
        let all = [&["--records", "--json"], arguments].concat();
        dump.lines(&all).iter().map(|line| line["kind"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(kinds(&[]), ["header", "load", "debug_info", "load", "move", "close"]);
    assert_eq!(kinds(&["--kind", "load,close"]), ["load", "load", "close"]);
    assert_eq!(kinds(&["--name", "irs"]), ["load"]);
    assert_eq!(kinds(&["--addr", "0x100f"]), ["load", "move"]);
    assert_eq!(kinds(&["--addr", "2000"]), ["debug_info", "load"]);
    assert_eq!(kinds(&["--pid", "8"]), ["move"]);
    assert_eq!(kinds(&["--since", "+1s", "--until", "3.0"]), ["debug_info", "load", "move"]);
    assert_eq!(kinds(&["--since", "2000000001", "--kind", "move,load"]), ["move"]);
    let lines = dump.lines(&["--records", "--json"]);
    assert_eq!(lines[2]["entries"][0]["file"], "b.js");
    assert_eq!((&lines[3]["name"], &lines[3]["code_addr"]), (&"second".into(), &0x2000.into()));
    assert_eq!(lines[0]["byte_order"], "little");
    let text = dump.text(&["--records"]);
    assert!(text.contains("0x2000  1 entries, first b.js:5"), "{text}");
    assert!(text.contains("0x1000 to 0x3000, 16 bytes  #0 tid 8"), "{text}");
    let refused = dump.run(&["--name", "x"]).1.unwrap_err();
    assert_eq!(refused.to_string(), "--name of a list of records needs --records or --follow");
}

#[test]
fn hostile_names_are_escaped_everywhere() {
    let evil = "\x1b[2J\u{202e}evil\n";
    let mut dump = DumpWriter::new(1);
    dump.debug_info(5, 0x1000, &[EntryFields { addr: 0x1000, line: 1, discrim: 0, name: evil.as_bytes() }], 0);
    dump.load(5, &load(0x1000, 0, evil, &[0x90, 0xc3]));
    let dump = Dump::of(&dump.into_bytes());
    for arguments in [&["--records"][..], &[], &["--check"], &["--disasm", "evil"]] {
        let text = dump.run(arguments).0;
        assert!(!text.contains('\x1b') && !text.contains('\u{202e}'), "{arguments:?}: {text}");
        assert!(arguments.len() < 2 && !arguments.contains(&"--records") || text.contains("\\x1b[2J"), "{text}");
    }
}

/// Two functions at one address, after one another, and a profile of both.
fn profiled(dump: &Dump) -> PathBuf {
    let meta = ProfileMeta {
        title: "test".into(),
        start_time: std::time::SystemTime::UNIX_EPOCH,
        start: MonoNs(0),
        duration: Duration::from_secs(1),
        frequency_hz: 99.try_into().unwrap(),
        event: SampledEvent::CpuClock,
    };
    let mut profile = Profile::new(meta, u64::MAX);
    let task =
        profile.task(Task { pid: Pid(1), process_start: 0, tid: Tid(1), comm: "t".into(), labels: Default::default() });
    let module = std::sync::Arc::new(Module { path: "[jit]".into(), build_id: None });
    for (name, address, count) in [("hot", 0x1001, 7), ("hot", 0x1003, 2), ("cold", 0x1001, 5), ("hot", 0x9000, 1)] {
        let frame = profile.intern_frame(&Frame {
            name: name.into(),
            kind: FrameKind::Jit,
            tier: None,
            inlined: false,
            module: Some(std::sync::Arc::clone(&module)),
            source: None,
            address,
        });
        let stack = profile.push(profile.stack_root(), frame);
        profile.add(MonoNs(0), stack, task, count);
    }
    let path = dump.file("p.pb.gz");
    write(&profile, Format::Pprof, &OutputOptions::default(), fs::File::create(&path).unwrap()).unwrap();
    path
}

/// push rbp; xor eax, eax; jmp to the xor; ret
const CODE: &[u8] = &[0x55, 0x31, 0xc0, 0xeb, 0xfc, 0xc3];

fn hot_and_cold() -> Dump {
    let mut dump = DumpWriter::new(1);
    let entry = |addr, line| EntryFields { addr, line, discrim: 0, name: b"a.js" };
    dump.debug_info(10, 0x1000, &[entry(0x1000, 3), entry(0x1003, 4)], 0);
    dump.load(10, &load(0x1000, 0, "hot", CODE));
    dump.load(20, &load(0x1000, 1, "cold", CODE));
    Dump::of(&dump.into_bytes())
}

#[test]
fn instructions_have_lines_and_the_samples_of_their_own_function() {
    let dump = hot_and_cold();
    let profile = profiled(&dump);
    let text = dump.text(&["--disasm", "hot", "--profile", profile.to_str().unwrap()]);
    assert!(text.contains("#0, loaded at 0.000000010; 9 of 15 samples"), "{text}");
    let line = |text: &str, part: &str| text.lines().find(|line| line.contains(part)).unwrap().to_owned();
    assert!(line(&text, "push rbp").ends_with("; a.js:3"), "{text}");
    assert!(line(&text, "xor eax, eax").starts_with("      7  77.7% 0x1001"), "{text}");
    let jump = line(&text, "jmp");
    assert!(
        jump.contains("<+0x1>") && jump.trim_start().starts_with("2  22.2%") && jump.ends_with("; a.js:4"),
        "{text}"
    );
    let at = dump.json(&["--disasm", "0x1002", "--profile", profile.to_str().unwrap(), "--json"]);
    let functions = at["dumps"][0]["functions"].as_array().unwrap();
    let found: Vec<_> = functions.iter().map(|function| (&function["name"], &function["samples"])).collect();
    assert_eq!(found, [(&"hot".into(), &9.into()), (&"cold".into(), &5.into())], "the hottest one first");
    assert_eq!(functions[1]["instructions"][1]["samples"], 5);
    let att = dump.text(&["--disasm", "cold", "--syntax", "att"]);
    assert!(att.contains("xor %eax, %eax") || att.contains("xor %eax,%eax") || att.contains("xorl"), "{att}");
    assert!(dump.run(&["--disasm", "nobody"]).1.is_err());
}

#[test]
fn what_is_no_profile_or_no_x86_is_refused_in_a_sentence() {
    let dump = hot_and_cold();
    let error = dump.run(&["--disasm", "hot", "--profile", dump.path.to_str().unwrap()]).1.unwrap_err();
    assert!(error.to_string().contains("it is no gzipped pprof file (record with -o FILE.pb.gz)"), "{error}");
    let mut arm = DumpWriter::with_header(&HeaderFields { elf_mach: 183, ..HeaderFields::default() });
    arm.load(1, &load(0x1000, 0, "f", &[0; 4]));
    let error = Dump::of(&arm.into_bytes()).run(&["--disasm", "f"]).1.unwrap_err();
    assert!(error.to_string().starts_with("code for AArch64 is not disassembled here; --write-elf"), "{error}");
    let error = Dump::of(b"no dump at all").run(&[]).1.unwrap_err();
    assert!(matches!(error, SubcommandError::Jitdump(JitdumpError::NoDump { .. })), "{error}");
    assert!(matches!(Dump::of(b"").run(&[]).1, Err(SubcommandError::Jitdump(JitdumpError::Empty { .. }))));
}

/// What a mended copy cannot have any more.
const MENDED: [&str; 8] =
    ["no-magic", "version", "header-size", "flags", "lost-sequence", "damaged-record", "debug-cut", "debug-unclaimed"];

fn mend(dump: &Dump) -> Vec<u8> {
    let out = dump.file("mended.dump");
    let (_, result) = dump.run(&["--repair", out.to_str().unwrap()]);
    result.unwrap();
    let found = errors(&out);
    assert!(MENDED.iter().all(|name| !found.contains(*name)), "{found:?}");
    fs::read(out).unwrap()
}

#[test]
fn mended_dumps_are_whole_and_mending_them_again_changes_nothing() {
    let examples = Deviation::ALL.iter().map(|deviation| (deviation.name(), example(*deviation).0));
    // A CLOSE that is too long is only believed when something follows it: in the copy nothing does.
    let examples = examples.filter(|(name, _)| *name != "long-record");
    for (name, bytes) in examples.chain(ALL.map(|name| (name, fixture(name)))) {
        let dump = Dump::of(&bytes);
        let mended = mend(&dump);
        assert_eq!(mend(&Dump::of(&mended)), mended, "{name}");
        let text = Dump::of(&mended).run(&["--check"]).0;
        for gone in ["torn-end", "another-header", "freed-name", "version-2"] {
            assert!(!text.contains(&format!("  {gone}  ")), "{name}: {text}");
        }
    }
}

#[test]
fn mending_keeps_every_function_but_the_damaged_ones() {
    for name in ALL {
        let bytes = fixture(name);
        let names = |dump: &Dump| -> Vec<Value> {
            dump.lines(&["--records", "--json", "--kind", "load"]).iter().map(|line| line["name"].clone()).collect()
        };
        let whole = Dump::of(&bytes);
        let before = names(&whole);
        assert_eq!(names(&Dump::of(&mend(&whole))), before, "{name}");
        // Three records somewhere in the middle are overwritten.
        let loads = whole.lines(&["--records", "--json", "--kind", "load"]);
        let at = usize::try_from(loads[loads.len() / 2]["offset"].as_u64().unwrap()).unwrap();
        let mut damaged = bytes.clone();
        damaged[at..at + 24].fill(0xee);
        let after = names(&Dump::of(&mend(&Dump::of(&damaged))));
        assert_eq!(after.len() + 1, before.len(), "{name}");
    }
}

#[test]
fn any_damage_is_mended() {
    let bytes = fixture("llvm14-nofp-g");
    for at in (0..bytes.len()).step_by(41) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x81;
        mend(&Dump::of(&damaged));
        mend(&Dump::of(&bytes[..at]));
    }
}

#[test]
fn an_elf_file_has_the_functions_of_the_time() {
    let mut dump = DumpWriter::new(1);
    dump.load(10, &load(0x1000, 0, "early", &[0xcc; 16]));
    dump.load(30, &load(0x1000, 1, "late", &[0xc3; 16]));
    dump.load(20, &load(0x1010, 2, "beside", &[0x90; 16]));
    dump.moved(40, 0x1010, 0x8000, 16, 2);
    let dump = Dump::of(&dump.into_bytes());
    let symbols = |arguments: &[&str]| -> Vec<(String, u64, Vec<u8>)> {
        let out = dump.file("out.elf");
        let all = [&["--write-elf", out.to_str().unwrap()], arguments].concat();
        dump.text(&all);
        crate::output::elf_tests::symbols(&fs::read(&out).unwrap())
    };
    let (late, beside) = (vec![0xc3; 16], vec![0x90; 16]);
    assert_eq!(symbols(&[]), [("late".into(), 0x1000, late), ("beside".into(), 0x8000, beside.clone())]);
    assert_eq!(
        symbols(&["--at", "+15ns"]),
        [("early".into(), 0x1000, vec![0xcc; 16]), ("beside".into(), 0x1010, beside)]
    );
    let error = dump.run(&["--write-elf", "/nonexistent/x.elf"]).1.unwrap_err();
    assert!(error.to_string().contains("create the directory first"), "{error}");
}

#[test]
fn a_process_is_chosen_with_and_without_an_option() {
    // This process maps no dump.
    let own = std::process::id().to_string();
    let said = |words: &[&str]| {
        let line = CommandLine::try_parse_from([&["jitdump"], words].concat()).map_err(|error| error.to_string())?;
        run(&line.arguments, &mut Vec::new()).map_err(|error| error.to_string())
    };
    let nothing = said(&[&own]).unwrap_err();
    assert!(nothing.contains(&own) && !nothing.contains("Usage"), "{nothing}");
    assert_eq!(said(&["-p", &own]).unwrap_err(), nothing);
    assert!(said(&["-p", &own, "x.dump"]).unwrap_err().contains("Usage") && said(&[]).is_err());
}
