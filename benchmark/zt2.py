"""Version 2 of `.zt` against its reference implementation: `python benchmark/zt2.py`.

Opening a file of 50,000 tensors, and writing one of large tensors, each in turn with the peer: the
published package for opening, our own version 1.2 writer for writing. A claim is the median of the
ratios within a round. The peer is unpacked under `benchmark/.envs/`; each contestant is a process.

Run it with the environment that has this package (`make wheel` installs an optimised one).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
WORK = ROOT / ".work" / "zt2"
PEER = ROOT / ".envs" / "ztensor-2.1.2"
COUNT = 50_000
ROUNDS = 9

WORKER = r"""
import sys, time
import ztensor
for line in sys.stdin:
    path = line.strip()
    start = time.perf_counter()
    opened = ztensor.open(path)
    print(time.perf_counter() - start, flush=True)
    del opened
"""

WRITER = r"""
import sys, time
import numpy as np
from ztensor.numpy import save_file
rng = np.random.default_rng(7)
tensors = {f"layer.{n}": rng.standard_normal(4 << 20, dtype=np.float32) for n in range(16)}
for line in sys.stdin:
    format, path = line.split()
    start = time.perf_counter()
    save_file(tensors, path, format=format)
    print(time.perf_counter() - start, flush=True)
"""


def process(code: str, path: Path | None = None) -> subprocess.Popen[str]:
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def seconds(worker: subprocess.Popen[str], line: str) -> float:
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(line + "\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def peer() -> Path:
    if not (PEER / "ztensor").is_dir():
        PEER.mkdir(parents=True, exist_ok=True)
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*download, "--dest", str(PEER), "ztensor==2.1.2"], check=True)
        for wheel in PEER.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(PEER)
    return PEER


def ratios(name: str, one: list[float], other: list[float]) -> None:
    found = [b / a for a, b in zip(one, other, strict=True)]
    low, middle, high = statistics.quantiles(found, n=4)
    mine, theirs = (statistics.median(times) * 1e3 for times in (one, other))
    print(f"{name}: {mine:.1f} ms, peer {theirs:.1f} ms, {middle:.2f} x ({low:.2f} to {high:.2f})")


def main() -> None:
    import numpy as np

    from ztensor.numpy import save_file

    WORK.mkdir(parents=True, exist_ok=True)
    many = WORK / "many.zt"
    small = {f"model.layers.{n}.weight": np.full(4, n, np.float32) for n in range(COUNT)}
    save_file(small, many, format="zt2")
    ours, theirs = process(WORKER), process(WORKER, peer())
    for worker in (ours, theirs):
        seconds(worker, str(many))
    times = [(seconds(ours, str(many)), seconds(theirs, str(many))) for _ in range(ROUNDS)]
    ratios(f"open {COUNT:,} tensors", [a for a, _ in times], [b for _, b in times])
    writer = process(WRITER)
    two, one = f"zt2 {WORK / 'two.zt'}", f"zt {WORK / 'one.zt'}"
    for line in (two, one):
        seconds(writer, line)
    times = [(seconds(writer, two), seconds(writer, one)) for _ in range(ROUNDS)]
    ratios("write 256 MB, version 1.2 as the peer", [a for a, _ in times], [b for _, b in times])
    for path in WORK.iterdir():
        path.unlink()


if __name__ == "__main__":
    main()
