"""Files of every format through every call, as their own libraries write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import h5py
import numpy as np
import onnx
import pytest
import safetensors.numpy
import torch
from conftest import same_bytes

import ztensor
import ztensor.numpy
import ztensor.torch

ARRAYS = {
    "weight": np.arange(24, dtype=np.float32).reshape(4, 6),
    "half": np.arange(7, dtype=np.float16),
    "ids": np.arange(5, dtype=np.int64),
    "bytes": np.arange(3, dtype=np.int8),
}


def write_gguf(path: str) -> None:
    writer = gguf.GGUFWriter(path, "test")
    for name, array in ARRAYS.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_onnx(path: str) -> None:
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in ARRAYS.items()]
    graph = onnx.helper.make_graph([], "graph", [], [], initializer=tensors)
    onnx.save(onnx.helper.make_model(graph), path)


def write_hdf5(path: str) -> None:
    with h5py.File(path, "w") as file:
        for name, array in ARRAYS.items():
            file[name] = array


WRITERS: dict[str, tuple[str, Callable[[str], object]]] = {
    "a.zt": ("zt", lambda path: ztensor.numpy.save_file(ARRAYS, path)),
    "b.zt": ("zt", lambda path: ztensor.numpy.save_file(ARRAYS, path, compression=True)),
    "a.safetensors": ("safetensors", lambda path: safetensors.numpy.save_file(ARRAYS, path)),
    "a.pt": (
        "pickle",
        lambda path: torch.save({k: torch.from_numpy(v) for k, v in ARRAYS.items()}, path),
    ),
    "b.bin": (
        "pickle",
        lambda path: torch.save(
            {k: torch.from_numpy(v) for k, v in ARRAYS.items()},
            path,
            _use_new_zipfile_serialization=False,
        ),
    ),
    "a.gguf": ("gguf", write_gguf),
    "a.npz": ("npz", lambda path: np.savez(path, **ARRAYS)),
    "b.npz": ("npz", lambda path: np.savez_compressed(path, **ARRAYS)),
    "a.onnx": ("onnx", write_onnx),
    "a.h5": ("hdf5", write_hdf5),
}


@pytest.fixture(params=list(WRITERS))
def path(request: pytest.FixtureRequest) -> str:
    format, write = WRITERS[request.param]
    write(request.param)
    assert ztensor.open(request.param).format == format
    return request.param


@pytest.mark.parametrize("copy", [False, True])
def test_whole_files(path: str, copy: bool) -> None:
    arrays = ztensor.numpy.load_file(path, copy=copy)
    tensors = ztensor.torch.load_file(path, copy=copy)
    assert set(arrays) == set(tensors) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert same_bytes(arrays[name], array)
        assert same_bytes(tensors[name].numpy(), array)
        assert tensors[name].data_ptr() % array.itemsize == 0
        arrays[name][...] = 0
        tensors[name].zero_()
    assert same_bytes(ztensor.numpy.load_file(path)["weight"], ARRAYS["weight"])


def test_bytes(path: str) -> None:
    data = Path(path).read_bytes()
    for name, array in ztensor.numpy.load(data).items():
        assert same_bytes(array, ARRAYS[name])
    for name, tensor in ztensor.torch.load(bytearray(data)).items():
        assert same_bytes(tensor.numpy(), ARRAYS[name])


def test_tensor_by_tensor(path: str) -> None:
    reader = ztensor.open(path)
    for name, array in ARRAYS.items():
        assert reader.metadata(name).shape == list(array.shape)
        assert reader.metadata(name).dtype == str(array.dtype)
        assert reader.metadata(name).components["data"]["length"] == array.nbytes
        destination = np.empty_like(array)
        reader.read_into(name, destination)
        assert same_bytes(destination, array)
        assert same_bytes(reader[name].numpy(), array)
    with ztensor.safe_open(path, "np") as file:
        assert same_bytes(file.get_slice("weight")[1:3, ::2], ARRAYS["weight"][1:3, ::2])
        assert same_bytes(file.get_tensor("half"), ARRAYS["half"])


@pytest.mark.parametrize("framework", [ztensor.numpy, ztensor.torch])
def test_every_format_becomes_zt(path: str, framework: object) -> None:
    framework.save_file(framework.load_file(path), "model.zt")
    for name, array in ztensor.numpy.load_file("model.zt").items():
        assert same_bytes(array, ARRAYS[name])
    # Also onto the very file that was loaded, while it is mapped.
    framework.save_file(framework.load_file(path), path, format="zt")
    assert ztensor.open(path).format == "zt"
    for name, array in ztensor.numpy.load_file(path).items():
        assert same_bytes(array, ARRAYS[name])


def test_quantized_tensors() -> None:
    random = np.random.default_rng(0)
    values = random.standard_normal((4, 64), dtype=np.float32)
    blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer = gguf.GGUFWriter("q.gguf", "test")
    writer.add_tensor("q", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0)
    for framework in (ztensor.numpy, ztensor.torch):
        tensors = framework.load_file("q.gguf")
        assert isinstance(tensors["q"], ztensor.Tensor)
        assert tensors["q"].shape == [4, 64]
        assert same_bytes(tensors["q"].dequantize(), expected)
        framework.save_file(tensors, "q.zt", compression=True)
        assert same_bytes(framework.load_file("q.zt")["q"].dequantize(), expected)
    with pytest.raises(ztensor.UnsupportedError):
        ztensor.open("q.gguf").read_numpy("q")


def test_tied_torch_storages() -> None:
    shared = torch.arange(1000.0)
    torch.save({"a": shared, "b": shared, "part": shared[10:20]}, "x.pt")
    loaded = ztensor.torch.load_file("x.pt")
    loaded["a"][0] = 5
    assert loaded["b"][0] == 5
    assert loaded["part"].equal(shared[10:20])


def test_shards() -> None:
    import json

    safetensors.numpy.save_file({"a": np.ones(3)}, "m-1.safetensors")
    safetensors.numpy.save_file({"b": np.zeros(3)}, "m-2.safetensors")
    index = {"metadata": {}, "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    Path("model.safetensors.index.json").write_text(json.dumps(index))
    for path in (".", Path("model.safetensors.index.json")):
        loaded = ztensor.numpy.load_file(path)
        assert set(loaded) == {"a", "b"} and (loaded["a"] == 1).all()
