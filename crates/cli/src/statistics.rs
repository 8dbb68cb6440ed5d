//! What a heap of numbers looks like.

use std::io::Write;

use crate::human;

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
    /// Looks at all of them, in two passes; the finite ones make the range, the
    /// moments and the histogram. `pass` hands every number over each time.
    pub fn of<E>(mut pass: impl FnMut(&mut dyn FnMut(&[f64])) -> Result<(), E>) -> Result<Statistics, E> {
        let (mut count, mut nan, mut infinite, mut zeros) = (0, 0, 0, 0);
        let (mut min, mut max, mut sum) = (f64::INFINITY, f64::NEG_INFINITY, 0.0);
        pass(&mut |numbers| {
            for &number in numbers {
                count += 1;
                nan += u64::from(number.is_nan());
                infinite += u64::from(number.is_infinite());
                zeros += u64::from(number == 0.0);
                if number.is_finite() {
                    (min, max) = (number.min(min), number.max(max));
                    sum += number;
                }
            }
        })?;
        let finite = (count - nan - infinite).max(1) as f64;
        let mean = sum / finite;
        let mut squares = 0.0;
        let mut histogram = vec![0; BARS];
        // Halves, because the whole range may not be a finite number.
        let width = (max / 2.0 - min / 2.0) / BARS as f64;
        pass(&mut |numbers| {
            for &number in numbers.iter().filter(|number| number.is_finite()) {
                squares += (number - mean).powi(2);
                let bar = if width > 0.0 { ((number / 2.0 - min / 2.0) / width) as usize } else { 0 };
                histogram[bar.min(BARS - 1)] += 1;
            }
        })?;
        Ok(Statistics {
            count,
            nan,
            infinite,
            zeros,
            min,
            max,
            mean,
            deviation: (squares / finite).sqrt(),
            histogram,
        })
    }

    /// Prints them in three lines.
    pub fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(
            out,
            "{} values, {} zero, {} not a number, {} infinite",
            human::count(self.count),
            human::count(self.zeros),
            human::count(self.nan),
            human::count(self.infinite)
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

    fn of(numbers: &[f64]) -> Statistics {
        let pass = |each: &mut dyn FnMut(&[f64])| {
            each(numbers);
            Ok::<_, ()>(())
        };
        Statistics::of(pass).unwrap()
    }

    #[test]
    fn special_values_are_counted_apart() {
        let statistics = of(&[1.0, 2.0, 3.0, 0.0, f64::NAN, f64::INFINITY]);
        assert_eq!((statistics.count, statistics.nan, statistics.infinite, statistics.zeros), (6, 1, 1, 1));
        assert_eq!((statistics.min, statistics.max, statistics.mean), (0.0, 3.0, 1.5));
        assert_eq!(statistics.histogram.iter().sum::<u64>(), 4);
        let constant = of(&[5.0; 3]);
        assert_eq!((constant.deviation, constant.histogram[0]), (0.0, 3));
        let mut out = Vec::new();
        of(&[]).print(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap().lines().count(), 1);
    }
}
