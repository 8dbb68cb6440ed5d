"""Quantization schemes of several tensors: recognised, and dequantized as their libraries do.

References are in torch, from the published definitions of the schemes.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import ztensor

INPUTS, OUTPUTS, GROUP = 256, 64, 32
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


def opened(tensors: dict[str, torch.Tensor]) -> ztensor.Reader:
    save_file({name: t.clone().contiguous() for name, t in tensors.items()}, "m.safetensors")
    return ztensor.open("m.safetensors")


def dequantized(reader: ztensor.Reader, name: str) -> torch.Tensor:
    return torch.from_numpy(reader.dequantize(name))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in every bit, the sign of zero included."""
    return a.dtype == b.dtype and bool(torch.equal(a.view(torch.int32), b.view(torch.int32)))


def words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes packed along the last dimension, the first in the lowest bits."""
    per_word = 32 // bits
    codes = torch.nn.functional.pad(codes.long(), (0, -codes.shape[-1] % per_word))
    parts = codes.reshape(*codes.shape[:-1], -1, per_word) << (bits * torch.arange(per_word))
    packed = parts.sum(-1)
    return (packed - (packed >> 31 << 32)).to(torch.int32)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("ordered", [False, True])
def test_gptq(bits: int, dtype: torch.dtype, ordered: bool) -> None:
    codes = torch.randint(0, 1 << bits, (INPUTS, OUTPUTS))
    zeros = torch.randint(0, (1 << bits) - 1, (INPUTS // GROUP, OUTPUTS))
    scales = (torch.rand(INPUTS // GROUP, OUTPUTS) + 0.1).to(dtype)
    groups = torch.arange(INPUTS, dtype=torch.int32) // GROUP
    if ordered:
        groups = groups[torch.randperm(INPUTS)]
    tensors = {
        "layer.qweight": words(codes.T, bits).T,
        "layer.qzeros": words(zeros, bits),
        "layer.scales": scales,
    }
    if ordered:
        tensors["layer.g_idx"] = groups
    reader = opened(tensors)
    found = reader.quantized()["layer.weight"]
    assert (found.scheme, found.shape, found.bits, found.group) == (
        "GPTQ", (INPUTS, OUTPUTS), bits, GROUP,
    )  # fmt: skip
    expected = scales[groups.long()] * (codes - (zeros[groups.long()] + 1)).to(dtype)
    assert same(dequantized(reader, "layer.weight"), expected.float())


def test_awq() -> None:
    codes = torch.randint(0, 16, (INPUTS, OUTPUTS))
    zeros = torch.randint(0, 16, (INPUTS // GROUP, OUTPUTS))
    scales = (torch.rand(INPUTS // GROUP, OUTPUTS) + 0.1).half()

    def packed(matrix: torch.Tensor) -> torch.Tensor:
        columns = matrix.reshape(matrix.shape[0], -1, 8)[:, :, list(AWQ_ORDER)]
        return words(columns.reshape(matrix.shape), 4)

    reader = opened({"l.qweight": packed(codes), "l.qzeros": packed(zeros), "l.scales": scales})
    found = reader.quantized()["l.weight"]
    assert (found.scheme, found.shape, found.group) == ("AWQ", (INPUTS, OUTPUTS), GROUP)
    groups = torch.arange(INPUTS) // GROUP
    expected = (codes - zeros[groups]).half() * scales[groups]
    assert same(dequantized(reader, "l.weight"), expected.float())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("scaled", ["group", "row", "tensor"])
def test_packed_integers(bits: int, scaled: str) -> None:
    codes = torch.randint(0, 1 << bits, (OUTPUTS, INPUTS))
    groups = {"group": INPUTS // GROUP, "row": 1, "tensor": 1}[scaled]
    shape = (1,) if scaled == "tensor" else (OUTPUTS, groups)
    scales = (torch.rand(shape) + 0.1).bfloat16()
    reader = opened(
        {
            "w.weight_packed": words(codes, bits),
            "w.weight_scale": scales,
            "w.weight_shape": torch.tensor([OUTPUTS, INPUTS]),
        }
    )
    found = reader.quantized()["w.weight"]
    group = GROUP if scaled == "group" else 0
    assert (found.scheme, found.shape, found.bits, found.group) == (
        "packed integers", (OUTPUTS, INPUTS), bits, group,
    )  # fmt: skip
    repeated = scales if scaled == "tensor" else scales.repeat_interleave(INPUTS // groups, 1)
    expected = (codes - (1 << (bits - 1))).bfloat16() * repeated
    assert same(dequantized(reader, "w.weight"), expected.float())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("scaled", ["tensor", "row", "block"])
@pytest.mark.parametrize("scale_type", [torch.float32, torch.bfloat16])
def test_fp8(dtype: torch.dtype, scaled: str, scale_type: torch.dtype) -> None:
    rows, columns = 200, 300
    weight = torch.randn(rows, columns).to(dtype)
    shape = {"tensor": (1,), "row": (rows, 1), "block": (2, 3)}[scaled]
    scales = (torch.rand(shape) + 0.1).to(scale_type)
    suffix = "_scale_inv" if scaled == "block" else "_scale"
    reader = opened({"w.weight": weight, f"w.weight{suffix}": scales})
    found = reader.quantized()["w.weight"]
    assert (found.scheme, found.bits) == ("FP8", 8)
    assert found.group == (128 if scaled == "block" else 0)
    wide = scales
    if scaled == "block":
        wide = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns]
    expected = weight.to(scale_type) * wide
    assert same(dequantized(reader, "w.weight"), expected.float())


def test_mxfp4() -> None:
    blocks = torch.randint(0, 256, (3, 40, 2, 16), dtype=torch.uint8)
    scales = torch.randint(100, 140, (3, 40, 2), dtype=torch.uint8)
    reader = opened({"experts_blocks": blocks, "experts_scales": scales})
    found = reader.quantized()["experts"]
    assert (found.scheme, found.shape, found.bits_per_weight) == ("MXFP4", (3, 40, 64), 4.25)
    values = torch.stack([E2M1[(blocks & 15).int()], E2M1[(blocks >> 4).int()]], -1)
    expected = torch.ldexp(values.flatten(-2), scales[..., None].int() - 127).reshape(3, 40, 64)
    assert same(dequantized(reader, "experts"), expected)


def test_nvfp4() -> None:
    packed = torch.randint(0, 256, (OUTPUTS, INPUTS // 2), dtype=torch.uint8)
    scales = (torch.rand(OUTPUTS, INPUTS // 16) * 400).to(torch.float8_e4m3fn)
    whole = torch.tensor([1234.5])
    reader = opened({"w_packed": packed, "w_scale": scales, "w_global_scale": whole})
    found = reader.quantized()["w"]
    assert (found.scheme, found.shape, found.group) == ("NVFP4", (OUTPUTS, INPUTS), 16)
    values = torch.stack([E2M1[(packed & 15).int()], E2M1[(packed >> 4).int()]], -1).flatten(1)
    expected = values * (scales.float() / whole).repeat_interleave(16, 1)
    assert same(dequantized(reader, "w"), expected)


def test_bitsandbytes() -> None:
    count = 64 * 40
    packed = torch.randint(0, 256, (count // 2, 1), dtype=torch.uint8)
    scales, table = torch.rand(count // 64), torch.linspace(-1, 1, 16)
    tensors = {"w.weight": packed, "w.weight.absmax": scales, "w.weight.quant_map": table}
    reader = opened(tensors)
    found = reader.quantized()["w.weight"]
    assert (found.scheme, found.shape, found.group) == ("bitsandbytes", (count,), 64)
    codes = torch.stack([packed >> 4, packed & 15], -1).flatten().int()
    expected = table[codes] * scales.repeat_interleave(64)
    assert same(dequantized(reader, "w.weight"), expected)
    nested = {"w.weight.nested_absmax": torch.rand(1), "w.weight.nested_quant_map": torch.rand(256)}
    reader = opened({**tensors, **nested, "w.weight.absmax": scales.to(torch.uint8)})
    with pytest.raises(ztensor.UnsupportedError, match="quantized themselves"):
        reader.dequantize("w.weight")


def test_what_is_no_scheme() -> None:
    int32, half = torch.zeros(4, 8, dtype=torch.int32), torch.zeros(4, 8, dtype=torch.float16)
    byte = torch.zeros(4, 8, dtype=torch.uint8)
    tensors = {
        "a.qweight": int32,
        "b.qweight": int32, "b.scales": half, "b.qzeros": torch.zeros(3, 1, dtype=torch.int32),
        "c.weight_packed": int32, "c.weight_scale": half,
        "c.weight_shape": torch.tensor([4, -1]),
        "d_blocks": byte, "d_scales": byte,
        "e.weight": torch.zeros(4, 8, dtype=torch.float8_e4m3fn),
        "e.weight_scale": torch.zeros(3),
        "f": byte, "f.absmax": torch.zeros(0), "f.quant_map": torch.zeros(16),
        "g_packed": byte, "g_scale": half, "g_global_scale": torch.zeros(1),
    }  # fmt: skip
    reader = opened({name: tensor.clone() for name, tensor in tensors.items()})
    assert reader.quantized() == {}
    with pytest.raises(ztensor.NotFoundError, match="no weight"):
        reader.dequantize("a")


def test_groups_beyond_the_scales_are_refused() -> None:
    reader = opened(
        {
            "l.qweight": torch.zeros(4, 8, dtype=torch.int32),
            "l.qzeros": torch.zeros(1, 1, dtype=torch.int32),
            "l.scales": torch.ones(1, 8, dtype=torch.float16),
            "l.g_idx": torch.full((32,), 7, dtype=torch.int32),
        }
    )
    with pytest.raises(ztensor.CorruptError, match="a group that there is not"):
        reader.dequantize("l.weight")


def test_info_names_the_scheme() -> None:
    codes = torch.randint(0, 16, (INPUTS, OUTPUTS))
    opened(
        {
            "layer.qweight": words(codes.T, 4).T,
            "layer.qzeros": words(torch.full((INPUTS // GROUP, OUTPUTS), 7), 4),
            "layer.scales": torch.ones(INPUTS // GROUP, OUTPUTS, dtype=torch.float16),
            "norm.weight": torch.ones(INPUTS),
        }
    )
    import sys

    command = [sys.executable, "-m", "ztensor", "info"]
    shown = subprocess.run([*command, "m.safetensors"], capture_output=True, text=True, check=True)
    assert "GPTQ, 4 bits in groups of 32: 1 weight" in shown.stdout
    assert "4.62 bits per weight" in shown.stdout
    found = subprocess.run(
        [*command, "--json", "m.safetensors"], capture_output=True, text=True, check=True
    )
    document: Any = json.loads(found.stdout)
    [one] = (document[0] if isinstance(document, list) else document)["quantized"]
    assert one["scheme"] == "GPTQ, 4 bits in groups of 32" and one["weights"] == 1
    assert np.isclose(one["bits_per_weight"], 4.625)
