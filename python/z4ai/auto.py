"""The smallest frame, without asking for it: the codec with ``effort="max"`` as its default.

>>> from z4ai import auto
>>> frame = auto.compress(bytes(4000), dtype="bf16")
>>> auto.decompress(frame) == bytes(4000)
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from z4ai import _codec
from z4ai._codec import decompress, decompress_array

if TYPE_CHECKING:
    from z4ai._codec import Data

__all__ = ["compress", "decompress", "decompress_array"]


def compress(data: Data, *, dtype: str | None = None, effort: str | None = "max") -> bytes:
    """Compresses like :func:`z4ai.compress`, as small as it can unless ``effort`` says less."""
    return _codec.compress(data, dtype=dtype, effort=effort)
