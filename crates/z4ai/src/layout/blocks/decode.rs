//! Decodes chunks of blocks.

use super::levels::Levels;
use super::quants::*;
use super::relative::{add_halves, split_pairs};
use super::types::{Parameters, Quants, Row};
use super::{Blocks, MAX_CLASSES};
use crate::error::{Error, Result};
use crate::kernel::histogram;
use crate::layout::ChunkScratch;
use crate::layout::split::decode_stream;
use crate::memory::grow;
use crate::simd::dispatch_wide;
use crate::simd::vector::Vector;
use crate::wire::Reader;

/// Streams of parameters, at most. (format)
pub(super) const MAX_STREAMS: usize = 10;

/// Buffers that decoding reuses.
#[derive(Default)]
pub(crate) struct Buffers {
    parameters: [Vec<u8>; MAX_STREAMS],
    /// Offsets of blocks, and scales and offsets of groups, where offsets are relative.
    halves: [Vec<u8>; 2],
    pairs: [Vec<u8>; 2],
    symbols: [Vec<u8>; MAX_CLASSES],
    levels: Levels,
    /// The class of every group.
    classes: Vec<u8>,
}

impl Blocks {
    pub(crate) fn decode(&self, payload: &[u8], out: &mut [u8], scratch: &mut ChunkScratch) -> Result<()> {
        let row = self.block_type.row();
        let blocks = out.len() / row.bytes;
        let mut buffers = std::mem::take(&mut scratch.blocks);
        let coders = &mut scratch.coder;
        let mut payload = Reader::new(payload);
        let mut streams: [&[u8]; MAX_STREAMS] = [&[]; MAX_STREAMS];
        let described = self.parameters.iter().zip(row.stored_streams(self.relations));
        for (((coder, bytes), buffer), stream) in described.zip(&mut buffers.parameters).zip(&mut streams) {
            *stream = decode_stream(coder, &mut payload, blocks * bytes, buffer, coders)?;
        }
        let mut used = 0;
        if let (true, Some(first)) = (self.relations.halves, row.halves()) {
            let [a, b, c, d] = std::array::from_fn(|i| streams[first + i]);
            add_halves([c, d], [a, b], &mut buffers.halves);
            buffers
                .halves
                .iter()
                .zip(&mut streams[first + 2..])
                .for_each(|(half, stream)| *stream = &half[..blocks]);
        }
        if let (true, Some(first)) = (self.relations.pairs, row.pairs()) {
            used |= split_pairs(streams[first], &mut buffers.pairs);
            let len = blocks * row.groups;
            buffers.pairs.iter().zip(&mut streams[first..]).for_each(|(pair, stream)| *stream = &pair[..len]);
        }
        self.classify(&streams, blocks, &mut buffers.levels, &mut buffers.classes);
        let found = histogram::exact(&buffers.classes);
        if self.classes.iter().zip(found).any(|(&(groups, _), found)| groups != found) {
            return Err(Error::corrupt("classes have other groups than their parameters say"));
        }
        let mut runs: [&[u8]; MAX_CLASSES] = [&[]; MAX_CLASSES];
        let unused = !(u8::MAX >> (8 - row.quants.bits()));
        if let Some(pooled) = &self.pooled {
            let sizes = || found.iter().map(|&groups| groups as usize * row.group_symbols());
            let symbols = buffers.symbols.iter_mut().zip(sizes()).map(|(buffer, len)| {
                grow(buffer, len);
                &mut buffer[..len]
            });
            let len = usize::try_from(pooled.stored_len())
                .map_err(|_| Error::corrupt("quants beyond their chunk"))?;
            pooled.decode(payload.take(len)?, symbols.collect(), &mut coders.tans)?;
            let decoded = runs.iter_mut().zip(&buffers.symbols).zip(sizes());
            decoded.for_each(|((run, buffer), len)| *run = &buffer[..len]);
        } else {
            let described = self.classes.iter().zip(&mut buffers.symbols).zip(&mut runs);
            for (((groups, coder), buffer), run) in described {
                let len = *groups as usize * row.group_symbols();
                *run = decode_stream(coder, &mut payload, len, buffer, coders)?;
            }
        }
        if unused != 0 {
            used |= runs.iter().copied().flatten().fold(0, |used, &symbol| used | symbol) & unused;
        }
        let mut first = 0;
        for parameters in row.parameters {
            used |= put_parameters(*parameters, row.bytes, &streams[first..], out);
            first += parameters.streams().len();
        }
        if used != 0 {
            return Err(Error::corrupt("a quant or a scale of more bits than it has"));
        }
        put_quants(row, &buffers.classes, !self.has_classes(), runs, out);
        scratch.blocks = buffers;
        Ok(())
    }
}

/// Puts parameters into blocks of `bytes` bytes; returns the bits above the six of those that have six.
fn put_parameters(parameters: Parameters, bytes: usize, streams: &[&[u8]], out: &mut [u8]) -> u8 {
    let blocks = out.chunks_exact_mut(bytes);
    match parameters {
        Parameters::Bytes { at, count: 1, .. } => {
            blocks.zip(streams[0]).for_each(|(block, &byte)| block[at] = byte);
            0
        }
        Parameters::Bytes { at, step, count } => {
            for (block, own) in blocks.zip(streams[0].chunks_exact(count)) {
                own.iter().enumerate().for_each(|(i, &byte)| block[at + i * step] = byte);
            }
            0
        }
        Parameters::ScalesAndOffsets { at } => {
            let (scales, offsets) = (streams[0].as_chunks::<8>().0, streams[1].as_chunks::<8>().0);
            for ((block, scales), offsets) in blocks.zip(scales).zip(offsets) {
                let out = &mut block[at..at + 12];
                for i in 0..4 {
                    out[i] = scales[i] & 63 | scales[i + 4] >> 4 << 6;
                    out[i + 4] = offsets[i] & 63 | offsets[i + 4] >> 4 << 6;
                    out[i + 8] = scales[i + 4] & 15 | offsets[i + 4] << 4;
                }
            }
            streams[..2].iter().copied().flatten().fold(0, |used, &byte| used | byte) & !63
        }
        Parameters::Scales { at } => {
            for (block, scales) in blocks.zip(streams[0].as_chunks::<16>().0) {
                let out = &mut block[at..at + 12];
                for i in 0..4 {
                    out[i] = scales[i] & 15 | scales[i + 8] << 4;
                    out[i + 4] = scales[i + 4] & 15 | scales[i + 12] << 4;
                    let [a, b, c, d] = [0, 4, 8, 12].map(|first| scales[first + i] >> 4 & 3);
                    out[i + 8] = a | b << 2 | c << 4 | d << 6;
                }
            }
            streams[0].iter().fold(0, |used, &byte| used | byte) & !63
        }
    }
}

dispatch_wide! {
    /// Puts the quants of all blocks into `out`: the next group of a class is the first of its run.
    fn put_quants(row: &Row, classes: &[u8], one_class: bool, runs: [&[u8]; MAX_CLASSES], out: &mut [u8]) = put_quants_with
}

#[inline(always)]
fn put_quants_with(
    _isa: impl Vector,
    row: &Row,
    classes: &[u8],
    one_class: bool,
    runs: [&[u8]; MAX_CLASSES],
    out: &mut [u8],
) {
    let bytes = row.bytes;
    with_packing!(row.quants, packing => match one_class {
        true => pack_all(packing, bytes, runs[0], out),
        false => pack_classes(packing, bytes, classes, runs, out),
    }, ());
}

#[inline(always)]
fn pack_all<P: Packing>(packing: P, bytes: usize, symbols: &[u8], out: &mut [u8]) {
    for (block, symbols) in out.chunks_exact_mut(bytes).zip(symbols.chunks_exact(P::SYMBOLS)) {
        packing.pack(symbols, block);
    }
}

#[inline(always)]
fn pack_classes<P: Packing>(
    packing: P,
    bytes: usize,
    classes: &[u8],
    mut runs: [&[u8]; MAX_CLASSES],
    out: &mut [u8],
) {
    let mut symbols = [0; MAX_SYMBOLS];
    let symbols = &mut symbols[..P::SYMBOLS];
    for (block, classes) in out.chunks_exact_mut(bytes).zip(classes.chunks_exact(P::SYMBOLS / P::GROUP)) {
        for (&class, group) in classes.iter().zip(symbols.chunks_exact_mut(P::GROUP)) {
            let run = &mut runs[usize::from(class) % MAX_CLASSES];
            let (own, rest) = run.split_at(P::GROUP);
            *run = rest;
            match P::GROUP == P::SYMBOLS {
                true => packing.pack(own, block),
                false => group.copy_from_slice(own),
            }
        }
        if P::GROUP < P::SYMBOLS {
            packing.pack(symbols, block);
        }
    }
}
