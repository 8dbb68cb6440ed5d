//! Torch tensors inside pickles: recognised by the functions that would put
//! them together, and projected into objects without calling any.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::arena::{Arena, Item, Node, Object};
use super::globals::{Known, QScheme, Rebuild, TorchType};
use super::storage::{Blobs, Region, StorageRef, Storages, bytes_of};
use super::{legacy, numpy, sign};
use crate::decode::{Swapped, strided};
use crate::dtype::DType;
use crate::error::{Error, Result, quoted};
use crate::object::{self, Component, Decode, Extent, Layout, MAX_RANK, Role, Shape, Storage};
use crate::source::{Source, Sources};
use crate::value::Value;

/// A tensor may be wrapped this often: as a parameter, as a subclass.
const MAX_WRAPPERS: usize = 8;

/// What tensors of a pickle are made from.
pub(super) struct Tensors<'a> {
    arena: &'a Arena,
    storages: &'a Storages<'a>,
    blobs: Blobs<'a>,
    /// The file, for storages that lie inside the pickle's own bytes.
    source: &'a dyn Source,
    /// Storages that were unpacked from bytes, by the node that holds them.
    unpacked: RefCell<HashMap<u32, (TorchType, Region)>>,
    /// How the numbers of a big-endian storage were first taken to be wide.
    widths: RefCell<HashMap<String, usize>>,
}

/// A strided view of a storage.
struct View {
    dtype: TorchType,
    region: Region,
    offset: u64,
    shape: Shape,
    strides: Shape,
    /// Signs that reading must flip, if the tensor is a lazily conjugated or negated one.
    flips: sign::Flips,
}

fn malformed(what: impl std::fmt::Display) -> Error {
    Error::corrupt("torch.tensor", format!("a tensor's {what}"))
}

impl<'a> Tensors<'a> {
    pub(super) fn new(
        arena: &'a Arena,
        storages: &'a Storages<'a>,
        blobs: Blobs<'a>,
        source: &'a dyn Source,
    ) -> Tensors<'a> {
        Tensors { arena, storages, blobs, source, unpacked: RefCell::default(), widths: RefCell::default() }
    }

    pub(super) fn arena(&self) -> &'a Arena {
        self.arena
    }

    pub(super) fn blobs(&self) -> Blobs<'a> {
        self.blobs
    }

    /// The tensor or array that a value is; `None` if it is something else.
    pub(super) fn object(&self, item: Item) -> Result<Option<object::Object>> {
        let Some(call) = self.unwrap(item)? else { return Ok(None) };
        Ok(Some(match call {
            Call::Storage(item) => self.whole_storage(item)?.object()?,
            Call::Array(array) => numpy::array(self.arena, self.blobs, array)?,
            Call::Rebuild(Rebuild::Sparse, args) => self.sparse(args)?,
            Call::Rebuild(Rebuild::Quantized, args) => self.quantized(args)?,
            Call::Rebuild(Rebuild::Meta, args) => self.meta(args)?,
            Call::Rebuild(Rebuild::Nested, args) => self.nested(args)?,
            Call::Rebuild(Rebuild::Device, args) => self.moved(args)?,
            Call::Rebuild(_, _) | Call::State(_) => self.view_of_call(&call)?.object()?,
        }))
    }

    /// Looks through parameters and subclasses to the call that makes the tensor.
    fn unwrap(&self, mut item: Item) -> Result<Option<Call<'a>>> {
        let mut through: Option<(Known, Item)> = None;
        for _ in 0..MAX_WRAPPERS {
            let object = match self.arena.node(item) {
                Some(Node::Persistent(_)) if through.is_none() => return Ok(Some(Call::Storage(item))),
                Some(Node::Object(object)) => Some(&**object),
                _ => None,
            };
            let (known, args) = match (through.take(), object) {
                (Some(call), _) => call,
                (None, Some(object)) => (object.known, object.args),
                (None, None) => return Ok(None),
            };
            let args = self.arena.tuple(args).unwrap_or_default();
            match known {
                Known::Rebuild(Rebuild::Parameter) => {
                    item = *args.first().ok_or_else(|| malformed("parameter wraps nothing"))?;
                }
                Known::Rebuild(Rebuild::FromType) => {
                    let &[function, _class, args, ..] = args else {
                        return Err(malformed("subclass is not given by function, class and arguments"));
                    };
                    match self.arena.known(function) {
                        Some(known @ Known::Rebuild(_)) => through = Some((known, args)),
                        _ => return Ok(None),
                    }
                }
                Known::Parameter => {
                    let state = object.and_then(|object| object.state);
                    let state = state.and_then(|state| self.arena.tuple(state)).unwrap_or_default();
                    match (args, state) {
                        ([data, ..], _) | ([], [data, _, _, _, ..]) => item = *data,
                        _ => return Ok(None),
                    }
                }
                Known::Rebuild(rebuild) => return Ok(Some(Call::Rebuild(rebuild, args))),
                Known::TensorClass => {
                    let state = object.and_then(|object| object.state);
                    return Ok(state.and_then(|state| self.arena.tuple(state)).map(Call::State));
                }
                Known::LoadFromBytes => return Ok(Some(Call::Storage(item))),
                Known::NumpyReconstruct | Known::NumpyFromBuffer => {
                    return Ok(object.map(Call::Array));
                }
                _ => return Ok(None),
            }
        }
        Err(malformed(format!("wrappers are more than {MAX_WRAPPERS}")))
    }

    /// The dense tensor that a value must be.
    fn view(&self, item: Item, what: &str) -> Result<View> {
        match self.unwrap(item)? {
            Some(call @ (Call::Rebuild(Rebuild::Tensor | Rebuild::TensorV3, _) | Call::State(_))) => {
                self.view_of_call(&call)
            }
            _ => Err(malformed(format!("{what} is {} instead of a tensor", self.arena.kind(item)))),
        }
    }

    fn view_of_call(&self, call: &Call<'_>) -> Result<View> {
        let (args, typed, metadata) = match *call {
            Call::Rebuild(Rebuild::Tensor, args) => (args, None, args.get(6)),
            Call::Rebuild(Rebuild::TensorV3, args) => (args, args.get(6), args.get(7)),
            Call::State(state) => (state, None, None),
            _ => return Err(malformed("function is none that makes a dense tensor")),
        };
        let &[storage, offset, shape, strides, ..] = args else {
            return Err(malformed("storage, offset, size and stride are not all there"));
        };
        let dtype = match typed {
            None => None,
            Some(&item) => match self.arena.known(item) {
                Some(Known::DType(dtype)) => Some(dtype),
                _ => {
                    return Err(Error::unsupported(format!(
                        "the tensor's type is {}, which is not known",
                        self.arena.kind(item)
                    )));
                }
            },
        };
        let flips = match metadata {
            Some(&metadata) => sign::Flips::of(self.arena, metadata)?,
            None => sign::Flips::default(),
        };
        let view = self.strided_view(storage, offset, shape, strides, dtype)?;
        Ok(View { flips, ..view })
    }

    fn strided_view(
        &self,
        storage: Item,
        offset: Item,
        shape: Item,
        strides: Item,
        dtype: Option<TorchType>,
    ) -> Result<View> {
        let (stored, region) = self.storage(storage)?;
        let dtype = dtype.unwrap_or(stored);
        let offset = match offset {
            Item::Int(offset) => {
                u64::try_from(offset).map_err(|_| malformed(format!("offset is {offset}")))?
            }
            _ => return Err(malformed("offset is no number")),
        };
        let (shape, strides) = (sizes(self.arena, shape)?, sizes(self.arena, strides)?);
        Ok(View { dtype, region, offset, shape, strides, flips: sign::Flips::default() })
    }

    /// A storage's type and bytes.
    fn storage(&self, item: Item) -> Result<(TorchType, Region)> {
        match self.arena.node(item) {
            Some(&Node::Persistent(id)) => {
                let reference = StorageRef::of(self.arena, id)?;
                let region = self.storages.find(&reference)?;
                if let Some(width) = region.swapped {
                    // Torch swaps a storage once, as what it is first taken for.
                    let mut widths = self.widths.borrow_mut();
                    if *widths.entry(reference.key.to_owned()).or_insert(width) != width {
                        return Err(Error::unsupported(
                            "a big-endian storage is used with elements of different sizes",
                        ));
                    }
                }
                Ok((reference.dtype, region))
            }
            Some(Node::Object(object)) if object.known == Known::LoadFromBytes => self.unpack(item, object),
            _ => Err(malformed(format!("storage is {}", self.arena.kind(item)))),
        }
    }

    /// A storage that was written as an old torch file into the pickle's bytes.
    fn unpack(&self, item: Item, object: &Object) -> Result<(TorchType, Region)> {
        let Item::Node(index) = item else { return Err(malformed("storage is no object")) };
        if let Some(found) = self.unpacked.borrow().get(&index) {
            return Ok(found.clone());
        }
        let args = self.arena.tuple(object.args).unwrap_or_default();
        let bytes = match args {
            &[bytes] => bytes_of(self.arena, self.blobs, bytes)?,
            _ => None,
        };
        let (storage, _) = bytes.ok_or_else(|| malformed("storage is not written as bytes"))?;
        let found = legacy::lone_storage(self.source, &storage)?;
        self.unpacked.borrow_mut().insert(index, found.clone());
        Ok(found)
    }

    /// A storage that stands by itself, as a vector.
    fn whole_storage(&self, item: Item) -> Result<View> {
        let (dtype, region) = self.storage(item)?;
        let count = region.len / dtype.stored().1 as u64;
        let (shape, strides) = (Shape::from_slice(&[count]), Shape::from_slice(&[1]));
        Ok(View { dtype, region, offset: 0, shape, strides, flips: sign::Flips::default() })
    }

    /// `(layout, (indices, values, size[, coalesced]))` and its compressed relatives.
    fn sparse(&self, args: &[Item]) -> Result<object::Object> {
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
            return Ok(object::Object::new(
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
        let mut object = object::Object::new(
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
    fn quantized(&self, args: &[Item]) -> Result<object::Object> {
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
                    return Err(malformed("scale and zero point are no numbers"));
                };
                let mut object =
                    object::Object::new(shape, Layout::Other("torch.quantized_per_tensor".into()), [data]);
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
                let (scales, zero_points) =
                    (self.view(scales, "scales")?, self.view(zero_points, "zero points")?);
                if scales.shape[..] != [shape[axis]] || zero_points.shape != scales.shape {
                    return Err(malformed(format!(
                        "scales {:?} and zero points {:?} are not one for each of {} channels",
                        scales.shape, zero_points.shape, shape[axis]
                    )));
                }
                let mut object = object::Object::new(
                    shape,
                    Layout::Other("torch.quantized_per_channel".into()),
                    [
                        data,
                        (Role::Borrowed("scales"), scales.component()?),
                        (Role::Borrowed("zero_points"), zero_points.component()?),
                    ],
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

    /// `(dtype, size, stride, …)`: a tensor that never had data.
    fn meta(&self, args: &[Item]) -> Result<object::Object> {
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
    fn nested(&self, args: &[Item]) -> Result<object::Object> {
        let &[buffer, shapes, strides, offsets] = args else {
            return Err(malformed("nested parts are not all there"));
        };
        let shapes = self.view(shapes, "nested sizes")?;
        let count = shapes.shape.first().copied().unwrap_or(0);
        let part = |role, view: View| Ok::<_, Error>((Role::Borrowed(role), view.component()?));
        Ok(object::Object::new(
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
    fn moved(&self, args: &[Item]) -> Result<object::Object> {
        let &[data, dtype, ..] = args else { return Err(malformed("device parts are not all there")) };
        let Some(Known::DType(wanted)) = self.arena.known(dtype) else {
            return Err(Error::unsupported("the type of a device tensor is not known"));
        };
        let object = match self.unwrap(data)? {
            Some(Call::Array(array)) => numpy::array(self.arena, self.blobs, array)?,
            Some(call @ (Call::Rebuild(Rebuild::Tensor | Rebuild::TensorV3, _) | Call::State(_))) => {
                self.view_of_call(&call)?.object()?
            }
            _ => return Err(malformed("data is no tensor and no array")),
        };
        let (stored, _) = wanted.stored();
        if object.dtype() == Some(stored) {
            return Ok(object);
        }
        let why = format!("it is stored as {:?} and would have to be converted to {stored}", object.dtype());
        Ok(Absent::object(object.shape, stored, None, why))
    }
}

/// What makes a tensor, once parameters and subclasses are looked through.
enum Call<'a> {
    Rebuild(Rebuild, &'a [Item]),
    /// The state of a tensor class: storage, offset, size, stride.
    State(&'a [Item]),
    Storage(Item),
    Array(&'a Object),
}

impl View {
    fn component(self) -> Result<Component> {
        let (stored, item) = self.dtype.stored();
        let storage =
            strided(self.region.storage, self.region.len, item, self.offset, &self.shape, &self.strides)?;
        // `strided` has multiplied these out.
        let len = object::elements(&self.shape).unwrap_or(0) * item as u64;
        let width = self.dtype.number_width();
        let storage = match self.region.swapped {
            Some(swapped) if swapped != width => {
                return Err(Error::unsupported(
                    "an untyped big-endian storage is used with elements of several bytes",
                ));
            }
            Some(swapped) if swapped > 1 => Storage::Encoded(Arc::new(Swapped::new(storage, swapped, len))),
            _ => storage,
        };
        let storage = self.flips.apply(storage, width);
        let mut component = Component::new(stored, len, storage);
        // The archive's checksum is of the whole storage.
        component.digest = match self.region.digest {
            Some((extent, digest)) if component.extent() == Some(extent) => Some(digest),
            _ => None,
        };
        match self.dtype {
            TorchType::Plain(dtype) => component.dtype = dtype,
            TorchType::Foreign(name, _) => component.unknown_type = Some(format!("torch.{name}").into()),
            TorchType::Quantized(..) | TorchType::Untyped => {}
        }
        Ok(component)
    }

    fn object(mut self) -> Result<object::Object> {
        let mut shape = self.shape.clone();
        if self.dtype == TorchType::Plain(DType::F4E2M1) {
            match shape.last_mut().map(|last| (last.checked_mul(2), last)) {
                // Torch counts pairs; a shape counts elements.
                Some((Some(doubled), last)) => *last = doubled,
                _ => self.dtype = TorchType::Foreign("float4_e2m1fn_x2", 1),
            }
        }
        Ok(object::Object::dense(shape, self.component()?))
    }
}

/// A COO tensor: `indices` has a row for each sparse dimension.
fn coo(indices: View, values: View, shape: Shape, coalesced: bool) -> Result<object::Object> {
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
        object::Object::new(shape, Layout::SparseCoo, [values, (Role::Borrowed("coords"), coords)])
    } else {
        let indices = (Role::Borrowed("indices"), indices.component()?);
        let layout = Layout::Other("torch.sparse_coo".into());
        let mut object = object::Object::new(shape, layout, [values, indices]);
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

/// A shape or strides: a tuple, a list or a `torch.Size` of numbers that are not negative.
pub(super) fn sizes(arena: &Arena, item: Item) -> Result<Shape> {
    let inside = match arena.object(item) {
        Some(object) if object.known == Known::Size => match arena.tuple(object.args) {
            Some(&[inside]) => inside,
            _ => return Err(malformed("size is empty")),
        },
        _ => item,
    };
    let items = arena.sequence(inside).ok_or_else(|| malformed(format!("size is {}", arena.kind(item))))?;
    if items.len() > MAX_RANK {
        return Err(Error::corrupt("object.rank", format!("a shape has more than {MAX_RANK} dimensions")));
    }
    items
        .iter()
        .map(|size| match size {
            Item::Int(size) => {
                u64::try_from(*size).map_err(|_| malformed(format!("size or stride is {size}")))
            }
            other => Err(malformed(format!("size or stride is {}", arena.kind(*other)))),
        })
        .collect()
}

/// The name of a device or a layout, which is the argument it is made from.
pub(super) fn named(arena: &Arena, item: Item) -> Option<&str> {
    let object = arena.object(item).filter(|object| object.known == Known::Named)?;
    arena.as_name(*arena.tuple(object.args)?.first()?)
}

/// A tensor that is listed although its elements cannot be read, so that the
/// rest of its file can.
#[derive(Debug)]
pub(super) struct Absent {
    why: String,
}

impl Absent {
    pub(super) fn object(
        shape: Shape,
        dtype: DType,
        unknown_type: Option<&str>,
        why: String,
    ) -> object::Object {
        let len = object::elements(&shape).and_then(|count| dtype.byte_len(count)).unwrap_or(u64::MAX);
        let mut component = Component::new(dtype, len, Storage::Encoded(Arc::new(Absent { why })));
        component.unknown_type = unknown_type.map(Into::into);
        let mut object = object::Object::dense(shape, component);
        object.set_attribute("absent", Value::Bool(true));
        object
    }
}

impl Decode for Absent {
    fn encoding(&self) -> &str {
        "absent"
    }

    fn stored_len(&self) -> u64 {
        0
    }

    fn extent(&self) -> Option<Extent> {
        None
    }

    fn decode(&self, _: &Sources, _: Range<u64>, _: &mut [u8], _: usize) -> Result<()> {
        Err(Error::unsupported(self.why.clone()))
    }
}
