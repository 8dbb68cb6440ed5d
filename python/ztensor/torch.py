"""Torch tensors to and from files, as drop-in functions.

>>> import torch
>>> from ztensor.torch import load_file, save_file
>>> save_file({"weight": torch.ones(2, 3, dtype=torch.bfloat16)}, "model.zt")
>>> load_file("model.zt")
{'weight': tensor([[1., 1., 1.],
        [1., 1., 1.]], dtype=torch.bfloat16)}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch

from ztensor import _casts, _files, _formats, _shared
from ztensor._errors import InvalidArgumentError, ModelMismatchError
from ztensor._options import FileOptions, LoadOptions, SaveOptions, with_options
from ztensor._reader import moved
from ztensor._safe_open import safe_open
from ztensor._safetensors import (
    SafetensorError,
    TensorSpec,
    deserialize,
    serialize,
    serialize_file,
)
from ztensor._shared import end_ptr as _end_ptr
from ztensor._shared import find_shared_tensors as _find_shared_tensors
from ztensor._shared import getdtype as _getdtype
from ztensor._shared import is_complete as _is_complete
from ztensor._shared import remove_duplicate_names as _remove_duplicate_names
from ztensor._shared import storage_ptr, storage_size
from ztensor._tensor import Tensor
from ztensor._types import Checksum, Compression, Device, Format, Path, Progress
from ztensor._writer import dictionary

__all__ = [
    "SafetensorError",
    "TensorSpec",
    "_end_ptr",
    "_find_shared_tensors",
    "_getdtype",
    "_is_complete",
    "_remove_duplicate_names",
    "deserialize",
    "load",
    "load_file",
    "load_model",
    "load_with_metadata",
    "safe_open",
    "save",
    "save_file",
    "save_model",
    "serialize",
    "serialize_file",
    "storage_ptr",
    "storage_size",
]


@with_options(SaveOptions)
def save_file(
    tensors: Mapping[str, Any],
    filename: Path,
    metadata: Mapping[str, Any] | None = None,
    compression: Compression = False,
    **options: Unpack[SaveOptions],
) -> None:
    """Saves a dictionary of tensors to a file.

    Tensors may be on any device, non-contiguous, sparse, and may share memory: in a ``.zt`` file
    names of the same tensor are stored once, and tied again when loaded. A ``.safetensors`` file
    cannot say so, and tensors that share memory are refused there, as safetensors does;
    :func:`save_model` keeps one name of each.

    The name decides the format: ``.safetensors``, ``.npz``, ``.npy``, ``.gguf``, ``.zstn`` and
    ``.zt2`` (version 2 of ``.zt``) are written as such, names of formats that cannot be written
    (``.pt``, ``.h5``, ``.onnx``) are refused, and everything else is a ``.zt`` file. ``format``
    overrides the name. What a format cannot hold is refused before anything is written.

    ``metadata`` is kept and found again in ``Reader.attributes``.
    ``compression`` is ``True`` for zstd level 3, a level from 1 to 22, or an effort of the
    weight codec: ``"fast"``, ``"default"``, ``"balanced"`` or ``"max"``; for ``.npz`` a level of
    deflate from 1 to 9. ``checksum`` is ``"none"``, ``"crc32c"``, ``"sha256"`` or
    ``"blake3"``.
    ``progress`` is ``True`` for a bar, or ``callback(done, total)`` in bytes.
    ``filename`` may be a URL of an object store; ``storage_options`` say how to reach it.

    >>> import torch
    >>> embedding = torch.zeros(10, 4)
    >>> save_file({"embed": embedding, "head": embedding}, "tied.zt", compression=10)
    >>> loaded = load_file("tied.zt")
    >>> loaded["embed"] is loaded["head"]
    True
    """
    options["format"] = _formats.target(filename, options["format"])
    tensors = dictionary("tensors", tensors)
    if options["format"] == "safetensors":
        _shared.refuse_shared(tensors)
    _files.save_file(tensors, filename, metadata, compression, options)


def save(
    tensors: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    compression: Compression = False,
    *,
    checksum: Checksum = "none",
    progress: Progress = None,
    format: Format = "zt",
) -> bytes:
    """Like :func:`save_file`, but returns the file as bytes: ``.zt`` unless ``format`` says else.

    >>> import torch
    >>> load(save({"x": torch.zeros(3)}))
    {'x': tensor([0., 0., 0.])}
    """
    tensors = dictionary("tensors", tensors)
    if format == "safetensors":
        _shared.refuse_shared(tensors)
    return _files.save(tensors, metadata, compression, checksum, progress, format)


@with_options(FileOptions)
def load_file(
    filename: Path,
    device: Device = "cpu",
    copy: bool = False,
    **options: Unpack[FileOptions],
) -> dict[str, torch.Tensor]:
    """Loads all tensors of a file of any format.

    With ``copy=False`` CPU tensors are views of a private mapping: they can be
    written to without changing the file, and whatever is never touched is
    never read. With ``copy=True`` they are independent of the file, as those of
    a remote file (``filename`` may be a URL) always are; ``backend="pread"`` reads the file
    instead of mapping it, and copies too.

    Sparse tensors are torch's sparse tensors; those that torch has no tensor
    for, such as quantized ones, are ``ztensor.Tensor`` objects. With ``dequantize=True`` they are
    the numbers that they stand for, as float32. ``dtype`` converts floating-point tensors.

    ``verify`` compares the checksums of a ``.zt`` file that was saved with them.

    ``max_bytes`` refuses tensors larger than that; ``max_total_bytes`` refuses to decode
    more than that in all, instead of more than 4 GiB and 1,000 times the size of the file.

    ``pickle="strict"`` refuses pickles that are dangerous in tools that unpickle
    them; ``"warn"`` warns of them. Neither runs anything.
    """
    copy = copy or options["backend"] == "pread"
    return _loaded(_files.open_file(filename, options), device, copy, options)


@with_options(LoadOptions)
def load(
    data: bytes | bytearray | memoryview,
    **options: Unpack[LoadOptions],
) -> dict[str, torch.Tensor]:
    """Loads all tensors of a file that lies in memory, as independent tensors."""
    return _loaded(_files.open_bytes(data, options), "cpu", True, options)


@with_options(FileOptions)
def load_with_metadata(
    filename: Path,
    device: Device = "cpu",
    copy: bool = False,
    **options: Unpack[FileOptions],
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Like :func:`load_file`, with the metadata of the file, to be saved with the tensors.

    >>> import torch
    >>> save_file({"x": torch.zeros(2)}, "x.zt", metadata={"step": 100})
    >>> tensors, metadata = load_with_metadata("x.zt")
    >>> save_file(tensors, "y.zt", metadata)
    """
    reader = _files.open_file(filename, options)
    copy = copy or options["backend"] == "pread"
    return _loaded(reader, device, copy, options), reader.attributes


def _loaded(
    reader: Any, device: Device, copy: bool, options: LoadOptions
) -> dict[str, torch.Tensor]:
    element = _casts.floating(options["dtype"])
    other = _casts.dequantizing(_other, Tensor.torch) if options["dequantize"] else _other
    tensors = _files.load_all(reader, "torch", copy, other, options["progress"])
    if element is not None:
        tensors = _casts.torch_as(tensors, element)
    return tensors if device == "cpu" else moved(tensors, device)


def _other(*parts: Any) -> Any:
    tensor = Tensor._trusted(*parts)
    return tensor.torch() if tensor.format in ("sparse_csr", "sparse_coo") else tensor


@with_options(SaveOptions)
def save_model(
    model: torch.nn.Module,
    filename: Path,
    metadata: Mapping[str, Any] | None = None,
    force_contiguous: bool = True,
    *,
    compression: Compression = False,
    **options: Unpack[SaveOptions],
) -> None:
    """Saves the parameters and buffers of a model; shared ones are stored once.

    A ``.safetensors`` file has one name for each tensor, as safetensors writes it: the others are
    left out, and ``metadata`` says which name they stood for.

    With ``force_contiguous=False``, tensors that are not contiguous are refused
    instead of copied.
    """
    state = model.state_dict()
    options["format"] = _formats.target(filename, options["format"])
    if options["format"] == "safetensors":
        noted = dict(metadata or {})
        for kept, others in _shared.remove_duplicate_names(state).items():
            for name in others:
                noted.setdefault(name, kept)
                del state[name]
        metadata = noted or None
    if not force_contiguous:
        for name, tensor in state.items():
            if not tensor.is_contiguous():
                raise InvalidArgumentError(
                    f"tensor {name!r} is not contiguous: call contiguous(), "
                    "or use save_model(..., force_contiguous=True)"
                )
    save_file(state, filename, metadata, compression, **options)


@with_options(FileOptions)
def load_model(
    model: torch.nn.Module,
    filename: Path,
    strict: bool = True,
    device: Device = "cpu",
    copy: bool = False,
    **options: Unpack[FileOptions],
) -> tuple[list[str], list[str]]:
    """Loads a file's tensors into a model and returns the missing and unexpected names.

    A name that the file lacks is not missing if the model ties it to one that
    the file has; two different tensors for names that the model ties are unexpected. With
    ``strict``, missing or unexpected names are an error. On the meta device the model takes the
    loaded tensors as they are.

    >>> import torch
    >>> model = torch.nn.Linear(10, 5)
    >>> save_model(model, "linear.zt")
    >>> load_model(torch.nn.Linear(10, 5), "linear.zt")
    ([], [])
    """
    tensors = load_file(filename, device, copy, **options)
    own = model.state_dict(keep_vars=True)
    on_meta = any(tensor.is_meta for tensor in own.values() if isinstance(tensor, torch.Tensor))
    result = model.load_state_dict(tensors, strict=False, assign=on_meta)
    present = {_identity(own[name]) for name in own if name in tensors}
    missing = [name for name in result.missing_keys if _identity(own.get(name)) not in present]
    unexpected = [*result.unexpected_keys, *_ambiguous(own, tensors)]
    if strict and (missing or unexpected):
        lines = [
            f"{filename} does not fit {type(model).__name__}: "
            f"Error(s) in loading state_dict for {type(model).__name__}:"
        ]
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                listed = ", ".join(f'"{name}"' for name in sorted(names))
                lines.append(f"    {what} key(s) in state_dict: {listed}")
        raise ModelMismatchError("\n".join(lines))
    return missing, unexpected


def _ambiguous(own: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Names that the model ties to one before them, for which the file has another tensor."""
    first: dict[object, Any] = {}
    names = []
    for name in sorted(own):
        if name in tensors:
            identity = _identity(own[name])
            if _identity(first.setdefault(identity, tensors[name])) != _identity(tensors[name]):
                names.append(name)
    return names


def _identity(tensor: Any) -> object:
    """Equal for tensors that are one and the same memory."""
    if not isinstance(tensor, torch.Tensor) or tensor.is_meta or not tensor.numel():
        return id(tensor)
    if tensor.layout != torch.strided:
        return id(tensor)
    return (tensor.data_ptr(), tensor.device, tuple(tensor.shape), tensor.stride())
