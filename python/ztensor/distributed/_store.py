"""Where a checkpoint lives: the few things that are done with its files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from ztensor import _errors, _native, store
from ztensor._reader import Reader
from ztensor._types import StorageOptions


class Store(Protocol):
    """A flat place for files: a folder, or a prefix of an object store."""

    @property
    def is_local(self) -> bool:
        """Whether its files can be opened by their paths."""

    @property
    def root(self) -> str:
        """Where it is."""

    def path(self, name: str) -> str:
        """Where a file is."""

    def parent(self) -> tuple[str, str]:
        """What it is in, and its name there."""

    def sibling(self, name: str) -> Store:
        """The place of that name beside it."""

    def sibling_names(self) -> list[str]:
        """The places beside it, as far as they can be listed."""

    def prepare(self) -> None:
        """Makes the place, if it is not there."""

    def reader(self, name: str, threads: int = 0) -> Reader:
        """Opens a tensor file."""

    def writer(self, name: str, durable: bool) -> _native.Writer:
        """Begins a ``.zt`` file, which appears when it is finished."""

    def new_file(self, name: str) -> _native.NewFile:
        """Begins a file of any kind, which appears when it is finished."""

    def read(self, name: str) -> bytes | None:
        """A small file; ``None`` if it is not there."""

    def read_at(self, name: str, offset: int, count: int) -> bytes:
        """Some bytes of a file, as far as it has them."""

    def write(self, name: str, data: bytes, durable: bool) -> None:
        """A small file, which appears whole or not at all and replaces an older one."""

    def length(self, name: str) -> int | None:
        """How many bytes a file has; ``None`` if it is not there."""

    def names(self) -> list[str]:
        """The files that are there."""

    def remove(self, name: str) -> None:
        """Takes a file away; it may be gone already."""


class Folder:
    """A folder of a file system that all ranks see."""

    is_local = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    @property
    def root(self) -> str:
        return str(self._path)

    def parent(self) -> tuple[str, str]:
        path = Path(os.path.abspath(self._path))
        return str(path.parent), path.name

    def sibling(self, name: str) -> Folder:
        return Folder(Path(self.parent()[0], name))

    def sibling_names(self) -> list[str]:
        return Folder(self.parent()[0]).folder_names()

    def inner(self, name: str) -> Folder:
        """A folder in it."""
        return Folder(self._path / name)

    def folder_names(self) -> list[str]:
        """The folders in it."""
        with named(self._path):
            try:
                return sorted(entry.name for entry in os.scandir(self._path) if entry.is_dir())
            except FileNotFoundError:
                return []

    def path(self, name: str) -> str:
        return str(self._path / name)

    def prepare(self) -> None:
        with named(self._path):
            self._path.mkdir(parents=True, exist_ok=True)

    def reader(self, name: str, threads: int = 0) -> Reader:
        return Reader(self.path(name), threads=threads)

    def writer(self, name: str, durable: bool) -> _native.Writer:
        return _native.Writer.create(self.path(name), durable=durable, derived=True)

    def new_file(self, name: str) -> _native.NewFile:
        return _native.NewFile.create(self.path(name), derived=True)

    def read(self, name: str) -> bytes | None:
        try:
            return store.read_bytes(self._path / name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read_at(self, name: str, offset: int, count: int) -> bytes:
        path = self._path / name
        with named(path), path.open("rb") as file:
            file.seek(offset)
            return file.read(count)

    def write(self, name: str, data: bytes, durable: bool) -> None:
        with replacing(self._path / name, durable) as new:
            write_at(new.descriptor, data, 0)

    def length(self, name: str) -> int | None:
        path = self._path / name
        with named(path):
            try:
                return path.stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def names(self) -> list[str]:
        with named(self._path):
            try:
                return sorted(os.listdir(self._path))
            except FileNotFoundError:
                return []

    def remove(self, name: str) -> None:
        path = self._path / name
        with named(path):
            path.unlink(missing_ok=True)


class Remote:
    """A prefix of an object store. Whatever is written there appears whole."""

    is_local = False

    def __init__(self, url: str, options: StorageOptions) -> None:
        self._url, self._options = url, options

    @property
    def root(self) -> str:
        return self._url

    def parent(self) -> tuple[str, str]:
        folder, _, name = self._url.rstrip("/").rpartition("/")
        return folder, name

    def sibling(self, name: str) -> Remote:
        return Remote(store.join(self.parent()[0], name), self._options)

    def sibling_names(self) -> list[str]:
        return []  # a store has no folders: what lies beside would be a list of all objects

    def path(self, name: str) -> str:
        return store.join(self._url, name)

    def prepare(self) -> None:
        pass  # there are no folders

    def reader(self, name: str, threads: int = 0) -> Reader:
        return Reader(self.path(name), threads=threads, storage_options=self._options)

    def writer(self, name: str, durable: bool) -> _native.Writer:
        # Stores are durable, or not, by themselves.
        return _native.Writer.create(self.path(name), remote=store.settings(self._options))

    def new_file(self, name: str) -> _native.NewFile:
        return _native.NewFile.create(self.path(name), remote=store.settings(self._options))

    def read(self, name: str) -> bytes | None:
        try:
            return store.read_bytes(self.path(name), storage_options=self._options)
        except FileNotFoundError:
            return None

    def read_at(self, name: str, offset: int, count: int) -> bytes:
        path, stop = self.path(name), offset + count
        return store.read_bytes(
            path, start=offset, stop=stop, max_bytes=count, storage_options=self._options
        )

    def write(self, name: str, data: bytes, durable: bool) -> None:
        store.write_bytes(self.path(name), data, storage_options=self._options)

    def length(self, name: str) -> int | None:
        return store.size(self.path(name), storage_options=self._options)

    def names(self) -> list[str]:
        found = store.list(self._url, storage_options=self._options)
        return [name for name in found if "/" not in name]

    def remove(self, name: str) -> None:
        store.delete(self.path(name), storage_options=self._options)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether a path is an address of a store rather than one of this machine."""
    scheme, colon, _ = os.fspath(path).partition("://")
    return bool(colon) and scheme.isalnum() and scheme.lower() != "file"


def place_of(location: str | os.PathLike[str], options: StorageOptions = None) -> Store:
    """The place that a path or an address names."""
    path = os.fspath(location)
    if is_url(path):
        return Remote(path, options)
    return Folder(path.removeprefix("file://"))


class Located:
    """What torch's two interfaces have in common: a place, which may change between two uses."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: StorageOptions,
        *,
        allow_pickle: bool,
    ) -> None:
        super().__init__()
        self._path, self._storage_options = os.fspath(path), options
        self._allow_pickle = allow_pickle
        self._rank = 0

    @property
    def checkpoint_id(self) -> str:
        """Where the checkpoint is."""
        return self._path

    @property
    def _store(self) -> Store:
        return place_of(self._path, self._storage_options)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins anew, perhaps elsewhere."""
        if checkpoint_id:
            self._path = os.fspath(checkpoint_id)


def split(location: str | os.PathLike[str], options: StorageOptions = None) -> tuple[Store, str]:
    """The place that a file is in, and its name there."""
    folder, slash, name = os.fspath(location).rpartition("/")
    return place_of(folder + slash if folder in ("", "file://") else folder, options), name


class NewFile(NamedTuple):
    """A new file that is not yet visible under its name."""

    descriptor: int
    """Open for reading and writing."""
    path: str
    """Where it is until then."""


@contextlib.contextmanager
def replacing(path: Path, durable: bool) -> Iterator[NewFile]:
    """A new file that takes a name when the block ends well, and else disappears."""
    # Its name is made up from that of a checkpoint: a link of that name leads nowhere.
    file = _native.NewFile.create(path, derived=True)
    with named(path):
        try:
            yield NewFile(*file.temporary())
        except BaseException:
            file.abort()
            raise
        file.finish(durable)


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Writes all bytes at an offset."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Errors of the operating system as ours, with the file's name."""
    try:
        yield
    except _errors.ZTensorError:
        raise
    except OSError as error:
        message = f"{path}: {error.strerror or error}"
        raise _errors.make("io", message, error.errno, str(path)) from error
