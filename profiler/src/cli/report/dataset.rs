//! What is read from a dataset of `[archive.parquet]`.

use std::path::Path;

use super::ReportError;
use super::source::Range;
use crate::profile::{Filter, Profile};

/// Whether a name means a dataset: a URL, a Parquet file, a directory with samples.
pub(super) fn is_dataset(path: &Path) -> bool {
    let is_url = path.to_str().is_some_and(|text| text.contains("://"));
    is_url || path.extension().is_some_and(|extension| extension == "parquet") || path.join("samples").is_dir()
}

/// What is wanted of it; `None` if that is nothing.
#[cfg(feature = "parquet")]
pub(super) fn read(path: &Path, range: &Range, filter: &Filter) -> Result<Option<Profile>, ReportError> {
    use crate::dataset::{DatasetError, DatasetQuery, Location, Store, Table, load};

    let query = DatasetQuery { from: range.from, to: range.to, filter: filter.clone() };
    let text = path.to_string_lossy();
    let is_file = text.ends_with(".parquet");
    let folder = format!("/{}/", Table::Samples.name());
    let absolute = if text.contains("://") {
        text.to_string()
    } else {
        let absolute =
            std::path::absolute(path).map_err(|source| ReportError::Open { path: path.to_owned(), source })?;
        absolute.to_string_lossy().into_owned()
    };
    // Its frames stand beside its samples.
    let (root, file) = match absolute.rfind(&folder).filter(|_| is_file) {
        Some(at) => (&absolute[..at], Some(&absolute[at + 1..])),
        None if is_file => return Err(DatasetError::NoFrames { name: absolute }.into()),
        None => (&*absolute, None),
    };
    let store = Store::open(&Location::parse(root), &[])?;
    Ok(load(&store, file, &query)?)
}

/// Reading datasets is a feature.
#[cfg(not(feature = "parquet"))]
pub(super) fn read(path: &Path, _range: &Range, _filter: &Filter) -> Result<Option<Profile>, ReportError> {
    Err(ReportError::NoDataset(path.to_owned()))
}
