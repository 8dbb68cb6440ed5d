"""JAX arrays to and from files, as drop-in functions for those of ``safetensors``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from ztensor import _bridged
from ztensor._options import FileOptions, LoadOptions, with_options
from ztensor._safe_open import safe_open
from ztensor._types import Lazy, Path
from ztensor.numpy import save, save_file

if TYPE_CHECKING:
    jax: Any
else:
    jax = Lazy("jax")

__all__ = ["load", "load_file", "safe_open", "save", "save_file"]


@with_options(FileOptions)
def load_file(filename: Path, **options: Unpack[FileOptions]) -> dict[str, jax.Array]:
    """Loads all tensors of a file of any format.

    Arrays share memory with the mapped file where JAX can: at multiples of 64 bytes, where ``.zt``
    files have their data, and for the types that NumPy has. Others are copied. Without
    ``jax_enable_x64``, JAX has no arrays of 64-bit elements: those are ``ztensor.Tensor`` objects.

    For the options see :func:`ztensor.numpy.load_file`.
    """
    return _bridged.load_file("jax", filename, options)


@with_options(LoadOptions)
def load(
    data: bytes | bytearray | memoryview, **options: Unpack[LoadOptions]
) -> dict[str, jax.Array]:
    """Loads all tensors of a file that lies in memory."""
    return _bridged.load("jax", data, options)
