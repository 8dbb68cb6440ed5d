"""``ztensor.Reader``, ``ztensor.open`` and ``TensorMetadata``."""

from __future__ import annotations

import copy as copying
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import DATA, same_bytes

import ztensor
from ztensor import Reader
from ztensor.numpy import save_file

WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def path() -> str:
    with ztensor.Writer("model.zt", attributes={"k": "v"}) as writer:
        writer.write_numpy("weight", WEIGHT, checksum="crc32c")
        writer.write_numpy("bias", np.zeros(4000), compress=True)
        writer.write_torch("half", torch.ones(2, 2, dtype=torch.bfloat16))
        sparse = torch.eye(3).to_sparse_csr()
        writer.write("sparse", ztensor.Tensor.from_torch(sparse))
    return "model.zt"


def test_like_a_dictionary(path: str) -> None:
    reader = Reader(path)
    assert reader.keys() == ["weight", "bias", "half", "sparse"]
    assert isinstance(reader.keys(), list)
    assert list(reader) == reader.keys()
    assert len(reader) == 4
    assert "bias" in reader and "nothing" not in reader and 3 not in reader
    assert isinstance(reader["weight"], ztensor.Tensor)
    assert [name for name, _ in reader.items()] == reader.keys()
    assert len(list(reader.values())) == 4
    assert dict(reader).keys() == set(reader.keys())
    assert reader.format == "zt"
    assert reader.attributes == {"k": "v"}
    assert "zt" in repr(reader) and "4 tensors" in repr(reader)
    with pytest.raises(KeyError, match="did you mean") as caught:
        reader["WEIGHT"]
    assert isinstance(caught.value, ztensor.ZTensorError)
    assert caught.value.file == path


def test_open_is_reader(path: str) -> None:
    assert isinstance(ztensor.open(path), Reader)
    assert isinstance(ztensor.open(Path(path)), Reader)


def test_metadata(path: str) -> None:
    reader = Reader(path)
    meta = reader.metadata("weight")
    assert isinstance(meta, ztensor.TensorMetadata)
    assert (meta.name, meta.shape, meta.dtype) == ("weight", [3, 4], "float32")
    assert (meta.type, meta.format, meta.attributes) == (None, "dense", None)
    assert (meta.size, meta.nbytes, meta.element) == (12, 48, "float32")
    data = meta.components["data"]
    assert data["length"] == data["stored_length"] == 48
    assert data["offset"] % 64 == 0
    assert data["encoding"] == "raw"
    assert data["digest"].startswith("crc32c:0x")
    compressed = reader.metadata("bias").components["data"]
    assert compressed["length"] == 32000 > compressed["stored_length"]
    both = reader.metadata(["bias", "weight"])
    assert [one.name for one in both] == ["bias", "weight"]
    with pytest.raises(KeyError):
        reader.metadata("nothing")


def test_metadata_can_be_pickled_and_printed(path: str) -> None:
    meta = Reader(path).metadata("sparse")
    assert pickle.loads(pickle.dumps(meta)) == meta
    assert copying.deepcopy(meta) == meta
    assert "shape=[3, 3]" in repr(meta)


@pytest.mark.parametrize("copy", [False, True])
def test_read(path: str, copy: bool) -> None:
    reader = Reader(path)
    weight = reader.read("weight", copy=copy)
    assert isinstance(weight, ztensor.Tensor)
    assert (weight.shape, weight.dtype, weight.format) == ([3, 4], "float32", "dense")
    assert same_bytes(weight.numpy(), WEIGHT)
    both = reader.read(["weight", "sparse"], copy=copy)
    assert both["sparse"].format == "sparse_csr"
    assert set(both["sparse"].components) == {"values", "indices", "indptr"}
    assert reader.read([], copy=copy) == {}


@pytest.mark.parametrize("copy", [False, True])
def test_read_numpy_and_torch(path: str, copy: bool) -> None:
    reader = Reader(path)
    assert same_bytes(reader.read_numpy("weight", copy=copy), WEIGHT)
    assert set(reader.read_numpy(["weight", "bias"], copy=copy)) == {"weight", "bias"}
    assert reader.read_torch("half", copy=copy).dtype == torch.bfloat16
    assert reader.read_torch("half", device="meta").is_meta
    assert set(reader.read_torch(("weight", "half"), copy=copy)) == {"weight", "half"}
    assert reader.read_torch("sparse").layout == torch.sparse_csr
    with pytest.raises(ztensor.UnsupportedError, match=r"read\(\)"):
        reader.read_numpy("sparse")
    for read in (reader.read, reader.read_numpy, reader.read_torch):
        with pytest.raises(KeyError):
            read("nothing")
        with pytest.raises(KeyError):
            read(["weight", "nothing"])


def test_verify(path: str) -> None:
    reader = Reader(path)
    assert reader.verify("weight") is True
    assert reader.verify("bias") is False
    assert reader.verify() == ztensor.Verification(checked=1, unchecked=3)
    data = bytearray(Path(path).read_bytes())
    data[reader.metadata("weight").components["data"]["offset"]] ^= 1
    Path("damaged.zt").write_bytes(data)
    damaged = Reader("damaged.zt")
    with pytest.raises(ztensor.MismatchError, match="weight"):
        damaged.verify()
    with pytest.raises(ztensor.MismatchError):
        damaged.read_numpy("weight", copy=True)
    with pytest.raises(ztensor.MismatchError):
        damaged.read_numpy("weight")
    for copy in (False, True):
        unchecked = Reader("damaged.zt", verify=False)
        assert unchecked.read_numpy("weight", copy=copy).shape == (3, 4)


def test_closing(path: str) -> None:
    with Reader(path) as reader:
        weight = reader["weight"]
        array = reader.read_numpy("weight")
    assert same_bytes(weight.numpy(), WEIGHT)
    assert same_bytes(array, WEIGHT)
    with pytest.raises(ValueError, match="closed"):
        reader.keys()
    assert "closed" in repr(reader)
    reader.close()


def test_views_do_not_change_what_the_reader_reads(path: str) -> None:
    reader = Reader(path)
    reader.read_numpy("weight")[:] = 7
    assert same_bytes(reader.read_numpy("weight", copy=True), WEIGHT)
    assert reader.verify("weight")


def test_readers_can_be_pickled(path: str) -> None:
    reader = pickle.loads(pickle.dumps(Reader(path, verify=False, max_bytes=10**6)))
    assert same_bytes(reader.read_numpy("weight"), WEIGHT)
    with pytest.raises(ztensor.LimitError):
        pickle.loads(pickle.dumps(Reader(path, max_bytes=10))).read_numpy("bias")


def test_without_a_mapping(path: str) -> None:
    reader = Reader(path, map=False)
    array = reader.read_numpy("weight")
    assert same_bytes(array, WEIGHT) and array.flags.owndata
    assert reader.read_torch("weight").equal(torch.from_numpy(WEIGHT))


def test_limits(path: str) -> None:
    with pytest.raises(ztensor.LimitError, match="32000"):
        Reader(path, max_bytes=31_999).read_numpy("bias")
    assert Reader(path, max_bytes=32_000).read_numpy("bias").size == 4000


class TestReadInto:
    def test_arrays(self, path: str) -> None:
        reader = Reader(path)
        destination = np.full((3, 4), -1, np.float32)
        assert reader.read_into("weight", destination) is None
        assert same_bytes(destination, WEIGHT)
        compressed = np.ones(4000)
        reader.read_into("bias", compressed)
        assert (compressed == 0).all()

    def test_tensors(self, path: str) -> None:
        reader = Reader(path)
        destination = torch.zeros(2, 2, dtype=torch.bfloat16)
        reader.read_into("half", destination)
        assert destination.eq(1).all()
        parameter = torch.nn.Parameter(torch.zeros(3, 4))
        reader.read_into("weight", parameter)
        assert parameter.detach().equal(torch.from_numpy(WEIGHT))
        strided = torch.zeros(4, 3).T
        reader.read_into("weight", strided)
        assert strided.equal(torch.from_numpy(WEIGHT))

    def test_strided_arrays(self, path: str) -> None:
        arena = np.zeros((6, 8), np.float32)
        Reader(path).read_into("weight", arena[::2, 1:5])
        assert (arena[::2, 1:5] == WEIGHT).all()
        assert arena.sum() == WEIGHT.sum()
        swapped = np.zeros((3, 4), ">f4")
        Reader(path).read_into("weight", swapped)
        assert (swapped == WEIGHT).all()

    def test_dictionaries(self, path: str) -> None:
        weight, half = np.zeros((3, 4), np.float32), torch.zeros(2, 2, dtype=torch.bfloat16)
        Reader(path).read_into({"half": half, "weight": weight})
        assert same_bytes(weight, WEIGHT) and half.eq(1).all()
        Reader(path).read_into({})

    def test_an_arena(self, path: str) -> None:
        reader = Reader(path)
        names = ["weight", "half"]
        arena = torch.zeros(200, dtype=torch.uint8)
        views, offset = {}, 0
        for name in names:
            meta = reader.metadata(name)
            nbytes = meta.components["data"]["length"]
            dtype = getattr(torch, meta.dtype)
            views[name] = arena[offset : offset + nbytes].view(dtype).reshape(meta.shape)
            offset += nbytes
        reader.read_into(views)
        assert views["weight"].equal(torch.from_numpy(WEIGHT))
        assert views["half"].eq(1).all()
        assert arena[offset:].eq(0).all()

    @pytest.mark.parametrize(
        "wrong",
        [
            np.zeros((4, 3), np.float32),
            np.zeros((3, 4), np.float64),
            np.zeros((3, 4), np.int32),
            np.zeros(12, np.float32),
            torch.zeros(4, 3),
            torch.zeros(3, 4, dtype=torch.float16),
            "text",
            None,
        ],
    )
    def test_nothing_is_written_when_one_does_not_match(self, path: str, wrong: object) -> None:
        fine = np.ones(4000)
        with pytest.raises(ztensor.InvalidArgumentError, match=r"weight|destination"):
            Reader(path).read_into({"bias": fine, "weight": wrong})
        assert (fine == 1).all()

    def test_other_mistakes(self, path: str) -> None:
        reader = Reader(path)
        read_only = np.zeros((3, 4), np.float32)
        read_only.flags.writeable = False
        with pytest.raises(ztensor.InvalidArgumentError, match="read-only"):
            reader.read_into("weight", read_only)
        with pytest.raises(KeyError):
            reader.read_into("nothing", np.zeros(1))
        with pytest.raises(ztensor.UnsupportedError, match="sparse_csr"):
            reader.read_into("sparse", np.zeros((3, 3), np.float32))
        with pytest.raises(TypeError, match="needs a destination"):
            reader.read_into("weight")
        with pytest.raises(ztensor.InvalidArgumentError):
            reader.read_into({"weight": read_only}, read_only)

    def test_destinations_that_overlap(self) -> None:
        save_file({"a": np.ones(4), "b": np.ones(4)}, "x.zt")
        memory = np.zeros(6)
        with pytest.raises(ztensor.InvalidArgumentError, match="overlap"):
            Reader("x.zt").read_into({"a": memory[:4], "b": memory[2:]})
        assert (memory == 0).all()


class TestSlices:
    INDICES = (
        np.s_[0],
        np.s_[-1],
        np.s_[2:7],
        np.s_[::3],
        np.s_[::-2],
        np.s_[7:2:-1],
        np.s_[5:5],
        np.s_[-3:],
        np.s_[...],
        np.s_[..., 1],
        np.s_[1, ..., 2],
        np.s_[:, 1:3],
        np.s_[3, 4, 1],
        np.s_[2:4, -1],
        np.s_[np.int64(2)],
        np.s_[()],
    )

    @pytest.mark.parametrize("index", INDICES, ids=repr)
    @pytest.mark.parametrize("compression", [False, True, "default"])
    def test_numpy(self, index: object, compression: bool | str) -> None:
        array = np.arange(10 * 5 * 3).reshape(10, 5, 3)
        save_file({"x": array}, "x.zt", compression=compression)
        with ztensor.safe_open("x.zt", "np") as file:
            found = file.get_slice("x")[index]
        np.testing.assert_array_equal(found, array[index])
        assert found.flags.writeable and found.flags.c_contiguous

    @pytest.mark.parametrize("compression", [False, True, "default"])
    def test_torch(self, compression: bool | str) -> None:
        tensor = torch.arange(50, dtype=torch.bfloat16).reshape(10, 5)
        ztensor.torch.save_file({"x": tensor}, "x.zt", compression=compression)
        with ztensor.safe_open("x.zt", "pt") as file:
            for index in (3, slice(2, 8, 2), (slice(None), -1), (..., slice(1, 3)), slice(4, 4)):
                found = file.get_slice("x")[index]
                assert found.equal(tensor[index]) and found.is_contiguous()
                assert found.untyped_storage().nbytes() == found.nbytes

    def test_scalars(self) -> None:
        save_file({"x": np.array(5)}, "x.zt")
        with ztensor.safe_open("x.zt", "np") as file:
            assert file.get_slice("x")[...] == 5
            assert file.get_slice("x")[()] == 5
            with pytest.raises(IndexError):
                file.get_slice("x")[0]

    def test_mistakes(self) -> None:
        save_file({"x": np.zeros((3, 2))}, "x.zt")
        with ztensor.safe_open("x.zt", "np") as file:
            part = file.get_slice("x")
            assert part.get_shape() == [3, 2] and part.get_dtype() == "F64"
            for index in (3, -4, (0, 2), (0, 0, 0)):
                with pytest.raises(IndexError):
                    part[index]
            for index in ("x", (..., ...), 1.0, {}):
                with pytest.raises(ValueError):
                    part[index]
            with pytest.raises(KeyError):
                file.get_slice("y")
        with pytest.raises(ValueError, match="closed"):
            file.keys()
        with pytest.raises(ValueError, match="framework"):
            ztensor.safe_open("x.zt", "cobol")


def test_files_of_an_independent_writer() -> None:
    for path in sorted((DATA / "zt").glob("*.zt")):
        expected = np.load(f"{path}.expected.npz")
        found = {}
        for name, tensor in Reader(path).items():
            if tensor.format == "dense":
                found[name] = tensor.components["data"]
            else:
                found |= {f"{name}.{role}": part for role, part in tensor.components.items()}
        assert set(found) == set(expected.files), path.name
        for name, array in found.items():
            wanted = expected[name]
            assert array.nbytes == wanted.nbytes, (path.name, name)
            assert array.tobytes() == wanted.tobytes(), (path.name, name)
