"""Lets zTensor 2 read our files of version 2, and write files for us to read.

    PYTHONPATH=FOLDER python3 ztensor_2.py read FILE   prints what it reads as JSON
    PYTHONPATH=FOLDER python3 ztensor_2.py make FILE   writes a file, prints what is in it
    PYTHONPATH=FOLDER python3 ztensor_2.py open FILE N   prints the fastest of N times to open it

FOLDER is where the package was unpacked: it has the name of ours and needs a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import Any

import ztensor


def described(source: Any) -> dict[str, Any]:
    tensors = {}
    for name, tensor in source.items():
        parts = {}
        for role in tensor.parts:
            part = tensor[role]
            digest = hashlib.sha256(bytes(part.tobytes())).hexdigest()
            parts[role] = [part.dtype, part.logical, digest]
        tensors[name] = {"shape": list(tensor.shape), "layout": tensor.layout, "parts": parts}
    return tensors


def read(path: str) -> dict[str, Any]:
    checked, undigested = ztensor.verify(path, deep=True)
    source = ztensor.open(path)
    attributes = dict(source.attributes or {})
    return {
        "tensors": described(source),
        "checked": checked,
        "undigested": undigested,
        "attributes": attributes,
    }


def make(path: str) -> dict[str, Any]:
    writer = ztensor.Writer(path, canonical=False, align=4096)
    writer.add("dense", bytes(range(24)), [2, 3], "f32")
    writer.add("packed", bytes(2000), [1000], "bf16", encoding="zt.zstd-seekable/1")
    writer.add("logical", bytes([0, 1, 1]), [3], "u8", logical="bool")
    parts = {
        "values": {"dtype": "f32", "data": bytes(8)},
        "indices": {"dtype": "u32", "data": bytes([1, 0, 0, 0, 0, 0, 0, 0])},
        "indptr": {"dtype": "u32", "data": bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0])},
    }
    writer.add_object("csr", [2, 2], parts, layout="zt.sparse_csr/1")
    with writer.stream("streamed", [4], {"data": {"dtype": "u16", "nbytes": 8}}) as sink:
        sink.write(bytes(range(3)))
        sink.write(bytes(range(5)))
    writer.set_attributes({"step": 7, "lr": 0.5, "tags": ["a", "b"]})
    writer.finish()
    return read(path)


def opened(path: str, rounds: int) -> dict[str, Any]:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        ztensor.open(path)
        best = min(best, time.perf_counter() - start)
    return {"seconds": best}


if __name__ == "__main__":
    command, path = sys.argv[1], sys.argv[2]
    if command == "open":
        print(json.dumps(opened(path, int(sys.argv[3]))))
    else:
        print(json.dumps({"read": read, "make": make}[command](path)))
