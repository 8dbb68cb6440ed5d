"""Quantized tensors as numbers, and floating-point tensors as those of another type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ztensor import _dtypes
from ztensor._errors import InvalidArgumentError
from ztensor._tensor import Tensor
from ztensor._types import DType


def floating(dtype: DType | None) -> _dtypes.Element | None:
    """The element type that a ``dtype=`` asks for; numbers with a fraction only."""
    if dtype is None:
        return None
    element = _dtypes.named(dtype)
    if not element.name.startswith(("float", "bfloat")):
        raise InvalidArgumentError(f"dtype= must be a floating-point type, not {dtype!r}")
    return element


def is_quantized(format: str) -> bool:
    """Whether a layout stands for numbers that :meth:`ztensor.Tensor.dequantize` computes."""
    groups = ("quantized_group", "zt.quant_group/1", "zt.mx/1")
    return format in groups or format.startswith("gguf.")


def dequantizing(other: Callable[..., Any], make: Callable[[Tensor], Any]) -> Callable[..., Any]:
    """Like ``other``, but quantized tensors are dequantized, and then what ``make`` makes."""

    def build(*parts: Any) -> Any:
        tensor = Tensor._trusted(*parts)
        if not is_quantized(tensor.format):
            return other(*parts)
        return make(Tensor({"data": tensor.dequantize()}))

    return build


def numpy_as(tensors: dict[str, Any], element: _dtypes.Element) -> dict[str, Any]:
    """Floating-point arrays as those of another type; others stay as they are."""
    dtype = _dtypes.numpy_dtype(element)

    def convert(value: Any) -> Any:
        if not isinstance(value, np.ndarray) or not _is_floating(_dtypes.of_numpy(value.dtype)):
            return value
        return value.astype(dtype, copy=False)

    return _each(tensors, convert)


def tensor_as(tensor: Tensor, element: _dtypes.Element) -> Tensor:
    """A dense floating-point tensor as one of another type; others stay as they are."""
    own = tensor._element()
    if tensor.format != "dense" or own is None or not _is_floating(own) or own == element:
        return tensor
    return Tensor({"data": tensor.numpy().astype(_dtypes.numpy_dtype(element))})


def torch_as(tensors: dict[str, Any], element: _dtypes.Element) -> dict[str, Any]:
    """The same for torch tensors."""
    dtype = _dtypes.torch_dtype(element)

    def convert(value: Any) -> Any:
        if not _dtypes.is_torch(value) or not value.is_floating_point():
            return value
        return value.to(dtype)

    return _each(tensors, convert)


def _is_floating(element: _dtypes.Element) -> bool:
    return element.name.startswith(("float", "bfloat"))


def _each(tensors: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Every different tensor converted once: names of one tensor stay names of one tensor."""
    done = {id(value): convert(value) for value in tensors.values()}
    return {name: done[id(value)] for name, value in tensors.items()}
