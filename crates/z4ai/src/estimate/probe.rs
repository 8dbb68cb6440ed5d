//! Looking at a few elements to rule out that data has structure.

use crate::estimate::{cost, sampling};
use crate::kernel::sparse::{for_bytes, load};

/// Calls `look` with `runs` runs of `run` elements each, or with all elements where there are no
/// more.
fn for_runs(content: &[u8], size: usize, runs: usize, run: usize, mut look: impl FnMut(&[u8])) {
    let count = content.len() / size;
    if count <= runs * run {
        return look(content);
    }
    for at in sampling::spread(count, run, runs, 1) {
        look(&content[at * size..(at + run) * size]);
    }
}

/// The hash slot of a value, before it is reduced to the table's length.
fn place(value: u64) -> usize {
    (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize
}

/// As [`Sample`] with colliding counts: bounds of its results, for much less time.
pub(crate) struct Sketch {
    counts: [u16; COUNTS],
    pub(crate) taken: usize,
}

/// Counts of a [`Sketch`]. (structural: 2 kB, a part of the first-level cache)
const COUNTS: usize = 1024;

fn count<const SIZE: usize>(elements: &[u8], counts: &mut [u16; COUNTS]) {
    for element in elements.as_chunks::<SIZE>().0 {
        counts[place(load(element)) % COUNTS] += 1;
    }
}

impl Sketch {
    /// Of at most `u16::MAX` elements.
    pub(crate) fn of(content: &[u8], size: usize, runs: usize, run: usize) -> Self {
        let mut sketch = Self { counts: [0; COUNTS], taken: 0 };
        for_runs(content, size, runs, run, |elements| {
            sketch.taken += elements.len() / size;
            for_bytes!(size, count(elements, &mut sketch.counts));
        });
        sketch
    }

    /// At most how often a value occurs.
    pub(crate) fn most(&self) -> usize {
        self.counts.iter().max().map_or(0, |&most| usize::from(most))
    }

    /// At least how many values occur.
    pub(crate) fn distinct(&self) -> usize {
        self.counts.iter().filter(|&&count| count > 0).count()
    }
}

/// A sample of elements: how many there are of each value.
pub(crate) struct Sample {
    slots: Vec<(u64, u32)>,
    pub(crate) taken: usize,
    pub(crate) distinct: usize,
}

impl Sample {
    /// Counts `runs` runs of `run` elements each, spread evenly over `content`, whose elements have
    /// `size` bytes; all elements where there are no more.
    pub(crate) fn of(content: &[u8], size: usize, runs: usize, run: usize) -> Self {
        let slots = vec![(0, 0); (2 * runs * run).next_power_of_two()];
        let mut sample = Self { slots, taken: 0, distinct: 0 };
        for_runs(content, size, runs, run, |elements| sample.add(elements, size));
        sample
    }

    fn add(&mut self, elements: &[u8], size: usize) {
        let mask = self.slots.len() - 1;
        for element in elements.chunks_exact(size) {
            let value = load(element);
            let mut at = place(value) & mask;
            while self.slots[at].1 > 0 && self.slots[at].0 != value {
                at = (at + 1) & mask;
            }
            self.distinct += usize::from(self.slots[at].1 == 0);
            self.slots[at].0 = value;
            self.slots[at].1 += 1;
            self.taken += 1;
        }
    }

    /// A lower bound on the cost of an element, in units of [`BIT`](cost::BIT); too low where there
    /// are more values than were sampled.
    pub(crate) fn entropy(&self) -> u64 {
        let counts: Vec<u32> = self.slots.iter().map(|slot| slot.1).collect();
        cost::entropy(&counts) / self.taken.max(1) as u64
    }

    /// The most frequent value and how often it occurs; of equally frequent ones the lowest.
    pub(crate) fn most_frequent(&self) -> (u64, usize) {
        let most = self.slots.iter().max_by_key(|&&(value, count)| (count, std::cmp::Reverse(value)));
        most.map_or((0, 0), |&(value, count)| (value, count as usize))
    }
}
