//! Where execution goes after an instruction.

use iced_x86::{Code, FlowControl, Instruction};

/// Where execution goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Following,
    Jump(u64),
    Branch(u64),
    Return,
    /// It jumps to where only the run shows.
    Leave,
    /// It traps.
    Nowhere,
}

pub(super) fn next_of(instruction: &Instruction) -> Next {
    let target = instruction.near_branch_target();
    match instruction.flow_control() {
        FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => match instruction.code() {
            Code::Hlt => Next::Nowhere,
            _ => Next::Following,
        },
        FlowControl::UnconditionalBranch => Next::Jump(target),
        FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => Next::Branch(target),
        FlowControl::Return => Next::Return,
        FlowControl::IndirectBranch => Next::Leave,
        FlowControl::Interrupt | FlowControl::Exception => Next::Nowhere,
    }
}
