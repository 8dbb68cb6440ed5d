"""Loading: the storage reader of ``torch.distributed.checkpoint``."""

from __future__ import annotations

import io
import os
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from ztensor import _dtypes
from ztensor._errors import CorruptError, InvalidArgumentError, UnsupportedError
from ztensor._reader import Reader
from ztensor._types import StorageOptions
from ztensor.distributed import _chain, _pieces, _values
from ztensor.distributed._checkpoint import PLAIN, Checkpoint, Chunk, Object
from ztensor.distributed._store import Located
from ztensor.distributed._tensors import CheckpointTensors, within


class ZTensorReader(Located, StorageReader):
    """Reads distributed checkpoints with any number of ranks.

    Each rank reads the ranges that it needs, straight into its tensors, and begins with another
    file than its neighbours. See :class:`ZTensorWriter` for an example.

    Nothing is unpickled: values that are no tensors are stored as plain JSON. Those that were
    saved with ``allow_pickle`` are refused unless it is given here too; do that only for
    checkpoints that you trust as you trust a program.

    The path may be a URL of an object store, which ``storage_options`` say how to reach.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        allow_pickle: bool = False,
        storage_options: StorageOptions = None,
    ) -> None:
        super().__init__(path, storage_options, allow_pickle=allow_pickle)
        self._checkpoint: Checkpoint | None = None
        self._links: list[_chain.Link] = []
        self._stored: dict[MetadataIndex, Chunk | Object] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins a new load, perhaps from elsewhere."""
        super().reset(checkpoint_id)
        self._checkpoint, self._links, self._stored = None, [], {}

    def read_metadata(self) -> Metadata:
        """What is in the checkpoint; an error if there is none that is complete."""
        self._links = _chain.resolve(self._store)
        self._checkpoint = self._links[0][1]
        return _metadata(self._checkpoint, self._path)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Is told this rank's role."""
        self._stored = metadata.storage_data
        self._rank = kwargs.get("rank") or 0

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Nothing to change."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Nothing to change."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads what this rank needs."""
        if self._checkpoint is None:
            raise InvalidArgumentError("read_metadata comes before read_data")
        by_file: dict[int, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self._stored[item.storage_index].file, []).append(item)
        tensors = CheckpointTensors.of_chain(self._links)
        pickled = _Pickled(self._allow_pickle)
        try:
            for index in _from(self._rank, sorted(by_file)):
                self._read_file(tensors, index, by_file[index], planner, pickled)
        finally:
            tensors.close()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _read_file(
        self,
        tensors: CheckpointTensors,
        index: int,
        items: list[ReadItem],
        planner: LoadPlanner,
        pickled: _Pickled,
    ) -> None:
        reader = tensors.files.reader(index)
        pieces: list[_pieces.Piece] = []
        targets: list[tuple[ReadItem, torch.Tensor]] = []
        for item in items:
            stored = self._stored[item.storage_index]
            if item.type == LoadItemType.BYTE_IO:
                if not isinstance(stored, Object):
                    raise InvalidArgumentError(f"{item.storage_index.fqn!r} is a tensor")
                planner.load_bytes(item, pickled.of(reader, item.storage_index.fqn, stored))
                continue
            if not isinstance(stored, Chunk):
                raise InvalidArgumentError(f"{item.storage_index.fqn!r} is not a tensor")
            target = planner.resolve_tensor(item)
            if target.shape != item.lengths:
                raise InvalidArgumentError(
                    f"{item.dest_index.fqn!r}: {list(item.lengths)} do not fit into a tensor "
                    f"of {list(target.shape)}"
                )
            offsets = tuple(item.storage_offsets)
            if stored.delta:
                whole = tensors.restored(item.storage_index.fqn, stored)
                target.detach().copy_(within(whole, offsets, item.lengths))
                targets.append((item, target))
                continue
            element = tensors.entry(item.storage_index.fqn).element
            pieces.append(
                _pieces.Piece(stored.object, element, stored.sizes, offsets, target.detach())
            )
            targets.append((item, target))
        _pieces.fill(reader, pieces)
        for item, target in targets:
            planner.commit_tensor(item, target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether a checkpoint can be read from there."""
        return bool(os.fspath(checkpoint_id))


class _Pickled:
    """Stored values in the form that planners take: pickled, by us and not by the file."""

    def __init__(self, allow_pickle: bool) -> None:
        self._allow_pickle = allow_pickle
        self._known: dict[bytes, bytes] = {}

    def of(self, reader: Reader, name: str, stored: Object) -> io.BytesIO:
        data = reader._native.read_bytes(stored.object)
        if stored.kind != PLAIN:
            if not self._allow_pickle:
                raise UnsupportedError(
                    f"{name!r} is pickled, and unpickling can run any code: set allow_pickle "
                    "if you trust this checkpoint"
                )
            return io.BytesIO(data)
        pickled = self._known.get(data)
        if pickled is None:
            try:
                value = _values.decode(data)
            except CorruptError as error:
                raise CorruptError(f"{name!r}: {error}") from None
            buffer = io.BytesIO()
            torch.save(value, buffer)
            pickled = self._known[data] = buffer.getvalue()
        return io.BytesIO(pickled)


def _from(start: int, indexes: list[int]) -> list[int]:
    """The same in another order for each rank, so that they do not queue at one file."""
    if not indexes:
        return []
    start %= len(indexes)
    return indexes[start:] + indexes[:start]


def _metadata(checkpoint: Checkpoint, path: str) -> Metadata:
    """The checkpoint as torch describes it."""
    state: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    stored: dict[MetadataIndex, Chunk | Object] = {}
    for name, entry in checkpoint.tensors.items():
        chunks = []
        for index, chunk in enumerate(entry.chunks):
            chunks.append(ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)))
            stored[MetadataIndex(name, chunk.offsets, index)] = chunk
        properties = TensorProperties(dtype=_dtypes.torch_dtype(entry.element))
        state[name] = TensorStorageMetadata(properties, torch.Size(entry.shape), chunks)
    for name, value in checkpoint.objects.items():
        state[name] = BytesStorageMetadata()
        stored[MetadataIndex(name)] = value
    return Metadata(
        state_dict_metadata=state,
        planner_data=checkpoint.paths if checkpoint.paths is not None else checkpoint.planner,
        storage_data=stored,
        storage_meta=StorageMeta(checkpoint_id=path, save_id=checkpoint.save),
    )
