"""A decoder of z4ai frames written from docs/spec/z4ai.md and its deltas: short and slow."""

from __future__ import annotations

import itertools
import operator
import struct
from typing import Any, NamedTuple

import xxhash

MAGICS = (b"Z4AI", b"ZARA")
SIZES = (1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 1, 1, 2, 2, 4, 8)
EXPONENT_BITS = {12: 5, 13: 8, 14: 8, 15: 11}
# With the floats of one byte, which only deltas tell from integers.
EXPONENTS_OF_ALL = {10: 4, 11: 5, **EXPONENT_BITS}


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
            check(self.width in (1, 2, 4), 9)
            self.palette = index.take(1 << self.width)
            self.stored = -(-length * self.width // 8)
        elif self.coder == 3:
            streams = index.number(1)
            check(streams in (1, 8), 11)
            self.lengths = [index.number(4) for _ in range(streams)]
            self.codes = read_codes(index)
            self.stored = sum(self.lengths)
        elif self.coder == 4:
            self.stored, self.hash = index.number(4), index.number(8)
        elif self.coder == 5:
            self.width = index.number(1)
            check(self.width in (1, 2, 4), 9)
            self.palette = index.take(1 << self.width)
            self.inner = Stream(index, -(-length * self.width // 8))
            check(self.inner.coder not in (2, 5), 17)
            self.stored = self.inner.stored
        elif self.coder == 6:
            self.lengths = [index.number(4) for _ in range(4)]
            self.log, self.table = read_states(index)
            self.stored = sum(self.lengths)
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
        if self.coder == 6:
            return self.decode_states(Cursor(stored))
        if self.coder == 5:
            packed = self.inner.decode(Cursor(stored))
            return bytes(
                self.palette[i] for i in low_bits_first(packed, self.width, self.length, 9)
            )
        import zstandard

        check(xxhash.xxh3_64_intdigest(stored) == self.hash, 10)
        content = zstandard.ZstdDecompressor().decompress(stored, max_output_size=self.length)
        check(len(content) == self.length, 10)
        return content

    def decode_huffman(self, stored: Cursor) -> bytes:
        out = bytearray()
        run = -(-self.length // len(self.lengths))
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

    def decode_states(self, stored: Cursor) -> bytes:
        out = bytearray()
        run = -(-self.length // 4)
        for length in self.lengths:
            bits = Bits(stored.take(length))
            symbols = min(run, self.length - len(out))
            states = [bits.take(self.log, 25), bits.take(self.log, 25)] if symbols else [0, 0]
            for i in range(symbols):
                symbol, width, base = self.table[states[i % 2]]
                out.append(symbol)
                states[i % 2] = base + bits.take(width, 25)
            check(states == [0, 0] and bits.is_at_end(), 25)
        return bytes(out)


class Bits:
    """Bits, lowest of a byte first."""

    def __init__(self, data: bytes) -> None:
        self.bits, self.left = int.from_bytes(data, "little"), 8 * len(data)

    def take(self, width: int, rule: int) -> int:
        check(width <= self.left, rule)
        value = self.bits & ((1 << width) - 1)
        self.bits >>= width
        self.left -= width
        return value

    def is_at_end(self) -> bool:
        return self.left < 8 and self.bits == 0


def read_states(index: Cursor) -> tuple[int, list[tuple[int, int, int]]]:
    log, first, last = index.number(1), index.number(1), index.number(1)
    check(9 <= log <= 12, 24)
    word = left = 0

    def take(width: int) -> int:
        nonlocal word, left
        while left < width:
            word |= index.number(1) << left
            left += 8
        value = word & ((1 << width) - 1)
        word >>= width
        left -= width
        return value

    counts, symbol = {}, first
    while symbol <= last:
        width = take(4)
        if width == 15:
            symbol += take(4) + 2
            continue
        check(width <= 12, 24)
        if width:
            counts[symbol] = 1 << (width - 1) | take(width - 1)
        symbol += 1
    size = 1 << log
    check(symbol == last + 1 and word == 0 and sum(counts.values()) == size, 24)
    symbols, at = [0] * size, 0
    for symbol, count in sorted(counts.items()):
        for _ in range(count):
            symbols[at] = symbol
            at = (at + (size >> 1) + (size >> 3) + 3) % size
    table = []
    for symbol in symbols:
        rank = counts[symbol]
        counts[symbol] += 1
        width = log + 1 - rank.bit_length()
        table.append((symbol, width, (rank << width) - size))
    return log, table


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


class Opaque:
    """A chunk that is one stream."""

    def __init__(self, index: Cursor, length: int) -> None:
        self.stream = Stream(index, length)
        self.stored = self.stream.stored

    def decode(self, payload: Cursor) -> bytes:
        return self.stream.decode(payload)


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


class Classed:
    """Bytes in classes of rows or columns."""

    def __init__(self, index: Cursor, kind: int, length: int) -> None:
        self.length = length
        axis, period, width = index.number(1), index.number(4), index.number(1)
        check(SIZES[kind] == 1 and axis in (1, 2), 30)
        check(1 <= period <= length and width in (1, 2), 15)
        units = period if axis == 2 else -(-length // period)
        classes = low_bits_first(index.take(-(-units * width // 8)), width, units, 15)
        self.class_of = [classes[i % period if axis == 2 else i // period] for i in range(length)]
        sizes = [self.class_of.count(number) for number in range(max(classes) + 1)]
        self.streams = [Stream(index, size) for size in sizes]
        self.stored = sum(stream.stored for stream in self.streams)

    def decode(self, payload: Cursor) -> bytes:
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


class Parameter(NamedTuple):
    """Bytes of a block that are a stream: ``count`` from ``at`` on, ``step`` apart; or packed."""

    at: int
    count: int = 1
    step: int = 1
    packed: str = ""


def halves(*at: int) -> list[Parameter]:
    return [Parameter(byte) for first in at for byte in (first, first + 1)]


# Number: bytes of a block, parameters, form of quants with their places, groups, form of levels.
BLOCK_TYPES: dict[int, tuple[int, list[Parameter], tuple[Any, ...], int, str]] = {
    2: (18, halves(0), ("nibbles", 2, 1, 8), 1, "half"),
    3: (20, halves(0, 2), ("nibbles", 4, 1, 8), 1, "offset"),
    6: (22, halves(0), ("five", 2, 6), 1, "half"),
    7: (24, halves(0, 2), ("five", 4, 8), 1, "offset"),
    8: (34, halves(0), ("bytes", 2, 32), 1, "half"),
    41: (18, halves(0), ("bytes", 2, 16), 1, ""),
    10: (84, [*halves(80, 82), Parameter(0, 16)], ("two", 16), 16, "nibbles"),
    11: (110, [*halves(108), Parameter(96, 16, 1, "3")], ("three", 0, 32), 16, "biased"),
    12: (144, [*halves(0, 2), Parameter(4, 8, 1, "4")], ("nibbles", 16, 4, 16), 8, "integers"),
    13: (176, [*halves(0, 2), Parameter(4, 8, 1, "4")], ("five groups", 16, 48), 8, "integers"),
    14: (210, [*halves(208), Parameter(192, 16)], ("six", 0, 128), 16, "signed"),
    15: (
        292,
        [*halves(0, 2), Parameter(260, 16, 2), Parameter(261, 16, 2)],
        ("bytes", 4, 256),
        1,
        "",
    ),
    16: (66, [*halves(0), *(Parameter(at, 8, 8) for at in (9, *range(2, 9)))], (), 0, ""),
    17: (74, [*halves(0), Parameter(66, 8), Parameter(2, 32, 2), Parameter(3, 32, 2)], (), 0, ""),
    22: (82, [*halves(0), *map(Parameter, (74, 2, 34, 66), (8, 32, 32, 8))], (), 0, ""),
    18: (
        98,
        [*halves(0), *(Parameter(at, 8, 4) for at in (69, 66, 67, 68)), Parameter(2, 64)],
        (),
        0,
        "",
    ),
    21: (110, [*halves(0), *map(Parameter, (106, 2, 66, 74), (4, 64, 8, 32))], (), 0, ""),
    19: (50, [*halves(0), Parameter(34, 8, 2), Parameter(35, 8, 2), Parameter(2, 32)], (), 0, ""),
    29: (
        56,
        [Parameter(48, 4, 2), Parameter(49, 4, 2), Parameter(0, 32), Parameter(32, 16)],
        (),
        0,
        "",
    ),
    20: (18, halves(0), ("nibbles", 2, 1, 8), 1, "half"),
    23: (136, [*halves(0, 2), Parameter(4, 4)], ("nibbles", 8, 8, 8), 8, "cut"),
    34: (54, [*halves(52), Parameter(0, 48), Parameter(48, 4)], (), 0, ""),
    35: (66, halves(64), ("two", 0), 1, ""),
    39: (17, [Parameter(0)], ("nibbles", 1, 1, 8), 1, "exponent"),
    40: (36, [Parameter(0, 4)], ("nibbles", 4, 4, 4), 4, "fp8"),
}
SYMBOLS = {"five": 32, "five groups": 256, "six": 256, "three": 128, "two": 64}
SYMBOL_BITS = {"five": 5, "five groups": 5, "six": 6, "three": 6}


class Blocks:
    """Quantized blocks, their parameters and quants apart."""

    def __init__(self, index: Cursor, kind: int, length: int) -> None:
        number = index.number(1)
        if number not in BLOCK_TYPES:
            raise ValueError(f"block type {number} is not known")
        self.bytes, self.parameters, self.quants, self.groups, self.form = BLOCK_TYPES[number]
        check(SIZES[kind] == 1 and length % self.bytes == 0, 27)
        self.blocks = length // self.bytes
        self.run = index.number(4)
        self.scales, self.offsets = (
            [index.number(4) for _ in range(index.number(1))] for _ in range(2)
        )
        self.scales, self.offsets = (
            [level - (level >> 31 << 32) for level in levels]
            for levels in (self.scales, self.offsets)
        )
        classes = (len(self.scales) + 1) * (len(self.offsets) + 1)
        shifted = self.form in ("offset", "integers", "nibbles")
        check(classes <= 16 and all(sorted(set(t)) == t for t in (self.scales, self.offsets)), 28)
        check(bool(self.form) or not self.scales, 28)
        check(shifted or not self.offsets, 28)
        check((self.run > 0) == bool(self.scales) and self.run <= self.blocks * self.groups, 28)
        counts = [n for p in self.parameters for n in ([8, 8] if p.packed == "4" else [p.count])]
        self.streams = [Stream(index, self.blocks * count) for count in counts]
        self.symbols = 0
        if self.quants:
            form, *places = self.quants
            self.symbols = (
                2 * places[1] * places[2] if form == "nibbles" else SYMBOLS.get(form) or places[1]
            )
        self.classes = []
        for _ in range(classes if self.groups else 0):
            groups = index.number(4)
            self.classes.append((groups, Stream(index, groups * self.symbols // self.groups)))
        check(sum(groups for groups, _ in self.classes) == self.blocks * self.groups, 28)
        self.stored = sum(stream.stored for stream in self.streams)
        self.stored += sum(stream.stored for _, stream in self.classes)

    def decode(self, payload: Cursor) -> bytes:
        streams = [stream.decode(payload) for stream in self.streams]
        classes = self.classify(streams)
        check(
            [classes.count(i) for i in range(len(self.classes))] == [n for n, _ in self.classes], 28
        )
        runs = [Cursor(stream.decode(payload)) for _, stream in self.classes]
        out = bytearray()
        for block in range(self.blocks):
            one = bytearray(self.bytes)
            self.put_parameters(one, streams, block)
            symbols = b"".join(
                runs[classes[block * self.groups + group]].take(self.symbols // self.groups)
                for group in range(self.groups)
            )
            if self.quants:
                check(all(s >> SYMBOL_BITS.get(self.quants[0], 8) == 0 for s in symbols), 29)
                self.put_quants(one, symbols)
            out += one
        return bytes(out)

    def classify(self, streams: list[bytes]) -> list[int]:
        groups = self.blocks * self.groups
        if len(self.classes) <= 1:
            return [0] * groups
        levels = [self.levels(streams, group) for group in range(groups)]
        scales = []
        for start in range(0, groups, self.run or groups):
            run = [scale for scale, _ in levels[start : start + (self.run or groups)]]
            scales += [scale - sum(run) // len(run) for scale in run]
        return [
            sum(t <= scale for t in self.scales) * (len(self.offsets) + 1)
            + sum(t <= offset for t in self.offsets)
            for scale, (_, offset) in zip(scales, levels, strict=True)
        ]

    def levels(self, streams: list[bytes], number: int) -> tuple[int, int]:
        """The levels of a group's scale and offset."""
        block, group = divmod(number, self.groups)

        def half(stream: int) -> int:
            return (streams[stream][block] | streams[stream + 1][block] << 8) & 0x7FFF

        if self.form == "half":
            return half(0), 0
        if self.form == "offset":
            return half(0), half(2) - half(0)
        if self.form == "exponent":
            return streams[0][number] << 10, 0
        if self.form == "fp8":
            return (streams[0][number] & 127) << 7, 0
        if self.form in ("integers", "nibbles"):
            if self.form == "integers":
                scale, offset = streams[4][number], streams[5][number]
            else:
                scale, offset = streams[4][number] & 15, streams[4][number] >> 4
            scale_level = half(0) + level_of_integer(scale)
            return scale_level, half(2) + level_of_integer(offset) - scale_level
        if self.form == "signed":
            scale = abs(streams[2][number] - (streams[2][number] >> 7 << 8))
        elif self.form == "biased":
            scale = abs(streams[2][number] - 32)
        else:
            high = (streams[2][block] | streams[3][block] << 8) >> (2 * group) & 3
            low = streams[4][block * 4 + group // 2] >> (group % 2 * 4) & 15
            scale = abs((low | high << 4) - 32)
        return half(0) + level_of_integer(scale), 0

    def put_parameters(self, out: bytearray, streams: list[bytes], block: int) -> None:
        number = 0
        for at, count, step, packed in self.parameters:
            own = streams[number][block * count : (block + 1) * count]
            number += 1
            if not packed:
                for i, byte in enumerate(own):
                    out[at + i * step] = byte
                continue
            check(max(own) < 64, 29)
            if packed == "4":
                offsets = streams[number][block * 8 : (block + 1) * 8]
                number += 1
                check(max(offsets) < 64, 29)
                for i in range(4):
                    out[at + i] = own[i] | own[i + 4] >> 4 << 6
                    out[at + i + 4] = offsets[i] | offsets[i + 4] >> 4 << 6
                    out[at + i + 8] = own[i + 4] & 15 | (offsets[i + 4] & 15) << 4
            else:
                for i in range(8):
                    out[at + i] = own[i] & 15 | (own[i + 8] & 15) << 4
                for i in range(16):
                    out[at + 8 + i % 4] |= own[i] >> 4 << (i // 4 * 2)

    def put_quants(self, out: bytearray, symbols: bytes) -> None:
        form, *places = self.quants
        if form == "bytes":
            out[places[0] : places[0] + places[1]] = symbols
        elif form == "nibbles":
            at, sets, half = places
            elements = [quant for symbol in symbols for quant in (symbol & 15, symbol >> 4)]
            for i in range(2 * half * sets):
                first = i // (2 * half) * 4 * half + i % (2 * half)
                out[at + i] = elements[first] | elements[first + 2 * half] << 4
        elif form in ("five", "five groups"):
            high, low = places
            half = 16 if form == "five" else 32
            for i, symbol in enumerate(symbols):
                pair, place = divmod(i, 2 * half)
                out[low + pair * half + place % half] |= (symbol & 15) << (place // half * 4)
                byte, bit = (i // 8, i % 8) if form == "five" else (i % 32, i // 32)
                out[high + byte] |= symbol >> 4 << bit
        elif form == "six":
            low, high = places
            for i, symbol in enumerate(symbols):
                half, row, column = i // 128, i % 128 // 32, i % 32
                out[low + 64 * half + row % 2 * 32 + column] |= (symbol & 15) << (row // 2 * 4)
                out[high + 32 * half + column] |= symbol >> 4 << (2 * row)
        elif form == "three":
            high, low = places
            quants = [quant for symbol in symbols for quant in (symbol & 7, symbol >> 3)]
            for i, quant in enumerate(quants):
                out[low + i // 128 * 32 + i % 32] |= (quant & 3) << (i % 128 // 32 * 2)
                out[high + i % 32] |= quant >> 2 << (i // 32)
        else:
            for i in range(256):
                quant = symbols[i // 4] >> (i % 4 * 2) & 3
                out[places[0] + i // 128 * 32 + i % 32] |= quant << (i % 128 // 32 * 2)


def level_of_integer(number: int) -> int:
    if number == 0:
        return 0
    whole = number.bit_length() - 1
    return (whole << 10) + (number << 10 >> whole) - 1024


def level(mean: int) -> int:
    mean |= 4
    whole = mean.bit_length() - 1
    return 4 * whole + (mean >> (whole - 2) & 3)


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


class Difference:
    """A chunk as its difference from a reference."""

    def __init__(self, index: Cursor, kind: int, length: int) -> None:
        self.reference, self.stored_hash, relation = (
            index.number(8),
            index.number(8),
            index.number(1),
        )
        check(relation <= 4, 3)
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
