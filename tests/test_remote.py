"""Remote files: every format by URL, few requests, faults, uploads, forks."""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import same_bytes
from remote_servers import S3, RangeServer, range_server

import ztensor
from ztensor import store
from ztensor.numpy import load_file, save_file

QUICK = {"retries": 2, "timeout": 20}


@pytest.fixture
def web() -> Iterator[RangeServer]:
    with range_server() as server:
        yield server


def tensors(scale: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(3)
    return {
        "embed": rng.standard_normal((2000 * scale, 64)).astype(np.float32),
        "bias": np.arange(7, dtype=np.int64),
        "layers.0": rng.standard_normal((300, 500)).astype(np.float32),
        "half": rng.standard_normal((1000, 3)).astype(np.float16),
        "scalar": np.array(5.0),
        "empty": np.zeros((0, 3), dtype=np.float32),
    }


def equal(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return found.keys() == expected.keys() and all(
        same_bytes(found[name], expected[name]) for name in expected
    )


def saved(data: dict[str, Any], name: str = "model.zt", **options: Any) -> bytes:
    save_file(data, name, **options)
    return Path(name).read_bytes()


# Every format


def as_zt(path: Path) -> None:
    save_file(tensors(), path)


def as_compressed_zt(path: Path) -> None:
    save_file(tensors(), path, compression=True, checksum="crc32c")


def as_coded_zt(path: Path) -> None:
    save_file(tensors(), path, compression="default", checksum="sha256")


def as_safetensors(path: Path) -> None:
    pytest.importorskip("safetensors.numpy").save_file(tensors(), path)


def as_pickle(path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({name: torch.from_numpy(value) for name, value in tensors().items()}, path)


def as_npz(path: Path) -> None:
    np.savez(path, **tensors())


def as_compressed_npz(path: Path) -> None:
    np.savez_compressed(path, **tensors())


def as_npy(path: Path) -> None:
    np.save(path, tensors()["embed"])


def as_gguf(path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "test")
    writer.add_array("tokenizer.ggml.tokens", [f"token {n}" for n in range(50_000)])
    writer.add_tensor("embed", tensors()["embed"])
    writer.add_tensor("half", tensors()["half"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def as_hdf5(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, value in tensors().items():
            file[name] = value
        file.create_dataset(
            "chunked", data=tensors()["embed"], chunks=(100, 64), compression="gzip"
        )


def as_onnx(path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    values = [onnx.numpy_helper.from_array(value, name) for name, value in tensors().items()]
    graph = onnx.helper.make_graph([], "g", [], [], initializer=values)
    model = onnx.helper.make_model(graph)
    onnx.save_model(
        model, path, save_as_external_data=True, location="weights.bin", size_threshold=1000
    )


def as_zstn(path: Path) -> None:
    import z4ai.safetensors

    as_safetensors(path.with_suffix(".safetensors"))
    z4ai.safetensors.compress_file(path.with_suffix(".safetensors"), path)


FORMATS: dict[str, tuple[str, Callable[[Path], None], int]] = {
    # how it is made, and how many requests a list of its tensors may take
    "zt": ("m.zt", as_zt, 2),
    "zt, zstd": ("m.zt", as_compressed_zt, 2),
    "zt, z4ai": ("m.zt", as_coded_zt, 2),
    "safetensors": ("m.safetensors", as_safetensors, 2),
    "pickle": ("m.pt", as_pickle, 6),
    "npz": ("m.npz", as_npz, 6),
    "npz, deflated": ("m.npz", as_compressed_npz, 6),
    "npy": ("m.npy", as_npy, 2),
    "gguf": ("m.gguf", as_gguf, 5),
    "hdf5": ("m.h5", as_hdf5, 8),
    "onnx": ("m.onnx", as_onnx, 2),
    "zstn": ("m.zstn", as_zstn, 3),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_from_a_web_server(kind: str, web: RangeServer, tmp_path: Path) -> None:
    name, make, most = FORMATS[kind]
    make(tmp_path / name)
    for file in tmp_path.iterdir():
        web.put(f"folder/{file.name}", file.read_bytes())
    url = f"{web.url}/folder/{name}"
    with ztensor.open(url) as reader:
        assert web.counted() <= most
        expected = load_file(tmp_path / name, copy=True)
        assert reader.keys() == list(expected)
        for tensor in reader.keys():
            assert same_bytes(reader.read_numpy(tensor), expected[tensor]), tensor
    assert equal(load_file(url), expected)


@pytest.mark.parametrize("kind", ["zt", "zt, z4ai", "safetensors", "pickle", "npz", "hdf5", "zstn"])
def test_every_format_from_a_bucket(kind: str, s3: S3, tmp_path: Path) -> None:
    name, make, _ = FORMATS[kind]
    make(tmp_path / name)
    url = s3.put(f"a folder/{name}", (tmp_path / name).read_bytes())
    assert equal(load_file(url), load_file(tmp_path / name, copy=True))
    assert ztensor.open(url).format == ztensor.open(tmp_path / name).format


# How few requests


def test_one_tensor_takes_its_own_bytes(web: RangeServer) -> None:
    data = tensors(scale=40)
    url = web.put("m.zt", saved(data))
    reader = ztensor.open(url)
    assert web.counted() == 1
    assert same_bytes(reader.read_numpy("embed"), data["embed"])
    assert web.received() == data["embed"].nbytes
    with ztensor.safe_open(url, framework="np") as file:
        web.counted()
        assert same_bytes(file.get_slice("embed")[1000:1010], data["embed"][1000:1010])
        assert web.requests == [("GET", "/m.zt", web.requests[0][2])]
        assert web.received() == 10 * 64 * 4


def test_rows_of_a_coded_tensor_take_the_chunks_that_hold_them(web: RangeServer) -> None:
    embed = tensors(scale=40)["embed"]
    url = web.put("m.zt", saved({"embed": embed}, compression="default"))
    with ztensor.safe_open(url, framework="np") as file:
        web.counted()
        rows = file.get_slice("embed")
        assert same_bytes(rows[40_000:40_010], embed[40_000:40_010])
        assert len(web.requests) <= 3  # head, index, chunk
        assert web.received() < embed.nbytes // 20
        assert same_bytes(rows[7:9, 3:60:7], embed[7:9, 3:60:7])
        assert len(web.requests) == 1  # the index is known
        assert web.received() < embed.nbytes // 20


@pytest.mark.parametrize("compression", ["default", 3])
def test_a_tensor_with_a_checksum_is_downloaded_once(
    compression: str | int, web: RangeServer
) -> None:
    embed = tensors(scale=40)["embed"]
    file = saved({"embed": embed}, compression=compression, checksum="crc32c")
    url = web.put("m.zt", file)
    web.received()
    # More than its share of the memory: it is not fetched ahead.
    options = {"memory": "16M"}
    assert equal(load_file(url, verify=True, storage_options=options), {"embed": embed})
    assert web.received() < 1.1 * len(file) + (256 << 10)


def test_many_tensors_take_few_requests(web: RangeServer) -> None:
    data = {f"t{n}": np.full(100, n, dtype=np.float32) for n in range(1000)}
    for options in [{}, {"compression": 3}, {"checksum": "crc32c"}]:
        url = web.put("many.zt", saved(data, **options))
        web.counted()
        assert equal(load_file(url), data)
        assert web.counted() <= 4


def test_arrays_belong_to_the_caller(web: RangeServer) -> None:
    url = web.put("m.zt", saved(tensors()))
    found = load_file(url, copy=False)
    found["bias"][:] = 0
    assert equal(load_file(url, copy=False), tensors())
    torch = pytest.importorskip("torch")
    from ztensor.torch import load_file as load_torch

    assert torch.equal(load_torch(url)["half"], torch.from_numpy(tensors()["half"]))
    into = np.zeros((300, 500), dtype=np.float32)
    ztensor.open(url).read_into("layers.0", into)
    assert same_bytes(into, tensors()["layers.0"])


def test_memory_stays_within_its_limit(web: RangeServer) -> None:
    rng = np.random.default_rng(1)
    data = {f"w{n}": rng.standard_normal(2 << 20).astype(np.float32) for n in range(12)}
    url = web.put("m.zt", saved(data, compression="fast"))
    script = f"""
        import resource, numpy as np, ztensor
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        options = {{"memory": "32M", "connections": 4}}
        reader = ztensor.open({url!r}, storage_options=options)
        outs = {{name: np.ones(2 << 20, dtype=np.float32) for name in reader.keys()}}
        before = peak()
        reader.read_into(outs)
        print((peak() - before) >> 20, sum(float(out[0]) for out in outs.values()))
    """
    outcome = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    grown, total = outcome.stdout.split()
    assert float(total) == pytest.approx(sum(float(value[0]) for value in data.values()))
    assert int(grown) < 32 + 24, "the file has 70 MiB; 24 are for code and connections"


def test_a_cache_on_disk(web: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZTENSOR_REMOTE_CACHE", str(tmp_path / "cache"))
    url = web.put("m.zt", saved(tensors()))
    assert equal(load_file(url), tensors())
    web.counted()
    assert equal(load_file(url), tensors())
    assert web.counted() == 1
    other = {name: value * 2 for name, value in tensors().items()}
    web.put("m.zt", saved(other))
    assert equal(load_file(url), other)


def test_a_cache_that_others_can_write_to(
    web: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setenv("ZTENSOR_REMOTE_CACHE", str(cache))
    url = web.put("m.zt", saved(tensors()))
    cache.chmod(0o777)
    with pytest.raises(OSError, match="every user can write to it"):
        load_file(url)
    cache.chmod(0o1777)  # sticky, like /tmp: other users cannot replace the folder made in it
    assert equal(load_file(url), tensors())
    (folder,) = cache.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    # Blocks that another user may have written are not believed, though their checksums are right.
    web.counted()
    for block in folder.iterdir():
        block.chmod(0o666)
    assert equal(load_file(url), tensors())
    assert web.counted() > 1


# Shards


def test_shards_and_folders(s3: S3, web: RangeServer) -> None:
    data = tensors()
    names = {name: f"part-{n}.zt" for n, name in enumerate(data)}
    index = json.dumps({"weight_map": names}).encode()
    for name, file in names.items():
        part = saved({name: data[name]}, file)
        s3.put(f"model/{file}", part)
        web.put(f"model/{file}", part)
    web.put("model/model.zt.index.json", index)
    assert equal(load_file(f"{web.url}/model/model.zt.index.json"), data)
    # Without an index, a folder whose shards are all there is.
    assert load_file(s3.url("model/")).keys() == data.keys()
    assert load_file(s3.url("model")).keys() == data.keys()
    s3.put("model/model.zt.index.json", index)
    assert equal(load_file(s3.url("model/model.zt.index.json")), data)
    assert equal(load_file(s3.url("model")), data)
    with pytest.raises(FileNotFoundError):
        load_file(s3.url("mode"))


# What goes wrong


@pytest.mark.parametrize("fault", [500, 503, "hang up", "truncate"])
@pytest.mark.parametrize("tags", [True, False])
def test_trouble_that_passes(fault: int | str, tags: bool, web: RangeServer) -> None:
    web.tags = tags
    url = web.put("m.zt", saved(tensors()))
    web.faults.extend([fault])
    reader = ztensor.open(url, storage_options=QUICK)
    web.faults.extend([fault, fault])
    assert same_bytes(reader.read_numpy("embed"), tensors()["embed"])


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (404, FileNotFoundError, "no such file"),
        (403, PermissionError, "access is denied"),
        (401, PermissionError, "credentials"),
        (500, OSError, "500"),
        (503, OSError, "503"),
        ("hang up", OSError, "cannot"),
        ("truncate", OSError, "cannot"),
        ("stall", TimeoutError, "cannot"),
        ("ignore range", ztensor.UnsupportedError, "server .* does not support range requests"),
        ("wrong range", ztensor.CorruptError, "range"),
    ],
)
def test_trouble_that_stays(
    fault: int | str, kind: type[Exception], words: str, web: RangeServer
) -> None:
    url = web.put("m.safetensors", b"")
    as_safetensors(Path("m.safetensors"))
    web.put("m.safetensors", Path("m.safetensors").read_bytes())
    options = {"retries": 1, "timeout": 0.5} if fault == "stall" else QUICK
    reader = ztensor.open(url, storage_options=options)
    web.always = fault
    for call in [
        lambda: ztensor.open(url, storage_options=options),
        lambda: reader.read("embed"),
        lambda: load_file(url, storage_options=options),
    ]:
        with pytest.raises(kind, match=words) as caught:
            call()
        assert isinstance(caught.value, ztensor.ZTensorError)
        assert url in str(caught.value)
    web.always = None
    assert same_bytes(reader.read_numpy("embed"), tensors()["embed"])


@pytest.mark.parametrize("tags", [True, False])
def test_an_object_that_changes_is_an_error(tags: bool, web: RangeServer) -> None:
    web.tags = tags
    url = web.put("m.zt", saved(tensors(scale=20)))
    reader = ztensor.open(url)
    other = saved({**tensors(scale=20), "one more": np.zeros(3)})
    web.put("m.zt", other)
    with pytest.raises(ztensor.MismatchError, match="changed while it was being read"):
        reader.read("layers.0")
    assert "one more" in ztensor.open(url)


def test_other_servers(web: RangeServer) -> None:
    url = web.put("m.zt", saved(tensors()))
    web.token = "secret"
    with pytest.raises(PermissionError):
        ztensor.open(url)
    assert len(ztensor.open(url, storage_options={"bearer_token": "secret"})) == 6
    with pytest.raises(ValueError, match='"bearer" is not an option of http:// URLs; did you mean'):
        ztensor.open(url, storage_options={"bearer": "secret"})
    with pytest.raises(ValueError, match='of s3:// URLs; did you mean "region"'):
        ztensor.open("s3://bucket/m.zt", storage_options={"regoin": "eu-north-1"})
    with pytest.raises(ztensor.UnsupportedError, match="ftp"):
        ztensor.open("ftp://127.0.0.1/m.zt")
    with pytest.raises(ztensor.UnsupportedError, match="written"):
        save_file(tensors(), url)
    with pytest.raises(ztensor.UnsupportedError, match="in place"):
        ztensor.Writer.append(url)


def test_unreachable_servers(s3: S3) -> None:
    options = {"access_key_id": "x", "secret_access_key": "x", "region": "x"}
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        server = f"http://127.0.0.1:{closed.getsockname()[1]}"
        on_s3 = {**options, "endpoint_url": server}
        on_azure = {"account_name": "x", "endpoint": server, "skip_signature": True}
        # Default retries: a connection that is refused is not tried again for long.
        for call in [
            lambda: ztensor.open(f"{server}/m.zt"),
            lambda: ztensor.store.read_bytes(f"{server}/m.zt"),
            lambda: ztensor.open("s3://bucket/m.zt", storage_options=on_s3),
            lambda: ztensor.store.list("s3://bucket/x", storage_options=on_s3),
            lambda: save_file(tensors(), "s3://bucket/m.zt", storage_options=on_s3),
            lambda: ztensor.open("az://container/m.zt", storage_options=on_azure),
        ]:
            with pytest.raises(ztensor.UnreachableError, match="refused the connection") as caught:
                call()
            assert isinstance(caught.value, ConnectionError)
    with pytest.raises(ConnectionError, match=r"no-such-host\.invalid cannot be resolved"):
        ztensor.open("http://no-such-host.invalid/m.zt")


def test_damaged_files_are_found_out(web: RangeServer) -> None:
    whole = saved(tensors(), checksum="crc32c")
    for cut in [0, 1, 15, 100, len(whole) // 2, len(whole) - 1]:
        url = web.put("cut.zt", whole[:cut])
        with pytest.raises(ztensor.ZTensorError, match=r"cut\.zt"):
            ztensor.open(url)
    broken = bytearray(whole)
    broken[5000] ^= 1
    with pytest.raises(ztensor.MismatchError):
        load_file(web.put("broken.zt", bytes(broken)))


# Object stores


def test_saving_to_a_bucket(s3: S3) -> None:
    data = tensors()
    save_file(data, s3.url("small.zt"), metadata={"a": "b"})
    assert equal(load_file(s3.url("small.zt")), data)
    assert ztensor.open(s3.url("small.zt")).attributes == {"a": "b"}
    assert s3.get("small.zt") == saved(data, metadata={"a": "b"}), "the same bytes as in a file"
    large = {f"w{n}": np.random.default_rng(n).bytes(7 << 20) for n in range(3)}
    arrays = {name: np.frombuffer(value, dtype=np.uint8) for name, value in large.items()}
    save_file(arrays, s3.url("large.zt"), storage_options={"part_size": "5M"})
    assert s3.get("large.zt") == saved(arrays)
    assert s3.client.head_object(Bucket=s3.bucket, Key="large.zt")["ETag"].endswith('-5"')
    assert equal(load_file(s3.url("large.zt")), arrays)
    assert s3.unfinished() == 0


def test_nothing_appears_before_it_is_complete(s3: S3) -> None:
    part = np.zeros(6 << 20, dtype=np.uint8)
    url, options = s3.url("never.zt"), {"part_size": "5M"}
    with ztensor.Writer(url, storage_options=options) as writer:
        writer.write_numpy("a", part)
        assert s3.keys() == [] and s3.unfinished() == 1
    assert s3.keys() == ["never.zt"]
    before = s3.get("never.zt")
    with pytest.raises(RuntimeError), ztensor.Writer(url, storage_options=options) as writer:
        writer.write_numpy("b", part)
        raise RuntimeError
    writer = ztensor.Writer(url, storage_options=options)
    writer.write_numpy("c", part)
    del writer
    with pytest.raises(ztensor.InvalidArgumentError):
        save_file({"a": part, "bad": object()}, url, storage_options=options)
    assert s3.get("never.zt") == before
    assert s3.unfinished() == 0


def test_errors_of_buckets(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="no such object"):
        load_file(s3.url("none.zt"))
    with pytest.raises(FileNotFoundError, match='no such bucket or container: "no-such-bucket"'):
        load_file("s3://no-such-bucket/x.zt")
    with pytest.raises(OSError, match="cannot upload: there is no such bucket"):
        save_file(tensors(), "s3://no-such-bucket/x.zt")
    with pytest.raises(ztensor.InvalidArgumentError, match="file name"):
        save_file(tensors(), s3.url("folder/"))
    with pytest.raises(ValueError):
        load_file("s3://")


def test_options_instead_of_variables(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in s3.variables:
        monkeypatch.delenv(name)
    options = {
        "endpoint_url": s3.endpoint,
        "access_key_id": "test",
        "secret_access_key": "test",
        "region": "eu-north-1",
    }
    save_file(tensors(), s3.url("o.zt"), storage_options=options)
    assert equal(load_file(s3.url("o.zt"), storage_options=options), tensors())
    again = pickle.loads(pickle.dumps(ztensor.Reader(s3.url("o.zt"), storage_options=options)))
    assert again.keys() == list(tensors())


def test_small_files(s3: S3, tmp_path: Path) -> None:
    for root in [s3.url("run"), str(tmp_path / "run"), f"file://{tmp_path}/run2"]:
        assert store.list(root) == []
        path = store.join(root, "a/config.json")
        assert not store.exists(path) and store.size(path) is None
        store.write_bytes(path, b"{}")
        store.write_bytes(store.join(root, "b"), bytearray(b"123"))
        assert store.read_bytes(path) == b"{}"
        assert store.read_bytes(path, start=1) == store.read_bytes(path, start=1, stop=9) == b"}"
        assert store.list(root) == ["a/config.json", "b"]
        assert store.sizes(root) == {"a/config.json": 2, "b": 3}
        store.delete(path)
        store.delete(path)
        assert store.list(root) == ["b"]
        with pytest.raises(FileNotFoundError):
            store.read_bytes(path)


def test_google(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    # The protocol is the same but for signatures, which this server does not want.
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", s3.endpoint)
    save_file(tensors(), f"gs://{s3.bucket}/g.zt")
    assert equal(load_file(f"gs://{s3.bucket}/g.zt"), tensors())
    assert s3.keys() == ["g.zt"]


def test_azure(web: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", web.url)
    data = tensors(scale=20)
    save_file(data, "az://box/a.zt", storage_options={"part_size": "5M"})
    assert list(web.objects) == ["/box/a.zt"] and not web.blocks
    assert web.objects["/box/a.zt"] == saved(data)
    assert equal(load_file("az://box/a.zt"), data)
    # A part that cannot be sent: nothing appears.
    web.always = 500
    with pytest.raises(OSError, match="cannot upload"):
        save_file(data, "az://box/b.zt", storage_options={"part_size": "5M", "retries": 0})
    assert list(web.objects) == ["/box/a.zt"]


# Processes and threads


def test_a_fork_reads_on(web: RangeServer) -> None:
    url = web.put("m.zt", saved(tensors()))
    reader = ztensor.open(url)
    reader.read("embed")
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            try:
                fine = same_bytes(reader.read_numpy("layers.0"), tensors()["layers.0"])
                fine = fine and equal(load_file(url), tensors())
                os._exit(0 if fine else 1)
            except BaseException:
                os._exit(2)
        children.append(child)
    assert same_bytes(reader.read_numpy("layers.0"), tensors()["layers.0"])
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_many_threads_at_once(web: RangeServer) -> None:
    url = web.put("m.zt", saved(tensors()))
    reader = ztensor.open(url)
    wrong: list[str] = []

    def work() -> None:
        for name, value in tensors().items():
            if not same_bytes(reader.read_numpy(name), value):
                wrong.append(name)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_waiting_can_be_interrupted(web: RangeServer) -> None:
    url = web.put("m.zt", saved(tensors(scale=20)))
    reader = ztensor.open(url)
    web.always = "hold"

    def interrupt() -> None:
        web.held.wait()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    # The server answers only after this: a read that waited for it would end without an error.
    with pytest.raises(KeyboardInterrupt):
        reader.read(["embed", "layers.0"])
    web.let_go.set()
    thread.join()


# The other doors


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "ztensor", *arguments]
    outcome = subprocess.run(command, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def test_the_commands(s3: S3, web: RangeServer, tmp_path: Path) -> None:
    as_safetensors(tmp_path / "m.safetensors")
    url = web.put("m.safetensors", (tmp_path / "m.safetensors").read_bytes())
    assert "embed" in run("info", url)
    run("convert", url, "-o", s3.url("m.zt"), "--checksum", "crc32c")
    assert equal(load_file(s3.url("m.zt")), load_file("m.safetensors"))
    assert "6" in run("verify", s3.url("m.zt"))
    run("convert", s3.url("m.zt"), "-o", s3.url("back.safetensors"))
    assert equal(load_file(s3.url("back.safetensors")), load_file("m.safetensors"))
    run("diff", url, s3.url("m.zt"))
    again = [sys.executable, "-m", "ztensor", "convert", url, "-o", s3.url("m.zt")]
    outcome = subprocess.run(again, capture_output=True, text=True)
    assert outcome.returncode and "--force" in outcome.stderr


def test_packed_files(s3: S3, tmp_path: Path) -> None:
    import z4ai.safetensors as packed

    as_safetensors(tmp_path / "m.safetensors")
    url = s3.put("m.safetensors", (tmp_path / "m.safetensors").read_bytes())
    packed.compress_file(url, s3.url("m.zstn"))
    with packed.ZstnReader.open(s3.url("m.zstn")) as reader:
        assert set(reader.names()) == set(tensors())
    assert equal(load_file(s3.url("m.zstn")), load_file("m.safetensors"))
    packed.decompress_file(s3.url("m.zstn"), s3.url("again.safetensors"))
    assert s3.get("again.safetensors") == (tmp_path / "m.safetensors").read_bytes()


def test_urls_of_files(tmp_path: Path) -> None:
    save_file(tensors(), f"file://{tmp_path}/a%20b.zt")
    assert (tmp_path / "a b.zt").exists()
    assert equal(load_file(f"file://{tmp_path}/a%20b.zt"), tensors())
    assert io.BytesIO((tmp_path / "a b.zt").read_bytes()).read() == saved(tensors())
