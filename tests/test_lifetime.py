"""Memory: what outlives what, what is given back, and what processes share."""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import open_files

import ztensor
import ztensor.numpy
import ztensor.torch


@pytest.fixture
def model() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    arrays = {f"w{index}": random.standard_normal(5000) for index in range(20)}
    ztensor.numpy.save_file(arrays, "model.zt", checksum="crc32c")
    ztensor.numpy.save_file(arrays, "small.zt", compression=True)
    return arrays


def is_open(name: str) -> bool:
    gc.collect()
    mapped = Path("/proc/self/maps").read_text()
    return name in mapped or any(path.endswith(name) for path in open_files())


def test_views_outlive_everything_else(model: dict[str, np.ndarray]) -> None:
    reader = ztensor.Reader("model.zt")
    array = reader.read_numpy("w3")
    tensor = reader.read_torch("w4")
    part = array[10:20]
    reader.close()
    del reader, array
    os.unlink("model.zt")
    assert (part == model["w3"][10:20]).all()
    assert (tensor.numpy() == model["w4"]).all()


def test_files_are_closed_when_the_last_view_is_gone(model: dict[str, np.ndarray]) -> None:
    arrays = ztensor.numpy.load_file("model.zt")
    tensors = ztensor.torch.load_file("model.zt")
    assert is_open("model.zt")
    last = arrays["w0"][:1]
    del arrays, tensors
    assert is_open("model.zt")
    del last
    assert not is_open("model.zt")
    tensor = ztensor.torch.load_file("model.zt")["w1"]
    assert is_open("model.zt")
    del tensor
    assert not is_open("model.zt")
    copies = ztensor.numpy.load_file("model.zt", copy=True)
    assert not is_open("model.zt")
    assert copies


def test_nothing_leaks(model: dict[str, np.ndarray]) -> None:
    def work() -> None:
        ztensor.numpy.load_file("model.zt")
        ztensor.torch.load_file("model.zt", copy=True)
        ztensor.torch.load_file("model.zt")
        ztensor.numpy.load_file("small.zt")
        data = ztensor.numpy.save(model)
        ztensor.numpy.load(data)
        reader = ztensor.open("model.zt")
        reader.metadata(reader.keys())
        reader.read_into("w0", np.empty(5000))
        ztensor.numpy.save_file(model, "again.zt", metadata={"a": [1, {"b": 2}]})
        for bad in ("missing.zt", "nothing"):
            with pytest.raises((KeyError, OSError)):
                ztensor.open(bad)["x"] if bad == "missing.zt" else reader[bad]

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    for _ in range(20):
        work()
    before, objects, files = resident(), len(gc.get_objects()), len(list(open_files()))
    for _ in range(100):
        work()
    # One leaked load per round would be 80 MB.
    assert resident() - before < 20 << 20
    assert len(gc.get_objects()) - objects < 200
    assert len(list(open_files())) == files


def test_reference_counts_stay(model: dict[str, np.ndarray]) -> None:
    array = model["w0"]
    name = "".join(["a", " name"])
    none, dtype = sys.getrefcount(None), sys.getrefcount(array.dtype)
    before = sys.getrefcount(array), sys.getrefcount(name)
    for _ in range(200):
        ztensor.numpy.save({name: array})
        found = ztensor.numpy.load_file("model.zt")
        count = sys.getrefcount(found["w1"])
        assert count == 2  # the dictionary and the argument
        del found
    assert (sys.getrefcount(array), sys.getrefcount(name)) == before
    assert abs(sys.getrefcount(array.dtype) - dtype) < 50
    assert abs(sys.getrefcount(None) - none) < 500


def test_one_reader_and_many_threads(model: dict[str, np.ndarray]) -> None:
    readers = [ztensor.Reader("model.zt"), ztensor.Reader("small.zt")]

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(30):
            name = f"w{random.integers(20)}"
            reader = readers[int(random.integers(2))]
            copy = bool(random.integers(2))
            assert (reader.read_numpy(name, copy=copy) == model[name]).all()
            assert (reader.read_torch(name, copy=copy).numpy() == model[name]).all()
            destination = np.empty(5000)
            reader.read_into(name, destination)
            assert (destination == model[name]).all()
            assert reader.metadata(name).shape == [5000]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_loads_and_saves_in_many_threads(model: dict[str, np.ndarray]) -> None:
    def work(index: int) -> None:
        for round in range(5):
            path = f"{index}.zt"
            ztensor.numpy.save_file({**model, "mine": np.array([index, round])}, path)
            assert ztensor.torch.load_file(path)["mine"].tolist() == [index, round]

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))


def test_a_writer_belongs_to_one_thread_at_a_time() -> None:
    errors = []
    with ztensor.Writer("x.zt") as writer:

        def work(index: int) -> None:
            for round in range(20):
                try:
                    writer.write_numpy(f"{index}.{round}", np.ones(1000))
                except ztensor.InvalidArgumentError as error:
                    errors.append(str(error))

        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all("thread" in error for error in errors)
    assert len(ztensor.open("x.zt")) == 80 - len(errors)


def test_other_threads_run_meanwhile() -> None:
    array = np.random.default_rng(0).integers(0, 50, 30_000_000, dtype=np.uint8)
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.wait(0.001):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    ztensor.numpy.save({"x": array}, compression=6)
    done.set()
    thread.join()
    assert ticks > 20


def in_a_child(path: str, expected: float, queue: multiprocessing.Queue) -> None:
    loaded = ztensor.numpy.load_file(path, copy=True)
    ztensor.numpy.save_file(loaded, f"{os.getpid()}.zt", compression=True)
    again = ztensor.torch.load_file(f"{os.getpid()}.zt")
    queue.put(float(again["w0"][0]) == expected)


def test_after_a_fork(model: dict[str, np.ndarray]) -> None:
    # The parent has used threads, and has views that the children inherit.
    views = ztensor.numpy.load_file("model.zt")
    reader = ztensor.Reader("model.zt")
    ztensor.numpy.load_file("small.zt")
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    expected = float(model["w0"][0])
    children = [
        context.Process(target=in_a_child, args=("model.zt", expected, queue)) for _ in range(3)
    ]
    for child in children:
        child.start()
    assert all(queue.get(timeout=60) for _ in children)
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    pid = os.fork()
    if pid == 0:
        views["w0"][:] = -1
        fine = (reader.read_numpy("w0", copy=True) == model["w0"]).all()
        os._exit(0 if fine else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert (views["w0"] == model["w0"]).all()


class Samples(torch.utils.data.Dataset):
    def __init__(self, path: str) -> None:
        self.reader = ztensor.Reader(path)

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.reader.read_torch(f"w{index}")


def test_a_data_loader_with_workers(model: dict[str, np.ndarray]) -> None:
    loader = torch.utils.data.DataLoader(Samples("small.zt"), batch_size=5, num_workers=2)
    batches = list(loader)
    assert len(batches) == 4
    assert (torch.cat(batches).numpy() == np.stack(list(model.values()))).all()
