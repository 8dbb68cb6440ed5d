"""Frames for the load-often path: decoded by all cores at once, at the speed of memory.

Every frame of this version is cut into chunks that decode alone, so this module writes what
``z4ai.compress(..., effort="fast")`` writes, and both read all frames.

>>> import z4ai.chunked as ck
>>> weights = bytes(10_000)
>>> ck.decompress(ck.compress(weights, dtype="bf16")) == weights
True
"""

from __future__ import annotations

import operator
from typing import Any, overload

from z4ai import _codec, _memory
from z4ai._codec import Data, Out
from ztensor._errors import InvalidArgumentError
from ztensor._types import DType

__all__ = ["DEFAULT_CHUNK_SIZE", "DEFAULT_LEVEL", "MAGIC", "compress", "decompress", "is_chunked"]

MAGIC = b"Z4AI"
"""What frames of this module start with, those of earlier versions too (``Z4AIMF01``)."""

DEFAULT_CHUNK_SIZE = 2 << 20
DEFAULT_LEVEL = _codec.DEFAULT_LEVEL


def compress(
    data: Data,
    *,
    dtype: DType | None = None,
    level: int | None = None,
    threads: int = 0,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
) -> bytes:
    """Compresses for fast decoding; for the options see :func:`z4ai.compress`.

    ``chunk_size`` is accepted for programs written for earlier versions, and checked, but
    chunks are as long as the processor's caches like them.
    """
    if operator.index(chunk_size) < 1:
        raise InvalidArgumentError(f"chunk_size must be positive, not {chunk_size}")
    return _codec.compress(data, dtype=dtype, level=level, threads=threads, effort="fast")


@overload
def decompress(blob: Data, *, out: None = None, threads: int = 0) -> bytes: ...
@overload
def decompress(blob: Data, *, out: Out, threads: int = 0) -> Out: ...
def decompress(blob: Data, *, out: Any = None, threads: int = 0) -> Any:
    """The same as :func:`z4ai.decompress`."""
    return _codec.decompress(blob, out=out, threads=threads)


def is_chunked(blob: Data) -> bool:
    """Whether bytes start like a frame that decodes chunk by chunk, on several cores."""
    frame = _memory.frame_of(blob)
    start = bytes(frame[:8])
    return _codec.peek_is_z4ai(blob) and (start == b"Z4AIMF01" or start[4:5] == b"\x02")
