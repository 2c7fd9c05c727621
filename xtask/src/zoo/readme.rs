//! README's table of runtimes, made of what the zoo has recorded.

use anyhow::{Result, ensure};

use super::table::cells;

/// The block's name in README.md.
pub(super) const BLOCK: &str = "runtimes";

/// A row of README's.
struct Line {
    /// What the runtime is called.
    name: &'static str,
    /// What it is started with.
    start: &'static str,
    /// How the names of its runtimes on the zoo's command line begin.
    of: &'static [&'static str],
    /// The starts that README speaks of, as the zoo's table calls them.
    how: &'static [&'static str],
}

/// What stands for a share of nothing.
const NOTHING: &str = "–";

/// What runtimes are started with of which everything is read without.
const NO_FLAG: &str = "nothing";

const BARE: &[&str] = &["no flag", "no flag, no inlining"];

const LINES: &[Line] = &[
    Line { name: "Node.js", start: NO_FLAG, of: &["node-"], how: BARE },
    Line { name: "JVM", start: NO_FLAG, of: &["java-"], how: BARE },
    Line { name: "numba", start: NO_FLAG, of: &["numba"], how: &["no flag"] },
    Line { name: "LLVM (lli)", start: NO_FLAG, of: &["llvm-"], how: &["no flag", "no flag, frame pointers"] },
    Line {
        name: "PostgreSQL",
        start: "`jit_profiling_support = on`",
        of: &["postgresql-"],
        how: &["jit_profiling_support = on"],
    },
    Line { name: "CPython", start: NO_FLAG, of: &["python-"], how: &["no flag", "no flag, forked workers"] },
    Line { name: "Ruby", start: NO_FLAG, of: &["ruby-"], how: &["no flag", "no flag, YJIT"] },
    Line { name: "Erlang/OTP", start: NO_FLAG, of: &["erlang-"], how: &["no flag", "no flag, in a gen_server"] },
    Line { name: "wasmtime", start: "`--profile=jitdump`", of: &["wasmtime"], how: &["profiler = jitdump"] },
    Line {
        name: "Deno",
        start: "`--v8-flags=--perf-prof,…`",
        of: &["deno"],
        how: &["README's --v8-flags, no inlining", "README's --v8-flags"],
    },
    Line { name: "Bun", start: "`BUN_JSC_useJITDump=1`", of: &["bun"], how: &["BUN_JSC_useJITDump=1"] },
    Line {
        name: ".NET",
        start: "`DOTNET_PerfMapEnabled=1`",
        of: &["dotnet-"],
        how: &["COMPlus_PerfMapEnabled=1", "DOTNET_PerfMapEnabled=1, lives for seconds"],
    },
    Line { name: "Mono", start: "`--jitmap`", of: &["mono"], how: &["--jitmap"] },
    Line {
        name: "PHP",
        start: NO_FLAG,
        of: &["php-"],
        how: &[
            "no flag, JIT off",
            "no flag, JIT off, prefork",
            "no flag, JIT off, two workers",
            "no flag, function JIT",
            "no flag, tracing JIT",
            "no flag, function JIT, two workers",
        ],
    },
    Line { name: "QEMU", start: "`-jitdump`", of: &["qemu"], how: &["-jitdump"] },
];

/// A row of the zoo's, as far as README says it.
struct Recorded<'a> {
    runtime: &'a str,
    version: &'a str,
    how: &'a str,
    named: &'a str,
    complete: &'a str,
    chain: &'a str,
}

/// README's block, of the document with the zoo's table. It fails for a row that the zoo has not recorded.
pub(super) fn table(measured: &str) -> Result<String> {
    let recorded: Vec<Recorded<'_>> = measured.lines().filter_map(recorded).collect();
    let mut text = String::from(
        "| runtime | start it with | names | complete | callers | run with |\n|---|---|---|---|---|---|\n",
    );
    for line in LINES {
        let is_of = |row: &&Recorded<'_>| {
            line.of.iter().any(|name| row.runtime.starts_with(name)) && line.how.contains(&row.how)
        };
        let rows: Vec<&Recorded<'_>> = recorded.iter().filter(is_of).collect();
        ensure!(!rows.is_empty(), "the zoo's table has no row of {}; run `cargo xtask zoo --write`", line.name);
        let mut versions: Vec<&str> = rows.iter().map(|row| spoken(row.runtime, row.version)).collect();
        versions.sort_by_key(|version| spoken_number(version));
        versions.dedup();
        text += &format!(
            "| {} | {} | {} | {} | {} | {} |\n",
            line.name,
            line.start,
            least(rows.iter().map(|row| row.named)),
            least(rows.iter().map(|row| row.complete)),
            least(rows.iter().map(|row| row.chain)),
            versions.join(", ")
        );
    }
    Ok(text)
}

fn recorded(line: &str) -> Option<Recorded<'_>> {
    let [runtime, version, _, how, _, named, complete, chain, hot, ..] = cells(line)[..] else { return None };
    // Where no leaf was seen, its callers could not be.
    let chain = if hot == NOTHING { NOTHING } else { chain };
    Some(Recorded { runtime, version, how, named, complete, chain })
}

/// The version in a runtime's name on the zoo's command line, or the first two numbers of the one that it says itself.
fn spoken<'a>(runtime: &'a str, version: &'a str) -> &'a str {
    let in_name = runtime.rsplit_once('-').map(|(_, version)| version);
    in_name.unwrap_or_else(|| version.match_indices('.').nth(1).map_or(version, |(at, _)| &version[..at]))
}

/// What versions are sorted by.
fn spoken_number(version: &str) -> Vec<u32> {
    version.split('.').map(|number| number.parse().unwrap_or_default()).collect()
}

/// The least of shares such as `99.5 %`; `–` where none could be told.
fn least<'a>(shares: impl Iterator<Item = &'a str>) -> String {
    let shares = shares.filter_map(|share| share.strip_suffix(" %")?.parse::<f64>().ok());
    shares.min_by(f64::total_cmp).map_or(NOTHING.to_owned(), |share| format!("{share} %"))
}

#[cfg(test)]
mod tests {
    use super::super::runtimes::{Mode, RUNTIMES, Runtime};
    use super::*;

    const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

    fn read(path: &str) -> String {
        std::fs::read_to_string(format!("{ROOT}/{path}")).unwrap()
    }

    #[test]
    fn the_readme_says_what_the_zoo_has_recorded() {
        let made = table(&read("docs/measurements/runtimes.md")).unwrap();
        let readme = read("README.md");
        let there = readme.split_once(&format!("<!-- bench:{BLOCK} -->\n")).unwrap().1;
        let there = there.split_once(&format!("<!-- /bench:{BLOCK} -->")).unwrap().0;
        assert_eq!(there, made, "run `cargo xtask zoo --write NAME`, which makes README's table of the measurements");
    }

    #[test]
    fn what_the_readme_starts_with_nothing_the_zoo_starts_so_too() {
        for line in LINES {
            let is_of = |runtime: &&Runtime| line.of.iter().any(|name| runtime.name.starts_with(name));
            let runtimes: Vec<&Runtime> = RUNTIMES.iter().filter(is_of).collect();
            let mut modes = runtimes.iter().flat_map(|runtime| runtime.modes);
            for how in line.how {
                assert!(modes.clone().any(|mode| mode.how == *how), "no {} is started with {how}", line.name);
            }
            for runtime in &runtimes {
                let mut spoken = runtime.modes.iter().filter(|mode| line.how.contains(&mode.how)).peekable();
                assert!(spoken.peek().is_some(), "{} is started in no way that README speaks of", runtime.name);
                assert_eq!(spoken.all(Mode::is_bare), line.start == NO_FLAG, "{} in README", runtime.name);
            }
            assert!(modes.next().is_some(), "{} is not in the zoo", line.name);
        }
    }

    #[test]
    fn the_least_share_counts_and_what_could_not_be_told_does_not() {
        let recorded = |runtime: &str, how: &str, named: &str, chain: &str| {
            format!(
                "| {runtime} | 20.1.2 | 2026-11-23 | {how} | 900 | {named} | 99.5 % | {chain} | 75.0 % | none due |  |\n"
            )
        };
        let mut measured: String =
            LINES[1..].iter().map(|line| recorded(line.of[0], line.how[0], "98.0 %", "97.0 %")).collect();
        assert!(table(&measured).is_err(), "no row of the first");
        measured += &recorded("node-20", "no flag", "100.0 %", "–");
        measured += &recorded("node-20", "no flag, no inlining", "99.1 %", "100.0 %");
        measured += &recorded("node-20", "README's flags", "1.0 %", "1.0 %");
        measured += &recorded("node-9", "no flag", "100.0 %", "0.0 %").replace("75.0 %", "–");
        measured += &recorded("node-20", "no flag", "100.0 %", "100.0 %");
        let table = table(&measured).unwrap();
        assert!(table.contains("\n| Node.js | nothing | 99.1 % | 99.5 % | 100 % | 9, 20 |\n"), "{table}");
        assert!(table.contains("\n| PHP | nothing | 98 % |"), "{table}");
    }

    #[test]
    fn versions_are_as_short_as_they_are_spoken() {
        for (runtime, version, shorter) in [
            ("node-20", "20.20.2", "20"),
            ("dotnet-3.1", "3.1.23", "3.1"),
            ("numba", "0.68.1", "0.68"),
            ("bun", "1", "1"),
        ] {
            assert_eq!(spoken(runtime, version), shorter);
        }
    }
}
