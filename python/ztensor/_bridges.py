"""The arrays of JAX, TensorFlow, MLX and Paddle: made of memory, and turned into NumPy's.

None of these packages is imported before a tensor of it is asked for. Memory is shared where the
package can, through DLPack, and copied where it cannot: MLX always copies, JAX and TensorFlow do
so below an alignment of 64 bytes, and the types that NumPy does not have (bfloat16, fp8) are
copied except into TensorFlow.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from ztensor import _dtypes
from ztensor._errors import InvalidArgumentError, UnsupportedError
from ztensor._tensor import Tensor
from ztensor._types import AnyArray, Device

ALIGNMENT = 64
"""What JAX and TensorFlow need of memory that they do not copy. Data of ``.zt`` files has it."""

_CANONICAL = {
    "pt": "torch",
    "torch": "torch",
    "pytorch": "torch",
    "np": "numpy",
    "numpy": "numpy",
    "jax": "jax",
    "flax": "jax",
    "tf": "tensorflow",
    "tensorflow": "tensorflow",
    "mlx": "mlx",
    "paddle": "paddle",
}
_MODULES = {"jax": "jax", "tensorflow": "tensorflow", "mlx": "mlx.core", "paddle": "paddle"}


def canonical(framework: object) -> str:
    """One name for every spelling of a framework."""
    found = _CANONICAL.get(framework) if isinstance(framework, str) else None
    if found is None:
        raise InvalidArgumentError(
            f"framework {framework!r} is invalid: choose one of {', '.join(map(repr, _CANONICAL))}"
        )
    return found


def module(framework: str) -> Any:
    """The package of a framework."""
    name = _MODULES[framework]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnsupportedError(f"framework {framework!r} needs {name}: {error}") from error


def made(framework: str, tensor: Tensor, device: Device | None = None) -> Any:
    """A dense tensor as that of a framework; others, and types that it lacks, stay as they are."""
    if tensor.format != "dense":
        return tensor
    element = tensor._element()
    if element is None or element.bits % 8:
        return tensor
    data = np.ascontiguousarray(tensor.components["data"]).reshape(-1).view(np.uint8)
    found = _MAKERS[framework](data, element, tuple(tensor.shape), device)
    return tensor if found is None else found


def _native_array(data: AnyArray, element: _dtypes.Element, shape: tuple[int, ...]) -> AnyArray:
    """The elements under a type that every NumPy has; types of other packages as their bits."""
    if element.is_native:
        return data.view(np.dtype(element.numpy)).reshape(shape)
    return data.view(_bits(element)).reshape(shape)


def _bits(element: _dtypes.Element) -> np.dtype[Any]:
    return np.dtype(f"<u{element.bits // 8}")


def _aligned(array: AnyArray) -> bool:
    address = array.__array_interface__["data"][0]
    return bool(array.size and address % ALIGNMENT == 0 and array.flags.writeable)


def _jax(
    data: AnyArray, element: _dtypes.Element, shape: tuple[int, ...], device: Device | None
) -> Any:
    jax = module("jax")
    narrow = element.name in ("float64", "int64", "uint64", "complex128")
    if narrow and not jax.config.jax_enable_x64:
        return None  # it would be narrowed to 32 bits without a word
    if element.is_native:
        array = _native_array(data, element, shape)
        if device is None and _aligned(array):
            return jax.dlpack.from_dlpack(array)
    else:
        try:
            array = data.view(_dtypes.numpy_dtype(element)).reshape(shape)
        except UnsupportedError:
            return None
    # A view would be a view of the file's mapping, of which JAX knows nothing: copied.
    return jax.device_put(np.array(array), device if device != "cpu" else None)


def _tensorflow(
    data: AnyArray, element: _dtypes.Element, shape: tuple[int, ...], device: Device | None
) -> Any:
    tf = module("tensorflow")
    try:
        wanted = tf.as_dtype(element.numpy if not element.is_native else np.dtype(element.numpy))
    except TypeError:
        return None
    array = _native_array(data, element, shape)
    if device not in (None, "cpu"):
        with tf.device(device):
            return _tensorflow(data, element, shape, None)
    if _aligned(array) and array.dtype.kind != "b":
        tensor = tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    else:
        # A buffer at another address is accepted, and ends the process at its first use.
        tensor = tf.convert_to_tensor(array)
    if tensor.dtype == wanted:
        return tensor
    if element.name == "bfloat16":
        return tf.bitcast(tensor, wanted)
    return tf.convert_to_tensor(data.view(_dtypes.numpy_dtype(element)).reshape(shape))


def _mlx(
    data: AnyArray, element: _dtypes.Element, shape: tuple[int, ...], device: Device | None
) -> Any:
    mx = module("mlx")
    name = "bool_" if element.name == "bool" else element.name
    wanted = getattr(mx, name, None)
    if wanted is None:
        return None
    if element.name in ("float64", "bfloat16"):
        # Doubles would be narrowed, and NumPy's arrays of bfloat16 are not known: bits are both.
        return mx.array(data.view(_bits(element))).view(wanted).reshape(shape)
    array = mx.array(_native_array(data, element, shape))
    return array if array.dtype == wanted else None


def _paddle(
    data: AnyArray, element: _dtypes.Element, shape: tuple[int, ...], device: Device | None
) -> Any:
    paddle = module("paddle")
    if not isinstance(getattr(paddle, element.name, None), paddle.dtype):
        return None
    array = _native_array(data, element, shape)
    if element.is_native:
        tensor = paddle.from_dlpack(array) if array.size and shape else paddle.to_tensor(array)
    else:
        signed = array.view(array.dtype.str.replace("u", "i"))
        tensor = paddle.to_tensor(signed).view(element.name)
    if str(tensor.dtype) != f"paddle.{element.name}":
        return None  # uint16 is what Paddle calls bfloat16 where it speaks to NumPy
    return tensor if device in (None, "cpu") else tensor.to(device)


_Maker = Callable[[AnyArray, _dtypes.Element, "tuple[int, ...]", "Device | None"], Any]
_MAKERS: dict[str, _Maker] = {
    "jax": _jax,
    "tensorflow": _tensorflow,
    "mlx": _mlx,
    "paddle": _paddle,
}


def to_tensor(value: Any) -> Tensor | None:
    """A tensor of one of these packages as one of ours; ``None`` for everything else.

    Only packages that are imported already can have made a value.
    """
    kind = type(value).__module__.partition(".")[0]
    if kind == "mlx" and "mlx.core" in sys.modules:
        return _from_mlx(sys.modules["mlx.core"], value)
    if kind == "paddle" and "paddle" in sys.modules:
        return _from_paddle(value)
    if kind == "tensorflow" and hasattr(value, "numpy"):
        return Tensor({"data": np.asarray(value.numpy())})
    if kind in ("jax", "jaxlib"):
        return Tensor({"data": np.asarray(value)})
    return None


def _from_mlx(mx: Any, value: Any) -> Tensor | None:
    if not isinstance(value, mx.array):
        return None
    element = _dtypes.named(str(value.dtype).rpartition(".")[2])
    raw = value if element.is_native else value.view(getattr(mx, f"uint{element.bits}"))
    array = cast("AnyArray", np.array(raw, copy=False))
    return Tensor({"data": array}, shape=list(value.shape), dtype=element.name)


def _from_paddle(value: Any) -> Tensor | None:
    if not hasattr(value, "numpy"):
        return None
    element = _dtypes.named(str(value.dtype).rpartition(".")[2])
    array = np.asarray(value.detach().cpu().contiguous().numpy())
    if not element.is_native:
        array = array.view(_bits(element))
    return Tensor({"data": array}, shape=list(value.shape), dtype=element.name)
