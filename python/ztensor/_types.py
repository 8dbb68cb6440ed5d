"""Types that several modules name; nothing here is needed at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np

if TYPE_CHECKING:
    import torch

AnyArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Names: TypeAlias = list[str] | tuple[str, ...]
Path: TypeAlias = str | PathLike[str]
Device: TypeAlias = Union[str, int, "torch.device"]
StorageOptions: TypeAlias = Mapping[str, object] | None
"""How a store is reached: the names of its own settings, and those of this package."""
Progress: TypeAlias = bool | Callable[[int, int], object] | None
"""``True`` shows a bar; a function is called with the bytes done and the bytes in all."""
