//! Tensors in memory to files of other formats than `.zt`.

use std::borrow::Cow;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyDict};
use ztensor::export::{ExportFormat, ExportOptions, ExportSource, export, export_to};
use ztensor::{Attributes, Component, DType, Error, Extent, Object, Tensor};

use crate::codec::{bytes_of, effort};
use crate::errors::invalid;
use crate::items::Item;
use crate::memory::Memory;
use crate::watch::Watch;
use crate::{dtypes, store, values};

/// A tensor to export: one that is ready, or one that is made when its turn comes.
#[derive(FromPyObject)]
enum Given<'py> {
    /// `(name, dtype, shape, bytes, make)`, where `make()` returns its memory.
    Deferred(PyBackedStr, PyBackedStr, Vec<u64>, u64, Deferred),
    Ready(Item<'py>),
}

/// A function without arguments; no sequence, as the components of an item are.
struct Deferred(Py<PyAny>);

impl<'py> FromPyObject<'_, 'py> for Deferred {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match value.is_callable() {
            true => Ok(Deferred(value.to_owned().unbind())),
            false => Err(pyo3::exceptions::PyTypeError::new_err("not a function")),
        }
    }
}

enum Planned<'a> {
    Ready(Tensor<'a>),
    Deferred { object: Object, dtype: DType, make: &'a Py<PyAny> },
}

/// What an export sees: every tensor described, those that need a copy made one at a time.
struct Exported<'a> {
    tensors: Vec<(&'a str, Planned<'a>)>,
    attributes: Attributes,
    /// What a `make` raised.
    raised: Mutex<Option<PyErr>>,
}

impl<'a> Exported<'a> {
    fn new(py: Python<'_>, given: &'a [Given<'_>], attributes: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut tensors = Vec::with_capacity(given.len());
        for one in given {
            tensors.push(match one {
                Given::Ready(item) => (&*item.name, Planned::Ready(item.tensor(py)?)),
                Given::Deferred(name, dtype, shape, bytes, make) => {
                    let dtype = dtypes::by_name(py, dtype)?;
                    let data = Component::plain(dtype, Extent::new(0, *bytes));
                    let object = Object::dense(&shape[..], data);
                    (&**name, Planned::Deferred { object, dtype, make: &make.0 })
                }
            });
        }
        let attributes = attributes.map(values::from_dict).transpose()?.unwrap_or_default();
        Ok(Exported { tensors, attributes, raised: Mutex::new(None) })
    }

    /// Runs an export without the interpreter, and raises what went wrong in it.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        progress: Option<Py<PyAny>>,
        settings: &Settings,
        format: ExportFormat,
        work: impl FnOnce(&Self, ExportOptions<'_>) -> ztensor::Result<T> + Send,
    ) -> PyResult<T> {
        let (deflate, name, level) = settings;
        let effort = effort(py, name)?;
        let done = Watch::new(progress).run(py, |observer| {
            let options =
                ExportOptions::default().deflate(*deflate).effort(effort, *level).observer(Some(observer));
            let options = options.zstd(level.filter(|_| format == ExportFormat::Zt2));
            work(self, options)
        });
        let raised = self.raised.lock().ok().and_then(|mut raised| raised.take());
        match raised {
            Some(raised) => Err(raised),
            None => done,
        }
    }
}

/// The memory that `make` returns, copied: it may be gone when Python's turn is over.
fn made(py: Python<'_>, make: &Py<PyAny>) -> PyResult<Vec<u8>> {
    let found = make.bind(py).call0()?;
    let memory = Memory::of(&found)?;
    let bytes = memory.bytes();
    py.detach(|| {
        let mut copy = Vec::new();
        copy.try_reserve_exact(bytes.len()).map_err(|_| bytes.len())?;
        copy.extend_from_slice(bytes);
        Ok(copy)
    })
    .map_err(|len: usize| invalid(py, format!("not enough memory for {len} bytes")))
}

impl ExportSource for Exported<'_> {
    fn objects(&self) -> Vec<(&str, Cow<'_, Object>)> {
        let described = |planned: &'_ Planned<'_>| match planned {
            Planned::Ready(tensor) => tensor.describe(),
            Planned::Deferred { object, .. } => object.clone(),
        };
        self.tensors.iter().map(|(name, planned)| (*name, Cow::Owned(described(planned)))).collect()
    }

    fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    fn fetch(&self, index: usize) -> ztensor::Result<Tensor<'_>> {
        let Some((_, planned)) = self.tensors.get(index) else {
            return Err(Error::invalid(format!("there is no tensor {index}")));
        };
        match planned {
            Planned::Ready(tensor) => Ok(tensor.borrowed()),
            Planned::Deferred { object, dtype, make } => {
                let bytes = Python::attach(|py| made(py, make)).map_err(|error| {
                    if let Ok(mut raised) = self.raised.lock() {
                        raised.get_or_insert(error);
                    }
                    Error::cancelled()
                })?;
                Tensor::from_bytes(object.shape.clone(), *dtype, bytes)
            }
        }
    }
}

/// Deflate level, effort, and zstd level.
type Settings = (Option<u32>, String, Option<i32>);

fn target(py: Python<'_>, name: &str) -> PyResult<ExportFormat> {
    let found = ExportFormat::ALL.into_iter().find(|format| format.name() == name);
    found.ok_or_else(|| invalid(py, format!("there is no export to {name:?}")))
}

/// Writes a file of another format, which appears under its name when it is complete.
#[pyfunction]
#[pyo3(signature = (path, format, items, attributes, settings, remote = None, progress = None))]
#[allow(clippy::too_many_arguments)]
fn export_file(
    py: Python<'_>,
    path: PathBuf,
    format: &str,
    items: Vec<Given<'_>>,
    attributes: Option<&Bound<'_, PyDict>>,
    settings: Settings,
    remote: Option<store::Settings>,
    progress: Option<Py<PyAny>>,
) -> PyResult<()> {
    let format = target(py, format)?;
    let remote = store::options(remote);
    Exported::new(py, &items, attributes)?.run(py, progress, &settings, format, |source, options| {
        export(source, path, format, &options.remote(remote))
    })
}

/// The same into memory.
#[pyfunction]
#[pyo3(signature = (format, items, attributes, settings, progress = None))]
fn export_bytes<'py>(
    py: Python<'py>,
    format: &str,
    items: Vec<Given<'_>>,
    attributes: Option<&Bound<'_, PyDict>>,
    settings: Settings,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let format = target(py, format)?;
    let written =
        Exported::new(py, &items, attributes)?.run(py, progress, &settings, format, |source, options| {
            let mut buffer = Growing(Vec::new());
            export_to(source, &mut buffer, format, &options)?;
            Ok(buffer.0)
        })?;
    bytes_of(py, written)
}

/// A buffer for which there may be no memory.
struct Growing(Vec<u8>);

impl Write for Growing {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.try_reserve(bytes.len())?;
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The formats that can be written besides `.zt`.
pub(crate) fn names() -> Vec<&'static str> {
    ExportFormat::ALL.into_iter().map(ExportFormat::name).collect()
}

/// Adds everything here to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("EXPORTS", names())?;
    module.add_function(wrap_pyfunction!(export_file, module)?)?;
    module.add_function(wrap_pyfunction!(export_bytes, module)?)
}
