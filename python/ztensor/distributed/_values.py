"""Non-tensor values, as plain JSON: nothing in a checkpoint has to be unpickled.

Numbers, texts, ``None``, lists and dictionaries with text keys are themselves. Whatever JSON lacks
is an object with a single key that starts with ``$``:

>>> text = encode({"lr": 0.1, "betas": (0.9, float("inf")), "seen": {1, 2}})
>>> print(text)
{"lr":0.1,"betas":{"$tuple":[0.9,{"$float":"inf"}]},"seen":{"$set":[1,2]}}
>>> decode(text)
{'lr': 0.1, 'betas': (0.9, inf), 'seen': {1, 2}}
"""

from __future__ import annotations

import base64
import json
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ztensor import _dtypes
from ztensor._errors import CorruptError, InvalidArgumentError
from ztensor._frameworks import array_to_torch

_DEPTH = 100
"""Values nest no deeper than this: neither a list in itself nor a hostile file may hang us."""


class NotPlain(InvalidArgumentError):
    """A value that has no plain form."""


def encode(value: Any) -> str:
    """The text of a plain value; raises :class:`NotPlain` for others."""
    return json.dumps(_plain(value, 0), separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def decode(text: str | bytes) -> Any:
    """The value of a text."""
    return restored(parsed(text))


def parsed(text: str | bytes) -> Any:
    """JSON from a file that may be damaged or hostile."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"this is not valid JSON: {error}") from None


def restored(value: Any) -> Any:
    """The value that a piece of JSON stands for."""
    return _value(value, 0)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _plain(value: Any, depth: int) -> Any:
    if depth > _DEPTH:
        raise NotPlain(f"it is nested more than {_DEPTH} deep")
    # Subclasses are not plain: their own behaviour would be lost.
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is list:
        return [_plain(item, depth + 1) for item in value]
    if kind is dict and all(type(key) is str and not key.startswith("$") for key in value):
        return {key: _plain(item, depth + 1) for key, item in value.items()}
    if kind in _PAIRS:
        pairs = [[_plain(key, depth + 1), _plain(item, depth + 1)] for key, item in value.items()]
        return {_PAIRS[kind]: pairs}
    if kind in _ITEMS:
        items = value if kind in (tuple, torch.Size) else _ordered(value)
        return {_ITEMS[kind]: [_plain(item, depth + 1) for item in items]}
    if kind is bytes:
        return {"$bytes": _text(value)}
    if kind is complex:
        return {"$complex": [_plain(value.real, depth + 1), _plain(value.imag, depth + 1)]}
    if kind is torch.dtype:
        return {"$dtype": str(value).removeprefix("torch.")}
    if kind is torch.device:
        return {"$device": str(value)}
    if kind in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided:
        return {"$tensor": _tensor(value)}
    if (kind is np.ndarray or isinstance(value, np.generic)) and value.dtype.kind in "biufc":
        data = np.ascontiguousarray(value).tobytes()
        described = [value.dtype.str, list(value.shape), _text(data)]
        return {"$array" if kind is np.ndarray else "$scalar": described}
    raise NotPlain(f"{kind.__module__}.{kind.__qualname__} has no JSON form")


def _ordered(items: Any) -> list[Any]:
    """Members of a set, in an order that does not depend on their hashes where they have one."""
    try:
        return sorted(items)
    except TypeError:
        return list(items)


def _tensor(tensor: torch.Tensor) -> list[Any]:
    element = _dtypes.of_torch(tensor.dtype)
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    data = dense.view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    return [element.name, list(tensor.shape), _text(data)]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _value(value: Any, depth: int) -> Any:
    if depth > _DEPTH:
        raise CorruptError(f"a value is nested more than {_DEPTH} deep")
    if isinstance(value, list):
        return [_value(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(key, inner)] = value.items()
        if key.startswith("$"):
            return _special(key, inner, depth)
    return {key: _value(item, depth + 1) for key, item in value.items()}


def _special(key: str, inner: Any, depth: int) -> Any:
    try:
        make = _MAKE[key]
    except KeyError:
        raise CorruptError(f"a value has the unknown kind {key!r}") from None
    try:
        return make(_value(inner, depth + 1) if key in _NESTED else inner)
    except CorruptError:
        raise
    except (TypeError, ValueError, KeyError, RuntimeError, ArithmeticError) as error:
        raise CorruptError(f"a {key} that is none: {error}") from None


def _float(text: str) -> float:
    if text not in ("nan", "inf", "-inf"):
        raise ValueError(text)
    return float(text)


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch has no dtype {name!r}")
    return found


def _make_tensor(described: list[Any]) -> torch.Tensor:
    name, shape, text = described
    data = np.frombuffer(bytearray(_bytes(text)), np.uint8)
    element = _dtypes.named(name)
    expected = math.prod(_sizes(shape)) * _dtypes.torch_dtype(element).itemsize
    if expected != data.size:
        raise ValueError(f"{data.size} bytes for a tensor of {expected}")
    if element.bits % 8 and shape:
        shape = [*shape[:-1], shape[-1] * 2]  # files count elements, torch pairs of them
    return array_to_torch(data, element, shape)


def _make_array(described: list[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    name, shape, text = described
    dtype = np.dtype(name)
    if dtype.kind not in "biufc":
        raise ValueError(f"{name!r} is not a number")
    return np.frombuffer(bytearray(_bytes(text)), dtype).reshape(_sizes(shape))


def _sizes(shape: Any) -> list[int]:
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("a shape is a list of sizes")
    return shape


_PAIRS: dict[type, str] = {dict: "$dict", OrderedDict: "$ordered"}
_ITEMS: dict[type, str] = {
    tuple: "$tuple",
    set: "$set",
    frozenset: "$frozenset",
    torch.Size: "$size",
}
_NESTED = {"$dict", "$ordered", "$tuple", "$set", "$frozenset", "$size", "$complex"}
_MAKE: dict[str, Callable[[Any], Any]] = {
    "$float": _float,
    "$dict": lambda pairs: {key: value for key, value in pairs},
    "$ordered": lambda pairs: OrderedDict((key, value) for key, value in pairs),
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$size": torch.Size,
    "$complex": lambda parts: complex(*parts),
    "$bytes": _bytes,
    "$dtype": _dtype,
    "$device": torch.device,
    "$tensor": _make_tensor,
    "$array": _make_array,
    "$scalar": lambda described: _make_array(described)[()],
}
