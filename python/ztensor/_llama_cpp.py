"""GGUF files of llama.cpp with the names and the row order that Hugging Face models have.

llama.cpp renames tensors, and for Llama it reorders the rows of the query and key projections to
fit its rotary embedding. Both are undone here, for architectures listed by name; others
are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ztensor._errors import UnsupportedError

if TYPE_CHECKING:
    import torch
else:
    from ztensor._types import torch

# Architectures whose blocks are Llama's, and whether rows of Q and K are in llama.cpp's order.
_PERMUTED = {"llama": True, "qwen2": False, "qwen3": False}

_GLOBAL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Computed from the configuration by every model.
_DERIVED = {"rope_freqs.weight"}


class Restored(NamedTuple):
    """The name of a tensor in a Hugging Face model, and the heads whose rows are reordered."""

    name: str
    heads: int | None

    def apply(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with its rows in the order of Hugging Face's rotary embedding."""
        if self.heads is None:
            return tensor
        rows, rest = tensor.shape[0], tensor.shape[1:]
        split = tensor.reshape(self.heads, rows // self.heads // 2, 2, *rest)
        return split.transpose(1, 2).reshape(tensor.shape)


def restored_names(names: list[str], attributes: Mapping[str, Any]) -> dict[str, Restored] | None:
    """By the file's names, what to restore; ``None`` if the names are not those of llama.cpp."""
    if "token_embd.weight" not in names:
        return None
    architecture = attributes.get("general.architecture")
    if architecture not in _PERMUTED:
        known = ", ".join(sorted(_PERMUTED))
        raise UnsupportedError(
            f"GGUF files of the architecture {architecture!r} cannot be loaded as a Hugging Face "
            f"model: known are {known}"
        )
    found = {name: _restored(name, architecture, attributes) for name in names}
    return {name: one for name, one in found.items() if one is not None}


def _restored(name: str, architecture: str, attributes: Mapping[str, Any]) -> Restored | None:
    if name in _DERIVED:
        return None
    stem, _, part = name.rpartition(".")
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if block is None and stem in _GLOBAL:
        return Restored(f"{_GLOBAL[stem]}.{part}", None)
    if block is None or block[2] not in _BLOCK:
        raise UnsupportedError(f"tensor {name!r} is in no {architecture} model of Hugging Face")
    heads = None
    if _PERMUTED[architecture] and block[2] in ("attn_q", "attn_k"):
        queries = attributes.get(f"{architecture}.attention.head_count")
        keys = attributes.get(f"{architecture}.attention.head_count_kv", queries)
        heads = queries if block[2] == "attn_q" else keys
        if not isinstance(heads, int) or heads < 1:
            raise UnsupportedError(
                f"tensor {name!r}: the file does not say how many heads a layer has"
            )
    return Restored(f"model.layers.{block[1]}.{_BLOCK[block[2]]}.{part}", heads)
