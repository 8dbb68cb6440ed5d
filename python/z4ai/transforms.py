"""Elements taken apart into planes of bytes, and put together again.

The codec does this and more in its own kernels; these are for those who want to look at the
planes themselves.

>>> from z4ai import transforms
>>> planes, tail = transforms.split_planes(b"aAbBcC!", 2)
>>> planes, tail
([b'abc', b'ABC'], b'!')
>>> transforms.join_planes(planes, tail)
b'aAbBcC!'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from z4ai import _memory
from ztensor._errors import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import Buffer
else:
    from z4ai._memory import Buffer

__all__ = ["join_planes", "split_planes", "tail_len", "width_for_itemsize"]


def width_for_itemsize(itemsize: int) -> int:
    """The number of planes for elements of some bytes: one per byte, as far as a byte can count."""
    if not 1 <= itemsize <= 255:
        raise InvalidArgumentError(f"elements have 1 to 255 bytes, not {itemsize}")
    return itemsize


def tail_len(length: int, width: int) -> int:
    """How many of ``length`` bytes are left over behind the last whole element."""
    return length % width_for_itemsize(width)


def split_planes(data: Buffer, width: int) -> tuple[list[bytes], bytes]:
    """Plane ``j`` has byte ``j`` of every element; what is no whole element is the tail."""
    raw = bytes(_memory.frame_of(data))
    body = len(raw) - tail_len(len(raw), width)
    return [raw[plane:body:width] for plane in range(width)], raw[body:]


def join_planes(planes: Sequence[Buffer], tail: Buffer = b"") -> bytes:
    """Undoes :func:`split_planes`."""
    parts = [bytes(_memory.frame_of(plane)) for plane in planes]
    width = width_for_itemsize(len(parts))
    if len({len(part) for part in parts}) != 1:
        raise InvalidArgumentError("planes of one buffer have one length")
    body = bytearray(width * len(parts[0]))
    for plane, part in enumerate(parts):
        body[plane::width] = part
    return bytes(body) + bytes(_memory.frame_of(tail))
