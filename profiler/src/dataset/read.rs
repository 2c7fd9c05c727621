//! Parquet to rows: of files that jitprof wrote, and of what engines make of them (other orders of columns, other units of
//! time, nullable columns, extra columns).

use std::io::{self, Cursor, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use axum::body::Bytes;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, DataType, Int96};
use parquet::errors::{ParquetError, Result as Decoded};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::file::statistics::Statistics;

use super::schema::time_unit;
use super::{DatasetError, vet};

/// Read from the end of a file at once: most files are smaller, and need no second read.
const TAIL: u64 = 1 << 20;
/// Bytes of a row group that are read at most.
const MAX_GROUP: u64 = 512 << 20;
/// Rows that are decoded at a time.
const BATCH: usize = 8192;
/// Row groups of a file at most.
const MAX_GROUPS: usize = 1 << 16;

/// Bytes that can be read anywhere.
pub(super) trait Source {
    /// How many there are.
    fn length(&self) -> u64;
    /// Some of them, all within [`Self::length`].
    fn read(&self, start: u64, length: usize) -> Result<Bytes, DatasetError>;
}

/// An open file.
pub(super) struct Opened<'s> {
    name: &'s str,
    source: &'s dyn Source,
    tail: Piece,
    metadata: ParquetMetaData,
}

/// Bytes from somewhere within a file.
struct Piece {
    start: u64,
    bytes: Bytes,
}

/// A column of a batch.
pub(super) enum Cells {
    /// There is no such column.
    Absent,
    /// One for each row, 0 where there is none.
    Numbers(Vec<i64>),
    /// One for each row, empty where there is none.
    Texts(Vec<ByteArray>),
    /// Some for each row, with where each row's end.
    NumberLists(Vec<i64>, Vec<usize>),
    /// The same of texts.
    TextLists(Vec<ByteArray>, Vec<usize>),
}

/// Which column: its first name, and its last one where there are several below.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) name: &'static str,
    pub(super) leaf: Option<&'static str>,
    pub(super) is_list: bool,
}

impl Wanted {
    pub(super) const fn plain(name: &'static str) -> Self {
        Self { name, leaf: None, is_list: false }
    }

    pub(super) const fn list(name: &'static str, leaf: Option<&'static str>) -> Self {
        Self { name, leaf, is_list: true }
    }
}

impl Piece {
    fn slice(&self, start: u64, length: u64) -> Option<Bytes> {
        let from = usize::try_from(start.checked_sub(self.start)?).ok()?;
        let to = from.checked_add(usize::try_from(length).ok()?)?;
        (to <= self.bytes.len()).then(|| self.bytes.slice(from..to))
    }
}

impl Length for Piece {
    fn len(&self) -> u64 {
        self.start.saturating_add(self.bytes.len() as u64)
    }
}

impl ChunkReader for Piece {
    type T = Cursor<Bytes>;

    fn get_read(&self, start: u64) -> Decoded<Self::T> {
        let length = self.len().saturating_sub(start);
        self.slice(start, length).map(Cursor::new).ok_or_else(outside)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Decoded<Bytes> {
        self.slice(start, length as u64).ok_or_else(outside)
    }
}

fn outside() -> ParquetError {
    ParquetError::EOF("a page lies outside of its column".to_owned())
}

impl<'s> Opened<'s> {
    /// Reads the footer.
    ///
    /// # Errors
    /// [`DatasetError`].
    pub(super) fn open(name: &'s str, source: &'s dyn Source) -> Result<Self, DatasetError> {
        let damaged = |why: &str| DatasetError::damaged(name, why);
        let length = source.length();
        let start = length.saturating_sub(TAIL);
        let tail = Piece { start, bytes: read(source, start, length - start)? };
        let end = tail.slice(length.saturating_sub(8), 8).ok_or_else(|| damaged("it is too short for Parquet"))?;
        if !end.ends_with(b"PAR1") {
            return Err(damaged("it is no Parquet file, or not whole"));
        }
        let size = u64::from(u32::from_le_bytes([end[0], end[1], end[2], end[3]]));
        let at = length.checked_sub(8 + size).filter(|_| size <= vet::MAX_FOOTER);
        let at = at.ok_or_else(|| damaged("its footer is too large"))?;
        let footer = tail.slice(at, size).map_or_else(|| read(source, at, size), Ok)?;
        vet::check_footer(&footer).map_err(damaged)?;
        let metadata = guarded(name, || ParquetMetaDataReader::decode_metadata(&footer))?;
        if metadata.num_row_groups() > MAX_GROUPS {
            return Err(damaged("it has too many row groups"));
        }
        Ok(Self { name, source, tail, metadata })
    }

    /// Row groups that may have rows of these times (microseconds) and texts.
    pub(super) fn groups(
        &self,
        range_us: std::ops::Range<i64>,
        texts: &[(&str, &[String])],
    ) -> impl Iterator<Item = usize> {
        (0..self.metadata.num_row_groups()).filter(move |&group| {
            let group = self.metadata.row_group(group);
            self.may_have_time(group, &range_us)
                && texts.iter().all(|(name, wanted)| may_have_text(group, name, wanted))
        })
    }

    fn may_have_time(&self, group: &RowGroupMetaData, range_us: &std::ops::Range<i64>) -> bool {
        let Some(column) = self.position(Wanted::plain("time")) else { return true };
        let unit = time_unit(group.column(column).column_descr().logical_type_ref());
        match group.column(column).statistics() {
            Some(Statistics::Int64(statistics)) => {
                let (Some(min), Some(max)) = (statistics.min_opt(), statistics.max_opt()) else { return true };
                scaled(*min, unit) < range_us.end && scaled(*max, unit) >= range_us.start
            }
            _ => true,
        }
    }

    fn position(&self, wanted: Wanted) -> Option<usize> {
        let schema = self.metadata.file_metadata().schema_descr();
        schema.columns().iter().position(|column| {
            let parts = column.path().parts();
            let has_leaf = wanted.leaf.is_none_or(|leaf| parts.last().is_some_and(|last| last == leaf));
            parts.first().is_some_and(|first| first == wanted.name) && has_leaf
        })
    }

    /// Gives the columns of a row group, some rows at a time.
    ///
    /// # Errors
    /// [`DatasetError`], also that of `visit`.
    pub(super) fn visit(
        &self,
        group: usize,
        wanted: &[Wanted],
        mut visit: impl FnMut(usize, &[Cells]) -> Result<(), DatasetError>,
    ) -> Result<(), DatasetError> {
        let damaged = |why: &str| DatasetError::damaged(self.name, why);
        let group = self.metadata.row_group(group);
        let places: Vec<Option<usize>> = wanted.iter().map(|wanted| self.position(*wanted)).collect();
        let piece = self.piece(group, &places)?;
        let rows = usize::try_from(group.num_rows()).map_err(|_| damaged("it has a negative number of rows"))?;
        let mut readers = Vec::with_capacity(places.len());
        for (place, wanted) in places.iter().zip(wanted) {
            let reader = match place {
                Some(place) => Some(guarded(self.name, || open_column(&piece, group, *place))?),
                None => None,
            };
            if let Some(reader) = &reader {
                let levels = place.map_or(0, |place| group.column(place).column_descr().max_rep_level());
                if (levels == 1) != wanted.is_list || levels > 1 || !is_readable(reader) {
                    return Err(damaged(&format!("the column `{}` is of another type", wanted.name)));
                }
            }
            readers.push((reader, *place));
        }
        let mut left = rows;
        while left > 0 {
            let count = left.min(BATCH);
            left -= count;
            let cells = guarded(self.name, || {
                let cells = readers.iter_mut().map(|(reader, place)| match (reader, place) {
                    (Some(reader), Some(place)) => {
                        let descr = group.column(*place).column_descr();
                        let levels = (descr.max_def_level(), descr.max_rep_level());
                        cells(reader, count, levels, time_unit(descr.logical_type_ref()))
                    }
                    _ => Ok(Cells::Absent),
                });
                cells.collect::<Decoded<Vec<Cells>>>()
            })?;
            visit(count, &cells)?;
        }
        Ok(())
    }

    /// The bytes of a row group's columns.
    fn piece(&self, group: &RowGroupMetaData, places: &[Option<usize>]) -> Result<Arc<Piece>, DatasetError> {
        let damaged = |why: &str| DatasetError::damaged(self.name, why);
        let mut ranges = Vec::new();
        for place in places.iter().flatten() {
            let column = group.column(*place);
            let first = column.dictionary_page_offset().filter(|at| *at > 0).unwrap_or(column.data_page_offset());
            let (start, length) = (u64::try_from(first), u64::try_from(column.compressed_size()));
            let (Ok(start), Ok(length)) = (start, length) else { return Err(damaged("it has a negative size")) };
            ranges.push((start, start.saturating_add(length)));
        }
        let start = ranges.iter().map(|range| range.0).min().unwrap_or(0);
        let end = ranges.iter().map(|range| range.1).max().unwrap_or(0);
        if end > self.source.length() || end - start > MAX_GROUP {
            return Err(damaged("a row group lies outside of the file, or is too large"));
        }
        let bytes = self.tail.slice(start, end - start).map_or_else(|| read(self.source, start, end - start), Ok)?;
        let piece = Piece { start, bytes };
        for (start, end) in ranges {
            let column = piece.slice(start, end - start).ok_or_else(|| damaged("it ends too early"))?;
            vet::check_pages(&column).map_err(damaged)?;
        }
        Ok(Arc::new(piece))
    }
}

fn read(source: &dyn Source, start: u64, length: u64) -> Result<Bytes, DatasetError> {
    source.read(start, usize::try_from(length).unwrap_or(usize::MAX))
}

/// Calls a decoder. What was made to break it ends in an error like any other damage.
fn guarded<T>(name: &str, decode: impl FnOnce() -> Decoded<T>) -> Result<T, DatasetError> {
    match catch_unwind(AssertUnwindSafe(decode)) {
        Ok(decoded) => decoded.map_err(|error| DatasetError::damaged(name, error)),
        Err(_) => Err(DatasetError::damaged(name, "it broke the decoder")),
    }
}

fn may_have_text(group: &RowGroupMetaData, name: &str, wanted: &[String]) -> bool {
    let column = group.columns().iter().find(|column| column.column_path().parts() == [name]);
    match column.and_then(|column| column.statistics()) {
        // Old ones were ordered by signed bytes.
        Some(all @ Statistics::ByteArray(statistics)) if !all.is_min_max_deprecated() => {
            let (Some(min), Some(max)) = (statistics.min_opt(), statistics.max_opt()) else { return true };
            wanted.iter().any(|text| text.as_bytes() >= min.data() && text.as_bytes() <= max.data())
        }
        _ => true,
    }
}

fn open_column(piece: &Arc<Piece>, group: &RowGroupMetaData, place: usize) -> Decoded<ColumnReader> {
    let column = group.column(place);
    let rows = usize::try_from(group.num_rows()).unwrap_or(0);
    let pages = SerializedPageReader::new(Arc::clone(piece), column, rows, None)?;
    Ok(get_column_reader(column.column_descr_ptr(), Box::new(pages)))
}

fn is_readable(reader: &ColumnReader) -> bool {
    !matches!(
        reader,
        ColumnReader::FloatColumnReader(_)
            | ColumnReader::DoubleColumnReader(_)
            | ColumnReader::FixedLenByteArrayColumnReader(_)
    )
}

/// The next `count` rows of a column.
fn cells(reader: &mut ColumnReader, count: usize, levels: (i16, i16), unit: (i64, i64)) -> Decoded<Cells> {
    let numbers = |(values, ends): (Vec<i64>, Option<Vec<usize>>)| match ends {
        Some(ends) => Cells::NumberLists(values, ends),
        None => Cells::Numbers(values.into_iter().map(|value| scaled(value, unit)).collect()),
    };
    match reader {
        ColumnReader::BoolColumnReader(reader) => values(reader, count, levels, i64::from).map(numbers),
        ColumnReader::Int32ColumnReader(reader) => values(reader, count, levels, i64::from).map(numbers),
        ColumnReader::Int64ColumnReader(reader) => values(reader, count, levels, |value| value).map(numbers),
        ColumnReader::Int96ColumnReader(reader) => {
            values(reader, count, levels, |value| microseconds(&value)).map(numbers)
        }
        ColumnReader::ByteArrayColumnReader(reader) => {
            let (values, ends) = values(reader, count, levels, |value| value)?;
            Ok(match ends {
                Some(ends) => Cells::TextLists(values, ends),
                None => Cells::Texts(values),
            })
        }
        _ => Err(ParquetError::General("a column of another type".to_owned())),
    }
}

/// The values of the next `count` rows; of a list, also where each row's end.
fn values<T: DataType, V: Default + Clone>(
    reader: &mut ColumnReaderImpl<T>,
    count: usize,
    (max_definition, max_repetition): (i16, i16),
    convert: impl Fn(T::T) -> V,
) -> Decoded<(Vec<V>, Option<Vec<usize>>)> {
    let (mut found, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
    let (rows, _, _) = reader.read_records(
        count,
        (max_definition > 0).then_some(&mut definitions),
        (max_repetition > 0).then_some(&mut repetitions),
        &mut found,
    )?;
    if rows != count {
        return Err(ParquetError::EOF("a column has fewer rows than the others".to_owned()));
    }
    let mut found = found.into_iter().map(convert);
    if max_repetition == 0 {
        if max_definition == 0 {
            return Ok((found.collect(), None));
        }
        let value =
            |level: &i16| if *level == max_definition { found.next().unwrap_or_default() } else { V::default() };
        return Ok((definitions.iter().map(value).collect(), None));
    }
    let mut ends = Vec::with_capacity(count);
    let mut sum = 0;
    for (at, repetition) in repetitions.iter().enumerate() {
        if *repetition == 0 && at > 0 {
            ends.push(sum);
        }
        sum += usize::from(definitions.get(at).is_none_or(|level| *level == max_definition));
    }
    ends.push(sum);
    let values: Vec<V> = found.collect();
    if ends.len() != count || sum != values.len() {
        return Err(ParquetError::EOF("a list has other rows than values".to_owned()));
    }
    Ok((values, Some(ends)))
}

fn scaled(value: i64, (times, by): (i64, i64)) -> i64 {
    value.saturating_mul(times).div_euclid(by)
}

/// The time that Spark writes unless told otherwise: nanoseconds of a day, and the Julian day.
fn microseconds(value: &Int96) -> i64 {
    let data = value.data();
    let nanos = i64::from(data[0]) | i64::from(data[1]) << 32;
    (i64::from(data[2]) - 2_440_588).saturating_mul(86_400_000_000).saturating_add(nanos / 1000)
}

/// A file that is here.
pub(super) struct LocalFile {
    pub(super) file: std::fs::File,
    pub(super) length: u64,
    pub(super) name: String,
}

impl Source for LocalFile {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, start: u64, length: usize) -> Result<Bytes, DatasetError> {
        use std::io::{Seek, SeekFrom};
        let mut bytes = Vec::with_capacity(length);
        let mut file = &self.file;
        let read = file.seek(SeekFrom::Start(start)).and_then(|_| file.take(length as u64).read_to_end(&mut bytes));
        match read {
            Ok(read) if read == length => Ok(bytes.into()),
            Ok(_) => Err(DatasetError::file(&self.name, io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(DatasetError::file(&self.name, error)),
        }
    }
}

impl Source for Bytes {
    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, start: u64, length: usize) -> Result<Bytes, DatasetError> {
        let whole = Piece { start: 0, bytes: self.clone() };
        whole.slice(start, length as u64).ok_or_else(|| DatasetError::damaged("a file", outside()))
    }
}
