"""Repositories in other libraries: from_pretrained, fsspec, Trainer, distributed checkpoints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from repository_models import contents, folder, same, tuned, weights

import ztensor
from ztensor.repository import Repository


def test_models_are_loaded_without_a_checkout(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    import z4ai

    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, vocab_size=100, n_positions=16, n_ctx=16
    )
    repository = Repository.init(tmp_path / "repo")
    states = []
    model = transformers.GPT2LMHeadModel(config)
    for step in range(2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 1e-3 * step)
        states.append({name: value.clone() for name, value in model.state_dict().items()})
        # In shards, and in one file.
        size = {"max_shard_size": "100KB"} if step else {}
        model.save_pretrained(tmp_path / f"step{step}", **size)
        repository.commit(tmp_path / f"step{step}", f"step {step}")
    for step, state in enumerate(states):
        version = repository.version(f"main~{1 - step}")
        with version.pretrained() as folder:
            weights = list(Path(folder).glob("*.safetensors"))
            assert len(weights) == (1 if step == 0 else len(weights)) and weights
            assert all(file.stat().st_size == 0 for file in weights), "nothing is restored"
            loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
        assert not Path(folder).exists() and not z4ai.is_enabled()
        assert loaded.config.n_embd == 32
        for name, value in state.items():
            assert torch.equal(loaded.state_dict()[name], value), name


def test_a_folder_without_tensors_is_named(tmp_path: Path) -> None:
    repository = Repository.init(tmp_path / "repo")
    source = folder(tmp_path / "model", weights(1))
    (source / "notes").mkdir()
    (source / "notes" / "read.me").write_text("nothing to see")
    repository.commit(source, "one")
    with pytest.raises(ztensor.NotFoundError) as caught:
        repository.version("main").open("notes")
    said = str(caught.value)
    assert said.startswith(str(tmp_path)) and "/notes: there is no tensor file" in said, said


def test_fsspec(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    from ztensor.fsspec import RepositoryFileSystem

    repository = Repository.init(tmp_path / "repo")
    where = folder(tmp_path / "a" / "sub", weights(12)).parent
    repository.commit(where, branch="exp/a")
    files = RepositoryFileSystem()
    root = f"{tmp_path / 'repo'}@exp/a"
    assert files.ls(root, detail=False) == [f"{root}/sub"]
    assert len(files.ls(f"{root}/sub")) == 3
    expected = (where / "sub" / "model.safetensors").read_bytes()
    path = f"{root}/sub/model.safetensors"
    assert files.info(path)["size"] == len(expected)
    assert files.cat_file(path, 100, 300) == expected[100:300]
    assert files.cat_file(path, -100) == expected[-100:]
    with files.open(path) as file:
        file.seek(1000)
        assert file.read(50) == expected[1000:1050]
    assert sorted(files.find(root)) == sorted(f"{root}/{name}" for name in contents(where))
    for bad in (f"{root}/none", str(tmp_path), f"{tmp_path / 'repo'}@none/x"):
        with pytest.raises(ztensor.ZTensorError):
            files.info(bad)
    fsspec.register_implementation("ztensor-repo", RepositoryFileSystem, clobber=True)
    with fsspec.open(f"ztensor-repo://{root}/sub/config.json") as file:
        assert json.load(file) == {"hidden_size": 64}


def test_the_callback_of_the_trainer(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from ztensor.trainer import RepositoryCallback

    callback = RepositoryCallback(tmp_path / "repo", branch="run", weights_only=True)
    model = weights(13)
    for step in (10, 20):
        where = folder(tmp_path / "out" / f"checkpoint-{step}", tuned(model, step))
        (where / "optimizer.pt").write_bytes(os.urandom(1000))
        state = SimpleNamespace(
            is_world_process_zero=True,
            global_step=step,
            epoch=step / 10,
            log_history=[{"loss": 2.0, "step": step}, {"loss": 1.0, "step": step}],
        )
        callback.on_save(SimpleNamespace(output_dir=str(tmp_path / "out")), state, None)
    log = callback.repository.log("run")
    assert [entry.message for entry in log] == ["step 20", "step 10"]
    assert log[0].metadata == {"step": "20", "epoch": "2.0", "loss": "1.0"}
    files = {file.path for file in callback.repository.version("run").files()}
    assert "optimizer.pt" not in files
    assert callback.commits[1].deltas > 5


def test_a_real_trainer_commits(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    pytest.importorskip("accelerate", reason="the Trainer needs it")
    from ztensor.trainer import RepositoryCallback

    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, vocab_size=100, n_positions=16, n_ctx=16
    )
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.randint(0, 100, (16, 16))
    data = [{"input_ids": row, "labels": row} for row in ids]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=4,
        save_steps=2,
        per_device_train_batch_size=4,
        report_to=[],
        use_cpu=True,
    )
    callback = RepositoryCallback(tmp_path / "repo")
    transformers.Trainer(model, arguments, train_dataset=data, callbacks=[callback]).train()
    assert [entry.message for entry in callback.repository.log()] == ["step 4", "step 2"]
    callback.repository.checkout("main", tmp_path / "restored")
    assert contents(tmp_path / "restored") == contents(tmp_path / "out" / "checkpoint-4")
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "restored")
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)


def test_distributed_checkpoints(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import torch.distributed.checkpoint as dcp

    from ztensor.distributed import RepositoryReader, RepositoryWriter

    torch.manual_seed(1)
    state: dict[str, Any] = {"w": torch.randn(100, 64), "frozen": torch.randn(100, 64), "step": 0}
    expected = []
    for step in range(3):
        state["w"] = state["w"] * (1 + 1e-3 * (torch.rand(100, 64) < 0.01))
        state["step"] = step
        expected.append({**state, "w": state["w"].clone()})
        writer = RepositoryWriter(tmp_path / "repo", tmp_path / "staging", f"step {step}")
        dcp.save(state, storage_writer=writer, no_dist=True)
        assert writer.committed is not None
        assert not (tmp_path / "staging").exists()
    assert writer.committed.same >= 1
    assert writer.committed.deltas >= 1
    for step, wanted in enumerate(expected):
        loaded = {"w": torch.zeros(100, 64), "frozen": torch.zeros(100, 64), "step": -1}
        reader = RepositoryReader(tmp_path / "repo", f"main~{2 - step}", tmp_path / "restored")
        dcp.load(loaded, storage_reader=reader, no_dist=True)
        assert loaded["step"] == step
        assert torch.equal(loaded["w"], wanted["w"])
        assert torch.equal(loaded["frozen"], wanted["frozen"])
    with Repository(tmp_path / "repo").open() as reader:
        assert torch.equal(reader.read_torch("w"), expected[2]["w"])


def test_weight_streams_from_and_into_a_repository(tmp_path: Path) -> None:
    from ztensor import sync

    repository = Repository.init(tmp_path / "repo")
    model = weights(14)
    states = [model]
    folder(tmp_path / "base", model)
    repository.commit(tmp_path / "base", "base")
    for step in range(1, 4):
        state = {name: value.copy() for name, value in states[-1].items()}
        for value in state.values():
            value.reshape(-1)[step::50] *= 1.01
        states.append(state)
        repository.commit(folder(tmp_path / f"step{step}", state), f"step {step}")
    refs = ["main~2", "main~1", "main"]
    published = repository.publish(tmp_path / "stream", refs, base="main~3")
    assert [version.version for version in published] == ["000001", "000002", "000003"]
    live = {name: value.copy() for name, value in model.items()}
    sync.Subscriber(tmp_path / "stream").apply_to(live)
    assert all(live[name].tobytes() == value.tobytes() for name, value in states[3].items())
    other = Repository.init(tmp_path / "other")
    done = other.commit_stream(tmp_path / "stream", tmp_path / "local", base=tmp_path / "base")
    assert len(done) == 3
    assert (
        other.commit_stream(tmp_path / "stream", tmp_path / "local", base=tmp_path / "base") == []
    )
    for number, state in enumerate(states[1:]):
        with other.open(f"main~{2 - number}") as reader:
            assert same(reader, state)
    assert done[2].stored < done[0].stored
