//! Where a thread finds its state.
//!
//! There are two places. A variable of the thread's own has it while the thread holds the lock (from 3.12 on); a key of the
//! C library's (`__thread` from 3.15 on) has it for as long as there is such a thread. No symbol says where either is: the
//! functions that read the variables do, and the key is the one by which the threads' states are found that the runtime
//! lists.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use jitprof_common::listed::Step;
use jitprof_common::units::Avma;

use super::Version;
use super::layout::LayoutError;
use crate::pthread::{self, Key, Keys};
use crate::{Memory, ReadError, Reader, Symbols};

/// Interpreters that are looked at.
const MAX_INTERPRETERS: usize = 16;
/// Threads that are looked at for the key by which all of them have their states, and those that are looked for.
const MAX_THREADS: usize = 64;
const MAX_ALL_THREADS: usize = 4096;
/// Bytes of a function that are looked at.
const MAX_CODE: usize = 64;
/// Registers that are followed.
const REGISTERS: usize = 16;

/// Offsets of the lists of threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Threads {
    /// In the runtime: the first interpreter.
    pub(super) interpreters: u64,
    /// In an interpreter: the next one, and its first thread.
    pub(super) next_interpreter: u64,
    pub(super) first: u64,
    /// In a thread's state: the next one, what the C library calls the thread, and what the kernel does, from 3.11 on.
    pub(super) next: u64,
    pub(super) id: u64,
    pub(super) number: Option<u64>,
}

/// The ways from the thread pointer to the thread's state.
pub(super) fn bases<S: Symbols, M: Memory>(
    version: Version,
    runtime: Avma,
    threads: &Threads,
    (python, libc): (&S, Option<&S>),
    reader: &Reader<M>,
) -> Result<Vec<Vec<Step>>, LayoutError> {
    let keys = libc.and_then(|libc| libc.address_of(Keys::SYMBOL));
    // Another C library keeps the blocks of libraries in another way.
    let is_known = |steps: &Vec<Step>| keys.is_some() || !pthread::is_through_block(steps);
    let of_function = |name| python.address_of(name).and_then(|at| variable_of(reader, at)).filter(is_known);
    let mut bases: Vec<Vec<Step>> = Vec::new();
    if version.minor >= 12 {
        bases.extend(of_function("_PyThreadState_GetCurrent"));
    }
    let kept = "PyGILState_GetThisThreadState";
    if version.minor >= 15 {
        bases.extend(of_function(kept));
    } else if let Some(at) = keys {
        let keys = Keys::read(at, reader)?;
        let states = states(runtime, threads, MAX_THREADS, reader)?;
        if states.is_empty() {
            return Err(LayoutError::NotStarted(version));
        }
        if let Some(key) = key_of(&states, keys, reader) {
            bases.push(keys.way_to(key).to_vec());
        }
    }
    let what = if version.minor >= 12 { "_PyThreadState_GetCurrent" } else { kept };
    if bases.is_empty() { Err(LayoutError::Missing { version, what }) } else { Ok(bases) }
}

/// The number and the thread pointer of each thread that the runtime lists.
pub(super) fn pointers<M: Memory>(
    runtime: Avma,
    threads: &Threads,
    reader: &Reader<M>,
) -> Result<Vec<(u32, u64)>, ReadError> {
    let states = states(runtime, threads, MAX_ALL_THREADS, reader)?;
    let numbered = states.into_iter().filter_map(|(state, pointer)| {
        let number = match threads.number {
            Some(offset) => u32::try_from(reader.u64(Avma(state.wrapping_add(offset))).ok()?).ok()?,
            None => pthread::glibc_number(pointer, reader).ok()?,
        };
        Some((number, pointer))
    });
    Ok(numbered.collect())
}

/// The states of threads that the runtime lists, at most so many of an interpreter, with the thread pointer of each.
fn states<M: Memory>(
    runtime: Avma,
    threads: &Threads,
    limit: usize,
    reader: &Reader<M>,
) -> Result<Vec<(u64, u64)>, ReadError> {
    let word = |object: u64, offset: u64| reader.u64(Avma(object.wrapping_add(offset)));
    let mut found = Vec::new();
    let mut interpreter = word(runtime.0, threads.interpreters)?;
    for _ in 0..MAX_INTERPRETERS {
        if interpreter == 0 {
            break;
        }
        let mut state = word(interpreter, threads.first)?;
        for _ in 0..limit {
            if state == 0 {
                break;
            }
            // glibc calls a thread by its thread pointer. It is put there when the thread is given its state.
            let thread = word(state, threads.id)?;
            if thread != 0 {
                found.push((state, thread));
            }
            state = word(state, threads.next)?;
        }
        interpreter = word(interpreter, threads.next_interpreter)?;
    }
    Ok(found)
}

/// The key by which most of the threads have their states.
fn key_of<M: Memory>(states: &[(u64, u64)], keys: Keys, reader: &Reader<M>) -> Option<Key> {
    let mut found = [0_u32; Key::COUNT as usize];
    for (state, thread) in states {
        // Threads come and go.
        let Ok(values) = keys.values(*thread, reader) else { continue };
        for (count, value) in found.iter_mut().zip(values) {
            *count += u32::from(value == *state);
        }
    }
    let (key, count) = Key::all().zip(found).rev().max_by_key(|(_, count)| *count)?;
    (count > 0).then_some(key)
}

/// What is in a register.
#[derive(Clone, Debug)]
enum Value {
    Number(u64),
    /// What these steps lead to.
    Steps(Vec<Step>),
}

/// The thread's own variable whose value a function returns: the steps to the value.
///
/// The function is followed instruction by instruction. How it comes to the variable depends on whether it was built for a
/// program or for a library, and on what the linker has made of it: by a number or by one that the loader has written, from
/// the thread pointer, or by the number of the library and a number in its block.
pub(crate) fn variable_of<M: Memory>(reader: &Reader<M>, function: Avma) -> Option<Vec<Step>> {
    let mut bytes = [0; MAX_CODE];
    reader.bytes(function, &mut bytes).ok()?;
    let mut registers = Registers { values: [const { None }; REGISTERS] };
    let decoder = Decoder::with_ip(64, &bytes, function.0, DecoderOptions::NONE);
    for instruction in decoder {
        match instruction.flow_control() {
            FlowControl::Next => registers.follow(reader, &instruction),
            FlowControl::Call => registers.call(reader),
            // Where there is none, another value is returned.
            FlowControl::ConditionalBranch => {}
            FlowControl::Return => return registers.returned(),
            _ => return None,
        }
    }
    None
}

struct Registers {
    values: [Option<Value>; REGISTERS],
}

impl Registers {
    fn get(&self, register: Register) -> Option<&Value> {
        self.values.get(place_of(register)?)?.as_ref()
    }

    fn set(&mut self, register: Register, value: Option<Value>) {
        if let Some(to) = place_of(register).and_then(|at| self.values.get_mut(at)) {
            *to = value;
        }
    }

    /// The steps to what is returned, if that is what a variable has.
    fn returned(&self) -> Option<Vec<Step>> {
        match self.get(Register::RAX)? {
            Value::Steps(steps) if steps.last().is_some_and(|step| step.op == Step::LOAD) => Some(steps.clone()),
            _ => None,
        }
    }

    fn follow<M: Memory>(&mut self, reader: &Reader<M>, instruction: &Instruction) {
        let to = match instruction.mnemonic() {
            // What compares and what moves the stack changes no register that is followed.
            Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push => return,
            _ if instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Register => instruction.op0_register(),
            _ => return,
        };
        let value = match instruction.mnemonic() {
            Mnemonic::Lea => self.address(instruction),
            Mnemonic::Mov => self.operand(reader, instruction),
            Mnemonic::Add => {
                let (one, other) = (self.get(to).cloned(), self.operand(reader, instruction));
                one.zip(other).and_then(|(one, other)| sum(one, other))
            }
            _ => None,
        };
        // A part of a register is no address.
        self.set(to.full_register(), value.filter(|_| to.is_gpr64()));
    }

    /// The address of a variable of the thread's own: by the library's number and a number within its block, which the
    /// loader has put where the first argument points.
    fn call<M: Memory>(&mut self, reader: &Reader<M>) {
        let value = match self.get(Register::RDI) {
            Some(Value::Number(at)) => {
                let word = |at: u64| reader.u64(Avma(at)).ok();
                word(*at).zip(word(at.wrapping_add(8))).map(|(library, offset)| {
                    Value::Steps([&pthread::way_to_block(library)[..], &[Step::add(offset)]].concat())
                })
            }
            _ => None,
        };
        self.values = [const { None }; REGISTERS];
        self.set(Register::RAX, value);
    }

    /// What the second operand is.
    fn operand<M: Memory>(&self, reader: &Reader<M>, instruction: &Instruction) -> Option<Value> {
        match instruction.op1_kind() {
            OpKind::Register => self.get(instruction.op1_register()).cloned(),
            OpKind::Memory => self.word(reader, instruction),
            _ => instruction.try_immediate(1).ok().map(Value::Number),
        }
    }

    /// The word that an instruction reads.
    fn word<M: Memory>(&self, reader: &Reader<M>, instruction: &Instruction) -> Option<Value> {
        let address = self.address(instruction)?;
        match (instruction.segment_prefix(), address) {
            // The first word at the thread pointer is the thread pointer.
            (Register::FS, Value::Number(0)) => Some(Value::Steps(vec![Step::add_thread_pointer(0)])),
            (Register::FS, Value::Number(offset)) => {
                Some(Value::Steps(vec![Step::add_thread_pointer(offset), Step::load(0)]))
            }
            (Register::None, Value::Number(at)) => reader.u64(Avma(at)).ok().map(Value::Number),
            (Register::None, Value::Steps(mut steps)) => {
                let offset = steps.pop_if(|last| last.op == Step::ADD).map_or(0, |last| last.operand);
                steps.push(Step::load(offset));
                Some(Value::Steps(steps))
            }
            _ => None,
        }
    }

    /// What an instruction's memory operand says, without the segment.
    fn address(&self, instruction: &Instruction) -> Option<Value> {
        if instruction.memory_index() != Register::None {
            return None;
        }
        let displacement = Value::Number(instruction.memory_displacement64());
        match instruction.memory_base() {
            Register::None | Register::RIP => Some(displacement),
            base => sum(self.get(base).cloned()?, displacement),
        }
    }
}

fn sum(one: Value, other: Value) -> Option<Value> {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => Some(Value::Number(one.wrapping_add(other))),
        (Value::Steps(mut steps), Value::Number(number)) | (Value::Number(number), Value::Steps(mut steps)) => {
            match steps.last_mut() {
                Some(last) if last.op != Step::LOAD => last.operand = last.operand.wrapping_add(number),
                _ => steps.push(Step::add(number)),
            }
            Some(Value::Steps(steps))
        }
        (Value::Steps(_), Value::Steps(_)) => None,
    }
}

fn place_of(register: Register) -> Option<usize> {
    register.is_gpr64().then(|| register.number())
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::Budget;

    /// Where the function is, and where behind it the numbers are that the loader has written: 7 and -8.
    const FUNCTION: u64 = 0x1000;
    const NUMBERS: u8 = 0x80;

    struct Bytes(Vec<u8>);

    impl Memory for Bytes {
        fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
            let from = address.0.checked_sub(FUNCTION).and_then(|from| usize::try_from(from).ok());
            let part = from.and_then(|from| self.0.get(from..)).ok_or(io::ErrorKind::NotFound)?;
            let count = part.len().min(into.len());
            into[..count].copy_from_slice(&part[..count]);
            Ok(count)
        }
    }

    fn variable(code: &[u8]) -> Option<Vec<Step>> {
        let mut bytes = code.to_vec();
        bytes.resize(NUMBERS.into(), 0xcc);
        bytes.extend(7_u64.to_le_bytes());
        bytes.extend((-8_i64).to_le_bytes());
        variable_of(&Reader::new(Bytes(bytes), Budget { pages: 9, steps: 100 }), Avma(FUNCTION))
    }

    const ENDBR: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    const RET: &[u8] = &[0xc3];

    #[test]
    fn a_programs_variable_is_found_by_its_number() {
        let expected = Some(vec![Step::add_thread_pointer(8_u64.wrapping_neg()), Step::load(0)]);
        // mov rax, fs:[-8]
        let absolute = [0x64, 0x48, 0x8b, 0x04, 0x25, 0xf8, 0xff, 0xff, 0xff];
        assert_eq!(variable(&[&absolute, RET].concat()), expected);
        assert_eq!(variable(&[ENDBR, &[0x55, 0x48, 0x89, 0xe5], &absolute, &[0x5d], RET].concat()), expected);
        // mov rax, -8; mov rax, fs:[rax]
        let number = [0x48, 0xc7, 0xc0, 0xf8, 0xff, 0xff, 0xff, 0x64, 0x48, 0x8b, 0x00];
        assert_eq!(variable(&[&number, RET].concat()), expected);
        // What linkers make of a library's way: mov rax, fs:[0]; lea rax, [rax - 8]; mov rax, [rax]
        let pointer = [0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0];
        let relaxed = [&pointer[..], &[0x48, 0x8d, 0x80, 0xf8, 0xff, 0xff, 0xff, 0x48, 0x8b, 0x00], RET];
        assert_eq!(variable(&relaxed.concat()), expected);
        // The loader's number: mov rax, [rip + x]; mov rax, fs:[rax]
        let loaders = [0x48, 0x8b, 0x05, NUMBERS + 8 - 7, 0, 0, 0, 0x64, 0x48, 0x8b, 0x00];
        assert_eq!(variable(&[&loaders, RET].concat()), expected);
        // mov rax, fs:[0]; add rax, [rip + x]; mov rax, [rax]
        let added = [&pointer[..], &[0x48, 0x03, 0x05, NUMBERS + 8 - 16, 0, 0, 0, 0x48, 0x8b, 0x00], RET];
        assert_eq!(variable(&added.concat()), expected);
    }

    #[test]
    fn a_librarys_variable_is_found_in_its_block() {
        // sub rsp, 8; lea rdi, [rip + x]; call; mov rax, [rax]; add rsp, 8
        let code = |before: &[u8]| {
            let at = NUMBERS - 12 - u8::try_from(before.len()).unwrap();
            [
                before,
                &[0x48, 0x83, 0xec, 0x08, 0x66, 0x48, 0x8d, 0x3d, at, 0, 0, 0],
                &[0x66, 0x66, 0x48, 0xe8, 0, 1, 0, 0, 0x48, 0x8b, 0x00, 0x48, 0x83, 0xc4, 0x08, 0xc3],
            ]
            .concat()
        };
        let block = [Step::add_thread_pointer(8), Step::load(0), Step::load(7 * 16)];
        let expected = Some([&block[..], &[Step::load(8_u64.wrapping_neg())]].concat());
        assert_eq!(variable(&code(&[])), expected);
        assert_eq!(variable(&code(ENDBR)), expected);
    }

    #[test]
    fn what_returns_no_such_variable_is_none() {
        // xor eax, eax; a number; a jump; the address of the variable; half of it; no end.
        let codes: [&[u8]; 6] = [
            &[0x31, 0xc0, 0xc3],
            &[0x48, 0xc7, 0xc0, 1, 0, 0, 0, 0xc3],
            &[0xe9, 0, 0, 0, 0, 0xc3],
            &[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0, 0x48, 0x83, 0xc0, 0x08, 0xc3],
            &[0x64, 0x8b, 0x04, 0x25, 0xf8, 0xff, 0xff, 0xff, 0xc3],
            &[0x90; 0x80],
        ];
        for code in codes {
            assert_eq!(variable(code), None, "{code:x?}");
        }
    }
}
