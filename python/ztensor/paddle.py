"""Paddle tensors to and from files, as drop-in functions for those of ``safetensors``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from ztensor import _bridged
from ztensor._options import FileOptions, LoadOptions, with_options
from ztensor._safe_open import safe_open
from ztensor._types import Device, Lazy, Path
from ztensor.numpy import save, save_file

if TYPE_CHECKING:
    paddle: Any
else:
    paddle = Lazy("paddle")

__all__ = ["load", "load_file", "safe_open", "save", "save_file"]


@with_options(FileOptions)
def load_file(
    filename: Path, device: Device = "cpu", **options: Unpack[FileOptions]
) -> dict[str, paddle.Tensor]:
    """Loads all tensors of a file of any format.

    Tensors share memory with the mapped file, except bfloat16 and fp8 ones, which are copied.

    For the options see :func:`ztensor.numpy.load_file`.
    """
    return _bridged.load_file("paddle", filename, options, device)


@with_options(LoadOptions)
def load(
    data: bytes | bytearray | memoryview, device: Device = "cpu", **options: Unpack[LoadOptions]
) -> dict[str, paddle.Tensor]:
    """Loads all tensors of a file that lies in memory."""
    return _bridged.load("paddle", data, options, device)
