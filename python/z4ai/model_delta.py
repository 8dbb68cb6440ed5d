"""Deltas between models: a fine-tune as what it changed, tensor by tensor.

Each tensor of the target is stored as the smallest of: nothing, where the base has the same bytes
under any name; its difference from a tensor of the base; a frame of its own. The base is known by
its tensors, so any file with the same model will do, and no other.

>>> import numpy as np
>>> from safetensors.numpy import save
>>> from z4ai import model_delta
>>> weights = np.random.default_rng(0).standard_normal((200, 100), dtype=np.float32)
>>> base = save({"w": weights, "frozen": weights + 1})
>>> tuned = save({"w": weights * np.float32(1.0001), "frozen": weights + 1})
>>> blob = model_delta.compress(tuned, base)
>>> model_delta.decompress(blob, base) == tuned, len(blob) < len(tuned) / 2
(True, True)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from z4ai import _codec, _memory
from z4ai._codec import Data
from ztensor import _native
from ztensor._errors import InvalidArgumentError
from ztensor._progress import reporting
from ztensor._types import Effort, Path, Progress

__all__ = [
    "MAGIC",
    "apply_in_place",
    "compress",
    "compress_file",
    "decompress",
    "decompress_file",
    "info",
    "peek_is_model_delta",
]

MAGIC = b"Z4DM"
"""What every model delta starts with."""


def compress(
    target: Data,
    base: Data,
    *,
    level: int | None = None,
    threads: int = 0,
    effort: Effort | None = None,
) -> bytes:
    """The delta that turns ``base`` into ``target``, both whole files in memory.

    A safetensors or ``.zt`` target comes back byte for byte; a target of another format comes
    back as a ``.zt`` file with the same tensors. For the options see :func:`z4ai.compress`.
    """
    settings = _settings(level, threads, effort)
    old, new = _memory.contents_of(base, "the base"), _memory.contents_of(target, "the target")
    return _native.z4dm_make_bytes(old, new, settings)


def decompress(
    blob: Data, base: Data, *, threads: int = 0, max_total_bytes: int | None = None
) -> bytes:
    """The target that a delta was made from. Any other base is a ``ValueError``.

    A target of more than ``max_total_bytes``, or a base that takes more to decode, is a
    ``LimitError`` before memory is allocated; by default the limit is the larger of 4 GiB and
    1,000 times the size of base and delta.
    """
    delta = _memory.contents_of(blob, "the delta")
    if not peek_is_model_delta(delta):
        raise InvalidArgumentError(f"not a model delta (Z4DM): it starts with {delta[:4]!r}")
    known = _memory.contents_of(base, "the base")
    threads = _codec.threads_checked(threads)
    return _native.z4dm_apply_bytes(known, delta, threads, max_total_bytes=max_total_bytes)


def compress_file(
    target_path: Path,
    base_path: Path,
    out_path: Path,
    *,
    level: int | None = None,
    threads: int = 0,
    effort: Effort | None = None,
    progress: Progress = None,
) -> dict[str, Any]:
    """Like :func:`compress`, between files; memory is needed for a few tensors.

    Returns ``original_bytes``, ``compressed_bytes``, ``ratio`` and ``saved_pct``, as packing does,
    and how many tensors were ``copied``, ``renamed``, stored as ``deltas`` or in ``full``, or
    ``shared`` with another. ``original`` and ``stored`` are older names of the first two.
    """
    settings = _settings(level, threads, effort)
    total = os.stat(target_path).st_size if progress else 0
    with reporting(progress, total, "comparing") as tell:
        made = _native.z4dm_make(base_path, target_path, out_path, settings, tell)
    counted = dict(zip(("copied", "renamed", "deltas", "full", "shared"), made[2:], strict=True))
    original, stored = made[:2]
    return {
        "original_bytes": original,
        "compressed_bytes": stored,
        "ratio": original / stored,
        "saved_pct": 100.0 * (1 - stored / original) if original else 0.0,
        "original": original,
        "stored": stored,
        **counted,
    }


def decompress_file(
    delta_path: Path | Sequence[Path],
    base_path: Path,
    out_path: Path,
    *,
    threads: int = 0,
    progress: Progress = None,
    max_total_bytes: int | None = None,
) -> dict[str, Any]:
    """Like :func:`decompress`, between files.

    ``delta_path`` may be a list: each delta is applied to what the one before it made. A list
    with a gap, or in the wrong order, is refused before anything is done.

    Returns the size of the new file as ``bytes``; ``restored`` is its older name, ``stored`` the
    size of the deltas.
    """
    paths = [delta_path] if isinstance(delta_path, str | os.PathLike) else list(delta_path)
    stored = sum(os.stat(path).st_size for path in paths)
    total = sum(_native.z4dm_info(path)[4] for path in paths) if progress else 0
    with reporting(progress, total, "restoring") as tell:
        restored = _native.z4dm_apply(
            base_path,
            paths,
            out_path,
            _codec.threads_checked(threads),
            tell,
            max_total_bytes=max_total_bytes,
        )
    return {"bytes": restored, "stored": stored, "restored": restored}


def apply_in_place(
    path: Path,
    delta_path: Path,
    *,
    threads: int = 0,
    progress: Progress = None,
    max_total_bytes: int | None = None,
) -> dict[str, Any]:
    """Turns a ``.zt`` file, the base of a delta, into its target, tensor by tensor.

    Only what changed is written; the file survives a kill or a power cut at any instant, as
    the old model or the new one. It holds the same tensors as the target then, though not the
    same bytes. Returns how many tensors were ``written`` and ``removed``, and the new size as
    ``bytes``. For ``max_total_bytes`` see :func:`decompress`.
    """
    total = _native.z4dm_info(delta_path)[4] if progress else 0
    with reporting(progress, total, "updating") as tell:
        threads = _codec.threads_checked(threads)
        written, removed, size = _native.z4dm_apply_in_place(
            path, delta_path, threads, tell, max_total_bytes=max_total_bytes
        )
    return {"written": written, "removed": removed, "bytes": size}


def info(delta: Data | Path) -> dict[str, Any]:
    """What a delta, a path or bytes, changes: its base, its target, and each tensor."""
    found = (
        _native.z4dm_info(delta)
        if isinstance(delta, str | os.PathLike)
        else _native.z4dm_info_bytes(_memory.contents_of(delta, "the delta"))
    )
    keys = ("name", "how", "from", "bytes", "stored_bytes")
    return {
        "version": found[0],
        "base": found[1],
        "target": found[2],
        "stored": found[3],
        "original": found[4],
        "tensors": [dict(zip(keys, change, strict=True)) for change in found[5]],
    }


def peek_is_model_delta(blob: Data) -> bool:
    """Whether bytes start like a model delta."""
    return bytes(_memory.frame_of(blob)[:4]) == MAGIC


def _settings(level: int | None, threads: int, effort: str | None) -> tuple[str, int | None, int]:
    return (
        _codec.effort_named(effort),
        _codec.level_checked(level),
        _codec.threads_checked(threads),
    )
