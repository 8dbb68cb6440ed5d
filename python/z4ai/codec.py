"""The codec under the name of its module, for programs that import it from there.

>>> from z4ai.codec import compress_array, decompress_array
>>> from z4ai import codec
>>> codec.decompress(codec.compress(b"weights" * 9)) == b"weights" * 9
True
"""

from __future__ import annotations

from z4ai._codec import (
    DEFAULT_ESCALATE_LEVEL,
    DEFAULT_LEVEL,
    compress,
    compress_array,
    compress_ndarray,
    decompress,
    decompress_array,
    decompress_ndarray,
)

__all__ = [
    "DEFAULT_ESCALATE_LEVEL",
    "DEFAULT_LEVEL",
    "compress",
    "compress_array",
    "compress_ndarray",
    "decompress",
    "decompress_array",
    "decompress_ndarray",
]
