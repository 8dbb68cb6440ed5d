//! Coders: how a stream of bytes is stored. A chunk layout consists of several such streams.

pub(crate) mod choose;
pub(crate) mod huffman;
pub(crate) mod tans;

use crate::error::{Error, Result};
use crate::kernel::{bit_packing, histogram};
use crate::simd::prefetch::Prefetcher;
use crate::wire::{Put, Reader};
use huffman::decode::DecodePrefetch;
use huffman::encode::HuffmanScratch;
use huffman::lengths::Lengths;
use huffman::table::Table;
use huffman::wire::Stored;
use tans::encode::TansScratch;
use tans::{NormalizedCounts, OrderOne, Shape};
use twox_hash::XxHash3_64;

/// How one stream is stored, as the chunk's description says. The number of bytes it decodes to
/// is known from elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Coder {
    /// One byte, over and over; nothing is stored.
    Constant(u8),
    /// As it is.
    Raw,
    /// Indices of `width` (1, 2 or 4) bits into a palette.
    Packed { width: u32, palette: [u8; 16] },
    /// As `Packed`, with the packed bytes coded in turn.
    PackedThen { width: u32, palette: [u8; 16], inner: Box<Coder> },
    /// Huffman bit streams of these lengths.
    Huffman { lengths: Box<Lengths>, stored: Stored },
    /// Four bit streams of these lengths, in fractions of bits per symbol. The table is described by
    /// its shape, if it has one.
    Tans { states: Box<NormalizedCounts>, shape: Option<Box<Shape>>, stored: [u32; tans::RUNS] },
    /// As `Tans`, by tables that the symbol before chooses.
    OrderOne { tables: Box<OrderOne>, stored: [u32; tans::RUNS] },
    /// One zstd frame of this length and hash (zstd itself does not notice every flipped bit).
    Zstd { stored: u32, hash: u64 },
}

const CONSTANT: u8 = 0;
const RAW: u8 = 1;
const PACKED: u8 = 2;
const HUFFMAN: u8 = 3;
const ZSTD: u8 = 4;
const PACKED_THEN: u8 = 5;
const TANS: u8 = 6;
const SHAPED_TANS: u8 = 7;
const ORDER_ONE: u8 = 8;

/// Scratch that decoding streams reuses.
#[derive(Default)]
pub(crate) struct DecodeScratch {
    table: Table,
    pub(crate) tans: tans::Table,
    packed: Vec<u8>,
    /// Memory to prefetch while decoding.
    pub(crate) ahead: DecodePrefetch,
}

/// Scratch that encoding streams reuses, and memory to prefetch while encoding.
#[derive(Default)]
pub(crate) struct EncodeScratch {
    pub(crate) huffman: HuffmanScratch,
    pub(crate) tans: TansScratch,
    /// Symbols with their contexts.
    pub(crate) numbered: Vec<u16>,
    /// zstd at its first level, for samples: making its tables takes longer than a sample does.
    pub(crate) zstd_fast: Option<zstd::bulk::Compressor<'static>>,
    pub(crate) pairs: histogram::Pairs,
    pub(crate) prefetch: Prefetcher,
}

impl Coder {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Coder::Constant(_) => "constant",
            Coder::Raw => "raw",
            Coder::Packed { .. } => "palette",
            Coder::PackedThen { inner, .. } => match **inner {
                Coder::Huffman { .. } => "palette, huffman",
                _ => "palette, coded",
            },
            Coder::Huffman { .. } => "huffman",
            Coder::Tans { shape: None, .. } => "tans",
            Coder::Tans { .. } => "shaped tans",
            Coder::OrderOne { .. } => "order-1 tans",
            Coder::Zstd { .. } => "zstd",
        }
    }

    /// Bytes of the description.
    pub(crate) fn described_len(&self) -> usize {
        let mut description = Vec::new();
        self.write(&mut description);
        description.len()
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Coder::Constant(value) => out.extend([CONSTANT, *value]),
            Coder::Raw => out.put_u8(RAW),
            Coder::Packed { width, palette } => {
                out.extend([PACKED, *width as u8]);
                out.extend_from_slice(&palette[..1 << width]);
            }
            Coder::PackedThen { width, palette, inner } => {
                out.extend([PACKED_THEN, *width as u8]);
                out.extend_from_slice(&palette[..1 << width]);
                inner.write(out);
            }
            Coder::Huffman { lengths, stored } => {
                out.put_u8(HUFFMAN);
                stored.write(out);
                lengths.write(out);
            }
            Coder::Tans { states, shape, stored } => match shape {
                Some(shape) => {
                    out.put_u8(SHAPED_TANS);
                    write_lengths(stored, out);
                    shape.write(out);
                }
                None => {
                    out.put_u8(TANS);
                    stored.iter().for_each(|&len| out.put_u32(len));
                    states.write(out);
                }
            },
            Coder::OrderOne { tables, stored } => {
                out.put_u8(ORDER_ONE);
                write_lengths(stored, out);
                tables.write(out);
            }
            Coder::Zstd { stored, hash } => {
                out.put_u8(ZSTD);
                out.put_u32(*stored);
                out.put_u64(*hash);
            }
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(match reader.u8()? {
            CONSTANT => Coder::Constant(reader.u8()?),
            RAW => Coder::Raw,
            PACKED => {
                let (width, palette) = read_palette(reader)?;
                Coder::Packed { width, palette }
            }
            PACKED_THEN => {
                let (width, palette) = read_palette(reader)?;
                let mut ahead = reader.clone();
                let code = ahead.u8()?;
                if matches!(code, PACKED | PACKED_THEN) {
                    return Err(Error::corrupt(format_args!("stream coder {code} inside another")));
                }
                Coder::PackedThen { width, palette, inner: Box::new(Coder::read(reader)?) }
            }
            HUFFMAN => {
                let stored = Stored::read(reader)?;
                let lengths = Box::new(Lengths::read(reader)?);
                Coder::Huffman { lengths, stored }
            }
            TANS => {
                let mut stored = [0; tans::RUNS];
                for len in &mut stored {
                    *len = reader.u32()?;
                }
                Coder::Tans { states: Box::new(NormalizedCounts::read(reader)?), shape: None, stored }
            }
            SHAPED_TANS => {
                let stored = read_lengths(reader)?;
                let (shape, states) = Shape::read(reader)?;
                Coder::Tans { states: Box::new(states), shape: Some(Box::new(shape)), stored }
            }
            ORDER_ONE => {
                let stored = read_lengths(reader)?;
                Coder::OrderOne { tables: Box::new(OrderOne::read(reader)?), stored }
            }
            ZSTD => Coder::Zstd { stored: reader.u32()?, hash: reader.u64()? },
            code => {
                return Err(Error::unsupported(format_args!("stream coder {code} is not known")));
            }
        })
    }

    /// The bytes that a stream of `len` bytes takes in the payload.
    pub(crate) fn stored_len(&self, len: usize) -> u64 {
        match self {
            Coder::Constant(_) => 0,
            Coder::Raw => len as u64,
            Coder::Packed { width, .. } => packed_len(*width, len) as u64,
            Coder::PackedThen { width, inner, .. } => inner.stored_len(packed_len(*width, len)),
            Coder::Huffman { stored, .. } => stored.total(),
            Coder::Tans { stored, .. } | Coder::OrderOne { stored, .. } => {
                stored.iter().map(|&len| u64::from(len)).sum()
            }
            Coder::Zstd { stored, .. } => u64::from(*stored),
        }
    }

    /// Decodes `stored`, of the length [`stored_len`](Self::stored_len) says, to fill `out`.
    pub(crate) fn decode(&self, stored: &[u8], out: &mut [u8], scratch: &mut DecodeScratch) -> Result<()> {
        match self {
            Coder::Constant(value) => out.fill(*value),
            Coder::Raw => out.copy_from_slice(stored),
            Coder::Packed { width, palette } => {
                check_packed_padding(*width, stored, out.len())?;
                bit_packing::expand(*width, palette, stored, out);
            }
            Coder::PackedThen { width, palette, inner } => {
                let mut packed = std::mem::take(&mut scratch.packed);
                packed.resize(packed_len(*width, out.len()), 0);
                inner.decode(stored, &mut packed, scratch)?;
                check_packed_padding(*width, &packed, out.len())?;
                bit_packing::expand(*width, palette, &packed, out);
                scratch.packed = packed;
            }
            Coder::Huffman { lengths, stored: lens } => {
                scratch.table.build(lengths, out.len());
                scratch.table.decode(stored, *lens, out, &mut scratch.ahead)?;
            }
            Coder::Tans { states, stored: lens, .. } => {
                scratch.tans.build(states);
                scratch.tans.decode(states.log(), stored, lens.map(|len| len as usize), out)?;
            }
            Coder::OrderOne { tables, stored: lens } => {
                scratch.tans.build_order_one(tables);
                scratch.tans.decode_order_one(tables, stored, lens.map(|len| len as usize), out)?;
            }
            Coder::Zstd { hash, .. } => {
                if XxHash3_64::oneshot(stored) != *hash {
                    return Err(Error::corrupt("a zstd stream does not match its checksum"));
                }
                let written = zstd::bulk::decompress_to_buffer(stored, out)
                    .map_err(|e| Error::corrupt(format_args!("a zstd stream: {e}")))?;
                if written != out.len() {
                    return Err(Error::corrupt("a zstd stream is too short"));
                }
            }
        }
        Ok(())
    }
}

/// Writes the lengths of streams, each of as many bytes as the longest takes.
pub(crate) fn write_lengths(stored: &[u32; tans::RUNS], out: &mut Vec<u8>) {
    let longest = stored.iter().fold(0, |most, &len| most.max(len));
    let bytes = (u32::BITS - longest.leading_zeros()).div_ceil(8).max(1);
    out.put_u8(bytes as u8);
    stored.iter().for_each(|len| out.extend(&len.to_le_bytes()[..bytes as usize]));
}

/// Reads what [`write_lengths`] wrote.
pub(crate) fn read_lengths(reader: &mut Reader<'_>) -> Result<[u32; tans::RUNS]> {
    let bytes = usize::from(reader.u8()?);
    if !(1..=4).contains(&bytes) {
        return Err(Error::corrupt(format_args!("lengths of {bytes} bytes")));
    }
    let mut stored = [0; tans::RUNS];
    for len in &mut stored {
        let mut word = [0; 4];
        word[..bytes].copy_from_slice(reader.take(bytes)?);
        *len = u32::from_le_bytes(word);
    }
    Ok(stored)
}

/// The symbols of run `index`, of `total` symbols in `runs` runs of equal length but for the last.
pub(crate) fn run_range(index: usize, runs: usize, total: usize) -> std::ops::Range<usize> {
    let run = total.div_ceil(runs);
    (index * run).min(total)..((index + 1) * run).min(total)
}

/// The bytes that `count` indices of `width` bits take.
pub(crate) fn packed_len(width: u32, count: usize) -> usize {
    (count as u64 * u64::from(width)).div_ceil(8) as usize
}

/// Reads the width of indices and the palette they point into.
fn read_palette(reader: &mut Reader<'_>) -> Result<(u32, [u8; 16])> {
    let width = u32::from(reader.u8()?);
    if !matches!(width, 1 | 2 | 4) {
        return Err(Error::corrupt(format_args!("palette indices of {width} bits")));
    }
    let mut palette = [0; 16];
    palette[..1 << width].copy_from_slice(reader.take(1 << width)?);
    Ok((width, palette))
}

/// Refuses `count` stored indices of `width` bits that are followed by anything but zero bits.
pub(crate) fn check_packed_padding(width: u32, stored: &[u8], count: usize) -> Result<()> {
    let used = count * width as usize % 8;
    if used > 0 && stored.last().is_some_and(|last| last >> used != 0) {
        return Err(Error::corrupt("padding after packed bits is not zero"));
    }
    Ok(())
}
