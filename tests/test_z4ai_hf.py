"""Packed weights in torch and transformers: drop-in functions, from_pretrained, whole folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open as plain_safe_open
from safetensors.torch import load_file as plain_load_file
from safetensors.torch import save_file as plain_save_file

import z4ai
import ztensor
import ztensor.torch
from z4ai import integrations
from z4ai.safetensors import compress_file, decompress_file

plain_functions = (plain_safe_open, plain_load_file)


@pytest.fixture(autouse=True)
def always_off_again() -> Iterator[None]:
    yield
    z4ai.disable_hf()


def equal(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return (
        found.dtype == expected.dtype
        and found.shape == expected.shape
        and torch.equal(
            found.contiguous().reshape(-1).view(torch.uint8),
            expected.contiguous().reshape(-1).view(torch.uint8),
        )
    )


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Linear(128, 10)).bfloat16()
    made = dict(model.state_dict())
    made["scalar"] = torch.tensor(2.5)
    made["empty"] = torch.zeros(0, 3)
    return made


# --- save_file and load_file


def test_as_documented() -> None:
    model = torch.nn.Linear(400, 300).bfloat16()
    stats = z4ai.save_file(model.state_dict(), "model.z4ai.safetensors")
    assert f"{stats['saved_pct']:.0f}% smaller"
    assert stats["saved_pct"] > 20 and stats["ratio"] > 1.25
    assert stats["compressed_bytes"] == Path("model.z4ai.safetensors").stat().st_size
    loaded = z4ai.load_file("model.z4ai.safetensors")
    other = torch.nn.Linear(400, 300).bfloat16()
    other.load_state_dict(loaded)
    assert equal(other.weight, model.weight)


def test_any_tensors_round_trip() -> None:
    made = state()
    shared = torch.randn(50, 60)
    made |= {
        "tied.a": shared,
        "tied.b": shared,
        "view": shared[10:20],
        "strided": shared.T,
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "fp8": torch.randn(40).to(torch.float8_e5m2),
        "int": torch.arange(10),
        "bool": torch.tensor([True, False]),
    }
    stats = z4ai.save_file(
        made, "x.zstn", metadata={"step": "7"}, effort="fast", threads=1, level=3
    )
    assert stats["tied"] >= 1
    for loaded in (z4ai.load_file("x.zstn"), z4ai.load_file(Path("x.zstn"), device="cpu")):
        assert loaded.keys() == made.keys()
        for name, tensor in made.items():
            assert equal(loaded[name], tensor.detach()), name
        loaded["tied.a"].zero_()
        assert not torch.equal(loaded["tied.a"], loaded["tied.b"]), "equal tensors are not tied"
    # It is what packing a plain file gives: restored, the plain library reads it.
    decompress_file("x.zstn", "x.safetensors")
    plain = plain_load_file("x.safetensors")
    assert all(equal(plain[name], tensor.detach()) for name, tensor in made.items())
    with plain_safe_open("x.safetensors", "pt") as file:
        assert file.metadata() == {"step": "7"}


def test_plain_files_pass_through() -> None:
    made = state()
    plain_save_file(made, "plain.safetensors")
    for _ in range(2):
        loaded = z4ai.load_file("plain.safetensors")
        assert all(equal(loaded[name], tensor) for name, tensor in made.items())
        z4ai.enable_hf()


FOREIGN = {
    "pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
        "git lfs pull",
    ),
    "page": (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
    "answer": (b'{"error":"Entry not found"}', "Entry not found"),
    "blank": (bytes(100), "zero bytes"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_files_that_are_none_are_named(kind: str) -> None:
    import safetensors
    import safetensors.torch

    data, words = FOREIGN[kind]
    Path("model.safetensors").write_bytes(data)
    with pytest.raises(safetensors.SafetensorError, match=words):
        z4ai.load_file("model.safetensors")
    z4ai.enable_hf()
    for call in (
        lambda: safetensors.torch.load_file("model.safetensors"),
        lambda: safetensors.safe_open("model.safetensors", framework="pt"),
        lambda: safetensors.torch.safe_open("model.safetensors", framework="pt"),
        lambda: z4ai.load_file("model.safetensors"),
    ):
        with pytest.raises(safetensors.SafetensorError, match=words):
            call()


def test_files_of_other_formats() -> None:
    made = {"x": torch.arange(6.0).reshape(2, 3)}
    torch.save(made, "x.pt")
    ztensor.torch.save_file(made, "x.zt")
    for name in ("x.pt", "x.zt"):
        assert torch.equal(z4ai.load_file(name)["x"], made["x"])
    # A truncated safetensors file is what safetensors says.
    import safetensors.torch

    z4ai.enable_hf()
    plain_save_file(made, "cut.safetensors")
    Path("cut.safetensors").write_bytes(Path("cut.safetensors").read_bytes()[:-5])
    with pytest.raises(safetensors.SafetensorError, match=r"(?i)incomplete|metadata"):
        safetensors.torch.load_file("cut.safetensors")


CHILD = """
import multiprocessing, sys
import z4ai

def load(path):
    import safetensors.torch
    return sorted(safetensors.torch.load_file(path))

if __name__ == "__main__":
    if sys.argv[1] == "call":
        z4ai.enable_hf()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(load, ["packed.safetensors"]) == ["x"]
"""


@pytest.mark.parametrize("how", ["call", "variable"])
def test_spawned_processes(how: str) -> None:
    z4ai.save_file({"x": torch.ones(100)}, "packed.safetensors")
    Path("child.py").write_text(CHILD)
    variable = {"Z4AI_HF": "1"} if how == "variable" else {}
    subprocess.run([sys.executable, "child.py", how], check=True, env={**os.environ, **variable})


def test_the_variable_imports_nothing_by_itself() -> None:
    code = (
        "import sys, z4ai; assert not z4ai.is_enabled();"
        "assert not {'torch', 'safetensors.torch'} & set(sys.modules);"
        "import safetensors.torch; assert z4ai.is_enabled();"
        "z4ai.disable_hf(); assert not z4ai.is_enabled()"
    )
    environment = {**os.environ, "Z4AI_HF": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    from importlib.metadata import entry_points

    (plugin,) = [e for e in entry_points(group="vllm.general_plugins") if e.name == "z4ai"]
    assert plugin.load() is integrations.enable_if_asked


def test_wrong_calls() -> None:
    with pytest.raises(TypeError, match="'x'"):
        z4ai.save_file({"x": [1, 2]}, "x")  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        z4ai.save_file({3: torch.zeros(1)}, "x")  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="metadata"):
        z4ai.save_file({}, "x", metadata={"a": 1})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="effort"):
        z4ai.save_file({}, "x", effort="nope")
    with pytest.raises(FileNotFoundError):
        z4ai.load_file("absent")
    Path("bad").write_bytes(b"ZSTN\x04 and nothing more")
    with pytest.raises(ValueError, match="bad"):
        z4ai.load_file("bad")
    assert sorted(os.listdir()) == ["bad"]


# --- the patch


def test_switching() -> None:
    import safetensors
    import safetensors.torch

    assert not z4ai.is_enabled()
    z4ai.enable_hf()
    z4ai.enable_hf()
    assert z4ai.is_enabled() and integrations.is_enabled()
    assert safetensors.safe_open is not plain_functions[0]
    z4ai.disable_hf()
    z4ai.disable_hf()
    assert not z4ai.is_enabled()
    assert safetensors.safe_open is plain_functions[0]
    assert safetensors.torch.safe_open is plain_functions[0]
    assert safetensors.torch.load_file is plain_functions[1]


def test_patched_safe_open() -> None:
    import safetensors
    import safetensors.torch

    made = state()
    plain_save_file(made, "plain.safetensors", metadata={"format": "pt"})
    compress_file("plain.safetensors", "packed.safetensors")
    z4ai.enable_hf()
    with safetensors.safe_open("plain.safetensors", framework="pt") as plain:
        for door in (safetensors.safe_open, safetensors.torch.safe_open):
            with door("packed.safetensors", framework="pt", device="cpu", backend="mmap") as packed:
                assert sorted(packed.keys()) == sorted(plain.keys())
                assert list(packed.offset_keys()) == list(plain.offset_keys())
                assert packed.metadata() == plain.metadata() == {"format": "pt"}
                assert (packed.framework, packed.device) == ("pt", "cpu")
                for name in plain.keys():
                    assert equal(packed.get_tensor(name), plain.get_tensor(name))
                    mine, theirs = packed.get_slice(name), plain.get_slice(name)
                    assert mine.get_shape() == theirs.get_shape()
                    assert mine.get_dtype() == theirs.get_dtype()
                    assert equal(mine[...], theirs[...])
                    if mine.get_shape() and mine.get_shape()[0]:
                        assert equal(mine[1:3], theirs[1:3])
                assert packed.get_tensors().keys() == made.keys()
                with pytest.raises(KeyError):
                    packed.get_tensor("nothing")
    with safetensors.safe_open("packed.safetensors", "np") as packed:
        assert packed.get_tensor("scalar") == 2.5
    loaded = safetensors.torch.load_file("packed.safetensors", device="cpu")
    assert all(equal(loaded[name], tensor) for name, tensor in made.items())
    loaded = safetensors.torch.load(Path("packed.safetensors").read_bytes())
    assert all(equal(loaded[name], tensor) for name, tensor in made.items())
    loaded = safetensors.torch.load(Path("plain.safetensors").read_bytes())
    assert all(equal(loaded[name], tensor) for name, tensor in made.items())
    loaded = safetensors.torch.load_file("plain.safetensors")
    assert all(equal(loaded[name], tensor) for name, tensor in made.items())
    with pytest.raises(FileNotFoundError):
        safetensors.safe_open("absent.safetensors", framework="pt")


def test_weights_that_are_cut_off_under_an_open_file() -> None:
    """Mapped, the first touch behind the new end would end the process."""
    code = """
import os
import safetensors, torch, z4ai
torch.manual_seed(0)
z4ai.save_file({"a": torch.randn(3000), "b": torch.randn(500, 300)}, "cut.z4ai.safetensors")
z4ai.enable_hf()
with safetensors.safe_open("cut.z4ai.safetensors", framework="pt") as file:
    rows = file.get_slice("b")
    assert rows[:1].shape == (1, 300)
    os.truncate("cut.z4ai.safetensors", 100)
    for read in (lambda: rows[...], lambda: file.get_tensor("b"), lambda: file.get_tensor("a")):
        try:
            read()
        except OSError as error:
            print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("became shorter while it was read") == 3
    assert done.stdout.count("cut.z4ai.safetensors") == 3


def test_one_tensor_costs_one_tensor() -> None:
    made = {str(n): torch.randn(1_000_000) for n in range(30)}
    z4ai.save_file(made, "x.safetensors")
    script = """
import os, re, sys
import torch, z4ai
z4ai.enable_hf()
import safetensors
def anonymous():
    text = open("/proc/self/smaps_rollup").read()
    return int(re.search(r"Anonymous:\\s+(\\d+)", text)[1]) * 1024
with safetensors.safe_open("x.safetensors", framework="pt") as file:
    file.get_tensor("3")  # what is loaded on first use
    before = set(os.listdir(".")), anonymous()
    tensor = file.get_slice("7")[...]
    assert anonymous() - before[1] < 12_000_000, anonymous() - before[1]
    assert set(os.listdir(".")) == before[0]
"""
    environment = os.environ | {"TMPDIR": str(Path.cwd())}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


# --- decoding ahead

ANONYMOUS = """
import gc, os, re, time
import torch, z4ai
from z4ai import integrations

def anonymous():
    text = open("/proc/self/smaps_rollup").read()
    return int(re.search(r"Anonymous:\\s+(\\d+)", text)[1]) * 1024

def grows_to(least, most):
    "Waits until memory has grown by `least` beyond `before`; it never grows beyond `most`."
    while (held := anonymous() - before) <= least:
        time.sleep(0.02)
    for _ in range(10):
        assert held < most, held
        time.sleep(0.02)
        held = anonymous() - before

def falls_to(most):
    "Waits until memory has shrunk to `most` beyond `before`."
    while anonymous() - before >= most:
        time.sleep(0.02)
"""


def run(script: str) -> None:
    subprocess.run([sys.executable, "-c", ANONYMOUS + script], check=True, timeout=300)


cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="no core to decode on meanwhile")


@cores
def test_what_is_decoded_ahead_is_bounded_and_given_back() -> None:
    made = {str(n): torch.randn(1_000_000) for n in range(60)}
    z4ai.save_file(made, "x.safetensors", effort="fast")
    run(
        """
integrations.PackedFile("x.safetensors").get_slice("59")[...]  # what is loaded on first use
before = anonymous()
paths = integrations._being_decoded(["x.safetensors"])
grows_to(100_000_000, 140_000_000)
file = integrations.PackedFile(paths[0])
file.get_slice("0")[...]
# Others share the pages of the one that was taken.
grows_to(0, 175_000_000)
first = file.get_slice("3")[...]
del file, paths
gc.collect()
# A tensor and what shares its pages.
falls_to(40_000_000)
assert first.shape == (1_000_000,)
"""
    )


@cores
def test_a_child_process_reads_what_its_parent_was_decoding() -> None:
    made = {str(n): torch.randn(1_000_000) for n in range(12)}
    z4ai.save_file(made, "x.safetensors", effort="fast")
    run(
        """
expected = z4ai.load_file("x.safetensors")
for round in range(10):
    file = integrations.PackedFile(*integrations._being_decoded(["x.safetensors"]))
    time.sleep(0.002 * round)
    child = os.fork()
    read = all((file.get_slice(n)[...].numpy() == t.numpy()).all() for n, t in expected.items())
    if child == 0:
        os._exit(0 if read else 1)
    assert read and os.waitpid(child, 0)[1] == 0
    file.__exit__(None, None, None)
"""
    )


@cores
def test_tensors_that_cannot_be_decoded_ahead_fail_when_they_are_asked_for() -> None:
    made = {name: torch.randn(500_000) for name in "abc"}
    z4ai.save_file(made, "x.safetensors", effort="fast")
    damaged = bytearray(Path("x.safetensors").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    Path("x.safetensors").write_bytes(damaged)
    for _ in range(5):
        (path,) = integrations._being_decoded(["x.safetensors"])
        file = integrations.PackedFile(path)
        for name in "ac":
            assert equal(file.get_slice(name)[...], made[name])
        with pytest.raises(ValueError, match=r"x\.safetensors.*'?b'?.*checksum"):
            file.get_slice("b")[...]
        # Parts are read as ever, and closing one reader closes no other.
        other = integrations.PackedFile(path)
        file.__exit__(None, None, None)
        assert equal(other.get_slice("c")[5:7], made["c"][5:7])
    Path("x.safetensors").write_bytes(damaged[:100])
    assert integrations._being_decoded(["x.safetensors", "absent"]) == ["x.safetensors", "absent"]


# --- transformers


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers")


def llama(transformers: Any, tied: bool = False) -> Any:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained("made")
    # As it is when loaded: buffers that are not saved stay in float32.
    return load(transformers, "made")


def same_model(found: Any, expected: Any) -> None:
    mine, theirs = found.state_dict(), expected.state_dict()
    assert mine.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert equal(mine[name], tensor), name
    tokens = torch.arange(20).reshape(1, 20)
    with torch.no_grad():
        assert torch.equal(found(tokens).logits, expected(tokens).logits)


def load(transformers: Any, folder: str, **options: Any) -> Any:
    # Loaded in the dtype of the files.
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto", **options).eval()


@pytest.mark.parametrize("tied", [False, True])
def test_from_pretrained(transformers: Any, tied: bool) -> None:
    model = llama(transformers, tied)
    model.save_pretrained("plain")
    stats = z4ai.pack_model("plain", "packed")
    assert stats["files"] == ["model.z4ai.safetensors"] and stats["ratio"] > 1.2
    assert sorted(os.listdir("packed")) == sorted(
        {*os.listdir("plain"), "model.z4ai.safetensors"} - {"model.safetensors"}
    )
    z4ai.enable_hf()
    same_model(load(transformers, "packed", variant="z4ai"), model)
    same_model(load(transformers, "plain"), model)


def test_from_pretrained_in_shards(transformers: Any) -> None:
    model = llama(transformers)
    model.save_pretrained("plain", max_shard_size="120KB")
    shards = [name for name in os.listdir("plain") if name.endswith(".safetensors")]
    assert len(shards) > 3
    stats = z4ai.pack_model("plain", effort="fast", threads=1)
    assert len(stats["files"]) == len(shards)
    index = json.loads(Path("plain/model.safetensors.index.z4ai.json").read_text())
    assert set(index["weight_map"].values()) == set(stats["files"])
    for name in shards:
        os.unlink(Path("plain", name))
    z4ai.enable_hf()
    same_model(load(transformers, "plain", variant="z4ai"), model)
    # The names are transformers' own.
    model.save_pretrained("variant", variant="z4ai", max_shard_size="120KB")
    own = {name for name in os.listdir("variant") if "safetensors" in name}
    assert own == {*stats["files"], "model.safetensors.index.z4ai.json"}


def test_enabled_after_transformers_was_imported(transformers: Any) -> None:
    """Transformers has bound `safe_open` long ago in this process: it is served all the same."""
    model = llama(transformers)
    model.save_pretrained("m")
    z4ai.pack_model("m")
    os.unlink("m/model.safetensors")
    with pytest.raises(Exception):  # noqa: B017
        load(transformers, "m", variant="z4ai")
    z4ai.enable_hf()
    same_model(load(transformers, "m", variant="z4ai"), model)
    z4ai.disable_hf()
    with pytest.raises(Exception):  # noqa: B017
        load(transformers, "m", variant="z4ai")


def test_enabled_before_transformers_is_imported(transformers: Any) -> None:
    llama(transformers).save_pretrained("m")
    z4ai.pack_model("m")
    os.unlink("m/model.safetensors")
    script = """
from z4ai import enable_hf
enable_hf()  # before importing transformers
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("m", variant="z4ai")
assert sum(p.numel() for p in model.parameters()) > 100_000
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_transformers_says_early_what_it_will_load(
    transformers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = llama(transformers)
    model.save_pretrained("m", max_shard_size="100KB")
    z4ai.pack_model("m")
    started: list[int] = []
    original = integrations._native.decode_ahead

    def decode_ahead(readers: list[Any]) -> None:
        started.append(len(readers))
        original(readers)

    monkeypatch.setattr(integrations._native, "decode_ahead", decode_ahead)
    z4ai.enable_hf()
    same_model(load(transformers, "m", variant="z4ai"), model)
    assert started == [len(list(Path("m").glob("model.z4ai-*")))] and started[0] > 1
    same_model(load(transformers, "m"), model)
    assert started[1:] == [0], "plain files are not opened"
    z4ai.disable_hf()
    same_model(load(transformers, "m"), model)
    assert len(started) == 2


def test_transformers_is_waited_for() -> None:
    pytest.importorskip("transformers")
    script = """
import sys, z4ai
finders = list(sys.meta_path)
z4ai.enable_hf()
z4ai.disable_hf()
assert sys.meta_path == finders
z4ai.enable_hf()
import transformers.modeling_utils as module
assert not any(type(finder).__name__ == "_WhenImported" for finder in sys.meta_path)
patched = module._get_resolved_checkpoint_files
assert patched.__wrapped__
z4ai.disable_hf()
assert module._get_resolved_checkpoint_files is patched.__wrapped__
z4ai.enable_hf()
assert module._get_resolved_checkpoint_files.__wrapped__ is patched.__wrapped__
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_other_ways_to_load(transformers: Any) -> None:
    model = llama(transformers)
    model.save_pretrained("m")
    z4ai.pack_model("m")
    os.unlink("m/model.safetensors")
    z4ai.enable_hf()
    half = transformers.AutoModelForCausalLM.from_pretrained(
        "m", variant="z4ai", dtype=torch.float32, low_cpu_mem_usage=True
    )
    assert half.dtype == torch.float32
    expected = model.float().state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in half.state_dict().items())


def test_save_pretrained_packs_on_request(transformers: Any) -> None:
    import safetensors.torch

    model = llama(transformers)
    original = safetensors.torch.save_file
    with z4ai.packing(effort="fast"):
        model.save_pretrained("packed", variant="z4ai", max_shard_size="120KB")
        with pytest.raises(ValueError, match="already"), z4ai.packing():
            pass
    assert safetensors.torch.save_file is original
    shards = sorted(Path("packed").glob("model.z4ai-*.safetensors"))
    assert len(shards) > 3 and all(map(integrations.is_packed, shards))
    model.save_pretrained("plain")
    assert not integrations.is_packed("plain/model.safetensors")
    z4ai.enable_hf()
    same_model(load(transformers, "packed", variant="z4ai"), model)
    with safetensors.safe_open(shards[0], framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    with pytest.raises(ValueError, match="effort"), z4ai.packing(effort="nope"):
        pass
    assert safetensors.torch.save_file is original


def test_the_names_of_diffusers() -> None:
    os.mkdir("unet")
    plain_save_file(state(), "unet/diffusion_pytorch_model.safetensors")
    stats = z4ai.pack_model("unet")
    assert stats["files"] == ["diffusion_pytorch_model.z4ai.safetensors"]
    os.mkdir("shards")
    shard = "diffusion_pytorch_model-00001-of-00001.safetensors"
    plain_save_file(state(), f"shards/{shard}")
    index = {"weight_map": dict.fromkeys(state(), shard)}
    Path("shards/diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    z4ai.pack_model("shards", "out")
    assert sorted(os.listdir("out")) == [
        "diffusion_pytorch_model.safetensors.index.z4ai.json",
        "diffusion_pytorch_model.z4ai-00001-of-00001.safetensors",
    ]


def test_damaged_weights_and_an_interrupted_load(transformers: Any) -> None:
    model = llama(transformers)
    model.save_pretrained("m")
    z4ai.pack_model("m")
    os.unlink("m/model.safetensors")
    path = Path("m/model.z4ai.safetensors")
    packed = path.read_bytes()
    before = sorted(os.listdir("m"))
    z4ai.enable_hf()

    def put(data: bytes) -> None:
        # Threads of a load that failed may still read the file before: it must not shrink.
        Path("new").write_bytes(data)
        os.replace("new", path)

    put(packed[: len(packed) // 2])
    with pytest.raises(ValueError, match=r"model\.z4ai\.safetensors"):
        load(transformers, "m", variant="z4ai")
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 1
    put(bytes(damaged))
    with pytest.raises(Exception, match=r"checksum|match"):
        load(transformers, "m", variant="z4ai")
    put(packed)
    # A load that is stopped half way leaves the folder and the next load as they were.
    count = 0
    original = integrations.PackedFile.get_slice

    def stopped(self: Any, name: str) -> Any:
        nonlocal count
        count += 1
        if count == 5:
            raise KeyboardInterrupt
        return original(self, name)

    integrations.PackedFile.get_slice = stopped  # type: ignore[method-assign]
    try:
        with pytest.raises(KeyboardInterrupt):
            load(transformers, "m", variant="z4ai")
    finally:
        integrations.PackedFile.get_slice = original  # type: ignore[method-assign]
    assert sorted(os.listdir("m")) == before
    same_model(load(transformers, "m", variant="z4ai"), model)


def test_without_torch_or_safetensors() -> None:
    script = """
import sys
for missing in ("torch", "safetensors"):
    sys.modules[missing] = None
import z4ai
for call in (z4ai.enable_hf, lambda: z4ai.save_file({}, "x"), lambda: z4ai.load_file("x")):
    try:
        call()
    except RuntimeError as error:
        assert "pip install torch safetensors" in str(error), error
    else:
        raise SystemExit("no error")
assert not z4ai.is_enabled()
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_names_resolve_late() -> None:
    code = (
        "import sys, z4ai;"
        "assert 'z4ai.integrations' not in sys.modules;"
        "z4ai.enable_hf, z4ai.disable_hf, z4ai.is_enabled, z4ai.load_file, z4ai.save_file;"
        "z4ai.integrations, z4ai.safetensors, z4ai.chunked;"
        "heavy = {'torch', 'safetensors.torch'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
