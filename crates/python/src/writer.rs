//! The writer as Python sees it.

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use numpy::{IntoPyArray, PyUntypedArray};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyDict};
use ztensor::write::{CreateOptions, PendingTensor};
use ztensor::{Checksum, Compression, ErrorKind, Tensor, WriteOptions, ZtVersion};

use crate::codec::Input;
use crate::codec::bytes_of;
use crate::errors::{OrRaise, finished, invalid};
use crate::items::{Item, Tie};
use crate::memory::Memory;
use crate::watch::Watch;
use crate::{store, values};

/// A `.zt` file being written.
#[pyclass(frozen, module = "ztensor._native")]
pub(crate) struct Writer {
    state: Mutex<State>,
    /// Where the bytes go when there is no file.
    memory: Option<Arc<Mutex<Vec<u8>>>>,
}

struct State {
    /// `None` when it is finished, or when a write failed.
    writer: Option<ztensor::Writer<'static>>,
    /// The first name under which memory was written.
    first: HashMap<Tie, String>,
    /// The tensor that comes piece by piece.
    pending: Option<PendingTensor>,
}

impl Drop for State {
    /// Taking an upload back takes a while, which others need not wait for.
    fn drop(&mut self) {
        let writer = self.writer.take();
        if writer.is_some() {
            Python::try_attach(|py| py.detach(|| drop(writer)));
        }
    }
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

/// A zstd level, or the name of an effort of the weight codec.
#[derive(FromPyObject)]
enum Coding {
    Level(i32),
    Effort(PyBackedStr),
}

impl Coding {
    fn compression(self) -> ztensor::Result<Compression> {
        match self {
            Coding::Level(level) => Ok(Compression::Zstd(level)),
            Coding::Effort(name) => Compression::from_effort(&name),
        }
    }
}

impl Writer {
    fn of(writer: ztensor::Writer<'static>) -> Writer {
        Writer {
            state: Mutex::new(State { writer: Some(writer), first: HashMap::new(), pending: None }),
            memory: None,
        }
    }

    /// The state, unless another thread is writing: waiting for it could take
    /// long, and what two threads write at once has no order anyway.
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(guard) => Ok(guard),
            Err(_) => Err(invalid(py, "another thread is using this writer: use one writer per thread")),
        }
    }
}

fn closed(py: Python<'_>) -> PyErr {
    finished(py, "the writer is finished, or a write failed: nothing more can be written")
}

#[pymethods]
impl Writer {
    #[staticmethod]
    #[pyo3(signature = (path, *, durable = false, derived = false, remote = None, version = 1))]
    fn create(
        py: Python<'_>,
        path: PathBuf,
        durable: bool,
        derived: bool,
        remote: Option<store::Settings>,
        version: u8,
    ) -> PyResult<Writer> {
        let version = if version == 2 { ZtVersion::V2 } else { ZtVersion::V1 };
        let create = || {
            let to = store::destination(&path, derived, true)?;
            let options = CreateOptions::default().version(version).durable(durable);
            ztensor::Writer::create_with(to, &options.remote(store::options(remote)))
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
        let writer = state.writer.as_mut().ok_or_else(|| closed(py))?;
        for (name, value) in attributes {
            writer.set_attribute(name, value);
        }
        Ok(())
    }

    fn __contains__(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        Ok(self.lock(py)?.writer.as_ref().ok_or_else(|| closed(py))?.contains(name))
    }

    /// Writes tensors, each one of
    ///
    /// - `(name, array)`, a contiguous array;
    /// - `(name, dtype, shape, memory)`, a dense tensor;
    /// - `(name, format, shape, components, attributes)`, where a component is
    ///   `(role, dtype, type, memory)`,
    ///
    /// and memory is a contiguous array or CPU tensor.
    ///
    /// With `tie`, tensors of the first two kinds that are the same memory are
    /// stored once; the caller keeps them alive until the writer is finished.
    #[pyo3(signature = (items, compression, checksum, tie = false, progress = None))]
    fn write(
        &self,
        py: Python<'_>,
        items: Vec<Item<'_>>,
        compression: Option<Coding>,
        checksum: &str,
        tie: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let options = WriteOptions {
            compression: compression.map_or(Ok(Compression::None), Coding::compression).or_raise(py)?,
            checksum: Checksum::from_name(checksum).or_raise(py)?,
        };
        let mut state = self.lock(py)?;
        let State { writer: slot, first, .. } = &mut *state;
        let writer = slot.as_mut().ok_or_else(|| closed(py))?;
        let mut ties = Vec::new();
        let mut tensors = Vec::with_capacity(items.len());
        for item in &items {
            let tensor = item.tensor(py)?;
            if let Some(key) = tie.then(|| item.tie(&tensor)).flatten() {
                if let Some(first) = first.get(&key) {
                    ties.push((&*item.name, first.clone(), tensor.shape));
                    continue;
                }
                first.insert(key, item.name.to_string());
            }
            tensors.push((&*item.name, tensor));
        }
        let named: Vec<(&str, &Tensor<'_>)> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let mut torn = false;
        let result = Watch::new(progress).run(py, |observer| {
            let written = writer.write_many_observed(&named, options, Some(observer));
            torn = written.as_ref().is_err_and(|error| error.kind() != ErrorKind::InvalidArgument);
            written?;
            ties.iter().try_for_each(|(name, first, shape)| writer.tie_shaped(name, first, shape))
        });
        if torn {
            // Part of a tensor may be in the file: it must never be finished.
            let broken = slot.take();
            py.detach(|| drop(broken));
        }
        result
    }

    /// Starts a dense tensor that comes piece by piece.
    fn stream_start(
        &self,
        py: Python<'_>,
        name: &str,
        shape: Vec<u64>,
        dtype: &str,
        compression: Option<Coding>,
        checksum: &str,
    ) -> PyResult<()> {
        let options = WriteOptions {
            compression: compression.map_or(Ok(Compression::None), Coding::compression).or_raise(py)?,
            checksum: Checksum::from_name(checksum).or_raise(py)?,
        };
        let dtype = crate::dtypes::by_name(py, dtype)?;
        let mut state = self.lock(py)?;
        if state.pending.is_some() {
            return Err(invalid(py, "another tensor is being streamed: finish it first"));
        }
        let writer = state.writer.as_mut().ok_or_else(|| closed(py))?;
        let pending =
            py.detach(|| PendingTensor::start(writer, name, &shape, dtype, options)).or_raise(py)?;
        state.pending = Some(pending);
        Ok(())
    }

    /// More bytes of that tensor; returns how many are still missing.
    fn stream_write(&self, py: Python<'_>, data: Input) -> PyResult<u64> {
        let mut state = self.lock(py)?;
        let State { writer, pending, .. } = &mut *state;
        let writer = writer.as_mut().ok_or_else(|| closed(py))?;
        let pending = pending.as_mut().ok_or_else(|| invalid(py, "no tensor is being streamed"))?;
        py.detach(|| pending.push(writer, data.bytes())).or_raise(py)?;
        Ok(pending.remaining())
    }

    /// Ends that tensor.
    fn stream_finish(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.lock(py)?;
        let State { writer, pending, .. } = &mut *state;
        let writer = writer.as_mut().ok_or_else(|| closed(py))?;
        let pending = pending.take().ok_or_else(|| invalid(py, "no tensor is being streamed"))?;
        py.detach(|| pending.finish(writer)).or_raise(py)
    }

    /// Gives a tensor that was already written a second name.
    fn tie(&self, py: Python<'_>, name: &str, existing: &str) -> PyResult<()> {
        self.lock(py)?.writer.as_mut().ok_or_else(|| closed(py))?.tie(name, existing).or_raise(py)
    }

    /// Lists the tensors in this order.
    fn reorder(&self, py: Python<'_>, names: Vec<PyBackedStr>) -> PyResult<()> {
        let mut state = self.lock(py)?;
        state.writer.as_mut().ok_or_else(|| closed(py))?.reorder(names.iter().map(|name| &**name));
        Ok(())
    }

    /// Writes the manifest and returns the size of the file.
    fn finish(&self, py: Python<'_>) -> PyResult<u64> {
        let writer = self.lock(py)?.writer.take().ok_or_else(|| closed(py))?;
        py.detach(|| writer.finish()).or_raise(py)
    }

    /// Finishes a writer into memory.
    fn finish_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let memory = self.memory.as_ref().ok_or_else(|| invalid(py, "this writer writes to a file"))?;
        self.finish(py)?;
        let buffer = memory.lock().map(|mut buffer| std::mem::take(&mut *buffer));
        bytes_of(py, buffer.map_err(|_| closed(py))?)
    }

    /// Gives up: nothing is left of the file.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let writer = self.lock(py)?.writer.take();
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

/// First bytes of a file, offsets of its tensors, offset of its end, and the end.
type Planned<'py> = (Bound<'py, PyBytes>, Vec<u64>, u64, Bound<'py, PyBytes>);

/// Where the dense tensors `(name, dtype, shape)` of a raw `.zt` file lie.
#[pyfunction]
pub(crate) fn zt_plan<'py>(
    py: Python<'py>,
    tensors: Vec<(PyBackedStr, PyBackedStr, Vec<u64>)>,
    attributes: &Bound<'py, PyDict>,
) -> PyResult<Planned<'py>> {
    let mut plan = ztensor::Plan::new(values::from_dict(attributes)?);
    let mut offsets = Vec::with_capacity(tensors.len());
    for (name, dtype, shape) in &tensors {
        let dtype = crate::dtypes::by_name(py, dtype)?;
        offsets.push(plan.dense(name, dtype, shape).or_raise(py)?);
    }
    let (end, tail) = plan.tail().or_raise(py)?;
    Ok((PyBytes::new(py, plan.head()), offsets, end, PyBytes::new(py, &tail)))
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
    let memory = Memory::of_array(&data)?;
    let bytes = memory.bytes();
    py.detach(|| ztensor::replace_tensor(path, name, bytes)).or_raise(py).map(drop)
}
