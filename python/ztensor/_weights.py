"""Weights of a model as the pairs of name and tensor that inference engines consume.

Shared by the plug-ins of engines: which files a model consists of, model deltas on top of them,
what a rank skips, and reading ahead of the engine.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, NamedTuple, Self, get_args

from ztensor import _casts, _llama_cpp, _native, store
from ztensor._errors import FileError, InvalidArgumentError, UnsupportedError
from ztensor._reader import Reader
from ztensor._tensor import Tensor
from ztensor._types import PicklePolicy
from ztensor.repository import PROTOCOL, open_url

if TYPE_CHECKING:
    import torch
else:
    from ztensor._types import torch

_BATCH_BYTES = 64 << 20
"""Decoded bytes read at once from remote and compressed files: a batch is read while the one before
it is copied to the model, so twice this is the memory of a load. Larger batches gain little: ranges
are coalesced and chunks decoded in parallel within a batch."""


@dataclass(frozen=True)
class Options:
    """How an engine reads weights, by the names that its extra configuration uses."""

    weights: str | list[str] | None = None
    """A file, index, folder or URL with the weights, or a version of a repository
    (``ztensor-repo://REPOSITORY@REF``), in place of the model's own folder."""
    variant: str | None = None
    """Reads ``model.VARIANT.safetensors``, or ``model.safetensors.index.VARIANT.json``'s shards."""
    delta: str | list[str] | None = None
    """Model deltas, applied in this order to the weights, which are their base."""
    scratch: str | None = None
    """Where deltas are applied: a folder with room for the model. Default: the system's."""
    dequantize: bool = False
    """Whether quantized tensors are loaded as the numbers that they stand for."""
    verify: bool = True
    """Whether checksums are compared where a file has them."""
    threads: int = 0
    """Threads of one read; 0 for one per core."""
    max_bytes: int | None = None
    """The size of the largest tensor."""
    max_total_bytes: int | None = None
    """The limit of what one read decodes."""
    storage_options: Mapping[str, Any] | None = None
    """How object stores are reached, where the environment does not say it."""
    pickle: PicklePolicy = "warn"
    """What becomes of pickles that are dangerous in tools that unpickle them."""
    check_missing: bool | None = None
    """Whether parameters that got no weights are an error. Default: where the engine checks it."""

    @classmethod
    def of(cls, given: object, source: str) -> Self:
        """Options from a dictionary; unknown names and wrong types are refused."""
        if not isinstance(given, Mapping):
            raise InvalidArgumentError(f"{source} is a dictionary, not {given!r}")
        known = [field.name for field in fields(cls)]
        unknown = sorted(str(name) for name in given if name not in known)
        if unknown:
            raise InvalidArgumentError(
                f"{source} has no option {', '.join(map(repr, unknown))}: known are "
                f"{', '.join(known)}"
            )
        for name, value in given.items():
            if not _TYPES[name](value):
                raise InvalidArgumentError(f"{source}: {name} cannot be {value!r}")
        return cls(**given)

    def without_sources(self) -> Self:
        """The same options for other files than the configured ones."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return type(self)(**own | {"weights": None, "variant": None, "delta": None})

    def opened(self, path: str) -> Reader:
        """A reader with these options."""
        if path.startswith(PROTOCOL):
            return open_url(
                path,
                threads=self.threads,
                max_bytes=self.max_bytes,
                max_total_bytes=self.max_total_bytes,
                storage_options=self.storage_options,
            )
        return Reader(
            path,
            verify=self.verify,
            threads=self.threads,
            max_bytes=self.max_bytes,
            max_total_bytes=self.max_total_bytes,
            storage_options=self.storage_options,
            pickle=self.pickle,
        )


def _is_paths(value: object) -> bool:
    listed = value if isinstance(value, list) and value else [value]
    return value is None or all(isinstance(one, str) and one for one in listed)


def _is_text(value: object) -> bool:
    return value is None or (isinstance(value, str) and bool(value))


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_size(value: object) -> bool:
    return value is None or (_is_count(value) and value != 0)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_TYPES: dict[str, Callable[[object], bool]] = {
    "weights": _is_paths,
    "variant": _is_text,
    "delta": _is_paths,
    "scratch": _is_text,
    "dequantize": _is_flag,
    "verify": _is_flag,
    "threads": _is_count,
    "max_bytes": _is_size,
    "max_total_bytes": _is_size,
    "storage_options": lambda value: value is None or isinstance(value, Mapping),
    "pickle": lambda value: value in get_args(PicklePolicy),
    "check_missing": lambda value: value is None or _is_flag(value),
}


def listed(value: str | list[str] | None) -> list[str]:
    """One path, several, or none, as a list."""
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def is_delta(path: str) -> bool:
    """Whether a path is named like a model delta."""
    return path.lower().endswith(".z4dm")


def variant_of(folder: str, variant: str, options: Options) -> str:
    """The file or the index of a variant in a folder, by the names that transformers uses."""
    names = [f"model.safetensors.index.{variant}.json", f"model.{variant}.safetensors"]
    for name in names:
        path = store.join(folder, name)
        if store.exists(path, storage_options=options.storage_options):
            return path
    raise FileError(f"{folder} has neither {names[0]} nor {names[1]}")


def with_fused(changed: Collection[str], names: Iterable[str]) -> set[str]:
    """The tensors to load when some have changed: these, and what engines may fuse with them.

    Engines merge tensors (queries, keys and values; gates and up projections; experts) and load a
    merged parameter whole. All that is merged is in one layer, which is what the first number in a
    name counts, or, outside of layers, in one module.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        parts = name.split(".")
        at = next((at for at, part in enumerate(parts) if part.isdecimal()), None)
        key = ("module", *parts[:-2]) if at is None else ("layer", *parts[: at + 1])
        groups.setdefault(key, []).append(name)
    touched = (group for group in groups.values() if not set(changed).isdisjoint(group))
    return {name for group in touched for name in group}


class Share(NamedTuple):
    """Which of several processes reads, and what it has no use for."""

    rank: int = 0
    world: int = 1
    skips: Callable[[str], bool] = lambda name: False
    """Whether a tensor of that name is not needed; it is not read then."""


class Weights:
    """Open files of one model, with deltas applied.

    Everything that can be wrong with headers, names and delta bases is found when this is made, so
    that an engine's own model is untouched then.
    """

    def __init__(
        self,
        paths: Sequence[str],
        options: Options,
        *,
        deltas: Sequence[str] = (),
        prefix: str = "",
    ) -> None:
        self._options, self._prefix = options, prefix
        self._closing = contextlib.ExitStack()
        with contextlib.ExitStack() as failed:
            failed.callback(self.close)
            if deltas:
                paths = [self._updated(paths, deltas)]
            self._parts = [_Part(options.opened(path), options) for path in paths]
            failed.pop_all()

    def _updated(self, paths: Sequence[str], deltas: Sequence[str]) -> str:
        """The file that deltas make of their base, removed when this is closed."""
        if len(paths) != 1:
            raise InvalidArgumentError("a model delta has one base: a file, an index or a folder")
        for path in (*paths, *deltas):
            if "://" in path:
                raise UnsupportedError(
                    f"{path}: model deltas are applied to local files: download it first"
                )
        folder = os.path.join(self._options.scratch or gettempdir(), f"z-{secrets.token_hex(8)}")
        os.mkdir(folder, 0o700)
        self._closing.callback(os.rmdir, folder)
        out = os.path.join(folder, "model.safetensors")
        self._closing.callback(_remove_if_there, out)
        _native.z4dm_apply(
            paths[0],
            list(deltas),
            out,
            self._options.threads,
            max_total_bytes=self._options.max_total_bytes,
        )
        return out

    def names(self) -> list[str]:
        """The names of all tensors, in the order of the files."""
        return [self._prefix + name for part in self._parts for name in part.names().values()]

    def tensors(
        self, share: Share | None = None, dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """All tensors that a process needs, each one once; closes the files at the end.

        Of several processes each begins at another place, so that they do not ask a store for the
        same ranges at the same time. Dequantized tensors are of the type ``dtype``.
        """
        share = share or Share()
        items = [
            _Item(part, name, self._prefix + restored, part.bytes_of(name))
            for part in self._parts
            for name, restored in part.names().items()
            if not share.skips(self._prefix + restored)
        ]
        try:
            yield from _read_ahead(_spread(items, share.rank, share.world), dtype)
        finally:
            self.close()

    def close(self) -> None:
        """Closes the files and removes what deltas made."""
        for part in getattr(self, "_parts", []):
            part.reader.close()
        self._closing.close()


def _remove_if_there(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


class _Part:
    """One open file, index or folder."""

    def __init__(self, reader: Reader, options: Options) -> None:
        self.reader, self._options = reader, options
        names = reader.keys()
        self._restored = None
        if reader.format == "gguf":
            self._restored = _llama_cpp.restored_names(names, reader.attributes)
        self._quantized = set()
        for metadata in reader.metadata(names):
            if metadata.format == "dense":
                continue
            if not _casts.is_quantized(metadata.format):
                raise UnsupportedError(
                    f"{reader._path}: tensor {metadata.name!r} is {metadata.format}, "
                    "and engines load dense tensors"
                )
            if not options.dequantize:
                raise UnsupportedError(
                    f"{reader._path}: tensor {metadata.name!r} is {metadata.format}: "
                    "dequantize=true loads the numbers that it stands for"
                )
            self._quantized.add(metadata.name)

    def names(self) -> dict[str, str]:
        """Names in the file, with the names in the model."""
        if self._restored is not None:
            return {name: one.name for name, one in self._restored.items()}
        return {name: name for name in self.reader.keys()}

    def bytes_of(self, name: str) -> int:
        """Memory that a tensor takes while it is read."""
        metadata = self.reader.metadata(name)
        return metadata.size * 4 if name in self._quantized else metadata.nbytes

    def is_view(self, name: str) -> bool:
        """Whether a tensor is mapped rather than read."""
        parts = self.reader.metadata(name).components.values()
        raw = all(part["encoding"] == "raw" for part in parts)
        return raw and not self.reader._by_url and name not in self._quantized

    def read(self, names: list[str], dtype: torch.dtype | None) -> list[torch.Tensor]:
        """Tensors of the model, several at once."""
        plain = [name for name in names if name not in self._quantized]
        found: dict[str, Any] = self.reader.read_torch(plain) if plain else {}
        for name in names:
            if name in self._quantized:
                numbers = Tensor({"data": self.reader.read(name).dequantize()}).torch()
                found[name] = numbers if dtype is None else numbers.to(dtype)
        if self._restored is not None:
            return [self._restored[name].apply(found[name]) for name in names]
        return [found[name] for name in names]


class _Item(NamedTuple):
    """One tensor to be read."""

    part: _Part
    name: str
    restored: str
    bytes: int


def _spread(items: list[_Item], rank: int, world: int) -> list[_Item]:
    """The same items, from the one at ``rank / world`` of all bytes, and around."""
    before, total = 0, sum(item.bytes for item in items)
    for at, item in enumerate(items):
        if before * world >= total * rank:
            return items[at:] + items[:at]
        before += item.bytes
    return items


def _read_ahead(
    items: list[_Item], dtype: torch.dtype | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Mapped tensors as views; batches of others, each read while the one before it is used."""

    def read(batch: list[_Item]) -> list[tuple[str, torch.Tensor]]:
        tensors = batch[0].part.read([item.name for item in batch], dtype)
        return [(item.restored, tensor) for item, tensor in zip(batch, tensors, strict=True)]

    pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="ztensor-weights")
    try:
        ahead: list[concurrent.futures.Future[list[tuple[str, torch.Tensor]]]] = []
        for batch in _batches(items):
            if batch[0].part.is_view(batch[0].name):
                while ahead:
                    yield from ahead.pop(0).result()
                yield from read(batch)
                continue
            ahead.append(pool.submit(read, batch))
            if len(ahead) > 1:
                yield from ahead.pop(0).result()
        while ahead:
            yield from ahead.pop(0).result()
    finally:
        # A thread that goes on to read would use files that are being closed.
        pool.shutdown(wait=True, cancel_futures=True)


def _batches(items: list[_Item]) -> Iterator[list[_Item]]:
    """Neighbours of one file. Mapped tensors are alone, or part of a batch that is read anyway."""
    batch: list[_Item] = []
    size = 0
    for item in items:
        view = item.part.is_view(item.name)
        added = 0 if view else item.bytes
        if batch and (item.part is not batch[0].part or size + added > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        if view and not batch:
            yield [item]
            continue
        batch.append(item)
        size += added
    if batch:
        yield batch
