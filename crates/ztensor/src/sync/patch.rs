//! Differences of two buffers as absolute bytes at positions.
//!
//! Such a patch gives the same result however often it is applied, and whatever part of it was
//! applied before: what a journal needs.

use half::f16;

use crate::base::simd::{self, Kernel};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// Bytes that are compared at once.
const LINE: usize = 64;
/// Runs with fewer unchanged bytes between them become one: a run costs about that many.
const JOINED: usize = 8;

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

/// Calls `each` with ranges that cover all bytes in which two buffers of equal length differ, in
/// rising order. Unchanged bytes between two differences that are close belong to a range too.
pub(crate) fn for_each_run(old: &[u8], new: &[u8], mut each: impl FnMut(std::ops::Range<usize>)) {
    let len = old.len().min(new.len());
    let mut run = 0..0;
    let mut add = |start: usize, end: usize| {
        if run.end > 0 && start < run.end + JOINED {
            run.end = end;
            return;
        }
        if run.end > 0 {
            each(run.clone());
        }
        run = start..end;
    };
    let (old_lines, old_rest) = old[..len].as_chunks::<LINE>();
    let (new_lines, new_rest) = new[..len].as_chunks::<LINE>();
    for (at, (old, new)) in old_lines.iter().zip(new_lines).enumerate() {
        if is_same(old, new) {
            continue;
        }
        let mut mask = differing(old, new);
        while mask != 0 {
            let start = mask.trailing_zeros();
            let end = start + (mask >> start).trailing_ones();
            add(at * LINE + start as usize, at * LINE + end as usize);
            mask &= u64::MAX.checked_shl(end).unwrap_or(0);
        }
    }
    let start = old_lines.len() * LINE;
    for (at, (old, new)) in old_rest.iter().zip(new_rest).enumerate() {
        if old != new {
            add(start + at, start + at + 1);
        }
    }
    if run.end > 0 {
        each(run);
    }
}

/// Appends the patch that turns `old` into `new`: for each run the bytes since the last one and its
/// own length, as LEB128 numbers, and its new bytes. Says whether there is any difference.
pub(crate) fn push_runs(out: &mut Vec<u8>, old: &[u8], new: &[u8]) -> bool {
    let before = out.len();
    let mut end = 0;
    for_each_run(old, new, |run| {
        push_run(out, (run.start - end) as u64, new, run.clone());
        end = run.end;
    });
    out.len() > before
}

/// Appends one run of `new`, `gap` bytes behind the last one.
fn push_run(out: &mut Vec<u8>, gap: u64, new: &[u8], run: std::ops::Range<usize>) {
    /// The longest run that is copied as an array: most are shorter, and a copy of a few bytes takes a call.
    const SHORT: usize = 16;
    let short = new[run.start..].first_chunk::<SHORT>().filter(|_| run.len() <= SHORT && gap < 1 << 14);
    let Some(bytes) = short else {
        push_number(out, gap);
        push_number(out, run.len() as u64);
        return out.extend_from_slice(&new[run]);
    };
    let two = usize::from(gap >= 0x80);
    let mut record = [0; 3 + SHORT];
    record[0] = gap as u8 & 0x7f | (two as u8) << 7;
    record[1] = (gap >> 7) as u8; // or overwritten
    record[1 + two] = run.len() as u8;
    record[2 + two..2 + two + SHORT].copy_from_slice(bytes);
    let start = out.len();
    out.extend_from_slice(&record);
    out.truncate(start + 2 + two + run.len());
}

/// A patch of a range that is compared part by part.
#[derive(Default)]
pub(crate) struct Patch {
    /// Where the range begins and ends.
    range: std::ops::Range<u64>,
    /// The end of the last run.
    end: u64,
    runs: Vec<u8>,
}

impl Patch {
    /// Adds the next part of the range, which turns from `old` into `new`.
    pub(crate) fn add(&mut self, old: &[u8], new: &[u8]) {
        let (runs, end, at) = (&mut self.runs, &mut self.end, self.range.end);
        self.range.end += new.len() as u64;
        if std::ptr::eq(old, new) {
            return;
        }
        for_each_run(old, new, |run| {
            let start = at + run.start as u64;
            push_run(runs, start - *end, new, run.clone());
            *end = start + run.len() as u64;
        });
    }

    /// Bytes of the range so far.
    pub(crate) fn span(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Where the range begins, its length and the runs, if there are any; the next range begins at its end.
    pub(crate) fn take<T>(&mut self, take: impl FnOnce(u64, u64, &[u8]) -> Result<T>) -> Result<Option<T>> {
        let taken = match self.runs.is_empty() {
            true => None,
            false => Some(take(self.range.start, self.span(), &self.runs)?),
        };
        self.runs.clear();
        (self.range.start, self.end) = (self.range.end, self.range.end);
        Ok(taken)
    }
}

/// The runs of a patch: position and bytes.
pub(crate) struct Runs<'a> {
    rest: &'a [u8],
    at: usize,
    span: usize,
}

impl<'a> Runs<'a> {
    /// The runs of a patch of a buffer of `span` bytes.
    pub(crate) fn new(patch: &'a [u8], span: usize) -> Runs<'a> {
        Runs { rest: patch, at: 0, span }
    }

    #[inline(always)]
    fn take(&mut self) -> Result<Option<(usize, &'a [u8])>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let broken = || Error::corrupt("sync.journal", "a patch leads out of its range");
        let gap = read_number(&mut self.rest).ok_or_else(broken)?;
        let len = read_number(&mut self.rest).ok_or_else(broken)?;
        let start = usize::try_from(gap).ok().and_then(|gap| self.at.checked_add(gap));
        let start = start.ok_or_else(broken)?;
        let len = usize::try_from(len).map_err(|_| broken())?;
        let end = start.checked_add(len).filter(|end| *end <= self.span).ok_or_else(broken)?;
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or_else(broken)?;
        (self.rest, self.at) = (rest, end);
        Ok(Some((start, bytes)))
    }
}

/// Copies bytes of one length: of one or two, as most runs have, without a call.
#[inline(always)]
pub(crate) fn copy_short(to: &mut [u8], from: &[u8]) {
    match (&mut *to, from) {
        ([to], [from]) => *to = *from,
        ([first, second], [a, b]) => (*first, *second) = (*a, *b),
        _ => to.copy_from_slice(from),
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = Result<(usize, &'a [u8])>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let run = self.take().transpose();
        if matches!(run, Some(Err(_))) {
            self.rest = &[];
        }
        run
    }
}

fn push_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[inline(always)]
fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    match **bytes {
        [byte @ ..0x80, ..] => {
            *bytes = &bytes[1..];
            Some(byte.into())
        }
        [low, high @ 1..0x80, ..] => {
            *bytes = &bytes[2..];
            Some(u64::from(low & 0x7f) | u64::from(high) << 7)
        }
        _ => read_long_number(bytes),
    }
}

fn read_long_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(byte & 0x7F);
        number |= part.checked_shl(shift).filter(|shifted| shifted >> shift == part)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
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

    proptest! {
        #[test]
        fn a_patch_makes_the_new_bytes_of_any_mixture(
            old in prop::collection::vec(any::<u8>(), 0..500),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
            applied in any::<prop::sample::Index>(),
        ) {
            let mut new = old.clone();
            for (at, value) in changes {
                if !new.is_empty() {
                    let at = at.index(new.len());
                    new[at] = value;
                }
            }
            let mut patch = Vec::new();
            prop_assert_eq!(push_runs(&mut patch, &old, &new), old != new);
            let runs: Vec<_> = Runs::new(&patch, old.len()).collect::<Result<_>>().unwrap();
            let mut mixed = old.clone();
            for (start, bytes) in &runs[..applied.index(runs.len() + 1)] {
                mixed[*start..start + bytes.len()].copy_from_slice(bytes);
            }
            for (start, bytes) in &runs {
                mixed[*start..start + bytes.len()].copy_from_slice(bytes);
            }
            prop_assert_eq!(&mixed, &new);
            // The same in parts, of ranges that end anywhere.
            let (mut patch, mut patched) = (Patch::default(), old.clone());
            let mut apply = |start: u64, span: u64, runs: &[u8]| {
                for run in Runs::new(runs, span as usize) {
                    let (at, bytes) = run?;
                    let at = start as usize + at;
                    patched[at..at + bytes.len()].copy_from_slice(bytes);
                }
                Ok(())
            };
            for (old, new) in old.chunks(applied.index(90) + 1).zip(new.chunks(applied.index(90) + 1)) {
                patch.add(old, new);
                if patch.span() > 100 {
                    patch.take(&mut apply).unwrap();
                }
            }
            patch.take(&mut apply).unwrap();
            prop_assert_eq!(&patched, &new);
            let found = change(DType::U8, &old, &new).elements;
            prop_assert_eq!(found, old.iter().zip(&new).filter(|(a, b)| a != b).count() as u64);
        }

        #[test]
        fn no_bytes_lead_out_of_the_range(patch in prop::collection::vec(any::<u8>(), 0..60), span in 0..200usize) {
            for run in Runs::new(&patch, span) {
                let Ok((start, bytes)) = run else { break };
                prop_assert!(start + bytes.len() <= span);
            }
        }
    }

    #[test]
    fn runs_of_any_gap_and_length_come_back() {
        let old: Vec<u8> = (0..200_000u32).map(|at| (at % 251) as u8).collect();
        for gap in [1, 7, 8, 9, 63, 64, 127, 128, 129, 500, (1 << 14) - 1, 1 << 14, 70_000] {
            for len in [1, 2, 3, 15, 16, 17, 64, 200] {
                let mut new = old.clone();
                new.chunks_mut(gap + len)
                    .for_each(|part| part.iter_mut().skip(gap).for_each(|byte| *byte ^= 0x81));
                let mut patch = Vec::new();
                assert!(push_runs(&mut patch, &old, &new));
                let mut made = old.clone();
                for run in Runs::new(&patch, made.len()) {
                    let (start, bytes) = run.unwrap();
                    copy_short(&mut made[start..start + bytes.len()], bytes);
                }
                assert!(made == new, "{len} of {gap}");
            }
        }
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
