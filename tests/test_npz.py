"""Archives that NumPy writes, read here: every type, order and way of storing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ztensor

TYPES = "? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("byte_order", ["<", ">"])
def test_what_numpy_wrote(save, order: str, byte_order: str, rng: np.random.Generator) -> None:
    arrays = {}
    for code in TYPES:
        dtype = np.dtype(code).newbyteorder(byte_order)
        for shape in [(), (0, 3), (5,), (3, 70), (2, 3, 40)]:
            values = rng.integers(0, 2, (*shape, dtype.itemsize), np.uint8)
            array = np.ascontiguousarray(values).view(dtype).reshape(shape)
            arrays[f"{code} {shape} é"] = np.asarray(array, order=order)
    save("arrays.npz", **arrays)
    with ztensor.Reader(Path("arrays.npz")) as reader:
        assert reader.format == "npz"
        assert reader.keys() == list(arrays)
        for name, expected in arrays.items():
            found = np.asarray(reader.read(name, copy=True).components["data"])
            assert found.shape == expected.shape, name
            little = expected.astype(expected.dtype.newbyteorder("<"))
            assert found.tobytes() == little.tobytes(order="C"), name


def test_truncated_archives_are_called_that() -> None:
    arrays = {"a": np.arange(1000.0), "b": np.zeros(5000)}
    np.savez("x.npz", **arrays)  # type: ignore[arg-type]
    whole = Path("x.npz").read_bytes()
    Path("cut.npz").write_bytes(whole[:20_000])
    # Its second member is a header of 128 bytes and 40,000 of data.
    end = whole.index(b"b.npy") + 5 + 20 + 128 + 40_000
    with pytest.raises(ztensor.CorruptError, match=f"truncated: {end - 20_000} or more bytes"):
        ztensor.open("cut.npz")
    Path("cut.npz").write_bytes(whole[:-10])
    with pytest.raises(ztensor.CorruptError, match="truncated: the directory at its end is"):
        ztensor.open("cut.npz")
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.zeros(1000)}, "x.pt")
    Path("cut.pt").write_bytes(Path("x.pt").read_bytes()[:3000])
    with pytest.raises(ztensor.CorruptError, match=r"zip archive is truncated: .* download"):
        ztensor.open("cut.pt")
