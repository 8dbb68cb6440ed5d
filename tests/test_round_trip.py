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
