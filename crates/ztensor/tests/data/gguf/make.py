"""Writes the GGUF test files with the format's own Python library.

    pip install gguf==0.19.0 numpy && python make.py

`expected.json` says what each file holds. `dequantize/<type>.bin` holds random
blocks of a type, each followed by the bits of its elements as `f32`, as the
library computes them.
"""

import hashlib
import json
import struct
import warnings
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFEndian, GGUFReader, GGUFValueType, GGUFWriter, quants
from gguf.constants import GGML_QUANT_SIZES

HERE = Path(__file__).parent
PLAIN = {
    T.F32: ("f32", np.float32),
    T.F16: ("f16", np.float16),
    T.F64: ("f64", np.float64),
    T.I8: ("i8", np.int8),
    T.I16: ("i16", np.int16),
    T.I32: ("i32", np.int32),
    T.I64: ("i64", np.int64),
}
# For computing, not for files: libraries disagree about its size.
NOT_STORED = {T.Q8_1}

rng = np.random.default_rng(2026)
expected = {}


def random_bytes(*shape):
    return rng.integers(0, 256, shape, np.uint8)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add(writer, tensors, name, ggml_type, shape):
    """Adds a tensor of random bits and notes what it is."""
    block, size = GGML_QUANT_SIZES[ggml_type]
    if ggml_type in PLAIN:
        dtype, numpy_type = PLAIN[ggml_type]
        data = random_bytes(int(np.prod(shape)) * size).view(numpy_type).reshape(shape)
        writer.add_tensor(name, data)
    else:
        dtype = "bf16" if ggml_type == T.BF16 else "u8"
        data = random_bytes(*shape[:-1], shape[-1] // block * size)
        writer.add_tensor(name, data, raw_dtype=ggml_type)
    dense = ggml_type in PLAIN or ggml_type == T.BF16
    array = {"dtype": dtype, "sha256": hashlib.sha256(data.tobytes()).hexdigest()}
    tensors[name] = {"shape": list(shape)}
    if dense:
        tensors[name] |= array
    else:
        tensors[name] |= {
            "layout": f"gguf.{ggml_type.name.lower()}",
            "components": {"blocks": array},
        }


def note(file, tensors, attributes):
    expected[file] = {**tensors, "": attributes}


def every_type():
    writer, tensors = GGUFWriter(HERE / "types.gguf", "test"), {}
    for ggml_type in T:
        if ggml_type not in NOT_STORED:
            block = GGML_QUANT_SIZES[ggml_type][0]
            add(writer, tensors, f"w.{ggml_type.name}", ggml_type, (3, block if block > 1 else 5))
    finish(writer)
    note("types.gguf", tensors, {"general.architecture": "test"})


def shapes():
    writer, tensors = GGUFWriter(HERE / "shapes.gguf", "test"), {}
    writer.add_custom_alignment(128)
    for shape in [(), (1,), (7,), (2, 3), (0, 4), (2, 3, 4), (2, 1, 3, 5)]:
        add(writer, tensors, f"shape {shape}", T.F32, shape)
    add(writer, tensors, "blocks", T.Q4_0, (2, 3, 64))
    finish(writer)
    note("shapes.gguf", tensors, {"general.architecture": "test", "general.alignment": 128})


def values():
    """Every type of value, alone and in arrays."""
    writer = GGUFWriter(HERE / "values.gguf", "test")
    attributes = {"general.architecture": "test"}
    cases = {
        "u8": (GGUFValueType.UINT8, [0, 255]),
        "i8": (GGUFValueType.INT8, [-128, 127]),
        "u16": (GGUFValueType.UINT16, [0, 65535]),
        "i16": (GGUFValueType.INT16, [-32768, 32767]),
        "u32": (GGUFValueType.UINT32, [0, 2**32 - 1]),
        "i32": (GGUFValueType.INT32, [-(2**31), 2**31 - 1]),
        "u64": (GGUFValueType.UINT64, [0, 2**64 - 1]),
        "i64": (GGUFValueType.INT64, [-(2**63), 2**63 - 1]),
        "f32": (GGUFValueType.FLOAT32, [0.5, -1.25]),
        "f64": (GGUFValueType.FLOAT64, [0.1, 1e300]),
        "bool": (GGUFValueType.BOOL, [False, True]),
        "str": (GGUFValueType.STRING, ["a", "Grüße, 世界"]),
    }
    for name, (kind, items) in cases.items():
        writer.add_key_value(f"one.{name}", items[1], kind)
        writer.add_key_value(f"many.{name}", items, GGUFValueType.ARRAY, sub_type=kind)
        attributes[f"one.{name}"] = items[1]
        attributes[f"many.{name}"] = bytes(items).hex() if name == "u8" else items
    # The types that a writer would not choose for these values.
    attributes["gguf.types"] = {
        f"one.{name}": name for name in ["u8", "i8", "u16", "i16", "i32", "i64"]
    }
    attributes["gguf.types"] |= {f"many.{name}": f"[{name}]" for name in ["i8", "u16", "i16"]}
    finish(writer)
    note("values.gguf", {}, attributes)


def byte_orders():
    """A big-endian file, and the same with the older version."""
    writer, tensors = GGUFWriter(HERE / "big_endian.gguf", "test", endianess=GGUFEndian.BIG), {}
    attributes = {
        "general.architecture": "test",
        "a.count": 258,
        "a.list": [1, 2, -3],
        "a.real": 0.5,
    }
    writer.add_uint32("a.count", 258)
    writer.add_array("a.list", [1, 2, -3])
    writer.add_float32("a.real", 0.5)
    for ggml_type in PLAIN:
        add(writer, tensors, ggml_type.name, ggml_type, (2, 3))
    add(writer, tensors, "blocks", T.Q8_0, (2, 32))
    finish(writer)
    note("big_endian.gguf", tensors, attributes)
    for file in ["big_endian", "shapes"]:
        data = bytearray((HERE / f"{file}.gguf").read_bytes())
        data[4:8] = struct.pack(">I" if file == "big_endian" else "<I", 2)
        (HERE / f"{file}_v2.gguf").write_bytes(data)
        expected[f"{file}_v2.gguf"] = expected[f"{file}.gguf"]


def splits():
    writer, tensors = GGUFWriter(HERE / "split.gguf", "test", split_max_tensors=2), {}
    writer.add_uint32("a.count", 7)
    for i in range(5):
        add(writer, tensors, f"w{i}", T.F32 if i % 2 else T.Q4_K, (2, 256))
    finish(writer)
    note("split-00001-of-00003.gguf", tensors, {"general.architecture": "test", "a.count": 7})


def dequantized():
    (HERE / "dequantize").mkdir(exist_ok=True)
    for ggml_type in T:
        if ggml_type != T.F16 and ggml_type not in quants._type_traits:
            continue
        block, size = GGML_QUANT_SIZES[ggml_type]
        blocks = random_bytes(max(4, 512 // block), size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scales of random bits may be infinite
            elements = quants.dequantize(blocks, ggml_type)
        assert elements.dtype == np.float32 and elements.shape == (len(blocks), block)
        both = np.concatenate([blocks, elements.view(np.uint8)], axis=1)
        (HERE / "dequantize" / f"{ggml_type.name.lower()}.bin").write_bytes(both.tobytes())


every_type()
shapes()
values()
byte_orders()
splits()
dequantized()
for file in HERE.glob("*.gguf"):
    GGUFReader(file)  # the library reads what it wrote
(HERE / "expected.json").write_text(
    json.dumps(expected, indent=None, separators=(",", ":"), ensure_ascii=False) + "\n"
)
