"""Distributed checkpoints in one process: what is stored, and what damage does."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner

import ztensor
from ztensor import _dtypes
from ztensor.distributed import (
    ZTensorReader,
    ZTensorWriter,
    _checkpoint,
    _values,
    consolidate,
    distribute,
    load_tensor_parallel,
    read_shard,
    shard_range,
)
from ztensor.torch import save_file

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")


def save(state: dict[str, Any], path: str = "checkpoint", **options: Any) -> None:
    dcp.save(state, storage_writer=ZTensorWriter(path, **options), no_dist=True)


def load(state: dict[str, Any], path: str = "checkpoint", **options: Any) -> dict[str, Any]:
    dcp.load(state, storage_reader=ZTensorReader(path, **options), no_dist=True)
    return state


def everything(path: str = "checkpoint", **options: Any) -> dict[str, Any]:
    """The whole state dict, as the file describes it."""
    found: dict[str, Any] = {}
    dcp.state_dict_loader._load_state_dict(
        found,
        storage_reader=ZTensorReader(path, **options),
        planner=_EmptyStateDictLoadPlanner(),
        no_dist=True,
    )
    return found


def rank_files(path: str = "checkpoint") -> list[Path]:
    return sorted(Path(path).glob("rank-*.zt"))


STATE = {
    "weight": torch.arange(60, dtype=torch.float32).reshape(6, 10),
    "half": torch.linspace(-1, 1, 33).to(torch.bfloat16).reshape(3, 11),
    "scalar": torch.tensor(7),
    "empty": torch.empty(0, 4),
    "step": 12,
}


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, ztensor; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("compression", [None, True, "fast", "default"])
@pytest.mark.parametrize("checksum", ["none", "crc32c", "sha256"])
def test_what_is_saved_is_loaded(compression: Any, checksum: str) -> None:
    save(STATE, compression=compression, checksum=checksum)
    found = everything()
    assert found.keys() == STATE.keys()
    for name, expected in STATE.items():
        if isinstance(expected, torch.Tensor):
            assert found[name].dtype == expected.dtype and found[name].equal(expected)
        else:
            assert found[name] == expected


def test_every_dtype() -> None:
    names = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 uint16 uint32 uint64"
    names += " bool complex64 float8_e4m3fn float8_e5m2 float4_e2m1fn_x2"
    state = {
        name: torch.arange(96, dtype=torch.uint8).view(getattr(torch, name)).reshape(2, -1)
        for name in names.split()
        if name != "bool"
    }
    state["bool"] = torch.arange(8) % 3 == 0
    save(state)
    found = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    for name, tensor in load(found).items():
        assert tensor.view(torch.uint8).equal(state[name].view(torch.uint8)), name


def test_targets_of_other_strides_and_dtypes() -> None:
    save({"weight": STATE["weight"]})
    transposed = {"weight": torch.zeros(10, 6).t()}
    assert load(transposed)["weight"].equal(STATE["weight"])
    double = {"weight": torch.zeros(6, 10, dtype=torch.float64)}
    assert load(double)["weight"].equal(STATE["weight"].double())


def test_a_rank_file_describes_itself() -> None:
    save({"model": {"weight": STATE["weight"]}, "step": 3})
    [file] = rank_files()
    reader = ztensor.open(file)
    assert reader.attributes["ztensor.distributed"]["rank"] == 0
    about = reader.metadata("model.weight").attributes
    assert about == {
        "ztensor.distributed": {"tensor": "model.weight", "shape": [6, 10], "offsets": [0, 0]}
    }
    assert reader.read_numpy("step").tobytes() == b"3"
    assert reader.verify().unchecked == 0


VALUES = [
    None, True, False, 0, -(10**30), 1.5, -0.0, float("inf"), "", "größe", b"\x00\xff", [], {},
    [1, [2.5, None]], (), (1, (2,)), {"a": {"b": 1}}, {1: "x", (2, 3): "y"}, {"$tuple": [1]},
    OrderedDict(b=1, a=2), {3, 1, 2}, frozenset("ab"), 1 + 2j, torch.Size([2, 3]), torch.bfloat16,
    torch.device("cuda", 1), random.Random(1).getstate(),
]  # fmt: skip


def test_values() -> None:
    for value in VALUES:
        found = _values.decode(_values.encode(value))
        assert found == value and type(found) is type(value), value
    assert str(_values.decode(_values.encode(float("nan")))) == "nan"
    assert str(_values.decode(_values.encode(-0.0))) == "-0.0"
    for array in (np.arange(6, dtype=">i2").reshape(2, 3), np.array(2.5), np.empty((0, 3))):
        found = _values.decode(_values.encode(array))
        assert found.dtype == array.dtype and found.shape == array.shape and (found == array).all()
    scalar = _values.decode(_values.encode(np.float32(1.5)))
    assert type(scalar) is np.float32 and scalar == 1.5
    for tensor in (torch.ones(2, 3, dtype=torch.bfloat16).t(), torch.tensor(1), torch.empty(0, 2)):
        found = _values.decode(_values.encode((tensor,)))[0]
        assert found.dtype == tensor.dtype and found.equal(tensor)


class Custom:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom)


def test_values_that_are_not_plain() -> None:
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    for value in (Custom(), Counter("a"), cyclic, len, Path("x"), np.array(["x"]), object):
        with pytest.raises(_values.NotPlain):
            _values.encode([value])
    with pytest.raises(dcp.api.CheckpointException, match=r"'thing' cannot be stored.*Custom"):
        save({"thing": Custom()})
    assert not _checkpoint.exists(_checkpoint_folder())
    save({"thing": Custom(), "x": 1}, allow_pickle=True)
    with pytest.raises(dcp.api.CheckpointException, match="allow_pickle"):
        load({"thing": None, "x": None})
    assert load({"x": None}) == {"x": 1}
    assert load({"thing": None}, allow_pickle=True)["thing"] == Custom()


def _checkpoint_folder() -> Any:
    from ztensor.distributed._store import Folder

    return Folder("checkpoint")


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "nan", "NaN", '{"$tuple":1}', '{"$nothing":1}', '{"$float":"1"}',
        '{"$bytes":"?"}', '{"$dtype":"nn"}', '{"$dtype":"load"}', '{"a":1,"a":2}',
        '{"$tensor":["float32",[3],"AAAA"]}', '{"$tensor":["float32",[-1],""]}',
        '{"$array":["O",[1],"AAAAAAAAAAA="]}', '{"$array":["<f8",[2],"AAAAAAAAAAA="]}',
        '{"$set":[[1]]}', '{"$device":"nowhere"}', '{"$dict":[1]}', "[" * 5000,
        "[" * 150 + "]" * 150, '{"$complex":[1' + "0" * 400 + ",0]}", '{"$size":["x"]}',
        '{"$array":["<f8",[1],"AAAA"]}', '{"$scalar":["<f8",[],""]}', '{"$ordered":[[[1],2]]}',
    ],
)  # fmt: skip
def test_hostile_values(text: str) -> None:
    with pytest.raises(ztensor.CorruptError):
        _values.decode(text)


def test_a_pickle_is_never_opened() -> None:
    """Neither in the place of a plain value nor as one that says it is pickled."""

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, ("owned",)

    buffer = io.BytesIO()
    torch.save(Evil(), buffer)
    for kind in ("json", "pickle"):
        save({"thing": 1, "weight": STATE["weight"]})
        folder = _checkpoint_folder()
        checkpoint = _checkpoint.load(folder)
        [file] = rank_files()
        with ztensor.Writer(file) as writer:
            writer.write_numpy("thing", np.frombuffer(buffer.getvalue(), np.uint8))
        length = file.stat().st_size
        digest = _checkpoint.fingerprint(folder, file.name, length)
        checkpoint.files = [_checkpoint.RankFile(file.name, length, digest)]
        checkpoint.objects["thing"] = checkpoint.objects["thing"]._replace(kind=kind)
        folder.write(_checkpoint.NAME, checkpoint.to_json(), False)
        with pytest.raises(dcp.api.CheckpointException, match=r"pickled|JSON"):
            load({"thing": 0})
        assert not Path("owned").exists()


class Renaming(dcp.DefaultSavePlanner):
    """A planner that pickles by itself, as torch's documentation shows."""

    def resolve_data(self, write_item: Any) -> Any:
        return super().resolve_data(write_item)


def test_planners_of_the_user() -> None:
    state = {"a": {"weight": STATE["weight"]}, "lr": (0.1, [1, 2])}
    writer = ZTensorWriter("checkpoint")
    dcp.save(state, storage_writer=writer, planner=Renaming(), no_dist=True)
    assert (
        json.loads(Path("checkpoint/checkpoint.json").read_text())["objects"]["lr"]["kind"]
        == "json"
    )
    assert everything()["lr"] == (0.1, [1, 2])
    flat = {"weight": STATE["weight"], "lr": {"a": 1}}
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    dcp.save(flat, checkpoint_id="elsewhere", storage_writer=writer, planner=planner, no_dist=True)
    found = {"weight": torch.zeros(6, 10), "lr": None}
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=False)
    reader = ZTensorReader("checkpoint")
    dcp.load(found, checkpoint_id="elsewhere", storage_reader=reader, planner=planner, no_dist=True)
    assert found["weight"].equal(STATE["weight"])


def test_overwriting() -> None:
    save({"a": torch.ones(3)})
    first = rank_files()
    with pytest.raises(dcp.api.CheckpointException, match="overwrite"):
        save({"a": torch.zeros(3)}, overwrite=False)
    assert rank_files() == first
    Path("checkpoint/.rank-00007.0123456789abcdef.zt.x1.tmp").write_bytes(b"left over")
    Path("checkpoint/rank-00007.0123456789abcdef.zt").write_bytes(b"left over")
    Path("checkpoint/notes.txt").write_text("mine")
    save({"a": torch.zeros(3)})
    assert len(rank_files()) == 1 and rank_files() != first
    assert sorted(os.listdir("checkpoint")) == sorted(
        ["checkpoint.json", "notes.txt", rank_files()[0].name]
    )
    assert load({"a": torch.ones(3)})["a"].equal(torch.zeros(3))


def fails(match: str | None, untouched: bool = True) -> None:
    target = torch.full((6, 10), -1.0)
    with pytest.raises(dcp.api.CheckpointException, match=match):
        load({"weight": target})
    assert not untouched or target.eq(-1).all()


def test_no_checkpoint() -> None:
    fails("no distributed checkpoint was saved here")
    save(STATE)
    os.unlink("checkpoint/checkpoint.json")
    fails("a save began here but never finished")
    with pytest.raises(FileNotFoundError, match="never finished"):
        consolidate("checkpoint", "model.zt")


def test_rank_files_that_are_not_the_saved_ones() -> None:
    save(STATE)
    [file] = rank_files()
    good = file.read_bytes()
    file.write_bytes(good[:-1])
    fails("truncated or changed")
    file.write_bytes(good[:8] + bytes(len(good) - 8))
    fails("not a complete .zt file")
    at = good.index(b"weight") + 1
    file.write_bytes(good[:at] + b"E" + good[at + 1 :])
    fails("not the file that was saved")
    first = good.index(STATE["weight"].numpy().tobytes())
    file.write_bytes(good[:first] + b"\x01" + good[first + 1 :])
    fails("have the checksum", untouched=False)
    with pytest.raises(ztensor.MismatchError):
        consolidate("checkpoint", "model.zt")
    assert not list(Path().glob("*model.zt*"))
    file.unlink()
    fails("is missing")
    file.write_bytes(good)
    assert load({"weight": torch.zeros(6, 10)})["weight"].equal(STATE["weight"])


def test_metadata_of_another_save() -> None:
    save(STATE, "other")
    save(STATE)
    shutil.copy("other/checkpoint.json", "checkpoint/checkpoint.json")
    fails("belongs elsewhere")
    name = json.loads(Path("other/checkpoint.json").read_text())["files"][0]["name"]
    rank_files()[0].rename(Path("checkpoint") / name)
    fails("not the file that was saved")


def edited(change: Any) -> None:
    path = Path("checkpoint/checkpoint.json")
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def set_at(*path: Any, value: Any) -> Any:
    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return change


CHUNK = ("tensors", "weight", "chunks", 0)


@pytest.mark.parametrize(
    "change",
    [
        set_at("format", value="other"),
        set_at("version", value=2),
        set_at("files", 0, "name", value="../x.zt"),
        set_at("files", 0, "name", value="/etc/passwd"),
        set_at("files", 0, "length", value=-1),
        set_at("files", 0, "length", value=1.0),
        set_at("files", value={}),
        set_at("tensors", value=[]),
        set_at("tensors", "weight", "dtype", value="float33"),
        set_at("tensors", "weight", "shape", value=[6]),
        set_at("tensors", "weight", "shape", value=[6, 2**70]),
        set_at("tensors", "weight", "shape", value="x"),
        set_at(*CHUNK, value=3),
        set_at(*CHUNK, "file", value=1),
        set_at(*CHUNK, "offsets", value=[1, 0]),
        set_at(*CHUNK, "sizes", value=[6, 11]),
        set_at(*CHUNK, "object", value=None),
        set_at("objects", "step", "kind", value="executable"),
        set_at("objects", "weight", value={"file": 0, "object": "step", "kind": "json"}),
        set_at("paths", "weight", value=[2**40]),
        set_at("paths", "weight", value="weight"),
        set_at("paths", "weight", value=[]),
        lambda document: document["tensors"]["weight"]["chunks"].append(
            document["tensors"]["weight"]["chunks"][0]
        ),
    ],
)
def test_hostile_metadata(change: Any) -> None:
    save(STATE)
    edited(change)
    with pytest.raises((ztensor.CorruptError, ztensor.UnsupportedError)):
        _checkpoint.load(_checkpoint_folder())
    fails("checkpoint.json")


@pytest.mark.parametrize(
    "change",
    [
        set_at(*CHUNK, "object", value="half"),
        set_at(*CHUNK, "object", value="nothing"),
        set_at("tensors", "weight", "dtype", value="int32"),
        set_at("tensors", "weight", value={"dtype": "float64", "shape": [6, 5], "chunks": []}),
    ],
)
def test_metadata_that_does_not_fit_the_files(change: Any) -> None:
    save(STATE)
    edited(change)
    fails(None)
    with pytest.raises(ztensor.ZTensorError):
        consolidate("checkpoint", "model.zt")


@pytest.mark.parametrize("offsets", [(0, 1), (0, 0), (0, 513), (1, 512)])
def test_chunks_that_hide_a_gap_are_refused(offsets: tuple[int, int]) -> None:
    """Two chunks of 512 elements for a tensor of 1024: as many elements, but not all of them.

    What no chunk covers would be uninitialised memory, in results and in new files."""
    save({"weight": torch.arange(512.0), "other": torch.arange(512.0)})

    def forge(document: Any) -> None:
        tensors = document["tensors"]
        first, second = tensors["weight"]["chunks"][0], tensors.pop("other")["chunks"][0]
        document["paths"].pop("other", None)
        first["offsets"], second["offsets"] = [offsets[0]], [offsets[1]]
        tensors["weight"] = {"dtype": "float32", "shape": [1024], "chunks": [first, second]}

    edited(forge)
    for compression in (None, "fast"):
        with pytest.raises(ztensor.CorruptError, match="weight"):
            consolidate("checkpoint", "model.zt", compression=compression)
    with pytest.raises(ztensor.CorruptError, match="weight"):
        read_shard("checkpoint", "weight", None, 0, 1)
    with pytest.raises(ztensor.CorruptError, match="weight"):
        _checkpoint.load(_checkpoint_folder())
    assert not Path("model.zt").exists()


def test_an_entry_is_a_partition() -> None:
    """No other way leads to a tensor whose chunks are not one."""
    element = _dtypes.of_torch(torch.float32)
    whole = _checkpoint.Chunk(0, "x", (0, 0), (2, 3))
    entry = _checkpoint.TensorEntry(element, (2, 3), (whole,))
    with pytest.raises(AttributeError):
        entry.chunks = ()  # type: ignore[misc]
    for chunks in ((), (whole, whole), (whole._replace(sizes=(2, 2)),)):
        with pytest.raises(ztensor.CorruptError):
            _checkpoint.TensorEntry(element, (2, 3), chunks)


def test_metadata_that_is_no_json() -> None:
    save(STATE)
    path = Path("checkpoint/checkpoint.json")
    text = path.read_bytes()
    for broken in (b"", text[:-1], text[: len(text) // 2], b"\xff", b"[" * 10000):
        path.write_bytes(broken)
        fails("checkpoint.json")


def test_names_with_half_a_surrogate_pair_are_refused() -> None:
    checkpoint = _checkpoint.Checkpoint(save="0123456789abcdef")
    document = json.loads(checkpoint.to_json())
    document["paths"] = {"\U0001f600": ["a"]}
    for escaped in (True, False):
        data = json.dumps(document, ensure_ascii=escaped).encode()
        assert _checkpoint.Checkpoint.from_json(data).paths == {"\U0001f600": ("a",)}
    document["paths"] = {"\ud800": ["a"]}
    with pytest.raises(ztensor.CorruptError, match="surrogate"):
        _checkpoint.Checkpoint.from_json(json.dumps(document).encode())


def test_damaged_documents_are_refused_or_partitions() -> None:
    """A short run of the fuzzer, always with the same cases."""
    script = Path(__file__).parents[1] / "fuzz" / "python" / "checkpoint.py"
    command = [sys.executable, script, "--count", "1500"]
    outcome = subprocess.run(command, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.startswith("1500 documents, ")


def test_a_save_without_collectives_is_refused() -> None:
    with pytest.raises(ztensor.UnsupportedError, match="collectives"):
        dcp.save(
            STATE, storage_writer=ZTensorWriter("checkpoint"), no_dist=True, use_collectives=False
        )


def test_wrong_arguments() -> None:
    with pytest.raises(ztensor.InvalidArgumentError):
        ZTensorWriter("checkpoint", compression="smallest")
    with pytest.raises(dcp.api.CheckpointException, match="checksum"):
        save(STATE, checksum="md5")
    assert not rank_files()
    with pytest.raises(dcp.api.CheckpointException, match="sparse"):
        save({"x": torch.eye(3).to_sparse()})


# Consolidating, and the way back.

MODEL = {
    "b": torch.randn(37, 19),
    "a": torch.arange(11, dtype=torch.int8),
    "c.bf16": torch.randn(64, 3, 3).to(torch.bfloat16),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.empty(0, 3),
}


@pytest.fixture
def spread() -> dict[str, torch.Tensor]:
    """A checkpoint of three files, as three ranks would save it."""
    save_file(MODEL, "source.zt")
    distribute("source.zt", "checkpoint", ranks=3)
    assert len(rank_files()) == 3
    return MODEL


def check(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].equal(tensor), name


@pytest.mark.parametrize("kind", ["zt", "safetensors"])
@pytest.mark.parametrize("compression", [None, "fast", True])
def test_consolidating(kind: str, compression: Any) -> None:
    save_file(MODEL, "source.zt")
    distribute("source.zt", "checkpoint", ranks=3, compression=compression)
    assert consolidate("checkpoint", f"model.{kind}") == [f"model.{kind}"]
    check(ztensor.torch.load_file(f"model.{kind}"), MODEL)
    assert sorted(os.listdir()) == sorted(["checkpoint", f"model.{kind}", "source.zt"])
    if kind == "safetensors":
        check(safetensors.torch.load_file("model.safetensors"), MODEL)


def test_consolidating_into_a_compressed_file(spread: Any) -> None:
    consolidate("checkpoint", "model.zt", compression="default", checksum="sha256")
    check(ztensor.torch.load_file("model.zt"), spread)
    reader = ztensor.open("model.zt")
    assert reader.metadata("b").components["data"]["encoding"] == "z4ai"
    assert reader.verify().unchecked == 0
    with pytest.raises(ztensor.InvalidArgumentError, match="neither"):
        consolidate("checkpoint", "model.safetensors", compression="fast")
    with pytest.raises(ztensor.InvalidArgumentError, match="name of"):
        consolidate("checkpoint", "model.bin")


@pytest.mark.parametrize("kind", ["zt", "safetensors"])
@pytest.mark.parametrize("checksum", ["none", "crc32c"])
def test_shards(spread: Any, kind: str, checksum: str) -> None:
    if kind == "safetensors" and checksum != "none":
        return
    index, *files = consolidate(
        "checkpoint", f"out.{kind}", max_shard_size="1KB", checksum=checksum
    )
    assert index == f"out.{kind}.index.json" and len(files) == 4
    assert files[0] == f"out-00001-of-00004.{kind}"
    document = json.loads(Path(index).read_text())
    assert document["metadata"]["total_size"] == sum(t.nbytes for t in spread.values())
    assert set(document["weight_map"].values()) == set(files)
    check(ztensor.torch.load_file(index), spread)
    assert consolidate("checkpoint", f"one.{kind}", max_shard_size="1 GB") == [f"one.{kind}"]
    for size in (0, "big", "-1GB"):
        with pytest.raises(ztensor.InvalidArgumentError):
            consolidate("checkpoint", f"out.{kind}", max_shard_size=size)


def test_prefixes_objects_and_paths() -> None:
    nested = {"model": {"weight": STATE["weight"]}, "optimizer": {"lr": [0.1, 0.2], "step": (1,)}}
    save(nested)
    consolidate("checkpoint", "weights.safetensors", prefix="model.", metadata={"license": "MIT"})
    with safetensors.safe_open("weights.safetensors", "pt") as file:
        assert list(file.keys()) == ["weight"]
        assert file.metadata() == {"format": "pt", "license": "MIT"}
    for kind in ("zt", "safetensors"):
        consolidate("checkpoint", f"all.{kind}")
        distribute(f"all.{kind}", "again", ranks=2)
        found = everything("again")
        assert found["model"]["weight"].equal(STATE["weight"])
        assert found["optimizer"] == nested["optimizer"]
    distribute("weights.safetensors", "weights", prefix="module.")
    assert list(everything("weights")) == ["module.weight"]
    with pytest.raises(ztensor.InvalidArgumentError, match="begins with"):
        consolidate("checkpoint", "weights.zt", prefix="nothing.")


def test_pickles_are_not_lost_silently() -> None:
    save({"weight": STATE["weight"], "thing": Custom()}, allow_pickle=True)
    with pytest.raises(ztensor.UnsupportedError, match="'thing' is pickled"):
        consolidate("checkpoint", "model.zt")
    consolidate("checkpoint", "model.zt", prefix="weight")


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_what_safetensors_cannot_hold() -> None:
    save({"x": torch.ones(2, dtype=torch.complex32)})
    with pytest.raises(ztensor.UnsupportedError, match="complex32"):
        consolidate("checkpoint", "model.safetensors")
    consolidate("checkpoint", "model.zt")
    assert ztensor.open("model.zt").read_torch("x").dtype == torch.complex32


def test_distributing_other_formats() -> None:
    torch.save({"w": STATE["weight"], "t": STATE["weight"].t()}, "model.pt")
    distribute("model.pt", "checkpoint", ranks=2, compression="fast")
    check(everything(), {"w": STATE["weight"], "t": STATE["weight"].t()})
    np.savez_compressed("model.npz", w=np.arange(10.0))
    distribute("model.npz", "checkpoint")
    check(everything(), {"w": torch.arange(10.0, dtype=torch.float64)})
    with pytest.raises(ztensor.InvalidArgumentError, match="overwrite"):
        distribute("model.npz", "checkpoint", overwrite=False)
    with pytest.raises(ztensor.InvalidArgumentError, match="rank"):
        distribute("model.npz", "checkpoint", ranks=0)
    save_file({"x": torch.eye(3).to_sparse_csr()}, "sparse.zt")
    with pytest.raises(ztensor.UnsupportedError, match="sparse"):
        distribute("sparse.zt", "checkpoint")
    check(everything(), {"w": torch.arange(10.0, dtype=torch.float64)})


def test_progress() -> None:
    save_file(MODEL, "source.zt")
    distribute("source.zt", "checkpoint", ranks=2)
    total = sum(tensor.nbytes for tensor in MODEL.values())
    for options in ({}, {"compression": "fast"}):
        calls: list[tuple[int, int]] = []
        consolidate(
            "checkpoint", "m.zt", progress=lambda *call, calls=calls: calls.append(call), **options
        )
        assert calls[-1] == (total, total)
    with pytest.raises(KeyboardInterrupt):
        consolidate("checkpoint", "stopped.zt", progress=interrupting)
    assert not list(Path().glob("*stopped*"))


def interrupting(done: int, of: int) -> None:
    raise KeyboardInterrupt


# Tensor-parallel reading.


def test_ranges_are_those_of_torch() -> None:
    for size in range(12):
        for world in range(1, 6):
            chunks = torch.arange(size).chunk(world)
            for rank in range(world):
                first, last = shard_range(size, rank, world)
                expected = chunks[rank] if rank < len(chunks) else torch.empty(0)
                assert list(range(first, last)) == expected.tolist()
    for rank, world in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ztensor.InvalidArgumentError):
            shard_range(4, rank, world)


def test_shards_of_every_format() -> None:
    tensors = {name: MODEL[name] for name in ("b", "a")}
    save_file(tensors, "plain.zt")
    save_file(tensors, "fast.zt", compression="fast")
    save_file(tensors, "zstd.zt", compression=True)
    safetensors.torch.save_file(tensors, "model.safetensors")
    torch.save({"b": tensors["b"].t().contiguous().t(), "a": tensors["a"]}, "strided.pt")
    np.savez("model.npz", **{name: tensor.numpy() for name, tensor in tensors.items()})
    distribute("plain.zt", "checkpoint", ranks=3)
    distribute("plain.zt", "packed", ranks=3, compression="fast")
    files = "plain.zt fast.zt zstd.zt model.safetensors strided.pt model.npz checkpoint packed"
    for path in files.split():
        for world in (1, 3):
            for rank in range(world):
                for dim in (0, 1, -1):
                    found = read_shard(path, "b", dim, rank, world)
                    assert found.equal(tensors["b"].chunk(world, dim)[rank]), (path, dim)
                parts = load_tensor_parallel(path, {"b": 1, "*": None}, rank, world)
                assert parts["b"].equal(tensors["b"].chunk(world, 1)[rank])
                assert parts["a"].equal(tensors["a"])
        with pytest.raises(ztensor.InvalidArgumentError, match="dimension"):
            read_shard(path, "a", 1, 0, 2)
        with pytest.raises(ztensor.NotFoundError):
            read_shard(path, "nothing", 0, 0, 2)


def test_ranks_begin_at_different_places(monkeypatch: pytest.MonkeyPatch) -> None:
    from ztensor.distributed import _parallel

    model = {f"layer.{number}": torch.full((4, 4), number) for number in range(8)}
    save_file(model, "model.zt")
    monkeypatch.setattr(_parallel, "_BATCH", 1)
    starts = []
    for rank in range(4):
        order: list[str] = []
        read = _parallel.opened

        def watched(path: Any, options: Any, order: list[str] = order, read: Any = read) -> Any:
            tensors = read(path, options)
            inner = tensors.read
            tensors.read = lambda boxes: (order.extend(box.name for box in boxes), inner(boxes))
            return tensors

        monkeypatch.setattr(_parallel, "opened", watched)
        found = load_tensor_parallel("model.zt", {}, rank, 4)
        monkeypatch.setattr(_parallel, "opened", read)
        assert list(found) == list(model) and sorted(order) == sorted(model)
        starts.append(order[0])
    assert starts == ["layer.0", "layer.2", "layer.4", "layer.6"]
