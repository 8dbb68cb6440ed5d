"""A distributed checkpoint: which files it has, and what is where in them.

``checkpoint.json`` is written last, in one step, and names every rank file with its length and
the SHA-256 of its end (manifest and footer, in which every tensor's place and checksum stand). A
folder without it holds no complete checkpoint; a file that is not the one that was saved is
refused before anything is read from it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import threading
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ztensor import _dtypes, _errors, _native
from ztensor._errors import CorruptError, MismatchError, UnsupportedError
from ztensor._reader import Reader
from ztensor.distributed import _values
from ztensor.distributed._store import Folder, Store

NAME = "checkpoint.json"
FORMAT = "ztensor.distributed"
VERSION = 1
INCREMENTAL = 2
"""The version of a checkpoint that has chunks which are differences from another one."""
PLAIN, PICKLE = "json", "pickle"

_RANK_FILE = re.compile(r"rank-\d{5,}\.[0-9a-f]{16}\.zt")
_LEFT_OVER = re.compile(rf"\.({_RANK_FILE.pattern}|{re.escape(NAME)})\..*tmp")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAGIC = b"ZTEN1000"
_TAIL = 64 << 10
"""The end of a file is read at once if it is not longer."""
_MANIFEST = 1 << 30
MAX_CHAIN = 4096
"""Checkpoints that restoring one may take, at most."""


class RankFile(NamedTuple):
    """A file of a checkpoint, as it was when it was saved."""

    name: str
    length: int
    digest: str


class Chunk(NamedTuple):
    """A box of a tensor, and where it is stored."""

    file: int
    object: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    delta: bool = False
    """Whether it is stored as its difference from the same box of the base."""


class Base(NamedTuple):
    """The checkpoint that chunks are differences from, and how long the chain to it is."""

    name: str
    """Of its folder, beside the folder of this one."""
    save: str
    deltas: int
    """Checkpoints since the last one that needs no other, this one included."""
    bytes: int
    """Bytes of their files."""


class Object(NamedTuple):
    """A value that is no tensor, and where it is stored."""

    file: int
    object: str
    kind: str


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of the whole model, and its chunks: a proved partition.

    Targets are filled without being cleared first, so an entry whose chunks overlap, stick out or
    leave a gap cannot be made, from whatever source it comes.
    """

    element: _dtypes.Element
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    def __post_init__(self) -> None:
        boxes = [(chunk.offsets, chunk.sizes) for chunk in self.chunks]
        _native.prove_partition(self.shape, boxes)


@dataclass
class Checkpoint:
    """What ``checkpoint.json`` says."""

    files: list[RankFile] = field(default_factory=list)
    tensors: dict[str, TensorEntry] = field(default_factory=dict)
    objects: dict[str, Object] = field(default_factory=dict)
    paths: dict[str, tuple[str | int, ...]] | None = None
    """The keys that lead to each value in the nested state dict."""
    planner: Any = None
    """What a planner of the user's wants to know again."""
    save: str = field(default_factory=lambda: secrets.token_hex(8))
    base: Base | None = None

    @property
    def stored_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.length for file in self.files)

    def to_json(self) -> bytes:
        """The file."""
        document: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION if self.base is None else INCREMENTAL,
            "save": self.save,
            "files": [file._asdict() for file in self.files],
            "tensors": {
                name: {
                    "dtype": entry.element.name,
                    "shape": entry.shape,
                    "chunks": [_described(chunk) for chunk in entry.chunks],
                }
                for name, entry in self.tensors.items()
            },
            "objects": {name: value._asdict() for name, value in self.objects.items()},
        }
        if self.base is not None:
            document["base"] = self.base._asdict()
        if self.paths is not None:
            document["paths"] = self.paths
        if self.planner is not None:
            document["planner"] = json.loads(_values.encode(self.planner))
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Checkpoint:
        """Reads the file; every number in it is a claim."""
        document = _values.parsed(data)
        suspicious = b"\\ud" in data.lower() or b"\xed" in data
        if suspicious and _SURROGATE.search(json.dumps(document, ensure_ascii=False)):
            raise CorruptError(f"{NAME} has a name with half of a surrogate pair in it")
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise CorruptError(f"this is not the {NAME} of a distributed checkpoint")
        if document.get("version") not in (VERSION, INCREMENTAL):
            raise UnsupportedError(
                f"version {document.get('version')!r} of {FORMAT}: "
                f"this one knows {VERSION} and {INCREMENTAL}"
            )
        self = cls(save=_string(document, "save"))
        if document.get("version") == INCREMENTAL:
            self.base = _base(_object(document, "base"))
        self.files = [_file(entry) for entry in _list(document, "files")]
        if len({file.name for file in self.files}) != len(self.files):
            raise CorruptError("two files have the same name")
        for name, entry in _object(document, "tensors").items():
            self.tensors[name] = _tensor(name, entry, len(self.files))
            if self.base is None and any(chunk.delta for chunk in self.tensors[name].chunks):
                raise CorruptError(f"tensor {name!r} is a difference, but there is no base")
        for name, entry in _object(document, "objects").items():
            if name in self.tensors:
                raise CorruptError(f"{name!r} is a tensor and an object")
            kind = _string(entry, "kind")
            if kind not in (PLAIN, PICKLE):
                raise UnsupportedError(f"object {name!r} has the unknown kind {kind!r}")
            file = _index(entry, len(self.files))
            self.objects[name] = Object(file, _string(entry, "object"), kind)
        if "paths" in document:
            self.paths = {
                name: checked_path(path) for name, path in _object(document, "paths").items()
            }
        if "planner" in document:
            self.planner = _values.restored(document["planner"])
        return self


def load(store: Store) -> Checkpoint:
    """The checkpoint that a place holds; an error says if there is none that is complete."""
    data = store.read(NAME)
    if data is None:
        started = any(_RANK_FILE.fullmatch(name) for name in store.names())
        reason = (
            "a save began here but never finished"
            if started
            else "no distributed checkpoint was saved here"
        )
        path = store.path(NAME)
        raise _errors.make("io", f"{path} does not exist: {reason}", 2, path)
    try:
        return Checkpoint.from_json(data)
    except _errors.ZTensorError as error:
        error.args = (f"{store.path(NAME)}: {error}",)
        error.file = store.path(NAME)
        raise


def exists(store: Store) -> bool:
    """Whether a place holds a complete checkpoint."""
    return store.length(NAME) is not None


def commit(store: Store, checkpoint: Checkpoint, durable: bool) -> None:
    """Makes a save visible, whole and at once, and drops what it replaces."""
    for file in checkpoint.files:
        check_length(store, file)
    store.write(NAME, checkpoint.to_json(), durable)
    kept = {file.name for file in checkpoint.files}
    for name in store.names():
        if name not in kept and (_RANK_FILE.fullmatch(name) or _LEFT_OVER.fullmatch(name)):
            try:
                store.remove(name)
            except OSError as error:
                warnings.warn(f"the checkpoint is saved, but {error}", stacklevel=2)


def remove(store: Store, checkpoint: Checkpoint) -> None:
    """Takes a checkpoint away: first what makes it one, then its files."""
    store.remove(NAME)
    for file in checkpoint.files:
        store.remove(file.name)
    if isinstance(store, Folder) and not store.names():
        os.rmdir(store.root)


def rank_file_name(rank: int) -> str:
    """A name that no other save uses, so that what is there stays until it is replaced."""
    return f"rank-{rank:05}.{secrets.token_hex(8)}.zt"


def fingerprint(store: Store, name: str, length: int) -> str:
    """The SHA-256 of a ``.zt`` file's end, which says what is where in it."""
    damaged = CorruptError(f"{store.path(name)} is not a complete .zt file")
    if length < 24:
        raise damaged
    count = min(length, _TAIL)
    tail = store.read_at(name, length - count, count)
    manifest = int.from_bytes(tail[-16:-8], "little")
    if len(tail) != count or tail[-8:] != _MAGIC or manifest > min(length - 24, _MANIFEST):
        raise damaged
    if manifest + 16 > count:
        tail = store.read_at(name, length - manifest - 16, manifest + 16)
    return "sha256:" + hashlib.sha256(tail[-manifest - 16 :]).hexdigest()


def check_length(store: Store, file: RankFile) -> None:
    """Refuses a file that is missing or has another length than it was saved with."""
    length = store.length(file.name)
    path = store.path(file.name)
    if length is None:
        message = (
            f"{path} is missing: the checkpoint is damaged, its {NAME} belongs elsewhere, "
            "or another save has replaced it meanwhile"
        )
        raise _errors.make("io", message, 2, path)
    if length != file.length:
        error = CorruptError(
            f"{path} has {length} bytes, but was saved with {file.length}: "
            "it was truncated or changed"
        )
        error.file = path
        raise error


class Files:
    """The open rank files of a checkpoint, each checked before it is used."""

    def __init__(self, store: Store, files: list[RankFile], threads: int = 0) -> None:
        self._store, self._files, self._threads = store, files, threads
        self._open: dict[int, Reader] = {}
        self._lock = threading.Lock()

    def reader(self, index: int) -> Reader:
        """The reader of a file."""
        with self._lock:
            if index not in self._open:
                self._open[index] = self._opened(self._files[index])
            return self._open[index]

    def _opened(self, file: RankFile) -> Reader:
        check_length(self._store, file)
        if fingerprint(self._store, file.name, file.length) != file.digest:
            path = self._store.path(file.name)
            error = MismatchError(
                f"{path} is not the file that was saved: it was changed, or is of another save"
            )
            error.file = path
            raise error
        return self._store.reader(file.name, self._threads)

    def close(self) -> None:
        """Closes all files."""
        with self._lock:
            for reader in self._open.values():
                reader.close()
            self._open.clear()


def _list(parent: Any, key: str) -> list[Any]:
    value = parent.get(key) if isinstance(parent, dict) else None
    if not isinstance(value, list):
        raise CorruptError(f"the list {key!r} is missing")
    return value


def _object(parent: Any, key: str) -> Mapping[str, Any]:
    value = parent.get(key) if isinstance(parent, dict) else None
    if not isinstance(value, dict):
        raise CorruptError(f"the object {key!r} is missing")
    return value


def _string(parent: Any, key: str) -> str:
    value = parent.get(key) if isinstance(parent, dict) else None
    if not isinstance(value, str):
        raise CorruptError(f"the string {key!r} is missing")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise CorruptError(f"{value!r} is not a size or a position")
    return value


def _numbers(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(_number(value) for value in values)


def _index(parent: Any, count: int) -> int:
    index = _number(parent.get("file") if isinstance(parent, dict) else None)
    if index >= count:
        raise CorruptError(f"there is no file {index}: {count} are listed")
    return index


def _file(entry: Any) -> RankFile:
    name, digest = _string(entry, "name"), _string(entry, "digest")
    # Nothing but a file of the same folder.
    if not _RANK_FILE.fullmatch(name):
        raise CorruptError(f"{name!r} is not the name of a rank file")
    return RankFile(name, _number(entry.get("length")), digest)


def _tensor(name: str, entry: Any, files: int) -> TensorEntry:
    try:
        element = _dtypes.named(_string(entry, "dtype"))
        shape = _numbers(_list(entry, "shape"))
        chunks = tuple(_chunk(chunk, files) for chunk in _list(entry, "chunks"))
        return TensorEntry(element, shape, chunks)
    except (CorruptError, UnsupportedError, _errors.InvalidArgumentError) as error:
        raise CorruptError(f"tensor {name!r}: {error}") from None


def _chunk(entry: Any, files: int) -> Chunk:
    offsets, sizes = _numbers(_list(entry, "offsets")), _numbers(_list(entry, "sizes"))
    delta = entry.get("delta", False)
    if type(delta) is not bool:
        raise CorruptError(f"{delta!r} is neither true nor false")
    return Chunk(_index(entry, files), _string(entry, "object"), offsets, sizes, delta)


def _described(chunk: Chunk) -> dict[str, Any]:
    document = chunk._asdict()
    if not chunk.delta:
        del document["delta"]
    return document


def _base(entry: Mapping[str, Any]) -> Base:
    name, save = _string(entry, "name"), _string(entry, "save")
    # Nothing but a folder beside this one.
    if not is_folder_name(name):
        raise CorruptError(f"{name!r} is not the name of a folder")
    deltas, length = _number(entry.get("deltas")), _number(entry.get("bytes"))
    if not 1 <= deltas <= MAX_CHAIN:
        raise CorruptError(f"a chain of {deltas} checkpoints; at most {MAX_CHAIN} are allowed")
    return Base(name, save, deltas, length)


def is_folder_name(name: str) -> bool:
    """Whether a text names a folder and leads nowhere else."""
    return name not in ("", ".", "..") and not any(sign in name for sign in "/\\\0")


def checked_path(path: Any) -> tuple[str | int, ...]:
    """The keys that lead to a value."""
    if not isinstance(path, list) or not path:
        raise CorruptError("a path is a list of keys")
    for key in path:
        # Lists are filled up to an index, so that a huge one would eat all memory.
        if not (isinstance(key, str) or (type(key) is int and 0 <= key < 1 << 20)):
            raise CorruptError(f"{key!r} is not a key of a state dict")
    return tuple(path)
