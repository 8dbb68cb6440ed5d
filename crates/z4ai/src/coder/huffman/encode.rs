//! The Huffman encoder: the bit streams that [`wire`](crate::coder::huffman::wire) describes.
//!
//! Beyond appending one code after the other:
//!
//! 1. Codes of small alphabets, as exponents have, are looked up two at a time.
//! 2. A code and its length are one word, of which shifts and sums use what they need without
//!    extracting fields.
//! 3. Where vectors can do it, eight or sixteen codes are concatenated before they are appended
//!    ([`CodeWindow`], [`CodeWindows`], and [`CodeTable`] where vectors are wide enough to look up any symbol).
//! 4. Codes of large alphabets are looked up one by one, at the top of a word ([`TopStream`]): one
//!    shift places a code, and the only chain is the sum of the lengths.
//! 5. Two streams are interleaved, so that neither waits for the other's dependency chain.
//! 6. Every group ends with an unaligned store of a whole word that ends with the group; bits
//!    before it in the word are stored again unchanged. No branch depends on the data, and nothing
//!    but the number of bits is carried from one store to the next.
//! 7. Memory that the caller needs next is prefetched meanwhile ([`Prefetcher`]).

#[cfg(target_arch = "x86_64")]
use crate::coder::huffman::code_table::{self, CodeTable, PackedCodes};
use crate::coder::huffman::lengths::{Lengths, MAX_LEN};
use crate::coder::huffman::wire::{STREAMS, Stored, WORD};
use crate::coder::run_range;
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx512;
use crate::simd::prefetch::Prefetcher;
use crate::simd::{CodeWindow, CodeWindows, Isa, dispatch};

/// A code's word has the length in the bits below this, and the code above. (structural)
const CODE_SHIFT: u32 = 8;
const _: () = assert!(2 * MAX_LEN + CODE_SHIFT <= u32::BITS);
/// Bits of a stored word: those of a group, and up to 7 of padding. (structural)
const HELD: u32 = u64::BITS;
/// Bits that may be appended before a store. (structural)
const MAX_PENDING: u32 = HELD - 7;
/// Codes that always fit, behind the bits of an unfinished byte. (structural)
const GROUP: usize = 5;
const _: () = assert!(GROUP as u32 * MAX_LEN + 7 < HELD);
/// Fewer symbols than this are one stream: the lengths of eight would cost more than they gain.
/// (case: sweep; halved, sparse fp32 is 0.15 % larger; doubled, as much smaller)
const MIN_EIGHT_STREAMS: usize = 4096;
/// More symbols than this have too many pairs for the first-level cache.
/// (structural: 48² words of 4 bytes are 9 KiB)
const MAX_PAIRED_SYMBOLS: usize = 48;

/// Groups between two steps of the prefetcher, which takes as long as a group. (structural)
const GROUPS: usize = 4;

/// Words of single codes.
type Codes = [u32; 256];
/// Words of the codes of two symbols, the first in the low byte of the index. Only entries of
/// symbols that occur are valid.
type Pairs = [u32; 1 << 16];

/// Appends the bit streams of `symbols` to `out`; returns their lengths in bytes. `prefetch`
/// advances by one step per symbol: encoding computes and hardly touches memory.
///
/// Every symbol must have a code in `lengths`.
pub(crate) fn encode(
    symbols: &[u8],
    lengths: &Lengths,
    out: &mut Vec<u8>,
    scratch: &mut HuffmanScratch,
    prefetch: &mut Prefetcher,
) -> Stored {
    scratch.encode(symbols, lengths, out, prefetch)
}

/// The number of streams of `symbols` symbols.
pub(crate) fn streams_for(symbols: usize) -> usize {
    if symbols < MIN_EIGHT_STREAMS { 1 } else { STREAMS }
}

/// Buffers that encoding reuses: large enough that making them for every stream would show.
#[derive(Default)]
pub(crate) struct HuffmanScratch {
    pairs: Option<Box<Pairs>>,
    streams: [Vec<u8>; 2],
}

impl HuffmanScratch {
    fn encode(
        &mut self,
        symbols: &[u8],
        lengths: &Lengths,
        out: &mut Vec<u8>,
        prefetch: &mut Prefetcher,
    ) -> Stored {
        let bits = lengths.codes();
        let codes = words(lengths, &bits);
        #[cfg(target_arch = "x86_64")]
        if let Some(isa) = Avx512::new()
            && symbols.len() >= MIN_EIGHT_STREAMS
        {
            let table = CodeTable::new(lengths, &bits);
            let encode = wide(&table, lengths);
            // SAFETY: `isa` proves the features.
            return self.encode_by(symbols, out, prefetch, |runs, rooms, prefetch| unsafe {
                encode(isa, runs, &codes, &table, rooms, prefetch)
            });
        }
        let window = CodeWindow::new(lengths, &bits);
        if window.is_none()
            && CodeWindows::supported()
            && let Some(windows) = CodeWindows::new(symbols, lengths, &bits)
        {
            return self.encode_by(symbols, out, prefetch, |runs, rooms, prefetch| {
                encode_by_windows(runs, &codes, &windows, rooms, prefetch)
            });
        }
        let mut pairs = self.pairs.take();
        let filled = fill_pairs(&mut pairs, &codes, symbols.len());
        let stored =
            self.encode_by(symbols, out, prefetch, |runs, rooms, prefetch| match (filled, &window) {
                (Some(pairs), Some(window)) => encode_windowed(runs, &codes, pairs, window, rooms, prefetch),
                (Some(pairs), None) => encode_paired(runs, &codes, pairs, rooms, prefetch),
                (None, _) => encode_single(runs, &TopCodes::new(lengths, &bits), rooms, prefetch),
            });
        self.pairs = pairs;
        stored
    }

    /// Appends the bit streams of `symbols`, written two at a time by `encode`.
    fn encode_by(
        &mut self,
        symbols: &[u8],
        out: &mut Vec<u8>,
        prefetch: &mut Prefetcher,
        encode: impl Fn([&[u8]; 2], [&mut Vec<u8>; 2], &mut Prefetcher) -> [usize; 2],
    ) -> Stored {
        let streams = streams_for(symbols.len());
        let run = |index: usize| &symbols[run_range(index, streams, symbols.len())];
        let room = room_for(run(0).len());
        for stream in &mut self.streams {
            if stream.len() < room {
                stream.resize(room, 0);
            }
        }
        let [first, second] = &mut self.streams;
        let mut lens = [0; STREAMS];
        for at in (0..streams).step_by(2) {
            // A single stream is paired with an empty one.
            let runs = [run(at), if at + 1 < streams { run(at + 1) } else { &[] }];
            let two = encode(runs, [first, second], prefetch);
            out.extend_from_slice(&first[WORD..WORD + two[0]]);
            out.extend_from_slice(&second[WORD..WORD + two[1]]);
            lens[at..at + 2].copy_from_slice(&two.map(|len| len as u32));
        }
        Stored::new(&lens[..streams]).expect("one of the two numbers of streams")
    }
}

/// Bytes that the stream of `symbols` symbols may take: the longest codes, between a word that the
/// first stores overwrite ([`Stream`]) and one that the last ones do ([`TopStream`]).
fn room_for(symbols: usize) -> usize {
    (symbols * MAX_LEN as usize).div_ceil(8) + 2 * WORD
}

fn words(lengths: &Lengths, codes: &[u16; 256]) -> Codes {
    std::array::from_fn(|symbol| u32::from(codes[symbol]) << CODE_SHIFT | u32::from(lengths.0[symbol]))
}

/// The words of all pairs, if they are few enough to pay for `symbols` symbols.
fn fill_pairs<'a>(pairs: &'a mut Option<Box<Pairs>>, codes: &Codes, symbols: usize) -> Option<&'a Pairs> {
    let used: Vec<usize> = (0..256).filter(|&symbol| codes[symbol] != 0).collect();
    if used.len() > MAX_PAIRED_SYMBOLS || symbols < 8 * used.len() * used.len() {
        return None;
    }
    let pairs = pairs.get_or_insert_with(|| {
        let zeros = vec![0; 1 << 16].into_boxed_slice();
        zeros.try_into().expect("as many as were made")
    });
    for &second in &used {
        for &first in &used {
            let (a, b) = (codes[first], codes[second]);
            // One code after the other, and the sum of their lengths.
            let shifted = (a >> CODE_SHIFT) << (b & 0xff) << CODE_SHIFT;
            pairs[first | second << 8] = (shifted | b) + (a & 0xff);
        }
    }
    Some(pairs)
}

dispatch! {
    /// Writes two bit streams, each behind the first word of its room; returns their lengths in
    /// bytes.
    fn encode_single(
        runs: [&[u8]; 2],
        codes: &TopCodes,
        rooms: [&mut Vec<u8>; 2],
        prefetch: &mut Prefetcher,
    ) -> [usize; 2] = encode_single_with
}

dispatch! {
    /// As `encode_single`, with the codes of pairs as well.
    fn encode_paired(
        runs: [&[u8]; 2],
        codes: &Codes,
        pairs: &Pairs,
        rooms: [&mut Vec<u8>; 2],
        prefetch: &mut Prefetcher,
    ) -> [usize; 2] = encode_paired_with
}

dispatch! {
    /// As `encode_paired`, with a window of codes as well.
    fn encode_windowed(
        runs: [&[u8]; 2],
        codes: &Codes,
        pairs: &Pairs,
        window: &CodeWindow,
        rooms: [&mut Vec<u8>; 2],
        prefetch: &mut Prefetcher,
    ) -> [usize; 2] = encode_windowed_with
}

dispatch! {
    /// As `encode_single`, with several windows of codes.
    fn encode_by_windows(
        runs: [&[u8]; 2],
        codes: &Codes,
        windows: &CodeWindows,
        rooms: [&mut Vec<u8>; 2],
        prefetch: &mut Prefetcher,
    ) -> [usize; 2] = encode_by_windows_with
}

#[inline(always)]
fn encode_single_with(
    _: impl Isa,
    runs: [&[u8]; 2],
    codes: &TopCodes,
    rooms: [&mut Vec<u8>; 2],
    prefetch: &mut Prefetcher,
) -> [usize; 2] {
    let [room_a, room_b] = rooms;
    let (groups_a, rest_a) = runs[0].as_chunks::<{ GROUPS * GROUP }>();
    let (groups_b, rest_b) = runs[1].as_chunks::<{ GROUPS * GROUP }>();
    let mut a = TopStream::new(room_a, runs[0].len());
    let mut b = TopStream::new(room_b, runs[1].len());
    for (groups_a, groups_b) in groups_a.iter().zip(groups_b) {
        let groups_b = groups_b.as_chunks::<GROUP>().0;
        for (group_a, group_b) in groups_a.as_chunks::<GROUP>().0.iter().zip(groups_b) {
            a.put(group_a, codes);
            b.put(group_b, codes);
        }
        prefetch.advance(2 * GROUPS * GROUP);
    }
    let both = groups_a.len().min(groups_b.len());
    for (stream, groups, rest) in [(&mut a, groups_a, rest_a), (&mut b, groups_b, rest_b)] {
        for &symbol in groups[both..].as_flattened().iter().chain(rest) {
            stream.put(&[symbol], codes);
        }
    }
    [a.finish(), b.finish()]
}

#[inline(always)]
fn encode_paired_with(
    _: impl Isa,
    runs: [&[u8]; 2],
    codes: &Codes,
    pairs: &Pairs,
    rooms: [&mut Vec<u8>; 2],
    prefetch: &mut Prefetcher,
) -> [usize; 2] {
    encode_two(runs, codes, rooms, prefetch, Paired(pairs))
}

#[inline(always)]
fn encode_windowed_with<I: Isa>(
    isa: I,
    runs: [&[u8]; 2],
    codes: &Codes,
    pairs: &Pairs,
    window: &CodeWindow,
    rooms: [&mut Vec<u8>; 2],
    prefetch: &mut Prefetcher,
) -> [usize; 2] {
    encode_two(runs, codes, rooms, prefetch, Windowed(isa, window, Paired(pairs)))
}

#[inline(always)]
fn encode_by_windows_with<I: Isa>(
    isa: I,
    runs: [&[u8]; 2],
    codes: &Codes,
    windows: &CodeWindows,
    rooms: [&mut Vec<u8>; 2],
    prefetch: &mut Prefetcher,
) -> [usize; 2] {
    encode_two(runs, codes, rooms, prefetch, ManyWindowed(isa, windows, codes))
}

/// As `encode_single`, by the look-ups of wide vectors.
#[cfg(target_arch = "x86_64")]
type EncodeWide =
    unsafe fn(Avx512, [&[u8]; 2], &Codes, &CodeTable, [&mut Vec<u8>; 2], &mut Prefetcher) -> [usize; 2];

/// Codes are concatenated by sixteen up to a mean length of `MAX_MEAN_LEN / MEAN_LEN_UNIT` bits:
/// longer ones would often not fit a word. (flat)
#[cfg(target_arch = "x86_64")]
const MAX_MEAN_LEN: u32 = 29;
#[cfg(target_arch = "x86_64")]
/// (structural: tenths)
const MEAN_LEN_UNIT: u32 = 10;

/// The encoder for this table, which holds codes of these lengths.
#[cfg(target_arch = "x86_64")]
fn wide(table: &CodeTable, lengths: &Lengths) -> EncodeWide {
    let used = lengths.0.iter().filter(|&&len| len > 0);
    // What a symbol takes if it is as frequent as its code says.
    let mean: u32 = used.map(|&len| u32::from(len) << (MAX_LEN - u32::from(len))).sum();
    let sixteen = mean * MEAN_LEN_UNIT <= MAX_MEAN_LEN << MAX_LEN;
    match (table.tables, sixteen) {
        (1, true) => encode_wide::<1, true>,
        (1, false) => encode_wide::<1, false>,
        (2, true) => encode_wide::<2, true>,
        (2, false) => encode_wide::<2, false>,
        (_, true) => encode_wide::<4, true>,
        (_, false) => encode_wide::<4, false>,
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx2,bmi1,bmi2")]
fn encode_wide<const TABLES: usize, const SIXTEEN: bool>(
    isa: Avx512,
    runs: [&[u8]; 2],
    codes: &Codes,
    table: &CodeTable,
    rooms: [&mut Vec<u8>; 2],
    prefetch: &mut Prefetcher,
) -> [usize; 2] {
    encode_two(runs, codes, rooms, prefetch, Wide::<TABLES, SIXTEEN>(isa, table))
}

/// Appends the codes of a group of symbols. A trait and no closure, because only
/// `#[inline(always)]` code is compiled for the same instructions.
trait Put<const GROUP: usize>: Copy {
    fn put(self, stream: &mut Stream<'_>, group: &[u8; GROUP]);
}

#[derive(Clone, Copy)]
struct Paired<'a>(&'a Pairs);

impl Put<8> for Paired<'_> {
    #[inline(always)]
    fn put(self, stream: &mut Stream<'_>, group: &[u8; 8]) {
        let [a, b, c, d] =
            [[group[0], group[1]], [group[2], group[3]], [group[4], group[5]], [group[6], group[7]]]
                .map(|pair| self.0[usize::from(u16::from_le_bytes(pair))]);
        let lens = stream.lens.wrapping_add(a).wrapping_add(b).wrapping_add(c).wrapping_add(d);
        stream.append(a);
        stream.append(b);
        // Eight codes of a skewed alphabet nearly always fit.
        if lens & 0xff > MAX_PENDING {
            stream.store();
        }
        stream.append(c);
        stream.append(d);
        stream.store();
    }
}

#[derive(Clone, Copy)]
struct Windowed<'a, I>(I, &'a CodeWindow, Paired<'a>);

impl<I: Isa> Put<32> for Windowed<'_, I> {
    #[inline(always)]
    fn put(self, stream: &mut Stream<'_>, group: &[u8; 32]) {
        let Some([first, second]) = self.0.concat_codes(*group, self.1) else {
            for group in group.as_chunks::<8>().0 {
                self.2.put(stream, group);
            }
            return;
        };
        stream.put_packed(first);
        stream.put_packed(second);
    }
}

/// By eight where all fit and have a window, else one by one.
#[derive(Clone, Copy)]
struct ManyWindowed<'a, I>(I, &'a CodeWindows, &'a Codes);

impl<I: Isa> Put<32> for ManyWindowed<'_, I> {
    #[inline(always)]
    fn put(self, stream: &mut Stream<'_>, group: &[u8; 32]) {
        let Some(eights) = self.0.concat_eights(*group, self.1) else {
            for part in group.chunks(GROUP) {
                part.iter().for_each(|&symbol| stream.append(self.2[usize::from(symbol)]));
                stream.store();
            }
            return;
        };
        for eight in eights {
            stream.put_packed(eight);
        }
    }
}

/// By sixteen, eight or four, whatever fits.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Wide<'a, const TABLES: usize, const SIXTEEN: bool>(Avx512, &'a CodeTable);

#[cfg(target_arch = "x86_64")]
impl<const TABLES: usize, const SIXTEEN: bool> Put<{ code_table::GROUP }> for Wide<'_, TABLES, SIXTEEN> {
    #[inline(always)]
    fn put(self, stream: &mut Stream<'_>, group: &[u8; code_table::GROUP]) {
        match self.0.pack_codes::<TABLES, SIXTEEN>(group, self.1) {
            PackedCodes::Sixteens(codes, lens) => {
                for i in [0, 1, 2, 3] {
                    stream.put_packed((codes[i], lens[i]));
                }
            }
            PackedCodes::Eights(codes, lens) => {
                for i in [0, 1, 2, 3, 4, 5, 6, 7] {
                    stream.put_packed((codes[i], lens[i]));
                }
            }
            PackedCodes::Fours([(first, first_lens), (second, second_lens)]) => {
                for i in 0..first.len() {
                    stream.put_packed((first[i], first_lens[i]));
                    stream.put_packed((second[i], second_lens[i]));
                }
            }
        }
    }
}

/// Writes two streams, group by group.
#[inline(always)]
fn encode_two<const GROUP: usize>(
    runs: [&[u8]; 2],
    codes: &Codes,
    rooms: [&mut Vec<u8>; 2],
    prefetch: &mut Prefetcher,
    by: impl Put<GROUP>,
) -> [usize; 2] {
    let [room_a, room_b] = rooms;
    let (groups_a, rest_a) = runs[0].as_chunks::<GROUP>();
    let (groups_b, rest_b) = runs[1].as_chunks::<GROUP>();
    let mut a = Stream::new(room_a, runs[0].len());
    let mut b = Stream::new(room_b, runs[1].len());
    for (group_a, group_b) in groups_a.iter().zip(groups_b) {
        by.put(&mut a, group_a);
        by.put(&mut b, group_b);
        prefetch.advance(2 * GROUP);
    }
    let both = groups_a.len().min(groups_b.len());
    for (stream, groups, rest) in [(&mut a, groups_a, rest_a), (&mut b, groups_b, rest_b)] {
        for group in &groups[both..] {
            by.put(stream, group);
        }
        for &symbol in rest {
            stream.append(codes[usize::from(symbol)]);
            stream.store();
        }
    }
    [a.finish(), b.finish()]
}

/// The code of every symbol at the top of a word, and its length.
struct TopCodes {
    codes: [u64; 256],
    lens: [u64; 256],
}

impl TopCodes {
    fn new(lengths: &Lengths, codes: &[u16; 256]) -> Self {
        let top = |symbol: usize| u64::from(codes[symbol]) << 1 << (63 - u32::from(lengths.0[symbol]));
        Self { codes: std::array::from_fn(top), lens: lengths.0.map(u64::from) }
    }
}

/// A bit stream being written, whose unstored bits are at the top of a word.
struct TopStream<'a> {
    room: &'a mut [u8],
    /// Whole bytes that are stored.
    at: usize,
    /// The bits of the byte behind them, then zeros.
    bits: u64,
    /// How many of `bits` are in use: 0 to 7 between groups.
    held: u64,
}

impl<'a> TopStream<'a> {
    fn new(room: &'a mut [u8], symbols: usize) -> Self {
        assert!(room.len() >= room_for(symbols), "room for the longest codes");
        Self { room, at: 0, bits: 0, held: 0 }
    }

    /// Appends the codes of at most [`GROUP`] symbols.
    #[inline(always)]
    fn put<const N: usize>(&mut self, group: &[u8; N], codes: &TopCodes) {
        const { assert!(N <= GROUP) };
        for &symbol in group {
            self.bits |= codes.codes[usize::from(symbol)] >> (self.held & 63);
            self.held += codes.lens[usize::from(symbol)];
        }
        debug_assert!(WORD + self.at + WORD <= self.room.len());
        // SAFETY: codes take at most MAX_LEN bits per symbol, so that the bytes before this group's
        // are fewer than `room_for` less the word before them and the one that is stored.
        unsafe {
            let target = self.room.as_mut_ptr().add(WORD + self.at);
            target.cast::<[u8; WORD]>().write(self.bits.to_be_bytes());
        }
        self.at += (self.held / 8) as usize;
        self.bits <<= self.held & 56;
        self.held &= 7;
    }

    /// The length of all in bytes.
    fn finish(self) -> usize {
        self.at + usize::from(self.held > 0)
    }
}

/// A bit stream being written, whose last bits are at the bottom of a word.
struct Stream<'a> {
    room: &'a mut [u8],
    /// The bits that were stored, and 7 more: divided by eight, the bytes that they take.
    stored: usize,
    /// The last bits of the stream, stored ones first, then pending ones.
    bits: u64,
    /// The sum of all words since the last store. The bits below [`CODE_SHIFT`] are the number of
    /// pending bits; the others are unspecified.
    lens: u32,
}

impl<'a> Stream<'a> {
    fn new(room: &'a mut [u8], symbols: usize) -> Self {
        assert!(room.len() >= room_for(symbols), "room for the longest codes");
        Self { room, stored: 7, bits: 0, lens: 0 }
    }

    /// Appends the code, or the codes, of a word. At most [`MAX_PENDING`] bits may be pending.
    #[inline(always)]
    fn append(&mut self, word: u32) {
        // The lowest six bits have the whole length; shifts ignore the others.
        self.bits = self.bits << (word & 63) | u64::from(word >> CODE_SHIFT);
        self.lens = self.lens.wrapping_add(word);
    }

    /// Stores all pending bits, the last byte padded with zeros.
    #[inline(always)]
    fn store(&mut self) {
        let waiting = self.lens & 0xff;
        self.lens = 0;
        self.store_counted(waiting as usize);
    }

    /// Appends concatenated codes of at most [`MAX_WINDOW_BITS`](crate::simd::isa::MAX_WINDOW_BITS)
    /// bits, and stores them. No bits may be pending.
    #[inline(always)]
    fn put_packed(&mut self, (codes, len): (u64, u64)) {
        self.bits = self.bits << (len & 63) | codes;
        self.store_counted(len as usize);
    }

    /// Stores `waiting` pending bits.
    #[inline(always)]
    fn store_counted(&mut self, waiting: usize) {
        self.stored += waiting;
        // As many zeros as fill the last byte.
        let word = self.bits << (!self.stored & 7);
        let end = self.stored / 8;
        debug_assert!(end + WORD <= self.room.len());
        // SAFETY: what was appended took at most MAX_LEN bits per symbol, all words of codes being
        // made of lengths up to that, so the stream's end is at most `room_for` less a word, which
        // precedes it.
        unsafe {
            let target = self.room.as_mut_ptr().add(end);
            target.cast::<[u8; WORD]>().write(word.to_be_bytes());
        }
    }

    /// The length of all in bytes.
    fn finish(self) -> usize {
        self.stored / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Portable;
    use proptest::prelude::*;

    /// One bit after the other, as the format says.
    fn naive(symbols: &[u8], lengths: &Lengths) -> Vec<u8> {
        let codes = lengths.codes();
        let mut bits = Vec::new();
        for &symbol in symbols {
            let (code, len) = (codes[usize::from(symbol)], lengths.0[usize::from(symbol)]);
            bits.extend((0..len).rev().map(|bit| (code >> bit & 1) as u8));
        }
        bits.chunks(8).map(|byte| byte.iter().enumerate().map(|(i, bit)| bit << (7 - i)).sum()).collect()
    }

    proptest! {
        #[test]
        fn streams_are_those_of_the_format(
            symbols in prop::collection::vec(any::<u32>(), 2..9000),
            few: bool,
        ) {
            // Few symbols of very different counts, or many.
            let symbol = |v: u32| if few { (v | 1 << 17).trailing_zeros() as u8 + 7 } else { v as u8 / 2 };
            let symbols: Vec<u8> = symbols.into_iter().map(symbol).collect();
            let Some(lengths) = Lengths::for_counts(&crate::kernel::histogram::exact(&symbols)) else {
                return Ok(());
            };
            let mut stored = Vec::new();
            let (scratch, none) = (&mut HuffmanScratch::default(), &mut Prefetcher::default());
            let lens = encode(&symbols, &lengths, &mut stored, scratch, none);
            let run = |i: usize| &symbols[run_range(i, lens.streams(), symbols.len())];
            let expected: Vec<Vec<u8>> = (0..lens.streams()).map(|i| naive(run(i), &lengths)).collect();
            prop_assert_eq!(lens.lens().to_vec(), expected.iter().map(|s| s.len() as u32).collect::<Vec<_>>());
            prop_assert_eq!(&stored, &expected.concat());
            // The other loops, whatever this machine has.
            let codes = words(&lengths, &lengths.codes());
            let top = TopCodes::new(&lengths, &lengths.codes());
            let mut pairs = None;
            let pairs = fill_pairs(&mut pairs, &codes, usize::MAX);
            let last = lens.streams() - 1;
            let runs = [run(0), run(last)];
            let mut rooms = [vec![0; room_for(symbols.len())], vec![0; room_for(symbols.len())]];
            let window = CodeWindow::new(&lengths, &lengths.codes());
            let windows = CodeWindows::new(&symbols, &lengths, &lengths.codes());
            for (by, portable) in (0..4).flat_map(|by| [(by, true), (by, false)]) {
                let ([a, b], prefetch) = (&mut rooms, &mut Prefetcher::default());
                let lens = match (by, pairs, &window) {
                    (0, Some(pairs), Some(window)) if portable => {
                        encode_windowed_with(Portable, runs, &codes, pairs, window, [a, b], prefetch)
                    }
                    (0, Some(pairs), Some(window)) => {
                        encode_windowed(runs, &codes, pairs, window, [a, b], prefetch)
                    }
                    (1, Some(pairs), _) if portable => {
                        encode_paired_with(Portable, runs, &codes, pairs, [a, b], prefetch)
                    }
                    (1, Some(pairs), _) => encode_paired(runs, &codes, pairs, [a, b], prefetch),
                    (3, ..) if let (true, Some(windows)) = (portable, &windows) => {
                        encode_by_windows_with(Portable, runs, &codes, windows, [a, b], prefetch)
                    }
                    (3, ..) if let Some(windows) = &windows => {
                        encode_by_windows(runs, &codes, windows, [a, b], prefetch)
                    }
                    _ if portable => encode_single_with(Portable, runs, &top, [a, b], prefetch),
                    _ => encode_single(runs, &top, [a, b], prefetch),
                };
                prop_assert_eq!(&rooms[0][WORD..WORD + lens[0]], &expected[0][..]);
                prop_assert_eq!(&rooms[1][WORD..WORD + lens[1]], &expected[last][..]);
            }
        }
    }
}
