"""Changing ``.zt`` files that exist."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ztensor import _dtypes, _items, _native
from ztensor._errors import InvalidArgumentError
from ztensor._reader import Reader
from ztensor._tensor import component_array
from ztensor._types import Path


def remove_tensors(input: Path, output: Path, names: Iterable[str]) -> None:
    """Writes a ``.zt`` file without some of its tensors.

    Everything else is kept as it is: compression, checksums, attributes, ties.
    A name that the file does not have is an error, and then nothing is written.

    >>> import numpy as np, ztensor
    >>> with ztensor.Writer("model.zt") as w:
    ...     w.write_numpy("keep", np.zeros(3))
    ...     w.write_numpy("drop", np.zeros(3))
    >>> ztensor.remove_tensors("model.zt", "trimmed.zt", ["drop"])
    >>> ztensor.open("trimmed.zt").keys()
    ['keep']
    """
    if isinstance(names, str):
        raise InvalidArgumentError(f"names is a list of names: [{names!r}]")
    _native.remove_tensors(input, output, list(names))


def replace_tensor(path: Path, name: str, data: Any) -> None:
    """Replaces the elements of a dense, uncompressed tensor within its file.

    ``data`` has the same dtype and as many bytes; the tensor keeps its shape,
    and its checksum is computed anew. Arrays and readers that are open keep
    what they have.

    >>> import numpy as np, ztensor
    >>> with ztensor.Writer("model.zt") as w:
    ...     w.write_numpy("weights", np.ones((2, 3)), checksum="crc32c")
    >>> ztensor.replace_tensor("model.zt", "weights", np.zeros((2, 3)))
    >>> ztensor.open("model.zt").read_numpy("weights", copy=True).sum()
    np.float64(0.0)
    """
    array = _items.contiguous(component_array("data", data))
    found = (
        _dtypes.of_torch(data.dtype) if _dtypes.is_torch(data) else _dtypes.of_numpy(array.dtype)
    )
    with Reader(path) as reader:
        metadata = reader.metadata(name)
    # Bytes are bytes; anything else would change what the numbers mean.
    if found.name not in (metadata.element, "uint8"):
        raise InvalidArgumentError(
            f"tensor {name!r} holds {metadata.element}, the replacement {found.name}: "
            "convert it first"
        )
    _native.replace_tensor(path, name, array)
