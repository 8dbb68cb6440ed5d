"""What a file says about a tensor."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ztensor import _dtypes


class TensorMetadata(NamedTuple):
    """What a file says about a tensor, without its data.

    >>> import numpy as np, ztensor
    >>> from ztensor.numpy import save_file
    >>> save_file({"w": np.zeros((1024, 768), dtype=np.float32)}, "model.zt", compression=True)
    >>> meta = ztensor.open("model.zt").metadata("w")
    >>> meta.shape, meta.dtype
    ([1024, 768], 'float32')
    >>> data = meta.components["data"]
    >>> data["length"], data["encoding"], data["stored_length"] < data["length"]
    (3145728, 'zstd', True)
    """

    name: str
    """The tensor's name."""
    shape: list[int]
    """Sizes of the dimensions."""
    dtype: str
    """What the elements are stored as, such as ``"float32"``."""
    type: str | None
    """The logical type, where it differs from the stored one."""
    format: str
    """The layout: ``"dense"``, ``"sparse_csr"``, …"""
    components: dict[str, dict[str, Any]]
    """For each component ``dtype``, ``type``, ``length`` (bytes when decoded),
    ``stored_length`` (bytes in the file), ``encoding``, ``offset`` and ``digest``."""
    attributes: dict[str, Any] | None
    """Whatever else the file says about this tensor."""

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that all components take when decoded."""
        return sum(component["length"] for component in self.components.values())

    @property
    def element(self) -> str:
        """The long name of what the elements are, logical type included."""
        element = _dtypes.described(self.dtype, self.type)
        return element.name if element is not None else str(self.type)
