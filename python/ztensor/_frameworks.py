"""Between ``ztensor.Tensor`` and the tensors of torch and SciPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ztensor import _dtypes
from ztensor._errors import InvalidArgumentError, UnsupportedError
from ztensor._tensor import Tensor
from ztensor._types import AnyArray

if TYPE_CHECKING:
    import torch as _torch
else:
    from ztensor._types import torch as _torch


def array_to_torch(array: AnyArray, element: _dtypes.Element, shape: list[int]) -> _torch.Tensor:
    """A torch tensor over an array's memory; copied if torch could not use it as it is."""
    import torch

    dtype = _dtypes.torch_dtype(element)
    raw = array if array.flags.c_contiguous else np.array(array, order="C")
    flat = raw.reshape(-1).view(np.uint8)
    if not raw.flags.aligned or not raw.flags.writeable or raw.dtype.byteorder == ">":
        flat = (
            np.array(raw, dtype=raw.dtype.newbyteorder("="), order="C").reshape(-1).view(np.uint8)
        )
    if element.bits % 8:
        shape = [*shape[:-1], shape[-1] // 2]  # torch packs two to a byte
    if not flat.size:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(flat).view(dtype).reshape(shape)


def torch_to_array(tensor: _torch.Tensor) -> AnyArray:
    """A torch tensor's elements as a NumPy array, raw where NumPy lacks the type."""
    import torch

    element = _dtypes.of_torch(tensor.dtype)
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        dtype = _dtypes.numpy_dtype(element)
    except UnsupportedError:
        dtype = _dtypes.raw_numpy_dtype(element)
    shape = list(tensor.shape)
    if not tensor.numel():
        return np.empty(shape, dtype)
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().view(dtype)
    return raw.reshape(shape) if raw.size == tensor.numel() else raw


def to_torch(tensor: Tensor) -> _torch.Tensor:
    """Dense and sparse tensors as torch's."""
    import torch

    element = tensor._element()
    if element is None:
        raise UnsupportedError(f"the logical type {tensor.type!r} is not known: use the components")
    parts = tensor.components
    if tensor.format == "dense":
        return array_to_torch(parts["data"], element, tensor.shape)

    def index(role: str) -> _torch.Tensor:
        return torch.from_numpy(_index_array(role, parts[role], np.dtype(np.int64)))

    if tensor.format == "sparse_csr":
        _check_csr(tensor)
        values = array_to_torch(parts["values"], element, [_count(tensor)])
        return torch.sparse_csr_tensor(
            index("indptr"), index("indices"), values, tensor.shape, check_invariants=False
        )
    if tensor.format == "sparse_coo":
        coords = _check_coo(tensor)
        values = array_to_torch(parts["values"], element, [_count(tensor)])
        return torch.sparse_coo_tensor(
            torch.from_numpy(coords), values, tensor.shape, check_invariants=False
        )
    raise UnsupportedError(
        f"torch has no {tensor.format} tensors: dequantize() gives its numbers, "
        "load_file(..., dequantize=True) those of a whole file"
    )


def from_torch(tensor: _torch.Tensor) -> Tensor:
    """Strided and sparse torch tensors."""
    import torch

    element = _dtypes.of_torch(tensor.dtype)
    shape = list(tensor.shape)
    if tensor.layout == torch.strided:
        if element.bits % 8 and shape:
            shape[-1] *= 2
        parts = {"data": torch_to_array(tensor)}
        return Tensor(parts, shape=shape, dtype=element.name)
    tensor = tensor.detach()
    if tensor.layout == torch.sparse_csr:
        if tensor.ndim != 2 or tensor.values().ndim != 1:
            raise InvalidArgumentError(
                "only two-dimensional CSR tensors without dense dimensions can be stored: "
                "use to_sparse_coo() or to_dense()"
            )
        parts = {
            "values": torch_to_array(tensor.values()),
            "indices": torch_to_array(tensor.col_indices()).astype(np.uint64),
            "indptr": torch_to_array(tensor.crow_indices()).astype(np.uint64),
        }
        return Tensor(parts, shape=shape, dtype=element.name, format="sparse_csr")
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce()
        if tensor.dense_dim():
            raise InvalidArgumentError("COO tensors with dense dimensions cannot be stored")
        parts = {
            "values": torch_to_array(tensor.values()),
            "coords": torch_to_array(tensor.indices()).astype(np.uint64),
        }
        return Tensor(parts, shape=shape, dtype=element.name, format="sparse_coo")
    raise InvalidArgumentError(
        f"{tensor.layout} tensors cannot be stored: "
        "use to_sparse_csr(), to_sparse_coo() or to_dense()"
    )


def to_scipy(tensor: Tensor) -> Any:
    """Sparse tensors as SciPy's arrays."""
    from scipy import sparse

    parts = tensor.components
    if tensor.format == "sparse_csr":
        _check_csr(tensor)
        indices, indptr = (
            _index_array(role, parts[role], np.dtype(np.int64)) for role in ("indices", "indptr")
        )
        return sparse.csr_array((_values(tensor), indices, indptr), shape=tuple(tensor.shape))
    if tensor.format == "sparse_coo":
        coords = _check_coo(tensor)
        return sparse.coo_array((_values(tensor), tuple(coords)), shape=tuple(tensor.shape))
    raise UnsupportedError(f"scipy() is for sparse tensors, this one is {tensor.format}")


def from_scipy(matrix: Any) -> Tensor:
    """SciPy's sparse arrays and matrices."""
    if matrix.format == "coo":
        coords = getattr(matrix, "coords", None) or (matrix.row, matrix.col)
        parts = {"values": matrix.data, "coords": np.array(coords, dtype=np.uint64)}
        layout = "sparse_coo"
    else:
        matrix = matrix.tocsr()
        if matrix.ndim != 2:
            raise InvalidArgumentError("only two-dimensional CSR arrays can be stored: use tocoo()")
        parts = {
            "values": matrix.data,
            "indices": matrix.indices.astype(np.uint64),
            "indptr": matrix.indptr.astype(np.uint64),
        }
        layout = "sparse_csr"
    element = _dtypes.of_numpy(matrix.dtype)
    return Tensor(parts, shape=matrix.shape, dtype=element.name, format=layout)


def _values(tensor: Tensor) -> AnyArray:
    element = tensor._element() or _dtypes.named(tensor.dtype)
    return tensor.components["values"].view(_dtypes.numpy_dtype(element))


def _count(tensor: Tensor) -> int:
    element = tensor._element() or _dtypes.named(tensor.dtype)
    return tensor.components["values"].nbytes * 8 // element.bits


def _index_array(role: str, array: AnyArray, dtype: np.dtype[Any]) -> AnyArray:
    """Indices as another integer type, refused if one does not fit."""
    if array.size and int(array.max()) > np.iinfo(dtype).max:
        raise InvalidArgumentError(f"{role} holds {int(array.max())}, which is no index")
    return array.astype(dtype)


def _check_csr(tensor: Tensor) -> None:
    """A hostile file must not reach code that trusts its indices."""
    indices, indptr = tensor.components["indices"], tensor.components["indptr"]
    rows, columns = tensor.shape
    count = _count(tensor)
    ordered = (
        indptr.size == rows + 1
        and indices.size == count
        and int(indptr[0]) == 0
        and int(indptr[-1]) == count
        and bool((indptr[:-1] <= indptr[1:]).all())
    )
    if not ordered or (count and not 0 <= int(indices.min()) <= int(indices.max()) < columns):
        raise InvalidArgumentError("its row pointers or column indices do not describe a matrix")


def _check_coo(tensor: Tensor) -> AnyArray:
    """The coordinates as rows of int64, checked against the shape."""
    count = _count(tensor)
    coords = tensor.components["coords"]
    if coords.size != tensor.ndim * count:
        raise InvalidArgumentError(
            f"{coords.size} coordinates do not place {count} values in {tensor.ndim} dimensions"
        )
    coords = _index_array("coords", coords, np.dtype(np.int64)).reshape(tensor.ndim, count)
    for row, size in zip(coords, tensor.shape, strict=True):
        if count and not 0 <= int(row.min()) <= int(row.max()) < size:
            raise InvalidArgumentError(f"coordinate {int(row.max())} in a dimension of size {size}")
    return coords
