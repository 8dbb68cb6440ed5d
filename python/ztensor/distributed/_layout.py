"""The files that a model is written to: which tensors go where, before a byte is copied."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

from ztensor import _dtypes, _items, _native
from ztensor._errors import InvalidArgumentError, UnsupportedError
from ztensor.distributed._checkpoint import TensorEntry


class Target(NamedTuple):
    """A tensor and the name that it gets."""

    name: str
    source: str
    entry: TensorEntry

    @property
    def nbytes(self) -> int:
        return math.prod(self.entry.shape) * _dtypes.torch_dtype(self.entry.element).itemsize

    @property
    def shape(self) -> tuple[int, ...]:
        """As files count."""
        return _items.stored_shape(self.entry.element, self.entry.shape)


class Layout(NamedTuple):
    """What a file has besides the tensors' bytes, and where those belong."""

    head: bytes
    offsets: dict[str, int]
    end: int
    tail: bytes


_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "B": 1}


def _shard_size(size: int | str) -> int:
    if isinstance(size, str):
        text = size.strip().upper()
        unit = next((unit for unit in _UNITS if text.endswith(unit)), None)
        try:
            size = int(float(text.removesuffix(unit or "")) * _UNITS[unit or "B"])
        except ValueError:
            raise InvalidArgumentError(f'{size!r} is not a size such as "5GB"') from None
    if size <= 0:
        raise InvalidArgumentError("a shard has at least one byte")
    return size


def shards(targets: list[Target], max_shard_size: int | str | None) -> list[list[Target]]:
    """The tensors of each file."""
    if max_shard_size is None:
        return [targets]
    most = _shard_size(max_shard_size)
    parts: list[list[Target]] = [[]]
    size = 0
    for target in targets:
        if parts[-1] and size + target.nbytes > most:
            parts.append([])
            size = 0
        parts[-1].append(target)
        size += target.nbytes
    return parts


def names(name: str, count: int) -> list[str]:
    """The file, or those of its shards as transformers names them."""
    if count == 1:
        return [name]
    stem, _, kind = name.rpartition(".")
    return [f"{stem}-{number:05}-of-{count:05}.{kind}" for number in range(1, count + 1)]


def index(files: list[str], parts: list[list[Target]]) -> bytes:
    """Says which tensor is in which shard."""
    document = {
        "metadata": {"total_size": sum(target.nbytes for part in parts for target in part)},
        "weight_map": {
            target.name: file for file, part in zip(files, parts, strict=True) for target in part
        },
    }
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"


def layout(kind: str, targets: list[Target], attributes: dict[str, str]) -> Layout:
    """Where the tensors of a file lie."""
    if kind == "zt":
        described = [(target.name, target.entry.element.name, target.shape) for target in targets]
        head, offsets, end, tail = _native.zt_plan(described, attributes)
        keys = [target.name for target in targets]
        return Layout(head, dict(zip(keys, offsets, strict=True)), end, tail)
    # Large elements first, so that all are aligned, as the format's own library does.
    ordered = sorted(targets, key=lambda target: (-target.entry.element.bits, target.name))
    header: dict[str, Any] = {"__metadata__": attributes}
    offsets_of, position = {}, 0
    for target in ordered:
        dtype = target.entry.element.safetensors
        if dtype is None:
            raise UnsupportedError(
                f"tensor {target.name!r}: .safetensors has no {target.entry.element.name}; use .zt"
            )
        until = position + target.nbytes
        place = [position, until]
        header[target.name] = {"dtype": dtype, "shape": target.shape, "data_offsets": place}
        offsets_of[target.name] = position
        position = until
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    # As in .zt files, data starts where it can be used in place, also by vector instructions.
    text += b" " * (-(len(text) + 8) % 64)
    head = len(text).to_bytes(8, "little") + text
    offsets_of = {name: len(head) + offset for name, offset in offsets_of.items()}
    return Layout(head, offsets_of, len(head) + position, b"")
