"""Appending, removing and replacing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import same_bytes

import ztensor
from ztensor import Writer
from ztensor.numpy import load_file, save_file


@pytest.fixture(autouse=True)
def model() -> None:
    with Writer("model.zt", attributes={"k": "v"}) as w:
        w.write_numpy("raw", np.arange(6.0).reshape(2, 3), checksum="crc32c")
        w.write_numpy("zstd", np.zeros(5000), compress=5, checksum="sha256")
        w.write("other", ztensor.Tensor({"data": np.ones(2)}, attributes={"a": 1}))


def test_append() -> None:
    before = load_file("model.zt", copy=True)
    w = Writer.append("model.zt")
    w.write_numpy("extra", np.ones(7), compress=True)
    w.write_torch("torch", torch.ones(2, dtype=torch.bfloat16))
    assert "extra" not in ztensor.open("model.zt")
    size = w.finish()
    assert size == Path("model.zt").stat().st_size
    reader = ztensor.open("model.zt")
    assert reader.keys() == ["raw", "zstd", "other", "extra", "torch"]
    assert reader.attributes == {"k": "v"}
    for name, array in before.items():
        assert same_bytes(reader.read_numpy(name, copy=True), array)


def test_append_as_a_context_manager() -> None:
    with Writer.append(Path("model.zt")) as w:
        w.write_numpy("extra", np.ones(7))
    assert "extra" in ztensor.open("model.zt")


def test_an_abandoned_append_changes_nothing() -> None:
    before = Path("model.zt").read_bytes()
    w = Writer.append("model.zt")
    w.write_numpy("extra", np.ones(100_000))
    del w
    assert Path("model.zt").read_bytes() == before
    with pytest.raises(RuntimeError), Writer.append("model.zt") as w:
        w.write_numpy("extra", np.ones(100_000))
        raise RuntimeError
    assert Path("model.zt").read_bytes() == before
    assert [path.name for path in Path().iterdir()] == ["model.zt"]


def test_duplicates_are_refused() -> None:
    with Writer.append("model.zt") as w:
        with pytest.raises(ztensor.ZTensorError, match="raw"):
            w.write_numpy("raw", np.ones(7))
        w.write_numpy("new", np.ones(7))
    assert "new" in ztensor.open("model.zt")


def test_append_needs_a_zt_file() -> None:
    with pytest.raises(FileNotFoundError):
        Writer.append("missing.zt")
    Path("text.zt").write_text("no tensors here")
    with pytest.raises(ztensor.ZTensorError):
        Writer.append("text.zt")
    assert Path("text.zt").read_text() == "no tensors here"


def test_remove() -> None:
    assert ztensor.remove_tensors("model.zt", "trimmed.zt", ["raw"]) is None
    old, new = ztensor.open("model.zt"), ztensor.open("trimmed.zt")
    assert new.keys() == ["zstd", "other"]
    assert new.attributes == {"k": "v"}
    for key in ("encoding", "digest", "stored_length"):
        one, two = (r.metadata("zstd").components["data"][key] for r in (old, new))
        assert one == two
    assert new["other"].attributes == {"a": 1}
    assert new.verify("zstd")


def test_removing_what_is_not_there() -> None:
    with pytest.raises(KeyError, match="nothing"):
        ztensor.remove_tensors("model.zt", "trimmed.zt", ["raw", "nothing"])
    assert not Path("trimmed.zt").exists()
    with pytest.raises(ztensor.InvalidArgumentError, match="list"):
        ztensor.remove_tensors("model.zt", "trimmed.zt", "raw")


def test_removing_onto_the_same_file() -> None:
    ztensor.remove_tensors(Path("model.zt"), Path("model.zt"), ("raw", "zstd"))
    assert ztensor.open("model.zt").keys() == ["other"]


def test_replace() -> None:
    size = Path("model.zt").stat().st_size
    new = -np.arange(6.0).reshape(2, 3)
    assert ztensor.replace_tensor("model.zt", "raw", new) is None
    reader = ztensor.open("model.zt")
    assert same_bytes(reader.read_numpy("raw"), new)
    assert reader.verify("raw")
    assert Path("model.zt").stat().st_size == size


def test_replace_leaves_live_views_alone() -> None:
    view = load_file("model.zt")["raw"]
    ztensor.replace_tensor(Path("model.zt"), "raw", np.zeros((2, 3)))
    assert same_bytes(view, np.arange(6.0).reshape(2, 3))
    assert (load_file("model.zt")["raw"] == 0).all()


def test_replacements_from_elsewhere() -> None:
    strided = np.arange(12.0).reshape(2, 6)[:, ::2]
    ztensor.replace_tensor("model.zt", "raw", strided)
    assert (load_file("model.zt")["raw"] == strided).all()
    tensor = torch.ones(2, 3, dtype=torch.float64)
    ztensor.replace_tensor("model.zt", "raw", tensor)
    assert (load_file("model.zt")["raw"] == 1).all()
    raw = np.frombuffer(np.full(6, 2.0).tobytes(), np.uint8)
    ztensor.replace_tensor("model.zt", "raw", raw)
    assert (load_file("model.zt")["raw"] == 2).all()


@pytest.mark.parametrize(
    ("name", "data", "error"),
    [
        ("raw", np.zeros(5), ztensor.InvalidArgumentError),
        ("raw", np.zeros((2, 3), np.int64), ztensor.InvalidArgumentError),
        ("raw", np.zeros(12, np.float32), ztensor.InvalidArgumentError),
        ("raw", "text", ztensor.InvalidArgumentError),
        ("zstd", np.zeros(5000), ztensor.ZTensorError),
        ("nothing", np.zeros(5), KeyError),
    ],
)
def test_replacements_that_do_not_fit(name: str, data: object, error: type[Exception]) -> None:
    before = Path("model.zt").read_bytes()
    with pytest.raises(error):
        ztensor.replace_tensor("model.zt", name, data)
    assert Path("model.zt").read_bytes() == before


def test_edits_of_other_formats_are_refused() -> None:
    from safetensors.numpy import save_file as save_safetensors

    save_safetensors({"x": np.zeros(3)}, "x.safetensors")
    before = Path("x.safetensors").read_bytes()
    for edit in (
        lambda: Writer.append("x.safetensors"),
        lambda: ztensor.replace_tensor("x.safetensors", "x", np.ones(3)),
        lambda: ztensor.remove_tensors("x.safetensors", "y.zt", ["x"]),
    ):
        with pytest.raises(ztensor.ZTensorError):
            edit()
    assert Path("x.safetensors").read_bytes() == before


def test_appending_to_what_is_loaded() -> None:
    save_file({"a": np.arange(1000)}, "x.zt")
    loaded = load_file("x.zt")
    with Writer.append("x.zt") as w:
        w.write_numpy("b", np.ones(3))
    assert (loaded["a"] == np.arange(1000)).all()
    assert set(load_file("x.zt")) == {"a", "b"}
