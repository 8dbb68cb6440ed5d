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
import ztensor.numpy

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
    """Codes packed along the last dimension without room between them, the first in the lowest
    bits of the first word.
    """
    planes = (codes.long()[..., None] >> torch.arange(bits) & 1).flatten(-2)
    planes = torch.nn.functional.pad(planes, (0, -planes.shape[-1] % 32))
    packed = (planes.reshape(*planes.shape[:-1], -1, 32) << torch.arange(32)).sum(-1)
    return (packed - (packed >> 31 << 32)).to(torch.int32)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
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
    gpt_oss = pytest.importorskip("transformers.integrations.mxfp4")
    theirs = gpt_oss.convert_moe_packed_tensors(blocks, scales).transpose(1, 2).contiguous()
    assert same(dequantized(reader, "experts"), theirs.float())


@pytest.mark.parametrize("bits", [1, 2, 3, 5, 6, 7, 8])
def test_packed_integers_with_zero_points(bits: int) -> None:
    codes = torch.randint(0, 1 << bits, (OUTPUTS, INPUTS))
    zeros = torch.randint(0, 1 << bits, (OUTPUTS, INPUTS // GROUP))
    scales = (torch.rand(OUTPUTS, INPUTS // GROUP) + 0.1).half()
    tensors = {
        "w.weight_packed": words(codes, bits),
        "w.weight_scale": scales,
        "w.weight_zero_point": words(zeros.T, bits).T,
        "w.weight_shape": torch.tensor([OUTPUTS, INPUTS]),
    }
    reader = opened(tensors)
    assert reader.quantized()["w.weight"].bits == bits
    repeated = zeros.repeat_interleave(GROUP, 1)
    expected = (codes - repeated).half() * scales.repeat_interleave(GROUP, 1)
    assert same(dequantized(reader, "w.weight"), expected.float())
    reader = opened({**tensors, "w.weight_zero_point": torch.zeros(1, 1, dtype=torch.int32)})
    with pytest.raises(ztensor.UnsupportedError, match="words of zero points"):
        reader.dequantize("w.weight")


def six_bits(codes: torch.Tensor) -> torch.Tensor:
    """Four codes in three bytes."""
    quads = (codes.long().reshape(*codes.shape[:-1], -1, 4) << torch.tensor([0, 6, 12, 18])).sum(-1)
    return (quads[..., None] >> torch.tensor([0, 8, 16]) & 255).to(torch.uint8).flatten(-2)


def floats_of_six_bits(codes: torch.Tensor, exponent_bits: int) -> torch.Tensor:
    mantissa_bits, bias = 5 - exponent_bits, (1 << (exponent_bits - 1)) - 1
    mantissa = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    exponent = codes >> mantissa_bits & ((1 << exponent_bits) - 1)
    magnitude = torch.where(
        exponent == 0,
        torch.ldexp(mantissa, torch.tensor(1 - bias)),
        torch.ldexp(1 + mantissa, exponent - bias),
    )
    return torch.where(codes >> 5 == 1, -magnitude, magnitude)


def test_mxfp6_packed() -> None:
    codes = torch.randint(0, 64, (OUTPUTS, INPUTS))
    scales = torch.randint(110, 130, (OUTPUTS, INPUTS // 32), dtype=torch.uint8)
    reader = opened({"w.weight_packed": six_bits(codes), "w.weight_scale": scales})
    found = reader.quantized()["w.weight"]
    assert (found.scheme, found.shape, found.bits_per_weight) == (
        "MXFP6 E2M3", (OUTPUTS, INPUTS), 6.25,
    )  # fmt: skip
    exponents = scales.int().repeat_interleave(32, 1) - 127
    expected = torch.ldexp(floats_of_six_bits(codes, 2), exponents)
    assert same(dequantized(reader, "w.weight"), expected)


@pytest.mark.parametrize("dtype", ["float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"])
@pytest.mark.parametrize("suffix", ["_scale", "_scales"])
def test_mx_of_types_that_safetensors_has(dtype: str, suffix: str) -> None:
    bits = 4 if "4" in dtype[:6] else 6
    codes = torch.randint(0, 1 << bits, (3, OUTPUTS, INPUTS))
    scales = np.random.default_rng(0).integers(110, 130, (3, OUTPUTS, INPUTS // 32), np.uint8)
    packed = six_bits(codes) if bits == 6 else (codes[..., ::2] | codes[..., 1::2] << 4)
    values = {"data": packed.to(torch.uint8).numpy().reshape(-1)}
    exponents = {"data": scales.reshape(-1)}
    tensors = {
        "w": ztensor.Tensor(values, shape=codes.shape, dtype=dtype),
        f"w{suffix}": ztensor.Tensor(exponents, shape=scales.shape, dtype="float8_e8m0fnu"),
    }
    ztensor.numpy.save_file(tensors, "m.safetensors")
    reader = ztensor.open("m.safetensors")
    found = reader.quantized()["w"]
    assert (found.bits, found.group, found.shape) == (bits, 32, tuple(codes.shape))
    exponent_bits = 2 if "e2m3" in dtype else 3
    unscaled = E2M1[codes] if bits == 4 else floats_of_six_bits(codes, exponent_bits)
    powers = torch.from_numpy(scales).int().repeat_interleave(32, 2) - 127
    assert same(dequantized(reader, "w"), torch.ldexp(unscaled, powers))


def test_nvfp4_of_modelopt() -> None:
    packed = torch.randint(0, 256, (OUTPUTS, INPUTS // 2), dtype=torch.uint8)
    scales = (torch.rand(OUTPUTS, INPUTS // 16) * 400).to(torch.float8_e4m3fn)
    second = torch.tensor(0.0123)
    reader = opened({"w": packed, "w_scale": scales, "w_scale_2": second})
    found = reader.quantized()["w"]
    assert (found.scheme, found.shape, found.group) == ("NVFP4", (OUTPUTS, INPUTS), 16)
    values = torch.stack([E2M1[(packed & 15).int()], E2M1[(packed >> 4).int()]], -1).flatten(1)
    expected = values * (scales.float() * second).repeat_interleave(16, 1)
    assert same(dequantized(reader, "w"), expected)


@pytest.mark.parametrize("names", [("state1", "absmax1", "qmap1"), (".codes", ".scale", ".qmap")])
@pytest.mark.parametrize("bits", [8, 4])
def test_optimizer_state(names: tuple[str, str, str], bits: int) -> None:
    shape = (24, 64) if bits == 8 else (24 * 32,)
    codes = torch.randint(0, 256, shape, dtype=torch.uint8)
    scales, table = torch.rand(6), torch.linspace(-1, 1, 1 << bits)
    parts = zip(names, (codes, scales, table), strict=True)
    reader = opened({f"state.0.exp{name}": tensor for name, tensor in parts})
    [(name, found)] = reader.quantized().items()
    assert name == ("state.0.expstate1" if names[0] == "state1" else "state.0.exp")
    assert (found.scheme, found.bits, found.group) == ("optimizer state", bits, 256)
    split = torch.stack([codes >> 4, codes & 15], -1)
    indices = (codes if bits == 8 else split).flatten().int()
    expected = table[indices] * scales.repeat_interleave(256)
    assert same(dequantized(reader, name).flatten(), expected)


def test_bitsandbytes_with_quantized_scales() -> None:
    count = 64 * 40 - 1
    packed = torch.randint(0, 256, ((count + 1) // 2, 1), dtype=torch.uint8)
    scales = torch.randint(0, 256, (40,), dtype=torch.uint8)
    table, nested_table = torch.linspace(-1, 1, 16), torch.rand(256)
    state = {
        "quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": [1, count],
        "nested_blocksize": 16, "nested_dtype": "float32", "nested_offset": 0.015625,
    }  # fmt: skip
    text = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)
    tensors = {
        "w": packed, "w.absmax": scales, "w.quant_map": table,
        "w.nested_absmax": torch.rand(3), "w.nested_quant_map": nested_table,
        "w.quant_state.bitsandbytes__nf4": text,
    }  # fmt: skip
    reader = opened(tensors)
    assert reader.quantized()["w"].shape == (1, count)
    absmax = nested_table[scales.int()] * tensors["w.nested_absmax"].repeat_interleave(16)[:40]
    absmax += 0.015625
    codes = torch.stack([packed >> 4, packed & 15], -1).flatten().int()[:count]
    expected = (table[codes] * absmax.repeat_interleave(64)[:count]).half().float()
    assert same(dequantized(reader, "w").flatten(), expected)
    # A description that does not fit is not used.
    for change in ({"shape": [1, 5]}, {"blocksize": 32}, {"shape": [1 << 40, 1 << 40]}):
        broken = json.dumps({**state, **change}).encode()
        text = torch.frombuffer(bytearray(broken), dtype=torch.uint8)
        reader = opened({**tensors, "w.quant_state.bitsandbytes__nf4": text})
        with pytest.raises(ztensor.UnsupportedError, match="quantized themselves"):
            reader.dequantize("w")
    reader = opened({**tensors, "w.nested_absmax": torch.rand(2)})
    with pytest.raises(ztensor.UnsupportedError, match="scales of scales"):
        reader.dequantize("w")


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


def schemes_of_several_tensors() -> dict[str, torch.Tensor]:
    """Weights that `.zt` has layouts for, and one tensor that is none."""
    codes = torch.randint(0, 16, (INPUTS, OUTPUTS))
    zeros = torch.randint(0, 16, (INPUTS // GROUP, OUTPUTS))
    scales = (torch.rand(INPUTS // GROUP, OUTPUTS) + 0.1).half()
    order = [column // 8 * 8 + AWQ_ORDER[column % 8] for column in range(OUTPUTS)]
    eight = torch.randint(0, 256, (INPUTS, OUTPUTS))
    return {
        "gptq.qweight": words(codes.T, 4).T,
        "gptq.qzeros": words(zeros, 4),
        "gptq.scales": scales,
        "gptq.g_idx": torch.arange(INPUTS, dtype=torch.int32) // GROUP,
        "eight.qweight": words(eight.T, 8).T,
        "eight.qzeros": words(torch.full((INPUTS // GROUP, OUTPUTS), 255), 8),
        "eight.scales": scales.float(),
        "awq.qweight": words(codes[:, order], 4),
        "awq.qzeros": words(zeros[:, order], 4),
        "awq.scales": scales,
        "int.weight_packed": words(codes.T, 4),
        "int.weight_scale": scales.T.bfloat16(),
        "int.weight_shape": torch.tensor([OUTPUTS, INPUTS]),
        "zero.weight_packed": words(codes.T, 4),
        "zero.weight_scale": scales.T.bfloat16(),
        "zero.weight_zero_point": words(zeros, 4).T,
        "zero.weight_shape": torch.tensor([OUTPUTS, INPUTS]),
        "moe_blocks": torch.randint(0, 256, (3, 40, 2, 16), dtype=torch.uint8),
        "moe_scales": torch.randint(100, 140, (3, 40, 2), dtype=torch.uint8),
        "six.weight_packed": six_bits(torch.randint(0, 64, (OUTPUTS, INPUTS))),
        "six.weight_scale": torch.randint(100, 140, (OUTPUTS, INPUTS // 32), dtype=torch.uint8),
        "norm.weight": torch.ones(INPUTS),
    }


JOINED = {
    "gptq.weight",
    "eight.weight",
    "awq.weight",
    "int.weight",
    "zero.weight",
    "moe",
    "six.weight",
}


@pytest.mark.parametrize("format", ["zt", "zt2"])
def test_weights_are_joined_and_split_without_loss(format: Any) -> None:
    tensors = schemes_of_several_tensors()
    reader = opened(tensors)
    numbers = {name: reader.dequantize(name) for name in reader.quantized()}
    assert set(numbers) == JOINED
    ztensor.convert("m.safetensors", "joined.zt", quantized="join", format=format)
    joined = ztensor.open("joined.zt")
    assert set(joined.keys()) == JOINED | {"norm.weight"}
    for name, expected in numbers.items():
        tensor = joined.read(name)
        found = tensor.dequantize()
        if name in ("gptq.weight", "eight.weight"):
            found = found.T  # outputs by inputs
        if tensor.format == "zt.mx/1":
            np.testing.assert_array_equal(found, expected)
        else:
            assert tensor.format == "zt.quant_group/1"
            np.testing.assert_allclose(found, expected, rtol=2**-8)
    ztensor.convert("joined.zt", "split.safetensors", quantized="split")
    assert Path("split.safetensors").read_bytes() == Path("m.safetensors").read_bytes()
    # The other way: the objects are the same, too.
    ztensor.convert("split.safetensors", "again.zt", quantized="join", format=format)
    assert Path("again.zt").read_bytes() == Path("joined.zt").read_bytes()


def test_what_an_object_would_lose_stays_as_it_is() -> None:
    tensors = schemes_of_several_tensors()
    kept = {name: tensor for name, tensor in tensors.items() if name.startswith("gptq")}
    kept["gptq.g_idx"] = kept["gptq.g_idx"].flip(0)
    three = words(torch.randint(0, 8, (OUTPUTS, INPUTS)), 3)
    kept |= {
        "three.weight_packed": three,
        "three.weight_scale": torch.ones(OUTPUTS, INPUTS // GROUP),
        "three.weight_shape": torch.tensor([OUTPUTS, INPUTS]),
        "fp8.weight": torch.zeros(8, 8).to(torch.float8_e4m3fn),
        "fp8.weight_scale": torch.ones(1),
        "taken_blocks": tensors["moe_blocks"], "taken_scales": tensors["moe_scales"],
        "taken": torch.ones(2),
    }  # fmt: skip
    opened(kept)
    notes = ztensor.convert("m.safetensors", "joined.zt", quantized="join")
    assert any("0 quantized weights joined" in note for note in notes), notes
    assert set(ztensor.open("joined.zt").keys()) == set(kept)


def test_an_object_with_another_list_is_refused() -> None:
    opened({name: t for name, t in schemes_of_several_tensors().items() if name.startswith("int")})
    ztensor.convert("m.safetensors", "joined.zt", quantized="join")
    tensor = ztensor.open("joined.zt").read("int.weight")
    scheme: Any = tensor.attributes["scheme"]

    def refused(change: Any, message: str) -> None:
        attributes = {**tensor.attributes, "scheme": change}
        broken = ztensor.Tensor(
            tensor.components,
            shape=tensor.shape,
            dtype=tensor.dtype,
            format=tensor.format,
            attributes=attributes,
        )
        ztensor.numpy.save_file({"w": broken}, "broken.zt")
        with pytest.raises(ztensor.ZTensorError, match=message):
            ztensor.convert("broken.zt", "split.safetensors", quantized="split", overwrite=True)

    parts = scheme["tensors"]
    refused({"name": "GPTQ", "tensors": parts}, "does not fit the object")
    refused({"name": "packed integers"}, "lists no tensors")
    refused({**scheme, "tensors": [{"role": "words"}]}, "not described")
    refused({**scheme, "tensors": [{**parts[0], "role": "other"}]}, "does not fit the object")
    refused({**scheme, "tensors": [{**parts[0], "shape": [1 << 40, 1 << 40]}]}, "does not fit")
    refused({**scheme, "tensors": [{**parts[0], "dtype": "f64"}]}, "does not fit the object")
    refused({**scheme, "tensors": [parts[0], parts[0]]}, "two tensors would be named")


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
    subprocess.run([*command[:-1], "report", "m.safetensors", "-o", "r.html"], check=True)
    page = Path("r.html").read_text()
    assert "GPTQ, 4 bits in groups of 32: 1 weight, 16.4 k elements, 4.62 bits per weight" in page
