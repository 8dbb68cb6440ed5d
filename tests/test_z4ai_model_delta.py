"""Model deltas in Python: as documented, chains, families of fine-tunes, bad input."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT
from safetensors.torch import save as save_bytes
from safetensors.torch import save_file

import z4ai
import ztensor.torch
from z4ai import model_delta
from z4ai.safetensors import compress_bytes

V1 = ROOT / "crates" / "ztensor" / "tests" / "data" / "z4dm"


def trained(
    steps: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> dict[str, torch.Tensor]:
    """A small network after some steps of training."""
    torch.manual_seed(seed)
    layers = [torch.nn.Embedding(500, 64), torch.nn.Linear(64, 96), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(96, 500))
    frozen = {"frozen.weight": torch.randn(300, 300)}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(steps):
        tokens = torch.randint(0, 500, (64,), generator=torch.Generator().manual_seed(step))
        loss = torch.nn.functional.cross_entropy(model(tokens), tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    state = {name: tensor.detach().to(dtype) for name, tensor in model.state_dict().items()}
    return state | {name: tensor.to(dtype) for name, tensor in frozen.items()}


def test_as_documented() -> None:
    base_bytes, finetuned_bytes = save_bytes(trained(0)), save_bytes(trained(5))
    blob = model_delta.compress(finetuned_bytes, base_bytes)
    restored = model_delta.decompress(blob, base_bytes)
    assert restored == finetuned_bytes
    Path("base.safetensors").write_bytes(base_bytes)
    Path("finetuned.safetensors").write_bytes(finetuned_bytes)
    stats = model_delta.compress_file("finetuned.safetensors", "base.safetensors", "finetuned.z4dm")
    assert f"{stats['ratio']:.1f}x smaller"
    assert stats["original"] == len(finetuned_bytes) and stats["stored"] == len(blob)
    assert stats["ratio"] == pytest.approx(stats["original"] / stats["stored"])
    assert stats["ratio"] > 2 and stats["copied"] >= 1 and stats["deltas"] >= 1
    done = model_delta.decompress_file("finetuned.z4dm", "base.safetensors", "again.safetensors")
    size = len(finetuned_bytes)
    assert done == {"bytes": size, "stored": len(blob), "restored": size}
    assert Path("again.safetensors").read_bytes() == finetuned_bytes
    assert model_delta.peek_is_model_delta(blob) and blob.startswith(model_delta.MAGIC)
    assert not model_delta.peek_is_model_delta(base_bytes)
    assert z4ai.model_delta is model_delta


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("effort", [None, "fast", "max"])
def test_families(dtype: torch.dtype, effort: str | None) -> None:
    base, tuned = trained(0, dtype), trained(3, dtype)
    renamed = {f"model.{name}": tensor for name, tensor in reversed(tuned.items())}
    grown = tuned | {"0.weight": torch.cat([tuned["0.weight"], torch.randn(20, 64).to(dtype)])}
    dropped = {name: tensor for name, tensor in tuned.items() if name != "1.bias"}
    added = tuned | {"extra": torch.randn(50, 50).to(dtype)}
    unrelated = trained(0, dtype, seed=9)
    small = dict.fromkeys(("same", "tuned", "renamed", "grown", "dropped"))
    for what, target in {
        "same": base,
        "tuned": tuned,
        "renamed": renamed,
        "grown": grown,
        "dropped": dropped,
        "added": added,
        "unrelated": unrelated,
        "empty": {},
    }.items():
        old, new = save_bytes(base), save_bytes(target)
        blob = model_delta.compress(new, old, effort=effort, threads=1)
        assert model_delta.decompress(blob, old) == new, what
        alone = len(compress_bytes(new, effort=effort))
        assert len(blob) <= alone + 4096, what
        if what in small:
            assert len(blob) < 0.8 * alone, what
        assert model_delta.compress(new, old, effort=effort, threads=3) == blob


def test_any_bytes_of_the_target_come_back() -> None:
    base = save_bytes(trained(0))
    target = save_bytes(trained(2), metadata={"step": "2"})
    size = int.from_bytes(target[:8], "little")
    header = target[8 : 8 + size].rstrip()
    padded = (len(header) + 100).to_bytes(8, "little") + header + b" " * 100 + target[8 + size :]
    blob = model_delta.compress(padded, base)
    assert model_delta.decompress(blob, base) == padded


def test_zt_and_packed_files() -> None:
    ztensor.torch.save_file(trained(0), "base.zt")
    ztensor.torch.save_file(trained(3), "tuned.zt", metadata={"a": "b"}, checksum="crc32c")
    save_file(trained(0), "base.safetensors")
    model_delta.compress_file("tuned.zt", "base.zt", "d.z4dm")
    # Any file that holds the same model is the base.
    for base in ("base.zt", "base.safetensors"):
        model_delta.decompress_file("d.z4dm", base, "back.zt")
        assert Path("back.zt").read_bytes() == Path("tuned.zt").read_bytes()


def test_in_place() -> None:
    base, tuned = trained(0), trained(3)
    renamed = {("new." + name if name == "1.bias" else name): t for name, t in tuned.items()}
    ztensor.torch.save_file(base, "model.zt")
    save_file(renamed, "tuned.safetensors")
    model_delta.compress_file("tuned.safetensors", "model.zt", "d.z4dm")
    done = model_delta.apply_in_place("model.zt", "d.z4dm")
    assert done["written"] >= 1 and done["removed"] >= 1
    assert done["bytes"] == Path("model.zt").stat().st_size
    found = ztensor.torch.load_file("model.zt")
    assert found.keys() == renamed.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in renamed.items())
    before = Path("model.zt").read_bytes()
    with pytest.raises(ValueError):
        model_delta.apply_in_place("model.zt", "d.z4dm")
    assert Path("model.zt").read_bytes() == before


def test_chains() -> None:
    states = [trained(steps) for steps in (0, 2, 4, 6)]
    for number, state in enumerate(states):
        save_file(state, f"{number}.safetensors")
    for number in range(3):
        names = (f"{number + 1}.safetensors", f"{number}.safetensors", f"{number}.z4dm")
        model_delta.compress_file(*names)
    deltas = ["0.z4dm", Path("1.z4dm"), "2.z4dm"]
    model_delta.decompress_file(deltas, "0.safetensors", "last")
    assert Path("last").read_bytes() == Path("3.safetensors").read_bytes()
    model_delta.decompress_file(deltas[1:], "1.safetensors", "last")
    assert Path("last").read_bytes() == Path("3.safetensors").read_bytes()
    Path("last").unlink()
    before = sorted(os.listdir())
    for wrong in (["0.z4dm", "2.z4dm"], ["1.z4dm", "0.z4dm"], ["0.z4dm", "0.z4dm"], []):
        with pytest.raises(ValueError):
            model_delta.decompress_file(wrong, "0.safetensors", "last")
    assert sorted(os.listdir()) == before
    links = [model_delta.info(path) for path in deltas]
    assert [link["target"] for link in links[:-1]] == [link["base"] for link in links[1:]]


def test_info() -> None:
    base, tuned = trained(0), trained(3)
    blob = model_delta.compress(save_bytes(tuned), save_bytes(base))
    Path("d.z4dm").write_bytes(blob)
    for found in (
        model_delta.info(blob),
        model_delta.info("d.z4dm"),
        model_delta.info(Path("d.z4dm")),
    ):
        assert found["version"] == 2 and found["stored"] == len(blob)
        how = {change["name"]: change["how"] for change in found["tensors"]}
        assert how["frozen.weight"] == "copy" and how["1.weight"] == "delta"
        assert how.keys() == tuned.keys()
        json.dumps(found)


def test_a_callback_that_raises_at_the_very_end_leaves_nothing_behind() -> None:
    ztensor.torch.save_file(trained(0), "base.zt")
    ztensor.torch.save_file(trained(3), "tuned.zt")

    def stop(done: int, of: int) -> None:
        if done == of:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        model_delta.compress_file("tuned.zt", "base.zt", "d.z4dm", progress=stop)
    assert sorted(os.listdir()) == ["base.zt", "tuned.zt"]
    model_delta.compress_file("tuned.zt", "base.zt", "d.z4dm")
    model_delta.compress_file("base.zt", "tuned.zt", "e.z4dm")
    before = sorted(os.listdir())
    for deltas in ("d.z4dm", ["d.z4dm", "e.z4dm"]):
        with pytest.raises(RuntimeError, match="enough"):
            model_delta.decompress_file(deltas, "base.zt", "out.zt", progress=stop)
    base = Path("base.zt").read_bytes()
    with pytest.raises(RuntimeError, match="enough"):
        model_delta.apply_in_place("base.zt", "d.z4dm", progress=stop)
    assert Path("base.zt").read_bytes() == base
    assert sorted(os.listdir()) == before


def test_bad_input_leaves_nothing_behind() -> None:
    base, target = save_bytes(trained(0)), save_bytes(trained(2))
    blob = model_delta.compress(target, base)
    Path("base").write_bytes(base)
    Path("d.z4dm").write_bytes(blob)
    before = sorted(os.listdir())
    changed = bytearray(base)
    changed[-1] ^= 1
    renamed = save_bytes({f"x.{name}": tensor for name, tensor in trained(0).items()})
    for wrong in (target, bytes(changed), renamed):
        with pytest.raises(ValueError):
            model_delta.decompress(blob, wrong)
    random = np.random.default_rng(0)
    for size in (0, 4, 5, 60, len(blob) // 2, len(blob) - 1):
        with pytest.raises(ValueError):
            model_delta.decompress(blob[:size], base)
    for _ in range(60):
        damaged = bytearray(blob)
        damaged[random.integers(len(blob))] ^= 1 << random.integers(8)
        with pytest.raises(ValueError):
            model_delta.decompress(damaged, base)
    with pytest.raises(ValueError, match="not a model delta"):
        model_delta.decompress(base, base)
    with pytest.raises(ValueError):
        model_delta.compress(b"nothing", base)
    with pytest.raises(TypeError):
        model_delta.compress("text", base)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        model_delta.compress_file("absent", "base", "out")
    with pytest.raises(FileNotFoundError):
        model_delta.decompress_file("absent", "base", "out")
    with pytest.raises(ValueError, match="effort"):
        model_delta.compress(target, base, effort="nope")
    with pytest.raises(ValueError, match=r"z4ai.model_delta.decompress"):
        z4ai.decompress(blob)
    assert sorted(os.listdir()) == before


def test_deltas_of_version_1() -> None:
    blobs = sorted(V1.glob("*.blob"))
    assert blobs
    for path in blobs:
        base = next(V1.glob(path.stem + ".base*"), None) or path.with_suffix(".ref")
        original: Any = path.with_suffix(".orig")
        assert model_delta.decompress(path.read_bytes(), base.read_bytes()) == original.read_bytes()


def test_wrong_types_are_named() -> None:
    with pytest.raises(TypeError, match=r"the base must be bytes-like.*not int"):
        model_delta.compress(b"", 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"the target must be bytes-like.*not str"):
        model_delta.compress("text", b"")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"the delta must be bytes-like.*not NoneType"):
        model_delta.decompress(None, b"")  # type: ignore[arg-type]
