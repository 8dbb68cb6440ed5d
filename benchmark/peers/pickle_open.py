"""torch, for the benchmark program to take turns with.

    pickle_open.py FILE TENSORS

Saves that many small tensors to FILE, and then loads it mapped, once for every
line on standard input, answering with the nanoseconds spent.
"""

import sys
import time

import torch

path, count = sys.argv[1], int(sys.argv[2])
torch.save(
    {f"model.layers.{n // 8}.block.{n % 8}.weight": torch.randn(16, 16) for n in range(count)}, path
)
print("ready", flush=True)
for _ in sys.stdin:
    start = time.perf_counter_ns()
    tensors = torch.load(path, mmap=True, weights_only=True)
    print(time.perf_counter_ns() - start, flush=True)
    assert len(tensors) == count
