//! Content ids: one name for a tensor, or a model, whatever file holds it.
//!
//! A [`ContentId`] is a BLAKE3 hash over element types, shapes and elements. It does not depend on
//! the format, the order of the tensors, shards, compression, strides or byte order, and metadata
//! is no part of it. Two files with the same model id hold the same tensors under the same names.
//!
//! ```
//! use ztensor::DType;
//! use ztensor::id::{TensorHasher, model_id, tensor_id};
//!
//! let weights: Vec<u8> = [1.0f32, 2.0, 3.0].iter().flat_map(|x| x.to_le_bytes()).collect();
//! let whole = tensor_id(DType::F32, &[3], &weights)?;
//!
//! let mut hasher = TensorHasher::new(DType::F32, &[3])?; // the same, piece by piece
//! hasher.update(&weights[..5])?;
//! hasher.update(&weights[5..])?;
//! assert_eq!(hasher.finish()?, whole);
//!
//! // The order of the tensors does not matter, their names do.
//! assert_eq!(model_id([("a", whole), ("b", whole)]), model_id([("b", whole), ("a", whole)]));
//! assert_eq!(whole.to_string().parse::<ztensor::id::ContentId>()?, whole);
//! # Ok::<(), ztensor::Error>(())
//! ```
//!
//! `docs/spec/content-id.md` has the definition and its rules.
#![forbid(unsafe_code)]

mod description;
mod reader;
mod sparse;
mod tensor;
mod tree;

pub use reader::{ContentIds, Evidence};
pub(crate) use tensor::TensorTree;
pub use tensor::{TensorHasher, object_id, tensor_id};

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result, quoted};

/// BLAKE3's key derivation context of tensor ids.
const TENSOR_CONTEXT: &str = "ztensor 2026-11-17 content id of a tensor, version 1";
/// The same of model ids.
const MODEL_CONTEXT: &str = "ztensor 2026-11-17 content id of a model, version 1";

/// The identity of a tensor's or a model's content: 32 bytes of BLAKE3.
///
/// Its text form is `b3:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentId([u8; 32]);

impl ContentId {
    /// What the text form starts with.
    pub const PREFIX: &str = "b3:";

    /// The id of those bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> ContentId {
        ContentId(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentId({self})")
    }
}

impl FromStr for ContentId {
    type Err = Error;

    /// Parses the text form: the prefix and lower-case digits, nothing else.
    fn from_str(text: &str) -> Result<ContentId> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let parse = || {
            let hex = text.strip_prefix(Self::PREFIX)?.as_bytes();
            let mut bytes = [0; 32];
            (hex.len() == 64).then_some(())?;
            for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
                *byte = digit(pair[0])? << 4 | digit(pair[1])?;
            }
            Some(ContentId(bytes))
        };
        parse().ok_or_else(|| {
            let message = format!(
                "{} is not a content id: expected b3: and 64 lower-case hexadecimal digits",
                quoted(text)
            );
            Error::invalid(message)
        })
    }
}

/// The id of a model: of its tensors' names and ids, in any order.
pub fn model_id<N: AsRef<str>>(tensors: impl IntoIterator<Item = (N, ContentId)>) -> ContentId {
    let mut tensors: Vec<(N, ContentId)> = tensors.into_iter().collect();
    tensors.sort_by(|(a, first), (b, second)| {
        a.as_ref().as_bytes().cmp(b.as_ref().as_bytes()).then(first.cmp(second))
    });
    let mut hasher = blake3::Hasher::new_derive_key(MODEL_CONTEXT);
    hasher.update(&(tensors.len() as u64).to_le_bytes());
    for (name, id) in &tensors {
        let name = name.as_ref().as_bytes();
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name);
        hasher.update(&id.0);
    }
    ContentId(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_leads_back_to_the_id_and_only_one_text_does() {
        let id = ContentId::from_bytes(std::array::from_fn(|n| n as u8 * 8));
        let text = id.to_string();
        assert!(text.starts_with("b3:0008101820"), "{text}");
        assert_eq!(text.len(), 67);
        assert_eq!(text.parse::<ContentId>().unwrap(), id);
        let digits = &text[3..];
        for bad in [
            digits.to_owned(),
            format!("b3:{}", digits.to_uppercase()),
            format!("b3:{}", &digits[1..]),
            format!("b3:{digits}0"),
            format!("b3: {}", &digits[1..]),
            format!("b3:{}é", &digits[2..]),
            String::new(),
        ] {
            assert!(bad.parse::<ContentId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_model_is_its_names_and_tensors() {
        let (one, two) = (ContentId::from_bytes([1; 32]), ContentId::from_bytes([2; 32]));
        let id = model_id([("a", one), ("b", two)]);
        assert_eq!(model_id(vec![("b".to_owned(), two), ("a".to_owned(), one)]), id);
        let others = [
            model_id([("a", two), ("b", one)]),
            model_id([("a", one)]),
            model_id([("a", one), ("b", two), ("c", two)]),
            model_id([("ab", one), ("", two)]),
            model_id::<&str>([]),
        ];
        for other in others {
            assert_ne!(other, id);
        }
    }

    // Fixed values: an id is stored elsewhere, so the definition never changes.
    #[test]
    fn ids_are_those_of_the_specification() {
        let tensor = tensor_id(crate::DType::F32, &[2], &[0, 0, 128, 63, 0, 0, 0, 64]).unwrap();
        assert_eq!(tensor.to_string(), "b3:a5e57aa53b2a27d5eaa62d7d9f0019009d5694e271b8b33746f72a76fdb9e2fd");
        assert_eq!(
            model_id([("w", tensor)]).to_string(),
            "b3:86bcfc11a4ba37f447d49e082df0172e76958caa610ba877b44caa178e1ff4aa"
        );
        assert_eq!(
            model_id::<&str>([]).to_string(),
            "b3:2e433207c78b3726d1c14e8d845f66aa31013678cef6e1dfb37f8af690d59134"
        );
    }
}
