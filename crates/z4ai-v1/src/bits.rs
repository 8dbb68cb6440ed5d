//! Bit packing and the split of floats into sign, exponent and mantissa.

use crate::{Result, corrupt};

/// How many bytes `bits` packed bits take, most significant bit first.
pub(super) fn packed_len(bits: usize) -> usize {
    bits.div_ceil(8)
}

/// Whether bit `index` is set.
pub(super) fn bit(packed: &[u8], index: usize) -> bool {
    packed[index / 8] << (index % 8) & 0x80 != 0
}

/// Checks that no bit after the first `bits` is set.
pub(super) fn check_padding(packed: &[u8], bits: usize, what: &str) -> Result<()> {
    let used = bits % 8;
    let stray = match packed.last() {
        Some(&last) if used != 0 => last << used,
        _ => 0,
    };
    if stray != 0 {
        return Err(corrupt(format!("{what} has bits set after its end")));
    }
    Ok(())
}

/// A float type that can be split into its fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FloatSpec {
    /// Bytes of an element.
    pub(super) width: usize,
    exponent_bits: u32,
    mantissa_bits: u32,
}

impl FloatSpec {
    pub(super) fn named(name: &[u8]) -> Result<Self> {
        let (width, exponent_bits, mantissa_bits) = match name {
            b"bfloat16" => (2, 8, 7),
            b"float16" => (2, 5, 10),
            b"float32" => (4, 8, 23),
            _ => {
                return Err(corrupt(format!("unknown float type \"{}\"", name.escape_ascii())));
            }
        };
        Ok(Self { width, exponent_bits, mantissa_bits })
    }

    /// Lengths of the sign, exponent and mantissa streams of `count` elements;
    /// `None` if they are beyond all memory.
    pub(super) fn stream_lens(self, count: usize, mantissa: Mantissa) -> Option<[usize; 3]> {
        let mantissa_len = match mantissa {
            Mantissa::Planes => count.checked_mul(self.mantissa_planes())?,
            Mantissa::Packed => packed_len(count.checked_mul(self.mantissa_bits as usize)?),
        };
        Some([packed_len(count), count, mantissa_len])
    }

    fn mantissa_planes(self) -> usize {
        self.mantissa_bits.div_ceil(8) as usize
    }
}

/// How mantissas are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mantissa {
    /// Byte planes, lowest byte first.
    Planes,
    /// Packed without gaps, most significant bit first.
    Packed,
}

/// The three streams of [`FloatSpec::stream_lens`].
pub(super) struct Fields<'a> {
    pub(super) sign: &'a [u8],
    pub(super) exponent: &'a [u8],
    pub(super) mantissa: &'a [u8],
}

/// Puts floats back together from their fields.
///
/// The fields are as long as `out` needs them. A field with more bits than
/// the type has room for is refused: it would spill into its neighbour.
pub(super) fn join(spec: FloatSpec, layout: Mantissa, fields: &Fields<'_>, out: &mut [u8]) -> Result<()> {
    let count = out.len() / spec.width;
    check_padding(fields.sign, count, "sign stream")?;
    match (layout, spec.mantissa_planes()) {
        (Mantissa::Planes, 1) => join_planes::<1>(spec, fields, out),
        (Mantissa::Planes, 2) => join_planes::<2>(spec, fields, out),
        (Mantissa::Planes, _) => join_planes::<3>(spec, fields, out),
        (Mantissa::Packed, _) => {
            let bits = count * spec.mantissa_bits as usize;
            check_padding(fields.mantissa, bits, "mantissa stream")?;
            let mut packed = Unpacker::new(fields.mantissa);
            join_with(spec, fields, out, |_| packed.next(spec.mantissa_bits))
        }
    }
}

fn join_planes<const B: usize>(spec: FloatSpec, fields: &Fields<'_>, out: &mut [u8]) -> Result<()> {
    let count = out.len() / spec.width;
    let planes: [&[u8]; B] = std::array::from_fn(|at| &fields.mantissa[at * count..(at + 1) * count]);
    join_with(spec, fields, out, |i| {
        let mut mantissa = 0;
        for (at, plane) in planes.iter().enumerate() {
            mantissa |= u32::from(plane[i]) << (8 * at);
        }
        mantissa
    })
}

#[inline(always)]
fn join_with(
    spec: FloatSpec,
    fields: &Fields<'_>,
    out: &mut [u8],
    mut mantissa_at: impl FnMut(usize) -> u32,
) -> Result<()> {
    let FloatSpec { exponent_bits, mantissa_bits, .. } = spec;
    let mut spilled = 0;
    for (i, element) in out.chunks_exact_mut(spec.width).enumerate() {
        let exponent = u32::from(fields.exponent[i]);
        let mantissa = mantissa_at(i);
        spilled |= exponent >> exponent_bits | mantissa >> mantissa_bits;
        let sign = u32::from(bit(fields.sign, i));
        let joined = sign << (exponent_bits + mantissa_bits) | exponent << mantissa_bits | mantissa;
        element.copy_from_slice(&joined.to_le_bytes()[..spec.width]);
    }
    if spilled != 0 {
        return Err(corrupt("a float's field has more bits than its type"));
    }
    Ok(())
}

/// Takes numbers of a few bits each from packed bits.
struct Unpacker<'a> {
    bytes: std::slice::Iter<'a, u8>,
    held: u64,
    bits: u32,
}

impl<'a> Unpacker<'a> {
    fn new(packed: &'a [u8]) -> Self {
        Self { bytes: packed.iter(), held: 0, bits: 0 }
    }

    /// The next `bits` bits, at most 32; zeros after the end.
    fn next(&mut self, bits: u32) -> u32 {
        while self.bits < bits {
            self.held = self.held << 8 | u64::from(*self.bytes.next().unwrap_or(&0));
            self.bits += 8;
        }
        self.bits -= bits;
        (self.held >> self.bits) as u32 & (u32::MAX >> (32 - bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits as the format describes, bit by bit.
    fn split(spec: FloatSpec, layout: Mantissa, original: &[u8]) -> [Vec<u8>; 3] {
        let count = original.len() / spec.width;
        let lens = spec.stream_lens(count, layout).unwrap();
        let mut streams = lens.map(|len| vec![0u8; len]);
        let [sign, exponent, mantissa] = &mut streams;
        let set = |packed: &mut Vec<u8>, at: usize| packed[at / 8] |= 0x80 >> (at % 8);
        for (i, element) in original.chunks(spec.width).enumerate() {
            let mut raw = [0; 4];
            raw[..spec.width].copy_from_slice(element);
            let raw = u32::from_le_bytes(raw);
            let (e, m) = (spec.exponent_bits, spec.mantissa_bits);
            if raw >> (e + m) & 1 != 0 {
                set(sign, i);
            }
            exponent[i] = (raw >> m & ((1 << e) - 1)) as u8;
            for at in 0..m {
                if raw >> at & 1 == 0 {
                    continue;
                }
                match layout {
                    Mantissa::Planes => mantissa[at as usize / 8 * count + i] |= 1 << (at % 8),
                    Mantissa::Packed => set(mantissa, i * m as usize + (m - 1 - at) as usize),
                }
            }
        }
        streams
    }

    fn joined(spec: FloatSpec, layout: Mantissa, s: &[Vec<u8>; 3], len: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; len];
        let fields = Fields { sign: &s[0], exponent: &s[1], mantissa: &s[2] };
        join(spec, layout, &fields, &mut out).map(|()| out)
    }

    #[test]
    fn joining_undoes_splitting() {
        for name in ["bfloat16", "float16", "float32"] {
            let spec = FloatSpec::named(name.as_bytes()).unwrap();
            for layout in [Mantissa::Planes, Mantissa::Packed] {
                for count in [0, 1, 3, 8, 29] {
                    let original: Vec<u8> = (0..count * spec.width).map(|i| (i * 151 % 257) as u8).collect();
                    let streams = split(spec, layout, &original);
                    let out = joined(spec, layout, &streams, original.len()).unwrap();
                    assert_eq!(out, original, "{name} {layout:?} {count}");
                }
            }
        }
    }

    #[test]
    fn stray_bits_are_refused() {
        let spec = FloatSpec::named(b"float16").unwrap();
        let original = [0u8; 6];
        for layout in [Mantissa::Planes, Mantissa::Packed] {
            let streams = split(spec, layout, &original);
            assert!(joined(spec, layout, &streams, 6).is_ok());
            // One stray bit in the sign's padding, the exponent, the mantissa.
            for stream in 0..3 {
                let mut bad = streams.clone();
                let stray = [0x01, 0x20, if layout == Mantissa::Planes { 0x04 } else { 0x01 }];
                *bad[stream].last_mut().unwrap() |= stray[stream];
                assert!(joined(spec, layout, &bad, 6).is_err(), "{layout:?} {stream}");
            }
        }
    }
}
