"""Packed safetensors files: smaller, restored byte for byte, single tensors still readable.

>>> import numpy as np
>>> from safetensors.numpy import save_file
>>> from z4ai.safetensors import ZstnReader, compress_file, decompress_file
>>> save_file({"embed": np.ones((1000, 64), np.float16)}, "model.safetensors")
>>> stats = compress_file("model.safetensors", "model.zstn")
>>> stats["ratio"] > 10
True
>>> with ZstnReader.open("model.zstn") as reader:
...     reader.names(), reader.read_numpy("embed", rows=slice(10, 12)).shape
(['embed'], (2, 64))
>>> decompress_file("model.zstn", "again.safetensors")["bytes"] == stats["original_bytes"]
True
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeAlias

from z4ai import _codec, _memory
from z4ai._codec import Data
from ztensor import _dtypes, _frameworks, _native, store
from ztensor._closing import Closing
from ztensor._errors import (
    IndexOutOfRangeError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
)
from ztensor._progress import reporting
from ztensor._types import AnyArray, Effort, Path, Progress

if TYPE_CHECKING:
    import torch
else:
    from ztensor._types import torch

__all__ = [
    "ZstnReader",
    "compress_bytes",
    "compress_file",
    "decompress_bytes",
    "decompress_file",
]

Rows: TypeAlias = slice | range | tuple[int, int] | int
"""Rows of a tensor: a slice without a step, a range, ``(start, stop)``, or one."""

MAGIC = b"ZSTN"
"""What every packed file starts with."""


def compress_file(
    in_path: Path,
    out_path: Path,
    *,
    level: int | None = None,
    threads: int = 0,
    workers: int | None = None,
    effort: Effort | None = None,
    progress: Progress = None,
) -> dict[str, Any]:
    """Packs a file of any format that ztensor reads.

    Tensors of equal bytes are stored once. Memory is needed for a few tensors, not for the
    file. Files of other formats than ``.safetensors``, and ``.safetensors`` files that break a rule
    of the format, are restored byte for byte too, but must be unpacked to be read.

    For ``level``, ``threads`` and ``effort`` see :func:`z4ai.compress`; ``workers`` is another
    name for ``threads``. ``progress`` is ``True`` for a bar, or a function of the bytes done and
    the bytes in all. The new file appears when it is complete.

    Returns ``original_bytes``, ``compressed_bytes``, ``ratio`` and ``saved_pct``.
    """
    return _compress_file(in_path, out_path, _settings(level, threads, workers, effort), progress)


def _compress_file(
    in_path: Path,
    out_path: Path,
    settings: Any,
    progress: Progress,
    *,
    derived: bool = False,
    overwrite: bool = True,
) -> dict[str, Any]:
    """Packs a file. A ``derived`` name stays in its folder: no link of that name is followed."""
    with reporting(progress, _size(in_path, progress), "packing") as tell:
        packed = _native.zstn_pack(
            in_path, out_path, settings, tell, derived=derived, overwrite=overwrite
        )
    return _stats(packed)


def decompress_file(
    in_path: Path,
    out_path: Path,
    *,
    threads: int = 0,
    workers: int | None = None,
    progress: Progress = None,
    max_total_bytes: int | None = None,
) -> dict[str, Any]:
    """Restores the ``.safetensors`` file that was packed, byte for byte.

    It appears under its name when it is complete and every checksum was right. Returns its
    size as ``bytes``. A file of more than ``max_total_bytes`` is a ``LimitError`` before
    anything is written; by default the limit is the larger of 4 GiB and 1,000 times the size
    of the packed file.
    """
    total = _native.zstn_inspect(in_path)[2] if progress else 0
    with reporting(progress, total, "unpacking") as tell:
        size = _native.zstn_unpack(
            in_path, out_path, _threads(threads, workers), tell, max_total_bytes=max_total_bytes
        )
    return {"bytes": size}


def compress_bytes(
    blob: Data,
    *,
    level: int | None = None,
    threads: int = 0,
    workers: int | None = None,
    effort: Effort | None = None,
) -> bytes:
    """Like :func:`compress_file`, of a file that lies in memory."""
    data = _memory.contents_of(blob, "the file")
    return _native.zstn_pack_bytes(data, _settings(level, threads, workers, effort))


def decompress_bytes(
    frame: Data,
    *,
    threads: int = 0,
    workers: int | None = None,
    max_total_bytes: int | None = None,
) -> bytes:
    """Like :func:`decompress_file`, of a packed file that lies in memory."""
    data = _memory.contents_of(frame, "the packed file")
    if data[:4] != MAGIC:
        raise InvalidArgumentError(f"not a packed (ZSTN) file: it starts with {bytes(data[:4])!r}")
    return _native.zstn_unpack_bytes(
        data, _threads(threads, workers), max_total_bytes=max_total_bytes
    )


class ZstnReader(Closing):
    """A packed file, of which single tensors are decoded when they are read.

    May be used from several threads at once. ``ztensor.Reader``, ``ztensor.safe_open`` and
    ``load_file`` open packed files, too.
    """

    def __init__(
        self, *, fh: BinaryIO | None = None, buf: Data | None = None, owns_file: bool = False
    ) -> None:
        if (fh is None) == (buf is None):
            raise InvalidArgumentError("provide exactly one of fh and buf")
        data = _contents(fh) if fh is not None else None
        if buf is not None:
            data = _memory.contents_of(buf, "buf")
        self._file = fh if owns_file else None
        if data is not None:
            self._start(
                lambda: _native.Reader.from_bytes(data), lambda: _native.zstn_inspect_bytes(data)
            )
        elif fh is not None:
            # Its own descriptor and its own position: `fh` can be used and closed meanwhile.
            path = f"/dev/fd/{fh.fileno()}"
            self._start(lambda: _native.Reader.open(path), lambda: _native.zstn_inspect(path))

    @classmethod
    def open(
        cls, path: Path, *, max_bytes: int | None = None, max_total_bytes: int | None = None
    ) -> Self:
        """Opens a file; reads its header and index, decodes nothing.

        Reading a tensor of more than ``max_bytes``, or more than ``max_total_bytes`` in one call,
        is then a ``LimitError``.
        """
        reader = cls.__new__(cls)
        reader._file = None
        reader._start(
            lambda: _native.Reader.open(path, max_component=max_bytes, max_total=max_total_bytes),
            lambda: _native.zstn_inspect(path),
        )
        return reader

    @classmethod
    def from_bytes(cls, frame: Data) -> Self:
        """Opens a packed file that lies in memory."""
        return cls(buf=frame)

    def _start(self, opened: Callable[[], _native.Reader], inspected: Callable[[], Any]) -> None:
        self._lock = threading.Lock()
        self._reader: _native.Reader | None = None
        header, entries = inspected()[3:]
        if header is None:
            raise UnsupportedError(
                "this file was packed as a whole, without knowledge of its tensors: "
                "decompress_file restores it"
            )
        self._header: dict[str, Any] = json.loads(header)
        self._entries = {entry[0]: entry for entry in entries}
        self._reader = opened()

    def names(self) -> list[str]:
        """The names of all tensors, in the order of their data."""
        return list(self._entries)

    def header(self) -> dict[str, Any]:
        """The header of the original file: dtype, shape and offsets by name."""
        copied: dict[str, Any] = json.loads(json.dumps(self._header))
        return copied

    def metadata(self) -> dict[str, str]:
        """The metadata of the original file, empty if it has none."""
        return dict(self._header.get("__metadata__") or {})

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def frame_size(self, name: str) -> int:
        """Bytes that a tensor takes in the packed file, which equal ones share."""
        self._check(name)
        return int(self._entries[name][2])

    def read_raw(self, name: str, rows: Rows | None = None) -> bytes:
        """The bytes of a tensor, or of some of its rows."""
        reader = self._check(name)
        return reader.read_bytes(name, None if rows is None else self._rows(name, rows))

    def read_numpy(self, name: str, rows: Rows | None = None) -> AnyArray:
        """A tensor, or some of its rows, as an array of its own.

        bfloat16 and fp8 are the types of ``ml_dtypes``. ``rows`` is a slice without a step, a
        range, a pair ``(start, stop)`` or one number (which gives an array of one row) along the
        first dimension; only the parts that hold them are decoded.
        """
        flat, shape = self._read(name, rows)
        try:
            dtype = _dtypes.numpy_dtype(self._element(name))
        except UnsupportedError as error:
            raise TypeError(f"tensor {name!r}: {error}; read_raw() has its bytes") from None
        return flat.view(dtype).reshape(shape)

    def read_torch(self, name: str, rows: Rows | None = None, device: Any = "cpu") -> torch.Tensor:
        """A tensor, or some of its rows, as a torch tensor."""
        flat, shape = self._read(name, rows)
        tensor = _frameworks.array_to_torch(flat, self._element(name), shape)
        return tensor if device == "cpu" else tensor.to(device)

    def _read(self, name: str, rows: Rows | None) -> tuple[AnyArray, list[int]]:
        """Bytes as a flat array, and the shape they have."""
        reader = self._check(name)
        shape: list[int] = list(self._header[name]["shape"])
        if rows is not None:
            start, stop = self._rows(name, rows)
            return reader.read_rows(name, start, stop), [stop - start, *shape[1:]]
        size = self._entries[name][1]
        flat = _memory.empty_array("|u1", [size], size)
        reader.read_into([(name, flat)])
        return flat, shape

    def _rows(self, name: str, rows: Rows) -> tuple[int, int]:
        """The first row, and the one after the last."""
        shape = self._header[name]["shape"]
        if not shape:
            raise InvalidArgumentError(f"tensor {name!r} is a scalar: it has no rows")
        if isinstance(rows, range):
            rows = slice(rows.start, rows.stop, rows.step)
        elif isinstance(rows, int) and not isinstance(rows, bool):
            row = rows + shape[0] if rows < 0 else rows
            if not 0 <= row < shape[0]:
                raise IndexOutOfRangeError(
                    f"row {rows} is out of range: tensor {name!r} has {shape[0]} rows"
                )
            return row, row + 1
        if not isinstance(rows, slice | tuple) or (isinstance(rows, tuple) and len(rows) != 2):
            raise TypeError(f"rows is a slice, a range, (start, stop) or a number, not {rows!r}")
        start, stop, step = (rows if isinstance(rows, slice) else slice(*rows)).indices(shape[0])
        if step != 1:
            raise InvalidArgumentError("rows are read without a step")
        return start, max(start, stop)

    def _element(self, name: str) -> _dtypes.Element:
        spelled = self._header[name]["dtype"]
        element = next((e for e in _dtypes.ELEMENTS if e.safetensors == spelled), None)
        if element is None:
            raise TypeError(f"tensor {name!r} is of type {spelled}: read_raw() has its bytes")
        return element

    def _check(self, name: str) -> _native.Reader:
        reader = self._reader
        if reader is None:
            raise InvalidArgumentError("the reader is closed")
        if name not in self._entries:
            raise NotFoundError(f"no tensor named {name!r} in this packed file")
        return reader

    def close(self) -> None:
        """Lets go of the file. Arrays that were read stay as they are."""
        with self._lock:
            self._reader = None
            file, self._file = self._file, None
        if file is not None:
            file.close()

    def __repr__(self) -> str:
        return f"<ZstnReader of {len(self)} tensors>"


def pack_tensors(
    tensors: Mapping[str, Any],
    path: Path,
    metadata: Mapping[str, str] | None = None,
    *,
    level: int | None = None,
    threads: int = 0,
    effort: Effort | None = None,
    progress: Progress = None,
) -> dict[str, Any]:
    """Packs tensors as if they had been saved to a ``.safetensors`` file first.

    Tensors that share memory are stored once.
    """
    settings = _settings(level, threads, None, effort)
    if not isinstance(tensors, Mapping):
        raise TypeError(f"tensors is a dictionary of tensors by name, not {type(tensors).__name__}")
    parts = []
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"tensor names are strings, not {type(name).__name__}")
        parts.append((name, *_part(name, tensor)))
    # Wide elements first, so that every tensor is aligned, as safetensors does it.
    parts.sort(key=lambda part: (-part[1].bits, part[0]))
    header: dict[str, Any] = {}
    if metadata is not None:
        for key, value in metadata.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TypeError(f"metadata maps strings to strings, not {key!r} to {value!r}")
        header["__metadata__"] = dict(metadata)
    position = 0
    for name, element, shape, memory in parts:
        end = position + memory.nbytes
        header[name] = {
            "dtype": element.safetensors,
            "shape": shape,
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    start = len(text).to_bytes(8, "little") + text
    with reporting(progress, len(start) + position, "packing") as tell:
        memories = [part[3] for part in parts]
        return _stats(_native.zstn_pack_parts(start, memories, path, settings, tell))


def _part(name: str, tensor: Any) -> tuple[_dtypes.Element, list[int], AnyArray]:
    import numpy as np

    if _dtypes.is_torch(tensor):
        element = _dtypes.of_torch(tensor.dtype)
        memory = _memory.tensor_memory(tensor)
    elif isinstance(tensor, np.ndarray | np.generic):
        array = np.asarray(tensor)
        element = _dtypes.of_numpy(array.dtype)
        native = array.dtype.newbyteorder("<")
        memory = _memory.array_memory(array.astype(native) if native != array.dtype else array)
    else:
        raise TypeError(f"tensor {name!r} is neither torch's nor NumPy's: {type(tensor).__name__}")
    if element.safetensors is None:
        raise InvalidArgumentError(f"tensor {name!r}: safetensors files have no {element.name}")
    return element, list(tensor.shape), memory


def _settings(
    level: int | None, threads: int, workers: int | None, effort: str | None
) -> tuple[str, int | None, int]:
    return (
        _codec.effort_named(effort),
        _codec.level_checked(level),
        _threads(threads, workers),
    )


def _threads(threads: int, workers: int | None) -> int:
    return _codec.threads_checked(threads or workers or 0)


def _stats(packed: tuple[int, int, int, int, bool]) -> dict[str, Any]:
    original, stored = packed[:2]
    return {
        "original_bytes": original,
        "compressed_bytes": stored,
        "ratio": original / stored if stored else 1.0,
        "saved_pct": 100.0 * (1 - stored / original) if original else 0.0,
        "tensors": packed[2],
        "tied": packed[3],
    }


def _size(path: Path, progress: Progress) -> int:
    return (store.size(path) or 0) if progress else 0


def _contents(file: BinaryIO) -> bytes | None:
    """What a file holds that the system does not know; ``None`` for a real file."""
    try:
        file.fileno()
    except (AttributeError, OSError):
        file.seek(0)
        return file.read()
    return None
