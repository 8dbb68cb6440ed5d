"""TensorFlow tensors to and from files, as drop-in functions for those of ``safetensors``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ztensor import _bridged, _files
from ztensor._bridged import save, save_file
from ztensor._safe_open import safe_open
from ztensor._types import (
    Backend,
    DType,
    Lazy,
    Path,
    PicklePolicy,
    Progress,
    StorageOptions,
)

if TYPE_CHECKING:
    tensorflow: Any
else:
    tensorflow = Lazy("tensorflow")

__all__ = ["load", "load_file", "safe_open", "save", "save_file"]


def load_file(
    filename: Path,
    *,
    backend: Backend = "mmap",
    dequantize: bool = False,
    dtype: DType | None = None,
    verify: bool = True,
    progress: Progress = None,
    max_bytes: int | None = None,
    max_total_bytes: int | None = None,
    storage_options: StorageOptions = None,
    pickle: PicklePolicy = "warn",
) -> dict[str, tensorflow.Tensor]:
    """Loads all tensors of a file of any format.

    Tensors share memory with the mapped file where TensorFlow can: at multiples of 64 bytes, where
    ``.zt`` files have their data. Others are copied.

    For the options see :func:`ztensor.numpy.load_file`.
    """
    return _bridged.load_file(
        "tensorflow",
        filename,
        backend,
        dequantize,
        dtype,
        verify,
        progress,
        storage_options,
        max_bytes,
        max_total_bytes,
        pickle=pickle,
    )


def load(
    data: bytes | bytearray | memoryview,
    *,
    dequantize: bool = False,
    dtype: DType | None = None,
    verify: bool = True,
    progress: Progress = None,
    max_bytes: int | None = None,
    max_total_bytes: int | None = None,
    pickle: PicklePolicy = "warn",
) -> dict[str, tensorflow.Tensor]:
    """Loads all tensors of a file that lies in memory."""
    reader = _files.opened(
        data, verify=verify, max_bytes=max_bytes, max_total_bytes=max_total_bytes, pickle=pickle
    )
    return _bridged.loaded("tensorflow", reader, True, dequantize, dtype, progress)
