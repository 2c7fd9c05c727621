//! Recorded code as instructions.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Formatter, GasFormatter, Instruction, IntelFormatter};

/// How instructions are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Syntax {
    Intel,
    Att,
}

/// What the code is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Machine {
    X86,
    X86_64,
}

impl Machine {
    /// The machine of a header; CPython writes none, and then it is this one, as for perf.
    pub(super) fn of(elf_mach: u32) -> Option<Self> {
        match elf_mach {
            3 => Some(Self::X86),
            62 => Some(Self::X86_64),
            0 if cfg!(target_arch = "x86_64") => Some(Self::X86_64),
            _ => None,
        }
    }
}

/// An instruction, or bytes that are none.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) address: u64,
    pub(super) len: usize,
    pub(super) text: String,
    /// The offset from the code's start that it goes to, if that is in the code.
    pub(super) target: Option<u64>,
}

/// Decodes all of the code. Data among it looks like instructions.
pub(super) fn decode(code: &[u8], start: u64, machine: Machine, syntax: Syntax) -> Vec<Decoded> {
    let bits = match machine {
        Machine::X86 => 32,
        Machine::X86_64 => 64,
    };
    let mut formatter: Box<dyn Formatter> = match syntax {
        Syntax::Intel => Box::new(IntelFormatter::new()),
        Syntax::Att => Box::new(GasFormatter::new()),
    };
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_small_hex_numbers_in_decimal(true);
    options.set_space_after_operand_separator(true);
    options.set_branch_leading_zeros(false);
    let mut decoder = Decoder::with_ip(bits, code, start, DecoderOptions::NONE);
    let mut all = Vec::new();
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        let mut text = String::new();
        formatter.format(&instruction, &mut text);
        let target = goes_to(&instruction).map(|target| target.wrapping_sub(start));
        let target = target.filter(|offset| *offset < code.len() as u64);
        all.push(Decoded { address: instruction.ip(), len: instruction.len(), text, target });
    }
    all
}

fn goes_to(instruction: &Instruction) -> Option<u64> {
    let near = matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch | FlowControl::Call
    );
    (near && instruction.near_branch_target() != 0).then(|| instruction.near_branch_target())
}
