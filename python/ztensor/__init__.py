"""Unified, zero-copy, safe I/O for tensor files.

Reads ``.zt``, ``.safetensors``, ``.pt``, ``.gguf``, ``.npz``, ``.onnx`` and
``.h5`` files through one interface, and writes ``.zt``, ``.safetensors``, ``.npz`` and ``.gguf``.

``ztensor.numpy``, ``ztensor.torch`` and others have ``save_file`` and ``load_file``;
:class:`Reader` and :class:`Writer` work tensor by tensor; ``ztensor.distributed`` is
for checkpoints of many ranks, :class:`Repository` for versions of models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ztensor import _requirements as _requirements  # first: its error says what is missing
from ztensor import store
from ztensor._convert import convert
from ztensor._edits import remove_tensors, replace_tensor
from ztensor._errors import (
    CorruptError,
    FileError,
    FinishedError,
    IndexOutOfRangeError,
    InvalidArgumentError,
    LimitError,
    MismatchError,
    MissingArgumentError,
    ModelMismatchError,
    NoSuchFileError,
    NotFoundError,
    NotPermittedError,
    SafetensorError,
    SharedTensorError,
    TimedOutError,
    UnknownFormatError,
    UnreachableError,
    UnsafePickleWarning,
    UnsupportedError,
    ZTensorError,
)
from ztensor._identity import Capabilities, capabilities, content_id, content_ids
from ztensor._metadata import TensorMetadata
from ztensor._native import VERSION as __version__
from ztensor._prefetch import PrefetchLoader
from ztensor._reader import Location, QuantizedWeight, Reader, Verification, open
from ztensor._safe_open import Slice as PySafeSlice
from ztensor._safe_open import safe_open
from ztensor._safe_open import safe_open_handle as _safe_open_handle
from ztensor._safetensors import TensorMeta, TensorSpec, deserialize, serialize, serialize_file
from ztensor._tensor import Tensor
from ztensor._writer import TensorStream, Writer
from ztensor.repository import Repository

if TYPE_CHECKING:
    from ztensor import distributed as distributed
    from ztensor import flax as flax
    from ztensor import jax as jax
    from ztensor import mlx as mlx
    from ztensor import numpy as numpy
    from ztensor import paddle as paddle
    from ztensor import sync as sync
    from ztensor import tensorflow as tensorflow
    from ztensor import torch as torch

# What `from ztensor import *` brings: nothing that would import a framework, or hide its name.
__all__ = [
    "Capabilities",
    "CorruptError",
    "FileError",
    "FinishedError",
    "IndexOutOfRangeError",
    "InvalidArgumentError",
    "LimitError",
    "Location",
    "MismatchError",
    "MissingArgumentError",
    "ModelMismatchError",
    "NoSuchFileError",
    "NotFoundError",
    "NotPermittedError",
    "PrefetchLoader",
    "PySafeSlice",
    "QuantizedWeight",
    "Reader",
    "Repository",
    "SafetensorError",
    "SharedTensorError",
    "Tensor",
    "TensorMeta",
    "TensorMetadata",
    "TensorSpec",
    "TensorStream",
    "TimedOutError",
    "UnknownFormatError",
    "UnreachableError",
    "UnsafePickleWarning",
    "UnsupportedError",
    "Verification",
    "Writer",
    "ZTensorError",
    "__version__",
    "_safe_open_handle",
    "capabilities",
    "content_id",
    "content_ids",
    "convert",
    "deserialize",
    "open",
    "remove_tensors",
    "replace_tensor",
    "safe_open",
    "serialize",
    "serialize_file",
    "store",
]


_MODULES = frozenset(
    ["distributed", "flax", "jax", "mlx", "numpy", "paddle", "sync", "tensorflow", "torch"]
)


def __getattr__(name: str) -> Any:
    # Importing a framework takes seconds: only those who name it wait for it.
    if name in _MODULES:
        import importlib

        return importlib.import_module(f"ztensor.{name}")
    raise AttributeError(f"module 'ztensor' has no attribute {name!r}")
