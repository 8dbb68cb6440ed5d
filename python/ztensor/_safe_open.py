"""``safe_open``: lazy access by name and by slice, with the interface of safetensors."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ztensor import _dtypes
from ztensor._errors import InvalidArgumentError, UnsupportedError
from ztensor._reader import Reader

if TYPE_CHECKING:
    from ztensor._types import Device, Path, StorageOptions

_FRAMEWORKS = {
    "pt": "torch",
    "torch": "torch",
    "pytorch": "torch",
    "np": "numpy",
    "numpy": "numpy",
}


class safe_open:
    """Opens a file of any format for access to single tensors and parts of them.

    >>> import numpy as np, ztensor
    >>> from ztensor.numpy import save_file
    >>> save_file({"w": np.arange(12).reshape(4, 3)}, "model.zt", metadata={"format": "np"})
    >>> with ztensor.safe_open("model.zt", framework="np") as f:
    ...     f.keys(), f.metadata()
    ...     f.get_slice("w")[1:3, -1]
    (['w'], {'format': 'np'})
    array([5, 8])

    ``max_bytes`` refuses tensors larger than that; ``max_total_bytes`` refuses calls that
    decode more than that in all, instead of more than 4 GiB and 1,000 times the file's size.
    """

    _pooled = False
    """Whether tensors may share memory that is given back when the last of them is gone."""

    _mapped = True
    """Whether the file may be mapped, for tensors that can be viewed in place."""

    def __init__(
        self,
        filename: Path,
        framework: str = "pt",
        device: Device = "cpu",
        *,
        max_bytes: int | None = None,
        max_total_bytes: int | None = None,
        storage_options: StorageOptions = None,
    ) -> None:
        try:
            self._framework = _FRAMEWORKS[framework]
        except (KeyError, TypeError):
            raise InvalidArgumentError(
                f'unknown framework {framework!r}: choose "pt" for torch or "np" for NumPy'
            ) from None
        if self._framework == "numpy" and device != "cpu":
            raise InvalidArgumentError(f"NumPy arrays live on the CPU, not on {device!r}")
        self._device = device
        self._max_bytes, self._max_total_bytes = max_bytes, max_total_bytes
        self._reader = self._open(filename, storage_options)

    def _open(self, filename: Path, storage_options: StorageOptions) -> Reader:
        return Reader(
            filename,
            map=self._mapped,
            max_bytes=self._max_bytes,
            max_total_bytes=self._max_total_bytes,
            storage_options=storage_options,
        )

    def keys(self) -> list[str]:
        """The names of all tensors."""
        return self._reader.keys()

    def offset_keys(self) -> list[str]:
        """The names of all tensors, in the order of their data in the file."""
        metadata = self._reader.metadata(self.keys())

        def position(index: int) -> tuple[int, int]:
            offsets = [part["offset"] or 0 for part in metadata[index].components.values()]
            return (min(offsets, default=0), index)

        return [metadata[index].name for index in sorted(range(len(metadata)), key=position)]

    def metadata(self) -> dict[str, Any] | None:
        """The file's metadata, or ``None`` if it has none."""
        return self._reader.attributes or None

    def get_tensor(self, name: str) -> Any:
        """A whole tensor: independent of the file for NumPy, mapped for torch."""
        if self._framework == "numpy":
            return self._reader.read_numpy(name, copy=True)
        return self._reader.read_torch(name, device=self._device)

    def get_slice(self, name: str) -> Slice:
        """A tensor to be indexed; only what the index needs is read."""
        return Slice(self._reader, name, self._framework, self._device, self._pooled)

    def __len__(self) -> int:
        return len(self._reader)

    def __contains__(self, name: object) -> bool:
        return name in self._reader

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._reader.close()

    def __repr__(self) -> str:
        return f"<ztensor.safe_open of {self._reader!r} for {self._framework}>"


class Slice:
    """A tensor of an open file that is read when it is indexed.

    Takes integers, slices and an ellipsis, as NumPy arrays do.
    """

    def __init__(
        self, reader: Reader, name: str, framework: str, device: Device, pooled: bool = False
    ) -> None:
        self._metadata = reader.metadata(name)
        self._reader, self._name = reader, name
        self._framework, self._device, self._pooled = framework, device, pooled
        if self._metadata.format != "dense":
            raise UnsupportedError(
                f"tensor {name!r} is {self._metadata.format}: only dense tensors have slices"
            )

    def get_shape(self) -> list[int]:
        """The sizes of the dimensions."""
        return list(self._metadata.shape)

    def get_dtype(self) -> str:
        """The element type, by the name that safetensors uses where it has one."""
        element = _dtypes.described(self._metadata.dtype, self._metadata.type)
        if element is None:
            return str(self._metadata.type)
        return element.safetensors or element.zt.upper()

    def __getitem__(self, index: Any) -> Any:
        parts = _expanded(index, self._metadata.shape)
        raw = self._metadata.components["data"]["encoding"] == "raw"
        if not parts or (raw and not self._reader._by_url):
            # Mapped pages that nobody touches are never read.
            whole: Any = (
                self._reader.read_numpy(self._name)
                if self._framework == "numpy"
                else self._reader.read_torch(self._name)
            )
            found = whole[tuple(parts)]
        else:
            if index is Ellipsis:  # what loaders of whole models ask for
                whole = self._read(0, self._metadata.shape[0])
                return whole if self._device == "cpu" else whole.to(self._device)
            first, last, rows = _rows(parts[0], self._metadata.shape[0])
            whole = self._read(first, last)
            found = whole[(rows, *parts[1:])]
            if found.shape == whole.shape and _strides(found) == _strides(whole):
                # All of it, in memory of its own already.
                return found if self._device == "cpu" else found.to(self._device)
        if self._framework == "numpy":
            return np.array(found)
        found = found.clone(memory_format=torch_contiguous())
        return found if self._device == "cpu" else found.to(self._device)

    def _read(self, first: int, last: int) -> Any:
        """Some rows of a tensor that must be decoded, or is not on this machine."""
        flat = self._reader._native.read_rows(self._name, first, last, self._pooled)
        shape = [last - first, *self._metadata.shape[1:]]
        element = _dtypes.described(self._metadata.dtype, self._metadata.type)
        if element is None:
            raise UnsupportedError(f"the logical type {self._metadata.type!r} is not known")
        if self._framework == "numpy":
            return flat.view(_dtypes.numpy_dtype(element)).reshape(shape)
        from ztensor._frameworks import array_to_torch

        return array_to_torch(flat, element, shape)

    def __repr__(self) -> str:
        return f"<slice of {self._name!r}: {self.get_dtype()} {self.get_shape()}>"


def _expanded(index: Any, shape: list[int]) -> list[int | slice]:
    """An index with one integer or slice per dimension, checked."""
    parts = list(index) if isinstance(index, tuple) else [index]
    ellipses = sum(part is Ellipsis for part in parts)
    if ellipses > 1:
        raise InvalidArgumentError("an index has at most one ellipsis")
    if ellipses == 0:
        parts.append(Ellipsis)
    at = next(position for position, part in enumerate(parts) if part is Ellipsis)
    missing = len(shape) - (len(parts) - 1)
    if missing < 0:
        raise IndexError(f"{len(parts) - 1} indices for a tensor of {len(shape)} dimensions")
    parts[at : at + 1] = [slice(None)] * missing
    for position, (part, size) in enumerate(zip(parts, shape, strict=True)):
        if isinstance(part, slice):
            continue
        if isinstance(part, bool) or not hasattr(part, "__index__"):
            raise InvalidArgumentError(
                f"slices take integers, slices and an ellipsis, not {type(part).__name__}"
            )
        number = part.__index__()
        if not -size <= number < size:
            raise IndexError(f"index {number} in dimension {position}, which has size {size}")
        parts[position] = number + size if number < 0 else number
    return parts


def _rows(rows: int | slice, size: int) -> tuple[int, int, int | slice]:
    """The first row that an index needs, the one after the last, and the index among them."""
    if not isinstance(rows, slice):
        return rows, rows + 1, 0
    wanted = range(size)[rows]
    if not wanted:
        return 0, 0, slice(0, 0)
    first, last = min(wanted[0], wanted[-1]), max(wanted[0], wanted[-1]) + 1
    stop = wanted.stop - first
    return first, last, slice(wanted.start - first, stop if stop >= 0 else None, wanted.step)


def _strides(array: Any) -> Any:
    """How far apart the elements of an array or a tensor are."""
    return array.strides if isinstance(array, np.ndarray) else array.stride()


def torch_contiguous() -> Any:
    """Torch's name of row-major order, without importing torch at the top."""
    import torch

    return torch.contiguous_format
