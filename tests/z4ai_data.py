"""Weights that tests of the codec are made with."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from conftest import ROOT

V1 = ROOT / "crates" / "z4ai" / "tests" / "data" / "v1"
"""Frames of version 1."""

EFFORTS = [None, "fast", "default", "balanced", "max"]


def weights(count: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(count) * 0.02).astype(dtype)


def bf16_bytes(count: int, seed: int = 0) -> bytes:
    return weights(count, ml_dtypes.bfloat16, seed).view(np.uint16).tobytes()
