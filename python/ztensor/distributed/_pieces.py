"""Boxes of stored tensors, read into torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ztensor import _dtypes
from ztensor._errors import CorruptError
from ztensor._reader import Reader

_SCRATCH = 128 << 20
"""Boxes that cannot be read in place are copied before more than this many bytes pile up."""


class Piece(NamedTuple):
    """A box of a stored tensor, and the tensor that it fills."""

    name: str
    element: _dtypes.Element
    sizes: Sequence[int]
    """Those of the stored tensor, as torch counts them."""
    offsets: Sequence[int]
    target: torch.Tensor
    """Of the size of the box; any strides, device and dtype."""


def fill(reader: Reader, pieces: Sequence[Piece]) -> None:
    """Fills the targets of all pieces, as many as possible at once and in place."""
    requests: list[tuple[str, int, Sequence[int], Sequence[int], Sequence[int], torch.Tensor]] = []
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    scratch = 0
    for piece in pieces:
        _check(reader, piece)
        dtype = _dtypes.torch_dtype(piece.element)
        target, memory = piece.target, piece.target
        if not _in_place(target, dtype):
            memory = torch.empty(target.shape, dtype=dtype)
            copies.append((target, memory))
            scratch += memory.nbytes
        lengths = list(target.shape)
        requests.append((piece.name, dtype.itemsize, piece.sizes, piece.offsets, lengths, memory))
        if scratch > _SCRATCH:
            _read(reader, requests, copies)
            scratch = 0
    _read(reader, requests, copies)


def _read(
    reader: Reader,
    requests: list[tuple[str, int, Sequence[int], Sequence[int], Sequence[int], torch.Tensor]],
    copies: list[tuple[torch.Tensor, torch.Tensor]],
) -> None:
    reader._native.read_parts(requests)
    for target, memory in copies:
        target.copy_(memory)
    requests.clear()
    copies.clear()


def _in_place(target: torch.Tensor, dtype: torch.dtype) -> bool:
    return (
        target.is_cpu
        and target.dtype is dtype
        and target.layout is torch.strided
        and target.is_contiguous()
        and not (target.is_conj() or target.is_neg())
    )


def _check(reader: Reader, piece: Piece) -> None:
    """What the file says about a tensor must be what the checkpoint says."""
    found = reader.metadata(piece.name)
    if found.format != "dense" or _dtypes.described(found.dtype, found.type) != piece.element:
        raise CorruptError(
            f"tensor {piece.name!r} is {found.format} {found.element}, "
            f"but should be {piece.element.name}"
        )
