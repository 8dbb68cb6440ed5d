//! Gathers and scatters codes between element order and one run per scale class.
//!
//! Rows are plain copies. Columns alternate within a few elements, so they are moved a vector at a
//! time: each class expands the next codes of its run by the mask of its columns, and the classes
//! are ORed. Masks depend on the column only and are made once per chunk.

use crate::simd::dispatch_wide;
use crate::simd::vector::{VECTOR, Vector};

/// Classes per chunk, at most.
pub(crate) const MAX_CLASSES: usize = 4;
/// Bytes that buffers of codes need behind their contents, because groups are moved whole.
pub(crate) const SLACK: usize = VECTOR;

/// Short periods are repeated to at least this many columns, so that most groups are full.
const MIN_COLUMNS: usize = 4 * VECTOR;
/// Codes of a row of the usual length.
const SHORT: usize = 64;

/// Which class each element of a chunk belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClassMap {
    /// Whether `classes` lists columns (index modulo `period`) or rows (index divided by it).
    pub(crate) columns: bool,
    /// Elements per row.
    pub(crate) period: usize,
    /// The class of each row or column.
    pub(crate) classes: Vec<u8>,
}

impl ClassMap {
    /// Rows or columns that a chunk of `count` elements has.
    pub(crate) fn units(columns: bool, period: usize, count: usize) -> usize {
        if columns { period } else { count.div_ceil(period) }
    }

    /// Elements in each class of a chunk of `count` elements.
    pub(crate) fn sizes(&self, count: usize) -> [usize; MAX_CLASSES] {
        let mut sizes = [0; MAX_CLASSES];
        let (rows, rest) = (count / self.period, count % self.period);
        for (unit, &class) in self.classes.iter().enumerate() {
            sizes[usize::from(class)] += match self.columns {
                true => rows + usize::from(unit < rest),
                false if unit < rows => self.period,
                false => rest,
            };
        }
        sizes
    }

    /// The number of classes: one more than the highest in use.
    pub(crate) fn count(&self) -> usize {
        let highest = self.classes.iter().fold(0, |highest, &class| class.max(highest));
        if self.classes.is_empty() { 0 } else { usize::from(highest) + 1 }
    }
}

/// Classes of rows and of columns: each row class has a class for each column class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CellMap {
    /// Elements per row.
    pub(crate) period: usize,
    /// The class of each row, and of each column.
    pub(crate) rows: Vec<u8>,
    pub(crate) columns: Vec<u8>,
}

/// One more than the highest of these classes.
fn highest(classes: &[u8]) -> usize {
    usize::from(classes.iter().fold(0, |highest, &class| class.max(highest))) + 1
}

impl CellMap {
    /// The numbers of classes of rows and of columns.
    pub(crate) fn counts(&self) -> [usize; 2] {
        [highest(&self.rows), highest(&self.columns)]
    }

    /// Elements in each class of a chunk of `count` elements: those of the first class of rows, then the others.
    pub(crate) fn sizes(&self, count: usize) -> Vec<usize> {
        let [rows, columns] = self.counts();
        let mut sizes = vec![0; rows * columns];
        let (whole, rest) = (count / self.period, count % self.period);
        let mut per_row = [0; MAX_CLASSES];
        self.columns.iter().for_each(|&class| per_row[usize::from(class)] += 1);
        for &row in &self.rows[..whole] {
            let own = &mut sizes[usize::from(row) * columns..][..columns];
            own.iter_mut().zip(per_row).for_each(|(size, more)| *size += more);
        }
        if let Some(&row) = self.rows.get(whole) {
            let cell = |&column: &u8| usize::from(row) * columns + usize::from(column);
            self.columns[..rest].iter().for_each(|column| sizes[cell(column)] += 1);
        }
        sizes
    }
}

/// The groups of one row, which may be several periods: the number of columns, and the column mask
/// of each class.
fn masks(map: &ClassMap) -> Vec<(usize, [u64; MAX_CLASSES])> {
    let columns = map.classes.repeat(MIN_COLUMNS.div_ceil(map.period));
    columns.chunks(VECTOR).map(masks_of_group).collect()
}

fn masks_of_group(classes: &[u8]) -> (usize, [u64; MAX_CLASSES]) {
    let mut masks = [0; MAX_CLASSES];
    for (column, &class) in classes.iter().enumerate() {
        masks[usize::from(class)] |= 1 << column;
    }
    (classes.len(), masks)
}

dispatch_wide! {
    /// Puts codes from runs per class back into element order. Every buffer needs [`SLACK`] bytes
    /// behind its contents.
    pub(crate) fn gather(map: &ClassMap, runs: &[&[u8]], count: usize, codes: &mut [u8]) = gather_with
}

dispatch_wide! {
    /// Splits codes in element order into one run per class. Every buffer needs [`SLACK`] bytes
    /// behind its contents.
    pub(crate) fn scatter(map: &ClassMap, codes: &[u8], count: usize, runs: &mut [Vec<u8>]) = scatter_with
}

dispatch_wide! {
    /// As [`gather`], from runs per class of rows and columns.
    pub(crate) fn gather_cells(map: &CellMap, runs: &[&[u8]], count: usize, codes: &mut [u8]) = gather_cells_with
}

dispatch_wide! {
    /// As [`scatter`], to runs per class of rows and columns.
    pub(crate) fn scatter_cells(map: &CellMap, codes: &[u8], count: usize, runs: &mut [Vec<u8>]) = scatter_cells_with
}

/// The groups of one row: the number of columns, and the column mask of each class.
fn row_masks(columns: &[u8]) -> Vec<(usize, [u64; MAX_CLASSES])> {
    columns.chunks(VECTOR).map(masks_of_group).collect()
}

#[inline(always)]
fn gather_cells_with(isa: impl Vector, map: &CellMap, runs: &[&[u8]], count: usize, codes: &mut [u8]) {
    let [_, columns] = map.counts();
    let groups = row_masks(&map.columns);
    let mut next = vec![0; runs.len()];
    let whole = count / map.period;
    for (number, &row) in map.rows[..whole].iter().enumerate() {
        let first = usize::from(row) * columns;
        let (runs, next) = (&runs[first..][..columns], &mut next[first..][..columns]);
        let mut at = number * map.period;
        if columns == 1 {
            copy_row(&runs[0][next[0]..][..map.period], &mut codes[at..][..map.period]);
            next[0] += map.period;
            continue;
        }
        for (width, masks) in &groups {
            let mut joined = isa.splat::<u8>(0);
            for ((run, next), &mask) in runs.iter().zip(&mut *next).zip(masks) {
                let from = run[*next..].first_chunk().expect("bytes behind every run");
                joined = isa.or(joined, isa.expand::<u8>(mask, from));
                *next += mask.count_ones() as usize;
            }
            // What is stored beyond the row is overwritten by the next one.
            isa.store(joined, codes[at..].first_chunk_mut().expect("bytes behind the codes"));
            at += width;
        }
    }
    if let Some(&row) = map.rows.get(whole) {
        for (code, &column) in codes[whole * map.period..count].iter_mut().zip(&map.columns) {
            let cell = usize::from(row) * columns + usize::from(column);
            *code = runs[cell][next[cell]];
            next[cell] += 1;
        }
    }
}

#[inline(always)]
fn scatter_cells_with(isa: impl Vector, map: &CellMap, codes: &[u8], count: usize, runs: &mut [Vec<u8>]) {
    let [_, columns] = map.counts();
    let groups = row_masks(&map.columns);
    let mut next = vec![0; runs.len()];
    let whole = count / map.period;
    for (number, &row) in map.rows[..whole].iter().enumerate() {
        let first = usize::from(row) * columns;
        let (runs, next) = (&mut runs[first..][..columns], &mut next[first..][..columns]);
        let mut at = number * map.period;
        if columns == 1 {
            copy_row(&codes[at..][..map.period], &mut runs[0][next[0]..][..map.period]);
            next[0] += map.period;
            continue;
        }
        for (width, masks) in &groups {
            let bytes = isa.load(codes[at..].first_chunk().expect("bytes behind the codes"));
            for ((run, next), &mask) in runs.iter_mut().zip(&mut *next).zip(masks) {
                isa.compress::<u8>(
                    mask,
                    bytes,
                    run[*next..].first_chunk_mut().expect("bytes behind every run"),
                );
                *next += mask.count_ones() as usize;
            }
            at += width;
        }
    }
    if let Some(&row) = map.rows.get(whole) {
        for (&code, &column) in codes[whole * map.period..count].iter().zip(&map.columns) {
            let cell = usize::from(row) * columns + usize::from(column);
            runs[cell][next[cell]] = code;
            next[cell] += 1;
        }
    }
}

#[inline(always)]
fn gather_with(isa: impl Vector, map: &ClassMap, runs: &[&[u8]], count: usize, codes: &mut [u8]) {
    if !map.columns {
        let mut next = [0; MAX_CLASSES];
        for (row, &class) in codes[..count].chunks_mut(map.period).zip(&map.classes) {
            let class = usize::from(class);
            copy_row(&runs[class][next[class]..next[class] + row.len()], row);
            next[class] += row.len();
        }
        return;
    }
    let mut all = [runs[0]; MAX_CLASSES];
    all[..runs.len()].copy_from_slice(runs);
    match runs.len() {
        0..=2 => gather_columns::<_, 2>(isa, map, &all, count, codes),
        3 => gather_columns::<_, 3>(isa, map, &all, count, codes),
        _ => gather_columns::<_, 4>(isa, map, &all, count, codes),
    }
}

/// Columns of at most `N` classes.
#[inline(always)]
fn gather_columns<I: Vector, const N: usize>(
    isa: I,
    map: &ClassMap,
    runs: &[&[u8]; MAX_CLASSES],
    count: usize,
    codes: &mut [u8],
) {
    let groups = masks(map);
    let mut next = [0; MAX_CLASSES];
    let mut at = 0;
    for (width, masks) in groups.iter().cycle() {
        if at + width > count {
            break;
        }
        let mut joined = isa.splat::<u8>(0);
        for class in 0..N {
            let from = runs[class][next[class]..].first_chunk().expect("bytes behind every run");
            joined = isa.or(joined, isa.expand::<u8>(masks[class], from));
            next[class] += masks[class].count_ones() as usize;
        }
        let to = codes[at..].first_chunk_mut().expect("bytes behind the codes");
        isa.store(joined, to);
        at += width;
    }
    // The rest, one by one.
    for (index, code) in codes[..count].iter_mut().enumerate().skip(at) {
        let class = usize::from(map.classes[index % map.period]);
        *code = runs[class][next[class]];
        next[class] += 1;
    }
}

#[inline(always)]
fn scatter_with(isa: impl Vector, map: &ClassMap, codes: &[u8], count: usize, runs: &mut [Vec<u8>]) {
    let mut next = [0; MAX_CLASSES];
    if !map.columns {
        for (row, &class) in codes[..count].chunks(map.period).zip(&map.classes) {
            let class = usize::from(class);
            copy_row(row, &mut runs[class][next[class]..next[class] + row.len()]);
            next[class] += row.len();
        }
        return;
    }
    let groups = masks(map);
    let mut at = 0;
    for (width, masks) in groups.iter().cycle() {
        if at + width > count {
            break;
        }
        let bytes = isa.load(codes[at..].first_chunk().expect("bytes behind the codes"));
        for ((run, next), &mask) in runs.iter_mut().zip(&mut next).zip(masks) {
            let to = run[*next..].first_chunk_mut().expect("bytes behind every run");
            isa.compress::<u8>(mask, bytes, to);
            *next += mask.count_ones() as usize;
        }
        at += width;
    }
    // The rest, one by one.
    for index in at..count {
        let class = usize::from(map.classes[index % map.period]);
        runs[class][next[class]] = codes[index];
        next[class] += 1;
    }
}

/// Copies a row to `to`, of the same length. Most rows are too short for a call to `memcpy` to pay.
#[inline(always)]
fn copy_row(from: &[u8], to: &mut [u8]) {
    // The usual length, which the compiler would make a call of as well if it did not know it.
    if let (Ok(from), Ok(to)) = (<&[u8; SHORT]>::try_from(from), <&mut [u8; SHORT]>::try_from(&mut *to)) {
        *to = *from;
        return;
    }
    let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<32>(), to.as_chunks_mut::<32>());
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    to_rest.copy_from_slice(from_rest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Portable;
    use proptest::prelude::*;

    fn map() -> impl Strategy<Value = (ClassMap, Vec<u8>)> {
        (any::<bool>(), 1usize..200, 0usize..2000, any::<u64>()).prop_map(|(columns, period, count, seed)| {
            let mut state = seed | 1;
            let mut next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            };
            let units = ClassMap::units(columns, period, count);
            let classes = (0..units).map(|_| (next() % 4) as u8).collect();
            let codes = (0..count).map(|_| next() as u8).collect();
            (ClassMap { columns, period, classes }, codes)
        })
    }

    fn cell_map() -> impl Strategy<Value = (CellMap, Vec<u8>)> {
        (1u8..=4, 1u8..=4, 1usize..200, 1usize..2000, any::<u64>()).prop_map(
            |(rows, columns, period, count, seed)| {
                let mut state = seed | 1;
                let mut next = || {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 33) as u8
                };
                let rows = (0..count.div_ceil(period)).map(|_| next() % rows).collect();
                let columns = (0..period).map(|_| next() % columns).collect();
                let codes = (0..count).map(|_| next()).collect();
                (CellMap { period, rows, columns }, codes)
            },
        )
    }

    proptest! {
        #[test]
        fn codes_of_cells_return_to_their_places((map, codes) in cell_map()) {
            let (count, [rows, columns]) = (codes.len(), map.counts());
            let cell_of = |i: usize| {
                usize::from(map.rows[i / map.period]) * columns + usize::from(map.columns[i % map.period])
            };
            let naive: Vec<Vec<u8>> = (0..rows * columns)
                .map(|cell| (0..count).filter(|&i| cell_of(i) == cell).map(|i| codes[i]).collect())
                .collect();
            let sizes = map.sizes(count);
            prop_assert!(naive.iter().map(Vec::len).eq(sizes.iter().copied()));
            let mut padded = codes.clone();
            padded.resize(count + SLACK, 0);
            for portable in [false, true] {
                let mut runs: Vec<Vec<u8>> = sizes.iter().map(|&s| vec![0; s + SLACK]).collect();
                if portable {
                    scatter_cells_with(Portable, &map, &padded, count, &mut runs);
                } else {
                    scatter_cells(&map, &padded, count, &mut runs);
                }
                for (run, naive) in runs.iter().zip(&naive) {
                    prop_assert_eq!(&run[..run.len() - SLACK], &naive[..]);
                }
                let runs: Vec<&[u8]> = runs.iter().map(Vec::as_slice).collect();
                let mut back = vec![0; count + SLACK];
                if portable {
                    gather_cells_with(Portable, &map, &runs, count, &mut back);
                } else {
                    gather_cells(&map, &runs, count, &mut back);
                }
                prop_assert_eq!(&back[..count], &codes[..]);
            }
        }

        #[test]
        fn codes_return_to_their_places((map, codes) in map()) {
            let count = codes.len();
            // The naive twin: one class after the other, element by element.
            let class_of = |i: usize| map.classes[if map.columns { i % map.period } else { i / map.period }];
            let naive: Vec<Vec<u8>> = (0..4u8)
                .map(|class| (0..count).filter(|&i| class_of(i) == class).map(|i| codes[i]).collect())
                .collect();
            let sizes = map.sizes(count);
            let mut padded = codes.clone();
            padded.resize(count + SLACK, 0);
            for portable in [false, true] {
                let mut runs: Vec<Vec<u8>> = sizes.iter().map(|&s| vec![0; s + SLACK]).collect();
                if portable {
                    scatter_with(Portable, &map, &padded, count, &mut runs);
                } else {
                    scatter(&map, &padded, count, &mut runs);
                }
                for (run, naive) in runs.iter().zip(&naive) {
                    prop_assert_eq!(&run[..run.len() - SLACK], &naive[..]);
                }
                let runs: Vec<&[u8]> = runs.iter().map(Vec::as_slice).collect();
                let mut back = vec![0; count + SLACK];
                if portable {
                    gather_with(Portable, &map, &runs, count, &mut back);
                } else {
                    gather(&map, &runs, count, &mut back);
                }
                prop_assert_eq!(&back[..count], &codes[..]);
            }
        }
    }
}
