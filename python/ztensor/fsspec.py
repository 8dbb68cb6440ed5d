"""``ztensor://``: packed files seen as the plain ``.safetensors`` files that they restore.

Registered with fsspec by an entry point, so that every library that opens fsspec URLs reads packed
files, by ranges: only the rows of tensors that a range touches are decoded.

>>> import numpy as np, safetensors.numpy, z4ai
>>> from ztensor.fsspec import RestoredFileSystem
>>> tensors = {"w": np.arange(12, dtype=np.float32).reshape(4, 3)}
>>> safetensors.numpy.save_file(tensors, "model.safetensors")
>>> stats = z4ai.safetensors.compress_file("model.safetensors", "packed.safetensors")
>>> with RestoredFileSystem().open("packed.safetensors") as file:
...     file.read() == open("model.safetensors", "rb").read()
True

``fsspec.open("ztensor://packed.safetensors")`` is the same. What follows the protocol is a path, or
a URL that this package opens: ``ztensor://s3://bucket/model.safetensors``. Other files
are seen as they are. Read-only.

``ztensor-repo://REPOSITORY@REF/PATH`` is a file of a version of a :class:`ztensor.Repository`,
restored as it is read.
"""

from __future__ import annotations

import bisect
import json
import os
from collections.abc import Iterator
from typing import Any

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from ztensor import _native, store
from ztensor._errors import NoSuchFileError, UnsupportedError
from ztensor.repository import PROTOCOL, Repository, Version, split_url

__all__ = ["RepositoryFileSystem", "RestoredFileSystem"]

_MAGIC = b"ZSTN"
# Other extensions are not looked into when a folder is listed.
_PACKED = (".safetensors", ".zstn", ".sft")


class RestoredFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files below folders and URLs; packed ones as what they restore."""

    protocol = "ztensor"
    root_marker = ""

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text = os.fspath(path)
        text = text.removeprefix("ztensor://")
        return text.rstrip("/") or (text and "/")

    @classmethod
    def _parent(cls, path: Any) -> Any:
        return cls._strip_protocol(path).rpartition("/")[0]

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """What is directly in a folder, or the file itself."""
        path = self._strip_protocol(path)
        found: dict[str, dict[str, Any]] = {}
        for name, size in store.sizes(path or ".").items():
            first, inner, _ = name.partition("/")
            full = store.join(path, first) if path else first
            if inner:
                found[full] = {"name": full, "size": 0, "type": "directory"}
            else:
                found[full] = _described(full, size)
        if not found:
            found[path] = self.info(path)
        return list(found.values()) if detail else list(found)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """The size and the type of one file or folder."""
        path = self._strip_protocol(path)
        if os.path.isdir(path or "."):
            return {"name": path, "size": 0, "type": "directory"}
        size = store.size(path)
        if size is not None:
            return _described(path, size)
        if store.sizes(path):
            return {"name": path, "size": 0, "type": "directory"}
        raise NoSuchFileError(f"{path}: no such file or folder")

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        """The bytes of a file, or those of a range; negative positions count from its end."""
        return _ranged(_opened(self._strip_protocol(path)), start, end)

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **options: Any,
    ) -> list[Any]:
        """Several ranges; each file is opened once."""
        count = len(paths)
        starts = starts if isinstance(starts, list) else [starts] * count
        ends = ends if isinstance(ends, list) else [ends] * count
        opened: dict[str, _Content] = {}
        found: list[Any] = []
        for path, start, end in zip(paths, starts, ends, strict=True):
            stripped = self._strip_protocol(path)
            try:
                if stripped not in opened:
                    opened[stripped] = _opened(stripped)
                found.append(_ranged(opened[stripped], start, end))
            except Exception as error:
                if on_error != "return":
                    raise
                found.append(error)
        return found

    def _open(self, path: str, mode: str = "rb", **options: Any) -> RestoredFile:
        if mode != "rb":
            raise UnsupportedError(f"ztensor:// is read-only: {path} cannot be opened as {mode!r}")
        return RestoredFile(self, path, mode, content=_opened(path), **options)


class RepositoryFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The files of all versions of a repository; read-only.

    Paths are ``REPOSITORY@REF/PATH``; the first ``@`` separates. A version is looked up once: open
    another file system, or clear its cache of instances, to see a branch move.
    """

    protocol = "ztensor-repo"
    root_marker = ""

    def __init__(self, *arguments: Any, storage_options: Any = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._storage_options = storage_options
        self._versions: dict[str, Version] = {}

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return os.fspath(path).removeprefix(PROTOCOL).rstrip("/")

    def _located(self, path: str) -> tuple[str, Version, str]:
        """Where a version is, the version, and the path of a file or folder in it."""

        def version(root: str, ref: str) -> Version:
            key = f"{root}@{ref}"
            if key not in self._versions:
                repository = Repository(root, storage_options=self._storage_options)
                self._versions[key] = repository.version(ref)
            return self._versions[key]

        root, ref, found, inner = split_url(path, version)
        return f"{root}@{ref}", found, inner

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """What is directly in a folder of a version, or the file itself."""
        key, version, inner = self._located(path)
        prefix = f"{inner}/" if inner else ""
        found: dict[str, dict[str, Any]] = {}
        for file in version.files():
            if file.path == inner:
                full = f"{key}/{inner}"
                found[full] = {"name": full, "size": file.bytes, "type": "file"}
            elif file.path.startswith(prefix):
                first, below, _ = file.path.removeprefix(prefix).partition("/")
                full = f"{key}/{prefix}{first}"
                kind, size = ("directory", 0) if below else ("file", file.bytes)
                found[full] = {"name": full, "size": size, "type": kind}
        if not found:
            raise NoSuchFileError(f"{path}: no such file or folder")
        return list(found.values()) if detail else list(found)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """The size and the type of one file or folder."""
        key, version, inner = self._located(path)
        full = f"{key}/{inner}" if inner else key
        for file in version.files():
            if file.path == inner:
                return {"name": full, "size": file.bytes, "type": "file"}
        self.ls(path)
        return {"name": full, "size": 0, "type": "directory"}

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        """The bytes of a file, or those of a range; negative positions count from its end."""
        size = self.info(path)["size"]
        first, last, _ = slice(start, end).indices(size)
        _, version, inner = self._located(path)
        return version.read_bytes(inner, first, max(first, last))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> RepositoryFile:
        if mode != "rb":
            raise UnsupportedError(
                f"ztensor-repo:// is read-only: {path} cannot be opened as {mode!r}"
            )
        _, version, inner = self._located(path)
        size = self.info(path)["size"]
        return RepositoryFile(self, path, mode, version=version, inner=inner, size=size, **options)


class RepositoryFile(AbstractBufferedFile):  # type: ignore[misc]
    """An open file of :class:`RepositoryFileSystem`."""

    def __init__(
        self, fs: Any, path: str, mode: str, *, version: Version, inner: str, **options: Any
    ) -> None:
        self._version, self._inner = version, inner
        super().__init__(fs, path, mode, **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._version.read_bytes(self._inner, start, end)


class RestoredFile(AbstractBufferedFile):  # type: ignore[misc]
    """An open file of :class:`RestoredFileSystem`."""

    def __init__(self, fs: Any, path: str, mode: str, *, content: _Content, **options: Any) -> None:
        self._content = content
        super().__init__(fs, path, mode, size=content.size, **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._content.read(start, min(end, self._content.size))


def _described(path: str, stored: int) -> dict[str, Any]:
    size = stored
    packed = path.lower().endswith(_PACKED) and store.read_bytes(path, start=0, stop=4) == _MAGIC
    if packed:
        size = _native.zstn_inspect(path)[2]
    return {"name": path, "size": size, "type": "file", "packed": packed, "stored": stored}


def _ranged(content: _Content, start: int | None, end: int | None) -> bytes:
    first, last, _ = slice(start, end).indices(content.size)
    return content.read(first, max(first, last))


def _opened(path: str) -> _Content:
    size = store.size(path)
    if size is None:
        raise NoSuchFileError(f"{path}: no such file")
    if store.read_bytes(path, start=0, stop=4) != _MAGIC:
        return _Content(path, size)
    _, _, restored, header, _ = _native.zstn_inspect(path)
    if header is None:
        raise UnsupportedError(
            f"{path} was packed as a whole, without knowledge of its tensors: "
            "z4ai.safetensors.decompress_file restores it"
        )
    return _Restored(path, restored, header)


class _Content:
    """A file as it is."""

    def __init__(self, path: str, size: int) -> None:
        self.path, self.size = path, size

    def read(self, start: int, stop: int) -> bytes:
        """The bytes between two positions within the file."""
        if start >= stop:
            return b""
        return store.read_bytes(self.path, start=start, stop=stop, max_bytes=stop - start)


class _Restored(_Content):
    """A packed file as the one that was packed: its header, then tensors without gaps."""

    def __init__(self, path: str, size: int, header: str) -> None:
        super().__init__(path, size)
        text = header.encode()
        self._header = len(text).to_bytes(8, "little") + text
        described = json.loads(header)
        described.pop("__metadata__", None)
        placed = [
            (one["data_offsets"][0], one["data_offsets"][1], name, one["shape"])
            for name, one in described.items()
            if one["data_offsets"][0] < one["data_offsets"][1]
        ]
        self._placed = sorted(placed)
        self._ends = [stop for _, stop, _, _ in self._placed]
        self._reader = _native.Reader.open(path, map=False)

    def read(self, start: int, stop: int) -> bytes:
        return b"".join(self._parts(start, stop))

    def _parts(self, start: int, stop: int) -> Iterator[bytes]:
        data = len(self._header)
        if start < data:
            yield self._header[start : min(stop, data)]
        first, last = max(start - data, 0), stop - data
        for at in range(bisect.bisect_right(self._ends, first), len(self._placed)):
            begin, end, name, shape = self._placed[at]
            if begin >= last:
                return
            yield self._of_tensor(
                name, shape, end - begin, max(first - begin, 0), min(last, end) - begin
            )

    def _of_tensor(self, name: str, shape: list[int], size: int, start: int, stop: int) -> bytes:
        """Some bytes of a tensor: of the rows that hold them."""
        if not shape or shape[0] < 2 or (start, stop) == (0, size):
            return self._reader.read_bytes(name)[start:stop]
        row = size // shape[0]
        if not row or size % shape[0]:  # elements of less than a byte
            return self._reader.read_bytes(name)[start:stop]
        first, last = start // row, -(-stop // row)
        rows = self._reader.read_bytes(name, (first, last))
        return rows[start - first * row : stop - first * row]
