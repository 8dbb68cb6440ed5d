"""Deltas against z4ai 0.2 (sizes) and ZipNN (speed), in turns, one thread.

    python benchmark/delta.py [FILTER]   # needs numpy, zipnn, z4ai==0.2.0 and a Rust toolchain

Weights are synthetic: normal values with a scale that varies by row. ZipNN has no deltas, so its
plain compression of the same buffer is the yardstick. Speeds are medians of many rounds
in which both take turns; ratios are medians of the pairs, with their quartiles. Memory is touched
first and reused by both.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 41
ELEMENTS = 8 << 20
REPOSITORY = Path(__file__).resolve().parent.parent


def bf16(values):
    """The nearest bfloat16 of each value, as bits."""
    import numpy as np

    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def cases():
    """Name, element type, reference and current, one after the other."""
    import numpy as np

    random = np.random.default_rng(0)
    rows = np.exp(random.standard_normal(ELEMENTS // 1024) * 0.3).repeat(1024)
    weights = (random.standard_normal(ELEMENTS) * 0.02 * rows).astype(np.float32)
    reference = bf16(weights)
    for share in (1, 5, 20):
        changed = random.random(ELEMENTS) < share / 100
        step = np.where(random.random(ELEMENTS) < 0.5, 1, -1) * changed
        yield f"{share} % by one step", "bf16", reference, (reference + step).astype(np.uint16)
    noise = random.standard_normal(ELEMENTS).astype(np.float32)
    relative = weights * (1 + np.float32(1e-2) * noise)
    absolute = weights + np.float32(1e-4) * noise
    yield "all, by 1 % of each", "bf16", reference, bf16(relative)
    yield "all, by 0.0001", "bf16", reference, bf16(absolute)
    half = ELEMENTS // 2
    yield "all, by 1 % of each", "fp32", weights[:half], relative[:half]
    yield "all, by 0.0001", "fp32", weights[:half], absolute[:half]


def peer(path, kind):
    """ZipNN as a contestant: answers `compress` and `decompress` with seconds."""
    import zipnn

    data = Path(path).read_bytes()
    name = {"bf16": "bfloat16", "fp32": "float32"}[kind]
    codec = zipnn.ZipNN(input_format="byte", bytearray_dtype=name, threads=1)
    # It may reorder the buffer that it compresses, so each time it gets its own copy.
    frame = codec.compress(bytearray(data))
    for line in sys.stdin:
        scratch = bytearray(data)
        start = time.perf_counter()
        if line.strip() == "compress":
            frame = codec.compress(scratch)
            elapsed = time.perf_counter() - start
        else:
            out = codec.decompress(frame)
            elapsed = time.perf_counter() - start
            assert out == data, "ZipNN gave other bytes"
            del out
        print(elapsed, flush=True)


class Contestant:
    def __init__(self, *command):
        # Large blocks come from the heap and stay there, so that page faults do not count.
        keep = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
        pipe = subprocess.PIPE
        environment = {**os.environ, **keep}
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment
        )

    def ask(self, question):
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def measure(ours, theirs, mine, yours, size):
    """Our MB/s and how many times theirs, with quartiles."""
    seconds = [(ours.ask(mine), theirs.ask(yours)) for _ in range(ROUNDS + 1)][1:]
    ratios = sorted(their / our for our, their in seconds)
    low, middle, high = statistics.quantiles(ratios, n=4)
    speed = size / statistics.median(our for our, _ in seconds) / 1e6
    return f"{speed:5.0f} MB/s {middle:5.2f} x ({low:.2f} to {high:.2f})"


def main():
    import z4ai

    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    build = ["cargo", "build", "--release", "-q", "-p", "z4ai", "--example", "measure_delta"]
    subprocess.run(build, cwd=REPOSITORY, check=True)
    binary = REPOSITORY / "target/release/examples/measure_delta"
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "reference"), Path(folder, "current")
        for name, kind, reference, current in cases():
            if wanted not in f"{name} {kind}":
                continue
            before.write_bytes(reference.tobytes())
            after.write_bytes(current.tobytes())
            size = current.nbytes
            old = len(z4ai.compress_delta(current.tobytes(), reference.tobytes(), dtype=kind))
            ours = Contestant(binary, after, before, kind, "1")
            theirs = Contestant(sys.executable, __file__, "peer", after, kind)
            new = int(ours.ask("size"))
            print(f"{name} ({kind}, {size / 1e6:.0f} MB)")
            print(f"  size      {new:9} of z4ai 0.2's {old:9}: {new / old:.3f}")
            print(
                "  build    ",
                measure(ours, theirs, "build", "compress", size),
                "ZipNN's compression",
            )
            print(
                "  apply    ",
                measure(ours, theirs, "apply", "decompress", size),
                "its decompression",
            )
            print("  in place ", measure(ours, theirs, "in_place", "decompress", size), flush=True)
            ours.close()
            theirs.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["peer"]:
        peer(*sys.argv[2:])
    else:
        main()
