"""A decoder of z4ai frames and deltas, from docs/spec/z4ai.md and z4ai-delta.md: short and slow."""

from __future__ import annotations

import struct

import xxhash

from .blocks import Blocks
from .deltas import Difference
from .layouts import (
    Classed,
    Contexts,
    Grouped,
    Indexed,
    Leveled,
    Opaque,
    Range,
    Sparse,
    Split,
    read_layout,
    read_palette,
)
from .streams import SIZES, Cursor, Stream, check

__all__ = [
    "Blocks",
    "Classed",
    "Contexts",
    "Difference",
    "Grouped",
    "Indexed",
    "Leveled",
    "Opaque",
    "Range",
    "Sparse",
    "Split",
    "Stream",
    "decode",
]

MAGICS = (b"Z4AI", b"ZARA")


def decode(
    frame: bytes, reference: bytes | None = None
) -> tuple[bytes, int, tuple[str, list[int]] | None]:
    """The content of a frame, the kind of its elements, and its array description if any.

    With a reference the frame is a delta from it.
    """
    header = Cursor(frame)
    magics, version = (MAGICS, 2) if reference is None else ((b"Z4DL",), 3)
    check(header.take(4) in magics and header.number(1) == version, 3)
    kind, flags, zero = header.number(1), header.number(1), header.number(1)
    check(kind < len(SIZES) and flags < (8 if reference is None else 2) and zero == 0, 3)
    frame_length, content_length, index_length, chunks = struct.unpack("<QQII", header.take(24))
    check(frame_length == len(frame) and 8 <= index_length <= len(frame) - 32, 1)
    array = None
    if flags & 1:
        dtype = header.take(header.number(1)).decode()
        array = dtype, [header.number(8) for _ in range(header.number(1))]
        product = 1
        for dimension in array[1]:
            product *= dimension
        check(content_length % product == 0 if product else content_length == 0, 4)
    index = Cursor(frame[len(frame) - index_length : -8])
    head = frame[: header.at] + index.data
    check(xxhash.xxh3_64_intdigest(head) == int.from_bytes(frame[-8:], "little"), 2)
    payload = Cursor(frame[header.at : len(frame) - index_length])
    content = bytearray()
    palette = read_palette(index, kind) if flags & 2 else None
    for number in range(chunks):
        length, checksum = index.number(4), index.number(8)
        check(not flags & 4 or length >= 4096 or number >= chunks - 2, 23)
        check(1 <= length <= 1 << 24, 7)
        check(len(content) % SIZES[kind] == 0, 6)
        if reference is None:
            chunk = read_layout(index, kind, length, palette)
            decoded = chunk.decode(Cursor(payload.take(chunk.stored)))
        else:
            delta = Difference(index, kind, length)
            part = reference[len(content) : len(content) + length]
            decoded = delta.decode(Cursor(payload.take(delta.stored)), part)
        check(xxhash.xxh3_64_intdigest(decoded) == checksum, 8)
        content += decoded
    if flags & 4:
        content = with_copies(bytes(content), index, SIZES[kind])
    check(index.at == len(index.data) and payload.at == len(payload.data), 5)
    check(len(content) == content_length, 5)
    check(reference is None or len(reference) == content_length, 102)
    return bytes(content), kind, array


def with_copies(literals: bytes, index: Cursor, size: int) -> bytes:
    content, taken, count = bytearray(), 0, index.number(4)
    check(count > 0, 22)
    for _ in range(count):
        gap, length, source = index.number(8), index.number(8), index.number(8)
        check(gap <= len(literals) - taken and gap % size == 0, 22)
        check(1 <= length <= 1 << 28 and length % size == 0, 22)
        check(source + length <= len(literals), 22)
        content += literals[taken : taken + gap] + literals[source : source + length]
        taken += gap
    return bytes(content + literals[taken:])
