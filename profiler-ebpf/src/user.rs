//! The sampled task's user registers and user memory.

use aya_ebpf::{
    EbpfContext,
    bindings::{bpf_perf_event_data, bpf_user_pt_regs_t},
    helpers::{
        bpf_get_current_task_btf, bpf_probe_read_kernel, bpf_probe_read_user,
        generated::{bpf_get_current_task, bpf_task_pt_regs},
    },
    programs::PerfEventContext,
};
use jitprof_common::{
    taken::TakenHeader,
    unwind::{ReadFault, Registers, StackMemory},
};

use crate::list;
use crate::maps::{ENTRY_REGISTERS, TASK_STACK};

/// What the sample's registers say.
pub struct SampledRegisters {
    /// The CPU was in the kernel.
    pub in_kernel: bool,
    /// The registers that the task has, or will have again, in user mode.
    pub user: Option<Registers>,
}

/// User registers: the interrupted ones, or those that the task entered the kernel with. A kernel thread has none.
#[inline(always)]
pub fn registers(ctx: &PerfEventContext) -> SampledRegisters {
    registers_or(ctx, || {
        // SAFETY: both helpers take no pointer of ours; the result is read by bpf_probe_read_kernel.
        unsafe {
            let task = bpf_get_current_task_btf();
            read_entered(bpf_task_pt_regs(task) as *const bpf_user_pt_regs_t)
        }
    })
}

/// [`registers`] without `bpf_task_pt_regs`: what the task entered the kernel with lies at a fixed distance from the
/// start of its kernel stack. The loader knows the distance for this kernel.
#[inline(always)]
pub fn registers_from_stack(ctx: &PerfEventContext) -> SampledRegisters {
    registers_or(ctx, || {
        if ENTRY_REGISTERS.load() == 0 {
            return None;
        }
        // SAFETY: both addresses are only read by bpf_probe_read_kernel, which checks them and never faults.
        unsafe {
            let task = bpf_get_current_task();
            let stack = bpf_probe_read_kernel(task.wrapping_add(TASK_STACK.load()) as *const u64).ok()?;
            read_entered(stack.wrapping_add(ENTRY_REGISTERS.load()) as *const bpf_user_pt_regs_t)
        }
    })
}

#[inline(always)]
fn registers_or(ctx: &PerfEventContext, entered: impl FnOnce() -> Option<Registers>) -> SampledRegisters {
    // SAFETY: the context of a perf_event program is a bpf_perf_event_data.
    let interrupted = unsafe { &(*ctx.as_ptr().cast::<bpf_perf_event_data>()).regs };
    if in_user_mode(interrupted) {
        return SampledRegisters { in_kernel: false, user: Some(unwind_registers(interrupted)) };
    }
    SampledRegisters { in_kernel: true, user: entered() }
}

/// The registers of the innermost frame that may be taken along, if it was interrupted in user mode.
#[cfg(bpf_target_arch = "x86_64")]
#[inline(always)]
pub fn leaf_registers(ctx: &PerfEventContext) -> TakenHeader {
    // SAFETY: the context of a perf_event program is a bpf_perf_event_data.
    let interrupted = unsafe { &(*ctx.as_ptr().cast::<bpf_perf_event_data>()).regs };
    if !in_user_mode(interrupted) {
        return TakenHeader::default();
    }
    TakenHeader { has_registers: 1, registers: [interrupted.rdi, interrupted.r9, interrupted.r12] }
}

/// The registers of the innermost frame that may be taken along: none is known to be needed on this machine.
#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
pub fn leaf_registers(_ctx: &PerfEventContext) -> TakenHeader {
    TakenHeader::default()
}

#[cfg(bpf_target_arch = "x86_64")]
#[inline(always)]
fn in_user_mode(registers: &bpf_user_pt_regs_t) -> bool {
    // The low two bits of the code segment are the privilege level.
    registers.cs & 3 == 3
}

#[cfg(bpf_target_arch = "x86_64")]
#[inline(always)]
fn unwind_registers(registers: &bpf_user_pt_regs_t) -> Registers {
    Registers { pc: registers.rip, sp: registers.rsp, fp: registers.rbp, lr: 0 }
}

/// Four of a task's registers: before 6.12 the stacks of the walk's functions add up to the 512 bytes there are, and all
/// 21 would be too many.
#[cfg(bpf_target_arch = "x86_64")]
#[inline(always)]
unsafe fn read_entered(registers: *const bpf_user_pt_regs_t) -> Option<Registers> {
    // SAFETY: the fields follow each other (rip, cs, eflags, rsp); the helper checks the addresses and never faults.
    let (fp, last) = unsafe {
        (
            bpf_probe_read_kernel((&raw const (*registers).rbp).cast::<u64>()),
            bpf_probe_read_kernel((&raw const (*registers).rip).cast::<[u64; 4]>()),
        )
    };
    match (fp, last) {
        // io_uring's and vhost's workers have their creator's registers, with neither pc nor stack.
        (Ok(fp), Ok([pc, cs, _, sp])) if cs & 3 == 3 && sp != 0 => Some(Registers { pc, sp, fp, lr: 0 }),
        _ => None,
    }
}

/// The last five of a task's registers: the stack has no room for all 34.
#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
unsafe fn read_entered(registers: *const bpf_user_pt_regs_t) -> Option<Registers> {
    // SAFETY: the fields follow each other (x29, x30, sp, pc, pstate); the helper checks the address and never faults.
    let last =
        unsafe { bpf_probe_read_kernel((&raw const (*registers).regs).cast::<u64>().add(29).cast::<[u64; 5]>()) };
    match last {
        Ok([fp, lr, sp, pc, pstate]) if pstate & USER_MODE_MASK == 0 => Some(Registers { pc, sp, fp, lr }),
        _ => None,
    }
}

/// Exception level 0 in the 64-bit state has all of these bits clear: 32-bit programs, which have bit 4 set, cannot be
/// unwound by these rules.
#[cfg(bpf_target_arch = "aarch64")]
const USER_MODE_MASK: u64 = 0x1f;

#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn in_user_mode(registers: &bpf_user_pt_regs_t) -> bool {
    registers.pstate & USER_MODE_MASK == 0
}

#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn unwind_registers(registers: &bpf_user_pt_regs_t) -> Registers {
    Registers { pc: registers.pc, sp: registers.sp, fp: registers.regs[29], lr: registers.regs[30] }
}

/// The current task's memory.
pub struct UserMemory;

impl StackMemory for UserMemory {
    #[inline(always)]
    fn read_u64(&self, address: u64) -> Result<u64, ReadFault> {
        // SAFETY: the helper checks the address and never faults.
        unsafe { bpf_probe_read_user(address as *const u64) }.map_err(|_| ReadFault)
    }

    #[inline(always)]
    fn read_pair(&self, address: u64) -> Result<(u64, u64), ReadFault> {
        // SAFETY: the helper checks the address and never faults.
        let [first, second] = unsafe { bpf_probe_read_user(address as *const [u64; 2]) }.map_err(|_| ReadFault)?;
        Ok((first, second))
    }

    #[inline(always)]
    fn read_three(&self, address: u64) -> Result<[u64; 3], ReadFault> {
        // SAFETY: the helper checks the address and never faults.
        unsafe { bpf_probe_read_user(address as *const [u64; 3]) }.map_err(|_| ReadFault)
    }

    #[inline(always)]
    fn parked_sp(&self) -> Result<u64, ReadFault> {
        match list::parked_sp() {
            0 => Err(ReadFault),
            parked => Ok(parked),
        }
    }
}
