"""A reader of .zt files in one page, written from docs/spec/zt.md alone.

It shares no code with the library: two independent readings of the same text
that agree on every sample say that the text is enough.
"""

from __future__ import annotations

import hashlib
import math
import struct
from pathlib import Path
from typing import Any

STORAGE = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1}
STORAGE |= {"u64": 8, "u32": 4, "u16": 2, "u8": 1, "bool": 1}
COMPLEX = {"complex32", "complex64", "complex128"}
BITS = {"f4_e2m1fn": 4, "i4": 4, "u4": 4, "f6_e2m3fn": 6, "f6_e3m2fn": 6, "i2": 2, "u2": 2}


class Cbor:
    """Just enough of RFC 8949 for a manifest."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        piece = self.data[self.at : self.at + count]
        assert len(piece) == count, "the manifest ends too early"
        self.at += count
        return piece

    def value(self) -> Any:
        major, info = divmod(self.take(1)[0], 32)
        if major == 7:
            simple = {20: False, 21: True, 22: None, 23: None}
            floats = {25: ">e", 26: ">f", 27: ">d"}
            if info in simple:
                return simple[info]
            return struct.unpack(floats[info], self.take(struct.calcsize(floats[info])))[0]
        assert info < 28, "this reader knows definite lengths only"
        number = info if info < 24 else int.from_bytes(self.take(1 << (info - 24)), "big")
        match major:
            case 0:
                return number
            case 1:
                return -1 - number
            case 2:
                return self.take(number)
            case 3:
                return self.take(number).decode()
            case 4:
                return [self.value() for _ in range(number)]
            case 5:
                return {self.value(): self.value() for _ in range(number)}
            case _:
                return self.value()


def crc32c(data: bytes) -> int:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def unzstd(frame: bytes, size: int) -> bytes:
    import zstandard

    content: bytes = zstandard.ZstdDecompressor().decompress(frame, max_output_size=size)
    return content


def read_component(file: bytes, component: dict[str, Any]) -> bytes:
    offset, length = component["offset"], component["length"]
    assert offset % 64 == 0
    blob = file[offset : offset + length]
    assert len(blob) == length
    if digest := component.get("digest"):
        kind, _, expected = digest.partition(":")
        found = {
            "sha256": lambda: hashlib.sha256(blob).hexdigest(),
            "crc32c": lambda: f"0x{crc32c(blob):08x}",
        }[kind]()
        assert found == expected.lower(), digest
    encoding = component.get("encoding", "raw")
    if encoding == "raw":
        return blob
    assert encoding == "zstd", encoding
    blob = unzstd(blob, component["uncompressed_length"])
    assert len(blob) == component["uncompressed_length"]
    return blob


def check_manifest(file: bytes, offset: int, value: bytes) -> None:
    assert len(value) == 16 and file[-32:-16] == value
    place, place_crc, crc = struct.unpack("<QII", value)
    assert crc32c(value[:8]) == place_crc
    if place == offset:  # else an editor copied it from another manifest
        assert crc32c(file[offset:-20] + file[-16:]) == crc, "the manifest is damaged"


def element_bits(component: dict[str, Any]) -> int:
    bits = 8 * STORAGE[component["dtype"]]
    logical = component.get("type")
    return BITS.get(logical, 2 * bits if logical in COMPLEX else bits)


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Every object: its shape, layout and decoded components."""
    file = path.read_bytes()
    assert file[:8] == file[-8:] == b"ZTEN1000"
    length = int.from_bytes(file[-16:-8], "little")
    cbor = Cbor(file[-16 - length : -16])
    manifest = cbor.value()
    assert cbor.at == length
    assert manifest["version"].split(".")[0] == "1"
    if list(manifest)[-1] == "manifest_checksum":
        check_manifest(file, len(file) - 16 - length, manifest["manifest_checksum"])
    objects = {}
    for name, entry in manifest["objects"].items():
        components = {
            role: read_component(file, part) for role, part in entry["components"].items()
        }
        if entry["format"] == "dense":
            bits = math.prod(entry["shape"]) * element_bits(entry["components"]["data"])
            assert len(components["data"]) == (bits + 7) // 8
        objects[name] = {
            "shape": entry["shape"],
            "format": entry["format"],
            "attributes": entry.get("attributes", {}),
            "components": components,
        }
    return objects
