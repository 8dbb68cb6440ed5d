//! Packing: a file of tensors becomes a sequence of frames.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use z4ai::Effort;

use super::MAGIC;
use super::container::{
    ALIGNMENT, FOOTER, HEADER_EXPANSION, KIND_FRAME, KIND_RAW, KIND_SAME, Mode, SMALL_HEADER, VERSION,
    checksum, in_data_order,
};
use super::duplicates;
use crate::atomic::AtomicFile;
use crate::codec;
use crate::dtype::DType;
use crate::error::{Error, Kind, Result};
use crate::format::{Context, safetensors};
use crate::object::{Catalog, Extent};
use crate::parallel;
use crate::progress::{Observer, advance};
use crate::remote::Options;
use crate::source::{self, MapMode, Source, Sources};

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
    /// Whether the file was packed without knowledge of its tensors.
    pub opaque: bool,
}

/// Packs a `.safetensors` file. The new file appears under its name when it is complete.
///
/// A file that has the format's header but breaks a rule of it (holes, trailing bytes,
/// duplicate keys, unknown types) is packed as opaque pieces, and restored like any other.
/// A file without such a header is refused.
pub fn pack(
    input: impl AsRef<Path>,
    output: impl AsRef<Path>,
    options: &PackOptions<'_>,
) -> Result<PackStats> {
    let (input, output) = (input.as_ref(), output.as_ref());
    let source = source::open(input, MapMode::Auto, &Options::default())?;
    let file = AtomicFile::create(output)?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let stats = pack_source(source, &mut out, options).map_err(|error| match error.kind() {
        Kind::Io => error.in_file(output),
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
    let (mode, parts) = match safetensors::parse(source.clone(), &Context::default()) {
        Ok(catalog) => (Mode::Tensors, tensors(&catalog)),
        Err(error) if is_foreign(&error) => return Err(error),
        Err(_) => (Mode::Opaque, opaque(source.len())),
    };
    let mut stats = PackStats {
        original_len: source.len(),
        tensors: if mode == Mode::Tensors { parts.len() as u64 - 1 } else { 0 },
        opaque: mode == Mode::Opaque,
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
    let prefix = [MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], VERSION, u8::from(stats.opaque), 0, 0];
    let packer = Packer { sources: &sources, options, buffers: Mutex::default() };
    let mut output = Output { out, position: 0, index: Vec::new() };
    output.put(&prefix)?;
    for batch in batches(&parts, options.threads) {
        packer.write(&parts, &same, batch, &mut output)?;
    }
    stats.packed_len = output.finish(prefix, stats.original_len)?;
    Ok(stats)
}

fn write_failed(error: std::io::Error) -> Error {
    Error::io("cannot write", error)
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
    matches!(error.kind(), Kind::Io | Kind::Limit)
        || error.rule().is_some_and(|rule| HEADERLESS.contains(&rule))
}

/// One content to be: a range of the original and what it holds.
struct Part {
    extent: Extent,
    /// Element type and shape of a tensor.
    tensor: Option<(DType, Vec<u64>)>,
}

/// The header, then the tensors in the order of their data.
fn tensors(catalog: &Catalog) -> Vec<Part> {
    let mut parts = vec![Part { extent: Extent::new(0, 0), tensor: None }];
    let mut end = None;
    for index in in_data_order(catalog) {
        let Some((_, object)) = catalog.objects.get_index(index) else { continue };
        let component = &object.components[0].1;
        let Some(extent) = component.extent() else { continue };
        end.get_or_insert(extent.offset);
        parts.push(Part { extent, tensor: Some((component.dtype, object.shape.to_vec())) });
    }
    // Data starts where the header ends; without tensors there is none.
    let total = catalog.sources.get(0).map_or(0, |source| source.len());
    parts[0].extent.len = end.unwrap_or(total);
    parts
}

/// Pieces of a file, so that packing it does not take its size in memory.
fn opaque(len: u64) -> Vec<Part> {
    const PIECE: u64 = 64 << 20;
    let piece = |start| Part { extent: Extent::new(start, (len - start).min(PIECE)), tensor: None };
    (0..len).step_by(PIECE as usize).map(piece).collect()
}

/// Runs of parts small enough to hold their frames in memory, or one part.
fn batches(parts: &[Part], threads: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let budget = (16 << 20) * parallel::resolve(threads) as u64;
    let mut next = 0;
    std::iter::from_fn(move || {
        let start = next;
        let mut bytes = 0u64;
        while next < parts.len() && (next == start || bytes + parts[next].extent.len <= budget) {
            bytes += parts[next].extent.len;
            next += 1;
        }
        (start < next).then_some(start..next)
    })
}

/// A content as it will be stored.
struct Encoded {
    kind: u8,
    bytes: Vec<u8>,
}

struct Packer<'a> {
    sources: &'a Sources,
    options: &'a PackOptions<'a>,
    /// Memory of frames that are written.
    buffers: Mutex<Vec<Vec<u8>>>,
}

impl Packer<'_> {
    /// Encodes a batch, several at a time, and writes it in order.
    fn write(
        &self,
        parts: &[Part],
        same: &[Option<usize>],
        batch: std::ops::Range<usize>,
        out: &mut Output<'_>,
    ) -> Result<()> {
        let total = parts[batch.clone()].iter().map(|part| part.extent.len).sum();
        let mut encoded: Vec<Option<Encoded>> = batch.clone().map(|_| None).collect();
        let jobs = batch.clone().zip(&mut encoded).filter(|(index, _)| same[*index].is_none()).collect();
        parallel::for_each(self.options.threads, jobs, |(index, slot)| {
            let threads = parallel::share(self.options.threads, parts[index].extent.len, total);
            *slot = Some(self.encode(&parts[index], index == 0, threads)?);
            advance(self.options.observer, 0)
        })?;
        for (index, encoded) in batch.zip(encoded) {
            let len = parts[index].extent.len;
            match (encoded, same[index]) {
                (Some(encoded), _) => {
                    out.blob(&encoded, len)?;
                    self.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(encoded.bytes);
                }
                (None, first) => out.entry(KIND_SAME, 0, first.unwrap_or(0) as u64, len),
            }
            advance(self.options.observer, len)?;
        }
        Ok(())
    }

    fn encode(&self, part: &Part, is_first: bool, threads: usize) -> Result<Encoded> {
        let content = self.sources.bytes(part.extent)?;
        let len = content.len() as u64;
        let mut options = match &part.tensor {
            Some((dtype, shape)) => codec::options(*dtype, shape, len, self.options.effort, threads),
            None => z4ai::Options { effort: self.options.effort, threads, ..z4ai::Options::default() },
        };
        options.level = self.options.level;
        let mut bytes = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        if !content.is_empty() {
            z4ai::compress_into(&content, &options, &mut bytes).map_err(codec::not_encoded)?;
            let stored = bytes.len() as u64;
            let proportionate = !is_first || len <= SMALL_HEADER || len.div_ceil(HEADER_EXPANSION) <= stored;
            if stored < len && proportionate {
                return Ok(Encoded { kind: KIND_FRAME, bytes });
            }
        }
        // A private copy: the digest must be of the bytes that are written.
        bytes.clear();
        bytes.try_reserve(content.len()).map_err(|_| Error::limit("not enough memory to pack a tensor"))?;
        bytes.extend_from_slice(&content);
        Ok(Encoded { kind: KIND_RAW, bytes })
    }
}

/// The packed file as far as it is written.
struct Output<'a> {
    out: &'a mut (dyn Write + Send),
    position: u64,
    index: Vec<u8>,
}

impl Output<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(write_failed)?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn blob(&mut self, encoded: &Encoded, len: u64) -> Result<()> {
        let Encoded { kind, bytes } = encoded;
        let mut crc = 0;
        if *kind == KIND_RAW {
            crc = crc32c::crc32c(bytes);
            if len > 0 {
                let padding = self.position.next_multiple_of(ALIGNMENT) - self.position;
                self.put(&[0; ALIGNMENT as usize][..padding as usize])?;
            }
        }
        self.put(bytes)?;
        self.entry(*kind, crc, bytes.len() as u64, len);
        Ok(())
    }

    fn entry(&mut self, kind: u8, crc: u32, value: u64, len: u64) {
        self.index.push(kind);
        self.index.extend_from_slice(&crc.to_le_bytes());
        self.index.extend_from_slice(&value.to_le_bytes());
        self.index.extend_from_slice(&len.to_le_bytes());
    }

    /// Writes index and footer, and returns the size of the file.
    fn finish(mut self, prefix: [u8; 8], content_len: u64) -> Result<u64> {
        let index = std::mem::take(&mut self.index);
        self.put(&index)?;
        let file_len = self.position + FOOTER;
        let mut footer = Vec::with_capacity(FOOTER as usize);
        for number in [index.len() as u64, content_len, file_len] {
            footer.extend_from_slice(&number.to_le_bytes());
        }
        let checksum = checksum(&prefix, &index, &footer);
        footer.extend_from_slice(&checksum.to_le_bytes());
        footer.extend_from_slice(&prefix);
        self.put(&footer)?;
        self.out.flush().map_err(write_failed)?;
        Ok(file_len)
    }
}
