//! The writer as Python sees it.

use std::borrow::Cow;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use numpy::{IntoPyArray, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use ztensor::{Array, Checksum, Compression, DType, Layout, Tensor, WriteOptions};

use crate::errors::{OrRaise, exception, invalid};
use crate::watch::Watch;
use crate::{dtypes, values};

/// A `.zt` file being written.
#[pyclass(frozen, module = "ztensor._native")]
pub(crate) struct Writer {
    state: Mutex<Option<ztensor::Writer<'static>>>,
    /// Where the bytes go when there is no file.
    memory: Option<Arc<Mutex<Vec<u8>>>>,
}

/// A growing buffer that is still there when its writer is not.
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut buffer = self.0.lock().map_err(|_| std::io::ErrorKind::Other)?;
        buffer.try_reserve(bytes.len())?;
        buffer.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Writer {
    fn of(writer: ztensor::Writer<'static>) -> Writer {
        Writer { state: Mutex::new(Some(writer)), memory: None }
    }

    /// The state, waited for without the interpreter: another thread may be writing.
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Option<ztensor::Writer<'static>>>> {
        match self.state.try_lock() {
            Ok(guard) => Ok(guard),
            Err(_) => Err(invalid(py, "another thread is using this writer: use one writer per thread")),
        }
    }
}

fn closed(py: Python<'_>) -> PyErr {
    invalid(py, "the writer is finished, or a write failed: nothing more can be written")
}

#[pymethods]
impl Writer {
    #[staticmethod]
    #[pyo3(signature = (path, *, durable = false))]
    fn create(py: Python<'_>, path: PathBuf, durable: bool) -> PyResult<Writer> {
        let create = || match durable {
            true => ztensor::Writer::create_durable(path),
            false => ztensor::Writer::create(path),
        };
        py.detach(create).or_raise(py).map(Writer::of)
    }

    /// Adds to an existing file, which stays as it is until `finish`.
    #[staticmethod]
    fn append(py: Python<'_>, path: PathBuf) -> PyResult<Writer> {
        py.detach(|| ztensor::Writer::append(path)).or_raise(py).map(Writer::of)
    }

    /// A writer into memory; `finish_bytes` returns what it wrote.
    #[staticmethod]
    fn memory(py: Python<'_>) -> PyResult<Writer> {
        let buffer = Arc::new(Mutex::new(Vec::new()));
        let writer = ztensor::Writer::new(Shared(Arc::clone(&buffer))).or_raise(py)?;
        Ok(Writer { memory: Some(buffer), ..Writer::of(writer) })
    }

    fn set_attributes(&self, py: Python<'_>, attributes: &Bound<'_, PyDict>) -> PyResult<()> {
        let attributes = values::from_dict(attributes)?;
        let mut state = self.lock(py)?;
        let writer = state.as_mut().ok_or_else(|| closed(py))?;
        for (name, value) in attributes {
            writer.set_attribute(name, value);
        }
        Ok(())
    }

    fn __contains__(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        Ok(self.lock(py)?.as_ref().ok_or_else(|| closed(py))?.contains(name))
    }

    /// Writes tensors, each `(name, format, shape, components, attributes)`;
    /// a component is `(role, dtype, type, memory)`, and memory a contiguous
    /// array or `(address, bytes, owner)`.
    #[pyo3(signature = (items, compression, checksum, progress = None))]
    fn write<'py>(
        &self,
        py: Python<'py>,
        items: Vec<Item<'py>>,
        compression: Option<i32>,
        checksum: &str,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let options = WriteOptions {
            compression: compression.map_or(Compression::None, Compression::Zstd),
            checksum: Checksum::from_name(checksum).or_raise(py)?,
        };
        let tensors: Vec<Tensor<'_>> = items.iter().map(|item| item.tensor(py)).collect::<PyResult<_>>()?;
        let named: Vec<(&str, &Tensor<'_>)> =
            items.iter().map(|item| item.name.as_str()).zip(&tensors).collect();
        let mut state = self.lock(py)?;
        let writer = state.as_mut().ok_or_else(|| closed(py))?;
        let watch = Watch::new(progress);
        let mut torn = false;
        let result = watch.run(py, |observer| {
            writer.write_many_observed(&named, options, Some(observer)).inspect_err(|error| {
                torn = !matches!(error.kind(), ztensor::Kind::InvalidArgument);
            })
        });
        if torn {
            // Part of a tensor may be in the file: it must never be finished.
            *state = None;
        }
        result
    }

    /// Gives a tensor that was already written a second name.
    fn tie(&self, py: Python<'_>, name: &str, existing: &str) -> PyResult<()> {
        self.lock(py)?.as_mut().ok_or_else(|| closed(py))?.tie(name, existing).or_raise(py)
    }

    /// Writes the manifest and returns the size of the file.
    fn finish(&self, py: Python<'_>) -> PyResult<u64> {
        let writer = self.lock(py)?.take().ok_or_else(|| closed(py))?;
        py.detach(|| writer.finish()).or_raise(py)
    }

    /// Finishes a writer into memory.
    fn finish_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let memory = self.memory.as_ref().ok_or_else(|| invalid(py, "this writer writes to a file"))?;
        self.finish(py)?;
        let buffer = memory.lock().map(|mut buffer| std::mem::take(&mut *buffer));
        Ok(PyBytes::new(py, &buffer.map_err(|_| closed(py))?))
    }

    /// Gives up: nothing is left of the file.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let writer = self.lock(py)?.take();
        py.detach(|| drop(writer));
        Ok(())
    }
}

/// The elements of a quantized tensor as a flat array of `float32`.
#[pyfunction]
pub(crate) fn dequantize<'py>(py: Python<'py>, item: Item<'py>) -> PyResult<Bound<'py, PyAny>> {
    let tensor = item.tensor(py)?;
    let dense = py.detach(|| tensor.dequantize()).or_raise(py)?;
    Ok(dense.data.into_pyarray(py).into_any())
}

/// Writes a file without some of its tensors, and returns the size of the new file.
#[pyfunction]
pub(crate) fn remove_tensors(
    py: Python<'_>,
    input: PathBuf,
    output: PathBuf,
    names: Vec<String>,
) -> PyResult<u64> {
    py.detach(|| ztensor::remove_tensors(input, output, &names)).or_raise(py)
}

/// Replaces the bytes of a dense tensor in its file.
#[pyfunction]
pub(crate) fn replace_tensor(
    py: Python<'_>,
    path: PathBuf,
    name: &str,
    data: Bound<'_, PyUntypedArray>,
) -> PyResult<()> {
    let memory = Memory::Array(data);
    let bytes = memory.bytes(py)?;
    py.detach(|| ztensor::replace_tensor(path, name, bytes)).or_raise(py).map(drop)
}

/// A tensor to be written.
#[derive(FromPyObject)]
pub(crate) struct Item<'py> {
    #[pyo3(item(0))]
    name: String,
    #[pyo3(item(1))]
    format: String,
    #[pyo3(item(2))]
    shape: Vec<u64>,
    #[pyo3(item(3))]
    components: Vec<Part<'py>>,
    #[pyo3(item(4))]
    attributes: Option<Bound<'py, PyDict>>,
}

#[derive(FromPyObject)]
struct Part<'py> {
    #[pyo3(item(0))]
    role: String,
    #[pyo3(item(1))]
    dtype: String,
    #[pyo3(item(2))]
    logical: Option<String>,
    #[pyo3(item(3))]
    memory: Memory<'py>,
}

#[derive(FromPyObject)]
enum Memory<'py> {
    Array(Bound<'py, PyUntypedArray>),
    Address(usize, usize, #[allow(dead_code)] Bound<'py, PyAny>),
}

impl Item<'_> {
    fn tensor(&self, py: Python<'_>) -> PyResult<Tensor<'_>> {
        let components =
            self.components.iter().map(|part| Ok((Cow::Owned(part.role.clone()), part.array(py)?)));
        let components: Vec<_> = components.collect::<PyResult<_>>()?;
        let attributes = self.attributes.as_ref().map(values::from_dict).transpose()?;
        Tensor::new(&self.shape[..], Layout::from_name(&self.format), components, attributes)
            .map_err(|error| exception(py, &error.in_tensor(self.name.as_str())))
    }
}

impl Part<'_> {
    fn array(&self, py: Python<'_>) -> PyResult<Array<'_>> {
        let storage = dtypes::by_name(py, &self.dtype)?;
        let known = match &self.logical {
            None => Some(storage),
            Some(name) => DType::from_logical_name(name, storage),
        };
        let mut array = Array::new(known.unwrap_or(storage), self.memory.bytes(py)?);
        if known.is_none() {
            array.unknown_type = self.logical.as_deref().map(Into::into);
        }
        Ok(array)
    }
}

impl Memory<'_> {
    fn bytes(&self, py: Python<'_>) -> PyResult<&[u8]> {
        let (data, len) = match self {
            Memory::Array(array) => {
                if !array.is_c_contiguous() {
                    return Err(invalid(py, "the array is not contiguous"));
                }
                // SAFETY: the array is alive, so its header can be read.
                let data = unsafe { (*array.as_array_ptr()).fields.data };
                (data.cast_const().cast(), array.len() * array.dtype().itemsize())
            }
            Memory::Address(address, len, _) => (std::ptr::with_exposed_provenance(*address), *len),
        };
        if len == 0 {
            return Ok(&[]);
        }
        // SAFETY: an array's memory is as large as its header says, and Python
        // passes addresses only of tensors it has checked; both live as long as
        // `self`, which holds a reference. Other threads that write to a tensor
        // while it is saved get what they deserve: some mix of old and new.
        Ok(unsafe { std::slice::from_raw_parts(data, len) })
    }
}
