//! What symbolization did, and what it could not do.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Why code has no name. Every frame named `[file+0x…]` or `[kernel]` is counted under one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unresolved {
    /// The file has neither a symbol table nor debug information: it is stripped.
    NoSymbols,
    /// The file has symbols, and none of them covers the address.
    NoSymbolHere,
    /// No loadable segment of the file holds this file offset.
    OutsideSegments,
    /// Not a little-endian 64-bit ELF executable or shared object.
    NotElf,
    /// Headers or sections contradict each other or reach beyond the file.
    Malformed,
    /// The symbol tables are larger than [`super::MAX_SYMBOL_BYTES`].
    TooLarge,
    /// The file could not be read, or the kernel refused memory for its copy.
    Unreadable,
    /// The file was closed, because too many were in use at once or nobody mapped it any more, and could not be opened again.
    FileClosed,
    /// A parser panicked on this file; it is not parsed again.
    Panicked,
    /// A look-up in this file took longer than [`super::STALL_LIMIT`]; it is left alone for a minute.
    TooSlow,
    /// The file was written over in its place since it was mapped: what it holds now is not what ran.
    Replaced,
    /// Still waiting when the run had to end.
    NotInTime,
    /// More distinct addresses than [`super::MAX_KEYS`], or than the share of whose they are. Counted whenever one is met.
    TableFull,
    /// `/proc/kallsyms` shows no addresses: `sysctl kernel.kptr_restrict` is 2, or it is 1 and CAP_SYSLOG is missing.
    /// `sysctl -w kernel.kptr_restrict=1` and running as root name the kernel's frames.
    KernelRestricted,
    /// `/proc/kallsyms` could not be read (no CONFIG_KALLSYMS, or no /proc).
    KernelUnreadable,
    /// No function of the kernel or its modules covers the address.
    KernelUnknown,
}

/// Why a file's debug information was not used; its symbol tables were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DebugLoss {
    /// Larger than [`super::MAX_DEBUG_BYTES`].
    TooLarge,
    /// Broken, compressed in an unknown way, or not as long as it says.
    Malformed,
    /// Inlined functions nested deeper than [`super::MAX_INLINE_DEPTH`]: the parser recurses once a level.
    TooDeep,
    /// Tables shared so often that they would expand without proportion to the file.
    Expands,
    /// A separate debug file was found, and it belongs to another build.
    OtherBuild,
    /// Below its process' root there is, or may be, a separate debug file that the process may not read, or could not find.
    Private,
    /// A parser panicked, or returned an error for an address, and the symbol tables answered.
    ParserFailed,
}

/// The account of symbolization. Counts are of this run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SymbolStats {
    /// Distinct addresses asked for.
    pub requests: u64,
    /// Of these, named.
    pub resolved: u64,
    /// Of these, not named, by reason.
    pub unresolved: BTreeMap<Unresolved, u64>,
    /// Of the named ones, those that debug information gave a source line for.
    pub with_lines: u64,
    /// Files whose symbols were loaded, again if they had been evicted.
    pub loads: u64,
    /// Loaded files dropped to stay within [`super::MAX_LOADED_BYTES`].
    pub evictions: u64,
    /// Bytes of symbol tables and debug information copied out of files.
    pub bytes_copied: u64,
    /// Separate debug files used.
    pub debug_files: u64,
    /// GSYM files used, again if they had been evicted.
    pub gsym_files: u64,
    /// Files whose debug information was not used, by reason.
    pub debug_losses: BTreeMap<DebugLoss, u64>,
    /// Names or paths cut at [`super::MAX_NAME_BYTES`].
    pub names_cut: u64,
    /// Panics of parsers that were caught.
    pub panics: u64,
    /// Workers given up because a file held them longer than [`super::STALL_LIMIT`].
    pub stalls: u64,
    /// Functions of the kernel and its modules; 0 until a kernel address is asked for.
    pub kernel_symbols: u64,
}

impl SymbolStats {
    /// Counts an address without a name.
    pub(crate) fn count(&mut self, reason: Unresolved) {
        let slot = self.unresolved.entry(reason).or_default();
        *slot = slot.saturating_add(1);
    }

    /// One that was counted has its name by now, or is asked for anew.
    pub(crate) fn discount(&mut self, reason: Unresolved) {
        if let Some(slot) = self.unresolved.get_mut(&reason) {
            *slot = slot.saturating_sub(1);
        }
        self.unresolved.retain(|_, count| *count > 0);
    }

    pub(super) fn count_debug(&mut self, reason: DebugLoss) {
        let slot = self.debug_losses.entry(reason).or_default();
        *slot = slot.saturating_add(1);
    }

    /// Adds what another part of symbolization counted.
    pub(crate) fn absorb(&mut self, part: &Self) {
        let sums = [
            (&mut self.requests, part.requests),
            (&mut self.resolved, part.resolved),
            (&mut self.with_lines, part.with_lines),
            (&mut self.loads, part.loads),
            (&mut self.evictions, part.evictions),
            (&mut self.bytes_copied, part.bytes_copied),
            (&mut self.debug_files, part.debug_files),
            (&mut self.gsym_files, part.gsym_files),
            (&mut self.names_cut, part.names_cut),
            (&mut self.panics, part.panics),
            (&mut self.stalls, part.stalls),
        ];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
        self.kernel_symbols = self.kernel_symbols.max(part.kernel_symbols);
        for (reason, more) in &part.unresolved {
            let sum = self.unresolved.entry(*reason).or_default();
            *sum = sum.saturating_add(*more);
        }
        for (reason, more) in &part.debug_losses {
            let sum = self.debug_losses.entry(*reason).or_default();
            *sum = sum.saturating_add(*more);
        }
    }

    /// `requests` minus `resolved` minus all `unresolved`: addresses still waiting. 0 after the end of a run.
    pub fn waiting(&self) -> u64 {
        self.unresolved.values().fold(self.requests.saturating_sub(self.resolved), |left, n| left.saturating_sub(*n))
    }
}
