//! Encodes differences: byte planes of the low bytes, and a list of the elements above them.

use crate::coder::EncodeScratch;
use crate::coder::choose::{self, NOISE};
use crate::coder::tans::NormalizedCounts;
use crate::estimate::cost::{self, BIT};
use crate::estimate::sampling;
use crate::kernel::class_masks::ClassChanges;
use crate::kernel::difference::Rule;
use crate::kernel::{difference, histogram, mask_compact};
use crate::layout::delta::{Class, List, Places};

/// Up to one changed element in this many, a list without planes is smallest. (case: `delta.py`,
/// sizes)
pub(crate) const LIST_ONLY_BELOW: usize = 8;
/// Below one listed element in this many, run lengths (gaps) are smaller than a bitmask. (case:
/// `delta.py`, sizes)
const GAPS_BELOW: usize = 16;
/// List values that are fewer than one in this many of the plane bytes are stored raw: what a code
/// would save is not worth building its table. (case: `delta.py`, make)
const RAW_VALUES_BELOW: usize = 256;
/// Up to this many elements, both encodings of positions are tried, since descriptions matter.
/// (flat)
const MAX_SHORT_LIST: usize = 1 << 14;
/// Elements of each of four sampled runs by which planes, and distances or bits, are chosen. (flat)
const SAMPLE_RUN: usize = 1024;

/// Buffers for the streams that differences become.
#[derive(Default)]
pub(crate) struct Streams {
    /// A bit for every element: whether it is listed.
    marks: Vec<u8>,
    /// Listed elements, and their XOR differences while both are compared.
    words: Vec<u8>,
    bits: Vec<u8>,
    plane: Vec<u8>,
    gaps: Vec<u8>,
    sample: Vec<u8>,
    sample_marks: Vec<u8>,
    /// Scratch for in-place encoding.
    spare: Vec<u8>,
    coder: EncodeScratch,
}

impl Streams {
    /// Appends the streams of differences of `size` bytes in their smallest form.
    pub(crate) fn encode(&mut self, size: usize, differences: &[u8], payload: &mut Vec<u8>) -> Class {
        let listed = mask_compact::mark(size, differences, 0, &mut self.marks);
        self.encode_marked(size, differences, listed, payload)
    }

    /// As [`encode`](Self::encode), for differences whose lowest `planes` are already at the end of
    /// the payload.
    pub(crate) fn encode_planes(
        &mut self,
        size: usize,
        differences: &[u8],
        planes: usize,
        payload: &mut Vec<u8>,
    ) -> Class {
        let count = differences.len() / size;
        let lens = &[count; 8][..planes];
        let start = payload.len() - planes * count;
        let coders = choose::encode_in_place(NOISE, lens, payload, &mut self.spare, &mut self.coder);
        let listed =
            if planes < size { mask_compact::mark(size, differences, planes, &mut self.marks) } else { 0 };
        let beside = payload.len() - start;
        let list = self.encode_listed(size, planes, beside, differences, listed, payload);
        Class { count: count as u32, planes: coders, list }
    }

    /// As [`encode`](Self::encode) for ULP or zigzag differences; returns whether XOR differences
    /// were smaller and encoded instead. The same elements are listed either way, so that both can
    /// be compared where few are.
    pub(crate) fn encode_either(
        &mut self,
        size: usize,
        distances: &[u8],
        [current, reference]: [&[u8]; 2],
        payload: &mut Vec<u8>,
    ) -> (bool, Class) {
        let count = distances.len() / size;
        let listed = mask_compact::mark(size, distances, 0, &mut self.marks);
        if listed == 0 || listed > count / LIST_ONLY_BELOW {
            return (false, self.encode_marked(size, distances, listed, payload));
        }
        let len = listed * size;
        let mut both = [Vec::new(), Vec::new()];
        for (buffer, words) in [current, reference].into_iter().zip(&mut both) {
            mask_compact::collect(size, buffer, &self.marks, listed, words);
        }
        let mut bits = vec![0; len];
        difference::difference(difference::Rule::Xor, size, &both[0][..len], &both[1][..len], &mut bits);
        mask_compact::collect(size, distances, &self.marks, listed, &mut self.words);
        let words = std::mem::take(&mut self.words);
        let xor = self.cost_of(size, &bits) < self.cost_of(size, &words[..len]);
        let chosen = if xor { &bits } else { &words[..len] };
        let list = self.encode_list(size, 0, 0, count, chosen, payload);
        self.words = words;
        (xor, Class { count: count as u32, planes: Vec::new(), list: Some(list) })
    }

    /// As [`encode`](Self::encode) with `rule` XOR, and as [`encode_either`](Self::encode_either)
    /// with another, for a chunk of `count` elements of which few are changed: `changed` has those
    /// of the current data and of the reference, `marks` a bit for every element.
    pub(crate) fn encode_changed(
        &mut self,
        (rule, size): (Rule, usize),
        count: usize,
        marks: &mut Vec<u8>,
        [current, reference]: [&[u8]; 2],
        payload: &mut Vec<u8>,
    ) -> (bool, Class) {
        let xor = rule == Rule::Xor;
        if current.is_empty() {
            return (xor, Class { count: count as u32, planes: Vec::new(), list: None });
        }
        std::mem::swap(&mut self.marks, marks);
        let mut words = std::mem::take(&mut self.words);
        let mut bits = std::mem::take(&mut self.bits);
        words.resize(current.len(), 0);
        difference::difference(rule, size, current, reference, &mut words);
        let mut chosen = &words;
        let mut by_bits = xor;
        if !xor {
            bits.resize(current.len(), 0);
            difference::difference(Rule::Xor, size, current, reference, &mut bits);
            if self.cost_of(size, &bits) < self.cost_of(size, &words) {
                (by_bits, chosen) = (true, &bits);
            }
        }
        let list = self.encode_list(size, 0, 0, count, chosen, payload);
        (self.words, self.bits) = (words, bits);
        std::mem::swap(&mut self.marks, marks);
        (by_bits, Class { count: count as u32, planes: Vec::new(), list: Some(list) })
    }

    /// As [`encode`](Self::encode) of the differences of one class, of which those that are not zero are known.
    pub(crate) fn encode_class(
        &mut self,
        (rule, size): (Rule, usize),
        class: &ClassChanges,
        payload: &mut Vec<u8>,
    ) -> Class {
        let ClassChanges { count, places, elements: [current, reference] } = class;
        let mut words = std::mem::take(&mut self.words);
        words.resize(current.len(), 0);
        difference::difference(rule, size, current, reference, &mut words);
        self.marks.clear();
        self.marks.resize(mask_compact::marks_len(*count), 0);
        places.iter().for_each(|&place| self.marks[place as usize / 8] |= 1 << (place % 8));
        let encoded = if places.is_empty() {
            Class { count: *count as u32, planes: Vec::new(), list: None }
        } else if places.len() <= count / LIST_ONLY_BELOW {
            let list = self.encode_list(size, 0, 0, *count, &words, payload);
            Class { count: *count as u32, planes: Vec::new(), list: Some(list) }
        } else {
            let mut differences = std::mem::take(&mut self.bits);
            differences.clear();
            differences.resize(count * size, 0);
            for (&place, word) in places.iter().zip(words.chunks_exact(size)) {
                differences[place as usize * size..][..size].copy_from_slice(word);
            }
            let encoded = self.encode_marked(size, &differences, places.len(), payload);
            self.bits = differences;
            encoded
        };
        self.words = words;
        encoded
    }

    /// Encodes differences, `listed` of which are not zero.
    fn encode_marked(
        &mut self,
        size: usize,
        differences: &[u8],
        mut listed: usize,
        payload: &mut Vec<u8>,
    ) -> Class {
        let count = differences.len() / size;
        let kept = if listed <= count / LIST_ONLY_BELOW { 0 } else { self.best_planes(size, differences) };
        self.plane.resize(count, 0);
        let start = payload.len();
        let planes = (0..kept).map(|byte| {
            difference::take_plane(size, differences, byte, &mut self.plane);
            choose::encode(&self.plane, payload, &mut self.coder)
        });
        let planes = planes.collect();
        if kept > 0 {
            listed =
                if kept < size { mask_compact::mark(size, differences, kept, &mut self.marks) } else { 0 };
        }
        let beside = payload.len() - start;
        let list = self.encode_listed(size, kept, beside, differences, listed, payload);
        Class { count: count as u32, planes, list }
    }

    /// Appends the list of the `listed` elements that are not zero above `planes`, whose streams
    /// take `beside` bytes.
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
        mask_compact::collect(size, differences, &self.marks, listed, &mut self.words);
        let words = std::mem::take(&mut self.words);
        let count = differences.len() / size;
        let list = self.encode_list(size, planes, beside, count, &words[..listed * size], payload);
        self.words = words;
        Some(list)
    }

    /// The entropy of the byte planes of a sample of elements, in units of [`BIT`].
    fn cost_of(&mut self, size: usize, elements: &[u8]) -> u64 {
        self.take_sample(size, elements);
        self.plane.resize(self.sample.len() / size, 0);
        (0..size)
            .map(|byte| {
                difference::take_plane(size, &self.sample, byte, &mut self.plane);
                cost::entropy(&histogram::exact(&self.plane))
            })
            .sum()
    }

    /// Copies four runs of elements, or all if they are few.
    fn take_sample(&mut self, size: usize, elements: &[u8]) {
        let run = SAMPLE_RUN * size;
        self.sample.clear();
        if elements.len() <= 4 * run {
            return self.sample.extend_from_slice(elements);
        }
        for at in sampling::spread(elements.len(), run, 4, size) {
            self.sample.extend_from_slice(&elements[at..at + run]);
        }
    }

    /// The best number of low bytes to keep as planes, by a sample.
    fn best_planes(&mut self, size: usize, differences: &[u8]) -> usize {
        self.take_sample(size, differences);
        let sample = std::mem::take(&mut self.sample);
        let kept = self.fewest_bits(size, &sample).0;
        self.sample = sample;
        kept
    }

    /// The best number of low bytes to keep as planes, and the estimated cost of all streams, in
    /// units of [`BIT`].
    pub(crate) fn fewest_bits(&mut self, size: usize, sample: &[u8]) -> (usize, u64) {
        let count = (sample.len() / size) as u32;
        self.plane.resize(count as usize, 0);
        let mut wide = [0; 9];
        for (byte, wide) in wide[..size].iter_mut().enumerate() {
            *wide = mask_compact::mark(size, sample, byte, &mut self.sample_marks) as u32;
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
            let counts = histogram::exact(&self.plane);
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

    /// How many of these differences are not zero.
    pub(crate) fn count_nonzero(&mut self, size: usize, sample: &[u8]) -> usize {
        mask_compact::mark(size, sample, 0, &mut self.sample_marks)
    }

    /// Appends the positions and the bytes above `planes`, whose streams take `beside` bytes, of
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
        let rare = number < count / GAPS_BELOW;
        let start = payload.len();
        let mut places = if rare { self.encode_gaps(payload) } else { self.encode_marks(payload) };
        // Descriptions dominate short lists: the other encoding is tried too.
        if count <= MAX_SHORT_LIST {
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
            if number < beside / RAW_VALUES_BELOW {
                return choose::encode_quickly(&self.plane, payload);
            }
            choose::encode(&self.plane, payload, &mut self.coder)
        });
        List { count: number as u32, places, values: values.collect() }
    }

    fn encode_gaps(&mut self, payload: &mut Vec<u8>) -> Places {
        mask_compact::gaps(&self.marks, &mut self.gaps);
        // Short gaps are too few values for whole bits to come close.
        let counts = histogram::exact(&self.gaps);
        let coder =
            choose::encode_finely(&self.gaps, &counts, NormalizedCounts::finest, payload, &mut self.coder);
        Places::Gaps(self.gaps.len() as u32, coder)
    }

    fn encode_marks(&mut self, payload: &mut Vec<u8>) -> Places {
        Places::Marks(choose::encode(&self.marks, payload, &mut self.coder))
    }
}

impl Places {
    /// Bytes of their description.
    fn described(&self) -> usize {
        let (Places::Gaps(_, coder) | Places::Marks(coder)) = self;
        coder.described_len()
    }
}

/// The estimated cost of a Huffman code for these counts, in units of [`BIT`].
fn cost_of_codes(counts: &[u32]) -> u64 {
    let total: u32 = counts.iter().sum();
    let most = counts.iter().copied().max().unwrap_or(0);
    let entropy = cost::entropy(counts);
    if most == total {
        return 0;
    }
    let cost = if u64::from(most) * 5 >= u64::from(total) * 2 {
        // One bit for the most frequent symbol; for every other, one bit and its code among the
        // others.
        let others = entropy - cost::entropy(&[most, total - most]).min(entropy);
        u64::from(total) * BIT + others
    } else {
        entropy
    };
    cost.min(u64::from(total) * 8 * BIT)
}
