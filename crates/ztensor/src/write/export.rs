//! Writing other formats: one door for every target.
//!
//! An export first sees the whole plan (names, types, shapes), so that what the
//! target cannot hold is refused by name before anything is written. Then one
//! pipeline serves every target: threads read, verify and decode tensors ahead of
//! the one that writes, each byte once; large tensors pass in pieces. The new file
//! appears under its name only when it is complete.
//!
//! ```no_run
//! use ztensor::export::{ExportFormat, ExportOptions, export};
//!
//! let reader = ztensor::Reader::open("model.zt")?;
//! export(&reader, "model.safetensors", ExportFormat::Safetensors, &ExportOptions::default())?;
//! # Ok::<(), ztensor::Error>(())
//! ```

use std::borrow::Cow;
use std::io::{BufWriter, Write};
use std::path::Path;

use z4ai::Effort;

use crate::base::{CACHE_BLOCK, parallel};
use crate::catalog::{Layout, Object};
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};
use crate::format::exporter;
use crate::progress::{Observer, advance, finish};
use crate::read::Reader;
use crate::remote::Options;
use crate::source::Staged;
use crate::tensor::Tensor;
use crate::tensor::value::{Attributes, Value};
use crate::write::atomic::AtomicFile;
use crate::write::destination::Destination;
use crate::write::vectored::{Gather, LONGEST_PIECE};

/// A format that tensors can be exported to. (`.zt` files have their own
/// [`Writer`](crate::Writer), which can do more.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExportFormat {
    /// `.safetensors`: dense tensors, and text attributes of the whole file.
    Safetensors,
    /// `.gguf`: dense tensors of its own types, GGUF block tensors, and attributes.
    Gguf,
    /// `.npz`: dense tensors of NumPy's own types.
    Npz,
    /// `.npy`: exactly one such tensor.
    Npy,
    /// `.zstn`: what a `.safetensors` file would be, packed.
    Zstn,
    /// `.zt` of version 2: tensors of every layout, and attributes.
    Zt2,
}

impl ExportFormat {
    /// Every target.
    pub const ALL: [ExportFormat; 6] = [
        ExportFormat::Safetensors,
        ExportFormat::Gguf,
        ExportFormat::Npz,
        ExportFormat::Npy,
        ExportFormat::Zstn,
        ExportFormat::Zt2,
    ];

    /// Its name, which is also its extension.
    pub fn name(self) -> &'static str {
        match self {
            ExportFormat::Safetensors => "safetensors",
            ExportFormat::Gguf => "gguf",
            ExportFormat::Npz => "npz",
            ExportFormat::Npy => "npy",
            ExportFormat::Zstn => "zstn",
            ExportFormat::Zt2 => "zt2",
        }
    }

    /// The target that a path's extension asks for.
    pub fn from_path(path: impl AsRef<Path>) -> Option<ExportFormat> {
        let extension = path.as_ref().extension()?.to_str()?.to_ascii_lowercase();
        Self::ALL.into_iter().find(|format| format.name() == extension)
    }

    /// The keys of those attributes that a file of this format cannot hold as they are.
    pub fn unheld_attributes(self, attributes: &Attributes) -> Vec<String> {
        let held = |key: &str, value: &Value| match self {
            ExportFormat::Safetensors | ExportFormat::Zstn => value.as_text().is_some(),
            ExportFormat::Gguf => crate::format::gguf::write::holds(attributes, key, value),
            ExportFormat::Npz | ExportFormat::Npy => false,
            ExportFormat::Zt2 => crate::format::zt2::holds(key, value),
        };
        let unheld = attributes.iter().filter(|(key, value)| !held(key, value));
        unheld.map(|(key, _)| key.clone()).collect()
    }

    /// Whether a file of this format can hold text as metadata.
    pub fn holds_text(self) -> bool {
        !matches!(self, ExportFormat::Npz | ExportFormat::Npy)
    }
}

impl std::fmt::Display for ExportFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// How to export.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct ExportOptions<'a> {
    /// Attributes for the file instead of the source's own.
    pub attributes: Option<Attributes>,
    /// Leave out attributes that the target cannot hold, instead of refusing.
    pub drop_attributes: bool,
    /// Deflate level 1 to 9 for the members of an `.npz`; stored as they are
    /// (and so viewable without a copy) if `None`.
    pub deflate: Option<u32>,
    /// How hard to try to make a `.zstn` small.
    pub effort: Effort,
    /// Level of the streams of a `.zstn` that zstd codes, 1 to 22. `None`: the effort's own.
    pub level: Option<i32>,
    /// zstd level 1 to 22 for the parts of a `.zt` file of version 2; stored as they are (and so
    /// viewable without a copy) if `None`.
    pub zstd: Option<i32>,
    /// Writes a `.zt` file of version 2 in canonical form: the same tensors and attributes are then the
    /// same bytes, whatever their order and their source.
    pub canonical: bool,
    /// Threads to pack with; 0 is one per core.
    pub threads: usize,
    /// Wait until the disk has it all.
    pub durable: bool,
    /// How to reach the store, where the path is a URL.
    pub remote: Options,
    /// Told about every tensor written; may cancel.
    pub observer: Option<&'a dyn Observer>,
}

impl<'a> ExportOptions<'a> {
    /// Writes these attributes instead of the source's own.
    pub fn attributes(mut self, attributes: Attributes) -> Self {
        self.attributes = Some(attributes);
        self
    }

    /// Leaves out attributes that the target cannot hold, instead of refusing.
    pub fn drop_attributes(mut self, drop: bool) -> Self {
        self.drop_attributes = drop;
        self
    }

    /// Deflates the members of an `.npz`, at a level of 1 to 9.
    pub fn deflate(mut self, level: Option<u32>) -> Self {
        self.deflate = level;
        self
    }

    /// How hard to try to make a `.zstn` small, and the level of the streams that zstd codes.
    pub fn effort(mut self, effort: Effort, level: Option<i32>) -> Self {
        (self.effort, self.level) = (effort, level);
        self
    }

    /// Compresses the parts of a `.zt` file of version 2 with zstd, at a level of 1 to 22.
    pub fn zstd(mut self, level: Option<i32>) -> Self {
        self.zstd = level;
        self
    }

    /// Writes a `.zt` file of version 2 in canonical form.
    pub fn canonical(mut self, canonical: bool) -> Self {
        self.canonical = canonical;
        self
    }

    /// Threads to pack with; 0 is one per core.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Waits until the disk has it all.
    pub fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// How to reach the store, where the path is a URL.
    pub fn remote(mut self, remote: Options) -> Self {
        self.remote = remote;
        self
    }

    /// Tells `observer` about every tensor written; it may cancel.
    pub fn observer(mut self, observer: Option<&'a dyn Observer>) -> Self {
        self.observer = observer;
        self
    }
}

/// Tensors to export: what they are, and their bytes one at a time.
pub trait ExportSource: Sync {
    /// Every name and what it stands for. Names differ from each other.
    fn objects(&self) -> Vec<(&str, Cow<'_, Object>)>;

    /// Attributes of the whole.
    fn attributes(&self) -> &Attributes;

    /// The tensor at that index of [`objects`](ExportSource::objects).
    fn fetch(&self, index: usize) -> Result<Tensor<'_>>;

    /// Whether a component is handed out by [`pieces`](ExportSource::pieces), so that a tensor larger
    /// than memory can be written; other tensors are fetched whole.
    fn streams(&self, _index: usize, _role: &str) -> bool {
        false
    }

    /// Calls `each` with all bytes of a component, piece by piece: of any component of a tensor that has one
    /// which [`streams`](ExportSource::streams).
    fn pieces(&self, index: usize, _role: &str, _each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        Err(Error::invalid(format!("tensor {index} is not handed out in pieces")))
    }

    /// The first `most` bytes of a component that is handed out in pieces, or all of it.
    fn start(&self, index: usize, role: &str, most: usize) -> Result<Vec<u8>> {
        let mut start = Vec::new();
        let asked = self.pieces(index, role, &mut |piece| {
            start.extend_from_slice(&piece[..piece.len().min(most - start.len())]);
            if start.len() < most { Ok(()) } else { Err(Error::cancelled()) }
        });
        match asked {
            Err(error) if start.len() < most => Err(error),
            _ => Ok(start),
        }
    }

    /// Whether [`fetch`](ExportSource::fetch) takes time (reading, decoding, converting): several threads
    /// then call it, ahead of the one that writes.
    fn fetches_ahead(&self) -> bool {
        false
    }

    /// Refuses to hand out all tensors if that exceeds a limit, before anything is written.
    fn check_limits(&self) -> Result<()> {
        Ok(())
    }

    /// Says that these are fetched next, one after another, while what is returned is held.
    fn stage(&self, _indices: &[usize]) -> Result<Vec<Staged>> {
        Ok(Vec::new())
    }
}

impl ExportSource for Reader {
    fn objects(&self) -> Vec<(&str, Cow<'_, Object>)> {
        Reader::objects(self).map(|(name, object)| (name, Cow::Borrowed(object))).collect()
    }

    fn attributes(&self) -> &Attributes {
        Reader::attributes(self)
    }

    fn fetch(&self, index: usize) -> Result<Tensor<'_>> {
        match self.catalog().objects.get_index(index) {
            Some((name, _)) => {
                self.read_checked(name) // a copy must not inherit damage
            }
            None => Err(Error::invalid(format!("there is no tensor {index}"))),
        }
    }

    fn streams(&self, index: usize, role: &str) -> bool {
        let object = self.catalog().objects.get_index(index);
        object.is_some_and(|(name, _)| self.has_pieces(name, role))
    }

    fn pieces(&self, index: usize, role: &str, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        match self.catalog().objects.get_index(index) {
            Some((name, _)) => self.read_pieces(name, role, each),
            None => Err(Error::invalid(format!("there is no tensor {index}"))),
        }
    }

    fn start(&self, index: usize, role: &str, most: usize) -> Result<Vec<u8>> {
        match self.catalog().objects.get_index(index) {
            Some((name, _)) => self.read_start(name, role, most as u64),
            None => Err(Error::invalid(format!("there is no tensor {index}"))),
        }
    }

    fn fetches_ahead(&self) -> bool {
        true
    }

    fn check_limits(&self) -> Result<()> {
        Reader::check_limits(self, self.keys())
    }

    fn stage(&self, indices: &[usize]) -> Result<Vec<Staged>> {
        let object = |index: &usize| self.catalog().objects.get_index(*index);
        let names: Vec<&str> = indices.iter().filter_map(object).map(|(name, _)| &**name).collect();
        Reader::stage(self, &names)
    }
}

/// Tensors in memory, for export.
#[derive(Debug, Clone, Default)]
pub struct TensorList<'a> {
    /// Names and tensors; no name may appear twice.
    pub tensors: Vec<(String, Tensor<'a>)>,
    /// Attributes of the whole.
    pub attributes: Attributes,
}

impl ExportSource for TensorList<'_> {
    fn objects(&self) -> Vec<(&str, Cow<'_, Object>)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), Cow::Owned(tensor.describe()))).collect()
    }

    fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    fn fetch(&self, index: usize) -> Result<Tensor<'_>> {
        match self.tensors.get(index) {
            Some((_, tensor)) => Ok(tensor.borrowed()),
            None => Err(Error::invalid(format!("there is no tensor {index}"))),
        }
    }
}

/// Writes a new file. It replaces an old one of that name only when it is complete.
pub fn export(
    source: &dyn ExportSource,
    to: impl Into<Destination>,
    format: ExportFormat,
    options: &ExportOptions<'_>,
) -> Result<()> {
    let to = to.into();
    let path = to.path();
    let plan = Plan::new(source, options, format).map_err(|error| error.in_file(path))?;
    let write = exporter(format)(&plan).map_err(|error| error.in_file(path))?;
    let mut file = AtomicFile::create_with(&to, &options.remote)?;
    plan.reserve(&mut file).map_err(|error| error.in_file(path))?;
    plan.write(write, &mut file).map_err(|error| error.in_file(path))?;
    finish(options.observer)?;
    file.commit(options.durable)
}

/// Like [`export`], to anything that can be written to.
pub fn export_to(
    source: &dyn ExportSource,
    out: &mut dyn Write,
    format: ExportFormat,
    options: &ExportOptions<'_>,
) -> Result<()> {
    let plan = Plan::new(source, options, format)?;
    plan.write(exporter(format)(&plan)?, out)?;
    finish(options.observer)
}

/// How a target format is written: refuses, by name, what the format cannot hold, before anything is
/// written, and returns what writes the rest.
pub(crate) type Exporter = fn(&Plan<'_>) -> Result<WriteStep>;

/// Writes the file from front to back. It owns what the check computed: a header, offsets.
pub(crate) type WriteStep = Box<dyn FnOnce(&Plan<'_>, &mut Output<'_>) -> Result<()>>;

/// What is to be written.
pub(crate) struct Plan<'a> {
    source: &'a dyn ExportSource,
    format: ExportFormat,
    pub(crate) objects: Vec<(&'a str, Cow<'a, Object>)>,
    pub(crate) attributes: &'a Attributes,
    pub(crate) options: &'a ExportOptions<'a>,
}

/// Where an export goes: a buffer that large tensors pass by.
pub(crate) type Output<'a> = BufWriter<&'a mut dyn Write>;

/// Tensors that are fetched and written together have at most this many bytes, or there is one: passing each
/// small one from thread to thread would cost more than copying it. (limit)
const GROUP: u64 = 8 << 20;

/// Bytes that may be fetched ahead of the thread that writes; a larger tensor is fetched alone. (limit)
const FETCHED_AHEAD: u64 = 64 << 20;

/// A component to be written, and the zeros behind it.
#[derive(Clone, Copy)]
pub(crate) struct Placed {
    pub(crate) index: usize,
    pub(crate) role: &'static str,
    pub(crate) padding: u64,
}

/// What the pipeline hands to the thread that writes, in order.
pub(crate) enum Fetched<R> {
    /// Tensors that were fetched and prepared.
    Group(Vec<(usize, R)>),
    /// One that is copied in pieces.
    Large(usize),
}

/// What threads of the pipeline fetch.
enum Fetch<'o> {
    Group(&'o [usize]),
    Large(usize),
}

impl<'a> Plan<'a> {
    pub(crate) fn new(
        source: &'a dyn ExportSource,
        options: &'a ExportOptions<'a>,
        format: ExportFormat,
    ) -> Result<Plan<'a>> {
        source.check_limits()?;
        let objects = source.objects();
        let mut names = std::collections::HashSet::<&str, foldhash::fast::RandomState>::default();
        names.reserve(objects.len());
        if let Some((name, _)) = objects.iter().find(|(name, _)| !names.insert(*name)) {
            return Err(Error::invalid("two tensors have this name").in_tensor(*name));
        }
        let attributes = options.attributes.as_ref().unwrap_or_else(|| source.attributes());
        Ok(Plan { source, format, objects, attributes, options })
    }

    /// Asks the disk for what all tensors take.
    fn reserve(&self, file: &mut AtomicFile) -> Result<()> {
        if self.options.deflate.is_some() || self.options.zstd.is_some() || self.format == ExportFormat::Zstn
        {
            return Ok(()); // not known yet
        }
        let bytes = self.objects.iter().map(|(_, object)| object.byte_len());
        file.reserve(bytes.fold(0, u64::saturating_add)).map_err(write_failed)
    }

    fn write(&self, write: WriteStep, out: &mut dyn Write) -> Result<()> {
        let mut out = BufWriter::with_capacity(CACHE_BLOCK, out);
        write(self, &mut out)?;
        out.flush().map_err(write_failed)
    }

    /// Refuses, by name, tensors that are not dense, of a type that is not
    /// `known`, or with attributes of their own (unless those are to be left
    /// out); `own` picks objects that the format has a form of its own for.
    pub(crate) fn require_dense(
        &self,
        known: impl Fn(DType) -> bool,
        own: impl Fn(&Object) -> bool,
    ) -> Result<()> {
        for (name, object) in self.objects.iter().filter(|(_, object)| !own(object)) {
            if object.layout != Layout::Dense {
                let quantized =
                    object.layout == Layout::QuantizedGroup || object.layout.name().starts_with("gguf.");
                let hint = if quantized { ": dequantize it (--dequantize)" } else { "" };
                return Err(self.cannot(name, &format!("the layout {}{hint}", object.layout)));
            }
            let data = object.require("data").map_err(|error| error.in_tensor(*name))?;
            if !known(data.dtype) || data.unknown_type.is_some() {
                let shown = data.type_name().unwrap_or(data.dtype.name());
                return Err(self.cannot(name, &format!("elements of the type {shown}")));
            }
            let attributes = object.attributes.as_ref().is_some_and(|attributes| !attributes.is_empty());
            if attributes && !self.options.drop_attributes {
                return Err(self.cannot(
                    name,
                    "metadata of a single tensor (--drop-metadata, or drop_attributes, leaves it out)",
                ));
            }
        }
        Ok(())
    }

    /// Refuses attributes of the file that the format cannot hold, all of them by name, unless such
    /// are to be left out.
    pub(crate) fn check_attributes(&self) -> Result<()> {
        /// Keys that a message lists. (structural)
        const SHOWN: usize = 12;
        let unheld = self.format.unheld_attributes(self.attributes);
        let unheld: Vec<String> = unheld.iter().map(|key| quoted(key)).collect();
        if unheld.is_empty() || self.options.drop_attributes {
            return Ok(());
        }
        let kind = match self.format {
            ExportFormat::Safetensors | ExportFormat::Zstn => "holds only strings as metadata",
            ExportFormat::Gguf => {
                "holds only numbers, strings, booleans and lists of one of these as metadata"
            }
            ExportFormat::Npz | ExportFormat::Npy => "holds no metadata",
            ExportFormat::Zt2 => "holds no CBOR tags, and no empty or very long names, as metadata",
        };
        let more = match unheld.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Err(Error::unsupported(format!(
            "a .{} file {kind}: drop or convert {}{more}",
            self.format,
            unheld[..unheld.len().min(SHOWN)].join(", ")
        )))
    }

    /// The target cannot hold `what`, which tensor `name` has.
    pub(crate) fn cannot(&self, name: &str, what: &str) -> Error {
        Error::unsupported(format!("a .{} file cannot hold {what}", self.format)).in_tensor(name)
    }

    /// Writes components in the given order, each with its padding: from where they lie, many in one call.
    pub(crate) fn write_data(&self, order: &[Placed], out: &mut Output<'_>) -> Result<()> {
        out.flush().map_err(write_failed)?;
        let out = out.get_mut();
        let indices: Vec<usize> = order.iter().map(|placed| placed.index).collect();
        let threads = self.fetch_threads();
        let mut rest = order.iter();
        let fetched = |_, tensor: Tensor<'a>| Ok(tensor);
        self.pipeline(threads, &indices, Whole::IfSmall, fetched, |fetched| match fetched {
            Fetched::Group(tensors) => {
                let mut gather = Gather::default();
                let mut bytes = 0;
                for ((_, tensor), placed) in tensors.iter().zip(rest.by_ref()) {
                    let data = tensor.component(placed.role).map_or(&[][..], |data| &data.bytes);
                    bytes += data.len() as u64;
                    put(&mut gather, data, placed.padding, out)?;
                }
                gather.write_to(out).map_err(write_failed)?;
                advance(self.options.observer, bytes)
            }
            Fetched::Large(index) => {
                let Some(placed) = rest.next() else { return Ok(()) };
                self.pieces(index, placed.role, &mut |piece| {
                    out.write_all(piece).map_err(write_failed)?;
                    advance(self.options.observer, piece.len() as u64)
                })?;
                let mut gather = Gather::default();
                put(&mut gather, &[], placed.padding, out)?;
                gather.write_to(out).map_err(write_failed)?;
                Ok(())
            }
        })
    }

    /// Threads that fetch ahead of the one that writes, where nothing is prepared but the tensors.
    pub(crate) fn fetch_threads(&self) -> usize {
        if self.source.fetches_ahead() { self.options.threads } else { 1 }
    }

    /// Several tensors, fetched at the same time.
    pub(crate) fn fetch_all(&self, indices: &[usize]) -> Result<Vec<Tensor<'a>>> {
        let _staged = self.source.stage(indices)?;
        let mut tensors = Vec::with_capacity(indices.len());
        let items = indices.iter().map(|&index| (0, index)).collect();
        parallel::in_order(
            self.fetch_threads(),
            items,
            u64::MAX,
            |index| self.fetch(index),
            |tensor| {
                tensors.push(tensor);
                Ok(())
            },
        )?;
        Ok(tensors)
    }

    /// The pipeline of every target: threads fetch tensors and `prepare` what is written of them, ahead of
    /// the calling thread, which takes the results in order.
    pub(crate) fn pipeline<R: Send>(
        &self,
        threads: usize,
        order: &[usize],
        whole: Whole,
        prepare: impl Fn(usize, Tensor<'a>) -> Result<R> + Sync,
        mut take: impl FnMut(Fetched<R>) -> Result<()>,
    ) -> Result<()> {
        let fetch = |fetch: Fetch<'_>| match fetch {
            Fetch::Large(index) => Ok(Fetched::Large(index)),
            Fetch::Group(group) => {
                let _staged = self.source.stage(group)?;
                let mut made = Vec::with_capacity(group.len());
                for &index in group {
                    let prepared = prepare(index, self.fetch(index)?);
                    made.push((index, prepared.map_err(|error| error.in_tensor(self.objects[index].0))?));
                }
                Ok(Fetched::Group(made))
            }
        };
        parallel::in_order(threads, self.fetches(order, whole), FETCHED_AHEAD, fetch, &mut take)
    }

    /// Groups of small tensors, and large ones, with the bytes that are held for them.
    fn fetches<'o>(&self, order: &'o [usize], whole: Whole) -> Vec<(u64, Fetch<'o>)> {
        let len = |index: &usize| self.objects[*index].1.byte_len();
        let mut fetches = Vec::new();
        let mut rest = order;
        while let [first, after @ ..] = rest {
            if whole == Whole::IfSmall && self.is_large(*first) {
                fetches.push((0, Fetch::Large(*first)));
                rest = after;
                continue;
            }
            let mut bytes = len(first);
            let more = after.iter().take_while(|index| {
                bytes = bytes.saturating_add(len(index));
                bytes <= GROUP
            });
            let (group, after) = rest.split_at(1 + more.count());
            fetches.push((group.iter().map(len).fold(0, u64::saturating_add), Fetch::Group(group)));
            rest = after;
        }
        fetches
    }

    /// Whether a tensor is copied in pieces. Sparse ones are checked as a whole.
    pub(crate) fn is_large(&self, index: usize) -> bool {
        let object = &self.objects[index].1;
        !matches!(object.layout, Layout::SparseCsr | Layout::SparseCoo)
            && object.components.iter().any(|(role, _)| self.source.streams(index, role))
    }

    /// Calls `each` with a component of a large tensor, piece by piece.
    pub(crate) fn pieces(
        &self,
        index: usize,
        role: &str,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let (name, object) = &self.objects[index];
        let planned = object.component(role).map_or(0, |component| component.len);
        let mut found = 0;
        let pieces = self.source.pieces(index, role, &mut |piece| {
            found += piece.len() as u64;
            each(piece)
        });
        pieces.map_err(|error| error.in_tensor(*name))?;
        match found == planned {
            true => Ok(()),
            false => {
                let message = format!("it has {found} bytes where {planned} were announced");
                Err(Error::mismatch(message).in_tensor(*name))
            }
        }
    }

    /// The first bytes of a component of a large tensor.
    pub(crate) fn start(&self, index: usize, role: &str, most: usize) -> Result<Vec<u8>> {
        self.source.start(index, role, most)
    }

    /// A tensor whose components have the bytes that were announced.
    pub(crate) fn fetch(&self, index: usize) -> Result<Tensor<'a>> {
        let (name, object) = &self.objects[index];
        let at = |error: Error| error.in_tensor(*name);
        let tensor = self.source.fetch(index).map_err(at)?;
        for (role, planned) in &object.components {
            let found =
                tensor.component(role).ok_or_else(|| at(Error::invalid(format!("it has no {role}"))))?;
            let (found, planned) = (found.bytes.len() as u64, planned.len);
            if found != planned {
                let message = format!("it has {found} bytes where {planned} were announced");
                return Err(at(Error::mismatch(message)));
            }
        }
        Ok(tensor)
    }
}

/// Which tensors a target needs in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whole {
    /// All of them, for a checksum or a length that comes before the bytes.
    Always,
    /// Small ones; large ones are taken in pieces.
    IfSmall,
}

/// Queues bytes and the zeros behind them; writes what is queued when that is enough.
fn put<'a>(gather: &mut Gather<'a>, bytes: &'a [u8], padding: u64, out: &mut dyn Write) -> Result<()> {
    static ZEROS: [u8; 4096] = [0; 4096];
    let zeros = (0..padding).step_by(ZEROS.len()).map(|at| &ZEROS[..(padding - at).min(4096) as usize]);
    for piece in bytes.chunks(LONGEST_PIECE).chain(zeros) {
        gather.push(piece);
        if gather.is_full() {
            gather.write_to(out).map_err(write_failed)?;
        }
    }
    Ok(())
}

/// An output that does not take its bytes.
pub(crate) fn write_failed(error: std::io::Error) -> Error {
    Error::io("cannot write", error)
}
