"""Tensor-parallel reading: each rank reads its rows or columns, and nothing else."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping

import torch

from ztensor import _dtypes
from ztensor._errors import InvalidArgumentError
from ztensor._types import Device, StorageOptions
from ztensor.distributed._tensors import Box, Tensors, opened

_BATCH = 64 << 20
"""Parts are read in batches of about this many bytes, so that ranks stay where they started."""


def shard_range(size: int, rank: int, world: int) -> tuple[int, int]:
    """The rows of a rank, as ``torch.chunk`` and DTensor's ``Shard`` cut them.

    >>> [shard_range(10, rank, 4) for rank in range(4)]
    [(0, 3), (3, 6), (6, 9), (9, 10)]
    """
    if not 0 <= rank < world:
        raise InvalidArgumentError(f"rank {rank} is not one of 0 to {world - 1}")
    each = -(-size // world)
    return min(rank * each, size), min((rank + 1) * each, size)


def read_shard(
    path: str | os.PathLike[str],
    name: str,
    dim: int | None,
    rank: int,
    world: int,
    *,
    device: Device = "cpu",
    storage_options: StorageOptions = None,
) -> torch.Tensor:
    """This rank's part of a tensor, cut along ``dim``; all of it if that is ``None``.

    The path is that of a file of any format, a folder of shards, or a distributed checkpoint.
    Only the part is read.

    >>> import torch
    >>> from ztensor.distributed import read_shard
    >>> from ztensor.torch import save_file
    >>> save_file({"weight": torch.arange(8).reshape(2, 4)}, "model.zt")
    >>> read_shard("model.zt", "weight", 1, rank=1, world=2)
    tensor([[2, 3],
            [6, 7]])
    """
    tensors = opened(path, storage_options)
    try:
        box = _box(tensors, name, dim, rank, world)
        tensors.read([box])
    finally:
        tensors.close()
    return box.target if device == "cpu" else box.target.to(device)


def load_tensor_parallel(
    path: str | os.PathLike[str],
    plan: Mapping[str, int | None],
    rank: int,
    world: int,
    *,
    device: Device = "cpu",
    storage_options: StorageOptions = None,
) -> dict[str, torch.Tensor]:
    """This rank's parts of all tensors of a file, a folder of shards, or a checkpoint.

    ``plan`` says how tensors are cut: patterns of names, of which the first that fits counts, and
    the dimension, or ``None`` for all of it. Tensors that no pattern fits are read whole.

    >>> import torch
    >>> from ztensor.distributed import load_tensor_parallel
    >>> from ztensor.torch import save_file
    >>> model = {"up.weight": torch.ones(8, 4), "down.weight": torch.ones(4, 8)}
    >>> save_file({**model, "norm.weight": torch.ones(4)}, "model.zt")
    >>> parts = load_tensor_parallel("model.zt", {"up.*": 0, "down.*": 1}, rank=0, world=2)
    >>> {name: tuple(part.shape) for name, part in sorted(parts.items())}
    {'down.weight': (4, 4), 'norm.weight': (4,), 'up.weight': (4, 4)}

    Every rank begins at another place of the file and goes once around, so that disks, caches
    and stores are asked for different bytes at a time.
    """
    tensors = opened(path, storage_options)
    try:
        names = tensors.names()
        boxes: dict[str, Box] = {}
        for name in _around(tensors, names, rank, world):
            boxes[name] = _box(tensors, name, _dim(plan, name), rank, world)
        batch: list[Box] = []
        for box in boxes.values():
            batch.append(box)
            if sum(one.target.nbytes for one in batch) >= _BATCH:
                _fetch(tensors, batch, boxes, device)
        _fetch(tensors, batch, boxes, device)
    finally:
        tensors.close()
    return {name: boxes[name].target for name in names}


def _fetch(tensors: Tensors, batch: list[Box], boxes: dict[str, Box], device: Device) -> None:
    tensors.read(batch)
    if device != "cpu":
        for box in batch:
            boxes[box.name] = box._replace(target=box.target.to(device))
    batch.clear()


def _dim(plan: Mapping[str, int | None], name: str) -> int | None:
    for pattern, dim in plan.items():
        if fnmatch.fnmatchcase(name, pattern):
            return dim
    return None


def _around(tensors: Tensors, names: list[str], rank: int, world: int) -> list[str]:
    """The names, from a place on that is this rank's, and round to it again."""
    if not 0 <= rank < world:
        raise InvalidArgumentError(f"rank {rank} is not one of 0 to {world - 1}")
    sizes = [torch.Size(tensors.shape(name)).numel() * tensors.element(name).bits for name in names]
    before, start = 0, 0
    while start < len(names) and before * world < sum(sizes) * rank:
        before += sizes[start]
        start += 1
    return names[start:] + names[:start]


def _box(tensors: Tensors, name: str, dim: int | None, rank: int, world: int) -> Box:
    shape = list(tensors.shape(name))
    offsets = [0] * len(shape)
    if dim is not None:
        if not -len(shape) <= dim < len(shape):
            raise InvalidArgumentError(f"tensor {name!r} of shape {shape} has no dimension {dim}")
        first, last = shard_range(shape[dim], rank, world)
        offsets[dim], shape[dim] = first, last - first
    memory = torch.empty(shape, dtype=_dtypes.torch_dtype(tensors.element(name)))
    return Box(name, tuple(offsets), memory)
