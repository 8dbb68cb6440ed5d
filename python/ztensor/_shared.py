"""Torch tensors that share memory: which do, and which names a file keeps.

The same questions that ``safetensors.torch`` asks before it saves a model, under the same names,
because other packages import them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch

from ztensor import _dtypes
from ztensor._errors import SharedTensorError


def storage_ptr(tensor: torch.Tensor) -> int:
    """The address of the memory that a tensor lies in; 0 on the meta device."""
    return int(tensor.untyped_storage().data_ptr())


def storage_size(tensor: torch.Tensor) -> int:
    """Bytes of the memory that a tensor lies in."""
    return int(tensor.untyped_storage().nbytes())


def end_ptr(tensor: torch.Tensor) -> int:
    """The address behind the last element of a tensor of any strides."""
    start = int(tensor.data_ptr())
    if not tensor.numel():
        return start
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return start + (last + 1) * tensor.element_size()


def is_complete(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of the memory that it lies in."""
    at_start = tensor.data_ptr() == storage_ptr(tensor)
    return at_start and tensor.numel() * tensor.element_size() == storage_size(tensor)


def find_shared_tensors(tensors: Mapping[str, torch.Tensor]) -> list[set[str]]:
    """Names in groups whose tensors overlap in memory; most groups are of one name."""
    by_storage: dict[object, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.device.type == "meta" or tensor.layout != torch.strided:
            continue
        address, size = storage_ptr(tensor), storage_size(tensor)
        if address and size:
            by_storage.setdefault((tensor.device, address, size), []).append(name)
    groups: list[set[str]] = []
    for names in by_storage.values():
        groups += _overlapping(names, tensors) if len(names) > 1 else [set(names)]
    return groups


def _overlapping(names: Iterable[str], tensors: Mapping[str, torch.Tensor]) -> list[set[str]]:
    """Tensors of one memory, in groups that overlap."""
    areas = sorted((tensors[name].data_ptr(), end_ptr(tensors[name]), name) for name in names)
    groups: list[set[str]] = []
    covered = 0
    for start, stop, name in areas:
        if groups and start < covered:
            groups[-1].add(name)
        else:
            groups.append({name})
        covered = max(covered, stop)
    return groups


def remove_duplicate_names(
    tensors: Mapping[str, torch.Tensor],
    *,
    preferred_names: Collection[str] | None = None,
    discard_names: Collection[str] | None = None,
) -> dict[str, list[str]]:
    """For every group that shares memory, the name to keep and those to leave out."""
    removed: dict[str, list[str]] = {}
    for group in find_shared_tensors(tensors):
        complete = {name for name in group if is_complete(tensors[name])}
        if not complete:
            raise SharedTensorError(
                f"none of {sorted(group)} covers all of the memory that they lie in: saving one "
                "would store more or less than the model has. Call clone() on them first, or save "
                "as .zt, which stores each tensor as it is"
            )
        keep = sorted(complete)[0]
        if kept := complete.difference(discard_names or ()):
            keep = sorted(kept)[0]
        if kept := complete.intersection(preferred_names or ()):
            keep = sorted(kept)[0]
        if others := [name for name in sorted(group) if name != keep]:
            removed[keep] = others
    return removed


def refuse_shared(tensors: Mapping[str, object]) -> None:
    """Refuses what safetensors refuses: two names for overlapping memory."""
    torch_tensors = {
        name: tensor for name, tensor in tensors.items() if isinstance(tensor, torch.Tensor)
    }
    shared = [sorted(group) for group in find_shared_tensors(torch_tensors) if len(group) > 1]
    if shared:
        raise SharedTensorError(
            f"Some tensors share memory, which a .safetensors file would store twice and load "
            f"as different tensors: {shared}. save_model keeps one name of each, and a .zt file "
            "stores them once and ties them again"
        )


def getdtype(name: str) -> torch.dtype:
    """The torch dtype that a safetensors file calls by this name."""
    element = next((one for one in _dtypes.ELEMENTS if one.safetensors == name), None)
    if element is None:
        raise KeyError(name)
    return _dtypes.torch_dtype(element)
