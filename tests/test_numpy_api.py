"""``ztensor.numpy``: every call, default, return value and promise."""

from __future__ import annotations

import inspect
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from conftest import same_bytes

import ztensor
from ztensor.numpy import load, load_file, save, save_file

DTYPES = [
    *("float64", "float32", "float16", "int64", "int32", "int16", "int8"),
    *("uint64", "uint32", "uint16", "uint8", "bool", "complex64", "complex128"),
]
ML_DTYPES = [
    *("bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
]


def sample(dtype: np.dtype, shape: tuple[int, ...] = (3, 5)) -> np.ndarray:
    """Every bit pattern is fair game, except in booleans."""
    count = int(np.prod(shape))
    if dtype == np.bool_:
        return (np.arange(count) % 2 == 0).reshape(shape)
    raw = np.random.default_rng(1).integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    return raw.view(dtype).reshape(shape)


def test_signatures_are_those_of_the_document() -> None:
    def defaults(function: object) -> dict[str, object]:
        parameters = inspect.signature(function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is not p.KEYWORD_ONLY}

    required = inspect.Parameter.empty
    assert defaults(save_file) == {
        "tensors": required,
        "filename": required,
        "metadata": None,
        "compression": False,
    }
    assert defaults(load_file) == {"filename": required, "copy": False}
    assert defaults(save) == {"tensors": required, "metadata": None, "compression": False}
    assert defaults(load) == {"data": required}


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("compression", [False, True])
def test_every_numpy_dtype(name: str, copy: bool, compression: bool) -> None:
    array = sample(np.dtype(name))
    save_file({"x": array}, "x.zt", compression=compression)
    assert same_bytes(load_file("x.zt", copy=copy)["x"], array)
    assert same_bytes(load(save({"x": array}, compression=compression))["x"], array)


@pytest.mark.parametrize("name", ML_DTYPES)
@pytest.mark.parametrize("copy", [False, True])
def test_every_ml_dtype(name: str, copy: bool) -> None:
    array = sample(np.dtype(getattr(ml_dtypes, name)))
    save_file({"x": array}, "x.zt")
    assert same_bytes(load_file("x.zt", copy=copy)["x"], array)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0, 2), (1,), (1, 1, 1), (2,) * 20])
@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("compression", [False, True])
def test_scalars_and_empty_arrays_keep_their_shape(
    shape: tuple[int, ...], copy: bool, compression: bool
) -> None:
    array = np.ones(shape, dtype=np.float32)
    save_file({"x": array}, "x.zt", compression=compression)
    assert same_bytes(load_file("x.zt", copy=copy)["x"], array)


def test_any_strides_and_byte_orders() -> None:
    base = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    arrays = {
        "transposed": base.T,
        "reversed": base[::-1, :, ::-1],
        "stepped": base[:, ::2],
        "broadcast": np.broadcast_to(np.float64(3), (4, 4)),
        "fortran": np.asfortranarray(base),
        "big-endian": base.astype(">i4"),
        "big-endian float": np.arange(4.0).astype(">f8"),
        "unaligned": np.zeros(17, np.uint8)[1:].view(np.float64),
        "read-only": np.frombuffer(b"12345678", dtype=np.int64),
    }
    save_file(arrays, "x.zt")
    for name, found in load_file("x.zt").items():
        np.testing.assert_array_equal(found, arrays[name])
        assert found.shape == arrays[name].shape
        assert found.dtype == arrays[name].dtype.newbyteorder("<")


def test_bool_is_asked_before_int() -> None:
    array = np.zeros(1 << 16, dtype=np.float32) + np.arange(1 << 16, dtype=np.float32) % 777
    sizes = {}
    for compression in (True, 1, 3, 22):
        save_file({"x": array}, "x.zt", compression=compression)
        meta = ztensor.open("x.zt").metadata("x").components["data"]
        assert meta["encoding"] == "zstd"
        sizes[str(compression)] = Path("x.zt").read_bytes()
    assert sizes["True"] == sizes["3"]
    assert sizes["1"] != sizes["3"]
    assert len(sizes["22"]) < len(sizes["1"])
    for compression in (False, None):
        save_file({"x": array}, "x.zt", compression=compression)
        assert ztensor.open("x.zt").metadata("x").components["data"]["encoding"] == "raw"


@pytest.mark.parametrize("level", [0, -1, 23, 100, 2**40, 1.5, b"3"])
def test_levels_that_do_not_exist(level: object) -> None:
    with pytest.raises(ValueError, match="22"):
        save_file({"x": np.zeros(3)}, "x.zt", compression=level)
    assert not Path("x.zt").exists()


def test_metadata_is_kept() -> None:
    metadata = {"format": "np", "nested": {"list": [1, 2.5, None, True, "ä", b"raw"]}}
    save_file({"x": np.zeros(3)}, "x.zt", metadata=metadata)
    assert ztensor.open("x.zt").attributes == metadata
    save_file({"x": np.zeros(3)}, "x.zt")
    assert ztensor.open("x.zt").attributes == {}
    with pytest.raises(ztensor.InvalidArgumentError, match="attribute"):
        save_file({"x": np.zeros(3)}, "x.zt", metadata={"x": object()})
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(ztensor.InvalidArgumentError, match="deep"):
        save_file({"x": np.zeros(3)}, "x.zt", metadata={"x": endless})


def test_names_may_be_anything() -> None:
    names = ["", " ", "a/b.c", "ä☃𝄞", "x" * 1000, "\x00\n", "__metadata__"]
    save_file({name: np.array(index) for index, name in enumerate(names)}, "x.zt")
    loaded = load_file("x.zt")
    assert list(loaded) == names
    assert [int(array) for array in loaded.values()] == list(range(len(names)))
    with pytest.raises(ztensor.InvalidArgumentError, match="strings"):
        save_file({3: np.zeros(1)}, "y.zt")


def test_no_tensors_at_all() -> None:
    save_file({}, "x.zt")
    assert load_file("x.zt") == {}
    assert load(save({})) == {}


def test_paths() -> None:
    save_file({"x": np.zeros(1)}, Path("a.zt"))
    assert load_file(Path("a.zt"))["x"] == 0
    with pytest.raises(FileNotFoundError, match="missing"):
        load_file("missing.zt")
    with pytest.raises(OSError):
        save_file({}, "no/such/folder/x.zt")
    assert load_file(".")["x"] == 0
    Path("empty").mkdir()
    with pytest.raises(ztensor.ZTensorError):
        load_file("empty")


def test_copy_on_write() -> None:
    array = np.arange(100_000, dtype=np.int64)
    save_file({"x": array}, "x.zt")
    first, second = load_file("x.zt")["x"], load_file("x.zt")["x"]
    assert first.flags.writeable
    assert first.ctypes.data % 64 == 0
    assert not first.flags.owndata
    first[:] = -1
    assert (second == array).all()
    assert (load_file("x.zt")["x"] == array).all()
    assert (load_file("x.zt", copy=True)["x"] == array).all()


def test_one_mapping_serves_one_load() -> None:
    save_file({"x": np.zeros(5), "y": np.ones(5)}, "x.zt")
    loaded = load_file("x.zt")
    assert loaded["x"].base is loaded["y"].base
    assert "x.zt" in repr(loaded["x"].base)


def test_copies_are_independent() -> None:
    save_file({"x": np.arange(10), "y": np.arange(10)}, "x.zt")
    loaded = load_file("x.zt", copy=True)
    assert loaded["x"].flags.owndata
    assert loaded["x"].flags.writeable
    loaded["x"][:] = 0
    assert (loaded["y"] == np.arange(10)).all()
    data = save({"x": np.arange(10)})
    once, twice = load(data)["x"], load(data)["x"]
    once[:] = 0
    assert (twice == np.arange(10)).all()
    assert (load(data)["x"] == np.arange(10)).all()


def test_tied_arrays_are_stored_once_and_restored_tied() -> None:
    shared = np.arange(1000.0)
    equal = shared.copy()
    save_file({"a": shared, "b": shared, "c": shared[:], "d": equal}, "x.zt")
    assert Path("x.zt").stat().st_size < 3 * shared.nbytes
    for copy in (False, True):
        loaded = load_file("x.zt", copy=copy)
        loaded["a"][0] = 5
        assert loaded["b"][0] == loaded["c"][0] == 5
        assert loaded["d"][0] == 0


def test_strided_ties() -> None:
    base = np.arange(10_000.0).reshape(100, 100)
    save_file({"a": base.T, "b": base.T, "c": base}, "x.zt")
    assert Path("x.zt").stat().st_size < 2.5 * base.nbytes
    loaded = load_file("x.zt")
    assert loaded["a"] is loaded["b"]
    assert (loaded["c"] == base).all() and (loaded["a"] == base.T).all()


def test_temporary_copies_are_not_mistaken_for_ties() -> None:
    # Each copy may be freed before the next is made, at the same address.
    bases = [np.full((200, 200), index) for index in range(50)]
    save_file({str(index): base.T for index, base in enumerate(bases)}, "x.zt")
    for index, found in enumerate(load_file("x.zt").values()):
        assert (found == index).all()


def test_empty_arrays_are_never_tied() -> None:
    empty = np.zeros((0, 3))
    save_file({"a": empty, "b": empty, "c": np.zeros((5, 0))}, "x.zt")
    loaded = load_file("x.zt")
    assert loaded["a"].shape == (0, 3) and loaded["c"].shape == (5, 0)


@pytest.mark.parametrize(
    "bad",
    [
        np.array(["text"]),
        np.array([object()]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        np.zeros(3, dtype=[("a", "f4"), ("b", "i4")]),
        np.zeros(2, dtype=np.longdouble),
        np.ma.masked_array([1.0, 2.0], mask=[True, False]),
        "text",
        None,
        object(),
        [1, 2, 3],
    ],
)
def test_what_cannot_be_saved_leaves_no_file(bad: object) -> None:
    with pytest.raises(ztensor.InvalidArgumentError):
        save_file({"fine": np.zeros(3), "bad": bad}, "x.zt")
    assert list(Path().iterdir()) == []


def test_a_failed_save_leaves_the_old_file() -> None:
    save_file({"x": np.ones(3)}, "x.zt")
    with pytest.raises(ztensor.InvalidArgumentError):
        save_file({"x": "text"}, "x.zt")
    assert (load_file("x.zt")["x"] == 1).all()
    assert [path.name for path in Path().iterdir()] == ["x.zt"]


def test_saving_onto_the_file_that_was_loaded() -> None:
    arrays = {"x": np.arange(100_000.0), "y": np.arange(7)}
    save_file(arrays, "x.zt")
    loaded = load_file("x.zt")
    loaded["y"][0] = 42
    save_file(loaded, "x.zt")
    again = load_file("x.zt")
    assert (again["x"] == arrays["x"]).all() and again["y"][0] == 42
    assert (loaded["x"] == arrays["x"]).all()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_load_takes_anything_that_holds_bytes(kind: type) -> None:
    data = kind(save({"x": np.arange(5)}))
    assert (load(data)["x"] == np.arange(5)).all()


def test_checksums_are_stored_and_compared() -> None:
    for checksum in ("crc32c", "sha256"):
        save_file({"x": np.arange(1000.0)}, "x.zt", checksum=checksum)
        meta = ztensor.open("x.zt").metadata("x").components["data"]
        assert meta["digest"].startswith(f"{checksum}:")
        data = bytearray(Path("x.zt").read_bytes())
        data[meta["offset"] + 3] ^= 1
        Path("damaged.zt").write_bytes(data)
        with pytest.raises(ztensor.MismatchError, match="have the checksum"):
            load_file("damaged.zt", copy=True)
        with pytest.raises(ztensor.MismatchError):
            load(bytes(data))
    with pytest.raises(ValueError, match="crc32c"):
        save_file({"x": np.zeros(3)}, "x.zt", checksum="md5")


def test_numpy_scalars_and_objects_with_dlpack() -> None:
    torch = pytest.importorskip("torch")
    values = {
        "scalar": np.float32(3),
        "tensor": torch.arange(3),
        "ours": ztensor.Tensor({"data": [1, 2]}),
    }
    save_file(values, "x.zt")
    loaded = load_file("x.zt")
    assert same_bytes(loaded["scalar"], np.float32(3))
    assert same_bytes(loaded["tensor"], np.arange(3))
    assert same_bytes(loaded["ours"], np.array([1, 2]))


def test_many_small_arrays() -> None:
    arrays = {f"tensor.{index}": np.full((4, 8), index, np.float32) for index in range(5000)}
    save_file(arrays, "x.zt")
    for copy in (False, True):
        loaded = load_file("x.zt", copy=copy)
        assert all((loaded[name] == array).all() for name, array in arrays.items())


@pytest.mark.parametrize("effort", ["fast", "default"])
def test_the_weight_codec(effort: str) -> None:
    array = np.random.default_rng(1).standard_normal((300, 200)).astype(np.float32)
    arrays = {"a": array, "b": array.astype(np.float16), "tied": array, "scalar": np.float64(3)}
    save_file(arrays, "x.zt", compression=effort, checksum="crc32c")
    with ztensor.open("x.zt") as reader:
        parts = {name: reader.metadata(name).components["data"] for name in arrays}
    assert parts["a"]["encoding"] == parts["b"]["encoding"] == "z4ai"
    assert parts["a"]["stored_length"] < parts["a"]["length"]
    for copy in (False, True):
        loaded = load_file("x.zt", copy=copy)
        for name, expected in arrays.items():
            assert same_bytes(loaded[name], np.asarray(expected))
    with ztensor.safe_open("x.zt", "np") as file:
        np.testing.assert_array_equal(file.get_slice("a")[100:103, 7], array[100:103, 7])
    with ztensor.Writer("y.zt") as w:
        w.write_numpy("a", array, compress=effort)
    assert same_bytes(load_file("y.zt")["a"], array)


@pytest.mark.parametrize("effort", ["", "Fast", "fastest", "zstd"])
def test_efforts_that_do_not_exist(effort: str) -> None:
    with pytest.raises(ValueError, match="'fast', 'default'"):
        save_file({"x": np.zeros(3)}, "x.zt", compression=effort)
    assert not Path("x.zt").exists()


def test_what_is_no_dictionary_is_named() -> None:
    for wrong in (None, 3, [1, 2]):
        with pytest.raises(TypeError, match="tensors is a dictionary, not"):
            save_file(wrong, "wrong.zt")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="metadata is a dictionary, not list"):
        save_file({}, "wrong.zt", metadata=[1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"components is a dictionary of arrays.*not ndarray"):
        ztensor.Tensor(np.ones(3))  # type: ignore[arg-type]
    assert not Path("wrong.zt").exists()
    save_file({"a": np.ones(3)}, "right.zt")
    with ztensor.Reader("right.zt") as reader:
        for call in (reader.read, reader.read_numpy, reader.metadata):
            for names in (3, ["a", 3]):
                with pytest.raises(TypeError, match="several are a list of strings"):
                    call(names)  # type: ignore[call-overload]
