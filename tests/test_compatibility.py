"""Code written for others: ztensor 1.2.3, typing tools, and every way to name a type."""

from __future__ import annotations

import importlib
import inspect
import typing
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
import torch

import z4ai
import ztensor
import ztensor.numpy
import ztensor.torch


def test_tensors_are_used_like_arrays() -> None:
    ztensor.numpy.save_file(
        {"x": np.arange(12, dtype=np.float32).reshape(3, 4), "s": np.float32(2)}, "x.zt"
    )
    reader = ztensor.open("x.zt")
    x, array = reader["x"], np.arange(12, dtype=np.float32).reshape(3, 4)
    assert x[2, 1] == 9 and x.size == 12 and x.flat[5] == 5 and x.flatten().shape == (12,)
    assert x.shape == [3, 4] and x.ndim == 2 and x.nbytes == 48 and x.numel() == 12
    assert (x.view(np.uint32) == array.view(np.uint32)).all() and (x.T == array.T).all()
    assert (x == array).all() and (x > 5).sum() == 6 and (1 - x)[0, 1] == 0 and (x + x)[0, 1] == 2
    assert [row[0] for row in x] == [0, 4, 8] and x.astype("fp16").dtype == np.float16
    assert float(reader["s"]) == 2 and int(reader["s"]) == 2 and bool(reader["s"])
    assert x.mean() == array.mean() and np.sum(x) == 66 and x.max() == 11 and x.tolist()[0][1] == 1
    assert len({x, x}) == 1 and isinstance(x.sum(axis=0), np.ndarray)
    assert not hasattr(x, "no_such_thing")
    sparse = ztensor.Tensor.from_torch(torch.eye(3).to_sparse_csr())
    assert not hasattr(sparse, "flatten")
    with pytest.raises(ztensor.UnsupportedError, match="sparse_csr"):
        sparse[0]
    half = ztensor.Tensor.from_torch(torch.ones(2, 2, dtype=torch.bfloat16))
    assert (half.view(np.uint16) == 0x3F80).all()


def test_notebooks_show_tensors() -> None:
    shown = ztensor.Tensor({"data": np.array([[0.0, 1.0], [np.nan, 3.0]])})._repr_html_()
    assert "2 × 2" in shown and "<svg" in shown and "1 not finite" in shown  # noqa: RUF001
    large = ztensor.Tensor({"data": np.arange(1 << 20, dtype=np.float32)})._repr_html_()
    assert "of a sample" in large
    odd = ztensor.Tensor({"data": np.zeros(0)}), ztensor.Tensor({"data": np.array([np.inf])})
    assert all("<div>" in one._repr_html_() for one in odd)
    sparse = ztensor.Tensor.from_torch(torch.eye(3).to_sparse_csr())
    assert "sparse_csr" in sparse._repr_html_()


def test_what_ztensor_1_2_3_did() -> None:
    writer = ztensor.Writer("x.zt")
    writer.add("x", np.arange(4.0))
    assert "open" in repr(writer)
    writer.finish()
    assert "finished" in repr(writer)
    with pytest.raises(RuntimeError, match="finished"):
        writer.add("y", np.zeros(1))
    reader = ztensor.Reader("x.zt")
    with pytest.raises(TypeError):
        reader.read_into("x")
    assert list(reader.read_tensors(["x"])) == ["x"]
    assert reader.get("x").shape == [4] and reader.get("nothing") is None
    Path("garbage.zt").write_bytes(b"garbage" * 20)
    with pytest.raises((RuntimeError, OSError)):
        ztensor.Reader("garbage.zt")


def public() -> list[tuple[str, Any]]:
    """Every callable that a user can name, with the methods of classes."""
    modules = """ztensor ztensor.torch ztensor.numpy ztensor.store ztensor.distributed ztensor.jax
        ztensor.flax ztensor.tensorflow ztensor.mlx ztensor.paddle z4ai z4ai.codec z4ai.model_delta
        z4ai.safetensors z4ai.integrations z4ai.chunked z4ai.delta z4ai.auto z4ai.backend
        z4ai.transforms"""
    found = []
    for module_name in modules.split():
        module = importlib.import_module(module_name)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.ismodule(value) or not callable(value):
                continue
            found.append((f"{module_name}.{name}", value))
            for method, member in vars(value).items() if inspect.isclass(value) else ():
                inner = getattr(member, "__func__", getattr(member, "fget", member))
                if inspect.isfunction(inner):
                    found.append((f"{module_name}.{name}.{method}", inner))
    return found


def test_type_hints_can_be_evaluated() -> None:
    found = public()
    assert len(found) > 200
    for name, value in found:
        try:
            typing.get_type_hints(value)
        except Exception as error:
            pytest.fail(f"{name}: {error!r}")
    assert typing.get_type_hints(ztensor.torch.load_file)["return"] == dict[str, torch.Tensor]


SPELLINGS: list[tuple[Any, str]] = [
    ("float32", "float32"), ("f32", "float32"), ("fp32", "float32"), ("F32", "float32"),
    ("torch.float32", "float32"), (torch.float32, "float32"), (np.float32, "float32"),
    (np.dtype("<f4"), "float32"), ("bf16", "bfloat16"), ("bfloat16", "bfloat16"),
    ("BF16", "bfloat16"), (torch.bfloat16, "bfloat16"), (ml_dtypes.bfloat16, "bfloat16"),
    ("half", "float16"), ("fp16", "float16"), ("fp64", "float64"), ("double", "float64"),
    ("u8", "uint8"), ("U8", "uint8"), (np.uint8, "uint8"), ("bool", "bool"), (bool, "bool"),
    ("fp8_e4m3", "float8_e4m3fn"), ("F8_E4M3", "float8_e4m3fn"), (torch.int16, "int16"),
    ("float8_e5m2", "float8_e5m2"), (torch.float8_e5m2, "float8_e5m2"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "name"), SPELLINGS, ids=lambda value: str(value))
def test_every_spelling_of_a_type(given: Any, name: str) -> None:
    from ztensor import _dtypes

    element = _dtypes.named(given)
    assert element.name == name
    tensor = ztensor.Tensor(
        {"data": np.zeros(8, np.uint8)}, shape=[64 // element.bits], dtype=given
    )
    assert (tensor.type or tensor.dtype) in (name, element.zt)
    assert z4ai.dtype_width(given) == element.bits // 8
    blob = z4ai.compress(bytes(800), dtype=given)
    assert blob == z4ai.compress(bytes(800), dtype=name) and z4ai.decompress(blob) == bytes(800)


@pytest.mark.parametrize("given", ["nonsense", float, int, 3, object()])
def test_what_is_no_type(given: Any) -> None:
    with pytest.raises(ValueError, match="unknown dtype"):
        ztensor.Tensor({"data": np.zeros(8, np.uint8)}, dtype=given)
    with pytest.raises(ValueError, match="unknown dtype"):
        z4ai.compress(b"x", dtype=given)


def test_z4ai_takes_the_names_of_safetensors() -> None:
    tensors = {"x": torch.ones(100)}
    z4ai.save_file(tensors, filename="a.z4ai.safetensors", metadata={"a": "b"})
    z4ai.save_file(tensors, path="b.z4ai.safetensors")
    for arguments in ({"filename": "a.z4ai.safetensors"}, {"path": "b.z4ai.safetensors"}):
        assert torch.equal(z4ai.load_file(**arguments)["x"], tensors["x"])
    with pytest.raises(TypeError):
        z4ai.load_file()
    with pytest.raises(TypeError):
        z4ai.load_file("a.z4ai.safetensors", path="b.z4ai.safetensors")
    frame = z4ai.compress_array(np.arange(3))
    for framework in ("pt", "torch", "pytorch"):
        assert isinstance(z4ai.decompress_array(frame, framework=framework), torch.Tensor)  # type: ignore[call-overload]
    assert z4ai.decompress_array(frame, framework="np").tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="framework"):
        z4ai.decompress_array(frame, framework="caffe")  # type: ignore[call-overload]


def quantized_file() -> np.ndarray:
    values = np.random.default_rng(0).standard_normal((4, 64), dtype=np.float32)
    blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer = gguf.GGUFWriter("model.gguf", "test")
    writer.add_tensor("q", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("f", values)
    writer.add_tensor("i", np.arange(4, dtype=np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0)


def test_quantized_tensors_as_numbers() -> None:
    expected = quantized_file()
    plain = ztensor.torch.load_file("model.gguf")
    assert isinstance(plain["q"], ztensor.Tensor)
    with pytest.raises(ztensor.UnsupportedError, match=r"dequantize\(\)"):
        ztensor.open("model.gguf").read_torch("q")
    loaded = ztensor.torch.load_file("model.gguf", dequantize=True)
    assert np.array_equal(loaded["q"].numpy(), expected) and loaded["i"].dtype == torch.int32
    half = ztensor.torch.load_file("model.gguf", dequantize=True, dtype="bf16")
    assert {name: tensor.dtype for name, tensor in half.items()} == {
        "q": torch.bfloat16, "f": torch.bfloat16, "i": torch.int32,
    }  # fmt: skip
    assert torch.equal(half["q"], torch.from_numpy(expected).bfloat16())
    arrays = ztensor.numpy.load_file("model.gguf", dequantize=True, dtype=np.float64)
    assert arrays["q"].dtype == np.float64 and np.array_equal(arrays["q"], expected)
    with pytest.raises(ValueError, match="floating-point"):
        ztensor.numpy.load_file("model.gguf", dtype="int8")


def test_metadata_is_kept_on_request() -> None:
    quantized_file()
    tensors, metadata = ztensor.numpy.load_with_metadata("model.gguf")
    assert metadata["general.architecture"] == "test"
    ztensor.numpy.save_file(tensors, "again.gguf", metadata)
    assert ztensor.open("again.gguf").attributes == ztensor.open("model.gguf").attributes
    _, same = ztensor.torch.load_with_metadata("model.gguf")
    assert same == metadata


@pytest.mark.parametrize("checksum", ["crc32c", "sha256"])
def test_a_flipped_bit_is_found_by_default(checksum: Any) -> None:
    """A load without a copy once returned damaged data of a file with checksums."""
    x = np.arange(1000, dtype=np.float32)
    ztensor.numpy.save_file({"x": x, "y": x[:10]}, "x.zt", checksum=checksum)
    offset = ztensor.open("x.zt").metadata("x").components["data"]["offset"]
    raw = bytearray(Path("x.zt").read_bytes())
    raw[offset + 17] ^= 1
    Path("x.zt").write_bytes(raw)
    for load in (ztensor.numpy.load_file, ztensor.torch.load_file):
        for copy in (False, True):
            with pytest.raises(ztensor.MismatchError, match="x"):
                load("x.zt", copy=copy)
            assert len(load("x.zt", copy=copy, verify=False)["x"]) == 1000
    with pytest.raises(ztensor.MismatchError):
        ztensor.torch.load(bytes(raw))
    assert len(ztensor.torch.load(bytes(raw), verify=False)) == 2
    reader = ztensor.Reader("x.zt")
    assert reader.read_numpy("y")[3] == 3
    for _ in range(2):
        with pytest.raises(ztensor.MismatchError):
            reader.read_numpy("x")
    assert ztensor.Reader("x.zt", verify=False).read_numpy("x").shape == (1000,)
    with ztensor.safe_open("x.zt", "pt") as file, pytest.raises(ztensor.MismatchError):
        file.get_tensor("x")
    with ztensor.safe_open("x.zt", "pt", verify=False) as file:
        assert file.get_tensor("x").shape == (1000,)
