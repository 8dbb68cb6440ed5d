//! Gathers and scatters codes between element order and one run per scale class.
//!
//! Rows are plain copies. Columns alternate within a few elements, so they are moved sixteen at a
//! time: each class loads the next sixteen codes of its run, a byte shuffle moves those of this
//! group to their columns and clears the rest, and the classes are ORed. The shuffles depend on the
//! column only and are built once per chunk. With AVX-512, groups have 64 columns: each class
//! expands the next bytes of its run by the mask of its columns.

use crate::simd::{Isa, dispatch};

/// Classes per chunk, at most.
pub(crate) const MAX_CLASSES: usize = 4;
/// Bytes that buffers of codes need behind their contents, because groups are moved whole.
pub(crate) const SLACK: usize = WIDE;

const GROUP: usize = 16;
/// Columns of a group where bytes can be expanded.
const WIDE: usize = 64;
/// Short periods are repeated to at least this many columns, so that most groups are full.
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

/// One group of up to sixteen columns.
struct Group {
    /// Per class: the element that each of the next codes of its run goes to.
    gather: [[u8; GROUP]; MAX_CLASSES],
    /// Per class: the elements of the group that belong to it, in order.
    scatter: [[u8; GROUP]; MAX_CLASSES],
    /// Per class: how many that are.
    taken: [usize; MAX_CLASSES],
    /// Columns of the group.
    width: usize,
}

/// The groups of one row, which may be several periods.
fn groups(map: &ClassMap) -> Vec<Group> {
    let repeats = SHORT.div_ceil(map.period);
    let columns = map.classes.repeat(repeats);
    columns
        .chunks(GROUP)
        .map(|classes| {
            let mut group = Group {
                gather: [[0x80; GROUP]; MAX_CLASSES],
                scatter: [[0x80; GROUP]; MAX_CLASSES],
                taken: [0; MAX_CLASSES],
                width: classes.len(),
            };
            for (column, &class) in classes.iter().enumerate() {
                let class = usize::from(class);
                let taken = &mut group.taken[class];
                group.gather[class][column] = *taken as u8;
                group.scatter[class][*taken] = column as u8;
                *taken += 1;
            }
            group
        })
        .collect()
}

/// Puts codes from runs per class back into element order. Every buffer needs [`SLACK`] bytes
/// behind its contents.
pub(crate) fn gather(map: &ClassMap, runs: &[&[u8]], count: usize, codes: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if map.columns && crate::simd::Avx512::new().is_some() {
        let mut all = [runs[0]; MAX_CLASSES];
        all[..runs.len()].copy_from_slice(runs);
        // SAFETY: the features were detected.
        return unsafe {
            match runs.len() {
                0..=2 => gather_columns_wide::<2>(map, &all, count, codes),
                3 => gather_columns_wide::<3>(map, &all, count, codes),
                _ => gather_columns_wide::<4>(map, &all, count, codes),
            }
        };
    }
    gather_narrow(map, runs, count, codes);
}

/// The groups of one row, which may be several periods: the number of columns, and the column mask
/// of each class.
#[cfg(target_arch = "x86_64")]
fn masks(map: &ClassMap) -> Vec<(usize, [u64; MAX_CLASSES])> {
    let columns = map.classes.repeat((4 * WIDE).div_ceil(map.period));
    let group = |classes: &[u8]| {
        let mut masks = [0; MAX_CLASSES];
        for (column, &class) in classes.iter().enumerate() {
            masks[usize::from(class)] |= 1 << column;
        }
        (classes.len(), masks)
    };
    columns.chunks(WIDE).map(group).collect()
}

/// Columns of at most `N` classes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2")]
fn gather_columns_wide<const N: usize>(
    map: &ClassMap,
    runs: &[&[u8]; MAX_CLASSES],
    count: usize,
    codes: &mut [u8],
) {
    use std::arch::x86_64::{
        _mm512_loadu_si512, _mm512_maskz_expand_epi8, _mm512_or_si512, _mm512_storeu_si512,
    };
    let groups = masks(map);
    let mut next = [0; MAX_CLASSES];
    let mut at = 0;
    for (width, masks) in groups.iter().cycle() {
        if at + width > count {
            break;
        }
        // SAFETY: each slice has as many bytes as are read or written.
        unsafe {
            let expand = |class: usize, next: &mut usize| {
                let bytes = _mm512_loadu_si512(runs[class][*next..*next + WIDE].as_ptr().cast());
                *next += masks[class].count_ones() as usize;
                _mm512_maskz_expand_epi8(masks[class], bytes)
            };
            let mut joined = expand(0, &mut next[0]);
            for class in 1..N {
                joined = _mm512_or_si512(joined, expand(class, &mut next[class]));
            }
            _mm512_storeu_si512(codes[at..at + WIDE].as_mut_ptr().cast(), joined);
        }
        at += width;
    }
    gather_rest(map, runs, &mut next, &mut codes[..count], at);
}

/// Columns from element `at` on, one by one.
#[inline(always)]
fn gather_rest(map: &ClassMap, runs: &[&[u8]], next: &mut [usize; MAX_CLASSES], codes: &mut [u8], at: usize) {
    for (index, code) in codes.iter_mut().enumerate().skip(at) {
        let class = usize::from(map.classes[index % map.period]);
        *code = runs[class][next[class]];
        next[class] += 1;
    }
}

dispatch! {
    /// As [`gather`], sixteen columns at a time.
    fn gather_narrow(map: &ClassMap, runs: &[&[u8]], count: usize, codes: &mut [u8]) = gather_with
}

/// Splits codes in element order into one run per class. Every buffer needs [`SLACK`] bytes behind
/// its contents.
pub(crate) fn scatter(map: &ClassMap, codes: &[u8], count: usize, runs: &mut [Vec<u8>]) {
    #[cfg(target_arch = "x86_64")]
    if map.columns && crate::simd::Avx512::new().is_some() {
        // SAFETY: the features were detected.
        return unsafe { scatter_columns_wide(map, codes, count, runs) };
    }
    scatter_narrow(map, codes, count, runs);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,popcnt")]
fn scatter_columns_wide(map: &ClassMap, codes: &[u8], count: usize, runs: &mut [Vec<u8>]) {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_maskz_compress_epi8, _mm512_storeu_si512};
    let groups = masks(map);
    let mut next = [0; MAX_CLASSES];
    let mut at = 0;
    for (width, masks) in groups.iter().cycle() {
        if at + width > count {
            break;
        }
        // SAFETY: each slice has as many bytes as are read or written.
        unsafe {
            let bytes = _mm512_loadu_si512(codes[at..at + WIDE].as_ptr().cast());
            for ((run, next), &mask) in runs.iter_mut().zip(&mut next).zip(masks) {
                let chosen = _mm512_maskz_compress_epi8(mask, bytes);
                _mm512_storeu_si512(run[*next..*next + WIDE].as_mut_ptr().cast(), chosen);
                *next += mask.count_ones() as usize;
            }
        }
        at += width;
    }
    scatter_rest(map, codes, at..count, &mut next, runs);
}

/// Columns of `elements`, one by one.
#[inline(always)]
fn scatter_rest(
    map: &ClassMap,
    codes: &[u8],
    elements: std::ops::Range<usize>,
    next: &mut [usize; MAX_CLASSES],
    runs: &mut [Vec<u8>],
) {
    for index in elements {
        let class = usize::from(map.classes[index % map.period]);
        runs[class][next[class]] = codes[index];
        next[class] += 1;
    }
}

dispatch! {
    /// As [`scatter`], sixteen columns at a time.
    fn scatter_narrow(map: &ClassMap, codes: &[u8], count: usize, runs: &mut [Vec<u8>]) = scatter_with
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

#[inline(always)]
fn gather_with(isa: impl Isa, map: &ClassMap, runs: &[&[u8]], count: usize, codes: &mut [u8]) {
    let mut next = [0; MAX_CLASSES];
    if !map.columns {
        for (row, &class) in codes[..count].chunks_mut(map.period).zip(&map.classes) {
            let class = usize::from(class);
            copy_row(&runs[class][next[class]..next[class] + row.len()], row);
            next[class] += row.len();
        }
        return;
    }
    let groups = groups(map);
    let mut at = 0;
    for group in groups.iter().cycle() {
        if at + group.width > count {
            break;
        }
        let mut joined = [0u8; GROUP];
        for (class, run) in runs.iter().enumerate() {
            let mut bytes = [0u8; GROUP];
            bytes.copy_from_slice(&run[next[class]..next[class] + GROUP]);
            let placed = isa.shuffle(bytes, group.gather[class]);
            for i in 0..GROUP {
                joined[i] |= placed[i];
            }
            next[class] += group.taken[class];
        }
        codes[at..at + GROUP].copy_from_slice(&joined);
        at += group.width;
    }
    gather_rest(map, runs, &mut next, &mut codes[..count], at);
}

#[inline(always)]
fn scatter_with(isa: impl Isa, map: &ClassMap, codes: &[u8], count: usize, runs: &mut [Vec<u8>]) {
    let mut next = [0; MAX_CLASSES];
    if !map.columns {
        for (row, &class) in codes[..count].chunks(map.period).zip(&map.classes) {
            let class = usize::from(class);
            copy_row(row, &mut runs[class][next[class]..next[class] + row.len()]);
            next[class] += row.len();
        }
        return;
    }
    let groups = groups(map);
    let mut at = 0;
    for group in groups.iter().cycle() {
        if at + group.width > count {
            break;
        }
        let mut bytes = [0u8; GROUP];
        bytes.copy_from_slice(&codes[at..at + GROUP]);
        for (class, run) in runs.iter_mut().enumerate() {
            let chosen = isa.shuffle(bytes, group.scatter[class]);
            run[next[class]..next[class] + GROUP].copy_from_slice(&chosen);
            next[class] += group.taken[class];
        }
        at += group.width;
    }
    scatter_rest(map, codes, at..count, &mut next, runs);
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

    proptest! {
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
            for (portable, narrow) in [(false, false), (false, true), (true, false)] {
                let mut runs: Vec<Vec<u8>> = sizes.iter().map(|&s| vec![0; s + SLACK]).collect();
                if portable {
                    scatter_with(Portable, &map, &padded, count, &mut runs);
                } else if narrow {
                    scatter_narrow(&map, &padded, count, &mut runs);
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
                } else if narrow {
                    gather_narrow(&map, &runs, count, &mut back);
                } else {
                    gather(&map, &runs, count, &mut back);
                }
                prop_assert_eq!(&back[..count], &codes[..]);
            }
        }
    }
}
