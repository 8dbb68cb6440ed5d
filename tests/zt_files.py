"""`.zt` files written by hand, to say what no writer of ours would."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

MAGIC = b"ZTEN1000"


def cbor(value: Any) -> bytes:
    """The few types of CBOR that manifests have."""
    if isinstance(value, str):
        text = value.encode()
        return _head(3, len(text)) + text
    if isinstance(value, int):
        return _head(0, value)
    if isinstance(value, Mapping):
        pairs = b"".join(cbor(key) + cbor(item) for key, item in value.items())
        return _head(5, len(value)) + pairs
    if isinstance(value, Sequence):
        return _head(4, len(value)) + b"".join(map(cbor, value))
    raise TypeError(type(value).__name__)


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    for code, size in ((24, "B"), (25, "H"), (26, "I"), (27, "Q")):
        if number < 1 << 8 * struct.calcsize(size):
            return bytes([major << 5 | code]) + struct.pack(f">{size}", number)
    raise OverflowError(number)


def component(
    dtype: str, offset: int, length: int, decoded: int | None = None, **more: str
) -> dict[str, Any]:
    """A component; with a decoded length, one that is stored with zstd."""
    encoded = {} if decoded is None else {"encoding": "zstd", "uncompressed_length": decoded}
    return {"dtype": dtype, "offset": offset, "length": length, **encoded, **more}


def tensor(layout: str, shape: Sequence[int], **components: Mapping[str, Any]) -> dict[str, Any]:
    """An object of any layout."""
    return {"shape": list(shape), "format": layout, "components": components}


def blobs(*contents: bytes) -> tuple[bytes, list[int]]:
    """What lies before the manifest, and where each blob starts."""
    data, starts = bytearray(MAGIC), []
    for content in contents:
        data += bytes(-len(data) % 64)
        starts.append(len(data))
        data += content
    return bytes(data), starts


def file(data: bytes, objects: Mapping[str, Any]) -> bytes:
    """A file of these objects, whose blobs are in ``data``."""
    manifest = cbor({"version": "1.2.0", "objects": objects})
    return data + manifest + struct.pack("<Q", len(manifest)) + MAGIC


def zstd_raw(content: bytes) -> bytes:
    """A zstd frame of one raw block."""
    header = b"\x28\xb5\x2f\xfd\x20" + bytes([len(content)])
    return header + struct.pack("<I", len(content) << 3 | 1)[:3] + content


def zstd_rle(byte: int, count: int, stored: int) -> bytes:
    """A zstd frame of ``count`` equal bytes that takes ``stored`` bytes itself, by empty blocks."""
    header = b"\x28\xb5\x2f\xfd\x20" + bytes([count])
    body = struct.pack("<I", count << 3 | 2)[:3] + bytes([byte])
    empty, rest = divmod(stored - len(header) - len(body) - 3, 3)
    if rest:
        raise ValueError(f"{stored} bytes cannot be filled up with empty blocks")
    return header + bytes(3 * empty) + body + b"\x01\x00\x00"
