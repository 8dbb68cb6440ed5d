"""``safe_open``: lazy access by name and by slice, with the interface of safetensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np

from ztensor import _bridges, _dtypes, _files, _native
from ztensor._errors import (
    IndexOutOfRangeError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
)
from ztensor._prefetch import PrefetchLoader
from ztensor._reader import Reader
from ztensor._safetensors import TensorMeta, safetensors_name
from ztensor._tensor import Tensor
from ztensor._types import (
    AnyArray,
    Backend,
    Device,
    Framework,
    Path,
    PicklePolicy,
    StorageOptions,
)

if TYPE_CHECKING:
    import torch
else:
    from ztensor._types import torch


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

    ``backend="pread"`` reads the file instead of mapping it. ``verify`` compares the checksums of
    whole tensors where the file has them. ``max_bytes`` refuses tensors larger than that;
    ``max_total_bytes`` refuses calls that decode more than that in all, instead of more than 4 GiB
    and 1,000 times the file's size. ``pickle="strict"`` refuses pickles that are dangerous in tools
    that unpickle them; ``"warn"`` warns of them.
    """

    _pooled = False
    """Whether tensors may share memory that is given back when the last of them is gone."""

    _mapped = True
    """Whether the file may be mapped, for tensors that can be viewed in place."""

    def __init__(
        self,
        filename: Path,
        framework: Framework = "pt",
        device: Device = "cpu",
        *,
        backend: Backend = "mmap",
        verify: bool = True,
        max_bytes: int | None = None,
        max_total_bytes: int | None = None,
        storage_options: StorageOptions = None,
        pickle: PicklePolicy = "warn",
    ) -> None:
        self._prepare(framework, device, backend)
        self._options = {
            "verify": verify,
            "max_bytes": max_bytes,
            "max_total_bytes": max_total_bytes,
            "pickle": pickle,
        }
        self._reader = self._open(filename, storage_options)

    _options: dict[str, Any]
    """How the file is opened, besides where it is."""

    def _prepare(self, framework: str, device: Device, backend: str) -> None:
        self._framework = _bridges.canonical(framework)
        if self._framework == "numpy" and device != "cpu":
            raise InvalidArgumentError(f"NumPy arrays live on the CPU, not on {device!r}")
        self._device = device
        self._mapped = _files.mapped(backend) and self._mapped

    def _open(self, filename: Path, storage_options: StorageOptions) -> Reader:
        return Reader(filename, map=self._mapped, storage_options=storage_options, **self._options)

    def keys(self) -> list[str]:
        """The names of all tensors, sorted."""
        return sorted(self._reader.keys())

    def offset_keys(self) -> list[str]:
        """The names of all tensors, in the order of their data in the file."""
        names = self._reader.keys()
        metadata = self._reader.metadata(names)

        def position(index: int) -> tuple[int, int]:
            offsets = [part["offset"] or 0 for part in metadata[index].components.values()]
            return (min(offsets, default=0), index)

        return [names[index] for index in sorted(range(len(names)), key=position)]

    def metadata(self) -> dict[str, Any] | None:
        """The file's metadata, or ``None`` if it has none."""
        return self._reader.attributes or None

    def get_tensor(self, name: str) -> Any:
        """A whole tensor: independent of the file for NumPy, mapped for others."""
        self._check(name)
        if self._framework == "numpy":
            return self._reader.read_numpy(name, copy=True)
        if self._framework == "torch":
            return self._reader.read_torch(name, device=self._device)
        return self._bridged(self._reader.read(name))

    def get_tensors(self) -> dict[str, Any]:
        """All tensors by name."""
        names = self.offset_keys()
        if self._framework == "numpy":
            return self._reader.read_numpy(names, copy=True)
        if self._framework == "torch":
            return self._reader.read_torch(names, device=self._device)
        tensors = self._reader.read(names)
        return {name: self._bridged(tensor) for name, tensor in tensors.items()}

    def _bridged(self, tensor: Tensor) -> Any:
        device = None if self._device == "cpu" else self._device
        found = _bridges.made(self._framework, tensor, device)
        if isinstance(found, Tensor):
            raise UnsupportedError(
                f"{self._framework} cannot represent {tensor!r}: use ztensor.Reader"
            )
        return found

    def get_slice(self, name: str) -> Slice:
        """A tensor to be indexed; only what the index needs is read."""
        self._check(name)
        return Slice(self._reader, name, self._framework, self._device, self._pooled, self._mapped)

    def get_tensor_meta(self, name: str) -> TensorMeta:
        """What the file says about a tensor; nothing of its data is read."""
        self._check(name)
        described = self._reader.metadata(name)
        parts = described.components.values()
        places = [(part["offset"] or 0, part["stored_length"]) for part in parts]
        start = min((offset for offset, _ in places), default=0)
        stop = max((offset + length for offset, length in places), default=0)
        if self._reader.format == "safetensors":
            first = self._data_start()
            # Without bytes there is no place, and the file's own numbers were equal.
            start, stop = (max(0, start - first), max(0, stop - first))
        dtype = safetensors_name(described.dtype, described.type)
        return TensorMeta(dtype, list(described.shape), (start, stop))

    def _data_start(self) -> int:
        """Where the data section of a ``.safetensors`` file begins: it has no holes."""
        metadata = self._reader.metadata(self._reader.keys())
        offsets = (part["offset"] for one in metadata for part in one.components.values())
        return min((offset for offset in offsets if offset), default=0)

    def prefetch(
        self,
        plan: Mapping[str, slice | None] | None = None,
        *,
        device: Device | None = None,
        threads: int = 8,
    ) -> PrefetchLoader:
        """Starts to load tensors in the background, for any framework, format and device.

        ``plan`` maps names to ``None`` for a whole tensor or a slice of step 1 along its first
        dimension; without one all tensors are loaded. The loader goes on when this is closed.

        >>> import numpy as np, ztensor
        >>> from ztensor.numpy import save_file
        >>> save_file({"a": np.arange(4), "b": np.zeros(2)}, "model.zt")
        >>> with ztensor.safe_open("model.zt", framework="np") as f:
        ...     with f.prefetch({"a": slice(1, 3)}) as loader:
        ...         loader.take("a")
        array([1, 2])
        """
        device = self._device if device is None else device
        wanted = self._planned(plan)
        if "cuda" in str(device) and not torch.cuda.is_available():
            raise UnsupportedError(f"cannot load to {device!r}: torch finds no CUDA device")
        reader = self._reader._again()
        slices = {
            name: Slice(reader, name, self._framework, device, self._pooled, self._mapped)
            for name in wanted
        }

        def read(name: str) -> Any:
            rows = wanted[name]
            return slices[name][...] if rows is None else slices[name][rows]

        if operator_index(threads) < 1:
            raise InvalidArgumentError(f"threads is at least 1, not {threads}")
        return PrefetchLoader(list(wanted), read, min(threads, os.cpu_count() or 1))

    def _planned(self, plan: Mapping[str, slice | None] | None) -> dict[str, slice | None]:
        """A plan in the order of the file, checked."""
        if plan is None:
            plan = dict.fromkeys(self._reader.keys())
        elif not plan:
            raise InvalidArgumentError("the prefetch plan selects no tensors")
        checked: dict[str, slice | None] = {}
        for name, rows in plan.items():
            self._check(name)
            described = self._reader.metadata(name)
            element = _dtypes.described(described.dtype, described.type)
            if self._framework == "torch" and (element is None or element.torch is None):
                found = safetensors_name(described.dtype, described.type)
                raise UnsupportedError(f"tensor {name!r}: torch has no {found} elements")
            if rows is not None:
                rows = _planned_rows(name, rows, described.shape)
            checked[name] = rows
        return {name: checked[name] for name in self.offset_keys() if name in checked}

    def _check(self, name: str) -> None:
        """Refuses a name that is not there as safetensors does, with what is there instead."""
        if name in self._reader:
            return
        try:
            self._reader.metadata(name)
        except NotFoundError as error:
            error.args = (f"File does not contain tensor {name}: {error}",)
            raise

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


class safe_open_handle(safe_open):
    """:class:`safe_open` of a file object: by its path where it has one, else by its bytes."""

    def __init__(
        self,
        file: BinaryIO,
        framework: Framework = "pt",
        device: Device = "cpu",
        *,
        backend: Backend = "mmap",
        verify: bool = True,
        pickle: PicklePolicy = "warn",
    ) -> None:
        self._prepare(framework, device, backend)
        self._options = {"verify": verify, "pickle": pickle}
        path = _path_of(file)
        if path is not None:
            self._reader = self._open(path, None)
            return
        binary = getattr(file, "buffer", file)
        binary.seek(0)
        native = _native.Reader.from_bytes(binary.read(), **self._options)
        self._reader = Reader._of(native, str(getattr(file, "name", "<file object>")))


def _path_of(file: Any) -> str | None:
    """The path of a file object, if that still leads to the same file."""
    path = getattr(file, "name", None)
    try:
        if isinstance(path, str) and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
            return path
    except (AttributeError, OSError, ValueError):
        pass
    return None


def operator_index(value: Any) -> int:
    """An integer, of whatever class."""
    import operator

    return operator.index(value)


def _planned_rows(name: str, rows: object, shape: list[int]) -> slice:
    """Rows of a plan: explicit, so none of them may lie outside."""
    if not isinstance(rows, slice):
        raise InvalidArgumentError(f"tensor {name!r}: a plan has None or a slice, not {rows!r}")
    if not shape:
        raise InvalidArgumentError(f"tensor {name!r} is 0-d, and has no rows")
    if rows.step == 0:
        raise InvalidArgumentError(f"tensor {name!r}: invalid prefetch plan slice {rows!r}")
    if rows.step not in (None, 1):
        raise InvalidArgumentError(f"tensor {name!r}: a plan's slices have step 1, not {rows.step}")
    size = shape[0]
    ends = (0 if rows.start is None else rows.start, size if rows.stop is None else rows.stop)
    if not all(-size <= end <= size for end in ends):
        raise InvalidArgumentError(f"tensor {name!r}: rows {rows!r} are out of range of {size}")
    first, last, _ = rows.indices(size)
    return slice(first, max(first, last))


class Slice:
    """A tensor of an open file that is read when it is indexed.

    For torch an index means what it means for a torch tensor. For others it means what NumPy
    makes of it, except that ``True`` and ``False`` count as 1 and 0, as in safetensors. Only the
    rows between the first and the last that the index needs are read.
    """

    def __init__(
        self,
        reader: Reader,
        name: str,
        framework: str,
        device: Device,
        pooled: bool = False,
        mapped: bool = True,
    ) -> None:
        self._metadata = reader.metadata(name)
        self._reader, self._name = reader, name
        self._framework, self._device, self._pooled = framework, device, pooled
        if self._metadata.format != "dense":
            raise UnsupportedError(
                f"tensor {name!r} is {self._metadata.format}: only dense tensors have slices"
            )
        raw = self._metadata.components["data"]["encoding"] == "raw"
        # Mapped pages that the index does not touch are never read.
        self._views = raw and mapped and not reader._by_url

    def get_shape(self) -> list[int]:
        """The sizes of the dimensions."""
        return list(self._metadata.shape)

    def get_dtype(self) -> str:
        """The element type, by the name that safetensors uses where it has one."""
        return safetensors_name(self._metadata.dtype, self._metadata.type)

    def __getitem__(self, index: Any) -> Any:
        found = self._elements(index)
        if self._framework in ("numpy", "torch"):
            return found
        tensor = Tensor({"data": found}, shape=self._shape_of(found), dtype=self._element().name)
        device = None if self._device == "cpu" else self._device
        return _bridges.made(self._framework, tensor, device)

    def _row_index(self, rows: AnyArray) -> Any:
        """Numbers of rows as an index of the framework."""
        if self._framework != "torch":
            return rows
        import torch

        return torch.from_numpy(rows)

    def _shape_of(self, found: Any) -> list[int]:
        return [int(size) for size in found.shape]

    def _elements(self, index: Any) -> Any:
        """What an index picks, as a tensor of torch or an array of NumPy in memory of its own."""
        shape = self._metadata.shape
        parts = _parts(index, self._framework == "torch")
        _check_bounds(parts, shape, self._framework == "torch")
        if self._views or not shape:
            whole: Any = (
                self._reader._view_torch(self._name)
                if self._framework == "torch"
                else self._array(self._reader._view(self._name))
            )
            return self._owned(whole[_index(parts)], fresh=False)
        if index is Ellipsis:  # what loaders of whole models ask for
            return self._moved(self._read(0, shape[0]))
        at, first, last, rows = _rows(parts, shape[0], self._row_index)
        whole = self._read(first, last)
        if at is not None:
            parts[at] = rows
        found = whole[_index(parts)]
        if found.shape == whole.shape and _strides(found) == _strides(whole):
            return self._moved(found)  # all of it, in memory of its own already
        return self._owned(found, fresh=True)

    def _owned(self, found: Any, fresh: bool) -> Any:
        """A part of a tensor as one of its own, in row-major order."""
        if self._framework != "torch":
            return np.array(found, order="C")
        import torch

        return self._moved(found.clone(memory_format=torch.contiguous_format))

    def _moved(self, found: Any) -> Any:
        if self._framework != "torch" or self._device == "cpu":
            return found
        return found.to(self._device)

    def _element(self) -> _dtypes.Element:
        element = _dtypes.described(self._metadata.dtype, self._metadata.type)
        if element is None:
            raise UnsupportedError(f"the logical type {self._metadata.type!r} is not known")
        return element

    def _array(self, tensor: Tensor) -> Any:
        """A view of a tensor as an array; types that NumPy lacks as their bits for others."""
        if self._framework == "numpy":
            return tensor.numpy()
        element = self._element()
        dtype = np.dtype(element.numpy) if element.is_native else _dtypes.raw_numpy_dtype(element)
        return tensor.components["data"].view(dtype).reshape(tensor.shape)

    def _read(self, first: int, last: int) -> Any:
        """Some rows of a tensor that must be decoded, or is not on this machine."""
        flat = self._reader._native.read_rows(self._name, first, last, self._pooled)
        shape = [last - first, *self._metadata.shape[1:]]
        element = self._element()
        if self._framework == "torch":
            from ztensor._frameworks import array_to_torch

            return array_to_torch(flat, element, shape)
        if self._framework == "numpy" or element.is_native:
            return flat.view(_dtypes.numpy_dtype(element)).reshape(shape)
        return flat.view(_dtypes.raw_numpy_dtype(element)).reshape(shape)

    def __repr__(self) -> str:
        return f"<slice of {self._name!r}: {self.get_dtype()} {self.get_shape()}>"


def _parts(index: Any, for_torch: bool) -> list[Any]:
    """An index as the list of its parts, in terms of the framework that applies it."""
    parts = list(index) if isinstance(index, tuple) else [index]
    return [_torch_part(part) if for_torch else _numpy_part(part) for part in parts]


def _torch_part(part: Any) -> Any:
    """Torch takes lists, booleans and tensors itself; of NumPy it knows arrays."""
    return int(part) if isinstance(part, np.integer) else part


def _numpy_part(part: Any) -> Any:
    if isinstance(part, bool | np.bool_):
        return int(part)
    if part is None or part is Ellipsis or isinstance(part, int | slice):
        return part
    if isinstance(part, np.ndarray):
        return part if part.ndim else part[()]
    if hasattr(part, "__index__"):
        try:
            return part.__index__()  # safetensors takes an index tensor of one element so, too
        except TypeError:
            pass
    if isinstance(part, list | tuple | range) or hasattr(part, "__array__"):
        array = np.asarray(part)
        return array.astype(np.int64) if not array.size else array
    raise InvalidArgumentError(
        f"an index has integers, slices, an ellipsis, None, lists and arrays, not {part!r}"
    )


def _is_integer(part: Any) -> bool:
    return isinstance(part, int | np.integer) and not isinstance(part, bool)


def _check_bounds(parts: list[Any], shape: list[int], for_torch: bool) -> None:
    """Refuses integers outside their dimension where it is clear which that is."""
    simple = all(part is Ellipsis or isinstance(part, slice) or _is_integer(part) for part in parts)
    if not simple:
        return  # the framework itself says what is wrong
    ellipses = sum(part is Ellipsis for part in parts)
    if ellipses > 1 and for_torch:
        return  # the second one is nothing to torch
    if ellipses > 1:
        raise InvalidArgumentError("an index has at most one ellipsis")
    count = len(parts) - ellipses
    if count > len(shape):
        raise IndexOutOfRangeError(f"{count} indices for a tensor of {len(shape)} dimensions")
    dimension = 0
    for part in parts:
        if part is Ellipsis:
            dimension += len(shape) - count
            continue
        size = shape[dimension]
        if _is_integer(part) and not -size <= part < size:
            raise IndexOutOfRangeError(
                f"Invalid index {part} for dimension {dimension} of size {size}"
            )
        dimension += 1


def _index(parts: list[Any]) -> Any:
    return tuple(parts)


def _row_numbers(part: Any, size: int) -> AnyArray | None:
    """The rows that a list, an array or a tensor of integers picks, if all of them exist."""
    if not isinstance(part, list | np.ndarray):
        if str(getattr(part, "dtype", "")) not in ("torch.int64", "torch.int32"):
            return None  # bytes are a mask to torch
        part = part.detach().cpu().numpy()
    try:
        numbers = np.asarray(part)
    except ValueError:
        return None  # of several lengths
    if numbers.dtype.kind != "i" or not numbers.size:
        return None
    numbers = np.where(numbers < 0, numbers + size, numbers).astype(np.int64)
    return numbers if numbers.min() >= 0 and numbers.max() < size else None


def _rows(
    parts: list[Any], size: int, index_of: Callable[[AnyArray], Any]
) -> tuple[int | None, int, int, Any]:
    """Which part of an index picks rows, the first row it needs, the one behind the last, and that
    part in terms of the rows between."""
    for at, part in enumerate(parts):
        if part is None or isinstance(part, bool):
            continue  # a new dimension
        if _is_integer(part):
            row = part + size if part < 0 else part
            return at, row, row + 1, 0
        if isinstance(part, slice):
            wanted = range(size)[part]
            if not wanted:
                return at, 0, 0, slice(0, 0)
            first, last = min(wanted[0], wanted[-1]), max(wanted[0], wanted[-1]) + 1
            stop = wanted.stop - first
            rows = slice(wanted.start - first, stop if stop >= 0 else None, wanted.step)
            return at, first, last, rows
        numbers = _row_numbers(part, size)
        if numbers is not None:
            first, last = int(numbers.min()), int(numbers.max()) + 1
            return at, first, last, index_of(numbers - first)
        break
    return None, 0, size, None


def _strides(array: Any) -> Any:
    """How far apart the elements of an array or a tensor are."""
    return array.strides if isinstance(array, np.ndarray) else array.stride()
