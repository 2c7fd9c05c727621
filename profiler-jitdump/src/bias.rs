//! The bias of debug addresses.
//!
//! V8, LLVM and QEMU add the size of an ELF header (0x40; 0x34 in 32-bit V8) to every address of DEBUG_INFO, because
//! old perf subtracted it. The JVM agent, SpiderMonkey and Erlang do not. Nothing in the file says so: it is inferred
//! once for a dump.

use super::header::{AGENT_PAD1, FileHeader, V8_PAD1};

/// The size of a 64-bit ELF header.
const BIAS_64: u64 = 0x40;
/// The size of a 32-bit ELF header.
const BIAS_32: u64 = 0x34;

/// The bias of a dump that LLVM's listeners wrote, told by the directory that they make.
pub fn bias_of_path(path: &str) -> Option<u64> {
    path.contains("llvm-IR-jit-").then_some(BIAS_64)
}

/// Functions whose rows begin exactly at the biased start, before that is no coincidence.
const ENOUGH: u32 = 2;

/// The bias of one dump: known, or inferred from function to function.
#[derive(Clone, Debug)]
pub(super) struct Bias {
    told: Option<u64>,
    known: Option<u64>,
    inferred: Option<u64>,
    exact_starts: u32,
}

impl Bias {
    pub(super) fn new(told: Option<u64>) -> Self {
        Self { told, known: told, inferred: None, exact_starts: 0 }
    }

    /// A header begins a new judgement: V8's and the agent's own tell at once.
    pub(super) fn restart(&mut self, header: &FileHeader) {
        let of_v8 = (header.pad1 == V8_PAD1).then_some(match header.elf_mach {
            3 | 8 | 40 => BIAS_32,
            _ => BIAS_64,
        });
        let of_agent = (header.pad1 == AGENT_PAD1).then_some(0);
        *self = Self { known: self.told.or(of_v8).or(of_agent), ..Self::new(self.told) };
    }

    /// The bias so far; `None` until a function tells.
    pub(super) fn value(&self) -> Option<u64> {
        self.known.or(self.inferred)
    }

    /// Takes the addresses of a function's rows with lines into account and gives the bias to use for it.
    ///
    /// * A row below `code_addr + 0x40` cannot be biased, nor can then any in the dump. (Erlang's first row may even
    ///   lie before the code.)
    /// * Without such a row, one at the code's end or beyond is biased. Erlang's terminator there has line 0 and is
    ///   not among the rows.
    /// * A first row exactly at `code_addr + 0x40` speaks for the bias, and decides when it happens again.
    pub(super) fn of_function(&mut self, code_addr: u64, code_size: u64, lowest: u64, highest: u64) -> u64 {
        if let Some(known) = self.known {
            return known;
        }
        let biased_start = code_addr.saturating_add(BIAS_64);
        if lowest < biased_start {
            self.inferred = Some(0);
        } else if self.inferred.is_none() {
            let exact = lowest == biased_start;
            self.exact_starts += u32::from(exact);
            if highest >= code_addr.saturating_add(code_size) || self.exact_starts >= ENOUGH {
                self.inferred = Some(BIAS_64);
            } else if exact {
                return BIAS_64;
            }
        }
        self.inferred.unwrap_or(0)
    }
}
