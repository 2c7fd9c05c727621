//! Where V8 keeps what, for the version that the process runs.
//!
//! V8 is built with symbols (`v8dbg_…`) whose values are offsets, instance types and indices. What a version has lost
//! of them has a fallback here, each with the versions for which it is known to hold.

use std::fmt;

use jitprof_common::units::Avma;

use super::positions::Steps;
use crate::{Memory, ReadError, Reader, Symbols};

/// Bytes of a tagged word: no pointer compression, which node's builds do not use.
pub(super) const WORD: u64 = 8;
/// Bits that a small integer lies above.
const SMI_SHIFT: u32 = 32;
/// Bytes of what an exit of optimised code calls; Node 20 has 832.
const MAX_LEFT_BY: u64 = 4096;
/// Bytecodes that there can be at most, for one byte names them.
const MAX_BYTECODES: usize = 256;

/// A version of V8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// As in `11.3.244`: 11.
    pub major: u32,
    /// 3.
    pub minor: u32,
    /// 244.
    pub build: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}.{}.{}", self.major, self.minor, self.build)
    }
}

/// Why a process's V8 cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The module does not say which version of V8 it has: it has none, or its symbols are gone.
    #[error("no symbols of V8's version")]
    NoVersion,
    /// How this version keeps its tables is not known.
    #[error("V8 {0} is not known")]
    UnknownVersion(Version),
    /// The build lacks something that cannot be made up for.
    #[error("V8 {version} does not say {what}")]
    Missing {
        /// The version.
        version: Version,
        /// The symbol that would have it.
        what: &'static str,
    },
    /// What the build says cannot be.
    #[error("V8 {version} says what cannot be for {what}")]
    Implausible {
        /// The version.
        version: Version,
        /// The symbol.
        what: &'static str,
    },
    /// The module's data could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Offsets, types and indices of one build of V8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    version: Version,
    pub(super) map_type: u64,
    pub(super) types: Types,
    pub(super) strings: Strings,
    pub(super) code: Code,
    pub(super) function: Function,
    pub(super) shared: Shared,
    pub(super) scope: Scope,
    pub(super) script: Script,
    pub(super) bytecode: Bytecode,
    pub(super) deopt: Deopt,
    pub(super) frame: Frame,
    pub(super) steps: Steps,
    pub(super) own: Own,
}

/// V8's own compiled code in the module, each from its beginning to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) all: Option<(u64, u64)>,
    /// What enters the interpreter. A bytecode's call returns there.
    pub(super) entry: Option<(u64, u64)>,
    /// What runs bytecodes: the last of all.
    pub(super) handlers: Option<(u64, u64)>,
    /// What exits of optimised code call.
    pub(super) left_by: Option<(u64, u64)>,
}

/// Instance types, as maps have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Types {
    pub(super) code: u16,
    pub(super) instruction_stream: u16,
    pub(super) bytecode_array: u16,
    pub(super) shared: u16,
    pub(super) scope: u16,
    pub(super) script: u16,
    pub(super) interpreter_data: u16,
    pub(super) shared_wrapper: Option<u16>,
    pub(super) functions: (u16, u16),
    pub(super) first_nonstring: u16,
    /// Arrays of tagged words with their length before them.
    pub(super) arrays: Vec<u16>,
    /// Arrays of bytes with their length before them.
    pub(super) bytes: Vec<u16>,
    /// What a function has that was never compiled, or whose code was thrown away.
    pub(super) uncompiled: Vec<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Strings {
    pub(super) representation: u16,
    pub(super) encoding: u16,
    pub(super) one_byte: u16,
    pub(super) cons: u16,
    pub(super) external: u16,
    pub(super) sliced: u16,
    pub(super) thin: u16,
    pub(super) length: u64,
    pub(super) chars: u64,
    pub(super) first: u64,
    pub(super) second: u64,
    pub(super) parent: u64,
    pub(super) offset: u64,
    pub(super) actual: u64,
    pub(super) resource: u64,
}

impl Strings {
    /// The word with a string's hash and, behind that, its length.
    pub(super) fn print(&self) -> u64 {
        self.length - self.length % WORD
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) deopt: u64,
    pub(super) positions: u64,
    pub(super) stream: u64,
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) flags: u64,
    pub(super) kind_mask: u32,
    pub(super) kind_shift: u32,
    pub(super) interpreted: u32,
    pub(super) baseline: u32,
    pub(super) maglev: u32,
    pub(super) turbofan: u32,
    pub(super) regexp: u32,
    /// Bytes of an instruction stream before its first instruction.
    pub(super) header: u64,
    /// The code object of an instruction stream.
    pub(super) of_stream: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) shared: u64,
    pub(super) code: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    pub(super) data: u64,
    pub(super) name_or_scope: u64,
    pub(super) script: u64,
    pub(super) flags: u64,
    pub(super) literal: u64,
    pub(super) of_wrapper: u64,
    pub(super) bytecode_of_interpreter_data: u64,
    pub(super) inferred_name: u64,
    pub(super) start_position: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scope {
    pub(super) first_variable: u64,
    pub(super) context_locals: u64,
    /// Of a fixed place, or behind the names.
    pub(super) start: Option<u64>,
    /// Flags are the value of a small integer.
    pub(super) tagged_flags: bool,
    pub(super) module_scope: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Script {
    pub(super) source: u64,
    pub(super) name: u64,
    pub(super) line_offset: u64,
    pub(super) column_offset: u64,
    pub(super) line_ends: u64,
    pub(super) id: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bytecode {
    pub(super) length: u64,
    pub(super) positions: u64,
    pub(super) data: u64,
    /// Bytes of each bytecode with its operands, in three sizes. Empty if the build does not tell.
    pub(super) sizes: [Vec<u8>; 3],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Deopt {
    pub(super) length: u64,
    pub(super) data: u64,
    pub(super) inlined_count: u64,
    pub(super) literals: u64,
    pub(super) optimization_id: u64,
    pub(super) shared: u64,
    pub(super) inlining: u64,
    /// Where the exits begin; then how many there are of either kind, and what is known of each.
    pub(super) exits: u64,
}

/// Offsets from the frame pointer, and what stands for frames that are no function's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) context: i16,
    pub(super) function: i16,
    pub(super) bytecode_array: i16,
    pub(super) bytecode_offset: i16,
    pub(super) wasm: Option<u64>,
    pub(super) regexp: Option<u64>,
}

/// Reads constants, and says which is missing.
struct Constants<'a, S, M> {
    symbols: &'a S,
    reader: &'a Reader<M>,
    version: Version,
}

impl<S: Symbols, M: Memory> Constants<'_, S, M> {
    /// The value of the first of these symbols that the build has.
    fn find(&self, names: &[&'static str]) -> Result<Option<i32>, LayoutError> {
        for name in names {
            if let Some(at) = self.symbols.address_of(&format!("v8dbg_{name}")) {
                return Ok(Some(self.reader.i32(at)?));
            }
        }
        Ok(None)
    }

    fn need(&self, names: &[&'static str]) -> Result<i32, LayoutError> {
        let what = names.first().copied().unwrap_or_default();
        self.find(names)?.ok_or(LayoutError::Missing { version: self.version, what })
    }

    /// An offset within an object, which never has thousands of bytes before what is looked for.
    fn offset(&self, names: &[&'static str]) -> Result<u64, LayoutError> {
        self.checked(names, self.need(names)?)
    }

    fn offset_or(&self, names: &[&'static str], fallback: u64) -> Result<u64, LayoutError> {
        self.find(names)?.map_or(Ok(fallback), |value| self.checked(names, value))
    }

    fn checked(&self, names: &[&'static str], value: i32) -> Result<u64, LayoutError> {
        let what = names.first().copied().unwrap_or_default();
        let implausible = LayoutError::Implausible { version: self.version, what };
        u64::try_from(value).ok().filter(|value| *value < 4096).ok_or(implausible)
    }

    fn small(&self, names: &[&'static str]) -> Result<u16, LayoutError> {
        let what = names.first().copied().unwrap_or_default();
        u16::try_from(self.need(names)?).map_err(|_| LayoutError::Implausible { version: self.version, what })
    }

    fn small_or(&self, names: &[&'static str], fallback: u16) -> Result<u16, LayoutError> {
        if self.find(names)?.is_some() { self.small(names) } else { Ok(fallback) }
    }

    fn types(&self, names: &[&'static str]) -> Result<Vec<u16>, LayoutError> {
        let found = names.iter().filter(|name| self.symbols.address_of(&format!("v8dbg_{name}")).is_some());
        found.map(|name| self.small(&[name])).collect()
    }

    /// A slot's offset from the frame pointer: within the bytes below it that are taken with each frame.
    fn slot(&self, name: &'static str) -> Result<i16, LayoutError> {
        let implausible = LayoutError::Implausible { version: self.version, what: name };
        let value = i16::try_from(self.need(&[name])?).ok();
        value.filter(|value| (-64..0).contains(value) && value % 8 == 0).ok_or(implausible)
    }

    /// What stands in the context's slot of a frame of this kind.
    fn marker(&self, name: &'static str) -> Result<Option<u64>, LayoutError> {
        Ok(self.find(&[name])?.and_then(|kind| u64::try_from(kind).ok()).map(|kind| kind << 1))
    }
}

impl Layout {
    /// Reads what the process's V8 says of itself. Once for each process: none of it changes.
    ///
    /// # Errors
    /// The module has no V8, one whose version is not known, or one that was built without what is needed.
    pub fn read<S: Symbols, M: Memory>(symbols: &S, reader: &Reader<M>) -> Result<Self, LayoutError> {
        let version = version(symbols, reader)?;
        let known = (version.major, version.minor) == (11, 3) || (12, 4) <= (version.major, version.minor);
        if !known || version.major > 14 {
            return Err(LayoutError::UnknownVersion(version));
        }
        let constants = Constants { symbols, reader, version };
        let scope = scope(&constants)?;
        Ok(Self {
            version,
            map_type: constants.offset(&["class_Map__instance_type__uint16_t"])?,
            types: types(&constants)?,
            strings: strings(&constants)?,
            code: code(&constants)?,
            function: function(&constants)?,
            shared: shared(&constants)?,
            scope,
            script: script(&constants)?,
            bytecode: bytecode(&constants)?,
            deopt: deopt(&constants)?,
            frame: Frame {
                context: constants.slot("off_fp_context")?,
                function: constants.slot("off_fp_function")?,
                bytecode_array: constants.slot("off_fp_bytecode_array")?,
                bytecode_offset: constants.slot("off_fp_bytecode_offset")?,
                wasm: constants.marker("frametype_WasmFrame")?,
                regexp: constants.marker("frametype_IrregexpFrame")?,
            },
            // The second bit came with Node 25 at the latest; Node 24 does not have it.
            steps: if version.major >= 14 { Steps::Shifted } else { Steps::Signed },
            own: own_code(symbols, reader)?,
        })
    }

    /// The version of V8.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether the lines of baseline code can be told: their tables count bytecodes, whose sizes not every build tells.
    pub fn has_bytecode_sizes(&self) -> bool {
        !self.bytecode.sizes[0].is_empty()
    }
}

fn version<S: Symbols, M: Memory>(symbols: &S, reader: &Reader<M>) -> Result<Version, LayoutError> {
    let part = |name: &str| -> Result<u32, LayoutError> {
        let at = symbols.address_of(&format!("_ZN2v88internal7Version6{name}_E")).ok_or(LayoutError::NoVersion)?;
        Ok(reader.u32(at)?)
    };
    Ok(Version { major: part("major")?, minor: part("minor")?, build: part("build")? })
}

fn own_code<S: Symbols, M: Memory>(symbols: &S, reader: &Reader<M>) -> Result<Own, LayoutError> {
    let address = |name| symbols.address_of(name).map(|at| at.0);
    let start = address("v8_Default_embedded_blob_code_");
    let end = match (start, symbols.address_of("v8_Default_embedded_blob_code_size_")) {
        (Some(start), Some(size)) => start.checked_add(u64::from(reader.u32(size)?)),
        _ => None,
    };
    let entry = address("Builtins_InterpreterEntryTrampoline");
    // The two have been neighbours for as long as there is the second.
    let behind = address("Builtins_InterpreterEntryTrampolineForProfiling");
    // So have these, of which the second has the instructions of the first, with another number in them.
    let left_by = address("Builtins_DeoptimizationEntry_Eager").zip(address("Builtins_DeoptimizationEntry_Lazy"));
    let left_by = left_by.and_then(|(eager, lazy)| {
        let bytes = lazy.checked_sub(eager).filter(|bytes| (1..=MAX_LEFT_BY).contains(bytes))?;
        Some((eager, lazy.checked_add(bytes)?))
    });
    Ok(Own {
        all: start.zip(end),
        entry: entry.zip(behind).filter(|(entry, behind)| entry < behind),
        handlers: address("Builtins_WideHandler").zip(end),
        left_by,
    })
}

/// From 12.4 on, a code object points back to what a sandbox would see of it. The fields before it have not moved since.
fn wrapped(version: Version) -> bool {
    (version.major, version.minor) >= (12, 4)
}

fn types<S: Symbols, M: Memory>(constants: &Constants<'_, S, M>) -> Result<Types, LayoutError> {
    let first = constants.small(&["FirstJSFunctionType", "type_JSFunction__JS_FUNCTION_TYPE"])?;
    // 11.3 has no `LastJSFunctionType`; it has 15 kinds of functions that differ by what constructs them.
    let last = constants.small_or(&["LastJSFunctionType"], first.saturating_add(14))?;
    Ok(Types {
        code: constants.small(&["type_Code__CODE_TYPE"])?,
        instruction_stream: constants.small(&["type_InstructionStream__INSTRUCTION_STREAM_TYPE"])?,
        bytecode_array: constants.small(&["type_BytecodeArray__BYTECODE_ARRAY_TYPE"])?,
        shared: constants.small(&["type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE"])?,
        scope: constants.small(&["type_ScopeInfo__SCOPE_INFO_TYPE"])?,
        script: constants.small(&["type_Script__SCRIPT_TYPE"])?,
        interpreter_data: constants.small(&["type_InterpreterData__INTERPRETER_DATA_TYPE"])?,
        shared_wrapper: constants
            .types(&["type_SharedFunctionInfoWrapper__SHARED_FUNCTION_INFO_WRAPPER_TYPE"])?
            .first()
            .copied(),
        functions: (first, last),
        first_nonstring: constants.small(&["FirstNonstringType"])?,
        arrays: constants.types(&[
            "type_FixedArray__FIXED_ARRAY_TYPE",
            "type_WeakFixedArray__WEAK_FIXED_ARRAY_TYPE",
            "type_TrustedFixedArray__TRUSTED_FIXED_ARRAY_TYPE",
            "type_ProtectedFixedArray__PROTECTED_FIXED_ARRAY_TYPE",
            "type_TrustedWeakFixedArray__TRUSTED_WEAK_FIXED_ARRAY_TYPE",
        ])?,
        bytes: constants
            .types(&["type_ByteArray__BYTE_ARRAY_TYPE", "type_TrustedByteArray__TRUSTED_BYTE_ARRAY_TYPE"])?,
        uncompiled: constants.types(&[
            "type_UncompiledDataWithPreparseData__UNCOMPILED_DATA_WITH_PREPARSE_DATA_TYPE",
            "type_UncompiledDataWithPreparseDataAndJob__UNCOMPILED_DATA_WITH_PREPARSE_DATA_AND_JOB_TYPE",
            "type_UncompiledDataWithoutPreparseData__UNCOMPILED_DATA_WITHOUT_PREPARSE_DATA_TYPE",
            "type_UncompiledDataWithoutPreparseDataWithJob__UNCOMPILED_DATA_WITHOUT_PREPARSE_DATA_WITH_JOB_TYPE",
        ])?,
    })
}

fn strings<S: Symbols, M: Memory>(constants: &Constants<'_, S, M>) -> Result<Strings, LayoutError> {
    Ok(Strings {
        representation: constants.small(&["StringRepresentationMask"])?,
        encoding: constants.small(&["StringEncodingMask"])?,
        one_byte: constants.small(&["OneByteStringTag"])?,
        cons: constants.small(&["ConsStringTag"])?,
        external: constants.small(&["ExternalStringTag"])?,
        sliced: constants.small(&["SlicedStringTag"])?,
        thin: constants.small(&["ThinStringTag"])?,
        length: constants.offset(&["class_String__length__int32_t"])?,
        chars: constants.offset(&["class_SeqOneByteString__chars__char"])?,
        first: constants.offset(&["class_ConsString__first__String"])?,
        second: constants.offset(&["class_ConsString__second__String"])?,
        parent: constants.offset(&["class_SlicedString__parent__String"])?,
        offset: constants.offset(&["class_SlicedString__offset__SMI"])?,
        actual: constants.offset(&["class_ThinString__actual__String"])?,
        resource: constants.offset(&["class_ExternalString__resource__Object"])?,
    })
}

fn code<S: Symbols, M: Memory>(constants: &Constants<'_, S, M>) -> Result<Code, LayoutError> {
    let mask = u32::try_from(constants.need(&["CodeKindFieldMask"])?).unwrap_or(0);
    let baseline = u32::from(constants.small(&["CodeKindBaseline"])?);
    let interpreted = u32::from(constants.small(&["CodeKindInterpretedFunction"])?);
    let implausible = LayoutError::Implausible { version: constants.version, what: "CodeKindFieldShift" };
    let shift = u32::from(constants.small(&["CodeKindFieldShift"])?);
    let shift = Some(shift).filter(|shift| *shift < 32).ok_or(implausible)?;
    // The kinds of optimised code follow that of baseline code in every version. 14.6 put one before the regular
    // expressions' kind, and all behind it moved by one.
    let regexp = if (constants.version.major, constants.version.minor) >= (14, 6) { 4 } else { 3 };
    let header = constants.offset(&["class_InstructionStream__instruction_start__uintptr_t"])?;
    let (deopt, positions, stream, start, size, flags) = if wrapped(constants.version) {
        let wrapper = constants.offset(&["class_Code__wrapper__Tagged_CodeWrapper_"])?;
        let missing = LayoutError::Missing { version: constants.version, what: "class_Code__wrapper" };
        (
            wrapper.checked_sub(2 * WORD).ok_or(missing.clone())?,
            wrapper.checked_sub(WORD).ok_or(missing)?,
            constants.offset(&["class_Code__instruction_stream__Tagged_InstructionStream_"])?,
            constants.offset(&["class_Code__instruction_start__Address"])?,
            constants.offset(&["class_Code__instruction_size__int"])?,
            constants.offset(&["class_Code__flags__uint32_t"])?,
        )
    } else {
        // 11.3 tells two of its fields. Behind them lie the instruction stream, the address of the first instruction,
        // the flags, the builtin's number with two more bytes, and the size.
        let deopt = constants.offset(&["class_Code__deoptimization_data__FixedArray"])?;
        let positions = constants.offset(&["class_Code__source_position_table__ByteArray"])?;
        let stream = positions + WORD;
        (deopt, positions, stream, stream + WORD, stream + 3 * WORD, stream + 2 * WORD)
    };
    Ok(Code {
        deopt,
        positions,
        stream,
        start,
        size,
        flags,
        kind_mask: mask,
        kind_shift: shift,
        interpreted,
        baseline,
        maglev: baseline + 1,
        turbofan: baseline + 2,
        regexp,
        header,
        of_stream: WORD,
    })
}

fn function<S: Symbols, M: Memory>(constants: &Constants<'_, S, M>) -> Result<Function, LayoutError> {
    let shared = constants.offset(&["class_JSFunction__shared__SharedFunctionInfo"])?;
    let code = match constants.find(&["class_JSFunction__code__Tagged_Code_"])? {
        Some(code) => Some(constants.checked(&["class_JSFunction__code__Tagged_Code_"], code)?),
        None if wrapped(constants.version) => None,
        // 11.3: behind the context and the feedback cell.
        None => Some(shared + 3 * WORD),
    };
    Ok(Function { shared, code })
}

fn shared<S: Symbols, M: Memory>(constants: &Constants<'_, S, M>) -> Result<Shared, LayoutError> {
    let flags = constants.offset(&["class_SharedFunctionInfo__flags__int"])?;
    Ok(Shared {
        // 12.4 and later have two such fields, of which the first has the code.
        data: constants.offset_or(&["class_SharedFunctionInfo__function_data__Object"], WORD)?,
        name_or_scope: constants.offset(&[
            "class_SharedFunctionInfo__name_or_scope_info__Tagged_NameOrScopeInfoT_",
            "class_SharedFunctionInfo__name_or_scope_info__Tagged_Object_",
            "class_SharedFunctionInfo__name_or_scope_info__Object",
        ])?,
        script: constants.offset(&[
            "class_SharedFunctionInfo__script__Tagged_HeapObject_",
            "class_SharedFunctionInfo__script_or_debug_info__HeapObject",
        ])?,
        flags,
        // The number that the parser gave the function within its script, behind the flags since 8.
        literal: flags + 4,
        of_wrapper: constants
            .offset_or(&["class_SharedFunctionInfoWrapper__shared_info__Tagged_SharedFunctionInfo_"], WORD)?,
        bytecode_of_interpreter_data: WORD,
        inferred_name: constants.offset(&["class_UncompiledData__inferred_name__String"])?,
        start_position: constants.offset(&["class_UncompiledData__start_position__int32_t"])?,
    })
}

fn scope<S: Symbols, M: Memory>(constants: &Constants<'_, S, M>) -> Result<Scope, LayoutError> {
    let slot = |index: u64| WORD + index * WORD;
    let first = constants.offset(&["scopeinfo_idx_first_vars"])?;
    // Since 12.8 the positions stand before the names, and the flags are no small integer any more.
    let fixed = first >= 5;
    Ok(Scope {
        first_variable: slot(first),
        context_locals: slot(constants.offset(&["scopeinfo_idx_ncontextlocals"])?),
        start: fixed.then(|| slot(3)),
        tagged_flags: !fixed,
        module_scope: if fixed { 5 } else { 3 },
    })
}

fn script<S: Symbols, M: Memory>(constants: &Constants<'_, S, M>) -> Result<Script, LayoutError> {
    let name = constants.offset(&["class_Script__name__Object"])?;
    let line_ends = constants.offset(&["class_Script__line_ends__Object"])?;
    Ok(Script {
        source: constants.offset(&["class_Script__source__Object"])?,
        name,
        // These follow each other in every version that is known.
        line_offset: name + WORD,
        column_offset: name + 2 * WORD,
        line_ends,
        id: line_ends + WORD,
    })
}

fn bytecode<S: Symbols, M: Memory>(constants: &Constants<'_, S, M>) -> Result<Bytecode, LayoutError> {
    let length = constants.offset(&["class_BytecodeArray__length__SMI", "class_FixedArrayBase__length__SMI"])?;
    let positions = match constants.find(&["class_BytecodeArray__wrapper__Tagged_BytecodeWrapper_"])? {
        Some(wrapper) => constants.checked(&["class_BytecodeArray__wrapper"], wrapper)? + WORD,
        // 11.3: behind the constant pool and the handlers' table.
        None => length + 3 * WORD,
    };
    let data = constants.offset(&["class_BytecodeArray__data__uintptr_t"])?;
    let sizes = constants.symbols.address_of("_ZN2v88internal11interpreter9Bytecodes14kBytecodeSizesE");
    let sizes = sizes.map(|at| bytecode_sizes(constants.reader, at)).transpose()?.unwrap_or_default();
    Ok(Bytecode { length, positions, data, sizes })
}

/// Sizes of bytecodes with narrow, double and quadruple operands: three tables of the same length, one behind the other.
///
/// The length is not told, but follows: what doubling the operands adds, doubling them again adds twice.
fn bytecode_sizes<M: Memory>(reader: &Reader<M>, at: Avma) -> Result<[Vec<u8>; 3], ReadError> {
    let mut all = vec![0; 3 * MAX_BYTECODES];
    // The tables can end where the module's data does.
    while reader.bytes(at, &mut all).is_err() {
        let shorter = all.len() - 3;
        if shorter < 3 * 64 {
            return Ok(Default::default());
        }
        all.truncate(shorter);
    }
    let fits = |count: usize| {
        let [Some(narrow), Some(double), Some(quadruple)] =
            [0, 1, 2].map(|scale| all.get(scale * count..(scale + 1) * count))
        else {
            return false;
        };
        let grows = narrow.iter().zip(double).zip(quadruple).all(|((narrow, double), quadruple)| {
            let added = double.checked_sub(*narrow);
            *narrow >= 1 && added.is_some_and(|added| double.checked_add(2 * added.min(32)) == Some(*quadruple))
        });
        grows && narrow.iter().zip(double).any(|(narrow, double)| narrow != double)
    };
    let counts: Vec<usize> = (100..=all.len() / 3).filter(|count| fits(*count)).collect();
    let [count] = counts[..] else { return Ok(Default::default()) };
    Ok([0, 1, 2].map(|scale| all[scale * count..(scale + 1) * count].to_vec()))
}

fn deopt<S: Symbols, M: Memory>(constants: &Constants<'_, S, M>) -> Result<Deopt, LayoutError> {
    let inlining = constants.offset(&["DeoptimizationDataInliningPositionsIndex"])?;
    Ok(Deopt {
        length: constants.offset(&["class_FixedArrayBase__length__SMI"])?,
        data: constants.offset(&["class_FixedArray__data__uintptr_t"])?,
        inlined_count: constants.offset(&["DeoptimizationDataInlinedFunctionCountIndex"])?,
        literals: constants.offset(&["DeoptimizationDataLiteralArrayIndex"])?,
        optimization_id: constants.offset(&["DeoptimizationDataOptimizationIdIndex"])?,
        shared: constants.offset(&[
            "DeoptimizationDataWrappedSharedFunctionInfoIndex",
            "DeoptimizationDataSharedFunctionInfoIndex",
        ])?,
        inlining,
        // No build tells it; they follow each other in every version that is known.
        exits: inlining + 1,
    })
}

/// The value of a small integer, if the word is one.
pub(super) fn small_integer(word: u64) -> Option<i32> {
    let value = u32::try_from(word >> SMI_SHIFT).ok()?.cast_signed();
    (word.trailing_zeros() >= SMI_SHIFT).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_integers_are_told_from_pointers() {
        assert_eq!(small_integer(0x2600000000), Some(38));
        assert_eq!(small_integer(0xffff_ffff_0000_0000), Some(-1));
        assert_eq!(small_integer(0), Some(0));
        assert_eq!(small_integer(0x1bc3_7d30_1141), None);
        assert_eq!(small_integer(0x16), None);
    }
}
