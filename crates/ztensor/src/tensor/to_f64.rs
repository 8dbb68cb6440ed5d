//! Elements of any type as `f64`, for statistics and for people to look at.

use half::{bf16, f16};

use crate::dtype::DType;
use crate::error::{Error, Result};

/// Calls `each` with every number in `bytes`: one per element, two (real part
/// first) for complex types. Integers beyond 2^53 are rounded.
pub fn for_each(dtype: DType, bytes: &[u8], mut each: impl FnMut(f64)) -> Result<()> {
    macro_rules! numbers {
        ($number:ty, $convert:expr) => {
            for bytes in bytes.chunks_exact(size_of::<$number>()) {
                let mut array = [0; size_of::<$number>()];
                array.copy_from_slice(bytes);
                each($convert(<$number>::from_le_bytes(array)));
            }
        };
    }
    match dtype {
        DType::F64 | DType::C128 => numbers!(f64, |n| n),
        DType::F32 | DType::C64 => numbers!(f32, f64::from),
        DType::F16 | DType::C32 => numbers!(u16, |n| f16::from_bits(n).to_f64()),
        DType::BF16 => numbers!(u16, |n| bf16::from_bits(n).to_f64()),
        DType::I64 => numbers!(i64, |n| n as f64),
        DType::I32 => numbers!(i32, f64::from),
        DType::I16 => numbers!(i16, f64::from),
        DType::I8 => numbers!(i8, f64::from),
        DType::U64 => numbers!(u64, |n| n as f64),
        DType::U32 => numbers!(u32, f64::from),
        DType::U16 => numbers!(u16, f64::from),
        DType::U8 | DType::Bool => numbers!(u8, f64::from),
        DType::F8E4M3FN
        | DType::F8E5M2
        | DType::F8E4M3FNUZ
        | DType::F8E5M2FNUZ
        | DType::F8E8M0
        | DType::F6E2M3
        | DType::F6E3M2
        | DType::F4E2M1
        | DType::I4
        | DType::U4
        | DType::I2
        | DType::U2 => packed(dtype, bytes, each)?,
    }
    Ok(())
}

/// Elements of at most eight bits, the first in the lowest bits.
fn packed(dtype: DType, bytes: &[u8], mut each: impl FnMut(f64)) -> Result<()> {
    let bits = dtype.bits();
    let table: Vec<f64> = (0..1u16 << bits).map(|code| small(dtype, code as u8)).collect();
    let (mut held, mut count) = (0u32, 0);
    for &byte in bytes {
        held |= u32::from(byte) << count;
        count += 8;
        while count >= bits {
            let code = held & ((1 << bits) - 1);
            each(*table.get(code as usize).ok_or_else(|| Error::invalid("a code outside its type"))?);
            held >>= bits;
            count -= bits;
        }
    }
    Ok(())
}

/// The value of one code of a small type.
fn small(dtype: DType, code: u8) -> f64 {
    let signed = |bits: u32| f64::from((code << (8 - bits)) as i8 >> (8 - bits));
    match dtype {
        DType::I4 => signed(4),
        DType::I2 => signed(2),
        DType::U4 | DType::U2 => f64::from(code),
        DType::F8E8M0 if code == 0xff => f64::NAN,
        DType::F8E8M0 => 2f64.powi(i32::from(code) - 127),
        DType::F8E4M3FN if code & 0x7f == 0x7f => f64::NAN,
        DType::F8E4M3FNUZ | DType::F8E5M2FNUZ if code == 0x80 => f64::NAN,
        DType::F8E5M2 if code & 0x7c == 0x7c => match code & 3 {
            0 => f64::INFINITY.copysign(if code >= 0x80 { -1.0 } else { 1.0 }),
            _ => f64::NAN,
        },
        DType::F8E4M3FN => float(code, 4, 3, 7),
        DType::F8E4M3FNUZ => float(code, 4, 3, 8),
        DType::F8E5M2 => float(code, 5, 2, 15),
        DType::F8E5M2FNUZ => float(code, 5, 2, 16),
        DType::F6E2M3 => float(code, 2, 3, 1),
        DType::F6E3M2 => float(code, 3, 2, 3),
        DType::F4E2M1 => float(code, 2, 1, 1),
        // Not stored as codes. All are named, so that a new type does not compile without its value.
        DType::F64 | DType::F32 | DType::F16 | DType::BF16 | DType::C128 | DType::C64 | DType::C32 => {
            f64::NAN
        }
        DType::I64 | DType::I32 | DType::I16 | DType::I8 => f64::NAN,
        DType::U64 | DType::U32 | DType::U16 | DType::U8 | DType::Bool => f64::NAN,
    }
}

/// A float of one sign bit, `exponent` and `mantissa` bits without special codes.
fn float(code: u8, exponent: u32, mantissa: u32, bias: i32) -> f64 {
    let sign = if code >> (exponent + mantissa) & 1 == 1 { -1.0 } else { 1.0 };
    let fraction = f64::from(code & ((1 << mantissa) - 1)) / f64::from(1u32 << mantissa);
    match i32::from(code >> mantissa & ((1 << exponent) - 1)) {
        0 => sign * fraction * 2f64.powi(1 - bias),
        power => sign * (1.0 + fraction) * 2f64.powi(power - bias),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(dtype: DType, bytes: &[u8]) -> Vec<f64> {
        let mut numbers = Vec::new();
        for_each(dtype, bytes, |number| numbers.push(number)).unwrap();
        numbers
    }

    #[test]
    fn small_types_have_their_documented_extremes() {
        assert_eq!(
            all(DType::F8E4M3FN, &[0x7e, 0xfe, 0x01, 0x38, 0x80]),
            [448.0, -448.0, 2f64.powi(-9), 1.0, -0.0]
        );
        assert_eq!(
            all(DType::F8E5M2, &[0x7b, 0x01, 0x3c, 0xfc]),
            [57344.0, 2f64.powi(-16), 1.0, f64::NEG_INFINITY]
        );
        assert_eq!(all(DType::F8E4M3FNUZ, &[0x7f, 0x01, 0x40]), [240.0, 2f64.powi(-10), 1.0]);
        assert_eq!(all(DType::F8E5M2FNUZ, &[0x7f, 0x40]), [57344.0, 1.0]);
        assert_eq!(all(DType::F8E8M0, &[127, 128, 0]), [1.0, 2.0, 2f64.powi(-127)]);
        for dtype in [DType::F8E4M3FN, DType::F8E5M2, DType::F8E8M0] {
            assert!(all(dtype, &[0xff])[0].is_nan(), "{dtype}");
        }
        assert!(all(DType::F8E4M3FNUZ, &[0x80])[0].is_nan());
        assert_eq!(all(DType::F4E2M1, &[0x17, 0xf8]), [6.0, 0.5, -0.0, -6.0]);
        assert_eq!(all(DType::F6E2M3, &[0b11_011111, 0, 0])[0], 7.5);
        assert_eq!(all(DType::F6E3M2, &[0b00_011111, 0, 0])[0], 28.0);
        assert_eq!(all(DType::I4, &[0x8f]), [-1.0, -8.0]);
        assert_eq!(all(DType::U2, &[0b11_10_01_00]), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(all(DType::I2, &[0b11_10_01_00]), [0.0, 1.0, -2.0, -1.0]);
    }

    #[test]
    fn every_type_gives_its_numbers() {
        for dtype in DType::ALL {
            let per_element = if matches!(dtype, DType::C32 | DType::C64 | DType::C128) { 2 } else { 1 };
            let bytes = vec![0; dtype.byte_len(8).unwrap() as usize];
            assert_eq!(all(dtype, &bytes).len(), 8 * per_element, "{dtype}");
        }
        assert_eq!(all(DType::BF16, &[0x80, 0x3f]), [1.0]);
        assert_eq!(all(DType::F16, &[0x00, 0x3c]), [1.0]);
    }
}
