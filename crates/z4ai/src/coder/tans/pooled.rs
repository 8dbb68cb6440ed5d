//! Symbols of several classes in one set of bit streams: each class has a table, and the states that one class ends with
//! are those that the next one starts with.
//!
//! A stream of its own costs a class four lengths and eight states, which is more than the shape of its table. The classes
//! follow one another in each of the four runs, so that one table at a time is in use.

use crate::coder::tans::described::DescribedTable;
use crate::coder::tans::encode::{TansScratch, encode_runs_by_two_states};
use crate::coder::tans::{Described, NormalizedCounts, RUNS, Shape, Table};
use crate::coder::{read_lengths, run_range, write_lengths};
use crate::error::{Error, Result};
use crate::kernel::histogram;
use crate::wire::{Put, Reader};

/// The form of a class that has no table. (format)
const ABSENT: u8 = 0;

/// The tables of all classes, of one size, and the lengths of the streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pooled {
    /// None for a class without symbols.
    tables: Vec<Option<DescribedTable>>,
    stored: [u32; RUNS],
}

impl Pooled {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        write_lengths(&self.stored, out);
        for table in &self.tables {
            match table {
                None => out.put_u8(ABSENT),
                Some(table) => table.write(out),
            }
        }
    }

    /// Reads what [`write`](Self::write) wrote.
    pub(crate) fn read(reader: &mut Reader<'_>, classes: usize) -> Result<Self> {
        let stored = read_lengths(reader)?;
        let table = |_| match reader.u8()? {
            ABSENT => Ok(None),
            form => DescribedTable::read(form, reader).map(Some),
        };
        let tables: Vec<Option<DescribedTable>> = (0..classes).map(table).collect::<Result<_>>()?;
        let mut logs = tables.iter().flatten().map(|table| table.states.log());
        let first = logs.next();
        if logs.any(|log| Some(log) != first) {
            return Err(Error::corrupt("classes with tables of different sizes"));
        }
        Ok(Self { tables, stored })
    }

    /// The bytes of all streams.
    pub(crate) fn stored_len(&self) -> u64 {
        self.stored.iter().map(|&len| u64::from(len)).sum()
    }

    /// Decodes the symbols of every class.
    pub(crate) fn decode(&self, stored: &[u8], classes: Vec<&mut [u8]>, table: &mut Table) -> Result<()> {
        let mut parts = Vec::with_capacity(classes.len());
        for (own, symbols) in self.tables.iter().zip(classes) {
            match own {
                Some(own) if !symbols.is_empty() => parts.push((&own.states, symbols)),
                None if symbols.is_empty() => {}
                _ => return Err(Error::corrupt("a class with symbols or states only")),
            }
        }
        table.decode_parts(parts, stored, self.stored.map(|len| len as usize))
    }
}

/// Appends the bit streams of the classes. `numbered` is scratch.
pub(crate) fn encode(
    classes: &[&[u8]],
    described: Described,
    numbered: &mut Vec<u16>,
    out: &mut Vec<u8>,
    scratch: &mut TansScratch,
) -> Pooled {
    let total: usize = classes.iter().map(|symbols| symbols.len()).sum();
    let present = classes.iter().filter(|symbols| !symbols.is_empty()).count();
    let log = Shape::log_for(total / present.max(1), described);
    let tables: Vec<Option<DescribedTable>> = classes
        .iter()
        .map(|symbols| {
            (!symbols.is_empty()).then(|| DescribedTable::new(&histogram::exact(symbols), log, described))
        })
        .collect();
    numbered.clear();
    numbered.reserve(total);
    let mut ends = [0; RUNS];
    for (run, end) in ends.iter_mut().enumerate() {
        for (class, symbols) in (0..).zip(classes) {
            let own = &symbols[run_range(run, RUNS, symbols.len())];
            numbered.extend(own.iter().map(|&symbol| u16::from_be_bytes([class, symbol])));
        }
        *end = numbered.len();
    }
    let any = tables.iter().flatten().map(|table| &table.states).next();
    let Some(any) = any else { return Pooled { tables, stored: [0; RUNS] } };
    let states: Vec<NormalizedCounts> =
        tables.iter().map(|table| table.as_ref().map_or(any, |table| &table.states).clone()).collect();
    let runs = std::array::from_fn(|run| &numbered[if run == 0 { 0 } else { ends[run - 1] }..ends[run]]);
    let stored = encode_runs_by_two_states(runs, &states, out, scratch);
    Pooled { tables, stored }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coder::tans::MAX_DESCRIBED_LOG;
    use proptest::prelude::*;

    #[test]
    fn classes_of_many_floats_have_tables_of_the_largest_size() {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 24
        };
        // Magnitudes about 80 and 90, of both signs; the others have states, too.
        let class = |center: u32| -> Vec<u8> {
            let noise = (0..20_000).map(|_| (next() + next() + next()) / 16 + (next() & 1) * 128);
            noise.map(|noise| (noise + center - 24) as u8).collect()
        };
        let classes = [80, 90].map(class);
        let mut stored = Vec::new();
        let slices: Vec<&[u8]> = classes.iter().map(Vec::as_slice).collect();
        let described = Described::PackedFloats(3);
        let pooled = encode(&slices, described, &mut Vec::new(), &mut stored, &mut TansScratch::default());
        assert!(pooled.tables.iter().flatten().all(|table| table.states.log() == MAX_DESCRIBED_LOG));
        let mut written = Vec::new();
        pooled.write(&mut written);
        assert_eq!(Pooled::read(&mut Reader::new(&written), 2).unwrap(), pooled);
        let mut decoded = classes.clone().map(|symbols| vec![1; symbols.len()]);
        let parts = decoded.iter_mut().map(Vec::as_mut_slice).collect();
        pooled.decode(&stored, parts, &mut Table::default()).unwrap();
        assert!(decoded == classes);
    }

    proptest! {
        #[test]
        fn classes_survive(
            numbers in prop::collection::vec(0usize..200, 1..16),
            noise in prop::collection::vec(any::<u16>(), 3200),
            damage in any::<u8>(),
        ) {
            let class = |(class, &number): (usize, &usize)| -> Vec<u8> {
                let symbols = noise.iter().cycle().skip(class * 100).take(number * 3);
                symbols.map(|v| (v | 1 << 12).trailing_zeros() as u8 + (v >> 13) as u8 * class as u8).collect()
            };
            let classes: Vec<Vec<u8>> = numbers.iter().enumerate().map(class).collect();
            let mut stored = Vec::new();
            let slices: Vec<&[u8]> = classes.iter().map(Vec::as_slice).collect();
            let pooled = encode(&slices, Described::Packed, &mut Vec::new(), &mut stored, &mut TansScratch::default());
            let mut written = Vec::new();
            pooled.write(&mut written);
            let mut reader = Reader::new(&written);
            prop_assert_eq!(&Pooled::read(&mut reader, classes.len()).unwrap(), &pooled);
            prop_assert_eq!((reader.remaining(), pooled.stored_len()), (0, stored.len() as u64));
            let mut decoded: Vec<Vec<u8>> = classes.iter().map(|symbols| vec![1; symbols.len()]).collect();
            let mut table = Table::default();
            let mut decode = |stored: &[u8], decoded: &mut Vec<Vec<u8>>| {
                pooled.decode(stored, decoded.iter_mut().map(Vec::as_mut_slice).collect(), &mut table)
            };
            decode(&stored, &mut decoded).unwrap();
            prop_assert!(decoded == classes);
            // Damaged streams are refused or decode to something, and nothing panics.
            if let Some(byte) = stored.len().checked_sub(1).map(|last| usize::from(damage) % (last + 1)) {
                stored[byte] ^= damage | 1;
                let _ = decode(&stored, &mut decoded);
            }
        }
    }
}
