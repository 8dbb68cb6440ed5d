//! Copying to memory that will not be read soon.

/// Copies `from` to `to`, which has its length, without reading `to` into the caches first and
/// without leaving it there.
pub(crate) fn past_caches(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len());
    #[cfg(target_arch = "x86_64")]
    if super::Avx2::new().is_some() {
        // SAFETY: the feature was detected.
        return unsafe { past_caches_avx2(from, to) };
    }
    to.copy_from_slice(from);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn past_caches_avx2(from: &[u8], to: &mut [u8]) {
    use std::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};
    const VECTOR: usize = size_of::<__m256i>();
    let start = to.as_ptr().align_offset(VECTOR).min(to.len());
    let end = start + (to.len() - start) / VECTOR * VECTOR;
    to[..start].copy_from_slice(&from[..start]);
    to[end..].copy_from_slice(&from[end..]);
    for (from, to) in from[start..end].chunks_exact(VECTOR).zip(to[start..end].chunks_exact_mut(VECTOR)) {
        // SAFETY: both have VECTOR bytes, and `to` is aligned: it is whole vectors behind `start`.
        unsafe { _mm256_stream_si256(to.as_mut_ptr().cast(), _mm256_loadu_si256(from.as_ptr().cast())) };
    }
    // Such stores are ordered with nothing else unless asked for.
    _mm_sfence();
}

#[cfg(test)]
mod tests {
    #[test]
    fn copies_are_whole() {
        let from: Vec<u8> = (0..500u32).map(|i| (i * 7) as u8).collect();
        for at in 0..40 {
            for len in [0, 1, 31, 32, 33, 64, 100, 400] {
                let mut to = vec![0; 500];
                super::past_caches(&from[3..3 + len], &mut to[at..at + len]);
                assert_eq!(to[at..at + len], from[3..3 + len]);
                assert!(to[..at].iter().chain(&to[at + len..]).all(|&byte| byte == 0));
            }
        }
    }
}
