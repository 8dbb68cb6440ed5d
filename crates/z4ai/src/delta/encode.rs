//! Encodes a delta frame: for every chunk the smallest difference from its reference.

use std::cell::Cell;

use crate::coder::Coder;
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::estimate::cost::{self, BIT};
use crate::estimate::sampling;
use crate::frame::encode::OVERHEAD;
use crate::frame::plan::Plan;
use crate::frame::{self, FrameFormat, chunks};
use crate::kernel::changes::{self, Lists};
use crate::kernel::class_masks::{self, ClassChanges, Masks};
use crate::kernel::mask_compact::SLACK;
use crate::kernel::xxh3::{self, HASH_BLOCK, Hasher, MIN_END};
use crate::kernel::{difference, histogram, magnitude_classes, mask_compact};
use crate::layout::delta::binned::encode::{self as binned, BinnedEncoder};
use crate::layout::delta::binned::prediction::Prediction;
use crate::layout::delta::differences::{LIST_ONLY_BELOW, Streams};
use crate::layout::delta::{Body, Delta, Difference, Elements, Hashes, magnitudes};
use crate::layout::{ChunkLayout, split};
use crate::memory;
use crate::options::{Effort, Options};
use crate::search::dense;

/// Bytes that a raw chunk adds to its content. (structural: the longest description of a raw chunk)
const OVERHEAD_PER_CHUNK: usize = 31;
/// Factor on the chunk length where most elements are unchanged: little is stored of each chunk,
/// and descriptions must not dominate it. (case: `delta.py`, sizes)
const UNCHANGED_CHUNK_FACTOR: usize = 8;
/// Factor on the chunk length where elements may be binned: each class has a code to describe. (case:
/// `entropy.py`, steps)
const BINNED_CHUNK_FACTOR: usize = 4;
/// Bins must save one part in this many of what planes take, which decode faster. (case: `entropy.py`,
/// steps)
const MIN_BINNED_SAVING: u64 = 96;
/// Elements of each of `SAMPLE_RUNS` sampled runs, by which the kind of difference and the planes
/// are chosen; the second, by which magnitude classes are. (case: `delta.py`, make)
const SAMPLE_RUN: usize = 256;
const CLASS_SAMPLE_RUN: usize = 1024;
const SAMPLE_RUNS: usize = 8;
/// Bytes that are copied, hashed and compared at a time, in the first-level cache.
/// (structural: a quarter of a first-level cache)
const COPY_PART: usize = 8 << 10;
/// Bytes that are compared without copying them, before it is known whether too many changed.
/// (structural: lists of a part fit the second-level cache)
const COMPARED_PART: usize = 64 << 10;

/// Encodes the difference from `reference` to `current` into `out`, which is cleared first.
pub(crate) fn into(current: &[u8], reference: &[u8], options: &Options, out: &mut Vec<u8>) -> Result<()> {
    out.clear();
    if current.len() != reference.len() {
        return Err(Error::invalid(format_args!(
            "a delta needs buffers of equal length, these have {} and {} bytes",
            current.len(),
            reference.len()
        )));
    }
    options.check()?;
    let mut plan = Plan::new(current.len(), options)?;
    if changes_little(current, reference, options.kind.size()) {
        plan.chunk *= UNCHANGED_CHUNK_FACTOR;
    } else if options.kind == Kind::F32 && options.effort > Effort::Fast {
        plan.chunk *= BINNED_CHUNK_FACTOR;
    }
    let chunks = plan.chunk_count();
    // Most deltas are much smaller than this; the rest of it is never touched.
    memory::reserve(out, current.len() + OVERHEAD + chunks * OVERHEAD_PER_CHUNK)?;
    frame::write_header(
        out,
        (Delta::MAGICS[0], Delta::VERSION),
        options.kind,
        options.array.as_ref(),
        current.len() as u64,
    )?;
    let header_len = out.len();
    let encode = |Reused(scratch): &mut Reused, i: usize, encoded: &mut chunks::Encoded| {
        scratch.encode(&current[plan.chunk(i)], &reference[plan.chunk(i)], options, &plan, encoded);
        plan.chunk(i).len()
    };
    let descriptions = &chunks::encode_all(options, chunks, out, encode)?.descriptions;
    frame::write_index(out, header_len, &frame::Index { descriptions, chunks, ..Default::default() })
}

/// Whether most elements are unchanged, by a sample of both buffers.
fn changes_little(current: &[u8], reference: &[u8], size: usize) -> bool {
    /// Windows of the sample, and elements in each. (flat)
    const WINDOWS: usize = 64;
    const WINDOW: usize = 64;
    let step = current.len() / WINDOWS / size * size;
    let (mut seen, mut changed) = (0, 0);
    for start in (0..WINDOWS).map(|window| window * step) {
        let end = current.len().min(start + WINDOW * size);
        let pairs = current[start..end].chunks(size).zip(reference[start..end].chunks(size));
        seen += pairs.len();
        changed += pairs.filter(|(now, before)| now != before).count();
    }
    changed * 2 <= seen
}

thread_local! {
    /// The buffers of this thread's last delta. Callers make many deltas in a row, one per tensor,
    /// and page faults of fresh buffers would cost as much as the encoding; the public functions
    /// have no argument to pass buffers in.
    static LAST: Cell<Option<Box<DeltaEncoder>>> = const { Cell::new(None) };
}

/// Buffers that the thread's next delta reuses.
struct Reused(Box<DeltaEncoder>);

impl Default for Reused {
    fn default() -> Self {
        Self(LAST.take().unwrap_or_default())
    }
}

impl Drop for Reused {
    fn drop(&mut self) {
        // Histograms are cleared after their use, which a panic may have cut short.
        if !std::thread::panicking() {
            LAST.set(Some(std::mem::take(&mut self.0)));
        }
    }
}

/// Buffers of one worker.
#[derive(Default)]
struct DeltaEncoder {
    current: Vec<u8>,
    reference: Vec<u8>,
    differences: Vec<u8>,
    /// Differences in the order of their classes.
    sorted: Vec<u8>,
    changed: Changed,
    sample: Sample,
    streams: Streams,
    literal: Vec<u8>,
    split: split::encode::SplitEncoder,
    binned: BinnedEncoder,
}

impl DeltaEncoder {
    /// Encodes one chunk. Other threads may be changing both buffers, and hash, histogram and code must be of the
    /// same bytes: what few changes are found in is read once, and the rest is copied first.
    fn encode(
        &mut self,
        current: &[u8],
        reference: &[u8],
        options: &Options,
        plan: &Plan,
        encoded: &mut chunks::Encoded,
    ) {
        let elements = Elements::of(options.kind, current.len());
        let choice =
            self.sample.choose(elements, options, [current, reference], &mut self.streams, &mut self.binned);
        let payload = &mut encoded.payload;
        let start = payload.len();
        if choice.few
            && let Some(hashes) = self.changed.find(elements.size, &choice.thresholds, [current, reference])
        {
            let count = current.len() / elements.size;
            let rule = (elements.rule(choice.xor), elements.size);
            let thresholds = choice.thresholds.clone();
            let listed = thresholds.is_empty();
            let Changed { marks, masks, lists: [now, before], len, classes, .. } = &mut self.changed;
            let lists = [&now[..*len], &before[..*len]];
            let (xor, classes) = match listed {
                true => {
                    let (xor, class) = self.streams.encode_changed(rule, count, marks, lists, payload);
                    (xor, vec![class])
                }
                false => {
                    classes.resize_with(thresholds.len() + 1, ClassChanges::default);
                    class_masks::partition(elements.size, &thresholds, (masks, marks), lists, classes);
                    let classes = classes.iter().map(|class| self.streams.encode_class(rule, class, payload));
                    (choice.xor, classes.collect())
                }
            };
            let difference = Difference { elements, xor, thresholds, classes };
            let hashes_of = Hashes { reference: hashes[1], stored: xxh3::hash(&payload[start..]) };
            let delta = Delta { hashes: hashes_of, body: Body::Difference(difference) };
            let described = encoded.descriptions.len();
            frame::write_description(&mut encoded.descriptions, current.len(), hashes[0], &delta);
            let stored = payload.len() - start + encoded.descriptions.len() - described;
            // Where much of a chunk changed, it may be smaller alone.
            let most = if listed { current.len() + OVERHEAD_PER_CHUNK } else { current.len() / 2 };
            if stored <= most {
                encoded.chunks += 1;
                return;
            }
            payload.truncate(start);
            encoded.descriptions.truncate(described);
        }
        // Planes are extracted directly into the payload.
        let planes = choice.planes.filter(|_| choice.binned.is_none()).unwrap_or(0);
        payload.resize(start + planes * (current.len() / elements.size), 0);
        let hashes = self.take(elements, choice.xor, [current, reference], &mut payload[start..]);
        let mut body = match choice.binned {
            Some(prediction) => {
                let both = (&self.current, &self.reference);
                Body::Binned(self.binned.encode(both.0, both.1, prediction, options.effort, payload))
            }
            None => Body::Difference(self.difference(elements, choice, payload)),
        };
        // A reference that has little to do with the data only adds noise.
        let stored = payload.len() - start;
        if stored > current.len() / 2 && self.sample.is_smaller_alone(elements, current.len(), stored) {
            self.literal.clear();
            let layout = dense(&self.current, options, &plan.hint, &mut self.split, &mut self.literal);
            if layout != ChunkLayout::Opaque(Coder::Raw) && self.literal.len() < stored {
                payload.truncate(start);
                payload.extend_from_slice(&self.literal);
                body = Body::Literal(layout);
            }
        }
        let described = encoded.descriptions.len();
        let describe = |payload: &[u8], body, descriptions: &mut Vec<u8>| {
            let hashes_of = Hashes { reference: hashes[1], stored: xxh3::hash(payload) };
            let delta = Delta { hashes: hashes_of, body };
            frame::write_description(descriptions, current.len(), hashes[0], &delta);
        };
        describe(&payload[start..], body, &mut encoded.descriptions);
        let stored = payload.len() - start + encoded.descriptions.len() - described;
        if stored > current.len() + OVERHEAD_PER_CHUNK {
            payload.truncate(start);
            payload.extend_from_slice(&self.current);
            encoded.descriptions.truncate(described);
            let body = Body::Literal(ChunkLayout::Opaque(Coder::Raw));
            describe(&payload[start..], body, &mut encoded.descriptions);
        }
        encoded.chunks += 1;
    }

    /// Copies both buffers, computes their differences, and extracts as many planes as there is
    /// room for; returns the hashes of both.
    fn take(
        &mut self,
        elements: Elements,
        xor: bool,
        [current, reference]: [&[u8]; 2],
        planes: &mut [u8],
    ) -> [u64; 2] {
        let Elements { size, .. } = elements;
        let rule = elements.rule(xor);
        let len = current.len();
        for buffer in [&mut self.current, &mut self.reference, &mut self.differences] {
            buffer.resize(len, 0);
        }
        let mut hashers = [Hasher::new(len), Hasher::new(len)];
        for start in (0..len).step_by(COPY_PART) {
            let part = start..len.min(start + COPY_PART);
            let (now, before) = (&mut self.current[part.clone()], &mut self.reference[part.clone()]);
            now.copy_from_slice(&current[part.clone()]);
            before.copy_from_slice(&reference[part.clone()]);
            hashers[0].write(now);
            hashers[1].write(before);
            let differences = &mut self.differences[part.clone()];
            difference::difference(rule, size, now, before, differences);
            for (byte, plane) in planes.chunks_exact_mut(len / size).enumerate() {
                difference::take_plane(size, differences, byte, &mut plane[start / size..part.end / size]);
            }
        }
        [hashers[0].finish(&self.current), hashers[1].finish(&self.reference)]
    }

    /// Appends the differences to the payload, which ends with their planes if these are chosen.
    fn difference(&mut self, elements: Elements, choice: Choice, payload: &mut Vec<u8>) -> Difference {
        let size = elements.size;
        let Choice { mut xor, thresholds, planes, .. } = choice;
        let classes = if let Some(planes) = planes {
            vec![self.streams.encode_planes(size, &self.differences, planes, payload)]
        } else if !thresholds.is_empty() {
            let differences = &self.differences;
            let ranges =
                magnitude_classes::sort(size, &thresholds, &self.reference, differences, &mut self.sorted);
            let (streams, sorted) = (&mut self.streams, &self.sorted);
            ranges.into_iter().map(|range| streams.encode(size, &sorted[range], payload)).collect()
        } else if xor {
            vec![self.streams.encode(size, &self.differences, payload)]
        } else {
            let both = [self.current.as_slice(), &self.reference];
            let class;
            (xor, class) = self.streams.encode_either(size, &self.differences, both, payload);
            vec![class]
        };
        Difference { elements, xor, thresholds, classes }
    }
}

/// The elements of a chunk that are not those of the reference, found in one pass over both.
#[derive(Default)]
struct Changed {
    /// Copies of the end of either buffer.
    ends: [Vec<u8>; 2],
    /// The changed elements of either buffer, `len` bytes each.
    lists: [Vec<u8>; 2],
    len: usize,
    /// A bit for every element.
    marks: Vec<u8>,
    /// The masks of the reference's classes.
    masks: Vec<u8>,
    classes: Vec<ClassChanges>,
}

impl Changed {
    /// Finds what changed, and the masks of the classes between `thresholds`, if there are any; returns the hashes of
    /// both buffers. `None` if it is more than lists are meant for. Every byte is read once, so that hashes, lists and
    /// masks are of the same bytes even if another thread changes them.
    fn find(&mut self, size: usize, thresholds: &[u16], both: [&[u8]; 2]) -> Option<[u64; 2]> {
        let len = both[0].len();
        let most = len / size / LIST_ONLY_BELOW * size;
        let per_mark = 8 * size;
        self.len = 0;
        self.marks.resize(mask_compact::marks_len(len / size), 0);
        let stride = match thresholds {
            [] => 0,
            _ => class_masks::make_room(&mut self.masks, thresholds.len() + 1, len / size),
        };
        let mut hashers = [Hasher::new(len), Hasher::new(len)];
        // Hashes are finished by the end, which therefore must not be read before.
        let blocks = len.saturating_sub(MIN_END) / HASH_BLOCK * HASH_BLOCK;
        for start in (0..blocks).step_by(COMPARED_PART) {
            let part = start..blocks.min(start + COMPARED_PART);
            for list in &mut self.lists {
                // Grown by an amortised step, not part by part.
                if list.len() < self.len + COMPARED_PART + SLACK {
                    list.resize(2 * self.len + COMPARED_PART + SLACK, 0);
                }
            }
            let elements = self.lists.each_mut().map(|list| &mut list[self.len..]);
            let masks = &mut self.masks[(start / per_mark).min(stride)..];
            let masks = Masks { thresholds, masks, stride };
            let to = Lists { elements, marks: &mut self.marks[start / per_mark..], masks };
            Hasher::update_both(&mut hashers, part.len(), |sums| {
                self.len += changes::compare_hashed(size, both.map(|from| &from[part.clone()]), sums, to);
            });
            if self.len > most {
                return None;
            }
        }
        for ((end, from), hasher) in self.ends.iter_mut().zip(both).zip(&mut hashers) {
            end.clear();
            end.extend_from_slice(&from[blocks..]);
            hasher.write(end);
        }
        for list in &mut self.lists {
            list.resize(list.len().max(self.len + HASH_BLOCK + MIN_END + SLACK), 0);
        }
        let elements = self.lists.each_mut().map(|list| &mut list[self.len..]);
        let masks = &mut self.masks[(blocks / per_mark).min(stride)..];
        let masks = Masks { thresholds, masks, stride };
        let to = Lists { elements, marks: &mut self.marks[blocks / per_mark..], masks };
        self.len += changes::compare_few(size, self.ends.each_ref().map(Vec::as_slice), to);
        let hashes = std::array::from_fn(|i| hashers[i].finish_by_end(&self.ends[i]));
        (self.len <= most).then_some(hashes)
    }
}

/// How to encode a chunk.
struct Choice {
    /// Whether differences are XOR instead of ULP or zigzag.
    xor: bool,
    thresholds: Vec<u16>,
    /// The number of planes, where the sample decides that.
    planes: Option<usize>,
    /// The prediction, where residuals in bins are smaller than all that.
    binned: Option<Prediction>,
    /// Whether so few elements changed that only these are looked at.
    few: bool,
}

/// Differences of a sample.
struct Compared {
    /// Whether bits are smaller than distances.
    xor: bool,
    /// How many low bytes to keep as planes then, and the estimated cost.
    planes: usize,
    cost: u64,
}

/// Elements from several places of a chunk.
#[derive(Default)]
struct Sample {
    current: Vec<u8>,
    reference: Vec<u8>,
    distances: Vec<u8>,
    bits: Vec<u8>,
    plane: Vec<u8>,
}

impl Sample {
    /// Chooses by a sample of the chunk.
    fn choose(
        &mut self,
        elements: Elements,
        options: &Options,
        [current, reference]: [&[u8]; 2],
        streams: &mut Streams,
        scratch: &mut BinnedEncoder,
    ) -> Choice {
        let size = elements.size;
        let Compared { mut xor, planes, .. } =
            self.compare(SAMPLE_RUN, elements, current, reference, streams);
        let (count, changed) =
            (self.current.len() / size, streams.count_nonzero(size, self.differences(xor)));
        let sparse = 2 * changed <= count;
        // Short chunks have not enough of each class.
        let enough = elements.has_magnitudes() && current.len() >= SAMPLE_RUNS * CLASS_SAMPLE_RUN * size;
        let may_bin = options.kind == Kind::F32 && size == 4 && options.effort > Effort::Fast;
        if may_bin && enough && !sparse {
            let prediction = binned::predict(&self.current, &self.reference, scratch);
            // Byte planes of few elements would look smaller than they are.
            let cost = self.compare(CLASS_SAMPLE_RUN, elements, current, reference, streams).cost;
            let times = (current.len() / self.current.len()) as u64;
            let binned = binned::cost_in_classes(&self.current, &self.reference, prediction, times);
            if binned + cost / MIN_BINNED_SAVING < cost {
                return Choice {
                    xor,
                    thresholds: Vec::new(),
                    planes: None,
                    binned: Some(prediction),
                    few: false,
                };
            }
        }
        // Where all elements moved, classes save less than they cost in time; where few did, a fifth of little.
        let least = if sparse { Effort::Fast } else { Effort::Default };
        if enough && options.effort > least {
            xor = self.compare(CLASS_SAMPLE_RUN, elements, current, reference, streams).xor;
            let times = (current.len() / self.current.len()) as u64;
            let thresholds =
                magnitudes::thresholds(options.kind, &self.reference, self.differences(xor), times);
            if !thresholds.is_empty() {
                let few = changed * LIST_ONLY_BELOW <= count;
                return Choice { xor, thresholds, planes: None, binned: None, few };
            }
        }
        Choice { xor, thresholds: Vec::new(), planes: (!sparse).then_some(planes), binned: None, few: sparse }
    }

    fn differences(&self, xor: bool) -> &[u8] {
        if xor { &self.bits } else { &self.distances }
    }

    /// Takes a sample of runs of `run` elements, and compares bits with distances.
    fn compare(
        &mut self,
        run: usize,
        elements: Elements,
        current: &[u8],
        reference: &[u8],
        streams: &mut Streams,
    ) -> Compared {
        let size = elements.size;
        let run = (run * size).min(current.len() / size * size);
        for (sample, from) in [(&mut self.current, current), (&mut self.reference, reference)] {
            sample.clear();
            for at in sampling::spread(from.len(), run, SAMPLE_RUNS, size) {
                sample.extend_from_slice(&from[at..at + run]);
            }
        }
        for (xor, out) in [(false, &mut self.distances), (true, &mut self.bits)] {
            out.resize(self.current.len(), 0);
            difference::difference(elements.rule(xor), size, &self.current, &self.reference, out);
        }
        let [distances, bits] =
            [&self.distances, &self.bits].map(|differences| streams.fewest_bits(size, differences));
        let xor = bits.1 < distances.1;
        let (planes, cost) = if xor { bits } else { distances };
        Compared { xor, planes, cost }
    }

    /// Whether the sample leaves it open that a chunk of `len` bytes takes less than `stored`
    /// without a reference.
    fn is_smaller_alone(&mut self, elements: Elements, len: usize, stored: usize) -> bool {
        let size = elements.size;
        let count = self.current.len() / size;
        if count < SAMPLE_RUN {
            return true;
        }
        // Exponents are bytes after this.
        let mut carry = 0;
        for byte in &mut self.current {
            (*byte, carry) = (*byte << 1 | carry, *byte >> 7);
        }
        self.plane.resize(count, 0);
        let mut cost = 0;
        for byte in 0..size {
            difference::take_plane(size, &self.current, byte, &mut self.plane);
            cost += cost::entropy(&histogram::exact(&self.plane));
        }
        // Scales of rows or columns may save a little more.
        let promised = cost / (8 * BIT) * len as u64 / self.current.len() as u64;
        promised - promised / 16 < stored as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use twox_hash::XxHash3_64;

    #[test]
    fn changes_are_found_and_both_buffers_hashed() {
        let mut changed = Changed::default();
        let lens = [1, 8, 200, 240, 241, 256, 1024, 1025, COPY_PART - 1, COPY_PART, COPY_PART + 1];
        let longer = [COPY_PART + 63, COPY_PART + 300, 3 * COPY_PART, 3 * COPY_PART + 1024, 70_001];
        for (size, len) in [1, 2, 4, 8].into_iter().flat_map(|size| lens.map(|len| (size, len * size))) {
            check(&mut changed, size, len);
        }
        for (size, len) in [1, 2, 4, 8].into_iter().flat_map(|size| longer.map(|len| (size, len * size))) {
            check(&mut changed, size, len);
        }
    }

    fn check(changed: &mut Changed, size: usize, len: usize) {
        let before: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        for every in [9, 40, 1000] {
            let mut now = before.clone();
            // Both ends, and some between.
            for element in (0..len / size).filter(|i| i % every == 8 || i + 1 == len / size) {
                now[element * size + element % size] ^= 0x55;
            }
            let differ: Vec<usize> = (0..len / size)
                .filter(|i| now[i * size..(i + 1) * size] != before[i * size..(i + 1) * size])
                .collect();
            let found = changed.find(size, &[], [&now, &before]);
            if differ.len() > len / size / LIST_ONLY_BELOW {
                assert_eq!(found, None, "{len} bytes");
                continue;
            }
            let hashes = [XxHash3_64::oneshot(&now), XxHash3_64::oneshot(&before)];
            assert_eq!(found, Some(hashes), "{len} bytes of {size}");
            assert_eq!(changed.len, differ.len() * size);
            let of = |bytes: &[u8]| -> Vec<u8> {
                differ.iter().flat_map(|i| &bytes[i * size..(i + 1) * size]).copied().collect()
            };
            assert_eq!(changed.lists[0][..changed.len], of(&now));
            assert_eq!(changed.lists[1][..changed.len], of(&before));
            let marked = |i: usize| changed.marks[i / 8] >> (i % 8) & 1 == 1;
            assert!((0..len / size).filter(|&i| marked(i)).eq(differ.iter().copied()));
            assert_eq!(changed.marks.len(), mask_compact::marks_len(len / size));
        }
    }
}
