"""Cursors over bytes and bits, and the streams of a chunk with their coders."""

from __future__ import annotations

import xxhash

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


def read_lengths(index: Cursor, rule: int) -> list[int]:
    """The lengths of four bit streams, of one to four bytes each."""
    width = index.number(1)
    check(1 <= width <= 4, rule)
    return [index.number(width) for _ in range(4)]


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
            width, streams = divmod(index.number(1), 16)
            check(streams in (1, 8) and width < 4, 11)
            self.lengths = [index.number(width or 4) for _ in range(streams)]
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
        elif self.coder == 7:
            self.lengths = read_lengths(index, 32)
            self.log, self.table = read_shape(index)
            self.stored = sum(self.lengths)
        elif self.coder == 8:
            self.lengths = read_lengths(index, 33)
            self.leads_to, self.log, self.tables = read_contexts(index)
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
        if self.coder in (6, 7):
            return self.decode_states(Cursor(stored))
        if self.coder == 8:
            return self.decode_order_one(Cursor(stored))
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

    def decode_order_one(self, stored: Cursor) -> bytes:
        out = bytearray()
        run = -(-self.length // 4)
        for length in self.lengths:
            bits = Bits(stored.take(length))
            symbols = min(run, self.length - len(out))
            states = [bits.take(self.log, 25), bits.take(self.log, 25)] if symbols else [0, 0]
            halves, contexts = (bytearray(), bytearray()), [0, 0]
            for i in range(symbols):
                symbol, width, base = self.tables[contexts[i % 2]][states[i % 2]]
                halves[i % 2].append(symbol)
                contexts[i % 2] = self.leads_to.get(symbol, 0)
                states[i % 2] = base + bits.take(width, 25)
            check(states == [0, 0] and bits.is_at_end(), 25)
            out += halves[0] + halves[1]
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


def read_states(index: Cursor, most: int = 12) -> tuple[int, list[tuple[int, int, int]]]:
    log, first, last = index.number(1), index.number(1), index.number(1)
    check(9 <= log <= most, 24)
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
        check(width <= most, 24)
        if width:
            counts[symbol] = 1 << (width - 1) | take(width - 1)
        symbol += 1
    check(symbol == last + 1 and word == 0 and sum(counts.values()) == 1 << log, 24)
    return log, table_of(log, counts)


def read_shape(index: Cursor) -> tuple[int, list[tuple[int, int, int]]]:
    log, width, distance, last = (index.number(1) for _ in range(4))
    check(9 <= log <= 12 and width in (3, 4, 8) and distance <= (5 if width == 8 else 0), 32)
    if width < 8:
        levels = levels_of_digits(index.take(1 << width), width, last)
    else:
        number = last + 1 if distance == 0 else (last >> distance) + 2
        levels = curve(index.take(number), distance, last)
    read_changes(index, levels)
    return log, table_of_levels(log, levels)


def read_packed_shape(index: Cursor, least: int) -> tuple[int, list[tuple[int, int, int]]]:
    head = index.number(1)
    log, kind, rice = least + head % 4, head >> 2 & 3, head >> 4 & 7
    if kind < 2:
        last = index.number(1)
        given = read_levels(index, 1 << (3 + kind), rice)
        levels = levels_of_digits(given, 3 + kind, last)
    elif kind == 2:
        distance, first, last = (index.number(1) for _ in range(3))
        check(distance <= 5 and first <= last, 35)
        number = last - first + 1 if distance == 0 else ((last - first) >> distance) + 2
        given = read_levels(index, number, rice)
        levels = [0] * first + curve(given, distance, last - first)
    else:
        both, last = index.number(1), index.number(1)
        distance, mantissa = both % 16, both >> 4
        check(mantissa in (2, 3) and 1 <= distance <= mantissa and last < 128, 35)
        given = read_levels(index, (last >> distance) + 2, rice)
        levels = curve(given, distance, last)
        for i in range(1 << mantissa, last + 1):
            if levels[i]:
                part = (0, 1, 3, 4, 5, 6, 6, 7)[i % (1 << mantissa) * (8 >> mantissa)]
                levels[i] = max(1, levels[i] - part)
        levels += [0] * (127 - last)
        levels += levels
    if head >> 7:
        read_changes(index, levels)
    return log, table_of_levels(log, levels, nearest=True)


def read_levels(index: Cursor, number: int, rice: int) -> list[int]:
    """Levels by their distance from the line through the two before."""
    left = word = 0

    def take(width: int) -> int:
        nonlocal left, word
        while left < width:
            word |= index.number(1) << left
            left += 8
        value = word & ((1 << width) - 1)
        word >>= width
        left -= width
        return value

    levels = [take(8)]
    while len(levels) < number:
        unary = 0
        while unary < 11 and take(1):
            unary += 1
        if unary == 11:
            levels.append(take(8))
            continue
        code = unary << rice | take(rice)
        line = 2 * levels[-1] - levels[-2] if len(levels) > 1 else levels[-1]
        level = min(255, max(0, line)) + (-(code + 1) // 2 if code % 2 else code // 2)
        check(0 <= level < 256, 35)
        levels.append(level)
    check(word == 0, 35)
    return levels


def levels_of_digits(given: bytes | list[int], width: int, last: int) -> list[int]:
    digits = max(1, -(-last.bit_length() // width))
    parts = [
        [given[symbol >> (i * width) & ((1 << width) - 1)] for i in range(digits)]
        for symbol in range(last + 1)
    ]
    return [0 if 0 in part else sum(part) for part in parts]


def curve(given: bytes | list[int], distance: int, last: int) -> list[int]:
    step = 1 << distance
    if step == 1:
        return list(given)
    return [
        (given[s // step] * (step - s % step) + given[s // step + 1] * (s % step) + step // 2)
        // step
        for s in range(last + 1)
    ]


def read_changes(index: Cursor, levels: list[int]) -> None:
    before = -1
    for _ in range(index.number(1)):
        symbol, change = index.number(1), index.number(1)
        check(symbol > before, 32)
        before = symbol
        if symbol < len(levels) and levels[symbol]:
            levels[symbol] = max(1, levels[symbol] + change - 128) if change else 0


def table_of_levels(
    log: int, levels: list[int], nearest: bool = False
) -> list[tuple[int, int, int]]:
    known = {symbol: level for symbol, level in enumerate(levels) if level}
    check(len(known) >= 2, 32)
    highest, size = max(known.values()), 1 << log
    powers = [round(2 ** (27 - i / 8)) for i in range(8)]
    weights = {s: powers[(highest - v) % 8] >> ((highest - v) // 8) for s, v in known.items()}
    total = sum(weights.values())
    shares = {symbol: max(0, weight * size - total) for symbol, weight in weights.items()}
    rest, every, at, counts = size - len(known), sum(shares.values()), 0, {}
    if nearest:
        counts = {s: 1 + (2 * share * rest + every) // (2 * every) for s, share in shares.items()}
        missing = size - sum(counts.values())
        for symbol in sorted(counts, key=lambda s: (-counts[s], s))[: abs(missing)]:
            counts[symbol] += 1 if missing > 0 else -1
        return table_of(log, counts)
    for symbol, share in shares.items():
        counts[symbol] = 1 + (at + share) * rest // every - at * rest // every
        at += share
    return table_of(log, counts)


def read_contexts(index: Cursor) -> tuple[dict[int, int], int, list[list[tuple[int, int, int]]]]:
    """The context that each symbol leads to, and the states of each."""
    count, first, last = index.number(1), index.number(1), index.number(1)
    check(2 <= count <= 16 and first <= last, 33)
    width, symbols = (count - 1).bit_length(), last - first + 1
    contexts = low_bits_first(index.take(-(-symbols * width // 8)), width, symbols, 33)
    check(max(contexts) < count, 33)
    described = [read_table(index, index.number(1), 33) for _ in range(count)]
    log = described[0][0]
    check(all(each[0] == log for each in described) and count << log <= 1 << 14, 33)
    return dict(enumerate(contexts, first)), log, [table for _, table in described]


def read_table(index: Cursor, form: int, rule: int) -> tuple[int, list[tuple[int, int, int]]]:
    """States as numbers or as a shape."""
    check(form in (1, 2, 3, 4), rule)
    if form == 1:
        return read_states(index, 13)
    return read_shape(index) if form == 2 else read_packed_shape(index, 6 + form)


def table_of(log: int, counts: dict[int, int]) -> list[tuple[int, int, int]]:
    """The symbol of every state, the bits to read from there, and what they are added to."""
    size = 1 << log
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
    return table


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
