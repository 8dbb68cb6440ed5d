"""Types that several modules name in their signatures; all of them exist at run time."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, ForwardRef, Literal, TypeAlias, Union

import numpy as np


class Lazy:
    """A module that is imported when an annotation that names it is evaluated.

    ``typing.get_type_hints`` evaluates ``torch.Tensor`` where this package must not import torch
    by itself. Without the module, every name in it is an empty class.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(importlib.import_module(self._module), name)
        except ImportError:
            return type(name, (), {"__module__": self._module})


if TYPE_CHECKING:
    import torch

    _TorchDevice: TypeAlias = torch.device
    _TorchDType: TypeAlias = torch.dtype
else:
    torch = Lazy("torch")
    # Evaluated in this module, wherever the alias is used.
    _TorchDevice = ForwardRef("torch.device", module=__name__)
    _TorchDType = ForwardRef("torch.dtype", module=__name__)

AnyArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Names: TypeAlias = list[str] | tuple[str, ...]
Path: TypeAlias = str | PathLike[str]
Device: TypeAlias = Union[str, int, _TorchDevice]  # noqa: UP007
StorageOptions: TypeAlias = Mapping[str, object] | None
"""How a store is reached: the names of its own settings, and those of this package."""
PicklePolicy: TypeAlias = Literal["warn", "strict"]
"""Whether a pickle that is dangerous in tools that unpickle it is warned of, or refused."""
Progress: TypeAlias = bool | Callable[[int, int], object] | None
"""``True`` shows a bar; a function is called with the bytes done and the bytes in all."""
Effort: TypeAlias = Literal["fast", "default", "balanced", "max"]
"""How hard the weight codec tries."""
Compression: TypeAlias = bool | int | Effort | None
"""``True`` or a level from 1 to 22 for zstd; the name of an effort for the weight codec."""
Checksum: TypeAlias = Literal["none", "crc32c", "sha256", "blake3"]
Format: TypeAlias = Literal["zt", "safetensors", "npz", "npy", "gguf", "zstn", "zt2"]
"""A format that can be written; ``"zt2"`` is version 2 of ``.zt``."""
Backend: TypeAlias = Literal["mmap", "pread"]
"""Whether a file is mapped or read."""
Framework: TypeAlias = Literal[
    "pt",
    "torch",
    "pytorch",
    "np",
    "numpy",
    "jax",
    "flax",
    "tf",
    "tensorflow",
    "mlx",
    "paddle",
]
DType: TypeAlias = Union[str, type, np.dtype[Any], _TorchDType]  # noqa: UP007
"""An element type: ``"float32"``, ``"f32"``, ``"fp32"``, ``"F32"``, ``torch.float32``,
``np.float32`` and so on."""
