"""Writes a small model, opens it again without copying, checks it, and says what happened.

Then packs one with the weight codec, reads a tensor of it, and restores it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import ztensor
from z4ai.safetensors import ZstnReader, compress_file, decompress_file
from ztensor.numpy import load_file, save_file

LAYERS, WIDTH = 8, 1024


def model(seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights, with an output layer tied to the embedding."""
    random = np.random.default_rng(seed)
    tensors = {"embed": random.standard_normal((4 * WIDTH, WIDTH), dtype=np.float32)}
    for layer in range(LAYERS):
        tensors[f"layers.{layer}.weight"] = random.standard_normal((WIDTH, WIDTH), dtype=np.float32)
        tensors[f"layers.{layer}.mask"] = random.random((WIDTH, WIDTH)) > 0.5
        tensors[f"layers.{layer}.bias"] = np.zeros(WIDTH, dtype=np.float32)
    tensors["head"] = tensors["embed"]
    return tensors


def timed(label: str, nbytes: int, start: float) -> None:
    seconds = time.perf_counter() - start
    print(f"{label:<46} {seconds * 1e3:8.1f} ms  {nbytes / seconds / 1e9:7.2f} GB/s")


def main() -> None:
    tensors = model()
    unique = {id(array): array.nbytes for array in tensors.values()}
    nbytes = sum(unique.values())
    print(f"a model of {len(tensors)} tensors, {nbytes / 1e6:.0f} MB\n")
    with tempfile.TemporaryDirectory() as folder:
        raw, small = Path(folder, "model.zt"), Path(folder, "small.zt")

        start = time.perf_counter()
        save_file(tensors, raw, metadata={"made by": "the demo"}, checksum="crc32c")
        timed("saved with checksums", nbytes, start)

        start = time.perf_counter()
        save_file(tensors, small, compression=True)
        timed("saved with zstd", nbytes, start)

        start = time.perf_counter()
        views = load_file(raw)
        timed("opened without a copy", nbytes, start)

        start = time.perf_counter()
        copies = load_file(raw, copy=True)
        timed("loaded with a copy, checksums compared", nbytes, start)

        start = time.perf_counter()
        decoded = load_file(small)
        timed("loaded from zstd", nbytes, start)

        for name, array in tensors.items():
            for found in (views[name], copies[name], decoded[name]):
                np.testing.assert_array_equal(found, array)
        print("\nevery tensor of every load equals what was saved")

        assert views["head"] is views["embed"]
        print("the output layer is still tied to the embedding, and stored once:")
        print(
            f"  {raw.stat().st_size / 1e6:.1f} MB raw, "
            f"{small.stat().st_size / 1e6:.1f} MB with zstd"
        )

        views["embed"][:] = 0
        reader = ztensor.open(raw)
        np.testing.assert_array_equal(reader.read_numpy("embed"), tensors["embed"])
        print("writing to a view left the file as it was")

        checked, unchecked = reader.verify()
        print(f"verified: {checked} tensors agree with their checksums, {unchecked} have none")
        print(f"metadata: {reader.attributes}")


def pack(seed: int = 1) -> None:
    """Packs a model in bfloat16, reads one tensor of it, restores it and compares."""
    random = np.random.default_rng(seed)

    def weights(*shape: int) -> ztensor.Tensor:
        values = random.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
        half = (values.view(np.uint32) >> 16).astype(np.uint16)  # bfloat16, cut off
        return ztensor.Tensor({"data": half}, dtype="bfloat16")

    tensors = {f"layers.{layer}.weight": weights(WIDTH, 4 * WIDTH) for layer in range(LAYERS)}
    with tempfile.TemporaryDirectory() as folder:
        raw, plain = Path(folder, "model.zt"), Path(folder, "model.safetensors")
        packed, restored = Path(folder, "model.zstn"), Path(folder, "restored.safetensors")
        save_file(tensors, raw)
        command = [sys.executable, "-m", "ztensor", "convert", raw, "-o", plain, "--quiet"]
        subprocess.run(command, check=True)
        nbytes = plain.stat().st_size
        print(f"\na safetensors model in bfloat16, {nbytes / 1e6:.0f} MB\n")

        start = time.perf_counter()
        stats = compress_file(plain, packed)
        timed(f"packed, {stats['saved_pct']:.1f} % smaller", nbytes, start)

        start = time.perf_counter()
        with ZstnReader.open(packed) as reader:
            one = reader.read_raw("layers.3.weight")
        timed("one tensor of it read", len(one), start)
        assert one == tensors["layers.3.weight"].components["data"].tobytes()

        start = time.perf_counter()
        decompress_file(packed, restored)
        timed("restored", nbytes, start)
        assert restored.read_bytes() == plain.read_bytes()
        print("\nthe restored file is the original, byte for byte")


if __name__ == "__main__":
    main()
    pack()
