"""One object, many threads: with Python's global lock, and without it on free-threaded builds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import z4ai
import ztensor
from ztensor.numpy import load_file, save_file

THREADS = 8


def together(work: Callable[[int], None]) -> None:
    """Runs the work in threads that begin at the same time; an error of any is raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def one(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    rng = np.random.default_rng(7)
    tensors = {f"t{number}": rng.normal(size=(50, 40)).astype(np.float32) for number in range(20)}
    save_file(tensors, tmp_path / "model.zt", compression=True, checksum="crc32c")
    return tmp_path / "model.zt", tensors


def test_the_extension_leaves_the_lock_off() -> None:
    enabled = getattr(sys, "_is_gil_enabled", lambda: True)()
    if enabled and "free-threading" not in sys.version:
        pytest.skip("this Python has the global lock")
    assert not enabled, "importing ztensor turned the global lock on"


def test_one_reader(model: tuple[Path, dict[str, np.ndarray]]) -> None:
    path, tensors = model
    reader = ztensor.open(path)

    def work(number: int) -> None:
        for name in sorted(tensors, key=lambda name: hash((name, number))):
            assert (reader[name].numpy() == tensors[name]).all()
            destination = np.empty((50, 40), np.float32)
            reader.read_into(name, destination)
            assert (destination == tensors[name]).all()
            assert reader.verify(name)

    together(work)
    reader.close()


def test_readers_open_and_close(model: tuple[Path, dict[str, np.ndarray]]) -> None:
    path, tensors = model

    def work(number: int) -> None:
        for _ in range(5):
            assert load_file(path).keys() == tensors.keys()

    together(work)


def test_one_writer_takes_one_tensor_at_a_time(tmp_path: Path) -> None:
    """Every tensor is written whole, or its call is refused: never mixed, never lost silently."""
    written: list[str] = []
    with ztensor.Writer(tmp_path / "model.zt") as writer:

        def work(number: int) -> None:
            for index in range(10):
                try:
                    writer.write(f"{number}.{index}", np.full(1000, number * 10 + index))
                except ztensor.ZTensorError:
                    continue
                written.append(f"{number}.{index}")

        together(work)
    found = load_file(tmp_path / "model.zt")
    assert sorted(found) == sorted(written)
    for name, values in found.items():
        number, index = name.split(".")
        assert (values == int(number) * 10 + int(index)).all()


def test_the_codec() -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=20_000).astype(np.float32) for _ in range(THREADS)]

    def work(number: int) -> None:
        for _ in range(5):
            packed = z4ai.compress_array(arrays[number])
            assert (z4ai.decompress_array(packed) == arrays[number]).all()

    together(work)
