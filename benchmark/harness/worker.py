"""A process that times one library: a line of JSON in, a line of JSON out.

    worker.py LIBRARY

Commands: ``read`` and ``write`` with what they are about, ``limit`` for what the machine itself
can do. Preparing (dropping the page cache, loading what is to be written) and checking are not
timed; bringing in every page of a mapped tensor is.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import libraries

library = sys.argv[1]
PAGE = 4096
PIECE = 2 << 20
FEW = 16


def forget(path: str) -> None:
    """Drops a file from the page cache."""
    with open(path, "rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def array(tensor: Any) -> np.ndarray:
    return tensor if isinstance(tensor, np.ndarray) else tensor.detach().numpy()


def touch(tensors: dict[str, Any]) -> float:
    """An element of every page, added up. With 50,000 tensors it is the calls that cost, so
    those of a few pages are read one element at a time, which needs no array in between."""
    total = 0.0
    for tensor in tensors.values():
        held = array(tensor)
        step = PAGE // held.itemsize
        if held.size > FEW * step:
            flat = held.reshape(-1).view(np.uint8)
            total += int(flat[::PAGE].sum(dtype=np.int64))
        elif held.size:
            for index in range(0, held.size, step):
                total += held.item(index)
            total += held.item(held.size - 1)
    return total


def check(tensors: dict[str, Any], expected: dict[str, list[Any]]) -> None:
    """Every tensor that was asked for, bit for bit."""
    assert tensors.keys() == expected.keys(), "names"
    for name, (dtype, crc) in expected.items():
        flat = np.ascontiguousarray(array(tensors[name])).reshape(-1)
        assert flat.dtype == dtype, f"{name}: {flat.dtype}"
        assert zlib.crc32(flat.view(np.uint8)) == crc, f"{name}: other bytes"


libc = ctypes.CDLL(None)


def give_back() -> None:
    """Returns memory that was freed to the system."""
    gc.collect()
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Every time as the first time in a process: memory that was freed has been given back."""
    give_back()
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


readers: dict[tuple[str, bool], libraries.Reader] = {}


def reader_for(backend: str, copy: bool) -> libraries.Reader:
    """The library's reader, imported once."""
    if (backend, copy) not in readers:
        readers[backend, copy] = libraries.READERS[library](backend, copy)
    return readers[backend, copy]


def read(
    path: str, backend: str, copy: bool, names: list[str] | None, cold: bool, expected: str | None
) -> dict[str, float]:
    reader = reader_for(backend, copy)
    if cold:
        forget(path)

    def run() -> dict[str, Any]:
        tensors = reader(path, names)
        if not copy:
            touch(tensors)  # what is mapped is read when it is touched; what was copied has been
        return tensors

    seconds, tensors = timed(run)
    if not copy:
        # With thousands of small tensors it is this program's calls that cost: what they take when
        # the pages are there already is not the library's.
        small = {name: t for name, t in tensors.items() if array(t).nbytes <= FEW * PAGE}
        seconds = max(seconds - timed(lambda: touch(small))[0], seconds / 100)
    if expected:
        manifest = json.loads(Path(expected).read_text())
        wanted = names if names is not None else manifest.keys()
        check(tensors, {name: manifest[name] for name in wanted})
    size = sum(array(tensor).nbytes for tensor in tensors.values())
    return {"seconds": seconds, "bytes": size}


held: dict[str, dict[str, np.ndarray]] = {}


def arrays_of(source: str) -> dict[str, np.ndarray]:
    """What an .npz file holds, loaded once."""
    if source not in held:
        with np.load(source) as archive:
            held[source] = {name: archive[name] for name in archive.files}
    return held[source]


def write(
    source: str, target: str, options: dict[str, Any], expected: str | None, keep: bool
) -> dict[str, float]:
    """Writes what ``source`` (an .npz file) holds; the file is removed if it is not to be kept."""
    arrays = arrays_of(source)
    if os.path.exists(target):
        os.unlink(target)
    os.sync()
    writer = libraries.WRITERS[library](**options)
    seconds, _ = timed(lambda: writer(arrays, target))
    if expected:
        written = libraries.READERS[library]("numpy", True)(target, None)
        check(written, json.loads(Path(expected).read_text()))
    size = sum(part.nbytes for part in arrays.values())
    answer = {"seconds": seconds, "bytes": size, "file": os.path.getsize(target)}
    if not keep:
        os.unlink(target)
    return answer


def memcpy(size: int) -> float:
    """glibc's, between memory that has been touched."""
    if "memcpy" not in held:
        held["memcpy"] = {"a": np.ones(size, np.uint8), "b": np.zeros(size, np.uint8)}
    a, b = held["memcpy"].values()
    seconds, _ = timed(lambda: ctypes.memmove(b.ctypes.data, a.ctypes.data, size))
    return seconds


def plain_read(path: str, cold: bool) -> float:
    """A sequential read into memory that has been touched."""
    if cold:
        forget(path)
    if "buffer" not in held:
        held["buffer"] = {"": np.ones(8 << 20, np.uint8)}
    buffer = memoryview(held["buffer"][""])

    def run() -> None:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    return timed(run)[0]


def fresh_read(path: str, cold: bool) -> float:
    """All cores read concurrently into untouched memory: what a copying load must do.
    Uncached data is read with O_DIRECT, where the file system supports it, by a few requests in
    flight.
    """
    if cold:
        forget(path)
    size = os.path.getsize(path)
    pieces = iter(range(0, size, PIECE))
    lock = threading.Lock()

    def run() -> mmap.mmap:
        memory = mmap.mmap(-1, size + PIECE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        buffer = memoryview(memory)
        descriptor = opened(path, cold)

        def work() -> None:
            while True:
                with lock:
                    start = next(pieces, None)
                if start is None:
                    return
                os.preadv(descriptor, [buffer[start : start + PIECE]], start)

        count = (os.cpu_count() or 1) * (2 if cold else 1)
        threads = [threading.Thread(target=work) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os.close(descriptor)
        return memory  # giving it back is not timed

    return timed(run)[0]


def opened(path: str, cold: bool) -> int:
    if cold and hasattr(os, "O_DIRECT"):
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            pass  # not every file system can
    return os.open(path, os.O_RDONLY)


def plain_write(target: str, size: int) -> float:
    if "block" not in held:
        held["block"] = {"": np.random.default_rng(0).integers(0, 256, 8 << 20, dtype=np.uint8)}
    block = memoryview(held["block"][""])
    if os.path.exists(target):
        os.unlink(target)
    os.sync()

    def run() -> None:
        with open(target, "wb", buffering=0) as file:
            left = size
            while left > 0:
                left -= file.write(block[: min(left, len(block))])

    return timed(run)[0]


READS = {"plain read": plain_read, "fresh read": fresh_read}


def limit(kind: str, path: str, size: int, cold: bool) -> dict[str, float]:
    if kind == "memcpy":
        return {"seconds": memcpy(size), "bytes": size}
    if kind in READS:
        return {"seconds": READS[kind](path, cold), "bytes": os.path.getsize(path)}
    return {"seconds": plain_write(path, size), "bytes": size}


def prepare(request: dict[str, Any]) -> dict[str, float]:
    """Everything that a request needs besides its own work: imports, and what is to be written."""
    if request["do"] == "read":
        reader_for(request["backend"], request["copy"])
    elif request["do"] == "write":
        libraries.WRITERS[library](**request["options"])
        touch(arrays_of(request["source"]))
    # What imports have left behind is no part of what the request takes, and would seem to make
    # it smaller if it were given back meanwhile.
    give_back()
    return {}


COMMANDS: dict[str, Callable[..., dict[str, float]]] = {
    "read": read,
    "write": write,
    "limit": limit,
    "prepare": prepare,
}


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer: dict[str, Any] = COMMANDS[request.pop("do")](**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        gc.collect()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
