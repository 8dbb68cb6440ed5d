"""What is saved is what is loaded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ztensor.numpy
import ztensor.torch


@pytest.mark.parametrize("compression", [False, True, 1, 22])
@pytest.mark.parametrize("copy", [False, True])
def test_numpy(compression: bool | int, copy: bool) -> None:
    tensors = {
        "weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "scalar": np.array(7, dtype=np.int64),
        "empty": np.zeros((0, 5), dtype=np.float16),
        "mask": np.array([True, False]),
        "strided": np.arange(20).reshape(4, 5)[::2, ::-1],
    }
    ztensor.numpy.save_file(tensors, "model.zt", compression=compression)
    loaded = ztensor.numpy.load_file("model.zt", copy=copy)
    assert list(loaded) == list(tensors)
    for name, array in tensors.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        np.testing.assert_array_equal(loaded[name], array)


@pytest.mark.parametrize("compression", [False, True, 1, 22])
@pytest.mark.parametrize("copy", [False, True])
def test_torch(compression: bool | int, copy: bool) -> None:
    tensors = {
        "weight": torch.arange(12, dtype=torch.bfloat16).reshape(3, 4),
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0, 5),
        "mask": torch.tensor([True, False]),
        "strided": torch.arange(20).reshape(4, 5).T,
        "fp8": torch.arange(8, dtype=torch.float32).to(torch.float8_e4m3fn),
        "complex": torch.complex(torch.ones(3), torch.zeros(3)),
    }
    ztensor.torch.save_file(tensors, "model.zt", compression=compression)
    loaded = ztensor.torch.load_file("model.zt", copy=copy)
    assert list(loaded) == list(tensors)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        assert (
            loaded[name]
            .reshape(-1)
            .view(torch.uint8)
            .equal(tensor.contiguous().reshape(-1).view(torch.uint8))
        )


@pytest.mark.parametrize("effort", ["fast", "default", "balanced", "max"])
def test_the_weight_codec(effort: str) -> None:
    torch.manual_seed(0)
    weights = torch.randn(600, 400) * 0.02
    tensors = {
        "bf16": weights.bfloat16(),
        "fp16": weights.half(),
        "fp32": weights,
        "fp8": (weights * 50).to(torch.float8_e4m3fn),
        "ids": torch.arange(5000),
        "scalar": torch.tensor(7.0),
        "empty": torch.zeros(0, 5),
    }
    ztensor.torch.save_file(tensors, "model.zt", compression=effort)
    arrays = {"fp32": weights.numpy(), "ids": np.arange(5000)}
    with ztensor.Writer("arrays.zt") as writer:
        for name, array in arrays.items():
            writer.write_numpy(name, array, compress=effort)
    ztensor.numpy.save_file(arrays, "again.zt", compression=effort)
    loaded = ztensor.torch.load_file("model.zt")
    with ztensor.safe_open("model.zt", "pt") as file:
        for name, tensor in tensors.items():
            assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape
            assert torch.equal(
                loaded[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)
            )
        for name in ("bf16", "fp16", "fp32"):
            assert torch.equal(file.get_slice(name)[17:301], tensors[name][17:301])
    reader = ztensor.open("model.zt")
    for name in ("bf16", "fp16", "fp32"):
        data = reader.metadata(name).components["data"]
        assert data["encoding"] == "z4ai" and data["stored_length"] < 0.95 * data["length"]
    for path in ("arrays.zt", "again.zt"):
        found = ztensor.numpy.load_file(path)
        assert all(np.array_equal(found[name], array) for name, array in arrays.items())


def test_an_unknown_effort_is_refused() -> None:
    with pytest.raises(ValueError, match="balanced"):
        ztensor.numpy.save_file({"x": np.ones(3)}, "x.zt", compression="huge")
