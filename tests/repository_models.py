"""Small models for tests of repositories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import ztensor
from ztensor.numpy import save_file


def weights(seed: int, *, dtype: Any = np.float32) -> dict[str, Any]:
    """A small transformer."""
    rng = np.random.default_rng(seed)
    shapes = {"embed.weight": (200, 64), "lm_head.weight": (200, 64)}
    for layer in range(3):
        shapes[f"layers.{layer}.attn.weight"] = (64, 64)
        shapes[f"layers.{layer}.mlp.weight"] = (192, 64)
        shapes[f"layers.{layer}.norm.weight"] = (64,)
    return {
        name: (rng.standard_normal(shape) * 0.02).astype(dtype) for name, shape in shapes.items()
    }


def tuned(model: dict[str, Any], seed: int, scale: float = 1e-7) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        name: (value + rng.standard_normal(value.shape) * scale).astype(value.dtype)
        for name, value in model.items()
    }


def folder(path: Path, model: dict[str, Any], suffix: str = "safetensors") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    save_file(model, path / f"model.{suffix}")
    (path / "config.json").write_text(json.dumps({"hidden_size": 64}))
    (path / "tokenizer.json").write_text("word\n" * 2000)
    return path


def contents(path: Path) -> dict[str, bytes]:
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def same(reader: ztensor.Reader, model: dict[str, Any]) -> bool:
    return sorted(reader.keys()) == sorted(model) and all(
        reader.read_numpy(name).tobytes() == value.tobytes() for name, value in model.items()
    )
