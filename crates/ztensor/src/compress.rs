//! Compressing many blobs at once, in memory that is used again.

use std::sync::{Mutex, PoisonError};

use z4ai::Effort;
use zstd::bulk::Compressor;

use crate::codec;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::parallel;
use crate::progress::{Observer, advance};
use crate::write::Compression;

/// From this size on, zstd cuts its input into jobs. Whether it does depends on
/// the size alone and not on the number of workers, so the bytes are the same.
const JOBS_FROM: usize = 16 << 20;

/// Contexts and output buffers of earlier blobs. Fresh memory for every blob
/// would cost about as much in page faults as a fast level does in coding.
#[derive(Default)]
pub(crate) struct Compressors {
    contexts: Mutex<Vec<Compressor<'static>>>,
    buffers: Mutex<Vec<Vec<u8>>>,
}

/// Bytes to compress, and what they are.
pub(crate) struct Blob<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) dtype: DType,
    /// The shape of the elements; empty if it is not known.
    pub(crate) shape: &'a [u64],
}

impl Blob<'_> {
    fn z4ai(&self, effort: Effort, threads: usize, frame: &mut Vec<u8>) -> Result<()> {
        let options = codec::options(self.dtype, self.shape, self.bytes.len() as u64, effort, threads);
        z4ai::compress_into(self.bytes, &options, frame).map_err(codec::not_encoded)
    }
}

impl Compressors {
    /// Frames of `blobs`, several at a time. `None` stands for one that did
    /// not get smaller and is stored as it is.
    pub(crate) fn encode(
        &self,
        blobs: Vec<Blob<'_>>,
        compression: Compression,
        threads: usize,
        observer: Option<&dyn Observer>,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let mut frames: Vec<Option<Vec<u8>>> = vec![None; blobs.len()];
        let total = blobs.iter().map(|blob| blob.bytes.len() as u64).sum();
        parallel::for_each(threads, blobs.into_iter().zip(&mut frames).collect(), |(blob, frame)| {
            let workers = parallel::share(threads, blob.bytes.len() as u64, total);
            let mut encoded = take(&self.buffers).unwrap_or_default();
            encoded.clear();
            match compression {
                Compression::None => return Ok(()),
                Compression::Zstd(level) => self.zstd(blob.bytes, level, workers, &mut encoded)?,
                Compression::Z4ai(effort) => blob.z4ai(effort, workers, &mut encoded)?,
            }
            if encoded.len() < blob.bytes.len() {
                *frame = Some(encoded);
            } else {
                self.recycle(encoded);
            }
            advance(observer, 0)
        })?;
        Ok(frames)
    }

    fn zstd(&self, blob: &[u8], level: i32, workers: usize, frame: &mut Vec<u8>) -> Result<()> {
        let failed = |error| Error::io("zstd failed", error);
        let mut context = match take(&self.contexts) {
            Some(context) => context,
            None => Compressor::new(level).map_err(failed)?,
        };
        context.set_compression_level(level).map_err(failed)?;
        let workers = if blob.len() >= JOBS_FROM { workers.max(1) } else { 0 };
        context.multithread(workers as u32).map_err(failed)?;
        frame
            .try_reserve(zstd::zstd_safe::compress_bound(blob.len()))
            .map_err(|_| Error::limit("not enough memory to compress a tensor"))?;
        context.compress_to_buffer(blob, frame).map_err(failed)?;
        give(&self.contexts, context);
        Ok(())
    }

    /// Takes a frame's memory back when its bytes are written.
    pub(crate) fn recycle(&self, frame: Vec<u8>) {
        give(&self.buffers, frame);
    }
}

// A panic while the lock is held leaves a valid list, so poisoning means nothing here.
fn take<T>(list: &Mutex<Vec<T>>) -> Option<T> {
    list.lock().unwrap_or_else(PoisonError::into_inner).pop()
}

fn give<T>(list: &Mutex<Vec<T>>, item: T) {
    list.lock().unwrap_or_else(PoisonError::into_inner).push(item);
}
