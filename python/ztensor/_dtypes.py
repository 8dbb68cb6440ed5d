"""Element types by name, as the native library's one table gives them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ztensor._errors import InvalidArgumentError, UnsupportedError
from ztensor._native import DTYPES

if TYPE_CHECKING:
    import torch


class Element(NamedTuple):
    """One row of the table."""

    name: str
    """The long name, such as ``float32``."""
    zt: str
    storage: str
    """The long name of the type that a file stores it as; its own, mostly."""
    logical: str | None
    """The name of the logical type, where it is not a storage type."""
    bits: int
    numpy: str | None
    torch: str | None
    safetensors: str | None
    codec: str
    """The weight codec's element type."""

    @property
    def is_native(self) -> bool:
        """Whether NumPy has the type without the help of ml_dtypes."""
        return self.numpy is not None and self.numpy[0] in "<|"


ELEMENTS = [Element(*row) for row in DTYPES]
BY_NAME = {element.name: element for element in ELEMENTS} | {
    element.zt: element for element in ELEMENTS
}
BY_TORCH_NAME = {element.torch: element for element in ELEMENTS if element.torch}
_BY_TORCH: dict[torch.dtype, Element] = {}
_BY_NUMPY = {np.dtype(element.numpy): element for element in ELEMENTS if element.is_native}
_BY_ML_DTYPES = {element.numpy: element for element in ELEMENTS if not element.is_native}


def named(name: str) -> Element:
    """The element type of that name, in either spelling."""
    try:
        return BY_NAME[name]
    except KeyError:
        known = ", ".join(element.name for element in ELEMENTS)
        raise InvalidArgumentError(f"unknown dtype {name!r}: choose one of {known}") from None


def described(dtype: str, logical: str | None) -> Element | None:
    """The element type of a storage type and a logical one; ``None`` if it is not known."""
    if logical is None:
        return named(dtype)
    element = BY_NAME.get(logical)
    return element if element is not None and element.storage == named(dtype).name else None


def find_numpy(dtype: np.dtype[Any]) -> Element | None:
    """The element type of a NumPy or ml_dtypes dtype in native byte order, if there is one."""
    element = _BY_NUMPY.get(dtype)
    if element is None and dtype.isbuiltin == 2:
        element = _BY_ML_DTYPES.get(dtype.name)
    return element


def of_numpy(dtype: np.dtype[Any]) -> Element:
    """The element type of a NumPy dtype, of any byte order."""
    element = find_numpy(dtype)
    if element is None:
        element = _BY_NUMPY.get(dtype.newbyteorder("<"))
    if element is None:
        raise InvalidArgumentError(
            f"NumPy's {dtype} cannot be stored: tensors hold numbers and booleans of 8 to 128 bits"
        )
    return element


def numpy_dtype(element: Element) -> np.dtype[Any]:
    """The NumPy dtype of an element type, from ml_dtypes if NumPy has none."""
    if element.is_native:
        return np.dtype(element.numpy)
    if element.numpy is not None:
        try:
            import ml_dtypes
        except ImportError:
            raise UnsupportedError(
                f"NumPy has no {element.name} of its own: "
                "install ml_dtypes (pip install ztensor[bfloat16]), or use torch"
            ) from None
        if hasattr(ml_dtypes, element.numpy):
            found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, element.numpy))
            return found
    raise UnsupportedError(f"NumPy has no {element.name}: use the components of the tensor")


def raw_numpy_dtype(element: Element) -> np.dtype[Any]:
    """The NumPy dtype that stands for a type where NumPy does not have it."""
    storage = BY_NAME[element.storage]
    return np.dtype(np.uint16) if storage.name == "bfloat16" else np.dtype(storage.numpy)


def of_torch(dtype: torch.dtype) -> Element:
    """The element type of a torch dtype."""
    element = _BY_TORCH.get(dtype)
    if element is None:
        element = BY_TORCH_NAME.get(str(dtype).removeprefix("torch."))
        if element is not None:
            _BY_TORCH[dtype] = element
    if element is None:
        raise InvalidArgumentError(
            f"{dtype} cannot be stored: dequantize it, or convert it to a plain dtype first"
        )
    return element


def torch_dtype(element: Element) -> torch.dtype:
    """The torch dtype of an element type."""
    import torch

    found = getattr(torch, element.torch, None) if element.torch else None
    if not isinstance(found, torch.dtype):
        raise UnsupportedError(f"this torch ({torch.__version__}) has no {element.name}")
    return found


def is_torch(value: object) -> bool:
    """Whether a value is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
