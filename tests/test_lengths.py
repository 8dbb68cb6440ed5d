"""Lengths that a file states never meet memory of another length."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from zt_files import blobs, component, file, tensor, zstd_raw

import ztensor
import ztensor.numpy
import ztensor.torch
from ztensor import CorruptError, InvalidArgumentError

ODD = b"A" * 24 + b"ABCDEFG"


def odd_objects(kind: str) -> bytes:
    """Many components of three doubles and seven bytes, in places where no layout counts them."""
    frame = zstd_raw(ODD)
    data, (encoded, raw) = blobs(frame, ODD)
    if kind == "unknown layout":
        one = tensor("custom.layout", [3], x=component("f64", encoded, len(frame), 31))
    elif kind == "unknown type":
        part = component("f64", encoded, len(frame), 31, type="from.the.future")
        one = tensor("dense", [3], data=part)
    elif kind == "complex":
        part = component("f64", encoded, len(frame), 31, type="complex128")
        one = tensor("custom.layout", [1], x=part)
    elif kind == "raw":
        one = tensor("custom.layout", [3], x=component("f64", raw, 31))
    elif kind == "extra":
        extra = component("f64", encoded, len(frame), 31)
        one = tensor("dense", [24], data=component("u8", raw, 24), extra=extra)
    else:
        odd = component("i32", encoded, len(frame), 31)
        one = tensor("quantized_group", [3], packed_weight=odd, scales=odd, zeros=odd)
    return file(data, {f"t{index}": one for index in range(250)})


KINDS = ["unknown layout", "unknown type", "complex", "raw", "extra", "quantized"]


@pytest.mark.parametrize("kind", KINDS)
def test_components_of_broken_elements_are_refused_when_a_file_is_opened(kind: str) -> None:
    # In a process of its own: what this is about corrupts the heap.
    Path("odd.zt").write_bytes(odd_objects(kind))
    program = """
import ztensor, ztensor.numpy, ztensor.torch
data = open("odd.zt", "rb").read()
for load in (
    lambda: ztensor.numpy.load_file("odd.zt"),
    lambda: ztensor.numpy.load_file("odd.zt", copy=True),
    lambda: ztensor.torch.load_file("odd.zt", copy=True),
    lambda: ztensor.torch.load(data),
    lambda: ztensor.open("odd.zt").read("t0"),
):
    try:
        load()
    except ztensor.CorruptError as error:
        assert "component.elements" in str(error) and "31 bytes" in str(error), error
    else:
        raise SystemExit("the file was loaded")
"""
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr or outcome.stdout


def test_whole_elements_of_unknown_types_and_layouts_load_as_their_storage() -> None:
    numbers = np.arange(4.0)
    data, (at,) = blobs(numbers.tobytes())
    part = component("f64", at, 32, type="from.the.future")
    objects = {
        "type": tensor("dense", [2], data=part),
        "layout": tensor("custom.layout", [9], x=component("f64", at, 32)),
    }
    Path("x.zt").write_bytes(file(data, objects))
    for copy in (False, True):
        loaded = ztensor.torch.load_file("x.zt", copy=copy)
        assert np.array_equal(loaded["type"].components["data"], numbers)
        assert np.array_equal(loaded["layout"].components["x"], numbers)


def test_a_destination_is_as_long_as_its_object_says() -> None:
    ztensor.numpy.save_file({"x": np.arange(8.0)}, "x.zt")
    native = ztensor.open("x.zt")._native
    for wrong in (np.zeros(7), np.zeros(9), torch.zeros(7), torch.zeros(0)):
        with pytest.raises(InvalidArgumentError, match="buffer has"):
            native.read_into([("x", wrong)])
    strided: list[Any] = [
        np.zeros((8, 2))[:, 0],
        torch.zeros(8, 2)[:, 0],
        torch.zeros(8, device="meta"),
    ]
    for wrong in strided:
        with pytest.raises(InvalidArgumentError, match="contiguous"):
            native.read_into([("x", wrong)])
    with pytest.raises(InvalidArgumentError, match="does not fill 24 bytes"):
        native.read_parts([("x", 8, [8], [0], [4], torch.zeros(3, dtype=torch.float64))])
    fixed = np.zeros(8)
    fixed.flags.writeable = False
    with pytest.raises(InvalidArgumentError, match="read-only"):
        native.read_into([("x", fixed)])


@pytest.mark.parametrize("copy", [False, True])
def test_tensors_are_on_the_cpu_whatever_the_default_device_is(copy: bool) -> None:
    ztensor.torch.save_file({"x": torch.arange(8.0)}, "x.zt", compression=True)
    with torch.device("meta"):
        loaded = ztensor.torch.load_file("x.zt", copy=copy)
    assert torch.equal(loaded["x"], torch.arange(8.0))


def bools(name: str, content: bytes) -> None:
    data, (at,) = blobs(content)
    objects = {"mask": tensor("dense", [len(content)], data=component("bool", at, len(content)))}
    Path(name).write_bytes(file(data, objects))


def test_bytes_that_are_no_booleans_are_refused() -> None:
    bools("bad.zt", bytes([0, 1] * 4000 + [2, 1]))
    reader = ztensor.open("bad.zt")
    for load in (
        lambda: ztensor.numpy.load_file("bad.zt"),
        lambda: ztensor.numpy.load_file("bad.zt", copy=True),
        lambda: ztensor.torch.load_file("bad.zt"),
        lambda: ztensor.torch.load_file("bad.zt", copy=True),
        lambda: reader.read("mask"),
        lambda: reader._native.read_rows("mask", 7990, 8002),
        lambda: ztensor.safe_open("bad.zt", "np").get_slice("mask")[:],
    ):
        with pytest.raises(CorruptError, match=r"is 2, neither 0 nor 1"):
            load()
    destination = np.ones(8002, dtype=bool)
    with pytest.raises(CorruptError, match="neither"):
        reader.read_into("mask", destination)
    assert not destination.any(), "no byte of another value is left in the caller's array"


def test_booleans_load_as_they_are() -> None:
    expected = np.array([0, 1] * 5000, dtype=bool)
    bools("good.zt", expected.tobytes())
    for copy in (False, True):
        assert np.array_equal(ztensor.numpy.load_file("good.zt", copy=copy)["mask"], expected)
        loaded = ztensor.torch.load_file("good.zt", copy=copy)["mask"]
        assert torch.equal(loaded, torch.from_numpy(expected))


def test_arrays_cannot_be_resized_while_they_are_saved() -> None:
    array = np.zeros(1 << 20)
    view = array[: 1 << 19]
    refused = []

    def resize(done: int, _total: int) -> None:
        if done and not refused:
            with pytest.raises(ValueError, match="cannot resize"):
                array.resize(1 << 24, refcheck=False)
            refused.append(done)

    ztensor.numpy.save_file({"x": view}, "x.zt", progress=resize)
    assert refused
    assert ztensor.numpy.load_file("x.zt")["x"].size == 1 << 19
    array.resize(1 << 10, refcheck=False)  # and afterwards they can


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_reads_whatever_its_parent_was_doing_when_it_forked() -> None:
    values = np.arange(1 << 17, dtype=np.float64)
    ztensor.numpy.save_file({"x": values}, "x.zt", compression=True)
    reader = ztensor.open("x.zt")
    rows = values.shape[0]
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            reader._native.read_rows("x", 0, rows, True)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(40):
            child = os.fork()
            if child == 0:
                import signal

                signal.alarm(60)
                for _ in range(3):
                    reader._native.read_rows("x", 0, rows, True)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        over.set()
        for thread in threads:
            thread.join()
