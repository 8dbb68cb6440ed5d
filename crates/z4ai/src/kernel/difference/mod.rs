//! Element-wise differences between two buffers, and their inverse.
//!
//! A difference is as wide as an element. Small changes of either sign are small numbers, so that
//! high bytes are zero.

mod fused_restore;
mod gap_scatter;

pub(crate) use gap_scatter::GapScatter;

use crate::kernel::stripe_writer::PartialLine;
use crate::simd::vector::Vector;
use crate::simd::{Isa, Sums, dispatch, dispatch_wide};

/// The difference of two elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// XOR.
    Xor,
    /// Wrapping difference, zigzag-encoded.
    ZigZag,
    /// Zigzag difference of the sign-magnitude → ordered-integer images, i.e. distance in ULPs.
    Ulp,
}

/// The loops for elements of one size, as integers.
pub(crate) trait Word {
    fn difference(rule: Rule, current: &[u8], reference: &[u8], out: &mut [u8]);
    fn restore(rule: Rule, difference: &[u8], to: impl Target);
    fn negate_zigzag(differences: &mut [u8]);
    fn restore_planes<const P: usize>(rule: Rule, planes: [&[u8]; P], to: impl Target);
    fn take_plane(elements: &[u8], byte: usize, plane: &mut [u8]);
    fn set_plane(plane: &[u8], byte: usize, elements: &mut [u8]);
    fn put_plane(plane: &[u8], byte: usize, elements: &mut [u8]);
    fn join_planes<const P: usize>(planes: [&[u8]; P], elements: &mut [u8]);
}

/// The references and the output of a restore.
pub(crate) trait Target {
    /// Sets each of `count` elements to `restored(reference, difference)`.
    fn each<const SIZE: usize>(
        self,
        count: usize,
        difference: impl Fn(usize) -> [u8; SIZE],
        restored: impl Fn([u8; SIZE], [u8; SIZE]) -> [u8; SIZE],
    );
}

/// Reference and output in separate memory.
impl Target for (&[u8], &mut [u8]) {
    #[inline(always)]
    fn each<const SIZE: usize>(
        self,
        count: usize,
        difference: impl Fn(usize) -> [u8; SIZE],
        restored: impl Fn([u8; SIZE], [u8; SIZE]) -> [u8; SIZE],
    ) {
        let (reference, out) = (&self.0.as_chunks().0[..count], &mut self.1.as_chunks_mut().0[..count]);
        for i in 0..count {
            out[i] = restored(reference[i], difference(i));
        }
    }
}

/// In place: the output overwrites the reference.
impl Target for &mut [u8] {
    #[inline(always)]
    fn each<const SIZE: usize>(
        self,
        count: usize,
        difference: impl Fn(usize) -> [u8; SIZE],
        restored: impl Fn([u8; SIZE], [u8; SIZE]) -> [u8; SIZE],
    ) {
        let elements = &mut self.as_chunks_mut().0[..count];
        for i in 0..count {
            elements[i] = restored(elements[i], difference(i));
        }
    }
}

macro_rules! word {
    ($unsigned:ident, $signed:ident, $size:literal, $join:ident, $restore:ident) => {
        impl Word for $unsigned {
            #[inline(always)]
            fn difference(rule: Rule, current: &[u8], reference: &[u8], out: &mut [u8]) {
                const TOP: u32 = $unsigned::BITS - 1;
                // Sign-magnitude to ordered integers: negative magnitudes count downwards.
                let ordered =
                    |x: $unsigned| x ^ ((x as $signed >> TOP) as $unsigned & $signed::MAX as $unsigned);
                let zigzag = |d: $unsigned| d << 1 ^ (d as $signed >> TOP) as $unsigned;
                let pairs = current.as_chunks::<$size>().0.iter().zip(reference.as_chunks::<$size>().0);
                let out = out.as_chunks_mut::<$size>().0.iter_mut();
                let load = |bytes: &[u8; $size]| $unsigned::from_le_bytes(*bytes);
                match rule {
                    Rule::Xor => {
                        for ((c, r), out) in pairs.zip(out) {
                            *out = (load(c) ^ load(r)).to_le_bytes();
                        }
                    }
                    Rule::ZigZag => {
                        for ((c, r), out) in pairs.zip(out) {
                            *out = zigzag(load(c).wrapping_sub(load(r))).to_le_bytes();
                        }
                    }
                    Rule::Ulp => {
                        for ((c, r), out) in pairs.zip(out) {
                            let distance = ordered(load(c)).wrapping_sub(ordered(load(r)));
                            *out = zigzag(distance).to_le_bytes();
                        }
                    }
                }
            }

            #[inline(always)]
            fn restore(rule: Rule, differences: &[u8], to: impl Target) {
                let differences = differences.as_chunks().0;
                $restore(rule, differences.len(), |i| $unsigned::from_le_bytes(differences[i]), to);
            }

            #[inline(always)]
            fn negate_zigzag(differences: &mut [u8]) {
                for difference in differences.as_chunks_mut::<$size>().0 {
                    let z = $unsigned::from_le_bytes(*difference);
                    let negated = (z >> 1 ^ (z & 1).wrapping_neg()).wrapping_neg();
                    let sign = (negated as $signed >> ($unsigned::BITS - 1)) as $unsigned;
                    *difference = (negated << 1 ^ sign).to_le_bytes();
                }
            }

            #[inline(always)]
            fn restore_planes<const P: usize>(rule: Rule, planes: [&[u8]; P], to: impl Target) {
                let count = planes[0].len();
                // The common length lets the compiler drop bounds checks.
                let planes = planes.map(|plane| &plane[..count]);
                $restore(rule, count, |i| $join(planes, i), to);
            }

            #[inline(always)]
            fn take_plane(elements: &[u8], byte: usize, plane: &mut [u8]) {
                for (element, out) in elements.as_chunks::<$size>().0.iter().zip(plane) {
                    *out = ($unsigned::from_le_bytes(*element) >> (8 * byte)) as u8;
                }
            }

            #[inline(always)]
            fn set_plane(plane: &[u8], byte: usize, elements: &mut [u8]) {
                for (element, &value) in elements.as_chunks_mut::<$size>().0.iter_mut().zip(plane) {
                    *element = ($unsigned::from(value) << (8 * byte)).to_le_bytes();
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
            fn join_planes<const P: usize>(planes: [&[u8]; P], elements: &mut [u8]) {
                let elements = elements.as_chunks_mut::<$size>().0;
                let planes = planes.map(|plane| &plane[..elements.len()]);
                for (i, element) in elements.iter_mut().enumerate() {
                    *element = $join(planes, i).to_le_bytes();
                }
            }
        }

        /// The lowest bytes of element `i` from `planes`, which have one.
        #[inline(always)]
        fn $join<const P: usize>(planes: [&[u8]; P], i: usize) -> $unsigned {
            (0..P.min($size)).fold(0, |word, byte| word | $unsigned::from(planes[byte][i]) << (8 * byte))
        }

        /// Restores `count` elements.
        #[inline(always)]
        fn $restore(rule: Rule, count: usize, difference: impl Fn(usize) -> $unsigned, to: impl Target) {
            const TOP: u32 = $unsigned::BITS - 1;
            let ordered = |x: $unsigned| x ^ ((x as $signed >> TOP) as $unsigned & $signed::MAX as $unsigned);
            let unzigzag = |z: $unsigned| z >> 1 ^ (z & 1).wrapping_neg();
            let word = |bytes: [u8; $size]| $unsigned::from_le_bytes(bytes);
            let difference = |i| difference(i).to_le_bytes();
            match rule {
                Rule::Xor => to.each(count, difference, |r, z| (word(r) ^ word(z)).to_le_bytes()),
                Rule::ZigZag => {
                    to.each(count, difference, |r, z| word(r).wrapping_add(unzigzag(word(z))).to_le_bytes())
                }
                Rule::Ulp => to.each(count, difference, |r, z| {
                    ordered(ordered(word(r)).wrapping_add(unzigzag(word(z)))).to_le_bytes()
                }),
            }
        }
    };
}

word!(u8, i8, 1, join_u8, restore_u8);
word!(u16, i16, 2, join_u16, restore_u16);
word!(u32, i32, 4, join_u32, restore_u32);
word!(u64, i64, 8, join_u64, restore_u64);

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

dispatch_wide! {
    /// Writes the differences from `reference` to `current`, elements of `size` bytes, to `out`.
    pub(crate) fn difference(rule: Rule, size: usize, current: &[u8], reference: &[u8], out: &mut [u8])
        = difference_with
}

dispatch_wide! {
    /// The inverse of [`difference`].
    pub(crate) fn restore(rule: Rule, size: usize, reference: &[u8], differences: &[u8], out: &mut [u8])
        = restore_with
}

dispatch_wide! {
    /// As [`restore`], for references that are written over.
    pub(crate) fn restore_in_place(rule: Rule, size: usize, differences: &[u8], elements: &mut [u8])
        = restore_in_place_with
}

/// Inverts differences: restoring by them leads from the restored elements back to the references.
pub(crate) fn negate(rule: Rule, size: usize, differences: &mut [u8]) {
    if rule != Rule::Xor {
        for_size!(size, W, <W as Word>::negate_zigzag(differences));
    }
}

/// Whether [`restore_planes`] supports this number of planes of elements of `size` bytes.
pub(crate) fn restores_planes(size: usize, planes: usize) -> bool {
    matches!((size, planes), (2, 1 | 2) | (4, 2..=4))
}

dispatch_wide! {
    /// As [`restore`], for differences whose lowest bytes are `planes` and whose other bytes are
    /// zero. See [`restores_planes`].
    pub(crate) fn restore_planes(rule: Rule, size: usize, reference: &[u8], planes: &[&[u8]], out: &mut [u8])
        = restore_planes_with
}

/// The fused form of [`restore_planes`], or of [`restore_planes_in_place`] without a reference:
/// restores, hashes and stores a prefix of whole blocks in one pass, with non-temporal stores if
/// there is a partial line. Returns the number of bytes: 0 where [`restores_planes`] is false and
/// where the pending bytes are no multiple of eight.
pub(crate) fn restore_hashed(
    (rule, size): (Rule, usize),
    reference: Option<&[u8]>,
    planes: &[&[u8]],
    sums: &mut Sums,
    out: &mut [u8],
    pending: Option<&mut PartialLine>,
) -> usize {
    match &pending {
        Some(pending) if !pending.len.is_multiple_of(8) => 0,
        _ => restore_fused(rule, size, reference, planes, sums, out, pending),
    }
}

dispatch_wide! {
    fn restore_fused(
        rule: Rule,
        size: usize,
        reference: Option<&[u8]>,
        planes: &[&[u8]],
        sums: &mut Sums,
        out: &mut [u8],
        pending: Option<&mut PartialLine>,
    ) -> usize = restore_fused_with
}

#[expect(clippy::too_many_arguments, reason = "the arguments of one kernel, forwarded by a macro")]
#[inline(always)]
fn restore_fused_with(
    isa: impl Vector,
    rule: Rule,
    size: usize,
    reference: Option<&[u8]>,
    planes: &[&[u8]],
    sums: &mut Sums,
    out: &mut [u8],
    pending: Option<&mut PartialLine>,
) -> usize {
    use fused_restore::restore_blocks;
    match (size, planes) {
        (2, &[a]) => restore_blocks::<u16, 1>(isa, rule, reference, [a], sums, out, pending),
        (2, &[a, b]) => restore_blocks::<u16, 2>(isa, rule, reference, [a, b], sums, out, pending),
        (4, &[a, b]) => restore_blocks::<u32, 2>(isa, rule, reference, [a, b], sums, out, pending),
        (4, &[a, b, c]) => restore_blocks::<u32, 3>(isa, rule, reference, [a, b, c], sums, out, pending),
        (4, &[a, b, c, d]) => {
            restore_blocks::<u32, 4>(isa, rule, reference, [a, b, c, d], sums, out, pending)
        }
        _ => 0,
    }
}

dispatch_wide! {
    /// As [`restore_planes`], for references that are written over.
    pub(crate) fn restore_planes_in_place(rule: Rule, size: usize, planes: &[&[u8]], elements: &mut [u8])
        = restore_planes_in_place_with
}

dispatch_wide! {
    /// Copies byte `byte` of every element to `plane`.
    pub(crate) fn take_plane(size: usize, elements: &[u8], byte: usize, plane: &mut [u8]) = take_plane_with
}

dispatch! {
    /// Sets byte `byte` of every element from `plane`, and all others to zero.
    pub(crate) fn set_plane(size: usize, plane: &[u8], byte: usize, elements: &mut [u8]) = set_plane_with
}

dispatch! {
    /// Sets byte `byte` of every element, zero before, from `plane`.
    pub(crate) fn put_plane(size: usize, plane: &[u8], byte: usize, elements: &mut [u8]) = put_plane_with
}

dispatch_wide! {
    /// Sets the lowest bytes of every element from `planes`, the others to zero.
    pub(crate) fn join_planes(size: usize, planes: &[&[u8]], elements: &mut [u8]) = join_planes_with
}

#[inline(always)]
fn join_planes_with(_: impl Isa, size: usize, planes: &[&[u8]], elements: &mut [u8]) {
    match *planes {
        [] => elements.fill(0),
        [a] => for_size!(size, W, <W as Word>::join_planes([a], elements)),
        [a, b] => for_size!(size, W, <W as Word>::join_planes([a, b], elements)),
        [a, b, c] => for_size!(size, W, <W as Word>::join_planes([a, b, c], elements)),
        [a, b, c, d] => for_size!(size, W, <W as Word>::join_planes([a, b, c, d], elements)),
        [a, b, c, d, ..] => {
            for_size!(size, W, <W as Word>::join_planes([a, b, c, d], elements));
            for (byte, plane) in planes.iter().enumerate().skip(4) {
                for_size!(size, W, <W as Word>::put_plane(plane, byte, elements));
            }
        }
    }
}

#[inline(always)]
fn difference_with(_: impl Isa, rule: Rule, size: usize, current: &[u8], reference: &[u8], out: &mut [u8]) {
    for_size!(size, W, <W as Word>::difference(rule, current, reference, out));
}

#[inline(always)]
fn restore_with(_: impl Isa, rule: Rule, size: usize, reference: &[u8], differences: &[u8], out: &mut [u8]) {
    for_size!(size, W, <W as Word>::restore(rule, differences, (reference, out)));
}

#[inline(always)]
fn restore_in_place_with(_: impl Isa, rule: Rule, size: usize, differences: &[u8], elements: &mut [u8]) {
    for_size!(size, W, <W as Word>::restore(rule, differences, elements));
}

#[inline(always)]
fn restore_planes_with(
    _: impl Isa,
    rule: Rule,
    size: usize,
    reference: &[u8],
    planes: &[&[u8]],
    out: &mut [u8],
) {
    restore_planes_to(rule, size, planes, (reference, out));
}

#[inline(always)]
fn restore_planes_in_place_with(_: impl Isa, rule: Rule, size: usize, planes: &[&[u8]], elements: &mut [u8]) {
    restore_planes_to(rule, size, planes, elements);
}

#[inline(always)]
fn restore_planes_to(rule: Rule, size: usize, planes: &[&[u8]], to: impl Target) {
    match (size, planes) {
        (2, &[a]) => u16::restore_planes(rule, [a], to),
        (2, &[a, b]) => u16::restore_planes(rule, [a, b], to),
        (4, &[a, b]) => u32::restore_planes(rule, [a, b], to),
        (4, &[a, b, c]) => u32::restore_planes(rule, [a, b, c], to),
        (4, &[a, b, c, d]) => u32::restore_planes(rule, [a, b, c, d], to),
        _ => unreachable!("{} planes of elements of {size} bytes", planes.len()),
    }
}

#[inline(always)]
fn set_plane_with(_: impl Isa, size: usize, plane: &[u8], byte: usize, elements: &mut [u8]) {
    for_size!(size, W, <W as Word>::set_plane(plane, byte, elements));
}

#[inline(always)]
fn take_plane_with(_: impl Isa, size: usize, elements: &[u8], byte: usize, plane: &mut [u8]) {
    for_size!(size, W, <W as Word>::take_plane(elements, byte, plane));
}

#[inline(always)]
fn put_plane_with(_: impl Isa, size: usize, plane: &[u8], byte: usize, elements: &mut [u8]) {
    for_size!(size, W, <W as Word>::put_plane(plane, byte, elements));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::mask_compact::SKIP;
    use crate::kernel::xxh3;
    use crate::simd::Portable;

    fn noise(len: usize, seed: u32) -> Vec<u8> {
        let mut state = seed;
        let step = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..len).map(step).collect()
    }

    const SIZES: [usize; 4] = [1, 2, 4, 8];
    const RULES: [Rule; 3] = [Rule::Xor, Rule::ZigZag, Rule::Ulp];

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
                Rule::ZigZag => signed(c) - signed(r),
                Rule::Ulp => place(c) - place(r),
            };
            let wrapped = signed(distance as u64 & mask);
            let zigzag = if wrapped < 0 { -2 * wrapped - 1 } else { 2 * wrapped };
            out.extend(&(zigzag as u64).to_le_bytes()[..size]);
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
                    restored.copy_from_slice(&reference);
                    restore_in_place(rule, size, &fast, &mut restored);
                    assert_eq!(restored, current, "{rule:?} {size}");
                    restored.copy_from_slice(&reference);
                    restore_in_place_with(Portable, rule, size, &fast, &mut restored);
                    assert_eq!(restored, current, "{rule:?} {size}");
                }
            }
        }
    }

    #[test]
    fn planes_restore_what_their_elements_do() {
        let mut tried = 0;
        for size in SIZES {
            for planes in (1..=size).filter(|&planes| restores_planes(size, planes)) {
                for count in [0, 1, 7, 64, 300] {
                    let reference = noise(size * count, 2);
                    let planes: Vec<Vec<u8>> = (0..planes).map(|i| noise(count, 3 + i as u32)).collect();
                    let planes: Vec<&[u8]> = planes.iter().map(Vec::as_slice).collect();
                    let mut differences = vec![0xee; size * count];
                    join_planes(size, &planes, &mut differences);
                    for rule in RULES {
                        let mut expected = vec![0; size * count];
                        restore(rule, size, &reference, &differences, &mut expected);
                        let mut out = [(); 4].map(|()| reference.clone());
                        let [wide, portable, wide_in_place, portable_in_place] = &mut out;
                        restore_planes(rule, size, &reference, &planes, wide);
                        restore_planes_with(Portable, rule, size, &reference, &planes, portable);
                        restore_planes_in_place(rule, size, &planes, wide_in_place);
                        restore_planes_in_place_with(Portable, rule, size, &planes, portable_in_place);
                        assert!(out.iter().all(|out| *out == expected), "{rule:?} {size}");
                        tried += 1;
                    }
                }
            }
        }
        assert_eq!(tried, 5 * 5 * RULES.len());
    }

    #[test]
    fn neighbouring_floats_differ_by_one_step() {
        let step = |from: f32, to: f32| {
            let mut out = [0; 4];
            difference(Rule::Ulp, 4, &to.to_le_bytes(), &from.to_le_bytes(), &mut out);
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
            for byte in 0..size {
                let found: Vec<u32> = (0..count)
                    .filter(|i| elements[i * size + byte..][..size - byte].iter().any(|&b| b != 0))
                    .map(|i| i as u32)
                    .collect();

                let low: Vec<Vec<u8>> = (0..byte)
                    .map(|low| {
                        let mut plane = vec![0; count];
                        take_plane(size, &elements, low, &mut plane);
                        plane
                    })
                    .collect();
                let low: Vec<&[u8]> = low.iter().map(Vec::as_slice).collect();
                let mut joined = vec![0xee; elements.len()];
                join_planes(size, &low, &mut joined);
                let mut portable = vec![0xee; elements.len()];
                join_planes_with(Portable, size, &low, &mut portable);
                let mut rebuilt = vec![0; elements.len()];
                for low in 0..byte {
                    let mut plane = vec![0; count];
                    take_plane(size, &elements, low, &mut plane);
                    match low {
                        0 => set_plane(size, &plane, 0, &mut rebuilt),
                        _ => put_plane(size, &plane, low, &mut rebuilt),
                    }
                }
                assert_eq!((&joined, &portable), (&rebuilt, &rebuilt));
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
                let mut list = GapScatter::new(&gaps, &planes);
                let before = rebuilt.clone();
                for part in rebuilt.chunks_mut(size * 64) {
                    list.part(size, byte, part).unwrap();
                }
                assert!(list.is_done());
                assert_eq!(rebuilt, elements, "{size} {byte}");
                if byte == 0 {
                    for rule in RULES {
                        let reference = noise(elements.len(), 11);
                        let mut expected = reference.clone();
                        restore_in_place(rule, size, &elements, &mut expected);
                        let mut list = GapScatter::new(&gaps, &planes);
                        assert!(list.lists_elements(size));
                        let (mut restored, mut places) = (reference, Vec::new());
                        for (part, start) in restored.chunks_mut(size * 64).zip((0..).step_by(64)) {
                            let before = places.len();
                            list.restore(rule, size, part, &mut places).unwrap();
                            places[before..].iter_mut().for_each(|place| *place += start);
                        }
                        assert_eq!(places, found);
                        assert!(list.is_done());
                        assert_eq!(restored, expected, "{rule:?} {size}");
                    }
                }
                rebuilt = before;
                let mut scatter = |gaps: &[u8]| {
                    let mut list = GapScatter::new(gaps, &planes);
                    list.part(size, byte, &mut rebuilt).filter(|()| list.is_done())
                };
                scatter(&gaps).unwrap();

                gaps.push(SKIP);
                assert!(scatter(&gaps).is_none());
                gaps.push(0);
                assert!(scatter(&gaps).is_none());
                gaps.truncate(1);
                assert!(scatter(&gaps).is_none());
            }
        }
    }

    /// Memory that starts with a line.
    #[repr(align(64))]
    struct Lines([u8; 4096]);

    #[test]
    fn what_is_restored_in_one_step_is_hashed_and_written() {
        let noise = noise(5 * 4096, 9);
        let (reference, bytes) = noise.split_at(4096);
        let cases = [(2, 1), (2, 2), (4, 2), (4, 3), (4, 4)];
        for ((size, count), rule) in cases.into_iter().flat_map(|case| RULES.map(|rule| (case, rule))) {
            let planes: Vec<&[u8]> = (0..count).map(|i| &bytes[i * 4096..][..4096 / size]).collect();
            let mut expected = vec![0; 4096];
            restore_planes(rule, size, reference, &planes, &mut expected);
            let mut expected_sums = [7; 8];
            xxh3::sum_up(&mut expected_sums, &expected);
            // In place; elsewhere; elsewhere with non-temporal stores, behind these numbers of
            // pending bytes.
            for waits in [None, Some(None), Some(Some(0)), Some(Some(8)), Some(Some(56))] {
                let (mut out, mut sums) = (Lines([0; 4096]), [7; 8]);
                let mut pending = PartialLine { line: [0xa5; 64], len: waits.flatten().unwrap_or(0) };
                let to = waits.flatten().map(|_| &mut pending);
                if waits.is_none() {
                    out.0.copy_from_slice(reference);
                }
                let other = waits.map(|_| reference);
                let made = restore_hashed((rule, size), other, &planes, &mut sums, &mut out.0, to);
                assert_eq!((made, sums), (4096, expected_sums), "{rule:?} {size} {count} {waits:?}");
                let late = pending.len;
                assert!(out.0[..late].iter().all(|&byte| byte == 0xa5));
                assert_eq!(out.0[late..], expected[..4096 - late], "{rule:?} {size} {count} {waits:?}");
                assert_eq!(pending.line[64 - late..], expected[4096 - late..]);
            }
        }
    }
}
