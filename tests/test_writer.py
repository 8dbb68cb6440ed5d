"""``ztensor.Writer``."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import same_bytes

import ztensor
from ztensor import Writer
from ztensor.numpy import load_file


def test_signatures_are_those_of_the_document() -> None:
    for method in (Writer.write, Writer.write_numpy, Writer.write_torch, Writer.add):
        parameters = inspect.signature(method).parameters
        assert parameters["compress"].default is None
        assert parameters["checksum"].default == "none"


def test_every_way_to_write() -> None:
    array = np.ones((3, 4), dtype=np.float32)
    with Writer("x.zt") as w:
        assert w.write("tensor", ztensor.Tensor({"data": array})) is None
        w.write_numpy("numpy", array, compress=10, checksum="sha256")
        w.write_torch("torch", torch.ones(3, 4, dtype=torch.bfloat16).T, compress=True)
        w.add("added", array, True, "crc32c")
        w.tie("tied", "numpy")
        assert "tied" in w and "nothing" not in w
    reader = ztensor.open("x.zt")
    assert reader.keys() == ["tensor", "numpy", "torch", "added", "tied"]
    assert reader.metadata("added").components["data"]["digest"].startswith("crc32c")
    assert reader.metadata("numpy").components["data"]["digest"].startswith("sha256")
    assert reader.metadata("torch").shape == [4, 3]
    assert same_bytes(load_file("x.zt")["tied"], array)


def test_finish_returns_the_size() -> None:
    writer = Writer(Path("x.zt"))
    writer.write_numpy("x", np.zeros(100))
    assert not Path("x.zt").exists()
    assert writer.finish() == Path("x.zt").stat().st_size
    assert "finished" in repr(writer)
    for call in (writer.finish, lambda: writer.write_numpy("y", np.zeros(1))):
        with pytest.raises(ztensor.FinishedError, match="finished") as caught:
            call()
        assert isinstance(caught.value, RuntimeError)


def test_finishing_inside_the_block() -> None:
    with Writer("x.zt") as writer:
        writer.finish()
    assert len(ztensor.open("x.zt")) == 0


def test_an_exception_leaves_no_file() -> None:
    with pytest.raises(RuntimeError), Writer("x.zt") as writer:
        writer.write_numpy("x", np.zeros(100_000))
        raise RuntimeError
    assert list(Path().iterdir()) == []
    Path("old.zt").write_bytes(b"precious")
    with pytest.raises(RuntimeError), Writer("old.zt") as writer:
        raise RuntimeError
    assert Path("old.zt").read_bytes() == b"precious"


def test_an_abandoned_writer_leaves_no_file() -> None:
    writer = Writer("x.zt")
    writer.write_numpy("x", np.zeros(100_000))
    del writer
    assert list(Path().iterdir()) == []


def test_mistakes_do_not_end_the_writer() -> None:
    with Writer("x.zt") as w:
        w.write_numpy("x", np.zeros(3))
        with pytest.raises(ValueError, match="already"):
            w.write_numpy("x", np.zeros(3))
        with pytest.raises(ValueError, match="22"):
            w.write_numpy("y", np.zeros(3), compress=23)
        with pytest.raises(ValueError, match="sha256"):
            w.write_numpy("y", np.zeros(3), checksum="md5")
        with pytest.raises(ValueError, match="torch"):
            w.write_torch("y", np.zeros(3))
        with pytest.raises(KeyError):
            w.tie("y", "nothing")
        w.write_numpy("y", np.ones(3))
    assert ztensor.open("x.zt").keys() == ["x", "y"]


def test_attributes_of_tensors() -> None:
    tensor = ztensor.Tensor({"data": np.zeros(3)}, attributes={"scale": 0.5, "tags": ["a"]})
    with Writer("x.zt", durable=True) as w:
        w.write("x", tensor)
    assert ztensor.open("x.zt")["x"].attributes == {"scale": 0.5, "tags": ["a"]}
    assert ztensor.open("x.zt").metadata("x").attributes == {"scale": 0.5, "tags": ["a"]}


def test_layouts_that_nobody_knows() -> None:
    parts = {"blocks": np.arange(5, dtype=np.uint8), "scales": np.ones(2, dtype=np.float16)}
    tensor = ztensor.Tensor(parts, shape=[7, 3], dtype="uint8", format="my.layout")
    with Writer("x.zt") as w:
        w.write("x", tensor, checksum="crc32c")
    found = ztensor.open("x.zt")["x"]
    assert (found.format, found.shape, found.dtype) == ("my.layout", [7, 3], "uint8")
    assert same_bytes(found.components["scales"], parts["scales"])


def test_sparse_tensors_are_checked() -> None:
    parts = {"values": np.ones(2), "indices": np.array([0, 9]), "indptr": np.array([0, 1, 2])}
    good = ztensor.Tensor(
        {**parts, "indices": np.array([0, 1])}, shape=[2, 2], dtype="float64", format="sparse_csr"
    )
    with Writer("x.zt") as w:
        w.write("good", good)
        for bad in (
            {**parts, "indices": np.array([0, -1])},
            {**parts, "indptr": np.array([0, 1])},
            {"values": np.ones(2)},
        ):
            tensor = ztensor.Tensor(bad, shape=[2, 2], dtype="float64", format="sparse_csr")
            with pytest.raises(ztensor.InvalidArgumentError):
                w.write("bad", tensor)
    assert ztensor.open("x.zt").keys() == ["good"]
