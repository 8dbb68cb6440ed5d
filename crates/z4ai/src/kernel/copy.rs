//! Copying to memory that will not be read soon, and asking for memory that will.

/// How far ahead of what is read memory is asked for: processors do not look beyond their small pages.
pub(super) const AHEAD: usize = 2048;

/// Asks for the cache line at an address, which may be any: into the first-level cache where it is needed
/// `soon`, else into the second.
#[inline(always)]
pub(crate) fn fetch(address: *const u8, soon: bool) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch accesses nothing as far as the program can tell.
        unsafe {
            match soon {
                true => _mm_prefetch::<_MM_HINT_T0>(address.cast()),
                false => _mm_prefetch::<_MM_HINT_T1>(address.cast()),
            }
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (address, soon);
}

/// Copies `from` to `to`, which has its length, without reading `to` into the caches first and
/// without leaving it there. What is copied so is [settled](settle) before anyone else may look at it.
pub(crate) fn past_caches(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len());
    #[cfg(target_arch = "x86_64")]
    if super::Avx2::new().is_some() {
        // SAFETY: the feature was detected.
        return unsafe { past_caches_avx2(from, to) };
    }
    to.copy_from_slice(from);
}

/// Orders stores past the caches, which are ordered with nothing else, before all that follows.
pub(crate) fn settle() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every such processor has this fence, which accesses nothing.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn past_caches_avx2(from: &[u8], to: &mut [u8]) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_stream_si256};
    const VECTOR: usize = size_of::<__m256i>();
    let start = to.as_ptr().align_offset(VECTOR).min(to.len());
    let end = start + (to.len() - start) / VECTOR * VECTOR;
    to[..start].copy_from_slice(&from[..start]);
    to[end..].copy_from_slice(&from[end..]);
    for (from, to) in from[start..end].chunks_exact(VECTOR).zip(to[start..end].chunks_exact_mut(VECTOR)) {
        // SAFETY: both have VECTOR bytes, and `to` is aligned: it is whole vectors behind `start`.
        unsafe { _mm256_stream_si256(to.as_mut_ptr().cast(), _mm256_loadu_si256(from.as_ptr().cast())) };
    }
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
                super::settle();
                assert_eq!(to[at..at + len], from[3..3 + len]);
                assert!(to[..at].iter().chain(&to[at + len..]).all(|&byte| byte == 0));
            }
        }
    }
}
