//! GSYM: LLVM's symbol files, read to name stripped programs.
//!
//! ```text
//! v1, in the producer's byte order                      v2
//!   0  magic 0x4753594d  version 1 u16                    0  magic  version 2 u16
//!   6  addr_off_size u8  uuid_size u8                     6  addr_off_size u8  string encoding u8 (0)
//!   8  base_address u64  num_addresses u32               8  base_address u64  num_addresses u32
//!  20  strtab offset u32, size u32                       20  {type u32, offset u64, size u64}.. , all-zero entry
//!  28  uuid, 20 bytes of which uuid_size count
//!  48  address offsets: num_addresses x addr_off_size, ascending, from base_address
//!      address-info offsets: num_addresses x u32         (v2: x u64, from the start of the FunctionInfo section)
//!      file table: count u32, count x {directory, base}  (v2: string offsets have 8 bytes, in v1 they have 4)
//!      string table
//!      FunctionInfo: size u32, name; {type u32, length u32, bytes}.. ended by type 0
//!        1 line table   2 inlined functions   3 functions merged into this one   4 call sites
//! ```
//!
//! | producer | what it does |
//! |---|---|
//! | llvm-gsymutil 14, 19 | v1; symbols without a size stay as such and then match up to the next function; types 3 and 4 since LLVM 20 |
//! | gsym-rs 0.2 | v1, and v2 on demand; both byte orders |
//!
//! Reading is [`Gsym`]: a look-up reads what it needs of the file and nothing else, so a file of any size takes
//! [`MAX_RESIDENT_BYTES`] at most, and [`MAX_FUNCTION_BYTES`] while a function is looked at. The existing readers fall
//! short of that: blazesym (0.2.7) maps the file (its owner could end us by truncating it), knows v1 only, and recurses
//! as deep as the file says; gsym-rs (0.2.1) wants the whole file in memory, and its errors do not say where in the
//! file. Both are what the tests compare with.
//!
//! Writing is gsym-rs' work; what is written is decided in [`output::gsym`](crate::output::gsym).

mod bytes;
mod cursor;
mod error;
mod function;
mod header;
mod inline;
mod lines;
mod lookup;
mod reader;
mod store;
#[cfg(test)]
mod tests;

pub use bytes::MAX_RESIDENT_BYTES;
pub use error::{GsymError, Problem};
pub use function::{CallSite, FunctionInfo, MAX_ITEMS, MAX_MERGED_DEPTH};
pub use header::{Header, MAX_UUID_BYTES};
pub use inline::{InlineNode, MAX_INLINE_DEPTH};
pub use lines::LineEntry;
pub use lookup::{Lookup, Place};
pub use reader::{Gsym, MAX_FUNCTION_BYTES, MAX_STRING_BYTES};
pub use store::{GsymStore, MAX_DEPTH, MAX_ENTRIES, MAX_FILES, StoreError};
