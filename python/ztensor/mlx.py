"""MLX arrays to and from files, as drop-in functions for those of ``safetensors``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from ztensor import _bridged
from ztensor._options import FileOptions, LoadOptions, with_options
from ztensor._safe_open import safe_open
from ztensor._types import Lazy, Path
from ztensor.numpy import save, save_file

if TYPE_CHECKING:
    mx: Any
else:
    mx = Lazy("mlx.core")

__all__ = ["load", "load_file", "safe_open", "save", "save_file"]


@with_options(FileOptions)
def load_file(filename: Path, **options: Unpack[FileOptions]) -> dict[str, mx.array]:
    """Loads all tensors of a file of any format.

    MLX copies whatever it is given. bfloat16 needs no other package.

    For the options see :func:`ztensor.numpy.load_file`.
    """
    return _bridged.load_file("mlx", filename, options)


@with_options(LoadOptions)
def load(
    data: bytes | bytearray | memoryview, **options: Unpack[LoadOptions]
) -> dict[str, mx.array]:
    """Loads all tensors of a file that lies in memory."""
    return _bridged.load("mlx", data, options)
