//! Tensors that lie in pieces in several files, put together in new ones.
//!
//! Where everything belongs is known beforehand, so threads do not wait for each other: each
//! takes some rows of a tensor, puts them together in memory that stays in its cache, and writes
//! them with one call. The system lets one thread at a time write to a file; the others read
//! meanwhile. Every byte is read once, and compared with its checksum on the way.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::base::crc32c_combine;
use crate::base::huge_pages::zeroed_vec;
use crate::base::parallel;
use crate::catalog::{Component, Storage};
use crate::digest::{Digest, Hasher};
use crate::error::{Error, Result};
use crate::partition;
use crate::platform;
use crate::progress::{Observer, advance};
use crate::read::Runs;
use crate::read::{Reader, compare};

/// A box of a tensor, stored as a dense tensor of its own.
#[derive(Debug, Clone)]
pub struct Chunk<'a> {
    /// The file that it is in.
    pub reader: &'a Reader,
    /// Its name there.
    pub name: &'a str,
    /// Where it starts in each dimension of the whole tensor.
    pub offsets: &'a [u64],
    /// How far it reaches in each dimension.
    pub sizes: &'a [u64],
}

/// A tensor that is put together, and the place that it goes to.
#[derive(Debug, Clone)]
pub struct Assembly<'a> {
    /// The file, which must be there.
    pub file: &'a Path,
    /// Where its bytes start in the file.
    pub offset: u64,
    /// Bytes of one item. Sub-byte elements are counted in whole bytes by the caller.
    pub item: u64,
    /// Sizes of the dimensions, in items.
    pub shape: &'a [u64],
    /// What it is made of: boxes that do not overlap and leave nothing out.
    pub chunks: Vec<Chunk<'a>>,
}

/// Rows are put together up to about this many bytes. They, the parts they are made of and what the
/// system copies both from and to stay in the cache of a core meanwhile; blocks four times as long
/// took an eighth longer. (case: `distributed.py`, consolidate from columns)
const PLAIN_BLOCK: u64 = 256 << 10;

/// Decoding a few rows may take decoding others beside them: less of that for longer blocks.
/// (structural: 32 chunks of a frame)
const DECODED_BLOCK: u64 = 8 << 20;

/// Puts tensors together, on several threads (0 is one per core).
pub fn assemble(assemblies: &[Assembly<'_>], threads: usize, observer: Option<&dyn Observer>) -> Result<()> {
    let plans: Vec<Plan<'_>> = assemblies.iter().map(Plan::new).collect::<Result<_>>()?;
    let mut blocks: Vec<(&Plan<'_>, Range<u64>)> = Vec::new();
    for plan in &plans {
        let rows = plan.rows_of_block();
        let starts = (0..plan.rows).step_by(usize::try_from(rows).unwrap_or(usize::MAX));
        blocks.extend(starts.map(|first| (plan, first..plan.rows.min(first + rows))));
    }
    // Files that are written from front to back are written faster.
    blocks.sort_by_key(|(plan, rows)| (plan.file, plan.offset + rows.start * plan.row));
    let threads = parallel::resolve(threads);
    let apart = plans.iter().flat_map(|plan| &plan.parts).filter(|part| part.is_checked_apart()).collect();
    parallel::for_each(threads, apart, |part: &ChunkRows<'_>| {
        part.chunk.reader.verify(part.chunk.name).map(drop)
    })?;
    let total = blocks.iter().map(|(plan, rows)| (rows.end - rows.start) * plan.row).sum();
    let unused = Mutex::new(Vec::<Workspace<'_>>::new());
    parallel::for_each(threads, blocks, |(plan, rows)| {
        let mut workspace = lock(&unused).pop().unwrap_or_default();
        let bytes = (rows.end - rows.start) * plan.row;
        plan.place(rows, &mut workspace, parallel::share(threads, bytes, total))?;
        lock(&unused).push(workspace);
        advance(observer, bytes)
    })?;
    plans.iter().try_for_each(Plan::compare)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a thread keeps from one block to the next.
#[derive(Default)]
struct Workspace<'a> {
    rows: Vec<u8>,
    chunk: Vec<u8>,
    file: Option<(&'a Path, File)>,
}

/// The first `len` bytes of memory that was used before, or new one.
fn memory(buffer: &mut Vec<u8>, len: u64) -> Result<&mut [u8]> {
    if (buffer.len() as u64) < len {
        *buffer = zeroed_vec(len)?;
    }
    Ok(&mut buffer[..len as usize])
}

/// A tensor whose chunks were looked at.
struct Plan<'a> {
    file: &'a Path,
    offset: u64,
    item: u64,
    /// All sizes but that of the first dimension.
    inner: Vec<u64>,
    rows: u64,
    /// Bytes of a row.
    row: u64,
    parts: Vec<ChunkRows<'a>>,
}

/// A chunk of a tensor, in rows.
struct ChunkRows<'a> {
    chunk: Chunk<'a>,
    component: &'a Component,
    /// The rows of the tensor that it has a part of.
    rows: Range<u64>,
    /// Offsets and sizes in the other dimensions.
    inner: (Vec<u64>, Vec<u64>),
    /// Bytes of its part of a row.
    row: u64,
    /// Checksums of the pieces that were read, and where they start.
    seen: Mutex<Vec<(u64, u64, u32)>>,
}

impl<'a> Plan<'a> {
    fn new(assembly: &Assembly<'a>) -> Result<Plan<'a>> {
        let Assembly { file, offset, item, shape, .. } = *assembly;
        let too_large = || Error::invalid("the sizes of the tensor overflow").in_file(file);
        let bytes = |sizes: &[u64]| sizes.iter().try_fold(item, |bytes, size| bytes.checked_mul(*size));
        let total = bytes(shape).ok_or_else(too_large)?;
        offset.checked_add(total).ok_or_else(too_large)?;
        let boxes: Vec<_> = assembly.chunks.iter().map(|chunk| (chunk.offsets, chunk.sizes)).collect();
        partition::prove(shape, &boxes).map_err(|error| error.in_file(file))?;
        let empty = |chunk: &&Chunk<'_>| chunk.sizes.contains(&0);
        let chunks: Vec<&Chunk<'a>> = assembly.chunks.iter().filter(|chunk| !empty(chunk)).collect();
        // Chunks of whole rows are as good as bytes, and can be cut anywhere.
        let by_rows = shape.is_empty() || chunks.iter().all(|chunk| chunk.sizes[1..] == shape[1..]);
        let row = match shape.first() {
            _ if by_rows => 1,
            Some(0) | None => 1,
            Some(rows) => total / rows,
        };
        let inner = if by_rows { Vec::new() } else { shape[1..].to_vec() };
        let parts = chunks
            .into_iter()
            .map(|chunk| ChunkRows::new(chunk, by_rows, item, shape))
            .collect::<Result<_>>()?;
        let item = if by_rows { 1 } else { item };
        Ok(Plan { file, offset, item, inner, rows: total.checked_div(row).unwrap_or(0), row, parts })
    }

    /// How many rows are put together at a time.
    fn rows_of_block(&self) -> u64 {
        let block = self.parts.iter().map(ChunkRows::block).max().unwrap_or(PLAIN_BLOCK);
        (block / self.row).clamp(1, self.rows.max(1))
    }

    /// Puts rows together and writes them to their place.
    fn place(&self, rows: Range<u64>, workspace: &mut Workspace<'a>, threads: usize) -> Result<()> {
        let Workspace { rows: buffer, chunk: scratch, file } = workspace;
        let out = memory(buffer, (rows.end - rows.start) * self.row)?;
        for part in &self.parts {
            let (first, last) = (rows.start.max(part.rows.start), rows.end.min(part.rows.end));
            if first >= last {
                continue;
            }
            let range = (first - part.rows.start) * part.row..(last - part.rows.start) * part.row;
            if part.row == self.row {
                let at = ((first - rows.start) * self.row) as usize;
                part.read(range.clone(), &mut out[at..at + (range.end - range.start) as usize], threads)?;
                continue;
            }
            let stored = memory(scratch, range.end - range.start)?;
            part.read(range, stored, threads)?;
            let sizes = [&[rows.end - rows.start], &self.inner[..]].concat();
            let offsets = [&[first - rows.start], &part.inner.0[..]].concat();
            let lengths = [&[last - first], &part.inner.1[..]].concat();
            let runs = Runs::new(self.item, &sizes, &offsets, &lengths)?;
            runs.scatter(stored, out);
        }
        let failed = |error| Error::io("cannot write", error).in_file(self.file);
        if file.as_ref().is_none_or(|(path, _)| *path != self.file) {
            *file = Some((self.file, File::options().write(true).open(self.file).map_err(failed)?));
        }
        match file {
            Some((_, file)) => {
                platform::write_all_at(file, out, self.offset + rows.start * self.row).map_err(failed)
            }
            None => Ok(()),
        }
    }

    /// Compares the checksums of all chunks that have one.
    fn compare(&self) -> Result<()> {
        self.parts
            .iter()
            .try_for_each(|part| part.compare().map_err(|error| part.chunk.reader.at(part.chunk.name, error)))
    }
}

impl<'a> ChunkRows<'a> {
    fn new(chunk: &Chunk<'a>, by_rows: bool, item: u64, shape: &[u64]) -> Result<ChunkRows<'a>> {
        let component = chunk.reader.dense(chunk.name)?;
        let len = chunk.sizes.iter().product::<u64>() * item;
        if component.len != len {
            let message = format!("it has {} bytes, its place in the tensor {len}", component.len);
            return Err(chunk.reader.at(chunk.name, Error::corrupt("chunk.length", message)));
        }
        let chunk = chunk.clone();
        let seen = Mutex::default();
        if by_rows {
            let row = shape.iter().skip(1).product::<u64>() * item;
            let start = chunk.offsets.first().map_or(0, |offset| offset * row);
            let rows = start..start + len;
            return Ok(ChunkRows { chunk, component, rows, inner: (Vec::new(), Vec::new()), row: 1, seen });
        }
        let rows = chunk.offsets[0]..chunk.offsets[0] + chunk.sizes[0];
        let inner = (chunk.offsets[1..].to_vec(), chunk.sizes[1..].to_vec());
        let row = len / chunk.sizes[0];
        Ok(ChunkRows { chunk, component, rows, inner, row, seen })
    }

    /// Whether its bytes lie as they are in a file of this machine.
    fn is_plain(&self) -> bool {
        matches!(self.component.storage, Storage::Plain(_)) && !self.chunk.reader.is_remote(self.component)
    }

    /// Whether it has a digest that cannot be put together from those of its pieces.
    fn is_checked_apart(&self) -> bool {
        let digest = self.chunk.reader.digest(self.component);
        self.is_plain() && digest.is_some_and(|digest| !matches!(digest, Digest::Crc32c(_)))
    }

    /// Bytes of a block that suits the way it is stored. What is best had as a whole is then also
    /// compared with its digest; frames of the weight codec have checksums of their own.
    fn block(&self) -> u64 {
        match &self.component.storage {
            _ if self.is_plain() => PLAIN_BLOCK,
            _ if self.chunk.reader.is_remote(self.component) => u64::MAX,
            Storage::Encoded(decoder) if decoder.encoding() == "z4ai" => DECODED_BLOCK,
            _ => u64::MAX,
        }
    }

    fn read(&self, range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()> {
        let Chunk { reader, name, .. } = self.chunk;
        if self.block() == u64::MAX && range == (0..self.component.len) {
            return reader.read_component_into(name, "data", out);
        }
        let start = range.start;
        let read = self.component.storage.read(&reader.catalog().sources, range, out, threads);
        read.map_err(|error| reader.at(name, error))?;
        if self.is_plain() && matches!(reader.digest(self.component), Some(Digest::Crc32c(_))) {
            lock(&self.seen).push((start, out.len() as u64, crc32c::crc32c(out)));
        }
        Ok(())
    }

    fn compare(&self) -> Result<()> {
        let mut seen = lock(&self.seen);
        let (false, Some(digest)) = (seen.is_empty(), self.chunk.reader.digest(self.component)) else {
            return Ok(());
        };
        seen.sort_unstable();
        let whole = seen.iter().fold(0, |crc, (_, len, piece)| crc32c_combine::combine(crc, *piece, *len));
        compare(Hasher::Crc32c(whole), digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checksum, Compression, Effort, ErrorKind, OpenOptions, Writer};

    /// Files of one chunk each, and what they are made of.
    struct Files {
        folder: tempfile::TempDir,
        readers: Vec<Reader>,
    }

    /// Offsets and sizes of a chunk.
    type Region = (Vec<u64>, Vec<u64>);

    fn value(index: u64) -> u16 {
        (index.wrapping_mul(2_654_435_761) >> 7) as u16
    }

    /// The boxes of a tensor, cut in two or three parts along each dimension.
    fn boxes(shape: &[u64], cuts: &[u64]) -> Vec<Region> {
        let mut boxes = vec![(vec![], vec![])];
        for (size, parts) in shape.iter().zip(cuts) {
            let step = size.div_ceil(*parts).max(1);
            boxes = boxes
                .into_iter()
                .flat_map(|(offsets, sizes)| {
                    (0..(*size).max(1)).step_by(step as usize).map(move |start| {
                        let mut next = (offsets.clone(), sizes.clone());
                        next.0.push(start);
                        next.1.push(step.min(size - start));
                        next
                    })
                })
                .collect();
        }
        boxes
    }

    fn index(shape: &[u64], at: impl Iterator<Item = u64>) -> u64 {
        shape.iter().zip(at).fold(0, |index, (size, at)| index * size + at)
    }

    fn chunk_data(shape: &[u64], offsets: &[u64], sizes: &[u64]) -> Vec<u16> {
        (0..sizes.iter().product::<u64>())
            .map(|mut number| {
                let mut at: Vec<u64> = vec![0; sizes.len()];
                for (at, size) in at.iter_mut().zip(sizes).rev() {
                    (*at, number) = (number % size, number / size);
                }
                value(index(shape, at.iter().zip(offsets).map(|(at, offset)| at + offset)))
            })
            .collect()
    }

    fn files(shape: &[u64], boxes: &[Region], (compression, checksum): (Compression, Checksum)) -> Files {
        let folder = tempfile::tempdir().unwrap();
        let readers = boxes.iter().enumerate().map(|(number, (offsets, sizes))| {
            let path = folder.path().join(format!("{number}.zt"));
            let mut writer = Writer::create(&path).unwrap();
            let data = chunk_data(shape, offsets, sizes);
            writer.add_with("x", sizes, &data).compress(compression).checksum(checksum).write().unwrap();
            writer.finish().unwrap();
            OpenOptions::default().open(path).unwrap()
        });
        let readers = readers.collect();
        Files { folder, readers }
    }

    fn assembled(files: &Files, shape: &[u64], boxes: &[Region], threads: usize) -> Result<Vec<u8>> {
        let path = files.folder.path().join("out");
        std::fs::write(&path, b"0123456789").unwrap();
        let chunks = files.readers.iter().zip(boxes);
        let chunks =
            chunks.map(|(reader, (offsets, sizes))| Chunk { reader, name: "x", offsets, sizes }).collect();
        assemble(&[Assembly { file: &path, offset: 10, item: 2, shape, chunks }], threads, None)?;
        Ok(std::fs::read(path).unwrap())
    }

    #[test]
    fn any_cut_of_any_encoding() {
        let plain = (Compression::None, Checksum::Crc32c);
        let cases: [(&[u64], &[u64], _); 9] = [
            (&[70, 900, 33], &[1, 3, 1], plain),
            (&[1500, 1400], &[1, 2], plain),
            (&[1500, 1400], &[3, 1], plain),
            (&[1500, 1400], &[2, 2], (Compression::None, Checksum::None)),
            (&[1500, 1400], &[2, 3], (Compression::None, Checksum::Sha256)),
            (&[1500, 1400], &[1, 2], (Compression::Z4ai(Effort::Fast), Checksum::Crc32c)),
            (&[300, 1400], &[2, 2], (Compression::Zstd(1), Checksum::Crc32c)),
            (&[3_000_001], &[2], plain),
            (&[], &[], plain),
        ];
        for (shape, cuts, options) in cases {
            let boxes = boxes(shape, cuts);
            let files = files(shape, &boxes, options);
            for threads in [1, 3] {
                let found = assembled(&files, shape, &boxes, threads).unwrap();
                let expected: Vec<u8> =
                    (0..shape.iter().product::<u64>()).flat_map(|index| value(index).to_le_bytes()).collect();
                assert_eq!(&found[..10], b"0123456789");
                assert!(found[10..] == expected, "{shape:?} {cuts:?} {options:?}");
            }
        }
    }

    #[test]
    fn damage_and_chunks_that_do_not_fit_are_refused() {
        let shape = [1500, 1400];
        for cuts in [[1, 2], [2, 1]] {
            let boxes = boxes(&shape, &cuts);
            let files = files(&shape, &boxes, (Compression::None, Checksum::Crc32c));
            let extent = files.readers[1].dense("x").unwrap().extent().unwrap();
            let path = files.folder.path().join("1.zt");
            let at = extent.offset + extent.len / 2;
            let flipped = std::fs::read(&path).unwrap()[at as usize] ^ 1;
            // Without shortening it, which Windows refuses while it is mapped.
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            crate::write::disk::write_at(&file, at, &[flipped]).unwrap();
            let error = assembled(&files, &shape, &boxes, 2).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        }
        let boxes = boxes(&shape, &[1, 2]);
        let files = files(&shape, &boxes, (Compression::None, Checksum::None));
        let wrong = |change: fn(&mut Vec<Region>)| {
            let mut boxes = boxes.clone();
            change(&mut boxes);
            assembled(&files, &shape, &boxes, 2).map(drop).unwrap_err()
        };
        wrong(|boxes| boxes[0].0[1] = 701);
        wrong(|boxes| boxes[0].1[1] = 699);
        wrong(|boxes| boxes[0].1 = vec![1400, 750]);
        wrong(|boxes| drop(boxes.pop()));
        wrong(|boxes| boxes[1].0 = vec![700]);
        wrong(|boxes| boxes[1].0[0] = u64::MAX);
        wrong(|boxes| boxes[1].0[1] = 0);
    }
}
