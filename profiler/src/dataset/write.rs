//! Rows to Parquet, column by column.

use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::Result;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};

use super::rows::{FrameRow, SampleRow, stack_id};
use super::schema;

/// Rows of a row group at most: what a reader holds in memory at once.
pub const MAX_GROUP_ROWS: usize = if cfg!(test) { 1 << 12 } else { 1 << 16 };

/// Values of a column, with the levels of a repeated one.
struct Column<T> {
    values: Vec<T>,
    /// Definition and repetition.
    levels: Option<(Vec<i16>, Vec<i16>)>,
}

/// Files of samples, each of about `target_bytes` at most, but of one row group at least. The same rows give the same files.
///
/// # Errors
/// Those of the encoder.
pub fn write_samples(rows: &[SampleRow], target_bytes: usize) -> Result<Vec<Vec<u8>>> {
    let mut files = Vec::new();
    let mut groups = rows.chunks(MAX_GROUP_ROWS).peekable();
    while groups.peek().is_some() {
        let mut file = SerializedFileWriter::new(Vec::new(), schema::samples()?, schema::properties()?)?;
        while file.bytes_written() < target_bytes {
            let Some(rows) = groups.next() else { break };
            let mut group = file.next_row_group()?;
            write_group(&mut group, rows)?;
            group.close()?;
        }
        files.push(file.into_inner()?);
    }
    Ok(files)
}

/// A file of samples without a row.
///
/// # Errors
/// Those of the encoder.
pub fn empty_samples() -> Result<Vec<u8>> {
    SerializedFileWriter::new(Vec::new(), schema::samples()?, schema::properties()?)?.into_inner()
}

fn write_group(group: &mut SerializedRowGroupWriter<'_, Vec<u8>>, rows: &[SampleRow]) -> Result<()> {
    column::<Int64Type>(group, plain(rows, |row| row.time_us))?;
    column::<Int32Type>(group, plain(rows, |row| row.length_ms))?;
    column::<ByteArrayType>(group, plain(rows, |row| text(&row.tags.host)))?;
    column::<ByteArrayType>(group, plain(rows, |row| text(&row.tags.service)))?;
    column::<ByteArrayType>(group, plain(rows, |row| text(&row.tags.version)))?;
    column::<ByteArrayType>(group, plain(rows, |row| text(&row.tags.comm)))?;
    column::<ByteArrayType>(group, plain(rows, |row| text(&row.tags.thread)))?;
    column::<Int32Type>(group, plain(rows, |row| row.tags.pid))?;
    column::<ByteArrayType>(group, repeated(rows, |row| row.tags.labels.keys().map(|name| text(name))))?;
    column::<ByteArrayType>(group, repeated(rows, |row| row.tags.labels.values().map(|value| text(value))))?;
    column::<Int64Type>(group, repeated(rows, |row| row.stack.iter().copied()))?;
    column::<Int64Type>(group, Column { values: stack_ids(rows), levels: None })?;
    column::<Int64Type>(group, plain(rows, |row| row.samples))?;
    column::<Int64Type>(group, plain(rows, |row| row.cpu_ns))
}

/// The stacks' numbers. Rows of one stack stand together, so each is digested once.
fn stack_ids(rows: &[SampleRow]) -> Vec<i64> {
    let mut last: Option<(&[i64], i64)> = None;
    let mut numbers = Vec::with_capacity(rows.len());
    for SampleRow { stack, .. } in rows {
        let number = match last {
            Some((known, number)) if *known == **stack => number,
            _ => stack_id(stack),
        };
        last = Some((stack, number));
        numbers.push(number);
    }
    numbers
}

/// A file of frames.
///
/// # Errors
/// Those of the encoder.
pub fn write_frames(rows: &[FrameRow]) -> Result<Vec<u8>> {
    let mut file = SerializedFileWriter::new(Vec::new(), schema::frames()?, schema::properties()?)?;
    for rows in rows.chunks(MAX_GROUP_ROWS) {
        let mut group = file.next_row_group()?;
        column::<Int64Type>(&mut group, plain(rows, |row| row.frame))?;
        column::<ByteArrayType>(&mut group, plain(rows, |row| text(&row.name)))?;
        column::<ByteArrayType>(&mut group, plain(rows, |row| text(&row.kind)))?;
        column::<ByteArrayType>(&mut group, plain(rows, |row| text(&row.tier)))?;
        column::<BoolType>(&mut group, plain(rows, |row| row.inlined))?;
        column::<ByteArrayType>(&mut group, plain(rows, |row| text(&row.module)))?;
        column::<ByteArrayType>(&mut group, plain(rows, |row| text(&row.build_id)))?;
        column::<ByteArrayType>(&mut group, plain(rows, |row| text(&row.file)))?;
        column::<Int32Type>(&mut group, plain(rows, |row| row.line))?;
        group.close()?;
    }
    file.into_inner()
}

fn text(text: &str) -> ByteArray {
    ByteArray::from(text)
}

fn plain<R, T>(rows: &[R], value: impl Fn(&R) -> T) -> Column<T> {
    Column { values: rows.iter().map(value).collect(), levels: None }
}

fn repeated<'r, R, T, I: Iterator<Item = T>>(rows: &'r [R], list: impl Fn(&'r R) -> I) -> Column<T> {
    let (mut values, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        let mut repetition = 0;
        for value in list(row) {
            values.push(value);
            definitions.push(1);
            repetitions.push(repetition);
            repetition = 1;
        }
        if repetition == 0 {
            definitions.push(0);
            repetitions.push(0);
        }
    }
    Column { values, levels: Some((definitions, repetitions)) }
}

/// Writes the next column.
fn column<T: DataType>(group: &mut SerializedRowGroupWriter<'_, Vec<u8>>, column: Column<T::T>) -> Result<()> {
    let Some(mut writer) = group.next_column()? else {
        return Err(parquet::errors::ParquetError::General("a column too many".to_owned()));
    };
    let Column { values, levels } = column;
    let (definitions, repetitions) =
        levels.as_ref().map_or((None, None), |(one, other)| (Some(&**one), Some(&**other)));
    writer.typed::<T>().write_batch(&values, definitions, repetitions)?;
    writer.close()
}
