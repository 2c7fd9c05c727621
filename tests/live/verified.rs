//! The verified size of the BPF programs, and its committed ceilings.

use anyhow::{Context, Result, bail};

/// A line for each program, see there.
const CEILINGS: &str = include_str!("../verified.txt");

/// A program as `jitprof --check` lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedProgram {
    /// Its name.
    pub name: String,
    /// Instructions that the verifier walked through; `None` where the kernel does not tell (before 5.16).
    pub instructions: Option<u64>,
    /// How many are allowed.
    pub ceiling: u64,
}

/// Reads what `jitprof --check` printed.
///
/// # Errors
/// It lists no program, one without a ceiling, or one above its ceiling.
pub fn verified_programs(check: &str) -> Result<Vec<VerifiedProgram>> {
    let mut programs = Vec::new();
    for line in check.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, instructions) = match words[..] {
            ["program", name, "verified"] => (name, None),
            ["program", name, count, "instructions", "verified"] => (name, Some(count.parse()?)),
            _ => continue,
        };
        let ceiling = ceiling(name)?;
        if instructions.is_some_and(|count| count > ceiling) {
            bail!("{name}: {instructions:?} instructions verified, more than its ceiling {ceiling} in verified.txt");
        }
        programs.push(VerifiedProgram { name: name.to_owned(), instructions, ceiling });
    }
    if programs.is_empty() {
        bail!("`jitprof --check` lists no program: {check}");
    }
    Ok(programs)
}

fn ceiling(program: &str) -> Result<u64> {
    let lines = CEILINGS.lines().filter_map(|line| line.split_once(' '));
    let (_, ceiling) =
        lines.into_iter().find(|(name, _)| *name == program).with_context(|| format!("{program} has no ceiling"))?;
    ceiling.trim().parse().with_context(|| format!("the ceiling of {program} is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_above_its_ceiling_or_without_one_is_an_error() {
        assert!(verified_programs("program sampler 999999 instructions verified\n").is_err());
        assert!(verified_programs("program stranger 1 instructions verified\n").is_err());
        assert!(verified_programs("kernel 6.1\n").is_err());
        let read = verified_programs("kernel 5.10\nprogram walker verified\nprogram sampler 2 instructions verified\n");
        let read: Vec<_> = read.unwrap().into_iter().map(|program| (program.name, program.instructions)).collect();
        assert_eq!(read, [("walker".to_owned(), None), ("sampler".to_owned(), Some(2))]);
    }
}
