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

import os as _os
from typing import TYPE_CHECKING, Any

# First: its error says what is missing.
from ztensor import _requirements as _requirements  # isort: skip

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
    from z4ai import auto as auto
    from z4ai import backend as backend
    from z4ai import chunked as chunked
    from z4ai import codec as codec
    from z4ai import format as format
    from z4ai import integrations as integrations
    from z4ai import model_delta as model_delta
    from z4ai import safetensors as safetensors
    from z4ai import transforms as transforms
    from z4ai.integrations import disable_hf as disable_hf
    from z4ai.integrations import enable_hf as enable_hf
    from z4ai.integrations import is_enabled as is_enabled
    from z4ai.integrations import load_file as load_file
    from z4ai.integrations import pack_model as pack_model
    from z4ai.integrations import packing as packing
    from z4ai.integrations import pretrained as pretrained
    from z4ai.integrations import save_file as save_file

# What `from z4ai import *` brings: no module that others also have, such as `format`, and nothing
# that would import torch.
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
    "model_delta",
    "peek_is_z4ai",
]

# These take torch and more to import: only those who name them wait for it.
_HUGGING_FACE = {
    "disable_hf",
    "enable_hf",
    "is_enabled",
    "load_file",
    "pack_model",
    "packing",
    "pretrained",
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


def __dir__() -> list[str]:
    return sorted({*globals(), *_HUGGING_FACE, *_MODULES})


if _os.environ.get("Z4AI_HF") == "1":
    __getattr__("integrations").enable_if_asked()
