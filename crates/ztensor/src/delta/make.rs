//! Making a delta: each tensor of the target in its smallest form.

use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use twox_hash::XxHash3_128;
use z4ai::Effort;

use super::container::{Output, Stored};
use super::matching::Matcher;
use super::model::{Fingerprint, Model};
use super::segments::Place;
use crate::base::parallel;
use crate::catalog::{Extent, Storage};
use crate::error::{Error, ErrorKind, Result};
use crate::format::Format;
use crate::format::gguf::GgmlType;
use crate::progress::{Observer, advance, finish};
use crate::read::Limits;
use crate::read::Reader;
use crate::source::{MemorySource, Source};
use crate::write::atomic::{AtomicFile, scratch_file};
use crate::write::compress::{block_options, codec_options, not_encoded};
use crate::write::destination::Destination;
use crate::write::{WriteOptions, Writer};

/// How to make a delta.
#[derive(Clone, Copy, Default)]
pub struct MakeOptions<'a> {
    /// How hard the codec tries.
    pub effort: Effort,
    /// Level of the streams that zstd codes, 1 to 22. `None`: the effort's own.
    pub level: Option<i32>,
    /// Threads to use; 0 is one per core. The bytes written do not depend on it.
    pub threads: usize,
    /// Refuses models that decode to more.
    pub limits: Limits,
    /// Whether [`make`] waits until the disk has it all.
    pub durable: bool,
    /// Is told how many bytes of the target are done, and may cancel.
    pub observer: Option<&'a dyn Observer>,
}

/// What a delta consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MakeStats {
    /// Bytes of the target.
    pub target_len: u64,
    /// Bytes of the delta.
    pub delta_len: u64,
    /// Tensors that the base has under the same name.
    pub copied: u64,
    /// Tensors that the base has under another name.
    pub renamed: u64,
    /// Tensors stored as a difference.
    pub deltas: u64,
    /// Tensors stored in full.
    pub full: u64,
    /// Tensors equal to another one of the target that is stored in full or as a difference.
    pub shared: u64,
}

/// Makes the delta that turns `base` into `target`. It appears under its name when it is complete.
pub fn make(
    base: impl AsRef<Path>,
    target: impl AsRef<Path>,
    output: impl Into<Destination>,
    options: &MakeOptions<'_>,
) -> Result<MakeStats> {
    let (base, target, to) = (base.as_ref(), target.as_ref(), output.into());
    let output = to.path();
    let base = Model::open(base, options.threads, options.limits)?;
    // Removed after it is unmapped: Windows removes no mapped file.
    let converted;
    let mut target = Model::open(target, options.threads, options.limits)?;
    let file = AtomicFile::create(&to)?;
    if !is_exact(&target) {
        converted = scratch_file(&to, ".zt")?.into_temp_path();
        convert(&target.reader, Writer::create(&*converted)?)?;
        target = Model::open(&converted, options.threads, options.limits)?;
    }
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let stats = Maker::new(&base, &target, options)?.write(&mut out).map_err(|error| match error.kind() {
        ErrorKind::Io => error.in_file(output),
        _ => error,
    })?;
    let file =
        out.into_inner().map_err(|error| Error::io("cannot write", error.into_error()).in_file(output))?;
    file.commit(options.durable)?;
    Ok(stats)
}

/// Like [`make`], from any sources, such as memory, to anything that can be written to.
pub fn make_to(
    base: Arc<dyn Source>,
    target: Arc<dyn Source>,
    out: &mut (dyn Write + Send),
    options: &MakeOptions<'_>,
) -> Result<MakeStats> {
    let base = Model::open_source(base, options.threads, options.limits)?;
    let mut target = Model::open_source(target, options.threads, options.limits)?;
    if !is_exact(&target) {
        let mut bytes = Vec::new();
        convert(&target.reader, Writer::new(&mut bytes)?)?;
        target = Model::open_source(Arc::new(MemorySource::new(bytes)), options.threads, options.limits)?;
    }
    Maker::new(&base, &target, options)?.write(out)
}

/// Whether a file of that format is restored byte for byte.
fn is_exact(model: &Model) -> bool {
    let catalog = model.reader.catalog();
    matches!(catalog.format, Format::Safetensors | Format::Zt) && catalog.sources.len() == 1
}

/// The same tensors as a `.zt` file.
fn convert(reader: &Reader, mut writer: Writer<'_>) -> Result<()> {
    for (name, value) in reader.attributes() {
        writer.set_attribute(name.clone(), value.clone());
    }
    let names: Vec<&str> = reader.keys().collect();
    writer.write_from(reader, &names, WriteOptions::default(), None)?;
    writer.finish().map(drop)
}

/// A range of the target file, and the tensor that it holds.
struct Piece {
    extent: Extent,
    part: Option<usize>,
}

/// What lies between tensors is cut into pieces of this size.
const OTHER: u64 = 64 << 20;

/// The whole target file: tensors that lie in it as they are, and what lies between them.
fn pieces(target: &Model) -> Result<Vec<Piece>> {
    let mut tensors = Vec::new();
    for index in 0..target.parts.len() {
        match target.part(index)?.1.storage {
            Storage::Plain(extent) if extent.len > 0 => tensors.push((extent, index)),
            _ => {}
        }
    }
    tensors.sort_unstable();
    let total = target.reader.catalog().sources.get(0)?.len();
    let mut pieces = Vec::with_capacity(2 * tensors.len() + 1);
    let mut end = 0;
    let other = |pieces: &mut Vec<Piece>, range: Range<u64>| {
        for start in range.clone().step_by(OTHER as usize) {
            let extent = Extent::new(start, (range.end - start).min(OTHER));
            pieces.push(Piece { extent, part: None });
        }
    };
    for (extent, part) in tensors {
        // Tied tensors come once, and of those that overlap the first.
        if extent.offset >= end {
            other(&mut pieces, end..extent.offset);
            pieces.push(Piece { extent, part: Some(part) });
            end = extent.offset + extent.len;
        }
    }
    other(&mut pieces, end..total);
    Ok(pieces)
}

struct Maker<'a> {
    base: &'a Model,
    target: &'a Model,
    options: &'a MakeOptions<'a>,
    matcher: Matcher<'a>,
    base_prints: Vec<Fingerprint>,
    target_prints: Vec<Fingerprint>,
    /// The base's tensors by their content.
    by_content: HashMap<Fingerprint, Vec<usize>>,
}

/// What becomes of a piece.
enum Choice {
    /// One segment, or two where only the first rows are in the base.
    Stored(Vec<(u64, Stored)>),
    /// Equal to an earlier piece, which is stored in the delta.
    Equal(usize),
}

impl<'a> Maker<'a> {
    fn new(base: &'a Model, target: &'a Model, options: &'a MakeOptions<'a>) -> Result<Maker<'a>> {
        let base_prints = base.fingerprints(options.threads, None)?;
        let target_prints = target.fingerprints(options.threads, None)?;
        let mut by_content: HashMap<Fingerprint, Vec<usize>> = HashMap::new();
        for (index, print) in base_prints.iter().enumerate() {
            by_content.entry(*print).or_default().push(index);
        }
        let matcher = Matcher::new(base, target)?;
        Ok(Maker { base, target, options, matcher, base_prints, target_prints, by_content })
    }

    fn write(&self, out: &mut (dyn Write + Send)) -> Result<MakeStats> {
        let pieces = pieces(self.target)?;
        let mut first_of: HashMap<Fingerprint, usize> = HashMap::new();
        let earlier: Vec<Option<usize>> = pieces
            .iter()
            .enumerate()
            .map(|(index, piece)| {
                let first = *first_of.entry(self.target_prints[piece.part?]).or_insert(index);
                (first != index).then_some(first)
            })
            .collect();
        let mut stats = MakeStats::default();
        let mut output = Output::start(out)?;
        let mut hasher = XxHash3_128::new();
        // The segment of each piece that is just one, stored in the delta.
        let mut segment_of: Vec<Option<usize>> = vec![None; pieces.len()];
        for batch in batches(&pieces, self.options.threads) {
            let total = pieces[batch.clone()].iter().map(|piece| piece.extent.len).sum();
            let mut choices: Vec<Option<Choice>> = batch.clone().map(|_| None).collect();
            parallel::for_each(
                self.options.threads,
                batch.clone().zip(&mut choices).collect(),
                |(index, slot)| {
                    let threads = parallel::share(self.options.threads, pieces[index].extent.len, total);
                    *slot = Some(self.choose(&pieces, index, earlier[index], threads)?);
                    advance(self.options.observer, 0)
                },
            )?;
            for (index, choice) in batch.zip(choices) {
                let piece = &pieces[index];
                let bytes = self.target.reader.catalog().sources.bytes(piece.extent)?;
                hasher.write(&bytes);
                let stored = match choice {
                    Some(Choice::Stored(stored)) => stored,
                    Some(Choice::Equal(first)) => match segment_of[first] {
                        Some(segment) => vec![(piece.extent.len, Stored::Same(segment))],
                        // The other one is in two segments, so this one will be, too.
                        None => self.encode(piece.part, &bytes, self.options.threads)?,
                    },
                    None => return Err(Error::invalid("a worker left a tensor behind")),
                };
                let name = piece.part.map_or("", |part| &self.target.parts[part].name);
                stats.count(name, &stored);
                let single = stored.len() == 1;
                for (len, stored) in &stored {
                    let segment = output.segment(name, *len, stored)?;
                    if single && !matches!(stored, Stored::Same(_)) {
                        segment_of[index] = Some(segment);
                    }
                }
                stats.target_len += piece.extent.len;
                advance(self.options.observer, piece.extent.len)?;
            }
        }
        let (base, target) = (self.base.digest(&self.base_prints)?, self.target.digest(&self.target_prints)?);
        stats.delta_len = output.finish(base, target, hasher.finish_128())?;
        finish(self.options.observer)?;
        Ok(stats)
    }

    fn choose(
        &self,
        pieces: &[Piece],
        index: usize,
        earlier: Option<usize>,
        threads: usize,
    ) -> Result<Choice> {
        let piece = &pieces[index];
        let sources = &self.target.reader.catalog().sources;
        let content = sources.bytes(piece.extent)?;
        if let Some(part) = piece.part
            && let Some(place) = self.copy_of(part, &content)?
        {
            return Ok(Choice::Stored(vec![(piece.extent.len, Stored::Copy(place))]));
        }
        // Equal hashes mean equal bytes unless the collision is forged: compare.
        if let Some(first) = earlier
            && sources.bytes(pieces[first].extent)? == content
        {
            return Ok(Choice::Equal(first));
        }
        self.encode(piece.part, &content, threads).map(Choice::Stored)
    }

    /// Where the base has the same bytes, under the same name if it does.
    fn copy_of(&self, part: usize, content: &[u8]) -> Result<Option<Place>> {
        let Some(candidates) = self.by_content.get(&self.target_prints[part]) else { return Ok(None) };
        let namesake = self.base.find(&self.target.parts[part].name, &self.target.parts[part].role);
        let first = candidates.iter().find(|index| namesake == Some(**index)).unwrap_or(&candidates[0]);
        if *self.base.content(*first, 1)? != *content {
            return Ok(None);
        }
        Ok(Some(self.place(*first)))
    }

    fn place(&self, part: usize) -> Place {
        let part = &self.base.parts[part];
        Place { name: part.name.clone(), role: part.role.clone(), offset: 0 }
    }

    /// The smallest way to store a piece that the base does not have.
    fn encode(&self, part: Option<usize>, content: &[u8], threads: usize) -> Result<Vec<(u64, Stored)>> {
        let full = self.full(part, content, 0, threads)?;
        let Some(found) = part.map(|part| self.matcher.find(part, content)).transpose()?.flatten() else {
            return Ok(vec![(content.len() as u64, full)]);
        };
        let (common, rest) = content.split_at(found.common as usize);
        let reference = self.base.content(found.part, threads)?;
        let options = self.codec_options(part, common.len() as u64, threads)?;
        let delta = z4ai::delta::compress(common, &reference[..common.len()], &options);
        let delta = delta.map_err(not_encoded)?;
        drop(reference);
        let mut parts = vec![(found.common, Stored::Delta(delta, self.place(found.part)))];
        if !rest.is_empty() {
            parts.push((rest.len() as u64, self.full(part, rest, found.common, threads)?));
        }
        // An entry of the index for each part, with a name of its own.
        let cost = |parts: &[(u64, Stored)]| parts.iter().map(|(_, stored)| stored.cost()).sum::<usize>();
        let full = vec![(content.len() as u64, full)];
        Ok(if cost(&parts) < cost(&full) { parts } else { full })
    }

    /// A frame, or the bytes themselves where that is not smaller.
    fn full(&self, part: Option<usize>, content: &[u8], skipped: u64, threads: usize) -> Result<Stored> {
        let mut options = self.codec_options(part, content.len() as u64 + skipped, threads)?;
        if skipped > 0 {
            (options.shape, options.blocks) = (Vec::new(), None);
        }
        let frame = z4ai::compress(content, &options).map_err(not_encoded)?;
        Ok(if frame.len() < content.len() { Stored::Frame(frame) } else { Stored::Raw(content.to_vec()) })
    }

    fn codec_options(&self, part: Option<usize>, len: u64, threads: usize) -> Result<z4ai::Options> {
        let mut options = match part {
            Some(part) => {
                let (object, component) = self.target.part(part)?;
                let effort = self.options.effort;
                match GgmlType::from_layout_name(object.layout.name()) {
                    Some(blocks) => block_options(blocks, &object.shape, len, effort, threads),
                    None => codec_options(component.dtype, &object.shape, len, effort, threads),
                }
            }
            None => z4ai::Options { effort: self.options.effort, threads, ..z4ai::Options::default() },
        };
        options.level = self.options.level;
        Ok(options)
    }
}

impl Stored {
    /// Bytes in the delta, with those of its entry in the index.
    fn cost(&self) -> usize {
        const ENTRY: usize = 48;
        match self {
            Stored::Frame(blob) | Stored::Raw(blob) => blob.len() + ENTRY,
            Stored::Delta(blob, place) => blob.len() + ENTRY + place.name.len(),
            Stored::Copy(_) | Stored::Same(_) => ENTRY,
        }
    }
}

impl MakeStats {
    fn count(&mut self, name: &str, stored: &[(u64, Stored)]) {
        let Some((_, stored)) = stored.first().filter(|_| !name.is_empty()) else { return };
        let counter = match stored {
            Stored::Copy(place) if place.name == name => &mut self.copied,
            Stored::Copy(_) => &mut self.renamed,
            Stored::Delta(..) => &mut self.deltas,
            Stored::Frame(_) | Stored::Raw(_) => &mut self.full,
            Stored::Same(_) => &mut self.shared,
        };
        *counter += 1;
    }
}

/// Runs of pieces small enough to hold what becomes of them in memory, or one piece.
fn batches(pieces: &[Piece], threads: usize) -> impl Iterator<Item = Range<usize>> {
    let budget = (16 << 20) * parallel::resolve(threads) as u64;
    let mut next = 0;
    std::iter::from_fn(move || {
        let start = next;
        let mut bytes = 0u64;
        while next < pieces.len() && (next == start || bytes + pieces[next].extent.len <= budget) {
            bytes += pieces[next].extent.len;
            next += 1;
        }
        (start < next).then_some(start..next)
    })
}
