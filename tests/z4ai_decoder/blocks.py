"""The blocks layout: quantized blocks of GGUF."""

from __future__ import annotations

from typing import Any, NamedTuple

from .streams import SIZES, Bits, Cursor, Stream, check, read_lengths, read_table


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


class Pooled:
    """Classes that share bit streams: states go on from class to class."""

    def __init__(self, index: Cursor, classes: int) -> None:
        self.lengths = read_lengths(index, 34)
        self.tables: list[list[tuple[int, int, int]] | None] = []
        logs = set()
        for _ in range(classes):
            form = index.number(1)
            if form == 0:
                self.tables.append(None)
                continue
            log, table = read_table(index, form, 34)
            logs.add(log)
            self.tables.append(table)
        check(len(logs) == 1, 34)
        [self.log] = logs

    def decode(self, payload: Cursor, sizes: list[int]) -> list[bytes]:
        for table, size in zip(self.tables, sizes, strict=True):
            check((table is None) == (size == 0), 34)
        runs = [bytearray() for _ in sizes]
        for length in self.lengths:
            bits, place = Bits(payload.take(length)), 0
            left = [
                min(-(-size // 4), size - len(run)) for size, run in zip(sizes, runs, strict=True)
            ]
            states = [bits.take(self.log, 25), bits.take(self.log, 25)] if any(left) else [0, 0]
            for table, number, run in zip(self.tables, left, runs, strict=True):
                for _ in range(number):
                    assert table is not None
                    symbol, width, base = table[states[place % 2]]
                    run.append(symbol)
                    states[place % 2] = base + bits.take(width, 25)
                    place += 1
            check(states == [0, 0] and bits.is_at_end(), 25)
        return [bytes(run) for run in runs]


class Blocks:
    """Quantized blocks, their parameters and quants apart."""

    def __init__(self, index: Cursor, kind: int, length: int) -> None:
        number = index.number(1)
        pooled, relative, number = number >= 128, number >> 6 & 1, number % 64
        if number not in BLOCK_TYPES:
            raise ValueError(f"block type {number} is not known")
        self.bytes, self.parameters, self.quants, self.groups, self.form = BLOCK_TYPES[number]
        check(SIZES[kind] == 1 and length % self.bytes == 0, 27)
        self.blocks = length // self.bytes
        relations = index.number(1) if relative else 0
        self.relative_halves, self.pairs = relations % 2, relations >> 1
        check(relations in (1, 2, 3) or not relative, 36)
        shifted = self.form in ("offset", "integers", "nibbles")
        check(shifted or not self.relative_halves, 36)
        check(self.form == "integers" or not self.pairs, 36)
        self.run = index.number(4)
        self.scales, self.offsets = (
            [index.number(4) for _ in range(index.number(1))] for _ in range(2)
        )
        self.scales, self.offsets = (
            [level - (level >> 31 << 32) for level in levels]
            for levels in (self.scales, self.offsets)
        )
        classes = (len(self.scales) + 1) * (len(self.offsets) + 1)
        check(classes <= 16 and all(sorted(set(t)) == t for t in (self.scales, self.offsets)), 28)
        check(bool(self.form) or not self.scales, 28)
        check(shifted or not self.offsets, 28)
        check((self.run > 0) == bool(self.scales) and self.run <= self.blocks * self.groups, 28)
        eights = [16] if self.pairs else [8, 8]
        counts = [n for p in self.parameters for n in (eights if p.packed == "4" else [p.count])]
        self.streams = [Stream(index, self.blocks * count) for count in counts]
        self.symbols = 0
        if self.quants:
            form, *places = self.quants
            self.symbols = (
                2 * places[1] * places[2] if form == "nibbles" else SYMBOLS.get(form) or places[1]
            )
        self.classes, self.several, self.pooled = [], classes > 1, None
        if pooled:
            check(classes > 1, 34)
            self.pooled = Pooled(index, classes)
        for _ in range(classes if self.groups and not pooled else 0):
            groups = index.number(4)
            self.classes.append((groups, Stream(index, groups * self.symbols // self.groups)))
        groups = self.blocks * self.groups
        check(pooled or sum(own for own, _ in self.classes) == groups, 28)
        self.stored = sum(stream.stored for stream in self.streams)
        self.stored += sum(stream.stored for _, stream in self.classes)
        self.stored += sum(self.pooled.lengths) if self.pooled else 0

    def decode(self, payload: Cursor) -> bytes:
        streams = [stream.decode(payload) for stream in self.streams]
        if self.relative_halves:
            sums = [
                (low + more_low + 256 * (high + more_high)) % 65536
                for low, high, more_low, more_high in zip(*streams[:4], strict=True)
            ]
            streams[2:4] = bytes(each % 256 for each in sums), bytes(each >> 8 for each in sums)
        if self.pairs:
            pairs = streams.pop()
            check(all(byte >> 6 == i % 2 for i, byte in enumerate(pairs)), 36)
            streams += [pairs[0::2], bytes(byte % 64 for byte in pairs[1::2])]
        classes = self.classify(streams)
        check(
            [classes.count(i) for i in range(len(self.classes))] == [n for n, _ in self.classes], 28
        )
        runs = [Cursor(stream.decode(payload)) for _, stream in self.classes]
        if self.pooled:
            each = self.symbols // self.groups
            sizes = [classes.count(i) * each for i in range(len(self.pooled.tables))]
            runs = [Cursor(symbols) for symbols in self.pooled.decode(payload, sizes)]
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
        if not self.several:
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
