"""The smallest frame, without asking for it: the codec with ``effort="max"`` as its default.

>>> from z4ai import auto
>>> frame = auto.compress(bytes(4000), dtype="bf16")
>>> auto.decompress(frame) == bytes(4000)
True
"""

from __future__ import annotations

from z4ai import _codec
from z4ai._codec import Data, decompress, decompress_array
from ztensor._types import DType, Effort

__all__ = ["compress", "decompress", "decompress_array"]


def compress(data: Data, *, dtype: DType | None = None, effort: Effort | None = "max") -> bytes:
    """Compresses like :func:`z4ai.compress`, as small as it can unless ``effort`` says less."""
    return _codec.compress(data, dtype=dtype, effort=effort)
