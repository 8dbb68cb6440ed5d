//! How a file describes its objects: one module per format, all of one shape.
//!
//! A format is a `Driver`: its extensions, how it is detected, how a source becomes a
//! [`Catalog`] without touching tensor data, and how it is exported to. Folders, remote
//! readahead and export derive what they need from the drivers.
#![forbid(unsafe_code)]

mod capabilities;
mod distributed;
pub mod foreign;
pub mod gguf;
#[cfg(feature = "hdf5")]
pub(crate) mod hdf5;
#[cfg(not(feature = "hdf5"))]
#[path = "hdf5_absent.rs"]
mod hdf5;
pub(crate) mod json;
pub(crate) mod npz;
pub(crate) mod onnx;
pub(crate) mod pickle;
pub(crate) mod safetensors;
pub(crate) mod shards;
pub(crate) mod zip;
pub mod zstn;
pub(crate) mod zt;
pub mod zt2;

pub use capabilities::{Capabilities, Metadata};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::catalog::Catalog;
use crate::error::{Error, ErrorKind, Result};
use crate::remote::{self, Options, Place};
use crate::source::{self, Access, FAR_JUMP, MapMode, Source};
use crate::write::export::{ExportFormat, Exporter};

/// A file format that this library reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// `.zt`
    Zt,
    /// `.safetensors`
    Safetensors,
    /// `.pt`, `.pth`, `.bin`, `.pkl`
    Pickle,
    /// `.gguf`
    Gguf,
    /// `.npz`, `.npy`
    Npz,
    /// `.onnx`
    Onnx,
    /// `.h5`, `.hdf5`, `.keras`
    Hdf5,
    /// `.zstn`: a packed `.safetensors` file
    Zstn,
    /// `.zt` of version 2
    Zt2,
}

impl Format {
    /// The name that the Python API and the command line show.
    pub fn name(self) -> &'static str {
        match self {
            Format::Zt => "zt",
            Format::Safetensors => "safetensors",
            Format::Pickle => "pickle",
            Format::Gguf => "gguf",
            Format::Npz => "npz",
            Format::Onnx => "onnx",
            Format::Hdf5 => "hdf5",
            Format::Zstn => "zstn",
            Format::Zt2 => "zt2",
        }
    }

    /// Every format, in the order in which files are recognised.
    pub fn all() -> impl Iterator<Item = Format> {
        DRIVERS.iter().map(|driver| driver.format)
    }

    /// The format of that name.
    pub fn from_name(name: &str) -> Option<Format> {
        Format::all().find(|format| format.name() == name)
    }

    /// What files of this format can hold, and what this library does with them.
    pub fn capabilities(self) -> Capabilities {
        let driver = DRIVERS.iter().find(|driver| driver.format == self);
        driver.map_or(Capabilities::READ_ONLY, |driver| driver.capabilities)
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// What a driver makes of a file's first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    /// Not this format.
    No,
    /// Could be; the extension decides.
    Maybe,
    /// Carries this format's own marks.
    Yes,
}

/// What drivers look at to recognise a file.
pub(crate) struct Probe<'a> {
    /// The first bytes, up to 4 KiB.
    pub(crate) head: &'a [u8],
    /// The whole file, for formats that are known by their end.
    pub(crate) source: &'a dyn Source,
    /// The members of the file, if it is a zip archive.
    pub(crate) directory: &'a zip::Directory,
    /// The path's extension in lower case.
    pub(crate) extension: Option<&'a str>,
}

/// A file to parse, and what detection read of it.
pub(crate) struct Input {
    pub(crate) source: Arc<dyn Source>,
    /// The members of the file, if it is a zip archive.
    pub(crate) directory: zip::Directory,
}

impl From<Arc<dyn Source>> for Input {
    fn from(source: Arc<dyn Source>) -> Input {
        Input { source, directory: zip::Directory::default() }
    }
}

/// What parsers need to know besides the bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Context {
    /// The path the file was opened by, if it was: siblings are found beside it.
    pub(crate) path: Option<PathBuf>,
    /// How siblings are to be opened.
    pub(crate) map_mode: MapMode,
    /// How remote siblings are reached.
    pub(crate) remote: Options,
    /// Whether objects that break rules of their layout are passed through, not interpreted.
    pub(crate) structural: bool,
    /// Where siblings are, if not beside the file.
    pub(crate) files: Option<Arc<dyn Files>>,
}

/// Files by name that are in no folder: those of a version of a repository.
pub(crate) trait Files: Send + Sync + std::fmt::Debug {
    /// The names of those that would be directly in the folder.
    fn names(&self) -> Vec<String>;

    /// Opens the file of that name.
    fn open(&self, name: &Path) -> Result<Arc<dyn Source>>;
}

impl Context {
    /// The same for another file.
    pub(crate) fn at(&self, path: &Path) -> Context {
        Context { path: Some(path.to_owned()), ..self.clone() }
    }

    /// Opens another file in the same way.
    pub(crate) fn open(&self, path: &Path) -> Result<Arc<dyn Source>> {
        self.open_as(path, self.map_mode)
    }

    /// Opens another file, mapped or not.
    pub(crate) fn open_as(&self, path: &Path, map_mode: MapMode) -> Result<Arc<dyn Source>> {
        match &self.files {
            Some(files) => files.open(path),
            None => source::open(path, map_mode, &self.remote),
        }
    }
}

/// Everything the library knows of one format.
pub(crate) struct Driver {
    /// Which format this is.
    pub(crate) format: Format,
    /// The extensions its files have.
    pub(crate) extensions: &'static [Extension],
    /// Whether several files in a folder are one model even if they are not numbered.
    pub(crate) merges_files: bool,
    /// Looks at the head of a file.
    pub(crate) detect: fn(&Probe<'_>) -> Verdict,
    /// Detection by the end of a remote file, without its head: saves a request.
    pub(crate) tail: Option<Tail>,
    /// Reads the catalog. Tensor data is not touched.
    pub(crate) parse: fn(Input, &Context) -> Result<Catalog>,
    /// What its files can hold.
    pub(crate) capabilities: Capabilities,
    /// The export targets of this format, if it can be written by [`export`](crate::write::export).
    pub(crate) exporters: &'static [(ExportFormat, Exporter)],
}

impl Driver {
    /// Whether files of that extension are this format's.
    pub(crate) fn owns(&self, extension: Option<&str>) -> bool {
        extension.is_some_and(|extension| self.extensions.iter().any(|known| known.name == extension))
    }
}

/// Detection and parsing by the end of a file.
pub(crate) struct Tail {
    pub(crate) detect: fn(&dyn Source) -> bool,
    pub(crate) parse: fn(Arc<dyn Source>) -> Result<Catalog>,
}

/// An extension of a format's files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extension {
    /// In lower case, without the dot.
    pub(crate) name: &'static str,
    /// Which files of a folder are its model: the lowest rank wins. `None` if files of this
    /// extension are opened only by name.
    pub(crate) folder_rank: Option<u8>,
    /// Whether the index is at the end of the file, so that remote readahead starts there.
    #[cfg_attr(not(feature = "remote"), expect(dead_code))]
    pub(crate) index_at_tail: bool,
}

impl Extension {
    /// An extension of files with the index at the head, which folders are not searched for.
    pub(crate) const fn new(name: &'static str) -> Extension {
        Extension { name, folder_rank: None, index_at_tail: false }
    }

    /// The same, found in folders with that rank.
    pub(crate) const fn rank(self, rank: u8) -> Extension {
        Extension { folder_rank: Some(rank), ..self }
    }

    /// The same, with the index at the end.
    pub(crate) const fn tail(self) -> Extension {
        Extension { index_at_tail: true, ..self }
    }
}

/// Whether a remote file of that extension is read from its end first.
#[cfg(feature = "remote")]
pub(crate) fn index_at_tail(extension: &str) -> bool {
    let mut extensions = DRIVERS.iter().flat_map(|driver| driver.extensions);
    extensions.any(|known| known.name == extension && known.index_at_tail)
}

/// The extensions that a folder is searched for, best first, with their drivers.
fn folder_extensions() -> Vec<(&'static str, &'static Driver)> {
    let mut ranked: Vec<_> = DRIVERS
        .iter()
        .flat_map(|driver| driver.extensions.iter().map(move |extension| (extension, *driver)))
        .filter_map(|(extension, driver)| Some((extension.folder_rank?, extension.name, driver)))
        .collect();
    ranked.sort_unstable_by_key(|&(rank, ..)| rank);
    ranked.into_iter().map(|(_, name, driver)| (name, driver)).collect()
}

/// The exporter of a target.
pub(crate) fn exporter(target: ExportFormat) -> Exporter {
    let mut exporters = DRIVERS.iter().flat_map(|driver| driver.exporters);
    let found = exporters.find(|(format, _)| *format == target);
    found.expect("every target has a driver, as a test checks").1
}

/// Every format, in the order in which they are asked.
#[rustfmt::skip]
static DRIVERS: &[&Driver] = &[
    &zt::DRIVER,
    &zt2::DRIVER,
    &safetensors::DRIVER,
    &zstn::DRIVER,
    &gguf::DRIVER,
    &npz::DRIVER,
    &hdf5::DRIVER,
    &onnx::DRIVER,
    &pickle::DRIVER,
];

/// Opens a path, whose place is known: a file of any format, an index of shards, or a folder.
pub(crate) fn open(path: &Path, place: Place, context: &Context) -> Result<Catalog> {
    let name = context.path.as_deref().unwrap_or(path);
    if shards::handles(name) {
        return shards::open(path, name, context);
    }
    match source::open_place(place, context.map_mode, &context.remote) {
        // Stores have no folders, only names that begin alike.
        Err(error) if is_missing(&error) && is_prefix(name, context) => {
            let folder = PathBuf::from(format!("{}/", name.display()));
            shards::open(&folder, &folder, context)
        }
        source => parse(source?, context),
    }
}

fn is_missing(error: &Error) -> bool {
    error.io_error().is_some_and(|cause| cause.kind() == std::io::ErrorKind::NotFound)
}

fn is_prefix(name: &Path, context: &Context) -> bool {
    remote::is_url(name) && remote::store::list(name, &context.remote).is_ok_and(|found| !found.is_empty())
}

/// Recognises a source and reads its catalog.
pub(crate) fn parse(source: Arc<dyn Source>, context: &Context) -> Result<Catalog> {
    let Some(remote) = source.remote() else {
        return recognise(source, context);
    };
    remote.expect(Access::Headers);
    let catalog = recognise(Arc::clone(&source), context);
    remote.expect(Access::Data);
    catalog
}

/// At both ends of a file are its headers: what of them is fetched together.
const ENDS: u64 = 64 << 10;

/// Bytes that formats are recognised by, mostly. (structural: a page)
const HEAD: u64 = 4096;
/// Where reading as much takes long, these do: no file that has tensors has less before them. (structural)
const SHORTEST_HEAD: u64 = 64;

fn recognise(source: Arc<dyn Source>, context: &Context) -> Result<Catalog> {
    if source.len() >= FAR_JUMP {
        source.will_read(&[(0, ENDS), (source.len() - ENDS, ENDS)]);
    }
    let mut tails = DRIVERS.iter().filter_map(|driver| driver.tail.as_ref());
    if let Some(tail) = tails.find(|tail| (tail.detect)(&*source)) {
        let label = source.label().to_owned();
        return (tail.parse)(source).map_err(|error| error.in_file(label));
    }
    let head_len = source.readahead(0, source.len().min(HEAD)).max(source.len().min(SHORTEST_HEAD));
    let head = source.bytes(0, head_len)?;
    let extension = context
        .path
        .as_ref()
        .and_then(|path| path.extension())
        .map(|extension| extension.to_string_lossy().to_ascii_lowercase());
    let directory = zip::Directory::default();
    let probe =
        Probe { head: &head, source: &*source, directory: &directory, extension: extension.as_deref() };
    // The drivers that own the extension are asked first, and asking ends with
    // the first that finds its own marks: others may have to look further.
    let (owners, others): (Vec<&'static Driver>, Vec<&'static Driver>) =
        DRIVERS.iter().partition(|driver| driver.owns(extension.as_deref()));
    let asked = |drivers: &[&'static Driver], wanted| {
        drivers.iter().copied().find(|driver| (driver.detect)(&probe) >= wanted)
    };
    let driver = asked(&owners, Verdict::Yes)
        .or_else(|| asked(&others, Verdict::Yes))
        .or_else(|| asked(&owners, Verdict::Maybe));
    match driver {
        Some(_) if foreign::is_blank(&head) && !head.is_empty() => {
            Err(unrecognised(&probe).in_file(source.label()))
        }
        Some(driver) => {
            let parse = driver.parse;
            drop(head);
            let label = source.label().to_owned();
            parse(Input { source, directory }, context).map_err(|error| error.in_file(label))
        }
        None => Err(unrecognised(&probe).in_file(source.label())),
    }
}

/// Says what a file that no driver takes looks like.
fn unrecognised(probe: &Probe<'_>) -> Error {
    let Probe { head, extension, .. } = *probe;
    let named = extension.filter(|_| DRIVERS.iter().any(|driver| driver.owns(extension)));
    let claim = match named {
        Some(extension) => format!("not a .{extension} file"),
        None => "not a tensor file of a known format".to_owned(),
    };
    let error =
        Error::new(ErrorKind::UnknownFormat, format!("{claim}: it looks like {}", foreign::looks_like(head)));
    match zt2::is_too_small(probe) {
        true => error.under("zt2.FileTooSmall"),
        false => error,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// The format behind this one. A new variant does not compile until it is in the chain.
    fn after(format: Format) -> Option<Format> {
        match format {
            Format::Zt => Some(Format::Safetensors),
            Format::Safetensors => Some(Format::Pickle),
            Format::Pickle => Some(Format::Gguf),
            Format::Gguf => Some(Format::Npz),
            Format::Npz => Some(Format::Onnx),
            Format::Onnx => Some(Format::Hdf5),
            Format::Hdf5 => Some(Format::Zstn),
            Format::Zstn => Some(Format::Zt2),
            Format::Zt2 => None,
        }
    }

    fn formats() -> Vec<Format> {
        std::iter::successors(Some(Format::Zt), |format| after(*format)).collect()
    }

    #[test]
    fn every_format_has_one_driver_and_every_target_one_exporter() {
        let drivers: Vec<_> = DRIVERS.iter().map(|driver| driver.format).collect();
        assert_eq!(drivers.len(), formats().len());
        assert!(formats().iter().all(|format| drivers.contains(format)));
        for target in ExportFormat::ALL {
            let all = DRIVERS.iter().flat_map(|driver| driver.exporters);
            assert_eq!(all.filter(|(format, _)| *format == target).count(), 1, "{target}");
        }
    }

    #[test]
    fn formats_with_an_exporter_write_and_others_do_not() {
        for driver in DRIVERS {
            let written = !driver.exporters.is_empty() || driver.capabilities.edits;
            assert_eq!(driver.capabilities.writes, written, "{}", driver.format);
            assert_eq!(Format::from_name(driver.format.name()), Some(driver.format));
        }
        assert_eq!(Format::from_name("tar"), None);
    }

    #[test]
    fn every_format_has_tests_and_a_fuzz_target() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let targets = std::fs::read_to_string(root.join("../../fuzz/Cargo.toml")).unwrap();
        for format in formats() {
            assert!(root.join(format!("tests/{format}.rs")).exists(), "no tests/{format}.rs");
            let fuzzed = root.join(format!("../../fuzz/fuzz_targets/{format}.rs")).exists();
            assert!(fuzzed, "no fuzz_targets/{format}.rs");
            assert!(targets.contains(&format!("name = \"{format}\"")), "fuzz/Cargo.toml: no {format}");
        }
    }

    #[test]
    fn extensions_and_their_ranks_are_unique() {
        let all: Vec<_> = DRIVERS.iter().flat_map(|driver| driver.extensions).collect();
        let names: HashSet<_> = all.iter().map(|extension| extension.name).collect();
        assert_eq!(names.len(), all.len());
        let ranks: Vec<_> = all.iter().filter_map(|extension| extension.folder_rank).collect();
        assert_eq!(ranks.iter().collect::<HashSet<_>>().len(), ranks.len());
    }

    /// A name that it does not know gets a `.zt` file.
    #[test]
    fn python_refuses_names_of_formats_that_are_only_read() {
        let known = include_str!("../../../../python/ztensor/_formats.py");
        for driver in DRIVERS.iter().filter(|driver| !driver.capabilities.writes) {
            for extension in driver.extensions {
                let name = extension.name;
                assert!(known.contains(&format!("\"{name}\": \"")), "_ONLY_READ has no {name:?}");
            }
        }
    }

    #[test]
    fn every_extension_is_documented() {
        let page = include_str!("../../../../docs/formats.md");
        for extension in DRIVERS.iter().flat_map(|driver| driver.extensions) {
            let name = extension.name;
            assert!(page.contains(&format!("`.{name}`")), "docs/formats.md does not mention .{name}");
        }
    }
}
