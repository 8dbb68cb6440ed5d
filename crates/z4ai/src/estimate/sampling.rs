//! Where samples are taken: runs of elements, evenly spread over a buffer.
//!
//! The positions are part of what makes frames reproducible: a different rounding chooses different
//! encodings.

/// The start of each of `runs` runs of `run` bytes in a buffer of `len` bytes: multiples of `size`,
/// from the start of the buffer to its end.
pub(crate) fn spread(len: usize, run: usize, runs: usize, size: usize) -> impl Iterator<Item = usize> {
    (0..runs).map(move |i| i * (len - run) / (runs - 1).max(1) / size * size)
}

/// As [`spread`], at one distance from each other: the last run may end a little before the buffer.
pub(crate) fn strided(len: usize, run: usize, runs: usize, size: usize) -> impl Iterator<Item = usize> {
    let stride = (len - run) / (runs - 1).max(1);
    (0..runs).map(move |i| stride * i / size * size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_inside_the_buffer_and_aligned() {
        for size in [1, 2, 4, 8] {
            for (len, run, runs) in [(800, 80, 2), (8000, 16, 8), (4096, 4096, 4), (70_000 * 8, 512, 16)] {
                for starts in [
                    spread(len, run, runs, size).collect(),
                    strided(len, run, runs, size).collect::<Vec<_>>(),
                ] {
                    assert_eq!(starts.len(), runs);
                    assert!(starts.is_sorted() && starts[0] == 0);
                    assert!(starts.iter().all(|start| start % size == 0 && start + run <= len));
                    assert!(len - run - starts[runs - 1] < runs + size);
                }
            }
        }
    }
}
