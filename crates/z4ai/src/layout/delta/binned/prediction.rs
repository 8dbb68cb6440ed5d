//! What an element is expected to be: its reference, times a factor.

/// The least factor; 1 is the largest. (format)
const MIN_FACTOR: f32 = 1.0 / 65536.0;
/// References below this exponent are not scaled: products are never subnormal, which processors may be
/// set to flush to zero. (format)
const MIN_EXPONENT: u32 = 32;
/// The exponent of infinities and NaN, which are not scaled. (structural)
const MAX_EXPONENT: u32 = 255;

/// Predicts elements by a factor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Prediction {
    factor: f32,
}

impl Eq for Prediction {}

impl Prediction {
    /// Of references that stay as they are.
    pub(crate) const UNCHANGED: Self = Self { factor: 1.0 };

    /// `None` for factors out of range.
    pub(crate) fn new(factor: f32) -> Option<Self> {
        (MIN_FACTOR..=1.0).contains(&factor).then_some(Self { factor })
    }

    pub(crate) fn factor(self) -> f32 {
        self.factor
    }

    /// The bits that are expected of the element with these bits of the reference.
    #[inline(always)]
    pub(crate) fn of(self, reference: u32) -> u32 {
        let exponent = reference >> 23 & MAX_EXPONENT;
        let scaled = (f32::from_bits(reference) * self.factor).to_bits();
        let is_scaled = exponent.wrapping_sub(MIN_EXPONENT) < MAX_EXPONENT - MIN_EXPONENT;
        if is_scaled { scaled } else { reference }
    }

    /// The predictions of all elements of `references`.
    pub(crate) fn fill(self, references: &[u8], out: &mut [u32]) {
        let references = references.as_chunks::<4>().0;
        if self == Self::UNCHANGED {
            for (reference, out) in references.iter().zip(out) {
                *out = u32::from_le_bytes(*reference);
            }
            return;
        }
        for (reference, out) in references.iter().zip(out) {
            *out = self.of(u32::from_le_bytes(*reference));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_normal_numbers_far_from_zero_are_scaled() {
        let prediction = Prediction::new(0.9).unwrap();
        let of = |value: f32| f32::from_bits(prediction.of(value.to_bits()));
        assert_eq!(of(2.0), 1.8);
        assert_eq!(of(-2.0), -1.8);
        assert_eq!(of(2f32.powi(-95)), 0.9 * 2f32.powi(-95));
        assert_eq!(of(2f32.powi(-96)), 2f32.powi(-96));
        for bits in [0, 1 << 31, 1, 0x7f80_0000, 0x7fc0_0001, 0xff80_0000, 0xffff_ffff, 15 << 23] {
            assert_eq!(prediction.of(bits), bits);
        }
        assert_eq!(Prediction::UNCHANGED.of(0x4049_0fdb), 0x4049_0fdb);
    }

    #[test]
    fn factors_that_could_give_subnormals_are_refused() {
        for factor in [0.0, -0.5, 1.0 / 65537.0, 1.0 + f32::EPSILON, f32::NAN, f32::INFINITY, 1e-40] {
            assert_eq!(Prediction::new(factor), None, "{factor}");
        }
        let least = Prediction::new(MIN_FACTOR).unwrap();
        assert!(f32::from_bits(least.of(MIN_EXPONENT << 23)).is_normal());
    }
}
