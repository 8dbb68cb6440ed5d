"""What safetensors accepts, this package accepts, with the same results."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

import ztensor
import ztensor.numpy
import ztensor.torch

TORCH_DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    *(torch.uint16, torch.uint32, torch.uint64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def sample(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    count = int(np.prod(shape))
    if dtype == torch.bool:
        return (torch.arange(count) % 2 == 0).reshape(shape)
    raw = torch.from_numpy(
        np.random.default_rng(3).integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    )
    return raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


@pytest.mark.parametrize("shape", [(), (4,), (3, 4), (0, 2)])
def test_torch_files_of_every_dtype(shape: tuple[int, ...]) -> None:
    tensors = {str(dtype): sample(dtype, shape or (1,)).reshape(shape) for dtype in TORCH_DTYPES}
    safetensors.torch.save_file(tensors, "x.safetensors", metadata={"a": "b"})
    ztensor.torch.save_file(tensors, "x.zt", metadata={"a": "b"})
    theirs = safetensors.torch.load_file("x.safetensors")
    for path in ("x.safetensors", "x.zt"):
        for copy in (False, True):
            ours = ztensor.torch.load_file(path, copy=copy)
            assert set(ours) == set(theirs)
            for name, tensor in theirs.items():
                assert ours[name].dtype == tensor.dtype
                assert ours[name].shape == tensor.shape
                assert bits(ours[name]) == bits(tensor)


def test_numpy_files() -> None:
    arrays = {
        dtype: np.arange(6).reshape(2, 3).astype(dtype)
        for dtype in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", "c8")
    }
    safetensors.numpy.save_file(arrays, "x.safetensors")
    ztensor.numpy.save_file(arrays, "x.zt")
    theirs = safetensors.numpy.load_file("x.safetensors")
    for path in ("x.safetensors", "x.zt"):
        ours = ztensor.numpy.load_file(path)
        assert set(ours) == set(theirs)
        for name, array in theirs.items():
            assert ours[name].dtype == array.dtype
            np.testing.assert_array_equal(ours[name], array)


def test_bytes() -> None:
    tensors = {"x": torch.arange(10), "y": torch.ones(2, 2, dtype=torch.bfloat16)}
    data = safetensors.torch.save(tensors, metadata={"k": "v"})
    for name, tensor in ztensor.torch.load(data).items():
        assert tensor.equal(tensors[name])
    arrays = {"x": np.arange(10)}
    assert (ztensor.numpy.load(safetensors.numpy.save(arrays))["x"] == arrays["x"]).all()


def test_positional_calls() -> None:
    tensors = {"x": torch.arange(3)}
    safetensors.torch.save_file(tensors, "a", {"k": "v"})
    ztensor.torch.save_file(tensors, "b", {"k": "v"})
    assert ztensor.torch.load_file("a", "cpu")["x"].equal(ztensor.torch.load_file("b", "cpu")["x"])
    assert ztensor.open("a").attributes == ztensor.open("b").attributes == {"k": "v"}


class Tied(torch.nn.Module):
    """An output layer that is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(20, 4)
        self.body = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 20, bias=False)
        self.head.weight = self.embed.weight


def test_models_across_both_libraries() -> None:
    source = Tied()
    safetensors.torch.save_model(source, "x.safetensors")
    ztensor.torch.save_model(source, "x.zt")
    for path in ("x.safetensors", "x.zt"):
        target = Tied()
        assert ztensor.torch.load_model(target, path) == ([], [])
        for name, tensor in source.state_dict().items():
            assert target.state_dict()[name].equal(tensor)
        assert target.head.weight is target.embed.weight


@pytest.mark.parametrize("framework", ["pt", "np"])
def test_safe_open(framework: str) -> None:
    tensors = {"b": torch.arange(24).reshape(4, 6), "a": torch.ones(3), "scalar": torch.tensor(5)}
    safetensors.torch.save_file(tensors, "x.safetensors", metadata={"k": "v"})
    ztensor.torch.save_file(tensors, "x.zt", metadata={"k": "v"})
    ztensor.torch.save_file(tensors, "c.zt", metadata={"k": "v"}, compression=True)
    with safetensors.safe_open("x.safetensors", framework) as theirs:
        for path in ("x.safetensors", "x.zt", "c.zt"):
            with ztensor.safe_open(path, framework, device="cpu") as ours:
                assert sorted(ours.keys()) == sorted(theirs.keys())
                assert ours.metadata() == theirs.metadata()
                for name in tensors:
                    found, expected = ours.get_tensor(name), theirs.get_tensor(name)
                    assert type(found) is type(expected)
                    assert found.dtype == expected.dtype and found.shape == expected.shape
                    assert (found == expected).all()
                    ours_slice, their_slice = ours.get_slice(name), theirs.get_slice(name)
                    assert ours_slice.get_shape() == list(their_slice.get_shape())
                    assert ours_slice.get_dtype() == their_slice.get_dtype()
                for index in [
                    np.s_[1],
                    np.s_[-1],
                    np.s_[1:3],
                    np.s_[:, 2],
                    np.s_[1:, :4],
                    np.s_[:],
                    np.s_[..., 1],
                    np.s_[2, 3],
                ]:
                    found = ours.get_slice("b")[index]
                    expected = theirs.get_slice("b")[index]
                    assert found.shape == expected.shape and (found == expected).all()


def test_safe_open_keeps_the_order_of_data() -> None:
    tensors = {name: torch.ones(3) for name in "zax"}
    ztensor.torch.save_file(tensors, "x.zt")
    safetensors.torch.save_file(tensors, "x.safetensors")
    with ztensor.safe_open("x.zt", "pt") as file:
        assert file.offset_keys() == ["z", "a", "x"]
    with (
        ztensor.safe_open("x.safetensors", "pt") as ours,
        safetensors.safe_open("x.safetensors", "pt") as theirs,
    ):
        assert ours.offset_keys() == list(theirs.offset_keys())


def test_what_safetensors_refuses_works_here() -> None:
    base = torch.arange(12).reshape(3, 4)
    tensors = {"view": base.T, "shared": base, "same": base, "part": base[1:]}
    with pytest.raises((RuntimeError, ValueError)):
        safetensors.torch.save_file(tensors, "x.safetensors")
    ztensor.torch.save_file(tensors, "x.zt")
    for name, tensor in ztensor.torch.load_file("x.zt").items():
        assert tensor.equal(tensors[name])
