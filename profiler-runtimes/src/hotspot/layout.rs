//! Where HotSpot keeps what: the tables that it publishes of its own classes.

use std::collections::HashMap;

use jitprof_common::units::Avma;

use crate::{Memory, ReadError, Reader, Symbols};

/// Entries that a table may have; those of JDK 17 to 26 have at most 1600.
const MAX_ENTRIES: u32 = 8192;
/// Bytes that an entry may have; it has 24 to 48.
const MAX_STRIDE: u64 = 256;
/// Bytes that a class of the runtime may have; the largest that is read has 480.
const MAX_CLASS: u64 = 4096;
/// Bytes of a name that are read. Longer ones are cut, and are none of those that are looked for.
const MAX_NAME: usize = 64;
/// The first version whose compressed numbers leave out the byte 0.
const NUMBERS_WITHOUT_ZERO: u32 = 20;
/// The first version in which code that may no longer be entered is either used by a frame or freed.
const NO_DEAD_CODE: u32 = 20;
/// Before, from this state on, code is no longer used but not freed yet (zombie, unloaded).
const DEAD: i64 = 3;
/// The option with which compilers say of every instruction which method it is of, and its value's origin, of which these are
/// of the runtime's start: command line, environment, file of options.
const EVERY_INSTRUCTION: &[u8] = b"DebugNonSafepoints";
const ORIGIN: i64 = 0xf;
const AT_START: std::ops::RangeInclusive<i64> = 1..=3;
/// The option with which compiled code keeps a frame pointer.
const FRAME_POINTERS: &[u8] = b"PreserveFramePointer";
/// Bytes of an object that are read at once without asking for memory.
const AT_ONCE: usize = 64;
/// The oldest version whose tables have all that is looked for under a name that is known.
const OLDEST: u32 = 17;

/// The first version with virtual threads that are no preview, and the size of a `ContinuationEntry` in those that do not say it.
const VIRTUAL_THREADS: u32 = 21;
const CONTINUATION_ENTRY: u32 = 56;

/// Why the layout of a runtime is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The module has no such tables: it is no HotSpot, or one without them.
    #[error("the module does not export {0}")]
    NoTables(&'static str),
    /// A table could not be read.
    #[error("HotSpot's tables could not be read: {0}")]
    Unreadable(#[from] ReadError),
    /// The tables are there, but not everything that is needed is in them.
    #[error("HotSpot {version} does not say where it keeps {}", missing.join(", "))]
    Missing {
        /// What the runtime says of itself.
        version: Version,
        /// Classes and fields.
        missing: Vec<String>,
    },
    /// A version whose data have another form.
    #[error("HotSpot {0} is older than JDK 17")]
    TooOld(Version),
}

/// The version of a runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// The JDK's, as in 21.
    pub major: u32,
    /// What the runtime calls itself, as in `21.0.2+13-LTS`.
    pub release: String,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.release.is_empty() { f.write_str("of unknown version") } else { f.write_str(&self.release) }
    }
}

/// How a field is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Signed8,
    Unsigned16,
    Signed16,
    Signed32,
    Word,
}

/// A field of one of the runtime's classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    offset: u16,
    width: Width,
}

impl Field {
    const NONE: Self = Self { offset: 0, width: Width::Word };

    fn bytes(self) -> usize {
        match self.width {
            Width::Signed8 => 1,
            Width::Unsigned16 | Width::Signed16 => 2,
            Width::Signed32 => 4,
            Width::Word => 8,
        }
    }

    /// What an object that was read has there; 0 if it was not read as far.
    pub(super) fn of(self, object: &[u8]) -> i64 {
        let from = usize::from(self.offset);
        // Where there are enough bytes, those behind the field as well: they are cut off.
        if let Some(word) = object.get(from..).and_then(<[u8]>::first_chunk) {
            return self.extended(u64::from_le_bytes(*word));
        }
        let mut word = [0; 8];
        if let Some(bytes) = object.get(from..from + self.bytes()) {
            word[..bytes.len()].copy_from_slice(bytes);
        }
        self.extended(u64::from_le_bytes(word))
    }

    /// The same, where it is an address.
    pub(super) fn address_of(self, object: &[u8]) -> Avma {
        Avma(self.of(object).cast_unsigned())
    }

    fn extended(self, word: u64) -> i64 {
        let word = word.cast_signed();
        match self.width {
            Width::Signed8 => i64::from(word as i8),
            Width::Unsigned16 => word & 0xffff,
            Width::Signed16 => i64::from(word as i16),
            Width::Signed32 => i64::from(word as i32),
            Width::Word => word,
        }
    }

    /// What the object at an address has there.
    pub(super) fn read<M: Memory>(self, reader: &Reader<M>, object: Avma) -> Result<i64, ReadError> {
        let mut word = [0; 8];
        reader.bytes(plus(object, u64::from(self.offset))?, &mut word[..self.bytes()])?;
        Ok(self.extended(u64::from_le_bytes(word)))
    }

    /// The same, where it is an address. It may be null.
    pub(super) fn pointer<M: Memory>(self, reader: &Reader<M>, object: Avma) -> Result<Avma, ReadError> {
        self.read(reader, object).map(|word| Avma(word.cast_unsigned()))
    }

    /// The same of an object of which it has been fetched.
    pub(super) fn fetched<M: Memory>(self, reader: &Reader<M>, object: Avma) -> Option<i64> {
        let mut word = [0; 8];
        reader.fetched(self.within(object).ok()?, &mut word[..self.bytes()])?;
        Some(self.extended(u64::from_le_bytes(word)))
    }

    /// The same, where it is an address.
    pub(super) fn fetched_pointer<M: Memory>(self, reader: &Reader<M>, object: Avma) -> Option<Avma> {
        self.fetched(reader, object).map(|word| Avma(word.cast_unsigned()))
    }

    /// Where it lies in an object, and its bytes.
    pub(super) fn place(self, object: Avma) -> Option<(Avma, usize)> {
        Some((self.within(object).ok()?, self.bytes()))
    }

    /// The address of the field itself.
    pub(super) fn within(self, object: Avma) -> Result<Avma, ReadError> {
        plus(object, u64::from(self.offset))
    }

    /// How far into an object it lies.
    pub(super) fn offset(self) -> u16 {
        self.offset
    }
}

/// Fields of one object, which are read at once: to look up where its bytes are kept costs more than to copy some more of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<const N: usize> {
    each: [Field; N],
    /// How far into the object the first one lies, and the bytes up to the end of the last.
    from: u16,
    bytes: usize,
}

impl<const N: usize> Fields<N> {
    pub(super) fn new(each: [Field; N]) -> Self {
        let from = each.iter().map(|field| field.offset).min().unwrap_or(0);
        let end = |field: &Field| usize::from(field.offset - from) + field.bytes();
        Self { each, from, bytes: each.iter().map(end).max().unwrap_or(0) }
    }

    /// Where they lie in an object, and the bytes of all.
    pub(super) fn place(&self, object: Avma) -> Option<(Avma, usize)> {
        Some((plus(object, self.from.into()).ok()?, self.bytes))
    }

    /// What the object at an address has there.
    pub(super) fn read<M: Memory>(&self, reader: &Reader<M>, object: Avma) -> Result<[i64; N], ReadError> {
        let start = plus(object, self.from.into())?;
        self.filled(|room| reader.bytes(start, room))
    }

    /// The same of an object of which they have been fetched.
    pub(super) fn fetched<M: Memory>(&self, reader: &Reader<M>, object: Avma) -> Option<[i64; N]> {
        let start = plus(object, self.from.into()).ok()?;
        self.filled(|room| reader.fetched(start, room).ok_or(())).ok()
    }

    /// What is in room for all of them once it is filled.
    fn filled<E>(&self, fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<[i64; N], E> {
        let (mut near, mut far) = ([0_u8; AT_ONCE], Vec::<u8>::new());
        let room: &mut [u8] = if let Some(room) = near.get_mut(..self.bytes) {
            room
        } else {
            far.resize(self.bytes, 0);
            &mut far
        };
        fill(room)?;
        let object: &[u8] = room;
        Ok(self.each.map(|field| Field { offset: field.offset - self.from, ..field }.of(object)))
    }
}

/// An address further on.
pub(super) fn plus(address: Avma, bytes: u64) -> Result<Avma, ReadError> {
    address.0.checked_add(bytes).map(Avma).ok_or(ReadError::Unreadable(address.0))
}

/// Where the code of a blob begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// To JDK 22: two addresses.
    Addresses(Field, Field),
    /// Since: two distances from the blob's start.
    Distances(Field, Field),
}

/// Where compiled code keeps its entries, as far as they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entries {
    /// To JDK 22: addresses, of which the verified one is kept.
    Address(Field),
    /// Since: a distance from the start of the code.
    Distance(Field),
}

/// Where compiled code keeps what says which method is at which address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Debug {
    /// To JDK 22, all behind the code: metadata, scopes (by address), addresses with their scopes, dependencies.
    Behind { metadata: Field, scopes: Field, pcs: Field, end: Field },
    /// From JDK 25 on, outside the code cache: addresses with their scopes, then scopes; metadata elsewhere.
    Apart { data: Field, size: Field, pcs: Field, scopes: Field, metadata: Metadata },
}

/// Where the metadata of compiled code lie, if its scopes lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Metadata {
    /// JDK 23 and 24: behind the code, at a distance from its end.
    Behind(Field),
    /// From JDK 25 on, behind the relocations, wherever these lie.
    Apart { data: Field, size: Field, relocations: Field },
}

/// The blobs of the code cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlobLayout {
    pub(super) name: Field,
    pub(super) size: Field,
    pub(super) extent: Extent,
    pub(super) frame_size: Field,
    pub(super) frame_complete: Field,
    /// Bytes of the header that every blob has.
    pub(super) bytes: u64,
}

/// Compiled methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CompiledLayout {
    pub(super) method: Field,
    pub(super) compile_id: Field,
    pub(super) level: Field,
    pub(super) entry_bci: Field,
    pub(super) state: Field,
    pub(super) osr_entry: Field,
    pub(super) verified_entry: Entries,
    pub(super) orig_pc: Field,
    /// An address to JDK 22, a distance from the blob's start since.
    pub(super) deopt: Field,
    /// That is where the handler begins; from JDK 26 on, where it is entered, which is behind its call.
    pub(super) is_deopt_begin: bool,
    /// The same at calls of method handles, in versions that tell them apart.
    pub(super) deopt_handle: Option<Field>,
    pub(super) debug: Debug,
    /// Bytes of the header.
    pub(super) bytes: u64,
}

/// Where threads keep where they have entered a virtual thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContinuationLayout {
    /// Not said before JDK 25.
    pub(super) entry: Option<u16>,
    /// Bytes of what lies there.
    pub(super) bytes: u32,
}

/// The heaps of the code cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeapLayout {
    /// The address of a pointer to the array of heaps.
    pub(super) heaps: Avma,
    pub(super) array_length: Field,
    pub(super) array_data: Field,
    pub(super) memory: Field,
    pub(super) segment_map: Field,
    pub(super) log2_segment: Field,
    pub(super) space_low: Field,
    pub(super) space_high: Field,
    pub(super) space_end: Field,
    pub(super) block_length: Field,
    pub(super) block_used: Field,
    pub(super) block_bytes: u64,
}

/// Methods, their classes and names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MethodLayout {
    pub(super) const_method: Field,
    pub(super) constants: Field,
    pub(super) const_flags: Field,
    pub(super) const_has_lines: i64,
    pub(super) code_size: Field,
    pub(super) name_index: Field,
    pub(super) signature_index: Field,
    pub(super) const_method_bytes: u64,
    pub(super) pool_holder: Field,
    pub(super) pool_source_file: Field,
    pub(super) pool_length: Field,
    pub(super) pool_bytes: u64,
    pub(super) klass_name: Field,
    pub(super) symbol_length: Field,
    pub(super) symbol_body: Field,
}

/// Addresses of compiled code with their scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PcLayout {
    pub(super) pc: Field,
    pub(super) scope: Field,
    pub(super) bytes: u64,
}

/// The codelets of the interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodeletLayout {
    /// The address of a pointer to the queue of codelets.
    pub(super) queue: Avma,
    pub(super) buffer: Field,
    pub(super) begin: Field,
    pub(super) end: Field,
    pub(super) size: Field,
    pub(super) description: Field,
}

/// Threads and where their last frame of Java is.
#[cfg(any(test, feature = "recorded"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThreadLayout {
    pub(super) list: Avma,
    pub(super) length: Field,
    pub(super) threads: Field,
    pub(super) os_thread: Field,
    pub(super) thread_id: Field,
    pub(super) anchor: Field,
    pub(super) last_sp: Field,
    pub(super) last_pc: Field,
    pub(super) last_fp: Field,
    pub(super) wrapper_anchor: Field,
    pub(super) call_stub_return: Avma,
    pub(super) entry_wrapper_words: i64,
}

/// Where a runtime keeps what. It is the same for as long as the process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    version: Version,
    pub(super) heap: HeapLayout,
    pub(super) blob: BlobLayout,
    pub(super) compiled: CompiledLayout,
    pub(super) method: MethodLayout,
    pub(super) pcs: PcLayout,
    pub(super) codelets: CodeletLayout,
    /// Whether compiled code has a scope for every instruction: the next one's, as everywhere.
    pub(super) is_dense: bool,
    loses_frame_pointers: bool,
    /// The address of a pointer to what is counted for tools, if that is said.
    pub(super) counters: Option<Avma>,
    /// In versions that have virtual threads.
    pub(super) continuation: Option<ContinuationLayout>,
    #[cfg(any(test, feature = "recorded"))]
    pub(super) threads: Option<ThreadLayout>,
}

impl Layout {
    /// Reads the tables.
    ///
    /// # Errors
    /// There are none, they cannot be read, or something that is needed is not in them.
    pub fn read<S: Symbols, M: Memory>(symbols: S, reader: &Reader<M>) -> Result<Self, LayoutError> {
        let tables = Tables::read(&symbols, reader)?;
        let version = tables.version(reader)?;
        let mut wanted = Wanted { tables: &tables, missing: Vec::new() };
        let layout = Self {
            heap: wanted.heap(),
            blob: wanted.blob(),
            compiled: wanted.compiled(),
            method: wanted.method(),
            pcs: wanted.pcs(),
            codelets: wanted.codelets(),
            // Where that cannot be read, places are taken for what they are without the option.
            is_dense: tables.is_every_instruction_known(reader).unwrap_or(false),
            // Likewise they are taken to be kept.
            loses_frame_pointers: matches!(tables.option(reader, FRAME_POINTERS), Ok(Some((false, _)))),
            counters: wanted.maybe_shared("PerfMemory", "_start"),
            continuation: wanted.continuation(&version),
            #[cfg(any(test, feature = "recorded"))]
            threads: Wanted { tables: &tables, missing: Vec::new() }.threads(),
            version,
        };
        // Versions that are too old miss something as well; the age says it better.
        if (1..OLDEST).contains(&layout.version.major) {
            return Err(LayoutError::TooOld(layout.version));
        }
        if !wanted.missing.is_empty() {
            return Err(LayoutError::Missing { version: layout.version, missing: wanted.missing });
        }
        Ok(layout)
    }

    /// The version of the runtime.
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// Whether compiled code is known to keep no frame pointer.
    pub fn loses_frame_pointers(&self) -> bool {
        self.loses_frame_pointers
    }

    /// Whether a compiled method with this header is no longer used by anything, though it is not freed yet.
    pub(super) fn is_dead(&self, object: &[u8]) -> bool {
        let zombie = self.version.major < NO_DEAD_CODE && self.compiled.state.of(object) >= DEAD;
        zombie || self.compiled.method.of(object) == 0
    }

    /// Where the lines of a method are, behind what never changes of it and so many bytes of bytecodes.
    pub(super) fn lines_behind(&self, constant: Avma, bytes: u64) -> Result<Avma, ReadError> {
        plus(plus(constant, self.method.const_method_bytes)?, bytes)
    }

    /// How much is added to each byte of a compressed number.
    pub(super) fn number_bias(&self) -> u8 {
        u8::from(self.version.major >= NUMBERS_WITHOUT_ZERO)
    }
}

/// A field as the table has it.
#[derive(Clone, Copy, Debug)]
enum Entry {
    At(Field),
    Static(Avma),
}

/// The tables that are read, each by name.
struct Tables {
    fields: HashMap<(Vec<u8>, Vec<u8>), Entry>,
    sizes: HashMap<Vec<u8>, u64>,
    constants: HashMap<Vec<u8>, i64>,
}

/// A table: where it begins, and how far into an entry its parts are.
struct Table<const N: usize> {
    start: Avma,
    stride: u64,
    parts: [u64; N],
}

impl<const N: usize> Table<N> {
    fn find<S: Symbols, M: Memory>(
        symbols: &S,
        reader: &Reader<M>,
        names: [&'static str; 2],
        parts: [&'static str; N],
    ) -> Result<Self, LayoutError> {
        let word = |name: &'static str| -> Result<u64, LayoutError> {
            Ok(reader.u64(symbols.address_of(name).ok_or(LayoutError::NoTables(name))?)?)
        };
        let [start, stride] = names;
        let (start, stride) = (Avma(word(start)?), word(stride)?);
        let mut at = [0; N];
        for (at, name) in at.iter_mut().zip(parts) {
            *at = word(name)?;
        }
        if !(8..=MAX_STRIDE).contains(&stride) || at.iter().any(|at| *at >= stride) {
            return Err(ReadError::Malformed { what: "table of HotSpot's classes", address: start.0 }.into());
        }
        Ok(Self { start, stride, parts: at })
    }

    /// Gives the addresses of each entry's parts, the first of which is that of its name, till a name is null.
    fn each<M: Memory>(
        &self,
        reader: &Reader<M>,
        mut entry: impl FnMut(Vec<u8>, [Avma; N]) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        for index in 0..u64::from(MAX_ENTRIES) {
            let at = plus(self.start, index * self.stride)?;
            let parts = self.parts.map(|part| Avma(at.0.saturating_add(part)));
            let name = reader.pointer(parts[0])?;
            if name.0 == 0 {
                return Ok(());
            }
            entry(reader.c_string(name, MAX_NAME)?, parts)?;
        }
        Err(ReadError::Malformed { what: "end of a table", address: self.start.0 })
    }
}

impl Tables {
    fn read<S: Symbols, M: Memory>(symbols: &S, reader: &Reader<M>) -> Result<Self, LayoutError> {
        let mut tables = Self { fields: HashMap::new(), sizes: HashMap::new(), constants: HashMap::new() };
        Table::find(
            symbols,
            reader,
            ["gHotSpotVMStructs", "gHotSpotVMStructEntryArrayStride"],
            [
                "gHotSpotVMStructEntryTypeNameOffset",
                "gHotSpotVMStructEntryFieldNameOffset",
                "gHotSpotVMStructEntryTypeStringOffset",
                "gHotSpotVMStructEntryIsStaticOffset",
                "gHotSpotVMStructEntryOffsetOffset",
                "gHotSpotVMStructEntryAddressOffset",
            ],
        )?
        .each(reader, |class, [_, field, kind, is_static, offset, address]| {
            let field = reader.c_string(reader.pointer(field)?, MAX_NAME)?;
            let entry = if reader.i32(is_static)? != 0 {
                Some(Entry::Static(reader.pointer(address)?))
            } else {
                let kind = reader.pointer(kind)?;
                let kind = if kind.0 == 0 { Vec::new() } else { reader.c_string(kind, MAX_NAME)? };
                let offset = u16::try_from(reader.u64(offset)?).ok().filter(|offset| u64::from(*offset) <= MAX_CLASS);
                offset.map(|offset| Entry::At(Field { offset, width: width(&kind) }))
            };
            if let Some(entry) = entry {
                tables.fields.insert((class, field), entry);
            }
            Ok(())
        })?;
        Table::find(
            symbols,
            reader,
            ["gHotSpotVMTypes", "gHotSpotVMTypeEntryArrayStride"],
            ["gHotSpotVMTypeEntryTypeNameOffset", "gHotSpotVMTypeEntrySizeOffset"],
        )?
        .each(reader, |class, [_, size]| {
            let size = reader.u64(size)?;
            if size <= MAX_CLASS {
                tables.sizes.insert(class, size);
            }
            Ok(())
        })?;
        Table::find(
            symbols,
            reader,
            ["gHotSpotVMIntConstants", "gHotSpotVMIntConstantEntryArrayStride"],
            ["gHotSpotVMIntConstantEntryNameOffset", "gHotSpotVMIntConstantEntryValueOffset"],
        )?
        .each(reader, |name, [_, value]| {
            tables.constants.insert(name, i64::from(reader.i32(value)?));
            Ok(())
        })?;
        Ok(tables)
    }

    fn field(&self, class: &str, field: &str) -> Option<Entry> {
        self.fields.get(&(class.as_bytes().to_vec(), field.as_bytes().to_vec())).copied()
    }

    /// Whether the runtime was started so that it knows of every instruction which method it is of. A debugger or profiler may
    /// ask for it later: then older code has nothing of it.
    fn is_every_instruction_known<M: Memory>(&self, reader: &Reader<M>) -> Result<bool, ReadError> {
        let option = self.option(reader, EVERY_INSTRUCTION)?;
        Ok(option.is_some_and(|(is_set, origin)| is_set && AT_START.contains(&origin)))
    }

    /// Whether an option that is on or off is on, and where its value comes from; nothing if there is no such option.
    fn option<M: Memory>(&self, reader: &Reader<M>, wanted: &[u8]) -> Result<Option<(bool, i64)>, ReadError> {
        let at = |field| match self.field("JVMFlag", field) {
            Some(Entry::At(field)) => Some(field),
            _ => None,
        };
        let word = |field| match self.field("JVMFlag", field) {
            Some(Entry::Static(address)) => Some(address),
            _ => None,
        };
        let size = self.sizes.get(b"JVMFlag".as_slice());
        let (Some(name), Some(value), Some(flags), Some(size)) = (at("_name"), at("_addr"), at("_flags"), size) else {
            return Ok(None);
        };
        let (Some(first), Some(count)) = (word("flags"), word("numFlags")) else { return Ok(None) };
        let (first, count) = (reader.pointer(first)?, reader.u64(count)?);
        for index in 0..count.min(u64::from(MAX_ENTRIES)) {
            let option = plus(first, index * size)?;
            let name = name.pointer(reader, option)?;
            if name.0 != 0 && reader.c_string(name, MAX_NAME)? == wanted {
                let is_set = value.pointer(reader, option)?;
                let is_set = Field { offset: 0, width: Width::Signed8 }.read(reader, is_set)? != 0;
                return Ok(Some((is_set, flags.read(reader, option)? & ORIGIN)));
            }
        }
        Ok(None)
    }

    fn version<M: Memory>(&self, reader: &Reader<M>) -> Result<Version, ReadError> {
        let word = |field| match self.field("Abstract_VM_Version", field) {
            Some(Entry::Static(address)) => Some(address),
            _ => None,
        };
        let major = word("_vm_major_version").map_or(Ok(0), |at| reader.u32(at))?;
        let release = word("_s_vm_release").map_or(Ok(Avma(0)), |at| reader.pointer(at))?;
        let release = if release.0 == 0 { Vec::new() } else { reader.c_string(release, MAX_NAME)? };
        // What is printed shall not be able to control a terminal.
        let release = release.into_iter().filter(u8::is_ascii_graphic).map(char::from).collect();
        Ok(Version { major, release })
    }
}

/// How a field of this type of C++ is read.
fn width(kind: &[u8]) -> Width {
    match kind {
        b"bool" | b"u1" | b"volatile signed char" | b"CompLevel" => Width::Signed8,
        b"u2" => Width::Unsigned16,
        b"int16_t" => Width::Signed16,
        b"int" | b"unsigned int" | b"const uint" | b"uint32_t" | b"u4" | b"pid_t" | b"OSThread::thread_id_t" => {
            Width::Signed32
        }
        _ => Width::Word,
    }
}

/// Looks things up, and keeps a list of what is not there.
struct Wanted<'t> {
    tables: &'t Tables,
    missing: Vec<String>,
}

impl Wanted<'_> {
    /// A field that is there under one of several names: of another version each, the newest first.
    fn any(&mut self, names: &[(&str, &str)]) -> Field {
        self.maybe(names).unwrap_or_else(|| {
            self.missing.extend(names.first().map(|(class, field)| format!("{class}::{field}")));
            Field::NONE
        })
    }

    fn maybe(&self, names: &[(&str, &str)]) -> Option<Field> {
        names.iter().find_map(|(class, field)| match self.tables.field(class, field)? {
            Entry::At(field) => Some(field),
            Entry::Static(_) => None,
        })
    }

    fn one(&mut self, class: &str, field: &str) -> Field {
        self.any(&[(class, field)])
    }

    fn shared(&mut self, class: &str, field: &str) -> Avma {
        self.maybe_shared(class, field).unwrap_or_else(|| {
            self.missing.push(format!("{class}::{field}"));
            Avma(0)
        })
    }

    fn maybe_shared(&self, class: &str, field: &str) -> Option<Avma> {
        match self.tables.field(class, field) {
            Some(Entry::Static(address)) => Some(address),
            _ => None,
        }
    }

    fn size(&mut self, class: &str) -> u64 {
        let size = self.tables.sizes.get(class.as_bytes()).copied().filter(|size| *size > 0);
        size.unwrap_or_else(|| {
            self.missing.push(format!("the size of {class}"));
            1
        })
    }

    fn continuation(&self, version: &Version) -> Option<ContinuationLayout> {
        if version.major < VIRTUAL_THREADS {
            return None;
        }
        let size = self.tables.sizes.get(b"ContinuationEntry".as_slice()).copied();
        let entry = self.maybe(&[("JavaThread", "_cont_entry")]).map(Field::offset);
        let bytes = size.map_or(Some(CONTINUATION_ENTRY), |size| u32::try_from(size).ok())?;
        ((1..=MAX_CLASS).contains(&bytes.into())).then_some(ContinuationLayout { entry, bytes })
    }

    fn heap(&mut self) -> HeapLayout {
        HeapLayout {
            heaps: self.shared("CodeCache", "_heaps"),
            array_length: self.any(&[("GrowableArrayBase", "_len"), ("GenericGrowableArray", "_len")]),
            array_data: self.one("GrowableArray<int>", "_data"),
            memory: self.one("CodeHeap", "_memory"),
            segment_map: self.one("CodeHeap", "_segmap"),
            log2_segment: self.one("CodeHeap", "_log2_segment_size"),
            space_low: self.one("VirtualSpace", "_low"),
            space_high: self.one("VirtualSpace", "_high"),
            space_end: self.one("VirtualSpace", "_high_boundary"),
            block_length: self.one("HeapBlock::Header", "_length"),
            block_used: self.one("HeapBlock::Header", "_used"),
            block_bytes: self.size("HeapBlock"),
        }
    }

    fn blob(&mut self) -> BlobLayout {
        let distances = self.maybe(&[("CodeBlob", "_code_offset")]);
        let extent = if let Some(begin) = distances {
            Extent::Distances(begin, self.one("CodeBlob", "_data_offset"))
        } else {
            Extent::Addresses(self.one("CodeBlob", "_code_begin"), self.one("CodeBlob", "_code_end"))
        };
        BlobLayout {
            name: self.one("CodeBlob", "_name"),
            size: self.one("CodeBlob", "_size"),
            extent,
            frame_size: self.one("CodeBlob", "_frame_size"),
            frame_complete: self.one("CodeBlob", "_frame_complete_offset"),
            bytes: self.size("CodeBlob"),
        }
    }

    fn compiled(&mut self) -> CompiledLayout {
        let verified = self.maybe(&[("nmethod", "_verified_entry_offset")]);
        let verified_entry = match verified {
            Some(distance) => Entries::Distance(distance),
            None => Entries::Address(self.one("nmethod", "_verified_entry_point")),
        };
        let debug = if let Some(data) = self.maybe(&[("nmethod", "_immutable_data")]) {
            let metadata = if let Some(data) = self.maybe(&[("CodeBlob", "_mutable_data")]) {
                let size = self.one("CodeBlob", "_mutable_data_size");
                Metadata::Apart { data, size, relocations: self.one("CodeBlob", "_relocation_size") }
            } else {
                Metadata::Behind(self.one("nmethod", "_metadata_offset"))
            };
            Debug::Apart {
                data,
                size: self.any(&[("nmethod", "_immutable_data_ref_count_offset"), ("nmethod", "_immutable_data_size")]),
                pcs: self.one("nmethod", "_scopes_pcs_offset"),
                scopes: self.one("nmethod", "_scopes_data_offset"),
                metadata,
            }
        } else {
            Debug::Behind {
                metadata: self.one("nmethod", "_metadata_offset"),
                scopes: self.one("CompiledMethod", "_scopes_data_begin"),
                pcs: self.one("nmethod", "_scopes_pcs_offset"),
                end: self.one("nmethod", "_dependencies_offset"),
            }
        };
        CompiledLayout {
            method: self.any(&[("nmethod", "_method"), ("CompiledMethod", "_method")]),
            compile_id: self.one("nmethod", "_compile_id"),
            level: self.one("nmethod", "_comp_level"),
            entry_bci: self.one("nmethod", "_entry_bci"),
            state: self.one("nmethod", "_state"),
            osr_entry: self.one("nmethod", "_osr_entry_point"),
            verified_entry,
            orig_pc: self.one("nmethod", "_orig_pc_offset"),
            deopt: self.any(&[
                ("nmethod", "_deopt_handler_entry_offset"),
                ("nmethod", "_deopt_handler_offset"),
                ("CompiledMethod", "_deopt_handler_begin"),
            ]),
            is_deopt_begin: self.maybe(&[("nmethod", "_deopt_handler_entry_offset")]).is_none(),
            deopt_handle: self
                .maybe(&[("nmethod", "_deopt_mh_handler_offset"), ("CompiledMethod", "_deopt_mh_handler_begin")]),
            debug,
            bytes: self.size("nmethod"),
        }
    }

    fn method(&mut self) -> MethodLayout {
        let flag = ["ConstMethodFlags::_misc_has_linenumber_table", "ConstMethod::_has_linenumber_table"];
        let const_has_lines = flag.iter().find_map(|name| self.tables.constants.get(name.as_bytes()).copied());
        if const_has_lines.is_none() {
            self.missing.push(flag[0].to_owned());
        }
        MethodLayout {
            const_method: self.one("Method", "_constMethod"),
            constants: self.one("ConstMethod", "_constants"),
            const_flags: self.any(&[("ConstMethod", "_flags._flags"), ("ConstMethod", "_flags")]),
            const_has_lines: const_has_lines.unwrap_or(0),
            code_size: self.one("ConstMethod", "_code_size"),
            name_index: self.one("ConstMethod", "_name_index"),
            signature_index: self.one("ConstMethod", "_signature_index"),
            const_method_bytes: self.size("ConstMethod"),
            pool_holder: self.one("ConstantPool", "_pool_holder"),
            pool_source_file: self.one("ConstantPool", "_source_file_name_index"),
            pool_length: self.one("ConstantPool", "_length"),
            pool_bytes: self.size("ConstantPool"),
            klass_name: self.one("Klass", "_name"),
            symbol_length: self.one("Symbol", "_length"),
            symbol_body: self.any(&[("Symbol", "_body[0]"), ("Symbol", "_body")]),
        }
    }

    fn pcs(&mut self) -> PcLayout {
        PcLayout {
            pc: self.one("PcDesc", "_pc_offset"),
            scope: self.one("PcDesc", "_scope_decode_offset"),
            bytes: self.size("PcDesc"),
        }
    }

    fn codelets(&mut self) -> CodeletLayout {
        CodeletLayout {
            queue: self.shared("AbstractInterpreter", "_code"),
            buffer: self.one("StubQueue", "_stub_buffer"),
            begin: self.one("StubQueue", "_queue_begin"),
            end: self.one("StubQueue", "_queue_end"),
            size: self.one("InterpreterCodelet", "_size"),
            description: self.one("InterpreterCodelet", "_description"),
        }
    }

    /// Threads are read for proofs only, so that a version without them is as good as any.
    #[cfg(any(test, feature = "recorded"))]
    fn threads(mut self) -> Option<ThreadLayout> {
        let layout = ThreadLayout {
            list: self.shared("ThreadsSMRSupport", "_java_thread_list"),
            length: self.one("ThreadsList", "_length"),
            threads: self.one("ThreadsList", "_threads"),
            os_thread: self.any(&[("Thread", "_osthread"), ("JavaThread", "_osthread")]),
            thread_id: self.one("OSThread", "_thread_id"),
            anchor: self.one("JavaThread", "_anchor"),
            last_sp: self.one("JavaFrameAnchor", "_last_Java_sp"),
            last_pc: self.one("JavaFrameAnchor", "_last_Java_pc"),
            last_fp: self.one("JavaFrameAnchor", "_last_Java_fp"),
            wrapper_anchor: self.one("JavaCallWrapper", "_anchor"),
            call_stub_return: self.shared("StubRoutines", "_call_stub_return_address"),
            entry_wrapper_words: self
                .tables
                .constants
                .get(b"frame::entry_frame_call_wrapper_offset".as_slice())
                .copied()?,
        };
        self.missing.is_empty().then_some(layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Budget;
    use crate::replay::Bytes;

    #[test]
    fn fields_of_an_object_are_read_at_once_however_far_apart_they_are() {
        let field = |offset, width| Field { offset, width };
        let bytes: Vec<u8> = (0..=255).cycle().take(4096).collect();
        let object = Avma(0x1000);
        for (last, length) in [(3, 14), (64, 64), (65, 65), (0xf00, 0xf00)] {
            let reader = Reader::new(Bytes(bytes.clone()), Budget { pages: 1, steps: 4 });
            let each = [field(8, Width::Word), field(2, Width::Signed8), field(last, Width::Unsigned16)];
            let fields = Fields::new(each);
            assert_eq!(fields.place(object), Some((Avma(0x1002), length)), "{last}");
            assert_eq!(fields.fetched(&reader, object), None, "{last}");
            let values = fields.read(&reader, object).unwrap();
            assert_eq!((reader.left().steps, fields.fetched(&reader, object)), (3, Some(values)), "{last}");
            assert_eq!(values, each.map(|field| field.read(&reader, object).unwrap()), "{last}");
            assert_eq!(fields.read(&reader, Avma(u64::MAX)), Err(ReadError::Unreadable(u64::MAX)), "{last}");
        }
    }
}
