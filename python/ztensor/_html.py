"""What a notebook shows of a tensor: shape, type and the distribution of its values."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from ztensor._types import AnyArray

if TYPE_CHECKING:
    from ztensor._tensor import Tensor

_BINS = 32
_PIECES, _PIECE = 16, 4096
"""Values are looked at in this many places, so that showing a mapped tensor reads little of it."""


def shown(tensor: Tensor) -> str:
    """A tensor as HTML, with nothing that a page would have to load."""
    logical = tensor.type or tensor.dtype
    size = " \N{MULTIPLICATION SIGN} ".join(map(str, tensor.shape)) or "scalar"
    layout = "" if tensor.format == "dense" else f", {escape(tensor.format)}"
    head = (
        f"<b>ztensor.Tensor</b> <code>{size}</code> {escape(logical)}{layout}, "
        f"{tensor.nbytes:,} bytes"
    )
    values = _sample(tensor)
    if values is None or not values.size:
        return f"<div>{head}</div>"
    finite = values[np.isfinite(values)]
    note = f", {values.size - finite.size} not finite" if finite.size < values.size else ""
    if not finite.size:
        return f"<div>{head}<br><small>no finite values{note}</small></div>"
    low, high = float(finite.min()), float(finite.max())
    mean, deviation = float(finite.mean()), float(finite.std())
    which = "of a sample" if values.size < tensor.size else "of all values"
    words = f"min {low:.4g}, max {high:.4g}, mean {mean:.4g}, std {deviation:.4g} {which}{note}"
    return f"<div>{head}<br>{_bars(finite, low, high)}<br><small>{words}</small></div>"


def _sample(tensor: Tensor) -> AnyArray | None:
    """Some values of a dense tensor as float64; ``None`` where there are no real numbers."""
    if tensor.format != "dense":
        return None
    try:
        flat: Any = tensor.numpy().reshape(-1)
    except ValueError:
        return None  # a type that NumPy does not have
    if flat.size > _PIECES * _PIECE:
        starts = np.linspace(0, flat.size - _PIECE, _PIECES).astype(np.int64)
        flat = np.concatenate([flat[start : start + _PIECE] for start in starts])
    if flat.dtype.kind == "c":
        return None
    values: AnyArray = flat.astype(np.float64)
    return values


def _bars(values: AnyArray, low: float, high: float) -> str:
    counts, _ = np.histogram(values, _BINS, (low, high if high > low else low + 1))
    tallest = int(counts.max())
    bars = "".join(
        f'<rect x="{6 * index}" y="{40 - height}" width="5" height="{height}"/>'
        for index, count in enumerate(counts)
        if (height := round(40 * int(count) / tallest, 1))
    )
    return (
        f'<svg width="{6 * _BINS}" height="40" fill="currentColor" role="img" '
        f'aria-label="histogram">{bars}</svg>'
    )
