"""NumPy, for the benchmark program to take turns with.

    npz_read.py FILE

Reads every array of the archive FILE, once for every line on standard input,
answering with the nanoseconds spent.
"""

import sys
import time

import numpy as np

path = sys.argv[1]
print("ready", flush=True)
for _ in sys.stdin:
    start = time.perf_counter_ns()
    with np.load(path) as archive:
        arrays = [archive[name] for name in archive.files]
    print(time.perf_counter_ns() - start, flush=True)
    del arrays
