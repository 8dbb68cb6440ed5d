"""The z4ai package: frames of buffers, old frames, wrong calls, memory."""

from __future__ import annotations

import array
import ctypes
import hashlib
import json
import mmap
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from z4ai_data import EFFORTS, V1, bf16_bytes, weights

import z4ai
import z4ai.chunked as ck
import ztensor

MANIFEST = json.loads((V1 / "manifest.json").read_text())


# --- the examples of the documentation, as printed


def test_buffers_as_documented() -> None:
    buffer = weights(5000).tobytes()
    blob = z4ai.compress(buffer, dtype="fp32")
    data = z4ai.decompress(blob)  # byte-identical to `buffer`
    assert data == buffer
    out = bytearray(len(data))
    z4ai.decompress(blob, out=out)
    assert out == buffer


def test_efforts_as_documented() -> None:
    buffer = bf16_bytes(300_000)
    blob = z4ai.compress(buffer, dtype="bf16", effort="fast")
    assert z4ai.decompress(blob) == buffer
    blob = z4ai.compress(buffer, dtype="bf16")
    default = len(blob)
    assert z4ai.decompress(blob) == buffer
    blob = z4ai.compress(buffer, dtype="bf16", effort="max")
    assert z4ai.decompress(blob) == buffer
    assert len(blob) <= default


def test_the_names_are_there() -> None:
    expected = """compress decompress compress_ndarray decompress_ndarray compress_array
        decompress_array compress_delta decompress_delta delta model_delta peek_is_z4ai
        dtype_width DTYPE_WIDTHS DEFAULT_LEVEL DEFAULT_ESCALATE_LEVEL __version__"""
    assert sorted(z4ai.__all__) == sorted(expected.split())
    lazily = "enable_hf disable_hf is_enabled load_file save_file safetensors chunked".split()
    for name in [*z4ai.__all__, *lazily]:
        assert hasattr(z4ai, name), name
        assert name in dir(z4ai), name
    with pytest.raises(AttributeError, match="module 'z4ai' has no attribute 'nothing'"):
        _ = z4ai.nothing


def test_importing_everything_hides_nothing() -> None:
    names: dict[str, Any] = {}
    exec("from z4ai import *", names)
    assert names["compress"] is z4ai.compress and "format" not in names


def test_widths() -> None:
    expected: dict[str | None, int] = {None: 1}
    for width, names in {
        1: "raw uint8 int8 bool fp8_e4m3 fp8_e5m2",
        2: "bf16 fp16 float16 int16 uint16",
        4: "fp32 float32 int32 uint32",
        8: "fp64 float64 int64 uint64",
    }.items():
        expected |= dict.fromkeys(names.split(), width)
    assert expected == z4ai.DTYPE_WIDTHS
    for dtype, width in expected.items():
        assert z4ai.dtype_width(dtype) == width
    for unknown in ("x", "bfloat17", 3, []):
        with pytest.raises(ValueError, match=r"unknown dtype .* bf16, .*uint64"):
            z4ai.dtype_width(unknown)  # type: ignore[arg-type]


# --- buffers


@pytest.mark.parametrize("dtype", list(z4ai.DTYPE_WIDTHS))
@pytest.mark.parametrize("effort", EFFORTS)
def test_every_dtype_and_effort(dtype: str | None, effort: str | None) -> None:
    whole = weights(30_000).tobytes()
    for size in (0, 1, 7, 4096, 4099, len(whole)):
        blob = z4ai.compress(whole[:size], dtype=dtype, effort=effort)
        assert isinstance(blob, bytes)
        assert z4ai.decompress(blob) == whole[:size]
        assert len(blob) <= size + 2600


def test_every_kind_of_buffer(tmp_path: Path) -> None:
    raw = weights(2000).tobytes()
    path = tmp_path / "raw"
    path.write_bytes(raw)
    expected = z4ai.compress(raw, dtype="fp32")
    numbers = array.array("f", raw)
    inside = bytearray(raw)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        for data in (
            bytearray(raw),
            memoryview(raw),
            memoryview(b"xx" + raw)[2:],
            memoryview(bytearray(raw)).cast("d"),
            memoryview(raw + raw)[: len(raw)].cast("B", (10, len(raw) // 10)),
            numbers,
            mapped,
            (ctypes.c_uint8 * len(raw)).from_buffer(inside),
        ):
            assert z4ai.compress(data, dtype="fp32") == expected
    strided = memoryview(bytes(byte for value in raw for byte in (value, 0)))[::2]
    assert z4ai.compress(strided, dtype="fp32") == expected
    for blob in (bytearray(expected), memoryview(expected), np.frombuffer(expected, np.uint8)):
        assert z4ai.decompress(blob) == raw
        assert z4ai.peek_is_z4ai(blob)


def test_wrong_types() -> None:
    for wrong in ("text", 5, None, [1, 2], {}, 1.5, object()):
        name = type(wrong).__name__
        with pytest.raises(TypeError, match=f"bytes-like, a NumPy array or a torch tensor.*{name}"):
            z4ai.compress(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=name):
            z4ai.decompress(wrong)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match=name):
            z4ai.peek_is_z4ai(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=name):
            z4ai.compress_array(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=name):
            z4ai.compress_delta(b"", wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            ck.compress(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        z4ai.compress_array(b"bytes")
    with pytest.raises(TypeError):
        z4ai.compress(b"", threads=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        z4ai.compress(b"", level="3")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        z4ai.compress(b"", level=True)
    with pytest.raises(TypeError, match="Python objects"):
        z4ai.compress(np.array([object()]))
    with pytest.raises(TypeError, match="to_dense"):
        z4ai.compress(torch.eye(3).to_sparse())


def test_wrong_shapes_and_tensors_without_data() -> None:
    for shape in ("ab", [1.5, 2], 4):
        with pytest.raises(TypeError, match="shape is a list of sizes"):
            z4ai.compress(bytes(8), dtype="fp32", shape=shape)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="meta device has no data"):
        z4ai.compress(torch.empty(3, device="meta"))


def test_wrong_values() -> None:
    for call in (z4ai.compress, ck.compress):
        with pytest.raises(ValueError, match=r"unknown dtype 'nope': choose one of raw, .*uint64"):
            call(b"", dtype="nope")
    with pytest.raises(ValueError, match="unknown effort 'turbo': choose one of fast, default, ba"):
        z4ai.compress(b"", effort="turbo")
    with pytest.raises(ValueError, match="unknown effort"):
        z4ai.compress(np.zeros(3), effort="MAX")
    for level in (0, -5, 23, 1 << 40):
        with pytest.raises(ValueError, match="1 to 22"):
            z4ai.compress(b"", level=level)
    for threads in (-1, 1 << 40):
        with pytest.raises(ValueError, match="threads"):
            z4ai.compress(b"", threads=threads)
        with pytest.raises(ValueError, match="threads"):
            z4ai.decompress(z4ai.compress(b""), threads=threads)
    with pytest.raises(ValueError, match="not a tensor of shape"):
        z4ai.compress(bytes(12), dtype="fp32", shape=(2, 2))
    with pytest.raises(ValueError, match="negative"):
        z4ai.compress(bytes(12), dtype="fp32", shape=(-1, -3))
    with pytest.raises(ValueError, match="chunk_size"):
        ck.compress(b"", chunk_size=0)


def test_levels_shapes_and_searching() -> None:
    text = json.dumps([{"layer": n, "heads": n % 7} for n in range(20_000)]).encode()
    small, large = (z4ai.compress(text, level=level) for level in (19, 1))
    assert len(small) < len(large)
    assert z4ai.compress(text) == z4ai.compress(text, level=z4ai.DEFAULT_LEVEL)
    assert z4ai.decompress(small) == z4ai.decompress(large) == text
    assert z4ai.DEFAULT_ESCALATE_LEVEL is None

    scales = np.where(np.arange(96) % 3 == 0, 0.1, 3.0)
    columns = (weights(2000 * 96).reshape(2000, 96) * scales).astype(ml_dtypes.bfloat16)
    raw = columns.view(np.uint16).tobytes()
    searched = z4ai.compress(raw, dtype="bf16", shape=columns.shape)
    plain = z4ai.compress(raw, dtype="bf16", shape=columns.shape, auto=False)
    assert len(searched) < 0.98 * len(plain)
    assert z4ai.decompress(searched) == z4ai.decompress(plain) == raw
    assert len(z4ai.compress(columns)) <= len(searched) + 40


def test_frames_do_not_depend_on_threads() -> None:
    raw = bf16_bytes(2_000_000)
    for effort in ("fast", "default"):
        frames = {z4ai.compress(raw, dtype="bf16", effort=effort, threads=n) for n in (0, 1, 2, 5)}
        assert len(frames) == 1
        for threads in (0, 1, 3):
            assert z4ai.decompress(next(iter(frames)), threads=threads) == raw


def test_one_thread_means_one() -> None:
    code = """
import os, threading, time, z4ai
raw = os.urandom(1 << 20) * 24
most = 0
def watch():
    global most
    while not done:
        most = max(most, len(os.listdir("/proc/self/task")))
        time.sleep(0.0005)
done = False
watcher = threading.Thread(target=watch)
watcher.start()
blob = z4ai.compress(raw, dtype="fp32", threads=1)
for _ in range(20):
    z4ai.decompress(blob, threads=1)
done = True
watcher.join()
assert most == 2, most
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | ONE_BLAS_THREAD)


ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def test_other_threads_run_meanwhile() -> None:
    raw = np.random.default_rng(0).integers(0, 50, 20_000_000, dtype=np.uint8)
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()

    def ticks_meanwhile() -> int:
        before = ticks
        z4ai.compress(raw, level=12, threads=1)
        return ticks - before

    # Beside other busy processes the thread may get no turn during one call; with the interpreter
    # lock held it would get none during any.
    try:
        assert any(ticks_meanwhile() > 5 for _ in range(50))
    finally:
        done.set()
        thread.join()


def test_input_that_changes_meanwhile_gives_a_valid_frame() -> None:
    data = np.zeros(8_000_000, np.uint8)
    done = threading.Event()
    random = np.random.default_rng(0)

    def change() -> None:
        while not done.is_set():
            data[random.integers(0, data.size, 100_000)] = random.integers(0, 255)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for dtype in ("fp32", "bf16", None):
            for _ in range(3):
                blob = z4ai.compress(memoryview(data), dtype=dtype)
                assert len(z4ai.decompress(blob)) == data.size
            reference = bytes(data.size)
            blob = z4ai.compress_delta(memoryview(data), reference, dtype=dtype)
            assert len(z4ai.decompress_delta(blob, reference)) == data.size
    finally:
        done.set()
        thread.join()


# --- out


def test_out_is_filled_in_place() -> None:
    numbers = weights(3000)
    raw = numbers.tobytes()
    for blob in (z4ai.compress(raw, dtype="fp32"), z4ai.compress(numbers)):
        for out in (
            bytearray(len(raw)),
            memoryview(bytearray(len(raw))),
            np.empty(3000, np.float32),
            np.empty((30, 100), np.float32),
            array.array("d", [0.0] * 1500),
        ):
            assert z4ai.decompress(blob, out=out) is out
            assert bytes(memoryview(out).cast("B") if hasattr(out, "cast") else out) == raw
        tensor = torch.empty(3000)
        assert z4ai.decompress(blob, out=tensor) is tensor
        assert tensor.numpy().tobytes() == raw
        half = torch.empty(6000, dtype=torch.bfloat16)
        z4ai.decompress(blob, out=half)
        assert half.view(torch.uint8).numpy().tobytes() == raw
        brain = np.empty(6000, ml_dtypes.bfloat16)
        z4ai.decompress(blob, out=brain)
        assert brain.view(np.uint8).tobytes() == raw
        long = bytearray(b"\xaa" * (len(raw) + 5))
        assert z4ai.decompress(blob, out=long) is long
        assert long == raw + b"\xaa" * 5
    empty = bytearray(3)
    assert z4ai.decompress(z4ai.compress(b""), out=empty) == bytes(3)
    assert z4ai.decompress(z4ai.compress(b""), out=bytearray()) == b""


def test_out_must_fit() -> None:
    blob = z4ai.compress(bytes(100))
    with pytest.raises(ValueError, match="out has 99 bytes, 100 are needed"):
        z4ai.decompress(blob, out=bytearray(99))
    for out in (
        b"x" * 100,
        memoryview(bytes(100)),
        memoryview(bytearray(200))[::2],
        np.empty(200, np.uint8)[::2],
        np.broadcast_to(np.uint8(0), 100),
        torch.empty(200, dtype=torch.uint8)[::2],
    ):
        with pytest.raises(ValueError, match="out must be"):
            z4ai.decompress(blob, out=out)
    for wrong in ("text", 5, [0] * 100):
        with pytest.raises(TypeError, match="out must be a writable buffer"):
            z4ai.decompress(blob, out=wrong)


def test_decoding_over_the_frame_itself() -> None:
    raw = bytes(range(256)) * 40
    blob = z4ai.compress(raw)
    both = bytearray(blob) + bytearray(len(raw))
    z4ai.decompress(memoryview(both)[: len(blob)], out=both)
    assert both[: len(raw)] == raw


# --- frames of earlier versions, and bad ones


@pytest.mark.parametrize("sample", MANIFEST["samples"], ids=lambda sample: sample["name"])
def test_frames_of_version_1(sample: dict[str, Any]) -> None:
    blob = (V1 / sample["blob"]).read_bytes()
    if sample["kind"] in ("ZSTN", "Z4DM"):
        return
    if "reference" in sample:
        reference = (V1 / sample["reference"]).read_bytes()
        data = z4ai.decompress_delta(blob, reference)
        assert z4ai.delta.peek_is_delta(blob)
    else:
        assert z4ai.peek_is_z4ai(blob)
        data = z4ai.decompress(blob)
        out = bytearray(len(data))
        z4ai.decompress(blob, out=out)
        assert out == data
        assert ck.decompress(blob) == data
    assert hashlib.sha256(data).hexdigest() == sample["sha256_original"]
    if "np_dtype" in sample:
        for call in (z4ai.decompress_array, z4ai.decompress_ndarray):
            back = call(blob)
            assert back.dtype.str == sample["np_dtype"] and list(back.shape) == sample["shape"]
            assert back.tobytes() == data and back.flags.writeable


@pytest.mark.parametrize("sample", MANIFEST["hostile"], ids=lambda sample: sample["blob"])
def test_hostile_frames(sample: dict[str, Any]) -> None:
    blob = (V1 / sample["blob"]).read_bytes()
    for call in (z4ai.decompress, z4ai.decompress_array, ck.decompress):
        with pytest.raises(ValueError):
            call(blob)


def test_every_damage_is_a_value_error() -> None:
    random = np.random.default_rng(1)
    data = weights(3000).reshape(30, 100)
    for blob in (z4ai.compress(data), z4ai.compress(data, effort="fast"), z4ai.compress(b"abc")):
        for size in {*range(0, min(len(blob), 200)), *random.integers(0, len(blob), 50)}:
            with pytest.raises(ValueError):
                z4ai.decompress(blob[: int(size)])
        for _ in range(400):
            damaged = bytearray(blob)
            damaged[random.integers(len(blob))] ^= 1 << random.integers(8)
            for call in (z4ai.decompress, z4ai.decompress_array):
                with pytest.raises(ValueError):
                    call(damaged)
        with pytest.raises(ValueError):
            z4ai.decompress(blob + b"\0")
    old = (V1 / "array_f4_40x30.blob").read_bytes()
    for position in range(60):
        for bit in range(8):
            damaged = bytearray(old)
            damaged[position] ^= 1 << bit
            for call in (z4ai.decompress, z4ai.decompress_array):
                try:
                    call(damaged)
                except ValueError:
                    continue


def test_array_types_that_are_none() -> None:
    """Old frames have no checksum: their type strings can say anything."""
    old = bytearray((V1 / "array_f4_40x30.blob").read_bytes())
    at = old.index(b"<f4")
    for name in (b"|O8", b"<O8", b"<f8", b"<x4", b"\xff\xfe4", b"[1]", b"[(]", b"foo", b"   "):
        blob = bytes(old[:at] + name + old[at + 3 :])
        with pytest.raises(ValueError):
            z4ai.decompress_array(blob)


def test_what_is_no_frame() -> None:
    for blob in (b"", b"Z", b"Z4AI", b"nothing at all", bytes(100)):
        assert not z4ai.peek_is_z4ai(blob)
        with pytest.raises(ValueError, match="not a z4ai frame"):
            z4ai.decompress(blob)
    with pytest.raises(ValueError, match=r"z4ai.safetensors.decompress_bytes"):
        z4ai.decompress(b"ZSTN\x04" + bytes(40))
    with pytest.raises(ValueError, match=r"z4ai.model_delta.decompress"):
        z4ai.decompress(b"Z4DM\x02" + bytes(40))
    assert issubclass(ztensor.CorruptError, ValueError)


# --- memory


def peak(code: str) -> int:
    """Anonymous memory that a script took at most beyond what `baseline()` saw, in bytes."""
    script = f"""
import numpy as np, os, re, threading, time, z4ai, z4ai.chunked
def anonymous():
    text = open("/proc/self/smaps_rollup").read()
    return int(re.search(r"Anonymous:\\s+(\\d+)", text)[1]) * 1024
most, done = 0, False
def watch():
    global most
    while not done:
        most = max(most, anonymous())
        time.sleep(0.002)
def baseline():
    global start, watcher
    start = anonymous()
    watcher = threading.Thread(target=watch)
    watcher.start()
{code}
done = True
watcher.join()
print(max(most, anonymous()) - start)
"""
    command = [sys.executable, "-c", script]
    outcome = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(outcome.stdout)


def test_memory_that_calls_take() -> None:
    size = 64_000_000
    make = f"raw = np.random.default_rng(0).standard_normal({size // 4}, dtype=np.float32)\n"
    slack = 24_000_000  # threads, scratch, the interpreter's own
    # The frame, and the bytes object it becomes.
    assert peak(make + "baseline()\nblob = z4ai.compress(raw)") < 2 * size + slack
    frame = make + "blob = z4ai.compress(raw)\n"
    assert peak(frame + "baseline()\nback = z4ai.decompress(blob)") < size + slack
    assert peak(frame + "baseline()\nback = z4ai.decompress_array(blob)") < size + slack
    assert peak(frame + "baseline()\nz4ai.decompress(blob, out=raw)") < slack


def test_claims_are_no_reason_to_allocate() -> None:
    """A frame of a few bytes that claims much is refused, or takes what it truly holds."""
    blob = bytearray(z4ai.compress(bytes(1 << 20)))
    assert len(blob) < 300
    blob[16:24] = (1 << 60).to_bytes(8, "little")
    with pytest.raises(ValueError):
        z4ai.decompress(blob)


def test_importing_loads_no_framework() -> None:
    code = (
        "import sys, z4ai, z4ai.chunked, z4ai.delta;"
        "heavy = {'torch', 'safetensors.torch', 'ml_dtypes', 'transformers'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_control_c_stops_compressing() -> None:
    # Threads never take turns by themselves, so the signal is sent when the call has released the
    # lock of the interpreter; the profiler tells whether the call raised or returned.
    code = """
import os, signal, sys, threading
import numpy as np, z4ai
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
random = np.random.default_rng(0)
words = random.integers(97, 123, (500, 6), dtype=np.uint8)
raw = words[random.integers(0, 500, 20_000_000)]
begun, ends = threading.Event(), []
def interrupt():
    begun.wait()
    os.kill(os.getpid(), signal.SIGINT)
def profile(frame, event, function):
    if event == "c_call" and function.__name__ == "z4ai_compress":
        begun.set()
    elif event in ("c_return", "c_exception") and function.__name__ == "z4ai_compress":
        ends.append(event)
threading.Thread(target=interrupt, daemon=True).start()
sys.setswitchinterval(1e6)
sys.setprofile(profile)
try:
    z4ai.compress(raw, level=22)
    threading.Event().wait(60)
except KeyboardInterrupt:
    sys.setprofile(None)
    sys.exit(7 if ends == ["c_exception"] else 8)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 7, done.stderr


def test_every_element_type_is_compressed_as_the_table_says():
    from z4ai import _memory
    from ztensor import _dtypes

    for element in _dtypes.ELEMENTS:
        if element.numpy is None or element.bits % 8:
            continue
        array = np.zeros(4, _dtypes.numpy_dtype(element))
        assert _memory.data_of(array, None).kind == element.codec, element.name
