"""What the modules of JAX, TensorFlow, MLX and Paddle share: whole files at once."""

from __future__ import annotations

from typing import Any

from ztensor import _bridges, _casts, _dtypes, _files, _native
from ztensor._options import FileOptions, LoadOptions
from ztensor._tensor import Tensor
from ztensor._types import Device, Path


def load_file(
    framework: str, filename: Path, options: FileOptions, device: Device | None = None
) -> dict[str, Any]:
    """All tensors of a file as those of a framework."""
    reader = _files.open_file(filename, options)
    return _loaded(framework, reader, options["backend"] == "pread", options, device)


def load(
    framework: str,
    data: bytes | bytearray | memoryview,
    options: LoadOptions,
    device: Device | None = None,
) -> dict[str, Any]:
    """All tensors of a file that lies in memory, as those of a framework."""
    return _loaded(framework, _files.open_bytes(data, options), True, options, device)


def _loaded(
    framework: str,
    reader: _native.Reader,
    copy: bool,
    options: LoadOptions,
    device: Device | None,
) -> dict[str, Any]:
    """All tensors of an open file; those that the framework has none for stay ``Tensor``."""
    _bridges.module(framework)
    element = _casts.floating(options["dtype"])
    tensors = _files.load_all(reader, None, copy, Tensor._trusted, options["progress"])
    made: dict[int, Any] = {}
    for name, tensor in tensors.items():
        if id(tensor) not in made:
            made[id(tensor)] = _made(framework, tensor, options["dequantize"], element, device)
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
