//! Writing Huffman-coded symbols: the bit streams that [`huffman_stream`] reads.
//!
//! [`huffman_stream`]: super::huffman_stream
//!
//! What is done beyond appending one code after the other, and why:
//!
//! 1. Codes of few symbols, as exponents are, are looked up two at a time.
//! 2. A code and its length are one word, of which shifts and sums use what they need without taking
//!    it apart first.
//! 3. Where vectors can do it, sixteen codes are joined before they are appended ([`Window`]).
//! 4. Two streams are written at once, so that one does not wait for the other's steps.
//! 5. Every group ends with the store of a whole word, of which the next store overwrites what was
//!    not full: no branch depends on the data.
//! 6. Meanwhile memory that is needed next can be fetched ([`fetch_meanwhile`]).

use std::cell::RefCell;

use super::huffman::{Lengths, MAX_LEN};
use super::huffman_stream::{STREAMS, Stored, WORD, run_of};
use crate::kernel::window::Window;
use crate::kernel::{Isa, copy, dispatch};

/// In a code's word its length has the bits below this, the code those from here on.
const CODE: u32 = 8;
const _: () = assert!(2 * MAX_LEN + CODE <= u32::BITS);
/// Bits that a word of a stream holds: those of a group, and up to 7 that wait.
const HELD: u32 = u64::BITS;
/// Codes that always fit.
const GROUP: usize = 5;
const _: () = assert!(GROUP as u32 * MAX_LEN + 7 <= HELD);
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
    ahead: Ahead,
}

impl Scratch {
    fn encode(&mut self, symbols: &[u8], lengths: &Lengths, out: &mut Vec<u8>) -> Stored {
        let codes = words(lengths);
        let window = Window::new(lengths, &lengths.codes());
        let streams = streams_for(symbols.len());
        let run = |index: usize| &symbols[run_of(index, streams, symbols.len())];
        let room = room_for(run(0).len());
        for stream in &mut self.streams {
            if stream.len() < room {
                stream.resize(room, 0);
            }
        }
        let pairs = fill_pairs(&mut self.pairs, &codes, symbols.len());
        let ([first, second], ahead) = (&mut self.streams, &mut self.ahead);
        let mut lens = [0; STREAMS];
        for at in (0..streams).step_by(2) {
            // A single stream has an empty one beside it.
            let runs = [run(at), if at + 1 < streams { run(at + 1) } else { &[] }];
            let two = match (pairs, &window) {
                (Some(pairs), Some(window)) => {
                    encode_windowed(runs, &codes, pairs, window, [first, second], ahead)
                }
                (Some(pairs), None) => encode_paired(runs, &codes, pairs, [first, second], ahead),
                (None, _) => encode_single(runs, &codes, [first, second], ahead),
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
    std::array::from_fn(|symbol| u32::from(codes[symbol]) << CODE | u32::from(lengths.0[symbol]))
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
            let (a, b) = (codes[first], codes[second]);
            // One code after the other, and the sum of their lengths.
            let shifted = (a >> CODE) << (b & 0xff) << CODE;
            pairs[first | second << 8] = (shifted | b) + (a & 0xff);
        }
    }
    Some(pairs)
}

dispatch! {
    /// Writes two bit streams, each to the front of its room; returns their lengths in bytes.
    fn encode_single(
        runs: [&[u8]; 2],
        codes: &Codes,
        rooms: [&mut Vec<u8>; 2],
        ahead: &mut Ahead,
    ) -> [usize; 2] = encode_single_with
}

dispatch! {
    /// As `encode_single`, with the codes of pairs as well.
    fn encode_paired(
        runs: [&[u8]; 2],
        codes: &Codes,
        pairs: &Pairs,
        rooms: [&mut Vec<u8>; 2],
        ahead: &mut Ahead,
    ) -> [usize; 2] = encode_paired_with
}

dispatch! {
    /// As `encode_paired`, with a window of codes as well.
    fn encode_windowed(
        runs: [&[u8]; 2],
        codes: &Codes,
        pairs: &Pairs,
        window: &Window,
        rooms: [&mut Vec<u8>; 2],
        ahead: &mut Ahead,
    ) -> [usize; 2] = encode_windowed_with
}

#[inline(always)]
fn encode_single_with(
    _: impl Isa,
    runs: [&[u8]; 2],
    codes: &Codes,
    rooms: [&mut Vec<u8>; 2],
    ahead: &mut Ahead,
) -> [usize; 2] {
    encode_two(runs, codes, rooms, ahead, Single(codes))
}

#[inline(always)]
fn encode_paired_with(
    _: impl Isa,
    runs: [&[u8]; 2],
    codes: &Codes,
    pairs: &Pairs,
    rooms: [&mut Vec<u8>; 2],
    ahead: &mut Ahead,
) -> [usize; 2] {
    encode_two(runs, codes, rooms, ahead, Paired(pairs))
}

#[inline(always)]
fn encode_windowed_with<I: Isa>(
    isa: I,
    runs: [&[u8]; 2],
    codes: &Codes,
    pairs: &Pairs,
    window: &Window,
    rooms: [&mut Vec<u8>; 2],
    ahead: &mut Ahead,
) -> [usize; 2] {
    encode_two(runs, codes, rooms, ahead, Windowed(isa, window, Paired(pairs)))
}

/// How the codes of a group of symbols are appended. A trait and no closure, because only what is always
/// inlined is compiled for the same machine.
trait Put<const GROUP: usize>: Copy {
    fn put(self, stream: &mut Stream<'_>, group: &[u8; GROUP]);
}

#[derive(Clone, Copy)]
struct Single<'a>(&'a Codes);

impl Put<GROUP> for Single<'_> {
    #[inline(always)]
    fn put(self, stream: &mut Stream<'_>, group: &[u8; GROUP]) {
        for &symbol in group {
            stream.append(self.0[usize::from(symbol)]);
        }
        stream.store();
    }
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
        if lens & 0xff > HELD {
            stream.store();
        }
        stream.append(c);
        stream.append(d);
        stream.store();
    }
}

#[derive(Clone, Copy)]
struct Windowed<'a, I>(I, &'a Window, Paired<'a>);

impl<I: Isa> Put<32> for Windowed<'_, I> {
    #[inline(always)]
    fn put(self, stream: &mut Stream<'_>, group: &[u8; 32]) {
        let Some([first, second]) = self.0.join_codes(*group, self.1) else {
            for group in group.as_chunks::<8>().0 {
                self.2.put(stream, group);
            }
            return;
        };
        stream.append_many(first);
        stream.store();
        stream.append_many(second);
        stream.store();
    }
}

/// Writes two streams, group by group.
#[inline(always)]
fn encode_two<const GROUP: usize>(
    runs: [&[u8]; 2],
    codes: &Codes,
    rooms: [&mut Vec<u8>; 2],
    ahead: &mut Ahead,
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
        ahead.fetch(2 * GROUP);
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

/// Memory that will be needed soon, to be fetched while codes are computed. By address: it is never read
/// or written through this.
#[derive(Debug, Default, Clone, Copy)]
struct Ahead {
    at: usize,
    end: usize,
    /// Bytes per symbol.
    rate: usize,
    /// Bytes that should have been fetched by now.
    due: usize,
}

/// Bytes of a cache line.
const LINE: usize = 64;

impl Ahead {
    /// Fetches what is due for so many symbols.
    #[inline(always)]
    fn fetch(&mut self, symbols: usize) {
        self.due += symbols * self.rate;
        while self.due >= LINE && self.at < self.end {
            copy::fetch(std::ptr::without_provenance(self.at), false);
            self.at += LINE;
            self.due -= LINE;
        }
    }
}

/// Has `memory`, at `rate` bytes per symbol, fetched into the caches while this thread encodes the next
/// symbols: that computes and hardly touches memory.
pub(crate) fn fetch_meanwhile(memory: &[u8], rate: usize) {
    let at = memory.as_ptr() as usize;
    SCRATCH.with_borrow_mut(|scratch| scratch.ahead = Ahead { at, end: at + memory.len(), rate, due: 0 });
}

/// A bit stream being written.
struct Stream<'a> {
    room: &'a mut [u8],
    written: usize,
    /// The lowest bits, as many as `lens` says, wait to be stored; those above were.
    bits: u64,
    /// The sum of all words since the last store, and of the bits that were left then. The sum of
    /// their lengths is in the bits below [`CODE`]; the others mean nothing.
    lens: u32,
}

impl<'a> Stream<'a> {
    fn new(room: &'a mut [u8], symbols: usize) -> Self {
        assert!(room.len() >= room_for(symbols), "room for the longest codes");
        Self { room, written: 0, bits: 0, lens: 0 }
    }

    /// Appends the code, or the codes, of a word. No more than [`HELD`] bits may wait.
    #[inline(always)]
    fn append(&mut self, word: u32) {
        // The lowest six bits have the whole length; machines take no others for a shift.
        self.bits = self.bits << (word & 63) | u64::from(word >> CODE);
        self.lens = self.lens.wrapping_add(word);
    }

    /// Appends joined codes of at most [`JOINED`](crate::kernel::window::JOINED) bits.
    #[inline(always)]
    fn append_many(&mut self, (codes, len): (u64, u64)) {
        self.bits = self.bits << (len & 63) | codes;
        self.lens += len as u32;
    }

    /// Stores all bits that wait; those that do not fill a byte go on waiting.
    #[inline(always)]
    fn store(&mut self) {
        let count = self.lens & 0xff;
        // With no bits at all, what is stored does not count either.
        let top = self.bits.wrapping_shl(HELD.wrapping_sub(count));
        debug_assert!(self.written + WORD <= self.room.len());
        // SAFETY: what was appended before took at most MAX_LEN bits per symbol, all words of codes being
        // made of lengths up to that, so `written` is at most `room_for` less a word.
        unsafe {
            let target = self.room.as_mut_ptr().add(self.written);
            target.cast::<[u8; WORD]>().write(top.to_be_bytes());
        }
        self.written += count as usize / 8;
        self.lens = count % 8;
    }

    /// The length of all in bytes.
    fn finish(self) -> usize {
        self.written + usize::from(self.lens > 0)
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
            let window = Window::new(&lengths, &lengths.codes());
            if let (Some(pairs), Some(window)) = (pairs, &window) {
                let ([a, b], mut ahead) = (&mut rooms, Ahead::default());
                let lens = encode_windowed_with(Portable, runs, &codes, pairs, window, [a, b], &mut ahead);
                prop_assert_eq!(&rooms[0][..lens[0]], &expected[0][..]);
                prop_assert_eq!(&rooms[1][..lens[1]], &expected[last][..]);
            }
            for paired in [false, true] {
                let ([a, b], mut ahead) = (&mut rooms, Ahead::default());
                let lens = match pairs {
                    Some(pairs) if paired => {
                        encode_paired_with(Portable, runs, &codes, pairs, [a, b], &mut ahead)
                    }
                    _ => encode_single_with(Portable, runs, &codes, [a, b], &mut ahead),
                };
                prop_assert_eq!(&rooms[0][..lens[0]], &expected[0][..]);
                prop_assert_eq!(&rooms[1][..lens[1]], &expected[last][..]);
            }
        }
    }
}
