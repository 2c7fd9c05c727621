//! Files are made by gsym-rs; what is damaged or odd is made of these.

use std::fs::File;
use std::os::unix::fs::FileExt;

use gsym_rs::{
    AddressRange, CallSite, CallSiteFlags, Endian, FileEntry, FunctionSetPolicy, GsymBuilder, GsymVersion, InlineNode,
    LineEntry,
};

use super::*;

const FLAVOURS: [(GsymVersion, Endian); 4] = [
    (GsymVersion::V1, Endian::Little),
    (GsymVersion::V1, Endian::Big),
    (GsymVersion::V2, Endian::Little),
    (GsymVersion::V2, Endian::Big),
];

/// `main` with a line table, two levels of inlining, a merged function and a call; then `bare` behind a gap, then
/// `endless`, which has no size.
fn sample((version, order): (GsymVersion, Endian)) -> Vec<u8> {
    let mut builder = GsymBuilder::new().version(version).endian(order).build_id([7; 20]);
    builder = builder.repair_zero_sized_functions(false).function_set(FunctionSetPolicy::Preserve);
    let main = builder.add_file(FileEntry::new("/src", "main.c")).unwrap();
    let other = builder.add_file(FileEntry::new("", "other.h")).unwrap();
    let range = |start, end| AddressRange::new(start, end);
    let inner = gsym_rs::InlineNode {
        ranges: vec![range(0x1008, 0x100c)],
        name: b"inner".to_vec(),
        call_file: other,
        call_line: 70,
        children: Vec::new(),
    };
    let outer = gsym_rs::InlineNode {
        ranges: vec![range(0x1004, 0x1010), range(0x1018, 0x101c)],
        name: b"outer".to_vec(),
        call_file: main,
        call_line: 12,
        children: vec![inner],
    };
    let mut function = gsym_rs::Function::new(range(0x1000, 0x1020), "main");
    function.lines = vec![
        LineEntry::new(0x1000, main, 10),
        LineEntry::new(0x1004, other, 71),
        LineEntry::new(0x1008, other, 5000),
        LineEntry::new(0x1010, main, 13),
    ];
    function.inline = Some(InlineNode {
        ranges: vec![range(0x1000, 0x1020)],
        name: b"main".to_vec(),
        children: vec![outer],
        ..InlineNode::default()
    });
    function.call_sites = vec![CallSite {
        return_offset: 0x15,
        flags: CallSiteFlags::INTERNAL,
        match_regex: vec![b"^callee$".to_vec(), b"other".to_vec()],
    }];
    let mut alias = gsym_rs::Function::new(range(0x1000, 0x1020), "alias");
    alias.lines = vec![LineEntry::new(0x1000, other, 1)];
    function.merged = vec![alias];
    builder.add_function(function).unwrap();
    builder.add_function(gsym_rs::Function::new(range(0x1100, 0x1110), "bare")).unwrap();
    builder.add_function(gsym_rs::Function::new(range(0x12_0000, 0x12_0000), "endless")).unwrap();
    builder.to_bytes().unwrap()
}

fn shown(lookup: Option<Lookup>) -> Vec<String> {
    let places = lookup.into_iter().flat_map(|lookup| lookup.places);
    let text = |place: Place| {
        let mark = if place.inlined { "*" } else { "" };
        format!("{}{mark} {}:{}", place.name, place.file.unwrap_or_default(), place.line)
    };
    places.map(text).collect()
}

#[test]
fn all_that_a_file_says_is_read_in_both_versions_and_byte_orders() {
    for flavour in FLAVOURS {
        let gsym = Gsym::parse(sample(flavour)).unwrap();
        let header = gsym.header();
        assert_eq!((header.num_addresses, header.num_files, header.base_address), (3, 3, 0x1000));
        assert_eq!(header.uuid, [7; 20]);
        let function = gsym.function(0).unwrap();
        assert_eq!((function.start, function.size), (0x1000, 0x20));
        assert_eq!(gsym.string(function.name).unwrap(), "main");
        let rows: Vec<_> = function.lines.iter().map(|row| (row.address, row.file, row.line)).collect();
        assert_eq!(rows, [(0x1000, 1, 10), (0x1004, 2, 71), (0x1008, 2, 5000), (0x1010, 1, 13)]);
        let root = function.inline.as_ref().unwrap();
        assert_eq!(root.children[0].ranges, [0x1004..0x1010, 0x1018..0x101c]);
        assert_eq!((root.children[0].children[0].call_file, root.children[0].children[0].call_line), (2, 70));
        assert_eq!(gsym.string(function.merged[0].name).unwrap(), "alias");
        assert_eq!(function.merged[0].lines.len(), 1);
        let site = &function.call_sites[0];
        assert_eq!((site.return_offset, site.flags), (0x15, 1));
        let patterns: Vec<_> = site.patterns.iter().map(|pattern| gsym.string(*pattern).unwrap()).collect();
        assert_eq!(patterns, ["^callee$", "other"]);
        assert_eq!(gsym.file(0).unwrap(), None);
        assert_eq!(gsym.file(1).unwrap().as_deref(), Some("/src/main.c"));
    }
}

#[test]
fn an_address_has_its_inlined_functions_each_with_the_line_in_it() {
    for flavour in FLAVOURS {
        let gsym = Gsym::parse(sample(flavour)).unwrap();
        let at = |address| shown(gsym.lookup(address).unwrap());
        assert_eq!(at(0x1000), ["main /src/main.c:10"]);
        assert_eq!(at(0x1007), ["outer* other.h:71", "main /src/main.c:12"]);
        assert_eq!(at(0x1008), ["inner* other.h:5000", "outer* other.h:70", "main /src/main.c:12"]);
        assert_eq!(at(0x101b), ["outer* /src/main.c:13", "main /src/main.c:12"]);
        assert_eq!(at(0x101f), ["main /src/main.c:13"]);
        assert_eq!(at(0x1105), ["bare :0"]);
    }
}

#[test]
fn nothing_lies_before_between_or_behind_functions_and_one_without_size_reaches_to_the_next() {
    let gsym = Gsym::parse(sample(FLAVOURS[0])).unwrap();
    for address in [0, 0xfff, 0x1020, 0x10ff, 0x1110, 0x11_ffff] {
        assert_eq!(gsym.lookup(address).unwrap(), None, "{address:#x}");
    }
    assert_eq!(shown(gsym.lookup(0x12_0000).unwrap()), ["endless :0"]);
    assert_eq!(shown(gsym.lookup(u64::MAX).unwrap()), ["endless :0"]);
}

#[test]
fn of_several_functions_at_an_address_the_first_that_reaches_is_taken() {
    let mut builder = GsymBuilder::new().function_set(FunctionSetPolicy::Preserve);
    for (end, name) in [(0x1004, "short"), (0x1010, "long"), (0x1020, "longer")] {
        builder.add_function(gsym_rs::Function::new(AddressRange::new(0x1000, end), name)).unwrap();
    }
    let gsym = Gsym::parse(builder.to_bytes().unwrap()).unwrap();
    assert_eq!(shown(gsym.lookup(0x1003).unwrap()), ["short :0"]);
    assert_eq!(shown(gsym.lookup(0x100f).unwrap()), ["long :0"]);
    assert_eq!(shown(gsym.lookup(0x1011).unwrap()), ["longer :0"]);
}

/// Before, in and behind each of the functions, and where lines and inlined ones change.
const PLACES: [u64; 10] = [0xfff, 0x1000, 0x1004, 0x1009, 0x1012, 0x101f, 0x1020, 0x1105, 0x1110, 0x12_0000];

/// Reads everything, and says how much of it could be read.
fn read_all(bytes: Vec<u8>) -> usize {
    let Ok(gsym) = Gsym::parse(bytes) else {
        return 0;
    };
    let functions = gsym.header().num_addresses.min(64);
    let read = (0..functions).filter(|index| gsym.function(*index).is_ok()).count();
    let places = PLACES.into_iter().filter(|at| gsym.lookup(*at).is_ok_and(|found| found.is_some())).count();
    for file in 0..gsym.header().num_files.min(64) {
        // Only that it returns.
        assert!(gsym.file(file).is_ok() || gsym.file(file).is_err());
    }
    read + places
}

#[test]
fn a_file_cut_anywhere_is_an_error_where_it_is_cut() {
    for flavour in FLAVOURS {
        let whole = sample(flavour);
        let all = read_all(whole.clone());
        for cut in 0..whole.len() {
            assert!(read_all(whole[..cut].to_vec()) <= all, "{flavour:?} cut at {cut}");
            let first = Gsym::parse(whole[..cut].to_vec()).and_then(|gsym| gsym.function(2).map(drop));
            let error = first.expect_err("its end is missing");
            assert!(error.offset <= whole.len() as u64, "{error}");
            assert!(!error.field.is_empty());
        }
    }
}

#[test]
fn a_flipped_byte_costs_nothing_but_what_it_belongs_to() {
    for flavour in FLAVOURS {
        let whole = sample(flavour);
        for at in 0..whole.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] ^= flip;
                read_all(damaged);
            }
        }
        // A FunctionInfo without a name costs that function.
        let gsym = Gsym::parse(whole.clone()).unwrap();
        let name = gsym.size_and_name(1).unwrap().1;
        let width = if flavour.0 == GsymVersion::V1 { 4 } else { 8 };
        let mut pattern = 0x10_u32.to_le_bytes().to_vec();
        pattern.extend(&name.to_le_bytes()[..width]);
        if flavour.1 == Endian::Big {
            pattern = 0x10_u32.to_be_bytes().to_vec();
            pattern.extend(&name.to_be_bytes()[8 - width..]);
        }
        let info = memchr::memmem::find(&whole, &pattern).unwrap();
        let mut damaged = whole.clone();
        damaged[info + 4..info + 4 + width].fill(0);
        let gsym = Gsym::parse(damaged).unwrap();
        let error = gsym.function(1).unwrap_err();
        assert_eq!((error.offset, error.field), (info as u64 + 4, "FunctionInfo, name"));
        assert_eq!(gsym.function(0).unwrap().size, 0x20);
    }
}

#[test]
fn errors_say_where_and_what() {
    let whole = sample(FLAVOURS[0]);
    let parse = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        Gsym::parse(bytes).map(drop).unwrap_err().to_string()
    };
    assert_eq!(parse(&|bytes| bytes[0] = 0), "at offset 0x0, magic: 0x47535900 is none of GSYM's");
    assert_eq!(parse(&|bytes| bytes[4] = 9), "at offset 0x4, version: 0x9 is neither 1 nor 2");
    assert_eq!(parse(&|bytes| bytes[6] = 3), "at offset 0x6, addr_off_size: 0x3 is none of 1, 2, 4, 8");
    assert_eq!(parse(&|bytes| bytes[7] = 21), "at offset 0x7, uuid_size: 0x15 is more than 20");
    assert!(parse(&|bytes| bytes[16..20].fill(0xff)).starts_with("at offset 0x10, num_addresses: "));
    assert!(parse(&|bytes| bytes[24..28].fill(0xff)).starts_with("at offset 0x18, strtab_size: "));
    assert_eq!(parse(&|bytes| bytes.truncate(20)), "at offset 0x0, header: 48 bytes are needed and 20 are left");
}

#[test]
fn counts_and_depths_of_a_crafted_file_are_not_believed() {
    // One function, whose FunctionInfo is the file's end.
    let file = |info: &[u8]| {
        let mut builder = GsymBuilder::new();
        builder.add_file(FileEntry::new("/src", "f.c")).unwrap();
        builder.add_function(gsym_rs::Function::new(AddressRange::new(0x1000, 0x1010), "f")).unwrap();
        let mut bytes = builder.to_bytes().unwrap();
        bytes.truncate(bytes.len() - 8);
        bytes.extend(info);
        bytes.extend([0; 8]);
        Gsym::parse(bytes).unwrap()
    };
    let item = |kind: u32, data: &[u8]| {
        [&kind.to_le_bytes()[..], &u32::try_from(data.len()).unwrap().to_le_bytes(), data].concat()
    };
    let inlines = |depth: usize| [1, 0, 1, 1, 1, 0, 0, 0, 0, 0].repeat(depth);
    assert!(file(&item(2, &[inlines(257), vec![0; 257]].concat())).function(0).is_ok());
    assert_eq!(file(&item(2, &inlines(40_000))).function(0).unwrap_err().field, "inline info");
    assert_eq!(file(&item(2, &inlines(40_000))).lookup(0x1000).unwrap_err().field, "inline info");
    assert_eq!(
        file(&item(2, &[0xff, 0xff, 0xff, 0xff, 0x0f])).function(0).unwrap_err().field,
        "inline info, range count"
    );
    assert_eq!(file(&item(3, &[0xff; 4])).function(0).unwrap_err().field, "merged functions, length");
    assert_eq!(file(&item(4, &[0xff; 4])).function(0).unwrap_err().field, "call site, return offset");
    assert_eq!(file(&[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]).function(0).unwrap_err().field, "InfoData");
    // Rows that a byte each asks for.
    let rows = [vec![0, 0, 1], vec![4; MAX_ITEMS as usize + 8], vec![0]].concat();
    assert_eq!(file(&item(1, &rows)).function(0).unwrap_err().field, "FunctionInfo");
    assert_eq!(shown(file(&item(1, &rows)).lookup(0x1000).unwrap()), ["f /src/f.c:1"]);
    assert_eq!(file(&item(1, &vec![4; 5 << 20])).function(0).unwrap_err().field, "FunctionInfo");
    assert_eq!(file(&item(9, b"later")).function(0).unwrap().unknown, [(9, 5)]);
    assert_eq!(shown(file(&item(9, b"later")).lookup(0x1000).unwrap()), ["f :0"]);
}

#[test]
fn a_file_of_two_gigabytes_is_read_where_it_is_needed() {
    let bytes = sample(FLAVOURS[0]);
    let file = tempfile::tempfile().unwrap();
    // The same functions, described at the end of two gigabytes of nothing.
    let far = 2_000_000_000_u64;
    let header = Gsym::parse(bytes.clone()).unwrap().header().clone();
    let infos = usize::try_from(header.tables.strings.end).unwrap();
    let mut front = bytes[..infos].to_vec();
    let table = usize::try_from(header.tables.infos).unwrap();
    for entry in front[table..table + 12].chunks_exact_mut(4) {
        let offset = u32::from_le_bytes(entry.try_into().unwrap());
        let moved = u64::from(offset) - infos as u64 + far;
        entry.copy_from_slice(&u32::try_from(moved).unwrap().to_le_bytes());
    }
    file.write_all_at(&front, 0).unwrap();
    file.write_all_at(&bytes[infos..], far).unwrap();
    let gsym = Gsym::open(file).unwrap();
    assert_eq!(gsym.resident_bytes(), 0);
    let same = Gsym::parse(bytes).unwrap();
    for address in 0xff0..0x1120 {
        assert_eq!(gsym.lookup(address).unwrap(), same.lookup(address).unwrap(), "{address:#x}");
    }
    assert_eq!(gsym.function(0).unwrap(), same.function(0).unwrap());
}

#[test]
fn files_are_found_by_uuid_in_directories_and_below() {
    let directory = tempfile::tempdir().unwrap();
    let below = directory.path().join("a/b");
    std::fs::create_dir_all(&below).unwrap();
    std::fs::write(below.join("one.gsym"), sample(FLAVOURS[0])).unwrap();
    std::fs::write(below.join("other.txt"), sample(FLAVOURS[1])).unwrap();
    std::fs::write(directory.path().join("broken.gsym"), b"MYSG").unwrap();
    std::os::unix::fs::symlink(directory.path(), below.join("loop")).unwrap();
    let store = GsymStore::find(&[directory.path().to_owned()]).unwrap();
    assert_eq!((store.len(), store.skipped().len()), (1, 1));
    assert!(store.skipped()[0].to_string().contains("broken.gsym: at offset 0x0, magic"), "{}", store.skipped()[0]);
    assert!(store.open(&[7; 20]).unwrap().is_some());
    assert!(store.open(&[8; 20]).unwrap().is_none());
    // A file that is named has to be one.
    let named = GsymStore::find(&[directory.path().join("broken.gsym")]);
    assert!(matches!(named, Err(StoreError::Damaged { .. })));
    assert!(matches!(GsymStore::find(&[directory.path().join("none")]), Err(StoreError::Io { .. })));
    assert!(GsymStore::find(&[below.join("other.txt")]).unwrap().open(&[7; 20]).unwrap().is_some());
}

#[test]
fn a_replaced_file_is_not_taken_for_what_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("one.gsym");
    std::fs::write(&path, sample(FLAVOURS[0])).unwrap();
    let store = GsymStore::find(std::slice::from_ref(&path)).unwrap();
    let mut other = sample(FLAVOURS[0]);
    other[28] = 9;
    std::fs::write(&path, other).unwrap();
    assert!(store.open(&[7; 20]).unwrap().is_none());
    File::create(&path).unwrap();
    assert!(store.open(&[7; 20]).is_err());
}
