"""The layouts of chunks, and the palette that they share."""

from __future__ import annotations

import itertools
import operator

from .blocks import Blocks, Pooled
from .streams import (
    EXPONENT_BITS,
    SIZES,
    Bits,
    Cursor,
    Stream,
    check,
    low_bits_first,
    read_states,
)


def read_layout(
    index: Cursor, kind: int, length: int, palette: list[bytes] | None, inside: bool = False
) -> Opaque | Split | Indexed | Sparse | Range | Grouped | Blocks | Classed | Leveled:
    layout = index.number(1)
    check(layout <= 8, 3)
    check(not inside or layout not in (3, 5, 6, 8), 17)
    if layout == 0:
        return Opaque(index, length)
    if layout == 1:
        return Split(index, kind, length)
    if layout == 2:
        return Indexed(index, length, palette)
    if layout == 3:
        return Sparse(index, kind, length, palette)
    if layout == 4:
        return Range(index, kind, length)
    if layout == 5:
        return Grouped(index, kind, length, palette)
    if layout == 6:
        return Blocks(index, kind, length)
    if layout == 7:
        return Classed(index, kind, length)
    return Leveled(index, kind, length, palette)


class Opaque:
    """A chunk that is one stream."""

    def __init__(self, index: Cursor, length: int) -> None:
        self.stream = Stream(index, length)
        self.stored = self.stream.stored

    def decode(self, payload: Cursor) -> bytes:
        return self.stream.decode(payload)


class Split:
    """A chunk of elements cut into fields, as its description says."""

    def __init__(self, index: Cursor, kind: int, length: int) -> None:
        self.size = SIZES[kind]
        self.float = kind in EXPONENT_BITS
        self.count = length // self.size
        self.bits, self.base, patches = index.number(1), index.number(2), index.number(4)
        apart, self.bits = self.bits >= 128, self.bits % 128
        check(self.float or not apart, 13)
        least = min(8, EXPONENT_BITS[kind]) if self.float else 8
        check(length % self.size == 0 and self.size > 1, 13)
        check(least <= self.bits < 16 if self.float else self.bits == 8, 13)
        check(self.base == 0 or self.base + 255 < 1 << self.bits, 13)
        check(patches <= self.count, 14)
        axis = index.number(1)
        self.class_of = [0] * self.count
        self.contexts = None
        self.is_one_stream = axis == 0
        if axis == 3:
            check(self.float, 26)
            joined = self.bits - EXPONENT_BITS[kind]
            self.contexts = Contexts(index, joined, self.base, self.count)
            highest = -1
        elif axis:
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
        self.raw_bits = raw_bits = self.size * 8 - self.bits - apart
        self.mid_bits = raw_bits % 8
        sizes = [self.class_of.count(number) for number in range(highest + 1)]
        mid_length = -(-self.count * self.mid_bits // 8)
        self.mid = Stream(index, mid_length) if self.mid_bits else None
        self.planes = [Stream(index, self.count) for _ in range(raw_bits // 8)]
        self.signs = Stream(index, -(-self.count // 8)) if apart else None
        self.codes = [Stream(index, size) for size in sizes]
        self.patches = patches
        streams = [s for s in (self.mid, *self.planes, self.signs, *self.codes) if s]
        self.stored = sum(stream.stored for stream in streams) + 6 * patches
        self.stored += self.contexts.stored if self.contexts else 0

    def code_of_patched(self) -> int:
        """What stands where no code is needed."""
        packed = self.is_one_stream and self.codes[0].coder == 2
        return self.codes[0].palette[0] if packed else 0

    def decode(self, payload: Cursor) -> bytes:
        mids = [0] * self.count
        if self.mid:
            mids = low_bits_first(self.mid.decode(payload), self.mid_bits, self.count, 15)
        planes = [plane.decode(payload) for plane in self.planes]
        signs = []
        if self.signs:
            changes = low_bits_first(self.signs.decode(payload), 1, self.count, 15)
            signs = list(itertools.accumulate(changes, operator.xor))
        coded = [self.contexts] if self.contexts else self.codes
        runs = [iter(stream.decode(payload)) for stream in coded]
        patched = [payload.number(4) for _ in range(self.patches)]
        check(all(a < b for a, b in itertools.pairwise(patched)), 14)
        patches = {index: payload.number(2) for index in patched}
        check(all(i < self.count and s >> self.bits == 0 for i, s in patches.items()), 14)
        unused = self.code_of_patched()
        out = bytearray()
        for i in range(self.count):
            code = next(runs[self.class_of[i]])
            check(i not in patches or code == unused, 14)
            symbol = patches.get(i, code + self.base)
            raw = mids[i]
            for plane in reversed(planes):
                raw = raw << 8 | plane[i]
            if self.float:
                rest = self.size * 8 - self.bits - 1
                sign, raw = signs[i] if self.signs else raw >> rest, raw & ((1 << rest) - 1)
                element = sign << (self.size * 8 - 1) | symbol << rest | raw
            else:
                element = symbol << self.raw_bits | raw
            out += element.to_bytes(self.size, "little")
        return bytes(out)


class Contexts:
    """Codes in the context of how large the elements around them were."""

    def __init__(self, index: Cursor, joined: int, base: int, count: int) -> None:
        self.joined, self.count = joined, count
        check(joined >= 2 and base % (1 << joined) == 0, 26)
        self.period = index.number(4)
        check(1 <= self.period <= min(count, 1 << 16), 26)
        self.thresholds = [index.take(index.number(1)) for _ in range(2)]
        self.columns = len(self.thresholds[1]) + 1
        contexts = (len(self.thresholds[0]) + 1) * self.columns
        check(contexts <= 64, 26)
        self.lengths = [index.number(4) for _ in range(4)]
        self.tables = [read_states(index) for _ in range(contexts)]
        check(len({log for log, _ in self.tables}) == 1, 26)
        self.stored = sum(self.lengths)

    def decode(self, payload: Cursor) -> bytes:
        run = -(-self.count // 4)
        out = bytearray()
        for number, length in enumerate(self.lengths):
            size = max(0, min(self.count, (number + 1) * run) - number * run)
            out += self.decode_run(payload.take(length), size)
        return bytes(out)

    def decode_run(self, stored: bytes, size: int) -> bytes:
        bits = Bits(stored)
        near, columns, out = 0, [0] * self.period, bytearray()
        state = bits.take(self.tables[0][0], 26) if size else 0
        for i in range(size):
            column = columns[i % self.period]
            a, b = (
                sum(threshold <= level(mean) for threshold in thresholds)
                for mean, thresholds in zip((near, column), self.thresholds, strict=True)
            )
            code, width, base = self.tables[a * self.columns + b][1][state]
            state = base + bits.take(width, 26)
            mantissa = 1 << self.joined | code & ((1 << self.joined) - 1)
            magnitude = mantissa << max(0, (code >> self.joined) - 7)
            near += (magnitude >> 2) - (near >> 2)
            columns[i % self.period] += (magnitude >> 3) - (column >> 3)
            out.append(code)
        check(state == 0 and bits.is_at_end(), 26)
        return bytes(out)


def level(mean: int) -> int:
    mean |= 4
    whole = mean.bit_length() - 1
    return 4 * whole + (mean >> (whole - 2) & 3)


def read_palette(index: Cursor, kind: int) -> list[bytes]:
    size, count = SIZES[kind], index.number(2) + 1
    check(size > 1, 16)
    form = index.number(1)
    check(form in (0, 1), 3)
    if form == 1:
        first = int.from_bytes(index.take(4), "little", signed=True)
        return [whole_number(kind, first + i) for i in range(count)]
    stream = Stream(index, count * size)
    planes = stream.decode(Cursor(index.take(stream.stored)))
    return [planes[i::count] for i in range(count)]


def whole_number(kind: int, number: int) -> bytes:
    """The element that is exactly this number."""
    size = SIZES[kind]
    if kind not in EXPONENT_BITS:
        return (number % (1 << (8 * size))).to_bytes(size, "little")
    if number == 0:
        return bytes(size)
    mantissa_bits = 8 * size - 1 - EXPONENT_BITS[kind]
    power = abs(number).bit_length() - 1
    mantissa = abs(number) << mantissa_bits >> power
    check(mantissa << power == abs(number) << mantissa_bits, 16)
    bias = (1 << (EXPONENT_BITS[kind] - 1)) - 1
    check(power <= bias, 16)
    bits = (power + bias) << mantissa_bits | mantissa & ((1 << mantissa_bits) - 1)
    return (bits | (number < 0) << (8 * size - 1)).to_bytes(size, "little")


class Indexed:
    """Elements as indices into the palette of the frame."""

    def __init__(self, index: Cursor, length: int, palette: list[bytes] | None) -> None:
        check(palette is not None, 18)
        self.palette = palette
        count = length // len(palette[0])
        check(length % len(palette[0]) == 0, 18)
        width = index.number(1)
        check(width == (1 if len(palette) <= 256 else 2), 18)
        self.streams = [Stream(index, count) for _ in range(width)]
        self.stored = sum(stream.stored for stream in self.streams)

    def decode(self, payload: Cursor) -> bytes:
        low, *high = [stream.decode(payload) for stream in self.streams]
        indices = [a | b << 8 for a, b in zip(low, high[0], strict=True)] if high else low
        check(all(i < len(self.palette) for i in indices), 18)
        return b"".join(self.palette[i] for i in indices)


class Sparse:
    """Mostly one element."""

    def __init__(self, index: Cursor, kind: int, length: int, palette: list[bytes] | None) -> None:
        size = SIZES[kind]
        check(length % size == 0, 19)
        self.count = length // size
        self.fill, self.present, signed = index.take(size), index.number(4), index.number(1)
        check(self.present <= self.count and signed <= (kind in EXPONENT_BITS), 19)
        self.mask = self.signs = self.values = None
        if self.present:
            self.mask = Stream(index, -(-self.count // 8))
            self.values = read_layout(index, kind, self.present * size, palette, inside=True)
        if signed:
            self.signs = Stream(index, -(-(self.count - self.present) // 8))
        parts = (self.mask, self.signs, self.values)
        self.stored = sum(part.stored for part in parts if part)

    def decode(self, payload: Cursor) -> bytes:
        size = len(self.fill)
        mask, signs = [0] * self.count, [0] * (self.count - self.present)
        if self.mask:
            mask = low_bits_first(self.mask.decode(payload), 1, self.count, 19)
        check(sum(mask) == self.present, 19)
        if self.signs:
            signs = low_bits_first(self.signs.decode(payload), 1, len(signs), 19)
        values = self.values.decode(payload) if self.values else b""
        present = iter([values[i : i + size] for i in range(0, len(values), size)])
        flipped = self.fill[:-1] + bytes([self.fill[-1] ^ 0x80])
        sign = iter(signs)
        return b"".join(
            next(present) if bit else flipped if next(sign) else self.fill for bit in mask
        )


class Range:
    """Integers as their distance from the smallest."""

    def __init__(self, index: Cursor, kind: int, length: int) -> None:
        self.size = SIZES[kind]
        check(kind not in EXPONENT_BITS and self.size > 1 and length % self.size == 0, 20)
        self.base = index.number(self.size)
        self.planes = [Stream(index, length // self.size) for _ in range(self.size)]
        self.stored = sum(plane.stored for plane in self.planes)

    def decode(self, payload: Cursor) -> bytes:
        planes = [plane.decode(payload) for plane in self.planes]
        modulus = 1 << (8 * self.size)
        distances = (int.from_bytes(bytes_, "little") for bytes_ in zip(*planes, strict=True))
        return b"".join(
            ((self.base + d) % modulus).to_bytes(self.size, "little") for d in distances
        )


class Grouped:
    """Groups of elements with values of their own."""

    def __init__(self, index: Cursor, kind: int, length: int, palette: list[bytes] | None) -> None:
        self.size = SIZES[kind]
        self.count = length // self.size
        self.group, self.total = index.number(4), index.number(4)
        check(length % self.size == 0 and self.group and 1 <= self.total <= self.count, 21)
        self.counts = Stream(index, -(-self.count // self.group))
        self.values = read_layout(index, kind, self.total * self.size, palette, inside=True)
        self.indices = Stream(index, self.count)
        self.stored = self.counts.stored + self.values.stored + self.indices.stored

    def decode(self, payload: Cursor) -> bytes:
        counts = [count + 1 for count in self.counts.decode(payload)]
        check(sum(counts) == self.total, 21)
        values = self.values.decode(payload)
        values = [values[i : i + self.size] for i in range(0, len(values), self.size)]
        indices = self.indices.decode(payload)
        out = bytearray()
        for group, count in enumerate(counts):
            own, values = values[:count], values[count:]
            negative = sum(value[-1] >> 7 for value in own)
            table = {(i - negative) % 256: value for i, value in enumerate(own)}
            for i in indices[group * self.group : (group + 1) * self.group]:
                check(i in table, 21)
                out += table[i]
        return bytes(out)


class Classed:
    """Bytes in classes of rows or columns, or in the order of columns."""

    def __init__(self, index: Cursor, kind: int, length: int) -> None:
        self.length, self.pooled, self.turned = length, None, 0
        axis, period = index.number(1), index.number(4)
        check(SIZES[kind] == 1 and axis in (1, 2, 4, 5), 30)
        if axis == 5:
            check(1 <= period <= length, 15)
            self.turned, self.streams = period, [Stream(index, length)]
            self.stored = self.streams[0].stored
            return
        if axis == 4:
            self.read_cells(index, period)
            return
        width = index.number(1)
        check(1 <= period <= length and width in (1, 2), 15)
        units = period if axis == 2 else -(-length // period)
        classes = low_bits_first(index.take(-(-units * width // 8)), width, units, 15)
        self.class_of = [classes[i % period if axis == 2 else i // period] for i in range(length)]
        sizes = [self.class_of.count(number) for number in range(max(classes) + 1)]
        self.streams = [Stream(index, size) for size in sizes]
        self.stored = sum(stream.stored for stream in self.streams)

    def read_cells(self, index: Cursor, period: int) -> None:
        """Classes of rows and columns, which share their streams."""
        check(1 <= period <= self.length, 15)
        numbers = []
        for units in (-(-self.length // period), period):
            width = index.number(1)
            check(width <= 2, 15)
            numbers.append(low_bits_first(index.take(-(-units * width // 8)), width, units, 15))
        rows, columns = numbers
        each = max(columns) + 1
        self.class_of = [rows[i // period] * each + columns[i % period] for i in range(self.length)]
        self.classes = (max(rows) + 1) * each
        check(self.classes > 1, 34)
        self.pooled = Pooled(index, self.classes)
        self.stored = sum(self.pooled.lengths)

    def decode(self, payload: Cursor) -> bytes:
        if self.turned:
            places = (range(i, self.length, self.turned) for i in range(self.turned))
            out = bytearray(self.length)
            for place, byte in zip(
                (place for column in places for place in column),
                self.streams[0].decode(payload),
                strict=True,
            ):
                out[place] = byte
            return bytes(out)
        if self.pooled:
            sizes = [self.class_of.count(number) for number in range(self.classes)]
            runs = [iter(run) for run in self.pooled.decode(payload, sizes)]
        else:
            runs = [iter(stream.decode(payload)) for stream in self.streams]
        return bytes(next(runs[number]) for number in self.class_of)


class Leveled:
    """Floats less a level per row and one per column."""

    def __init__(self, index: Cursor, kind: int, length: int, palette: list[bytes] | None) -> None:
        self.size = SIZES[kind]
        count = length // self.size
        self.period = index.number(4)
        check(kind in EXPONENT_BITS and length % self.size == 0, 31)
        check(1 <= self.period <= count, 31)
        self.shift = 8 * self.size - 1 - EXPONENT_BITS[kind] - 3
        units = -(-count // self.period), self.period
        self.levels = [Stream(index, n) for n in units for _ in range(2)]
        self.inner = read_layout(index, kind, length, palette, inside=True)
        self.stored = sum(stream.stored for stream in self.levels) + self.inner.stored

    def decode(self, payload: Cursor) -> bytes:
        low, high, column_low, column_high = (stream.decode(payload) for stream in self.levels)
        rows = [a | b << 8 for a, b in zip(low, high, strict=True)]
        columns = [a | b << 8 for a, b in zip(column_low, column_high, strict=True)]
        inner = self.inner.decode(payload)
        sign = 1 << (8 * self.size - 1)
        out = bytearray()
        for i in range(len(inner) // self.size):
            element = int.from_bytes(inner[i * self.size : (i + 1) * self.size], "little")
            both = sum(
                n - (n >> 15 << 16) for n in (rows[i // self.period], columns[i % self.period])
            )
            moved = element + (both << self.shift) & (sign - 1)
            out += (element & sign | moved).to_bytes(self.size, "little")
        return bytes(out)
