//! Real runtimes: which names are known while they run. Needs root (or ptrace permission) and the runtime.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::peek::{DumpEnd, Peek, PeekStats, Sight, look};
use crate::process::discover::{is_jitdump, is_marker};
use crate::process::monotonic_now;
use crate::process::open::{FileId, MapPlace, open_mapping};
use crate::process::procfs;
use jitprof_common::units::Pid;
use jitprof_jitdump::code::CodeEvent;
use jitprof_jitdump::{DumpStream, DumpTail, ReaderOptions};

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only once it has ended and been waited for.
        if self.0.kill().is_ok() {
            self.0.wait().expect("the target can be waited for");
        }
    }
}

const PYTHON: &str = "
import time
def leaf_hot(n):
    x = 1
    for i in range(n): x ^= (x << 5) & 0xffff
    return x
def outer(n): return leaf_hot(n)
end = time.time() + 5
while time.time() < end: outer(2000)
";

/// Both write to the same file afterwards, each from its own copy of the buffer.
const PYTHON_FORK: &str = "
import time, os
def leaf_hot(n):
    x = 1
    for i in range(n): x ^= (x << 5) & 0xffff
    return x
def outer(n): return leaf_hot(n)
outer(5)
time.sleep(1)
child = os.fork()
space = {}
end = time.time() + 4
i = 0
while time.time() < end:
    outer(2000)
    if i < 300:
        exec(f'def made_{i}_in_{bool(child)}(n): return n', space); space[f'made_{i}_in_{bool(child)}'](1)
        time.sleep(0.01)
    i += 1
if child: os.waitpid(child, 0)
";

const NODE: &str = "
function leafHot(n){let x=88172645;for(let i=0;i<n;i++){x^=x<<13;x^=x>>>17;x^=x<<5;}return x|0;}
function outer(n){return leafHot(n)|0;}
const end=Date.now()+5000; let s=0;
while(Date.now()<end) s^=outer(20000);
";

/// Makes and drops functions, so that the collector frees code and its addresses are used again.
const NODE_REUSE: &str = "
function make(i){return new Function('n',`let x=${i};for(let i=0;i<n;i++){x^=x<<13;x^=x>>>17;x+=${i};}return x|0;`);}
const end=Date.now()+5000; let i=0, s=0;
while(Date.now()<end){const f=make(i++);for(let k=0;k<400;k++)s^=f(300);if(i%200==0)gc();}
";

type Announced = (String, u64, u64, u64);

fn announced(event: &CodeEvent) -> Option<Announced> {
    match event {
        CodeEvent::Load(load) => Some((load.name.clone(), load.start.0, load.size, load.time.0)),
        _ => None,
    }
}

/// Polls as a recorder does until the target ends, checks that the names were known at once, and that every record
/// that was peeked is in the finished file, word for word. Returns how many were peeked before they were in the file.
fn watch(mut command: Command, wanted: &[&str]) -> PeekStats {
    let begun = Instant::now();
    let mut child = Running(command.stdout(Stdio::null()).spawn().expect("the runtime starts"));
    let pid = Pid(child.0.id());
    let mut opened: Option<(DumpTail, Peek, File, PathBuf)> = None;
    let (mut in_file, mut peeked) = (HashSet::new(), Vec::new());
    let mut known_at: Vec<Option<Duration>> = vec![None; wanted.len()];
    while child.0.try_wait().expect("the target can be waited for").is_none() {
        std::thread::sleep(Duration::from_millis(20));
        let Some((tail, peek, file, _)) = &mut opened else {
            opened = open_dump(pid);
            continue;
        };
        tail.poll(monotonic_now, &mut |event| in_file.extend(announced(&event))).expect("the dump can be read");
        peeked.extend(poll(peek, pid, file, tail.stream()).iter().filter_map(announced));
        for (wanted, at) in wanted.iter().zip(&mut known_at).filter(|(_, at)| at.is_none()) {
            if in_file.iter().chain(&peeked).any(|(name, ..)| name.contains(wanted)) {
                *at = Some(begun.elapsed());
            }
        }
    }
    let (mut tail, peek, _, path) = opened.expect("the dump was found");
    tail.poll(monotonic_now, &mut |event| in_file.extend(announced(&event))).expect("the dump can be read");
    std::fs::remove_file(path).expect("the dump can be removed");
    let stats = peek.stats();
    println!("{} peeked, {} in the file at last; {stats:?}", peeked.len(), in_file.len());
    for (wanted, at) in wanted.iter().zip(known_at) {
        println!("{wanted} known {at:?} after the start");
        assert!(at.is_some_and(|at| at < Duration::from_secs(3)), "{wanted}: {at:?}");
    }
    let wrong: Vec<_> = peeked.iter().filter(|peeked| !in_file.contains(*peeked)).collect();
    assert!(wrong.is_empty(), "{} of {} peeked are not in the file: {wrong:?}", wrong.len(), peeked.len());
    assert!(!peeked.is_empty(), "{stats:?}");
    assert_eq!(stats.found, 1, "{stats:?}");
    stats
}

fn poll(peek: &mut Peek, pid: Pid, file: &File, stream: &DumpStream) -> Vec<CodeEvent> {
    let meta = file.metadata().expect("the dump can be looked at");
    let who = (pid, FileId(1), (meta.dev(), meta.ino()));
    let wanted = DumpEnd::of(stream).and_then(|end| peek.look(who, end, monotonic_now()));
    wanted.map_or_else(Vec::new, |wanted| peek.take(look(&wanted, file), stream, monotonic_now()))
}

fn open_dump(pid: Pid) -> Option<(DumpTail, Peek, File, PathBuf)> {
    let maps = procfs::maps(pid).ok()?;
    let dump = maps.mappings.iter().find(|mapping| is_marker(mapping))?;
    let file = open_mapping(pid, &MapPlace::of(dump)).expect("the dump can be opened").file;
    // Before its first flush the file is empty, and the mapping is all there is to go by.
    let empty = file.metadata().is_ok_and(|meta| meta.len() == 0);
    assert!(empty || is_jitdump(&file).expect("the dump can be read"));
    let status = procfs::status(pid).ok()?;
    let start = procfs::stat(pid).ok()?.start();
    let peek = Peek::new(status.own_pid(), start);
    let kept = file.try_clone().ok()?;
    let path = PathBuf::from(&*dump.path);
    Some((DumpTail::new(file, ReaderOptions::default()), peek, kept, path))
}

fn python(program: &str) -> Command {
    let mut command = Command::new(std::env::var_os("JITPROF_PYTHON").unwrap_or_else(|| "python3.13".into()));
    command.args(["-X", "perf_jit", "-c", program]);
    command
}

fn node(program: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("JITPROF_NODE").unwrap_or_else(|| "node".into()));
    command.current_dir(dir).args(["--perf-prof", "--perf-prof-unwinding-info", "--expose-gc"]);
    command.args(["--interpreted-frames-native-stack", "--no-turbo-inlining", "-e", program]);
    command
}

#[test]
#[ignore = "needs CPython 3.13 (JITPROF_PYTHON, default python3.13) and permission to read its memory"]
fn hot_functions_of_a_steady_cpython_are_known_while_it_runs() {
    let stats = watch(python(PYTHON), &["py::leaf_hot", "py::outer"]);
    assert_eq!((stats.searches, stats.rejected_old_bytes), (1, 0));
}

#[test]
#[ignore = "needs CPython 3.13 (JITPROF_PYTHON, default python3.13) and permission to read its memory"]
fn a_forked_cpython_is_never_read_wrongly() {
    watch(python(PYTHON_FORK), &["py::leaf_hot", "py::outer"]);
}

#[test]
#[ignore = "needs Node (JITPROF_NODE, default node) and permission to read its memory"]
fn hot_functions_of_node_are_known_while_it_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    watch(node(NODE, dir.path()), &["leafHot", "outer"]);
}

#[test]
#[ignore = "needs Node (JITPROF_NODE, default node) and permission to read its memory"]
fn a_node_that_reuses_code_addresses_is_never_read_wrongly() {
    let dir = tempfile::tempdir().expect("a directory");
    watch(node(NODE_REUSE, dir.path()), &[]);
}

#[test]
fn a_process_that_has_ended_is_not_one_that_may_not_be_read() {
    let mut child = Command::new("true").stdout(Stdio::null()).spawn().unwrap();
    let via = Pid(child.id());
    child.wait().unwrap();
    let file = tempfile::tempfile().unwrap();
    let end = DumpEnd { file_len: 512, torn: Vec::new(), owed: 0, at_start: false, monotonic: true, lines: false };
    let wanted = Peek::new(via.0, monotonic_now()).look((via, FileId(1), (0, 0)), end, monotonic_now()).unwrap();
    assert_eq!(look(&wanted, &file), Sight::NoDescriptor);
}
