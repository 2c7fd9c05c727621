//! Functions and scripts: what they are called, and where they begin.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::heap::{Heap, Object};
use super::layout::{WORD, small_integer};
use super::{Place, Unknown};
use crate::Memory;

/// Characters of a name. V8's own writer of dumps cuts at four times as much, with the script in it.
const MAX_NAME: u32 = 1024;
/// Characters of a script's name.
const MAX_SCRIPT_NAME: u32 = 4096;
/// Characters of a script's source that are looked through for the ends of lines.
const MAX_SOURCE: u32 = 16 << 20;
/// Lines of a script.
const MAX_LINES: u32 = 1 << 20;
/// Characters of a string that V8 makes a hash of; a longer one's is its length.
const MAX_HASHED: u32 = 16_383;
/// Lines that are looked at again of a script of more characters, if it is not certain to be the same.
const LOOKS: usize = 32;
/// Variables of a scope whose names stand in it one by one; with more of them there is a table of them instead.
const INLINED_NAMES: u64 = 75;
/// Bytes of names and ends of lines that are remembered before all are dropped.
const MAX_REMEMBERED: usize = 32 << 20;
/// Bytes that remembering a function or a script takes besides those, at most.
const ENTRY: usize = 192;

/// A function of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    name: Box<str>,
    script: Arc<Script>,
    begins: Option<Place>,
    top_level: bool,
}

impl Function {
    /// Its name as V8's own dumps have it: else the one that the parser inferred, empty if there is none.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The script's name, usually its path; empty for code that was made of a string.
    pub fn script(&self) -> &str {
        &self.script.name
    }

    /// Where its parameters begin, as in V8's dumps.
    pub fn begins(&self) -> Option<Place> {
        self.begins
    }

    /// Whether it is a script's own code, outside of every function.
    pub fn is_top_level(&self) -> bool {
        self.top_level
    }

    /// The line and column of a character of the function's script.
    pub(super) fn place(&self, character: u32) -> Option<Place> {
        self.script.place(character)
    }
}

/// A script: its name, and where its lines end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Script {
    name: Box<str>,
    /// Characters after which a new line begins; the last is the script's end.
    ends: Box<[u32]>,
    line_offset: u32,
    column_offset: u32,
}

impl Script {
    fn place(&self, character: u32) -> Option<Place> {
        let line = self.ends.partition_point(|end| *end < character);
        self.ends.get(line)?;
        let begins = line.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |end| end + 1);
        let offset = if line == 0 { self.column_offset } else { 0 };
        let line = u32::try_from(line).ok()?.checked_add(self.line_offset)?.checked_add(1)?;
        Some(Place { line, column: character.checked_sub(begins)?.checked_add(offset)?.checked_add(1)? })
    }
}

/// What tells a function from every other one, at whatever address the collector puts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    /// The number of its script.
    pub(super) script: i32,
    /// Its number within the script.
    pub(super) literal: u32,
    /// The script's source and name: another isolate counts its scripts from one again.
    pub(super) source: Print,
    pub(super) name: Print,
}

impl Identity {
    /// Whether the words of the source and of the name that a sample has, if it has them, are of this script.
    ///
    /// One string that is certain to be the same vouches for the other, of which at least the length is. Often there is none:
    /// V8 needs no hash of what Node has built in. Then at least nothing may have come in between: words that are not the same
    /// any more, as one of them has a hash by now, are more likely of two scripts than of one that was just begun.
    pub(super) fn is_of(self, source: Option<Print>, name: Option<Print>) -> bool {
        let strings = [source.zip(Some(self.source)), name.zip(Some(self.name))];
        let strings = || strings.iter().flatten();
        let are_certain = |same: bool| strings().any(|(taken, now)| taken.is(*now) == Some(same));
        !are_certain(false) && (are_certain(true) || strings().all(|(taken, now)| taken == now))
    }

    /// Whether what has the same identity is of the same script for certain. Else what was read is to be read again.
    pub(super) fn is_certain(self) -> bool {
        self.source.is_hashed()
    }
}

/// What a string is known again by, without reading it: the word with its hash and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Print(pub(super) u64);

impl Print {
    /// Whether both are of one string; nothing if that is not known. A hash says it once V8 has needed it; before, something
    /// else stands there.
    pub(super) fn is(self, other: Self) -> Option<bool> {
        if self.length() != other.length() {
            return Some(false);
        }
        (self.is_hashed() && other.is_hashed()).then_some(self == other)
    }

    fn length(self) -> u64 {
        self.0 >> 32
    }

    fn is_hashed(self) -> bool {
        const IS_HASH: u64 = 2;
        self.0 & 3 == IS_HASH && self.length() <= u64::from(MAX_HASHED)
    }
}

/// A function that was read, with what it depends on.
#[derive(Debug)]
struct KnownFunction {
    identity: Identity,
    /// The character at which its parameters begin.
    start: Option<u32>,
    function: Arc<Function>,
}

/// What a script's lines depend on: its number, and of its source what that is known by and the word, and the word of the ends
/// of its lines.
type ScriptKey = (i32, Print, u64, u64);

/// Functions that were read.
///
/// Isolates that come and go put the same objects to the same places, and count their scripts from one: of what is
/// remembered, the names are compared with those that stand there now, and lines are looked at again where the hash of their
/// script does not say that it is the same.
#[derive(Debug, Default)]
pub(super) struct Functions {
    known: FxHashMap<Object, KnownFunction>,
    scripts: FxHashMap<Object, (ScriptKey, Arc<Script>)>,
    remembered: usize,
    /// How often everything was dropped. Who keeps functions of an earlier time keeps what is counted here no more.
    epoch: u64,
}

impl Functions {
    /// The function of a `SharedFunctionInfo`.
    pub(super) fn read<M: Memory>(
        &mut self,
        heap: &Heap<'_, M>,
        shared: Object,
    ) -> Result<(Identity, Arc<Function>), Unknown> {
        let identity = identity(heap, shared)?;
        let script = self.script(heap, script_of(heap, shared)?)?;
        let (name, start) = name_and_start(heap, shared)?;
        if let Some(known) = self.known.get(&shared)
            && (known.identity, known.start) == (identity, start)
            && *known.function.name == *name
            && Arc::ptr_eq(&known.function.script, &script)
        {
            return Ok((identity, Arc::clone(&known.function)));
        }
        let begins = start.and_then(|start| script.place(start));
        // The parser gives 0 to the code outside of all functions.
        let function = Arc::new(Function { name: name.into(), script, begins, top_level: identity.literal == 0 });
        self.make_room(function.name.len());
        self.known.insert(shared, KnownFunction { identity, start, function: Arc::clone(&function) });
        Ok((identity, function))
    }

    /// Bytes that are remembered, nearly.
    pub(super) fn bytes(&self) -> usize {
        self.remembered
    }

    /// How often everything was dropped.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Counts what is remembered; drops everything if it has become too much.
    fn make_room(&mut self, bytes: usize) {
        self.remembered += bytes + ENTRY;
        if self.remembered > MAX_REMEMBERED {
            *self = Self { remembered: bytes + ENTRY, epoch: self.epoch.wrapping_add(1), ..Self::default() };
        }
    }

    fn script<M: Memory>(&mut self, heap: &Heap<'_, M>, script: Object) -> Result<Arc<Script>, Unknown> {
        let fields = &heap.layout.script;
        let word = |offset| heap.word(script, offset);
        let key: ScriptKey = (
            heap.small(script, fields.id, "script")?,
            print(heap, script, fields.source)?,
            word(fields.source)?,
            word(fields.line_ends)?,
        );
        let name = string_or_nothing(heap, word(fields.name)?, MAX_SCRIPT_NAME)?;
        if let Some((of, known)) = self.scripts.get(&script)
            && *of == key
            && *known.name == *name
            && (key.1.is_hashed() || ends_are(heap, script, &known.ends)?)
        {
            return Ok(Arc::clone(known));
        }
        let read = Script {
            name: name.into(),
            ends: line_ends(heap, script)?.into(),
            line_offset: heap.count(script, fields.line_offset, "script")?,
            column_offset: heap.count(script, fields.column_offset, "script")?,
        };
        heap.work(4 * read.ends.len())?;
        self.make_room(read.name.len() + 4 * read.ends.len());
        let read = Arc::new(read);
        self.scripts.insert(script, (key, Arc::clone(&read)));
        Ok(read)
    }
}

/// What tells the function of a `SharedFunctionInfo` from every other.
pub(super) fn identity<M: Memory>(heap: &Heap<'_, M>, shared: Object) -> Result<Identity, Unknown> {
    let fields = &heap.layout.shared;
    heap.typed(shared, heap.layout.types.shared, "function's description")?;
    let script = script_of(heap, shared)?;
    Ok(Identity {
        script: heap.small(script, heap.layout.script.id, "script")?,
        literal: heap.u32(shared, fields.literal)?,
        source: print(heap, script, heap.layout.script.source)?,
        name: print(heap, script, heap.layout.script.name)?,
    })
}

fn script_of<M: Memory>(heap: &Heap<'_, M>, shared: Object) -> Result<Object, Unknown> {
    let script = heap.object(shared, heap.layout.shared.script, "script")?;
    heap.typed(script, heap.layout.types.script, "script")
}

/// What a script's string is known again by. What stands there instead of a string is read as one.
fn print<M: Memory>(heap: &Heap<'_, M>, script: Object, field: u64) -> Result<Print, Unknown> {
    let string = Object::of(heap.word(script, field)?);
    string.map_or(Ok(Print(0)), |string| Ok(Print(heap.word(string, heap.layout.strings.print())?)))
}

/// The table of the ends of lines, if V8 has made it, and how many there are.
fn table_of_ends<M: Memory>(heap: &Heap<'_, M>, script: Object) -> Result<Option<(Object, u32)>, Unknown> {
    let table = Object::of(heap.word(script, heap.layout.script.line_ends)?);
    Ok(table.and_then(|table| Some((table, heap.array(table, "ends of lines").ok()?))))
}

/// Whether lines end where they did. All of a long script would be too much to be read each time: some are looked at,
/// throughout.
fn ends_are<M: Memory>(heap: &Heap<'_, M>, script: Object, ends: &[u32]) -> Result<bool, Unknown> {
    let length = ends.last().copied().unwrap_or(0);
    if length <= MAX_HASHED {
        return Ok(line_ends(heap, script)? == ends);
    }
    let table = table_of_ends(heap, script)?;
    if table.is_some_and(|(_, count)| usize::try_from(count) != Ok(ends.len())) {
        return Ok(false);
    }
    let source = heap.object(script, heap.layout.script.source, "source")?;
    for (index, end) in ends.iter().enumerate().step_by(ends.len().div_ceil(LOOKS)).filter(|(_, end)| **end < length) {
        let is_end = if let Some((table, _)) = table {
            small_integer(heap.element(table, index as u64)?).and_then(|end| u32::try_from(end).ok()) == Some(*end)
        } else {
            let mut is_end = false;
            heap.part(source, (*end, 1), &mut |unit| is_end = matches!(unit, 0xa | 0xd | 0x2028 | 0x2029))?;
            is_end
        };
        if !is_end {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Where lines end: of the table that V8 makes when it first needs a line, else of the source.
fn line_ends<M: Memory>(heap: &Heap<'_, M>, script: Object) -> Result<Vec<u32>, Unknown> {
    if let Some((table, count)) = table_of_ends(heap, script)? {
        if count > MAX_LINES {
            return Err(Unknown::TooLarge("script"));
        }
        let end = |index| {
            let end = small_integer(heap.element(table, u64::from(index))?);
            end.and_then(|end| u32::try_from(end).ok()).ok_or(Unknown::No("ends of lines"))
        };
        let ends = (0..count).map(end).collect::<Result<Vec<u32>, Unknown>>()?;
        return if ends.is_sorted() { Ok(ends) } else { Err(Unknown::No("ends of lines")) };
    }
    let source = heap.object(script, heap.layout.script.source, "source")?;
    let mut ends = Vec::new();
    let (mut at, mut after_return) = (0_u32, false);
    heap.characters(source, MAX_SOURCE, false, &mut |unit| {
        // A line that ends with both ends with the second.
        if after_return && unit != u16::from(b'\n') {
            ends.push(at - 1);
        }
        after_return = unit == u16::from(b'\r');
        if unit == u16::from(b'\n') || matches!(unit, 0x2028 | 0x2029) {
            ends.push(at);
        }
        at += 1;
    })?;
    if after_return {
        ends.push(at - 1);
    }
    ends.push(at);
    if ends.len() > usize::try_from(MAX_LINES).unwrap_or(0) { Err(Unknown::TooLarge("script")) } else { Ok(ends) }
}

/// A function's name, and the character of the script at which its parameters begin.
fn name_and_start<M: Memory>(heap: &Heap<'_, M>, shared: Object) -> Result<(String, Option<u32>), Unknown> {
    let fields = &heap.layout.shared;
    let named = heap.word(shared, fields.name_or_scope)?;
    if let Some(object) = Object::of(named)
        && heap.type_of(object)? == heap.layout.types.scope
    {
        return of_scope(heap, object);
    }
    // A function that is not compiled, or not any more: the name stands for itself, the rest is kept beside.
    let mut name = string_or_nothing(heap, named, MAX_NAME)?;
    let mut start = None;
    if let Some(data) = Object::of(heap.word(shared, fields.data)?)
        && heap.layout.types.uncompiled.contains(&heap.type_of(data)?)
    {
        start = Some(heap.u32(data, fields.start_position)?);
        if name.is_empty() {
            name = string_or_nothing(heap, heap.word(data, fields.inferred_name)?, MAX_NAME)?;
        }
    }
    Ok((name, start))
}

/// The text of a string; none for another object, such as the one that stands for nothing.
fn string_or_nothing<M: Memory>(heap: &Heap<'_, M>, word: u64, max: u32) -> Result<String, Unknown> {
    match Object::of(word) {
        Some(object) if heap.is_string(object)? => heap.text(object, max),
        _ => Ok(String::new()),
    }
}

/// Bits of a scope's flags, the same in every version that is known.
mod flags {
    pub(super) const TYPE: u32 = 0xf;
    pub(super) const SAVED_CLASS_VARIABLE: u32 = 1 << 10;
    pub(super) const FUNCTION_VARIABLE: u32 = 3 << 12;
    pub(super) const INFERRED_NAME: u32 = 1 << 14;
}

/// The fields of a scope stand behind each other; which there are, its flags say.
fn of_scope<M: Memory>(heap: &Heap<'_, M>, scope: Object) -> Result<(String, Option<u32>), Unknown> {
    let fields = &heap.layout.scope;
    let word = heap.word(scope, WORD)?;
    let flags = if fields.tagged_flags {
        small_integer(word).ok_or(Unknown::No("scope"))?.cast_unsigned()
    } else {
        u32::try_from(word & 0xffff_ffff).unwrap_or(0)
    };
    let locals = u64::from(heap.count(scope, fields.context_locals, "scope")?);
    if locals > 1 << 20 {
        return Err(Unknown::TooLarge("scope"));
    }
    let mut at = fields.first_variable;
    if flags & flags::TYPE == fields.module_scope {
        at += WORD;
    }
    // The names or their table, then what kind of variable each is.
    at += WORD * (locals + if locals < INLINED_NAMES { locals } else { 1 });
    if flags & flags::SAVED_CLASS_VARIABLE != 0 {
        at += WORD;
    }
    let mut name = String::new();
    if flags & flags::FUNCTION_VARIABLE != 0 {
        name = string_or_nothing(heap, heap.word(scope, at)?, MAX_NAME)?;
        at += 2 * WORD;
    }
    if flags & flags::INFERRED_NAME != 0 {
        if name.is_empty() {
            name = string_or_nothing(heap, heap.word(scope, at)?, MAX_NAME)?;
        }
        at += WORD;
    }
    let start = small_integer(heap.word(scope, fields.start.unwrap_or(at))?);
    Ok((name, start.and_then(|start| u32::try_from(start).ok())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_another_one_by_its_length_or_its_hash() {
        let (length, hash) = (7_u64 << 32, 0x9ae2);
        let is = |one: u64, other: u64| {
            let same = Print(one).is(Print(other));
            assert_eq!(Print(other).is(Print(one)), same);
            same
        };
        assert_eq!(is(length | hash, length | hash), Some(true));
        assert_eq!(is(length | hash, length | (hash ^ 0x40)), Some(false));
        assert_eq!(is(length | hash, (8 << 32) | hash), Some(false));
        // The hash was needed in between, or never.
        assert_eq!(is(length | hash, length | 3), None);
        assert_eq!(is(length | 3, length | 3), None);
        // The hash of a long string is its length, above the two bits.
        let trivial = |length: u64| (length << 32) | (length << 2) | 2;
        assert_eq!(is(trivial(16_383), trivial(16_383)), Some(true));
        assert_eq!(is(trivial(16_384), trivial(16_384)), None);
        assert_eq!(is(trivial(16_384), trivial(16_385)), Some(false));
    }

    #[test]
    fn a_script_is_a_sample_s_if_one_string_vouches_for_it_or_nothing_has_changed() {
        let [hashed, other, unhashed] = [0x9ae2, 0x9aa2, 3].map(|hash| Print((7 << 32) | hash));
        let longer = Print((8 << 32) | 3);
        let is_of = |source: [Print; 2], name: [Print; 2]| {
            let [(taken, now), (taken_name, now_name)] = [source, name].map(|[taken, now]| (taken, now));
            let identity = Identity { script: 1, literal: 1, source: now, name: now_name };
            identity.is_of(Some(taken), Some(taken_name))
        };
        for (this, that) in [([hashed, hashed], [unhashed, unhashed]), ([hashed, hashed], [unhashed, hashed])] {
            assert!(is_of(this, that) && is_of(that, this));
        }
        for (this, that) in [([hashed, hashed], [hashed, other]), ([hashed, hashed], [unhashed, longer])] {
            assert!(!is_of(this, that) && !is_of(that, this));
        }
        assert!(is_of([unhashed; 2], [unhashed; 2]));
        assert!(!is_of([unhashed, hashed], [unhashed; 2]) && !is_of([unhashed; 2], [hashed, unhashed]));
        // What was not taken is not compared.
        let identity = Identity { script: 1, literal: 1, source: hashed, name: hashed };
        assert!(identity.is_of(None, None) && identity.is_of(Some(hashed), None) && identity.is_of(None, Some(hashed)));
        assert!(!identity.is_of(Some(other), None) && !identity.is_of(Some(unhashed), None));
    }

    #[test]
    fn a_character_has_the_line_that_ends_at_or_behind_it() {
        let script = Script { name: "".into(), ends: [4, 5, 9].into(), line_offset: 0, column_offset: 60 };
        let place = |character| script.place(character).map(|place| (place.line, place.column));
        assert_eq!(place(0), Some((1, 61)));
        assert_eq!(place(4), Some((1, 65)));
        assert_eq!(place(5), Some((2, 1)));
        assert_eq!(place(9), Some((3, 4)));
        assert_eq!(place(10), None);
    }
}
