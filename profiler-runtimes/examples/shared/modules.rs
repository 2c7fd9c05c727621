//! What a process has loaded, for the examples that look into one.

use std::collections::HashMap;
use std::error::Error;
use std::fs;

use object::{File, Object, ObjectKind, ObjectSymbol};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Looks at each file that a process has loaded and that is wanted, and how far from its addresses it lies.
pub(crate) fn each(
    pid: &str,
    is_wanted: impl Fn(&str) -> bool,
    mut look: impl FnMut(&File<'_>, u64) -> Result<()>,
) -> Result<()> {
    let mut seen = Vec::new();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [range, _, "00000000", _, _, path] = words[..] else { continue };
        if seen.contains(&path) || !is_wanted(path) {
            continue;
        }
        seen.push(path);
        let (start, end) = range.split_once('-').ok_or("no range")?;
        let (start, end) = (u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?);
        let bytes = fs::read(format!("/proc/{pid}/map_files/{start:x}-{end:x}"))?;
        let file = File::parse(bytes.as_slice())?;
        let bias = if file.kind() == ObjectKind::Dynamic { start } else { 0 };
        look(&file, bias)?;
    }
    Ok(())
}

/// Adds those symbols of a file that are wanted, where it is loaded.
pub(crate) fn add_symbols(
    symbols: &mut HashMap<String, u64>,
    (file, bias): (&File<'_>, u64),
    is_wanted: impl Fn(&str) -> bool,
) -> Result<()> {
    for symbol in file.symbols().chain(file.dynamic_symbols()).filter(|symbol| symbol.is_definition()) {
        let name = symbol.name()?;
        if is_wanted(name) {
            symbols.insert(name.to_owned(), bias + symbol.address());
        }
    }
    Ok(())
}
