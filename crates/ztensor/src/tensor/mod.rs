//! A tensor in hand: an object whose components have bytes.
//!
//! [`Reader::read_object`](crate::Reader::read_object) returns one,
//! [`Writer::write_object`](crate::Writer::write_object) takes one. Nothing is
//! converted unless one of the `into_…` calls asks for it.

pub(crate) mod quantized;
pub(crate) mod scaled;
pub mod to_f64;
pub mod value;

use std::borrow::Cow;

use crate::catalog::validate;
use crate::catalog::{Component, Extent, Layout, Object, Role, Shape, elements};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::format::gguf::{self, GgmlType};
use crate::format::zt::manifest::role;
use crate::format::zt2::layout;
use crate::tensor::value::{Attributes, Value};

/// The bytes of one component, borrowed from a mapping or owned.
#[derive(Debug, Clone, PartialEq)]
pub struct Array<'a> {
    /// What the elements are.
    pub dtype: DType,
    /// The logical type's name where this version does not know it.
    pub unknown_type: Option<Box<str>>,
    /// The elements, little-endian.
    pub bytes: Cow<'a, [u8]>,
}

impl<'a> Array<'a> {
    /// An array over `bytes`.
    pub fn new(dtype: DType, bytes: impl Into<Cow<'a, [u8]>>) -> Array<'a> {
        Array { dtype, unknown_type: None, bytes: bytes.into() }
    }

    /// An array over typed elements.
    pub fn from_slice<T: Element>(elements: &'a [T]) -> Array<'a> {
        Array::new(T::DTYPE, bytemuck::cast_slice(elements))
    }

    /// The elements, without a copy; an error if they are of another type or unaligned.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        typed_view(self.dtype, &self.bytes)
    }

    /// The elements, copied into a vector; alignment does not matter.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        check_type::<T>(self.dtype)?;
        let count = self.bytes.len() / size_of::<T>();
        let mut vec = crate::base::huge_pages::zeroed_vec::<T>(count as u64)?;
        bytemuck::cast_slice_mut(&mut vec).copy_from_slice(&self.bytes);
        Ok(vec)
    }

    /// Indices of `u32` or `u64`, as `u64`.
    pub(crate) fn to_indices(&self) -> Result<Vec<u64>> {
        match self.dtype {
            DType::U32 => Ok(self.to_vec::<u32>()?.into_iter().map(u64::from).collect()),
            _ => self.to_vec(),
        }
    }

    fn into_owned(self) -> Array<'static> {
        Array {
            bytes: Cow::Owned(self.bytes.into_owned()),
            dtype: self.dtype,
            unknown_type: self.unknown_type,
        }
    }
}

pub(crate) fn check_type<T: Element>(dtype: DType) -> Result<()> {
    match T::matches(dtype) {
        true => Ok(()),
        false => Err(Error::invalid(format!("its elements are {dtype}, not {}", T::DTYPE))),
    }
}

pub(crate) fn typed_view<T: Element>(dtype: DType, bytes: &[u8]) -> Result<&[T]> {
    check_type::<T>(dtype)?;
    bytemuck::try_cast_slice(bytes).map_err(|_| {
        Error::unsupported(format!(
            "its {} bytes are not aligned to {} bytes in this file, so they cannot be viewed as {}: read them instead",
            bytes.len(),
            align_of::<T>(),
            T::DTYPE
        ))
    })
}

/// The components of sparse tensors that hold indices.
const INDEX_ROLES: [&str; 3] = ["indices", "indptr", "coords"];

/// Whether a component of a sparse tensor holds indices of `u32`.
pub(crate) fn is_narrow(role: &str, dtype: DType) -> bool {
    INDEX_ROLES.contains(&role) && dtype == DType::U32
}

/// A tensor with its bytes, whatever its layout.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor<'a> {
    /// The logical shape.
    pub shape: Shape,
    /// How the components make up the tensor.
    pub layout: Layout,
    /// The components by role.
    pub components: Vec<(Role, Array<'a>)>,
    /// Attributes of this tensor.
    pub attributes: Option<Box<Attributes>>,
}

impl<'a> Tensor<'a> {
    /// A tensor of any layout, checked as a file's would be.
    pub fn new(
        shape: impl Into<Shape>,
        layout: Layout,
        components: impl IntoIterator<Item = (Role, Array<'a>)>,
        attributes: Option<Attributes>,
    ) -> Result<Tensor<'a>> {
        let tensor = Tensor {
            shape: shape.into(),
            layout,
            components: components.into_iter().collect(),
            attributes: attributes.map(Box::new),
        };
        tensor.check()?;
        Ok(tensor)
    }

    /// A dense tensor over raw bytes.
    pub fn from_bytes(
        shape: impl Into<Shape>,
        dtype: DType,
        bytes: impl Into<Cow<'a, [u8]>>,
    ) -> Result<Tensor<'a>> {
        Tensor::new(shape, Layout::Dense, [(role("data"), Array::new(dtype, bytes))], None)
    }

    /// A dense tensor over typed elements.
    pub fn from_slice<T: Element>(shape: impl Into<Shape>, elements: &'a [T]) -> Result<Tensor<'a>> {
        Tensor::new(shape, Layout::Dense, [(role("data"), Array::from_slice(elements))], None)
    }

    /// The array of that role.
    pub fn component(&self, role: &str) -> Option<&Array<'a>> {
        self.components.iter().find(|(name, _)| name == role).map(|(_, array)| array)
    }

    pub(crate) fn require(&self, role: &str) -> Result<&Array<'a>> {
        self.component(role).ok_or_else(|| Error::not_found(format!("the tensor has no component {role:?}")))
    }

    /// The element type: that of `data`, `values` or the first component.
    pub fn dtype(&self) -> Option<DType> {
        self.component("data")
            .or_else(|| self.component("values"))
            .or_else(|| self.components.first().map(|(_, array)| array))
            .map(|array| array.dtype)
    }

    /// The attribute of that name.
    pub fn attribute(&self, name: &str) -> Option<&Value> {
        self.attributes.as_ref()?.get(name)
    }

    /// Checks the structure as a reader would, and the contents of sparse indices.
    pub(crate) fn check(&self) -> Result<()> {
        // The same function that judges files judges tensors about to be written.
        validate::object(&self.describe()).map_err(|error| Error::invalid(error.to_string()))
    }

    /// Whether sparse indices are not the `u64` that `.zt` files of version 1.2 hold.
    pub(crate) fn has_narrow_indices(&self) -> bool {
        let sparse = matches!(self.layout, Layout::SparseCsr | Layout::SparseCoo);
        let narrow = |(role, array): &(Role, Array<'_>)| is_narrow(role, array.dtype);
        sparse && self.components.iter().any(narrow)
    }

    /// The same tensor with sparse indices of `u64`.
    pub(crate) fn with_wide_indices(&self) -> Result<Tensor<'_>> {
        let mut wide = self.borrowed();
        if self.has_narrow_indices() {
            for (_, array) in wide.components.iter_mut().filter(|(role, array)| is_narrow(role, array.dtype))
            {
                let bytes = bytemuck::cast_slice(&array.to_indices()?).to_vec();
                *array = Array::new(DType::U64, bytes);
            }
        }
        Ok(wide)
    }

    /// What it would be in a file: the same, without the bytes.
    pub fn describe(&self) -> Object {
        let components = self.components.iter().map(|(role, array)| {
            let mut component = Component::plain(array.dtype, Extent::new(0, array.bytes.len() as u64));
            component.unknown_type = array.unknown_type.clone();
            (role.clone(), component)
        });
        let mut object = Object::new(self.shape.clone(), self.layout.clone(), components);
        object.attributes = self.attributes.clone();
        object
    }

    /// The same tensor, borrowing the bytes of this one.
    pub fn borrowed(&self) -> Tensor<'_> {
        let components = self.components.iter().map(|(role, array)| {
            let bytes = Cow::Borrowed(&*array.bytes);
            let unknown_type = array.unknown_type.clone();
            (role.clone(), Array { dtype: array.dtype, unknown_type, bytes })
        });
        Tensor {
            shape: self.shape.clone(),
            layout: self.layout.clone(),
            components: components.collect(),
            attributes: self.attributes.clone(),
        }
    }

    /// The same tensor, independent of the file.
    pub fn into_owned(self) -> Tensor<'static> {
        Tensor {
            shape: self.shape,
            layout: self.layout,
            components: self.components.into_iter().map(|(role, array)| (role, array.into_owned())).collect(),
            attributes: self.attributes,
        }
    }

    /// The elements in row-major order. Sparse tensors are filled in with zeros.
    pub fn into_dense<T: Element>(self) -> Result<Dense<T>> {
        match self.layout {
            Layout::Dense => {
                let data = self.require("data")?.to_vec()?;
                Ok(Dense { shape: self.shape, data })
            }
            Layout::SparseCsr => self.into_csr::<T>()?.to_dense(),
            Layout::SparseCoo => self.into_coo::<T>()?.to_dense(),
            ref other => {
                Err(Error::unsupported(format!("a {other} tensor cannot be made dense; read its components")))
            }
        }
    }

    /// The elements of a GGUF block tensor, or of a `quantized_group`, `zt.quant_group/1` or `zt.mx/1`
    /// one, as `f32`, on all cores. Dense tensors of `f32`, `f16` and `bf16` are converted too.
    pub fn dequantize(&self) -> Result<Dense<f32>> {
        if self.layout == Layout::QuantizedGroup {
            return Ok(Dense { shape: self.shape.clone(), data: quantized::dequantize(self)? });
        }
        match self.layout.name() {
            layout::QUANT_GROUP => {
                return Ok(Dense { shape: self.shape.clone(), data: scaled::dequantize_group(self)? });
            }
            layout::MX => return Ok(Dense { shape: self.shape.clone(), data: scaled::dequantize_mx(self)? }),
            _ => {}
        }
        let (ggml_type, role) = match (&self.layout, self.dtype()) {
            (Layout::Dense, Some(dtype)) => (dtype.gguf_id().and_then(GgmlType::from_id), "data"),
            (layout, _) => (GgmlType::from_layout_name(layout.name()), "blocks"),
        };
        let ggml_type = ggml_type.ok_or_else(|| {
            Error::unsupported(format!("a {} tensor of this type cannot be dequantized", self.layout))
        })?;
        if self.attribute(gguf::ORDER_ATTRIBUTE).is_some() {
            return Err(Error::unsupported(
                "its blocks are from a big-endian file, for which the byte order of block scales is not defined",
            ));
        }
        let blocks = &self.require(role)?.bytes;
        let count = elements(&self.shape)
            .filter(|_| ggml_type.byte_len(&self.shape) == Some(blocks.len() as u64))
            .ok_or_else(|| {
                let len = blocks.len();
                Error::invalid(format!(
                    "{len} bytes are not a tensor of type {ggml_type} and shape {:?}",
                    self.shape
                ))
            })?;
        let mut data = crate::base::huge_pages::zeroed_vec::<f32>(count)?;
        gguf::dequantize(ggml_type, blocks, &mut data, 0)?;
        Ok(Dense { shape: self.shape.clone(), data })
    }

    /// The parts of a CSR matrix, its indices checked.
    pub fn into_csr<T: Element>(self) -> Result<Csr<T>> {
        if self.layout != Layout::SparseCsr {
            return Err(Error::invalid(format!("the tensor is {}, not sparse_csr", self.layout)));
        }
        let csr = Csr {
            shape: [self.shape[0], self.shape[1]],
            values: self.require("values")?.to_vec()?,
            indices: self.require("indices")?.to_indices()?,
            indptr: self.require("indptr")?.to_indices()?,
        };
        check_csr(csr.shape, csr.values.len() as u64, &csr.indices, &csr.indptr)?;
        Ok(csr)
    }

    /// The parts of a COO tensor, its coordinates checked.
    pub fn into_coo<T: Element>(self) -> Result<Coo<T>> {
        if self.layout != Layout::SparseCoo {
            return Err(Error::invalid(format!("the tensor is {}, not sparse_coo", self.layout)));
        }
        let coo = Coo {
            values: self.require("values")?.to_vec()?,
            coords: self.require("coords")?.to_indices()?,
            shape: self.shape,
        };
        check_coo(&coo.shape, coo.values.len() as u64, &coo.coords)?;
        Ok(coo)
    }
}

/// A dense tensor's shape and elements.
#[derive(Debug, Clone, PartialEq)]
pub struct Dense<T> {
    /// Sizes of the dimensions.
    pub shape: Shape,
    /// Elements in row-major order.
    pub data: Vec<T>,
}

/// A sparse matrix by compressed rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Csr<T> {
    /// Rows and columns.
    pub shape: [u64; 2],
    /// The stored values, row by row.
    pub values: Vec<T>,
    /// The column of each value.
    pub indices: Vec<u64>,
    /// Where each row's values start, and the end of the last.
    pub indptr: Vec<u64>,
}

/// A sparse tensor by coordinates.
#[derive(Debug, Clone, PartialEq)]
pub struct Coo<T> {
    /// Sizes of the dimensions.
    pub shape: Shape,
    /// The stored values.
    pub values: Vec<T>,
    /// All coordinates of dimension 0, then all of dimension 1, and so on.
    pub coords: Vec<u64>,
}

impl<T: Element> Csr<T> {
    /// The matrix with its zeros.
    pub fn to_dense(&self) -> Result<Dense<T>> {
        let [rows, columns] = self.shape;
        let mut data = zeros::<T>(&self.shape)?;
        for row in 0..rows as usize {
            let range = self.indptr[row] as usize..self.indptr[row + 1] as usize;
            for at in range {
                data[row * columns as usize + self.indices[at] as usize] = self.values[at];
            }
        }
        Ok(Dense { shape: self.shape.as_slice().into(), data })
    }
}

impl<T: Element> Coo<T> {
    /// The tensor with its zeros. Of values with equal coordinates the last counts.
    pub fn to_dense(&self) -> Result<Dense<T>> {
        let mut data = zeros::<T>(&self.shape)?;
        let count = self.values.len();
        for (at, value) in self.values.iter().enumerate() {
            let index = self.shape.iter().enumerate().fold(0, |index, (dimension, &size)| {
                index * size as usize + self.coords[dimension * count + at] as usize
            });
            data[index] = *value;
        }
        Ok(Dense { shape: self.shape.clone(), data })
    }
}

fn zeros<T: Element>(shape: &[u64]) -> Result<Vec<T>> {
    let count = elements(shape).ok_or_else(|| Error::limit("the dense tensor would not fit in memory"))?;
    crate::base::huge_pages::zeroed_vec(count)
}

/// Row pointers start at 0, never fall and end at the number of values; columns exist.
pub(crate) fn check_csr(shape: [u64; 2], values: u64, indices: &[u64], indptr: &[u64]) -> Result<()> {
    let rule = "layout.csr";
    if indptr.len() as u64 != shape[0].saturating_add(1) || indices.len() as u64 != values {
        return Err(Error::corrupt(
            rule,
            format!(
                "{} row pointers, {} indices and {values} values do not make a matrix of {} rows",
                indptr.len(),
                indices.len(),
                shape[0]
            ),
        ));
    }
    if indptr.first() != Some(&0) || indptr.last() != Some(&values) {
        return Err(Error::corrupt(rule, format!("row pointers must run from 0 to {values}")));
    }
    if let Some(pair) = indptr.windows(2).find(|pair| pair[0] > pair[1]) {
        return Err(Error::corrupt(rule, format!("row pointers fall from {} to {}", pair[0], pair[1])));
    }
    match indices.iter().find(|&&column| column >= shape[1]) {
        Some(column) => {
            Err(Error::corrupt(rule, format!("column {column} is outside a matrix of {} columns", shape[1])))
        }
        None => Ok(()),
    }
}

/// Every coordinate is inside its dimension.
pub(crate) fn check_coo(shape: &[u64], values: u64, coords: &[u64]) -> Result<()> {
    let rule = "layout.coo";
    if values.checked_mul(shape.len() as u64) != Some(coords.len() as u64) {
        return Err(Error::corrupt(
            rule,
            format!(
                "{} coordinates do not place {values} values in {} dimensions",
                coords.len(),
                shape.len()
            ),
        ));
    }
    if values == 0 {
        return Ok(());
    }
    for (dimension, (&size, coords)) in shape.iter().zip(coords.chunks_exact(values as usize)).enumerate() {
        if let Some(coordinate) = coords.iter().find(|&&coordinate| coordinate >= size) {
            return Err(Error::corrupt(
                rule,
                format!("coordinate {coordinate} is outside dimension {dimension} of size {size}"),
            ));
        }
    }
    Ok(())
}
