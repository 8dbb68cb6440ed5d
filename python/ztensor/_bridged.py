"""What the modules of JAX, TensorFlow, MLX and Paddle share: whole files at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ztensor import _bridges, _casts, _dtypes, _files, _native
from ztensor._tensor import Tensor
from ztensor._types import (
    Backend,
    Checksum,
    Compression,
    Device,
    DType,
    Format,
    Path,
    PicklePolicy,
    Progress,
    StorageOptions,
)


def save_file(
    tensors: Mapping[str, Any],
    filename: Path,
    metadata: Mapping[str, Any] | None = None,
    compression: Compression = False,
    *,
    checksum: Checksum = "none",
    progress: Progress = None,
    storage_options: StorageOptions = None,
    format: Format | None = None,
) -> None:
    """Saves a dictionary of tensors to a file, in the format that its name asks for.

    For the options see :func:`ztensor.numpy.save_file`.
    """
    _files.save_file(
        tensors, filename, metadata, compression, checksum, progress, storage_options, format
    )


def save(
    tensors: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    compression: Compression = False,
    *,
    checksum: Checksum = "none",
    progress: Progress = None,
    format: Format = "zt",
) -> bytes:
    """Like :func:`save_file`, but returns the file as bytes: ``.zt``, or as ``format`` says."""
    return _files.save(tensors, metadata, compression, checksum, progress, format)


def load_file(
    framework: str,
    filename: Path,
    backend: Backend,
    dequantize: bool,
    dtype: DType | None,
    verify: bool,
    progress: Progress,
    storage_options: StorageOptions,
    max_bytes: int | None,
    max_total_bytes: int | None,
    device: Device | None = None,
    pickle: PicklePolicy = "warn",
) -> dict[str, Any]:
    """All tensors of a file as those of a framework."""
    reader = _files.open_file(
        filename,
        storage_options,
        backend=backend,
        verify=verify,
        max_bytes=max_bytes,
        max_total_bytes=max_total_bytes,
        pickle=pickle,
    )
    return loaded(framework, reader, backend == "pread", dequantize, dtype, progress, device)


def loaded(
    framework: str,
    reader: _native.Reader,
    copy: bool,
    dequantize: bool,
    dtype: DType | None,
    progress: Progress,
    device: Device | None = None,
) -> dict[str, Any]:
    """All tensors of an open file; those that the framework has none for stay ``Tensor``."""
    _bridges.module(framework)
    element = _casts.floating(dtype)
    tensors = _files.load_all(reader, None, copy, Tensor._trusted, progress)
    made: dict[int, Any] = {}
    for name, tensor in tensors.items():
        if id(tensor) not in made:
            made[id(tensor)] = _made(framework, tensor, dequantize, element, device)
        tensors[name] = made[id(tensor)]
    return tensors


def _made(
    framework: str,
    tensor: Tensor,
    dequantize: bool,
    element: _dtypes.Element | None,
    device: Device | None,
) -> Any:
    if dequantize and _casts.is_quantized(tensor.format):
        tensor = Tensor({"data": tensor.dequantize()})
    if element is not None:
        tensor = _casts.tensor_as(tensor, element)
    return _bridges.made(framework, tensor, device)
