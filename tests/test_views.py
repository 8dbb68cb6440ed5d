"""Tensors loaded together are the tensors read one by one, and views of one storage stay views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import DATA
from zt_files import blobs, component, file, tensor, zstd_rle

import ztensor
import ztensor.numpy
import ztensor.torch


def views() -> dict[str, torch.Tensor]:
    square, wide = torch.arange(16.0).reshape(4, 4), torch.arange(24.0).reshape(4, 6)
    numbers = torch.randn(3, 5, dtype=torch.complex64)
    base = torch.arange(100, dtype=torch.int32)
    return {
        "square": square,
        "square transposed": square.t(),
        "wide": wide,
        "wide transposed": wide.t(),
        "wide again": wide,
        "wide flat": wide.reshape(-1),
        "numbers": numbers,
        "conjugate": numbers.conj(),
        "imaginary": torch.randn(4, dtype=torch.complex64).conj().imag,
        "adjoint": numbers.mH,
        "head": base[:60],
        "middle": base[20:80:3],
        "all": base,
        "expanded": base[:1].expand(5),
        "mask": (base > 5),
        "half": torch.arange(6.0).to(torch.bfloat16).reshape(2, 3).t(),
        "alone": torch.arange(12.0).reshape(3, 4).t(),
    }


def values(tensor: Any) -> Any:
    """Comparable: NumPy arrays, or tensors without lazy signs and strides."""
    if isinstance(tensor, torch.Tensor):
        return (
            tensor.to_dense()
            .resolve_conj()
            .resolve_neg()
            .clone(memory_format=torch.contiguous_format)
        )
    return tensor


def same(one: Any, other: Any) -> bool:
    if isinstance(one, ztensor.Tensor):
        pairs = [(one.components[role], other.components[role]) for role in one.components]
        return one.shape == other.shape and all(same(a, b) for a, b in pairs)
    if isinstance(one, torch.Tensor) and one.layout == torch.sparse_csr:
        # Not by dense tensors: torch cannot make them of every type.
        parts = ("crow_indices", "col_indices", "values")
        return one.shape == other.shape and all(
            same(getattr(one, part)(), getattr(other, part)()) for part in parts
        )
    if isinstance(one, torch.Tensor):
        one, other = values(one), values(other)
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        raw = [tensor.reshape(-1).view(torch.uint8).numpy() for tensor in (one, other)]
        return bool(np.array_equal(*raw))
    return bool(
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )


@pytest.mark.parametrize("copy", [False, True])
def test_views_of_one_storage_have_their_own_values(copy: bool) -> None:
    expected = views()
    torch.save(expected, "views.pt")
    loaded = ztensor.torch.load_file("views.pt", copy=copy)
    for name, view in expected.items():
        assert same(loaded[name], view), name
    arrays = ztensor.numpy.load_file("views.pt", copy=copy)
    for name, view in expected.items():
        if name != "half":
            assert np.array_equal(arrays[name], values(view).numpy()), name
    together = ztensor.open("views.pt").read_torch(list(expected), copy=copy)
    for name, view in expected.items():
        assert same(together[name], view), name
    for name, view in ztensor.torch.load(Path("views.pt").read_bytes()).items():
        assert same(view, expected[name]), name


@pytest.mark.parametrize("copy", [False, True])
def test_views_of_one_storage_share_memory(copy: bool) -> None:
    torch.save(views(), "views.pt")
    loaded = ztensor.torch.load_file("views.pt", copy=copy)
    groups = [
        ["square", "square transposed"],
        ["wide", "wide transposed", "wide again", "wide flat"],
        ["numbers", "conjugate", "adjoint"],
        ["head", "middle", "all", "expanded"],
    ]
    for group in groups:
        storages = {loaded[name].untyped_storage().data_ptr() for name in group}
        assert len(storages) == 1, group
    loaded["square"][1, 2] = 77
    assert loaded["square transposed"][2, 1] == 77
    loaded["all"][20] = -5
    assert loaded["middle"][0] == -5
    loaded["numbers"][0, 0] = 1 + 2j
    assert loaded["conjugate"][0, 0] == 1 - 2j
    # One without another view of its storage is contiguous.
    assert loaded["alone"].is_contiguous()
    assert torch.load("views.pt")["square"][1, 2] != 77, "the file stays as it is"


def test_thin_slices_do_not_bring_their_storage_along() -> None:
    base = torch.arange(100_000.0).reshape(1000, 100)
    torch.save({"one": base[:, :1], "two": base[:, :2]}, "thin.pt")
    loaded = ztensor.torch.load_file("thin.pt", copy=True)
    assert loaded["one"].untyped_storage().nbytes() == 4000
    assert torch.equal(loaded["two"], base[:, :2])


def test_a_converted_file_has_the_values_of_every_view() -> None:
    expected = views()
    torch.save(expected, "views.pt")
    from ztensor import _native

    for options in ([], ["--compress"]):
        command = ["ztensor", "convert", "views.pt", "-o", "views.zt", "--force", *options]
        assert _native.cli_main(command) == 0
        loaded = ztensor.torch.load_file("views.zt")
        for name, view in expected.items():
            assert same(loaded[name], view), name


def test_one_blob_with_two_encodings_is_refused() -> None:
    frame = zstd_rle(7, 19, 19)
    data, (at,) = blobs(frame)
    objects = {
        "raw": tensor("dense", [19], data=component("u8", at, 19)),
        "zstd": tensor("dense", [19], data=component("u8", at, 19, 19)),
    }
    Path("two.zt").write_bytes(file(data, objects))
    with pytest.raises(ztensor.CorruptError, match=r"component\.overlap"):
        ztensor.numpy.load_file("two.zt")
    Path("one.zt").write_bytes(file(data, {"zstd": objects["zstd"]}))
    assert ztensor.numpy.load_file("one.zt")["zstd"].tolist() == [7] * 19


def test_one_blob_of_two_types_is_two_tensors() -> None:
    numbers = np.arange(6, dtype=np.float32)
    data, (at,) = blobs(numbers.tobytes())
    objects = {
        "floats": tensor("dense", [6], data=component("f32", at, 24)),
        "bytes": tensor("dense", [24], data=component("u8", at, 24)),
        "again": tensor("dense", [2, 3], data=component("f32", at, 24)),
    }
    Path("types.zt").write_bytes(file(data, objects))
    for copy in (False, True):
        loaded = ztensor.numpy.load_file("types.zt", copy=copy)
        assert np.array_equal(loaded["floats"], numbers)
        assert np.array_equal(loaded["bytes"], numbers.view(np.uint8))
        assert np.array_equal(loaded["again"], numbers.reshape(2, 3))
        assert np.shares_memory(loaded["floats"], loaded["again"])


@pytest.mark.parametrize("copy", [False, True])
def test_components_are_arrays_where_a_torch_tensor_has_the_same_bytes(copy: bool) -> None:
    numbers = np.arange(4.0)
    data, (at,) = blobs(numbers.tobytes())
    objects = {
        "dense": tensor("dense", [4], data=component("f64", at, 32)),
        "custom": tensor("custom.layout", [4], x=component("f64", at, 32)),
    }
    Path("mixed.zt").write_bytes(file(data, objects))
    loaded = ztensor.torch.load_file("mixed.zt", copy=copy)
    assert isinstance(loaded["dense"], torch.Tensor)
    assert isinstance(loaded["custom"].components["x"], np.ndarray)
    assert np.array_equal(loaded["custom"].components["x"], numbers)


def samples() -> list[Path]:
    kinds = {".zt", ".safetensors", ".pt", ".pth", ".bin", ".pkl", ".gguf", ".npz", ".npy"}
    kinds |= {".onnx", ".h5", ".hdf5", ".keras", ".zstn"}
    return sorted(path for path in DATA.rglob("*") if path.suffix in kinds and path.is_file())


def test_tensors_loaded_together_equal_those_read_one_by_one() -> None:
    torch.save(views(), "views.pt")
    compared = 0
    for path in [Path("views.pt"), *samples()]:
        try:
            reader = ztensor.open(path)
        except ztensor.ZTensorError:
            continue  # a sample of what is refused
        for load, read in (
            (ztensor.numpy.load_file, None),
            (ztensor.torch.load_file, reader.read_torch),
        ):
            for copy in (False, True):
                try:
                    together = load(path, copy=copy)
                except ztensor.ZTensorError:
                    continue  # some of its tensors cannot be read
                for name, found in together.items():
                    if isinstance(found, ztensor.Tensor):
                        alone: Any = reader.read(name, copy=copy)
                    elif read is None:
                        alone = reader.read_numpy(name, copy=copy)
                    else:
                        alone = read(name, copy=copy)
                    assert same(found, alone), (path, name)
                    compared += 1
    assert compared > 100
