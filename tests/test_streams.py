"""Tensors that come piece by piece, and frames of what comes through a pipe."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import z4ai
import ztensor

CODECS: list[Any] = [None, True, "fast", "balanced"]


@pytest.mark.parametrize("compress", CODECS)
@pytest.mark.parametrize("checksum", ["none", "sha256", "blake3"])
def test_pieces_of_every_kind(compress: Any, checksum: Any) -> None:
    array = np.random.default_rng(1).standard_normal((300, 1000)).astype(np.float32)
    with ztensor.Writer("m.zt") as writer:
        with writer.stream(
            "t", array.shape, np.float32, compress=compress, checksum=checksum
        ) as stream:
            assert stream.write(array[:10]) == array[:10].nbytes
            stream.write(array[10:20].tobytes())
            stream.write(memoryview(array[20:21]))
            stream.write(bytearray(array[21:22].tobytes()))
            stream.write(torch.from_numpy(array[22:30]))
            stream.write(np.asfortranarray(array[30:40]))
            stream.write(array[40:50].astype(">f4"))
            shutil.copyfileobj(io.BytesIO(array[50:].tobytes()), stream)
        writer.write_numpy("after", np.zeros(3))
    reader = ztensor.open("m.zt")
    assert (reader.read_numpy("t") == array).all()
    assert reader.keys() == ["t", "after"]
    assert reader.verify("t") == (checksum != "none" or isinstance(compress, str))


@pytest.mark.parametrize("compress", [None, True, 9])
@pytest.mark.parametrize("checksum", ["none", "sha256"])
def test_version_2(compress: Any, checksum: Any) -> None:
    array = np.random.default_rng(1).standard_normal((300, 1000)).astype(np.float32)
    with ztensor.Writer("m.zt", format="zt2", attributes={"step": 7}) as writer:
        with writer.stream("t", (300, 1000), "f32", compress=compress, checksum=checksum) as stream:
            stream.write(array[:10])
            shutil.copyfileobj(io.BytesIO(array[10:].tobytes()), stream)
        writer.write_numpy("after", np.zeros(3), compress=compress)
        writer.write_torch("bf16", torch.ones(5, dtype=torch.bfloat16))
        writer.tie("tied", "after")
    reader = ztensor.open("m.zt")
    assert reader.format == "zt2" and reader.attributes == {"step": 7}
    assert (reader.read_numpy("t") == array).all()
    with ztensor.safe_open("m.zt", "np") as file:
        assert (file.get_slice("t")[290:295] == array[290:295]).all()
    assert sorted(reader.keys()) == ["after", "bf16", "t", "tied"]
    assert all(reader.verify(name) for name in reader.keys())
    with ztensor.Writer("m.zt2") as writer:
        writer.write_numpy("a", np.zeros(3))
    assert ztensor.open("m.zt2").format == "zt2"


def test_version_2_refuses_what_it_has_not() -> None:
    with pytest.raises(ztensor.InvalidArgumentError, match="safetensors"):
        ztensor.Writer("m.zt", format="safetensors")  # type: ignore[arg-type]
    writer = ztensor.Writer("m.zt", format="zt2")
    with pytest.raises(ztensor.UnsupportedError, match="weight codec"):
        writer.stream("t", [4], "f32", compress="fast")
    with pytest.raises(ztensor.UnsupportedError, match="XXH3"):
        writer.stream("t", [4], "f32", checksum="crc32c")
    with writer.stream("t", [4], "f32") as stream:
        stream.write(bytes(16))
    writer.finish()
    with pytest.raises(ztensor.UnsupportedError, match="version 2"):
        ztensor.Writer.append("m.zt")


def test_what_is_refused() -> None:
    with (
        pytest.raises(ztensor.InvalidArgumentError, match="bytes of"),
        ztensor.Writer("m.zt") as writer,
        writer.stream("t", [4], "f32") as stream,
    ):
        stream.write(bytes(8))
    assert not Path("m.zt").exists()
    writer = ztensor.Writer("m.zt")
    with pytest.raises(ztensor.InvalidArgumentError):
        writer.stream("t", [-1], "f32")
    stream = writer.stream("t", [4], "f32")
    with pytest.raises(ztensor.InvalidArgumentError, match="float64"):
        stream.write(np.zeros(4))
    with pytest.raises(ztensor.InvalidArgumentError):
        stream.write(bytes(17))
    with pytest.raises(ztensor.InvalidArgumentError, match="stream"):
        writer.write_numpy("other", np.zeros(3))
    with pytest.raises(ztensor.InvalidArgumentError, match="stream"):
        writer.stream("another", [4], "f32")
    stream.write(bytes(16))
    stream.close()
    stream.close()
    with pytest.raises(ztensor.InvalidArgumentError, match="closed"):
        stream.write(b"")
    writer.finish()
    assert (ztensor.open("m.zt").read_numpy("t") == 0).all()


def test_an_exception_leaves_no_file() -> None:
    with (
        pytest.raises(KeyError),
        ztensor.Writer("m.zt") as writer,
        writer.stream("t", [4], "f32") as stream,
    ):
        stream.write(bytes(8))
        raise KeyError
    assert os.listdir() == []


KILLED = """
import sys, ztensor
if sys.argv[1] == "append":
    writer = ztensor.Writer.append("m.zt")
else:
    writer = ztensor.Writer("m.zt", format="zt2" if sys.argv[1] == "version 2" else "zt")
codec = {"none": None, "zstd": True, "z4ai": "fast"}[sys.argv[2]]
stream = writer.stream("t", [1 << 30], "uint8", compress=codec)
data = bytes(range(256)) * 4096
for _ in range(200):
    stream.write(data)
print("ready", flush=True)
while True:
    stream.write(data[:1000])
"""


@pytest.mark.parametrize(
    ("how", "codec"),
    [
        *((how, codec) for how in ("new", "append") for codec in ("none", "zstd", "z4ai")),
        ("version 2", "none"),
        ("version 2", "zstd"),
    ],
)
def test_a_killed_writer_changes_nothing(how: str, codec: str) -> None:
    with ztensor.Writer("m.zt") as writer:
        writer.write_numpy("old", np.arange(5))
    before = Path("m.zt").read_bytes()
    program = subprocess.Popen(
        [sys.executable, "-c", KILLED, how, codec], stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None and program.stdout.readline() == "ready\n"
    program.send_signal(signal.SIGKILL)
    program.wait()
    assert ztensor.open("m.zt").keys() == ["old"]
    assert (ztensor.open("m.zt").read_numpy("old") == np.arange(5)).all()
    if how != "append":
        assert Path("m.zt").read_bytes() == before
    # And the file can be written again.
    with ztensor.Writer.append("m.zt") as writer:
        writer.write_numpy("new", np.ones(3))
    assert ztensor.open("m.zt").keys() == ["old", "new"]


def numbers(count: int) -> bytes:
    return np.random.default_rng(2).standard_normal(count).astype(np.float32).tobytes()


def test_frames_of_file_objects() -> None:
    for count in (0, 1000, 8_000_000):
        data = numbers(count)
        out = io.BytesIO()
        size = z4ai.compress(io.BytesIO(data), out=out, dtype="fp32")
        assert size == len(out.getvalue())
        assert out.getvalue() == z4ai.compress(data, dtype="fp32")
    with pytest.raises(TypeError):
        z4ai.compress(io.BytesIO(b""))  # type: ignore[call-overload]
    with pytest.raises(ztensor.InvalidArgumentError):
        z4ai.compress(b"", out=io.BytesIO())  # type: ignore[call-overload]


# A process of its own, as a child's largest size is at least that of the process that starts it.
MEASURED = """
import resource, subprocess, sys
with open("data", "rb") as data, open("frame", "wb") as frame:
    code = subprocess.run(sys.argv[1:], stdin=data, stdout=frame).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def test_the_program_compresses_pipes_in_bounded_memory() -> None:
    data = numbers(80_000_000)
    Path("data").write_bytes(data)
    command = [sys.executable, "-m", "z4ai", "compress", "-", "--dtype", "fp32"]
    measured = subprocess.run(
        [sys.executable, "-c", MEASURED, *command], capture_output=True, text=True
    )
    code, memory = map(int, measured.stdout.split())
    assert code == 0, measured.stderr
    # The library itself takes some of it.
    assert memory < len(data), memory
    assert z4ai.decompress(Path("frame").read_bytes()) == data
