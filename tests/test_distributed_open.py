"""A distributed checkpoint's folder opens like any model: whole tensors, not chunks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ztensor  # noqa: E402
from ztensor.distributed import distribute  # noqa: E402
from ztensor.torch import save_file  # noqa: E402


@pytest.mark.parametrize("compression", [None, "fast"])
def test_the_folder_opens_as_whole_tensors(compression: Any) -> None:
    state = {
        "weight": torch.arange(70.0).reshape(10, 7),
        "bias": torch.arange(3, dtype=torch.int64),
        "scalar": torch.tensor(2.5, dtype=torch.bfloat16),
    }
    save_file(state, "source.zt")
    distribute("source.zt", "checkpoint", ranks=3, compression=compression)
    for path in ("checkpoint", "checkpoint/checkpoint.json"):
        reader = ztensor.open(path)
        assert sorted(reader.keys()) == sorted(state)
        for name, tensor in state.items():
            assert torch.equal(reader.read_torch(name, copy=True), tensor), name
    command = [sys.executable, "-m", "ztensor", "convert", "checkpoint", "model.safetensors"]
    subprocess.run(command, check=True, capture_output=True)
    whole = ztensor.open("model.safetensors")
    for name, tensor in state.items():
        assert torch.equal(whole.read_torch(name), tensor), name


def test_a_changed_rank_file_is_refused() -> None:
    save_file({"weight": torch.arange(70.0).reshape(10, 7)}, "source.zt")
    distribute("source.zt", "checkpoint", ranks=2)
    rank = next(Path("checkpoint").glob("rank-*.zt"))
    rank.write_bytes(rank.read_bytes() + b"\0")
    with pytest.raises(ztensor.ZTensorError):
        ztensor.open("checkpoint")
