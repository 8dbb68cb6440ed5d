"""Repositories of checkpoints: Python, the command line, S3, fsspec, the Trainer's callback."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from remote_servers import proxied
from repository_models import contents, folder, same, tuned, weights

import ztensor
from ztensor.numpy import load_file, save_file
from ztensor.repository import Repository


def test_a_family_of_versions(tmp_path: Path) -> None:
    repository = Repository.init(tmp_path / "repo")
    base = weights(0)
    models = [base, tuned(base, 1), tuned(base, 2)]
    done = []
    for number, model in enumerate(models):
        where = folder(tmp_path / f"v{number}", model)
        done.append(repository.commit(where, f"version {number}", metadata={"step": number}))
    assert done[1].deltas > 5
    assert done[1].stored < done[0].stored
    assert [entry.message for entry in repository.log()] == ["version 2", "version 1", "version 0"]
    assert repository.log(limit=1)[0].metadata == {"step": "2"}
    for number, model in enumerate(models):
        ref = f"main~{2 - number}"
        with repository.open(ref) as reader:
            assert same(reader, model)
        out = tmp_path / f"out{number}"
        assert repository.checkout(ref, out).files == 3
        assert contents(out) == contents(tmp_path / f"v{number}")
    version = repository.version(done[1].id[:10])
    assert version.id == done[1].id
    assert {file.path for file in version.files()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert {tensor.form for tensor in version.tensors()} <= {"whole", "delta"}
    assert version.read_bytes("config.json") == b'{"hidden_size": 64}'
    assert version.read_bytes("config.json", 2, 8) == b"hidden"
    usage = repository.usage()
    assert len(usage.versions) == 3
    assert usage.stored < usage.bytes
    assert repository.fsck(full=True).errors == []
    assert repr(repository) == f"Repository({str(tmp_path / 'repo')!r})"


def test_state_dicts_of_torch_and_numpy(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    repository = Repository(tmp_path / "repo", create=True)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))
    state = {name: value.to(torch.bfloat16) for name, value in model.state_dict().items()}
    repository.commit(state, "torch", attributes={"format": "pt"}, tag="torch")
    with repository.open("torch") as reader:
        for name, value in state.items():
            assert torch.equal(reader.read_torch(name), value)
    repository.checkout("torch", tmp_path / "out")
    safetensors = pytest.importorskip("safetensors.torch")
    loaded = safetensors.load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(loaded[name], value) for name, value in state.items())
    again = Repository(tmp_path / "repo", create=True)
    done = again.commit({"x": np.arange(1000)}, name="sub/x.safetensors")
    assert done.tensors == 1
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == state.keys()
    with again.open("main", "sub/x.safetensors") as reader:
        assert (reader.read_numpy("x") == np.arange(1000)).all()
    with pytest.raises(ztensor.NotFoundError):
        Repository(tmp_path / "none")


def test_every_saved_format_comes_back(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = weights(3)
    where = tmp_path / "all"
    where.mkdir()
    save_file(model, where / "a.zt")
    save_file(model, where / "packed.zt", compression="default")
    save_file(model, where / "a.safetensors")
    save_file(model, where / "a.npz")
    np.savez_compressed(where / "b.npz", **model)
    torch.save({name: torch.from_numpy(value) for name, value in model.items()}, where / "a.pt")
    (where / "notes.bin").write_bytes(np.random.default_rng(1).bytes(100_000))
    (where / "empty").write_bytes(b"")
    repository = Repository.init(tmp_path / "repo")
    done = repository.commit(where)
    # The same tensors in four formats are stored once.
    assert done.same >= 3 * 8
    repository.checkout("main", tmp_path / "out")
    assert contents(tmp_path / "out") == contents(where)
    for name in ("a.zt", "packed.zt", "a.safetensors", "a.npz", "b.npz", "a.pt"):
        with repository.open("main", name) as reader:
            assert same(reader, model), name


def test_bf16_of_a_master_is_free(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    repository = Repository.init(tmp_path / "repo")
    master = {name: torch.from_numpy(value) for name, value in weights(4).items()}
    repository.commit(master, "master")
    narrow = {name: value.to(torch.bfloat16) for name, value in master.items()}
    done = repository.commit(narrow, "bf16")
    assert (done.casts, done.whole, done.deltas) == (8, 0, 0)
    with repository.open() as reader:
        assert all(torch.equal(reader.read_torch(name), value) for name, value in narrow.items())


def test_branches_tags_and_conflicts(tmp_path: Path) -> None:
    repository = Repository.init(tmp_path / "repo")
    first = repository.commit({"x": np.zeros(1000)}, "first")
    second = repository.commit({"x": np.ones(1000)}, "second", expected=first.id)
    with pytest.raises(ztensor.MismatchError):
        repository.commit({"x": np.ones(1000)}, expected=first.id)
    assert repository.tag("v1", "main~1") == first.id
    assert repository.branch("side", "v1") == first.id
    assert repository.tags() == {"v1": first.id}
    assert repository.branches() == {"main": second.id, "side": first.id}
    assert repository.resolve("side") == first.id
    with pytest.raises(ztensor.ZTensorError):
        repository.tag("v1", "main")
    repository.tag("v1", "main", force=True)
    repository.delete_tag("v1")
    repository.delete_branch("side")
    assert repository.tags() == {}
    for bad in ("../x", "a b", "", "/"):
        with pytest.raises(ztensor.ZTensorError):
            repository.branch(bad)
    merged = repository.commit({"x": np.full(1000, 2.0)}, "merge", parents=[first.id])
    assert repository.log(limit=1)[0].parents == [second.id, first.id]
    assert merged.parent == second.id


def test_threads_commit_at_the_same_time(tmp_path: Path) -> None:
    Repository.init(tmp_path / "repo")

    def work(number: int) -> None:
        for step in range(3):
            value = np.full(2000, number * 10 + step, np.float32)
            Repository(tmp_path / "repo").commit({"x": value}, f"{number * 10 + step}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    repository = Repository(tmp_path / "repo")
    log = repository.log()
    assert len(log) == 12
    for entry in log:
        with repository.open(entry.id) as reader:
            assert (reader.read_numpy("x") == float(entry.message)).all()
    assert repository.fsck(full=True).errors == []


def test_retention_and_garbage(tmp_path: Path) -> None:
    repository = Repository.init(tmp_path / "repo")
    model = weights(5)
    states = []
    for step in range(12):
        for value in model.values():
            value.reshape(-1)[step::97] *= 1.01
        states.append({name: value.copy() for name, value in model.items()})
        repository.commit(model, f"{step}")
    planned = repository.gc(keep_last=2, keep_every=5, grace=0, dry_run=True)
    assert len(planned.forgotten) == 12 - 4
    done = repository.gc(keep_last=2, keep_every=5, grace=0)
    assert done.forgotten == planned.forgotten
    assert repository.fsck(full=True).errors == []
    for entry in repository.log():
        step = int(entry.message)
        assert entry.forgotten == (step not in (0, 5, 10, 11))
        if entry.forgotten:
            with pytest.raises(ztensor.NotFoundError, match="retention"):
                repository.open(entry.id)
        else:
            with repository.open(entry.id) as reader:
                assert same(reader, states[step])
    assert repository.gc().removed == []


def test_copies(tmp_path: Path) -> None:
    repository = Repository.init(tmp_path / "repo")
    model = weights(6)
    repository.commit(model, "one", tag="v1")
    clone = repository.clone(tmp_path / "clone")
    assert clone.tags() == repository.tags()
    repository.commit(tuned(model, 1), "two")
    done = clone.pull(tmp_path / "repo")
    assert (done.commits, done.refs) == (1, ["main"])
    assert repository.push(clone).objects == 0
    with clone.open() as reader:
        assert same(reader, tuned(model, 1))
    clone.commit({"x": np.zeros(2000)}, "elsewhere")
    repository.commit({"x": np.ones(2000)}, "here")
    with pytest.raises(ztensor.MismatchError, match="force"):
        repository.push(clone)
    repository.push(clone, force=True)
    assert clone.resolve("main") == repository.resolve("main")


def test_progress_and_cancelling(tmp_path: Path) -> None:
    repository = Repository.init(tmp_path / "repo")
    where = folder(tmp_path / "model", weights(7))
    seen: list[tuple[int, int]] = []
    repository.commit(where, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == sum(len(data) for data in contents(where).values())

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repository.checkout("main", tmp_path / "out", progress=stop)
    assert not (tmp_path / "out").exists()
    with pytest.raises(KeyboardInterrupt):
        repository.commit(where, "again", progress=stop)
    assert len(repository.log()) == 1


def test_forged_files(tmp_path: Path) -> None:
    repository = Repository.init(tmp_path / "repo")
    repository.commit(weights(8), "x")
    root = tmp_path / "repo"
    pack = next((root / "packs").iterdir())
    data = bytearray(pack.read_bytes())
    data[len(data) // 3] ^= 0xFF
    pack.write_bytes(data)
    with pytest.raises(ztensor.ZTensorError):
        Repository(root).checkout("main", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert Repository(root).fsck(full=True).errors
    entry = next((root / "refs" / "heads" / "main").iterdir())
    entry.write_text('{"format":1,"commit":"../../../../etc/passwd","manifest":"x"}')
    with pytest.raises(ztensor.CorruptError):
        Repository(root).open()
    (root / "ztensor-repository.json").write_text('{"format":2}')
    with pytest.raises(ztensor.UnsupportedError):
        Repository(root)


def run(*arguments: object, code: int = 0) -> str:
    command = [sys.executable, "-m", "ztensor", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_the_command_line(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    base = weights(9)
    first, second = folder(tmp_path / "a", base), folder(tmp_path / "b", tuned(base, 1))
    (second / "optimizer.bin").write_bytes(b"x" * 5000)
    run("repo", "init", repo)
    run("repo", "init", repo, code=4)
    run("repo", "commit", repo, first, "-m", "first", "--author", "me")
    arguments = [
        "-m",
        "second",
        "--tag",
        "v2",
        "--meta",
        "loss=1.5",
        "--exclude",
        "*.bin",
        "--json",
    ]
    done = json.loads(run("repo", "commit", repo, second, *arguments))
    assert done["deltas"] > 5
    log = json.loads(run("repo", "log", repo, "--json"))
    assert [entry["message"] for entry in log] == ["second", "first"]
    assert log[0]["tags"] == ["v2"]
    assert log[0]["metadata"] == {"loss": "1.5"}
    assert "second" in run("repo", "log", repo, "v2", "-n", 1)
    assert "model.safetensors" in run("repo", "show", repo)
    assert "delta" in run("repo", "show", repo, "--tensors")
    # Norms of 256 bytes are part of the manifest, and no objects.
    assert len(json.loads(run("repo", "show", repo, "main~1", "--json"))["tensors"]) == 8
    assert "cosine" in run("repo", "diff", repo, "main~1", "main", code=1)
    run("repo", "diff", repo, "main", "v2")
    run("repo", "checkout", repo, "v2", tmp_path / "out")
    (second / "optimizer.bin").unlink()
    assert contents(tmp_path / "out") == contents(second)
    run("repo", "checkout", repo, "main~1", tmp_path / "out", code=2)
    back = json.loads(
        run("repo", "checkout", repo, "main~1", tmp_path / "out", "--force", "--json")
    )
    assert (back["files"], back["unchanged"]) == (1, 2)
    for name in ("out.safetensors", "out.zt", "out.npz"):
        run("repo", "export", repo, "main~1", "-o", tmp_path / name, "--drop-metadata")
        with ztensor.Reader(tmp_path / name) as reader:
            assert same(reader, base)
    run("repo", "tag", repo, "v1", "main~1")
    assert set(json.loads(run("repo", "tag", repo, "--json"))) == {"v1", "v2"}
    run("repo", "tag", repo, "v1", "--delete")
    run("repo", "branch", repo, "side", "v2")
    assert "side" in run("repo", "branch", repo)
    assert "saved" in run("repo", "du", repo)
    assert "layers.0" in run("repo", "du", repo, "main", "--layers")
    assert json.loads(run("repo", "du", repo, "--json"))["versions"][0]["message"] == "second"
    run("repo", "clone", repo, tmp_path / "clone")
    pushed = json.loads(run("repo", "push", repo, tmp_path / "clone", "main", "--json"))
    assert pushed["objects"] == 0
    run("repo", "pull", repo, tmp_path / "clone")
    assert json.loads(run("repo", "fsck", repo, "--full", "--json"))["errors"] == []
    forgotten = json.loads(run("repo", "gc", repo, "--keep-last", 1, "--grace", "0", "--json"))
    assert len(forgotten["forgotten"]) == 1
    run("repo", "gc", repo, "--grace", "soon", code=2)
    run("repo", "page", repo, "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "second" in page
    assert "<script" not in page
    (next((repo / "packs").iterdir())).unlink()
    run("repo", "fsck", repo, code=1)
    run("repo", "log", tmp_path / "none", code=2)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    repository = Repository.init(tmp_path / "repo")
    where = folder(tmp_path / "a", weights(10))
    repository.commit(where, "first", branch="exp/a")
    command = [sys.executable, "-m", "ztensor", "repo", "serve", str(tmp_path / "repo")]
    process = subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    found = re.search(r"http://[\d.:]+", process.stderr.readline())
    assert found
    try:
        yield found[0], where
    finally:
        process.terminate()
        process.wait()


def test_versions_are_served_by_http(served: tuple[str, Path]) -> None:
    url, where = served
    expected = (where / "model.safetensors").read_bytes()

    def get(path: str, **headers: str) -> tuple[int, bytes]:
        request = urllib.request.Request(url + path, headers=headers)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    assert json.loads(get("/")[1])["refs"][0]["ref"] == "exp/a"
    files = json.loads(get("/exp/a/")[1])["files"]
    assert {file["path"] for file in files} == set(contents(where))
    assert get("/exp/a/model.safetensors") == (200, expected)
    assert get("/exp/a/model.safetensors", Range="bytes=100-199") == (206, expected[100:200])
    assert get("/exp/a/model.safetensors", Range="bytes=-10") == (206, expected[-10:])
    assert get("/exp/a/model.safetensors", Range=f"bytes={len(expected)}-")[0] == 416
    for path in ("/none/x", "/exp/a/none", "/exp/a/../../etc/passwd", "/%2e%2e/x", "/exp"):
        assert get(path)[0] == 404, path
    with ztensor.Reader(url + "/exp/a/model.safetensors") as reader:
        assert same(reader, weights(10))
    request = urllib.request.Request(url + "/", data=b"x", method="POST")
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(request)


def test_a_repository_in_a_store(tmp_path: Path, s3: Any) -> None:
    url = f"s3://{s3.bucket}/models"
    repository = Repository.init(url)
    with pytest.raises(ztensor.ZTensorError):
        Repository.init(url)
    model = weights(11)
    versions = [model, tuned(model, 1), tuned(model, 2)]
    for number, version in enumerate(versions):
        repository.commit(folder(tmp_path / f"{number}", version), f"{number}")
    repository = Repository(url)
    assert [entry.message for entry in repository.log()] == ["2", "1", "0"]
    for number, version in enumerate(versions):
        with repository.open(f"main~{2 - number}") as reader:
            assert same(reader, version)
        repository.checkout(f"main~{2 - number}", tmp_path / f"out{number}")
        assert contents(tmp_path / f"out{number}") == contents(tmp_path / f"{number}")
    assert repository.fsck(full=True).errors == []
    clone = repository.clone(tmp_path / "clone")
    clone.commit(tuned(model, 3), "3")
    assert clone.push(url).commits == 1
    assert Repository(url).log(limit=1)[0].message == "3"
    Repository(url).gc(keep_last=1, grace=0)
    assert Repository(url).fsck(full=True).errors == []
    with Repository(url).open() as reader:
        assert same(reader, tuned(model, 3))
    # Two writers on one branch.
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            Repository(url).commit({"x": np.full(2000, number)}, f"w{number}", branch="both")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert {entry.message for entry in Repository(url).log("both")} == {f"w{n}" for n in range(4)}


@pytest.mark.parametrize("header", [{"note": "x" * 5000}, {}], ids=["long header", "short header"])
def test_one_tensor_of_a_version_takes_four_rounds(
    header: dict[str, str], tmp_path: Path, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"w": np.random.default_rng(1).standard_normal((600, 500)).astype(np.float32)}
    repository = Repository.init(f"s3://{s3.bucket}/models")
    versions = [model]
    for _ in range(6):
        value = versions[-1]["w"].copy()
        value.reshape(-1)[::50] *= 1.01
        versions.append({"w": value})
    for version in versions:
        repository.commit(version | {"other": np.zeros(100_000)}, attributes=header)
    assert repository.version().tensors()[1].depth >= 3
    with proxied(s3.endpoint) as proxy:
        proxy.delay = 0.3  # requests that are made at the same time overlap
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        for ref, version in (("main", versions[-1]), ("main~6", versions[0])):
            opened = Repository(f"s3://{s3.bucket}/models")
            ref = opened.resolve(ref) if "~" in ref else ref
            proxy.requests.clear()
            with opened.open(ref) as reader:
                assert (reader.read_numpy("w") == version["w"]).all()
            received = sum(length for _, path, _, _, length in proxy.requests if "/packs/" in path)
            assert received <= 1.3 * model["w"].nbytes
            made = [request[:2] for request in proxy.requests]
            assert proxy.rounds() <= 4, made


def test_a_store_that_misbehaves(tmp_path: Path, s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"s3://{s3.bucket}/models"
    model = weights(21)
    with proxied(s3.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        repository = Repository.init(url)
        repository.commit(model, "0")

        # Puts that fail for a while are tried again; those that fail for good change nothing.
        left = [3]

        def sometimes(method: str, path: str) -> int | None:
            if method in ("PUT", "POST") and left[0]:
                left[0] -= 1
                return 503
            return None

        proxy.fault = sometimes
        repository.commit(tuned(model, 1), "1")
        assert left == [0]
        for part in ("/packs/", "/manifests/", "/commits/", "/refs/"):
            proxy.fault = lambda method, path, part=part: (
                403 if method in ("PUT", "POST") and part in path else None
            )
            with pytest.raises((ztensor.ZTensorError, OSError)):
                repository.commit(tuned(model, 2), "never")
            proxy.fault = lambda method, path: None
            assert [entry.message for entry in Repository(url).log()] == ["1", "0"]
            assert Repository(url).fsck(full=True).errors == []

        # A conditional put that was done, and whose answer was lost, is recognised.
        lost = [1]

        def once(method: str, path: str) -> str | None:
            if method == "PUT" and "/refs/heads/" in path and lost[0]:
                lost[0] -= 1
                return "lost"
            return None

        proxy.fault = once
        repository.commit(tuned(model, 3), "2")
        assert lost == [0]
        proxy.fault = lambda method, path: None
        assert [entry.message for entry in Repository(url).log()] == ["2", "1", "0"]

        # One whose listings are old commits behind what others committed since.
        proxy.stale = {}
        behind = Repository(url)
        behind.log()
        fresh = Repository(url, storage_options={"aws_endpoint_url": s3.endpoint})
        fresh.commit(tuned(model, 4), "3")
        assert Repository(url).log(limit=1)[0].message == "2", "listings are old"
        behind.commit(tuned(model, 5), "4")
        proxy.stale = None
        log = Repository(url).log()
        assert [entry.message for entry in log] == ["4", "3", "2", "1", "0"]
        assert Repository(url).fsck(full=True).errors == []
        for number, seed in enumerate((5, 4, 3, 1)):
            with Repository(url).open(log[number].id) as reader:
                assert same(reader, tuned(model, seed))


MEASURED = """
import resource, sys
import ztensor
repository = ztensor.Repository("repo")
reader = ztensor.open("model.safetensors")
del reader
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if sys.argv[1] == "commit":
    repository.commit("model.safetensors")
else:
    repository.checkout("main", "out")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)
"""


def test_memory_is_that_of_a_few_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    noise = (rng.standard_normal(2 << 20) * 0.02).astype(np.float32)
    model = {f"layers.{n}.weight": np.roll(noise, 1000 * n) * np.float32(n + 1) for n in range(50)}
    save_file(model, "model.safetensors")
    size = sum(value.nbytes for value in model.values())
    del model
    Repository.init("repo")
    for what in ("commit", "checkout"):
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, what], capture_output=True, text=True, check=True
        )
        assert int(done.stdout) < size / 2, f"{what} of {size} bytes"
    assert Path("out/model.safetensors").stat().st_size == Path("model.safetensors").stat().st_size
