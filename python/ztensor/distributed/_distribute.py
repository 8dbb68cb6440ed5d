"""From a file of any format to a distributed checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ztensor import _dtypes
from ztensor._errors import CorruptError, InvalidArgumentError
from ztensor._reader import Reader
from ztensor._types import Compression, StorageOptions
from ztensor._writer import codec
from ztensor.distributed import _checkpoint, _rank_file, _values
from ztensor.distributed._checkpoint import PLAIN, Checkpoint, Chunk, Object, RankFile, TensorEntry
from ztensor.distributed._consolidate import OBJECTS, PATHS
from ztensor.distributed._parallel import shard_range
from ztensor.distributed._rank_file import ChunkToWrite, ObjectToWrite
from ztensor.distributed._store import Store, is_url, place_of
from ztensor.distributed._team import Team
from ztensor.distributed._tensors import Box, FileTensors


class _Kept(NamedTuple):
    """What a rank file has, without the data."""

    name: str
    shape: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    kind: str | None = None
    """Of a value that is no tensor."""


class _Written(NamedTuple):
    """A rank file, and what is in it under which names."""

    rank: int
    file: RankFile
    items: list[tuple[_Kept, str]]


def distribute(
    source: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str],
    *,
    ranks: int | None = None,
    prefix: str = "",
    compression: Compression = None,
    checksum: str = "crc32c",
    durable: bool = True,
    overwrite: bool = True,
    process_group: Any = None,
    no_dist: bool = False,
    storage_options: StorageOptions = None,
) -> None:
    """Makes a distributed checkpoint of a file of any format: the way back of ``consolidate``.

    >>> import torch, torch.distributed.checkpoint as dcp
    >>> from ztensor.distributed import ZTensorReader, distribute
    >>> from ztensor.torch import save_file
    >>> save_file({"weight": torch.arange(6.0)}, "model.zt")
    >>> distribute("model.zt", "checkpoint", ranks=4, prefix="model.")
    >>> state = {"model": {"weight": torch.zeros(6)}}
    >>> dcp.load(state, storage_reader=ZTensorReader("checkpoint"), no_dist=True)
    >>> state["model"]["weight"]
    tensor([0., 1., 2., 3., 4., 5.])

    It loads with any number of ranks; ``ranks`` is the number of its files, by default that of the
    process group, each with its share of the rows of every tensor. In a process group every rank
    calls it and writes its files. ``prefix`` is put before the names. The other options are those
    of :class:`ZTensorWriter`; both paths may be URLs.
    """
    team = Team(process_group, no_dist)
    place = place_of(checkpoint, storage_options)
    codec(compression)
    count = team.size if ranks is None else ranks
    if count < 1:
        raise InvalidArgumentError("a checkpoint has at least one rank")
    options = _rank_file.Options(compression, checksum, durable)

    def prepare() -> None:
        if not overwrite and _checkpoint.exists(place):
            raise InvalidArgumentError(
                f"{os.fspath(checkpoint)} has a checkpoint already: choose another folder, "
                "or overwrite=True"
            )
        place.prepare()

    team.first(prepare)
    reader = team.each(lambda: Reader(source, storage_options=storage_options))
    try:
        tensors = FileTensors(reader)
        written = [
            one
            for some in team.everyone(
                lambda: _written(
                    place,
                    reader,
                    tensors,
                    prefix,
                    range(team.rank, count, team.size),
                    count,
                    options,
                )
            )
            for one in some
        ]
        team.first(lambda: _commit(place, reader, tensors, prefix, written, durable))
    finally:
        reader.close()


def _written(
    place: Store,
    reader: Reader,
    tensors: FileTensors,
    prefix: str,
    ranks: range,
    count: int,
    options: _rank_file.Options,
) -> list[_Written]:
    """Writes the files of some ranks, and says what is in them."""
    done = []
    for rank in ranks:
        objects = _objects(reader, prefix) if rank == 0 else []
        kept: list[_Kept] = []

        def items(rank: int = rank, kept: list[_Kept] = kept, objects: Any = objects) -> Any:
            for item in objects:
                kept.append(_Kept(item.name, kind=item.kind))
                yield item
            for chunk in _chunks(reader, tensors, prefix, rank, count):
                sizes = tuple(chunk.data.shape)
                kept.append(_Kept(chunk.name, chunk.shape, chunk.offsets, sizes))
                yield chunk

        file, names = _rank_file.write(place, rank, items(), options)
        done.append(_Written(rank, file, list(zip(kept, names, strict=True))))
    return done


def _objects(reader: Reader, prefix: str) -> list[ObjectToWrite]:
    """Non-tensor values, as a consolidated file keeps them."""
    objects = []
    for name, value in _attribute(reader, OBJECTS).items():
        _values.restored(value)  # refuses what could not be read again
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        objects.append(ObjectToWrite(prefix + name, PLAIN, text.encode()))
    return objects


def _attribute(reader: Reader, name: str) -> dict[str, Any]:
    found = _values.parsed(reader.attributes.get(name, "{}"))
    if not isinstance(found, dict):
        raise CorruptError(f"the attribute {name} is not a JSON object")
    return found


def _chunks(
    reader: Reader, tensors: FileTensors, prefix: str, rank: int, count: int
) -> Iterator[ChunkToWrite]:
    """The parts of tensors that go into the file of a rank."""
    for name in reader.keys():
        shape = tensors.shape(name)
        first, last = shard_range(shape[0] if shape else 1, rank, count)
        if first == last and rank:
            continue
        offsets = (first, *(0 for _ in shape[1:])) if shape else ()
        raw = reader.metadata(name).components["data"]["encoding"] == "raw"
        viewed = raw and not is_url(reader._path)
        if viewed:
            data = reader.read_torch(name)  # a view: pages are read when they are written
            data = data.narrow(0, first, last - first) if shape else data
        else:
            sizes = (last - first, *shape[1:]) if shape else ()
            data = torch.empty(sizes, dtype=_dtypes.torch_dtype(tensors.element(name)))
            tensors.read([Box(name, offsets, data)])
        yield ChunkToWrite(prefix + name, shape, offsets, data, owned=not viewed)


def _commit(
    place: Store,
    reader: Reader,
    tensors: FileTensors,
    prefix: str,
    written: list[_Written],
    durable: bool,
) -> None:
    checkpoint = Checkpoint()
    chunks: dict[str, tuple[tuple[int, ...], list[Chunk]]] = {}
    for one in sorted(written, key=lambda one: one.rank):
        index = len(checkpoint.files)
        checkpoint.files.append(one.file)
        for kept, stored in one.items:
            if kept.kind is not None:
                checkpoint.objects[kept.name] = Object(index, stored, kept.kind)
                continue
            _, known = chunks.setdefault(kept.name, (kept.shape, []))
            known.append(Chunk(index, stored, kept.offsets, kept.sizes))
    for name, (shape, known) in chunks.items():
        element = tensors.element(name.removeprefix(prefix))
        checkpoint.tensors[name] = TensorEntry(element, shape, tuple(known))
    # With a prefix the names lead elsewhere than they did.
    paths = {} if prefix else _attribute(reader, PATHS)
    checkpoint.paths = {
        name: _checkpoint.checked_path(paths.get(name, [name]))
        for name in (*checkpoint.tensors, *checkpoint.objects)
    }
    _checkpoint.commit(place, checkpoint, durable)
