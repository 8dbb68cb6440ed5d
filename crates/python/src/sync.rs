//! Weight streams as Python sees them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use ztensor::sync::{
    self, ChecksumFormat, Encoding, Layout, LiveTensor, MemoryTarget, PayloadCompression, PublishOptions,
    Published, PullOptions, Pulled, Stream, TensorInput, chain::Anchors,
};
use ztensor::{DType, Reader};

use crate::dtypes;
use crate::errors::{OrRaise, invalid};
use crate::memory::{Memory, refuse_overlaps};
use crate::store::{Settings, options};
use crate::watch::Watch;

/// `(path, layout, storage options)`
type StreamArguments = (PathBuf, String, Option<Settings>);

fn stream(py: Python<'_>, (path, layout, remote): StreamArguments) -> PyResult<Arc<Stream>> {
    let layout = Layout::from_name(&layout).or_raise(py)?;
    Ok(Arc::new(Stream::new(path, layout, options(remote))))
}

/// `(name, dtype, shape, memory)`
struct Item {
    name: PyBackedStr,
    dtype: DType,
    shape: Vec<u64>,
    memory: Memory,
}

impl Item {
    fn extract(py: Python<'_>, item: &Bound<'_, PyTuple>, filled: bool) -> PyResult<Item> {
        let dtype: PyBackedStr = item.get_item(1)?.extract()?;
        let object = item.get_item(3)?;
        let memory = if filled { Memory::of_destination(&object)? } else { Memory::of(&object)? };
        Ok(Item {
            name: item.get_item(0)?.extract()?,
            dtype: dtypes::by_name(py, &dtype)?,
            shape: item.get_item(2)?.extract()?,
            memory,
        })
    }
}

fn items(py: Python<'_>, tensors: Vec<Bound<'_, PyTuple>>, filled: bool) -> PyResult<Vec<Item>> {
    let items = tensors.iter().map(|item| Item::extract(py, item, filled)).collect::<PyResult<Vec<_>>>()?;
    if filled {
        refuse_overlaps(py, items.iter().map(|item| &item.memory))?;
    }
    Ok(items)
}

fn inputs(items: &[Item]) -> Vec<TensorInput<'_>> {
    items
        .iter()
        .map(|item| TensorInput {
            name: &item.name,
            dtype: item.dtype,
            shape: item.shape.clone().into(),
            bytes: item.memory.bytes(),
        })
        .collect()
}

/// `(version, full, changed, bytes, total, encoding, target id)`
type Report = (String, Option<&'static str>, usize, u64, u64, &'static str, String);

fn report(published: Published) -> Report {
    let Published { version, full, changed, bytes, total, encoding, target_id, .. } = published;
    (version, full, changed, bytes, total, encoding.name(), target_id.to_string())
}

/// `(encoding, compression, checksum, anchor every, anchor ratio, files from, threads, durable, replace,
/// snapshot folder)`
type PublishArguments = (
    String,
    String,
    Option<String>,
    Option<u64>,
    Option<f64>,
    Option<PathBuf>,
    usize,
    bool,
    bool,
    Option<PathBuf>,
);

fn publish_options(py: Python<'_>, arguments: PublishArguments) -> PyResult<PublishOptions> {
    let (
        encoding,
        compression,
        checksum,
        every,
        ratio,
        files_from,
        threads,
        durable,
        replace,
        snapshot_folder,
    ) = arguments;
    Ok(PublishOptions {
        encoding: Encoding::from_name(&encoding).or_raise(py)?,
        compression: PayloadCompression::from_name(&compression).or_raise(py)?,
        checksum: checksum.as_deref().map(ChecksumFormat::from_name).transpose().or_raise(py)?,
        anchors: Anchors { every, ratio },
        files_from,
        threads,
        durable,
        replace_unfinished: replace,
        snapshot_folder,
    })
}

/// Publishes versions of a model.
#[pyclass(frozen, module = "ztensor._native")]
struct SyncPublisher(Mutex<sync::Publisher>);

impl SyncPublisher {
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, sync::Publisher>> {
        self.0.try_lock().map_err(|_| invalid(py, "another thread is publishing with this publisher"))
    }
}

#[pymethods]
impl SyncPublisher {
    #[staticmethod]
    fn from_path(
        py: Python<'_>,
        stream: StreamArguments,
        base: PathBuf,
        settings: PublishArguments,
    ) -> PyResult<SyncPublisher> {
        let (stream, settings) = (self::stream(py, stream)?, publish_options(py, settings)?);
        let make = || sync::Publisher::new(stream, &Reader::open(base)?, settings);
        py.detach(make).or_raise(py).map(|publisher| SyncPublisher(Mutex::new(publisher)))
    }

    #[staticmethod]
    fn from_tensors(
        py: Python<'_>,
        stream: StreamArguments,
        base: Vec<Bound<'_, PyTuple>>,
        settings: PublishArguments,
    ) -> PyResult<SyncPublisher> {
        let (stream, settings) = (self::stream(py, stream)?, publish_options(py, settings)?);
        let items = items(py, base, false)?;
        let make = || sync::Publisher::from_tensors(stream, &inputs(&items), settings);
        py.detach(make).or_raise(py).map(|publisher| SyncPublisher(Mutex::new(publisher)))
    }

    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.lock(py)?.version().to_owned())
    }

    #[getter]
    fn stream_id(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.lock(py)?.stream_id().to_owned())
    }

    fn start_from(&self, py: Python<'_>, version: &str) -> PyResult<()> {
        let mut publisher = self.lock(py)?;
        let publisher = &mut *publisher;
        py.detach(|| publisher.start_from(version)).or_raise(py)
    }

    fn begin(&self, py: Python<'_>) -> PyResult<()> {
        let mut publisher = self.lock(py)?;
        let publisher = &mut *publisher;
        py.detach(|| publisher.begin()).or_raise(py)
    }

    fn add(&self, py: Python<'_>, tensors: Vec<Bound<'_, PyTuple>>, rank: usize) -> PyResult<()> {
        let items = items(py, tensors, false)?;
        let mut publisher = self.lock(py)?;
        let publisher = &mut *publisher;
        py.detach(|| publisher.add(&inputs(&items), rank)).or_raise(py)
    }

    fn finish(&self, py: Python<'_>, name: Option<&str>, full: bool) -> PyResult<Report> {
        let mut publisher = self.lock(py)?;
        let publisher = &mut *publisher;
        py.detach(|| publisher.finish(name, full)).or_raise(py).map(report)
    }

    fn publish_path(
        &self,
        py: Python<'_>,
        path: PathBuf,
        name: Option<&str>,
        full: bool,
    ) -> PyResult<Report> {
        let mut publisher = self.lock(py)?;
        let publisher = &mut *publisher;
        let publish = || publisher.publish_reader_as(&Reader::open(path)?, name, full);
        py.detach(publish).or_raise(py).map(report)
    }
}

/// `(from, version, steps, changed as (name, file, offset, bytes, dtype, shape), bytes read)`
type Update = (Option<String>, String, Vec<String>, Vec<Changed>, u64);
type Changed = (String, String, u64, u64, &'static str, Vec<u64>);

fn update(pulled: Pulled) -> Update {
    let changed = pulled.changed.into_iter().map(|tensor| {
        let shape = tensor.shape.to_vec();
        (tensor.name, tensor.file, tensor.offset, tensor.len, tensor.dtype.python_name(), shape)
    });
    (pulled.from, pulled.version, pulled.steps, changed.collect(), pulled.read)
}

/// Brings a local checkpoint to a version.
#[pyfunction]
#[pyo3(signature = (stream, local, *, version, base, restart, allow_structure, threads, durable, patience, progress = None))]
#[allow(clippy::too_many_arguments)] // all by name, from one Python function
fn sync_pull(
    py: Python<'_>,
    stream: StreamArguments,
    local: PathBuf,
    version: Option<String>,
    base: Option<PathBuf>,
    restart: bool,
    allow_structure: bool,
    threads: usize,
    durable: bool,
    patience: f64,
    progress: Option<Py<PyAny>>,
) -> PyResult<Update> {
    let stream = self::stream(py, stream)?;
    let patience =
        Duration::try_from_secs_f64(patience).map_err(|_| invalid(py, "a time-out is not negative"))?;
    let watch = Watch::new(progress);
    watch
        .run(py, |observer| {
            let options = PullOptions {
                version,
                base,
                restart,
                allow_structure,
                threads,
                durable,
                patience,
                observer: Some(observer),
            };
            sync::pull(&stream, local, &options)
        })
        .map(update)
}

/// What tensors in memory hold of a stream.
#[pyclass(frozen, module = "ztensor._native")]
struct SyncMemory(Mutex<MemoryTarget>);

impl SyncMemory {
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, MemoryTarget>> {
        self.0.try_lock().map_err(|_| invalid(py, "another thread is changing these tensors"))
    }
}

fn live<'a>(items: &'a [Item]) -> Vec<LiveTensor<'a>> {
    items
        .iter()
        .map(|item| LiveTensor {
            name: &item.name,
            dtype: item.dtype,
            shape: item.shape.clone().into(),
            // SAFETY: no two items overlap in memory, which `items` checked, and each is used once.
            bytes: unsafe { item.memory.bytes_mut() },
        })
        .collect()
}

#[pymethods]
impl SyncMemory {
    #[new]
    fn new(version: &str) -> SyncMemory {
        SyncMemory(Mutex::new(MemoryTarget::new(version)))
    }

    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.lock(py)?.version().to_owned())
    }

    /// Version now, names of changed tensors, bytes read.
    fn pull(
        &self,
        py: Python<'_>,
        stream: StreamArguments,
        tensors: Vec<Bound<'_, PyTuple>>,
        version: Option<&str>,
        atomic: bool,
        threads: usize,
    ) -> PyResult<(String, Vec<String>, u64)> {
        let stream = self::stream(py, stream)?;
        let items = items(py, tensors, true)?;
        let mut target = self.lock(py)?;
        let target = &mut *target;
        let pull = || target.pull(&stream, &mut live(&items), version, atomic, threads);
        let applied = py.detach(pull).or_raise(py)?;
        Ok((applied.version, applied.changed.into_iter().collect(), applied.read))
    }

    /// `(name, dtype, shape, positions, values)` of each changed tensor, and the state after them.
    #[allow(clippy::type_complexity)] // the shape of the Python tuple
    fn sparse<'py>(
        &self,
        py: Python<'py>,
        stream: StreamArguments,
        tensors: Vec<Bound<'py, PyTuple>>,
        version: Option<&str>,
    ) -> PyResult<(Vec<(String, &'static str, Vec<u64>, Bound<'py, PyBytes>, Bound<'py, PyBytes>)>, SyncMemory)>
    {
        let stream = self::stream(py, stream)?;
        let items = items(py, tensors, true)?;
        let target = self.lock(py)?;
        let target = &*target;
        let mut changes = Vec::new();
        let collect = || {
            target.sparse_changes(&stream, &live(&items), version, |change| {
                changes.push(change);
                Ok(())
            })
        };
        let next = py.detach(collect).or_raise(py)?;
        let changes = changes.into_iter().map(|change| {
            let positions: Vec<u8> = change.positions.iter().flat_map(|at| at.to_le_bytes()).collect();
            let (positions, values) = (PyBytes::new(py, &positions), PyBytes::new(py, &change.values));
            (change.name, change.dtype.python_name(), change.shape.to_vec(), positions, values)
        });
        Ok((changes.collect(), SyncMemory(Mutex::new(next))))
    }
}

/// The published versions of a stream, oldest first.
#[pyfunction]
fn sync_versions(py: Python<'_>, stream: StreamArguments) -> PyResult<Vec<String>> {
    let stream = self::stream(py, stream)?;
    py.detach(|| stream.versions()).or_raise(py)
}

/// What a stream has, and what a checkpoint holds.
#[pyfunction]
fn sync_status<'py>(
    py: Python<'py>,
    stream: StreamArguments,
    local: Option<PathBuf>,
) -> PyResult<Bound<'py, PyDict>> {
    let stream = self::stream(py, stream)?;
    let found = py.detach(|| sync::status(&stream, local.as_deref())).or_raise(py)?;
    let status = PyDict::new(py);
    status.set_item("newest", found.newest)?;
    status.set_item("newest_full", found.newest_full)?;
    status.set_item("versions", found.versions)?;
    status.set_item("applied", found.applied)?;
    status.set_item("interrupted", found.interrupted)?;
    Ok(status)
}

/// `(version, base, form, tensors, changed and all elements, norm, bytes)` of each version.
type Entry = (String, Option<String>, String, usize, Option<(u64, u64)>, Option<f64>, u64);

/// What each version changed.
#[pyfunction]
fn sync_log(py: Python<'_>, stream: StreamArguments) -> PyResult<Vec<Entry>> {
    let stream = self::stream(py, stream)?;
    let entries = py.detach(|| sync::log(&stream)).or_raise(py)?;
    let entries = entries.into_iter();
    Ok(entries.map(|e| (e.version, e.base, e.form, e.tensors, e.changed, e.norm, e.bytes)).collect())
}

/// Folds deltas: bytes of the deltas and of the fold.
#[pyfunction]
fn sync_fold(
    py: Python<'_>,
    stream: StreamArguments,
    first: &str,
    last: &str,
    base: Option<PathBuf>,
    settings: PublishArguments,
) -> PyResult<(u64, u64)> {
    let (stream, settings) = (self::stream(py, stream)?, publish_options(py, settings)?);
    let fold = || {
        let base = base.map(Reader::open).transpose()?;
        sync::fold(&stream, first, last, base.as_ref(), &settings)
    };
    let folded = py.detach(fold).or_raise(py)?;
    Ok((folded.deltas, folded.bytes))
}

/// Removes versions that are not needed any more; their folders.
#[pyfunction]
fn sync_prune(
    py: Python<'_>,
    stream: StreamArguments,
    keep: u64,
    in_use: Vec<String>,
    dry_run: bool,
) -> PyResult<Vec<String>> {
    let stream = self::stream(py, stream)?;
    py.detach(|| sync::prune(&stream, keep, &in_use, dry_run)).or_raise(py)
}

/// `(version, compared, unknown, differ)` of a checkpoint.
type Verified = (Option<String>, usize, Vec<String>, Vec<String>);

/// Compares a checkpoint with the checksums of the version that it is at.
#[pyfunction]
fn sync_verify(py: Python<'_>, local: PathBuf, threads: usize) -> PyResult<Verified> {
    let found = py.detach(|| sync::verify(&local, threads)).or_raise(py)?;
    Ok((found.version, found.checked, found.unknown, found.differ))
}

/// Adds everything here to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SyncMemory>()?;
    module.add_class::<SyncPublisher>()?;
    module.add_function(wrap_pyfunction!(sync_fold, module)?)?;
    module.add_function(wrap_pyfunction!(sync_log, module)?)?;
    module.add_function(wrap_pyfunction!(sync_prune, module)?)?;
    module.add_function(wrap_pyfunction!(sync_pull, module)?)?;
    module.add_function(wrap_pyfunction!(sync_status, module)?)?;
    module.add_function(wrap_pyfunction!(sync_verify, module)?)?;
    module.add_function(wrap_pyfunction!(sync_versions, module)?)
}
