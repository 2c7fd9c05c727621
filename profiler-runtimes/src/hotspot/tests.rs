//! Readings of recorded JVMs: see `recorded/hotspot/record.sh`.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::{fs, io};

use jitprof_common::units::Avma;
use proptest::prelude::*;

use super::names::{Names, Strings};
use super::*;
use crate::recorded::Recorded;
use crate::{Base, Budget, Memory, ReadError, Reader, Symbols};

/// Each as JDK and options; one was interpreted only, one had a code cache in one piece.
const RECORDINGS: [&str; 6] = ["jdk17", "jdk17-int", "jdk21", "jdk25", "jdk25-small", "jdk26"];
/// Those that compiled methods, with their major version.
const COMPILED: [(&str, u32); 4] = [("jdk17", 17), ("jdk21", 21), ("jdk25", 25), ("jdk26", 26)];
/// What any of the readings here may cost.
pub(super) const ENOUGH: Budget = Budget { pages: 1 << 17, steps: 1 << 23 };

fn path(recording: &str, file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("recorded/hotspot").join(recording).join(file)
}

pub(super) fn memory(recording: &str) -> Recorded {
    static UNPACKED: LazyLock<HashMap<&str, Recorded>> = LazyLock::new(|| {
        let unpacked = |recording| Recorded::read(fs::File::open(path(recording, "memory")).unwrap()).unwrap();
        RECORDINGS.map(|recording| (recording, unpacked(recording))).into()
    });
    UNPACKED[recording].clone()
}

fn text(recording: &str, file: &str) -> String {
    String::from_utf8(zstd::decode_all(fs::File::open(path(recording, file)).unwrap()).unwrap()).unwrap()
}

fn read(memory: &Recorded) -> (Layout, Reader<&Recorded>, CodeCache) {
    let reader = Reader::new(memory, ENOUGH);
    let layout = Layout::read(memory, &reader).unwrap();
    let mut cache = CodeCache::default();
    let update = cache.update(&layout, &reader);
    assert_eq!((update.incomplete, update.damaged), (None, 0));
    assert!(update.changes.iter().all(|change| matches!(change, Change::Loaded(_))));
    (layout, reader, cache)
}

/// A layout that has the counters for tools at an address.
pub(super) fn layout_with_counters(counters: Option<Avma>) -> Layout {
    let mut layout = read(&memory("jdk25")).0;
    layout.counters = counters;
    layout
}

/// A layout, and a blob of stubs.
pub(super) fn layout_and_stubs(recording: &str) -> (Layout, Blob) {
    let (layout, _, cache) = read(&memory(recording));
    let stubs = cache.blobs().find(|blob| blob.kind == Kind::Stubs).unwrap();
    (layout, Blob::clone(stubs))
}

fn method<'c>(cache: &'c CodeCache, name: &str, tier: Tier) -> &'c Blob {
    let blob = cache.blobs().find(|blob| blob.kind == Kind::Method(tier) && blob.name.to_string() == name);
    blob.unwrap_or_else(|| panic!("no {name} by {tier:?}"))
}

#[test]
fn every_blob_has_the_name_and_extent_of_the_runtimes_own_map() {
    for recording in RECORDINGS {
        let memory = memory(recording);
        let (_, _, cache) = read(&memory);
        let map = text(recording, "map");
        let mut ours: Vec<String> = cache
            .blobs()
            .map(|blob| format!("{:#018x} {:#018x} {}", blob.code.0, blob.code_bytes, blob.name))
            .collect();
        let mut theirs: Vec<String> = map.lines().map(str::to_owned).collect();
        ours.sort();
        theirs.sort();
        assert!(ours.len() > 280);
        assert_eq!(ours, theirs, "{recording}");
    }
}

/// A method with its bytecode and line, as the tool interface writes it; -1 for what is not known.
type Told = (String, i64, i64);

fn told(frame: &Frame) -> Told {
    let number = |number: Option<u32>| number.map_or(-1, i64::from);
    (frame.method.in_class_file(), number(frame.bci), number(frame.line))
}

/// Each known address with its methods, the outermost first, as the tool interface has them.
fn told_lines(text: &str) -> Vec<(Avma, Vec<Told>)> {
    let told = |frame: &str| {
        let (method, place) = frame.rsplit_once('@').unwrap();
        let (bci, line) = place.split_once(':').unwrap();
        (method.to_owned(), bci.parse().unwrap(), line.parse().unwrap())
    };
    let of_line = |line: &str| {
        let (pc, frames) = line.split_once(' ').unwrap();
        let pc = Avma(u64::from_str_radix(pc.trim_start_matches("0x"), 16).unwrap());
        (pc, frames.split(' ').rev().map(told).collect())
    };
    text.lines().map(of_line).collect()
}

/// What two places have in common, and what is guessed behind it of the one that is assumed.
fn told_between([before, behind]: [&[Told]; 2], assumed: &[Told]) -> (Vec<Told>, Vec<Told>) {
    let mut sure: Vec<Told> = Vec::new();
    for (one, other) in before.iter().zip(behind) {
        if one.0 != other.0 {
            break;
        }
        if one.1 != other.1 {
            sure.push((one.0.clone(), -1, if one.2 == other.2 { one.2 } else { -1 }));
            break;
        }
        sure.push(one.clone());
    }
    let guess = match assumed.get(sure.len()..) {
        _ if [before.len(), behind.len()] == [sure.len(); 2] => &[],
        Some(guess) if !guess.is_empty() => guess,
        _ => &assumed[sure.len() - 1..],
    };
    (sure, guess.to_vec())
}

#[test]
fn every_known_address_has_the_inlined_methods_and_lines_of_the_tool_interface() {
    for (recording, _) in COMPILED {
        let memory = memory(recording);
        let (layout, reader, cache) = read(&memory);
        let lines = told_lines(&text(recording, "lines"));
        let inlined = lines.iter().filter(|(_, frames)| frames.len() > 1).count();
        for (pc, theirs) in &lines {
            let blob = cache.at(*pc).unwrap();
            for come_by in [Pc::Return, Pc::Called] {
                let position = cache.position(&layout, &reader, blob, (*pc, come_by)).unwrap();
                let ours: Vec<Told> = position.frames.iter().rev().map(told).collect();
                assert_eq!((&ours, position.guessed, position.exact), (theirs, 0, true), "{recording} {pc:?}");
            }
        }
        assert!(lines.len() > 200 && inlined > 50, "{recording}: {} {inlined}", lines.len());
    }
}

#[test]
fn between_two_known_addresses_what_both_have_is_sure_and_the_rest_of_the_next_one_a_guess() {
    for (recording, _) in COMPILED {
        let memory = memory(recording);
        let (layout, reader, cache) = read(&memory);
        let lines = told_lines(&text(recording, "lines"));
        let (mut sure_leaves, mut guesses, mut themselves) = (0, 0, 0);
        for known in lines.windows(2) {
            let [(before, outer), (behind, inner)] = known else { continue };
            let (blob, places) = (cache.at(*behind).unwrap(), [&**outer, &**inner]);
            if !blob.contains(*before) || before.0 + 1 == behind.0 {
                continue;
            }
            let position = |pc, come_by| cache.position(&layout, &reader, blob, (pc, come_by)).unwrap();
            let split = |position: &Position| {
                let mut frames: Vec<Told> = position.frames.iter().rev().map(told).collect();
                let guess = frames.split_off(frames.len() - position.guessed);
                (frames, guess)
            };
            let middle = Avma(before.0 + 1);
            let theirs = told_between(places, inner);
            for come_by in [Pc::Interrupted, Pc::Called] {
                let ours = position(middle, come_by);
                assert_eq!((split(&ours), ours.exact), (theirs.clone(), false), "{recording} {middle:?}");
            }
            // Behind a call, and at other places that are known, either may run what is known or what follows.
            let ours = position(*before, Pc::Interrupted);
            assert_eq!((split(&ours), ours.exact), (told_between(places, outer), true), "{recording} {before:?}");
            let returned = position(middle, Pc::Return);
            assert_eq!((returned.frames.len(), returned.frames[0].line, returned.guessed), (1, None, 0));
            sure_leaves += usize::from(theirs.1.is_empty());
            guesses += usize::from(!theirs.1.is_empty());
            themselves += usize::from(theirs.1.first().is_some_and(|guess| inner.get(theirs.0.len()) != Some(guess)));
        }
        assert!(
            sure_leaves > 50 && guesses > 50 && themselves > 5,
            "{recording}: {sure_leaves} {guesses} {themselves}"
        );
    }
}

#[test]
fn before_the_first_known_address_and_behind_the_last_one_the_method_itself_is_sure() {
    for (recording, _) in COMPILED {
        let memory = memory(recording);
        let (layout, reader, cache) = read(&memory);
        let mut seen = (0, 0);
        for blob in cache.blobs().filter(|blob| matches!(blob.kind, Kind::Method(_))) {
            let known = CodeCache::known_pcs(&layout, &reader, blob).unwrap();
            let (Some(first), Some(last)) = (known.first(), known.last()) else { continue };
            let position = |pc| cache.position(&layout, &reader, blob, (pc, Pc::Interrupted)).unwrap();
            let (entered, at_first) = (position(blob.code), position(*first));
            let outermost = |position: &Position| position.frames.last().unwrap().method.clone();
            assert_eq!(outermost(&entered), outermost(&at_first), "{recording} {blob:?}");
            if first.0 > blob.code.0 {
                // The frames of the first place that the method has called are a guess.
                assert!(entered.frames.len() - entered.guessed == 1 && !entered.exact, "{recording} {entered:?}");
                seen.0 += 1;
            }
            let end = Avma(blob.code.0 + u64::from(blob.code_bytes));
            if last.0 + 1 < end.0 {
                let behind = position(Avma(last.0 + 1));
                assert_eq!((behind.frames.len() - behind.guessed, behind.frames[behind.guessed].line), (1, None));
                seen.1 += 1;
            }
        }
        assert!(seen.0 > 20 && seen.1 > 20, "{recording}: {seen:?}");
    }
}

#[test]
fn of_a_deoptimised_frame_another_method_is_a_guess_only_if_any_was_inlined() {
    for (recording, _) in COMPILED {
        let memory = memory(recording);
        let (layout, reader, cache) = read(&memory);
        let (mut alone, mut with_others) = (0, 0);
        for blob in cache.blobs().filter(|blob| matches!(blob.kind, Kind::Method(_))) {
            let position = |pc, come_by| cache.position(&layout, &reader, blob, (pc, come_by)).unwrap();
            let known = CodeCache::known_pcs(&layout, &reader, blob).unwrap();
            let has_inlined = known.iter().any(|pc| position(*pc, Pc::Return).frames.len() > 1);
            let ours = position(blob.code, Pc::Deoptimized);
            let expected = if has_inlined { (2, 1) } else { (1, 0) };
            assert_eq!((ours.frames.len(), ours.guessed), expected, "{recording} {blob:?}");
            for frame in ours.frames {
                assert_eq!((frame.line, BlobName::Method(frame.method)), (None, blob.name.clone()), "{recording}");
            }
            alone += u32::from(!has_inlined);
            with_others += u32::from(has_inlined);
        }
        assert!(alone > 5 && with_others > 5, "{recording}: {alone} {with_others}");
    }
}

/// A recording with words that it has not got, on pages of their own if need be.
struct Patched<'a> {
    below: &'a Recorded,
    words: HashMap<u64, u64>,
}

impl Memory for Patched<'_> {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        let is_own_page = || self.words.keys().any(|word| word & !0xfff == address.0 & !0xfff);
        let count = match self.below.read(address, into) {
            Err(_) if is_own_page() => {
                into.fill(0);
                into.len()
            }
            read => read?,
        };
        for (word, value) in &self.words {
            for (at, byte) in (*word..).zip(value.to_le_bytes()) {
                let within = at.checked_sub(address.0).and_then(|within| usize::try_from(within).ok());
                if let Some(there) = within.and_then(|within| into[..count].get_mut(within)) {
                    *there = byte;
                }
            }
        }
        Ok(count)
    }
}

/// Sets options that the runtime has, of this value and origin each.
fn with_options<'a>(memory: &'a Recorded, options: &[(&str, u64, u64)]) -> Patched<'a> {
    let reader = Reader::new(memory, ENOUGH);
    let word = |name: &str| reader.u64(memory.address_of(name).unwrap()).unwrap();
    let (start, stride) = (word("gHotSpotVMStructs"), word("gHotSpotVMStructEntryArrayStride"));
    let part = |entry: u64, name: &str| reader.u64(Avma(entry + word(&format!("gHotSpotVMStructEntry{name}Offset"))));
    let text = |entry, name| reader.c_string(Avma(part(entry, name).unwrap()), 64).unwrap();
    let entry = |field: &str| {
        let mut entries = (0..4000).map(|index| start + index * stride);
        let is_it =
            |entry: &u64| text(*entry, "TypeName") == b"JVMFlag" && text(*entry, "FieldName") == field.as_bytes();
        entries.find(is_it).unwrap()
    };
    let [name, value, flags] = ["_name", "_addr", "_flags"].map(|field| part(entry(field), "Offset").unwrap());
    let [first, count] = ["flags", "numFlags"].map(|field| part(entry(field), "Address").unwrap());
    let mut types = (0..4000).map(|index| word("gHotSpotVMTypes") + index * word("gHotSpotVMTypeEntryArrayStride"));
    let type_name = |entry: u64| reader.u64(Avma(entry + word("gHotSpotVMTypeEntryTypeNameOffset"))).unwrap();
    let is_it = |entry: &u64| reader.c_string(Avma(type_name(*entry)), 64).unwrap() == b"JVMFlag";
    let size = types.find(is_it).map(|entry| entry + word("gHotSpotVMTypeEntrySizeOffset")).unwrap();
    let size = reader.u64(Avma(size)).unwrap();
    let (table, texts) = (0x10_0000, 0x20_0000);
    let mut words: HashMap<u64, u64> = [(first, table), (count, options.len() as u64)].into();
    for (index, (option, is_set, origin)) in options.iter().enumerate() {
        let (at, text) = (table + index as u64 * size, texts + index as u64 * 64);
        let mut bytes = [0; 32];
        bytes[..option.len()].copy_from_slice(option.as_bytes());
        let characters = bytes.chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
        words.extend((text..).step_by(8).zip(characters));
        words.extend([(text + 32, *is_set), (at + name, text), (at + value, text + 32), (at + flags, *origin)]);
    }
    Patched { below: memory, words }
}

#[test]
fn code_of_a_runtime_that_knows_every_instruction_since_its_start_is_never_guessed() {
    for (recording, _) in COMPILED {
        let memory = memory(recording);
        let lines = told_lines(&text(recording, "lines"));
        let option = "DebugNonSafepoints";
        let without = with_options(&memory, &[(option, 1, 1)]);
        assert!(!Layout::read(&memory, &Reader::new(&without, ENOUGH)).unwrap().loses_frame_pointers(), "{recording}");
        for (is_set, origin, is_known) in [(1, 1, true), (1, 0x102, true), (1, 0, false), (0, 1, false), (1, 6, false)]
        {
            let others = [("DebugVMUseMinidumps", 1, 1), ("PreserveFramePointer", 1 - is_set, 1)];
            let patched = with_options(&memory, &[others[0], others[1], (option, is_set, origin)]);
            let reader = Reader::new(&patched, ENOUGH);
            let layout = Layout::read(&memory, &reader).unwrap();
            assert_eq!(layout.is_dense, is_known, "{recording} {is_set} {origin}");
            assert_eq!(layout.loses_frame_pointers(), is_set == 1, "{recording}");
            if origin > 1 {
                continue;
            }
            let mut cache = CodeCache::default();
            cache.update(&layout, &reader);
            let mut guesses = 0;
            for (pc, theirs) in &lines {
                let blob = cache.at(*pc).unwrap();
                let before = cache.position(&layout, &reader, blob, (Avma(pc.0 - 1), Pc::Interrupted)).unwrap();
                guesses += before.guessed;
                let is_between = !lines.iter().any(|(other, _)| other.0 == pc.0 - 1);
                let ours: Vec<Told> = before.frames.iter().rev().map(told).collect();
                assert!(!is_known || !is_between || &ours == theirs, "{recording} {pc:?}: {ours:?}");
            }
            assert_eq!(guesses == 0, is_known, "{recording} {is_set} {origin}");
        }
    }
}

/// What `jcmd PID Thread.print` says of each thread with frames, without the modules of files.
fn printed_threads(text: &str) -> HashMap<u32, Vec<String>> {
    let mut threads: HashMap<u32, Vec<String>> = HashMap::new();
    let mut thread = 0;
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once("nid=").filter(|_| line.starts_with('"')) {
            let id = rest.split(' ').next().unwrap();
            thread =
                id.strip_prefix("0x").map_or_else(|| id.parse().unwrap(), |id| u32::from_str_radix(id, 16).unwrap());
        } else if let Some((method, place)) = line.strip_prefix("\tat ").and_then(|frame| frame.split_once('(')) {
            let place = place.rsplit_once('/').map_or(place, |(_, place)| place);
            threads.entry(thread).or_default().push(format!("{method}({place}"));
        }
    }
    threads
}

#[test]
fn stacks_of_waiting_threads_are_those_that_the_runtime_prints() {
    for recording in RECORDINGS {
        let memory = memory(recording);
        let (layout, reader, cache) = read(&memory);
        let mut printed = printed_threads(&text(recording, "threads"));
        assert_eq!(printed.len(), 21, "{recording}");
        let threads = waiting_threads(&layout, &reader, &cache).unwrap();
        for thread in &threads {
            assert_eq!(thread.ended, None, "{recording}");
            let ours = thread.frames.iter().map(|frame| {
                let file = frame.file.as_deref();
                let place = match (file, frame.line) {
                    (Some(file), Some(line)) => format!("{file}:{line}"),
                    (Some(_), None) => "Native Method".to_owned(),
                    (None, _) => "Unknown Source".to_owned(),
                };
                format!("{}.{}({place})", frame.method.class_in_java(), frame.method.method)
            });
            let ours: Vec<String> = ours.collect();
            assert_eq!(ours, printed.remove(&thread.tid).unwrap_or_default(), "{recording} {}", thread.tid);
        }
        assert_eq!(printed.len(), 0, "{recording}");
        let sum = |count: fn(&WaitingThread) -> usize| threads.iter().map(count).sum::<usize>();
        let (compiled, inlined) = (sum(|thread| thread.compiled as usize), sum(|thread| thread.inlined));
        if recording == "jdk17-int" {
            assert_eq!(compiled, 0);
        } else {
            assert!(compiled > 40 && inlined > 40, "{recording}: {compiled} {inlined}");
            assert_eq!(sum(|thread| thread.deoptimized as usize), 1, "{recording}");
        }
    }
}

#[test]
fn every_version_says_where_it_counts_what_it_unloads() {
    for recording in RECORDINGS {
        assert!(read(&memory(recording)).0.counters.is_some(), "{recording}");
    }
}

#[test]
fn kinds_tiers_and_frames_are_told_apart() {
    for (recording, major) in COMPILED {
        let memory = memory(recording);
        let (layout, reader, cache) = read(&memory);
        assert_eq!(layout.version().major, major);
        let count = |kind| cache.blobs().filter(|blob| blob.kind == kind).count();
        assert_eq!((count(Kind::Interpreter), count(Kind::Deoptimization)), (1, 1), "{recording}");
        assert!(count(Kind::Adapter) > 30 && count(Kind::Runtime) > 30 && count(Kind::Stubs) > 1, "{recording}");
        let recursive = method(&cache, "void Wait.recursive(Wait$Step, int)", Tier::C2);
        let FrameShape::Sized { bytes, complete_from: Some(complete) } = recursive.frame else {
            panic!("{recursive:?}")
        };
        assert!((24..512).contains(&bytes) && complete > 0 && complete < 64, "{recording}: {bytes} {complete}");
        assert!(recursive.compile_id > 0 && recursive.original_pc.is_some_and(|offset| offset < bytes));
        // JVMCI's code returns to behind a call at the handler's beginning; JDK 26 says that place at once.
        let handler = recursive.code.0 + u64::from(recursive.deopt_handlers[0].unwrap());
        let is_deoptimized = [0, 1, 4, 5, 6].map(|within| recursive.is_deoptimized(Avma(handler + within)));
        assert_eq!(is_deoptimized, [true, false, false, major < 26, false], "{recording}");
        assert!(!recursive.is_deoptimized(recursive.code));
        assert_eq!(cache.at(Avma(recursive.code.0 + 5)).unwrap().id, recursive.id);
        let (low, high) = cache.ranges().iter().find(|(low, high)| (*low..*high).contains(&recursive.code)).unwrap();
        assert!(high.0 - low.0 > 1 << 20);
        // A loop was entered in its midst.
        assert!(cache.blobs().any(|blob| blob.osr_bci.is_some_and(|bci| bci > 0)), "{recording}");

        let interpreter = cache.blobs().find(|blob| blob.kind == Kind::Interpreter).unwrap();
        assert_eq!(interpreter.frame, FrameShape::Interpreter);
        let codelets = codelets(&layout, &reader).unwrap();
        assert!(codelets.iter().all(|codelet| interpreter.contains(codelet.start)));
        for name in ["iload", "invokevirtual", "method entry point (kind = zerolocals)"] {
            assert!(codelets.iter().any(|codelet| &*codelet.name == name), "{recording} {name}");
        }
        let spec = InterpreterFrame::capture(&layout, interpreter);
        assert_eq!((spec.start, spec.words.len()), (interpreter.code, 4));
        assert_eq!((spec.words[1].base, spec.words[1].steps.as_slice()), (Base::FramePointer, [-24, 8].as_slice()));
    }
}

#[test]
fn a_method_without_what_never_changes_of_it_is_told_by_the_bytecode_that_its_frame_is_at() {
    for (recording, _) in COMPILED {
        let memory = memory(recording);
        let (layout, reader, cache) = read(&memory);
        let threads = waiting_threads(&layout, &reader, &cache).unwrap();
        let interpreted: Vec<Interpreted> = threads.into_iter().flat_map(|thread| thread.interpreted).collect();
        let of = |frame: Interpreted| frame.frame(&layout, &reader).ok();
        let (mut told, mut native) = (0, 0);
        for whole in interpreted {
            let late = Interpreted { const_method: None, ..whole };
            assert_eq!(of(late), of(whole), "{recording} {whole:?}");
            assert_eq!(of(Interpreted { saved: Avma(whole.saved.0 ^ (1 << 20)), ..late }), None, "{recording}");
            // A frame that is at no bytecode is a native method's.
            let is_native = of(whole).is_some_and(|frame| frame.bci.is_none());
            let at_none = Interpreted { saved: Avma(0), ..late };
            assert_eq!(of(at_none), of(whole).filter(|_| is_native), "{recording} {whole:?}");
            native += u32::from(is_native);
            told += u32::from(!is_native);
        }
        assert!(told > 10 && native > 0, "{recording} {told} {native}");
    }
}

#[test]
fn a_second_reading_finds_nothing_new_and_takes_one_look_at_each_blob() {
    let memory = memory("jdk21");
    let (layout, reader, mut cache) = read(&memory);
    let before = reader.left();
    let update = cache.update(&layout, &reader);
    assert_eq!(
        update,
        Update { changes: Vec::new(), damaged: 0, unsettled: 0, unseen: update.unseen, incomplete: None }
    );
    let blobs = cache.blobs().count() as u64;
    // For each: one byte of the map and its header. Other blocks are free, and some segments are looked at in vain: of the map
    // the recording has what was looked at, and where it has nothing, blocks seem to begin.
    assert!(before.steps - reader.left().steps < 20 * blobs + 100);
}

#[test]
fn code_in_the_place_of_other_code_is_another_blob() {
    for (recording, _) in COMPILED {
        let mut memory = memory(recording);
        let (layout, _, mut cache) = read(&memory);
        let old = method(&cache, "void Wait.recursive(Wait$Step, int)", Tier::C2);
        let (old, header) = (old.id, old.header);
        let blobs = cache.blobs().count();
        let compile_id = layout.compiled.compile_id.within(header).unwrap();
        memory.overwrite(compile_id, &0x00ab_cdef_u32.to_le_bytes());
        let reader = Reader::new(&memory, ENOUGH);
        let stale = cache.blobs().find(|blob| blob.id == old).unwrap().clone();
        assert_eq!(cache.is_still_there(&layout, &reader, &stale), Ok(false));
        assert!(cache.position(&layout, &reader, &stale, (stale.code, Pc::Interrupted)).is_err());
        let update = cache.update(&layout, &reader);
        let [Change::Unloaded(gone), Change::Loaded(new)] = update.changes.as_slice() else { panic!("{update:?}") };
        assert_eq!((gone.id, new.compile_id, new.header, &new.name), (old, 0x00ab_cdef, header, &gone.name));
        assert!(new.id > gone.id && cache.blobs().count() == blobs);
        assert_eq!([new, gone].map(|blob| cache.is_still_there(&layout, &reader, blob)), [Ok(true), Ok(false)]);
        let last = new.clone();
        let new = new.id;
        drop(reader);

        // The block is freed.
        let used = layout.heap.block_used.within(Avma(header.0 - layout.heap.block_bytes)).unwrap();
        memory.overwrite(used, &[0]);
        let update = cache.update(&layout, &Reader::new(&memory, ENOUGH));
        let [Change::Unloaded(gone)] = update.changes.as_slice() else { panic!("{update:?}") };
        assert_eq!((gone.id, cache.blobs().count()), (new, blobs - 1));
        assert_eq!(cache.at(gone.code), None);
        assert_eq!(cache.is_still_there(&layout, &Reader::new(&memory, ENOUGH), &last), Ok(false));
    }
}

#[test]
fn a_compiled_method_has_the_name_that_it_had_when_its_code_was_found() {
    for (recording, _) in COMPILED {
        let mut memory = memory(recording);
        let (layout, reader, cache) = read(&memory);
        let blob = Blob::clone(method(&cache, "void Wait.recursive(Wait$Step, int)", Tier::C2));
        let constant = layout.method.const_method.pointer(&reader, blob.method).unwrap();
        let signature = layout.method.signature_index.read(&reader, constant).unwrap();
        drop(reader);
        // Its class was unloaded, and another method lies where it was.
        let name = layout.method.name_index.within(constant).unwrap();
        memory.overwrite(name, &u16::try_from(signature).unwrap().to_le_bytes());
        let reader = Reader::new(&memory, ENOUGH);
        let mut strings = Strings::default();
        let other = Names::new(&layout, &reader, &mut strings).method(blob.method).unwrap();
        let position = cache.position(&layout, &reader, &blob, (blob.code, Pc::Deoptimized)).unwrap();
        for frame in position.frames {
            assert!(frame.method != other && BlobName::Method(frame.method) == blob.name, "{recording}");
        }
    }
}

#[test]
fn of_headers_of_any_size_no_more_is_read_than_a_header_may_have() {
    let memory = memory("jdk21");
    let (mut layout, reader, cache) = read(&memory);
    let blob = method(&cache, "void Wait.recursive(Wait$Step, int)", Tier::C2);
    layout.compiled.bytes = u64::MAX;
    let unreadable = ReadError::Unreadable(blob.header.0);
    assert_eq!(CodeCache::known_pcs(&layout, &reader, blob), Err(unreadable));
    assert_eq!(cache.is_still_there(&layout, &reader, blob), Ok(false));
}

#[test]
fn numbers_that_no_reading_has_seen_are_noted() {
    for (recording, _) in COMPILED {
        let mut memory = memory(recording);
        let (layout, reader, mut cache) = read(&memory);
        drop(reader);
        let blob = Blob::clone(method(&cache, "void Wait.recursive(Wait$Step, int)", Tier::C2));
        let compile_id = layout.compiled.compile_id.within(blob.header).unwrap();
        let last = cache.blobs().map(|blob| blob.compile_id).max().unwrap();
        // Those that are new at once are told only from the second reading on.
        cache.update(&layout, &Reader::new(&memory, ENOUGH));
        let found = [1, 3, 4, 5, 6].map(|new| {
            memory.overwrite(compile_id, &(last + new).to_le_bytes());
            let update = cache.update(&layout, &Reader::new(&memory, ENOUGH));
            assert!(matches!(update.changes.first(), Some(Change::Unloaded(_))), "{update:?}");
            update.unseen
        });
        assert_eq!(found, [false, true, true, false, false], "{recording}");
    }
}

#[test]
fn a_reading_that_is_over_its_budget_does_not_say_that_code_has_gone() {
    let memory = memory("jdk21");
    let (layout, reader, cache) = read(&memory);
    let methods = cache.blobs().filter(|blob| blob.method.0 != 0);
    let asked: Vec<(&Blob, _, _)> = methods.map(|blob| (&**blob, blob.code, Pc::Interrupted)).collect();
    let before = reader.left().steps;
    let is_gone = |read: &Result<Option<Position>, ReadError>| matches!(read, Ok(None));
    assert!(!cache.positions(&layout, &reader, &asked).iter().any(is_gone));
    let cost = before - reader.left().steps;
    for part in 0..40 {
        let reader = Reader::new(&memory, Budget { steps: cost * part / 40, ..ENOUGH });
        let read = cache.positions(&layout, &reader, &asked);
        assert!(read.iter().any(|read| matches!(read, Err(ReadError::OverBudget))), "{part}");
        assert!(!read.iter().any(is_gone), "{part}");
    }
}

#[test]
fn code_that_nothing_uses_any_more_is_gone_before_it_is_freed() {
    for (recording, major) in COMPILED {
        let mut memory = memory(recording);
        let (layout, _, mut cache) = read(&memory);
        let blob = Blob::clone(method(&cache, "void Wait.recursive(Wait$Step, int)", Tier::C2));
        // Only JDK 17 has such a state; it keeps the method, of which it is not known what is left.
        let state = layout.compiled.state.within(blob.header).unwrap();
        memory.overwrite(state, &[3]);
        let update = cache.update(&layout, &Reader::new(&memory, ENOUGH));
        assert_eq!(update.changes.len(), usize::from(major == 17), "{recording}");
        memory.overwrite(state, &[0]);
        memory.overwrite(layout.compiled.method.within(blob.header).unwrap(), &[0; 8]);
        let update = cache.update(&layout, &Reader::new(&memory, ENOUGH));
        assert_eq!((update.changes.len(), update.damaged), (usize::from(major != 17), 0), "{recording}");
        assert!(cache.blobs().all(|other| other.header != blob.header));
    }
}

/// A recording, and how often it was asked for something.
struct Asked<'a>(&'a Recorded, Cell<u32>);

impl Memory for Asked<'_> {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        self.1.set(self.1.get() + 1);
        self.0.read(address, into)
    }

    fn read_each(&self, reads: &mut [(Avma, &mut [u8])]) -> Vec<usize> {
        self.1.set(self.1.get() + 1);
        self.0.read_each(reads)
    }
}

#[test]
fn all_that_names_are_read_from_is_fetched_before_with_some_calls_and_nothing_else() {
    for (recording, _) in COMPILED {
        let memory = memory(recording);
        let (layout, _, cache) = read(&memory);
        let methods = cache.blobs().map(|blob| blob.method).filter(|method| method.0 != 0);
        let methods: Vec<Avma> = methods.collect();
        let asked = Asked(&memory, Cell::new(0));
        let reader = Reader::new(&asked, ENOUGH);
        reader.note_words();
        let mut strings = Strings::default();
        let mut names = Names::new(&layout, &reader, &mut strings);
        names.prefetch(&methods);
        let (calls, pages) = (asked.1.get(), reader.left().pages);
        assert!(calls <= 9 && reader.left().steps == ENOUGH.steps, "{recording}: {calls}");
        for method in &methods {
            names.method(*method).unwrap();
        }
        assert_eq!((asked.1.get(), reader.left().pages), (calls, pages), "{recording}");
        let used: BTreeSet<u64> = reader.used_words().iter().map(|word| word / 4096).collect();
        assert!(used.len() > 5 && (ENOUGH.pages - pages) as usize <= used.len(), "{recording}: {pages}");
        // Of a method whose class and symbols are known, four values are read, and no symbol is fetched again.
        let before = reader.left();
        names.method(methods[0]).unwrap();
        assert_eq!(before.steps - reader.left().steps, 4, "{recording}");
        reader.refresh();
        names.prefetch(&methods);
        assert!(before.pages - reader.left().pages < ENOUGH.pages - pages, "{recording}");
    }
}

/// Where nothing is that a runtime has, and all that is there leads anywhere in it.
const ASTRAY: Range<u64> = 0x2000_0000_0000..0x3000_0000_0000;

/// A recording that leads there, and how many pages of that were fetched.
struct Astray<'a>(&'a Recorded, Cell<usize>);

impl Memory for Astray<'_> {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        if !ASTRAY.contains(&address.0) {
            return self.0.read(address, into);
        }
        self.1.set(self.1.get() + 1);
        for (at, word) in (address.0..).step_by(8).zip(into.chunks_mut(8)) {
            let anywhere = ASTRAY.start + (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20);
            word.copy_from_slice(&anywhere.to_le_bytes()[..word.len()]);
        }
        Ok(into.len())
    }
}

#[test]
fn of_methods_that_lead_anywhere_not_many_more_pages_are_fetched_than_are_read() {
    for (recording, _) in COMPILED {
        let mut memory = memory(recording);
        let (layout, reader, cache) = read(&memory);
        drop(reader);
        let compiled = cache.blobs().filter(|blob| blob.method.0 != 0);
        let methods: Vec<Avma> = compiled.map(|blob| layout.compiled.method.within(blob.header).unwrap()).collect();
        for (number, method) in (1..).zip(&methods) {
            memory.overwrite(*method, &(ASTRAY.start + number * 0x1_0000).to_le_bytes());
        }
        let astray = Astray(&memory, Cell::new(0));
        let reader = Reader::new(&astray, ENOUGH);
        reader.note_words();
        let update = CodeCache::default().update(&layout, &reader);
        assert_eq!((update.incomplete, update.damaged), (None, 0), "{recording}");
        let used: BTreeSet<u64> = reader.used_words().range(ASTRAY).map(|word| word / 4096).collect();
        let (used, fetched) = (used.len(), astray.1.get());
        assert!(used > methods.len() && fetched < 2 * used, "{recording}: {fetched} {used} {}", methods.len());
    }
}

/// Memory that is another one from the moment on at which a certain word was read.
struct Changing {
    before: Recorded,
    after: Recorded,
    word: u64,
    changed: Cell<bool>,
}

impl Memory for Changing {
    fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
        let memory = if self.changed.get() { &self.after } else { &self.before };
        // Pages are fetched for other things, too: only a look at a header counts.
        if into.len() != 4096 && (address.0..address.0 + into.len() as u64).contains(&self.word) {
            self.changed.set(true);
        }
        memory.read(address, into)
    }
}

#[test]
fn code_that_is_replaced_while_it_is_read_gets_no_name_of_either() {
    for (recording, _) in COMPILED {
        let before = memory(recording);
        let (layout, _, cache) = read(&before);
        let blob = Blob::clone(method(&cache, "void Wait.recursive(Wait$Step, int)", Tier::C2));
        let word = layout.compiled.compile_id.within(blob.header).unwrap();
        let mut after = before.clone();
        after.overwrite(word, &77_777_u32.to_le_bytes());
        let changing = Changing { before, after, word: word.0, changed: Cell::new(false) };
        let reader = Reader::new(&changing, ENOUGH);
        let mut cache = CodeCache::default();
        let update = cache.update(&layout, &reader);
        assert_eq!((update.unsettled, update.damaged, update.incomplete), (1, 0, None), "{recording}");
        assert_eq!(cache.at(blob.code), None);
        let update = cache.update(&layout, &reader);
        let [Change::Loaded(new)] = update.changes.as_slice() else { panic!("{update:?}") };
        assert_eq!((new.compile_id, new.header), (77_777, blob.header));
    }
}

#[test]
fn names_are_never_older_than_the_code_that_has_them() {
    for (recording, _) in COMPILED {
        let before = memory(recording);
        let (layout, reader, cache) = read(&before);
        // The name of the class is fetched for code in another heap of the code cache, before this one is come to.
        let heap = |blob: &Blob| cache.ranges().iter().position(|(low, high)| (*low..*high).contains(&blob.code));
        let class = |blob: &Blob| match &blob.name {
            BlobName::Method(name) => Some(name.class.clone()),
            _ => None,
        };
        let methods: Vec<&Blob> = cache.blobs().map(|blob| &**blob).filter(|blob| class(blob).is_some()).collect();
        let shared = |blob: &Blob| methods.iter().any(|other| class(other) == class(blob) && heap(other) < heap(blob));
        let blob = methods.iter().find(|blob| shared(blob)).unwrap();
        let constant = layout.method.const_method.pointer(&reader, blob.method).unwrap();
        let pool = layout.method.constants.pointer(&reader, constant).unwrap();
        let holder = layout.method.pool_holder.pointer(&reader, pool).unwrap();
        let symbol = layout.method.klass_name.pointer(&reader, holder).unwrap();
        let mut after = before.clone();
        after.overwrite(layout.method.symbol_body.within(symbol).unwrap(), b"X");
        let word = layout.compiled.compile_id.within(blob.header).unwrap().0;
        let changing = Changing { before: before.clone(), after, word, changed: Cell::new(false) };
        let mut cache = CodeCache::default();
        cache.update(&layout, &Reader::new(&changing, ENOUGH));
        let name = cache.at(blob.code).unwrap().name.to_string();
        assert!(name.contains(" Xava.") || name.contains(" Xait"), "{recording} {name}");
    }
}

#[test]
fn a_name_that_could_not_be_read_is_read_later() {
    let whole = memory("jdk25");
    let (layout, reader, cache) = read(&whole);
    let blob = Blob::clone(method(&cache, "void Wait.recursive(Wait$Step, int)", Tier::C2));
    let constant = layout.method.const_method.pointer(&reader, blob.method).unwrap();
    drop(reader);
    let mut broken = whole.clone();
    broken.overwrite(layout.method.constants.within(constant).unwrap(), &[0; 8]);
    let mut cache = CodeCache::default();
    cache.update(&layout, &Reader::new(&broken, ENOUGH));
    let unnamed = cache.at(blob.code).unwrap().clone();
    assert!(matches!(unnamed.name, BlobName::Unknown(ReadError::Unreadable(_))), "{unnamed:?}");
    assert_eq!(cache.update(&layout, &Reader::new(&broken, ENOUGH)).changes, []);
    let update = cache.update(&layout, &Reader::new(&whole, ENOUGH));
    assert!(update.changes.contains(&Change::Unloaded(unnamed.clone())));
    let named = cache.at(blob.code).unwrap();
    assert!(named.id > unnamed.id && named.name == blob.name);
}

#[test]
fn what_a_reading_does_not_come_to_is_not_taken_for_gone() {
    let memory = memory("jdk17");
    let (layout, _, mut cache) = read(&memory);
    let blobs = cache.blobs().count();
    for pages in [0, 1, 5, 50, 200, 399] {
        let update = cache.update(&layout, &Reader::new(&memory, Budget { pages, ..ENOUGH }));
        assert_eq!((update.changes.len(), update.incomplete), (0, Some(ReadError::OverBudget)), "{pages}");
    }
    let mut fresh = CodeCache::default();
    let update = fresh.update(&layout, &Reader::new(&memory, Budget { pages: 300, ..ENOUGH }));
    assert!(update.incomplete.is_some() && !update.changes.is_empty());
    assert!(fresh.blobs().count() < blobs);
    let rest = fresh.update(&layout, &Reader::new(&memory, ENOUGH));
    assert!(rest.incomplete.is_none() && fresh.blobs().count() == blobs);
}

#[test]
fn a_runtime_that_does_not_say_enough_is_refused_with_its_version() {
    let mut memory = memory("jdk17");
    // The name of a field, where the table has it.
    let reader = Reader::new(&memory, ENOUGH);
    let word = |name| reader.u64(memory.address_of(name).unwrap()).unwrap();
    let (start, stride) = (word("gHotSpotVMStructs"), word("gHotSpotVMStructEntryArrayStride"));
    let field_at = word("gHotSpotVMStructEntryFieldNameOffset");
    let named = |name: &[u8]| {
        let names = (0..4000).map(|index| Avma(start + index * stride + field_at));
        names.map(|at| reader.pointer(at).unwrap()).find(|at| reader.c_string(*at, 64).as_deref() == Ok(name)).unwrap()
    };
    let name = named(b"_frame_size");
    drop(reader);
    memory.overwrite(name, b"x");
    let error = Layout::read(&memory, &Reader::new(&memory, ENOUGH)).unwrap_err();
    let message = error.to_string();
    assert!(
        message.starts_with("HotSpot 17.0.") && message.ends_with(" does not say where it keeps CodeBlob::_frame_size"),
        "{message}"
    );
    assert!(matches!(error, LayoutError::Missing { version: Version { major: 17, .. }, .. }));
}

#[test]
fn a_module_without_tables_is_none_of_hotspots() {
    let empty = Recorded::default();
    let error = Layout::read(&empty, &Reader::new(&empty, ENOUGH)).unwrap_err();
    assert_eq!(error, LayoutError::NoTables("gHotSpotVMStructs"));
}

/// Reads all there is, whatever it is; returns what it cost.
fn read_everything(memory: &Recorded, budget: Budget) -> Budget {
    let reader = Reader::new(memory, budget);
    if let Ok(layout) = Layout::read(memory, &reader) {
        let mut cache = CodeCache::default();
        for _ in 0..2 {
            cache.update(&layout, &reader);
        }
        let blobs: Vec<_> = cache.blobs().take(500).cloned().collect();
        for blob in blobs {
            assert!(!blob.name.to_string().is_empty());
            let middle = Avma(blob.code.0 + u64::from(blob.code_bytes / 2));
            if let Ok(position) = cache.position(&layout, &reader, &blob, (middle, Pc::Interrupted)) {
                assert!(position.frames.len() <= 65);
            }
            if matches!(blob.kind, Kind::Method(_)) {
                CodeCache::known_pcs(&layout, &reader, &blob).unwrap_or_default();
            }
        }
        waiting_threads(&layout, &reader, &cache).unwrap_or_default();
        codelets(&layout, &reader).unwrap_or_default();
    }
    reader.left()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Words of a recording are replaced by others: small ones, addresses of the recording, anything.
    #[test]
    fn whatever_a_process_writes_into_its_memory_is_read_within_the_budget(
        recording in 0..RECORDINGS.len(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0..512_u64, 0..4, any::<u64>()), 1..200),
    ) {
        let mut memory = memory(RECORDINGS[recording]);
        let pages: Vec<Avma> = memory.page_addresses().collect();
        for (page, word, kind, value) in changes {
            let at = Avma(page.get(&pages).0 + word * 8);
            let address = pages[usize::try_from(value % pages.len() as u64).unwrap()].0 + (value >> 32) % 4096;
            let value = match kind {
                0 => value % 256,
                1 => address,
                2 => at.0,
                _ => value,
            };
            memory.overwrite(at, &value.to_le_bytes());
        }
        let budget = Budget { pages: 20_000, steps: 300_000 };
        let left = read_everything(&memory, budget);
        prop_assert!(left.pages <= budget.pages && left.steps <= budget.steps);
    }

    /// Of all words that a reading takes, one after another is replaced: rarely used ones are met as well.
    #[test]
    fn each_word_that_is_taken_may_be_anything(
        recording in 0..RECORDINGS.len(),
        words in proptest::collection::vec((any::<prop::sample::Index>(), 0..8_usize, any::<u64>()), 1..20),
    ) {
        let mut memory = memory(RECORDINGS[recording]);
        let taken: Vec<u64> = {
            let reader = Reader::new(&memory, ENOUGH);
            reader.note_words();
            let layout = Layout::read(&memory, &reader).unwrap();
            let left = reader.used_words();
            CodeCache::default().update(&layout, &reader);
            reader.used_words().difference(&left).copied().collect()
        };
        for (word, kind, value) in words {
            let at = *word.get(&taken);
            let value = [0, 1, u64::MAX, i64::MAX.cast_unsigned(), at, at + 8, value, value % 65536][kind];
            memory.overwrite(Avma(at), &value.to_le_bytes());
        }
        read_everything(&memory, Budget { pages: 20_000, steps: 300_000 });
    }
}
