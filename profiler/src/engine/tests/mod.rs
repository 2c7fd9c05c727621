//! Tests of the engine's parts, and of the whole on a machine that is made up.

mod announcing;
mod chaos;
mod continuous;
mod copies;
mod frames;
mod listed;
mod losing;
mod processes;
mod purity;
mod runtime_tables;
mod selecting;
mod sharing;
mod space;
mod stories;
mod telling;
mod unloading;
mod unmade;
mod unwinding;

use std::sync::Arc;

use jitprof_common::units::{Avma, FileOffset, MonoNs, Pid, Tid};

use crate::engine::border::ProcessRead;
use crate::engine::pending::{Pending, Stacks};
use crate::engine::world::{mmap_event, raw_sample};
use crate::process::event::{TaskChange, TaskEvent};
use crate::process::{Device, Mapping, MappingKind, Prot};

const SECOND: u64 = 1_000_000_000;
const EXECUTABLE: Prot = Prot { read: true, write: false, execute: true, shared: false };

/// A time in seconds.
fn at(seconds: u64) -> MonoNs {
    MonoNs(seconds * SECOND)
}

fn mapping(start: u64, end: u64, inode: u64) -> Mapping {
    Mapping {
        start: Avma(start),
        end: Avma(end),
        file_offset: FileOffset(0x100),
        device: Device::default(),
        inode,
        generation: None,
        path: Arc::from(format!("/file{inode}")),
        deleted: false,
        prot: EXECUTABLE,
        kind: MappingKind::File,
    }
}

fn event(time: MonoNs, change: TaskChange) -> TaskEvent {
    TaskEvent { time, change }
}

fn mmap(pid: u32, time: MonoNs, mapping: Mapping) -> TaskEvent {
    event(time, TaskChange::Mmap(mmap_event(pid, &mapping)))
}

fn fork(time: MonoNs, pid: u32, parent: u32) -> TaskEvent {
    thread_of(time, (pid, pid), (parent, parent))
}

fn thread(time: MonoNs, pid: u32, tid: u32, maker: u32) -> TaskEvent {
    thread_of(time, (pid, tid), (pid, maker))
}

fn thread_of(time: MonoNs, (pid, tid): (u32, u32), (parent_pid, parent_tid): (u32, u32)) -> TaskEvent {
    let change =
        TaskChange::Fork { pid: Pid(pid), parent_pid: Pid(parent_pid), tid: Tid(tid), parent_tid: Tid(parent_tid) };
    event(time, change)
}

fn exit(time: MonoNs, pid: u32, tid: u32) -> TaskEvent {
    event(time, TaskChange::Exit { pid: Pid(pid), tid: Tid(tid) })
}

fn comm(time: MonoNs, pid: u32, tid: u32, name: &str) -> TaskEvent {
    event(time, TaskChange::Comm { pid: Pid(pid), tid: Tid(tid), comm: Arc::from(name), exec: false })
}

fn exec(time: MonoNs, pid: u32, name: &str) -> TaskEvent {
    event(time, TaskChange::Comm { pid: Pid(pid), tid: Tid(pid), comm: Arc::from(name), exec: true })
}

fn lost(time: MonoNs, count: u64) -> TaskEvent {
    event(time, TaskChange::Lost { count })
}

/// What /proc says of a process with one thread.
fn process_read(pid: u32, start: MonoNs, mappings: Vec<Mapping>) -> ProcessRead {
    ProcessRead {
        via: Pid(pid),
        start,
        parent: Pid(1),
        comm: format!("process-{pid}"),
        is_kernel_thread: false,
        is_dead: false,
        status: None,
        payer: None,
        user: None,
        exe: Some("/bin/program".to_owned()),
        command_line: Some(vec!["program".to_owned()]),
        environment: Vec::new(),
        cgroup: None,
        mappings: Some(mappings),
        threads: vec![Tid(pid)],
    }
}

/// One that waits.
fn pending(time: MonoNs) -> Pending {
    Pending::new(&raw_sample(time, 1, &[], None), &mut Stacks::default())
}
