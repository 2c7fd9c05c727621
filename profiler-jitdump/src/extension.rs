//! Records that jitprof's own agent writes and that other readers skip; [docs/reference/jit-api.md] specifies them.
//!
//! [docs/reference/jit-api.md]: https://github.com/jitprof/jitprof/blob/main/docs/reference/jit-api.md
//!
//! ```text
//! 240 UNLOAD  code_addr code_size u64                                                                        32
//! 241 INLINE  start u64 | size method parent nr_row u32 | name NUL source NUL | nr_row x { offset line u32 } 40 fixed
//! 242 METHOD  code_addr u64 | method reserved u32 | source NUL module NUL                                    32 fixed
//! 243 LOST    event reason u32                                                                               24
//! ```

use memchr::memchr;

use super::body::{MAX_NAME, Parsed};
use super::byte_order::ByteOrder;
use super::parser::Field;
use super::record::{Body, RecordId};

/// Two texts, each as long as a name may be.
const MAX_TEXTS: usize = 2 * (MAX_NAME + 1);

/// Bytes of one row of an INLINE record.
const ROW: usize = 8;

/// Code that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unload {
    /// The first byte of the code.
    pub code_addr: u64,
    /// Bytes of code.
    pub code_size: u64,
}

/// A part of the code around it that was inlined from another method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inline<'a> {
    /// The first byte of the part.
    pub start: u64,
    /// Its bytes.
    pub size: u32,
    /// The number of the inlined method.
    pub method: u32,
    /// The number of the method that it was inlined into; that one may be inlined itself.
    pub parent: u32,
    /// The name without its NUL.
    pub name: &'a [u8],
    /// The source file without its NUL; empty if it is not known.
    pub source: &'a [u8],
    /// Source rows: pairs of offset from `start` and line, in the dump's byte order.
    rows: &'a [u8],
    order: ByteOrder,
}

impl<'a> Inline<'a> {
    /// Offsets from `start` and the lines that hold from there on; 0 for none.
    pub fn rows(&self) -> impl Iterator<Item = (u32, u32)> + 'a {
        let order = self.order;
        self.rows.chunks_exact(ROW).filter_map(move |row| Some((order.u32(row, 0)?, order.u32(row, 4)?)))
    }
}

/// Where the next function comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method<'a> {
    /// The first byte of the function's code.
    pub code_addr: u64,
    /// The method's number.
    pub method: u32,
    /// The source file without its NUL; empty if it is not known.
    pub source: &'a [u8],
    /// The module without its NUL; empty if it is not known.
    pub module: &'a [u8],
}

/// Something was announced and could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The API's number of the event.
    pub event: u32,
    /// Why, as a number.
    pub reason: u32,
}

/// Reads the body of a record of `total` bytes, of which `window` holds the first ones.
pub(super) fn body(id: RecordId, order: ByteOrder, window: &[u8], total: usize) -> Parsed<'_> {
    // A size that contradicts the content is told before its bytes are waited for.
    if let Some(what) = contradiction(id, order, window, total) {
        return Parsed::Bad(what);
    }
    let Some(record) = window.get(..total) else { return Parsed::NeedMore(total) };
    let body = match id {
        RecordId::Unload => unload(order, record),
        RecordId::Inline => inline(order, record),
        RecordId::Method => method(order, record),
        _ => lost(order, record),
    };
    body.map_or(Parsed::Bad(Field::Name), Parsed::Body)
}

/// What is wrong with the size, as far as the bytes at hand tell.
fn contradiction(id: RecordId, order: ByteOrder, window: &[u8], total: usize) -> Option<Field> {
    let fixed = id.fixed_size();
    let rows = match id {
        RecordId::Inline => usize::try_from(order.u32(window, 36)?).unwrap_or(usize::MAX).saturating_mul(ROW),
        RecordId::Method => 0,
        _ => return (total != fixed).then_some(Field::TotalSize),
    };
    let texts = window.get(fixed..window.len().min(total).min(fixed + MAX_TEXTS))?;
    let Some((_, rest)) = text(texts).and_then(|(_, rest)| text(rest)) else {
        return (texts.len() >= MAX_TEXTS.min(total - fixed)).then_some(Field::Name);
    };
    let end = fixed + texts.len() - rest.len();
    (end.saturating_add(rows) != total).then_some(Field::TotalSize)
}

fn unload<'a>(order: ByteOrder, record: &[u8]) -> Option<Body<'a>> {
    let unload = Unload { code_addr: order.u64(record, 16)?, code_size: order.u64(record, 24)? };
    unload.code_addr.checked_add(unload.code_size).map(|_| Body::Unload(unload))
}

fn inline(order: ByteOrder, record: &[u8]) -> Option<Body<'_>> {
    let count = usize::try_from(order.u32(record, 36)?).ok()?;
    let (name, rest) = text(record.get(RecordId::Inline.fixed_size()..)?)?;
    let (source, rows) = text(rest)?;
    if name.len() > MAX_NAME || rows.len() != count.checked_mul(ROW)? {
        return None;
    }
    let (start, size) = (order.u64(record, 16)?, order.u32(record, 24)?);
    start.checked_add(u64::from(size))?;
    let (method, parent) = (order.u32(record, 28)?, order.u32(record, 32)?);
    Some(Body::Inline(Inline { start, size, method, parent, name, source, rows, order }))
}

fn method(order: ByteOrder, record: &[u8]) -> Option<Body<'_>> {
    let (source, rest) = text(record.get(RecordId::Method.fixed_size()..)?)?;
    let (module, rest) = text(rest)?;
    let method = Method { code_addr: order.u64(record, 16)?, method: order.u32(record, 24)?, source, module };
    rest.is_empty().then_some(Body::Method(method))
}

fn lost<'a>(order: ByteOrder, record: &[u8]) -> Option<Body<'a>> {
    Some(Body::Lost(Lost { event: order.u32(record, 16)?, reason: order.u32(record, 20)? }))
}

/// The bytes before the first NUL, and those behind it.
fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memchr(0, bytes)?;
    Some((bytes.get(..end)?, bytes.get(end + 1..)?))
}
