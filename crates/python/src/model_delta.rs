//! Deltas between models (Z4DM) as Python sees them.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use ztensor::model_delta::{self, ApplyOptions, Info, MakeOptions, MakeStats};
use ztensor::source::{MemorySource, Source};
use ztensor::{Error, Limits, Observer};

use crate::codec::{bytes_of, effort, limits, new_bytes};
use crate::errors::OrRaise;
use crate::watch::Watch;

/// `(effort, level, threads)`
type Settings = (String, Option<i32>, usize);

fn options<'a>(
    py: Python<'_>,
    (name, level, threads): &Settings,
    observer: &'a dyn Observer,
) -> PyResult<MakeOptions<'a>> {
    Ok(MakeOptions {
        effort: effort(py, name)?,
        level: *level,
        threads: *threads,
        limits: Limits::default(),
        durable: false,
        observer: Some(observer),
    })
}

fn memory(data: PyBackedBytes) -> Arc<dyn Source> {
    Arc::new(MemorySource::new(data))
}

/// `(target bytes, delta bytes, copied, renamed, deltas, full, shared)`
type Stats = (u64, u64, u64, u64, u64, u64, u64);

fn stats(stats: MakeStats) -> Stats {
    let MakeStats { target_len, delta_len, copied, renamed, deltas, full, shared, .. } = stats;
    (target_len, delta_len, copied, renamed, deltas, full, shared)
}

/// Makes a delta between files.
#[pyfunction]
#[pyo3(signature = (base, target, output, settings, progress = None))]
pub(crate) fn z4dm_make(
    py: Python<'_>,
    base: PathBuf,
    target: PathBuf,
    output: PathBuf,
    settings: Settings,
    progress: Option<Py<PyAny>>,
) -> PyResult<Stats> {
    let watch = Watch::new(progress);
    let options = options(py, &settings, &watch)?;
    watch.run(py, |_| model_delta::make(base, target, output, &options)).map(stats)
}

/// Makes a delta between files that lie in memory.
#[pyfunction]
pub(crate) fn z4dm_make_bytes<'py>(
    py: Python<'py>,
    base: PyBackedBytes,
    target: PyBackedBytes,
    settings: Settings,
) -> PyResult<Bound<'py, PyBytes>> {
    let watch = Watch::new(None);
    let options = options(py, &settings, &watch)?;
    let mut delta = Vec::new();
    watch.run(py, |_| model_delta::make_to(memory(base), memory(target), &mut delta, &options))?;
    bytes_of(py, delta)
}

/// Applies deltas one after another; returns the size of the last target.
#[pyfunction]
#[pyo3(signature = (base, deltas, output, threads, progress = None, *, max_total_bytes = None))]
pub(crate) fn z4dm_apply(
    py: Python<'_>,
    base: PathBuf,
    deltas: Vec<PathBuf>,
    output: PathBuf,
    threads: usize,
    progress: Option<Py<PyAny>>,
    max_total_bytes: Option<u64>,
) -> PyResult<u64> {
    let watch = Watch::new(progress);
    let limits = limits(max_total_bytes);
    let options = ApplyOptions { threads, limits, observer: Some(&watch), ..ApplyOptions::default() };
    watch.run(py, |_| model_delta::apply_chain(base, &deltas, output, &options))
}

/// Turns a `.zt` file into what a delta makes of it: tensors written, tensors gone, size.
#[pyfunction]
#[pyo3(signature = (path, delta, threads, progress = None, *, max_total_bytes = None))]
pub(crate) fn z4dm_apply_in_place(
    py: Python<'_>,
    path: PathBuf,
    delta: PathBuf,
    threads: usize,
    progress: Option<Py<PyAny>>,
    max_total_bytes: Option<u64>,
) -> PyResult<(u64, u64, u64)> {
    let watch = Watch::new(progress);
    let limits = limits(max_total_bytes);
    let options = ApplyOptions { threads, limits, observer: Some(&watch), ..ApplyOptions::default() };
    let stats = watch.run(py, |_| model_delta::apply_in_place(path, delta, &options))?;
    Ok((stats.written, stats.removed, stats.len))
}

/// What a delta in memory makes of a base in memory.
#[pyfunction]
#[pyo3(signature = (base, delta, threads, *, max_total_bytes = None))]
pub(crate) fn z4dm_apply_bytes<'py>(
    py: Python<'py>,
    base: PyBackedBytes,
    delta: PyBackedBytes,
    threads: usize,
    max_total_bytes: Option<u64>,
) -> PyResult<Bound<'py, PyBytes>> {
    let (base, delta) = (memory(base), memory(delta));
    let copy = Arc::clone(&delta);
    let len = py.detach(|| model_delta::info_source(copy)).or_raise(py)?.target_len;
    let limits = limits(max_total_bytes);
    // The target is allocated before the delta is applied.
    limits.check_total(len, base.len().saturating_add(delta.len())).or_raise(py)?;
    let options = ApplyOptions { threads, limits, ..ApplyOptions::default() };
    new_bytes(py, len, |mut out| {
        let len = out.len() as u64;
        match model_delta::apply_to(base, delta, &mut out, &options)? {
            written if written == len => Ok(()),
            written => Err(Error::corrupt("z4dm.length", format!("{written} bytes instead of {len}"))),
        }
    })
}

/// What became of a tensor: `(name, how, from, bytes, stored bytes)`.
type Change = (String, &'static str, Option<String>, u64, u64);
/// `(version, base, target, delta bytes, target bytes, changes)`
type Described = (u8, Option<String>, Option<String>, u64, u64, Vec<Change>);

fn describe(info: Info) -> Described {
    let changes = info.changes.into_iter();
    let changes = changes.map(|change| (change.name, change.how, change.from, change.len, change.stored_len));
    (
        info.version,
        info.base.map(|digest| digest.to_string()),
        info.target.map(|digest| digest.to_string()),
        info.delta_len,
        info.target_len,
        changes.collect(),
    )
}

/// What a delta changes.
#[pyfunction]
pub(crate) fn z4dm_info(py: Python<'_>, path: PathBuf) -> PyResult<Described> {
    py.detach(|| model_delta::info(path)).or_raise(py).map(describe)
}

/// What a delta in memory changes.
#[pyfunction]
pub(crate) fn z4dm_info_bytes(py: Python<'_>, delta: PyBackedBytes) -> PyResult<Described> {
    let source = memory(delta);
    py.detach(|| model_delta::info_source(source)).or_raise(py).map(describe)
}

/// Adds everything here to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(z4dm_apply, module)?)?;
    module.add_function(wrap_pyfunction!(z4dm_apply_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(z4dm_apply_in_place, module)?)?;
    module.add_function(wrap_pyfunction!(z4dm_info, module)?)?;
    module.add_function(wrap_pyfunction!(z4dm_info_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(z4dm_make, module)?)?;
    module.add_function(wrap_pyfunction!(z4dm_make_bytes, module)?)?;
    Ok(())
}
