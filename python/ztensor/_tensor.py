"""``ztensor.Tensor``: a tensor of any layout, as named component arrays."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ztensor import _dtypes
from ztensor._errors import InvalidArgumentError, UnsupportedError
from ztensor._types import AnyArray, Device, DType

if TYPE_CHECKING:
    import torch as _torch
else:
    from ztensor._types import torch as _torch


class Tensor(NDArrayOperatorsMixin):
    """A tensor and what it is made of.

    A dense tensor has the one component ``"data"``, whose shape and dtype it takes:

    >>> import numpy as np, ztensor
    >>> t = ztensor.Tensor({"data": np.ones((3, 4), dtype=np.float32)})
    >>> t.shape, t.dtype, t.format
    ([3, 4], 'float32', 'dense')

    Other layouts have several, and say what shape and dtype they stand for:

    >>> eye = ztensor.Tensor(
    ...     {"values": np.ones(2), "indices": np.array([0, 1]), "indptr": np.array([0, 1, 2])},
    ...     shape=[2, 2], dtype="float64", format="sparse_csr",
    ... )
    >>> eye
    ztensor.Tensor(shape=[2, 2], dtype='float64', format='sparse_csr')

    A dense tensor can be used like the NumPy array that :meth:`numpy` gives: it has indices,
    iteration, arithmetic, comparison and the methods of arrays, which return arrays.

    >>> t[0, :2], float(t[0, 0]), (t + 1).max(), t.flatten().size
    (array([1., 1.], dtype=float32), 1.0, np.float32(2.0), 12)

    ``dtype`` is the type that the elements are stored as; ``type`` is the logical
    type where that differs, such as ``"f8_e4m3fn"`` for bytes that hold fp8 numbers.
    """

    __slots__ = ("attributes", "components", "dtype", "format", "shape", "type")

    shape: list[int]
    """Sizes of the dimensions."""
    dtype: str
    """What the elements are stored as, such as ``"float32"``."""
    type: str | None
    """The logical type, where it differs from the stored one."""
    format: str
    """The layout: ``"dense"``, ``"sparse_csr"``, ``"sparse_coo"``, …"""
    components: dict[str, AnyArray]
    """The arrays by name."""
    attributes: dict[str, Any] | None
    """Whatever else the file says about this tensor."""

    def __init__(
        self,
        components: Mapping[str, Any],
        *,
        shape: Sequence[int] | None = None,
        dtype: DType | None = None,
        type: str | None = None,
        format: str = "dense",
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(components, Mapping):
            raise InvalidArgumentError(
                'components is a dictionary of arrays, such as {"data": array}, '
                f"not {components.__class__.__name__}"
            )
        arrays = {role: component_array(role, array) for role, array in components.items()}
        if format == "dense":
            if "data" not in arrays:
                raise InvalidArgumentError(
                    f'a dense tensor needs the component "data"; given are {sorted(arrays)}'
                )
            data = arrays["data"]
            if dtype is None:
                element = _of_component(components["data"], data)
                dtype, type = element.storage, type or element.logical
            shape = list(data.shape) if shape is None else shape
        elif shape is None or dtype is None:
            raise InvalidArgumentError(
                f"a {format} tensor needs shape= and dtype=: its components do not tell them"
            )
        element = _dtypes.named(dtype)
        self.shape = [int(size) for size in shape]
        self.dtype = element.storage
        self.type = type if type is not None else element.logical
        self.format = format
        self.components = arrays
        self.attributes = dict(attributes) if attributes is not None else None
        if format == "dense":
            self._check_dense()

    def _check_dense(self) -> None:
        element = self._element()
        bits = math.prod(self.shape) * (element or _dtypes.named(self.dtype)).bits
        found = self.components["data"].nbytes
        # How an unknown logical type packs its elements is not ours to say.
        if (element is not None or self.type is None) and found != -(-bits // 8):
            raise InvalidArgumentError(
                f"shape {self.shape} of {self.type or self.dtype} takes {-(-bits // 8)} bytes, "
                f'but the component "data" has {found}'
            )

    @classmethod
    def _trusted(
        cls,
        components: dict[str, AnyArray],
        shape: list[int],
        dtype: str,
        type: str | None,
        format: str,
        attributes: dict[str, Any] | None,
    ) -> Tensor:
        """A tensor of parts that came from a reader, which has checked them."""
        self = object.__new__(cls)
        self.components, self.shape, self.dtype = components, shape, dtype
        self.type, self.format, self.attributes = type, format, attributes
        return self

    def _element(self) -> _dtypes.Element | None:
        return _dtypes.described(self.dtype, self.type)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that all components take together."""
        return sum(array.nbytes for array in self.components.values())

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def numel(self) -> int:
        """The number of elements."""
        return self.size

    @property
    def T(self) -> AnyArray:
        """The elements as an array, with its dimensions in the opposite order."""
        return self.numpy().T

    def view(self, dtype: DType | None = None) -> AnyArray:
        """The stored elements under another type, without a copy, for dense tensors."""
        if dtype is None:
            return self.numpy()
        data = self._dense("view")
        if data.size == self.size:
            data = data.reshape(self.shape)
        return data.view(_numpy_dtype(dtype))

    def astype(self, dtype: DType, **options: Any) -> AnyArray:
        """The elements converted to another type, for dense tensors."""
        return self.numpy().astype(_numpy_dtype(dtype), **options)

    def __getitem__(self, index: Any) -> Any:
        return self.numpy()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.numpy())

    def __bool__(self) -> bool:
        return self.format != "dense" or bool(self.numpy())

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __index__(self) -> int:
        return operator.index(self.numpy())

    # Comparison is element by element, so identity is all that a key can be.
    __hash__ = object.__hash__

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = [part.numpy() if isinstance(part, Tensor) else part for part in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def __getattr__(self, name: str) -> Any:
        # The methods of arrays, such as flatten() and max(), for those that are arrays.
        if name.startswith("_") or not hasattr(np.ndarray, name) or self.format != "dense":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.numpy(), name)

    def _repr_html_(self) -> str:
        from ztensor._html import shown

        return shown(self)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        logical = f", type={self.type!r}" if self.type is not None else ""
        layout = f", format={self.format!r}" if self.format != "dense" else ""
        return f"ztensor.Tensor(shape={self.shape}, dtype={self.dtype!r}{logical}{layout})"

    def numpy(self) -> AnyArray:
        """The elements as a NumPy array, for dense tensors.

        Memory is shared with the component. bfloat16 and the fp8 types need
        ml_dtypes (``pip install ml_dtypes``).
        """
        data = self._dense("numpy")
        element = self._element()
        if element is None:
            raise UnsupportedError(
                f'the logical type {self.type!r} is not known: use components["data"]'
            )
        if element.bits % 8:
            raise UnsupportedError(
                f'{element.name} elements are packed and NumPy has none: use components["data"]'
            )
        dtype = _dtypes.numpy_dtype(element)
        if data.dtype != dtype:
            data = np.ascontiguousarray(data).view(dtype)
        return data.reshape(self.shape)

    def torch(self, device: Device = "cpu") -> _torch.Tensor:
        """The elements as a torch tensor; sparse layouts become torch's own.

        On the CPU, memory is shared with the components where torch can.
        """
        from ztensor import _frameworks

        tensor = _frameworks.to_torch(self)
        return tensor if device == "cpu" else tensor.to(device)

    @classmethod
    def from_torch(cls, tensor: _torch.Tensor) -> Tensor:
        """A tensor from a torch one: strided, ``sparse_csr`` or ``sparse_coo``.

        >>> import torch, ztensor
        >>> ztensor.Tensor.from_torch(torch.eye(3).to_sparse_coo())
        ztensor.Tensor(shape=[3, 3], dtype='float32', format='sparse_coo')
        """
        from ztensor import _frameworks

        return _frameworks.from_torch(tensor)

    def scipy(self) -> Any:
        """A sparse tensor as SciPy's ``csr_array`` or ``coo_array``."""
        from ztensor import _frameworks

        return _frameworks.to_scipy(self)

    @classmethod
    def from_scipy(cls, matrix: Any) -> Tensor:
        """A tensor from a SciPy sparse array: CSR and COO as they are, others as CSR."""
        from ztensor import _frameworks

        return _frameworks.from_scipy(matrix)

    def dequantize(self) -> AnyArray:
        """The numbers that a quantized tensor stands for, as ``float32``.

        For GGUF's block types and groups of codes with a scale and a zero each;
        a dense tensor of numbers is converted.
        """
        if self.format == "dense":
            return self.numpy().astype(np.float32)
        from ztensor import _items, _native

        return _native.dequantize(_items.from_tensor("", self).item).reshape(self.shape)

    def _dense(self, what: str) -> AnyArray:
        if self.format != "dense":
            other = " (or torch(), scipy())" if self.format.startswith("sparse") else ""
            raise UnsupportedError(
                f"{what}() is for dense tensors, this one is {self.format}: "
                f"use its components{other}"
            )
        return self.components["data"]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"cannot make {dtype} of {array.dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, **options: Any) -> object:
        data = self._dense("__dlpack__")
        if data.dtype.isbuiltin == 1 and self._element() == _dtypes.of_numpy(data.dtype):
            return self.numpy().__dlpack__(**options)
        # NumPy's DLPack knows no bfloat16 and no fp8; torch's does.
        return self.torch().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def _numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """NumPy's dtype by any name; structured ones and others that no file holds as they are."""
    try:
        return _dtypes.numpy_dtype(_dtypes.named(dtype))
    except InvalidArgumentError:
        return cast("np.dtype[Any]", np.dtype(cast(Any, dtype)))


def component_array(role: str, value: Any) -> AnyArray:
    """A component given by a user, as a NumPy array that shares its memory if possible."""
    if isinstance(value, np.ndarray):
        _dtypes.of_numpy(value.dtype)
        return value
    if _dtypes.is_torch(value):
        from ztensor import _frameworks

        return _frameworks.torch_to_array(value)
    if isinstance(value, Tensor):
        return value.numpy()
    if isinstance(value, (list, tuple, int, float, complex)) or hasattr(value, "__array__"):
        array = np.asarray(value)
        _dtypes.of_numpy(array.dtype)
        return array
    kind = value.__class__.__name__
    raise InvalidArgumentError(f"component {role!r} has type {kind}: give a NumPy array")


def _of_component(given: Any, array: AnyArray) -> _dtypes.Element:
    """What the elements of a component are: torch types survive NumPy's lack of them."""
    if _dtypes.is_torch(given):
        return _dtypes.of_torch(given.dtype)
    return _dtypes.of_numpy(array.dtype)


def is_sparse_matrix(value: object) -> bool:
    """Whether a value is a SciPy sparse array or matrix, without importing SciPy."""
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(value))
