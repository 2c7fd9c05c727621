//! The header of both versions, and where the tables are.

use std::fs::File;
use std::ops::Range;

use super::bytes::Bytes;
use super::cursor::Cursor;
use super::error::GsymError;
use jitprof_jitdump::ByteOrder;

const MAGIC: u32 = 0x4753_594d;
const V1_BYTES: usize = 48;
const V1_UUID_BYTES: u64 = 20;
const V2_BYTES: usize = 20;
const SECTION_BYTES: usize = 20;
/// v2 has six kinds of section; unknown ones are skipped, up to here.
const MAX_SECTIONS: u64 = 64;
/// Longest uuid: a build id of `--build-id=0x…` may be any length; the kernel reads 20 bytes, gold and lld make 32.
pub const MAX_UUID_BYTES: u64 = 64;

/// What a file says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The format's version, 1 or 2.
    pub version: u16,
    /// Byte order of the machine that wrote it.
    pub order: ByteOrder,
    /// Bytes of an entry of the address table.
    pub addr_off_size: u8,
    /// What the address table counts from.
    pub base_address: u64,
    /// How many functions the address table has.
    pub num_addresses: u32,
    /// The build id of the program, possibly empty.
    pub uuid: Vec<u8>,
    /// Files, the empty one included.
    pub num_files: u32,
    /// Bytes of the string table.
    pub strtab_size: u64,
    pub(super) tables: Tables,
}

/// Where the tables are in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tables {
    pub(super) addresses: u64,
    pub(super) infos: u64,
    /// Bytes of an entry of `infos`, and what the entries count from.
    pub(super) info_width: u8,
    pub(super) info_base: u64,
    /// The first entry of the file table, behind the count.
    pub(super) files: u64,
    pub(super) strings: Range<u64>,
    /// Bytes of a string's offset.
    pub(super) string_width: u8,
    /// Where FunctionInfos may lie.
    pub(super) functions: Range<u64>,
}

impl Header {
    /// Reads the header of an open regular file, and no more than that.
    pub(super) fn of(file: File) -> Result<Self, GsymError> {
        let length = file.metadata().map(|metadata| metadata.len());
        let length = length.map_err(|source| GsymError { offset: 0, field: "file", problem: source.into() })?;
        Self::read(&Bytes::File(file, length))
    }

    /// Reads header and section table, and checks that every table lies in the file.
    pub(super) fn read(bytes: &Bytes) -> Result<Self, GsymError> {
        let start = bytes.read(0, 8, "magic")?;
        let order = match Cursor::new(&start, 0, ByteOrder::Little).u32("magic")? {
            MAGIC => ByteOrder::Little,
            swapped if swapped == MAGIC.swap_bytes() => ByteOrder::Big,
            other => return Err(GsymError::value(0, "magic", other.into(), "is none of GSYM's")),
        };
        let mut cursor = Cursor::new(&start, 0, order);
        cursor.u32("magic")?;
        let version = cursor.uint(2, "version")?;
        match version {
            1 => Self::read_v1(bytes, order),
            2 => Self::read_v2(bytes, order),
            other => Err(GsymError::value(4, "version", other, "is neither 1 nor 2")),
        }
    }

    fn read_v1(bytes: &Bytes, order: ByteOrder) -> Result<Self, GsymError> {
        let raw = bytes.read(0, V1_BYTES, "header")?;
        let mut cursor = Cursor::new(&raw, 0, order);
        cursor.take(6, "magic and version")?;
        let addr_off_size = cursor.u8("addr_off_size")?;
        if !matches!(addr_off_size, 1 | 2 | 4 | 8) {
            return Err(GsymError::value(6, "addr_off_size", addr_off_size.into(), "is none of 1, 2, 4, 8"));
        }
        let uuid_size = u64::from(cursor.u8("uuid_size")?);
        if uuid_size > V1_UUID_BYTES {
            return Err(GsymError::value(7, "uuid_size", uuid_size, "is more than 20"));
        }
        let base_address = cursor.u64("base_address")?;
        let num_addresses = cursor.u32("num_addresses")?;
        let strings = u64::from(cursor.u32("strtab_offset")?);
        let strtab_size = u64::from(cursor.u32("strtab_size")?);
        let uuid = cursor.bytes(uuid_size, "uuid")?.to_vec();
        let count = u64::from(num_addresses);
        // Widths are 8 at most and counts 32 bits: no sum comes near 64 bits.
        let addresses = 48_u64.next_multiple_of(addr_off_size.into());
        let infos = (addresses + count * u64::from(addr_off_size)).next_multiple_of(4);
        let file_table = infos + count * 4;
        within(bytes, 16, "num_addresses", file_table)?;
        within(bytes, 24, "strtab_size", strings + strtab_size)?;
        let num_files = Cursor::new(&bytes.read(file_table, 4, "file count")?, file_table, order).u32("file count")?;
        let files = file_table + 4;
        within(bytes, file_table, "file count", files + u64::from(num_files) * 8)?;
        let tables = Tables {
            addresses,
            infos,
            info_width: 4,
            info_base: 0,
            files,
            strings: strings..strings + strtab_size,
            string_width: 4,
            functions: 48..bytes.len(),
        };
        Ok(Self { version: 1, order, addr_off_size, base_address, num_addresses, uuid, num_files, strtab_size, tables })
    }

    fn read_v2(bytes: &Bytes, order: ByteOrder) -> Result<Self, GsymError> {
        let raw = bytes.read(0, V2_BYTES, "header")?;
        let mut cursor = Cursor::new(&raw, 0, order);
        cursor.take(6, "magic and version")?;
        let addr_off_size = cursor.u8("addr_off_size")?;
        if !(1..=8).contains(&addr_off_size) {
            return Err(GsymError::value(6, "addr_off_size", addr_off_size.into(), "is not from 1 to 8"));
        }
        let encoding = cursor.u8("string encoding")?;
        if encoding != 0 {
            return Err(GsymError::value(7, "string encoding", encoding.into(), "is not 0"));
        }
        let base_address = cursor.u64("base_address")?;
        let num_addresses = cursor.u32("num_addresses")?;
        let sections = Sections::read(bytes, order)?;
        let count = u64::from(num_addresses);
        let addresses = sections.holding(Sections::ADDRESSES, count * u64::from(addr_off_size))?;
        let infos = sections.holding(Sections::INFOS, count * 8)?;
        let files = sections.holding(Sections::FILES, 4)?;
        let strings = sections.holding(Sections::STRINGS, 0)?;
        let functions = sections.holding(Sections::FUNCTIONS, 0)?;
        let num_files =
            Cursor::new(&bytes.read(files.start, 4, "file count")?, files.start, order).u32("file count")?;
        if u64::from(num_files) * 16 > files.end - files.start - 4 {
            return Err(GsymError::value(files.start, "file count", num_files.into(), "files are more than fit"));
        }
        let uuid = match sections.find(Sections::UUID) {
            Some(uuid) => read_uuid(bytes, &uuid)?,
            None => Vec::new(),
        };
        let strtab_size = strings.end - strings.start;
        let tables = Tables {
            addresses: addresses.start,
            infos: infos.start,
            info_width: 8,
            info_base: functions.start,
            files: files.start + 4,
            strings,
            string_width: 8,
            functions,
        };
        Ok(Self { version: 2, order, addr_off_size, base_address, num_addresses, uuid, num_files, strtab_size, tables })
    }
}

fn read_uuid(bytes: &Bytes, section: &Range<u64>) -> Result<Vec<u8>, GsymError> {
    let size = section.end - section.start;
    let length = usize::try_from(size).ok().filter(|_| size <= MAX_UUID_BYTES);
    let length = length.ok_or(GsymError::value(section.start, "uuid", size, "bytes are more than 64"))?;
    Ok(bytes.read(section.start, length, "uuid")?.into_owned())
}

fn within(bytes: &Bytes, offset: u64, field: &'static str, end: u64) -> Result<(), GsymError> {
    if end <= bytes.len() { Ok(()) } else { Err(GsymError::truncated(offset, field, end, bytes.len())) }
}

/// v2's section table: type, and bytes of the file.
struct Sections(Vec<(u32, Range<u64>)>);

impl Sections {
    const ADDRESSES: (u32, &str) = (1, "address offsets");
    const INFOS: (u32, &str) = (2, "address-info offsets");
    const STRINGS: (u32, &str) = (3, "string table");
    const FILES: (u32, &str) = (4, "file table");
    const FUNCTIONS: (u32, &str) = (5, "FunctionInfo section");
    const UUID: u32 = 6;

    fn read(bytes: &Bytes, order: ByteOrder) -> Result<Self, GsymError> {
        let mut found: Vec<(u32, Range<u64>)> = Vec::new();
        let mut at = 20_u64;
        for _ in 0..MAX_SECTIONS {
            let raw = bytes.read(at, SECTION_BYTES, "section table")?;
            let mut cursor = Cursor::new(&raw, at, order);
            let kind = cursor.u32("section type")?;
            let start = cursor.u64("section offset")?;
            let size = cursor.u64("section size")?;
            if kind == 0 {
                return Ok(Self(found));
            }
            let end = start.checked_add(size).filter(|end| *end <= bytes.len());
            let end =
                end.ok_or(GsymError::truncated(at + 4, "section size", start.saturating_add(size), bytes.len()))?;
            if found.iter().any(|(known, _)| *known == kind) {
                return Err(GsymError::value(at, "section type", kind.into(), "is there twice"));
            }
            found.push((kind, start..end));
            at += 20;
        }
        Err(GsymError::value(at, "section table", MAX_SECTIONS, "sections, and no end"))
    }

    fn find(&self, kind: u32) -> Option<Range<u64>> {
        self.0.iter().find(|(known, _)| *known == kind).map(|(_, range)| range.clone())
    }

    /// A section that must be there, of at least `bytes`.
    fn holding(&self, (kind, name): (u32, &'static str), bytes: u64) -> Result<Range<u64>, GsymError> {
        let found = self.find(kind).ok_or(GsymError::value(20, name, kind.into(), "is the type of no section"))?;
        let left = found.end - found.start;
        if left < bytes { Err(GsymError::truncated(found.start, name, bytes, left)) } else { Ok(found) }
    }
}
