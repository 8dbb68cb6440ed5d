//! Compressing many blobs at once, in memory that is used again.

use std::sync::{Mutex, PoisonError};

use zstd::bulk::Compressor;

use crate::error::{Error, Result};
use crate::parallel;
use crate::progress::{Observer, advance};

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

impl Compressors {
    /// zstd frames of `blobs`, several at a time. `None` stands for one that did
    /// not get smaller and is stored as it is.
    pub(crate) fn zstd(
        &self,
        blobs: Vec<&[u8]>,
        level: i32,
        threads: usize,
        observer: Option<&dyn Observer>,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let mut frames: Vec<Option<Vec<u8>>> = vec![None; blobs.len()];
        let workers = parallel::resolve(threads).div_ceil(blobs.len().max(1));
        parallel::for_each(threads, blobs.into_iter().zip(&mut frames).collect(), |(blob, frame)| {
            *frame = self.frame(blob, level, workers)?;
            advance(observer, 0)
        })?;
        Ok(frames)
    }

    fn frame(&self, blob: &[u8], level: i32, workers: usize) -> Result<Option<Vec<u8>>> {
        let failed = |error| Error::io("zstd failed", error);
        let mut context = match take(&self.contexts) {
            Some(context) => context,
            None => Compressor::new(level).map_err(failed)?,
        };
        context.set_compression_level(level).map_err(failed)?;
        let workers = if blob.len() >= JOBS_FROM { workers.max(1) } else { 0 };
        context.multithread(workers as u32).map_err(failed)?;
        let mut frame = take(&self.buffers).unwrap_or_default();
        frame.clear();
        frame
            .try_reserve(zstd::zstd_safe::compress_bound(blob.len()))
            .map_err(|_| Error::limit("not enough memory to compress a tensor"))?;
        context.compress_to_buffer(blob, &mut frame).map_err(failed)?;
        give(&self.contexts, context);
        if frame.len() < blob.len() {
            return Ok(Some(frame));
        }
        give(&self.buffers, frame);
        Ok(None)
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
