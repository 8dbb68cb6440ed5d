"""Frames of data that comes from a pipe, in bounded memory."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any, Protocol

from z4ai import _memory
from ztensor import _native
from ztensor._errors import InvalidArgumentError, MissingArgumentError
from ztensor._types import DType, Effort

_PIECE = 4 << 20
"""Bytes that are read at a time."""
_IN_MEMORY = 16 << 20
"""Longer frames wait for their headers in a temporary file."""


class Readable(Protocol):
    """What data is read from."""

    def read(self, size: int, /) -> bytes: ...


class Writable(Protocol):
    """What a frame is written to."""

    def write(self, data: bytes, /) -> Any: ...


def is_file(data: object) -> bool:
    """Whether data has to be read, and is not memory: a mapping has both."""
    if not hasattr(data, "read"):
        return False
    try:
        memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        return True
    return False


def compress(
    source: Readable,
    out: Writable | None,
    dtype: DType | None,
    level: int | None,
    threads: int,
    auto: bool,
    effort: Effort | None,
    shape: Sequence[int] | None,
) -> int:
    """Compresses what a file object has into another one; returns the length of the frame."""
    from z4ai._codec import effort_named, level_checked, threads_checked

    if not is_file(source):
        raise InvalidArgumentError("out= is for data that is read from a file object")
    if out is None:
        raise MissingArgumentError("data from a file object needs out=, another one to write to")
    encoder = _native.StreamEncoder(
        (
            _memory.code(dtype),
            effort_named(effort),
            level_checked(level),
            threads_checked(threads),
            bool(auto),
            [int(size) for size in shape or ()],
            None,
        )
    )
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as payload:
        while piece := source.read(_PIECE):
            payload.write(encoder.write(piece))
        header, rest, index = encoder.finish()
        payload.write(rest)
        length = len(header) + payload.tell() + len(index)
        payload.seek(0)
        out.write(header)
        while piece := payload.read(_PIECE):
            out.write(piece)
        out.write(index)
    return length
