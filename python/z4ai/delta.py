"""Deltas between buffers of equal length, such as two checkpoints of one model.

:func:`compress` and :func:`decompress` are also :func:`z4ai.compress_delta` and
:func:`z4ai.decompress_delta`. For whole files whose tensors may have moved, see
:mod:`z4ai.model_delta`.
"""

from __future__ import annotations

from typing import Any, overload

from z4ai import _codec, _memory
from z4ai._codec import Data, Out
from ztensor import _native
from ztensor._errors import InvalidArgumentError
from ztensor._types import DType, Effort

__all__ = ["MAGIC", "compress", "decompress", "peek_is_delta"]

MAGIC = b"Z4DL"
"""What every delta starts with."""


def compress(
    current: Data,
    reference: Data,
    *,
    dtype: DType | None = None,
    level: int | None = None,
    threads: int = 0,
    effort: Effort | None = None,
) -> bytes:
    """Stores ``current`` as its difference from ``reference``, which must be as long.

    Both are buffers, arrays or tensors, of which only the bytes count. ``dtype`` is the
    type of a buffer's elements; arrays know their own.

    >>> import z4ai
    >>> before = bytes(range(256)) * 100
    >>> after = before[:-1] + b"!"
    >>> blob = z4ai.compress_delta(after, reference=before)
    >>> z4ai.decompress_delta(blob, reference=before) == after, len(blob) < 200
    (True, True)
    """
    found = _memory.data_of(current, dtype)
    shape = found.shape or (found.array[1] if found.array is not None else [])
    settings = (
        found.kind,
        _codec.effort_named(effort),
        _codec.level_checked(level),
        _codec.threads_checked(threads),
        True,
        shape,
        None,
    )
    known = _memory.memory_of(reference, "the reference")
    return _native.z4ai_delta_compress(found.memory, known, settings)


@overload
def decompress(blob: Data, reference: Data, *, out: None = None, threads: int = 0) -> bytes: ...
@overload
def decompress(blob: Data, reference: Data, *, out: Out, threads: int = 0) -> Out: ...
def decompress(blob: Data, reference: Data, *, out: Any = None, threads: int = 0) -> Any:
    """Restores what a delta was made from, with the reference it was made against.

    Another reference is a ``ValueError``, found before anything is decoded. With ``out``
    the result goes straight into its memory; ``out`` may be the reference itself, which
    is then brought up to date in place, after both were checked in full.
    """
    frame = _memory.frame_of(blob)
    if not peek_is_delta(blob):
        hint = ": z4ai.decompress restores it" if _codec.peek_is_z4ai(blob) else ""
        raise InvalidArgumentError(f"this is not a delta{hint}")
    known = _memory.memory_of(reference, "the reference")
    threads = _codec.threads_checked(threads)
    if out is None:
        return _native.z4ai_delta_decompress(frame, known, threads)
    _native.z4ai_delta_decompress_into(frame, known, _memory.out_memory(out), threads)
    return out


def peek_is_delta(blob: Data) -> bool:
    """Whether bytes start like a delta that :func:`decompress` reads."""
    return _native.z4ai_kind_of(_memory.frame_of(blob)) == "delta"
