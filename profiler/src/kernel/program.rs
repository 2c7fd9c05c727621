//! Which of the object's programs this kernel can run, and loading them.

use std::time::{Duration, Instant};

use aya::maps::ProgramArray;
use aya::programs::perf_event::PerfEvent;
use aya::programs::{ProgramError, ProgramFd, ProgramType, UProbe, loaded_programs};
use aya::sys::{BpfHelper, is_helper_supported};
use aya::{Ebpf, EbpfLoader};
use jitprof_common::config;
use rustix::thread::{MembarrierCommand, membarrier};

use super::btf::{Descent, EntryRegisters, StackStart, thread_pointer};
use super::error::KernelError;

/// Where the kernel shows its type information; not there without CONFIG_DEBUG_INFO_BTF.
pub(super) const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// How the BPF program gets from one frame to the next, and where it finds the user registers of a task that is in the
/// kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// `bpf_loop` and `bpf_task_pt_regs`: kernels from 5.17.
    Loop,
    /// Tail calls and `bpf_task_pt_regs`: 5.15 and 5.16.
    Chained,
    /// Tail calls, and the registers from the task's kernel stack: 5.10 to 5.14.
    Oldest,
}

/// Longest wait for the kernel to let go of a program, and how often it is looked for: a worker of its own takes milliseconds.
/// The kernel's worker has to wait for its turn on a machine that has too much to do.
const GONE_LIMIT: Duration = Duration::from_secs(3);
const GONE_EVERY: Duration = Duration::from_millis(1);

/// The program that tail calls lead to, and the map that it must be put into.
const WALKER: &str = "walker";
const WALKERS: &str = "WALKERS";
/// The program that tells of calls which register code.
pub(super) const REGISTRATIONS: &str = "registrations";

impl Variant {
    /// All, the preferred one first.
    pub const ALL: [Self; 3] = [Self::Loop, Self::Chained, Self::Oldest];

    /// Whether samples take along the frames that a runtime keeps in a list.
    pub const fn walks_lists(self) -> bool {
        matches!(self, Self::Loop)
    }

    /// The first that this kernel can run, by trying its helpers: distributions backport.
    pub(super) fn of_this_kernel() -> Result<Self, KernelError> {
        for variant in [Self::Loop, Self::Chained] {
            if variant.is_supported()? {
                return Ok(variant);
            }
        }
        Ok(Self::Oldest)
    }

    /// Whether this kernel has what the programs need.
    pub(super) fn is_supported(self) -> Result<bool, KernelError> {
        for &helper in self.helpers() {
            if !is_helper_supported(ProgramType::PerfEvent, helper)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn helpers(self) -> &'static [BpfHelper] {
        match self {
            Self::Loop => &[BpfHelper::BPF_FUNC_loop, BpfHelper::BPF_FUNC_task_pt_regs],
            Self::Chained => &[BpfHelper::BPF_FUNC_task_pt_regs],
            Self::Oldest => &[],
        }
    }

    /// The program that is attached.
    pub(super) fn entry(self) -> &'static str {
        match self {
            Self::Loop => "sampler",
            Self::Chained => "sampler_chained",
            Self::Oldest => "sampler_oldest",
        }
    }

    /// The programs that are loaded.
    pub(super) fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Loop => &["sampler"],
            Self::Chained => &["sampler_chained", WALKER],
            Self::Oldest => &["sampler_oldest", WALKER],
        }
    }

    /// For people, and the account.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Loop => "bpf_loop",
            Self::Chained => "tail calls",
            Self::Oldest => "tail calls, user registers from the kernel stack",
        }
    }
}

/// A loaded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Its name.
    pub program: &'static str,
    /// Instructions that the verifier walked through to accept it, where the kernel tells (5.16).
    pub instructions: Option<u32>,
}

/// What is read of this kernel's structures for a variant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Structures {
    entry_registers: Option<EntryRegisters>,
    /// See [`config::TASK_THREAD_POINTER`].
    thread_pointer: u64,
    /// See [`config::TASK_MM`].
    task_mm: u64,
    /// See [`config::MM_START_STACK`].
    start_stack: u64,
    descent: Option<Descent>,
}

impl Structures {
    /// Reads what the variant needs.
    pub(super) fn read(variant: Variant) -> Self {
        let btf = std::fs::read(KERNEL_BTF).ok();
        let start = btf.as_deref().and_then(StackStart::find);
        if start.is_none() {
            tracing::info!(
                "the kernel's BTF does not tell where stacks begin: copies of them may hold the environment"
            );
        }
        let descent = btf.as_deref().and_then(Descent::find);
        if descent.is_none() {
            tracing::warn!(
                "the kernel's BTF does not tell who has made a process: the first milliseconds of children are not seen"
            );
        }
        let found = Self {
            descent,
            task_mm: start.map_or(0, |start| start.task_mm),
            start_stack: start.map_or(0, |start| start.in_mm),
            ..Self::default()
        };
        match variant {
            Variant::Loop => {
                let pointer = btf.as_deref().and_then(thread_pointer);
                if pointer.is_none() {
                    tracing::warn!(
                        "the kernel's BTF does not tell where thread pointers are: frames that Python keeps are not seen"
                    );
                }
                Self { thread_pointer: pointer.unwrap_or(0), ..found }
            }
            Variant::Chained => found,
            Variant::Oldest => Self { entry_registers: entry_registers(btf.as_deref()), ..found },
        }
    }

    /// Sets what the BPF program must know about them.
    pub(super) fn set<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        if let Some(found) = &self.entry_registers {
            loader.override_global(config::TASK_STACK, &found.task_stack, true);
            loader.override_global(config::ENTRY_REGISTERS, &found.from_stack_start, true);
        }
        loader.override_global(config::TASK_THREAD_POINTER, &self.thread_pointer, true);
        if let Some(found) = &self.descent {
            loader.override_global(config::TASK_REAL_PARENT, &found.real_parent, true);
            loader.override_global(config::TASK_TGID, &found.tgid, true);
            loader.override_global(config::TASK_GROUP_LEADER, &found.group_leader, true);
            loader.override_global(config::TASK_START_TIME, &found.start_time, true);
            loader.override_global(config::TASK_FLAGS, &found.flags, true);
        }
        loader.override_global(config::TASK_MM, &self.task_mm, true);
        loader.override_global(config::MM_START_STACK, &self.start_stack, true);
    }
}

fn entry_registers(btf: Option<&[u8]>) -> Option<EntryRegisters> {
    let found = btf.and_then(EntryRegisters::find);
    if found.is_none() {
        tracing::warn!(
            "the kernel's BTF does not tell where user registers are: samples in the kernel have no user stack"
        );
    }
    found
}

/// Loads the variant's programs and links them.
pub(super) fn load(ebpf: &mut Ebpf, variant: Variant) -> Result<Vec<Verified>, KernelError> {
    let verified = variant.programs().iter().map(|&name| load_one(ebpf, name)).collect::<Result<_, _>>()?;
    if variant.programs().contains(&WALKER) {
        let walker = program(ebpf, WALKER)?.fd()?.try_clone().map_err(ProgramError::from)?;
        let map = ebpf.map_mut(WALKERS).ok_or(KernelError::Mismatch { name: WALKERS })?;
        // The map stays where it is: the kernel empties an array of programs when its last descriptor is closed.
        ProgramArray::try_from(map)?.set(0, &walker, 0)?;
    }
    Ok(verified)
}

/// Loads the programs of the other variants that this kernel takes, to see what the verifier says.
pub(super) fn load_others(ebpf: &mut Ebpf, loaded: &mut Vec<Verified>) -> Result<(), KernelError> {
    for variant in Variant::ALL {
        for &name in variant.programs() {
            if !loaded.iter().any(|verified| verified.program == name) && variant.is_supported()? {
                loaded.push(load_one(ebpf, name)?);
            }
        }
    }
    Ok(())
}

fn load_one(ebpf: &mut Ebpf, name: &'static str) -> Result<Verified, KernelError> {
    let program = program(ebpf, name)?;
    program.load().map_err(|error| refusal(name, error))?;
    let instructions = program.info().ok().and_then(|info| info.verified_instruction_count());
    Ok(verified(name, instructions))
}

/// Loads the program that tells of calls which register code. It runs where a breakpoint is set.
pub(super) fn load_registrations(ebpf: &mut Ebpf) -> Result<(Verified, ProgramFd), KernelError> {
    let name = REGISTRATIONS;
    let program: &mut UProbe = ebpf.program_mut(name).ok_or(KernelError::Mismatch { name })?.try_into()?;
    program.load().map_err(|error| refusal(name, error))?;
    let instructions = program.info().ok().and_then(|info| info.verified_instruction_count());
    let loaded = program.fd()?.try_clone().map_err(ProgramError::from)?;
    Ok((verified(name, instructions), loaded))
}

fn verified(program: &'static str, instructions: Option<u32>) -> Verified {
    match instructions {
        Some(count) => tracing::debug!("program {program}: {count} instructions verified"),
        None => tracing::debug!("program {program}: verified; this kernel does not tell how many instructions"),
    }
    Verified { program, instructions }
}

pub(super) fn program<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut PerfEvent, KernelError> {
    Ok(ebpf.program_mut(name).ok_or(KernelError::Mismatch { name })?.try_into()?)
}

/// Waits until a program that was unloaded runs no more. The kernel lets go of links in a worker: until then samples are taken,
/// which nobody would read.
pub(super) fn wait_until_gone(id: Option<u32>) {
    let begun = Instant::now();
    // Who may not list programs sees none.
    let is_there = || loaded_programs().any(|program| program.is_ok_and(|program| Some(program.id()) == id));
    while is_there() && begun.elapsed() < GONE_LIMIT {
        std::thread::sleep(GONE_EVERY);
    }
    // It may have begun on another CPU; programs end before a grace period does.
    if let Err(error) = membarrier(MembarrierCommand::Global) {
        tracing::debug!("the last samples are not waited for: {error}");
    }
}

/// The verifier's log has thousands of lines and the reason stands in one of the last: that one is for everybody, all
/// of it for those who asked.
fn refusal(program: &'static str, error: ProgramError) -> KernelError {
    let ProgramError::LoadError { io_error, verifier_log } = error else { return error.into() };
    let log = verifier_log.to_string();
    tracing::debug!("the verifier's log of {program}:\n{log}");
    KernelError::Refused { program, source: io_error, reason: reason(&log).to_owned() }
}

/// The line of the log that says why.
fn reason(log: &str) -> &str {
    const STATISTICS: [&str; 3] = ["processed ", "verification time ", "stack depth "];
    let is_statistics = |line: &str| STATISTICS.iter().any(|start| line.starts_with(start));
    let mut lines = log.lines().rev().map(str::trim);
    lines.find(|line| !line.is_empty() && !is_statistics(line)).unwrap_or("it does not say why")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_refusal_the_reason_is_kept_and_the_dump_is_not() {
        let log = "0: (bf) r6 = r1\n1: (85) call bpf_loop#181\ninvalid func unknown#181\nprocessed 2 insns (limit 1000000)\n\n";
        assert_eq!(reason(log), "invalid func unknown#181");
        assert_eq!(reason(""), "it does not say why");
        assert_eq!(reason("processed 0 insns\n"), "it does not say why");
    }

    #[test]
    fn each_variant_attaches_one_of_its_own_programs() {
        for variant in Variant::ALL {
            assert_eq!(variant.programs().first(), Some(&variant.entry()));
        }
    }
}
