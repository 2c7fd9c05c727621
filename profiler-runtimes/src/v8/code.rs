//! Machine code: which function's it is, how far it was optimised, and which functions were inlined where.

use std::sync::{Arc, OnceLock};

use jitprof_common::units::Avma;
use rustc_hash::FxHashMap;

use super::functions::{Function, Functions, Identity};
use super::heap::{Heap, Object};
use super::layout::small_integer;
use super::loops::{InLoop, call_of_loop, loops};
use super::positions::RawPosition;
use super::{Tier, Unknown};
use crate::Memory;

/// Instructions begin at multiples of this.
const ALIGNMENT: u64 = 64;
/// Bytes of code of a function that is looked for from its end; TurboFan gives up far below.
const MAX_CODE: u64 = 2 << 20;
/// Bytes of a table of positions.
pub(super) const MAX_POSITIONS: u32 = 1 << 20;
/// Bytes of code whose loops are looked for, and what that costs beside reading it.
const MAX_ANALYSED: u32 = 128 << 10;
const WORK_OF_ANALYSIS: usize = 16;
/// Bytes of a function's bytecodes.
const MAX_BYTECODES: u32 = 1 << 20;
/// Functions inlined into one, and places at which they are. V8's own limits are some hundred.
const MAX_INLINED: u32 = 1 << 14;
/// Bytes of an inlining position: the place, the function's number, and four bytes between.
const INLINING_POSITION: usize = 16;
/// How a deoptimisation exit begins on x86-64 (`call [r13 + …]`), and its bytes.
const EXIT: [u8; 3] = [0x41, 0xff, 0x55];
const EXIT_SIZE: u64 = 4;
/// What is known of an exit: a bytecode, where its frames are described, and where the call returns to.
const WORDS_OF_EXIT: u64 = 3;
const RETURNS_TO: u64 = 2;
/// Bytes of tables that are remembered before all are dropped.
const MAX_REMEMBERED: usize = 32 << 20;
/// Bytes that remembering code takes besides its tables, at most.
const ENTRY: usize = 256;

/// A code object, as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodeObject {
    pub(super) object: Object,
    pub(super) start: u64,
    pub(super) size: u32,
    pub(super) kind: u32,
}

/// What is not where it should be.
const INLINED: &str = "inlined functions";

/// What code was compiled from.
#[derive(Debug)]
pub(super) struct Optimized {
    depends_on: Fingerprint,
    pub(super) identity: Identity,
    pub(super) function: Arc<Function>,
    pub(super) positions: Box<[u8]>,
    /// Where a function was inlined, and which: `None` for the function itself.
    pub(super) inlining: Inlining,
    exits: Exits,
    /// Found out when the first sample is taken between two calls.
    loops: OnceLock<Box<[InLoop]>>,
}

/// Deoptimisation exits: calls at the end of optimised code, by which it is left for good.
///
/// First those that the code itself jumps to. Then those for calls after which it may turn out to be no longer valid: where
/// it has, V8 puts the exit's address into the place of the return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Exits {
    start: u64,
    eager: u64,
    lazy: u64,
}

impl Exits {
    /// What is not there, or looks otherwise, is said to be none: nothing else of the code depends on it.
    fn read<M: Memory>(heap: &Heap<'_, M>, deopt: Object, length: u64) -> Result<Self, Unknown> {
        let first = heap.layout.deopt.exits;
        let mut words = [0; 3];
        for (index, word) in (first..).zip(&mut words).filter(|(index, _)| *index < length) {
            *word = number(heap.element(deopt, index)?).unwrap_or(0);
        }
        let [start, eager, lazy] = words;
        Ok(Self { start, eager, lazy })
    }

    /// Whether they have an offset within the code, which begins with something else.
    fn has(self, offset: u64) -> bool {
        self.start > 0 && offset >= self.start
    }

    /// Which exit for a call begins at an offset, by its place among all.
    fn of_call(self, offset: u64) -> Option<u64> {
        let from_first = offset.checked_sub(self.start)?;
        let number = (from_first / EXIT_SIZE).checked_sub(self.eager)?;
        (from_first % EXIT_SIZE == 0 && number < self.lazy).then_some(from_first / EXIT_SIZE)
    }
}

/// A small integer that is not negative.
fn number(word: u64) -> Option<u64> {
    small_integer(word).and_then(|value| u64::try_from(value).ok())
}

impl Optimized {
    /// Whether its tables are the same.
    fn has_tables_of(&self, other: &Self) -> bool {
        (&self.positions, &self.inlining, self.exits) == (&other.positions, &other.inlining, other.exits)
    }

    /// Whether an offset within the code is at a deoptimisation exit.
    pub(super) fn is_left_at(&self, offset: u64) -> bool {
        self.exits.has(offset)
    }
}

/// What tells code from other code that was put in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint {
    size: u32,
    kind: u32,
    /// V8 counts its optimisations.
    optimization: u64,
    identity: Identity,
}

/// Bytecodes of a function and their positions.
#[derive(Debug)]
pub(super) struct Bytecodes {
    identity: Identity,
    positions_word: u64,
    pub(super) bytes: Box<[u8]>,
    /// `None` as long as V8 has not found out positions of the function itself.
    pub(super) positions: Option<Box<[u8]>>,
}

/// Code that was read, by where it begins.
#[derive(Debug, Default)]
pub(super) struct Codes {
    optimized: FxHashMap<u64, Arc<Optimized>>,
    bytecodes: FxHashMap<Object, Arc<Bytecodes>>,
    remembered: usize,
    /// Of the functions that the code has.
    epoch: u64,
}

impl Codes {
    /// The code object around an address of generated code. `function` is the frame's, whose code it often is.
    ///
    /// Where code was freed, and other code was put over its middle, its header still stands before that: only the
    /// nearest header can be trusted, so none is remembered.
    pub(super) fn around<M: Memory>(
        &self,
        heap: &Heap<'_, M>,
        pc: Avma,
        function: Option<Object>,
    ) -> Result<CodeObject, Unknown> {
        let covers =
            |code: &CodeObject| pc.0.checked_sub(code.start).is_some_and(|offset| offset < u64::from(code.size));
        let of_function = function.and_then(|function| {
            let code = heap.object(function, heap.layout.function.code?, "code").ok()?;
            code_object(heap, code).ok().filter(covers)
        });
        let found = of_function.or_else(|| {
            // Backwards, from the last place at or before the address where code can begin.
            let first = pc.0 - pc.0 % ALIGNMENT;
            (0..MAX_CODE / ALIGNMENT)
                .map_while(|steps| first.checked_sub(steps * ALIGNMENT))
                .map_while(|start| {
                    Some((start, heap.reader.u64(Avma(start.checked_sub(heap.layout.code.header)?)).ok()?))
                })
                .filter(|(_, map)| map & 3 == 1)
                .find_map(|(start, _)| starting_at(heap, start).filter(covers))
        });
        found.ok_or(Unknown::NoCode)
    }

    /// What optimised code was compiled from, and what was inlined into it.
    pub(super) fn optimized<M: Memory>(
        &mut self,
        heap: &Heap<'_, M>,
        functions: &mut Functions,
        code: CodeObject,
    ) -> Result<Arc<Optimized>, Unknown> {
        let layout = heap.layout;
        let deopt = heap.object(code.object, layout.code.deopt, "deoptimisation data")?;
        let length = u64::from(heap.array(deopt, "deoptimisation data")?);
        let indices = [layout.deopt.shared, layout.deopt.inlining, layout.deopt.optimization_id];
        if indices.iter().any(|index| *index >= length) {
            return Err(Unknown::No("deoptimisation data"));
        }
        let shared = self.outer(heap, deopt)?;
        let (identity, function) = functions.read(heap, shared)?;
        if self.epoch != functions.epoch() {
            *self = Self { epoch: functions.epoch(), ..Self::default() };
        }
        let optimization = heap.element(deopt, layout.deopt.optimization_id)?;
        let depends_on = Fingerprint { size: code.size, kind: code.kind, optimization, identity };
        let known = self.optimized.get(&code.start).cloned();
        let known = known.filter(|known| known.depends_on == depends_on && Arc::ptr_eq(&known.function, &function));
        if let Some(known) = known.as_ref().filter(|_| identity.is_certain()) {
            return Ok(Arc::clone(known));
        }
        let positions = heap.object(code.object, layout.code.positions, "table of positions")?;
        let read = Optimized {
            depends_on,
            identity,
            function,
            positions: heap.bytes(positions, MAX_POSITIONS, "table of positions")?.into(),
            inlining: inlining(heap, deopt)?,
            exits: Exits::read(heap, deopt, length)?,
            loops: OnceLock::new(),
        };
        // Its loops are looked for once.
        if let Some(known) = known.filter(|known| known.has_tables_of(&read)) {
            return Ok(known);
        }
        let read = Arc::new(read);
        self.make_room(read.positions.len() + INLINING_POSITION * read.inlining.len());
        self.optimized.insert(code.start, Arc::clone(&read));
        Ok(read)
    }

    /// Where the call returns to that has the position of the smallest loop around an offset within code.
    pub(super) fn call_of_loop<M: Memory>(
        &mut self,
        heap: &Heap<'_, M>,
        code: CodeObject,
        compiled: &Optimized,
        offset: u64,
    ) -> Result<Option<u32>, Unknown> {
        if compiled.inlining.is_empty() || code.size > MAX_ANALYSED {
            return Ok(None);
        }
        if let Some(known) = compiled.loops.get() {
            return Ok(call_of_loop(known, offset));
        }
        let mut bytes = vec![0; code.size as usize];
        heap.work(bytes.len() * WORK_OF_ANALYSIS)?;
        heap.reader.bytes(Avma(code.start), &mut bytes)?;
        // Other code may have come meanwhile.
        let deopt = heap.object(code.object, heap.layout.code.deopt, "deoptimisation data")?;
        if heap.element(deopt, heap.layout.deopt.optimization_id)? != compiled.depends_on.optimization {
            return Err(Unknown::Replaced);
        }
        let found = compiled.loops.get_or_init(|| loops(&bytes));
        self.remembered += size_of_val::<[InLoop]>(found);
        Ok(call_of_loop(found, offset))
    }

    /// Bytes that are remembered, nearly.
    pub(super) fn bytes(&self) -> usize {
        self.remembered
    }

    /// Counts what is remembered; drops everything if it has become too much.
    fn make_room(&mut self, tables: usize) {
        self.remembered += tables + ENTRY;
        if self.remembered > MAX_REMEMBERED {
            *self = Self { remembered: tables + ENTRY, epoch: self.epoch, ..Self::default() };
        }
    }

    /// The description of the function that was compiled.
    fn outer<M: Memory>(&self, heap: &Heap<'_, M>, deopt: Object) -> Result<Object, Unknown> {
        let layout = heap.layout;
        let shared =
            Object::of(heap.element(deopt, layout.deopt.shared)?).ok_or(Unknown::No("function's description"))?;
        if layout.types.shared_wrapper == Some(heap.type_of(shared)?) {
            return heap.object(shared, layout.shared.of_wrapper, "function's description");
        }
        Ok(shared)
    }

    /// The bytecodes of a function, from its array of them.
    pub(super) fn bytecodes<M: Memory>(
        &mut self,
        heap: &Heap<'_, M>,
        array: Object,
        of: Identity,
    ) -> Result<Arc<Bytecodes>, Unknown> {
        const WHAT: &str = "bytecodes";
        let fields = &heap.layout.bytecode;
        heap.typed(array, heap.layout.types.bytecode_array, WHAT)?;
        let length = heap.count(array, fields.length, WHAT)?;
        let positions_word = heap.word(array, fields.positions)?;
        let length = if length <= MAX_BYTECODES { length as usize } else { return Err(Unknown::TooLarge(WHAT)) };
        let is_it = |known: &&Arc<Bytecodes>| {
            (known.identity, known.positions_word, known.bytes.len()) == (of, positions_word, length)
        };
        let known = self.bytecodes.get(&array).filter(is_it);
        if let Some(known) = known.filter(|_| of.is_certain()) {
            return Ok(Arc::clone(known));
        }
        let mut bytes = vec![0; length];
        heap.reader.bytes(Avma(array.0.wrapping_add(fields.data)), &mut bytes)?;
        // Something else than an array stands there until the positions are known.
        let positions = Object::of(positions_word).and_then(|table| match heap.bytes(table, MAX_POSITIONS, WHAT) {
            Err(Unknown::No(_)) => None,
            read => Some(read),
        });
        let positions: Option<Box<[u8]>> = positions.transpose()?.filter(|table| !table.is_empty()).map(Into::into);
        if let Some(known) = known.filter(|known| *known.bytes == *bytes && known.positions == positions) {
            return Ok(Arc::clone(known));
        }
        let read = Arc::new(Bytecodes { identity: of, positions_word, bytes: bytes.into(), positions });
        self.make_room(length + read.positions.as_ref().map_or(0, |table| table.len()));
        self.bytecodes.insert(array, Arc::clone(&read));
        Ok(read)
    }
}

/// The array of bytecodes that a function has now, be it below compiled code.
pub(super) fn bytecodes_of<M: Memory>(heap: &Heap<'_, M>, shared: Object) -> Result<Option<Object>, Unknown> {
    let types = &heap.layout.types;
    let Some(mut data) = Object::of(heap.word(shared, heap.layout.shared.data)?) else { return Ok(None) };
    // Code, then the interpreter's data, then the bytecodes.
    for _ in 0..3 {
        let kind = heap.type_of(data)?;
        if kind == types.bytecode_array {
            return Ok(Some(data));
        }
        let next = if kind == types.code {
            heap.layout.code.deopt
        } else if kind == types.interpreter_data {
            heap.layout.shared.bytecode_of_interpreter_data
        } else {
            return Ok(None);
        };
        data = heap.object(data, next, "bytecodes")?;
    }
    Ok(None)
}

/// The code object whose instructions begin at an address, if there is one that says the same.
fn starting_at<M: Memory>(heap: &Heap<'_, M>, start: u64) -> Option<CodeObject> {
    let fields = &heap.layout.code;
    let stream = Object(start.checked_sub(fields.header)?);
    heap.typed(stream, heap.layout.types.instruction_stream, "instructions").ok()?;
    let code = code_object(heap, heap.object(stream, fields.of_stream, "code").ok()?).ok()?;
    let back = Object::of(heap.word(code.object, fields.stream).ok()?);
    (code.start == start && back == Some(stream)).then_some(code)
}

fn code_object<M: Memory>(heap: &Heap<'_, M>, object: Object) -> Result<CodeObject, Unknown> {
    let fields = &heap.layout.code;
    heap.typed(object, heap.layout.types.code, "code")?;
    let flags = heap.u32(object, fields.flags)?;
    Ok(CodeObject {
        object,
        start: heap.word(object, fields.start)?,
        size: heap.u32(object, fields.size)?,
        kind: (flags & fields.kind_mask) >> fields.kind_shift,
    })
}

/// How many functions were inlined into code.
fn inlined_count<M: Memory>(heap: &Heap<'_, M>, deopt: Object) -> Result<u32, Unknown> {
    let count = small_integer(heap.element(deopt, heap.layout.deopt.inlined_count)?);
    let count = count.and_then(|count| u32::try_from(count).ok());
    count.filter(|count| *count <= MAX_INLINED).ok_or(Unknown::No(INLINED))
}

/// A function that was inlined into code, by its number. What stands there now is read each time.
pub(super) fn inlined<M: Memory>(
    heap: &Heap<'_, M>,
    functions: &mut Functions,
    code: CodeObject,
    number: u32,
) -> Result<Arc<Function>, Unknown> {
    let deopt = heap.object(code.object, heap.layout.code.deopt, "deoptimisation data")?;
    let literals = Object::of(heap.element(deopt, heap.layout.deopt.literals)?).ok_or(Unknown::No(INLINED))?;
    if number >= inlined_count(heap, deopt)?.min(heap.array(literals, INLINED)?) {
        return Err(Unknown::No("inlined function"));
    }
    let word = heap.element(literals, number.into())?;
    let (_, function) = functions.read(heap, Object::of_weak(word).ok_or(Unknown::No(INLINED))?)?;
    Ok(function)
}

/// Where the call returns to that a frame is in, by its offset within the code; nothing if it is at an exit that does not say
/// it.
///
/// Maglev's do not, and of those of other processors than x86-64 it is not known where each begins.
pub(super) fn return_of_call<M: Memory>(
    heap: &Heap<'_, M>,
    code: CodeObject,
    compiled: &Optimized,
    offset: u64,
) -> Result<Option<u64>, Unknown> {
    let exits = compiled.exits;
    if !exits.has(offset) {
        return Ok(Some(offset));
    }
    let Some(exit) = exits.of_call(offset) else { return Ok(None) };
    let mut begins = [0; EXIT.len()];
    heap.reader.bytes(Avma(code.start.wrapping_add(offset)), &mut begins)?;
    let deopt = heap.object(code.object, heap.layout.code.deopt, "deoptimisation data")?;
    let index = heap.layout.deopt.exits + 3 + exit * WORDS_OF_EXIT + RETURNS_TO;
    if begins != EXIT || index >= u64::from(heap.array(deopt, "deoptimisation data")?) {
        return Ok(None);
    }
    Ok(number(heap.element(deopt, index)?).filter(|returns_to| (1..exits.start).contains(returns_to)))
}

/// Where functions were inlined, and the number of each, if it is one of the code's own.
type Inlining = Box<[(RawPosition, Option<u32>)]>;

/// Where functions were inlined, and which.
fn inlining<M: Memory>(heap: &Heap<'_, M>, deopt: Object) -> Result<Inlining, Unknown> {
    if inlined_count(heap, deopt)? == 0 {
        return Ok(Box::default());
    }
    let positions = Object::of(heap.element(deopt, heap.layout.deopt.inlining)?).ok_or(Unknown::No(INLINED))?;
    let positions = heap.bytes(positions, MAX_INLINED * 16, INLINED)?;
    let entry = |entry: &[u8]| {
        let (position, rest) = entry.split_first_chunk::<8>()?;
        let function = i32::from_le_bytes(*rest.first_chunk::<4>()?);
        Some((RawPosition(u64::from_le_bytes(*position)), u32::try_from(function).ok()))
    };
    Ok(positions.chunks_exact(INLINING_POSITION).filter_map(entry).collect())
}

/// The tier of a kind of code, if it is a function's.
pub(super) fn tier(layout: &super::Layout, kind: u32) -> Option<Tier> {
    let code = &layout.code;
    let tiers = [
        (code.interpreted, Tier::Interpreted),
        (code.baseline, Tier::Baseline),
        (code.maglev, Tier::Mid),
        (code.turbofan, Tier::Optimized),
    ];
    tiers.iter().find(|(of, _)| *of == kind).map(|(_, tier)| *tier)
}
