//! What runtimes announce about the code they generate, and the map from (address, time) to code objects.

mod event;
mod inlines;
mod lines;
mod map;
mod object;
mod outcome;
mod timeline;

pub use event::{CodeEvent, CodeInline, CodeLoad, CodeOrigin, CodeUnit, EhFrame, LineRow};
pub use inlines::{InlinedCode, MAX_INLINES};
pub use lines::SourceRows;
pub use map::{CodeMap, MAX_CODE_BYTES, MAX_LINE_ROWS, MAX_NAME_BYTES, Nearest};
pub use object::{CodeHit, CodeId};
pub use outcome::{Applied, CodeMapStats, DropReason};
