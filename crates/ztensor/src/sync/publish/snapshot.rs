//! The state of a tensor that was published last, and how it becomes the next one.
//!
//! A new state is read once, block by block: it is compared, encoded and hashed while it is in the caches, and the
//! snapshot changes in place where it differs. The caller's memory may be changing meanwhile: payload, checksums and
//! snapshot are of the same bytes.

use std::path::Path;
use std::sync::Mutex;

use z4ai::delta::Comparison;

use super::super::checksum::{ChecksumFormat, Hasher, hex};
use super::super::index::{Encoding, PayloadCompression};
use super::super::patch::{self, Change};
use super::super::payload::{self, TensorType, ZstdEncoder};
use crate::base::file_memory::FileMemory;
use crate::base::{CACHE_BLOCK, parallel, zstd_sparse};
use crate::error::{Error, Result};
use crate::id::{ContentId, TensorHasher, tensor_id};
use crate::write::compress::not_encoded;

/// The state of a tensor that was published last.
pub(super) struct Kept {
    pub(super) of: TensorType,
    pub(super) bytes: Snapshot,
    pub(super) id: ContentId,
}

/// The bytes of a state.
pub(super) enum Snapshot {
    Memory(Vec<u8>),
    File(FileMemory),
}

impl std::ops::Deref for Snapshot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Snapshot::Memory(bytes) => bytes,
            Snapshot::File(bytes) => bytes,
        }
    }
}

impl std::ops::DerefMut for Snapshot {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Snapshot::Memory(bytes) => bytes,
            Snapshot::File(bytes) => bytes,
        }
    }
}

/// How payloads are made.
#[derive(Clone, Copy)]
pub(super) struct PayloadFormat {
    pub(super) compression: PayloadCompression,
    pub(super) encoding: Encoding,
    pub(super) checksum: ChecksumFormat,
}

/// How a tensor became what it is.
pub(super) struct Advanced {
    pub(super) payload: Vec<u8>,
    pub(super) change: Change,
    /// The id before.
    pub(super) base: ContentId,
    /// The checksum now.
    pub(super) digest: String,
}

impl Kept {
    /// A state in memory, or in a mapped file of `folder`.
    pub(super) fn new(of: TensorType, bytes: Vec<u8>, folder: Option<&Path>) -> Result<Kept> {
        let id = tensor_id(of.dtype, &of.shape, &bytes)?;
        let bytes = match folder {
            None => Snapshot::Memory(bytes),
            Some(folder) => Snapshot::File(FileMemory::copy_of(&bytes, folder)?),
        };
        Ok(Kept { of, bytes, id })
    }

    /// Turns it into the state `new` of the same length; `None` if nothing changed. `buffer` is scratch.
    pub(super) fn advance(
        &mut self,
        new: &[u8],
        format: PayloadFormat,
        threads: usize,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<Advanced>> {
        if *self.bytes == *new {
            return Ok(None);
        }
        let advanced = match format.compression {
            PayloadCompression::Z4ai => self.advance_by_delta(new, format, threads, buffer),
            PayloadCompression::Zstd => self.advance_by_blocks(new, format, threads),
        };
        match advanced {
            Ok((payload, change, Hashes { id, digest })) => {
                let base = std::mem::replace(&mut self.id, id);
                Ok((change.elements > 0).then_some(Advanced { payload, change, base, digest }))
            }
            Err(error) => {
                // It may be a mixture of both states.
                self.id = tensor_id(self.of.dtype, &self.of.shape, &self.bytes)?;
                Err(error)
            }
        }
    }

    /// By a z4ai delta, whose encoder finds what changed.
    fn advance_by_delta(
        &mut self,
        new: &[u8],
        format: PayloadFormat,
        threads: usize,
        buffer: &mut Vec<u8>,
    ) -> Result<(Vec<u8>, Change, Hashes)> {
        let TensorType { dtype, .. } = self.of;
        let options = payload::delta_options(&self.of, [&self.bytes, new], threads);
        // Elements that the codec does not know are compared beforehand, in a copy.
        let foreign = dtype.size() != Some(options.kind.size());
        let copy = foreign.then(|| new.to_vec());
        let new = copy.as_deref().unwrap_or(new);
        let before = foreign.then(|| patch::change(dtype, &self.bytes, new));
        let in_order = parallel::resolve(threads) == 1;
        let hashers = in_order.then(|| Hashers::new(&self.of, format.checksum)).transpose()?;
        // Sums of floating-point numbers depend on their order, and must not on the threads: chunk by chunk.
        let seen = Mutex::new((Vec::new(), hashers, Ok(())));
        let each = |chunk: z4ai::delta::EncodedChunk<'_>| {
            let [new, old] = chunk.elements;
            let change = (!foreign).then(|| patch::change(dtype, old, new));
            if let Ok(mut seen) = seen.lock() {
                let (changes, hashers, hashed) = &mut *seen;
                changes.push((chunk.start, change.unwrap_or_default()));
                if let (Some(hashers), Ok(())) = (hashers, &hashed) {
                    *hashed = hashers.update(chunk.content);
                }
            }
        };
        z4ai::delta::advance_into(new, &mut self.bytes, &options, buffer, &each).map_err(not_encoded)?;
        let (mut changes, hashers, hashed) =
            seen.into_inner().map_err(|_| Error::invalid("a thread that encoded a tensor panicked"))?;
        hashed?;
        changes.sort_by_key(|(start, _)| *start);
        let mut change = before.unwrap_or_default();
        changes.into_iter().for_each(|(_, part)| change.add(part));
        let hashes = match hashers {
            Some(hashers) => hashers.finish()?,
            None => Hashes::of(&self.of, &self.bytes, format.checksum, threads)?,
        };
        Ok((buffer.to_vec(), change, hashes))
    }

    /// By zstd, block by block.
    fn advance_by_blocks(
        &mut self,
        new: &[u8],
        format: PayloadFormat,
        threads: usize,
    ) -> Result<(Vec<u8>, Change, Hashes)> {
        let TensorType { dtype, .. } = self.of;
        let mut encoder = ZstdEncoder::new(format.encoding, new.len())?;
        let in_order = parallel::resolve(threads) == 1;
        let mut hashers = in_order.then(|| Hashers::new(&self.of, format.checksum)).transpose()?;
        let mut change = Change::default();
        let size = payload::element_size(dtype);
        let mut comparison = Comparison::default();
        for (state, new) in self.bytes.chunks_mut(zstd_sparse::BLOCK).zip(new.chunks(zstd_sparse::BLOCK)) {
            comparison.advance(size, new, state);
            let [now, before] = comparison.elements();
            change.add(patch::change(dtype, before, now));
            encoder.add(state.len(), size, &comparison)?;
            if let Some(hashers) = &mut hashers {
                hashers.update(state)?;
            }
        }
        let hashes = match hashers {
            Some(hashers) => hashers.finish()?,
            None => Hashes::of(&self.of, &self.bytes, format.checksum, threads)?,
        };
        Ok((encoder.finish()?, change, hashes))
    }
}

/// Id and checksum of a state.
struct Hashes {
    id: ContentId,
    digest: String,
}

impl Hashes {
    /// Of a whole state, by several threads.
    fn of(of: &TensorType, bytes: &[u8], checksum: ChecksumFormat, threads: usize) -> Result<Hashes> {
        let (id, hash) = TensorHasher::hash(of.dtype, &of.shape, bytes, threads)?;
        let digest = match checksum {
            ChecksumFormat::Blake3 => hex(&hash),
            _ => checksum.of(bytes),
        };
        Ok(Hashes { id, digest })
    }
}

/// Id and checksum of a state that comes block by block.
struct Hashers {
    ids: TensorHasher,
    /// `None`: BLAKE3, which is part of the id.
    checksum: Option<Hasher>,
}

impl Hashers {
    fn new(of: &TensorType, checksum: ChecksumFormat) -> Result<Hashers> {
        let ids = TensorHasher::new(of.dtype, &of.shape)?;
        Ok(Hashers { ids, checksum: (checksum != ChecksumFormat::Blake3).then(|| checksum.hasher()) })
    }

    fn update(&mut self, bytes: &[u8]) -> Result<()> {
        for block in bytes.chunks(CACHE_BLOCK) {
            self.ids.update(block)?;
            self.checksum.iter_mut().for_each(|hasher| hasher.update(block));
        }
        Ok(())
    }

    fn finish(self) -> Result<Hashes> {
        let (id, hash) = self.ids.finish_hashed()?;
        Ok(Hashes { id, digest: self.checksum.map_or_else(|| hex(&hash), Hasher::finish) })
    }
}
