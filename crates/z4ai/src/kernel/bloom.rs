//! A one-hash Bloom filter over match-finder hashes: one bit for every value of a hash's upper
//! bits.

/// Positions per test.
const TOGETHER: usize = 8;
/// The multiplier of the hash.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// The xor-shift before the multiplication.
const FOLD: u32 = 29;

/// The hash of eight bytes.
#[inline(always)]
pub(crate) fn hash(word: u64) -> u64 {
    (word ^ word >> FOLD).wrapping_mul(FACTOR)
}

/// The filter. Small enough to stay in the cache.
pub(crate) struct Filter {
    words: Vec<u64>,
    /// The right shift that turns a hash into a bit index.
    shift: u32,
}

impl Filter {
    /// With `1 << bits` bits, at least a word of them.
    pub(crate) fn new(bits: u32) -> Self {
        Self { words: vec![0; 1 << (bits - u64::BITS.ilog2())], shift: u64::BITS - bits }
    }

    pub(crate) fn insert(&mut self, hash: u64) {
        let bit = hash >> self.shift;
        self.words[(bit / 64) as usize] |= 1 << (bit % 64);
    }

    #[inline(always)]
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        let bit = hash >> self.shift;
        self.words[(bit / 64) as usize] >> (bit % 64) & 1 == 1
    }

    /// Calls `found` with every position whose eight bytes may be in the set, and their hash, until
    /// it returns `true`; returns whether it did.
    pub(crate) fn any(&self, bytes: &[u8], mut found: impl FnMut(usize, u64) -> bool) -> bool {
        let places = (bytes.len() + 1).saturating_sub(TOGETHER);
        let hash_at = |place: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[place..place + 8]);
            hash(u64::from_le_bytes(word))
        };
        let mut masks = [0u8; 64];
        let mut at = 0;
        // In batches, since only plain loops are compiled for the current level.
        while at < places {
            let some = self.look_up(&bytes[at..], &mut masks);
            if some == 0 {
                break;
            }
            for (index, &mask) in masks[..some].iter().enumerate() {
                let mut mask = mask;
                while mask != 0 {
                    let place = at + index * TOGETHER + mask.trailing_zeros() as usize;
                    if found(place, hash_at(place)) {
                        return true;
                    }
                    mask &= mask - 1;
                }
            }
            at += some * TOGETHER;
        }
        (at..places).any(|place| {
            let hash = hash_at(place);
            self.may_have(hash) && found(place, hash)
        })
    }

    /// Sets bit `i` of mask `j` where position `8 * j + i` may be in the set; returns the number of
    /// masks.
    fn look_up(&self, bytes: &[u8], masks: &mut [u8]) -> usize {
        #[cfg(target_arch = "x86_64")]
        if crate::simd::Avx512::new().is_some() {
            // SAFETY: the features were detected.
            return unsafe { self.look_up_wide(bytes, masks) };
        }
        let _ = (bytes, masks);
        0
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vbmi")]
    fn look_up_wide(&self, bytes: &[u8], masks: &mut [u8]) -> usize {
        use std::arch::x86_64::*;
        // Sixteen bytes hold the eight-byte words of eight positions.
        let some = masks.len().min(bytes.len().saturating_sub(TOGETHER) / TOGETHER);
        let windows: [u8; 64] = std::array::from_fn(|i| (i / 8 + i % 8) as u8);
        // SAFETY: that is a vector.
        let windows = unsafe { _mm512_loadu_si512(windows.as_ptr().cast()) };
        let (factor, one) = (_mm512_set1_epi64(FACTOR as i64), _mm512_set1_epi64(1));
        let shift = _mm_cvtsi32_si128(self.shift as i32);
        assert!(self.words.len() * 64 == 1 << (u64::BITS - self.shift), "a bit for every shifted hash");
        for (index, mask) in masks[..some].iter_mut().enumerate() {
            let sixteen = &bytes[index * TOGETHER..][..2 * TOGETHER];
            // SAFETY: there are sixteen bytes.
            let sixteen = unsafe { _mm_loadu_si128(sixteen.as_ptr().cast()) };
            let words = _mm512_permutexvar_epi8(windows, _mm512_castsi128_si512(sixteen));
            let folded = _mm512_xor_si512(words, _mm512_srli_epi64::<FOLD>(words));
            let bits = _mm512_srl_epi64(_mm512_mullo_epi64(folded, factor), shift);
            // SAFETY: what is shifted so is below the number of bits, as was asserted.
            let words = unsafe {
                _mm512_i64gather_epi64::<8>(_mm512_srli_epi64::<6>(bits), self.words.as_ptr().cast())
            };
            let bits = _mm512_and_si512(bits, _mm512_set1_epi64(63));
            *mask = _mm512_test_epi64_mask(_mm512_srlv_epi64(words, bits), one);
        }
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_places_in_the_set_are_found() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        for len in [0, 7, 8, 9, 15, 16, 17, 600, 4103] {
            let bytes: Vec<u8> = (0..len).map(|_| next()).collect();
            let hashes: Vec<u64> = bytes
                .windows(8)
                .map(|word| hash(u64::from_le_bytes(word.try_into().expect("eight bytes"))))
                .collect();
            let mut filter = Filter::new(12);
            hashes.iter().step_by(37).for_each(|&hash| filter.insert(hash));
            let expected: Vec<(usize, u64)> =
                hashes.iter().copied().enumerate().filter(|&(_, hash)| filter.may_have(hash)).collect();
            assert!(expected.len() >= hashes.len().div_ceil(37));
            let mut found = Vec::new();
            assert!(!filter.any(&bytes, |place, hash| {
                found.push((place, hash));
                false
            }));
            assert_eq!(found, expected);
            // Enough is enough.
            let mut calls = 0;
            let stopped = filter.any(&bytes, |_, _| {
                calls += 1;
                calls == 2
            });
            assert_eq!((stopped, calls), (expected.len() > 1, expected.len().min(2)));
        }
    }
}
