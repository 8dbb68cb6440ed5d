//! Files of folders and stores that are no tensor files, as Python sees them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use numpy::PyUntypedArray;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use ztensor::Destination;
use ztensor::remote::Options;
use ztensor::remote::store;

use crate::errors::{OrRaise, invalid};
use crate::memory::Memory;

/// How a store is reached.
pub(crate) type Settings = HashMap<String, String>;

pub(crate) fn options(settings: Option<Settings>) -> Options {
    settings.unwrap_or_default().into_iter().collect()
}

/// Where a new file goes: `derived` names stay in their folder, others may lead through links.
pub(crate) fn destination(path: &Path, derived: bool, overwrite: bool) -> ztensor::Result<Destination> {
    match (derived, path.parent(), path.file_name()) {
        (false, _, _) => Ok(Destination::explicit(path, overwrite)),
        (true, Some(folder), Some(name)) => Ok(Destination::derived(folder, name)?.overwrite(overwrite)),
        (true, _, _) => Err(ztensor::Error::invalid("this is not the name of a file").in_file(path)),
    }
}

/// All bytes of a file, or a range of them; not more than `limit`.
#[pyfunction]
#[pyo3(signature = (path, limit, range = None, remote = None))]
fn store_read<'py>(
    py: Python<'py>,
    path: PathBuf,
    limit: u64,
    range: Option<(u64, u64)>,
    remote: Option<Settings>,
) -> PyResult<Bound<'py, PyBytes>> {
    let read = || match range {
        Some((start, end)) => store::read_range(path, start..end, limit, &options(remote)),
        None => store::read(path, limit, &options(remote)),
    };
    let bytes = py.detach(read).or_raise(py)?;
    Ok(PyBytes::new(py, &bytes))
}

/// Writes a whole file.
#[pyfunction]
#[pyo3(signature = (path, data, remote = None, *, derived = false, overwrite = true))]
fn store_write(
    py: Python<'_>,
    path: PathBuf,
    data: PyBackedBytes,
    remote: Option<Settings>,
    derived: bool,
    overwrite: bool,
) -> PyResult<()> {
    let write = || store::write(destination(&path, derived, overwrite)?, &data, &options(remote));
    py.detach(write).or_raise(py)
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

/// A file that is written from front to back and appears when it is complete.
#[pyclass(frozen, module = "ztensor._native")]
struct NewFile {
    /// `None` when it is finished or given up.
    file: Mutex<Option<store::NewFile>>,
}

impl NewFile {
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Option<store::NewFile>>> {
        self.file.try_lock().map_err(|_| invalid(py, "another thread is writing to this file"))
    }

    fn take(&self, py: Python<'_>) -> PyResult<Option<store::NewFile>> {
        Ok(self.lock(py)?.take())
    }
}

impl Drop for NewFile {
    /// Taking an upload back takes a while, which others need not wait for.
    fn drop(&mut self) {
        let file = self.file.get_mut().ok().and_then(Option::take);
        if file.is_some() {
            Python::try_attach(|py| py.detach(|| drop(file)));
        }
    }
}

fn ended(py: Python<'_>) -> PyErr {
    invalid(py, "the file is finished, or a write failed: nothing more can be written")
}

#[pymethods]
impl NewFile {
    #[staticmethod]
    #[pyo3(signature = (path, *, derived = false, overwrite = true, remote = None))]
    fn create(
        py: Python<'_>,
        path: PathBuf,
        derived: bool,
        overwrite: bool,
        remote: Option<Settings>,
    ) -> PyResult<NewFile> {
        let create = || {
            let destination = destination(&path, derived, overwrite)?;
            store::NewFile::create(destination, &options(remote))
        };
        let file = py.detach(create).or_raise(py)?;
        Ok(NewFile { file: Mutex::new(Some(file)) })
    }

    /// The descriptor of the file until it is finished, and its path until then.
    fn temporary(&self, py: Python<'_>) -> PyResult<(i32, PathBuf)> {
        let slot = self.lock(py)?;
        let file = slot.as_ref().ok_or_else(|| ended(py))?;
        match file.temporary() {
            #[cfg(unix)]
            Some((file, path)) => Ok((std::os::fd::AsRawFd::as_raw_fd(file), path.to_owned())),
            // Descriptors are of the C library there, and Python has no `os.pwrite`.
            #[cfg(not(unix))]
            Some(_) => Err(invalid(py, "distributed checkpoints can be written on POSIX systems only")),
            None => Err(invalid(py, "only a file of this machine has a descriptor")),
        }
    }

    /// Adds the bytes of a contiguous array.
    fn write(&self, py: Python<'_>, data: Bound<'_, PyUntypedArray>) -> PyResult<()> {
        let memory = Memory::of_array(&data)?;
        let bytes = memory.bytes();
        let mut slot = self.lock(py)?;
        let file = slot.as_mut().ok_or_else(|| ended(py))?;
        let written = py.detach(|| file.write(bytes));
        if written.is_err() {
            // Part of it may be there: it must never be finished.
            let broken = slot.take();
            py.detach(|| drop(broken));
        }
        written.or_raise(py)
    }

    fn finish(&self, py: Python<'_>, durable: bool) -> PyResult<()> {
        let file = self.take(py)?.ok_or_else(|| ended(py))?;
        py.detach(|| file.finish(durable)).or_raise(py)
    }

    /// Leaves nothing behind.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.take(py)?;
        py.detach(|| drop(file));
        Ok(())
    }
}

/// Adds everything here to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NewFile>()?;
    module.add_function(wrap_pyfunction!(store_delete, module)?)?;
    module.add_function(wrap_pyfunction!(store_join, module)?)?;
    module.add_function(wrap_pyfunction!(store_len, module)?)?;
    module.add_function(wrap_pyfunction!(store_list, module)?)?;
    module.add_function(wrap_pyfunction!(store_read, module)?)?;
    module.add_function(wrap_pyfunction!(store_write, module)?)
}
