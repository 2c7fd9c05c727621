//! The signature-like names of the JVM and of .NET.

use super::{JitName, builtin, function};
use crate::symbol::Tier;

/// Blobs that HotSpot announces under a plain word; the user's methods always have a class.
const JVM_STUBS: [&str; 9] = [
    "Interpreter",
    "I2C/C2I adapters",
    "flush_icache_stub",
    "call_stub",
    "vtable stub",
    "itable stub",
    "DeoptimizationBlob",
    "SafepointBlob",
    "ExceptionBlob",
];

/// `LCLASS;METHOD(ARGUMENTS)RESULT` of perf's agent or `LCLASS;::METHOD` of perf-map-agent: the class in Java's
/// notation, the argument types as they are, since overloads differ in them only.
pub(super) fn jvm(name: &str) -> Option<JitName> {
    if JVM_STUBS.contains(&name) || name.starts_with("StubRoutines (") {
        return Some(builtin(name));
    }
    let (name, tier) = compiler(name);
    let (class, method) = name.strip_prefix('L')?.split_once(';')?;
    let method = method.strip_prefix("::").unwrap_or(method);
    let plausible = !class.is_empty() && !method.is_empty() && !class.contains([' ', '(', ':']);
    plausible.then(|| JitName { tier, ..function(format!("{}.{method}", class.replace('/', "."))) })
}

/// Which of HotSpot's compilers made the code, or that it is interpreted, where its own tables were read.
fn compiler(name: &str) -> (&str, Option<Tier>) {
    let compilers = [
        (" [C2]", Tier::Optimized),
        (" [C1]", Tier::Mid),
        (" [C1, counting]", Tier::Baseline),
        (" [interpreted]", Tier::Interpreted),
    ];
    let by = compilers.iter().find_map(|(mark, tier)| Some((name.strip_suffix(mark)?, Some(*tier))));
    by.unwrap_or((name, None))
}

/// `[instance ]RESULT [ASSEMBLY] TYPE::METHOD(ARGUMENTS)[TIER]`: type, method and arguments are kept.
///
/// The tier is there unless `DOTNET_PerfMapShowOptimizationTiers=0`; words from CoreCLR's `vm/perfmap.cpp`. Code
/// compiled ahead of time (`PreJIT`) is optimised but without what tier 1 knows; it gets no tier.
pub(super) fn dotnet(name: &str) -> Option<JitName> {
    let (signature, tier) = match name.strip_suffix(']').and_then(|name| name.rsplit_once('[')) {
        Some((signature, word)) => (signature, tier(word)?),
        None => (name, None),
    };
    // The result can name assemblies too: the last one before the method is its own.
    let head = signature.split('(').next().unwrap_or(signature);
    let method_at = head.rfind("::")?;
    let assembly_end = head[..method_at].rfind("] ")?;
    Some(JitName { tier, ..function(&signature[assembly_end + 2..]) })
}

/// `None` for a word that is no tier, `Some(None)` for one that says nothing about optimisation.
fn tier(word: &str) -> Option<Option<Tier>> {
    Some(match word {
        "OptimizedTier1" | "Optimized" | "OptimizedTier1OSR" => Some(Tier::Optimized),
        "QuickJitted" | "Tier0" | "MinOptJitted" | "Instrumented" | "InstrumentedTier0" => Some(Tier::Baseline),
        "OptimizedTierOSR" | "InstrumentedTier1" | "OptimizedTier1Instrumented" => Some(Tier::Mid),
        "PreJIT" | "ReadyToRun" | "Unknown" => None,
        _ => return None,
    })
}
