"""ONNX models as published, tensor by tensor against the format's own library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ztensor

onnx = pytest.importorskip("onnx")


def constants(graph: Any, prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """What a model's graph holds, under the names that the reader gives."""
    for tensor in graph.initializer:
        yield prefix + tensor.name, onnx.numpy_helper.to_array(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            name = prefix + node.output[0]
            if attribute.HasField("g"):
                yield from constants(attribute.g, f"{name}.{attribute.name}.")
            elif attribute.HasField("t"):
                value = onnx.numpy_helper.to_array(attribute.t)
                is_own = node.op_type == "Constant" and attribute.name == "value"
                yield name if is_own else f"{name}.{attribute.name}", value
            elif node.op_type == "Constant" and attribute.name.startswith("value_"):
                kind = np.int64 if "int" in attribute.name else np.float32
                yield name, np.array(onnx.helper.get_attribute_value(attribute), kind)


@pytest.mark.parametrize(
    ("package", "pattern", "count"),
    [
        ("nudenet", "320n.onnx", 202),
        ("rapidocr", "ch_ppocr_mobile_v2.0_cls_mobile.onnx", 308),
        ("silero-vad", "silero_vad.onnx", 345),
        ("silero-vad", "silero_vad_half.onnx", 172),
    ],
)
def test_a_published_model(
    real_file: Callable[[str, str], Path], package: str, pattern: str, count: int
) -> None:
    path = real_file(package, pattern)
    model = onnx.load(path)
    expected = dict(constants(model.graph))
    with ztensor.Reader(path) as reader:
        assert reader.format == "onnx"
        assert set(reader.keys()) == set(expected)
        assert len(expected) == count
        for name, array in expected.items():
            if array.dtype == object:
                continue  # strings
            tensor = reader.read(name)
            assert list(tensor.shape) == list(array.shape), name
            (found,) = tensor.components.values()
            assert np.ascontiguousarray(found).tobytes() == array.tobytes(), name
        assert reader.attributes["producer_name"] == model.producer_name
