"""Fuzzes what Python does with a file: allocate, fill, view and tie.

    python fuzz/python/load.py --seconds 300

Every round makes a `.zt` file of random objects (known and unknown layouts and types, any lengths,
shared blobs, zstd frames that are right or wrong), sometimes damages its manifest, and loads it in
every way there is. A file is refused with an error of ours, or its tensors are what they are one by
one and exactly as long as the file says. The worker runs with the checks of the C allocator, so
that a write behind an array ends it; the file that did it is kept.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import zt_files

SIZES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "u64": 8, "u8": 1, "bool": 1}
TYPES = ["complex64", "complex128", "complex32", "f8_e4m3fn", "i4", "u2", "f6_e2m3fn", "unheard.of"]
LAYOUTS = ["dense", "custom.layout", "quantized_group", "sparse_csr", "sparse_coo", "gguf.q4_0", ""]
ROLES = ["data", "values", "indices", "indptr", "coords", "packed_weight", "scales", "zeros", "x"]


def sample(rng: random.Random) -> bytes:
    """A file whose structure is sound and whose numbers may not be."""
    lengths = [rng.choice([0, 1, 8, 15, 16, 17, 24, 31, 32, 64, 96]) for _ in range(4)]
    contents = [rng.randbytes(length) for length in lengths]
    contents[0] = bytes(byte & 1 for byte in contents[0])
    frames = [zt_files.zstd_raw(content) for content in contents]
    data, starts = zt_files.blobs(*contents, *frames)

    def component() -> dict[str, Any]:
        dtype = rng.choice(list(SIZES))
        index = rng.randrange(len(contents))
        more = {"type": rng.choice(TYPES)} if rng.random() < 0.25 else {}
        if rng.random() < 0.4:
            frame = index + len(contents)
            stated = lengths[index] + (rng.randint(-8, 8) if rng.random() < 0.1 else 0)
            place = (starts[frame], len(frames[index]), max(stated, 0))
            return zt_files.component(dtype, *place, **more)
        return zt_files.component(dtype, starts[index], lengths[index], **more)

    def tensor() -> dict[str, Any]:
        layout = rng.choice(LAYOUTS[:1] * 4 + LAYOUTS)
        roles = ["data"] if layout == "dense" else rng.sample(ROLES, rng.randint(1, 4))
        if rng.random() < 0.1:
            roles.append("extra")
        parts = {role: component() for role in roles}
        first = parts[roles[0]]
        count = first.get("uncompressed_length", first["length"]) // SIZES[first["dtype"]]
        shape = rng.choice([[count], [count, 1], [1, count], [3], [], [2, count // 2]])
        return zt_files.tensor(layout, shape, **parts)

    objects = {f"t{index}": tensor() for index in range(rng.randint(1, 12))}
    file = bytearray(zt_files.file(data, objects))
    if rng.random() < 0.3:
        for _ in range(rng.randint(1, 3)):
            file[rng.randrange(len(data), len(file) - 16)] = rng.randrange(256)
    return bytes(file)


def flat(value: Any) -> bytes:
    """The elements of anything that was loaded."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return repr(value).encode()
        value = value.resolve_conj().resolve_neg().contiguous()
        return value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    if hasattr(value, "components"):
        return b"".join(array.tobytes() for array in value.components.values())
    return bytes(value.tobytes())


def use(path: Path) -> bool:
    """Loads a file in every way; whether anything in it could be loaded."""
    import ztensor
    import ztensor.numpy
    import ztensor.torch

    try:
        reader = ztensor.open(path)
    except ztensor.ZTensorError:
        return False
    loaded = False
    for name in reader.keys():
        metadata = reader.metadata(name)
        for copy in (False, True):
            try:
                found = reader.read(name, copy=copy)
            except ztensor.ZTensorError:
                continue
            loaded = True
            for role, array in found.components.items():
                stated = metadata.components[role]["length"]
                if array.nbytes != stated:
                    raise AssertionError(f"{name} {role}: {array.nbytes} bytes instead of {stated}")
    together: list[tuple[Any, Any]] = [
        (lambda: ztensor.numpy.load_file(path), lambda name: reader.read_numpy(name)),
        (lambda: ztensor.numpy.load_file(path, copy=True), lambda name: reader.read_numpy(name)),
        (lambda: ztensor.torch.load_file(path), lambda name: reader.read_torch(name)),
        (lambda: ztensor.torch.load_file(path, copy=True), lambda name: reader.read_torch(name)),
        (lambda: ztensor.torch.load(path.read_bytes()), lambda name: reader.read_torch(name)),
    ]
    for load, read in together:
        try:
            tensors = load()
        except ztensor.ZTensorError:
            continue
        for name, tensor in tensors.items():
            alone = reader.read(name) if hasattr(tensor, "components") else read(name)
            if flat(tensor) != flat(alone):
                raise AssertionError(f"{name} differs when it is loaded with others")
    return loaded


def work(seed: int, seconds: float, folder: Path) -> None:
    """Rounds, until the time is over."""
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    rounds = loaded = 0
    while time.monotonic() < end:
        path = folder / f"{rounds % 4}.zt"
        path.unlink(missing_ok=True)  # arrays of the round before may still be mapped
        path.write_bytes(sample(rng))
        (folder / "last").write_text(path.name)
        loaded += use(path)
        rounds += 1
    print(f"seed {seed}: {rounds} files, {loaded} of them with tensors that load")


def main() -> int:
    """Starts the worker, and keeps what ended it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.seed, options.seconds, options.worker)
        return 0
    checks = {"MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165", "PYTHONMALLOC": "malloc"}
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, __file__, "--worker", name, "--seed", str(options.seed)]
        command += ["--seconds", str(options.seconds)]
        outcome = subprocess.run(command, env={**os.environ, **checks})
        if outcome.returncode:
            folder = Path(name)
            kept = Path(tempfile.gettempdir()) / f"fuzz-{options.seed}.zt"
            kept.write_bytes((folder / (folder / "last").read_text()).read_bytes())
            print(f"seed {options.seed} ended with {outcome.returncode}: see {kept}")
        return outcome.returncode


if __name__ == "__main__":
    sys.exit(main())
