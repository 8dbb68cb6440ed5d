//! Encodes a delta frame: for every chunk the smallest difference from its reference.

use std::cell::Cell;
use std::sync::Mutex;

use super::changed::{Changed, Reference};
use crate::coder::Coder;
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::estimate::cost::{self, BIT};
use crate::estimate::sampling;
use crate::frame::encode::OVERHEAD;
use crate::frame::plan::Plan;
use crate::frame::{self, FrameFormat, chunks};
use crate::kernel::class_masks::{self, ClassChanges};
use crate::kernel::xxh3::{self, Hasher};
use crate::kernel::{difference, histogram, magnitude_classes};
use crate::layout::delta::binned::encode::{self as binned, BinnedEncoder};
use crate::layout::delta::binned::prediction::Prediction;
use crate::layout::delta::differences::{LIST_ONLY_BELOW, Streams};
use crate::layout::delta::{Body, Delta, Difference, Elements, Hashes, magnitudes};
use crate::layout::{ChunkLayout, split};
use crate::memory;
use crate::options::{Effort, Options};
use crate::reused::{Last, Reusable, Reused};
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
/// A chunk of a delta that was just encoded; its content is in the caches.
pub struct EncodedChunk<'a> {
    /// Where it begins.
    pub start: usize,
    /// What it decodes to.
    pub content: &'a [u8],
    /// Elements of the content, and those of the reference that were in their places: all that differ, and maybe
    /// others. They are bytes where the chunk ends inside an element.
    pub elements: [&'a [u8]; 2],
}

/// Encodes the difference from `reference` to `current` into `out`, which is cleared first.
pub(crate) fn into(current: &[u8], reference: &[u8], options: &Options, out: &mut Vec<u8>) -> Result<()> {
    let plan = begin(current, reference, options, out)?;
    chunks_into(options, &plan, out, |encoder, i, encoded| {
        let reference = Reference::Shared(&reference[plan.chunk(i)]);
        encoder.encode(&current[plan.chunk(i)], reference, options, &plan, encoded);
    })
}

/// As [`into`], and turns each chunk of the reference into what it decodes to, before `each` gets it.
pub(crate) fn advancing_into(
    current: &[u8],
    reference: &mut [u8],
    options: &Options,
    out: &mut Vec<u8>,
    each: &(dyn Fn(EncodedChunk<'_>) + Sync),
) -> Result<()> {
    let plan = begin(current, reference, options, out)?;
    let mut rest = reference;
    let split = |i: usize| {
        let (chunk, after) = std::mem::take(&mut rest).split_at_mut(plan.chunk(i).len());
        rest = after;
        Mutex::new(chunk)
    };
    let references: Vec<Mutex<&mut [u8]>> = (0..plan.chunk_count()).map(split).collect();
    chunks_into(options, &plan, out, |encoder, i, encoded| {
        let mut reference = references[i].lock().unwrap_or_else(|e| e.into_inner());
        let advancing = Reference::Advancing(&mut reference);
        let taken = encoder.encode(&current[plan.chunk(i)], advancing, options, &plan, encoded);
        let elements = encoder.elements(taken);
        each(EncodedChunk { start: plan.chunk(i).start, content: &reference, elements });
    })
}

/// Checks the arguments, plans the chunks and writes the header.
fn begin(current: &[u8], reference: &[u8], options: &Options, out: &mut Vec<u8>) -> Result<Plan> {
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
    // Most deltas are much smaller than this; the rest of it is never touched.
    memory::reserve(out, current.len() + OVERHEAD + plan.chunk_count() * OVERHEAD_PER_CHUNK)?;
    frame::write_header(
        out,
        (Delta::MAGICS[0], Delta::VERSION),
        options.kind,
        options.array.as_ref(),
        current.len() as u64,
    )?;
    Ok(plan)
}

/// Has all chunks encoded and appends them to the header, and the index.
fn chunks_into(
    options: &Options,
    plan: &Plan,
    out: &mut Vec<u8>,
    encode: impl Fn(&mut DeltaEncoder, usize, &mut chunks::Encoded) + Sync,
) -> Result<()> {
    let (header_len, chunks) = (out.len(), plan.chunk_count());
    let encode = |Reused(encoder): &mut Reused<DeltaEncoder>, i: usize, encoded: &mut chunks::Encoded| {
        encode(encoder, i, encoded);
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
    static LAST: Cell<Option<Box<DeltaEncoder>>> = const { Cell::new(None) };
}

impl Reusable for DeltaEncoder {
    fn last() -> &'static Last<Self> {
        &LAST
    }
}

/// What a chunk was encoded from: lists of what changed, or copies of both buffers.
enum Taken {
    Listed,
    Copied,
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
        mut reference: Reference<'_>,
        options: &Options,
        plan: &Plan,
        encoded: &mut chunks::Encoded,
    ) -> Taken {
        let elements = Elements::of(options.kind, current.len());
        let both = [current, &reference];
        let choice = self.sample.choose(elements, options, both, &mut self.streams, &mut self.binned);
        let payload = &mut encoded.payload;
        let start = payload.len();
        let most = current.len() / elements.size / LIST_ONLY_BELOW * elements.size;
        if choice.few
            && let Some(hashes) =
                self.changed.find(elements.size, most, &choice.thresholds, current, &mut reference)
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
                return Taken::Listed;
            }
            payload.truncate(start);
            encoded.descriptions.truncate(described);
            self.changed.revert(elements.size, current.len(), &mut reference);
        }
        // Planes are extracted directly into the payload.
        let planes = choice.planes.filter(|_| choice.binned.is_none()).unwrap_or(0);
        payload.resize(start + planes * (current.len() / elements.size), 0);
        let hashes = self.take(elements, choice.xor, [current, &reference], &mut payload[start..]);
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
        if let Reference::Advancing(reference) = &mut reference {
            reference.copy_from_slice(&self.current);
        }
        Taken::Copied
    }

    /// Elements of the chunk that was just encoded and of its reference, all that differ among them.
    fn elements(&self, taken: Taken) -> [&[u8]; 2] {
        match taken {
            Taken::Listed => self.changed.elements(),
            Taken::Copied => [&self.current, &self.reference],
        }
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
