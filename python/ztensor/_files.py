"""What the modules of all frameworks share: whole files at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ztensor import _formats, _items, _native
from ztensor._errors import InvalidArgumentError
from ztensor._options import FileOptions, LoadOptions, SaveOptions
from ztensor._progress import reporting
from ztensor._types import Checksum, Compression, Format, Path, Progress
from ztensor._writer import dictionary, nbytes, write_all
from ztensor.store import settings


def save_file(
    tensors: Mapping[str, Any],
    filename: Path,
    metadata: Mapping[str, Any] | None,
    compression: Compression,
    options: SaveOptions,
) -> None:
    """Writes a file, which appears under its name only when it is complete."""
    target = _formats.target(filename, options["format"])
    checksum, progress = options["checksum"], options["progress"]
    remote = settings(options["storage_options"])
    if target != "zt":
        given = dictionary("tensors", tensors)
        items, attributes, coding = _exported(given, metadata, target, compression, checksum)
        total = sum(map(nbytes, given.values())) if progress else 0
        with reporting(progress, total, "saving") as tell:
            _native.export_file(filename, target, items, attributes, coding, remote, tell)
        return
    writer = _native.Writer.create(filename, remote=remote)
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
    checksum: Checksum,
    progress: Progress,
    format: Format,
) -> bytes:
    """Writes into memory."""
    target = _formats.named(format)
    if target != "zt":
        given = dictionary("tensors", tensors)
        items, attributes, coding = _exported(given, metadata, target, compression, checksum)
        total = sum(map(nbytes, given.values())) if progress else 0
        with reporting(progress, total, "saving") as tell:
            return _native.export_bytes(target, items, attributes, coding, tell)
    writer = _native.Writer.memory()
    write_all(writer, tensors, metadata, compression, checksum, progress)
    return writer.finish_bytes()


def _exported(
    tensors: dict[str, Any],
    metadata: Mapping[str, Any] | None,
    format: Format,
    compression: Compression,
    checksum: Checksum,
) -> tuple[list[Any], dict[str, Any] | None, _formats.Settings]:
    """What an export of tensors takes; options that the format has no use for are refused."""
    coding = _formats.settings(format, compression, checksum)
    attributes = dictionary("metadata", metadata) if metadata else None
    _formats.check_metadata(format, attributes)
    items = [_items.for_export(name, value) for name, value in tensors.items()]
    for name, layout, *_, last in (item for item in items if len(item) == 5):
        if not callable(last):
            _formats.check_layout(format, name, layout)
    return items, attributes, coding


def load_all(
    reader: _native.Reader,
    framework: str | None,
    copy: bool,
    other: Callable[..., object],
    progress: Progress,
) -> dict[str, Any]:
    """All tensors of an open file."""
    if not progress:
        return reader.fetch(None, framework, copy, other)
    with reporting(progress, reader.byte_len(None), "loading") as tell:
        return reader.fetch(None, framework, copy, other, tell)


def open_file(filename: Path, options: FileOptions) -> _native.Reader:
    """A reader of a file, by its path or its URL."""
    if isinstance(filename, bytes | bytearray | memoryview):
        raise TypeError("load_file() takes the path of a file: load() takes its bytes")
    return _native.Reader.open(
        filename,
        map=mapped(options["backend"]),
        verify=options["verify"],
        max_component=options["max_bytes"],
        max_total=options["max_total_bytes"],
        remote=settings(options["storage_options"]),
        pickle=options["pickle"],
    )


def open_bytes(data: bytes | bytearray | memoryview, options: LoadOptions) -> _native.Reader:
    """A reader of a file that lies in memory."""
    if isinstance(data, str):
        raise TypeError("load() takes the bytes of a file: load_file() takes its path")
    contents = bytes(data) if isinstance(data, memoryview) else data
    return _native.Reader.from_bytes(
        contents,
        verify=options["verify"],
        max_component=options["max_bytes"],
        max_total=options["max_total_bytes"],
        pickle=options["pickle"],
    )


def mapped(backend: str) -> bool:
    """Whether a backend maps files."""
    if backend not in ("mmap", "pread"):
        raise InvalidArgumentError(
            f'backend {backend!r} is invalid (expected one of: "mmap", "pread")'
        )
    return backend == "mmap"
