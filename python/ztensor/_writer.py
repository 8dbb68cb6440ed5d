"""``ztensor.Writer``: ``.zt`` files, tensor by tensor."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from ztensor import _dtypes, _items, _native
from ztensor._errors import InvalidArgumentError
from ztensor._progress import reporting
from ztensor._tensor import Tensor
from ztensor._types import (
    AnyArray,
    Checksum,
    Compression,
    DType,
    Path,
    Progress,
    StorageOptions,
)
from ztensor.store import settings

if TYPE_CHECKING:
    import torch
else:
    from ztensor._types import torch

_EFFORTS = ", ".join(map(repr, _native.EFFORTS))

_COPIES = 128 << 20
"""Tensors that had to be copied are written before more than this many bytes of them pile up."""


def codec(compression: Compression) -> int | str | None:
    """What a ``compression`` argument asks for: a zstd level, an effort, or ``None``."""
    if compression is None or compression is False:
        return None
    if compression is True:
        return 3
    if isinstance(compression, str):
        if compression not in _native.EFFORTS:
            raise InvalidArgumentError(
                f"unknown effort {compression!r}: choose one of {_EFFORTS}, "
                "or True or a level from 1 to 22 for zstd"
            )
        return compression
    try:
        level = operator.index(compression)
    except TypeError:
        raise InvalidArgumentError(
            f"compression is True, False, a zstd level from 1 to 22, or one of {_EFFORTS}, "
            f"not {compression!r}"
        ) from None
    if not 1 <= level <= 22:
        raise InvalidArgumentError(f"zstd levels run from 1 to 22, not {level}")
    return level


class Writer:
    """Writes a ``.zt`` file.

    As a context manager it finishes the file at the end of the block; if the
    block raises, no file is left and an older one of that name stays as it was.

    >>> import numpy as np, ztensor
    >>> with ztensor.Writer("model.zt") as w:
    ...     w.write_numpy("weight", np.ones((2, 3), dtype=np.float32), checksum="crc32c")
    ...     w.write_numpy("bias", np.zeros(1000), compress=True)
    >>> ztensor.open("model.zt").keys()
    ['weight', 'bias']

    ``attributes`` describe the whole file; ``durable`` makes :meth:`finish`
    wait until the disk has it all.

    ``format="zt2"``, or a name that ends in ``.zt2``, writes version 2 of the format. Its tensors
    always have digests (XXH3, or ``checksum="sha256"``) and are compressed with zstd only.

    >>> with ztensor.Writer("model.zt2") as w:
    ...     w.write_numpy("weight", np.ones((2, 3), dtype=np.float32))
    >>> ztensor.open("model.zt2").format
    'zt2'

    The path may be a URL of an object store. The file is then uploaded in parts
    while it is written, and appears there when it is finished.
    """

    def __init__(
        self,
        path: Path,
        *,
        attributes: Mapping[str, Any] | None = None,
        durable: bool = False,
        storage_options: StorageOptions = None,
        format: Literal["zt", "zt2"] | None = None,
    ) -> None:
        if format is None:
            format = "zt2" if os.fspath(path).lower().endswith(".zt2") else "zt"
        if format not in ("zt", "zt2"):
            raise InvalidArgumentError(
                f'a Writer writes the format "zt" or "zt2", not {format!r}: use save_file'
            )
        self._native = _native.Writer.create(
            path,
            durable=durable,
            remote=settings(storage_options),
            version=2 if format == "zt2" else 1,
        )
        self._path, self._finished = path, False
        if attributes:
            self._native.set_attributes(dict(attributes))

    @classmethod
    def append(cls, path: Path) -> Self:
        """Adds tensors to an existing ``.zt`` file.

        Until :meth:`finish`, the file stays what it was, and if the writer is
        abandoned it stays so for good. Names that are already there are refused.

        >>> import numpy as np, ztensor
        >>> with ztensor.Writer("model.zt") as w:
        ...     w.write_numpy("a", np.zeros(3))
        >>> w = ztensor.Writer.append("model.zt")
        >>> w.write_numpy("b", np.ones(3))
        >>> w.finish() > 0
        True
        >>> ztensor.open("model.zt").keys()
        ['a', 'b']
        """
        self = cls.__new__(cls)
        self._native = _native.Writer.append(path)
        self._path, self._finished = path, False
        return self

    def write(
        self,
        name: str,
        tensor: Tensor,
        *,
        compress: Compression = None,
        checksum: Checksum = "none",
    ) -> None:
        """Writes a tensor of any layout.

        ``compress`` is ``True`` for zstd level 3, a level from 1 to 22, or an effort of the
        weight codec (``"fast"``, ``"default"``, ``"balanced"``, ``"max"``);
        ``checksum`` is ``"none"``, ``"crc32c"``, ``"sha256"`` or
        ``"blake3"``.
        """
        self._write(_items.prepare(name, tensor), compress, checksum)

    def write_numpy(
        self,
        name: str,
        data: AnyArray,
        *,
        compress: Compression = None,
        checksum: Checksum = "none",
    ) -> None:
        """Writes a NumPy array; one that is not contiguous is copied first."""
        self._write(_items.from_array(name, np.asanyarray(data)), compress, checksum)

    def write_torch(
        self,
        name: str,
        data: torch.Tensor,
        *,
        compress: Compression = None,
        checksum: Checksum = "none",
    ) -> None:
        """Writes a torch tensor of any device, strides and dtype."""
        if not _dtypes.is_torch(data):
            raise InvalidArgumentError(
                f"tensor {name!r} has type {type(data).__name__}, not torch's"
            )
        self._write(_items.from_torch(name, data), compress, checksum)

    def add(
        self, name: str, data: AnyArray, compress: Compression = None, checksum: Checksum = "none"
    ) -> None:
        """Another name of :meth:`write_numpy`."""
        self.write_numpy(name, data, compress=compress, checksum=checksum)

    def stream(
        self,
        name: str,
        shape: Sequence[int],
        dtype: DType,
        *,
        compress: Compression = None,
        checksum: Checksum = "none",
    ) -> TensorStream:
        """A dense tensor that comes piece by piece, and so may be larger than memory.

        Bytes, arrays and tensors are written in row-major order until the tensor is complete.

        >>> import numpy as np, ztensor
        >>> with ztensor.Writer("model.zt") as writer:
        ...     with writer.stream("rows", (1000, 4), "float32", compress=True) as stream:
        ...         for row in range(1000):
        ...             _ = stream.write(np.full(4, row, dtype=np.float32))
        >>> ztensor.open("model.zt").read_numpy("rows")[77]
        array([77., 77., 77., 77.], dtype=float32)

        Until the stream is closed, nothing else can be written; if it ends early, by an exception
        for example, the file does not appear.
        """
        element = _dtypes.named(dtype)
        sizes = [operator.index(size) for size in shape]
        if any(size < 0 for size in sizes):
            raise InvalidArgumentError(f"a shape has no negative sizes, as {sizes} does")
        self._native.stream_start(name, sizes, element.name, codec(compress), checksum)
        return TensorStream(self._native, name, element)

    def tie(self, name: str, existing: str) -> None:
        """Gives a tensor that was already written a second name; its bytes are stored once."""
        self._native.tie(name, existing)

    def _write(self, prepared: _items.Prepared, compress: Compression, checksum: Checksum) -> None:
        self._native.write([prepared.item], codec(compress), checksum)

    def finish(self) -> int:
        """Completes the file and returns its size in bytes."""
        size = self._native.finish()
        self._finished = True
        return size

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._native

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._native.abort()
        elif not self._finished:
            self.finish()

    def __repr__(self) -> str:
        state = "finished" if self._finished else "open"
        return f"ztensor.Writer({str(self._path)!r}) ({state})"


class TensorStream:
    """A dense tensor being written piece by piece: see :meth:`Writer.stream`.

    A context manager, and a file object as far as ``shutil.copyfileobj`` needs one.
    """

    def __init__(self, native: _native.Writer, name: str, element: _dtypes.Element) -> None:
        self._native, self._name, self._element = native, name, element
        self._open = True

    def write(self, data: Any) -> int:
        """Writes the next elements: bytes, an array or a tensor of the same dtype. Returns how
        many bytes that was."""
        if not self._open:
            raise InvalidArgumentError(f"the stream of {self._name!r} is closed")
        memory = self._bytes(data)
        self._native.stream_write(memory)
        return memory.nbytes

    def _bytes(self, data: Any) -> AnyArray:
        if _dtypes.is_torch(data):
            data = Tensor.from_torch(data).numpy()
        if isinstance(data, np.ndarray):
            element = _dtypes.of_numpy(data.dtype)
            if element != self._element:
                raise InvalidArgumentError(
                    f"{self._name!r} has elements of {self._element.name}, not {element.name}"
                )
            little = data.astype(data.dtype.newbyteorder("<"), copy=False)
            return np.ascontiguousarray(little).reshape(-1).view(np.uint8)
        return np.frombuffer(data, dtype=np.uint8)

    def close(self) -> None:
        """Ends the tensor, all of whose elements must have been written."""
        if self._open:
            self._open = False
            self._native.stream_finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            # Half a tensor is in the file: it must never be finished.
            self._open = False
            self._native.abort()


def write_all(
    writer: _native.Writer,
    tensors: Mapping[str, Any],
    metadata: Mapping[str, Any] | None,
    compression: Compression,
    checksum: Checksum,
    progress: Progress,
) -> None:
    """Writes a dictionary of tensors; names of the same memory are tied."""
    coding = codec(compression)
    if metadata:
        writer.set_attributes(dictionary("metadata", metadata))
    # Held here until the end: ties are recognised by addresses, which must not be used again.
    tensors = dictionary("tensors", tensors)
    total = sum(nbytes(value) for value in tensors.values()) if progress else 0
    first: dict[object, str] = {}
    batch: list[_native._Item] = []
    ties: list[tuple[str, str]] = []
    copies = 0
    with reporting(progress, total, "saving") as tell:
        for name, value in tensors.items():
            if (
                type(value) is np.ndarray
                and value.flags.c_contiguous
                and value.dtype.isnative
                and type(name) is str
            ):
                batch.append((name, value))
                continue
            item, tie, copied = _items.prepare(name, value)
            if tie is not None and (existing := first.setdefault(tie, name)) is not name:
                ties.append((name, existing))
                continue
            batch.append(item)
            copies += copied
            if copies > _COPIES:
                writer.write(batch, coding, checksum, True, tell)
                batch.clear()
                copies = 0
        writer.write(batch, coding, checksum, True, tell)
    for name, existing in ties:
        writer.tie(name, existing)
    writer.reorder(list(tensors))


def nbytes(value: Any) -> int:
    """Bytes of a tensor, for progress bars; torch has no such number for sparse tensors."""
    try:
        return int(getattr(value, "nbytes", 0))
    except RuntimeError:
        return 0


def dictionary(what: str, given: Any) -> dict[str, Any]:
    """A dictionary of its own of what was given as one."""
    try:
        return dict(given)
    except (TypeError, ValueError):
        raise TypeError(f"{what} is a dictionary, not {type(given).__name__}") from None
