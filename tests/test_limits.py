"""``max_bytes`` and ``max_total_bytes`` on every call that reads a file."""

import numpy as np
import pytest

import z4ai
import z4ai.model_delta
import z4ai.safetensors
import ztensor
import ztensor.numpy
import ztensor.torch
from ztensor import LimitError


@pytest.fixture
def path(tmp_path):
    """Two compressed tensors of 80,000 bytes and a raw one of 40,000."""
    path = tmp_path / "model.zt"
    with ztensor.Writer(path) as writer:
        writer.add("a", np.zeros((100, 100)), compress=3)
        writer.add("b", np.ones((100, 100)), compress="max")
        writer.add("raw", np.ones((100, 100), dtype=np.float32))
    return path


LOADS = {
    "numpy.load_file": lambda path, **limits: ztensor.numpy.load_file(path, **limits),
    "numpy.load_file copy": lambda path, **limits: ztensor.numpy.load_file(
        path, copy=True, **limits
    ),
    "torch.load_file": lambda path, **limits: ztensor.torch.load_file(path, **limits),
    "numpy.load": lambda path, **limits: ztensor.numpy.load(path.read_bytes(), **limits),
    "torch.load": lambda path, **limits: ztensor.torch.load(path.read_bytes(), **limits),
    "open": lambda path, **limits: ztensor.open(path, **limits).read(["a", "b", "raw"]),
    "Reader": lambda path, **limits: ztensor.Reader(path, **limits).read_numpy(["a", "b", "raw"]),
}


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_every_call_that_loads_a_file_has_both_limits(path, load):
    assert len(load(path, max_bytes=80_000, max_total_bytes=160_000)) == 3
    with pytest.raises(LimitError, match="max_total_bytes"):
        load(path, max_total_bytes=159_999)
    with pytest.raises(LimitError, match="max_bytes"):
        load(path, max_bytes=79_999)


def test_safe_open_has_both_limits(path):
    with ztensor.safe_open(path, "np", max_total_bytes=80_000) as file:
        # Each call is charged for what it decodes.
        assert file.get_tensor("a").size == file.get_tensor("b").size == 10_000
        assert file.get_slice("b")[3:5].shape == (2, 100)
    with ztensor.safe_open(path, "np", max_total_bytes=79_999) as file:
        with pytest.raises(LimitError, match="max_total_bytes"):
            file.get_tensor("a")
        with pytest.raises(LimitError, match="max_total_bytes"):
            file.get_slice("b")[:]
        assert file.get_slice("b")[:99].shape == (99, 100)
    with ztensor.safe_open(path, "np", max_bytes=39_999) as file:
        for name in ("a", "b", "raw"):
            with pytest.raises(LimitError, match="max_bytes"):
                file.get_tensor(name)
        with pytest.raises(LimitError, match="max_bytes"):
            file.get_slice("b")[:50]
        assert file.get_slice("b")[:49].shape == (49, 100)


def test_a_file_that_decodes_to_much_more_than_it_stores_is_refused_before_memory_is_taken(
    tmp_path,
):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "fill.h5"
    with h5py.File(path, "w") as file:
        # Never written: a terabyte of the fill value in a kilobyte.
        file.create_dataset("x", (1 << 37,), dtype="f8", fillvalue=1.5)
        file.create_dataset("small", (1000,), dtype="f8", fillvalue=1.5)
    with pytest.raises(LimitError, match="max_total_bytes"):
        ztensor.numpy.load_file(path)
    with ztensor.safe_open(path, "np") as file:
        with pytest.raises(LimitError, match="max_total_bytes"):
            file.get_tensor("x")
        assert file.get_slice("x")[1 << 36 : (1 << 36) + 3].tolist() == [1.5] * 3
        assert file.get_tensor("small").sum() == 1500


def test_limits_survive_pickling(path):
    import pickle

    reader = pickle.loads(pickle.dumps(ztensor.Reader(path, max_total_bytes=10)))
    with pytest.raises(LimitError, match="max_total_bytes"):
        reader.read_numpy("a")


def test_frames_have_a_limit():
    blob = z4ai.compress(bytes(80_000))
    assert z4ai.decompress(blob, max_bytes=80_000) == bytes(80_000)
    for out in (None, bytearray(80_000)):
        with pytest.raises(LimitError, match="max_bytes"):
            z4ai.decompress(blob, out=out, max_bytes=79_999)
    array = z4ai.compress_array(np.zeros(10_000))
    for framework in ("numpy", "torch"):
        restored = z4ai.decompress_array(array, framework=framework, max_bytes=80_000)
        assert restored.shape == (10_000,)
        with pytest.raises(LimitError, match="max_bytes"):
            z4ai.decompress_array(array, framework=framework, max_bytes=79_999)


def test_packed_files_have_a_limit(tmp_path):
    from safetensors.numpy import save

    original = save({"a": np.zeros(10_000)})
    packed = z4ai.safetensors.compress_bytes(original)
    path, out = tmp_path / "model.zstn", tmp_path / "model.safetensors"
    path.write_bytes(packed)
    size = len(original)
    restored = z4ai.safetensors.decompress_bytes(packed, max_total_bytes=size)
    assert restored == original
    with pytest.raises(LimitError, match="max_total_bytes"):
        z4ai.safetensors.decompress_bytes(packed, max_total_bytes=size - 1)
    with pytest.raises(LimitError, match="max_total_bytes"):
        z4ai.safetensors.decompress_file(path, out, max_total_bytes=size - 1)
    assert not out.exists()
    z4ai.safetensors.decompress_file(path, out, max_total_bytes=size)
    assert out.read_bytes() == original
    # Tensors of it, loaded.
    assert len(z4ai.load_file(path, max_bytes=80_000, max_total_bytes=80_000)) == 1
    with pytest.raises(LimitError, match="max_total_bytes"):
        z4ai.load_file(path, max_total_bytes=79_999)
    with pytest.raises(LimitError, match="max_bytes"):
        z4ai.load_file(path, max_bytes=79_999)
    reader = z4ai.safetensors.ZstnReader.open(path, max_bytes=79_999)
    with pytest.raises(LimitError, match="max_bytes"):
        reader.read_numpy("a")


def test_model_deltas_have_a_limit(tmp_path):
    from safetensors.numpy import save

    base, target = save({"a": np.zeros(10_000)}), save({"a": np.ones(10_000), "b": np.zeros(9)})
    delta = z4ai.model_delta.compress(target, base)
    size = len(target)
    assert z4ai.model_delta.decompress(delta, base, max_total_bytes=size) == target
    with pytest.raises(LimitError, match="max_total_bytes"):
        z4ai.model_delta.decompress(delta, base, max_total_bytes=size - 1)
    paths = [tmp_path / name for name in ("delta", "base.safetensors", "out.safetensors")]
    paths[0].write_bytes(delta)
    paths[1].write_bytes(base)
    with pytest.raises(LimitError, match="max_total_bytes"):
        z4ai.model_delta.decompress_file(*paths, max_total_bytes=size - 1)
    assert not paths[2].exists()
    z4ai.model_delta.decompress_file(*paths, max_total_bytes=size)
    assert paths[2].read_bytes() == target
