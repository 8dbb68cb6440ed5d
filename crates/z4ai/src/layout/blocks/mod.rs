//! The blocks layout: quantized elements whose scales, offsets and quants are apart.
//!
//! A block of a GGUF file holds a scale, perhaps an offset, and small integers. Here each parameter is a
//! stream of its own, and the quants are symbols of one byte. Groups of quants are classed by
//! what their parameters say of them: a scale that is large beside the others of its row means an
//! outlier and small quants otherwise, and the ratio of offset and scale says where zero is. A class
//! has a code of its own.
//!
//! Payload: the streams of parameters in the order of the type's table, then the symbols of each
//! class.

// Loops over arrays of known length, several of which share an index.
#![allow(clippy::needless_range_loop)]

mod decode;
pub(crate) mod encode;
mod levels;
mod quants;
mod relative;
mod types;

pub(crate) use decode::Buffers;
pub use types::BlockType;

use crate::coder::Coder;
use crate::coder::tans::pooled::Pooled;
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::layout::streams::Streams;
use crate::simd::dispatch_wide;
use crate::simd::vector::Vector;
use crate::wire::{Put, Reader};
use levels::Levels;
use relative::Relations;

/// Added to the type of blocks whose classes share their streams. (format)
const POOLED: u8 = 128;
/// Added to the type of blocks whose offsets are relative to their scales. (format)
const RELATIVE: u8 = 64;
/// Classes of groups, at most. (format)
const MAX_CLASSES: usize = 16;

/// The description of a chunk of blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blocks {
    pub(crate) block_type: BlockType,
    /// How offsets are stored.
    relations: Relations,
    /// Groups that the mean of scale levels is taken of; 0 without classes by scale.
    pub(crate) run: u32,
    /// Thresholds of relative scale levels, ascending.
    pub(crate) scales: Vec<i32>,
    /// Thresholds of offset levels, ascending.
    pub(crate) offsets: Vec<i32>,
    /// The parameters, a stream each.
    pub(crate) parameters: Vec<Coder>,
    /// Groups and coder of each class; none for types without quants, and where classes share their streams.
    pub(crate) classes: Vec<(u32, Coder)>,
    /// The streams that all classes share, and their tables.
    pub(crate) pooled: Option<Pooled>,
}

/// Thresholds, searched without a branch.
struct Thresholds([i32; MAX_CLASSES]);

impl Thresholds {
    fn new(ascending: &[i32]) -> Self {
        // The search never gets to the last one.
        let mut padded = [i32::MAX; MAX_CLASSES];
        padded[..ascending.len()].copy_from_slice(ascending);
        Self(padded)
    }

    /// How many thresholds are not above a level, which is below the largest integer.
    #[inline(always)]
    fn class_of(&self, level: i32) -> usize {
        let mut below = 0;
        for step in [8, 4, 2, 1] {
            below += step * usize::from(self.0[below + step - 1] <= level);
        }
        below
    }
}

/// Appends the class of every group: by its scale, then by its offset.
fn classes_of(levels: &Levels, scales: &[i32], offsets: &[i32], classes: &mut Vec<u8>) {
    let start = classes.len();
    classes.resize(start + levels.scales.len(), 0);
    add_classes(&levels.scales, scales, offsets.len() as u8 + 1, &mut classes[start..]);
    add_classes(&levels.offsets, offsets, 1, &mut classes[start..]);
}

dispatch_wide! {
    /// Adds `each` to the class of a level for every threshold that is not above it.
    fn add_classes(levels: &[i32], thresholds: &[i32], each: u8, classes: &mut [u8]) = add_classes_with
}

#[inline(always)]
fn add_classes_with(_isa: impl Vector, levels: &[i32], thresholds: &[i32], each: u8, classes: &mut [u8]) {
    /// Levels that are compared at a time. (structural: two to eight vectors)
    const LANES: usize = 32;
    if thresholds.is_empty() {
        return;
    }
    let (whole, rest) = levels.as_chunks::<LANES>();
    let (some, others) = classes.as_chunks_mut::<LANES>();
    for (levels, classes) in whole.iter().zip(some) {
        let mut below = [0i32; LANES];
        for &threshold in thresholds {
            for i in 0..LANES {
                below[i] += i32::from(threshold <= levels[i]);
            }
        }
        for i in 0..LANES {
            classes[i] += each * below[i] as u8;
        }
    }
    for (&level, class) in rest.iter().zip(others) {
        *class += each * thresholds.iter().filter(|&&threshold| threshold <= level).count() as u8;
    }
}

fn read_thresholds(reader: &mut Reader<'_>) -> Result<Vec<i32>> {
    let count = usize::from(reader.u8()?);
    if count >= MAX_CLASSES {
        return Err(Error::corrupt(format_args!("{count} thresholds of classes")));
    }
    let thresholds: Vec<i32> =
        (0..count).map(|_| reader.u32().map(|level| level as i32)).collect::<Result<_>>()?;
    if thresholds.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(Error::corrupt("thresholds of classes do not ascend"));
    }
    Ok(thresholds)
}

impl Blocks {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let pooled = if self.pooled.is_some() { POOLED } else { 0 };
        if self.relations.any() {
            out.extend([self.block_type.row().id | pooled | RELATIVE, self.relations.flags()]);
        } else {
            out.put_u8(self.block_type.row().id | pooled);
        }
        out.put_u32(self.run);
        for thresholds in [&self.scales, &self.offsets] {
            out.put_u8(thresholds.len() as u8);
            thresholds.iter().for_each(|&level| out.put_u32(level as u32));
        }
        self.parameters.iter().for_each(|coder| coder.write(out));
        for (groups, coder) in &self.classes {
            out.put_u32(*groups);
            coder.write(out);
        }
        if let Some(pooled) = &self.pooled {
            pooled.write(out);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        if kind.size() != 1 {
            return Err(Error::corrupt(format_args!("blocks of {} elements", kind.name())));
        }
        let id = reader.u8()?;
        let (pooled, relative, id) = (id & POOLED != 0, id & RELATIVE != 0, id & !(POOLED | RELATIVE));
        let Some(block_type) = BlockType::from_id(u32::from(id)) else {
            return Err(Error::unsupported(format_args!("block type {id} is not known")));
        };
        let row = block_type.row();
        if !len.is_multiple_of(row.bytes) {
            return Err(Error::corrupt(format_args!("{len} bytes are not whole blocks of {}", row.name)));
        }
        let blocks = len / row.bytes;
        let relations = if relative { Relations::read(reader, row)? } else { Relations::default() };
        let run = reader.u32()?;
        let (scales, offsets) = (read_thresholds(reader)?, read_thresholds(reader)?);
        let classes = (scales.len() + 1) * (offsets.len() + 1);
        let (scaled, shifted) = row.has_levels();
        if classes > MAX_CLASSES
            || !scaled && !scales.is_empty()
            || !shifted && !offsets.is_empty()
            || scales.is_empty() != (run == 0)
            || run as usize > blocks * row.groups
        {
            return Err(Error::corrupt(format_args!(
                "{classes} classes of groups of {}, by runs of {run}",
                row.name
            )));
        }
        let parameters = row.stored_streams(relations).map(|_| Coder::read(reader)).collect::<Result<_>>()?;
        if pooled {
            if classes == 1 {
                return Err(Error::corrupt("one class that shares its streams"));
            }
            let pooled = Some(Pooled::read(reader, classes)?);
            let classes = Vec::new();
            return Ok(Self { block_type, relations, run, scales, offsets, parameters, classes, pooled });
        }
        let classes = if row.groups == 0 { 0 } else { classes };
        let classes: Vec<(u32, Coder)> =
            (0..classes).map(|_| Ok((reader.u32()?, Coder::read(reader)?))).collect::<Result<_>>()?;
        let groups: u64 = classes.iter().map(|&(groups, _)| u64::from(groups)).sum();
        if groups != (blocks * row.groups) as u64 {
            return Err(Error::corrupt(format_args!("classes of {groups} groups in {blocks} blocks")));
        }
        Ok(Self { block_type, relations, run, scales, offsets, parameters, classes, pooled: None })
    }

    pub(crate) fn payload_len(&self, len: usize) -> u64 {
        let row = self.block_type.row();
        let parameters = self.parameters.iter().zip(row.stored_streams(self.relations));
        let parameters = parameters.map(|(coder, bytes)| coder.stored_len(len / row.bytes * bytes));
        let symbols = |groups: u32| groups as usize * row.group_symbols();
        let quants = self.classes.iter().map(|(groups, coder)| coder.stored_len(symbols(*groups)));
        let pooled = self.pooled.iter().map(Pooled::stored_len);
        parameters.chain(quants).chain(pooled).fold(0, u64::saturating_add)
    }

    pub(crate) fn streams(&self, len: usize, streams: &mut Streams) {
        let row = self.block_type.row();
        for (coder, bytes) in self.parameters.iter().zip(row.stored_streams(self.relations)) {
            streams.add("block parameters", coder, len / row.bytes * bytes);
        }
        for (groups, coder) in &self.classes {
            streams.add("quants", coder, *groups as usize * row.group_symbols());
        }
        if let Some(pooled) = &self.pooled {
            let symbols = len / row.bytes * row.quants.symbols();
            streams.add_stored("quants", "pooled tans", symbols, pooled.stored_len());
        }
    }

    /// Whether there are several classes.
    fn has_classes(&self) -> bool {
        self.scales.len() + self.offsets.len() > 0
    }

    /// The class of every group, by its parameters.
    fn classify(&self, streams: &[&[u8]], blocks: usize, levels: &mut Levels, classes: &mut Vec<u8>) {
        let row = self.block_type.row();
        classes.clear();
        if !self.has_classes() {
            classes.resize(blocks * row.groups, 0);
            return;
        }
        levels.fill(row, streams, blocks);
        levels.subtract_means(self.run as usize);
        classes_of(levels, &self.scales, &self.offsets, classes);
    }
}
