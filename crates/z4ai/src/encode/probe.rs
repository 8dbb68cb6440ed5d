//! Looking at a few elements to rule out that data has structure.

use super::cost;
use crate::kernel::sparse::load;

/// A sample of elements: how many there are of each value.
pub(super) struct Sample {
    slots: Vec<(u64, u32)>,
    pub(super) taken: usize,
    pub(super) distinct: usize,
}

impl Sample {
    /// Counts `runs` runs of `run` elements each, spread evenly over `content`, whose elements have
    /// `size` bytes; all elements where there are no more.
    pub(super) fn of(content: &[u8], size: usize, runs: usize, run: usize) -> Self {
        let count = content.len() / size;
        let wanted = runs * run;
        let mut sample =
            Self { slots: vec![(0, 0); (2 * wanted).next_power_of_two()], taken: 0, distinct: 0 };
        if count <= wanted {
            sample.add(content, size);
            return sample;
        }
        for part in 0..runs {
            let at = part * (count - run) / (runs - 1).max(1);
            sample.add(&content[at * size..(at + run) * size], size);
        }
        sample
    }

    fn add(&mut self, elements: &[u8], size: usize) {
        let mask = self.slots.len() - 1;
        for element in elements.chunks_exact(size) {
            let value = load(element);
            let mut at = (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize & mask;
            while self.slots[at].1 > 0 && self.slots[at].0 != value {
                at = (at + 1) & mask;
            }
            self.distinct += usize::from(self.slots[at].1 == 0);
            self.slots[at].0 = value;
            self.slots[at].1 += 1;
            self.taken += 1;
        }
    }

    /// What an element takes at least, in units of [`BIT`](cost::BIT); less than it really is where
    /// there are more values than were looked at.
    pub(super) fn entropy(&self) -> u64 {
        let counts: Vec<u32> = self.slots.iter().map(|slot| slot.1).collect();
        cost::entropy(&counts) / self.taken.max(1) as u64
    }

    /// The most frequent value and how often it occurs; of equally frequent ones the lowest.
    pub(super) fn most_frequent(&self) -> (u64, usize) {
        let most = self.slots.iter().max_by_key(|&&(value, count)| (count, std::cmp::Reverse(value)));
        most.map_or((0, 0), |&(value, count)| (value, count as usize))
    }
}
