//! What `jitprof gsym show` lists, as text. Names come from the file and are made printable.

use std::fmt;

use super::report::{AddressReport, CallSiteReport, FileReport, FunctionReport, InlineReport};
use crate::profile::printable;

impl fmt::Display for FileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = if self.big_endian { "big" } else { "little" };
        let uuid = if self.uuid.is_empty() { "none" } else { &self.uuid };
        writeln!(f, "GSYM version {}, {order} endian, uuid {uuid}", self.version)?;
        writeln!(
            f,
            "{} functions from {:#x} (offsets of {} bytes), {} files, {} bytes of strings",
            self.functions, self.base_address, self.address_bytes, self.files, self.string_bytes
        )
    }
}

impl fmt::Display for FunctionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, 0)
    }
}

impl FunctionReport {
    fn write(&self, f: &mut fmt::Formatter<'_>, indent: usize) -> fmt::Result {
        let end = self.start.saturating_add(self.size.into());
        writeln!(f, "{:indent$}{:#x}..{end:#x} {}", "", self.start, printable(&self.name))?;
        let indent = indent + 4;
        for row in &self.lines {
            writeln!(f, "{:indent$}{:#x} {}", "", row.address, place(row.file.as_deref(), row.line))?;
        }
        for child in self.inline.iter().flat_map(|root| &root.children) {
            child.write(f, indent)?;
        }
        for site in &self.call_sites {
            writeln!(f, "{:indent$}call that returns to {:#x}{site}", "", site.return_address)?;
        }
        for unknown in &self.unknown {
            let (kind, bytes) = (unknown.info_type, unknown.bytes);
            writeln!(f, "{:indent$}{bytes} bytes of the unknown type {kind}", "")?;
        }
        for other in &self.merged {
            writeln!(f, "{:indent$}merged into it:", "")?;
            other.write(f, indent + 4)?;
        }
        Ok(())
    }
}

impl InlineReport {
    fn write(&self, f: &mut fmt::Formatter<'_>, indent: usize) -> fmt::Result {
        write!(f, "{:indent$}inlined", "")?;
        for (start, end) in &self.ranges {
            write!(f, " {start:#x}..{end:#x}")?;
        }
        let name = self.name.as_deref().unwrap_or_default();
        let place = place(self.call_file.as_deref(), self.call_line);
        writeln!(f, " {}, called at {place}", printable(name))?;
        self.children.iter().try_for_each(|child| child.write(f, indent + 4))
    }
}

impl fmt::Display for CallSiteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (set, name) in [(self.internal, ", internal"), (self.external, ", external")] {
            f.write_str(if set { name } else { "" })?;
        }
        if self.flags & !3 != 0 {
            write!(f, ", flags {:#x}", self.flags)?;
        }
        self.patterns.iter().try_for_each(|pattern| write!(f, ", to {}", printable(pattern)))
    }
}

impl fmt::Display for AddressReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = format!("{:#x}", self.address);
        let Some(found) = &self.found else {
            return match &self.error {
                Some(error) => writeln!(f, "{address} cannot be read: {error}"),
                None => writeln!(f, "{address} is in no function"),
            };
        };
        let indent = address.len();
        let offset = self.address.saturating_sub(found.start);
        for (depth, frame) in found.frames.iter().enumerate() {
            let head = if depth == 0 { address.as_str() } else { "" };
            write!(f, "{head:indent$} {}", printable(&frame.name))?;
            if !frame.inlined {
                write!(f, "+{offset:#x}")?;
            }
            write!(f, " at {}", place(frame.file.as_deref(), frame.line))?;
            writeln!(f, "{}", if frame.inlined { ", inlined" } else { "" })?;
        }
        for name in &found.merged {
            writeln!(f, "{:indent$} merged into it: {}", "", printable(name))?;
        }
        for site in &found.call_sites {
            writeln!(f, "{:indent$} a call returns here{site}", "")?;
        }
        Ok(())
    }
}

fn place(file: Option<&str>, line: u32) -> String {
    match (file, line) {
        (None, 0) => "?".to_owned(),
        (None, line) => format!("?:{line}"),
        (Some(file), 0) => printable(file).into_owned(),
        (Some(file), line) => format!("{}:{line}", printable(file)),
    }
}
