//! Models in the form that llama.cpp runs, from the folder of a Hugging Face model: its tensor names and
//! metadata, a vocabulary, and rows of the attention weights in its order of rotary dimensions.
//!
//! Other architectures, options and tensors are refused by name: a file that llama.cpp loads computes what
//! the model does.

mod config;
mod names;
mod tokenizer;

use std::borrow::Cow;
use std::path::Path;

use serde_json::Value as Json;
use ztensor::export::ExportSource;
use ztensor::{Attributes, Component, DType, Extent, Layout, Object, Reader, Tensor, Value};

use crate::cast::{Cast, Float};
use crate::failure::Failure;
use config::Config;
use names::Transform;

/// Longer files are no configuration and no vocabulary. (limit)
const MAX_JSON: u64 = 256 << 20;

/// A model to be written.
#[derive(Debug)]
pub struct Model<'a> {
    reader: &'a Reader,
    tensors: Vec<Placed<'a>>,
    attributes: Attributes,
    cast: Cast,
}

/// A tensor of the new file.
#[derive(Debug)]
struct Placed<'a> {
    name: String,
    object: Object,
    from: From<'a>,
}

#[derive(Debug)]
enum From<'a> {
    /// A tensor of the model, converted to another type, or with its rows in another order.
    Stored { name: &'a str, cast: Option<DType>, transform: Transform },
    /// Made of the configuration.
    Made(Vec<f32>),
}

impl<'a> Model<'a> {
    /// The model of a folder, whose tensors `reader` has. `dtype` is that of the matrices; vectors are
    /// always of 32 bits.
    pub fn new(
        folder: &Path,
        reader: &'a Reader,
        dtype: Option<Float>,
        with_tokenizer: bool,
    ) -> Result<Model<'a>, Failure> {
        let config = Config::parse(&json(folder, "config.json")?.ok_or_else(|| {
            Failure::usage(format!(
                "{}: there is no config.json: give the folder of a Hugging Face model",
                folder.display()
            ))
        })?)?;
        let mut tensors = Vec::new();
        for (name, object) in reader.objects() {
            let Some((new, transform)) = names::place(name, &config)? else { continue };
            let stored = dense_float(name, object)?;
            names::check_shape(name, &new, &object.shape, &config)?;
            let wanted = match object.shape.len() {
                0 | 1 => DType::F32, // operands of additions and multiplications, which are in f32
                _ => dtype.map_or(stored, Float::dtype),
            };
            if wanted.gguf_id().is_none() {
                let message =
                    format!("{name}: llama.cpp has no matrices of {wanted}: choose one with --dtype");
                return Err(Failure::usage(message));
            }
            let cast = (wanted != stored).then_some(wanted);
            let from = From::Stored { name, cast, transform };
            tensors.push(Placed { name: new, object: described(&object.shape, wanted), from });
        }
        if let Some(factors) = config.rope_factors() {
            let object = described(&[factors.len() as u64], DType::F32);
            tensors.push(Placed { name: "rope_freqs.weight".to_owned(), object, from: From::Made(factors) });
        }
        names::check_complete(tensors.iter().map(|placed| placed.name.as_str()), &config)?;
        let file_type = tensors
            .iter()
            .find(|placed| placed.name == "blk.0.attn_q.weight")
            .and_then(|placed| placed.object.dtype());
        let mut attributes = config.attributes(&model_name(folder), file_type);
        let vocabulary = match with_tokenizer {
            true => tokenizer::attributes(folder, &config)?,
            false => Attributes::from([("tokenizer.ggml.model".to_owned(), "no_vocab".into())]),
        };
        attributes.extend(vocabulary);
        Ok(Model { reader, tensors, attributes, cast: Cast::default() })
    }

    /// Bytes of all tensors, as they are written.
    pub fn len(&self) -> u64 {
        self.tensors.iter().map(|placed| placed.object.byte_len()).sum()
    }

    /// Finite values that became infinite in their new type.
    pub fn overflowed(&self) -> u64 {
        self.cast.overflowed.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// The llama.cpp name of the architecture.
    pub fn architecture(&self) -> &str {
        self.attributes.get("general.architecture").and_then(Value::as_text).unwrap_or_default()
    }
}

impl ExportSource for Model<'_> {
    fn objects(&self) -> Vec<(&str, Cow<'_, Object>)> {
        let object = |placed: &'_ Placed<'_>| Cow::Owned(placed.object.clone());
        self.tensors.iter().map(|placed| (placed.name.as_str(), object(placed))).collect()
    }

    fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    fn fetch(&self, index: usize) -> ztensor::Result<Tensor<'_>> {
        let placed = &self.tensors[index];
        let (name, cast, transform) = match &placed.from {
            From::Made(values) => return Tensor::from_slice(&[values.len() as u64][..], values),
            From::Stored { name, cast, transform } => (*name, *cast, transform),
        };
        let tensor = self.reader.read_checked(name)?;
        let tensor = match cast {
            Some(dtype) => self.cast.apply(&tensor, dtype).map_err(|error| error.in_tensor(name))?,
            None => tensor,
        };
        match transform {
            Transform::None => Ok(tensor),
            Transform::Rotary { heads } => {
                let data = tensor.component("data").map_or(&[][..], |data| &data.bytes);
                let rows = tensor.shape.first().copied().unwrap_or(0);
                let bytes = names::interleave_halves(data, rows, *heads);
                Tensor::from_bytes(
                    placed.object.shape.clone(),
                    placed.object.dtype().unwrap_or(DType::F32),
                    bytes,
                )
            }
        }
    }

    fn streams(&self, index: usize, role: &str) -> bool {
        match &self.tensors[index].from {
            From::Stored { name, cast: None, transform: Transform::None } => {
                self.reader.has_pieces(name, role)
            }
            _ => false,
        }
    }

    fn pieces(
        &self,
        index: usize,
        role: &str,
        each: &mut dyn FnMut(&[u8]) -> ztensor::Result<()>,
    ) -> ztensor::Result<()> {
        match &self.tensors[index].from {
            From::Stored { name, .. } => self.reader.read_pieces(name, role, each),
            From::Made(_) => Err(ztensor::Error::invalid("it is fetched whole")),
        }
    }

    fn fetches_ahead(&self) -> bool {
        true
    }

    fn check_limits(&self) -> ztensor::Result<()> {
        let names = self.tensors.iter().filter_map(|placed| match placed.from {
            From::Stored { name, .. } => Some(name),
            From::Made(_) => None,
        });
        self.reader.check_limits(names)
    }
}

fn described(shape: &[u64], dtype: DType) -> Object {
    let bytes = shape.iter().try_fold(1u64, |count, size| count.checked_mul(*size));
    let bytes = bytes.and_then(|count| dtype.byte_len(count)).unwrap_or(0);
    Object::dense(shape, Component::plain(dtype, Extent::new(0, bytes)))
}

/// The type of a dense tensor of floats.
fn dense_float(name: &str, object: &Object) -> Result<DType, Failure> {
    let floats = [DType::F32, DType::F16, DType::BF16, DType::F64];
    let dtype = object.dtype().filter(|_| object.layout == Layout::Dense);
    dtype.filter(|dtype| floats.contains(dtype)).ok_or_else(|| {
        let shown = object.dtype().map_or_else(|| object.layout.to_string(), |dtype| dtype.to_string());
        Failure::usage(format!("{name}: only tensors of floats are written for llama.cpp, not {shown}"))
    })
}

/// The name of a model's folder.
fn model_name(folder: &Path) -> String {
    let path = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    path.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// A file of the model's folder.
fn file(folder: &Path, name: &str) -> Result<Option<Vec<u8>>, Failure> {
    let path = ztensor::remote::store::join(folder, name);
    match ztensor::remote::store::exists(&path, &Default::default())? {
        true => Ok(Some(ztensor::remote::store::read(&path, MAX_JSON, &Default::default())?)),
        false => Ok(None),
    }
}

/// The same, parsed.
fn json(folder: &Path, name: &str) -> Result<Option<Json>, Failure> {
    let Some(bytes) = file(folder, name)? else { return Ok(None) };
    let parsed = serde_json::from_slice(&bytes);
    parsed.map(Some).map_err(|error| Failure::bad_file(format!("{}: {error}", folder.join(name).display())))
}
