"""What plug-ins of engines share: options, files of a model, deltas, order and reading ahead."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from conftest import same_bytes
from remote_servers import range_server

import z4ai
import ztensor
from z4ai import model_delta
from ztensor import _weights
from ztensor._weights import Options, Share, Weights
from ztensor.torch import save_file
from ztensor.vllm import _doors


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    made = {f"model.layers.{n}.w": torch.randn(64, 50).bfloat16() for n in range(8)}
    return made | {"norm": torch.ones(50), "head": torch.randn(100, 50)}


def loaded(path: object, share: Share | None = None, **options: Any) -> dict[str, torch.Tensor]:
    weights = Weights([str(path)], Options.of(options, "options"))
    names = weights.names()
    found = list(weights.tensors(share))
    assert len({name for name, _ in found}) == len(found)
    if share is None:
        assert [name for name, _ in found] == names
    return dict(found)


def test_every_kind_of_file() -> None:
    made = state()
    save_file(made, "raw.zt")
    save_file(made, "coded.zt", compression="fast", checksum="crc32c")
    save_file(made, "plain.safetensors")
    z4ai.save_file(made, "packed.safetensors")
    torch.save(made, "model.pt")
    os.mkdir("folder")
    names = list(made)
    for part, chosen in enumerate((names[:4], names[4:])):
        some = {name: made[name] for name in chosen}
        save_file(some, f"folder/model-{part + 1:05}-of-00002.safetensors")
    paths = ["raw.zt", "coded.zt", "plain.safetensors", "packed.safetensors", "model.pt", "folder"]
    for path in paths:
        found = loaded(path)
        assert found.keys() == made.keys(), path
        assert all(torch.equal(found[name], tensor) for name, tensor in made.items()), path
    with range_server() as server:
        url = server.put("coded.zt", Path("coded.zt").read_bytes())
        found = loaded(url)
        assert all(torch.equal(found[name], tensor) for name, tensor in made.items())
        assert server.counted() < 6, "a batch is read at once"


def test_options_are_checked() -> None:
    wrong: list[tuple[Any, str]] = [
        ("nope", "is a dictionary"),
        ({"wieghts": "x"}, "no option 'wieghts': known are weights, variant"),
        ({"weights": 3}, "weights cannot be 3"),
        ({"weights": []}, r"weights cannot be \[\]"),
        ({"weights": ["a", ""]}, "weights cannot be"),
        ({"delta": [1]}, "delta cannot be"),
        ({"dequantize": "yes"}, "dequantize cannot be 'yes'"),
        ({"threads": -1}, "threads cannot be -1"),
        ({"threads": True}, "threads cannot be True"),
        ({"max_bytes": 0}, "max_bytes cannot be 0"),
        ({"pickle": "load"}, "pickle cannot be 'load'"),
        ({"storage_options": "x"}, "storage_options cannot be 'x'"),
    ]
    for given, said in wrong:
        with pytest.raises(ValueError, match=said):
            Options.of(given, "model_loader_extra_config")
    options = Options.of({"weights": "x", "delta": ["y"], "threads": 2}, "")
    assert options.without_sources() == Options(threads=2)
    assert set(_weights._TYPES) == set(Options.__dataclass_fields__)


def test_ranks_begin_at_different_places() -> None:
    made = {str(n): torch.full((100, 10), float(n)) for n in range(12)}
    z4ai.save_file(made, "x.safetensors")
    firsts = []
    for rank in range(4):
        weights = Weights(["x.safetensors"], Options())
        found = list(weights.tensors(Share(rank, 4)))
        assert {name for name, _ in found} == set(made)
        assert all(torch.equal(tensor, made[name]) for name, tensor in found)
        firsts.append(found[0][0])
    assert len(set(firsts)) == 4
    skipping = Share(skips=lambda name: name != "7")
    assert list(loaded("x.safetensors", skipping)) == ["7"]


def test_what_is_skipped_is_not_read() -> None:
    made = {f"experts.{n}.weight": torch.randn(200, 300) for n in range(8)}
    save_file(made, "x.zt")
    with range_server() as server:
        url = server.put("x.zt", Path("x.zt").read_bytes())
        weights = Weights([url], Options())
        server.received()
        found = dict(weights.tensors(Share(skips=lambda name: ".3." not in name)))
        assert list(found) == ["experts.3.weight"]
        assert server.received() < 2 * 200 * 300 * 4


def test_memory_is_bounded_by_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {f"{n:02}": torch.full((100,), float(n)) for n in range(20)}
    # Stored as it is, and mapped: alone, or with its neighbours.
    made |= {"00": torch.randn(100), "07": torch.randn(100)}
    z4ai.save_file(made, "x.safetensors")
    monkeypatch.setattr(_weights, "_BATCH_BYTES", 1000)
    sizes: list[int] = []
    original = _weights._Part.read

    def read(self: Any, names: list[str], dtype: Any) -> Any:
        sizes.append(len(names))
        return original(self, names, dtype)

    monkeypatch.setattr(_weights._Part, "read", read)
    weights = Weights(["x.safetensors"], Options())
    found = weights.tensors()
    next(found)
    next(found)
    assert len(sizes) <= 3, "one batch ahead"
    assert [name for name, _ in found] == sorted(made)[2:]
    assert sizes == [1, 2, 2, 3, 2, 2, 2, 2, 2, 2]


def test_an_iteration_that_is_given_up_closes_the_files() -> None:
    z4ai.save_file(state(), "x.safetensors")
    weights = Weights(["x.safetensors"], Options())
    iterator = weights.tensors()
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="closed"):
        weights.names()


def test_damage_is_named() -> None:
    z4ai.save_file(state(), "x.safetensors")
    data = bytearray(Path("x.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    Path("x.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match=r"x\.safetensors.*checksum"):
        loaded("x.safetensors")
    save_file({"x": torch.eye(3).to_sparse_csr()}, "sparse.zt")
    with pytest.raises(ValueError, match=r"sparse\.zt: tensor 'x' is sparse_csr"):
        loaded("sparse.zt")


def test_deltas(tmp_path: Path) -> None:
    first = state()
    second = first | {"head": first["head"] * 1.01}
    third = second | {"norm": second["norm"] * 2}
    for name, made in (("a", first), ("b", second), ("c", third)):
        save_file(made, f"{name}.safetensors")
    model_delta.compress_file("b.safetensors", "a.safetensors", "ab.z4dm")
    model_delta.compress_file("c.safetensors", "b.safetensors", "bc.z4dm")
    os.mkdir("scratch")
    options = Options(scratch="scratch")
    weights = Weights(["a.safetensors"], options, deltas=["ab.z4dm", "bc.z4dm"])
    assert len(os.listdir("scratch")) == 1
    found = dict(weights.tensors())
    assert all(torch.equal(found[name], tensor) for name, tensor in third.items())
    assert os.listdir("scratch") == []
    for deltas, said in (
        (["bc.z4dm"], "not the base"),
        (["a.safetensors"], "delta"),
        (["http://x/d.z4dm"], "local files"),
    ):
        with pytest.raises(ValueError, match=said):
            Weights(["a.safetensors"], options, deltas=deltas)
    with pytest.raises(ValueError, match="one base"):
        Weights(["a.safetensors", "b.safetensors"], options, deltas=["ab.z4dm"])
    with pytest.raises(FileNotFoundError):
        Weights(["absent"], options, deltas=["ab.z4dm"])
    assert os.listdir("scratch") == []


def test_variants() -> None:
    os.mkdir("m")
    with pytest.raises(OSError, match=r"neither model\.safetensors\.index\.z4ai\.json nor"):
        _weights.variant_of("m", "z4ai", Options())
    z4ai.save_file(state(), "m/model.z4ai.safetensors")
    found = _weights.variant_of("m", "z4ai", Options())
    assert loaded(found).keys() == state().keys()
    Path("m/model.safetensors.index.z4ai.json").write_text("{}")
    assert _weights.variant_of("m", "z4ai", Options()).endswith("index.z4ai.json")


def write_gguf(architecture: str, tensors: dict[str, Any], **metadata: int) -> None:
    writer = gguf.GGUFWriter("x.gguf", architecture)
    for name, value in metadata.items():
        writer.add_uint32(f"{architecture}.attention.{name}", value)
    for name, array in tensors.items():
        if name.endswith("q8.weight"):
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(
                name.replace("q8.", ""), gguf.quants.quantize(array, kind), raw_dtype=kind
            )
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf_of_llama_cpp(rng: np.random.Generator) -> None:
    def random(*shape: int) -> Any:
        return rng.standard_normal(shape, dtype=np.float32)

    heads, kv = 4, 2
    query, key = random(heads * 8, 32), random(kv * 8, 32)

    def permute(weights: Any, count: int) -> Any:  # as convert_hf_to_gguf does it
        split = weights.reshape(count, 2, weights.shape[0] // count // 2, *weights.shape[1:])
        return split.swapaxes(1, 2).reshape(weights.shape)

    tensors = {
        "token_embd.weight": random(16, 32),
        "output.weight": random(16, 32),
        "output_norm.weight": random(32),
        "rope_freqs.weight": random(4),
        "blk.0.attn_q.weight": np.ascontiguousarray(permute(query, heads)),
        "blk.0.attn_k.weight": np.ascontiguousarray(permute(key, kv)),
        "blk.0.ffn_down.q8.weight": random(8, 64),
        "blk.11.ffn_norm.weight": random(32),
    }
    write_gguf("llama", tensors, head_count=heads, head_count_kv=kv)
    with pytest.raises(ValueError, match=r"x\.gguf: tensor 'blk\.0\.ffn_down\.weight' is gguf"):
        loaded("x.gguf")
    found = loaded("x.gguf", dequantize=True)
    assert set(found) == {
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.norm.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.11.post_attention_layernorm.weight",
    }
    assert same_bytes(found["model.layers.0.self_attn.q_proj.weight"].numpy(), query)
    assert same_bytes(found["model.layers.0.self_attn.k_proj.weight"].numpy(), key)
    kind = gguf.GGMLQuantizationType.Q8_0
    blocks = gguf.quants.quantize(tensors["blk.0.ffn_down.q8.weight"], kind)
    expected = gguf.quants.dequantize(blocks, kind)
    assert np.array_equal(found["model.layers.0.mlp.down_proj.weight"].numpy(), expected)
    weights = Weights(["x.gguf"], Options(dequantize=True))
    typed = dict(weights.tensors(dtype=torch.bfloat16))
    assert typed["model.layers.0.mlp.down_proj.weight"].dtype == torch.bfloat16


def test_versions_of_repositories() -> None:
    made = state()
    changed = made | {"head": made["head"] + 1}
    repository = ztensor.Repository.init("models")
    repository.commit(made, tag="first")
    repository.commit(changed, branch="runs/a", name="sub/model.safetensors")
    for url, expected in (
        ("ztensor-repo://models@first", made),
        ("ztensor-repo://models@main/", made),
        ("ztensor-repo://models@runs/a/sub", changed),
        ("ztensor-repo://models@runs/a/sub/model.safetensors", changed),
    ):
        found = loaded(url)
        assert found.keys() == expected.keys(), url
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items()), url
    for url, said in (
        ("ztensor-repo://models", "expected REPOSITORY@REF/PATH"),
        ("ztensor-repo://models@none", "none"),
        ("ztensor-repo://absent@main", "absent"),
        ("ztensor-repo://models@main/none.safetensors", "none.safetensors"),
    ):
        with pytest.raises(ztensor.ZTensorError, match=said):
            loaded(url)
    with pytest.raises(ztensor.UnsupportedError, match="local files"):
        Weights(["ztensor-repo://models@main"], Options(), deltas=["x.z4dm"])


def test_what_is_loaded_with_a_tensor_that_changed() -> None:
    layers = [
        f"model.layers.{layer}.{name}.weight"
        for layer in (0, 1, 10)
        for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.experts.3.w1", "mlp.experts.4.w1")
    ]
    others = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "scale"]
    towers = ["visual.blocks.0.q.weight", "visual.blocks.0.k.weight", "visual.proj.gate.weight"]
    names = [*layers, *others, *towers, "visual.proj.up.weight"]

    def with_fused(*changed: str) -> set[str]:
        return _weights.with_fused(changed, names)

    assert with_fused() == set()
    assert with_fused("model.layers.1.self_attn.k_proj.weight") == set(layers[4:8])
    # Experts are numbered, too, within their layer.
    assert with_fused("model.layers.10.mlp.experts.3.w1.weight") == set(layers[8:])
    assert with_fused("lm_head.weight") == {"lm_head.weight", "scale"}
    assert with_fused("model.norm.weight") == set(others[:2])
    assert with_fused("visual.blocks.0.q.weight") == set(towers[:2])
    assert with_fused("visual.proj.up.weight") == {towers[2], "visual.proj.up.weight"}
    assert with_fused(*names) == set(names)
    assert with_fused("gone") == set()


def test_gguf_that_is_not_known(rng: np.random.Generator) -> None:
    embedding = rng.standard_normal((16, 32), dtype=np.float32)
    write_gguf("gemma2", {"token_embd.weight": embedding})
    with pytest.raises(ValueError, match=r"'gemma2'.*llama, qwen2, qwen3"):
        loaded("x.gguf")
    write_gguf("qwen2", {"token_embd.weight": embedding, "blk.0.ffn_gate_exps.weight": embedding})
    with pytest.raises(ValueError, match=r"ffn_gate_exps\.weight' is in no qwen2 model"):
        loaded("x.gguf")
    write_gguf("llama", {"token_embd.weight": embedding, "blk.0.attn_q.weight": embedding})
    with pytest.raises(ValueError, match="how many heads"):
        loaded("x.gguf")
    # Names that are not those of llama.cpp stay as they are.
    write_gguf("anything", {"w": embedding})
    assert list(loaded("x.gguf")) == ["w"]


def test_an_engine_without_a_door_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ztensor.UnsupportedError, match=r"vllm\.logger\.init_logger, which"):
        _doors.door("vllm.logger", "init_logger")
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    monkeypatch.setattr("importlib.metadata.version", lambda package: "0.1.2")
    with pytest.raises(ztensor.UnsupportedError, match=r"vLLM 0\.1\.2 has no vllm\.config\.x"):
        _doors.door("vllm.config", "x")
    with pytest.raises(ztensor.UnsupportedError, match=r"vLLM 0\.1\.2 has no vllm\.x"):
        _doors.door("vllm", "x")
    # An old vLLM goes on without the load format.
    ztensor.vllm.register()
    assert "vLLM 0.1.2 has no" in caplog.text and 'load_format="ztensor"' in caplog.text
    assert "weight transfer to workers by ztensor is not available" in caplog.text
