//! From events to records: what is known of the runtime's code, and what each event changes about it.

use std::sync::Arc;

use crate::dump::Dump;
use crate::event::{self, Code, Event};
use crate::inlines::Inlines;
use crate::memory;
use crate::methods::{Methods, Unit};
use crate::module::{self, Inlined, Object};
use crate::record::{Group, Loss, Range};
use crate::regions::Region;
use crate::report::Failure;
use crate::rows::{ENTRY_BYTES, MAX_ENTRIES, Row, rows};
use crate::sys;

/// The longest name. Readers cut at 1 KiB or 64 KiB.
const MAX_NAME: usize = 8 << 10;
/// The longest path.
const MAX_PATH: usize = 4095;
/// The largest function. A size above it is damage; the longest function seen in any runtime has 1.3 MB.
const MAX_CODE: u32 = 16 << 20;
/// Buffers are kept for the next event up to this size.
const MAX_KEPT_ROOM: usize = 256 << 10;

/// Numbers of inlined parts that have none of the runtime's are above.
const OWN_NUMBERS: u32 = 1 << 31;

/// wasmtime (all versions so far) gives its own name as every function's class.
const CLASSES_THAT_ARE_MODULES: [&[u8]; 1] = [b"wasmtime"];
/// wasmtime's source of modules without debug information is `<unknown wasm filename>`.
const NO_SOURCE: &[u8] = b"<unknown";

/// The state of one process.
#[derive(Debug)]
pub(crate) struct Collector {
    pid: u32,
    dump: Option<Dump>,
    methods: Methods,
    inlines: Inlines,
    next_index: u64,
    /// The number given to an inlined part last; they count down.
    last_number: u32,
    room: Vec<u8>,
    code: Vec<u8>,
}

/// Why an event was not taken up.
#[derive(Debug)]
enum Trouble {
    /// It is lost alone.
    Lost(Loss),
    /// Nothing can be written any more.
    Failed(Failure),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Code that is announced.
struct New<'a> {
    region: Region,
    name: &'a [u8],
    unit: Arc<Unit>,
    rows: &'a [(Row, &'a [u8])],
    /// `.eh_frame` and its header, and how long the header is.
    unwinding: Option<&'a (Vec<u8>, usize)>,
    /// What its debug information says was inlined.
    inlined: &'a [Inlined<'a>],
    /// The event, if a part of it could not be read.
    incomplete: Option<u32>,
}

impl Collector {
    /// For the process of this number, that has announced nothing yet.
    pub(crate) fn new(pid: u32) -> Self {
        Self {
            pid,
            dump: None,
            methods: Methods::default(),
            inlines: Inlines::default(),
            next_index: 0,
            last_number: u32::MAX,
            room: Vec::new(),
            code: Vec::new(),
        }
    }

    /// For a forked child: it runs its parent's code, and announces its own in a dump of its own.
    pub(crate) fn child(&mut self, pid: u32) -> Self {
        let methods = std::mem::take(&mut self.methods);
        Self { methods, ..Self::new(pid) }
    }

    /// Makes the dump, so that a profiler sees it before the first method.
    pub(crate) fn open(&mut self) -> Result<&Dump, Failure> {
        let dump = match self.dump.take() {
            Some(dump) => dump,
            None => Dump::create(self.pid)?,
        };
        Ok(self.dump.insert(dump))
    }

    /// Takes up an event with the structure at `data`.
    pub(crate) fn event(&mut self, number: u32, data: u64) -> Result<(), Failure> {
        let Some(length) = event::bytes_of(number) else { return Ok(()) };
        let mut bytes = [0; event::MAX_BYTES];
        let bytes = bytes.get_mut(..length).unwrap_or_default();
        let outcome = if memory::read(data, bytes) {
            event::decode(number, bytes).map_or(Ok(()), |event| self.take_up(number, event))
        } else {
            Err(Trouble::Lost(Loss::Unreadable))
        };
        self.settle(number, outcome)
    }

    /// Takes up an object that a runtime has loaded.
    pub(crate) fn object(&mut self, number: u32, object: &Object) -> Result<(), Failure> {
        let outcome = self.object_functions(object);
        self.settle(number, outcome)
    }

    /// Removes what lies in the sections of an object.
    pub(crate) fn object_gone(&mut self, sections: &[Range]) -> Result<(), Failure> {
        let clear =
            |section: &Range| self.methods.clear(section.start, section.start.saturating_add(u64::from(section.size)));
        let gone: Vec<Region> = sections.iter().flat_map(clear).collect();
        let outcome = self.unloaded(&gone);
        self.settle(0, outcome)
    }

    /// Notes that an event is lost.
    pub(crate) fn lost(&mut self, number: u32, loss: Loss) -> Result<(), Failure> {
        self.settle(number, Err(Trouble::Lost(loss)))
    }

    fn settle(&mut self, number: u32, outcome: Result<(), Trouble>) -> Result<(), Failure> {
        let loss = match outcome {
            Ok(()) => return Ok(()),
            Err(Trouble::Failed(failure)) => return Err(failure),
            Err(Trouble::Lost(loss)) => loss,
        };
        let mut group = self.group();
        group.lost(number, loss);
        match self.write(group) {
            Err(Trouble::Failed(failure)) => Err(failure),
            _ => Ok(()),
        }
    }

    fn take_up(&mut self, number: u32, event: Event) -> Result<(), Trouble> {
        match event {
            Event::Load(code) => self.load(number, &code),
            Event::Unload { method } => {
                let gone = self.methods.remove(method);
                self.unloaded(&gone)
            }
            Event::Update { method, address, size } => self.update(method, address, size),
            Event::UpdateAt { address, size } => {
                let region = self.methods.at(address).ok_or(Trouble::Lost(Loss::Unknown))?;
                self.update(region.method, address, size)
            }
            Event::Inline { code, parent } => self.inline(&code, parent),
        }
    }

    fn load(&mut self, number: u32, code: &Code) -> Result<(), Trouble> {
        check(code)?;
        let mut complete = true;
        let (name, unit) = match self.methods.get(code.method) {
            // One more region: the first announcement has named the method.
            Some(known) => (known.name.to_vec(), Arc::clone(&known.unit)),
            None => {
                let (name, unit) = describe(code, &mut complete)?;
                (name, self.methods.unit(unit))
            }
        };
        let lines = line_table(code, &mut complete);
        let rows: Vec<(Row, &[u8])> =
            if unit.source.is_empty() { Vec::new() } else { lines.iter().map(|row| (*row, &*unit.source)).collect() };
        self.announce(New {
            region: Region { start: code.address, size: code.size, method: code.method },
            name: &name,
            unit: Arc::clone(&unit),
            rows: &rows,
            unwinding: None,
            inlined: &[],
            incomplete: (!complete).then_some(number),
        })
    }

    /// The code of a known method has changed: its whole region is announced again, without lines, because they are
    /// those of the code before.
    fn update(&mut self, method: u32, address: u64, size: u32) -> Result<(), Trouble> {
        let known = self.methods.get(method).ok_or(Trouble::Lost(Loss::Unknown))?;
        let (name, unit) = (known.name.to_vec(), Arc::clone(&known.unit));
        let end = address.saturating_add(u64::from(size));
        let own = self.methods.at(address).filter(|region| region.method == method);
        let start = own.map_or(address, |region| region.start);
        let end = own.map_or(end, |region| region.end().max(end));
        let size = u32::try_from(end - start).ok().filter(|size| (1..=MAX_CODE).contains(size));
        let size = size.ok_or(Trouble::Lost(Loss::TooLarge))?;
        let region = Region { start, size, method };
        self.announce(New { region, name: &name, unit, rows: &[], unwinding: None, inlined: &[], incomplete: None })
    }

    fn inline(&mut self, code: &Code, parent: u32) -> Result<(), Trouble> {
        check(code)?;
        if parent == 0 {
            return Err(Trouble::Lost(Loss::Rejected));
        }
        let mut complete = true;
        let (name, unit) = describe(code, &mut complete)?;
        let lines = line_table(code, &mut complete);
        let range = Range { start: code.address, size: code.size };
        let end = code.address.saturating_add(u64::from(code.size));
        let mut group = self.group();
        group.inline(range, (code.method, parent), &name, &unit.source, &lines);
        let around = self.methods.at(code.address);
        let around = around.filter(|region| region.end() >= end && self.inlines.belongs(parent, region.method));
        if let Some(region) = around {
            self.inlines.note(code.method, region.method);
            return self.write(group);
        }
        let record = group.bytes().ok_or(Trouble::Lost(Loss::Memory))?;
        let waits = self.inlines.wait(code.address, end, code.method, record);
        self.keep_room(group);
        if waits { Ok(()) } else { Err(Trouble::Lost(Loss::Memory)) }
    }

    fn object_functions(&mut self, object: &Object) -> Result<(), Trouble> {
        let functions = module::functions(object).ok_or(Trouble::Lost(Loss::Damaged))?;
        let unit = self.methods.unit(Unit { source: Box::default(), module: object.name.as_slice().into() });
        let too_many = || Err(Trouble::Lost(Loss::TooLarge));
        let mut outcome = if functions.cut { too_many() } else { Ok(()) };
        for function in &functions.list {
            let (rows, inlined, complete) = functions.levels(function);
            if !complete {
                outcome = too_many();
            }
            let new = New {
                region: Region { start: function.start, size: function.size, method: 0 },
                name: &function.name,
                unit: Arc::clone(&unit),
                rows: &rows,
                unwinding: function.unwinding.as_ref(),
                inlined: &inlined,
                incomplete: None,
            };
            match self.announce(new) {
                Err(Trouble::Failed(failure)) => return Err(Trouble::Failed(failure)),
                // One that cannot be read does not cost the others.
                Err(lost) => outcome = Err(lost),
                Ok(()) => {}
            }
        }
        outcome
    }

    /// Writes everything about new code, and remembers it.
    fn announce(&mut self, new: New<'_>) -> Result<(), Trouble> {
        let region = new.region;
        if region.size > MAX_CODE {
            return Err(Trouble::Lost(Loss::TooLarge));
        }
        let mut code = std::mem::take(&mut self.code);
        code.clear();
        let size = usize::try_from(region.size).unwrap_or(usize::MAX);
        if !memory::append(region.start, size, &mut code) {
            self.code = code;
            return Err(Trouble::Lost(Loss::Unreadable));
        }
        let mut group = self.group();
        if let Some(event) = new.incomplete {
            group.lost(event, Loss::Unreadable);
        }
        for gone in self.methods.displace(region.start, region.end(), region.method) {
            // The others end by what is loaded over them.
            if gone.end() <= region.start || gone.start >= region.end() {
                group.unload(Range { start: gone.start, size: gone.size });
            }
        }
        if new.unit.source.len() + new.unit.module.len() > 0 {
            group.method(region.start, region.method, &new.unit.source, &new.unit.module);
        }
        group.debug_info(region.start, new.rows.iter().copied());
        if let Some((data, header)) = new.unwinding {
            group.unwinding_info(data, *header);
        }
        group.load((self.pid, sys::tid()), region.start, self.next_index, new.name, &code);
        for inline in self.inlines.take(region.start, region.end(), region.method) {
            group.again(&inline);
        }
        self.inlined(&mut group, region.method, new.inlined);
        self.next_index += 1;
        self.code = kept(code);
        self.write(group)?;
        if self.methods.add(region, new.name, new.unit) { Ok(()) } else { Err(Trouble::Lost(Loss::Memory)) }
    }

    /// The parts that an object's debug information knows. It gives them no numbers: those used are ones that no
    /// runtime has counted up to.
    fn inlined(&mut self, group: &mut Group, method: u32, inlined: &[Inlined<'_>]) {
        let mut numbers: Vec<u32> = Vec::with_capacity(inlined.len());
        for part in inlined {
            let parent = part.parent.and_then(|parent| numbers.get(parent).copied()).unwrap_or(method);
            self.last_number =
                self.last_number.checked_sub(1).filter(|number| *number > OWN_NUMBERS).unwrap_or(u32::MAX);
            numbers.push(self.last_number);
            group.inline(part.range, (self.last_number, parent), part.name, part.source, &part.rows);
        }
    }

    fn unloaded(&mut self, gone: &[Region]) -> Result<(), Trouble> {
        if gone.is_empty() {
            return Ok(());
        }
        let mut group = self.group();
        for region in gone {
            group.unload(Range { start: region.start, size: region.size });
        }
        self.write(group)
    }

    /// A group of records of now. Taken inside of the lock, so times ascend in the file.
    fn group(&mut self) -> Group {
        Group::new(std::mem::take(&mut self.room), sys::monotonic_ns())
    }

    fn write(&mut self, group: Group) -> Result<(), Trouble> {
        let written = match group.bytes() {
            Some(bytes) => self.open().and_then(|dump| dump.append(bytes)).map_err(Trouble::from),
            None => Err(Trouble::Lost(Loss::Memory)),
        };
        self.keep_room(group);
        written
    }

    fn keep_room(&mut self, group: Group) {
        self.room = kept(group.into_room());
    }
}

fn kept(room: Vec<u8>) -> Vec<u8> {
    if room.capacity() <= MAX_KEPT_ROOM { room } else { Vec::new() }
}

/// What the API rejects.
fn check(code: &Code) -> Result<(), Trouble> {
    if code.method == 0 || code.name == 0 || code.address == 0 || code.size == 0 {
        return Err(Trouble::Lost(Loss::Rejected));
    }
    if code.size > MAX_CODE || code.address.checked_add(u64::from(code.size)).is_none() {
        return Err(Trouble::Lost(Loss::TooLarge));
    }
    Ok(())
}

/// Name, source and module. What beside the name cannot be read is left out.
fn describe(code: &Code, complete: &mut bool) -> Result<(Vec<u8>, Unit), Trouble> {
    let name = memory::string(code.name, MAX_NAME).ok_or(Trouble::Lost(Loss::Unreadable))?;
    let mut optional = |address: u64| {
        let text = if address == 0 { Some(Vec::new()) } else { memory::string(address, MAX_PATH) };
        *complete &= text.is_some();
        text.unwrap_or_default()
    };
    let (class, mut source, mut module) = (optional(code.class), optional(code.source), optional(code.module));
    if source.starts_with(NO_SOURCE) {
        source.clear();
    }
    let names_engine = CLASSES_THAT_ARE_MODULES.contains(&class.as_slice());
    if names_engine && module.is_empty() {
        module.clone_from(&class);
    }
    let prefixed = class.is_empty() || names_engine || name.starts_with(&class);
    let name = if prefixed { name } else { [&class, &b"::"[..], &name].concat() };
    Ok((name, Unit { source: source.into_boxed_slice(), module: module.into_boxed_slice() }))
}

/// The rows of the event's line table; none if it cannot be read.
fn line_table(code: &Code, complete: &mut bool) -> Vec<Row> {
    let count = usize::try_from(code.line_count.min(MAX_ENTRIES)).unwrap_or(0);
    if count == 0 || code.lines == 0 {
        return Vec::new();
    }
    let mut table = Vec::new();
    *complete &= memory::append(code.lines, count * ENTRY_BYTES, &mut table);
    rows(&table, code.size)
}

#[cfg(test)]
mod tests;
