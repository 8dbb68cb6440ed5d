"""A decoder of z4ai frames written from docs/spec/z4ai.md alone: short and slow."""

from __future__ import annotations

import struct

import xxhash

MAGICS = (b"Z4AI", b"ZARA")
SIZES = (1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 1, 1, 2, 2, 4, 8)
EXPONENT_BITS = {12: 5, 13: 8, 14: 8, 15: 11}


def check(holds: bool, rule: int) -> None:
    if not holds:
        raise ValueError(f"the frame breaks rule {rule}")


class Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, length: int) -> bytes:
        check(length <= len(self.data) - self.at, 5)
        self.at += length
        return self.data[self.at - length : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")


def low_bits_first(data: bytes, width: int, count: int, rule: int) -> list[int]:
    bits = int.from_bytes(data, "little")
    check(bits >> (width * count) == 0, rule)
    return [bits >> (i * width) & ((1 << width) - 1) for i in range(count)]


class Stream:
    """A stream as its description says."""

    def __init__(self, index: Cursor, length: int) -> None:
        self.coder, self.length = index.number(1), length
        if self.coder == 0:
            self.value, self.stored = index.take(1), 0
        elif self.coder == 1:
            self.stored = length
        elif self.coder == 2:
            self.width = index.number(1)
            self.palette = index.take(1 << self.width)
            self.stored = -(-length * self.width // 8)
        elif self.coder == 3:
            self.lengths = [index.number(4) for _ in range(4)]
            self.codes = read_codes(index)
            self.stored = sum(self.lengths)
        elif self.coder == 4:
            self.stored, self.hash = index.number(4), index.number(8)
        else:
            raise ValueError(f"coder {self.coder} is not known")

    def decode(self, payload: Cursor) -> bytes:
        stored = payload.take(self.stored)
        if self.coder == 0:
            return self.value * self.length
        if self.coder == 1:
            return stored
        if self.coder == 2:
            return bytes(
                self.palette[i] for i in low_bits_first(stored, self.width, self.length, 9)
            )
        if self.coder == 3:
            return self.decode_huffman(Cursor(stored))
        import zstandard

        check(xxhash.xxh3_64_intdigest(stored) == self.hash, 10)
        content = zstandard.ZstdDecompressor().decompress(stored, max_output_size=self.length)
        check(len(content) == self.length, 10)
        return content

    def decode_huffman(self, stored: Cursor) -> bytes:
        out = bytearray()
        run = -(-self.length // 4)
        for length in self.lengths:
            data = stored.take(length)
            bits = "".join(f"{byte:08b}" for byte in data)
            at = 0
            for _ in range(min(run, self.length - len(out))):
                for width in range(1, 12):
                    symbol = self.codes.get(bits[at : at + width])
                    if symbol is not None:
                        break
                check(symbol is not None, 12)
                out.append(symbol)
                at += width
            check(len(bits) - at < 8 and "1" not in bits[at:], 12)
        return bytes(out)


def read_codes(index: Cursor) -> dict[str, int]:
    first, last = index.number(1), index.number(1)
    nibbles: list[int] = []

    def nibble() -> int:
        if not nibbles:
            byte = index.number(1)
            nibbles.extend((byte >> 4, byte & 15))
        return nibbles.pop()

    lengths, symbol = [], first
    while symbol <= last:
        value = nibble()
        if value == 15:
            symbol += nibble() + 2
            continue
        check(value <= 11, 11)
        if value:
            lengths.append((value, symbol))
        symbol += 1
    check(symbol == last + 1 and not any(nibbles), 11)
    check(sum(2 ** (11 - length) for length, _ in lengths) == 2**11, 11)
    codes, code, before = {}, 0, 0
    for length, symbol in sorted(lengths):
        code <<= length - before
        codes[f"{code:0{length}b}"] = symbol
        code, before = code + 1, length
    return codes


class Split:
    """A chunk of elements cut into fields, as its description says."""

    def __init__(self, index: Cursor, kind: int, length: int) -> None:
        self.size = SIZES[kind]
        self.float = kind in EXPONENT_BITS
        self.count = length // self.size
        self.bits, self.base, patches = index.number(1), index.number(2), index.number(4)
        least = min(8, EXPONENT_BITS[kind]) if self.float else 8
        check(length % self.size == 0 and self.size > 1, 13)
        check(least <= self.bits < 16 if self.float else self.bits == 8, 13)
        check(self.base == 0 or self.base + 255 < 1 << self.bits, 13)
        check(patches <= self.count, 14)
        axis = index.number(1)
        self.class_of = [0] * self.count
        if axis:
            period, width = index.number(4), index.number(1)
            check(axis <= 2 and 1 <= period <= self.count and width in (1, 2), 15)
            units = period if axis == 2 else -(-self.count // period)
            classes = low_bits_first(index.take(-(-units * width // 8)), width, units, 15)
            self.class_of = [
                classes[i % period if axis == 2 else i // period] for i in range(self.count)
            ]
            highest = max(classes)
        else:
            highest = 0
        raw_bits = self.size * 8 - self.bits
        self.mid_bits = raw_bits % 8
        sizes = [self.class_of.count(number) for number in range(highest + 1)]
        mid_length = -(-self.count * self.mid_bits // 8)
        self.mid = Stream(index, mid_length) if self.mid_bits else None
        self.planes = [Stream(index, self.count) for _ in range(raw_bits // 8)]
        self.codes = [Stream(index, size) for size in sizes]
        self.patches = patches
        streams = ([self.mid] if self.mid else []) + self.planes + self.codes
        self.stored = sum(stream.stored for stream in streams) + 6 * patches

    def decode(self, payload: Cursor) -> bytes:
        mids = [0] * self.count
        if self.mid:
            mids = low_bits_first(self.mid.decode(payload), self.mid_bits, self.count, 15)
        planes = [plane.decode(payload) for plane in self.planes]
        runs = [iter(stream.decode(payload)) for stream in self.codes]
        patched = [payload.number(4) for _ in range(self.patches)]
        patches = {index: payload.number(2) for index in patched}
        check(all(i < self.count and s >> self.bits == 0 for i, s in patches.items()), 14)
        raw_bits = self.size * 8 - self.bits
        out = bytearray()
        for i in range(self.count):
            symbol = next(runs[self.class_of[i]]) + self.base
            symbol = patches.get(i, symbol)
            raw = mids[i]
            for plane in reversed(planes):
                raw = raw << 8 | plane[i]
            if self.float:
                rest = raw_bits - 1
                sign, raw = raw >> rest, raw & ((1 << rest) - 1)
                element = sign << (self.size * 8 - 1) | symbol << rest | raw
            else:
                element = symbol << raw_bits | raw
            out += element.to_bytes(self.size, "little")
        return bytes(out)


def decode(frame: bytes) -> tuple[bytes, int, tuple[str, list[int]] | None]:
    """The content of a frame, the kind of its elements, and its array description if any."""
    header = Cursor(frame)
    check(header.take(4) in MAGICS and header.number(1) == 2, 3)
    kind, flags, zero = header.number(1), header.number(1), header.number(1)
    check(kind < len(SIZES) and flags in (0, 1) and zero == 0, 3)
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
    for _ in range(chunks):
        length, checksum, layout = index.number(4), index.number(8), index.number(1)
        check(1 <= length <= 1 << 24, 7)
        check(len(content) % SIZES[kind] == 0, 6)
        check(layout in (0, 1), 3)
        chunk = Stream(index, length) if layout == 0 else Split(index, kind, length)
        decoded = chunk.decode(Cursor(payload.take(chunk.stored)))
        check(xxhash.xxh3_64_intdigest(decoded) == checksum, 8)
        content += decoded
    check(index.at == len(index.data) and payload.at == len(payload.data), 5)
    check(len(content) == content_length, 5)
    return bytes(content), kind, array
