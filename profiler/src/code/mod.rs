//! What runtimes announce about the code they generate, and the map from (address, time) to code objects.

mod event;

pub use event::{CodeEvent, CodeLoad, CodeOrigin, EhFrame, LineRow};
