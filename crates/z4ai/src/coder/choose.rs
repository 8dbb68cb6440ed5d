//! Chooses the coder of one stream, and encodes it.

use twox_hash::XxHash3_64;

use crate::coder::huffman::lengths::Lengths;
use crate::coder::tans::order_one::Alphabet;
use crate::coder::tans::{self, Described, NormalizedCounts, Shape, order_one};
use crate::coder::{Coder, EncodeScratch, huffman};
use crate::estimate::cost::{self, BIT};
use crate::estimate::sampling;
use crate::kernel::{bit_packing, histogram};
use crate::options::{Effort, Options};

/// Bytes sampled to detect an incompressible stream. (flat, 0.05 %)
const SAMPLE: usize = 4096;
/// A stream is stored raw when its sample needs more than this of 8 bits. The estimate of a
/// sample of this size is too low by up to 0.05 bits for noise.
/// (case: sweep; halved, deltas of a fifth of the elements are 28 % larger)
pub(crate) const NOISE: u64 = 79 * BIT / 10;
/// Bytes sampled to detect that zstd gains nothing. (flat, 0.01 %)
const ZSTD_SAMPLE: usize = 1 << 13;
/// zstd is tried where its sample is smaller than Huffman codes by one part in this many: it encodes
/// several times slower. (case: `codec.py table`, fp8 and int8)
const MIN_ZSTD_SAVING: u64 = 64;
/// The zstd level of the default effort. (structural: the default of zstd)
pub const DEFAULT_LEVEL: i32 = 3;

/// More symbols than this are not packed. (structural: indices of four bits)
const MAX_PACKED_SYMBOLS: usize = 16;
/// As [`NOISE`], for the raw bits of elements of four and eight bytes: a code that saves less than a
/// thirtieth of a plane doubles the time to decode it. (case: `codec.py table`, normal fp32)
pub(crate) const NOISE_OF_PLANES: u64 = 775 * BIT / 100;
/// As [`NOISE`], for the raw bits of 2-byte elements: the little that a coder saves is not worth
/// its time. (case: sweep; halved, fp16 is 0.3 % larger; doubled, `fast` compresses fp16 half as fast)
pub(crate) const NEARLY_NOISE: u64 = 75 * BIT / 10;

/// Symbols from which on a table of states pays at the default effort, for it takes about as long to fill as
/// they take to decode. (case: `entropy.py`, GGUF; with four times as many, Q4_K of small tensors is 0.4 %
/// larger)
const MIN_FINE: usize = 1 << 11;
/// Bytes from which on order-1 tANS is tried: its tables take a hundred bytes and more. (case: `entropy.py`, GGUF)
const MIN_ORDERED: usize = 1 << 11;
/// Bits per symbol from which on tANS decodes about as fast as Huffman codes, of which a look-up then yields
/// little more than one symbol. (case: `codec_quantized.py`; fp8 e5m2, of 5.5 bits, would be 1.1 % smaller and decode
/// at 0.85 of the speed)
pub(crate) const MIN_FINE_BITS: u64 = 28 * BIT / 5;

/// Appends `bytes` to `payload` in the smallest way that decodes at full speed.
pub(crate) fn encode(bytes: &[u8], payload: &mut Vec<u8>, scratch: &mut EncodeScratch) -> Coder {
    let coder = code_unless(NOISE, bytes, payload, scratch, |bytes, _| histogram::exact(bytes), code_counted);
    append_raw(&coder, bytes, payload);
    coder
}

/// Appends a few `bytes` raw, unless they are all the same.
pub(crate) fn encode_quickly(bytes: &[u8], payload: &mut Vec<u8>) -> Coder {
    let coder = trivial(bytes).unwrap_or(Coder::Raw);
    append_raw(&coder, bytes, payload);
    coder
}

/// Encodes the streams at the end of `payload`, of lengths `lens`, in place, by sampled histograms.
/// `spare` is scratch.
pub(crate) fn encode_in_place(
    noise: u64,
    lens: &[usize],
    payload: &mut Vec<u8>,
    spare: &mut Vec<u8>,
    scratch: &mut EncodeScratch,
) -> Vec<Coder> {
    let mut from = payload.len() - lens.iter().sum::<usize>();
    let mut to = from;
    let coders = lens.iter().map(|&len| {
        let bytes = &payload[from..from + len];
        spare.clear();
        let mut coder = code_unless(noise, bytes, spare, scratch, histogram::sampled, code_counted);
        // Nothing may grow over the streams behind it.
        if spare.len() > len {
            coder = Coder::Raw;
        }
        if coder == Coder::Raw {
            if to < from {
                payload.copy_within(from..from + len, to);
            }
            to += len;
        } else {
            payload[to..to + spare.len()].copy_from_slice(spare);
            to += spare.len();
        }
        from += len;
        coder
    });
    let coders = coders.collect();
    payload.truncate(to);
    coders
}

/// As [`encode`], except that nothing is appended for [`Coder::Raw`], which is always chosen above
/// the entropy `noise`. `count` makes the histogram, by which `code` encodes.
fn code_unless(
    noise: u64,
    bytes: &[u8],
    payload: &mut Vec<u8>,
    scratch: &mut EncodeScratch,
    count: impl FnOnce(&[u8], &mut histogram::Pairs) -> [u32; 256],
    code: impl FnOnce(&[u8], &[u32; 256], &mut Vec<u8>, &mut EncodeScratch) -> Coder,
) -> Coder {
    if let Some(coder) = trivial(bytes) {
        return coder;
    }
    let sample = sample(bytes);
    if let Some(sample) = &sample {
        if cost::entropy(sample) > noise * SAMPLE as u64 {
            return Coder::Raw;
        }
        // Planes with only one bit in use need no full histogram.
        if let [a, b] = few_symbols_of(sample)[..]
            && let Some(counts) = histogram::binary(bytes, a, b)
        {
            return code(bytes, &counts, payload, scratch);
        }
    }
    let counts = count(bytes, &mut scratch.pairs);
    if noise == NOISE || cost::entropy(&counts) <= noise * bytes.len() as u64 {
        return code(bytes, &counts, payload, scratch);
    }
    Coder::Raw
}

/// Whether [`encode_in_place`] will store these bytes raw.
pub(crate) fn is_noise(noise: u64, bytes: &[u8]) -> bool {
    trivial(bytes).is_none()
        && sample(bytes).is_some_and(|sample| cost::entropy(&sample) > noise * SAMPLE as u64)
}

/// A lower bound on the bytes that [`encode_counted`] takes. 0 for few symbols, which may be packed
/// before they are coded.
pub(crate) fn huffman_at_least(counts: &[u32; 256]) -> u64 {
    if number_of_symbols(counts) <= MAX_PACKED_SYMBOLS {
        return 0;
    }
    // Costs are not exact: by less than this share of a bit.
    let inexact = counts.iter().map(|&count| u64::from(count)).sum::<u64>() * BIT / 64;
    cost::entropy(counts).saturating_sub(inexact) / (8 * BIT)
}

fn append_raw(coder: &Coder, bytes: &[u8], payload: &mut Vec<u8>) {
    if *coder == Coder::Raw {
        payload.extend_from_slice(bytes);
    }
}

/// As [`encode`], with zstd as another candidate: for bytes of unknown structure. `counts`, if they are known, are
/// [`histogram::halved`].
pub(crate) fn encode_opaque(
    bytes: &[u8],
    counts: Option<&[u32; 256]>,
    options: &Options,
    payload: &mut Vec<u8>,
    scratch: &mut EncodeScratch,
) -> Coder {
    let start = payload.len();
    let count = |bytes: &[u8], pairs: &mut histogram::Pairs| match counts {
        Some(counts) => *counts,
        None => histogram::halved(bytes, pairs),
    };
    let coder = code_unless(NOISE, bytes, payload, scratch, count, |bytes, counts, payload, scratch| {
        code_finely_if_fast(bytes, counts, options.effort, payload, scratch)
    });
    append_raw(&coder, bytes, payload);
    if matches!(coder, Coder::Constant(_)) {
        return coder;
    }
    let sample = &bytes[bytes.len() / 2..][..bytes.len().div_ceil(2).min(ZSTD_SAMPLE)];
    let mut by_symbols = (payload.len() - start) as u64 * sample.len() as u64 / bytes.len() as u64;
    if matches!(coder, Coder::Tans { .. }) && by_symbols >= sample.len() as u64 / 2 {
        // A code for the sample alone is smaller than one for all bytes, which says nothing about these.
        by_symbols = by_symbols.min(cost::entropy(&histogram::exact(sample)) / (8 * BIT));
    }
    let promising = scratch
        .zstd_fast
        .get_or_insert_with(|| zstd::bulk::Compressor::new(1).expect("a level that zstd has"))
        .compress(sample)
        .is_ok_and(|packed| packed.len() as u64 + by_symbols / MIN_ZSTD_SAVING < by_symbols);
    if promising
        && let Ok(packed) = zstd::bulk::compress(bytes, options.level.unwrap_or(DEFAULT_LEVEL))
        && packed.len() + 16 < payload.len() - start
    {
        payload.truncate(start);
        payload.extend_from_slice(&packed);
        return Coder::Zstd { stored: packed.len() as u32, hash: XxHash3_64::oneshot(&packed) };
    }
    coder
}

/// As [`encode`], for bytes whose counts are known.
pub(crate) fn encode_counted(
    bytes: &[u8],
    counts: &[u32; 256],
    payload: &mut Vec<u8>,
    scratch: &mut EncodeScratch,
) -> Coder {
    let coder = code_counted(bytes, counts, payload, scratch);
    append_raw(&coder, bytes, payload);
    coder
}

/// As [`encode_counted`], except that nothing is appended for [`Coder::Raw`].
fn code_counted(
    bytes: &[u8],
    counts: &[u32; 256],
    payload: &mut Vec<u8>,
    scratch: &mut EncodeScratch,
) -> Coder {
    let len = bytes.len() as u64;
    let symbols = few_symbols_of(counts);
    let Some(lengths) = Lengths::for_counts(counts) else {
        return symbols.first().map_or(Coder::Raw, |&only| Coder::Constant(only));
    };
    let huffman = huffman_len(&lengths, counts);
    let width = match number_of_symbols(counts) {
        0..=2 => 1,
        3..=4 => 2,
        5..=MAX_PACKED_SYMBOLS => 4,
        _ => 8,
    };
    // Palette indices decode several times faster than codes: they may cost a hundredth more.
    let packed = (len * width).div_ceil(8) + (1 << width.min(4)) + 2;
    // Codes of whole bits waste much of a bit where one symbol is frequent: then bytes of several
    // symbols are coded instead.
    let wasteful = || {
        let ideal = cost::entropy(counts) / (8 * BIT);
        ideal + ideal / 50 + 64 < huffman.min(packed)
    };
    if width < 8 && wasteful() {
        let start = payload.len();
        let coder = encode_packed_then(bytes, width as u32, &symbols, payload, scratch);
        let joined = (payload.len() - start) as u64 + (1 << width) + 64;
        if joined + joined / 50 < huffman.min(packed) {
            return coder;
        }
        payload.truncate(start);
    }
    if width < 8 && packed <= huffman + huffman / 100 {
        let (palette, index_of) = palette_of(&symbols);
        bit_packing::pack(width as u32, bytes, &index_of, payload);
        return Coder::Packed { width: width as u32, palette };
    }
    if huffman >= len {
        return Coder::Raw;
    }
    let EncodeScratch { huffman, prefetch, .. } = scratch;
    let stored = huffman::encode::encode(bytes, &lengths, payload, huffman, prefetch);
    Coder::Huffman { lengths: Box::new(lengths), stored }
}

/// As [`encode_counted`]; with tANS where that is smaller: at the default effort if it decodes as fast,
/// and always from the balanced effort on.
pub(crate) fn encode_codes(
    bytes: &[u8],
    counts: &[u32; 256],
    effort: Effort,
    payload: &mut Vec<u8>,
    scratch: &mut EncodeScratch,
) -> Coder {
    let coder = code_finely_if_fast(bytes, counts, effort, payload, scratch);
    append_raw(&coder, bytes, payload);
    coder
}

/// As [`encode_codes`], except that nothing is appended for [`Coder::Raw`].
fn code_finely_if_fast(
    bytes: &[u8],
    counts: &[u32; 256],
    effort: Effort,
    payload: &mut Vec<u8>,
    scratch: &mut EncodeScratch,
) -> Coder {
    if effort == Effort::Fast || effort == Effort::Default && bytes.len() < MIN_FINE {
        return code_counted(bytes, counts, payload, scratch);
    }
    let entropy = cost::entropy(counts);
    let many_bits = entropy >= MIN_FINE_BITS * bytes.len() as u64;
    if effort == Effort::Default && !many_bits {
        return code_counted(bytes, counts, payload, scratch);
    }
    let states = if many_bits { NormalizedCounts::for_many_symbols } else { NormalizedCounts::for_counts };
    code_finely(bytes, counts, entropy, states, payload, scratch)
}

/// As [`encode_counted`], or tANS with the normalized counts of `states`, whichever is smaller.
pub(crate) fn encode_finely(
    bytes: &[u8],
    counts: &[u32; 256],
    states: impl Fn(&[u32; 256]) -> Option<NormalizedCounts>,
    payload: &mut Vec<u8>,
    scratch: &mut EncodeScratch,
) -> Coder {
    let coder = code_finely(bytes, counts, cost::entropy(counts), states, payload, scratch);
    append_raw(&coder, bytes, payload);
    coder
}

/// As [`encode_finely`], or order-1 tANS, whichever is smaller, of bytes that are numbers below 128 but for a sign. Noise
/// stays as it is.
pub(crate) fn encode_in_order(
    bytes: &[u8],
    counts: &[u32; 256],
    effort: Effort,
    payload: &mut Vec<u8>,
    scratch: &mut EncodeScratch,
) -> Coder {
    let entropy = cost::entropy(counts);
    if bytes.len() >= MIN_ORDERED && entropy > NOISE * bytes.len() as u64 {
        append_raw(&Coder::Raw, bytes, payload);
        return Coder::Raw;
    }
    if bytes.len() >= MIN_ORDERED
        && let Some(choice) =
            order_one::choose(bytes, &std::array::from_fn(|byte| byte as i32 & 0x7f), Alphabet::Few, effort)
        && choice.cost < entropy / (8 * BIT)
    {
        return encode_order_one(bytes, &choice, payload, scratch);
    }
    encode_finely(bytes, counts, NormalizedCounts::for_counts, payload, scratch)
}

/// Appends bytes in these contexts.
pub(crate) fn encode_order_one(
    bytes: &[u8],
    choice: &order_one::Choice,
    payload: &mut Vec<u8>,
    scratch: &mut EncodeScratch,
) -> Coder {
    let EncodeScratch { numbered, tans, .. } = scratch;
    let (tables, stored) = order_one::encode(bytes, choice, numbered, payload, tans);
    Coder::OrderOne { tables: Box::new(tables), stored }
}

/// As [`encode_finely`], except that nothing is appended for [`Coder::Raw`]. `entropy` is that of the counts.
fn code_finely(
    bytes: &[u8],
    counts: &[u32; 256],
    entropy: u64,
    states: impl Fn(&[u32; 256]) -> Option<NormalizedCounts>,
    payload: &mut Vec<u8>,
    scratch: &mut EncodeScratch,
) -> Coder {
    let start = payload.len();
    let symbols = number_of_symbols(counts);
    // States and codes take no less than this, whatever they are, and at least half a byte for each symbol to
    // describe.
    let ideal = entropy / (8 * BIT);
    let least = ideal + symbols as u64 / 2;
    // Of many symbols it is known what each way takes, so that only one is made.
    if symbols > MAX_PACKED_SYMBOLS {
        let whole = |fine: &Fine| {
            let huffman = Lengths::for_counts(counts).map(|lengths| huffman_len(&lengths, counts));
            fine.len < huffman.unwrap_or(u64::MAX).min(bytes.len() as u64)
        };
        return match Fine::new(counts, ideal, least, states) {
            Some(fine) if fine.len < least.min(bytes.len() as u64) || whole(&fine) => {
                fine.encode(bytes, payload, scratch)
            }
            _ => code_counted(bytes, counts, payload, scratch),
        };
    }
    let coder = code_counted(bytes, counts, payload, scratch);
    let coded = if coder == Coder::Raw { bytes.len() } else { payload.len() - start };
    let whole = coded + coder.described_len();
    if matches!(coder, Coder::Constant(_)) || least >= whole as u64 {
        return coder;
    }
    let Some(states) = states(counts) else { return coder };
    let mut fine = Vec::new();
    let stored = tans::encode::encode(bytes, &states, &mut fine, &mut scratch.tans);
    let tans = Coder::Tans { states: Box::new(states), shape: None, stored };
    if fine.len() + tans.described_len() >= whole {
        return coder;
    }
    payload.truncate(start);
    payload.extend_from_slice(&fine);
    tans
}

/// A table of states, described in the way that is smaller.
struct Fine {
    states: NormalizedCounts,
    shape: Option<Box<Shape>>,
    /// Bytes of the description and of all symbols, about.
    len: u64,
}

impl Fine {
    /// By shape, or by the numbers of `states`, unless a shape takes less than `least`, which these take.
    /// The counts' entropy is `ideal` bytes.
    fn new(
        counts: &[u32; 256],
        ideal: u64,
        least: u64,
        states: impl Fn(&[u32; 256]) -> Option<NormalizedCounts>,
    ) -> Option<Self> {
        // Coder, lengths of streams, the states that each starts with and what fills its last byte.
        let streams = 1 + tans::RUNS as u64 * (4 + 4);
        let shaped = Shape::fit(counts, ideal, Described::InBytes).map(|(len, shape, states)| Self {
            states,
            shape: Some(Box::new(shape)),
            len: streams + len,
        });
        if shaped.as_ref().is_some_and(|shaped| shaped.len < least) {
            return shaped;
        }
        let states = states(counts)?;
        let mut description = Vec::new();
        states.write(&mut description);
        let len = streams + description.len() as u64 + states.cost_bits(counts) / 8;
        Some(match shaped {
            Some(shaped) if shaped.len < len => shaped,
            _ => Self { states, shape: None, len },
        })
    }

    fn encode(self, bytes: &[u8], payload: &mut Vec<u8>, scratch: &mut EncodeScratch) -> Coder {
        let stored = tans::encode::encode(bytes, &self.states, payload, &mut scratch.tans);
        Coder::Tans { states: Box::new(self.states), shape: self.shape, stored }
    }
}

/// Indices of `width` bits into a palette, packed into bytes, and these coded.
fn encode_packed_then(
    bytes: &[u8],
    width: u32,
    symbols: &[u8],
    payload: &mut Vec<u8>,
    scratch: &mut EncodeScratch,
) -> Coder {
    let (palette, index_of) = palette_of(symbols);
    let mut packed = Vec::new();
    bit_packing::pack(width, bytes, &index_of, &mut packed);
    let counts = histogram::exact(&packed);
    let inner = match Lengths::for_counts(&counts) {
        Some(lengths) => {
            let EncodeScratch { huffman, prefetch, .. } = scratch;
            let stored = huffman::encode::encode(&packed, &lengths, payload, huffman, prefetch);
            Coder::Huffman { lengths: Box::new(lengths), stored }
        }
        None => Coder::Constant(packed.first().copied().unwrap_or(0)),
    };
    Coder::PackedThen { width, palette, inner: Box::new(inner) }
}

/// Appends bytes of unknown structure.
pub(crate) fn encode_bytes(
    content: &[u8],
    options: &Options,
    payload: &mut Vec<u8>,
    scratch: &mut EncodeScratch,
) -> Coder {
    match options.effort {
        Effort::Fast => encode(content, payload, scratch),
        _ => encode_opaque(content, None, options, payload, scratch),
    }
}

/// Appends indices into a palette.
pub(crate) fn encode_indices(
    indices: &[u8],
    options: &Options,
    payload: &mut Vec<u8>,
    scratch: &mut EncodeScratch,
) -> Coder {
    encode_codes(indices, &histogram::exact(indices), options.effort, payload, scratch)
}

/// How many symbols occur.
fn number_of_symbols(counts: &[u32; 256]) -> usize {
    counts.iter().filter(|&&count| count > 0).count()
}

/// The symbols that occur, if they are few enough to be packed.
fn few_symbols_of(counts: &[u32; 256]) -> Vec<u8> {
    if number_of_symbols(counts) > MAX_PACKED_SYMBOLS {
        return Vec::new();
    }
    (0..=255).filter(|&symbol| counts[usize::from(symbol)] > 0).collect()
}

/// A palette of up to sixteen symbols, and the index of each. Unused entries are filled with other
/// symbols, so that no two indices decode to the same byte and every damaged index is noticed.
pub(crate) fn palette_of(symbols: &[u8]) -> ([u8; 16], [u8; 256]) {
    let mut palette = [0; 16];
    let mut index_of = [0; 256];
    let others = (0..=255).filter(|symbol| !symbols.contains(symbol));
    for (index, symbol) in symbols.iter().copied().chain(others).take(palette.len()).enumerate() {
        palette[index] = symbol;
        index_of[usize::from(symbol)] = index as u8;
    }
    (palette, index_of)
}

/// Bytes of a Huffman stream, description included.
pub(crate) fn huffman_len(lengths: &Lengths, counts: &[u32; 256]) -> u64 {
    let streams = huffman::encode::streams_for(counts.iter().map(|&count| count as usize).sum()) as u64;
    // Coder and number of streams, and of each its length and what fills its last byte.
    lengths.cost_bits(counts) / 8 + lengths.written_len() as u64 + 2 + 5 * streams
}

/// Constant streams.
fn trivial(bytes: &[u8]) -> Option<Coder> {
    let (&first, rest) = bytes.split_first().unwrap_or((&0, &[]));
    // Compares each byte with the one before it: stops at the first difference.
    let constant = bytes.is_empty() || rest == &bytes[..rest.len()];
    constant.then_some(Coder::Constant(first))
}

/// The counts of a sample from four places of `bytes`, if they are many.
fn sample(bytes: &[u8]) -> Option<[u32; 256]> {
    if bytes.len() < 4 * SAMPLE {
        return None;
    }
    let mut sample = Vec::with_capacity(SAMPLE);
    for at in sampling::spread(bytes.len(), SAMPLE / 4, 4, 1) {
        sample.extend_from_slice(&bytes[at..at + SAMPLE / 4]);
    }
    Some(histogram::exact(&sample))
}
