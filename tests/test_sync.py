"""Weight streams: publishing, pulling, following, on folders and on an object store."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from conftest import DATA

import ztensor
import ztensor.numpy
import ztensor.torch
from ztensor import sync, sync_hooks

SAMPLES = DATA / "sync"
FORMS = [
    {"encoding": "xor"},
    {"encoding": "overwrite", "checksum": "blake3"},
    {"compression": "z4ai"},
]


def state(seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    values = np.random.default_rng(seed)
    return {
        "embed": values.standard_normal((200, 64), np.float32),
        "layer.weight": values.standard_normal((64, 64)).astype(np.float16),
        "layer.bias": values.standard_normal(64, np.float32),
        "count": np.arange(7),
        "empty": np.zeros((0, 3), np.float32),
    }


def train(tensors: dict[str, np.ndarray[Any, Any]], step: int) -> None:
    values = np.random.default_rng(step)
    for name in ("embed", "layer.weight"):
        tensor = tensors[name].reshape(-1)
        places = values.choice(tensor.size, tensor.size // 100, replace=False)
        tensor[places] += values.standard_normal(places.size).astype(tensor.dtype)


def save(tensors: dict[str, np.ndarray[Any, Any]], folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


def same(folder: Path | str, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    found = ztensor.numpy.load_file(folder)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and found[name].tobytes() == tensor.tobytes(), name


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_state_dicts_files_iterators_and_ranks(form: dict[str, Any], tmp_path: Path) -> None:
    tensors = state()
    base = save(tensors, tmp_path / "base")
    publisher = sync.Publisher("stream", base=base, **form)
    subscriber = sync.Subscriber("stream", "local", base=base, durable=False)
    names = list(tensors)
    for step in range(1, 5):
        train(tensors, step)
        source: Any = tensors
        if step == 2:
            source = save(tensors, tmp_path / "step")
        elif step == 3:
            source = ((name, tensors[name]) for name in names)
        elif step == 4:  # two ranks, of which both have one tensor
            source = [
                [(name, tensors[name]) for name in names[:2]],
                iter([(name, tensors[name]) for name in names[1:]]),
            ]
        published = publisher.publish(source)
        assert (published.version, published.full) == (f"{step:06}", None)
        assert published.changed == 2
        pulled = subscriber.pull()
        assert sorted(pulled.changed) == (sorted(names) if step == 1 else ["embed", "layer.weight"])
        same("local", tensors)
        for name, tensor in subscriber.load_changed(pulled, framework="numpy"):
            assert tensor.tobytes() == tensors[name].tobytes()
        for place in pulled.tensors:
            with open(Path("local", place.file), "rb") as file:
                file.seek(place.offset)
                assert file.read(place.bytes) == tensors[place.name].tobytes()
    shards = sorted(path.name for path in Path("stream/weight_v000004").iterdir())
    assert shards[0] == "model-00000-of-00001.safetensors"
    assert sync.status("stream", "local") == sync.Status("000004", None, 4, "000004", False)
    assert [entry.version for entry in sync.log("stream")][-1] == "000004"
    assert sync.verify("local").differ == []
    with pytest.raises(ztensor.InvalidArgumentError, match="comes twice"):
        publisher.publish([[("embed", tensors["embed"])], [("embed", tensors["embed"] + 1)]])
    # What was half taken over makes the next version a full one.
    assert publisher.publish(tensors).full == "the version before was not finished"
    subscriber.pull()
    same("local", tensors)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_other_readers_see_what_the_format_says(form: dict[str, Any], tmp_path: Path) -> None:
    """Decoded by hand with the reference libraries, from the specification alone."""
    zstandard = pytest.importorskip("zstandard")
    if form.get("compression") == "z4ai":
        pytest.skip("only this library reads z4ai payloads")
    tensors = state()
    publisher = sync.Publisher("stream", base=tensors, **form)
    before = {name: tensor.copy() for name, tensor in tensors.items()}
    train(tensors, 1)
    publisher.publish(tensors)
    folder = Path("stream/weight_v000001")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["version"] == "000001"
    assert index["metadata"]["base_version"] == "000000"
    assert index["metadata"]["delta_encoding"] == form["encoding"]
    assert set(index["weight_map"]) == {"embed", "layer.weight"}
    for name, file in index["weight_map"].items():
        with safetensors.safe_open(folder / file, "numpy") as shard:
            payload = shard.get_tensor(name).tobytes()
            digest = shard.metadata()[name]
        assert zstandard.frame_content_size(payload) > 0
        raw = zstandard.ZstdDecompressor().decompress(payload)
        old = np.frombuffer(before[name].tobytes(), np.uint8).copy()
        if form["encoding"] == "xor":
            assert len(raw) == old.size
            new = old ^ np.frombuffer(raw, np.uint8)
        else:
            count = int.from_bytes(raw[:4], "little")
            assert len(raw) == 4 + 5 * count
            old[np.frombuffer(raw, "<u4", count, 4)] = np.frombuffer(
                raw, np.uint8, count, 4 + 4 * count
            )
            new = old
        assert new.tobytes() == tensors[name].tobytes()
        if form.get("checksum") == "blake3":
            assert len(digest) == 64
        else:
            xxhash = pytest.importorskip("xxhash")
            assert digest == xxhash.xxh3_128_hexdigest(new.tobytes())


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_tensors_in_memory(form: dict[str, Any], atomic: bool) -> None:
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(tensor) for name, tensor in state().items()}
    tensors["half"] = torch.randn(300).bfloat16()
    live = {name: tensor.clone() for name, tensor in tensors.items()}
    publisher = sync.Publisher("stream", base=tensors, **form)
    subscriber = sync.Subscriber("stream")
    patched = {name: tensor.clone() for name, tensor in tensors.items()}
    follower = sync.Subscriber("stream")
    for step in range(1, 4):
        tensors["half"][step] += 1
        tensors["embed"][step] -= 0.5
        publisher.publish(tensors)
        assert subscriber.apply_to(live, atomic=atomic).changed == ["embed", "half"]
        assert all(torch.equal(live[name], tensors[name]) for name in tensors)
        assert subscriber.apply_to(live).changed == []
        for change in follower.changes(patched):
            flat = patched[change.name].view(-1)
            values = torch.from_numpy(change.values.copy()).view(flat.dtype)
            assert 0 < len(change.positions) <= 64
            flat[torch.from_numpy(change.positions.astype(np.int64))] = values
        assert all(torch.equal(patched[name], tensors[name]) for name in tensors)
    live["half"][0] += 1  # not what the version before was
    before = {name: tensor.clone() for name, tensor in live.items()}
    tensors["half"][5] += 1
    publisher.publish(tensors)
    with pytest.raises(ztensor.MismatchError):
        subscriber.apply_to(live)
    assert all(torch.equal(live[name], before[name]) for name in live)
    with pytest.raises(ztensor.InvalidArgumentError, match="contiguous"):
        subscriber.apply_to({"half": torch.zeros(600).bfloat16()[::2]})


def test_an_object_store(s3: Any, tmp_path: Path) -> None:
    tensors = state()
    base = save(tensors, tmp_path / "base")
    url = s3.url("run/stream")
    publisher = sync.Publisher(url, base=base, compression="z4ai", anchor_every=2)
    other = sync.Publisher(url, base=base)
    subscriber = sync.Subscriber(url, "local", base=base)
    for step in range(1, 6):
        train(tensors, step)
        published = publisher.publish(tensors)
        assert (published.full is not None) == (step == 3)
        pulled = subscriber.pull()
        assert pulled.version == f"{step:06}"
        same("local", tensors)
    with pytest.raises(ztensor.ZTensorError):
        other.publish(tensors)
    assert sync.Subscriber(url, "late", base=base).pull().steps == ["full 3", "delta 4", "delta 5"]
    same("late", tensors)
    live = state()
    sync.Subscriber(url).apply_to(live)
    assert all(live[name].tobytes() == tensors[name].tobytes() for name in live)
    sync.fold(url, 3, 5, base=_version(url, base, 3, tmp_path))
    removed = sync.prune(url, keep=1)
    assert "weight_v000001" in removed
    assert not [key for key in s3.keys() if "weight_v000001" in key]
    # A store that shows shards without their index shows no version.
    for shard in ("model-00000-of-00001", "model-00001-of-00001"):
        s3.put(f"run/stream/weight_v000006/{shard}.safetensors", b"torn")
    assert subscriber.newest() == "000005"
    with pytest.raises(ztensor.ZTensorError, match="other contents"):
        train(tensors, 6)
        publisher.publish(tensors)
    cleaning = sync.Publisher(
        url, base="local", compression="z4ai", replace_unfinished=True, anchor_ratio=None
    )
    cleaning.publish(tensors)
    subscriber.pull()
    same("local", tensors)


@pytest.mark.parametrize("fault", [None, 503, "hang up", "truncate", "stall"])
def test_a_server_that_lists_nothing_and_answers_badly(fault: Any, tmp_path: Path) -> None:
    """A version is found by its name; a request that failed is sent again."""
    from remote_servers import range_server

    torch = pytest.importorskip("torch")
    expected = json.loads((SAMPLES / "manifest.json").read_text())["streams"][0]["versions"]
    with range_server() as server:
        for path in (SAMPLES / "slime").rglob("*.*"):
            server.put(f"run/{path.relative_to(SAMPLES / 'slime')}", path.read_bytes())
        if fault is not None:
            server.faults.extend([fault, fault])
        subscriber = sync.Subscriber(f"{server.url}/run", "local", base=SAMPLES / "base")
        assert subscriber.pull(3).steps == ["seed from base", "delta 1", "delta 2", "delta 3"]
        assert subscriber.pull(6).steps == ["full 4", "delta 5", "delta 6"]
        with pytest.raises(ztensor.NotFoundError):
            subscriber.pull(7)
        with pytest.raises(ztensor.UnsupportedError, match="cannot be listed"):
            subscriber.pull()

    found = ztensor.torch.load_file("local")
    for name, digest in expected[5]["tensors_after"].items():
        data = found[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        assert hashlib.sha256(data).hexdigest() == digest


def _version(url: str, base: Path, version: int, folder: Path) -> Path:
    local = folder / f"at{version}"
    sync.pull(url, local, base=base, version=version)
    return local


def test_watch_follows_backs_off_and_ends(tmp_path: Path) -> None:
    tensors = state()
    base = save(tensors, tmp_path / "base")
    publisher = sync.Publisher("stream", base=base)
    seen = []
    done = threading.Event()

    def publish() -> None:
        for step in range(1, 6):
            train(tensors, step)
            publisher.publish(tensors)
        done.set()

    thread = threading.Thread(target=publish)
    thread.start()
    subscriber = sync.Subscriber("stream", "local", base=base, durable=False)
    last = lambda: done.is_set() and bool(seen) and seen[-1] == "000005"  # noqa: E731
    for pulled in subscriber.watch(interval=0.01, max_interval=0.05, stop=last):
        seen.append(pulled.version)
    thread.join()
    assert seen[-1] == "000005" and seen == sorted(set(seen))
    same("local", tensors)
    assert list(subscriber.watch(interval=0.01, timeout=0.05)) == []
    # A stream that is not there yet is no news.
    missing = sync.Subscriber("none", "other", base=base)
    assert list(missing.watch(interval=0.01, timeout=0.02)) == []


def test_digests_say_what_changed(tmp_path: Path) -> None:
    made = {"a": np.arange(100, dtype=np.float32), "b": np.ones(50, np.float16)}
    ztensor.numpy.save_file(made, tmp_path / "model.safetensors")
    publisher = sync.Publisher(tmp_path / "stream", made)
    subscriber = sync.Subscriber(
        tmp_path / "stream", tmp_path / "local", base=tmp_path / "model.safetensors"
    )
    assert subscriber.digests() == {} and sync.Subscriber(tmp_path / "stream").digests() == {}
    subscriber.pull(0)
    first = subscriber.digests()
    assert first.keys() == made.keys() and all(first.values())
    made["b"] = made["b"] * 2
    publisher.publish(made)
    # Another process of the host pulls: who looks later sees what changed all the same.
    sync.pull(tmp_path / "stream", tmp_path / "local")
    assert subscriber.pull().changed == []
    second = subscriber.digests()
    assert second["a"] == first["a"] and second["b"] != first["b"]
    # Another program applied something: nothing is known.
    (tmp_path / "local" / ".weight_sync" / "state.json").write_text('{"version": "000002"}')
    assert subscriber.digests() == {}


def test_the_hooks_of_trainers_and_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ztensor.InvalidArgumentError):
        sync_hooks.pre_read(str(SAMPLES / "slime"), 3)
    monkeypatch.setenv("ZTENSOR_SYNC_LOCAL", str(tmp_path / "local"))
    monkeypatch.setenv("ZTENSOR_SYNC_BASE", str(SAMPLES / "base"))
    sync_hooks.pre_read(str(SAMPLES / "slime"), 3)
    # In the form of the engine's own receiver, which then has nothing to do.
    written = json.loads((tmp_path / "local/.weight_sync/state.json").read_text())
    assert written == {"version": "000003"}
    sync_hooks.post_write(None, tmp_path / "stream", [])
    sync_hooks.post_write(None, SAMPLES / "slime/weight_v000001", [])
    torn = tmp_path / "torn/weight_v000001"
    shutil.copytree(SAMPLES / "hostile/torn_publish_no_index/weight_v000001", torn)
    with pytest.raises(ztensor.NotFoundError):
        sync_hooks.post_write(None, torn, [])


def test_the_layout_of_modelexpress(tmp_path: Path) -> None:
    tensors = state()
    settings: Any = {"layout": "named", "checksum": "adler32", "anchor_ratio": None}
    publisher = sync.Publisher("mx", base=tensors, **settings)
    publisher.start_from("v0")
    train(tensors, 1)
    assert publisher.publish(tensors, name="v1").version == "v1"
    index = json.loads(Path("mx/v1/model.safetensors.index.json").read_text())
    assert index["metadata"]["base_version"] == "v0"
    assert index["metadata"]["checksum_format"] == "adler32"
    train(tensors, 2)
    publisher.publish(tensors, name="v2", full=True)
    index = json.loads(Path("mx/v2/model.safetensors.index.json").read_text())
    assert index["metadata"]["checksum_format"] == "adler32"
    live = state()
    subscriber = sync.Subscriber("mx", version="v0", layout="named")
    subscriber.apply_to(live, "v1")
    subscriber.apply_to(live, "v2")
    assert all(live[name].tobytes() == tensors[name].tobytes() for name in live)
    pulled = sync.pull("mx", "local", version="v2", layout="named")
    assert pulled.steps == ["full v2"]
    same("local", tensors)


def test_the_command_line(tmp_path: Path) -> None:
    def run(*args: object, code: int = 0) -> str:
        command = [sys.executable, "-m", "ztensor", "sync", *map(str, args)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        return done.stdout

    tensors = state()
    save(tensors, tmp_path / "v0")
    for step in range(1, 4):
        train(tensors, step)
        save(tensors, tmp_path / f"v{step}")
        run("publish", f"v{step}", "stream", "--previous", f"v{step - 1}", "--anchor-every", 9)
    run("pull", "stream", "local", "--base", "v0", "--version", 2)
    found = json.loads(run("pull", "stream", "local", "--json"))
    assert found["steps"] == ["delta 3"] and found["from"] == "000002"
    assert {tensor["name"] for tensor in found["changed"]} == {"embed", "layer.weight"}
    same("local", tensors)
    status = json.loads(run("status", "stream", "local", "--json"))
    assert (status["newest"], status["applied"]) == ("000003", "000003")
    assert "newest" in run("status", "stream")
    entries = json.loads(run("log", "stream", "--json"))
    assert [entry["version"] for entry in entries] == ["000001", "000002", "000003"]
    assert 0 < entries[0]["changed_elements"] <= entries[0]["elements"] // 50
    assert "0.99" in run("log", "stream") or "1.00" in run("log", "stream")
    run("fold", "stream", "--from", 0)
    assert json.loads(run("pull", "stream", "late", "--base", "v0", "--json"))["steps"] == [
        "seed from base",
        "fold 0 to 3",
    ]
    run("publish", "v3", "stream", "--previous", "v3", "--full")
    assert "weight_v000001" in run("prune", "stream", "--keep", 1, "--dry-run")
    run("prune", "stream", "--keep", 1)
    run("pull", "stream", "fresh", "--base", "v0")
    assert Path("fresh/config.json").exists()
    same("fresh", tensors)
    run("verify", "local")
    file = Path("local/model.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    run("verify", "local", code=1)
    run("publish", "v1", "stream", "--previous", "v0", code=3)
    run("pull", "stream", "local", "--version", 1, code=3)


CHILD = """
import sys
from ztensor import sync
stream, local, base = sys.argv[1:]
subscriber = sync.Subscriber(stream, local, base=base, durable=False)
for pulled in subscriber.watch(interval=0.001, max_interval=0.01):
    print(pulled.version, flush=True)
"""


def _transformer(torch: Any) -> Any:
    """A small causal language model."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

        def forward(self, x: Any) -> Any:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            seen = self.norm(x)
            x = x + self.attention(seen, seen, seen, attn_mask=mask, need_weights=False)[0]
            return x + self.mlp(x)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(96, 64)
            self.blocks = nn.Sequential(Block(64), Block(64))
            self.head = nn.Linear(64, 96)

        def forward(self, x: Any) -> Any:
            return self.head(self.blocks(self.embed(x)))

    return Model()


def steps(count: int, rate: float = 2e-5) -> Iterator[dict[str, Any]]:
    """States of a transformer in training: bf16 weights of fp32 masters."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = _transformer(torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    text = torch.randint(0, 96, (count + 1, 8, 32))
    text[:, :, 1::2] = text[:, :, ::2]  # something to learn

    def exported() -> dict[str, Any]:
        return {name: value.detach().bfloat16() for name, value in model.state_dict().items()}

    yield exported()
    for batch in text[:count]:
        logits = model(batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield exported()


@pytest.mark.parametrize("form", [FORMS[0], FORMS[2]], ids=str)
def test_a_training_run_with_three_subscribers(form: dict[str, Any], tmp_path: Path) -> None:
    """One is killed and restarted again and again, one joins late, one is far behind."""
    torch = pytest.importorskip("torch")

    states = steps(50)
    first = next(states)
    base = tmp_path / "base"
    base.mkdir()
    ztensor.torch.save_file(first, base / "model.safetensors")
    publisher = sync.Publisher("stream", base=base, durable=False, anchor_every=20, **form)
    command = [sys.executable, "-c", CHILD, "stream", "followed", str(base)]
    chance = random.Random(1)
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    behind = sync.Subscriber("stream", "behind", base=base, durable=False)
    late = sync.Subscriber("stream", "late", base=base, durable=False)
    history: list[dict[str, Any]] = [first]

    def equal(folder: str, version: str) -> None:
        found = ztensor.torch.load_file(folder)
        expected = history[int(version)]
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(found[name].view(torch.int16), tensor.view(torch.int16)), name

    try:
        for step, weights in enumerate(states, 1):
            history.append(weights)
            published = publisher.publish(weights)
            assert published.version == f"{step:06}"
            if step % 7 == 0:
                # At whatever it is doing: its checkpoint is a whole version all the same.
                child.send_signal(signal.SIGKILL)
                child.wait()
                # Killed while the checkpoint was made for the first time, it has left none.
                made = Path("followed/model.safetensors").exists()
                found = sync.verify("followed") if made else None
                if found is not None and found.version is not None:
                    assert found.differ == []
                    equal("followed", found.version)
                child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            if step % 20 == 19:
                equal("behind", behind.pull().version)
            if step == 40:
                assert late.pull().steps[0].startswith("full")
            if step > 40:
                equal("late", late.pull().version)
            if chance.random() < 0.1:
                sync.prune("stream", keep=25)
    finally:
        child.kill()
        child.wait()
    for name, subscriber in {"behind": behind, "late": late}.items():
        assert subscriber.pull().version == "000050"
        equal(name, "000050")
    sync.Subscriber("stream", "followed", base=base).pull()
    equal("followed", "000050")
    log = sync.log("stream")
    shares = [entry.changed[0] / entry.changed[1] for entry in log if entry.changed]
    assert shares and 0 < min(shares) < 0.5


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """A pull holds blocks and payloads, never the model."""
    resource = pytest.importorskip("resource")
    del resource
    values = np.random.default_rng(0)
    tensors = {f"w{n}": values.standard_normal((2048, 4096), np.float32) for n in range(8)}
    base = save(tensors, tmp_path / "base")
    publisher = sync.Publisher("stream", base=base, durable=False)
    for tensor in tensors.values():
        tensor.reshape(-1)[::500] += 1
    publisher.publish(tensors)
    script = (
        "import resource\nfrom ztensor import sync\n"
        f"sync.pull('stream', 'local', base={str(base)!r}, version=0, durable=False, threads=1)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "limit = (768 << 20)\n"
        "sync.pull('stream', 'local', durable=False, threads=1)\n"
        "anonymous = [line for line in open('/proc/self/status') if line.startswith('RssAnon')]\n"
        "print(anonymous[0].split()[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200_000  # kB; the model has 268 MB
    same("local", tensors)
