//! The classed layout: elements of one byte, whose rows or columns have few scales.
//!
//! Floats of eight bits are all symbols. With one scale for the whole tensor, or one per block, rows and
//! columns still differ in scale, and those of similar scale share a code; or each class of rows has a code for each class
//! of columns, in streams that all of them share.
//!
//! Payload: the bytes of each class, in their order; or all bytes, column by column.

mod cells;
pub(crate) mod encode;

use crate::coder::Coder;
use crate::coder::tans::pooled::Pooled;
use crate::element::Kind;
use crate::error::{Error, Result};
use crate::kernel::scale_classes::{self, CellMap, ClassMap, MAX_CLASSES, SLACK};
use crate::layout::ChunkScratch;
use crate::layout::split::{read_class_numbers, read_classes_of, write_axis, write_class_numbers};
use crate::layout::streams::Streams;
use crate::memory::grow;
use crate::wire::{Put, Reader};

/// The form of classes of rows and columns that share their streams. (format)
const CELLS: u8 = 4;
/// The form of bytes in the order of columns. (format)
const TURNED: u8 = 5;

/// The description of a chunk of bytes in classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Classed {
    /// Classes of rows or of columns, with a stream each.
    Apart(ClassMap, Vec<Coder>),
    /// Classes of rows and columns, which share their streams.
    Cells(CellMap, Pooled),
    /// One stream of all bytes in the order of columns; and the bytes of a row.
    Turned(usize, Coder),
}

impl Classed {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Classed::Apart(map, codes) => {
                write_axis(map, out);
                codes.iter().for_each(|coder| coder.write(out));
            }
            Classed::Cells(map, pooled) => {
                out.put_u8(CELLS);
                out.put_u32(map.period as u32);
                write_class_numbers(&map.rows, out);
                write_class_numbers(&map.columns, out);
                pooled.write(out);
            }
            Classed::Turned(period, coder) => {
                out.put_u8(TURNED);
                out.put_u32(*period as u32);
                coder.write(out);
            }
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>, kind: Kind, len: usize) -> Result<Self> {
        if kind.size() != 1 {
            return Err(Error::corrupt(format_args!("classes of {} elements", kind.name())));
        }
        let form = reader.u8()?;
        if form == CELLS || form == TURNED {
            let period = reader.u32()? as usize;
            if period == 0 || period > len {
                return Err(Error::corrupt("scale classes that do not fit their chunk"));
            }
            if form == TURNED {
                return Ok(Classed::Turned(period, Coder::read(reader)?));
            }
            let mut numbers = |units: usize| {
                let width = reader.u8()?;
                read_class_numbers(reader, width, units)
            };
            let (rows, columns) = (numbers(len.div_ceil(period))?, numbers(period)?);
            let map = CellMap { period, rows, columns };
            let classes = map.counts().iter().product();
            if classes == 1 {
                return Err(Error::corrupt("one class that shares its streams"));
            }
            let pooled = Pooled::read(reader, classes)?;
            return Ok(Classed::Cells(map, pooled));
        }
        let Some(map) = read_classes_of(form, reader, len)? else {
            return Err(Error::corrupt("classes of neither rows nor columns"));
        };
        let codes = (0..map.count()).map(|_| Coder::read(reader)).collect::<Result<_>>()?;
        Ok(Classed::Apart(map, codes))
    }

    pub(crate) fn payload_len(&self, len: usize) -> u64 {
        match self {
            Classed::Apart(map, codes) => {
                codes.iter().zip(map.sizes(len)).map(|(coder, size)| coder.stored_len(size)).sum()
            }
            Classed::Cells(_, pooled) => pooled.stored_len(),
            Classed::Turned(_, coder) => coder.stored_len(len),
        }
    }

    pub(crate) fn streams(&self, len: usize, streams: &mut Streams) {
        match self {
            Classed::Apart(map, codes) => {
                let sizes = map.sizes(len);
                codes.iter().zip(sizes).for_each(|(coder, size)| streams.add("symbols", coder, size));
            }
            Classed::Cells(_, pooled) => {
                streams.add_stored("symbols", "pooled tans", len, pooled.stored_len());
            }
            Classed::Turned(_, coder) => streams.add("columns", coder, len),
        }
    }

    pub(crate) fn decode(&self, payload: &[u8], out: &mut [u8], scratch: &mut ChunkScratch) -> Result<()> {
        let Buffers { gathered, runs } = &mut scratch.classed;
        grow(gathered, out.len() + SLACK);
        let mut payload = Reader::new(payload);
        match self {
            Classed::Apart(map, codes) => {
                for ((coder, run), size) in codes.iter().zip(&mut *runs).zip(map.sizes(out.len())) {
                    grow(run, size + SLACK);
                    let stored = usize::try_from(coder.stored_len(size))
                        .map_err(|_| Error::corrupt("a class beyond its chunk"))?;
                    coder.decode(payload.take(stored)?, &mut run[..size], &mut scratch.coder)?;
                }
                let runs: [&[u8]; MAX_CLASSES] = std::array::from_fn(|i| runs[i].as_slice());
                scale_classes::gather(map, &runs[..codes.len()], out.len(), gathered);
            }
            Classed::Cells(map, pooled) => {
                let sizes = map.sizes(out.len());
                let symbols = runs.iter_mut().zip(&sizes).map(|(run, &size)| {
                    grow(run, size + SLACK);
                    &mut run[..size]
                });
                let stored = usize::try_from(pooled.stored_len())
                    .map_err(|_| Error::corrupt("a class beyond its chunk"))?;
                pooled.decode(payload.take(stored)?, symbols.collect(), &mut scratch.coder.tans)?;
                let runs: Vec<&[u8]> = runs[..sizes.len()].iter().map(Vec::as_slice).collect();
                scale_classes::gather_cells(map, &runs, out.len(), gathered);
            }
            Classed::Turned(period, coder) => {
                let stored = usize::try_from(coder.stored_len(out.len()))
                    .map_err(|_| Error::corrupt("columns beyond their chunk"))?;
                let turned = &mut gathered[..out.len()];
                coder.decode(payload.take(stored)?, turned, &mut scratch.coder)?;
                turn_back(turned, *period, out);
                return Ok(());
            }
        }
        out.copy_from_slice(&gathered[..out.len()]);
        Ok(())
    }
}

/// Columns of a matrix that are turned together. (structural: bytes of a cache line)
const TURNED_TOGETHER: usize = 64;

/// The column and row of each byte of a matrix, in an order that touches few cache lines at a time: calls `each` with
/// its place in the order of columns and that in the order of rows.
#[inline(always)]
fn for_each_turned(len: usize, period: usize, mut each: impl FnMut(usize, usize)) {
    let (rows, rest) = (len / period, len % period);
    // Columns before `rest` have a byte more.
    let start = |column: usize| column * rows + column.min(rest);
    for columns in (0..period).step_by(TURNED_TOGETHER) {
        let columns = columns..period.min(columns + TURNED_TOGETHER);
        for first in (0..len.div_ceil(period)).step_by(TURNED_TOGETHER) {
            for column in columns.clone() {
                let end = (first + TURNED_TOGETHER).min(rows + usize::from(column < rest));
                for row in first..end {
                    each(start(column) + row, row * period + column);
                }
            }
        }
    }
}

/// Puts bytes in the order of columns into that of rows of `period` bytes.
fn turn_back(turned: &[u8], period: usize, out: &mut [u8]) {
    for_each_turned(out.len(), period, |turned_place, place| out[place] = turned[turned_place]);
}

/// Buffers that decoding reuses: the bytes, and those of each class.
#[derive(Default)]
pub(crate) struct Buffers {
    gathered: Vec<u8>,
    runs: [Vec<u8>; MAX_CLASSES * MAX_CLASSES],
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn columns_are_turned_and_back(len in 1usize..3000, period in 1usize..300) {
            let period = period.min(len);
            let content: Vec<u8> = (0..len).map(|i| (i * 7 + i / 256) as u8).collect();
            let expected: Vec<u8> =
                (0..period).flat_map(|column| content[column..].iter().step_by(period).copied()).collect();
            let mut turned = vec![0; len];
            for_each_turned(len, period, |place, of_rows| turned[place] = content[of_rows]);
            prop_assert!(turned == expected);
            let mut back = vec![0; len];
            turn_back(&turned, period, &mut back);
            prop_assert!(back == content);
        }
    }
}
