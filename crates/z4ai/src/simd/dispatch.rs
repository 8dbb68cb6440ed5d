//! Run-time dispatch: a body is compiled for every level, and the current level chooses.

/// Defines `$name`, which runs `$body` compiled for NEON, AVX2 or the baseline, by the current
/// level. `$body` is an `#[inline(always)]` function of a [`Vector`](crate::simd::vector::Vector) level and
/// the same arguments.
macro_rules! dispatch {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? = $body:path) => {
        $(#[$doc])*
        $vis fn $name($($arg: $type),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            if let Some(isa) = $crate::simd::Avx2::new() {
                #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
                #[allow(clippy::too_many_arguments, reason = "those of the body")]
                fn shell(isa: $crate::simd::Avx2, $($arg: $type),*) $(-> $ret)? {
                    $body(isa, $($arg),*)
                }
                // SAFETY: `isa` proves the features.
                return unsafe { shell(isa, $($arg),*) };
            }
            // NEON is part of the target's baseline: no function of its own is needed.
            #[cfg(target_arch = "aarch64")]
            if let Some(isa) = $crate::simd::Neon::new() {
                return $body(isa, $($arg),*);
            }
            $body($crate::simd::Portable, $($arg),*)
        }
    };
}
pub(crate) use dispatch;

/// As [`dispatch`], with another build for AVX-512.
macro_rules! dispatch_wide {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? = $body:path) => {
        $(#[$doc])*
        $vis fn $name($($arg: $type),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            if let Some(isa) = $crate::simd::Avx512::new() {
                #[target_feature(
                    enable = "avx2,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2"
                )]
                #[allow(clippy::too_many_arguments, reason = "those of the body")]
                fn wide(isa: $crate::simd::Avx512, $($arg: $type),*) $(-> $ret)? {
                    $body(isa, $($arg),*)
                }
                // SAFETY: `isa` proves the features.
                return unsafe { wide(isa, $($arg),*) };
            }
            $crate::simd::dispatch! { fn narrow($($arg: $type),*) $(-> $ret)? = $body }
            narrow($($arg),*)
        }
    };
}
pub(crate) use dispatch_wide;
