"""Repositories of checkpoints: versions of models, each stored as what is new in it.

A repository is a folder or a prefix of an object store. A version is the files that were committed
(weights of any format, configuration, tokenizer) and comes back byte for byte. Equal tensors are
stored once, similar ones as differences, and any tensor of any version is read without a checkout.

>>> import numpy as np, ztensor
>>> repository = ztensor.Repository.init("models")
>>> weights = {"w": np.linspace(-1, 1, 10_000, dtype=np.float32).reshape(100, 100)}
>>> first = repository.commit(weights, "first")
>>> weights["w"][3] *= 1.01
>>> second = repository.commit(weights, "second", tag="best", metadata={"loss": 1.5})
>>> second.stored < first.stored / 10
True
>>> [entry.message for entry in repository.log()]
['second', 'first']
>>> with repository.open("best") as reader:
...     bool((reader.read_numpy("w") == weights["w"]).all())
True
>>> repository.checkout("main~1", "restored").files
1
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

from ztensor import _native, store
from ztensor._errors import (
    InvalidArgumentError,
    NoSuchFileError,
    NotFoundError,
    UnsupportedError,
)
from ztensor._progress import reporting
from ztensor._reader import Reader
from ztensor._types import Path, Progress, StorageOptions
from ztensor.sync import Published, Publisher, Subscriber, _item

__all__ = [
    "CheckedOut",
    "Collected",
    "Commit",
    "Committed",
    "File",
    "Fsck",
    "Repository",
    "TensorInfo",
    "Transferred",
    "Usage",
    "Version",
    "VersionUsage",
]

Effort: TypeAlias = Literal["fast", "default", "balanced", "max"]

PROTOCOL = "ztensor-repo://"
"""What URLs of versions begin with: ``ztensor-repo://REPOSITORY@REF/PATH``."""


@dataclass(frozen=True)
class Committed:
    """A version that was committed."""

    id: str
    """The commit's id: 64 hexadecimal digits."""
    branch: str
    parent: str | None
    files: int
    tensors: int
    bytes: int
    """Bytes of all files."""
    stored: int
    """Bytes that were stored for what was not there yet."""
    same: int
    """Objects that were there already."""
    deltas: int
    """Objects that are stored as a difference."""
    casts: int
    """Objects that a cast makes of others."""
    whole: int
    """Objects that are stored whole."""


@dataclass(frozen=True)
class Commit:
    """A version in a log."""

    id: str
    parents: list[str]
    message: str
    author: str
    time: int
    """Seconds since 1970."""
    files: int
    tensors: int
    bytes: int
    stored: int
    metadata: dict[str, str]
    branches: list[str]
    """Branches that are at it."""
    tags: list[str]
    forgotten: bool
    """Whether retention removed its files."""


@dataclass(frozen=True)
class File:
    """A file of a version."""

    path: str
    bytes: int
    executable: bool


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of a version and how it is stored."""

    name: str
    file: str
    id: str
    """Content id: the same for the same tensor in every version and every file."""
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    form: str
    """``"whole"``, ``"delta"`` or ``"cast"``."""
    stored: int
    """Bytes that it takes, without what it depends on."""
    depth: int
    """How many objects it depends on."""


@dataclass(frozen=True)
class CheckedOut:
    """What a checkout did."""

    files: int
    """Files that were written."""
    unchanged: int
    """Files that were there already, with the same bytes."""
    bytes: int


@dataclass(frozen=True)
class Transferred:
    """What a push, a pull or a clone did."""

    refs: list[str]
    """Branches and tags that changed."""
    commits: int
    objects: int
    bytes: int


@dataclass(frozen=True)
class Collected:
    """What collecting garbage did."""

    forgotten: list[str]
    """Versions whose files were forgotten."""
    condemned: list[str]
    """Files that will be removed after the grace period."""
    removed: list[str]
    removed_bytes: int
    rewritten: int
    """Objects that were written again, because what they depended on goes."""
    rewritten_bytes: int


@dataclass(frozen=True)
class Fsck:
    """What a check found."""

    errors: list[str]
    """What is missing or damaged; empty if nothing is."""
    warnings: list[str]
    refs: int
    commits: int
    versions: int
    packs: int
    objects: int
    unneeded: int
    decoded: int
    """Bytes that were decoded and compared with their digests."""


@dataclass(frozen=True)
class VersionUsage:
    """What is stored for a version."""

    id: str
    message: str
    bytes: int
    """Bytes of its files."""
    needed: int
    """Stored bytes that reading all of it needs."""
    new: int
    """Of those, the ones that no older version needs."""
    own: int
    """Of those, the ones that no other version needs."""
    layers: dict[str, tuple[int, int]]
    """Decoded bytes and new stored bytes by layer."""


@dataclass(frozen=True)
class Usage:
    """What a repository stores."""

    packs: int
    """Bytes of all packs."""
    stored: int
    """Bytes of all objects that versions need."""
    unneeded: int
    """Bytes of objects that no version needs."""
    bytes: int
    """Bytes that the files of all versions have together."""
    versions: list[VersionUsage]
    """Newest first."""


class Version:
    """A version of a repository: its files and tensors, read without a checkout."""

    def __init__(self, native: _native.RepositoryVersion, label: str) -> None:
        self._native = native
        self._label = label

    @property
    def id(self) -> str:
        """The commit's id."""
        return self._native.id

    @property
    def message(self) -> str:
        """What was said about it."""
        message: str = self._native.commit()["message"]
        return message

    @property
    def metadata(self) -> dict[str, str]:
        """What was given with the commit."""
        metadata: dict[str, str] = self._native.commit()["metadata"]
        return metadata

    def files(self) -> list[File]:
        """Its files."""
        return [File(*entry) for entry in self._native.files()]

    def tensors(self) -> list[TensorInfo]:
        """Its tensors, and how each is stored."""
        return [
            TensorInfo(*entry[:4], tuple(entry[4]), *entry[5:]) for entry in self._native.tensors()
        ]

    def read_bytes(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes of a file, restored as they are read."""
        return self._native.read_file(path, start, stop)

    def open(
        self,
        path: str = "",
        *,
        threads: int = 0,
        max_bytes: int | None = None,
        max_total_bytes: int | None = None,
    ) -> Reader:
        """The model of the version, or of one of its files or folders, as a :class:`Reader`."""
        native = self._native.reader(path, threads, max_bytes, max_total_bytes)
        return Reader._of(native, f"{self._label}/{path}" if path else self._label)

    def checkout(
        self,
        folder: Path,
        *,
        overwrite: bool = False,
        durable: bool = False,
        threads: int = 0,
        progress: Progress = False,
    ) -> CheckedOut:
        """Restores the files, byte for byte; every tensor is compared with its digest.

        A new folder appears when it is complete. In one that is there, files are replaced with
        ``overwrite=True`` only, each when it is complete.
        """
        total = sum(file.bytes for file in self.files())
        with reporting(progress, total, "restoring") as report:
            done = self._native.checkout(folder, overwrite, durable, threads, report)
        return CheckedOut(*done)

    def pretrained(self) -> AbstractContextManager[str]:
        """A folder for ``from_pretrained``, without a checkout: see :func:`z4ai.pretrained`.

        ::

            with repository.version("best").pretrained() as folder:
                model = AutoModelForCausalLM.from_pretrained(folder)
        """
        from z4ai.integrations import pretrained

        return pretrained(self)

    def __repr__(self) -> str:
        return f"<Version {self._label}: {self.message!r}>"


class Repository:
    """A repository in a folder or below a URL of an object store.

    Without ``create=True`` it must exist. Several processes may commit at the same time: none
    loses a version.
    """

    def __init__(
        self, path: Path, *, create: bool = False, storage_options: StorageOptions = None
    ) -> None:
        self._path = os.fspath(path)
        remote = store.settings(storage_options)
        self._remote = storage_options
        try:
            self._native = _native.Repository.open(path, remote)
        except NotFoundError:
            if not create:
                raise
            self._native = _native.Repository.init(path, remote)

    @classmethod
    def init(cls, path: Path, *, storage_options: StorageOptions = None) -> Self:
        """Makes a new repository; an error if there is one."""
        repository = cls.__new__(cls)
        repository._path = os.fspath(path)
        repository._remote = storage_options
        repository._native = _native.Repository.init(path, store.settings(storage_options))
        return repository

    @property
    def path(self) -> str:
        """Where it is."""
        return self._path

    def __repr__(self) -> str:
        return f"Repository({self._path!r})"

    def commit(
        self,
        source: Path | Mapping[str, Any],
        message: str = "",
        *,
        branch: str = "main",
        tag: str | None = None,
        author: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        bases: Iterable[str] = (),
        parents: Iterable[str] = (),
        expected: str | None = None,
        name: str = "model.safetensors",
        attributes: Mapping[str, str] | None = None,
        exclude: Iterable[str] = (),
        effort: Effort = "default",
        threads: int = 0,
        progress: Progress = False,
    ) -> Committed:
        """Commits a file, a folder or a state dict as the next version of a branch.

        A state dict (names and arrays or tensors) becomes the ``.safetensors`` file ``name``, with
        ``attributes`` in its header. Of a folder, files that match a pattern of ``exclude`` are
        left out (``*`` and ``?`` are wildcards). ``bases`` are versions that the tensors resemble,
        beside those of the parent; ``parents`` are further parents, for a merge. If another process
        commits to the branch meanwhile, its commit becomes the parent; with ``expected``, the id of
        the commit that the branch must be at, the call fails instead.
        """
        settings = (
            message,
            os.environ.get("USER", "") if author is None else author,
            branch,
            tag,
            list(parents),
            list(bases),
            expected,
            {key: str(value) for key, value in (metadata or {}).items()},
            list(exclude),
            effort,
            threads,
        )
        if isinstance(source, str | os.PathLike):
            folder = os.path.isdir(source)
            total = sum(store.sizes(source).values()) if folder else store.size(source) or 0
            with reporting(progress, total, "committing") as report:
                return Committed(**self._native.commit_path(source, settings, report))
        items = [_item(key, tensor, filled=False) for key, tensor in source.items()]
        total = sum(item[3].nbytes for item in items)
        with reporting(progress, total, "committing") as report:
            done = self._native.commit_tensors(
                name, items, dict(attributes or {}), settings, report
            )
        return Committed(**done)

    def version(self, ref: str = "main") -> Version:
        """The version that a branch, a tag or a commit's id stands for; ``~N`` goes back N."""
        return Version(self._native.version(ref), f"{self._path}@{ref}")

    def open(self, ref: str = "main", path: str = "", **options: Any) -> Reader:
        """The model of a version as a :class:`Reader`: any tensor, any rows, without a checkout."""
        return self.version(ref).open(path, **options)

    def checkout(self, ref: str, folder: Path, **options: Any) -> CheckedOut:
        """Restores the files of a version, byte for byte: see :meth:`Version.checkout`."""
        return self.version(ref).checkout(folder, **options)

    def log(self, ref: str = "main", limit: int | None = None) -> list[Commit]:
        """The versions that lead to one, newest first."""
        return [Commit(**entry) for entry in self._native.log(ref, limit)]

    def resolve(self, ref: str) -> str:
        """The id of the commit that a branch, a tag or the beginning of an id stands for."""
        return self._native.resolve(ref)

    def branches(self) -> dict[str, str]:
        """The branches, and the commits that they are at."""
        return self._native.refs(False)

    def tags(self) -> dict[str, str]:
        """The tags, and the commits that they are at."""
        return self._native.refs(True)

    def branch(self, name: str, at: str = "main", *, force: bool = False) -> str:
        """Makes a branch; moves one that is there with ``force``. Returns the commit's id."""
        return self._native.create_ref(False, name, at, force)

    def tag(self, name: str, at: str = "main", *, force: bool = False) -> str:
        """Makes a tag; moves one that is there with ``force``. Returns the commit's id."""
        return self._native.create_ref(True, name, at, force)

    def delete_branch(self, name: str) -> None:
        """Removes a branch. Its versions stay until garbage is collected."""
        self._native.delete_ref(False, name)

    def delete_tag(self, name: str) -> None:
        """Removes a tag. Its versions stay until garbage is collected."""
        self._native.delete_ref(True, name)

    def usage(self, ref: str | None = None) -> Usage:
        """What is stored for the versions that lead to one, or for all."""
        found = self._native.usage(ref)
        versions = [VersionUsage(**version) for version in found.pop("versions")]
        return Usage(**found, versions=versions)

    def gc(
        self,
        *,
        keep_last: int | None = None,
        keep_every: int | None = None,
        keep_within: float | None = None,
        grace: float | None = None,
        dry_run: bool = False,
        threads: int = 0,
    ) -> Collected:
        """Forgets versions and removes what nothing needs.

        Without ``keep_last``, ``keep_every`` and ``keep_within`` (seconds), all versions that
        branches and tags lead to are kept. Files are removed when they were not needed for
        ``grace`` seconds, 14 days if it is ``None``: writers that began before have that time to
        finish. With 0 no other process may write meanwhile.
        """
        done = self._native.gc(keep_last, keep_every, keep_within, grace, dry_run, threads)
        return Collected(**done)

    def fsck(
        self,
        *,
        full: bool = False,
        repair: bool = False,
        threads: int = 0,
        progress: Progress = False,
    ) -> Fsck:
        """Checks that all that branches and tags lead to is there; ``full`` decodes it."""
        total = self.usage().bytes if full and progress else 0
        with reporting(progress, total, "checking") as report:
            return Fsck(**self._native.fsck(full, repair, threads, report))

    def _other(self, other: Repository | Path) -> Repository:
        if isinstance(other, Repository):
            return other
        return Repository(other, storage_options=self._remote)

    def push(
        self,
        target: Repository | Path,
        refs: Iterable[str] = (),
        *,
        force: bool = False,
        progress: Progress = False,
    ) -> Transferred:
        """Copies versions to another repository: all, or those of some branches and tags."""
        native = self._other(target)._native
        total = self.usage().stored if progress else 0
        with reporting(progress, total, "copying") as report:
            return Transferred(*self._native.transfer(native, list(refs), force, report))

    def pull(
        self,
        source: Repository | Path,
        refs: Iterable[str] = (),
        *,
        force: bool = False,
        progress: Progress = False,
    ) -> Transferred:
        """Copies versions from another repository."""
        return self._other(source).push(self, refs, force=force, progress=progress)

    def clone(
        self,
        path: Path,
        refs: Iterable[str] = (),
        *,
        storage_options: StorageOptions = None,
        progress: Progress = False,
    ) -> Repository:
        """Makes a new repository with the versions of this one."""
        target = Repository.init(path, storage_options=storage_options)
        self.push(target, refs, progress=progress)
        return target

    def publish(
        self, stream: Path, refs: Iterable[str], *, base: str, **options: Any
    ) -> list[Published]:
        """Publishes versions one after another to a weight stream, for inference hosts to follow.

        ``base`` is the version that the stream's newest one is (its version 0, if it has none yet);
        ``options`` are those of :class:`ztensor.sync.Publisher`.
        """
        with self.open(base) as reader:
            publisher = Publisher(stream, _pairs(reader), **options)
        published = []
        for ref in refs:
            with self.open(ref) as reader:
                published.append(publisher.publish(_pairs(reader)))
        return published

    def commit_stream(
        self,
        stream: Path,
        local: Path,
        *,
        base: Path,
        branch: str = "main",
        versions: Iterable[int | str] | None = None,
        storage_options: StorageOptions = None,
        **options: Any,
    ) -> list[Committed]:
        """Commits the versions of a weight stream, each as the checkpoint that a host would have.

        ``local`` is the folder that follows the stream, made from the model ``base`` the first
        time; versions that it is beyond are passed over. ``versions`` are those to commit, all by
        default; ``options`` are those of :meth:`commit`.
        """
        subscriber = Subscriber(stream, local, base=base, storage_options=storage_options)
        place = (stream, "numbered", store.settings(storage_options))
        wanted = _native.sync_versions(place) if versions is None else versions
        done = []
        for version in wanted:
            number = int(version)
            if subscriber.version is not None and int(subscriber.version) >= number:
                continue
            subscriber.pull(number)
            done.append(
                self.commit(
                    local,
                    f"version {number}",
                    branch=branch,
                    exclude=[".weight_sync/*"],
                    metadata={"stream_version": number},
                    **options,
                )
            )
        return done


def split_url(url: str, version: Callable[[str, str], Version]) -> tuple[str, str, Version, str]:
    """Repository, ref, version and the path in it, of ``REPOSITORY@REF/PATH``.

    The first ``@`` separates. A ref may have slashes: the shortest that ``version`` finds is meant.
    """
    root, separator, rest = url.removeprefix(PROTOCOL).rstrip("/").partition("@")
    if not separator:
        raise InvalidArgumentError(f"{url}: expected REPOSITORY@REF/PATH")
    parts = rest.split("/")
    missing: NotFoundError | None = None
    for count in range(1, len(parts) + 1):
        ref = "/".join(parts[:count])
        try:
            return root, ref, version(root, ref), "/".join(parts[count:])
        except NotFoundError as error:
            missing = missing or error
    raise NoSuchFileError(f"{url}: {missing}")


def open_url(
    url: str,
    *,
    threads: int = 0,
    max_bytes: int | None = None,
    max_total_bytes: int | None = None,
    storage_options: StorageOptions = None,
) -> Reader:
    """The model of a version, or of a file or folder in it, by ``ztensor-repo://``."""

    def version(root: str, ref: str) -> Version:
        return Repository(root, storage_options=storage_options).version(ref)

    _, _, found, path = split_url(url, version)
    try:
        return found.open(
            path, threads=threads, max_bytes=max_bytes, max_total_bytes=max_total_bytes
        )
    except NotFoundError as error:
        # The version may have no such file, or no file with tensors.
        raise NotFoundError(f"{url}: {str(error).removeprefix(': ')}") from error


def _pairs(reader: Reader) -> Iterator[tuple[str, Any]]:
    """Names and tensors, one at a time."""
    for name in reader.keys():
        yield name, _array(reader, name)


def _array(reader: Reader, name: str) -> Any:
    """A tensor as NumPy has it, or torch where NumPy does not have the type."""
    try:
        return reader.read_numpy(name)
    except UnsupportedError:
        return reader.read_torch(name)
