"""Tensors of every kind as the native writer takes them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ztensor import _bridges, _dtypes
from ztensor._errors import InvalidArgumentError
from ztensor._tensor import Tensor, is_sparse_matrix
from ztensor._types import AnyArray

if TYPE_CHECKING:
    import torch

    from ztensor._native import _Deferred, _Item, _Memory
else:
    from ztensor._types import torch


class Prepared(NamedTuple):
    """A tensor that can be written."""

    item: _Item
    tie: object
    """For tensors that had to be copied: equal for those that were the same memory
    seen the same way. The writer itself knows the others by their addresses."""
    copied: int
    """Bytes that had to be copied first, and so take memory of their own."""


def prepare(name: str, value: Any) -> Prepared:
    """Any tensor: NumPy's, torch's, SciPy's, ours, or one that speaks DLPack."""
    if type(name) is not str and not isinstance(name, str):
        raise InvalidArgumentError(f"tensor names are strings, not {type(name).__name__}")
    if isinstance(value, np.ndarray):
        return from_array(name, value)
    if _dtypes.is_torch(value):
        return from_torch(name, value)
    if isinstance(value, Tensor):
        return from_tensor(name, value)
    if is_sparse_matrix(value):
        return from_tensor(name, Tensor.from_scipy(value))
    if isinstance(value, np.generic):
        return from_array(name, np.asarray(value))
    if (bridged := _bridges.to_tensor(value)) is not None:
        return from_tensor(name, bridged)
    if hasattr(value, "__dlpack__"):
        return from_array(name, np.from_dlpack(value))
    if hasattr(value, "__array__"):
        return from_array(name, np.asarray(value))
    hint = "give a NumPy array, a torch tensor or a ztensor.Tensor"
    if isinstance(value, Mapping):
        hint = "flatten nested state dicts, or save them with ztensor.distributed"
    raise InvalidArgumentError(f"tensor {name!r} has the type {type(value).__name__}: {hint}")


def for_export(name: str, value: Any) -> _Item | _Deferred:
    """A tensor for a format that is written tensor by tensor.

    One that must be copied first is made when its turn comes, so that there is one copy at a time.
    """
    if isinstance(name, str) and isinstance(value, np.ndarray):
        element = _dtypes.of_numpy(value.dtype)
        if not (value.flags.c_contiguous and value.dtype.byteorder != ">"):
            return (name, element.name, value.shape, value.nbytes, lambda: contiguous(value))
    elif isinstance(name, str) and _dtypes.is_torch(value):
        strided = value.layout is sys.modules["torch"].strided
        if strided and not (value.is_meta or _is_plain(value)):
            element = _dtypes.of_torch(value.dtype)
            shape = stored_shape(element, value.shape)
            return (name, element.name, shape, value.nbytes, lambda: _copied(value))
    return prepare(name, value).item


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory is its elements, in row-major order, on this machine."""
    return tensor.is_cpu and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a torch tensor in row-major order, on the CPU."""
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def contiguous(array: AnyArray) -> AnyArray:
    """The same array, little-endian and in row-major order."""
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidArgumentError("a masked array would lose its mask: use filled() first")
    dtype = array.dtype
    if array.flags.c_contiguous and dtype.byteorder != ">":
        return array
    return np.array(
        array, dtype=dtype.newbyteorder("<") if dtype.byteorder == ">" else dtype, order="C"
    )


def from_array(name: str, array: AnyArray) -> Prepared:
    """A NumPy array."""
    element = _dtypes.of_numpy(array.dtype)  # refuses what cannot be stored, and says why
    dense = contiguous(array)
    if dense is array:
        return Prepared((name, array), None, 0)
    interface = array.__array_interface__
    tie = (interface["data"][0], array.dtype, array.shape, interface["strides"])
    return _temporary(name, element, array.shape, dense, tie if array.size else None, dense.nbytes)


def _temporary(
    name: str,
    element: _dtypes.Element,
    shape: tuple[int, ...],
    memory: _Memory,
    tie: object,
    nbytes: int,
) -> Prepared:
    """A dense tensor whose memory will be used again, so not to be known by its address."""
    item = (name, "dense", shape, [("data", element.storage, element.logical, memory)], None)
    return Prepared(item, tie, nbytes)


def stored_shape(element: _dtypes.Element, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a torch tensor as files have it."""
    if element.bits % 8 and shape:
        return (*shape[:-1], shape[-1] * 2)  # torch counts bytes of two elements
    return tuple(shape)


def from_torch(name: str, tensor: torch.Tensor) -> Prepared:
    """A torch tensor on any device, of any strides, or sparse."""
    if tensor.layout is not sys.modules["torch"].strided:
        return from_tensor(name, Tensor.from_torch(tensor))
    element = _dtypes.of_torch(tensor.dtype)
    shape = stored_shape(element, tensor.shape)
    nbytes = tensor.nbytes
    if _is_plain(tensor):
        return Prepared((name, element.name, shape, tensor), None, 0)
    if tensor.is_meta:
        raise InvalidArgumentError(f"tensor {name!r} is on the meta device and has no data to save")
    tie = (tensor.data_ptr(), element, shape, tensor.stride(), tensor.device, tensor.is_conj())
    memory = _copied(tensor)
    return _temporary(name, element, shape, memory, tie if nbytes else None, nbytes)


def from_tensor(name: str, tensor: Tensor) -> Prepared:
    """A tensor of ours, of any layout."""
    parts = []
    main = "data" if "data" in tensor.components else "values"
    if main not in tensor.components:
        main = next(iter(tensor.components), "")
    copied = 0
    for role, array in tensor.components.items():
        if role == main:
            dtype, logical = tensor.dtype, tensor.type
        else:
            element = _dtypes.of_numpy(array.dtype)
            dtype, logical = element.storage, element.logical
            if tensor.format.startswith("sparse") and array.dtype.kind == "i":
                array = unsigned(name, role, array)
                dtype = "uint64"
        dense = contiguous(array)
        copied += dense.nbytes if dense is not array else 0
        parts.append((role, dtype, logical, dense))
    item = (name, tensor.format, tensor.shape, parts, tensor.attributes)
    return Prepared(item, None, copied)


def unsigned(name: str, role: str, array: AnyArray) -> AnyArray:
    """Indices of a signed type, as files store them."""
    if array.size and int(array.min()) < 0:
        raise InvalidArgumentError(f"tensor {name!r}: {role} holds a negative index")
    return array.astype(np.uint64)
