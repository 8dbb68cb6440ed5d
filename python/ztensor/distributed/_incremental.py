"""Checkpoints as differences from earlier ones: making them, making them full again, removing them.

A chunk may be stored as a delta (``docs/spec/z4ai-delta.md``) from the same box of the tensor in
the base, however that one is cut.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import torch

from ztensor import _dtypes, _native
from ztensor._errors import InvalidArgumentError, NotFoundError
from ztensor._types import Compression, StorageOptions
from ztensor._writer import codec
from ztensor.distributed import _chain, _checkpoint, _rank_file
from ztensor.distributed._checkpoint import Base, Checkpoint, Chunk, Object, TensorEntry
from ztensor.distributed._store import Folder, Store, place_of
from ztensor.distributed._tensors import Box, CheckpointTensors, memory_of

_WORTH = 64
"""A delta is kept if it saves one byte in this many of the chunk."""


class Reference:
    """The base that a save is a difference from."""

    def __init__(
        self, place: Store, base: Store, every: int | None = None, ratio: float | None = None
    ) -> None:
        folder, own = place.parent()
        base_folder, name = base.parent()
        if folder != base_folder or not _checkpoint.is_folder_name(name):
            raise InvalidArgumentError(
                f"the base {base.root} is not a folder beside {place.root}: "
                "checkpoints that need each other are kept together"
            )
        if name == own:
            raise InvalidArgumentError(f"{place.root} cannot be its own base")
        self._tensors = CheckpointTensors(base)
        self._name = name
        checkpoint = self._tensors.checkpoint
        self._deltas = checkpoint.base.deltas if checkpoint.base else 0
        self._bytes = checkpoint.base.bytes if checkpoint.base else 0
        full = sum(nbytes(entry) for entry in checkpoint.tensors.values())
        self.is_due = _native.anchor_due(every, ratio, self._deltas, self._bytes, full)
        """Whether a full checkpoint is due."""

    def saves(self) -> set[str]:
        """The saves that restoring the base needs, its own included."""
        return self._tensors.saves()

    def describe(self, stored: int) -> Base:
        """The base of a save whose files have ``stored`` bytes."""
        save = self._tensors.checkpoint.save
        return Base(self._name, save, self._deltas + 1, self._bytes + stored)

    def delta(self, chunk: _rank_file.ChunkToWrite) -> _rank_file.DeltaToWrite | None:
        """A chunk as its difference from the base; ``None`` where that is not worth it."""
        entry = self._tensors.checkpoint.tensors.get(chunk.name)
        data = chunk.data
        element = _dtypes.of_torch(data.dtype)
        if entry is None or entry.shape != chunk.shape or entry.element != element:
            return None
        if data.layout is not torch.strided or data.is_meta or not data.numel():
            return None
        dense = data.detach().cpu().resolve_conj().resolve_neg().contiguous()
        reference = torch.empty(dense.shape, dtype=dense.dtype)
        self._tensors.read([Box(chunk.name, chunk.offsets, reference)])
        whole = element.bits == 8 * dense.element_size() and not dense.is_complex()
        hint = list(dense.shape) if whole else []
        settings = (element.codec, "default", None, 0, True, hint, None)
        frame = _native.z4ai_delta_compress(memory_of(dense), memory_of(reference), settings)
        if len(frame) + dense.nbytes // _WORTH >= dense.nbytes:
            return None
        sizes = tuple(dense.shape)
        return _rank_file.DeltaToWrite(chunk.name, chunk.shape, chunk.offsets, sizes, frame)

    def close(self) -> None:
        """Closes the files of the base."""
        self._tensors.close()


def nbytes(entry: TensorEntry) -> int:
    """Bytes of a tensor."""
    count = 1
    for size in entry.shape:
        count *= size
    return count * _dtypes.torch_dtype(entry.element).itemsize


def rebase(
    checkpoint: str | os.PathLike[str],
    base: str | os.PathLike[str] | None = None,
    *,
    compression: Compression = None,
    checksum: str = "crc32c",
    durable: bool = True,
    storage_options: StorageOptions = None,
) -> None:
    """Stores a distributed checkpoint as differences from another base, or in full, in its place.

    >>> import torch, torch.distributed.checkpoint as dcp
    >>> from ztensor.distributed import ZTensorWriter, rebase
    >>> state = {"weight": torch.ones(64, 64)}
    >>> _ = dcp.save(state, storage_writer=ZTensorWriter("run/1"), no_dist=True)
    >>> writer = ZTensorWriter("run/2", base="run/1")
    >>> _ = dcp.save(state, storage_writer=writer, no_dist=True)
    >>> rebase("run/2")

    Afterwards it needs no other checkpoint, or only ``base`` and what that one needs. It stays the
    same state: what is stored as differences from it stays readable, and chunks stay as they are
    cut. ``compression`` and ``checksum`` are those of :class:`ZTensorWriter`.
    """
    codec(compression)
    place = place_of(checkpoint, storage_options)
    source = CheckpointTensors(place)
    reference = None
    try:
        if base is not None:
            reference = Reference(place, place_of(base, storage_options))
            if source.checkpoint.save in reference.saves():
                raise InvalidArgumentError(f"{os.fspath(base)!r} is based on this checkpoint")
        options = _rank_file.Options(compression, checksum, durable)
        made = _rewritten(place, source, reference, options)
    finally:
        source.close()
        if reference is not None:
            reference.close()
    _checkpoint.commit(place, made, durable)


def _rewritten(
    place: Store,
    source: CheckpointTensors,
    reference: Reference | None,
    options: _rank_file.Options,
) -> Checkpoint:
    """New files for all that a checkpoint has."""
    old = source.checkpoint
    made = Checkpoint(paths=old.paths, planner=old.planner, save=old.save)
    chunks: dict[str, list[Chunk]] = {name: [] for name in old.tensors}
    for index, _ in enumerate(old.files):
        tensors = [
            (name, entry, chunk)
            for name, entry in old.tensors.items()
            for chunk in entry.chunks
            if chunk.file == index
        ]
        objects = [(name, value) for name, value in old.objects.items() if value.file == index]
        is_delta: list[bool] = []

        def items(
            tensors: list[tuple[str, TensorEntry, Chunk]] = tensors,
            objects: list[tuple[str, Object]] = objects,
            is_delta: list[bool] = is_delta,
        ) -> Iterator[_rank_file.ToWrite]:
            for name, entry, chunk in tensors:
                memory = torch.empty(chunk.sizes, dtype=_dtypes.torch_dtype(entry.element))
                source.read([Box(name, chunk.offsets, memory)])
                one = _rank_file.ChunkToWrite(name, entry.shape, chunk.offsets, memory, True)
                delta = reference.delta(one) if reference is not None else None
                is_delta.append(delta is not None)
                yield delta or one
            for name, value in objects:
                data = source.files.reader(value.file)._native.read_bytes(value.object)
                yield _rank_file.ObjectToWrite(name, value.kind, data)

        file, names = _rank_file.write(place, index, items(), options)
        made.files.append(file)
        for (name, _, chunk), stored, delta in zip(tensors, names, is_delta, strict=False):
            chunks[name].append(Chunk(index, stored, chunk.offsets, chunk.sizes, delta))
        for (name, value), stored in zip(objects, names[len(tensors) :], strict=True):
            made.objects[name] = Object(index, stored, value.kind)
    for name, entry in old.tensors.items():
        made.tensors[name] = TensorEntry(entry.element, entry.shape, tuple(chunks[name]))
    if reference is not None and any(chunk.delta for own in chunks.values() for chunk in own):
        made.base = reference.describe(made.stored_bytes)
    return made


def prune(folder: str | os.PathLike[str], keep: Sequence[str]) -> list[str]:
    """Removes the checkpoints of a folder that none of ``keep`` needs; returns their names.

    >>> import torch, torch.distributed.checkpoint as dcp
    >>> from ztensor.distributed import ZTensorWriter, prune
    >>> state = {"weight": torch.ones(64, 64)}
    >>> for step in ("1", "2", "3"):
    ...     writer = ZTensorWriter(f"steps/{step}", base="steps/1" if step == "3" else None)
    ...     _ = dcp.save(state, storage_writer=writer, no_dist=True)
    >>> prune("steps", keep=["3"])
    ['2']

    ``keep`` are names of checkpoints in the folder. Bases of these stay, however far back;
    everything that is no checkpoint stays, too.
    """
    root = Folder(folder)
    links: dict[str, _chain.Link] = {}
    for name in root.folder_names():
        inner = root.inner(name)
        if _checkpoint.exists(inner):
            links[name] = (inner, _checkpoint.load(inner))
    for name in keep:
        if name not in links:
            raise NotFoundError(f"{root.path(name)} holds no complete checkpoint")
        _chain.resolve(links[name][0])  # refuses before anything is removed
    names = list(links)
    saves = [links[name][1].save for name in keep]
    wanted = {links[name][0].root for name in keep}
    removed = []
    for index in _chain.needless(list(links.values()), saves):
        place, checkpoint = links[names[index]]
        if place.root in wanted:
            continue
        _checkpoint.remove(place, checkpoint)
        removed.append(names[index])
    return removed
