"""What a tensor, a model or a format is: content ids and capabilities."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

from ztensor import _items, _native
from ztensor._reader import Reader
from ztensor._types import Path


def content_id(of: Path | Reader | Mapping[str, Any] | Any) -> str:
    """The content id of a file, an open reader, a dictionary of tensors, or one tensor.

    The id of a dictionary is that of the model in a file with the same tensors, whatever its
    format.

    >>> import numpy as np, ztensor
    >>> from ztensor.numpy import save_file
    >>> tensors = {"a": np.arange(6.0), "b": np.ones(3, dtype=np.float16)}
    >>> save_file(tensors, "model.safetensors")
    >>> ztensor.content_id("model.safetensors") == ztensor.content_id(tensors)
    True
    >>> ztensor.open("model.safetensors").content_id("a") == ztensor.content_id(tensors["a"])
    True
    """
    if isinstance(of, (str, os.PathLike)):
        with Reader(of) as reader:
            return reader.content_id()
    if isinstance(of, Reader):
        return of.content_id()
    if isinstance(of, Mapping):
        return _native.model_content_id(list(content_ids(of).items()))
    return _native.tensor_content_id(_items.prepare("tensor", of).item)


def content_ids(tensors: Mapping[str, Any]) -> dict[str, str]:
    """The content ids of tensors in memory, by name."""
    return {
        name: _native.tensor_content_id(_items.prepare(name, tensor).item)
        for name, tensor in tensors.items()
    }


class Capabilities(NamedTuple):
    """What files of a format can hold, and what this library does with them."""

    writes: bool
    """New files can be written."""
    edits: bool
    """Tensors can be added, replaced and removed in a file that exists."""
    views: bool
    """Raw tensors can be used where they lie, without a copy."""
    sparse: bool
    """There can be sparse tensors."""
    quantized: bool
    """There can be tensors in blocks or groups with scales."""
    ties: bool
    """Several names can share one storage."""
    metadata: Literal["none", "text", "typed"]
    """The metadata of a whole file."""
    encodings: tuple[str, ...]
    """How tensors can be stored, besides raw."""
    sequential: tuple[str, ...]
    """Those of them that are decoded from their start: rows cost what lies before them, too."""
    checksums: tuple[str, ...]
    """The checksums that a file can have for its tensors."""


def capabilities(format: str) -> Capabilities:
    """What a format can do, by its name as :attr:`Reader.format` has it.

    >>> import ztensor
    >>> ztensor.capabilities("gguf").quantized, ztensor.capabilities("safetensors").sparse
    (True, False)
    """
    writes, edits, views, sparse, quantized, ties, metadata, encodings, sequential, checksums = (
        _native.capabilities(format)
    )
    return Capabilities(
        writes=writes,
        edits=edits,
        views=views,
        sparse=sparse,
        quantized=quantized,
        ties=ties,
        metadata=cast(Literal["none", "text", "typed"], metadata),
        encodings=tuple(encodings),
        sequential=tuple(sequential),
        checksums=tuple(checksums),
    )
