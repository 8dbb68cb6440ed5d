//! Small files of folders and stores, as Python sees them.

use std::collections::HashMap;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use ztensor::remote::Options;
use ztensor::remote::store;

use crate::errors::OrRaise;

/// How a store is reached.
pub(crate) type Settings = HashMap<String, String>;

pub(crate) fn options(settings: Option<Settings>) -> Options {
    settings.unwrap_or_default().into_iter().collect()
}

/// All bytes of a file, or a range of them.
#[pyfunction]
#[pyo3(signature = (path, range = None, remote = None))]
fn store_read<'py>(
    py: Python<'py>,
    path: PathBuf,
    range: Option<(u64, u64)>,
    remote: Option<Settings>,
) -> PyResult<Bound<'py, PyBytes>> {
    let read = || match range {
        Some((start, end)) => store::read_range(path, start..end, &options(remote)),
        None => store::read(path, &options(remote)),
    };
    let bytes = py.detach(read).or_raise(py)?;
    Ok(PyBytes::new(py, &bytes))
}

/// Writes a whole file.
#[pyfunction]
#[pyo3(signature = (path, data, remote = None))]
fn store_write(py: Python<'_>, path: PathBuf, data: PyBackedBytes, remote: Option<Settings>) -> PyResult<()> {
    py.detach(|| store::write(path, &data, &options(remote))).or_raise(py)
}

/// Names and sizes of what is below a folder or a prefix.
#[pyfunction]
#[pyo3(signature = (path, remote = None))]
fn store_list(py: Python<'_>, path: PathBuf, remote: Option<Settings>) -> PyResult<Vec<(String, u64)>> {
    let entries = py.detach(|| store::list(path, &options(remote))).or_raise(py)?;
    Ok(entries.into_iter().map(|entry| (entry.name, entry.len)).collect())
}

/// The size of a file, or `None` if there is none.
#[pyfunction]
#[pyo3(signature = (path, remote = None))]
fn store_len(py: Python<'_>, path: PathBuf, remote: Option<Settings>) -> PyResult<Option<u64>> {
    py.detach(|| store::len(path, &options(remote))).or_raise(py)
}

/// Removes a file, if there is one.
#[pyfunction]
#[pyo3(signature = (path, remote = None))]
fn store_delete(py: Python<'_>, path: PathBuf, remote: Option<Settings>) -> PyResult<()> {
    py.detach(|| store::delete(path, &options(remote))).or_raise(py)
}

/// A name below a folder or a URL.
#[pyfunction]
fn store_join(folder: PathBuf, name: &str) -> String {
    store::join(folder, name).display().to_string()
}

/// Adds everything here to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(store_delete, module)?)?;
    module.add_function(wrap_pyfunction!(store_join, module)?)?;
    module.add_function(wrap_pyfunction!(store_len, module)?)?;
    module.add_function(wrap_pyfunction!(store_list, module)?)?;
    module.add_function(wrap_pyfunction!(store_read, module)?)?;
    module.add_function(wrap_pyfunction!(store_write, module)?)
}
