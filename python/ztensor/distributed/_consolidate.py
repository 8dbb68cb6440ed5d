"""From a distributed checkpoint to files that everybody reads.

The layout of the files is known before anything is copied, so every rank and every thread copies
its share straight to where it belongs; no process ever holds the model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ztensor import _dtypes, _items, _native
from ztensor._errors import InvalidArgumentError, UnsupportedError
from ztensor._progress import reporting
from ztensor._types import Compression, Progress, StorageOptions
from ztensor._writer import codec
from ztensor.distributed import _layout, _values
from ztensor.distributed._checkpoint import PLAIN
from ztensor.distributed._layout import Layout, Target
from ztensor.distributed._place import place
from ztensor.distributed._store import place_of, split
from ztensor.distributed._team import Team
from ztensor.distributed._tensors import Box, CheckpointTensors

OBJECTS, PATHS = "ztensor.objects", "ztensor.paths"
"""Attributes of a consolidated file: what a checkpoint has besides tensors, as JSON."""

_BATCH = 128 << 20
"""Bytes of compressed or uploaded tensors held in memory, at most; a larger one is alone."""


def consolidate(
    checkpoint: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    max_shard_size: int | str | None = None,
    prefix: str | None = None,
    metadata: Mapping[str, str] | None = None,
    compression: Compression = None,
    checksum: str = "none",
    threads: int = 0,
    durable: bool = False,
    progress: Progress = None,
    process_group: Any = None,
    no_dist: bool = False,
    storage_options: StorageOptions = None,
) -> list[str]:
    """Writes a distributed checkpoint as one ``.zt`` or ``.safetensors`` file, or as shards.

    >>> import torch, torch.distributed.checkpoint as dcp, ztensor
    >>> from ztensor.distributed import ZTensorWriter, consolidate
    >>> state = {"model": {"weight": torch.ones(2, 3)}, "step": 7}
    >>> _ = dcp.save(state, storage_writer=ZTensorWriter("checkpoint"), no_dist=True)
    >>> consolidate("checkpoint", "model.safetensors", prefix="model.")
    ['model.safetensors']
    >>> ztensor.open("model.safetensors").keys()
    ['weight']

    ``prefix`` takes only what has it, without it. ``max_shard_size``, bytes or a text such as
    ``"5GB"``, cuts the model into files ``model-00001-of-00003.safetensors`` and writes the index
    that transformers and :func:`ztensor.open` read. ``compression`` and ``checksum`` are those of
    :func:`ztensor.torch.save_file`, for ``.zt``. Non-tensor values are kept as attributes.

    In a process group every rank calls it and copies its share; all must see both folders. Returns
    the files that were written, which appear when they are complete. Both paths may be URLs of
    object stores, which ``storage_options`` say how to reach; a file is uploaded there by one rank,
    in parts, from front to back.
    """
    team = Team(process_group, no_dist)
    home, name = split(out, storage_options)
    kind = name.rpartition(".")[2]
    if kind not in ("zt", "safetensors"):
        raise InvalidArgumentError(f"{name!r}: the name of a .zt or a .safetensors file")
    coding = codec(compression)
    if (coding is not None or checksum != "none") and kind != "zt":
        raise InvalidArgumentError("a .safetensors file has neither compression nor checksums")
    origin = place_of(checkpoint, storage_options)
    source = team.each(lambda: CheckpointTensors(origin, threads))
    try:
        targets, attributes = team.each(lambda: _contents(source, kind, prefix, metadata))
        shards = _layout.shards(targets, max_shard_size)
        files = _layout.names(name, len(shards))
        # Differences are restored chunk by chunk, not copied to their places.
        is_copied = source.base is None and coding is None and checksum == "none"
        if not is_copied or not home.is_local:
            mine = list(zip(files, shards, strict=True))[team.rank :: team.size]
            total = sum(one.nbytes for _, shard in mine for one in shard)
            with reporting(progress, total, "consolidating") as tell:

                def write() -> None:
                    for file, shard in mine:
                        if kind == "zt":
                            writer = home.writer(file, durable)
                            _stream(writer, source, shard, attributes, (coding, checksum), tell)
                        else:
                            layout = _layout.layout(kind, shard, attributes)
                            new = home.new_file(file)
                            _stream_planned(new, source, shard, layout, durable, tell)

                team.each(write)
        else:
            planned = [
                (Path(home.path(file)), _layout.layout(kind, shard, attributes), shard)
                for file, shard in zip(files, shards, strict=True)
            ]
            place(team, source, planned, threads, durable, progress)
        if len(shards) == 1:
            return [home.path(name)]
        index = f"{name}.index.json"
        team.first(lambda: home.write(index, _layout.index(files, shards), durable))
        return [home.path(file) for file in (index, *files)]
    finally:
        source.close()


def _contents(
    source: CheckpointTensors, kind: str, prefix: str | None, metadata: Mapping[str, str] | None
) -> tuple[list[Target], dict[str, str]]:
    """The tensors of the new files, and what else they say."""
    attributes = {**(metadata or {}), **_attributes(source, prefix)}
    if kind == "safetensors":
        attributes = {"format": "pt", **attributes}
    return _targets(source, prefix), attributes


def _targets(source: CheckpointTensors, prefix: str | None) -> list[Target]:
    targets = []
    for name, entry in source.checkpoint.tensors.items():
        if prefix is not None and not name.startswith(prefix):
            continue
        targets.append(Target(name.removeprefix(prefix or ""), name, entry))
    if prefix is not None and not targets:
        raise InvalidArgumentError(f"no tensor of the checkpoint begins with {prefix!r}")
    return targets


def _attributes(source: CheckpointTensors, prefix: str | None) -> dict[str, str]:
    """What there is besides tensors, as texts that every format can hold."""
    objects = {}
    for name, value in source.checkpoint.objects.items():
        if prefix is not None and not name.startswith(prefix):
            continue
        if value.kind != PLAIN:
            raise UnsupportedError(
                f"{name!r} is pickled and would be lost: leave it out by a prefix"
            )
        data = source.files.reader(value.file)._native.read_bytes(value.object)
        _values.decode(data)  # refuses what could not be read again
        objects[name.removeprefix(prefix or "")] = json.loads(data)
    attributes = {}
    if objects:
        attributes[OBJECTS] = json.dumps(objects, separators=(",", ":"), ensure_ascii=False)
    paths = source.checkpoint.paths
    if prefix is None and paths and any(path != (name,) for name, path in paths.items()):
        attributes[PATHS] = json.dumps(paths, separators=(",", ":"), ensure_ascii=False)
    return attributes


def _stream(
    writer: _native.Writer,
    source: CheckpointTensors,
    targets: list[Target],
    attributes: dict[str, str],
    options: tuple[int | str | None, str],
    tell: Callable[[int], object] | None,
) -> None:
    """Writes a ``.zt`` file from front to back, a few tensors in memory at a time."""
    try:
        writer.set_attributes(dict(attributes))
        for batch in _batches(targets):
            items = [
                _items.from_torch(target.name, tensor).item
                for target, tensor in zip(batch, _read(source, batch), strict=True)
            ]
            writer.write(items, *options, False, tell)
        writer.finish()
    except BaseException:
        writer.abort()
        raise


def _stream_planned(
    file: _native.NewFile,
    source: CheckpointTensors,
    targets: list[Target],
    layout: Layout,
    durable: bool,
    tell: Callable[[int], object] | None,
) -> None:
    """Writes a file whose layout is known, and leaves no gaps, from front to back."""
    try:
        file.write(np.frombuffer(layout.head, dtype=np.uint8))
        in_order = sorted(targets, key=lambda target: (layout.offsets[target.name], target.nbytes))
        for batch in _batches(in_order):
            for tensor in _read(source, batch):
                file.write(tensor.reshape(-1).view(torch.uint8).numpy())
                if tell is not None:
                    tell(tensor.nbytes)
        file.write(np.frombuffer(layout.tail, dtype=np.uint8))
        file.finish(durable)
    except BaseException:
        file.abort()
        raise


def _read(source: CheckpointTensors, targets: list[Target]) -> list[torch.Tensor]:
    """Whole tensors, in memory of their own."""
    boxes = []
    for target in targets:
        entry = target.entry
        memory = torch.empty(entry.shape, dtype=_dtypes.torch_dtype(entry.element))
        boxes.append(Box(target.source, (0,) * len(entry.shape), memory))
    source.read(boxes)
    return [box.target for box in boxes]


def _batches(targets: list[Target]) -> list[list[Target]]:
    batches: list[list[Target]] = []
    size = _BATCH
    for target in targets:
        if size + target.nbytes > _BATCH:
            batches.append([])
            size = 0
        batches[-1].append(target)
        size += target.nbytes
    return batches
