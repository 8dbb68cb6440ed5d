"""Version 2 of ``.zt``: Python, the command line, and the zTensor 2 package as the other side."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import DATA, ROOT, package_folder, same_bytes
from scipy import sparse

import ztensor
import ztensor.numpy
import ztensor.torch

REFERENCE = "ztensor==2.1.2"
WRITTEN = DATA / "zt2" / "written"


def reference(command: str, path: str | Path) -> dict[str, Any]:
    """What the reference implementation says, in a process of its own."""
    folder = package_folder(REFERENCE)
    if isinstance(folder, str):
        pytest.skip(f"the reference implementation of version 2: {folder}")
    script = ROOT / "tests" / "interop" / "ztensor_2.py"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, str(script), command, str(path)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def arrays() -> dict[str, Any]:
    return {
        "f32": np.arange(12, dtype=np.float32).reshape(3, 4),
        "f64": np.linspace(0, 1, 5),
        "bool": np.array([True, False, True]),
        "c64": np.array([1 + 2j], np.complex64),
        "scalar": np.array(7, np.int64),
        "empty": np.zeros((0, 3), np.uint16),
        "again": np.arange(12, dtype=np.float32).reshape(3, 4),
    }


@pytest.mark.parametrize("compression", [False, True, 9])
def test_files_come_back(compression: bool | int) -> None:
    given = arrays()
    metadata = {"step": 7, "nested": {"a": [1, None, b"x"]}}
    ztensor.numpy.save_file(given, "m.zt", metadata, compression, format="zt2")
    reader = ztensor.open("m.zt")
    assert reader.format == "zt2" and reader.attributes == metadata
    loaded = ztensor.numpy.load_file("m.zt")
    assert all(same_bytes(loaded[name], array) for name, array in given.items())
    data = ztensor.numpy.save(given, metadata, compression, format="zt2")
    assert data == Path("m.zt").read_bytes()
    ztensor.numpy.save_file(given, "m.zt2")
    assert ztensor.open("m.zt2").format == "zt2"


def test_torch_and_scipy() -> None:
    tensors = {
        "bf16": torch.arange(8, dtype=torch.bfloat16),
        "fp8": torch.arange(4, dtype=torch.float32).to(torch.float8_e4m3fn),
        "csr": torch.eye(3).to_sparse_csr(),
        "coo": torch.eye(3).to_sparse_coo().coalesce(),
    }
    ztensor.torch.save_file(tensors, "m.zt", format="zt2")
    loaded = ztensor.torch.load_file("m.zt")
    assert torch.equal(loaded["bf16"], tensors["bf16"])
    assert torch.equal(loaded["fp8"].view(torch.uint8), tensors["fp8"].view(torch.uint8))
    assert torch.equal(loaded["csr"].to_dense(), torch.eye(3))
    assert torch.equal(loaded["coo"].to_dense(), torch.eye(3))
    # Narrow indices, as the reference writes them.
    reader = ztensor.open(WRITTEN / "sparse-csr.zt")
    matrix = reader["u32.f32"].scipy()
    assert isinstance(matrix, sparse.csr_array) and matrix.shape == (4, 4)
    assert np.array_equal(matrix.toarray(), reader["u32.f32"].torch().to_dense().numpy())


def test_what_it_cannot_hold_is_refused() -> None:
    x = {"x": np.zeros(2)}
    with pytest.raises(ztensor.InvalidArgumentError, match="zstd"):
        ztensor.numpy.save_file(x, "m.zt", compression="default", format="zt2")
    with pytest.raises(ztensor.InvalidArgumentError, match="XXH3"):
        ztensor.numpy.save_file(x, "m.zt", checksum="sha256", format="zt2")
    with pytest.raises(ztensor.UnsupportedError, match=r"zt2\.Name"):
        ztensor.numpy.save_file({"": np.zeros(2)}, "m.zt", format="zt2")
    assert not Path("m.zt").exists()


def test_edits_are_refused() -> None:
    ztensor.numpy.save_file({"x": np.zeros(2)}, "m.zt", format="zt2")
    before = Path("m.zt").read_bytes()
    with pytest.raises(ztensor.UnsupportedError, match="version 2"):
        ztensor.remove_tensors("m.zt", "n.zt", ["x"])
    with pytest.raises(ztensor.UnsupportedError, match="ztensor convert"):
        ztensor.Writer.append("m.zt")
    assert Path("m.zt").read_bytes() == before


def command(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "ztensor", *arguments], capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def test_convert_and_verify_canonical_form() -> None:
    ztensor.numpy.save_file({"b": np.arange(4), "a": np.zeros(3)}, "one.zt", {"step": "1"})
    assert command("convert", "one.zt", "two.zt", "--format", "zt2", "--canonical")[0] == 0
    code, said = command("verify", "--canonical", "two.zt")
    assert code == 0 and "canonical" in said, said
    ztensor.convert("two.zt", "back.zt", format="zt")
    assert ztensor.open("back.zt").format == "zt"
    loaded, original = ztensor.numpy.load_file("back.zt"), ztensor.numpy.load_file("one.zt")
    assert all(same_bytes(loaded[name], original[name]) for name in original)
    # Another order of the same tensors gives the same bytes.
    ztensor.numpy.save_file({"a": np.zeros(3), "b": np.arange(4)}, "other.zt", {"step": "1"})
    ztensor.convert("other.zt", "again.zt", format="zt2", canonical=True)
    assert Path("again.zt").read_bytes() == Path("two.zt").read_bytes()
    # Not canonical: the rule and the byte.
    ztensor.convert("one.zt", "plain.zt", format="zt2")
    code, said = command("verify", "--canonical", "plain.zt")
    assert code == 1 and "byte 4096:" in said and "[canonical rule 2: alignment]" in said, said
    assert command("verify", "--canonical", "one.zt")[0] != 0
    assert "--format zt2" in command("convert", "one.zt", "x.zt", "--canonical")[1]
    assert "z4ai" in command("convert", "one.zt", "x.zt", "--format=zt2", "--effort=fast")[1]


def test_damage_is_noticed() -> None:
    ztensor.numpy.save_file({"x": np.arange(1000)}, "m.zt", format="zt2")
    data = bytearray(Path("m.zt").read_bytes())
    data[5000] ^= 1
    Path("m.zt").write_bytes(data)
    code, said = command("verify", "m.zt")
    assert code == 1 and "zt2.Digest" in said, said


def parts_of(path: str | Path) -> dict[str, dict[str, str]]:
    reader = ztensor.open(path)
    found: dict[str, dict[str, str]] = {}
    for name in reader.keys():
        tensor = reader[name]
        found[name] = {
            role: hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
            for role, array in tensor.components.items()
        }
    return found


def same_parts(path: str | Path, said: dict[str, Any]) -> None:
    ours = parts_of(path)
    theirs = {
        name: {role: part[2] for role, part in tensor["parts"].items()}
        for name, tensor in said["tensors"].items()
    }
    assert ours == theirs


@pytest.mark.parametrize("compression", [False, True])
def test_the_reference_reads_our_files(compression: bool) -> None:
    given: dict[str, Any] = arrays()
    given["csr"] = sparse.csr_array(np.eye(4, dtype=np.float32))
    given["coo"] = sparse.coo_array(np.eye(3))
    ztensor.numpy.save_file(given, "m.zt", {"step": 7, "lr": 0.5}, compression, format="zt2")
    said = reference("read", "m.zt")
    assert said["undigested"] == 0 and said["attributes"] == {"step": 7, "lr": 0.5}
    assert said["tensors"]["csr"]["layout"] == "zt.sparse_csr/1"
    same_parts("m.zt", said)


@pytest.mark.parametrize("compress", [None, True])
def test_the_reference_reads_what_is_streamed(compress: bool | None) -> None:
    with ztensor.Writer("m.zt", format="zt2") as writer:
        for name, array in arrays().items():
            with writer.stream(name, array.shape, array.dtype, compress=compress) as stream:
                stream.write(array)
    said = reference("read", "m.zt")
    assert said["undigested"] == 0
    same_parts("m.zt", said)


@pytest.mark.parametrize("name", ["quant-group.zt", "mx.zt", "dtypes.zt", "sparse-coo.zt"])
def test_the_reference_reads_what_we_convert(name: str) -> None:
    original = reference("read", WRITTEN / name)
    for version, options in [("zt2", {"canonical": True}), ("zt2", {"compression": 3})]:
        ztensor.convert(WRITTEN / name, "m.zt", format=version, overwrite=True, **options)  # type: ignore[arg-type]
        said = reference("read", "m.zt")
        assert (
            said["tensors"] == original["tensors"] and said["attributes"] == original["attributes"]
        )


def test_we_read_files_of_the_reference() -> None:
    said = reference("make", "theirs.zt")
    assert ztensor.open("theirs.zt").attributes == {"step": 7, "lr": 0.5, "tags": ["a", "b"]}
    same_parts("theirs.zt", said)
    ztensor.convert("theirs.zt", "one.zt", format="zt")
    ztensor.convert("one.zt", "two.zt", format="zt2")
    assert reference("read", "two.zt")["tensors"].keys() == said["tensors"].keys()
