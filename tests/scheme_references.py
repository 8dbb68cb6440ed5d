"""Run by the interpreter of an environment with quantization libraries: ``scheme_references.py
LIBRARY FOLDER``.

For every ``weights.safetensors`` tensor of the folder it writes what the library makes of it
(``NAME.safetensors`` or ``NAME.pt``), and the numbers that the library reads back from that as
``NAME.npz``: what :meth:`ztensor.Reader.dequantize` is compared with.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]


def write(
    folder: Path, name: str, tensors: Tensors, numbers: Tensors, metadata: Any = None
) -> None:
    kept = {key: tensor.detach().clone().contiguous() for key, tensor in tensors.items()}
    save_file(kept, folder / f"{name}.safetensors", metadata)
    write_numbers(folder, name, numbers)


def write_numbers(folder: Path, name: str, numbers: Tensors) -> None:
    np.savez(
        folder / f"{name}.npz", **{key: t.detach().float().numpy() for key, t in numbers.items()}
    )


def compressed_tensors(weights: Tensors, folder: Path) -> None:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    def parameters(weight: torch.Tensor, args: QuantizationArgs) -> dict[str, torch.Tensor]:
        """Scales and zero points of the smallest and largest elements."""
        if args.strategy == "group":
            parts = weight.reshape(weight.shape[0], -1, args.group_size)
        elif args.strategy == "channel":
            parts = weight.reshape(weight.shape[0], 1, -1)
        elif args.strategy == "block":
            rows, columns = args.block_structure
            padded = torch.nn.functional.pad(
                weight, (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows)
            )
            parts = padded.reshape(padded.shape[0] // rows, rows, -1, columns)
            parts = parts.transpose(1, 2).flatten(2)
        else:
            parts = weight.reshape(1, -1)
        low, high = parts.amin(-1), parts.amax(-1)
        scale, zero = calculate_qparams(low, high, args)
        found = {"weight_scale": scale.to(weight.dtype)}
        if not args.symmetric:
            found["weight_zero_point"] = zero
        return found

    cases: dict[str, tuple[str, dict[str, Any]]] = {}
    for bits in (2, 3, 4, 5, 6, 8):
        for symmetric in (True, False):
            kind = "symmetric" if symmetric else "asymmetric"
            cases[f"int{bits}-{kind}"] = (
                "pack-quantized",
                {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 32,
                 "symmetric": symmetric},
            )  # fmt: skip
    for symmetric in (True, False):
        kind = "symmetric" if symmetric else "asymmetric"
        channel = {"num_bits": 4, "type": "int", "strategy": "channel", "symmetric": symmetric}
        cases[f"int4-channel-{kind}"] = ("pack-quantized", channel)
    cases["int8-channel"] = (
        "int-quantized",
        {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
    )
    floats = {"num_bits": 8, "type": "float", "symmetric": True}
    cases["fp8-tensor"] = ("float-quantized", {**floats, "strategy": "tensor"})
    cases["fp8-channel"] = ("float-quantized", {**floats, "strategy": "channel"})
    cases["fp8-block"] = (
        "float-quantized",
        {**floats, "strategy": "block", "block_structure": [128, 128]},
    )
    group = {"type": "float", "strategy": "group", "group_size": 32, "symmetric": True}
    exponent = {"scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"}
    cases["mxfp4"] = ("mxfp4-pack-quantized", {"num_bits": 4, **group, **exponent})
    cases["mxfp6"] = ("mxfp6-pack-quantized", {"num_bits": 6, **group, **exponent})
    cases["mxfp8"] = ("mxfp8-quantized", {"num_bits": 8, **group, **exponent})
    for name, (format, arguments) in cases.items():
        args = QuantizationArgs(**arguments)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        compressor = BaseCompressor.load_from_registry(format)
        tensors: Tensors = {}
        numbers: Tensors = {}
        for key, weight in weights.items():
            state = {"weight": weight, **parameters(weight, args)}
            packed = compressor.compress(state, scheme)
            restored = compressor.decompress(dict(packed), scheme)["weight"]
            tensors |= {f"{key}.{part}": value for part, value in packed.items()}
            numbers[f"{key}.weight"] = restored
        write(folder, name, tensors, numbers)
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.load_from_registry("nvfp4-pack-quantized")
    tensors, numbers = {}, {}
    for key, weight in weights.items():
        whole = (6 * 448 / weight.abs().max().float()).reshape(1)
        largest = weight.reshape(weight.shape[0], -1, 16).abs().amax(-1).float()
        scale = (largest * whole / 6).to(torch.float8_e4m3fn).to(weight.dtype)
        state = {"weight": weight, "weight_scale": scale, "weight_global_scale": whole}
        packed = compressor.compress(state, scheme)
        restored = compressor.decompress(dict(packed), scheme)["weight"]
        tensors |= {f"{key}.{part}": value for part, value in packed.items()}
        numbers[f"{key}.weight"] = restored
    write(folder, "nvfp4", tensors, numbers)


def torchao(weights: Tensors, folder: Path) -> None:
    from torchao.optim.subclass_4bit import OptimState4bit
    from torchao.optim.subclass_8bit import OptimState8bit
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Float8Tensor, PerRow, PerTensor

    def nvfp4(weight: torch.Tensor) -> Any:
        whole = weight.abs().max().float() / (6 * 448)
        return NVFP4Tensor.to_nvfp4(weight, per_tensor_scale=whole)

    cases: dict[str, Callable[[torch.Tensor], Any]] = {
        "mxfp8": lambda w: MXTensor.to_mx(w, torch.float8_e4m3fn, 32),
        "mxfp8-e5m2": lambda w: MXTensor.to_mx(w, torch.float8_e5m2, 32),
        "mxfp6-e2m3": lambda w: MXTensor.to_mx(w, "fp6_e2m3", 32),
        "mxfp6-e3m2": lambda w: MXTensor.to_mx(w, "fp6_e3m2", 32),
        "mxfp4": lambda w: MXTensor.to_mx(w, torch.float4_e2m1fn_x2, 32),
        "nvfp4": nvfp4,
        "fp8-row": lambda w: Float8Tensor.from_hp(w, granularity=PerRow()),
        "fp8-tensor": lambda w: Float8Tensor.from_hp(w, granularity=PerTensor()),
    }
    for name, make in cases.items():
        made = {f"{key}.weight": make(weight) for key, weight in weights.items()}
        tensors, metadata = flatten_tensor_state_dict(made)
        numbers = {key: tensor.dequantize(torch.float32) for key, tensor in made.items()}
        write(folder, name, tensors, numbers, metadata)
    # State of 8-bit and 4-bit optimizers by the tensors that their subclass is made of.
    for name, kind in (("adam8", OptimState8bit), ("adam4", OptimState4bit)):
        tensors, numbers = {}, {}
        for key, weight in weights.items():
            for moment, signed in (("exp_avg", True), ("exp_avg_sq", False)):
                values = (weight if signed else weight.square()).float()
                state = kind.zeros(values.shape, signed=signed, block_size=256)
                state.copy_(values)
                names, _ = state.__tensor_flatten__()
                tensors |= {f"{key}.{moment}.{part}": getattr(state, part) for part in names}
                numbers[f"{key}.{moment}"] = state.dequantize(torch.float32)
        write(folder, name, tensors, numbers)


def bitsandbytes(weights: Tensors, folder: Path) -> None:
    import bitsandbytes.functional as bnb

    for kind in ("nf4", "fp4"):
        for nested in (False, True):
            tensors: Tensors = {}
            numbers: Tensors = {}
            for key, weight in weights.items():
                packed, state = bnb.quantize_4bit(
                    weight, blocksize=64, quant_type=kind, compress_statistics=nested
                )
                named = {
                    f"{key}.weight.{part}": t for part, t in state.as_dict(packed=True).items()
                }
                tensors |= {f"{key}.weight": packed, **named}
                numbers[f"{key}.weight"] = bnb.dequantize_4bit(packed, state)
            write(folder, f"{kind}-nested" if nested else kind, tensors, numbers)
    # State of 8-bit optimizers, as `torch.save(optimizer.state_dict())` has it.
    states: dict[int, dict[str, torch.Tensor]] = {}
    numbers = {}
    for index, weight in enumerate(weights.values()):
        states[index] = {}
        for moment, signed in ((1, True), (2, False)):
            values = (weight if signed else weight.square()).float()
            table = bnb.create_dynamic_map(signed=signed)
            codes, state = bnb.quantize_blockwise(values, code=table, blocksize=256)
            parts = {"state": codes, "absmax": state.absmax, "qmap": state.code}
            states[index] |= {f"{part}{moment}": tensor for part, tensor in parts.items()}
            numbers[f"{index} {moment}"] = bnb.dequantize_blockwise(codes, state)
    torch.save({"state": states, "param_groups": [{"lr": 0.1}]}, folder / "adam8.pt")
    write_numbers(folder, "adam8", numbers)


def gptqmodel(weights: Tensors, folder: Path) -> None:
    from gptqmodel.nn_modules.qlinear.gemm_awq import _pack_awq_columns
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm

    tensors: Tensors = {}
    numbers: Tensors = {}
    for key, weight in weights.items():
        parts = weight.T.reshape(-1, 32, weight.shape[0]).float()
        low, high = parts.amin(1), parts.amax(1)
        scales = ((high - low) / 15).clamp(min=1e-6).half()
        zeros = torch.round(-low / scales.float()).clamp(0, 15)
        codes = torch.round(parts / scales.float()[:, None] + zeros[:, None]).clamp(0, 15)
        codes = codes.reshape(-1, weight.shape[0]).to(torch.int32)
        packed = {
            "qweight": _pack_awq_columns(codes, 4),
            "qzeros": _pack_awq_columns(zeros.to(torch.int32), 4),
            "scales": scales,
        }
        tensors |= {f"{key}.{part}": tensor for part, tensor in packed.items()}
        numbers[f"{key}.weight"] = dequantize_gemm(
            packed["qweight"], packed["qzeros"], scales, 4, 32
        )
    write(folder, "awq", tensors, numbers)
    for bits in (2, 3, 4, 8):
        for ordered in (False, True):
            tensors, numbers = {}, {}
            for key, weight in weights.items():
                outputs, inputs = weight.shape
                group = torch.arange(inputs) // 32
                if ordered:
                    group = group[torch.randperm(inputs)]
                grouped = [weight[:, group == number].float() for number in range(inputs // 32)]
                low = torch.stack([part.amin(1).clamp(max=0) for part in grouped], 1)
                high = torch.stack([part.amax(1).clamp(min=0) for part in grouped], 1)
                scale = ((high - low) / ((1 << bits) - 1)).clamp(min=1e-6).half().float()
                # Stored less one: the format has no zero point of 0.
                zero = torch.round(-low / scale).clamp(1, (1 << bits) - 1)
                layer = TorchLinear(
                    bits=bits, group_size=32, sym=False, desc_act=ordered, in_features=inputs,
                    out_features=outputs, bias=False, pack_dtype=torch.int32, register_buffers=True,
                )  # fmt: skip
                linear = torch.nn.Linear(inputs, outputs, bias=False)
                linear.weight.data = weight.float()
                layer.pack_original(linear, scale, zero, group.to(torch.int32))
                layer.post_init()
                numbers[f"{key}.weight"] = layer.dequantize_weight()
                packed = layer.state_dict()
                # Files have zero points less one (`checkpoint_format: gptq`), memory has not.
                packed["qzeros"] = minus_one(packed["qzeros"], bits, outputs)
                tensors |= {f"{key}.{part}": value for part, value in packed.items()}
            write(folder, f"gptq{bits}{'-ordered' if ordered else ''}", tensors, numbers)


def minus_one(words: torch.Tensor, bits: int, outputs: int) -> torch.Tensor:
    """Codes of a row, less one each: a borrow goes no further than its code."""
    rows = []
    for row in words.tolist():
        stream = sum((word & 0xFFFFFFFF) << (32 * at) for at, word in enumerate(row))
        codes = [stream >> (bits * at) & ((1 << bits) - 1) for at in range(outputs)]
        less = [(code - 1) & ((1 << bits) - 1) for code in codes]
        stream = sum(code << (bits * at) for at, code in enumerate(less))
        found = [stream >> (32 * at) & 0xFFFFFFFF for at in range(len(row))]
        rows.append([word - (word >> 31 << 32) for word in found])
    return torch.tensor(rows, dtype=torch.int32)


def main() -> None:
    library, folder = sys.argv[1], Path(sys.argv[2])
    torch.manual_seed(0)
    weights = load_file(folder / "weights.safetensors")
    globals()[library](weights, folder)


if __name__ == "__main__":
    main()
