"""One plane of bytes at a time: frames of bytes without a type.

>>> from z4ai import backend
>>> backend.decompress_plane(backend.compress_plane(bytes(1000))) == bytes(1000)
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from z4ai import _codec

if TYPE_CHECKING:
    from typing_extensions import Buffer
else:
    from z4ai._memory import Buffer

__all__ = ["compress_plane", "decompress_plane"]


def compress_plane(plane: Buffer, *, level: int | None = None) -> bytes:
    """Compresses a plane into a frame that every reader of frames reads."""
    return _codec.compress(plane, dtype="uint8", level=level)


def decompress_plane(blob: Buffer) -> bytes:
    """Undoes :func:`compress_plane`."""
    return _codec.decompress(blob)
