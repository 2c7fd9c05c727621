//! The two tables, as `docs/reference/dataset.md` describes them.

use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, ZstdLevel};
use parquet::errors::Result;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, TypePtr};

/// Of a sample's columns, in the order in which they are written.
const SAMPLES: &str = "message jitprof_samples {
    required int64 time (TIMESTAMP(MICROS, true));
    required int32 length_ms;
    required binary host (STRING);
    required binary service (STRING);
    required binary version (STRING);
    required binary comm (STRING);
    required binary thread (STRING);
    required int32 pid;
    required group labels (MAP) {
        repeated group key_value {
            required binary key (STRING);
            required binary value (STRING);
        }
    }
    required group stack (LIST) {
        repeated group list {
            required int64 element;
        }
    }
    required int64 stack_id;
    required int64 samples;
    required int64 cpu_ns;
}";

const FRAMES: &str = "message jitprof_frames {
    required int64 frame;
    required binary name (STRING);
    required binary kind (STRING);
    required binary tier (STRING);
    required boolean inlined;
    required binary module (STRING);
    required binary build_id (STRING);
    required binary file (STRING);
    required int32 line;
}";

/// The table of samples.
pub(super) fn samples() -> Result<TypePtr> {
    parse_message_type(SAMPLES).map(Arc::new)
}

/// The table of frames.
pub(super) fn frames() -> Result<TypePtr> {
    parse_message_type(FRAMES).map(Arc::new)
}

/// How both are written. Level 3 is zstd's own; a higher one takes more of the host's time for a few percent.
pub(super) fn properties() -> Result<WriterPropertiesPtr> {
    let column = |path: &[&str]| ColumnPath::new(path.iter().map(|part| (*part).to_owned()).collect());
    let properties = WriterProperties::builder()
        .set_created_by(concat!("jitprof ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        // Digests have no order that anybody asks for.
        .set_column_statistics_enabled(column(&["stack", "list", "element"]), EnabledStatistics::None)
        .set_column_statistics_enabled(column(&["labels", "key_value", "value"]), EnabledStatistics::None)
        .set_column_dictionary_enabled(column(&["frame"]), false)
        .set_offset_index_disabled(true)
        .set_max_row_group_row_count(None);
    Ok(Arc::new(properties.build()))
}

/// Microseconds in one unit of a column of times, as numerator and denominator.
pub(super) fn time_unit(logical: Option<&LogicalType>) -> (i64, i64) {
    use parquet::basic::TimeUnit;
    match logical {
        Some(LogicalType::Timestamp(time)) => match time.unit {
            TimeUnit::MILLIS => (1000, 1),
            TimeUnit::NANOS => (1, 1000),
            TimeUnit::MICROS => (1, 1),
        },
        _ => (1, 1),
    }
}
