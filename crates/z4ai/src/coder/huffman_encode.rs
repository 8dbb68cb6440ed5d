//! Writing Huffman-coded symbols: the bit streams that [`huffman_stream`] reads.
//!
//! [`huffman_stream`]: super::huffman_stream
//!
//! What is done beyond appending one code after the other, and why:
//!
//! 1. Codes of few symbols, as exponents are, are looked up two at a time.
//! 2. Four codes, or eight that are short, are joined before they meet the bits that wait: only that
//!    last step has to wait for the group before.
//! 3. Two streams are written at once, so that one does not wait for the other's steps.
//! 4. Every group ends with the store of a whole word, of which the next store overwrites what was
//!    not full: no branch depends on the data.

use std::cell::RefCell;

use super::huffman::{Lengths, MAX_LEN};
use super::huffman_stream::{STREAMS, Stored, WORD, run_of};
use crate::kernel::{Isa, dispatch};

/// In a code's word the code has the low bits, its length those from here on.
const LEN: u32 = 27;
const _: () = assert!(2 * MAX_LEN <= LEN && 2 * MAX_LEN < 1 << (u32::BITS - LEN));
/// Bits that can be appended at once: a word has room for them and 7 that wait.
const AT_ONCE: u32 = 57;
const _: () = assert!(4 * MAX_LEN <= AT_ONCE);
/// Fewer symbols than this are one stream: the lengths of others would cost more than they gain.
const FEW: usize = 4096;
/// More symbols than this have too many pairs for the first-level cache.
const PAIRED: usize = 48;

/// Words of single codes.
type Codes = [u32; 256];
/// Words of the codes of two symbols, the first in the low byte of the index. Only those of symbols
/// that occur are up to date.
type Pairs = [u32; 1 << 16];

thread_local! {
    /// Large enough that making it for every stream would show.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Appends the bit streams of `symbols` to `out`; returns their lengths in bytes.
///
/// Every symbol must have a code in `lengths`.
pub(crate) fn encode(symbols: &[u8], lengths: &Lengths, out: &mut Vec<u8>) -> Stored {
    SCRATCH.with_borrow_mut(|scratch| scratch.encode(symbols, lengths, out))
}

/// The number of streams that so many symbols are cut into.
pub(crate) fn streams_for(symbols: usize) -> usize {
    if symbols < FEW { 1 } else { STREAMS }
}

#[derive(Default)]
struct Scratch {
    pairs: Option<Box<Pairs>>,
    streams: [Vec<u8>; 2],
}

impl Scratch {
    fn encode(&mut self, symbols: &[u8], lengths: &Lengths, out: &mut Vec<u8>) -> Stored {
        let codes = words(lengths);
        let streams = streams_for(symbols.len());
        let run = |index: usize| &symbols[run_of(index, streams, symbols.len())];
        let room = room_for(run(0).len());
        for stream in &mut self.streams {
            if stream.len() < room {
                stream.resize(room, 0);
            }
        }
        let pairs = fill_pairs(&mut self.pairs, &codes, symbols.len());
        let [first, second] = &mut self.streams;
        let mut lens = [0; STREAMS];
        for at in (0..streams).step_by(2) {
            // A single stream has an empty one beside it.
            let runs = [run(at), if at + 1 < streams { run(at + 1) } else { &[] }];
            let two = match pairs {
                Some(pairs) => encode_paired(runs, &codes, pairs, [first, second]),
                None => encode_single(runs, &codes, [first, second]),
            };
            out.extend_from_slice(&first[..two[0]]);
            out.extend_from_slice(&second[..two[1]]);
            lens[at..at + 2].copy_from_slice(&two.map(|len| len as u32));
        }
        Stored::new(&lens[..streams]).expect("one of the two numbers of streams")
    }
}

/// Room that the stream of so many symbols may need: the longest codes, and a whole word that the
/// last group stores.
fn room_for(symbols: usize) -> usize {
    (symbols * MAX_LEN as usize).div_ceil(8) + WORD
}

fn words(lengths: &Lengths) -> Codes {
    let codes = lengths.codes();
    std::array::from_fn(|symbol| u32::from(codes[symbol]) | u32::from(lengths.0[symbol]) << LEN)
}

/// A code and its length.
type Code = (u64, u32);

#[inline(always)]
fn code_of(word: u32) -> Code {
    (u64::from(word & ((1 << LEN) - 1)), word >> LEN)
}

/// One code after the other.
#[inline(always)]
fn join(a: Code, b: Code) -> Code {
    (a.0 << b.1 | b.0, a.1 + b.1)
}

/// The words of all pairs, if there are few enough to pay for so many symbols.
fn fill_pairs<'a>(pairs: &'a mut Option<Box<Pairs>>, codes: &Codes, symbols: usize) -> Option<&'a Pairs> {
    let used: Vec<usize> = (0..256).filter(|&symbol| codes[symbol] != 0).collect();
    if used.len() > PAIRED || symbols < 8 * used.len() * used.len() {
        return None;
    }
    let pairs = pairs.get_or_insert_with(|| {
        let zeros = vec![0; 1 << 16].into_boxed_slice();
        zeros.try_into().expect("as many as were made")
    });
    for &second in &used {
        for &first in &used {
            let (joined, len) = join(code_of(codes[first]), code_of(codes[second]));
            pairs[first | second << 8] = joined as u32 | len << LEN;
        }
    }
    Some(pairs)
}

dispatch! {
    /// Writes two bit streams, each to the front of its room; returns their lengths in bytes.
    fn encode_single(runs: [&[u8]; 2], codes: &Codes, rooms: [&mut Vec<u8>; 2]) -> [usize; 2]
        = encode_single_with
}

dispatch! {
    /// As `encode_single`, with the codes of pairs as well.
    fn encode_paired(runs: [&[u8]; 2], codes: &Codes, pairs: &Pairs, rooms: [&mut Vec<u8>; 2]) -> [usize; 2]
        = encode_paired_with
}

#[inline(always)]
fn encode_single_with(_: impl Isa, runs: [&[u8]; 2], codes: &Codes, rooms: [&mut Vec<u8>; 2]) -> [usize; 2] {
    encode_two(runs, codes, rooms, |stream, group: &[u8; 4]| {
        let [a, b, c, d] = group.map(|symbol| code_of(codes[usize::from(symbol)]));
        stream.put(join(join(a, b), join(c, d)));
    })
}

#[inline(always)]
fn encode_paired_with(
    _: impl Isa,
    runs: [&[u8]; 2],
    codes: &Codes,
    pairs: &Pairs,
    rooms: [&mut Vec<u8>; 2],
) -> [usize; 2] {
    encode_two(runs, codes, rooms, |stream, group: &[u8; 8]| {
        let pair = |i: usize| code_of(pairs[usize::from(u16::from_le_bytes([group[i], group[i + 1]]))]);
        let (first, second) = (join(pair(0), pair(2)), join(pair(4), pair(6)));
        // Eight codes of a skewed alphabet are nearly always short enough.
        if first.1 + second.1 <= AT_ONCE {
            stream.put(join(first, second));
        } else {
            stream.put(first);
            stream.put(second);
        }
    })
}

#[inline(always)]
fn encode_two<const GROUP: usize>(
    runs: [&[u8]; 2],
    codes: &Codes,
    rooms: [&mut Vec<u8>; 2],
    put_group: impl Fn(&mut Stream<'_>, &[u8; GROUP]),
) -> [usize; 2] {
    let [room_a, room_b] = rooms;
    let (groups_a, rest_a) = runs[0].as_chunks::<GROUP>();
    let (groups_b, rest_b) = runs[1].as_chunks::<GROUP>();
    let mut a = Stream::new(room_a, runs[0].len());
    let mut b = Stream::new(room_b, runs[1].len());
    for (group_a, group_b) in groups_a.iter().zip(groups_b) {
        put_group(&mut a, group_a);
        put_group(&mut b, group_b);
    }
    let both = groups_a.len().min(groups_b.len());
    for (stream, groups, rest) in [(&mut a, groups_a, rest_a), (&mut b, groups_b, rest_b)] {
        groups[both..].iter().for_each(|group| put_group(stream, group));
        for &symbol in rest {
            stream.put(code_of(codes[usize::from(symbol)]));
        }
    }
    [a.finish(), b.finish()]
}

/// A bit stream being written.
struct Stream<'a> {
    room: &'a mut [u8],
    written: usize,
    /// The lowest `count` (at most 7) bits wait to be written; those above were.
    bits: u64,
    count: u32,
}

impl<'a> Stream<'a> {
    fn new(room: &'a mut [u8], symbols: usize) -> Self {
        assert!(room.len() >= room_for(symbols), "room for the longest codes");
        Self { room, written: 0, bits: 0, count: 0 }
    }

    /// Appends codes of at most [`AT_ONCE`] bits.
    #[inline(always)]
    fn put(&mut self, (codes, len): Code) {
        self.bits = self.bits << len | codes;
        let count = self.count + len;
        // With no bits at all, what is stored does not count either.
        let top = self.bits.wrapping_shl(64u32.wrapping_sub(count));
        debug_assert!(self.written + WORD <= self.room.len());
        // SAFETY: what was put before took at most MAX_LEN bits per symbol, all words of codes being
        // made of lengths up to that, so `written` is at most `room_for` less a word.
        unsafe {
            let target = self.room.as_mut_ptr().add(self.written);
            target.cast::<[u8; WORD]>().write(top.to_be_bytes());
        }
        self.written += count as usize / 8;
        self.count = count % 8;
    }

    /// The length of all in bytes.
    fn finish(self) -> usize {
        self.written + usize::from(self.count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Portable;
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
            let Some(lengths) = Lengths::for_counts(&crate::kernel::histogram::of_bytes(&symbols)) else {
                return Ok(());
            };
            let mut stored = Vec::new();
            let lens = encode(&symbols, &lengths, &mut stored);
            let run = |i: usize| &symbols[run_of(i, lens.streams(), symbols.len())];
            let expected: Vec<Vec<u8>> = (0..lens.streams()).map(|i| naive(run(i), &lengths)).collect();
            prop_assert_eq!(lens.lens().to_vec(), expected.iter().map(|s| s.len() as u32).collect::<Vec<_>>());
            prop_assert_eq!(&stored, &expected.concat());
            // The portable loops, whatever this machine has.
            let codes = words(&lengths);
            let mut pairs = None;
            let pairs = fill_pairs(&mut pairs, &codes, usize::MAX);
            let last = lens.streams() - 1;
            let runs = [run(0), run(last)];
            let mut rooms = [vec![0; room_for(symbols.len())], vec![0; room_for(symbols.len())]];
            for paired in [false, true] {
                let [a, b] = &mut rooms;
                let lens = match pairs {
                    Some(pairs) if paired => encode_paired_with(Portable, runs, &codes, pairs, [a, b]),
                    _ => encode_single_with(Portable, runs, &codes, [a, b]),
                };
                prop_assert_eq!(&rooms[0][..lens[0]], &expected[0][..]);
                prop_assert_eq!(&rooms[1][..lens[1]], &expected[last][..]);
            }
        }
    }
}
