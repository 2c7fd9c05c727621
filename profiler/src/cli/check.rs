//! `--check`: whether this kernel can be used, without a recording.

use std::io::{self, Write};

use crate::kernel::{KernelError, Sampler, SamplerOptions, Selection};

/// Why the check failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckError {
    /// The kernel cannot be used.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The findings cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

/// Loads and attaches everything that a recording would, besides the programs for other kernels that this one takes,
/// and prints a line for each fact: a word, then its value.
///
/// ```text
/// kernel     6.1.0-56-cloud-amd64
/// walk       bpf_loop
/// event      cpu-clock on 2 CPUs
/// program    sampler 7721 instructions verified
/// ```
///
/// # Errors
/// A recording would fail.
pub(super) fn print() -> Result<(), CheckError> {
    // Everything that programs have branches for; nobody is a member, so nothing is sampled.
    let options = SamplerOptions {
        frequency_hz: 99,
        event: None,
        selection: Selection::Matching { users: vec![0], members: true },
        children: true,
        kernel_stack: true,
        user_stack: true,
        rows: true,
        unwind_mib: None,
        log: false,
        registrations: false,
    };
    let mut sampler = Sampler::load(&options)?;
    sampler.start(&options)?;
    let mut out = io::stdout().lock();
    writeln!(out, "kernel     {}", std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim())?;
    writeln!(out, "walk       {}", sampler.variant().describe())?;
    writeln!(out, "event      {} on {} CPUs", sampler.event().name(), sampler.cpus().len())?;
    for verified in sampler.verify_all()? {
        match verified.instructions {
            Some(count) => writeln!(out, "program    {} {count} instructions verified", verified.program)?,
            // Before 5.16 the kernel does not tell.
            None => writeln!(out, "program    {} verified", verified.program)?,
        }
    }
    Ok(())
}
