"""``ztensor.Reader``: any tensor file, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self, overload

from ztensor import _dtypes, _native
from ztensor._closing import Closing
from ztensor._errors import InvalidArgumentError, MissingArgumentError, UnsupportedError
from ztensor._metadata import TensorMetadata
from ztensor._progress import reporting
from ztensor._tensor import Tensor
from ztensor._types import AnyArray, Device, Names, Path, PicklePolicy, Progress, StorageOptions
from ztensor.store import settings

if TYPE_CHECKING:
    import torch
else:
    from ztensor._types import torch


class Verification(NamedTuple):
    """What :meth:`Reader.verify` found in a file without mismatches."""

    checked: int
    """Tensors whose checksums agree."""
    unchecked: int
    """Tensors that have none."""


class Location(NamedTuple):
    """A range of a file that holds a tensor's component, or a part of one."""

    component: str
    """``"data"`` for dense tensors."""
    file: str
    """The path, or the URL."""
    offset: int
    """First byte in the file."""
    length: int
    """Bytes in the file."""
    encoding: str
    """``"raw"`` if the elements lie there as they are in memory; otherwise what decodes them."""
    alignment: int
    """The largest power of two that divides the offset, at most 2 MiB."""


class QuantizedWeight(NamedTuple):
    """A weight that is kept as several tensors by a quantization scheme."""

    scheme: str
    """``"GPTQ"``, ``"AWQ"``, ``"packed integers"``, ``"FP8"``, ``"INT8"``, ``"MXFP4"``,
    ``"MXFP6 E2M3"``, ``"MXFP6 E3M2"``, ``"MXFP8"``, ``"NVFP4"``, ``"bitsandbytes"`` or
    ``"optimizer state"``."""
    shape: tuple[int, ...]
    bits: int
    group: int
    """Elements that share a scale along the inputs; 0 where that is all of them."""
    tensors: dict[str, str]
    """The tensors that it is made of, by role."""
    stored_bytes: int

    @property
    def bits_per_weight(self) -> float:
        """Bits per weight in the file, scales and zero points included."""
        elements = 1
        for size in self.shape:
            elements *= size
        return self.stored_bytes * 8 / elements


class Reader(Closing):
    """An open tensor file of any format, used like a dictionary.

    >>> import numpy as np, ztensor
    >>> from ztensor.numpy import save_file
    >>> save_file({"weight": np.ones((2, 3), dtype=np.float32)}, "model.zt")
    >>> with ztensor.Reader("model.zt") as reader:
    ...     reader.keys(), reader.format
    ...     reader["weight"]
    (['weight'], 'zt')
    ztensor.Tensor(shape=[2, 3], dtype='float32')

    Arrays read with ``copy=False`` are writable views of a private mapping:
    writing to them changes neither the file nor what others read, and they
    live on when the reader is closed. Tensors that cannot be viewed (because
    they are compressed, for example) are read instead.

    ``map=False`` never maps the file, for files that others may truncate.
    ``verify=False`` skips the checksums, which are otherwise compared where a file has them: when
    a tensor is copied or decoded, and in ``.zt`` files, which have them on request only, also
    when it is first viewed.
    ``threads`` limits the threads of one read. ``max_bytes`` refuses tensors larger
    than that; ``max_total_bytes`` refuses calls that decode more than that in all,
    instead of more than 4 GiB and 1,000 times the size of the file.

    ``pickle="strict"`` refuses pickles that name functions which run code, start
    programs or open files in tools that unpickle them. Here nothing is called in
    either case; ``"warn"`` gives an :class:`UnsafePickleWarning`.

    The path may be a URL: of an object store (``s3://``, ``gs://``, ``az://``) or
    a web server. Only what is asked for is then read, by ranges, into arrays of
    its own. ``storage_options`` say how to reach the store, where the
    environment does not.
    """

    def __init__(
        self,
        path: Path,
        *,
        map: bool = True,
        verify: bool = True,
        threads: int = 0,
        max_bytes: int | None = None,
        max_total_bytes: int | None = None,
        storage_options: StorageOptions = None,
        pickle: PicklePolicy = "warn",
    ) -> None:
        self._path = path
        self._options = {
            "map": map,
            "verify": verify,
            "threads": threads,
            "max_bytes": max_bytes,
            "max_total_bytes": max_total_bytes,
            "storage_options": storage_options,
            "pickle": pickle,
        }
        self._open: _native.Reader | None = _native.Reader.open(
            path,
            map=map,
            verify=verify,
            threads=threads,
            max_component=max_bytes,
            max_total=max_total_bytes,
            remote=settings(storage_options),
            pickle=pickle,
        )

    @classmethod
    def _of(cls, native: _native.Reader, path: str, **options: Any) -> Self:
        """A reader of a file that is open already."""
        reader = cls.__new__(cls)
        reader._path, reader._options, reader._open = path, options, native
        return reader

    def _again(self) -> Reader:
        """Another reader of the same open file, which stays open when this one is closed."""
        return Reader._of(self._native, str(self._path), **self._options)

    def _view(self, name: str) -> Tensor:
        """A tensor of which perhaps a part is used: without comparing checksums of all of it."""
        tensor: Tensor = self._native.fetch([name], None, False, Tensor._trusted, verify=False)[
            name
        ]
        return tensor

    def _view_torch(self, name: str) -> torch.Tensor:
        """The same for torch."""
        tensor: torch.Tensor = self._native.fetch(
            [name], "torch", False, _only_torch, verify=False
        )[name]
        return tensor

    @property
    def _by_url(self) -> bool:
        """Whether the file is perhaps not on this machine."""
        return "://" in str(self._path)

    @property
    def _native(self) -> _native.Reader:
        if self._open is None:
            raise InvalidArgumentError(f"the reader of {str(self._path)!r} is closed")
        return self._open

    @property
    def format(self) -> str:
        """The format that was found: ``"zt"``, ``"safetensors"``, ``"pickle"``,
        ``"gguf"``, ``"npz"``, ``"onnx"``, ``"hdf5"``, ``"zstn"`` or ``"zt2"``."""
        return self._native.format

    @property
    def unsafe_globals(self) -> list[str]:
        """Functions that the file's pickles name and that run code, start programs or open
        files in tools that unpickle it. Empty for every other format."""
        return self._native.unsafe_globals

    @property
    def attributes(self) -> dict[str, Any]:
        """What the file says about itself: the metadata that it was saved with."""
        return self._native.attributes

    def keys(self) -> list[str]:
        """The names of all tensors, in the order of the file."""
        return self._native.keys()

    def __len__(self) -> int:
        return len(self._native)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._native

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __getitem__(self, name: str) -> Tensor:
        return self.read(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The tensor of that name, or ``default`` if there is none."""
        return self.read(name) if name in self else default

    def values(self) -> Iterator[Tensor]:
        """All tensors, one at a time."""
        return (self.read(name) for name in self.keys())

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """All names and tensors, one at a time."""
        return ((name, self.read(name)) for name in self.keys())

    @overload
    def metadata(self, name: str) -> TensorMetadata: ...
    @overload
    def metadata(self, name: Names) -> list[TensorMetadata]: ...
    def metadata(self, name: str | Names) -> TensorMetadata | list[TensorMetadata]:
        """What the file says about a tensor, or a list of that for a list of names."""
        if isinstance(name, str):
            return TensorMetadata(name=name, **self._native.metadata(name))
        return [TensorMetadata(name=one, **self._native.metadata(one)) for one in _names(name)]

    @overload
    def read(self, name: str, *, copy: bool = False) -> Tensor: ...
    @overload
    def read(self, name: Names, *, copy: bool = False) -> dict[str, Tensor]: ...
    def read(self, name: str | Names, *, copy: bool = False) -> Any:
        """Tensors of any layout; a list of names gives a dictionary."""
        return self._fetch(name, None, copy, Tensor._trusted)

    @overload
    def read_numpy(self, name: str, *, copy: bool = False) -> AnyArray: ...
    @overload
    def read_numpy(self, name: Names, *, copy: bool = False) -> dict[str, AnyArray]: ...
    def read_numpy(self, name: str | Names, *, copy: bool = False) -> Any:
        """Dense tensors as NumPy arrays; a list of names gives a dictionary."""
        return self._fetch(name, "numpy", copy, _only_dense)

    def read_tensors(self, names: Names, *, copy: bool = False) -> dict[str, AnyArray]:
        """Another name of :meth:`read_numpy` with a list of names."""
        return self.read_numpy(names, copy=copy)

    @overload
    def read_torch(
        self, name: str, *, copy: bool = False, device: Device = "cpu"
    ) -> torch.Tensor: ...
    @overload
    def read_torch(
        self, name: Names, *, copy: bool = False, device: Device = "cpu"
    ) -> dict[str, torch.Tensor]: ...
    def read_torch(self, name: str | Names, *, copy: bool = False, device: Device = "cpu") -> Any:
        """Dense and sparse tensors as torch's; a list of names gives a dictionary."""
        found = self._fetch(name, "torch", copy, _only_torch)
        return found if device == "cpu" else moved(found, device)

    def _fetch(self, name: str | Names, framework: str | None, copy: bool, other: Any) -> Any:
        if isinstance(name, str):
            return self._native.fetch([name], framework, copy, other)[name]
        return self._native.fetch(_names(name), framework, copy, other)

    def read_into(
        self,
        name: str | Mapping[str, AnyArray | torch.Tensor],
        dst: AnyArray | torch.Tensor | None = None,
        *,
        progress: Progress = None,
    ) -> None:
        """Fills arrays or tensors that already exist, without another in between.

        Takes a name and a destination, or a dictionary of them. Destinations
        may be strided and on any device. Shapes and dtypes must match; all are
        checked before the first byte is written.

        >>> import numpy as np, ztensor
        >>> from ztensor.numpy import save_file
        >>> save_file({"a": np.arange(6.0).reshape(2, 3)}, "model.zt")
        >>> arena = np.zeros((2, 6))
        >>> ztensor.open("model.zt").read_into("a", arena[:, ::2])
        >>> arena[1]
        array([3., 0., 4., 0., 5., 0.])
        """
        from ztensor._into import read_into

        if isinstance(name, str):
            if dst is None:
                raise MissingArgumentError("read_into(name, dst) needs a destination")
            wanted: Mapping[str, AnyArray | torch.Tensor] = {name: dst}
        elif dst is not None:
            raise InvalidArgumentError("read_into takes a name and a destination, or a dictionary")
        else:
            wanted = name
        read_into(self, wanted, progress)

    @overload
    def verify(self, name: str) -> bool: ...
    @overload
    def verify(self, name: None = None, *, progress: Progress = None) -> Verification: ...
    def verify(self, name: str | None = None, *, progress: Progress = None) -> Any:
        """Compares stored bytes with their checksums and raises where they differ.

        For one tensor, returns whether it has any; for the whole file, how many
        have and have not.
        """
        if name is not None:
            return self._native.verify(name)
        with reporting(progress, self._native.byte_len(None), "verifying") as tell:
            return Verification(*self._native.verify_all(tell))

    def quantized(self) -> dict[str, QuantizedWeight]:
        """Weights that are kept as several tensors by a quantization scheme, by name.

        GPTQ, AWQ, compressed-tensors (packed integers, MXFP4, MXFP6, MXFP8, NVFP4), fp8 and int8
        with scales, MXFP4 of gpt-oss, NVFP4 of ModelOpt, tensors that torchao takes apart,
        bitsandbytes, and the state of 8-bit and 4-bit optimizers (bitsandbytes, torchao) are
        recognised, by the names, types and shapes of their tensors.

        >>> import numpy as np, ztensor
        >>> from ztensor.numpy import save_file
        >>> blocks, scales = np.full((2, 1, 16), 0x21, np.uint8), np.full((2, 1), 127, np.uint8)
        >>> save_file({"w_blocks": blocks, "w_scales": scales}, "model.safetensors")
        >>> reader = ztensor.open("model.safetensors")
        >>> weight = reader.quantized()["w"]
        >>> weight.scheme, weight.shape, weight.bits, weight.group, weight.bits_per_weight
        ('MXFP4', (2, 32), 4, 32, 4.25)
        >>> reader.dequantize("w")[0, :4]
        array([0.5, 1. , 0.5, 1. ], dtype=float32)
        """
        found = {}
        for name, scheme, shape, bits, group, tensors, stored in self._native.schemes():
            weight = QuantizedWeight(scheme, tuple(shape), bits, group, dict(tensors), stored)
            found[name] = weight
        return found

    def dequantize(self, name: str) -> AnyArray:
        """The numbers of a weight of :meth:`quantized`, as ``float32``.

        They are those of the library whose scheme it is, bit for bit: products are rounded to the
        type of the scales, those of bitsandbytes to the type that the weight had. Weights of GPTQ
        and AWQ are inputs by outputs. Quantized tensors that a format has by itself, such as
        GGUF's, are ``reader.read(name).dequantize()``.
        """
        numbers = self._native.dequantize(name)
        return numbers.reshape(self.quantized()[name].shape)

    def locate(self, name: str) -> list[Location]:
        """Where a tensor's bytes lie: a range of a file for each component, or several where
        chunks or shards hold one together. What a format keeps in its header has none.

        >>> import numpy as np, ztensor
        >>> from ztensor.numpy import save_file
        >>> save_file({"a": np.arange(6.0)}, "model.zt")
        >>> place = ztensor.open("model.zt").locate("a")[0]
        >>> place.encoding, place.length, place.offset % 64
        ('raw', 48, 0)
        >>> np.fromfile("model.zt", "<f8", count=6, offset=place.offset)
        array([0., 1., 2., 3., 4., 5.])
        """
        return [Location(*place) for place in self._native.locate(name)]

    def prefetch(self, names: str | Names | None = None) -> int:
        """Asks the system to read tensors (all, without names) into the page cache, without
        waiting for it. Returns the bytes of files that were named; remote files are left out."""
        return self._native.prefetch(_optional(names))

    def evict(self, names: str | Names | None = None) -> int:
        """Asks the system to drop tensors (all, without names) from the page cache: those that
        will not be used again soon make room for others.

        Nothing is lost. Arrays that are views keep their values, and what is used again is read
        again. Pages that other tensors or programs use stay. Returns the bytes of files that were
        named."""
        return self._native.evict(_optional(names))

    def content_id(
        self, name: str | None = None, *, stored: bool = False, progress: Progress = None
    ) -> str:
        """The content id of the model, or of one tensor.

        A BLAKE3 hash of names, element types, shapes and elements, as text. It does not depend on
        the format, the order of the tensors, shards or compression; metadata is not part of it.

        >>> import numpy as np, ztensor
        >>> from ztensor.numpy import save_file
        >>> tensors = {"a": np.arange(6.0), "b": np.ones((2, 3), dtype=np.float32)}
        >>> save_file(tensors, "model.zt", compression="balanced")
        >>> save_file(tensors, "model.npz")
        >>> ztensor.open("model.zt").content_id() == ztensor.open("model.npz").content_id()
        True

        Every byte is read. With ``stored`` the BLAKE3 checksums that a ``.zt`` file stores for raw
        tensors are trusted instead. Stored checksums of other kinds are not compared:
        :meth:`verify` does that.
        """
        if name is not None:
            return self._native.tensor_content_id(name)
        return self._content_ids(stored, progress)[0]

    def content_ids(self, *, stored: bool = False, progress: Progress = None) -> dict[str, str]:
        """The content ids of all tensors, by name. Tensors with equal ids have the same dtype,
        shape and elements."""
        return self._content_ids(stored, progress)[1]

    def _content_ids(self, stored: bool, progress: Progress) -> tuple[str, dict[str, str]]:
        with reporting(progress, self._native.byte_len(None), "hashing") as tell:
            return self._native.content_ids(stored, tell)

    def close(self) -> None:
        """Closes the file. Arrays that were read from it stay valid."""
        self._open = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process opens the file anew.
        return _reopened, (self._path, self._options)

    def __repr__(self) -> str:
        path = repr(str(self._path))
        if self._open is None:
            return f"ztensor.Reader({path}) (closed)"
        return f"<ztensor.Reader {path}: {self.format}, {len(self)} tensors>"


def open(
    path: Path,
    *,
    max_bytes: int | None = None,
    max_total_bytes: int | None = None,
    storage_options: StorageOptions = None,
    pickle: PicklePolicy = "warn",
) -> Reader:
    """Opens a tensor file of any format: the same as ``Reader(path)``."""
    return Reader(
        path,
        max_bytes=max_bytes,
        max_total_bytes=max_total_bytes,
        storage_options=storage_options,
        pickle=pickle,
    )


def _reopened(path: Path, options: dict[str, Any]) -> Reader:
    return Reader(path, **options)


def _only_dense(*parts: Any) -> AnyArray:
    tensor = Tensor._trusted(*parts)
    if tensor.format == "dense":
        return tensor.numpy()  # raises, and says why there is no such array
    raise UnsupportedError(
        f"the tensor is {tensor.format}, not dense: use read(), which returns its components"
    )


def _only_torch(*parts: Any) -> torch.Tensor:
    return Tensor._trusted(*parts).torch()


def moved(tensors: Any, device: Device) -> Any:
    """Tensors on another device; names of one tensor stay names of one tensor."""
    if not isinstance(tensors, dict):
        return tensors.to(device)
    done: dict[int, Any] = {}
    for tensor in tensors.values():
        if _dtypes.is_torch(tensor) and id(tensor) not in done:
            done[id(tensor)] = tensor.to(device)
    return {name: done.get(id(tensor), tensor) for name, tensor in tensors.items()}


__all__ = ["Location", "Reader", "Verification", "open"]


def _optional(names: str | Names | None) -> list[str] | None:
    if names is None:
        return None
    return [names] if isinstance(names, str) else _names(names)


def _names(names: Names) -> list[str]:
    """Several names, each of them a string."""
    listed = list(names) if isinstance(names, Iterable) else [names]
    if not all(isinstance(name, str) for name in listed):
        raise TypeError(
            f"a tensor's name is a string, several are a list of strings, not {names!r}"
        )
    return listed
