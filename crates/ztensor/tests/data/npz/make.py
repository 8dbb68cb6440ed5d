"""Writes the .npy and .npz samples with NumPy, and what is in them to expected.json.

Run with NumPy 2 and ml_dtypes: python make.py
"""

import io
import json
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np

HERE = Path(__file__).parent
NAMES = {
    "b1": "bool", "i1": "i8", "i2": "i16", "i4": "i32", "i8": "i64", "u1": "u8", "u2": "u16", "u4": "u32",
    "u8": "u64", "f2": "f16", "f4": "f32", "f8": "f64", "c8": "complex64", "c16": "complex128",
}
expected = {}


def describe(array):
    code = array.dtype.str[1:]
    if code in NAMES:
        data = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
        return {"dtype": NAMES[code], "shape": list(array.shape), "hex": data.hex()}
    data = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
    component = {"dtype": "u8", "hex": data.hex()}
    return {"shape": list(array.shape), "layout": "npy.opaque", "components": {"data": component}}


def sample(name, arrays, save=np.savez):
    save(HERE / name, **arrays)
    expected[name] = {key: describe(array) for key, array in arrays.items()}


rng = np.random.default_rng(7)
every = {}
for code in NAMES:
    raw = rng.integers(0, 256, 6 * np.dtype(code).itemsize, dtype=np.uint8).tobytes()
    array = np.frombuffer(raw, code).reshape(2, 3)
    every[code] = (array.view("u1") & 1).astype(bool) if code == "b1" else array
sample("dtypes.npz", every)
sample("dtypes_deflated.npz", every, np.savez_compressed)
sample("big_endian.npz", {code: array.astype(array.dtype.newbyteorder(">")) for code, array in every.items()})

shapes = {
    "scalar": np.float32(1.5), "empty": np.zeros((0, 3), "<i4"), "one": np.ones((1, 1, 1), "<f8"),
    "rank5": np.arange(2 * 3 * 1 * 2 * 2, dtype="<i2").reshape(2, 3, 1, 2, 2),
    "fortran": np.asfortranarray(np.arange(12, dtype="<f4").reshape(3, 4)),
    "fortran3": np.asfortranarray(np.arange(24, dtype="<u2").reshape(2, 3, 4)),
    "fortran_big": np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
    "fortran_complex": np.asfortranarray((np.arange(6) + 1j).astype("<c16").reshape(2, 3)),
    "fortran_vector": np.asfortranarray(np.arange(5, dtype="<i8")),
}
shapes = {name: np.asanyarray(array) for name, array in shapes.items()}
sample("shapes.npz", shapes)
sample("shapes_deflated.npz", shapes, np.savez_compressed)
sample("names.npz", {"层/重み": np.arange(3, dtype="u1"), "a b.c": np.arange(2, dtype="u1"), "x.npy": np.arange(1, dtype="u1")})
sample("opaque.npz", {
    "text": np.array(["ab", "ü"]), "bytes": np.array([b"csr"]), "date": np.array(["2020-01-01"], "M8[D]"),
    "text_big": np.array(["xy"]).astype(">U2"), "bfloat16": np.arange(4).astype(ml_dtypes.bfloat16),
})
np.savez(HERE / "empty.npz")
expected["empty.npz"] = {}

for name, array in {"c.npy": shapes["rank5"], "f.npy": shapes["fortran"], "scalar.npy": shapes["scalar"]}.items():
    np.save(HERE / name, array)
    expected[name] = {"data": describe(array)}
for version in [(2, 0), (3, 0)]:
    with open(HERE / f"v{version[0]}.npy", "wb") as file:
        np.lib.format.write_array(file, shapes["rank5"], version=version)
    expected[f"v{version[0]}.npy"] = {"data": describe(shapes["rank5"])}


class Stream(io.RawIOBase):
    """A file that cannot seek, so that sizes come after the data."""

    def __init__(self):
        self.bytes = bytearray()

    def writable(self):
        return True

    def write(self, data):
        self.bytes += data
        return len(data)


for name, method in {"streamed.npz": zipfile.ZIP_STORED, "streamed_deflated.npz": zipfile.ZIP_DEFLATED}.items():
    stream = Stream()
    with zipfile.ZipFile(stream, "w", method) as archive:
        with archive.open("a.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array(member, shapes["fortran"])
        archive.writestr("folder/", "")
        archive.writestr("folder/note.txt", "hello")
    (HERE / name).write_bytes(stream.bytes)
    note = {"shape": [5], "layout": "npz.file", "components": {"data": {"dtype": "u8", "hex": b"hello".hex()}}}
    expected[name] = {"a": describe(shapes["fortran"]), "folder/note.txt": note}

(HERE / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n", "utf-8")
