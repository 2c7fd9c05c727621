use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use super::native::Native;
use super::worker::{Limits, MAX_STUCK_OF_OWNER};
use super::*;
use crate::gsym::GsymStore;
use crate::process::apart::spent_for_thread;
use crate::process::open::{FileId, TargetRoot, VDSO};
use crate::process::procfs::Credentials;
use jitprof_common::units::{Avma, FileOffset};
use jitprof_unwind::elf;

const WAIT: Duration = Duration::from_secs(60);

/// `outer` calls `middle` calls `inner`, the latter two inlined. Without std, so that the file stays small.
const INLINES: &str = r#"
#![crate_type = "cdylib"]
#![no_std]
#[inline(always)]
fn inner(seed: u64) -> u64 {
    core::hint::black_box(seed).wrapping_mul(31)
}
#[inline(always)]
fn middle(seed: u64) -> u64 {
    inner(seed).wrapping_add(1) // line 10
}
pub mod deep {
    #[inline(never)]
    pub fn outer(seed: u64) -> u64 {
        super::middle(seed) // line 15
    }
}
#[unsafe(no_mangle)]
pub extern "C" fn entry(seed: u64) -> u64 {
    deep::outer(seed).wrapping_add(3)
}
#[unsafe(no_mangle)]
pub extern "C" fn Builtins_TestEntry(seed: u64) -> u64 {
    core::hint::black_box(seed).wrapping_mul(7)
}
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
"#;

/// Compiled once: a shared object with debug information, and the same with that compressed.
static BUILT: LazyLock<(tempfile::TempDir, PathBuf, PathBuf)> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("inlines.rs");
    fs::write(&source, INLINES).unwrap();
    let build = |name: &str, extra: &[&str]| {
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let output = directory.path().join(name);
        let mut command = Command::new(rustc);
        command.args(["-O", "-g", "--edition=2024", "-Cpanic=abort", "-Clink-arg=-nostartfiles"]);
        command.args(["-Clink-arg=-Wl,--build-id=sha1", "-o"]).arg(&output).arg(&source).args(extra);
        assert!(command.status().expect("rustc builds this test, so it can be run").success());
        output
    };
    let plain = build("libinlines.so", &[]);
    let compressed = build("libcompressed.so", &["-Clink-arg=-Wl,--compress-debug-sections=zlib"]);
    (directory, plain, compressed)
});

/// File offset of a function, by `nm`-like reading of the symbol table, independent of blazesym.
fn offset_of(path: &Path, wanted: &str) -> (u64, u64) {
    let file = File::open(path).unwrap();
    let layout = image::layout_of(&file).unwrap();
    let symtab = layout.section_of_kind(elf::SHT_SYMTAB).unwrap();
    let strings = layout.linked(symtab).unwrap();
    let mut names = vec![0; strings.size as usize];
    file.read_exact_at(&mut names, strings.file_offset).unwrap();
    let mut table = vec![0; symtab.size as usize];
    file.read_exact_at(&mut table, symtab.file_offset).unwrap();
    for symbol in table.chunks_exact(24) {
        let name = &names[u32::from_le_bytes(symbol[..4].try_into().unwrap()) as usize..];
        let name = &name[..name.iter().position(|byte| *byte == 0).unwrap()];
        if String::from_utf8_lossy(name).contains(wanted) {
            let value = u64::from_le_bytes(symbol[8..16].try_into().unwrap());
            let size = u64::from_le_bytes(symbol[16..24].try_into().unwrap());
            let segment = layout
                .segments
                .iter()
                .find(|segment| segment.kind == 1 && (segment.svma..segment.svma + segment.file_size).contains(&value));
            let segment = segment.unwrap();
            return (value - segment.svma + segment.file_offset, size);
        }
    }
    panic!("{} has no symbol like {wanted}", path.display());
}

fn resolved(naming: &mut Naming, key: SymbolKey) -> Arc<[Frame]> {
    naming.request(key);
    assert_eq!(naming.wait(WAIT), 0, "{:?}", naming.stats());
    naming.frames(key)
}

fn add(naming: &mut Naming, path: &Path) -> FileId {
    naming.add(File::open(path).unwrap(), path.to_str().unwrap(), None)
}

/// The frames at each byte of a function.
fn frames_of(naming: &mut Naming, id: FileId, (start, size): (u64, u64)) -> Vec<Arc<[Frame]>> {
    let keys: Vec<_> = (start..start + size).map(|at| SymbolKey::File(id, FileOffset(at))).collect();
    keys.iter().for_each(|key| naming.request(*key));
    assert_eq!(naming.wait(WAIT), 0, "{:?}", naming.stats());
    keys.iter().map(|key| naming.frames(*key)).collect()
}

fn names(frames: &[Frame]) -> Vec<&str> {
    frames.iter().map(|frame| &*frame.name).collect()
}

/// The account of a run in which `key` stayed without a name.
fn only_reason(naming: &mut Naming, key: SymbolKey) -> Unresolved {
    let frames = resolved(naming, key);
    assert!(frames.len() == 1 && frames[0].name.starts_with('['), "{frames:?}");
    let stats = naming.stats();
    assert_eq!((stats.requests, stats.resolved, stats.waiting()), (1, 0, 0), "{stats:?}");
    *stats.unresolved.keys().next().unwrap()
}

fn check_inlines(path: &Path) {
    let function = offset_of(path, "outer");
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let id = add(&mut naming, path);
    let all = frames_of(&mut naming, id, function);
    let deepest = all.iter().max_by_key(|frames| frames.len()).unwrap();
    let ends: Vec<&str> = names(deepest).iter().map(|name| name.rsplit("::").next().unwrap()).collect();
    assert_eq!(ends[ends.len() - 3..], ["inner", "middle", "outer"], "{deepest:#?}");
    let (last, others) = deepest.split_last().unwrap();
    assert!(others.iter().all(|frame| frame.inlined) && !last.inlined);
    let lines: Vec<u32> = deepest.iter().map(|frame| frame.source.as_ref().unwrap().line).collect();
    assert_eq!(lines[lines.len() - 2..], [10, 15], "{lines:?}");
    assert!(last.source.as_ref().unwrap().file.ends_with("inlines.rs"));
    assert!(deepest.iter().all(|frame| frame.kind == FrameKind::Native && frame.module == last.module));
    assert_eq!(last.module.as_ref().unwrap().build_id.as_ref().unwrap().len(), 40);
    let stats = naming.stats();
    assert_eq!((stats.requests, stats.resolved, stats.waiting()), (function.1, function.1, 0), "{stats:?}");
    assert_eq!((stats.loads, stats.with_lines), (1, function.1));
    assert!(stats.debug_losses.is_empty() && stats.bytes_copied > 0, "{stats:?}");
}

#[test]
fn inlined_functions_come_innermost_first_with_their_lines() {
    check_inlines(&BUILT.1);
}

#[test]
fn compressed_debug_information_is_inflated() {
    let file = File::open(&BUILT.2).unwrap();
    let layout = image::layout_of(&file).unwrap();
    let compressed = layout.sections.iter().any(|section| section.flags & elf::SHF_COMPRESSED != 0);
    assert!(compressed, "the linker left all sections as they are");
    check_inlines(&BUILT.2);
}

#[test]
fn embedded_builtins_have_a_kind_of_their_own() {
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let id = add(&mut naming, &BUILT.1);
    let (start, _) = offset_of(&BUILT.1, "Builtins_TestEntry");
    let frames = resolved(&mut naming, SymbolKey::File(id, FileOffset(start)));
    let (last, inlined) = frames.split_last().unwrap();
    assert_eq!((&*last.name, last.kind), ("Builtin:TestEntry", FrameKind::Builtin));
    assert!(inlined.iter().all(|frame| frame.kind == FrameKind::Native), "{inlined:?}");
}

#[test]
fn a_file_truncated_while_it_is_in_use_keeps_its_names() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lib.so");
    fs::copy(&BUILT.1, &path).unwrap();
    let (outer, entry) = (offset_of(&path, "outer"), offset_of(&path, "entry"));
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let id = add(&mut naming, &path);
    frames_of(&mut naming, id, (outer.0, 1));
    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    fs::remove_file(&path).unwrap();
    for frames in frames_of(&mut naming, id, entry) {
        assert!(names(&frames).contains(&"entry"), "{frames:?}");
    }
}

#[test]
fn a_file_truncated_before_it_is_read_is_counted_and_named_by_its_offset() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lib.so");
    fs::copy(&BUILT.1, &path).unwrap();
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let id = add(&mut naming, &path);
    File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    let key = SymbolKey::File(id, FileOffset(0x1234));
    assert_eq!(only_reason(&mut naming, key), Unresolved::Replaced);
    assert_eq!(names(&naming.frames(key)), ["[lib.so+0x1234]"]);
}

#[test]
fn a_file_cut_or_changed_at_any_byte_crashes_nothing() {
    let bytes = fs::read(&BUILT.1).unwrap();
    let (start, _) = offset_of(&BUILT.1, "outer");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lib.so");
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let mut asked = 0;
    for round in 0..400 {
        let at = round * bytes.len() / 400;
        let mut hostile = bytes.clone();
        match round % 4 {
            0 => hostile.truncate(at),
            1 => hostile[at] ^= 0xff,
            2 => hostile[at] = hostile[at].wrapping_add(1),
            _ => hostile[at..].iter_mut().take(8).for_each(|byte| *byte = 0xff),
        }
        // A new inode each time, so that a file without build id is a new object.
        fs::write(path.with_extension(round.to_string()), &hostile).unwrap();
        let id = add(&mut naming, &path.with_extension(round.to_string()));
        naming.request(SymbolKey::File(id, FileOffset(start)));
        asked += 1;
    }
    assert_eq!(naming.wait(WAIT), 0);
    let stats = naming.stats();
    assert_eq!(stats.waiting(), 0, "{stats:?}");
    assert!(stats.requests <= asked, "{stats:?}");
}

#[test]
fn a_stripped_file_takes_names_and_lines_from_the_debug_file_below_its_root() {
    let root = Rooted::new();
    root.put_debug_file(|path| fs::copy(&BUILT.1, path).map(drop));
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let id = root.add(&mut naming);
    let all = frames_of(&mut naming, id, offset_of(&BUILT.1, "outer"));
    assert!(all.iter().any(|frames| frames.len() >= 3 && frames[0].source.is_some()), "{all:?}");
    assert_eq!(naming.stats().debug_files, 1);
}

#[test]
fn what_lies_below_a_root_is_read_apart() {
    let root = Rooted::new();
    root.put_debug_file(|path| fs::copy(&BUILT.1, path).map(drop));
    let load = |below: Option<Arc<TargetRoot>>| {
        let file = File::open(root.directory.path().join("stripped.so")).unwrap();
        let origin = OpenFile::new(file, "/stripped.so", below);
        let (before, mut stats) = (spent_for_thread(), SymbolStats::default());
        let loaded = Native::load(&origin, &GsymStore::default(), &SymbolBudget::RUN, &mut stats);
        (loaded.is_ok(), stats.debug_files, spent_for_thread() > before)
    };
    let below = Arc::new(root.below());
    assert_eq!(load(Some(below)), (true, 1, true));
    assert_eq!(load(None), (true, 0, false));
}

#[test]
fn whether_a_root_has_a_debug_file_is_known_without_opening_it() {
    let root = Rooted::new();
    let (below, file) = (root.below(), File::open(&BUILT.1).unwrap());
    let id = elf::build_id(&file);
    let has = || may_be_below(&below, &file, Path::new("/stripped.so"), id.as_deref());
    assert!(!has());
    assert!(may_be_below(&below, &file, Path::new("/stripped.so"), None), "a checksum anybody can make");
    root.put_debug_file(|path| fs::write(path, "forged"));
    assert!(has());
}

#[test]
fn a_debug_file_of_another_build_is_not_used() {
    let root = Rooted::new();
    root.put_debug_file(|path| fs::copy(&BUILT.2, path).map(drop));
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let id = root.add(&mut naming);
    let key = SymbolKey::File(id, FileOffset(offset_of(&BUILT.1, "outer").0));
    assert_eq!(only_reason(&mut naming, key), Unresolved::NoSymbols);
    assert_eq!(naming.stats().debug_losses.get(&DebugLoss::OtherBuild), Some(&1));
}

#[test]
fn a_debug_file_that_its_process_may_not_read_is_not_used_and_counted() {
    let root = Rooted::new();
    fs::set_permissions(root.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    root.put_debug_file(|path| {
        fs::copy(&BUILT.1, path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))
    });
    let stranger = Credentials::parse(b"Uid:\t4000001\t4000001\t4000001\t4000001\nGid:\t7\t7\t7\t7\n").unwrap();
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let id = root.add_for(&mut naming, TargetRoot::new(root.directory(), stranger.clone()));
    let key = SymbolKey::File(id, FileOffset(offset_of(&BUILT.1, "outer").0));
    assert_eq!(only_reason(&mut naming, key), Unresolved::NoSymbols);
    assert_eq!(naming.stats().debug_losses.get(&DebugLoss::Private), Some(&1));
    // It stays in question until it is to be opened.
    let (below, file) = (TargetRoot::new(root.directory(), stranger), File::open(&BUILT.1).unwrap());
    assert!(may_be_below(&below, &file, Path::new("/stripped.so"), elf::build_id(&file).as_deref()));
}

#[test]
fn code_without_a_name_is_called_by_where_its_function_begins() {
    let root = Rooted::new();
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let id = root.add(&mut naming);
    let (outer, entry) = (offset_of(&BUILT.1, "outer"), offset_of(&BUILT.1, "entry"));
    for (begin, bytes) in [outer, entry] {
        let name = format!("[stripped.so+{begin:#x}]");
        for frames in frames_of(&mut naming, id, (begin, bytes)) {
            assert_eq!(names(&frames), [name.as_str()]);
            assert!((begin..begin + bytes).contains(&frames[0].address), "the address stays what it is");
        }
    }
    assert!(naming.stats().unresolved[&Unresolved::NoSymbols] >= outer.1 + entry.1, "{:?}", naming.stats());
    // As another process has it.
    let frame = &naming.frames(SymbolKey::File(id, FileOffset(outer.0 + 1)))[0];
    let renamed = mapped_as(frame, &"/opt/other.so".into()).unwrap();
    assert_eq!((&*renamed.name, renamed.address), (&*format!("[other.so+{:#x}]", outer.0), outer.0 + 1));
}

#[test]
fn a_link_out_of_the_root_is_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    let kept = outside.path().join("kept.debug");
    fs::copy(&BUILT.1, &kept).unwrap();
    let root = Rooted::new();
    root.put_debug_file(|path| std::os::unix::fs::symlink(&kept, path));
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let id = root.add(&mut naming);
    let key = SymbolKey::File(id, FileOffset(offset_of(&BUILT.1, "outer").0));
    assert_eq!(only_reason(&mut naming, key), Unresolved::NoSymbols);
}

#[test]
fn a_pipe_in_the_place_of_a_debug_file_blocks_nothing() {
    let root = Rooted::new();
    root.put_debug_file(|path| {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        Ok(rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0)?)
    });
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let id = root.add(&mut naming);
    let key = SymbolKey::File(id, FileOffset(offset_of(&BUILT.1, "outer").0));
    assert_eq!(only_reason(&mut naming, key), Unresolved::NoSymbols);
}

/// A stripped copy of the library below a directory that stands for the target's root.
struct Rooted {
    directory: tempfile::TempDir,
}

impl Rooted {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = fs::read(&BUILT.1).unwrap();
        // Without section headers (offset, number, names) there are no symbols; the build id is in a segment.
        bytes[40..48].fill(0);
        bytes[60..64].fill(0);
        fs::write(directory.path().join("stripped.so"), bytes).unwrap();
        Self { directory }
    }

    fn put_debug_file(&self, make: impl FnOnce(&Path) -> std::io::Result<()>) {
        let id = elf::build_id(&File::open(&BUILT.1).unwrap()).unwrap();
        let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let place = self.directory.path().join("usr/lib/debug/.build-id").join(&hex[..2]);
        fs::create_dir_all(&place).unwrap();
        make(&place.join(format!("{}.debug", &hex[2..]))).unwrap();
    }

    fn add(&self, naming: &mut Naming) -> FileId {
        self.add_for(naming, self.below())
    }

    /// The same for the process whose root it is.
    fn add_for(&self, naming: &mut Naming, root: TargetRoot) -> FileId {
        let file = File::open(self.directory.path().join("stripped.so")).unwrap();
        naming.add(file, "/stripped.so", Some(Arc::new(root)))
    }

    fn below(&self) -> TargetRoot {
        TargetRoot::unrestricted(self.directory())
    }

    fn directory(&self) -> File {
        open_root(self.directory.path().to_str().unwrap()).unwrap()
    }
}

#[test]
fn text_that_is_no_elf_file_is_named_by_its_offset() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("text (deleted)");
    fs::write(&path, "not an executable").unwrap();
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let key = SymbolKey::File(add(&mut naming, &path), FileOffset(4));
    assert_eq!(only_reason(&mut naming, key), Unresolved::NotElf);
    assert_eq!(names(&naming.frames(key)), ["[text+0x4]"]);
}

#[test]
fn functions_of_the_vdso_are_named() {
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let all = frames_of(&mut naming, VDSO, (0, 8192));
    let named = all.iter().filter(|frames| frames[0].name.contains("clock_gettime")).count();
    assert!(named > 0, "{:?}", naming.stats());
    assert_eq!(&*all[0][0].module.as_ref().unwrap().path, "[vdso]");
}

#[test]
fn kernel_addresses_are_named_or_the_reason_is_counted() {
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let text = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let line = text.lines().find(|line| line.ends_with(" T ksys_read") || line.ends_with(" T vfs_read"));
    let address = line.and_then(|line| u64::from_str_radix(line.split(' ').next()?, 16).ok()).unwrap_or(0);
    let frames = resolved(&mut naming, SymbolKey::Kernel(Avma(address + 1)));
    assert_eq!((frames.len(), frames[0].kind), (1, FrameKind::Kernel));
    let stats = naming.stats();
    if address == 0 {
        assert_eq!(&*frames[0].name, "[kernel]");
        let reason = stats.unresolved.keys().next();
        assert!(matches!(reason, Some(Unresolved::KernelRestricted | Unresolved::KernelUnreadable)), "{stats:?}");
    } else {
        assert!(frames[0].name.ends_with("_read"), "{frames:?}");
        assert!(stats.kernel_symbols > 10_000, "{stats:?}");
    }
}

#[test]
fn what_is_not_answered_yet_is_named_by_its_place() {
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let id = add(&mut naming, &BUILT.1);
    let key = SymbolKey::File(id, FileOffset(offset_of(&BUILT.1, "outer").0));
    let frames = naming.frames(key);
    assert!(frames[0].name.starts_with("[libinlines.so+0x"), "{frames:?}");
    assert!(resolved(&mut naming, key).last().unwrap().name.ends_with("outer"));
}

#[test]
fn asking_twice_is_answered_once_and_frames_are_shared() {
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let id = add(&mut naming, &BUILT.1);
    let key = SymbolKey::File(id, FileOffset(offset_of(&BUILT.1, "outer").0));
    let first = resolved(&mut naming, key);
    naming.request(key);
    assert!(Arc::ptr_eq(&first, &resolved(&mut naming, key)));
    assert_eq!(naming.stats().requests, 1);
}

#[test]
fn more_requests_than_a_worker_takes_at_a_time_are_all_answered() {
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let id = add(&mut naming, &BUILT.1);
    let keys: Vec<_> = (0..5_000).map(|at| SymbolKey::File(id, FileOffset(1 << 40 | at))).collect();
    keys.iter().for_each(|key| naming.request(*key));
    assert_eq!(naming.wait(WAIT), 0);
    let stats = naming.stats();
    assert_eq!((stats.requests, stats.waiting()), (5_000, 0), "{stats:?}");
    assert_eq!(stats.unresolved.get(&Unresolved::OutsideSegments), Some(&5_000));
}

#[test]
fn a_file_that_holds_the_worker_is_given_up_and_the_others_are_named() {
    // Any look-up that takes longer than this is taken for a stall; loading this test's own binary is one.
    let mut naming = Naming::spawn_within(
        Limits { stall: Duration::from_millis(40), refused: WAIT, ..Limits::default() },
        GsymStore::default(),
    )
    .unwrap();
    let own = std::env::current_exe().unwrap();
    let slow = add(&mut naming, &own);
    let start = image::layout_of(&File::open(&own).unwrap()).unwrap().section(".text").unwrap().file_offset;
    let slow = SymbolKey::File(slow, FileOffset(start));
    naming.request(slow);
    let began = Instant::now();
    while !naming.stats().unresolved.contains_key(&Unresolved::TooSlow) && began.elapsed() < WAIT {
        naming.wait(Duration::ZERO);
        std::thread::yield_now();
    }
    assert_eq!(naming.stats().unresolved.get(&Unresolved::TooSlow), Some(&1), "{:?}", naming.stats());
    // On a busy machine the small file may take as long; then it is another file's turn.
    loop {
        let quick = add(&mut naming, &BUILT.1);
        let frames = resolved(&mut naming, SymbolKey::File(quick, FileOffset(offset_of(&BUILT.1, "outer").0)));
        if frames.last().unwrap().name.ends_with("outer") {
            break;
        }
        assert!(began.elapsed() < WAIT, "{frames:?} {:?}", naming.stats());
    }
}

#[test]
fn names_do_not_stay_off_after_files_that_held_the_worker_for_a_while() {
    let limits = Limits { stall: Duration::from_millis(15), refused: Duration::ZERO, ..Limits::default() };
    let mut naming = Naming::spawn_within(limits, GsymStore::default()).unwrap();
    // The symbols alone of this test's own binary hold a worker for longer than that, and not for seconds.
    naming.set_budget(SymbolBudget { debug: 4 << 20, ..SymbolBudget::RUN });
    let own = std::env::current_exe().unwrap();
    let start = image::layout_of(&File::open(&own).unwrap()).unwrap().section(".text").unwrap().file_offset;
    // A small file of the same owner, which is one on the same file system.
    let beside = tempfile::tempdir_in(own.parent().unwrap()).unwrap();
    let small = beside.path().join("libinlines.so");
    fs::copy(&BUILT.1, &small).unwrap();
    let began = Instant::now();
    // As long as so many of an owner's files hold workers, no other one of his is looked into: more of them are refused
    // then than have held one.
    loop {
        let slow = add(&mut naming, &own);
        naming.request(SymbolKey::File(slow, FileOffset(start)));
        while naming.wait(Duration::ZERO) > 0 && began.elapsed() < WAIT {
            std::thread::yield_now();
        }
        naming.close(slow);
        let stats = naming.stats();
        if stats.unresolved.get(&Unresolved::TooSlow).is_some_and(|refused| *refused > stats.stalls) {
            assert!(stats.stalls >= MAX_STUCK_OF_OWNER as u64, "{stats:?}");
            break;
        }
        assert!(began.elapsed() < WAIT, "{stats:?}");
    }
    // Until a worker has come back.
    loop {
        let quick = add(&mut naming, &small);
        let frames = resolved(&mut naming, SymbolKey::File(quick, FileOffset(offset_of(&small, "outer").0)));
        naming.close(quick);
        if frames.last().unwrap().name.ends_with("outer") {
            return;
        }
        assert!(began.elapsed() < WAIT, "{frames:?} {:?}", naming.stats());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_account_is_json_with_reasons_as_words() {
    let mut stats = SymbolStats { requests: 3, resolved: 1, ..SymbolStats::default() };
    stats.count(Unresolved::KernelRestricted);
    let json = serde_json::to_value(&stats).unwrap();
    assert_eq!(json["unresolved"]["kernel_restricted"], 1);
    assert_eq!(stats.waiting(), 1);
}

#[test]
fn a_quiet_worker_drops_its_files_and_loads_them_again() {
    let mut naming =
        Naming::spawn_within(Limits { idle: Duration::ZERO, ..Limits::default() }, GsymStore::default()).unwrap();
    let id = add(&mut naming, &BUILT.1);
    let (start, size) = offset_of(&BUILT.1, "outer");
    let began = Instant::now();
    // Dropping follows right after the answer; an address asked for before it is answered from what is loaded.
    for at in (start..start + size).cycle() {
        let frames = resolved(&mut naming, SymbolKey::File(id, FileOffset(at)));
        assert!(frames.last().unwrap().name.ends_with("outer"), "{frames:?}");
        if naming.stats().loads > 1 {
            return;
        }
        assert!(began.elapsed() < WAIT && at < start + size - 1, "{:?}", naming.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_stub_that_calls_another_file_is_named_after_what_it_calls() {
    let directory = tempfile::tempdir().unwrap();
    let (source, path) = (directory.path().join("stub.c"), directory.path().join("libstub.so"));
    fs::write(&source, "int puts(const char *); int first(void); int calls_two(void) { return first() + puts(\"\"); }")
        .unwrap();
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-O1", "-fplt", "-Wl,-z,lazy", "-o"]).arg(&path).arg(&source);
    assert!(command.status().expect("rustc links this test with cc, so it can be run").success());
    let (start, size) = offset_of(&path, "calls_two");
    let bytes = fs::read(&path).unwrap();
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    let id = add(&mut naming, &path);
    // Calls are e8 and the distance from the next instruction; code and stubs are in one segment.
    let calls = (start..start + size - 4).filter(|at| bytes[*at as usize] == 0xe8).map(|at| {
        let distance = i32::from_le_bytes(bytes[at as usize + 1..at as usize + 5].try_into().unwrap());
        at.wrapping_add(5).wrapping_add_signed(i64::from(distance))
    });
    let called: Vec<String> =
        calls.map(|at| resolved(&mut naming, SymbolKey::File(id, FileOffset(at)))[0].name.to_string()).collect();
    assert_eq!(called, ["first@plt", "puts@plt"]);
}

/// Two levels of inlining, a loop, a function in a part of its own, and a static one.
const C_INLINES: &str = r#"
#include <stdint.h>
static volatile uint64_t sink;
static inline __attribute__((always_inline)) uint64_t square(uint64_t x) {
    sink = x;
    return x * x;
}
static inline __attribute__((always_inline)) uint64_t cube(uint64_t x) {
    uint64_t y = square(x) + 3;
    return y * x;
}
static __attribute__((noinline)) uint64_t work(uint64_t n) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++) {
        sum += cube(i);
        if (sum & 1)
            sum ^= square(sum);
    }
    return sum;
}
__attribute__((noinline, cold)) int seldom(int code) {
    sink = square((uint64_t)code);
    return code + 1;
}
int main(int argc, char **argv) {
    (void)argv;
    if (argc > 40)
        return seldom(argc);
    return (int)work((uint64_t)argc * 1000);
}
"#;

/// Compiles the C program and strips a copy; both have the same build id.
fn c_program(directory: &Path) -> (PathBuf, PathBuf) {
    let (source, whole, stripped) =
        (directory.join("inlines.c"), directory.join("inlines"), directory.join("stripped"));
    fs::write(&source, C_INLINES).unwrap();
    let run = |command: &mut Command| assert!(command.status().unwrap().success(), "{command:?}");
    run(Command::new("cc").args(["-O2", "-g", "-Wl,--build-id=sha1", "-o"]).args([&whole, &source]));
    run(Command::new("strip").arg("--strip-all").arg("-o").args([&stripped, &whole]));
    (whole, stripped)
}

/// Name, whether it is inlined, and place.
type Shown = (String, bool, Option<SourceLine>);

/// The frames at every byte of `.text`, without what belongs to the file and not to the symbols.
fn all_frames(path: &Path, gsym: GsymStore) -> (Vec<Vec<Shown>>, SymbolStats) {
    let layout = image::layout_of(&File::open(path).unwrap()).unwrap();
    let text = layout.section(".text").unwrap();
    let mut naming = Naming::spawn(gsym).unwrap();
    let id = add(&mut naming, path);
    let frames = frames_of(&mut naming, id, (text.file_offset, text.size));
    let shown = |frame: &Frame| {
        // Where there is no name, the file's own is shown.
        let name = if frame.name.starts_with('[') { "none" } else { &frame.name };
        (name.to_owned(), frame.inlined, frame.source.clone())
    };
    (frames.iter().map(|frames| frames.iter().map(shown).collect()).collect(), naming.stats())
}

/// `convert` makes the GSYM file of the whole program.
fn assert_equal_at_every_address(whole: &Path, stripped: &Path, gsym: &Path) {
    let (expected, _) = all_frames(whole, GsymStore::default());
    let (without, _) = all_frames(stripped, GsymStore::default());
    let (found, stats) = all_frames(stripped, GsymStore::find(&[gsym.to_owned()]).unwrap());
    assert_eq!(stats.gsym_files, 1);
    assert_eq!(stats.debug_losses, std::collections::BTreeMap::new());
    let differ: Vec<_> =
        expected.iter().zip(&found).enumerate().filter(|(_, (expected, found))| expected != found).collect();
    assert!(differ.is_empty(), "{} of {} differ: {:#?}", differ.len(), expected.len(), &differ[..differ.len().min(5)]);
    let named = |all: &[Vec<Shown>]| all.iter().filter(|frames| frames[0].2.is_some()).count();
    assert_eq!(named(&without), 0, "the stripped program says nothing by itself");
    assert!(named(&expected) > 0);
    let deepest = expected.iter().map(Vec::len).max();
    println!("{} addresses equal, {} with lines, up to {deepest:?} frames", expected.len(), named(&expected));
    assert!(deepest >= Some(3), "inlined functions are among them");
}

#[test]
#[cfg_attr(not(feature = "gsym"), ignore = "needs the feature `gsym`")]
fn a_stripped_program_with_a_gsym_file_has_the_frames_of_the_whole_one_at_every_address() {
    let directory = tempfile::tempdir().unwrap();
    let (whole, stripped) = c_program(directory.path());
    let gsym = directory.path().join("inlines.gsym");
    let report = gsym_rs::convert::ElfConverter::default().convert_path(&whole).unwrap();
    fs::write(&gsym, report.builder.to_bytes().unwrap()).unwrap();
    assert_equal_at_every_address(&whole, &stripped, &gsym);
}

/// As above, with LLVM's converter: `JITPROF_GSYMUTIL=/usr/lib/llvm-14/bin/llvm-gsymutil`, several with `:` between.
#[test]
#[ignore = "needs llvm-gsymutil; run by `cargo xtask test`, which installs it"]
fn a_stripped_program_with_llvms_gsym_file_has_the_frames_of_the_whole_one_at_every_address() {
    let tools = std::env::var("JITPROF_GSYMUTIL").expect("JITPROF_GSYMUTIL names llvm-gsymutil");
    for tool in tools.split(':') {
        let directory = tempfile::tempdir().unwrap();
        let (whole, stripped) = c_program(directory.path());
        let gsym = directory.path().join("inlines.gsym");
        let output = Command::new(tool)
            .arg(format!("--convert={}", whole.display()))
            .arg(format!("--out-file={}", gsym.display()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(gsym.is_file(), "{tool} exits with 0 whatever happens; it said {said}");
        assert_equal_at_every_address(&whole, &stripped, &gsym);
    }
}

#[test]
#[cfg_attr(not(feature = "gsym"), ignore = "needs the feature `gsym`")]
fn a_program_with_debug_information_of_its_own_does_not_ask_its_gsym_file() {
    let directory = tempfile::tempdir().unwrap();
    let (whole, _) = c_program(directory.path());
    let gsym = directory.path().join("inlines.gsym");
    let report = gsym_rs::convert::ElfConverter::default().convert_path(&whole).unwrap();
    fs::write(&gsym, report.builder.to_bytes().unwrap()).unwrap();
    let (_, stats) = all_frames(&whole, GsymStore::find(&[gsym]).unwrap());
    assert_eq!(stats.gsym_files, 0);
}

#[test]
fn a_file_waits_when_the_time_for_names_is_used_up() {
    let mut naming = Naming::spawn(GsymStore::default()).unwrap();
    naming.set_budget(SymbolBudget { cpu_percent: Some(-1e12), ..SymbolBudget::CONTINUOUS });
    // Its credit is gone with the first look.
    let id = add(&mut naming, &BUILT.1);
    let key = SymbolKey::File(id, FileOffset(offset_of(&BUILT.1, "outer").0));
    naming.request(key);
    assert_eq!(naming.wait(WAIT), 0);
    assert!(naming.frames(key)[0].name.starts_with("[libinlines.so+0x"), "named by its place meanwhile");
    naming.set_budget(SymbolBudget::RUN);
    naming.request(key);
    assert_eq!(naming.wait(WAIT), 0);
    assert!(naming.frames(key).last().unwrap().name.ends_with("outer"));
}
