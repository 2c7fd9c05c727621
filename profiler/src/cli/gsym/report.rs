//! What a GSYM file says, with its strings in place of their offsets.

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::gsym::{CallSite, FunctionInfo, Gsym, GsymError, Header, InlineNode};
use jitprof_jitdump::ByteOrder;
use jitprof_unwind::elf;

/// Paths kept at once.
const MAX_PATHS: usize = 1 << 16;

/// What a file's header says.
#[derive(Debug, Serialize)]
pub(super) struct FileReport {
    pub(super) version: u16,
    pub(super) big_endian: bool,
    pub(super) uuid: String,
    pub(super) base_address: u64,
    pub(super) address_bytes: u8,
    pub(super) functions: u32,
    pub(super) files: u32,
    pub(super) string_bytes: u64,
}

/// A FunctionInfo with everything in it.
#[derive(Debug, Serialize)]
pub(super) struct FunctionReport {
    pub(super) start: u64,
    pub(super) size: u32,
    pub(super) name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) lines: Vec<LineReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inline: Option<InlineReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) merged: Vec<FunctionReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) call_sites: Vec<CallSiteReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unknown: Vec<UnknownReport>,
}

#[derive(Debug, Serialize)]
pub(super) struct LineReport {
    pub(super) address: u64,
    pub(super) file: Option<String>,
    pub(super) line: u32,
}

/// An inlined function; at the root, the function itself.
#[derive(Debug, Serialize)]
pub(super) struct InlineReport {
    /// First address, and the one behind the last.
    pub(super) ranges: Vec<(u64, u64)>,
    pub(super) name: Option<String>,
    pub(super) call_file: Option<String>,
    pub(super) call_line: u32,
    pub(super) children: Vec<InlineReport>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct CallSiteReport {
    pub(super) return_address: u64,
    pub(super) internal: bool,
    pub(super) external: bool,
    /// The byte as the file has it.
    pub(super) flags: u8,
    pub(super) patterns: Vec<String>,
}

/// An item of a type that this version does not know.
#[derive(Debug, Serialize)]
pub(super) struct UnknownReport {
    pub(super) info_type: u32,
    pub(super) bytes: u32,
}

/// What lies at an address.
#[derive(Debug, Serialize)]
pub(super) struct AddressReport {
    pub(super) address: u64,
    /// `None`: no function covers it.
    pub(super) found: Option<FoundReport>,
    /// Why what lies there cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct FoundReport {
    pub(super) start: u64,
    pub(super) size: u32,
    /// Innermost first; the last one is the function.
    pub(super) frames: Vec<FrameReport>,
    /// Other names of the same code.
    pub(super) merged: Vec<String>,
    /// The calls that return to this address.
    pub(super) call_sites: Vec<CallSiteReport>,
}

#[derive(Debug, Serialize)]
pub(super) struct FrameReport {
    pub(super) name: String,
    pub(super) file: Option<String>,
    pub(super) line: u32,
    pub(super) inlined: bool,
}

impl FileReport {
    pub(super) fn of(header: &Header) -> Self {
        Self {
            version: header.version,
            big_endian: header.order == ByteOrder::Big,
            uuid: elf::hex(&header.uuid),
            base_address: header.base_address,
            address_bytes: header.addr_off_size,
            functions: header.num_addresses,
            files: header.num_files,
            string_bytes: header.strtab_size,
        }
    }
}

/// Reads and remembers paths.
pub(super) struct Reporter<'a> {
    gsym: &'a Gsym,
    paths: FxHashMap<u32, Option<String>>,
}

impl<'a> Reporter<'a> {
    pub(super) fn new(gsym: &'a Gsym) -> Self {
        Self { gsym, paths: FxHashMap::default() }
    }

    /// Everything about a function.
    pub(super) fn function(&mut self, index: u32) -> Result<FunctionReport, GsymError> {
        self.report(&self.gsym.function(index)?)
    }

    /// What lies at an address.
    pub(super) fn at(&mut self, address: u64) -> AddressReport {
        match self.found_at(address) {
            Ok(found) => AddressReport { address, found, error: None },
            Err(error) => AddressReport { address, found: None, error: Some(error.to_string()) },
        }
    }

    fn found_at(&mut self, address: u64) -> Result<Option<FoundReport>, GsymError> {
        let Some(found) = self.gsym.lookup(address)? else {
            return Ok(None);
        };
        let function = self.gsym.function(found.index)?;
        let mut merged = Vec::new();
        for other in &function.merged {
            merged.push(self.gsym.string(other.name)?);
        }
        let mut call_sites = Vec::new();
        for site in function.call_sites.iter().filter(|site| returns_to(site, &function) == Some(address)) {
            call_sites.push(self.call_site(site, &function)?);
        }
        let frames = found.places.into_iter().map(|place| FrameReport {
            name: place.name,
            file: place.file,
            line: place.line,
            inlined: place.inlined,
        });
        let frames = frames.collect();
        Ok(Some(FoundReport { start: found.start, size: found.size, frames, merged, call_sites }))
    }

    fn report(&mut self, function: &FunctionInfo) -> Result<FunctionReport, GsymError> {
        let mut lines = Vec::new();
        for row in &function.lines {
            lines.push(LineReport { address: row.address, file: self.path(row.file)?, line: row.line });
        }
        let mut merged = Vec::new();
        for other in &function.merged {
            merged.push(self.report(other)?);
        }
        let mut call_sites = Vec::new();
        for site in &function.call_sites {
            call_sites.push(self.call_site(site, function)?);
        }
        let unknown =
            function.unknown.iter().map(|(info_type, bytes)| UnknownReport { info_type: *info_type, bytes: *bytes });
        Ok(FunctionReport {
            start: function.start,
            size: function.size,
            name: self.gsym.string(function.name)?,
            lines,
            inline: function.inline.as_ref().map(|root| self.inline(root)).transpose()?,
            merged,
            call_sites,
            unknown: unknown.collect(),
        })
    }

    fn inline(&mut self, node: &InlineNode) -> Result<InlineReport, GsymError> {
        let mut children = Vec::new();
        for child in &node.children {
            children.push(self.inline(child)?);
        }
        Ok(InlineReport {
            ranges: node.ranges.iter().map(|range| (range.start, range.end)).collect(),
            name: (node.name != 0).then(|| self.gsym.string(node.name)).transpose()?,
            call_file: self.path(node.call_file)?,
            call_line: node.call_line,
            children,
        })
    }

    fn call_site(&self, site: &CallSite, function: &FunctionInfo) -> Result<CallSiteReport, GsymError> {
        let patterns = site.patterns.iter().map(|pattern| self.gsym.string(*pattern)).collect::<Result<_, _>>()?;
        Ok(CallSiteReport {
            return_address: returns_to(site, function).unwrap_or(u64::MAX),
            internal: site.flags & 1 != 0,
            external: site.flags & 2 != 0,
            flags: site.flags,
            patterns,
        })
    }

    fn path(&mut self, file: u32) -> Result<Option<String>, GsymError> {
        if let Some(known) = self.paths.get(&file) {
            return Ok(known.clone());
        }
        let path = self.gsym.file(file)?;
        if self.paths.len() >= MAX_PATHS {
            self.paths.clear();
        }
        self.paths.insert(file, path.clone());
        Ok(path)
    }
}

fn returns_to(site: &CallSite, function: &FunctionInfo) -> Option<u64> {
    function.start.checked_add(site.return_offset)
}
