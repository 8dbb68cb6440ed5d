//! Encoding a delta: for every chunk the smallest way to get it from its reference.

use std::cell::Cell;

use super::cost::{self, BIT};
use super::{OVERHEAD, Plan, chunks, dense, split, stream};
use crate::coder::Coder;
use crate::coder::tans::States;
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::frame::{self, Describe};
use crate::kernel::difference::{self, SKIP};
use crate::kernel::{hash, histogram};
use crate::layout::Layout;
use crate::layout::delta::{Body, Delta, Difference, Elements, List};
use crate::memory;
use crate::options::Options;

/// What a chunk adds when it is stored as it is.
const OVERHEAD_PER_CHUNK: usize = 31;
/// How many times longer chunks are where most elements stayed: little is left of each, and its
/// description is to be little beside that.
const CHUNKS: usize = 8;
/// Below this share of changed elements (one in so many), listing them is always smallest.
const FEW: usize = 8;
/// Elements of each of four runs that are looked at to choose between kinds of difference.
const SAMPLE: usize = 2048;
/// Differences whose estimates are this close (one part in so many) are counted in full.
const CLOSE: u64 = 64;

/// Encodes the way from `reference` to `current` into `out`, which is cleared first.
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
        plan.chunk *= CHUNKS;
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
        scratch.encode(&current[plan.chunk(i)], &reference[plan.chunk(i)], options, &plan);
        encoded.payload.extend_from_slice(&scratch.payload);
        encoded.descriptions.extend_from_slice(&scratch.description);
        plan.chunk(i).len()
    };
    let descriptions = &chunks::encode_all(options, chunks, out, encode)?.descriptions;
    frame::write_index(out, header_len, &frame::Index { descriptions, chunks, ..Default::default() })
}

/// Whether most elements are the same, in a sample from all over the buffers.
fn changes_little(current: &[u8], reference: &[u8], size: usize) -> bool {
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
    /// The buffers of the last delta of this thread. There are many deltas one after another, one for
    /// each tensor of a model, and fresh memory of this size costs as much as what is done with it.
    static LAST: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// Buffers that the thread's next delta uses again.
struct Reused(Box<Scratch>);

impl Default for Reused {
    fn default() -> Self {
        Self(LAST.take().unwrap_or_default())
    }
}

impl Drop for Reused {
    fn drop(&mut self) {
        LAST.set(Some(std::mem::take(&mut self.0)));
    }
}

/// Buffers of one worker, and the chunk it made last.
#[derive(Default)]
struct Scratch {
    current: Vec<u8>,
    reference: Vec<u8>,
    payload: Vec<u8>,
    description: Vec<u8>,
    /// Distances, bits that differ, and a sample of either.
    steps: Vec<u8>,
    bits: Vec<u8>,
    sample: Vec<u8>,
    streams: Streams,
    fresh: Vec<u8>,
    split: split::Scratch,
}

impl Scratch {
    /// Encodes one chunk. Both buffers are copied first: other threads may be changing them, and
    /// what is hashed, counted and coded must be the same bytes.
    fn encode(&mut self, current: &[u8], reference: &[u8], options: &Options, plan: &Plan) {
        self.current.clear();
        self.current.extend_from_slice(current);
        self.reference.clear();
        self.reference.extend_from_slice(reference);
        self.payload.clear();
        let mut body = Body::Difference(self.difference(options.kind));
        // A reference that has little to do with the data only adds noise.
        if self.payload.len() > current.len() / 2 && self.looks_smaller_alone(options, plan) {
            self.fresh.clear();
            let layout = dense(&self.current, options, &plan.hint, &mut self.split, &mut self.fresh);
            if layout != Layout::Opaque(Coder::Raw) && self.fresh.len() < self.payload.len() {
                std::mem::swap(&mut self.fresh, &mut self.payload);
                body = Body::Fresh(layout);
            }
        }
        self.describe(body);
        if self.payload.len() + self.description.len() > current.len() + OVERHEAD_PER_CHUNK {
            self.payload.clear();
            self.payload.extend_from_slice(&self.current);
            self.describe(Body::Fresh(Layout::Opaque(Coder::Raw)));
        }
    }

    /// Whether a piece from the middle, an eighth of the chunk, leaves it open that the chunk is
    /// smaller without the reference.
    fn looks_smaller_alone(&mut self, options: &Options, plan: &Plan) -> bool {
        let (len, size) = (self.current.len(), options.kind.size());
        let piece = len / 8 / size * size;
        if piece < SAMPLE {
            return true;
        }
        let at = (len - piece) / 2 / size * size;
        self.fresh.clear();
        let content = &self.current[at..at + piece];
        let layout = dense(content, options, &plan.hint, &mut self.split, &mut self.fresh);
        let promised = self.fresh.len() as u64 * len as u64 / piece as u64;
        // A piece pays for its tables alone, so it may promise a little less than it keeps.
        let payload = self.payload.len() as u64;
        layout != Layout::Opaque(Coder::Raw) && promised < payload + payload / 16
    }

    fn describe(&mut self, body: Body) {
        let delta = Delta { reference: hash::of(&self.reference), stored: hash::of(&self.payload), body };
        self.description.clear();
        let checksum = hash::of(&self.current);
        frame::write_description(&mut self.description, self.current.len(), checksum, &delta);
    }

    /// Appends the smallest difference to the payload.
    fn difference(&mut self, kind: Kind) -> Difference {
        let elements = Elements::of(kind, self.current.len());
        let size = elements.size;
        let count = self.current.len() / size;
        self.find(elements, false);
        let wide = difference::significant(size, &self.steps);
        if wide[0] == 0 {
            return Difference { elements, xor: false, planes: Vec::new(), list: None };
        }
        if wide[0] as usize <= count / FEW {
            self.find(elements, true);
            // The same elements are listed either way: only their values differ.
            self.streams.list(size, &self.steps, 0);
            let steps = self.streams.cost_of_values(size, &self.steps);
            let xor = self.streams.cost_of_values(size, &self.bits) < steps;
            let chosen = if xor { &self.bits } else { &self.steps };
            return self.streams.encode(elements, xor, &[], chosen, &mut self.payload);
        }
        let (steps, bits) = self.sample_costs(elements);
        let clearly_less = |a: u64, b: u64| a + a / CLOSE < b;
        let mut chosen = None;
        if !clearly_less(bits, steps) {
            chosen = Some((false, self.streams.best_planes(size, &self.steps)));
        }
        if !clearly_less(steps, bits) {
            self.find(elements, true);
            let planes = self.streams.best_planes(size, &self.bits);
            if chosen.as_ref().is_none_or(|(_, steps)| planes.cost < steps.cost) {
                chosen = Some((true, planes));
            }
        }
        let (xor, planes) = chosen.unwrap_or_default();
        let differences = if xor { &self.bits } else { &self.steps };
        self.streams.encode(elements, xor, &planes.counts, differences, &mut self.payload)
    }

    /// Fills `steps` or `bits`.
    fn find(&mut self, elements: Elements, xor: bool) {
        let out = if xor { &mut self.bits } else { &mut self.steps };
        out.resize(self.current.len(), 0);
        difference::difference(elements.rule(xor), elements.size, &self.current, &self.reference, out);
    }

    /// What a sample takes by steps and by bits.
    fn sample_costs(&mut self, elements: Elements) -> (u64, u64) {
        let size = elements.size;
        let run = (SAMPLE * size).min(self.current.len() / size * size);
        let [steps, bits] = [false, true].map(|xor| {
            self.sample.clear();
            self.sample.resize(4 * run, 0);
            for (part, out) in self.sample.chunks_exact_mut(run.max(1)).enumerate() {
                let at = part * (self.current.len() - run) / 3 / size * size;
                let (current, reference) = (&self.current[at..at + run], &self.reference[at..at + run]);
                difference::difference(elements.rule(xor), size, current, reference, out);
            }
            self.streams.best_planes(size, &self.sample).cost
        });
        (steps, bits)
    }
}

/// How differences are best cut.
#[derive(Default)]
struct Planes {
    /// What all streams take, in units of [`BIT`].
    cost: u64,
    /// The counts of the low bytes that are kept as planes, lowest first.
    counts: Vec<[u32; 256]>,
}

/// What the gaps between `listed` of `count` elements at random places take, in units of [`BIT`].
fn cost_of_places(listed: u32, count: u32) -> u64 {
    // Codes of whole bits come close to the entropy until gaps are so short that each costs as
    // many bits as elements it passes: one bit per element, reached at one in 2.618.
    let dense = u64::from(listed) * 2618 > u64::from(count) * 1000;
    if dense { u64::from(count) * BIT } else { cost::entropy(&[listed, count - listed]) }
}

/// The streams that differences become.
#[derive(Default)]
struct Streams {
    /// The first `listed` are the places of listed elements.
    positions: Vec<u32>,
    listed: usize,
    plane: Vec<u8>,
    gaps: Vec<u8>,
}

impl Streams {
    /// How many low bytes to keep as planes, and what all streams take then.
    fn best_planes(&mut self, size: usize, elements: &[u8]) -> Planes {
        let mut all: Vec<[u32; 256]> = Vec::with_capacity(size);
        let count = (elements.len() / size) as u32;
        let wide = difference::significant(size, elements);
        let (mut best, mut kept) = (u64::MAX, 0);
        let mut planes_cost = 0;
        for byte in 0..=size {
            let listed = if byte < size { wide[byte] } else { 0 };
            if listed == 0 {
                if planes_cost < best {
                    (best, kept) = (planes_cost, byte);
                }
                break;
            }
            self.plane.resize(count as usize, 0);
            difference::take_plane(size, elements, byte, &mut self.plane);
            let counts = histogram::of_bytes(&self.plane);
            // Of listed values, all bytes but the first are nearly always zero: a bit each.
            let higher = |&wide: &u32| if wide == 0 { 0 } else { u64::from(listed.max(wide * 8)) * BIT };
            let higher: u64 = wide[byte + 1..].iter().map(higher).sum();
            let places = cost_of_places(listed, count);
            let cost = planes_cost + places + cost::entropy(&counts[1..]) + higher;
            if cost < best {
                (best, kept) = (cost, byte);
            }
            // A code takes at least a bit of every byte, unless there is only one.
            let one = counts[0] == count;
            let least = if one { 0 } else { u64::from(count) * BIT };
            planes_cost += cost::entropy(&counts).max(least).min(u64::from(count) * 8 * BIT);
            all.push(counts);
        }
        all.truncate(kept);
        Planes { cost: best, counts: all }
    }

    /// What the values of listed elements take, in units of [`BIT`].
    fn cost_of_values(&mut self, size: usize, elements: &[u8]) -> u64 {
        (0..size)
            .map(|byte| {
                self.gather(size, elements, byte);
                cost::entropy(&histogram::of_bytes(&self.plane))
            })
            .sum()
    }

    /// Lists the elements that are not zero from byte `byte` on.
    fn list(&mut self, size: usize, elements: &[u8], byte: usize) {
        self.listed = difference::positions(size, elements, byte, &mut self.positions);
    }

    /// Fills `plane` with byte `byte` of the listed elements.
    fn gather(&mut self, size: usize, elements: &[u8], byte: usize) {
        self.plane.clear();
        let places = self.positions[..self.listed].iter().map(|&at| elements[at as usize * size + byte]);
        self.plane.extend(places);
    }

    /// Appends the streams of differences with planes of these counts.
    fn encode(
        &mut self,
        elements: Elements,
        xor: bool,
        counts: &[[u32; 256]],
        differences: &[u8],
        payload: &mut Vec<u8>,
    ) -> Difference {
        let size = elements.size;
        self.plane.resize(differences.len() / size, 0);
        let coders = counts.iter().enumerate().map(|(byte, counts)| {
            difference::take_plane(size, differences, byte, &mut self.plane);
            encode_plane(&self.plane, counts, payload)
        });
        let planes: Vec<_> = coders.collect();
        let mut list = None;
        if planes.len() < size {
            self.list(size, differences, planes.len());
            list = (self.listed > 0).then(|| self.encode_list(size, planes.len(), differences, payload));
        }
        Difference { elements, xor, planes, list }
    }

    fn encode_list(&mut self, size: usize, planes: usize, differences: &[u8], payload: &mut Vec<u8>) -> List {
        self.gaps.clear();
        let mut next = 0;
        for &at in &self.positions[..self.listed] {
            let mut gap = at - next;
            while gap >= u32::from(SKIP) {
                self.gaps.push(SKIP);
                gap -= u32::from(SKIP);
            }
            self.gaps.push(gap as u8);
            next = at + 1;
        }
        // Short gaps are too few values for whole bits to come close.
        let counts = histogram::of_bytes(&self.gaps);
        let gaps = stream::encode_finely(&self.gaps, &counts, States::finest(&counts), payload);
        let values = (planes..size).map(|byte| {
            self.gather(size, differences, byte);
            stream::encode(&self.plane, payload)
        });
        List { values: values.collect(), count: self.listed as u32, gaps_len: self.gaps.len() as u32, gaps }
    }
}

/// As [`stream::encode`], for a plane whose counts are known.
fn encode_plane(plane: &[u8], counts: &[u32; 256], payload: &mut Vec<u8>) -> Coder {
    if cost::entropy(counts) > stream::NOISE * plane.len() as u64 {
        payload.extend_from_slice(plane);
        return Coder::Raw;
    }
    stream::encode_counted(plane, counts, payload)
}
