//! The reader as Python sees it.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use numpy::IntoPyArray;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList};
use ztensor::read::prefetch::{DecodeAhead, Limits};
use ztensor::source::{MapMode, MemorySource};
use ztensor::{Component, Object, OpenOptions, PicklePolicy, Verification};

use crate::codec::new_bytes;
use crate::errors::{OrRaise, invalid};
use crate::fetch::{Framework, fetch};
use crate::memory::{Memory, refuse_overlaps};
use crate::watch::Watch;
use crate::{arrays, dtypes, store, values};

/// A weight that is quantized by a scheme of several tensors.
type QuantizedWeight = (String, &'static str, Vec<u64>, u32, u64, Vec<(&'static str, String)>, u64);

/// An open tensor file. Safe to use from many threads.
#[pyclass(frozen, module = "ztensor._native")]
pub(crate) struct Reader {
    inner: Arc<ztensor::Reader>,
    pool: arrays::Pool,
    /// What decodes this file's tensors before they are asked for, and the file's number there.
    ahead: OnceLock<(Arc<DecodeAhead<arrays::Memory>>, usize)>,
    /// Tensors whose digests were compared before they were viewed: once is enough. Never waited
    /// for: a child process may have inherited it locked by a thread that it does not have.
    verified: Mutex<HashSet<String>>,
}

impl Reader {
    pub(crate) fn new(inner: ztensor::Reader) -> Reader {
        Reader {
            inner: Arc::new(inner),
            pool: arrays::Pool::default(),
            ahead: OnceLock::new(),
            verified: Mutex::default(),
        }
    }
}

impl Reader {
    /// Compares the digests of tensors that are about to be viewed, unless that was done before.
    fn verify_once(&self, py: Python<'_>, objects: &[(&str, &Object)]) -> PyResult<()> {
        let has_digest = |object: &Object| object.components.iter().any(|(_, one)| one.digest.is_some());
        let found = objects.iter().filter(|(_, object)| has_digest(object)).map(|(name, _)| *name);
        let mut new: Vec<&str> = found.collect();
        if new.is_empty() || self.inner.format() != ztensor::Format::Zt {
            return Ok(());
        }
        if let Ok(verified) = self.verified.try_lock() {
            new.retain(|name| !verified.contains(*name));
        }
        py.detach(|| self.inner.verify_in_place(&new)).or_raise(py)?;
        if let Ok(mut verified) = self.verified.try_lock() {
            verified.extend(new.into_iter().map(str::to_owned));
        }
        Ok(())
    }
}

fn options(
    py: Python<'_>,
    map: bool,
    verify: bool,
    threads: usize,
    limits: ztensor::Limits,
    pickle: &str,
) -> PyResult<OpenOptions> {
    let policy = match pickle {
        "warn" => PicklePolicy::Report,
        "strict" => PicklePolicy::Strict,
        other => {
            return Err(invalid(py, format!("pickle is \"warn\" or \"strict\", not {other:?}")));
        }
    };
    Ok(OpenOptions::default()
        .pickle(policy)
        .map(if map { MapMode::Auto } else { MapMode::Never })
        .verify(verify)
        .threads(threads)
        .limits(limits))
}

/// The limits that Python's `max_bytes` and `max_total_bytes` ask for.
pub(crate) fn limits(max_component: Option<u64>, max_total: Option<u64>) -> ztensor::Limits {
    let limits = ztensor::Limits::default().max_component(max_component.unwrap_or(u64::MAX));
    max_total.map_or(limits, |bytes| limits.max_total(bytes))
}

/// Warns of functions that are dangerous in tools that unpickle the file: once for each open.
fn warn(py: Python<'_>, reader: &ztensor::Reader) -> PyResult<()> {
    let names = reader.unsafe_globals();
    if names.is_empty() {
        return Ok(());
    }
    let label = reader.catalog().sources.label(0);
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    WARN.import(py, "ztensor._errors", "warn_unsafe")?.call1((label, names)).map(drop)
}

static WARN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

#[pymethods]
impl Reader {
    #[staticmethod]
    #[pyo3(signature = (path, *, map = true, verify = true, threads = 0, max_component = None, max_total = None, remote = None, pickle = "warn"))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        map: bool,
        verify: bool,
        threads: usize,
        max_component: Option<u64>,
        max_total: Option<u64>,
        remote: Option<store::Settings>,
        pickle: &str,
    ) -> PyResult<Reader> {
        let limits = limits(max_component, max_total);
        let options = options(py, map, verify, threads, limits, pickle)?;
        let options = options.remote(store::options(remote));
        let reader = py.detach(|| options.open(path)).or_raise(py)?;
        warn(py, &reader)?;
        Ok(Reader::new(reader))
    }

    #[staticmethod]
    #[pyo3(signature = (data, *, verify = true, threads = 0, max_component = None, max_total = None, pickle = "warn"))]
    fn from_bytes(
        py: Python<'_>,
        data: PyBackedBytes,
        verify: bool,
        threads: usize,
        max_component: Option<u64>,
        max_total: Option<u64>,
        pickle: &str,
    ) -> PyResult<Reader> {
        let limits = limits(max_component, max_total);
        let options = options(py, true, verify, threads, limits, pickle)?;
        let source = Arc::new(MemorySource::new(data));
        let reader = py.detach(|| options.open_source(source)).or_raise(py)?;
        warn(py, &reader)?;
        Ok(Reader::new(reader))
    }

    /// Functions that the file's pickles name and that are dangerous in tools that unpickle it.
    #[getter]
    fn unsafe_globals(&self) -> Vec<&str> {
        self.inner.unsafe_globals().iter().map(|name| &**name).collect()
    }

    #[getter]
    fn format(&self) -> &'static str {
        self.inner.format().name()
    }

    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.inner.keys())
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }

    fn __contains__(&self, name: &str) -> bool {
        self.inner.contains(name)
    }

    #[getter]
    fn attributes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        values::to_dict(py, self.inner.attributes())
    }

    /// What the file says about a tensor: shape, dtype, type, format,
    /// components and attributes.
    fn metadata<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyDict>> {
        describe(py, self.inner.get(name).or_raise(py)?)
    }

    /// Tensors by name. `framework` is `"numpy"`, `"torch"` or `None`; whatever
    /// it has no array for is made by `other(components, shape, dtype, type, format, attributes)`.
    ///
    /// Digests are compared, also of what is viewed in place, unless `verify` is false.
    #[pyo3(signature = (names, framework, copy, other, progress = None, verify = true))]
    #[allow(clippy::too_many_arguments)]
    fn fetch<'py>(
        &self,
        py: Python<'py>,
        names: Option<Vec<String>>,
        framework: Option<&str>,
        copy: bool,
        other: &Bound<'py, PyAny>,
        progress: Option<Py<PyAny>>,
        verify: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let framework = match framework {
            None => Framework::None,
            Some("numpy") => Framework::Numpy,
            Some("torch") => Framework::Torch,
            Some(name) => return Err(invalid(py, format!("unknown framework {name:?}"))),
        };
        let objects: Vec<(&str, &Object)> = match &names {
            None => self.inner.objects().collect(),
            Some(names) => names
                .iter()
                .map(|name| self.inner.get(name).map(|object| (name.as_str(), object)))
                .collect::<ztensor::Result<_>>()
                .or_raise(py)?,
        };
        if verify && !copy {
            self.verify_once(py, &objects)?;
        }
        fetch(py, &self.inner, &objects, framework, copy, other, &Watch::new(progress))
    }

    /// Decoded size of the data of all tensors named, for progress bars.
    fn byte_len(&self, py: Python<'_>, names: Option<Vec<String>>) -> PyResult<u64> {
        match names {
            None => {
                Ok(self.inner.objects().fold(0, |sum, (_, object)| sum.saturating_add(object.byte_len())))
            }
            Some(names) => names
                .iter()
                .try_fold(0u64, |sum, name| {
                    self.inner.get(name).map(|object| sum.saturating_add(object.byte_len()))
                })
                .or_raise(py),
        }
    }

    /// Bytes of a dense tensor as a flat array of bytes: rows `start..stop`. With `pooled` its
    /// memory may be shared with that of other arrays read so, and goes when they go.
    #[pyo3(signature = (name, start, stop, pooled = false))]
    fn read_rows<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        start: u64,
        stop: u64,
        pooled: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let range = self.inner.row_bytes(name, start..stop).or_raise(py)?;
        self.inner.check_range_limits(name, range.clone()).or_raise(py)?;
        let len = range.end - range.start;
        let Some(descr) = dtypes::descr(py, ztensor::DType::U8)? else {
            return Err(invalid(py, "NumPy has no uint8"));
        };
        let size = isize::try_from(len).map_err(|_| invalid(py, "too many rows for an array"))?;
        let mut threads = None;
        if let Some((ahead, file)) = self.ahead.get()
            && pooled
        {
            if self.inner.get(name).or_raise(py)?.byte_len() == len {
                // Who lets go of the interpreter may have to wait for it longer than for the tensor.
                let ready = ahead.take_ready(*file, name);
                if let Some(mut memory) = ready.or_else(|| py.detach(|| ahead.take(*file, name))) {
                    check_values(&self.inner, name, "data", memory.as_mut()).or_raise(py)?;
                    return Ok(memory.into_array(py, descr)?.into_any());
                }
            }
            // Others are at work already, on other tensors.
            threads = ahead.is_at_work().then_some(1);
        }
        let read = |out: &mut [u8]| match threads {
            Some(threads) => self.inner.read_range_with(name, range, out, threads),
            None => self.inner.read_range_into(name, range, out),
        };
        let checked = |out: &mut [u8]| {
            read(out)?;
            check_values(&self.inner, name, "data", out)
        };
        if let Some(mut memory) = pooled.then(|| self.pool.take(len as usize)).flatten() {
            py.detach(|| checked(memory.as_mut())).or_raise(py)?;
            return Ok(memory.into_array(py, descr)?.into_any());
        }
        let array = arrays::empty(py, descr, &[size].into_iter().collect())?;
        let memory = Memory::of_array(&array)?;
        // SAFETY: the array is new, and nothing else refers to it.
        let out = unsafe { memory.bytes_mut() };
        py.detach(|| checked(out)).or_raise(py)?;
        Ok(array.into_any())
    }

    /// Weights that are quantized by a scheme of several tensors: `(name, scheme, shape, bits, group,
    /// tensors by role, bytes in the file)`.
    fn schemes(&self, py: Python<'_>) -> PyResult<Vec<QuantizedWeight>> {
        let found = py.detach(|| ztensor::schemes::find(&self.inner)).or_raise(py)?;
        let described = found.into_iter().map(|one| {
            (one.name, one.scheme.name(), one.shape, one.bits, one.group, one.tensors, one.stored_len)
        });
        Ok(described.collect())
    }

    /// The numbers of such a weight, as a flat array of `float32`.
    fn dequantize<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let numbers = py.detach(|| {
            let found = ztensor::schemes::find(&self.inner)?;
            match found.iter().find(|one| one.name == name) {
                Some(one) => one.dequantize(&self.inner),
                None => Err(ztensor::Error::new(
                    ztensor::ErrorKind::NotFound,
                    format!("no weight {name:?} of a known quantization scheme"),
                )),
            }
        });
        Ok(numbers.or_raise(py)?.into_pyarray(py).into_any())
    }

    /// Bytes of a dense tensor, or of its rows `start..stop`, as `bytes`.
    #[pyo3(signature = (name, rows = None))]
    fn read_bytes<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        rows: Option<(u64, u64)>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        match rows {
            None => {
                let object = self.inner.get(name).or_raise(py)?;
                let len = object.component("data").map_or(0, |component| component.len);
                self.inner.check_limits([name]).or_raise(py)?;
                new_bytes(py, len, |out| self.inner.read_many(vec![(name, "data", out)], None))
            }
            Some((start, stop)) => {
                let range = self.inner.row_bytes(name, start..stop).or_raise(py)?;
                self.inner.check_range_limits(name, range.clone()).or_raise(py)?;
                let len = range.end - range.start;
                new_bytes(py, len, |out| self.inner.read_range_into(name, range, out))
            }
        }
    }

    /// Fills contiguous arrays and CPU tensors, each `(name, destination)`. Where the memory is and
    /// how long it is come from the destination itself.
    #[pyo3(signature = (requests, progress = None))]
    fn read_into(
        &self,
        py: Python<'_>,
        requests: Vec<(String, Bound<'_, PyAny>)>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let destinations: Vec<(&str, Memory)> = requests
            .iter()
            .map(|(name, destination)| Ok((name.as_str(), Memory::of_destination(destination)?)))
            .collect::<PyResult<_>>()?;
        refuse_overlaps(py, destinations.iter().map(|(_, memory)| memory))?;
        Watch::new(progress).run(py, |observer| {
            let reads = destinations.iter().map(|(name, memory)| {
                // SAFETY: no two destinations overlap.
                (*name, "data", unsafe { memory.bytes_mut() })
            });
            self.inner.read_many(reads.collect(), Some(observer))?;
            destinations.iter().try_for_each(|(name, memory)| {
                // SAFETY: as above; what was handed out before is not used any more.
                check_values(&self.inner, name, "data", unsafe { memory.bytes_mut() })
            })
        })
    }

    /// Fills contiguous CPU tensors with boxes of dense tensors, each
    /// `(name, bytes of an item, sizes, offsets, lengths, destination)`.
    #[pyo3(signature = (requests, progress = None))]
    fn read_parts(
        &self,
        py: Python<'_>,
        requests: Vec<PartRequest<'_>>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let mut destinations = Vec::with_capacity(requests.len());
        for request in &requests {
            let memory = Memory::of_destination(&request.5)?;
            if request.byte_len() != Some(memory.len() as u64) {
                let message =
                    format!("a subarray of {:?} elements does not fill {} bytes", request.4, memory.len());
                return Err(invalid(py, message));
            }
            destinations.push(memory);
        }
        refuse_overlaps(py, destinations.iter())?;
        let parts: Vec<_> = requests
            .iter()
            .map(|PartRequest(name, item, sizes, offsets, lengths, _)| (name, *item, sizes, offsets, lengths))
            .zip(&destinations)
            .filter(|(_, memory)| memory.len() > 0)
            .collect();
        Watch::new(progress).run(py, |observer| {
            let reads = parts.iter().map(|((name, item, sizes, offsets, lengths), memory)| {
                // SAFETY: no two destinations overlap.
                let out = unsafe { memory.bytes_mut() };
                ztensor::Subarray { name, item: *item, sizes, offsets, lengths, out }
            });
            self.inner.read_parts(reads.collect(), Some(observer))?;
            parts.iter().try_for_each(|((name, ..), memory)| {
                // SAFETY: as above; what was handed out before is not used any more.
                check_values(&self.inner, name, "data", unsafe { memory.bytes_mut() })
            })
        })
    }

    /// Where a tensor lies: `(role, file, offset, length, encoding, alignment)` for each range.
    fn locate(&self, py: Python<'_>, name: &str) -> PyResult<Vec<Place>> {
        let located = py.detach(|| self.inner.locate(name)).or_raise(py)?;
        let owned = |place: ztensor::read::Location<'_>| {
            let (role, file, encoding) = (place.role.into(), place.file.into(), place.encoding.into());
            (role, file, place.offset, place.len, encoding, place.alignment)
        };
        Ok(located.into_iter().map(owned).collect())
    }

    /// Asks the system to read tensors into the page cache: how many bytes that is.
    #[pyo3(signature = (names = None))]
    fn prefetch(&self, py: Python<'_>, names: Option<Vec<String>>) -> PyResult<u64> {
        py.detach(|| match &names {
            None => self.inner.prefetch(self.inner.keys()),
            Some(names) => self.inner.prefetch(names.iter().map(String::as_str)),
        })
        .or_raise(py)
    }

    /// Asks the system to drop tensors from the page cache: how many bytes that is.
    #[pyo3(signature = (names = None))]
    fn evict(&self, py: Python<'_>, names: Option<Vec<String>>) -> PyResult<u64> {
        py.detach(|| match &names {
            None => self.inner.evict(self.inner.keys()),
            Some(names) => self.inner.evict(names.iter().map(String::as_str)),
        })
        .or_raise(py)
    }

    /// The content id of the model, and those of its tensors by name.
    #[pyo3(signature = (stored = false, progress = None))]
    fn content_ids<'py>(
        &self,
        py: Python<'py>,
        stored: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(String, Bound<'py, PyDict>)> {
        use ztensor::id::Evidence;
        let evidence = if stored { Evidence::StoredDigests } else { Evidence::Bytes };
        let ids =
            Watch::new(progress).run(py, |observer| self.inner.content_ids(evidence, Some(observer)))?;
        let tensors = PyDict::new(py);
        for (name, id) in &ids.tensors {
            tensors.set_item(name, id.to_string())?;
        }
        Ok((ids.model.to_string(), tensors))
    }

    /// The content id of one tensor.
    fn tensor_content_id(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        Ok(py.detach(|| self.inner.tensor_content_id(name)).or_raise(py)?.to_string())
    }

    /// Compares one tensor's digests: `True`, or `False` if it has none.
    fn verify(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let verification = py.detach(|| self.inner.verify(name)).or_raise(py)?;
        Ok(verification == Verification::Checked)
    }

    /// Compares all digests: how many tensors were checked, how many had none.
    #[pyo3(signature = (progress = None))]
    fn verify_all(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<(u64, u64)> {
        let summary = Watch::new(progress).run(py, |observer| self.inner.verify_all(Some(observer)))?;
        Ok((summary.checked, summary.unchecked))
    }
}

/// `(role, file, offset, length, encoding, alignment)`
type Place = (String, String, u64, u64, String, u64);

/// `(name, bytes of an item, sizes, offsets, lengths, destination)`
#[derive(FromPyObject)]
struct PartRequest<'py>(String, u64, Vec<u64>, Vec<u64>, Vec<u64>, Bound<'py, PyAny>);

impl PartRequest<'_> {
    /// Bytes of the box, if they can be counted.
    fn byte_len(&self) -> Option<u64> {
        self.4.iter().try_fold(self.1, |bytes, &length| bytes.checked_mul(length))
    }
}

/// Refuses, by name, bytes that are no elements of the component they were read from. They are
/// cleared, as they may be in an array of the caller's.
pub(crate) fn check_values(
    reader: &ztensor::Reader,
    name: &str,
    role: &str,
    bytes: &mut [u8],
) -> ztensor::Result<()> {
    let Some(component) = reader.get(name)?.component(role) else { return Ok(()) };
    component.dtype.check_values(bytes).map_err(|error| {
        bytes.fill(0);
        error.in_tensor(name).in_file(reader.catalog().sources.label(0))
    })
}

/// Starts decoding the tensors of several files before they are asked for, on all cores but the one
/// that will ask. `read_rows` with `pooled` then finds them.
#[pyfunction]
pub(crate) fn decode_ahead(readers: Vec<Py<Reader>>) {
    let threads = ztensor::parallel::resolve(0).saturating_sub(1);
    if threads == 0 || readers.iter().any(|reader| reader.get().ahead.get().is_some()) {
        return;
    }
    let files = readers.iter().map(|reader| Arc::clone(&reader.get().inner)).collect();
    let pool = arrays::Pool::default();
    let allocate = move |len| pool.take(usize::try_from(len).ok()?);
    let ahead = Arc::new(DecodeAhead::start(files, threads, Limits::default(), allocate));
    for (file, reader) in readers.iter().enumerate() {
        let _ = reader.get().ahead.set((Arc::clone(&ahead), file)); // another thread may have been faster
    }
}

/// A chunk: the file that it is in, its name there, its offsets and sizes.
type Chunk = (Py<Reader>, String, Vec<u64>, Vec<u64>);

/// A tensor: the file that it goes to, its offset there, the bytes of an item, its shape and chunks.
type Assembly = (PathBuf, u64, u64, Vec<u64>, Vec<Chunk>);

fn chunk((reader, name, offsets, sizes): &Chunk) -> ztensor::assemble::Chunk<'_> {
    ztensor::assemble::Chunk { reader: &reader.get().inner, name, offsets, sizes }
}

/// Proves that boxes (offsets, sizes) are a partition of a shape.
#[pyfunction]
pub(crate) fn prove_partition(
    py: Python<'_>,
    shape: Vec<u64>,
    chunks: Vec<(Vec<u64>, Vec<u64>)>,
) -> PyResult<()> {
    let boxes: Vec<_> = chunks.iter().map(|(offsets, sizes)| (&offsets[..], &sizes[..])).collect();
    py.detach(|| ztensor::partition::prove(&shape, &boxes)).or_raise(py)
}

/// Puts tensors together in files that are there.
#[pyfunction]
#[pyo3(signature = (tensors, threads = 0, progress = None))]
pub(crate) fn assemble(
    py: Python<'_>,
    tensors: Vec<Assembly>,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<()> {
    Watch::new(progress).run(py, |observer| {
        let assemblies: Vec<_> = tensors
            .iter()
            .map(|(file, offset, item, shape, chunks)| ztensor::assemble::Assembly {
                file,
                offset: *offset,
                item: *item,
                shape,
                chunks: chunks.iter().map(chunk).collect(),
            })
            .collect();
        ztensor::assemble::assemble(&assemblies, threads, Some(observer))
    })
}

fn describe<'py>(py: Python<'py>, object: &Object) -> PyResult<Bound<'py, PyDict>> {
    let main = object
        .component("data")
        .or_else(|| object.component("values"))
        .or(object.components.first().map(|(_, component)| component));
    let components = PyDict::new(py);
    for (role, component) in &object.components {
        components.set_item(&**role, describe_component(py, component)?)?;
    }
    let attributes = object.attributes.as_deref().map(|map| values::to_dict(py, map)).transpose()?;
    let dict = PyDict::new(py);
    dict.set_item("shape", object.shape.to_vec())?;
    dict.set_item("dtype", main.map(|component| component.dtype.storage().python_name()))?;
    dict.set_item("type", main.and_then(Component::type_name))?;
    dict.set_item("format", object.layout.name())?;
    dict.set_item("components", components)?;
    dict.set_item("attributes", attributes)?;
    Ok(dict)
}

fn describe_component<'py>(py: Python<'py>, component: &Component) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("dtype", component.dtype.storage().python_name())?;
    dict.set_item("type", component.type_name())?;
    dict.set_item("length", component.len)?;
    dict.set_item("stored_length", component.stored_len())?;
    dict.set_item("encoding", component.encoding())?;
    dict.set_item("offset", component.extent().map(|extent| extent.offset))?;
    dict.set_item("digest", component.digest.as_ref().map(ToString::to_string))?;
    Ok(dict)
}
