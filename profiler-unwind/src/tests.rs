//! What the tests of this module share: assembled sections, real images, recorded functions.

mod arm;
mod damage;
mod elf_files;
mod execution;
mod images;
mod jit_dumps;
mod paths;
mod properties;
mod synthesis;
mod table;
mod templates;

use std::io::Read;
use std::ops::Range;

use gimli::{BaseAddresses, CfaRule, EndianSlice, LittleEndian, Register, RegisterRule, UnwindTableRow};
use jitprof_common::machine::Machine;
use jitprof_common::row::{CfaKind, FpKind, Rule};

use super::RowStats;
use super::builder::RowTableBuilder;
use super::jit::RecordedFrames;
use super::rows::RowTable;
use jitprof_jitdump::code::{CodeEvent, CodeLoad, EhFrame};
use jitprof_jitdump::{DumpReader, ReaderOptions};

pub(super) type Slice<'a> = EndianSlice<'a, LittleEndian>;

const RSP: Register = Register(7);
const RBP: Register = Register(6);
const RA: Register = Register(16);

/// Assembles an `.eh_frame` at address 0, with absolute 8-byte addresses.
#[derive(Default)]
pub(super) struct Section(pub(super) Vec<u8>);

impl Section {
    /// Adds a common entry and returns its offset: code alignment 1, data alignment -8, return address in column 16.
    pub(super) fn cie(&mut self, augmentation: &str, instructions: &[u8]) -> usize {
        self.cie_of(16, augmentation, instructions)
    }

    /// The same with the return address in another column.
    pub(super) fn cie_of(&mut self, return_address: u8, augmentation: &str, instructions: &[u8]) -> usize {
        let at = self.0.len();
        let mut body = vec![0, 0, 0, 0, 1];
        body.extend_from_slice(augmentation.as_bytes());
        body.extend_from_slice(&[0, 1, 0x78, return_address]);
        if augmentation.starts_with('z') {
            let pointers = augmentation.contains('R');
            body.push(u8::from(pointers));
            body.extend(pointers.then_some(0));
        }
        body.extend_from_slice(instructions);
        self.entry(&body);
        at
    }

    /// Adds a function's entry.
    pub(super) fn fde(&mut self, cie: usize, code: Range<u64>, instructions: &[u8]) {
        let mut body = Vec::new();
        let distance = u32::try_from(self.0.len() + 4 - cie).unwrap();
        body.extend_from_slice(&distance.to_le_bytes());
        body.extend_from_slice(&code.start.to_le_bytes());
        body.extend_from_slice(&(code.end - code.start).to_le_bytes());
        body.push(0);
        body.extend_from_slice(instructions);
        self.entry(&body);
    }

    pub(super) fn entry(&mut self, body: &[u8]) {
        self.0.extend_from_slice(&u32::try_from(body.len()).unwrap().to_le_bytes());
        self.0.extend_from_slice(body);
    }

    pub(super) fn rows(&self) -> (RowTable, RowStats) {
        compile(&self.0, 0)
    }
}

/// `cfa = sp + 8`, return address at `cfa - 8`: what every common entry begins with.
pub(super) const USUAL: [u8; 5] = [0x0c, 7, 8, 0x90, 1];

/// The rows of an `.eh_frame` at an address, for code anywhere.
pub(super) fn compile(bytes: &[u8], address: u64) -> (RowTable, RowStats) {
    compile_for(Machine::X86_64, bytes, address)
}

/// The same for a machine.
pub(super) fn compile_for(machine: Machine, bytes: &[u8], address: u64) -> (RowTable, RowStats) {
    compile_within(machine, bytes, address, 0..u64::MAX)
}

/// The same for code in a range.
pub(super) fn compile_within(machine: Machine, bytes: &[u8], address: u64, code: Range<u64>) -> (RowTable, RowStats) {
    let bases = BaseAddresses::default().set_eh_frame(address);
    let mut section = gimli::EhFrame::new(bytes, LittleEndian);
    section.set_vendor(super::machine::vendor(machine));
    let mut builder = RowTableBuilder::default();
    let mut stats = RowStats::default();
    let code = std::slice::from_ref(&code);
    super::eh_frame::compile(section, &bases, machine, code, false, (&mut builder, &mut stats));
    stats.over_limit += builder.overflow();
    let (table, cut) = builder.finish();
    stats.cut = cut;
    (table, stats)
}

/// What gimli's own evaluation says, as a rule: written without the code under test.
pub(super) fn rule_by_gimli(row: &UnwindTableRow<usize>, section: &gimli::EhFrame<Slice<'_>>, signal: bool) -> Rule {
    if signal {
        return Rule::SIGNAL;
    }
    match row.register(RA) {
        Some(RegisterRule::Undefined) => return Rule::OUTERMOST,
        Some(RegisterRule::Offset(-8)) => {}
        _ => return Rule::UNSUPPORTED,
    }
    let expression = |expression: &gimli::UnwindExpression<usize>| {
        let expression = expression.get(section).unwrap();
        let mut operations =
            expression.operations(gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 4 });
        let mut all = Vec::new();
        while let Ok(Some(operation)) = operations.next() {
            all.push(operation);
        }
        all
    };
    use gimli::Operation as Op;
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register: RSP, offset } => Rule::with_cfa(CfaKind::Sp, *offset),
        CfaRule::RegisterAndOffset { register: RBP, offset } => Rule::with_cfa(CfaKind::Fp, *offset),
        CfaRule::RegisterAndOffset { .. } => Rule::UNSUPPORTED,
        CfaRule::Expression(bytes) => match expression(bytes).as_slice() {
            [Op::RegisterOffset { register: RSP, offset, .. }] => Rule::with_cfa(CfaKind::Sp, *offset),
            [Op::RegisterOffset { register: RBP, offset, .. }] => Rule::with_cfa(CfaKind::Fp, *offset),
            [Op::RegisterOffset { register: RBP, offset, .. }, Op::Deref { .. }] => {
                Rule::with_cfa(CfaKind::FpDeref, *offset)
            }
            [Op::RegisterOffset { register: RSP, offset, .. }, Op::Deref { .. }, Op::PlusConstant { value: 8 }] => {
                Rule::with_cfa(CfaKind::SpDeref, *offset)
            }
            [
                Op::RegisterOffset { register: RSP, offset: 8, .. },
                Op::RegisterOffset { register: RA, offset: 0, .. },
                Op::UnsignedConstant { value: 15 },
                Op::And,
                Op::UnsignedConstant { value: 11 },
                Op::Ge,
                Op::UnsignedConstant { value: 3 },
                Op::Shl,
                Op::Plus,
            ] => Rule::PLT,
            _ => Rule::UNSUPPORTED,
        },
    };
    if cfa.cfa == CfaKind::Unsupported {
        return Rule::UNSUPPORTED;
    }
    let rule = match row.register(RBP) {
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => cfa,
        Some(RegisterRule::Offset(offset)) => cfa.with_fp(FpKind::AtCfa, offset),
        Some(RegisterRule::Expression(bytes)) => match expression(&bytes).as_slice() {
            [Op::RegisterOffset { register: RBP, offset, .. }] => cfa.with_fp(FpKind::AtFp, *offset),
            _ => Rule::UNSUPPORTED,
        },
        Some(_) => Rule::UNSUPPORTED,
    };
    if rule.cfa == CfaKind::Unsupported { Rule::UNSUPPORTED } else { rule }
}

/// The functions of a recorded dump, with their bytes.
fn functions(bytes: &[u8]) -> Vec<CodeLoad> {
    let mut loads = Vec::new();
    let mut reader = DumpReader::new(ReaderOptions { keep_code: true, ..ReaderOptions::default() });
    reader.read(bytes, &mut |event| {
        if let CodeEvent::Load(load) = event {
            loads.push(load);
        }
    });
    loads
}

/// What a record has of call frame information, as the compiler of rows wants it.
pub(super) fn recorded_frames(eh: &EhFrame) -> RecordedFrames<'_> {
    RecordedFrames { bytes: &eh.bytes, section_start: eh.section_start }
}

pub(super) fn fixture(name: &str) -> Vec<CodeLoad> {
    functions(&jitprof_jitdump::test_data::fixture(name))
}

/// The dumps named in `JITPROF_UNWIND_DUMPS`, separated by colons.
pub(super) fn named_dumps() -> impl Iterator<Item = (String, Vec<CodeLoad>)> {
    let paths = std::env::var("JITPROF_UNWIND_DUMPS").unwrap_or_default();
    let paths: Vec<String> = paths.split(':').filter(|path| !path.is_empty()).map(str::to_owned).collect();
    paths.into_iter().map(|path| {
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(std::fs::File::open(&path).unwrap()).read_to_end(&mut bytes).unwrap();
        (path, functions(&bytes))
    })
}

/// The vDSO of this process: a small real image without a file.
pub(super) fn vdso() -> Vec<u8> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).expect("a vDSO");
    let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
    let address = |hex| u64::from_str_radix(hex, 16).unwrap();
    let mut image = vec![0; usize::try_from(address(end) - address(start)).unwrap()];
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&memory, &mut image, address(start)).unwrap();
    image
}
