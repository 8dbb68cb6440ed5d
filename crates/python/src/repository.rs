//! Repositories of models as Python sees them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use ztensor::export::TensorList;
use ztensor::repository::{
    CheckoutOptions, CommitOptions, Committed, FsckOptions, GcOptions, LogEntry, RefKind, Repository,
    Retention, TransferOptions, Transferred, Version,
};
use ztensor::source::Source;
use ztensor::{Effort, OpenOptions, Tensor, Value};

use crate::dtypes;
use crate::errors::{OrRaise, invalid};
use crate::memory::Memory;
use crate::reader::{Reader, limits};
use crate::store::{Settings, options};
use crate::watch::Watch;

/// `(message, author, branch, tag, parents, bases, expected, metadata, exclude, effort, threads)`
type CommitArguments = (
    String,
    String,
    Option<String>,
    Option<String>,
    Vec<String>,
    Vec<String>,
    Option<String>,
    BTreeMap<String, String>,
    Vec<String>,
    String,
    usize,
);

fn commit_options<'a>(
    py: Python<'_>,
    arguments: CommitArguments,
    observer: &'a Watch,
) -> PyResult<CommitOptions<'a>> {
    let (message, author, branch, tag, parents, bases, expected, metadata, exclude, effort, threads) =
        arguments;
    let unknown = || invalid(py, format!("unknown effort {effort:?}"));
    let expected = expected.map(|id| id.parse()).transpose().or_raise(py)?;
    let effort = Effort::from_name(&effort).ok_or_else(unknown)?;
    let observer: Option<&dyn ztensor::Observer> = Some(observer);
    Ok(CommitOptions {
        message,
        author,
        branch,
        tag,
        parents,
        bases,
        expected,
        metadata,
        exclude,
        effort,
        threads,
        observer,
    })
}

fn committed(py: Python<'_>, done: &Committed) -> PyResult<Py<PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("id", done.id.to_string())?;
    dict.set_item("branch", &done.branch)?;
    dict.set_item("parent", done.parent.map(|id| id.to_string()))?;
    for (key, value) in [
        ("files", done.files),
        ("tensors", done.tensors),
        ("bytes", done.bytes),
        ("stored", done.stored),
        ("same", done.same),
        ("deltas", done.deltas),
        ("casts", done.casts),
        ("whole", done.whole),
    ] {
        dict.set_item(key, value)?;
    }
    Ok(dict.unbind())
}

fn logged(py: Python<'_>, entry: &LogEntry) -> PyResult<Py<PyDict>> {
    let commit = &entry.commit;
    let named = |kind| -> Vec<&str> {
        entry.refs.iter().filter(|there| there.kind == kind).map(|there| there.name.as_str()).collect()
    };
    let dict = PyDict::new(py);
    dict.set_item("id", entry.id.to_string())?;
    dict.set_item("parents", commit.parents.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    dict.set_item("message", &commit.message)?;
    dict.set_item("author", &commit.author)?;
    dict.set_item("time", commit.time)?;
    dict.set_item("files", commit.files)?;
    dict.set_item("tensors", commit.tensors)?;
    dict.set_item("bytes", commit.bytes)?;
    dict.set_item("stored", commit.stored)?;
    dict.set_item("metadata", &commit.metadata)?;
    dict.set_item("branches", named(RefKind::Branch))?;
    dict.set_item("tags", named(RefKind::Tag))?;
    dict.set_item("forgotten", entry.forgotten)?;
    Ok(dict.unbind())
}

fn transferred(done: Transferred) -> (Vec<String>, u64, u64, u64) {
    (done.refs, done.commits, done.objects, done.bytes)
}

fn kind(tag: bool) -> RefKind {
    if tag { RefKind::Tag } else { RefKind::Branch }
}

/// A repository. Safe to use from many threads.
#[pyclass(frozen, module = "ztensor._native", name = "Repository")]
struct PyRepository(Repository);

#[pymethods]
impl PyRepository {
    #[staticmethod]
    fn init(py: Python<'_>, path: PathBuf, remote: Option<Settings>) -> PyResult<PyRepository> {
        py.detach(|| Repository::init(path, options(remote))).or_raise(py).map(PyRepository)
    }

    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf, remote: Option<Settings>) -> PyResult<PyRepository> {
        py.detach(|| Repository::open(path, options(remote))).or_raise(py).map(PyRepository)
    }

    fn commit_path(
        &self,
        py: Python<'_>,
        path: PathBuf,
        arguments: CommitArguments,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyDict>> {
        let watch = Watch::new(progress);
        let settings = commit_options(py, arguments, &watch)?;
        let done = watch.run(py, |_| self.0.commit(path, &settings))?;
        committed(py, &done)
    }

    fn commit_tensors(
        &self,
        py: Python<'_>,
        name: &str,
        tensors: Vec<Bound<'_, PyTuple>>,
        attributes: BTreeMap<String, String>,
        arguments: CommitArguments,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyDict>> {
        let mut items = Vec::with_capacity(tensors.len());
        for item in &tensors {
            let dtype: PyBackedStr = item.get_item(1)?.extract()?;
            items.push((
                item.get_item(0)?.extract::<String>()?,
                dtypes::by_name(py, &dtype)?,
                item.get_item(2)?.extract::<Vec<u64>>()?,
                Memory::of(&item.get_item(3)?)?,
            ));
        }
        let watch = Watch::new(progress);
        let settings = commit_options(py, arguments, &watch)?;
        let done = watch.run(py, |_| {
            let mut list = TensorList::default();
            for (name, dtype, shape, memory) in &items {
                let tensor = Tensor::from_bytes(&shape[..], *dtype, memory.bytes())?;
                list.tensors.push((name.clone(), tensor));
            }
            for (key, value) in attributes {
                list.attributes.insert(key, Value::Text(value));
            }
            self.0.commit_tensors(name, &list, &settings)
        })?;
        committed(py, &done)
    }

    fn resolve(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        py.detach(|| self.0.resolve(name)).or_raise(py).map(|id| id.to_string())
    }

    fn version(&self, py: Python<'_>, name: &str) -> PyResult<RepositoryVersion> {
        py.detach(|| self.0.version(name)).or_raise(py).map(RepositoryVersion)
    }

    fn log(&self, py: Python<'_>, name: &str, limit: Option<usize>) -> PyResult<Vec<Py<PyDict>>> {
        let entries = py.detach(|| self.0.log(name, limit)).or_raise(py)?;
        entries.iter().map(|entry| logged(py, entry)).collect()
    }

    fn refs(&self, py: Python<'_>, tags: bool) -> PyResult<BTreeMap<String, String>> {
        let refs = py.detach(|| self.0.refs()).or_raise(py)?;
        let refs = refs.into_iter().filter(|there| there.kind == kind(tags));
        Ok(refs.map(|there| (there.name, there.commit.to_string())).collect())
    }

    fn create_ref(&self, py: Python<'_>, tag: bool, name: &str, at: &str, force: bool) -> PyResult<String> {
        let create = || match tag {
            true => self.0.create_tag(name, at, force),
            false => self.0.create_branch(name, at, force),
        };
        py.detach(create).or_raise(py).map(|id| id.to_string())
    }

    fn delete_ref(&self, py: Python<'_>, tag: bool, name: &str) -> PyResult<()> {
        py.detach(|| self.0.delete_ref(kind(tag), name)).or_raise(py)
    }

    fn usage(&self, py: Python<'_>, name: Option<&str>) -> PyResult<Py<PyDict>> {
        let usage = py.detach(|| self.0.usage(name)).or_raise(py)?;
        let dict = PyDict::new(py);
        dict.set_item("packs", usage.packs)?;
        dict.set_item("stored", usage.stored)?;
        dict.set_item("unneeded", usage.unneeded)?;
        dict.set_item("bytes", usage.bytes)?;
        let mut versions = Vec::new();
        for version in usage.versions {
            let entry = PyDict::new(py);
            entry.set_item("id", version.id.to_string())?;
            entry.set_item("message", version.message)?;
            entry.set_item("bytes", version.bytes)?;
            entry.set_item("needed", version.needed)?;
            entry.set_item("new", version.new)?;
            entry.set_item("own", version.own)?;
            entry.set_item("layers", version.layers)?;
            versions.push(entry);
        }
        dict.set_item("versions", versions)?;
        Ok(dict.unbind())
    }

    #[expect(clippy::too_many_arguments, reason = "all by name, from one Python method")]
    fn gc(
        &self,
        py: Python<'_>,
        keep_last: Option<u64>,
        keep_every: Option<u64>,
        keep_within: Option<f64>,
        grace: Option<f64>,
        dry_run: bool,
        threads: usize,
    ) -> PyResult<Py<PyDict>> {
        let seconds = |seconds: f64| {
            Duration::try_from_secs_f64(seconds).map_err(|_| invalid(py, "a time is not negative"))
        };
        let keep_within = keep_within.map(seconds).transpose()?;
        let mut settings = GcOptions {
            retention: Retention { keep_last, keep_every, keep_within },
            dry_run,
            threads,
            ..GcOptions::default()
        };
        if let Some(grace) = grace {
            settings.grace = seconds(grace)?;
        }
        let done = py.detach(|| self.0.gc(&settings)).or_raise(py)?;
        let dict = PyDict::new(py);
        dict.set_item("forgotten", done.forgotten.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        dict.set_item("condemned", done.condemned)?;
        dict.set_item("removed", done.removed)?;
        dict.set_item("removed_bytes", done.removed_bytes)?;
        dict.set_item("rewritten", done.rewritten)?;
        dict.set_item("rewritten_bytes", done.rewritten_bytes)?;
        Ok(dict.unbind())
    }

    fn fsck(
        &self,
        py: Python<'_>,
        full: bool,
        repair: bool,
        threads: usize,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyDict>> {
        let watch = Watch::new(progress);
        let found = watch.run(py, |observer| {
            self.0.fsck(&FsckOptions { full, repair, threads, observer: Some(observer) })
        })?;
        let dict = PyDict::new(py);
        dict.set_item("errors", found.errors)?;
        dict.set_item("warnings", found.warnings)?;
        for (key, value) in [
            ("refs", found.refs),
            ("commits", found.commits),
            ("versions", found.versions),
            ("packs", found.packs),
            ("objects", found.objects),
            ("unneeded", found.unneeded),
            ("decoded", found.decoded),
        ] {
            dict.set_item(key, value)?;
        }
        Ok(dict.unbind())
    }

    fn transfer(
        &self,
        py: Python<'_>,
        target: &PyRepository,
        refs: Vec<String>,
        force: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(Vec<String>, u64, u64, u64)> {
        let watch = Watch::new(progress);
        let done = watch.run(py, |observer| {
            self.0.push(&target.0, &TransferOptions { refs, force, observer: Some(observer) })
        })?;
        Ok(transferred(done))
    }
}

/// `(name, file, id, dtype, shape, bytes, form, stored bytes, depth)`
type TensorEntry = (String, String, String, &'static str, Vec<u64>, u64, &'static str, u64, usize);

/// A version of a repository.
#[pyclass(frozen, module = "ztensor._native")]
struct RepositoryVersion(Version);

#[pymethods]
impl RepositoryVersion {
    #[getter]
    fn id(&self) -> String {
        self.0.id().to_string()
    }

    fn commit(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        let commit = self.0.commit();
        let dict = PyDict::new(py);
        dict.set_item("parents", commit.parents.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        dict.set_item("message", &commit.message)?;
        dict.set_item("author", &commit.author)?;
        dict.set_item("time", commit.time)?;
        dict.set_item("metadata", &commit.metadata)?;
        Ok(dict.unbind())
    }

    /// `(path, bytes, executable)` of each file.
    fn files(&self) -> Vec<(String, u64, bool)> {
        self.0.files().into_iter().map(|file| (file.path, file.len, file.executable)).collect()
    }

    fn tensors(&self, py: Python<'_>) -> PyResult<Vec<TensorEntry>> {
        let tensors = py.detach(|| self.0.tensors()).or_raise(py)?;
        let entry = |tensor: ztensor::repository::VersionTensor| {
            let (dtype, shape) = (tensor.dtype.python_name(), tensor.shape.to_vec());
            let id = tensor.id.to_string();
            (tensor.name, tensor.file, id, dtype, shape, tensor.len, tensor.form, tensor.stored, tensor.depth)
        };
        Ok(tensors.into_iter().map(entry).collect())
    }

    fn reader(
        &self,
        py: Python<'_>,
        path: &str,
        threads: usize,
        max_component: Option<u64>,
        max_total: Option<u64>,
    ) -> PyResult<Reader> {
        let options = OpenOptions::default().threads(threads).limits(limits(max_component, max_total));
        py.detach(|| self.0.reader_at(path, options)).or_raise(py).map(Reader::new)
    }

    /// Bytes of a file, as far as it has them.
    fn read_file<'py>(
        &self,
        py: Python<'py>,
        path: &str,
        start: u64,
        end: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let read = || {
            let file = self.0.file(path)?;
            let file: &dyn Source = &*file;
            let end = end.unwrap_or(u64::MAX).min(file.len());
            let start = start.min(end);
            Ok(file.bytes(start, end - start)?.into_owned())
        };
        let bytes: Vec<u8> = py.detach(read).or_raise(py)?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn checkout(
        &self,
        py: Python<'_>,
        folder: PathBuf,
        overwrite: bool,
        durable: bool,
        threads: usize,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(u64, u64, u64)> {
        let watch = Watch::new(progress);
        let done = watch.run(py, |observer| {
            let options = CheckoutOptions { overwrite, threads, durable, observer: Some(observer) };
            self.0.checkout(folder, &options)
        })?;
        Ok((done.files, done.unchanged, done.bytes))
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyRepository>()?;
    module.add_class::<RepositoryVersion>()
}
