//! What each thread of the emulator knows of its scheduler: the way to the process whose work a dirty one does.
//!
//! ```text
//! thread-specific data → ErtsSchedulerData: … 168 process, 176 type, 184 number (dirty: 0), 192 number among the dirty ones
//! ```
//!
//! OTP's sources have them there from 25 on. That an emulator has them is seen in the data of its first dirty scheduler.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic, Register};
use jitprof_common::listed::Step;
use jitprof_common::units::Avma;

use crate::pthread::{Key, Keys};
use crate::{Memory, Reader, Symbols};

/// The function that gives a thread its scheduler's data. The key of these is a variable without a symbol, which it reads.
const OWN_DATA: &str = "erts_get_scheduler_data";
/// Where the data of the first dirty scheduler are.
const DIRTY_ONES: &str = "erts_aligned_dirty_cpu_scheduler_data";
/// Bytes of the function that are looked at.
const MAX_CODE: usize = 32;
/// Where in a scheduler's data what is.
const PROCESS: u64 = 168;
/// See [`PROCESS`].
const TYPE: u64 = 176;
/// See [`PROCESS`].
const NUMBER: u64 = 184;
/// See [`PROCESS`].
const DIRTY_NUMBER: u64 = 192;
/// `ERTS_SCHED_DIRTY_CPU`.
const DIRTY_CPU: u32 = 1;

/// An emulator whose threads' schedulers can be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedulers {
    key: Key,
}

impl Schedulers {
    /// From a scheduler's data to its process.
    pub const TO_PROCESS: Step = Step::load(PROCESS);
    /// From a scheduler's data to its number; a dirty one has none, and leads nowhere.
    pub const TO_NUMBER: Step = Step::load(NUMBER);

    /// Finds them; nothing if the emulator has no symbols, or is another version.
    pub fn find<M: Memory, S: Symbols>(symbols: S, reader: &Reader<M>) -> Option<Self> {
        let variable = key_variable(symbols.address_of(OWN_DATA)?, reader)?;
        let first = reader.pointer(symbols.address_of(DIRTY_ONES)?).ok()?;
        let key = reader.u32(variable).ok().and_then(Key::new)?;
        is_first_dirty(first, reader).then_some(Self { key })
    }

    /// From the thread pointer to the data of the thread's scheduler.
    pub fn to_data(self, keys: Keys) -> [Step; 3] {
        keys.way_to(self.key)
    }
}

/// The variable that the function reads the key from, to hand it on to what gives a thread its value.
fn key_variable<M: Memory>(function: Avma, reader: &Reader<M>) -> Option<Avma> {
    let mut code = [0; MAX_CODE];
    reader.bytes(function, &mut code).ok()?;
    for instruction in Decoder::with_ip(64, &code, function.0, DecoderOptions::NONE) {
        if instruction.flow_control() != FlowControl::Next {
            return None;
        }
        let is_key = instruction.mnemonic() == Mnemonic::Mov && instruction.op0_register() == Register::EDI;
        if is_key && instruction.is_ip_rel_memory_operand() {
            return Some(Avma(instruction.ip_rel_memory_address()));
        }
    }
    None
}

/// Whether these are the data of the first dirty scheduler.
fn is_first_dirty<M: Memory>(data: Avma, reader: &Reader<M>) -> bool {
    let at = |offset: u64| Avma(data.0.saturating_add(offset));
    let numbers = [NUMBER, DIRTY_NUMBER].map(|offset| reader.u64(at(offset)).ok());
    reader.u32(at(TYPE)).ok() == Some(DIRTY_CPU) && numbers == [Some(0), Some(1)]
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::Budget;

    /// Where the function is, the address of the first dirty scheduler's data, the key, and those data.
    const FUNCTION: u64 = 0x1000;
    const FIRST: u64 = FUNCTION + 0x40;
    const KEY: u64 = FIRST + 8;
    const DATA: u64 = FUNCTION + 0x80;

    struct Emulator(Vec<u8>);

    impl Memory for Emulator {
        fn read(&self, address: Avma, into: &mut [u8]) -> io::Result<usize> {
            let from = address.0.checked_sub(FUNCTION).and_then(|from| usize::try_from(from).ok());
            let part = from.and_then(|from| self.0.get(from..)).ok_or(io::ErrorKind::NotFound)?;
            let count = part.len().min(into.len());
            into[..count].copy_from_slice(&part[..count]);
            Ok(count)
        }
    }

    struct Names(bool);

    impl Symbols for Names {
        fn address_of(&self, name: &str) -> Option<Avma> {
            let known = [(OWN_DATA, FUNCTION), (DIRTY_ONES, FIRST)];
            known.iter().find(|(known, _)| *known == name && self.0).map(|(_, address)| Avma(*address))
        }
    }

    /// An emulator with this code, this key, and with type and numbers of its first dirty scheduler.
    fn emulator(code: &[u8], key: u32, data: [u64; 3]) -> Emulator {
        let mut bytes = code.to_vec();
        bytes.resize(0x40, 0xcc);
        bytes.extend(DATA.to_le_bytes());
        bytes.extend(key.to_le_bytes());
        bytes.resize(0x80 + 176, 0);
        bytes.extend(data.iter().flat_map(|word| word.to_le_bytes()));
        Emulator(bytes)
    }

    fn found(emulator: Emulator) -> Option<Schedulers> {
        Schedulers::find(Names(true), &Reader::new(emulator, Budget { pages: 9, steps: 100 }))
    }

    /// `mov edi, [rip + …]` behind other code, and a jump.
    fn reads_key(before: &[u8]) -> Vec<u8> {
        let behind = FUNCTION + before.len() as u64 + 6;
        [before, &[0x8b, 0x3d], &((KEY - behind) as u32).to_le_bytes(), &[0xe9, 0, 0, 0, 0]].concat()
    }

    const DIRTY: [u64; 3] = [1, 0, 1];

    #[test]
    fn the_key_of_schedulers_is_read_where_their_data_are_as_they_are_known() {
        let key_4 = Key::new(4).map(|key| Schedulers { key });
        assert_eq!(found(emulator(&reads_key(&[]), 4, DIRTY)), key_4);
        // endbr64; push rbp; mov rbp, rsp
        let framed = reads_key(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5]);
        assert_eq!(found(emulator(&framed, 4, DIRTY)), key_4);
        let way = [Step::add_thread_pointer(0x510), Step::load(0), Step::load(72)];
        assert_eq!(key_4.map(|found| found.to_data(Keys::at(0x510))), Some(way));
        // What lies in the padding behind the type is not of it.
        assert_eq!(found(emulator(&framed, 4, [1 << 32 | 1, 0, 1])), key_4);
    }

    #[test]
    fn of_an_emulator_with_other_data_or_another_function_no_key_is_believed() {
        let code = reads_key(&[]);
        for data in [[0, 0, 1], [2, 0, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 0, 2]] {
            assert_eq!(found(emulator(&code, 4, data)), None, "{data:?}");
        }
        assert_eq!(found(emulator(&code, 32, DIRTY)), None, "its value is not beside the others");
        // It returns before; mov edi, 4.
        assert_eq!(found(emulator(&reads_key(&[0xc3]), 4, DIRTY)), None);
        assert_eq!(found(emulator(&[0xbf, 4, 0, 0, 0, 0xc3], 4, DIRTY)), None);
        let reader = Reader::new(emulator(&code, 4, DIRTY), Budget { pages: 9, steps: 100 });
        assert_eq!(Schedulers::find(Names(false), &reader), None, "it has no symbols");
    }

    #[test]
    fn of_memory_that_is_cut_off_anywhere_no_key_is_believed() {
        let whole = emulator(&reads_key(&[]), 4, DIRTY).0;
        for length in 0..whole.len() {
            assert_eq!(found(Emulator(whole[..length].to_vec())), None, "{length}");
        }
    }
}
