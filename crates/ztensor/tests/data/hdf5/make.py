"""Writes the HDF5 fixtures beside this file, and what a reader must find in them.

Run with `h5py`, `hdf5plugin`, `zstandard` and `numpy` installed.
"""

import hashlib
import io
import json
import zipfile
import zlib
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import zstandard
from h5py import h5d, h5p, h5s, h5t

HERE = Path(__file__).parent
NAMES = {"f8": "f64", "f4": "f32", "f2": "f16", "i8": "i64", "i4": "i32", "i2": "i16", "i1": "i8", "u8": "u64",
         "u4": "u32", "u2": "u16", "u1": "u8", "b1": "bool", "c8": "complex64", "c16": "complex128", "c4": "complex32"}
expected = {}
rng = np.random.default_rng(11)


def entry(array, dtype=None):
    array = np.asarray(array)
    little = array.astype(array.dtype.newbyteorder("<")) if array.dtype.byteorder == ">" else array
    data = little.tobytes()
    told = {"hex": data.hex()} if len(data) <= 64 else {"sha256": hashlib.sha256(data).hexdigest()}
    return {"dtype": dtype or NAMES[array.dtype.str[1:]], "shape": list(array.shape)} | told


def bf16_type():
    """bfloat16 as HDF5 describes it: sign 15, exponent 7..15, mantissa 0..7, bias 127."""
    kind = h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    kind.set_ebias(127)
    return kind


def write_raw(group, name, kind, shape, data, dcpl=None):
    space = h5s.create(h5s.SCALAR) if shape == () else h5s.create_simple(shape)
    dataset = h5d.create(group.id, name.encode(), kind, space, dcpl)
    dataset.write(h5s.ALL, h5s.ALL, data, mtype=kind)


def types(file):
    found = {}
    for kind in ("f8 f4 f2 i8 i4 i2 i1 u8 u4 u2 u1 c8 c16 b1".split()):
        data = rng.integers(0, 256, 6 * np.dtype(kind).itemsize).astype(np.uint8).view(kind).reshape(2, 3)
        data = data.view("u1").reshape(2, 3) % 2 == 1 if kind == "b1" else data
        file[f"little/{kind}"] = data
        found[f"little/{kind}"] = entry(data)
        if np.dtype(kind).itemsize > 1:
            file.create_dataset(f"big/{kind}", data=data.astype(">" + kind))
            found[f"big/{kind}"] = entry(data)
    bits = rng.integers(0, 2**16, 10).astype(np.uint16)
    write_raw(file, "bf16", bf16_type(), (10,), bits)
    found["bf16"] = entry(bits, "bf16")
    big = bf16_type()
    big.set_order(h5t.ORDER_BE)
    write_raw(file, "bf16_big", big, (10,), bits.astype(">u2"))
    found["bf16_big"] = entry(bits, "bf16")
    file["scalar"] = np.float32(1.5)
    found["scalar"] = entry(np.float32(1.5))
    file["none"] = np.zeros((0, 4), np.float32)
    found["none"] = entry(np.zeros((0, 4), np.float32))
    file["null"] = h5py.Empty("f4")
    found["null"] = entry(np.zeros(0, np.float32))
    compact = h5p.create(h5p.DATASET_CREATE)
    compact.set_layout(h5d.COMPACT)
    data = np.arange(5, dtype=np.int16)
    write_raw(file, "compact", h5t.STD_I16LE, (5,), data, compact)
    found["compact"] = entry(data)
    write_raw(file, "compact_big", h5t.STD_I16BE, (5,), data.astype(">i2"),
              compact)
    found["compact_big"] = entry(data)
    # Never written: the fill value, or zeros.
    file.create_dataset("unwritten", (3,), "f4")
    found["unwritten"] = entry(np.zeros(3, np.float32))
    file.create_dataset("filled", (3,), ">f4", fillvalue=2.5)
    found["filled"] = entry(np.full(3, 2.5, np.float32))
    colour = h5py.enum_dtype({"RED": 0, "GREEN": 7}, basetype="i4")
    file.create_dataset("enum", data=np.array([0, 7, 7], "i4"), dtype=colour)
    found["enum"] = entry(np.array([0, 7, 7], "i4"))
    sub = np.arange(24, dtype="u2").reshape(2, 3, 4)
    dataset = file.create_dataset("array", (2,), np.dtype("(3,4)u2"))
    dataset[...] = sub
    found["array"] = entry(sub)
    # A type with a name of its own, which two datasets share.
    file["named_type"] = np.dtype("f8")
    file.create_dataset("typed", data=np.arange(3.0), dtype=file["named_type"])
    found["typed"] = entry(np.arange(3.0))
    return found


def unreadable(file):
    file["text"] = np.array([b"abc", b"de"])
    file.create_dataset("long_text", data=["x", "yz"], dtype=h5py.string_dtype())
    file["record"] = np.zeros(2, [("a", "f4"), ("b", "i4")])
    file["opaque"] = np.zeros(2, "V5")
    file.create_dataset("lists", (2,), h5py.vlen_dtype("i4"))
    file.create_dataset("references", (2,), h5py.ref_dtype)
    file["plain"] = np.arange(4, dtype="f4")
    file["tied"] = file["plain"]
    file["soft"] = h5py.SoftLink("/plain")
    file["group/relative"] = h5py.SoftLink("/soft")
    file["dangling"] = h5py.SoftLink("/nowhere/at/all")
    file["loop_a"] = h5py.SoftLink("/loop_b")
    file["loop_b"] = h5py.SoftLink("/loop_a/x")
    file["outside"] = h5py.ExternalLink("/etc/passwd", "/secret")
    file["group/parent"] = file["/"]  # a group that contains itself
    file["soft_group"] = h5py.SoftLink("/group")
    file.create_dataset("external", (4,), "f4", external=[("raw.bin", 0, 16)])
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "x", (4,))
    file.create_virtual_dataset("virtual", layout)
    file.create_dataset("blosc", data=np.arange(100.0), chunks=(50,), **hdf5plugin.Blosc())


def chunks(file, latest):
    found = {}
    data = (rng.standard_normal((9, 7, 5)) * 100).astype(np.float32)
    ints = rng.integers(-1000, 1000, (17, 13)).astype(np.int32)

    def add(name, array, **kwargs):
        file.create_dataset(name, data=array, **kwargs)
        found[name] = entry(array)

    shape = (4, 3, 2)
    add("plain", data, chunks=shape)
    add("gzip", data, chunks=shape, compression="gzip")
    add("gzip_shuffle", data, chunks=shape, compression="gzip", shuffle=True)
    add("shuffle", data, chunks=shape, shuffle=True)
    add("fletcher", data, chunks=shape, fletcher32=True)
    add("all", data, chunks=shape, compression="gzip", shuffle=True, fletcher32=True)
    add("lzf", data, chunks=shape, compression="lzf")
    add("lzf_shuffle", data, chunks=shape, compression="lzf", shuffle=True, fletcher32=True)
    add("zstd", data, chunks=shape, **hdf5plugin.Zstd())
    add("zstd_shuffle", data, chunks=shape, shuffle=True, **hdf5plugin.Zstd())
    add("scale_offset", ints, chunks=(10, 10), scaleoffset=0)
    # D-scale keeps two decimals: what comes back is what the library gives back.
    file.create_dataset("scale_offset_float", data=np.round(data, 2), chunks=shape, scaleoffset=2)
    found["scale_offset_float"] = entry(file["scale_offset_float"][...])
    add("big", data.astype(">f4"), chunks=shape, compression="gzip", shuffle=True)
    add("rows", data, chunks=(4, 7, 5), compression="gzip")
    add("one", data, chunks=data.shape, compression="gzip")
    add("one_plain", data, chunks=data.shape)
    add("line", np.arange(100, dtype=np.int64), chunks=(24,), compression="gzip")
    add("bytes", rng.integers(0, 3, (20, 3)).astype(np.uint8), chunks=(7, 3), compression="gzip", shuffle=True)
    add("odd", rng.standard_normal((9, 4)) + 1j, chunks=(4, 3), shuffle=True, compression="gzip")
    add("columns", ints, chunks=(17, 4), compression="gzip", shuffle=True)
    # Room to grow: extensible array, B-tree of the second version.
    add("grow", ints, chunks=(5, 13), maxshape=(None, 13), compression="gzip")
    add("grow_plain", np.arange(900, dtype=np.int16), chunks=(7,), maxshape=(None,))
    add("grow_both", ints, chunks=(5, 6), maxshape=(None, None), compression="gzip")
    add("grow_both_plain", ints, chunks=(5, 6), maxshape=(None, None))
    add("larger_chunk", ints, chunks=(64, 64), maxshape=(None, None), compression="gzip")
    # A fixed array of more than one page.
    add("paged", np.arange(1100, dtype=np.int8), chunks=(1,) if latest else (100,))
    # Holes and shrinking.
    dataset = file.create_dataset("holes", (20, 20), "f4", chunks=(6, 6), fillvalue=7, compression="gzip")
    dataset[8:12, 3:9] = 1
    found["holes"] = entry(dataset[...])
    dataset = file.create_dataset("empty_holes", (20, 20), "f4", chunks=(6, 6))
    found["empty_holes"] = entry(dataset[...])
    dataset = file.create_dataset("shrunk", data=ints, chunks=(5, 6), maxshape=(None, None), compression="gzip")
    dataset.resize((8, 11))
    found["shrunk"] = entry(dataset[...])
    early = h5p.create(h5p.DATASET_CREATE)
    early.set_chunk((6, 5))
    early.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    write_raw(file, "implicit", h5t.STD_I32LE, ints.shape, ints, early)
    found["implicit"] = entry(ints)
    # Chunks whose filters were skipped, one by one.
    dataset = file.create_dataset("skipped", (6,), "i4", chunks=(3,), compression="gzip", shuffle=True)
    dataset.id.write_direct_chunk((0,), np.array([1, 2, 3], "<i4").tobytes(), filter_mask=3)
    dataset[3:] = [4, 5, 6]
    found["skipped"] = entry(np.arange(1, 7, dtype=np.int32))
    if latest:
        edges = h5p.create(h5p.DATASET_CREATE)
        edges.set_chunk((10, 10))
        edges.set_deflate(4)
        if hasattr(edges, "set_chunk_opts"):
            edges.set_chunk_opts(h5d.CHUNK_DONT_FILTER_PARTIAL_CHUNKS)
            write_raw(file, "edges", h5t.STD_I32LE, ints.shape, ints, edges)
            found["edges"] = entry(ints)
    return found


def attributes(file):
    file.attrs["text"] = "hällo"
    file.attrs["fixed"] = np.bytes_("abc")
    file.attrs["texts"] = ["one", "two"]
    file.attrs["int"] = -5
    file.attrs["float"] = 1.5
    file.attrs["bool"] = True
    file.attrs["list"] = np.arange(4, dtype=">i2")
    file.attrs["table"] = np.arange(6, dtype="u1").reshape(2, 3)
    file.attrs["empty"] = h5py.Empty("f4")
    return {"text": "hällo", "fixed": "abc", "texts": ["one", "two"], "int": -5, "float": 1.5, "bool": True,
            "list": [0, 1, 2, 3], "table": [[0, 1, 2], [3, 4, 5]], "empty": None}


for label, libver in (("v0", "earliest"), ("latest", "latest"), ("v108", ("v108", "v108"))):
    with h5py.File(HERE / f"types_{label}.h5", "w", libver=libver) as file:
        expected[f"types_{label}.h5"] = types(file)
        expected[f"types_{label}.h5"][""] = attributes(file)
    if label != "v108":
        with h5py.File(HERE / f"chunks_{label}.h5", "w", libver=libver) as file:
            expected[f"chunks_{label}.h5"] = chunks(file, label == "latest")
for label, libver in (("v0", "earliest"), ("latest", "latest")):
    # Listed and refused; it has a test of its own.
    with h5py.File(HERE / f"unreadable_{label}.h5", "w", libver=libver) as file:
        unreadable(file)
(HERE / "raw.bin").unlink(missing_ok=True)

# Chunks that decode to far more than a chunk, or to something else; a web of links.
with h5py.File(HERE / "bombs.h5", "w") as file:
    def bomb(name, content, **filters):
        dataset = file.create_dataset(name, (16,), "u1", chunks=(16,), **filters)
        dataset.id.write_direct_chunk((0,), content)

    zeros = bytes(1 << 20)
    bomb("deflate", zlib.compress(zeros), compression="gzip")
    bomb("nested", zlib.compress(zeros), compression="gzip", shuffle=True, fletcher32=False)
    bomb("zstd", zstandard.compress(zeros), **hdf5plugin.Zstd())
    bomb("lzf", b"\0\0" + b"\xe0\xff\0" * 400, compression="lzf")
    bomb("checksum", bytes(16) + b"oops", fletcher32=True)
with h5py.File(HERE / "web.h5", "w", libver="latest") as file:
    group = file
    for _ in range(60):
        inner = group.create_group("a")
        group["b"] = inner
        group = inner
    group["leaf"] = np.float32(1)

# As small as can be, for the suite that damages every byte.
for label, libver in (("v0", "earliest"), ("latest", "latest")):
    with h5py.File(HERE / f"tiny_{label}.h5", "w", libver=libver) as file:
        data = np.arange(6, dtype=np.float32).reshape(2, 3)
        file["w"] = data
        file.create_dataset("c", data=data, chunks=(1, 2), compression="gzip", shuffle=True)
        file.attrs["a"] = "text"
        expected[f"tiny_{label}.h5"] = {"w": entry(data), "c": entry(data), "": {"a": "text"}}

# Many links and attributes: dense storage; a user block before everything.
for label, libver in (("v0", "earliest"), ("latest", "latest")):
    name = f"many_{label}.h5"
    with h5py.File(HERE / name, "w", libver=libver, userblock_size=512) as file:
        found = {}
        for index in range(24):
            file[f"g{index % 3}/layer_{index}/kernel:0"] = np.full((2, 2), index, np.float32)
            found[f"g{index % 3}/layer_{index}/kernel:0"] = entry(np.full((2, 2), index, np.float32))
        found[""] = {}
        for index in range(20):
            file.attrs[f"attribute_{index:02}"] = "v" * index
            found[""][f"attribute_{index:02}"] = "v" * index
            file["g0"].attrs[f"n{index}"] = index
            found[""][f"g0@n{index}"] = index
        expected[name] = found
    with open(HERE / name, "r+b") as file:
        file.write(b"this is a user block")


def keras2(file):
    """The layout of a Keras 2 model: weights below layers, names in attributes."""
    file.attrs["keras_version"] = "2.15.0"
    file.attrs["backend"] = "tensorflow"
    file.attrs["model_config"] = json.dumps({"class_name": "Sequential", "config": "x" * 3000})
    weights = file.create_group("model_weights")
    weights.attrs["layer_names"] = [b"dense", b"dropout"]
    dense = weights.create_group("dense")
    dense.attrs["weight_names"] = [b"dense/kernel:0", b"dense/bias:0"]
    kernel, bias = rng.standard_normal((4, 3)).astype("f4"), np.zeros(3, "f4")
    dense["dense/kernel:0"] = kernel
    dense["dense/bias:0"] = bias
    weights.create_group("dropout").attrs["weight_names"] = np.array([], "f8")
    return {"model_weights/dense/dense/kernel:0": entry(kernel), "model_weights/dense/dense/bias:0": entry(bias)}


def keras3(file):
    found = {}
    for index, layer in enumerate(("dense", "dense_1")):
        variables = file.create_group(f"layers/{layer}/vars")
        variables.attrs["name"] = layer
        for slot in range(2):
            data = rng.standard_normal((index + 2, slot + 1)).astype("f4")
            variables[str(slot)] = data
            found[f"layers/{layer}/vars/{slot}"] = entry(data)
    file.create_group("optimizer/vars")["0"] = np.int64(3)
    found["optimizer/vars/0"] = entry(np.int64(3))
    return found


with h5py.File(HERE / "keras2.h5", "w") as file:
    expected["keras2.h5"] = keras2(file)
buffer = io.BytesIO()
with h5py.File(buffer, "w") as file:
    found = keras3(file)
(HERE / "keras3.weights.h5").write_bytes(buffer.getvalue())
expected["keras3.weights.h5"] = found
for name, method in (("stored.keras", zipfile.ZIP_STORED), ("deflated.keras", zipfile.ZIP_DEFLATED)):
    with zipfile.ZipFile(HERE / name, "w", method) as archive:
        for member, content in (("metadata.json", '{"keras_version": "3.9.0"}'), ("config.json", '{"a": 1}'),
                                ("model.weights.h5", buffer.getvalue())):
            info = zipfile.ZipInfo(member)
            info.compress_type = method
            archive.writestr(info, content)
    expected[name] = dict(found)
    expected[name][""] = {"metadata.json": '{"keras_version": "3.9.0"}', "config.json": '{"a": 1}',
                          "layers/dense/vars@name": "dense", "layers/dense_1/vars@name": "dense_1"}

(HERE / "expected.json").write_text(json.dumps(expected, indent=0, sort_keys=True) + "\n")
