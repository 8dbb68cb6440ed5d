"""One rank's file: chunks of tensors and plain values, each saying what it is part of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

from ztensor import _dtypes, _items, _native
from ztensor._errors import InvalidArgumentError
from ztensor._types import Compression
from ztensor._writer import codec
from ztensor.distributed import _checkpoint
from ztensor.distributed._checkpoint import RankFile
from ztensor.distributed._store import Store

_COPIES = 128 << 20
"""Tensors that had to be copied are written before more than this many bytes of them pile up."""


class ChunkToWrite(NamedTuple):
    """A chunk of a tensor."""

    name: str
    """Of the whole tensor."""
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    data: torch.Tensor
    owned: bool = False
    """Whether the data are in memory only for this, so that they must not pile up."""


class DeltaToWrite(NamedTuple):
    """A chunk of a tensor as its difference from the same box of a base."""

    name: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    data: bytes


class ObjectToWrite(NamedTuple):
    """A value that is no tensor, as bytes."""

    name: str
    kind: str
    data: bytes


class Options(NamedTuple):
    """How rank files are written."""

    compression: Compression
    checksum: str
    durable: bool


ToWrite = ChunkToWrite | DeltaToWrite | ObjectToWrite


def write(
    store: Store, rank: int, items: Iterable[ToWrite], options: Options
) -> tuple[RankFile, list[str]]:
    """Writes a file; says which one, and under which names the items are in it."""
    coding = codec(options.compression)
    name = _checkpoint.rank_file_name(rank)
    writer = store.writer(name, options.durable)
    try:
        about = {"version": _checkpoint.VERSION, "rank": rank, "file": name}
        writer.set_attributes({_checkpoint.FORMAT: about})
        names: list[str] = []
        used: set[str] = set()
        batch: list[_native._Item] = []
        deltas: list[_native._Item] = []
        copies = 0

        def flush() -> None:
            writer.write(batch, coding, options.checksum)
            writer.write(deltas, None, options.checksum)
            batch.clear()
            deltas.clear()

        for item in items:
            stored = _unused(_stored_name(item), used)
            names.append(stored)
            prepared, copied = _prepared(stored, item)
            (deltas if isinstance(item, DeltaToWrite) else batch).append(prepared)
            copies += copied
            if copies > _COPIES:
                flush()
                copies = 0
        flush()
        length = writer.finish()
    except BaseException:
        writer.abort()
        raise
    return RankFile(name, length, _checkpoint.fingerprint(store, name, length)), names


def _stored_name(item: ToWrite) -> str:
    """``layer.weight[2:4, 0:8]`` for a part of a tensor."""
    if isinstance(item, ObjectToWrite):
        return item.name
    sizes = item.sizes if isinstance(item, DeltaToWrite) else tuple(item.data.shape)
    if sizes == item.shape:
        return item.name
    ranges = (f"{offset}:{offset + size}" for offset, size in zip(item.offsets, sizes, strict=True))
    return f"{item.name}[{', '.join(ranges)}]"


def _unused(name: str, used: set[str]) -> str:
    while name in used:
        name += "'"
    used.add(name)
    return name


def _prepared(stored: str, item: ToWrite) -> tuple[_native._Item, int]:
    """An item as the native writer takes it, and how many bytes had to be copied for it."""
    about: dict[str, Any]
    if isinstance(item, ObjectToWrite):
        about = {"object": item.name, "kind": item.kind}
        data = np.frombuffer(item.data, np.uint8)
        components: list[_native._Component] = [("data", "uint8", None, data)]
        shape: tuple[int, ...] = data.shape
        copied = len(item.data)
    elif isinstance(item, DeltaToWrite):
        about = {"tensor": item.name, "shape": item.shape, "offsets": item.offsets}
        about |= {"sizes": item.sizes, "delta": True}
        data = np.frombuffer(item.data, np.uint8)
        components = [("data", "uint8", None, data)]
        shape = data.shape
        copied = len(item.data)
    else:
        about = {"tensor": item.name, "shape": item.shape, "offsets": item.offsets}
        tensor = item.data.detach()
        if tensor.layout is not torch.strided:
            raise InvalidArgumentError(
                f"tensor {item.name!r} is {tensor.layout}: only dense ones can be sharded"
            )
        if tensor.is_meta:
            raise InvalidArgumentError(
                f"tensor {item.name!r} is on the meta device: it has no data"
            )
        element = _dtypes.of_torch(tensor.dtype)
        dense = tensor.cpu().resolve_conj().resolve_neg().contiguous()
        copied = dense.nbytes if item.owned or dense.data_ptr() != tensor.data_ptr() else 0
        shape = _items.stored_shape(element, dense.shape)
        components = [("data", element.storage, element.logical, dense)]
    return (stored, "dense", shape, components, {_checkpoint.FORMAT: about}), copied
