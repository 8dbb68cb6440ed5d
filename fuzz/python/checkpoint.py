"""Fuzzes the parser of ``checkpoint.json``, the description of a distributed checkpoint.

    python fuzz/python/checkpoint.py --seconds 3600
    python fuzz/python/checkpoint.py --seed 7 --count 1     # one case again

Documents are made and damaged by a generator that a seed determines, so that a finding is named by
its seed. A document must be refused with an error of ``ztensor``, or be a checkpoint whose every
tensor is a partition, which a bitmap confirms, and which is the same after it is written again.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import random
import sys
import time
from typing import Any

import numpy as np

import ztensor
from ztensor.distributed._checkpoint import Checkpoint

SCALARS = [
    None, True, False, 0, 1, -1, 2, 3, 7, 1 << 20, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 200, 0.5,
    1e308, float("nan"), float("inf"), "", "x", "float32", "json", "pickle", "../x", "/etc/passwd",
    "rank-00000.0123456789abcdef.zt", "\0", "\ud800", "é" * 50, [], {}, [[]], [0], [0, 0], {"a": 1},
    {"$tuple": [1]}, {"$tensor": ["float32", [1 << 40], ""]}, {"$bytes": "?"},
]  # fmt: skip


def partition(shape: list[int], choose: random.Random) -> list[tuple[list[int], list[int]]]:
    """Boxes that a shape is cut into."""
    boxes = [([0] * len(shape), list(shape))]
    for _ in range(choose.randrange(6) if shape else 0):
        offsets, sizes = boxes.pop(choose.randrange(len(boxes)))
        dim = choose.randrange(len(shape))
        at = choose.randint(0, sizes[dim])
        for start, size in ((0, at), (at, sizes[dim] - at)):
            part = (list(offsets), list(sizes))
            part[0][dim] += start
            part[1][dim] = size
            boxes.append(part)
    return boxes


def document(choose: random.Random) -> dict[str, Any]:
    """A checkpoint with nothing wrong in it."""
    files = [
        {
            "name": f"rank-{n:05}.{choose.getrandbits(64):016x}.zt",
            "length": 1000,
            "digest": "sha256:0",
        }
        for n in range(choose.randint(1, 3))
    ]
    place = lambda name: {"file": choose.randrange(len(files)), "object": name}  # noqa: E731
    tensors = {}
    for n in range(choose.randrange(4)):
        shape = [choose.randrange(6) for _ in range(choose.randrange(4))]
        chunks = [
            {**place(f"t{n}@{k}"), "offsets": offsets, "sizes": sizes}
            for k, (offsets, sizes) in enumerate(partition(shape, choose))
        ]
        tensors[f"t{n}"] = {
            "dtype": choose.choice(["float32", "bfloat16", "int8", "bool"]),
            "shape": shape,
            "chunks": chunks,
        }
    made: dict[str, Any] = {
        "format": "ztensor.distributed",
        "version": 1,
        "save": "0123456789abcdef",
        "files": files,
        "tensors": tensors,
        "objects": {"step": {**place("step"), "kind": "json"}},
    }
    if choose.random() < 0.5:
        made["paths"] = {name: ["model", 0, name] for name in (*tensors, "step")}
    if choose.random() < 0.3:
        made["planner"] = {"a": [1, 2.5, None]}
    return made


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container and key in a document."""
    found: list[tuple[Any, Any]] = []
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in keys:
        found.append((value, key))
        if isinstance(value[key], (dict, list)):
            found += places(value[key])
    return found


def damage(made: dict[str, Any], choose: random.Random) -> None:
    """One change of a tree."""
    container, key = choose.choice(places(made))
    value = container[key]
    kind = choose.randrange(6)
    if kind == 0 and type(value) is int:
        container[key] = value + choose.choice([-2, -1, 1, 2, 5])
    elif kind == 1:
        del container[key]
    elif kind == 2 and isinstance(container, list):
        container.insert(key, json.loads(json.dumps(value)))
    elif kind == 3 and isinstance(container, dict):
        container[str(choose.choice(SCALARS))] = container.pop(key)
    elif kind == 4:
        container[key] = json.loads(json.dumps(choose.choice(places(made))[0]))
    else:
        # A copy: what is changed in one document must not be in the next.
        container[key] = copy.deepcopy(choose.choice(SCALARS))


def case(seed: int) -> bytes:
    """The document of a seed."""
    choose = random.Random(seed)
    made = document(choose)
    for _ in range(choose.choice([0, 1, 1, 1, 2, 3, 8])):
        if places(made):
            damage(made, choose)
    text = json.dumps(made, ensure_ascii=choose.random() < 0.5).encode(errors="surrogatepass")
    if choose.random() < 0.2:
        data = bytearray(text)
        for _ in range(choose.randint(1, 5)):
            at = choose.randrange(len(data) + 1)
            cut = at + choose.choice([0, 0, 1, 8])
            data[at:cut] = choose.choice([b"", b"[", b"{", b'"', b"\\", b"0", b"\xff", b"," * 3])
        text = bytes(data)
    return text


def tiles(shape: tuple[int, ...], chunks: Any) -> bool:
    """Whether every element is in just one chunk, as far as a bitmap of them has room."""
    if not 0 < math.prod(shape) <= 1 << 24:
        return True
    count = np.zeros(shape, np.uint8)
    for chunk in chunks:
        bounds = zip(chunk.offsets, chunk.sizes, strict=True)
        count[tuple(slice(offset, offset + size) for offset, size in bounds)] += 1
    return bool((count == 1).all())


def check(data: bytes) -> bool:
    """Parses a document; says whether it is a checkpoint."""
    try:
        parsed = Checkpoint.from_json(data)
    except ztensor.ZTensorError:
        return False
    for name, entry in parsed.tensors.items():
        if math.prod(entry.shape) < 1 << 20:
            assert tiles(entry.shape, entry.chunks), name
    again = Checkpoint.from_json(parsed.to_json())
    assert again.tensors == parsed.tensors
    assert (again.files, again.objects, again.paths) == (parsed.files, parsed.objects, parsed.paths)
    return True


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seed", type=int, default=0, help="the first case")
    arguments.add_argument("--count", type=int, help="how many cases")
    arguments.add_argument("--seconds", type=float, default=60, help="how long, without --count")
    options = arguments.parse_args()
    end = time.monotonic() + options.seconds
    accepted = 0
    for done in itertools.count():
        if done == options.count or (options.count is None and time.monotonic() > end):
            break
        seed = options.seed + done
        try:
            accepted += check(case(seed))
        except BaseException:
            print(f"seed {seed}: {case(seed)!r}", file=sys.stderr)
            raise
    print(f"{done} documents, {accepted} of them checkpoints")


if __name__ == "__main__":
    main()
