"""Distributed checkpoints in an object store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ranks import Ranks
from remote_servers import S3, RangeServer, range_server

import ztensor
from ztensor.distributed import (
    ZTensorReader,
    ZTensorWriter,
    consolidate,
    distribute,
    load_tensor_parallel,
    read_shard,
)
from ztensor.torch import load_file, save_file

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")

MODEL = {
    "rows": torch.arange(400, dtype=torch.float32).reshape(20, 20),
    "half": torch.linspace(-1, 1, 64).to(torch.bfloat16),
    "scalar": torch.tensor(3),
}


def save(url: str, state: dict[str, Any], **options: Any) -> None:
    dcp.save(state, storage_writer=ZTensorWriter(url, **options), no_dist=True)


def load(url: str, state: dict[str, Any], **options: Any) -> dict[str, Any]:
    dcp.load(state, storage_reader=ZTensorReader(url, **options), no_dist=True)
    return state


def test_saving_and_loading(s3: S3) -> None:
    url = s3.url("run/step-1")
    for version in (1, 2):
        save(url, {"x": torch.full((3, 4), version), "step": version}, compression="fast")
        found = load(url, {"x": torch.zeros(3, 4, dtype=torch.int64), "step": 0})
        assert found["x"].eq(version).all() and found["step"] == version
    # What was replaced is gone, and no upload was left.
    assert len(s3.keys()) == 2 and "run/step-1/checkpoint.json" in s3.keys()
    assert s3.unfinished() == 0
    with pytest.raises(dcp.api.CheckpointException, match="overwrite"):
        save(url, {"x": torch.ones(2)}, overwrite=False)


def test_incomplete_and_damaged_checkpoints(s3: S3) -> None:
    url = s3.url("run")
    with pytest.raises(dcp.api.CheckpointException, match="no distributed checkpoint"):
        load(url, {"x": torch.zeros(3)})
    save(url, {"x": torch.ones(3)})
    [file] = [key for key in s3.keys() if key.endswith(".zt")]
    metadata, data = s3.get("run/checkpoint.json"), s3.get(file)
    s3.client.delete_object(Bucket=s3.bucket, Key="run/checkpoint.json")
    with pytest.raises(dcp.api.CheckpointException, match="never finished"):
        load(url, {"x": torch.zeros(3)})
    s3.put("run/checkpoint.json", metadata)
    for broken, match in ((data[:-1], "truncated or changed"), (None, "is missing")):
        if broken is None:
            s3.client.delete_object(Bucket=s3.bucket, Key=file)
        else:
            s3.put(file, broken)
        with pytest.raises(dcp.api.CheckpointException, match=match):
            load(url, {"x": torch.zeros(3)})
    at = data.index(b"crc32c:0x") + 9
    s3.put(file, data[:at] + (b"0" if data[at : at + 1] != b"0" else b"1") + data[at + 1 :])
    with pytest.raises(dcp.api.CheckpointException, match="not the file that was saved"):
        load(url, {"x": torch.zeros(3)})


def test_options_instead_of_variables(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in s3.variables:
        monkeypatch.delenv(name)
    options = {
        "endpoint_url": s3.endpoint,
        "access_key_id": "test",
        "secret_access_key": "test",
        "region": "us-east-1",
    }
    url = s3.url("run")
    save(url, {"x": torch.ones(3)}, storage_options=options)
    assert load(url, {"x": torch.zeros(3)}, storage_options=options)["x"].eq(1).all()
    assert read_shard(url, "x", 0, 1, 2, storage_options=options).tolist() == [1.0]
    consolidate(url, "x.zt", storage_options=options)
    distribute("x.zt", s3.url("again"), storage_options=options)
    assert load(s3.url("again"), {"x": torch.zeros(3)}, storage_options=options)["x"].eq(1).all()


@pytest.mark.parametrize("compression", [None, "fast"])
def test_consolidating_from_and_to_a_store(s3: S3, compression: Any) -> None:
    save_file(MODEL, "source.zt")
    url = s3.url("run")
    distribute("source.zt", url, ranks=3, compression=compression)
    for kind in ("zt", "safetensors"):
        consolidate(url, f"out.{kind}")
        found = load_file(f"out.{kind}")
        assert all(found[name].equal(tensor) for name, tensor in MODEL.items())
        # The same bytes, wherever they are written to.
        consolidate(url, s3.url(f"one.{kind}"))
        uploaded = ztensor.store.read_bytes(s3.url(f"one.{kind}"))
        assert kind == "zt" or uploaded == Path(f"out.{kind}").read_bytes()
        files = consolidate(url, s3.url(f"model/out.{kind}"), max_shard_size=1000)
        assert files[0] == s3.url(f"model/out.{kind}.index.json") and len(files) > 2
        for file in (s3.url(f"one.{kind}"), files[0]):
            found = load_file(file)
            assert all(found[name].equal(tensor) for name, tensor in MODEL.items())
        distribute(files[0], f"back-{kind}", ranks=2)
        parts = load_tensor_parallel(f"back-{kind}", {"rows": 1}, 1, 2)
        assert parts["rows"].equal(MODEL["rows"][:, 10:])


@pytest.mark.parametrize("kind", ["zt", "safetensors"])
def test_an_upload_that_is_stopped_leaves_nothing(s3: S3, kind: str) -> None:
    save_file({f"{n}": torch.zeros(3 << 20) for n in range(3)}, "source.zt")
    distribute("source.zt", "run", ranks=2)
    told = []

    def stop(done: int, total: int) -> None:
        told.append(done)
        raise KeyboardInterrupt

    options = {"part_size": "5MiB"}
    with pytest.raises(KeyboardInterrupt):
        consolidate("run", s3.url(f"m.{kind}"), progress=stop, storage_options=options)
    assert told
    assert not ztensor.store.exists(s3.url(f"m.{kind}"))
    assert s3.unfinished() == 0


def test_parts_of_remote_tensors_take_their_own_bytes() -> None:
    large = torch.arange(1 << 20, dtype=torch.int32).reshape(1024, 1024)
    save_file({"large": large}, "large.zt")
    with range_server() as server:
        url = serve(server, "large.zt")
        rows = read_shard(url, "large", 0, 3, 8)
        assert rows.equal(large.chunk(8)[3])
        assert server.received() < 2 * rows.nbytes + (256 << 10)
        assert read_shard(url, "large", 1, 3, 8).equal(large.chunk(8, 1)[3])
        # A row is four kilobytes: one request for many is cheaper than many requests.
        assert server.counted() <= 16


def test_distant_columns_are_fetched_alone() -> None:
    wide = torch.arange(3 << 20, dtype=torch.int32).reshape(6, -1)
    save_file({"wide": wide}, "wide.zt")
    with range_server() as server:
        url = serve(server, "wide.zt")
        part = read_shard(url, "wide", 1, 5, 64)
        assert part.equal(wide.chunk(64, 1)[5])
        assert server.received() < 2 * part.nbytes + (256 << 10)


def serve(server: RangeServer, name: str) -> str:
    return server.put(name, Path(name).read_bytes())


def test_ranks_and_a_store(s3: S3) -> None:
    ranks = Ranks(s3.variables)
    try:
        url = s3.url("run")
        ranks.fine(2, "save", path=url, version=1, compression="fast")
        ranks.fine(1, "load", path=url, version=1)
        before = sorted(s3.keys())
        ranks(2, "killed", path=url, version=2, victim=1, moment="writing")
        assert set(before) <= set(s3.keys())
        ranks.fine(2, "load", path=url, version=1)
        ranks.fine(2, "save", path=url, version=3)
        ranks.fine(1, "load", path=url, version=3)
        assert len(s3.keys()) == 3
    finally:
        ranks.close()
    assert not os.path.exists("s3:")
