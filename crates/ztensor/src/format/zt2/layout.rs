//! Layouts of version 2: what their parts and attributes must be, what their contents must be, and
//! what they are in the catalog.

use std::borrow::Cow;

use super::types::Element;
use crate::catalog::{Layout, Role};
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};
use crate::format::gguf::{GgmlType, ORDER_ATTRIBUTE, TYPE_ATTRIBUTE};
use crate::format::zt::manifest::role;
use crate::tensor::Tensor;
use crate::tensor::value::{Attributes, Value};

pub(super) const DENSE: &str = "dense";
const CSR: &str = "zt.sparse_csr/1";
const COO: &str = "zt.sparse_coo/1";
/// Affine codes with one scale per group.
pub(crate) const QUANT_GROUP: &str = "zt.quant_group/1";
/// OCP microscaling blocks.
pub(crate) const MX: &str = "zt.mx/1";
/// The `quantized_group` layout of version 1.2, which is not that of [`QUANT_GROUP`].
const OWN_QUANTIZED: &str = "ztensor.quantized_group/1";

/// The attributes of GGUF blocks.
const BLOCK_ELEMENTS: &str = "elems_per_block";
const BLOCK_BYTES: &str = "block_bytes";

/// A part as layout rules see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartSize<'a> {
    pub(super) role: &'a str,
    pub(super) element: Element<'a>,
    /// Decoded bytes.
    pub(super) len: u64,
}

/// An object as layout rules see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Described<'a> {
    pub(super) shape: &'a [u64],
    pub(super) layout: &'a str,
    pub(super) parts: &'a [PartSize<'a>],
    pub(super) attributes: Option<&'a Attributes>,
}

fn broken(what: impl Into<String>) -> Error {
    Error::corrupt("zt2.LayoutRule", what)
}

fn bad_data(what: impl Into<String>) -> Error {
    Error::corrupt("zt2.LayoutData", what)
}

/// The product of a shape, multiplied from left to right without overflow.
pub(super) fn product(shape: &[u64]) -> Result<u64> {
    let product = shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
    product.ok_or_else(|| Error::corrupt("zt2.Shape", format!("the product of {shape:?} exceeds 2^64 - 1")))
}

/// The metadata rules of a layout. A layout that is not known has none.
pub(super) fn check(object: &Described<'_>) -> Result<()> {
    match object.layout {
        DENSE => object.dense(),
        CSR => object.csr(),
        COO => object.coo(),
        QUANT_GROUP => QuantGroup::new(object).map(drop),
        MX => Mx::new(object).map(drop),
        layout if gguf_name(layout).is_some() => object.gguf(),
        _ => Ok(()),
    }
}

/// The type that a layout `gguf.<type>/1` names.
fn gguf_name(layout: &str) -> Option<&str> {
    layout.strip_prefix("gguf.")?.strip_suffix("/1").filter(|name| !name.is_empty())
}

impl<'a> Described<'a> {
    fn part(&self, role: &str) -> Result<&PartSize<'a>> {
        let found = self.parts.iter().find(|part| part.role == role);
        found.ok_or_else(|| broken(format!("a {} object needs a part {role:?}", self.layout)))
    }

    /// Refuses parts other than these.
    fn exactly(&self, roles: &[&str]) -> Result<()> {
        roles.iter().try_for_each(|role| self.part(role).map(drop))?;
        match self.parts.iter().find(|part| !roles.contains(&part.role)) {
            None => Ok(()),
            Some(part) => Err(broken(format!("a {} object has no part {}", self.layout, quoted(part.role)))),
        }
    }

    /// Refuses a part that does not have the bytes of `count` elements, if its size is known.
    fn sized(&self, role: &str, count: u64, rule: &'static str) -> Result<()> {
        let part = self.part(role)?;
        match part.element.size(count) {
            None => Ok(()),
            Some(Some(bytes)) if bytes == part.len => Ok(()),
            _ => Err(Error::corrupt(
                rule,
                format!(
                    "{role:?} has {} bytes, which are not {count} elements of {}",
                    part.len,
                    part.element.shown()
                ),
            )),
        }
    }

    fn bytes(&self, role: &str, expected: Option<u64>) -> Result<()> {
        let found = self.part(role)?.len;
        match expected {
            Some(expected) if expected == found => Ok(()),
            _ => {
                Err(broken(format!("{role:?} has {found} bytes, which its shape and attributes do not give")))
            }
        }
    }

    fn dense(&self) -> Result<()> {
        self.exactly(&["data"])?;
        self.sized("data", product(self.shape)?, "zt2.DenseSize")
    }

    /// The width of indices in a part.
    fn index_width(&self, role: &str) -> Result<u64> {
        let part = self.part(role)?;
        part.element
            .index_width()
            .ok_or_else(|| broken(format!("{role:?} is {}, neither u32 nor u64", part.element.shown())))
    }

    fn csr(&self) -> Result<()> {
        let &[rows, _] = self.shape else {
            return Err(broken(format!("a CSR matrix has two dimensions, not {}", self.shape.len())));
        };
        self.exactly(&["values", "indices", "indptr"])?;
        let width = self.index_width("indices")?;
        if self.part("indptr")?.element != self.part("indices")?.element {
            return Err(broken("\"indptr\" and \"indices\" differ in type"));
        }
        let indices = self.part("indices")?.len;
        if !indices.is_multiple_of(width) {
            return Err(broken(format!("\"indices\" has {indices} bytes, which are not whole indices")));
        }
        let pointers = rows.checked_add(1).and_then(|count| count.checked_mul(width));
        let pointers = pointers.ok_or_else(|| {
            Error::corrupt("zt2.Shape", format!("{rows} rows have more than 2^64 bytes of row pointers"))
        })?;
        self.bytes("indptr", Some(pointers))?;
        self.sized("values", indices / width, "zt2.LayoutRule")
    }

    fn coo(&self) -> Result<()> {
        let rank = self.shape.len() as u64;
        if rank == 0 {
            return Err(broken("a scalar has no coordinates"));
        }
        self.exactly(&["values", "coords"])?;
        let cell = self.index_width("coords")? * rank;
        let coords = self.part("coords")?.len;
        if !coords.is_multiple_of(cell) {
            return Err(broken(format!("\"coords\" has {coords} bytes, which are not whole coordinates")));
        }
        self.sized("values", coords / cell, "zt2.LayoutRule")
    }

    fn gguf(&self) -> Result<()> {
        self.exactly(&["data"])?;
        if self.part("data")?.element != Element::Plain(DType::U8) {
            return Err(broken("blocks are plain u8"));
        }
        let elements = self.number(BLOCK_ELEMENTS)?;
        let bytes = self.number(BLOCK_BYTES)?;
        if elements == 0 || bytes == 0 {
            return Err(broken("blocks have at least one element and one byte"));
        }
        let count = product(self.shape)?;
        if !count.is_multiple_of(elements) {
            return Err(broken(format!("{count} elements do not fill whole blocks of {elements}")));
        }
        self.bytes("data", (count / elements).checked_mul(bytes))
    }

    fn attribute(&self, name: &str) -> Result<&'a Value> {
        let found = self.attributes.and_then(|attributes| attributes.get(name));
        found.ok_or_else(|| broken(format!("a {} object needs the attribute {name:?}", self.layout)))
    }

    fn number(&self, name: &str) -> Result<u64> {
        number(self.attribute(name)?, name)
    }

    fn text(&self, name: &str) -> Result<&'a str> {
        let text = self.attribute(name)?.as_text();
        text.ok_or_else(|| broken(format!("the attribute {name:?} is not text")))
    }

    /// The size of the dimension that an axis names.
    fn along(&self, axis: u64) -> Result<u64> {
        let size = usize::try_from(axis).ok().and_then(|axis| self.shape.get(axis));
        size.copied()
            .ok_or_else(|| broken(format!("the axis {axis} is outside {} dimensions", self.shape.len())))
    }
}

fn number(value: &Value, name: &str) -> Result<u64> {
    let number = value.as_int().and_then(|number| u64::try_from(number).ok());
    number.ok_or_else(|| broken(format!("{name:?} is not a number from 0 to 2^64 - 1")))
}

/// A `zt.quant_group/1` object whose parameters fit its parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuantGroup {
    pub(crate) bits: u32,
    pub(crate) axis: usize,
    /// Codes along the axis that share a scale.
    pub(crate) group: u64,
    /// One scale for the whole axis, whatever the other indices are.
    pub(crate) per_channel: bool,
    /// Bytes of a word.
    pub(crate) width: u64,
    pub(crate) per_word: u64,
    pub(crate) lowest_first: bool,
    pub(crate) signed: bool,
    pub(crate) zero: ZeroPoint,
}

/// What is subtracted from a code.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ZeroPoint {
    None,
    Implied(i128),
    /// One element of `zeros` for each group.
    Plain,
    /// Codes packed like those of `data`.
    Packed,
}

impl QuantGroup {
    fn new(object: &Described<'_>) -> Result<QuantGroup> {
        let bits = object.number("bits")?;
        let group_size = object.number("group_size")?;
        let axis = object.number("axis")?;
        let along = object.along(axis)?;
        let packing = object.attribute("packing")?;
        let entry = |map: &'_ Value, outer: &str, name: &str| -> Result<Value> {
            let found = map.get(name).cloned();
            found.ok_or_else(|| broken(format!("the attribute {outer:?} has no {name:?}")))
        };
        let word = match entry(packing, "packing", "word")?.as_text() {
            Some("u8") => DType::U8,
            Some("u16") => DType::U16,
            Some("u32") => DType::U32,
            Some("u64") => DType::U64,
            _ => return Err(broken("the word of the packing is none of u8, u16, u32, u64")),
        };
        let lowest_first = match entry(packing, "packing", "order")?.as_text() {
            Some("lsb_first") => true,
            Some("msb_first") => false,
            _ => return Err(broken("the order of the packing is neither lsb_first nor msb_first")),
        };
        let per_word = number(&entry(packing, "packing", "per_word")?, "per_word")?;
        if !matches!(bits, 2 | 4 | 8) || per_word.checked_mul(bits) != Some(u64::from(word.bits())) {
            return Err(broken(format!("{per_word} codes of {bits} bits do not fill one {word}")));
        }
        let zero_point = object.attribute("zero_point")?;
        let zero = match entry(zero_point, "zero_point", "form")?.as_text() {
            Some("none") => ZeroPoint::None,
            Some("implied") => {
                let value = entry(zero_point, "zero_point", "value")?.as_int();
                ZeroPoint::Implied(value.ok_or_else(|| broken("the implied zero is not an integer"))?)
            }
            Some("tensor") => match entry(zero_point, "zero_point", "packing")?.as_text() {
                Some("plain") => ZeroPoint::Plain,
                Some("same_as_data") => ZeroPoint::Packed,
                _ => return Err(broken("the packing of zeros is neither plain nor same_as_data")),
            },
            _ => return Err(broken("the form of the zero point is none of none, implied, tensor")),
        };
        let has_zeros = matches!(zero, ZeroPoint::Plain | ZeroPoint::Packed);
        object.exactly(if has_zeros { &["data", "scales", "zeros"] } else { &["data", "scales"] })?;
        let is_word = |element: Element<'_>| match element {
            Element::Plain(dtype) => dtype == word || Some(dtype) == signed_twin(word),
            _ => false,
        };
        let data = object.part("data")?.element;
        if !is_word(data) {
            return Err(broken(format!("\"data\" is {}, not {word}", data.shown())));
        }
        object.scales_of_form()?;
        let width = u64::from(word.bits()) / 8;
        let codes = product(object.shape)?;
        if !codes.is_multiple_of(per_word) {
            return Err(broken(format!("{codes} codes do not fill words of {per_word}")));
        }
        object.bytes("data", (codes / per_word).checked_mul(width))?;
        let scale_width = object.part("scales")?.element.dtype().size().unwrap_or(1) as u64;
        let scale_count = object.part("scales")?.len / scale_width;
        // The text leaves open whether 0 means one scale for each element or for each index of the axis.
        let per_channel = group_size == 0 && scale_count == along;
        let group = match group_size {
            0 => 1,
            size if !along.is_multiple_of(size) => {
                return Err(broken(format!("{along} codes along the axis do not fill groups of {size}")));
            }
            size => size,
        };
        let scales = if per_channel { along } else { codes / group };
        object.bytes("scales", scales.checked_mul(scale_width))?;
        if has_zeros {
            let zeros = object.part("zeros")?.element;
            if zero == ZeroPoint::Packed {
                if !is_word(zeros) || !scales.is_multiple_of(per_word) {
                    return Err(broken("packed zeros do not fill words like those of \"data\""));
                }
                object.bytes("zeros", (scales / per_word).checked_mul(width))?;
            } else {
                object.sized("zeros", scales, "zt2.LayoutRule")?;
            }
        }
        let signed = bits == u64::from(word.bits()) && data != Element::Plain(word);
        let (bits, axis) = (bits as u32, axis as usize);
        Ok(QuantGroup { bits, axis, group, per_channel, width, per_word, lowest_first, signed, zero })
    }

    /// The parameters of a tensor in memory.
    pub(crate) fn of(tensor: &Tensor<'_>) -> Result<QuantGroup> {
        described(tensor, QUANT_GROUP, QuantGroup::new)
    }
}

/// The signed type of the same width.
fn signed_twin(word: DType) -> Option<DType> {
    Some(match word {
        DType::U8 => DType::I8,
        DType::U16 => DType::I16,
        DType::U32 => DType::I32,
        DType::U64 => DType::I64,
        _ => return None,
    })
}

impl Described<'_> {
    /// Scales have the type that their form asks for.
    fn scales_of_form(&self) -> Result<()> {
        let scales = self.part("scales")?.element;
        let form = self.text("scale_form")?;
        let fits = match (form, scales) {
            ("f32_factors", Element::Plain(dtype)) => {
                matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16)
            }
            ("f16_factors", Element::Plain(dtype)) => matches!(dtype, DType::F16 | DType::BF16),
            ("e8m0_exponent", element) => element == Element::Logical(DType::F8E8M0),
            _ => false,
        };
        match fits {
            true => Ok(()),
            false => Err(broken(format!("\"scales\" of {} are not {}", scales.shown(), quoted(form)))),
        }
    }
}

/// A `zt.mx/1` object whose parameters fit its parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mx {
    pub(crate) axis: usize,
    pub(crate) block: u64,
}

impl Mx {
    fn new(object: &Described<'_>) -> Result<Mx> {
        let axis = match object.attributes.and_then(|attributes| attributes.get("axis")) {
            Some(axis) => number(axis, "axis")?,
            None => {
                (object.shape.len() as u64).checked_sub(1).ok_or_else(|| broken("a scalar has no axis"))?
            }
        };
        let along = object.along(axis)?;
        let block = object.number("block_size")?;
        if block < 2 || !along.is_multiple_of(block) {
            return Err(broken(format!("{along} elements along the axis do not fill blocks of {block}")));
        }
        object.exactly(&["data", "scales"])?;
        if object.text("scale_form")? != "e8m0_exponent" {
            return Err(broken("the scales of zt.mx/1 are e8m0_exponent"));
        }
        object.scales_of_form()?;
        let count = product(object.shape)?;
        let data = object.part("data")?.element;
        if is_mx_element(data) {
            object.sized("data", count, "zt2.LayoutRule")?;
        }
        object.bytes("scales", Some(count / block))?;
        Ok(Mx { axis: axis as usize, block })
    }

    /// The parameters of a tensor in memory.
    pub(crate) fn of(tensor: &Tensor<'_>) -> Result<Mx> {
        described(tensor, MX, |object| {
            let data = object.part("data")?.element;
            match is_mx_element(data) {
                true => Mx::new(object),
                false => Err(Error::unsupported(format!("zt.mx/1 has no elements of {}", data.shown()))),
            }
        })
    }
}

fn is_mx_element(element: Element<'_>) -> bool {
    matches!(
        element,
        Element::Logical(DType::F4E2M1 | DType::F6E2M3 | DType::F6E3M2 | DType::F8E4M3FN | DType::F8E5M2)
            | Element::Plain(DType::I8)
    )
}

/// Calls `then` with a tensor in memory as layout rules see it.
fn described<T>(
    tensor: &Tensor<'_>,
    layout: &str,
    then: impl FnOnce(&Described<'_>) -> Result<T>,
) -> Result<T> {
    let size = |(role, array): &'_ (Role, crate::tensor::Array<'_>)| (role.to_string(), array.bytes.len());
    let sizes: Vec<(String, usize)> = tensor.components.iter().map(size).collect();
    let parts: Vec<PartSize<'_>> = (tensor.components.iter().zip(&sizes))
        .map(|((_, array), (role, len))| PartSize {
            role,
            element: Element::of(array.dtype, array.unknown_type.as_deref()),
            len: *len as u64,
        })
        .collect();
    let attributes = tensor.attributes.as_deref();
    then(&Described { shape: &tensor.shape, layout, parts: &parts, attributes })
}

/// What an object of the file is in the catalog: its layout, the names of its components, and its
/// attributes.
pub(super) struct Mapped {
    pub(super) layout: Layout,
    /// The role that `data` has in the catalog.
    pub(super) data: &'static str,
    pub(super) attributes: Option<Box<Attributes>>,
}

/// Maps an object that [`check`] has accepted.
pub(super) fn into_catalog(object: &Described<'_>, attributes: Option<Box<Attributes>>) -> Mapped {
    let same = |layout| Mapped { layout, data: "data", attributes: None };
    let mapped = match object.layout {
        DENSE => same(Layout::Dense),
        CSR => same(Layout::SparseCsr),
        COO => same(Layout::SparseCoo),
        OWN_QUANTIZED
            if ["packed_weight", "scales", "zeros"].iter().all(|role| object.part(role).is_ok()) =>
        {
            same(Layout::QuantizedGroup)
        }
        layout => match gguf_type(object) {
            Some(ggml_type) => {
                let mut attributes = attributes.unwrap_or_default();
                attributes.shift_remove(BLOCK_ELEMENTS);
                attributes.shift_remove(BLOCK_BYTES);
                attributes.insert(TYPE_ATTRIBUTE.to_owned(), Value::from(ggml_type.id()));
                let layout = Layout::Other(ggml_type.layout_name().into());
                return Mapped { layout, data: "blocks", attributes: Some(attributes) };
            }
            None => same(Layout::Other(layout.into())),
        },
    };
    Mapped { attributes, ..mapped }
}

/// The block type of an object, if it is one that the catalog has a layout for: the attributes say
/// what the table of types does, and would be the same when they are written again.
fn gguf_type(object: &Described<'_>) -> Option<GgmlType> {
    let ggml_type = GgmlType::from_name(gguf_name(object.layout)?).filter(|known| known.is_block())?;
    let own = |name: &str| object.attributes.is_some_and(|attributes| attributes.contains_key(name));
    let agrees = object.number(BLOCK_ELEMENTS).ok()? == ggml_type.block_elements()
        && object.number(BLOCK_BYTES).ok()? == ggml_type.block_bytes()
        && object.layout.as_bytes()[5..].starts_with(ggml_type.name().as_bytes())
        && ggml_type.byte_len(object.shape) == Some(object.part("data").ok()?.len)
        && !own(TYPE_ATTRIBUTE)
        && !own(ORDER_ATTRIBUTE);
    agrees.then_some(ggml_type)
}

/// What an object of a catalog is in a file of version 2.
pub(super) struct Written<'a> {
    pub(super) layout: Cow<'a, str>,
    pub(super) attributes: Option<Cow<'a, Attributes>>,
    /// The role in the catalog whose part is called `data`.
    data: &'static str,
}

impl Written<'_> {
    /// What a component is called in the file.
    pub(super) fn role<'r>(&self, role: &'r str) -> &'r str {
        if role == self.data { "data" } else { role }
    }

    /// The same the other way round.
    pub(super) fn component(&self, part: &str) -> Role {
        if part == "data" { Role::Borrowed(self.data) } else { role(part) }
    }
}

/// Maps an object of any catalog; the inverse of [`into_catalog`].
pub(super) fn from_catalog<'a>(
    layout: &'a Layout,
    attributes: Option<&'a Attributes>,
    roles: impl Iterator<Item = &'a str>,
) -> Written<'a> {
    let mut roles = roles;
    let attributes = attributes.map(Cow::Borrowed);
    let written = |layout: &'static str| Written {
        layout: Cow::Borrowed(layout),
        attributes: attributes.clone(),
        data: "data",
    };
    match layout {
        Layout::Dense => written(DENSE),
        Layout::SparseCsr => written(CSR),
        Layout::SparseCoo => written(COO),
        Layout::QuantizedGroup => written(OWN_QUANTIZED),
        Layout::Other(name) => {
            let swapped = attributes.as_ref().is_some_and(|own| own.contains_key(ORDER_ATTRIBUTE));
            let blocks = roles.next() == Some("blocks") && roles.next().is_none();
            match GgmlType::from_layout_name(name).filter(|_| blocks && !swapped) {
                Some(ggml_type) => {
                    let mut own = attributes.map(Cow::into_owned).unwrap_or_default();
                    own.shift_remove(TYPE_ATTRIBUTE);
                    own.insert(BLOCK_ELEMENTS.to_owned(), Value::from(ggml_type.block_elements()));
                    own.insert(BLOCK_BYTES.to_owned(), Value::from(ggml_type.block_bytes()));
                    Written {
                        layout: Cow::Owned(format!("{name}/1")),
                        attributes: Some(Cow::Owned(own)),
                        data: "blocks",
                    }
                }
                None => Written { layout: Cow::Borrowed(name), attributes, data: "data" },
            }
        }
    }
}

/// The rules of a layout's contents: truth values, the unused half of a last byte, sparse indices.
pub(crate) fn check_data(tensor: &Tensor<'_>) -> Result<()> {
    for (role, array) in &tensor.components {
        if array.unknown_type.is_none() {
            check_elements(array.dtype, &array.bytes).map_err(|error| error.within(quoted(role)))?;
        }
    }
    let packed = |role: &str, count: u64| match tensor.component(role) {
        Some(array) if array.unknown_type.is_none() => check_last(array.dtype, count, array.bytes.last()),
        _ => Ok(()),
    };
    match &tensor.layout {
        Layout::Dense => packed("data", product(&tensor.shape)?),
        Layout::SparseCsr => {
            let indices = wide(tensor, "indices")?;
            packed("values", indices.len() as u64)?;
            csr_data(&tensor.shape, &indices, &wide(tensor, "indptr")?)
        }
        Layout::SparseCoo => {
            let coords = wide(tensor, "coords")?;
            packed("values", coords.len() as u64 / (tensor.shape.len().max(1) as u64))?;
            coo_data(&tensor.shape, &coords)
        }
        Layout::Other(name) if &**name == MX => packed("data", product(&tensor.shape)?),
        _ => Ok(()),
    }
}

/// Truth values are 0 or 1.
pub(crate) fn check_elements(dtype: DType, bytes: &[u8]) -> Result<()> {
    dtype.check_values(bytes).map_err(|error| error.under("zt2.LayoutData"))
}

/// With an odd number of nibbles, the high half of the last byte is 0.
pub(crate) fn check_last(dtype: DType, count: u64, last: Option<&u8>) -> Result<()> {
    let used = count.wrapping_mul(u64::from(dtype.bits())) % 8;
    match last {
        Some(&byte) if dtype.bits() < 8 && used > 0 && byte >> used != 0 => {
            Err(bad_data(format!("the last byte is {byte:#04x}, with bits set behind element {count}")))
        }
        _ => Ok(()),
    }
}

fn wide(tensor: &Tensor<'_>, role: &str) -> Result<Vec<u64>> {
    tensor.require(role)?.to_indices()
}

fn csr_data(shape: &[u64], indices: &[u64], indptr: &[u64]) -> Result<()> {
    let columns = shape.get(1).copied().unwrap_or(0);
    let count = indices.len() as u64;
    if indptr.first() != Some(&0) || indptr.last() != Some(&count) {
        return Err(bad_data(format!("row pointers must run from 0 to {count}")));
    }
    for (row, pair) in indptr.windows(2).enumerate() {
        // Every pointer is at most `count` if none falls and the last one is.
        if pair[0] > pair[1] || pair[1] > count {
            return Err(bad_data(format!("row pointers fall from {} to {}", pair[0], pair[1])));
        }
        let row_indices = &indices[pair[0] as usize..pair[1] as usize];
        if row_indices.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(bad_data(format!("the columns of row {row} do not increase")));
        }
        if row_indices.last().is_some_and(|&last| last >= columns) {
            return Err(bad_data(format!(
                "row {row} has a column beyond the {columns} columns of the matrix"
            )));
        }
    }
    Ok(())
}

fn coo_data(shape: &[u64], coords: &[u64]) -> Result<()> {
    if shape.is_empty() || coords.is_empty() {
        return Ok(());
    }
    let count = coords.len() / shape.len();
    let mut cells = crate::base::huge_pages::zeroed_vec::<u64>(count as u64)?;
    for (dimension, (&size, coords)) in shape.iter().zip(coords.chunks_exact(count)).enumerate() {
        for (cell, &at) in cells.iter_mut().zip(coords) {
            if at >= size {
                let message = format!("coordinate {at} is outside dimension {dimension} of size {size}");
                return Err(bad_data(message));
            }
            // The product of all sizes fits, so the number of every cell does.
            *cell = cell.wrapping_mul(size).wrapping_add(at);
        }
    }
    if !cells.is_sorted_by(|a, b| a < b) {
        cells.sort_unstable();
        if cells.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(bad_data("two values have the same coordinates"));
        }
    }
    Ok(())
}
