"""Whole tensors and parts of them, from a file of any format or a distributed checkpoint."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from ztensor import _dtypes
from ztensor._errors import InvalidArgumentError, NotFoundError, UnsupportedError
from ztensor._reader import Reader
from ztensor._types import StorageOptions
from ztensor.distributed import _checkpoint, _pieces
from ztensor.distributed._checkpoint import Files, TensorEntry
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
        self.checkpoint = _checkpoint.load(place)
        self.files = Files(place, self.checkpoint.files, threads)

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
