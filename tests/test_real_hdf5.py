"""HDF5 files as published, dataset by dataset against h5py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ztensor

h5py = pytest.importorskip("h5py")


def compare(path: Path) -> int:
    """Compares every dataset of a file; counts them."""
    expected = {}

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            expected[name] = item[()]

    with h5py.File(path) as file:
        file.visititems(visit)
    with ztensor.Reader(path) as reader:
        assert reader.format == "hdf5"
        assert reader.keys() == list(expected)
        for name, array in expected.items():
            tensor = reader.read(name)
            assert list(tensor.shape) == list(np.shape(array)), name
            (found,) = tensor.components.values()
            assert np.ascontiguousarray(found).tobytes() == np.asarray(array).tobytes(), name
    return len(expected)


def test_a_published_file(real_file: Callable[[str, str], Path]) -> None:
    assert compare(real_file("torchani", "c6.h5")) == 3


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_a_large_chunked_file(tmp_path: Path, rng: np.random.Generator, libver: str) -> None:
    path = tmp_path / "chunks.h5"
    data = rng.standard_normal((700, 300)).astype(np.float32)
    with h5py.File(path, "w", libver=libver) as file:
        for name, options in {
            "gzip": {"compression": "gzip", "shuffle": True},
            "lzf": {"compression": "lzf", "fletcher32": True},
            "plain": {},
            "growing": {"maxshape": (None, None), "compression": "gzip"},
        }.items():
            file.create_dataset(f"layers/{name}", data=data, chunks=(64, 48), **options)
    assert compare(path) == 4
