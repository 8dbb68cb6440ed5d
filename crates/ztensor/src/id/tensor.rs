//! Ids of tensors in memory.

use super::description::{Description, HashedPart, parameters, type_name};
use super::tree::{Span, Tree};
use super::{ContentId, sparse, tree};
use crate::catalog::{Layout, Shape, elements};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The id of a dense tensor: its elements are little-endian and in row-major order.
///
/// Large tensors are hashed on all cores; [`TensorHasher`] takes pieces and no threads.
pub fn tensor_id(dtype: DType, shape: &[u64], bytes: &[u8]) -> Result<ContentId> {
    Ok(TensorHasher::hash(dtype, shape, bytes, 0)?.0)
}

/// The id of a tensor of any layout.
pub fn object_id(tensor: &Tensor<'_>) -> Result<ContentId> {
    tensor.check()?;
    match &tensor.layout {
        Layout::SparseCsr | Layout::SparseCoo => return sparse::id(tensor),
        Layout::Dense => {
            let data = tensor.require("data")?;
            if data.unknown_type.is_none() {
                return tensor_id(data.dtype, &tensor.shape, &data.bytes);
            }
        }
        Layout::QuantizedGroup | Layout::Other(_) => {}
    }
    let components = tensor.components.iter().map(|(role, array)| {
        array.dtype.check_values(&array.bytes)?;
        Ok(HashedPart {
            role: role.clone(),
            type_name: type_name(array.dtype, array.unknown_type.as_deref()),
            len: array.bytes.len() as u64,
            hash: tree::hash(&array.bytes, 0)?,
        })
    });
    let description = Description {
        layout: tensor.layout.name().to_owned().into(),
        shape: tensor.shape.clone(),
        parameters: parameters(&tensor.layout, tensor.attributes.as_deref())?,
        components: components.collect::<Result<_>>()?,
    };
    Ok(description.id())
}

/// The id of a dense tensor whose elements come piece by piece, in order.
#[derive(Debug, Clone)]
pub struct TensorHasher {
    dtype: DType,
    shape: Shape,
    len: u64,
    seen: u64,
    hasher: blake3::Hasher,
}

impl TensorHasher {
    /// A hasher of a tensor of that type and shape.
    pub fn new(dtype: DType, shape: &[u64]) -> Result<TensorHasher> {
        let len = expected_len(dtype, shape)?;
        Ok(TensorHasher { dtype, shape: shape.into(), len, seen: 0, hasher: blake3::Hasher::new() })
    }

    /// The id of a tensor that is in memory, and BLAKE3 of its bytes: on at most `threads` threads, if it is large
    /// enough to pay for starting them.
    pub(crate) fn hash(
        dtype: DType,
        shape: &[u64],
        bytes: &[u8],
        threads: usize,
    ) -> Result<(ContentId, [u8; 32])> {
        let mut hasher = TensorHasher::new(dtype, shape)?;
        let len = hasher.len;
        if bytes.len() as u64 != len || unused_bits(dtype, shape) != 0 {
            hasher.update(bytes)?;
            return hasher.finish_hashed();
        }
        dtype.check_values(bytes)?;
        let hash = tree::hash(bytes, threads)?;
        Ok((Self::id_of_hash(dtype, shape, hash)?, hash))
    }

    /// The id of a tensor of which BLAKE3 of the bytes is known.
    pub(crate) fn id_of_hash(dtype: DType, shape: &[u64], hash: [u8; 32]) -> Result<ContentId> {
        let len = expected_len(dtype, shape)?;
        Ok(Description::dense(shape, type_name(dtype, None), len, hash).id())
    }

    /// Bytes of the tensor that have not come yet.
    pub fn remaining(&self) -> u64 {
        self.len - self.seen
    }

    /// The next bytes: any number of them, elements need not be whole.
    pub fn update(&mut self, bytes: &[u8]) -> Result<()> {
        let seen = self.seen.saturating_add(bytes.len() as u64);
        if seen > self.len {
            return Err(wrong_len(seen, self.dtype, &self.shape, self.len));
        }
        self.dtype.check_values(bytes)?;
        self.seen = seen;
        match (unused_bits(self.dtype, &self.shape), bytes.split_last()) {
            (unused @ 1.., Some((last, before))) if seen == self.len => {
                self.hasher.update(before).update(&[masked(*last, unused)]);
            }
            _ => {
                self.hasher.update(bytes);
            }
        }
        Ok(())
    }

    /// The id, once all bytes have come.
    pub fn finish(self) -> Result<ContentId> {
        Ok(self.finish_hashed()?.0)
    }

    /// The id, and BLAKE3 of the bytes.
    pub(crate) fn finish_hashed(self) -> Result<(ContentId, [u8; 32])> {
        if self.seen != self.len {
            return Err(wrong_len(self.seen, self.dtype, &self.shape, self.len));
        }
        let hash = *self.hasher.finalize().as_bytes();
        Ok((Self::id_of_hash(self.dtype, &self.shape, hash)?, hash))
    }
}

/// The id of a large dense tensor whose elements come in spans, from several threads in any order.
pub(crate) struct TensorTree {
    dtype: DType,
    shape: Shape,
    len: u64,
    tree: Tree,
}

impl TensorTree {
    /// A hasher of a tensor whose elements are whole bytes, and more than one subtree.
    pub(crate) fn new(dtype: DType, shape: &[u64]) -> Result<TensorTree> {
        let len = expected_len(dtype, shape)?;
        if unused_bits(dtype, shape) != 0 {
            return Err(Error::invalid("tensors with bits that are no elements are hashed as a whole"));
        }
        Ok(TensorTree { dtype, shape: shape.into(), len, tree: Tree::new(len)? })
    }

    /// A hasher of the bytes from `start` on, where a subtree begins.
    pub(crate) fn span(&self, start: u64) -> TensorSpan<'_> {
        TensorSpan { dtype: self.dtype, span: self.tree.span(start) }
    }

    /// The id, once all bytes have come.
    pub(crate) fn finish(&self) -> Result<ContentId> {
        let hash = self.tree.hash()?;
        Ok(Description::dense(&self.shape, type_name(self.dtype, None), self.len, hash).id())
    }
}

/// Consecutive bytes of a [`TensorTree`].
pub(crate) struct TensorSpan<'a> {
    dtype: DType,
    span: Span<'a>,
}

impl TensorSpan<'_> {
    /// The next bytes. The last ones end where a subtree does, or the tensor.
    pub(crate) fn update(&mut self, bytes: &[u8]) -> Result<()> {
        self.dtype.check_values(bytes)?;
        self.span.update(bytes)
    }
}

fn expected_len(dtype: DType, shape: &[u64]) -> Result<u64> {
    let len = elements(shape).and_then(|elements| dtype.byte_len(elements));
    len.ok_or_else(|| Error::invalid(format!("the shape {shape:?} describes more bytes than 2^64")))
}

fn wrong_len(found: u64, dtype: DType, shape: &[u64], len: u64) -> Error {
    Error::invalid(format!("{found} bytes where a tensor of dtype {dtype} and shape {shape:?} takes {len}"))
}

/// Bits of the last byte that belong to no element: those of packed types may hold anything.
pub(super) fn unused_bits(dtype: DType, shape: &[u64]) -> u32 {
    let bits = elements(shape).map_or(0, |count| (count % 8) as u32 * (dtype.bits() % 8) % 8);
    (8 - bits) % 8
}

/// The byte with its highest `unused` bits cleared.
pub(super) fn masked(byte: u8, unused: u32) -> u8 {
    byte & (0xff >> unused)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::tensor::Array;
    use crate::tensor::value::{Attributes, Value};
    use proptest::prelude::*;

    fn id(dtype: DType, shape: &[u64], bytes: &[u8]) -> ContentId {
        tensor_id(dtype, shape, bytes).unwrap()
    }

    #[test]
    fn type_shape_and_bytes_enter() {
        let bytes = [0, 0, 128, 63, 0, 0, 0, 64];
        let one = id(DType::F32, &[2], &bytes);
        let others = [
            id(DType::I32, &[2], &bytes),
            id(DType::F32, &[1, 2], &bytes),
            id(DType::F32, &[2, 1], &bytes),
            id(DType::F16, &[4], &bytes),
            id(DType::C64, &[1], &bytes),
            id(DType::F32, &[2], &[0, 0, 128, 63, 1, 0, 0, 64]),
        ];
        for other in others {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn elements_count_bitwise() {
        let zero = |bits: u32| id(DType::F32, &[], &bits.to_le_bytes());
        assert_ne!(zero(0), zero(0x8000_0000), "-0.0 is another element than 0.0");
        assert_ne!(zero(0x7fc0_0000), zero(0x7fc0_0001), "payloads of NaN are kept");
    }

    #[test]
    fn empty_and_scalar_tensors_have_ids_of_their_own() {
        let scalar = id(DType::F32, &[], &[0; 4]);
        assert_ne!(scalar, id(DType::F32, &[1], &[0; 4]));
        let empty = id(DType::F32, &[0], &[]);
        assert_ne!(empty, id(DType::F32, &[0, 4], &[]));
        assert_ne!(empty, id(DType::F64, &[0], &[]));
        assert_eq!(empty, TensorHasher::new(DType::F32, &[0]).unwrap().finish().unwrap());
        assert_eq!(
            id(DType::F32, &[u64::MAX, 0, u64::MAX], &[]),
            id(DType::F32, &[u64::MAX, 0, u64::MAX], &[])
        );
    }

    #[test]
    fn booleans_are_0_or_1() {
        id(DType::Bool, &[3], &[0, 1, 1]);
        assert_eq!(tensor_id(DType::Bool, &[3], &[0, 1, 2]).unwrap_err().rule(), Some("bool.value"));
        let mut hasher = TensorHasher::new(DType::Bool, &[3]).unwrap();
        hasher.update(&[0, 1]).unwrap();
        assert!(hasher.update(&[255]).is_err());
        assert_ne!(id(DType::Bool, &[2], &[0, 1]), id(DType::U8, &[2], &[0, 1]));
    }

    #[test]
    fn bits_behind_the_last_element_do_not_matter() {
        assert_eq!(id(DType::F4E2M1, &[3], &[0x21, 0xf3]), id(DType::F4E2M1, &[3], &[0x21, 0x03]));
        assert_ne!(id(DType::F4E2M1, &[4], &[0x21, 0xf3]), id(DType::F4E2M1, &[4], &[0x21, 0x03]));
        assert_eq!(id(DType::U2, &[5], &[9, 0xfd]), id(DType::U2, &[5], &[9, 1]));
        // Two elements of six bits use four bits of the second byte.
        assert_eq!(id(DType::F6E2M3, &[2], &[9, 0xfd]), id(DType::F6E2M3, &[2], &[9, 0x0d]));
        for dtype in DType::ALL {
            for count in 0..20 {
                let used = u64::from(dtype.bits()) * count;
                let unused = u64::from(unused_bits(dtype, &[count]));
                assert_eq!(used + unused, dtype.byte_len(count).unwrap() * 8, "{dtype} {count}");
            }
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        assert!(tensor_id(DType::F32, &[2], &[0; 7]).is_err());
        assert!(tensor_id(DType::F32, &[2], &[0; 9]).is_err());
        assert!(tensor_id(DType::F64, &[u64::MAX, 2], &[]).is_err());
        let mut hasher = TensorHasher::new(DType::F32, &[2]).unwrap();
        hasher.update(&[0; 4]).unwrap();
        assert_eq!(hasher.remaining(), 4);
        assert!(hasher.clone().finish().is_err());
        assert!(hasher.update(&[0; 5]).is_err());
    }

    proptest! {
        #[test]
        fn pieces_make_the_id_of_the_whole(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            cuts in proptest::collection::vec(0usize..300, 0..6),
            choice in 0usize..3,
        ) {
            let dtype = [DType::U8, DType::U4, DType::F6E3M2][choice];
            let count = bytes.len() as u64 * 8 / u64::from(dtype.bits());
            let bytes = &bytes[..dtype.byte_len(count).unwrap() as usize];
            let mut hasher = TensorHasher::new(dtype, &[count]).unwrap();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            for pair in cuts.windows(2) {
                hasher.update(&bytes[pair[0]..pair[1]]).unwrap();
            }
            prop_assert_eq!(hasher.finish().unwrap(), id(dtype, &[count], bytes));
        }
    }

    fn group(bits: i64, note: &str) -> Tensor<'static> {
        let array = |dtype, bytes: &[u8]| Array::new(dtype, bytes.to_vec());
        let attributes: Attributes = [
            ("note".to_owned(), Value::from(note)),
            ("bits".to_owned(), Value::from(bits)),
            ("group_size".to_owned(), Value::from(8i64)),
            ("packing".to_owned(), Value::from("8_per_i32")),
        ]
        .into_iter()
        .collect();
        let components = [
            (Cow::Borrowed("packed_weight"), array(DType::I32, &[1, 2, 3, 4])),
            (Cow::Borrowed("scales"), array(DType::F32, &[0; 4])),
            (Cow::Borrowed("zeros"), array(DType::F32, &[0; 4])),
        ];
        Tensor::new([8u64].as_slice(), Layout::QuantizedGroup, components, Some(attributes)).unwrap()
    }

    #[test]
    fn quantized_objects_keep_their_parameters_and_drop_metadata() {
        let one = object_id(&group(4, "a")).unwrap();
        assert_eq!(object_id(&group(4, "b")).unwrap(), one);
        assert_ne!(object_id(&group(3, "a")).unwrap(), one);
        let mut other = group(4, "a");
        other.components.reverse();
        assert_eq!(object_id(&other).unwrap(), one, "the order of components is that of a file");
        other.components[0].1.bytes.to_mut()[0] = 1;
        assert_ne!(object_id(&other).unwrap(), one);
    }

    #[test]
    fn blocks_keep_their_layout_and_foreign_layouts_all_parameters() {
        let blocks = |layout: &str, attributes: &[(&str, Value)]| {
            let components = [(Cow::Borrowed("blocks"), Array::new(DType::U8, vec![7u8; 18]))];
            let attributes =
                attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            let layout = Layout::from_name(layout);
            object_id(&Tensor::new([32u64].as_slice(), layout, components, Some(attributes)).unwrap())
                .unwrap()
        };
        let q4_0 = blocks("gguf.q4_0", &[]);
        assert_eq!(blocks("gguf.q4_0", &[("ggml_type", 2.into())]), q4_0);
        assert_ne!(blocks("gguf.iq4_nl", &[]), q4_0);
        assert_ne!(blocks("gguf.q4_0", &[("byte_order", "big".into())]), q4_0);
        let map = |pairs: [(&str, i64); 2]| {
            Value::Map(pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
        };
        let first = blocks("vendor.x", &[("m", map([("a", 1), ("b", 2)])), ("n", 1.into())]);
        assert_eq!(blocks("vendor.x", &[("n", 1.into()), ("m", map([("b", 2), ("a", 1)]))]), first);
        assert_ne!(blocks("vendor.x", &[("n", 2.into()), ("m", map([("b", 2), ("a", 1)]))]), first);
    }

    #[test]
    fn a_dense_object_is_a_dense_tensor_without_its_attributes() {
        let mut tensor = Tensor::from_bytes([2u64].as_slice(), DType::U8, vec![1, 2]).unwrap();
        let plain = object_id(&tensor).unwrap();
        assert_eq!(plain, id(DType::U8, &[2], &[1, 2]));
        tensor.attributes = Some(Box::new([("note".to_owned(), Value::from("x"))].into_iter().collect()));
        assert_eq!(object_id(&tensor).unwrap(), plain);
        tensor.components[0].1.unknown_type = Some("q".into());
        assert_ne!(object_id(&tensor).unwrap(), plain);
    }
}
