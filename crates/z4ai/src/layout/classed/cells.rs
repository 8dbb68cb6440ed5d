//! Classes of rows and columns together: which there are, what they take, and which rows and columns they have.

use crate::estimate::cost::{self, BIT};
use crate::kernel::scale_classes::{CellMap, ClassMap, MAX_CLASSES};
use crate::layout::split::classes::{self, Price};

/// What classes must save, and how often rows move to a better one, of classes that share their streams. (case: `entropy.py`, fp8)
const SHARED_PRICE: Price = Price { must_save: 0, moves: 3, per_class: PER_CELL };
/// Bytes that classes are compared by, about. (unmeasured)
const COUNTED: usize = 1 << 16;
/// What a class that shares its streams takes, about, in bytes: its shape, and what that misses of the counts. (case: `entropy.py`, fp8;
/// with 30, e4m3 is up to 0.05 % larger and decodes at 0.9 of the speed)
pub(super) const PER_CELL: u64 = 80;
/// Classes of values are tried where they might save a bit in this many bytes. (case: `entropy.py`, fp8; with half, minilm is up to
/// 0.3 % larger; with twice, weights that they save nothing of compress at 0.75 of the speed)
const MIN_SIGNED_GAIN: u64 = 32;

/// The cheapest classes of rows of one of these lengths, of their columns, or of both; and the bytes that they take, about. `ordered`,
/// the magnitudes, is then scratch.
pub(super) fn find_cells(content: &[u8], ordered: &mut [u8], periods: &[usize]) -> Option<(u64, CellMap)> {
    let map = classes::find(ordered, periods, SHARED_PRICE)?;
    let other = classes::find_other(ordered, &map, SHARED_PRICE);
    let by_magnitude = choose_cells(content, &map, other.as_ref());
    Some(choose_signed(content, ordered, &map, other.as_ref(), by_magnitude))
}

/// Magnitudes, which classes are of.
pub(super) fn magnitudes_of(content: &[u8], magnitudes: &mut [u8]) {
    magnitudes.iter_mut().zip(content).for_each(|(magnitude, byte)| *magnitude = byte & 0x7f);
}

/// The places of values, from the smallest to the largest.
pub(super) fn values_of(content: &[u8], places: &mut [u8]) {
    let place = |byte: u8| if byte < 128 { 128 | byte } else { !byte };
    places.iter_mut().zip(content).for_each(|(place_of, &byte)| *place_of = place(byte));
}

/// The classes of `map`, or those of both, whichever take less; and the bytes that they take, about.
fn choose_cells(content: &[u8], map: &ClassMap, other: Option<&ClassMap>) -> (u64, CellMap) {
    let one = cells_of(content.len(), map, None);
    let one = (cost_of(content, &one), one);
    if other.is_none() {
        return one;
    }
    let both = cells_of(content.len(), map, other);
    let both = (cost_of(content, &both), both);
    if both.0 < one.0 { both } else { one }
}

/// Classes of `map` and, if there are any, of `other`, which is of columns if `map` is of rows.
pub(super) fn cells_of(len: usize, map: &ClassMap, other: Option<&ClassMap>) -> CellMap {
    let (rows, period) = (len.div_ceil(map.period), map.period);
    let other = |units: usize| other.map_or_else(|| vec![0; units], |other| other.classes.clone());
    match map.columns {
        true => CellMap { period, rows: other(rows), columns: map.classes.clone() },
        false => CellMap { period, rows: map.classes.clone(), columns: other(period) },
    }
}

/// The cheapest of `found` and of classes of values, instead of magnitudes, of rows or columns: the embeddings of words
/// have something in common, so that values of a column are of one sign more often than not. `ordered` is scratch.
fn choose_signed(
    content: &[u8],
    ordered: &mut [u8],
    map: &ClassMap,
    other: Option<&ClassMap>,
    found: (u64, CellMap),
) -> (u64, CellMap) {
    let mut best = found;
    values_of(content, ordered);
    let least = (content.len() as u64 * BIT / MIN_SIGNED_GAIN) as i64;
    for columns in [false, true] {
        let Some((_, signed)) = classes::find_along(ordered, columns, map.period, SHARED_PRICE, least) else {
            continue;
        };
        let across = if map.columns == columns { other } else { Some(map) };
        let mut cells = cells_of(content.len(), &signed, across);
        refine_cells(content, &mut cells);
        let cost = cost_of(content, &cells);
        if cost < best.0 {
            best = (cost, cells);
        }
    }
    best
}

/// Moves rows and columns to the classes that suit them best, given those of the others.
fn refine_cells(content: &[u8], map: &mut CellMap) {
    /// How often. (case: `entropy.py`, fp8; without, minilm is up to 0.6 % larger, with one round fewer 0.03 %)
    const ROUNDS: usize = 3;
    for _ in 0..ROUNDS {
        let costs = costs_of(content, map, |row, column| (column, row));
        for (row, class) in content.chunks(map.period).zip(&mut map.rows) {
            let mut wide = [0; MAX_CLASSES];
            for (bytes, columns) in row.chunks(TERMS).zip(map.columns.chunks(TERMS)) {
                let terms = bytes.iter().zip(columns);
                let sum = terms.map(|(&byte, &column)| costs[usize::from(column)][usize::from(byte)]).sum();
                widen(&mut wide, sum);
            }
            *class = cheapest(&wide);
        }
        let costs = costs_of(content, map, |row, column| (row, column));
        let mut wide = vec![[0; MAX_CLASSES]; map.period];
        let mut sums = vec![0; map.period];
        for (rows, classes) in content.chunks(TERMS * map.period).zip(map.rows.chunks(TERMS)) {
            sums.fill(0);
            for (row, &class) in rows.chunks(map.period).zip(classes) {
                let costs = &costs[usize::from(class)];
                sums.iter_mut().zip(row).for_each(|(sum, &byte)| *sum += costs[usize::from(byte)]);
            }
            wide.iter_mut().zip(&sums).for_each(|(wide, &sum)| widen(wide, sum));
        }
        map.columns.iter_mut().zip(&wide).for_each(|(class, wide)| *class = cheapest(wide));
    }
}

/// Costs that a sum of sixteen bits holds. (structural: each is below 256)
const TERMS: usize = 256;

/// Adds four sums of sixteen bits.
fn widen(wide: &mut [u64; MAX_CLASSES], sums: u64) {
    wide.iter_mut().enumerate().for_each(|(class, wide)| *wide += sums >> (16 * class) & 0xffff);
}

fn cheapest(costs: &[u64; MAX_CLASSES]) -> u8 {
    (0..MAX_CLASSES).min_by_key(|&class| costs[class]).unwrap_or(0) as u8
}

/// What a byte costs in sixteenths of a bit by the class that `moved` makes of one of rows and one of columns: for each first
/// number and byte, sixteen bits for each second number. Classes that there are not cost the most.
fn costs_of(
    content: &[u8],
    map: &CellMap,
    moved: impl Fn(usize, usize) -> (usize, usize),
) -> Vec<[u64; 256]> {
    let [rows, columns] = map.counts();
    let counts = count_cells(content, map, 1);
    let mut costs = vec![[0x00ff_00ff_00ff_00ff; 256]; MAX_CLASSES];
    for row in 0..rows {
        for column in 0..columns {
            let (known, class) = moved(row, column);
            let own = cost::per_symbol(&counts[row * columns + column], 16, 255);
            for (costs, own) in costs[known].iter_mut().zip(own) {
                *costs = *costs & !(0xffff << (16 * class)) | own << (16 * class);
            }
        }
    }
    costs
}

/// The histogram of each class, of one row in `every`.
fn count_cells(content: &[u8], map: &CellMap, every: usize) -> Vec<[u32; 256]> {
    let [rows, columns] = map.counts();
    let mut counts = vec![[0u32; 256]; rows * columns];
    for (row, &class) in content.chunks(map.period).zip(&map.rows).step_by(every) {
        let own = &mut counts[usize::from(class) * columns..][..columns];
        for (&byte, &column) in row.iter().zip(&map.columns) {
            own[usize::from(column)][usize::from(byte)] += 1;
        }
    }
    counts
}

/// The bytes that `content` takes in these classes, about: by a part of all rows.
fn cost_of(content: &[u8], map: &CellMap) -> u64 {
    let [rows, columns] = map.counts();
    // Odd, lest it be in step with groups of rows.
    let every = (content.len() / COUNTED).min(map.rows.len() / 16) | 1;
    let counts = count_cells(content, map, every);
    let counted: u64 = counts.iter().flatten().map(|&count| u64::from(count)).sum();
    let bits: u64 = counts.iter().map(|counts| cost::entropy(counts)).sum();
    // The entropy of a sample is too low by about half a bit per symbol and class.
    let used = counts.iter().flatten().filter(|&&count| count > 0).count() as u64;
    let missed = if every > 1 { used * BIT * 72 / 100 } else { 0 };
    let numbers = (map.rows.len() * usize::from(rows > 1) + map.period * usize::from(columns > 1)) / 4;
    (bits + missed) / (8 * BIT) * content.len() as u64 / counted.max(1)
        + counts.len() as u64 * PER_CELL
        + numbers as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn refined_cells_are_not_worse(noise in prop::collection::vec(any::<u8>(), 4000), period in 8usize..60) {
            let mean = |i: usize| if (i % period).is_multiple_of(3) { 3 } else { 0 };
            let content: Vec<u8> = noise.iter().enumerate().map(|(i, byte)| byte % 8 + mean(i)).collect();
            let numbers = |units: usize| (0..units).map(|unit| (unit % 3) as u8).collect();
            let mut map = CellMap { period, rows: numbers(content.len().div_ceil(period)), columns: numbers(period) };
            let before = cost_of(&content, &map);
            refine_cells(&content, &mut map);
            prop_assert!(map.rows.iter().chain(&map.columns).all(|&class| usize::from(class) < MAX_CLASSES));
            prop_assert!(cost_of(&content, &map) <= before + before / 50);
        }
    }
}
