"""Element types, as the native library's one table gives them, by every name that people use.

``"float32"``, ``"f32"``, ``"fp32"``, ``"F32"``, ``torch.float32`` and ``np.float32`` are the same
type wherever this package or ``z4ai`` takes one.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ztensor._errors import InvalidArgumentError, UnsupportedError
from ztensor._native import DTYPES
from ztensor._types import DType

if TYPE_CHECKING:
    import torch
else:
    from ztensor._types import torch


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


def named(dtype: DType | Element) -> Element:
    """The element type of that name, in any spelling, or of a dtype of NumPy, torch and others."""
    element = BY_NAME.get(dtype) if isinstance(dtype, str) else _of_object(dtype)
    if element is None and isinstance(dtype, str):
        element = _BY_SPELLING.get(dtype.lower().rpartition(".")[2])
    if element is None:
        known = ", ".join(element.name for element in ELEMENTS)
        raise InvalidArgumentError(f"unknown dtype {dtype!r}: choose one of {known}")
    return element


def _spellings(element: Element) -> list[str]:
    """What else a type is called: by other libraries, and by people."""
    names = [element.name, element.zt, element.torch, element.safetensors]
    if element.name.startswith("float"):
        names += [element.name.replace("float", "fp", 1), element.zt.replace("f", "fp", 1)]
    if element.numpy and not element.is_native:
        names.append(element.numpy)
    found = [name.lower() for name in names if name is not None]
    return found + [name.replace("f8_", "fp8_", 1) for name in found if name.startswith("f8_")]


_BY_SPELLING = {
    spelling: element for element in reversed(ELEMENTS) for spelling in _spellings(element)
} | {
    spelling: BY_NAME[name]
    for spelling, name in {
        "half": "float16",
        "double": "float64",
        "bool_": "bool",
        "boolean": "bool",
        "pred": "bool",
        "cfloat": "complex64",
        "cdouble": "complex128",
    }.items()
}


def _of_object(dtype: Any) -> Element | None:
    """The element type of an object that stands for one; ``None`` if it stands for none."""
    if isinstance(dtype, Element):
        return dtype
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        return BY_TORCH_NAME.get(str(dtype).removeprefix("torch."))
    if dtype in (bool, np.bool_):
        return BY_NAME["bool"]
    if isinstance(dtype, type) and dtype.__module__ == "builtins":
        return None  # how wide a Python float or int is in a file is not for us to guess
    found = getattr(dtype, "as_numpy_dtype", None) or dtype  # TensorFlow's
    if isinstance(found, np.dtype | type) or hasattr(found, "dtype"):
        try:
            numpy = np.dtype(
                getattr(found, "dtype", found) if not isinstance(found, type) else found
            )
            return of_numpy(numpy)
        except (TypeError, InvalidArgumentError):
            return None
    # Others print as their name: mlx.core.float32, paddle.float32.
    return _BY_SPELLING.get(str(dtype).lower().rpartition(".")[2])


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
                "install ml_dtypes (pip install ml_dtypes), or use torch"
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
