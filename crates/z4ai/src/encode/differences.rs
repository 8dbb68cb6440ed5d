//! Coding differences: how many low bytes are planes, and the list of what is above them.

use super::cost::{self, BIT};
use super::stream::{self, NOISE};
use crate::coder::tans::States;
use crate::kernel::difference;
use crate::kernel::histogram;
use crate::kernel::marked;
use crate::layout::delta::{Class, List, Places};

/// Below this share of changed elements (one in so many), listing them is always smallest.
const FEW: usize = 8;
/// Below this share, gaps between listed elements are smaller than marks.
const RARE: usize = 16;
/// Bytes of outliers that are fewer than this share of those that stand beside them (one in so many) are
/// stored as they are: what codes would save is less than worth the time that their tables take.
const OUTLIERS: usize = 256;
/// Among so few elements, codes are described at more than a little of what they save.
const SHORT: usize = 1 << 14;
/// Elements of each of four runs that are looked at to choose the planes.
const SAMPLE: usize = 1024;

/// Buffers for the streams that differences become.
#[derive(Default)]
pub(super) struct Streams {
    /// A bit for every element: whether it is listed.
    marks: Vec<u8>,
    /// Listed elements.
    words: Vec<u8>,
    plane: Vec<u8>,
    gaps: Vec<u8>,
    sample: Vec<u8>,
    sample_marks: Vec<u8>,
    /// A stream on its way to its place.
    spare: Vec<u8>,
    pairs: histogram::Pairs,
}

impl Streams {
    /// Appends the streams of differences of `size` bytes in their smallest form.
    pub(super) fn encode(&mut self, size: usize, differences: &[u8], payload: &mut Vec<u8>) -> Class {
        let listed = marked::mark(size, differences, 0, &mut self.marks);
        self.encode_marked(size, differences, listed, payload)
    }

    /// As [`encode`](Self::encode), for differences whose lowest `planes` stand at the end of the payload.
    pub(super) fn encode_planes(
        &mut self,
        size: usize,
        differences: &[u8],
        planes: usize,
        payload: &mut Vec<u8>,
    ) -> Class {
        let count = differences.len() / size;
        let lens = &[count; 8][..planes];
        let start = payload.len() - planes * count;
        let coders = stream::encode_in_place(NOISE, lens, payload, &mut self.spare, &mut self.pairs);
        let listed = if planes < size { marked::mark(size, differences, planes, &mut self.marks) } else { 0 };
        let beside = payload.len() - start;
        let list = self.encode_listed(size, planes, beside, differences, listed, payload);
        Class { count: count as u32, planes: coders, list }
    }

    /// As [`encode`](Self::encode), for differences that are distances, and whether bits are smaller: the
    /// same elements are listed either way, so that both are known where few are.
    pub(super) fn encode_either(
        &mut self,
        size: usize,
        distances: &[u8],
        [current, reference]: [&[u8]; 2],
        payload: &mut Vec<u8>,
    ) -> (bool, Class) {
        let count = distances.len() / size;
        let listed = marked::mark(size, distances, 0, &mut self.marks);
        if listed == 0 || listed > count / FEW {
            return (false, self.encode_marked(size, distances, listed, payload));
        }
        let len = listed * size;
        let mut both = [Vec::new(), Vec::new()];
        for (buffer, words) in [current, reference].into_iter().zip(&mut both) {
            marked::collect(size, buffer, &self.marks, listed, words);
        }
        let mut bits = vec![0; len];
        difference::difference(difference::Rule::Xor, size, &both[0][..len], &both[1][..len], &mut bits);
        marked::collect(size, distances, &self.marks, listed, &mut self.words);
        let words = std::mem::take(&mut self.words);
        let xor = self.cost_of(size, &bits) < self.cost_of(size, &words[..len]);
        let chosen = if xor { &bits } else { &words[..len] };
        let list = self.encode_list(size, 0, 0, count, chosen, payload);
        self.words = words;
        (xor, Class { count: count as u32, planes: Vec::new(), list: Some(list) })
    }

    /// Encodes differences of which `listed` are marked as not zero.
    fn encode_marked(
        &mut self,
        size: usize,
        differences: &[u8],
        mut listed: usize,
        payload: &mut Vec<u8>,
    ) -> Class {
        let count = differences.len() / size;
        let kept = if listed <= count / FEW { 0 } else { self.best_planes(size, differences) };
        self.plane.resize(count, 0);
        let start = payload.len();
        let planes = (0..kept).map(|byte| {
            difference::take_plane(size, differences, byte, &mut self.plane);
            stream::encode(&self.plane, payload)
        });
        let planes = planes.collect();
        if kept > 0 {
            listed = if kept < size { marked::mark(size, differences, kept, &mut self.marks) } else { 0 };
        }
        let beside = payload.len() - start;
        let list = self.encode_listed(size, kept, beside, differences, listed, payload);
        Class { count: count as u32, planes, list }
    }

    /// Appends what is above `planes`, which are stored in so many bytes `beside` it, of the differences of
    /// which `listed` are marked.
    fn encode_listed(
        &mut self,
        size: usize,
        planes: usize,
        beside: usize,
        differences: &[u8],
        listed: usize,
        payload: &mut Vec<u8>,
    ) -> Option<List> {
        if listed == 0 {
            return None;
        }
        marked::collect(size, differences, &self.marks, listed, &mut self.words);
        let words = std::mem::take(&mut self.words);
        let count = differences.len() / size;
        let list = self.encode_list(size, planes, beside, count, &words[..listed * size], payload);
        self.words = words;
        Some(list)
    }

    /// What the bytes of elements take, in units of [`BIT`].
    fn cost_of(&mut self, size: usize, elements: &[u8]) -> u64 {
        self.plane.resize(elements.len() / size, 0);
        (0..size)
            .map(|byte| {
                difference::take_plane(size, elements, byte, &mut self.plane);
                cost::entropy(&histogram::of_bytes(&self.plane))
            })
            .sum()
    }

    /// How many low bytes to keep as planes, by a sample.
    fn best_planes(&mut self, size: usize, differences: &[u8]) -> usize {
        let count = differences.len() / size;
        let run = SAMPLE.min(count) * size;
        let mut sample = std::mem::take(&mut self.sample);
        sample.clear();
        for part in 0..4 {
            let at = part * (differences.len() - run) / 3 / size * size;
            sample.extend_from_slice(&differences[at..at + run]);
        }
        let kept = self.fewest_bits(size, &sample).0;
        self.sample = sample;
        kept
    }

    /// How many low bytes of a sample of differences to keep as planes, and what all streams take then in
    /// units of [`BIT`].
    pub(super) fn fewest_bits(&mut self, size: usize, sample: &[u8]) -> (usize, u64) {
        let count = (sample.len() / size) as u32;
        self.plane.resize(count as usize, 0);
        let mut wide = [0; 9];
        for (byte, wide) in wide[..size].iter_mut().enumerate() {
            *wide = marked::mark(size, sample, byte, &mut self.sample_marks) as u32;
        }
        let (mut kept, mut best) = (0, u64::MAX);
        let mut planes_cost = 0;
        for byte in 0..=size {
            let listed = wide[byte];
            if listed == 0 {
                if planes_cost < best {
                    (kept, best) = (byte, planes_cost);
                }
                break;
            }
            difference::take_plane(size, sample, byte, &mut self.plane);
            let counts = histogram::of_bytes(&self.plane);
            // Of listed values, all bytes but the first are nearly always zero: a bit each.
            let higher = |&wide: &u32| if wide == 0 { 0 } else { u64::from(listed.max(wide * 8)) * BIT };
            let higher: u64 = wide[byte + 1..size].iter().map(higher).sum();
            let places = cost::entropy(&[listed, count - listed]);
            let cost = planes_cost + places + places / 64 + cost_of_codes(&counts[1..]) + higher;
            if cost < best {
                (kept, best) = (byte, cost);
            }
            planes_cost += cost_of_codes(&counts);
        }
        (kept, best)
    }

    /// Whether at least half of these differences are none.
    pub(super) fn mostly_zero(&mut self, size: usize, sample: &[u8]) -> bool {
        marked::mark(size, sample, 0, &mut self.sample_marks) * size <= sample.len() / 2
    }

    /// Appends the marks and the bytes above `planes`, which are stored in so many bytes `beside` them, of
    /// the listed elements.
    fn encode_list(
        &mut self,
        size: usize,
        planes: usize,
        beside: usize,
        count: usize,
        listed: &[u8],
        payload: &mut Vec<u8>,
    ) -> List {
        let number = listed.len() / size;
        let rare = number < count / RARE;
        let start = payload.len();
        let mut places = if rare { self.encode_gaps(payload) } else { self.encode_marks(payload) };
        // Descriptions of codes are much beside few places: there the other way is tried too.
        if count <= SHORT {
            let first = payload.len();
            let other = if rare { self.encode_marks(payload) } else { self.encode_gaps(payload) };
            let lens = [first - start + places.described(), payload.len() - first + other.described()];
            if lens[1] < lens[0] {
                payload.drain(start..first);
                places = other;
            } else {
                payload.truncate(first);
            }
        }
        self.plane.resize(number, 0);
        let values = (planes..size).map(|byte| {
            difference::take_plane(size, listed, byte, &mut self.plane);
            if number < beside / OUTLIERS {
                return stream::encode_quickly(&self.plane, payload);
            }
            stream::encode(&self.plane, payload)
        });
        List { count: number as u32, places, values: values.collect() }
    }

    fn encode_gaps(&mut self, payload: &mut Vec<u8>) -> Places {
        marked::gaps(&self.marks, &mut self.gaps);
        // Short gaps are too few values for whole bits to come close.
        let counts = histogram::of_bytes(&self.gaps);
        let coder = stream::encode_finely(&self.gaps, &counts, States::finest, payload);
        Places::Gaps(self.gaps.len() as u32, coder)
    }

    fn encode_marks(&self, payload: &mut Vec<u8>) -> Places {
        Places::Marks(stream::encode(&self.marks, payload))
    }
}

impl Places {
    /// Bytes of their description.
    fn described(&self) -> usize {
        let (Places::Gaps(_, coder) | Places::Marks(coder)) = self;
        coder.described_len()
    }
}

/// What codes of whole bits take for symbols of these counts, about, in units of [`BIT`].
fn cost_of_codes(counts: &[u32]) -> u64 {
    let total: u32 = counts.iter().sum();
    let most = counts.iter().copied().max().unwrap_or(0);
    let entropy = cost::entropy(counts);
    if most == total {
        return 0;
    }
    let cost = if u64::from(most) * 5 >= u64::from(total) * 2 {
        // A bit for the most frequent one, and for every other that and its code among the others.
        let others = entropy - cost::entropy(&[most, total - most]).min(entropy);
        u64::from(total) * BIT + others
    } else {
        entropy
    };
    cost.min(u64::from(total) * 8 * BIT)
}
