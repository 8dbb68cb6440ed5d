//! Compressing many blobs at once, in memory that is used again.

use z4ai::{Effort, ErrorKind};
use zstd::bulk::Compressor;
use zstd::zstd_safe::{CParameter, ResetDirective, Strategy};

use crate::base::pool::FreeList;
use crate::catalog::elements;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::gguf::GgmlType;
use crate::write::Compression;

/// Longer blobs are cut into jobs by zstd. Whether they are depends on the size
/// alone and not on the number of workers, so the bytes are the same.
/// Others are cheaper side by side: jobs copy what they are made of. (case: `constants.py`: half takes 1.2
/// times as long for tensors of 24 MB, twice 1.3 times for those of 64 MB)
pub(crate) const JOBS_ABOVE: usize = 32 << 20;

/// The size of a job where windows are no longer than two of them. zstd's own choice is four
/// windows, and all that it holds of them would be fresh memory for every blob. (case: `constants.py`,
/// `write_zstd_large`: half takes 1.3 times as long, twice 0.9 and is 0.4 % larger)
pub(super) const JOB: u32 = 1 << 20;
pub(super) const LONG_WINDOWS_FROM: i32 = 9;

/// The levels at which zstd looks for matches of two lengths, and cuts blocks by what is in them.
const DOUBLE_FAST: std::ops::RangeInclusive<i32> = 3..=4;

/// Weights have few matches, and looking for short ones takes longer than all the rest. Where a
/// sample grows by at most 1/HARDLY_LARGER, only long matches are searched for. (flat: `constants.py`, `write_zstd`)
const HARDLY_LARGER: usize = 400;

/// A piece of the sample; there is one for each mebibyte, up to `SAMPLE_PIECES`. (case: `constants.py`,
/// `write_zstd`: twice takes 1.4 times as long and is 3 % larger on fp32 with the precision of bf16; twelve other
/// sets of weights have the same size)
const SAMPLE_PIECE: usize = 16 << 10;
const SAMPLE_PIECES: usize = 4;

/// Blobs below this size are not worth a sample. (flat: as above, `write_zstd_small`)
const SAMPLED_FROM: usize = 32 * SAMPLE_PIECE;

/// Contexts and output buffers of earlier blobs. Fresh memory for every blob
/// would cost about as much in page faults as a fast level does in coding.
#[derive(Default)]
pub(crate) struct Compressors {
    contexts: FreeList<Compressor<'static>>,
    buffers: FreeList<Vec<u8>>,
}

/// Bytes to compress, and what they are.
pub(crate) struct Blob<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) dtype: DType,
    /// The shape of the elements; empty if it is not known.
    pub(crate) shape: &'a [u64],
    /// Blocks of quantized elements that the bytes are: then the shape is of these elements.
    pub(crate) blocks: Option<GgmlType>,
}

/// Compresses in jobs of a length that threads share. WebAssembly has no threads: a frame is one job
/// there, which decodes to the same bytes.
pub(crate) fn use_jobs(
    workers: usize,
    job: u32,
    mut set: impl FnMut(CParameter) -> std::io::Result<()>,
) -> std::io::Result<()> {
    if cfg!(target_family = "wasm") {
        return Ok(());
    }
    set(CParameter::NbWorkers(workers.max(1) as u32))?;
    set(CParameter::JobSize(job))
}

impl Blob<'_> {
    fn z4ai(&self, effort: Effort, threads: usize, frame: &mut Vec<u8>) -> Result<()> {
        let len = self.bytes.len() as u64;
        let options = match self.blocks {
            Some(blocks) => block_options(blocks, self.shape, len, effort, threads),
            None => codec_options(self.dtype, self.shape, len, effort, threads),
        };
        z4ai::compress_into(self.bytes, &options, frame).map_err(not_encoded)
    }
}

/// The shape of `len` bytes as elements of [`DType::codec_kind`], or nothing where `shape` does not describe them.
fn shape_hint(dtype: DType, shape: &[u64], len: u64) -> Vec<u64> {
    let size = dtype.codec_kind().size() as u64;
    let mut shape = shape.to_vec();
    if u64::from(dtype.bits()) == 16 * size {
        shape.push(2); // complex: real and imaginary part
    }
    match elements(&shape).and_then(|count| count.checked_mul(size)) {
        Some(bytes) if bytes == len && len > 0 => shape,
        _ => Vec::new(),
    }
}

/// How to encode `len` bytes of a tensor.
pub(crate) fn codec_options(
    dtype: DType,
    shape: &[u64],
    len: u64,
    effort: Effort,
    threads: usize,
) -> z4ai::Options {
    z4ai::Options {
        kind: dtype.codec_kind(),
        effort,
        threads,
        shape: shape_hint(dtype, shape, len),
        ..z4ai::Options::default()
    }
}

/// How to encode `len` bytes of quantized blocks, of a tensor of that shape.
pub(crate) fn block_options(
    blocks: GgmlType,
    shape: &[u64],
    len: u64,
    effort: Effort,
    threads: usize,
) -> z4ai::Options {
    let known =
        z4ai::BlockType::from_id(blocks.id()).filter(|known| len.is_multiple_of(known.block_bytes() as u64));
    let row = shape.last().map_or(0, |row| row / blocks.block_elements() * blocks.block_bytes());
    let shape = match row > 0 && len.is_multiple_of(row) {
        true => vec![len / row, row],
        false => Vec::new(),
    };
    z4ai::Options {
        kind: DType::U8.codec_kind(),
        effort,
        threads,
        shape,
        blocks: known,
        ..z4ai::Options::default()
    }
}

/// A failure to encode.
pub(crate) fn not_encoded(error: z4ai::Error) -> Error {
    match error.kind() {
        ErrorKind::LimitExceeded => Error::limit(error.message()),
        ErrorKind::Cancelled => Error::cancelled(),
        _ => Error::invalid(error.message()),
    }
}

impl Compressors {
    /// The frame of a blob, or `None` for one that did not get smaller and is stored as it is.
    pub(crate) fn encode(
        &self,
        blob: &Blob<'_>,
        compression: Compression,
        workers: usize,
    ) -> Result<Option<Vec<u8>>> {
        let mut encoded = self.buffers.take().unwrap_or_default();
        encoded.clear();
        match compression {
            Compression::None => {}
            Compression::Zstd(level) => self.zstd(blob.bytes, level, workers, &mut encoded)?,
            Compression::Z4ai(effort) => blob.z4ai(effort, workers, &mut encoded)?,
        }
        if compression != Compression::None && encoded.len() < blob.bytes.len() {
            return Ok(Some(encoded));
        }
        self.recycle(encoded);
        Ok(None)
    }

    fn zstd(&self, blob: &[u8], level: i32, workers: usize, frame: &mut Vec<u8>) -> Result<()> {
        let mut context = match self.contexts.take() {
            Some(context) => context,
            None => Compressor::new(level).map_err(failed)?,
        };
        frame
            .try_reserve(zstd::zstd_safe::compress_bound(blob.len()))
            .map_err(|_| Error::limit("not enough memory to compress a tensor"))?;
        let search = Search::of(blob, level, &mut context, frame)?;
        search.set(level, &mut context)?;
        if blob.len() > JOBS_ABOVE {
            let job = if level < LONG_WINDOWS_FROM { JOB } else { 0 };
            use_jobs(workers, job, |parameter| context.set_parameter(parameter)).map_err(failed)?;
        }
        frame.clear();
        context.compress_to_buffer(blob, frame).map_err(failed)?;
        // One that has started threads is not kept: they would not survive a fork.
        if blob.len() <= JOBS_ABOVE {
            self.contexts.put(context);
        }
        Ok(())
    }

    /// Takes a frame's memory back when its bytes are written.
    pub(crate) fn recycle(&self, frame: Vec<u8>) {
        self.buffers.put(frame);
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::io("zstd failed", error)
}

/// Which matches zstd looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Search {
    /// Those that the level looks for.
    OfLevel,
    /// Long ones only.
    Long,
}

impl Search {
    /// What a sample of the blob says. `frame` is room for what it becomes.
    fn of(blob: &[u8], level: i32, context: &mut Compressor<'_>, frame: &mut Vec<u8>) -> Result<Search> {
        if !DOUBLE_FAST.contains(&level) || blob.len() < SAMPLED_FROM {
            return Ok(Search::OfLevel);
        }
        let count = (blob.len() >> 20).clamp(1, SAMPLE_PIECES);
        let mut size = |search: Search| {
            search.set(level, context)?;
            (0..count).try_fold(0, |size, number| {
                // In the middle of each of as many equal parts.
                let middle = blob.len() / (2 * count) * (2 * number + 1);
                frame.clear();
                let piece = &blob[middle - SAMPLE_PIECE / 2..middle + SAMPLE_PIECE / 2];
                Ok::<_, Error>(size + context.compress_to_buffer(piece, frame).map_err(failed)?)
            })
        };
        let (of_level, long) = (size(Search::OfLevel)?, size(Search::Long)?);
        Ok(if long <= of_level + of_level / HARDLY_LARGER { Search::Long } else { Search::OfLevel })
    }

    fn set(self, level: i32, context: &mut Compressor<'_>) -> Result<()> {
        // What was set for an earlier blob would stay otherwise.
        let code = context.context_mut().reset(ResetDirective::Parameters);
        code.map_err(|code| failed(std::io::Error::other(zstd::zstd_safe::get_error_name(code))))?;
        context.set_compression_level(level).map_err(failed)?;
        if self == Search::Long {
            context.set_parameter(CParameter::Strategy(Strategy::ZSTD_fast)).map_err(failed)?;
            context.set_parameter(CParameter::MinMatch(7)).map_err(failed)?;
        }
        Ok(())
    }
}

// A panic while the lock is held leaves a valid list, so poisoning means nothing here.

#[cfg(test)]
mod tests {
    use super::*;

    fn search(blob: &[u8], level: i32) -> Search {
        let mut context = Compressor::new(level).unwrap();
        let mut frame = Vec::with_capacity(zstd::zstd_safe::compress_bound(blob.len()));
        Search::of(blob, level, &mut context, &mut frame).unwrap()
    }

    fn noise(len: usize) -> impl Iterator<Item = u32> {
        let next = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        std::iter::successors(Some(7), next).map(|state| state >> 8).take(len)
    }

    #[test]
    fn weights_are_searched_for_long_matches_only() {
        let weights: Vec<u8> = noise(1 << 20).flat_map(|n| (n as f32 / 1e8 - 0.08).to_le_bytes()).collect();
        assert_eq!(search(&weights, 3), Search::Long);
        assert_eq!(search(&weights, 2), Search::OfLevel);
        assert_eq!(search(&weights, 9), Search::OfLevel);
        assert_eq!(search(&weights[..SAMPLED_FROM - 1], 3), Search::OfLevel);
        assert_eq!(search(&weights[..SAMPLED_FROM], 3), Search::Long);
    }

    #[test]
    fn what_has_short_matches_keeps_them() {
        // One of 4096 words of five bytes each time.
        let words: Vec<u8> = noise(1 << 18)
            .flat_map(|n| u64::from(n >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()[3..8].to_vec())
            .collect();
        assert_eq!(search(&words, 3), Search::OfLevel);
        let all = Compressors::default();
        let blob = Blob { bytes: &words, dtype: DType::U8, shape: &[], blocks: None };
        let frame = all.encode(&blob, Compression::Zstd(3), 1).unwrap().unwrap();
        assert_eq!(frame, zstd::bulk::compress(&words, 3).unwrap());
    }

    #[test]
    fn contexts_forget_what_was_set_for_other_blobs() {
        let weights: Vec<u8> = noise(1 << 18).flat_map(|n| (n as f32).to_le_bytes()).collect();
        let text = "neither weights nor noise, but words that come again: words, words. ".repeat(999);
        let blob = |bytes| Blob { bytes, dtype: DType::U8, shape: &[], blocks: None };
        let (one, fresh) = (Compressors::default(), Compressors::default());
        one.encode(&blob(&weights), Compression::Zstd(3), 1).unwrap();
        for level in [1, 3, 7] {
            let level = Compression::Zstd(level);
            let again = one.encode(&blob(text.as_bytes()), level, 1).unwrap();
            assert_eq!(again, fresh.encode(&blob(text.as_bytes()), level, 1).unwrap());
        }
    }

    #[test]
    fn the_number_of_workers_does_not_change_the_bytes() {
        let weights: Vec<u8> = noise(JOBS_ABOVE / 4 + 1).flat_map(|n| (n as f32).to_le_bytes()).collect();
        for len in [JOBS_ABOVE, JOBS_ABOVE + 4] {
            let blob = Blob { bytes: &weights[..len], dtype: DType::F32, shape: &[], blocks: None };
            let frames = [1, 2, 5].map(|workers| {
                Compressors::default().encode(&blob, Compression::Zstd(3), workers).unwrap().unwrap()
            });
            assert!(frames[0] == frames[1] && frames[0] == frames[2]);
            assert!(zstd::bulk::decompress(&frames[0], len).unwrap() == weights[..len]);
        }
    }

    #[test]
    fn blocks_have_rows_of_bytes() {
        let options = block_options(GgmlType::Q4_K, &[3, 512], 3 * 288, Effort::Default, 1);
        assert_eq!((options.blocks, &options.shape[..]), (Some(z4ai::BlockType::Q4_K), &[3, 288][..]));
        let options = block_options(GgmlType::Q4_K, &[], 100, Effort::Default, 1);
        assert_eq!((options.blocks, options.shape.len()), (None, 0));
        for ggml_type in GgmlType::ALL.into_iter().filter(|ggml_type| ggml_type.is_block()) {
            let known = z4ai::BlockType::from_id(ggml_type.id()).unwrap();
            assert_eq!(known.name(), ggml_type.name());
            assert_eq!(known.block_bytes() as u64, ggml_type.block_bytes());
            assert_eq!(known.block_elements() as u64, ggml_type.block_elements());
        }
    }

    #[test]
    fn hints_describe_the_bytes_or_are_empty() {
        assert_eq!(shape_hint(DType::F32, &[2, 3], 24), [2, 3]);
        assert_eq!(shape_hint(DType::C64, &[2, 3], 48), [2, 3, 2]);
        assert!(shape_hint(DType::I4, &[2, 3], 3).is_empty());
        assert!(shape_hint(DType::F32, &[2, 0], 0).is_empty());
        assert!(shape_hint(DType::F32, &[u64::MAX, 2], 8).is_empty());
    }
}
