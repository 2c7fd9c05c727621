//! What became of the events given to a code map.

use serde::Serialize;

use super::object::CodeId;

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// A new object.
    Loaded(CodeId),
    /// The same announcement as before, from another input or a second line; `upgraded` if it brought a better origin
    /// or source lines.
    Known {
        /// The object that was known.
        id: CodeId,
        /// Whether anything about it changed.
        upgraded: bool,
    },
    /// The object that moved, if it is known by now; it may become known by an announcement that comes later.
    Moved(Option<CodeId>),
    /// The code in a range is gone.
    Unloaded,
    /// An inlined part of this object; false if it was known.
    Inlined(CodeId, bool),
    /// The producer closed its file. The code stays: a CLOSE says nothing about memory.
    Closed,
    /// Nothing was changed.
    Dropped(DropReason),
}

/// Why an event was not taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// A size of 0: it would cover no address.
    Empty,
    /// Larger than [`MAX_CODE_BYTES`](super::MAX_CODE_BYTES), or beyond the end of user addresses.
    Implausible,
    /// The map's memory is used up.
    Full,
    /// It came out of order and overlaps thousands of younger objects.
    Crowded,
    /// An inlined part without a known object around it, or one too many of it.
    WithoutFunction,
}

/// What the map has taken up and dropped so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CodeMapStats {
    /// Objects taken up.
    pub loads: u64,
    /// Announcements of an object that was known already.
    pub duplicates: u64,
    /// Moves taken up.
    pub moves: u64,
    /// Moves whose object was unknown when they came.
    pub moves_of_unknown: u64,
    /// Ranges whose code is gone.
    pub unloads: u64,
    /// Inlined parts taken up.
    pub inlines: u64,
    /// Files closed in order.
    pub closes: u64,
    /// Events older than one applied before them.
    pub out_of_order: u64,
    /// Names cut at [`MAX_NAME_BYTES`](super::MAX_NAME_BYTES).
    pub names_cut: u64,
    /// Source rows beyond [`MAX_LINE_ROWS`](super::MAX_LINE_ROWS).
    pub line_rows_dropped: u64,
    /// Events dropped as [`DropReason::Empty`].
    pub dropped_empty: u64,
    /// Events dropped as [`DropReason::Implausible`].
    pub dropped_implausible: u64,
    /// Events dropped as [`DropReason::Full`].
    pub dropped_full: u64,
    /// Events dropped as [`DropReason::Crowded`].
    pub dropped_crowded: u64,
    /// Events dropped as [`DropReason::WithoutFunction`].
    pub dropped_without_function: u64,
    /// Ended objects removed because no pending sample is as old.
    pub pruned: u64,
    /// Ended objects removed to make room, before their time.
    pub evicted: u64,
}
