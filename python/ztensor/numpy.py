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
from typing import Any, Unpack

from ztensor import _casts, _files
from ztensor._options import FileOptions, LoadOptions, SaveOptions, with_options
from ztensor._safe_open import safe_open
from ztensor._safetensors import (
    SafetensorError,
    TensorSpec,
    deserialize,
    serialize,
    serialize_file,
)
from ztensor._tensor import Tensor
from ztensor._types import AnyArray, Checksum, Compression, Format, Path, Progress

__all__ = [
    "SafetensorError",
    "TensorSpec",
    "deserialize",
    "load",
    "load_file",
    "load_with_metadata",
    "safe_open",
    "save",
    "save_file",
    "serialize",
    "serialize_file",
]


@with_options(SaveOptions)
def save_file(
    tensors: Mapping[str, Any],
    filename: Path,
    metadata: Mapping[str, Any] | None = None,
    compression: Compression = False,
    **options: Unpack[SaveOptions],
) -> None:
    """Saves a dictionary of arrays to a file.

    Values are NumPy arrays of any strides, ``ztensor.Tensor`` objects, SciPy sparse arrays, or
    tensors of torch, JAX, TensorFlow, MLX and Paddle. Two names of the same memory are stored
    once in ``.zt`` files, and twice in others.

    The name decides the format: ``.safetensors``, ``.npz``, ``.npy``, ``.gguf``, ``.zstn`` and
    ``.zt2`` (version 2 of ``.zt``) are written as such, names of formats that cannot be written
    (``.pt``, ``.h5``, ``.onnx``) are refused, and everything else is a ``.zt`` file. ``format``
    overrides the name. What a format cannot hold is refused before anything is written.

    ``metadata`` is kept and found again in ``Reader.attributes``.
    ``compression`` is ``True`` for zstd level 3, a level from 1 to 22, or an effort of the
    weight codec: ``"fast"``, ``"default"``, ``"balanced"`` or ``"max"``; for ``.npz`` a level of
    deflate from 1 to 9. ``checksum`` is ``"none"``, ``"crc32c"``, ``"sha256"`` or
    ``"blake3"``.
    ``progress`` is ``True`` for a bar, or ``callback(done, total)`` in bytes.
    ``filename`` may be a URL of an object store; ``storage_options`` say how to reach it.

    >>> import numpy as np, ztensor
    >>> save_file({"x": np.arange(5)}, "x.zt", metadata={"made by": "hand"}, compression=True)
    >>> ztensor.open("x.zt").attributes
    {'made by': 'hand'}
    """
    _files.save_file(tensors, filename, metadata, compression, options)


def save(
    tensors: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    compression: Compression = False,
    *,
    checksum: Checksum = "none",
    progress: Progress = None,
    format: Format = "zt",
) -> bytes:
    """Like :func:`save_file`, but returns the file as bytes: ``.zt`` unless ``format`` says else.

    >>> import numpy as np
    >>> load(save({"x": np.zeros(3)}))
    {'x': array([0., 0., 0.])}
    """
    return _files.save(tensors, metadata, compression, checksum, progress, format)


@with_options(FileOptions)
def load_file(
    filename: Path,
    copy: bool = False,
    **options: Unpack[FileOptions],
) -> dict[str, AnyArray]:
    """Loads all tensors of a file of any format.

    With ``copy=False`` the arrays are views of a private mapping: they can be
    written to without changing the file, and whatever is never touched is
    never read. With ``copy=True`` they are independent of the file, as those of
    a remote file (``filename`` may be a URL) always are; ``backend="pread"`` reads the file
    instead of mapping it, and copies too.

    Tensors that NumPy has no array for (sparse and quantized ones, and bfloat16
    and fp8 without ml_dtypes) are ``ztensor.Tensor`` objects; with ``dequantize=True`` quantized
    ones are the numbers that they stand for. ``dtype`` converts floating-point tensors.

    ``verify`` compares the checksums of a ``.zt`` file that was saved with them.

    ``max_bytes`` refuses tensors larger than that; ``max_total_bytes`` refuses to decode
    more than that in all, instead of more than 4 GiB and 1,000 times the size of the file.

    ``pickle="strict"`` refuses pickles that are dangerous in tools that unpickle
    them; ``"warn"`` warns of them. Neither runs anything.
    """
    copy = copy or options["backend"] == "pread"
    return _loaded(_files.open_file(filename, options), copy, options)


@with_options(LoadOptions)
def load(
    data: bytes | bytearray | memoryview,
    **options: Unpack[LoadOptions],
) -> dict[str, AnyArray]:
    """Loads all tensors of a file that lies in memory, as independent arrays."""
    return _loaded(_files.open_bytes(data, options), True, options)


@with_options(FileOptions)
def load_with_metadata(
    filename: Path,
    copy: bool = False,
    **options: Unpack[FileOptions],
) -> tuple[dict[str, AnyArray], dict[str, Any]]:
    """Like :func:`load_file`, with the metadata of the file, to be saved with the arrays.

    >>> import numpy as np
    >>> save_file({"x": np.zeros(2)}, "x.zt", metadata={"step": 100})
    >>> tensors, metadata = load_with_metadata("x.zt")
    >>> save_file(tensors, "y.zt", metadata)
    """
    reader = _files.open_file(filename, options)
    copy = copy or options["backend"] == "pread"
    return _loaded(reader, copy, options), reader.attributes


def _loaded(reader: Any, copy: bool, options: LoadOptions) -> dict[str, AnyArray]:
    element = _casts.floating(options["dtype"])
    other: Any = Tensor._trusted
    if options["dequantize"]:
        other = _casts.dequantizing(other, Tensor.numpy)
    tensors = _files.load_all(reader, "numpy", copy, other, options["progress"])
    return tensors if element is None else _casts.numpy_as(tensors, element)
