//! ITT's module events, by which LLVM announces its objects.
//!
//! ITT's static part has a table of its functions, and leaves it to the library to fill it in:
//!
//! ```text
//! __itt_global   magic 8 bytes @0, version_major u64 @8, .. api_list_ptr @120
//! api entry      name char* @0, func_ptr void** @8, init_func @16, null_func @24, group u32 @32       40 bytes
//! module_object  version u32 @0, id @8, type i32 @32 (1 ELF), name @40, buffer @48, size u64 @56,
//!                sections @64, section count u64 @72                                                  80 bytes
//! section_info   name @0, type i32 @8, flags u64 @16, start address @24, size u64 @32, file_offset u64 @40   48 bytes
//! ```
//!
//! `version` is not initialised by LLVM 22. Unknown functions get their `null_func`, which does nothing.

use std::ffi::c_void;

use crate::memory;
use crate::module::{Object, Section};
use crate::process::with_collector;
use crate::record::{Loss, Range};
use crate::sys;

/// `__itt_global`'s magic, and the version whose layout this is.
const MAGIC: [u8; 8] = [0xed, 0xab, 0xab, 0xec, 0x0d, 0xee, 0xda, 0x30];
const VERSION_MAJOR: u64 = 3;
/// Version 3.0 has 147 functions.
const MAX_FUNCTIONS: u64 = 4096;

/// `__itt_module_type_elf`.
const ELF: u64 = 1;
const MAX_SECTIONS: u64 = 4096;
/// The largest object that is looked at. LLVM's are as large as what was compiled in one go.
const MAX_OBJECT: u64 = 64 << 20;
const MAX_TEXT: usize = 4096;

/// What stands for the two functions in LOST records: numbers that no event of the JIT API has.
const MODULE_LOAD: u32 = 1000;
const MODULE_UNLOAD: u32 = 1001;

/// Fills in the table of the static part at `global`. Leaves everything as it is if it looks different.
pub(crate) fn fill_in(global: u64) {
    // Asked anew: a forked child may come here first.
    sys::pid();
    let mut head = [0; 128];
    if !memory::read(global, &mut head) || !head.starts_with(&MAGIC) || long(&head, 8) != VERSION_MAJOR {
        return;
    }
    let list = long(&head, 120);
    for index in 0..MAX_FUNCTIONS {
        let mut entry = [0; 40];
        if !memory::read(list.wrapping_add(index * 40), &mut entry) || long(&entry, 0) == 0 {
            return;
        }
        let function = match memory::string(long(&entry, 0), MAX_TEXT).as_deref() {
            Some(b"__itt_module_load_with_sections") => module_load_with_sections as *const c_void as u64,
            Some(b"__itt_module_unload_with_sections") => module_unload_with_sections as *const c_void as u64,
            _ => long(&entry, 24),
        };
        // One that cannot be written keeps what it has, which is the static part's own.
        memory::write_pointer(long(&entry, 8), function);
    }
}

extern "C" fn module_load_with_sections(module: *mut c_void) {
    let module = module as u64;
    with_collector(|collector| match object(module) {
        Ok(Some(object)) => collector.object(MODULE_LOAD, &object),
        Ok(None) => Ok(()),
        Err(loss) => collector.lost(MODULE_LOAD, loss),
    });
}

extern "C" fn module_unload_with_sections(module: *mut c_void) {
    let module = module as u64;
    with_collector(|collector| match sections(module) {
        Ok(sections) => {
            let ranges: Vec<Range> = sections.iter().filter_map(Section::range).collect();
            collector.object_gone(&ranges)
        }
        Err(loss) => collector.lost(MODULE_UNLOAD, loss),
    });
}

/// Copies the object; `None` if it is no ELF file.
fn object(module: u64) -> Result<Option<Object>, Loss> {
    let mut fields = [0; 80];
    if !memory::read(module, &mut fields) {
        return Err(Loss::Unreadable);
    }
    if long(&fields, 32) & 0xffff_ffff != ELF {
        return Ok(None);
    }
    let size = usize::try_from(long(&fields, 56)).ok().filter(|size| *size as u64 <= MAX_OBJECT);
    let size = size.ok_or(Loss::TooLarge)?;
    let mut file = Vec::new();
    if !memory::append(long(&fields, 48), size, &mut file) {
        return Err(Loss::Unreadable);
    }
    let name = memory::string(long(&fields, 40), MAX_TEXT).unwrap_or_default();
    Ok(Some(Object { name, file, sections: sections(module)? }))
}

fn sections(module: u64) -> Result<Vec<Section>, Loss> {
    let mut fields = [0; 80];
    if !memory::read(module, &mut fields) {
        return Err(Loss::Unreadable);
    }
    let (table, count) = (long(&fields, 64), long(&fields, 72));
    if count > MAX_SECTIONS {
        return Err(Loss::TooLarge);
    }
    let mut sections = Vec::new();
    for index in 0..count {
        let mut entry = [0; 48];
        if !memory::read(table.wrapping_add(index * 48), &mut entry) {
            return Err(Loss::Unreadable);
        }
        let name = memory::string(long(&entry, 0), MAX_TEXT).unwrap_or_default();
        let (start, size, file_offset) = (long(&entry, 24), long(&entry, 32), long(&entry, 40));
        sections.push(Section { name, start, size, file_offset });
    }
    Ok(sections)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|field| field.try_into().ok()).map_or(0, u64::from_ne_bytes)
}
