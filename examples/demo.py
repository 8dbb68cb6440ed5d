"""Two minutes with ztensor and z4ai, with nothing installed but NumPy.

Makes a small language model with realistic weights, opens it from five formats, compresses it
without loss, reads one tensor of the compressed file, stores a fine-tune as a delta, shows how a
damaged file is refused, and writes an HTML report. Every result is compared with the original.

    make demo                 # builds what it needs
    python examples/demo.py   # where ztensor is installed
"""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
import time
import types
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

import ztensor
from z4ai import model_delta
from z4ai.safetensors import ZstnReader, compress_file, decompress_file
from ztensor.numpy import save_file

LAYERS, WIDTH, VOCABULARY = 4, 512, 8000
Weights = dict[str, np.ndarray]
"""bfloat16 weights as their bits: NumPy has no bfloat16 of its own."""


def model(seed: int = 0) -> Weights:
    """Weights that look like a trained model's: normal, each row with a scale of its own."""
    random = np.random.default_rng(seed)

    def weight(rows: int, columns: int, scale: float) -> np.ndarray:
        rows_scale = np.float32(scale) * random.lognormal(0, 0.3, (rows, 1)).astype(np.float32)
        return bits(random.standard_normal((rows, columns), dtype=np.float32) * rows_scale)

    tensors = {"model.embed_tokens.weight": weight(VOCABULARY, WIDTH, 0.03)}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            tensors[f"{name}.self_attn.{part}.weight"] = weight(WIDTH, WIDTH, 0.04)
        for part in ("gate_proj", "up_proj"):
            tensors[f"{name}.mlp.{part}.weight"] = weight(4 * WIDTH, WIDTH, 0.02)
        tensors[f"{name}.mlp.down_proj.weight"] = weight(WIDTH, 4 * WIDTH, 0.02)
        tensors[f"{name}.input_layernorm.weight"] = bits(np.ones(WIDTH, np.float32))
    tensors["lm_head.weight"] = weight(VOCABULARY, WIDTH, 0.02)
    return tensors


def bits(values: np.ndarray) -> np.ndarray:
    """float32 rounded to bfloat16."""
    wide = values.view(np.uint32)
    return ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(np.uint16)


def fine_tuned(base: Weights) -> Weights:
    """The same model after a little training: the attention of two layers moved slightly."""
    random = np.random.default_rng(1)
    tuned = dict(base)
    for name in base:
        if "layers.3.self_attn" in name or "layers.2.self_attn" in name:
            values = (base[name].astype(np.uint32) << 16).view(np.float32)
            step = random.standard_normal(values.shape, dtype=np.float32) * np.float32(2e-2)
            tuned[name] = bits(values + step * np.abs(values))
    return tuned


def run(program: str, *args: str | Path) -> str:
    """One of the command lines; what it says."""
    command = [sys.executable, "-m", program, *map(str, args)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout + done.stderr


def write_pytorch(tensors: Weights, path: Path) -> None:
    """What ``torch.save(state_dict)`` writes, without torch: a zip of a pickle and raw storages."""
    names = {"torch": ["BFloat16Storage"], "torch._utils": ["_rebuild_tensor_v2"]}
    for module, attributes in names.items():
        sys.modules[module] = made = types.ModuleType(module)
        for attribute in attributes:
            kind = type(attribute, (), {"__module__": module})
            setattr(made, attribute, kind)
    storage_type = sys.modules["torch"].BFloat16Storage
    rebuild = sys.modules["torch._utils"]._rebuild_tensor_v2

    class Rebuilt:
        def __init__(self, key: str, array: np.ndarray) -> None:
            self.key, self.array = key, array

        def __reduce__(self) -> Any:
            strides = tuple(stride // 2 for stride in self.array.strides)
            return rebuild, (Storage(self), 0, self.array.shape, strides, False, {})

    class Storage:
        def __init__(self, tensor: Rebuilt) -> None:
            self.tensor = tensor

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: object) -> Any:
            if not isinstance(value, Storage):
                return None
            tensor = value.tensor
            return ("storage", storage_type, tensor.key, "cpu", tensor.array.size)

    def dump(file: IO[bytes]) -> None:
        state = {
            name: Rebuilt(str(key), array) for key, (name, array) in enumerate(tensors.items())
        }
        Pickler(file, protocol=2).dump(state)

    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("model/data.pkl", "w") as file:
            dump(file)
        for key, array in enumerate(tensors.values()):
            archive.writestr(f"model/data/{key}", array.tobytes())
        archive.writestr("model/version", "3\n")
    for module in names:
        del sys.modules[module]


@contextmanager
def measured(label: str, nbytes: int = 0) -> Iterator[list[str]]:
    """Prints how long the block took, and what it put into the list."""
    notes: list[str] = []
    start = time.perf_counter()
    yield notes
    seconds = time.perf_counter() - start
    speed = f"{nbytes / seconds / 1e9:6.2f} GB/s" if nbytes else ""
    print(f"  {label:<44}{seconds * 1e3:9.1f} ms {speed:<12} {'; '.join(notes)}".rstrip())


def size(path: Path) -> str:
    nbytes = path.stat().st_size
    return f"{nbytes / 1e6:.1f} MB" if nbytes > 1e6 else f"{nbytes / 1e3:.0f} kB"


def main() -> None:
    folder = Path("target/demo/models")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    weights = model()
    count = sum(array.size for array in weights.values())
    nbytes = 2 * count
    print(
        f"A model of {len(weights)} tensors, {count / 1e6:.1f} M bfloat16 parameters, in {folder}/"
    )

    print("\nOne API for every format (zero-copy where the format allows it):")
    plain = folder / "model.safetensors"
    native = folder / "model.zt"
    tensors = {name: ztensor.Tensor({"data": a}, dtype="bfloat16") for name, a in weights.items()}
    save_file(tensors, native, metadata={"made by": "examples/demo.py"}, checksum="crc32c")
    run("ztensor", "convert", native, plain)
    run("ztensor", "convert", native, folder / "model.gguf")
    run("ztensor", "convert", native, folder / "model.npz", "--dtype", "f32", "--drop-metadata")
    write_pytorch(weights, folder / "model.pt")
    for path in (native, plain, folder / "model.pt", folder / "model.gguf", folder / "model.npz"):
        with measured(
            f"{path.name:<20} {size(path):>9}  opened and read", path.stat().st_size
        ) as notes:
            reader = ztensor.open(path)
            found = reader.read(reader.keys(), copy=True)
        for name, array in weights.items():
            data = found[name].components["data"].view(np.uint16)
            # float32 has the bits of bfloat16 in its upper half.
            data = data.reshape(*array.shape, -1)[..., -1] if data.size > array.size else data
            assert np.array_equal(data.reshape(array.shape), array), (path, name)
    print("  all tensors equal, bit for bit")

    print("\nLossless compression of weights:")
    packed = folder / "model.z4ai.safetensors"
    with measured("z4ai pack model.safetensors", nbytes) as notes:
        stats = compress_file(plain, packed)
        notes.append(f"{size(plain)} -> {size(packed)}, {stats['saved_pct']:.1f} % smaller")
    one = "model.layers.2.mlp.up_proj.weight"
    with measured(
        f"one tensor of it ({weights[one].nbytes / 1e6:.1f} MB)", weights[one].nbytes
    ) as notes:
        with ZstnReader.open(packed) as reader:
            raw = reader.read_raw(one)
        notes.append("only this tensor is decoded")
    assert raw == weights[one].tobytes()
    with measured("z4ai unpack", nbytes) as notes:
        decompress_file(packed, folder / "restored.safetensors")
        notes.append("byte for byte the original")
    assert (folder / "restored.safetensors").read_bytes() == plain.read_bytes()

    print("\nA fine-tune is stored as what it changed:")
    tuned, delta = folder / "tuned.safetensors", folder / "tuned.z4dm"
    tuned_tensors = {
        n: ztensor.Tensor({"data": a}, dtype="bfloat16") for n, a in fine_tuned(weights).items()
    }
    save_file(tuned_tensors, folder / "tuned.zt")
    run("ztensor", "convert", folder / "tuned.zt", tuned)
    with measured("z4ai model-delta make", nbytes) as notes:
        made = model_delta.compress_file(tuned, plain, delta)
        notes.append(f"{size(tuned)} -> {size(delta)}, {made['ratio']:.0f} x smaller")
    with measured("applied to the packed base", nbytes) as notes:
        model_delta.decompress_file(delta, packed, folder / "again.safetensors")
        notes.append("byte for byte the fine-tune")
    assert (folder / "again.safetensors").read_bytes() == tuned.read_bytes()

    print("\nDamage is noticed:")
    damaged = folder / "damaged.zt"
    content = bytearray(native.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    cut = folder / "cut.safetensors"
    cut.write_bytes(plain.read_bytes()[:-1000])
    for path in (damaged, cut):
        try:
            reader = ztensor.open(path)
            reader.verify()
            raise AssertionError(f"{path} was not refused")
        except ztensor.ZTensorError as error:
            print(f"  {str(error).replace(str(folder) + '/', '')}")

    print("\nA report to look at in a browser:")
    report = folder / "model.safetensors.html"
    with measured("ztensor report model.safetensors", nbytes) as notes:
        run("ztensor", "report", plain)
        notes.append(f"{report} ({report.stat().st_size / 1e3:.0f} kB)")
    print("\nNext: ztensor info YOUR_MODEL, z4ai pack YOUR_MODEL; docs/ explains the rest.")


if __name__ == "__main__":
    main()
