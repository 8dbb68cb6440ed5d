use std::ops::Range;

use smallvec::SmallVec;

use crate::base::parallel;
use crate::catalog::{Decode, Extent, Shape, Storage, StridedView, elements};
use crate::error::{Error, Result};
use crate::source::{Sources, check_range};

/// Rows that are gathered together when a row's elements lie far apart: a cache
/// line fetched for one row then serves its neighbours too. (case: `constants.py`, `fortran`:
/// halved or doubled the same, 1 and 960 take 1.6 and 1.7 times as long)
const TILE: usize = 32;

/// A row-major tensor whose elements lie in `inner` at regular steps: a
/// Fortran-ordered array, or a view such as a transpose or an expansion.
#[derive(Debug)]
pub(crate) struct Strided {
    inner: Storage,
    /// Bytes per element.
    item: usize,
    /// Element of `inner` that the first element of the tensor is.
    offset: u64,
    /// Elements of `inner` from `offset` up to behind the last one used.
    span: u64,
    /// The view with dimensions of one element dropped and neighbours that
    /// are contiguous merged: (size, stride in elements), outermost first.
    steps: SmallVec<[(u64, u64); 4]>,
    /// The shape and the strides that it was made with.
    shape: Shape,
    strides: Shape,
}

/// The elements of `inner` (which decodes to `inner_len` bytes) that a view with
/// this offset, shape and strides (all in elements of `item` bytes) picks, in
/// row-major order. A contiguous part of a plain extent stays one.
pub(crate) fn strided(
    inner: Storage,
    inner_len: u64,
    item: usize,
    offset: u64,
    shape: &[u64],
    strides: &[u64],
) -> Result<Storage> {
    let outside = || {
        Error::corrupt(
            "strided.range",
            format!(
                "a view of shape {shape:?} with strides {strides:?} from element {offset} on, \
                 {item} bytes each, reaches outside its {inner_len} bytes"
            ),
        )
    };
    if shape.len() != strides.len() || item == 0 {
        return Err(Error::corrupt(
            "strided.rank",
            format!("{} sizes and {} strides describe no tensor", shape.len(), strides.len()),
        ));
    }
    let count = elements(shape).ok_or_else(outside)?;
    // Elements of `inner` from the first to behind the last one used.
    let span = match count {
        0 => 0,
        _ => shape
            .iter()
            .zip(strides)
            .try_fold(0u64, |last, (size, stride)| last.checked_add((size - 1).checked_mul(*stride)?))
            .and_then(|last| last.checked_add(1))
            .ok_or_else(outside)?,
    };
    let in_bytes = |elements: u64| elements.checked_mul(item as u64);
    let end = offset.checked_add(span).and_then(in_bytes).filter(|end| *end <= inner_len);
    let (Some(_), Some(len)) = (end, in_bytes(count)) else {
        return Err(outside());
    };
    let steps = merge(shape, strides);
    let contiguous = count == 0 || matches!(steps[..], [] | [(_, 1)]);
    match inner {
        Storage::Plain(extent) if contiguous => {
            let start = offset * item as u64;
            check_range(extent.len, start, len)?;
            Ok(Storage::Plain(Extent { source: extent.source, offset: extent.offset + start, len }))
        }
        inner if contiguous && offset == 0 && len == inner_len => Ok(inner),
        inner => {
            let (shape, strides) = (shape.into(), strides.into());
            let view = Strided { inner, item, offset, span, steps, shape, strides };
            Ok(Storage::Encoded(std::sync::Arc::new(view)))
        }
    }
}

/// The strides, in elements, of a Fortran-ordered array: the first index runs fastest.
pub(crate) fn fortran_strides(shape: &[u64]) -> Shape {
    let mut step = 1u64;
    // Sizes that overflow are refused where they are multiplied.
    shape
        .iter()
        .map(|size| {
            let stride = step;
            step = step.saturating_mul(*size);
            stride
        })
        .collect()
}

/// Drops dimensions of one element and merges those that continue each other.
fn merge(shape: &[u64], strides: &[u64]) -> SmallVec<[(u64, u64); 4]> {
    let mut steps: SmallVec<[(u64, u64); 4]> = SmallVec::new();
    for (&size, &stride) in shape.iter().zip(strides).filter(|(size, _)| **size != 1) {
        match steps.last_mut() {
            Some((outer, step)) if stride.checked_mul(size) == Some(*step) => {
                *outer *= size; // both divide the element count, which fits
                *step = stride;
            }
            _ => steps.push((size, stride)),
        }
    }
    steps
}

impl Decode for Strided {
    fn encoding(&self) -> &str {
        match &self.inner {
            Storage::Encoded(decoder) => decoder.encoding(),
            _ => "strided",
        }
    }

    fn stored_len(&self) -> u64 {
        match &self.inner {
            Storage::Encoded(decoder) => decoder.stored_len(),
            _ => self.span * self.item as u64,
        }
    }

    fn extent(&self) -> Option<Extent> {
        self.inner.extent()
    }

    fn work(&self, range: &Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let item = self.item as u64;
        let needed = self.span_of(range.start / item, range.end.div_ceil(item));
        let needed = needed.start.saturating_mul(item)..needed.end.saturating_mul(item);
        self.inner.work(&needed).max(range.end - range.start)
    }

    fn strided_view(&self, shape: &[u64], item: usize) -> Option<StridedView> {
        let same = *shape == *self.shape && item == self.item;
        let (Storage::Plain(extent), true) = (&self.inner, same) else { return None };
        let item = self.item as u64;
        let extent = Extent { offset: extent.offset + self.offset * item, len: self.span * item, ..*extent };
        let strides = self.strides.clone();
        Some(StridedView { extent, item: self.item, strides, conjugate: false, negate: false })
    }

    fn decode(&self, sources: &Sources, range: Range<u64>, out: &mut [u8], threads: usize) -> Result<()> {
        let item = self.item as u64;
        if range.is_empty() {
            return Ok(());
        }
        if !range.start.is_multiple_of(item) || !range.end.is_multiple_of(item) {
            // A range that cuts an element: decode the elements it touches.
            let start = range.start / item * item;
            let mut whole = crate::source::zeroed(range.end.next_multiple_of(item) - start)?;
            self.decode(sources, start..range.end.next_multiple_of(item), &mut whole, threads)?;
            out.copy_from_slice(&whole[(range.start - start) as usize..][..out.len()]);
            return Ok(());
        }
        let first = range.start / item;
        let needed = self.span_of(first, range.end / item);
        let (start, len) = (needed.start * item, (needed.end - needed.start) * item);
        let read;
        let bytes: &[u8] = match &self.inner {
            Storage::Plain(extent) => {
                check_range(extent.len, start, len)?;
                read = sources.bytes(Extent { offset: extent.offset + start, len, ..*extent })?;
                &read
            }
            inner => {
                let mut decoded = crate::source::zeroed(len)?;
                inner.read(sources, start..start + len, &mut decoded, threads)?;
                read = decoded.into();
                &read
            }
        };
        let threads = if out.len() >= parallel::WORTH_A_THREAD { parallel::resolve(threads) } else { 1 };
        let share = (out.len() / self.item).div_ceil(threads).max(1);
        let pieces: Vec<_> = out.chunks_mut(share * self.item).enumerate().collect();
        parallel::for_each(threads, pieces, |(index, piece)| {
            let first = first + (index * share) as u64;
            match self.item {
                1 => self.gather::<1>(bytes, needed.start, first, piece),
                2 => self.gather::<2>(bytes, needed.start, first, piece),
                4 => self.gather::<4>(bytes, needed.start, first, piece),
                8 => self.gather::<8>(bytes, needed.start, first, piece),
                16 => self.gather::<16>(bytes, needed.start, first, piece),
                _ => self.gather_any(bytes, needed.start, first, piece),
            }
            Ok(())
        })
    }
}

impl Strided {
    /// The elements of `inner` that the tensor's elements `first..end` lie
    /// among: exact at the outermost dimension, whole below it.
    fn span_of(&self, first: u64, end: u64) -> Range<u64> {
        let Some((&(_, stride), inner)) = self.steps.split_first() else {
            return self.offset..self.offset + self.span;
        };
        let per_step: u64 = inner.iter().map(|(size, _)| size).product();
        let below: u64 = inner.iter().map(|(size, stride)| (size - 1) * stride).sum();
        let (low, high) = (first / per_step, (end - 1) / per_step);
        self.offset + low * stride..self.offset + high * stride + below + 1
    }

    /// Splits an element's number into the position of its row in `inner` and
    /// its place in that row; `rows` is how many rows follow in its plane.
    fn locate(&self, mut number: u64) -> (u64, u64, u64) {
        let mut position = self.offset;
        let mut column = 0;
        let mut rows = 1;
        for (depth, &(size, stride)) in self.steps.iter().rev().enumerate() {
            let index = number % size;
            number /= size;
            match depth {
                0 => column = index,
                1 => {
                    rows = size - index;
                    position += index * stride;
                }
                _ => position += index * stride,
            }
        }
        (position, column, rows)
    }

    /// The size and stride of a row, and the stride from row to row.
    fn row(&self) -> (u64, u64, u64) {
        let mut steps = self.steps.iter().rev();
        let (size, stride) = steps.next().copied().unwrap_or((1, 1));
        (size, stride, steps.next().map_or(0, |(_, stride)| *stride))
    }

    /// Fills `out` with the tensor's elements from number `first` on. `bytes`
    /// starts at element `base` of `inner` and covers all that is needed.
    fn gather<const N: usize>(&self, bytes: &[u8], base: u64, first: u64, out: &mut [u8]) {
        let (source, _) = bytes.as_chunks::<N>();
        let (mut out, _) = out.as_chunks_mut::<N>();
        let (size, stride, row_stride) = self.row();
        let (width, stride, row_stride) = (size as usize, stride as usize, row_stride as usize);
        let mut number = first;
        while !out.is_empty() {
            let (row, column, rows) = self.locate(number);
            let at = (row + column * stride as u64 - base) as usize;
            let whole_rows = if column == 0 { (out.len() / width).min(rows as usize) } else { 0 };
            let taken = if stride == 1 || whole_rows < 2 {
                let taken = out.len().min(width - column as usize);
                let to = &mut out[..taken];
                match stride {
                    0 => to.fill(source[at]),
                    1 => to.copy_from_slice(&source[at..at + taken]),
                    _ => to
                        .iter_mut()
                        .zip(source[at..].iter().step_by(stride))
                        .for_each(|(to, from)| *to = *from),
                }
                taken
            } else {
                let rows = whole_rows.min(TILE);
                for left in (0..width).step_by(TILE) {
                    for row in 0..rows {
                        let to = &mut out[row * width..][left..width.min(left + TILE)];
                        let mut from = at + row * row_stride + left * stride;
                        for to in to {
                            *to = source[from];
                            from += stride;
                        }
                    }
                }
                rows * width
            };
            number += taken as u64;
            out = &mut out[taken..];
        }
    }

    /// As `gather`, for elements of any size.
    fn gather_any(&self, bytes: &[u8], base: u64, first: u64, out: &mut [u8]) {
        let (_, stride, _) = self.row();
        for (number, to) in (first..).zip(out.chunks_exact_mut(self.item)) {
            let (row, column, _) = self.locate(number);
            let at = (row + column * stride - base) as usize * self.item;
            to.copy_from_slice(&bytes[at..at + self.item]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;
    use proptest::prelude::*;
    use std::sync::Arc;

    /// Row-major order, element by element.
    fn expected(bytes: &[u8], item: usize, offset: u64, shape: &[u64], strides: &[u64]) -> Vec<u8> {
        let mut out = Vec::new();
        for mut number in 0..elements(shape).unwrap() {
            let mut at = offset;
            for (size, stride) in shape.iter().zip(strides).rev() {
                at += number % size * stride;
                number /= size;
            }
            out.extend_from_slice(&bytes[at as usize * item..][..item]);
        }
        out
    }

    fn view() -> impl Strategy<Value = (usize, u64, Vec<u64>, Vec<u64>)> {
        let item = prop::sample::select(vec![1usize, 2, 3, 4, 8, 16]);
        let dims = prop::collection::vec((0u64..6, 0u64..12), 0..5);
        (item, 0u64..5, dims).prop_map(|(item, offset, dims)| {
            let (shape, strides) = dims.into_iter().unzip();
            (item, offset, shape, strides)
        })
    }

    proptest! {
        #[test]
        fn any_view_and_any_range_equals_the_naive_one(
            (item, offset, shape, strides) in view(),
            cut in (0.0f64..=1.0, 0.0f64..=1.0),
            plain in any::<bool>(),
        ) {
            let bytes: Vec<u8> = (0..8_000u32).map(|n| (n ^ (n >> 8)) as u8).collect();
            let len = bytes.len() as u64;
            let sources = Sources::one(Arc::new(MemorySource::new(bytes.clone())));
            let inner = match plain {
                true => Storage::Plain(Extent::new(0, len)),
                false => Storage::Inline(bytes.clone().into()),
            };
            let storage = strided(inner, len, item, offset, &shape, &strides).unwrap();
            let expected = expected(&bytes, item, offset, &shape, &strides);
            let at = |part: f64| (part * expected.len() as f64) as usize;
            let (start, end) = (at(cut.0).min(at(cut.1)), at(cut.0).max(at(cut.1)));
            for range in [0..expected.len(), start..end] {
                let mut out = vec![0; range.len()];
                storage.read(&sources, range.start as u64..range.end as u64, &mut out, 2).unwrap();
                prop_assert_eq!(&out[..], &expected[range]);
            }
        }
    }

    #[test]
    fn a_large_transpose_is_right_on_one_thread_and_on_three() {
        let shape = [700, 1100];
        let bytes: Vec<u8> = (0..700 * 1100u32).flat_map(u32::to_le_bytes).collect();
        let sources = Sources::one(Arc::new(MemorySource::new(bytes.clone())));
        let strides = fortran_strides(&shape);
        let plain = Storage::Plain(Extent::new(0, bytes.len() as u64));
        let storage = strided(plain, bytes.len() as u64, 4, 0, &shape, &strides).unwrap();
        let expected = expected(&bytes, 4, 0, &shape, &strides);
        for threads in [1, 3] {
            let mut out = vec![0; bytes.len()];
            storage.read(&sources, 0..out.len() as u64, &mut out, threads).unwrap();
            assert!(out == expected);
        }
    }

    #[test]
    fn contiguous_views_stay_plain_and_views_outside_are_refused() {
        let plain = || Storage::Plain(Extent::new(100, 96));
        let get = |offset, shape: &[u64], strides: &[u64]| strided(plain(), 96, 4, offset, shape, strides);
        assert!(matches!(get(2, &[2, 3], &[3, 1]).unwrap(),
            Storage::Plain(extent) if extent == Extent::new(108, 24)));
        assert!(matches!(get(24, &[0, 3], &[3, 1]).unwrap(), Storage::Plain(extent) if extent.len == 0));
        assert!(matches!(get(23, &[], &[]).unwrap(), Storage::Plain(extent) if extent.offset == 192));
        assert!(matches!(get(0, &[3, 2], &[1, 3]).unwrap(), Storage::Encoded(_)));
        for (offset, shape, strides) in [
            (24, vec![], vec![]),
            (25, vec![0], vec![1]),
            (0, vec![5, 5], vec![5, 1]),
            (u64::MAX, vec![1], vec![1]),
            (0, vec![2], vec![u64::MAX]),
            (0, vec![1 << 40, 1 << 40], vec![0, 0]),
            (1, vec![u64::MAX], vec![1]),
            (0, vec![2, 2], vec![1]),
        ] {
            assert!(get(offset, &shape, &strides).is_err(), "{offset} {shape:?} {strides:?}");
        }
    }
}
