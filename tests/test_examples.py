"""The programs in examples/ run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *arguments: str, folder: Path) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


def weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "embed": random.standard_normal((500, 64)).astype(np.float32),
        "norm": np.ones(64, "f4"),
    }


def test_a_checkpoint_becomes_safetensors(tmp_path: Path) -> None:
    tensors = weights()
    torch.save({k: torch.from_numpy(v) for k, v in tensors.items()}, tmp_path / "c.pt")
    assert "2 tensors" in run("pt_to_safetensors.py", "c.pt", "m.safetensors", folder=tmp_path)
    loaded = load_file(tmp_path / "m.safetensors")
    assert all(np.array_equal(loaded[name], tensors[name]) for name in tensors)


def test_a_model_is_packed_and_read_by_rows(tmp_path: Path) -> None:
    save_file(weights(), tmp_path / "m.safetensors")
    assert "(2, 64)" in run("pack_and_serve.py", "m.safetensors", folder=tmp_path)


def test_a_fine_tune_is_stored_as_a_delta(tmp_path: Path) -> None:
    tensors = weights()
    save_file(tensors, tmp_path / "base.safetensors")
    save_file(tensors | {"norm": tensors["norm"] * 2}, tmp_path / "tuned.safetensors")
    said = run("finetune_delta.py", "base.safetensors", "tuned.safetensors", folder=tmp_path)
    assert "identical" in said
