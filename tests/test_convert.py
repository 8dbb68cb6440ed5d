"""``ztensor.convert``: what the command does, from Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from test_compatibility import quantized_file

import ztensor
import ztensor.numpy
from ztensor import convert


def test_metadata_comes_along() -> None:
    expected = quantized_file()
    convert("model.gguf", "model.zt", compression="fast", checksum="crc32c")
    reader = ztensor.open("model.zt")
    assert reader.attributes == ztensor.open("model.gguf").attributes
    assert reader["q"].format == "gguf.q8_0" and reader.verify().unchecked == 0
    convert("model.zt", "again.gguf")
    assert Path("again.gguf").read_bytes() == Path("model.gguf").read_bytes()
    notes = convert("model.gguf", "model.safetensors", dequantize=True, dtype=np.float16)
    loaded = safetensors.numpy.load_file("model.safetensors")
    assert loaded["q"].dtype == np.float16 and loaded["i"].dtype == np.int32
    assert np.array_equal(loaded["q"], expected.astype(np.float16))
    assert isinstance(notes, list)


def test_names() -> None:
    tensors = {f"model.layers.{index}": np.full(2, index) for index in range(3)}
    ztensor.numpy.save_file({**tensors, "model.head": np.ones(2)}, "a.zt")
    options = {"strip_prefix": "model.", "rename": {"layers.*": "blocks.*"}, "exclude": "*head"}
    convert("a.zt", "b.npz", **options)  # type: ignore[arg-type]
    with np.load("b.npz") as archive:
        assert sorted(archive.files) == ["blocks.0", "blocks.1", "blocks.2"]
    convert("a.zt", "c.safetensors", only=["*.0", "*.1"])
    assert len(ztensor.open("c.safetensors")) == 2


def test_several_files_and_shards() -> None:
    ztensor.numpy.save_file({"a": np.zeros(1000)}, "a.zt", metadata={"k": "1"})
    ztensor.numpy.save_file({"b": np.ones(1000)}, "b.zt", metadata={"k": "2"})
    with pytest.raises(ValueError, match="k"):
        convert(["a.zt", "b.zt"], "c.safetensors")
    convert(["a.zt", "b.zt"], "c.safetensors", on_conflict="last")
    assert ztensor.open("c.safetensors").attributes == {"k": "2"}
    convert(["a.zt", "b.zt"], "m.safetensors", on_conflict="first", max_shard_size=9000)
    index = next(Path().glob("m*.index.json"))
    assert sorted(ztensor.open(index)) == ["a", "b"]


def test_nothing_is_overwritten_unasked() -> None:
    ztensor.numpy.save_file({"a": np.zeros(3)}, "a.zt")
    convert("a.zt", "b.safetensors")
    with pytest.raises(ValueError, match=r"b\.safetensors"):
        convert("a.zt", "b.safetensors")
    convert("a.zt", "b.safetensors", overwrite=True)


def test_failures_are_exceptions() -> None:
    with pytest.raises(FileNotFoundError):
        convert("nothing.zt", "b.safetensors")
    Path("garbage.zt").write_bytes(b"garbage" * 100)
    with pytest.raises(RuntimeError):
        convert("garbage.zt", "b.safetensors")
    ztensor.numpy.save_file({"a": np.zeros(3)}, "a.zt", metadata={"x": "y"})
    with pytest.raises(ztensor.ZTensorError, match="metadata"):
        convert("a.zt", "b.npz")
    assert any("x" in note for note in convert("a.zt", "b.npz", drop_metadata=True))
    with pytest.raises(ValueError, match=r"b\.pt"):
        convert("a.zt", "b.pt")
    with pytest.raises(ValueError, match="floating-point"):
        convert("a.zt", "b.safetensors", dtype="int8", overwrite=True)


def test_progress_and_cancelling() -> None:
    ztensor.numpy.save_file({f"t{index}": np.zeros(10000) for index in range(20)}, "a.zt")
    told: list[tuple[int, int]] = []
    convert("a.zt", "b.safetensors", progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (1_600_000, 1_600_000)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert("a.zt", "c.safetensors", progress=stop)
    assert not Path("c.safetensors").exists()
