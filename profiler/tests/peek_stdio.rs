//! Peeking with our own process as the target: the FILE is the C library's.
//!
//! A test program of its own: the search covers the process' memory, which beside other tests is large and changes.

use std::cell::RefCell;
use std::ffi::CString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use jitprof::peek::{DumpEnd, Peek, look};
use jitprof::process::open::FileId;
use jitprof::process::{monotonic_now, procfs};
use jitprof_common::units::Pid;
use jitprof_jitdump::code::{CodeEvent, CodeOrigin};
use jitprof_jitdump::writer::{DumpWriter, LoadFields};
use jitprof_jitdump::{DumpStream, DumpTail, ReaderOptions};

static CODE: [u8; 24] = *b"the code of our function";

struct CFile(*mut libc::FILE);

impl CFile {
    fn create(path: &std::path::Path) -> Self {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: both strings are NUL-terminated.
        let file = unsafe { libc::fopen(path.as_ptr(), c"w+".as_ptr()) };
        assert!(!file.is_null());
        // SAFETY: the stream is open and nothing has been done with it; CPython and V8 ask for 2 MiB just so.
        let set = unsafe { libc::setvbuf(file, std::ptr::null_mut(), libc::_IOFBF, 2 << 20) };
        assert_eq!(set, 0);
        Self(file)
    }

    fn write(&self, bytes: &[u8]) {
        // SAFETY: the stream is open, and the pointer and length are the slice's.
        let done = unsafe { libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), self.0) };
        assert_eq!(done, bytes.len());
    }
}

impl Drop for CFile {
    fn drop(&mut self) {
        // SAFETY: the stream is open and not used afterwards.
        unsafe { libc::fclose(self.0) };
    }
}

/// A child writes what it has inherited in the buffer, as one that ends does.
fn flush_in_a_child(file: &CFile) {
    // SAFETY: the child calls nothing but what flushes this stream, which no other thread uses, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            libc::fflush(file.0);
            libc::_exit(0)
        }
    }
    // SAFETY: no status is asked for.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
}

fn record(name: &str, code_addr: u64) -> Vec<u8> {
    let mut dump = DumpWriter::new(std::process::id());
    let header = dump.len();
    let load = LoadFields { code_addr, name: name.as_bytes(), code: &CODE, ..LoadFields::default() };
    dump.load(monotonic_now().0, &load);
    dump.into_bytes()[header..].to_vec()
}

fn names(events: &[CodeEvent]) -> Vec<String> {
    let name = |event: &CodeEvent| match event {
        CodeEvent::Load(load) => {
            assert_eq!(load.origin, CodeOrigin::Peeked);
            load.name.clone()
        }
        other => panic!("{other:?}"),
    };
    events.iter().map(name).collect()
}

/// Looks at this process' own buffer.
fn poll(peek: &mut Peek, file: &File, stream: &DumpStream) -> Vec<CodeEvent> {
    let meta = file.metadata().unwrap();
    let who = (Pid(std::process::id()), FileId(1), (meta.dev(), meta.ino()));
    let wanted = DumpEnd::of(stream).and_then(|end| peek.look(who, end, monotonic_now()));
    wanted.map_or_else(Vec::new, |wanted| peek.take(look(&wanted, file), stream, monotonic_now()))
}

#[test]
fn unwritten_records_of_a_real_stdio_buffer_are_reported_once_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jit-1.dump");
    let out = CFile::create(&path);
    let pid = Pid(std::process::id());
    let start = procfs::stat(pid).unwrap().start();
    let mut tail = DumpTail::new(File::open(&path).unwrap(), ReaderOptions::default());
    let mut peek = Peek::new(pid.0, start);
    let file = File::open(&path).unwrap();
    let from_file = RefCell::new(Vec::new());
    let mut look = |wanted: bool| {
        // The search may take several slices of this process' memory.
        for _ in 0..40 {
            let name = |event: CodeEvent| match event {
                CodeEvent::Load(load) => load.name,
                other => panic!("{other:?}"),
            };
            tail.poll(monotonic_now, &mut |event| from_file.borrow_mut().push(name(event))).unwrap();
            let events = poll(&mut peek, &file, tail.stream());
            assert!(events.is_empty() || peek.is_current(), "all of it was seen");
            if !wanted || !events.is_empty() {
                return (names(&events), peek.stats());
            }
        }
        panic!("nothing found: {:?}", peek.stats());
    };
    let code = CODE.as_ptr().addr() as u64;

    out.write(&DumpWriter::new(pid.0).into_bytes());
    out.write(&record("first", code));
    assert_eq!(look(true).0, ["first"], "of a file that is still empty");
    assert!(look(false).0.is_empty(), "nothing is reported twice");
    out.write(&record("second", code));
    out.write(&record("gone", code + 1));
    assert_eq!(look(true).0, ["second", "gone"], "code that has been replaced by now was there at its time");

    let mut peeked = 0;
    for index in 0..200 {
        let name = format!("function {index}");
        let bytes = record(&name, code);
        let (head, rest) = bytes.split_at(56);
        out.write(head);
        let (seen, _) = look(false);
        assert!(seen.is_empty(), "half a record is none: {seen:?}");
        out.write(rest);
        let (seen, _) = look(false);
        assert!(seen.is_empty() || seen == [name.clone()], "{seen:?}");
        // A record whose name is in the file and whose code is not is known from the file.
        assert!(!seen.is_empty() || from_file.borrow().contains(&name), "{name} is not known");
        peeked += seen.len();
    }
    let stats = look(false).1;
    assert_eq!((stats.searches, stats.rejected_old_bytes, stats.rejected_shape), (1, 0, 0), "{stats:?}");
    assert!(peeked >= 190, "{peeked} of 200");
    assert!(from_file.borrow().len() > 150, "the rest has reached the file meanwhile");

    // From then on the file's length is no multiple of the buffer's. What was in the buffer comes twice, and what this
    // process adds to it is known once it has been written.
    flush_in_a_child(&out);
    for index in 0..100 {
        out.write(&record(&format!("after the fork {index}"), code));
        look(false);
    }
    assert_ne!(file.metadata().unwrap().len() % 512, 0);
    for index in 100..150 {
        let name = format!("after the fork {index}");
        out.write(&record(&name, code));
        let (seen, stats) = look(false);
        assert!(seen == [name.clone()] || from_file.borrow().contains(&name), "{name}: {seen:?} {stats:?}");
    }
}
