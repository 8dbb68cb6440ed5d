"""Arrays and tensors in frames of the codec: the same dtype, the same shape, the same bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from conftest import same_bytes
from z4ai_data import weights

import z4ai


def test_arrays_as_documented() -> None:
    w = np.random.randn(1024, 1024).astype(np.float16)
    blob = z4ai.compress_array(w)
    back = z4ai.decompress_array(blob)
    assert np.array_equal(w, back) and back.dtype == w.dtype and back.shape == w.shape

    w = np.random.randn(1000, 1000).astype(np.float32)
    blob = z4ai.compress_ndarray(w)
    assert np.array_equal(w, z4ai.decompress_ndarray(blob)) is True


ARRAYS = [
    np.array(3.5, np.float32),
    np.array(True),
    np.array(7, np.int64),
    np.zeros((0,), np.float16),
    np.zeros((3, 0, 2), np.float32),
    weights(1000).reshape(10, 4, 25),
    weights(1000).astype(">f4"),
    np.arange(1000, dtype=">i8"),
    weights(1000, np.float64),
    weights(1000).astype(np.longdouble),
    weights(1000).reshape(20, 50).T,
    weights(1000)[::3],
    np.asfortranarray(weights(600).reshape(20, 30)),
    weights(1000).astype(np.complex64),
    weights(1000).reshape(10, 100).astype(np.complex128),
    np.random.default_rng(0).random(100) > 0.5,
    np.array(["a", "longer"]),
    np.array([b"a", b"longer"]),
    np.array(["2020-01-01", "2021-06-01"], "datetime64[ns]"),
    np.array([(1, 2.0), (3, 4.0)], [("a", "<i4"), ("b", ">f8")]),
    np.array([(1, [2.0, 3.0])], np.dtype([("a", "u1"), ("b", "<f4", (2,))], align=False)),
    np.frombuffer(bytes(12), "V3"),
    *(np.arange(-50, 50).astype(code) for code in "bhilqBHILQ"),
    *(
        weights(1000).astype(getattr(ml_dtypes, name)).reshape(25, 40)
        for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "int4")
    ),
    np.array(1.5, ml_dtypes.bfloat16),
]


@pytest.mark.parametrize("data", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}")
def test_arrays_come_back_exactly(data: np.ndarray) -> None:
    for effort in (None, "fast"):
        for blob in (
            z4ai.compress_array(data, effort=effort),
            z4ai.compress_ndarray(data, effort=effort, threads=1),
            z4ai.compress(data, effort=effort),
        ):
            for back in (z4ai.decompress_array(blob), z4ai.decompress_ndarray(blob)):
                assert back.dtype == data.dtype
                assert same_bytes(back, data)
                assert back.flags.writeable and back.flags.owndata
            assert z4ai.decompress(blob) == data.tobytes()


def test_numpy_scalars_are_arrays_without_dimensions() -> None:
    back = z4ai.decompress_array(z4ai.compress(np.float32(2.5)))
    assert back.shape == () and back.dtype == np.float32 and back == 2.5


@pytest.mark.parametrize(
    "dtype",
    "float32 float16 bfloat16 float64 int8 uint8 int16 int32 int64 bool complex64 float8_e4m3fn"
    " float8_e5m2 uint16".split(),
)
def test_tensors_come_back_exactly(dtype: str) -> None:
    torch_dtype = getattr(torch, dtype)
    for shape in ((), (0,), (3, 0), (7,), (64, 33), (2, 3, 4, 5)):
        tensor = (torch.randn(shape) * 20).to(torch_dtype)
        blob = z4ai.compress_array(tensor)
        back = z4ai.decompress_array(blob, framework="torch")
        assert isinstance(back, torch.Tensor)
        assert back.dtype == torch_dtype and back.shape == tensor.shape
        same = back.view(-1).view(torch.uint8) if back.numel() else back
        assert torch.equal(same, tensor.view(-1).view(torch.uint8) if back.numel() else tensor)
        found = z4ai.decompress_array(blob)
        assert found.shape == tuple(shape)
        assert found.dtype.name.replace("_", "") == dtype.replace("_", "")
    strided = torch.randn(40, 30).to(torch_dtype).T
    back = z4ai.decompress_array(z4ai.compress(strided), framework="torch")
    bits = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in (back, strided)]
    assert torch.equal(*bits)


def test_tensors_of_parameters_and_conjugates() -> None:
    parameter = torch.nn.Parameter(torch.randn(5, 6))
    back = z4ai.decompress_array(z4ai.compress(parameter), framework="torch")
    assert torch.equal(back, parameter)
    conjugate = torch.randn(5, dtype=torch.complex64).conj()
    assert torch.equal(
        z4ai.decompress_array(z4ai.compress(conjugate), framework="torch"), conjugate
    )
    with pytest.raises(ValueError, match=r"dequantize|cannot be stored"):
        z4ai.compress(torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8))


def test_arrays_of_what_was_no_array() -> None:
    blob = z4ai.compress(bytes(12), dtype="fp32")
    for call in (z4ai.decompress_array, z4ai.decompress_ndarray):
        with pytest.raises(ValueError, match=r"not made from an array: z4ai.decompress"):
            call(blob)
    with pytest.raises(ValueError, match="framework 'caffe' is invalid"):
        z4ai.decompress_array(blob, framework="caffe")  # type: ignore[call-overload]


def test_an_array_of_bits_can_be_told_its_type() -> None:
    bits = weights(50_000, ml_dtypes.bfloat16).view(np.uint16)
    told = z4ai.compress(bits, dtype="bf16")
    assert len(told) < 0.8 * len(bits.tobytes())
    assert same_bytes(z4ai.decompress_array(told), bits)
    # A type of another width cannot be meant.
    assert z4ai.compress(bits, dtype="fp32") == z4ai.compress(bits)
