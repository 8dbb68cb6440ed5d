"""``ztensor://`` for fsspec: packed files as the plain ones that they restore."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from remote_servers import range_server
from safetensors.torch import load, save_file

import z4ai
from z4ai.safetensors import compress_file

fsspec = pytest.importorskip("fsspec")
from ztensor.fsspec import RestoredFileSystem  # noqa: E402


@pytest.fixture
def system() -> Any:
    fsspec.register_implementation("ztensor", RestoredFileSystem, clobber=True)
    return fsspec.filesystem("ztensor", skip_instance_cache=True)


@pytest.fixture
def packed() -> bytes:
    """The plain bytes of ``packed.safetensors``."""
    torch.manual_seed(0)
    tensors = {
        "b": torch.randn(700, 300).bfloat16(),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "a": torch.randn(33, 7, 5),
        "row": torch.randn(1, 50),
        "int": torch.arange(10),
        "bool": torch.tensor([True, False, True]),
    }
    save_file(tensors, "plain.safetensors", metadata={"format": "pt", "é": "ü"})
    compress_file("plain.safetensors", "packed.safetensors")
    os.rename("plain.safetensors", "plain")
    return Path("plain").read_bytes()


def test_every_range_is_that_of_the_plain_file(system: Any, packed: bytes) -> None:
    assert system.cat_file("packed.safetensors") == packed
    assert system.info("ztensor://packed.safetensors")["size"] == len(packed)
    assert system.size("packed.safetensors") == len(packed)
    chosen = random.Random(1)
    bounds = [0, 1, 7, 8, 9, len(packed) - 1, len(packed)]
    header = json.loads(packed[8 : 8 + int.from_bytes(packed[:8], "little")])
    start = 8 + int.from_bytes(packed[:8], "little")
    for name, one in header.items():
        if name != "__metadata__":
            bounds += [start + at + by for at in one["data_offsets"] for by in (-1, 0, 1)]
    bounds = [at for at in bounds if 0 <= at <= len(packed)]
    for _ in range(300):
        first = chosen.choice([*bounds, chosen.randrange(len(packed))])
        last = chosen.choice([*bounds, chosen.randrange(len(packed))])
        assert system.cat_file("packed.safetensors", first, last) == packed[first:last]
    assert system.cat_file("packed.safetensors", -10) == packed[-10:]
    assert system.cat_file("packed.safetensors", 5, 10**12) == packed[5:]
    ranges = system.cat_ranges(["packed.safetensors"] * 3, [0, 50, 9000], [8, 60, 9100])
    assert ranges == [packed[:8], packed[50:60], packed[9000:9100]]
    with pytest.raises(FileNotFoundError):
        system.cat_ranges(["absent"], [0], [1], on_error="raise")
    [error] = system.cat_ranges(["absent"], [0], [1])
    assert isinstance(error, FileNotFoundError)


def test_open_files(system: Any, packed: bytes) -> None:
    with fsspec.open("ztensor://packed.safetensors") as file:
        assert file.read(8) == packed[:8]
        file.seek(-20, os.SEEK_END)
        assert file.read() == packed[-20:]
        file.seek(0)
        assert load(file.read()).keys() == load(packed).keys()
    absolute = f"ztensor://{Path.cwd()}/packed.safetensors"
    with fsspec.open(absolute, block_size=1000) as file:
        assert file.read() == packed
    with fsspec.open(f"simplecache::{absolute}") as file:
        assert file.read() == packed
    with pytest.raises(ValueError, match="read-only"):
        system.open("packed.safetensors", "wb")


def test_folders(system: Any, packed: bytes) -> None:
    os.makedirs("m/inner")
    os.rename("packed.safetensors", "m/model.safetensors")
    Path("m/config.json").write_text("{}")
    Path("m/inner/x").write_text("x")
    found = {Path(one["name"]).name: (one["type"], one["size"]) for one in system.ls("m")}
    assert found == {
        "model.safetensors": ("file", len(packed)),
        "config.json": ("file", 2),
        "inner": ("directory", 0),
    }
    assert sorted(system.find("m")) == ["m/config.json", "m/inner/x", "m/model.safetensors"]
    assert system.glob("m/*.json") == ["m/config.json"]
    assert system.isdir("m") and system.isfile("m/config.json") and not system.exists("absent")
    assert system.cat_file("m/config.json") == b"{}"
    system.get("m", "copied", recursive=True)
    assert Path("copied/model.safetensors").read_bytes() == packed


def test_a_url_is_read_by_ranges(system: Any) -> None:
    big = {str(n): torch.randn(400, 500) for n in range(6)}
    save_file(big, "plain")
    compress_file("plain", "p.safetensors")
    plain = Path("plain").read_bytes()
    with range_server() as server:
        url = server.put("p.safetensors", Path("p.safetensors").read_bytes())
        with system.open(f"ztensor://{url}", block_size=2048) as file:
            server.received()
            file.seek(len(plain) // 2)
            assert file.read(100) == plain[len(plain) // 2 :][:100]
            assert server.received() < len(plain) / 8
        assert system.cat_file(url) == plain


def test_damage_is_an_error(system: Any, packed: bytes) -> None:
    data = bytearray(Path("packed.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    Path("packed.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match=r"packed\.safetensors"):
        system.cat_file("packed.safetensors")
    # Breaks a rule of the format, and is therefore packed without knowledge of its tensors.
    Path("whole").write_bytes(packed + b"trailing")
    compress_file("whole", "whole.zstn")
    with pytest.raises(ValueError, match="packed as a whole"):
        system.cat_file("whole.zstn")
    z4ai.safetensors.decompress_file("whole.zstn", "back")
    assert Path("back").read_bytes() == Path("whole").read_bytes()


def test_the_entry_points_name_them() -> None:
    import tomllib
    from importlib.metadata import EntryPoint

    from conftest import ROOT

    from ztensor.fsspec import RepositoryFileSystem

    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    expected = {"ztensor": RestoredFileSystem, "ztensor-repo": RepositoryFileSystem}
    found = {
        name: EntryPoint(name, value, "fsspec.specs").load()
        for name, value in entries["fsspec.specs"].items()
    }
    assert found == expected
