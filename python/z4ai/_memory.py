"""What people hand over, as contiguous bytes: buffers, NumPy arrays, torch tensors."""

from __future__ import annotations

import ast
import math
import operator
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Union

import numpy as np

from ztensor import _dtypes, _frameworks
from ztensor._errors import CorruptError, InvalidArgumentError, LimitError, UnsupportedError
from ztensor._types import AnyArray, DType

if TYPE_CHECKING:
    from typing_extensions import Buffer
else:
    Buffer = Union[bytes, bytearray, memoryview]  # noqa: UP007  collections.abc has it from 3.12 on

Bytes: TypeAlias = bytes | memoryview | AnyArray
"""What the extension takes: contiguous memory of single bytes."""

DTYPE_WIDTHS: dict[str | None, int] = {
    None: 1,
    "raw": 1,
    "uint8": 1,
    "int8": 1,
    "bool": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "bf16": 2,
    "fp16": 2,
    "float16": 2,
    "int16": 2,
    "uint16": 2,
    "fp32": 4,
    "float32": 4,
    "int32": 4,
    "uint32": 4,
    "fp64": 8,
    "float64": 8,
    "int64": 8,
    "uint64": 8,
}
"""Bytes per element of every ``dtype`` that :func:`z4ai.compress` knows."""

# The codec has one name for each of its types.
_SAME = {None: "raw", "float16": "fp16", "float32": "fp32", "float64": "fp64"}


def dtype_width(dtype: DType | None) -> int:
    """Bytes per element of a dtype code, as in :data:`z4ai.DTYPE_WIDTHS`."""
    return DTYPE_WIDTHS[code(dtype)]


def code(dtype: DType | None) -> str:
    """The codec's name of an element type, by any of the names that ``ztensor`` accepts."""
    if dtype is None or (isinstance(dtype, str) and dtype in DTYPE_WIDTHS):
        return _SAME.get(dtype, dtype) or "raw"
    try:
        return _dtypes.named(dtype).codec
    except InvalidArgumentError:
        known = ", ".join(name for name in DTYPE_WIDTHS if name is not None)
        raise InvalidArgumentError(f"unknown dtype {dtype!r}: choose one of {known}") from None


class Data(NamedTuple):
    """Memory to be encoded, with its element type and shape."""

    memory: Bytes
    kind: str
    """The codec's name of the element type."""
    shape: list[int]
    """Empty if it is not known."""
    array: tuple[str, list[int]] | None
    """Element type and shape of an array, as they are stored in its frame."""


def data_of(data: Any, dtype: DType | None, shape: Sequence[int] | None = None) -> Data:
    """Memory of whatever can be encoded."""
    given = code(dtype)
    width = DTYPE_WIDTHS[given]
    if _dtypes.is_torch(data):
        return _tensor_data(data, given if dtype is not None else None)
    if isinstance(data, np.ndarray | np.generic):
        array = np.asarray(data)
        kind = given if dtype is not None and width == array.dtype.itemsize else _kind(array.dtype)
        # Complex numbers are pairs, and the codec sees their halves.
        hint = [*array.shape, 2] if array.dtype.kind == "c" and kind.startswith("fp") else []
        return Data(array_memory(array), kind, hint, (_name(array.dtype), list(array.shape)))
    return Data(buffer_memory(data), given, _sizes(shape), None)


def _tensor_data(tensor: Any, given: str | None) -> Data:
    element = _dtypes.of_torch(tensor.dtype)
    if element.numpy is None or element.bits % 8:
        raise InvalidArgumentError(
            f"NumPy has no {element.name}, so a frame cannot restore it: view it as uint8 first"
        )
    memory = tensor_memory(tensor)
    kind = given
    if kind is None or DTYPE_WIDTHS.get(kind) != element.bits // 8:
        kind = element.codec
    hint = [*tensor.shape, 2] if "complex" in element.name else []
    return Data(memory, kind, hint, (element.numpy, list(tensor.shape)))


def memory_of(data: Any, what: str = "data") -> Bytes:
    """The bytes of a buffer, an array or a tensor, in the order of its elements."""
    if _dtypes.is_torch(data):
        return tensor_memory(data)
    if isinstance(data, np.ndarray | np.generic):
        return array_memory(np.asarray(data))
    return buffer_memory(data, what)


def buffer_memory(data: Buffer, what: str = "data") -> Bytes:
    """The bytes of anything with the buffer protocol."""
    if isinstance(data, bytes):
        return data
    try:
        view = memoryview(data)
    except TypeError:
        raise TypeError(
            f"{what} must be bytes-like, a NumPy array or a torch tensor, not {type(data).__name__}"
        ) from None
    if not view.c_contiguous:
        return view.tobytes()
    return view.cast("B") if view.nbytes else b""


def array_memory(array: AnyArray) -> AnyArray:
    """The bytes of an array in C order: its own memory, where it is so already."""
    if array.dtype.hasobject:
        raise TypeError(f"arrays of Python objects ({array.dtype}) have no bytes to compress")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def tensor_memory(tensor: Any) -> AnyArray:
    """The bytes of a dense torch tensor in C order."""
    if tensor.device.type == "meta":
        raise TypeError("a tensor on the meta device has no data: give it some with to_empty()")
    if str(tensor.layout) != "torch.strided":
        raise TypeError(f"{tensor.layout} tensors have no bytes of their own: use to_dense()")
    return _frameworks.torch_to_array(tensor).reshape(-1).view(np.uint8)


def contents_of(file: Any, what: str) -> bytes:
    """A file in memory, as immutable bytes."""
    memory = memory_of(file, what)
    return memory if isinstance(memory, bytes) else bytes(memory)


def frame_of(blob: Any) -> Bytes:
    """A frame's bytes. What is neither ``bytes`` nor bytes-like is a wrong type."""
    return memory_of(blob, "the frame")


def out_memory(out: Any) -> memoryview | AnyArray:
    """The memory of a buffer, an array or a tensor that is to be filled."""
    if _dtypes.is_torch(out):
        if out.device.type != "cpu" or not out.is_contiguous():
            raise InvalidArgumentError("out must be a contiguous tensor on the CPU")
        out = _frameworks.torch_to_array(out.detach())
    if isinstance(out, np.ndarray):
        if not out.flags.c_contiguous or not out.flags.writeable or out.dtype.hasobject:
            raise InvalidArgumentError("out must be a contiguous, writable array of plain values")
        return out.reshape(-1).view(np.uint8)
    try:
        view = memoryview(out)
    except TypeError:
        raise TypeError(f"out must be a writable buffer, not {type(out).__name__}") from None
    if view.readonly or not view.c_contiguous:
        raise InvalidArgumentError("out must be contiguous and writable")
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def _sizes(shape: Sequence[int] | None) -> list[int]:
    if shape is None:
        return []
    try:
        sizes = [operator.index(size) for size in shape]
    except TypeError:
        raise TypeError(f"shape is a list of sizes, not {shape!r}") from None
    if any(size < 0 for size in sizes):
        raise InvalidArgumentError(f"a shape has no negative sizes, as {sizes} does")
    return sizes


def _kind(dtype: np.dtype[Any]) -> str:
    """The codec's type for the elements of an array."""
    element = _dtypes.find_numpy(dtype)
    if element is not None:
        return element.codec
    # Byte-swapped numbers, dates and structures are not in the table.
    size, is_native = dtype.itemsize, dtype.newbyteorder("=") == dtype
    if dtype.kind == "c":
        size //= 2
    if dtype.kind in "fc" and size in (2, 4, 8):
        return f"fp{8 * size}" if is_native else f"uint{8 * size}"
    if dtype.kind in "iumM" and size in (1, 2, 4, 8):
        return f"{'u' if dtype.kind == 'u' else ''}int{8 * size}"
    return "bool" if dtype.kind == "b" else "raw"


def _name(dtype: np.dtype[Any]) -> str:
    """A dtype as text that :func:`dtype_named` understands."""
    if dtype.isbuiltin == 2:
        name = dtype.name  # one of ml_dtypes
    elif dtype.names is not None or dtype.subdtype is not None:
        name = repr(np.lib.format.dtype_to_descr(dtype))
    else:
        name = dtype.str
    try:
        restored = len(name.encode()) <= 255 and dtype_named(name) == dtype
    except ValueError:
        restored = False
    if not restored:
        raise TypeError(
            f"arrays of {dtype!r} cannot be restored from a frame: compress their bytes"
        )
    return name


def dtype_named(name: str) -> np.dtype[Any]:
    """The dtype that a frame names. The name may come from anyone."""
    try:
        if name[:1] == "[":
            dtype = np.lib.format.descr_to_dtype(ast.literal_eval(name))
        elif name[:1] in ("<", ">", "|", "="):
            dtype = np.dtype(name)
        else:
            element = next((e for e in _dtypes.ELEMENTS if e.numpy == name), None)
            dtype = _ml_dtype(name) if element is None else _dtypes.numpy_dtype(element)
    except UnsupportedError:
        raise
    except (TypeError, ValueError, SyntaxError, KeyError, MemoryError, RecursionError) as error:
        raise CorruptError(f"the frame names an invalid array type: {name!r}") from error
    if dtype.hasobject or dtype.subdtype is not None:
        raise CorruptError(f"the frame names an array type that has no bytes: {name!r}")
    return dtype


def _ml_dtype(name: str) -> np.dtype[Any]:
    """A type of ml_dtypes that no file format has."""
    ml_dtypes = sys.modules.get("ml_dtypes")
    if ml_dtypes is None:
        try:
            import ml_dtypes
        except ImportError:
            raise UnsupportedError(
                f"NumPy has no {name} of its own: install ml_dtypes (pip install ml_dtypes)"
            ) from None
    found = getattr(ml_dtypes, name, None) if name.isidentifier() else None
    if not isinstance(found, type):
        raise CorruptError(f"the frame names an array type that is not known: {name!r}")
    return np.dtype(found)


def empty_array(name: str, shape: Sequence[int], nbytes: int) -> AnyArray:
    """An uninitialised array for the content of a frame."""
    dtype = dtype_named(name)
    if math.prod(shape) * dtype.itemsize != nbytes:
        raise CorruptError(
            f"the frame has {nbytes} bytes, which are not an array of dtype {dtype} "
            f"and shape {list(shape)}"
        )
    try:
        return np.empty(tuple(shape), dtype)
    except MemoryError:
        raise LimitError(f"no memory for {nbytes} bytes") from None
    except ValueError as error:
        raise CorruptError(f"an array of shape {list(shape)}: {error}") from None
