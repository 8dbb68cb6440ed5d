//! Encodes chunks of blocks: finds the classes of groups that make the quants smallest.

use super::decode::MAX_STREAMS;
use super::levels::Levels;
use super::quants::*;
use super::relative::{Relations, join_pairs, subtract_halves};
use super::types::{Parameters, Quants, Row};
use super::{BlockType, Blocks, MAX_CLASSES, Thresholds, classes_of};
use crate::coder::tans::order_one::Alphabet;
use crate::coder::tans::{Described, Shape, order_one, pooled};
use crate::coder::{Coder, EncodeScratch, choose};
use crate::estimate::cost::{self, BIT};
use crate::kernel::histogram;
use crate::options::Effort;
use crate::simd::dispatch_wide;
use crate::simd::vector::Vector;

/// Levels sampled for thresholds. (case: `entropy.py`)
const SAMPLED_LEVELS: usize = 1024;
/// Groups that classes are compared by, about. (case: `entropy.py`)
const COUNTED_GROUPS: usize = 8192;
/// Classes along each of the two levels while they are compared. (case: `entropy.py`)
const FINE: usize = 8;
/// What a class takes, about, in bytes. (structural: a shape, what it misses, and counts of a sample that are too good)
const PER_CLASS: u64 = 56;
/// As [`PER_CLASS`], of those beyond eight: tables take time to be made. (case: `entropy.py`, Q4_K; as the others, small
/// tensors are 0.15 % smaller and decode at 0.87 of the speed)
const PER_LATER_CLASS: u64 = 90;
/// As [`PER_CLASS`], where no shape fits. (structural: numbers of states of 256 symbols)
const PER_LISTED_CLASS: u64 = 230;
/// Contexts of neighbours replace classes where they save one part in this many. (case: `entropy.py`, GGUF)
const MIN_ORDER_SAVING: u64 = 200;
/// Scales and offsets of groups take turns where this saves one part in this many. (case: `entropy.py`, Q4_K; with 100, small
/// tensors are 0.17 % larger)
const MIN_PAIRS_SAVING: u64 = 1000;
/// Numbers of classes by scale and by offset that are compared. (case: `entropy.py`)
const CLASSES: [(usize, usize); 13] =
    [(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (4, 2), (4, 4), (2, 8), (8, 2)];

/// Buffers that encoding reuses.
#[derive(Default)]
pub(crate) struct BlocksEncoder {
    parameters: Vec<Vec<u8>>,
    symbols: Vec<u8>,
    levels: Levels,
    classes: Vec<u8>,
    runs: Vec<Vec<u8>>,
}

/// Appends the streams of `content`, whole blocks, to `payload` and describes them. `row_blocks` is
/// the number of blocks of a row, or 0 if it is not known.
pub(crate) fn encode(
    content: &[u8],
    block_type: BlockType,
    row_blocks: usize,
    effort: Effort,
    scratch: &mut BlocksEncoder,
    coder: &mut EncodeScratch,
    payload: &mut Vec<u8>,
) -> Blocks {
    let row = block_type.row();
    let blocks = content.len() / row.bytes;
    scratch.take_parameters(row, content);
    let (relations, parameters) = scratch.encode_parameters(row, effort, payload, coder);
    let mut out = Blocks {
        block_type,
        relations,
        run: 0,
        scales: Vec::new(),
        offsets: Vec::new(),
        parameters,
        classes: Vec::new(),
        pooled: None,
    };
    if row.groups == 0 {
        return out;
    }
    scratch.symbols.resize(blocks * row.quants.symbols(), 0);
    take_quants(row, content, &mut scratch.symbols);
    if effort == Effort::Fast {
        // Quants as they are decode at the speed of a memory copy.
        payload.extend_from_slice(&scratch.symbols);
        out.classes.push(((blocks * row.groups) as u32, Coder::Raw));
        return out;
    }
    let run = if row_blocks == 0 { blocks * row.groups } else { row_blocks * row.groups };
    let run = run.min(blocks * row.groups);
    let cost = scratch.choose_classes(&mut out, run, blocks);
    let alphabet = if row.quants.is_one() { Alphabet::Smooth } else { Alphabet::Few };
    if let Some(values) = row.values()
        && let Some(choice) = order_one::choose(&scratch.symbols, &values, alphabet, effort)
        && choice.cost < cost - cost / MIN_ORDER_SAVING
    {
        (out.run, out.scales, out.offsets) = (0, Vec::new(), Vec::new());
        let stream = choose::encode_order_one(&scratch.symbols, &choice, payload, coder);
        out.classes.push(((blocks * row.groups) as u32, stream));
        return out;
    }
    let classes = (out.scales.len() + 1) * (out.offsets.len() + 1);
    scratch.scatter(&out, classes, blocks, row.group_symbols());
    // Codes of whole bits decode faster where symbols have few.
    let symbols = (blocks * row.quants.symbols()) as u64;
    if classes > 1 && (effort > Effort::Default || 8 * BIT * cost >= choose::MIN_FINE_BITS * symbols) {
        let EncodeScratch { numbered, tans, .. } = coder;
        let runs: Vec<&[u8]> = scratch.runs[..classes].iter().map(Vec::as_slice).collect();
        out.pooled = Some(pooled::encode(&runs, Described::Packed, numbered, payload, tans));
        return out;
    }
    for symbols in &scratch.runs[..classes] {
        let counts = histogram::exact(symbols);
        let stream = match symbols.is_empty() {
            true => Coder::Constant(0),
            false => choose::encode_codes(symbols, &counts, effort, payload, coder),
        };
        out.classes.push(((symbols.len() / row.group_symbols()) as u32, stream));
    }
    out
}

impl BlocksEncoder {
    /// Copies the parameters of all blocks to their streams.
    fn take_parameters(&mut self, row: &Row, content: &[u8]) {
        let count = row.parameter_streams().count();
        self.parameters.resize_with(count.min(MAX_STREAMS), Vec::new);
        self.parameters.iter_mut().for_each(Vec::clear);
        let mut streams = self.parameters.iter_mut();
        for parameters in row.parameters {
            let blocks = content.chunks_exact(row.bytes);
            let Some(stream) = streams.next() else { return };
            match *parameters {
                Parameters::Bytes { at, count: 1, .. } => stream.extend(blocks.map(|block| block[at])),
                Parameters::Bytes { at, step, count } => {
                    blocks.for_each(|block| stream.extend((0..count).map(|i| block[at + i * step])));
                }
                Parameters::ScalesAndOffsets { at } => {
                    let Some(offsets) = streams.next() else { return };
                    for block in blocks {
                        let from = &block[at..at + 12];
                        stream.extend((0..4).map(|i| from[i] & 63));
                        stream.extend((0..4).map(|i| from[i + 8] & 15 | from[i] >> 6 << 4));
                        offsets.extend((4..8).map(|i| from[i] & 63));
                        offsets.extend((4..8).map(|i| from[i + 4] >> 4 | from[i] >> 6 << 4));
                    }
                }
                Parameters::Scales { at } => {
                    for block in blocks {
                        let from = &block[at..at + 12];
                        let high = |i: usize| (from[8 + i % 4] >> (2 * (i / 4)) & 3) << 4;
                        stream.extend((0..8).map(|i| from[i] & 15 | high(i)));
                        stream.extend((0..8).map(|i| from[i] >> 4 | high(i + 8)));
                    }
                }
            }
        }
    }

    /// Appends the streams of parameters, with offsets relative to scales where this is smaller.
    fn encode_parameters(
        &self,
        row: &Row,
        effort: Effort,
        payload: &mut Vec<u8>,
        coder: &mut EncodeScratch,
    ) -> (Relations, Vec<Coder>) {
        let mut relations = Relations::default();
        if effort == Effort::Fast {
            let parameters = self.parameters.iter().map(|stream| choose::encode(stream, payload, coder));
            return (relations, parameters.collect());
        }
        let mut streams: Vec<&[u8]> = self.parameters.iter().map(Vec::as_slice).collect();
        let entropy = |stream: &[u8]| cost::entropy(&histogram::exact(stream)) / (8 * BIT);
        let halves = row.halves().map(|first| {
            let [a, b, c, d] = std::array::from_fn(|i| streams[first + i]);
            (first, subtract_halves([c, d], [a, b]))
        });
        if let Some((first, [low, high])) = &halves
            && entropy(high) + entropy(low) < entropy(streams[first + 3]) + entropy(streams[first + 2])
        {
            (streams[first + 2], streams[first + 3]) = (low, high);
            relations.halves = true;
        }
        let pairs = row.pairs().map(|first| (first, join_pairs(streams[first], streams[first + 1])));
        let choice = pairs.as_ref().and_then(|(first, pairs)| {
            let apart = entropy(streams[*first]) + entropy(streams[first + 1]);
            let choice = order_one::choose(
                pairs,
                &std::array::from_fn(|symbol| symbol as i32),
                Alphabet::Smooth,
                effort,
            )?;
            (choice.cost < apart - apart / MIN_PAIRS_SAVING).then_some(choice)
        });
        let mut parameters = Vec::with_capacity(streams.len());
        for (number, &stream) in streams.iter().enumerate() {
            match (&pairs, &choice) {
                (Some((first, pairs)), Some(choice)) if number == *first => {
                    relations.pairs = true;
                    parameters.push(choose::encode_order_one(pairs, choice, payload, coder));
                }
                (Some((first, _)), Some(_)) if number == first + 1 => {}
                // They are few: what they take to decode does not count.
                _ => {
                    let counts = histogram::exact(stream);
                    parameters.push(choose::encode_in_order(stream, &counts, effort, payload, coder));
                }
            }
        }
        (relations, parameters)
    }

    /// Chooses the thresholds of classes; returns the bytes that all quants take in these, about.
    fn choose_classes(&mut self, out: &mut Blocks, run: usize, blocks: usize) -> u64 {
        let row = out.block_type.row();
        let (scaled, shifted) = row.has_levels();
        if !scaled {
            return cost::entropy(&histogram::exact(&self.symbols)) / (8 * BIT);
        }
        let streams: Vec<&[u8]> = self.parameters.iter().map(Vec::as_slice).collect();
        self.levels.fill(row, &streams, blocks);
        self.levels.subtract_means(run);
        let scales = quantiles(&self.levels.scales);
        let offsets = if shifted { quantiles(&self.levels.offsets) } else { Vec::new() };
        // Counts of a grid of classes, from a part of all groups.
        let group = row.group_symbols();
        let stride = (self.levels.scales.len() / COUNTED_GROUPS).max(1);
        let mut counts = vec![[0u32; 256]; FINE * FINE];
        let (by_scale, by_offset) = (Thresholds::new(&scales), Thresholds::new(&offsets));
        for i in (0..self.levels.scales.len()).step_by(stride) {
            let offset = if shifted { by_offset.class_of(self.levels.offsets[i]) } else { 0 };
            let counts = &mut counts[by_scale.class_of(self.levels.scales[i]) * FINE + offset];
            self.symbols[i * group..][..group].iter().for_each(|&symbol| counts[usize::from(symbol)] += 1);
        }
        // What a shape takes more than numbers of states do, for all groups.
        let mut all = [0u32; 256];
        counts.iter().for_each(|counts| all.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count));
        let ideal = cost::entropy(&all) / (8 * BIT);
        let misfit = Shape::fit(&all, ideal, Described::Packed)
            .map_or(u64::MAX, |(len, ..)| len.saturating_sub(ideal + PER_CLASS));
        let misfit = misfit.saturating_mul(stride as u64);
        let described = |classes: u64| {
            let shaped = classes.min(8) * PER_CLASS + classes.saturating_sub(8) * PER_LATER_CLASS;
            shaped.saturating_add(misfit).min(classes * PER_LISTED_CLASS)
        };
        let cost = |&(by_scale, by_offset): &(usize, usize)| {
            let mut merged = vec![[0u32; 256]; by_scale * by_offset];
            for (cell, counts) in counts.iter().enumerate() {
                let class = cell / FINE * by_scale / FINE * by_offset + cell % FINE * by_offset / FINE;
                merged[class].iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            }
            let bits: u64 = merged.iter().map(|counts| cost::entropy(counts)).sum();
            bits / (8 * BIT) * stride as u64 + described(merged.len() as u64)
        };
        let allowed = CLASSES.iter().filter(|(_, by_offset)| shifted || *by_offset == 1);
        let costs = allowed.map(|classes| (cost(classes), *classes));
        let (bytes, (by_scale, by_offset)) = costs.min_by_key(|&(cost, _)| cost).unwrap_or((0, (1, 1)));
        out.scales = thin(&scales, by_scale);
        out.offsets = thin(&offsets, by_offset);
        out.run = if out.scales.is_empty() { 0 } else { run as u32 };
        bytes
    }

    /// Copies the symbols of each class to its run.
    fn scatter(&mut self, out: &Blocks, classes: usize, blocks: usize, group: usize) {
        self.classes.clear();
        let groups = blocks * out.block_type.row().groups;
        if classes == 1 {
            self.classes.resize(groups, 0);
        } else {
            // Without thresholds of scales all levels are of class 0, relative or not.
            classes_of(&self.levels, &out.scales, &out.offsets, &mut self.classes);
        }
        self.runs.resize_with(MAX_CLASSES, Vec::new);
        self.runs.iter_mut().for_each(Vec::clear);
        if classes == 1 {
            std::mem::swap(&mut self.runs[0], &mut self.symbols);
            return;
        }
        for (symbols, &class) in self.symbols.chunks_exact(group).zip(&self.classes) {
            self.runs[usize::from(class)].extend_from_slice(symbols);
        }
    }
}

/// Levels that cut a sample of all into [`FINE`] parts; equal ones are kept, so that they can be thinned.
fn quantiles(levels: &[i32]) -> Vec<i32> {
    let stride = (levels.len() / SAMPLED_LEVELS).max(1);
    let mut sample: Vec<i32> = levels.iter().copied().step_by(stride).collect();
    sample.sort_unstable();
    (1..FINE).map(|i| sample[i * sample.len() / FINE]).collect()
}

/// The thresholds that cut into `parts` of the [`FINE`] parts, ascending.
fn thin(thresholds: &[i32], parts: usize) -> Vec<i32> {
    let mut thresholds: Vec<i32> =
        (1..parts).filter_map(|part| thresholds.get(part * FINE / parts - 1).copied()).collect();
    thresholds.dedup();
    thresholds
}

dispatch_wide! {
    /// Writes the symbols of all blocks.
    fn take_quants(row: &Row, content: &[u8], symbols: &mut [u8]) = take_quants_with
}

#[inline(always)]
fn take_quants_with(_isa: impl Vector, row: &Row, content: &[u8], symbols: &mut [u8]) {
    let bytes = row.bytes;
    with_packing!(row.quants, packing => unpack_all(packing, bytes, content, symbols), ());
}

#[inline(always)]
fn unpack_all<P: Packing>(packing: P, bytes: usize, content: &[u8], symbols: &mut [u8]) {
    for (block, symbols) in content.chunks_exact(bytes).zip(symbols.chunks_exact_mut(P::SYMBOLS)) {
        packing.unpack(block, symbols);
    }
}
