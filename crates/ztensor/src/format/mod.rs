//! How a file describes its objects: one module per format, all of one shape.
//!
//! A format is a `Driver`: it says whether a file looks like its own
//! (`detect`), and turns a source into a
//! [`Catalog`] without touching tensor data (`parse`).
#![forbid(unsafe_code)]

pub mod gguf;
pub(crate) mod hdf5;
pub(crate) mod json;
pub(crate) mod npz;
pub(crate) mod onnx;
pub(crate) mod pickle;
pub(crate) mod safetensors;
mod shards;
pub(crate) mod zip;
pub mod zstn;
pub(crate) mod zt;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::object::Catalog;
use crate::remote::{self, Options};
use crate::source::{self, Access, FAR_JUMP, MapMode, Source};

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
        }
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
    /// The path's extension in lower case.
    pub(crate) extension: Option<&'a str>,
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
}

impl Context {
    /// The same for another file.
    pub(crate) fn at(&self, path: &Path) -> Context {
        Context { path: Some(path.to_owned()), ..self.clone() }
    }

    /// Opens another file in the same way.
    pub(crate) fn open(&self, path: &Path) -> Result<Arc<dyn Source>> {
        source::open(path, self.map_mode, &self.remote)
    }
}

/// One format: how to recognise it and how to read its catalog.
pub(crate) struct Driver {
    #[allow(dead_code)] // names the driver in messages to come
    pub(crate) format: Format,
    pub(crate) extensions: &'static [&'static str],
    pub(crate) detect: fn(&Probe<'_>) -> Verdict,
    pub(crate) parse: fn(Arc<dyn Source>, &Context) -> Result<Catalog>,
}

/// Every format, in the order in which they are asked.
#[rustfmt::skip]
static DRIVERS: &[&Driver] = &[
    &zt::DRIVER,
    &safetensors::DRIVER,
    &zstn::DRIVER,
    &gguf::DRIVER,
    &npz::DRIVER,
    &hdf5::DRIVER,
    &onnx::DRIVER,
    &pickle::DRIVER,
];

/// Opens a path: a file of any format, an index of shards, or a folder.
pub(crate) fn open(path: &Path, context: &Context) -> Result<Catalog> {
    let name = context.path.as_deref().unwrap_or(path);
    if shards::handles(name) {
        return shards::open(path, name, context);
    }
    match context.open(path) {
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

fn recognise(source: Arc<dyn Source>, context: &Context) -> Result<Catalog> {
    if source.len() >= FAR_JUMP {
        source.will_read(&[(0, ENDS), (source.len() - ENDS, ENDS)]);
    }
    if zt::is_known_by_its_end(&*source) {
        let label = source.label().to_owned();
        return zt::parse_settled(source).map_err(|error| error.in_file(label));
    }
    let head_len = source.len().min(4096);
    let head = source.bytes(0, head_len)?;
    let extension = context
        .path
        .as_ref()
        .and_then(|path| path.extension())
        .map(|extension| extension.to_string_lossy().to_ascii_lowercase());
    let probe = Probe { head: &head, source: &*source, extension: extension.as_deref() };
    // The drivers that own the extension are asked first, and asking ends with
    // the first that finds its own marks: others may have to look further.
    let owns = |driver: &Driver| extension.as_deref().is_some_and(|ext| driver.extensions.contains(&ext));
    let (owners, others): (Vec<&'static Driver>, Vec<&'static Driver>) =
        DRIVERS.iter().partition(|driver| owns(driver));
    let asked = |drivers: &[&'static Driver], wanted| {
        drivers.iter().copied().find(|driver| (driver.detect)(&probe) >= wanted)
    };
    let driver = asked(&owners, Verdict::Yes)
        .or_else(|| asked(&others, Verdict::Yes))
        .or_else(|| asked(&owners, Verdict::Maybe));
    match driver {
        Some(driver) => {
            let parse = driver.parse;
            drop(head);
            let label = source.label().to_owned();
            parse(source, context).map_err(|error| error.in_file(label))
        }
        None => Err(unrecognised(&head, extension.as_deref()).in_file(source.label())),
    }
}

/// Says what a file that no driver takes looks like.
fn unrecognised(head: &[u8], extension: Option<&str>) -> Error {
    const KNOWN: &[(&[u8], &str)] = &[
        (b"ZTEN", "a .zt file of an unknown version"),
        (b"Z4DM", "a model delta: apply it to its base, and open what comes out"),
        (b"Z4AI", "a z4ai frame: decompress it first"),
        (b"ZARA", "a z4ai frame: decompress it first"),
        (b"version https://git-lfs", "a Git LFS pointer: fetch the real file with `git lfs pull`"),
        (b"<!DOCTYPE", "a web page, perhaps a failed download"),
        (b"<html", "a web page, perhaps a failed download"),
        (b"\x1f\x8b", "gzip data: decompress it first"),
        (b"\x28\xb5\x2f\xfd", "zstd data: decompress it first"),
        (b"BZh", "bzip2 data: decompress it first"),
        (b"PK\x03\x04", "a zip archive without tensors"),
        (b"\x7fELF", "a program"),
        (b"%PDF", "a PDF document"),
    ];
    let looks_like = match KNOWN.iter().find(|(magic, _)| head.starts_with(magic)) {
        Some((_, what)) => (*what).to_owned(),
        None if head.is_empty() => "an empty file".to_owned(),
        None if head.iter().all(|&byte| byte == 0) => {
            "a file of zero bytes, perhaps an unfinished download".to_owned()
        }
        None if head.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) => {
            "a text file".to_owned()
        }
        None => format!("unknown data that starts with {:02x?}", &head[..head.len().min(8)]),
    };
    let name = extension.map(|extension| format!(" named .{extension}")).unwrap_or_default();
    Error::unsupported(format!("not a tensor file this library knows{name}: it looks like {looks_like}"))
}
