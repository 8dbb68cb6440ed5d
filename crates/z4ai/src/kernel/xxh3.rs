//! XXH3 (64 bits, seed 0) of content whose length is known in advance.
//!
//! Content is produced part by part, and each part is hashed while it is in the first-level cache.
//! Parts are whole blocks of sixteen stripes; accumulators stay in registers and nothing is
//! buffered. Our own loops, because those of other implementations cannot be fused with the copy or
//! the merge that produces the content.

use std::hint::black_box;
use std::mem::MaybeUninit;

use twox_hash::XxHash3_64;

use crate::simd::prefetch::{Hint, prefetch};
use crate::simd::{Isa, STRIPE, Sums, dispatch_wide};

/// Bytes between two scrambles of the accumulators.
pub(crate) const HASH_BLOCK: usize = STRIPE * STRIPES;
pub(crate) const STRIPES: usize = 16;
/// Prefetch distance in bytes, for one input and for each of several interleaved ones.
const PREFETCH_DISTANCE: usize = 4096;
const PREFETCH_DISTANCE_INTERLEAVED: usize = 2048;
/// Content up to this length is hashed by other rules of XXH3.
const MAX_SHORT: usize = 240;
/// The end of the content that a hash is finished by: all of it if it is short.
pub(crate) const MIN_END: usize = 256;

const PRIME32_1: u64 = 0x9e37_79b1;
const PRIME64_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME_LAST: u64 = 0x1656_6791_9e37_79f9;

/// The default secret of XXH3.
const SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde,
    0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79,
    0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46,
    0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb,
    0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2,
    0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c,
    0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59,
    0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3,
    0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3,
    0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8,
    0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb,
    0xca, 0xbb, 0x4b, 0x40, 0x7e,
];
/// Offsets into the secret for scrambling, for the last stripe and for the result.
const SCRAMBLE_AT: usize = SECRET.len() - STRIPE;
const LAST_AT: usize = SECRET.len() - STRIPE - 7;
const RESULT_AT: usize = 11;

const START: Sums = [
    0xc2b2_ae3d,
    PRIME64_1,
    0xc2b2_ae3d_27d4_eb4f,
    0x1656_67b1_9e37_79f9,
    0x85eb_ca77_c2b2_ae63,
    0x85eb_ca77,
    0x27d4_eb2f_1656_67c5,
    PRIME32_1,
];

#[inline(always)]
pub(crate) fn secret(at: usize) -> [u8; STRIPE] {
    let mut secret = [0; STRIPE];
    secret.copy_from_slice(&SECRET[at..at + STRIPE]);
    secret
}

/// Accumulates stripe `index`; the last one of a block scrambles.
#[inline(always)]
pub(crate) fn add(isa: impl Isa, sums: Sums, stripe: [u8; STRIPE], index: usize) -> Sums {
    let index = index % STRIPES;
    let sums = isa.accumulate(sums, stripe, secret(index * 8));
    if index == STRIPES - 1 { scramble(sums) } else { sums }
}

/// Scrambles the accumulators.
#[inline(always)]
pub(crate) fn scramble(mut sums: Sums) -> Sums {
    let secret = secret(SCRAMBLE_AT);
    for (sum, word) in sums.iter_mut().zip(secret.as_chunks().0) {
        *sum = (*sum ^ *sum >> 47 ^ u64::from_le_bytes(*word)).wrapping_mul(PRIME32_1);
    }
    sums
}

/// An incremental hash.
pub(crate) struct Hasher {
    sums: Sums,
    /// Bytes of the content, and how many are not accumulated yet.
    len: usize,
    left: usize,
}

impl Hasher {
    /// For content of `len` bytes.
    pub(crate) fn new(len: usize) -> Self {
        Self { sums: START, len, left: len }
    }

    /// How many of the next `bytes` are whole blocks that can be accumulated now. The last block
    /// has to wait for `finish`, even if it is whole.
    fn due(&self, bytes: usize) -> usize {
        bytes.min(self.left.saturating_sub(1)) / HASH_BLOCK * HASH_BLOCK
    }

    /// Records bytes that were accumulated, at most those that are [due](Self::due).
    fn advance(&mut self, bytes: usize) {
        self.left -= bytes;
    }

    /// Lets a fused kernel hash a prefix of the next `bytes` itself. `kernel(acc, max)` may consume
    /// up to `max` bytes (whole blocks) and returns how many it did.
    pub(crate) fn update_fused(
        &mut self,
        bytes: usize,
        kernel: impl FnOnce(&mut Sums, usize) -> usize,
    ) -> usize {
        let due = self.due(bytes);
        let added = kernel(&mut self.sums, due);
        assert!(added <= due && added.is_multiple_of(HASH_BLOCK));
        self.advance(added);
        added
    }

    /// Accumulates the next bytes: whole blocks, unless they are the last ones.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let due = self.due(bytes.len());
        sum_up(&mut self.sums, &bytes[..due]);
        self.advance(due);
    }

    /// As [`write`](Self::write), and prefetches as many bytes at `ahead`.
    pub(crate) fn write_ahead(&mut self, bytes: &[u8], ahead: *const u8) {
        let due = self.due(bytes.len());
        sum_up_ahead(&mut self.sums, &bytes[..due], ahead);
        self.advance(due);
    }

    /// Appends the next bytes to `content` and hashes the copy. `bytes` are read once: if another
    /// thread changes them meanwhile, the hash is still that of the copy.
    pub(crate) fn write_appended(&mut self, bytes: &[u8], content: &mut Vec<u8>) {
        content.reserve(bytes.len());
        let (blocks, rest) = bytes.split_at(self.due(bytes.len()));
        sum_up_copied(&mut self.sums, blocks, &mut content.spare_capacity_mut()[..blocks.len()]);
        // SAFETY: `sum_up_copied` initialised these bytes, which follow the content.
        unsafe { content.set_len(content.len() + blocks.len()) };
        content.extend_from_slice(rest);
        self.advance(blocks.len());
    }

    /// As [`write`](Self::write), and copies `from` to `lines`, whole aligned cache lines, with
    /// non-temporal stores. A [fence](crate::kernel::streaming::store_fence) has to follow before
    /// another thread reads them. As many bytes are prefetched at `ahead`.
    pub(crate) fn write_streaming(&mut self, bytes: &[u8], from: &[u8], lines: &mut [u8], ahead: *const u8) {
        let due = self.due(bytes.len());
        sum_up_streaming(&mut self.sums, &bytes[..due], from, lines, ahead);
        self.advance(due);
    }

    /// Lets a fused kernel hash the next `bytes` of two contents of one length itself: whole blocks that
    /// are not the last ones.
    pub(crate) fn update_both(
        [first, second]: &mut [Self; 2],
        bytes: usize,
        kernel: impl FnOnce([&mut Sums; 2]),
    ) {
        assert!(first.left == second.left && first.due(bytes) == bytes);
        kernel([&mut first.sums, &mut second.sums]);
        first.advance(bytes);
        second.advance(bytes);
    }

    /// The hash of `content`, which was written completely.
    pub(crate) fn finish(&self, content: &[u8]) -> u64 {
        debug_assert!(self.len == content.len());
        self.finish_by_end(content)
    }

    /// As [`finish`](Self::finish), by the end of the content: at least what was not accumulated,
    /// and [`MIN_END`] bytes if the content has them.
    pub(crate) fn finish_by_end(&self, end: &[u8]) -> u64 {
        debug_assert!(end.len() >= self.left.max(self.len.min(MIN_END)) && self.left <= HASH_BLOCK);
        if self.len <= MAX_SHORT {
            return XxHash3_64::oneshot(end);
        }
        let mut sums = self.sums;
        sum_up_last(&mut sums, &end[end.len() - self.left..], &end[end.len() - STRIPE..]);
        let mut result = (self.len as u64).wrapping_mul(PRIME64_1);
        let secret: [u8; STRIPE] = secret(RESULT_AT);
        let words: [u64; 8] = std::array::from_fn(|i| {
            let mut word = [0; 8];
            word.copy_from_slice(&secret[8 * i..8 * i + 8]);
            sums[i] ^ u64::from_le_bytes(word)
        });
        for pair in words.as_chunks::<2>().0 {
            let product = u128::from(pair[0]) * u128::from(pair[1]);
            result = result.wrapping_add(product as u64 ^ (product >> 64) as u64);
        }
        result ^= result >> 37;
        result = result.wrapping_mul(PRIME_LAST);
        result ^ result >> 32
    }
}

/// The hash of `content` in memory, prefetched.
pub(crate) fn hash(content: &[u8]) -> u64 {
    let mut hasher = Hasher::new(content.len());
    let due = hasher.due(content.len());
    sum_up_from_memory(&mut hasher.sums, &content[..due]);
    hasher.advance(due);
    hasher.finish(content)
}

/// Contents hashed by [`hash_each`].
pub(crate) const INTERLEAVED: usize = 4;

/// The hashes of several contents in memory, interleaved block by block: processors read several
/// streams faster than one after the other.
pub(crate) fn hash_each(contents: [&[u8]; INTERLEAVED]) -> [u64; INTERLEAVED] {
    let mut hashers = contents.map(|content| Hasher::new(content.len()));
    let due: [usize; INTERLEAVED] = std::array::from_fn(|i| hashers[i].due(contents[i].len()));
    let together = due.into_iter().min().unwrap_or(0);
    let mut sums = [START; INTERLEAVED];
    sum_up_each(&mut sums, contents.map(|content| &content[..together]));
    for (i, hasher) in hashers.iter_mut().enumerate() {
        hasher.sums = sums[i];
        sum_up_from_memory(&mut hasher.sums, &contents[i][together..due[i]]);
        hasher.advance(due[i]);
    }
    std::array::from_fn(|i| hashers[i].finish(contents[i]))
}

dispatch_wide! {
    /// Accumulates whole blocks of several contents, the same number of each.
    fn sum_up_each(sums: &mut [Sums; INTERLEAVED], contents: [&[u8]; INTERLEAVED]) = sum_up_each_with
}

#[inline(always)]
fn sum_up_each_with(isa: impl Isa, sums: &mut [Sums; INTERLEAVED], contents: [&[u8]; INTERLEAVED]) {
    let blocks = contents.map(|content| content.as_chunks::<HASH_BLOCK>().0);
    for number in 0..blocks[0].len() {
        for (sums, blocks) in sums.iter_mut().zip(blocks) {
            let mut local = *sums;
            for (index, stripe) in blocks[number].as_chunks::<STRIPE>().0.iter().enumerate() {
                prefetch(stripe.as_ptr().wrapping_add(PREFETCH_DISTANCE_INTERLEAVED), Hint::L1);
                local = add(isa, local, *stripe, index);
            }
            *sums = local;
        }
    }
}

dispatch_wide! {
    /// Accumulates whole blocks.
    pub(crate) fn sum_up(sums: &mut Sums, blocks: &[u8]) = sum_up_with
}

#[inline(always)]
fn sum_up_with(isa: impl Isa, sums: &mut Sums, blocks: &[u8]) {
    let mut local = *sums;
    for block in blocks.as_chunks::<HASH_BLOCK>().0 {
        for (index, stripe) in block.as_chunks::<STRIPE>().0.iter().enumerate() {
            local = add(isa, local, *stripe, index);
        }
    }
    *sums = local;
}

dispatch_wide! {
    /// Copies whole blocks to `to`, all of which it initialises, and accumulates the copies.
    fn sum_up_copied(sums: &mut Sums, blocks: &[u8], to: &mut [MaybeUninit<u8>]) = sum_up_copied_with
}

#[inline(always)]
fn sum_up_copied_with(isa: impl Isa, sums: &mut Sums, blocks: &[u8], to: &mut [MaybeUninit<u8>]) {
    assert_eq!(blocks.len(), to.len());
    let mut local = *sums;
    let copies = to.as_chunks_mut::<HASH_BLOCK>().0.iter_mut().zip(blocks.as_chunks::<HASH_BLOCK>().0);
    for (to, block) in copies {
        let stripes = to.as_chunks_mut::<STRIPE>().0.iter_mut().zip(block.as_chunks::<STRIPE>().0);
        for (index, (to, stripe)) in stripes.enumerate() {
            let to = to.as_mut_ptr().cast::<[u8; STRIPE]>();
            // SAFETY: `to` has the length of a stripe, and is initialised by this write.
            let copied = unsafe {
                to.write(*stripe);
                &*to
            };
            // Keeps the compiler from reading the source a second time instead of the copy.
            local = add(isa, local, *black_box(copied), index);
        }
    }
    *sums = local;
}

/// As [`sum_up`], with prefetch: hardware prefetchers stop at 4 KiB pages.
fn sum_up_from_memory(sums: &mut Sums, blocks: &[u8]) {
    sum_up_ahead(sums, blocks, blocks.as_ptr().wrapping_add(PREFETCH_DISTANCE));
}

dispatch_wide! {
    /// As [`sum_up`], and prefetches as many bytes at `ahead`, which may be any address.
    fn sum_up_ahead(sums: &mut Sums, blocks: &[u8], ahead: *const u8) = sum_up_ahead_with
}

#[inline(always)]
fn sum_up_ahead_with(isa: impl Isa, sums: &mut Sums, blocks: &[u8], mut ahead: *const u8) {
    let mut local = *sums;
    for block in blocks.as_chunks::<HASH_BLOCK>().0 {
        for (index, stripe) in block.as_chunks::<STRIPE>().0.iter().enumerate() {
            prefetch(ahead, Hint::L1);
            ahead = ahead.wrapping_add(STRIPE);
            local = add(isa, local, *stripe, index);
        }
    }
    *sums = local;
}

dispatch_wide! {
    /// Accumulates whole blocks, copies `from` to `lines` with non-temporal stores, and prefetches as many
    /// bytes at `ahead`, which may be any address.
    fn sum_up_streaming(
        sums: &mut Sums,
        blocks: &[u8],
        from: &[u8],
        lines: &mut [u8],
        ahead: *const u8,
    ) = sum_up_streaming_with
}

#[inline(always)]
fn sum_up_streaming_with(
    isa: impl Isa,
    sums: &mut Sums,
    blocks: &[u8],
    from: &[u8],
    lines: &mut [u8],
    mut ahead: *const u8,
) {
    assert!(from.len() == lines.len() && lines.len().is_multiple_of(STRIPE));
    assert!(lines.is_empty() || lines.as_ptr().addr().is_multiple_of(STRIPE));
    let mut local = *sums;
    let mut copies = lines.as_chunks_mut::<STRIPE>().0.iter_mut().zip(from.as_chunks::<STRIPE>().0);
    // SAFETY: a line is as long as a stripe and, as the first is, aligned.
    let copy =
        |line: &mut [u8; STRIPE], from: &[u8; STRIPE]| unsafe { isa.store_nt(line.as_mut_ptr(), *from) };
    // Interleaved, so that arithmetic and stores overlap.
    for block in blocks.as_chunks::<HASH_BLOCK>().0 {
        for (index, stripe) in block.as_chunks::<STRIPE>().0.iter().enumerate() {
            prefetch(ahead, Hint::L1);
            ahead = ahead.wrapping_add(STRIPE);
            local = add(isa, local, *stripe, index);
            if let Some((line, from)) = copies.next() {
                copy(line, from);
            }
        }
    }
    copies.for_each(|(line, from)| copy(line, from));
    *sums = local;
}

dispatch_wide! {
    /// Accumulates the last block and the last stripe, which overlaps it.
    fn sum_up_last(sums: &mut Sums, block: &[u8], stripe: &[u8]) = sum_up_last_with
}

#[inline(always)]
fn sum_up_last_with(isa: impl Isa, sums: &mut Sums, block: &[u8], stripe: &[u8]) {
    let mut local = *sums;
    for (index, stripe) in block[..block.len() - 1].as_chunks().0.iter().enumerate() {
        local = add(isa, local, *stripe, index);
    }
    let mut last = [0; STRIPE];
    last.copy_from_slice(stripe);
    *sums = isa.accumulate(local, last, secret(LAST_AT));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Portable;

    #[test]
    fn hashes_are_those_of_xxh3() {
        let mut state = 1u64;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(5 * HASH_BLOCK)
        .collect();
        let near = |n: usize| n.saturating_sub(66)..(n + 66).min(bytes.len());
        for len in (0..4).flat_map(|blocks| near(blocks * HASH_BLOCK)).chain(200..300) {
            let content = &bytes[..len];
            let expected = XxHash3_64::oneshot(content);
            assert_eq!(hash(content), expected, "{len} bytes");
            let mut portable = Hasher::new(len);
            let due = portable.due(len);
            sum_up_with(Portable, &mut portable.sums, &content[..due]);
            portable.advance(due);
            assert_eq!(portable.finish(content), expected, "{len} bytes, portable");
            portable.sums = START;
            sum_up_ahead_with(Portable, &mut portable.sums, &content[..due], std::ptr::null());
            assert_eq!(portable.finish(content), expected, "{len} bytes, portable, with prefetch");
            #[cfg(target_arch = "x86_64")]
            if let Some(avx2) = crate::simd::Avx2::new() {
                let mut narrow = Hasher::new(len);
                sum_up_with(avx2, &mut narrow.sums, &content[..due]);
                narrow.advance(due);
                assert_eq!(narrow.finish(content), expected, "{len} bytes, narrow");
            }
            let others = [content, &bytes[1..], &bytes[..len / 2], &bytes[..HASH_BLOCK + len / 3]];
            assert_eq!(hash_each(others), others.map(XxHash3_64::oneshot), "{len} bytes and others");
            let whole = others.map(|content| &content[..len / 2 / HASH_BLOCK * HASH_BLOCK]);
            let [mut portable, mut alone] = [[START; INTERLEAVED]; 2];
            sum_up_each_with(Portable, &mut portable, whole);
            alone.iter_mut().zip(whole).for_each(|(sums, blocks)| sum_up(sums, blocks));
            assert_eq!(portable, alone, "{len} bytes and others, portable");
            let mut parts = Hasher::new(len);
            content.chunks(2 * HASH_BLOCK).for_each(|part| parts.write(part));
            assert_eq!(parts.finish(content), expected, "{len} bytes in parts");
            let (mut parts, mut copy) = (Hasher::new(len), vec![7]);
            content.chunks(2 * HASH_BLOCK).for_each(|part| parts.write_appended(part, &mut copy));
            assert_eq!(&copy[1..], content);
            assert_eq!(parts.finish(content), expected, "{len} bytes in parts, copied");
            let [mut sums, mut alone] = [START; 2];
            let mut copy = vec![MaybeUninit::new(0); due];
            sum_up_copied_with(Portable, &mut sums, &content[..due], &mut copy);
            sum_up(&mut alone, &content[..due]);
            assert_eq!(sums, alone, "{len} bytes, portable, copied");
            // SAFETY: all of these were written.
            assert!(copy.iter().map(|byte| unsafe { byte.assume_init() }).eq(content[..due].iter().copied()));
        }
    }
}
