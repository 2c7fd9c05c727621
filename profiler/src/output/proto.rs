//! pprof's messages, field for field as in `profile.proto` of github.com/google/pprof.
//!
//! All strings but the table itself are indices into [`Profile::string_table`], whose first entry is empty.
//!
//! Fields from 1000 on are jitprof's own; every other reader skips them.

use prost::Message;

/// The whole file. [`Sample`]s are field 2; they are written one by one, so they are not here.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Profile {
    /// What each value of a sample means.
    #[prost(message, repeated, tag = "1")]
    pub(super) sample_type: Vec<ValueType>,
    /// Files that code came from; the first is taken for the main binary.
    #[prost(message, repeated, tag = "3")]
    pub(super) mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    pub(super) location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub(super) function: Vec<ProtoFunction>,
    /// All strings; `[0]` is empty.
    #[prost(string, repeated, tag = "6")]
    pub(super) string_table: Vec<String>,
    /// Start, in nanoseconds since 1970 UTC.
    #[prost(int64, tag = "9")]
    pub(super) time_nanos: i64,
    #[prost(int64, tag = "10")]
    pub(super) duration_nanos: i64,
    /// What happens between two samples.
    #[prost(message, optional, tag = "11")]
    pub(super) period_type: Option<ValueType>,
    /// How much of it.
    #[prost(int64, tag = "12")]
    pub(super) period: i64,
    /// Free text, one number of a string each.
    #[prost(int64, repeated, tag = "13")]
    pub(super) comment: Vec<i64>,
    /// Which sample type to show first.
    #[prost(int64, tag = "14")]
    pub(super) default_sample_type: i64,
    /// [`VERSION`]: [`ProtoFunction::kind`] and [`Location::inlined`] are there.
    #[prost(uint64, tag = "1000")]
    pub(super) jitprof: u64,
    /// What was merged into this file, as the archive numbers it.
    #[prost(uint64, repeated, tag = "1001")]
    pub(super) parts: Vec<u64>,
}

/// The version of jitprof's own fields.
pub(super) const VERSION: u64 = 1;

/// The tag of [`Sample`] in the file.
pub(super) const SAMPLE_TAG: u32 = 2;

/// What a number means.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueType {
    #[prost(int64, tag = "1")]
    pub(super) r#type: i64,
    #[prost(int64, tag = "2")]
    pub(super) unit: i64,
}

/// Values of one stack with labels.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Sample {
    /// Locations, the leaf first.
    #[prost(uint64, repeated, tag = "1")]
    pub(super) location_id: Vec<u64>,
    /// One for each sample type.
    #[prost(int64, repeated, tag = "2")]
    pub(super) value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(super) label: Vec<Label>,
}

/// A property of a sample: a string or a number.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(super) struct Label {
    #[prost(int64, tag = "1")]
    pub(super) key: i64,
    #[prost(int64, tag = "2")]
    pub(super) str: i64,
    #[prost(int64, tag = "3")]
    pub(super) num: i64,
    #[prost(int64, tag = "4")]
    pub(super) num_unit: i64,
}

/// A file that code came from.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Mapping {
    /// Counted from 1.
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(uint64, tag = "2")]
    pub(super) memory_start: u64,
    #[prost(uint64, tag = "3")]
    pub(super) memory_limit: u64,
    #[prost(uint64, tag = "4")]
    pub(super) file_offset: u64,
    #[prost(int64, tag = "5")]
    pub(super) filename: i64,
    #[prost(int64, tag = "6")]
    pub(super) build_id: i64,
    /// The four flags say that symbols are resolved, so that readers do not look for the files.
    #[prost(bool, tag = "7")]
    pub(super) has_functions: bool,
    #[prost(bool, tag = "8")]
    pub(super) has_filenames: bool,
    #[prost(bool, tag = "9")]
    pub(super) has_line_numbers: bool,
    #[prost(bool, tag = "10")]
    pub(super) has_inline_frames: bool,
}

/// A place in code with the functions that it belongs to.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Location {
    /// Counted from 1.
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    /// The number of its [`Mapping`]; 0 for none.
    #[prost(uint64, tag = "2")]
    pub(super) mapping_id: u64,
    #[prost(uint64, tag = "3")]
    pub(super) address: u64,
    /// The innermost inlined function first.
    #[prost(message, repeated, tag = "4")]
    pub(super) line: Vec<Line>,
    /// Whether the last line too is a function that was inlined, into a frame at another place.
    #[prost(bool, tag = "1000")]
    pub(super) inlined: bool,
}

/// A function and a line in it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Line {
    #[prost(uint64, tag = "1")]
    pub(super) function_id: u64,
    #[prost(int64, tag = "2")]
    pub(super) line: i64,
    /// From 1; 0 where it is not known.
    #[prost(int64, tag = "3")]
    pub(super) column: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProtoFunction {
    /// Counted from 1.
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(int64, tag = "2")]
    pub(super) name: i64,
    #[prost(int64, tag = "3")]
    pub(super) system_name: i64,
    #[prost(int64, tag = "4")]
    pub(super) filename: i64,
    /// Kind and tier of the frame, as one number.
    #[prost(uint64, tag = "1000")]
    pub(super) kind: u64,
}
