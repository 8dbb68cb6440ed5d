"""Where a checkpoint lives: the few things that are done with its files."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from ztensor import _errors


class Store(Protocol):
    """A flat place for files: a folder."""

    def location(self) -> str:
        """What to call it, and what opens it again."""

    def path(self, name: str) -> str:
        """Where a file is, for readers and writers."""

    def prepare(self) -> None:
        """Makes the place, if it is not there."""

    def read(self, name: str) -> bytes | None:
        """A small file; ``None`` if it is not there."""

    def read_at(self, name: str, offset: int, count: int) -> bytes:
        """Some bytes of a file."""

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

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def location(self) -> str:
        return str(self._path)

    def path(self, name: str) -> str:
        return str(self._path / name)

    def prepare(self) -> None:
        with named(self._path):
            self._path.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> bytes | None:
        path = self._path / name
        with named(path):
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read_at(self, name: str, offset: int, count: int) -> bytes:
        path = self._path / name
        with named(path), path.open("rb") as file:
            file.seek(offset)
            return file.read(count)

    def write(self, name: str, data: bytes, durable: bool) -> None:
        path = self._path / name
        with replacing(path, durable) as new:
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


def store(location: str | os.PathLike[str]) -> Store:
    """The place that a path or an address names."""
    return Folder(location)


class NewFile(NamedTuple):
    """A file on its way to its name."""

    descriptor: int
    """Open for reading and writing."""
    path: str
    """Where it is until then."""


@contextlib.contextmanager
def replacing(path: Path, durable: bool) -> Iterator[NewFile]:
    """A new file that takes a name when the block ends well, and else disappears."""
    path = Path(os.path.realpath(path))  # what a link names is replaced, not the link
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
    with named(path):
        descriptor = os.open(temporary, flags, 0o666)
        try:
            try:
                yield NewFile(descriptor, str(temporary))
                if durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        if durable:
            sync_folder(path.parent)


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Writes all bytes at an offset."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def sync_folder(path: Path) -> None:
    """Waits until the disk has the entries of a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
