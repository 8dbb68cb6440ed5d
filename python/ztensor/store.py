"""Small files of folders and of object stores, read, written and listed alike.

What is kept beside a model, such as its configuration, is found where the model
is: every function takes a path or a URL (``s3://``, ``gs://``, ``az://``,
``http://``, ``https://``, ``file://``).

>>> from ztensor import store
>>> store.write_bytes("run/config.json", b"{}")
>>> store.list("run")
['config.json']
>>> store.read_bytes(store.join("run", "config.json"))
b'{}'
>>> store.delete("run/config.json")
>>> store.exists("run/config.json")
False
"""

from __future__ import annotations

import builtins

from ztensor import _native
from ztensor._types import Path, StorageOptions

__all__ = ["delete", "exists", "join", "list", "read_bytes", "size", "sizes", "write_bytes"]


def settings(storage_options: StorageOptions) -> dict[str, str] | None:
    """Options as the native library takes them: text."""
    if not storage_options:
        return None
    return {name: _text(value) for name, value in storage_options.items() if value is not None}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_bytes(
    path: Path,
    *,
    start: int = 0,
    stop: int | None = None,
    max_bytes: int = 1 << 30,
    storage_options: StorageOptions = None,
) -> bytes:
    """All bytes of a file, or those from ``start`` to ``stop``, as far as there are such.

    More than ``max_bytes`` of them are refused, whatever a server sends.
    """
    wanted = None if start == 0 and stop is None else (start, 2**63 if stop is None else stop)
    return _native.store_read(path, max_bytes, wanted, settings(storage_options))


def write_bytes(
    path: Path, data: bytes | bytearray, *, storage_options: StorageOptions = None
) -> None:
    """Writes a whole file, which appears under its name when it is complete."""
    _native.store_write(path, data, settings(storage_options))


def sizes(path: Path, *, storage_options: StorageOptions = None) -> dict[str, int]:
    """The files below a folder or a prefix, by name, with their sizes in bytes.

    Names are relative to it, with ``/`` between folders. There are none below a
    folder that does not exist.
    """
    return dict(_native.store_list(path, settings(storage_options)))


def list(path: Path, *, storage_options: StorageOptions = None) -> builtins.list[str]:
    """The names of the files below a folder or a prefix, sorted."""
    return [name for name, _ in _native.store_list(path, settings(storage_options))]


def size(path: Path, *, storage_options: StorageOptions = None) -> int | None:
    """The size of a file in bytes, or ``None`` if there is no such file."""
    return _native.store_len(path, settings(storage_options))


def exists(path: Path, *, storage_options: StorageOptions = None) -> bool:
    """Whether there is such a file."""
    return size(path, storage_options=storage_options) is not None


def delete(path: Path, *, storage_options: StorageOptions = None) -> None:
    """Removes a file. It is no error if there is none."""
    _native.store_delete(path, settings(storage_options))


def join(folder: Path, name: str) -> str:
    """A name below a folder or a URL."""
    return _native.store_join(folder, name)
