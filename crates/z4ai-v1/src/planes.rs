//! Byte planes: byte `j` of every element, for each `j`.

use crate::{Result, corrupt};

/// Puts the planes of `planes.len()`-byte elements back together.
///
/// Every plane has as many bytes as `out` has elements.
pub(super) fn interleave<P: AsRef<[u8]>>(planes: &[P], out: &mut [u8]) -> Result<()> {
    let width = planes.len();
    let whole = planes.iter().all(|plane| plane.as_ref().len().checked_mul(width) == Some(out.len()));
    if !whole {
        return Err(corrupt("planes differ in length"));
    }
    match width {
        0 => {}
        1 => out.copy_from_slice(planes[0].as_ref()),
        2 => interleave_exact::<2, P>(planes, out),
        4 => interleave_exact::<4, P>(planes, out),
        8 => interleave_exact::<8, P>(planes, out),
        _ => {
            for (at, plane) in planes.iter().enumerate() {
                let places = out.iter_mut().skip(at).step_by(width);
                for (out, &byte) in places.zip(plane.as_ref()) {
                    *out = byte;
                }
            }
        }
    }
    Ok(())
}

/// One pass over the output for the widths that element types have.
fn interleave_exact<const W: usize, P: AsRef<[u8]>>(planes: &[P], out: &mut [u8]) {
    let (elements, _) = out.as_chunks_mut::<W>();
    let count = elements.len();
    // Slicing to the common length lets the compiler drop the bounds checks.
    let planes: [&[u8]; W] = std::array::from_fn(|at| &planes[at].as_ref()[..count]);
    for (i, element) in elements.iter_mut().enumerate() {
        *element = std::array::from_fn(|at| planes[at][i]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_puts_bytes_back() {
        for width in 1..=11 {
            for count in [0, 1, 2, 7, 64] {
                let original: Vec<u8> = (0..width * count).map(|i| (i * 37 % 251) as u8).collect();
                let planes: Vec<Vec<u8>> =
                    (0..width).map(|at| original.iter().skip(at).step_by(width).copied().collect()).collect();
                let mut out = vec![0; original.len()];
                interleave(&planes, &mut out).unwrap();
                assert_eq!(out, original, "width {width}, {count} elements");
            }
        }
    }

    #[test]
    fn planes_of_the_wrong_length_are_refused() {
        assert!(interleave(&[vec![1, 2], vec![3]], &mut [0; 4]).is_err());
        assert!(interleave(&[vec![1], vec![3]], &mut [0; 4]).is_err());
    }
}
