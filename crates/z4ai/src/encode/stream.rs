//! Choosing the coder of one stream.

use twox_hash::XxHash3_64;

use super::cost::{self, BIT};
use crate::coder::Coder;
use crate::coder::huffman::Lengths;
use crate::coder::huffman_encode;
use crate::coder::tans::{self, States};
use crate::kernel::{histogram, packed};
use crate::options::Effort;

/// Bytes looked at to rule out that a stream compresses.
const SAMPLE: usize = 8192;
/// A stream is stored raw when its sample needs more than this of 8 bits. The estimate of a
/// sample of this size is too low by up to 0.03 bits for noise.
pub(super) const NOISE: u64 = 79 * BIT / 10;
/// The zstd level of the default effort.
pub const DEFAULT_LEVEL: i32 = 3;

/// As [`NOISE`], for bytes that are raw otherwise: what little they save would cost much time.
const NEARLY_NOISE: u64 = 75 * BIT / 10;

/// Appends `bytes` to `payload` in the smallest way that decodes at full speed.
pub(crate) fn encode(bytes: &[u8], payload: &mut Vec<u8>) -> Coder {
    encode_unless(NOISE, bytes, payload)
}

/// As [`encode`], for what is not symbols: coded only if that saves much.
pub(crate) fn encode_others(bytes: &[u8], payload: &mut Vec<u8>) -> Coder {
    encode_unless(NEARLY_NOISE, bytes, payload)
}

fn encode_unless(noise: u64, bytes: &[u8], payload: &mut Vec<u8>) -> Coder {
    if let Some(coder) = trivial(bytes) {
        return coder;
    }
    if !looks_like_noise(bytes, noise) {
        let counts = histogram::of_bytes(bytes);
        if noise == NOISE || cost::entropy(&counts) <= noise * bytes.len() as u64 {
            return encode_counted(bytes, &counts, payload);
        }
    }
    payload.extend_from_slice(bytes);
    Coder::Raw
}

/// As [`encode`], with zstd as another candidate: for bytes of unknown structure.
pub(crate) fn encode_opaque(bytes: &[u8], level: i32, payload: &mut Vec<u8>) -> Coder {
    if let Some(coder) = trivial(bytes) {
        return coder;
    }
    let start = payload.len();
    let coder = encode(bytes, payload);
    let sample = &bytes[bytes.len() / 2..][..bytes.len().div_ceil(2).min(4 * SAMPLE)];
    let by_symbols = (payload.len() - start) as u64 * sample.len() as u64 / bytes.len() as u64;
    let promising = zstd::bulk::compress(sample, 1).is_ok_and(|packed| (packed.len() as u64) < by_symbols);
    if promising
        && let Ok(packed) = zstd::bulk::compress(bytes, level)
        && packed.len() + 16 < payload.len() - start
    {
        payload.truncate(start);
        payload.extend_from_slice(&packed);
        return Coder::Zstd { stored: packed.len() as u32, hash: XxHash3_64::oneshot(&packed) };
    }
    coder
}

/// As [`encode`], for bytes whose counts are known.
pub(crate) fn encode_counted(bytes: &[u8], counts: &[u32; 256], payload: &mut Vec<u8>) -> Coder {
    let len = bytes.len() as u64;
    let symbols: Vec<u8> = (0..=255u8).filter(|&s| counts[usize::from(s)] > 0).collect();
    let Some(lengths) = Lengths::for_counts(counts) else {
        return symbols.first().map_or(Coder::Raw, |&only| Coder::Constant(only));
    };
    let huffman = huffman_len(&lengths, counts);
    let width = match symbols.len() {
        0..=2 => 1,
        3..=4 => 2,
        5..=16 => 4,
        _ => 8,
    };
    // Palette indices decode several times faster than codes: they may cost a hundredth more.
    let packed = (len * width).div_ceil(8) + (1 << width.min(4)) + 2;
    // Codes of whole bits waste much of a bit where one symbol is frequent: then bytes of several
    // symbols are coded instead.
    let ideal = cost::entropy(counts) / (8 * BIT);
    if width < 8 && ideal + ideal / 50 + 64 < huffman.min(packed) {
        let start = payload.len();
        let coder = encode_joined(bytes, width as u32, &symbols, payload);
        let joined = (payload.len() - start) as u64 + (1 << width) + 64;
        if joined + joined / 50 < huffman.min(packed) {
            return coder;
        }
        payload.truncate(start);
    }
    if width < 8 && packed <= huffman + huffman / 100 {
        let (palette, index_of) = palette_of(&symbols);
        packed::pack(width as u32, bytes, &index_of, payload);
        return Coder::Packed { width: width as u32, palette };
    }
    if huffman >= len {
        payload.extend_from_slice(bytes);
        return Coder::Raw;
    }
    let stored = huffman_encode::encode(bytes, &lengths, payload);
    Coder::Huffman { lengths: Box::new(lengths), stored }
}

/// As [`encode_counted`], and from the balanced effort on in fractions of bits, where that is
/// smaller.
pub(crate) fn encode_codes(
    bytes: &[u8],
    counts: &[u32; 256],
    effort: Effort,
    payload: &mut Vec<u8>,
) -> Coder {
    let start = payload.len();
    let coder = encode_counted(bytes, counts, payload);
    if effort < Effort::Balanced || matches!(coder, Coder::Constant(_)) {
        return coder;
    }
    let Some(states) = States::for_counts(counts) else { return coder };
    let mut fine = Vec::new();
    let stored = tans::encode(bytes, &states, &mut fine);
    let tans = Coder::Tans { states: Box::new(states), stored };
    let described = |coder: &Coder| {
        let mut description = Vec::new();
        coder.write(&mut description);
        description.len()
    };
    if fine.len() + described(&tans) >= payload.len() - start + described(&coder) {
        return coder;
    }
    payload.truncate(start);
    payload.extend_from_slice(&fine);
    tans
}

/// Indices of `width` bits into a palette, packed into bytes, and these coded.
fn encode_joined(bytes: &[u8], width: u32, symbols: &[u8], payload: &mut Vec<u8>) -> Coder {
    let (palette, index_of) = palette_of(symbols);
    let mut packed = Vec::new();
    packed::pack(width, bytes, &index_of, &mut packed);
    let counts = histogram::of_bytes(&packed);
    let inner = match Lengths::for_counts(&counts) {
        Some(lengths) => {
            let stored = huffman_encode::encode(&packed, &lengths, payload);
            Coder::Huffman { lengths: Box::new(lengths), stored }
        }
        None => Coder::Constant(packed.first().copied().unwrap_or(0)),
    };
    Coder::Joined { width, palette, inner: Box::new(inner) }
}

/// A palette of up to sixteen symbols, and the index of each.
pub(crate) fn palette_of(symbols: &[u8]) -> ([u8; 16], [u8; 256]) {
    let mut palette = [0; 16];
    let mut index_of = [0; 256];
    for (index, &symbol) in symbols.iter().enumerate() {
        palette[index] = symbol;
        index_of[usize::from(symbol)] = index as u8;
    }
    (palette, index_of)
}

/// Bytes of a Huffman stream, description included.
pub(crate) fn huffman_len(lengths: &Lengths, counts: &[u32; 256]) -> u64 {
    let mut table = Vec::new();
    lengths.write(&mut table);
    let streams = huffman_encode::streams_for(counts.iter().map(|&count| count as usize).sum()) as u64;
    // Coder and number of streams, and of each its length and what fills its last byte.
    lengths.cost_bits(counts) / 8 + table.len() as u64 + 2 + 5 * streams
}

/// Streams without any information.
fn trivial(bytes: &[u8]) -> Option<Coder> {
    let (&first, rest) = bytes.split_first().unwrap_or((&0, &[]));
    // Compares each byte with the one before it: stops at the first difference.
    let constant = bytes.is_empty() || rest == &bytes[..rest.len()];
    constant.then_some(Coder::Constant(first))
}

/// Whether a sample from four places of `bytes` needs more than `noise` per byte.
fn looks_like_noise(bytes: &[u8], noise: u64) -> bool {
    if bytes.len() < 4 * SAMPLE {
        return false;
    }
    let mut sample = Vec::with_capacity(SAMPLE);
    for part in 0..4 {
        let at = part * (bytes.len() - SAMPLE / 4) / 3;
        sample.extend_from_slice(&bytes[at..at + SAMPLE / 4]);
    }
    cost::entropy(&histogram::of_bytes(&sample)) > noise * SAMPLE as u64
}
