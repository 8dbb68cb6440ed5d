"""``ztensor export --to gguf``: compared with the format's own library and with transformers, which
reads GGUF files by itself."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ztensor

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")
gguf_reader = pytest.importorskip("transformers.modeling_gguf_pytorch_utils")

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_SPLIT = QWEN2_SPLIT.replace(r"\p{N}|", r"\p{N}{1,3}|")
TEXTS = [
    "The quick brown fox jumps over 1234 dogs.",
    "It's a test; isn't it?\n\nYes.",
    "naïve ünïcode",
]
ARCHITECTURES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", LLAMA3_SPLIT, "llama-bpe"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", QWEN2_SPLIT, "qwen2"),
}


def make_tokenizer(folder: Path, split: str) -> int:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 20, trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|begin|>", eos_token="<|end|>"
    )
    fast.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    fast.save_pretrained(folder)
    return len(fast)


def make_model(folder: Path, name: str, **changes: object) -> object:
    config_name, model_name, split, _ = ARCHITECTURES[name]
    vocabulary = make_tokenizer(folder, split)
    torch.manual_seed(0)
    settings = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        # More rows than tokens, as real models have.
        "vocab_size": vocabulary + 6,
        "tie_word_embeddings": False,
        "bos_token_id": vocabulary - 2,
        "eos_token_id": vocabulary - 1,
    }
    config = getattr(transformers, config_name)(**(settings | changes))
    model = getattr(transformers, model_name)(config).eval()
    for parameter in model.parameters():
        # Biases and norms are zeros and ones after initialisation, which would hide mistakes.
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return model


def export(folder: Path, *options: str) -> Path:
    out = folder.with_suffix(".gguf")
    command = [
        sys.executable,
        "-m",
        "ztensor",
        "export",
        folder,
        "--to",
        "gguf",
        "-o",
        out,
        *options,
    ]
    subprocess.run([*map(str, command), "--force"], check=True, capture_output=True, text=True)
    return out


def refused(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "ztensor", "export", folder, "--to", "gguf", *options]
    command += ["-o", folder.with_suffix(".gguf")]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert not folder.with_suffix(".gguf").exists()
    return done.stderr


def fields(path: Path) -> dict:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("tied", [False, True])
def test_transformers_computes_the_same_from_the_gguf_file(tmp_path, name, tied):
    folder = tmp_path / name
    model = make_model(folder, name, tie_word_embeddings=tied)
    path = export(folder)
    # What `from_pretrained(gguf_file=…)` does, which also needs accelerate.
    again = type(model)(model.config).eval()
    read = gguf_reader.load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=again)
    assert read["config"]["num_key_value_heads"] == 2
    missing, unexpected = again.load_state_dict(read["tensors"], strict=False)
    assert set(missing) <= ({"lm_head.weight"} if tied else set())
    assert not unexpected
    ids = torch.arange(40).reshape(2, 20) * 3
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_names_metadata_and_vocabulary_are_those_of_the_format(tmp_path, name):
    folder = tmp_path / name
    model = make_model(folder, name)
    path = export(folder, "--dtype", "bf16")
    found = fields(path)
    config = model.config
    expected = {
        "general.architecture": name,
        "general.file_type": 32,
        f"{name}.block_count": 2,
        f"{name}.embedding_length": 64,
        f"{name}.feed_forward_length": 96,
        f"{name}.context_length": 128,
        f"{name}.attention.head_count": 4,
        f"{name}.attention.head_count_kv": 2,
        f"{name}.rope.dimension_count": 16,
        f"{name}.vocab_size": config.vocab_size,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": ARCHITECTURES[name][3],
        "tokenizer.ggml.bos_token_id": config.bos_token_id,
        "tokenizer.ggml.eos_token_id": config.eos_token_id,
    }
    assert {key: found[key] for key in expected} == expected
    assert found[f"{name}.attention.layer_norm_rms_epsilon"] == pytest.approx(config.rms_norm_eps)
    types = {key: field.types for key, field in gguf.GGUFReader(path).fields.items()}
    assert types[f"{name}.block_count"] == [gguf.GGUFValueType.UINT32]
    assert types[f"{name}.rope.freq_base"] == [gguf.GGUFValueType.FLOAT32]
    assert types["tokenizer.ggml.token_type"] == [
        gguf.GGUFValueType.ARRAY,
        gguf.GGUFValueType.INT32,
    ]

    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    tokens, kinds = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    assert len(tokens) == len(kinds) == config.vocab_size
    for token, index in tokenizer.get_vocab().items():
        assert tokens[index] == token
    assert kinds[config.bos_token_id] == gguf.TokenType.CONTROL
    assert kinds[-1] == gguf.TokenType.UNUSED
    assert kinds[0] == gguf.TokenType.NORMAL
    merges = json.loads((folder / "tokenizer.json").read_text())["model"]["merges"]
    assert found["tokenizer.ggml.merges"] == [
        merge if isinstance(merge, str) else " ".join(merge) for merge in merges
    ]
    assert "messages" in found["tokenizer.chat_template"]

    # The library's own map of names, and its types: vectors are float32.
    arch = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2}[name]
    names = gguf.get_tensor_name_map(arch, 2)
    reader = gguf.GGUFReader(path)
    written = {tensor.name: tensor for tensor in reader.tensors}
    for theirs, tensor in model.state_dict().items():
        ours = written.pop(names.get_name(theirs, try_suffixes=(".weight", ".bias")))
        kind = gguf.GGMLQuantizationType.BF16 if tensor.ndim > 1 else gguf.GGMLQuantizationType.F32
        assert ours.tensor_type == kind, theirs
        assert list(ours.shape)[::-1] == list(tensor.shape), theirs
    assert not written


def llama3_rope() -> dict:
    return {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }


def test_llama_3_frequencies_are_a_tensor(tmp_path):
    folder = tmp_path / "llama"
    model = make_model(folder, "llama", rope_parameters=llama3_rope())
    path = export(folder, "--no-tokenizer")
    assert fields(path)["tokenizer.ggml.model"] == "no_vocab"
    factors = ztensor.open(path).read_numpy("rope_freqs.weight")
    plain = 500000.0 ** (-np.arange(0, 16, 2) / 16)
    scaled = model.model.rotary_emb.inv_freq.numpy()
    np.testing.assert_allclose(plain / scaled, factors, rtol=1e-5)


def test_sentencepiece_vocabularies_keep_scores_and_kinds(tmp_path):
    folder = tmp_path / "llama"
    make_model(folder, "llama")

    def piece(text: str, score: float, kind: int) -> bytes:
        body = b"\x0a" + bytes([len(text.encode())]) + text.encode()
        body += b"\x15" + np.float32(score).tobytes() + bytes([0x18, kind])
        return b"\x0a" + bytes([len(body)]) + body

    pieces = [
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("</s>", 0.0, 3),
        ("<0x41>", 0.0, 6),
        ("▁a", -1.5, 1),
    ]
    (folder / "tokenizer.model").write_bytes(b"".join(piece(*one) for one in pieces))
    (folder / "tokenizer.json").unlink()
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True}
    settings["added_tokens_decoder"] = {"5": {"content": "<extra>", "special": False}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    found = fields(export(folder))
    assert found["tokenizer.ggml.model"] == "llama"
    assert found["tokenizer.ggml.tokens"][:6] == [text for text, *_ in pieces] + ["<extra>"]
    assert found["tokenizer.ggml.scores"][:6] == [0.0, 0.0, 0.0, 0.0, -1.5, -1000.0]
    assert found["tokenizer.ggml.token_type"][:6] == [2, 3, 3, 6, 1, 4]
    assert found["tokenizer.ggml.bos_token_id"] == 1
    assert found["tokenizer.ggml.eos_token_id"] == 2
    assert found["tokenizer.ggml.add_bos_token"] is True


def test_what_would_not_be_the_same_model_is_refused_by_name(tmp_path):
    folder = tmp_path / "llama"
    make_model(folder, "llama")
    config = json.loads((folder / "config.json").read_text())

    def with_config(**changes: object) -> str:
        (folder / "config.json").write_text(json.dumps(config | changes))
        return refused(folder)

    assert "MistralForCausalLM" in with_config(architectures=["MistralForCausalLM"])
    assert "Qwen2MoeForCausalLM" in with_config(architectures=["Qwen2MoeForCausalLM"])
    assert "longrope" in with_config(rope_scaling={"rope_type": "longrope"}, rope_parameters=None)
    assert "blk.2.attn_norm" in with_config(num_hidden_layers=3)
    assert "model.layers.1" in with_config(num_hidden_layers=1)
    assert "shape" in with_config(hidden_size=32, head_dim=16)
    assert "embeddings of 10" in with_config(vocab_size=10) or "shape" in with_config(vocab_size=10)
    (folder / "config.json").unlink()
    assert "config.json" in refused(folder)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    assert "--no-tokenizer" in refused(folder)


def make_expected(folder: Path) -> None:
    """Exported models, and what transformers computes of them: for ``engines/gguf_export.py``."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    linear = {"rope_type": "linear", "factor": 2.0}
    cases: list[tuple[str, str, dict, list[str]]] = [
        ("llama", "llama", {}, []),
        ("llama-tied", "llama", {"tie_word_embeddings": True}, ["--dtype", "f32"]),
        ("llama-linear", "llama", {"rope_parameters": {**linear, "rope_theta": 10000.0}}, []),
        ("llama-yarn", "llama", {"rope_parameters": {**yarn, "rope_theta": 10000.0}}, []),
        ("llama-3", "llama", {"rope_parameters": llama3_rope()}, []),
        ("llama-heads", "llama", {"head_dim": 32, "num_key_value_heads": 1}, []),
        ("qwen2", "qwen2", {}, []),
        ("qwen2-tied", "qwen2", {"tie_word_embeddings": True}, []),
        ("qwen2-yarn", "qwen2", {"rope_parameters": {**yarn, "rope_theta": 1e6}}, []),
    ]
    ids = [3 * index for index in range(40)]
    for name, architecture, changes, options in cases:
        model = make_model(folder / name, architecture, **changes)
        export(folder / name, *options)
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].float().numpy()
        np.save(folder / f"{name}.npy", logits)
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder / name)
        texts = {text: tokenizer.encode(text, add_special_tokens=False) for text in TEXTS}
        (folder / f"{name}.json").write_text(json.dumps({"ids": ids, "texts": texts}))
