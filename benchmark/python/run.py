"""Compares this package with safetensors and with ztensor 1.2.3, side by side.

Cases "as safetensors" are of ``.safetensors`` files on both sides, against both backends of
safetensors 0.9: what counts is the better of them.

A copying load is also compared with ``fresh read``: a program that reads the file into untouched
memory on all cores and does nothing else.

Every figure is the median, over rounds in which both take turns, of the peer's
time divided by ours: above 1 is faster. ``run.py WORD…`` runs only the cases
whose description has one of the words; without words the figures go to
``benchmark/results/python.json``, from which the report is made. ``--write`` does that with some
of them, too.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
WORK = HERE.parent / ".work"
PEER = HERE.parent / ".envs" / "ztensor-1.2.3"
PEER_PYTHON = PEER / "bin" / "python"
RESULTS = HERE.parent / "results" / "python.json"
NEWEST_RELEASE = "0.9.0rc1"
NEWEST = HERE.parent / ".envs" / f"safetensors-{NEWEST_RELEASE}"

# What is measured, the peer, the claim as a ratio, and the rounds.
SMALL, BIG, MIXED = "small", "big", "mixed"
CASES = [
    (f"{framework} load {SMALL}", peer, 3.0, 15)
    for framework in ("numpy", "torch")
    for peer in ("safetensors", "ztensor 1.2.3")
]
CASES += [
    (f"{framework} load {BIG} copy{cold}", "safetensors", 1.5, rounds)
    for framework in ("numpy", "torch")
    for cold, rounds in (("", 9), (" cold", 15))
]
CASES += [
    (f"{framework} load {BIG} touch", peer, 0.97, 9)
    for framework in ("numpy", "torch")
    for peer in ("safetensors", "ztensor 1.2.3")
]
CASES += [
    (f"{framework} save {name}", "safetensors", 0.97, rounds)
    for framework in ("numpy", "torch")
    for name, rounds in ((SMALL, 9), (MIXED, 9), (BIG, 7))
]
CASES += [(f"numpy {what} {MIXED}-zstd zstd", "ztensor 1.2.3", 1.5, 7) for what in ("save", "load")]
# Torch tensors of ``.safetensors`` files, which most people have.
BACKENDS = ("mmap", "pread")
FRESH = "fresh read"
CASES += [
    (f"torch load {name} {flags} as safetensors", f"safetensors 0.9 {backend}", claim, rounds)
    for name in (MIXED, SMALL)
    for flags, claim, rounds in (("touch", 0.97, 15), ("copy", 1.5, 15), ("copy cold", 1.5, 15))
    for backend in BACKENDS
    if name == MIXED or "cold" not in flags
]
CASES += [
    (f"torch load {MIXED} {flags} as safetensors", FRESH, 1.0, 15)
    for flags in ("copy", "copy cold")
]
CASES += [
    (f"torch save {name} as safetensors", "safetensors 0.9 mmap", 1.0, rounds)
    for name, rounds in ((SMALL, 15), (MIXED, 15), (BIG, 9))
]


class Worker:
    """A process that times one library."""

    def __init__(self, python: Path | str, library: str) -> None:
        command = [str(python), "-E", str(HERE / "worker.py"), library, str(WORK)]
        if library.startswith("safetensors 0.9"):
            command.append(str(NEWEST))
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def time(self, case: str) -> float:
        assert self.process.stdin and self.process.stdout
        print(case, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


def make_files() -> None:
    """Models of three shapes, in the formats of both libraries."""
    import safetensors.numpy

    import ztensor.numpy

    WORK.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, dtype=np.float32)

    models = {
        SMALL: lambda: {
            f"layers.{i}.weight": np.full((4, 8), i, np.float32) for i in range(20_000)
        },
        MIXED: lambda: {f"layers.{i}": normal(64 << (i % 6), 128) for i in range(200)},
        BIG: lambda: {f"layers.{i}": normal(2500, 2500) for i in range(20)},
    }
    for name, model in models.items():
        if not (WORK / f"{name}.zt").exists():
            tensors = model()
            safetensors.numpy.save_file(tensors, WORK / f"{name}.safetensors")
            ztensor.numpy.save_file(tensors, WORK / f"{name}.zt")
            if name == MIXED:
                ztensor.numpy.save_file(tensors, WORK / f"{name}-zstd.zt", compression=3)


def make_peer() -> None:
    """An environment of its own for the older package of the same name."""
    if PEER_PYTHON.exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(PEER)], check=True)
    packages = ["ztensor==1.2.3", f"numpy=={np.__version__}", "safetensors"]
    pip = [str(PEER_PYTHON), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *packages, "torch"], check=True)


def make_newest() -> None:
    """The pinned release of safetensors, in a folder of its own."""
    if (NEWEST / "safetensors").exists():
        return
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(NEWEST)]
    subprocess.run([*pip, f"safetensors=={NEWEST_RELEASE}"], check=True)


def measure(case: str, peer: str, rounds: int) -> tuple[float, float, list[float]]:
    ours = Worker(sys.executable, "ztensor")
    other = (
        Worker(sys.executable, peer)
        if peer.startswith(("safetensors", FRESH))
        else Worker(PEER_PYTHON, "ztensor")
    )
    pairs = []
    for index in range(rounds + 1):
        order = (ours, other) if index % 2 else (other, ours)
        times = {worker: worker.time(case) for worker in order}
        if index:  # the first round touches the memory that the others use
            pairs.append((times[ours], times[other]))
    for worker in (ours, other):
        worker.process.stdin.close()
        worker.process.wait()
    ratios = sorted(theirs / mine for mine, theirs in pairs)
    quartiles = statistics.quantiles(ratios, n=4)
    return (
        statistics.median(mine for mine, _ in pairs),
        statistics.median(theirs for _, theirs in pairs),
        [statistics.median(ratios), quartiles[0], quartiles[2]],
    )


def import_times(rounds: int = 15) -> list[float]:
    """How long ``import ztensor`` takes, over ``import numpy``, in fresh processes."""

    def seconds(module: str) -> float:
        code = (
            f"import time; s = time.perf_counter(); import {module}; print(time.perf_counter() - s)"
        )
        return float(
            subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
        )

    ratios = [seconds("ztensor") / seconds("numpy") for _ in range(rounds + 1)][1:]
    quartiles = statistics.quantiles(ratios, n=4)
    return [statistics.median(ratios), quartiles[0], quartiles[2]]


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--write"]
    wanted = [
        case for case in CASES if not words or any(word in f"{case[0]} {case[1]}" for word in words)
    ]
    make_files()
    if any(not peer.startswith(("safetensors", FRESH)) for _, peer, _, _ in wanted):
        make_peer()
    if any(peer.startswith("safetensors 0.9") for _, peer, _, _ in wanted):
        make_newest()
    print(f"{'case':<40} {'peer':<22} {'ours':>10} {'peer':>10}   ratio (quartiles)       claim")
    start = time.time()
    found: list[dict[str, object]] = []
    for case, peer, claim, rounds in wanted:
        ours, theirs, (ratio, low, high) = measure(case, peer, rounds)
        verdict = "ok" if ratio >= claim else "BELOW"
        found.append(
            {"case": case, "peer": peer, "claim": claim, "ours": ours, "theirs": theirs}
            | {"ratio": ratio, "low": low, "high": high}
        )
        print(
            f"{case:<40} {peer:<22} {ours * 1e3:7.1f} ms {theirs * 1e3:7.1f} ms"
            f"   {ratio:5.2f} ({low:.2f} to {high:.2f})  >= {claim} {verdict}",
            flush=True,
        )
    if not words or "import" in words:
        ratio, low, high = import_times()
        verdict = "ok" if ratio <= 1.3 else "ABOVE"
        print(
            f"import ztensor over import numpy: {ratio:.2f} ({low:.2f} to {high:.2f})"
            f"  <= 1.3 {verdict}"
        )
    if not words or "--write" in sys.argv:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{time.time() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
