//! Chunked datasets, decoded by range: only the chunks that a range touches,
//! several at a time.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hdf5_reader::btree_v1::{BTreeV1Key, collect_btree_v1_leaves_storage};
use hdf5_reader::chunk_index::{
    ChunkEntry, collect_implicit_chunk_entries, collect_v2_chunk_entries_storage, single_chunk_entry,
};
use hdf5_reader::extensible_array::collect_extensible_array_chunk_entries_storage;
use hdf5_reader::fixed_array::collect_fixed_array_chunk_entries_storage;

use crate::base::parallel;
use crate::base::pool::FreeList;
use crate::catalog::{Decode, Extent, elements};
use crate::error::{Error, Result};
use crate::format::hdf5::fields::Widths;
use crate::format::hdf5::filter::{Pipeline, Scratch};
use crate::format::hdf5::message::{Chunking, Dataspace, Filter, Index};
use crate::format::hdf5::store::{Budget, Store, structure};
use crate::format::hdf5::walk::File;
use crate::source::{Sources, zeroed};

/// Work is handed to threads in pieces of at least this many bytes.
const MIN_JOB: u64 = 1 << 20;
/// Chunks up to this size, or four times the dataset's, are decoded.
const MAX_CHUNK: u64 = 256 << 20;
/// The chunks of a dataset have together at most this many times its bytes, or [`MAX_CHUNK`]: each is
/// decoded whole, although only one of its elements may be inside. Chunks of the usual libraries
/// reach over the edge of large datasets by a small factor.
const MAX_EXCESS: u64 = 64;

/// The value of elements that were never written.
#[derive(Debug, Clone)]
pub(super) struct Fill {
    /// One element, unless it is all zeros.
    value: Option<Arc<[u8]>>,
}

impl Fill {
    pub(super) fn new(value: Option<Arc<[u8]>>, element: u64) -> Result<Fill> {
        let value = value.filter(|value| value.iter().any(|&byte| byte != 0));
        match &value {
            Some(value) if value.len() as u64 != element => Err(Error::corrupt(
                "hdf5.fill",
                format!("the fill value has {} bytes, an element {element}", value.len()),
            )),
            _ => Ok(Fill { value }),
        }
    }

    /// Fills bytes that start at `start` of the dataset.
    fn write(&self, start: u64, out: &mut [u8]) {
        match &self.value {
            None => out.fill(0),
            Some(value) => {
                let shift = (start % value.len() as u64) as usize;
                out.iter_mut().zip(value.iter().cycle().skip(shift)).for_each(|(byte, &fill)| *byte = fill);
            }
        }
    }
}

impl Decode for Fill {
    fn encoding(&self) -> &str {
        "hdf5.fill"
    }

    fn stored_len(&self) -> u64 {
        0
    }

    fn extent(&self) -> Option<Extent> {
        None
    }

    fn decode(&self, _: &Sources, range: Range<u64>, out: &mut [u8], _: usize) -> Result<()> {
        self.write(range.start, out);
        Ok(())
    }
}

/// A chunk that is in the file.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    /// Its place in the row-major grid of chunks.
    number: u64,
    extent: Extent,
    /// Filters that were not applied to it, one bit each.
    skipped: u32,
}

/// A dataset that is cut into chunks.
#[derive(Debug)]
pub(super) struct Chunked {
    source: u32,
    /// Where in the source the file is.
    place: Range<u64>,
    widths: Widths,
    chunking: Chunking,
    shape: Vec<u64>,
    max: Option<Vec<u64>>,
    /// How many chunks there are along each dimension.
    grid: Vec<u64>,
    /// Bytes of an element, and of a whole chunk.
    element: u64,
    chunk_len: u64,
    pipeline: Pipeline,
    fill: Fill,
    len: u64,
    /// The chunks by number, read when first needed.
    index: OnceLock<Vec<Chunk>>,
    /// Held while the index is read, so that it is read once.
    reading: Mutex<()>,
    /// What may still be read of the file's structures, by all datasets together.
    budget: Budget,
}

impl Chunked {
    pub(super) fn new(
        file: &File,
        chunking: Chunking,
        space: &Dataspace,
        element: u64,
        filters: Vec<Filter>,
        fill: Fill,
        len: u64,
    ) -> Result<Chunked> {
        let broken = |what: String| Error::corrupt("hdf5.chunk", what);
        let shape = space.shape.to_vec();
        if chunking.shape.len() != shape.len() || shape.is_empty() || chunking.shape.contains(&0) {
            return Err(broken(format!(
                "chunks of shape {:?} cannot cut a dataset of shape {shape:?}",
                chunking.shape
            )));
        }
        let sizes: Vec<u64> = chunking.shape.iter().map(|&size| u64::from(size)).collect();
        let chunk_len = elements(&sizes).and_then(|count| count.checked_mul(element));
        let chunk_len = chunk_len.filter(|&len| len <= u64::from(u32::MAX));
        let chunk_len = chunk_len
            .ok_or_else(|| broken(format!("a chunk of shape {sizes:?} has more than 2^32 bytes")))?;
        let grid: Vec<u64> = shape.iter().zip(&sizes).map(|(size, chunk)| size.div_ceil(*chunk)).collect();
        Ok(Chunked {
            source: file.source,
            place: file.store.range(),
            widths: file.widths,
            shape,
            max: space.max.clone(),
            grid,
            element,
            chunk_len,
            pipeline: Pipeline::new(filters),
            fill,
            len,
            index: OnceLock::new(),
            reading: Mutex::new(()),
            budget: file.store.budget(),
            chunking,
        })
    }

    fn index(&self, sources: &Sources) -> Result<&[Chunk]> {
        if let Some(index) = self.index.get() {
            return Ok(index);
        }
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = self.index.get() {
            return Ok(index);
        }
        let chunks = self.read_index(sources)?;
        Ok(self.index.get_or_init(|| chunks))
    }

    fn read_index(&self, sources: &Sources) -> Result<Vec<Chunk>> {
        let Chunking { address, index, shape: ref chunk, .. } = self.chunking;
        if self.widths.is_undefined(address) {
            return Ok(Vec::new());
        }
        let source = sources.get(self.source)?.clone();
        let store = Store::with_budget(source, self.place.clone(), self.budget.clone());
        let Widths { offset, length } = self.widths;
        let rank = self.shape.len() as u32;
        let entries = match index {
            Index::BTree1 => {
                collect_btree_v1_leaves_storage(&store, address, offset, length, Some(rank), chunk, None)
                    .map(|leaves| leaves.into_iter().filter_map(leaf).collect())
            }
            Index::Single { filtered } => {
                let (size, skipped) = filtered.unwrap_or((self.chunk_len, 0));
                Ok(vec![single_chunk_entry(address, size, skipped, self.shape.len())])
            }
            Index::Implicit => collect_implicit_chunk_entries(
                address,
                &self.shape,
                chunk,
                self.element as usize,
                None,
                self.place.end - self.place.start,
            ),
            Index::FixedArray => collect_fixed_array_chunk_entries_storage(
                &store,
                address,
                offset,
                length,
                &self.shape,
                chunk,
                None,
            ),
            Index::ExtensibleArray => collect_extensible_array_chunk_entries_storage(
                &store,
                address,
                offset,
                length,
                &self.shape,
                self.max.as_deref(),
                chunk,
                None,
            ),
            Index::BTree2 => {
                collect_v2_chunk_entries_storage(&store, address, offset, length, rank, chunk, None)
            }
        };
        let mut chunks = Vec::new();
        for entry in entries.map_err(structure)? {
            chunks.extend(self.chunk(&store, entry)?);
        }
        chunks.sort_unstable_by_key(|chunk| chunk.number);
        match chunks.windows(2).find(|pair| pair[0].number == pair[1].number) {
            None => Ok(chunks),
            Some(pair) => Err(Error::corrupt(
                "hdf5.chunk",
                format!("the index has chunk number {} twice", pair[0].number),
            )),
        }
    }

    /// What an entry of the index says, unless the chunk was never written or
    /// lies outside a dataset that has shrunk.
    fn chunk(&self, store: &Store, entry: ChunkEntry) -> Result<Option<Chunk>> {
        if self.widths.is_undefined(entry.address) || entry.offsets.len() < self.shape.len() {
            return Ok(None);
        }
        let mut number = 0u64;
        for (axis, &offset) in entry.offsets[..self.shape.len()].iter().enumerate() {
            let size = u64::from(self.chunking.shape[axis]);
            if offset >= self.shape[axis] {
                return Ok(None);
            }
            if offset % size != 0 {
                return Err(Error::corrupt(
                    "hdf5.chunk",
                    format!("a chunk is at {offset} where chunks are {size} long"),
                ));
            }
            // Both are below the dataset's element count, which fits.
            number = number.wrapping_mul(self.grid[axis]).wrapping_add(offset / size);
        }
        let len = if entry.size == 0 { self.chunk_len } else { entry.size };
        let offset = store.locate(entry.address, len)?;
        let extent = Extent { source: self.source, offset, len };
        Ok(Some(Chunk { number, extent, skipped: entry.filter_mask }))
    }

    /// Whether a chunk reaches over the dataset's edge.
    fn is_partial(&self, origin: &[u64]) -> bool {
        origin
            .iter()
            .zip(&self.shape)
            .zip(&self.chunking.shape)
            .any(|((&at, &size), &chunk)| size - at < u64::from(chunk))
    }

    /// The first element of a chunk, by dimension.
    fn origin(&self, mut number: u64) -> Vec<u64> {
        let mut origin = vec![0; self.grid.len()];
        for axis in (0..origin.len()).rev() {
            origin[axis] = number % self.grid[axis] * u64::from(self.chunking.shape[axis]);
            number /= self.grid[axis];
        }
        origin
    }

    /// Decodes a whole chunk.
    fn decode_chunk(
        &self,
        sources: &Sources,
        chunk: &Chunk,
        origin: &[u64],
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<()> {
        let unfiltered = self.chunking.edges_unfiltered && self.is_partial(origin);
        let skipped = if unfiltered { u32::MAX } else { chunk.skipped };
        if self.pipeline.is_raw(skipped) {
            if chunk.extent.len != self.chunk_len {
                return Err(Error::corrupt(
                    "hdf5.chunk",
                    format!("a chunk has {} bytes instead of {}", chunk.extent.len, self.chunk_len),
                ));
            }
            return sources.read(chunk.extent, 0, out);
        }
        sources.with_whole(chunk.extent, |stored| self.pipeline.decode(stored, skipped, scratch, out))
    }

    /// How much of a chunk is inside the dataset, by dimension, and the dimension
    /// from which on that is one run: dimensions that the chunk spans whole join
    /// into one run with the one before.
    fn inside(&self, origin: &[u64]) -> (Vec<u64>, usize) {
        let sizes = self.chunking.shape.iter().zip(&self.shape).zip(origin);
        let inside: Vec<u64> = sizes.map(|((&chunk, &size), &at)| u64::from(chunk).min(size - at)).collect();
        let whole = |axis: usize| {
            inside[axis] == self.shape[axis] && inside[axis] == u64::from(self.chunking.shape[axis])
        };
        let axis = (1..inside.len()).rev().find(|&axis| !whole(axis)).unwrap_or(0);
        (inside, axis)
    }

    /// Bytes from one index to the next, by dimension, in an array of that shape.
    fn strides(&self, shape: impl Fn(usize) -> u64) -> Vec<u64> {
        let mut strides = vec![self.element; self.shape.len()];
        for axis in (1..strides.len()).rev() {
            strides[axis - 1] = strides[axis] * shape(axis);
        }
        strides
    }

    /// The runs of bytes that a chunk and the dataset have in common: where in
    /// the dataset, where in the chunk, and how long.
    fn runs(&self, origin: &[u64], mut each: impl FnMut(u64, usize, u64)) {
        let (inside, run_axis) = self.inside(origin);
        let run = inside[run_axis..].iter().product::<u64>() * self.element;
        let outer = self.strides(|axis| self.shape[axis]);
        let inner = self.strides(|axis| u64::from(self.chunking.shape[axis]));
        let mut at = vec![0u64; run_axis];
        loop {
            let (mut to, mut from) = (0, 0);
            for axis in 0..inside.len() {
                let index = at.get(axis).copied().unwrap_or(0);
                to += (origin[axis] + index) * outer[axis];
                from += index * inner[axis];
            }
            each(to, from as usize, run);
            let Some(axis) = (0..run_axis).rev().find(|&axis| at[axis] + 1 < inside[axis]) else {
                return;
            };
            at[axis] += 1;
            at[axis + 1..].fill(0);
        }
    }

    /// Copies what a decoded chunk and `out`, which starts at byte `start` of
    /// the dataset, have in common.
    fn scatter(&self, origin: &[u64], decoded: &[u8], start: u64, out: &mut [u8]) {
        let end = start + out.len() as u64;
        self.runs(origin, |to, from, len| {
            let (first, last) = (to.max(start), (to + len).min(end));
            if first < last {
                let from = from + (first - to) as usize;
                let count = (last - first) as usize;
                out[(first - start) as usize..][..count].copy_from_slice(&decoded[from..][..count]);
            }
        });
    }

    /// Whether a chunk's decoded bytes are one run of the dataset, wholly inside
    /// `range`, so that they can be decoded in place. Says where it starts.
    fn in_place(&self, origin: &[u64], range: &Range<u64>) -> Option<u64> {
        let (_, run_axis) = self.inside(origin);
        if self.is_partial(origin) || run_axis > 0 {
            return None;
        }
        // Only the first dimension can have chunks behind each other.
        let start = origin[0] * self.strides(|axis| self.shape[axis])[0];
        (start >= range.start && start + self.chunk_len <= range.end).then_some(start)
    }

    /// Decodes `chunks` one after the other into `out`.
    fn decode_into(
        &self,
        sources: &Sources,
        chunks: &[Chunk],
        start: u64,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let range = start..start + out.len() as u64;
        let mut whole = std::mem::take(&mut scratch.chunk);
        for chunk in chunks {
            let origin = self.origin(chunk.number);
            if !self.touches(&origin, &range) {
                continue;
            }
            match self.in_place(&origin, &range) {
                Some(to) => {
                    let place = &mut out[(to - start) as usize..][..self.chunk_len as usize];
                    self.decode_chunk(sources, chunk, &origin, scratch, place)?;
                }
                None => {
                    if whole.is_empty() {
                        whole = zeroed(self.chunk_len)?;
                    }
                    self.decode_chunk(sources, chunk, &origin, scratch, &mut whole)?;
                    self.scatter(&origin, &whole, start, out);
                }
            }
        }
        scratch.chunk = whole;
        Ok(())
    }

    /// Whether any of a chunk lies between its first and last byte in `range`.
    fn touches(&self, origin: &[u64], range: &Range<u64>) -> bool {
        let position = |corner: &dyn Fn(usize) -> u64| {
            (0..self.shape.len()).fold(0, |linear, axis| linear * self.shape[axis] + corner(axis))
                * self.element
        };
        let first = position(&|axis| origin[axis]);
        let last =
            position(&|axis| (origin[axis] + u64::from(self.chunking.shape[axis])).min(self.shape[axis]) - 1);
        first < range.end && last + self.element > range.start
    }

    /// Refuses chunks that are together far larger than what is inside the dataset.
    fn check_excess(&self, chunks: u64) -> Result<()> {
        let (decoded, most) =
            (chunks.saturating_mul(self.chunk_len), MAX_CHUNK.max(self.len.saturating_mul(MAX_EXCESS)));
        if decoded <= most {
            return Ok(());
        }
        Err(Error::limit(format!(
            "its {chunks} chunks have {} bytes each, together far more than the {} of the whole",
            self.chunk_len, self.len
        )))
    }

    /// As `decode`, for a range of whole elements.
    fn decode_elements(&self, sources: &Sources, start: u64, out: &mut [u8], threads: usize) -> Result<()> {
        let index = self.index(sources)?;
        self.check_excess(index.len() as u64)?;
        let total = elements(&self.grid).unwrap_or(u64::MAX);
        if index.len() as u64 != total {
            self.fill.write(start, out);
        }
        // A band is a row of chunks: a contiguous part of the dataset.
        let band = (self.len / self.shape[0]).saturating_mul(u64::from(self.chunking.shape[0]));
        let per_band = elements(&self.grid[1..]).unwrap_or(u64::MAX);
        let end = start + out.len() as u64;
        let (first, last) = (start / band, end.div_ceil(band));
        let chunks_of = |bands: Range<u64>| {
            let from = index.partition_point(|chunk| chunk.number < bands.start.saturating_mul(per_band));
            let to = index.partition_point(|chunk| chunk.number < bands.end.saturating_mul(per_band));
            &index[from..to]
        };
        let pool = FreeList::<Scratch>::default();
        if threads > 1 && last - first < threads as u64 {
            let chunks = chunks_of(first..last);
            return self.decode_side_by_side(sources, chunks, start, out, threads);
        }
        let bands_per_job = (MIN_JOB / band).max(1);
        let mut jobs = Vec::new();
        let (mut rest, mut at, mut next) = (out, start, first);
        while next < last {
            let stop = (next + bands_per_job).min(last);
            let len = stop.saturating_mul(band).min(end) - at;
            let (piece, tail) = rest.split_at_mut(len as usize);
            jobs.push((chunks_of(next..stop), at, piece));
            (rest, at, next) = (tail, at + len, stop);
        }
        parallel::for_each(threads, jobs, |(chunks, at, piece)| {
            let mut scratch = pool.take().unwrap_or_default();
            let outcome = self.decode_into(sources, chunks, at, piece, &mut scratch);
            pool.put(scratch);
            outcome
        })
    }

    /// Chunks that lie side by side: decoded in parallel, a few at a time, and
    /// then copied to their places.
    fn decode_side_by_side(
        &self,
        sources: &Sources,
        chunks: &[Chunk],
        start: u64,
        out: &mut [u8],
        threads: usize,
    ) -> Result<()> {
        let range = start..start + out.len() as u64;
        let wanted: Vec<(&Chunk, Vec<u64>)> = chunks
            .iter()
            .map(|chunk| (chunk, self.origin(chunk.number)))
            .filter(|(_, origin)| self.touches(origin, &range))
            .collect();
        let mut buffers: Vec<(Vec<u8>, Scratch)> = Vec::new();
        buffers.resize_with((threads * 2).min(wanted.len()), Default::default);
        for batch in wanted.chunks(buffers.len().max(1)) {
            let jobs: Vec<_> = batch.iter().zip(&mut buffers).collect();
            parallel::for_each(threads, jobs, |((chunk, origin), (whole, scratch))| {
                if whole.is_empty() {
                    *whole = zeroed(self.chunk_len)?;
                }
                self.decode_chunk(sources, chunk, origin, scratch, whole)
            })?;
            for ((_, origin), (whole, _)) in batch.iter().zip(&buffers) {
                self.scatter(origin, whole, start, out);
            }
        }
        Ok(())
    }
}

fn leaf((key, address): (BTreeV1Key, u64)) -> Option<ChunkEntry> {
    match key {
        BTreeV1Key::RawData { chunk_size, filter_mask, offsets } => {
            Some(ChunkEntry { address, size: u64::from(chunk_size), filter_mask, offsets })
        }
        _ => None,
    }
}

impl Decode for Chunked {
    fn encoding(&self) -> &str {
        self.pipeline.name()
    }

    fn stored_len(&self) -> u64 {
        // Known once the index was read; until then, as much as it decodes to.
        self.index.get().map_or(self.len, |chunks| chunks.iter().map(|chunk| chunk.extent.len).sum())
    }

    fn extent(&self) -> Option<Extent> {
        None
    }

    fn extents(&self, sources: &Sources) -> Result<Vec<Extent>> {
        Ok(self.index(sources)?.iter().map(|chunk| chunk.extent).collect())
    }

    fn work(&self, range: &Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        // All chunks of the bands that the range touches, as if all were in the file.
        let band = (self.len / self.shape[0]).saturating_mul(u64::from(self.chunking.shape[0])).max(1);
        let bands = range.end.div_ceil(band) - range.start / band;
        let per_band = elements(&self.grid[1..]).unwrap_or(u64::MAX);
        bands.saturating_mul(per_band).saturating_mul(self.chunk_len)
    }

    fn decode(&self, sources: &Sources, range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        if self.chunk_len > MAX_CHUNK.max(self.len.saturating_mul(4)) {
            return Err(Error::limit(format!(
                "its chunks have {} bytes each, far more than the {} of the whole",
                self.chunk_len, self.len
            )));
        }
        let (start, end) =
            (range.start / self.element * self.element, range.end.next_multiple_of(self.element));
        let threads = parallel::resolve(threads);
        if (start, end) == (range.start, range.end) {
            return self.decode_elements(sources, start, out, threads);
        }
        // A range that cuts an element: decode the elements it touches.
        let mut whole = zeroed(end - start)?;
        self.decode_elements(sources, start, &mut whole, threads)?;
        out.copy_from_slice(&whole[(range.start - start) as usize..][..out.len()]);
        Ok(())
    }
}
