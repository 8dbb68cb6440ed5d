"""A lossless codec for the weights of neural networks.

>>> import z4ai
>>> weights = bytes(4000)
>>> blob = z4ai.compress(weights, dtype="bf16")
>>> assert z4ai.decompress(blob) == weights

Arrays keep their dtype and shape (:func:`compress_array`), checkpoints are stored as what
changed since the last one (:func:`compress_delta`), and :mod:`z4ai.safetensors` packs files of
which single tensors can still be read. ``save_file``, ``load_file`` and ``enable_hf`` need
torch and are imported when they are first named.
"""

from __future__ import annotations

from typing import Any

from z4ai import delta
from z4ai._codec import (
    DEFAULT_ESCALATE_LEVEL,
    DEFAULT_LEVEL,
    compress,
    compress_array,
    compress_ndarray,
    decompress,
    decompress_array,
    decompress_ndarray,
    peek_is_z4ai,
)
from z4ai._memory import DTYPE_WIDTHS, dtype_width
from z4ai.delta import compress as compress_delta
from z4ai.delta import decompress as decompress_delta
from ztensor._native import VERSION as __version__

__all__ = [
    "DEFAULT_ESCALATE_LEVEL",
    "DEFAULT_LEVEL",
    "DTYPE_WIDTHS",
    "__version__",
    "compress",
    "compress_array",
    "compress_delta",
    "compress_ndarray",
    "decompress",
    "decompress_array",
    "decompress_delta",
    "decompress_ndarray",
    "delta",
    "dtype_width",
    "peek_is_z4ai",
]

_MODULES = {"chunked"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        import importlib

        return importlib.import_module(f"z4ai.{name}")
    raise AttributeError(f"module 'z4ai' has no attribute {name!r}")
