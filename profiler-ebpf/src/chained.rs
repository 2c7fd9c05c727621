//! The sampler for kernels without `bpf_loop`: the same walk, some turns in each of a chain of tail calls. It takes no
//! words along with frames.

use aya_ebpf::{
    macros::{map, perf_event},
    maps::ProgramArray,
    programs::PerfEventContext,
};

use crate::maps::STATE;
use crate::user::{self, SampledRegisters};
use crate::{begin, hand_over, turn};

/// Turns between two tail calls. The kernel allows 33 tail calls (32 in the JITs of some kernels before 6.0), the
/// verifier walks through every turn: this is the smallest number that still reaches 1024 frames with 32.
const TURNS: u32 = 32;

/// The walker, at index 0: the loader puts it there.
#[map]
static WALKERS: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// `sampler` for kernels from 5.15, which have `bpf_task_pt_regs`.
#[perf_event]
pub fn sampler_chained(ctx: PerfEventContext) -> u32 {
    start(&ctx, user::registers)
}

/// `sampler` for kernels before 5.15: the registers of a task in the kernel are read from its kernel stack.
#[perf_event]
pub fn sampler_oldest(ctx: PerfEventContext) -> u32 {
    start(&ctx, user::registers_from_stack)
}

#[inline(always)]
fn start(ctx: &PerfEventContext, registers: impl FnOnce(&PerfEventContext) -> SampledRegisters) -> u32 {
    let Some((walk, has_user_stack)) = begin(ctx, registers) else { return 0 };
    if has_user_stack {
        // SAFETY: nothing of this frame is needed after a successful call, and nothing in it has a destructor.
        unsafe { WALKERS.tail_call(ctx, 0) };
    }
    hand_over::<false>(walk, 0);
    0
}

/// A turn. Exported, and so a global function for the verifier, who walks through it once and not at every call; and
/// inlined into the loop, LLVM would spill registers that no path has written, which is refused.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn chained_turn() -> u64 {
    u64::from(turn::<false>())
}

/// Goes on with the walk of this CPU, and hands the sample over when it has ended.
#[perf_event]
pub fn walker(ctx: PerfEventContext) -> u32 {
    let mut ended = false;
    for _ in 0..TURNS {
        if chained_turn() != 0 {
            ended = true;
            break;
        }
    }
    if !ended {
        // Comes back only when there were too many: the stack is cut there, with the reason that `begin` has set.
        // SAFETY: as in `start`.
        unsafe { WALKERS.tail_call(&ctx, 0) };
    }
    let Some(walk) = STATE.get_ptr_mut(0) else { return 0 };
    // SAFETY: as in `begin`; the per-CPU state stays this sample's from the entry program to here.
    hand_over::<false>(unsafe { &mut *walk }, 0);
    0
}
