"""``ztensor.torch``: every call, default, return value and promise."""

from __future__ import annotations

import copy as copying
import inspect
import io
import pickle
from pathlib import Path

import pytest
import torch

import ztensor
from ztensor.torch import load, load_file, load_model, save, save_file, save_model


def test_signatures_are_those_of_the_document() -> None:
    def defaults(function: object) -> dict[str, object]:
        parameters = inspect.signature(function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is not p.KEYWORD_ONLY}

    required = inspect.Parameter.empty
    assert defaults(load_file) == {"filename": required, "device": "cpu", "copy": False}
    assert defaults(save_model) == {
        "model": required,
        "filename": required,
        "metadata": None,
        "force_contiguous": True,
    }
    assert defaults(load_model) == {
        "model": required,
        "filename": required,
        "strict": True,
        "device": "cpu",
        "copy": False,
    }


def test_each_tensor_has_a_storage_of_its_own() -> None:
    save_file({"x": torch.zeros(1000), "y": torch.zeros(5)}, "x.zt")
    for copy in (False, True):
        loaded = load_file("x.zt", copy=copy)
        assert loaded["x"].untyped_storage().nbytes() == 4000
        assert loaded["y"].untyped_storage().nbytes() == 20
        buffer = io.BytesIO()
        torch.save(loaded["y"], buffer)
        assert buffer.tell() < 3000
        assert pickle.loads(pickle.dumps(loaded["y"])).equal(torch.zeros(5))
        assert copying.deepcopy(loaded["y"]).equal(torch.zeros(5))


def test_copy_on_write() -> None:
    tensor = torch.arange(100_000)
    save_file({"x": tensor}, "x.zt")
    first, second = load_file("x.zt")["x"], load_file("x.zt")["x"]
    first.fill_(-1)
    assert second.equal(tensor)
    assert load_file("x.zt")["x"].equal(tensor)
    assert load_file("x.zt", copy=True)["x"].equal(tensor)


def test_tied_tensors() -> None:
    shared = torch.randn(100, 10)
    save_file({"a": shared, "b": shared.detach(), "c": shared.T, "d": shared.T}, "x.zt")
    assert Path("x.zt").stat().st_size < 3 * shared.nbytes
    for copy in (False, True):
        loaded = load_file("x.zt", copy=copy)
        loaded["a"][0, 0] = 5
        assert loaded["b"][0, 0] == 5
        assert loaded["b"].data_ptr() == loaded["a"].data_ptr()
        loaded["c"][0, 0] = 7
        assert loaded["d"][0, 0] == 7 and loaded["a"][0, 0] == 5
    moved = load_file("x.zt", device="meta")
    assert moved["a"] is moved["b"]


def test_tied_tensors_of_other_shapes() -> None:
    shared = torch.randn(100, 10)
    tensors = {
        "a": shared,
        "flat": shared.view(-1),
        "cube": shared.view(10, 10, 10),
        "half": shared[:50],
    }
    save_file(tensors, "x.zt")
    assert Path("x.zt").stat().st_size < 2 * shared.nbytes
    for copy in (False, True):
        loaded = load_file("x.zt", copy=copy)
        assert {name: t.shape for name, t in loaded.items()} == {
            n: t.shape for n, t in tensors.items()
        }
        loaded["a"][0, 0] = 5
        assert loaded["flat"][0] == 5 and loaded["cube"][0, 0, 0] == 5
        assert loaded["half"].equal(shared[:50])


def test_devices() -> None:
    save_file({"x": torch.ones(3)}, "x.zt")
    assert load_file("x.zt", device=torch.device("cpu"))["x"].device.type == "cpu"
    assert load_file("x.zt", device="meta")["x"].device.type == "meta"
    with pytest.raises((RuntimeError, AssertionError)):
        load_file("x.zt", device="no such device")
    with pytest.raises(ztensor.InvalidArgumentError, match="meta"):
        save_file({"x": torch.ones(3, device="meta")}, "y.zt")


def test_autograd_conjugates_and_negatives() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    numbers = torch.complex(torch.arange(3.0), torch.ones(3))
    tensors = {"p": weight, "conj": numbers.conj(), "imag": numbers.conj().imag, "grad": weight * 2}
    save_file(tensors, "x.zt")
    loaded = load_file("x.zt")
    for name, tensor in tensors.items():
        assert loaded[name].equal(tensor.detach()), name
        assert not loaded[name].requires_grad


def test_float4_pairs() -> None:
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no float4_e2m1fn_x2")
    packed = torch.arange(12, dtype=torch.uint8).reshape(3, 4).view(torch.float4_e2m1fn_x2)
    save_file({"x": packed}, "x.zt")
    meta = ztensor.open("x.zt").metadata("x")
    assert meta.shape == [3, 8] and meta.type == "f4_e2m1fn"
    for copy in (False, True):
        found = load_file("x.zt", copy=copy)["x"]
        assert found.dtype == packed.dtype and found.shape == packed.shape
        assert found.view(torch.uint8).equal(packed.view(torch.uint8))


def test_complex32() -> None:
    tensor = torch.arange(8, dtype=torch.float16).view(torch.complex32)
    save_file({"x": tensor}, "x.zt")
    found = load_file("x.zt")["x"]
    assert found.dtype == torch.complex32
    assert found.view(torch.float16).equal(tensor.view(torch.float16))


def test_bytes() -> None:
    data = save({"x": torch.arange(5)}, metadata={"a": "b"}, compression=True)
    assert isinstance(data, bytes)
    first, second = load(data)["x"], load(data)["x"]
    first[0] = 9
    assert second.equal(torch.arange(5))


def test_sparse_tensors_stay_sparse() -> None:
    dense = torch.tensor([[0.0, 2, 0], [3, 0, 4]])
    tensors = {"csr": dense.to_sparse_csr(), "coo": dense.to_sparse_coo(), "dense": dense}
    save_file(tensors, "x.zt", compression=True)
    loaded = load_file("x.zt")
    assert loaded["csr"].layout == torch.sparse_csr
    assert loaded["coo"].layout == torch.sparse_coo
    assert all(tensor.to_dense().equal(dense) for tensor in loaded.values())
    save_file(loaded, "y.zt")
    assert load_file("y.zt")["csr"].to_dense().equal(dense)
    for refused in (dense.to_sparse_csc(), torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8)):
        with pytest.raises(ztensor.InvalidArgumentError):
            save_file({"x": refused}, "z.zt")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(4, 4)
        self.two = torch.nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.register_buffer("steps", torch.tensor(3))


def test_models() -> None:
    model, other = Model(), Model()
    save_model(model, "x.zt", metadata={"made by": "test"})
    assert ztensor.open("x.zt").attributes == {"made by": "test"}
    missing, unexpected = load_model(other, Path("x.zt"))
    assert (missing, unexpected) == ([], [])
    for name, tensor in model.state_dict().items():
        assert other.state_dict()[name].equal(tensor)
    assert other.two.weight is other.one.weight
    other.one.weight.data.zero_()
    assert not load_file("x.zt")["one.weight"].eq(0).all()


def test_strict_models() -> None:
    model = Model()
    state = model.state_dict()
    del state["one.bias"]
    save_file({**state, "extra": torch.zeros(1)}, "x.zt")
    with pytest.raises(RuntimeError, match=r"one\.bias.*\n.*extra") as caught:
        load_model(Model(), "x.zt")
    assert isinstance(caught.value, ztensor.ZTensorError)
    assert load_model(Model(), "x.zt", strict=False) == (["one.bias"], ["extra"])


def test_a_dropped_tied_name_is_not_missing() -> None:
    model = Model()
    state = model.state_dict()
    del state["two.weight"]
    save_file(state, "x.zt")
    target = Model()
    assert load_model(target, "x.zt", strict=True) == ([], [])
    assert target.two.weight.equal(model.one.weight)


def test_models_on_the_meta_device() -> None:
    model = torch.nn.Linear(3, 2)
    save_model(model, "x.zt")
    with torch.device("meta"):
        target = torch.nn.Linear(3, 2)
    assert load_model(target, "x.zt") == ([], [])
    assert target.weight.equal(model.weight)


def test_force_contiguous() -> None:
    model = torch.nn.Linear(3, 2)
    model.weight.data = torch.arange(6.0).reshape(3, 2).T
    save_model(model, "x.zt")
    assert load_file("x.zt")["weight"].equal(model.weight)
    with pytest.raises(ValueError, match="contiguous"):
        save_model(model, "y.zt", force_contiguous=False)
    assert not Path("y.zt").exists()


def test_numpy_values_are_fine_too() -> None:
    import numpy as np

    save_file({"x": np.arange(4)}, "x.zt")
    assert load_file("x.zt")["x"].equal(torch.arange(4))
