//! Builds the window of sixteen consecutive symbols whose codes a byte shuffle can look up.
//!
//! Exponents are so close together that a window covers nearly all of them.

use crate::coder::huffman::lengths::{Lengths, MAX_LEN};
use crate::simd::{CodeWindow, WINDOW};

/// Use the window when at most 1/256 of the symbols fall outside it: a group with another symbol
/// falls back to pairs. (case: `codec.py`, compress at `Z4AI_CPU=avx2`)
const MIN_COVERAGE: u32 = 256;

impl CodeWindow {
    /// The best window of these codes, if it covers enough.
    pub(crate) fn new(lengths: &Lengths, codes: &[u16; 256]) -> Option<Self> {
        /// (structural)
        const ALL: u32 = 1 << MAX_LEN;
        let share = |symbol: usize| match lengths.0[symbol] {
            0 => 0,
            len => ALL >> len,
        };
        let mut within: u32 = (0..WINDOW).map(share).sum();
        let (mut first, mut most) = (0, within);
        for start in 1..=256 - WINDOW {
            within = within + share(start + WINDOW - 1) - share(start - 1);
            if within > most {
                (first, most) = (start, within);
            }
        }
        if (ALL - most) * MIN_COVERAGE > ALL {
            return None;
        }
        let bytes = |value: &dyn Fn(usize) -> u16| {
            [0, 1].map(|byte| std::array::from_fn(|i| value(first + i).to_le_bytes()[byte]))
        };
        Some(Self {
            first: first as u8,
            codes: bytes(&|symbol| codes[symbol]),
            lens: std::array::from_fn(|i| lengths.0[first + i]),
            powers: bytes(&|symbol| 1 << lengths.0[symbol]),
        })
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::simd::isa::MAX_WINDOW_BITS;
    use crate::simd::{Avx2, Isa};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn joined_codes_are_one_after_the_other(values: [u32; 32], first in 0u8..=230, spread in 1u32..24) {
            let Some(avx2) = Avx2::new() else { return Ok(()) };
            let symbols: [u8; 32] = values.map(|v| first + ((v | 1 << 23).trailing_zeros() % spread) as u8);
            let mut counts = [0; 256];
            (0..spread).for_each(|i| counts[usize::from(first) + i as usize] = 1 << (24 - i));
            let Some(lengths) = Lengths::for_counts(&counts) else { return Ok(()) };
            let codes = lengths.codes();
            let Some(window) = CodeWindow::new(&lengths, &codes) else { return Ok(()) };
            let naive = symbols.as_chunks::<16>().0.iter().map(|half| {
                half.iter().fold((0u128, 0u64), |(joined, bits), &symbol| {
                    let len = lengths.0[usize::from(symbol)];
                    (joined << len | u128::from(codes[usize::from(symbol)]), bits + u64::from(len))
                })
            });
            let naive: Vec<(u128, u64)> = naive.collect();
            let inside = |&symbol: &u8| usize::from(symbol.wrapping_sub(window.first)) < WINDOW;
            let fits = symbols.iter().all(inside) && naive.iter().all(|half| half.1 <= MAX_WINDOW_BITS);
            let expected = fits.then(|| [0, 1].map(|i| (naive[i].0 as u64, naive[i].1)));
            prop_assert_eq!(avx2.concat_codes(symbols, &window), expected);
        }
    }
}
