"""Frames: buffers and arrays to fewer bytes, and back."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ForwardRef, Literal, TypeAlias, TypeVar, Union, overload

import numpy as np

from z4ai import _memory, _stream
from z4ai._stream import Readable, Writable
from ztensor import _bridges, _dtypes, _frameworks, _native
from ztensor._errors import InvalidArgumentError, UnsupportedError
from ztensor._tensor import Tensor
from ztensor._types import AnyArray, DType, Effort

if TYPE_CHECKING:
    import torch
    from typing_extensions import Buffer

    _Torch: TypeAlias = torch.Tensor
else:
    from z4ai._memory import Buffer
    from ztensor._types import torch

    _Torch = ForwardRef("torch.Tensor", module=__name__)

Data: TypeAlias = Union[Buffer, np.ndarray[Any, np.dtype[Any]], np.generic, _Torch]  # noqa: UP007
Settings: TypeAlias = tuple[
    str, str, int | None, int, bool, list[int], tuple[str, list[int]] | None
]

Out = TypeVar("Out")

DEFAULT_LEVEL: int = _native.Z4AI_DEFAULT_LEVEL
"""The zstd level that ``level=None`` stands for."""

DEFAULT_ESCALATE_LEVEL: int | None = None
"""No second level is tried: efforts do that. Kept for programs that import it."""

EFFORTS = tuple(_native.Z4AI_EFFORTS)


@overload
def compress(
    data: Data,
    *,
    dtype: DType | None = None,
    level: int | None = None,
    threads: int = 0,
    auto: bool = True,
    effort: Effort | None = None,
    shape: Sequence[int] | None = None,
    blocks: str | None = None,
    out: None = None,
) -> bytes: ...
@overload
def compress(
    data: Readable,
    *,
    dtype: DType | None = None,
    level: int | None = None,
    threads: int = 0,
    auto: bool = True,
    effort: Effort | None = None,
    shape: Sequence[int] | None = None,
    out: Writable,
) -> int: ...
def compress(
    data: Any,
    *,
    dtype: DType | None = None,
    level: int | None = None,
    threads: int = 0,
    auto: bool = True,
    effort: Effort | None = None,
    shape: Sequence[int] | None = None,
    blocks: str | None = None,
    out: Writable | None = None,
) -> bytes | int:
    """Compresses a buffer, a NumPy array or a torch tensor into a frame.

    ``dtype`` is the type of a buffer's elements: a key of :data:`z4ai.DTYPE_WIDTHS`, or what
    ``ztensor`` and others call it (``"bfloat16"``, ``"BF16"``, ``torch.bfloat16``, ``np.float32``);
    ``None`` means bytes of unknown meaning. ``shape``, if the buffer is one tensor,
    helps to find rows and columns of one scale. Arrays and tensors know both
    themselves, and :func:`decompress_array` restores them with both.

    ``effort`` is ``"fast"`` (decodes at the speed of a memory copy), ``"default"``
    (what ``None`` means), ``"balanced"`` or ``"max"`` (the smallest); none is larger
    than the one before it. ``level``, 1 to 22, is for the streams that zstd codes.
    With ``auto=False`` the data is not searched for structure that its type does not
    tell. ``threads`` is 0 for one per core; the frame does not depend on it.

    ``blocks`` says that bytes are blocks of a quantized type of GGUF, such as ``"q4_k"``: scales
    and quants are then coded apart. ``shape`` counts bytes.

    >>> import z4ai
    >>> blocks = bytes(1800)
    >>> z4ai.decompress(z4ai.compress(blocks, blocks="q4_0")) == blocks
    True

    The same data and options give the same frame on every machine. A frame is never
    more than some bytes per 128 KiB longer than the data.

    >>> import z4ai
    >>> weights = bytes(4000)
    >>> blob = z4ai.compress(weights, dtype="bf16")
    >>> z4ai.decompress(blob) == weights, len(blob) < 100
    (True, True)

    ``data`` may also be a file object, such as a pipe, with another one as ``out``. It is then
    read and compressed piece by piece in bounded memory, and the length of the frame is returned.
    Matches over long distances are not searched for, and a long frame waits in a temporary file
    until its header is known.

    >>> import io
    >>> out = io.BytesIO()
    >>> size = z4ai.compress(io.BytesIO(weights), out=out, dtype="bf16")
    >>> size == len(out.getvalue()), z4ai.decompress(out.getvalue()) == weights
    (True, True)
    """
    if out is not None or _stream.is_file(data):
        if blocks is not None:
            raise InvalidArgumentError("blocks of a stream are not supported")
        return _stream.compress(data, out, dtype, level, threads, auto, effort, shape)
    found = _memory.data_of(data, dtype, shape)
    settings = (
        found.kind,
        effort_named(effort),
        level_checked(level),
        threads_checked(threads),
        bool(auto),
        found.shape,
        found.array,
    )
    return _native.z4ai_compress(found.memory, settings, blocks)


@overload
def decompress(
    blob: Data, *, out: None = None, threads: int = 0, max_bytes: int | None = None
) -> bytes: ...
@overload
def decompress(blob: Data, *, out: Out, threads: int = 0, max_bytes: int | None = None) -> Out: ...
def decompress(
    blob: Data, *, out: Any = None, threads: int = 0, max_bytes: int | None = None
) -> Any:
    """Restores what :func:`compress` was given, byte for byte.

    Reads every stand-alone frame, also of earlier versions. With ``out``, a writable
    buffer, array or tensor of at least the size, the frame is decoded straight into
    its memory, whose rest stays as it is, and ``out`` is returned; without, new
    ``bytes`` are. Damaged frames are a ``ValueError``, and what is in ``out`` is then
    unspecified.

    A frame that declares more than ``max_bytes`` decoded bytes is a ``LimitError`` before
    memory is allocated; by default those are the larger of 4 GiB and 1,000 times the frame.
    ``out`` is its own limit.

    >>> import z4ai
    >>> blob = z4ai.compress(b"weights" * 100)
    >>> out = bytearray(700)
    >>> z4ai.decompress(blob, out=out) is out, out[:7]
    (True, bytearray(b'weights'))
    """
    frame = checked_frame(blob)
    if out is None:
        return _native.z4ai_decompress(frame, threads_checked(threads), max_bytes)
    if max_bytes is not None:
        _native.z4ai_check_size(_native.z4ai_inspect(frame)[4], len(frame), max_bytes)
    _native.z4ai_decompress_into(frame, _memory.out_memory(out), threads_checked(threads))
    return out


def compress_array(
    arr: Data,
    *,
    level: int | None = None,
    threads: int = 0,
    auto: bool = True,
    effort: Effort | None = None,
) -> bytes:
    """Compresses a NumPy array or a torch tensor; its frame keeps dtype and shape.

    For the options see :func:`compress`.

    >>> import numpy as np, z4ai
    >>> weights = np.ones((3, 4), np.float16)
    >>> back = z4ai.decompress_array(z4ai.compress_array(weights))
    >>> back.dtype, back.shape, bool((back == weights).all())
    (dtype('float16'), (3, 4), True)
    """
    if not _dtypes.is_torch(arr) and not hasattr(arr, "dtype"):
        raise TypeError(f"a NumPy array or a torch tensor is needed, not {type(arr).__name__}")
    return compress(arr, level=level, threads=threads, auto=auto, effort=effort)


@overload
def decompress_array(
    blob: Data,
    *,
    threads: int = 0,
    framework: Literal["numpy", "np"] = "numpy",
    max_bytes: int | None = None,
) -> AnyArray: ...
@overload
def decompress_array(
    blob: Data,
    *,
    threads: int = 0,
    framework: Literal["torch", "pt", "pytorch"],
    max_bytes: int | None = None,
) -> torch.Tensor: ...
@overload
def decompress_array(
    blob: Data,
    *,
    threads: int = 0,
    framework: Literal["jax", "flax", "tf", "tensorflow", "mlx", "paddle"],
    max_bytes: int | None = None,
) -> Any: ...
def decompress_array(
    blob: Data, *, threads: int = 0, framework: str = "numpy", max_bytes: int | None = None
) -> Any:
    """Restores an array: the same dtype, the same shape, the same bits, in memory of its own.

    ``framework="torch"`` returns a torch tensor instead, and so on for the others that
    :class:`ztensor.safe_open` knows. Types that NumPy does not have,
    such as bfloat16, are those of ``ml_dtypes``. A frame that was not made from an array
    is a ``ValueError``. For ``max_bytes`` see :func:`decompress`.
    """
    framework = _bridges.canonical(framework)
    frame = checked_frame(blob)
    array, size = _native.z4ai_inspect(frame)[3:5]
    if array is None:
        raise InvalidArgumentError(
            "the frame was not made from an array: z4ai.decompress restores its bytes"
        )
    _native.z4ai_check_size(size, len(frame), max_bytes)
    name, shape = array
    if framework == "torch":
        element = next((e for e in _dtypes.ELEMENTS if e.numpy == name), None)
        if element is None:
            raise UnsupportedError(f"torch has no {name}")
        flat = _memory.empty_array("|u1", [size], size)
        if size * 8 != element.bits * int(np.prod(shape, dtype=object)):
            raise InvalidArgumentError(
                f"the frame has {size} bytes, which are not an array of dtype {name} "
                f"and shape {shape}"
            )
        _native.z4ai_decompress_into(frame, flat, threads_checked(threads))
        return _frameworks.array_to_torch(flat, element, shape)
    restored = _memory.empty_array(name, shape, size)
    _native.z4ai_decompress_into(frame, _memory.out_memory(restored), threads_checked(threads))
    if framework == "numpy":
        return restored
    made = _bridges.made(framework, Tensor({"data": restored}))
    if isinstance(made, Tensor):
        raise UnsupportedError(f"{framework} has no {name}")
    return made


compress_ndarray = compress_array
decompress_ndarray = decompress_array


def peek_is_z4ai(blob: Data) -> bool:
    """Whether bytes start like a frame that :func:`decompress` reads."""
    return _native.z4ai_kind_of(_memory.frame_of(blob)) == "frame"


_OTHERS = {
    b"ZSTN": "a packed safetensors file: z4ai.safetensors.decompress_bytes restores it",
    b"Z4DM": "a model delta: z4ai.model_delta.decompress restores it with its base",
}


def checked_frame(blob: Data) -> _memory.Bytes:
    """A frame's bytes, unless they are something else that has a call of its own."""
    frame = _memory.frame_of(blob)
    kind = _native.z4ai_kind_of(frame)
    if kind == "delta":
        raise InvalidArgumentError(
            "this is a delta: z4ai.decompress_delta(blob, reference) restores it"
        )
    if kind is None:
        start = bytes(frame[:4])
        what = _OTHERS.get(start, "not a z4ai frame, or one of a newer version")
        raise UnsupportedError(f"{what} (it starts with {start!r})")
    return frame


def effort_named(effort: str | None) -> str:
    """The effort's name, checked."""
    if effort is None:
        return "default"
    if effort not in EFFORTS:
        raise InvalidArgumentError(
            f"unknown effort {effort!r}: choose one of {', '.join(EFFORTS)}, or None for default"
        )
    return effort


def level_checked(level: int | None) -> int | None:
    """A zstd level, or ``None``."""
    if level is None:
        return None
    if isinstance(level, bool):
        raise TypeError("level is a number from 1 to 22, not a bool")
    number = operator.index(level)
    if not 1 <= number <= 22:
        raise InvalidArgumentError(f"level is 1 to 22, not {number}")
    return number


def threads_checked(threads: int) -> int:
    """A number of threads."""
    number = operator.index(threads)
    if not 0 <= number <= 1 << 16:
        raise InvalidArgumentError(f"threads is 0 for one per core, or their number, not {number}")
    return number
