"""Chunks as differences from a reference: docs/spec/z4ai-delta.md."""

from __future__ import annotations

import itertools
import struct

import xxhash

from .layouts import read_layout
from .streams import EXPONENT_BITS, SIZES, Cursor, Stream, check, low_bits_first

# With the floats of one byte, which only deltas tell from integers.
EXPONENTS_OF_ALL = {10: 4, 11: 5, **EXPONENT_BITS}


class DifferenceClass:
    """Differences of elements, as docs/spec/z4ai-delta.md describes them."""

    def __init__(self, index: Cursor, size: int, count: int) -> None:
        self.size, self.count = size, count
        planes = index.number(1)
        check(planes <= size, 103)
        self.planes = [Stream(index, count) for _ in range(planes)]
        self.listed = index.number(4) if planes < size else 0
        check(self.listed <= count, 103)
        self.places, self.values = None, []
        if self.listed:
            self.marked = index.number(1)
            check(self.marked <= 1, 3)
            gaps = -(-count // 8) if self.marked else index.number(4)
            check(self.marked or self.listed <= gaps <= self.listed + count // 255, 103)
            self.places = Stream(index, gaps)
            self.values = [Stream(index, self.listed) for _ in range(size - planes)]
        streams = [*self.planes, *([self.places] if self.places else []), *self.values]
        self.stored = sum(stream.stored for stream in streams)

    def decode(self, payload: Cursor) -> list[int]:
        differences = [0] * self.count
        for byte, plane in enumerate(self.planes):
            for i, value in enumerate(plane.decode(payload)):
                differences[i] |= value << (8 * byte)
        if not self.places:
            return differences
        places = self.places.decode(payload)
        if self.marked:
            marks = low_bits_first(places, 1, self.count, 104)
            found = [i for i, mark in enumerate(marks) if mark]
        else:
            check(places[-1] != 255, 104)
            found, at = [], 0
            for gap in places:
                at += gap
                if gap < 255:
                    found.append(at)
                    at += 1
        check(len(found) == self.listed and found[-1] < self.count, 104)
        for byte, values in enumerate(self.values, len(self.planes)):
            for i, value in zip(found, values.decode(payload), strict=True):
                differences[i] |= value << (8 * byte)
        return differences


def make_bins() -> list[tuple[bool, int, int]]:
    """Of each bin whether the sign changes, the lowest residual and the bits of an offset."""
    near, start = [], 1
    while len(near) < 94:
        power = start.bit_length() - 1
        if power < 14:
            width = max(power - 1, 0)
        elif power < 19:
            width = power - 2
        else:
            width = 19 if power < 24 else 21 if power == 24 else 23
        near.append((start, width))
        start += 1 << width
    bins = [(False, 1 - start - (1 << width), width) for start, width in reversed(near)]
    bins += [(False, 0, 0)] + [(False, start, width) for start, width in near]
    far, start = [], 0
    while len(far) < 33:
        width = 20 if start < 2 << 23 else 21 if start < 4 << 23 else 23
        far.append((start, width))
        start += 1 << width
    bins += [(True, -start - (1 << width), width) for start, width in reversed(far[:32])]
    bins += [(True, start, width) for start, width in far]
    return [*bins, (False, 0, 31), (True, 0, 31)]


BINS = make_bins()


class Binned:
    """Residuals from a prediction, in bins."""

    def __init__(self, index: Cursor, kind: int, length: int) -> None:
        check(kind == 14 and length % 4 == 0, 107)
        (self.factor,) = struct.unpack("<f", index.take(4))
        check(2**-16 <= self.factor <= 1, 107)
        classes = index.number(1)
        check(1 <= classes <= 8, 107)
        self.thresholds = [index.number(1) for _ in range(classes - 1)]
        check(all(a < b for a, b in itertools.pairwise([0, *self.thresholds])), 107)
        self.classes = []
        for _ in range(classes):
            count = index.number(4)
            check(count <= length // 4, 107)
            self.classes.append((count, Stream(index, count)))
        check(sum(count for count, _ in self.classes) == length // 4, 107)
        self.offsets = index.number(4)
        check(self.offsets <= -(-length // 4 * 31 // 8), 107)
        self.stored = sum(stream.stored for _, stream in self.classes) + self.offsets

    def predict(self, reference: int) -> int:
        if not 32 <= reference >> 23 & 255 < 255:
            return reference
        (value,) = struct.unpack("<f", struct.pack("<I", reference))
        # The product of two floats is exact in double precision, and rounded once by pack.
        (bits,) = struct.unpack("<I", struct.pack("<f", value * self.factor))
        return int(bits)

    def decode(self, payload: Cursor, reference: bytes) -> bytes:
        runs = [iter(stream.decode(payload)) for _, stream in self.classes]
        offsets = int.from_bytes(payload.take(self.offsets), "little")
        out, at = bytearray(), 0
        for (before,) in struct.iter_unpack("<I", reference):
            expected = self.predict(before)
            number = sum(t <= expected >> 23 & 255 for t in self.thresholds)
            index = next(runs[number], None)
            check(index is not None, 107)
            assert index is not None
            changed, base, width = BINS[index]
            residual = base + (offsets >> at & ((1 << width) - 1))
            at += width
            magnitude = (expected + residual) & 0x7FFFFFFF
            sign = (expected >> 31) ^ changed
            out += (sign << 31 | magnitude).to_bytes(4, "little")
        check(all(next(run, None) is None for run in runs), 107)
        check(-(-at // 8) == self.offsets and offsets >> at == 0, 107)
        return bytes(out)


class Difference:
    """A chunk as its difference from a reference."""

    def __init__(self, index: Cursor, kind: int, length: int) -> None:
        self.reference, self.stored_hash, relation = (
            index.number(8),
            index.number(8),
            index.number(1),
        )
        check(relation <= 5, 3)
        self.binned = Binned(index, kind, length) if relation == 5 else None
        if self.binned:
            self.fresh = None
            self.stored = self.binned.stored
            return
        self.fresh = read_layout(index, kind, length, None) if relation == 0 else None
        if self.fresh:
            self.stored = self.fresh.stored
            return
        whole = length % SIZES[kind] == 0
        self.size = SIZES[kind] if whole else 1
        self.float = whole and EXPONENTS_OF_ALL.get(kind, 0) > 0
        self.xor = relation in (1, 3)
        count = length // self.size
        self.thresholds, counts = [], [count]
        if relation > 2:
            classes = index.number(1)
            check(self.float and self.size > 1 and 2 <= classes <= 8, 106)
            self.thresholds = [index.number(2) for _ in range(classes - 1)]
            check(all(a < b for a, b in itertools.pairwise([0, *self.thresholds, 1 << 15])), 106)
            counts = [index.number(4) for _ in range(classes)]
            check(sum(counts) == count, 106)
        self.classes = [DifferenceClass(index, self.size, n) for n in counts]
        self.stored = sum(one.stored for one in self.classes)

    def decode(self, payload: Cursor, reference: bytes) -> bytes:
        check(xxhash.xxh3_64_intdigest(reference) == self.reference, 102)
        check(xxhash.xxh3_64_intdigest(payload.data) == self.stored_hash, 104)
        if self.fresh:
            return self.fresh.decode(payload)
        if self.binned:
            return self.binned.decode(payload, reference)
        runs = [iter(one.decode(payload)) for one in self.classes]
        elements = [
            int.from_bytes(reference[i : i + self.size], "little")
            for i in range(0, len(reference), self.size)
        ]
        bits = 8 * self.size
        ones, sign = (1 << bits) - 1, 1 << (bits - 1)
        magnitudes = [(e >> (bits - 16) if bits > 8 else e) & 0x7FFF for e in elements]
        class_of = [sum(t <= m for t in self.thresholds) for m in magnitudes]
        for number, one in enumerate(self.classes):
            check(class_of.count(number) == one.count, 106)

        def order(x: int) -> int:
            return x ^ (sign - 1) if self.float and x & sign else x

        out = bytearray()
        for before, number in zip(elements, class_of, strict=True):
            z = next(runs[number])
            if self.xor:
                element = before ^ z
            else:
                distance = -(z + 1) // 2 if z & 1 else z // 2
                element = order((order(before) + distance) & ones)
            out += element.to_bytes(self.size, "little")
        return bytes(out)
