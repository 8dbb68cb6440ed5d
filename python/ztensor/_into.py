"""Reading into memory that the caller already has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ztensor import _dtypes
from ztensor._errors import InvalidArgumentError, UnsupportedError
from ztensor._progress import reporting
from ztensor._types import Progress

if TYPE_CHECKING:
    from ztensor._reader import Reader


def read_into(reader: Reader, wanted: Mapping[str, Any], progress: Progress) -> None:
    """Fills every destination, after all of them were checked."""
    direct: list[tuple[str, Any]] = []
    strided: list[tuple[str, Any]] = []
    for name, dst in wanted.items():
        (direct if _check(reader, name, dst) else strided).append((name, dst))
    with reporting(progress, sum(int(dst.nbytes) for dst in wanted.values()), "loading") as tell:
        reader._native.read_into(direct, tell)
        for name, dst in strided:
            if isinstance(dst, np.ndarray):
                np.copyto(dst, reader.read_numpy(name))
            else:
                import torch

                with torch.no_grad():
                    dst.copy_(reader.read_torch(name))
            if tell is not None:
                tell(int(dst.nbytes))


def _check(reader: Reader, name: str, dst: Any) -> bool:
    """Refuses destinations that do not match; whether one can be filled directly."""
    metadata = reader.metadata(name)
    if metadata.format != "dense":
        raise UnsupportedError(
            f"tensor {name!r} is {metadata.format}: only dense ones can be read into"
        )
    element = _dtypes.described(metadata.dtype, metadata.type)
    shape = list(metadata.shape)
    if isinstance(dst, np.ndarray):
        found = _dtypes.of_numpy(dst.dtype)
        if not dst.flags.writeable:
            raise InvalidArgumentError(f"the destination of {name!r} is read-only")
        in_order = dst.flags.c_contiguous and dst.dtype.byteorder != ">"
    elif _dtypes.is_torch(dst):
        found = _dtypes.of_torch(dst.dtype)
        if found.bits % 8 and shape:
            shape[-1] //= 2
        in_order = dst.is_cpu and dst.is_contiguous() and not (dst.is_conj() or dst.is_neg())
    else:
        raise InvalidArgumentError(
            f"the destination of {name!r} has type {type(dst).__name__}: give an array or a tensor"
        )
    if element is None or found != element or list(dst.shape) != shape:
        raise InvalidArgumentError(
            f"tensor {name!r} is {metadata.element} of shape {metadata.shape}, "
            f"but its destination is {found.name} of shape {list(dst.shape)}"
        )
    return bool(in_order)
