//! What is said about dumps, as data.

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use jitprof_jitdump::Inspection;

/// The one JSON document of a summary or check.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) dumps: Vec<DumpReport>,
}

/// What a whole dump was found to have.
#[derive(Debug)]
pub(super) struct DumpReport {
    pub(super) path: String,
    /// The process by which it was found.
    pub(super) process: Option<u32>,
    pub(super) inspection: Inspection,
}

impl Serialize for DumpReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Inspection { header, stats, survey, findings, file_len } = &self.inspection;
        let mut fields = serializer.serialize_struct("dump", 7)?;
        fields.serialize_field("path", &self.path)?;
        fields.serialize_field("process", &self.process)?;
        fields.serialize_field("file_bytes", file_len)?;
        fields.serialize_field("header", header)?;
        fields.serialize_field("statistics", stats)?;
        fields.serialize_field("survey", survey)?;
        fields.serialize_field("findings", findings)?;
        fields.end()
    }
}
