"""Quantized weights and optimizer state by this codec and its peers: sizes, and decompression.

    python benchmark/codec_quantized.py [FILTER]

fp8, integers of eight and of four bits, GGUF blocks (made by ggml) and MXFP4 of a real sentence
encoder, and weights with both moments of AdamW of the networks that `entropy.py` trains. This codec
has a frame per tensor at its default effort, with the shapes and block types that its containers
know; peers get all tensors as one buffer, in the element type nearest to theirs. One thread,
contestants take turns; speeds are medians. The table is kept in `results/codec_quantized.md`.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import entropy
import numpy as np
from harness import codecs, weights
from harness.results import RESULTS

FOLDER = entropy.CACHE / "quantized"
BLOCKS = ("q8_0", "q4_0", "q4_k", "mxfp4")
LIMIT = 4_000_000
"""Elements of a model that are taken."""
PEERS = ("zipnn", "zstd 3", "zstd 19", "blosc2", "pcodec", "openzl")
ROUNDS = 5
Tensor = tuple[bytes, tuple[int, ...]]


def tensors() -> list[np.ndarray]:
    data = np.fromfile(entropy.CACHE / "minilm.fp32", np.float32)
    found, taken = [], 0
    for line in (entropy.CACHE / "minilm.fp32.shapes").read_text().splitlines():
        start, length, *shape = map(int, line.split())
        if len(shape) == 2 and shape[1] % 32 == 0 and taken + length // 4 <= LIMIT:
            found.append(data[start // 4 : (start + length) // 4].reshape(shape))
            taken += length // 4
    return found


def data_sets() -> Iterator[tuple[str, str, list[Tensor]]]:
    """Names, kinds and tensors."""
    found = tensors()
    for kind in ("fp8_e4m3", "fp8_e5m2", "int8"):
        yield kind, kind, [(weights.encode(tensor, kind), tensor.shape) for tensor in found]
    packed = []
    for tensor in found:
        nibbles = np.frombuffer(weights.encode(tensor, "int4"), np.uint8).reshape(tensor.shape)
        both = nibbles[:, 0::2] | nibbles[:, 1::2] << 4
        packed.append((both.tobytes(), both.shape))
    yield "int4, packed", "uint8", packed
    for name in BLOCKS:
        number, size = entropy.GGML[name]
        made = []
        for tensor in found:
            if tensor.shape[1] % (256 if size > 60 else 32) == 0:
                data = entropy.quantized(number, tensor).tobytes()
                made.append((data, (tensor.shape[0], len(data) // tensor.shape[0])))
        yield f"GGUF {name.upper()}", f"blocks {name}", made
    state = entropy.trained()
    for network in ("transformer", "cnn"):
        parts = ("weight", "exp_avg", "exp_avg_sq")
        every = [array for part in parts for _, array in state[f"{network} 200 {part}"]]
        yield f"AdamW, {network}", "fp32", [(array.tobytes(), array.shape) for array in every]


def write(name: str, found: list[Tensor]) -> Path:
    """The tensors as one file, and their places and shapes beside it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / name.replace(" ", "_").replace(",", "")
    at, lines = 0, []
    with open(path, "wb") as out:
        for data, shape in found:
            lines.append(" ".join(map(str, [at, len(data), *shape])))
            at += out.write(data)
    path.with_name(path.name + ".shapes").write_text("\n".join(lines) + "\n")
    return path


def main() -> None:
    wanted = " ".join(sys.argv[1:])
    weights.prepare(entropy.CACHE)
    python = codecs.environment("codecs", codecs.PACKAGES)
    lines = [
        "| data | z4ai | decompress | " + " | ".join(PEERS) + " | to the best peer | to ZipNN |",
        "|---|---|---|" + "---|" * len(PEERS) + "---|---|",
    ]
    print("\n".join(lines), flush=True)
    for name, kind, found in data_sets():
        if wanted not in name:
            continue
        path = write(name, found)
        size = path.stat().st_size
        ours = codecs.Codec(sys.executable, "z4ai-tensors default", path, kind)
        theirs = "int8" if kind == "uint8" or kind.startswith("blocks") else kind
        others = {peer: codecs.Codec(python, peer, path, theirs) for peer in PEERS}
        every = [codec for codec in (ours, *others.values()) if codec.size is not None]
        for _ in range(ROUNDS):
            for codec in every:
                codec.turn("decompress")
        for codec in every:
            codec.close()
        assert ours.size, "our own worker failed"
        speed = {c.name: size / statistics.median(c.times["decompress"]) / 1e6 for c in every}
        cells = [
            f"{size / codec.size:.3f} ({speed[peer]:.0f})" if codec.size else "-"
            for peer, codec in others.items()
        ]
        best = min(codec.size for codec in others.values() if codec.size)
        rounds = zip(others["zipnn"].times["decompress"], ours.times["decompress"], strict=False)
        ratio = statistics.median(a / b for a, b in rounds) if others["zipnn"].size else 0.0
        line = (
            f"| {name} | {size / ours.size:.3f} | {speed[ours.name]:.0f} MB/s | "
            f"{' | '.join(cells)} | {ours.size / best - 1:+.1%} | {ratio:.2f} x |"
        )
        print(line, flush=True)
        lines.append(line)
    if not wanted:
        (RESULTS / "codec_quantized.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
