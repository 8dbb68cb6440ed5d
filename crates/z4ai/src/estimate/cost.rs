//! What symbols would cost, in integers: the same on every machine.

/// Fraction bits of [`log2`]. (structural: sums of 2^32 symbols fit 64 bits)
const FRACTION: u32 = 12;
/// Costs below are in units of 1/4096 bit. (structural)
pub(crate) const BIT: u64 = 1 << FRACTION;

/// `log2(value) * BIT`, rounded; `value` must not be 0.
pub(crate) fn log2(value: u32) -> u64 {
    let whole = value.ilog2();
    // Bits below the leading one, as a fraction of 12 bits.
    let fraction = u64::from(value.unbounded_shl(32 - whole).unbounded_shr(32 - FRACTION));
    // log2(1 + x) - x is at most 0.0861: a parabola with its ends and its height at the middle.
    let correction = fraction * (BIT - fraction) * 345 / (BIT * 1000);
    (u64::from(whole) << FRACTION) + fraction + correction
}

/// The least that any code needs for these counts, in units of [`BIT`].
pub(crate) fn entropy(counts: &[u32]) -> u64 {
    let total: u32 = counts.iter().sum();
    if total == 0 {
        return 0;
    }
    let all = log2(total);
    counts
        .iter()
        .filter(|&&count| count > 0)
        .map(|&count| u64::from(count) * all.saturating_sub(log2(count)))
        .sum()
}

/// What each symbol costs by a code made for these counts, in parts of a bit, and at most `most`.
pub(crate) fn per_symbol(counts: &[u32; 256], parts: u64, most: u64) -> [u64; 256] {
    let total: u32 = counts.iter().sum();
    let all = log2(total.max(1));
    counts.map(|count| match count {
        0 => most,
        _ => (all.saturating_sub(log2(count)) * parts / BIT).min(most),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_is_close_to_the_real_one() {
        for counts in [vec![1, 1], vec![1000, 1], vec![7, 90, 800, 3, 12345], vec![5]] {
            let total: f64 = counts.iter().map(|&c| f64::from(c)).sum();
            let real: f64 = counts.iter().map(|&c| f64::from(c) * (total / f64::from(c)).log2()).sum();
            let ours = entropy(&counts) as f64 / BIT as f64;
            assert!((ours - real).abs() <= 0.01 * total, "{counts:?}: {ours} for {real}");
        }
    }
}
