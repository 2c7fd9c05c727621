//! What the stories are made of: programs that generate code, and how they announce it.

use std::sync::Arc;

use jitprof_common::units::{Avma, MonoNs, Pid, Tid};
use jitprof_jitdump::writer::{DumpWriter, HeaderFields, LoadFields};

use crate::engine::world::machine::{file_mapping, memory_mapping};
use crate::engine::world::{BEGIN, MS, World, mmap_event};
use crate::process::Mapping;
use crate::process::event::TaskChange;

/// Where the program lies, with `_start`, `main` and `helper`.
pub(super) const APP: u64 = 0x40_0000;
pub(super) const START: u64 = APP + 0x10;
pub(super) const MAIN: u64 = APP + 0x1010;
pub(super) const HELPER: u64 = APP + 0x2010;
/// Where it generates code.
pub(super) const JIT: u64 = 0x7000_0000;
/// Where it maps its dump.
pub(super) const MARKER: u64 = 0x6000_0000;

/// A time in ms since the beginning.
pub(super) fn ms(time: u64) -> MonoNs {
    MonoNs(BEGIN.0 + time * MS)
}

/// Makes a process that runs `/bin/app`.
pub(super) fn app(world: &mut World, pid: u32) {
    let symbols = [(0, "_start"), (0x1000, "main"), (0x2000, "helper")];
    let known = world.machine.paths.get("/bin/app").copied();
    let inode = known.unwrap_or_else(|| world.machine.add_program("/bin/app", b"app", &symbols));
    let mappings = vec![file_mapping(APP, 0x1_0000, inode, "/bin/app"), memory_mapping(JIT, 0x10_0000)];
    let start = MonoNs(world.now.0 - 1_000 * MS);
    world.machine.add_process(pid, start, "/bin/app", mappings);
}

/// Code with a frame pointer, `size` bytes of it.
pub(super) fn code(size: usize) -> Vec<u8> {
    let mut code = vec![0x90; size];
    code[..4].copy_from_slice(&[0x55, 0x48, 0x89, 0xe5]);
    code[size - 2..].copy_from_slice(&[0x5d, 0xc3]);
    code
}

pub(super) fn dump_path(pid: u32) -> String {
    format!("/tmp/jit-{pid}.dump")
}

/// An empty dump, with its header.
pub(super) fn header(pid: u32) -> Vec<u8> {
    let header = HeaderFields { pid, time: BEGIN.0, ..HeaderFields::default() };
    DumpWriter::with_header(&header).into_bytes()
}

/// The record of a function.
pub(super) fn record(pid: u32, time: MonoNs, (start, size, name): (u64, usize, &str)) -> Vec<u8> {
    record_of_code(pid, time, (start, &code(size), name))
}

/// The record of a function that has this code.
pub(super) fn record_of_code(pid: u32, time: MonoNs, (start, code, name): (u64, &[u8], &str)) -> Vec<u8> {
    let mut writer = DumpWriter::new(pid);
    writer.load(time.0, &LoadFields { code_addr: start, code_index: 0, name: name.as_bytes(), code });
    writer.into_bytes()[40..].to_vec()
}

/// A process maps something, as the kernel and /proc see it.
pub(super) fn map(world: &mut World, pid: u32, mapping: Mapping) {
    let change = mmap_event(pid, &mapping);
    if let Some(mappings) = world.machine.mappings_mut(pid) {
        // They are sorted and do not overlap.
        let from = mappings.partition_point(|old| old.end <= mapping.start);
        let to = mappings.partition_point(|old| old.start < mapping.end);
        mappings.splice(from..to.max(from), [mapping]);
    }
    world.task(TaskChange::Mmap(change));
}

/// A process begins a dump.
pub(super) fn begin_dump(world: &mut World, pid: u32) {
    let path = dump_path(pid);
    let inode = world.machine.add_file(&path, header(pid));
    map(world, pid, file_mapping(MARKER, 0x1000, inode, &path));
}

/// A process announces a function in its dump now.
pub(super) fn announce(world: &mut World, pid: u32, function: (u64, usize, &str)) {
    let record = record(pid, world.now, function);
    world.machine.append(&dump_path(pid), &record);
}

/// A followed process with a dump.
pub(super) fn runtime(world: &mut World, pid: u32) {
    app(world, pid);
    world.follow(&[pid]);
    begin_dump(world, pid);
    world.settle();
}

pub(super) fn fork(world: &mut World, child: u32, parent: u32) {
    let (of_child, of_parent) = (Pid(child), Pid(parent));
    if let Some(made) = world.machine.processes.get(&parent).cloned() {
        world.machine.processes.insert(child, made);
        let now = world.now;
        let made = &mut world.machine.processes.get_mut(&child).unwrap().read;
        (made.via, made.start, made.parent, made.threads) = (of_child, now, of_parent, vec![Tid(child)]);
    }
    world.task(TaskChange::Fork { pid: of_child, parent_pid: of_parent, tid: Tid(child), parent_tid: Tid(parent) });
}

pub(super) fn exit(world: &mut World, pid: u32) {
    world.machine.processes.remove(&pid);
    world.task(TaskChange::Exit { pid: Pid(pid), tid: Tid(pid) });
}

/// A process runs another program, of which only this is mapped.
pub(super) fn exec(world: &mut World, pid: u32, exe: &str, mappings: Vec<Mapping>) {
    if let Some(made) = world.machine.processes.get_mut(&pid) {
        made.read.exe = Some(exe.to_owned());
        made.read.comm = exe.rsplit('/').next().unwrap_or_default().to_owned();
        made.read.mappings = Some(Vec::new());
        made.memory.clear();
        made.unwritten = None;
    }
    let comm = Arc::from(exe.rsplit('/').next().unwrap_or_default());
    world.task(TaskChange::Comm { pid: Pid(pid), tid: Tid(pid), comm, exec: true });
    mappings.into_iter().for_each(|mapping| map(world, pid, mapping));
}

/// What a piece of a process' memory is.
pub(super) fn put(world: &mut World, pid: u32, at: u64, bytes: Vec<u8>) {
    world.machine.processes.get_mut(&pid).unwrap().memory.insert(at, bytes);
}

/// The stacks of a process' samples at a time in ms, in the window or profile that has them.
pub(super) fn stacks(world: &World, pid: u32, time: u64) -> Vec<String> {
    let windows = world.windows.iter().map(|window| &window.profile);
    let all = windows.chain(world.recorded.iter().map(|recorded| &recorded.profile));
    all.filter_map(|profile| World::told(profile).remove(&(time, pid))).flatten().collect()
}

/// The only one of them.
pub(super) fn stack(world: &World, pid: u32, time: u64) -> String {
    let found = stacks(world, pid, time);
    assert_eq!(found.len(), 1, "of {pid} at {time} ms: {found:?}");
    found.into_iter().next().unwrap()
}

/// Where a copy of a program's mapping lies.
pub(super) fn mapped(world: &World, start: u64, path: &str) -> Mapping {
    file_mapping(start, 0x1_0000, world.machine.paths[path], path)
}

pub(super) fn avma(address: u64) -> Avma {
    Avma(address)
}
