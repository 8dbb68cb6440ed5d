"""Packed weights in torch and transformers.

:func:`save_file` and :func:`load_file` are drop-in functions for those of ``safetensors.torch``.
:func:`enable_hf` makes ``safetensors`` itself read packed files, so that ``from_pretrained`` does:
tensors are decoded straight from the packed file when they are asked for, and when transformers
loads a model also a little before, while it is busy with other things. Within :func:`packing`,
``save_pretrained`` writes packed files.

Needs torch and safetensors.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from z4ai import safetensors as _packed
from z4ai._model_folder import pack_model
from z4ai._patches import Patches, WhenImported, needed
from ztensor import _errors, _native
from ztensor import safe_open as _open_any
from ztensor._errors import InvalidArgumentError, MissingArgumentError
from ztensor._reader import Reader
from ztensor._types import Backend, Device, Effort, Framework, Path, Progress, StorageOptions
from ztensor.repository import Version

if TYPE_CHECKING:
    import torch
else:
    from ztensor._types import torch

__all__ = [
    "disable_hf",
    "enable_hf",
    "is_enabled",
    "load_file",
    "pack_model",
    "packing",
    "pretrained",
    "save_file",
]


def is_packed(path: Path) -> bool:
    """Whether a file is a packed one, by its first bytes."""
    with open(path, "rb") as file:
        return file.read(4) == _packed.MAGIC


def save_file(
    tensors: Mapping[str, torch.Tensor],
    filename: Path | None = None,
    metadata: Mapping[str, str] | None = None,
    *,
    level: int | None = None,
    effort: Effort | None = None,
    threads: int = 0,
    progress: Progress = None,
    path: Path | None = None,
) -> dict[str, Any]:
    """Saves a dictionary of tensors as a packed file.

    Tensors may share memory, which is stored once, be strided, or be on any device.
    ``metadata`` is strings to strings; ``path`` is another name of ``filename``. For ``level``,
    ``effort`` and ``threads`` see :func:`z4ai.compress`.

    Returns ``original_bytes``, ``compressed_bytes``, ``ratio`` and ``saved_pct``.

    >>> import torch, z4ai
    >>> weight = torch.ones(1000, 64)
    >>> stats = z4ai.save_file({"embed": weight, "head": weight}, "model.z4ai.safetensors")
    >>> stats["saved_pct"] > 90
    True
    >>> sorted(z4ai.load_file("model.z4ai.safetensors"))
    ['embed', 'head']
    """
    needed("torch")
    return _packed.pack_tensors(
        tensors,
        _named(filename, path),
        metadata,
        level=level,
        effort=effort,
        threads=threads,
        progress=progress,
    )


def load_file(
    filename: Path | None = None,
    device: Device = "cpu",
    *,
    backend: Backend = "mmap",
    path: Path | None = None,
    max_bytes: int | None = None,
    max_total_bytes: int | None = None,
) -> dict[str, torch.Tensor]:
    """Loads all tensors of a packed file, or of any other that ztensor reads.

    Tensors of a packed file are decoded straight into their own memory; those of others are views
    of the mapped file, as :func:`ztensor.torch.load_file` makes them. ``path`` is another name of
    ``filename``, which may be a URL. A file with a tensor of more than ``max_bytes`` decoded
    bytes, or with more than ``max_total_bytes`` in all, is a ``LimitError`` before anything is
    decoded; without ``max_total_bytes`` the limit is 1,000 times the size of the file or 4 GiB,
    whichever is more.

    >>> import safetensors.torch, torch, z4ai
    >>> safetensors.torch.save_file({"x": torch.ones(2)}, "plain.safetensors")
    >>> z4ai.load_file("plain.safetensors")
    {'x': tensor([1., 1.])}
    """
    path = _named(filename, path)
    needed("torch")
    from ztensor.torch import load_file as load_any

    copy = "://" not in os.fspath(path) and is_packed(path)
    return load_any(
        path,
        device,
        copy,
        backend=backend,
        max_bytes=max_bytes,
        max_total_bytes=max_total_bytes,
    )


def _named(filename: Path | None, path: Path | None) -> Path:
    """The one of two names for the same argument that was given."""
    given = [name for name in (filename, path) if name is not None]
    if len(given) != 1:
        raise MissingArgumentError("give filename=, or path= in its place")
    return given[0]


def _load_packed(
    path: Path,
    device: Device,
    max_bytes: int | None = None,
    max_total_bytes: int | None = None,
) -> dict[str, torch.Tensor]:
    from ztensor.torch import load_file as load_any

    tensors: dict[str, torch.Tensor] = load_any(
        path, device, copy=True, max_bytes=max_bytes, max_total_bytes=max_total_bytes
    )
    return tensors


def _load_bytes(data: bytes) -> dict[str, torch.Tensor]:
    from ztensor.torch import load as load_any

    tensors: dict[str, torch.Tensor] = load_any(data)
    return tensors


class PackedFile(_open_any):
    """What ``safe_open`` returns for a packed file: the same calls, tensors decoded one by one."""

    # Files opened this way hold a model, whose tensors have one lifetime.
    _pooled = True

    # Nothing of a packed file can be viewed, and threads of a load that failed may go on reading
    # it while it is being replaced: a mapping that is cut off would end the process.
    _mapped = False

    def __init__(
        self,
        filename: Path,
        framework: Framework = "pt",
        device: Device = "cpu",
        *,
        backend: Backend = "mmap",
    ) -> None:
        super().__init__(filename, framework, device, backend=backend)
        self.framework = framework
        self.device = device

    def _open(self, filename: Path, storage_options: StorageOptions) -> Reader:
        if isinstance(filename, _BeingDecoded):
            return filename.reader()
        if (stored := _stored(filename)) is not None:
            version, path = stored
            return version.open(path)
        return super()._open(filename, storage_options)


_STORED: dict[str, tuple[Version, str]] = {}
"""Files of versions of repositories, by the empty files that stand for them: see `pretrained`."""


def _stored(path: Path) -> tuple[Version, str] | None:
    """The version and the file that an empty file stands for."""
    return _STORED.get(os.path.realpath(path)) if _STORED else None


@contextlib.contextmanager
def pretrained(version: Version) -> Iterator[str]:
    """A folder for ``from_pretrained`` with a version of a repository in it, without a checkout.

    Configuration, tokenizer and other small files are restored there. Files of weights
    (``.safetensors``) are empty: when they are opened in this process, by ``safetensors`` or by
    libraries that use it, their tensors are decoded from the repository, each when it is asked for.
    The folder is gone at the end; models that were loaded are not.

    >>> import safetensors.torch, torch, z4ai, ztensor
    >>> repository = ztensor.Repository.init("models")
    >>> _ = repository.commit({"w": torch.ones(1000)}, "first")
    >>> with z4ai.pretrained(repository.version()) as folder:
    ...     safetensors.torch.load_file(f"{folder}/model.safetensors")["w"].sum()
    tensor(1000.)
    """
    was_on = is_enabled()
    enable_hf()
    try:
        with tempfile.TemporaryDirectory(prefix="ztensor-") as folder:
            stand_ins = []
            try:
                for file in version.files():
                    path = os.path.join(folder, *file.path.split("/"))
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    out = _native.NewFile.create(path, derived=True, overwrite=False)
                    if file.path.endswith(".safetensors"):
                        stand_ins.append(os.path.realpath(path))
                        _STORED[stand_ins[-1]] = (version, file.path)
                    else:
                        for start in range(0, file.bytes, _PIECE):
                            stop = min(start + _PIECE, file.bytes)
                            piece = version.read_bytes(file.path, start, stop)
                            out.write(np.frombuffer(piece, np.uint8))
                    out.finish(durable=False)
                yield folder
            finally:
                for path in stand_ins:
                    del _STORED[path]
    finally:
        if not was_on:
            disable_hf()


_PIECE = 16 << 20


class _BeingDecoded(str):
    """The path of a packed file that is open, and whose tensors are being decoded.

    That ends when neither the path nor a handle opened by it is referenced any more.
    """

    native: _native.Reader

    def reader(self) -> Reader:
        """A reader of the file, to be closed like any other."""
        return Reader._of(self.native, self, map=False)


def _being_decoded(paths: list[str]) -> list[str]:
    """Opens packed files and starts decoding them; other paths stay as they are."""
    known = [_opened(path) for path in paths]
    _native.decode_ahead([path.native for path in known if path is not None])
    return [opened or path for opened, path in zip(known, paths, strict=True)]


def _opened(path: str) -> _BeingDecoded | None:
    # Whatever is wrong with a file is said when it is opened to be used.
    with contextlib.suppress(OSError, TypeError, ValueError):
        if is_packed(path):
            opened = _BeingDecoded(path)
            opened.native = _native.Reader.open(path, map=False)
            return opened
    return None


_PATCHES = Patches()
_SAVING = Patches()


def _opening(original: Any) -> Any:
    @functools.wraps(original, updated=())
    def safe_open(
        filename: Path, framework: Framework = "pt", device: Device = "cpu", **options: Any
    ) -> Any:
        known = isinstance(filename, _BeingDecoded) or _stored(filename) is not None
        if known or (os.path.isfile(filename) and is_packed(filename)):
            return PackedFile(filename, framework, device, **options)
        with _explained(filename):
            return original(filename, framework=framework, device=device, **options)

    return safe_open


def _loading_file(original: Any) -> Any:
    @functools.wraps(original)
    def load_file(filename: Path, device: Device = "cpu", **options: Any) -> Any:
        if _stored(filename) is not None:
            with PackedFile(filename, "pt", device) as file:
                return {name: file.get_tensor(name) for name in file.keys()}
        if os.path.isfile(filename) and is_packed(filename):
            return _load_packed(filename, device)
        with _explained(filename):
            return original(filename, device=device, **options)

    return load_file


@contextlib.contextmanager
def _explained(filename: Path) -> Iterator[None]:
    """Where safetensors refuses a file that is none, says what the file is."""
    try:
        yield
    except importlib.import_module("safetensors").SafetensorError as error:
        try:
            _native.Reader.open(filename)
        except _errors.UnknownFormatError as what:
            raise what from error
        except Exception:
            pass  # safetensors has said what is wrong
        raise


def _loading(original: Any) -> Any:
    @functools.wraps(original)
    def load(data: bytes, *rest: Any, **options: Any) -> Any:
        if bytes(data[:4]) == _packed.MAGIC:
            return _load_bytes(data)
        return original(data, *rest, **options)

    return load


def _resolving(original: Any) -> Any:
    """Of transformers: finds the files of a model, long before they are opened.

    What follows first is to make the model's modules, which takes one core and as long as decoding
    a good part of a small model.
    """

    @functools.wraps(original)
    def resolve(*arguments: Any, **options: Any) -> Any:
        found = original(*arguments, **options)
        match found:
            case (list() as files, *rest):
                return (_being_decoded(files), *rest)
        return found

    return resolve


def enable_hf() -> None:
    """Makes ``safetensors`` read packed files, by their content, beside plain ones.

    ``safetensors.safe_open`` and ``safetensors.torch``'s ``safe_open``, ``load_file`` and
    ``load`` are replaced, also in transformers, vllm and others that have already imported
    them. ``from_pretrained(folder, variant="z4ai")`` then loads ``model.z4ai.safetensors``, or
    the shards that ``model.safetensors.index.z4ai.json`` names; :func:`pack_model` makes them.
    Does nothing if it is already on.

    Processes that are started afterwards, such as spawned workers, do the same as soon as they
    import z4ai: the environment variable ``Z4AI_HF`` is set to 1 for them. It can be set from
    outside, too; workers of vLLM need nothing else.
    """
    needed("torch")
    _PATCHES.on(
        {
            ("safetensors", "safe_open"): _opening,
            ("safetensors.torch", "safe_open"): _opening,
            ("safetensors.torch", "load_file"): _loading_file,
            ("safetensors.torch", "load"): _loading,
        },
        # Not part of its interface: where it is missing, files are decoded when they are opened.
        {("transformers.modeling_utils", "_get_resolved_checkpoint_files"): _resolving},
    )
    os.environ[_VARIABLE] = "1"


def disable_hf() -> None:
    """Undoes :func:`enable_hf`."""
    os.environ.pop(_VARIABLE, None)
    for awaited in _AWAITED:
        awaited.end()
    _AWAITED.clear()
    _PATCHES.off()


_VARIABLE = "Z4AI_HF"
_AWAITED: list[WhenImported] = []


def enable_if_asked() -> None:
    """What :func:`enable_hf` does, if the environment asks for it and when safetensors is imported.

    Called when z4ai is imported, and by vLLM in each of its processes.
    """
    if os.environ.get(_VARIABLE) != "1" or _PATCHES.is_on() or _AWAITED:
        return
    if "safetensors.torch" in sys.modules:
        enable_hf()
    else:
        _AWAITED.append(WhenImported("safetensors.torch", lambda module: enable_hf()))


@contextlib.contextmanager
def packing(
    *, level: int | None = None, effort: Effort | None = None, threads: int = 0
) -> Iterator[None]:
    """Within this, ``safetensors.torch.save_file`` writes packed files.

    So do ``save_pretrained`` of transformers, diffusers and peft, and accelerate's ``save_model``,
    in shards too. For the options see :func:`z4ai.compress`.

    >>> import safetensors.torch, torch, z4ai
    >>> with z4ai.packing(effort="fast"):
    ...     safetensors.torch.save_file({"x": torch.zeros(1000)}, "packed.safetensors")
    >>> z4ai.load_file("packed.safetensors")["x"].shape
    torch.Size([1000])
    """
    needed("torch")
    if _SAVING.is_on():
        raise InvalidArgumentError("packing() is already active")
    _packed._settings(level, threads, None, effort)

    def saving(original: Any) -> Any:
        @functools.wraps(original)
        def save_file(
            tensors: Mapping[str, torch.Tensor],
            filename: Path,
            metadata: Mapping[str, str] | None = None,
        ) -> None:
            _packed.pack_tensors(
                tensors, filename, metadata, level=level, effort=effort, threads=threads
            )

        return save_file

    _SAVING.on({("safetensors.torch", "save_file"): saving}, {})
    try:
        yield
    finally:
        _SAVING.off()


def is_enabled() -> bool:
    """Whether safetensors is patched. With ``Z4AI_HF=1`` that happens when it is imported."""
    return _PATCHES.is_on()
