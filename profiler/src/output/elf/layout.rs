//! What stands where in the file, and the writing of it.

use std::io;

use object::elf;
use object::write::elf::{FileHeader, ProgramHeader, SectionHeader, SectionIndex, Sym, Writer};
use object::write::{StreamingBuffer, StringId};
use object::{Endianness, write};

use super::lines::{self, Named};
use super::{CodeSource, ElfAccount, ElfError, ElfFunction, ElfKind};
use crate::profile::printable;
use jitprof_jitdump::{AbsoluteFrames, ByteOrder};

/// Gaps up to this length are filled: a section costs 120 bytes, and alignment leaves less.
const MAX_GAP: u64 = 256;
/// Sections of code. The format's simple form has room for twice as many.
const MAX_RUNS: usize = 1 << 15;
/// Where code in a file begins.
const CODE_ALIGN: u64 = 16;
/// What gaps are filled with: an instruction that stops on x86, and is none elsewhere.
const FILLER: [u8; 256] = [0xcc; 256];

/// Functions that follow each other.
struct Run<'a> {
    start: u64,
    end: u64,
    functions: &'a [ElfFunction],
}

/// Everything that is known before the first byte is written.
pub(super) struct Layout<'a> {
    kind: ElfKind,
    runs: Vec<Run<'a>>,
    names: Vec<String>,
    frames: Vec<u8>,
    frames_address: u64,
    debug: Named,
    account: ElfAccount,
}

impl<'a> Layout<'a> {
    pub(super) fn of(kind: ElfKind, functions: &'a [ElfFunction]) -> Result<Self, ElfError> {
        let mut runs = runs(functions);
        let kept = runs.len().min(MAX_RUNS);
        let left_out = runs.drain(kept..).map(|run| run.functions.len()).sum();
        let all: Vec<&ElfFunction> = runs.iter().flat_map(|run| run.functions).collect();
        let (debug, rows) = lines::sections(kind.order, &all)?;
        let mut frames = AbsoluteFrames::new(kind.order);
        let with_frames = all.iter().filter(|function| {
            let frame = function.eh_frame.as_ref();
            frame.is_some_and(|frame| frames.add(frame, function.start, function.size) > 0)
        });
        let with_frames = with_frames.count();
        let names: Vec<String> = all.iter().map(|function| printable(&function.name).into_owned()).collect();
        let account = ElfAccount { functions: all.len(), sections: runs.len(), rows, frames: with_frames, left_out };
        // Behind all code, or before it where there is no address behind.
        let end = runs.last().map_or(0, |run| run.end);
        let frames_address = end.checked_next_multiple_of(0x1000).filter(|at| *at < 1 << 63).unwrap_or(0x1000);
        Ok(Self { kind, runs, names, frames: frames.finish(), frames_address, debug, account })
    }

    pub(super) fn write(
        &self,
        buffer: &mut StreamingBuffer<&mut dyn io::Write>,
        code: &mut CodeSource<'_>,
    ) -> Result<ElfAccount, ElfError> {
        let endian = match self.kind.order {
            ByteOrder::Little => Endianness::Little,
            ByteOrder::Big => Endianness::Big,
        };
        let mut writer = Writer::new(endian, true, buffer);
        let plan = self.reserve(&mut writer).map_err(failed)?;
        self.write_headers(&mut writer, &plan).map_err(failed)?;
        self.write_code(&mut writer, code)?;
        if !self.frames.is_empty() {
            writer.write_align(8);
            writer.write(&self.frames);
        }
        for (_, bytes) in &self.debug {
            writer.write(bytes);
        }
        self.write_tables(&mut writer, &plan);
        Ok(self.account)
    }

    fn reserve<'b>(&'b self, writer: &mut Writer<'b>) -> write::Result<Plan> {
        writer.reserve_file_header();
        let segments = self.runs.len() + usize::from(!self.frames.is_empty());
        writer.reserve_program_headers(u32::try_from(segments).unwrap_or(u32::MAX));
        let text_name = writer.add_section_name(b".text");
        let mut plan = Plan { text_name: Some(text_name), ..Plan::default() };
        for run in &self.runs {
            plan.text.push((writer.reserve_section_index(), writer.reserve(run.end - run.start, CODE_ALIGN)));
        }
        if !self.frames.is_empty() {
            let name = writer.add_section_name(b".eh_frame");
            let index = writer.reserve_section_index();
            plan.frames = Some((name, index, writer.reserve(self.frames.len() as u64, 8)));
        }
        for (name, bytes) in &self.debug {
            let name = writer.add_section_name(name.as_bytes());
            let index = writer.reserve_section_index();
            plan.debug.push((name, index, writer.reserve(bytes.len() as u64, 1)));
        }
        let mut names = self.names.iter();
        for (run, (section, _)) in self.runs.iter().zip(&plan.text) {
            for name in names.by_ref().take(run.functions.len()) {
                plan.symbols.push((writer.add_string(name.as_bytes()), *section));
                writer.reserve_symbol_index(Some(*section));
            }
        }
        writer.reserve_symtab_section_index();
        writer.reserve_symtab();
        writer.reserve_strtab_section_index();
        writer.reserve_strtab()?;
        writer.reserve_shstrtab_section_index();
        writer.reserve_shstrtab()?;
        writer.reserve_section_headers();
        Ok(plan)
    }

    fn write_headers(&self, writer: &mut Writer<'_>, plan: &Plan) -> write::Result<()> {
        writer.write_file_header(&FileHeader {
            os_abi: elf::ELFOSABI_NONE,
            abi_version: 0,
            e_type: elf::ET_EXEC,
            e_machine: elf::Machine(self.kind.machine),
            e_entry: 0,
            e_flags: elf::FileFlags(0),
        })?;
        writer.write_align_program_headers();
        let mut segment = |p_flags, p_offset, start, size| {
            writer.write_program_header(&ProgramHeader {
                p_type: elf::PT_LOAD,
                p_flags,
                p_offset,
                p_vaddr: start,
                p_paddr: start,
                p_filesz: size,
                p_memsz: size,
                p_align: 1,
            });
        };
        for (run, (_, offset)) in self.runs.iter().zip(&plan.text) {
            segment(elf::PF_R | elf::PF_X, *offset, run.start, run.end - run.start);
        }
        if let Some((_, _, offset)) = plan.frames {
            segment(elf::PF_R, offset, self.frames_address, self.frames.len() as u64);
        }
        Ok(())
    }

    fn write_code(&self, writer: &mut Writer<'_>, code: &mut CodeSource<'_>) -> Result<(), ElfError> {
        for run in &self.runs {
            writer.write_align(CODE_ALIGN);
            let mut at = run.start;
            for function in run.functions {
                let gap = usize::try_from(function.start.saturating_sub(at)).unwrap_or(usize::MAX);
                writer.write(FILLER.get(..gap).unwrap_or(&FILLER));
                code(function, &mut |bytes| writer.write(bytes)).map_err(ElfError::Code)?;
                at = function.start.saturating_add(function.size);
            }
        }
        Ok(())
    }

    fn write_tables(&self, writer: &mut Writer<'_>, plan: &Plan) {
        writer.write_null_symbol();
        let functions = self.runs.iter().flat_map(|run| run.functions);
        for (function, (name, section)) in functions.zip(&plan.symbols) {
            writer.write_symbol(&Sym {
                section: Some(section.0),
                st_name: writer.string_offset(Some(*name)),
                st_info: elf::SymbolInfo::new(elf::STB_GLOBAL, elf::STT_FUNC),
                st_other: elf::SymbolOther(0),
                st_shndx: elf::SHN_UNDEF,
                st_value: function.start,
                st_size: function.size,
            });
        }
        writer.write_strtab();
        writer.write_shstrtab();
        writer.write_null_section_header();
        let none = SectionHeader {
            sh_name: 0,
            sh_type: elf::SHT_PROGBITS,
            sh_flags: elf::SectionFlags(0),
            sh_addr: 0,
            sh_offset: 0,
            sh_size: 0,
            sh_link: 0,
            sh_info: 0,
            sh_addralign: 1,
            sh_entsize: 0,
        };
        let text_name = writer.section_name_offset(plan.text_name);
        for (run, (_, offset)) in self.runs.iter().zip(&plan.text) {
            writer.write_section_header(&SectionHeader {
                sh_name: text_name,
                sh_flags: elf::SHF_ALLOC | elf::SHF_EXECINSTR,
                sh_addr: run.start,
                sh_offset: *offset,
                sh_size: run.end - run.start,
                ..none
            });
        }
        if let Some((name, _, offset)) = plan.frames {
            writer.write_section_header(&SectionHeader {
                sh_name: writer.section_name_offset(Some(name)),
                sh_flags: elf::SHF_ALLOC,
                sh_addr: self.frames_address,
                sh_offset: offset,
                sh_size: self.frames.len() as u64,
                sh_addralign: 8,
                ..none
            });
        }
        for ((_, bytes), (name, _, offset)) in self.debug.iter().zip(&plan.debug) {
            writer.write_section_header(&SectionHeader {
                sh_name: writer.section_name_offset(Some(*name)),
                sh_offset: *offset,
                sh_size: bytes.len() as u64,
                ..none
            });
        }
        writer.write_symtab_section_header(1);
        writer.write_strtab_section_header();
        writer.write_shstrtab_section_header();
    }
}

/// Offsets and indices that were given out.
#[derive(Default)]
struct Plan {
    text_name: Option<StringId>,
    text: Vec<(SectionIndex, u64)>,
    frames: Option<(StringId, SectionIndex, u64)>,
    debug: Vec<(StringId, SectionIndex, u64)>,
    symbols: Vec<(StringId, SectionIndex)>,
}

fn runs(functions: &[ElfFunction]) -> Vec<Run<'_>> {
    functions
        .chunk_by(|before, after| after.start.saturating_sub(before.start.saturating_add(before.size)) <= MAX_GAP)
        .filter_map(|functions| {
            let (first, last) = (functions.first()?, functions.last()?);
            Some(Run { start: first.start, end: last.start.saturating_add(last.size), functions })
        })
        .collect()
}

fn failed(error: write::Error) -> ElfError {
    ElfError::Format(error.to_string())
}
