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
from typing import TYPE_CHECKING, Any

import torch

from ztensor import _files
from ztensor._errors import InvalidArgumentError, ModelMismatchError
from ztensor._reader import moved
from ztensor._tensor import Tensor

if TYPE_CHECKING:
    from ztensor._types import Device, Path, Progress, StorageOptions
    from ztensor._writer import Compression

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]


def save_file(
    tensors: Mapping[str, Any],
    filename: Path,
    metadata: Mapping[str, Any] | None = None,
    compression: Compression = False,
    *,
    checksum: str = "none",
    progress: Progress = None,
    storage_options: StorageOptions = None,
) -> None:
    """Saves a dictionary of tensors to a ``.zt`` file.

    Tensors may be on any device, of any strides, sparse, and may share memory:
    names of the same tensor are stored once, and tied again when loaded.

    ``metadata`` is kept and found again in ``Reader.attributes``.
    ``compression`` is ``True`` for zstd level 3, a level from 1 to 22, or an effort of the
    weight codec: ``"fast"``, ``"default"``, ``"balanced"`` or ``"max"``.
    ``checksum`` is ``"none"``, ``"crc32c"`` or ``"sha256"``.
    ``progress`` is ``True`` for a bar, or a function of the bytes done and the bytes in all.
    ``filename`` may be a URL of an object store; ``storage_options`` say how to reach it.

    >>> import torch
    >>> embedding = torch.zeros(10, 4)
    >>> save_file({"embed": embedding, "head": embedding}, "tied.zt", compression=10)
    >>> loaded = load_file("tied.zt")
    >>> loaded["embed"] is loaded["head"]
    True
    """
    _files.save_file(tensors, filename, metadata, compression, checksum, progress, storage_options)


def save(
    tensors: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    compression: Compression = False,
    *,
    checksum: str = "none",
    progress: Progress = None,
) -> bytes:
    """Like :func:`save_file`, but returns the file as bytes.

    >>> import torch
    >>> load(save({"x": torch.zeros(3)}))
    {'x': tensor([0., 0., 0.])}
    """
    return _files.save(tensors, metadata, compression, checksum, progress)


def load_file(
    filename: Path,
    device: Device = "cpu",
    copy: bool = False,
    *,
    progress: Progress = None,
    max_bytes: int | None = None,
    max_total_bytes: int | None = None,
    storage_options: StorageOptions = None,
) -> dict[str, Any]:
    """Loads all tensors of a file of any format.

    With ``copy=False`` CPU tensors are views of a private mapping: they can be
    written to without changing the file, and whatever is never touched is
    never read. With ``copy=True`` they are independent of the file, as those of
    a remote file (``filename`` may be a URL) always are.

    Sparse tensors are torch's sparse tensors; those that torch has no tensor
    for, such as quantized ones, are ``ztensor.Tensor`` objects.

    ``max_bytes`` refuses tensors larger than that; ``max_total_bytes`` refuses to decode
    more than that in all, instead of more than 4 GiB and 1,000 times the size of the file.
    """
    reader = _files.open_file(filename, storage_options, max_bytes, max_total_bytes)
    tensors = _files.load_all(reader, "torch", copy, _other, progress)
    return tensors if device == "cpu" else moved(tensors, device)


def load(
    data: bytes | bytearray | memoryview,
    *,
    progress: Progress = None,
    max_bytes: int | None = None,
    max_total_bytes: int | None = None,
) -> dict[str, Any]:
    """Loads all tensors of a file that lies in memory, as independent tensors."""
    reader = _files.opened(data, max_bytes, max_total_bytes)
    return _files.load_all(reader, "torch", True, _other, progress)


def _other(*parts: Any) -> Any:
    tensor = Tensor._trusted(*parts)
    return tensor.torch() if tensor.format in ("sparse_csr", "sparse_coo") else tensor


def save_model(
    model: torch.nn.Module,
    filename: Path,
    metadata: Mapping[str, Any] | None = None,
    force_contiguous: bool = True,
    *,
    compression: Compression = False,
    checksum: str = "none",
    progress: Progress = None,
) -> None:
    """Saves the parameters and buffers of a model; shared ones are stored once.

    With ``force_contiguous=False``, tensors that are not contiguous are refused
    instead of copied.
    """
    state = model.state_dict()
    if not force_contiguous:
        for name, tensor in state.items():
            if not tensor.is_contiguous():
                raise InvalidArgumentError(
                    f"tensor {name!r} is not contiguous: "
                    "call contiguous() or use force_contiguous=True"
                )
    save_file(state, filename, metadata, compression, checksum=checksum, progress=progress)


def load_model(
    model: torch.nn.Module,
    filename: Path,
    strict: bool = True,
    device: Device = "cpu",
    copy: bool = False,
    *,
    progress: Progress = None,
) -> tuple[list[str], list[str]]:
    """Loads a file's tensors into a model and returns the missing and unexpected names.

    A name that the file lacks is not missing if the model ties it to one that
    the file has. With ``strict``, missing or unexpected names are an error.
    On the meta device the model takes the loaded tensors as they are.

    >>> import torch
    >>> model = torch.nn.Linear(10, 5)
    >>> save_model(model, "linear.zt")
    >>> load_model(torch.nn.Linear(10, 5), "linear.zt")
    ([], [])
    """
    tensors = load_file(filename, device, copy, progress=progress)
    own = model.state_dict(keep_vars=True)
    on_meta = any(tensor.is_meta for tensor in own.values() if isinstance(tensor, torch.Tensor))
    result = model.load_state_dict(tensors, strict=False, assign=on_meta)
    present = {_identity(own[name]) for name in own if name in tensors}
    missing = [name for name in result.missing_keys if _identity(own.get(name)) not in present]
    unexpected = list(result.unexpected_keys)
    if strict and (missing or unexpected):
        lines = [f"{filename} does not fit {type(model).__name__}:"]
        lines += [f"  missing: {', '.join(map(repr, missing))}"] if missing else []
        lines += [f"  unexpected: {', '.join(map(repr, unexpected))}"] if unexpected else []
        raise ModelMismatchError("\n".join(lines))
    return missing, unexpected


def _identity(tensor: Any) -> object:
    """Equal for tensors that are one and the same memory."""
    if not isinstance(tensor, torch.Tensor) or tensor.is_meta or not tensor.numel():
        return id(tensor)
    return (tensor.data_ptr(), tensor.device, tuple(tensor.shape), tensor.stride())
