"""Writes the samples beside it with torch, NumPy and pickle, and what they hold.

    python make.py        (torch, numpy and ml_dtypes must be installed)

`expected.json` has, for each file, every tensor's type, shape and bytes, as
computed here from the tensors that were saved; "" holds the file's attributes.
"""

import collections
import json
import pickle
import struct
import unittest.mock
import warnings
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import torch

warnings.simplefilter("ignore")
torch.manual_seed(0)
HERE = Path(__file__).parent
EXPECTED = {}


def raw(tensor):
    """A tensor's elements in row-major order, as bytes."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.numel() == 0:
        return b""
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def dense(value, dtype=None):
    if isinstance(value, np.ndarray):
        little = value.astype(value.dtype.newbyteorder("<"))
        return {"dtype": dtype or value.dtype.name, "shape": list(value.shape), "hex": little.tobytes("C").hex()}
    name = dtype or str(value.dtype).removeprefix("torch.")
    return {"dtype": name, "shape": list(value.shape), "hex": raw(value).hex()}


def parts(shape, layout, **components):
    arrays = {role: dense(*value) if isinstance(value, tuple) else dense(value) for role, value in components.items()}
    for array in arrays.values():
        del array["shape"]
    return {"shape": list(shape), "layout": layout, "components": arrays}


def expect(file, tensors, attributes=None):
    described = {name: value if isinstance(value, dict) else dense(value) for name, value in tensors.items()}
    if attributes is not None:
        described[""] = attributes
    EXPECTED[file] = described


def save(file, value, tensors, attributes=None, **options):
    torch.save(value, HERE / file, **options)
    expect(file, tensors, attributes)


def rewrite(source, target, change, compression=zipfile.ZIP_STORED):
    """Copies an archive member by member; `change` gives the new bytes, or None to leave it out."""
    with zipfile.ZipFile(HERE / source) as old:
        members = [(info.filename, change(info.filename.split("/", 1)[1], old.read(info))) for info in old.infolist()]
    with zipfile.ZipFile(HERE / target, "w", compression) as new:
        for name, data in members:
            if data is not None:
                new.writestr(name, data)


# Every element type that torch saves.
types = {
    str(dtype).removeprefix("torch."): (torch.arange(6, dtype=torch.float32).reshape(2, 3) - 2).to(dtype)
    for dtype in [
        torch.float64, torch.float32, torch.float16, torch.bfloat16,
        torch.int64, torch.int32, torch.int16, torch.int8,
        torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
        torch.complex64, torch.complex128,
    ]
}
types |= {
    str(dtype).removeprefix("torch."): torch.arange(6).reshape(2, 3).to(dtype)
    for dtype in [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool]
}
types["complex32"] = torch.tensor([1 + 2j, -3.5j], dtype=torch.complex32)
types["e8m0"] = torch.tensor([0, 127, 255], dtype=torch.uint8).view(torch.float8_e8m0fnu)
types["scalar"] = torch.tensor(2.5)
types["empty"] = torch.empty(5, 0, 3)
save("types.pt", collections.OrderedDict(types), types, {})
save("types_protocol4.pt", types, types, {}, pickle_protocol=4)
legacy_types = {name: tensor for name, tensor in types.items()}
save("types_legacy.pt", legacy_types, legacy_types, {}, _use_new_zipfile_serialization=False)
save("types_legacy_protocol4.pt", types, types, {}, _use_new_zipfile_serialization=False, pickle_protocol=4)
save("scalar_legacy_protocol1.pt", {"x": types["scalar"]}, {"x": types["scalar"]}, {},
     _use_new_zipfile_serialization=False, pickle_protocol=1)

fp4 = torch.tensor([[0x21, 0x43], [0x65, 0x87]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
# Torch counts bytes of two numbers each, the file's shape numbers.
save("fp4.pt", {"w": fp4}, {"w": {"dtype": "f4_e2m1fn", "shape": [2, 4], "hex": "21436587"}}, {})

# Views: shared storages, strides, offsets, expansion, lazy signs.
base = torch.arange(24.0).reshape(4, 6)
complex_base = torch.view_as_complex(torch.arange(12.0).reshape(6, 2))
other_base = complex_base.clone()  # torch saves no storage as two types
views = {
    "base": base,
    "tied": base,
    "rows": base[1:3],
    "row": base[2],
    "transposed": base.t(),
    "every_other": base[::2, 1::2],
    "last_column": base[:, 5],
    "expanded": torch.tensor([7.0, 8.0]).reshape(2, 1).expand(2, 3),
    "channels_last": torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "empty_at_end": base.reshape(-1)[24:],
    "conjugated": complex_base.conj(),
    "negated": other_base.conj().imag,
    "imaginary": other_base.imag,
}
save("views.pt", views, views, {})
save("views_legacy.pt", views, views, {}, _use_new_zipfile_serialization=False)

# A checkpoint: nested containers, an optimizer, plain values, names that collide.
model = torch.nn.Sequential(collections.OrderedDict(fc=torch.nn.Linear(3, 2), norm=torch.nn.BatchNorm1d(2)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model(torch.rand(4, 3)).sum().backward()
optimizer.step()
parameter = torch.nn.Parameter(torch.arange(3.0))
tagged = torch.nn.Parameter(torch.arange(4.0))
tagged.note = "with state"
one, two, three, four = (torch.full((1,), float(n)) for n in range(1, 5))
checkpoint = {
    "epoch": 7,
    "name": "résumé",
    "best": 0.5,
    "done": False,
    "none": None,
    "big": 2**70,
    "betas": (0.9, 0.999),
    "mixed": ["a", 1, None],
    "blob": b"\x00\xff",
    "config": {"layers": [2, 3], "dtype": torch.bfloat16, "device": torch.device("cpu"), "size": torch.Size([4, 5])},
    "score": np.float32(1.5),
    "model": model.state_dict(),
    "optimizer": optimizer.state_dict(),
    "ema": [parameter, {"tagged": tagged}],
    "a.b": one,
    "a": {"b": two},
    1: three,
    "1": four,
    "x.y": 1,
    "x": {"y": 2},
}
tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
for index, state in optimizer.state_dict()["state"].items():
    tensors |= {f"optimizer.state.{index}.{name}": value for name, value in state.items()}
tensors |= {"ema.0": parameter, "ema.1.tagged": tagged, "a.b": one, "a.b#2": two, "1": three, "1#2": four}
attributes = {
    "epoch": 7, "name": "résumé", "best": 0.5, "done": False, "none": None,
    "big": (2**70).to_bytes(9, "big").hex(), "betas": [0.9, 0.999], "mixed": ["a", 1, None], "blob": "00ff",
    "config.layers": [2, 3], "config.dtype": "torch.bfloat16", "config.device": "cpu", "config.size": [4, 5],
    "score": 1.5, "x.y": 1, "x.y#2": 2,
}
for key, value in optimizer.state_dict()["param_groups"][0].items():
    attributes[f"optimizer.param_groups.0.{key}"] = list(value) if isinstance(value, (tuple, list)) else value
save("checkpoint.pt", checkpoint, tensors, attributes)
save("checkpoint_legacy.pt", checkpoint, tensors, attributes, _use_new_zipfile_serialization=False)

# Whole modules give the names of their state dicts.
module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Sequential(torch.nn.BatchNorm1d(2)))
save("module.pt", module, module.state_dict())
with unittest.mock.patch("torch.serialization.get_source_lines_and_file", side_effect=OSError):
    # The old format would add the source code of each class, and where it was found.
    save("module_legacy.pt", module, module.state_dict(), _use_new_zipfile_serialization=False)

# Values that are a file by themselves.
save("tensor.pt", base, {"tensor": base}, {})
save("list.pt", [base, (one, [two])], {"0": base, "1.0": one, "1.1.0": two}, {})
save("storage.pt", {"s": torch.arange(3, dtype=torch.int16).storage()}, {"s": torch.arange(3, dtype=torch.int16)})

# Sparse layouts.
matrix = torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0], [0.0, 0.0, 4.0, 5.0]])
coo, csr, csc = matrix.to_sparse(), matrix.to_sparse_csr(), matrix.to_sparse_csc()
bsr, bsc = matrix.to_sparse_bsr((2, 2)), matrix.to_sparse_bsc((2, 2))
hybrid = torch.sparse_coo_tensor([[0, 2]], [[1.0, 2.0], [3.0, 4.0]], (3, 2))
small = torch.sparse_csr_tensor(
    csr.crow_indices().int(), csr.col_indices().int(), csr.values(), csr.shape
)
sparse = {"coo": coo, "csr": csr, "csc": csc, "bsr": bsr, "bsc": bsc, "hybrid": hybrid, "csr32": small}
expected_sparse = {
    "coo": parts((4, 4), "sparse_coo", values=coo._values(), coords=(coo._indices(), "u64")),
    "csr": parts((4, 4), "sparse_csr", values=csr.values(), indices=(csr.col_indices(), "u64"),
                 indptr=(csr.crow_indices(), "u64")),
    "csc": parts((4, 4), "torch.sparse_csc", values=csc.values(), row_indices=csc.row_indices(),
                 ccol_indices=csc.ccol_indices()),
    "bsr": parts((4, 4), "torch.sparse_bsr", values=bsr.values(), col_indices=bsr.col_indices(),
                 crow_indices=bsr.crow_indices()),
    "bsc": parts((4, 4), "torch.sparse_bsc", values=bsc.values(), row_indices=bsc.row_indices(),
                 ccol_indices=bsc.ccol_indices()),
    "hybrid": parts((3, 2), "torch.sparse_coo", values=hybrid._values(), indices=hybrid._indices()),
    "csr32": parts((4, 4), "torch.sparse_csr", values=small.values(), col_indices=small.col_indices(),
                   crow_indices=small.crow_indices()),
}
save("sparse.pt", sparse, expected_sparse, {})

# Quantized tensors.
weight = torch.tensor([[-1.0, 0.0, 1.0], [2.0, 3.0, -4.0]])
per_tensor = torch.quantize_per_tensor(weight, 0.1, 10, torch.quint8)
per_channel = torch.quantize_per_channel(weight, torch.tensor([0.1, 0.2]), torch.tensor([0, 5]), 0, torch.qint8)
wide = torch.quantize_per_tensor(weight, 0.5, 0, torch.qint32)
quantized = {"per_tensor": per_tensor, "per_channel": per_channel, "wide": wide}
expected_quantized = {
    "per_tensor": parts((2, 3), "torch.quantized_per_tensor", data=per_tensor.int_repr()),
    "per_channel": parts((2, 3), "torch.quantized_per_channel", data=per_channel.int_repr(),
                         scales=per_channel.q_per_channel_scales(),
                         zero_points=per_channel.q_per_channel_zero_points()),
    "wide": parts((2, 3), "torch.quantized_per_tensor", data=wide.int_repr()),
}
save("quantized.pt", quantized, expected_quantized, {})


# TorchScript.
class Scripted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)
        self.register_buffer("mean", torch.arange(3.0))
        self.sizes = [1, 2]

    def forward(self, x):
        return self.fc(x - self.mean) + torch.tensor([5.0, 6.0])


scripted = Scripted().eval()
script = torch.jit.script(scripted)
script.save(HERE / "script.pt")
# The files next to the code say where on this machine it came from.
rewrite("script.pt", "script.pt", lambda name, data: None if name.endswith("debug_pkl") else data)
torch.jit.load(HERE / "script.pt")
expect("script.pt", scripted.state_dict())
traced = torch.jit.trace(scripted, torch.rand(1, 3))
traced.save(HERE / "traced.pt")
rewrite("traced.pt", "traced.pt", lambda name, data: None if name.endswith("debug_pkl") else data)
torch.jit.load(HERE / "traced.pt")
constants = dict(enumerate(v for k, v in traced.code_with_constants[1].const_mapping.items()))
expect("traced.pt", scripted.state_dict() | {f"constants.{n}": value for n, value in constants.items()})

# Archives that are written differently.
plain = {"w": base, "h": base.half(), "c": complex_base, "flags": torch.tensor([True, False]), "tied": base[1:]}
torch.serialization.set_crc32_options(False)
save("no_crc.pt", plain, plain, {})
torch.serialization.set_crc32_options(True)


save("plain.pt", plain, plain, {})
rewrite("plain.pt", "deflated.pt", lambda name, data: data, zipfile.ZIP_DEFLATED)
expect("deflated.pt", plain, {})


def to_big(name, data):
    if name == "byteorder":
        return b"big"
    if not name.startswith("data/"):
        return data
    width = {"data/0": 4, "data/1": 2, "data/2": 4, "data/3": 1}[name]
    return np.frombuffer(data, f"<u{width}").astype(f">u{width}").tobytes()


rewrite("plain.pt", "big_endian.pt", to_big)
expect("big_endian.pt", plain, {})
for file in ["deflated.pt", "big_endian.pt", "no_crc.pt"]:
    for name, tensor in torch.load(HERE / file, weights_only=True).items():
        assert raw(tensor) == raw(plain[name]), (file, name)

# NumPy arrays in plain pickles, in every protocol.
arrays = {
    "f4": np.arange(6, dtype="<f4").reshape(2, 3),
    "big": np.arange(6, dtype=">f8").reshape(2, 3),
    "big_complex": np.array([1 + 2j], dtype=">c16"),
    "fortran": np.asfortranarray(np.arange(6, dtype="<i4").reshape(2, 3)),
    "scalar": np.array(3, dtype="<u2"),
    "flags": np.array([True, False, True]),
    "half": np.arange(3, dtype="<f2"),
    "empty": np.zeros((0, 4), dtype="<i8"),
    "long": np.arange(200, dtype="<i2"),
    "bf16": np.arange(3).astype(ml_dtypes.bfloat16),
    "fp8": np.arange(3).astype(ml_dtypes.float8_e4m3fn),
}
for protocol in [0, 1, 2, 3, 4, 5]:
    file = f"numpy_protocol{protocol}.pkl"
    (HERE / file).write_bytes(pickle.dumps({"arrays": arrays, "loss": np.float64(0.25)}, protocol))
    expect(file, {f"arrays.{name}": array for name, array in arrays.items()}, {"loss": 0.25})

# Tensors that were pickled without torch.save.
for protocol in [2, 5]:
    file = f"torch_protocol{protocol}.pkl"
    (HERE / file).write_bytes(pickle.dumps({"w": base, "t": base.t(), "h": base.half()}, protocol))
    expect(file, {"w": base, "t": base.t(), "h": base.half()}, {})

# What Python 2 wrote: byte strings for text, and an OrderedDict from pairs.
python2 = (
    b"\x80\x02ccollections\nOrderedDict\nq\x01]q\x02(]q\x03(U\x01wq\x04"
    b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nq\x06K\x00\x85q\x07U\x01bq\x08\x87q\tRq\n"
    b"(K\x01K\x02\x85q\x0bcnumpy\ndtype\nq\x0cU\x02f4q\rK\x00K\x01\x87q\x0eRq\x0f(K\x03U\x01<q\x10NNNJ\xff\xff\xff\xff"
    b"J\xff\xff\xff\xffK\x00tq\x11b\x89U\x08" + struct.pack("<2f", 1, 2) + b"q\x12tq\x13be"
    b"]q\x14(U\x04textq\x15U\x02hiq\x16ee\x85q\x17Rq\x18."
)
loaded = pickle.loads(python2, encoding="latin1")
assert list(loaded) == ["w", "text"] and loaded["w"].tolist() == [1, 2]
(HERE / "python2.pkl").write_bytes(python2)
expect("python2.pkl", {"w": np.array([1, 2], dtype="<f4")}, {"text": b"hi".hex()})

# Tensors without elements that could be read, beside one with.
absent = {
    "meta": torch.empty(2, 3, device="meta"),
    "objects": np.array(["a", None], dtype=object),
    "text": np.array(["a", "b"]),
    "fine": one,
}
torch.save(absent, HERE / "absent.pt")

(HERE / "expected.json").write_text(json.dumps(EXPECTED, indent=1, sort_keys=True) + "\n")
