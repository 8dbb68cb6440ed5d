"""The calls of ``safetensors`` on raw memory, under the same names."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ztensor import _dtypes, _files, _formats, _native
from ztensor._errors import InvalidArgumentError, SafetensorError, UnsupportedError
from ztensor._options import DEFAULTS
from ztensor._types import Path

__all__ = [
    "SafetensorError",
    "TensorMeta",
    "TensorSpec",
    "deserialize",
    "serialize",
    "serialize_file",
]


class TensorMeta(NamedTuple):
    """What a file says about a tensor, without its data."""

    dtype: str
    """The element type as safetensors calls it, such as ``"BF16"``."""
    shape: list[int]
    data_offsets: tuple[int, int]
    """First byte and the one behind the last: in the data section of a ``.safetensors`` file, in
    the file for other formats."""


class TensorSpec:
    """A dense tensor in memory, by its address.

    ``dtype`` is accepted in every spelling; the property is the one that files have. Two
    ``float4_e2m1fn_x2`` elements lie in a byte: ``shape`` then is that of the bytes, as torch has
    it, and the property counts elements. The caller keeps the memory alive.

    >>> import numpy as np, ztensor
    >>> array = np.zeros((2, 3), dtype=np.float32)
    >>> spec = ztensor.TensorSpec(
    ...     dtype="float32", shape=[2, 3], data_ptr=array.ctypes.data, data_len=array.nbytes
    ... )
    >>> spec.dtype, spec.shape, len(ztensor.serialize({"x": spec}))
    ('F32', [2, 3], 96)
    """

    __slots__ = ("_element", "data_len", "data_ptr", "shape")

    def __init__(self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int) -> None:
        element = _dtypes.named(dtype)
        if element.safetensors is None:
            raise UnsupportedError(f"a .safetensors file cannot hold {element.name} elements")
        sizes = [int(size) for size in shape]
        if sizes and str(dtype).endswith("_x2"):
            sizes[-1] *= 2
        self._element = element
        self.shape: list[int] = sizes
        self.data_ptr: int = int(data_ptr)
        self.data_len: int = int(data_len)

    @property
    def dtype(self) -> str:
        """The element type as safetensors calls it, such as ``"BF16"``."""
        return str(self._element.safetensors)

    def _item(self, name: str) -> Any:
        """The tensor as the native library takes it, checked."""
        bits = math.prod(self.shape) * self._element.bits
        if any(size < 0 for size in self.shape) or bits % 8 or bits // 8 != self.data_len:
            raise InvalidArgumentError(
                f"tensor {name!r}: {self.dtype} elements of shape {self.shape} take "
                f"{bits / 8:g} bytes, not {self.data_len}"
            )
        if self.data_len and not self.data_ptr:
            raise InvalidArgumentError(f"tensor {name!r} has bytes, but no address")
        memory = (ctypes.c_uint8 * self.data_len).from_address(self.data_ptr)
        return (name, self._element.name, self.shape, np.ctypeslib.as_array(memory))

    def __repr__(self) -> str:
        return f"ztensor.TensorSpec(dtype={self.dtype!r}, shape={self.shape})"


def serialize(
    tensor_dict: Mapping[str, TensorSpec], metadata: Mapping[str, str] | None = None
) -> bytes:
    """The bytes of a ``.safetensors`` file."""
    items, attributes = _checked(tensor_dict, metadata)
    return _native.export_bytes("safetensors", items, attributes, _PLAIN)


def serialize_file(
    tensor_dict: Mapping[str, TensorSpec],
    filename: Path,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a ``.safetensors`` file, whatever its name is."""
    items, attributes = _checked(tensor_dict, metadata)
    _native.export_file(filename, "safetensors", items, attributes, _PLAIN)


_PLAIN = _formats.Settings(None, "default", None)


def _checked(
    tensors: Mapping[str, TensorSpec], metadata: Mapping[str, str] | None
) -> tuple[list[Any], dict[str, str] | None]:
    for name, spec in tensors.items():
        if not isinstance(spec, TensorSpec):
            raise TypeError(f"tensor {name!r} has type {type(spec).__name__}, not TensorSpec")
    attributes = dict(metadata) if metadata else None
    _formats.check_metadata("safetensors", attributes)
    return [spec._item(name) for name, spec in tensors.items()], attributes


def deserialize(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """The dense tensors of a file that lies in memory: ``shape``, ``dtype`` and ``data`` of each.

    >>> import numpy as np, ztensor
    >>> from ztensor.numpy import save
    >>> ztensor.deserialize(save({"x": np.ones(2, np.uint8)}, format="safetensors"))
    [('x', {'shape': [2], 'dtype': 'U8', 'data': bytearray(b'\\x01\\x01')})]
    """
    reader = _files.open_bytes(data, DEFAULTS)
    found = []
    for name in reader.keys():
        described = reader.metadata(name)
        if described["format"] != "dense":
            raise UnsupportedError(
                f"tensor {name!r} is {described['format']}: deserialize() is for dense tensors"
            )
        dtype = safetensors_name(described["dtype"], described["type"])
        contents = {
            "shape": described["shape"],
            "dtype": dtype,
            "data": bytearray(reader.read_bytes(name)),
        }
        found.append((name, contents))
    return found


def safetensors_name(dtype: str, logical: str | None) -> str:
    """The name that safetensors has for an element type, where it has one."""
    element = _dtypes.described(dtype, logical)
    if element is None:
        return str(logical)
    return element.safetensors or element.zt.upper()
