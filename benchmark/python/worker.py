"""Times calls of one library. Reads a case per line from standard input and answers in seconds.

The library is whatever the interpreter finds: this project, an older ztensor
with the same functions, or safetensors. ``fresh`` is the harness's program that reads a file into
untouched memory and does nothing else.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

library, folder = sys.argv[1], Path(sys.argv[2])
library, *release = library.split()
release = release if library == "safetensors" else []
backend = release[1] if release else "mmap"
if len(sys.argv) > 3:
    sys.path.insert(0, sys.argv[3])  # where the release of the library lies that is asked for
suffix = ".zt"
sys.path.insert(1, str(Path(__file__).resolve().parent.parent))


def functions(framework: str) -> Any:
    return __import__(f"{library}.{framework}", fromlist=["load_file"])


def path(name: str) -> str:
    return str(folder / f"{name}{suffix}")


def forget(file: str) -> None:
    """Drops a file from the page cache."""
    with open(file, "rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def touch(tensors: dict[str, Any]) -> int:
    """Reads one byte of every page."""
    total = 0
    for tensor in tensors.values():
        array = tensor if isinstance(tensor, np.ndarray) else tensor.numpy()
        total += int(array.reshape(-1).view(np.uint8)[::4096].sum())
    return total


def load(
    framework: str, name: str, *, copy: bool, cold: bool = False, touched: bool = False
) -> Callable[[], Any]:
    module, file = functions(framework), path(name)
    options: dict[str, Any] = {"copy": copy} if library == "ztensor" else {}
    if release:
        options["backend"] = backend

    def run() -> Any:
        tensors = module.load_file(file, **options)
        if copy and library == "safetensors" and framework == "torch" and backend == "mmap":
            return {key: tensor.clone() for key, tensor in tensors.items()}
        if touched:
            touch(tensors)
        return tensors

    if cold:
        forget(file)
    return run


def save(framework: str, name: str, **options: Any) -> Callable[[], Any]:
    module = functions(framework)
    target = str(folder / f"saved{os.getpid()}{suffix}")
    tensors = module.load_file(path(name))
    if framework == "torch":
        tensors = {key: tensor.clone() for key, tensor in tensors.items()}
    else:
        tensors = {key: np.array(array) for key, array in tensors.items()}
    if os.path.exists(target):
        os.unlink(target)
    os.sync()
    return lambda: module.save_file(tensors, target, **options)


def fresh(name: str, cold: bool) -> Callable[[], Any]:
    from harness.worker import fresh_read

    return lambda: fresh_read(path(name), cold)


def prepare(case: str) -> Callable[[], Any]:
    global suffix
    framework, what, name, *flags = case.split()
    suffix = ".safetensors" if library == "safetensors" or flags[-2:-1] == ["as"] else ".zt"
    if library == "fresh":
        return fresh(name, "cold" in flags)
    if what == "load":
        copy = "copy" in flags
        return load(framework, name, copy=copy, cold="cold" in flags, touched="touch" in flags)
    return save(framework, name, **({"compression": 3} if "zstd" in flags else {}))


libc = ctypes.CDLL(None)
for line in sys.stdin:
    run = prepare(line.strip())
    # Every time as the first time in a process: memory that was freed is given back.
    gc.collect()
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    start = time.perf_counter()
    result = run()
    # The harness times its program itself, without dropping the file from the cache.
    seconds = result if library == "fresh" else time.perf_counter() - start
    print(seconds, flush=True)
    del result, run
