//! Objects: what a tensor, or another part of a file, is known by, and a small sketch of its values.

use crate::catalog::{Shape, elements};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::{ContentId, TensorHasher};

/// The element type and the shape of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ObjectType {
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
}

impl ObjectType {
    /// Bytes without a type.
    pub(crate) fn bytes(len: u64) -> ObjectType {
        ObjectType { dtype: DType::U8, shape: Shape::from_slice(&[len]) }
    }

    /// What an array of a file becomes: of the type that it has there, if all of its bytes are
    /// elements of that type, and bytes otherwise. Ids leave out bits that belong to no element, and
    /// those would be lost.
    pub(crate) fn of(dtype: DType, shape: &[u64], bytes: &[u8]) -> ObjectType {
        let exact = dtype.size().is_some() && dtype.check_values(bytes).is_ok();
        let fits = elements(shape).and_then(|count| dtype.byte_len(count)) == Some(bytes.len() as u64);
        match exact && fits {
            true => ObjectType { dtype, shape: shape.into() },
            false => ObjectType::bytes(bytes.len() as u64),
        }
    }

    /// Its size in bytes; an error if that is more than 2^64, or if elements are no whole bytes.
    pub(crate) fn len(&self) -> Result<u64> {
        let whole = self.dtype.size().is_some() && self.shape.len() <= crate::catalog::MAX_RANK;
        let len = elements(&self.shape).and_then(|count| self.dtype.byte_len(count));
        len.filter(|_| whole).ok_or_else(|| {
            let message =
                format!("a tensor of dtype {} and shape {:?} cannot be stored", self.dtype, self.shape);
            Error::corrupt("repository.object", message)
        })
    }

    /// The id of its content, hashed on at most `threads` threads.
    pub(crate) fn id(&self, bytes: &[u8], threads: usize) -> Result<ContentId> {
        Ok(TensorHasher::hash(self.dtype, &self.shape, bytes, threads)?.0)
    }
}

/// Values that a sketch has. (format)
pub(crate) const SKETCHED: usize = 128;

/// The most significant bytes of elements at equal distances: sign and scale. Weights of a fine-tune
/// have nearly all of them in common with those that they were made from, unrelated ones few.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sketch(pub(crate) [u8; SKETCHED]);

impl Sketch {
    /// The sketch of a tensor; `None` for tensors with too few elements to tell them apart.
    pub(crate) fn of(dtype: DType, bytes: &[u8]) -> Option<Sketch> {
        let size = dtype.size()?;
        let count = bytes.len() / size;
        (count >= 4 * SKETCHED).then_some(())?;
        Some(Sketch(std::array::from_fn(|place| {
            // A step that is no multiple of a row's length, mostly.
            let element = (place * (count - 1)) / (SKETCHED - 1);
            bytes[element * size + size - 1]
        })))
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Sketch> {
        Some(Sketch(bytes.try_into().ok()?))
    }

    pub(crate) fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(crate) fn from_hex(text: &str) -> Option<Sketch> {
        let digits = text.as_bytes().as_chunks::<2>().0;
        let mut bytes = [0; SKETCHED];
        (text.len() == 2 * SKETCHED).then_some(())?;
        for (byte, digits) in bytes.iter_mut().zip(digits) {
            let digit = |digit: u8| (digit as char).to_digit(16);
            *byte = (digit(digits[0])? * 16 + digit(digits[1])?) as u8;
        }
        Some(Sketch(bytes))
    }

    /// How many values two sketches have in common.
    pub(crate) fn common(&self, other: &Sketch) -> usize {
        self.0.iter().zip(&other.0).filter(|(a, b)| a == b).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_ids_would_lose_have_no_type() {
        assert_eq!(ObjectType::of(DType::Bool, &[2], &[1, 2]), ObjectType::bytes(2));
        assert_eq!(ObjectType::of(DType::U4, &[4], &[1, 2]), ObjectType::bytes(2));
        assert_eq!(ObjectType::of(DType::F32, &[2], &[0; 4]), ObjectType::bytes(4));
        let typed = ObjectType::of(DType::F32, &[1], &[0; 4]);
        assert_eq!((typed.dtype, typed.len().unwrap()), (DType::F32, 4));
        assert_ne!(typed.id(&[0; 4], 1).unwrap(), ObjectType::bytes(4).id(&[0; 4], 1).unwrap());
        let huge = ObjectType { dtype: DType::F64, shape: Shape::from_slice(&[u64::MAX, 2]) };
        assert!(huge.len().is_err());
    }

    #[test]
    fn sketches_tell_relatives_from_others() {
        let weights = |seed: u32| -> Vec<f32> {
            let next = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
            let noise = std::iter::successors(Some(seed), next).take(8192);
            noise.map(|state| (state >> 8) as f32 / 8e6 - 1.0).collect()
        };
        let bytes = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|x| x.to_le_bytes()).collect() };
        let base = weights(1);
        let tuned: Vec<f32> = base.iter().zip(weights(2)).map(|(x, noise)| x + 1e-3 * noise).collect();
        let sketch = |values: &[f32]| Sketch::of(DType::F32, &bytes(values)).unwrap();
        assert!(sketch(&base).common(&sketch(&tuned)) > SKETCHED * 9 / 10);
        assert!(sketch(&base).common(&sketch(&weights(3))) < SKETCHED / 2);
        assert!(Sketch::of(DType::F32, &bytes(&base[..100])).is_none());
    }
}
