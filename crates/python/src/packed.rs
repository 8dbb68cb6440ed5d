//! Packed safetensors files (ZSTN) as Python sees them.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use ztensor::remote::Options;
use ztensor::source::{self, MapMode, MemorySource, Source};
use ztensor::zstn::{self, Info, PackOptions, PackStats, UnpackOptions};
use ztensor::{Destination, Error, ErrorKind, Observer};

use crate::codec::{Input, bytes_of, effort, limits, new_bytes};
use crate::errors::OrRaise;
use crate::store::destination;
use crate::watch::Watch;

/// `(effort, level, threads)`
type Settings = (String, Option<i32>, usize);

fn options<'a>(
    py: Python<'_>,
    (name, level, threads): &Settings,
    observer: &'a dyn Observer,
) -> PyResult<PackOptions<'a>> {
    Ok(PackOptions {
        effort: effort(py, name)?,
        level: *level,
        threads: *threads,
        durable: false,
        observer: Some(observer),
    })
}

/// `(original bytes, packed bytes, tensors, shared, opaque)`
type Stats = (u64, u64, u64, u64, bool);

fn stats(stats: PackStats) -> Stats {
    (stats.original_len, stats.packed_len, stats.tensors, stats.shared, stats.opaque)
}

/// Packs a file.
#[pyfunction]
#[pyo3(signature = (input, output, settings, progress = None, *, derived = false, overwrite = true))]
pub(crate) fn zstn_pack(
    py: Python<'_>,
    input: PathBuf,
    output: PathBuf,
    settings: Settings,
    progress: Option<Py<PyAny>>,
    derived: bool,
    overwrite: bool,
) -> PyResult<Stats> {
    let output = destination(&output, derived, overwrite).or_raise(py)?;
    pack_to_file(py, || source::open(&input, MapMode::Auto, &Options::default()), output, &settings, progress)
}

/// Packs a file that lies in memory.
#[pyfunction]
pub(crate) fn zstn_pack_bytes<'py>(
    py: Python<'py>,
    data: PyBackedBytes,
    settings: Settings,
) -> PyResult<Bound<'py, PyBytes>> {
    pack_to_memory(py, Arc::new(MemorySource::new(data)), &settings)
}

/// Packs tensors, each `parts` one after another behind `header`, as a file or into memory.
#[pyfunction]
#[pyo3(signature = (header, parts, output, settings, progress = None))]
pub(crate) fn zstn_pack_parts(
    py: Python<'_>,
    header: Vec<u8>,
    parts: Vec<Input>,
    output: PathBuf,
    settings: Settings,
    progress: Option<Py<PyAny>>,
) -> PyResult<Stats> {
    let source = Arc::new(Parts::new(header, parts));
    pack_to_file(py, || Ok(source), output.into(), &settings, progress)
}

fn pack_to_file(
    py: Python<'_>,
    open: impl FnOnce() -> ztensor::Result<Arc<dyn Source>> + Send,
    output: Destination,
    settings: &Settings,
    progress: Option<Py<PyAny>>,
) -> PyResult<Stats> {
    let watch = Watch::new(progress);
    let options = options(py, settings, &watch)?;
    let packed = watch.run(py, |_| {
        output.check()?;
        let source = open()?;
        let mut packed = PackStats::default();
        ztensor::write_atomically(output.clone(), |mut out| {
            packed = zstn::pack_source(Arc::clone(&source), &mut out, &options)
                .map_err(|error| about(error, &*source))?;
            Ok(())
        })?;
        Ok(packed)
    })?;
    Ok(stats(packed))
}

/// An error that is about what was read, unless it is about writing.
fn about(error: Error, source: &dyn Source) -> Error {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Cancelled => error,
        _ => error.in_file(source.label()),
    }
}

fn pack_to_memory<'py>(
    py: Python<'py>,
    source: Arc<dyn Source>,
    settings: &Settings,
) -> PyResult<Bound<'py, PyBytes>> {
    let watch = Watch::new(None);
    let options = options(py, settings, &watch)?;
    let mut packed = Vec::new();
    watch.run(py, |_| zstn::pack_source(source, &mut packed, &options))?;
    bytes_of(py, packed)
}

/// Restores a file; returns its size.
#[pyfunction]
#[pyo3(signature = (input, output, threads, progress = None, *, max_total_bytes = None))]
pub(crate) fn zstn_unpack(
    py: Python<'_>,
    input: PathBuf,
    output: PathBuf,
    threads: usize,
    progress: Option<Py<PyAny>>,
    max_total_bytes: Option<u64>,
) -> PyResult<u64> {
    let watch = Watch::new(progress);
    let limits = limits(max_total_bytes);
    let options = UnpackOptions { threads, limits, observer: Some(&watch), ..UnpackOptions::default() };
    watch.run(py, |_| {
        let source = source::open(&input, MapMode::Auto, &Options::default())?;
        let mut written = 0;
        ztensor::write_atomically(&output, |mut out| {
            written = zstn::unpack_source(Arc::clone(&source), &mut out, &options)
                .map_err(|error| about(error, &*source))?;
            Ok(())
        })?;
        Ok(written)
    })
}

/// Restores a file that lies in memory.
#[pyfunction]
#[pyo3(signature = (data, threads, *, max_total_bytes = None))]
pub(crate) fn zstn_unpack_bytes<'py>(
    py: Python<'py>,
    data: PyBackedBytes,
    threads: usize,
    max_total_bytes: Option<u64>,
) -> PyResult<Bound<'py, PyBytes>> {
    let source: Arc<dyn Source> = Arc::new(MemorySource::new(data));
    let copy = Arc::clone(&source);
    let len = py.detach(|| zstn::inspect_source(copy)).or_raise(py)?.original_len;
    let limits = limits(max_total_bytes);
    // The file is allocated before it is restored.
    limits.check_total(len, source.len()).or_raise(py)?;
    let options = UnpackOptions { threads, limits, ..UnpackOptions::default() };
    new_bytes(py, len, |mut out| {
        let len = out.len() as u64;
        match zstn::unpack_source(source, &mut out, &options)? {
            written if written == len => Ok(()),
            written => Err(Error::corrupt("zstn.length", format!("{written} bytes instead of {len}"))),
        }
    })
}

/// A tensor: `(name, bytes, stored bytes, encoding, the tensor it is stored as)`.
type Entry = (String, u64, u64, &'static str, Option<usize>);
/// `(version, packed bytes, original bytes, header, tensors)`
type Described = (u8, u64, u64, Option<String>, Vec<Entry>);

fn describe(info: Info) -> Described {
    let tensors = info.tensors.into_iter();
    let tensors =
        tensors.map(|tensor| (tensor.name, tensor.len, tensor.stored_len, tensor.encoding, tensor.same_as));
    (info.version, info.packed_len, info.original_len, info.header, tensors.collect())
}

/// What a packed file holds.
#[pyfunction]
pub(crate) fn zstn_inspect(py: Python<'_>, path: PathBuf) -> PyResult<Described> {
    py.detach(|| zstn::inspect(path)).or_raise(py).map(describe)
}

/// What a packed file in memory holds.
#[pyfunction]
pub(crate) fn zstn_inspect_bytes(py: Python<'_>, data: PyBackedBytes) -> PyResult<Described> {
    let source = Arc::new(MemorySource::new(data));
    py.detach(|| zstn::inspect_source(source)).or_raise(py).map(describe)
}

/// A file that is not there: a header, then the memory of tensors.
struct Parts {
    header: Vec<u8>,
    /// Where each part starts.
    starts: Vec<u64>,
    parts: Vec<Input>,
    len: u64,
}

impl Parts {
    fn new(header: Vec<u8>, parts: Vec<Input>) -> Parts {
        let mut len = header.len() as u64;
        let starts = parts.iter().map(|part| {
            let start = len;
            len += part.bytes().len() as u64;
            start
        });
        let starts = starts.collect();
        Parts { header, starts, parts, len }
    }
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Parts")
    }
}

impl Source for Parts {
    fn len(&self) -> u64 {
        self.len
    }

    fn label(&self) -> &str {
        "<tensors>"
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> ztensor::Result<()> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.len) {
            return Err(Error::invalid("a range outside of the tensors"));
        }
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            // The last part that starts at or before this place; empty ones end where they start.
            let index = self.starts.partition_point(|&start| start <= at);
            let (start, bytes) = match index.checked_sub(1) {
                None => (0, self.header.as_slice()),
                Some(index) => (self.starts[index], self.parts[index].bytes()),
            };
            let from = &bytes[(at - start) as usize..];
            let len = from.len().min(rest.len());
            let (now, later) = rest.split_at_mut(len);
            now.copy_from_slice(&from[..len]);
            (at, rest) = (at + len as u64, later);
        }
        Ok(())
    }

    fn mapped(&self) -> ztensor::Result<&[u8]> {
        Err(Error::unsupported("tensors in memory are not one piece"))
    }
}

/// Adds everything here to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(zstn_inspect, module)?)?;
    module.add_function(wrap_pyfunction!(zstn_inspect_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(zstn_pack, module)?)?;
    module.add_function(wrap_pyfunction!(zstn_pack_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(zstn_pack_parts, module)?)?;
    module.add_function(wrap_pyfunction!(zstn_unpack, module)?)?;
    module.add_function(wrap_pyfunction!(zstn_unpack_bytes, module)?)?;
    Ok(())
}
