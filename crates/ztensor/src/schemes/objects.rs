//! Quantized weights as one object each, and back: GPTQ, AWQ and packed integers as
//! `zt.quant_group/1`, floats of few bits with exponents as `zt.mx/1`.
//!
//! An object's attribute `scheme` lists the tensors that it was made of, so that they come back byte for
//! byte. A weight is joined only where taking it apart gives the same bytes: others stay as they are.

use std::borrow::Cow;
use std::collections::HashSet;

use super::dequantize::AWQ_ORDER;
use super::{Quantized, Scheme, find};
use crate::catalog::{Layout, Object};
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};
use crate::format::zt::manifest::role;
use crate::format::zt2::layout::{MX, Mx, QUANT_GROUP, QuantGroup};
use crate::read::Reader;
use crate::tensor::value::{Attributes, Value};
use crate::tensor::{Array, Tensor};
use crate::write::export::ExportSource;

/// The attribute that lists the tensors of a scheme.
const ATTRIBUTE: &str = "scheme";

/// The tensors of a file with its quantized weights joined or split, to be written to another.
#[derive(Debug)]
pub struct Regrouped<'r> {
    reader: &'r Reader,
    entries: Vec<Entry>,
    /// Weights that were joined or split.
    pub weights: usize,
}

#[derive(Debug)]
struct Entry {
    name: String,
    object: Object,
    made: Made,
}

/// Where a tensor comes from.
#[derive(Debug)]
enum Made {
    /// The tensor of that name in the file.
    Same,
    Joined(Box<Quantized>),
    /// A tensor of the object of that name.
    Part(String, usize),
}

impl<'r> Regrouped<'r> {
    /// Every quantized weight as one object, where a layout holds it without loss.
    pub fn joined(reader: &'r Reader) -> Result<Regrouped<'r>> {
        let (mut entries, mut taken) = (Vec::new(), HashSet::new());
        for weight in find(reader)? {
            // A tensor of that name which is no part of the weight.
            let clashes = reader.find(&weight.name).is_some()
                && weight.tensors.iter().all(|(_, name)| *name != weight.name);
            if clashes {
                continue;
            }
            if let Some(tensor) = join(&weight, reader)? {
                taken.extend(weight.tensors.iter().map(|(_, name)| name.clone()));
                let (name, object) = (weight.name.clone(), tensor.describe());
                entries.push(Entry { name, object, made: Made::Joined(Box::new(weight)) });
            }
        }
        let weights = entries.len();
        for (name, object) in reader.objects().filter(|(name, _)| !taken.contains(*name)) {
            entries.push(Entry { name: name.to_owned(), object: object.clone(), made: Made::Same });
        }
        Ok(Regrouped { reader, entries, weights })
    }

    /// Every object that was joined as the tensors of its scheme.
    pub fn split(reader: &'r Reader) -> Result<Regrouped<'r>> {
        let (mut entries, mut weights) = (Vec::new(), 0);
        for (name, object) in reader.objects() {
            if !is_joined(object) {
                entries.push(Entry { name: name.to_owned(), object: object.clone(), made: Made::Same });
                continue;
            }
            weights += 1;
            let parts = split(&reader.read_checked(name)?).map_err(|error| error.in_tensor(name))?;
            for (index, (part, tensor)) in parts.into_iter().enumerate() {
                let made = Made::Part(name.to_owned(), index);
                entries.push(Entry { name: part, object: tensor.describe(), made });
            }
        }
        let mut names = HashSet::new();
        match entries.iter().find(|entry| !names.insert(&entry.name)) {
            None => Ok(Regrouped { reader, entries, weights }),
            Some(entry) => Err(Error::invalid(format!("two tensors would be named {}", quoted(&entry.name)))),
        }
    }
}

impl ExportSource for Regrouped<'_> {
    fn objects(&self) -> Vec<(&str, Cow<'_, Object>)> {
        self.entries.iter().map(|entry| (&*entry.name, Cow::Borrowed(&entry.object))).collect()
    }

    fn attributes(&self) -> &Attributes {
        self.reader.attributes()
    }

    fn fetch(&self, index: usize) -> Result<Tensor<'_>> {
        let entry = &self.entries[index];
        match &entry.made {
            Made::Same => self.reader.read_checked(&entry.name),
            Made::Joined(weight) => join(weight, self.reader)?
                .ok_or_else(|| Error::invalid("the file changed while it was read").in_tensor(&*entry.name)),
            Made::Part(name, part) => {
                let parts =
                    split(&self.reader.read_checked(name)?).map_err(|error| error.in_tensor(&**name))?;
                let found = parts.into_iter().nth(*part).map(|(_, tensor)| tensor);
                found.ok_or_else(|| Error::invalid("the file changed while it was read").in_tensor(&**name))
            }
        }
    }

    fn fetches_ahead(&self) -> bool {
        true
    }
}

fn is_joined(object: &Object) -> bool {
    let layout = matches!(&object.layout, Layout::Other(name) if matches!(&**name, QUANT_GROUP | MX));
    layout && object.attributes.as_ref().is_some_and(|attributes| attributes.contains_key(ATTRIBUTE))
}

/// A weight as one object, if that is without loss.
fn join(weight: &Quantized, reader: &Reader) -> Result<Option<Tensor<'static>>> {
    let mut parts = Vec::with_capacity(weight.tensors.len());
    for (role, name) in &weight.tensors {
        let tensor = reader.read_checked(name)?;
        let Some(data) = tensor.component("data") else { return Ok(None) };
        let part = ListedTensor {
            role: (*role).to_owned(),
            name: name.clone(),
            dtype: data.dtype,
            shape: tensor.shape.to_vec(),
        };
        parts.push((part, data.bytes.to_vec()));
    }
    let Some(tensor) = object(weight, &parts) else { return Ok(None) };
    let Ok(apart) = split(&tensor) else { return Ok(None) };
    let same = apart.len() == parts.len()
        && apart.iter().zip(&parts).all(|((name, found), (part, bytes))| {
            *name == part.name && found.component("data").is_some_and(|data| *data.bytes == **bytes)
        });
    Ok(same.then_some(tensor))
}

/// A tensor of a scheme, as the attribute lists it.
struct ListedTensor {
    role: String,
    name: String,
    dtype: DType,
    shape: Vec<u64>,
}

impl ListedTensor {
    fn value(&self) -> Value {
        map([
            ("role", self.role.as_str().into()),
            ("name", self.name.as_str().into()),
            ("dtype", self.dtype.name().into()),
            ("shape", self.shape.clone().into()),
        ])
    }

    fn of(value: &Value) -> Option<ListedTensor> {
        let text = |key: &str| value.get(key)?.as_text().map(str::to_owned);
        let Some(Value::Array(sizes)) = value.get("shape") else { return None };
        let size = |value: &Value| u64::try_from(value.as_int()?).ok();
        let shape = sizes.iter().map(size).collect::<Option<Vec<u64>>>()?;
        let dtype = DType::from_name(&text("dtype")?)?;
        Some(ListedTensor { role: text("role")?, name: text("name")?, dtype, shape })
    }
}

fn map<const N: usize>(pairs: [(&str, Value); N]) -> Value {
    Value::Map(pairs.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

fn object(weight: &Quantized, parts: &[(ListedTensor, Vec<u8>)]) -> Option<Tensor<'static>> {
    let part = |role: &str| parts.iter().find(|(part, _)| part.role == role);
    let bytes = |role: &str| part(role).map(|(_, bytes)| &**bytes);
    let listed: Vec<Value> = parts.iter().map(|(part, _)| part.value()).collect();
    let mut attributes = Attributes::new();
    let scheme = map([("name", weight.scheme.name().into()), ("tensors", Value::Array(listed))]);
    let scales_type = part("scales")?.0.dtype;
    let scale_form = match (weight.scheme, scales_type) {
        (Scheme::Gptq | Scheme::Awq | Scheme::PackedIntegers, DType::F16 | DType::BF16) => "f16_factors",
        (Scheme::Gptq | Scheme::Awq | Scheme::PackedIntegers, DType::F32) => "f32_factors",
        (_, DType::U8 | DType::F8E8M0) => "e8m0_exponent",
        _ => return None,
    };
    let element = match weight.scheme {
        Scheme::Mxfp4 => Some(DType::F4E2M1),
        Scheme::Mxfp6E2m3 => Some(DType::F6E2M3),
        Scheme::Mxfp6E3m2 => Some(DType::F6E3M2),
        Scheme::Mxfp8 => Some(part("words")?.0.dtype),
        _ => None,
    };
    if let Some(element) = element {
        attributes.insert("block_size".to_owned(), weight.group.into());
        attributes.insert("scale_form".to_owned(), scale_form.into());
        attributes.insert(ATTRIBUTE.to_owned(), scheme);
        let data = Array::new(element, bytes("words")?.to_vec());
        let scales = Array::new(DType::F8E8M0, bytes("scales")?.to_vec());
        let components = [(role("data"), data), (role("scales"), scales)];
        let layout = Layout::Other(MX.into());
        let tensor = Tensor::new(weight.shape.clone(), layout, components, Some(attributes)).ok()?;
        return Mx::of(&tensor).is_ok().then_some(tensor);
    }
    let bits = weight.bits;
    let [first, second] = weight.shape[..] else { return None };
    let group = if weight.group == 0 { second } else { weight.group };
    let packed = Packed { bits, inputs: 0, outputs: 0, groups: 0 };
    // What the object has: shape, axis of the groups, codes, scales, zero points.
    let (shape, axis, data, scales, zeros) = match weight.scheme {
        Scheme::Gptq => {
            let packed = Packed { inputs: first, outputs: second, groups: first.div_ceil(group), ..packed };
            let words = transposed(bytes("words")?, packed.words_along_inputs()?, second, 4)?;
            let scales = transposed(bytes("scales")?, packed.groups, second, scales_type.size()? as u64)?;
            let zeros = codes(bytes("zeros")?, packed.groups, second, bits)?;
            let zeros: Vec<u8> = zeros.iter().flat_map(|code| (code + 1).to_le_bytes()).collect();
            let zeros = transposed(&zeros, packed.groups, second, 2)?;
            ([second, first], 1u64, words, scales, Some((DType::U16, zeros)))
        }
        Scheme::Awq => {
            let zeros = codes(&reordered(bytes("zeros")?, AWQ_ORDER), first.div_ceil(group), second, bits)?;
            let zeros: Vec<u8> = zeros.iter().map(|&code| code as u8).collect();
            let words = reordered(bytes("words")?, AWQ_ORDER);
            ([first, second], 0, words, bytes("scales")?.to_vec(), Some((DType::U8, zeros)))
        }
        Scheme::PackedIntegers => {
            let groups = second.div_ceil(group);
            let zeros = match bytes("zeros") {
                None => None,
                // Packed along the outputs.
                Some(words) => {
                    let along = (first * u64::from(bits)).div_ceil(32);
                    let words = transposed(words, along, groups, 4)?;
                    let zeros = codes(&words, groups, first, bits)?;
                    let zeros: Vec<u8> = zeros.iter().map(|&code| code as u8).collect();
                    Some((DType::U8, transposed(&zeros, groups, first, 1)?))
                }
            };
            ([first, second], 1, bytes("words")?.to_vec(), bytes("scales")?.to_vec(), zeros)
        }
        _ => return None,
    };
    let zero_point = match &zeros {
        Some(_) => map([("form", "tensor".into()), ("packing", "plain".into())]),
        None => map([("form", "implied".into()), ("value", (1u64 << (bits - 1)).into())]),
    };
    let packing =
        map([("word", "u32".into()), ("order", "lsb_first".into()), ("per_word", (32 / bits).into())]);
    attributes.insert("bits".to_owned(), bits.into());
    attributes.insert("group_size".to_owned(), group.into());
    attributes.insert("axis".to_owned(), axis.into());
    attributes.insert("packing".to_owned(), packing);
    attributes.insert("scale_form".to_owned(), scale_form.into());
    attributes.insert("zero_point".to_owned(), zero_point);
    attributes.insert(ATTRIBUTE.to_owned(), scheme);
    let mut components =
        vec![(role("data"), Array::new(DType::I32, data)), (role("scales"), Array::new(scales_type, scales))];
    components.extend(zeros.map(|(dtype, zeros)| (role("zeros"), Array::new(dtype, zeros))));
    let layout = Layout::Other(QUANT_GROUP.into());
    let tensor = Tensor::new(&shape[..], layout, components, Some(attributes)).ok()?;
    QuantGroup::of(&tensor).is_ok().then_some(tensor)
}

/// The sizes of a weight of packed codes.
struct Packed {
    bits: u32,
    inputs: u64,
    outputs: u64,
    groups: u64,
}

impl Packed {
    fn words_along_inputs(&self) -> Option<u64> {
        let bits = self.inputs.checked_mul(self.bits.into())?;
        bits.is_multiple_of(32).then_some(bits / 32)
    }

    fn words_along_outputs(&self) -> Option<u64> {
        Some(self.outputs.checked_mul(self.bits.into())?.div_ceil(32))
    }
}

fn broken(what: &str) -> Error {
    Error::corrupt("schemes.object", format!("the attribute {ATTRIBUTE:?} does not fit the object: {what}"))
}

/// The tensors of a scheme that an object was made of.
fn split(tensor: &Tensor<'_>) -> Result<Vec<(String, Tensor<'static>)>> {
    let scheme = tensor.attribute(ATTRIBUTE).ok_or_else(|| broken("it is missing"))?;
    let name = scheme.get("name").and_then(Value::as_text).unwrap_or_default();
    let Some(Value::Array(listed)) = scheme.get("tensors") else { return Err(broken("it lists no tensors")) };
    let parts = listed.iter().map(ListedTensor::of).collect::<Option<Vec<_>>>();
    let parts = parts.ok_or_else(|| broken("a tensor of its list is not described"))?;
    let mut made = Vec::with_capacity(parts.len());
    let unfit = || broken("its sizes are others");
    // Sizes of the object fit each other; each part is compared with what the list says of it below.
    let is_mx = matches!(&tensor.layout, Layout::Other(layout) if &**layout == MX);
    let group = match is_mx {
        true => {
            Mx::of(tensor)?;
            None
        }
        false => Some(QuantGroup::of(tensor)?),
    };
    for part in parts {
        let component = |role: &str| tensor.require(role).map(|array| array.bytes.to_vec());
        let bytes = match (name, &*part.role, group) {
            (_, "words", None) => component("data")?,
            (_, "scales", None) => component("scales")?,
            (_, _, Some(group)) => {
                let sizes = Sizes::of(tensor, group)?;
                sizes.part(tensor, name, &part).ok_or_else(unfit)?
            }
            _ => return Err(broken("a tensor of no known role")),
        };
        let made_of = Tensor::from_bytes(&part.shape[..], part.dtype, bytes).map_err(|_| unfit())?;
        made.push((part.name, made_of.into_owned()));
    }
    Ok(made)
}

/// The sizes of an object, which fit its components.
struct Sizes {
    packed: Packed,
    group: u64,
}

impl Sizes {
    fn of(tensor: &Tensor<'_>, group: QuantGroup) -> Result<Sizes> {
        let [rows, columns] = tensor.shape[..] else { return Err(broken("it is not a matrix")) };
        if rows == 0 || columns == 0 {
            return Err(broken("it is empty"));
        }
        let (inputs, outputs) = if group.axis == 1 { (columns, rows) } else { (rows, columns) };
        let (bits, size) = (group.bits, group.group);
        let packed = Packed { bits, inputs, outputs, groups: inputs.div_ceil(size) };
        Ok(Sizes { packed, group: size })
    }

    /// The bytes of a tensor.
    fn part(&self, tensor: &Tensor<'_>, scheme: &str, part: &ListedTensor) -> Option<Vec<u8>> {
        let Packed { bits, inputs, outputs, groups } = self.packed;
        let component = |role: &str| tensor.component(role).map(|array| &*array.bytes);
        let axis_last = matches!(scheme, "GPTQ" | "packed integers");
        if tensor.shape[..] != if axis_last { [outputs, inputs] } else { [inputs, outputs] } {
            return None;
        }
        Some(match (scheme, &*part.role) {
            ("GPTQ", "words") => {
                transposed(component("data")?, outputs, self.packed.words_along_inputs()?, 4)?
            }
            ("GPTQ", "scales") => {
                let width = tensor.component("scales")?.dtype.size()? as u64;
                transposed(component("scales")?, outputs, groups, width)?
            }
            ("GPTQ", "zeros") => {
                let zeros = transposed(component("zeros")?, outputs, groups, 2)?;
                let zeros = zeros.as_chunks::<2>().0.iter().map(|zero| u16::from_le_bytes(*zero));
                let zeros = zeros.map(|zero| zero.checked_sub(1)).collect::<Option<Vec<u16>>>()?;
                packed(&zeros, groups, outputs, bits, self.packed.words_along_outputs()?)?
            }
            ("GPTQ", "groups") => {
                (0..inputs).flat_map(|input| ((input / self.group) as u32).to_le_bytes()).collect()
            }
            ("AWQ", "words") => reordered(component("data")?, inverse(AWQ_ORDER)),
            ("AWQ", "zeros") => {
                let zeros: Vec<u16> = component("zeros")?.iter().map(|&zero| zero.into()).collect();
                let words = packed(&zeros, groups, outputs, bits, self.packed.words_along_outputs()?)?;
                reordered(&words, inverse(AWQ_ORDER))
            }
            ("AWQ" | "packed integers", "scales") => component("scales")?.to_vec(),
            ("packed integers", "words") => component("data")?.to_vec(),
            ("packed integers", "zeros") => {
                let zeros = transposed(component("zeros")?, outputs, groups, 1)?;
                let zeros: Vec<u16> = zeros.iter().map(|&zero| zero.into()).collect();
                let along = self.packed.words_along_outputs()?;
                transposed(&packed(&zeros, groups, outputs, bits, along)?, groups, along, 4)?
            }
            ("packed integers", "shape") => match part.dtype {
                DType::I64 => [outputs, inputs].iter().flat_map(|size| size.to_le_bytes()).collect(),
                DType::I32 => {
                    [outputs, inputs].iter().flat_map(|size| (*size as u32).to_le_bytes()).collect()
                }
                _ => return None,
            },
            _ => return None,
        })
    }
}

/// A matrix of elements of `width` bytes with rows and columns swapped; `None` where it has another size.
fn transposed(bytes: &[u8], rows: u64, columns: u64, width: u64) -> Option<Vec<u8>> {
    let len = rows.checked_mul(columns)?.checked_mul(width)?;
    (len == bytes.len() as u64).then_some(())?;
    let (rows, columns, width) = (rows as usize, columns as usize, width as usize);
    let mut out = vec![0; bytes.len()];
    for (at, element) in bytes.chunks_exact(width).enumerate() {
        let (row, column) = (at / columns, at % columns);
        out[(column * rows + row) * width..][..width].copy_from_slice(element);
    }
    Some(out)
}

/// The codes of rows of words, `columns` to a row.
fn codes(bytes: &[u8], rows: u64, columns: u64, bits: u32) -> Option<Vec<u16>> {
    let along = columns.checked_mul(bits.into())?.div_ceil(32);
    (rows.checked_mul(along)?.checked_mul(4)? == bytes.len() as u64 && bits <= 8).then_some(())?;
    let words: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let (columns, along) = (columns as usize, along as usize);
    let row = |row: usize| {
        let words = &words[row * along..][..along];
        (0..columns).map(move |column| super::dequantize::code(words, 1, column, bits as usize) as u16)
    };
    Some((0..rows as usize).flat_map(row).collect())
}

/// The opposite: `None` where a code has more bits.
fn packed(codes: &[u16], rows: u64, columns: u64, bits: u32, along: u64) -> Option<Vec<u8>> {
    (rows.checked_mul(columns)? == codes.len() as u64 && 32 % bits == 0).then_some(())?;
    codes.iter().all(|&code| code >> bits == 0).then_some(())?;
    let (columns, along) = (columns as usize, along as usize);
    let mut words = vec![0u32; rows as usize * along];
    let per_word = (32 / bits) as usize;
    for (at, &code) in codes.iter().enumerate() {
        let (row, column) = (at / columns, at % columns);
        words[row * along + column / per_word] |= u32::from(code) << (column % per_word * bits as usize);
    }
    Some(words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

/// Words with nibble `order[i]` in place of nibble `i`.
fn reordered(bytes: &[u8], order: [usize; 8]) -> Vec<u8> {
    let words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
    let turned = words.map(|word| {
        order.iter().enumerate().fold(0, |new, (place, from)| new | (word >> (4 * from) & 15) << (4 * place))
    });
    turned.flat_map(u32::to_le_bytes).collect()
}

fn inverse(order: [usize; 8]) -> [usize; 8] {
    let mut inverse = [0; 8];
    order.iter().enumerate().for_each(|(place, &from)| inverse[from] = place);
    inverse
}
