"""Writes the .safetensors samples with the format's own library, and what is in them to expected.json.

Run with safetensors: python make.py
"""

import ctypes
import json
from pathlib import Path

from safetensors import TensorSpec, serialize_file

HERE = Path(__file__).parent
# The library's names (not those in the file), bits, and ours.
TYPES = {
    "bool": (8, "bool"), "uint8": (8, "u8"), "int8": (8, "i8"), "uint16": (16, "u16"), "int16": (16, "i16"),
    "uint32": (32, "u32"), "int32": (32, "i32"), "uint64": (64, "u64"), "int64": (64, "i64"),
    "float16": (16, "f16"), "bfloat16": (16, "bf16"), "float32": (32, "f32"), "float64": (64, "f64"),
    "float8_e4m3fn": (8, "f8_e4m3fn"), "float8_e5m2": (8, "f8_e5m2"), "float8_e8m0fnu": (8, "f8_e8m0fnu"),
    "float8_e4m3fnuz": (8, "f8_e4m3fnuz"), "float8_e5m2fnuz": (8, "f8_e5m2fnuz"),
    "float4_e2m1fn_x2": (4, "f4_e2m1fn"), "complex64": (64, "complex64"),
}
expected = {}


def tensor(kind, shape, seed=1):
    bits, name = TYPES[kind]
    count = 1
    for size in shape:
        count *= size
    data = bytes((seed * 37 + n * 11) % 256 for n in range(count * bits // 8))
    if kind == "bool":
        data = bytes(byte & 1 for byte in data)
    # The library counts pairs of 4-bit elements, but writes single ones.
    given = list(shape)
    if bits == 4:
        given[-1] //= 2
    buffer = ctypes.create_string_buffer(data, max(len(data), 1))
    spec = TensorSpec(dtype=kind, shape=given, data_ptr=ctypes.addressof(buffer), data_len=len(data))
    return (spec, buffer), {"dtype": name, "shape": list(shape), "hex": data.hex()}


def sample(file, tensors, metadata=None):
    pairs = {name: tensor(*args) for name, args in tensors.items()}
    serialize_file({name: pair[0][0] for name, pair in pairs.items()}, HERE / file, metadata)
    expected[file] = {name: pair[1] for name, pair in pairs.items()}
    expected[file][""] = metadata or {}


sample("dtypes.safetensors", {f"t.{kind}": (kind, (2, 4), n) for n, kind in enumerate(TYPES)}, {"format": "pt"})
sample("shapes.safetensors", {
    "scalar": ("float32", ()), "empty": ("int64", (0, 5)), "one": ("uint8", (1, 1, 1, 1)),
    "vector": ("bfloat16", (7,)), "rank5": ("int16", (2, 1, 3, 1, 2)),
}, {"é\n\"": "\\ \u0001 \U0001f600", "empty": ""})
sample("names.safetensors", {"a/b\\c": ("uint8", (1,), 2), "层.重み\t\"q\"": ("uint8", (1,), 3)})
sample("nothing.safetensors", {})
(HERE / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n", "utf-8")
