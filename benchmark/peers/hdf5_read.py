"""h5py, for the benchmark program to take turns with.

    hdf5_read.py FILE FILTERS RESULT

Writes a chunked dataset `data` to FILE, its elements to RESULT, and then reads
the dataset into memory that is already there, once for every line on standard
input, answering with the nanoseconds spent.
"""

import sys
import time

import h5py
import numpy as np

path, filters, result = sys.argv[1:4]
options = {
    "none": {},
    "gzip": {"compression": "gzip", "compression_opts": 4},
    "shuffle+gzip": {"compression": "gzip", "compression_opts": 4, "shuffle": True},
    "lzf": {"compression": "lzf", "shuffle": True},
}[filters]
# Weights, as they usually are: small, around zero, in single precision.
data = (np.random.default_rng(1).standard_normal((4096, 2048)) * 0.02).astype(np.float32)
with h5py.File(path, "w") as file:
    file.create_dataset("data", data=data, chunks=(256, 512), **options)
data.tofile(result)
destination = np.zeros_like(data)
print("ready", flush=True)
for _ in sys.stdin:
    start = time.perf_counter_ns()
    with h5py.File(path, "r") as file:
        file["data"].read_direct(destination)
    print(time.perf_counter_ns() - start, flush=True)
