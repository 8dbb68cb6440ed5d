"""What ``ztensor.numpy`` and ``ztensor.torch`` share: whole files at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ztensor import _native
from ztensor._progress import reporting
from ztensor._writer import Compression, write_all
from ztensor.store import settings

if TYPE_CHECKING:
    from ztensor._types import Path, Progress, StorageOptions


def save_file(
    tensors: Mapping[str, Any],
    filename: Path,
    metadata: Mapping[str, Any] | None,
    compression: Compression,
    checksum: str,
    progress: Progress,
    storage_options: StorageOptions,
) -> None:
    """Writes a file, which appears under its name only when it is complete."""
    writer = _native.Writer.create(filename, remote=settings(storage_options))
    try:
        write_all(writer, tensors, metadata, compression, checksum, progress)
        writer.finish()
    except BaseException:
        writer.abort()
        raise


def save(
    tensors: Mapping[str, Any],
    metadata: Mapping[str, Any] | None,
    compression: Compression,
    checksum: str,
    progress: Progress,
) -> bytes:
    """Writes into memory."""
    writer = _native.Writer.memory()
    write_all(writer, tensors, metadata, compression, checksum, progress)
    return writer.finish_bytes()


def load_all(
    reader: _native.Reader,
    framework: str,
    copy: bool,
    other: Callable[..., object],
    progress: Progress,
) -> dict[str, Any]:
    """All tensors of an open file."""
    if not progress:
        return reader.fetch(None, framework, copy, other)
    with reporting(progress, reader.byte_len(None), "loading") as tell:
        return reader.fetch(None, framework, copy, other, tell)


def open_file(
    filename: Path,
    storage_options: StorageOptions,
    max_bytes: int | None = None,
    max_total_bytes: int | None = None,
) -> _native.Reader:
    """A reader of a file, by its path or its URL."""
    return _native.Reader.open(
        filename,
        max_component=max_bytes,
        max_total=max_total_bytes,
        remote=settings(storage_options),
    )


def opened(
    data: bytes | bytearray | memoryview,
    max_bytes: int | None = None,
    max_total_bytes: int | None = None,
) -> _native.Reader:
    """A reader of a file that lies in memory."""
    return _native.Reader.from_bytes(
        bytes(data) if isinstance(data, memoryview) else data,
        max_component=max_bytes,
        max_total=max_total_bytes,
    )
