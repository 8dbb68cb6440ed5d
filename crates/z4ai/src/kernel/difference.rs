//! Differences between the elements of two buffers, and what becomes of them.
//!
//! A difference is as wide as an element. Small changes are small numbers, whatever their
//! direction, so that high bytes are zero: [`significant`] counts how many are not.

use super::{Isa, dispatch};

/// How one element becomes another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The bits that differ.
    Xor,
    /// The distance between integers modulo their range, doubled; odd numbers go backwards.
    Integer,
    /// The same between floats, counted in representable values.
    Float,
}

/// Elements that are listed at a time.
const GROUP: usize = 8;
/// For every mask, the places of the bits that are set.
static PLACES: [[u8; GROUP]; 256] = {
    let mut places = [[0; GROUP]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut bit, mut found) = (0, 0);
        while bit < GROUP {
            if mask >> bit & 1 == 1 {
                places[mask][found] = bit as u8;
                found += 1;
            }
            bit += 1;
        }
        mask += 1;
    }
    places
};

/// The integers that stand for elements of one size.
trait Word {
    fn difference(rule: Rule, current: &[u8], reference: &[u8], out: &mut [u8]);
    fn restore(rule: Rule, reference: &[u8], difference: &[u8], out: &mut [u8]);
    fn take_plane(elements: &[u8], byte: usize, plane: &mut [u8]);
    fn set_plane(plane: &[u8], elements: &mut [u8]);
    fn put_plane(plane: &[u8], byte: usize, elements: &mut [u8]);
    fn significant(elements: &[u8]) -> [u32; 8];
    fn positions(elements: &[u8], byte: usize, out: &mut Vec<u32>) -> usize;
}

macro_rules! word {
    ($unsigned:ident, $signed:ident, $size:literal) => {
        impl Word for $unsigned {
            #[inline(always)]
            fn difference(rule: Rule, current: &[u8], reference: &[u8], out: &mut [u8]) {
                const TOP: u32 = $unsigned::BITS - 1;
                // Floats in order: magnitudes of negative ones are counted backwards.
                let ordered = |x: $unsigned| x ^ (x as $signed >> TOP) as $unsigned >> 1;
                let doubled = |d: $unsigned| d << 1 ^ (d as $signed >> TOP) as $unsigned;
                let pairs = current.as_chunks::<$size>().0.iter().zip(reference.as_chunks::<$size>().0);
                let out = out.as_chunks_mut::<$size>().0.iter_mut();
                let load = |bytes: &[u8; $size]| $unsigned::from_le_bytes(*bytes);
                match rule {
                    Rule::Xor => {
                        for ((c, r), out) in pairs.zip(out) {
                            *out = (load(c) ^ load(r)).to_le_bytes();
                        }
                    }
                    Rule::Integer => {
                        for ((c, r), out) in pairs.zip(out) {
                            *out = doubled(load(c).wrapping_sub(load(r))).to_le_bytes();
                        }
                    }
                    Rule::Float => {
                        for ((c, r), out) in pairs.zip(out) {
                            let distance = ordered(load(c)).wrapping_sub(ordered(load(r)));
                            *out = doubled(distance).to_le_bytes();
                        }
                    }
                }
            }

            #[inline(always)]
            fn restore(rule: Rule, reference: &[u8], difference: &[u8], out: &mut [u8]) {
                const TOP: u32 = $unsigned::BITS - 1;
                let ordered = |x: $unsigned| x ^ (x as $signed >> TOP) as $unsigned >> 1;
                let halved = |z: $unsigned| z >> 1 ^ (z & 1).wrapping_neg();
                let pairs = reference.as_chunks::<$size>().0.iter().zip(difference.as_chunks::<$size>().0);
                let out = out.as_chunks_mut::<$size>().0.iter_mut();
                let load = |bytes: &[u8; $size]| $unsigned::from_le_bytes(*bytes);
                match rule {
                    Rule::Xor => {
                        for ((r, z), out) in pairs.zip(out) {
                            *out = (load(r) ^ load(z)).to_le_bytes();
                        }
                    }
                    Rule::Integer => {
                        for ((r, z), out) in pairs.zip(out) {
                            *out = load(r).wrapping_add(halved(load(z))).to_le_bytes();
                        }
                    }
                    Rule::Float => {
                        for ((r, z), out) in pairs.zip(out) {
                            let place = ordered(load(r)).wrapping_add(halved(load(z)));
                            *out = ordered(place).to_le_bytes();
                        }
                    }
                }
            }

            #[inline(always)]
            fn take_plane(elements: &[u8], byte: usize, plane: &mut [u8]) {
                for (element, out) in elements.as_chunks::<$size>().0.iter().zip(plane) {
                    *out = ($unsigned::from_le_bytes(*element) >> (8 * byte)) as u8;
                }
            }

            #[inline(always)]
            fn set_plane(plane: &[u8], elements: &mut [u8]) {
                for (element, &value) in elements.as_chunks_mut::<$size>().0.iter_mut().zip(plane) {
                    *element = $unsigned::from(value).to_le_bytes();
                }
            }

            #[inline(always)]
            fn put_plane(plane: &[u8], byte: usize, elements: &mut [u8]) {
                for (element, &value) in elements.as_chunks_mut::<$size>().0.iter_mut().zip(plane) {
                    let word = $unsigned::from_le_bytes(*element);
                    *element = (word | $unsigned::from(value) << (8 * byte)).to_le_bytes();
                }
            }

            #[inline(always)]
            fn significant(elements: &[u8]) -> [u32; 8] {
                let mut counts = [0u32; 8];
                // So few that a count of them fits the narrowest element.
                for block in elements.as_chunks::<$size>().0.chunks(128) {
                    for byte in 0..$size {
                        let wide = |e: &[u8; $size]| $unsigned::from_le_bytes(*e) >> (8 * byte) != 0;
                        let count: $unsigned = block.iter().map(|e| $unsigned::from(wide(e))).sum();
                        counts[byte] += count as u32;
                    }
                }
                counts
            }

            #[inline(always)]
            fn positions(elements: &[u8], byte: usize, out: &mut Vec<u32>) -> usize {
                let elements = elements.as_chunks::<$size>().0;
                if out.len() < elements.len() + GROUP {
                    out.resize(elements.len() + GROUP, 0);
                }
                let mut found = 0;
                for (index, group) in elements.chunks(GROUP).enumerate() {
                    let mut mask = 0u8;
                    for (i, element) in group.iter().enumerate() {
                        let listed = $unsigned::from_le_bytes(*element) >> (8 * byte) != 0;
                        mask |= u8::from(listed) << i;
                    }
                    // All places are written, and kept by moving on: no branch to guess.
                    let places = &PLACES[usize::from(mask)];
                    let out = &mut out[found..found + GROUP];
                    for i in 0..GROUP {
                        out[i] = (index * GROUP) as u32 + u32::from(places[i]);
                    }
                    found += mask.count_ones() as usize;
                }
                found
            }
        }
    };
}

word!(u8, i8, 1);
word!(u16, i16, 2);
word!(u32, i32, 4);
word!(u64, i64, 8);

macro_rules! for_size {
    ($size:expr, $word:ident, $call:expr) => {
        match $size {
            1 => for_size!(@ $word u8, $call),
            2 => for_size!(@ $word u16, $call),
            4 => for_size!(@ $word u32, $call),
            _ => for_size!(@ $word u64, $call),
        }
    };
    (@ $word:ident $type:ty, $call:expr) => {{
        type $word = $type;
        $call
    }};
}

dispatch! {
    /// Writes the differences from `reference` to `current`, elements of `size` bytes, to `out`.
    pub(crate) fn difference(rule: Rule, size: usize, current: &[u8], reference: &[u8], out: &mut [u8])
        = difference_with
}

dispatch! {
    /// Undoes [`difference`]: writes what was current.
    pub(crate) fn restore(rule: Rule, size: usize, reference: &[u8], differences: &[u8], out: &mut [u8])
        = restore_with
}

dispatch! {
    /// Copies byte `byte` of every element to `plane`.
    pub(crate) fn take_plane(size: usize, elements: &[u8], byte: usize, plane: &mut [u8]) = take_plane_with
}

dispatch! {
    /// Sets every element to the number in `plane`.
    pub(crate) fn set_plane(size: usize, plane: &[u8], elements: &mut [u8]) = set_plane_with
}

dispatch! {
    /// Sets byte `byte` of every element, zero before, from `plane`.
    pub(crate) fn put_plane(size: usize, plane: &[u8], byte: usize, elements: &mut [u8]) = put_plane_with
}

dispatch! {
    /// For each byte of an element, how many elements are not zero from that byte on.
    pub(crate) fn significant(size: usize, elements: &[u8]) -> [u32; 8] = significant_with
}

dispatch! {
    /// Lists the elements that are not zero from byte `byte` on at the start of `out`, which grows
    /// as needed; returns how many they are.
    pub(crate) fn positions(size: usize, elements: &[u8], byte: usize, out: &mut Vec<u32>) -> usize
        = positions_with
}

#[inline(always)]
fn difference_with(_: impl Isa, rule: Rule, size: usize, current: &[u8], reference: &[u8], out: &mut [u8]) {
    for_size!(size, W, <W as Word>::difference(rule, current, reference, out));
}

#[inline(always)]
fn restore_with(_: impl Isa, rule: Rule, size: usize, reference: &[u8], differences: &[u8], out: &mut [u8]) {
    for_size!(size, W, <W as Word>::restore(rule, reference, differences, out));
}

#[inline(always)]
fn set_plane_with(_: impl Isa, size: usize, plane: &[u8], elements: &mut [u8]) {
    for_size!(size, W, <W as Word>::set_plane(plane, elements));
}

#[inline(always)]
fn take_plane_with(_: impl Isa, size: usize, elements: &[u8], byte: usize, plane: &mut [u8]) {
    for_size!(size, W, <W as Word>::take_plane(elements, byte, plane));
}

#[inline(always)]
fn put_plane_with(_: impl Isa, size: usize, plane: &[u8], byte: usize, elements: &mut [u8]) {
    for_size!(size, W, <W as Word>::put_plane(plane, byte, elements));
}

#[inline(always)]
fn significant_with(_: impl Isa, size: usize, elements: &[u8]) -> [u32; 8] {
    for_size!(size, W, <W as Word>::significant(elements))
}

#[inline(always)]
fn positions_with(_: impl Isa, size: usize, elements: &[u8], byte: usize, out: &mut Vec<u32>) -> usize {
    for_size!(size, W, <W as Word>::positions(elements, byte, out))
}

/// Writes the bytes from `byte` on of every listed element: `gaps` are the unlisted elements
/// before each, 255 standing for as many with none listed after them; `values` has a plane for
/// each byte. Returns `None` if the list leaves the buffer or is not used up.
pub(crate) fn scatter(
    size: usize,
    byte: usize,
    gaps: &[u8],
    values: &[&[u8]],
    elements: &mut [u8],
) -> Option<()> {
    match *values {
        [a] => scatter_values(size, byte, gaps, [a], elements),
        [a, b] => scatter_values(size, byte, gaps, [a, b], elements),
        [a, b, c] => scatter_values(size, byte, gaps, [a, b, c], elements),
        [a, b, c, d] => scatter_values(size, byte, gaps, [a, b, c, d], elements),
        [a, b, c, d, e] => scatter_values(size, byte, gaps, [a, b, c, d, e], elements),
        [a, b, c, d, e, f] => scatter_values(size, byte, gaps, [a, b, c, d, e, f], elements),
        [a, b, c, d, e, f, g] => scatter_values(size, byte, gaps, [a, b, c, d, e, f, g], elements),
        [a, b, c, d, e, f, g, h] => scatter_values(size, byte, gaps, [a, b, c, d, e, f, g, h], elements),
        _ => None,
    }
}

/// The gap that stands for as many elements and no listed one.
pub(crate) const SKIP: u8 = 255;

#[inline(always)]
fn scatter_values<const V: usize>(
    size: usize,
    byte: usize,
    gaps: &[u8],
    values: [&[u8]; V],
    elements: &mut [u8],
) -> Option<()> {
    let count = values[0].len();
    // The common length lets the compiler drop bounds checks below.
    let values = values.map(|plane| &plane[..count]);
    let (mut at, mut listed) = (byte, 0);
    for &gap in gaps {
        at += usize::from(gap) * size;
        if gap == SKIP {
            continue;
        }
        let element = elements.get_mut(at..at + V)?;
        if listed == count {
            return None;
        }
        for i in 0..V {
            element[i] = values[i][listed];
        }
        listed += 1;
        at += size;
    }
    (listed == count && gaps.last() != Some(&SKIP)).then_some(())
}

#[cfg(test)]
mod tests {
    use super::super::Portable;
    use super::*;

    fn noise(len: usize, seed: u32) -> Vec<u8> {
        let mut state = seed;
        let step = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..len).map(step).collect()
    }

    const SIZES: [usize; 4] = [1, 2, 4, 8];
    const RULES: [Rule; 3] = [Rule::Xor, Rule::Integer, Rule::Float];

    /// One element at a time, in the widest integers.
    fn naive(rule: Rule, size: usize, current: &[u8], reference: &[u8]) -> Vec<u8> {
        let bits = size as u32 * 8;
        let mask = u64::MAX >> (64 - bits);
        let load = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |word, &b| word << 8 | u64::from(b));
        let place = |word: u64| {
            let negative = word >> (bits - 1) == 1;
            let magnitude = (word & (mask >> 1)) as i128;
            if negative { -magnitude - 1 } else { magnitude }
        };
        let signed = |word: u64| (word << (64 - bits)) as i64 as i128 >> (64 - bits);
        let mut out = Vec::new();
        for (c, r) in current.chunks(size).zip(reference.chunks(size)) {
            let (c, r) = (load(c), load(r));
            let distance = match rule {
                Rule::Xor => {
                    out.extend(&(c ^ r).to_le_bytes()[..size]);
                    continue;
                }
                Rule::Integer => signed(c) - signed(r),
                Rule::Float => place(c) - place(r),
            };
            let wrapped = signed(distance as u64 & mask);
            let doubled = if wrapped < 0 { -2 * wrapped - 1 } else { 2 * wrapped };
            out.extend(&(doubled as u64).to_le_bytes()[..size]);
        }
        out
    }

    #[test]
    fn restoring_undoes_differences() {
        for size in SIZES {
            for count in [0, 1, 7, 300] {
                let (current, reference) = (noise(size * count, 1), noise(size * count, 2));
                for rule in RULES {
                    let expected = naive(rule, size, &current, &reference);
                    let mut fast = vec![0; size * count];
                    difference(rule, size, &current, &reference, &mut fast);
                    assert_eq!(fast, expected, "{rule:?} {size}");
                    let mut portable = vec![0; size * count];
                    difference_with(Portable, rule, size, &current, &reference, &mut portable);
                    assert_eq!(portable, expected, "{rule:?} {size}");
                    let mut restored = vec![0; size * count];
                    restore(rule, size, &reference, &fast, &mut restored);
                    assert_eq!(restored, current, "{rule:?} {size}");
                    restore_with(Portable, rule, size, &reference, &fast, &mut restored);
                    assert_eq!(restored, current, "{rule:?} {size}");
                }
            }
        }
    }

    #[test]
    fn neighbouring_floats_differ_by_one_step() {
        let step = |from: f32, to: f32| {
            let mut out = [0; 4];
            difference(Rule::Float, 4, &to.to_le_bytes(), &from.to_le_bytes(), &mut out);
            u32::from_le_bytes(out)
        };
        for value in [0.0f32, 1.0, -1.0, 1.5e-40, -2.5, 3.4e38] {
            assert_eq!(step(value, value), 0);
            assert_eq!(step(value, value.next_up()).min(step(value.next_up(), value)), 1);
            assert_eq!(step(value, value.next_up()).max(step(value.next_up(), value)), 2);
        }
    }

    #[test]
    fn planes_and_lists_hold_all_of_an_element() {
        for size in SIZES {
            let count = 1000;
            let mut elements = noise(size * count, 3);
            // Most elements are small, some are zero, a few are wide; one long gap.
            for (i, element) in elements.chunks_mut(size).enumerate() {
                let kept = [1, 0, 1, 0, 0, size][i % 6].min(if (300..900).contains(&i) { 0 } else { size });
                element[kept..].fill(0);
            }
            let wide = significant(size, &elements);
            assert_eq!(wide, significant_with(Portable, size, &elements));
            for byte in 0..size {
                let expected: Vec<u32> = (0..count)
                    .filter(|i| elements[i * size + byte..][..size - byte].iter().any(|&b| b != 0))
                    .map(|i| i as u32)
                    .collect();
                let mut found = Vec::new();
                let listed = positions(size, &elements, byte, &mut found);
                assert_eq!(found[..listed], expected);
                let listed = positions_with(Portable, size, &elements, byte, &mut found);
                assert_eq!(found[..listed], expected);
                found.truncate(listed);
                assert_eq!(wide[byte] as usize, found.len());

                let mut rebuilt = vec![0; elements.len()];
                for low in 0..byte {
                    let mut plane = vec![0; count];
                    take_plane(size, &elements, low, &mut plane);
                    match low {
                        0 => set_plane(size, &plane, &mut rebuilt),
                        _ => put_plane(size, &plane, low, &mut rebuilt),
                    }
                }
                let (mut gaps, mut next) = (Vec::new(), 0);
                for &at in &found {
                    let gap = at - next;
                    gaps.extend(std::iter::repeat_n(SKIP, gap as usize / 255));
                    gaps.push((gap % 255) as u8);
                    next = at + 1;
                }
                let values: Vec<Vec<u8>> = (byte..size)
                    .map(|b| found.iter().map(|&at| elements[at as usize * size + b]).collect())
                    .collect();
                let planes: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
                scatter(size, byte, &gaps, &planes, &mut rebuilt).unwrap();
                assert_eq!(rebuilt, elements, "{size} {byte}");

                gaps.push(SKIP);
                assert!(scatter(size, byte, &gaps, &planes, &mut rebuilt).is_none());
                gaps.push(0);
                assert!(scatter(size, byte, &gaps, &planes, &mut rebuilt).is_none());
                gaps.truncate(1);
                assert!(scatter(size, byte, &gaps, &planes, &mut rebuilt).is_none());
            }
        }
    }
}
