//! What a heap of numbers looks like.

use std::io::Write;

/// Count, range, moments and a histogram of some numbers.
pub struct Statistics {
    /// How many there are.
    pub count: u64,
    /// How many are not numbers.
    pub nan: u64,
    /// How many are infinite.
    pub infinite: u64,
    /// How many are zero.
    pub zeros: u64,
    /// The smallest finite one.
    pub min: f64,
    /// The largest finite one.
    pub max: f64,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation.
    pub deviation: f64,
    /// Counts in equal steps from `min` to `max`.
    pub histogram: Vec<u64>,
}

/// Bars of a histogram.
const BARS: usize = 40;

impl Statistics {
    /// Looks at all of them; the finite ones make the range, the moments and the histogram.
    pub fn of(numbers: &[f64]) -> Statistics {
        let finite = || numbers.iter().copied().filter(|number| number.is_finite());
        let (min, max) =
            finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), n| (min.min(n), max.max(n)));
        let count = finite().count().max(1) as f64;
        let mean = finite().sum::<f64>() / count;
        let variance = finite().map(|number| (number - mean).powi(2)).sum::<f64>() / count;
        let mut histogram = vec![0; BARS];
        let width = (max - min) / BARS as f64;
        for number in finite() {
            let bar = if width > 0.0 { ((number - min) / width) as usize } else { 0 };
            histogram[bar.min(BARS - 1)] += 1;
        }
        Statistics {
            count: numbers.len() as u64,
            nan: numbers.iter().filter(|number| number.is_nan()).count() as u64,
            infinite: numbers.iter().filter(|number| number.is_infinite()).count() as u64,
            zeros: numbers.iter().filter(|number| **number == 0.0).count() as u64,
            min,
            max,
            mean,
            deviation: variance.sqrt(),
            histogram,
        }
    }

    /// Prints them in three lines.
    pub fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(
            out,
            "{} values, {} zero, {} not a number, {} infinite",
            self.count, self.zeros, self.nan, self.infinite
        )?;
        if self.count == self.nan + self.infinite {
            return Ok(());
        }
        let Statistics { min, max, mean, deviation, .. } = self;
        writeln!(out, "min {min:.6e}  max {max:.6e}  mean {mean:.6e}  deviation {deviation:.6e}")?;
        writeln!(out, "{min:.3e} {} {max:.3e}", self.bars())
    }

    /// The histogram as one line of blocks.
    pub fn bars(&self) -> String {
        const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let most = self.histogram.iter().copied().max().unwrap_or(0).max(1);
        // Anything that is there is seen.
        let block = |&count: &u64| BLOCKS[(count * 8).div_ceil(most) as usize];
        self.histogram.iter().map(block).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_values_are_counted_apart() {
        let statistics = Statistics::of(&[1.0, 2.0, 3.0, 0.0, f64::NAN, f64::INFINITY]);
        assert_eq!((statistics.count, statistics.nan, statistics.infinite, statistics.zeros), (6, 1, 1, 1));
        assert_eq!((statistics.min, statistics.max, statistics.mean), (0.0, 3.0, 1.5));
        assert_eq!(statistics.histogram.iter().sum::<u64>(), 4);
        let constant = Statistics::of(&[5.0; 3]);
        assert_eq!((constant.deviation, constant.histogram[0]), (0.0, 3));
        let mut out = Vec::new();
        Statistics::of(&[]).print(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap().lines().count(), 1);
    }
}
