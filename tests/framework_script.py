"""Run by the interpreter of a framework's own environment: ``framework_script.py NAME``.

Writes files with NumPy, loads them with the framework's module, and back.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import ml_dtypes
import numpy as np

import z4ai
import ztensor
import ztensor.numpy

ARRAYS: dict[str, Any] = {
    "float32": np.arange(12, dtype=np.float32).reshape(3, 4),
    "float16": np.ones(3, np.float16),
    "float64": np.linspace(0, 1, 3),
    "bfloat16": np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.ones(2, ml_dtypes.float8_e4m3fn),
    "int8": np.arange(3, dtype=np.int8),
    "int32": np.arange(3, dtype=np.int32),
    "int64": np.arange(3),
    "uint8": np.arange(3, dtype=np.uint8),
    "uint16": np.arange(3, dtype=np.uint16),
    "bool": np.array([True, False]),
    "complex64": np.array([1 + 2j], np.complex64),
    "scalar": np.float32(3),
    "empty": np.zeros((0, 3), np.float32),
}

# What a framework has no tensors for is a ztensor.Tensor.
LACKING = {
    "jax": {"float64", "int64"},  # unless jax_enable_x64 is set
    "mlx": {"float8_e4m3fn"},
    "paddle": {"uint16"},
    "tensorflow": set(),
}
SPELLINGS = {"jax": ["jax", "flax"], "tensorflow": ["tf", "tensorflow"]}


def address(framework: str, tensor: Any) -> int | None:
    """Where a tensor's data lies, if that can be asked."""
    if framework == "jax":
        return int(tensor.unsafe_buffer_pointer())
    if framework == "paddle":
        return int(tensor.data_ptr())
    return None


def check(framework: str) -> None:
    module = importlib.import_module(f"ztensor.{framework}")
    for name in ("plain.zt", "model.safetensors", "model.npz"):
        own = name.endswith("npz")
        given = {k: v for k, v in ARRAYS.items() if not own or v.dtype.kind in "fiubc"}
        given = {k: v for k, v in given.items() if not own or v.dtype.isbuiltin == 1}
        ztensor.numpy.save_file(given, name)
        loaded = module.load_file(name)
        other = {key for key, value in loaded.items() if isinstance(value, ztensor.Tensor)}
        assert other == LACKING[framework] & given.keys(), (name, other)
        module.save_file(loaded, "again.zt")
        back = ztensor.numpy.load_file("again.zt")
        for key, array in given.items():
            assert back[key].dtype == array.dtype and back[key].shape == array.shape, key
            assert back[key].tobytes() == array.tobytes(), key
        # A view of the file keeps what it shows when the file is gone.
        del back
    raw = module.save(module.load_file("plain.zt"), {"a": "b"}, format="safetensors")
    assert module.load(raw).keys() == ARRAYS.keys()
    assert np.asarray(module.load(raw)["float32"]).tolist() == ARRAYS["float32"].tolist()
    converted = module.load_file("plain.zt", dtype="float16")["float32"]
    assert "float16" in str(converted.dtype)

    for spelling in SPELLINGS.get(framework, [framework]):
        with ztensor.safe_open("plain.zt", spelling) as file:  # type: ignore[arg-type]
            assert type(file.get_tensor("float32")) is type(loaded["float32"])
            part = file.get_slice("float32")[1:, 0]
            assert type(part) is type(loaded["float32"])
            assert np.asarray(part).tolist() == [4.0, 8.0]
            assert tuple(file.get_slice("bfloat16")[0].shape) == (3,)
            with file.prefetch({"float32": slice(0, 2)}) as loader:
                assert tuple(loader.take("float32").shape) == (2, 4)
        frame = z4ai.compress_array(ARRAYS["float32"])
        restored = z4ai.decompress_array(frame, framework=spelling)  # type: ignore[call-overload]
        assert type(restored) is type(loaded["float32"])

    # Without a copy, where the framework can: the same address as the view of another load.
    reader = ztensor.open("plain.zt")
    tensors = reader.read(["float32"])
    from ztensor import _bridges

    view = tensors["float32"].components["data"].__array_interface__["data"][0]
    made = _bridges.made(framework, tensors["float32"])
    found = address(framework, made)
    assert found is None or found == view, (found, view)
    print("fine")


if __name__ == "__main__":
    check(sys.argv[1])
