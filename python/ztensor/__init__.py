"""Unified, zero-copy, safe I/O for tensor files.

Reads ``.zt``, ``.safetensors``, ``.pt``, ``.gguf``, ``.npz``, ``.onnx`` and
``.h5`` files through one interface, and writes ``.zt`` files.

``ztensor.numpy`` and ``ztensor.torch`` have ``save_file`` and ``load_file``;
:class:`Reader` and :class:`Writer` work tensor by tensor; ``ztensor.distributed`` is
for checkpoints of many ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ztensor import store
from ztensor._edits import remove_tensors, replace_tensor
from ztensor._errors import (
    CorruptError,
    FileError,
    InvalidArgumentError,
    LimitError,
    MismatchError,
    ModelMismatchError,
    NotFoundError,
    UnsupportedError,
    ZTensorError,
)
from ztensor._metadata import TensorMetadata
from ztensor._native import VERSION as __version__
from ztensor._reader import Reader, Verification, open
from ztensor._safe_open import safe_open
from ztensor._tensor import Tensor
from ztensor._writer import Writer

if TYPE_CHECKING:
    from ztensor import distributed, numpy, torch

__all__ = [
    "CorruptError",
    "FileError",
    "InvalidArgumentError",
    "LimitError",
    "MismatchError",
    "ModelMismatchError",
    "NotFoundError",
    "Reader",
    "Tensor",
    "TensorMetadata",
    "UnsupportedError",
    "Verification",
    "Writer",
    "ZTensorError",
    "__version__",
    "distributed",
    "numpy",
    "open",
    "remove_tensors",
    "replace_tensor",
    "safe_open",
    "store",
    "torch",
]


def __getattr__(name: str) -> Any:
    # Importing torch takes seconds: only those who name it wait for it.
    if name in ("distributed", "numpy", "torch"):
        import importlib

        return importlib.import_module(f"ztensor.{name}")
    raise AttributeError(f"module 'ztensor' has no attribute {name!r}")
