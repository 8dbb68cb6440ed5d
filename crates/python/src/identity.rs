//! Content ids of tensors in memory, and what formats can do.

use pyo3::prelude::*;
use ztensor::Format;
use ztensor::id::{ContentId, model_id, object_id};

use crate::errors::{OrRaise, invalid};
use crate::items::Item;

/// The content id of a tensor in memory.
#[pyfunction]
fn tensor_content_id(py: Python<'_>, item: Item<'_>) -> PyResult<String> {
    let tensor = item.tensor(py)?;
    Ok(py.detach(|| object_id(&tensor)).or_raise(py)?.to_string())
}

/// The content id of a model, of the names and ids of its tensors.
#[pyfunction]
fn model_content_id(py: Python<'_>, ids: Vec<(String, String)>) -> PyResult<String> {
    let parse = |(name, id): (String, String)| Ok((name, id.parse::<ContentId>()?));
    let ids = ids.into_iter().map(parse).collect::<ztensor::Result<Vec<_>>>().or_raise(py)?;
    Ok(model_id(ids).to_string())
}

/// Names of encodings or checksums.
type Names = Vec<&'static str>;

/// `(writes, edits, views, sparse, quantized, ties, metadata, encodings, sequential, checksums)`
type Capabilities = (bool, bool, bool, bool, bool, bool, &'static str, Names, Names, Names);

/// What a format can do, by its name.
#[pyfunction]
fn capabilities(py: Python<'_>, format: &str) -> PyResult<Capabilities> {
    let known = Format::from_name(format).ok_or_else(|| {
        let names: Vec<&str> = Format::all().map(Format::name).collect();
        invalid(py, format!("unknown format {format:?}: the formats are {}", names.join(", ")))
    })?;
    let can = known.capabilities();
    Ok((
        can.writes,
        can.edits,
        can.views,
        can.sparse,
        can.quantized,
        can.ties,
        can.metadata.name(),
        can.encodings.to_vec(),
        can.sequential.to_vec(),
        can.checksums.to_vec(),
    ))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(tensor_content_id, module)?)?;
    module.add_function(wrap_pyfunction!(model_content_id, module)?)?;
    module.add_function(wrap_pyfunction!(capabilities, module)?)
}
