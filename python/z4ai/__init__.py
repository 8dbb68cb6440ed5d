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

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from z4ai import (
        auto,
        backend,
        chunked,
        codec,
        format,
        integrations,
        model_delta,
        safetensors,
        transforms,
    )
    from z4ai.integrations import (
        disable_hf,
        enable_hf,
        is_enabled,
        load_file,
        pack_model,
        save_file,
    )

__all__ = [
    "DEFAULT_ESCALATE_LEVEL",
    "DEFAULT_LEVEL",
    "DTYPE_WIDTHS",
    "__version__",
    "auto",
    "backend",
    "chunked",
    "codec",
    "compress",
    "compress_array",
    "compress_delta",
    "compress_ndarray",
    "decompress",
    "decompress_array",
    "decompress_delta",
    "decompress_ndarray",
    "delta",
    "disable_hf",
    "dtype_width",
    "enable_hf",
    "format",
    "integrations",
    "is_enabled",
    "load_file",
    "model_delta",
    "pack_model",
    "peek_is_z4ai",
    "safetensors",
    "save_file",
    "transforms",
]

# These take torch and more to import: only those who name them wait for it.
_HUGGING_FACE = {
    "disable_hf",
    "enable_hf",
    "is_enabled",
    "load_file",
    "pack_model",
    "save_file",
}
_MODULES = {
    "auto",
    "backend",
    "chunked",
    "codec",
    "format",
    "integrations",
    "model_delta",
    "safetensors",
    "transforms",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"z4ai.{name}")
    if name in _HUGGING_FACE:
        return getattr(importlib.import_module("z4ai.integrations"), name)
    raise AttributeError(f"module 'z4ai' has no attribute {name!r}")
