"""Progress, and stopping with Ctrl-C."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ztensor
import ztensor.numpy
import ztensor.torch

# A thread sends the signal when the call reports its first step. Where the call ends before that
# thread gets to run, it is tried again: what counts is that a call is given up in its middle.
SCRIPT = """
import os, signal, sys, threading
import numpy as np, ztensor, ztensor.numpy
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
random = np.random.default_rng(0)
arrays = {str(i): random.integers(0, 40, 4_000_000, dtype=np.uint8) for i in range(60)}
%s
seen, begun = [], threading.Semaphore(0)
def progress(done, of):
    if not seen:
        begun.release()
    seen.append((done, of))
def interrupt():
    while True:
        begun.acquire()
        os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
for _ in range(50):
    seen.clear()
    try:
        %s
        threading.Event().wait(60)  # the signal is late: it ends this
    except KeyboardInterrupt:
        if seen[-1][0] < seen[-1][1]:
            sys.exit(7)
"""


@pytest.mark.parametrize(
    ("before", "call"),
    [
        ("", 'ztensor.numpy.save_file(arrays, "x.zt", compression=12, progress=progress)'),
        ("", 'ztensor.numpy.save_file(arrays, "x.zt", checksum="sha256", progress=progress)'),
        (
            "ztensor.numpy.save_file(arrays, 'y.zt')",
            'ztensor.numpy.load_file("y.zt", copy=True, progress=progress)',
        ),
        (
            "ztensor.numpy.save_file(arrays, 'y.zt', checksum='sha256'); r = ztensor.open('y.zt')",
            "r.verify(progress=progress)",
        ),
    ],
)
def test_control_c(before: str, call: str) -> None:
    outcome = subprocess.run(
        [sys.executable, "-c", SCRIPT % (before, call)], capture_output=True, text=True, timeout=300
    )
    assert outcome.returncode == 7, outcome.stderr
    assert not list(Path().glob(".*tmp*"))


def test_callbacks() -> None:
    arrays = {str(index): np.ones(500_000) for index in range(10)}
    total = sum(array.nbytes for array in arrays.values())
    calls: list[tuple[int, int]] = []

    def tell(done: int, of: int) -> None:
        calls.append((done, of))

    def check() -> None:
        assert calls[-1] == (total, total)
        assert [done for done, _ in calls] == sorted(done for done, _ in calls)
        calls.clear()

    ztensor.numpy.save_file(arrays, "x.zt", progress=tell)
    check()
    ztensor.torch.save_file(arrays, "y.zt", compression=True, progress=tell)
    check()
    ztensor.numpy.load_file("x.zt", copy=True, progress=tell)
    check()
    ztensor.numpy.load_file("x.zt", progress=tell)
    check()
    ztensor.torch.load_file("y.zt", progress=tell)
    check()
    data = ztensor.numpy.save(arrays, progress=tell)
    check()
    ztensor.numpy.load(data, progress=tell)
    check()
    ztensor.open("x.zt").verify(progress=tell)
    check()
    destinations = {name: np.empty(500_000) for name in arrays}
    destinations["0"] = np.empty(1_000_000)[::2]
    ztensor.open("x.zt").read_into(destinations, progress=tell)
    check()


def test_a_callback_that_raises_stops_the_call() -> None:
    def stop(done: int, of: int) -> None:
        raise RuntimeError("enough")

    arrays = {str(index): np.ones(100_000) for index in range(10)}
    with pytest.raises(RuntimeError, match="enough"):
        ztensor.numpy.save_file(arrays, "x.zt", progress=stop)
    assert list(Path().iterdir()) == []
    ztensor.numpy.save_file(arrays, "x.zt")
    with pytest.raises(RuntimeError, match="enough"):
        ztensor.numpy.load_file("x.zt", copy=True, progress=stop)


def test_bars(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {"x": np.ones(100_000)}
    ztensor.numpy.save_file(arrays, "x.zt", progress=True)
    assert "saving" in capfd.readouterr().err
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    ztensor.numpy.load_file("x.zt", copy=True, progress=True)
    assert "loading: 100 %" in capfd.readouterr().err
    ztensor.numpy.load_file("x.zt", progress=False)
    assert capfd.readouterr().err == ""
    with pytest.raises(ztensor.InvalidArgumentError, match="progress"):
        ztensor.numpy.load_file("x.zt", progress="yes")
