"""Folders of models, packed: what is written where, and what is never written to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file as plain_save_file

import z4ai


def state() -> dict[str, torch.Tensor]:
    return {"weight": torch.arange(640, dtype=torch.bfloat16).reshape(64, 10)}


def test_packing_folders() -> None:
    os.mkdir("m")
    with pytest.raises(OSError, match=r"neither model\.safetensors nor"):
        z4ai.pack_model("m")
    plain_save_file(state(), "m/model.safetensors")
    Path("m/config.json").write_text("{}")
    Path("m/pytorch_model.bin").write_text("weights of another format")
    with pytest.raises(ValueError, match="variant"):
        z4ai.pack_model("m", variant="../x")
    z4ai.pack_model("m", "out", variant="small", effort="max")
    assert sorted(os.listdir("out")) == ["config.json", "model.small.safetensors"]
    Path("m/model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "../model.safetensors"}})
    )
    with pytest.raises(ValueError, match="outside"):
        z4ai.pack_model("m")


def test_packing_writes_through_no_link() -> None:
    """A folder that was downloaded may hold links by the names that packed files get."""
    os.mkdir("m")
    plain_save_file(state(), "m/model.safetensors")
    Path("precious").write_text("keep")
    for name, leads_to in {"model.z4ai.safetensors": "../planted", "config.json": "x"}.items():
        os.symlink(leads_to, Path("m", name))
    with pytest.raises(OSError, match=r"model\.z4ai\.safetensors exists already"):
        z4ai.pack_model("m")
    assert not os.path.lexists("planted")
    z4ai.pack_model("m", overwrite=True)
    assert not Path("m/model.z4ai.safetensors").is_symlink() and not os.path.lexists("planted")
    # In another folder too, for the files that are copied there.
    os.unlink("m/config.json")
    Path("m/config.json").write_text("{}")
    os.mkdir("out")
    os.symlink("../precious", "out/config.json")
    z4ai.pack_model("m", "out")
    assert Path("precious").read_text() == "keep"
    assert Path("out/config.json").read_text() == "{}"
    # The index of shards as well.
    os.mkdir("s")
    plain_save_file(state(), "s/weights.safetensors")
    index = {"weight_map": dict.fromkeys(state(), "weights.safetensors")}
    Path("s/model.safetensors.index.json").write_text(json.dumps(index))
    os.symlink("../precious", "s/model.safetensors.index.z4ai.json")
    with pytest.raises(OSError, match="exists already"):
        z4ai.pack_model("s")
    z4ai.pack_model("s", overwrite=True)
    assert Path("precious").read_text() == "keep"


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("weights.safetensors", "weights.z4ai.safetensors"),
        ("weights-00001-of-00001.safetensors", "weights.z4ai-00001-of-00001.safetensors"),
        ("model-00001-of-00001.safetensors", "model.z4ai-00001-of-00001.safetensors"),
        ("weights", "weights.z4ai"),
    ],
)
def test_originals_are_never_written_to(name: str, packed: str) -> None:
    os.mkdir("m")
    plain_save_file(state(), Path("m", name))
    index = {"weight_map": dict.fromkeys(state(), name)}
    Path("m/model.safetensors.index.json").write_text(json.dumps(index))
    before = Path("m", name).read_bytes()
    assert z4ai.pack_model("m", overwrite=True)["files"] == [packed]
    assert Path("m", name).read_bytes() == before
    # Nor where the packed file of one shard would be another shard.
    plain_save_file(state(), Path("m", packed))
    index["weight_map"]["another"] = packed
    Path("m/model.safetensors.index.json").write_text(json.dumps(index))
    before = Path("m", packed).read_bytes()
    with pytest.raises(ValueError, match="choose another variant"):
        z4ai.pack_model("m", overwrite=True)
    assert Path("m", packed).read_bytes() == before
