"""Repositories of checkpoints: size and speed against other ways to keep related models.

    python benchmark/repository.py [FILTER] [--size MB] [--rounds N] [--steps N] [--json FILE]

Needs this package (`make wheel` installs an optimised one), torch, zstandard and blake3. Families
are made here: a model, full fine-tunes of it, one of its head only, a merge, a run of small steps,
an fp32 master with its bf16 cast. Each is kept as

- plain copies, which is also what Git LFS keeps on its server;
- files compressed by zstd at level 3;
- chunks of about 64 kB, cut by content (FastCDC with the usual gear table and masks), each stored
  once;
- XOR with the first version of the family, compressed by zstd at level 3 (as ZipLLM does);
- each version packed alone (`ztensor compress`);
- a repository.

Speed is that of commit and checkout against what they cannot do without, in the same run: reading
and hashing the files for versions that are there already; encoding and hashing for new ones.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from safetensors.numpy import save_file

import z4ai
import ztensor

State = dict[str, np.ndarray[Any, Any]]
CLAIMS = {
    "saved, full fine-tunes in bf16, %": (60.0, "least"),
    "saved, run of small steps, %": (95.0, "least"),
    "saved outside of the head, %": (99.0, "least"),
    "stored / packed alone": (1.0, "most"),
    "commit of the same / read and hash": (0.8, "least"),
    "checkout of the same / read and hash": (0.8, "least"),
    "checkout / codec and hash": (0.7, "least"),
    "checkout / codec, hash and write": (0.7, "least"),
    "commit of deltas / codec and hash": (0.7, "least"),
    "log of 1,000 versions, s": (1.0, "most"),
    "memory of a commit / model": (0.5, "most"),
    "gc of 30 of 60 versions / of 2": (30.0, "most"),
}


def bf16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bits of the nearest bf16, as unsigned integers."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Family:
    """Versions of a model: fp32 values, saved as bf16 or fp32."""

    def __init__(self, megabytes: float, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        width = 512
        # bf16: 12 * width^2 * 2 bytes for each layer, and embedding and head.
        layers = max(1, int(megabytes * 1e6 / 2 / (12 * width * width)))
        self.values: dict[str, np.ndarray[Any, Any]] = {}
        shapes = {"embed.weight": (4000, width), "lm_head.weight": (4000, width)}
        for layer in range(layers):
            shapes[f"layers.{layer}.attn.weight"] = (4 * width, width)
            shapes[f"layers.{layer}.up.weight"] = (4 * width, width)
            shapes[f"layers.{layer}.down.weight"] = (width, 4 * width)
            shapes[f"layers.{layer}.norm.weight"] = (width,)
        for name, shape in shapes.items():
            scale = 0.02 if len(shape) > 1 else 1.0
            self.values[name] = (rng.standard_normal(shape) * scale).astype(np.float32)
        self.rng = rng

    def tuned(self, relative: float, which: str = "") -> dict[str, np.ndarray[Any, Any]]:
        changed = dict(self.values)
        for name, value in self.values.items():
            if which in name:
                noise = self.rng.standard_normal(value.shape).astype(np.float32)
                changed[name] = value + noise * (relative * float(np.abs(value).mean()))
        return changed


def save(values: dict[str, np.ndarray[Any, Any]], path: Path, *, wide: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if wide:
        save_file(values, path)
        return
    header: dict[str, Any] = {}
    offset, parts = 0, []
    for name, value in sorted(values.items()):
        bits = bf16(value)
        end = offset + bits.nbytes
        header[name] = {"dtype": "BF16", "shape": value.shape, "data_offsets": [offset, end]}
        parts.append(bits)
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for bits in parts:
            file.write(bits.data)


# --- other ways to keep versions


def zstd_size(path: Path) -> int:
    return len(zstandard.ZstdCompressor(level=3).compress(path.read_bytes()))


GEAR = np.random.default_rng(20161234).integers(0, 1 << 63, 256, dtype=np.uint64)


def chunks(data: bytes) -> Iterator[bytes]:
    """Content-defined chunks of 64 kB on average, 16 kB at least and 256 kB at most.

    A gear hash of the last 32 bytes, computed for all positions at once.
    """
    values = GEAR[np.frombuffer(data, np.uint8)]
    hashes = np.zeros(len(data), np.uint64)
    for back in range(32):
        hashes[back:] += values[: len(data) - back] << np.uint64(back)
    cuts = np.flatnonzero((hashes >> np.uint64(16)) & np.uint64(0xFFFF) == 0) + 1
    start = 0
    for cut in [*cuts.tolist(), len(data)]:
        while cut - start > 256 << 10:
            yield data[start : start + (256 << 10)]
            start += 256 << 10
        if cut - start >= 16 << 10 or cut == len(data):
            yield data[start:cut]
            start = cut


def chunked_size(paths: list[Path]) -> int:
    seen: dict[bytes, int] = {}
    for path in paths:
        for chunk in chunks(path.read_bytes()):
            seen.setdefault(hashlib.blake2b(chunk, digest_size=16).digest(), len(chunk))
    return sum(seen.values())


def xor_size(paths: list[Path]) -> int:
    base = np.frombuffer(paths[0].read_bytes(), np.uint8)
    total = zstd_size(paths[0])
    for path in paths[1:]:
        data = np.frombuffer(path.read_bytes(), np.uint8)
        if len(data) != len(base):
            total += zstd_size(path)
            continue
        total += len(zstandard.ZstdCompressor(level=3).compress((data ^ base).data))
    return total


def packed_size(paths: list[Path], scratch: Path) -> int:
    total = 0
    for number, path in enumerate(paths):
        out = scratch / f"packed-{number}.zt"
        ztensor.convert(path, out, compression="default")
        total += out.stat().st_size
        out.unlink()
    return total


def repository_size(root: Path) -> int:
    return sum(file.stat().st_size for file in root.rglob("*") if file.is_file())


# --- speed


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def read_and_hash(path: Path) -> None:
    with ztensor.Reader(path) as reader:
        reader.content_id()


class Benchmark:
    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self.options, self.scratch = options, scratch
        self.results: dict[str, float] = {}

    def wanted(self, name: str) -> bool:
        return self.options.filter in name

    def note(self, name: str, value: float) -> None:
        self.results[name] = value
        limit = CLAIMS.get(name)
        verdict = ""
        if limit:
            met = value >= limit[0] if limit[1] == "least" else value <= limit[0]
            verdict = f"   {'ok' if met else 'MISSED'} (at {limit[1]} {limit[0]:g})"
        print(f"{name:<44} {value:10.3f}{verdict}", flush=True)

    def compare(self, title: str, paths: list[Path]) -> tuple[int, int]:
        """Sizes of one family in every way; returns those of copies and of the repository."""
        plain = sum(path.stat().st_size for path in paths)
        root = self.scratch / f"repo-{title.replace(' ', '-')}"
        repository = ztensor.Repository.init(root)
        for path in paths:
            repository.commit(path, path.parent.name)
        ours = repository_size(root)
        alone = packed_size(paths, self.scratch)
        rows = {
            "plain copies, Git LFS": plain,
            "zstd -3": sum(zstd_size(path) for path in paths),
            "chunks of 64 kB": chunked_size(paths),
            "xor and zstd -3": xor_size(paths),
            "packed alone": alone,
            "repository": ours,
        }
        print(f"\n{title}: {len(paths)} versions, {plain / 1e6:.1f} MB")
        for name, size in rows.items():
            print(f"  {name:<24} {size / 1e6:10.2f} MB   {100 * (1 - size / plain):6.2f} % saved")
            self.results[f"{title}: {name}, % saved"] = 100 * (1 - size / plain)
        for number, path in enumerate(paths):
            out = self.scratch / "out"
            repository.checkout(f"main~{len(paths) - 1 - number}", out)
            assert (out / path.name).read_bytes() == path.read_bytes(), path
            shutil.rmtree(out)
        if self.wanted("alone"):
            self.note(
                "stored / packed alone",
                max(ours / alone, self.results.get("stored / packed alone", 0)),
            )
        return plain, ours

    def sizes(self) -> None:
        family = Family(self.options.size)
        base = self.scratch / "base" / "model.safetensors"
        save(family.values, base)
        paths = [base]
        for number in range(3):
            path = self.scratch / f"full-{number}" / "model.safetensors"
            save(family.tuned(0.002), path)
            paths.append(path)
        plain, ours = self.compare("full fine-tunes, bf16", paths)
        first = repository_size_of_first(self.scratch, base)
        alone = sum(path.stat().st_size for path in paths[1:])
        self.note("saved, full fine-tunes in bf16, %", 100 * (1 - (ours - first) / alone))
        wide = []
        for number, values in enumerate([family.values, family.tuned(0.002)]):
            wide.append(self.scratch / f"wide-{number}" / "model.safetensors")
            save(values, wide[-1], wide=True)
        self.compare("full fine-tunes, fp32", wide)
        head = self.scratch / "head" / "model.safetensors"
        save(family.tuned(0.1, "lm_head"), head)
        self.compare("head only, bf16", [base, head])
        root = self.scratch / "repo-head"
        repository = ztensor.Repository.init(root)
        repository.commit(base)
        before = repository_size(root)
        repository.commit(head)
        head_bytes = family.values["lm_head.weight"].nbytes // 2
        packed_head = len(
            z4ai.compress(bf16(family.values["lm_head.weight"]).tobytes(), dtype="bf16")
        )
        outside = base.stat().st_size - head_bytes
        extra = max(0, repository_size(root) - before - packed_head)
        self.note("saved outside of the head, %", 100 * (1 - extra / outside))
        master, cast = (
            self.scratch / "fp32/model.safetensors",
            self.scratch / "bf16/model.safetensors",
        )
        save(family.values, master, wide=True)
        save(family.values, cast)
        self.compare("fp32 master and bf16 cast", [master, cast])
        steps = []
        values = {name: value.copy() for name, value in family.values.items()}
        for step in range(self.options.steps):
            for value in values.values():
                flat = value.reshape(-1)
                # One element in a hundred moves by about one unit in the last place of bf16.
                at = family.rng.integers(0, len(flat), len(flat) // 100)
                flat[at] *= 1.008
            path = self.scratch / f"step-{step}" / "model.safetensors"
            save(values, path)
            steps.append(path)
        plain, ours = self.compare("run of small steps, bf16", steps)
        self.note("saved, run of small steps, %", 100 * (1 - ours / plain))

    def speed(self) -> None:
        # Ten times as large: what a commit waits for the disk takes the same time for any model.
        family = Family(10 * self.options.size, seed=1)
        base = self.scratch / "speed" / "model.safetensors"
        tuned = self.scratch / "speed-tuned" / "model.safetensors"
        save(family.values, base)
        save(family.tuned(0.002), tuned)
        rounds = [self.speed_round(base, tuned, number) for number in range(self.options.rounds)]
        for name in rounds[0]:
            self.note(name, statistics.median(ratios[name] for ratios in rounds))

    def speed_round(self, base: Path, tuned: Path, number: int) -> dict[str, float]:
        repository = ztensor.Repository.init(self.scratch / f"speed-{number}")
        repository.commit(base)
        ratios = {}
        floor = seconds(lambda: read_and_hash(base))
        again = seconds(lambda: repository.commit(base))
        ratios["commit of the same / read and hash"] = floor / again
        old, new = bits_of(base), bits_of(tuned)

        def encode() -> dict[str, bytes]:
            read_and_hash(tuned)
            return {
                name: z4ai.compress_delta(new[name], reference=old[name], dtype="bf16")
                for name in new
            }

        floor = seconds(encode)
        change = seconds(lambda: repository.commit(tuned))
        ratios["commit of deltas / codec and hash"] = floor / change
        frames = encode()
        wholes = {name: z4ai.compress(old[name].tobytes(), dtype="bf16") for name in old}

        def decode() -> None:
            for name in new:
                z4ai.decompress(wholes[name])
                z4ai.decompress_delta(frames[name], old[name])
            read_and_hash(tuned)

        content = tuned.read_bytes()
        written = self.scratch / "written"
        floor = seconds(decode)
        out = self.scratch / "out"
        # The second of two counts: a virtual machine gets memory for the first from its host, and
        # gives it back soon after it was freed.
        for _ in range(2):
            write = seconds(lambda: written.write_bytes(content))
            written.unlink()
        for _ in range(2):
            shutil.rmtree(out, ignore_errors=True)
            back = seconds(lambda: repository.checkout("main", out))
        same = seconds(lambda: repository.checkout("main", out, overwrite=True))
        ratios["checkout of the same / read and hash"] = (
            seconds(lambda: read_and_hash(tuned)) / same
        )
        shutil.rmtree(out)
        ratios["checkout / codec and hash"] = floor / back
        ratios["checkout / codec, hash and write"] = (floor + write) / back
        return ratios

    def log(self) -> None:
        repository = ztensor.Repository.init(self.scratch / "log")
        for step in range(1000):
            repository.commit({"x": np.full(1000, step, np.float32)}, f"step {step}")
        opened = ztensor.Repository(self.scratch / "log")
        self.note("log of 1,000 versions, s", seconds(lambda: opened.log()))

    def gc(self) -> None:
        """Garbage collection by what goes: a few of many versions, and half of them."""
        family = Family(self.options.size / 4, seed=2)
        times = {}
        for kept in (58, 30):
            repository = ztensor.Repository.init(self.scratch / f"gc-{kept}")
            values = {name: value.copy() for name, value in family.values.items()}
            for step in range(60):
                for value in values.values():
                    value.reshape(-1)[step::100] *= 1.008
                path = self.scratch / "step" / "model.safetensors"
                save(values, path)
                repository.commit(path, f"step {step}")
            start = time.perf_counter()
            repository.gc(keep_last=kept, grace=0)
            times[kept] = time.perf_counter() - start
            repository.gc(grace=0)
            again = time.perf_counter() - start - times[kept]
            print(f"gc, {60 - kept} of 60 go: {times[kept]:.3f} s, none: {again:.3f} s", flush=True)
        self.note("gc of 30 of 60 versions / of 2", times[30] / times[58])

    def memory(self) -> None:
        """The most memory that a commit takes beyond what the process had before."""
        family = Family(10 * self.options.size, seed=3)
        path = self.scratch / "large" / "model.safetensors"
        save(family.values, path)
        ztensor.Repository.init(self.scratch / "memory")
        code = (
            # Not ru_maxrss, which begins with that of the parent.
            "import sys, ztensor\n"
            "status = lambda: open('/proc/self/status').read()\n"
            "peak = lambda: int(status().split('VmHWM:')[1].split()[0]) << 10\n"
            "before = peak()\n"
            "ztensor.Repository(sys.argv[1]).commit(sys.argv[2])\n"
            "print(peak() - before)"
        )
        command = [sys.executable, "-c", code, str(self.scratch / "memory"), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        self.note("memory of a commit / model", int(done.stdout) / path.stat().st_size)


def repository_size_of_first(scratch: Path, base: Path) -> int:
    root = scratch / "repo-first"
    ztensor.Repository.init(root).commit(base)
    return repository_size(root)


def bits_of(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    start = 8 + length
    return {
        name: np.frombuffer(data, np.uint16, (end - begin) // 2, start + begin)
        for name, (begin, end) in ((name, one["data_offsets"]) for name, one in header.items())
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("filter", nargs="?", default="")
    parser.add_argument("--size", type=float, default=40, help="MB of a model in bf16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("sizes", "speed", "log", "gc", "memory"):
            benchmark = Benchmark(options, Path(scratch) / name)
            benchmark.scratch.mkdir()
            if options.filter in ("", name):
                options.filter, chosen = "", options.filter
                getattr(benchmark, name)()
                options.filter = chosen
                if options.json:
                    known = json.loads(options.json.read_text()) if options.json.exists() else {}
                    options.json.write_text(json.dumps({**known, **benchmark.results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
