"""Weight sync: publish the versions of a model in training, and follow them.

A trainer publishes each step into a folder or an object store, mostly as the difference from the
step before; inference hosts bring a local checkpoint, or tensors in memory, up to date.

>>> import numpy as np
>>> from ztensor import sync
>>> weights = {"w": np.zeros((100, 100), np.float32)}
>>> publisher = sync.Publisher("stream", base=weights)
>>> weights["w"][3, 4] = 1.5
>>> publisher.publish(weights).version
'000001'

A subscriber with tensors in memory:

>>> live = {"w": np.zeros((100, 100), np.float32)}
>>> subscriber = sync.Subscriber("stream")
>>> subscriber.apply_to(live).changed
['w']
>>> float(live["w"][3, 4])
1.5

Streams have the format that slime, miles, vime and ModelExpress share; ``compression="z4ai"`` makes
smaller ones that only this library reads. See ``docs/sync.md``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union

import numpy as np

from ztensor import _dtypes, _native, store
from ztensor._errors import FileError, InvalidArgumentError, NotFoundError
from ztensor._types import AnyArray, Path, StorageOptions

if TYPE_CHECKING:
    import torch
else:
    from ztensor._types import torch

__all__ = [
    "Change",
    "Changed",
    "LogEntry",
    "Published",
    "Publisher",
    "Pulled",
    "Status",
    "Subscriber",
    "Verified",
    "fold",
    "log",
    "prune",
    "pull",
    "status",
    "verify",
]

Encoding: TypeAlias = Literal["xor", "overwrite"]
Compression: TypeAlias = Literal["zstd", "z4ai"]
Checksum: TypeAlias = Literal["xxh3-128", "blake3", "adler32"]
Layout: TypeAlias = Literal["numbered", "named", "skyrl"]
State: TypeAlias = Union[  # noqa: UP007
    Mapping[str, Any], Iterable[tuple[str, Any]], Sequence[Iterable[tuple[str, Any]]], Path
]
"""A state dict, pairs of names and tensors, such pairs of several ranks, or a model on disk."""

_BATCH = 256 << 20
"""Bytes of tensors from an iterator that are compared together."""


@dataclass(frozen=True)
class Published:
    """A version that was published."""

    version: str
    full: str | None
    """Why it is a full version; ``None`` for a delta."""
    changed: int
    """Tensors that changed."""
    bytes: int
    """Bytes of the version's files."""
    total: int
    """Bytes of all tensors."""
    encoding: str
    target_id: str
    """Content id of the model."""


@dataclass(frozen=True)
class Changed:
    """A tensor of a local checkpoint that a pull changed, and where it is."""

    name: str
    file: str
    offset: int
    bytes: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Pulled:
    """What a pull did."""

    before: str | None
    """The version before; ``None`` if there was no checkpoint."""
    version: str
    steps: list[str]
    """What was applied: ``seed from base``, ``full 4``, ``delta 5``, ``fold 2 to 9``."""
    changed: list[str]
    """Names of the tensors that changed."""
    read: int
    """Bytes that were read from the stream."""
    tensors: list[Changed] = field(default_factory=list)
    """Where the changed tensors are in the local checkpoint."""


@dataclass(frozen=True)
class Change:
    """Elements of a tensor that a version changes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    positions: np.ndarray[Any, np.dtype[np.uint64]]
    """Positions of the changed elements in row-major order."""
    values: AnyArray
    """Their new values; as unsigned integers where NumPy does not have the type."""


@dataclass(frozen=True)
class Status:
    """Where a stream and a local checkpoint are."""

    newest: str | None
    newest_full: str | None
    versions: int
    applied: str | None
    interrupted: bool
    """Whether a pull was interrupted, which the next one finishes."""


@dataclass(frozen=True)
class LogEntry:
    """What a version changed."""

    version: str
    base: str | None
    form: str
    tensors: int
    changed: tuple[int, int] | None
    """Elements that changed, and elements of the tensors that did."""
    norm: float | None
    """Euclidean norm of the change."""
    bytes: int


@dataclass(frozen=True)
class Verified:
    """A local checkpoint against what was applied to it."""

    version: str | None
    checked: int
    unknown: list[str]
    differ: list[str]


def _item(name: str, tensor: Any, *, filled: bool) -> tuple[str, str, tuple[int, ...], Any]:
    """A tensor as the native library takes it: contiguous and in memory."""
    if _dtypes.is_torch(tensor):
        tensor = tensor.detach()
        if not filled:
            tensor = tensor.cpu().contiguous()
        elif not (tensor.is_cpu and tensor.is_contiguous()):
            raise InvalidArgumentError(
                f"{name!r} is not a contiguous tensor on the CPU: take the changes by changes()"
            )
        return name, _dtypes.of_torch(tensor.dtype).name, tuple(tensor.shape), tensor
    array = np.asarray(tensor)
    if not filled:
        array = np.ascontiguousarray(array).reshape(array.shape)
    elif array is not tensor or not array.flags.c_contiguous:
        raise InvalidArgumentError(f"{name!r} is not a contiguous NumPy array")
    return name, _dtypes.of_numpy(array.dtype).name, array.shape, array


def _pairs(state: Any) -> Iterator[tuple[str, Any]]:
    return iter(state.items() if isinstance(state, Mapping) else state)


def _is_path(state: object) -> bool:
    return isinstance(state, str | os.PathLike)


def _ranks(state: Any) -> list[Iterable[tuple[str, Any]]]:
    """The pairs of each rank."""
    if isinstance(state, Mapping):
        return [state.items()]
    if isinstance(state, list | tuple) and state:
        first = state[0]
        is_pair = isinstance(first, tuple) and len(first) == 2 and isinstance(first[0], str)
        if not is_pair:
            return [_pairs(rank) for rank in state]
    return [state]


def _version(version: int | str | None) -> str | None:
    return f"{version:06}" if isinstance(version, int) else version


class Publisher:
    """Publishes the versions of a model, each compared with the one before.

    ``base`` is the state of the stream's newest version (version 0 if it has none yet): a state
    dict, pairs of names and tensors, or a model file or folder. A version appears whole or not at
    all. Tensors that are added, removed or resized make a full version, unless ``compression`` is
    ``"z4ai"``; so do ``anchor_every`` deltas since the last one, or deltas that take more than
    ``anchor_ratio`` times what a full version does.

    Shards have a ``checksum`` of each tensor: XXH3-128, which every receiver knows, or with z4ai
    BLAKE3, which is computed for the content ids anyway.

    The state that was published last is kept in memory, or in mapped files without names in
    ``snapshot_folder``, from where the system may drop it from memory.
    """

    def __init__(
        self,
        stream: Path,
        base: State,
        *,
        encoding: Encoding = "xor",
        compression: Compression = "zstd",
        checksum: Checksum | None = None,
        anchor_every: int | None = None,
        anchor_ratio: float | None = 1.0,
        files_from: Path | None = None,
        layout: Layout = "numbered",
        threads: int = 0,
        durable: bool = True,
        replace_unfinished: bool = False,
        snapshot_folder: Path | None = None,
        storage_options: StorageOptions = None,
    ) -> None:
        place = (stream, layout, store.settings(storage_options))
        settings = (
            encoding,
            compression,
            checksum,
            anchor_every,
            anchor_ratio,
            files_from,
            threads,
            durable,
            replace_unfinished,
            snapshot_folder,
        )
        if isinstance(base, str | os.PathLike):
            self._native = _native.SyncPublisher.from_path(place, base, settings)
        else:
            items = [_item(name, tensor, filled=False) for name, tensor in _pairs(base)]
            self._native = _native.SyncPublisher.from_tensors(place, items, settings)

    @property
    def version(self) -> str:
        """The version that was published last."""
        return self._native.version

    @property
    def stream_id(self) -> str:
        """The random name of this run, which all its versions carry."""
        return self._native.stream_id

    def start_from(self, version: str) -> None:
        """Says which version the state is, in a stream whose versions have names of their own."""
        self._native.start_from(version)

    def publish(self, state: State, *, full: bool = False, name: str | None = None) -> Published:
        """Publishes a state as the next version.

        A list of iterables is taken as the tensors of several ranks, each of which gets a shard;
        a tensor that several ranks have must be the same in all. Tensors are read once, and large
        states may come from a generator.
        """
        if isinstance(state, str | os.PathLike):
            return Published(*self._native.publish_path(state, name, full))
        self._native.begin()
        for rank, pairs in enumerate(_ranks(state)):
            batch: list[tuple[str, str, tuple[int, ...], Any]] = []
            held = 0
            for tensor_name, tensor in pairs:
                item = _item(tensor_name, tensor, filled=False)
                batch.append(item)
                held += item[3].nbytes
                if held >= _BATCH:
                    self._native.add(batch, rank)
                    batch, held = [], 0
            if batch:
                self._native.add(batch, rank)
        return Published(*self._native.finish(name, full))


class Subscriber:
    """Follows a stream: with a local checkpoint, or with tensors in memory.

    ``local`` is a Hugging Face folder, which is made from ``base``, the model of version 0, the
    first time. Several processes may share it: one applies a version, the others find it there.
    """

    def __init__(
        self,
        stream: Path,
        local: Path | None = None,
        *,
        base: Path | None = None,
        version: int | str = 0,
        layout: Layout = "numbered",
        threads: int = 0,
        durable: bool = True,
        storage_options: StorageOptions = None,
    ) -> None:
        self._stream = (stream, layout, store.settings(storage_options))
        self._local = local
        self._base = base
        self._threads = threads
        self._durable = durable
        self._memory = _native.SyncMemory(_version(version) or "000000")

    @property
    def version(self) -> str | None:
        """The version of the local checkpoint, or of the tensors in memory without one."""
        if self._local is None:
            return self._memory.version
        version = self._state("state.json").get("version")
        return _version(version) if isinstance(version, int | str) else None

    def digests(self) -> dict[str, dict[str, str]]:
        """Content ids and checksums of the local checkpoint's tensors, each by its algorithm.

        A tensor with the same digests has the same content. Tensors of which none is known have
        an empty dictionary; there are none at all if another program applied the last version.
        """
        ledger = self._state("ledger.json")
        tensors = ledger.get("tensors")
        current = ledger.get("version") == self.version
        return tensors if current and isinstance(tensors, dict) else {}

    def _state(self, name: str) -> dict[str, Any]:
        """What a file of the local checkpoint's state holds; nothing if there is none."""
        if self._local is None:
            return {}
        try:
            state = json.loads(store.read_bytes(store.join(self._local, f".weight_sync/{name}")))
        except (FileError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def newest(self) -> str | None:
        """The newest version of the stream."""
        versions = _native.sync_versions(self._stream)
        return versions[-1] if versions else None

    def pull(
        self,
        version: int | str | None = None,
        *,
        restart: bool = False,
        allow_structure: bool = False,
        timeout: float = 600.0,
        progress: Callable[[int], object] | None = None,
    ) -> Pulled:
        """Brings the local checkpoint to a version, the newest by default.

        Everything is checked before the first byte changes. ``restart`` rebuilds a checkpoint that
        is newer than the version or of another run; ``allow_structure`` accepts full versions with
        other tensors, types or shapes. ``timeout`` is how long another process is waited for that
        applies a version to the same checkpoint.
        """
        if self._local is None:
            raise InvalidArgumentError("this subscriber has no local checkpoint: use apply_to()")
        before, now, steps, changed, read = _native.sync_pull(
            self._stream,
            self._local,
            version=_version(version),
            base=self._base,
            restart=restart,
            allow_structure=allow_structure,
            threads=self._threads,
            durable=self._durable,
            patience=timeout,
            progress=progress,
        )
        tensors = [Changed(*entry[:5], tuple(entry[5])) for entry in changed]
        return Pulled(before, now, steps, [tensor.name for tensor in tensors], read, tensors)

    def apply_to(
        self,
        tensors: Mapping[str, AnyArray | torch.Tensor],
        version: int | str | None = None,
        *,
        atomic: bool = True,
    ) -> Pulled:
        """Brings tensors in memory to a version, in place.

        With ``atomic`` all of them change or none. Without it, each tensor changes whole or not at
        all, which takes less time; after an error some may have changed: load them anew.
        """
        before = self._memory.version
        items = [_item(name, tensor, filled=True) for name, tensor in tensors.items()]
        now, changed, read = self._memory.pull(
            self._stream, items, _version(version), atomic, self._threads
        )
        return Pulled(before, now, [], changed, read)

    def changes(
        self,
        tensors: Mapping[str, AnyArray | torch.Tensor],
        version: int | str | None = None,
    ) -> Iterator[Change]:
        """The elements that a version changes, tensor by tensor, for an engine that patches its own
        memory. ``tensors`` hold the version before, and are not changed: give the changed ones to
        the caller's engine and to ``tensors`` before the next call.
        """
        items = [_item(name, tensor, filled=True) for name, tensor in tensors.items()]
        found, after = self._memory.sparse(self._stream, items, _version(version))
        for name, dtype, shape, positions, values in found:
            element = _dtypes.named(dtype)
            numpy = _dtypes.raw_numpy_dtype(element)
            yield Change(
                name,
                dtype,
                tuple(shape),
                np.frombuffer(positions, np.uint64),
                np.frombuffer(values, numpy),
            )
        self._memory = after

    def load_changed(
        self, pulled: Pulled, *, framework: Literal["torch", "numpy"] = "torch"
    ) -> Iterator[tuple[str, Any]]:
        """The tensors that a pull changed, read from the local checkpoint; no others are read."""
        if self._local is None:
            raise InvalidArgumentError("this subscriber has no local checkpoint")
        from ztensor._reader import Reader

        with Reader(self._local) as reader:
            read = reader.read_torch if framework == "torch" else reader.read_numpy
            for name in pulled.changed:
                yield name, read(name)

    def watch(
        self,
        *,
        interval: float = 0.5,
        max_interval: float = 10.0,
        timeout: float | None = None,
        tensors: Mapping[str, AnyArray | torch.Tensor] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Iterator[Pulled]:
        """Follows the stream: yields after each pull that changed something.

        Without news, and after a failed attempt to reach the stream, the time between two attempts
        doubles from ``interval`` up to ``max_interval``. It ends when nothing new came for
        ``timeout`` seconds, or when ``stop()`` says so. With ``tensors`` these are changed instead
        of the local checkpoint. What is wrong with a version itself is raised.
        """
        wait, last = interval, time.monotonic()
        while not (stop is not None and stop()):
            try:
                newest = self.newest()
                news = newest is not None and newest != self.version
                pulled = None
                if news:
                    pulled = self.pull() if tensors is None else self.apply_to(tensors)
            except (FileError, NotFoundError):
                # The store did not answer, or a version was pruned while it was read.
                pulled = None
            if pulled is not None:
                wait, last = interval, time.monotonic()
                yield pulled
                continue
            if timeout is not None and time.monotonic() - last >= timeout:
                return
            time.sleep(wait)
            wait = min(2 * wait, max_interval)


def _place(
    stream: Path, layout: Layout, storage_options: StorageOptions
) -> tuple[Path, str, dict[str, str] | None]:
    return stream, layout, store.settings(storage_options)


def pull(
    stream: Path,
    local: Path,
    *,
    base: Path | None = None,
    version: int | str | None = None,
    restart: bool = False,
    durable: bool = True,
    threads: int = 0,
    layout: Layout = "numbered",
    storage_options: StorageOptions = None,
) -> Pulled:
    """Brings a local checkpoint to a version of a stream: see :meth:`Subscriber.pull`."""
    subscriber = Subscriber(
        stream,
        local,
        base=base,
        layout=layout,
        threads=threads,
        durable=durable,
        storage_options=storage_options,
    )
    return subscriber.pull(version, restart=restart)


def status(
    stream: Path, local: Path | None = None, *, storage_options: StorageOptions = None
) -> Status:
    """The newest versions of a stream, and what a local checkpoint holds."""
    return Status(**_native.sync_status(_place(stream, "numbered", storage_options), local))


def log(stream: Path, *, storage_options: StorageOptions = None) -> list[LogEntry]:
    """What each version of a stream changed, oldest first."""
    entries = _native.sync_log(_place(stream, "numbered", storage_options))
    return [LogEntry(*entry) for entry in entries]


def fold(
    stream: Path,
    first: int,
    last: int,
    *,
    base: Path | None = None,
    threads: int = 0,
    storage_options: StorageOptions = None,
) -> tuple[int, int]:
    """Folds the deltas after version ``first`` up to ``last`` into one, for hosts far behind.

    Returns the bytes of the deltas and of the fold. Deltas of z4ai need ``base``, the model of
    version ``first``.
    """
    settings = ("xor", "zstd", None, None, None, None, threads, True, False, None)
    place = _place(stream, "numbered", storage_options)
    return _native.sync_fold(place, f"{first:06}", f"{last:06}", base, settings)


def prune(
    stream: Path,
    *,
    keep: int = 10,
    in_use: Iterable[int | str] = (),
    dry_run: bool = False,
    storage_options: StorageOptions = None,
) -> list[str]:
    """Removes versions that no host needs; returns their folders.

    Kept are the ``keep`` newest versions, what hosts at the versions ``in_use`` need to go on, and
    what leads a new host to the newest ones. Without a full version nothing can go.
    """
    held = [_version(version) or "" for version in in_use]
    place = _place(stream, "numbered", storage_options)
    return _native.sync_prune(place, keep, held, dry_run)


def verify(local: Path, *, threads: int = 0) -> Verified:
    """Hashes the tensors of a local checkpoint and compares them with what was applied."""
    return Verified(*_native.sync_verify(local, threads))
