"""Types: the stubs describe the extension, and strict users are satisfied."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from conftest import ROOT

USER = """
from pathlib import Path

import numpy as np
import torch

import z4ai
import z4ai.chunked
import ztensor
from ztensor.distributed import ZTensorReader, ZTensorWriter, consolidate, load_tensor_parallel
from ztensor.torch import load_file, load_model, save_file

save_file({"x": torch.zeros(3)}, Path("x.zt"), {"a": "b"}, compression=3, progress=True)
tensors: dict[str, torch.Tensor] = load_file("x.zt", device="cpu", copy=True)
save_file(tensors, "x.safetensors", format="safetensors", checksum="none")
with ztensor.safe_open("x.safetensors", "pt", backend="pread") as opened:
    meta_of: ztensor.TensorMeta = opened.get_tensor_meta("x")
    loader: ztensor.PrefetchLoader = opened.prefetch({"x": slice(0, 1)})
with ztensor.Reader("x.zt") as reader:
    names: list[str] = reader.keys()
    one: ztensor.Tensor = reader["x"]
    many: dict[str, ztensor.Tensor] = reader.read(names)
    array: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = reader.read_numpy("x")
    tensor: torch.Tensor = reader.read_torch("x", device="cpu")
    meta: ztensor.TensorMetadata = reader.metadata("x")
    metas: list[ztensor.TensorMetadata] = reader.metadata(["x"])
    shape: list[int] = meta.shape
    checked: bool = reader.verify("x")
    counts: ztensor.Verification = reader.verify()
    reader.read_into({"x": torch.zeros(3)})
with ztensor.Writer("y.zt") as writer:
    writer.write_numpy("x", array, compress=True, checksum="crc32c")
    writer.write("y", one)
missing, unexpected = load_model(torch.nn.Linear(1, 1), "x.zt")
blob: bytes = z4ai.compress(bytearray(b"x"), dtype="bf16", effort="fast", shape=(1, 2), level=3)
data: bytes = z4ai.decompress(memoryview(blob), threads=1)
filled: bytearray = z4ai.decompress(blob, out=bytearray(3))
back: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = z4ai.decompress_array(
    z4ai.compress_array(array)
)
back_too: torch.Tensor = z4ai.decompress_array(z4ai.compress(tensor), framework="torch")
difference: bytes = z4ai.compress_delta(array, reference=back, dtype=None)
data = z4ai.decompress_delta(difference, array) + z4ai.chunked.decompress(blob)
is_frame: bool = z4ai.peek_is_z4ai(blob)
storage = (ZTensorWriter("c", compression="fast", checksum="sha256"), ZTensorReader(Path("c")))
files: list[str] = consolidate("c", Path("x.zt"), max_shard_size="5GB", progress=True)
parts: dict[str, torch.Tensor] = load_tensor_parallel("x.zt", {"*.up": 0, "*": None}, 0, 2)
"""


def run(*command: str) -> None:
    outcome = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_the_package_is_typed() -> None:
    assert files("ztensor").joinpath("py.typed").is_file()
    assert files("ztensor").joinpath("_native.pyi").is_file()
    assert files("z4ai").joinpath("py.typed").is_file()


def test_the_stub_describes_the_extension() -> None:
    pytest.importorskip("mypy")
    run("mypy.stubtest", "ztensor._native", "--ignore-missing-stub")


def test_strict_users() -> None:
    pytest.importorskip("mypy")
    Path("user.py").write_text(USER)
    # Torch takes minutes to look at: share what `make lint` has already learned.
    run("mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache"), "user.py")


WRONG = """
import torch
from ztensor.torch import load_file, save_file
from ztensor import safe_open

save_file({}, "x.zt", compression="turbo")
save_file({}, "x.zt", checksum="md5")
save_file({}, "x.zt", format="pt")
load_file("x.zt", backend="magic")
safe_open("x.zt", framework="caffe")
"""


def test_modes_that_do_not_exist_are_found_by_type_checkers() -> None:
    pytest.importorskip("mypy")
    Path("wrong.py").write_text(WRONG)
    command = [sys.executable, "-m", "mypy", "--strict", "wrong.py"]
    command += ["--cache-dir", str(ROOT / ".mypy_cache")]
    outcome = subprocess.run(command, capture_output=True, text=True)
    errors = [line for line in outcome.stdout.splitlines() if "error:" in line]
    assert len(errors) == 5 and all("incompatible type" in line for line in errors), outcome.stdout
