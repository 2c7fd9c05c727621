//! V8: Node's functions, by what lies on the stack and on V8's heap.
//!
//! A [`Layout`] is read once for each process. From then on, [`Names::describe`] says what a frame is: of code that V8
//! generated, or of its interpreter. See [`CaptureSpec`] for what has to be taken along with a sample.
//!
//! Code is found by its address alone: its instructions have a header before them that leads to the code object, which
//! leads back to them. So a frame is named by the code that it runs, even if its function has other code by now.
//!
//! Nothing is believed because it was read before. What is remembered of code depends on its size, its kind, the number
//! of the optimisation and the function's identity; what is remembered of a function on the numbers of the script and
//! of the function within it, and on lengths and hashes of the script's source and name: all are compared at each use. A
//! source without a hash of its characters may be any of its length: what was read of such a script is compared, too.

mod capture;
mod code;
mod functions;
mod heap;
mod layout;
mod loops;
mod positions;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use jitprof_common::units::Avma;

pub use capture::{CaptureSpec, Chain, FrameWords, LeafRegisters, Looked, Taken, Where};
pub use functions::Function;
pub use layout::{Layout, LayoutError, Version};

use crate::{Memory, ReadError, Reader};
use capture::Seen;
use code::{CodeObject, Codes, Optimized, bytecodes_of, tier};
use functions::{Functions, Identity, Print, identity};
use heap::{Heap, Object};
use layout::small_integer;
use positions::{RawPosition, begins_bytecode, bytecode_at, position_at};

/// Functions that can be inlined into each other at one place. V8 stops long before.
const MAX_DEPTH: usize = 64;
/// Bytes of code in which a function may not have made its frame yet.
const PROLOGUE: u64 = 64;

/// A line and a column, both counted from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The line.
    pub line: u32,
    /// The column, in UTF-16 code units.
    pub column: u32,
}

/// How far V8 had optimised the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Ignition, the interpreter.
    Interpreted,
    /// Sparkplug.
    Baseline,
    /// Maglev.
    Mid,
    /// TurboFan.
    Optimized,
}

impl Tier {
    /// V8's own mark for it, as in its dumps.
    pub fn mark(self) -> char {
        match self {
            Self::Interpreted => '~',
            Self::Baseline => '^',
            Self::Mid => '+',
            Self::Optimized => '*',
        }
    }
}

/// A function of the program in a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The function.
    pub function: Arc<Function>,
    /// Where in it the frame is, if that is known. Never merely near it.
    pub at: Option<Place>,
    /// The tier of the code, that of the outermost function for those that are inlined into it.
    pub tier: Tier,
    /// Whether the function was inlined into the next one.
    pub inlined: bool,
}

/// The frame as V8 writes it into dumps: `JS:*name script:line:column`, with the place where the function begins.
impl fmt::Display for Frame {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "JS:{}{} {}", self.tier.mark(), self.function.name(), self.function.script())?;
        self.function.begins().map_or(Ok(()), |Place { line, column }| write!(to, ":{line}:{column}"))
    }
}

/// What a frame is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Described {
    /// Functions of the program, the innermost first: more than one where functions were inlined.
    Functions(Vec<Frame>),
    /// Code that was compiled from a regular expression.
    RegExp,
    /// Code that was compiled from WebAssembly.
    Wasm,
    /// V8's own code: a builtin or a stub, which the module's symbols have the name of.
    Own,
    /// What it is cannot be known.
    Unknown(Unknown),
}

/// Why it cannot be known what a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// Memory could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Something is not what it should be.
    #[error("there is no {0} where it should be")]
    No(&'static str),
    /// Something is larger than anything V8 makes.
    #[error("there is a {0} that is too large")]
    TooLarge(&'static str),
    /// The collector was moving the object.
    #[error("the object was being moved")]
    Moving,
    /// No code lies around the address, or none that says the same in both directions.
    #[error("there is no code object around the address")]
    NoCode,
    /// The function has not made its frame yet, or has taken it down: nothing says whose the code is.
    #[error("the function has no frame at this instruction")]
    NoFrame,
    /// The code, or the function, that was there when the sample was taken is not there any more.
    #[error("another function is there now")]
    Replaced,
}

/// Names of one process's frames, with what was read for them.
#[derive(Debug)]
pub struct Names {
    layout: Layout,
    functions: Functions,
    codes: Codes,
    around: Option<(Avma, u32)>,
    looked: Looked,
}

impl Names {
    /// Nothing is known yet.
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            functions: Functions::default(),
            codes: Codes::default(),
            around: None,
            looked: Looked::default(),
        }
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes that are remembered, nearly.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.functions.bytes() + self.codes.bytes()
    }

    /// Drops what is remembered of code and functions; it is read again where it is met.
    pub fn clear(&mut self) {
        (self.functions, self.codes) = (Functions::default(), Codes::default());
    }

    /// The generated code around the address of the frame that was described last: its first byte, and its length.
    pub fn code(&self) -> Option<(Avma, u32)> {
        self.around
    }

    /// What of its words the description of the last frame depends on.
    pub fn looked(&self) -> Looked {
        self.looked
    }

    /// Says what a frame is.
    ///
    /// The reader holds pages: it is to be refreshed, or a new one, for each batch of frames.
    pub fn describe<M: Memory>(&mut self, reader: &Reader<M>, frame: &FrameWords) -> Described {
        let Self { layout, functions, codes, around, looked } = self;
        *around = None;
        let heap = Heap { layout, reader };
        let mut describer = Describer { heap, functions, codes, around };
        let frame = Seen::new(frame);
        let described = match frame.place() {
            Where::Module(at) => describer.of_module(&frame, at),
            Where::Generated => describer.generated(&frame),
        };
        *looked = frame.looked();
        described.unwrap_or_else(Described::Unknown)
    }
}

struct Describer<'a, M> {
    heap: Heap<'a, M>,
    functions: &'a mut Functions,
    codes: &'a mut Codes,
    around: &'a mut Option<(Avma, u32)>,
}

impl<M: Memory> Describer<'_, M> {
    /// A frame whose code is part of the module: the interpreter's, if it has a function's bytecodes.
    fn of_module(&mut self, frame: &Seen<'_>, at: Avma) -> Result<Described, Unknown> {
        let own = &self.heap.layout.own;
        let within = |range: Option<(u64, u64)>| range.is_none_or(|(start, end)| (start..end).contains(&at.0));
        // Other code of V8's own can be in the place of a leaf that has not made its frame: the words are its caller's.
        if !within(own.entry) && !within(own.handlers) {
            return Ok(Described::Own);
        }
        // What enters the interpreter makes its frame first, and takes it down in the end.
        if !frame.is_call() && own.entry.is_some() && within(own.entry) && !frame.runs_bytecodes() {
            return Ok(Described::Own);
        }
        if !frame.has_context() || Object::of(frame.bytecode_array()).is_none() {
            return Ok(Described::Own);
        }
        let Some(shared) = self.shared(frame)? else { return Ok(Described::Own) };
        // Without the places of the interpreter's code, any of the module's frames can come here.
        let is_description = || self.heap.typed(shared, self.heap.layout.types.shared, "").is_ok();
        if own.entry.is_none() && !is_description() {
            return Ok(Described::Own);
        }
        self.interpreted(frame, shared)
    }

    /// The description of the frame's function: as it was taken, else of the function as it is now.
    fn shared(&self, frame: &Seen<'_>) -> Result<Option<Object>, Unknown> {
        if let Some(shared) = frame.taken_shared() {
            return Ok(Object::of(shared));
        }
        self.heap.function(frame.function()).ok().map(|function| self.shared_of(function)).transpose()
    }

    /// The description of the function that the leaf's register has, before there is a frame.
    fn in_register(&self, frame: &Seen<'_>) -> Result<Option<Object>, Unknown> {
        let function = frame.leaf_function().and_then(|function| self.heap.function(function).ok());
        function.map(|function| self.shared_of(function)).transpose()
    }

    fn shared_of(&self, function: Object) -> Result<Object, Unknown> {
        self.heap.object(function, self.heap.layout.function.shared, "function's description")
    }

    fn interpreted(&mut self, frame: &Seen<'_>, shared: Object) -> Result<Described, Unknown> {
        let array = Object::of(frame.bytecode_array()).ok_or(Unknown::No("bytecodes"))?;
        let own = self.heap.typed(shared, self.heap.layout.types.shared, "function's description");
        let Some(own) = own.and_then(|shared| bytecodes_of(&self.heap, shared))? else { return Ok(Described::Own) };
        if own != array {
            return Err(Unknown::Replaced);
        }
        let (identity, function) = self.functions.read(&self.heap, shared)?;
        self.check(frame, identity)?;
        let bytecodes = self.codes.bytecodes(&self.heap, array, identity)?;
        self.heap.work(bytecodes.bytes.len() + bytecodes.positions.as_ref().map_or(0, |table| table.len()))?;
        let at = self.interpreted_offset(frame, &bytecodes.bytes).and_then(|offset| {
            let table = bytecodes.positions.as_deref()?;
            place(&function, position_at(table, self.heap.layout.steps, i64::try_from(offset).ok()?)?)
        });
        Ok(Described::Functions(vec![Frame { function, at, tier: Tier::Interpreted, inlined: false }]))
    }

    /// Which bytecode is run. The frame has it while a call is made; in between it is in a register only.
    fn interpreted_offset(&self, frame: &Seen<'_>, bytecodes: &[u8]) -> Option<usize> {
        let fields = &self.heap.layout.bytecode;
        // The interpreter counts from the tagged pointer.
        let first = fields.data.checked_sub(1)?;
        let offset = if frame.is_call() {
            u64::try_from(small_integer(frame.bytecode_offset())?).ok()?
        } else {
            frame.leaf_offset().filter(|_| frame.runs_bytecodes())?
        };
        let offset = usize::try_from(offset.checked_sub(first)?).ok()?;
        let begins = if fields.sizes[0].is_empty() {
            frame.is_call() && offset < bytecodes.len()
        } else {
            begins_bytecode(bytecodes, &fields.sizes, offset)
        };
        begins.then_some(offset)
    }

    /// A frame of code that was generated.
    fn generated(&mut self, frame: &Seen<'_>) -> Result<Described, Unknown> {
        let layout = self.heap.layout;
        if frame.is_marked(layout.frame.wasm) {
            return Ok(Described::Wasm);
        }
        let function = self.heap.function(frame.function()).ok();
        let code = self.codes.around(&self.heap, frame.pc(), function)?;
        let offset = frame.pc().0 - code.start;
        *self.around = Some((Avma(code.start), code.size));
        match tier(layout, code.kind) {
            Some(Tier::Interpreted) => self.interpreted(frame, function.ok_or(Unknown::No("function"))?),
            Some(Tier::Baseline) => self.baseline(frame, code, offset),
            Some(tier) => self.optimized(frame, code, offset, tier),
            None if code.kind == layout.code.regexp => Ok(Described::RegExp),
            // `--interpreted-frames-native-stack` makes a copy of what enters the interpreter for each function.
            None if interprets(frame) => match self.shared(frame)? {
                Some(shared) => self.interpreted(frame, shared),
                None => Ok(Described::Own),
            },
            None => Ok(Described::Own),
        }
    }

    fn baseline(&mut self, frame: &Seen<'_>, code: CodeObject, offset: u64) -> Result<Described, Unknown> {
        let layout = self.heap.layout;
        let array = self.heap.object(code.object, layout.code.deopt, "bytecodes")?;
        let array = if self.heap.type_of(array)? == layout.types.interpreter_data {
            self.heap.object(array, layout.shared.bytecode_of_interpreter_data, "bytecodes")?
        } else {
            array
        };
        // The code does not say whose it is. The frame's function says it, if the code is of its bytecodes; until there
        // is a frame, the register does.
        let of_code = |shared: &Object| bytecodes_of(&self.heap, *shared).is_ok_and(|own| own == Some(array));
        let found = match self.shared(frame)?.filter(of_code) {
            Some(shared) => Some((shared, true)),
            None if offset < PROLOGUE => self.in_register(frame)?.filter(of_code).map(|shared| (shared, false)),
            None => None,
        };
        let Some((shared, in_frame)) = found else {
            let framed = frame.is_call() || (offset >= PROLOGUE && !self.leaves(frame.pc())?);
            return Err(if framed { Unknown::Replaced } else { Unknown::NoFrame });
        };
        let (identity, function) = self.functions.read(&self.heap, shared)?;
        if in_frame {
            self.check(frame, identity)?;
        }
        let at = if layout.has_bytecode_sizes() {
            let bytecodes = self.codes.bytecodes(&self.heap, array, identity)?;
            let table = self.heap.object(code.object, layout.code.positions, "table of offsets")?;
            let table = self.heap.bytes(table, code::MAX_POSITIONS, "table of offsets")?;
            self.heap.work(bytecodes.bytes.len() + bytecodes.positions.as_ref().map_or(0, |table| table.len()))?;
            let bytecode = bytecode_at(&table, &bytecodes.bytes, &layout.bytecode.sizes, offset, frame.is_call())?;
            match (bytecode, bytecodes.positions.as_deref()) {
                (None, _) => function.begins(),
                (Some(bytecode), Some(positions)) => i64::try_from(bytecode)
                    .ok()
                    .and_then(|bytecode| position_at(positions, layout.steps, bytecode))
                    .and_then(|position| place(&function, position)),
                (Some(_), None) => None,
            }
        } else {
            None
        };
        Ok(Described::Functions(vec![Frame { function, at, tier: Tier::Baseline, inlined: false }]))
    }

    fn optimized(&mut self, frame: &Seen<'_>, code: CodeObject, offset: u64, tier: Tier) -> Result<Described, Unknown> {
        let compiled = self.codes.optimized(&self.heap, self.functions, code)?;
        if let Err(why) = self.belongs(frame, compiled.identity) {
            // Where a function has no frame yet, or none any more, the words are its caller's. Then the register may say
            // whose code it is. That the code was known before says nothing: it may have come after the sample.
            if frame.is_call() {
                return Err(why);
            }
            let early = self.in_register(frame).ok().flatten();
            let early = early.and_then(|shared| identity(&self.heap, shared).ok());
            if early != Some(compiled.identity) {
                return Err(Unknown::NoFrame);
            }
        }
        // The table has the positions of calls. Those before an address within are about something else, but the loop that it
        // lies in has one. An exit has none: the last position before it is that of any other place. What an exit that is run
        // has called would return to the next one.
        let returns_to = if frame.is_left() && compiled.is_left_at(offset) {
            None
        } else if frame.is_call() || compiled.is_left_at(offset) {
            code::return_of_call(&self.heap, code, &compiled, offset)?
        } else {
            self.codes.call_of_loop(&self.heap, code, &compiled, offset)?.map(u64::from)
        };
        let mut frames = self.inlined(&compiled, code, tier, returns_to)?;
        if !frame.is_call()
            && let Some(innermost) = frames.first_mut()
        {
            innermost.at = None;
        }
        Ok(Described::Functions(frames))
    }

    /// The functions that were inlined at a call, from the inside out, and the code's own; only that if there is no call.
    fn inlined(
        &mut self,
        compiled: &Optimized,
        code: CodeObject,
        tier: Tier,
        returns_to: Option<u64>,
    ) -> Result<Vec<Frame>, Unknown> {
        let outermost = |at| Frame { function: Arc::clone(&compiled.function), at, tier, inlined: false };
        let Some(returns_to) = returns_to else { return Ok(vec![outermost(None)]) };
        self.heap.work(compiled.positions.len())?;
        // A call returns behind itself, and the table has where it begins.
        let before = i64::try_from(returns_to).ok().and_then(|offset| offset.checked_sub(1));
        let Some(mut position) =
            before.and_then(|before| position_at(&compiled.positions, self.heap.layout.steps, before))
        else {
            return Ok(vec![outermost(None)]);
        };
        let mut frames = Vec::new();
        let mut within = usize::MAX;
        while let Some(inlining) = position.inlining() {
            // Functions are inlined into what is there already: their numbers fall from the inside out.
            if inlining >= within || frames.len() >= MAX_DEPTH {
                return Err(Unknown::No("place of inlining"));
            }
            within = inlining;
            let (outer, function) = *compiled.inlining.get(inlining).ok_or(Unknown::No("place of inlining"))?;
            let function = match function {
                Some(function) => code::inlined(&self.heap, self.functions, code, function)?,
                None => Arc::clone(&compiled.function),
            };
            frames.push(Frame { at: place(&function, position), function, tier, inlined: true });
            position = outer;
        }
        frames.push(outermost(place(&compiled.function, position)));
        Ok(frames)
    }

    /// Whether the next instruction returns.
    fn leaves(&self, pc: Avma) -> Result<bool, Unknown> {
        Ok(matches!(self.heap.reader.u8(pc)?, 0xc2 | 0xc3))
    }

    /// Whether the frame's function is this one.
    fn belongs(&self, frame: &Seen<'_>, of: Identity) -> Result<(), Unknown> {
        if frame.is_taken() {
            return self.check(frame, of);
        }
        let shared = self.shared(frame)?.ok_or(Unknown::No("function"))?;
        if identity(&self.heap, shared)? == of { Ok(()) } else { Err(Unknown::Replaced) }
    }

    /// Whether the function is the one that the sample was taken in.
    fn check(&self, frame: &Seen<'_>, identity: Identity) -> Result<(), Unknown> {
        let same = frame.taken_identity().is_none_or(|taken| {
            taken.literal == identity.literal
                && small_integer(taken.script) == Some(identity.script)
                && identity.is_of(taken.source.map(Print), taken.name.map(Print))
        });
        if same { Ok(()) } else { Err(Unknown::Replaced) }
    }
}

/// Whether a frame has what the interpreter's have. That its bytecodes are its function's is seen later.
fn interprets(frame: &Seen<'_>) -> bool {
    frame.has_context() && Object::of(frame.bytecode_array()).is_some() && (frame.is_call() || frame.runs_bytecodes())
}

fn place(function: &Function, position: RawPosition) -> Option<Place> {
    function.place(position.character()?)
}
