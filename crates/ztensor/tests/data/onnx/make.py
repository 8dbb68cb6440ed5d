"""Writes the ONNX fixtures beside this file, and what a reader must find in them.

Run with `onnx`, `numpy` and `ml_dtypes` installed. Elements are expected as the
reader gives them: little-endian, sub-byte types packed with the first element in
the lowest bits.
"""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
T = TensorProto
NAMES = {
    T.FLOAT: "f32", T.DOUBLE: "f64", T.FLOAT16: "f16", T.BFLOAT16: "bf16",
    T.INT64: "i64", T.INT32: "i32", T.INT16: "i16", T.INT8: "i8",
    T.UINT64: "u64", T.UINT32: "u32", T.UINT16: "u16", T.UINT8: "u8", T.BOOL: "bool",
    T.FLOAT8E4M3FN: "f8_e4m3fn", T.FLOAT8E5M2: "f8_e5m2", T.FLOAT8E4M3FNUZ: "f8_e4m3fnuz",
    T.FLOAT8E5M2FNUZ: "f8_e5m2fnuz", T.FLOAT8E8M0: "f8_e8m0fnu",
    T.FLOAT6E2M3: "f6_e2m3fn", T.FLOAT6E3M2: "f6_e3m2fn", T.FLOAT4E2M1: "f4_e2m1fn",
    T.INT4: "i4", T.UINT4: "u4", T.INT2: "i2", T.UINT2: "u2",
    T.COMPLEX64: "complex64", T.COMPLEX128: "complex128",
}
BITS = {T.FLOAT6E2M3: 6, T.FLOAT6E3M2: 6, T.FLOAT4E2M1: 4, T.INT4: 4, T.UINT4: 4, T.INT2: 2, T.UINT2: 2}
expected = {}
rng = np.random.default_rng(7)


def packed(tensor, base_dir=""):
    """The elements as bytes, by onnx's own reader."""
    array = numpy_helper.to_array(tensor, base_dir)
    bits = BITS.get(tensor.data_type)
    if bits is None:
        return array.tobytes()
    codes = array.reshape(-1).view(np.uint8)
    stream = ((codes[:, None] >> np.arange(bits)) & 1).astype(np.uint8).reshape(-1)
    return np.packbits(stream, bitorder="little").tobytes()


def dense(tensor, base_dir=""):
    return {
        "dtype": NAMES[tensor.data_type],
        "shape": list(tensor.dims),
        "hex": packed(tensor, base_dir).hex(),
    }


def save(name, graph, entries, **kwargs):
    model = helper.make_model(graph, producer_name="make.py", producer_version="1", **kwargs)
    (HERE / name).write_bytes(model.SerializeToString())
    expected[name] = entries
    return model


def graph(nodes=(), initializers=(), sparse=(), name="g"):
    return helper.make_graph(list(nodes), name, [], [], list(initializers), sparse_initializer=list(sparse))


def codes(kind, count):
    """Element codes of a type, one per array entry."""
    bits = BITS.get(kind, 8)
    return (rng.integers(0, 256, count) & ((1 << bits) - 1)).astype(np.uint8)


def raw(name, kind, dims):
    count = int(np.prod(dims))
    if kind in BITS:
        bits = BITS[kind]
        c = codes(kind, count)
        stream = ((c[:, None] >> np.arange(bits)) & 1).astype(np.uint8).reshape(-1)
        data = np.packbits(stream, bitorder="little").tobytes()
    elif kind == T.BOOL:
        data = rng.integers(0, 2, count).astype(np.uint8).tobytes()
    else:
        size = helper.tensor_dtype_to_np_dtype(kind).itemsize
        data = rng.integers(0, 256, count * size).astype(np.uint8).tobytes()
    t = TensorProto(name=name, data_type=kind, raw_data=data)
    t.dims.extend(dims)
    return t


def typed(name, kind, dims):
    """The same elements in the typed field that the format prescribes."""
    count = int(np.prod(dims))
    t = TensorProto(name=name, data_type=kind)
    t.dims.extend(dims)
    if kind in (T.FLOAT, T.COMPLEX64):
        t.float_data.extend(rng.standard_normal(count * (2 if kind == T.COMPLEX64 else 1)).astype(np.float32).tolist())
    elif kind in (T.DOUBLE, T.COMPLEX128):
        t.double_data.extend(rng.standard_normal(count * (2 if kind == T.COMPLEX128 else 1)).tolist())
    elif kind == T.INT64:
        t.int64_data.extend([-1, 2**63 - 1, -(2**63), 300, 0, 127, 128][:count] + [5] * max(0, count - 7))
    elif kind in (T.UINT64, T.UINT32):
        top = 2**64 - 1 if kind == T.UINT64 else 2**32 - 1
        t.uint64_data.extend([0, top, 300, 128, 127][:count] + [9] * max(0, count - 5))
    elif kind in (T.INT32, T.INT16, T.INT8):
        bits = {T.INT32: 32, T.INT16: 16, T.INT8: 8}[kind]
        t.int32_data.extend([-1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), 5, 0][:count] + [1] * max(0, count - 5))
    elif kind in (T.FLOAT16, T.BFLOAT16, T.UINT16):
        t.int32_data.extend(rng.integers(0, 2**16, count).tolist())
    elif kind == T.BOOL:
        t.int32_data.extend(rng.integers(0, 2, count).tolist())
    elif kind in (T.FLOAT6E2M3, T.FLOAT6E3M2):
        t.int32_data.extend(int(c) for c in codes(kind, count))
    elif kind in BITS:
        per_byte = 8 // BITS[kind]
        t.int32_data.extend(rng.integers(0, 256, -(-count // per_byte)).tolist())
        if count % per_byte:  # unused bits are zero
            t.int32_data[-1] &= (1 << (BITS[kind] * (count % per_byte))) - 1
    else:
        t.int32_data.extend(rng.integers(0, 256, count).tolist())
    return t


# Every element type, in raw data and in the typed field; scalars, empty and odd sizes.
for label, make in (("raw", raw), ("typed", typed)):
    tensors = []
    for kind, short in NAMES.items():
        for dims in ([], [0, 3], [7], [2, 3, 1]):
            tensors.append(make(f"{short}.{'x'.join(map(str, dims)) or 'scalar'}", kind, dims))
    save(f"{label}.onnx", graph(initializers=tensors), {t.name: dense(t) for t in tensors})

# Constants, subgraphs, functions, other tensor attributes, metadata.
const = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "ignored")
inner = numpy_helper.from_array(np.array([1.5], np.float16), "w")
other = numpy_helper.from_array(np.array(2, np.int64), "w")
then_graph = graph([helper.make_node("Constant", [], ["c"], value=other)], [inner], name="then")
else_graph = graph([helper.make_node("If", ["x"], ["deep"], then_branch=graph([], [other]), else_branch=graph())],
                   [const], name="else")
nodes = [
    helper.make_node("Constant", [], ["a"], value=const),
    helper.make_node("Constant", [], ["f"], value_float=2.5),
    helper.make_node("Constant", [], ["fs"], value_floats=[1.0, 2.0, 3.0]),
    helper.make_node("Constant", [], ["i"], value_int=-7),
    helper.make_node("Constant", [], ["is"], value_ints=[1, -2, 300]),
    helper.make_node("ConstantOfShape", ["s"], ["cos"], value=numpy_helper.from_array(np.array([9], np.int32))),
    helper.make_node("If", ["x"], ["y"], name="branch", then_branch=then_graph, else_branch=else_graph),
]
function = helper.make_function("my.domain", "Fn", [], ["o"],
                                [helper.make_node("Constant", [], ["o"], value=inner)],
                                [helper.make_opsetid("", 18)])
taken = numpy_helper.from_array(np.array([1, 2], np.uint8), "y.then_branch.w")
model_entries = {
    "y.then_branch.w": dense(taken), "a": dense(const), "y.then_branch.w#2": dense(inner),
    "y.then_branch.c": dense(other), "y.else_branch.ignored": dense(const),
    "y.else_branch.deep.then_branch.w": dense(other),
    "my.domain.Fn.o": dense(inner),
    "cos.value": dense(numpy_helper.from_array(np.array([9], np.int32))),
    "f": dense(numpy_helper.from_array(np.array(2.5, np.float32))),
    "fs": dense(numpy_helper.from_array(np.array([1, 2, 3], np.float32))),
    "i": dense(numpy_helper.from_array(np.array(-7, np.int64))),
    "is": dense(numpy_helper.from_array(np.array([1, -2, 300], np.int64))),
}
model = helper.make_model(graph(nodes, [taken], name="main"), producer_name="make.py", functions=[function],
                          opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("my.domain", 1)])
helper.set_model_props(model, {"author": "somebody", "licence": "none"})
model.doc_string = "a model"
(HERE / "graphs.onnx").write_bytes(model.SerializeToString())
model_entries[""] = {
    "ir_version": model.ir_version, "producer_name": "make.py", "doc_string": "a model", "graph_name": "main",
    "opset_import": {"": 18, "my.domain": 1}, "metadata_props": {"author": "somebody", "licence": "none"},
}
expected["graphs.onnx"] = model_entries

# Sparse initializers, by linear index and by coordinates.
def sparse(name, values, indices, dims, indices_dims):
    v = helper.make_tensor(name, T.FLOAT, [len(values)], values)
    i = helper.make_tensor(name + "_i", T.INT64, indices_dims, indices)
    return helper.make_sparse_tensor(v, i, dims)


linear = sparse("linear", [1.0, 2.0, 3.0], [1, 5, 11], [3, 4], [3])
rows = sparse("rows", [4.0, 5.0], [0, 1, 2, 1, 0, 3], [2, 3, 4], [2, 3])
none = sparse("none", [], [], [5], [0])


def coo(values, coords, shape):
    return {"shape": shape, "layout": "sparse_coo", "components": {
        "values": {"dtype": "f32", "hex": np.array(values, np.float32).tobytes().hex()},
        "coords": {"dtype": "u64", "hex": np.array(coords, np.uint64).tobytes().hex()}}}


save("sparse.onnx", graph(sparse=[linear, rows, none]), {
    "linear": coo([1, 2, 3], [[0, 1, 2], [1, 1, 3]], [3, 4]),
    "rows": coo([4, 5], [[0, 1], [1, 0], [2, 3]], [2, 3, 4]),
    "none": coo([], [], [5]),
})

# External data.
external = [raw("e.f32", T.FLOAT, [4, 5]), raw("e.bf16", T.BFLOAT16, [3]), raw("e.i4", T.INT4, [5])]
entries = {t.name: dense(t) for t in external}
blob = b""
for t in external:
    data = t.raw_data
    t.ClearField("raw_data")
    t.data_location = T.EXTERNAL
    blob += b"\0" * (-len(blob) % 16)
    for key, value in (("location", "weights/external.bin"), ("offset", len(blob)), ("length", len(data))):
        t.external_data.add(key=key, value=str(value))
    blob += data
(HERE / "weights").mkdir(exist_ok=True)
(HERE / "weights" / "external.bin").write_bytes(blob)
save("external.onnx", graph(initializers=external), entries)
for t in external:
    assert packed(t, str(HERE)).hex() == entries[t.name]["hex"]

# What is listed and cannot be read as numbers.
strings = helper.make_tensor("strings", T.STRING, [2], [b"one", b"two"])
segment = raw("segment", T.FLOAT, [2])
segment.segment.begin, segment.segment.end = 0, 2
future = TensorProto(name="future", data_type=99, raw_data=b"abc", dims=[3])
plain = raw("plain", T.FLOAT, [2])
save("unreadable.onnx", graph(initializers=[strings, segment, future, plain]), None)
del expected["unreadable.onnx"]  # it has a test of its own

(HERE / "expected.json").write_text(json.dumps(expected, indent=0, sort_keys=True) + "\n")
