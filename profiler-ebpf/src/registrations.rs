//! A uprobe on `__jit_debug_register_code`: tells when a process has registered which code.

use aya_ebpf::{
    bindings::bpf_user_pt_regs_t,
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns, bpf_probe_read_user},
    macros::uprobe,
    programs::ProbeContext,
};
use jitprof_common::{
    registrations::{CallCount, ProbeKey, RegistrationRecord, UNREADABLE},
    sample::Counter,
};

use crate::maps::{CALLS, PROBED, REGISTRATIONS, count};

/// Tells of one call. Each process is probed for itself: nobody else gets here.
#[uprobe]
pub fn registrations(ctx: ProbeContext) -> u32 {
    // SAFETY: a helper without arguments.
    let time_ns = unsafe { bpf_ktime_get_ns() };
    let pid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let Some(calls) = CALLS.get_ptr_mut(pid) else { return 0 };
    // SAFETY: values stay where they are while a program runs; whoever else writes is another CPU with the same program, and
    // what then is lost is one of two counts.
    let calls = unsafe { &mut *calls };
    let key = ProbeKey { function: pc(&ctx), pid: u64::from(pid) };
    match PROBED.get_ptr(key) {
        // SAFETY: as above; only userspace writes it, as a whole.
        Some(descriptor) => tell(calls, pid, time_ns, unsafe { *descriptor }),
        // The file is mapped a second time.
        None => miss(calls),
    }
    0
}

#[inline(always)]
fn tell(calls: &mut CallCount, pid: u32, time_ns: u64, descriptor: u64) {
    if !calls.take(time_ns) {
        return miss(calls);
    }
    let (action, entry, image, size) = call_at(descriptor);
    let record = RegistrationRecord { time_ns, pid, action, missed: calls.missed, entry, image, size };
    if REGISTRATIONS.output::<RegistrationRecord>(&record, 0).is_err() {
        miss(calls);
    }
}

#[inline(always)]
fn miss(calls: &mut CallCount) {
    calls.missed = calls.missed.wrapping_add(1);
    count(Counter::RegistrationsMissed, 1);
}

/// Action, entry, address and size of an object file, as far as they can be read.
#[inline(always)]
fn call_at(descriptor: u64) -> (u32, u64, u64, u64) {
    // SAFETY: the helper checks the address and never faults.
    let Ok([head, entry]) = (unsafe { bpf_probe_read_user(descriptor as *const [u64; 2]) }) else {
        return (UNREADABLE, 0, 0, 0);
    };
    let action = (head >> 32) as u32;
    // SAFETY: as above.
    match unsafe { bpf_probe_read_user(entry as *const [u64; 4]) } {
        Ok([_, _, image, size]) => (action, entry, image, size),
        Err(_) => (UNREADABLE, entry, 0, 0),
    }
}

/// Where the process has come to the breakpoint.
#[cfg(bpf_target_arch = "x86_64")]
#[inline(always)]
fn pc(ctx: &ProbeContext) -> u64 {
    // SAFETY: the context of a uprobe is the registers that the task has in user mode.
    unsafe { (*ctx.regs.cast::<bpf_user_pt_regs_t>()).rip }
}

/// Where the process has come to the breakpoint.
#[cfg(bpf_target_arch = "aarch64")]
#[inline(always)]
fn pc(ctx: &ProbeContext) -> u64 {
    // SAFETY: as on x86-64; what the kernel keeps behind them is not read.
    unsafe { (*ctx.regs.cast::<bpf_user_pt_regs_t>()).pc }
}
