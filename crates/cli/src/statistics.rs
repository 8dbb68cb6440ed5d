//! Summary statistics and histograms.

#[cfg(not(target_family = "wasm"))]
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
    /// How the finite ones are spread.
    pub histogram: Histogram,
}

/// Finite numbers, counted in equal steps.
pub struct Histogram {
    /// Where the first step begins.
    pub low: f64,
    /// Where the last step ends.
    pub high: f64,
    /// How many lie below all steps.
    pub below: u64,
    /// How many lie above all steps.
    pub above: u64,
    /// How many lie in each step.
    pub counts: Vec<u64>,
}

/// The steps of a histogram.
#[derive(Debug, Clone, Copy)]
pub struct Steps {
    /// How many there are.
    pub count: usize,
    /// Values farther from the mean than this many standard deviations are only counted: a
    /// single outlier would push all others into one step.
    pub within: f64,
}

/// Hands every number over, some at a time.
type Sink<'a> = dyn FnMut(&[f64]) + 'a;

impl Statistics {
    /// Looks at all of them, in two passes; the finite ones make the range, the
    /// moments and the histogram. The numbers come in `parts`, which threads share;
    /// `pass` hands over those of one part. The result depends on how they are cut
    /// into parts, but not on the threads.
    pub fn of(
        steps: Steps,
        threads: usize,
        parts: usize,
        pass: impl Fn(usize, &mut Sink<'_>) -> ztensor::Result<()> + Sync,
    ) -> ztensor::Result<Statistics> {
        let mut moments = vec![Moments::default(); parts];
        let first = moments.iter_mut().enumerate().collect();
        ztensor::parallel::for_each(threads, first, |(part, moments): (usize, &mut Moments)| {
            pass(part, &mut |numbers| moments.add(numbers))
        })?;
        let all = moments.into_iter().fold(Moments::default(), Moments::and);
        let mut histograms: Vec<_> = (0..parts.max(1)).map(|_| all.steps(steps)).collect();
        let second = histograms.iter_mut().take(parts).enumerate().collect();
        ztensor::parallel::for_each(threads, second, |(part, histogram): (usize, &mut Histogram)| {
            pass(part, &mut |numbers| histogram.add(numbers))
        })?;
        let histogram = histograms.into_iter().reduce(Histogram::and);
        Ok(Statistics {
            count: all.count,
            nan: all.nan,
            infinite: all.infinite,
            zeros: all.zeros,
            min: all.min,
            max: all.max,
            mean: all.mean,
            deviation: (all.squares / all.finite().max(1) as f64).sqrt(),
            histogram: histogram.unwrap_or_else(|| all.steps(steps)),
        })
    }

    /// Whether there are finite numbers: the range and the moments are theirs.
    pub fn has_range(&self) -> bool {
        self.count > self.nan + self.infinite
    }

    /// Prints them in three lines.
    #[cfg(not(target_family = "wasm"))]
    pub fn print(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        writeln!(
            out,
            "{}, {} zero, {} NaN, {} Inf",
            human::counted(self.count, "value"),
            human::count(self.zeros),
            human::count(self.nan),
            human::count(self.infinite)
        )?;
        if !self.has_range() {
            return Ok(());
        }
        let Statistics { min, max, mean, deviation, .. } = self;
        let (min, max) = (human::number(*min), human::number(*max));
        let (mean, deviation) = (human::number(*mean), human::number(*deviation));
        writeln!(out, "min {min}  max {max}  mean {mean}  std {deviation}")?;
        writeln!(out, "{min} {} {max}", self.histogram.bars())
    }
}

/// What one pass can tell.
#[derive(Clone)]
struct Moments {
    count: u64,
    nan: u64,
    infinite: u64,
    zeros: u64,
    min: f64,
    max: f64,
    mean: f64,
    /// The sum of squared distances from the mean.
    squares: f64,
}

impl Default for Moments {
    fn default() -> Moments {
        let (min, max) = (f64::INFINITY, f64::NEG_INFINITY);
        Moments { count: 0, nan: 0, infinite: 0, zeros: 0, min, max, mean: 0.0, squares: 0.0 }
    }
}

impl Moments {
    fn finite(&self) -> u64 {
        self.count - self.nan - self.infinite
    }

    fn add(&mut self, numbers: &[f64]) {
        let mut here = Moments { count: numbers.len() as u64, ..Moments::default() };
        let mut sum = 0.0;
        for &number in numbers {
            here.nan += u64::from(number.is_nan());
            here.infinite += u64::from(number.is_infinite());
            here.zeros += u64::from(number == 0.0);
            if number.is_finite() {
                (here.min, here.max) = (number.min(here.min), number.max(here.max));
                sum += number;
            }
        }
        here.mean = sum / here.finite().max(1) as f64;
        for number in numbers.iter().filter(|number| number.is_finite()) {
            here.squares += (number - here.mean) * (number - here.mean);
        }
        *self = std::mem::take(self).and(here);
    }

    /// Both together (Chan, Golub and LeVeque): no sum of squares that cancels.
    fn and(self, other: Moments) -> Moments {
        let (ours, theirs) = (self.finite() as f64, other.finite() as f64);
        let apart = other.mean - self.mean;
        let share = if theirs > 0.0 { theirs / (ours + theirs) } else { 0.0 };
        Moments {
            count: self.count + other.count,
            nan: self.nan + other.nan,
            infinite: self.infinite + other.infinite,
            zeros: self.zeros + other.zeros,
            min: self.min.min(other.min),
            max: self.max.max(other.max),
            mean: self.mean + apart * share,
            squares: self.squares + other.squares + apart * apart * ours * share,
        }
    }

    /// The empty histogram that suits them.
    fn steps(&self, steps: Steps) -> Histogram {
        let (mut low, mut high) = (self.min, self.max);
        let reach = steps.within * (self.squares / self.finite().max(1) as f64).sqrt();
        if reach.is_finite() && reach > 0.0 {
            (low, high) = (low.max(self.mean - reach), high.min(self.mean + reach));
        }
        Histogram { low, high, below: 0, above: 0, counts: vec![0; steps.count] }
    }
}

impl Histogram {
    fn add(&mut self, numbers: &[f64]) {
        let Histogram { low, high, below, above, counts } = self;
        // Halves, because the whole range may not be a finite number.
        let width = (*high / 2.0 - *low / 2.0) / counts.len() as f64;
        let last = counts.len().saturating_sub(1);
        for &number in numbers.iter().filter(|number| number.is_finite()) {
            if number < *low {
                *below += 1;
            } else if number > *high {
                *above += 1;
            } else {
                let step = if width > 0.0 { ((number / 2.0 - *low / 2.0) / width) as usize } else { 0 };
                counts[step.min(last)] += 1;
            }
        }
    }

    fn and(mut self, other: Histogram) -> Histogram {
        self.below += other.below;
        self.above += other.above;
        self.counts.iter_mut().zip(other.counts).for_each(|(ours, theirs)| *ours += theirs);
        self
    }

    /// One line of blocks.
    #[cfg(not(target_family = "wasm"))]
    pub fn bars(&self) -> String {
        const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let most = self.counts.iter().copied().max().unwrap_or(0).max(1);
        // Anything that is there is seen.
        let block = |&count: &u64| BLOCKS[(count * 8).div_ceil(most) as usize];
        self.counts.iter().map(block).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Steps = Steps { count: 40, within: f64::INFINITY };

    fn of(numbers: &[f64]) -> Statistics {
        Statistics::of(ALL, 1, 1, |_, each| {
            each(numbers);
            Ok(())
        })
        .unwrap()
    }

    #[test]
    fn special_values_are_counted_apart() {
        let statistics = of(&[1.0, 2.0, 3.0, 0.0, f64::NAN, f64::INFINITY]);
        assert_eq!((statistics.count, statistics.nan, statistics.infinite, statistics.zeros), (6, 1, 1, 1));
        assert_eq!((statistics.min, statistics.max, statistics.mean), (0.0, 3.0, 1.5));
        assert_eq!(statistics.histogram.counts.iter().sum::<u64>(), 4);
        let constant = of(&[5.0; 3]);
        assert_eq!((constant.deviation, constant.histogram.counts[0]), (0.0, 3));
        let mut out = Vec::new();
        of(&[]).print(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap().lines().count(), 1);
        let extremes = of(&[f64::MIN, f64::MAX]);
        assert_eq!((extremes.histogram.counts[0], extremes.histogram.counts[39]), (1, 1));
    }

    #[test]
    fn parts_and_threads_do_not_change_what_is_counted() {
        let numbers: Vec<f64> = (0..10_000).map(|n| f64::from(n % 101) * 0.25 - 3.0).collect();
        let whole = of(&numbers);
        for (threads, parts) in [(1, 7), (2, 7), (3, 1), (2, 10_000)] {
            let cut = Statistics::of(ALL, threads, parts, |part, each| {
                let len = numbers.len().div_ceil(parts);
                each(numbers.chunks(len).nth(part).unwrap_or_default());
                Ok(())
            })
            .unwrap();
            assert_eq!((cut.count, cut.zeros, cut.min, cut.max), (10_000, whole.zeros, whole.min, whole.max));
            assert!((cut.mean - whole.mean).abs() < 1e-9 && (cut.deviation - whole.deviation).abs() < 1e-9);
            assert_eq!(cut.histogram.counts, whole.histogram.counts);
        }
        let none = Statistics::of(ALL, 2, 0, |_, _| Ok(())).unwrap();
        assert_eq!((none.count, none.has_range()), (0, false));
    }

    #[test]
    fn outliers_are_counted_beside_the_histogram() {
        let mut numbers: Vec<f64> = (0..1000).map(|n| f64::from(n) / 1000.0).collect();
        numbers.extend([1e6, -1e6, -1e6]);
        let steps = Steps { count: 16, within: 4.0 };
        let found = Statistics::of(steps, 1, 1, |_, each| {
            each(&numbers);
            Ok(())
        })
        .unwrap();
        assert_eq!((found.min, found.max), (-1e6, 1e6));
        let Histogram { low, high, below, above, counts } = found.histogram;
        assert_eq!((below, above, counts.iter().sum::<u64>()), (2, 1, 1000));
        assert!(low > -1e6 && high < 1e6);
    }
}
