"""``ztensor.Tensor``."""

from __future__ import annotations

import inspect
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse
import torch
from conftest import same_bytes

import ztensor
import ztensor.numpy
from ztensor import Tensor


def test_the_constructor() -> None:
    parameters = inspect.signature(Tensor).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    assert defaults == {
        "components": inspect.Parameter.empty,
        "shape": None,
        "dtype": None,
        "type": None,
        "format": "dense",
        "attributes": None,
    }
    keyword = [
        name for name, parameter in parameters.items() if parameter.kind.name == "KEYWORD_ONLY"
    ]
    assert keyword == ["shape", "dtype", "type", "format", "attributes"]


def test_dense() -> None:
    data = np.ones((3, 4), dtype=np.float32)
    t = Tensor({"data": data})
    assert (t.shape, t.dtype, t.type, t.format, t.attributes) == (
        [3, 4],
        "float32",
        None,
        "dense",
        None,
    )
    assert isinstance(t.shape, list)
    assert t.components["data"] is data
    assert (t.ndim, len(t), t.nbytes) == (2, 3, 48)
    assert t.numpy() is data or np.shares_memory(t.numpy(), data)
    assert t.torch().equal(torch.ones(3, 4))
    assert t.torch("meta").is_meta
    assert repr(t) == "ztensor.Tensor(shape=[3, 4], dtype='float32')"


def test_numpy_and_torch_share_the_memory() -> None:
    data = np.zeros(3)
    t = Tensor({"data": data})
    t.torch()[0] = 5
    t.numpy()[1] = 6
    assert data.tolist() == [5, 6, 0]


def test_logical_types() -> None:
    raw = np.arange(4, dtype=np.uint8)
    t = Tensor({"data": raw}, dtype="uint8", type="f8_e4m3fn")
    assert (t.dtype, t.type) == ("uint8", "f8_e4m3fn")
    assert t.numpy().dtype == ml_dtypes.float8_e4m3fn
    assert t.torch().dtype == torch.float8_e4m3fn
    for given in ("float8_e4m3fn", "f8_e4m3fn"):
        assert Tensor({"data": raw}, dtype=given).type == "f8_e4m3fn"
    inferred = Tensor({"data": raw.view(ml_dtypes.float8_e4m3fn)})
    assert (inferred.dtype, inferred.type) == ("uint8", "f8_e4m3fn")
    half = Tensor({"data": np.zeros(2, dtype=ml_dtypes.bfloat16)})
    assert (half.dtype, half.type) == ("bfloat16", None)
    from_torch = Tensor({"data": torch.ones(2, dtype=torch.bfloat16)})
    assert from_torch.dtype == "bfloat16"
    numbers = Tensor({"data": np.ones(2, dtype=np.complex64)})
    assert (numbers.dtype, numbers.type) == ("float32", "complex64")
    assert numbers.torch().dtype == torch.complex64
    unknown = Tensor({"data": raw}, shape=[4], dtype="uint8", type="from.the.future")
    with pytest.raises(ztensor.UnsupportedError, match=r"from\.the\.future"):
        unknown.numpy()
    with ztensor.Writer("x.zt") as w:
        w.write("x", unknown)
    assert ztensor.open("x.zt")["x"].type == "from.the.future"


@pytest.mark.parametrize(
    ("components", "options"),
    [
        ({}, {}),
        ({"values": np.ones(2)}, {}),
        ({"data": np.ones(6)}, {"shape": [2, 2]}),
        ({"data": np.ones(6)}, {"dtype": "float32"}),
        ({"data": np.ones(6)}, {"dtype": "no such type"}),
        ({"data": "text"}, {}),
        ({"data": np.array(["text"])}, {}),
        ({"values": np.ones(2)}, {"format": "sparse_coo"}),
        ({"values": np.ones(2)}, {"format": "sparse_coo", "shape": [2, 2]}),
        ({"values": np.ones(2)}, {"format": "sparse_coo", "dtype": "float64"}),
    ],
)
def test_mistakes(components: dict[str, object], options: dict[str, object]) -> None:
    with pytest.raises(ztensor.InvalidArgumentError):
        Tensor(components, **options)


def test_arrays_and_dlpack() -> None:
    t = Tensor({"data": np.arange(3.0)})
    assert same_bytes(np.asarray(t), np.arange(3.0))
    assert np.asarray(t, dtype=np.float32).dtype == np.float32
    assert not np.shares_memory(np.array(t, copy=True), t.components["data"])
    assert np.add(t, 1).tolist() == [1, 2, 3]
    assert t.__dlpack_device__() == (1, 0)
    assert np.shares_memory(np.from_dlpack(t), t.components["data"])
    assert torch.from_dlpack(t).equal(torch.arange(3.0, dtype=torch.float64))
    half = Tensor({"data": torch.arange(3, dtype=torch.bfloat16)})
    assert torch.from_dlpack(half).equal(torch.arange(3, dtype=torch.bfloat16))


MATRIX = np.array([[0, 2.5, 0], [3, 0, 4]])


def test_torch_sparse() -> None:
    dense = torch.from_numpy(MATRIX)
    for sparse in (dense.to_sparse_csr(), dense.to_sparse_coo()):
        t = Tensor.from_torch(sparse)
        assert t.format == str(sparse.layout).removeprefix("torch.")
        assert t.torch().layout == sparse.layout
        assert t.torch().to_dense().equal(dense)
        with pytest.raises(ztensor.UnsupportedError, match="dense"):
            t.numpy()
    cube = torch.zeros(2, 3, 4)
    cube[1, 2, 3] = 5
    t = Tensor.from_torch(cube.to_sparse_coo())
    assert t.components["coords"].shape == (3, 1)
    assert t.torch().to_dense().equal(cube)
    half = Tensor.from_torch(dense.to(torch.bfloat16).to_sparse_csr())
    assert half.torch().to_dense().equal(dense.to(torch.bfloat16))


@pytest.mark.parametrize("kind", ["csr", "coo", "csc"])
def test_scipy(kind: str) -> None:
    matrix = scipy.sparse.coo_array(MATRIX).asformat(kind)
    t = Tensor.from_scipy(matrix)
    assert t.format == ("sparse_coo" if kind == "coo" else "sparse_csr")
    assert (t.scipy().toarray() == MATRIX).all()
    ztensor.numpy.save_file({"x": matrix}, "x.zt")
    assert (ztensor.numpy.load_file("x.zt")["x"].scipy().toarray() == MATRIX).all()
    with pytest.raises(ztensor.UnsupportedError):
        Tensor({"data": MATRIX}).scipy()


def test_sparse_round_trip_through_every_door() -> None:
    t = Tensor.from_torch(torch.from_numpy(MATRIX).to_sparse_coo())
    ztensor.numpy.save_file({"x": t}, "x.zt", compression=True)
    loaded = ztensor.numpy.load_file("x.zt")
    assert isinstance(loaded["x"], Tensor)
    ztensor.torch.save_file(loaded, "y.zt")
    assert ztensor.torch.load_file("y.zt")["x"].to_dense().equal(torch.from_numpy(MATRIX))


def test_hostile_indices_never_reach_torch_or_scipy() -> None:
    values = np.ones(2)
    for indices, indptr in [
        ([0, 9], [0, 1, 2]),
        ([0, 1], [0, 5, 2]),
        ([0, 1], [1, 1, 2]),
        ([0, 1], [0, 1, 9]),
        ([0, 2**63], [0, 1, 2]),
    ]:
        parts = {
            "values": values,
            "indices": np.array(indices, np.uint64),
            "indptr": np.array(indptr, np.uint64),
        }
        t = Tensor(parts, shape=[2, 2], dtype="float64", format="sparse_csr")
        for convert in (t.torch, t.scipy):
            with pytest.raises(ztensor.InvalidArgumentError):
                convert()
    parts = {"values": values, "coords": np.array([[0, 1], [0, 7]])}
    t = Tensor(parts, shape=[2, 2], dtype="float64", format="sparse_coo")
    for convert in (t.torch, t.scipy):
        with pytest.raises(ztensor.InvalidArgumentError):
            convert()


def test_dequantize_dense() -> None:
    t = Tensor({"data": np.arange(3, dtype=np.float16)})
    assert same_bytes(t.dequantize(), np.arange(3, dtype=np.float32))


def quantized_group(codes: np.ndarray, bits: int, group: int, scales: np.ndarray) -> Tensor:
    per_word = 32 // bits
    flat = codes.reshape(-1).astype(np.uint64)
    flat = np.pad(flat, (0, -flat.size % per_word)).reshape(-1, per_word)
    words = (flat << (np.arange(per_word, dtype=np.uint64) * np.uint64(bits))).sum(axis=1)
    zeros = np.arange(scales.size, dtype=np.float16)
    attributes = {"bits": bits, "group_size": group, "packing": f"{per_word}_per_i32"}
    return Tensor(
        {"packed_weight": words.astype(np.uint32).view(np.int32), "scales": scales, "zeros": zeros},
        shape=list(codes.shape),
        dtype="int32",
        format="quantized_group",
        attributes=attributes,
    )


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_dequantize_groups(bits: int) -> None:
    random = np.random.default_rng(bits)
    codes = random.integers(0, 1 << bits, (16, 24))
    scales = random.standard_normal(48).astype(np.float16)
    t = quantized_group(codes, bits, 8, scales)
    zeros = np.arange(48, dtype=np.float32)
    expected = (codes.reshape(48, 8) - zeros[:, None]) * scales.astype(np.float32)[:, None]
    expected = expected.astype(np.float32).reshape(16, 24)
    assert same_bytes(t.dequantize(), expected)
    ztensor.numpy.save_file({"q": t}, "q.zt")
    assert same_bytes(ztensor.numpy.load_file("q.zt")["q"].dequantize(), expected)


def test_dequantize_refuses_other_packings() -> None:
    t = quantized_group(np.zeros((4, 8), np.int64), 4, 8, np.ones(4, np.float16))
    t.attributes["packing"] = "by rows"
    with pytest.raises(ztensor.UnsupportedError, match="by rows"):
        t.dequantize()


WITHOUT_ML_DTYPES = """
import sys
sys.modules["ml_dtypes"] = None
import numpy as np, torch, ztensor, ztensor.numpy, ztensor.torch
ztensor.torch.save_file({
    "half": torch.ones(2, 3, dtype=torch.bfloat16),
    "fp8": torch.ones(4).to(torch.float8_e5m2),
    "plain": torch.ones(2),
}, "x.zt")
loaded = ztensor.numpy.load_file("x.zt")
assert isinstance(loaded["plain"], np.ndarray)
half, fp8 = loaded["half"], loaded["fp8"]
assert isinstance(half, ztensor.Tensor) and isinstance(fp8, ztensor.Tensor)
assert half.dtype == "bfloat16" and half.shape == [2, 3]
assert half.components["data"].dtype == np.uint16
assert half.components["data"].shape == (2, 3)
assert fp8.type == "f8_e5m2" and fp8.components["data"].dtype == np.uint8
for call in (half.numpy, fp8.numpy, lambda: ztensor.open("x.zt").read_numpy("half")):
    try:
        call()
    except ztensor.UnsupportedError as error:
        assert "pip install ml_dtypes" in str(error), error
    else:
        raise AssertionError
assert half.torch().equal(torch.ones(2, 3, dtype=torch.bfloat16))
ztensor.numpy.save_file(loaded, "y.zt")
assert ztensor.torch.load_file("y.zt")["fp8"].dtype == torch.float8_e5m2
assert ztensor.torch.load_file("y.zt")["half"].eq(1).all()
"""


def test_without_ml_dtypes() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_ML_DTYPES], check=True)
