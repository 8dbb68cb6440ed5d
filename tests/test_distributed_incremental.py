"""Checkpoints as differences from earlier ones."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import ztensor
from ztensor.distributed import (
    ZTensorReader,
    ZTensorWriter,
    _checkpoint,
    consolidate,
    distribute,
    prune,
    read_shard,
    rebase,
)

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def save(state: dict[str, Any], path: str, **options: Any) -> None:
    dcp.save(state, storage_writer=ZTensorWriter(path, **options), no_dist=True)


def load(state: dict[str, Any], path: str) -> dict[str, Any]:
    empty = {
        name: torch.zeros_like(value) if isinstance(value, torch.Tensor) else None
        for name, value in state.items()
    }
    dcp.load(empty, storage_reader=ZTensorReader(path), no_dist=True)
    return empty


def check(state: dict[str, Any], path: str) -> None:
    found = load(state, path)
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            bytes_of = [t.reshape(-1).view(torch.uint8) for t in (found[name], value)]
            assert torch.equal(*bytes_of), name
        else:
            assert found[name] == value


def training(steps: int) -> list[dict[str, Any]]:
    """The states of a network that is trained: weights and both moments of AdamW."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs, targets = torch.randn(256, 64), torch.randint(0, 8, (256,))
    states = []
    for step in range(steps):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state: dict[str, Any] = {"step": step}
        for name, parameter in model.named_parameters():
            moments = optimizer.state[parameter]
            state[name] = parameter.detach().clone()
            state[f"{name}.bf16"] = parameter.detach().to(torch.bfloat16)
            state[f"{name}.exp_avg"] = moments["exp_avg"].clone()
            state[f"{name}.exp_avg_sq"] = moments["exp_avg_sq"].clone()
        states.append(state)
    return states


def size(path: str) -> int:
    return sum(file.stat().st_size for file in Path(path).iterdir())


def document(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(path) / "checkpoint.json").read_text())
    return found


def test_every_step_of_a_run_comes_back() -> None:
    states = training(5)
    save(states[0], "run/0")
    for step in range(1, 5):
        save(states[step], f"run/{step}", base=f"run/{step - 1}", anchor_every=100)
    for step, state in enumerate(states):
        check(state, f"run/{step}")
    assert document("run/0")["version"] == 1
    assert document("run/4")["version"] == 2
    assert document("run/4")["base"]["deltas"] == 4
    assert size("run/4") < 0.8 * size("run/0")


def test_an_unchanged_state_takes_next_to_nothing() -> None:
    state = {"weight": torch.randn(256, 1024), "step": 1}
    save(state, "run/a")
    save(state, "run/b", base="run/a")
    check(state, "run/b")
    assert size("run/b") < size("run/a") / 100


def test_full_checkpoints_come_every_so_often() -> None:
    states = training(7)
    save(states[0], "run/0")
    for step in range(1, 7):
        save(states[step], f"run/{step}", base=f"run/{step - 1}", anchor_every=3)
    chain = [document(f"run/{step}").get("base", {}).get("deltas", 0) for step in range(7)]
    assert chain == [0, 1, 2, 3, 0, 1, 2]
    for step, state in enumerate(states):
        check(state, f"run/{step}")


def test_differences_that_pile_up_end_in_a_full_checkpoint() -> None:
    torch.manual_seed(0)
    states = [{"weight": torch.randn(64, 1024)} for _ in range(2)]
    save(states[0], "run/0")
    for step in range(1, 6):
        # Half of the weights are new each time.
        states.append({"weight": states[-1]["weight"].clone()})
        states[-1]["weight"][:32] = torch.randn(32, 1024)
        save(states[-1], f"run/{step}", base=f"run/{step - 1}")
        check(states[-1], f"run/{step}")
    full = [step for step in range(6) if "base" not in document(f"run/{step}")]
    assert len(full) >= 2


@pytest.mark.parametrize("ranks", [1, 3])
def test_bases_may_be_cut_in_another_way(ranks: int) -> None:
    before = {"weight": torch.randn(48, 64), "other": torch.randn(10)}
    after = {"weight": before["weight"] * 1.0001, "other": before["other"], "new": torch.ones(4)}
    ztensor.torch.save_file(before, "before.zt")
    distribute("before.zt", "run/0", ranks=ranks)
    save(after, "run/1", base="run/0", compression="default")
    check(after, "run/1")
    part = read_shard("run/1", "weight", 1, rank=1, world=4)
    assert part.equal(after["weight"][:, 16:32])
    assert any(chunk.get("delta") for chunk in document("run/1")["tensors"]["weight"]["chunks"])


def test_tensors_that_changed_their_form_are_stored_whole() -> None:
    save({"a": torch.zeros(8, 64), "b": torch.zeros(512)}, "run/0")
    state = {"a": torch.zeros(64, 8), "b": torch.zeros(512, dtype=torch.float64)}
    save(state, "run/1", base="run/0")
    check(state, "run/1")
    assert document("run/1")["version"] == 1


def test_a_base_that_is_missing_is_refused_beforehand() -> None:
    states = training(3)
    save(states[0], "run/0")
    save(states[1], "run/1", base="run/0")
    shutil.move("run/0", "elsewhere")
    with pytest.raises(dcp.api.CheckpointException, match="missing or was replaced"):
        load(states[1], "run/1")
    with pytest.raises(FileNotFoundError, match="restore that folder first"):
        consolidate("run/1", "model.safetensors")
    with pytest.raises(dcp.api.CheckpointException, match="missing or was replaced"):
        save(states[2], "run/2", base="run/1")
    assert not list(Path("run/2").glob("*.zt"))
    with pytest.raises(dcp.api.CheckpointException, match="no distributed checkpoint"):
        save(states[2], "run/2", base="run/nothing")
    shutil.move("elsewhere", "run/0")
    check(states[1], "run/1")


def test_a_base_under_another_name_is_found() -> None:
    states = training(2)
    save(states[0], "run/0")
    save(states[1], "run/1", base="run/0")
    shutil.move("run/0", "run/first")
    check(states[1], "run/1")


def test_a_base_is_not_overwritten() -> None:
    states = training(3)
    save(states[0], "run/0")
    save(states[1], "run/1", base="run/0")
    with pytest.raises(dcp.api.CheckpointException, match="1 is a difference from"):
        save(states[2], "run/0")
    check(states[1], "run/1")
    rebase("run/1")
    save(states[2], "run/0")
    check(states[1], "run/1")
    check(states[2], "run/0")


def test_another_save_in_the_place_of_the_base_is_noticed() -> None:
    states = training(3)
    save(states[0], "run/0")
    save(states[1], "run/1", base="run/0")
    shutil.rmtree("run/0")
    save(states[2], "run/0")
    with pytest.raises(dcp.api.CheckpointException, match="replaced by another save"):
        load(states[1], "run/1")


def test_bases_lie_beside() -> None:
    states = training(2)
    save(states[0], "run/0")
    for path, base in [("other/1", "run/0"), ("run/0", "run/0"), ("1", "run/0")]:
        with pytest.raises(dcp.api.CheckpointException, match=r"beside|its own base"):
            save(states[1], path, base=base)
    with pytest.raises(ztensor.InvalidArgumentError, match="anchor_every"):
        ZTensorWriter("run/1", base="run/0", anchor_every=0)


def test_rebase_keeps_the_state_and_what_needs_it() -> None:
    states = training(4)
    save(states[0], "run/0")
    for step in range(1, 4):
        save(states[step], f"run/{step}", base=f"run/{step - 1}", anchor_every=100)
    rebase("run/2", base="run/0")
    assert document("run/2")["base"]["name"] == "0"
    for step, state in enumerate(states):
        check(state, f"run/{step}")
    assert prune("run", keep=["3"]) == ["1"]
    check(states[3], "run/3")
    rebase("run/2")
    assert document("run/2")["version"] == 1
    assert prune("run", keep=["3", "2"]) == ["0"]
    check(states[2], "run/2")
    check(states[3], "run/3")
    with pytest.raises(ztensor.InvalidArgumentError, match="based on this checkpoint"):
        rebase("run/2", base="run/3")


def test_prune_refuses_before_it_removes() -> None:
    states = training(3)
    save(states[0], "run/0")
    save(states[1], "run/1", base="run/0")
    save(states[2], "run/2")
    Path("run/notes").mkdir()
    Path("run/notes/text").write_text("kept")
    with pytest.raises(ztensor.NotFoundError, match="no complete checkpoint"):
        prune("run", keep=["notes"])
    shutil.move("run/0", "elsewhere")
    with pytest.raises(FileNotFoundError):
        prune("run", keep=["1"])
    assert Path("run/2/checkpoint.json").exists()
    shutil.move("elsewhere", "run/0")
    assert prune("run", keep=["1"]) == ["2"]
    assert sorted(path.name for path in Path("run").iterdir()) == ["0", "1", "notes"]


def test_consolidating_takes_the_whole_chain() -> None:
    states = training(3)
    save(states[0], "run/0")
    save(states[1], "run/1", base="run/0")
    save(states[2], "run/2", base="run/1")
    with pytest.raises(ztensor.UnsupportedError, match="differences from another one"):
        ztensor.open("run/2")
    consolidate("run/2", "model.safetensors")
    model = ztensor.torch.load_file("model.safetensors")
    assert all(model[name].equal(t) for name, t in states[2].items() if name != "step")


def test_damaged_deltas_and_documents_are_refused() -> None:
    states = training(2)
    save(states[0], "run/0")
    save(states[1], "run/1", base="run/0")
    good = (Path("run/1") / "checkpoint.json").read_text()
    broken = [
        ("base", None),
        ("base", {"name": "../0", "save": "x", "deltas": 1, "bytes": 1}),
        ("base", {"name": "..", "save": "x", "deltas": 1, "bytes": 1}),
        ("base", {"name": "0", "save": "x", "deltas": 0, "bytes": 1}),
        ("base", {"name": "0", "save": "x", "deltas": 1 << 40, "bytes": 1}),
        ("base", {"name": "0", "save": "x", "deltas": 1}),
        ("version", 1),
        ("version", 3),
    ]
    for key, value in broken:
        changed = json.loads(good)
        changed[key] = value
        (Path("run/1") / "checkpoint.json").write_text(json.dumps(changed))
        with pytest.raises(dcp.api.CheckpointException):
            load(states[1], "run/1")
    # A checkpoint that is a difference from itself.
    changed = json.loads(good)
    changed["base"] |= {"name": "1", "save": changed["save"]}
    (Path("run/1") / "checkpoint.json").write_text(json.dumps(changed))
    with pytest.raises(dcp.api.CheckpointException, match="based on each other"):
        load(states[1], "run/1")
    (Path("run/1") / "checkpoint.json").write_text(good)
    [file] = Path("run/1").glob("*.zt")
    data = file.read_bytes()
    for at in random.Random(0).sample(range(64, len(data)), 40):
        file.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        # Padding may differ, tensors may not.
        with contextlib.suppress(dcp.api.CheckpointException):
            check(states[1], "run/1")
    file.write_bytes(data)
    check(states[1], "run/1")


def test_a_chain_document_round_trips() -> None:
    states = training(2)
    save(states[0], "run/0")
    save(states[1], "run/1", base="run/0")
    data = (Path("run/1") / "checkpoint.json").read_bytes()
    assert _checkpoint.Checkpoint.from_json(data).to_json() == data
