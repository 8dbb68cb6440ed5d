"""Content ids beside the hash alone: `python benchmark/identity.py [MEGABYTES]`.

Needs numpy, ml_dtypes and blake3. A file of bf16 weights is written in several ways and stays in
the page cache. Each line compares, in turn and in one run, the time of `Reader.content_id()` with
that of the least that has to be done: BLAKE3 of the same bytes in memory on one core, and for
packed files decoding them on one core before it. A ratio of 1 is that limit; the last column is the
time with one thread divided by that with two. Then single tensors in memory, on all cores and on
one: below which size a second thread costs more than it saves.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from blake3 import blake3

import ztensor
import ztensor.numpy

ROUNDS = 9
TENSORS = 24


def weights(megabytes: int) -> dict[str, np.ndarray]:
    """bf16 weights as bits, each tensor of its own scale."""
    random = np.random.default_rng(0)
    count = megabytes * 1_000_000 // 2 // TENSORS
    values = random.standard_normal(count).astype(np.float32) * 0.02
    found = {}
    for index in range(TENSORS):
        bits = (np.roll(values, index * 1000) * (1 + index / 7)).astype(np.float32).view(np.uint32)
        found[f"layers.{index}.weight"] = (bits >> 16).astype(np.uint16)
    return found


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def medians(*work: Callable[[], object]) -> list[float]:
    """The median time of each, all of them in turn."""
    for one in work:
        one()
    rounds = [[seconds(one) for one in work] for _ in range(ROUNDS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def hashed(tensors: dict[str, np.ndarray]) -> None:
    for array in tensors.values():
        blake3(array.view(np.uint8), max_threads=1).digest()


def single_tensors(cores: set[int]) -> None:
    """Ids of tensors in memory, with all cores and with one."""
    print(f"{'tensor':<18}{'one core':>12}{'all':>12}{'':>8}{'one / all':>12}")
    for kilobytes in (512, 1024, 1536, 2048, 3072, 4096, 8192):
        array = np.random.default_rng(0).integers(0, 256, kilobytes << 10, np.uint8)

        def on(chosen: set[int], array: np.ndarray = array) -> float:
            os.sched_setaffinity(0, chosen)
            return statistics.median(
                seconds(lambda: ztensor.content_id(array)) for _ in range(5 * ROUNDS)
            )

        on(cores)
        alone, both = on({min(cores)}), on(cores)
        times = f"{alone * 1e6:>9.0f} us{both * 1e6:>9.0f} us"
        print(f"{f'{kilobytes} KiB':<18}{times}{'':>8}{alone / both:>10.2f} x")


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    tensors = weights(megabytes)
    size = sum(array.nbytes for array in tensors.values())
    cores = len(os.sched_getaffinity(0))
    print(f"{size / 1e6:.0f} MB, {TENSORS} tensors, {cores} cores, medians of {ROUNDS}")
    print(f"{'file':<18}{'limit':>12}{'id':>12}{'ratio':>8}{'2 threads':>12}")
    cases: list[tuple[str, dict[str, object]]] = [
        ("raw.safetensors", {}),
        ("raw.zt", {}),
        ("z4ai.zt", {"compression": "default"}),
        ("fast.zt", {"compression": "fast"}),
        ("packed.zstn", {}),
        ("zstd.zt", {"compression": 3}),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name, options in cases:
            path = Path(folder, name)
            stored = tensors
            if name != "raw.safetensors":
                # The codec needs to know that these are bf16.
                import ml_dtypes

                stored = {key: array.view(ml_dtypes.bfloat16) for key, array in tensors.items()}
            ztensor.numpy.save_file(stored, path, **options)
            one, two = ztensor.Reader(path, threads=1), ztensor.Reader(path, threads=2)
            packed = not name.startswith("raw")

            def limit(packed: bool = packed, one: ztensor.Reader = one) -> None:
                if not packed:
                    return hashed(tensors)
                for key in one.keys():
                    array = one.read_numpy(key, copy=True)
                    blake3(array.view(np.uint8), max_threads=1).digest()
                return None

            least, alone, both = medians(limit, one.content_id, two.content_id)
            rates = [f"{size / time / 1e9:.2f} GB/s" for time in (least, alone)]
            ratios = f"{least / alone:>8.2f}{alone / both:>10.2f} x"
            print(f"{name:<18}{rates[0]:>12}{rates[1]:>12}{ratios}")
            path.unlink()
    single_tensors(os.sched_getaffinity(0))


if __name__ == "__main__":
    main()
