"""``safe_open`` against that of safetensors: calls, indices, errors; and what goes beyond it."""

from __future__ import annotations

import io
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import z4ai
import ztensor
import ztensor.numpy
import ztensor.torch
from ztensor import safe_open

TENSORS = {
    "b": torch.arange(24, dtype=torch.float32).reshape(4, 3, 2),
    "a": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "scalar": torch.tensor(3.0),
    "empty": torch.empty((0, 5), dtype=torch.float16),
}


@pytest.fixture(params=["plain", "packed", "compressed", "zt"])
def file(request: pytest.FixtureRequest) -> str:
    """The same tensors in a file that is mapped, and in files that are decoded."""
    if request.param == "plain":
        safetensors.torch.save_file(TENSORS, "x.safetensors", {"k": "v"})
        return "x.safetensors"
    if request.param == "packed":
        z4ai.save_file(TENSORS, "x.zstn", {"k": "v"})
        return "x.zstn"
    compression = "default" if request.param == "compressed" else False
    ztensor.torch.save_file(TENSORS, "x.zt", {"k": "v"}, compression)
    return "x.zt"


INDICES: list[Any] = [
    ..., (), slice(None), 0, -1, slice(1, 3), slice(None, None, 2), slice(3, 1), slice(0, 0),
    slice(None, 20), slice(-20, None), (0, 1), (slice(1, 3), -1), (..., 0), (slice(None), slice(1)),
    (0, ..., 1), (1, 2, 1), (slice(None), slice(None), slice(None, None, 2)), (..., ...),
    None, True, False, [], [0], [0, 2], torch.tensor([2]), torch.tensor(2), torch.tensor([0, 2]),
    torch.tensor([True, False, True, False]), np.array([2]), np.int64(2), (None, 0), (0, None),
    (..., None), (slice(None), []), (slice(None), torch.tensor([2])), (slice(None), True),
    (True, 0), torch.tensor([[0, 1], [1, 2]]), (torch.tensor([0, 1]), torch.tensor([0, 1])),
    [True, False, True, False], (0, [0, 1]), range(2), (None, None), (slice(1, 3), [0, 2]),
]  # fmt: skip


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_indices_give_what_safetensors_gives(framework: Any, file: str) -> None:
    """A one-element index tensor once lost its dimension, silently."""
    safetensors.torch.save_file(TENSORS, "reference.safetensors")
    compared = 0
    with (
        safe_open(file, framework) as ours,
        safetensors.safe_open("reference.safetensors", framework) as theirs,
    ):
        for name in ("b", "scalar"):
            for index in INDICES:
                try:
                    expected = theirs.get_slice(name)[index]
                except Exception:
                    continue  # a refusal may be lifted
                found = ours.get_slice(name)[index]
                assert found.shape == expected.shape, (name, index)
                assert found.dtype == expected.dtype
                assert np.array_equal(np.asarray(found), np.asarray(expected)), (name, index)
                compared += 1
    assert compared > (40 if framework == "pt" else 15)


def test_refusals_that_are_lifted(file: str) -> None:
    array = TENSORS["b"].numpy()
    with safe_open(file, "np") as opened:
        part = opened.get_slice("b")
        for index in (
            [0, 2],
            None,
            np.array([1, 1]),
            slice(None, 20),
            slice(None, None, -1),
            (slice(2, None, -1), 0),
            torch.tensor([0, 2]),
            [True, False, True, False],
        ):
            expected = array[np.asarray(index) if isinstance(index, torch.Tensor) else index]
            assert np.array_equal(part[index], expected), index


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_lists_read_the_rows_between_their_ends(
    framework: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = torch.arange(400.0).reshape(100, 4)
    ztensor.torch.save_file({"x": array}, "x.zt", compression="default")
    rows: list[tuple[int, int]] = []
    read = ztensor.PySafeSlice._read
    monkeypatch.setattr(
        ztensor.PySafeSlice,
        "_read",
        lambda part, first, last: rows.append((first, last)) or read(part, first, last),
    )
    indices: list[tuple[Any, tuple[int, int]]] = [
        ([7, 5, -94], (5, 8)),
        (np.array([[60, 62], [61, 60]]), (60, 63)),
        (torch.tensor([99, 98]), (98, 100)),
        (([3, 4], [0, 1]), (3, 5)),
        ((None, [3, 4]), (3, 5)),
        ([True] * 100, (0, 100)),
        ([], (0, 100)),
    ]
    with safe_open("x.zt", framework) as opened:
        for index, expected in indices:
            found = opened.get_slice("x")[index]
            assert np.array_equal(np.asarray(found), array.numpy()[index]), index
            assert rows.pop() == expected, index
        with pytest.raises(IndexError):
            opened.get_slice("x")[[1, 100]]


def test_indices_that_are_wrong(file: str) -> None:
    with safe_open(file, "np") as opened:
        part = opened.get_slice("b")
        for index in (4, -5, (0, 3), (0, 0, 0, 0)):
            with pytest.raises(IndexError) as caught:
                part[index]
            assert isinstance(caught.value, safetensors.SafetensorError)
    with safe_open(file, "pt") as opened:
        for index in (4, -5, (0, 3), (0, 0, 0, 0)):
            with pytest.raises(IndexError):
                opened.get_slice("b")[index]


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_the_calls_of_safetensors(backend: Any, file: str) -> None:
    with safe_open(file, "pt", backend=backend) as opened:
        assert opened.keys() == sorted(TENSORS)
        assert set(opened.offset_keys()) == set(TENSORS)
        assert opened.metadata() == {"k": "v"}
        everything = opened.get_tensors()
        assert everything.keys() == TENSORS.keys()
        for name, tensor in TENSORS.items():
            assert torch.equal(everything[name], tensor)
            assert torch.equal(opened.get_tensor(name), tensor)
            meta = opened.get_tensor_meta(name)
            assert meta.shape == list(tensor.shape)
        assert opened.get_tensor_meta("a").dtype == "BF16"
    for call in (opened.keys, lambda: opened.get_tensor("a"), lambda: opened.get_slice("a")):
        with pytest.raises(safetensors.SafetensorError, match="closed"):
            call()


def test_offsets_are_those_of_the_header() -> None:
    safetensors.torch.save_file(TENSORS, "x.safetensors")
    raw = Path("x.safetensors").read_bytes()
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    with safe_open("x.safetensors", "pt") as opened:
        first, last = opened.get_tensor_meta("b").data_offsets
        assert raw[start + first : start + last] == TENSORS["b"].numpy().tobytes()
        assert opened.offset_keys()[0] == "b"


def test_errors_are_those_of_safetensors() -> None:
    safetensors.torch.save_file(TENSORS, "x.safetensors")
    with safe_open("x.safetensors", "pt") as opened:
        calls = (opened.get_tensor, opened.get_slice, opened.get_tensor_meta)
        for call in calls:
            with pytest.raises(safetensors.SafetensorError, match="does not contain tensor") as got:
                call("nope")
            assert isinstance(got.value, KeyError)
    for options in ({"framework": "xx"}, {"framework": "pt", "backend": "x"}):
        with pytest.raises(safetensors.SafetensorError, match="invalid"):
            safe_open("x.safetensors", **options)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match=r"^No such file or directory: nofile$"):
        safe_open("nofile", "pt")
    Path("garbage.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(safetensors.SafetensorError):
        safe_open("garbage.safetensors", "pt")


def test_every_exception_is_one_builtin_at_most() -> None:
    import builtins

    from ztensor._errors import CLASSES

    named = [value for value in vars(builtins).values() if isinstance(value, type)]
    exceptions = {one for one in named if issubclass(one, Exception)}
    for one in CLASSES:
        assert issubclass(one, safetensors.SafetensorError)
        assert getattr(ztensor, one.__name__) is one and one.__module__ == "ztensor"
        own = {other for other in one.__mro__ if other in exceptions} - {Exception}
        lowest = {other for other in own if not any(issubclass(o, other) for o in own - {other})}
        assert len(lowest) <= 1, (one, lowest)
    for corruption in (ztensor.CorruptError, ztensor.MismatchError):
        assert not issubclass(corruption, OSError | KeyError)


def test_prefetch(file: str) -> None:
    with safe_open(file, "pt") as opened:
        loader = opened.prefetch({"b": slice(1, 3), "a": None, "empty": None})
    with loader:  # goes on when the file is closed
        assert set(loader.names()) == {"a", "b", "empty"} and len(loader) == 3
        assert torch.equal(loader.take("b"), TENSORS["b"][1:3])
        with pytest.raises(ztensor.ZTensorError, match="already delivered"):
            loader.take("b")
        with pytest.raises(ztensor.ZTensorError, match="not in the prefetch plan"):
            loader.take("scalar")
        rest = dict(loader)
        assert torch.equal(rest.pop("a"), TENSORS["a"]) and rest.pop("empty").shape == (0, 5)
        assert not rest and dict(loader) == {}
    with pytest.raises(ztensor.ZTensorError, match="closed"):
        loader.take("a")
    with safe_open(file, "np") as opened, opened.prefetch({"b": None}, threads=100) as loader:
        assert np.array_equal(loader.take("b"), TENSORS["b"].numpy())


def test_prefetch_plans_are_checked(file: str) -> None:
    with safe_open(file, "pt") as opened:
        for plan, message in (
            ({"nope": None}, "does not contain"),
            ({"b": slice(0, 4, 2)}, "step 1"),
            ({"b": slice(0, 4, 0)}, "invalid prefetch plan slice"),
            ({"b": slice(0, 10)}, "out of range"),
            ({"b": 3}, "None or a slice"),
            ({"scalar": slice(0, 1)}, "0-d"),
            ({}, "selects no tensors"),
        ):
            with pytest.raises(safetensors.SafetensorError, match=message):
                opened.prefetch(plan)  # type: ignore[arg-type]
        with opened.prefetch({"b": slice(-3, None)}) as loader:
            assert torch.equal(loader.take("b"), TENSORS["b"][1:])


def test_a_prefetch_that_fails_says_so_where_it_is_taken() -> None:
    ztensor.torch.save_file({"x": torch.ones(1000)}, "x.zt", compression=3, checksum="crc32c")
    raw = bytearray(Path("x.zt").read_bytes())
    raw[70] ^= 1
    Path("x.zt").write_bytes(raw)
    damage = (ztensor.MismatchError, ztensor.CorruptError)
    with safe_open("x.zt", "pt") as opened, opened.prefetch() as loader, pytest.raises(damage):
        loader.take("x")


def test_threads_share_a_prefetch() -> None:
    tensors = {f"t{index}": np.full(100, index) for index in range(50)}
    ztensor.numpy.save_file(tensors, "x.zt")
    got: dict[str, Any] = {}
    with safe_open("x.zt", "np") as opened, opened.prefetch() as loader:
        threads = [threading.Thread(target=lambda: got.update(loader)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {name: array[0] for name, array in got.items()} == {f"t{i}": i for i in range(50)}


def test_handles() -> None:
    safetensors.torch.save_file(TENSORS, "x.safetensors")
    raw = Path("x.safetensors").read_bytes()
    with open("x.safetensors", "rb") as binary, open("x.safetensors") as text:
        for handle in (binary, text, io.BytesIO(raw)):
            with ztensor._safe_open_handle(handle, "pt") as opened:  # type: ignore[arg-type]
                assert torch.equal(opened.get_tensor("b"), TENSORS["b"])


def test_raw_memory_as_safetensors_takes_it() -> None:
    arrays = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.zeros((0, 2), np.int8)}
    specs, theirs = (
        {
            name: module.TensorSpec(
                dtype=array.dtype.name,
                shape=array.shape,
                data_ptr=array.ctypes.data,
                data_len=array.nbytes,
            )
            for name, array in arrays.items()
        }
        for module in (ztensor, safetensors)
    )
    raw = ztensor.serialize(specs, {"a": "b"})
    assert raw == safetensors.serialize(theirs, {"a": "b"})
    ztensor.serialize_file(specs, "x.anything", {"a": "b"})
    assert Path("x.anything").read_bytes() == raw
    ours = {
        name: (c["shape"], c["dtype"], bytes(c["data"])) for name, c in ztensor.deserialize(raw)
    }
    other = {
        name: (c["shape"], c["dtype"], bytes(c["data"])) for name, c in safetensors.deserialize(raw)
    }
    assert ours == other
    packed = ztensor.TensorSpec(dtype="float4_e2m1fn_x2", shape=[2, 2], data_ptr=0, data_len=4)
    assert packed.shape == [2, 4] and packed.dtype == "F4"
    with pytest.raises(safetensors.SafetensorError):
        ztensor.TensorSpec(dtype="nonsense", shape=[1], data_ptr=0, data_len=0)
    with pytest.raises(TypeError):
        ztensor.serialize({"x": {"dtype": "F32"}})  # type: ignore[dict-item]
    for shape, pointer in (([2], 16), ([1], 0)):
        spec = ztensor.TensorSpec(dtype="F32", shape=shape, data_ptr=pointer, data_len=4)
        with pytest.raises(ztensor.InvalidArgumentError, match="'x'"):
            ztensor.serialize({"x": spec})
