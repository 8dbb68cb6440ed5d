//! Builds the window of sixteen consecutive symbols whose codes a byte shuffle can look up.
//!
//! Exponents are so close together that a window covers nearly all of them.

use crate::coder::huffman::lengths::{Lengths, MAX_LEN};
use crate::estimate::sampling;
use crate::kernel::histogram;
use crate::simd::{CodeWindow, CodeWindows, MAX_WINDOWS, WINDOW};

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

/// Symbols that windows are chosen by: `SAMPLES` runs of `SAMPLE_RUN`. (structural: some per window)
const SAMPLES: usize = 16;
const SAMPLE_RUN: usize = 128;
/// Eight codes of a mean length up to this, in sixteenths of a bit, mostly fit a word.
/// (structural: 57 bits less some deviations)
const MAX_MEAN_LEN: u64 = 16 * 6 + 4;

impl CodeWindows {
    /// As few windows as cover enough of these symbols, if few do.
    pub(crate) fn new(symbols: &[u8], lengths: &Lengths, codes: &[u16; 256]) -> Option<Self> {
        if symbols.len() < 2 * SAMPLES * SAMPLE_RUN {
            return None;
        }
        let mut some = [0; SAMPLES * SAMPLE_RUN];
        let runs = some.as_chunks_mut::<SAMPLE_RUN>().0;
        for (run, at) in runs.iter_mut().zip(sampling::strided(symbols.len(), SAMPLE_RUN, SAMPLES, 1)) {
            run.copy_from_slice(&symbols[at..at + SAMPLE_RUN]);
        }
        let counts = histogram::exact(&some);
        let bits: u64 = counts.iter().zip(&lengths.0).map(|(&n, &len)| u64::from(n) * u64::from(len)).sum();
        if 16 * bits > MAX_MEAN_LEN * some.len() as u64 {
            return None;
        }
        let enough = (some.len() as u32).div_ceil(MIN_COVERAGE);
        let (first, count) = (2..=MAX_WINDOWS).find_map(|count| {
            let (first, most) = best_range(&counts, count * WINDOW);
            (some.len() as u32 - most <= enough).then_some((first, count))
        })?;
        let mut bytes = [[[0; WINDOW]; 2]; MAX_WINDOWS];
        for i in 0..count * WINDOW {
            let symbol = (first + i) % 256;
            let [low, high] = codes[symbol].to_le_bytes();
            bytes[i / WINDOW][0][i % WINDOW] = low;
            bytes[i / WINDOW][1][i % WINDOW] = high | lengths.0[symbol] << 4;
        }
        Some(Self { first: first as u8, count, bytes })
    }
}

/// The `len` consecutive symbols, which may wrap around, of the highest counts: the first, and their sum.
fn best_range(counts: &[u32; 256], len: usize) -> (usize, u32) {
    let mut within: u32 = counts[..len].iter().sum();
    let mut best = (0, within);
    for start in 1..256 {
        within = within + counts[(start + len - 1) % 256] - counts[start - 1];
        if within > best.1 {
            best = (start, within);
        }
    }
    best
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

        #[test]
        fn joined_codes_of_windows_are_one_after_the_other(values: [u32; 32], spread in 20u32..200, first: u8) {
            let Some(avx2) = Avx2::new() else { return Ok(()) };
            let symbol = |v: u32| first.wrapping_add(((v % spread) * (v >> 16 & 255) / 256) as u8);
            let many: Vec<u8> = (0..8192u32).map(|i| symbol(i.wrapping_mul(0x9e37_79b1) >> 4)).collect();
            let mut counts = histogram::exact(&many);
            let symbols = values.map(symbol);
            symbols.iter().for_each(|&symbol| counts[usize::from(symbol)] += 1);
            let Some(lengths) = Lengths::for_counts(&counts) else { return Ok(()) };
            let codes = lengths.codes();
            let Some(windows) = CodeWindows::new(&many, &lengths, &codes) else { return Ok(()) };
            let naive: Vec<(u128, u64)> = symbols.chunks(8).map(|eight| {
                eight.iter().fold((0u128, 0u64), |(joined, bits), &symbol| {
                    let len = lengths.0[usize::from(symbol)];
                    (joined << len | u128::from(codes[usize::from(symbol)]), bits + u64::from(len))
                })
            }).collect();
            let inside =
                |&symbol: &u8| usize::from(symbol.wrapping_sub(windows.first)) < windows.count * WINDOW;
            let fits = symbols.iter().all(inside) && naive.iter().all(|eight| eight.1 <= MAX_WINDOW_BITS);
            let expected = fits.then(|| std::array::from_fn(|i| (naive[i].0 as u64, naive[i].1)));
            prop_assert_eq!(avx2.concat_eights(symbols, &windows), expected);
        }
    }
}
