"""Models to measure with: what tensors they have, and what is in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

MB = 1 << 20
Shape = tuple[int, ...]


def llama(
    layers: int = 16, width: int = 2048, hidden: int = 8192, kv: int = 512
) -> Iterator[tuple[str, Shape]]:
    """Llama 3.2 1B, its head stored apart: about 2.8 GiB in 16 bits."""
    vocabulary = 128_256
    yield "model.embed_tokens.weight", (vocabulary, width)
    for layer in range(layers):
        name = f"model.layers.{layer}"
        yield f"{name}.input_layernorm.weight", (width,)
        yield f"{name}.self_attn.q_proj.weight", (width, width)
        yield f"{name}.self_attn.k_proj.weight", (kv, width)
        yield f"{name}.self_attn.v_proj.weight", (kv, width)
        yield f"{name}.self_attn.o_proj.weight", (width, width)
        yield f"{name}.post_attention_layernorm.weight", (width,)
        yield f"{name}.mlp.gate_proj.weight", (hidden, width)
        yield f"{name}.mlp.up_proj.weight", (hidden, width)
        yield f"{name}.mlp.down_proj.weight", (width, hidden)
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (vocabulary, width)


def large(budget: int) -> Iterator[tuple[str, Shape]]:
    """Few big matrices."""
    side = 4096 if budget >= 256 * MB else 2048
    for index in range(max(budget // (side * side * 4), 1)):
        yield f"blocks.{index}.weight", (side, side)


def mixed(budget: int) -> Iterator[tuple[str, Shape]]:
    """The shapes of transformer blocks, over and over."""
    width = 1024
    block = [
        ("attn.qkv.weight", (3 * width, width)),
        ("attn.qkv.bias", (3 * width,)),
        ("attn.out.weight", (width, width)),
        ("norm1.weight", (width,)),
        ("norm2.weight", (width,)),
        ("mlp.up.weight", (4 * width, width)),
        ("mlp.down.weight", (width, 4 * width)),
    ]
    size = sum(4 * math.prod(shape) for _, shape in block)
    for layer in range(max(budget // size, 1)):
        for name, shape in block:
            yield f"layers.{layer}.{name}", shape


def small(budget: int) -> Iterator[tuple[str, Shape]]:
    """Many parameters of about 10 KB."""
    for index in range(max(budget // 10_240, 1)):
        yield f"layers.{index // 64}.experts.{index % 64}.weight", (40, 64)


def tensors(dist: str, size: int) -> list[tuple[str, Shape]]:
    """Names and shapes; ``size`` in bytes of 32-bit elements. llama-1b has its own."""
    if dist == "llama-1b":
        return list(llama())
    return list({"large": large, "mixed": mixed, "small": small}[dist](size))


def dense(random: np.random.Generator, count: int) -> np.ndarray:
    return random.standard_normal(count, dtype=np.float32)


def quantized(random: np.random.Generator, count: int) -> np.ndarray:
    """4-bit values in 8-bit storage."""
    return random.integers(-8, 8, count, dtype=np.int8)


def pruned80(random: np.random.Generator, count: int) -> np.ndarray:
    values = dense(random, count)
    values[random.random(count, dtype=np.float32) < 0.8] = 0
    return values


def ternary(random: np.random.Generator, count: int) -> np.ndarray:
    return random.integers(-1, 2, count, dtype=np.int8)


STYLES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "dense": dense,
    "quantized": quantized,
    "pruned80": pruned80,
    "ternary": ternary,
}


def make(dist: str, size: int, style: str, limit: int | None = None) -> dict[str, np.ndarray]:
    """The tensors themselves: the same every time. ``limit`` keeps as many as fit into that number
    of bytes, for formats with a maximum size."""
    random = np.random.default_rng(0)
    # Drawn once and cut from different places: drawing is slower than everything measured.
    pool = STYLES[style](random, 1 << 24)
    if dist == "llama-1b" and pool.dtype == np.float32:
        pool = (pool * 0.02).astype(np.float16)
    made: dict[str, np.ndarray] = {}
    total = 0
    for name, shape in tensors(dist, size):
        count = math.prod(shape)
        start = int(random.integers(0, len(pool)))
        total += count * pool.itemsize
        if limit and total > limit:
            break
        # Whole rounds through the pool, then what is left of one.
        pieces = [pool[start : start + count]]
        while (missing := count - sum(map(len, pieces))) > 0:
            pieces.append(pool[:missing])
        made[name] = np.concatenate(pieces).reshape(shape)
    return made
