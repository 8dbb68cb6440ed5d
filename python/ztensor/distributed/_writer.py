"""Saving: the storage writer of ``torch.distributed.checkpoint``."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeGuard

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from ztensor import _dtypes
from ztensor._errors import InvalidArgumentError, UnsupportedError
from ztensor._types import Compression, StorageOptions
from ztensor._writer import codec
from ztensor.distributed import _chain, _checkpoint, _rank_file, _values
from ztensor.distributed._checkpoint import (
    PICKLE,
    PLAIN,
    Checkpoint,
    Chunk,
    Object,
    RankFile,
    TensorEntry,
)
from ztensor.distributed._incremental import Reference
from ztensor.distributed._store import Located, place_of


class _Stored(NamedTuple):
    """Where a rank put an item: what it tells the coordinator."""

    file: RankFile
    object: str
    kind: str | None
    """Of a value that is no tensor."""
    delta: bool = False


class ZTensorWriter(Located, StorageWriter):
    """Writes distributed checkpoints: one ``.zt`` file per rank, and ``checkpoint.json``.

    >>> import torch, torch.distributed.checkpoint as dcp
    >>> from ztensor.distributed import ZTensorReader, ZTensorWriter
    >>> state = {"weight": torch.arange(6.0).reshape(2, 3), "step": 7}
    >>> _ = dcp.save(state, storage_writer=ZTensorWriter("checkpoint"), no_dist=True)
    >>> loaded = {"weight": torch.zeros(2, 3), "step": 0}
    >>> dcp.load(loaded, storage_reader=ZTensorReader("checkpoint"), no_dist=True)
    >>> loaded["weight"].equal(state["weight"]), loaded["step"]
    (True, 7)

    A save appears when it is complete, in one step. Until then, and if it never is, the
    checkpoint that was in the folder stays; afterwards it is removed. One save at a time may go to
    a folder.

    ``compression`` is ``True`` for zstd, a level from 1 to 22, or an effort of the weight codec
    (``"fast"``, ``"default"``, ``"balanced"``, ``"max"``), which can be read in parts. ``checksum``
    is ``"crc32c"``, ``"sha256"`` or ``"none"``. ``durable`` waits until the disk has everything.
    ``overwrite=False`` refuses a folder that has a checkpoint.

    Non-tensor values are stored as plain JSON. Those that have no such form, objects of
    classes for example, are refused unless ``allow_pickle`` is set.

    ``base`` is an earlier checkpoint in a folder beside this one: what changed since then is stored
    as differences from it (lossless), which loading restores. A full checkpoint is written instead
    after ``anchor_every`` such saves, or, where that is not given, when their files take more than
    a full one. A checkpoint that others are differences from is not overwritten; see
    :func:`rebase` and :func:`prune`.

    The path may be a URL of an object store, which ``storage_options`` say how to reach.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        compression: Compression = None,
        checksum: str = "crc32c",
        durable: bool = True,
        overwrite: bool = True,
        allow_pickle: bool = False,
        storage_options: StorageOptions = None,
        base: str | os.PathLike[str] | None = None,
        anchor_every: int | None = None,
    ) -> None:
        super().__init__(path, storage_options, allow_pickle=allow_pickle)
        if anchor_every is not None and anchor_every < 1:
            raise InvalidArgumentError(f"anchor_every must be at least 1, not {anchor_every}")
        self._base, self._anchor_every = base, anchor_every
        codec(compression)  # refuses what is wrong before anybody waits for it
        self._options = _rank_file.Options(compression, checksum, durable)
        self._overwrite = overwrite
        self._is_coordinator = False

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Is told this rank's role."""
        if not kwargs.get("use_collectives", True):
            raise UnsupportedError(
                "a save without collectives has no plan that all ranks know: "
                "leave use_collectives as it is"
            )
        self._is_coordinator = is_coordinator
        rank = kwargs.get("rank")
        if rank is None:
            rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
        self._rank = rank

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Makes the folder."""
        place = self._store
        place.prepare()
        if self._is_coordinator and not self._overwrite and _checkpoint.exists(place):
            raise InvalidArgumentError(
                f"{self._path} has a checkpoint already: choose another folder, or overwrite=True"
            )
        if self._is_coordinator:
            _chain.refuse_loss(place)
        # Refuses a base that is missing before anything is written.
        reference = self._reference()
        if reference is not None:
            reference.close()
        return plan

    def _reference(self) -> Reference | None:
        """The base, unless there is none or a full checkpoint is due."""
        if self._base is None:
            return None
        base = place_of(self._base, self._storage_options)
        # Without a number, reading the chain must not cost more than a full checkpoint.
        ratio = 1.0 if self._anchor_every is None else None
        reference = Reference(self._store, base, self._anchor_every, ratio)
        if not reference.is_due:
            return reference
        reference.close()
        return None

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Nothing to decide: every rank names its file itself."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's file."""
        results: list[WriteResult] = []
        if plan.items:
            sizes: list[int] = []
            kinds: list[str | None] = []
            deltas: list[bool] = []
            reference = self._reference()

            def items() -> Iterator[_rank_file.ToWrite]:
                for item in plan.items:
                    one = self._resolved(item, planner)
                    if isinstance(one, _rank_file.ObjectToWrite):
                        kinds.append(one.kind)
                        sizes.append(len(one.data))
                        deltas.append(False)
                        yield one
                        continue
                    delta = reference.delta(one) if reference is not None else None
                    kinds.append(None)
                    sizes.append(one.data.nbytes)
                    deltas.append(delta is not None)
                    yield delta or one

            try:
                file, names = _rank_file.write(self._store, self._rank, items(), self._options)
            finally:
                if reference is not None:
                    reference.close()
            described = zip(plan.items, names, kinds, sizes, deltas, strict=True)
            for item, name, kind, size, delta in described:
                results.append(WriteResult(item.index, size, _Stored(file, name, kind, delta)))
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def _resolved(
        self, item: WriteItem, planner: SavePlanner
    ) -> _rank_file.ChunkToWrite | _rank_file.ObjectToWrite:
        name = item.index.fqn
        if item.type == WriteItemType.BYTE_IO:
            return _rank_file.ObjectToWrite(name, *self._object(item, planner))
        data = planner.resolve_data(item)
        if not isinstance(data, torch.Tensor) or item.tensor_data is None:
            raise InvalidArgumentError(f"the planner has no tensor for {name!r}")
        about = item.tensor_data
        if tuple(data.shape) != tuple(about.chunk.sizes):
            raise InvalidArgumentError(
                f"the plan says that {name!r} is {list(about.chunk.sizes)} here, "
                f"the planner has {list(data.shape)}"
            )
        return _rank_file.ChunkToWrite(name, tuple(about.size), tuple(about.chunk.offsets), data)

    def _object(self, item: WriteItem, planner: SavePlanner) -> tuple[str, bytes]:
        """A value that is no tensor: plain, or pickled if that is allowed."""
        name = item.index.fqn
        pickled = None
        try:
            if _hands_over_objects(planner):
                value = planner.lookup_object(item.index)
            else:
                pickled = _bytes_of(planner, item)
                value = _unpickled(name, pickled)
            return PLAIN, _values.encode(value).encode()
        except _values.NotPlain as error:
            if not self._allow_pickle:
                raise InvalidArgumentError(
                    f"{name!r} cannot be stored: {error}; use numbers, strings, lists, "
                    "dictionaries and tensors, or set allow_pickle"
                ) from None
        return PICKLE, pickled if pickled is not None else _bytes_of(planner, item)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Makes the save visible: called on the coordinator when all ranks have written."""
        checkpoint = _described(metadata, results)
        if any(result.storage_data.delta for rank in results for result in rank):
            reference = self._reference()
            assert reference is not None, "there are differences from it"
            checkpoint.base = reference.describe(checkpoint.stored_bytes)
            reference.close()
        _checkpoint.commit(self._store, checkpoint, self._options.durable)
        metadata.storage_data = {
            result.index: result.storage_data for rank in results for result in rank
        }
        metadata.storage_meta = StorageMeta(checkpoint_id=self._path, save_id=checkpoint.save)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether a checkpoint can be written there."""
        return bool(os.fspath(checkpoint_id))


def _hands_over_objects(planner: SavePlanner) -> TypeGuard[DefaultSavePlanner]:
    """Whether a planner would only pickle a value, so that the value itself can be taken."""
    return (
        isinstance(planner, DefaultSavePlanner)
        and type(planner).resolve_data is DefaultSavePlanner.resolve_data
        and type(planner).transform_object is DefaultSavePlanner.transform_object
    )


def _bytes_of(planner: SavePlanner, item: WriteItem) -> bytes:
    data = planner.resolve_data(item)
    if not isinstance(data, io.BytesIO):
        raise InvalidArgumentError(f"the planner has no bytes for {item.index.fqn!r}")
    return data.getvalue()


def _unpickled(name: str, pickled: bytes) -> Any:
    """What a planner pickled, as far as that is harmless."""
    try:
        return torch.load(io.BytesIO(pickled), map_location="cpu", weights_only=True)
    except Exception as error:
        raise _values.NotPlain(f"what the planner made of it is not plain ({error})") from None


def _described(metadata: Metadata, results: list[list[WriteResult]]) -> Checkpoint:
    """What the planner and the ranks say, put together."""
    checkpoint = Checkpoint()
    indexes: dict[str, int] = {}
    stored: dict[MetadataIndex, tuple[int, _Stored]] = {}
    for result in (result for rank in results for result in rank):
        where: _Stored = result.storage_data
        index = indexes.setdefault(where.file.name, len(indexes))
        if index == len(checkpoint.files):
            checkpoint.files.append(where.file)
        stored[result.index] = (index, where)
    for name, about in metadata.state_dict_metadata.items():
        if isinstance(about, BytesStorageMetadata):
            index, where = _found(stored, MetadataIndex(name))
            checkpoint.objects[name] = Object(index, where.object, where.kind or PLAIN)
            continue
        chunks = []
        for chunk in about.chunks:
            index, where = _found(stored, MetadataIndex(name, chunk.offsets))
            offsets, sizes = tuple(chunk.offsets), tuple(chunk.sizes)
            chunks.append(Chunk(index, where.object, offsets, sizes, where.delta))
        element = _dtypes.of_torch(about.properties.dtype)
        checkpoint.tensors[name] = TensorEntry(element, tuple(about.size), tuple(chunks))
    planner = metadata.planner_data
    if _is_paths(planner):
        checkpoint.paths = dict(planner)
    else:
        checkpoint.planner = planner
    return checkpoint


def _found(
    stored: dict[MetadataIndex, tuple[int, _Stored]], index: MetadataIndex
) -> tuple[int, _Stored]:
    try:
        return stored[index]
    except KeyError:
        raise InvalidArgumentError(f"no rank has written {index.fqn!r} at {index.offset}") from None


def _is_paths(planner: Any) -> bool:
    """Whether a planner's data are the paths that the default planner keeps."""
    return isinstance(planner, dict) and all(
        type(path) is tuple and path and all(type(key) in (str, int) for key in path)
        for path in planner.values()
    )
