"""Sizes of data that is not noise, beside z4ai 0.2: `python benchmark/structure.py [FILTER]`.

Needs numpy, z4ai==0.2.0 and a Rust toolchain. Weights are synthetic: normal values whose scale
varies by row. Every line is one buffer: the share of its bytes that our default tier and the tiers
above it keep, the share that z4ai 0.2 keeps with its defaults, and the one divided by the other.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import z4ai

REPOSITORY = Path(__file__).resolve().parent.parent
ROWS, COLUMNS = 1536, 1024
EFFORTS = ("default", "balanced", "max")


def bf16(values: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 of each value, as bits."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def both(name: str, values: np.ndarray) -> Iterator[tuple[str, str, bytes]]:
    yield f"{name} fp32", "fp32", values.astype(np.float32).tobytes()
    yield f"{name} bf16", "bf16", bf16(values).tobytes()


def cases() -> Iterator[tuple[str, str, bytes]]:
    """Name, element type and bytes, one after the other."""
    random = np.random.default_rng(0)
    scales = np.exp(random.standard_normal((ROWS, 1)) * 0.3) * 0.02
    weights = (random.standard_normal((ROWS, COLUMNS)) * scales).astype(np.float32)
    for share in (50, 80, 95):
        yield from both(
            f"sparse {share} %", weights * (random.random(weights.shape) >= share / 100)
        )
        least = np.quantile(np.abs(weights), share / 100)
        yield from both(f"pruned {share} %", weights * (np.abs(weights) >= least))
    for bits in (4, 8):
        top = 2 ** (bits - 1) - 1
        step = np.float32(4 / top)
        normal = random.standard_normal(weights.shape).astype(np.float32)
        integers = np.clip(np.round(normal / step), -top - 1, top).astype(np.float32)
        yield from both(f"int{bits}", integers)
        yield from both(f"int{bits} x scale", integers * np.float32(0.00371))
        yield from both(f"int{bits} x scale of row", integers * scales.astype(np.float32))
        whole = random.integers(-top - 1, top + 1, weights.shape)
        yield from both(f"int{bits} uniform", whole.astype(np.float32))
        yield f"int{bits} int32", "int32", integers.astype(np.int32).tobytes()
    yield "ids int64", "int64", random.integers(0, 30_000, ROWS * 256).tobytes()
    halves = weights.astype(np.float16).astype(np.float32)
    yield "fp16 values fp32", "fp32", halves.tobytes()
    brains = (bf16(weights).astype(np.uint32) << 16).tobytes()
    yield "bf16 values fp32", "fp32", brains
    palette = random.standard_normal(16).astype(np.float32)
    yield "16 values fp32", "fp32", palette[random.integers(0, 16, weights.size)].tobytes()
    few = random.standard_normal(2000).astype(np.float32)
    yield "2000 values fp32", "fp32", few[random.integers(0, 2000, weights.size)].tobytes()
    constant = weights.copy()
    constant[300:900] = 0.5
    yield from both("constant region", constant)
    for kind, data in (("fp32", weights.tobytes()), ("bf16", bf16(weights).tobytes())):
        block = data[: len(data) // 4]
        yield f"8 times {kind}", kind, block * 8
        yield f"8 times, odd length {kind}", kind, block[:-1] * 8
        apart = b"".join(block + bytes(range(1, 2 + 2 * i)) for i in range(8))
        yield f"8 times, odd offsets {kind}", kind, apart
        half = data[len(data) // 2 :]
        yield f"tied blocks {kind}", kind, block + half + block
        yield f"tied blocks, odd offset {kind}", kind, block + half + b"odd" + block
    yield "dense fp32", "fp32", weights.tobytes()
    yield "dense bf16", "bf16", bf16(weights).tobytes()


def ours(binary: Path, path: Path, kind: str, effort: str) -> int:
    command = [binary, path, kind, effort, "1", "0"]
    question = "size\ndecompress\n"
    answer = subprocess.run(command, input=question, capture_output=True, text=True, check=True)
    return int(answer.stdout.split()[0])


def main() -> None:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    build = ["cargo", "build", "--release", "-q", "-p", "z4ai", "--example", "measure"]
    subprocess.run(build, cwd=REPOSITORY, check=True)
    binary = REPOSITORY / "target/release/examples/measure"
    print(
        f"{'':32}{'':>9}" + "".join(f"{effort:>10}" for effort in EFFORTS) + "  z4ai 0.2     ratio"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data")
        for name, kind, data in cases():
            if wanted not in name:
                continue
            path.write_bytes(data)
            sizes = [ours(binary, path, kind, effort) for effort in EFFORTS]
            old = len(z4ai.compress(data, dtype=kind))
            shares = "".join(f"{size / len(data):10.4f}" for size in sizes)
            ratio = sizes[0] / old
            verdict = "" if ratio < 1 else "  larger"
            print(f"{name:32}{len(data):9}{shares}{old / len(data):10.4f}{ratio:10.4f}{verdict}")


if __name__ == "__main__":
    main()
