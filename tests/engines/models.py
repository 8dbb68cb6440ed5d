"""A tiny Llama, and files with its weights in every format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors.torch
import torch
import transformers

HEADS, KEY_HEADS = 4, 2


def llama(folder: Path, seed: int, *, tied: bool = False) -> dict[str, torch.Tensor]:
    """Saves a model whose weights a seed decides."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=256,
        # Weights that are not nearly zero, so that tokens depend on all of them.
        initializer_range=0.2,
        tie_word_embeddings=tied,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    return safetensors.torch.load_file(folder / "model.safetensors")


EXPERTS = 8


def mixtral(folder: Path, seed: int) -> dict[str, torch.Tensor]:
    """Saves a model of which most is experts, each a tensor of its own."""
    torch.manual_seed(seed)
    config = transformers.MixtralConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    transformers.MixtralForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    state = safetensors.torch.load_file(folder / "model.safetensors")
    assert sum(".experts." in name for name in state) == 2 * EXPERTS * 3, sorted(state)
    return state


def saved(state: dict[str, torch.Tensor], model: Path, folder: Path) -> Path:
    """A model with other weights."""
    folder.mkdir()
    (folder / "config.json").write_bytes((model / "config.json").read_bytes())
    safetensors.torch.save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def tuned(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Other weights: what a training step might make of them."""
    torch.manual_seed(99)
    made = dict(state)
    for name in ("lm_head.weight", "model.layers.1.mlp.up_proj.weight"):
        made[name] = state[name] + (torch.randn(state[name].shape) * 0.3).to(torch.bfloat16)
    return made


def permuted(tensor: Any, heads: int) -> Any:
    """Rows of Q and K as llama.cpp has them."""
    rows = tensor.shape[0]
    return tensor.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(tensor.shape)


def write_gguf(state: dict[str, torch.Tensor], path: Path) -> dict[str, torch.Tensor]:
    """A file as llama.cpp's converter writes it, matrices as Q8_0. Returns what it stands for."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_block_count(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    stands_for = {}
    for name, tensor in state.items():
        array = tensor.float().numpy()
        heads = HEADS if "q_proj" in name else KEY_HEADS if "k_proj" in name else None
        array = permuted(array, heads) if heads else array
        array = np.ascontiguousarray(array)
        kind = gguf.GGMLQuantizationType.Q8_0 if array.ndim == 2 else None
        renamed = names.get_name(name, (".weight",))
        if kind is None:
            writer.add_tensor(renamed, array)
        else:
            blocks = gguf.quants.quantize(array, kind)
            writer.add_tensor(renamed, blocks, raw_dtype=kind)
            array = gguf.quants.dequantize(blocks, kind)
        if heads:
            rows = array.shape[0]
            shape = (heads, rows // heads // 2, 2, -1)
            array = array.reshape(shape).swapaxes(1, 2).reshape(array.shape)
        stands_for[name] = torch.from_numpy(np.ascontiguousarray(array)).to(torch.bfloat16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stands_for
