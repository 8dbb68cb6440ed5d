//! Differences of two states of a tensor as elements with their new values, window by window.
//!
//! Such a patch gives the same result however often it is applied, and whatever part of it was
//! applied before: what a journal needs.
//!
//! ```text
//! patch of a window:  size | form | positions                          | new values
//!                       1  |   1  | list: two bytes for every element  | `size` bytes for every element
//!                          |      | marks: a bit for every element of the window
//! ```

use half::f16;
use z4ai::delta::ChangedPlaces;

use crate::base::simd::{self, Kernel};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// Bytes that are compared at once.
const LINE: usize = 64;
/// Elements of a window, whose positions take two bytes, and bytes: a second-level cache holds it. (structural)
const WINDOW_ELEMENTS: usize = 1 << 16;
const WINDOW_LEN: usize = 256 << 10;
/// Forms of the positions.
const LIST: u8 = 0;
const MARKS: u8 = 1;

/// Whether two lines are equal: with vector instructions, where comparing slices calls `memcmp` for each.
#[inline(always)]
fn is_same(old: &[u8; LINE], new: &[u8; LINE]) -> bool {
    let words = old.as_chunks::<8>().0.iter().zip(new.as_chunks::<8>().0);
    words.fold(0, |all, (old, new)| all | (u64::from_le_bytes(*old) ^ u64::from_le_bytes(*new))) == 0
}

/// A bit for every byte of a line: whether it differs. Without a branch, since no predictor knows which do.
#[inline(always)]
fn differing(old: &[u8; LINE], new: &[u8; LINE]) -> u64 {
    /// The lowest seven bits of every byte, and the factor that gathers the lowest bits of all bytes in the highest byte.
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let words = old.as_chunks::<8>().0.iter().zip(new.as_chunks::<8>().0);
    words.enumerate().fold(0, |mask, (word, (old, new))| {
        let changed = u64::from_le_bytes(*old) ^ u64::from_le_bytes(*new);
        let highest = (((changed & LOW) + LOW) | changed) & !LOW;
        mask | ((highest >> 7).wrapping_mul(GATHER) >> 56) << (8 * word)
    })
}

/// Finds the elements of `size` bytes that differ: their positions, rising.
struct FindChanged<'a> {
    size: usize,
    old: &'a [u8],
    new: &'a [u8],
    places: &'a mut Vec<u32>,
}

impl Kernel for FindChanged<'_> {
    #[inline(always)]
    fn run(self) {
        let FindChanged { size, old, new, places } = self;
        let (old_lines, old_rest) = old.as_chunks::<LINE>();
        let (new_lines, new_rest) = new.as_chunks::<LINE>();
        // The first byte of every element.
        let firsts = (0..LINE).step_by(size).fold(0u64, |mask, byte| mask | 1 << byte);
        for (line, (old, new)) in old_lines.iter().zip(new_lines).enumerate() {
            if is_same(old, new) {
                continue;
            }
            let mut mask = differing(old, new);
            let mut width = 1;
            while width < size {
                mask |= mask >> width;
                width *= 2;
            }
            mask &= firsts;
            while mask != 0 {
                places.push(((line * LINE + mask.trailing_zeros() as usize) / size) as u32);
                mask &= mask - 1;
            }
        }
        let start = old_lines.len() * LINE / size;
        for (at, (old, new)) in old_rest.chunks(size).zip(new_rest.chunks(size)).enumerate() {
            if old != new {
                places.push((start + at) as u32);
            }
        }
    }
}

/// The patch of one window of a tensor.
pub(crate) struct WindowPatch<'a> {
    /// Where the window begins in the tensor.
    pub(crate) start: u64,
    /// Its bytes.
    pub(crate) len: u32,
    /// The patch, in parts.
    pub(crate) patch: [&'a [u8]; 3],
}

/// Collects the elements of a tensor that change, part by part.
pub(crate) struct Patcher {
    /// Bytes of an element: 1, 2, 4 or 8.
    size: usize,
    /// The window that is being filled, as bytes of the tensor.
    window: std::ops::Range<u64>,
    /// Bytes of the tensor.
    len: u64,
    /// Positions in the window, as list; the elements there.
    positions: Vec<u8>,
    values: Vec<u8>,
    /// Positions as marks, if they are shorter so.
    marks: Vec<u8>,
    /// Places of a part.
    places: Vec<u32>,
}

impl Patcher {
    /// For a tensor of `len` bytes that begins at byte `offset` of its file: windows begin at multiples of their length
    /// there, as far as elements do.
    pub(crate) fn new(size: usize, offset: u64, len: u64) -> Patcher {
        let full = window_len(size);
        let first = match (full - offset % full) / size as u64 * size as u64 {
            0 => full,
            first => first,
        };
        let window = 0..first.min(len);
        Patcher {
            size,
            window,
            len,
            positions: Vec::new(),
            values: Vec::new(),
            marks: Vec::new(),
            places: Vec::new(),
        }
    }

    /// Adds a part: its old and new bytes from byte `at` on, behind the part before it, and the elements that changed if
    /// they are known. `write` gets each window that is complete.
    pub(crate) fn add(
        &mut self,
        at: u64,
        [old, new]: [&[u8]; 2],
        changed: Option<ChangedPlaces<'_>>,
        write: &mut impl FnMut(WindowPatch<'_>) -> Result<()>,
    ) -> Result<()> {
        let size = self.size;
        let mut found = std::mem::take(&mut self.places);
        let places = match changed {
            Some(changed) if changed.size == size => changed.elements,
            _ => {
                found.clear();
                simd::run(FindChanged { size, old, new, places: &mut found });
                &found
            }
        };
        let (mut rest, mut start) = (places, 0);
        let end = at + new.len() as u64;
        while at + start as u64 != end {
            let stop = new.len().min((self.window.end - at) as usize);
            let (now, later) = rest.split_at(rest.partition_point(|&place| (place as usize) * size < stop));
            // The part may begin before the window.
            let first = (at as i64 - self.window.start as i64) / size as i64;
            self.push(now, first, new);
            (rest, start) = (later, stop);
            if at + stop as u64 == self.window.end {
                self.flush(write)?;
            }
        }
        self.places = found;
        Ok(())
    }

    /// Adds elements of `new`, which begins `first` elements behind the start of the window, or before it.
    fn push(&mut self, places: &[u32], first: i64, new: &[u8]) {
        let start = self.positions.len();
        self.positions.resize(start + 2 * places.len(), 0);
        for (to, &place) in self.positions[start..].as_chunks_mut::<2>().0.iter_mut().zip(places) {
            *to = ((first + i64::from(place)) as u16).to_le_bytes();
        }
        match self.size {
            1 => gather::<1>(places, new, &mut self.values),
            2 => gather::<2>(places, new, &mut self.values),
            4 => gather::<4>(places, new, &mut self.values),
            _ => gather::<8>(places, new, &mut self.values),
        }
    }

    /// Hands on the window that is complete, if anything in it changed, and begins the next one.
    fn flush(&mut self, write: &mut impl FnMut(WindowPatch<'_>) -> Result<()>) -> Result<()> {
        let (start, len) = (self.window.start, self.window.end - self.window.start);
        if !self.positions.is_empty() {
            let marks = marks_len(len as usize / self.size);
            let (form, positions) = match self.positions.len() > marks {
                true => {
                    self.marks.clear();
                    self.marks.resize(marks, 0);
                    for position in self.positions.as_chunks::<2>().0 {
                        let position = usize::from(u16::from_le_bytes(*position));
                        self.marks[position / 8] |= 1 << (position % 8);
                    }
                    (MARKS, &self.marks)
                }
                false => (LIST, &self.positions),
            };
            // At most `WINDOW_LEN`.
            write(WindowPatch {
                start,
                len: len as u32,
                patch: [&[self.size as u8, form], positions, &self.values],
            })?;
            self.positions.clear();
            self.values.clear();
        }
        self.window = self.window.end..self.len.min(self.window.end + window_len(self.size));
        Ok(())
    }
}

/// Bytes of a window of elements of `size` bytes.
fn window_len(size: usize) -> u64 {
    (WINDOW_ELEMENTS * size).min(WINDOW_LEN) as u64
}

/// Bytes of a bit for each of `elements`.
fn marks_len(elements: usize) -> usize {
    elements.div_ceil(8)
}

/// Appends the elements at `places`.
fn gather<const SIZE: usize>(places: &[u32], from: &[u8], to: &mut Vec<u8>) {
    let (from, start) = (from.as_chunks::<SIZE>().0, to.len());
    to.resize(start + SIZE * places.len(), 0);
    for (to, &place) in to[start..].as_chunks_mut::<SIZE>().0.iter_mut().zip(places) {
        *to = from[place as usize];
    }
}

/// Changes a window by its patch.
pub(crate) fn apply(patch: &[u8], window: &mut [u8]) -> Result<()> {
    let broken = || Error::corrupt("sync.journal", "a patch does not fit its window");
    let ([size, form], patch) = patch.split_first_chunk::<2>().ok_or_else(broken)?;
    let applied = match size {
        1 => apply_elements::<1>(*form, patch, window),
        2 => apply_elements::<2>(*form, patch, window),
        4 => apply_elements::<4>(*form, patch, window),
        8 => apply_elements::<8>(*form, patch, window),
        _ => None,
    };
    applied.ok_or_else(broken)
}

fn apply_elements<const SIZE: usize>(form: u8, patch: &[u8], window: &mut [u8]) -> Option<()> {
    let (window, []) = window.as_chunks_mut::<SIZE>() else { return None };
    match form {
        LIST => {
            let count = patch.len() / (2 + SIZE);
            let (positions, values) = patch.split_at_checked(2 * count)?;
            let ((positions, []), (values, [])) = (positions.as_chunks::<2>(), values.as_chunks::<SIZE>())
            else {
                return None;
            };
            if positions.len() != values.len() {
                return None;
            }
            for (position, value) in positions.iter().zip(values) {
                *window.get_mut(usize::from(u16::from_le_bytes(*position)))? = *value;
            }
        }
        MARKS => {
            let (marks, values) = patch.split_at_checked(marks_len(window.len()))?;
            let (values, []) = values.as_chunks::<SIZE>() else { return None };
            let mut values = values.iter();
            for (at, mut mark) in marks.iter().copied().enumerate().filter(|(_, mark)| *mark != 0) {
                while mark != 0 {
                    *window.get_mut(at * 8 + mark.trailing_zeros() as usize)? = *values.next()?;
                    mark &= mark - 1;
                }
            }
            if values.len() > 0 {
                return None;
            }
        }
        _ => return None,
    }
    Some(())
}

/// How much of a tensor changed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Change {
    /// Elements with another bit pattern.
    pub(crate) elements: u64,
    /// Sum of the squares of their differences; `None` if they are no floating-point numbers.
    pub(crate) squares: Option<f64>,
}

impl Change {
    /// Adds what changed in another part of the tensor.
    pub(crate) fn add(&mut self, other: Change) {
        self.elements += other.elements;
        self.squares = match (self.squares, other.squares) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
    }
}

/// Compares two states of a tensor element by element.
pub(crate) fn change(dtype: DType, old: &[u8], new: &[u8]) -> Change {
    let mut change = Change::default();
    simd::run(Compare { dtype, old, new, change: &mut change });
    change
}

/// The loop of [`change`].
struct Compare<'a> {
    dtype: DType,
    old: &'a [u8],
    new: &'a [u8],
    change: &'a mut Change,
}

impl Kernel for Compare<'_> {
    #[inline(always)]
    fn run(self) {
        let Compare { dtype, old, new, change } = self;
        let square = |old: f64, new: f64| (new - old) * (new - old);
        *change = match dtype {
            DType::BF16 => compare_bf16(old, new),
            DType::F16 => compare(old, new, |old, new| {
                square(f16::from_le_bytes(old).to_f64(), f16::from_le_bytes(new).to_f64())
            }),
            DType::F32 => compare(old, new, |old, new| {
                square(f32::from_le_bytes(old).into(), f32::from_le_bytes(new).into())
            }),
            DType::F64 => {
                compare(old, new, |old, new| square(f64::from_le_bytes(old), f64::from_le_bytes(new)))
            }
            _ => {
                let change = match dtype.size() {
                    Some(2) => compare::<2>(old, new, |_, _| 0.0),
                    Some(4) => compare::<4>(old, new, |_, _| 0.0),
                    Some(8) => compare::<8>(old, new, |_, _| 0.0),
                    _ => compare::<1>(old, new, |_, _| 0.0),
                };
                Change { squares: None, ..change }
            }
        };
    }
}

/// As [`compare`], for bf16: differences are taken as `f32`, in which those of close values are exact.
#[inline(always)]
fn compare_bf16(old: &[u8], new: &[u8]) -> Change {
    const COUNT: usize = LINE / 2;
    // Widened by hand, where `half` calls a function per element.
    let wide = |bits: u16| f32::from_bits(u32::from(bits) << 16);
    let (mut elements, mut sums) = (0, [0.0; LANES]);
    let (old_lines, old_rest) = old.as_chunks::<LINE>();
    let (new_lines, new_rest) = new.as_chunks::<LINE>();
    for (old, new) in old_lines.iter().zip(new_lines).filter(|(old, new)| !is_same(old, new)) {
        let [old, new] = [old, new].map(|line| -> [u16; COUNT] {
            std::array::from_fn(|i| u16::from_le_bytes([line[2 * i], line[2 * i + 1]]))
        });
        // Without a branch: which elements of a line changed cannot be predicted.
        elements += u64::from((0..COUNT).map(|i| u16::from(old[i] != new[i])).sum::<u16>());
        let differences: [f32; COUNT] = std::array::from_fn(|i| {
            let differs = u32::from(old[i] != new[i]).wrapping_neg();
            f32::from_bits((wide(new[i]) - wide(old[i])).to_bits() & differs)
        });
        for group in differences.as_chunks::<LANES>().0 {
            for (sum, difference) in sums.iter_mut().zip(group) {
                *sum += f64::from(*difference) * f64::from(*difference);
            }
        }
    }
    for (old, new) in old_rest.as_chunks::<2>().0.iter().zip(new_rest.as_chunks::<2>().0) {
        if old != new {
            elements += 1;
            let difference = wide(u16::from_le_bytes(*new)) - wide(u16::from_le_bytes(*old));
            sums[0] += f64::from(difference) * f64::from(difference);
        }
    }
    Change { elements, squares: Some(sums.iter().sum()) }
}

/// Sums that are independent of each other, for vector instructions. (structural)
const LANES: usize = 8;

/// Counts elements of `N` bytes that differ, and adds up `square` of them.
#[inline(always)]
fn compare<const N: usize>(old: &[u8], new: &[u8], square: impl Fn([u8; N], [u8; N]) -> f64) -> Change {
    let (mut elements, mut sums) = (0, [0.0; LANES]);
    let (old_lines, old_rest) = old.as_chunks::<LINE>();
    let (new_lines, new_rest) = new.as_chunks::<LINE>();
    for (old, new) in old_lines.iter().zip(new_lines).filter(|(old, new)| !is_same(old, new)) {
        let groups = old.as_chunks::<N>().0.as_chunks::<LANES>().0.iter();
        for (old, new) in groups.zip(new.as_chunks::<N>().0.as_chunks::<LANES>().0) {
            for lane in 0..LANES {
                // Without a branch: which elements of a line changed cannot be predicted.
                let differs = old[lane] != new[lane];
                elements += u64::from(differs);
                sums[lane] += if differs { square(old[lane], new[lane]) } else { 0.0 };
            }
        }
    }
    for (old, new) in old_rest.as_chunks::<N>().0.iter().zip(new_rest.as_chunks::<N>().0) {
        if old != new {
            elements += 1;
            sums[0] += square(*old, *new);
        }
    }
    Change { elements, squares: Some(sums.iter().sum()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The patches of a tensor whose parts have `step` bytes.
    fn patches(size: usize, offset: u64, both: [&[u8]; 2], step: usize) -> Vec<(usize, usize, Vec<u8>)> {
        let (mut made, len) = (Vec::new(), both[1].len() as u64);
        let mut patcher = Patcher::new(size, offset, len);
        let mut write = |window: WindowPatch<'_>| {
            made.push((window.start as usize, window.len as usize, window.patch.concat()));
            Ok(())
        };
        let mut at = 0;
        for (old, new) in both[0].chunks(step).zip(both[1].chunks(step)) {
            patcher.add(at, [old, new], None, &mut write).unwrap();
            at += new.len() as u64;
        }
        made
    }

    proptest! {
        // Each has some hundred thousand elements.
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_patch_makes_the_new_bytes_of_any_mixture(
            (size, elements) in (prop::sample::select(vec![1usize, 2, 4, 8]), 0..300_000usize),
            offset in 0..600_000u64,
            share in prop::sample::select(vec![1.0f64, 0.3, 0.01, 0.000_01]),
            step in 1..2000usize,
            seed in any::<u64>(),
        ) {
            let mut state = seed | 1;
            let mut random = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state >> 33
            };
            let len = elements * size;
            let old: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
            let mut new = old.clone();
            let every = (1.0 / share) as u64;
            for element in new.chunks_mut(size) {
                if random() % every == 0 {
                    element[random() as usize % size] ^= 1 + (random() % 255) as u8;
                }
            }
            let made = patches(size, offset, [&old, &new], step * size);
            prop_assert_eq!(made.is_empty(), old == new);
            // Windows that were changed in part, and all of them twice.
            let mut mixed = old.clone();
            let done = random() as usize % (len + 1);
            mixed[..done].copy_from_slice(&new[..done]);
            for (start, len, patch) in made.iter().chain(&made) {
                apply(patch, &mut mixed[*start..*start + *len]).unwrap();
            }
            prop_assert!(mixed == new);
            // Elements that are known give the same patches.
            let places: Vec<u32> =
                (0..elements).filter(|i| old[i * size..][..size] != new[i * size..][..size]).map(|i| i as u32).collect();
            let mut known = Vec::new();
            let mut patcher = Patcher::new(size, offset, len as u64);
            let changed = Some(ChangedPlaces { size, elements: &places });
            patcher.add(0, [&old, &new], changed, &mut |window: WindowPatch<'_>| {
                known.push((window.start as usize, window.len as usize, window.patch.concat()));
                Ok(())
            }).unwrap();
            prop_assert!(known == made);
            for (start, len, patch) in &made {
                prop_assert!(patch.len() <= 2 + len / size / 8 + 1 + len);
                let full = window_len(size) as usize;
                let (offset, start) = (offset as usize, *start);
                let aligned = start == 0 || !offset.is_multiple_of(size) || (offset + start).is_multiple_of(full);
                prop_assert!(*len <= full && aligned);
            }
            let found = change(DType::U8, &old, &new).elements;
            prop_assert_eq!(found, old.iter().zip(&new).filter(|(a, b)| a != b).count() as u64);
        }

        #[test]
        fn no_bytes_lead_out_of_the_window(patch in prop::collection::vec(any::<u8>(), 0..60), len in 0..200usize, size in 0..9u8, form in 0..3u8) {
            let mut window = vec![0; len];
            let _ = apply(&patch, &mut window);
            let _ = apply(&[&[size, form], &patch[..]].concat(), &mut window);
        }
    }

    #[test]
    fn a_patch_that_does_not_fit_is_refused() {
        let fits = |patch: &[u8], len: usize| apply(patch, &mut vec![0; len]).is_ok();
        assert!(fits(&[2, LIST, 1, 0, 7, 7], 4));
        assert!(!fits(&[2, LIST, 2, 0, 7, 7], 4), "behind the window");
        assert!(!fits(&[2, LIST, 1, 0, 7], 4), "half a value");
        assert!(!fits(&[2, LIST, 1, 0, 7, 7], 5), "half an element");
        assert!(!fits(&[3, LIST], 3), "elements of three bytes");
        assert!(!fits(&[2, 2, 1, 0, 7, 7], 4), "an unknown form");
        assert!(!fits(&[2], 4), "no form");
        assert!(fits(&[2, MARKS, 0b10, 7, 7], 4));
        assert!(!fits(&[2, MARKS, 0b100, 7, 7], 4), "a mark behind the window");
        assert!(!fits(&[2, MARKS, 0b10, 7, 7, 8, 8], 4), "a value without a mark");
        assert!(!fits(&[2, MARKS, 0b11, 7, 7], 4), "a mark without a value");
    }

    #[test]
    fn masks_have_the_bytes_that_differ() {
        let old: [u8; LINE] = std::array::from_fn(|at| (at * 37) as u8);
        for bits in [0u64, 1, 1 << 63, u64::MAX, 0x8001_0180_0f00_f010, 0x5555_aaaa_0102_0480] {
            for change in [1u8, 0x80, 0x7f, 0xff] {
                let new = std::array::from_fn(|at| old[at] ^ if bits >> at & 1 == 1 { change } else { 0 });
                assert_eq!(differing(&old, &new), bits);
            }
        }
    }

    #[test]
    fn norms_are_of_the_change() {
        let old: Vec<u8> = [1.0f32, 2.0, 3.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let new: Vec<u8> = [1.0f32, 5.0, -1.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(change(DType::F32, &old, &new), Change { elements: 2, squares: Some(25.0) });
        assert_eq!(change(DType::I32, &old, &new).squares, None);
        assert_eq!(change(DType::BF16, &old, &old).elements, 0);
    }
}
