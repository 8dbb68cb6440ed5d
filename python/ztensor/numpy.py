"""NumPy arrays to and from files, as drop-in functions.

>>> import numpy as np
>>> from ztensor.numpy import load_file, save_file
>>> save_file({"weight": np.ones((2, 3), dtype=np.float32)}, "model.zt")
>>> load_file("model.zt")
{'weight': array([[1., 1., 1.],
       [1., 1., 1.]], dtype=float32)}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ztensor import _files
from ztensor._tensor import Tensor

if TYPE_CHECKING:
    from ztensor._types import Path, Progress, StorageOptions
    from ztensor._writer import Compression

__all__ = ["load", "load_file", "save", "save_file"]


def save_file(
    tensors: Mapping[str, Any],
    filename: Path,
    metadata: Mapping[str, Any] | None = None,
    compression: Compression = False,
    *,
    checksum: str = "none",
    progress: Progress = None,
    storage_options: StorageOptions = None,
) -> None:
    """Saves a dictionary of arrays to a ``.zt`` file.

    Values are NumPy arrays of any strides, ``ztensor.Tensor`` objects, SciPy
    sparse arrays or torch tensors. Two names of the same memory are stored once.

    ``metadata`` is kept and found again in ``Reader.attributes``.
    ``compression`` is ``True`` for zstd level 3, a level from 1 to 22, or an effort of the
    weight codec: ``"fast"``, ``"default"``, ``"balanced"`` or ``"max"``.
    ``checksum`` is ``"none"``, ``"crc32c"`` or ``"sha256"``.
    ``progress`` is ``True`` for a bar, or a function of the bytes done and the bytes in all.
    ``filename`` may be a URL of an object store; ``storage_options`` say how to reach it.

    >>> import numpy as np, ztensor
    >>> save_file({"x": np.arange(5)}, "x.zt", metadata={"made by": "hand"}, compression=True)
    >>> ztensor.open("x.zt").attributes
    {'made by': 'hand'}
    """
    _files.save_file(tensors, filename, metadata, compression, checksum, progress, storage_options)


def save(
    tensors: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    compression: Compression = False,
    *,
    checksum: str = "none",
    progress: Progress = None,
) -> bytes:
    """Like :func:`save_file`, but returns the file as bytes.

    >>> import numpy as np
    >>> load(save({"x": np.zeros(3)}))
    {'x': array([0., 0., 0.])}
    """
    return _files.save(tensors, metadata, compression, checksum, progress)


def load_file(
    filename: Path,
    copy: bool = False,
    *,
    progress: Progress = None,
    max_bytes: int | None = None,
    max_total_bytes: int | None = None,
    storage_options: StorageOptions = None,
) -> dict[str, Any]:
    """Loads all tensors of a file of any format.

    With ``copy=False`` the arrays are views of a private mapping: they can be
    written to without changing the file, and whatever is never touched is
    never read. With ``copy=True`` they are independent of the file, as those of
    a remote file (``filename`` may be a URL) always are.

    Tensors that NumPy has no array for (sparse and quantized ones, and bfloat16
    and fp8 without ml_dtypes) are ``ztensor.Tensor`` objects.

    ``max_bytes`` refuses tensors larger than that; ``max_total_bytes`` refuses to decode
    more than that in all, instead of more than 4 GiB and 1,000 times the size of the file.
    """
    reader = _files.open_file(filename, storage_options, max_bytes, max_total_bytes)
    return _files.load_all(reader, "numpy", copy, Tensor._trusted, progress)


def load(
    data: bytes | bytearray | memoryview,
    *,
    progress: Progress = None,
    max_bytes: int | None = None,
    max_total_bytes: int | None = None,
) -> dict[str, Any]:
    """Loads all tensors of a file that lies in memory, as independent arrays."""
    reader = _files.opened(data, max_bytes, max_total_bytes)
    return _files.load_all(reader, "numpy", True, Tensor._trusted, progress)
