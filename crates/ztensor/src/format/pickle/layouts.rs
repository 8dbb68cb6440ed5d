//! Tensors of several parts: sparse, quantized, nested; and those without data.

use super::arena::Item;
use super::globals::{Known, QScheme, Rebuild, TorchType};
use super::numpy;
use super::torch::{Absent, Call, Tensors, View, malformed, named, sizes};
use crate::catalog::{Component, Layout, Object, Role, Shape, Storage};
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};

impl Tensors<'_> {
    /// `(layout, (indices, values, size[, coalesced]))` and its compressed relatives.
    pub(super) fn sparse(&self, args: &[Item]) -> Result<Object> {
        let bad = || malformed("sparse parts are not all there");
        let &[layout, data] = args else { return Err(bad()) };
        let layout = named(self.arena, layout).ok_or_else(|| malformed("layout has no name"))?;
        let layout = layout.strip_prefix("torch.").unwrap_or(layout);
        let data = self.arena.tuple(data).ok_or_else(bad)?;
        if layout == "sparse_coo" {
            let (&[indices, values, size] | &[indices, values, size, _]) = data else { return Err(bad()) };
            let coalesced = data.get(3) == Some(&Item::Bool(true));
            let indices = self.view(indices, "index")?;
            let values = self.view(values, "values")?;
            return coo(indices, values, sizes(self.arena, size)?, coalesced);
        }
        let (compressed, plain) = match layout {
            "sparse_csr" | "sparse_bsr" => ("crow_indices", "col_indices"),
            "sparse_csc" | "sparse_bsc" => ("ccol_indices", "row_indices"),
            other => {
                return Err(Error::unsupported(format!("the sparse layout {} is not known", quoted(other))));
            }
        };
        let &[pointers, indices, values, size] = data else { return Err(bad()) };
        let pointers = self.view(pointers, compressed)?;
        let indices = self.view(indices, plain)?;
        let values = self.view(values, "values")?;
        let shape = sizes(self.arena, size)?;
        if pointers.shape.len() != indices.shape.len() || values.shape.first() != indices.shape.first() {
            return Err(Error::corrupt(
                "torch.sparse",
                format!(
                    "{compressed} {:?}, {plain} {:?} and values {:?} do not fit together",
                    pointers.shape, indices.shape, values.shape
                ),
            ));
        }
        let i64s = |view: &View| view.dtype == TorchType::Plain(DType::I64);
        let is_matrix = shape.len() == 2 && indices.shape.len() == 1 && values.shape.len() == 1;
        if layout == "sparse_csr" && is_matrix && i64s(&pointers) && i64s(&indices) {
            return Ok(Object::new(
                shape,
                Layout::SparseCsr,
                [
                    (Role::Borrowed("values"), values.component()?),
                    (Role::Borrowed("indices"), as_u64(indices.component()?)),
                    (Role::Borrowed("indptr"), as_u64(pointers.component()?)),
                ],
            ));
        }
        let shapes = [
            (compressed, pointers.shape.clone()),
            (plain, indices.shape.clone()),
            ("values", values.shape.clone()),
        ];
        let mut object = Object::new(
            shape,
            Layout::Other(format!("torch.{layout}").into()),
            [
                (Role::Borrowed("values"), values.component()?),
                (Role::Borrowed(plain), indices.component()?),
                (Role::Borrowed(compressed), pointers.component()?),
            ],
        );
        for (role, shape) in shapes {
            object.set_attribute(format!("{role}_shape"), shape.to_vec());
        }
        Ok(object)
    }

    /// `(storage, offset, size, stride, (scheme, …), …)`
    pub(super) fn quantized(&self, args: &[Item]) -> Result<Object> {
        let &[storage, offset, shape, strides, parameters, ..] = args else {
            return Err(malformed("quantized parts are not all there"));
        };
        let view = self.strided_view(storage, offset, shape, strides, None)?;
        let parameters = self.arena.tuple(parameters).unwrap_or_default();
        let scheme = parameters.first().and_then(|scheme| self.arena.known(*scheme));
        let (shape, torch_type) = (view.shape.clone(), view.dtype);
        let data = (Role::Borrowed("data"), view.component()?);
        let mut object = match (scheme, parameters) {
            (Some(Known::QScheme(QScheme::PerTensor)), &[_, scale, zero_point]) => {
                let (Item::Float(scale), Item::Int(zero_point)) = (scale, zero_point) else {
                    return Err(malformed("scale and zero point are not numbers"));
                };
                let mut object =
                    Object::new(shape, Layout::Other("torch.quantized_per_tensor".into()), [data]);
                object.set_attribute("scale", scale);
                object.set_attribute("zero_point", zero_point);
                object
            }
            (Some(Known::QScheme(QScheme::PerChannel)), &[_, scales, zero_points, axis]) => {
                let axis = match axis {
                    Item::Int(axis) => usize::try_from(axis).ok().filter(|axis| *axis < shape.len()),
                    _ => None,
                };
                let axis = axis.ok_or_else(|| malformed("channel axis is not one of its dimensions"))?;
                let channels = shape[axis];
                let scales = self.channel_numbers(scales, channels, "scales")?;
                let zero_points = self.channel_numbers(zero_points, channels, "zero points")?;
                let mut object = Object::new(
                    shape,
                    Layout::Other("torch.quantized_per_channel".into()),
                    [data, (Role::Borrowed("scales"), scales), (Role::Borrowed("zero_points"), zero_points)],
                );
                object.set_attribute("axis", axis);
                object
            }
            _ => return Err(Error::unsupported("the quantization scheme of a tensor is not known")),
        };
        if let TorchType::Quantized(_, name) | TorchType::Foreign(name, _) = torch_type {
            object.set_attribute("torch_dtype", name);
        }
        Ok(object)
    }

    /// A number for each channel: a tensor, or a list in old files.
    fn channel_numbers(&self, item: Item, channels: u64, what: &str) -> Result<Component> {
        let wrong = |found: u64| {
            malformed(format!("{what} are {found}, which is not one for each of {channels} channels"))
        };
        let Some(list) = self.arena.sequence(item) else {
            let view = self.view(item, what)?;
            return match view.shape[..] {
                [count] if count == channels => view.component(),
                _ => Err(wrong(crate::catalog::elements(&view.shape).unwrap_or(u64::MAX))),
            };
        };
        if list.len() as u64 != channels {
            return Err(wrong(list.len() as u64));
        }
        let mut dtype = DType::I64;
        self.build.charge(8 * list.len())?;
        let mut bytes = Vec::with_capacity(8 * list.len());
        for item in list {
            match item {
                Item::Int(number) if dtype == DType::I64 => bytes.extend(number.to_le_bytes()),
                Item::Float(number) if dtype == DType::F64 || bytes.is_empty() => {
                    dtype = DType::F64;
                    bytes.extend(number.to_le_bytes());
                }
                _ => return Err(malformed(format!("{what} are not numbers of one type"))),
            }
        }
        Ok(Component::new(dtype, bytes.len() as u64, Storage::Inline(bytes.into())))
    }

    /// `(dtype, size, stride, …)`: a tensor that never had data.
    pub(super) fn meta(&self, args: &[Item]) -> Result<Object> {
        let &[dtype, shape, ..] = args else { return Err(malformed("meta parts are not all there")) };
        let Some(Known::DType(dtype)) = self.arena.known(dtype) else {
            return Err(Error::unsupported("the type of a meta tensor is not known"));
        };
        let why = "it is a meta tensor, which was saved without data".to_owned();
        let (stored, name) = match dtype {
            TorchType::Foreign(name, _) | TorchType::Quantized(_, name) => (dtype.stored().0, Some(name)),
            _ => (dtype.stored().0, None),
        };
        Ok(Absent::object(sizes(self.arena, shape)?, stored, name, why))
    }

    /// `(buffer, sizes, strides, offsets)`: rows of different lengths.
    pub(super) fn nested(&self, args: &[Item]) -> Result<Object> {
        let &[buffer, shapes, strides, offsets] = args else {
            return Err(malformed("nested parts are not all there"));
        };
        let shapes = self.view(shapes, "nested sizes")?;
        let count = shapes.shape.first().copied().unwrap_or(0);
        let part = |role, view: View| Ok::<_, Error>((Role::Borrowed(role), view.component()?));
        Ok(Object::new(
            Shape::from_slice(&[count]),
            Layout::Other("torch.nested".into()),
            [
                part("values", self.view(buffer, "nested values")?)?,
                part("sizes", shapes)?,
                part("strides", self.view(strides, "nested strides")?)?,
                part("offsets", self.view(offsets, "nested offsets")?)?,
            ],
        ))
    }

    /// `(data, dtype, device, …)`: saved by way of the CPU, perhaps as another type.
    pub(super) fn moved(&self, args: &[Item]) -> Result<Object> {
        let &[data, dtype, ..] = args else { return Err(malformed("device parts are not all there")) };
        let Some(Known::DType(wanted)) = self.arena.known(dtype) else {
            return Err(Error::unsupported("the type of a device tensor is not known"));
        };
        let object = match self.unwrap(data)? {
            Some(Call::Array(array)) => numpy::array(&self.build, self.arena, self.blobs, array)?,
            Some(call @ (Call::Rebuild(Rebuild::Tensor | Rebuild::TensorV3, _) | Call::State(_))) => {
                self.view_of_call(&call)?.object()?
            }
            _ => return Err(malformed("data is neither a tensor nor an array")),
        };
        let (stored, _) = wanted.stored();
        if object.dtype() == Some(stored) {
            return Ok(object);
        }
        let why = format!("it is stored as {:?} and would have to be converted to {stored}", object.dtype());
        Ok(Absent::object(object.shape, stored, None, why))
    }
}

/// A COO tensor: `indices` has a row for each sparse dimension.
fn coo(indices: View, values: View, shape: Shape, coalesced: bool) -> Result<Object> {
    let fits = match indices.shape[..] {
        [sparse, nonzero] => {
            let dense = usize::try_from(sparse).ok().and_then(|sparse| shape.get(sparse..));
            values.shape.split_first().is_some_and(|(count, rest)| *count == nonzero && dense == Some(rest))
        }
        _ => false,
    };
    if !fits {
        return Err(Error::corrupt(
            "torch.sparse",
            format!(
                "indices {:?} and values {:?} do not fit a tensor of {shape:?}",
                indices.shape, values.shape
            ),
        ));
    }
    let (index_shape, value_shape) = (indices.shape.clone(), values.shape.clone());
    let is_plain =
        value_shape.len() == 1 && !shape.is_empty() && indices.dtype == TorchType::Plain(DType::I64);
    let values = (Role::Borrowed("values"), values.component()?);
    let mut object = if is_plain {
        let coords = as_u64(indices.component()?);
        Object::new(shape, Layout::SparseCoo, [values, (Role::Borrowed("coords"), coords)])
    } else {
        let indices = (Role::Borrowed("indices"), indices.component()?);
        let layout = Layout::Other("torch.sparse_coo".into());
        let mut object = Object::new(shape, layout, [values, indices]);
        object.set_attribute("indices_shape", index_shape.to_vec());
        object.set_attribute("values_shape", value_shape.to_vec());
        object
    };
    object.set_attribute("coalesced", coalesced);
    Ok(object)
}

/// Indices are never negative, so that their bits are those of `u64`.
fn as_u64(mut component: Component) -> Component {
    component.dtype = DType::U64;
    component
}
