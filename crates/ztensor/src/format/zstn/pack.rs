//! Packing: a file of tensors becomes a sequence of frames.

use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use z4ai::Effort;

use super::container::{Mode, in_data_order};
use super::contents::{Content, Encoder, Output, write_failed};
use super::duplicates;
use crate::base::parallel;
use crate::catalog::{Catalog, Component, Extent, Layout, Object, Storage};
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::format::gguf::GgmlType;
use crate::format::{Context, Format, safetensors};
use crate::progress::{Observer, advance, finish};
use crate::remote::Options;
use crate::source::{self, MapMode, Source, Sources};
use crate::write::atomic::AtomicFile;
use crate::write::destination::Destination;

/// How to pack.
#[derive(Clone, Copy, Default)]
pub struct PackOptions<'a> {
    /// How hard the codec tries.
    pub effort: Effort,
    /// Level of the streams that zstd codes, 1 to 22. `None`: the effort's own.
    pub level: Option<i32>,
    /// Threads to use; 0 is one per core. The bytes written do not depend on it.
    pub threads: usize,
    /// Whether [`pack`] waits until the disk has it all.
    pub durable: bool,
    /// Is told how many bytes of the original are packed, and may cancel.
    pub observer: Option<&'a dyn Observer>,
}

/// What packing came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PackStats {
    /// Bytes of the original file.
    pub original_len: u64,
    /// Bytes of the packed file.
    pub packed_len: u64,
    /// Tensors that are packed one by one.
    pub tensors: u64,
    /// How many of them are stored as another one with the same bytes.
    pub shared: u64,
    /// Whether the packed file can only be unpacked: its tensors cannot be read one by one.
    pub opaque: bool,
    /// The format of the original; `None` for a `.safetensors` file that breaks a rule of it.
    pub format: Option<Format>,
}

/// Packs a tensor file. The new file appears under its name when it is complete.
///
/// Tensors of a `.safetensors` file can be read from the packed file one by one. Files of all other
/// formats that this library reads (`.pt`, `.gguf`, `.npz`, …) are compressed tensor by tensor, too,
/// and restored byte for byte, but have to be unpacked to be read; so does a file that has the
/// header of a `.safetensors` file but breaks a rule of it (holes, trailing bytes, duplicate keys,
/// unknown types). What is not a tensor file is refused.
pub fn pack(
    input: impl AsRef<Path>,
    output: impl Into<Destination>,
    options: &PackOptions<'_>,
) -> Result<PackStats> {
    let (input, to) = (input.as_ref(), output.into());
    let output = to.path();
    let source = source::open(input, MapMode::Auto, &Options::default())?;
    let file = AtomicFile::create(&to)?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let stats = pack_source(source, &mut out, options).map_err(|error| match error.kind() {
        ErrorKind::Io => error.in_file(output),
        _ => error.in_file(input),
    })?;
    let file = out.into_inner().map_err(|error| write_failed(error.into_error()).in_file(output))?;
    file.commit(options.durable)?;
    Ok(stats)
}

/// Like [`pack`], from any source, such as memory, to anything that can be written to.
pub fn pack_source(
    source: Arc<dyn Source>,
    out: &mut (dyn Write + Send),
    options: &PackOptions<'_>,
) -> Result<PackStats> {
    let mut format = Some(Format::Safetensors);
    let (mode, parts) = match safetensors::parse(source.clone().into(), &Context::default()) {
        Ok(catalog) => (Mode::Tensors, tensors(&catalog)),
        Err(error) if is_foreign(&error) => {
            let catalog = foreign(&source, error)?;
            format = Some(catalog.format);
            (Mode::Opaque, cut(&catalog, source.len()))
        }
        Err(_) => {
            format = None;
            (Mode::Opaque, opaque(0..source.len()).collect())
        }
    };
    let mut stats = PackStats {
        original_len: source.len(),
        tensors: if mode == Mode::Tensors { parts.len() as u64 - 1 } else { 0 },
        opaque: mode == Mode::Opaque,
        format,
        ..PackStats::default()
    };
    let sources = Sources::one(source);
    // The header is compared with nothing: references are between tensors.
    let extents: Vec<Extent> =
        parts.iter().map(|part| part.extent).skip(usize::from(!stats.opaque)).collect();
    let mut same = duplicates::find(&sources, &extents, options.threads)?;
    if !stats.opaque {
        same.iter_mut().flatten().for_each(|first| *first += 1);
        same.insert(0, None);
    }
    stats.shared = same.iter().flatten().count() as u64;
    let packer = Packer { sources: &sources, options, encoder: Encoder::new(options.effort, options.level) };
    let mut output = Output::start(out, mode)?;
    for batch in batches(parts.iter().map(|part| part.extent.len).collect(), options.threads) {
        packer.write(&parts, &same, batch, &mut output)?;
    }
    stats.packed_len = output.finish(stats.original_len)?;
    finish(options.observer)?;
    Ok(stats)
}

/// Whether a file has no header of this format at all, or could not be read.
fn is_foreign(error: &Error) -> bool {
    const HEADERLESS: [&str; 6] = [
        "safetensors.short",
        "safetensors.header-length",
        "safetensors.start",
        "safetensors.utf8",
        "json.syntax",
        "json.depth",
    ];
    matches!(error.kind(), ErrorKind::Io | ErrorKind::Limit)
        || error.rule().is_some_and(|rule| HEADERLESS.contains(&rule))
}

/// One content to be: a range of the original and what it holds.
struct PackedRange {
    extent: Extent,
    /// Element type and shape of a tensor.
    tensor: Option<Element>,
}

/// What the codec is told of a tensor.
enum Element {
    Plain(DType, Vec<u64>),
    Blocks(GgmlType, Vec<u64>),
}

impl PackedRange {
    fn content(&self) -> Content<'_> {
        match &self.tensor {
            None => Content::Bytes,
            Some(Element::Plain(dtype, shape)) => Content::Elements(*dtype, shape),
            Some(Element::Blocks(blocks, shape)) => Content::Blocks(*blocks, shape),
        }
    }
}

/// The header, then the tensors in the order of their data.
fn tensors(catalog: &Catalog) -> Vec<PackedRange> {
    let mut parts = vec![PackedRange { extent: Extent::new(0, 0), tensor: None }];
    let mut end = None;
    for index in in_data_order(catalog) {
        let Some((_, object)) = catalog.objects.get_index(index) else { continue };
        let component = &object.components[0].1;
        let Some(extent) = component.extent() else { continue };
        end.get_or_insert(extent.offset);
        parts.push(PackedRange {
            extent,
            tensor: Some(Element::Plain(component.dtype, object.shape.to_vec())),
        });
    }
    // Data starts where the header ends; without tensors there is none.
    let total = catalog.sources.get(0).map_or(0, |source| source.len());
    parts[0].extent.len = end.unwrap_or(total);
    parts
}

/// The catalog of a file of another format; `error` is what is wrong with it as a `.safetensors` file.
fn foreign(source: &Arc<dyn Source>, error: Error) -> Result<Catalog> {
    if matches!(error.kind(), ErrorKind::Io | ErrorKind::Limit) {
        return Err(error);
    }
    // Memory has no journal and no files beside it.
    let path = (source.label() != source::memory::LABEL).then(|| source.label().into());
    let context = Context { path, ..Context::default() };
    // Its error is the better message: it says what the file is.
    let catalog = crate::format::parse(source.clone(), &context).map_err(Error::into_unsupported)?;
    match catalog.format {
        Format::Zstn => Err(Error::invalid("this file is packed already")),
        _ => Ok(catalog),
    }
}

/// Pieces of a range, so that packing it does not take its size in memory.
fn opaque(range: Range<u64>) -> impl Iterator<Item = PackedRange> {
    const PACKED_PIECE: u64 = 64 << 20;
    let end = range.end;
    let piece = move |start| PackedRange {
        extent: Extent::new(start, (end - start).min(PACKED_PIECE)),
        tensor: None,
    };
    range.step_by(PACKED_PIECE as usize).map(piece)
}

/// A file cut at its tensors, so that each is coded as what it is; what lies between them is opaque.
fn cut(catalog: &Catalog, len: u64) -> Vec<PackedRange> {
    /// Tensors shorter than this are coded with what surrounds them.
    const WORTH_A_PART: u64 = 4 << 10;
    let mut tensors = Vec::new();
    for object in catalog.objects.values() {
        for (_, component) in &object.components {
            let Storage::Plain(extent) = &component.storage else { continue };
            let fits = extent.source == 0 && extent.len >= WORTH_A_PART;
            if fits && extent.offset.checked_add(extent.len).is_some_and(|end| end <= len) {
                tensors.push((*extent, element(object, component)));
            }
        }
    }
    tensors.sort_by_key(|(extent, _)| (extent.offset, std::cmp::Reverse(extent.len)));
    let (mut parts, mut end) = (Vec::new(), 0);
    for (extent, tensor) in tensors {
        // Views of one storage overlap: the first, which is the longest, has their bytes.
        if extent.offset < end {
            continue;
        }
        parts.extend(opaque(end..extent.offset));
        end = extent.offset + extent.len;
        parts.push(PackedRange { extent, tensor });
    }
    parts.extend(opaque(end..len));
    parts
}

/// What the codec is told of a component.
fn element(object: &Object, component: &Component) -> Option<Element> {
    if let Some(blocks) = GgmlType::from_layout_name(object.layout.name()) {
        return Some(Element::Blocks(blocks, object.shape.to_vec()));
    }
    let shape = match object.layout {
        Layout::Dense => object.shape.to_vec(),
        _ => vec![component.len * 8 / u64::from(component.dtype.bits()).max(1)],
    };
    Some(Element::Plain(component.dtype, shape))
}

/// Runs of contents of these lengths that are small enough to hold their frames in memory, or one.
pub(super) fn batches(lens: Vec<u64>, threads: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let budget = (16 << 20) * parallel::resolve(threads) as u64;
    let mut next = 0;
    std::iter::from_fn(move || {
        let start = next;
        let mut bytes = 0u64;
        while next < lens.len() && (next == start || bytes + lens[next] <= budget) {
            bytes += lens[next];
            next += 1;
        }
        (start < next).then_some(start..next)
    })
}

struct Packer<'a> {
    sources: &'a Sources,
    options: &'a PackOptions<'a>,
    encoder: Encoder,
}

impl Packer<'_> {
    /// Encodes a batch, several at a time, and writes it in order.
    fn write(
        &self,
        parts: &[PackedRange],
        same: &[Option<usize>],
        batch: std::ops::Range<usize>,
        out: &mut Output<'_>,
    ) -> Result<()> {
        let total = parts[batch.clone()].iter().map(|part| part.extent.len).sum();
        let mut encoded: Vec<_> = batch.clone().map(|_| None).collect();
        let jobs = batch.clone().zip(&mut encoded).filter(|(index, _)| same[*index].is_none()).collect();
        parallel::for_each(self.options.threads, jobs, |(index, slot)| {
            let part = &parts[index];
            let threads = parallel::share(self.options.threads, part.extent.len, total);
            let content = self.sources.bytes(part.extent)?;
            *slot = Some(self.encoder.encode(&content, part.content(), index == 0, threads)?);
            advance(self.options.observer, 0)
        })?;
        for (index, encoded) in batch.zip(encoded) {
            let len = parts[index].extent.len;
            match (encoded, same[index]) {
                (Some(encoded), _) => {
                    out.blob(&encoded, len)?;
                    self.encoder.recycle(encoded);
                }
                (None, first) => out.same(first.unwrap_or(0), len),
            }
            advance(self.options.observer, len)?;
        }
        Ok(())
    }
}
