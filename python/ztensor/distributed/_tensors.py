"""Whole tensors and parts of them, from a file of any format or a distributed checkpoint."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from ztensor import _dtypes, _native
from ztensor._errors import (
    InvalidArgumentError,
    MismatchError,
    NotFoundError,
    UnsupportedError,
)
from ztensor._reader import Reader
from ztensor._types import AnyArray, StorageOptions
from ztensor.distributed import _chain, _checkpoint, _pieces
from ztensor.distributed._checkpoint import Chunk, Files, TensorEntry
from ztensor.distributed._store import Store, place_of

_FILES = set("zt zstn safetensors pt pth bin ckpt gguf npz npy onnx h5 hdf5 keras json".split())


class Box(NamedTuple):
    """A box of a tensor, and the tensor that it fills."""

    name: str
    offsets: tuple[int, ...]
    target: torch.Tensor


class Tensors(Protocol):
    """Tensors by name, of which boxes can be read."""

    def names(self) -> list[str]:
        """All of them, in the order of their data."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The sizes of a tensor, as torch counts them."""

    def element(self, name: str) -> _dtypes.Element:
        """What its elements are."""

    def read(self, boxes: Sequence[Box]) -> None:
        """Fills the targets of all boxes."""

    def close(self) -> None:
        """Closes the files."""


class FileTensors:
    """The dense tensors of a file of any format, or of shards with an index."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def names(self) -> list[str]:
        def position(name: str) -> int:
            parts = self._reader.metadata(name).components.values()
            return min((part["offset"] or 0 for part in parts), default=0)

        return sorted(self._reader.keys(), key=position)

    def shape(self, name: str) -> tuple[int, ...]:
        shape = tuple(self._reader.metadata(name).shape)
        if self.element(name).bits % 8 and shape:
            return (*shape[:-1], shape[-1] // 2)
        return shape

    def element(self, name: str) -> _dtypes.Element:
        found = self._reader.metadata(name)
        if found.format != "dense":
            raise UnsupportedError(f"tensor {name!r} is {found.format}: only dense ones have parts")
        element = _dtypes.described(found.dtype, found.type)
        if element is None:
            raise UnsupportedError(f"tensor {name!r}: the type {found.type!r} is not known")
        return element

    def read(self, boxes: Sequence[Box]) -> None:
        _pieces.fill(
            self._reader,
            [
                _pieces.Piece(box.name, self.element(box.name), self.shape(box.name), *box[1:])
                for box in boxes
            ],
        )

    def close(self) -> None:
        self._reader.close()


class CheckpointTensors:
    """The tensors of a distributed checkpoint."""

    def __init__(self, place: Store, threads: int = 0) -> None:
        self._open(_chain.resolve(place), threads)

    @classmethod
    def of_chain(cls, links: Sequence[_chain.Link], threads: int = 0) -> CheckpointTensors:
        """A checkpoint whose chain is known."""
        self = cls.__new__(cls)
        self._open(links, threads)
        return self

    def _open(self, links: Sequence[_chain.Link], threads: int) -> None:
        place, self.checkpoint = links[0]
        self.files = Files(place, self.checkpoint.files, threads)
        self.base = self.of_chain(links[1:], threads) if len(links) > 1 else None
        self._restored: tuple[Chunk, torch.Tensor] | None = None

    def saves(self) -> set[str]:
        """The saves that reading needs, its own included."""
        return {self.checkpoint.save, *(self.base.saves() if self.base else ())}

    def restored(self, name: str, chunk: Chunk) -> torch.Tensor:
        """A chunk that is stored as its difference from the base. The last one is kept."""
        if self._restored is not None and self._restored[0] is chunk:
            return self._restored[1]
        self._restored = None
        entry, base = self.entry(name), self.base
        known = base.checkpoint.tensors.get(name) if base is not None else None
        if (
            base is None
            or known is None
            or (known.shape, known.element) != (entry.shape, entry.element)
        ):
            raise MismatchError(f"the base has no tensor {name!r} of that shape and type")
        frame = self.files.reader(chunk.file)._native.read_bytes(chunk.object)
        whole = torch.empty(chunk.sizes, dtype=_dtypes.torch_dtype(entry.element))
        base.read([Box(name, chunk.offsets, whole)])
        memory = memory_of(whole)
        _native.z4ai_delta_decompress_into(frame, memory, memory, 0)
        self._restored = chunk, whole
        return whole

    def names(self) -> list[str]:
        return list(self.checkpoint.tensors)

    def entry(self, name: str) -> TensorEntry:
        """The entry of a tensor: dtype, shape and chunks."""
        try:
            return self.checkpoint.tensors[name]
        except KeyError:
            near = difflib.get_close_matches(name, self.checkpoint.tensors, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise NotFoundError(f"no tensor of the checkpoint is named {name!r}{hint}") from None

    def shape(self, name: str) -> tuple[int, ...]:
        return self.entry(name).shape

    def element(self, name: str) -> _dtypes.Element:
        return self.entry(name).element

    def read(self, boxes: Sequence[Box]) -> None:
        by_file: dict[int, list[_pieces.Piece]] = {}
        for box in boxes:
            entry = self.entry(box.name)
            wanted = box.target.numel()
            for chunk in entry.chunks:
                part = _shared(box, chunk.offsets, chunk.sizes)
                if part is None:
                    continue
                offsets, target = part
                wanted -= target.numel()
                if chunk.delta:
                    target.copy_(within(self.restored(box.name, chunk), offsets, target.shape))
                    continue
                piece = _pieces.Piece(chunk.object, entry.element, chunk.sizes, offsets, target)
                by_file.setdefault(chunk.file, []).append(piece)
            if wanted:
                raise InvalidArgumentError(
                    f"{wanted} elements of {box.name!r} are not in the checkpoint"
                )
        for index, pieces in by_file.items():
            _pieces.fill(self.files.reader(index), pieces)

    def close(self) -> None:
        self.files.close()
        if self.base is not None:
            self.base.close()


def within(whole: torch.Tensor, offsets: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
    """A box of a tensor."""
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        whole = whole.narrow(dim, offset, size)
    return whole


def memory_of(tensor: torch.Tensor) -> AnyArray:
    """The memory of a contiguous tensor, as bytes."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _shared(
    box: Box, offsets: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[tuple[int, ...], torch.Tensor] | None:
    """What a box and a chunk have in common: where it is in the chunk, and in the target."""
    target = box.target
    inside = []
    for dim, (start, offset, size) in enumerate(zip(box.offsets, offsets, sizes, strict=True)):
        length = box.target.shape[dim]
        first, last = max(start, offset), min(start + length, offset + size)
        if first >= last:
            return None
        inside.append(first - offset)
        target = target.narrow(dim, first - start, last - first)
    return tuple(inside), target


def opened(path: str | os.PathLike[str], storage_options: StorageOptions = None) -> Tensors:
    """The tensors of a file of any format, of a folder of shards, or of a checkpoint."""
    # What is named like a file is one: in a store, asking would be a request.
    if os.fspath(path).rpartition(".")[2].lower() not in _FILES or os.path.isdir(path):
        place = place_of(path, storage_options)
        if _checkpoint.exists(place):
            return CheckpointTensors(place)
    return FileTensors(Reader(path, storage_options=storage_options))
