//! Torch tensors inside pickles: recognised by the functions that would put
//! them together, and projected into objects without calling any.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::arena::{Arena, Item, Node, Object};
use super::build::Builder;
use super::globals::{Known, Rebuild, TorchType};
use super::storage::{Blobs, BytesId, Region, StorageRef, Storages, bytes_id, bytes_of};
use super::unsafe_globals::UnsafeGlobals;
use super::{legacy, numpy, sign};
use crate::catalog::{self, Component, Decode, Extent, MAX_RANK, Shape, Storage};
use crate::decode::{Swapped, strided};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::source::{Source, Sources};
use crate::tensor::value::Value;

/// A tensor may be wrapped this often: as a parameter, as a subclass.
const MAX_WRAPPERS: usize = 8;

/// What tensors of a pickle are made from.
pub(super) struct Tensors<'a> {
    pub(super) arena: &'a Arena,
    storages: &'a Storages<'a>,
    pub(super) blobs: Blobs<'a>,
    /// The file, for storages that lie inside the pickle's own bytes.
    source: &'a dyn Source,
    /// What copies of bytes are charged to.
    pub(super) build: Rc<Builder>,
    /// Storages that were unpacked from bytes, by where those are: the same
    /// bytes are unpacked once, however often a pickle refers to them.
    unpacked: RefCell<HashMap<BytesId, (TorchType, Region)>>,
    /// Dangerous functions that pickles within the pickle name.
    unsafe_globals: RefCell<UnsafeGlobals>,
    /// How the numbers of a big-endian storage were first taken to be wide.
    widths: RefCell<HashMap<String, usize>>,
}

/// A strided view of a storage.
pub(super) struct View {
    pub(super) dtype: TorchType,
    region: Region,
    offset: u64,
    pub(super) shape: Shape,
    strides: Shape,
    /// Signs that reading must flip, if the tensor is a lazily conjugated or negated one.
    flips: sign::Flips,
}

pub(super) fn malformed(what: impl std::fmt::Display) -> Error {
    Error::corrupt("torch.tensor", format!("a tensor's {what}"))
}

impl<'a> Tensors<'a> {
    pub(super) fn new(
        arena: &'a Arena,
        storages: &'a Storages<'a>,
        blobs: Blobs<'a>,
        source: &'a dyn Source,
        build: Rc<Builder>,
    ) -> Tensors<'a> {
        Tensors {
            arena,
            storages,
            blobs,
            source,
            build,
            unpacked: RefCell::default(),
            unsafe_globals: RefCell::default(),
            widths: RefCell::default(),
        }
    }

    /// Dangerous functions that the pickles within this pickle name, of those met so far.
    pub(super) fn unsafe_globals(&self) -> UnsafeGlobals {
        self.unsafe_globals.borrow().clone()
    }

    /// The tensor or array that a value is; `None` if it is something else.
    pub(super) fn object(&self, item: Item) -> Result<Option<catalog::Object>> {
        let Some(call) = self.unwrap(item)? else { return Ok(None) };
        Ok(Some(match call {
            Call::Storage(item) => self.whole_storage(item)?.object()?,
            Call::Array(array) => numpy::array(&self.build, self.arena, self.blobs, array)?,
            Call::Rebuild(Rebuild::Sparse, args) => self.sparse(args)?,
            Call::Rebuild(Rebuild::Quantized, args) => self.quantized(args)?,
            Call::Rebuild(Rebuild::Meta, args) => self.meta(args)?,
            Call::Rebuild(Rebuild::Nested, args) => self.nested(args)?,
            Call::Rebuild(Rebuild::Device, args) => self.moved(args)?,
            Call::Rebuild(_, _) | Call::State(_) => self.view_of_call(&call)?.object()?,
        }))
    }

    /// Looks through parameters and subclasses to the call that makes the tensor.
    pub(super) fn unwrap(&self, mut item: Item) -> Result<Option<Call<'a>>> {
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
        Err(malformed(format!("more than {MAX_WRAPPERS} nested wrappers")))
    }

    /// The dense tensor that a value must be.
    pub(super) fn view(&self, item: Item, what: &str) -> Result<View> {
        match self.unwrap(item)? {
            Some(call @ (Call::Rebuild(Rebuild::Tensor | Rebuild::TensorV3, _) | Call::State(_))) => {
                self.view_of_call(&call)
            }
            _ => Err(malformed(format!("{what} is {} instead of a tensor", self.arena.kind(item)))),
        }
    }

    pub(super) fn view_of_call(&self, call: &Call<'_>) -> Result<View> {
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

    pub(super) fn strided_view(
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
            _ => return Err(malformed("offset is not a number")),
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
            Some(Node::Object(object)) if object.known == Known::LoadFromBytes => self.unpack(object),
            _ => Err(malformed(format!("storage is {}", self.arena.kind(item)))),
        }
    }

    /// A storage that was written as an old torch file into the pickle's bytes.
    fn unpack(&self, object: &Object) -> Result<(TorchType, Region)> {
        let bad = || malformed("storage is not written as bytes");
        let &[bytes] = self.arena.tuple(object.args).unwrap_or_default() else { return Err(bad()) };
        let id = bytes_id(self.arena, bytes).ok_or_else(bad)?;
        if let Some(found) = self.unpacked.borrow().get(&id) {
            return Ok(found.clone());
        }
        let (storage, _) = bytes_of(&self.build, self.arena, self.blobs, bytes)?.ok_or_else(bad)?;
        let (found, unsafe_globals) = legacy::lone_storage(self.source, &storage)?;
        self.unsafe_globals.borrow_mut().merge(&unsafe_globals);
        self.unpacked.borrow_mut().insert(id, found.clone());
        Ok(found)
    }

    /// A storage that stands by itself, as a vector.
    fn whole_storage(&self, item: Item) -> Result<View> {
        let (dtype, region) = self.storage(item)?;
        let count = region.len / dtype.stored().1 as u64;
        let (shape, strides) = (Shape::from_slice(&[count]), Shape::from_slice(&[1]));
        Ok(View { dtype, region, offset: 0, shape, strides, flips: sign::Flips::default() })
    }
}

/// What makes a tensor, once parameters and subclasses are looked through.
pub(super) enum Call<'a> {
    Rebuild(Rebuild, &'a [Item]),
    /// The state of a tensor class: storage, offset, size, stride.
    State(&'a [Item]),
    Storage(Item),
    Array(&'a Object),
}

impl View {
    pub(super) fn component(self) -> Result<Component> {
        let (stored, item) = self.dtype.stored();
        let storage =
            strided(self.region.storage, self.region.len, item, self.offset, &self.shape, &self.strides)?;
        // `strided` has multiplied these out.
        let len = catalog::elements(&self.shape).unwrap_or(0) * item as u64;
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

    pub(super) fn object(mut self) -> Result<catalog::Object> {
        let mut shape = self.shape.clone();
        if self.dtype == TorchType::Plain(DType::F4E2M1) {
            match shape.last_mut().map(|last| (last.checked_mul(2), last)) {
                // Torch counts pairs; a shape counts elements.
                Some((Some(doubled), last)) => *last = doubled,
                _ => self.dtype = TorchType::Foreign("float4_e2m1fn_x2", 1),
            }
        }
        Ok(catalog::Object::dense(shape, self.component()?))
    }
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
    ) -> catalog::Object {
        let len = catalog::elements(&shape).and_then(|count| dtype.byte_len(count)).unwrap_or(u64::MAX);
        let mut component = Component::new(dtype, len, Storage::Encoded(Arc::new(Absent { why })));
        component.unknown_type = unknown_type.map(Into::into);
        let mut object = catalog::Object::dense(shape, component);
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
